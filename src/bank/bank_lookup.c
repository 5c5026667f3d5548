/* SPDX-License-Identifier: MIT
 *
 * Finding the longest common prefix of a prompt with everything stored, and restoring it.
 *
 * Whole pages are followed from the root, by token equality. In the first page that differs, the
 * child that shares most tokens gives its first rows. Which of several equally good children does
 * is of no consequence: equal tokens, equal bits.
 */
#include "bank/bank_tree.h"

#include "base/clock.h"

#include <assert.h>

enum {
    /* Nodes that the search for a near prefix looks at. It only decides about a label. */
    NEAR_VISITS = 64
};

/* A position in a tree: `common` tokens inside some child of `at`, behind n_tokens - common tokens
 * in whole pages. */
typedef struct place {
    mx_bank_node *at;
    size_t n_tokens;
    uint32_t common;
} place;

static uint32_t page_part(size_t n_left)
{
    return (uint32_t)mx_min_size(n_left, MX_PAGE_TOKENS);
}

static place longest_prefix(mx_bank_node *top, const int32_t *tokens, size_t n)
{
    place p = {.at = top};
    while (p.n_tokens < n) {
        mx_child_hit hit = mx_node_find(p.at, tokens + p.n_tokens, page_part(n - p.n_tokens));
        p.n_tokens += hit.common;
        if (hit.common < MX_PAGE_TOKENS) {
            p.common = hit.common;
            break;
        }
        p.at = hit.best;
    }
    return p;
}

/* The place `limit` <= n_tokens tokens deep on the way to p. */
static place clip(place p, size_t limit)
{
    while (p.n_tokens - p.common > limit) {
        p.n_tokens -= p.common;
        p.common = MX_PAGE_TOKENS; /* all rows of p.at */
        p.at = p.at->parent;
    }
    p.common -= (uint32_t)(p.n_tokens - limit);
    p.n_tokens = limit;
    return p;
}

static mx_bank_entry *entry_at(place p, const int32_t *tokens)
{
    if (p.n_tokens == 0) {
        return NULL;
    }
    if (p.common == 0) {
        return mx_node_entry(p.at, MX_PAGE_TOKENS);
    }
    const mx_bank_node *home = mx_node_home(p.at, tokens + p.n_tokens - p.common, p.common);
    return home != NULL ? mx_node_entry(home, p.common) : NULL;
}

/* A node to look at, and how far behind the match its row 0 is (less than 0: before it). */
typedef struct visit {
    const mx_bank_node *node;
    int64_t base;
} visit;

static bool has_entry_within(const mx_bank_node *node, int64_t base, int64_t gap)
{
    for (const mx_bank_entry *e = node->entries; e != NULL; e = e->next) {
        if (base + e->n_rows > 0) {
            return base + e->n_rows <= gap;
        }
    }
    return false;
}

/* Does an entry go on behind p by at most gap tokens? */
static bool has_near_entry(place p, const int32_t *tokens, uint32_t gap)
{
    visit list[NEAR_VISITS];
    size_t n_list = 0;
    const int32_t *shared = tokens + p.n_tokens - p.common;
    size_t first = p.common > 0 ? mx_node_find(p.at, shared, p.common).lower : 0;
    for (size_t i = first; i < p.at->n_children && n_list < NEAR_VISITS; i++) {
        const mx_bank_node *child = p.at->children[i];
        if (mx_tokens_common(child->page->tokens, child->n_rows, shared, p.common) < p.common) {
            break;
        }
        list[n_list++] = (visit){child, -(int64_t)p.common};
    }
    for (size_t i = 0; i < n_list; i++) {
        visit v = list[i];
        if (has_entry_within(v.node, v.base, gap)) {
            return true;
        }
        int64_t next = v.base + MX_PAGE_TOKENS;
        for (size_t k = 0; next < gap && k < v.node->n_children && n_list < NEAR_VISITS; k++) {
            list[n_list++] = (visit){v.node->children[k], next};
        }
    }
    return false;
}

static mx_restore_kind kind_of(const mx_bank *b, place p, const int32_t *tokens)
{
    if (p.n_tokens == 0) {
        return MX_RESTORE_NONE;
    }
    if (entry_at(p, tokens) != NULL) {
        return MX_RESTORE_EXACT_PREFIX;
    }
    if (b->cfg.near_prefix_gap > 0 && has_near_entry(p, tokens, b->cfg.near_prefix_gap)) {
        return MX_RESTORE_NEAR_PREFIX;
    }
    return MX_RESTORE_STEM;
}

/* What a prompt finds when at most `limit` tokens of it may be reused. */
static void describe(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                     size_t limit, mx_bank_match *out)
{
    *out = (mx_bank_match){0};
    mx_bank_tree *tree = mx_tree_get(b, root);
    if (tree == NULL) {
        return;
    }
    place p = longest_prefix(&tree->top, tokens, n);
    if (p.n_tokens < n && p.n_tokens <= limit) {
        /* The rest of this page; p.common of its tokens are shared. */
        mx_child_hit hit = mx_node_find(p.at, tokens + p.n_tokens - p.common,
                                        page_part(n - p.n_tokens + p.common));
        out->diverged = hit.best != NULL && hit.best->n_rows > p.common;
        out->stored_token = out->diverged ? hit.best->page->tokens[p.common] : 0;
    }
    if (p.n_tokens > limit) {
        p = clip(p, limit);
    }
    out->n_tokens = p.n_tokens;
    out->n_full_pages = p.n_tokens / MX_PAGE_TOKENS;
    out->kind = kind_of(b, p, tokens);
    if (p.n_tokens == n) {
        const mx_bank_entry *e = entry_at(p, tokens);
        out->hidden = e != NULL ? e->hidden : NULL;
    }
}

void mx_bank_lookup(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                    mx_bank_match *out)
{
    describe(b, root, tokens, n, n, out);
}

/* ---- restoring -------------------------------------------------------------------------------- */

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
    mx_page *copy = mx_bank_take_page(b);
    if (copy != NULL) {
        mx_page_copy_rows(mx_kv_pool_shape(b->pool), copy->payload, from->payload, n_rows);
        mx_page_link(copy, seq->n_pages > 0 ? seq->pages[seq->n_pages - 1] : NULL, &seq->root,
                     from->tokens, n_rows);
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
        mx_child_hit hit = mx_node_find(at, next, page_part(limit - seq->n_tokens));
        if (hit.common == 0) {
            break;
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
    place p = longest_prefix(&tree->top, tokens, n);
    mx_bank_entry *e = p.n_tokens == n ? entry_at(p, tokens) : NULL;
    if (e != NULL) {
        e->n_hits++;
        e->used_us = mx_now_us();
    }
}

mx_err mx_bank_restore_cache(mx_bank *b, mx_seq *seq, const int32_t *tokens, size_t n,
                             size_t max_tokens, mx_bank_match *out)
{
    assert(seq->n_pages == 0 && seq->pool == b->pool);
    *out = (mx_bank_match){0};
    mx_bank_tree *tree = mx_tree_get(b, &seq->root);
    mx_err e = MX_OK;
    if (tree != NULL) {
        e = restore_pages(b, tree, seq, tokens, mx_min_size(n, max_tokens));
    }
    if (e != MX_OK && e != MX_E_FULL) {
        mx_seq_cut(seq, 0);
        return e;
    }
    if (seq->n_tokens > 0) {
        count_hit(tree, tokens, seq->n_tokens);
    }
    /* Last, because making room may have changed the tree and moved entries. */
    describe(b, &seq->root, tokens, n, seq->n_tokens, out);
    return e;
}
