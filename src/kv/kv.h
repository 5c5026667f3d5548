/* SPDX-License-Identifier: MIT
 *
 * kv.h: KV pages and sequences, the one unit of both tiers.
 *
 * A page holds the keys and values of MX_PAGE_TOKENS consecutive tokens for all layers:
 * [layer][kv_head][K tile | V tile], a multiple of 4 KiB. Its bytes in RAM are its bytes on disk. A
 * full page is sealed: immutable, reference-counted, shared. Of a partial page the rows below any
 * holder's count are immutable, rows above are invisible to it, and exactly one sequence (the
 * appender) may write the next row; every other fork copies the rows it needs into a page of its
 * own.
 *
 * Models with recurrent layers have a state beside the pages, valid at one position only: it can
 * be shared, but not cut. Pages of such models hold only the layers that do have keys and values.
 *
 * Of layers with a sliding window (the last of the shape's) the rows are seen for a while only. They
 * lie in a block of their own, page->local, and are there as long as somebody holds them; a page
 * without them still serves all other layers, and goes on being part of its chain. A page that has
 * them all, or whose shape has no such layers, is whole.
 *
 * Ownership and threads: pool, pages, states and sequences belong to the engine thread. Other
 * threads may read committed payload rows, their tokens, and index of a page on which a reference
 * is held for them (id, too, once the page is sealed; local rows while those are held for them); the
 * compute pool writes reserved rows on the engine's behalf. Everything else in a page, reference counts and the parent pointer above all, is read and
 * changed on the engine thread only: a parent may be exchanged for another page object with the
 * same identity (the bank does that when it removes a duplicate).
 */
#ifndef MX_KV_H
#define MX_KV_H

#include "base/err.h"
#include "base/hash.h"
#include "base/pool.h"
#include "kernels/kern.h"

typedef struct mx_kv_shape {
    uint32_t n_layers;  /* that have keys and values */
    uint32_t n_kv_heads;
    uint32_t head_dim;
    mx_kv_type type;
    size_t state_bytes; /* everything else of one sequence at one position; 0 = there is nothing */
    uint32_t n_local;   /* the last so many of n_layers, not all, have a window: there a token sees */
    uint32_t window;    /* so many tokens, up to itself. Both 0 = no layer has one */
} mx_kv_shape;

/* Bytes of a whole page in one piece, all layers one behind the other, as it is stored on disk: a
 * multiple of 4096. 0 when the shape is impossible. */
size_t mx_kv_page_bytes(const mx_kv_shape *s);
/* Bytes of its two blocks in RAM, each a multiple of 4096, together not less. The second one, for
 * windowed layers, has 0 where there are none. */
size_t mx_kv_payload_bytes(const mx_kv_shape *s);
size_t mx_kv_local_bytes(const mx_kv_shape *s);
/* The first page of which the token behind n_tokens others sees a row in windowed layers (0 where the
 * shape has none), */
size_t mx_kv_first_seen(const mx_kv_shape *s, size_t n_tokens);
/* and from which on they are kept for it: the last of the n_tokens can be computed again, too. */
size_t mx_kv_first_kept(const mx_kv_shape *s, size_t n_tokens);
/* Bytes of the pages of n_tokens tokens, of which those from mx_kv_first_kept on are whole. */
size_t mx_kv_chain_bytes(const mx_kv_shape *s, size_t n_tokens);
/* Payload bytes of n_rows rows compacted per tile, as a partial page is stored on disk. */
size_t mx_kv_rows_bytes(const mx_kv_shape *s, uint32_t n_rows);

typedef struct mx_page mx_page;
struct mx_page {
    uint8_t *payload;   /* mx_kv_payload_bytes, 4096-byte aligned */
    uint8_t *local;     /* rows of windowed layers, likewise; NULL = released, or there are none */
    uint32_t refs;      /* engine thread only */
    uint32_t local_refs; /* so many who hold a reference hold the rows in local, too */
    uint32_t local_rows; /* of n_rows so many are in local, at most; 64 unless it got them later */
    uint32_t n_rows;    /* rows written and committed, 0..MX_PAGE_TOKENS; 64 = sealed */
    bool has_appender;  /* some sequence may still write row n_rows */
    mx_page *parent;    /* the page before it (a reference is held), NULL for the first; sealed */
    uint64_t index;     /* 0-based page number in its chain: first position = index * 64 */
    mx_hash256 id;      /* identity; valid once sealed, see mx_page_identity */
    int32_t tokens[MX_PAGE_TOKENS]; /* [0..n_rows-1] valid */
    void *owner;        /* the bank's node for this page, or NULL */
    bool is_queued;     /* the engine's mark: on its way to the cold tier */
    uint32_t n_seen;    /* scratch of the invariant walkers */
};

/* ---- pool ------------------------------------------------------------------------------------- */

typedef struct mx_kv_pool mx_kv_pool;

/* Reserves address space for max_pages; memory is committed and pre-faulted slab by slab.
 * MX_E_LIMIT when one sequence with its states would not fit. */
mx_err mx_kv_pool_create(mx_kv_pool **out, const mx_kv_shape *shape, size_t max_pages,
                         mx_errbuf *eb);
/* The threads that populate new memory, which must do nothing else whenever a page or a state is asked
 * for. Borrowed; NULL, as at first: the caller does it alone. */
void mx_kv_pool_set_workers(mx_kv_pool *p, mx_pool *workers);
/* Lets idle work commit memory ahead of its use, slab by slab, as long as at most n_bytes of it are
 * unused; at first 0: one slab, when there is nothing. */
void mx_kv_pool_keep_ahead(mx_kv_pool *p, size_t n_bytes);
void mx_kv_pool_destroy(mx_kv_pool *p); /* all pages must have been released: asserted */
const mx_kv_shape *mx_kv_pool_shape(const mx_kv_pool *p);
size_t mx_kv_pool_page_bytes(const mx_kv_pool *p); /* of both blocks */
/* Falls to what could be committed (with a warning) when the system runs out of memory. */
size_t mx_kv_pool_max(const mx_kv_pool *p);
/* Pages, and states as state_pages each. Pages without local count as what they have; the sum is
 * rounded up, so that max - used whole pages can be had. */
size_t mx_kv_pool_used(const mx_kv_pool *p);
size_t mx_kv_pool_used_bytes(const mx_kv_pool *p);
size_t mx_kv_pool_state_pages(const mx_kv_pool *p); /* what one state counts; 0 = there are none */

/* A zeroed page (payload, local and fields) with one reference, no parent; NULL when the pool is
 * exhausted. Nobody holds its local yet; it stays until somebody has. Never uses the heap. Zeroing
 * happens here and not when a page is given back: a finished request returns hundreds of pages at
 * once, between two tokens of everybody else, but pages are taken one per 64 tokens. */
mx_page *mx_page_alloc(mx_kv_pool *p);
mx_page *mx_page_alloc_payload(mx_kv_pool *p); /* the same without local */
/* Idle work: zeroes one recycled page ahead of its next use, or commits the next slab
 * (mx_kv_pool_keep_ahead). True when something was done. */
bool mx_kv_pool_idle(mx_kv_pool *p);
mx_page *mx_page_ref(mx_page *page); /* returns page */
/* Drops a reference; the last one drops the parent's (iteratively) and recycles the memory. */
void mx_page_unref(mx_kv_pool *p, mx_page *page); /* NULL is allowed */

/* Holding local, beside a reference: whoever does so drops it before that, unless it is the last one.
 * The last one to drop it releases the block. Without windowed layers it is counted all the same. */
void mx_page_hold_local(mx_page *page);
void mx_page_drop_local(mx_kv_pool *p, mx_page *page);
/* Releases the block when nobody holds it. */
void mx_page_shed_local(mx_kv_pool *p, mx_page *page);
/* Gives `to`, the same page without it, the block of `from`, which at most the caller holds. False:
 * others hold it, or there is none; nothing was done. */
bool mx_page_move_local(mx_page *to, mx_page *from);
/* Gives `to`, which has fewer, the first n_rows local rows of `from`, which begins like it. False: the
 * pool is exhausted. */
bool mx_page_give_local(mx_kv_pool *p, mx_page *to, const mx_page *from, uint32_t n_rows);

/* Are the first n_rows rows there for all layers? */
MX_INLINE bool mx_page_has_local(const mx_kv_shape *s, const mx_page *page, uint32_t n_rows)
{
    return s->n_local == 0 || (page->local != NULL && page->local_rows >= n_rows);
}

/* Makes a fresh page (no rows yet) the continuation of `parent` (NULL: the first page of `root`),
 * of which a reference is taken, with n_rows committed rows whose payload the caller has filled in
 * or fills in before anybody else sees the page. A page of 64 rows is sealed. */
void mx_page_link(mx_page *page, mx_page *parent, const mx_hash256 *root, const int32_t *tokens,
                  uint32_t n_rows);

/* Tiles of one layer and head inside the bytes of a whole page in one piece. */
uint8_t *mx_page_k_tile(const mx_kv_shape *s, uint8_t *bytes, uint32_t layer, uint32_t head);
uint8_t *mx_page_v_tile(const mx_kv_shape *s, uint8_t *bytes, uint32_t layer, uint32_t head);
/* The same of a page, which has local where the layer has a window. */
uint8_t *mx_page_k_of(const mx_kv_shape *s, const mx_page *page, uint32_t layer, uint32_t head);
uint8_t *mx_page_v_of(const mx_kv_shape *s, const mx_page *page, uint32_t layer, uint32_t head);

/* Where the rows of windowed layers begin in one piece; NULL = there are none. */
const uint8_t *mx_page_local_in(const mx_kv_shape *s, const uint8_t *bytes);
/* A whole page's payload and local into one piece, and back (local NULL: without that). */
void mx_page_join(const mx_kv_shape *s, uint8_t *bytes, const uint8_t *payload,
                  const uint8_t *local);
void mx_page_part(const mx_kv_shape *s, uint8_t *payload, uint8_t *local, const uint8_t *bytes);
/* Copies the first n_rows rows of `from` into the fresh page `to`; the local ones if `from` has them,
 * else `to` loses its block. */
void mx_page_copy(mx_kv_pool *p, mx_page *to, const mx_page *from, uint32_t n_rows);

/* What follows works on whole pages in one piece. */
/* Copies rows 0..n_rows-1 of all tiles; the rest of dst stays as it is. */
void mx_page_copy_rows(const mx_kv_shape *s, uint8_t *dst, const uint8_t *src, uint32_t n_rows);
/* To and from the compact form of a partial page (mx_kv_rows_bytes long): for each layer and head
 * the K tile as [head_dim][n_rows], then the V tile as [n_rows][head_dim], each with its n_rows
 * scales behind it where the type has scales. unpack leaves the other rows as they are. */
void mx_page_pack_rows(const mx_kv_shape *s, uint8_t *out, const uint8_t *payload, uint32_t n_rows);
/* mx_page_pack_rows of a page's two blocks. */
void mx_page_pack_blocks(const mx_kv_shape *s, uint8_t *out, const uint8_t *payload,
                         const uint8_t *local, uint32_t n_rows);
void mx_page_unpack_rows(const mx_kv_shape *s, uint8_t *payload, const uint8_t *in,
                         uint32_t n_rows);

/* Test hook: fills all rows from n_rows on with NaN patterns (every bit set). Nothing may
 * notice. */
void mx_page_poison_tail(const mx_kv_shape *s, mx_page *page);
/* Test hook: from now on mx_page_alloc hands out NaN patterns instead of zeros. */
void mx_kv_pool_set_poison(mx_kv_pool *p, bool on);

/* SHA-256 over (domain tag, root, parent identity, layer group 0, n_tokens, token ids), that is
 * over "mtplx page v1" padded with NUL to 16 bytes, 32 bytes, 32 bytes, u32, u32, n x i32, little
 * endian. parent_id is the root itself for the first page. This is the name of a page on disk. */
mx_hash256 mx_page_identity(const mx_hash256 *root, const mx_hash256 *parent_id,
                            const int32_t *tokens, uint32_t n_tokens);

/* ---- states ----------------------------------------------------------------------------------- */

/* The recurrent state behind n_tokens tokens. Its bytes in RAM are its bytes on disk; what they
 * mean is the model's business, and its layout part of the root. Immutable once it belongs to a
 * sequence as `state`: snapshots are references. Other threads may read n_tokens and data of a
 * state on which a reference is held for them. */
typedef struct mx_kvstate mx_kvstate;
struct mx_kvstate {
    uint8_t *data;         /* [shape.state_bytes], 64-byte aligned */
    uint64_t n_tokens;
    uint32_t refs;         /* engine thread only */
    mx_kvstate *next;      /* pool */
    mx_kvstate *next_free; /* pool */
};

/* A state with one reference whose data is undefined, n_tokens 0. NULL when the pool's budget, of
 * which a state takes mx_kv_pool_state_pages pages, or memory is exhausted. The shape must have
 * states. Recycled ones come first: then the heap is not asked. */
mx_kvstate *mx_kvstate_alloc(mx_kv_pool *p);
mx_kvstate *mx_kvstate_ref(mx_kvstate *st); /* returns st */
/* Drops a reference; the last one recycles the memory. NULL is allowed. */
void mx_kvstate_unref(mx_kv_pool *p, mx_kvstate *st);

/* ---- sequences -------------------------------------------------------------------------------- */

/* A chain of pages and how many tokens of it are ours. One owner, the engine thread.
 *
 * Where the shape has windowed layers, it holds the local rows of its pages from first_local on. What is
 * no longer seen is dropped by the next reserve, but for what the owner wants kept (keep_from). One
 * whose first_local is behind what its next token sees cannot go on. */
typedef struct mx_seq {
    mx_kv_pool *pool;
    mx_hash256 root;
    mx_page **pages;     /* [n_pages], one reference each */
    size_t n_pages;
    size_t pages_cap;
    size_t n_tokens;     /* committed tokens */
    size_t n_reserved;   /* tokens for which writable rows exist beyond n_tokens (uncommitted) */
    size_t first_local;  /* pages from here on are whole, and held so */
    size_t keep_from;    /* the owner's: those from here on stay so, seen or not; SIZE_MAX = none */
    bool has_right;      /* ours is the append right of the page that takes row n_tokens */
    mx_kvstate *state;   /* at n_tokens (a reference); NULL at 0 tokens or when there are none */
    mx_kvstate *next;    /* ours alone: takes the state behind the rows that are being computed */
} mx_seq;

void mx_seq_init(mx_seq *s, mx_kv_pool *pool, const mx_hash256 *root);
void mx_seq_free(mx_seq *s); /* drops all references; safe on a zeroed struct */

/* Makes rows for (at least) n_new tokens behind n_tokens writable: takes the append right of the
 * last page or copies its rows, allocates pages, and `next` where the shape has states. What is
 * reserved already counts. MX_E_FULL (nothing changed but what was already reserved) when the pool
 * is exhausted, MX_E_NOMEM likewise. */
mx_err mx_seq_reserve(mx_seq *s, size_t n_new);
/* The n_new tokens' rows have been written: they become part of the sequence; full pages are sealed
 * and get their identity. n_new <= reserved. With states, n_new must be all rows that were
 * computed: `next`, which the forward pass has written, becomes the state. */
void mx_seq_commit(mx_seq *s, const int32_t *tokens, size_t n_new);
/* Forgets reserved, uncommitted rows and returns pages that hold nothing else, and `next`. */
void mx_seq_rollback(mx_seq *s);
/* Shortens to n_tokens (a fork of the last page happens at the next reserve). A state cannot be
 * cut: a sequence that has one becomes empty unless n_tokens is what it has; so does one that could
 * not go on from there. */
void mx_seq_cut(mx_seq *s, size_t n_tokens);
/* Adds a page that continues the chain (parent and index already right); takes over the caller's
 * reference (not on failure, MX_E_NOMEM). n_rows of it become part of the sequence; only the last
 * page may be partial, nothing may be reserved. A partial page of which all rows are used and
 * nobody has the append right gives it to the sequence. Its local rows are held; a page without
 * them ends what is held of those before it. */
mx_err mx_seq_push_page(mx_seq *s, mx_page *page, uint32_t n_rows) MX_MUST_CHECK;
/* Can the next token be computed: are the rows there that it sees? */
bool mx_seq_can_go_on(const mx_seq *s);
/* Drops what of local the next token does not see and the owner does not want kept. */
void mx_seq_trim(mx_seq *s);
/* Gives a sequence whose pages have been pushed its state; takes over the caller's reference, also
 * one that the sequence had before. MX_E_INVALID (nothing taken over) when st->n_tokens is not
 * seq->n_tokens, which the caller must prevent: asserted. */
mx_err mx_seq_set_state(mx_seq *s, mx_kvstate *st);
/* Makes dst (initialised, empty, same pool and root) share the first n_tokens <= src->n_tokens.
 * With states only all of them or none, and with windowed layers as many as it could go on from:
 * MX_E_INVALID otherwise. */
mx_err mx_seq_fork(mx_seq *dst, const mx_seq *src, size_t n_tokens) MX_MUST_CHECK;

/* Full invariant walk; aborts with a message on a violation. Compiled in debug builds, a no-op in
 * release builds. */
void mx_seq_check(const mx_seq *s);
void mx_kv_pool_check(const mx_kv_pool *p);

#endif
