/* SPDX-License-Identifier: MIT
 *
 * kern_impl_gdn.h (internal, part of kern_impl.h): the layers of Gated DeltaNet hybrids,
 * docs/numerics.md section 14.
 *
 * The state S of a head [d][d] is cut into slabs of 16 columns, [slab][row][16]. Columns do not
 * know of each other, so a few slabs (8 KiB each for d = 128) stay in L1 while all tokens of a
 * chunk stream past them, and each token does the same arithmetic as it would alone:
 *
 *     pass 1   r = S' k           one load and one fused multiply-add per element
 *     pass 2   S = g S + k delta', o = S' q     load, multiply, two fused multiply-adds, store
 *
 * Merging pass 1 of a token with pass 2 of the one before would save the loads, but a chunk of one
 * token could not do the same; and the multiplier is what limits, not the loads.
 */
#ifndef MX_KERN_IMPL_GDN_H
#define MX_KERN_IMPL_GDN_H

/* Slabs that are worked on together: two sums each must hide the latency of the multiplier. A level
 * with registers to spare defines more. Columns are independent, so the bits do not care. */
#ifndef VEC_GDN_SLABS
#define VEC_GDN_SLABS 1
#endif

enum { GDN_LANES = 16 };

/* 1 + exp(-x), by which sigmoid divides */
MX_INLINE v16f one_plus_exp_neg(v16f x)
{
    return vf_add(vf_set1(1.0f), vec_exp(vi_bits(vi_sub(vf_bits(x), vi_set1(INT32_MIN)))));
}

static void sigmoid(float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        const v16f v = vf_div(vf_set1(1.0f), one_plus_exp_neg(load_n(x + i, n - i)));
        store_n(x + i, v, n - i);
    }
}

static void sigmoid_mul(float *y, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        const v16f v = vf_div(load_n(y + i, n - i), one_plus_exp_neg(load_n(gate + i, n - i)));
        store_n(y + i, v, n - i);
    }
}

/* log(1 + u) for 0 <= u <= 1 by the series of the inverse hyperbolic tangent of s = u / (2 + u) <=
 * 1/3: eight terms leave less than 2^-26. */
MX_INLINE v16f vec_log1p(v16f u)
{
    const v16f s = vf_div(u, vf_add(u, vf_set1(2.0f)));
    const v16f z = vf_mul(s, s);
    v16f p = vf_set1(0x1.111112p-4f);
    p = vf_fma(p, z, vf_set1(0x1.3b13b2p-4f));
    p = vf_fma(p, z, vf_set1(0x1.745d18p-4f));
    p = vf_fma(p, z, vf_set1(0x1.c71c72p-4f));
    p = vf_fma(p, z, vf_set1(0x1.24924ap-3f));
    p = vf_fma(p, z, vf_set1(0x1.99999ap-3f));
    p = vf_fma(p, z, vf_set1(0x1.555556p-2f));
    p = vf_fma(p, z, vf_set1(1.0f));
    return vf_mul(vf_add(s, s), p);
}

static void gdn_decay(float *x, const float *dt, const float *a, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        const v16f t = vf_add(load_n(x + i, n - i), load_n(dt + i, n - i));
        const v16i sign = vi_set1(INT32_MIN);
        const v16f low = vi_bits(vi_or(vf_bits(t), sign)); /* -|t| */
        /* max(0, t) gives 0 for a NaN, which the sum brings back */
        const v16f soft = vf_add(vf_max(t, vf_zero()), vec_log1p(vec_exp(low)));
        store_n(x + i, vec_exp(vf_mul(load_n(a + i, n - i), soft)), n - i);
    }
}

static void l2norm(float *x, float scale_to, uint32_t n)
{
    v16f s = vf_zero();
    for (uint32_t i = 0; i < n; i += 16) {
        const v16f v = load_n(x + i, n - i);
        s = vf_fma(v, v, s);
    }
    const v16f r = vf_set1(scale_to / sqrtf(vf_tree_sum(s) + 1e-6f));
    for (uint32_t i = 0; i < n; i += 16) {
        store_n(x + i, vf_mul(load_n(x + i, n - i), r), n - i);
    }
}

enum {
    CONV_TAPS = 4, /* what the models have; others go the way that does not know how many */
    /* Rows lie 30 KiB apart, where the hardware fetches nothing ahead. For 512 of them 16 rows took 0.64 ms a
     * layer, 8 rows 0.70, 4 rows 0.76 (Zen 5, AVX-512, 2026-11-30). */
    CONV_AHEAD = 16,
};

/* The channels of n vectors in all rows, one row after the other. Taps and past inputs stay in
 * registers, which is why their number has to be a constant. */
MX_INLINE void conv_channels(float *x, size_t ldx, uint32_t n_rows, const float *taps, float *past,
                             size_t ld, const int n)
{
    v16f w[CONV_TAPS][VEC_GDN_SLABS];
    v16f in[CONV_TAPS][VEC_GDN_SLABS]; /* the oldest first */
    MX_UNROLL for (int t = 0; t < CONV_TAPS; t++) {
        MX_UNROLL for (int j = 0; j < n; j++) {
            const size_t at = (size_t)t * ld + (size_t)j * GDN_LANES;
            w[t][j] = vf_load(taps + at);
            in[t][j] = t + 1 < CONV_TAPS ? vf_load(past + at) : vf_zero();
        }
    }
    for (uint32_t r = 0; r < n_rows; r++, x += ldx) {
        if (n_rows - r > CONV_AHEAD) {
            MX_UNROLL for (int j = 0; j < n; j++) {
                MX_PREFETCH(x + CONV_AHEAD * ldx + j * GDN_LANES);
            }
        }
        MX_UNROLL for (int j = 0; j < n; j++) {
            in[CONV_TAPS - 1][j] = vf_load(x + j * GDN_LANES);
            v16f sum = vf_zero();
            MX_UNROLL for (int t = 0; t < CONV_TAPS; t++) {
                sum = vf_fma(w[t][j], in[t][j], sum);
            }
            MX_UNROLL for (int t = 0; t + 1 < CONV_TAPS; t++) {
                in[t][j] = in[t + 1][j];
            }
            vf_store(x + j * GDN_LANES, vf_div(sum, one_plus_exp_neg(sum)));
        }
    }
    MX_UNROLL for (int t = 0; t + 1 < CONV_TAPS; t++) {
        MX_UNROLL for (int j = 0; j < n; j++) {
            vf_store(past + (size_t)t * ld + (size_t)j * GDN_LANES, in[t][j]);
        }
    }
}

static void gdn_conv(float *x, size_t ldx, uint32_t n_rows, uint32_t n, const float *taps,
                     float *past, uint32_t n_taps, size_t ld)
{
    assert(n % GDN_LANES == 0 && n_taps > 0);
    if (n_taps == CONV_TAPS && n_rows >= CONV_TAPS) { /* fewer are not worth filling the registers */
        enum { TOGETHER = VEC_GDN_SLABS * GDN_LANES };
        uint32_t c = 0;
        for (; n - c >= TOGETHER; c += TOGETHER) {
            conv_channels(x + c, ldx, n_rows, taps + c, past + c, ld, VEC_GDN_SLABS);
        }
        for (; c < n; c += GDN_LANES) {
            conv_channels(x + c, ldx, n_rows, taps + c, past + c, ld, 1);
        }
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++, x += ldx) {
        for (uint32_t c = 0; c < n; c += GDN_LANES) {
            const v16f now = vf_load(x + c);
            v16f sum = vf_zero();
            for (uint32_t t = 0; t + 1 < n_taps; t++) {
                float *at = past + t * ld + c;
                sum = vf_fma(vf_load(taps + t * ld + c), vf_load(at), sum);
                vf_store(at, t + 2 < n_taps ? vf_load(at + ld) : now);
            }
            sum = vf_fma(vf_load(taps + (n_taps - 1) * ld + c), now, sum);
            vf_store(x + c, vf_div(sum, one_plus_exp_neg(sum)));
        }
    }
}

/* Asks for what the next token brings, while this one is computed: its rows lie 30 KiB behind this
 * one's. Waiting for them was a quarter of a token's time and more, with AVX-512. */
MX_INLINE void prefetch_token(const mx_gdn_args *a, uint32_t row, uint32_t slab, const int n)
{
    const size_t at = row * a->ld;
    for (uint32_t i = 0; i < a->d; i += GDN_LANES) {
        MX_PREFETCH(a->q + at + i);
        MX_PREFETCH(a->k + at + i);
    }
    for (int j = 0; j < n; j++) {
        MX_PREFETCH(a->v + at + (slab + (uint32_t)j) * GDN_LANES);
    }
    MX_PREFETCH(a->decay + row * a->ld_gates);
    MX_PREFETCH(a->beta + row * a->ld_gates);
}

/* One token on n slabs. `from` is the state before it, `to` takes the one behind it; they may be
 * the same. A token that comes alone streams: before its state is read again, all weights pass through
 * the caches, and fetching the lines that are to be overwritten was a third of the traffic. */
MX_INLINE void gdn_token(const mx_gdn_args *a, uint32_t row, uint32_t slab, const int n,
                         const bool streams)
{
    enum { MOST = VEC_GDN_SLABS };
    const uint32_t d = a->d;
    const size_t apart = (size_t)d * GDN_LANES;
    const float *from = (row == 0 ? a->from : a->to) + slab * apart;
    float *to = a->to + slab * apart;
    const float *q = a->q + row * a->ld;
    const float *k = a->k + row * a->ld;
    const float *v = a->v + row * a->ld + slab * GDN_LANES;
    const v16f decay = vf_set1(a->decay[row * a->ld_gates]);
    const v16f minus = vf_set1(-a->decay[row * a->ld_gates]);
    const v16f beta = vf_set1(a->beta[row * a->ld_gates]);
    if (row + 1 < a->n_rows) {
        prefetch_token(a, row + 1, slab, n);
    }
    v16f even[MOST];
    v16f odd[MOST];
    MX_UNROLL for (int j = 0; j < n; j++) {
        even[j] = vf_zero();
        odd[j] = vf_zero();
    }
    for (uint32_t i = 0; i < d; i += 2) {
        const v16f k0 = vf_set1(k[i]);
        const v16f k1 = vf_set1(k[i + 1]);
        const float *s = from + i * GDN_LANES;
        MX_UNROLL for (int j = 0; j < n; j++) {
            even[j] = vf_fma(vf_load(s + (size_t)j * apart), k0, even[j]);
        }
        MX_UNROLL for (int j = 0; j < n; j++) {
            odd[j] = vf_fma(vf_load(s + (size_t)j * apart + GDN_LANES), k1, odd[j]);
        }
    }
    v16f delta[MOST];
    v16f o[MOST];
    MX_UNROLL for (int j = 0; j < n; j++) {
        const v16f r = vf_add(even[j], odd[j]);
        delta[j] = vf_mul(beta, vf_fma(minus, r, vf_load(v + j * GDN_LANES)));
        o[j] = vf_zero();
    }
    for (uint32_t i = 0; i < d; i++) {
        const v16f ki = vf_set1(k[i]);
        const v16f qi = vf_set1(q[i]);
        v16f s[MOST];
        /* All loads before the stores: the slabs are a multiple of 4 KiB apart, and a load that
         * looks like a store before it in the low address bits waits for it. */
        MX_UNROLL for (int j = 0; j < n; j++) {
            s[j] = vf_load(from + (size_t)j * apart + i * GDN_LANES);
        }
        MX_UNROLL for (int j = 0; j < n; j++) {
            s[j] = vf_fma(ki, delta[j], vf_mul(s[j], decay));
        }
        MX_UNROLL for (int j = 0; j < n; j++) {
            if (streams) {
                vf_stream(to + (size_t)j * apart + i * GDN_LANES, s[j]);
            } else {
                vf_store(to + (size_t)j * apart + i * GDN_LANES, s[j]);
            }
        }
        MX_UNROLL for (int j = 0; j < n; j++) {
            o[j] = vf_fma(s[j], qi, o[j]);
        }
    }
    float *out = a->out + row * a->ldo + slab * GDN_LANES;
    MX_UNROLL for (int j = 0; j < n; j++) {
        vf_store(out + j * GDN_LANES, o[j]);
    }
}

_Static_assert(MX_SELFTEST_GDN / GDN_LANES > VEC_GDN_SLABS &&
                   (VEC_GDN_SLABS == 1 || MX_SELFTEST_GDN / GDN_LANES % VEC_GDN_SLABS != 0),
               "the self-test has slabs together and one by itself");

MX_INLINE void gdn_rows(const mx_gdn_args *a, const bool streams)
{
    const uint32_t n_slabs = a->n_cols / GDN_LANES;
    uint32_t slab = 0;
    for (; slab + VEC_GDN_SLABS <= n_slabs; slab += VEC_GDN_SLABS) {
        for (uint32_t r = 0; r < a->n_rows; r++) {
            gdn_token(a, r, slab, VEC_GDN_SLABS, streams);
        }
    }
    for (; slab < n_slabs; slab++) {
        for (uint32_t r = 0; r < a->n_rows; r++) {
            gdn_token(a, r, slab, 1, streams);
        }
    }
}

static void gdn_step(const mx_gdn_args *a)
{
    assert(a->d % GDN_LANES == 0 && a->n_cols % GDN_LANES == 0 && a->n_rows > 0);
    if (a->n_rows == 1 && (uintptr_t)a->to % 64 == 0) {
        gdn_rows(a, true);
        vec_stream_end();
    } else {
        gdn_rows(a, false);
    }
}

#endif
