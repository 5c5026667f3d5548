/* SPDX-License-Identifier: MIT
 *
 * kern_vec_portable.h (internal): 16 lanes in plain C. Defines what the operations of the other
 * kern_vec_*.h headers mean; include exactly one of them before kern_impl.h.
 */
#ifndef MX_KERN_VEC_PORTABLE_H
#define MX_KERN_VEC_PORTABLE_H

#include "kernels/kern_layout.h"

#include <math.h>

/* In sanitizer builds the lane loops are instrumented: inlining them everywhere would take the
 * compiler many minutes. */
#if defined(MX_NO_UNROLL)
#define VEC_FN static MX_UNUSED MX_NOINLINE
#else
#define VEC_FN MX_INLINE
#endif

typedef struct v16f {
    float l[16];
} v16f;

/* 16 x i32; also 16 pairs of i16 (low half first) for weights. */
typedef struct v16i {
    uint32_t l[16];
} v16i;

enum {
    VEC_TILE_ROWS = 1,   /* activation rows of one GEMM tile */
    VEC_TILE_PANELS = 1, /* panels of one */
    VEC_PANELS = 1,      /* panels whose groups are expanded together */
    VEC_DIRECT_ROWS = 1, /* rows whose sums fit the registers while weights are unpacked */
    VEC_DIRECT_MAX = 1,  /* up to this many rows do that, more expand the weights first */
    VEC_CHAINS = 1,      /* independent integer sums when unpacking in registers */
    /* vectors side by side in attention for 1, 2 and 3 or 4 query rows */
    VEC_WIDE_1 = 1,
    VEC_WIDE_2 = 1,
    VEC_WIDE_4 = 1,
    VEC_PANEL = 1, /* and for six query rows: 1, 2 or 4 */
};

#define VEC_BYTES 0 /* 8-bit activations are multiplied as i16 */
#define VEC_BYTES_NARROW 0

#define MX_UNROLL /* no registers to fill here: loops stay loops */

#define EACH_LANE for (int i_ = 0; i_ < 16; i_++)

#define LANEWISE_F(name, expr)                                                                     \
    VEC_FN v16f name(v16f a, v16f b)                                                            \
    {                                                                                              \
        v16f r;                                                                                    \
        EACH_LANE {                                                                                \
            const float x = a.l[i_], y = b.l[i_];                                                  \
            r.l[i_] = (expr);                                                                      \
        }                                                                                          \
        return r;                                                                                  \
    }

#define LANEWISE_I(name, expr)                                                                     \
    VEC_FN v16i name(v16i a, v16i b)                                                            \
    {                                                                                              \
        v16i r;                                                                                    \
        EACH_LANE {                                                                                \
            const uint32_t x = a.l[i_], y = b.l[i_];                                               \
            r.l[i_] = (expr);                                                                      \
        }                                                                                          \
        return r;                                                                                  \
    }

#define SHIFT_I(name, expr)                                                                        \
    VEC_FN v16i name(v16i a, int n)                                                             \
    {                                                                                              \
        v16i r;                                                                                    \
        EACH_LANE {                                                                                \
            const uint32_t x = a.l[i_];                                                            \
            r.l[i_] = (expr);                                                                      \
        }                                                                                          \
        return r;                                                                                  \
    }

LANEWISE_F(vf_add, x + y)
LANEWISE_F(vf_sub, x - y)
LANEWISE_F(vf_mul, x *y)
LANEWISE_F(vf_div, x / y)
LANEWISE_F(vf_max, x > y ? x : y)
LANEWISE_F(vf_min, x < y ? x : y)
LANEWISE_I(vi_add, x + y)
LANEWISE_I(vi_sub, x - y)
LANEWISE_I(vi_and, x &y)
LANEWISE_I(vi_or, x | y)
LANEWISE_I(vi_max, (int32_t)x > (int32_t)y ? x : y) /* signed */
/* pairs of i16, wrapping */
LANEWISE_I(vi_sub16, ((x - y) & 0xffffu) | ((x & 0xffff0000u) - (y & 0xffff0000u)))
SHIFT_I(vi_sll, x << n)
SHIFT_I(vi_srl, x >> n)
SHIFT_I(vi_sra, (uint32_t)((int32_t)x >> n)) /* towards minus infinity */
SHIFT_I(vi_srl16, (x >> n & 0xffffu >> n) | (x >> 16 >> n) << 16) /* each half on its own */

VEC_FN v16f vf_set1(float x)
{
    v16f r;
    EACH_LANE r.l[i_] = x;
    return r;
}

VEC_FN v16i vi_set1(int32_t x)
{
    v16i r;
    EACH_LANE r.l[i_] = (uint32_t)x;
    return r;
}

VEC_FN v16f vf_zero(void)
{
    return vf_set1(0.0f);
}

/* a * b + c rounded once */
VEC_FN v16f vf_fma(v16f a, v16f b, v16f c)
{
    v16f r;
    EACH_LANE r.l[i_] = fmaf(a.l[i_], b.l[i_], c.l[i_]);
    return r;
}

VEC_FN float vec_fmaf(float a, float b, float c)
{
    return fmaf(a, b, c);
}

VEC_FN v16f vf_load(const float *p)
{
    v16f r;
    memcpy(&r, p, sizeof r);
    return r;
}

VEC_FN void vf_store(float *p, v16f v)
{
    memcpy(p, &v, sizeof v);
}

/* To 64-byte aligned memory that is not read again soon: past the caches where there is a way.
 * vec_stream_end comes before anybody else may see it. */
VEC_FN void vf_stream(float *p, v16f v)
{
    vf_store(p, v);
}

VEC_FN void vec_stream_end(void)
{
}

VEC_FN v16i vi_load(const void *p)
{
    v16i r;
    memcpy(&r, p, sizeof r);
    return r;
}

VEC_FN void vi_store(void *p, v16i v)
{
    memcpy(p, &v, sizeof v);
}

/* 16 halves, exact; 16 halves, rounded to nearest even */
VEC_FN v16f vf_load_h(const uint16_t *p)
{
    v16f r;
    EACH_LANE r.l[i_] = mx_f32_of_f16(p[i_]);
    return r;
}

VEC_FN void vf_store_h(uint16_t *p, v16f v)
{
    EACH_LANE p[i_] = mx_f16_of_f32(v.l[i_]);
}

VEC_FN v16i vi_load_u16(const uint16_t *p)
{
    v16i r;
    EACH_LANE r.l[i_] = p[i_];
    return r;
}

VEC_FN v16i vi_load_u8(const uint8_t *p)
{
    v16i r;
    EACH_LANE r.l[i_] = p[i_];
    return r;
}

VEC_FN v16i vi_load_i8(const uint8_t *p)
{
    v16i r;
    EACH_LANE r.l[i_] = (uint32_t)(int8_t)p[i_];
    return r;
}

/* 16 values that fit i16 */
VEC_FN void vi_store_i16(int16_t *p, v16i v)
{
    EACH_LANE p[i_] = (int16_t)(uint16_t)v.l[i_];
}

VEC_FN v16i vf_bits(v16f v)
{
    v16i r;
    memcpy(&r, &v, sizeof r);
    return r;
}

VEC_FN v16f vi_bits(v16i v)
{
    v16f r;
    memcpy(&r, &v, sizeof r);
    return r;
}

VEC_FN v16f vf_of_int(v16i v)
{
    v16f r;
    EACH_LANE r.l[i_] = (float)(int32_t)v.l[i_];
    return r;
}

/* To the nearest integer (even on ties); |v| < 2^22. Adding 1.5 * 2^23 leaves it in the low bits. */
VEC_FN v16i vf_to_int(v16f v)
{
    v16i r;
    EACH_LANE r.l[i_] = mx_bits_of_f32(v.l[i_] + 0x1.8p+23f) - 0x4b400000u;
    return r;
}

/* Keeps the order of sums as written; only the compiler notices. */
VEC_FN void vi_pin(v16i *v)
{
    (void)v;
}

/* acc + w.low * a.low + w.high * a.high per lane, i16 operands */
VEC_FN v16i vi_dot(v16i acc, v16i w, v16i a)
{
    EACH_LANE {
        const int32_t low = (int16_t)w.l[i_] * (int16_t)a.l[i_];
        const int32_t high = (int16_t)(w.l[i_] >> 16) * (int16_t)(a.l[i_] >> 16);
        acc.l[i_] += (uint32_t)low + (uint32_t)high;
    }
    return acc;
}

/* Both halves of each lane hold 0..15: replaces them with table bytes. */
VEC_FN v16i vi_lut(v16i v, const uint8_t *table)
{
    EACH_LANE v.l[i_] = table[v.l[i_] & 15u] | (uint32_t)table[v.l[i_] >> 16 & 15u] << 16;
    return v;
}

/* Lane i of v where lo <= i < hi, else `other`. */
VEC_FN v16f vf_keep(v16f v, int lo, int hi, v16f other)
{
    EACH_LANE v.l[i_] = i_ >= lo && i_ < hi ? v.l[i_] : other.l[i_];
    return v;
}

VEC_FN float vf_first(v16f v)
{
    return v.l[0];
}

/* The tree of docs/numerics.md, section 1. */
VEC_FN float vf_tree_sum(v16f v)
{
    for (int h = 8; h != 0; h /= 2) {
        for (int i = 0; i < h; i++) {
            v.l[i] = v.l[i] + v.l[i + h];
        }
    }
    return v.l[0];
}

VEC_FN float vf_tree_max(v16f v)
{
    for (int h = 8; h != 0; h /= 2) {
        for (int i = 0; i < h; i++) {
            v.l[i] = v.l[i] > v.l[i + h] ? v.l[i] : v.l[i + h];
        }
    }
    return v.l[0];
}

VEC_FN int32_t vi_tree_sum(v16i v)
{
    uint32_t s = 0;
    EACH_LANE s += v.l[i_];
    return (int32_t)s;
}

VEC_FN int32_t vi_tree_max(v16i v)
{
    int32_t m = (int32_t)v.l[0];
    EACH_LANE m = (int32_t)v.l[i_] > m ? (int32_t)v.l[i_] : m;
    return m;
}

#endif
