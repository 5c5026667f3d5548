/* SPDX-License-Identifier: MIT
 *
 * All of test_cold_doubt.c once more, with pages that are compressed and authenticated, in a folder
 * that others can write.
 */
#define HELP_COMPRESS MX_COLD_COMPRESS_ZSTD
#define HELP_AUTH 1
#include "test_cold_doubt.c"
