/* SPDX-License-Identifier: MIT
 *
 * cli_explain.h: `mtplx cache explain FILE.json`: asks a running server what it would reuse of a
 * request, and says it in words.
 */
#ifndef MX_CLI_EXPLAIN_H
#define MX_CLI_EXPLAIN_H

/* file: "-" = standard input. Keys may be NULL. Returns the exit code. */
int mx_cli_explain(const char *file, const char *url, const char *admin_key, const char *api_key);

#endif
