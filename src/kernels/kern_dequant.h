/* SPDX-License-Identifier: MIT
 *
 * kern_dequant.h (internal): one block of a file taken apart, for the packer and the reference
 * dequantiser. Pure functions, any thread.
 */
#ifndef MX_KERN_DEQUANT_H
#define MX_KERN_DEQUANT_H

#include "kernels/kern_layout.h"

typedef struct mx_block {
    float d;          /* scale of the block; 2^(e - 128) for MXFP4 */
    float dmin;       /* the minimum (Q4_1, Q5_1) or its scale (Q2_K, Q4_K, Q5_K) */
    int8_t scale[16]; /* per sub-block, types of 256 only; signed value as it multiplies d */
    uint8_t min[16];  /* per sub-block, Q2_K, Q4_K, Q5_K */
    uint8_t q[256];   /* in element order: unsigned fields, table indices, i8 + 128 (Q8_0) */
} mx_block;

/* Takes one block of a quantised type apart; fields that the type lacks stay as they are. */
void mx_block_unpack(mx_qtype type, const uint8_t *bytes, mx_block *out);

/* The signed quant of a stored field. */
MX_INLINE int mx_quant_value(mx_qtype type, uint8_t q)
{
    const uint8_t *lut = mx_lut_of(type);
    return (lut != NULL ? lut[q] : q) - mx_offset_of(type);
}

MX_INLINE float mx_weight_value(mx_qtype type, uint8_t q, float scale, float min)
{
    const float v = scale * (float)mx_quant_value(type, q);
    return mx_has_min(type) ? v + min : v;
}

#endif
