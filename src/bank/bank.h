/* SPDX-License-Identifier: MIT
 *
 * bank.h: the SessionBank, tier 1: every prefix that was computed and still fits in RAM.
 *
 * A tree of page nodes (one tree for all conversations, so shared stems exist once) with entries in
 * it: named points at which a prompt or a turn ended. Restoring takes references to whole pages and
 * copies at most the common rows of one; no other KV bytes move.
 *
 * Where the shape has a recurrent state, that cannot be cut back, and every entry holds one: it is
 * a boundary. A restore lands on a boundary, pages and state together, or not at all.
 *
 * Where it has windowed layers, every entry holds the local rows that a sequence sees which goes on from
 * there. Nobody else does for the bank, so a restore lands where the rows are there: at an entry, a
 * little before or behind it, or anywhere in what is not longer than a window.
 *
 * Owned by the engine thread; no locks. The bank holds references on its pages; a page that anybody
 * else refers to as well is pinned and never evicted.
 */
#ifndef MX_BANK_H
#define MX_BANK_H

#include "base/gone.h"
#include "kv/kv.h"

typedef struct mx_bank mx_bank;
typedef struct mx_bank_entry mx_bank_entry;

typedef struct mx_bank_config {
    size_t max_bytes;          /* budget for pages held by the bank, entries and index included;
                                * pages that a sequence shares count. 0 = bounded by the pool */
    uint32_t near_prefix_gap;  /* MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP */
    bool lazy_snapshot;        /* MTPLX_SESSION_LAZY_SNAPSHOT */
    bool settle_snapshot;      /* MTPLX_SESSION_SNAPSHOT_SETTLE */
    uint32_t n_hidden;         /* floats in an entry's hidden vector */
    double us_per_token;       /* recompute cost estimate used for eviction values */
    mx_gone *gone;             /* learns the identities of pages that are dropped; or NULL */
    /* MTPLX_SESSION_BOUNDARY_TRUE_RESTORE=0: a prompt that leaves what is stored at most
     * near_prefix_gap tokens before a boundary may go on with the state of that. Never exact. */
    bool approximate_restore;
} mx_bank_config;

typedef enum mx_restore_kind {
    MX_RESTORE_NONE,
    MX_RESTORE_EXACT_PREFIX, /* an entry ends in or at the end of the prompt, and all is used */
    MX_RESTORE_BOUNDARY,     /* a point on the way, MX_ENTRY_POINT; with windowed layers also any place
                              * behind which more is stored, but not the local rows to go on with */
    MX_RESTORE_NEAR_PREFIX,  /* the entry is at most the gap longer than the common prefix */
    MX_RESTORE_STEM          /* a shared beginning */
} mx_restore_kind;
const char *mx_restore_kind_name(mx_restore_kind k); /* "exact_prefix", ... */

typedef enum mx_entry_kind {
    MX_ENTRY_PROMPT,
    MX_ENTRY_TURN,
    MX_ENTRY_POINT /* only a boundary, where the shape has states or windowed layers; gives way to the
                    * other kinds */
} mx_entry_kind;

typedef struct mx_bank_match {
    size_t n_tokens;        /* reused: the longest common prefix with anything in the tree, or with
                             * states the greatest boundary within it, or with windowed layers the
                             * greatest place within it from which one can go on */
    size_t n_shared;        /* the longest common prefix; more than n_tokens with states or windowed
                             * layers only, and where a restore was limited */
    size_t n_full_pages;    /* of n_tokens */
    bool is_approximate;    /* the state is that of a later position: store nothing that follows */
    mx_restore_kind kind;
    const float *hidden;    /* [n_hidden] of an entry that ends exactly at n, if n_tokens == n; else
                             * NULL. Valid until the bank is changed */
    /* For the response: the longest stored continuation that diverged, where and with what. */
    bool diverged;          /* something stored goes on behind n_shared with another token */
    int32_t stored_token;   /* that token, when diverged */
} mx_bank_match;

typedef struct mx_bank_stats {
    size_t bytes, n_pages, n_entries;
    size_t n_states;          /* held by entries: all of them or none */
    uint64_t evicted_pages, evicted_entries, refused_entries;
    uint64_t evicted_for_pages; /* of evicted_pages: a request needed them; the rest: the budget */
} mx_bank_stats;

mx_err mx_bank_create(mx_bank **out, mx_kv_pool *pool, const mx_bank_config *cfg, mx_errbuf *eb);
void mx_bank_destroy(mx_bank *b);

/* Puts the sealed pages of a sequence into the tree (those that are not there yet), so that anyone
 * can share them. Where the same tokens are already stored under the same parent, the sequence
 * exchanges its page for the stored one (equal in bits by contract), so that two requests that
 * computed the same prompt at the same time do not keep it twice: seq->pages changes, and with it
 * the parent pointer of the page behind. Called chunk by chunk during a prefill. MX_E_FULL: the
 * budget ends before the sequence does; MX_E_NOMEM; in both cases the pages before are stored. */
mx_err mx_bank_insert_pages(mx_bank *b, mx_seq *seq);

/* snapshot_cache: records an entry at the end of seq (references only; with lazy_snapshot off the
 * tail rows are copied at once). hidden: [n_hidden] or NULL. An entry at the same point is
 * refreshed (and keeps its hidden vector when this one is NULL). Includes mx_bank_insert_pages, and
 * a reference on the sequence's state where it has one.
 * MX_E_FULL = does not fit the budget or the pool, MX_E_NOMEM: no entry is stored, though whole
 * pages may be; an entry that could never fit changes nothing at all. MX_E_INVALID: the sequence is
 * empty. */
mx_err mx_bank_snapshot_cache(mx_bank *b, mx_seq *seq, mx_entry_kind kind, const float *hidden,
                              mx_errbuf *eb);

/* Where the shape has windowed layers: records MX_ENTRY_POINT behind the first n tokens of seq, if there
 * is no entry, so that one can go on from there. The pages must be in the tree, and the sequence still
 * have the local rows. MX_E_FULL: they are not, or there is no room; MX_E_NOMEM. MX_OK without windowed
 * layers. */
mx_err mx_bank_keep_window(mx_bank *b, mx_seq *seq, size_t n);

/* What restore would find, without touching anything. root names the model and the isolation. The
 * label near_prefix is looked for in at most 64 pages behind the match; beyond, it reads stem. */
void mx_bank_lookup(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                    mx_bank_match *out);

/* The longest common prefix of tokens[0..n-1] with anything under root, and how what is stored goes
 * on behind it: at most cap tokens of one stored text (*n_out 0: nothing goes on). */
size_t mx_bank_continuation(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens,
                            size_t n, int32_t *out, uint32_t cap, uint32_t *n_out);

/* restore_cache: fills an empty, initialised seq (its root is used) with the longest common prefix
 * of tokens[0..n-1], at most max_tokens of it. O(pages), no KV bytes move but the rows of the one
 * page that differs; not even those when the sequence uses all of a tail to which nobody else
 * appends. Makes room for that page itself (a match is never evicted to make room for it).
 * MX_E_FULL when the page for those rows cannot be had: then the whole pages alone were restored
 * and *out says so. MX_E_NOMEM: nothing restored. With states it ends on the greatest boundary that
 * can be had, with its state, with windowed layers on the greatest place from which one can go on;
 * MX_E_FULL then says that a greater one could not. */
mx_err mx_bank_restore_cache(mx_bank *b, mx_seq *seq, const int32_t *tokens, size_t n,
                             size_t max_tokens, mx_bank_match *out);

/* For a state that comes from elsewhere. hold_pages: references on the first n_pages whole pages
 * of tokens, which the tree has; the sequence has no state yet and can only be freed or get more
 * pages. restore_at: the first n tokens, which the tree has, and `state` at n, whose reference
 * is taken over (not on failure). MX_E_FULL, MX_E_NOMEM: the sequence is empty. */
mx_err mx_bank_hold_pages(mx_bank *b, mx_seq *seq, const int32_t *tokens, size_t n_pages);
mx_err mx_bank_restore_at(mx_bank *b, mx_seq *seq, const int32_t *tokens, size_t n,
                          mx_kvstate *state);

/* Calls fn for each boundary within tokens[0..n-1], ascending. The states are valid during the
 * call; fn must not change the bank. */
typedef void mx_bank_boundary_fn(void *arg, size_t n_tokens, mx_kvstate *state,
                                 mx_entry_kind kind);
void mx_bank_boundaries(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                        mx_bank_boundary_fn *fn, void *arg);
/* The same for a sequence, of which only those behind `from` are wanted: what is in front of that is
 * not walked through when its pages are stored. */
void mx_bank_boundaries_behind(const mx_bank *b, const mx_seq *seq, const int32_t *tokens,
                               size_t from, size_t n, mx_bank_boundary_fn *fn, void *arg);

/* Frees pages leaf first, least valuable first (value = time to recompute x decayed uses / bytes,
 * where what is recomputed is all that only this leaf leads to),
 * until the pool can hand out n_pages or nothing more can go. Returns how many pages became
 * free. With states: pages that lead to no boundary go first; then the boundary whose loss costs
 * least goes, with its state (which counts as several pages). It costs the tokens from the boundary
 * before it, so the others come to stand at even distances and the last of a chain is no special
 * case. */
size_t mx_bank_evict(mx_bank *b, size_t n_pages);
/* The same for work that nobody asked for: true when n_pages more fit, for which only such pages
 * were dropped as are worth less than one that was computed once, now. With states nothing is
 * dropped. */
bool mx_bank_make_idle_room(mx_bank *b, size_t n_pages);
/* Brings the bank under its budget. */
void mx_bank_trim(mx_bank *b);
/* Drops everything that is not pinned by somebody else. */
void mx_bank_clear(mx_bank *b);

/* Idle work, one small step: settling, then zeroing recycled pages of the pool. True when something
 * was done and more may be left. */
bool mx_bank_idle(mx_bank *b);

/* For lists and tests: each stored page (parents before children), then the entries in it. What the
 * pointers refer to is valid during the call only; the tokens of the whole path are found through
 * page->parent. fn must not change the bank. */
typedef struct mx_bank_point {
    const mx_hash256 *root;
    const mx_page *page;
    size_t n_tokens;     /* where the page's stored rows, or the entry, end */
    bool is_entry;       /* then: */
    mx_entry_kind kind;
    uint64_t n_hits;     /* refreshed, or restored as a whole */
    uint64_t used_us;    /* mx_now_us of the last such use */
    const float *hidden; /* or NULL */
    bool is_pinned;
    const mx_kvstate *state; /* or NULL */
} mx_bank_point;
void mx_bank_walk(const mx_bank *b, void (*fn)(void *arg, const mx_bank_point *point), void *arg);

/* The name of a point: the identity of the page that ends there, which is also the name of such an
 * entry's manifest on disk. */
mx_hash256 mx_bank_point_id(const mx_bank_point *point);

/* Pins the entry of that name, so that it is not evicted, or lets go of it. MX_E_NOT_FOUND.
 * MX_E_FULL: with it more than max_pages pages would be pinned (shared ones count for each
 * entry). */
mx_err mx_bank_pin(mx_bank *b, const mx_hash256 *id, bool on, size_t max_pages);
/* Removes the entry of that name, pinned or not, and the pages behind the last one that another
 * entry or anybody else needs. MX_E_NOT_FOUND. */
mx_err mx_bank_forget(mx_bank *b, const mx_hash256 *id);
/* The same with the entries on the way there that are not pinned. */
mx_err mx_bank_forget_chain(mx_bank *b, const mx_hash256 *id);
/* mx_bank_clear, pinned entries included. */
void mx_bank_forget_all(mx_bank *b);

void mx_bank_get_stats(const mx_bank *b, mx_bank_stats *out);
void mx_bank_check(const mx_bank *b); /* invariant walker, debug builds */

/* The two checks of the original's vocabulary. An entry's identity is compatible when it was made
 * under the same root; the policy uses committed history when sampled tokens stay authoritative. */
bool mx_restore_identity_compatible(const mx_hash256 *entry_root, const mx_hash256 *request_root);
bool mx_policy_uses_committed_history(bool canonical_prompts);

#endif
