/* SPDX-License-Identifier: MIT
 *
 * cli_sessions.h: the sessions of a cache folder from the command line: `mtplx cache sessions`, `pin`,
 * `unpin`, `fork`, `ttl`. They work on the folder; a running server sees it at its next sweep.
 */
#ifndef MX_CLI_SESSIONS_H
#define MX_CLI_SESSIONS_H

#include "cold/cold_tools.h"

/* All return the exit code; key: NULL, or that of --cache-key-file. A session is named by its name, or
 * by the first 6 or more digits of its id. */
int mx_cli_sessions(const char *dir, const mx_hash256 *key);
int mx_cli_session_fork(const char *dir, const mx_hash256 *key, const char *session,
                        const char *new_name);
int mx_cli_session_ttl(const char *dir, const mx_hash256 *key, const char *session, uint64_t ttl_s);
/* False: there is no such session; nothing was said. Else *code is the exit code. */
bool mx_cli_session_pin(const char *dir, const mx_hash256 *key, const char *session, bool on,
                        int *code);
/* The same of an entry. */
int mx_cli_entry_pin(const char *dir, const mx_hash256 *key, const mx_cold_entry *e, bool on);

#endif
