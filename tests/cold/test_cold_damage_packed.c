/* SPDX-License-Identifier: MIT
 *
 * The damaged files of test_cold_damage.c once more, with pages that are compressed and authenticated, in a folder
 * that others can write.
 */
#define HELP_COMPRESS MX_COLD_COMPRESS_ZSTD
#define HELP_AUTH 1
#include "test_cold_damage.c"
