/* SPDX-License-Identifier: MIT
 *
 * One hash table of nodes, keyed by page identity, with the children of a node in a list. A page
 * that is only known as somebody's parent (the root, too) has a node that is not "there".
 * Identities are uniformly distributed, so eight bytes of one are its hash.
 *
 * A database would do the same with files of its own to lose; what is here is rebuilt from names
 * and manifests in the background after each start.
 */
#include "cold/cold_index.h"

#include <pthread.h>

#include "base/mem.h"
#include "kv/kv.h"

typedef struct node node;
struct node {
    mx_hash256 id;
    node *next;          /* in its bucket */
    node *parent;        /* NULL = not known */
    node *next_sibling;
    /* Newest first: those of 64 tokens, and those of fewer or of a number that was not known. A prompt
     * that many conversations begin with has a partial page of each of them, and a sweep asks for each
     * whether a full one stands beside it. */
    node *children, *partials;
    int32_t *tokens;     /* [n_tokens] or NULL */
    uint32_t n_tokens;   /* 0 = not known */
    uint32_t seen;       /* the scan in which it was last seen, */
    uint32_t manifest_seen; /* and its manifest */
    uint64_t touched_us; /* when is_durable */
    bool is_there, is_synced, is_tainted, is_bad;
    bool has_manifest;   /* that is named by this page; */
    bool is_durable;     /* this process has synced it */
    uint8_t kind;        /* when is_durable */
    bool is_inner;       /* inside the chain of some manifest, not at its end: find_inner_locked */
};

struct mx_cold_index {
    pthread_mutex_t lock;
    node **buckets;      /* [n_buckets], a power of two */
    size_t n_buckets, n_nodes, n_there;
    uint32_t scan;
};

enum { FIRST_BUCKETS = 256 };

static size_t bucket_of(const mx_cold_index *ix, const mx_hash256 *id)
{
    return (size_t)mx_get_le64(id->b) & (ix->n_buckets - 1);
}

static node *find_locked(const mx_cold_index *ix, const mx_hash256 *id)
{
    node *n = ix->buckets[bucket_of(ix, id)];
    while (n != NULL && !mx_hash256_eq(&n->id, id)) {
        n = n->next;
    }
    return n;
}

/* Without memory for a larger table the lists get longer, that is all. */
static void grow_locked(mx_cold_index *ix)
{
    size_t old_n = ix->n_buckets;
    node **old = ix->buckets;
    node **fresh = mx_calloc(old_n * 2, sizeof *fresh);
    if (fresh == NULL) {
        return;
    }
    ix->buckets = fresh;
    ix->n_buckets = old_n * 2;
    for (size_t i = 0; i < old_n; i++) {
        for (node *n = old[i], *next; n != NULL; n = next) {
            next = n->next;
            node **at = &fresh[bucket_of(ix, &n->id)];
            n->next = *at;
            *at = n;
        }
    }
    mx_free(old);
}

static node *find_or_add_locked(mx_cold_index *ix, const mx_hash256 *id)
{
    node *n = find_locked(ix, id);
    if (n != NULL) {
        return n;
    }
    n = mx_calloc(1, sizeof *n);
    if (n == NULL) {
        return NULL;
    }
    if (ix->n_nodes >= ix->n_buckets) {
        grow_locked(ix);
    }
    n->id = *id;
    node **at = &ix->buckets[bucket_of(ix, id)];
    n->next = *at;
    *at = n;
    ix->n_nodes++;
    return n;
}

mx_cold_index *mx_cold_index_create(void)
{
    mx_cold_index *ix = mx_calloc(1, sizeof *ix);
    if (ix == NULL) {
        return NULL;
    }
    ix->n_buckets = FIRST_BUCKETS;
    ix->buckets = mx_calloc(ix->n_buckets, sizeof *ix->buckets);
    if (ix->buckets == NULL) {
        mx_free(ix);
        return NULL;
    }
    pthread_mutex_init(&ix->lock, NULL);
    return ix;
}

static void free_node(node *n)
{
    mx_free(n->tokens);
    mx_free(n);
}

void mx_cold_index_destroy(mx_cold_index *ix)
{
    if (ix == NULL) {
        return;
    }
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (node *n = ix->buckets[i], *next; n != NULL; n = next) {
            next = n->next;
            free_node(n);
        }
    }
    mx_free(ix->buckets);
    pthread_mutex_destroy(&ix->lock);
    mx_free(ix);
}

mx_err mx_cold_index_add(mx_cold_index *ix, const mx_hash256 *id, bool is_synced)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_or_add_locked(ix, id);
    if (n != NULL && !n->is_bad) {
        ix->n_there += !n->is_there;
        n->is_there = true;
        n->is_synced |= is_synced;
        n->seen = ix->scan;
    }
    pthread_mutex_unlock(&ix->lock);
    return n != NULL ? MX_OK : MX_E_NOMEM;
}

mx_err mx_cold_index_link(mx_cold_index *ix, const mx_hash256 *id, const mx_hash256 *parent,
                          uint32_t n_tokens, const int32_t *tokens)
{
    mx_err err = MX_E_NOMEM;
    pthread_mutex_lock(&ix->lock);
    node *up = find_or_add_locked(ix, parent);
    node *n = up != NULL ? find_or_add_locked(ix, id) : NULL;
    if (n != NULL && n != up) {
        err = MX_OK;
        if (n->tokens == NULL) { /* what a page says of itself is not changed by a hint */
            n->n_tokens = n_tokens;
        }
        if (n->parent == NULL) {
            n->parent = up;
            node **list = n->n_tokens == MX_PAGE_TOKENS ? &up->children : &up->partials;
            n->next_sibling = *list;
            *list = n;
        }
        if (tokens != NULL && n->tokens == NULL && n_tokens > 0) {
            n->tokens = mx_alloc(n_tokens * sizeof *tokens);
            if (n->tokens != NULL) {
                memcpy(n->tokens, tokens, n_tokens * sizeof *tokens);
            } else {
                err = MX_E_NOMEM;
            }
        }
    }
    pthread_mutex_unlock(&ix->lock);
    return err;
}

static void remove_locked(mx_cold_index *ix, node *n)
{
    if (n != NULL && n->is_there) {
        n->is_there = n->is_synced = false;
        ix->n_there--;
    }
}

void mx_cold_index_remove(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    remove_locked(ix, find_locked(ix, id));
    pthread_mutex_unlock(&ix->lock);
}

void mx_cold_index_set_bad(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_or_add_locked(ix, id); /* without memory it is read, and found bad, again */
    remove_locked(ix, n);
    if (n != NULL) {
        n->is_bad = true;
    }
    pthread_mutex_unlock(&ix->lock);
}

void mx_cold_index_set_good(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_locked(ix, id);
    if (n != NULL) {
        n->is_bad = false;
    }
    pthread_mutex_unlock(&ix->lock);
}

bool mx_cold_index_is_bad(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_bad = n != NULL && n->is_bad;
    pthread_mutex_unlock(&ix->lock);
    return is_bad;
}

void mx_cold_index_taint(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_or_add_locked(ix, id);
    if (n != NULL) {
        n->is_tainted = true;
    }
    pthread_mutex_unlock(&ix->lock);
}

bool mx_cold_index_has(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool has = n != NULL && n->is_there && !n->is_tainted;
    pthread_mutex_unlock(&ix->lock);
    return has;
}

bool mx_cold_index_is_synced(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_synced = n != NULL && n->is_there && n->is_synced && !n->is_tainted;
    pthread_mutex_unlock(&ix->lock);
    return is_synced;
}

bool mx_cold_index_is_tainted(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_tainted = n != NULL && n->is_tainted;
    pthread_mutex_unlock(&ix->lock);
    return is_tainted;
}

bool mx_cold_index_mark_manifest(mx_cold_index *ix, const mx_hash256 *last_page)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_or_add_locked(ix, last_page);
    bool is_new = n != NULL && !n->has_manifest;
    if (n != NULL) {
        n->has_manifest = true;
        n->manifest_seen = ix->scan;
    }
    pthread_mutex_unlock(&ix->lock);
    return is_new;
}

void mx_cold_index_see_manifest(mx_cold_index *ix, const mx_hash256 *last_page)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_locked(ix, last_page);
    if (n != NULL) {
        n->manifest_seen = ix->scan;
    }
    pthread_mutex_unlock(&ix->lock);
}

void mx_cold_index_unmark_manifest(mx_cold_index *ix, const mx_hash256 *last_page)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_locked(ix, last_page);
    if (n != NULL) {
        n->has_manifest = n->is_durable = false;
    }
    pthread_mutex_unlock(&ix->lock);
}

void mx_cold_index_set_durable(mx_cold_index *ix, const mx_hash256 *last_page, uint32_t kind,
                               uint64_t touched_us)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_locked(ix, last_page);
    if (n != NULL) {
        n->kind = n->is_durable && n->kind > kind ? n->kind : (uint8_t)kind;
        n->is_durable = true;
        n->touched_us = touched_us;
    }
    pthread_mutex_unlock(&ix->lock);
}

bool mx_cold_index_is_durable(mx_cold_index *ix, const mx_hash256 *last_page, uint32_t kind,
                              uint64_t *touched_us)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, last_page);
    bool is_durable = n != NULL && n->is_durable && n->kind >= kind;
    *touched_us = is_durable ? n->touched_us : 0;
    pthread_mutex_unlock(&ix->lock);
    return is_durable;
}

/* Only the manifests that are there now make a page an inner one. The walk up a chain ends where
 * another one has been, so all of them together visit each page once, and a cycle, which only a
 * forged manifest could make, ends, too. */
static void find_inner_locked(mx_cold_index *ix)
{
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (node *n = ix->buckets[i]; n != NULL; n = n->next) {
            n->is_inner = false;
        }
    }
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (const node *n = ix->buckets[i]; n != NULL; n = n->next) {
            for (node *up = n->has_manifest ? n->parent : NULL; up != NULL && !up->is_inner;
                 up = up->parent) {
                up->is_inner = true;
            }
        }
    }
}

/* The node above the first page is the root, which has no parent. Nothing is known about the chain
 * of a manifest of another version. */
static bool has_first_page(const mx_cold_index *ix, const node *n)
{
    size_t steps = 0;
    bool is_known = n->parent != NULL;
    while (is_known && n->parent->parent != NULL && steps++ < ix->n_nodes) {
        n = n->parent;
    }
    return !is_known || n->is_there;
}

mx_err mx_cold_index_dead_manifests(mx_cold_index *ix, mx_hash256 **out, size_t *n_out)
{
    size_t cap = 0;
    mx_err err = MX_OK;
    *out = NULL;
    *n_out = 0;
    pthread_mutex_lock(&ix->lock);
    find_inner_locked(ix);
    for (size_t i = 0; i < ix->n_buckets && err == MX_OK; i++) {
        for (const node *n = ix->buckets[i]; n != NULL; n = n->next) {
            if (!n->has_manifest || (!n->is_inner && has_first_page(ix, n))) {
                continue;
            }
            if (!mx_grow((void **)out, &cap, *n_out + 1, sizeof **out)) {
                err = MX_E_NOMEM;
                break;
            }
            (*out)[(*n_out)++] = n->id;
        }
    }
    pthread_mutex_unlock(&ix->lock);
    return err;
}

static void copy_next(const node *c, mx_cold_child *out)
{
    out->n_next = (uint32_t)mx_min_size(c->n_tokens - out->n_common, MX_COUNT(out->next));
    memcpy(out->next, c->tokens + out->n_common, out->n_next * sizeof *out->next);
}

bool mx_cold_index_parent(mx_cold_index *ix, const mx_hash256 *id, mx_hash256 *parent)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_known = n != NULL && n->parent != NULL;
    if (is_known) {
        *parent = n->parent->id;
    }
    pthread_mutex_unlock(&ix->lock);
    return is_known;
}

/* Of one list of children; *best only gets better. */
static void search_locked(const node *first, const int32_t *tokens, size_t n, uint32_t min_tokens,
                          mx_cold_child *best, mx_cold_child *unknown, size_t cap,
                          size_t *n_unknown)
{
    for (const node *c = first; c != NULL; c = c->next_sibling) {
        if (!c->is_there || c->n_tokens < min_tokens) {
            continue;
        }
        if (c->tokens == NULL) {
            if (*n_unknown < cap) {
                unknown[(*n_unknown)++] = (mx_cold_child){.id = c->id, .n_tokens = c->n_tokens};
            }
            continue;
        }
        uint32_t common = 0;
        while (common < n && common < c->n_tokens && c->tokens[common] == tokens[common]) {
            common++;
        }
        if (common > best->n_common) {
            *best = (mx_cold_child){.id = c->id, .n_tokens = c->n_tokens, .n_common = common};
            copy_next(c, best);
        } else if (best->n_common == 0 && best->n_next == 0) {
            copy_next(c, best);
        }
    }
}

mx_cold_child mx_cold_index_best_child(mx_cold_index *ix, const mx_hash256 *parent,
                                       const int32_t *tokens, size_t n, uint32_t min_tokens,
                                       mx_cold_child *unknown, size_t cap, size_t *n_unknown)
{
    mx_cold_child best = {0};
    *n_unknown = 0;
    pthread_mutex_lock(&ix->lock);
    const node *up = find_locked(ix, parent);
    if (up != NULL) {
        search_locked(up->children, tokens, n, min_tokens, &best, unknown, cap, n_unknown);
        if (min_tokens < MX_PAGE_TOKENS) {
            search_locked(up->partials, tokens, n, min_tokens, &best, unknown, cap, n_unknown);
        }
    }
    pthread_mutex_unlock(&ix->lock);
    return best;
}

static bool is_extendable(const node *n)
{
    if (!n->is_there || n->parent == NULL || n->n_tokens == 0 || n->n_tokens >= MX_PAGE_TOKENS) {
        return false;
    }
    for (const node *c = n->parent->children; c != NULL; c = c->next_sibling) {
        if (c->is_there) {
            return true;
        }
    }
    return false;
}

mx_err mx_cold_index_partials(mx_cold_index *ix, mx_cold_partial **out, size_t *n)
{
    size_t cap = 0;
    mx_err err = MX_OK;
    *out = NULL;
    *n = 0;
    pthread_mutex_lock(&ix->lock);
    for (size_t i = 0; i < ix->n_buckets && err == MX_OK; i++) {
        for (const node *p = ix->buckets[i]; p != NULL; p = p->next) {
            if (!is_extendable(p)) {
                continue;
            }
            if (!mx_grow((void **)out, &cap, *n + 1, sizeof **out)) {
                err = MX_E_NOMEM;
                break;
            }
            (*out)[(*n)++] = (mx_cold_partial){p->id, p->parent->id};
        }
    }
    pthread_mutex_unlock(&ix->lock);
    return err;
}

void mx_cold_index_scan_begin(mx_cold_index *ix)
{
    pthread_mutex_lock(&ix->lock);
    ix->scan++;
    pthread_mutex_unlock(&ix->lock);
}

void mx_cold_index_scan_end(mx_cold_index *ix)
{
    pthread_mutex_lock(&ix->lock);
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (node *n = ix->buckets[i]; n != NULL; n = n->next) {
            if (n->is_there && n->seen != ix->scan) {
                n->is_there = n->is_synced = false;
                ix->n_there--;
            }
            if (n->manifest_seen != ix->scan) {
                n->has_manifest = n->is_durable = false;
            }
        }
    }
    pthread_mutex_unlock(&ix->lock);
}

size_t mx_cold_index_count(mx_cold_index *ix)
{
    pthread_mutex_lock(&ix->lock);
    size_t n = ix->n_there;
    pthread_mutex_unlock(&ix->lock);
    return n;
}
