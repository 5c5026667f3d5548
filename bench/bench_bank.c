/* SPDX-License-Identifier: MIT
 *
 * How long the SessionBank takes: storing, looking up and restoring prefixes of several lengths in
 * an empty and in a well filled bank; one page among 10,000 siblings; evicting. Prints
 * microseconds, asserts nothing about them.
 *
 *   bench_bank [pages in the pool, default 20000]
 */
#include "bank/bank.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 101, LONGEST = 32768 };

static const mx_kv_shape shape = {1, 1, 16, MX_KV_F16, 0, 0, 0}; /* 4 KiB a page: the index is measured */
static const mx_hash256 root = {{1}};

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_us(uint64_t *t)
{
    qsort(t, ROUNDS, sizeof *t, compare_u64);
    return (double)t[ROUNDS / 2];
}

static void must(mx_err e, const char *what)
{
    if (e != MX_OK) {
        fprintf(stderr, "bench_bank: %s: %s\n", what, mx_err_name(e));
        exit(1);
    }
}

static void store(mx_bank *b, mx_kv_pool *pool, const int32_t *tokens, size_t n)
{
    mx_seq s;
    mx_seq_init(&s, pool, &root);
    must(mx_seq_reserve(&s, n), "reserve");
    mx_seq_commit(&s, tokens, n);
    must(mx_bank_snapshot_cache(b, &s, MX_ENTRY_TURN, NULL, NULL), "snapshot");
    mx_seq_free(&s);
}

static void measure(mx_bank *b, mx_kv_pool *pool, const int32_t *tokens, size_t n)
{
    uint64_t look[ROUNDS], back[ROUNDS], keep[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        mx_bank_match m;
        mx_seq s;
        uint64_t t0 = mx_now_us();
        mx_bank_lookup(b, &root, tokens, n, &m);
        uint64_t t1 = mx_now_us();
        mx_seq_init(&s, pool, &root);
        must(mx_bank_restore_cache(b, &s, tokens, n, n - 1, &m), "restore");
        uint64_t t2 = mx_now_us();
        must(mx_bank_snapshot_cache(b, &s, MX_ENTRY_TURN, NULL, NULL), "snapshot");
        uint64_t t3 = mx_now_us();
        look[i] = t1 - t0;
        back[i] = t2 - t1;
        keep[i] = t3 - t2;
        mx_seq_free(&s);
    }
    printf("  %6zu tokens (%4zu pages): lookup %5.0f us, restore %5.0f us, snapshot %5.0f us\n", n,
           n / MX_PAGE_TOKENS, median_us(look), median_us(back), median_us(keep));
}

static void measure_all(mx_bank *b, mx_kv_pool *pool, const int32_t *tokens)
{
    for (size_t n = 512; n <= LONGEST; n *= 4) {
        measure(b, pool, tokens, n);
    }
}

int main(int argc, char **argv)
{
    size_t n_pages = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    mx_errbuf eb;
    mx_kv_pool *pool;
    mx_bank *b;
    mx_bank_config cfg = {.near_prefix_gap = 8, .lazy_snapshot = true, .us_per_token = 1000};
    int32_t *tokens = mx_alloc(LONGEST * sizeof *tokens);
    if (tokens == NULL || n_pages < 2 * LONGEST / MX_PAGE_TOKENS) {
        fprintf(stderr, "bench_bank: needs at least %d pages\n", 2 * LONGEST / MX_PAGE_TOKENS);
        return 1;
    }
    must(mx_kv_pool_create(&pool, &shape, n_pages, &eb), "pool");
    must(mx_bank_create(&b, pool, &cfg, &eb), "bank");
    for (int32_t i = 0; i < LONGEST; i++) {
        tokens[i] = i;
    }
    store(b, pool, tokens, LONGEST);
    printf("nothing else stored\n");
    measure_all(b, pool, tokens);

    size_t n_fill = n_pages - LONGEST / MX_PAGE_TOKENS - 64;
    int32_t first[MX_PAGE_TOKENS] = {0};
    uint64_t t0 = mx_now_us();
    for (size_t i = 0; i < n_fill; i++) {
        first[0] = -1 - (int32_t)(i * 7919 % n_fill);
        store(b, pool, first, MX_PAGE_TOKENS);
    }
    uint64_t t1 = mx_now_us();
    printf("%zu other first pages stored, %.1f us each\n", n_fill,
           (double)(t1 - t0) / (double)n_fill);
    measure_all(b, pool, tokens);

    t0 = mx_now_us();
    size_t n = mx_bank_evict(b, n_pages / 2);
    t1 = mx_now_us();
    printf("evicted %zu pages, %.2f us each\n", n, (double)(t1 - t0) / (double)(n ? n : 1));
    mx_bank_destroy(b);
    mx_kv_pool_destroy(pool);
    mx_free(tokens);
    return 0;
}
