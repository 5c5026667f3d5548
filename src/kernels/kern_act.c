/* SPDX-License-Identifier: MIT
 *
 * Where the parts of an activation buffer lie: [q][scale][sum][sum32][q8][q8 biased][x], each on a cache
 * line; q8 with 8 bits only. x only where a matrix wants it, which in most files is nowhere: it would
 * be larger than all the others together.
 */
#include "kernels/kern_layout.h"

#include <assert.h>

typedef struct act_layout {
    size_t q_stride, n_blocks, n_sums, n_sums32;
    size_t scale_at, sum_at, sum32_at, x_at, q8_at, biased_at, total;
} act_layout;

static bool add_part(size_t rows, size_t per_row, size_t elem, size_t *at)
{
    size_t n;
    size_t end;
    if (!mx_mul_ok(rows, per_row, &n) || !mx_mul_ok(n, elem, &n) || !mx_add_ok(*at, n, &end) ||
        !mx_add_ok(end, MX_VEC_BYTES, &n))
    {
        return false;
    }
    *at = mx_round_up(end, MX_VEC_BYTES);
    return true;
}

static bool layout_of(mx_act_type type, uint32_t max_rows, uint32_t n_cols, bool keeps_x,
                      act_layout *l)
{
    const size_t block = type == MX_ACT_8 ? MX_SUB_BLOCK : MX_ACT_BLOCK;
    l->q_stride = mx_round_up((size_t)n_cols, MX_SUB_BLOCK);
    l->n_blocks = ((size_t)n_cols + block - 1) / block;
    l->n_sums = ((size_t)n_cols + 15) / 16;
    l->n_sums32 = l->q_stride / MX_SUB_BLOCK;
    size_t at = 0;
    bool ok = add_part(max_rows, l->q_stride, sizeof(int16_t), &at);
    l->scale_at = at;
    ok = ok && add_part(max_rows, l->n_blocks, sizeof(float), &at);
    l->sum_at = at;
    ok = ok && add_part(max_rows, l->n_sums, sizeof(float), &at);
    l->sum32_at = at;
    ok = ok && add_part(max_rows, l->n_sums32, sizeof(float), &at);
    l->q8_at = at;
    l->biased_at = at;
    if (type == MX_ACT_8) {
        ok = ok && add_part(max_rows, l->q_stride, 1, &at);
        l->biased_at = at;
        ok = ok && add_part(max_rows, l->q_stride, 1, &at);
    }
    l->x_at = at;
    ok = ok && (!keeps_x || add_part(max_rows, n_cols, sizeof(float), &at));
    l->total = at;
    return ok;
}

size_t mx_act_bytes(mx_act_type type, uint32_t max_rows, uint32_t n_cols, bool keeps_x)
{
    act_layout l;
    return layout_of(type, max_rows, n_cols, keeps_x, &l) ? l.total : 0;
}

void mx_act_bind(mx_act *a, mx_act_type type, uint32_t max_rows, uint32_t n_cols, bool keeps_x,
                 void *memory)
{
    act_layout l;
    const bool ok = layout_of(type, max_rows, n_cols, keeps_x, &l);
    assert(ok && (uintptr_t)memory % MX_VEC_BYTES == 0);
    (void)ok;
    uint8_t *base = memory;
    *a = (mx_act){
        .type = type,
        .max_rows = max_rows,
        .n_cols = n_cols,
        .q_stride = (uint32_t)l.q_stride,
        .n_blocks = (uint32_t)l.n_blocks,
        .n_sums = (uint32_t)l.n_sums,
        .n_sums32 = (uint32_t)l.n_sums32,
        .q = (int16_t *)(void *)base,
        .scale = (float *)(void *)(base + l.scale_at),
        .sum = (float *)(void *)(base + l.sum_at),
        .sum32 = (float *)(void *)(base + l.sum32_at),
        .x = keeps_x ? (float *)(void *)(base + l.x_at) : NULL,
        .q8 = type == MX_ACT_8 ? (int8_t *)(base + l.q8_at) : NULL,
        .q8_biased = type == MX_ACT_8 ? base + l.biased_at : NULL,
    };
}

mx_act mx_act_from_row(const mx_act *a, uint32_t row0)
{
    assert(row0 < a->max_rows);
    mx_act rows = *a;
    rows.max_rows -= row0;
    rows.q += (size_t)row0 * a->q_stride;
    rows.scale += (size_t)row0 * a->n_blocks;
    rows.sum += (size_t)row0 * a->n_sums;
    rows.sum32 += (size_t)row0 * a->n_sums32;
    rows.x = a->x != NULL ? a->x + (size_t)row0 * a->n_cols : NULL;
    if (a->type == MX_ACT_8) {
        rows.q8 += (size_t)row0 * a->q_stride;
        rows.q8_biased += (size_t)row0 * a->q_stride;
    }
    return rows;
}
