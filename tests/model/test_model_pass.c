/* SPDX-License-Identifier: MIT
 *
 * The edges of a forward pass: rules of a batch, cancellation, values that are not finite, what a window
 * hides. That the numbers are right is the business of tests/golden, that they do not change that of
 * tests/exactness.
 */
#include "gguf/gguf.h"
#include "model_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

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

/* A batch of a hybrid goes on from the sequence's state, once per sequence. */
static void hybrid_batches_are_checked(void **state)
{
    (void)state;
    mx_tiny_spec spec = mx_tiny_hybrid();
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
    cancel_everywhere(mx_tiny_mixture());
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
    memcpy(bytes.ptr + t->offset + element * 4, &value, 4);
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
    const mx_tiny_spec specs[] = {mx_tiny_default(), mx_tiny_mixture(), mx_tiny_gemma(), mx_tiny_hybrid()};
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
    rig r = open_spoiled(mx_tiny_hybrid(), "blk.0.ssm_conv1d.weight", 4, NAN);
    refused_row(&r);
    r = open_spoiled(mx_tiny_hybrid(), "blk.0.ssm_a", 1, 1e30f); /* a decay that grows */
    refused_row(&r);
    r = open_spoiled(mx_tiny_hybrid(), "blk.0.ffn_gate_inp_shexp.weight", 9, NAN);
    refused_row(&r);
}

static void routers_and_experts_that_overflow_are_noticed(void **state)
{
    (void)state;
    rig r = open_spoiled(mx_tiny_mixture(), "blk.0.ffn_gate_inp.weight", 64, NAN);
    refused_row(&r);
    r = open_spoiled(mx_tiny_mixture(), "blk.1.ffn_gate_inp.weight", 5 * 64 + 3, INFINITY);
    refused_row(&r);
    mx_tiny_spec one = mx_tiny_mixture(); /* every row visits the spoiled expert */
    one.n_experts_used = one.n_experts;
    r = open_spoiled(one, "blk.1.ffn_up_exps.weight", 4 * 96 * 64 + 100, NAN);
    refused_row(&r);
    r = open_spoiled(one, "blk.0.ffn_down_exps.weight", 6 * 96 * 64 - 1, NAN);
    refused_row(&r);
    r = open_spoiled(mx_tiny_gemma(), "blk.1.post_ffw_norm.weight", 8, INFINITY);
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
    mx_tiny_spec gemma = mx_tiny_gemma();
    old_tokens_act(mx_tiny_default(), false);
    old_tokens_act(gemma, false);
    gemma.window_pattern = 1; /* every layer is global */
    old_tokens_act(gemma, true);
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
        mx_tiny_spec spec = mx_tiny_mixture();
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hybrid_batches_are_checked),
        cmocka_unit_test(states_that_overflow_are_noticed),
        cmocka_unit_test(fused_experts_are_the_same_experts),
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
