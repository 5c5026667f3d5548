/* SPDX-License-Identifier: MIT
 *
 * Local rows: those of windowed layers, which go when nobody sees them any more.
 */
#include "kv/kv_help.h"

#include "base/mem.h"

/* 3 layers, of which 2 have a window of 100: 4 KiB of payload, 8 KiB of local. */
static const mx_kv_shape shape = {3, 2, 8, MX_KV_F16, 0, 2, 100};
enum { PAYLOAD = 4096, LOCAL = 8192, MAX_TOKENS = 4000 };

static int32_t numbers[MAX_TOKENS];

static int number_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(numbers); i++) {
        numbers[i] = (int32_t)(i * 31 % 1009);
    }
    return 0;
}

static mx_kv_pool *make_pool(size_t n_pages)
{
    mx_kv_pool *pool;
    assert_int_equal(mx_kv_pool_create(&pool, &shape, n_pages, NULL), MX_OK);
    return pool;
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(mx_kv_payload_bytes(&shape), PAYLOAD);
    assert_int_equal(mx_kv_local_bytes(&shape), LOCAL);
    assert_int_equal(mx_kv_page_bytes(&shape), PAYLOAD + LOCAL);
    /* The token at position 99 sees 0..99, the one at 163 sees 64..163. */
    static const size_t seen[][2] = {{0, 0}, {99, 0}, {100, 0}, {162, 0}, {163, 1}, {1000, 14}};
    for (size_t i = 0; i < MX_COUNT(seen); i++) {
        assert_int_equal(mx_kv_first_seen(&shape, seen[i][0]), seen[i][1]);
        assert_int_equal(mx_kv_first_kept(&shape, seen[i][0] + 1), seen[i][1]);
    }
    assert_int_equal(mx_kv_chain_bytes(&shape, 0), 0);
    assert_int_equal(mx_kv_chain_bytes(&shape, 100), 2 * (PAYLOAD + LOCAL));
    assert_int_equal(mx_kv_chain_bytes(&shape, 1001), 16 * PAYLOAD + 2 * LOCAL);
    mx_kv_shape bad[] = {shape, shape, shape};
    bad[0].n_local = 3; /* a page is never empty */
    bad[1].window = 0;
    bad[2].n_local = 0;
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        assert_int_equal(mx_kv_page_bytes(&bad[i]), 0);
    }
}

/* In one piece the layers stand one behind the other, as without windows. */
static void test_one_piece(void **state)
{
    (void)state;
    static uint8_t bytes[PAYLOAD + LOCAL], back[PAYLOAD], local_back[LOCAL];
    mx_kv_pool *pool = make_pool(4);
    mx_page *page = mx_page_alloc(pool);
    for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
        help_write_page_row(&shape, page, row, row);
    }
    mx_page_join(&shape, bytes, page->payload, page->local);
    for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
        assert_true(help_row_is(&shape, bytes, row, row));
    }
    mx_page_part(&shape, back, local_back, bytes);
    assert_memory_equal(back, page->payload, PAYLOAD);
    assert_memory_equal(local_back, page->local, LOCAL);
    assert_ptr_equal(mx_page_local_in(&shape, bytes), bytes + PAYLOAD);
    for (uint32_t n = 1; n < MX_PAGE_TOKENS; n += 13) {
        static uint8_t packed[PAYLOAD + LOCAL], want[PAYLOAD + LOCAL];
        mx_page_pack_rows(&shape, want, bytes, n);
        mx_page_pack_blocks(&shape, packed, page->payload, page->local, n);
        assert_memory_equal(packed, want, mx_kv_rows_bytes(&shape, n));
    }
    mx_page_unref(pool, page);
    mx_kv_pool_destroy(pool);
}

static void test_last_holder_releases(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(4);
    mx_page *page = mx_page_alloc(pool), *other = mx_page_ref(page);
    assert_int_equal(mx_kv_pool_used_bytes(pool), PAYLOAD + LOCAL);
    mx_page_hold_local(page);
    mx_page_hold_local(other);
    mx_page_drop_local(pool, page);
    assert_non_null(page->local);
    mx_page_shed_local(pool, page); /* held */
    assert_non_null(page->local);
    mx_page_drop_local(pool, other);
    assert_null(page->local);
    assert_int_equal(mx_kv_pool_used_bytes(pool), PAYLOAD);
    assert_int_equal(mx_kv_pool_used(pool), 1); /* rounded up */
    mx_kv_pool_check(pool);
    mx_page_unref(pool, other);
    mx_page_unref(pool, page);
    assert_int_equal(mx_kv_pool_used_bytes(pool), 0);
    mx_kv_pool_destroy(pool);
}

static void test_rows_given_later(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(4);
    mx_page *from = mx_page_alloc(pool), *to = mx_page_alloc_payload(pool);
    for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
        help_write_page_row(&shape, from, row, row);
    }
    memcpy(to->payload, from->payload, PAYLOAD);
    assert_false(mx_page_has_local(&shape, to, 0));
    assert_true(mx_page_give_local(pool, to, from, 20));
    assert_true(mx_page_has_local(&shape, to, 20) && !mx_page_has_local(&shape, to, 21));
    assert_true(mx_page_give_local(pool, to, from, 33));
    for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
        assert_int_equal(help_page_row_is(&shape, to, row, row, true), row < 33);
    }
    mx_page_hold_local(from);
    mx_page_unref(pool, to);
    to = mx_page_alloc_payload(pool);
    assert_true(mx_page_move_local(to, from)); /* held by us alone */
    assert_null(from->local);
    mx_page_drop_local(pool, from);
    assert_true(mx_page_has_local(&shape, to, MX_PAGE_TOKENS));
    mx_page_unref(pool, from);
    mx_page_unref(pool, to);
    mx_kv_pool_destroy(pool);
}

/* A page whose rows were released and given back has those of whoever goes on in it, too. */
static void test_rows_behind_given_ones(void **state)
{
    (void)state;
    enum { N_GIVEN = 40, N_END = 100 };
    const mx_hash256 root = {{1}};
    mx_kv_pool *pool = make_pool(8);
    mx_seq first, second, third;
    mx_seq_init(&first, pool, &root);
    assert_int_equal(help_feed(&first, numbers, N_GIVEN), MX_OK);
    mx_page *page = mx_page_ref(first.pages[0]);
    mx_seq_free(&first);
    assert_null(page->local);
    mx_seq_init(&second, pool, &root);
    assert_int_equal(help_feed(&second, numbers, N_END), MX_OK);
    assert_true(mx_page_give_local(pool, page, second.pages[0], N_GIVEN));
    mx_seq_free(&second);

    mx_seq_init(&third, pool, &root);
    assert_int_equal(mx_seq_push_page(&third, page, N_GIVEN), MX_OK);
    for (size_t n = N_GIVEN + 7; n <= N_END; n += 7) {
        assert_int_equal(help_feed(&third, numbers, n), MX_OK);
        mx_seq_check(&third);
        assert_true(mx_page_has_local(&shape, page, (uint32_t)mx_min_size(n, MX_PAGE_TOKENS)));
        help_check_rows(&third, numbers, 0);
    }
    assert_ptr_equal(third.pages[0], page);
    mx_seq_free(&third);
    mx_kv_pool_destroy(pool);
}

/* Memory of one kind that is free serves the other: the budget knows bytes only. */
static void test_one_budget(void **state)
{
    (void)state;
    enum { N = 10, N_PAYLOADS = N * (PAYLOAD + LOCAL) / PAYLOAD };
    mx_kv_pool *pool = make_pool(N);
    mx_page *pages[N_PAYLOADS];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            assert_non_null(pages[i] = mx_page_alloc(pool));
            memset(pages[i]->payload, 0x55, PAYLOAD);
            memset(pages[i]->local, 0x55, LOCAL);
        }
        assert_null(mx_page_alloc(pool));
        assert_null(mx_page_alloc_payload(pool));
        for (int i = 0; i < N; i++) {
            mx_page_unref(pool, pages[i]);
        }
        for (int i = 0; i < N_PAYLOADS; i++) {
            static const uint8_t zeros[PAYLOAD];
            assert_non_null(pages[i] = mx_page_alloc_payload(pool));
            assert_null(pages[i]->local);
            assert_memory_equal(pages[i]->payload, zeros, PAYLOAD);
            mx_kv_pool_check(pool);
        }
        assert_null(mx_page_alloc_payload(pool));
        for (int i = 0; i < N_PAYLOADS; i++) {
            mx_page_unref(pool, pages[i]);
        }
    }
    mx_kv_pool_destroy(pool);
}

/* However long it gets, a sequence has the local rows of a window and of what it computes now. */
static void test_long_sequence(void **state)
{
    (void)state;
    const mx_hash256 root = {{1}};
    mx_kv_pool *pool = make_pool(40); /* 26 whole pages and 63 payloads do not fit */
    mx_seq s;
    mx_seq_init(&s, pool, &root);
    mx_kv_pool_set_poison(pool, true); /* a row of a block that comes back is no row */
    size_t most = 0;
    for (size_t n = 0; n < MAX_TOKENS;) {
        n = mx_min_size(n + 1 + n * 7 % 90, MAX_TOKENS);
        assert_int_equal(help_feed(&s, numbers, n), MX_OK);
        size_t n_local = s.n_pages - s.first_local;
        most = mx_max_size(most, n_local);
        help_check_rows(&s, numbers, 0);
        assert_true(mx_seq_can_go_on(&s));
    }
    assert_true(most <= 5); /* 100 tokens and a step of 90, in pages */
    mx_seq_trim(&s);
    assert_int_equal(mx_kv_pool_used_bytes(pool), mx_kv_chain_bytes(&shape, MAX_TOKENS));
    mx_kv_pool_check(pool);
    mx_seq_free(&s);
    assert_int_equal(mx_kv_pool_used_bytes(pool), 0);
    mx_kv_pool_destroy(pool);
}

static void test_owner_keeps(void **state)
{
    (void)state;
    const mx_hash256 root = {{1}};
    mx_kv_pool *pool = make_pool(40);
    mx_seq s;
    mx_seq_init(&s, pool, &root);
    s.keep_from = 3;
    assert_int_equal(help_feed(&s, numbers, 1000), MX_OK);
    assert_int_equal(help_feed(&s, numbers, 1001), MX_OK);
    assert_int_equal(s.first_local, 3);
    s.keep_from = SIZE_MAX;
    mx_seq_trim(&s);
    assert_int_equal(s.first_local, mx_kv_first_kept(&shape, 1001));
    mx_seq_check(&s);
    mx_seq_free(&s);
    mx_kv_pool_destroy(pool);
}

/* What nobody could go on from is nothing. */
static void test_cut_and_fork(void **state)
{
    (void)state;
    const mx_hash256 root = {{1}};
    mx_kv_pool *pool = make_pool(40);
    mx_seq s, f;
    mx_seq_init(&s, pool, &root);
    assert_int_equal(help_feed(&s, numbers, 1000), MX_OK);
    mx_seq_trim(&s); /* pages 14 and 15 */
    mx_seq_init(&f, pool, &root);
    assert_int_equal(mx_seq_fork(&f, &s, 990), MX_E_INVALID); /* sees row 891, on page 13 */
    assert_int_equal(f.n_tokens, 0);
    assert_int_equal(mx_seq_fork(&f, &s, 999), MX_OK);
    assert_int_equal(help_feed(&f, numbers, 1100), MX_OK);
    help_check_rows(&f, numbers, 0);
    mx_seq_cut(&s, 999);
    assert_int_equal(s.n_tokens, 999);
    assert_int_equal(help_feed(&s, numbers, 1010), MX_OK);
    mx_seq_cut(&s, 500);
    assert_int_equal(s.n_tokens, 0);
    mx_seq_check(&s);
    mx_seq_free(&f);
    mx_seq_free(&s);
    mx_kv_pool_check(pool);
    mx_kv_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_one_piece),
        cmocka_unit_test(test_last_holder_releases),
        cmocka_unit_test(test_rows_given_later),
        cmocka_unit_test(test_rows_behind_given_ones),
        cmocka_unit_test(test_one_budget),
        cmocka_unit_test(test_long_sequence),
        cmocka_unit_test(test_owner_keeps),
        cmocka_unit_test(test_cut_and_fork),
    };
    return cmocka_run_group_tests_name("kv, windows", tests, number_tokens, NULL);
}
