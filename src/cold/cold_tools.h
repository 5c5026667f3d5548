/* SPDX-License-Identifier: MIT
 *
 * cold_tools.h: a cache folder as people look at it: what is in it, is it sound, remove some of it.
 *
 * Works on the folder alone, with or without a server on it: files are only added under new names or
 * removed, and whoever removes holds gc.lock, as the servers do. Blocks for as long as the folder
 * does, and for the lock without limit but where a function says otherwise. Any thread; no state.
 */
#ifndef MX_COLD_TOOLS_H
#define MX_COLD_TOOLS_H

#include "cold/cold.h"
#include "cold/cold_bookmark.h"

/* key: NULL, or that with which the files of the folder are authenticated (`object` of
 * mx_cold_derive_keys): then what has no tag of it counts as damaged, and the folder need not be ours
 * alone. */

/* A conversation's point on disk: one manifest and the pages that it names. */
typedef struct mx_cold_entry {
    char folder[65];       /* hex name of the model's folder */
    mx_hash256 root;       /* with the isolation salt, when there is one: then it is not the folder's */
    mx_hash256 id;         /* identity of the last page: the manifest's name */
    bool is_turn;          /* end of a turn, else of a prompt */
    uint64_t n_tokens;
    uint32_t n_pages, n_missing; /* named, and of those not there */
    uint64_t bytes;        /* of manifest and pages; pages that others share count in full */
    int64_t created_s, used_s;
} mx_cold_entry;

/* False ends the walk. */
typedef bool mx_cold_entry_fn(void *arg, const mx_cold_entry *e);

/* Calls fn for each sound manifest; of one model's folder (64 hex digits), or NULL = all. A folder
 * that is not there is empty. MX_E_INVALID: not a cache folder (no marker). */
mx_err mx_cold_list(const char *dir, const mx_hash256 *key, const char *folder,
                    mx_cold_entry_fn *fn, void *arg, mx_errbuf *eb);

/* Calls fn for each sound bookmark, whether its entry is there or not; folder as above. */
typedef bool mx_cold_bookmark_fn(void *arg, const char *folder, const mx_bookmark *b);
mx_err mx_cold_list_bookmarks(const char *dir, const mx_hash256 *key, const char *folder,
                              mx_cold_bookmark_fn *fn, void *arg, mx_errbuf *eb);
/* mx_bookmark_change in the folder of that model. MX_E_NOT_FOUND: there is no such folder. */
mx_err mx_cold_change_bookmark(const char *dir, const mx_hash256 *key, const char *folder,
                               const mx_hash256 *own, mx_bookmark_fn *fn, void *arg,
                               mx_errbuf *eb);
/* The bookmark alone: its entry stays. MX_E_NOT_FOUND: there is none. */
mx_err mx_cold_remove_bookmark(const char *dir, const mx_hash256 *key, const char *folder,
                               const mx_hash256 *own, mx_errbuf *eb);

/* Pins an entry under its own name. */
mx_err mx_cold_pin_entry(const char *dir, const mx_hash256 *key, const mx_cold_entry *e,
                         mx_errbuf *eb);

typedef struct mx_cold_counts {
    uint64_t n_files, n_bytes;   /* looked at, or removed */
    uint64_t n_bad, n_foreign;   /* damaged; of a version that this one does not know */
    uint64_t n_moved;            /* of n_bad: to quarantine */
    uint64_t n_left;             /* should have been removed, and could not be */
    int left_errno;              /* why not, of the last of them */
} mx_cold_counts;

/* Checks every page and manifest as a reader would (docs/file-format.md, section 7, but for what only
 * a request knows). fn is told of each file that is not sound. With quarantine they are moved there,
 * but for those that are whole under another key: they may be somebody else's.
 * id: only that manifest and its pages. */
typedef void mx_cold_bad_fn(void *arg, const char *path, const char *reason);
mx_err mx_cold_verify(const char *dir, const mx_hash256 *key, const mx_hash256 *id, bool quarantine,
                      mx_cold_bad_fn *fn, void *arg, mx_cold_counts *out, mx_errbuf *eb);

/* Removes leftovers, with ttl_s > 0 what nobody has used for so long, and then the oldest files until
 * at most max_bytes are left: by the rules of a server's sweep, but at any age, and without what only
 * that knows (docs/file-format.md, section 6). When not all of the folder can be seen, nothing goes. */
mx_err mx_cold_gc(const char *dir, const mx_hash256 *key, uint64_t max_bytes, uint64_t ttl_s,
                  mx_cold_counts *out, mx_errbuf *eb);

#define MX_COLD_WAIT_FOREVER UINT32_MAX

/* MX_E_BUSY, with a text: somebody else has held gc.lock for wait_ms, so who removes now waits. Whatever
 * else is wrong is not said here. */
mx_err mx_cold_see_lock(const char *dir, const mx_hash256 *key, uint32_t wait_ms, mx_errbuf *eb);

/* Whatever removes: where a file cannot be removed the others go all the same, and the error says how
 * many are left. *out holds then, too. */

/* Removes the manifest of that name with the bookmarks that point to it, and of the pages and states that it or `also` (NULL = none)
 * names those that no other manifest names; and the damaged files of that folder, for some of them
 * may be this entry's. MX_E_NOT_FOUND: there is no such manifest, and `also` names nothing.
 * MX_E_BUSY: somebody else has held gc.lock for wait_ms; nothing was removed. */
mx_err mx_cold_remove_entry(const char *dir, const mx_hash256 *key, const char *folder,
                            const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                            mx_cold_counts *out, mx_errbuf *eb);
/* The same with the points inside its chain, where no other bookmark stands: a conversation. */
mx_err mx_cold_remove_session(const char *dir, const mx_hash256 *key, const char *folder,
                              const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                              mx_cold_counts *out, mx_errbuf *eb);
/* Removes all that one model's folder holds. MX_OK also when it is not there; MX_E_BUSY as above. */
mx_err mx_cold_remove_folder(const char *dir, const mx_hash256 *key, const char *folder,
                             uint32_t wait_ms, mx_cold_counts *out, mx_errbuf *eb);

#endif
