/* SPDX-License-Identifier: MIT
 *
 * One hash table of nodes, keyed by page identity. A page that is only known as somebody's parent
 * (the root, too) has a node that is not "there". Identities are uniformly distributed, so eight
 * bytes of one are its hash.
 *
 * The children of a page are asked for the one that has most in common with a prompt. A system
 * prompt can have a hundred thousand of them, so those whose tokens are known stand in a tree in
 * the order of their tokens: the one with the longest common prefix is next to the place where the
 * prompt would stand, so it lies on the way down. The tree is a treap; its priorities are bytes of the
 * identities, so it needs no balance of its own.
 *
 * A database would do the same with files of its own to lose; what is here is rebuilt from names
 * and manifests in the background after each start.
 */
#include "cold/cold_index.h"

#include <pthread.h>

#include "base/mem.h"
#include "kv/kv.h"

typedef struct node node;

/* Of 64 tokens; the same without the rows of windowed layers; and of fewer or of a number that is not known.
 * A sweep asks for each partial page whether a full one stands beside it. */
enum { FULL, LACKING, PARTIAL, N_CLASSES };

/* The children of a page that are there. */
typedef struct family {
    node *known[N_CLASSES];   /* roots of trees, by tokens */
    node *unknown[N_CLASSES]; /* lists, newest first: those without tokens; */
    size_t n_unknown;         /* in both */
} family;

struct node {
    mx_hash256 id;
    node *next;          /* in its bucket */
    node *parent;        /* NULL = not known; otherwise that has a family */
    node *before, *after; /* among its siblings: subtrees, or neighbours in the list */
    family *children;    /* NULL = never had one */
    int32_t *tokens;     /* [n_tokens] or NULL */
    uint32_t n_tokens;   /* 0 = not known */
    uint32_t n_links;    /* nodes of which it is the parent */
    uint32_t seen;       /* the scan in which it was last seen, */
    uint32_t manifest_seen; /* and its manifest */
    uint64_t touched_us; /* when is_durable */
    bool is_there, is_synced, is_bad;
    bool lacks_local;    /* the rows of windowed layers */
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
    bool has_failed[256]; /* an fsync of a folder, by the first byte of the names in it; */
    bool has_failed_sessions; /* of that of manifests */
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
    mx_free(n->children);
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

/* ---- siblings -------------------------------------------------------------------------------- */

static uint32_t common_tokens(const node *n, const int32_t *tokens, size_t n_tokens)
{
    uint32_t k = 0;
    while (k < n_tokens && k < n->n_tokens && n->tokens[k] == tokens[k]) {
        k++;
    }
    return k;
}

/* Do these tokens, of which so many are n's, stand before n? What is shorter comes first. */
static bool is_before(const int32_t *tokens, size_t n_tokens, const node *n, uint32_t common)
{
    bool is_inside = common < n_tokens && common < n->n_tokens;
    return is_inside ? tokens[common] < n->tokens[common] : n_tokens < n->n_tokens;
}

/* Of the same parent with the same tokens there is one, but where somebody forged the root. */
static bool precedes(const node *a, const node *b)
{
    uint32_t common = common_tokens(b, a->tokens, a->n_tokens);
    if (common == a->n_tokens && common == b->n_tokens) {
        return memcmp(&a->id, &b->id, sizeof a->id) < 0;
    }
    return is_before(a->tokens, a->n_tokens, b, common);
}

static uint64_t priority_of(const node *n)
{
    return mx_get_le64(n->id.b + 8);
}

static void insert(node **root, node *n)
{
    node **at = root;
    while (*at != NULL && priority_of(*at) >= priority_of(n)) {
        at = precedes(n, *at) ? &(*at)->before : &(*at)->after;
    }
    node *rest = *at, **before = &n->before, **after = &n->after;
    *at = n;
    while (rest != NULL) { /* what was there goes to both sides */
        if (precedes(rest, n)) {
            *before = rest;
            before = &rest->after;
            rest = rest->after;
        } else {
            *after = rest;
            after = &rest->before;
            rest = rest->before;
        }
    }
    *before = *after = NULL;
}

static void take_out(node **root, const node *n)
{
    node **at = root, *before = n->before, *after = n->after;
    while (*at != n) {
        at = precedes(n, *at) ? &(*at)->before : &(*at)->after;
    }
    while (before != NULL && after != NULL) {
        if (priority_of(before) >= priority_of(after)) {
            *at = before;
            at = &before->after;
            before = before->after;
        } else {
            *at = after;
            at = &after->before;
            after = after->before;
        }
    }
    *at = before != NULL ? before : after;
}

static int class_of(const node *n)
{
    return n->n_tokens != MX_PAGE_TOKENS ? PARTIAL : n->lacks_local ? LACKING : FULL;
}

/* Before and after a change of anything that decides where n stands: is_there, parent, tokens,
 * n_tokens, lacks_local. */
static void leave_family(const node *n)
{
    if (!n->is_there || n->parent == NULL) {
        return;
    }
    family *f = n->parent->children;
    if (n->tokens != NULL) {
        take_out(&f->known[class_of(n)], n);
        return;
    }
    f->n_unknown--;
    *(n->before != NULL ? &n->before->after : &f->unknown[class_of(n)]) = n->after;
    if (n->after != NULL) {
        n->after->before = n->before;
    }
}

static void join_family(node *n)
{
    if (!n->is_there || n->parent == NULL) {
        return;
    }
    family *f = n->parent->children;
    if (n->tokens != NULL) {
        insert(&f->known[class_of(n)], n);
        return;
    }
    f->n_unknown++;
    node **first = &f->unknown[class_of(n)];
    n->before = NULL;
    n->after = *first;
    if (*first != NULL) {
        (*first)->before = n;
    }
    *first = n;
}

static bool has_full_child(const node *n)
{
    const family *f = n->children;
    return f != NULL && (f->known[FULL] != NULL || f->unknown[FULL] != NULL);
}

/* ---- what is there --------------------------------------------------------------------------- */

static void set_there_locked(mx_cold_index *ix, node *n, bool is_there)
{
    if (n->is_there == is_there) {
        return;
    }
    leave_family(n);
    n->is_there = is_there;
    n->is_synced = n->lacks_local = false;
    join_family(n);
    ix->n_there = is_there ? ix->n_there + 1 : ix->n_there - 1;
}

mx_err mx_cold_index_add(mx_cold_index *ix, const mx_hash256 *id, bool is_synced)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_or_add_locked(ix, id);
    if (n != NULL && !n->is_bad) {
        set_there_locked(ix, n, true);
        n->is_synced |= is_synced;
        n->seen = ix->scan;
    }
    pthread_mutex_unlock(&ix->lock);
    return n != NULL ? MX_OK : MX_E_NOMEM;
}

/* False = no memory; then nothing is changed. */
static bool set_link(node *n, node *up, uint32_t n_tokens, const int32_t *tokens)
{
    bool says_itself = tokens != NULL && n_tokens > 0 && n->tokens == NULL;
    int32_t *copy = says_itself ? mx_alloc(n_tokens * sizeof *copy) : NULL;
    if (up->children == NULL) {
        up->children = mx_calloc(1, sizeof *up->children);
    }
    if (up->children == NULL || (says_itself && copy == NULL)) {
        mx_free(copy);
        return false;
    }
    leave_family(n);
    if (says_itself) {
        memcpy(copy, tokens, n_tokens * sizeof *copy);
        n->tokens = copy;
    }
    if (says_itself || n->tokens == NULL) {
        n->n_tokens = n_tokens;
    }
    if (says_itself || n->parent == NULL) {
        if (n->parent != NULL) {
            n->parent->n_links--;
        }
        n->parent = up;
        up->n_links++;
    }
    join_family(n);
    return true;
}

mx_err mx_cold_index_link(mx_cold_index *ix, const mx_hash256 *id, const mx_hash256 *parent,
                          uint32_t n_tokens, const int32_t *tokens)
{
    pthread_mutex_lock(&ix->lock);
    node *up = find_or_add_locked(ix, parent);
    node *n = up != NULL ? find_or_add_locked(ix, id) : NULL;
    bool is_linked = n != NULL && n != up && set_link(n, up, n_tokens, tokens);
    pthread_mutex_unlock(&ix->lock);
    return is_linked ? MX_OK : MX_E_NOMEM;
}

void mx_cold_index_remove(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_locked(ix, id);
    if (n != NULL) {
        set_there_locked(ix, n, false);
    }
    pthread_mutex_unlock(&ix->lock);
}

void mx_cold_index_set_bad(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_or_add_locked(ix, id); /* without memory it is read, and found bad, again */
    if (n != NULL) {
        set_there_locked(ix, n, false);
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

void mx_cold_index_set_lacks(mx_cold_index *ix, const mx_hash256 *id, bool lacks_local)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_locked(ix, id);
    if (n != NULL && n->is_there && n->lacks_local != lacks_local) {
        leave_family(n);
        n->lacks_local = lacks_local;
        join_family(n);
    }
    pthread_mutex_unlock(&ix->lock);
}

bool mx_cold_index_lacks(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool lacks = n != NULL && n->lacks_local;
    pthread_mutex_unlock(&ix->lock);
    return lacks;
}

bool mx_cold_index_is_bad(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_bad = n != NULL && n->is_bad;
    pthread_mutex_unlock(&ix->lock);
    return is_bad;
}

void mx_cold_index_doubt_manifests(mx_cold_index *ix)
{
    pthread_mutex_lock(&ix->lock);
    ix->has_failed_sessions = true;
    pthread_mutex_unlock(&ix->lock);
}

void mx_cold_index_doubt(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    node *n = find_locked(ix, id);
    if (n != NULL) {
        n->is_synced = false;
    }
    ix->has_failed[id->b[0]] = true;
    pthread_mutex_unlock(&ix->lock);
}

static bool is_doubtful_locked(const mx_cold_index *ix, const mx_hash256 *id, const node *n)
{
    return ix->has_failed[id->b[0]] && (n == NULL || !n->is_synced);
}

bool mx_cold_index_is_doubtful(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    bool is_so = is_doubtful_locked(ix, id, find_locked(ix, id));
    pthread_mutex_unlock(&ix->lock);
    return is_so;
}

bool mx_cold_index_is_kept(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_so = n != NULL && n->is_there && !is_doubtful_locked(ix, id, n);
    pthread_mutex_unlock(&ix->lock);
    return is_so;
}

bool mx_cold_index_has(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool has = n != NULL && n->is_there;
    pthread_mutex_unlock(&ix->lock);
    return has;
}

bool mx_cold_index_is_synced(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_synced = n != NULL && n->is_there && n->is_synced;
    pthread_mutex_unlock(&ix->lock);
    return is_synced;
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

/* A manifest that may be gone after a power failure stands for nothing else. */
static bool is_reliable(const mx_cold_index *ix, const node *n)
{
    return n->has_manifest && (n->is_durable || !ix->has_failed_sessions);
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
            for (node *up = is_reliable(ix, n) ? n->parent : NULL; up != NULL && !up->is_inner;
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

/* Down to where the prompt would stand; *best only gets better. */
static void search_known(const node *n, const int32_t *tokens, size_t n_tokens, mx_cold_child *best)
{
    while (n != NULL) {
        uint32_t common = common_tokens(n, tokens, n_tokens);
        if (common > best->n_common) {
            *best = (mx_cold_child){.id = n->id, .n_tokens = n->n_tokens, .n_common = common};
            copy_next(n, best);
        } else if (best->n_common == 0 && best->n_next == 0) {
            copy_next(n, best);
        }
        n = is_before(tokens, n_tokens, n, common) ? n->before : n->after;
    }
}

mx_cold_child mx_cold_index_best_child(mx_cold_index *ix, const mx_hash256 *parent,
                                       const int32_t *tokens, size_t n, mx_cold_among among,
                                       mx_cold_child *unknown, size_t cap, size_t *n_unknown)
{
    mx_cold_child best = {0};
    *n_unknown = 0;
    pthread_mutex_lock(&ix->lock);
    const node *up = find_locked(ix, parent);
    const family *f = up != NULL ? up->children : NULL;
    for (int k = FULL; f != NULL && k < (among == MX_COLD_AMONG_FULL ? LACKING : N_CLASSES); k++) {
        if (k == LACKING && among != MX_COLD_AMONG_ALL) {
            continue;
        }
        search_known(f->known[k], tokens, n, &best);
        for (const node *c = f->unknown[k]; c != NULL && *n_unknown < cap; c = c->after) {
            unknown[(*n_unknown)++] = (mx_cold_child){.id = c->id, .n_tokens = c->n_tokens};
        }
    }
    pthread_mutex_unlock(&ix->lock);
    return best;
}

static mx_err append_unknown(const family *f, mx_hash256 **out, size_t *cap, size_t *n)
{
    if (!mx_grow((void **)out, cap, *n + f->n_unknown, sizeof **out)) {
        return MX_E_NOMEM;
    }
    for (int k = FULL; k < N_CLASSES; k++) {
        for (const node *c = f->unknown[k]; c != NULL; c = c->after) {
            (*out)[(*n)++] = c->id;
        }
    }
    return MX_OK;
}

mx_err mx_cold_index_crowds(mx_cold_index *ix, size_t least, mx_hash256 **out, size_t *n)
{
    size_t cap = 0;
    mx_err err = MX_OK;
    *out = NULL;
    *n = 0;
    pthread_mutex_lock(&ix->lock);
    for (size_t i = 0; i < ix->n_buckets && err == MX_OK; i++) {
        for (const node *p = ix->buckets[i]; p != NULL && err == MX_OK; p = p->next) {
            if (p->children != NULL && p->children->n_unknown >= least) {
                err = append_unknown(p->children, out, &cap, n);
            }
        }
    }
    pthread_mutex_unlock(&ix->lock);
    return err;
}

bool mx_cold_index_is_named(mx_cold_index *ix, const mx_hash256 *id)
{
    pthread_mutex_lock(&ix->lock);
    const node *n = find_locked(ix, id);
    bool is_named = n != NULL && (is_reliable(ix, n) || n->is_inner);
    pthread_mutex_unlock(&ix->lock);
    return is_named;
}

/* A partial page beside a full one. */
static bool is_extendable(const node *n)
{
    return n->is_there && n->parent != NULL && n->n_tokens > 0 && n->n_tokens < MX_PAGE_TOKENS
           && has_full_child(n->parent);
}

mx_err mx_cold_index_partials(mx_cold_index *ix, mx_cold_partial **out, size_t *n)
{
    size_t cap = 0;
    mx_err err = MX_OK;
    *out = NULL;
    *n = 0;
    pthread_mutex_lock(&ix->lock);
    find_inner_locked(ix);
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

/* The file is gone, no manifest leads here or through here, and there is nothing to remember of it. */
static bool is_useless(const node *n)
{
    return !n->is_there && !n->has_manifest && n->n_links == 0 && !n->is_bad;
}

/* Nodes of what was deleted, or a server that runs for months would keep one for each page that it has ever
 * written. The end of a chain goes before what it continues, so that takes some rounds; what is left after
 * them goes after the next scan. */
static void prune_locked(mx_cold_index *ix)
{
    enum { ROUNDS = 8 };
    bool any = true;
    for (int round = 0; any && round < ROUNDS; round++) {
        any = false;
        for (size_t i = 0; i < ix->n_buckets; i++) {
            for (node **at = &ix->buckets[i]; *at != NULL;) {
                node *n = *at;
                if (!is_useless(n)) {
                    at = &n->next;
                    continue;
                }
                *at = n->next;
                if (n->parent != NULL) {
                    n->parent->n_links--;
                }
                free_node(n);
                ix->n_nodes--;
                any = true;
            }
        }
    }
}

void mx_cold_index_scan_end(mx_cold_index *ix)
{
    pthread_mutex_lock(&ix->lock);
    for (size_t i = 0; i < ix->n_buckets; i++) {
        for (node *n = ix->buckets[i]; n != NULL; n = n->next) {
            if (n->seen != ix->scan) {
                set_there_locked(ix, n, false);
            }
            if (n->manifest_seen != ix->scan) {
                n->has_manifest = n->is_durable = false;
            }
        }
    }
    prune_locked(ix);
    pthread_mutex_unlock(&ix->lock);
}

size_t mx_cold_index_count(mx_cold_index *ix)
{
    pthread_mutex_lock(&ix->lock);
    size_t n = ix->n_there;
    pthread_mutex_unlock(&ix->lock);
    return n;
}
