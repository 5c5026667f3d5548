/* SPDX-License-Identifier: MIT
 *
 * The SessionBank: what goes in, and what has to go.
 *
 * A sequence's sealed pages enter the tree chunk by chunk; a snapshot adds its tail page and an
 * entry. The tail stays shared with the sequence, which goes on writing behind the rows that the
 * entry sees (docs/decisions/0003-snapshot-settings.md). Room is made before anything is linked,
 * and the path of the sequence cannot be evicted meanwhile, because the sequence holds references
 * to it.
 */
#include "bank/bank_tree.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <math.h>

const char *mx_restore_kind_name(mx_restore_kind k)
{
    static const char *const names[] = {"none", "exact_prefix", "boundary", "near_prefix", "stem"};
    return (size_t)k < MX_COUNT(names) ? names[k] : "unknown";
}

bool mx_restore_identity_compatible(const mx_hash256 *entry_root, const mx_hash256 *request_root)
{
    return mx_hash256_eq(entry_root, request_root);
}

bool mx_policy_uses_committed_history(bool canonical_prompts)
{
    return !canonical_prompts;
}

mx_err mx_bank_create(mx_bank **out, mx_kv_pool *pool, const mx_bank_config *cfg, mx_errbuf *eb)
{
    *out = mx_calloc(1, sizeof **out);
    if (*out == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "SessionBank: out of memory");
    }
    (*out)->pool = pool;
    (*out)->cfg = *cfg;
    if (cfg->max_bytes == 0) {
        (*out)->cfg.max_bytes = SIZE_MAX;
    }
    return MX_OK;
}

void mx_bank_destroy(mx_bank *b)
{
    if (b == NULL) {
        return;
    }
    for (mx_bank_node *leaf; (leaf = mx_leaf_pop(b)) != NULL;) {
        mx_node_drop(b, leaf);
    }
    assert(b->n_nodes == 0 && b->n_trees == 0);
    mx_free(b->trees);
    mx_free(b->leaves);
    mx_free(b->states);
    mx_free(b);
}

/* ---- eviction --------------------------------------------------------------------------------- */

/* What is enough, and how far one goes for it. */
typedef struct eviction {
    size_t n_free;    /* pages of the pool */
    size_t max_bytes; /* of the bank */
    double below;     /* only what is worth less than that */
} eviction;

/* Drops leaves, least valuable first, until the pool has n_free pages and the bank at most
 * max_bytes, or all that is left is pinned or worth too much. A page to which anybody but the bank refers would not
 * become free. Such leaves are few (one per running sequence, and what the cold writer has in its
 * queue); they are set aside and go back. Returns how many pages were freed. */
static size_t evict(mx_bank *b, const eviction *v)
{
    mx_bank_node *pinned = NULL;
    size_t n_dropped = 0;
    while (mx_kv_pool_max(b->pool) - mx_kv_pool_used(b->pool) < v->n_free ||
           b->stats.bytes > v->max_bytes)
    {
        mx_bank_node *leaf = mx_leaf_pop(b);
        if (leaf != NULL && leaf->value_log2 >= v->below) {
            mx_leaf_push(b, leaf);
            break;
        }
        if (leaf != NULL && leaf->entries != NULL && mx_bank_has_states(b)) {
            mx_leaf_push(b, leaf); /* and so have all others; first a boundary has to go */
            leaf = NULL;
        }
        if (leaf == NULL) {
            if (!mx_boundary_evict(b)) {
                break;
            }
            n_dropped += mx_kv_pool_state_pages(b->pool);
            continue;
        }
        if (leaf->page->refs > 1 || mx_node_is_pinned(leaf)) {
            leaf->stash_next = pinned;
            pinned = leaf;
            continue;
        }
        mx_node_drop(b, leaf);
        n_dropped++;
        b->stats.evicted_for_pages += v->max_bytes == SIZE_MAX;
    }
    while (pinned != NULL) {
        mx_bank_node *leaf = pinned;
        pinned = leaf->stash_next;
        mx_leaf_push(b, leaf);
    }
    return n_dropped;
}

static size_t evict_until(mx_bank *b, size_t n_free, size_t max_bytes)
{
    return evict(b, &(eviction){n_free, max_bytes, INFINITY});
}

size_t mx_bank_evict(mx_bank *b, size_t n_pages)
{
    return evict_until(b, n_pages, SIZE_MAX);
}

bool mx_bank_make_idle_room(mx_bank *b, size_t n_pages)
{
    size_t n_bytes = n_pages * mx_kv_pool_page_bytes(b->pool);
    if (n_pages > mx_kv_pool_max(b->pool) || n_bytes > b->cfg.max_bytes) {
        return false;
    }
    size_t most = b->cfg.max_bytes - n_bytes;
    double below = mx_bank_has_states(b) ? -INFINITY : mx_leaf_fresh_value(b);
    (void)evict(b, &(eviction){n_pages, most, below});
    return mx_kv_pool_max(b->pool) - mx_kv_pool_used(b->pool) >= n_pages && b->stats.bytes <= most;
}

void mx_bank_trim(mx_bank *b)
{
    (void)evict_until(b, 0, b->cfg.max_bytes);
}

void mx_bank_clear(mx_bank *b)
{
    (void)evict_until(b, SIZE_MAX, 0);
}

/* False when n_bytes more do not fit the budget. */
static bool make_room(mx_bank *b, size_t n_bytes)
{
    if (n_bytes > b->cfg.max_bytes) {
        return false;
    }
    (void)evict_until(b, 0, b->cfg.max_bytes - n_bytes);
    return b->stats.bytes <= b->cfg.max_bytes - n_bytes;
}

mx_page *mx_bank_take_page(mx_bank *b)
{
    (void)evict_until(b, 1, SIZE_MAX);
    return mx_page_alloc(b->pool);
}

/* ---- settling --------------------------------------------------------------------------------- */

void mx_bank_want_settle(mx_bank *b, mx_bank_node *node)
{
    if (b->cfg.lazy_snapshot && b->cfg.settle_snapshot && !node->wants_settle) {
        node->wants_settle = true;
        node->settle_next = b->settle;
        b->settle = node;
    }
}

/* Makes `copy` (a fresh page, or NULL: nothing happens) the first n_rows rows of `from`, behind the
 * page of `at`. Returns it. */
static mx_page *copy_rows(mx_bank *b, mx_page *copy, const mx_bank_node *at, const mx_page *from,
                          uint32_t n_rows)
{
    if (copy != NULL) {
        mx_page_copy(b->pool, copy, from, n_rows);
        mx_page_link(copy, at->page, &at->tree->root, from->tokens, n_rows);
    }
    return copy;
}

bool mx_bank_idle(mx_bank *b)
{
    while (b->settle != NULL) {
        mx_bank_node *node = b->settle;
        b->settle = node->settle_next;
        node->wants_settle = false;
        bool is_written_behind = node->page->has_appender || node->page->n_rows > node->n_rows;
        if (node->n_rows == MX_PAGE_TOKENS || node->page->refs == 1 || !is_written_behind) {
            continue;
        }
        /* Not worth evicting anything for. */
        mx_page *copy = mx_page_alloc(b->pool);
        copy_rows(b, copy, node->parent, node->page, node->n_rows);
        if (copy == NULL) {
            return false;
        }
        mx_node_set_page(b, node, copy, node->n_rows);
        mx_page_shed_local(b->pool, copy);
        return true;
    }
    return mx_kv_pool_idle(b->pool);
}

/* ---- storing ---------------------------------------------------------------------------------- */

static mx_err get_tree(mx_bank *b, const mx_hash256 *root, mx_bank_tree **out)
{
    *out = mx_tree_get(b, root);
    if (*out != NULL) {
        return MX_OK;
    }
    if (!make_room(b, sizeof **out)) {
        return MX_E_FULL;
    }
    return mx_tree_add(b, root, out);
}

/* Makes the page hang on this parent object, which has the same identity as its own. A page without
 * rows is not part of the chain yet. */
static void relink(mx_bank *b, mx_page *page, mx_page *parent)
{
    if (page->parent == parent || page->n_rows == 0) {
        return;
    }
    assert(page->parent != NULL && parent != NULL);
    assert(mx_hash256_eq(&page->parent->id, &parent->id));
    mx_page *old = page->parent;
    page->parent = mx_page_ref(parent);
    mx_page_unref(b->pool, old);
}

/* The sequence gives up its page i for the stored one, which gets the local rows where the sequence
 * needs them and it lacks them. It keeps its own when there is no room for that. */
static void adopt(mx_bank *b, mx_seq *seq, size_t i, mx_page *stored)
{
    mx_page *own = seq->pages[i];
    const mx_kv_shape *shape = mx_kv_pool_shape(b->pool);
    const bool is_held = i >= seq->first_local;
    if (is_held && !mx_page_has_local(shape, stored, MX_PAGE_TOKENS)) {
        bool is_moved = stored->local == NULL && mx_page_move_local(stored, own);
        if (!is_moved && !mx_page_give_local(b->pool, stored, own, MX_PAGE_TOKENS)) {
            return;
        }
    }
    seq->pages[i] = mx_page_ref(stored);
    if (is_held) {
        mx_page_hold_local(stored);
        mx_page_drop_local(b->pool, own);
    }
    mx_page_unref(b->pool, own);
}

/* Stores one full page below `at` and returns its node. */
static mx_err insert_page(mx_bank *b, mx_bank_node *at, mx_seq *seq, size_t i, mx_bank_node **out)
{
    mx_page *page = seq->pages[i];
    *out = page->owner;
    if (*out != NULL && (*out)->n_rows == MX_PAGE_TOKENS) {
        assert((*out)->parent == at);
        return MX_OK;
    }
    relink(b, page, at->page);
    mx_child_hit hit = mx_node_find(at, page->tokens, MX_PAGE_TOKENS);
    if (hit.common == MX_PAGE_TOKENS) {
        *out = hit.best;
        adopt(b, seq, i, hit.best->page);
        return MX_OK;
    }
    if (hit.best != NULL && hit.common == hit.best->n_rows) {
        /* A stored tail is the beginning of this page: it becomes a point inside it. */
        *out = hit.best;
        mx_node_set_page(b, hit.best, mx_page_ref(page), MX_PAGE_TOKENS);
        return MX_OK;
    }
    if (!make_room(b, mx_node_add_bytes(b, at))) {
        return MX_E_FULL;
    }
    return mx_node_add(b, at, page, MX_PAGE_TOKENS, out);
}

/* Stores all full pages; *last is the node of the last one, or the top. */
static mx_err insert_full_pages(mx_bank *b, mx_bank_tree *tree, mx_seq *seq, mx_bank_node **last)
{
    size_t n_full = seq->n_tokens / MX_PAGE_TOKENS;
    mx_bank_node *at = &tree->top;
    for (size_t i = 0; i < n_full; i++) {
        mx_bank_node *node;
        MX_TRY(insert_page(b, at, seq, i, &node));
        at = node;
    }
    if (n_full > 0 && n_full < seq->n_pages) {
        relink(b, seq->pages[n_full], at->page);
    }
    *last = at;
    return MX_OK;
}

mx_err mx_bank_insert_pages(mx_bank *b, mx_seq *seq)
{
    assert(seq->pool == b->pool);
    if (seq->n_tokens < MX_PAGE_TOKENS) {
        return MX_OK;
    }
    mx_bank_tree *tree;
    mx_bank_node *last;
    MX_TRY(get_tree(b, &seq->root, &tree));
    tree->is_in_use = true;
    mx_err e = insert_full_pages(b, tree, seq, &last);
    tree->is_in_use = false;
    mx_tree_drop_if_empty(b, tree);
    return e;
}

/* The first n_rows rows of `from` are to be all there in the node, too. */
static mx_err give_rows(mx_bank *b, mx_bank_node *node, const mx_page *from, uint32_t n_rows)
{
    if (!mx_page_has_local(mx_kv_pool_shape(b->pool), node->page, n_rows)) {
        mx_page *page = mx_page_ref(node->page); /* making room must not evict it */
        (void)evict_until(b, 1, SIZE_MAX);
        mx_page_unref(b->pool, page);
    }
    return mx_window_give_rows(b, node, from, n_rows) ? MX_OK : MX_E_FULL;
}

/* Finds or makes the node that holds the n_rows rows of the sequence's tail page, and makes room
 * for entry_bytes more. `at` is pinned by the sequence. */
static mx_err insert_tail(mx_bank *b, mx_bank_node *at, mx_page *tail, uint32_t n_rows,
                          size_t entry_bytes, mx_bank_node **out)
{
    mx_child_hit hit = mx_node_find(at, tail->tokens, n_rows);
    bool needs_node = hit.best == NULL || hit.common < mx_min_size(n_rows, hit.best->n_rows);
    if (!make_room(b, entry_bytes + (needs_node ? mx_node_add_bytes(b, at) : 0))) {
        return MX_E_FULL;
    }
    /* Again, because what was found may have been evicted; then there is room for it. */
    *out = mx_node_home(at, tail->tokens, n_rows);
    if (*out != NULL) {
        return give_rows(b, *out, tail, n_rows);
    }
    mx_page *page = b->cfg.lazy_snapshot
                        ? mx_page_ref(tail)
                        : copy_rows(b, mx_bank_take_page(b), at, tail, n_rows);
    if (page == NULL) {
        return MX_E_FULL;
    }
    hit = mx_node_find(at, tail->tokens, n_rows);
    if (hit.best != NULL && hit.common == hit.best->n_rows) {
        mx_node_set_page(b, hit.best, page, n_rows);
        *out = hit.best;
    } else {
        mx_err e = mx_node_add(b, at, page, n_rows, out);
        mx_page_unref(b->pool, page);
        MX_TRY(e);
    }
    mx_bank_want_settle(b, *out);
    return MX_OK;
}

/* A reference on the state is taken; unlinked. */
static mx_bank_entry *new_entry(mx_bank *b, mx_entry_kind kind, const float *hidden,
                                mx_kvstate *state)
{
    if (state != NULL && !mx_boundary_reserve(b)) {
        return NULL;
    }
    mx_bank_entry *e = mx_calloc(1, sizeof *e);
    if (e == NULL) {
        return NULL;
    }
    e->kind = kind;
    e->first_held = SIZE_MAX;
    e->used_us = mx_now_us();
    if (hidden != NULL) {
        e->hidden = mx_alloc(b->cfg.n_hidden * sizeof *hidden);
        if (e->hidden == NULL) {
            mx_free(e);
            return NULL;
        }
        memcpy(e->hidden, hidden, b->cfg.n_hidden * sizeof *hidden);
    }
    e->state = state != NULL ? mx_kvstate_ref(state) : NULL;
    return e;
}

/* Links the entry, or lets the one that exists at this point take over what is new. Takes over
 * e. False: the rows are not there that one could go on with from here, nothing has changed. */
static bool put_entry(mx_bank *b, mx_bank_node *node, uint32_t n_rows, mx_bank_entry *e)
{
    e->n_rows = n_rows;
    if (!mx_window_hold(b, node, e)) {
        mx_page_shed_local(b->pool, node->page);
        return false;
    }
    mx_bank_entry **link = &node->entries;
    while (*link != NULL && (*link)->n_rows < n_rows) {
        link = &(*link)->next;
    }
    mx_bank_entry *old = *link;
    bool is_refresh = old != NULL && old->n_rows == n_rows;
    if (is_refresh) {
        e->n_hits = old->n_hits + 1;
        e->use_log2 = old->use_log2;
        e->is_pinned = old->is_pinned;
        e->kind = e->kind == MX_ENTRY_POINT ? old->kind : e->kind;
        if (e->hidden == NULL && old->hidden != NULL) {
            b->stats.bytes -= mx_entry_bytes(b, old);
            e->hidden = old->hidden;
            old->hidden = NULL;
            b->stats.bytes += mx_entry_bytes(b, old);
        }
        *link = old->next;
        mx_entry_free(b, old);
    }
    e->next = *link;
    *link = e;
    b->stats.n_entries++;
    b->stats.bytes += mx_entry_bytes(b, e);
    if (e->state != NULL) {
        mx_entry_touch(e);
        mx_boundary_add(b, e);
    }
    if (is_refresh) {
        mx_node_touch(b, node);
    } else {
        mx_node_revalue(b, node); /* being stored is the first use of a node, counted already */
    }
    return true;
}

static mx_err snapshot(mx_bank *b, mx_bank_tree *tree, mx_seq *seq, mx_bank_entry *entry)
{
    size_t n_full = seq->n_tokens / MX_PAGE_TOKENS;
    uint32_t n_tail = (uint32_t)(seq->n_tokens % MX_PAGE_TOKENS);
    mx_bank_node *node;
    MX_TRY(insert_full_pages(b, tree, seq, &node));
    size_t entry_bytes = mx_entry_bytes(b, entry) + mx_window_bytes(b, node, seq->n_tokens);
    if (n_tail > 0) {
        MX_TRY(insert_tail(b, node, seq->pages[n_full], n_tail, entry_bytes, &node));
    } else if (!make_room(b, entry_bytes)) {
        return MX_E_FULL;
    }
    return put_entry(b, node, n_tail > 0 ? n_tail : MX_PAGE_TOKENS, entry) ? MX_OK : MX_E_FULL;
}

static mx_err refuse(mx_bank *b, const mx_seq *seq, size_t n_bytes, mx_errbuf *eb)
{
    b->stats.refused_entries++;
    return mx_fail(eb, MX_E_FULL,
                   "SessionBank: an entry of %zu tokens needs %zu KiB; the budget is %zu KiB, of "
                   "which %zu KiB are held, in part by running requests. A larger --kv-budget "
                   "keeps it",
                   seq->n_tokens, n_bytes >> 10, b->cfg.max_bytes >> 10, b->stats.bytes >> 10);
}

mx_err mx_bank_snapshot_cache(mx_bank *b, mx_seq *seq, mx_entry_kind kind, const float *hidden,
                              mx_errbuf *eb)
{
    assert(seq->pool == b->pool);
    if (seq->n_tokens == 0) {
        return mx_fail(eb, MX_E_INVALID, "SessionBank: an empty sequence has nothing to keep");
    }
    assert((seq->state != NULL) == mx_bank_has_states(b));
    mx_bank_entry *entry = new_entry(b, kind, hidden, seq->state);
    if (entry == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "SessionBank: out of memory for an entry");
    }
    /* Refused before anything is evicted for it in vain. */
    size_t n_pages = (seq->n_tokens + MX_PAGE_TOKENS - 1) / MX_PAGE_TOKENS;
    size_t n_bytes = mx_kv_chain_bytes(mx_kv_pool_shape(b->pool), seq->n_tokens) +
                     n_pages * sizeof(mx_bank_node) + mx_entry_bytes(b, entry);
    mx_bank_tree *tree;
    mx_err e = n_bytes <= b->cfg.max_bytes ? get_tree(b, &seq->root, &tree) : MX_E_FULL;
    if (e == MX_OK) {
        tree->is_in_use = true;
        e = snapshot(b, tree, seq, entry);
        tree->is_in_use = false;
        mx_tree_drop_if_empty(b, tree);
    }
    if (e == MX_OK) {
        return MX_OK;
    }
    mx_kvstate_unref(b->pool, entry->state);
    mx_free(entry->hidden);
    mx_free(entry);
    return e == MX_E_FULL ? refuse(b, seq, n_bytes, eb)
                          : mx_fail(eb, e, "SessionBank: out of memory for an entry");
}

/* The node in which the first n tokens of the sequence end, and has the local rows for them. */
static mx_err find_point(mx_bank *b, mx_seq *seq, size_t n, mx_bank_node **out)
{
    const size_t i = (n - 1) / MX_PAGE_TOKENS;
    const uint32_t n_rows = (uint32_t)(n - i * MX_PAGE_TOKENS);
    mx_page *page = seq->pages[i];
    mx_bank_tree *tree = mx_tree_get(b, &seq->root);
    mx_bank_node *at = i > 0 ? seq->pages[i - 1]->owner : tree != NULL ? &tree->top : NULL;
    *out = at != NULL ? mx_node_home(at, page->tokens, n_rows) : NULL;
    if (*out == NULL || !make_room(b, sizeof(mx_bank_entry) + mx_window_bytes(b, at, n))) {
        return MX_E_FULL;
    }
    *out = mx_node_home(at, page->tokens, n_rows); /* the same page, or a sibling of it */
    return *out != NULL ? give_rows(b, *out, page, n_rows) : MX_E_FULL;
}

mx_err mx_bank_keep_window(mx_bank *b, mx_seq *seq, size_t n)
{
    assert(seq->pool == b->pool && n > 0 && n <= seq->n_tokens && !mx_bank_has_states(b));
    if (!mx_bank_has_window(b)) {
        return MX_OK;
    }
    mx_bank_node *node;
    MX_TRY(find_point(b, seq, n, &node));
    const uint32_t n_rows = (uint32_t)((n - 1) % MX_PAGE_TOKENS + 1);
    if (mx_node_entry(node, n_rows) != NULL) {
        return MX_OK; /* which holds as much */
    }
    mx_bank_entry *e = new_entry(b, MX_ENTRY_POINT, NULL, NULL);
    if (e == NULL) {
        return MX_E_NOMEM;
    }
    if (!put_entry(b, node, n_rows, e)) {
        mx_free(e);
        return MX_E_FULL;
    }
    return MX_OK;
}

/* ---- looking in ------------------------------------------------------------------------------- */

void mx_bank_get_stats(const mx_bank *b, mx_bank_stats *out)
{
    *out = b->stats;
}

void mx_bank_walk(const mx_bank *b, void (*fn)(void *arg, const mx_bank_point *point), void *arg)
{
    for (size_t i = 0; i < b->n_trees; i++) {
        mx_bank_tree *tree = b->trees[i];
        for (mx_bank_node *n = mx_node_next(&tree->top); n != NULL; n = mx_node_next(n)) {
            size_t first = (size_t)n->page->index * MX_PAGE_TOKENS;
            mx_bank_point p = {.root = &tree->root, .page = n->page, .n_tokens = first + n->n_rows};
            fn(arg, &p);
            p.is_entry = true;
            for (const mx_bank_entry *e = n->entries; e != NULL; e = e->next) {
                p.n_tokens = first + e->n_rows;
                p.kind = e->kind;
                p.n_hits = e->n_hits;
                p.used_us = e->used_us;
                p.hidden = e->hidden;
                p.is_pinned = e->is_pinned;
                p.state = e->state;
                fn(arg, &p);
            }
        }
    }
}
