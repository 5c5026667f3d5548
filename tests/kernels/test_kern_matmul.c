/* SPDX-License-Identifier: MIT
 *
 * Matrix times rows: the portable level against a plain transcription of docs/numerics.md and
 * against double precision, every other level against the portable one, bit for bit, for any number
 * of rows and any split of the panels.
 */
#include "kern_check.h"

#include "kernels/kern_dequant.h"

typedef struct problem {
    mx_qtype type;
    mx_act_type act;
    uint32_t n_out, n_cols, n_rows;
    uint64_t seed;
    uint8_t *file;
    void *panels;
    void *act_memory;
    void *scratch;
    float *x; /* [n_rows][n_cols] */
    mx_wmat w;
    mx_act a;
} problem;

static void problem_init(problem *p, mx_act_type act, mx_qtype type, uint32_t n_out,
                         uint32_t n_cols, uint32_t n_rows, fill weights, fill rows, uint64_t seed)
{
    const mx_qtype_info *info = mx_qtype_get(type);
    rng r = {seed};
    *p = (problem){.type = type, .act = act, .n_out = n_out, .n_cols = n_cols, .n_rows = n_rows,
                   .seed = seed};
    const size_t blocks = (size_t)n_out * n_cols / info->block_elems;
    p->file = need(blocks * info->block_bytes);
    fill_blocks(&r, weights, type, p->file, blocks);
    p->panels = need(mx_wmat_bytes(type, n_out, n_cols));
    mx_wmat_repack(&p->w, type, n_out, n_cols, p->file, p->panels);
    p->act_memory = need(mx_act_bytes(act, n_rows, n_cols, true));
    mx_act_bind(&p->a, act, n_rows, n_cols, true, p->act_memory);
    p->x = need((size_t)n_rows * n_cols * sizeof(float));
    fill_floats(&r, rows, p->x, (size_t)n_rows * n_cols);
    p->scratch = need(mx_kern_matmul_scratch(&p->w));
}

static void problem_free(problem *p)
{
    mx_free(p->file);
    mx_free(p->panels);
    mx_free(p->act_memory);
    mx_free(p->x);
    mx_free(p->scratch);
}

/* One output as docs/numerics.md, sections 3 and 4 say, from the file bytes and the f32 row. */
static float transcription(const problem *p, uint32_t row, uint32_t out)
{
    const mx_qtype_info *info = mx_qtype_get(p->type);
    const float *x = p->x + (size_t)row * p->n_cols;
    const uint8_t *bytes =
        p->file + (size_t)out * p->n_cols / info->block_elems * info->block_bytes;
    float acc = 0;
    if (info->block_elems == 1) {
        for (uint32_t k = 0; k < p->n_cols; k++) {
            float w;
            mx_dequantize(p->type, bytes + k * info->block_bytes, 1, &w);
            acc = fmaf(w, x[k], acc);
        }
        return acc;
    }
    const uint32_t sub = (uint32_t)mx_sub_of(p->type);
    const uint32_t block = p->act == MX_ACT_8 ? 32 : 256;
    const float most = p->act == MX_ACT_8 ? 127 : 32767;
    for (uint32_t b = 0; b < p->n_cols; b += block) {
        const uint32_t n = p->n_cols - b < block ? p->n_cols - b : block;
        float amax = 0;
        for (uint32_t k = 0; k < n; k++) {
            amax = fabsf(x[b + k]) > amax ? fabsf(x[b + k]) : amax;
        }
        const float inv = amax < 0x1p-100f ? 0 : most / amax;
        const float d = amax < 0x1p-100f ? 0 : amax / most;
        float t = 0;
        for (uint32_t s = 0; s < n; s += sub) {
            const uint32_t at = (b + s) % info->block_elems;
            mx_block blk;
            mx_block_unpack(p->type, bytes + (b + s) / info->block_elems * info->block_bytes, &blk);
            int64_t isum = 0;
            int64_t asum = 0;
            for (uint32_t k = 0; k < sub; k++) {
                float v = x[b + s + k] * inv;
                v = v > -most ? v : -most;
                v = v < most ? v : most;
                const int64_t q = (int64_t)rintf(v);
                isum += q * mx_quant_value(p->type, blk.q[at + k]);
                asum += q;
            }
            const bool super = info->block_elems == 256;
            const float ws = super ? blk.d * (float)blk.scale[at / sub] : blk.d;
            t = fmaf((float)isum, ws, t);
            if (mx_has_min(p->type)) {
                const float wm = super ? -(blk.dmin * (float)blk.min[at / sub]) : blk.dmin;
                t = fmaf((float)asum, wm, t);
            }
        }
        acc = fmaf(t, d, acc);
    }
    return acc;
}

static void portable_follows(mx_act_type act)
{
    static const uint32_t widths[] = {32, 64, 96, 288, 576, 1536};
    const mx_kern *k = mx_kern_get(MX_CPU_PORTABLE);
    for (size_t t = 0; t < MX_COUNT(all_types); t++) {
        for (size_t i = 0; i < MX_COUNT(widths); i++) {
            problem p;
            problem_init(&p, act, all_types[t], 5, fit_cols(all_types[t], widths[i]), FILL_KINDS,
                         i % 2 ? FILL_NORMAL : FILL_ANY_FINITE, FILL_NORMAL, 1000 + 10 * t + i);
            for (uint32_t r = 0; r < p.n_rows; r++) { /* each row its own kind */
                rng rg = {p.seed + r};
                fill_floats(&rg, (fill)r, p.x + (size_t)r * p.n_cols, p.n_cols);
            }
            assert_true(k->act_quantize(&p.a, p.x, p.n_cols, 0, p.n_rows));
            float y[FILL_KINDS * 5];
            k->matmul(&p.w, &p.a, p.n_rows, y, 5, 0, 1, p.scratch);
            for (uint32_t r = 0; r < p.n_rows; r++) {
                for (uint32_t o = 0; o < 5; o++) {
                    const float want = transcription(&p, r, o);
                    check_same(&want, &y[r * 5 + o], 1, mx_qtype_get(p.type)->name, p.seed);
                }
            }
            problem_free(&p);
        }
    }
}

static void portable_follows_the_document(void **state)
{
    (void)state;
    portable_follows(MX_ACT_16);
    portable_follows(MX_ACT_8);
}

/* The error against exact arithmetic comes from 16-bit activations: at most half a step each. */
static void close_to_exact(void **state)
{
    (void)state;
    const mx_kern *k = mx_kern_get(mx_cpu_best());
    for (size_t t = 0; t < MX_COUNT(all_types); t++) {
        problem p;
        const uint32_t cols = fit_cols(all_types[t], 1536);
        problem_init(&p, MX_ACT_16, all_types[t], 33, cols, 3, FILL_NORMAL, FILL_NORMAL, 77 + t);
        assert_true(k->act_quantize(&p.a, p.x, cols, 0, 3));
        float y[3 * 33];
        k->matmul(&p.w, &p.a, 3, y, 33, 0, p.w.n_panels, p.scratch);
        float *w = need(cols * sizeof *w);
        for (uint32_t o = 0; o < 33; o++) {
            k->wmat_row(&p.w, o, w);
            for (uint32_t r = 0; r < 3; r++) {
                double sum = 0;
                double weight = 0;
                for (uint32_t c = 0; c < cols; c++) {
                    sum += (double)w[c] * (double)p.x[r * cols + c];
                    weight += fabs((double)w[c]);
                }
                const double bound = weight * (0.51 / 32767 + cols * 0x1p-24);
                const double err = fabs(sum - (double)y[r * 33 + o]);
                if (!(err <= bound)) {
                    fail_msg("%s: expected %g, got %g, bound %g", mx_qtype_get(p.type)->name, sum,
                             (double)y[r * 33 + o], bound);
                }
            }
        }
        mx_free(w);
        problem_free(&p);
    }
}

static void check_act_same(const mx_act *a, const mx_act *b, uint64_t seed)
{
    for (size_t r = 0; r < a->max_rows; r++) {
        assert_memory_equal(a->q + r * a->q_stride, b->q + r * b->q_stride, a->q_stride * 2);
        for (size_t i = 0; a->type == MX_ACT_8 && i < a->q_stride; i++) {
            static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
            const int q = a->q[r * a->q_stride + i / 8 * 8 + order[i % 8]];
            assert_int_equal(b->q8[r * a->q_stride + i], q);
            assert_int_equal(b->q8_biased[r * a->q_stride + i], q + 128);
        }
        check_same(a->sum32 + r * a->n_sums32, b->sum32 + r * b->n_sums32, a->n_sums32, "sum32",
                   seed);
        check_same(a->scale + r * a->n_blocks, b->scale + r * b->n_blocks, a->n_blocks, "scale",
                   seed);
        check_same(a->sum + r * a->n_sums, b->sum + r * b->n_sums, a->n_sums, "sum", seed);
    }
}

/* One problem on level k: activations, all rows at once, each number of rows, each panel split. */
static void compare_level(const mx_kern *k, problem *p)
{
    const mx_kern *ref = mx_kern_get(MX_CPU_PORTABLE);
    const char *name = mx_qtype_get(p->type)->name;
    const size_t n = (size_t)p->n_rows * p->n_out;
    float *want = need(n * sizeof *want);
    float *got = need(n * sizeof *got);
    assert_true(ref->act_quantize(&p->a, p->x, p->n_cols, 0, p->n_rows));
    ref->matmul(&p->w, &p->a, p->n_rows, want, p->n_out, 0, p->w.n_panels, p->scratch);

    const size_t act_bytes = mx_act_bytes(p->act, p->n_rows, p->n_cols, true);
    void *memory = need(act_bytes);
    memset(memory, 0xff, act_bytes); /* what stood there before is no matter */
    mx_act a;
    mx_act_bind(&a, p->act, p->n_rows, p->n_cols, true, memory);
    const uint32_t cut = p->n_rows / 2;
    assert_true(k->act_quantize(&a, p->x, p->n_cols, 0, cut));
    assert_true(k->act_quantize(&a, p->x + (size_t)cut * p->n_cols, p->n_cols, cut, p->n_rows));
    check_act_same(&p->a, &a, p->seed);

    for (uint32_t rows = 1; rows <= p->n_rows; rows += rows < 12 || rows + 9 > p->n_rows ? 1 : 9) {
        const uint32_t split = rows % (p->w.n_panels + 1);
        memset(got, 0xff, n * sizeof *got);
        k->matmul(&p->w, &a, rows, got, p->n_out, split, p->w.n_panels, p->scratch);
        k->matmul(&p->w, &a, rows, got, p->n_out, 0, split, p->scratch);
        check_same(want, got, (size_t)rows * p->n_out, name, p->seed);
        for (size_t i = (size_t)rows * p->n_out; i < n; i++) {
            assert_int_equal(bits_of_float(got[i]), 0xffffffffu); /* nothing else was written */
        }
    }
    mx_free(want);
    mx_free(got);
    mx_free(memory);
}

static void levels_equal_as(mx_cpu_level level, mx_act_type act)
{
    static const uint32_t widths[] = {32, 64, 96, 256, 320, 576, 1536};
    const mx_kern *k = level_or_null(level);
    if (k == NULL) {
        skip();
    }
    for (size_t t = 0; t < MX_COUNT(all_types); t++) {
        for (size_t i = 0; i < MX_COUNT(widths); i++) {
            const uint64_t seed = 5000 + 100 * t + i;
            const uint32_t rows = widths[i] == 576 ? 70 : 1 + (uint32_t)(seed % 23);
            problem p;
            problem_init(&p, act, all_types[t], 1 + (uint32_t)(seed * 7 % 50),
                         fit_cols(all_types[t], widths[i]), rows, (fill)(i % FILL_KINDS),
                         i % 3 == 0 ? FILL_OUTLIER : FILL_NORMAL, seed);
            for (uint32_t r = 0; r < rows; r++) {
                rng rg = {seed + r};
                fill_floats(&rg, (fill)(r % FILL_KINDS), p.x + (size_t)r * p.n_cols, p.n_cols);
            }
            compare_level(k, &p);
            problem_free(&p);
        }
    }
}

static void levels_equal(mx_cpu_level level)
{
    levels_equal_as(level, MX_ACT_16);
    levels_equal_as(level, MX_ACT_8);
}

LEVEL_TEST_FNS

/* More rows than one expansion serves. */
static void many_rows(void **state)
{
    (void)state;
    const mx_kern *k = mx_kern_get(mx_cpu_best());
    problem p;
    problem_init(&p, MX_ACT_16, MX_Q4_1, 20, 288, 300, FILL_NORMAL, FILL_NORMAL, 9);
    assert_true(k->act_quantize(&p.a, p.x, p.n_cols, 0, p.n_rows));
    float *all = need(300 * 20 * sizeof *all);
    float one[20];
    k->matmul(&p.w, &p.a, 300, all, 20, 0, 2, p.scratch);
    for (uint32_t r = 0; r < 300; r++) {
        void *memory = need(mx_act_bytes(MX_ACT_16, 1, 288, true));
        mx_act a;
        mx_act_bind(&a, MX_ACT_16, 1, 288, true, memory);
        assert_true(k->act_quantize(&a, p.x + (size_t)r * 288, 288, 0, 1));
        k->matmul(&p.w, &a, 1, one, 20, 0, 2, p.scratch);
        check_same(one, all + 20 * r, 20, "row alone", r);
        mx_free(memory);
    }
    mx_free(all);
    problem_free(&p);
}

static void extreme_integers_fit(void **state)
{
    (void)state;
    /* all quants and activations at their limits, of one sign: the largest integer sums */
    static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, VECTOR_LEVELS};
    enum { ROWS = 13 };
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        const mx_kern *k = level_or_null(levels[l]);
        for (size_t t = 0; k != NULL && t < MX_COUNT(all_types); t++) {
            for (int kind = 0; kind < 8; kind++) {
                problem p;
                const uint32_t cols = fit_cols(all_types[t], 256);
                problem_init(&p, kind & 4 ? MX_ACT_8 : MX_ACT_16, all_types[t], 16, cols, ROWS,
                             FILL_NORMAL, FILL_ZERO, 3);
                const mx_qtype_info *info = mx_qtype_get(p.type);
                int at[3];
                half_offsets(p.type, at);
                memset(p.file, kind & 1 ? 0xff : p.type == MX_Q8_0 ? 0x80 : 0, (size_t)16 * cols /
                       info->block_elems * info->block_bytes);
                for (size_t b = 0; b < (size_t)16 * cols / info->block_elems; b++) {
                    for (int i = 0; at[i] >= 0; i++) {
                        mx_put_le16(p.file + b * info->block_bytes + at[i], 0x3c00);
                    }
                    if (p.type == MX_F32) {
                        mx_put_le32(p.file + b * 4, bits_of_float(3));
                    } else if (p.type == MX_BF16) {
                        mx_put_le16(p.file + b * 2, 0x4040);
                    }
                }
                mx_wmat_repack(&p.w, p.type, 16, cols, p.file, p.panels);
                for (uint32_t i = 0; i < ROWS * cols; i++) {
                    p.x[i] = kind & 2 ? -1.0f : 1.0f;
                }
                assert_true(k->act_quantize(&p.a, p.x, cols, 0, ROWS));
                float y[ROWS * 16];
                for (uint32_t rows = 1; rows <= ROWS; rows += 12) { /* both ways to unpack */
                    k->matmul(&p.w, &p.a, rows, y, 16, 0, 1, p.scratch);
                    const float want = transcription(&p, 0, 7);
                    check_same(&want, &y[(rows - 1) * 16 + 7], 1, info->name, (uint64_t)kind);
                }
                problem_free(&p);
            }
        }
    }
}

static void activations(void **state)
{
    (void)state;
    static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, VECTOR_LEVELS};
    static const uint32_t widths[] = {1, 15, 16, 33, 255, 256, 257, 576};
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        const mx_kern *k = level_or_null(levels[l]);
        for (size_t i = 0; k != NULL && i < MX_COUNT(widths); i++) {
            const uint32_t n = widths[i];
            void *memory = need(mx_act_bytes(MX_ACT_16, 2, n, true));
            float *x = need(2 * n * sizeof *x);
            mx_act a;
            mx_act_bind(&a, MX_ACT_16, 2, n, true, memory);
            rng r = {n};
            fill_floats(&r, FILL_NORMAL, x, 2 * n);
            assert_true(k->act_quantize(&a, x, n, 0, 2));
            for (uint32_t c = 0; c < 2 * n; c++) {
                const size_t row = c / n;
                const size_t col = c % n;
                const double d = (double)a.scale[row * a.n_blocks + col / 256];
                const double v = d * a.q[row * a.q_stride + col];
                assert_true(fabs(v - (double)x[c]) <= 0.505 * d); /* x * inv is rounded, too */
                assert_true(bits_of_float(a.x[c]) == bits_of_float(x[c]));
            }
            static const float bad[] = {INFINITY, -INFINITY, NAN};
            for (size_t b = 0; b < MX_COUNT(bad); b++) {
                const uint32_t where = rng_below(&r, n);
                const float was = x[where];
                x[where] = bad[b];
                assert_false(k->act_quantize(&a, x, n, 0, 1));
                assert_false(k->all_finite(x, n));
                assert_true(k->act_quantize(&a, x + n, n, 1, 2));
                x[where] = was;
                assert_true(k->all_finite(x, n));
            }
            mx_free(memory);
            mx_free(x);
        }
    }
}

int main(void)
{
    mx_kern_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(portable_follows_the_document), cmocka_unit_test(close_to_exact),
        cmocka_unit_test(many_rows),                     cmocka_unit_test(extreme_integers_fit),
        cmocka_unit_test(activations),                   LEVEL_TESTS,
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
