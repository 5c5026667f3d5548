/* SPDX-License-Identifier: MIT
 *
 * All of test_cold_doubt.c once more, with conversations that have a recurrent state.
 */
#define HELP_STATE_BYTES 9001
#include "test_cold_doubt.c"
