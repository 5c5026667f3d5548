/* SPDX-License-Identifier: MIT
 *
 * cli_export.h: `mtplx cache export` and `mtplx cache import`: a conversation from one machine's
 * folder to another's, in a file.
 */
#ifndef MX_CLI_EXPORT_H
#define MX_CLI_EXPORT_H

#include "cli/cli_keys.h"
#include "cold/cold_tools.h"

typedef struct mx_cli_transfer {
    const char *dir;           /* the cache folder */
    const mx_cli_auth *auth;
    const char *key_file;      /* --cache-key-file, or NULL */
    const char *api_key;       /* whose conversation it becomes; NULL = nobody's */
    const char *model;         /* NULL = the default model */
    uint64_t kv_type, act_type, threads;
    uint64_t max_size;         /* of the folder; 0 = no limit */
    uint64_t write_budget;     /* bytes a day; 0 = no limit */
    bool recompute;
} mx_cli_transfer;

/* Both return the exit code. */
int mx_cli_export(const mx_cli_transfer *t, const mx_cold_entry *e, const char *file);
int mx_cli_import(const mx_cli_transfer *t, const char *file);

#endif
