/* SPDX-License-Identifier: MIT
 *
 * The contract: the logits of a token depend only on the tokens before it. For a list of tiny
 * random models and for the default model, the raw bytes of all logits are equal however the tokens
 * were fed: whole, split anywhere, one by one, among other sequences, by 1 to 3 threads, at every
 * CPU level, on forked pages, with NaN in every row that must not be read.
 */
#include "model_rig.h"
#include "test_env.h"
#include "tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Sanitizers make the kernels ten to thirty times slower; there the same paths run on less. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SLOW_BUILD 1
#else
#define IS_SLOW_BUILD 0
#endif

enum { N_TOKENS = 150, N_SLOW = 80, N_LONG = MX_ATTN_SPAN * 2 + 70, N_OTHER = 40 };

/* An emulator does so, too; MTPLX_TEST_TINY is set for it. */
static bool is_slow(void)
{
    return IS_SLOW_BUILD || getenv("MTPLX_TEST_TINY") != NULL;
}

/* ---- one run against the reference ----------------------------------------------------------- */

typedef struct reference {
    int32_t tokens[N_LONG];
    uint32_t n;
    float *logits; /* [n][n_vocab] */
} reference;

static void random_tokens(int32_t *out, size_t n, uint32_t n_vocab, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (int32_t)(mx_tiny_random(&seed) % n_vocab);
    }
}

static void compare(rig *r, const reference *ref, const float *hidden, uint32_t from, uint32_t n,
                    const char *what)
{
    float *logits = mx_alloc((size_t)n * r->n_vocab * sizeof *logits);
    rig_logits(r, hidden, n, logits);
    const float *want = ref->logits + (size_t)from * r->n_vocab;
    for (size_t i = 0; i < (size_t)n * r->n_vocab; i++) {
        if (memcmp(&logits[i], &want[i], sizeof(float)) != 0) {
            fail_msg("%s: position %zu, token %zu: expected %a, got %a", what,
                     from + i / r->n_vocab, i % r->n_vocab, (double)want[i], (double)logits[i]);
        }
    }
    mx_free(logits);
}

static float *hidden_rows(const rig *r, uint32_t n)
{
    return mx_calloc((size_t)n * r->n_embd, sizeof(float));
}

/* Feeds everything in chunks and compares every position. */
static void run_chunks(rig *r, const reference *ref, uint32_t chunk, const char *what)
{
    char text[128];
    snprintf(text, sizeof text, "%s, chunks of %u", what, chunk);
    float *hidden = hidden_rows(r, ref->n);
    mx_seq s;
    mx_seq_init(&s, r->kv, &r->root);
    rig_feed_chunks(r, &s, ref->tokens, ref->n, chunk, hidden);
    compare(r, ref, hidden, 0, ref->n, text);
    mx_seq_check(&s);
    mx_seq_free(&s);
    mx_free(hidden);
}

static void run_splits(rig *r, const reference *ref, const char *what)
{
    static const uint32_t splits[] = {1, 2, 5, 31, 63, 64, 65, 100, 127, 128, 129, 149};
    float *hidden = hidden_rows(r, ref->n);
    for (size_t i = 0; i < MX_COUNT(splits) && splits[i] < ref->n; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s, split at %u", what, splits[i]);
        mx_seq s;
        mx_seq_init(&s, r->kv, &r->root);
        /* Nothing is asked of the first part: its rows stop after the last layer's keys. */
        rig_feed(r, &s, ref->tokens, splits[i], NULL);
        rig_feed(r, &s, ref->tokens + splits[i], ref->n - splits[i], hidden);
        compare(r, ref, hidden, splits[i], ref->n - splits[i], text);
        mx_seq_free(&s);
    }
    mx_free(hidden);
}

/* Restores by forking at B, feeds the rest; meanwhile a sibling goes on with other tokens. */
static void run_forks(rig *r, const reference *ref, const char *what)
{
    static const uint32_t cuts[] = {1, 17, 63, 64, 65, 90, 128, 140};
    int32_t other[N_OTHER];
    float *hidden = hidden_rows(r, ref->n);
    random_tokens(other, N_OTHER, r->n_vocab, 99);
    /* A state is that of one position: such a sequence is forked where it ends. */
    const bool has_states = mx_model_kv_shape(r->model)->state_bytes != 0;
    mx_seq base;
    mx_seq_init(&base, r->kv, &r->root);
    for (size_t i = 0; i < MX_COUNT(cuts) && cuts[i] < ref->n; i++) {
        const uint32_t end = has_states ? cuts[i] : ref->n;
        if (base.n_tokens < end) {
            rig_feed(r, &base, ref->tokens + base.n_tokens, end - (uint32_t)base.n_tokens, NULL);
        }
        char text[128];
        snprintf(text, sizeof text, "%s, forked at %u", what, cuts[i]);
        mx_seq fork, sibling;
        mx_seq_init(&fork, r->kv, &r->root);
        mx_seq_init(&sibling, r->kv, &r->root);
        assert_int_equal(mx_seq_fork(&fork, &base, cuts[i]), MX_OK);
        assert_int_equal(mx_seq_fork(&sibling, &base, cuts[i]), MX_OK);
        rig_feed(r, &sibling, other, N_OTHER, NULL);
        rig_feed(r, &fork, ref->tokens + cuts[i], ref->n - cuts[i], hidden);
        compare(r, ref, hidden, cuts[i], ref->n - cuts[i], text);
        mx_seq_free(&sibling);
        mx_seq_free(&fork);
    }
    mx_seq_free(&base);
    mx_free(hidden);
}

/* In one batch with others: a decode row before it, another prompt behind it. */
static void run_among_others(rig *r, const reference *ref, uint32_t chunk, const char *what)
{
    char text[128];
    snprintf(text, sizeof text, "%s, among others by %u", what, chunk);
    int32_t other[2][N_TOKENS];
    mx_seq s[3];
    mx_batch_row rows[N_TOKENS * 2 + 1];
    float *hidden = hidden_rows(r, ref->n);
    for (int i = 0; i < 2; i++) {
        random_tokens(other[i], N_TOKENS, r->n_vocab, 1000 + (uint64_t)i);
    }
    for (int i = 0; i < 3; i++) {
        mx_seq_init(&s[i], r->kv, &r->root);
    }
    rig_feed(r, &s[0], other[0], 3, NULL);
    for (uint32_t at = 0, turn = 0; at < ref->n; at += chunk, turn++) {
        uint32_t n = ref->n - at < chunk ? ref->n - at : chunk;
        uint32_t counts[3] = {1, n, s[2].n_tokens < 300 ? (turn * 13 + 5) % 23 : 0};
        const int32_t *tokens[3] = {other[0] + (3 + turn) % N_TOKENS, ref->tokens + at, other[1]};
        uint32_t n_rows = 0, bad;
        mx_errbuf eb = {{0}};
        for (int i = 0; i < 3; i++) {
            rig_check(counts[i] > 0 ? mx_seq_reserve(&s[i], counts[i]) : MX_OK, &eb, "reserve");
            for (uint32_t k = 0; k < counts[i]; k++) {
                rows[n_rows++] = (mx_batch_row){.seq = &s[i],
                                                .pos = (uint32_t)s[i].n_tokens + k,
                                                .token = tokens[i][k],
                                                .hidden_to = i == 1 ? (int32_t)k : -1};
            }
        }
        mx_batch b = {.rows = rows,
                      .n_rows = n_rows,
                      .hidden = hidden + (size_t)at * r->n_embd,
                      .n_hidden_rows = n};
        rig_check(mx_model_forward(r->model, &b, &bad, &eb), &eb, "forward");
        for (int i = 0; i < 3; i++) {
            if (counts[i] > 0) {
                mx_seq_commit(&s[i], tokens[i], counts[i]);
            }
        }
    }
    compare(r, ref, hidden, 0, ref->n, text);
    for (int i = 0; i < 3; i++) {
        mx_seq_free(&s[i]);
    }
    mx_free(hidden);
}

typedef struct patience {
    int n_polls;
} patience;

static bool gives_up(void *arg)
{
    return --((patience *)arg)->n_polls < 0;
}

/* Other tokens in between that are thrown away: a chunk that is cancelled after more and more
 * polls, the last one not at all. */
static void run_rollbacks(rig *r, const reference *ref, const char *what)
{
    enum { N_WRONG = 30 };
    char text[128];
    snprintf(text, sizeof text, "%s, with chunks thrown away", what);
    float *hidden = hidden_rows(r, ref->n);
    int32_t wrong[N_WRONG];
    mx_batch_row rows[N_WRONG];
    random_tokens(wrong, N_WRONG, r->n_vocab, 4321);
    mx_seq s;
    mx_seq_init(&s, r->kv, &r->root);
    int polls = 0;
    bool was_cancelled = false, was_whole = false;
    for (uint32_t at = 0; at < ref->n; at += 10, polls += 1 + polls / 3) {
        mx_errbuf eb = {{0}};
        uint32_t bad;
        patience p = {at + 10 < ref->n ? polls : INT32_MAX};
        rig_check(mx_seq_reserve(&s, N_WRONG), &eb, "reserve");
        for (uint32_t i = 0; i < N_WRONG; i++) {
            rows[i] = (mx_batch_row){.seq = &s, .pos = at + i, .token = wrong[i], .hidden_to = -1};
        }
        mx_batch b = {.rows = rows, .n_rows = N_WRONG, .is_cancelled = gives_up, .cancel_arg = &p};
        mx_err e = mx_model_forward(r->model, &b, &bad, &eb);
        was_cancelled |= e == MX_E_CANCELLED;
        was_whole |= e == MX_OK;
        mx_seq_rollback(&s);
        mx_seq_check(&s);
        const uint32_t n = ref->n - at < 10 ? ref->n - at : 10;
        rig_feed(r, &s, ref->tokens + at, n, hidden + (size_t)at * r->n_embd);
    }
    assert_true(was_cancelled && was_whole);
    compare(r, ref, hidden, 0, ref->n, text);
    mx_seq_free(&s);
    mx_free(hidden);
}

/* Every row that nobody wrote is NaN, in fresh pages and behind the last token. */
static void run_poisoned(rig *r, const reference *ref, const char *what)
{
    char text[128];
    snprintf(text, sizeof text, "%s, NaN beyond the last row", what);
    float *hidden = hidden_rows(r, ref->n);
    mx_seq s;
    mx_kv_pool_set_poison(r->kv, true);
    mx_seq_init(&s, r->kv, &r->root);
    for (uint32_t at = 0; at < ref->n; at += 21) {
        uint32_t n = ref->n - at < 21 ? ref->n - at : 21;
        rig_feed(r, &s, ref->tokens + at, n, hidden + (size_t)at * r->n_embd);
        mx_page_poison_tail(mx_model_kv_shape(r->model), s.pages[s.n_pages - 1]);
    }
    compare(r, ref, hidden, 0, ref->n, text);
    mx_seq_free(&s);
    mx_kv_pool_set_poison(r->kv, false);
    mx_free(hidden);
}

static reference make_reference(rig *r, uint32_t n, uint64_t seed)
{
    reference ref = {.n = n};
    random_tokens(ref.tokens, n, r->n_vocab, seed);
    ref.logits = mx_alloc((size_t)n * r->n_vocab * sizeof(float));
    float *hidden = hidden_rows(r, n);
    mx_seq s;
    mx_seq_init(&s, r->kv, &r->root);
    rig_feed(r, &s, ref.tokens, n, hidden);
    rig_logits(r, hidden, n, ref.logits);
    mx_seq_free(&s);
    mx_free(hidden);
    return ref;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void one_tiny_model(const tiny *t, mx_kv_type kv_type, mx_act_type act_type)
{
    char name[96];
    rig_options o = rig_default();
    o.kv_type = kv_type;
    o.act_type = act_type;
    rig r = rig_open_tiny(&t->spec, o);
    const uint32_t n = getenv("MTPLX_TEST_TINY") != NULL ? N_SLOW : N_TOKENS;
    reference ref = make_reference(&r, n, t->spec.seed);
    snprintf(name, sizeof name, "%s, %s pages, %s", t->name, mx_kv_type_name(kv_type),
             mx_numerics_name(act_type));
    /* A model whose logits say nothing would pass everything. */
    float lo = ref.logits[0], hi = lo;
    for (size_t i = 0; i < (size_t)n * r.n_vocab; i++) {
        lo = ref.logits[i] < lo ? ref.logits[i] : lo;
        hi = ref.logits[i] > hi ? ref.logits[i] : hi;
    }
    assert_true(hi - lo > 1.0f && hi - lo < 1e4f);
    assert_memory_not_equal(ref.logits, ref.logits + r.n_vocab, r.n_vocab * sizeof(float));

    static const uint32_t chunks[] = {1, 7, 64, 512};
    for (size_t i = 0; i < MX_COUNT(chunks); i++) {
        run_chunks(&r, &ref, chunks[i], name);
    }
    run_splits(&r, &ref, name);
    run_forks(&r, &ref, name);
    run_among_others(&r, &ref, 1, name);
    run_among_others(&r, &ref, 29, name);
    run_among_others(&r, &ref, 150, name);
    run_poisoned(&r, &ref, name);
    run_rollbacks(&r, &ref, name);
    rig_close(&r);
    mx_free(ref.logits);
}

static void feeding_does_not_matter(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        one_tiny_model(&tinies[i], MX_KV_F16, MX_ACT_16);
    }
    one_tiny_model(&tinies[1], MX_KV_F32, MX_ACT_16);
    one_tiny_model(&tinies[1], MX_KV_F16, MX_ACT_8);
    one_tiny_model(&tinies[2], MX_KV_F16, MX_ACT_8);
    one_tiny_model(&tinies[1], MX_KV_Q8, MX_ACT_16);
}

/* Beyond one span of attention: a short piece at the end of a long sequence is shared out span by
 * span when there are threads, a long one goes over all of them in one call. */
static void spans_do_not_matter(void **state)
{
    (void)state;
    enum { TAIL = 40 };
    for (int kv_type = MX_KV_F16; kv_type <= MX_KV_Q8; kv_type++) {
        for (size_t i = 0; i < MX_COUNT(tinies); i += kv_type == MX_KV_F16 ? 1 : 3) {
            rig_options o = rig_default();
            o.kv_type = (mx_kv_type)kv_type;
            mx_tiny_spec spec = tinies[i].spec;
            spec.n_ctx = N_LONG + 10;
            spec.window = spec.window > 0 ? MX_ATTN_SPAN + 90 : 0; /* begins inside a span */
            o.max_rows = N_LONG;
            o.n_threads = 1;
            rig base = rig_open_tiny(&spec, o);
            const uint32_t n = is_slow() ? MX_ATTN_SPAN + TAIL : N_LONG;
            reference ref = make_reference(&base, n, 11 + i);
            for (unsigned threads = 1; threads <= 3; threads++) {
                o.n_threads = threads;
                rig r = rig_open_tiny(&spec, o);
                float *hidden = hidden_rows(&r, n);
                mx_seq s;
                mx_seq_init(&s, r.kv, &r.root);
                rig_feed_chunks(&r, &s, ref.tokens, n - TAIL, threads == 1 ? 64 : 500, hidden);
                for (uint32_t at = n - TAIL; at < n;) { /* one by one, then a few at a time */
                    const uint32_t step = at < n - 12 ? 1 : 3;
                    rig_feed(&r, &s, ref.tokens + at, step, hidden + (size_t)at * r.n_embd);
                    at += step;
                }
                compare(&r, &ref, hidden, 0, n, tinies[i].name);
                mx_seq_free(&s);
                mx_free(hidden);
                rig_close(&r);
            }
            mx_free(ref.logits);
            rig_close(&base);
        }
    }
}

static void threads_and_levels_do_not_matter(void **state)
{
    (void)state;
    static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, MX_CPU_AVX2, MX_CPU_AVXVNNI, MX_CPU_AVX512,
                                          MX_CPU_NEON};
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        rig_options o = rig_default();
        o.n_threads = 1;
        rig base = rig_open_tiny(&tinies[i].spec, o);
        reference ref = make_reference(&base, is_slow() ? N_SLOW : N_TOKENS, 5 + i);
        for (unsigned threads = 1; threads <= 3; threads++) {
            for (size_t l = 0; l < MX_COUNT(levels); l++) {
                if (mx_kern_get(levels[l])->level != levels[l]) {
                    continue; /* this machine or build does not have it */
                }
                char text[96];
                snprintf(text, sizeof text, "%s, %s, %u threads", tinies[i].name,
                         mx_cpu_level_name(levels[l]), threads);
                if (is_slow() && levels[l] == MX_CPU_PORTABLE && threads != 2) {
                    continue;
                }
                o.n_threads = threads;
                o.level = levels[l];
                rig r = rig_open_tiny(&tinies[i].spec, o);
                assert_memory_equal(&r.root, &base.root, sizeof r.root);
                run_chunks(&r, &ref, threads == 2 ? 47 : 150, text);
                rig_close(&r);
            }
        }
        mx_free(ref.logits);
        rig_close(&base);
    }
}

/* One tensor of a qwen3next file may be two: the same rows, sorted, give the same bits. */
static void sorted_rows_are_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        if (!tinies[i].spec.has_ssm_in) {
            continue;
        }
        mx_tiny_spec spec = tinies[i].spec;
        rig joined = rig_open_tiny(&spec, rig_default());
        spec.has_ssm_in = false;
        rig split = rig_open_tiny(&spec, rig_default());
        reference ref = make_reference(&joined, 60, 8);
        run_chunks(&split, &ref, 60, "two tensors for one");
        mx_free(ref.logits);
        rig_close(&joined);
        rig_close(&split);
    }
}

static void levels_do_not_matter_at_8_bits(void **state)
{
    (void)state;
    static const mx_cpu_level levels[] = {MX_CPU_AVX2, MX_CPU_AVXVNNI, MX_CPU_AVX512, MX_CPU_NEON};
    rig_options o = rig_default();
    o.act_type = MX_ACT_8;
    o.level = MX_CPU_PORTABLE;
    rig base = rig_open_tiny(&tinies[1].spec, o);
    reference ref = make_reference(&base, IS_SLOW_BUILD ? 80 : N_TOKENS, 8);
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        if (mx_kern_get(levels[l])->level == levels[l]) {
            o.level = levels[l];
            rig r = rig_open_tiny(&tinies[1].spec, o);
            assert_memory_equal(&r.root, &base.root, sizeof r.root);
            run_chunks(&r, &ref, 47, mx_cpu_level_name(levels[l]));
            rig_close(&r);
        }
    }
    o.act_type = MX_ACT_16;
    rig fine = rig_open_tiny(&tinies[1].spec, o);
    reference other = make_reference(&fine, 80, 8);
    assert_memory_not_equal(&fine.root, &base.root, sizeof fine.root);
    assert_memory_not_equal(other.logits, ref.logits, 80 * fine.n_vocab * sizeof(float));
    mx_free(other.logits);
    mx_free(ref.logits);
    rig_close(&fine);
    rig_close(&base);
}

/* The contract holds across page types only within one of them; they must differ, or the option
 * does nothing. */
static void page_types_are_told_apart(void **state)
{
    (void)state;
    rig_options o = rig_default();
    rig half = rig_open_tiny(&tinies[0].spec, o);
    o.kv_type = MX_KV_F32;
    rig full = rig_open_tiny(&tinies[0].spec, o);
    reference a = make_reference(&half, 100, 3), b = make_reference(&full, 100, 3);
    assert_memory_not_equal(&half.root, &full.root, sizeof half.root);
    assert_memory_not_equal(a.logits, b.logits, 100 * half.n_vocab * sizeof(float));
    mx_free(a.logits);
    mx_free(b.logits);
    rig_close(&half);
    rig_close(&full);
}

static void default_model(void **state)
{
    (void)state;
    const char *path = mx_test_model();
    if (path == NULL) {
        mx_skip_no_model();
    }
    rig_options o = rig_default();
    o.n_ctx = 1024;
    o.max_pages = 32;
    rig r = rig_open(path, o);
    reference ref = make_reference(&r, IS_SLOW_BUILD ? 20 : 75, 77);
    run_chunks(&r, &ref, 1, "default model");
    run_chunks(&r, &ref, 7, "default model");
    run_chunks(&r, &ref, 64, "default model");
    run_forks(&r, &ref, "default model");
    run_among_others(&r, &ref, 29, "default model");
    run_poisoned(&r, &ref, "default model");
    rig_close(&r);
    for (o.n_threads = 1; o.n_threads <= 3; o.n_threads += 2) {
        r = rig_open(path, o);
        run_chunks(&r, &ref, ref.n, o.n_threads == 1 ? "1 thread" : "3 threads");
        rig_close(&r);
    }
    o.n_threads = 2;
    o.level = MX_CPU_PORTABLE;
    r = rig_open(path, o);
    ref.n = IS_SLOW_BUILD ? 3 : 12; /* the portable kernels are slow */
    run_chunks(&r, &ref, 5, "portable");
    rig_close(&r);
    mx_free(ref.logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feeding_does_not_matter),
        cmocka_unit_test(spans_do_not_matter),
        cmocka_unit_test(threads_and_levels_do_not_matter),
        cmocka_unit_test(sorted_rows_are_the_same),
        cmocka_unit_test(levels_do_not_matter_at_8_bits),
        cmocka_unit_test(page_types_are_told_apart),
        cmocka_unit_test(default_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
