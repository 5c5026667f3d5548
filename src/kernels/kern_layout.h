/* SPDX-License-Identifier: MIT
 *
 * kern_layout.h (internal): how a repacked panel looks. Shared by the packer and by every level.
 *
 * A panel holds 16 output rows. Along K it is cut into groups of MX_ACT_BLOCK inputs (the last may
 * be short); a group is its quants, 32 inputs after 32 inputs, then its scales:
 *
 *   group = [quants of sub-block 0][1]...[n-1] [scales] [pad to 64 bytes]
 *
 * Quants are kept in 64-byte vectors: a 32-bit lane per row. The low 16 bits of a lane belong to
 * even inputs, the high 16 bits to odd ones, so that one shift and one mask give the pair
 * (w[k], w[k + 1]) of all 16 rows as i16, which is what vpmaddwd and vpdpwssd want. Input k of the
 * 32 is input 2j + half of eight, k = 8i + 2j + half; what it has at which bits of its half:
 *
 *   NIB   4 vectors  vector i, 4 bits at 4j
 *   BIT   1 vector   1 bit at 8 (j / 2) + 2i + j % 2
 *   TWO   2 vectors  vector i / 2, 2 bits at 8 (j / 2) + 4 (i % 2) + 2 (j % 2)
 *   BYTE  8 vectors  vector 2i + j % 2, byte j / 2; i8 is stored with its offset, as u8
 *
 * So the same bytes also hold four inputs per lane, one in each byte, in the order 0 4 1 5 (j even)
 * and 2 6 3 7 (j odd) of the eight.
 *
 * Scales of 16 rows lie side by side: f16 as in the file, integer scales as one byte each.
 * Float matrices are [k][16] in their own type, with no groups.
 */
#ifndef MX_KERN_LAYOUT_H
#define MX_KERN_LAYOUT_H

#include "kernels/kern.h"

typedef enum mx_quant_class {
    MX_CLASS_NIB,     /* 4 bits */
    MX_CLASS_NIB_BIT, /* 4 + 1 bits */
    MX_CLASS_NIB_TWO, /* 4 + 2 bits */
    MX_CLASS_TWO,     /* 2 bits */
    MX_CLASS_TWO_BIT, /* 2 + 1 bits */
    MX_CLASS_BYTE,    /* 8 bits */
    MX_CLASS_FLOAT,
} mx_quant_class;

enum {
    MX_VEC_BYTES = 64, /* 16 lanes of 32 bits */
    MX_GROUP_SUBS = MX_ACT_BLOCK / MX_SUB_BLOCK,
};

/* Values of IQ4_NL / IQ4_XS and MXFP4 with the offset added, so that they are unsigned bytes. */
extern const uint8_t mx_lut_iq4[16];
extern const uint8_t mx_lut_fp4[16];
enum { MX_LUT_IQ4_OFFSET = 128, MX_LUT_FP4_OFFSET = 12, MX_BYTE_OFFSET = 128 };

/* Where the pair p (inputs 2p, 2p + 1) of a sub-block has its bits (see above). */
MX_INLINE int mx_one_bit_at(int p)
{
    return 8 * (p % 4 / 2) + 2 * (p / 4) + p % 2;
}

MX_INLINE int mx_two_bits_at(int p)
{
    return 8 * (p % 4 / 2) + 4 * (p / 4 % 2) + 2 * (p % 2);
}

MX_INLINE mx_quant_class mx_class_of(mx_qtype t)
{
    switch (t) {
    case MX_Q4_0:
    case MX_Q4_1:
    case MX_Q4_K:
    case MX_IQ4_NL:
    case MX_IQ4_XS:
    case MX_MXFP4:
        return MX_CLASS_NIB;
    case MX_Q5_0:
    case MX_Q5_1:
    case MX_Q5_K:
        return MX_CLASS_NIB_BIT;
    case MX_Q6_K:
        return MX_CLASS_NIB_TWO;
    case MX_Q2_K:
        return MX_CLASS_TWO;
    case MX_Q3_K:
        return MX_CLASS_TWO_BIT;
    case MX_Q8_0:
        return MX_CLASS_BYTE;
    case MX_F32:
    case MX_F16:
    case MX_BF16:
        break;
    }
    return MX_CLASS_FLOAT;
}

/* Inputs that share a scale. */
MX_INLINE int mx_sub_of(mx_qtype t)
{
    return t == MX_Q2_K || t == MX_Q3_K || t == MX_Q6_K ? 16 : 32;
}

MX_INLINE bool mx_has_min(mx_qtype t)
{
    return t == MX_Q4_1 || t == MX_Q5_1 || t == MX_Q2_K || t == MX_Q4_K || t == MX_Q5_K;
}

MX_INLINE bool mx_is_super(mx_qtype t)
{
    return t == MX_Q2_K || t == MX_Q3_K || t == MX_Q4_K || t == MX_Q5_K || t == MX_Q6_K ||
           t == MX_IQ4_XS;
}

MX_INLINE const uint8_t *mx_lut_of(mx_qtype t)
{
    return t == MX_IQ4_NL || t == MX_IQ4_XS ? mx_lut_iq4 : t == MX_MXFP4 ? mx_lut_fp4 : NULL;
}

/* What is added to a signed quant to store it. */
MX_INLINE int mx_offset_of(mx_qtype t)
{
    switch (t) {
    case MX_Q4_0:
        return 8;
    case MX_Q5_0:
        return 16;
    case MX_Q6_K:
        return 32;
    case MX_Q3_K:
        return 4;
    case MX_IQ4_NL:
    case MX_IQ4_XS:
        return MX_LUT_IQ4_OFFSET;
    case MX_MXFP4:
        return MX_LUT_FP4_OFFSET;
    case MX_Q8_0:
        return MX_BYTE_OFFSET;
    default:
        return 0;
    }
}

/* |sum of stored * activation| and |offset * sum of activations| of one sub-block fit an i32, each
 * and together, for the widest type (the table types: stored <= 241, offset 128). */
_Static_assert((241LL + 128) * 32767 * MX_SUB_BLOCK < 1LL << 31, "table types");
_Static_assert((255LL + 128) * 32767 * MX_SUB_BLOCK < 1LL << 31, "Q8_0");
_Static_assert((15LL + 8) * 32767 * MX_SUB_BLOCK < 1LL << 31, "Q4_0, Q4_1, Q4_K");
_Static_assert((31LL + 16) * 32767 * MX_SUB_BLOCK < 1LL << 31, "Q5_0, Q5_1, Q5_K");
_Static_assert((23LL + 12) * 32767 * MX_SUB_BLOCK < 1LL << 31, "MXFP4");
_Static_assert((63LL + 32) * 32767 * 16 < 1LL << 31, "Q6_K");
_Static_assert((7LL + 4) * 32767 * 16 < 1LL << 31, "Q3_K, Q2_K");
/* Sums of activations stay exact in f32, for 16 and for 32 inputs; three times as much is what
 * vf_to_int takes (the odd factor of an offset is 1 or 3). */
_Static_assert(3 * 32767LL * MX_SUB_BLOCK < 1LL << 22, "sums are exact in f32");

/* Bytes of the quants of 32 inputs x 16 rows. */
MX_INLINE size_t mx_quant_bytes(mx_qtype t)
{
    switch (mx_class_of(t)) {
    case MX_CLASS_NIB:
        return 4 * MX_VEC_BYTES;
    case MX_CLASS_NIB_BIT:
        return 5 * MX_VEC_BYTES;
    case MX_CLASS_NIB_TWO:
        return 6 * MX_VEC_BYTES;
    case MX_CLASS_TWO:
        return 2 * MX_VEC_BYTES;
    case MX_CLASS_TWO_BIT:
        return 3 * MX_VEC_BYTES;
    case MX_CLASS_BYTE:
        return 8 * MX_VEC_BYTES;
    case MX_CLASS_FLOAT:
        break;
    }
    return 0;
}

/* Bytes of the scales of a group of n_subs x 32 inputs x 16 rows. */
MX_INLINE size_t mx_scale_bytes(mx_qtype t, size_t n_subs)
{
    switch (t) {
    case MX_MXFP4:
        return n_subs * 16; /* e */
    case MX_Q4_1:
    case MX_Q5_1:
        return n_subs * 64; /* d, m */
    case MX_Q2_K:
        return 64 + n_subs * 32; /* d, dmin, packed scale and min per 16 */
    case MX_Q3_K:
    case MX_Q6_K:
        return 32 + n_subs * 32; /* d, scale per 16 */
    case MX_Q4_K:
    case MX_Q5_K:
        return 64 + n_subs * 32; /* d, dmin, scales, mins */
    case MX_IQ4_XS:
        return 32 + n_subs * 16; /* d, scales */
    default:
        return n_subs * 32; /* d */
    }
}

MX_INLINE size_t mx_group_bytes(mx_qtype t, size_t n_subs)
{
    return mx_round_up(n_subs * mx_quant_bytes(t) + mx_scale_bytes(t, n_subs), MX_VEC_BYTES);
}

MX_INLINE size_t mx_float_bytes(mx_qtype t)
{
    return t == MX_F32 ? 4 : 2;
}

/* IEEE half to f32 and back (RNE), in integers: the levels with an instruction for it agree. */
MX_INLINE float mx_f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

MX_INLINE uint32_t mx_bits_of_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

MX_INLINE float mx_f32_of_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exp = (h >> 10) & 31u;
    const uint32_t man = h & 0x3ffu;
    if (exp == 0) { /* zero or denormal: man * 2^-24 is exact */
        return mx_f32_of_bits(sign | mx_bits_of_f32((float)man * 0x1p-24f));
    }
    if (exp == 31) { /* a NaN comes out quiet, as from the instruction */
        return mx_f32_of_bits(sign | 0x7f800000u | man << 13 | (man != 0 ? 0x400000u : 0));
    }
    return mx_f32_of_bits(sign | (exp + 112) << 23 | man << 13);
}

MX_INLINE uint16_t mx_f16_of_f32(float f)
{
    const uint32_t bits = mx_bits_of_f32(f);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t abs = bits & 0x7fffffffu;
    if (abs > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | (abs >> 13 & 0x3ffu));
    }
    if (abs >= 0x477ff000u) { /* from 65520 on everything rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (abs < 0x38800000u) { /* below 2^-14: adding 1/2 leaves RNE(|f| / 2^-24) in the low bits */
        const float shifted = mx_f32_of_bits(abs) + 0.5f;
        return (uint16_t)(sign | (mx_bits_of_f32(shifted) - 0x3f000000u));
    }
    const uint32_t odd = abs >> 13 & 1u;
    return (uint16_t)(sign | (abs - 0x38000000u + 0xfffu + odd) >> 13);
}

MX_INLINE float mx_f32_of_bf16(uint16_t h)
{
    return mx_f32_of_bits((uint32_t)h << 16);
}

/* 2^(e - 128), denormal for e < 2. */
MX_INLINE float mx_f32_of_e8m0_half(uint8_t e)
{
    return mx_f32_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

#endif
