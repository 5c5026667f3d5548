/* SPDX-License-Identifier: MIT
 *
 * Entries of models with windowed layers when memory is short.
 */
#include "kv/kv_help.h"

#include "bank/bank.h"

/* Two blocks of 4 KiB a page. */
static const mx_kv_shape shape = {2, 2, 4, MX_KV_F16, 0, 1, 70};
enum { N_PAGES = 16, N_LONG = 300, N_SHORT = 60, N_SHARED = 40 };

static void store(mx_bank *b, mx_seq *s, const int32_t *tokens, size_t n)
{
    assert_int_equal(help_feed(s, tokens, n), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(b, s, MX_ENTRY_TURN, NULL, NULL), MX_OK);
}

/* The place in a page where two texts part is kept in the first of them. When that one is evicted the other
 * takes it over, with its rows, though there is no memory: what goes has some. */
static void test_place_outlives_its_page(void **state)
{
    (void)state;
    const mx_hash256 root = {{1}};
    int32_t longer[N_LONG], shorter[N_SHORT];
    for (int i = 0; i < N_LONG; i++) {
        longer[i] = i * 31 % 1009;
    }
    memcpy(shorter, longer, sizeof shorter);
    shorter[N_SHARED] = longer[N_SHARED] - 1;
    mx_kv_pool *pool;
    mx_bank *b;
    mx_seq s;
    assert_int_equal(mx_kv_pool_create(&pool, &shape, N_PAGES, NULL), MX_OK);
    assert_int_equal(mx_bank_create(&b, pool, &(mx_bank_config){.lazy_snapshot = true}, NULL), MX_OK);
    mx_seq_init(&s, pool, &root);
    store(b, &s, longer, N_LONG);
    mx_seq_free(&s);
    mx_seq_init(&s, pool, &root);
    store(b, &s, shorter, N_SHORT);
    assert_int_equal(mx_bank_keep_window(b, &s, N_SHARED), MX_OK);
    mx_seq_free(&s);
    mx_bank_match m;
    mx_bank_lookup(b, &root, longer, N_SHARED + 1, &m);
    assert_int_equal(m.n_tokens, N_SHARED);

    mx_page *rest[2 * N_PAGES];
    size_t n_rest = 0;
    while ((rest[n_rest] = mx_page_alloc_payload(pool)) != NULL) {
        n_rest++;
    }
    assert_true(mx_bank_evict(b, 1) > 0);
    mx_bank_check(b);
    mx_kv_pool_check(pool);
    mx_bank_lookup(b, &root, shorter, N_SHORT, &m);
    assert_int_equal(m.n_shared, N_SHARED); /* it is the shorter one that went */
    assert_int_equal(m.n_tokens, N_SHARED);
    mx_seq_init(&s, pool, &root);
    assert_int_equal(mx_bank_restore_cache(b, &s, shorter, N_SHORT, N_SHORT, &m), MX_OK);
    assert_int_equal(s.n_tokens, N_SHARED);
    help_check_rows(&s, shorter, 0);
    mx_seq_free(&s);
    while (n_rest > 0) {
        mx_page_unref(pool, rest[--n_rest]);
    }
    mx_bank_destroy(b);
    mx_kv_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place_outlives_its_page),
    };
    return cmocka_run_group_tests_name("bank, windows", tests, NULL, NULL);
}
