/* SPDX-License-Identifier: MIT
 *
 * The NEON level: compiled for the baseline of aarch64, which has Advanced SIMD with FMA.
 */
#include "kernels/kern_internal.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include "kernels/kern_vec_neon.h"

#include "kernels/kern_impl.h"

const mx_kern mx_kern_neon = MX_KERN_TABLE(MX_CPU_NEON, "neon");

#endif
