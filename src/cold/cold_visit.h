/* SPDX-License-Identifier: MIT
 *
 * cold_visit.h: a cache folder entered from outside a server: what the tools (cold_tools.h) are made
 * of. Not for other modules.
 */
#ifndef MX_COLD_VISIT_H
#define MX_COLD_VISIT_H

#include "cold/cold_manifest.h"
#include "cold/cold_object.h"
#include "cold/cold_tools.h"

/* An open model folder. */
typedef struct mx_visit_model {
    char name[65];
    int fd;
    mx_cold_trust trust;
} mx_visit_model;

typedef struct mx_visit {
    int top, v1, lock; /* -1 = closed */
    mx_cold_trust trust;
} mx_visit;

/* MX_E_NOT_FOUND: nothing is there. MX_E_INVALID: only other files. With `lock` other removers are
 * kept out; MX_E_BUSY: one of them has the lock. To be closed in every case. */
mx_err mx_visit_open(mx_visit *o, const char *dir, const mx_hash256 *key, bool lock,
                     uint32_t wait_ms, mx_errbuf *eb);
void mx_visit_close(mx_visit *o);
/* Closes; `err` is what came of it, with a text for what failed below the folder. That nothing is there
 * is no error. */
mx_err mx_visit_done(mx_visit *o, mx_err err, const char *dir, mx_errbuf *eb);
/* The same for what removes: files that are left are an error. */
mx_err mx_visit_done_removing(mx_visit *o, mx_err err, const mx_cold_counts *n, const char *dir,
                              mx_errbuf *eb);

/* Is an open folder a cache? MX_E_NOT_FOUND: nothing is in it yet. MX_E_INVALID: it lacks the marker; said
 * after a second when only that is missing, since a server that begins anew writes it next. */
mx_err mx_visit_check_marker(const mx_cold_fileops *ops, int top, const char *dir, mx_errbuf *eb);

/* Calls fn for each model's folder, or the one named `only`, */
typedef mx_err mx_visit_model_fn(void *arg, const mx_visit_model *m);
mx_err mx_visit_models(const mx_visit *o, const char *only, mx_visit_model_fn *fn, void *arg);
/* and for each name in a folder in one that is open, until it fails. */
typedef mx_err mx_visit_name_fn(void *arg, int dir, const char *name);
mx_err mx_visit_names(const mx_cold_trust *t, int parent, const char *folder, mx_visit_name_fn *fn,
                      void *arg);
/* Each sound bookmark of that model, until fn says false. MX_E_IO, MX_E_NOMEM: one cannot be read; the others
 * were shown all the same. */
mx_err mx_visit_bookmarks(const mx_visit_model *m, mx_cold_bookmark_fn *fn, void *arg);

/* Is the name an identity with that suffix? */
bool mx_visit_is_named(const char *name, const char *suffix, mx_hash256 *id);
/* "pages" or "states"; and the file's path below a model's folder. */
const char *mx_visit_folder_of(mx_cold_object o);
void mx_visit_object_path(mx_cold_object o, const mx_hash256 *id, char path[MX_COLD_NAME_CAP + 16]);
/* mx_cold_read_manifest. */
mx_err mx_visit_manifest(const mx_cold_trust *t, int dir, const char *name, const mx_hash256 *id,
                         mx_disk_manifest *m, uint8_t **copy, mx_errbuf *eb);

/* For qsort, and a look into what it has sorted. */
int mx_visit_compare(const void *a, const void *b);
bool mx_visit_is_among(const mx_hash256 *sorted, size_t n, const mx_hash256 *id);

#endif
