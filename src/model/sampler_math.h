/* SPDX-License-Identifier: MIT
 *
 * sampler_math.h: the few functions that the sampler needs and whose bits must be the same on every
 * machine: exp, log, and random number i of a seed. docs/sampling.md defines them.
 *
 * Pure functions; any thread.
 */
#ifndef MX_SAMPLER_MATH_H
#define MX_SAMPLER_MATH_H

#include "base/base.h"

/* e^x, relative error below 1e-15 for -700 <= x <= 700; 0 below, the value at 700 above. */
double mx_sampler_exp(double x);

/* Natural logarithm of a positive normal number, absolute error below 1e-15 * (1 + |result|). */
double mx_sampler_log(double x);

/* Draw number `pos` of `seed`: uniform in [0, 1), a multiple of 2^-53. */
double mx_sampler_uniform(uint64_t seed, uint64_t pos);

#endif
