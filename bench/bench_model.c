/* SPDX-License-Identifier: MIT
 *
 * Speed of the forward pass alone: no server, no sampling.
 *
 *     bench_model MODEL.gguf [threads [prompt [generated [depth [rounds [level]]]]]]
 *
 * Defaults: 2 threads, 512 prompt tokens in one chunk, 64 generated at depth 0, 5 rounds, best CPU
 * level. Prints tokens per second, each round and the median, and behind them the median of tokens
 * per second of CPU time: with 1 thread that is what a quiet machine would reach, even on a busy one.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CHUNK = 512, MAX_ROUNDS = 64 };

static mx_model *model;
static mx_seq seq;
static float *hidden, *logits;

static void check(mx_err e, const mx_errbuf *eb, const char *what)
{
    if (e != MX_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, mx_err_name(e), eb->text);
        exit(1);
    }
}

static void feed(const int32_t *tokens, uint32_t n)
{
    static mx_batch_row rows[CHUNK];
    mx_errbuf eb = {{0}};
    uint32_t bad;
    check(mx_seq_reserve(&seq, n), &eb, "reserve");
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (mx_batch_row){.seq = &seq,
                                 .pos = (uint32_t)seq.n_tokens + i,
                                 .token = tokens[i],
                                 .hidden_to = i + 1 == n ? 0 : -1};
    }
    mx_batch b = {.rows = rows, .n_rows = n, .hidden = hidden, .n_hidden_rows = 1};
    check(mx_model_forward(model, &b, &bad, &eb), &eb, "forward");
    mx_seq_commit(&seq, tokens, n);
}

static void prefill(uint32_t n, uint32_t n_vocab)
{
    int32_t tokens[CHUNK];
    for (uint32_t at = 0; at < n; at += CHUNK) {
        uint32_t k = n - at < CHUNK ? n - at : CHUNK;
        for (uint32_t i = 0; i < k; i++) {
            tokens[i] = (int32_t)((at + i) * 7919u % n_vocab);
        }
        feed(tokens, k);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void report(const char *what, double *rates, double *cpu_rates, int n)
{
    printf("%s:", what);
    for (int i = 0; i < n; i++) {
        printf(" %.1f", rates[i]);
    }
    qsort(rates, (size_t)n, sizeof *rates, by_value);
    qsort(cpu_rates, (size_t)n, sizeof *cpu_rates, by_value);
    printf("   median %.1f t/s, %.1f per CPU second\n", rates[n / 2], cpu_rates[n / 2]);
}

static unsigned number(int argc, char **argv, int i, unsigned absent)
{
    return argc > i ? (unsigned)strtoul(argv[i], NULL, 10) : absent;
}

int main(int argc, char **argv)
{
    unsigned threads = number(argc, argv, 2, 2), n_prompt = number(argc, argv, 3, 512);
    unsigned n_gen = number(argc, argv, 4, 64), depth = number(argc, argv, 5, 0);
    int rounds = (int)number(argc, argv, 6, 5);
    mx_cpu_level level = mx_cpu_best();
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS ||
        (argc > 7 && !mx_cpu_level_from_name(argv[7], &level)))
    {
        fprintf(stderr, "usage: bench_model MODEL.gguf [threads [prompt [generated [depth [rounds "
                        "[level]]]]]]\n");
        return 2;
    }
    mx_errbuf eb = {{0}};
    mx_pool *pool;
    mx_kv_pool *kv;
    check(mx_pool_create(&pool, threads, &eb), &eb, "pool");
    uint64_t t0 = mx_now_us();
    mx_model_options o = {.path = argv[1], .max_batch_rows = CHUNK, .max_logit_rows = 1,
                          .cpu_level = level, .fingerprint_cache_dir = getenv("BENCH_CACHE_DIR")};
    check(mx_model_load(&model, &o, pool, &eb), &eb, "load");
    printf("load: %.0f ms, kernels %s, %u threads\n", (double)(mx_now_us() - t0) / 1000,
           mx_model_kern(model)->name, threads);
    uint32_t n_vocab = mx_model_get_config(model)->n_vocab;
    size_t n_pages = (mx_max_size(n_prompt, (size_t)depth + n_gen)) / MX_PAGE_TOKENS + 2;
    check(mx_kv_pool_create(&kv, mx_model_kv_shape(model), n_pages, &eb), &eb, "pages");
    hidden = mx_alloc(mx_model_get_config(model)->n_embd * sizeof *hidden);
    logits = mx_alloc(n_vocab * sizeof *logits);
    mx_hash256 root = mx_model_root(model, NULL);

    double pp[MAX_ROUNDS], tg[MAX_ROUNDS], pp_cpu[MAX_ROUNDS], tg_cpu[MAX_ROUNDS];
    for (int r = 0; r < rounds; r++) {
        if (n_prompt > 0) {
            mx_seq_init(&seq, kv, &root);
            t0 = mx_now_us();
            double c0 = cpu_s();
            prefill(n_prompt, n_vocab);
            (void)mx_model_logits(model, hidden, 1, logits);
            pp_cpu[r] = n_prompt / (cpu_s() - c0);
            pp[r] = n_prompt * 1e6 / (double)(mx_now_us() - t0);
            mx_seq_free(&seq);
        }
        if (n_gen > 0) {
            mx_seq_init(&seq, kv, &root);
            prefill(depth, n_vocab);
            t0 = mx_now_us();
            double c0 = cpu_s();
            for (uint32_t i = 0; i < n_gen; i++) {
                int32_t token = (int32_t)(i * 104729u % n_vocab);
                feed(&token, 1);
                (void)mx_model_logits(model, hidden, 1, logits);
            }
            tg_cpu[r] = n_gen / (cpu_s() - c0);
            tg[r] = n_gen * 1e6 / (double)(mx_now_us() - t0);
            mx_seq_free(&seq);
        }
    }
    char what[64];
    if (n_prompt > 0) {
        snprintf(what, sizeof what, "prefill %u", n_prompt);
        report(what, pp, pp_cpu, rounds);
    }
    if (n_gen > 0) {
        snprintf(what, sizeof what, "decode %u at %u", n_gen, depth);
        report(what, tg, tg_cpu, rounds);
    }
    mx_free(hidden);
    mx_free(logits);
    mx_kv_pool_destroy(kv);
    mx_model_destroy(model);
    mx_pool_destroy(pool);
    return 0;
}
