/* SPDX-License-Identifier: MIT
 *
 * kern_impl_exp.h (internal, part of kern_impl.h): exp of 16 lanes, docs/numerics.md section 6.
 */
#ifndef MX_KERN_IMPL_EXP_H
#define MX_KERN_IMPL_EXP_H

/* p * 2^k, rounded once, for 0.5 <= p < 2 and integers -151 <= k <= 129. */
MX_INLINE v16f times_2_to(v16f p, v16f k)
{
#if defined(VEC_HAS_SCALE)
    return vf_scale(p, k);
#else
    /* In two factors: the first product is exact, the second rounds once into denormals. */
    const v16f magic = vf_set1(0x1.8p+23f);
    const v16i bias = vi_set1(127);
    const v16i n = vi_sub(vf_bits(vf_add(k, magic)), vf_bits(magic));
    const v16i a = vi_sra(n, 1);
    const v16i b = vi_sub(n, a);
    p = vf_mul(p, vi_bits(vi_sll(vi_add(a, bias), 23)));
    return vf_mul(p, vi_bits(vi_sll(vi_add(b, bias), 23)));
#endif
}

/* x <= 89 or a NaN */
MX_INLINE v16f vec_exp_low(v16f x)
{
    const v16f magic = vf_set1(0x1.8p+23f);
    /* max and min keep their second operand when one is a NaN: so the limits come first */
    x = vf_max(vf_set1(-104.0f), x);
    v16f k = vf_fma(x, vf_set1(0x1.715476p+0f), magic);
    k = vf_sub(k, magic);
    v16f r = vf_fma(k, vf_set1(-0x1.62e430p-1f), x);
    r = vf_fma(k, vf_set1(0x1.05c610p-29f), r);
    v16f p = vf_set1(0x1.6a2352p-10f);
    p = vf_fma(p, r, vf_set1(0x1.123a6cp-7f));
    p = vf_fma(p, r, vf_set1(0x1.5558f4p-5f));
    p = vf_fma(p, r, vf_set1(0x1.555490p-3f));
    p = vf_fma(p, r, vf_set1(0x1.fffffcp-2f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return times_2_to(p, k);
}

MX_INLINE v16f vec_exp(v16f x)
{
    return vec_exp_low(vf_min(vf_set1(89.0f), x));
}

#endif
