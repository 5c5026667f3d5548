/* SPDX-License-Identifier: MIT
 *
 * The bank's invariants, walked in full. Debug builds only.
 */
#include "bank/bank_tree.h"

#ifdef MX_CHECK

#include <stdio.h>
#include <stdlib.h>

static void require(bool ok, const mx_bank_node *node, const char *what)
{
    if (!ok) {
        fprintf(stderr, "mx_bank_check: node %p (page %lld, %u rows): %s\n", (const void *)node,
                node != NULL && node->page != NULL ? (long long)node->page->index : -1,
                node != NULL ? node->n_rows : 0, what);
        abort();
    }
}

/* Sorted, no child begins with another, every entry at home. */
static void check_children(const mx_bank_node *at)
{
    require(at->n_children <= at->children_cap, at, "more children than room");
    for (size_t i = 0; i < at->n_children; i++) {
        const mx_bank_node *child = at->children[i];
        require(child->parent == at && child->tree == at->tree, child, "wrong parent node");
        uint32_t common = 0;
        if (i > 0) {
            const mx_bank_node *left = at->children[i - 1];
            common = mx_tokens_common(left->page->tokens, left->n_rows, child->page->tokens,
                                      child->n_rows);
            require(common < left->n_rows && common < child->n_rows, child,
                    "one sibling is the beginning of the other");
            require(left->page->tokens[common] < child->page->tokens[common], child, "not sorted");
        }
        uint32_t before = 0;
        for (const mx_bank_entry *e = child->entries; e != NULL; e = e->next) {
            require(e->n_rows > before && e->n_rows <= child->n_rows, child,
                    "entries out of order");
            require(e->n_rows > common, child, "an entry belongs into the sibling to the left");
            before = e->n_rows;
        }
    }
}

static void check_page(const mx_bank_node *node)
{
    const mx_page *page = node->page;
    const mx_page *parent = node->parent->page;
    require(page->owner == node, node, "the page does not know its node");
    require(page->refs > 0, node, "the page is free");
    require(node->n_rows > 0 && node->n_rows <= page->n_rows, node, "more rows than the page has");
    require(page->parent == parent, node, "the page hangs on another parent");
    require(page->index == (parent != NULL ? parent->index + 1 : 0), node, "wrong index");
    if (node->n_rows == MX_PAGE_TOKENS) {
        const mx_hash256 *root = &node->tree->root;
        mx_hash256 id = mx_page_identity(root, parent != NULL ? &parent->id : root, page->tokens,
                                         MX_PAGE_TOKENS);
        require(mx_hash256_eq(&id, &page->id), node, "wrong identity");
    } else {
        require(node->n_children == 0, node, "a partial page has children");
    }
}

static void check_leaf(const mx_bank *b, const mx_bank_node *node)
{
    size_t i = node->heap_at;
    require((i != NOT_A_LEAF) == (node->n_children == 0), node, "a leaf is missing in the heap");
    if (i != NOT_A_LEAF) {
        require(i < b->n_leaves && b->leaves[i] == node, node, "wrong place in the heap");
        require(i == 0 || b->leaves[(i - 1) / 2]->value_log2 <= node->value_log2, node,
                "heap order");
        /* Both the same arithmetic on the same numbers, so the bits are compared. */
        const double value = mx_leaf_value(b, node);
        require(memcmp(&value, &node->value_log2, sizeof value) == 0, node, "a stale value");
    }
}

/* Each entry has a state exactly when the shape has states, and it is that of its position. */
static void check_state(const mx_bank *b, const mx_bank_node *node, const mx_bank_entry *e)
{
    require((e->state != NULL) == mx_bank_has_states(b), node, "a state too many or too few");
    require(e->state != NULL || e->kind != MX_ENTRY_POINT || mx_bank_has_window(b), node,
            "a point without a state");
    if (e->state != NULL) {
        size_t at = (size_t)node->page->index * MX_PAGE_TOKENS + e->n_rows;
        require(e->state->refs > 0 && e->state->n_tokens == at, node, "state of another position");
        require(e->node == node, node, "a boundary does not know its node");
        require(e->state_at < b->stats.n_states && b->states[e->state_at] == e, node,
                "a boundary is not in the list");
    }
}

/* Each entry holds the local rows of its window, and nobody else does for the bank. */
static void check_windows(const mx_bank *b, mx_bank_tree *tree)
{
    const mx_kv_shape *s = mx_kv_pool_shape(b->pool);
    for (mx_bank_node *n = mx_node_next(&tree->top); n != NULL; n = mx_node_next(n)) {
        for (const mx_bank_entry *e = n->entries; e != NULL; e = e->next) {
            size_t n_tokens = (size_t)n->page->index * MX_PAGE_TOKENS + e->n_rows;
            require(e->node == n, n, "an entry does not know its node");
            require((e->first_held != SIZE_MAX) == mx_bank_has_window(b), n, "holds too many or few");
            if (e->first_held == SIZE_MAX) {
                continue;
            }
            require(e->first_held <= mx_kv_first_seen(s, n_tokens), n, "an entry holds too little");
            require(mx_page_has_local(s, n->page, e->n_rows), n, "the rows of an entry are gone");
            for (mx_bank_node *at = n; at->page != NULL && at->page->index >= e->first_held;
                 at = at->parent)
            {
                at->n_seen++;
                require(at == n || mx_page_has_local(s, at->page, MX_PAGE_TOKENS), at,
                        "the rows of an entry are gone");
            }
        }
    }
    for (mx_bank_node *n = mx_node_next(&tree->top); n != NULL; n = mx_node_next(n)) {
        require(n->n_seen == n->n_needs, n, "count of the entries that hold its rows");
    }
}

void mx_bank_check(const mx_bank *b)
{
    size_t n_nodes = 0, n_leaves = 0, n_entries = 0, n_settle = 0;
    size_t bytes = (b->trees_cap + b->leaves_cap + b->states_cap) * sizeof(void *);
    for (size_t i = 0; i < b->n_trees; i++) {
        mx_bank_tree *tree = b->trees[i];
        require(i == 0 || memcmp(b->trees[i - 1]->root.b, tree->root.b, 32) < 0, NULL,
                "trees out of order");
        require(tree->top.n_children > 0 && !tree->is_in_use, NULL, "an empty tree");
        bytes += sizeof *tree + tree->top.children_cap * sizeof(void *);
        check_children(&tree->top);
        for (mx_bank_node *n = mx_node_next(&tree->top); n != NULL; n = mx_node_next(n)) {
            n_nodes++;
            n_leaves += n->n_children == 0;
            n_settle += n->wants_settle;
            bytes += mx_node_bytes(b, n) + n->children_cap * sizeof(void *);
            check_page(n);
            require(n->n_needs == 0 || n->page->local_refs > 0, n, "local rows that are not held");
            n->n_seen = 0;
            check_children(n);
            check_leaf(b, n);
            for (const mx_bank_entry *e = n->entries; e != NULL; e = e->next) {
                n_entries++;
                bytes += mx_entry_bytes(b, e);
                check_state(b, n, e);
            }
        }
        check_windows(b, tree);
    }
    for (const mx_bank_node *n = b->settle; n != NULL; n = n->settle_next) {
        require(n->wants_settle && n_settle-- > 0, n, "stray node on the settle list");
    }
    require(n_settle == 0, NULL, "a node is missing on the settle list");
    require(n_nodes == b->n_nodes && n_nodes == b->stats.n_pages, NULL, "count of pages");
    require(n_leaves == b->n_leaves && n_nodes <= b->leaves_cap, NULL, "count of leaves");
    require(n_entries == b->stats.n_entries, NULL, "count of entries");
    require(b->stats.n_states == (mx_bank_has_states(b) ? n_entries : 0), NULL, "count of states");
    require(bytes == b->stats.bytes, NULL, "count of bytes");
}
#else
void mx_bank_check(const mx_bank *b)
{
    (void)b;
}
#endif
