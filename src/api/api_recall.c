/* SPDX-License-Identifier: MIT
 *
 * Entries are immutable blocks, sorted by the length of their text. A search takes those that are
 * short enough, hashes the new text once from left to right, stopping at each of their lengths, and
 * compares bytes only where the hash agrees, longest first. So it costs one walk over the text and
 * one over the entries, however much they have in common; comparing all of them would read the same
 * system prompt thousands of times.
 *
 * The hash is fast and nobody's secret: a collision costs one more comparison and nothing else.
 *
 * The lock is never held while a text is hashed, compared or copied, because the thread that
 * remembers is the one that serves all sockets. A search holds its candidates instead (n_holders);
 * an entry that was evicted meanwhile is freed by the last one that lets go.
 */
#include "api/api_recall.h"

#include "base/mem.h"

#include <pthread.h>

/* A long conversation of an agent is about 160 KB a turn (20,000 tokens of text and ids), a chat a
 * few KB: 64 MiB are some hundreds of the one and thousands of the other. */
enum { DEFAULT_ENTRIES = 4096, DEFAULT_BYTES = 64 << 20 };

/* The arrays are in the same block, behind the struct. */
typedef struct entry {
    struct entry *older, *newer; /* the order of use; once it is out: `older` = the next to free */
    uint32_t n_holders;
    bool is_listed;
    bool is_chat;
    mx_hash256 scope;
    uint64_t hash;    /* of the text */
    size_t bytes;     /* of the block */
    mx_span *controls;  /* [n_controls] */
    size_t n_controls;
    int32_t *ids;     /* [n_ids] */
    size_t n_ids;
    mx_str text;
} entry;

struct mx_recall {
    mx_recall_config cfg;
    uint64_t hash_mask;
    pthread_mutex_t mu; /* guards what follows, and order, n_holders, is_listed of entries */
    entry **sorted;     /* [n] by text.len */
    size_t n, sorted_cap;
    entry *oldest, *newest;
    size_t bytes;
    uint64_t n_stored, n_found, n_evicted;
};

mx_err mx_recall_create(mx_recall **out, const mx_recall_config *cfg, mx_errbuf *eb)
{
    mx_recall *m = mx_calloc(1, sizeof *m);
    *out = m;
    if (m == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    m->cfg = *cfg;
    m->cfg.max_entries = cfg->max_entries != 0 ? cfg->max_entries : DEFAULT_ENTRIES;
    m->cfg.max_bytes = cfg->max_bytes != 0 ? cfg->max_bytes : DEFAULT_BYTES;
    m->hash_mask = cfg->hash_bits == 0 || cfg->hash_bits >= 64 ? UINT64_MAX
                                                               : (1ull << cfg->hash_bits) - 1;
    pthread_mutex_init(&m->mu, NULL);
    return MX_OK;
}

void mx_recall_destroy(mx_recall *m)
{
    if (m == NULL) {
        return;
    }
    for (size_t i = 0; i < m->n; i++) {
        mx_free(m->sorted[i]);
    }
    mx_free(m->sorted);
    pthread_mutex_destroy(&m->mu);
    mx_free(m);
}

/* ---- hashing --------------------------------------------------------------------------------- */

/* Walks a text; `at` is a multiple of 8. */
typedef struct walk {
    const char *text;
    size_t at;
    uint64_t h;
} walk;

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

/* The hash of the first n bytes; n never decreases from call to call. */
static uint64_t hash_until(walk *w, size_t n)
{
    for (; n - w->at >= 8; w->at += 8) {
        uint64_t v;
        memcpy(&v, w->text + w->at, 8);
        w->h = mix(w->h, v);
    }
    uint64_t tail = 0;
    if (n > w->at) {
        memcpy(&tail, w->text + w->at, n - w->at);
    }
    return mix(mix(w->h, tail), n);
}

/* ---- the list -------------------------------------------------------------------------------- */

static void unlink_order_locked(mx_recall *m, entry *e)
{
    *(e->older != NULL ? &e->older->newer : &m->oldest) = e->newer;
    *(e->newer != NULL ? &e->newer->older : &m->newest) = e->older;
}

static void append_order_locked(mx_recall *m, entry *e)
{
    e->older = m->newest;
    e->newer = NULL;
    *(m->newest != NULL ? &m->newest->newer : &m->oldest) = e;
    m->newest = e;
}

/* The first entry whose text has at least n bytes. */
static size_t first_of_length_locked(const mx_recall *m, size_t n)
{
    size_t lo = 0, hi = m->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (m->sorted[mid]->text.len < n) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Takes entry number i out; when nobody holds it, it joins the list to be freed. */
static void remove_locked(mx_recall *m, size_t i, entry **to_free)
{
    entry *e = m->sorted[i];
    memmove(m->sorted + i, m->sorted + i + 1, (m->n - i - 1) * sizeof *m->sorted);
    m->n--;
    m->bytes -= e->bytes;
    unlink_order_locked(m, e);
    e->is_listed = false;
    if (e->n_holders == 0) {
        e->older = *to_free;
        *to_free = e;
    }
}

static void evict_oldest_locked(mx_recall *m, entry **to_free)
{
    size_t i = first_of_length_locked(m, m->oldest->text.len);
    while (m->sorted[i] != m->oldest) {
        i++;
    }
    remove_locked(m, i, to_free);
    m->n_evicted++;
}

static void free_all(entry *e)
{
    while (e != NULL) {
        entry *next = e->older;
        mx_free(e);
        e = next;
    }
}

static bool is_of(const entry *e, const mx_recall_text *t)
{
    return e->is_chat == t->is_chat && mx_hash256_eq(&e->scope, t->scope);
}

/* t begins with the text of e, and within it has control tokens where that has them. */
static bool begins_with(const mx_recall_text *t, const entry *e)
{
    size_t n = 0;
    while (n < t->n_controls && t->controls[n].begin < e->text.len) {
        n++;
    }
    if (n != e->n_controls || memcmp(t->text.ptr, e->text.ptr, e->text.len) != 0) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (t->controls[i].begin != e->controls[i].begin ||
            mx_min_size(t->controls[i].end, e->text.len) != e->controls[i].end)
        {
            return false;
        }
    }
    return true;
}

/* ---- store ----------------------------------------------------------------------------------- */

static entry *entry_new(const mx_recall *m, const mx_recall_text *t, const int32_t *ids, size_t n)
{
    size_t controls_bytes, ids_bytes, bytes = sizeof(entry);
    if (!mx_mul_ok(t->n_controls, sizeof *t->controls, &controls_bytes) ||
        !mx_mul_ok(n, sizeof *ids, &ids_bytes) || !mx_add_ok(bytes, controls_bytes, &bytes) ||
        !mx_add_ok(bytes, ids_bytes, &bytes) || !mx_add_ok(bytes, t->text.len, &bytes) ||
        bytes > m->cfg.max_bytes)
    {
        return NULL;
    }
    entry *e = mx_alloc(bytes);
    if (e == NULL) {
        return NULL;
    }
    *e = (entry){.is_chat = t->is_chat, .scope = *t->scope, .bytes = bytes,
                 .n_controls = t->n_controls, .n_ids = n};
    e->controls = (mx_span *)(e + 1);
    e->ids = (int32_t *)(e->controls + t->n_controls);
    char *text = (char *)(e->ids + n);
    if (t->n_controls > 0) {
        memcpy(e->controls, t->controls, controls_bytes);
    }
    memcpy(e->ids, ids, ids_bytes);
    memcpy(text, t->text.ptr, t->text.len);
    e->text = (mx_str){text, t->text.len};
    walk w = {.text = text};
    e->hash = hash_until(&w, e->text.len) & m->hash_mask;
    return e;
}

static bool insert_locked(mx_recall *m, entry *e, const mx_recall_text *t, entry **to_free)
{
    void *sorted = m->sorted;
    if (!mx_grow(&sorted, &m->sorted_cap, m->n + 1, sizeof *m->sorted)) {
        return false;
    }
    m->sorted = sorted;
    size_t at = first_of_length_locked(m, e->text.len);
    for (size_t i = at; i < m->n && m->sorted[i]->text.len == e->text.len; i++) {
        if (m->sorted[i]->hash == e->hash && is_of(m->sorted[i], t) &&
            begins_with(t, m->sorted[i]))
        {
            remove_locked(m, i, to_free);
            break;
        }
    }
    while (m->n > 0 && (m->n >= m->cfg.max_entries || m->bytes > m->cfg.max_bytes - e->bytes)) {
        evict_oldest_locked(m, to_free);
    }
    at = first_of_length_locked(m, e->text.len);
    memmove(m->sorted + at + 1, m->sorted + at, (m->n - at) * sizeof *m->sorted);
    m->sorted[at] = e;
    m->n++;
    m->bytes += e->bytes;
    m->n_stored++;
    e->is_listed = true;
    append_order_locked(m, e);
    return true;
}

void mx_recall_store(mx_recall *m, const mx_recall_text *t, const int32_t *ids, size_t n_ids)
{
    if (t->text.len == 0 || n_ids == 0) {
        return;
    }
    entry *e = entry_new(m, t, ids, n_ids);
    if (e == NULL) {
        return;
    }
    entry *to_free = NULL;
    pthread_mutex_lock(&m->mu);
    bool is_in = insert_locked(m, e, t, &to_free);
    pthread_mutex_unlock(&m->mu);
    free_all(to_free);
    if (!is_in) {
        mx_free(e);
    }
}

/* ---- find ------------------------------------------------------------------------------------ */

/* Entries that are short enough, shortest first, held. NULL = none, or no memory. */
static entry **hold_candidates(mx_recall *m, const mx_recall_text *t, size_t *n)
{
    entry **list = NULL;
    *n = 0;
    pthread_mutex_lock(&m->mu);
    size_t n_short = first_of_length_locked(m, t->text.len + 1);
    if (n_short > 0) {
        list = mx_alloc(n_short * sizeof *list);
    }
    for (size_t i = 0; list != NULL && i < n_short; i++) {
        if (is_of(m->sorted[i], t)) {
            list[*n] = m->sorted[i];
            list[(*n)++]->n_holders++;
        }
    }
    pthread_mutex_unlock(&m->mu);
    return list;
}

static void let_go(mx_recall *m, entry **list, size_t n, entry *found)
{
    entry *to_free = NULL;
    pthread_mutex_lock(&m->mu);
    if (found != NULL) {
        m->n_found++;
        if (found->is_listed) {
            unlink_order_locked(m, found);
            append_order_locked(m, found);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (--list[i]->n_holders == 0 && !list[i]->is_listed) {
            list[i]->older = to_free;
            to_free = list[i];
        }
    }
    pthread_mutex_unlock(&m->mu);
    free_all(to_free);
}

static bool append_ids(mx_tokens *to, const entry *e)
{
    size_t n;
    void *ids = to->ids;
    if (!mx_add_ok(to->n, e->n_ids, &n) || !mx_grow(&ids, &to->cap, n, sizeof *to->ids)) {
        return false;
    }
    to->ids = ids;
    memcpy(to->ids + to->n, e->ids, e->n_ids * sizeof *e->ids);
    to->n = n;
    return true;
}

size_t mx_recall_find(mx_recall *m, const mx_recall_text *t, mx_tokens *ids)
{
    size_t n;
    entry **list = hold_candidates(m, t, &n);
    bool *agrees = mx_calloc(n, sizeof *agrees);
    entry *found = NULL;
    size_t len = 0;
    if (list != NULL && agrees != NULL) {
        walk w = {.text = t->text.ptr};
        for (size_t i = 0; i < n; i++) {
            agrees[i] = (hash_until(&w, list[i]->text.len) & m->hash_mask) == list[i]->hash;
        }
        for (size_t i = n; i-- > 0 && found == NULL;) {
            if (agrees[i] && begins_with(t, list[i])) {
                found = list[i];
            }
        }
        if (found != NULL && append_ids(ids, found)) {
            len = found->text.len;
        }
    }
    let_go(m, list, n, len > 0 ? found : NULL);
    mx_free(agrees);
    mx_free(list);
    return len;
}

/* ---- what was shown -------------------------------------------------------------------------- */

size_t mx_recall_shown(const mx_tokenizer *t, const int32_t *ids, size_t n, mx_str seen,
                       size_t *n_bytes)
{
    size_t n_whole = 0, at = 0;
    *n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        mx_str piece = mx_tokenizer_piece(t, ids[i], false);
        if (piece.len == 0 || piece.len > seen.len - at ||
            memcmp(piece.ptr, seen.ptr + at, piece.len) != 0)
        {
            break;
        }
        at += piece.len;
        /* In the middle of a character the next tokeniser call would see half of it. */
        if (at == seen.len || ((unsigned char)seen.ptr[at] & 0xC0) != 0x80) {
            n_whole = i + 1;
            *n_bytes = at;
        }
    }
    return n_whole;
}

/* ---- looking in ------------------------------------------------------------------------------ */

void mx_recall_clear(mx_recall *m)
{
    entry *to_free = NULL;
    if (m == NULL) {
        return;
    }
    pthread_mutex_lock(&m->mu);
    while (m->n > 0) {
        remove_locked(m, m->n - 1, &to_free); /* one that somebody is reading goes when he is done */
    }
    pthread_mutex_unlock(&m->mu);
    free_all(to_free);
}

void mx_recall_get_stats(mx_recall *m, mx_recall_stats *out)
{
    pthread_mutex_lock(&m->mu);
    *out = (mx_recall_stats){
        .n_entries = m->n,
        .bytes = m->bytes,
        .max_entries = m->cfg.max_entries,
        .max_bytes = m->cfg.max_bytes,
        .n_stored = m->n_stored,
        .n_found = m->n_found,
        .n_evicted = m->n_evicted,
    };
    pthread_mutex_unlock(&m->mu);
}

bool mx_recall_check(mx_recall *m)
{
    pthread_mutex_lock(&m->mu);
    bool ok = m->n <= m->cfg.max_entries && m->bytes <= m->cfg.max_bytes;
    size_t bytes = 0, n = 0;
    for (size_t i = 0; ok && i < m->n; i++) {
        entry *e = m->sorted[i];
        walk w = {.text = e->text.ptr};
        bytes += e->bytes;
        ok = e->is_listed && (i == 0 || m->sorted[i - 1]->text.len <= e->text.len) &&
             (hash_until(&w, e->text.len) & m->hash_mask) == e->hash;
    }
    entry *before = NULL;
    for (entry *e = m->oldest; ok && e != NULL; e = e->newer) {
        ok = e->older == before && ++n <= m->n;
        before = e;
    }
    ok = ok && n == m->n && before == m->newest && bytes == m->bytes;
    pthread_mutex_unlock(&m->mu);
    return ok;
}
