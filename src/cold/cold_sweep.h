/* SPDX-License-Identifier: MIT
 *
 * cold_sweep.h: one sweep: what it has seen of the folder, what it marks, what it deletes.
 *
 * A file for each step: cold_walk.c sees what is there, cold_keep.c what of it must stay; cold_marks.c, cold_thin.c and cold_expire.c
 * mark what is to go; cold_delete.c deletes it; cold_sweep.c runs them in order. Belongs to the
 * background thread, or to a tool that takes some of the steps (cold_tools.c).
 */
#ifndef MX_COLD_SWEEP_H
#define MX_COLD_SWEEP_H

#include "cold/cold_bookmark.h"
#include "cold/cold_object.h"
#include "cold/cold_state.h"
#include "cold/cold_tools.h"

typedef enum mx_swept_kind {
    MX_SWEPT_PAGE,
    MX_SWEPT_STATE,
    MX_SWEPT_SESSION,
    MX_SWEPT_BOOKMARK,
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
    int64_t mtime_ns; /* of a manifest: not older than the page that it is named after */
    uint64_t bytes;
    mx_hash256 id;    /* pages, states and sessions */
    uint8_t kind;
    uint16_t root;    /* index into roots */
    bool is_gone;
    bool is_named;    /* a bookmark points here: not superfluous */
    bool is_pinned;   /* needed by one that is pinned: neither too old nor too much */
    char *name;       /* the others; owned */
    char folder[16];  /* "pages/xx", "states/xx", "sessions", ... */
} mx_swept_file;

/* What the head of a state says. */
typedef struct mx_swept_state {
    mx_hash256 parent;     /* of the page that it stands in */
    uint64_t first, at;    /* where that page begins, and where the state stands */
    uint64_t reach;        /* the last position that has to come back to it */
    size_t file;
} mx_swept_state;

/* mx_sweep_load_bookmarks */
typedef struct mx_swept_bookmark {
    mx_bookmark b;
    size_t file;
    bool is_dead;          /* its entry is not there */
} mx_swept_bookmark;

typedef struct mx_sweep {
    mx_cold *c;            /* NULL: a tool's, outside of a server */
    mx_cold_folder *f;     /* a tool's has only top_fd and v1_fd */
    int64_t delete_age_s, orphan_age_s, ttl_s; /* as in mx_cold_tuning and mx_cold_config */
    const mx_hash256 *key; /* that files are authenticated with; NULL = none, */
    bool needs_tag;        /* and they have to be */
    const char *only_root; /* the others are not looked at; NULL = all */
    char (*roots)[65];     /* [n_roots] */
    size_t n_roots, roots_cap;
    size_t own_root;       /* index of ours, MX_SWEEP_NO_ROOT = not among them */
    mx_swept_file *files;  /* [n_files], the oldest first once all are known */
    size_t n_files, files_cap;
    mx_swept_state *states; /* [n_states] of our root, by parent and position: mx_sweep_load_states */
    size_t n_states;
    mx_swept_bookmark *bookmarks; /* [n_bookmarks] of all roots */
    size_t n_bookmarks, bookmarks_cap;
    uint64_t total_files, total_bytes, n_foreign;
    uint64_t deleted_files, deleted_bytes;
    uint64_t failed_files; /* that were to be deleted, and could not be */
    int failed_errno;      /* why not, of the last of them */
    mx_swept_cause cause;  /* of what is deleted now */
    int64_t now_s;
    mx_err err;            /* a walk that could not see everything deletes nothing; */
    mx_errbuf why;         /* its text, or an empty one */
} mx_sweep;

enum { MX_SWEEP_NO_ROOT = 0xFFFF };

/* Fills in roots and files, the oldest first; s->err tells when something could not be seen. */
void mx_sweep_walk(mx_sweep *s);
/* Reads the heads of the states of our root. Without memory, or where one cannot be read, there are
 * fewer: those stay. */
void mx_sweep_load_states(mx_sweep *s);
/* Reads the bookmarks and notes which files they keep; s->err as for the walk. */
void mx_sweep_load_bookmarks(mx_sweep *s);
void mx_sweep_free(mx_sweep *s); /* what the walk has allocated */

/* Has a name that is an identity. */
MX_INLINE bool mx_swept_is_stored(const mx_swept_file *e)
{
    return e->kind == MX_SWEPT_PAGE || e->kind == MX_SWEPT_STATE || e->kind == MX_SWEPT_SESSION;
}

/* 2020-01-01: a file of ours that looks older was stamped by a clock that was wrong. */
#define MX_SWEPT_PLAUSIBLE_S ((int64_t)1577836800)

MX_INLINE int64_t mx_sweep_age_s(const mx_sweep *s, int64_t mtime_s)
{
    return mtime_s > s->now_s ? 0 : s->now_s - mtime_s;
}

MX_INLINE int64_t mx_swept_age_s(const mx_sweep *s, const mx_swept_file *e)
{
    return mx_sweep_age_s(s, e->mtime_ns / 1000000000);
}

/* May it go, if there is a reason to? */
MX_INLINE bool mx_swept_is_old_enough(const mx_sweep *s, const mx_swept_file *e)
{
    return !e->is_pinned && mx_swept_age_s(s, e) >= s->delete_age_s;
}

MX_INLINE bool mx_sweep_is_stopping(const mx_sweep *s)
{
    return s->c != NULL && atomic_load(&s->c->is_stopping);
}

void mx_swept_name(const mx_swept_file *e, char name[300]);

/* ---- marking: marked is [n_files] ------------------------------------------------------------ */

/* Old temporary files, what is in trash/, too much in quarantine/. */
void mx_sweep_mark_leftovers(const mx_sweep *s, bool *marked);
/* Bookmarks of entries that are gone. */
void mx_sweep_mark_dead_bookmarks(const mx_sweep *s, bool *marked);
/* Under our root: partial pages whose tokens a full one has, with their manifests; */
void mx_sweep_mark_superseded(mx_sweep *s, bool *marked);
/* manifests that tell nothing that another does not, or that cannot be used. */
void mx_sweep_mark_dead_manifests(mx_sweep *s, bool *marked);
/* States that can never be reached; of those that were loaded. */
void mx_sweep_mark_orphans(mx_sweep *s, bool *marked);
/* What nobody has used for --ssd-session-cache-ttl, of all models. */
void mx_sweep_mark_expired(const mx_sweep *s, bool *marked);
/* Down to so many bytes: what is damaged first, then states close to another (of our root), then the
 * oldest. */
void mx_sweep_mark_over_budget(mx_sweep *s, bool *marked, uint64_t most);
/* States close to another, until at most `low` of *left bytes are left. */
void mx_sweep_mark_close_states(mx_sweep *s, bool *marked, uint64_t low, uint64_t *left);

/* ---- times: the caller holds gc.lock, open as `lock` ------------------------------------------ */

/* Files with a time in the future are as young as can be. When they have been for a week (which is noted
 * in gc.lock), it is their times that are wrong, not the clock: they are used now. */
void mx_sweep_settle_times(mx_sweep *s, int lock);

/* Before the walk, by the holder of gc.lock: sessions that have not been used for their own time to
 * live, and are not pinned, go with their entries, of all models. One that is younger than min_age_s
 * stays. fn (or NULL) is told of each entry that went; false = it is enough for now. */
typedef bool mx_sweep_expired_fn(void *arg, const char *folder, const mx_hash256 *entry);
mx_err mx_sweep_expire_sessions(int v1_fd, const mx_cold_trust *trust, int64_t now_s,
                                int64_t min_age_s, mx_sweep_expired_fn *fn, void *arg,
                                mx_cold_counts *out);

/* ---- deleting: the caller holds gc.lock ------------------------------------------------------ */

/* A folder below that of a root: "pages/ab". -1 = it cannot be opened. */
int mx_sweep_open_folder(const mx_sweep *s, int root_fd, const char *folder);
int mx_sweep_open_root(const mx_sweep *s, uint16_t root);

/* Deletes the files that are marked, after saying so, and takes the marks away. */
void mx_sweep_delete(mx_sweep *s, bool *marked, const char *why);
/* Old temporary files beside the folders that are walked: of the marker, model.json, written.txt, the key. */
void mx_sweep_delete_strays(mx_sweep *s);
/* Removes folders of other models in which nothing is left. */
void mx_sweep_remove_empty_roots(const mx_sweep *s);

#endif
