/* SPDX-License-Identifier: MIT
 *
 * How the stages of a forward pass share work out. Results cannot show it, they are equal to the last
 * bit however it is done (tests/exactness): so here the model's kernels are replaced by others that
 * look at who calls them with what, and then do the same.
 */
#include "model/model_internal.h"
#include "model_rig.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

static const mx_kern *real;
static mx_kern watched;
static pthread_t caller;

/* The model's table is exchanged for a copy, to be changed by the test. */
static void watch(rig *r)
{
    real = r->model->kern;
    watched = *real;
    r->model->kern = &watched;
    caller = pthread_self();
}

static bool is_caller(void)
{
    return pthread_equal(caller, pthread_self()) != 0;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* A sequence of n tokens, the keys and values of which are all 0: what they are does not matter. */
static void begin_text(rig *r, mx_seq *s, uint32_t n)
{
    mx_errbuf eb = {{0}};
    int32_t *tokens = mx_calloc(n, sizeof *tokens);
    assert_non_null(tokens);
    mx_seq_init(s, r->kv, &r->root);
    rig_check(mx_seq_reserve(s, n), &eb, "reserve");
    mx_seq_commit(s, tokens, n);
    mx_free(tokens);
}

/* One token more, of which somebody wants the result. */
static void feed_one(rig *r, mx_seq *s)
{
    const int32_t token = 5;
    float *hidden = mx_calloc(r->n_embd, sizeof *hidden);
    assert_non_null(hidden);
    rig_feed(r, s, &token, 1, hidden);
    mx_free(hidden);
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { SPAN_PAGES = MX_ATTN_SPAN / MX_PAGE_TOKENS, N_LONG = 4 * MX_ATTN_SPAN + 100 };

static mx_tiny_spec long_spec(void)
{
    mx_tiny_spec s = mx_tiny_default();
    s.n_layers = 1;
    s.n_heads = 64;
    s.n_kv_heads = 4;
    s.n_ctx = 4096;
    return s;
}

static rig open_long(const mx_tiny_spec *s, unsigned n_threads)
{
    rig_options o = rig_default();
    o.n_threads = n_threads;
    rig r = rig_open_tiny(s, o);
    watch(&r);
    return r;
}

static uint32_t n_foreign; /* tiles of other spans that an item has looked up; atomic access */

/* Leaves the lists empty for the next item of this worker. */
static void span_alone(const mx_attn_args *args, uint32_t span)
{
    const uint8_t **lists[] = {(const uint8_t **)(uintptr_t)args->k_tiles,
                               (const uint8_t **)(uintptr_t)args->v_tiles};
    for (size_t l = 0; l < MX_COUNT(lists); l++) {
        for (uint32_t i = 0; i <= N_LONG / MX_PAGE_TOKENS; i++) {
            if (i / SPAN_PAGES != span && lists[l][i] != NULL) {
                __atomic_fetch_add(&n_foreign, 1, __ATOMIC_RELAXED);
            }
        }
    }
    real->attention_span(args, span);
    for (size_t l = 0; l < MX_COUNT(lists); l++) {
        memset(lists[l], 0, (N_LONG / MX_PAGE_TOKENS + 1) * sizeof *lists[l]);
    }
}

static void spans_look_at_their_own_pages(void **state)
{
    (void)state;
    const mx_tiny_spec spec = long_spec();
    rig r = open_long(&spec, 2);
    mx_seq s;
    begin_text(&r, &s, N_LONG);
    for (unsigned w = 0; w < 2; w++) {
        const size_t n = (N_LONG / MX_PAGE_TOKENS + 1) * sizeof(uint8_t *);
        memset(r.model->s.workers[w].k_tiles, 0, n);
        memset(r.model->s.workers[w].v_tiles, 0, n);
    }
    n_foreign = 0;
    watched.attention_span = span_alone;
    feed_one(&r, &s);
    assert_int_equal(n_foreign, 0);
    mx_seq_free(&s);
    rig_close(&r);
}

/* Pages that the window hides need not even be there. */
static void hidden_pages_are_not_looked_at(void **state)
{
    (void)state;
    enum { WINDOW = MX_ATTN_SPAN + 70 };
    mx_tiny_spec spec = long_spec();
    spec.window = WINDOW;
    for (unsigned n_threads = 1; n_threads <= 2; n_threads++) {
        rig r = open_long(&spec, n_threads);
        mx_seq s;
        mx_page *pages[N_LONG / MX_PAGE_TOKENS];
        const size_t n_hidden = (N_LONG + 1 - WINDOW) / MX_PAGE_TOKENS;
        begin_text(&r, &s, N_LONG);
        memcpy(pages, s.pages, n_hidden * sizeof *pages);
        memset(s.pages, 0, n_hidden * sizeof *pages);
        feed_one(&r, &s);
        memcpy(s.pages, pages, n_hidden * sizeof *pages);
        mx_seq_free(&s);
        rig_close(&r);
    }
}

static bool has_joined[2]; /* the caller, another worker; these are accessed atomically */
static bool has_waited;

/* Waits until the other one comes, too; once, and up to two seconds. */
static void join_together(float *out, const float *parts, size_t stride, uint32_t n_parts,
                          uint32_t head_dim)
{
    const int me = !is_caller();
    __atomic_store_n(&has_joined[me], true, __ATOMIC_RELAXED);
    for (int i = 0; i < 200 && !__atomic_load_n(&has_joined[!me], __ATOMIC_RELAXED) &&
                    !__atomic_load_n(&has_waited, __ATOMIC_RELAXED);
         i++)
    {
        sleep_ms(10);
    }
    __atomic_store_n(&has_waited, true, __ATOMIC_RELAXED);
    real->attention_merge(out, parts, stride, n_parts, head_dim);
}

/* 64 heads of 5 spans are more than one turn. */
static void spans_of_one_row_are_joined_by_all(void **state)
{
    (void)state;
    const mx_tiny_spec spec = long_spec();
    rig r = open_long(&spec, 2);
    mx_seq s;
    begin_text(&r, &s, N_LONG);
    watched.attention_merge = join_together;
    feed_one(&r, &s);
    assert_true(has_joined[0] && has_joined[1]);
    mx_seq_free(&s);
    rig_close(&r);
}

/* One token each for a short text, a long one, and a short one. */
static void feed_three(unsigned n_threads, float *hidden)
{
    static const uint32_t lengths[3] = {3, N_LONG, 70};
    const mx_tiny_spec spec = long_spec();
    rig r = open_long(&spec, n_threads);
    mx_seq s[3];
    mx_batch_row rows[3];
    mx_errbuf eb = {{0}};
    uint32_t bad;
    for (int i = 0; i < 3; i++) {
        begin_text(&r, &s[i], lengths[i]);
        rig_check(mx_seq_reserve(&s[i], 1), &eb, "reserve");
        rows[i] = (mx_batch_row){.seq = &s[i], .pos = lengths[i], .token = 5 + i, .hidden_to = i};
    }
    const mx_batch b = {.rows = rows, .n_rows = 3, .hidden = hidden, .n_hidden_rows = 3};
    rig_check(mx_model_forward(r.model, &b, &bad, &eb), &eb, "forward");
    for (int i = 0; i < 3; i++) {
        mx_seq_free(&s[i]);
    }
    rig_close(&r);
}

/* Of the rows of a batch some are cut into spans, with two threads, and others are not. */
static void cut_rows_stand_among_others(void **state)
{
    (void)state;
    const size_t n = 3 * (size_t)long_spec().n_embd;
    float *want = mx_calloc(n, sizeof *want), *got = mx_calloc(n, sizeof *got);
    feed_three(1, want);
    feed_three(2, got);
    assert_memory_equal(got, want, n * sizeof *want);
    mx_free(want);
    mx_free(got);
}

/* ---- recurrence ------------------------------------------------------------------------------ */

static uint32_t n_elsewhere; /* calls of stage 1 by other workers; atomic access */

static void conv_slowly(float *x, size_t ldx, uint32_t n_rows, uint32_t n, const float *taps,
                        float *past, uint32_t n_taps, size_t ld)
{
    __atomic_fetch_add(&n_elsewhere, !is_caller(), __ATOMIC_RELAXED);
    sleep_ms(1);
    real->gdn_conv(x, ldx, n_rows, n, taps, past, n_taps, ld);
}

static void note_decay(float *x, const float *dt, const float *a, size_t n)
{
    __atomic_fetch_add(&n_elsewhere, !is_caller(), __ATOMIC_RELAXED);
    real->gdn_decay(x, dt, a, n);
}

static mx_tiny_spec hybrid_spec(uint32_t n_k_heads, uint32_t n_v_heads)
{
    mx_tiny_spec s = mx_tiny_default();
    s.arch = "qwen35";
    s.has_qk_norm = true;
    s.n_rot = 8;
    s.attn_period = 2;
    s.gdn_k_heads = n_k_heads;
    s.gdn_v_heads = n_v_heads;
    s.gdn_dim = 16;
    s.gdn_taps = 4;
    return s;
}

/* 64 heads and their gates are 65 items, a turn is 64: one item is not worth a worker. */
static void one_item_more_wakes_nobody(void **state)
{
    (void)state;
    const mx_tiny_spec spec = hybrid_spec(16, 32);
    rig r = open_long(&spec, 2);
    mx_seq s;
    watched.gdn_conv = conv_slowly;
    watched.gdn_decay = note_decay;
    n_elsewhere = 0;
    mx_seq_init(&s, r.kv, &r.root);
    feed_one(&r, &s);
    assert_int_equal(n_elsewhere, 0);
    mx_seq_free(&s);
    rig_close(&r);
}

/* ---- the last layer -------------------------------------------------------------------------- */

/* Rows that nobody wants are dropped where the last layer has stored what later tokens need: before
 * attention, behind a recurrence. */
static void wanted_rows_are_those_of_all(void **state)
{
    (void)state;
    enum { N = 9 };
    for (uint32_t n_layers = 2; n_layers <= 3; n_layers++) { /* the last one: attention, then GDN */
        mx_tiny_spec spec = hybrid_spec(2, 4);
        spec.n_layers = n_layers;
        rig r = rig_open_tiny(&spec, rig_default());
        float *want = mx_calloc((size_t)N * r.n_embd, sizeof *want);
        float *got = mx_calloc((size_t)N * r.n_embd, sizeof *got);
        int32_t tokens[N];
        mx_batch_row rows[N];
        uint32_t n_wanted = 0, bad;
        mx_errbuf eb = {{0}};
        mx_seq s;
        for (int i = 0; i < N; i++) {
            tokens[i] = i * 31 % 256;
        }
        mx_seq_init(&s, r.kv, &r.root);
        rig_feed(&r, &s, tokens, N, want);
        mx_seq_free(&s);
        mx_seq_init(&s, r.kv, &r.root);
        rig_check(mx_seq_reserve(&s, N), &eb, "reserve");
        for (uint32_t i = 0; i < N; i++) {
            const bool is_wanted = i % 3 == 1 || i + 1 == N;
            rows[i] = (mx_batch_row){.seq = &s,
                                     .pos = i,
                                     .token = tokens[i],
                                     .hidden_to = is_wanted ? (int32_t)n_wanted++ : -1};
        }
        const mx_batch b = {
            .rows = rows, .n_rows = N, .hidden = got, .n_hidden_rows = n_wanted};
        rig_check(mx_model_forward(r.model, &b, &bad, &eb), &eb, "forward");
        mx_seq_commit(&s, tokens, N);
        for (uint32_t i = 0; i < N; i++) {
            if (rows[i].hidden_to >= 0) {
                assert_memory_equal(got + (size_t)rows[i].hidden_to * r.n_embd,
                                    want + (size_t)i * r.n_embd, r.n_embd * sizeof *want);
            }
        }
        mx_seq_free(&s);
        mx_free(want);
        mx_free(got);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_look_at_their_own_pages),
        cmocka_unit_test(hidden_pages_are_not_looked_at),
        cmocka_unit_test(spans_of_one_row_are_joined_by_all),
        cmocka_unit_test(cut_rows_stand_among_others),
        cmocka_unit_test(one_item_more_wakes_nobody),
        cmocka_unit_test(wanted_rows_are_those_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
