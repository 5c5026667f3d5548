/* SPDX-License-Identifier: MIT
 *
 * kern_vec_avx512.h (internal): 16 lanes in one 512-bit register. Needs AVX-512 F, BW, DQ, VL and
 * VNNI; the operations are described in kern_vec_portable.h.
 */
#ifndef MX_KERN_VEC_AVX512_H
#define MX_KERN_VEC_AVX512_H

#include "kernels/kern_layout.h"

#include <immintrin.h>

typedef struct v16f {
    __m512 v;
} v16f;

typedef struct v16i {
    __m512i v;
} v16i;

enum {
    /* 12 integer and 12 float accumulators of 32 registers: vpdpwssd has 5 cycles latency and issues
     * twice a cycle, so fewer than 10 wait. As 6 rows by 2 panels they need 8 loads for 12 products;
     * as 12 rows by 1 it would be 13, and two loads is what a cycle has. */
    VEC_TILE_ROWS = 6,
    VEC_TILE_PANELS = 2,
    VEC_PANELS = 2, /* 4 fetch the activations half as often, but crowd L1: not faster */
    VEC_DIRECT_ROWS = 8,
    VEC_DIRECT_MAX = 8,
    VEC_CHAINS = 8,
    VEC_WIDE_1 = 4,
    VEC_WIDE_2 = 4,
    VEC_WIDE_4 = 4,
    VEC_PANEL = 2,
};

/* 8 sums of 16 lanes */
#define VEC_GDN_SLABS 4

#if defined(MX_NO_UNROLL)
#define MX_UNROLL
#elif defined(__clang__)
#define MX_UNROLL _Pragma("unroll")
#else
#define MX_UNROLL _Pragma("GCC unroll 16")
#endif

#define BINARY(type, name, op)                                                                     \
    MX_INLINE type name(type x, type y)                                                            \
    {                                                                                              \
        return (type){op(x.v, y.v)};                                                               \
    }

BINARY(v16f, vf_add, _mm512_add_ps)
BINARY(v16f, vf_sub, _mm512_sub_ps)
BINARY(v16f, vf_mul, _mm512_mul_ps)
BINARY(v16f, vf_div, _mm512_div_ps)
BINARY(v16f, vf_max, _mm512_max_ps) /* the instruction is x > y ? x : y */
BINARY(v16f, vf_min, _mm512_min_ps)
BINARY(v16i, vi_add, _mm512_add_epi32)
BINARY(v16i, vi_sub, _mm512_sub_epi32)
BINARY(v16i, vi_and, _mm512_and_si512)
BINARY(v16i, vi_or, _mm512_or_si512)
BINARY(v16i, vi_max, _mm512_max_epi32)
BINARY(v16i, vi_sub16, _mm512_sub_epi16)

MX_INLINE v16i vi_sll(v16i x, int n)
{
    return (v16i){_mm512_slli_epi32(x.v, (unsigned)n)};
}

MX_INLINE v16i vi_srl(v16i x, int n)
{
    return (v16i){_mm512_srli_epi32(x.v, (unsigned)n)};
}

MX_INLINE v16i vi_sra(v16i x, int n)
{
    return (v16i){_mm512_srai_epi32(x.v, (unsigned)n)};
}

MX_INLINE v16i vi_srl16(v16i x, int n)
{
#if defined(__clang__) /* its header says unsigned, gcc's int */
    return (v16i){_mm512_srli_epi16(x.v, (unsigned)n)};
#else
    return (v16i){_mm512_srli_epi16(x.v, n)};
#endif
}

MX_INLINE v16f vf_set1(float x)
{
    return (v16f){_mm512_set1_ps(x)};
}

MX_INLINE v16i vi_set1(int32_t x)
{
    return (v16i){_mm512_set1_epi32(x)};
}

MX_INLINE v16f vf_zero(void)
{
    return (v16f){_mm512_setzero_ps()};
}

MX_INLINE v16f vf_fma(v16f x, v16f y, v16f z)
{
    return (v16f){_mm512_fmadd_ps(x.v, y.v, z.v)};
}

MX_INLINE float vec_fmaf(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c); /* one instruction here: the file is compiled with -mfma */
}

MX_INLINE v16f vf_load(const float *p)
{
    return (v16f){_mm512_loadu_ps(p)};
}

MX_INLINE void vf_store(float *p, v16f v)
{
    _mm512_storeu_ps(p, v.v);
}

/* To 64-byte aligned memory that is not read again soon: past the caches where there is a way.
 * vec_stream_end comes before anybody else may see it. */
MX_INLINE void vf_stream(float *p, v16f v)
{
    _mm512_stream_ps(p, v.v);
}

MX_INLINE void vec_stream_end(void)
{
    _mm_sfence();
}

MX_INLINE v16i vi_load(const void *p)
{
    return (v16i){_mm512_loadu_si512(p)};
}

MX_INLINE void vi_store(void *p, v16i v)
{
    _mm512_storeu_si512(p, v.v);
}

MX_INLINE __m256i load_256(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

MX_INLINE __m128i load_128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

MX_INLINE v16f vf_load_h(const uint16_t *p)
{
    return (v16f){_mm512_cvtph_ps(load_256(p))};
}

MX_INLINE void vf_store_h(uint16_t *p, v16f v)
{
    const __m256i h = _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)p, h);
}

MX_INLINE v16i vi_load_u16(const uint16_t *p)
{
    return (v16i){_mm512_cvtepu16_epi32(load_256(p))};
}

MX_INLINE v16i vi_load_u8(const uint8_t *p)
{
    return (v16i){_mm512_cvtepu8_epi32(load_128(p))};
}

MX_INLINE v16i vi_load_i8(const uint8_t *p)
{
    return (v16i){_mm512_cvtepi8_epi32(load_128(p))};
}

MX_INLINE void vi_store_i16(int16_t *p, v16i v)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(v.v));
}

MX_INLINE v16i vf_bits(v16f v)
{
    return (v16i){_mm512_castps_si512(v.v)};
}

MX_INLINE v16f vi_bits(v16i v)
{
    return (v16f){_mm512_castsi512_ps(v.v)};
}

MX_INLINE v16f vf_of_int(v16i v)
{
    return (v16f){_mm512_cvtepi32_ps(v.v)};
}

MX_INLINE v16i vf_to_int(v16f v)
{
    return (v16i){_mm512_cvtps_epi32(v.v)};
}

/* No instruction: keeps the sums where they are written (see kern_vec_avx2.h). */
MX_INLINE void vi_pin(v16i *v)
{
    __asm__ volatile("" : "+v"(v->v));
}

MX_INLINE v16i vi_dot(v16i acc, v16i w, v16i x)
{
    return (v16i){_mm512_dpwssd_epi32(acc.v, w.v, x.v)}; /* wraps, does not saturate */
}

/* ---- bytes (kern_impl_matmul8.h) ------------------------------------------------------------- */

#define VEC_BYTES 1
#define VEC_BYTES_NARROW 0
enum { VEC_BYTE_ROWS = 6 };

BINARY(v16i, vi_sub8, _mm512_sub_epi8)

MX_INLINE v16i vb_dot(v16i n, v16i u, v16i s)
{
    return (v16i){_mm512_dpbusd_epi32(n.v, u.v, s.v)};
}

MX_INLINE v16i vb_widen(v16i n)
{
    return n;
}

/* 16 values that fit 8 bits, of each eight 0 4 1 5 2 6 3 7, and the same with a bias of 128. */
MX_INLINE void vb_narrow(const int16_t *q, int8_t *q8, uint8_t *biased)
{
    const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    const __m128i v = _mm_shuffle_epi8(_mm_packs_epi16(load_128(q), load_128(q + 8)), order);
    _mm_storeu_si128((__m128i *)(void *)q8, v);
    _mm_storeu_si128((__m128i *)(void *)biased, _mm_xor_si128(v, _mm_set1_epi8((char)0x80)));
}

MX_INLINE v16i vb_lut(v16i v, const uint8_t *table)
{
    return (v16i){_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_128(table)), v.v)};
}

MX_INLINE v16i vi_lut(v16i v, const uint8_t *table)
{
    /* the high byte of each half is an index with the top bit set: zero */
    const __m512i t = _mm512_broadcast_i32x4(load_128(table));
    return (v16i){_mm512_shuffle_epi8(t, _mm512_or_si512(v.v, _mm512_set1_epi16((short)0x8000)))};
}

MX_INLINE v16f vf_keep(v16f v, int lo, int hi, v16f other)
{
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 from = _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(lo));
    const __mmask16 keep = _mm512_mask_cmplt_epi32_mask(from, i, _mm512_set1_epi32(hi));
    return (v16f){_mm512_mask_blend_ps(keep, other.v, v.v)};
}

#define VEC_HAS_SCALE 1
MX_INLINE v16f vf_scale(v16f p, v16f k)
{
    return (v16f){_mm512_scalef_ps(p.v, k.v)};
}

MX_INLINE float vf_first(v16f v)
{
    return _mm512_cvtss_f32(v.v);
}

MX_INLINE float vf_tree_sum(v16f v)
{
    const __m256 high = _mm512_extractf32x8_ps(v.v, 1);
    const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(v.v), high);
    const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}

MX_INLINE float vf_tree_max(v16f v)
{
    const __m256 high = _mm512_extractf32x8_ps(v.v, 1);
    const __m256 h8 = _mm256_max_ps(_mm512_castps512_ps256(v.v), high);
    const __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    const __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}

MX_INLINE int32_t vi_tree_sum(v16i v)
{
    return _mm512_reduce_add_epi32(v.v);
}

MX_INLINE int32_t vi_tree_max(v16i v)
{
    return _mm512_reduce_max_epi32(v.v);
}

#endif
