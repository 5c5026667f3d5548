/* SPDX-License-Identifier: MIT
 *
 * The SessionBank, one behaviour at a time. Random histories are in test_bank_model.c.
 */
#include "kv/kv_help.h"

#include "bank/bank.h"
#include "base/mem.h"

enum { N_HIDDEN = 3, MAX_TOKENS = 1024 };

static const mx_kv_shape shape = {2, 2, 4, MX_KV_F16, 0, 0, 0}; /* 4 KiB a page */
static const mx_hash256 root_a = {{1}}, root_b = {{2}};
static const mx_bank_config default_config = {
    .near_prefix_gap = 8, .lazy_snapshot = true, .n_hidden = N_HIDDEN, .us_per_token = 1000};

typedef struct fixture {
    mx_kv_pool *pool;
    mx_bank *bank;
    int64_t live;
} fixture;

static fixture open_bank(size_t n_pages, const mx_bank_config *cfg)
{
    fixture f = {.live = mx_mem_live()};
    assert_int_equal(mx_kv_pool_create(&f.pool, &shape, n_pages, NULL), MX_OK);
    assert_int_equal(mx_bank_create(&f.bank, f.pool, cfg, NULL), MX_OK);
    return f;
}

static void close_bank(fixture *f)
{
    mx_bank_destroy(f->bank);
    assert_int_equal(mx_kv_pool_used(f->pool), 0);
    mx_kv_pool_destroy(f->pool);
    assert_int_equal(mx_mem_live(), f->live);
}

static void check(const fixture *f)
{
    mx_bank_check(f->bank);
    mx_kv_pool_check(f->pool);
}

/* tokens[0..n-1] = base + i, but from `fork` on another run of numbers. */
static void fill(int32_t *tokens, size_t n, size_t fork, int32_t branch)
{
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)i + (i >= fork ? 10000 * branch : 0);
    }
}

static void compute(const fixture *f, mx_seq *s, const int32_t *tokens, size_t n)
{
    mx_seq_init(s, f->pool, &root_a);
    assert_int_equal(help_feed(s, tokens, n), MX_OK);
}

/* Computes n tokens from nothing, snapshots them and lets the sequence go. */
static void store(const fixture *f, const int32_t *tokens, size_t n, const float *hidden)
{
    mx_seq s;
    compute(f, &s, tokens, n);
    assert_int_equal(mx_bank_snapshot_cache(f->bank, &s, MX_ENTRY_TURN, hidden, NULL), MX_OK);
    mx_seq_check(&s);
    mx_seq_free(&s);
    check(f);
}

static mx_bank_match lookup(const fixture *f, const int32_t *tokens, size_t n)
{
    mx_bank_match m;
    mx_bank_lookup(f->bank, &root_a, tokens, n, &m);
    return m;
}

static mx_bank_match restore(const fixture *f, mx_seq *s, const int32_t *tokens, size_t n,
                             size_t max)
{
    mx_bank_match m;
    mx_seq_init(s, f->pool, &root_a);
    assert_int_equal(mx_bank_restore_cache(f->bank, s, tokens, n, max, &m), MX_OK);
    assert_int_equal(s->n_tokens, m.n_tokens);
    help_check_rows(s, tokens, 0);
    check(f);
    return m;
}

static void assert_match(mx_bank_match m, size_t n_tokens, mx_restore_kind kind)
{
    if (m.n_tokens != n_tokens || m.kind != kind) {
        fail_msg("expected %zu tokens, %s; got %zu tokens, %s", n_tokens,
                 mx_restore_kind_name(kind), m.n_tokens, mx_restore_kind_name(m.kind));
    }
}

static size_t n_pages(const fixture *f)
{
    mx_bank_stats st;
    mx_bank_get_stats(f->bank, &st);
    return st.n_pages;
}

static size_t n_entries(const fixture *f)
{
    mx_bank_stats st;
    mx_bank_get_stats(f->bank, &st);
    return st.n_entries;
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(mx_restore_kind_name(MX_RESTORE_NONE), "none");
    assert_string_equal(mx_restore_kind_name(MX_RESTORE_EXACT_PREFIX), "exact_prefix");
    assert_string_equal(mx_restore_kind_name(MX_RESTORE_BOUNDARY), "boundary");
    assert_string_equal(mx_restore_kind_name(MX_RESTORE_NEAR_PREFIX), "near_prefix");
    assert_string_equal(mx_restore_kind_name(MX_RESTORE_STEM), "stem");
    assert_true(mx_restore_identity_compatible(&root_a, &root_a));
    assert_false(mx_restore_identity_compatible(&root_a, &root_b));
    assert_true(mx_policy_uses_committed_history(false));
    assert_false(mx_policy_uses_committed_history(true));
}

static void test_kinds(void **state)
{
    (void)state;
    fixture f = open_bank(64, &default_config);
    int32_t t[MAX_TOKENS];
    const float hidden[N_HIDDEN] = {1, 2, 3};
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    assert_match(lookup(&f, t, 300), 0, MX_RESTORE_NONE);
    store(&f, t, 200, hidden);

    mx_bank_match m = lookup(&f, t, 300);
    assert_match(m, 200, MX_RESTORE_EXACT_PREFIX);
    assert_true(!m.diverged && m.hidden == NULL && m.n_full_pages == 3);
    m = lookup(&f, t, 200);
    assert_match(m, 200, MX_RESTORE_EXACT_PREFIX);
    assert_memory_equal(m.hidden, hidden, sizeof hidden);
    assert_match(lookup(&f, t, 192), 192, MX_RESTORE_NEAR_PREFIX); /* a gap of 8 */
    assert_match(lookup(&f, t, 191), 191, MX_RESTORE_STEM);        /* a gap of 9 */
    assert_match(lookup(&f, t, 64), 64, MX_RESTORE_STEM);
    assert_match(lookup(&f, t, 1), 1, MX_RESTORE_STEM);

    fill(t, MAX_TOKENS, 195, 1);
    m = lookup(&f, t, 300);
    assert_match(m, 195, MX_RESTORE_NEAR_PREFIX);
    assert_true(m.diverged && m.stored_token == 195);
    fill(t, MAX_TOKENS, 70, 1);
    m = lookup(&f, t, 300);
    assert_match(m, 70, MX_RESTORE_STEM);
    assert_true(m.diverged && m.stored_token == 70 && m.n_full_pages == 1);
    fill(t, MAX_TOKENS, 0, 1);
    m = lookup(&f, t, 300);
    assert_match(m, 0, MX_RESTORE_NONE);
    assert_true(m.diverged && m.stored_token == 0);
    mx_bank_lookup(f.bank, &root_b, t, 300, &m); /* another root shares nothing */
    assert_match(m, 0, MX_RESTORE_NONE);
    assert_false(m.diverged);
    close_bank(&f);
}

/* The gap is counted across the end of a page as well; 0 switches the label off. */
static void test_near_prefix_over_pages(void **state)
{
    (void)state;
    int32_t t[MAX_TOKENS], u[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    fill(u, MAX_TOKENS, 60, 2);
    fixture f = open_bank(64, &default_config);
    store(&f, t, 68, NULL);
    assert_match(lookup(&f, u, 80), 60, MX_RESTORE_NEAR_PREFIX);
    assert_match(lookup(&f, t, 64), 64, MX_RESTORE_NEAR_PREFIX);
    fill(u, MAX_TOKENS, 59, 2);
    assert_match(lookup(&f, u, 80), 59, MX_RESTORE_STEM);
    close_bank(&f);

    mx_bank_config cfg = default_config;
    cfg.near_prefix_gap = 200;
    f = open_bank(64, &cfg);
    store(&f, t, 230, NULL);
    fill(u, MAX_TOKENS, 30, 2);
    assert_match(lookup(&f, u, 80), 30, MX_RESTORE_NEAR_PREFIX);
    fill(u, MAX_TOKENS, 29, 2);
    assert_match(lookup(&f, u, 80), 29, MX_RESTORE_STEM);
    close_bank(&f);

    cfg.near_prefix_gap = 0;
    f = open_bank(64, &cfg);
    store(&f, t, 68, NULL);
    assert_match(lookup(&f, t, 67), 67, MX_RESTORE_STEM);
    assert_match(lookup(&f, t, 69), 68, MX_RESTORE_EXACT_PREFIX);
    close_bank(&f);
}

/* The tail of an entry is taken over by the first, copied by the second. */
static void test_restore_takes_over_or_copies(void **state)
{
    (void)state;
    fixture f = open_bank(64, &default_config);
    int32_t t[MAX_TOKENS], u[MAX_TOKENS], v[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    fill(u, MAX_TOKENS, 150, 1);
    fill(v, MAX_TOKENS, 150, 2);
    store(&f, t, 150, NULL);
    assert_int_equal(mx_kv_pool_used(f.pool), 3);
    mx_seq a, b, c;
    assert_match(restore(&f, &a, u, 300, 299), 150, MX_RESTORE_EXACT_PREFIX);
    assert_int_equal(mx_kv_pool_used(f.pool), 3);
    assert_true(a.has_right);
    assert_match(restore(&f, &b, v, 300, 299), 150, MX_RESTORE_EXACT_PREFIX);
    assert_int_equal(mx_kv_pool_used(f.pool), 4);
    assert_int_equal(help_feed(&a, u, 170), MX_OK);
    assert_int_equal(help_feed(&b, v, 170), MX_OK);
    assert_int_equal(mx_kv_pool_used(f.pool), 4);
    help_check_rows(&a, u, 0);
    help_check_rows(&b, v, 0);
    /* The entry is what it was, though a wrote behind it. */
    assert_match(restore(&f, &c, t, 300, 299), 150, MX_RESTORE_EXACT_PREFIX);
    assert_match(lookup(&f, u, 170), 150, MX_RESTORE_EXACT_PREFIX);
    mx_seq_free(&c);
    mx_seq_free(&a);
    mx_seq_free(&b);
    check(&f);
    /* a is gone without having stored anything: the tail can be taken over again. */
    assert_match(restore(&f, &c, v, 300, 299), 150, MX_RESTORE_EXACT_PREFIX);
    assert_int_equal(mx_kv_pool_used(f.pool), 3);
    assert_int_equal(help_feed(&c, v, 300), MX_OK);
    help_check_rows(&c, v, 0);
    mx_seq_free(&c);
    /* At most max_tokens: n - 1 forces a token to be evaluated. */
    mx_bank_match m = restore(&f, &c, t, 150, 149);
    assert_match(m, 149, MX_RESTORE_NEAR_PREFIX);
    assert_true(m.hidden == NULL && !m.diverged);
    mx_seq_free(&c);
    assert_match(restore(&f, &c, t, 150, 128), 128, MX_RESTORE_STEM);
    assert_int_equal(mx_kv_pool_used(f.pool), 3);
    mx_seq_free(&c);
    assert_match(restore(&f, &c, t, 150, 0), 0, MX_RESTORE_NONE);
    mx_seq_free(&c);
    close_bank(&f);
}

/* A prompt's entry becomes a point inside the page that the answer filled. */
static void test_longer_tail_absorbs_shorter(void **state)
{
    (void)state;
    fixture f = open_bank(64, &default_config);
    int32_t t[MAX_TOKENS];
    const float h1[N_HIDDEN] = {1, 1, 1}, h2[N_HIDDEN] = {2, 2, 2};
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    mx_seq s;
    compute(&f, &s, t, 100);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_PROMPT, h1, NULL), MX_OK);
    assert_int_equal(help_feed(&s, t, 110), MX_OK);
    check(&f);
    assert_match(lookup(&f, t, 110), 100, MX_RESTORE_EXACT_PREFIX);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_TURN, h2, NULL), MX_OK);
    check(&f);
    assert_int_equal(n_pages(&f), 2);
    assert_int_equal(mx_kv_pool_used(f.pool), 2);
    assert_int_equal(help_feed(&s, t, 140), MX_OK);
    assert_int_equal(mx_bank_insert_pages(f.bank, &s), MX_OK);
    check(&f);
    assert_int_equal(n_pages(&f), 2);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_TURN, NULL, NULL), MX_OK);
    check(&f);
    assert_int_equal(n_pages(&f), 3);
    assert_int_equal(n_entries(&f), 3);
    mx_seq_free(&s);
    assert_memory_equal(lookup(&f, t, 100).hidden, h1, sizeof h1);
    assert_memory_equal(lookup(&f, t, 110).hidden, h2, sizeof h2);
    assert_null(lookup(&f, t, 140).hidden);
    assert_match(lookup(&f, t, 140), 140, MX_RESTORE_EXACT_PREFIX);

    /* A shorter one that comes later is a point at once; refreshed, it keeps its vector. */
    store(&f, t, 105, h1);
    store(&f, t, 105, NULL);
    store(&f, t, 64, h2);
    assert_int_equal(n_pages(&f), 3);
    assert_int_equal(n_entries(&f), 5);
    assert_memory_equal(lookup(&f, t, 105).hidden, h1, sizeof h1);
    assert_memory_equal(lookup(&f, t, 64).hidden, h2, sizeof h2);
    close_bank(&f);
}

static void count_hits(void *arg, const mx_bank_point *p)
{
    if (p->is_entry) {
        *(uint64_t *)arg += p->n_hits;
    }
}

static void test_hits_are_counted(void **state)
{
    (void)state;
    fixture f = open_bank(16, &default_config);
    int32_t t[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    uint64_t hits = 0;
    store(&f, t, 100, NULL);
    mx_bank_walk(f.bank, count_hits, &hits);
    assert_int_equal(hits, 0);
    store(&f, t, 100, NULL); /* refreshed */
    mx_seq s;
    restore(&f, &s, t, 200, 200);
    mx_seq_free(&s);
    restore(&f, &s, t, 99, 99); /* not the whole entry */
    mx_seq_free(&s);
    mx_bank_walk(f.bank, count_hits, &hits);
    assert_int_equal(hits, 2);
    close_bank(&f);
}

/* Two requests computed the same prompt at the same time: it is kept once, also by them. */
static void test_duplicates_are_merged(void **state)
{
    (void)state;
    fixture f = open_bank(64, &default_config);
    int32_t t[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    mx_seq a, b, c;
    compute(&f, &a, t, 330);
    compute(&f, &b, t, 330);
    mx_seq_init(&c, f.pool, &root_a);
    assert_int_equal(mx_seq_fork(&c, &b, 330), MX_OK); /* sees b's pages from outside */
    assert_int_equal(mx_kv_pool_used(f.pool), 12);
    assert_int_equal(mx_bank_insert_pages(f.bank, &a), MX_OK);
    assert_int_equal(mx_bank_insert_pages(f.bank, &b), MX_OK);
    check(&f);
    help_check_rows(&b, t, 0);
    help_check_rows(&c, t, 0);
    for (int i = 0; i < 5; i++) {
        assert_ptr_equal(a.pages[i], b.pages[i]);
    }
    assert_int_equal(help_feed(&b, t, 400), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &b, MX_ENTRY_TURN, NULL, NULL), MX_OK);
    help_check_rows(&c, t, 0);
    assert_int_equal(mx_bank_insert_pages(f.bank, &c), MX_OK);
    check(&f);
    mx_seq_free(&c);
    /* 6 full pages and b's tail; a's private tail beside them. */
    assert_int_equal(mx_kv_pool_used(f.pool), 8);
    help_check_rows(&a, t, 0);
    help_check_rows(&b, t, 0);
    mx_seq_free(&a);
    mx_seq_free(&b);
    assert_int_equal(n_pages(&f), 7);
    assert_int_equal(mx_kv_pool_used(f.pool), 7);
    close_bank(&f);
}

static void test_eviction_is_leaf_first(void **state)
{
    (void)state;
    fixture f = open_bank(10, &default_config);
    int32_t t[MAX_TOKENS], u[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    fill(u, MAX_TOKENS, 128, 1);
    store(&f, t, 300, NULL); /* 5 pages, older */
    store(&f, u, 300, NULL); /* 3 more */
    assert_int_equal(mx_kv_pool_used(f.pool), 8);
    assert_int_equal(mx_bank_evict(f.bank, 2), 0); /* there are two */
    /* Two branches of equal length: the older one goes, from its end. The stem stays. */
    assert_int_equal(mx_bank_evict(f.bank, 4), 2);
    check(&f);
    assert_match(lookup(&f, t, 300), 192, MX_RESTORE_STEM);
    assert_match(lookup(&f, u, 300), 300, MX_RESTORE_EXACT_PREFIX);
    assert_int_equal(n_entries(&f), 1);
    assert_int_equal(mx_bank_evict(f.bank, 6), 2);
    check(&f);
    assert_match(lookup(&f, t, 300), 128, MX_RESTORE_STEM);
    assert_match(lookup(&f, u, 300), 256, MX_RESTORE_STEM);

    /* What a sequence refers to is pinned; asking for more than can go frees what can. */
    mx_seq s;
    restore(&f, &s, u, 300, 200);
    assert_int_equal(mx_kv_pool_used(f.pool), 5); /* the sequence has a copied tail */
    assert_int_equal(mx_bank_evict(f.bank, 10), 1);
    check(&f);
    help_check_rows(&s, u, 0);
    assert_match(lookup(&f, u, 300), 192, MX_RESTORE_STEM);
    assert_int_equal(mx_bank_evict(f.bank, 10), 0);
    mx_seq_free(&s);
    mx_bank_clear(f.bank);
    check(&f);
    assert_int_equal(mx_kv_pool_used(f.pool), 0);
    assert_match(lookup(&f, u, 300), 0, MX_RESTORE_NONE);
    mx_bank_stats st;
    mx_bank_get_stats(f.bank, &st);
    assert_int_equal(st.evicted_pages, 8);
    assert_int_equal(st.evicted_entries, 2);
    close_bank(&f);
}

/* An often used branch outlives a newer one. */
static void test_eviction_knows_use(void **state)
{
    (void)state;
    fixture f = open_bank(16, &default_config);
    int32_t t[MAX_TOKENS], u[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    fill(u, MAX_TOKENS, 0, 1);
    store(&f, t, 64, NULL);
    for (int i = 0; i < 3; i++) {
        mx_seq s;
        restore(&f, &s, t, 100, 99);
        mx_seq_free(&s);
    }
    store(&f, u, 64, NULL);
    assert_int_equal(mx_bank_evict(f.bank, 15), 1);
    assert_match(lookup(&f, t, 64), 64, MX_RESTORE_EXACT_PREFIX);
    assert_match(lookup(&f, u, 64), 0, MX_RESTORE_NONE);
    close_bank(&f);
}

/* An entry survives the page it was stored in when a sibling begins with the same tokens. */
static void test_entries_move_to_siblings(void **state)
{
    (void)state;
    fixture f = open_bank(16, &default_config);
    int32_t low[MAX_TOKENS], high[MAX_TOKENS];
    const float hidden[N_HIDDEN] = {4, 5, 6};
    fill(low, MAX_TOKENS, 90, -1);
    fill(high, MAX_TOKENS, 90, 1);
    store(&f, high, 80, hidden);
    store(&f, high, 127, NULL); /* takes the entry in */
    store(&f, low, 126, NULL);  /* sorts to the left: the entry moves */
    assert_int_equal(n_pages(&f), 3);
    assert_int_equal(n_entries(&f), 3);
    assert_memory_equal(lookup(&f, high, 80).hidden, hidden, sizeof hidden);
    store(&f, low, 80, NULL); /* the same point, not a second one */
    assert_int_equal(n_entries(&f), 3);
    /* 126 rows are worth less than 127: low goes, the shared point moves to the right. */
    mx_seq s;
    restore(&f, &s, high, 200, 127);
    mx_seq_free(&s);
    assert_int_equal(mx_bank_evict(f.bank, 14), 1);
    check(&f);
    assert_match(lookup(&f, low, 126), 90, MX_RESTORE_STEM);
    assert_match(lookup(&f, low, 80), 80, MX_RESTORE_EXACT_PREFIX);
    assert_memory_equal(lookup(&f, low, 80).hidden, hidden, sizeof hidden);
    assert_int_equal(n_entries(&f), 2);
    close_bank(&f);
}

static void test_budget(void **state)
{
    (void)state;
    mx_bank_config cfg = default_config;
    cfg.max_bytes = 6 * 4096 + 4096;
    fixture f = open_bank(64, &cfg);
    int32_t t[MAX_TOKENS], u[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    fill(u, MAX_TOKENS, 0, 1);
    store(&f, t, 300, NULL); /* 5 pages */

    /* Could never fit: refused before anything is evicted for it, with the numbers. */
    mx_seq s;
    mx_errbuf eb = {.text = ""};
    compute(&f, &s, u, 500);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_TURN, NULL, &eb), MX_E_FULL);
    assert_non_null(strstr(eb.text, "500 tokens"));
    assert_non_null(strstr(eb.text, "--kv-budget"));
    check(&f);
    assert_match(lookup(&f, t, 300), 300, MX_RESTORE_EXACT_PREFIX);
    mx_bank_stats st;
    mx_bank_get_stats(f.bank, &st);
    assert_int_equal(st.refused_entries, 1);
    assert_int_equal(st.evicted_pages, 0);
    /* Chunk by chunk it takes what fits. */
    assert_int_equal(mx_bank_insert_pages(f.bank, &s), MX_E_FULL);
    check(&f);
    mx_bank_get_stats(f.bank, &st);
    assert_true(st.bytes <= cfg.max_bytes && st.n_pages >= 5);
    assert_true(lookup(&f, u, 500).n_tokens >= 320);
    mx_seq_free(&s);

    /* A new conversation pushes out the old one. */
    fill(u, MAX_TOKENS, 0, 2);
    store(&f, u, 200, NULL);
    assert_match(lookup(&f, u, 200), 200, MX_RESTORE_EXACT_PREFIX);
    mx_bank_get_stats(f.bank, &st);
    assert_true(st.bytes <= cfg.max_bytes);

    compute(&f, &s, u, 0);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_TURN, NULL, &eb), MX_E_INVALID);
    mx_seq_free(&s);
    mx_bank_trim(f.bank);
    check(&f);
    close_bank(&f);
}

/* The entry's page is its own at once (lazy off), or after idle work (settle on). */
static void check_settings(bool lazy, bool settle)
{
    mx_bank_config cfg = default_config;
    cfg.lazy_snapshot = lazy;
    cfg.settle_snapshot = settle;
    fixture f = open_bank(16, &cfg);
    int32_t t[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    mx_seq s, r;
    compute(&f, &s, t, 100);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_PROMPT, NULL, NULL), MX_OK);
    check(&f);
    assert_int_equal(mx_kv_pool_used(f.pool), lazy ? 2 : 3);
    assert_int_equal(mx_bank_idle(f.bank), lazy && settle);
    check(&f);
    assert_int_equal(mx_kv_pool_used(f.pool), lazy && !settle ? 2 : 3);
    assert_int_equal(s.pages[1]->refs, lazy && !settle ? 2 : 1);
    assert_false(mx_bank_idle(f.bank));
    assert_int_equal(help_feed(&s, t, 120), MX_OK);
    assert_match(restore(&f, &r, t, 130, 129), 100, MX_RESTORE_EXACT_PREFIX);
    mx_seq_free(&r);
    help_check_rows(&s, t, 0);
    /* The sequence's longer tail takes the place of the shorter one. */
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_TURN, NULL, NULL), MX_OK);
    check(&f);
    assert_int_equal(n_pages(&f), 2);
    while (mx_bank_idle(f.bank)) {
        check(&f);
    }
    assert_int_equal(help_feed(&s, t, 200), MX_OK);
    assert_int_equal(mx_bank_insert_pages(f.bank, &s), MX_OK);
    check(&f);
    assert_match(restore(&f, &r, t, 130, 129), 129, MX_RESTORE_STEM);
    mx_seq_free(&r);
    mx_seq_free(&s);
    /* Taken over (lazy) or copied, the entry at 120 is the same. */
    assert_match(restore(&f, &r, t, 120, 120), 120, MX_RESTORE_EXACT_PREFIX);
    mx_seq_free(&r);
    mx_bank_clear(f.bank);
    assert_int_equal(mx_kv_pool_used(f.pool), 0);
    /* Idle work goes on to zero what was given back. */
    assert_true(mx_bank_idle(f.bank));
    close_bank(&f);
}

static void test_snapshot_settings(void **state)
{
    (void)state;
    check_settings(true, false);
    check_settings(true, true);
    check_settings(false, false);
    check_settings(false, true);
}

/* Who continues an entry goes on in the bank's own page (lazy), or in a copy (eager). */
static void test_whose_tail_is_continued(void **state)
{
    (void)state;
    for (int lazy = 0; lazy < 2; lazy++) {
        mx_bank_config cfg = default_config;
        cfg.lazy_snapshot = lazy;
        fixture f = open_bank(16, &cfg);
        int32_t t[MAX_TOKENS];
        fill(t, MAX_TOKENS, MAX_TOKENS, 0);
        store(&f, t, 100, NULL);
        mx_seq r;
        assert_match(restore(&f, &r, t, 130, 129), 100, MX_RESTORE_EXACT_PREFIX);
        assert_int_equal(mx_kv_pool_used(f.pool), lazy ? 2 : 3);
        assert_int_equal(help_feed(&r, t, 120), MX_OK);
        assert_int_equal(mx_kv_pool_used(f.pool), lazy ? 2 : 3);
        check(&f);
        mx_seq_free(&r);
        close_bank(&f);
    }
}

/* Restoring makes room for the copied tail, but not out of the match itself. */
static void test_restore_with_a_full_pool(void **state)
{
    (void)state;
    fixture f = open_bank(6, &default_config);
    int32_t t[MAX_TOKENS], u[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    fill(u, MAX_TOKENS, 0, 1);
    store(&f, t, 160, NULL);
    store(&f, u, 192, NULL);
    assert_int_equal(mx_kv_pool_used(f.pool), 6);
    mx_seq a, b;
    /* The match is the least valuable leaf there is (32 rows), and yet another one goes. */
    assert_match(restore(&f, &a, t, 155, 155), 155, MX_RESTORE_NEAR_PREFIX);
    assert_match(lookup(&f, u, 192), 128, MX_RESTORE_STEM);
    assert_match(lookup(&f, t, 160), 160, MX_RESTORE_EXACT_PREFIX);

    mx_bank_match m;
    assert_match(restore(&f, &b, u, 128, 128), 128, MX_RESTORE_STEM);
    mx_seq c;
    mx_seq_init(&c, f.pool, &root_a);
    /* Nothing can go now but the tail of the match; the whole pages alone are restored. */
    assert_int_equal(mx_bank_restore_cache(f.bank, &c, t, 150, 150, &m), MX_E_FULL);
    assert_match(m, 128, MX_RESTORE_STEM);
    assert_int_equal(c.n_tokens, 128);
    help_check_rows(&c, t, 0);
    check(&f);
    mx_seq_free(&a);
    mx_seq_free(&b);
    mx_seq_free(&c);
    close_bank(&f);
}

static void test_roots_are_apart(void **state)
{
    (void)state;
    fixture f = open_bank(32, &default_config);
    int32_t t[MAX_TOKENS];
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    store(&f, t, 100, NULL);
    mx_seq s, r;
    mx_seq_init(&s, f.pool, &root_b);
    assert_int_equal(help_feed(&s, t, 200), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(f.bank, &s, MX_ENTRY_TURN, NULL, NULL), MX_OK);
    check(&f);
    assert_match(lookup(&f, t, 200), 100, MX_RESTORE_EXACT_PREFIX);
    mx_bank_match m;
    mx_bank_lookup(f.bank, &root_b, t, 200, &m);
    assert_match(m, 200, MX_RESTORE_EXACT_PREFIX);
    restore(&f, &r, t, 200, 200);
    assert_int_equal(r.n_tokens, 100);
    assert_ptr_not_equal(r.pages[0], s.pages[0]);
    mx_seq_free(&r);
    mx_seq_free(&s);
    close_bank(&f);
}

/* 10,000 conversations without a common beginning, and one that begins like all of them. */
static void test_many_children(void **state)
{
    (void)state;
    enum { N = 10000 };
    fixture f = open_bank(N + 4, &default_config);
    int32_t t[MX_PAGE_TOKENS];
    uint64_t rng = 99;
    for (int i = 0; i < N; i++) {
        int32_t shuffled = (int32_t)((uint32_t)i * 7919u % N);
        for (int k = 0; k < MX_PAGE_TOKENS; k++) {
            t[k] = k == 0 ? shuffled / 100 : k == 1 ? shuffled % 100 : k;
        }
        mx_seq s;
        compute(&f, &s, t, MX_PAGE_TOKENS);
        assert_int_equal(mx_bank_insert_pages(f.bank, &s), MX_OK);
        mx_seq_free(&s);
    }
    mx_bank_check(f.bank);
    for (int i = 0; i < 1000; i++) {
        int32_t v = (int32_t)help_rand(&rng, N);
        size_t same = help_rand(&rng, MX_PAGE_TOKENS + 1);
        for (size_t k = 0; k < MX_PAGE_TOKENS; k++) {
            int32_t token = k == 0 ? v / 100 : k == 1 ? v % 100 : (int32_t)k;
            t[k] = k < same ? token : -1;
        }
        mx_bank_match m = lookup(&f, t, MX_PAGE_TOKENS);
        assert_int_equal(m.n_tokens, same);
    }
    assert_int_equal(mx_bank_evict(f.bank, N), N - 4);
    check(&f);
    close_bank(&f);
}

static mx_err all_operations(const mx_bank_config *cfg)
{
    int32_t t[MAX_TOKENS], u[MAX_TOKENS];
    const float hidden[N_HIDDEN] = {7, 8, 9};
    fill(t, MAX_TOKENS, MAX_TOKENS, 0);
    fill(u, MAX_TOKENS, 90, 1);
    mx_kv_pool *pool;
    mx_bank *bank = NULL;
    mx_bank_match m;
    mx_seq a = {0}, b = {0};
    MX_TRY(mx_kv_pool_create(&pool, &shape, 40, NULL));
    mx_err e = mx_bank_create(&bank, pool, cfg, NULL);
    mx_seq_init(&a, pool, &root_a);
    mx_seq_init(&b, pool, &root_a);
    e = e ? e : help_feed(&a, t, 700);
    e = e ? e : mx_bank_insert_pages(bank, &a);
    e = e ? e : mx_bank_snapshot_cache(bank, &a, MX_ENTRY_PROMPT, hidden, NULL);
    e = e ? e : mx_bank_restore_cache(bank, &b, u, 800, 799, &m);
    if (e == MX_OK) {
        assert_int_equal(m.n_tokens, 90);
    }
    e = e ? e : help_feed(&b, u, 800);
    e = e ? e : mx_bank_snapshot_cache(bank, &b, MX_ENTRY_TURN, hidden, NULL);
    if (bank != NULL) {
        mx_bank_check(bank);
        mx_bank_idle(bank);
        mx_bank_check(bank);
        (void)mx_bank_evict(bank, 39);
        mx_bank_check(bank);
    }
    help_check_rows(&a, t, 0);
    help_check_rows(&b, u, 0);
    mx_kv_pool_check(pool);
    mx_seq_free(&a);
    mx_seq_free(&b);
    mx_bank_destroy(bank);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
    return e;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    for (int settings = 0; settings < 3; settings++) {
        mx_bank_config cfg = default_config;
        cfg.lazy_snapshot = settings < 2;
        cfg.settle_snapshot = settings == 1;
        int64_t live = mx_mem_live();
        uint64_t k = 1;
        for (;; k++) {
            mx_mem_fail_at(k);
            mx_err e = all_operations(&cfg);
            mx_mem_fail_at(0);
            assert_int_equal(mx_mem_live(), live);
            if (e == MX_OK) {
                break;
            }
            assert_int_equal(e, MX_E_NOMEM);
        }
        assert_true(k > 30); /* the loop has really failed something */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_near_prefix_over_pages),
        cmocka_unit_test(test_restore_takes_over_or_copies),
        cmocka_unit_test(test_longer_tail_absorbs_shorter),
        cmocka_unit_test(test_hits_are_counted),
        cmocka_unit_test(test_duplicates_are_merged),
        cmocka_unit_test(test_eviction_is_leaf_first),
        cmocka_unit_test(test_eviction_knows_use),
        cmocka_unit_test(test_entries_move_to_siblings),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_snapshot_settings),
        cmocka_unit_test(test_whose_tail_is_continued),
        cmocka_unit_test(test_restore_with_a_full_pool),
        cmocka_unit_test(test_roots_are_apart),
        cmocka_unit_test(test_many_children),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
