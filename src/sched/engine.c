/* SPDX-License-Identifier: MIT
 *
 * The engine's thread and its front door.
 *
 * One loop: take what was submitted, look at cancellations and at the cold tier's answers, admit,
 * compute one pass, repeat; sleep on a condition variable when there is nothing to do. Everything
 * that the loop owns needs no lock; what crosses threads is the list of incoming requests, the stop
 * flags and a copy of the statistics.
 */
#include "sched/sched_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>

static const uint64_t STATS_PERIOD_US = 100000;
/* Of the memory of evicted pages: 128 KiB, a million tokens. */
static const size_t GONE_SLOTS = 16384;
/* How long a probe may wait for its turn while the reader works for others. */
static const uint64_t LINE_WAIT_US = 10 * 1000000;

void mx_engine_wake(mx_engine *e)
{
    pthread_mutex_lock(&e->mu);
    e->is_woken = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mu);
}

static void wake_from_cold(void *arg)
{
    mx_engine_wake(arg);
}

mx_err mx_engine_submit(mx_engine *e, mx_request *r, mx_errbuf *eb)
{
    mx_err err = MX_OK;
    pthread_mutex_lock(&e->mu);
    if (e->is_stopping) {
        err = mx_fail(eb, MX_E_CANCELLED, "the server is shutting down");
    } else if (e->n_waiting >= e->cfg.max_queued && !r->params.is_idle) {
        err = mx_fail(eb, MX_E_FULL, "%zu requests are waiting already (--max-queued); try later",
                      e->n_waiting);
    } else {
        mx_request_ref(r);
        r->submit_us = mx_now_us();
        r->next = NULL;
        *e->incoming_end = r;
        e->incoming_end = &r->next;
        e->n_waiting += !r->params.is_idle;
        e->is_woken = true;
        if (!r->params.is_idle) {
            atomic_store(&e->is_wanted, true);
        }
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->mu);
    return err;
}

/* ---- the loop --------------------------------------------------------------------------------- */

static void take_incoming(mx_engine *e)
{
    pthread_mutex_lock(&e->mu);
    mx_request *list = e->incoming;
    e->incoming = NULL;
    e->incoming_end = &e->incoming;
    e->is_woken = false;
    atomic_store(&e->is_wanted, false);
    pthread_mutex_unlock(&e->mu);
    mx_request **end = &e->queue;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    while (list != NULL) {
        mx_request *r = list;
        list = r->next;
        r->next = NULL;
        if (r->params.is_idle) {
            mx_idle_add(e, r);
        } else {
            *end = r;
            end = &r->next;
        }
    }
}

static void publish_stats(mx_engine *e)
{
    mx_engine_stats s = e->live;
    s.n_running = 0;
    size_t n_queued = 0;
    for (mx_request *r = e->queue; r != NULL; r = r->next) {
        n_queued++;
    }
    for (const mx_request *r = e->runs; r != NULL; r = r->next) {
        s.n_running += !r->params.is_idle;
    }
    s.us_per_token = e->us_per_token;
    s.kv_pages_used = mx_kv_pool_used(e->pool);
    s.kv_used_bytes = mx_kv_pool_used_bytes(e->pool);
    mx_bank_get_stats(e->bank, &s.bank);
    if (e->cold != NULL) {
        mx_cold_get_stats(e->cold, &s.cold);
    }
    pthread_mutex_lock(&e->mu);
    size_t n_incoming = 0;
    for (mx_request *r = e->incoming; r != NULL; r = r->next) {
        n_incoming += !r->params.is_idle;
    }
    e->n_waiting = n_incoming + n_queued;
    s.n_queued = e->n_waiting;
    e->published = s;
    pthread_mutex_unlock(&e->mu);
}

/* Unlinks ended requests from a list and drops the engine's reference. */
static bool sweep_done(mx_request **list)
{
    bool any = false;
    while (*list != NULL) {
        mx_request *r = *list;
        if (r->state == MX_RUN_DONE) {
            *list = r->next;
            mx_request_unref(r);
            any = true;
        } else {
            list = &r->next;
        }
    }
    return any;
}

static size_t count(const mx_request *list)
{
    size_t n = 0;
    for (; list != NULL; list = list->next) {
        n++;
    }
    return n;
}

static void end_cancelled(mx_engine *e, mx_request *list)
{
    for (mx_request *r = list; r != NULL; r = r->next) {
        if (r->state != MX_RUN_DONE && atomic_load(&r->is_cancelled)) {
            if (r->state == MX_RUN_ACTIVE) {
                mx_step_commit_turn(e, r);
            }
            mx_request_end(r, MX_FINISH_CANCELLED, MX_E_CANCELLED, "cancelled");
        }
    }
}

/* The reader of a paused run stays away: treat it as gone, its work is kept. */
static void end_abandoned(mx_engine *e)
{
    uint64_t now = mx_now_us();
    for (mx_request *r = e->runs; r != NULL; r = r->next) {
        if (r->paused_since_us != 0 && now - r->paused_since_us > MX_OUT_ABANDON_US) {
            atomic_store(&r->is_cancelled, true);
        }
    }
}

static void end_late_waits(mx_engine *e)
{
    uint64_t now = mx_now_us();
    for (mx_request *r = e->runs; r != NULL; r = r->next) {
        bool waits = r->state == MX_RUN_PROBING || r->state == MX_RUN_READING;
        if (!waits || now <= r->wait_deadline_us) {
            continue;
        }
        /* A probe may stand behind the restores of others: that is no reason to do without. */
        bool is_hanging = mx_cold_stalled_us(e->cold) >= MX_PROBE_WAIT_US;
        bool is_in_line = r->state == MX_RUN_PROBING && !is_hanging
                          && now - r->wait_deadline_us < LINE_WAIT_US;
        if (!is_in_line) {
            mx_log(MX_LOG_WARN, "restore: the cache folder did not answer in time, request=%s goes "
                   "on without it", r->params.id);
            mx_ticket_abandon(r, is_hanging);
            mx_admit_without_cold(e, r);
        }
    }
}

/* Cancels everything when the drain deadline has passed. True when the loop may end. */
static bool check_stop(mx_engine *e)
{
    pthread_mutex_lock(&e->mu);
    bool is_stopping = e->is_stopping;
    uint64_t deadline = e->stop_deadline_us;
    pthread_mutex_unlock(&e->mu);
    if (!is_stopping) {
        return false;
    }
    mx_idle_drop_all(e);
    sweep_done(&e->runs);
    if (mx_now_us() >= deadline) {
        for (mx_request *r = e->runs; r != NULL; r = r->next) {
            atomic_store(&r->is_cancelled, true);
        }
        for (mx_request *r = e->queue; r != NULL; r = r->next) {
            atomic_store(&r->is_cancelled, true);
        }
        end_cancelled(e, e->runs);
        end_cancelled(e, e->queue);
        sweep_done(&e->runs);
        sweep_done(&e->queue);
    }
    /* Since it stops nobody is let in, but somebody may have come just before. */
    pthread_mutex_lock(&e->mu);
    bool is_empty = e->incoming == NULL;
    pthread_mutex_unlock(&e->mu);
    return is_empty && e->runs == NULL && e->queue == NULL;
}

static void sleep_until_woken(mx_engine *e)
{
    /* Waiting runs and paused readers have deadlines; a second is fine enough for both. Without any
     * the engine sleeps until somebody calls. */
    bool has_deadline = e->runs != NULL;
    pthread_mutex_lock(&e->mu);
    bool is_stopping = e->is_stopping;
    while (!e->is_woken) {
        if (has_deadline || is_stopping) {
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += 200 * 1000 * 1000;
            if (until.tv_nsec >= 1000000000) {
                until.tv_nsec -= 1000000000;
                until.tv_sec++;
            }
            if (pthread_cond_timedwait(&e->wake, &e->mu, &until) == ETIMEDOUT) {
                break;
            }
        } else {
            pthread_cond_wait(&e->wake, &e->mu);
        }
    }
    pthread_mutex_unlock(&e->mu);
}

/* Ends the cold tier's threads and takes all jobs back. A thread that hangs in its folder keeps what
 * it holds: then the pages must outlive the engine. */
static void stop_cold(mx_engine *e)
{
    e->is_cold_stuck = !mx_cold_stop(e->cold);
    mx_ticket_collect(e);
    if (!e->is_cold_stuck) {
        mx_cold_close(e->cold);
        e->cold = NULL;
        mx_ticket_release_all(e);
    }
}

static void finish_cold(mx_engine *e)
{
    if (e->cold == NULL) {
        return;
    }
    const uint64_t begin = mx_now_us(), end = begin + e->flush_us, unwritten_before = e->n_unwritten;
    uint64_t now = begin;
    do { /* a manifest may come back to be written again with pages that somebody removed */
        (void)mx_cold_flush(e->cold, end - now);
        mx_ticket_collect(e);
        now = mx_now_us();
    } while (mx_ticket_is_writing(e) && now < end);
    mx_cold_stats s;
    mx_cold_get_stats(e->cold, &s);
    const uint64_t n_failed = e->n_unwritten - unwritten_before;
    if (s.queued_jobs > 0 || mx_ticket_is_writing(e)) {
        mx_log(MX_LOG_WARN, "shutdown: SSD session cache not flushed within %llu ms, jobs_lost=%llu "
               "(--shutdown-flush)", (unsigned long long)((now - begin) / 1000),
               (unsigned long long)(s.queued_jobs + n_failed));
    } else if (n_failed > 0) {
        mx_log(MX_LOG_WARN, "shutdown: SSD session cache not flushed, jobs_lost=%llu: %s",
               (unsigned long long)n_failed,
               s.is_degraded ? s.degraded_reason
                             : "the folder or the day's budget is full, or pages were removed");
    } else {
        mx_log(MX_LOG_INFO, "shutdown: SSD session cache flushed");
    }
    stop_cold(e);
}

static void *engine_main(void *arg)
{
    mx_engine *e = arg;
    mx_kern_thread_init();
    uint64_t published_us = 0;
    for (;;) {
        take_incoming(e);
        bool progress = mx_ticket_collect(e);
        progress |= mx_pin_forget_expired(e);
        end_abandoned(e);
        end_cancelled(e, e->runs);
        end_cancelled(e, e->queue);
        end_late_waits(e);
        progress |= mx_query_run_all(e);
        progress |= sweep_done(&e->queue);
        progress |= sweep_done(&e->runs);
        mx_idle_give_way(e);
        e->n_runs = count(e->runs);
        if (check_stop(e)) {
            break;
        }
        if (mx_admit_all(e)) {
            progress = true;
            published_us = 0; /* the waiting line got shorter: submit must know */
        }
        progress |= mx_idle_start(e);
        progress |= mx_step(e);
        progress |= sweep_done(&e->runs);
        e->n_runs = count(e->runs);
        /* A reader that sees the end of its request must also see it gone from the statistics soon;
         * in between once per period is enough. */
        uint64_t now = mx_now_us();
        if (!progress || now - published_us > STATS_PERIOD_US) {
            publish_stats(e);
            published_us = now;
        }
        if (!progress && !mx_bank_idle(e->bank)) {
            sleep_until_woken(e);
        }
    }
    finish_cold(e);
    mx_query_end_all(e);
    publish_stats(e);
    return NULL;
}

/* ---- start and stop --------------------------------------------------------------------------- */

static void set_defaults(mx_engine_config *c)
{
    c->max_running = c->max_running ? c->max_running : 16;
    c->max_queued = c->max_queued ? c->max_queued : 256;
    c->prefill_chunk = c->prefill_chunk ? c->prefill_chunk : 512;
}

static mx_err make_scratch(mx_engine *e, mx_errbuf *eb)
{
    size_t n_rows = e->cfg.prefill_chunk + e->cfg.max_running;
    size_t n_runs = e->cfg.max_running;
    e->rows = mx_calloc(n_rows, sizeof *e->rows);
    e->hidden = mx_alloc_aligned(64, n_runs * e->mc->n_embd * sizeof(float));
    e->logits = mx_alloc_aligned(64, n_runs * e->mc->n_vocab * sizeof(float));
    e->batch_runs = mx_calloc(n_runs, sizeof *e->batch_runs);
    e->batch_first = mx_calloc(n_runs, sizeof *e->batch_first);
    e->batch_count = mx_calloc(n_runs, sizeof *e->batch_count);
    if (e->rows == NULL || e->hidden == NULL || e->logits == NULL || e->batch_runs == NULL ||
        e->batch_first == NULL || e->batch_count == NULL)
    {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the engine's batches");
    }
    return MX_OK;
}

/* For people who look into the folder; the name comes from a file and may hold anything. */
static void describe_model(const mx_engine *e, const mx_kv_shape *shape, mx_buf *json)
{
    char name[sizeof e->mc->name];
    mx_log_safe(name, sizeof name, e->mc->name, strlen(e->mc->name));
    for (char *c = name; *c != '\0'; c++) {
        *c = *c == '"' || *c == '\\' ? '_' : *c;
    }
    mx_buf_printf(json,
                  "{\"model\":\"%s\",\"architecture\":\"%s\",\"numerics\":\"%s\","
                  "\"page_tokens\":%d,\"kv_type\":\"%s\"}\n",
                  name, e->mc->architecture,
                  mx_numerics_name(mx_model_act_type(e->model)), MX_PAGE_TOKENS,
                  mx_kv_type_name(shape->type));
}

static mx_err list_eog(mx_engine *e, mx_errbuf *eb)
{
    size_t cap = 0;
    for (uint32_t id = 0; id < e->mc->n_vocab; id++) {
        if (mx_tokenizer_is_eog(e->tok, (int32_t)id)) {
            void *ids = e->eog_ids;
            if (!mx_grow(&ids, &cap, e->n_eog + 1, sizeof *e->eog_ids)) {
                return mx_fail(eb, MX_E_NOMEM, "no memory for the list of end tokens");
            }
            e->eog_ids = ids;
            e->eog_ids[e->n_eog++] = (int32_t)id;
        }
    }
    return MX_OK;
}

/* What waits to be written cannot be evicted: the rest of the budget must be enough to go on with. */
static const size_t QUEUE_MAX_BYTES = (size_t)512 << 20;

/* Pages of the largest sequence of a model with windowed layers, whose local rows go as it gets longer:
 * all but those of the window, a pass, and the copied tail. */
static size_t most_with_window(const mx_kv_shape *shape, size_t n_bytes, size_t n_chunk)
{
    size_t n_whole = shape->window / MX_PAGE_TOKENS + 2 + n_chunk / MX_PAGE_TOKENS + 2;
    size_t payload = mx_kv_payload_bytes(shape);
    size_t fixed = n_whole * mx_kv_local_bytes(shape) + payload;
    return n_bytes > fixed ? (n_bytes - fixed) / payload : 0;
}

static mx_err make_tiers(mx_engine *e, mx_errbuf *eb)
{
    const mx_kv_shape *shape = mx_model_kv_shape(e->model);
    size_t page_bytes = mx_kv_payload_bytes(shape) + mx_kv_local_bytes(shape);
    size_t max_pages = e->cfg.kv_budget_bytes / page_bytes;
    if (max_pages < 2) {
        return mx_fail(eb, MX_E_INVALID, "the KV budget of %zu bytes is less than two pages of %zu "
                       "bytes; raise --kv-budget", e->cfg.kv_budget_bytes, page_bytes);
    }
    MX_TRY(mx_kv_pool_create(&e->pool, shape, max_pages, eb));
    mx_kv_pool_set_workers(e->pool, mx_model_workers(e->model)); /* idle between two passes */
    mx_kv_pool_keep_ahead(e->pool, mx_model_ahead_bytes(e->model, e->cfg.prefill_chunk));
    /* The last page of the pool stays out of the sum, so that a sequence of the largest size can
     * still copy the tail it shares with an entry; so do the states before and behind a pass. */
    size_t n_other = 1 + 2 * mx_kv_pool_state_pages(e->pool);
    size_t n_most = max_pages > n_other ? max_pages - n_other : 0;
    if (shape->n_local > 0) {
        n_most = mx_max_size(n_most, most_with_window(shape, max_pages * page_bytes,
                                                      e->cfg.prefill_chunk));
    }
    e->max_seq_tokens = mx_min_size(e->mc->n_ctx, n_most * MX_PAGE_TOKENS);
    e->spacing = mx_stop_spacing(shape);
    e->window_spacing = mx_stop_window_spacing(shape);
    mx_bank_config bank = e->cfg.bank;
    bank.n_hidden = e->mc->n_embd;
    bank.gone = e->gone = mx_gone_create(GONE_SLOTS); /* without memory for it: no such reasons */
    bank.max_bytes = bank.max_bytes ? bank.max_bytes : e->cfg.kv_budget_bytes;
    MX_TRY(mx_bank_create(&e->bank, e->pool, &bank, eb));
    e->root = mx_model_root(e->model, NULL);
    if (e->cfg.cold_mode == MX_COLD_OFF) {
        return MX_OK;
    }
    mx_buf json = {0};
    describe_model(e, shape, &json);
    mx_cold_config cold = {
        .mode = e->cfg.cold_mode,
        .compress = e->cfg.cold_compress,
        .auth_key = e->cfg.cold_auth_key,
        .dir = e->cfg.cold_dir,
        .max_bytes = e->cfg.cold_max_bytes,
        .write_budget = e->cfg.cold_write_budget,
        .ttl_s = e->cfg.cold_ttl_s,
        .root = e->root,
        .model_json = json.failed ? "{}\n" : json.ptr,
        .gone = e->gone,
        .wake = wake_from_cold,
        .wake_arg = e,
        .queue_bytes = mx_min_size(QUEUE_MAX_BYTES, e->cfg.kv_budget_bytes / 4),
        .tuning = e->cfg.cold_tuning,
    };
    mx_err err = mx_cold_open(&e->cold, shape, &cold, eb);
    mx_buf_free(&json);
    return err;
}

void mx_engine_destroy(mx_engine *e)
{
    if (e == NULL) {
        return;
    }
    if (e->cold != NULL && !e->is_cold_stuck) {
        stop_cold(e); /* the engine thread never started */
    }
    if (e->is_cold_stuck) {
        /* Somebody still reads from or writes to pages and will until the process ends. */
        mx_log(MX_LOG_WARN, "shutdown: the cache folder hangs, its pages are left to the system");
    } else {
        mx_bank_destroy(e->bank);
        mx_kv_pool_destroy(e->pool);
        mx_gone_destroy(e->gone);
    }
    mx_free(e->eog_ids);
    mx_free(e->rows);
    mx_free(e->hidden);
    mx_free(e->logits);
    mx_free(e->batch_runs);
    mx_free(e->batch_first);
    mx_free(e->batch_count);
    pthread_cond_destroy(&e->wake);
    pthread_cond_destroy(&e->answered);
    pthread_mutex_destroy(&e->mu);
    mx_free(e);
}

mx_err mx_engine_start(mx_engine **out, const mx_engine_config *cfg, mx_errbuf *eb)
{
    *out = NULL;
    mx_engine *e = mx_calloc(1, sizeof *e);
    if (e == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the engine");
    }
    e->cfg = *cfg;
    set_defaults(&e->cfg);
    e->model = cfg->model;
    e->mc = mx_model_get_config(e->model);
    e->tok = mx_model_tokenizer(e->model);
    e->incoming_end = &e->incoming;
    pthread_mutex_init(&e->mu, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->wake, &attr);
    pthread_cond_init(&e->answered, &attr);
    pthread_condattr_destroy(&attr);
    mx_err err = make_tiers(e, eb);
    if (err == MX_OK) {
        err = make_scratch(e, eb);
    }
    if (err == MX_OK) {
        err = list_eog(e, eb);
    }
    if (err == MX_OK) {
        e->live.kv_pages_max = mx_kv_pool_max(e->pool);
        e->live.kv_page_bytes = mx_kv_pool_page_bytes(e->pool);
        e->live.has_cold = e->cold != NULL;
        publish_stats(e); /* who asks before the thread has run gets zeros, but all of them */
        int rc = pthread_create(&e->thread, NULL, engine_main, e);
        if (rc != 0) {
            err = mx_fail_errno(eb, MX_E_IO, rc, "cannot start the engine thread");
        }
    }
    if (err != MX_OK) {
        mx_engine_destroy(e);
        return err;
    }
    *out = e;
    return MX_OK;
}

void mx_engine_stop(mx_engine *e, uint64_t drain_us, uint64_t flush_us)
{
    if (e == NULL) {
        return;
    }
    pthread_mutex_lock(&e->mu);
    e->is_stopping = true;
    e->stop_deadline_us = mx_now_us() + drain_us;
    e->flush_us = flush_us;
    e->is_woken = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mu);
    pthread_join(e->thread, NULL);
}

void mx_engine_get_stats(mx_engine *e, mx_engine_stats *out)
{
    pthread_mutex_lock(&e->mu);
    *out = e->published;
    pthread_mutex_unlock(&e->mu);
}

mx_cold *mx_engine_cold(mx_engine *e)
{
    return e->cold;
}

size_t mx_engine_max_tokens(const mx_engine *e)
{
    return e->max_seq_tokens;
}
