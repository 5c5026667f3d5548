/* SPDX-License-Identifier: MIT
 *
 * cli_keys.h: the secrets that a server is started with: API keys, admin key, cache key.
 */
#ifndef MX_CLI_KEYS_H
#define MX_CLI_KEYS_H

#include "cli/cli_options.h"

/* Refuses sets of keys that would not do what they are for: MX_E_INVALID. */
mx_err mx_cli_check_keys(const mx_settings *s, mx_errbuf *eb);
/* Adds the keys of --api-key-file to s->api_keys, and checks them all. */
mx_err mx_cli_read_api_keys(mx_settings *s, mx_errbuf *eb);

/* The secret that isolation salts are made with, when there are keys that do not share prefixes.
 * Without a folder to keep it in (the cold tier is off, or the folder cannot be used) it is a new
 * one for this process: nothing on disk needs it then. */
mx_err mx_cli_cache_key(const mx_settings *s, const char *cache_dir, mx_hash256 *out,
                        mx_errbuf *eb);

/* What --cache-key-file authenticates the files of the session cache with. */
typedef struct mx_cli_auth {
    bool is_on; /* there is such a file */
    mx_hash256 object_key, root_key;
} mx_cli_auth;

/* file: NULL = off. */
mx_err mx_cli_read_auth(const char *file, mx_cli_auth *out, mx_errbuf *eb);

#endif
