/* SPDX-License-Identifier: MIT
 *
 * The kills of test_cold_crash.c once more, with pages that are compressed.
 */
#define HELP_COMPRESS MX_COLD_COMPRESS_ZSTD
#include "test_cold_crash.c"
