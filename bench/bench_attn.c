// link: mx_kernels
/* SPDX-License-Identifier: MIT
 *
 * Speed of attention on one core, per level: prefill (the queries of one call of the forward pass)
 * and decode (one token, all query heads of a KV head), in GMAC/s and as a share of this core's
 * rate of f32 multiply-adds at that level. Time is the thread's CPU time, best of some repetitions,
 * so that neighbours disturb little.
 *
 *   bench_attn [LEVEL [TYPE]]      e.g. bench_attn avx2 f16
 */
#include "base/mem.h"
#include "kernels/kern.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROOF_TIMES = 9, QUERIES = 96 };

static const double seconds_each = 0.1; /* per figure, at least three runs */

typedef struct shape {
    uint32_t head_dim, tokens, heads, depth;
} shape;

static const shape shapes[] = {
    {64, 32, 3, 512},  {64, 32, 3, 4096},  {64, 32, 3, 8192},  {128, 48, 2, 512},
    {128, 48, 2, 4096}, {128, 48, 2, 8192}, {128, 12, 8, 4096},  {256, 12, 8, 4096},
    {64, 1, 3, 4096},  {128, 1, 2, 512},   {128, 1, 2, 4096},  {128, 1, 2, 8192},
    {128, 1, 8, 4096}, {256, 1, 8, 4096},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *need(size_t bytes)
{
    void *p = mx_alloc_aligned(64, bytes + 64);
    if (p == NULL) {
        fprintf(stderr, "bench_attn: out of memory (%zu bytes)\n", bytes);
        exit(1);
    }
    memset(p, 0, bytes + 64);
    return p;
}

static void fill(float *x, size_t n)
{
    static uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        x[i] = (float)(state >> 40) * 0x1p-23f - 1.0f;
    }
}

/* ---- the roof --------------------------------------------------------------------------------- */

/* Twelve independent chains of multiply-adds; returns how many there were, and a sum so that none
 * of them can be left out. */
enum { CHAINS = 12, ROUNDS = 1 << 20 };

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static double roof_avx2(float *sink)
{
    __m256 a[CHAINS], x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(*sink);
    for (int j = 0; j < CHAINS; j++) {
        a[j] = x;
    }
    for (int i = 0; i < ROUNDS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) {
            a[j] = _mm256_fmadd_ps(a[j], x, y);
        }
        __asm__ volatile("" : "+x"(x));
    }
    for (int j = 1; j < CHAINS; j++) {
        a[0] = _mm256_add_ps(a[0], a[j]);
    }
    *sink = _mm256_cvtss_f32(a[0]);
    return 8.0 * CHAINS * ROUNDS;
}

__attribute__((target("avx512f"))) static double roof_avx512(float *sink)
{
    __m512 a[CHAINS], x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(*sink);
    for (int j = 0; j < CHAINS; j++) {
        a[j] = x;
    }
    for (int i = 0; i < ROUNDS; i++) {
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) {
            a[j] = _mm512_fmadd_ps(a[j], x, y);
        }
        __asm__ volatile("" : "+v"(x));
    }
    for (int j = 1; j < CHAINS; j++) {
        a[0] = _mm512_add_ps(a[0], a[j]);
    }
    *sink = _mm512_cvtss_f32(a[0]);
    return 16.0 * CHAINS * ROUNDS;
}
#endif

/* Multiply-adds per second of this level in GMAC/s; 0 = not known. */
static double roof(mx_cpu_level level)
{
    double best = 0;
#if defined(__x86_64__)
    float sink = 0.25f;
    for (int i = 0; i < ROOF_TIMES && level != MX_CPU_PORTABLE; i++) {
        const double t = now();
        const double n = level == MX_CPU_AVX512 ? roof_avx512(&sink) : roof_avx2(&sink);
        const double rate = n / (now() - t) * 1e-9;
        best = rate > best && sink != 0 ? rate : best;
    }
#else
    (void)level;
#endif
    return best;
}

/* ---- attention -------------------------------------------------------------------------------- */

typedef struct cache {
    uint8_t *memory;
    const uint8_t **tiles; /* [2][pages]: K, then V */
    uint32_t pages;
    size_t tile_bytes;
} cache;

static void cache_fill(cache *c, const mx_kern *k, mx_kv_type type, const shape *s)
{
    c->pages = s->depth / MX_PAGE_TOKENS;
    c->tile_bytes = mx_kv_tile_bytes(type, s->head_dim);
    c->memory = need(2 * c->pages * c->tile_bytes);
    c->tiles = need(2 * c->pages * sizeof *c->tiles);
    for (uint32_t p = 0; p < 2 * c->pages; p++) {
        c->tiles[p] = c->memory + p * c->tile_bytes;
    }
    float *kv = need(2 * s->head_dim * sizeof *kv);
    for (uint32_t t = 0; t < s->depth; t++) {
        fill(kv, 2 * s->head_dim);
        const uint32_t p = t / MX_PAGE_TOKENS;
        if (!k->kv_store(type, c->memory + p * c->tile_bytes,
                         c->memory + (c->pages + p) * c->tile_bytes, s->head_dim,
                         t % MX_PAGE_TOKENS, kv, kv + s->head_dim))
        {
            exit(1);
        }
    }
    mx_free(kv);
}

static void bench(const mx_kern *k, mx_kv_type type, const shape *s, double roof_rate)
{
    const uint32_t n = s->tokens * s->heads;
    cache c;
    cache_fill(&c, k, type, s);
    float *q = need((size_t)n * s->head_dim * sizeof *q);
    float *out = need((size_t)n * s->head_dim * sizeof *out);
    fill(q, (size_t)n * s->head_dim);
    const float *q_rows[QUERIES];
    float *out_rows[QUERIES];
    uint32_t n_valid[QUERIES];
    double macs = 0;
    for (uint32_t i = 0; i < n; i++) {
        q_rows[i] = q + (size_t)i * s->head_dim;
        out_rows[i] = out + (size_t)i * s->head_dim;
        n_valid[i] = s->depth - s->tokens + 1 + i / s->heads;
        macs += 2.0 * n_valid[i] * s->head_dim;
    }
    const mx_attn_args args = {
        .kv_type = type, .head_dim = s->head_dim, .n_queries = n, .q = q_rows, .out = out_rows,
        .n_valid = n_valid, .k_tiles = c.tiles, .v_tiles = c.tiles + c.pages, .scale = 0.125f,
        .scratch = need(k->attn_scratch_floats(s->head_dim, n) * sizeof(float)),
    };
    double best = 1e9;
    const double begin = now();
    for (int i = 0; i < 3 || now() - begin < seconds_each; i++) {
        const double t = now();
        k->attention(&args);
        const double spent = now() - t;
        best = spent < best ? spent : best;
    }
    printf("%-8s %s head %3u, %2u tokens x %u heads at %4u: %6.1f GMAC/s (%3.0f %%), %6.2f GB/s\n",
           k->name, mx_kv_type_name(type), s->head_dim, s->tokens, s->heads, s->depth,
           macs / best * 1e-9, roof_rate > 0 ? macs / best * 1e-7 / roof_rate : 0.0,
           2.0 * c.pages * (double)c.tile_bytes / best * 1e-9);
    fflush(stdout);
    mx_free(c.memory);
    mx_free(c.tiles);
    mx_free(q);
    mx_free(out);
    mx_free(args.scratch);
}

int main(int argc, char **argv)
{
    static const mx_cpu_level levels[] = {MX_CPU_AVX2, MX_CPU_AVXVNNI, MX_CPU_AVX512, MX_CPU_NEON};
    size_t n_measured = 0;
    mx_kern_thread_init();
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        const mx_kern *k = mx_kern_get(levels[l]);
        if (k->level != levels[l] || (argc > 1 && strcmp(argv[1], k->name) != 0)) {
            continue;
        }
        const double roof_rate = roof(k->level);
        printf("%-8s multiply-adds in registers: %.1f GMAC/s\n", k->name, roof_rate);
        for (size_t t = 0; t <= MX_KV_Q8; t++) {
            for (size_t i = 0; i < MX_COUNT(shapes); i++) {
                if (argc < 3 || strcmp(argv[2], mx_kv_type_name((mx_kv_type)t)) == 0) {
                    bench(k, (mx_kv_type)t, &shapes[i], roof_rate);
                    n_measured++;
                }
            }
        }
    }
    if (n_measured == 0) {
        fprintf(stderr, "bench_attn: this machine has no such level (portable is not measured), or "
                "there is no such type; usage: bench_attn [LEVEL [TYPE]]\n");
        return 1;
    }
    return 0;
}
