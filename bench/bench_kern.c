// link: mx_kernels
/* SPDX-License-Identifier: MIT
 *
 * Speed of the kernels on one core, per level: GMAC/s of a prefill (512 rows) and GB/s of packed
 * weights in decode (1, 2, 4 rows) for each type; conversions in ns. bench_attn has attention.
 * Time is the thread's CPU time, best of some repetitions, so that neighbours disturb little.
 *
 *   bench_kern [LEVEL [TYPE [BITS]]]      e.g. bench_kern avx2 Q4_1 8 (bits of the activations)
 */
#include "base/mem.h"
#include "kernels/kern.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

enum { REPETITIONS = 5 };

static mx_act_type act_type = MX_ACT_16;

static const mx_qtype types[] = {
    MX_Q4_0, MX_Q4_1, MX_Q5_0, MX_Q5_1,   MX_Q8_0,   MX_Q2_K,  MX_Q3_K, MX_Q4_K,
    MX_Q5_K, MX_Q6_K, MX_IQ4_NL, MX_IQ4_XS, MX_MXFP4, MX_F16, MX_BF16, MX_F32,
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
        fprintf(stderr, "bench_kern: out of memory (%zu bytes)\n", bytes);
        exit(1);
    }
    memset(p, 0, bytes + 64);
    return p;
}

static uint32_t random_u32(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(state >> 32);
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(random_u32() >> 8) * 0x1p-23f - 1.0f;
    }
}

/* Seconds of one product, best of some. */
static double time_matmul(const mx_kern *k, mx_qtype type, uint32_t n_out, uint32_t n_cols,
                          uint32_t rows, size_t *bytes)
{
    const mx_qtype_info *info = mx_qtype_get(type);
    const size_t file_bytes = (size_t)n_out * n_cols / info->block_elems * info->block_bytes;
    uint8_t *file = need(file_bytes);
    for (size_t i = 0; i < file_bytes; i++) { /* as f16, bf16, f32: 2^-15 to 2, no denormal */
        file[i] = (uint8_t)(0x38 | (random_u32() & 7));
    }
    *bytes = mx_wmat_bytes(type, n_out, n_cols);
    void *panels = need(*bytes);
    mx_wmat w;
    mx_wmat_repack(&w, type, n_out, n_cols, file, panels);
    const bool keeps_x = mx_wmat_takes_floats(&w);
    void *act = need(mx_act_bytes(act_type, rows, n_cols, keeps_x));
    mx_act a;
    mx_act_bind(&a, act_type, rows, n_cols, keeps_x, act);
    float *x = need((size_t)rows * n_cols * sizeof *x);
    float *y = need((size_t)rows * n_out * sizeof *y);
    void *scratch = need(mx_kern_matmul_scratch(&w));
    fill(x, (size_t)rows * n_cols);
    double best = 1e9;
    if (k->act_quantize(&a, x, n_cols, 0, rows)) {
        for (int i = 0; i < REPETITIONS; i++) {
            const double t = now();
            k->matmul(&w, &a, rows, y, n_out, 0, w.n_panels, scratch);
            const double spent = now() - t;
            best = spent < best ? spent : best;
        }
    }
    mx_free(file);
    mx_free(panels);
    mx_free(act);
    mx_free(x);
    mx_free(y);
    mx_free(scratch);
    return best;
}

static void bench_matmul(const mx_kern *k, mx_qtype type)
{
    static const uint32_t few[] = {1, 2, 4, 8};
    const uint32_t cols = mx_qtype_get(type)->block_elems == 256 ? 512 : 576;
    const bool slow = k->level == MX_CPU_PORTABLE;
    const uint32_t rows = slow ? 32 : 512;
    const uint32_t outs = slow ? 512 : 4096;
    size_t bytes;
    printf("%-9s %-7s prefill", k->name, mx_qtype_get(type)->name);
    const uint32_t widths[] = {cols, 1536};
    for (size_t i = 0; i < 2; i++) {
        const double t = time_matmul(k, type, 576, widths[i], rows, &bytes);
        printf(" K %4u: %6.1f GMAC/s", widths[i], 576.0 * widths[i] * rows / t * 1e-9);
    }
    printf("   decode GB/s");
    for (size_t i = 0; i < MX_COUNT(few); i++) {
        const double t = time_matmul(k, type, outs, 1536, few[i], &bytes);
        printf(" %u: %5.2f", few[i], (double)bytes / t * 1e-9);
    }
    printf("\n");
    fflush(stdout);
}

enum { GDN_D = 128, GDN_HEADS = 16, GDN_LD = 3 * GDN_HEADS * GDN_D };

/* The recurrence over some tokens, in heads of 128 whose rows come from further away than L2; for a single
 * one in a state of 16 heads x 18 layers, which no cache close to the core holds. */
static void bench_gdn(const mx_kern *k, uint32_t n_rows)
{
    enum { D = GDN_D, LD = GDN_LD };
    const size_t n_heads = n_rows == 1 ? 18 * GDN_HEADS : GDN_HEADS, head = (size_t)D * D;
    float *rows = need((size_t)n_rows * LD * sizeof *rows);
    float *from = need(n_heads * head * sizeof *from);
    float *to = need(n_heads * head * sizeof *to);
    float *out = need((size_t)n_rows * D * sizeof *out);
    float gates[2] = {0.9f, 0.5f};
    double best = 1e9;
    fill(rows, (size_t)n_rows * LD);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t h = 0; h < GDN_HEADS; h++) {
            float *q = rows + (size_t)r * LD + h * D;
            k->l2norm(q, 0.088f, D);
            k->l2norm(q + GDN_HEADS * D, 1, D);
        }
    }
    for (int i = 0; i < REPETITIONS; i++) {
        const double begin = now();
        for (size_t h = 0; h < n_heads; h++) {
            const float *q = rows + h % GDN_HEADS * D;
            k->gdn_step(&(mx_gdn_args){
                .d = D, .n_cols = D, .n_rows = n_rows, .q = q, .k = q + GDN_HEADS * D,
                .v = q + 2 * GDN_HEADS * D, .ld = LD, .decay = gates, .beta = gates + 1, .ld_gates = 0, .from = from + h * head,
                .to = to + h * head, .out = out, .ldo = D});
        }
        const double spent = (now() - begin) / (double)n_heads / n_rows;
        best = spent < best ? spent : best;
    }
    printf("%-9s gated delta rule, %3u tokens: %.3f us per token and head of 128\n", k->name, n_rows,
           best * 1e6);
    mx_free(rows);
    mx_free(from);
    mx_free(to);
    mx_free(out);
}

/* The convolution before it, head by head as the forward pass does. */
static void bench_conv(const mx_kern *k, uint32_t n_rows)
{
    enum { D = GDN_D, LD = GDN_LD, TAPS = 4 };
    float *x = need((size_t)n_rows * LD * sizeof *x);
    float *taps = need(TAPS * LD * sizeof *taps);
    float *past = need((TAPS - 1) * LD * sizeof *past);
    double best = 1e9;
    fill(taps, TAPS * LD);
    fill(past, (TAPS - 1) * LD);
    for (int i = 0; i < REPETITIONS; i++) {
        fill(x, (size_t)n_rows * LD);
        const double begin = now();
        for (size_t h = 0; h < LD; h += D) {
            k->gdn_conv(x + h, LD, n_rows, D, taps + h, past + h, TAPS, LD);
        }
        const double spent = (now() - begin) / n_rows;
        best = spent < best ? spent : best;
    }
    printf("%-9s its convolution, %3u tokens: %.3f us per token of %d channels\n", k->name, n_rows,
           best * 1e6, LD);
    mx_free(x);
    mx_free(taps);
    mx_free(past);
}

static void bench_vectors(const mx_kern *k)
{
    enum { N = 1536, TIMES = 200 };
    static float x[N];
    static float y[N];
    static float z[N];
    fill(x, N);
    fill(y, N);
    mx_act a;
    mx_act_bind(&a, act_type, 1, N, false, need(mx_act_bytes(act_type, 1, N, false)));
    double best[3] = {1e9, 1e9, 1e9};
    bool ok = true;
    for (int i = 0; i < REPETITIONS; i++) {
        double t[4];
        t[0] = now();
        for (int j = 0; j < TIMES; j++) {
            ok = k->act_quantize(&a, x, N, 0, 1) && ok;
        }
        t[1] = now();
        for (int j = 0; j < TIMES; j++) {
            k->silu_mul(z, x, y, N);
        }
        t[2] = now();
        for (int j = 0; j < TIMES; j++) {
            k->rmsnorm(z, x, y, N, 1e-5f);
        }
        t[3] = now();
        for (int j = 0; j < 3; j++) {
            const double spent = (t[j + 1] - t[j]) / TIMES / N * 1e9;
            best[j] = spent < best[j] ? spent : best[j];
        }
    }
    printf("%-9s ns per element: quantise %.3f, silu %.3f, rmsnorm %.3f\n", k->name, best[0],
           best[1], best[2]);
    mx_free(a.q);
    if (!ok) {
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, MX_CPU_AVX2, MX_CPU_AVXVNNI, MX_CPU_AVX512,
                                          MX_CPU_NEON};
    size_t n_measured = 0;
    mx_kern_thread_init();
    act_type = argc > 3 && strcmp(argv[3], "8") == 0 ? MX_ACT_8 : MX_ACT_16;
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        const mx_kern *k = mx_kern_get(levels[l]);
        if (k->level != levels[l] || (argc > 1 && strcmp(argv[1], k->name) != 0)) {
            continue;
        }
        for (size_t t = 0; t < MX_COUNT(types); t++) {
            if (argc < 3 || strcasecmp(argv[2], mx_qtype_get(types[t])->name) == 0) {
                bench_matmul(k, types[t]);
                n_measured++;
            }
        }
        if (argc < 3) {
            bench_vectors(k);
            bench_gdn(k, 512);
            bench_gdn(k, 1);
            bench_conv(k, 512);
            bench_conv(k, 1);
        }
    }
    if (n_measured == 0) {
        fprintf(stderr, "bench_kern: this machine has no such level, or there is no such type; "
                "usage: bench_kern [LEVEL [TYPE [BITS]]]\n");
        return 1;
    }
    return 0;
}
