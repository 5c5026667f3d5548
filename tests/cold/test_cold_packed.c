/* SPDX-License-Identifier: MIT
 *
 * What test_cold.c does once more, with pages that are compressed.
 */
#define HELP_COMPRESS MX_COLD_COMPRESS_ZSTD
#include "test_cold.c"
