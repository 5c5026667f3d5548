/* SPDX-License-Identifier: MIT
 *
 * Entries are immutable blocks, sorted by the length of their prompt's text. A search takes those
 * that are short enough, sums the new text up once from left to right, stopping at each of their
 * lengths, and compares names (SHA-256) only where the sum agrees, longest first. So it costs one
 * walk over the text and one over the entries, however much they have in common; comparing all of
 * them would read the same system prompt thousands of times.
 *
 * The sum is fast and nobody's secret: a collision costs one more name and nothing else.
 *
 * What follows the prompt is compared with the ids themselves, by spelling them. So an answer of
 * which a template or a client has cut the end is still recognised up to there.
 *
 * The lock is never held while a text is summed up, named or spelled, because the thread that
 * remembers is the one that serves all sockets. A search holds its candidates instead (n_holders);
 * an entry that was evicted meanwhile is freed by the last one that lets go.
 */
#include "api/api_recall.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>

/* A long conversation of an agent is about 80 KB a turn (20,000 ids), a chat a few KB: 64 MiB are
 * near a thousand of the one and thousands of the other. */
enum { DEFAULT_ENTRIES = 4096, DEFAULT_BYTES = 64 << 20 };

/* Answers that came out alike are one entry under several nonces: a retry, or clients that ask the
 * same at the same time. More of them than this are a load test. */
enum { MAX_TWINS = 7 };

/* The arrays are in the same block, behind the struct. */
typedef struct entry {
    struct entry *older, *newer; /* the order of use; once it is out: `older` = the next to free */
    uint32_t n_holders;
    bool is_listed;
    uint64_t serial;  /* later ones are greater */
    mx_hash256 scope;
    size_t bytes;     /* of the block */
    mx_turn *turns;   /* [n_turns] the last one is what it is listed under */
    size_t n_turns;
    int32_t *ids;     /* [n_ids] */
    size_t n_ids;
    uint8_t twins[MAX_TWINS][MX_TURN_NONCE]; /* [n_twins] other nonces of the last turn, newest
                                              * first; fixed before the entry is listed */
    size_t n_twins;
} entry;

struct mx_recall {
    mx_recall_config cfg;
    uint64_t sum_mask;
    pthread_mutex_t mu; /* guards what follows, and order, n_holders, is_listed of entries */
    entry **sorted;     /* [n] by key_of()->n_bytes */
    size_t n, sorted_cap;
    entry *oldest, *newest;
    size_t bytes;
    uint64_t n_stored, n_found, n_evicted;
};

static const mx_turn *key_of(const entry *e)
{
    return &e->turns[e->n_turns - 1];
}

void mx_turns_free(mx_turns *t)
{
    mx_free(t->list);
    *t = (mx_turns){0};
}

bool mx_turns_add(mx_turns *t, const mx_turn *turn)
{
    void *list = t->list;
    if (!mx_grow(&list, &t->cap, t->n + 1, sizeof *t->list)) {
        return false;
    }
    t->list = list;
    if (t->n == MX_TURNS_MAX) {
        memmove(t->list, t->list + 1, --t->n * sizeof *t->list);
    }
    t->list[t->n++] = *turn;
    return true;
}

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
    m->sum_mask = cfg->sum_bits == 0 || cfg->sum_bits >= 64 ? UINT64_MAX
                                                            : (1ull << cfg->sum_bits) - 1;
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

/* ---- names of texts -------------------------------------------------------------------------- */

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

/* The sum of the first n bytes; n never decreases from call to call. On disk, too:
 * docs/file-format.md, section 4.1. */
static uint64_t sum_until(walk *w, size_t n)
{
    for (; n - w->at >= 8; w->at += 8) {
        w->h = mix(w->h, mx_get_le64((const uint8_t *)w->text + w->at));
    }
    uint8_t tail[8] = {0};
    if (n > w->at) {
        memcpy(tail, w->text + w->at, n - w->at);
    }
    return mix(mix(w->h, mx_get_le64(tail)), n);
}

/* The identity of the first n bytes of t: what they are, and where control tokens are in them. */
static bool name_until(const mx_recall_text *t, size_t n, mx_hash256 *out)
{
    static const char domain[16] = "mtplx turn v1";
    uint8_t words[16];
    mx_sha256 h;
    mx_sha256_init(&h);
    mx_sha256_update(&h, domain, sizeof domain);
    mx_put_le64(words, t->is_chat);
    mx_put_le64(words + 8, n);
    mx_sha256_update(&h, words, sizeof words);
    mx_sha256_update(&h, t->text.ptr, n);
    for (size_t i = 0; i < t->n_controls && t->controls[i].begin < n; i++) {
        mx_put_le64(words, t->controls[i].begin);
        mx_put_le64(words + 8, mx_min_size(t->controls[i].end, n));
        mx_sha256_update(&h, words, sizeof words);
    }
    return mx_sha256_finish(&h, out);
}

bool mx_recall_name(const mx_recall_text *t, size_t n_prompt, mx_turn *out)
{
    walk w = {.text = t->text.ptr};
    *out = (mx_turn){.n_bytes = t->text.len, .n_prompt = (uint32_t)n_prompt, .n_end = UINT32_MAX};
    out->sum = sum_until(&w, t->text.len);
    return n_prompt > 0 && n_prompt < UINT32_MAX && name_until(t, t->text.len, &out->text);
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

/* The first entry whose prompt has at least n bytes. */
static size_t first_of_length_locked(const mx_recall *m, size_t n)
{
    size_t lo = 0, hi = m->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (key_of(m->sorted[mid])->n_bytes < n) {
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
    size_t i = first_of_length_locked(m, (size_t)key_of(m->oldest)->n_bytes);
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

/* ---- store ----------------------------------------------------------------------------------- */

static entry *entry_new(const mx_recall *m, const mx_hash256 *scope, const mx_turns *turns,
                        const int32_t *ids, size_t n)
{
    size_t turns_bytes = turns->n * sizeof *turns->list, ids_bytes, bytes = sizeof(entry);
    if (!mx_mul_ok(n, sizeof *ids, &ids_bytes) || !mx_add_ok(bytes, turns_bytes, &bytes) ||
        !mx_add_ok(bytes, ids_bytes, &bytes) || bytes > m->cfg.max_bytes)
    {
        return NULL;
    }
    entry *e = mx_alloc(bytes);
    if (e == NULL) {
        return NULL;
    }
    *e = (entry){.scope = *scope, .bytes = bytes, .n_turns = turns->n, .n_ids = n};
    e->turns = (mx_turn *)(e + 1);
    e->ids = (int32_t *)(e->turns + turns->n);
    memcpy(e->turns, turns->list, turns_bytes);
    memcpy(e->ids, ids, ids_bytes);
    e->turns[turns->n - 1].n_end = (uint32_t)n;
    return e;
}

static bool is_same_prompt(const entry *a, const entry *b)
{
    return mx_hash256_eq(&a->scope, &b->scope) &&
           mx_hash256_eq(&key_of(a)->text, &key_of(b)->text);
}

static bool is_beginning(const entry *a, const entry *b)
{
    return a->n_ids <= b->n_ids && memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids) == 0;
}

static void add_twin(entry *e, const uint8_t nonce[MX_TURN_NONCE])
{
    if (e->n_twins < MAX_TWINS && memcmp(key_of(e)->nonce, nonce, MX_TURN_NONCE) != 0) {
        memcpy(e->twins[e->n_twins++], nonce, MX_TURN_NONCE);
    }
}

/* The same ids were given to clients under the nonces of o, too: each may come back. */
static void inherit_nonces(entry *e, const entry *o)
{
    add_twin(e, key_of(o)->nonce);
    for (size_t i = 0; i < o->n_twins; i++) {
        add_twin(e, o->twins[i]);
    }
}

/* Several answers to one prompt stand side by side, but not one and its beginning. False: e is not
 * needed. */
static bool make_place_locked(mx_recall *m, entry *e, entry **to_free)
{
    size_t n_bytes = (size_t)key_of(e)->n_bytes;
    size_t i = first_of_length_locked(m, n_bytes);
    while (i < m->n && key_of(m->sorted[i])->n_bytes == n_bytes) {
        entry *o = m->sorted[i];
        bool is_same = is_same_prompt(o, e);
        if (is_same && is_beginning(o, e)) {
            if (o->n_ids == e->n_ids) {
                inherit_nonces(e, o);
            }
            remove_locked(m, i, to_free);
        } else if (is_same && is_beginning(e, o)) {
            unlink_order_locked(m, o);
            append_order_locked(m, o);
            return false;
        } else {
            i++;
        }
    }
    while (m->n > 0 && (m->n >= m->cfg.max_entries || m->bytes > m->cfg.max_bytes - e->bytes)) {
        evict_oldest_locked(m, to_free);
    }
    return true;
}

static bool insert_locked(mx_recall *m, entry *e, entry **to_free)
{
    void *sorted = m->sorted;
    if (!mx_grow(&sorted, &m->sorted_cap, m->n + 1, sizeof *m->sorted)) {
        return false;
    }
    m->sorted = sorted;
    if (!make_place_locked(m, e, to_free)) {
        return false;
    }
    size_t at = first_of_length_locked(m, (size_t)key_of(e)->n_bytes);
    memmove(m->sorted + at + 1, m->sorted + at, (m->n - at) * sizeof *m->sorted);
    m->sorted[at] = e;
    m->n++;
    m->bytes += e->bytes;
    e->serial = ++m->n_stored;
    e->is_listed = true;
    append_order_locked(m, e);
    return true;
}

void mx_recall_store(mx_recall *m, const mx_hash256 *scope, const mx_turns *turns,
                     const int32_t *ids, size_t n_ids)
{
    if (turns->n == 0 || n_ids < turns->list[turns->n - 1].n_prompt || n_ids >= UINT32_MAX) {
        return;
    }
    entry *e = entry_new(m, scope, turns, ids, n_ids);
    if (e == NULL) {
        return;
    }
    entry *to_free = NULL;
    pthread_mutex_lock(&m->mu);
    bool is_in = insert_locked(m, e, &to_free);
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
        if (mx_hash256_eq(&m->sorted[i]->scope, t->scope)) {
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

/* Of the answers to one prompt, the one that says what t says. */
typedef struct best_answer {
    entry *e;
    size_t n_ids, n_bytes; /* of the answer, that agree */
} best_answer;

/* What of t comes behind its first n bytes and is no control token: an answer has none. */
static mx_str text_behind(const mx_recall_text *t, size_t n)
{
    size_t end = t->text.len;
    for (size_t i = t->n_controls; i-- > 0 && t->controls[i].end > n;) {
        end = mx_max_size(t->controls[i].begin, n);
    }
    return (mx_str){t->text.ptr + n, end - n};
}

static void compare_answer(const mx_tokenizer *tok, const mx_recall_text *t, entry *e,
                           best_answer *best)
{
    const mx_turn *k = key_of(e);
    size_t n_bytes, n = mx_recall_shown(tok, e->ids + k->n_prompt, e->n_ids - k->n_prompt,
                                        text_behind(t, (size_t)k->n_bytes), &n_bytes);
    if (best->e == NULL || n_bytes > best->n_bytes ||
        (n_bytes == best->n_bytes && e->serial > best->e->serial))
    {
        *best = (best_answer){e, n, n_bytes};
    }
}

/* The longest prompt to which some answer agrees; only where there is none, the longest prompt.
 * list: those whose sum agrees are marked in agrees[]. */
static best_answer find_best(const mx_tokenizer *tok, const mx_recall_text *t, entry **list,
                             const bool *agrees, size_t n)
{
    best_answer best = {0}, silent = {0};
    mx_hash256 name;
    size_t named = SIZE_MAX;
    for (size_t i = n; i-- > 0;) {
        const mx_turn *k = key_of(list[i]);
        if (best.e != NULL && k->n_bytes < key_of(best.e)->n_bytes) {
            if (best.n_ids > 0) {
                return best;
            }
            silent = silent.e != NULL ? silent : best;
            best = (best_answer){0};
        }
        if (!agrees[i]) {
            continue;
        }
        if (named != k->n_bytes && !name_until(t, (size_t)k->n_bytes, &name)) {
            break;
        }
        named = (size_t)k->n_bytes;
        if (mx_hash256_eq(&name, &k->text)) {
            compare_answer(tok, t, list[i], &best);
        }
    }
    return best.n_ids > 0 || silent.e == NULL ? best : silent;
}

static bool append_ids(mx_tokens *to, const int32_t *from, size_t n_from)
{
    size_t n;
    void *ids = to->ids;
    if (!mx_add_ok(to->n, n_from, &n) || !mx_grow(&ids, &to->cap, n, sizeof *to->ids)) {
        return false;
    }
    to->ids = ids;
    memcpy(to->ids + to->n, from, n_from * sizeof *from);
    to->n = n;
    return true;
}

/* The turns of b->e; the last one only where some of its answer is in the text. */
static bool copy_turns(mx_turns *to, const best_answer *b)
{
    size_t n = b->e->n_turns - (b->n_ids == 0);
    for (size_t i = 0; i < n; i++) {
        if (!mx_turns_add(to, &b->e->turns[i])) {
            return false;
        }
    }
    if (b->n_ids > 0) {
        mx_turn *last = &to->list[to->n - 1];
        last->n_end = (uint32_t)(last->n_prompt + b->n_ids);
        if (last->n_end < b->e->n_ids) { /* the beginning of an answer is not what was said in it */
            memset(last->nonce, 0, sizeof last->nonce);
        }
    }
    return true;
}

size_t mx_recall_find(mx_recall *m, const mx_tokenizer *tok, const mx_recall_text *t,
                      mx_tokens *ids, mx_turns *turns)
{
    size_t n, len = 0;
    entry **list = hold_candidates(m, t, &n);
    bool *agrees = mx_calloc(n, sizeof *agrees);
    best_answer best = {0};
    if (list != NULL && agrees != NULL) {
        walk w = {.text = t->text.ptr};
        for (size_t i = 0; i < n; i++) {
            const mx_turn *k = key_of(list[i]);
            uint64_t sum = sum_until(&w, (size_t)k->n_bytes);
            agrees[i] = ((sum ^ k->sum) & m->sum_mask) == 0;
        }
        best = find_best(tok, t, list, agrees, n);
    }
    if (best.e != NULL) {
        const mx_turn *k = key_of(best.e);
        if ((turns == NULL || copy_turns(turns, &best)) &&
            append_ids(ids, best.e->ids, k->n_prompt + best.n_ids))
        {
            len = (size_t)k->n_bytes + best.n_bytes;
        }
    }
    let_go(m, list, n, len > 0 ? best.e : NULL);
    mx_free(agrees);
    mx_free(list);
    return len;
}

/* ---- what was said --------------------------------------------------------------------------- */

static bool has_twin(const entry *e, const uint8_t *nonce)
{
    bool found = false;
    for (size_t i = 0; i < e->n_twins && !found; i++) {
        found = memcmp(e->twins[i], nonce, MX_TURN_NONCE) == 0;
    }
    return found;
}

/* The newest entry that knows the answer, held. */
static entry *hold_said(mx_recall *m, const mx_hash256 *scope, const uint8_t *nonce, size_t *at)
{
    entry *found = NULL;
    pthread_mutex_lock(&m->mu);
    for (entry *e = m->newest; e != NULL && found == NULL; e = e->older) {
        for (size_t i = e->n_turns; i-- > 0 && found == NULL;) {
            bool is_it = memcmp(e->turns[i].nonce, nonce, MX_TURN_NONCE) == 0 ||
                         (i == e->n_turns - 1 && has_twin(e, nonce));
            if (is_it && mx_hash256_eq(&e->scope, scope)) {
                found = e;
                *at = i;
                e->n_holders++;
            }
        }
    }
    pthread_mutex_unlock(&m->mu);
    return found;
}

bool mx_recall_said(mx_recall *m, const mx_tokenizer *tok, const mx_hash256 *scope,
                    const uint8_t nonce[MX_TURN_NONCE], mx_buf *out)
{
    size_t at = 0;
    entry *e = hold_said(m, scope, nonce, &at);
    if (e == NULL) {
        return false;
    }
    size_t end = mx_min_size(e->turns[at].n_end, e->n_ids);
    for (size_t i = e->turns[at].n_prompt; i < end; i++) {
        mx_str piece = mx_tokenizer_piece(tok, e->ids[i], false);
        mx_buf_append(out, piece.ptr, piece.len);
    }
    let_go(m, &e, 1, NULL);
    return !out->failed;
}

/* ---- turns whose ids are elsewhere ----------------------------------------------------------- */

typedef struct far_turn {
    uint32_t at;
    uint64_t n_bytes;
} far_turn;

static int by_length(const void *a, const void *b)
{
    uint64_t x = ((const far_turn *)a)->n_bytes, y = ((const far_turn *)b)->n_bytes;
    return (x > y) - (x < y);
}

size_t mx_recall_match(const mx_recall_text *t, const mx_turn *list, size_t n, size_t n_known,
                       uint32_t *order)
{
    far_turn *far = mx_alloc(n * sizeof *far);
    size_t n_far = 0, n_out = 0;
    for (size_t i = 0; far != NULL && i < n; i++) {
        if (list[i].n_bytes > n_known && list[i].n_bytes <= t->text.len) {
            far[n_far++] = (far_turn){(uint32_t)i, list[i].n_bytes};
        }
    }
    if (n_far > 0) {
        qsort(far, n_far, sizeof *far, by_length);
    }
    walk w = {.text = t->text.ptr};
    size_t n_agree = 0;
    for (size_t i = 0; i < n_far; i++) {
        if (sum_until(&w, (size_t)far[i].n_bytes) == list[far[i].at].sum) {
            far[n_agree++] = far[i];
        }
    }
    mx_hash256 name;
    uint64_t named = UINT64_MAX;
    for (size_t i = n_agree; i-- > 0;) {
        if (named != far[i].n_bytes && !name_until(t, (size_t)far[i].n_bytes, &name)) {
            break;
        }
        named = far[i].n_bytes;
        if (mx_hash256_eq(&name, &list[far[i].at].text)) {
            order[n_out++] = far[i].at;
        }
    }
    mx_free(far);
    return n_out;
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
        remove_locked(m, m->n - 1, &to_free); /* who is read goes when his reader is done */
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
        const entry *e = m->sorted[i];
        const mx_turn *k = key_of(e);
        bytes += e->bytes;
        ok = e->is_listed && k->n_end == e->n_ids && k->n_prompt <= e->n_ids && k->n_prompt > 0 &&
             (i == 0 || key_of(m->sorted[i - 1])->n_bytes <= k->n_bytes);
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
