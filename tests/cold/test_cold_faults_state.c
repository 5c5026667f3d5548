/* SPDX-License-Identifier: MIT
 *
 * The faults of test_cold_faults.c once more, with conversations that have a recurrent state.
 */
#define HELP_STATE_BYTES 9001
#include "test_cold_faults.c"
