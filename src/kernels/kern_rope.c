/* SPDX-License-Identifier: MIT
 *
 * The table of RoPE sines and cosines. Positions reach 10^6 radians, so angles are kept in double
 * and every function is our own: the C library's sine may change its last bit with an update,
 * which would silently split a cache (docs/numerics.md, section 8).
 */
#include "kernels/kern_layout.h"

#include <assert.h>
#include <math.h>

#define LN2 0x1.62e42fefa39efp-1
#define LN2_LOW 0x1.abc9e3b39803fp-56

static double double_of_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* x > 0, normal. atanh series of (m - 1) / (m + 1), |s| < 0.172: the 12th term is below 2^-64. */
static double log_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    double m = double_of_bits((bits & 0xfffffffffffffULL) | 1023ULL << 52);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        e++;
    }
    const double s = (m - 1.0) / (m + 1.0);
    const double z = s * s;
    double p = 1.0 / 23.0;
    for (int j = 21; j >= 1; j -= 2) {
        p = p * z + 1.0 / (double)j;
    }
    return (double)e * LN2 + (2.0 * s) * p;
}

/* Nearest integer, |x| < 2^51. */
static double round_to_int(double x)
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

static double exp_of(double x)
{
    static const double factorial[] = {
        1,     1,      2,       6,        24,        120,         720,         5040,
        40320, 362880, 3628800, 39916800, 479001600, 6227020800., 87178291200.,
    };
    const double k = round_to_int(x * 0x1.71547652b82fep+0);
    double r = fma(-k, LN2, x);
    r = fma(-k, LN2_LOW, r);
    double p = 1.0 / factorial[14];
    for (int j = 13; j >= 0; j--) {
        p = p * r + 1.0 / factorial[j];
    }
    return p * double_of_bits((uint64_t)((int64_t)k + 1023) << 52);
}

static void sin_cos_of(double t, double *sine, double *cosine)
{
    static const double sin_terms[] = {
        -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
        -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0,
    };
    static const double cos_terms[] = {
        -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0,
        -1.0 / 720.0,         1.0 / 24.0,        -1.0 / 2.0,
    };
    const double k = round_to_int(t * 0x1.45f306dc9c883p-1);
    double r = fma(-k, 0x1.921fb54442d18p+0, t);
    r = fma(-k, 0x1.1a62633145c07p-54, r);
    const double z = r * r;
    double ps = 1.0 / 355687428096000.0;
    double pc = 1.0 / 20922789888000.0;
    for (size_t i = 0; i < MX_COUNT(sin_terms); i++) {
        ps = ps * z + sin_terms[i];
        pc = pc * z + cos_terms[i];
    }
    const double s = r + (r * z) * ps;
    const double c = 1.0 + z * pc;
    const int quadrant = (int)((int64_t)k & 3);
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}

/* floor and ceil; far beyond any dimension the value does not matter, so it is limited. */
static double floor_of(double x)
{
    if (!(x > -1e9)) {
        return -1e9;
    }
    if (x > 1e9) {
        return 1e9;
    }
    const double t = (double)(int64_t)x;
    return t > x ? t - 1.0 : t;
}

static double ceil_of(double x)
{
    return -floor_of(-x);
}

/* The dimension at which a wave turns `turns` times within the original context. */
static double yarn_corr(const mx_rope_params *p, double turns)
{
    return (double)p->n_rot * log_of(p->yarn_orig_ctx / (turns * 0x1.921fb54442d18p+2)) /
           (2.0 * log_of(p->freq_base));
}

static double frequency(const mx_rope_params *p, uint32_t j)
{
    double f = exp_of((-2.0 * (double)j / (double)p->n_rot) * log_of(p->freq_base));
    if (p->factors != NULL) {
        f = f / (double)p->factors[j];
    }
    if (!p->is_yarn) {
        return f / p->scale_factor;
    }
    double lo = floor_of(yarn_corr(p, p->yarn_beta_fast));
    double hi = ceil_of(yarn_corr(p, p->yarn_beta_slow));
    lo = lo > 0.0 ? lo : 0.0;
    hi = hi < (double)(p->n_rot - 1) ? hi : (double)(p->n_rot - 1);
    const double width = hi - lo > 0.001 ? hi - lo : 0.001;
    double u = ((double)j - lo) / width;
    u = u < 0.0 ? 0.0 : u > 1.0 ? 1.0 : u;
    const double ramp = 1.0 - u;
    return (f / p->scale_factor) * (1.0 - ramp) + f * ramp;
}

void mx_rope_rows(const mx_rope_params *p, uint32_t first, uint32_t n_pos, float *cos_sin)
{
    assert(p->n_rot % 2 == 0 && p->freq_base > 0 && p->scale_factor > 0);
    const uint32_t half = p->n_rot / 2;
    double amplitude = 1.0;
    if (p->is_yarn) {
        const double log_f = p->scale_factor > 1.0 ? log_of(p->scale_factor) : 0.0;
        amplitude = p->yarn_attn_factor * (1.0 + 0.1 * log_f);
    }
    for (uint32_t j = 0; j < half; j++) {
        const double f = frequency(p, j);
        float *out = cos_sin + 2 * (size_t)j;
        for (uint32_t i = 0; i < n_pos; i++, out += 2 * (size_t)half) {
            double s;
            double c;
            sin_cos_of((double)(first + i) * f, &s, &c);
            out[0] = (float)(c * amplitude);
            out[1] = (float)(s * amplitude);
        }
    }
}

void mx_rope_table(const mx_rope_params *p, uint32_t n_pos, float *cos_sin)
{
    mx_rope_rows(p, 0, n_pos, cos_sin);
}
