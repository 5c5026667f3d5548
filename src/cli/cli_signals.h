/* SPDX-License-Identifier: MIT
 *
 * cli_signals.h: SIGINT and SIGTERM as messages: the first asks for a clean end, the second ends
 * the process at once with 128 + signal.
 *
 * A thread of its own waits for them, so nothing runs in a signal handler. Create it before any
 * other thread: the signals are blocked in the creating thread and all that come after.
 */
#ifndef MX_CLI_SIGNALS_H
#define MX_CLI_SIGNALS_H

#include "base/err.h"

typedef struct mx_signals mx_signals;

mx_err mx_signals_create(mx_signals **out, mx_errbuf *eb);
/* While there is nothing to clean up (the model is loading) the first signal ends the process,
 * too. */
void mx_signals_set_clean_end(mx_signals *s, bool on);
/* Blocks until the first signal; returns its number. */
int mx_signals_wait(mx_signals *s);
void mx_signals_destroy(mx_signals *s);

#endif
