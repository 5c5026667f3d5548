/* SPDX-License-Identifier: MIT
 *
 * kern_vec_neon.h (internal): 16 lanes as four 128-bit registers. Needs no more than what every
 * aarch64 CPU has; the operations are described in kern_vec_portable.h.
 *
 * fmaxnm and fminnm are not used: they treat NaN and zeros in a way of their own, where the text
 * wants x > y ? x : y, a comparison and a selection here.
 */
#ifndef MX_KERN_VEC_NEON_H
#define MX_KERN_VEC_NEON_H

#include "kernels/kern_layout.h"

#include <arm_neon.h>

typedef struct v16f {
    float32x4_t a, b, c, d;
} v16f;

typedef struct v16i {
    uint32x4_t a, b, c, d;
} v16i;

enum {
    /* 2 x (4 integer + 4 float accumulators) + 4 weights + 2 broadcasts + products fit 32
     * registers; a third row would not */
    VEC_TILE_ROWS = 2,
    VEC_TILE_PANELS = 1,
    VEC_PANELS = 1,
    VEC_DIRECT_ROWS = 2,
    VEC_DIRECT_MAX = 2,
    VEC_CHAINS = 1, /* the four registers of a sum are chains of their own */
    VEC_WIDE_1 = 2, /* 8 accumulators cover the latency of two FMA units */
    VEC_WIDE_2 = 2,
    VEC_WIDE_4 = 1,
    VEC_PANEL = 1,
};

#define VEC_BYTES 0 /* 8-bit activations are multiplied as i16 */
#define VEC_BYTES_NARROW 0

#if defined(MX_NO_UNROLL)
#define MX_UNROLL
#elif defined(__clang__)
#define MX_UNROLL _Pragma("unroll")
#else
#define MX_UNROLL _Pragma("GCC unroll 16")
#endif

#define FOUR(type, op, x, y)                                                                       \
    ((type){op((x).a, (y).a), op((x).b, (y).b), op((x).c, (y).c), op((x).d, (y).d)})

#define EACH(type, op, x) ((type){op((x).a), op((x).b), op((x).c), op((x).d)})

#define PAIRWISE(type, name, op)                                                                   \
    MX_INLINE type name(type x, type y)                                                            \
    {                                                                                              \
        return FOUR(type, op, x, y);                                                               \
    }

MX_INLINE float32x4_t max_f32(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}

MX_INLINE float32x4_t min_f32(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcltq_f32(x, y), x, y);
}

MX_INLINE uint32x4_t max_i32(uint32x4_t x, uint32x4_t y)
{
    return vreinterpretq_u32_s32(vmaxq_s32(vreinterpretq_s32_u32(x), vreinterpretq_s32_u32(y)));
}

MX_INLINE uint32x4_t sub_i16(uint32x4_t x, uint32x4_t y)
{
    return vreinterpretq_u32_u16(vsubq_u16(vreinterpretq_u16_u32(x), vreinterpretq_u16_u32(y)));
}

PAIRWISE(v16f, vf_add, vaddq_f32)
PAIRWISE(v16f, vf_sub, vsubq_f32)
PAIRWISE(v16f, vf_mul, vmulq_f32)
PAIRWISE(v16f, vf_div, vdivq_f32)
PAIRWISE(v16f, vf_max, max_f32)
PAIRWISE(v16f, vf_min, min_f32)
PAIRWISE(v16i, vi_add, vaddq_u32)
PAIRWISE(v16i, vi_sub, vsubq_u32)
PAIRWISE(v16i, vi_and, vandq_u32)
PAIRWISE(v16i, vi_or, vorrq_u32)
PAIRWISE(v16i, vi_max, max_i32)
PAIRWISE(v16i, vi_sub16, sub_i16)

/* The compilers' operators take a count that becomes an immediate when it is a constant. */
MX_INLINE v16i vi_sll(v16i x, int n)
{
    return (v16i){x.a << n, x.b << n, x.c << n, x.d << n};
}

MX_INLINE v16i vi_srl(v16i x, int n)
{
    return (v16i){x.a >> n, x.b >> n, x.c >> n, x.d >> n};
}

MX_INLINE uint32x4_t srl_u16(uint32x4_t x, int n)
{
    return vreinterpretq_u32_u16(vreinterpretq_u16_u32(x) >> n);
}

MX_INLINE v16i vi_srl16(v16i x, int n)
{
    return (v16i){srl_u16(x.a, n), srl_u16(x.b, n), srl_u16(x.c, n), srl_u16(x.d, n)};
}

MX_INLINE uint32x4_t sra_i32(uint32x4_t x, int n)
{
    return vreinterpretq_u32_s32(vreinterpretq_s32_u32(x) >> n);
}

MX_INLINE v16i vi_sra(v16i x, int n)
{
    return (v16i){sra_i32(x.a, n), sra_i32(x.b, n), sra_i32(x.c, n), sra_i32(x.d, n)};
}

MX_INLINE v16f vf_set1(float x)
{
    const float32x4_t v = vdupq_n_f32(x);
    return (v16f){v, v, v, v};
}

MX_INLINE v16i vi_set1(int32_t x)
{
    const uint32x4_t v = vdupq_n_u32((uint32_t)x);
    return (v16i){v, v, v, v};
}

MX_INLINE v16f vf_zero(void)
{
    return vf_set1(0.0f);
}

MX_INLINE v16f vf_fma(v16f x, v16f y, v16f z)
{
    return (v16f){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                  vfmaq_f32(z.d, x.d, y.d)};
}

MX_INLINE float vec_fmaf(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c); /* one instruction on every aarch64 */
}

MX_INLINE v16f vf_load(const float *p)
{
    return (v16f){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

MX_INLINE void vf_store(float *p, v16f v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}

/* To 64-byte aligned memory that is not read again soon: past the caches where there is a way.
 * vec_stream_end comes before anybody else may see it. */
MX_INLINE void vf_stream(float *p, v16f v)
{
    vf_store(p, v);
}

MX_INLINE void vec_stream_end(void)
{
}

/* By bytes: the memory need not be aligned, nor hold 32-bit numbers. */
MX_INLINE uint32x4_t load_u32(const uint8_t *p)
{
    return vreinterpretq_u32_u8(vld1q_u8(p));
}

MX_INLINE v16i vi_load(const void *p)
{
    const uint8_t *q = p;
    return (v16i){load_u32(q), load_u32(q + 16), load_u32(q + 32), load_u32(q + 48)};
}

MX_INLINE void vi_store(void *p, v16i v)
{
    uint8_t *q = p;
    vst1q_u8(q, vreinterpretq_u8_u32(v.a));
    vst1q_u8(q + 16, vreinterpretq_u8_u32(v.b));
    vst1q_u8(q + 32, vreinterpretq_u8_u32(v.c));
    vst1q_u8(q + 48, vreinterpretq_u8_u32(v.d));
}

MX_INLINE float32x4_t of_halves(uint16x4_t h)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

MX_INLINE uint16x4_t to_halves(float32x4_t v)
{
    return vreinterpret_u16_f16(vcvt_f16_f32(v)); /* rounds as FPCR says: to nearest even */
}

MX_INLINE v16f vf_load_h(const uint16_t *p)
{
    return (v16f){of_halves(vld1_u16(p)), of_halves(vld1_u16(p + 4)), of_halves(vld1_u16(p + 8)),
                  of_halves(vld1_u16(p + 12))};
}

MX_INLINE void vf_store_h(uint16_t *p, v16f v)
{
    vst1_u16(p, to_halves(v.a));
    vst1_u16(p + 4, to_halves(v.b));
    vst1_u16(p + 8, to_halves(v.c));
    vst1_u16(p + 12, to_halves(v.d));
}

MX_INLINE v16i vi_load_u16(const uint16_t *p)
{
    return (v16i){vmovl_u16(vld1_u16(p)), vmovl_u16(vld1_u16(p + 4)), vmovl_u16(vld1_u16(p + 8)),
                  vmovl_u16(vld1_u16(p + 12))};
}

MX_INLINE v16i vi_load_u8(const uint8_t *p)
{
    const uint8x16_t v = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(v));
    const uint16x8_t high = vmovl_high_u8(v);
    return (v16i){vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)),
                  vmovl_high_u16(high)};
}

MX_INLINE uint32x4_t of_i16(int16x4_t v)
{
    return vreinterpretq_u32_s32(vmovl_s16(v));
}

MX_INLINE v16i vi_load_i8(const uint8_t *p)
{
    const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(v));
    const int16x8_t high = vmovl_high_s8(v);
    return (v16i){of_i16(vget_low_s16(low)), of_i16(vget_high_s16(low)),
                  of_i16(vget_low_s16(high)), of_i16(vget_high_s16(high))};
}

MX_INLINE void vi_store_i16(int16_t *p, v16i v)
{
    vst1q_s16(p, vreinterpretq_s16_u16(vmovn_high_u32(vmovn_u32(v.a), v.b)));
    vst1q_s16(p + 8, vreinterpretq_s16_u16(vmovn_high_u32(vmovn_u32(v.c), v.d)));
}

MX_INLINE v16i vf_bits(v16f v)
{
    return EACH(v16i, vreinterpretq_u32_f32, v);
}

MX_INLINE v16f vi_bits(v16i v)
{
    return EACH(v16f, vreinterpretq_f32_u32, v);
}

MX_INLINE float32x4_t of_i32(uint32x4_t v)
{
    return vcvtq_f32_s32(vreinterpretq_s32_u32(v));
}

MX_INLINE uint32x4_t to_i32(float32x4_t v)
{
    return vreinterpretq_u32_s32(vcvtnq_s32_f32(v));
}

MX_INLINE v16f vf_of_int(v16i v)
{
    return EACH(v16f, of_i32, v);
}

MX_INLINE v16i vf_to_int(v16f v)
{
    return EACH(v16i, to_i32, v);
}

/* No instruction: keeps the sums where they are written (see kern_vec_avx2.h). */
MX_INLINE void vi_pin(v16i *v)
{
    __asm__ volatile("" : "+w"(v->a), "+w"(v->b), "+w"(v->c), "+w"(v->d));
}

MX_INLINE uint32x4_t dot_i16(uint32x4_t acc, uint32x4_t w, uint32x4_t x)
{
    const int16x8_t w16 = vreinterpretq_s16_u32(w);
    const int16x8_t x16 = vreinterpretq_s16_u32(x);
    const int32x4_t low = vmull_s16(vget_low_s16(w16), vget_low_s16(x16));
    const int32x4_t high = vmull_high_s16(w16, x16);
    return vaddq_u32(acc, vreinterpretq_u32_s32(vpaddq_s32(low, high)));
}

MX_INLINE v16i vi_dot(v16i acc, v16i w, v16i x)
{
    return (v16i){dot_i16(acc.a, w.a, x.a), dot_i16(acc.b, w.b, x.b), dot_i16(acc.c, w.c, x.c),
                  dot_i16(acc.d, w.d, x.d)};
}

MX_INLINE uint32x4_t lut_bytes(uint8x16_t table, uint32x4_t index)
{
    /* the high byte of each half becomes an index beyond the table: zero */
    const uint8x16_t i = vreinterpretq_u8_u32(vorrq_u32(index, vdupq_n_u32(0xff00ff00u)));
    return vreinterpretq_u32_u8(vqtbl1q_u8(table, i));
}

MX_INLINE v16i vi_lut(v16i v, const uint8_t *table)
{
    const uint8x16_t t = vld1q_u8(table);
    return (v16i){lut_bytes(t, v.a), lut_bytes(t, v.b), lut_bytes(t, v.c), lut_bytes(t, v.d)};
}

MX_INLINE float32x4_t keep_lanes(float32x4_t v, int first, int lo, int hi, float32x4_t other)
{
    static const int32_t lanes[4] = {0, 1, 2, 3};
    const int32x4_t i = vaddq_s32(vld1q_s32(lanes), vdupq_n_s32(first));
    const uint32x4_t from = vcgeq_s32(i, vdupq_n_s32(lo));
    const uint32x4_t to = vcltq_s32(i, vdupq_n_s32(hi));
    return vbslq_f32(vandq_u32(from, to), v, other);
}

MX_INLINE v16f vf_keep(v16f v, int lo, int hi, v16f other)
{
    return (v16f){keep_lanes(v.a, 0, lo, hi, other.a), keep_lanes(v.b, 4, lo, hi, other.b),
                  keep_lanes(v.c, 8, lo, hi, other.c), keep_lanes(v.d, 12, lo, hi, other.d)};
}

MX_INLINE float vf_first(v16f v)
{
    return vgetq_lane_f32(v.a, 0);
}

MX_INLINE float vf_tree_sum(v16f v)
{
    const float32x4_t h4 = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
    const float32x2_t h2 = vadd_f32(vget_low_f32(h4), vget_high_f32(h4));
    return vget_lane_f32(h2, 0) + vget_lane_f32(h2, 1);
}

MX_INLINE float vf_tree_max(v16f v)
{
    const float32x4_t h4 = max_f32(max_f32(v.a, v.c), max_f32(v.b, v.d));
    const float32x4_t h2 = max_f32(h4, vextq_f32(h4, h4, 2));
    return vgetq_lane_f32(max_f32(h2, vextq_f32(h2, h2, 1)), 0);
}

MX_INLINE int32_t vi_tree_sum(v16i v)
{
    return (int32_t)vaddvq_u32(vaddq_u32(vaddq_u32(v.a, v.b), vaddq_u32(v.c, v.d)));
}

MX_INLINE int32_t vi_tree_max(v16i v)
{
    const uint32x4_t m = max_i32(max_i32(v.a, v.b), max_i32(v.c, v.d));
    return vmaxvq_s32(vreinterpretq_s32_u32(m));
}

#endif
