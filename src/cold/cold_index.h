/* SPDX-License-Identifier: MIT
 *
 * cold_index.h: what is known in RAM about the page files of one folder: which are there, how
 * large, and which page continues which. A hint only: the folder decides.
 *
 * Thread-safe: one lock of its own, held for short table operations and never across I/O, so that
 * the engine may ask. No other lock is taken inside.
 */
#ifndef MX_COLD_INDEX_H
#define MX_COLD_INDEX_H

#include "base/err.h"
#include "base/hash.h"

typedef struct mx_cold_index mx_cold_index;

mx_cold_index *mx_cold_index_create(void); /* NULL = no memory */
void mx_cold_index_destroy(mx_cold_index *ix); /* NULL is allowed */

/* The page file is there. is_synced: its name is durable, too. MX_E_NOMEM changes nothing. A bad
 * one is not there, whoever sees its name. */
mx_err mx_cold_index_add(mx_cold_index *ix, const mx_hash256 *id, bool is_synced);
/* It continues `parent` with n_tokens tokens. With tokens, which are copied, the page says so itself;
 * with NULL somebody else does, and what the page says, before or after that, counts. A link alone does
 * not say that the file is there. */
mx_err mx_cold_index_link(mx_cold_index *ix, const mx_hash256 *id, const mx_hash256 *parent,
                          uint32_t n_tokens, const int32_t *tokens);
/* The file is gone or bad; the link stays until the file is seen to be written again. */
void mx_cold_index_remove(mx_cold_index *ix, const mx_hash256 *id);
/* An fsync of the folder of this name, behind it, has failed. One that succeeds later says nothing about it,
 * nor about the other names there that were not durable then: they are in doubt until they are written anew
 * (and added as durable). Names with the same first byte count as one folder, pages and states: whose a
 * name is is not known here, and to write one too many is the safe side. */
void mx_cold_index_doubt(mx_cold_index *ix, const mx_hash256 *id);
bool mx_cold_index_is_doubtful(mx_cold_index *ix, const mx_hash256 *id);
/* The same of the folder of manifests: those that this process has not made durable make no other
 * superfluous. */
void mx_cold_index_doubt_manifests(mx_cold_index *ix);

/* The file can neither be used nor moved away (a read-only folder, a bad sector): from now on it
 * counts as absent, until set_good says that it was written anew. Remembered in RAM only. */
void mx_cold_index_set_bad(mx_cold_index *ix, const mx_hash256 *id);
void mx_cold_index_set_good(mx_cold_index *ix, const mx_hash256 *id);
bool mx_cold_index_is_bad(mx_cold_index *ix, const mx_hash256 *id);

/* Whether the file of a page is without the rows of windowed layers, as far as was seen. Of one that is
 * not there nothing is known. */
void mx_cold_index_set_lacks(mx_cold_index *ix, const mx_hash256 *id, bool lacks_local);
bool mx_cold_index_lacks(mx_cold_index *ix, const mx_hash256 *id);

bool mx_cold_index_has(mx_cold_index *ix, const mx_hash256 *id);        /* there, */
bool mx_cold_index_is_kept(mx_cold_index *ix, const mx_hash256 *id);    /* and not in doubt, */
bool mx_cold_index_is_synced(mx_cold_index *ix, const mx_hash256 *id);  /* and durable */

/* Manifests that were read already, by the identity in their name. True = it is new (now
 * marked). */
bool mx_cold_index_mark_manifest(mx_cold_index *ix, const mx_hash256 *last_page);
void mx_cold_index_unmark_manifest(mx_cold_index *ix, const mx_hash256 *last_page);
/* This process has made the manifest of that name and kind (0, 1) durable, and at that time (or
 * later) has given a new age to its chain. */
void mx_cold_index_set_durable(mx_cold_index *ix, const mx_hash256 *last_page, uint32_t kind,
                               uint64_t touched_us);
/* False: not, or it was removed. A manifest of a turn stands for that of a prompt. */
bool mx_cold_index_is_durable(mx_cold_index *ix, const mx_hash256 *last_page, uint32_t kind,
                              uint64_t *touched_us);
/* Those that help nobody, by the identity in their name: inside the chain of another, or the first page
 * is gone. *out is the caller's to mx_free. */
mx_err mx_cold_index_dead_manifests(mx_cold_index *ix, mx_hash256 **out, size_t *n);

/* The page that it is known to continue (the root for a first page). False: not known. */
bool mx_cold_index_parent(mx_cold_index *ix, const mx_hash256 *id, mx_hash256 *parent);

/* A child of a page, as far as known. */
typedef struct mx_cold_child {
    mx_hash256 id;
    uint32_t n_tokens;
    uint32_t n_common; /* tokens that agree with those asked for */
    int32_t next[8];   /* [n_next] how it goes on behind them; known also for some child of which */
    uint32_t n_next;   /* nothing agrees */
} mx_cold_child;

typedef enum mx_cold_among {
    MX_COLD_AMONG_ALL,
    MX_COLD_AMONG_WHOLE, /* those that do not lack the rows of windowed layers, as far as was seen; */
    MX_COLD_AMONG_FULL   /* of these, those that have 64 tokens */
} mx_cold_among;

/* Among the children of `parent` that are there and have known tokens: the one with the longest common
 * prefix with tokens[0..n-1] (n_common 0 = none). Those whose tokens are not known go into
 * unknown[0..*n_unknown-1] (full ones first, of these and of the others the newest first; at most cap): read
 * their heads, link them, ask again. Takes hardly longer for a hundred thousand children than for ten. */
mx_cold_child mx_cold_index_best_child(mx_cold_index *ix, const mx_hash256 *parent,
                                       const int32_t *tokens, size_t n, mx_cold_among among,
                                       mx_cold_child *unknown, size_t cap, size_t *n_unknown);

/* Of pages that have `least` or more children whose tokens are not known: these children. *out is the
 * caller's to mx_free. */
mx_err mx_cold_index_crowds(mx_cold_index *ix, size_t least, mx_hash256 **out, size_t *n);

/* Does some manifest that is there have it in its chain, as far as known? Of a page of which nothing says
 * so nobody will know after a restart what it continues. */
bool mx_cold_index_is_named(mx_cold_index *ix, const mx_hash256 *id);

/* The partial pages that are there and whose parent has a full child, too, which as far as was seen lacks
 * nothing. *out is the caller's to mx_free. */
typedef struct mx_cold_partial {
    mx_hash256 id, parent;
} mx_cold_partial;
mx_err mx_cold_index_partials(mx_cold_index *ix, mx_cold_partial **out, size_t *n);

/* A scan of the folder: begin, add (or see) everything that is seen, end: what was neither seen nor
 * written since begin is removed, and what is gone and in no manifest's chain is forgotten. */
void mx_cold_index_see_manifest(mx_cold_index *ix, const mx_hash256 *last_page);
void mx_cold_index_scan_begin(mx_cold_index *ix);
void mx_cold_index_scan_end(mx_cold_index *ix);

size_t mx_cold_index_count(mx_cold_index *ix); /* page files that are there */

#endif
