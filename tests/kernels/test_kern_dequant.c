/* SPDX-License-Identifier: MIT
 *
 * Dequantisation against golden values from the reference dequantisers (gen_dequant_golden.py), and
 * the way there and back through panels.
 */
#include "kern_check.h"

#include "kernels/kern_layout.h"

static uint8_t *read_golden(size_t *size)
{
    FILE *f = fopen("tests/kernels/golden/dequant.bin", "rb");
    assert_non_null(f);
    uint8_t *bytes = need(1 << 20);
    *size = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static void golden_values(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = read_golden(&size);
    size_t at = 0;
    int types = 0;
    while (at < size) {
        const mx_qtype_info *info = mx_qtype_get(mx_get_le32(bytes + at));
        assert_non_null(info);
        const size_t blocks = mx_get_le32(bytes + at + 4);
        assert_int_equal(info->block_bytes, mx_get_le32(bytes + at + 8));
        assert_int_equal(info->block_elems, mx_get_le32(bytes + at + 12));
        at += 16;
        const size_t n = blocks * info->block_elems;
        const uint8_t *values = bytes + at + blocks * info->block_bytes;
        float *want = need(n * sizeof *want);
        float *got = need(n * sizeof *got);
        for (size_t i = 0; i < n; i++) {
            want[i] = float_of_bits(mx_get_le32(values + 4 * i));
        }
        mx_dequantize(info->type, bytes + at, n, got);
        check_same(want, got, n, info->name, 0);
        mx_free(want);
        mx_free(got);
        at += blocks * info->block_bytes + n * 4;
        types++;
    }
    assert_int_equal(at, size);
    assert_int_equal(types, 13);
    mx_free(bytes);
}

/* Every half against its meaning written with ldexp, and back. */
static void halves(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const int exp = (int)(h >> 10 & 31);
        const int man = (int)(h & 1023);
        double want = exp == 0 ? ldexp(man, -24) : ldexp(1024 + man, exp - 25);
        if (exp == 31) {
            want = man == 0 ? (double)INFINITY : (double)NAN;
        }
        if (h & 0x8000) {
            want = -want;
        }
        const uint8_t bytes[2] = {(uint8_t)h, (uint8_t)(h >> 8)};
        float got;
        mx_dequantize(MX_F16, bytes, 1, &got);
        if (!same((float)want, got)) {
            fail_msg("half %04x: expected %a, got %a", h, want, (double)got);
        }
        if (exp != 31 || man == 0) {
            assert_int_equal(mx_f16_of_f32(got), h);
        }
        mx_dequantize(MX_BF16, bytes, 1, &got);
        assert_int_equal(bits_of_float(got), h << 16);
    }
}

/* Rounding to half: exact neighbours from the table of halves, ties to the even one. */
static void half_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) {
        const double a = (double)mx_f32_of_f16((uint16_t)h);
        const double b = (double)mx_f32_of_f16((uint16_t)(h + 1));
        const float tie = (float)((a + b) / 2);
        const uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(mx_f16_of_f32(tie), even);
        assert_int_equal(mx_f16_of_f32(nextafterf(tie, 0)), h);
        assert_int_equal(mx_f16_of_f32(nextafterf(tie, INFINITY)), h + 1);
        assert_int_equal(mx_f16_of_f32(-tie), even | 0x8000);
    }
    assert_int_equal(mx_f16_of_f32(65519.0f), 0x7bff);
    assert_int_equal(mx_f16_of_f32(65520.0f), 0x7c00);
    assert_int_equal(mx_f16_of_f32(1e30f), 0x7c00);
    assert_int_equal(mx_f16_of_f32(-INFINITY), 0xfc00);
}

/* A matrix through panels: each row comes back as mx_dequantize gives it. */
static void panels_keep_rows(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 7, 32, 64, 96, 256, 288, 576, 1536};
    for (size_t t = 0; t < MX_COUNT(all_types); t++) {
        const mx_qtype type = all_types[t];
        const mx_qtype_info *info = mx_qtype_get(type);
        for (size_t i = 0; i < MX_COUNT(widths); i++) {
            const uint32_t cols = fit_cols(type, widths[i]);
            const uint32_t rows = 1 + (uint32_t)(7 * i + t) % 40;
            const uint64_t seed = 100 * t + i;
            rng r = {seed};
            const size_t row_bytes = cols / info->block_elems * info->block_bytes;
            uint8_t *file = need(rows * row_bytes);
            fill_blocks(&r, i % 2 ? FILL_NORMAL : FILL_ANY_FINITE, type, file,
                        (size_t)rows * cols / info->block_elems);
            const size_t bytes = mx_wmat_bytes(type, rows, cols);
            assert_true(bytes >= rows * row_bytes);
            void *memory = need(bytes);
            mx_wmat w;
            mx_wmat_repack(&w, type, rows, cols, file, memory);
            assert_int_equal(w.n_panels, (rows + 15) / 16);
            assert_int_equal(w.n_panels * w.panel_bytes, bytes);
            float *want = need(cols * sizeof *want);
            float *got = need(cols * sizeof *got);
            for (uint32_t row = 0; row < rows; row++) {
                mx_dequantize(type, file + row * row_bytes, cols, want);
                mx_kern_get(mx_cpu_best())->wmat_row(&w, row, got);
                check_same(want, got, cols, info->name, seed);
            }
            /* in pieces, the last one first */
            void *again = need(bytes);
            memset(again, 0xA5, bytes);
            mx_wmat_bind(&w, type, rows, cols, again);
            mx_wmat_repack_panels(&w, w.n_panels - 1, 1, file);
            mx_wmat_repack_panels(&w, 0, w.n_panels - 1, file);
            assert_memory_equal(memory, again, bytes);
            mx_free(again);
            mx_free(file);
            mx_free(memory);
            mx_free(want);
            mx_free(got);
        }
    }
}

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(mx_wmat_bytes(MX_Q4_0, 0, 32), 0);
    assert_int_equal(mx_wmat_bytes(MX_Q4_0, 16, 0), 0);
    assert_int_equal(mx_wmat_bytes(MX_Q4_0, 16, 33), 0);
    assert_int_equal(mx_wmat_bytes(MX_Q4_K, 16, 128), 0);
    assert_int_equal(mx_wmat_bytes((mx_qtype)9, 16, 32), 0);
    assert_true(mx_wmat_bytes(MX_F32, UINT32_MAX, UINT32_MAX) == 0);
    for (size_t t = 0; t < MX_COUNT(all_types); t++) { /* close to the file's own size */
        const mx_qtype_info *info = mx_qtype_get(all_types[t]);
        const size_t file = (size_t)64 * 1536 / info->block_elems * info->block_bytes;
        const size_t packed = mx_wmat_bytes(all_types[t], 64, 1536);
        if (packed < file || (double)packed > 1.15 * (double)file) {
            fail_msg("%s: %zu bytes in the file, %zu packed", info->name, file, packed);
        }
    }
    assert_int_equal(mx_act_bytes(MX_ACT_16, UINT32_MAX, UINT32_MAX, true), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_values), cmocka_unit_test(halves), cmocka_unit_test(half_rounding),
        cmocka_unit_test(panels_keep_rows), cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
