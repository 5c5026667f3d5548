/* SPDX-License-Identifier: MIT
 *
 * kern_impl.h (internal): the kernel text. Each level's .c file includes a kern_vec_*.h and then
 * this, so that all levels do the same operations in the same order (docs/numerics.md) and differ
 * in instructions only. At its end stands the table of the level's functions.
 */
#include "kernels/kern_internal.h"

#include <assert.h>
#include <math.h>

/* ---- tails ------------------------------------------------------------------------------------ */

/* The first n <= 16 floats at p, the other lanes 0. */
MX_INLINE v16f load_n(const float *p, size_t n)
{
    if (MX_LIKELY(n >= 16)) {
        return vf_load(p);
    }
    float buf[16] = {0};
    memcpy(buf, p, n * sizeof *p);
    return vf_load(buf);
}

MX_INLINE void store_n(float *p, v16f v, size_t n)
{
    if (MX_LIKELY(n >= 16)) {
        vf_store(p, v);
        return;
    }
    float buf[16];
    vf_store(buf, v);
    memcpy(p, buf, n * sizeof *p);
}

#include "kernels/kern_impl_exp.h"

/* ---- element by element ----------------------------------------------------------------------- */

static void rmsnorm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    v16f s = vf_zero();
    for (uint32_t i = 0; i < n; i += 16) {
        const v16f v = load_n(x + i, n - i); /* fma(0, 0, s) = s: zero lanes change nothing */
        s = vf_fma(v, v, s);
    }
    const float ms = vf_tree_sum(s) / (float)n;
    const v16f r = vf_set1(1.0f / sqrtf(ms + eps));
    for (uint32_t i = 0; i < n; i += 16) {
        const v16f v = vf_mul(vf_mul(load_n(x + i, n - i), r), load_n(w + i, n - i));
        store_n(y + i, v, n - i);
    }
}

static void silu_mul(float *y, const float *gate, const float *up, size_t n)
{
    const v16f one = vf_set1(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        const v16f g = load_n(gate + i, n - i);
        const v16f e = vec_exp(vi_bits(vi_sub(vf_bits(g), vi_set1(INT32_MIN)))); /* exp(-g) */
        const v16f s = vf_div(g, vf_add(one, e));
        store_n(y + i, vf_mul(s, load_n(up + i, n - i)), n - i);
    }
}

static void gelu_mul(float *y, const float *gate, const float *up, size_t n)
{
    const v16f one = vf_set1(1.0f);
    for (size_t i = 0; i < n; i += 16) {
        const v16f g = load_n(gate + i, n - i);
        const v16f c = vf_fma(vf_mul(g, g), vf_set1(0x1.6e4e26p-5f), one);
        const v16f u = vf_mul(vf_mul(g, vf_set1(0x1.988454p+0f)), c);
        const v16f e = vec_exp(vi_bits(vi_sub(vf_bits(u), vi_set1(INT32_MIN)))); /* exp(-u) */
        store_n(y + i, vf_mul(vf_div(g, vf_add(one, e)), load_n(up + i, n - i)), n - i);
    }
}

static void scale(float *x, float s, size_t n)
{
    const v16f v = vf_set1(s);
    for (size_t i = 0; i < n; i += 16) {
        store_n(x + i, vf_mul(load_n(x + i, n - i), v), n - i);
    }
}

static void add_scaled(float *y, float s, const float *x, size_t n)
{
    const v16f v = vf_set1(s);
    for (size_t i = 0; i < n; i += 16) {
        store_n(y + i, vf_fma(v, load_n(x + i, n - i), load_n(y + i, n - i)), n - i);
    }
}

/* The first n <= 16 floats at p, the other lanes -infinity: exp makes +0 of them. */
MX_INLINE v16f load_n_low(const float *p, size_t n)
{
    float buf[16];
    if (MX_LIKELY(n >= 16)) {
        return vf_load(p);
    }
    for (size_t i = 0; i < 16; i++) {
        buf[i] = i < n ? p[i] : -INFINITY;
    }
    return vf_load(buf);
}

static void softmax(float *x, size_t n)
{
    v16f m = vf_set1(-INFINITY);
    v16f s = vf_zero();
    for (size_t i = 0; i < n; i += 16) {
        m = vf_max(m, load_n_low(x + i, n - i));
    }
    m = vf_set1(vf_tree_max(m));
    for (size_t i = 0; i < n; i += 16) {
        const v16f e = vec_exp(vf_sub(load_n_low(x + i, n - i), m));
        s = vf_add(s, e);
        store_n(x + i, e, n - i);
    }
    s = vf_set1(vf_tree_sum(s));
    for (size_t i = 0; i < n; i += 16) {
        store_n(x + i, vf_div(load_n(x + i, n - i), s), n - i);
    }
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        store_n(y + i, vf_add(load_n(y + i, n - i), load_n(x + i, n - i)), n - i);
    }
}

/* Bit patterns of |x|: as integers they sort as the magnitudes do, NaN above infinity. */
MX_INLINE v16i magnitude(v16f v)
{
    return vi_and(vf_bits(v), vi_set1(0x7fffffff));
}

static bool all_finite(const float *x, size_t n)
{
    v16i m = vi_set1(0);
    for (size_t i = 0; i < n; i += 16) {
        m = vi_max(m, magnitude(load_n(x + i, n - i)));
    }
    return vi_tree_max(m) < 0x7f800000;
}

static void rope(float *x, uint32_t n_heads, uint32_t head_dim, const mx_rope_params *p,
                 const float *cos_sin_row)
{
    const uint32_t half = p->n_rot / 2;
    const uint32_t step = p->pairing == MX_ROPE_NORM ? 2 : 1;
    const uint32_t apart = p->pairing == MX_ROPE_NORM ? 1 : half;
    for (uint32_t h = 0; h < n_heads; h++, x += head_dim) {
        for (uint32_t j = 0; j < half; j++) {
            float *a = x + step * j;
            const float x0 = a[0];
            const float x1 = a[apart];
            const float c = cos_sin_row[2 * j];
            const float s = cos_sin_row[2 * j + 1];
            a[0] = vec_fmaf(x0, c, -(x1 * s));
            a[apart] = vec_fmaf(x0, s, x1 * c);
        }
    }
}

/* ---- activations ------------------------------------------------------------------------------ */

/* One block of n <= 256 inputs, rounded to -most..most. Writes q up to the next multiple of 32, sums of 16 and of 32, the
 * scale. */
MX_INLINE bool quantize_block(const float *x, uint32_t n, const float most, int16_t *q,
                              float *scale, float *sum, float *sum32)
{
    v16i m = vi_set1(0);
    for (uint32_t i = 0; i < n; i += 16) {
        m = vi_max(m, magnitude(load_n(x + i, n - i)));
    }
    const int32_t amax_bits = vi_tree_max(m);
    if (amax_bits >= 0x7f800000) {
        return false;
    }
    const float amax = mx_f32_of_bits((uint32_t)amax_bits);
    const uint32_t n_stored = (n + MX_SUB_BLOCK - 1) / MX_SUB_BLOCK * MX_SUB_BLOCK;
    if (amax < 0x1p-100f) {
        memset(q, 0, n_stored * sizeof *q);
        memset(sum, 0, (n + 15) / 16 * sizeof *sum);
        memset(sum32, 0, n_stored / MX_SUB_BLOCK * sizeof *sum32);
        *scale = 0;
        return true;
    }
    const v16f inv = vf_set1(most / amax);
    *scale = amax / most;
    for (uint32_t i = 0; i < n; i += 16) {
        v16f v = vf_mul(load_n(x + i, n - i), inv);
        v = vf_max(v, vf_set1(-most));
        v = vf_min(v, vf_set1(most));
        const v16i r = vf_to_int(v);
        vi_store_i16(q + i, r);
        const float s = (float)vi_tree_sum(r);
        sum[i / 16] = s;
        sum32[i / 32] = i % 32 == 0 ? s : sum32[i / 32] + s;
    }
    for (uint32_t i = (n + 15) / 16 * 16; i < n_stored; i += 16) {
        memset(q + i, 0, 16 * sizeof *q);
    }
    return true;
}

/* 32 values of 8 bits that stand in q, in the order of a lane's bytes (kern_layout.h). */
MX_INLINE void narrow_block(const int16_t *q, int8_t *q8, uint8_t *biased)
{
#if VEC_BYTES
    vb_narrow(q, q8, biased);
    vb_narrow(q + 16, q8 + 16, biased + 16);
#else
    static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int i = 0; i < MX_SUB_BLOCK; i++) {
        const int16_t v = q[i / 8 * 8 + order[i % 8]];
        q8[i] = (int8_t)v;
        biased[i] = (uint8_t)(v + 128);
    }
#endif
}

static bool quantize_row_8(mx_act *a, const float *x, uint32_t r)
{
    const size_t at = (size_t)r * a->q_stride;
    for (uint32_t b = 0; b < a->n_blocks; b++) {
        const uint32_t k = b * MX_SUB_BLOCK;
        const uint32_t n = a->n_cols - k < MX_SUB_BLOCK ? a->n_cols - k : MX_SUB_BLOCK;
        if (!quantize_block(x + k, n, 127.0f, a->q + at + k, a->scale + (size_t)r * a->n_blocks + b,
                            a->sum + (size_t)r * a->n_sums + k / 16,
                            a->sum32 + (size_t)r * a->n_sums32 + b))
        {
            return false;
        }
        narrow_block(a->q + at + k, a->q8 + at + k, a->q8_biased + at + k);
    }
    return true;
}

static bool quantize_row_16(mx_act *a, const float *x, uint32_t r)
{
    for (uint32_t b = 0; b < a->n_blocks; b++) {
        const uint32_t k = b * MX_ACT_BLOCK;
        const uint32_t n = a->n_cols - k < MX_ACT_BLOCK ? a->n_cols - k : MX_ACT_BLOCK;
        if (!quantize_block(x + k, n, 32767.0f, a->q + (size_t)r * a->q_stride + k,
                            a->scale + (size_t)r * a->n_blocks + b,
                            a->sum + (size_t)r * a->n_sums + k / 16,
                            a->sum32 + (size_t)r * a->n_sums32 + k / 32))
        {
            return false;
        }
    }
    return true;
}

static bool act_quantize(mx_act *a, const float *x, size_t ldx, uint32_t row0, uint32_t row1)
{
    assert(row0 <= row1 && row1 <= a->max_rows);
    for (uint32_t r = row0; r < row1; r++, x += ldx) {
        if (!(a->type == MX_ACT_8 ? quantize_row_8(a, x, r) : quantize_row_16(a, x, r))) {
            return false;
        }
        if (a->x != NULL) {
            memcpy(a->x + (size_t)r * a->n_cols, x, a->n_cols * sizeof *x);
        }
    }
    return true;
}

/* ---- KV rows ---------------------------------------------------------------------------------- */

/* One row of a tile in q8: dimension d of slot goes to tile[d * d_step + slot * slot_step]. */
static bool store_q8(int8_t *tile, size_t d_step, size_t slot_step, uint32_t head_dim,
                     uint32_t slot, const float *x)
{
    v16i m = vi_set1(0);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        m = vi_max(m, magnitude(load_n(x + d, head_dim - d)));
    }
    const int32_t amax_bits = vi_tree_max(m);
    const float amax = mx_f32_of_bits((uint32_t)amax_bits);
    const bool is_finite = amax_bits < 0x7f800000;
    const bool is_zero = !is_finite || amax < 0x1p-100f;
    const float scale = is_zero ? 0 : amax / 127.0f;
    const v16f inv = vf_set1(is_zero ? 0 : 127.0f / amax);
    memcpy(tile + (size_t)head_dim * MX_PAGE_TOKENS + slot * sizeof scale, &scale, sizeof scale);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        const uint32_t n = head_dim - d < 16 ? head_dim - d : 16;
        int16_t q[16] = {0};
        if (!is_zero) {
            v16f v = vf_mul(load_n(x + d, n), inv);
            v = vf_min(vf_max(v, vf_set1(-127.0f)), vf_set1(127.0f));
            vi_store_i16(q, vf_to_int(v));
        }
        for (uint32_t i = 0; i < n; i++) {
            tile[(d + i) * d_step + slot * slot_step] = (int8_t)q[i];
        }
    }
    return is_finite;
}

static bool kv_store(mx_kv_type type, uint8_t *k_tile, uint8_t *v_tile, uint32_t head_dim,
                     uint32_t slot, const float *k, const float *v)
{
    assert(slot < MX_PAGE_TOKENS);
    if (type == MX_KV_F32) {
        float *kt = (float *)(void *)k_tile + slot;
        for (uint32_t d = 0; d < head_dim; d++) {
            kt[(size_t)d * MX_PAGE_TOKENS] = k[d];
        }
        memcpy(v_tile + (size_t)slot * head_dim * 4, v, head_dim * sizeof *v);
        return all_finite(k, head_dim) && all_finite(v, head_dim);
    }
    if (type == MX_KV_Q8) {
        return store_q8((int8_t *)k_tile, MX_PAGE_TOKENS, 1, head_dim, slot, k) &
               store_q8((int8_t *)v_tile, 1, head_dim, head_dim, slot, v);
    }
    uint16_t *kt = (uint16_t *)(void *)k_tile + slot;
    uint16_t *vt = (uint16_t *)(void *)v_tile + (size_t)slot * head_dim;
    uint32_t worst = 0;
    for (uint32_t d = 0; d < head_dim; d += 16) {
        const uint32_t n = head_dim - d < 16 ? head_dim - d : 16;
        uint16_t hk[16];
        uint16_t hv[16];
        vf_store_h(hk, load_n(k + d, n));
        vf_store_h(hv, load_n(v + d, n));
        for (uint32_t i = 0; i < n; i++) {
            kt[(size_t)(d + i) * MX_PAGE_TOKENS] = hk[i];
        }
        for (uint32_t i = 0; i < n; i++) { /* by itself, so that it is a vector's work */
            worst |= ((hk[i] & 0x7c00u) == 0x7c00u) | ((hv[i] & 0x7c00u) == 0x7c00u);
        }
        memcpy(vt + d, hv, n * sizeof *hv);
    }
    return worst == 0;
}

#include "kernels/kern_impl_matmul.h"

#include "kernels/kern_impl_attn.h"

#include "kernels/kern_impl_gdn.h"

#define MX_KERN_TABLE(lvl, text)                                                                   \
    {                                                                                              \
        .level = (lvl), .name = (text), .rmsnorm = rmsnorm, .act_quantize = act_quantize,          \
        .matmul = matmul, .wmat_row = mx_wmat_row_portable, .rope = rope, .kv_store = kv_store,    \
        .attention = attention, .attention_span = attention_span,                                  \
        .attention_merge = attention_merge, .attn_scratch_floats = attn_scratch_floats,            \
        .silu_mul = silu_mul, .add = add, .all_finite = all_finite, .gelu_mul = gelu_mul,          \
        .scale = scale, .add_scaled = add_scaled, .softmax = softmax, .sigmoid = sigmoid,          \
        .sigmoid_mul = sigmoid_mul, .l2norm = l2norm, .gdn_decay = gdn_decay,                      \
        .gdn_conv = gdn_conv, .gdn_step = gdn_step,                                                \
    }
