/* SPDX-License-Identifier: MIT
 *
 * Rows of windowed layers: which of them the bank keeps, and how far they lead.
 *
 * A page without local rows is as good a page as any for the layers that see everything, and of no use
 * as one of the last before the next token. So each entry holds the local rows of the pages that a
 * sequence sees which goes on from there, and no more: as many entries as there are hold a page's, and
 * with the last of them they go. How far a prompt can be resumed is another question, answered by what
 * is there: between two entries whose windows overlap, anywhere.
 *
 *   pages   [G ][G ][GL][GL][GL][G ][G ][G ][GL][GL][GL]      the window is two pages
 *                       e1    ^                      e2        e1, e2: entries
 *                             up to here, too, for the first page was kept for the row before e1
 */
#include "bank/bank_tree.h"

#include <assert.h>

bool mx_bank_has_window(const mx_bank *b)
{
    return mx_kv_pool_shape(b->pool)->n_local > 0;
}

size_t mx_node_bytes(const mx_bank *b, const mx_bank_node *node)
{
    size_t n_local = mx_kv_local_bytes(mx_kv_pool_shape(b->pool));
    return mx_kv_pool_page_bytes(b->pool) - (node->n_needs == 0 ? n_local : 0) + sizeof *node;
}

/* ---- holding ---------------------------------------------------------------------------------- */

static void need(mx_bank *b, mx_bank_node *node)
{
    b->stats.bytes -= mx_node_bytes(b, node);
    if (node->n_needs++ == 0) {
        mx_page_hold_local(node->page);
    }
    b->stats.bytes += mx_node_bytes(b, node);
    mx_node_revalue(b, node);
}

static void unneed(mx_bank *b, mx_bank_node *node)
{
    assert(node->n_needs > 0);
    b->stats.bytes -= mx_node_bytes(b, node);
    if (--node->n_needs == 0) {
        mx_page_drop_local(b->pool, node->page);
    }
    b->stats.bytes += mx_node_bytes(b, node);
    mx_node_revalue(b, node);
}

static bool has_rows(const mx_bank *b, const mx_bank_node *node, uint32_t n_rows)
{
    return mx_page_has_local(mx_kv_pool_shape(b->pool), node->page, n_rows);
}

/* Are the pages from `first` to that of `at` (the top: there are none) whole? */
static bool are_whole(const mx_bank *b, const mx_bank_node *at, size_t first)
{
    for (; at->page != NULL && at->page->index >= first; at = at->parent) {
        if (!has_rows(b, at, MX_PAGE_TOKENS)) {
            return false;
        }
    }
    return true;
}

size_t mx_window_bytes(const mx_bank *b, const mx_bank_node *at, size_t n_tokens)
{
    const mx_kv_shape *s = mx_kv_pool_shape(b->pool);
    size_t first = mx_kv_first_kept(s, n_tokens), n = 1; /* the last one need not be there yet */
    for (; at->page != NULL && at->page->index >= first; at = at->parent) {
        n += at->n_needs == 0;
    }
    return n * mx_kv_local_bytes(s);
}

bool mx_window_hold(mx_bank *b, mx_bank_node *node, mx_bank_entry *e)
{
    const mx_kv_shape *s = mx_kv_pool_shape(b->pool);
    const size_t n_tokens = (size_t)node->page->index * MX_PAGE_TOKENS + e->n_rows;
    e->node = node;
    e->first_held = SIZE_MAX;
    if (s->n_local == 0) {
        return true;
    }
    size_t first = mx_kv_first_kept(s, n_tokens);
    if (!has_rows(b, node, e->n_rows)) {
        return false;
    }
    if (!are_whole(b, node->parent, first)) {
        first = mx_kv_first_seen(s, n_tokens);
        if (!are_whole(b, node->parent, first)) {
            return false;
        }
    }
    e->first_held = first;
    for (mx_bank_node *at = node; at->page != NULL && at->page->index >= first; at = at->parent) {
        need(b, at);
    }
    return true;
}

void mx_window_release(mx_bank *b, mx_bank_entry *e)
{
    mx_bank_node *at = e->first_held != SIZE_MAX ? e->node : NULL;
    for (; at != NULL && at->page != NULL && at->page->index >= e->first_held; at = at->parent) {
        unneed(b, at);
    }
    e->first_held = SIZE_MAX;
}

bool mx_window_give_rows(mx_bank *b, mx_bank_node *to, const mx_page *from, uint32_t n_rows)
{
    const mx_kv_shape *s = mx_kv_pool_shape(b->pool);
    return mx_page_has_local(s, to->page, n_rows) ||
           (mx_page_has_local(s, from, n_rows) &&
            mx_page_give_local(b->pool, to->page, from, n_rows));
}

void mx_window_hand_on(mx_bank *b, mx_bank_node *to, mx_bank_node *from, uint32_t n_rows)
{
    bool wants = mx_bank_has_window(b) && to->page->local == NULL;
    if (wants && mx_page_move_local(to->page, from->page) && to->page->local_rows > n_rows) {
        to->page->local_rows = n_rows; /* behind them they are of other tokens */
    }
}

bool mx_window_move(mx_bank *b, mx_bank_node *to, mx_bank_entry *e)
{
    if (e->first_held == SIZE_MAX) {
        e->node = to;
        return true;
    }
    if (!mx_window_give_rows(b, to, e->node->page, e->n_rows)) {
        return false;
    }
    if (to->page->index >= e->first_held) {
        need(b, to);
        unneed(b, e->node);
    }
    e->node = to;
    return true;
}

/* ---- finding ---------------------------------------------------------------------------------- */

mx_bank_node *mx_window_child(const mx_bank *b, const mx_bank_node *at, const int32_t *tokens,
                              uint32_t common, uint32_t *n_rows)
{
    mx_bank_node *best = NULL;
    *n_rows = 0;
    const size_t lower = mx_node_find(at, tokens, common).lower;
    /* Those that share most stand around that place, on both sides less and less. */
    for (int side = 0; side < 2; side++) {
        for (size_t k = 0;; k++) {
            if (side == 0 ? lower + k >= at->n_children : k >= lower) {
                break;
            }
            mx_bank_node *child = at->children[side == 0 ? lower + k : lower - 1 - k];
            uint32_t n = mx_tokens_common(child->page->tokens, child->n_rows, tokens, common);
            if (n <= *n_rows) {
                break;
            }
            if (!has_rows(b, child, n)) {
                n = child->page->local != NULL ? child->page->local_rows : 0;
            }
            if (n > *n_rows) {
                best = child;
                *n_rows = n;
            }
        }
    }
    return best;
}

mx_bank_place mx_window_clip(const mx_bank *b, mx_bank_place p, const int32_t *tokens)
{
    const mx_kv_shape *s = mx_kv_pool_shape(b->pool);
    const size_t n_whole = p.n_tokens - p.common;
    uint32_t n_rows = 0;
    if (p.common > 0) {
        (void)mx_window_child(b, p.at, tokens + n_whole, p.common, &n_rows);
    }
    if (n_rows > 0 && are_whole(b, p.at, mx_kv_first_seen(s, n_whole + n_rows))) {
        return mx_place_clip(p, n_whole + n_rows);
    }
    const mx_bank_node *at = p.at;
    while (at->page != NULL) {
        uint32_t n_local = MX_PAGE_TOKENS;
        if (!has_rows(b, at, MX_PAGE_TOKENS)) { /* a sibling may have more of them */
            (void)mx_window_child(b, at->parent, at->page->tokens, MX_PAGE_TOKENS, &n_local);
        }
        const size_t n_tokens = (size_t)at->page->index * MX_PAGE_TOKENS + n_local;
        const mx_bank_node *run = at->parent; /* to the top, or to the last that is not whole */
        while (n_local > 0 && run->page != NULL && has_rows(b, run, MX_PAGE_TOKENS)) {
            run = run->parent;
        }
        const size_t first = run->page != NULL ? (size_t)run->page->index + 1 : 0;
        if (n_local > 0 && mx_kv_first_seen(s, n_tokens) >= first) {
            return mx_place_clip(p, n_tokens);
        }
        at = run;
    }
    return mx_place_clip(p, 0);
}
