/* SPDX-License-Identifier: MIT
 *
 * The faults of test_cold_faults.c once more, with pages that are compressed.
 */
#define HELP_COMPRESS MX_COLD_COMPRESS_ZSTD
#include "test_cold_faults.c"
