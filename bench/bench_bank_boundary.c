/* SPDX-License-Identifier: MIT
 *
 * What boundaries cost, for the shape of a real hybrid: leaving one, restoring at one, choosing which
 * one goes. No arithmetic of a model is involved: the state is bytes.
 *
 *   bench_bank_boundary [state MiB] [page KiB] [boundaries]
 */
#include "bank/bank.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { SPACING = 1024, MAX_RUNS = 9 };

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *us, size_t n)
{
    qsort(us, n, sizeof *us, compare);
    return us[n / 2];
}

static void must(mx_err err, const char *what)
{
    if (err != MX_OK) {
        fprintf(stderr, "%s: %s\n", what, mx_err_name(err));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    size_t state_mib = argc > 1 ? (size_t)atoi(argv[1]) : 19;
    size_t page_kib = argc > 2 ? (size_t)atoi(argv[2]) : 768;
    size_t n_states = argc > 3 ? (size_t)atoi(argv[3]) : 16;
    /* One layer and head as wide as it takes: 64 tokens x 2 x 2 bytes x head_dim. */
    mx_kv_shape shape = {1, (uint32_t)(page_kib * 1024 / 256 / 64), 64, MX_KV_F16, state_mib << 20, 0, 0};
    mx_kv_pool *pool;
    mx_bank *bank;
    size_t n_tokens = n_states * SPACING;
    size_t page_bytes = mx_kv_page_bytes(&shape);
    size_t state_pages = (shape.state_bytes + page_bytes - 1) / page_bytes;
    size_t n_pages = n_tokens / MX_PAGE_TOKENS + (n_states + 4) * state_pages + 8;
    must(mx_kv_pool_create(&pool, &shape, n_pages, NULL), "pool");
    mx_bank_config cfg = {.lazy_snapshot = true, .n_hidden = 1024, .us_per_token = 1000};
    must(mx_bank_create(&bank, pool, &cfg, NULL), "bank");
    int32_t *tokens = mx_calloc(n_tokens, sizeof *tokens);
    for (size_t i = 0; i < n_tokens; i++) {
        tokens[i] = (int32_t)(i % 50000);
    }
    mx_hash256 root = {{1}};
    mx_seq s;
    mx_seq_init(&s, pool, &root);
    double *leave = mx_calloc(n_states, sizeof *leave);
    for (size_t k = 0; k < n_states; k++) {
        must(mx_seq_reserve(&s, SPACING), "reserve");
        s.next->n_tokens = s.n_tokens + SPACING;
        mx_seq_commit(&s, tokens + s.n_tokens, SPACING);
        uint64_t begin = mx_now_us();
        must(mx_bank_snapshot_cache(bank, &s, MX_ENTRY_POINT, NULL, NULL), "snapshot");
        leave[k] = (double)(mx_now_us() - begin);
    }
    mx_seq_free(&s);
    double restore[MAX_RUNS];
    for (size_t k = 0; k < MAX_RUNS; k++) {
        mx_bank_match m;
        mx_seq_init(&s, pool, &root);
        uint64_t begin = mx_now_us();
        must(mx_bank_restore_cache(bank, &s, tokens, n_tokens, n_tokens - 1, &m), "restore");
        restore[k] = (double)(mx_now_us() - begin);
        mx_seq_free(&s);
    }
    double drop[MAX_RUNS];
    size_t n_drops = n_states / 2 < MAX_RUNS ? n_states / 2 : MAX_RUNS;
    for (size_t k = 0; k < n_drops; k++) {
        size_t n_free = mx_kv_pool_max(pool) - mx_kv_pool_used(pool);
        uint64_t begin = mx_now_us();
        (void)mx_bank_evict(bank, n_free + 1);
        drop[k] = (double)(mx_now_us() - begin);
    }
    printf("state %zu MiB, page %zu KiB, %zu boundaries every %d tokens: leaving one %.0f us, "
           "restoring %zu tokens %.0f us, dropping one %.0f us\n", state_mib, page_kib, n_states,
           SPACING, median(leave, n_states), n_tokens - SPACING, median(restore, MAX_RUNS),
           median(drop, n_drops));
    mx_bank_clear(bank);
    mx_bank_destroy(bank);
    mx_kv_pool_destroy(pool);
    mx_free(tokens);
    mx_free(leave);
    return 0;
}
