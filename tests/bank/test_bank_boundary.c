/* SPDX-License-Identifier: MIT
 *
 * Boundaries, one behaviour at a time: where a restore lands, what it says, and which boundaries stay
 * when there is not room for all. Random histories are in test_bank_model.c.
 */
#include "kv/kv_help.h"

#include "bank/bank.h"
#include "base/mem.h"

enum { N_HIDDEN = 2, MAX_TOKENS = 1024 + 64 };

static const mx_kv_shape shape = {1, 2, 4, MX_KV_F16, 6000, 0, 0}; /* a state counts as two pages */
static const mx_hash256 root = {{1}};
static const mx_bank_config plain_config = {
    .near_prefix_gap = 8, .lazy_snapshot = true, .n_hidden = N_HIDDEN, .us_per_token = 1000};

typedef struct fixture {
    mx_kv_pool *pool;
    mx_bank *bank;
    int64_t live;
    int32_t t[MAX_TOKENS];
} fixture;

static fixture open_bank(size_t n_pages, const mx_bank_config *cfg)
{
    fixture f = {.live = mx_mem_live()};
    assert_int_equal(mx_kv_pool_create(&f.pool, &shape, n_pages, NULL), MX_OK);
    assert_int_equal(mx_bank_create(&f.bank, f.pool, cfg, NULL), MX_OK);
    for (int32_t i = 0; i < MAX_TOKENS; i++) {
        f.t[i] = i;
    }
    return f;
}

static void close_bank(fixture *f)
{
    mx_bank_destroy(f->bank);
    assert_int_equal(mx_kv_pool_used(f->pool), 0);
    mx_kv_pool_destroy(f->pool);
    assert_int_equal(mx_mem_live(), f->live);
}

/* Goes on to n tokens and leaves a boundary there. */
static void step(fixture *f, mx_seq *s, size_t n, mx_entry_kind kind, const float *hidden)
{
    assert_int_equal(help_feed(s, f->t, n), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(f->bank, s, kind, hidden, NULL), MX_OK);
    mx_bank_check(f->bank);
}

static mx_bank_match restore(fixture *f, const int32_t *tokens, size_t n, size_t max, mx_seq *s)
{
    mx_bank_match m;
    mx_seq_init(s, f->pool, &root);
    assert_int_equal(mx_bank_restore_cache(f->bank, s, tokens, n, max, &m), MX_OK);
    assert_int_equal(s->n_tokens, m.n_tokens);
    mx_bank_check(f->bank);
    return m;
}

static void expect(fixture *f, size_t n, size_t max, size_t n_tokens, mx_restore_kind kind)
{
    mx_seq s;
    mx_bank_match m = restore(f, f->t, n, max, &s);
    help_check_rows(&s, f->t, 0);
    if (m.n_tokens != n_tokens || m.kind != kind || m.is_approximate) {
        fail_msg("%zu tokens: expected %zu, %s; got %zu, %s", n, n_tokens,
                 mx_restore_kind_name(kind), m.n_tokens, mx_restore_kind_name(m.kind));
    }
    mx_seq_free(&s);
}

static void test_a_restore_lands_on_a_boundary(void **state)
{
    (void)state;
    fixture f = open_bank(200, &plain_config);
    const float hidden[N_HIDDEN] = {1, 2};
    mx_seq s;
    mx_seq_init(&s, f.pool, &root);
    step(&f, &s, 70, MX_ENTRY_POINT, NULL);
    step(&f, &s, 128, MX_ENTRY_POINT, NULL);
    step(&f, &s, 200, MX_ENTRY_PROMPT, hidden);
    step(&f, &s, 230, MX_ENTRY_TURN, NULL);
    mx_seq_free(&s);
    expect(&f, 69, 69, 0, MX_RESTORE_NONE);
    expect(&f, 70, 70, 70, MX_RESTORE_BOUNDARY);
    expect(&f, 127, 127, 70, MX_RESTORE_BOUNDARY);
    expect(&f, 128, 128, 128, MX_RESTORE_BOUNDARY);
    expect(&f, 199, 199, 128, MX_RESTORE_BOUNDARY);
    expect(&f, 200, 200, 200, MX_RESTORE_EXACT_PREFIX);
    expect(&f, 200, 199, 128, MX_RESTORE_BOUNDARY); /* the last token is computed again */
    expect(&f, 229, 229, 200, MX_RESTORE_EXACT_PREFIX);
    expect(&f, 300, 299, 230, MX_RESTORE_EXACT_PREFIX);

    mx_bank_match m;
    mx_bank_lookup(f.bank, &root, f.t, 200, &m);
    assert_true(m.hidden != NULL && m.hidden[1] == 2 && m.n_tokens == 200 && m.n_shared == 200);
    f.t[190] = -1; /* an edit: what is shared ends at 190, what can be used at 128 */
    mx_bank_lookup(f.bank, &root, f.t, 300, &m);
    assert_true(m.n_tokens == 128 && m.n_shared == 190 && m.kind == MX_RESTORE_BOUNDARY);
    assert_true(m.diverged && m.stored_token == 190);
    close_bank(&f);
}

/* A point gives way to the end of a prompt, and does not take its name or vector away. */
static void test_kinds_of_one_point(void **state)
{
    (void)state;
    fixture f = open_bank(100, &plain_config);
    const float hidden[N_HIDDEN] = {3, 4};
    mx_seq s;
    mx_bank_match m;
    mx_seq_init(&s, f.pool, &root);
    step(&f, &s, 100, MX_ENTRY_POINT, NULL);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_PROMPT, hidden, NULL), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_POINT, NULL, NULL), MX_OK);
    mx_bank_lookup(f.bank, &root, f.t, 100, &m);
    assert_true(m.kind == MX_RESTORE_EXACT_PREFIX && m.hidden != NULL && m.hidden[0] == 3);
    mx_bank_stats st;
    mx_bank_get_stats(f.bank, &st);
    assert_int_equal(st.n_entries, 1);
    assert_int_equal(st.n_states, 1);
    mx_seq_free(&s);
    close_bank(&f);
}

static void see_distance(void *arg, size_t n_tokens, mx_kvstate *st, mx_entry_kind kind)
{
    size_t *d = arg; /* last, largest distance, count */
    assert_int_equal(st->n_tokens, n_tokens);
    assert_int_equal(kind, MX_ENTRY_POINT);
    d[1] = mx_max_size(d[1], n_tokens - d[0]);
    d[0] = n_tokens;
    d[2]++;
}

/* Pages that are of no use any more go in between. */
static void drop_one_boundary(fixture *f)
{
    mx_bank_stats st;
    mx_bank_get_stats(f->bank, &st);
    size_t n_before = st.n_states;
    while (st.n_states == n_before) {
        size_t n_free = mx_kv_pool_max(f->pool) - mx_kv_pool_used(f->pool);
        assert_true(mx_bank_evict(f->bank, n_free + 1) > 0);
        mx_bank_get_stats(f->bank, &st);
    }
    assert_int_equal(st.n_states, n_before - 1);
    mx_bank_check(f->bank);
}

/* Sixteen boundaries at even distances; with room for half, no cut costs more than two distances. */
static void test_kept_by_coverage(void **state)
{
    (void)state;
    enum { N = 16, EVERY = 64 };
    fixture f = open_bank(400, &plain_config);
    mx_seq s;
    mx_seq_init(&s, f.pool, &root);
    for (size_t i = 1; i <= N; i++) {
        step(&f, &s, i * EVERY, MX_ENTRY_POINT, NULL);
    }
    mx_seq_free(&s);
    for (size_t n_left = N - 1; n_left >= 2; n_left--) {
        drop_one_boundary(&f);
        size_t d[3] = {0};
        mx_bank_boundaries(f.bank, &root, f.t, MAX_TOKENS, see_distance, d);
        assert_int_equal(d[2], n_left);
        /* What the best choice of n_left of them could reach, at most doubled. */
        size_t most = 2 * ((N + n_left - 1) / n_left) * EVERY;
        if (d[1] > most || N * EVERY - d[0] > most) {
            fail_msg("%zu boundaries left: the largest distance is %zu, the last at %zu", n_left,
                     d[1], d[0]);
        }
    }
    close_bank(&f);
}

typedef struct places {
    size_t at[64], n;
} places;

static void see_place(void *arg, size_t n_tokens, mx_kvstate *st, mx_entry_kind kind)
{
    places *p = arg;
    (void)kind;
    assert_int_equal(st->n_tokens, n_tokens);
    assert_true(p->n < MX_COUNT(p->at));
    p->at[p->n++] = n_tokens;
}

/* What is asked for behind a place is what a walk over all finds there; and the tokens of the pages
 * before that are not even looked at. */
static void test_boundaries_behind_a_place(void **state)
{
    (void)state;
    fixture f = open_bank(400, &plain_config);
    int32_t blind[MAX_TOKENS];
    mx_seq s;
    places all = {.n = 0};
    mx_seq_init(&s, f.pool, &root);
    for (size_t n = 30; n <= 1000; n += 37) {
        step(&f, &s, n, MX_ENTRY_POINT, NULL);
    }
    mx_bank_boundaries(f.bank, &root, f.t, s.n_tokens, see_place, &all);
    assert_int_equal(all.n, 27);
    for (size_t from = 0; from <= s.n_tokens; from++) {
        size_t n_skipped = 0, first = from / MX_PAGE_TOKENS * MX_PAGE_TOKENS;
        while (n_skipped < all.n && all.at[n_skipped] <= from) {
            n_skipped++;
        }
        memcpy(blind, f.t, sizeof blind);
        memset(blind, 0xff, first * sizeof *blind);
        places got = {.n = 0};
        mx_bank_boundaries_behind(f.bank, &s, blind, from, s.n_tokens, see_place, &got);
        assert_int_equal(got.n, all.n - n_skipped);
        assert_memory_equal(got.at, all.at + n_skipped, got.n * sizeof *got.at);
    }
    mx_seq_free(&s);
    close_bank(&f);
}

/* One that requests start from outlives its neighbours. */
static void test_used_boundaries_stay(void **state)
{
    (void)state;
    fixture f = open_bank(400, &plain_config);
    mx_seq s;
    mx_seq_init(&s, f.pool, &root);
    for (size_t i = 1; i <= 8; i++) {
        step(&f, &s, i * 64 + 5, MX_ENTRY_POINT, NULL);
    }
    mx_seq_free(&s);
    for (int i = 0; i < 20; i++) {
        expect(&f, 4 * 64 + 30, 4 * 64 + 30, 4 * 64 + 5, MX_RESTORE_BOUNDARY);
    }
    for (int i = 0; i < 7; i++) {
        drop_one_boundary(&f);
    }
    expect(&f, 600, 600, 4 * 64 + 5, MX_RESTORE_BOUNDARY);
    close_bank(&f);
}

/* A pinned one goes for nobody, and neither do the pages before it. */
static void test_pinned_boundaries_stay(void **state)
{
    (void)state;
    fixture f = open_bank(200, &plain_config);
    mx_seq s;
    mx_seq_init(&s, f.pool, &root);
    step(&f, &s, 64, MX_ENTRY_POINT, NULL);
    step(&f, &s, 128, MX_ENTRY_POINT, NULL);
    step(&f, &s, 200, MX_ENTRY_TURN, NULL);
    const mx_hash256 id = s.pages[1]->id;
    mx_seq_free(&s);
    assert_int_equal(mx_bank_pin(f.bank, &id, true, 100), MX_OK);
    mx_bank_clear(f.bank);
    mx_bank_check(f.bank);
    expect(&f, 300, 299, 128, MX_RESTORE_BOUNDARY);
    assert_int_equal(mx_bank_pin(f.bank, &id, false, 100), MX_OK);
    mx_bank_clear(f.bank);
    expect(&f, 300, 299, 0, MX_RESTORE_NONE);
    close_bank(&f);
}

/* The greatest boundary would need a page for its tail, which nobody can give: the one before, which
 * ends with its page, needs none. */
static void test_a_smaller_boundary_where_there_is_no_room(void **state)
{
    (void)state;
    fixture f = open_bank(16, &plain_config);
    mx_seq writer, holder, s;
    mx_bank_match m;
    mx_seq_init(&writer, f.pool, &root);
    step(&f, &writer, 128, MX_ENTRY_POINT, NULL);
    restore(&f, f.t, 128, 128, &holder); /* so that this state does not make way */
    step(&f, &writer, 150, MX_ENTRY_TURN, NULL);
    assert_int_equal(help_feed(&writer, f.t, 160), MX_OK); /* in the same page */
    mx_page *taken[16], *page;
    size_t n_taken = 0;
    while ((page = mx_page_alloc(f.pool)) != NULL) {
        taken[n_taken++] = page;
    }
    mx_seq_init(&s, f.pool, &root);
    assert_int_equal(mx_bank_restore_cache(f.bank, &s, f.t, 155, 155, &m), MX_E_FULL);
    assert_int_equal(m.n_tokens, 128);
    assert_int_equal(s.n_tokens, 128);
    help_check_rows(&s, f.t, 0);
    mx_seq_free(&s);
    mx_seq_free(&holder);
    mx_seq_free(&writer);
    while (n_taken > 0) {
        mx_page_unref(f.pool, taken[--n_taken]);
    }
    close_bank(&f);
}

/* Pages that lead to no boundary go before any state does. */
static void test_pages_without_a_boundary_go_first(void **state)
{
    (void)state;
    fixture f = open_bank(60, &plain_config);
    mx_seq s;
    mx_seq_init(&s, f.pool, &root);
    step(&f, &s, 128, MX_ENTRY_TURN, NULL);
    assert_int_equal(help_feed(&s, f.t, 640), MX_OK);
    assert_int_equal(mx_bank_insert_pages(f.bank, &s), MX_OK);
    mx_seq_free(&s);
    mx_bank_stats st;
    mx_bank_get_stats(f.bank, &st);
    assert_int_equal(st.n_pages, 10);
    size_t n_free = mx_kv_pool_max(f.pool) - mx_kv_pool_used(f.pool);
    assert_int_equal(mx_bank_evict(f.bank, n_free + 8), 8);
    mx_bank_get_stats(f.bank, &st);
    assert_int_equal(st.n_states, 1);
    expect(&f, 640, 640, 128, MX_RESTORE_EXACT_PREFIX);
    n_free = mx_kv_pool_max(f.pool) - mx_kv_pool_used(f.pool);
    assert_int_equal(mx_bank_evict(f.bank, n_free + 3), 3); /* the state, then a page */
    expect(&f, 640, 640, 0, MX_RESTORE_NONE);
    close_bank(&f);
}

static void test_approximate(void **state)
{
    (void)state;
    mx_bank_config cfg = plain_config;
    cfg.approximate_restore = true;
    fixture f = open_bank(100, &cfg);
    mx_seq s, again;
    mx_seq_init(&s, f.pool, &root);
    step(&f, &s, 100, MX_ENTRY_POINT, NULL);
    step(&f, &s, 200, MX_ENTRY_TURN, NULL);
    mx_seq_free(&s);
    f.t[193] = -5; /* seven tokens before the end of the turn */
    mx_bank_match m = restore(&f, f.t, 300, 299, &again);
    assert_true(m.is_approximate && m.kind == MX_RESTORE_NEAR_PREFIX && m.n_tokens == 193);
    uint64_t hash_200 = 0;
    for (int32_t i = 0; i < 200; i++) {
        hash_200 = help_extend(hash_200, i);
    }
    assert_true(help_state_is(&shape, again.state, 193, hash_200));
    mx_seq_free(&again);
    expect(&f, 100, 100, 100, MX_RESTORE_BOUNDARY); /* there is an exact one */
    f.t[193] = 193;
    f.t[191] = -5; /* nine before */
    m = restore(&f, f.t, 300, 299, &again);
    assert_true(!m.is_approximate && m.kind == MX_RESTORE_BOUNDARY && m.n_tokens == 100);
    mx_seq_free(&again);
    close_bank(&f);
}

/* The state comes from elsewhere: pages up to exactly there, or nothing. */
static void test_restore_at(void **state)
{
    (void)state;
    fixture f = open_bank(100, &plain_config);
    mx_seq s, again;
    mx_seq_init(&s, f.pool, &root);
    step(&f, &s, 200, MX_ENTRY_TURN, NULL);
    mx_seq_free(&s);
    static const size_t at[] = {1, 64, 70, 128, 199};
    for (size_t i = 0; i < MX_COUNT(at); i++) {
        mx_kvstate *st = mx_kvstate_alloc(f.pool);
        help_write_state(&shape, st, at[i], help_prefix_hash(f.t, at[i]));
        mx_seq_init(&again, f.pool, &root);
        assert_int_equal(mx_bank_restore_at(f.bank, &again, f.t, at[i], st), MX_OK);
        help_check_rows(&again, f.t, 0);
        mx_seq_free(&again);
    }
    mx_kvstate *st = mx_kvstate_alloc(f.pool);
    st->n_tokens = 201;
    mx_seq_init(&again, f.pool, &root);
    assert_int_equal(mx_bank_restore_at(f.bank, &again, f.t, 201, st), MX_E_NOT_FOUND);
    assert_int_equal(again.n_pages, 0);
    assert_int_equal(mx_bank_hold_pages(f.bank, &again, f.t, 3), MX_OK);
    assert_int_equal(again.n_tokens, 192);
    mx_seq_free(&again);
    mx_kvstate_unref(f.pool, st);
    close_bank(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_restore_lands_on_a_boundary),
        cmocka_unit_test(test_kinds_of_one_point),
        cmocka_unit_test(test_kept_by_coverage),
        cmocka_unit_test(test_boundaries_behind_a_place),
        cmocka_unit_test(test_used_boundaries_stay),
        cmocka_unit_test(test_pinned_boundaries_stay),
        cmocka_unit_test(test_a_smaller_boundary_where_there_is_no_room),
        cmocka_unit_test(test_pages_without_a_boundary_go_first),
        cmocka_unit_test(test_approximate),
        cmocka_unit_test(test_restore_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
