/* SPDX-License-Identifier: MIT
 *
 * The power cuts of test_cold_power.c once more, with conversations that have a recurrent state.
 */
#define HELP_STATE_BYTES 9001
#include "test_cold_power.c"
