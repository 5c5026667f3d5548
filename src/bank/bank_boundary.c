/* SPDX-License-Identifier: MIT
 *
 * Boundaries: entries that hold a recurrent state.
 *
 * A state is as large as tens of pages and good for one position, so what is kept decides how much is
 * computed again after a cut. Losing a boundary costs the tokens from the one before it, for each
 * request that would have ended up there; age says nothing about that. A value changes when a
 * neighbour comes or goes, possibly in many branches at once. So nothing is kept sorted: states are
 * so large that there are hundreds, and one walk over all of them for each that is dropped (megabytes)
 * is cheaper than upkeep.
 */
#include "bank/bank_tree.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>

/* ---- finding ---------------------------------------------------------------------------------- */

static mx_bank_entry *last_within(const mx_bank_node *node, uint32_t n_rows)
{
    mx_bank_entry *best = NULL;
    for (mx_bank_entry *e = node->entries; e != NULL && e->n_rows <= n_rows; e = e->next) {
        best = e;
    }
    return best;
}

mx_bank_entry *mx_boundary_below(const mx_bank_node *at, const int32_t *tokens, uint32_t common)
{
    mx_bank_entry *best = NULL;
    size_t i = mx_node_find(at, tokens, common).lower;
    assert(i < at->n_children);
    /* An entry lives in the first sibling that begins with its tokens: ours, or one to the left that
     * shares so many. */
    for (uint32_t shared = common;; i--) {
        const mx_bank_node *child = at->children[i];
        shared = mx_tokens_common(child->page->tokens, child->n_rows, tokens, shared);
        if (shared == 0 || (best != NULL && best->n_rows >= shared)) {
            break;
        }
        mx_bank_entry *e = last_within(child, shared);
        if (e != NULL && (best == NULL || e->n_rows > best->n_rows)) {
            best = e;
        }
        if (i == 0) {
            break;
        }
    }
    return best;
}

mx_bank_entry *mx_boundary_before(const mx_bank_node *node, uint32_t n_rows, size_t *n_tokens)
{
    while (node->parent != NULL) {
        mx_bank_entry *e =
            n_rows > 0 ? mx_boundary_below(node->parent, node->page->tokens, n_rows) : NULL;
        if (e != NULL) {
            *n_tokens = (size_t)node->page->index * MX_PAGE_TOKENS + e->n_rows;
            return e;
        }
        node = node->parent;
        n_rows = MX_PAGE_TOKENS;
    }
    *n_tokens = 0;
    return NULL;
}

/* ---- the list --------------------------------------------------------------------------------- */

bool mx_boundary_reserve(mx_bank *b)
{
    void *array = b->states;
    size_t old_cap = b->states_cap;
    bool ok = mx_grow(&array, &b->states_cap, b->stats.n_states + 1, sizeof *b->states);
    b->states = array;
    b->stats.bytes += (b->states_cap - old_cap) * sizeof *b->states;
    return ok;
}

void mx_boundary_add(mx_bank *b, mx_bank_entry *e)
{
    assert(b->stats.n_states < b->states_cap);
    e->state_at = b->stats.n_states;
    b->states[b->stats.n_states++] = e;
}

void mx_boundary_remove(mx_bank *b, mx_bank_entry *e)
{
    assert(b->states[e->state_at] == e);
    mx_bank_entry *last = b->states[--b->stats.n_states];
    b->states[e->state_at] = last;
    last->state_at = e->state_at;
}

/* ---- eviction --------------------------------------------------------------------------------- */

/* Value = tokens to recompute x decayed uses / bytes, as a logarithm that does not change while time
 * passes (mx_node_touch). The pages that the last boundary of a chain alone keeps are not counted:
 * per byte it would always be the first to go, and it is where the conversation goes on. */
static double value_of(const mx_bank *b, const mx_bank_entry *e)
{
    size_t before;
    (void)mx_boundary_before(e->node, e->n_rows - 1, &before);
    size_t at = (size_t)e->node->page->index * MX_PAGE_TOKENS + e->n_rows;
    return e->use_log2 + log2((double)(at - before) / (double)mx_entry_bytes(b, e));
}

bool mx_boundary_evict(mx_bank *b)
{
    mx_bank_entry *least = NULL;
    double least_value = 0;
    for (size_t i = 0; i < b->stats.n_states; i++) {
        mx_bank_entry *e = b->states[i];
        if (e->state->refs > 1 || e->is_pinned) {
            continue; /* would not become free, or must not */
        }
        double value = value_of(b, e);
        if (least == NULL || value < least_value) {
            least = e;
            least_value = value;
        }
    }
    if (least == NULL) {
        return false;
    }
    mx_bank_node *node = least->node;
    mx_bank_entry **link = &node->entries;
    while (*link != least) {
        link = &(*link)->next;
    }
    *link = least->next;
    mx_entry_free(b, least);
    b->stats.evicted_entries++;
    mx_node_revalue(b, node);
    return true;
}

/* ---- walking ---------------------------------------------------------------------------------- */

/* Below `at`, which stands behind `first` tokens in whole pages. */
static void walk(const mx_bank_node *at, const int32_t *tokens, size_t first, size_t from, size_t n,
                 mx_bank_boundary_fn *fn, void *arg)
{
    for (; first < n; first += MX_PAGE_TOKENS) {
        uint32_t n_next = (uint32_t)mx_min_size(n - first, MX_PAGE_TOKENS);
        mx_child_hit hit = mx_node_find(at, tokens + first, n_next);
        uint32_t row = from > first ? (uint32_t)mx_min_size(from - first, MX_PAGE_TOKENS) : 0;
        for (row++; row <= hit.common; row++) {
            const mx_bank_node *home = mx_node_home(at, tokens + first, row);
            const mx_bank_entry *e = home != NULL ? mx_node_entry(home, row) : NULL;
            if (e != NULL) {
                fn(arg, first + row, e->state, e->kind);
            }
        }
        if (hit.common < MX_PAGE_TOKENS) {
            return;
        }
        at = hit.best;
    }
}

void mx_bank_boundaries(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens, size_t n,
                        mx_bank_boundary_fn *fn, void *arg)
{
    mx_bank_tree *tree = mx_bank_has_states(b) ? mx_tree_get(b, root) : NULL;
    if (tree != NULL) {
        walk(&tree->top, tokens, 0, 0, n, fn, arg);
    }
}

void mx_bank_boundaries_behind(const mx_bank *b, const mx_seq *seq, const int32_t *tokens,
                               size_t from, size_t n, mx_bank_boundary_fn *fn, void *arg)
{
    mx_bank_tree *tree = mx_bank_has_states(b) ? mx_tree_get(b, &seq->root) : NULL;
    if (tree == NULL) {
        return;
    }
    const mx_bank_node *at = &tree->top;
    size_t first = from / MX_PAGE_TOKENS * MX_PAGE_TOKENS;
    if (first > 0) {
        at = seq->pages[first / MX_PAGE_TOKENS - 1]->owner;
    }
    if (at == NULL || (first > 0 && at->n_rows < MX_PAGE_TOKENS)) { /* the budget had no room for it */
        at = &tree->top;
        first = 0;
    }
    walk(at, tokens, first, from, n, fn, arg);
}
