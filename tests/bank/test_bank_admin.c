/* SPDX-License-Identifier: MIT
 *
 * The bank as an administrator sees it: what goes on behind a match, entries by name, pins, removal,
 * and the memory of what was evicted.
 */
#include "kv/kv_help.h"

#include "bank/bank.h"
#include "base/mem.h"

static const mx_kv_shape shape = {2, 2, 4, MX_KV_F16, 0, 0, 0}; /* 4 KiB a page */
static const mx_hash256 root_a = {{1}}, root_b = {{2}};

typedef struct fixture {
    mx_kv_pool *pool;
    mx_bank *bank;
    mx_gone *gone;
    int64_t live;
} fixture;

static fixture open_bank(size_t n_pages)
{
    fixture f = {.live = mx_mem_live()};
    f.gone = mx_gone_create(256);
    mx_bank_config cfg = {.lazy_snapshot = true, .n_hidden = 3, .us_per_token = 1000,
                          .gone = f.gone};
    assert_int_equal(mx_kv_pool_create(&f.pool, &shape, n_pages, NULL), MX_OK);
    assert_int_equal(mx_bank_create(&f.bank, f.pool, &cfg, NULL), MX_OK);
    return f;
}

static void close_bank(fixture *f)
{
    mx_bank_destroy(f->bank);
    assert_int_equal(mx_kv_pool_used(f->pool), 0);
    mx_kv_pool_destroy(f->pool);
    mx_gone_destroy(f->gone);
    assert_int_equal(mx_mem_live(), f->live);
}

/* tokens[0..n-1] = i, but from `fork` on another run of numbers. */
static void fill(int32_t *tokens, size_t n, size_t fork, int32_t branch)
{
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)i + (i >= fork ? 10000 * branch : 0);
    }
}

/* Stores n tokens and gives the entry's name. */
static mx_hash256 store(const fixture *f, const mx_hash256 *root, const int32_t *tokens, size_t n)
{
    mx_seq s;
    mx_seq_init(&s, f->pool, root);
    mx_bank_evict(f->bank, n / MX_PAGE_TOKENS + 2);
    assert_int_equal(help_feed(&s, tokens, n), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(f->bank, &s, MX_ENTRY_TURN, NULL, NULL), MX_OK);
    mx_seq_free(&s);
    mx_bank_check(f->bank);
    mx_hash256 id = *root;
    for (size_t at = 0; at < n; at += MX_PAGE_TOKENS) {
        id = mx_page_identity(root, &id, tokens + at,
                              (uint32_t)mx_min_size(n - at, MX_PAGE_TOKENS));
    }
    return id;
}

static mx_bank_stats stats(const fixture *f)
{
    mx_bank_stats s;
    mx_bank_get_stats(f->bank, &s);
    return s;
}

static size_t common(const fixture *f, const mx_hash256 *root, const int32_t *tokens, size_t n)
{
    int32_t next[8];
    uint32_t n_next;
    return mx_bank_continuation(f->bank, root, tokens, n, next, 8, &n_next);
}

static void what_goes_on(void **state)
{
    (void)state;
    fixture f = open_bank(32);
    int32_t a[200], b[200], next[8];
    uint32_t n_next;
    fill(a, 200, 200, 0);
    store(&f, &root_a, a, 200);
    static const struct { size_t fork, n, n_common; uint32_t n_next; } rows[] = {
        {0, 200, 0, 8},     {1, 200, 1, 8},   {63, 200, 63, 8},  {64, 200, 64, 8},
        {65, 200, 65, 8},   {190, 200, 190, 8}, {195, 200, 195, 5}, {200, 200, 200, 0},
        {100, 60, 60, 0},
    };
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        fill(b, 200, rows[i].fork, 7);
        size_t got = mx_bank_continuation(f.bank, &root_a, b, rows[i].n, next, 8, &n_next);
        bool is_end = rows[i].n_common == rows[i].n; /* nothing is asked behind it */
        if (got != rows[i].n_common || (!is_end && n_next != rows[i].n_next)) {
            fail_msg("row %zu: expected %zu+%u, got %zu+%u", i, rows[i].n_common, rows[i].n_next,
                     got, n_next);
        }
        for (uint32_t k = 0; k < n_next; k++) {
            assert_int_equal(next[k], a[got + k]);
        }
    }
    assert_int_equal(common(&f, &root_b, a, 200), 0); /* another root sees nothing */
    close_bank(&f);
}

typedef struct named {
    mx_hash256 id;
    size_t n;
    bool is_pinned, was_seen;
} named;

static void see(void *arg, const mx_bank_point *p)
{
    named *n = arg;
    mx_hash256 id = mx_bank_point_id(p);
    if (p->is_entry && mx_hash256_eq(&id, &n->id)) {
        n->was_seen = true;
        n->n = p->n_tokens;
        n->is_pinned = p->is_pinned;
    }
}

static named find(const fixture *f, const mx_hash256 *id)
{
    named n = {.id = *id};
    mx_bank_walk(f->bank, see, &n);
    return n;
}

static void names(void **state)
{
    (void)state;
    fixture f = open_bank(32);
    int32_t a[200];
    fill(a, 200, 200, 0);
    static const size_t lengths[] = {1, 63, 64, 65, 128, 200};
    mx_hash256 ids[2 * MX_COUNT(lengths)];
    for (size_t i = 0; i < MX_COUNT(lengths); i++) {
        ids[2 * i] = store(&f, &root_a, a, lengths[i]);
        ids[2 * i + 1] = store(&f, &root_b, a, lengths[i]);
    }
    for (size_t i = 0; i < MX_COUNT(ids); i++) {
        named n = find(&f, &ids[i]);
        assert_true(n.was_seen && !n.is_pinned);
        assert_int_equal(n.n, lengths[i / 2]);
        for (size_t k = 0; k < i; k++) {
            assert_false(mx_hash256_eq(&ids[i], &ids[k]));
        }
    }
    close_bank(&f);
}

static void pins(void **state)
{
    (void)state;
    fixture f = open_bank(16);
    int32_t a[300], b[200];
    fill(a, 300, 300, 0);
    mx_hash256 id = store(&f, &root_a, a, 200), none = {{9}};
    assert_int_equal(mx_bank_pin(f.bank, &none, true, 16), MX_E_NOT_FOUND);
    assert_int_equal(mx_bank_pin(f.bank, &id, true, 3), MX_E_FULL);
    assert_int_equal(mx_bank_pin(f.bank, &id, true, 4), MX_OK);
    assert_int_equal(mx_bank_pin(f.bank, &id, true, 4), MX_OK); /* once more costs nothing */
    for (int32_t i = 1; i <= 40; i++) {
        fill(b, 200, 0, i);
        mx_hash256 other = store(&f, &root_b, b, 200);
        assert_int_equal(mx_bank_pin(f.bank, &other, true, 4), MX_E_FULL);
        assert_int_equal(common(&f, &root_a, a, 200), 200);
    }
    assert_true(stats(&f).evicted_pages > 100);
    mx_bank_clear(f.bank);
    assert_int_equal(stats(&f).n_entries, 1);
    /* The conversation goes on: the pin stays where it was put. */
    store(&f, &root_a, a, 300);
    assert_true(find(&f, &id).is_pinned);
    mx_bank_clear(f.bank);
    assert_true(find(&f, &id).is_pinned);
    assert_true(common(&f, &root_a, a, 300) >= 200);
    store(&f, &root_a, a, 200); /* and refreshing it keeps it */
    assert_true(find(&f, &id).is_pinned);
    assert_int_equal(mx_bank_pin(f.bank, &id, false, 0), MX_OK);
    mx_bank_clear(f.bank);
    mx_bank_check(f.bank);
    assert_int_equal(stats(&f).n_pages, 0);
    id = store(&f, &root_a, a, 200);
    assert_int_equal(mx_bank_pin(f.bank, &id, true, 16), MX_OK);
    mx_bank_forget_all(f.bank);
    assert_int_equal(stats(&f).n_pages, 0);
    close_bank(&f);
}

static void forgetting(void **state)
{
    (void)state;
    fixture f = open_bank(64);
    int32_t a[300], b[300];
    fill(a, 300, 300, 0);
    fill(b, 300, 150, 3);
    mx_hash256 stem = store(&f, &root_a, a, 100), left = store(&f, &root_a, a, 300),
               right = store(&f, &root_a, b, 300);
    size_t n_pages = stats(&f).n_pages;
    assert_int_equal(n_pages, 8); /* two shared, three each */
    assert_int_equal(mx_bank_pin(f.bank, &left, true, 64), MX_OK);
    assert_int_equal(mx_bank_forget(f.bank, &left), MX_OK); /* pinned or not */
    mx_bank_check(f.bank);
    assert_int_equal(mx_bank_forget(f.bank, &left), MX_E_NOT_FOUND);
    assert_int_equal(stats(&f).n_pages, 5);
    assert_int_equal(common(&f, &root_a, b, 300), 300);
    assert_int_equal(common(&f, &root_a, a, 300), 150); /* what the others share */
    assert_true(mx_gone_has(f.gone, &left));
    assert_false(mx_gone_has(f.gone, &right));
    /* A running sequence keeps what it uses; its pages go with it. */
    mx_seq s;
    mx_bank_match m;
    mx_seq_init(&s, f.pool, &root_a);
    assert_int_equal(mx_bank_restore_cache(f.bank, &s, b, 300, 300, &m), MX_OK);
    assert_int_equal(mx_bank_forget(f.bank, &right), MX_OK);
    mx_bank_check(f.bank);
    assert_int_equal(s.n_tokens, 300);
    help_check_rows(&s, b, 0);
    mx_seq_free(&s);
    assert_int_equal(mx_bank_forget(f.bank, &stem), MX_OK);
    mx_bank_clear(f.bank);
    assert_int_equal(stats(&f).n_pages, 0);
    assert_int_equal(stats(&f).n_entries, 0);
    close_bank(&f);
}

/* A session goes: its points on the way there, too, but for what is pinned, and not those behind it. */
static void forgetting_a_chain(void **state)
{
    (void)state;
    fixture f = open_bank(64);
    int32_t a[300], b[300];
    fill(a, 300, 300, 0);
    fill(b, 300, 150, 3);
    mx_hash256 early = store(&f, &root_a, a, 100), held = store(&f, &root_a, a, 130),
               end = store(&f, &root_a, a, 290), behind = store(&f, &root_a, a, 300),
               branch = store(&f, &root_a, b, 300);
    assert_int_equal(mx_bank_pin(f.bank, &held, true, 64), MX_OK);
    assert_int_equal(mx_bank_forget_chain(f.bank, &end), MX_OK);
    mx_bank_check(f.bank);
    assert_int_equal(mx_bank_pin(f.bank, &early, false, 0), MX_E_NOT_FOUND);
    assert_int_equal(mx_bank_pin(f.bank, &end, false, 0), MX_E_NOT_FOUND);
    assert_true(find(&f, &held).is_pinned);
    assert_int_equal(common(&f, &root_a, a, 300), 300); /* behind is a point of its own */
    assert_int_equal(mx_bank_forget_chain(f.bank, &behind), MX_OK);
    mx_bank_check(f.bank);
    assert_int_equal(common(&f, &root_a, a, 300), 192); /* the page in which `held` ends stays whole */
    assert_int_equal(common(&f, &root_a, b, 300), 300);
    assert_int_equal(mx_bank_forget_chain(f.bank, &behind), MX_E_NOT_FOUND);
    assert_int_equal(mx_bank_pin(f.bank, &held, false, 0), MX_OK);
    assert_int_equal(mx_bank_forget_chain(f.bank, &branch), MX_OK);
    assert_int_equal(mx_bank_forget(f.bank, &held), MX_OK);
    assert_int_equal(stats(&f).n_pages, 0);
    close_bank(&f);
}

static void eviction_is_remembered(void **state)
{
    (void)state;
    fixture f = open_bank(8);
    int32_t a[200], b[200];
    fill(a, 200, 200, 0);
    mx_hash256 first = mx_page_identity(&root_a, &root_a, a, MX_PAGE_TOKENS);
    mx_hash256 id = store(&f, &root_a, a, 200);
    assert_false(mx_gone_has(f.gone, &id) || mx_gone_has(f.gone, &first));
    for (int32_t i = 1; i < 8; i++) {
        fill(b, 200, 0, i);
        store(&f, &root_a, b, 200);
    }
    assert_int_equal(common(&f, &root_a, a, 200), 0);
    assert_true(mx_gone_has(f.gone, &id)); /* the tail of 8 rows under its own name */
    assert_true(mx_gone_has(f.gone, &first));
    close_bank(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_on), cmocka_unit_test(names), cmocka_unit_test(pins),
        cmocka_unit_test(forgetting),   cmocka_unit_test(eviction_is_remembered),
        cmocka_unit_test(forgetting_a_chain),   cmocka_unit_test(eviction_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
