/* SPDX-License-Identifier: MIT
 *
 * Work that nobody waits for: a prompt that is likely to come, computed into the cache.
 *
 * It runs alone, in small chunks. A request that comes cuts the running pass short (at the next
 * layer or 64 rows, as a cancellation does), and the idle run goes back into its line; what it has
 * finished is in the bank, so it goes on from there, or the request that came was the one it was
 * made for and finds it. It takes free pages, or pages worth less than what it computes.
 */
#include "sched/sched_internal.h"

#include "base/clock.h"
#include "base/log.h"

static void drop(mx_engine *e, mx_request *r, const char *why)
{
    mx_log(MX_LOG_DEBUG, "idle: request=%s tokens=%zu dropped: %s", r->params.id, r->n_prompt, why);
    e->live.n_idle_dropped++;
    mx_request_end(r, MX_FINISH_CANCELLED, MX_E_CANCELLED, why);
}

static mx_request *pop(mx_engine *e)
{
    mx_request *r = e->idle;
    e->idle = r->next;
    r->next = NULL;
    return r;
}

void mx_idle_add(mx_engine *e, mx_request *r)
{
    size_t n = 1;
    mx_request **end = &e->idle;
    for (; *end != NULL; end = &(*end)->next) {
        n++;
    }
    r->next = NULL;
    *end = r;
    if (n > MX_IDLE_MAX) {
        mx_request *oldest = pop(e);
        drop(e, oldest, "there are newer ones");
        mx_request_unref(oldest);
    }
}

/* There is no work but that of idle runs. */
static bool is_free(const mx_engine *e)
{
    for (const mx_request *r = e->runs; r != NULL; r = r->next) {
        if (!r->params.is_idle) {
            return false;
        }
    }
    return e->queue == NULL;
}

void mx_idle_give_way(mx_engine *e)
{
    if (is_free(e)) {
        return;
    }
    mx_request **link = &e->runs;
    while (*link != NULL) {
        mx_request *r = *link;
        if (!r->params.is_idle || r->state == MX_RUN_DONE) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        mx_ticket_abandon(r, false);
        mx_stop_keep_here(e, r);
        mx_seq_free(&r->seq);
        mx_seq_init(&r->seq, e->pool, &r->root);
        r->hidden_at = 0;
        mx_admit_unfollow(r);
        r->state = MX_RUN_QUEUED;
        r->next = e->idle;
        e->idle = r;
        e->live.n_idle_gave_way++;
    }
}

/* Pages for what is not in RAM, the tail, and the states before and behind a pass. */
static bool has_room(mx_engine *e, const mx_request *r)
{
    mx_bank_match m = {0};
    mx_bank_lookup(e->bank, &r->root, r->tokens, r->n_tokens, &m);
    size_t n_new = r->n_tokens - m.n_full_pages * MX_PAGE_TOKENS;
    return mx_bank_make_idle_room(e->bank, n_new / MX_PAGE_TOKENS + 3 +
                                               2 * mx_kv_pool_state_pages(e->pool));
}

bool mx_idle_start(mx_engine *e)
{
    if (e->idle == NULL || e->runs != NULL || e->queue != NULL) {
        return false;
    }
    mx_request *r = pop(e);
    if (!has_room(e, r)) {
        drop(e, r, "it would need pages that are worth more (--kv-budget)");
        mx_request_unref(r);
        return true;
    }
    e->runs = r;
    e->n_runs = 1;
    mx_admit_start(e, r);
    return true;
}

void mx_idle_drop_all(mx_engine *e)
{
    while (e->idle != NULL) {
        mx_request *r = pop(e);
        drop(e, r, "the server stops");
        mx_request_unref(r);
    }
    for (mx_request *r = e->runs; r != NULL; r = r->next) {
        if (r->params.is_idle && r->state != MX_RUN_DONE) {
            drop(e, r, "the server stops");
        }
    }
}
