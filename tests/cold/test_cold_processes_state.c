/* SPDX-License-Identifier: MIT
 *
 * The processes of test_cold_processes.c once more, with conversations that have a recurrent state: what
 * is restored ends at one, and a state that goes is a longer way back, nothing else.
 */
#define HELP_STATE_BYTES 9001
#include "test_cold_processes.c"
