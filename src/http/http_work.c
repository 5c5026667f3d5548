/* SPDX-License-Identifier: MIT
 *
 * The workers: a few threads that run the handler, fed by a bounded first-in-first-out queue.
 * Parsing and tokenising a long prompt takes tens of milliseconds, which the sockets must not feel.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "http_internal.h"

/* A body of this size keeps a worker for a second or more (60 MiB: 10 to 40 s). */
static const size_t LARGE_BODY = (size_t)1 << 20;

/* What may keep a worker for seconds: a large body, and an administrator's request, which waits for
 * the engine and for whoever else removes files. */
static bool is_slow(const mx_http_exchange *x)
{
    const mx_http_config *cfg = &x->h->cfg;
    return x->body.len >= LARGE_BODY
        || (cfg->is_admin_path != NULL && x->path != NULL && cfg->is_admin_path(x->path));
}

/* Slow requests never take the last worker, so that a health check is not behind them. */
static bool may_take(const mx_http *h, const mx_http_exchange *x)
{
    return !is_slow(x) || h->n_slow == 0 || h->n_slow + 1 < h->cfg.n_workers;
}

/* The first waiting exchange that may be taken now, unlinked; NULL = none. work_lock is held. */
static mx_http_exchange *pop_locked(mx_http *h)
{
    mx_http_exchange *before = NULL;
    mx_http_exchange *x = h->work_head;
    while (x != NULL && !may_take(h, x)) {
        before = x;
        x = x->next_work;
    }
    if (x != NULL) {
        *(before != NULL ? &before->next_work : &h->work_head) = x->next_work;
        if (h->work_tail == x) {
            h->work_tail = before;
        }
        h->n_waiting--;
        h->n_busy++;
        h->n_slow += is_slow(x);
    }
    return x;
}

static mx_http_exchange *take(mx_http *h)
{
    mx_http_exchange *x = NULL;
    pthread_mutex_lock(&h->work_lock);
    while (!h->is_work_stopped && (x = pop_locked(h)) == NULL) {
        pthread_cond_wait(&h->work_cond, &h->work_lock);
    }
    pthread_mutex_unlock(&h->work_lock);
    return x;
}

static void *worker_main(void *arg)
{
    mx_http *h = arg;
    mx_http_exchange *x;
    while ((x = take(h)) != NULL) {
        bool was_slow = is_slow(x);
        /* Nobody waits for the answer of a client that left while it stood in the queue: the loop
         * has then claimed the exchange first. */
        int queued = HTTP_QUEUED;
        if (atomic_compare_exchange_strong(&x->claim, &queued, HTTP_TAKEN)) {
            h->cfg.handler(h->cfg.handler_arg, x);
            /* Two references are ours and the connection's: with no others and no answer, nobody is
             * left who could give one. */
            if (atomic_load(&x->answer) == HTTP_NONE && atomic_load(&x->refs) <= 2) {
                mx_buf body = {0};
                http_own_error(x, &body, 500, "The server did not answer this request.", NULL);
                mx_http_reply(x, 500, "application/json", mx_buf_view(&body), NULL, 0);
                mx_buf_free(&body);
            }
        }
        mx_http_unref(x);
        pthread_mutex_lock(&h->work_lock);
        h->n_busy--;
        h->n_slow -= was_slow;
        if (was_slow) {
            pthread_cond_signal(&h->work_cond); /* another slow one may have been passed over */
        }
        pthread_mutex_unlock(&h->work_lock);
    }
    return NULL;
}

bool http_work_all_busy(mx_http *h)
{
    pthread_mutex_lock(&h->work_lock);
    bool is_busy = h->n_busy == h->cfg.n_workers;
    pthread_mutex_unlock(&h->work_lock);
    return is_busy;
}

mx_err http_work_start(mx_http *h, mx_errbuf *eb)
{
    h->workers = mx_calloc(h->cfg.n_workers, sizeof *h->workers);
    if (h->workers == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the HTTP workers");
    }
    for (unsigned i = 0; i < h->cfg.n_workers; i++) {
        int rc = pthread_create(&h->workers[i], NULL, worker_main, h);
        if (rc != 0) {
            return mx_fail_errno(eb, MX_E_IO, rc, "cannot start HTTP worker %u", i);
        }
        h->n_workers++;
    }
    return MX_OK;
}

bool http_work_push(mx_http *h, mx_http_exchange *x)
{
    pthread_mutex_lock(&h->work_lock);
    bool has_room = h->n_waiting < h->cfg.max_waiting && !h->is_work_stopped;
    if (has_room) {
        x->next_work = NULL;
        x->queued_us = mx_now_us();
        mx_http_ref(x);
        if (h->work_tail == NULL) {
            h->work_head = x;
        } else {
            h->work_tail->next_work = x;
        }
        h->work_tail = x;
        h->n_waiting++;
        pthread_cond_signal(&h->work_cond);
    }
    pthread_mutex_unlock(&h->work_lock);
    return has_room;
}

void http_work_stop(mx_http *h)
{
    pthread_mutex_lock(&h->work_lock);
    h->is_work_stopped = true;
    mx_http_exchange *left = h->work_head;
    h->work_head = h->work_tail = NULL;
    h->n_waiting = 0;
    pthread_cond_broadcast(&h->work_cond);
    pthread_mutex_unlock(&h->work_lock);
    while (left != NULL) {
        mx_http_exchange *next = left->next_work;
        mx_http_unref(left);
        left = next;
    }
    for (unsigned i = 0; i < h->n_workers; i++) {
        pthread_join(h->workers[i], NULL);
    }
    h->n_workers = 0;
    mx_free(h->workers);
    h->workers = NULL;
}
