/* SPDX-License-Identifier: MIT
 *
 * What people want to know about the bank: what is stored behind a common beginning.
 */
#include "bank/bank_tree.h"

size_t mx_bank_continuation(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens,
                            size_t n, int32_t *out, uint32_t cap, uint32_t *n_out)
{
    *n_out = 0;
    mx_bank_tree *tree = mx_tree_get(b, root);
    const mx_bank_node *at = tree != NULL ? &tree->top : NULL;
    size_t n_common = 0;
    while (at != NULL && n_common < n) {
        mx_child_hit hit =
            mx_node_find(at, tokens + n_common, (uint32_t)mx_min_size(n - n_common, MX_PAGE_TOKENS));
        n_common += hit.common;
        if (hit.common == MX_PAGE_TOKENS) {
            at = hit.best;
            continue;
        }
        /* To the end of this page, and into the first of those that follow it. */
        uint32_t row = hit.common;
        for (const mx_bank_node *p = hit.best; p != NULL && *n_out < cap; row = 0) {
            while (row < p->n_rows && *n_out < cap) {
                out[(*n_out)++] = p->page->tokens[row++];
            }
            p = p->n_children > 0 ? p->children[0] : NULL;
        }
        break;
    }
    return n_common;
}

/* ---- entries by name ------------------------------------------------------------------------- */

bool mx_node_is_pinned(const mx_bank_node *node)
{
    for (const mx_bank_entry *e = node->entries; e != NULL; e = e->next) {
        if (e->is_pinned) {
            return true;
        }
    }
    return false;
}

static mx_hash256 point_id(const mx_hash256 *root, const mx_page *page, uint32_t n_rows)
{
    if (n_rows == MX_PAGE_TOKENS) {
        return page->id;
    }
    return mx_page_identity(root, page->parent != NULL ? &page->parent->id : root, page->tokens,
                            n_rows);
}

mx_hash256 mx_bank_point_id(const mx_bank_point *point)
{
    return point_id(point->root, point->page,
                    (uint32_t)(point->n_tokens - (size_t)point->page->index * MX_PAGE_TOKENS));
}

typedef struct found {
    mx_bank_node *node;
    mx_bank_entry **link;
} found;

/* Walks everything: names are not an index of the bank, and people ask seldom. */
static found find_entry(mx_bank *b, const mx_hash256 *id, size_t *n_pinned)
{
    found f = {0};
    *n_pinned = 0;
    for (size_t i = 0; i < b->n_trees; i++) {
        mx_bank_tree *tree = b->trees[i];
        for (mx_bank_node *n = mx_node_next(&tree->top); n != NULL; n = mx_node_next(n)) {
            for (mx_bank_entry **link = &n->entries; *link != NULL; link = &(*link)->next) {
                mx_hash256 own = point_id(&tree->root, n->page, (*link)->n_rows);
                *n_pinned += (*link)->is_pinned ? (size_t)n->page->index + 1 : 0;
                if (mx_hash256_eq(&own, id)) {
                    f = (found){n, link};
                }
            }
        }
    }
    return f;
}

mx_err mx_bank_pin(mx_bank *b, const mx_hash256 *id, bool on, size_t max_pages)
{
    size_t n_pinned;
    found f = find_entry(b, id, &n_pinned);
    if (f.node == NULL) {
        return MX_E_NOT_FOUND;
    }
    if (on && !(*f.link)->is_pinned && n_pinned + (size_t)f.node->page->index + 1 > max_pages) {
        return MX_E_FULL;
    }
    (*f.link)->is_pinned = on;
    return MX_OK;
}

/* Drops the node and those above it as far as nothing needs them. */
static void prune(mx_bank *b, mx_bank_node *node)
{
    while (node->parent != NULL && node->n_children == 0 && node->entries == NULL
           && node->page->refs == 1)
    {
        mx_bank_node *above = node->parent;
        bool is_last = above->parent == NULL; /* its tree may go with it */
        mx_node_drop(b, node);
        if (is_last) {
            return;
        }
        node = above;
    }
}

static void drop_entry(mx_bank *b, mx_bank_entry **link)
{
    mx_bank_entry *e = *link;
    *link = e->next;
    mx_entry_free(b, e);
    b->stats.evicted_entries++;
}

mx_err mx_bank_forget(mx_bank *b, const mx_hash256 *id)
{
    size_t n_pinned;
    found f = find_entry(b, id, &n_pinned);
    if (f.node == NULL) {
        return MX_E_NOT_FOUND;
    }
    drop_entry(b, f.link);
    mx_node_revalue(b, f.node);
    prune(b, f.node);
    return MX_OK;
}

mx_err mx_bank_forget_chain(mx_bank *b, const mx_hash256 *id)
{
    size_t n_pinned;
    found f = find_entry(b, id, &n_pinned);
    if (f.node == NULL) {
        return MX_E_NOT_FOUND;
    }
    uint32_t n_rows = (*f.link)->n_rows;
    drop_entry(b, f.link);
    for (mx_bank_node *n = f.node; n->parent != NULL; n = n->parent) {
        mx_bank_entry **link = &n->entries;
        while (*link != NULL) {
            if ((*link)->is_pinned || (n == f.node && (*link)->n_rows > n_rows)) {
                link = &(*link)->next;
            } else {
                drop_entry(b, link);
            }
        }
        mx_node_revalue(b, n);
    }
    prune(b, f.node);
    return MX_OK;
}

void mx_bank_forget_all(mx_bank *b)
{
    for (size_t i = 0; i < b->n_trees; i++) {
        mx_bank_node *top = &b->trees[i]->top;
        for (mx_bank_node *n = mx_node_next(top); n != NULL; n = mx_node_next(n)) {
            for (mx_bank_entry *e = n->entries; e != NULL; e = e->next) {
                e->is_pinned = false;
            }
        }
    }
    mx_bank_clear(b);
}
