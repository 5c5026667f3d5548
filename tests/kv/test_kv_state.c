/* SPDX-License-Identifier: MIT
 *
 * Recurrent states: their life beside the pages of a sequence, and the budget that both share.
 */
#include "kv/kv_help.h"

#include "base/mem.h"

#include <stdlib.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif

/* 4 KiB a page; a state takes three of them. */
static const mx_kv_shape shape = {2, 2, 4, MX_KV_F16, 2 * 4096 + 64, 0, 0};
static const mx_hash256 root = {{9}};

enum { STATE_PAGES = 3 };

static int32_t numbers[40 * MX_PAGE_TOKENS];

static mx_kv_pool *make_pool(const mx_kv_shape *s, size_t n_pages)
{
    mx_kv_pool *pool;
    mx_errbuf eb;
    if (mx_kv_pool_create(&pool, s, n_pages, &eb) != MX_OK) {
        fail_msg("%s", eb.text);
    }
    return pool;
}

static int number_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(numbers); i++) {
        numbers[i] = (int32_t)(i * 37 % 1013);
    }
    return 0;
}

static void test_smallest_pool(void **state)
{
    (void)state;
    mx_kv_pool *pool;
    mx_errbuf eb;
    assert_int_equal(mx_kv_pool_create(&pool, &shape, 2 * STATE_PAGES, &eb), MX_E_LIMIT);
    assert_null(pool);
    pool = make_pool(&shape, 2 * STATE_PAGES + 1);
    assert_int_equal(mx_kv_pool_state_pages(pool), STATE_PAGES);
    mx_seq a;
    mx_seq_init(&a, pool, &root);
    for (size_t n = 1; n <= MX_PAGE_TOKENS; n++) {
        assert_int_equal(help_feed(&a, numbers, n), MX_OK);
        help_check_rows(&a, numbers, 0);
        mx_kv_pool_check(pool);
    }
    assert_int_equal(help_feed(&a, numbers, MX_PAGE_TOKENS + 1), MX_E_FULL);
    assert_null(a.next);
    help_check_rows(&a, numbers, 0);
    mx_seq_free(&a);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

/* A state is aligned, counts as pages, is shared by reference, and its memory comes round again. */
static void test_alloc(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&shape, 10);
    mx_kvstate *st[3];
    for (int i = 0; i < 3; i++) {
        assert_non_null(st[i] = mx_kvstate_alloc(pool));
        assert_int_equal((uintptr_t)st[i]->data % 64, 0);
        assert_true(st[i]->refs == 1 && st[i]->n_tokens == 0);
        help_write_state(&shape, st[i], 5, (uint64_t)i);
        assert_int_equal(mx_kv_pool_used(pool), (size_t)(i + 1) * STATE_PAGES);
        mx_kv_pool_check(pool);
    }
    assert_null(mx_kvstate_alloc(pool));
    mx_page *page = mx_page_alloc(pool); /* the tenth */
    assert_non_null(page);
    assert_null(mx_page_alloc(pool));
    for (int i = 0; i < 3; i++) {
        assert_true(help_state_is(&shape, st[i], 5, (uint64_t)i));
    }
    assert_ptr_equal(mx_kvstate_ref(st[1]), st[1]);
    mx_kvstate_unref(pool, st[1]);
    assert_int_equal(mx_kv_pool_used(pool), 10);
    mx_kvstate_unref(pool, st[1]);
    assert_int_equal(mx_kv_pool_used(pool), 7);
    mx_kv_pool_check(pool);
    uint64_t n_calls = mx_mem_calls();
    mx_kv_pool_set_poison(pool, true);
    assert_ptr_equal(mx_kvstate_alloc(pool), st[1]);
    assert_int_equal(st[1]->n_tokens, 0);
    for (size_t i = 0; i < shape.state_bytes; i++) {
        assert_int_equal(st[1]->data[i], 0xFF);
    }
    assert_int_equal(mx_mem_calls(), n_calls);
    for (int i = 0; i < 3; i++) {
        mx_kvstate_unref(pool, st[i]);
    }
    mx_kvstate_unref(pool, NULL);
    mx_page_unref(pool, page);
    mx_kv_pool_check(pool);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

/* All of the budget as pages, then as states, and back: what is resident never exceeds it (that is
 * what mx_kv_pool_check looks at), and pages whose memory went away come back as zeros. */
static void test_one_budget(void **state)
{
    (void)state;
    enum { N = 600, N_STATES = N / STATE_PAGES };
    mx_kv_pool *pool = make_pool(&shape, N);
    mx_page **pages = mx_calloc(N, sizeof *pages);
    mx_kvstate **states = mx_calloc(N_STATES, sizeof *states);
    uint8_t zeros[4096] = {0};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            assert_non_null(pages[i] = mx_page_alloc(pool));
            assert_memory_equal(pages[i]->payload, zeros, sizeof zeros);
            memset(pages[i]->payload, 0x33, sizeof zeros);
        }
        assert_null(mx_page_alloc(pool));
        assert_null(mx_kvstate_alloc(pool));
        for (int i = 0; i < N; i++) {
            mx_page_unref(pool, pages[i]);
        }
        while (round == 1 && mx_kv_pool_idle(pool)) {
        }
        for (int i = 0; i < N_STATES; i++) {
            assert_non_null(states[i] = mx_kvstate_alloc(pool));
            help_write_state(&shape, states[i], 1, (uint64_t)i);
            mx_kv_pool_check(pool);
        }
        assert_null(mx_page_alloc(pool));
        assert_null(mx_kvstate_alloc(pool));
        assert_false(mx_kv_pool_idle(pool));
        for (int i = 0; i < N_STATES; i++) {
            assert_true(help_state_is(&shape, states[i], 1, (uint64_t)i));
            mx_kvstate_unref(pool, states[i]);
        }
        mx_kv_pool_check(pool);
    }
    /* Idle work must not take the memory of recycled states. */
    while (mx_kv_pool_idle(pool)) {
        mx_kv_pool_check(pool);
    }
    mx_free(pages);
    mx_free(states);
    mx_kv_pool_destroy(pool);
}

static size_t resident_bytes(void)
{
    size_t n_all = 0, n_resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu %zu", &n_all, &n_resident), 2);
    fclose(f);
    return n_resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* All pages of the pool at once: what is resident then. */
static size_t resident_with_all_pages(mx_kv_pool *pool, mx_page **pages, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_non_null(pages[i] = mx_page_alloc(pool));
        memset(pages[i]->payload, 0x66, 4096); /* an emulator does not fault pages in ahead */
    }
    const size_t bytes = resident_bytes();
    for (size_t i = 0; i < n; i++) {
        mx_page_unref(pool, pages[i]);
    }
    return bytes;
}

/* Large states give their memory back when pages want it, though the heap has learnt to serve such
 * sizes itself (glibc does so once a larger block was freed) and small blocks stand behind them. */
static void test_large_states_give_back(void **state)
{
    (void)state;
    enum { STATE_BYTES = 5 << 20, N = 4, N_PAGES = 2 * N * (STATE_BYTES / 4096), SLACK = 4 << 20 };
    const mx_kv_shape large = {2, 2, 4, MX_KV_F16, STATE_BYTES, 0, 0};
    void *small[2][N];
    mx_kv_pool *pool = make_pool(&large, N_PAGES);
    mx_page **pages = mx_calloc(N_PAGES, sizeof *pages);
    assert_non_null(pages);
    mx_free(mx_alloc(4 * STATE_BYTES));
    const size_t want = resident_with_all_pages(pool, pages, N_PAGES);
    for (int round = 0; round < 2; round++) {
        mx_kvstate *states[N];
        for (int i = 0; i < N; i++) {
            assert_non_null(states[i] = mx_kvstate_alloc(pool));
            memset(states[i]->data, 0x55, STATE_BYTES);
            assert_non_null(small[round][i] = mx_calloc(1, 1000));
        }
        for (int i = 0; i < N; i++) {
            mx_kvstate_unref(pool, states[i]);
        }
        mx_kv_pool_check(pool);
        const size_t got = resident_with_all_pages(pool, pages, N_PAGES);
        if (!IS_SANITIZED && got > want + SLACK) { /* a sanitizer holds freed memory back */
            fail_msg("round %d: %zu bytes are resident, expected %zu", round, got, want);
        }
    }
    for (int i = 0; i < N; i++) {
        mx_free(small[0][i]);
        mx_free(small[1][i]);
    }
    mx_free(pages);
    mx_kv_pool_destroy(pool);
}

static void test_reserve_commit_rollback(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&shape, 20);
    mx_seq a;
    mx_seq_init(&a, pool, &root);
    assert_int_equal(mx_seq_reserve(&a, 70), MX_OK);
    assert_non_null(a.next);
    assert_null(a.state);
    assert_int_equal(mx_kv_pool_used(pool), 2 + STATE_PAGES);
    mx_seq_check(&a);
    mx_seq_rollback(&a); /* a cancelled chunk */
    assert_null(a.next);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    assert_int_equal(help_feed(&a, numbers, 70), MX_OK);
    mx_kvstate *first = a.state;
    assert_non_null(first);
    assert_null(a.next);

    /* More rows than are computed: what is left is no use without a place for the next state. */
    assert_int_equal(mx_seq_reserve(&a, 40), MX_OK);
    help_write_state(&shape, a.next, 80, help_prefix_hash(numbers, 80));
    uint64_t h = help_prefix_hash(numbers, 70);
    for (uint32_t i = 70; i < 80; i++) {
        h = help_extend(h, numbers[i]);
        help_write_row(&shape, help_page_of(&a, i)->payload, i % MX_PAGE_TOKENS, h);
    }
    mx_seq_commit(&a, numbers + 70, 10);
    help_check_rows(&a, numbers, 0);
    assert_true(a.n_reserved == 30 && a.next == NULL);
    assert_int_equal(mx_seq_reserve(&a, 5), MX_OK);
    assert_non_null(a.next);
    assert_int_equal(a.n_reserved, 30);
    mx_seq_check(&a);
    mx_kv_pool_check(pool);

    /* A rollback leaves the state as it was. */
    memset(a.next->data, 0xEE, shape.state_bytes);
    mx_seq_rollback(&a);
    help_check_rows(&a, numbers, 0);
    assert_int_equal(mx_kv_pool_used(pool), 2 + STATE_PAGES);
    mx_seq_free(&a);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

/* There is room for the rows, but not for the state; or the other way round. */
static void test_full(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&shape, 2 * STATE_PAGES + 3);
    mx_seq a;
    mx_seq_init(&a, pool, &root);
    assert_int_equal(help_feed(&a, numbers, 10), MX_OK);
    mx_page *others[3];
    for (int i = 0; i < 3; i++) {
        assert_non_null(others[i] = mx_page_alloc(pool));
    }
    assert_int_equal(mx_seq_reserve(&a, 1), MX_E_FULL);
    assert_true(a.next == NULL && a.n_reserved == 0);
    help_check_rows(&a, numbers, 0);
    mx_page_unref(pool, others[2]);
    assert_int_equal(mx_seq_reserve(&a, 1), MX_OK);
    assert_int_equal(mx_seq_reserve(&a, 60), MX_E_FULL);
    assert_true(a.next != NULL && a.n_reserved == 1);
    mx_seq_check(&a);
    mx_seq_free(&a);
    mx_page_unref(pool, others[0]);
    mx_page_unref(pool, others[1]);
    mx_kv_pool_destroy(pool);
}

static void test_fork_and_cut(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&shape, 40);
    mx_seq a, b, c, d;
    mx_seq_init(&a, pool, &root);
    mx_seq_init(&b, pool, &root);
    mx_seq_init(&c, pool, &root);
    mx_seq_init(&d, pool, &root);
    assert_int_equal(help_feed(&a, numbers, 100), MX_OK);
    assert_int_equal(mx_seq_fork(&b, &a, 99), MX_E_INVALID);
    assert_true(b.n_tokens == 0 && b.state == NULL);
    assert_int_equal(mx_seq_fork(&b, &a, 0), MX_OK);
    assert_int_equal(mx_seq_fork(&b, &a, 100), MX_OK);
    assert_ptr_equal(b.state, a.state);
    assert_int_equal(a.state->refs, 2);
    int32_t other[140];
    memcpy(other, numbers, sizeof other);
    for (int i = 100; i < 140; i++) {
        other[i] = 3000 + i;
    }
    assert_int_equal(help_feed(&b, other, 140), MX_OK);
    assert_int_equal(help_feed(&a, numbers, 130), MX_OK);
    help_check_rows(&a, numbers, 0);
    help_check_rows(&b, other, 0);
    mx_kv_pool_check(pool);

    mx_seq_cut(&a, 130);
    assert_int_equal(a.n_tokens, 130);
    help_check_rows(&a, numbers, 0);
    assert_int_equal(mx_seq_fork(&c, &a, 130), MX_OK);
    mx_seq_cut(&c, 129);
    assert_true(c.n_tokens == 0 && c.n_pages == 0 && c.state == NULL);
    mx_seq_check(&c);
    assert_int_equal(help_feed(&c, numbers, 131), MX_OK);
    help_check_rows(&c, numbers, 0);

    /* As a restore does it: pages first, then the state of that very position. */
    for (size_t i = 0; i < a.n_pages; i++) {
        mx_page *page = mx_page_ref(a.pages[i]);
        uint32_t n = i < 2 ? MX_PAGE_TOKENS : 2;
        assert_int_equal(mx_seq_push_page(&d, page, n), MX_OK);
    }
    assert_int_equal(mx_seq_set_state(&d, mx_kvstate_ref(a.state)), MX_OK);
    help_check_rows(&d, numbers, 0);
    assert_int_equal(help_feed(&d, numbers, 200), MX_OK);
    help_check_rows(&d, numbers, 0);
    help_check_rows(&a, numbers, 0);
    mx_kv_pool_check(pool);
    mx_seq_free(&a);
    mx_seq_free(&b);
    mx_seq_free(&c);
    mx_seq_free(&d);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

/* The second round of a sequence takes no memory from the heap. */
static void test_steady_state(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&shape, 20);
    mx_seq a;
    mx_seq_init(&a, pool, &root);
    assert_int_equal(help_feed(&a, numbers, 1), MX_OK);
    assert_int_equal(help_feed(&a, numbers, 2), MX_OK);
    uint64_t n_calls = mx_mem_calls();
    for (size_t n = 3; n < MX_PAGE_TOKENS; n++) {
        assert_int_equal(help_feed(&a, numbers, n), MX_OK);
    }
    assert_int_equal(mx_mem_calls(), n_calls);
    mx_seq_free(&a);
    mx_kv_pool_destroy(pool);
}

static mx_err all_operations(void)
{
    mx_kv_pool *pool;
    mx_err e = mx_kv_pool_create(&pool, &shape, 40, NULL);
    if (e != MX_OK) {
        return e;
    }
    mx_seq a, b;
    mx_seq_init(&a, pool, &root);
    mx_seq_init(&b, pool, &root);
    e = help_feed(&a, numbers, 300);
    if (e == MX_OK) {
        e = mx_seq_fork(&b, &a, 300);
    }
    if (e == MX_OK) {
        e = help_feed(&b, numbers, 500);
    }
    help_check_rows(&a, numbers, 0);
    help_check_rows(&b, numbers, 0);
    mx_kv_pool_check(pool);
    mx_seq_free(&a);
    mx_seq_free(&b);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
    return e;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    int64_t live = mx_mem_live();
    uint64_t k = 1;
    for (;; k++) {
        mx_mem_fail_at(k);
        mx_err e = all_operations();
        mx_mem_fail_at(0);
        assert_int_equal(mx_mem_live(), live);
        if (e == MX_OK) {
            break;
        }
        assert_true(e == MX_E_NOMEM || e == MX_E_FULL);
    }
    assert_true(k > 8); /* the states' memory was among what failed */
}

/* Random histories of a few sequences against plain token lists. */
static void random_history(uint64_t seed)
{
    enum { N_SEQS = 4, MAX_TOKENS = 300, N_STEPS = 250 };
    uint64_t rng = seed;
    mx_kv_pool *pool = make_pool(&shape, 30);
    mx_seq seqs[N_SEQS];
    int32_t tokens[N_SEQS][MAX_TOKENS];
    for (int i = 0; i < N_SEQS; i++) {
        mx_seq_init(&seqs[i], pool, &root);
    }
    for (int step = 0; step < N_STEPS; step++) {
        uint32_t i = help_rand(&rng, N_SEQS), j = help_rand(&rng, N_SEQS);
        mx_seq *s = &seqs[i];
        switch (help_rand(&rng, 8)) {
        case 0:
            if (i != j) {
                size_t n = seqs[j].n_tokens;
                mx_seq_free(s);
                mx_seq_init(s, pool, &root);
                assert_int_equal(mx_seq_fork(s, &seqs[j], n), MX_OK);
                memcpy(tokens[i], tokens[j], n * sizeof **tokens);
            }
            break;
        case 1: {
            size_t old = s->n_tokens, n = help_rand(&rng, (uint32_t)old + 1);
            mx_seq_cut(s, n);
            assert_int_equal(s->n_tokens, n == old ? n : 0);
            break;
        }
        case 2:
            (void)mx_seq_reserve(s, help_rand(&rng, 100));
            break;
        case 3:
            mx_seq_rollback(s);
            break;
        case 4:
            (void)mx_kv_pool_idle(pool);
            break;
        default: {
            size_t n = mx_min_size(s->n_tokens + 1 + help_rand(&rng, 90), MAX_TOKENS);
            for (size_t t = s->n_tokens; t < n; t++) {
                tokens[i][t] = (int32_t)help_rand(&rng, 3);
            }
            mx_err e = n > s->n_tokens ? help_feed(s, tokens[i], n) : MX_OK;
            assert_true(e == MX_OK || (e == MX_E_FULL && mx_kv_pool_used(pool) > 15));
            break;
        }
        }
        for (int k = 0; k < N_SEQS; k++) {
            help_check_rows(&seqs[k], tokens[k], seed);
        }
        mx_kv_pool_check(pool);
    }
    for (int i = 0; i < N_SEQS; i++) {
        mx_seq_free(&seqs[i]);
        mx_kv_pool_check(pool);
    }
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

static void test_random_histories(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        random_history(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smallest_pool),
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_one_budget),
        cmocka_unit_test(test_large_states_give_back),
        cmocka_unit_test(test_reserve_commit_rollback),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_fork_and_cut),
        cmocka_unit_test(test_steady_state),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_random_histories),
    };
    return cmocka_run_group_tests(tests, number_tokens, NULL);
}
