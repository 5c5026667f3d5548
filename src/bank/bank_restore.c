/* SPDX-License-Identifier: MIT
 *
 * Restoring: a sequence gets references on the pages of a prompt's beginning, and its state where the
 * shape has one.
 *
 * A state and the pages before it belong together. So a boundary is chosen first, its state is held,
 * and pages are then taken up to exactly there; where that fails, nothing of it stays and the next
 * smaller boundary is tried.
 */
#include "bank/bank_tree.h"

#include "base/clock.h"

#include <assert.h>

/* May the sequence go on in the stored page itself? All of it must be used, and nobody else may
 * write behind it. With eager snapshots (lazy_snapshot off) the bank's tails stay the bank's. */
static bool may_take_over(const mx_bank *b, mx_bank_node *node, uint32_t n_rows)
{
    mx_page *page = node->page;
    if (!b->cfg.lazy_snapshot || node->n_rows != n_rows || page->has_appender) {
        return false;
    }
    if (page->refs == 1 && page->n_rows > n_rows) {
        /* A sequence that is gone wrote on behind what is stored. */
        page->n_rows = n_rows;
    }
    return page->n_rows == n_rows;
}

/* A page with the first n_rows rows of the node's, continuing the sequence. */
static mx_page *copy_tail(mx_bank *b, const mx_seq *seq, mx_bank_node *node, uint32_t n_rows)
{
    mx_page *from = mx_page_ref(node->page); /* making room must not evict it */
    const bool is_held = mx_page_has_local(mx_kv_pool_shape(b->pool), from, n_rows);
    if (is_held) {
        mx_page_hold_local(from);
    }
    mx_page *copy = mx_bank_take_page(b);
    if (copy != NULL) {
        mx_page_copy(b->pool, copy, from, n_rows);
        mx_page_link(copy, seq->n_pages > 0 ? seq->pages[seq->n_pages - 1] : NULL, &seq->root,
                     from->tokens, n_rows);
    }
    if (is_held) {
        mx_page_drop_local(b->pool, from);
    }
    mx_page_unref(b->pool, from);
    return copy;
}

/* Gives the sequence the first n_rows rows of a child of the node it ends at. */
static mx_err restore_tail(mx_bank *b, mx_seq *seq, mx_bank_node *node, uint32_t n_rows)
{
    mx_page *page;
    bool is_shared = may_take_over(b, node, n_rows);
    if (is_shared) {
        page = mx_page_ref(node->page);
        mx_bank_want_settle(b, node);
    } else {
        page = copy_tail(b, seq, node, n_rows);
        if (page == NULL) {
            return MX_E_FULL;
        }
    }
    mx_err e = mx_seq_push_page(seq, page, n_rows);
    if (e != MX_OK) {
        mx_page_unref(b->pool, page);
    }
    return e;
}

static mx_err restore_pages(mx_bank *b, mx_bank_tree *tree, mx_seq *seq, const int32_t *tokens,
                            size_t limit)
{
    mx_bank_node *at = &tree->top;
    while (seq->n_tokens < limit) {
        const int32_t *next = tokens + seq->n_tokens;
        uint32_t n_next = (uint32_t)mx_min_size(limit - seq->n_tokens, MX_PAGE_TOKENS);
        mx_child_hit hit = mx_node_find(at, next, n_next);
        if (hit.common == 0) {
            break;
        }
        if (hit.common < MX_PAGE_TOKENS && mx_bank_has_window(b)) {
            uint32_t n_rows;
            mx_bank_node *child = mx_window_child(b, at, next, hit.common, &n_rows);
            if (n_rows == hit.common) {
                hit.best = child;
            }
        }
        mx_node_touch(b, hit.best);
        if (hit.common < MX_PAGE_TOKENS) {
            return restore_tail(b, seq, hit.best, hit.common);
        }
        mx_err e = mx_seq_push_page(seq, mx_page_ref(hit.best->page), MX_PAGE_TOKENS);
        if (e != MX_OK) {
            mx_page_unref(b->pool, hit.best->page);
            return e;
        }
        at = hit.best;
    }
    return MX_OK;
}

static void count_hit(mx_bank_tree *tree, const int32_t *tokens, size_t n)
{
    mx_bank_place p = mx_place_find(&tree->top, tokens, n);
    mx_bank_entry *e = p.n_tokens == n ? mx_place_entry(p, tokens) : NULL;
    if (e != NULL) {
        e->n_hits++;
        e->used_us = mx_now_us();
        if (e->state != NULL) {
            mx_entry_touch(e);
        }
    }
}

/* Nothing of what was pushed stays; the sequence is as it was initialised. */
static void empty(mx_seq *seq)
{
    mx_kv_pool *pool = seq->pool;
    mx_hash256 root = seq->root;
    mx_seq_free(seq);
    mx_seq_init(seq, pool, &root);
}

/* Pages for exactly n tokens, which the tree has, and the state, whose reference is taken over on
 * success. On failure the sequence is empty. */
static mx_err restore_whole(mx_bank *b, mx_bank_tree *tree, mx_seq *seq, const int32_t *tokens,
                            size_t n, mx_kvstate *state)
{
    mx_err e = restore_pages(b, tree, seq, tokens, n);
    assert(e != MX_OK || seq->n_tokens == n);
    if (e == MX_OK) {
        e = mx_seq_set_state(seq, state);
    }
    if (e != MX_OK) {
        empty(seq);
    }
    return e;
}

/* The greatest boundary within the first n tokens that can be had. */
static mx_err restore_boundary(mx_bank *b, mx_bank_tree *tree, mx_seq *seq, const int32_t *tokens,
                               size_t n)
{
    mx_err first = MX_OK;
    tree->is_in_use = true;
    for (;;) {
        size_t at;
        mx_bank_place p = mx_place_find(&tree->top, tokens, n);
        mx_bank_entry *entry = mx_place_boundary(p, tokens, &at);
        if (entry == NULL) {
            break;
        }
        mx_kvstate *state = mx_kvstate_ref(entry->state); /* making room must not evict it */
        mx_err e = restore_whole(b, tree, seq, tokens, at, state);
        if (e == MX_OK) {
            break;
        }
        mx_kvstate_unref(b->pool, state);
        if (e != MX_E_FULL) {
            first = e;
            break;
        }
        first = e;
        n = at - 1;
    }
    tree->is_in_use = false;
    mx_tree_drop_if_empty(b, tree);
    return first;
}

/* The greatest place within the first n tokens from which one can go on. */
static mx_err restore_window(mx_bank *b, mx_bank_tree *tree, mx_seq *seq, const int32_t *tokens,
                             size_t n)
{
    mx_err first = MX_OK;
    tree->is_in_use = true;
    for (;;) {
        mx_bank_place p = mx_window_clip(b, mx_place_find(&tree->top, tokens, n), tokens);
        mx_err e = restore_pages(b, tree, seq, tokens, p.n_tokens);
        first = first == MX_OK ? e : first;
        if ((e != MX_OK && e != MX_E_FULL) || mx_seq_can_go_on(seq)) {
            break;
        }
        /* There is no room for the tail, and the whole pages before it do not do. */
        assert(seq->n_tokens < p.n_tokens);
        n = seq->n_tokens;
        empty(seq);
    }
    tree->is_in_use = false;
    mx_tree_drop_if_empty(b, tree);
    return first;
}

/* approximate_restore: the state of a boundary a little behind what is shared, for what is shared.
 * False: the exact way, which gives as much, or there is no such boundary, or no room. */
static bool restore_near(mx_bank *b, mx_bank_tree *tree, mx_seq *seq, const int32_t *tokens,
                         size_t n)
{
    mx_bank_place p = mx_place_find(&tree->top, tokens, n);
    if (p.n_tokens == 0 || mx_place_entry(p, tokens) != NULL) {
        return false;
    }
    mx_bank_entry *later = mx_place_near_entry(p, tokens, b->cfg.near_prefix_gap);
    if (later == NULL) {
        return false;
    }
    mx_entry_touch(later);
    mx_kvstate *from = mx_kvstate_ref(later->state);
    /* Holding the pages first, or making room for the copy could cost them. */
    tree->is_in_use = true;
    bool is_done = restore_pages(b, tree, seq, tokens, p.n_tokens) == MX_OK;
    if (is_done) {
        (void)mx_bank_evict(b, mx_kv_pool_state_pages(b->pool));
        mx_kvstate *copy = mx_kvstate_alloc(b->pool);
        is_done = copy != NULL;
        if (is_done) {
            memcpy(copy->data, from->data, mx_kv_pool_shape(b->pool)->state_bytes);
            copy->n_tokens = p.n_tokens;
            is_done = mx_seq_set_state(seq, copy) == MX_OK;
        }
    }
    if (!is_done) {
        empty(seq);
    }
    mx_kvstate_unref(b->pool, from);
    tree->is_in_use = false;
    mx_tree_drop_if_empty(b, tree);
    return is_done;
}

mx_err mx_bank_restore_cache(mx_bank *b, mx_seq *seq, const int32_t *tokens, size_t n,
                             size_t max_tokens, mx_bank_match *out)
{
    assert(seq->n_pages == 0 && seq->pool == b->pool);
    *out = (mx_bank_match){0};
    mx_bank_tree *tree = mx_tree_get(b, &seq->root);
    mx_err e = MX_OK;
    size_t limit = mx_min_size(n, max_tokens);
    bool is_near = false;
    if (tree != NULL && mx_bank_has_states(b)) {
        is_near = b->cfg.approximate_restore && restore_near(b, tree, seq, tokens, limit);
        e = is_near ? MX_OK : restore_boundary(b, tree, seq, tokens, limit);
    } else if (tree != NULL && mx_bank_has_window(b)) {
        e = restore_window(b, tree, seq, tokens, limit);
    } else if (tree != NULL) {
        e = restore_pages(b, tree, seq, tokens, limit);
    }
    if (e != MX_OK && e != MX_E_FULL) {
        empty(seq);
        return e;
    }
    if (seq->n_tokens > 0 && !is_near) {
        count_hit(tree, tokens, seq->n_tokens);
    }
    /* Last, because making room may have changed the tree and moved entries. */
    mx_bank_describe(b, &seq->root, tokens, n, seq->n_tokens, out);
    if (mx_bank_has_window(b)) {
        out->n_tokens = seq->n_tokens;
        out->n_full_pages = seq->n_tokens / MX_PAGE_TOKENS;
        bool is_short = out->kind == MX_RESTORE_STEM && seq->n_tokens < mx_min_size(limit, out->n_shared);
        out->kind = is_short ? MX_RESTORE_BOUNDARY : out->kind;
    }
    if (is_near) {
        out->n_tokens = seq->n_tokens;
        out->n_full_pages = seq->n_tokens / MX_PAGE_TOKENS;
        out->kind = MX_RESTORE_NEAR_PREFIX;
        out->is_approximate = true;
    }
    return e;
}

mx_err mx_bank_hold_pages(mx_bank *b, mx_seq *seq, const int32_t *tokens, size_t n_pages)
{
    assert(seq->n_pages == 0 && seq->pool == b->pool);
    mx_bank_tree *tree = mx_tree_get(b, &seq->root);
    mx_err e = tree != NULL ? restore_pages(b, tree, seq, tokens, n_pages * MX_PAGE_TOKENS) : MX_OK;
    if (e != MX_OK) {
        empty(seq);
    }
    return e;
}

mx_err mx_bank_restore_at(mx_bank *b, mx_seq *seq, const int32_t *tokens, size_t n,
                          mx_kvstate *state)
{
    assert(seq->n_pages == 0 && seq->pool == b->pool && n > 0);
    mx_bank_tree *tree = mx_tree_get(b, &seq->root);
    if (tree == NULL || mx_place_find(&tree->top, tokens, n).n_tokens < n) {
        return MX_E_NOT_FOUND;
    }
    tree->is_in_use = true;
    mx_err e = restore_whole(b, tree, seq, tokens, n, state);
    tree->is_in_use = false;
    mx_tree_drop_if_empty(b, tree);
    return e;
}
