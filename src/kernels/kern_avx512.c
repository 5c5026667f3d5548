/* SPDX-License-Identifier: MIT
 *
 * The AVX-512 level (F, BW, DQ, VL, VNNI). Compiled with those instructions: nothing here may run
 * before the CPU was asked.
 */
#include "kernels/kern_internal.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) &&                      \
    defined(__AVX512VL__) && defined(__AVX512VNNI__)

#include "kernels/kern_vec_avx512.h"

#include "kernels/kern_impl.h"

const mx_kern mx_kern_avx512 = MX_KERN_TABLE(MX_CPU_AVX512, "avx512");

#endif
