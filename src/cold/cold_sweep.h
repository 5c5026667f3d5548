/* SPDX-License-Identifier: MIT
 *
 * cold_sweep.h: what one sweep has seen of the folder. For cold_sweep.c and cold_expire.c; belongs to
 * the background thread.
 */
#ifndef MX_COLD_SWEEP_H
#define MX_COLD_SWEEP_H

#include "cold/cold_state.h"

typedef enum mx_swept_kind {
    MX_SWEPT_PAGE,
    MX_SWEPT_STATE,
    MX_SWEPT_SESSION,
    MX_SWEPT_TEMP,
    MX_SWEPT_TRASH,
    MX_SWEPT_QUARANTINE
} mx_swept_kind;

typedef enum mx_swept_cause {
    MX_SWEPT_SUPERFLUOUS,
    MX_SWEPT_EXPIRED,
    MX_SWEPT_OVER_LIMIT
} mx_swept_cause;

typedef struct mx_swept_file {
    int64_t mtime_ns;
    uint64_t bytes;
    mx_hash256 id;    /* pages, states and sessions */
    uint8_t kind;
    uint16_t root;    /* index into roots */
    bool is_gone;
    char *name;       /* the others; owned */
    char folder[16];  /* "pages/xx", "states/xx", "sessions", ... */
} mx_swept_file;

typedef struct mx_sweep {
    mx_cold *c;
    mx_cold_folder *f;
    char (*roots)[65];     /* [n_roots] */
    size_t n_roots, roots_cap;
    size_t own_root;       /* index of ours, NO_ROOT = not among them */
    mx_swept_file *files;  /* [n_files], the oldest first once all are known */
    size_t n_files, files_cap;
    uint64_t total_files, total_bytes, n_foreign;
    mx_swept_cause cause;  /* of what is deleted now */
    int64_t now_s;
    mx_err err;            /* a walk that could not see everything deletes nothing */
} mx_sweep;

/* Marks what nobody has used for --ssd-session-cache-ttl, of all models. */
void mx_sweep_mark_expired(const mx_sweep *s, bool *marked);
/* Removes folders of other models in which nothing is left. The caller holds gc.lock. */
void mx_sweep_remove_empty_roots(const mx_sweep *s);

#endif
