/* SPDX-License-Identifier: MIT
 *
 * kern_impl_exp.h (internal, part of kern_impl.h): exp of 16 lanes, docs/numerics.md section 6.
 */
#ifndef MX_KERN_IMPL_EXP_H
#define MX_KERN_IMPL_EXP_H

MX_INLINE v16f vec_exp(v16f x)
{
    const v16f magic = vf_set1(0x1.8p+23f);
    /* min and max keep their second operand when the first is a NaN: so the limits come first */
    x = vf_min(vf_set1(89.0f), x);
    x = vf_max(vf_set1(-104.0f), x);
    v16f k = vf_fma(x, vf_set1(0x1.715476p+0f), magic);
    const v16i n = vi_sub(vf_bits(k), vf_bits(magic));
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
    /* 2^n in two factors: the first product is exact, the second rounds once into denormals */
    const v16i bias = vi_set1(127);
    const v16i a = vi_sra(n, 1);
    const v16i b = vi_sub(n, a);
    p = vf_mul(p, vi_bits(vi_sll(vi_add(a, bias), 23)));
    return vf_mul(p, vi_bits(vi_sll(vi_add(b, bias), 23)));
}

#endif
