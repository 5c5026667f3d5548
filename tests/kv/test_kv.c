/* SPDX-License-Identifier: MIT
 *
 * Pages, the pool and sequences.
 */
#include "kv/kv_help.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kv/kv_arena.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const mx_kv_shape f16_shape = {2, 2, 4, MX_KV_F16, 0, 0, 0};
static const mx_kv_shape f32_shape = {3, 1, 6, MX_KV_F32, 0, 0, 0};
static const mx_kv_shape q8_shape = {2, 3, 5, MX_KV_Q8, 0, 0, 0};
static const mx_hash256 root = {{7}};

static int32_t numbers[40 * MX_PAGE_TOKENS];

static mx_kv_pool *make_pool(const mx_kv_shape *shape, size_t n_pages)
{
    mx_kv_pool *pool;
    mx_errbuf eb;
    if (mx_kv_pool_create(&pool, shape, n_pages, &eb) != MX_OK) {
        fail_msg("%s", eb.text);
    }
    return pool;
}

static int number_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(numbers); i++) {
        numbers[i] = (int32_t)(i * 31 % 1009);
    }
    return 0;
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(mx_kv_page_bytes(&f16_shape), 4096);
    /* 3 layers x 1 head x 2 tiles x 6 x 64 x 4 = 9216, rounded up */
    assert_int_equal(mx_kv_page_bytes(&f32_shape), 12288);
    assert_int_equal(mx_kv_rows_bytes(&f32_shape, 5), 3 * 2 * 6 * 4 * 5);
    /* 2 layers x 3 heads x 2 tiles x 64 x (5 + 4) = 6912 */
    assert_int_equal(mx_kv_page_bytes(&q8_shape), 8192);
    assert_int_equal(mx_kv_rows_bytes(&q8_shape, 7), 2 * 3 * 2 * 7 * (5 + 4));
    assert_int_equal(mx_kv_rows_bytes(&f32_shape, 0), 0);
    assert_int_equal(mx_kv_rows_bytes(&f32_shape, 65), 0);
    mx_kv_shape bad[] = {{0, 1, 64, MX_KV_F16, 0, 0, 0},          {1, 0, 64, MX_KV_F16, 0, 0, 0},
                         {1, 1, 0, MX_KV_F16, 0, 0, 0},           {UINT32_MAX, 1, 64, MX_KV_F16, 0, 0, 0},
                         {1 << 16, 1 << 16, 1 << 16, MX_KV_F32, 0, 0, 0}, {1, 1, 64, (mx_kv_type)9, 0, 0, 0},
                         {1, 1, 64, MX_KV_F16, SIZE_MAX, 0, 0}};
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        assert_int_equal(mx_kv_page_bytes(&bad[i]), 0);
        mx_kv_pool *pool;
        assert_int_equal(mx_kv_pool_create(&pool, &bad[i], 4, NULL), MX_E_INVALID);
        assert_null(pool);
    }
    mx_kv_pool *pool;
    assert_int_equal(mx_kv_pool_create(&pool, &f16_shape, 0, NULL), MX_E_INVALID);
    assert_int_equal(mx_kv_pool_create(&pool, &f16_shape, SIZE_MAX / 4096, NULL), MX_E_INVALID);
}

/* Every element has a place of its own, and moving rows moves those and no others. */
static void check_rows_move(const mx_kv_shape *s)
{
    mx_kv_pool *pool = make_pool(s, 3);
    size_t page_bytes = mx_kv_page_bytes(s);
    mx_page *a = mx_page_alloc(pool), *b = mx_page_alloc(pool);
    for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
        help_write_row(s, a->payload, row, row);
    }
    for (uint32_t n = 0; n <= MX_PAGE_TOKENS; n++) {
        memset(b->payload, 0xA5, page_bytes);
        mx_page_copy_rows(s, b->payload, a->payload, n);
        size_t n_left = 0;
        for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
            assert_int_equal(help_row_is(s, b->payload, row, row), row < n);
        }
        for (size_t i = 0; i < page_bytes; i++) {
            n_left += b->payload[i] == 0xA5;
        }
        /* Some of the copied bytes may be 0xA5 by chance; none of the others may have changed. */
        assert_true(n_left >= page_bytes - mx_kv_rows_bytes(s, n));

        uint8_t *packed = mx_alloc(mx_kv_rows_bytes(s, n) + 1);
        packed[mx_kv_rows_bytes(s, n)] = 0x5A;
        mx_page_pack_rows(s, packed, a->payload, n);
        assert_int_equal(packed[mx_kv_rows_bytes(s, n)], 0x5A);
        memset(b->payload, 0, page_bytes);
        mx_page_unpack_rows(s, b->payload, packed, n);
        for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
            assert_int_equal(help_row_is(s, b->payload, row, row), row < n);
        }
        mx_free(packed);

        /* Poison reaches exactly the rows from n on. */
        memcpy(b->payload, a->payload, page_bytes);
        b->n_rows = n;
        mx_page_poison_tail(s, b);
        for (uint32_t row = 0; row < MX_PAGE_TOKENS; row++) {
            uint8_t ones[4] = {0xFF, 0xFF, 0xFF, 0xFF};
            const void *last = help_elem(s, b->payload, row, help_n_elems(s) - 1);
            assert_int_equal(memcmp(last, ones, mx_kv_elem_bytes(s->type)) == 0, row >= n);
            last = help_scale(s, b->payload, row, help_n_elems(s) / s->head_dim - 1);
            assert_true(row < n || memcmp(last, ones, mx_kv_scale_bytes(s->type)) == 0);
            assert_int_equal(help_row_is(s, b->payload, row, row), row < n);
        }
    }
    b->n_rows = 0;
    mx_page_unref(pool, a);
    mx_page_unref(pool, b);
    mx_kv_pool_check(pool);
    mx_kv_pool_destroy(pool);
}

static void test_rows_move(void **state)
{
    (void)state;
    check_rows_move(&f16_shape);
    check_rows_move(&f32_shape);
    check_rows_move(&q8_shape);
}

/* The packed form is what docs/file-format.md says: tile after tile, K [head_dim][n], V
 * [n][head_dim]. */
static void test_packed_layout(void **state)
{
    (void)state;
    const mx_kv_shape s = {1, 1, 3, MX_KV_F16, 0, 0, 0};
    mx_kv_pool *pool = make_pool(&s, 1);
    mx_page *page = mx_page_alloc(pool);
    for (uint32_t row = 0; row < 2; row++) {
        for (uint32_t e = 0; e < 6; e++) {
            uint16_t v = (uint16_t)(100 * row + e);
            memcpy(help_elem(&s, page->payload, row, e), &v, 2);
        }
    }
    uint16_t out[12];
    const uint16_t expected[12] = {0, 100, 1, 101, 2, 102, 3, 4, 5, 103, 104, 105};
    assert_int_equal(mx_kv_rows_bytes(&s, 2), sizeof out);
    mx_page_pack_rows(&s, (uint8_t *)out, page->payload, 2);
    assert_memory_equal(out, expected, sizeof out);
    mx_page_unref(pool, page);
    mx_kv_pool_destroy(pool);
}

/* The same with scales: each tile's behind it. */
static void test_packed_scales(void **state)
{
    (void)state;
    const mx_kv_shape s = {1, 1, 2, MX_KV_Q8, 0, 0, 0};
    mx_kv_pool *pool = make_pool(&s, 1);
    mx_page *page = mx_page_alloc(pool);
    for (uint32_t row = 0; row < 2; row++) {
        for (uint32_t e = 0; e < 4; e++) {
            *help_elem(&s, page->payload, row, e) = (uint8_t)(16 * row + e);
        }
        for (uint32_t tile = 0; tile < 2; tile++) {
            memset(help_scale(&s, page->payload, row, tile), (int)(0xA0 + 16 * row + tile), 4);
        }
    }
    uint8_t out[24];
    const uint8_t expected[24] = {0, 16, 1, 17, 0xA0, 0xA0, 0xA0, 0xA0, 0xB0, 0xB0, 0xB0, 0xB0,
                                  2, 3, 18, 19, 0xA1, 0xA1, 0xA1, 0xA1, 0xB1, 0xB1, 0xB1, 0xB1};
    assert_int_equal(mx_kv_rows_bytes(&s, 2), sizeof out);
    mx_page_pack_rows(&s, out, page->payload, 2);
    assert_memory_equal(out, expected, sizeof out);
    mx_page_unref(pool, page);
    mx_kv_pool_destroy(pool);
}

/* Frozen: this is the name of a page on disk. */
static void test_identity(void **state)
{
    (void)state;
    const int32_t tokens[3] = {1, -2, 70000};
    mx_hash256 r, parent;
    uint8_t bytes[16 + 64 + 8 + 12] = "mtplx page v1";
    for (int i = 0; i < 32; i++) {
        r.b[i] = (uint8_t)i;
        parent.b[i] = (uint8_t)(100 + i);
        bytes[16 + i] = r.b[i];
        bytes[48 + i] = parent.b[i];
    }
    mx_put_le32(bytes + 80, 0);
    mx_put_le32(bytes + 84, 3);
    for (int i = 0; i < 3; i++) {
        mx_put_le32(bytes + 88 + 4 * i, (uint32_t)tokens[i]);
    }
    mx_hash256 expected = mx_sha256_of(bytes, sizeof bytes);
    mx_hash256 got = mx_page_identity(&r, &parent, tokens, 3);
    assert_memory_equal(got.b, expected.b, 32);
    char hex[65];
    mx_hash256_hex(&got, hex);
    assert_string_equal(hex, "8c801e68ef104bfae68427d2dc1c43de409a2cca4e93eb91536aedbc3465df28");
    got = mx_page_identity(&r, &parent, tokens, 2);
    assert_memory_not_equal(got.b, expected.b, 32);
}

static void test_recycled_pages_are_zero(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&f32_shape, 5);
    size_t n_bytes = mx_kv_pool_page_bytes(pool);
    uint8_t *zeros = mx_calloc(1, n_bytes);
    mx_page *pages[5];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 5; i++) {
            pages[i] = mx_page_alloc(pool);
            assert_non_null(pages[i]);
            assert_int_equal((uintptr_t)pages[i]->payload % 4096, 0);
            assert_memory_equal(pages[i]->payload, zeros, n_bytes);
            assert_true(pages[i]->refs == 1 && pages[i]->n_rows == 0 && pages[i]->parent == NULL);
            memset(pages[i]->payload, 0x77, n_bytes);
            pages[i]->tokens[0] = 9;
        }
        assert_null(mx_page_alloc(pool));
        assert_int_equal(mx_kv_pool_used(pool), 5);
        mx_kv_pool_check(pool);
        for (int i = 0; i < 5; i++) {
            mx_page_unref(pool, pages[i]);
        }
        mx_page_unref(pool, NULL);
        int n_idle = 0;
        while (round % 2 == 1 && mx_kv_pool_idle(pool)) {
            n_idle++;
            mx_kv_pool_check(pool);
        }
        assert_int_equal(n_idle, round % 2 == 1 ? 5 : 0);
        assert_int_equal(mx_kv_pool_used(pool), 0);
        mx_kv_pool_check(pool);
    }
    mx_kv_pool_set_poison(pool, true);
    pages[0] = mx_page_alloc(pool);
    for (size_t i = 0; i < n_bytes; i++) {
        assert_int_equal(pages[0]->payload[i], 0xFF);
    }
    mx_page_unref(pool, pages[0]);
    mx_kv_pool_set_poison(pool, false);
    pages[0] = mx_page_alloc(pool);
    assert_memory_equal(pages[0]->payload, zeros, n_bytes);
    mx_page_unref(pool, pages[0]);
    mx_free(zeros);
    mx_kv_pool_destroy(pool);
}

static mx_pool *make_workers(void)
{
    mx_pool *workers;
    mx_errbuf eb;
    if (mx_pool_create(&workers, 3, &eb) != MX_OK) {
        fail_msg("%s", eb.text);
    }
    return workers;
}

static void fill_slabs(mx_pool *workers)
{
    const mx_kv_shape s = {8, 2, 64, MX_KV_F32, 0, 0, 0}; /* 512 KiB a page */
    enum { N = 100 };
    mx_kv_pool *pool = make_pool(&s, N);
    mx_kv_pool_set_workers(pool, workers);
    mx_page *pages[N];
    assert_int_equal(mx_kv_pool_max(pool), N);
    assert_true(mx_kv_pool_idle(pool)); /* the first slab ahead of its use */
    assert_false(mx_kv_pool_idle(pool));
    for (int i = 0; i < N; i++) {
        pages[i] = mx_page_alloc(pool);
        assert_non_null(pages[i]);
        memcpy(pages[i]->payload, &i, sizeof i);
        memcpy(pages[i]->payload + mx_kv_page_bytes(&s) - sizeof i, &i, sizeof i);
        mx_kv_pool_check(pool);
    }
    assert_null(mx_page_alloc(pool));
    assert_false(mx_kv_pool_idle(pool)); /* nothing left to commit */
    for (int i = 0; i < N; i++) {
        assert_memory_equal(pages[i]->payload, &i, sizeof i);
        assert_memory_equal(pages[i]->payload + mx_kv_page_bytes(&s) - sizeof i, &i, sizeof i);
        mx_page_unref(pool, pages[i]);
    }
    mx_kv_pool_destroy(pool);
}

/* A pool of several slabs hands out all of its pages, each at its own place, whoever populates
 * them. */
static void test_slabs(void **state)
{
    (void)state;
    fill_slabs(NULL);
    mx_pool *workers = make_workers();
    fill_slabs(workers);
    mx_pool_destroy(workers);
}

/* qemu-user answers 0 to every advice, also to one that does not exist, and follows none. */
static void skip_where_advice_is_ignored(void)
{
    enum { NO_ADVICE = 999 };
    void *at = mmap(NULL, MX_HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    const bool is_ignored = madvise(at, MX_HUGE_PAGE, NO_ADVICE) == 0;
    assert_int_equal(munmap(at, MX_HUGE_PAGE), 0);
    if (is_ignored) {
        print_message("SKIPPED: madvise does nothing here, as in an emulator\n");
        skip();
    }
}

static long faults_of(int who)
{
    struct rusage u;
    assert_int_equal(getrusage(who, &u), 0);
    return u.ru_minflt;
}

/* With workers the caller does not populate a slab alone. One that the system does not let run in time
 * is not waited for: on a busy machine it may take several slabs until there is one that does. */
static void test_workers_populate(void **state)
{
    (void)state;
    skip_where_advice_is_ignored();
    const mx_kv_shape s = {8, 2, 64, MX_KV_F32, 0, 0, 0};
    enum { N = 32 };
    mx_pool *workers = make_workers();
    const uint64_t deadline = mx_now_us() + 30000000;
    long elsewhere = 0;
    while (elsewhere == 0 && mx_now_us() < deadline) {
        mx_kv_pool *pool = make_pool(&s, N);
        mx_kv_pool_set_workers(pool, workers);
        mx_page *pages[N];
        const long before = faults_of(RUSAGE_SELF) - faults_of(RUSAGE_THREAD);
        for (int i = 0; i < N; i++) {
            pages[i] = mx_page_alloc(pool);
            assert_non_null(pages[i]);
        }
        elsewhere = faults_of(RUSAGE_SELF) - faults_of(RUSAGE_THREAD) - before;
        for (int i = 0; i < N; i++) {
            mx_page_unref(pool, pages[i]);
        }
        mx_kv_pool_destroy(pool);
    }
    assert_true(elsewhere > 0);
    mx_pool_destroy(workers);
}

static int n_idle_turns(mx_kv_pool *pool)
{
    int n = 0;
    for (; mx_kv_pool_idle(pool); n++) {
        mx_kv_pool_check(pool);
    }
    return n;
}

/* Idle work commits so much ahead as it was told, again when some of it has been taken, and not more
 * than the budget. */
static void test_keep_ahead(void **state)
{
    (void)state;
    const mx_kv_shape s = {8, 2, 64, MX_KV_F32, 0, 0, 0}; /* 512 KiB a page, 4 MiB a slab */
    enum { N = 40 };
    mx_kv_pool *pool = make_pool(&s, N);
    mx_page *pages[N];
    mx_kv_pool_keep_ahead(pool, 10 << 20);
    assert_int_equal(n_idle_turns(pool), 2);
    for (int i = 0; i < 9; i++) {
        assert_non_null(pages[i] = mx_page_alloc(pool));
    }
    assert_int_equal(n_idle_turns(pool), 1);
    mx_kv_pool_keep_ahead(pool, SIZE_MAX);
    assert_int_equal(n_idle_turns(pool), 2); /* 5 slabs of 8 pages are all */
    for (int i = 9; i < N; i++) {
        assert_non_null(pages[i] = mx_page_alloc(pool));
    }
    assert_null(mx_page_alloc(pool));
    for (int i = 0; i < N; i++) {
        mx_page_unref(pool, pages[i]);
    }
    mx_kv_pool_destroy(pool);
}

/* A failure counts whoever sees it. */
static void test_populate_fails(void **state)
{
    (void)state;
    skip_where_advice_is_ignored();
    enum { N_BYTES = 8 * MX_HUGE_PAGE };
    mx_pool *workers = make_workers();
    for (size_t i = 0; i <= N_BYTES; i += MX_HUGE_PAGE) {
        uint8_t *at = mmap(NULL, N_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(at, MAP_FAILED);
        const bool has_hole = i < N_BYTES;
        if (has_hole) {
            assert_int_equal(munmap(at + i, MX_HUGE_PAGE), 0);
        }
        errno = 0;
        assert_int_equal(mx_kv_populate(NULL, at, N_BYTES), !has_hole);
        assert_int_equal(errno, has_hole ? ENOMEM : 0);
        errno = 0;
        assert_int_equal(mx_kv_populate(workers, at, N_BYTES), !has_hole);
        assert_int_equal(errno, has_hole ? ENOMEM : 0);
        assert_int_equal(munmap(at, N_BYTES), 0);
    }
    mx_pool_destroy(workers);
}

/* The system refuses memory: the pool ends there, and goes on working with what it has. */
static void test_system_without_memory(void **state)
{
    (void)state;
    const mx_kv_shape s = {8, 2, 64, MX_KV_F32, 0, 0, 0}; /* 512 KiB a page */
    enum { N = 400 };
    mx_kv_pool *pool = make_pool(&s, N);
    mx_page *pages[N];
    size_t n = 0;
    unsigned long long data_pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    struct rlimit old, low;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*u %*u %*u %*u %*u %llu", &data_pages), 1);
    fclose(f);
    assert_int_equal(getrlimit(RLIMIT_DATA, &old), 0);
    low = old;
    low.rlim_cur = data_pages * (unsigned long)sysconf(_SC_PAGESIZE);
    low.rlim_cur += 40u << 20; /* two slabs of 16 MiB */
    assert_int_equal(setrlimit(RLIMIT_DATA, &low), 0);
    void *probe = mmap(NULL, 64u << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe != MAP_FAILED) {
        munmap(probe, 64u << 20);
        setrlimit(RLIMIT_DATA, &old);
        mx_kv_pool_destroy(pool);
#if defined(MX_TEST_EMULATED) /* an emulator passes the limit on to nobody */
        print_message("SKIPPED: the emulator does not enforce RLIMIT_DATA\n");
        skip();
#else
        fail_msg("RLIMIT_DATA is not enforced: this test would show nothing");
#endif
    }
    while (n < N && (pages[n] = mx_page_alloc(pool)) != NULL) {
        n++;
    }
    assert_int_equal(setrlimit(RLIMIT_DATA, &old), 0);
    if (n < 32 || n > 80) {
        fail_msg("expected the pages of one or two slabs (32 or 64), got %zu", n);
    }
    assert_int_equal(mx_kv_pool_max(pool), n);
    mx_kv_pool_check(pool);
    while (n > 0) {
        mx_page_unref(pool, pages[--n]);
    }
    assert_non_null(pages[0] = mx_page_alloc(pool));
    mx_page_unref(pool, pages[0]);
    mx_kv_pool_check(pool);
    mx_kv_pool_destroy(pool);
}

static void test_long_chain_unref(void **state)
{
    (void)state;
    const mx_kv_shape s = {1, 1, 1, MX_KV_F16, 0, 0, 0};
    enum { N = 10000 };
    mx_kv_pool *pool = make_pool(&s, N);
    mx_page *last = NULL;
    for (int i = 0; i < N; i++) {
        mx_page *page = mx_page_alloc(pool);
        mx_page_link(page, last, &root, numbers, MX_PAGE_TOKENS);
        mx_page_unref(pool, last); /* the child keeps it */
        last = page;
    }
    assert_int_equal(last->index, N - 1);
    assert_int_equal(mx_kv_pool_used(pool), N);
    mx_kv_pool_check(pool);
    mx_page_unref(pool, last);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

static void test_append(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&f16_shape, 10);
    mx_seq a = {0};
    mx_seq_free(&a); /* safe on zero */
    mx_seq_init(&a, pool, &root);
    mx_seq_check(&a);
    assert_int_equal(help_feed(&a, numbers, 1), MX_OK);
    assert_int_equal(help_feed(&a, numbers, 63), MX_OK);
    help_check_rows(&a, numbers, 0);
    assert_int_equal(a.n_pages, 1);
    assert_int_equal(help_feed(&a, numbers, 64), MX_OK);
    assert_false(a.has_right);
    mx_hash256 id = mx_page_identity(&root, &root, numbers, 64);
    assert_memory_equal(a.pages[0]->id.b, id.b, 32);
    assert_int_equal(help_feed(&a, numbers, 300), MX_OK);
    help_check_rows(&a, numbers, 0);
    assert_int_equal(a.n_pages, 5);
    id = mx_page_identity(&root, &id, numbers + 64, 64);
    assert_memory_equal(a.pages[1]->id.b, id.b, 32);
    assert_ptr_equal(a.pages[1]->parent, a.pages[0]);
    mx_kv_pool_check(pool);

    /* Part of what was reserved is committed; the rest stays reserved and can be rolled back. */
    assert_int_equal(mx_seq_reserve(&a, 150), MX_OK);
    assert_int_equal(mx_seq_reserve(&a, 20), MX_OK);
    assert_int_equal(a.n_reserved, 150);
    mx_seq_check(&a);
    mx_seq_commit(&a, numbers + 300, 20);
    assert_int_equal(a.n_reserved, 130);
    assert_int_equal(a.n_tokens, 320);
    mx_seq_check(&a);
    mx_kv_pool_check(pool);
    mx_seq_rollback(&a);
    mx_seq_check(&a);
    assert_int_equal(a.n_pages, 5);
    assert_int_equal(mx_kv_pool_used(pool), 5);

    /* Exhaustion changes nothing, and what fits still fits. */
    assert_int_equal(mx_seq_reserve(&a, 5 * 64 + 1), MX_E_FULL);
    assert_int_equal(mx_seq_reserve(&a, SIZE_MAX), MX_E_FULL);
    assert_int_equal(mx_kv_pool_used(pool), 5);
    mx_seq_check(&a);
    assert_int_equal(mx_seq_reserve(&a, 5 * 64), MX_OK);
    mx_seq_check(&a);
    assert_int_equal(mx_seq_reserve(&a, 5 * 64 + 1), MX_E_FULL);
    assert_int_equal(a.n_reserved, 5 * 64);
    mx_seq_check(&a);
    mx_seq_free(&a);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

/* Two forks of one tail: the first writes in place, the second copies, and neither sees the
 * other. */
static void test_append_right(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&f16_shape, 10);
    int32_t left[200], right[200];
    memcpy(left, numbers, sizeof left);
    memcpy(right, numbers, sizeof right);
    for (int i = 100; i < 200; i++) {
        left[i] = 5000 + i;
        right[i] = 7000 + i;
    }
    mx_seq a, b, c;
    mx_seq_init(&a, pool, &root);
    mx_seq_init(&b, pool, &root);
    mx_seq_init(&c, pool, &root);
    assert_int_equal(help_feed(&a, numbers, 100), MX_OK);
    assert_int_equal(mx_seq_fork(&b, &a, 100), MX_OK);
    assert_int_equal(mx_seq_fork(&c, &a, 70), MX_OK);
    assert_true(a.has_right && !b.has_right && !c.has_right);
    assert_int_equal(mx_kv_pool_used(pool), 2);

    mx_page *tail = a.pages[1];
    assert_int_equal(mx_seq_reserve(&a, 10), MX_OK);
    assert_int_equal(mx_seq_reserve(&b, 1), MX_OK); /* as many rows, but a writes there */
    assert_ptr_not_equal(b.pages[1], tail);
    assert_int_equal(help_feed(&a, left, 110), MX_OK);
    assert_ptr_equal(a.pages[1], tail);
    assert_int_equal(help_feed(&b, right, 110), MX_OK);
    assert_ptr_not_equal(b.pages[1], tail);
    help_check_rows(&a, left, 0);
    help_check_rows(&b, right, 0);
    help_check_rows(&c, numbers, 0);
    assert_int_equal(mx_kv_pool_used(pool), 3);

    /* a goes; c is now alone on the page and may shrink it in place. */
    mx_seq_free(&a);
    assert_false(tail->has_appender);
    assert_int_equal(help_feed(&c, right, 90), MX_OK);
    assert_ptr_equal(c.pages[1], tail);
    help_check_rows(&b, right, 0);
    help_check_rows(&c, right, 0);
    mx_kv_pool_check(pool);

    /* The right is handed on when its holder goes away and all rows are used. */
    mx_seq_init(&a, pool, &root);
    assert_int_equal(mx_seq_fork(&a, &b, 110), MX_OK);
    assert_false(a.has_right);
    tail = b.pages[1];
    mx_seq_free(&b);
    assert_int_equal(help_feed(&a, right, 111), MX_OK);
    assert_ptr_equal(a.pages[1], tail);
    help_check_rows(&a, right, 0);
    mx_seq_free(&a);
    mx_seq_free(&c);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_kv_pool_destroy(pool);
}

static void test_cut(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&f16_shape, 12);
    int32_t other[300];
    memcpy(other, numbers, sizeof other);
    for (int i = 130; i < 300; i++) {
        other[i] = -i;
    }
    mx_seq a, b;
    mx_seq_init(&a, pool, &root);
    mx_seq_init(&b, pool, &root);
    assert_int_equal(help_feed(&a, numbers, 250), MX_OK);
    assert_int_equal(mx_seq_fork(&b, &a, 250), MX_OK);
    assert_int_equal(mx_seq_reserve(&a, 40), MX_OK);
    mx_seq_cut(&a, 130); /* inside a sealed page that b uses as well */
    mx_seq_check(&a);
    assert_int_equal(a.n_pages, 3);
    assert_int_equal(a.n_reserved, 0);
    assert_int_equal(help_feed(&a, other, 280), MX_OK);
    help_check_rows(&a, other, 0);
    help_check_rows(&b, numbers, 0);
    mx_seq_cut(&a, 128);
    mx_seq_check(&a);
    assert_int_equal(a.n_pages, 2);
    assert_int_equal(help_feed(&a, numbers, 200), MX_OK);
    help_check_rows(&a, numbers, 0);
    mx_seq_free(&b);
    mx_seq_cut(&a, 100); /* alone: the page is opened again without a copy */
    mx_page *tail = a.pages[1];
    assert_int_equal(tail->n_rows, 64);
    memcpy(other, numbers, 100 * sizeof *other);
    assert_int_equal(help_feed(&a, other, 101), MX_OK);
    assert_ptr_equal(a.pages[1], tail);
    help_check_rows(&a, other, 0);
    mx_seq_cut(&a, 0);
    mx_seq_check(&a);
    assert_int_equal(mx_kv_pool_used(pool), 0);
    mx_seq_free(&a);
    mx_kv_pool_destroy(pool);
}

/* The copy of a tail that cannot be had leaves everything as it was. */
static void test_full_pool_keeps_tail(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&f16_shape, 3);
    mx_seq a, b;
    mx_seq_init(&a, pool, &root);
    mx_seq_init(&b, pool, &root);
    assert_int_equal(help_feed(&a, numbers, 150), MX_OK);
    assert_int_equal(mx_seq_fork(&b, &a, 140), MX_OK);
    assert_int_equal(mx_seq_reserve(&b, 1), MX_E_FULL);
    help_check_rows(&b, numbers, 0);
    assert_int_equal(b.n_tokens, 140);
    assert_int_equal(mx_seq_reserve(&a, 42), MX_OK);
    mx_seq_free(&a);
    assert_int_equal(help_feed(&b, numbers, 192), MX_OK);
    help_check_rows(&b, numbers, 0);
    mx_seq_free(&b);
    mx_kv_pool_destroy(pool);
}

static void test_link_from_outside(void **state)
{
    (void)state;
    mx_kv_pool *pool = make_pool(&f16_shape, 4);
    mx_seq a, b;
    mx_seq_init(&a, pool, &root);
    assert_int_equal(help_feed(&a, numbers, 90), MX_OK);
    mx_seq_init(&b, pool, &root);
    mx_page *parent = NULL;
    for (size_t i = 0; i < 2; i++) {
        uint32_t n_rows = i == 0 ? 64 : 26;
        mx_page *page = mx_page_alloc(pool);
        mx_page_copy_rows(&f16_shape, page->payload, a.pages[i]->payload, n_rows);
        mx_page_link(page, parent, &root, numbers + 64 * i, n_rows);
        assert_int_equal(mx_seq_push_page(&b, page, n_rows), MX_OK);
        parent = page;
    }
    assert_true(b.has_right);
    help_check_rows(&b, numbers, 0);
    assert_memory_equal(b.pages[0]->id.b, a.pages[0]->id.b, 32);
    assert_int_equal(help_feed(&b, numbers, 100), MX_OK);
    help_check_rows(&b, numbers, 0);
    mx_seq_free(&a);
    mx_seq_free(&b);
    mx_kv_pool_destroy(pool);
}

static mx_err all_operations(void)
{
    mx_kv_pool *pool;
    mx_err e = mx_kv_pool_create(&pool, &f16_shape, 40, NULL);
    if (e != MX_OK) {
        return e;
    }
    mx_seq a, b;
    mx_seq_init(&a, pool, &root);
    mx_seq_init(&b, pool, &root);
    e = help_feed(&a, numbers, 700);
    if (e == MX_OK) {
        e = mx_seq_fork(&b, &a, 690);
    }
    if (e == MX_OK) {
        e = help_feed(&b, numbers, 1100);
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
        assert_int_equal(e, MX_E_NOMEM);
    }
    assert_true(k > 4); /* the loop has really failed something */
}

/* Random histories of a few sequences against plain token lists. */
static void random_history(uint64_t seed)
{
    enum { N_SEQS = 4, MAX_TOKENS = 400, N_STEPS = 250 };
    uint64_t rng = seed;
    mx_kv_pool *pool = make_pool(&f16_shape, 20);
    mx_seq seqs[N_SEQS];
    int32_t tokens[N_SEQS][MAX_TOKENS];
    for (int i = 0; i < N_SEQS; i++) {
        mx_seq_init(&seqs[i], pool, &root);
    }
    for (int step = 0; step < N_STEPS; step++) {
        uint32_t i = help_rand(&rng, N_SEQS), j = help_rand(&rng, N_SEQS);
        mx_seq *s = &seqs[i];
        switch (help_rand(&rng, 6)) {
        case 0: /* fork */
            if (i != j) {
                size_t n = help_rand(&rng, (uint32_t)seqs[j].n_tokens + 1);
                mx_seq_free(s);
                mx_seq_init(s, pool, &root);
                assert_int_equal(mx_seq_fork(s, &seqs[j], n), MX_OK);
                memcpy(tokens[i], tokens[j], n * sizeof **tokens);
            }
            break;
        case 1:
            mx_seq_cut(s, help_rand(&rng, (uint32_t)s->n_tokens + 1));
            break;
        case 2:
            (void)mx_seq_reserve(s, help_rand(&rng, 100));
            break;
        case 3:
            mx_seq_rollback(s);
            break;
        default: { /* append */
            size_t n = mx_min_size(s->n_tokens + 1 + help_rand(&rng, 90), MAX_TOKENS);
            for (size_t t = s->n_tokens; t < n; t++) {
                tokens[i][t] = (int32_t)help_rand(&rng, 3);
            }
            mx_err e = n > s->n_tokens ? help_feed(s, tokens[i], n) : MX_OK;
            if (e == MX_E_FULL) {
                assert_true(mx_kv_pool_used(pool) > 10);
            } else {
                assert_int_equal(e, MX_OK);
            }
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
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_rows_move),
        cmocka_unit_test(test_packed_layout),
        cmocka_unit_test(test_packed_scales),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_recycled_pages_are_zero),
        cmocka_unit_test(test_slabs),
        cmocka_unit_test(test_workers_populate),
        cmocka_unit_test(test_keep_ahead),
        cmocka_unit_test(test_populate_fails),
        cmocka_unit_test(test_system_without_memory),
        cmocka_unit_test(test_long_chain_unref),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_append_right),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_full_pool_keeps_tail),
        cmocka_unit_test(test_link_from_outside),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_random_histories),
    };
    return cmocka_run_group_tests(tests, number_tokens, NULL);
}
