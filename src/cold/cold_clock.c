/* SPDX-License-Identifier: MIT
 *
 * What time it is, when the system's clock may be wrong.
 *
 * Files are stamped with the wall clock, for it is the only one that all processes and all starts of
 * the machine share; and it jumps: a machine without a battery starts in 1970, a guest wakes up hours
 * late, somebody sets the wrong year. Deleting by age must survive all of that. Two rules:
 *
 * - Time goes forward with the clock that does not jump. Where the wall clock is behind, it is right at once:
 *   files only get younger by that. Where it jumps ahead, it is believed after a day, in which all that is
 *   used gets a new stamp; or at once, when the time before cannot have been right.
 * - A stamp in the future is not corrected at once: as likely as not the clock is wrong, and every file of
 *   the folder would get a stamp of the time to which it has jumped back, old enough to be deleted when
 *   the clock is right again. But a stamp that is still in the future after a week is wrong itself, and
 *   would keep its file for years. (One from before there were such files is wrong in any case.)
 */
#include "cold/cold_sweep.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum {
    SLACK_S = 60,
    BELIEVE_S = 86400,        /* a clock that is ahead */
    SETTLE_S = 7 * 86400,     /* stamps that are in the future */
    NOTE_BYTES = 64,
};

int64_t mx_cold_stamp_ns(const mx_cold *c)
{
    return c->tuning.clock != NULL ? c->tuning.clock->wall_ns() : mx_cold_wall_ns();
}

static int64_t wall_s(const mx_cold *c)
{
    return mx_cold_stamp_ns(c) / 1000000000;
}

static int64_t boot_s(const mx_cold *c)
{
    uint64_t us = c->tuning.clock != NULL ? c->tuning.clock->boot_us() : mx_boottime_us();
    return (int64_t)(us / 1000000);
}

int64_t mx_cold_now_s(const mx_cold *c)
{
    int64_t wall = wall_s(c), steady = boot_s(c) + (int64_t)atomic_load(&c->clock_offset_s);
    return wall < steady ? wall : steady;
}

void mx_cold_start_clock(mx_cold *c)
{
    atomic_store(&c->clock_offset_s, wall_s(c) - boot_s(c));
}

void mx_cold_follow_clock(mx_cold *c)
{
    int64_t boot = boot_s(c), wall = wall_s(c), offset = (int64_t)atomic_load(&c->clock_offset_s);
    int64_t ahead = wall - (boot + offset);
    bool is_ahead = ahead > SLACK_S;
    if (!is_ahead) {
        c->ahead_since_s = 0;
    } else if (c->ahead_since_s == 0) {
        c->ahead_since_s = boot > 0 ? boot : 1;
    }
    bool is_believed = is_ahead && (boot + offset < MX_SWEPT_PLAUSIBLE_S || boot - c->ahead_since_s >= BELIEVE_S);
    if (is_believed) {
        mx_log(MX_LOG_INFO, "cold: the system's clock has gone forward: ages of files count by it from now "
               "on seconds=%" PRId64, ahead);
        c->ahead_since_s = 0;
    }
    if (ahead < 0 || is_believed) {
        atomic_store(&c->clock_offset_s, offset + ahead);
    }
}

/* ---- stamps in the future -------------------------------------------------------------------- */

static bool is_in_future(const mx_sweep *s, const mx_swept_file *e)
{
    return !e->is_gone && e->mtime_ns / 1000000000 > s->now_s + SLACK_S;
}

static bool is_impossible(const mx_sweep *s, const mx_swept_file *e)
{
    (void)s;
    return !e->is_gone && e->mtime_ns / 1000000000 < MX_SWEPT_PLAUSIBLE_S;
}

typedef bool is_wrong_fn(const mx_sweep *s, const mx_swept_file *e);

static size_t count(const mx_sweep *s, is_wrong_fn *is_wrong)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        n += is_wrong(s, &s->files[i]);
    }
    return n;
}

/* Since when there are some; 0 = nothing is noted. */
static int64_t read_note(int lock)
{
    char text[NOTE_BYTES + 1] = {0};
    int64_t since = 0;
    ssize_t n = pread(lock, text, NOTE_BYTES, 0);
    return n > 0 && sscanf(text, "times in the future since %" SCNd64, &since) == 1 ? since : 0;
}

/* Best effort: what is not noted is settled later. */
static void write_note(int lock, int64_t since)
{
    char text[NOTE_BYTES];
    int n = snprintf(text, sizeof text, "times in the future since %" PRId64 "\n", since);
    bool ok = ftruncate(lock, 0) == 0 && (since == 0 || pwrite(lock, text, (size_t)n, 0) == n);
    (void)ok;
}

static void use_now(mx_sweep *s, mx_swept_file *e)
{
    char name[300];
    mx_swept_name(e, name);
    int root = mx_sweep_open_root(s, e->root);
    int dir = root >= 0 ? mx_sweep_open_folder(s, root, e->folder) : -1;
    int64_t now_ns = s->now_s * 1000000000;
    if (dir >= 0 && mx_cold_touch(s->f, dir, name, now_ns) == MX_OK) {
        e->mtime_ns = now_ns;
    }
    if (dir >= 0) {
        close(dir);
    }
    if (root >= 0) {
        close(root);
    }
}

/* Settled, they are the youngest: that they stand elsewhere in the list does not matter until the next
 * sweep, for they are too young to go. */
static void use_all_now(mx_sweep *s, is_wrong_fn *is_wrong)
{
    size_t n = count(s, is_wrong);
    if (n > 0) {
        mx_log(MX_LOG_INFO, "cold: sweep: files=%zu have times that cannot be right: they count as used now",
               n);
    }
    for (size_t i = 0; n > 0 && i < s->n_files && !mx_sweep_is_stopping(s); i++) {
        if (is_wrong(s, &s->files[i])) {
            use_now(s, &s->files[i]);
        }
    }
}

void mx_sweep_settle_times(mx_sweep *s, int lock)
{
    int64_t since = read_note(lock);
    bool is_plausible = s->now_s >= MX_SWEPT_PLAUSIBLE_S;
    if (is_plausible) {
        use_all_now(s, is_impossible);
    }
    if (!is_plausible || count(s, is_in_future) == 0) {
        if (since != 0) {
            write_note(lock, 0);
        }
    } else if (since == 0 || since > s->now_s) {
        write_note(lock, s->now_s);
    } else if (s->now_s - since >= SETTLE_S) {
        use_all_now(s, is_in_future);
        write_note(lock, 0);
    }
}
