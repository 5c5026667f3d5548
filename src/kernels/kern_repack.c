/* SPDX-License-Identifier: MIT
 *
 * File rows to panels of 16 rows (the layout is drawn in kern_layout.h), and one row back.
 *
 * The quants stay as narrow as in the file, only their order changes: the neighbours of a lane
 * become the pair that one 16-bit multiply-add instruction consumes. Done once, while loading.
 */
#include "kernels/kern_dequant.h"

#include <assert.h>

static uint32_t subs_in_group(uint32_t n_cols, uint32_t group)
{
    const uint32_t left = n_cols - group * MX_ACT_BLOCK;
    return (left < MX_ACT_BLOCK ? left : MX_ACT_BLOCK) / MX_SUB_BLOCK;
}

/* 0 on overflow. */
static size_t panel_bytes_of(mx_qtype type, uint32_t n_cols)
{
    size_t bytes;
    if (mx_class_of(type) == MX_CLASS_FLOAT) {
        if (!mx_mul_ok(n_cols, MX_PANEL_ROWS * mx_float_bytes(type), &bytes)) {
            return 0;
        }
        return mx_round_up(bytes, MX_VEC_BYTES);
    }
    const uint32_t n_full = n_cols / MX_ACT_BLOCK;
    if (!mx_mul_ok(n_full, mx_group_bytes(type, MX_GROUP_SUBS), &bytes)) {
        return 0;
    }
    const uint32_t tail = n_cols % MX_ACT_BLOCK / MX_SUB_BLOCK;
    return bytes + (tail != 0 ? mx_group_bytes(type, tail) : 0);
}

size_t mx_wmat_bytes(mx_qtype type, uint32_t n_rows, uint32_t n_cols)
{
    const mx_qtype_info *info = mx_qtype_get(type);
    size_t bytes;
    if (info == NULL || n_rows == 0 || n_cols == 0 || n_cols % info->block_elems != 0) {
        return 0;
    }
    const size_t panels = ((size_t)n_rows + MX_PANEL_ROWS - 1) / MX_PANEL_ROWS;
    return mx_mul_ok(panels, panel_bytes_of(type, n_cols), &bytes) ? bytes : 0;
}

/* ---- putting one lane of 32 inputs into the quant vectors ------------------------------------- */

static uint32_t get_lane(const uint8_t *vectors, int vector, int lane)
{
    return mx_get_le32(vectors + vector * MX_VEC_BYTES + lane * 4);
}

static void put_lane(uint8_t *vectors, int vector, int lane, uint32_t v)
{
    mx_put_le32(vectors + vector * MX_VEC_BYTES + lane * 4, v);
}

/* The bytes 0, 2, 4, 6 of x, each below 16, as four nibbles. */
static uint32_t even_nibbles(uint64_t x)
{
    /* byte 2i belongs at bit 48 + 4i: one product moves all four, and what it adds below stays
     * apart */
    const uint64_t moves = 1ull << 48 | 1ull << 36 | 1ull << 24 | 1ull << 12;
    return (uint32_t)((x & 0x000f000f000f000full) * moves >> 48);
}

static void put_nibbles(uint8_t *out, int lane, const uint8_t *q)
{
    for (int i = 0; i < 4; i++, q += 8) {
        const uint64_t x = mx_get_le64(q);
        put_lane(out, i, lane, even_nibbles(x) | even_nibbles(x >> 8) << 16);
    }
}

/* Field `bits` at `from` of each q: one bit makes one vector, two bits make two. */
static void put_plane(uint8_t *out, int lane, const uint8_t *q, int from, int bits)
{
    const uint32_t mask = (1u << bits) - 1;
    const int per_vector = 16 / bits;
    for (int i = 0; i < bits; i++) {
        uint32_t v = 0;
        for (int p = i * per_vector; p < (i + 1) * per_vector; p++) {
            const uint32_t even = (uint32_t)q[2 * p] >> from & mask;
            const uint32_t odd = (uint32_t)q[2 * p + 1] >> from & mask;
            v |= (even | odd << 16) << (bits == 1 ? mx_one_bit_at(p) : mx_two_bits_at(p));
        }
        put_lane(out, i, lane, v);
    }
}

static void put_bytes(uint8_t *out, int lane, const uint8_t *q)
{
    for (int i = 0; i < 4; i++, q += 8) {
        for (int odd = 0; odd < 2; odd++) {
            const uint8_t *from = q + 2 * odd;
            put_lane(out, 2 * i + odd, lane,
                     from[0] | (uint32_t)from[4] << 8 | (uint32_t)from[1] << 16 |
                         (uint32_t)from[5] << 24);
        }
    }
}

static void put_quants(mx_qtype type, uint8_t *out, int lane, const uint8_t *q)
{
    switch (mx_class_of(type)) {
    case MX_CLASS_NIB_BIT:
        put_plane(out + 4 * MX_VEC_BYTES, lane, q, 4, 1);
        put_nibbles(out, lane, q);
        break;
    case MX_CLASS_NIB_TWO:
        put_plane(out + 4 * MX_VEC_BYTES, lane, q, 4, 2);
        put_nibbles(out, lane, q);
        break;
    case MX_CLASS_NIB:
        put_nibbles(out, lane, q);
        break;
    case MX_CLASS_TWO_BIT:
        put_plane(out + 2 * MX_VEC_BYTES, lane, q, 2, 1);
        put_plane(out, lane, q, 0, 2);
        break;
    case MX_CLASS_TWO:
        put_plane(out, lane, q, 0, 2);
        break;
    case MX_CLASS_BYTE:
        put_bytes(out, lane, q);
        break;
    case MX_CLASS_FLOAT:
        assert(false);
    }
}

/* The stored field of input k (0..31) of a lane. */
static uint8_t get_quant(mx_qtype type, const uint8_t *v, int lane, int k)
{
    const int half = 16 * (k & 1);
    const int pair = k / 2;
    const int one = mx_one_bit_at(pair);
    const int two = mx_two_bits_at(pair);
    const uint32_t nib = mx_class_of(type) <= MX_CLASS_NIB_TWO
                             ? get_lane(v, pair / 4, lane) >> (half + 4 * (pair % 4)) & 15u
                             : 0;
    switch (mx_class_of(type)) {
    case MX_CLASS_NIB:
        return (uint8_t)nib;
    case MX_CLASS_NIB_BIT:
        return (uint8_t)(nib | (get_lane(v, 4, lane) >> (half + one) & 1u) << 4);
    case MX_CLASS_NIB_TWO:
        return (uint8_t)(nib | (get_lane(v, 4 + pair / 8, lane) >> (half + two) & 3u) << 4);
    case MX_CLASS_TWO:
        return (uint8_t)(get_lane(v, pair / 8, lane) >> (half + two) & 3u);
    case MX_CLASS_TWO_BIT:
        return (uint8_t)((get_lane(v, pair / 8, lane) >> (half + two) & 3u) |
                         (get_lane(v, 2, lane) >> (half + one) & 1u) << 2);
    case MX_CLASS_BYTE:
        return (uint8_t)(get_lane(v, pair / 4 * 2 + pair % 2, lane) >> (half + pair % 4 / 2 * 8));
    case MX_CLASS_FLOAT:
        break;
    }
    return 0;
}

/* ---- scales ----------------------------------------------------------------------------------- */

/* A 32-block type: the file's own f16 (or exponent byte) of this block, at sub-block `sub`. */
static void put_block_scales(mx_qtype type, uint8_t *scales, uint32_t sub, int lane,
                             const uint8_t *block)
{
    if (type == MX_MXFP4) {
        scales[sub * 16 + (uint32_t)lane] = block[0];
    } else if (mx_has_min(type)) {
        memcpy(scales + sub * 64 + lane * 2, block, 2);
        memcpy(scales + sub * 64 + 32 + lane * 2, block + 2, 2);
    } else {
        memcpy(scales + sub * 32 + lane * 2, block, 2);
    }
}

/* A 256-block type: f16 scales first, then one vector of bytes per sub-block. */
static void put_super_scales(mx_qtype type, uint8_t *scales, int lane, const mx_block *b)
{
    /* d and dmin came from f16, so they go back without loss (also a NaN, made quiet) */
    mx_put_le16(scales + lane * 2, mx_f16_of_f32(b->d));
    scales += 32;
    if (mx_has_min(type)) {
        mx_put_le16(scales + lane * 2, mx_f16_of_f32(b->dmin));
        scales += 32;
    }
    const int n = 256 / mx_sub_of(type);
    for (int s = 0; s < n; s++) {
        if (type == MX_Q2_K) {
            scales[s * 16 + lane] = (uint8_t)(b->scale[s] | b->min[s] << 4);
        } else {
            scales[s * 16 + lane] = (uint8_t)b->scale[s];
        }
        if (type == MX_Q4_K || type == MX_Q5_K) {
            scales[(n + s) * 16 + lane] = b->min[s];
        }
    }
}

/* Scale and minimum of the sub-block that holds input k (0..255) of a group. */
static void get_scales(mx_qtype type, const uint8_t *scales, int lane, int k, float *ws, float *wm)
{
    const int sub = k / MX_SUB_BLOCK;
    *wm = 0;
    if (type == MX_MXFP4) {
        *ws = mx_f32_of_e8m0_half(scales[sub * 16 + lane]);
        return;
    }
    if (!mx_is_super(type)) {
        const int stride = mx_has_min(type) ? 64 : 32;
        *ws = mx_f32_of_f16(mx_get_le16(scales + sub * stride + lane * 2));
        if (mx_has_min(type)) {
            *wm = mx_f32_of_f16(mx_get_le16(scales + sub * stride + 32 + lane * 2));
        }
        return;
    }
    const float d = mx_f32_of_f16(mx_get_le16(scales + lane * 2));
    const float dmin = mx_f32_of_f16(mx_get_le16(scales + 32 + lane * 2));
    const uint8_t *bytes = scales + (mx_has_min(type) ? 64 : 32);
    const int s = k / mx_sub_of(type);
    const uint8_t byte = bytes[s * 16 + lane];
    if (type == MX_Q2_K) {
        *ws = d * (float)(byte & 15);
        *wm = -(dmin * (float)(byte >> 4));
    } else {
        *ws = d * (float)(int8_t)byte;
        if (mx_has_min(type)) {
            *wm = -(dmin * (float)bytes[(256 / mx_sub_of(type) + s) * 16 + lane]);
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------- */

static void pack_row(const mx_wmat *w, uint8_t *panel, int lane, const uint8_t *row)
{
    const mx_qtype_info *info = mx_qtype_get(w->type);
    if (mx_class_of(w->type) == MX_CLASS_FLOAT) {
        const size_t size = info->block_bytes;
        for (uint32_t k = 0; k < w->n_cols; k++) {
            memcpy(panel + (k * (size_t)MX_PANEL_ROWS + (size_t)lane) * size, row + k * size, size);
        }
        return;
    }
    const uint32_t n_groups = (w->n_cols + MX_ACT_BLOCK - 1) / MX_ACT_BLOCK;
    const size_t quant_bytes = mx_quant_bytes(w->type);
    for (uint32_t g = 0; g < n_groups; g++) {
        uint8_t *group = panel + g * mx_group_bytes(w->type, MX_GROUP_SUBS);
        const uint32_t n_subs = subs_in_group(w->n_cols, g);
        uint8_t *scales = group + n_subs * quant_bytes;
        mx_block b;
        for (uint32_t s = 0; s < n_subs; s++) {
            const uint32_t in_block = mx_is_super(w->type) ? s : 0;
            if (in_block == 0) {
                mx_block_unpack(w->type, row, &b);
                if (mx_is_super(w->type)) {
                    put_super_scales(w->type, scales, lane, &b);
                } else {
                    put_block_scales(w->type, scales, s, lane, row);
                }
                row += info->block_bytes;
            }
            put_quants(w->type, group + s * quant_bytes, lane, b.q + in_block * MX_SUB_BLOCK);
        }
    }
}

void mx_wmat_bind(mx_wmat *w, mx_qtype type, uint32_t n_rows, uint32_t n_cols, void *memory)
{
    const size_t total = mx_wmat_bytes(type, n_rows, n_cols);
    assert(total != 0 && (uintptr_t)memory % MX_VEC_BYTES == 0);
    w->type = type;
    w->n_rows = n_rows;
    w->n_cols = n_cols;
    w->n_panels = (n_rows - 1) / MX_PANEL_ROWS + 1;
    w->panel_bytes = total / w->n_panels;
    w->panels = memory;
}

void mx_wmat_repack_panels(const mx_wmat *w, uint32_t first, uint32_t n, const uint8_t *file_rows)
{
    const mx_qtype_info *info = mx_qtype_get(w->type);
    const size_t row_bytes = (size_t)w->n_cols / info->block_elems * info->block_bytes;
    assert(first <= w->n_panels && n <= w->n_panels - first);
    /* Padding of groups and the lanes beyond the last row: zero scales give zero outputs. */
    for (uint32_t p = first; p < first + n; p++) {
        uint8_t *panel = w->panels + p * w->panel_bytes;
        memset(panel, 0, w->panel_bytes);
        for (uint32_t lane = 0; lane < MX_PANEL_ROWS && p * MX_PANEL_ROWS + lane < w->n_rows;
             lane++)
        {
            const size_t row = (size_t)p * MX_PANEL_ROWS + lane;
            pack_row(w, panel, (int)lane, file_rows + row * row_bytes);
        }
    }
}

void mx_wmat_repack(mx_wmat *w, mx_qtype type, uint32_t n_rows, uint32_t n_cols,
                    const uint8_t *file_rows, void *memory)
{
    mx_wmat_bind(w, type, n_rows, n_cols, memory);
    mx_wmat_repack_panels(w, 0, w->n_panels, file_rows);
}

void mx_wmat_row_portable(const mx_wmat *w, uint32_t row, float *out)
{
    assert(row < w->n_rows);
    const uint8_t *panel = w->panels + row / MX_PANEL_ROWS * w->panel_bytes;
    const int lane = (int)(row % MX_PANEL_ROWS);
    if (mx_class_of(w->type) == MX_CLASS_FLOAT) {
        const size_t size = mx_float_bytes(w->type);
        for (uint32_t k = 0; k < w->n_cols; k++) {
            mx_dequantize(w->type, panel + (k * (size_t)MX_PANEL_ROWS + (size_t)lane) * size, 1,
                          out + k);
        }
        return;
    }
    const size_t quant_bytes = mx_quant_bytes(w->type);
    float ws = 0;
    float wm = 0;
    for (uint32_t k = 0; k < w->n_cols; k++) {
        const uint32_t g = k / MX_ACT_BLOCK;
        const int in_group = (int)(k % MX_ACT_BLOCK);
        const uint8_t *group = panel + g * mx_group_bytes(w->type, MX_GROUP_SUBS);
        if (in_group % mx_sub_of(w->type) == 0) {
            const uint8_t *scales = group + subs_in_group(w->n_cols, g) * quant_bytes;
            get_scales(w->type, scales, lane, in_group, &ws, &wm);
        }
        const uint8_t *quants = group + (size_t)(in_group / MX_SUB_BLOCK) * quant_bytes;
        const uint8_t q = get_quant(w->type, quants, lane, in_group % MX_SUB_BLOCK);
        out[k] = mx_weight_value(w->type, q, ws, wm);
    }
}
