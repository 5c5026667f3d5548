/* SPDX-License-Identifier: MIT
 *
 * cli_start.h: `mtplx start`: puts the server together, runs it, takes it apart.
 */
#ifndef MX_CLI_START_H
#define MX_CLI_START_H

#include "base/err.h"

/* argv: what follows the command. Returns the exit code. */
int mx_cli_start(int argc, char **argv);

/* Where the model is: `given`, or else the default model. MX_E_NOT_FOUND: not there. */
mx_err mx_cli_find_model(const char *given, char *out, unsigned long cap, mx_errbuf *eb);

/* The folder below `home` that keeps fingerprints of model files, its parent made. */
void mx_cli_fingerprint_dir(char *out, unsigned long cap, const char *home);

/* The default cache folder below `home`, into out. */
void mx_default_cache_dir(char *out, unsigned long cap, const char *home);

#endif
