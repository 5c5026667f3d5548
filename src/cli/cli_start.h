/* SPDX-License-Identifier: MIT
 *
 * cli_start.h: `mtplx start`: puts the server together, runs it, takes it apart.
 */
#ifndef MX_CLI_START_H
#define MX_CLI_START_H

/* argv: what follows the command. Returns the exit code. */
int mx_cli_start(int argc, char **argv);

/* The default cache folder below `home`, into out. */
void mx_default_cache_dir(char *out, unsigned long cap, const char *home);

#endif
