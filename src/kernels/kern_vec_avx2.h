/* SPDX-License-Identifier: MIT
 *
 * kern_vec_avx2.h (internal): 16 lanes as two 256-bit registers. Needs AVX2, FMA and F16C; where the
 * compiler may use AVX-VNNI, products are summed by its instructions. The operations are described
 * in kern_vec_portable.h.
 */
#ifndef MX_KERN_VEC_AVX2_H
#define MX_KERN_VEC_AVX2_H

#include "kernels/kern_layout.h"

#include <immintrin.h>

typedef struct v16f {
    __m256 a, b;
} v16f;

typedef struct v16i {
    __m256i a, b;
} v16i;

enum {
    /* 2 x (2 integer + 2 float accumulators) + 2 weights + 2 broadcasts fit 16 registers; with 3
     * rows gcc 12 spills (56 against 42 GMAC/s measured on Zen 3) */
#if defined(__AVXVNNI__)
    VEC_TILE_ROWS = 3, /* a product needs no register of its own */
#else
    VEC_TILE_ROWS = 2,
#endif
    VEC_TILE_PANELS = 1,
    VEC_PANELS = 2, /* rows are fetched into L1 half as often; 4 groups of 8 KiB would fill it */
    VEC_DIRECT_ROWS = 4,
    VEC_DIRECT_MAX = 8,
    VEC_CHAINS = 2,
    VEC_WIDE_1 = 4, /* 8 accumulators cover the latency of two FMA units */
    VEC_WIDE_2 = 2,
    VEC_WIDE_4 = 1,
    VEC_PANEL = 1,
};

/* 8 sums of 8 lanes; more would not fit the registers beside the rest */
#define VEC_GDN_SLABS 2

#if defined(MX_NO_UNROLL)
#define MX_UNROLL
#elif defined(__clang__)
#define MX_UNROLL _Pragma("unroll")
#else
#define MX_UNROLL _Pragma("GCC unroll 16")
#endif

#define BOTH(type, op, x, y) ((type){op((x).a, (y).a), op((x).b, (y).b)})

#define PAIRWISE(type, name, op)                                                                   \
    MX_INLINE type name(type x, type y)                                                            \
    {                                                                                              \
        return BOTH(type, op, x, y);                                                               \
    }

PAIRWISE(v16f, vf_add, _mm256_add_ps)
PAIRWISE(v16f, vf_sub, _mm256_sub_ps)
PAIRWISE(v16f, vf_mul, _mm256_mul_ps)
PAIRWISE(v16f, vf_div, _mm256_div_ps)
PAIRWISE(v16f, vf_max, _mm256_max_ps) /* the instruction is x > y ? x : y */
PAIRWISE(v16f, vf_min, _mm256_min_ps)
PAIRWISE(v16i, vi_add, _mm256_add_epi32)
PAIRWISE(v16i, vi_sub, _mm256_sub_epi32)
PAIRWISE(v16i, vi_and, _mm256_and_si256)
PAIRWISE(v16i, vi_or, _mm256_or_si256)
PAIRWISE(v16i, vi_max, _mm256_max_epi32)
PAIRWISE(v16i, vi_sub16, _mm256_sub_epi16)

MX_INLINE v16i vi_sll(v16i x, int n)
{
    return (v16i){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
}

MX_INLINE v16i vi_srl(v16i x, int n)
{
    return (v16i){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)};
}

MX_INLINE v16i vi_sra(v16i x, int n)
{
    return (v16i){_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)};
}

MX_INLINE v16i vi_srl16(v16i x, int n)
{
    return (v16i){_mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n)};
}

MX_INLINE v16f vf_set1(float x)
{
    const __m256 v = _mm256_set1_ps(x);
    return (v16f){v, v};
}

MX_INLINE v16i vi_set1(int32_t x)
{
    const __m256i v = _mm256_set1_epi32(x);
    return (v16i){v, v};
}

MX_INLINE v16f vf_zero(void)
{
    return (v16f){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

MX_INLINE v16f vf_fma(v16f x, v16f y, v16f z)
{
    return (v16f){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

MX_INLINE float vec_fmaf(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c); /* one instruction here: the file is compiled with -mfma */
}

MX_INLINE v16f vf_load(const float *p)
{
    return (v16f){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

MX_INLINE void vf_store(float *p, v16f v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

/* To 64-byte aligned memory that is not read again soon: past the caches where there is a way.
 * vec_stream_end comes before anybody else may see it. */
MX_INLINE void vf_stream(float *p, v16f v)
{
    _mm256_stream_ps(p, v.a);
    _mm256_stream_ps(p + 8, v.b);
}

MX_INLINE void vec_stream_end(void)
{
    _mm_sfence();
}

MX_INLINE v16i vi_load(const void *p)
{
    const __m256i *q = p;
    return (v16i){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

MX_INLINE void vi_store(void *p, v16i v)
{
    __m256i *q = p;
    _mm256_storeu_si256(q, v.a);
    _mm256_storeu_si256(q + 1, v.b);
}

MX_INLINE __m128i load_128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

MX_INLINE v16f vf_load_h(const uint16_t *p)
{
    return (v16f){_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))};
}

MX_INLINE void vf_store_h(uint16_t *p, v16f v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(v.b, _MM_FROUND_TO_NEAREST_INT));
}

MX_INLINE v16i vi_load_u16(const uint16_t *p)
{
    return (v16i){_mm256_cvtepu16_epi32(load_128(p)), _mm256_cvtepu16_epi32(load_128(p + 8))};
}

MX_INLINE v16i vi_load_u8(const uint8_t *p)
{
    const __m128i v = load_128(p);
    return (v16i){_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))};
}

MX_INLINE v16i vi_load_i8(const uint8_t *p)
{
    const __m128i v = load_128(p);
    return (v16i){_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))};
}

MX_INLINE void vi_store_i16(int16_t *p, v16i v)
{
    /* packs interleaves the 128-bit halves; 0xd8 puts them back in order */
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
    _mm256_storeu_si256((__m256i *)p, packed);
}

MX_INLINE v16i vf_bits(v16f v)
{
    return (v16i){_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)};
}

MX_INLINE v16f vi_bits(v16i v)
{
    return (v16f){_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)};
}

MX_INLINE v16f vf_of_int(v16i v)
{
    return (v16f){_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)};
}

MX_INLINE v16i vf_to_int(v16f v)
{
    return (v16i){_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)};
}

/* No instruction: keeps the sums where they are written. gcc 12 otherwise hoists all products of an
 * unrolled loop above the additions and spills them (GEMM tile of Q4_0: 38 against 57 GMAC/s). */
MX_INLINE void vi_pin(v16i *v)
{
    __asm__ volatile("" : "+x"(v->a), "+x"(v->b));
}

#if defined(__AVXVNNI__)

MX_INLINE v16i vi_dot(v16i acc, v16i w, v16i x)
{
    return (v16i){_mm256_dpwssd_avx_epi32(acc.a, w.a, x.a), /* wraps, does not saturate */
                  _mm256_dpwssd_avx_epi32(acc.b, w.b, x.b)};
}

#else

MX_INLINE v16i vi_dot(v16i acc, v16i w, v16i x)
{
    return (v16i){_mm256_add_epi32(acc.a, _mm256_madd_epi16(w.a, x.a)),
                  _mm256_add_epi32(acc.b, _mm256_madd_epi16(w.b, x.b))};
}

#endif

/* ---- bytes (kern_impl_matmul8.h) --------------------------------------------------------------- */

#define VEC_BYTES 1

PAIRWISE(v16i, vi_sub8, _mm256_sub_epi8)

#if defined(__AVXVNNI__)

#define VEC_BYTES_NARROW 0
enum { VEC_BYTE_ROWS = 3 };

MX_INLINE v16i vb_dot(v16i n, v16i u, v16i s)
{
    return (v16i){_mm256_dpbusd_avx_epi32(n.a, u.a, s.a), _mm256_dpbusd_avx_epi32(n.b, u.b, s.b)};
}

MX_INLINE v16i vb_widen(v16i n)
{
    return n;
}

#else

#define VEC_BYTES_NARROW 1 /* narrow sums are pairs of i16 */
enum { VEC_BYTE_ROWS = 4 };

MX_INLINE v16i vb_dot(v16i n, v16i u, v16i s)
{
    return (v16i){_mm256_add_epi16(n.a, _mm256_maddubs_epi16(u.a, s.a)),
                  _mm256_add_epi16(n.b, _mm256_maddubs_epi16(u.b, s.b))};
}

MX_INLINE v16i vb_widen(v16i n)
{
    const __m256i ones = _mm256_set1_epi16(1);
    return (v16i){_mm256_madd_epi16(n.a, ones), _mm256_madd_epi16(n.b, ones)};
}

#endif

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
    const __m256i t = _mm256_broadcastsi128_si256(load_128(table));
    return (v16i){_mm256_shuffle_epi8(t, v.a), _mm256_shuffle_epi8(t, v.b)};
}

MX_INLINE v16i vi_lut(v16i v, const uint8_t *table)
{
    /* the high byte of each half is an index with the top bit set: zero */
    const __m256i t = _mm256_broadcastsi128_si256(load_128(table));
    const __m256i high = _mm256_set1_epi16((short)0x8000);
    return (v16i){_mm256_shuffle_epi8(t, _mm256_or_si256(v.a, high)),
                  _mm256_shuffle_epi8(t, _mm256_or_si256(v.b, high))};
}

MX_INLINE v16f vf_keep(v16f v, int lo, int hi, v16f other)
{
    const __m256i from = _mm256_set1_epi32(lo - 1), to = _mm256_set1_epi32(hi);
    const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i j = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i ka = _mm256_and_si256(_mm256_cmpgt_epi32(i, from), _mm256_cmpgt_epi32(to, i));
    const __m256i kb = _mm256_and_si256(_mm256_cmpgt_epi32(j, from), _mm256_cmpgt_epi32(to, j));
    return (v16f){_mm256_blendv_ps(other.a, v.a, _mm256_castsi256_ps(ka)),
                  _mm256_blendv_ps(other.b, v.b, _mm256_castsi256_ps(kb))};
}

MX_INLINE float vf_first(v16f v)
{
    return _mm256_cvtss_f32(v.a);
}

MX_INLINE float vf_tree_sum(v16f v)
{
    const __m256 h8 = _mm256_add_ps(v.a, v.b);
    const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}

MX_INLINE float vf_tree_max(v16f v)
{
    const __m256 h8 = _mm256_max_ps(v.a, v.b);
    const __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    const __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}

MX_INLINE int32_t vi_tree_sum(v16i v)
{
    const __m256i h8 = _mm256_add_epi32(v.a, v.b);
    const __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
    const __m128i h2 = _mm_add_epi32(h4, _mm_shuffle_epi32(h4, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}

MX_INLINE int32_t vi_tree_max(v16i v)
{
    const __m256i h8 = _mm256_max_epi32(v.a, v.b);
    const __m128i h4 = _mm_max_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
    const __m128i h2 = _mm_max_epi32(h4, _mm_shuffle_epi32(h4, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}

#endif
