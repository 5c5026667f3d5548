/* SPDX-License-Identifier: MIT
 *
 * bank_tree.h: the SessionBank's tree of pages; private to src/bank.
 *
 * A node is a page with the n_rows of it that are stored. A node of 64 rows may have children; one
 * with fewer is always a leaf. No child's tokens are the beginning of a sibling's: whatever is
 * shorter is a point inside the longer one. Entries are points (node, row); with states, each is a
 * boundary and has one.
 *
 * Children are sorted by their token ids. That one order answers both questions of a lookup in
 * O(log children): is there a child with exactly these 64 tokens, and which child shares most
 * tokens with them (one of the two neighbours of the place where they would be inserted). No hash
 * is involved, so no collision, accidental or made on purpose, can confuse two prefixes, and 10,000
 * different first pages cost 14 comparisons. Inserting moves pointers, 8 bytes a sibling.
 *
 * Owned by the engine thread, as everything in the bank.
 */
#ifndef MX_BANK_TREE_H
#define MX_BANK_TREE_H

#include "bank/bank.h"

typedef struct mx_bank_node mx_bank_node;
typedef struct mx_bank_tree mx_bank_tree;

struct mx_bank_entry {
    mx_bank_entry *next;  /* of the same node, n_rows ascending */
    uint32_t n_rows;      /* the entry ends behind this row of its node's page: 1..node->n_rows */
    mx_entry_kind kind;
    uint64_t n_hits;
    uint64_t used_us;     /* mx_now_us of the last snapshot or exact restore */
    float *hidden;        /* [n_hidden], owned; or NULL */
    bool is_pinned;       /* not evicted, and so neither is its path */
    mx_bank_node *node;
    size_t first_held;    /* the local rows of the pages from here to node's are held; SIZE_MAX: none */
    mx_kvstate *state;    /* one reference; NULL when the shape has no states. Then also: */
    double use_log2;      /* of restores that ended here, see mx_node_touch */
    size_t state_at;      /* index in mx_bank.states */
};

struct mx_bank_node {
    mx_bank_node *parent;    /* NULL: this is the top of a tree and has no page */
    mx_bank_tree *tree;
    mx_page *page;           /* one reference is ours; page->owner points back */
    uint32_t n_rows;
    size_t n_children;
    size_t children_cap;
    mx_bank_node **children; /* [n_children] ascending by tokens */
    mx_bank_entry *entries;
    size_t n_needs;          /* entries that hold the page's local rows: then we do */
    double use_log2;         /* see mx_node_touch */
    double value_log2;       /* the eviction order, while the node is a leaf */
    size_t heap_at;          /* index in mx_bank.leaves, or NOT_A_LEAF */
    bool wants_settle;       /* is on the settle list */
    mx_bank_node *settle_next;
    mx_bank_node *stash_next; /* while pinned leaves are set aside */
    size_t walk_at;          /* mx_node_next */
    size_t n_seen;           /* scratch of the invariant walker */
};

/* Everything that was computed under one root. */
struct mx_bank_tree {
    mx_hash256 root;
    mx_bank_node top;
    bool is_in_use; /* an insertion is going on: do not remove the tree when it becomes empty */
};

struct mx_bank {
    mx_kv_pool *pool;
    mx_bank_config cfg;
    mx_bank_tree **trees; /* [n_trees] ascending by root */
    size_t n_trees, trees_cap;
    mx_bank_node **leaves; /* binary heap, least valuable first; room for every node */
    size_t n_leaves, leaves_cap;
    size_t n_nodes;
    mx_bank_entry **states; /* [stats.n_states] the boundaries, in no order */
    size_t states_cap;
    mx_bank_node *settle; /* nodes whose tail page is to be copied when idle */
    mx_bank_stats stats;  /* bytes, n_pages, n_entries, n_states are kept up to date */
};

static const size_t NOT_A_LEAF = SIZE_MAX;

/* Where n tokens (1..64) belong among the children of a node. */
typedef struct mx_child_hit {
    size_t lower;       /* index of the first child not less than them (they may begin it) */
    mx_bank_node *best; /* a child that shares most tokens with them; NULL without children */
    uint32_t common;    /* how many, 0..n */
} mx_child_hit;

mx_child_hit mx_node_find(const mx_bank_node *at, const int32_t *tokens, uint32_t n);
/* The child in which an entry that ends behind `tokens` has its place: the first of those that
 * begin with them. NULL when there is none. */
mx_bank_node *mx_node_home(const mx_bank_node *at, const int32_t *tokens, uint32_t n);
mx_bank_entry *mx_node_entry(const mx_bank_node *node, uint32_t n_rows); /* or NULL */
uint32_t mx_tokens_common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b);

mx_bank_tree *mx_tree_get(const mx_bank *b, const mx_hash256 *root); /* or NULL */
mx_err mx_tree_add(mx_bank *b, const mx_hash256 *root, mx_bank_tree **out);
void mx_tree_drop_if_empty(mx_bank *b, mx_bank_tree *tree);

/* A new child with its own reference on the page; entries that now have their place in it move
 * over. The caller knows that neither is the beginning of the other for any sibling. */
mx_err mx_node_add(mx_bank *b, mx_bank_node *at, mx_page *page, uint32_t n_rows,
                   mx_bank_node **out);
/* Bytes that mx_node_add takes at most (the doubling of the children's array included). */
size_t mx_node_add_bytes(const mx_bank *b, const mx_bank_node *at);
/* The node holds another page (taking over the caller's reference) or more rows of the same one. */
void mx_node_set_page(mx_bank *b, mx_bank_node *node, mx_page *page, uint32_t n_rows);
/* Removes a leaf. Entries that a sibling can hold move there, the others are dropped and
 * counted. */
void mx_node_drop(mx_bank *b, mx_bank_node *node);
bool mx_node_is_pinned(const mx_bank_node *node); /* one of its entries is */
/* Counts a use of the node now. */
void mx_node_touch(mx_bank *b, mx_bank_node *node);
/* The node's rows or entries changed: its place in the eviction order may have, too. */
void mx_node_revalue(mx_bank *b, mx_bank_node *node);

size_t mx_entry_bytes(const mx_bank *b, const mx_bank_entry *e);
/* Of an entry that has been linked and unlinked again. */
void mx_entry_free(mx_bank *b, mx_bank_entry *e);
void mx_entry_touch(mx_bank_entry *e); /* counts a use now */

MX_INLINE bool mx_bank_has_states(const mx_bank *b)
{
    return mx_kv_pool_state_pages(b->pool) > 0;
}

/* bank_lookup.c */
/* A position in a tree: `common` tokens inside some child of `at`, behind n_tokens - common tokens
 * in whole pages. */
typedef struct mx_bank_place {
    mx_bank_node *at;
    size_t n_tokens;
    uint32_t common;
} mx_bank_place;

mx_bank_place mx_place_find(mx_bank_node *top, const int32_t *tokens, size_t n);
/* The place `limit` <= n_tokens tokens deep on the way to p. */
mx_bank_place mx_place_clip(mx_bank_place p, size_t limit);
mx_bank_entry *mx_place_entry(mx_bank_place p, const int32_t *tokens); /* exactly there, or NULL */
/* The nearest entry that goes on behind p by at most gap tokens, or NULL. */
mx_bank_entry *mx_place_near_entry(mx_bank_place p, const int32_t *tokens, uint32_t gap);
/* The greatest boundary at or before p, which ends at *n_tokens; NULL and 0 for none. */
mx_bank_entry *mx_place_boundary(mx_bank_place p, const int32_t *tokens, size_t *n_tokens);
/* What a prompt finds when at most `limit` tokens of it may be reused. */
void mx_bank_describe(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                      size_t limit, mx_bank_match *out);

/* bank_boundary.c */
/* The greatest boundary within the first n_rows rows of `node` or before it on its path, NULL for
 * none; *n_tokens is where it ends. */
mx_bank_entry *mx_boundary_before(const mx_bank_node *node, uint32_t n_rows, size_t *n_tokens);
/* The greatest one within the first `common` tokens below `at`, which some child begins with. */
mx_bank_entry *mx_boundary_below(const mx_bank_node *at, const int32_t *tokens, uint32_t common);
/* The list of boundaries; room for one more is made before. False: no memory. */
bool mx_boundary_reserve(mx_bank *b);
void mx_boundary_add(mx_bank *b, mx_bank_entry *e);
void mx_boundary_remove(mx_bank *b, mx_bank_entry *e);
/* Drops the boundary whose loss costs least and whose state nobody else uses. False: there is
 * none. */
bool mx_boundary_evict(mx_bank *b);

/* bank_window.c */
bool mx_bank_has_window(const mx_bank *b);
/* What the bank counts for a node: its page, without local where no entry holds that. */
size_t mx_node_bytes(const mx_bank *b, const mx_bank_node *node);
/* At most what an entry at n_tokens adds to that, whose page is at's or continues it. */
size_t mx_window_bytes(const mx_bank *b, const mx_bank_node *at, size_t n_tokens);
/* The entry, which ends in node, takes its holds. False: the rows that one could go on with from there
 * are not there, and nothing is held. True without windowed layers. */
bool mx_window_hold(mx_bank *b, mx_bank_node *node, mx_bank_entry *e);
void mx_window_release(mx_bank *b, mx_bank_entry *e);
/* The page of `to` gets local rows, if it does not have n_rows of them, from one that begins alike.
 * False: that one has not either, or the pool is exhausted. */
bool mx_window_give_rows(mx_bank *b, mx_bank_node *to, const mx_page *from, uint32_t n_rows);
/* `from` is about to go: the first n_rows of its local rows become those of `to`, a sibling that begins like
 * it, if that has none and nobody else holds them. No memory is needed. */
void mx_window_hand_on(mx_bank *b, mx_bank_node *to, mx_bank_node *from, uint32_t n_rows);
/* The entry is now of `to`, a sibling that begins with its tokens. False: it cannot be, and nothing
 * has changed. */
bool mx_window_move(mx_bank *b, mx_bank_node *to, mx_bank_entry *e);
/* The child of which most of the first `common` tokens are there for all layers, and how many; NULL
 * and 0 for none. */
mx_bank_node *mx_window_child(const mx_bank *b, const mx_bank_node *at, const int32_t *tokens,
                              uint32_t common, uint32_t *n_rows);
/* The greatest place at or before p from which one can go on. */
mx_bank_place mx_window_clip(const mx_bank *b, mx_bank_place p, const int32_t *tokens);

/* The eviction value that a page would have which was computed and used once, now. */
double mx_leaf_fresh_value(const mx_bank *b);
mx_bank_node *mx_leaf_pop(mx_bank *b); /* the least valuable leaf, off the heap; NULL = none */
void mx_leaf_push(mx_bank *b, mx_bank_node *node);
/* What its value_log2 has to be: computed anew, over the run that only this leaf leads to. */
double mx_leaf_value(const mx_bank *b, const mx_bank_node *node);

/* bank.c: a page from the pool, for which one leaf may be evicted; NULL when there is none. */
mx_page *mx_bank_take_page(mx_bank *b);
/* bank.c: the node's tail page is shared with somebody who appends to it; remember to copy it. */
void mx_bank_want_settle(mx_bank *b, mx_bank_node *node);

/* Visits all nodes of a tree below its top, parents first: start with the top, NULL at the end. */
mx_bank_node *mx_node_next(mx_bank_node *node);

#endif
