/* SPDX-License-Identifier: MIT
 *
 * The AVX2 level with AVX-VNNI, which CPUs without AVX-512 have (Intel since Alder Lake). Compiled
 * with those instructions: nothing here may run before the CPU was asked.
 */
#include "kernels/kern_internal.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__AVXVNNI__)

#include "kernels/kern_vec_avx2.h"

#include "kernels/kern_impl.h"

const mx_kern mx_kern_avxvnni = MX_KERN_TABLE(MX_CPU_AVXVNNI, "avxvnni");

#endif
