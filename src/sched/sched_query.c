/* SPDX-License-Identifier: MIT
 *
 * Questions to the engine from other threads: a function that is to run between two passes, and what
 * a prompt would find.
 *
 * The asking thread sleeps meanwhile. A question about a prompt may have to wait for the folder, which
 * may hang, or for a long pass: then the asker goes on without an answer, and the question, a block of
 * its own, is freed by whoever is last. Nothing is touched by a lookup: no use is counted, no page is held.
 */
#include "sched/sched_internal.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>

typedef enum query_state { QUERY_WAITING, QUERY_DONE, QUERY_ABANDONED } query_state;

struct mx_query {
    mx_query *next;
    void (*fn)(void *arg, const mx_engine_view *view); /* a call; NULL = another kind: */
    void *arg;
    bool wants_ids; /* of this session, or else about a prompt: */
    mx_hash256 session;
    mx_cold_ids found;
    int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    mx_hash256 *roots; /* [n_roots]; not NULL: how much of it is in RAM under any of these? */
    size_t n_roots, n_common;
    mx_hash256 root; /* of the session or the lookup; all that follows is a lookup's */
    mx_bank_match match;
    mx_miss_look look;
    mx_lookup out;
    query_state state; /* under the engine's mu */
    mx_err err;
};

static void query_free(mx_query *q)
{
    mx_free(q->tokens);
    mx_cold_ids_free(&q->found);
    mx_free(q->roots);
    mx_free(q);
}

/* Engine thread. The asker may free q from here on. */
static void finish(mx_engine *e, mx_query *q, mx_err err)
{
    pthread_mutex_lock(&e->mu);
    bool is_abandoned = q->state == QUERY_ABANDONED;
    q->err = err;
    q->state = QUERY_DONE;
    pthread_cond_broadcast(&e->answered);
    pthread_mutex_unlock(&e->mu);
    if (is_abandoned) {
        query_free(q);
    }
}

/* ---- lookups ---------------------------------------------------------------------------------- */

/* n_ram and n_ssd are settled: the rest follows. */
static void describe(const mx_engine *e, mx_query *q, bool is_not_worth)
{
    mx_request_stats *s = &q->out.stats;
    size_t n_reused = s->n_ram + s->n_ssd;
    s->has_started = true;
    s->n_prompt = q->n_tokens;
    s->n_computed = q->n_tokens - n_reused;
    s->cache_mode = s->n_ssd > 0   ? MX_MODE_SSD
                    : s->n_ram > 0 ? MX_MODE_WARM_PREFIX
                                   : MX_MODE_COLD;
    mx_miss_case m = {.root = q->root, .tokens = q->tokens, .n_prompt = q->n_tokens,
                      .n_reused = n_reused, .is_not_worth = is_not_worth};
    mx_miss_explain(e, &m, &q->look, s);
    q->out.us_per_token = e->us_per_token;
}

static void finish_from_ram(mx_engine *e, mx_query *q, bool is_not_worth)
{
    mx_request_stats *s = &q->out.stats;
    bool is_all = q->match.n_tokens == q->n_tokens && q->match.hidden != NULL;
    s->n_ram = is_all ? q->n_tokens : mx_min_size(q->match.n_tokens, q->n_tokens - 1);
    s->n_ssd = 0;
    s->restore = s->n_ram > 0 ? q->match.kind : MX_RESTORE_NONE;
    describe(e, q, is_not_worth);
    finish(e, q, MX_OK);
}

static void answer_probed(mx_engine *e, mx_query *q, const mx_cold_job *job)
{
    q->out.ssd_answered = job != NULL && job->status == MX_OK;
    if (!q->out.ssd_answered) {
        finish_from_ram(e, q, false);
        return;
    }
    size_t from = q->match.n_full_pages * MX_PAGE_TOKENS;
    size_t n_rows = mx_min_size(q->match.n_tokens, q->n_tokens - 1) - from; /* that RAM has of it */
    size_t n_cold = job->n_full * MX_PAGE_TOKENS + job->tail_rows;
    if (e->spacing > 0) { /* how far each tier leads is all that counts */
        from = q->match.n_tokens;
        n_rows = 0;
        n_cold = job->state_at > from ? (size_t)job->state_at - from : 0;
    }
    mx_cold_stats cold;
    mx_cold_get_stats(e->cold, &cold);
    mx_miss_look_cold(&q->look, job);
    if (n_cold <= n_rows) {
        finish_from_ram(e, q, false);
        return;
    }
    q->out.ssd_bytes = job->read_bytes;
    if (cold.read_bytes_per_us > 0) {
        q->out.restore_us = (double)job->read_bytes / cold.read_bytes_per_us;
    }
    if (!mx_admit_is_worth_reading(e, job, n_cold - n_rows)) {
        finish_from_ram(e, q, true);
        return;
    }
    mx_request_stats *s = &q->out.stats;
    s->n_ram = from;
    s->n_ssd = n_cold;
    s->restore = from + n_cold + 1 >= q->n_tokens ? MX_RESTORE_EXACT_PREFIX
                                                  : mx_admit_cold_kind(e, job);
    describe(e, q, false);
    finish(e, q, MX_OK);
}

static void answer_ids(mx_engine *e, mx_query *q, mx_cold_job *job)
{
    if (job != NULL && job->status == MX_OK) {
        q->found = job->found;
        job->found = (mx_cold_ids){0};
    }
    finish(e, q, job != NULL ? job->status : MX_E_BUSY);
}

void mx_query_answered(mx_engine *e, mx_query *q, mx_cold_job *job)
{
    if (q->wants_ids) {
        answer_ids(e, q, job);
    } else {
        answer_probed(e, q, job);
    }
}

static void look_up(mx_engine *e, mx_query *q)
{
    mx_admit_look(e, &q->root, q->tokens, q->n_tokens, &q->match);
    mx_miss_look_ram(e, &q->root, q->tokens, q->n_tokens, &q->look);
    bool is_whole = q->match.n_tokens + 1 >= q->n_tokens;
    q->out.ssd_asked = e->cold != NULL && e->cfg.cold_mode == MX_COLD_ON && !is_whole;
    size_t n_full = q->match.n_full_pages;
    if (!q->out.ssd_asked
        || !mx_ticket_query(e, q, &q->root, q->tokens, q->n_tokens - 1, n_full, q->match.n_tokens))
    {
        finish_from_ram(e, q, false);
    }
}

static void find_common(mx_engine *e, mx_query *q)
{
    for (size_t i = 0; i < q->n_roots; i++) {
        uint32_t n_next;
        size_t n = mx_bank_continuation(e->bank, &q->roots[i], q->tokens, q->n_tokens, NULL, 0, &n_next);
        q->n_common = mx_max_size(q->n_common, n);
    }
    finish(e, q, MX_OK);
}

/* ---- all -------------------------------------------------------------------------------------- */

bool mx_query_run_all(mx_engine *e)
{
    pthread_mutex_lock(&e->mu);
    mx_query *list = e->queries;
    e->queries = NULL;
    pthread_mutex_unlock(&e->mu);
    bool any = list != NULL;
    while (list != NULL) {
        mx_query *q = list;
        list = q->next;
        if (q->fn != NULL) {
            mx_engine_view view = {.bank = e->bank, .pool = e->pool, .root = &e->root};
            q->fn(q->arg, &view);
            finish(e, q, MX_OK);
        } else if (q->roots != NULL) {
            find_common(e, q);
        } else if (!q->wants_ids) {
            look_up(e, q);
        } else if (e->cold == NULL || !mx_ticket_ids(e, q, &q->root, &q->session)) {
            answer_ids(e, q, NULL);
        }
    }
    return any;
}

void mx_query_end_all(mx_engine *e)
{
    pthread_mutex_lock(&e->mu);
    e->has_ended = true;
    mx_query *list = e->queries;
    e->queries = NULL;
    pthread_mutex_unlock(&e->mu);
    while (list != NULL) {
        mx_query *q = list;
        list = q->next;
        finish(e, q, MX_E_CANCELLED);
    }
}

/* Hands q over and waits; timeout_us 0 = for as long as it takes. True: q is the caller's again. */
static bool ask(mx_engine *e, mx_query *q, uint64_t timeout_us)
{
    uint64_t until_us = mx_now_us() + timeout_us;
    struct timespec until = {(time_t)(until_us / 1000000), (long)(until_us % 1000000) * 1000};
    pthread_mutex_lock(&e->mu);
    if (e->has_ended) {
        q->state = QUERY_DONE;
        q->err = MX_E_CANCELLED;
    } else {
        q->next = e->queries;
        e->queries = q;
        e->is_woken = true;
        pthread_cond_signal(&e->wake);
    }
    int rc = 0;
    while (q->state == QUERY_WAITING && rc != ETIMEDOUT) {
        rc = timeout_us > 0 ? pthread_cond_timedwait(&e->answered, &e->mu, &until)
                            : pthread_cond_wait(&e->answered, &e->mu);
    }
    bool is_ours = q->state == QUERY_DONE;
    if (!is_ours) {
        q->state = QUERY_ABANDONED;
    }
    pthread_mutex_unlock(&e->mu);
    return is_ours;
}

mx_err mx_engine_call(mx_engine *e, void (*fn)(void *arg, const mx_engine_view *view), void *arg)
{
    mx_query q = {.fn = fn, .arg = arg};
    (void)ask(e, &q, 0);
    return q.err;
}

/* A question about a prompt, on the heap: the asker may be gone before it is answered. */
static mx_query *query_new(const int32_t *tokens, size_t n_tokens, size_t n_roots)
{
    mx_query *q = mx_calloc(1, sizeof *q);
    if (q == NULL) {
        return NULL;
    }
    q->tokens = mx_alloc(n_tokens * sizeof *tokens);
    q->roots = n_roots == 0 ? NULL : mx_alloc(n_roots * sizeof *q->roots);
    if (q->tokens == NULL || (n_roots > 0 && q->roots == NULL)) {
        query_free(q);
        return NULL;
    }
    memcpy(q->tokens, tokens, n_tokens * sizeof *tokens);
    q->n_tokens = n_tokens;
    q->n_roots = n_roots;
    return q;
}

mx_err mx_engine_lookup(mx_engine *e, const mx_hash256 *salt, const int32_t *tokens, size_t n,
                        uint64_t timeout_us, mx_lookup *out)
{
    *out = (mx_lookup){0};
    if (n == 0) {
        return MX_E_INVALID;
    }
    mx_query *q = query_new(tokens, n, 0);
    if (q == NULL) {
        return MX_E_NOMEM;
    }
    q->root = mx_model_root(e->model, salt);
    if (!ask(e, q, timeout_us)) {
        return MX_E_BUSY;
    }
    mx_err err = q->err;
    *out = q->out;
    query_free(q);
    return err;
}

mx_err mx_engine_session_ids(mx_engine *e, const mx_hash256 *root, const mx_hash256 *session,
                             uint64_t timeout_us, mx_cold_ids *out)
{
    *out = (mx_cold_ids){0};
    mx_query *q = mx_calloc(1, sizeof *q);
    if (q == NULL) {
        return MX_E_NOMEM;
    }
    q->wants_ids = true;
    q->session = *session;
    q->root = *root;
    if (!ask(e, q, timeout_us)) {
        return MX_E_BUSY;
    }
    mx_err err = q->err;
    *out = q->found;
    q->found = (mx_cold_ids){0};
    query_free(q);
    return err;
}

mx_err mx_engine_common(mx_engine *e, const mx_hash256 *salts, size_t n_salts, const int32_t *tokens,
                        size_t n, uint64_t timeout_us, size_t *n_common)
{
    *n_common = 0;
    if (n == 0 || n_salts == 0) {
        return MX_OK;
    }
    mx_query *q = query_new(tokens, n, n_salts);
    if (q == NULL) {
        return MX_E_NOMEM;
    }
    for (size_t i = 0; i < n_salts; i++) {
        q->roots[i] = mx_model_root(e->model, &salts[i]);
    }
    if (!ask(e, q, timeout_us)) {
        return MX_E_BUSY;
    }
    mx_err err = q->err;
    *n_common = q->n_common;
    query_free(q);
    return err;
}
