/* SPDX-License-Identifier: MIT
 *
 * The damaged files of test_cold_damage.c once more, with pages that are compressed.
 */
#define HELP_COMPRESS MX_COLD_COMPRESS_ZSTD
#include "test_cold_damage.c"
