/* SPDX-License-Identifier: MIT
 *
 * Loading: what is refused, with which words; what a model says of itself; fingerprint and root; and
 * every allocation that fails.
 */
#include "model/model_fingerprint.h"
#include "model_rig.h"

#include <fcntl.h>
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
    assert_int_equal(try_load("/proc/nonexistent/model.gguf", 0, &eb), MX_E_NOT_FOUND);
    assert_non_null(strstr(eb.text, "/proc/nonexistent/model.gguf"));
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
        mx_tiny_spec s = mx_tiny_mixture();
        s.omit = parts[i].omit;
        refused(&s, 0, i < 3 ? MX_E_NOT_FOUND : MX_E_FORMAT, parts[i].words);
    }
    mx_tiny_spec s = mx_tiny_mixture();
    s.wide = "blk.1.ffn_up_exps.weight";
    refused(&s, 0, MX_E_FORMAT,
            "tensor blk.1.ffn_up_exps.weight has shape {64, 96, 7}, expected {64, 96, 6}");
    s = mx_tiny_mixture();
    s.wide = "blk.0.ffn_gate_inp.weight";
    refused(&s, 0, MX_E_FORMAT,
            "tensor blk.0.ffn_gate_inp.weight has shape {64, 7}, expected {64, 6}");
    s = mx_tiny_mixture();
    s.n_experts_used = 7;
    refused(&s, 0, MX_E_FORMAT, "7 experts per token, but there are only 6");
    s.n_experts_used = 0;
    refused(&s, 0, MX_E_FORMAT, "qwen3moe.expert_used_count is 0");
    s = mx_tiny_mixture();
    s.n_experts = 1025;
    refused(&s, 0, MX_E_FORMAT, "qwen3moe.expert_count is 1025, expected 1 to 1024");
    s = mx_tiny_mixture();
    s.type = MX_Q8_0;
    s.has_quantized_router = true;
    refused(&s, 0, MX_E_UNSUPPORTED, "tensor blk.0.ffn_gate_inp.weight: a router of type");
    s = mx_tiny_mixture();
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
        s = mx_tiny_mixture();
        s.extra_key = keys[i].key;
        s.extra_value = keys[i].value;
        refused(&s, 0, MX_E_UNSUPPORTED, keys[i].words);
    }
}

static void bad_gemmas_are_refused(void **state)
{
    (void)state;
    mx_tiny_spec s = mx_tiny_gemma();
    s.omit = "gemma3.attention.sliding_window";
    refused(&s, 0, MX_E_NOT_FOUND, "gemma3.attention.sliding_window");
    s.omit = "blk.1.post_ffw_norm.weight";
    refused(&s, 0, MX_E_FORMAT, "lacks tensor blk.1.post_ffw_norm.weight of shape {64}");
    s.omit = "blk.0.post_attention_norm.weight";
    refused(&s, 0, MX_E_FORMAT, "lacks tensor blk.0.post_attention_norm.weight of shape {64}");
    s = mx_tiny_gemma();
    s.extra_key = "*.final_logit_softcapping";
    s.extra_value = 30;
    refused(&s, 0, MX_E_UNSUPPORTED, "gemma3.final_logit_softcapping is 30");
    s = mx_tiny_mixture();
    s.has_post_norms = true; /* the file computes something else */
    refused(&s, 0, MX_E_UNSUPPORTED, "post_attention_norm.weight");
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
        mx_tiny_spec s = mx_tiny_hybrid();
        s.omit = parts[i].omit;
        refused(&s, 0, i < 6 ? MX_E_NOT_FOUND : MX_E_FORMAT, parts[i].words);
    }
    mx_tiny_spec s = mx_tiny_hybrid();
    s.wide = "blk.0.attn_qkv.weight";
    refused(&s, 0, MX_E_FORMAT, "blk.0.attn_qkv.weight has shape {64, 129}, expected {64, 128}");
    s = mx_tiny_hybrid();
    s.gdn_v_heads = 3;
    refused(&s, 0, MX_E_FORMAT, "3 value heads (ssm.time_step_rank) cannot share 2 key heads");
    s = mx_tiny_hybrid();
    s.gdn_dim = 24;
    refused(&s, 0, MX_E_UNSUPPORTED, "ssm.state_size 24");
    s = mx_tiny_hybrid();
    s.gdn_taps = 1;
    refused(&s, 0, MX_E_UNSUPPORTED, "ssm.conv_kernel 1");
    s = mx_tiny_hybrid();
    s.attn_period = 3;
    refused(&s, 0, MX_E_UNSUPPORTED, "2 layers, of which every 3th has attention");
    s = mx_tiny_hybrid();
    s.has_fused_qkv = true; /* the gate of attention would be missing */
    refused(&s, 0, MX_E_UNSUPPORTED, "blk.1.attn_qkv.weight: queries, keys and values in one tensor");
    s = mx_tiny_hybrid();
    s.has_ssm_in = true; /* only where value heads of one key head stand together */
    refused(&s, 0, MX_E_FORMAT, "lacks tensor blk.0.attn_qkv.weight");
    s = mx_tiny_mixture();
    s.n_ff_shared = 32; /* qwen3moe has no shared expert */
    refused(&s, 0, MX_E_UNSUPPORTED, "expert_shared_feed_forward_length is 32");
}

/* Pages for the layers with attention, a state for the others; the head is counted. */
static void hybrid_description_is_right(void **state)
{
    (void)state;
    mx_tiny_spec s = mx_tiny_hybrid();
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
    s = mx_tiny_gemma();
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
    mx_tiny_spec s[] = {mx_tiny_default(), mx_tiny_mixture(), mx_tiny_gemma(), mx_tiny_hybrid()};
    for (size_t i = 0; i < MX_COUNT(s); i++) {
        every_allocation_of(&s[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(bad_mixtures_are_refused),
        cmocka_unit_test(bad_gemmas_are_refused),
        cmocka_unit_test(bad_hybrids_are_refused),
        cmocka_unit_test(hybrid_description_is_right),
        cmocka_unit_test(description_is_right),
        cmocka_unit_test(fingerprint_is_the_tree_hash),
        cmocka_unit_test(fingerprints_are_remembered),
        cmocka_unit_test(root_covers_what_changes_the_numbers),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
