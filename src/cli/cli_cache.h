/* SPDX-License-Identifier: MIT
 *
 * cli_cache.h: `mtplx cache`: the folder of the session cache from the command line, and what a
 * running server would do with a request.
 */
#ifndef MX_CLI_CACHE_H
#define MX_CLI_CACHE_H

#include "base/buf.h"

/* argv: what follows the command. Returns the exit code. */
int mx_cli_cache(int argc, char **argv);
/* The actions and options, for `mtplx help cache`. */
void mx_cli_cache_help(mx_buf *out);

#endif
