/* SPDX-License-Identifier: MIT
 *
 * The cold tier's front: queues, threads, degradation, statistics.
 *
 * A few threads with a plain mutex between them and the engine. The engine only ever takes the lock
 * for a few list operations; all that can be slow (the folder) happens on the threads, outside of
 * the lock. One writer is enough: it waits for the disk more than for the CPU (of which it spares what it
 * can, see cold_pace.c), and one keeps the order pages before manifest without bookkeeping.
 */
#include "cold/cold_state.h"

#include <assert.h>
#include <errno.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cold/cold_pace.h"

enum {
    /* A reader in front of a busy writer makes it wait, but not for ever: under a constant stream
     * of restores pages must still become durable. */
    YIELD_MAX_US = 2000000,
};
_Static_assert((int)MX_COLD_COMPRESS_LZ4 == (int)MX_CODEC_LZ4
               && (int)MX_COLD_COMPRESS_ZSTD == (int)MX_CODEC_ZSTD, "the methods of the codec");
static const size_t default_queue_bytes = (size_t)512 << 20;

/* ---- queues ---------------------------------------------------------------------------------- */

static void list_push(job_list *l, mx_cold_job *job)
{
    job->next = NULL;
    if (l->last != NULL) {
        l->last->next = job;
    } else {
        l->first = job;
    }
    l->last = job;
}

static mx_cold_job *list_pop(job_list *l)
{
    mx_cold_job *job = l->first;
    if (job != NULL) {
        l->first = job->next;
        if (l->first == NULL) {
            l->last = NULL;
        }
        job->next = NULL;
    }
    return job;
}

static bool is_object(const mx_cold_job *job)
{
    return job->kind == MX_COLD_WRITE_PAGE || job->kind == MX_COLD_WRITE_STATE;
}

static bool is_write(const mx_cold_job *job)
{
    return is_object(job) || job->kind == MX_COLD_WRITE_SESSION || job->kind == MX_COLD_CONDEMN;
}

/* What a queued job keeps from being freed. */
static size_t held_bytes(const mx_cold *c, const mx_cold_job *job)
{
    return job->kind == MX_COLD_WRITE_PAGE    ? c->page_bytes
           : job->kind == MX_COLD_WRITE_STATE ? c->shape.state_bytes
                                              : (job->n_pages + job->n_states) * sizeof(mx_hash256);
}

mx_err mx_cold_submit(mx_cold *c, mx_cold_job *job)
{
    mx_err err = MX_OK;
    if (!is_write(job) && c->mode == MX_COLD_WRITE_ONLY) {
        return MX_E_UNSUPPORTED;
    }
    bool is_condemning = job->kind == MX_COLD_CONDEMN;
    for (size_t i = 0; is_condemning && i < job->n_pages + job->n_states; i++) {
        mx_cold_index_set_bad(c->index, i < job->n_pages ? &job->page_ids[i]
                                                         : &job->state_ids[i - job->n_pages]);
    }
    bool is_there = is_object(job) && mx_cold_index_is_kept(c->index, &job->page_id);
    pthread_mutex_lock(&c->lock);
    if (atomic_load(&c->is_stopping)) {
        pthread_mutex_unlock(&c->lock);
        return MX_E_CANCELLED;
    }
    job->queued_us = mx_now_us();
    job->is_abandoned = false;
    memset(&job->busy, 0xFF, sizeof job->busy);
    if (!is_write(job)) {
        list_push(&c->reads, job);
        pthread_cond_signal(&c->reader_cond);
    } else {
        size_t bytes = held_bytes(c, job);
        uint64_t held = c->stats.queued_bytes;
        bool costs = is_object(job) && !is_there;
        /* A job larger than the whole queue is let in alone: otherwise it never could be. */
        if (costs && mx_cold_wear_is_spent_locked(c)) {
            c->stats.dropped_full++;
            c->stats.dropped_budget++;
            err = MX_E_LIMIT;
        } else if (held > 0 && !is_condemning
                   && (bytes > c->queue_bytes_max || held > c->queue_bytes_max - bytes))
        {
            c->stats.dropped_full++;
            err = MX_E_FULL;
        } else {
            list_push(&c->writes, job);
            c->stats.queued_jobs++;
            c->stats.queued_bytes += bytes;
            pthread_cond_signal(&c->writer_cond);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return err;
}

mx_cold_job *mx_cold_poll(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    mx_cold_job *job = list_pop(&c->done);
    pthread_mutex_unlock(&c->lock);
    return job;
}

mx_cold_busy mx_cold_abandon(mx_cold *c, mx_cold_job *job)
{
    pthread_mutex_lock(&c->lock);
    job->is_abandoned = true;
    mx_cold_busy busy = job->busy;
    pthread_mutex_unlock(&c->lock);
    return busy;
}

bool mx_cold_claim(mx_cold *c, mx_cold_job *job, unsigned lane, size_t payload)
{
    pthread_mutex_lock(&c->lock);
    bool may = !job->is_abandoned;
    job->busy.payload[lane] = may ? payload : SIZE_MAX;
    if (!is_write(job)) {
        c->reader_alive_us = mx_now_us();
    }
    pthread_mutex_unlock(&c->lock);
    return may;
}

void mx_cold_unclaim(mx_cold *c, mx_cold_job *job, unsigned lane)
{
    pthread_mutex_lock(&c->lock);
    job->busy.payload[lane] = SIZE_MAX;
    pthread_mutex_unlock(&c->lock);
}

static uint64_t stalled_us_locked(const mx_cold *c)
{
    return c->reader_busy ? mx_now_us() - c->reader_alive_us : 0;
}

uint64_t mx_cold_stalled_us(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t us = stalled_us_locked(c);
    pthread_mutex_unlock(&c->lock);
    return us;
}

/* The day's budget did not let it in, or the pages that it names. That is not a failure. */
static bool is_denied_locked(const mx_cold *c, const mx_cold_job *job)
{
    return job->status == MX_E_LIMIT
           || (job->status == MX_E_NOT_FOUND && mx_cold_wear_is_spent_locked(c));
}

/* True: the caller may be told. After stop it may be gone: a thread that came back from a folder
 * that hung must not call it. */
static bool finish_locked(mx_cold *c, mx_cold_job *job)
{
    if (is_write(job)) {
        c->stats.queued_jobs--;
        c->stats.queued_bytes -= held_bytes(c, job);
        c->n_ended++;
        c->n_lost += job->status != MX_OK;
        c->stats.write_failures += job->status != MX_OK && job->status != MX_E_CANCELLED
                                   && !is_denied_locked(c, job);
    }
    list_push(&c->done, job);
    pthread_cond_broadcast(&c->idle_cond);
    return c->wake != NULL && !atomic_load(&c->is_stopping);
}

/* ---- threads --------------------------------------------------------------------------------- */

static struct timespec after(clockid_t clock, uint64_t us)
{
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += (time_t)(us / 1000000);
    t.tv_nsec += (long)(us % 1000000) * 1000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_nsec -= 1000000000;
        t.tv_sec++;
    }
    return t;
}

/* Lets restores that wait have the disk first, unless the one that runs is stuck. */
static void yield_to_reader_locked(mx_cold *c)
{
    struct timespec until = after(CLOCK_MONOTONIC, YIELD_MAX_US);
    while ((c->reads.first != NULL || c->reader_busy) && stalled_us_locked(c) < YIELD_MAX_US
           && c->n_flushing == 0 && !atomic_load(&c->is_stopping)) {
        if (pthread_cond_timedwait(&c->idle_cond, &c->lock, &until) == ETIMEDOUT) {
            return;
        }
    }
}

void mx_cold_yield_to_reader(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    yield_to_reader_locked(c);
    pthread_mutex_unlock(&c->lock);
}

/* Behind a job that ended at ended_us. Whoever has a reason to rest no more signals writer_cond. */
static void rest_locked(mx_cold *c, uint64_t ended_us, uint64_t cpu_us)
{
    bool is_resting = false;
    while (c->is_paced && c->n_flushing == 0 && !atomic_load(&c->is_stopping)
           && c->stats.queued_bytes <= c->queue_bytes_max / 2) {
        uint64_t now = mx_now_us();
        uint64_t age_us = now - c->writes.first->queued_us;
        uint64_t until_us = ended_us + mx_pace_rest_us(cpu_us, age_us, c->stats.queued_jobs,
                                                       c->tuning.pace_us);
        if (now >= until_us) {
            return;
        }
        c->stats.rests += !is_resting;
        is_resting = true;
        struct timespec until = after(CLOCK_MONOTONIC, until_us - now);
        pthread_cond_timedwait(&c->writer_cond, &c->lock, &until);
    }
}

void mx_cold_pace(mx_cold *c, bool is_paced)
{
    pthread_mutex_lock(&c->lock);
    c->is_paced = is_paced;
    pthread_cond_signal(&c->writer_cond);
    pthread_mutex_unlock(&c->lock);
}

static void *writer_main(void *arg)
{
    mx_cold *c = arg;
    uint64_t ended_us = 0, cpu_us = 0;
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->is_stopping)) {
        if (c->writes.first == NULL) {
            pthread_cond_wait(&c->writer_cond, &c->lock);
            continue;
        }
        rest_locked(c, ended_us, cpu_us);
        yield_to_reader_locked(c);
        if (atomic_load(&c->is_stopping)) {
            break;
        }
        mx_cold_job *job = list_pop(&c->writes);
        c->writer_busy = true;
        pthread_mutex_unlock(&c->lock);
        uint64_t before_us = c->tuning.cpu_us();
        mx_cold_write_job(c, job);
        cpu_us = c->tuning.cpu_us() - before_us;
        ended_us = mx_now_us();
        pthread_mutex_lock(&c->lock);
        c->writer_busy = false;
        bool may_wake = finish_locked(c, job);
        pthread_mutex_unlock(&c->lock);
        if (may_wake) {
            c->wake(c->wake_arg);
        }
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    mx_cold_wear_save(c);
    mx_cold_folder_close(&c->writer_folder);
    return NULL;
}

static void *reader_main(void *arg)
{
    mx_cold *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->is_stopping)) {
        mx_cold_job *job = list_pop(&c->reads);
        if (job == NULL) {
            pthread_cond_wait(&c->reader_cond, &c->lock);
            continue;
        }
        c->reader_busy = true;
        c->reader_alive_us = mx_now_us();
        pthread_mutex_unlock(&c->lock);
        bool is_read = job->kind == MX_COLD_READ;
        mx_cold_read_job(c, job);
        pthread_mutex_lock(&c->lock);
        c->reader_busy = false;
        bool may_wake = finish_locked(c, job);
        pthread_mutex_unlock(&c->lock);
        if (may_wake) {
            c->wake(c->wake_arg);
        }
        if (is_read) {
            mx_cold_read_done(c);
        }
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    mx_cold_folder_close(&c->reader_folder);
    return NULL;
}

static void *sweeper_main(void *arg)
{
    mx_cold *c = arg;
    pthread_mutex_lock(&c->lock);
    c->is_sweep_wanted = true; /* the scan after start */
    while (!atomic_load(&c->is_stopping)) {
        if (!c->is_sweep_wanted) {
            struct timespec until = after(CLOCK_MONOTONIC, c->tuning.sweep_us);
            int rc = 0;
            while (!c->is_sweep_wanted && rc != ETIMEDOUT && !atomic_load(&c->is_stopping)) {
                rc = pthread_cond_timedwait(&c->sweeper_cond, &c->lock, &until);
            }
            c->is_sweep_wanted = true;
            continue;
        }
        c->is_sweep_wanted = false;
        c->sweeper_busy = true;
        pthread_mutex_unlock(&c->lock);
        mx_cold_sweep_once(c);
        pthread_mutex_lock(&c->lock);
        c->sweeper_busy = false;
        c->stats.is_loaded = true;
        c->n_sweeps++;
        pthread_cond_broadcast(&c->idle_cond);
        pthread_mutex_unlock(&c->lock);
        bool is_complete = mx_cold_read_heads(c);
        pthread_mutex_lock(&c->lock);
        c->stats.is_complete |= is_complete;
    }
    pthread_mutex_unlock(&c->lock);
    mx_cold_folder_close(&c->sweeper_folder);
    return NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void fill_tuning(mx_cold *c, const mx_cold_tuning *t)
{
    c->tuning = *t;
    c->has_default_reserve = t->min_free_bytes == 0;
    if (t->fileops == NULL) {
        c->tuning.fileops = &mx_cold_real_fileops;
    }
    if (t->min_free_bytes <= 0) {
        c->tuning.min_free_bytes = t->min_free_bytes == 0 ? (int64_t)1 << 30 : 0;
    }
    if (t->delete_age_s <= 0) {
        c->tuning.delete_age_s = t->delete_age_s == 0 ? 600 : 0;
    }
    if (t->orphan_age_s <= 0) {
        c->tuning.orphan_age_s = t->orphan_age_s == 0 ? 3600 : 0;
    }
    if (t->retry_us == 0) {
        c->tuning.retry_us = 30000000;
    }
    if (t->stop_us == 0) {
        c->tuning.stop_us = 5000000;
    }
    if (t->sweep_us == 0) {
        c->tuning.sweep_us = 600000000;
    }
    if (t->pace_us == 0) {
        c->tuning.pace_us = 10000000;
    }
    if (t->cpu_us == NULL) {
        c->tuning.cpu_us = mx_thread_cpu_us;
    }
}

/* After fill_tuning. */
static void take_key(mx_cold *c, const mx_hash256 *key)
{
    if (key != NULL) {
        c->has_auth_key = true;
        c->auth_key = *key;
        c->shared_ops = *c->tuning.fileops;
        c->shared_ops.accepts_others = true;
        c->tuning.fileops = &c->shared_ops;
    }
}

bool mx_cold_make_scratch(mx_cold_scratch *s)
{
    s->head = mx_alloc_aligned(64, MX_DISK_PAYLOAD_AT);
    return s->head != NULL;
}

void mx_cold_free_scratch(mx_cold_scratch *s)
{
    mx_free(s->head);
    mx_free(s->stored);
    mx_free(s->whole);
    mx_codec_free(&s->codec);
}

bool mx_cold_reserve_stored(const mx_cold *c, mx_cold_scratch *s)
{
    if (s->stored == NULL) {
        s->stored = mx_alloc_aligned(64, c->page_bytes);
    }
    return s->stored != NULL;
}

bool mx_cold_reserve_whole(const mx_cold *c, mx_cold_scratch *s)
{
    if (s->whole == NULL) {
        s->whole = mx_alloc_aligned(64, c->page_bytes);
    }
    return s->whole != NULL;
}

static void free_memory(mx_cold *c)
{
    mx_cold_index_destroy(c->index);
    mx_cold_turns_destroy(c->turns);
    mx_free(c->dir);
    mx_free(c->model_json);
    mx_cold_free_scratch(&c->writer_scratch);
    mx_free(c->writer_rows);
    mx_cold_free_scratch(&c->reader_scratch);
    mx_free(c->reader_rows);
    mx_free(c->reader_page);
    mx_free(c->reader_ids);
    mx_free(c->reader_path);
    mx_cold_free_scratch(&c->sweeper_scratch);
    for (size_t i = 0; i < c->n_lanes; i++) {
        mx_cold_free_scratch(&c->lanes[i].scratch);
    }
    pthread_cond_destroy(&c->writer_cond);
    pthread_cond_destroy(&c->reader_cond);
    pthread_cond_destroy(&c->lane_cond);
    pthread_cond_destroy(&c->lane_done_cond);
    pthread_cond_destroy(&c->sweeper_cond);
    pthread_cond_destroy(&c->idle_cond);
    pthread_mutex_destroy(&c->lock);
    mx_free(c);
}

static void init_locks(mx_cold *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->writer_cond, &attr);
    pthread_cond_init(&c->reader_cond, &attr);
    pthread_cond_init(&c->lane_cond, &attr);
    pthread_cond_init(&c->lane_done_cond, &attr);
    pthread_cond_init(&c->sweeper_cond, &attr);
    pthread_cond_init(&c->idle_cond, &attr);
    pthread_condattr_destroy(&attr);
}

mx_err mx_cold_open(mx_cold **out, const mx_kv_shape *shape, const mx_cold_config *cfg,
                    mx_errbuf *eb)
{
    *out = NULL;
    size_t page_bytes = mx_kv_page_bytes(shape);
    if (cfg->mode == MX_COLD_OFF || page_bytes == 0 || cfg->dir == NULL) {
        return mx_fail(eb, MX_E_INVALID, "the SSD session cache is off or has no folder");
    }
    mx_cold *c = mx_calloc(1, sizeof *c);
    if (c == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the SSD session cache");
    }
    init_locks(c);
    c->shape = *shape;
    c->mode = cfg->mode;
    c->codec = mx_disk_codec((uint32_t)cfg->compress, shape->type);
    c->root = cfg->root;
    c->page_bytes = page_bytes;
    c->queue_bytes_max = cfg->queue_bytes != 0 ? cfg->queue_bytes : default_queue_bytes;
    c->max_bytes = cfg->max_bytes;
    c->wear.budget = cfg->write_budget;
    c->ttl_s = (int64_t)(cfg->ttl_s < INT64_MAX ? cfg->ttl_s : INT64_MAX);
    c->wake = cfg->wake;
    c->wake_arg = cfg->wake_arg;
    c->gone = cfg->gone;
    fill_tuning(c, &cfg->tuning);
    mx_cold_start_clock(c);
    take_key(c, cfg->auth_key);
    size_t dir_len = strlen(cfg->dir);
    while (dir_len > 1 && cfg->dir[dir_len - 1] == '/') {
        dir_len--; /* with a slash behind it a symbolic link would be followed */
    }
    c->dir = mx_strndup(cfg->dir, dir_len);
    c->model_json = cfg->model_json != NULL ? mx_strdup(cfg->model_json) : NULL;
    c->index = mx_cold_index_create();
    c->turns = mx_cold_turns_create();
    c->writer_rows = mx_alloc_aligned(64, page_bytes);
    c->reader_rows = mx_alloc_aligned(64, page_bytes);
    c->reader_page = mx_alloc_aligned(64, page_bytes);
    bool has_scratch = mx_cold_make_scratch(&c->writer_scratch) && mx_cold_make_scratch(&c->reader_scratch)
                       && mx_cold_make_scratch(&c->sweeper_scratch);
    if (c->dir == NULL || (c->model_json == NULL && cfg->model_json != NULL) || c->index == NULL
        || c->turns == NULL
        || c->writer_rows == NULL || c->reader_rows == NULL || c->reader_page == NULL
        || !has_scratch) {
        free_memory(c);
        return mx_fail(eb, MX_E_NOMEM, "no memory for the SSD session cache");
    }
    bool has_states = shape->state_bytes > 0;
    mx_cold_folder_init(&c->writer_folder, c->tuning.fileops, c->dir, &c->root, has_states);
    mx_cold_folder_init(&c->reader_folder, c->tuning.fileops, c->dir, &c->root, has_states);
    mx_cold_folder_init(&c->sweeper_folder, c->tuning.fileops, c->dir, &c->root, has_states);
    mx_cold_start_lanes(c);
    c->has_writer = pthread_create(&c->writer, NULL, writer_main, c) == 0;
    c->has_reader = pthread_create(&c->reader, NULL, reader_main, c) == 0;
    c->has_sweeper = pthread_create(&c->sweeper, NULL, sweeper_main, c) == 0;
    if (!c->has_writer || !c->has_reader || !c->has_sweeper) {
        mx_cold_close(c);
        return mx_fail(eb, MX_E_NOMEM, "cannot start a thread for the SSD session cache");
    }
    *out = c;
    return MX_OK;
}

/* False: it hangs in the folder, and is left to itself. pthread_timedjoin_np would wait by the clock that
 * jumps, and pthread_clockjoin_np is unknown to ThreadSanitizer. */
static bool join_until(pthread_t thread, uint64_t until_us)
{
    enum { STEP_US = 200 };
    int rc;
    while ((rc = pthread_tryjoin_np(thread, NULL)) == EBUSY && mx_now_us() < until_us) {
        usleep(STEP_US);
    }
    if (rc == 0) {
        return true;
    }
    pthread_detach(thread);
    return false;
}

bool mx_cold_stop(mx_cold *c)
{
    if (c->is_stopped) {
        return !c->is_stuck;
    }
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->is_stopping, true);
    pthread_cond_broadcast(&c->writer_cond);
    pthread_cond_broadcast(&c->reader_cond);
    pthread_cond_broadcast(&c->lane_cond);
    pthread_cond_broadcast(&c->sweeper_cond);
    pthread_cond_broadcast(&c->idle_cond);
    pthread_mutex_unlock(&c->lock);
    uint64_t until_us = mx_now_us() + c->tuning.stop_us;
    c->is_stuck |= c->has_writer && !join_until(c->writer, until_us);
    c->is_stuck |= c->has_reader && !join_until(c->reader, until_us);
    for (size_t i = 0; i < c->n_lanes; i++) {
        c->is_stuck |= !join_until(c->lanes[i].thread, until_us);
    }
    c->is_stuck |= c->has_sweeper && !join_until(c->sweeper, until_us);
    if (c->is_stuck) {
        mx_log(MX_LOG_WARN, "cold: the folder %s hangs; leaving without it", c->dir);
    }
    pthread_mutex_lock(&c->lock);
    for (mx_cold_job *job; (job = list_pop(&c->reads)) != NULL;) {
        job->status = MX_E_CANCELLED;
        finish_locked(c, job);
    }
    for (mx_cold_job *job; (job = list_pop(&c->writes)) != NULL;) {
        job->status = MX_E_CANCELLED;
        finish_locked(c, job);
    }
    pthread_mutex_unlock(&c->lock);
    c->is_stopped = true;
    return !c->is_stuck;
}

void mx_cold_close(mx_cold *c)
{
    /* With a thread that hangs in the folder its memory must stay: it may come back. */
    if (c != NULL && mx_cold_stop(c)) {
        free_memory(c);
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */

bool mx_cold_settle(mx_cold *c, uint64_t timeout_us)
{
    struct timespec until = after(CLOCK_MONOTONIC, timeout_us);
    pthread_mutex_lock(&c->lock);
    uint64_t n_ended = c->n_ended;
    int rc = 0;
    while (c->writer_busy && c->n_ended == n_ended && rc != ETIMEDOUT
           && !atomic_load(&c->is_stopping)) {
        rc = pthread_cond_timedwait(&c->idle_cond, &c->lock, &until);
    }
    bool is_settled = !c->writer_busy || c->n_ended != n_ended;
    pthread_mutex_unlock(&c->lock);
    return is_settled;
}

bool mx_cold_flush(mx_cold *c, uint64_t timeout_us)
{
    struct timespec until = after(CLOCK_MONOTONIC, timeout_us);
    pthread_mutex_lock(&c->lock);
    uint64_t lost_before = c->n_lost;
    c->n_flushing++;
    pthread_cond_broadcast(&c->idle_cond);
    pthread_cond_signal(&c->writer_cond);
    int rc = 0;
    while ((c->writes.first != NULL || c->writer_busy) && rc != ETIMEDOUT
           && !atomic_load(&c->is_stopping)) {
        rc = pthread_cond_timedwait(&c->idle_cond, &c->lock, &until);
    }
    c->n_flushing--;
    bool is_flushed = c->writes.first == NULL && !c->writer_busy && c->n_lost == lost_before;
    pthread_mutex_unlock(&c->lock);
    return is_flushed;
}

bool mx_cold_sweep(mx_cold *c, uint64_t timeout_us)
{
    struct timespec until = after(CLOCK_MONOTONIC, timeout_us);
    pthread_mutex_lock(&c->lock);
    /* A sweep that runs now may have passed what the caller wants swept: wait for the next. */
    uint64_t want = c->n_sweeps + 1 + c->sweeper_busy;
    c->is_sweep_wanted = true;
    pthread_cond_signal(&c->sweeper_cond);
    int rc = 0;
    while (c->n_sweeps < want && rc != ETIMEDOUT && !atomic_load(&c->is_stopping)) {
        rc = pthread_cond_timedwait(&c->idle_cond, &c->lock, &until);
    }
    bool is_done = c->n_sweeps >= want;
    pthread_mutex_unlock(&c->lock);
    return is_done;
}

void mx_cold_wait_loaded(mx_cold *c, uint64_t timeout_us)
{
    struct timespec until = after(CLOCK_MONOTONIC, timeout_us);
    pthread_mutex_lock(&c->lock);
    int rc = 0;
    while (!c->stats.is_loaded && rc != ETIMEDOUT && !atomic_load(&c->is_stopping)) {
        rc = pthread_cond_timedwait(&c->idle_cond, &c->lock, &until);
    }
    pthread_mutex_unlock(&c->lock);
}

bool mx_cold_is_loaded(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    bool is_loaded = c->stats.is_loaded;
    pthread_mutex_unlock(&c->lock);
    return is_loaded;
}

/* ---- degradation and statistics -------------------------------------------------------------- */

void mx_cold_failed(mx_cold *c, mx_cold_side side, const char *what)
{
    pthread_mutex_lock(&c->lock);
    bool is_new = !c->has_failed[side];
    bool is_told = c->stats.is_degraded; /* one warning for one folder */
    c->has_failed[side] = true;
    c->stats.is_degraded = true;
    mx_log_safe(c->stats.degraded_reason, sizeof c->stats.degraded_reason, what, strlen(what));
    uint64_t now = mx_now_us();
    if (side == MX_COLD_WRITING && (is_new || now >= c->retry_at_us)) {
        c->retry_at_us = now + c->tuning.retry_us;
    }
    pthread_mutex_unlock(&c->lock);
    if (is_told) {
        mx_log(MX_LOG_DEBUG, "cold: still failing: %s", what);
    } else if (side == MX_COLD_READING) {
        mx_log(MX_LOG_WARN, "cold: reading the SSD session cache is off for now: %s; what is "
               "missing is computed", what);
    } else {
        mx_log(MX_LOG_WARN, "cold: the SSD session cache is off for now: %s; serving from RAM, "
               "trying again every %llu s",
               what, (unsigned long long)(c->tuning.retry_us / 1000000));
    }
}

void mx_cold_worked(mx_cold *c, mx_cold_side side)
{
    pthread_mutex_lock(&c->lock);
    bool was_degraded = c->stats.is_degraded;
    c->has_failed[side] = false;
    c->stats.is_degraded = c->has_failed[MX_COLD_WRITING] || c->has_failed[MX_COLD_READING];
    was_degraded &= !c->stats.is_degraded;
    if (!c->stats.is_degraded) {
        c->stats.degraded_reason[0] = '\0';
    }
    pthread_mutex_unlock(&c->lock);
    if (was_degraded) {
        mx_log(MX_LOG_INFO, "cold: the SSD session cache works again");
    }
}

bool mx_cold_may_write(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    bool may = !c->has_failed[MX_COLD_WRITING] || mx_now_us() >= c->retry_at_us;
    pthread_mutex_unlock(&c->lock);
    return may;
}

static uint64_t add_clamped(uint64_t value, int64_t delta)
{
    return delta < 0 && (uint64_t)-delta > value ? 0 : value + (uint64_t)delta;
}

void mx_cold_account(mx_cold *c, int64_t files, int64_t bytes)
{
    pthread_mutex_lock(&c->lock);
    c->stats.files = add_clamped(c->stats.files, files);
    c->stats.bytes = add_clamped(c->stats.bytes, bytes);
    if (files > 0) {
        c->written_files += (uint64_t)files;
        c->written_bytes += (uint64_t)bytes;
    }
    pthread_mutex_unlock(&c->lock);
}

void mx_cold_quarantined(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    c->stats.quarantined++;
    pthread_mutex_unlock(&c->lock);
}

void mx_cold_want_sweep(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t now = mx_now_us();
    if (now >= c->next_sweep_us) {
        c->next_sweep_us = now + c->tuning.retry_us;
        c->is_sweep_wanted = true;
        pthread_cond_signal(&c->sweeper_cond);
    }
    pthread_mutex_unlock(&c->lock);
}

uint64_t mx_cold_disk_reserve(const mx_cold *c, const struct statvfs *vfs)
{
    uint64_t reserve = (uint64_t)c->tuning.min_free_bytes;
    if (c->has_default_reserve) {
        uint64_t fiftieth = (uint64_t)vfs->f_blocks * vfs->f_frsize / 50;
        reserve = reserve > fiftieth ? reserve : fiftieth;
    }
    return reserve;
}

uint64_t mx_cold_limit(mx_cold *c, const mx_cold_folder *f)
{
    enum { DEFAULT_MAX_GIB = 32 };
    struct statvfs vfs;
    const uint64_t most = (uint64_t)DEFAULT_MAX_GIB << 30;
    uint64_t is_free = 0;
    bool is_known = f->root_fd >= 0 && f->ops->statvfs(f->root_fd, &vfs) == 0;
    if (is_known) {
        is_free = (uint64_t)vfs.f_bavail * vfs.f_frsize;
        /* A tenth of a full disk is nothing, and would stay so when there is room again. */
        is_known = is_free >= mx_cold_disk_reserve(c, &vfs);
    }
    pthread_mutex_lock(&c->lock);
    uint64_t used = c->stats.bytes, tenth = (is_free + used) / 10;
    /* Before the folder was counted a full one would look empty, and be emptied. */
    if (c->max_bytes == 0 && is_known && (c->is_counted || c->stats.is_loaded)) {
        c->max_bytes = tenth < most ? tenth : most;
    }
    uint64_t limit = c->max_bytes != 0 ? c->max_bytes
                     : is_known        ? used + (is_free / 10 < most ? is_free / 10 : most)
                                       : used + most;
    pthread_mutex_unlock(&c->lock);
    return limit;
}

uint64_t mx_cold_low_water(const mx_cold *c, uint64_t limit)
{
    enum { FREE_PAGES = 8 }; /* at least, unless that is more than half of a small folder */
    uint64_t room = (c->page_bytes + MX_DISK_PAYLOAD_AT) * FREE_PAGES + c->shape.state_bytes;
    room = room < limit / 2 ? room : limit / 2;
    return limit - (room > limit / 16 ? room : limit / 16);
}

bool mx_cold_has_whole_page(mx_cold *c, const mx_hash256 *page_id)
{
    return mx_cold_has_page(c, page_id) && !mx_cold_index_lacks(c->index, page_id);
}

bool mx_cold_has_page(mx_cold *c, const mx_hash256 *page_id)
{
    return mx_cold_index_is_kept(c->index, page_id);
}

mx_err mx_cold_list_turns(mx_cold *c, const mx_hash256 *root, uint64_t min_bytes,
                          uint64_t max_bytes, const uint8_t *nonce, uint64_t wait_us,
                          mx_turn **turns, mx_hash256 **sessions, size_t *n)
{
    if (c->mode != MX_COLD_ON) { /* nothing could be read */
        *turns = NULL;
        *sessions = NULL;
        *n = 0;
        return MX_OK;
    }
    mx_cold_wait_loaded(c, wait_us);
    return mx_cold_turns_list(c->turns, root, min_bytes, max_bytes, nonce, turns, sessions, n);
}

void mx_cold_get_stats(mx_cold *c, mx_cold_stats *out)
{
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    out->max_bytes = c->max_bytes;
    pthread_mutex_unlock(&c->lock);
    out->turns = mx_cold_turns_count(c->turns);
}
