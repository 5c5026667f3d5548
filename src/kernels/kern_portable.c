/* SPDX-License-Identifier: MIT
 *
 * The portable level: the reference that all others equal.
 */
#include "kernels/kern_vec_portable.h"

#include "kernels/kern_impl.h"

const mx_kern mx_kern_portable = MX_KERN_TABLE(MX_CPU_PORTABLE, "portable");
