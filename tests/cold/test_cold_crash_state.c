/* SPDX-License-Identifier: MIT
 *
 * The kills of test_cold_crash.c once more, with conversations that have a recurrent state: what was
 * reported durable includes its states, and each that is found is right.
 */
#define HELP_STATE_BYTES 9001
#include "test_cold_crash.c"
