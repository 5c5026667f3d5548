/* SPDX-License-Identifier: MIT
 *
 * Whole pages read by several threads at a time.
 *
 * One thread copies a page out of the page cache, or waits for the disk, while another sums up, checks or
 * decompresses the next: a core does 3 GB/s of that plain and 1 GB/s compressed, a disk often more. The
 * reader is one of the lanes; the others sleep until it has pages for them, and are done before it goes on.
 *
 * A lane only reads. It moves nothing to quarantine, logs nothing, changes no index: where something is
 * not as it should be, the lanes stop, and the reader takes that page again by itself, which finds out and
 * does whatever there is to do, in the order of the chain, as it would have without lanes.
 */
#include "cold/cold_state.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

/* The part of a READ that the lanes share. */
struct mx_cold_read_work {
    mx_cold_job *job;
    const mx_hash256 *ids; /* [job->n_full] */
    atomic_size_t next;    /* the next page that nobody has taken */
    atomic_size_t end;     /* the first that could not be read; pages are taken in order, so when all
                              lanes are done the ones before it are all there */
};

/* Tells the kernel that a file will be read soon; what fails here fails again where it counts. */
static void prefetch(const mx_cold_folder *f, const mx_hash256 *id)
{
    char path[MX_COLD_NAME_CAP];
    mx_cold_object_path(MX_COLD_PAGE, id, path);
    int fd = f->ops->open(f->pages_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd >= 0) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
        close(fd);
    }
}

static bool read_page(mx_cold *c, const mx_cold_read_work *w, unsigned lane, size_t i)
{
    const mx_cold_job *job = w->job;
    mx_cold_want want = {.id = w->ids[i],
                         .root = &job->root,
                         .parent = i == 0 ? &job->parent_id : &w->ids[i - 1],
                         .n_tokens = MX_PAGE_TOKENS,
                         .first_position = (job->first_page + i) * MX_PAGE_TOKENS};
    mx_cold_scratch *s = lane == 0 ? &c->reader_scratch : &c->lanes[lane - 1].scratch;
    mx_disk_page page;
    mx_errbuf eb;
    uint8_t *place = mx_cold_place_of(c, job, s, i);
    if (place == NULL) {
        return false;
    }
    if (!mx_cold_claim(c, w->job, lane, i)) {
        return false;
    }
    mx_err err = mx_cold_try_page(c, &c->reader_folder, &want, s, place, &page, NULL, &eb);
    if (err == MX_OK) {
        mx_cold_put_page(c, w->job, i, page.lacks_local, place);
    }
    mx_cold_unclaim(c, w->job, lane);
    return err == MX_OK
           && memcmp(page.tokens, job->tokens + i * MX_PAGE_TOKENS, sizeof page.tokens) == 0;
}

static void stop_at(mx_cold_read_work *w, size_t i)
{
    size_t end = atomic_load(&w->end);
    while (i < end && !atomic_compare_exchange_weak(&w->end, &end, i)) {
    }
}

static void run_lane(mx_cold *c, mx_cold_read_work *w, unsigned lane)
{
    enum { AHEAD = 8 }; /* files; 4 and 16 read no faster from a cold page cache (2026-11-30) */
    for (;;) {
        size_t i = atomic_fetch_add(&w->next, 1);
        if (i >= atomic_load(&w->end)) {
            return;
        }
        for (size_t k = i == 0 ? 1 : i + AHEAD; k <= i + AHEAD && k < w->job->n_full; k++) {
            prefetch(&c->reader_folder, &w->ids[k]);
        }
        if (atomic_load(&c->is_stopping) || !read_page(c, w, lane, i)) {
            stop_at(w, i);
            return;
        }
    }
}

static void *lane_main(void *arg)
{
    mx_cold_lane *l = arg;
    mx_cold *c = l->c;
    pthread_mutex_lock(&c->lock);
    while (!atomic_load(&c->is_stopping)) {
        if (c->lane_work == NULL || l->n_seen == c->n_lane_works) {
            pthread_cond_wait(&c->lane_cond, &c->lock);
            continue;
        }
        mx_cold_read_work *w = c->lane_work;
        l->n_seen = c->n_lane_works;
        c->n_lanes_busy++;
        pthread_mutex_unlock(&c->lock);
        run_lane(c, w, l->number);
        pthread_mutex_lock(&c->lock);
        c->n_lanes_busy--;
        pthread_cond_signal(&c->lane_done_cond);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

size_t mx_cold_read_in_lanes(mx_cold *c, mx_cold_job *job, const mx_hash256 *ids)
{
    mx_cold_read_work w = {.job = job, .ids = ids};
    atomic_init(&w.next, 0);
    atomic_init(&w.end, job->n_full);
    pthread_mutex_lock(&c->lock);
    c->lane_work = &w;
    c->n_lane_works++;
    if (job->n_full > 1) {
        pthread_cond_broadcast(&c->lane_cond);
    }
    pthread_mutex_unlock(&c->lock);
    run_lane(c, &w, 0);
    pthread_mutex_lock(&c->lock);
    c->lane_work = NULL; /* who has not come yet need not */
    while (c->n_lanes_busy > 0) {
        pthread_cond_wait(&c->lane_done_cond, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return atomic_load(&w.end);
}

/* ---- threads --------------------------------------------------------------------------------- */

void mx_cold_start_lanes(mx_cold *c)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    size_t n_lanes = n < MX_COLD_LANES ? (size_t)n : MX_COLD_LANES;
    while (c->n_lanes + 1 < n_lanes) {
        mx_cold_lane *l = &c->lanes[c->n_lanes];
        *l = (mx_cold_lane){.c = c, .number = (unsigned)c->n_lanes + 1};
        if (!mx_cold_make_scratch(&l->scratch)) {
            return; /* the reader alone will do */
        }
        if (pthread_create(&l->thread, NULL, lane_main, l) != 0) {
            mx_cold_free_scratch(&l->scratch);
            return;
        }
        c->n_lanes++;
    }
}
