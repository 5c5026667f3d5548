/* SPDX-License-Identifier: MIT
 *
 * A ring of places, so that the oldest knowledge goes first, and a hash table over them by the name
 * of the prompt, so that the manifests of a long conversation, each of which tells of all its
 * turns, leave one place for each turn. Names are uniformly distributed: eight bytes of one are its
 * hash.
 */
#include "cold/cold_turns.h"

#include <pthread.h>

#include "base/mem.h"

typedef struct place {
    mx_hash256 root, session;
    mx_turn turn;
    uint64_t n_tokens; /* of the session */
    uint32_t next; /* in its bucket, + 1; 0 = the last */
    bool is_used;
} place;

enum { N_BUCKETS = MX_COLD_TURNS_MAX };

struct mx_cold_turns {
    pthread_mutex_t lock;
    place *places;     /* [n_places] */
    size_t n_places, places_cap, n_used;
    size_t next_place; /* once all MX_COLD_TURNS_MAX are there */
    uint32_t *buckets; /* [N_BUCKETS] place + 1; 0 = empty */
};

mx_cold_turns *mx_cold_turns_create(void)
{
    mx_cold_turns *t = mx_calloc(1, sizeof *t);
    uint32_t *buckets = mx_calloc(N_BUCKETS, sizeof *buckets);
    if (t == NULL || buckets == NULL) {
        mx_free(t);
        mx_free(buckets);
        return NULL;
    }
    t->buckets = buckets;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void mx_cold_turns_destroy(mx_cold_turns *t)
{
    if (t == NULL) {
        return;
    }
    pthread_mutex_destroy(&t->lock);
    mx_free(t->places);
    mx_free(t->buckets);
    mx_free(t);
}

static uint32_t *bucket_of(mx_cold_turns *t, const mx_turn *turn)
{
    return &t->buckets[mx_get_le64(turn->text.b) % N_BUCKETS];
}

static void unlink_locked(mx_cold_turns *t, size_t at)
{
    uint32_t *link = bucket_of(t, &t->places[at].turn);
    while (*link != at + 1) {
        link = &t->places[*link - 1].next;
    }
    *link = t->places[at].next;
    t->places[at].is_used = false;
    t->n_used--;
}

static bool is_same_answer(const place *p, const mx_hash256 *root, const mx_turn *turn)
{
    return mx_hash256_eq(&p->turn.text, &turn->text) && mx_hash256_eq(&p->root, root) &&
           memcmp(p->turn.nonce, turn->nonce, sizeof turn->nonce) == 0;
}

/* A place to fill, unlinked; SIZE_MAX = no memory. */
static size_t free_place_locked(mx_cold_turns *t)
{
    if (t->n_places < MX_COLD_TURNS_MAX) {
        void *places = t->places;
        if (!mx_grow(&places, &t->places_cap, t->n_places + 1, sizeof *t->places)) {
            return SIZE_MAX;
        }
        t->places = places;
        t->places[t->n_places].is_used = false;
        return t->n_places++;
    }
    size_t at = t->next_place++ % MX_COLD_TURNS_MAX;
    if (t->places[at].is_used) {
        unlink_locked(t, at);
    }
    return at;
}

void mx_cold_turns_add(mx_cold_turns *t, const mx_hash256 *root, const mx_hash256 *session,
                       uint64_t n_tokens, const mx_turn *turn)
{
    pthread_mutex_lock(&t->lock);
    uint32_t at = *bucket_of(t, turn);
    while (at != 0 && !is_same_answer(&t->places[at - 1], root, turn)) {
        at = t->places[at - 1].next;
    }
    if (at != 0) {
        place *p = &t->places[at - 1];
        if (n_tokens >= p->n_tokens) {
            p->session = *session;
            p->n_tokens = n_tokens;
            p->turn = *turn;
        }
    } else {
        size_t i = free_place_locked(t);
        if (i != SIZE_MAX) {
            uint32_t *bucket = bucket_of(t, turn);
            t->places[i] = (place){*root, *session, *turn, n_tokens, *bucket, true};
            *bucket = (uint32_t)i + 1;
            t->n_used++;
        }
    }
    pthread_mutex_unlock(&t->lock);
}

void mx_cold_turns_drop(mx_cold_turns *t, const mx_hash256 *root, const mx_hash256 *session)
{
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->n_places; i++) {
        const place *p = &t->places[i];
        if (p->is_used && mx_hash256_eq(&p->session, session) && mx_hash256_eq(&p->root, root)) {
            unlink_locked(t, i);
        }
    }
    pthread_mutex_unlock(&t->lock);
}

static bool is_wanted(const place *p, const mx_hash256 *root, uint64_t min_bytes,
                      uint64_t max_bytes, const uint8_t *nonce)
{
    if (!p->is_used || !mx_hash256_eq(&p->root, root)) {
        return false;
    }
    return nonce != NULL ? memcmp(p->turn.nonce, nonce, MX_TURN_NONCE) == 0
                         : p->turn.n_bytes > min_bytes && p->turn.n_bytes <= max_bytes;
}

mx_err mx_cold_turns_list(mx_cold_turns *t, const mx_hash256 *root, uint64_t min_bytes,
                          uint64_t max_bytes, const uint8_t *nonce, mx_turn **turns,
                          mx_hash256 **sessions, size_t *n)
{
    size_t turns_cap = 0, sessions_cap = 0;
    *turns = NULL;
    *sessions = NULL;
    *n = 0;
    bool ok = true;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; ok && i < t->n_places; i++) {
        const place *p = &t->places[i];
        if (!is_wanted(p, root, min_bytes, max_bytes, nonce)) {
            continue;
        }
        ok = mx_grow((void **)turns, &turns_cap, *n + 1, sizeof **turns) &&
             mx_grow((void **)sessions, &sessions_cap, *n + 1, sizeof **sessions);
        if (ok) {
            (*turns)[*n] = p->turn;
            (*sessions)[(*n)++] = p->session;
        }
    }
    pthread_mutex_unlock(&t->lock);
    if (ok) {
        return MX_OK;
    }
    mx_free(*turns);
    mx_free(*sessions);
    *turns = NULL;
    *sessions = NULL;
    *n = 0;
    return MX_E_NOMEM;
}

size_t mx_cold_turns_count(mx_cold_turns *t)
{
    pthread_mutex_lock(&t->lock);
    size_t n = t->n_used;
    pthread_mutex_unlock(&t->lock);
    return n;
}
