/* SPDX-License-Identifier: MIT
 *
 * Finding the longest common prefix of a prompt with everything stored, and restoring it.
 *
 * Whole pages are followed from the root, by token equality. In the first page that differs, the
 * child that shares most tokens gives its first rows. Which of several equally good children does
 * is of no consequence: equal tokens, equal bits. With states the way then goes back, to the last
 * boundary on it (bank_restore.c).
 */
#include "bank/bank_tree.h"

#include <assert.h>

enum {
    /* Nodes that the search for a near prefix looks at. It only decides about a label. */
    NEAR_VISITS = 64
};

static uint32_t page_part(size_t n_left)
{
    return (uint32_t)mx_min_size(n_left, MX_PAGE_TOKENS);
}

mx_bank_place mx_place_find(mx_bank_node *top, const int32_t *tokens, size_t n)
{
    mx_bank_place p = {.at = top};
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

mx_bank_place mx_place_clip(mx_bank_place p, size_t limit)
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

mx_bank_entry *mx_place_entry(mx_bank_place p, const int32_t *tokens)
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

static mx_bank_entry *entry_within(const mx_bank_node *node, int64_t base, int64_t gap)
{
    for (mx_bank_entry *e = node->entries; e != NULL; e = e->next) {
        if (base + e->n_rows > 0) {
            return base + e->n_rows <= gap ? e : NULL;
        }
    }
    return NULL;
}

mx_bank_entry *mx_place_near_entry(mx_bank_place p, const int32_t *tokens, uint32_t gap)
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
        mx_bank_entry *e = entry_within(v.node, v.base, gap);
        if (e != NULL) {
            return e;
        }
        int64_t next = v.base + MX_PAGE_TOKENS;
        for (size_t k = 0; next < gap && k < v.node->n_children && n_list < NEAR_VISITS; k++) {
            list[n_list++] = (visit){v.node->children[k], next};
        }
    }
    return NULL;
}

mx_bank_entry *mx_place_boundary(mx_bank_place p, const int32_t *tokens, size_t *n_tokens)
{
    size_t n_whole = p.n_tokens - p.common;
    mx_bank_entry *e =
        p.common > 0 ? mx_boundary_below(p.at, tokens + n_whole, p.common) : NULL;
    if (e != NULL) {
        *n_tokens = n_whole + e->n_rows;
        return e;
    }
    return mx_boundary_before(p.at, MX_PAGE_TOKENS, n_tokens);
}

static mx_restore_kind kind_of(const mx_bank *b, mx_bank_place p, const int32_t *tokens)
{
    if (p.n_tokens == 0) {
        return MX_RESTORE_NONE;
    }
    const mx_bank_entry *e = mx_place_entry(p, tokens);
    if (e != NULL) {
        return e->kind == MX_ENTRY_POINT ? MX_RESTORE_BOUNDARY : MX_RESTORE_EXACT_PREFIX;
    }
    if (b->cfg.near_prefix_gap > 0 && mx_place_near_entry(p, tokens, b->cfg.near_prefix_gap)) {
        return MX_RESTORE_NEAR_PREFIX;
    }
    return MX_RESTORE_STEM;
}

void mx_bank_describe(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                      size_t limit, mx_bank_match *out)
{
    *out = (mx_bank_match){0};
    mx_bank_tree *tree = mx_tree_get(b, root);
    if (tree == NULL) {
        return;
    }
    mx_bank_place p = mx_place_find(&tree->top, tokens, n);
    out->n_shared = p.n_tokens;
    if (p.n_tokens < n
        && (p.n_tokens <= limit || mx_bank_has_states(b) || mx_bank_has_window(b)))
    {
        /* The rest of this page; p.common of its tokens are shared. */
        mx_child_hit hit = mx_node_find(p.at, tokens + p.n_tokens - p.common,
                                        page_part(n - p.n_tokens + p.common));
        out->diverged = hit.best != NULL && hit.best->n_rows > p.common;
        out->stored_token = out->diverged ? hit.best->page->tokens[p.common] : 0;
    }
    if (p.n_tokens > limit) {
        p = mx_place_clip(p, limit);
    }
    if (mx_bank_has_states(b)) {
        size_t boundary;
        (void)mx_place_boundary(p, tokens, &boundary);
        p = mx_place_clip(p, boundary);
    }
    const size_t n_most = p.n_tokens;
    if (mx_bank_has_window(b)) {
        p = mx_window_clip(b, p, tokens);
    }
    out->n_tokens = p.n_tokens;
    out->n_full_pages = p.n_tokens / MX_PAGE_TOKENS;
    out->kind = kind_of(b, p, tokens);
    if (p.n_tokens < n_most && out->kind == MX_RESTORE_STEM) {
        out->kind = MX_RESTORE_BOUNDARY;
    }
    if (p.n_tokens == n) {
        const mx_bank_entry *e = mx_place_entry(p, tokens);
        out->hidden = e != NULL ? e->hidden : NULL;
    }
}

void mx_bank_lookup(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                    mx_bank_match *out)
{
    mx_bank_describe(b, root, tokens, n, n, out);
}
