/* SPDX-License-Identifier: MIT
 *
 * --ssd-write-budget: how many bytes of pages and states are written in a day, for disks wear out.
 *
 * What was written today is kept in a small file next to gc.lock, for all models and processes of the
 * folder together; times of files cannot tell, because reading sets them. It is brought up to date
 * every 64th of the budget, or minute, and at the end: what a crash forgets is less than that. Two
 * processes add to it one after the other; when both do so at the same moment, one addition is
 * lost, which is no more.
 */
#include "cold/cold_state.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

/* Days in the future are those of a clock that was wrong. Of one day it is not worth to speak: a clock that is
 * set back a little after midnight must not give another day's budget. */
static bool is_far_ahead(int64_t day, int64_t today)
{
    return day > today + 1;
}

/* Bytes that the file says were written today. A day in the future counts as today, or the budget would be
 * without effect until then. *is_ahead (or NULL): it is far in the future, and would count on each day until
 * then. */
static uint64_t read_file(mx_cold *c, int64_t today, bool *is_ahead)
{
    char text[96] = {0};
    const mx_cold_folder *f = &c->writer_folder;
    uint64_t n_bytes = 0, written = 0;
    int64_t day = 0;
    int fd;
    if (is_ahead != NULL) {
        *is_ahead = false;
    }
    if (mx_cold_open_file(f->ops, f->v1_fd, MX_COLD_WEAR_NAME, &fd, &n_bytes, NULL) != MX_OK) {
        return 0;
    }
    struct iovec iov = {text, (size_t)n_bytes};
    bool ok = n_bytes < sizeof text && mx_cold_read_all(f->ops, fd, &iov, 1, NULL) == MX_OK
              && sscanf(text, "day %" SCNd64 " bytes %" SCNu64, &day, &written) == 2;
    close(fd);
    if (is_ahead != NULL) {
        *is_ahead = ok && is_far_ahead(day, today);
    }
    return ok && day >= today ? written : 0;
}

static void save(mx_cold *c)
{
    mx_cold_wear *w = &c->wear;
    mx_cold_folder *f = &c->writer_folder;
    if (f->v1_fd < 0) {
        return;
    }
    uint64_t written = read_file(c, w->day, NULL) + w->unsaved;
    char text[96];
    int n = snprintf(text, sizeof text, "day %" PRId64 " bytes %" PRIu64 "\n", w->day, written);
    struct iovec iov = {text, (size_t)n};
    w->saved_us = mx_now_us();
    if (mx_cold_write_file(f, f->v1_fd, MX_COLD_WEAR_NAME, &iov, 1, NULL) == MX_OK) {
        w->written = written;
        w->unsaved = 0;
    }
    f->is_renamed_unsynced = false; /* says something about pages only */
}

void mx_cold_wear_save(mx_cold *c)
{
    if (c->wear.unsaved > 0) {
        save(c);
    }
}

/* A new day, or the first look; or the clock was set back by days, and all that was written counts as
 * today's. */
static void roll(mx_cold *c)
{
    mx_cold_wear *w = &c->wear;
    int64_t today = mx_cold_now_s(c) / 86400;
    if (w->is_known && today <= w->day && !is_far_ahead(w->day, today)) {
        return;
    }
    bool is_ahead = w->is_known && today < w->day;
    w->day = today;
    if (!is_ahead) {
        w->unsaved = 0;
        w->written = read_file(c, today, &is_ahead);
        w->is_known = true;
    }
    w->saved_us = mx_now_us();
    if (is_ahead) {
        save(c); /* as today's: tomorrow is another day */
    }
}

mx_err mx_cold_wear_check(mx_cold *c, uint64_t need)
{
    mx_cold_wear *w = &c->wear;
    if (w->budget == 0) {
        return MX_OK;
    }
    roll(c);
    bool is_spent = w->written > w->budget || need > w->budget - w->written;
    pthread_mutex_lock(&c->lock);
    bool is_new = is_spent && c->spent_day < w->day;
    c->stats.bytes_today = w->written;
    c->stats.dropped_budget += is_spent;
    c->spent_day = is_spent ? w->day : c->spent_day;
    pthread_mutex_unlock(&c->lock);
    if (is_new) {
        mx_log(MX_LOG_WARN, "cold: written_today=%" PRIu64 " write_budget=%" PRIu64
               "; nothing more is written to folder=%s before midnight UTC (--ssd-write-budget)",
               w->written, w->budget, c->dir);
    }
    return is_spent ? MX_E_LIMIT : MX_OK;
}

bool mx_cold_wear_is_spent_locked(const mx_cold *c)
{
    int64_t today = mx_cold_now_s(c) / 86400;
    return c->spent_day > 0 && today <= c->spent_day && !is_far_ahead(c->spent_day, today);
}

void mx_cold_wear_note(mx_cold *c, uint64_t bytes)
{
    enum { SAVE_US = 60000000 };
    mx_cold_wear *w = &c->wear;
    if (w->budget == 0) {
        return;
    }
    roll(c);
    w->written += bytes;
    w->unsaved += bytes;
    pthread_mutex_lock(&c->lock);
    c->stats.bytes_today = w->written;
    pthread_mutex_unlock(&c->lock);
    if (w->unsaved >= w->budget / 64 || mx_now_us() - w->saved_us >= SAVE_US) {
        mx_cold_wear_save(c);
    }
}
