/* SPDX-License-Identifier: MIT
 *
 * Nodes, their sorted children, and the heap of leaves that gives the order of eviction.
 *
 * An entry that ends inside a page could be kept in any sibling that begins with its tokens. It is
 * always kept in the first of them, so that it can be found again and never exists twice. When a
 * sibling comes or goes, entries move to or from the right-hand neighbour only.
 *
 *   children:   [ 5 1 .. ]  [ 5 2 7 .. ]  [ 5 2 9 .. ]     an entry that ends behind "5 2" lives
 *                                ^                         in the second child; if that is evicted,
 *                                                          the third takes it
 */
#include "bank/bank_tree.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <math.h>

/* Uses count half after this time: a bit longer than a person's pause in a conversation. A guess,
 * 2026-11; to be measured on traces. */
static const double use_half_life_us = 30.0 * 60.0 * 1e6;

/* Grows one of the index's arrays of pointers, which the budget counts. */
static bool grow_counted(mx_bank *b, void **array, size_t *cap, size_t need)
{
    size_t old_cap = *cap;
    bool ok = mx_grow(array, cap, need, sizeof(void *));
    b->stats.bytes += (*cap - old_cap) * sizeof(void *);
    return ok;
}

/* ---- children --------------------------------------------------------------------------------- */

uint32_t mx_tokens_common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
    uint32_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* Is the child less than the tokens? A child that they begin is not; one that begins them is. */
static bool is_less(const mx_bank_node *child, const int32_t *tokens, uint32_t n)
{
    uint32_t c = mx_tokens_common(child->page->tokens, child->n_rows, tokens, n);
    if (c == n) {
        return false;
    }
    return c == child->n_rows || child->page->tokens[c] < tokens[c];
}

static size_t lower_bound(const mx_bank_node *at, const int32_t *tokens, uint32_t n)
{
    size_t lo = 0, hi = at->n_children;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (is_less(at->children[mid], tokens, n)) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

mx_child_hit mx_node_find(const mx_bank_node *at, const int32_t *tokens, uint32_t n)
{
    mx_child_hit hit = {.lower = lower_bound(at, tokens, n)};
    for (size_t i = hit.lower > 0 ? hit.lower - 1 : 0; i <= hit.lower && i < at->n_children; i++) {
        mx_bank_node *child = at->children[i];
        uint32_t c = mx_tokens_common(child->page->tokens, child->n_rows, tokens, n);
        if (hit.best == NULL || c > hit.common ||
            (c == hit.common && child->use_log2 > hit.best->use_log2))
        {
            hit.best = child;
            hit.common = c;
        }
    }
    return hit;
}

mx_bank_node *mx_node_home(const mx_bank_node *at, const int32_t *tokens, uint32_t n)
{
    size_t i = lower_bound(at, tokens, n);
    if (i == at->n_children) {
        return NULL;
    }
    mx_bank_node *child = at->children[i];
    return mx_tokens_common(child->page->tokens, child->n_rows, tokens, n) == n ? child : NULL;
}

mx_bank_entry *mx_node_entry(const mx_bank_node *node, uint32_t n_rows)
{
    mx_bank_entry *e = node->entries;
    while (e != NULL && e->n_rows < n_rows) {
        e = e->next;
    }
    return e != NULL && e->n_rows == n_rows ? e : NULL;
}

mx_bank_node *mx_node_next(mx_bank_node *node)
{
    node->walk_at = 0;
    while (node->walk_at == node->n_children) {
        node = node->parent;
        if (node == NULL) {
            return NULL;
        }
    }
    return node->children[node->walk_at++];
}

/* ---- trees ------------------------------------------------------------------------------------ */

static size_t tree_place(const mx_bank *b, const mx_hash256 *root)
{
    size_t lo = 0, hi = b->n_trees;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (memcmp(b->trees[mid]->root.b, root->b, sizeof root->b) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

mx_bank_tree *mx_tree_get(const mx_bank *b, const mx_hash256 *root)
{
    size_t i = tree_place(b, root);
    return i < b->n_trees && mx_hash256_eq(&b->trees[i]->root, root) ? b->trees[i] : NULL;
}

mx_err mx_tree_add(mx_bank *b, const mx_hash256 *root, mx_bank_tree **out)
{
    void *array = b->trees;
    if (!grow_counted(b, &array, &b->trees_cap, b->n_trees + 1)) {
        return MX_E_NOMEM;
    }
    b->trees = array;
    mx_bank_tree *tree = mx_calloc(1, sizeof *tree);
    if (tree == NULL) {
        return MX_E_NOMEM;
    }
    tree->root = *root;
    tree->top.tree = tree;
    tree->top.heap_at = NOT_A_LEAF;
    size_t i = tree_place(b, root);
    memmove(b->trees + i + 1, b->trees + i, (b->n_trees - i) * sizeof *b->trees);
    b->trees[i] = tree;
    b->n_trees++;
    b->stats.bytes += sizeof *tree;
    *out = tree;
    return MX_OK;
}

void mx_tree_drop_if_empty(mx_bank *b, mx_bank_tree *tree)
{
    if (tree->is_in_use || tree->top.n_children > 0) {
        return;
    }
    size_t i = tree_place(b, &tree->root);
    assert(b->trees[i] == tree);
    memmove(b->trees + i, b->trees + i + 1, (b->n_trees - i - 1) * sizeof *b->trees);
    b->n_trees--;
    b->stats.bytes -= sizeof *tree + tree->top.children_cap * sizeof(mx_bank_node *);
    mx_free(tree->top.children);
    mx_free(tree);
}

/* ---- the heap of leaves ----------------------------------------------------------------------- */

static void put(mx_bank *b, size_t i, mx_bank_node *node)
{
    b->leaves[i] = node;
    node->heap_at = i;
}

static void sift_up(mx_bank *b, size_t i)
{
    mx_bank_node *node = b->leaves[i];
    while (i > 0 && b->leaves[(i - 1) / 2]->value_log2 > node->value_log2) {
        put(b, i, b->leaves[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(b, i, node);
}

static void sift_down(mx_bank *b, size_t i)
{
    mx_bank_node *node = b->leaves[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= b->n_leaves) {
            break;
        }
        if (child + 1 < b->n_leaves &&
            b->leaves[child + 1]->value_log2 < b->leaves[child]->value_log2)
        {
            child++;
        }
        if (b->leaves[child]->value_log2 >= node->value_log2) {
            break;
        }
        put(b, i, b->leaves[child]);
        i = child;
    }
    put(b, i, node);
}

static void leaf_remove(mx_bank *b, mx_bank_node *node)
{
    size_t i = node->heap_at;
    if (i == NOT_A_LEAF) {
        return;
    }
    node->heap_at = NOT_A_LEAF;
    mx_bank_node *last = b->leaves[--b->n_leaves];
    if (last != node) {
        put(b, i, last);
        sift_up(b, i);
        sift_down(b, last->heap_at);
    }
}

mx_bank_node *mx_leaf_pop(mx_bank *b)
{
    mx_bank_node *node = b->n_leaves > 0 ? b->leaves[0] : NULL;
    if (node != NULL) {
        leaf_remove(b, node);
    }
    return node;
}

/* Tokens of the path that nothing but this leaf needs: from the last branching on. Counted up to a
 * bound, behind which twice as much is no reason any more, so that a walk stays short. */
static size_t run_tokens(const mx_bank_node *leaf)
{
    enum { MAX_PAGES = 512 };
    size_t n = leaf->n_rows;
    for (int i = 0; i < MAX_PAGES && leaf->parent->page != NULL && leaf->parent->n_children == 1; i++)
    {
        leaf = leaf->parent;
        n += leaf->n_rows;
    }
    return n;
}

/* Value of a leaf = time to recompute x decayed uses / bytes. All uses decay at the same rate, so
 * the order of two leaves does not change while time passes; with logarithms and the time of a use
 * added instead of the age subtracted, a value can be computed once and kept in a heap.
 *
 * What is recomputed is not the leaf's rows alone but all that only this leaf leads to: eviction that
 * has begun at the end of a run goes on along it, and per row a run of 6,000 tokens would be worth
 * what a page of any small request is, so that age alone would decide
 * (docs/decisions/0012-eviction-value.md). A stem that other branches hold does not count. */
double mx_leaf_value(const mx_bank *b, const mx_bank_node *node)
{
    if (mx_bank_has_states(b)) {
        /* What leads to no boundary is of no use, and goes first; what does is not dropped before
         * the boundary (mx_boundary_evict). */
        static const double apart = 1e9;
        return node->use_log2 + (node->entries != NULL ? apart : -apart);
    }
    if (mx_bank_has_window(b) && node->n_needs == 0) {
        return node->use_log2 - 1e9; /* nothing can be resumed in it: the first to go */
    }
    size_t n_bytes = mx_node_bytes(b, node);
    for (const mx_bank_entry *e = node->entries; e != NULL; e = e->next) {
        n_bytes += mx_entry_bytes(b, e);
    }
    double us = b->cfg.us_per_token > 0 ? b->cfg.us_per_token : 1.0;
    return node->use_log2 + log2(us * (double)run_tokens(node) / (double)n_bytes);
}

void mx_leaf_push(mx_bank *b, mx_bank_node *node)
{
    assert(node->heap_at == NOT_A_LEAF && node->n_children == 0 && b->n_leaves < b->leaves_cap);
    node->value_log2 = mx_leaf_value(b, node);
    put(b, b->n_leaves++, node);
    sift_up(b, node->heap_at);
}

void mx_node_revalue(mx_bank *b, mx_bank_node *node)
{
    if (node->heap_at != NOT_A_LEAF) {
        leaf_remove(b, node);
        mx_leaf_push(b, node);
    }
}

/* A node has one child more than one, or one again: the run of the other child is another now. */
static void revalue_run(mx_bank *b, mx_bank_node *node)
{
    while (node->n_children == 1) {
        node = node->children[0];
    }
    mx_node_revalue(b, node);
}

/* use_log2 = log2(uses, each halved per half-life since) + now / half-life. */
static double one_use_more(double use_log2)
{
    double now = (double)mx_now_us() / use_half_life_us;
    double uses = use_log2 > 0 ? exp2(use_log2 - now) : 0;
    return log2(uses + 1) + now;
}

double mx_leaf_fresh_value(const mx_bank *b)
{
    double us = b->cfg.us_per_token > 0 ? b->cfg.us_per_token : 1.0;
    size_t n_bytes = mx_kv_pool_page_bytes(b->pool) + sizeof(mx_bank_node);
    return one_use_more(0) + log2(us * (double)MX_PAGE_TOKENS / (double)n_bytes);
}

void mx_node_touch(mx_bank *b, mx_bank_node *node)
{
    node->use_log2 = one_use_more(node->use_log2);
    mx_node_revalue(b, node);
}

void mx_entry_touch(mx_bank_entry *e)
{
    e->use_log2 = one_use_more(e->use_log2);
}

/* ---- coming and going ------------------------------------------------------------------------- */

size_t mx_entry_bytes(const mx_bank *b, const mx_bank_entry *e)
{
    size_t n_bytes = sizeof *e + (e->hidden != NULL ? b->cfg.n_hidden * sizeof(float) : 0);
    if (e->state != NULL) {
        n_bytes += mx_kv_pool_state_pages(b->pool) * mx_kv_pool_page_bytes(b->pool);
    }
    return n_bytes;
}

void mx_entry_free(mx_bank *b, mx_bank_entry *e)
{
    b->stats.bytes -= mx_entry_bytes(b, e);
    b->stats.n_entries--;
    mx_window_release(b, e);
    if (e->state != NULL) {
        mx_boundary_remove(b, e);
        mx_kvstate_unref(b->pool, e->state);
    }
    mx_free(e->hidden);
    mx_free(e);
}

/* Moves the entries that end within the first n_rows rows. Both lists are ascending, and the
 * receiver has no entry there: an entry exists once. */
static void move_entries(mx_bank *b, mx_bank_node *to, mx_bank_node *from, uint32_t n_rows)
{
    if (from->entries == NULL || from->entries->n_rows > n_rows) {
        return;
    }
    mx_bank_entry *first = from->entries, *last = first;
    while (last->next != NULL && last->next->n_rows <= n_rows) {
        last = last->next;
    }
    assert(to->entries == NULL || to->entries->n_rows > last->n_rows);
    mx_bank_entry *rest = last->next, **link = &first;
    from->entries = rest;
    while (*link != rest) {
        mx_bank_entry *e = *link;
        if (mx_window_move(b, to, e)) {
            link = &e->next;
        } else {
            *link = e->next;
            mx_entry_free(b, e);
            b->stats.evicted_entries++;
        }
    }
    *link = to->entries;
    to->entries = first;
    mx_node_revalue(b, to);
    mx_node_revalue(b, from);
}

size_t mx_node_add_bytes(const mx_bank *b, const mx_bank_node *at)
{
    size_t growth = at->n_children < at->children_cap ? 0 : mx_max_size(at->children_cap, 8);
    growth += b->n_nodes < b->leaves_cap ? 0 : mx_max_size(b->leaves_cap, 8);
    return mx_node_bytes(b, &(mx_bank_node){0}) + growth * sizeof(mx_bank_node *);
}

mx_err mx_node_add(mx_bank *b, mx_bank_node *at, mx_page *page, uint32_t n_rows, mx_bank_node **out)
{
    assert(n_rows > 0 && n_rows <= page->n_rows && page->owner == NULL);
    assert(at->parent == NULL || at->n_rows == MX_PAGE_TOKENS);
    void *array = b->leaves;
    if (!grow_counted(b, &array, &b->leaves_cap, b->n_nodes + 1)) {
        return MX_E_NOMEM;
    }
    b->leaves = array;
    array = at->children;
    if (!grow_counted(b, &array, &at->children_cap, at->n_children + 1)) {
        return MX_E_NOMEM;
    }
    at->children = array;
    mx_bank_node *node = mx_calloc(1, sizeof *node);
    if (node == NULL) {
        return MX_E_NOMEM;
    }
    node->parent = at;
    node->tree = at->tree;
    node->page = mx_page_ref(page);
    node->n_rows = n_rows;
    node->heap_at = NOT_A_LEAF;
    page->owner = node;
    size_t i = lower_bound(at, page->tokens, n_rows);
    memmove(at->children + i + 1, at->children + i, (at->n_children - i) * sizeof *at->children);
    at->children[i] = node;
    at->n_children++;
    b->n_nodes++;
    b->stats.n_pages++;
    b->stats.bytes += mx_node_bytes(b, node);
    leaf_remove(b, at);
    mx_leaf_push(b, node);
    mx_node_touch(b, node);
    if (at->n_children == 2 && at->parent != NULL) {
        revalue_run(b, at->children[1 - i]);
    }
    if (i + 1 < at->n_children) {
        mx_bank_node *right = at->children[i + 1];
        uint32_t c = mx_tokens_common(page->tokens, n_rows, right->page->tokens, right->n_rows);
        move_entries(b, node, right, c);
    }
    *out = node;
    return MX_OK;
}

/* All that end in the node. */
static void drop_entries(mx_bank *b, mx_bank_node *node)
{
    while (node->entries != NULL) {
        mx_bank_entry *e = node->entries;
        node->entries = e->next;
        mx_entry_free(b, e);
        b->stats.evicted_entries++;
    }
}

void mx_node_set_page(mx_bank *b, mx_bank_node *node, mx_page *page, uint32_t n_rows)
{
    assert(n_rows >= node->n_rows && n_rows <= page->n_rows && node->n_children == 0);
    mx_page *old = node->page;
    assert(page == old || page->owner == NULL);
    node->page = page;
    if (node->n_needs > 0 && !mx_window_give_rows(b, node, old, node->n_rows)) {
        node->page = old;
        drop_entries(b, node);
        node->page = page;
    }
    if (node->n_needs > 0) {
        mx_page_hold_local(page);
        mx_page_drop_local(b->pool, old);
    }
    old->owner = NULL;
    mx_page_unref(b->pool, old);
    page->owner = node;
    node->n_rows = n_rows;
    mx_node_revalue(b, node);
}

static void settle_list_remove(mx_bank *b, mx_bank_node *node)
{
    if (!node->wants_settle) {
        return;
    }
    mx_bank_node **link = &b->settle;
    while (*link != node) {
        link = &(*link)->settle_next;
    }
    *link = node->settle_next;
    node->wants_settle = false;
}

/* Notes that the node's page is not stored any more. */
static void note_gone(const mx_bank *b, const mx_bank_node *node)
{
    const mx_bank_node *at = node->parent;
    if (node->n_rows == MX_PAGE_TOKENS) {
        mx_gone_add(b->cfg.gone, &node->page->id);
    } else {
        const mx_hash256 *root = &node->tree->root;
        mx_hash256 id = mx_page_identity(root, at->page != NULL ? &at->page->id : root,
                                         node->page->tokens, node->n_rows);
        mx_gone_add(b->cfg.gone, &id);
    }
}

void mx_node_drop(mx_bank *b, mx_bank_node *node)
{
    mx_bank_node *at = node->parent;
    note_gone(b, node);
    assert(node->n_children == 0);
    size_t i = lower_bound(at, node->page->tokens, node->n_rows);
    assert(at->children[i] == node);
    if (i + 1 < at->n_children) {
        mx_bank_node *right = at->children[i + 1];
        uint32_t c = mx_tokens_common(node->page->tokens, node->n_rows, right->page->tokens,
                                      right->n_rows);
        if (node->entries != NULL && node->entries->n_rows <= c) {
            mx_window_hand_on(b, right, node, c);
            move_entries(b, right, node, c);
        }
    }
    drop_entries(b, node);
    leaf_remove(b, node);
    settle_list_remove(b, node);
    at->n_children--;
    memmove(at->children + i, at->children + i + 1, (at->n_children - i) * sizeof *at->children);
    b->n_nodes--;
    b->stats.n_pages--;
    b->stats.evicted_pages++;
    assert(node->n_needs == 0);
    b->stats.bytes -= mx_node_bytes(b, node) + node->children_cap * sizeof *node->children;
    node->page->owner = NULL;
    mx_page_unref(b->pool, node->page);
    mx_free(node->children);
    mx_free(node);
    if (at->n_children == 1 && at->parent != NULL) {
        revalue_run(b, at);
    }
    if (at->n_children > 0) {
        return;
    }
    if (at->parent != NULL) {
        mx_leaf_push(b, at);
    } else {
        mx_tree_drop_if_empty(b, at->tree);
    }
}
