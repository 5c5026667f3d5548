/* SPDX-License-Identifier: MIT
 *
 * Loading (what is refused, with which words; fingerprint, root, memory) and the edges of a forward
 * pass: rules of a batch, cancellation, values that are not finite. That the numbers are right is
 * the business of tests/golden, that they do not change that of tests/exactness.
 */
#include "gguf/gguf.h"
#include "model/model_fingerprint.h"
#include "model_rig.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

static mx_err try_load(const char *path, uint32_t n_ctx, mx_errbuf *eb)
{
    mx_pool *pool;
    mx_model *m;
    assert_int_equal(mx_pool_create(&pool, 2, eb), MX_OK);
    mx_model_options o = {.path = path,
                          .max_batch_rows = 8,
                          .max_logit_rows = 4,
                          .n_ctx = n_ctx,
                          .cpu_level = mx_cpu_best()};
    mx_err e = mx_model_load(&m, &o, pool, eb);
    if (e == MX_OK) {
        mx_model_destroy(m);
    } else {
        assert_null(m);
    }
    mx_pool_destroy(pool);
    return e;
}

static void refused(const mx_tiny_spec *spec, uint32_t n_ctx, mx_err want, const char *words)
{
    char path[64];
    mx_errbuf eb = {{0}};
    int64_t live = mx_mem_live();
    rig_write(path, spec);
    mx_err e = try_load(path, n_ctx, &eb);
    unlink(path);
    if (e != want || strstr(eb.text, words) == NULL) {
        fail_msg("expected %s with \"%s\", got %s: %s", mx_err_name(want), words, mx_err_name(e),
                 eb.text);
    }
    assert_int_equal(mx_mem_live(), live);
}

static void bad_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *omit, *words;
    } keys[] = {
        {"general.architecture", "general.architecture"},
        {"llama.block_count", "llama.block_count"},
        {"llama.embedding_length", "llama.embedding_length"},
        {"llama.feed_forward_length", "llama.feed_forward_length"},
        {"llama.context_length", "llama.context_length"},
        {"llama.attention.head_count", "llama.attention.head_count"},
        {"tokenizer.ggml.tokens", "tokenizer.ggml.tokens"},
        {"token_embd.weight", "lacks tensor token_embd.weight of shape {64, 331}"},
        {"output_norm.weight", "lacks tensor output_norm.weight of shape {64}"},
        {"blk.1.attn_k.weight", "lacks tensor blk.1.attn_k.weight of shape {64, 32}"},
        {"blk.0.ffn_down.weight", "lacks tensor blk.0.ffn_down.weight of shape {96, 64}"},
    };
    for (size_t i = 0; i < MX_COUNT(keys); i++) {
        mx_tiny_spec s = mx_tiny_default();
        s.omit = keys[i].omit;
        mx_errbuf eb = {{0}};
        char path[64];
        rig_write(path, &s);
        mx_err e = try_load(path, 0, &eb);
        unlink(path);
        if (e == MX_OK || strstr(eb.text, keys[i].words) == NULL) {
            fail_msg("without %s: expected an error with \"%s\", got %s: %s", keys[i].omit,
                     keys[i].words, mx_err_name(e), eb.text);
        }
    }
    mx_tiny_spec s = mx_tiny_default();
    s.arch = "mamba";
    refused(&s, 0, MX_E_UNSUPPORTED, "\"mamba\" is not supported (supported: llama");
    refused(&s, 0, MX_E_UNSUPPORTED, "gemma3, qwen35, qwen35moe, qwen3next)");
    s = mx_tiny_default();
    s.wide = "blk.1.ffn_up.weight";
    refused(&s, 0, MX_E_FORMAT, "tensor blk.1.ffn_up.weight has shape {64, 97}, expected {64, 96}");
    s.wide = "blk.0.attn_norm.weight";
    refused(&s, 0, MX_E_FORMAT, "tensor blk.0.attn_norm.weight has shape {65}, expected {64}");
    s = mx_tiny_default();
    s.has_qk_norm = true; /* llama has no such norms: the file computes something else */
    refused(&s, 0, MX_E_UNSUPPORTED, "attn_q_norm.weight");
    s = mx_tiny_default();
    s.n_heads = 3;
    refused(&s, 0, MX_E_FORMAT, "3 query heads cannot share 2");
    s = mx_tiny_default();
    s.head_dim = 24;
    refused(&s, 0, MX_E_UNSUPPORTED, "heads of 24 dimensions");
    s = mx_tiny_default();
    refused(&s, 513, MX_E_INVALID, "trained for 512");
    mx_errbuf eb;
    assert_int_equal(try_load("/nonexistent/model.gguf", 0, &eb), MX_E_NOT_FOUND);
    assert_non_null(strstr(eb.text, "/nonexistent/model.gguf"));
}

static mx_tiny_spec tiny_mixture(void)
{
    mx_tiny_spec s = mx_tiny_default();
    s.arch = "qwen3moe";
    s.has_qk_norm = true;
    s.n_experts = 6;
    s.n_experts_used = 2;
    return s;
}

static mx_tiny_spec tiny_gemma(void)
{
    mx_tiny_spec s = mx_tiny_default();
    s.arch = "gemma3";
    s.has_qk_norm = true;
    s.has_post_norms = true;
    s.window = 21;
    return s;
}

static void bad_mixtures_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *omit, *words;
    } parts[] = {
        {"qwen3moe.expert_count", "qwen3moe.expert_count"},
        {"qwen3moe.expert_used_count", "qwen3moe.expert_used_count"},
        {"qwen3moe.expert_feed_forward_length", "qwen3moe.expert_feed_forward_length"},
        {"blk.1.ffn_gate_inp.weight", "lacks tensor blk.1.ffn_gate_inp.weight of shape {64, 6}"},
        {"blk.0.ffn_gate_exps.weight",
         "lacks tensor blk.0.ffn_gate_exps.weight of shape {64, 96, 6}"},
        {"blk.1.ffn_up_exps.weight", "lacks tensor blk.1.ffn_up_exps.weight of shape {64, 96, 6}"},
        {"blk.1.ffn_down_exps.weight",
         "lacks tensor blk.1.ffn_down_exps.weight of shape {96, 64, 6}"},
    };
    for (size_t i = 0; i < MX_COUNT(parts); i++) {
        mx_tiny_spec s = tiny_mixture();
        s.omit = parts[i].omit;
        refused(&s, 0, i < 3 ? MX_E_NOT_FOUND : MX_E_FORMAT, parts[i].words);
    }
    mx_tiny_spec s = tiny_mixture();
    s.wide = "blk.1.ffn_up_exps.weight";
    refused(&s, 0, MX_E_FORMAT,
            "tensor blk.1.ffn_up_exps.weight has shape {64, 96, 7}, expected {64, 96, 6}");
    s = tiny_mixture();
    s.wide = "blk.0.ffn_gate_inp.weight";
    refused(&s, 0, MX_E_FORMAT,
            "tensor blk.0.ffn_gate_inp.weight has shape {64, 7}, expected {64, 6}");
    s = tiny_mixture();
    s.n_experts_used = 7;
    refused(&s, 0, MX_E_FORMAT, "7 experts per token, but there are only 6");
    s.n_experts_used = 0;
    refused(&s, 0, MX_E_FORMAT, "qwen3moe.expert_used_count is 0");
    s = tiny_mixture();
    s.n_experts = 1025;
    refused(&s, 0, MX_E_FORMAT, "qwen3moe.expert_count is 1025, expected 1 to 1024");
    s = tiny_mixture();
    s.type = MX_Q8_0;
    s.has_quantized_router = true;
    refused(&s, 0, MX_E_UNSUPPORTED, "tensor blk.0.ffn_gate_inp.weight: a router of type");
    s = tiny_mixture();
    s.arch = "qwen3"; /* which knows no experts */
    refused(&s, 0, MX_E_UNSUPPORTED, "qwen3.expert_count is 6");
    static const struct {
        const char *key;
        uint32_t value;
        const char *words;
    } keys[] = {
        {"*.expert_gating_func", 2, "qwen3moe.expert_gating_func is 2: only 1 is supported"},
        {"*.expert_weights_norm", 0, "qwen3moe.expert_weights_norm is 0: only 1"},
        {"*.expert_weights_scale", 3, "qwen3moe.expert_weights_scale is 3: only 1"},
        {"*.expert_shared_count", 1, "qwen3moe.expert_shared_count is 1"},
        {"*.leading_dense_block_count", 2, "qwen3moe.leading_dense_block_count is 2"},
    };
    for (size_t i = 0; i < MX_COUNT(keys); i++) {
        s = tiny_mixture();
        s.extra_key = keys[i].key;
        s.extra_value = keys[i].value;
        refused(&s, 0, MX_E_UNSUPPORTED, keys[i].words);
    }
}

static void bad_gemmas_are_refused(void **state)
{
    (void)state;
    mx_tiny_spec s = tiny_gemma();
    s.omit = "gemma3.attention.sliding_window";
    refused(&s, 0, MX_E_NOT_FOUND, "gemma3.attention.sliding_window");
    s.omit = "blk.1.post_ffw_norm.weight";
    refused(&s, 0, MX_E_FORMAT, "lacks tensor blk.1.post_ffw_norm.weight of shape {64}");
    s.omit = "blk.0.post_attention_norm.weight";
    refused(&s, 0, MX_E_FORMAT, "lacks tensor blk.0.post_attention_norm.weight of shape {64}");
    s = tiny_gemma();
    s.extra_key = "*.final_logit_softcapping";
    s.extra_value = 30;
    refused(&s, 0, MX_E_UNSUPPORTED, "gemma3.final_logit_softcapping is 30");
    s = tiny_mixture();
    s.has_post_norms = true; /* the file computes something else */
    refused(&s, 0, MX_E_UNSUPPORTED, "post_attention_norm.weight");
}

/* Everything that a hybrid can have: a mixture with a shared expert, and a head that is not run. */
static mx_tiny_spec tiny_hybrid(void)
{
    mx_tiny_spec s = tiny_mixture();
    s.arch = "qwen35moe";
    s.n_rot = 8;
    s.n_ff_shared = 32;
    s.attn_period = 2;
    s.gdn_k_heads = 2;
    s.gdn_v_heads = 4;
    s.gdn_dim = 16;
    s.gdn_taps = 4;
    s.n_mtp = 1;
    return s;
}

static void bad_hybrids_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *omit, *words;
    } parts[] = {
        {"qwen35moe.ssm.conv_kernel", "qwen35moe.ssm.conv_kernel"},
        {"qwen35moe.ssm.state_size", "qwen35moe.ssm.state_size"},
        {"qwen35moe.ssm.group_count", "qwen35moe.ssm.group_count"},
        {"qwen35moe.ssm.time_step_rank", "qwen35moe.ssm.time_step_rank"},
        {"qwen35moe.ssm.inner_size", "qwen35moe.ssm.inner_size"},
        {"qwen35moe.expert_shared_feed_forward_length", "expert_shared_feed_forward_length"},
        {"blk.0.attn_qkv.weight", "lacks tensor blk.0.attn_qkv.weight of shape {64, 128}"},
        {"blk.0.attn_gate.weight", "lacks tensor blk.0.attn_gate.weight of shape {64, 64}"},
        {"blk.0.ssm_beta.weight", "lacks tensor blk.0.ssm_beta.weight of shape {64, 4}"},
        {"blk.0.ssm_alpha.weight", "lacks tensor blk.0.ssm_alpha.weight of shape {64, 4}"},
        {"blk.0.ssm_conv1d.weight", "lacks tensor blk.0.ssm_conv1d.weight of shape {4, 128}"},
        {"blk.0.ssm_dt.bias", "lacks tensor blk.0.ssm_dt.bias of shape {4}"},
        {"blk.0.ssm_a", "lacks tensor blk.0.ssm_a of shape {4}"},
        {"blk.0.ssm_norm.weight", "lacks tensor blk.0.ssm_norm.weight of shape {16}"},
        {"blk.0.ssm_out.weight", "lacks tensor blk.0.ssm_out.weight of shape {64, 64}"},
        {"blk.1.attn_q.weight", "lacks tensor blk.1.attn_q.weight of shape {64, 128}"},
        {"blk.0.post_attention_norm.weight", "blk.0.post_attention_norm.weight of shape {64}"},
        {"blk.1.ffn_gate_inp_shexp.weight", "blk.1.ffn_gate_inp_shexp.weight of shape {64}"},
        {"blk.1.ffn_down_shexp.weight", "blk.1.ffn_down_shexp.weight of shape {32, 64}"},
    };
    for (size_t i = 0; i < MX_COUNT(parts); i++) {
        mx_tiny_spec s = tiny_hybrid();
        s.omit = parts[i].omit;
        refused(&s, 0, i < 6 ? MX_E_NOT_FOUND : MX_E_FORMAT, parts[i].words);
    }
    mx_tiny_spec s = tiny_hybrid();
    s.wide = "blk.0.attn_qkv.weight";
    refused(&s, 0, MX_E_FORMAT, "blk.0.attn_qkv.weight has shape {64, 129}, expected {64, 128}");
    s = tiny_hybrid();
    s.gdn_v_heads = 3;
    refused(&s, 0, MX_E_FORMAT, "3 value heads (ssm.time_step_rank) cannot share 2 key heads");
    s = tiny_hybrid();
    s.gdn_dim = 24;
    refused(&s, 0, MX_E_UNSUPPORTED, "ssm.state_size 24");
    s = tiny_hybrid();
    s.gdn_taps = 1;
    refused(&s, 0, MX_E_UNSUPPORTED, "ssm.conv_kernel 1");
    s = tiny_hybrid();
    s.attn_period = 3;
    refused(&s, 0, MX_E_UNSUPPORTED, "2 layers, of which every 3th has attention");
    s = tiny_hybrid();
    s.has_fused_qkv = true; /* the gate of attention would be missing */
    refused(&s, 0, MX_E_UNSUPPORTED, "blk.1.attn_qkv.weight: queries, keys and values in one tensor");
    s = tiny_hybrid();
    s.has_ssm_in = true; /* only where value heads of one key head stand together */
    refused(&s, 0, MX_E_FORMAT, "lacks tensor blk.0.attn_qkv.weight");
    s = tiny_mixture();
    s.n_ff_shared = 32; /* qwen3moe has no shared expert */
    refused(&s, 0, MX_E_UNSUPPORTED, "expert_shared_feed_forward_length is 32");
}

/* Pages for the layers with attention, a state for the others; the head is counted. */
static void hybrid_description_is_right(void **state)
{
    (void)state;
    mx_tiny_spec s = tiny_hybrid();
    rig r = rig_open_tiny(&s, rig_default());
    const mx_model_config *c = mx_model_get_config(r.model);
    assert_int_equal(c->n_layers, 2);
    assert_int_equal(c->n_gdn_layers, 1);
    assert_int_equal(c->n_mtp_layers, 1);
    assert_int_equal(c->n_mtp_params, 64 + 128 * 64 + 64);
    assert_int_equal(mx_model_kv_shape(r.model)->n_layers, 1);
    /* conv inputs: 3 x (2 x 2 + 4 heads) x 16; S: 4 heads x 16 x 16 */
    assert_int_equal(mx_model_kv_shape(r.model)->state_bytes, 4 * (3 * 128 + 4 * 256));
    rig_close(&r);
}

/* A batch of a hybrid goes on from the sequence's state, once per sequence. */
static void hybrid_batches_are_checked(void **state)
{
    (void)state;
    mx_tiny_spec spec = tiny_hybrid();
    rig r = rig_open_tiny(&spec, rig_default());
    const int32_t tokens[] = {5, 6, 7};
    mx_seq s, other;
    mx_seq_init(&s, r.kv, &r.root);
    mx_seq_init(&other, r.kv, &r.root);
    rig_feed(&r, &s, tokens, 3, NULL);
    assert_int_equal(mx_seq_reserve(&s, 4), MX_OK);
    assert_int_equal(mx_seq_reserve(&other, 4), MX_OK);
    uint32_t bad;
    mx_errbuf eb = {{0}};
    mx_batch_row skips[] = {{&s, 4, 9, -1, false}};
    mx_batch b = {.rows = skips, .n_rows = 1};
    assert_int_equal(mx_model_forward(r.model, &b, &bad, &eb), MX_E_INVALID);
    assert_non_null(strstr(eb.text, "does not follow the state at 3"));
    mx_batch_row twice[] = {{&s, 3, 9, -1, false}, {&other, 0, 9, -1, false}, {&s, 3, 9, -1, false}};
    b = (mx_batch){.rows = twice, .n_rows = 3};
    assert_int_equal(mx_model_forward(r.model, &b, &bad, &eb), MX_E_INVALID);
    b.n_rows = 2;
    assert_int_equal(mx_model_forward(r.model, &b, &bad, &eb), MX_OK);
    assert_true(s.next->n_tokens == 4 && other.next->n_tokens == 1);
    mx_seq_free(&s);
    mx_seq_free(&other);
    rig_close(&r);
}

/* The same experts in one tensor or in two. */
static void fused_experts_are_the_same_experts(void **state)
{
    (void)state;
    enum { N = 40 };
    float *hidden[2];
    int32_t tokens[N];
    uint64_t rng = 8;
    for (int i = 0; i < N; i++) {
        tokens[i] = (int32_t)(mx_tiny_random(&rng) % 331);
    }
    for (int i = 0; i < 2; i++) {
        mx_tiny_spec spec = tiny_mixture();
        spec.n_experts = 13;
        spec.n_experts_used = 4;
        spec.has_fused_gate_up = i == 1;
        rig r = rig_open_tiny(&spec, rig_default());
        assert_int_equal(mx_model_get_config(r.model)->n_experts, 13);
        assert_int_equal(mx_model_get_config(r.model)->n_experts_used, 4);
        /* per layer: q and o, k and v, two norms, two head norms, router, experts */
        assert_int_equal(mx_model_get_config(r.model)->n_params,
                         331 * 64 + 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 + 2 * 16 +
                                              13 * 64 + 13 * 3 * 64 * 96));
        hidden[i] = mx_calloc(N * r.n_embd, sizeof(float));
        mx_seq s;
        mx_seq_init(&s, r.kv, &r.root);
        rig_feed(&r, &s, tokens, N, hidden[i]);
        mx_seq_free(&s);
        rig_close(&r);
    }
    assert_memory_equal(hidden[0], hidden[1], N * 64 * sizeof(float));
    mx_free(hidden[0]);
    mx_free(hidden[1]);
}

static void description_is_right(void **state)
{
    (void)state;
    mx_tiny_spec s = mx_tiny_default();
    s.is_tied = false;
    rig_options o = rig_default();
    o.n_ctx = 300;
    rig r = rig_open_tiny(&s, o);
    const mx_model_config *c = mx_model_get_config(r.model);
    assert_string_equal(c->architecture, "llama");
    assert_string_equal(c->name, "tiny");
    assert_int_equal(c->n_layers, 2);
    assert_int_equal(c->n_vocab, 331);
    assert_int_equal(c->n_ctx_train, 512);
    assert_int_equal(c->n_ctx, 300);
    /* embeddings and head, two layers of (q, k, v, o, two norms, three FFN matrices), last norm */
    assert_int_equal(c->n_params, 2 * 331 * 64 +
                                      2 * (64 * 64 * 2 + 64 * 32 * 2 + 2 * 64 + 3 * 64 * 96) + 64);
    assert_int_equal(mx_tokenizer_size(mx_model_tokenizer(r.model)), 331);
    assert_true(mx_model_chat_template(r.model).len > 20);
    assert_int_equal(mx_model_kv_shape(r.model)->head_dim, 16);
    rig_close(&r);
}

/* ---- fingerprint and root -------------------------------------------------------------------- */

/* The definition, written out without threads. */
static mx_hash256 slow_fingerprint(const uint8_t *bytes, size_t n)
{
    uint8_t buf[24 + 8 + 32 * 8] = "mtplx model file v1";
    size_t at = 32;
    mx_put_le64(buf + 24, n);
    for (size_t i = 0; i < n; i += 1 << 20, at += 32) {
        mx_hash256 h = mx_sha256_of(bytes + i, mx_min_size(1 << 20, n - i));
        assert_true(at + 32 <= sizeof buf);
        memcpy(buf + at, h.b, 32);
    }
    return mx_sha256_of(buf, at);
}

static void fingerprint_is_the_tree_hash(void **state)
{
    (void)state;
    mx_tiny_spec s = mx_tiny_default();
    s.n_embd = 512;
    s.n_ff = 512;
    mx_buf bytes = {0};
    mx_tiny_build(&bytes, &s);
    assert_true(bytes.len > 3 << 20 && bytes.len % (1 << 20) != 0);
    mx_hash256 want = slow_fingerprint((const uint8_t *)bytes.ptr, bytes.len);
    for (unsigned threads = 1; threads <= 3; threads++) {
        rig_options o = rig_default();
        o.n_threads = threads;
        rig r = rig_open_tiny(&s, o);
        assert_memory_equal(mx_model_fingerprint(r.model), &want, sizeof want);
        rig_close(&r);
    }
    mx_buf_free(&bytes);
}

static void fingerprints_are_remembered(void **state)
{
    (void)state;
    char dir[] = "/tmp/mtplx-test-XXXXXX", sub[64];
    assert_non_null(mkdtemp(dir));
    snprintf(sub, sizeof sub, "%s/cache", dir); /* made on demand */
    mx_file_stamp stamp = {1, 2, 3, 1000000000, 2000000000}, other = stamp;
    mx_hash256 hash = mx_sha256_of("x", 1), got;
    mx_errbuf eb;
    assert_false(mx_fingerprint_cached(sub, &stamp, &got));
    assert_int_equal(mx_fingerprint_remember(sub, &stamp, &hash, &eb), MX_OK);
    assert_true(mx_fingerprint_cached(sub, &stamp, &got));
    assert_memory_equal(&got, &hash, sizeof got);
    other.ctime_ns++;
    assert_false(mx_fingerprint_cached(sub, &other, &got));
    /* Too young to be trusted: it may change again within the same tick. */
    other.ctime_ns = (int64_t)time(NULL) * 1000000000;
    assert_int_equal(mx_fingerprint_remember(sub, &other, &hash, &eb), MX_OK);
    assert_false(mx_fingerprint_cached(sub, &other, &got));

    /* Every single damaged byte, and every length, makes the file worthless but harmless. */
    char command[160], path[160];
    FILE *f = NULL;
    snprintf(command, sizeof command, "ls %s/*", sub);
    f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(path, sizeof path, f));
    pclose(f);
    path[strcspn(path, "\n")] = '\0';
    uint8_t sound[200];
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, sound, sizeof sound);
    close(fd);
    assert_true(n > 80 && n < 200);
    for (ssize_t i = 0; i < 2 * n; i++) {
        uint8_t bad[200];
        memcpy(bad, sound, sizeof bad);
        bad[i % n] ^= i < n ? 0x10 : 0;
        fd = open(path, O_WRONLY | O_TRUNC);
        size_t len = i < n ? (size_t)n : (size_t)(i - n);
        assert_int_equal(write(fd, bad, len), len);
        close(fd);
        assert_false(mx_fingerprint_cached(sub, &stamp, &got));
    }
    assert_int_equal(mx_fingerprint_remember(sub, &stamp, &hash, &eb), MX_OK);
    assert_true(mx_fingerprint_cached(sub, &stamp, &got));
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(mx_fingerprint_remember(sub, &stamp, &hash, &eb), MX_E_IO);
}

static void root_covers_what_changes_the_numbers(void **state)
{
    (void)state;
    mx_tiny_spec s = mx_tiny_default();
    rig_options o = rig_default();
    rig r = rig_open_tiny(&s, o);
    mx_hash256 salt = mx_sha256_of("key", 3);
    mx_hash256 roots[6] = {r.root, mx_model_root(r.model, &salt)};
    rig_close(&r);
    o.n_ctx = 128; /* the context length changes no number */
    o.n_threads = 1;
    r = rig_open_tiny(&s, o);
    assert_memory_equal(&r.root, &roots[0], sizeof r.root);
    rig_close(&r);
    o.kv_type = MX_KV_F32;
    r = rig_open_tiny(&s, o);
    roots[2] = r.root;
    rig_close(&r);
    o.kv_type = MX_KV_F16;
    s.has_rope_freqs = true;
    r = rig_open_tiny(&s, o);
    roots[3] = r.root;
    rig_close(&r);
    s = mx_tiny_default();
    s.seed = 2;
    r = rig_open_tiny(&s, o);
    roots[4] = r.root;
    salt.b[0] ^= 1;
    roots[5] = mx_model_root(r.model, &salt);
    rig_close(&r);
    s = tiny_gemma();
    o.n_ctx = 300;
    r = rig_open_tiny(&s, o);
    mx_hash256 wide = r.root;
    rig_close(&r);
    o.n_ctx = 16; /* nor does a context that is shorter than the window */
    r = rig_open_tiny(&s, o);
    assert_memory_equal(&r.root, &wide, sizeof wide);
    rig_close(&r);
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < i; k++) {
            assert_memory_not_equal(&roots[i], &roots[k], sizeof roots[i]);
        }
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void every_allocation_of(const mx_tiny_spec *spec)
{
    char path[64];
    rig_write(path, spec);
    mx_pool *pool;
    mx_errbuf eb;
    assert_int_equal(mx_pool_create(&pool, 2, &eb), MX_OK);
    mx_model_options o = {.path = path,
                          .max_batch_rows = 8,
                          .max_logit_rows = 4,
                          .cpu_level = mx_cpu_best()};
    int64_t live = mx_mem_live();
    for (uint64_t k = 1;; k++) {
        mx_model *m;
        mx_mem_fail_at(k);
        mx_err e = mx_model_load(&m, &o, pool, &eb);
        mx_mem_fail_at(0);
        if (e == MX_OK) {
            mx_model_destroy(m);
            assert_true(k > 10);
            break;
        }
        assert_int_equal(e, MX_E_NOMEM);
        if (mx_mem_live() != live) {
            fail_msg("%s, allocation %llu failed: %lld blocks leaked", spec->arch,
                     (unsigned long long)k, (long long)(mx_mem_live() - live));
        }
    }
    mx_pool_destroy(pool);
    unlink(path);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    mx_tiny_spec s[] = {mx_tiny_default(), tiny_mixture(), tiny_gemma(), tiny_hybrid()};
    for (size_t i = 0; i < MX_COUNT(s); i++) {
        every_allocation_of(&s[i]);
    }
}

static void batches_are_checked(void **state)
{
    (void)state;
    mx_tiny_spec s = mx_tiny_default();
    rig_options o = rig_default();
    o.max_rows = 8;
    o.n_ctx = 64;
    rig r = rig_open_tiny(&s, o);
    mx_seq seq;
    mx_seq_init(&seq, r.kv, &r.root);
    assert_int_equal(mx_seq_reserve(&seq, 4), MX_OK);
    float hidden[64];
    static const struct {
        mx_batch_row rows[2];
        uint32_t n;
        const char *words;
    } bad[] = {
        {{{0}}, 0, "0 rows"},
        {{{0}}, 9, "9 rows"},
        {{{.token = 331, .hidden_to = -1}}, 1, "no token 331"},
        {{{.token = -1, .hidden_to = -1}}, 1, "no token -1"},
        {{{.pos = 64, .hidden_to = -1}}, 1, "beyond the context"},
        {{{.pos = 4, .hidden_to = -1}}, 1, "not reserved"},
        {{{.hidden_to = 1}}, 1, "no result row 1"},
        {{{.pos = 0, .hidden_to = -1}, {.pos = 2, .hidden_to = -1}}, 2, "does not follow"},
    };
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        mx_batch_row rows[9] = {bad[i].rows[0], bad[i].rows[1]};
        for (int k = 0; k < 9; k++) {
            rows[k].seq = &seq;
        }
        mx_batch b = {.rows = rows, .n_rows = bad[i].n, .hidden = hidden, .n_hidden_rows = 1};
        uint32_t bad_row;
        mx_errbuf eb = {{0}};
        assert_int_equal(mx_model_forward(r.model, &b, &bad_row, &eb), MX_E_INVALID);
        if (strstr(eb.text, bad[i].words) == NULL) {
            fail_msg("case %zu: \"%s\" does not say \"%s\"", i, eb.text, bad[i].words);
        }
    }
    mx_seq_free(&seq);
    rig_close(&r);
}

typedef struct countdown {
    int left, calls;
} countdown;

static bool is_cancelled(void *arg)
{
    countdown *c = arg;
    c->calls++;
    return c->left-- <= 0;
}

static void cancel_everywhere(mx_tiny_spec s)
{
    rig r = rig_open_tiny(&s, rig_default());
    enum { N = 200 };
    int32_t tokens[N];
    mx_batch_row rows[N];
    uint64_t rng = 3;
    float *want = mx_calloc(N * r.n_embd, sizeof *want);
    float *got = mx_calloc(N * r.n_embd, sizeof *got);
    for (uint32_t i = 0; i < N; i++) {
        tokens[i] = (int32_t)(mx_tiny_random(&rng) % r.n_vocab);
    }
    mx_seq a, b;
    mx_seq_init(&a, r.kv, &r.root);
    mx_seq_init(&b, r.kv, &r.root);
    rig_feed(&r, &a, tokens, N, want);

    countdown count = {.left = 1 << 30};
    mx_errbuf eb;
    uint32_t bad;
    for (uint32_t i = 0; i < N; i++) {
        rows[i] = (mx_batch_row){&b, i, tokens[i], (int32_t)i, false};
    }
    mx_batch batch = {.rows = rows, .n_rows = N, .hidden = got, .n_hidden_rows = N,
                      .is_cancelled = is_cancelled, .cancel_arg = &count};
    assert_int_equal(mx_seq_reserve(&b, N), MX_OK);
    assert_int_equal(mx_model_forward(r.model, &batch, &bad, &eb), MX_OK);
    int n_polls = count.calls;
    assert_true(n_polls > 40); /* two layers of ten stages, and within them */
    for (int at = 0; at < n_polls; at += 1 + n_polls / 40) {
        mx_seq_rollback(&b);
        assert_int_equal(mx_seq_reserve(&b, N), MX_OK);
        count = (countdown){.left = at};
        mx_err e = mx_model_forward(r.model, &batch, &bad, &eb);
        /* How often it asks depends on which worker took what, but 20 stages ask at least once. */
        assert_int_equal(e, count.calls > at ? MX_E_CANCELLED : MX_OK);
        assert_true(at >= 20 || e == MX_E_CANCELLED);
        assert_true(count.calls <= at + 1); /* nobody asks again after a yes */
    }
    /* The pool and the scratch are as good as new. */
    mx_seq_rollback(&b);
    rig_feed(&r, &b, tokens, N, got);
    assert_memory_equal(got, want, N * r.n_embd * sizeof *got);
    mx_seq_free(&a);
    mx_seq_free(&b);
    mx_free(want);
    mx_free(got);
    rig_close(&r);
}

static void cancellation_is_noticed_and_harmless(void **state)
{
    (void)state;
    cancel_everywhere(mx_tiny_default());
    cancel_everywhere(tiny_mixture());
}

/* ---- values that are not finite -------------------------------------------------------------- */

enum { BAD_TOKEN = 7 };

/* A tiny model in which one value of one tensor is replaced. */
static rig open_spoiled(mx_tiny_spec s, const char *tensor, size_t element, float value)
{
    char path[64];
    mx_buf bytes = {0};
    mx_gguf *g;
    mx_errbuf eb;
    mx_tiny_build(&bytes, &s);
    rig_check(mx_gguf_open_memory(&g, (const uint8_t *)bytes.ptr, bytes.len, &eb), &eb, "gguf");
    const mx_gguf_tensor *t = mx_gguf_find_tensor(g, tensor);
    memcpy(bytes.ptr + (t->data - (const uint8_t *)bytes.ptr) + element * 4, &value, 4);
    mx_gguf_close(g);
    snprintf(path, sizeof path, "/tmp/mtplx-test-XXXXXX");
    int fd = mkstemp(path);
    assert_int_equal(write(fd, bytes.ptr, bytes.len), bytes.len);
    close(fd);
    mx_buf_free(&bytes);
    rig r = rig_open(path, rig_default());
    unlink(path);
    return r;
}

/* Three sequences in one batch; the second meets the bad token in its middle. The others' hidden
 * vectors must be those of a batch without it. */
static void one_bad_token(mx_tiny_spec spec, const char *tensor, size_t element, float value)
{
    rig r = open_spoiled(spec, tensor, element, value);
    enum { N = 12, BAD_AT = 5 };
    mx_seq s[3];
    mx_batch_row rows[3 * N];
    float *hidden = mx_calloc(3 * N * r.n_embd, sizeof *hidden);
    float *alone = mx_calloc(N * r.n_embd, sizeof *alone);
    int32_t tokens[3][N];
    uint64_t rng = 31;
    for (uint32_t i = 0; i < 3; i++) {
        mx_seq_init(&s[i], r.kv, &r.root);
        assert_int_equal(mx_seq_reserve(&s[i], N), MX_OK);
        for (uint32_t k = 0; k < N; k++) {
            tokens[i][k] = (int32_t)(8 + mx_tiny_random(&rng) % 300);
            tokens[i][k] = i == 1 && k == BAD_AT ? BAD_TOKEN : tokens[i][k];
            uint32_t row = i * N + k;
            rows[row] = (mx_batch_row){&s[i], k, tokens[i][k], (int32_t)row, true};
        }
    }
    mx_batch b = {.rows = rows, .n_rows = 3 * N, .hidden = hidden, .n_hidden_rows = 3 * N};
    uint32_t bad_row = 0;
    mx_errbuf eb = {{0}};
    assert_int_equal(mx_model_forward(r.model, &b, &bad_row, &eb), MX_E_NONFINITE);
    assert_int_equal(bad_row, N + BAD_AT);
    assert_non_null(strstr(eb.text, "position 5"));
    for (uint32_t row = 0; row < 3 * N; row++) {
        assert_int_equal(rows[row].is_bad, row >= N + BAD_AT && row < 2 * N);
    }
    for (uint32_t i = 0; i < 3; i++) {
        mx_seq_rollback(&s[i]);
        rig_feed(&r, &s[i], tokens[i], i == 1 ? BAD_AT : N, alone);
        assert_memory_equal(alone, hidden + i * N * r.n_embd,
                            (i == 1 ? BAD_AT : N) * r.n_embd * sizeof *alone);
        mx_seq_free(&s[i]);
    }
    mx_free(hidden);
    mx_free(alone);
    rig_close(&r);
}

static void bad_values_stay_where_they_are(void **state)
{
    (void)state;
    const mx_tiny_spec specs[] = {mx_tiny_default(), tiny_mixture(), tiny_gemma(), tiny_hybrid()};
    for (size_t i = 0; i < MX_COUNT(specs); i++) {
        one_bad_token(specs[i], "token_embd.weight", BAD_TOKEN * 64 + 3, NAN);
        one_bad_token(specs[i], "token_embd.weight", BAD_TOKEN * 64, INFINITY);
        one_bad_token(specs[i], "token_embd.weight", BAD_TOKEN * 64 + 63, -INFINITY);
    }
}

/* Feeds one token and expects that its row is refused. */
static void refused_row(rig *r)
{
    mx_seq s;
    mx_seq_init(&s, r->kv, &r->root);
    assert_int_equal(mx_seq_reserve(&s, 1), MX_OK);
    mx_batch_row row = {&s, 0, 9, -1, false};
    float hidden[64];
    row.hidden_to = 0;
    mx_batch b = {.rows = &row, .n_rows = 1, .hidden = hidden, .n_hidden_rows = 1};
    uint32_t bad_row = 77;
    mx_errbuf eb;
    assert_int_equal(mx_model_forward(r->model, &b, &bad_row, &eb), MX_E_NONFINITE);
    assert_int_equal(bad_row, 0);
    mx_seq_free(&s);
    rig_close(r);
}

static void states_that_overflow_are_noticed(void **state)
{
    (void)state;
    rig r = open_spoiled(tiny_hybrid(), "blk.0.ssm_conv1d.weight", 4, NAN);
    refused_row(&r);
    r = open_spoiled(tiny_hybrid(), "blk.0.ssm_a", 1, 1e30f); /* a decay that grows */
    refused_row(&r);
    r = open_spoiled(tiny_hybrid(), "blk.0.ffn_gate_inp_shexp.weight", 9, NAN);
    refused_row(&r);
}

static void routers_and_experts_that_overflow_are_noticed(void **state)
{
    (void)state;
    rig r = open_spoiled(tiny_mixture(), "blk.0.ffn_gate_inp.weight", 64, NAN);
    refused_row(&r);
    r = open_spoiled(tiny_mixture(), "blk.1.ffn_gate_inp.weight", 5 * 64 + 3, INFINITY);
    refused_row(&r);
    mx_tiny_spec one = tiny_mixture(); /* every row visits the spoiled expert */
    one.n_experts_used = one.n_experts;
    r = open_spoiled(one, "blk.1.ffn_up_exps.weight", 4 * 96 * 64 + 100, NAN);
    refused_row(&r);
    r = open_spoiled(one, "blk.0.ffn_down_exps.weight", 6 * 96 * 64 - 1, NAN);
    refused_row(&r);
    r = open_spoiled(tiny_gemma(), "blk.1.post_ffw_norm.weight", 8, INFINITY);
    refused_row(&r);
}

static void keys_beyond_half_precision_are_noticed(void **state)
{
    (void)state;
    /* A weight so large that keys overflow f16 pages: every row is bad, without any infinity on the
     * way there. */
    rig r = open_spoiled(mx_tiny_default(), "blk.0.attn_v.weight", 0, 1e8f);
    mx_seq s;
    mx_seq_init(&s, r.kv, &r.root);
    assert_int_equal(mx_seq_reserve(&s, 1), MX_OK);
    mx_batch_row row = {&s, 0, 9, -1, false};
    mx_batch b = {.rows = &row, .n_rows = 1};
    uint32_t bad_row = 77;
    mx_errbuf eb;
    assert_int_equal(mx_model_forward(r.model, &b, &bad_row, &eb), MX_E_NONFINITE);
    assert_int_equal(bad_row, 0);
    mx_seq_free(&s);
    rig_close(&r);
}

static void logits_that_overflow_are_noticed(void **state)
{
    (void)state;
    rig r = open_spoiled(mx_tiny_default(), "output_norm.weight", 3, 3e38f);
    float *hidden = mx_calloc(2 * r.n_embd, sizeof *hidden);
    float *logits = mx_calloc(2 * r.n_vocab, sizeof *logits);
    assert_true(mx_model_logits(r.model, hidden, 2, logits));
    for (uint32_t i = 0; i < r.n_embd; i++) {
        hidden[r.n_embd + i] = 3e38f; /* finite, but its products are not */
    }
    assert_true(mx_model_logits(r.model, hidden, 1, logits));
    assert_false(mx_model_logits(r.model, hidden, 2, logits));
    hidden[0] = NAN;
    assert_false(mx_model_logits(r.model, hidden, 1, logits));
    mx_free(hidden);
    mx_free(logits);
    rig_close(&r);
}

/* With more layers than one an old token would still act through those between. */
static void old_tokens_act(mx_tiny_spec spec, bool do_act)
{
    enum { N = 100, WINDOW = 70 };
    spec.n_layers = 1;
    spec.window = WINDOW;
    rig r = rig_open_tiny(&spec, rig_default());
    int32_t tokens[N];
    float want[64], got[64];
    for (int i = 0; i < N; i++) {
        tokens[i] = i * 3 % 256;
    }
    const struct {
        int changed;
        bool acts;
    } cases[] = {
        {-1, false}, {0, do_act}, {N - WINDOW - 1, do_act}, {N - WINDOW, true}, {N - 2, true},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_seq s;
        mx_seq_init(&s, r.kv, &r.root);
        if (cases[i].changed >= 0) {
            tokens[cases[i].changed] ^= 1;
        }
        rig_feed(&r, &s, tokens, N - 1, NULL);
        rig_feed(&r, &s, tokens + N - 1, 1, i == 0 ? want : got);
        if (cases[i].changed >= 0) {
            tokens[cases[i].changed] ^= 1;
            if ((memcmp(want, got, sizeof want) != 0) != cases[i].acts) {
                fail_msg("token %d: expected that it %s position %d", cases[i].changed,
                         cases[i].acts ? "changes" : "does not change", N - 1);
            }
        }
        mx_seq_free(&s);
    }
    rig_close(&r);
}

static void window_hides_old_tokens(void **state)
{
    (void)state;
    mx_tiny_spec gemma = tiny_gemma();
    old_tokens_act(mx_tiny_default(), false);
    old_tokens_act(gemma, false);
    gemma.window_pattern = 1; /* every layer is global */
    old_tokens_act(gemma, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(bad_mixtures_are_refused),
        cmocka_unit_test(bad_gemmas_are_refused),
        cmocka_unit_test(bad_hybrids_are_refused),
        cmocka_unit_test(hybrid_description_is_right),
        cmocka_unit_test(hybrid_batches_are_checked),
        cmocka_unit_test(states_that_overflow_are_noticed),
        cmocka_unit_test(fused_experts_are_the_same_experts),
        cmocka_unit_test(description_is_right),
        cmocka_unit_test(fingerprint_is_the_tree_hash),
        cmocka_unit_test(fingerprints_are_remembered),
        cmocka_unit_test(root_covers_what_changes_the_numbers),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(batches_are_checked),
        cmocka_unit_test(cancellation_is_noticed_and_harmless),
        cmocka_unit_test(bad_values_stay_where_they_are),
        cmocka_unit_test(routers_and_experts_that_overflow_are_noticed),
        cmocka_unit_test(keys_beyond_half_precision_are_noticed),
        cmocka_unit_test(logits_that_overflow_are_noticed),
        cmocka_unit_test(window_hides_old_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
