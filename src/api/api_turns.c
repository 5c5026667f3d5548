/* SPDX-License-Identifier: MIT
 *
 * What was sampled before a restart, or was forgotten in RAM: the folder's manifests tell which
 * prompts were answered, by the names of their texts, and their pages hold the ids. Those of a
 * prompt that a new text begins with are fetched when they are needed, on the worker that prepares
 * the new prompt: a folder that hangs costs it a moment, and then the prompt is tokenised.
 *
 * A conversation with many calls asks for each of them, so the first one brings all of its turns, and
 * the moment is one for all that a prompt asks for.
 */
#include "api/api_state.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    LOAD_WAIT_US = 250000,      /* for the manifests to be read right after the start */
    FETCH_US = 2 * 1000000,     /* for all that one prompt wants */
    MAX_FETCHES = 4,            /* of several answers to one prompt, or when files are gone */
};

/* Ids come from a file: everything else of it was checked. */
static bool are_ids(const mx_api *a, const mx_cold_ids *found)
{
    size_t n_vocab = mx_tokenizer_size(mx_model_tokenizer(a->model));
    for (size_t i = 0; i < found->n; i++) {
        if (found->ids[i] < 0 || (size_t)found->ids[i] >= n_vocab) {
            return false;
        }
    }
    return true;
}

/* The chain up to the end of the answer that has this nonce, or all of it, if it has that answer. */
static bool keep_found(mx_api *a, const mx_hash256 *scope, const mx_cold_ids *found,
                       const uint8_t *nonce, bool is_whole)
{
    mx_turns turns = {0};
    bool is_there = false;
    for (size_t i = 0; (is_whole || !is_there) && i < found->n_turns; i++) {
        if (!mx_turns_add(&turns, &found->turns[i])) {
            break;
        }
        is_there = is_there || memcmp(found->turns[i].nonce, nonce, MX_TURN_NONCE) == 0;
    }
    if (is_there) {
        size_t n = mx_min_size(turns.list[turns.n - 1].n_end, found->n);
        mx_recall_store(a->recall, scope, &turns, found->ids, n);
    }
    mx_turns_free(&turns);
    return is_there;
}

/* What is left of a time that began then. */
static uint64_t time_left(uint64_t began_us, uint64_t most_us)
{
    uint64_t spent_us = mx_now_us() - began_us;
    return spent_us < most_us ? most_us - spent_us : 0;
}

static bool fetch(mx_api *a, const mx_hash256 *scope, const mx_hash256 *session,
                  const uint8_t *nonce, bool is_whole, uint64_t began_us)
{
    mx_cold_ids found;
    uint64_t wait_us = time_left(began_us, FETCH_US);
    if (wait_us == 0) { /* would be no limit */
        return false;
    }
    mx_err err = mx_engine_session_ids(a->engine, scope, session, wait_us, &found);
    bool is_kept = err == MX_OK && are_ids(a, &found) &&
                   keep_found(a, scope, &found, nonce, is_whole);
    mx_cold_ids_free(&found);
    if (err == MX_E_BUSY) {
        mx_log(MX_LOG_WARN, "recall: the cache folder did not answer in time; an earlier answer is "
               "tokenised again");
    }
    return is_kept;
}

bool mx_api_fetch_turns(mx_api *a, const mx_recall_text *t, size_t n_known)
{
    mx_cold *cold = mx_engine_cold(a->engine);
    mx_turn *turns;
    mx_hash256 *sessions;
    size_t n, n_match = 0;
    uint64_t n_found = 0, began_us = mx_now_us();
    if (cold == NULL || mx_cold_list_turns(cold, t->scope, n_known, t->text.len, NULL, LOAD_WAIT_US,
                                           &turns, &sessions, &n) != MX_OK)
    {
        return false;
    }
    uint32_t *order = mx_alloc(n * sizeof *order);
    if (order != NULL && n > 0) {
        n_match = mx_recall_match(t, turns, n, n_known, order);
    }
    for (size_t i = 0; i < n_match && i < MAX_FETCHES; i++) {
        const mx_turn *turn = &turns[order[i]];
        if (turn->n_bytes < n_found) {
            break; /* only another answer to the same prompt could be better */
        }
        if (fetch(a, t->scope, &sessions[order[i]], turn->nonce, false, began_us)) {
            n_found = turn->n_bytes;
        }
    }
    mx_free(order);
    mx_free(turns);
    mx_free(sessions);
    return n_found > 0;
}

bool mx_api_fetch_said(mx_api *a, const mx_hash256 *scope, const uint8_t nonce[MX_TURN_NONCE],
                       uint64_t began_us)
{
    mx_cold *cold = mx_engine_cold(a->engine);
    mx_turn *turns;
    mx_hash256 *sessions;
    size_t n;
    if (cold == NULL || time_left(began_us, FETCH_US) == 0 ||
        mx_cold_list_turns(cold, scope, 0, 0, nonce, time_left(began_us, LOAD_WAIT_US), &turns,
                           &sessions, &n) != MX_OK)
    {
        return false;
    }
    bool any = false;
    for (size_t i = 0; i < n && !any; i++) {
        any = fetch(a, scope, &sessions[i], nonce, true, began_us);
    }
    mx_free(turns);
    mx_free(sessions);
    return any;
}
