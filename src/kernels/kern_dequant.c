/* SPDX-License-Identifier: MIT
 *
 * File bytes to f32, one element after the other: the reference for every other way to read a
 * weight. All products of scales and quants are exact in f32; only the addition of a minimum
 * rounds (docs/numerics.md, section 2).
 *
 * The K types pack 256 elements in two halves of 128; inside a half the two-bit or four-bit fields
 * of one byte belong to elements 32 apart, not to neighbours.
 */
#include "kernels/kern_dequant.h"
#include "kernels/kern_layout.h"

const uint8_t mx_lut_iq4[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                129, 141, 153, 166, 181, 197, 217, 241};
const uint8_t mx_lut_fp4[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Element i and i + 16 of a 32-block share byte i. */
static void split_nibbles(const uint8_t *qs, uint8_t *q)
{
    for (int i = 0; i < 16; i++) {
        q[i] = qs[i] & 15;
        q[i + 16] = qs[i] >> 4;
    }
}

static void add_fifth_bits(const uint8_t *qh, uint8_t *q)
{
    const uint32_t bits = mx_get_le32(qh);
    for (int i = 0; i < 32; i++) {
        q[i] = (uint8_t)(q[i] | (bits >> i & 1u) << 4);
    }
}

static float half_at(const uint8_t *p)
{
    return mx_f32_of_f16(mx_get_le16(p));
}

/* The 6-bit scale and min of sub-block k of Q4_K and Q5_K. */
static void scale_min_k4(const uint8_t *sc, int k, uint8_t *scale, uint8_t *min)
{
    if (k < 4) {
        *scale = sc[k] & 63;
        *min = sc[k + 4] & 63;
    } else {
        *scale = (uint8_t)((sc[k + 4] & 15) | (sc[k - 4] >> 6) << 4);
        *min = (uint8_t)((sc[k + 4] >> 4) | (sc[k] >> 6) << 4);
    }
}

/* Runs of 32 with one shift each: what the compiler makes vectors of. */

static void unpack_q2_k(const uint8_t *b, mx_block *out)
{
    for (int run = 0; run < 8; run++) {
        const uint8_t *qs = b + 16 + 32 * (run / 4);
        for (int i = 0; i < 32; i++) {
            out->q[32 * run + i] = qs[i] >> (2 * (run % 4)) & 3;
        }
    }
    out->d = half_at(b + 80);
    out->dmin = half_at(b + 82);
    for (int s = 0; s < 16; s++) {
        out->scale[s] = (int8_t)(b[s] & 15);
        out->min[s] = b[s] >> 4;
    }
}

static void unpack_q3_k(const uint8_t *b, mx_block *out)
{
    const uint8_t *sc = b + 96;
    for (int run = 0; run < 8; run++) {
        const uint8_t *qs = b + 32 + 32 * (run / 4);
        for (int i = 0; i < 32; i++) {
            const int low = qs[i] >> (2 * (run % 4)) & 3;
            out->q[32 * run + i] = (uint8_t)(low | (b[i] >> run & 1) << 2);
        }
    }
    out->d = half_at(b + 108);
    for (int s = 0; s < 16; s++) {
        const int low = s < 8 ? sc[s] & 15 : sc[s - 8] >> 4;
        const int high = sc[8 + s % 4] >> (2 * (s / 4)) & 3;
        out->scale[s] = (int8_t)((low | high << 4) - 32);
    }
}

static void unpack_q45_k(const uint8_t *b, bool is_q5, mx_block *out)
{
    const uint8_t *qh = b + 16;
    for (int k = 0; k < 8; k++) {
        const uint8_t *qs = b + (is_q5 ? 48 : 16) + 32 * (k / 2);
        uint8_t *q = out->q + 32 * k;
        for (int i = 0; i < 32; i++) {
            q[i] = qs[i] >> (4 * (k & 1)) & 15;
        }
        for (int i = 0; is_q5 && i < 32; i++) {
            q[i] = (uint8_t)(q[i] | (qh[i] >> k & 1) << 4);
        }
    }
    out->d = half_at(b);
    out->dmin = half_at(b + 2);
    for (int k = 0; k < 8; k++) {
        uint8_t scale;
        scale_min_k4(b + 4, k, &scale, &out->min[k]);
        out->scale[k] = (int8_t)scale;
    }
}

static void unpack_q6_k(const uint8_t *b, mx_block *out)
{
    for (int run = 0; run < 8; run++) {
        const int quarter = run % 4;
        const uint8_t *ql = b + 64 * (run / 4) + 32 * (quarter & 1);
        const uint8_t *qh = b + 128 + 32 * (run / 4);
        for (int i = 0; i < 32; i++) {
            const int low = ql[i] >> (4 * (quarter >> 1)) & 15;
            const int high = qh[i] >> (2 * quarter) & 3;
            out->q[32 * run + i] = (uint8_t)(low | high << 4);
        }
    }
    out->d = half_at(b + 208);
    memcpy(out->scale, b + 192, 16);
}

static void unpack_iq4_xs(const uint8_t *b, mx_block *out)
{
    const uint32_t high = mx_get_le16(b + 2);
    out->d = half_at(b);
    for (int k = 0; k < 8; k++) {
        const int ls = (b[4 + k / 2] >> (4 * (k & 1)) & 15) | (int)(high >> (2 * k) & 3u) << 4;
        out->scale[k] = (int8_t)(ls - 32);
        split_nibbles(b + 8 + 16 * k, out->q + 32 * k);
    }
}

void mx_block_unpack(mx_qtype type, const uint8_t *b, mx_block *out)
{
    switch (type) {
    case MX_Q4_0:
    case MX_IQ4_NL:
        out->d = half_at(b);
        split_nibbles(b + 2, out->q);
        break;
    case MX_Q4_1:
        out->d = half_at(b);
        out->dmin = half_at(b + 2);
        split_nibbles(b + 4, out->q);
        break;
    case MX_Q5_0:
        out->d = half_at(b);
        split_nibbles(b + 6, out->q);
        add_fifth_bits(b + 2, out->q);
        break;
    case MX_Q5_1:
        out->d = half_at(b);
        out->dmin = half_at(b + 2);
        split_nibbles(b + 8, out->q);
        add_fifth_bits(b + 4, out->q);
        break;
    case MX_Q8_0:
        out->d = half_at(b);
        for (int i = 0; i < 32; i++) {
            out->q[i] = b[2 + i] ^ 0x80u; /* i8 + 128 */
        }
        break;
    case MX_MXFP4:
        out->d = mx_f32_of_e8m0_half(b[0]);
        split_nibbles(b + 1, out->q);
        break;
    case MX_Q2_K:
        unpack_q2_k(b, out);
        break;
    case MX_Q3_K:
        unpack_q3_k(b, out);
        break;
    case MX_Q4_K:
    case MX_Q5_K:
        unpack_q45_k(b, type == MX_Q5_K, out);
        break;
    case MX_Q6_K:
        unpack_q6_k(b, out);
        break;
    case MX_IQ4_XS:
        unpack_iq4_xs(b, out);
        break;
    case MX_F32:
    case MX_F16:
    case MX_BF16:
        break;
    }
}

static void dequantize_floats(mx_qtype type, const uint8_t *bytes, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = type == MX_F32   ? mx_f32_of_bits(mx_get_le32(bytes + 4 * i))
                 : type == MX_F16 ? mx_f32_of_f16(mx_get_le16(bytes + 2 * i))
                                  : mx_f32_of_bf16(mx_get_le16(bytes + 2 * i));
    }
}

void mx_dequantize(mx_qtype type, const uint8_t *bytes, size_t n, float *out)
{
    if (mx_class_of(type) == MX_CLASS_FLOAT) {
        dequantize_floats(type, bytes, n, out);
        return;
    }
    const mx_qtype_info *info = mx_qtype_get(type);
    const int sub = mx_sub_of(type);
    for (size_t i = 0; i < n; i += info->block_elems, bytes += info->block_bytes) {
        mx_block b;
        mx_block_unpack(type, bytes, &b);
        for (uint32_t j = 0; j < info->block_elems; j++) {
            const int s = (int)j / sub;
            const float scale = mx_is_super(type) ? b.d * (float)b.scale[s] : b.d;
            const float min = !mx_has_min(type)    ? 0.0f
                              : mx_is_super(type) ? -(b.dmin * (float)b.min[s])
                                                  : b.dmin;
            out[i + j] = mx_weight_value(type, b.q[j], scale, min);
        }
    }
}
