/* SPDX-License-Identifier: MIT
 *
 * Only additions, multiplications, divisions and integer operations in double precision, in the
 * order written: these have one right result under IEEE 754, so a seed gives the same text on every
 * machine and with every C library. The functions of libm do not promise that.
 */
#include "model/sampler_math.h"

/* ln 2 in two parts; the first ends in 21 zero bits, so k * LN2_HI is exact for |k| < 2^11. */
#define LN2_HI 0x1.62e42feep-1
#define LN2_LO 0x1.a39ef35793c76p-33
#define LOG2_E 0x1.71547652b82fep+0
#define SQRT_2 0x1.6a09e667f3bcdp+0

static double double_of_bits(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

double mx_sampler_exp(double x)
{
    /* Written so that a NaN gives 0, too: a weight of 0 is never chosen. */
    if (!(x >= -700.0)) {
        return 0.0;
    }
    if (x > 700.0) {
        x = 700.0;
    }
    /* x = k ln 2 + r with |r| <= 0.3466, where 13 terms of the series leave less than 5e-18. */
    int k = (int)(x * LOG2_E + (x < 0 ? -0.5 : 0.5));
    double r = (x - k * LN2_HI) - k * LN2_LO;
    static const double inverse_factorial[] = {
        1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
        1.0 / 40320.0,      1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,
        1.0 / 6.0,          1.0 / 2.0,         1.0,              1.0,
    };
    double sum = inverse_factorial[0];
    for (size_t i = 1; i < MX_COUNT(inverse_factorial); i++) {
        sum = sum * r + inverse_factorial[i];
    }
    return sum * double_of_bits((uint64_t)(k + 1023) << 52);
}

double mx_sampler_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int k = (int)(bits >> 52 & 0x7ff) - 1023;
    double m = double_of_bits((bits & 0xfffffffffffffu) | (uint64_t)1023 << 52);
    if (m > SQRT_2) {
        m *= 0.5;
        k++;
    }
    /* log m = 2 atanh(s); s^2 <= 0.0295, so that 12 terms leave less than 1e-19. */
    double s = (m - 1.0) / (m + 1.0);
    double z = s * s;
    double sum = 1.0 / 23.0;
    for (int i = 21; i >= 1; i -= 2) {
        sum = sum * z + 1.0 / i;
    }
    return k * LN2_HI + (2.0 * s * sum + k * LN2_LO);
}

/* A bijection of 64-bit integers in which every input bit reaches every output bit. */
static uint64_t scramble(uint64_t z)
{
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    z = (z ^ z >> 29) * 0xa0761d6478bd642fu;
    z = (z ^ z >> 32) * 0xe7037ed1a0b428dbu;
    return z ^ z >> 31;
}

double mx_sampler_uniform(uint64_t seed, uint64_t pos)
{
    uint64_t key = scramble(seed + 0x9e3779b97f4a7c15u);
    uint64_t z = scramble(key ^ scramble(pos + 0x2545f4914f6cdd1du));
    return (double)(z >> 11) * 0x1p-53;
}
