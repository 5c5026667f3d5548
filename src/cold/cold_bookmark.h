/* SPDX-License-Identifier: MIT
 *
 * cold_bookmark.h: what somebody has said about a point of a chain: this is where my session stands,
 * or this is not to be deleted. A small file beside the manifests (docs/file-format.md, section 14).
 *
 * A bookmark is changed by writing it anew. Within a process one lock orders those who do; of two
 * processes the last one wins. Any thread.
 */
#ifndef MX_COLD_BOOKMARK_H
#define MX_COLD_BOOKMARK_H

#include "cold/cold_files.h"

enum {
    MX_BOOKMARK_BYTES = 512,
    MX_SESSION_NAME_MAX = 256, /* bytes */
    MX_PINS_MAX = 1024,        /* that a server keeps in mind; of more the rest is pinned on disk only */
};

typedef struct mx_bookmark {
    mx_hash256 own;        /* its name: mx_session_id, or of a pinned entry that entry's */
    mx_hash256 root;       /* with the isolation salt */
    mx_hash256 entry;      /* the point: identity of the last page, the name of a manifest */
    mx_hash256 forked_from; /* own of another session; zero = none */
    bool is_session;       /* has a name of its own; else it pins an entry */
    bool is_pinned;        /* what the entry needs is not deleted to make room, nor for its age */
    uint64_t n_tokens;
    uint64_t created_s;
    uint64_t ttl_s;        /* of a session: not used for so long, it is deleted with its entry; 0 = never */
    char name[MX_SESSION_NAME_MAX + 1]; /* of a session, else "" */
    int64_t used_s;        /* the file's time; not written */
} mx_bookmark;

/* What a session of that name is called in files: another one under each root. */
mx_hash256 mx_session_id(const mx_hash256 *root, mx_str name);
/* 1 to MX_SESSION_NAME_MAX bytes of well-formed UTF-8 without control characters. */
bool mx_session_name_ok(mx_str name);

/* A second session that stands where `from` does; neither pinned nor with a time to live. */
mx_bookmark mx_bookmark_fork(const mx_bookmark *from, mx_str name);

/* key: NULL, or that of --cache-key-file (mx_cold_derive_keys, `object`). MX_E_NOMEM. */
mx_err mx_bookmark_encode(const mx_bookmark *b, const mx_hash256 *key,
                          uint8_t out[MX_BOOKMARK_BYTES]);
/* As a manifest is checked. MX_E_CORRUPT, MX_E_UNSUPPORTED, MX_E_NOMEM. used_s is 0. */
mx_err mx_bookmark_decode(mx_bookmark *b, const uint8_t bytes[MX_BOOKMARK_BYTES],
                          const mx_hash256 *key, bool needs_tag, mx_errbuf *eb);

void mx_bookmark_file_name(const mx_hash256 *own, char name[MX_COLD_NAME_CAP]);
/* Of an open folder `sessions`. MX_E_NOT_FOUND, MX_E_IO and as above. */
mx_err mx_bookmark_read(const mx_cold_fileops *ops, int sessions_fd, const mx_hash256 *own,
                        const mx_hash256 *key, bool needs_tag, mx_bookmark *b, mx_errbuf *eb);

/* Reads the bookmark of that name in f, which is ready (one that is not there, or is damaged, comes as
 * all zero but for `own`, and is_there is false), lets fn change it, and writes it when fn says
 * so. */
typedef bool mx_bookmark_fn(void *arg, mx_bookmark *b, bool is_there);
mx_err mx_bookmark_change(mx_cold_folder *f, const mx_hash256 *own, const mx_hash256 *key,
                          mx_bookmark_fn *fn, void *arg, mx_errbuf *eb);
/* What can be said of a session: an mx_bookmark_fn, arg is the edit. Of a session that is there, or of one
 * that is made by a fork and whose name is free; otherwise nothing is written. */
typedef struct mx_bookmark_edit {
    const mx_bookmark *forked; /* what a new one is made of, or NULL */
    bool sets_pin, is_pinned, sets_ttl;
    uint64_t ttl_s;
    bool is_done;       /* set by the call, as what follows */
    mx_bookmark result; /* used now */
} mx_bookmark_edit;
bool mx_bookmark_apply_edit(void *arg, mx_bookmark *b, bool is_there);

/* For who has seen it a while ago, and removes it for what it said then: MX_E_BUSY = it has been
 * written or changed since, and stays. */
mx_err mx_bookmark_remove_unchanged(const mx_cold_fileops *ops, int sessions_fd, const mx_bookmark *seen,
                                    const mx_hash256 *key, bool needs_tag);
/* MX_E_NOT_FOUND: there is none. */
mx_err mx_bookmark_remove(const mx_cold_fileops *ops, int sessions_fd, const mx_hash256 *own);

#endif
