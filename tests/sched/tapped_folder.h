/* SPDX-License-Identifier: MIT
 *
 * tapped_folder.h: an engine over a cache folder whose system calls can be held up or made to fail
 * (mx_cold_tuning), and what its tests ask it.
 */
#ifndef MX_TAPPED_FOLDER_H
#define MX_TAPPED_FOLDER_H

#include "../exactness/engine_rig.h"

#include "cold/cold_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/uio.h>

enum { N_PROMPT = 300 };

/* ---- a disk with a tap ------------------------------------------------------------------------ */

static pthread_mutex_t tap = PTHREAD_MUTEX_INITIALIZER; /* held = calls hang */
static atomic_bool is_read_tapped, is_sync_tapped;
static atomic_bool is_disk_full;
static atomic_int n_failing_reads; /* so many reads of payloads fail with EIO */
static atomic_int n_held; /* calls that hang */
static atomic_uint slow_read_us, slow_write_us; /* each read of a payload takes so much longer; each write */
static atomic_long n_syncs, n_writes, n_touches;

MX_UNUSED static void pass_tap(const atomic_bool *is_tapped)
{
    if (atomic_load(is_tapped)) {
        atomic_fetch_add(&n_held, 1);
        pthread_mutex_lock(&tap);
        pthread_mutex_unlock(&tap);
        atomic_fetch_sub(&n_held, 1);
    }
}

MX_UNUSED static ssize_t tap_preadv(int fd, const struct iovec *iov, int n, long at)
{
    if (n == 2) { /* with a payload, so not of a manifest or a head */
        pass_tap(&is_read_tapped);
        usleep(atomic_load(&slow_read_us));
        int left = atomic_load(&n_failing_reads);
        while (left > 0 && !atomic_compare_exchange_weak(&n_failing_reads, &left, left - 1)) {
        }
        if (left > 0) {
            errno = EIO;
            return -1;
        }
    }
    return preadv(fd, iov, n, (off_t)at);
}

MX_UNUSED static int tap_fsync(int fd)
{
    atomic_fetch_add(&n_syncs, 1);
    pass_tap(&is_sync_tapped);
    return fsync(fd);
}

MX_UNUSED static ssize_t tap_writev(int fd, const struct iovec *iov, int n)
{
    atomic_fetch_add(&n_writes, 1);
    usleep(atomic_load(&slow_write_us));
    if (atomic_load(&is_disk_full)) {
        errno = ENOSPC;
        return -1;
    }
    return writev(fd, iov, n);
}

MX_UNUSED static int tap_utimens(int dir, const char *name, const struct timespec times[2])
{
    atomic_fetch_add(&n_touches, 1);
    return utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
}

static mx_cold_fileops ops;

MX_UNUSED static void open_rig(rig *g, size_t budget_pages)
{
    mx_tiny_spec spec = rig_spec(2048);
    rig_open(g, &spec, 1, budget_pages);
    ops = mx_cold_real_fileops;
    ops.preadv = tap_preadv;
    ops.fsync = tap_fsync;
    ops.writev = tap_writev;
    ops.utimens = tap_utimens;
    atomic_store(&is_read_tapped, false);
    atomic_store(&is_sync_tapped, false);
    atomic_store(&is_disk_full, false);
    atomic_store(&n_failing_reads, 0);
    atomic_store(&slow_read_us, 0);
    atomic_store(&slow_write_us, 0);
    g->cfg.cold_mode = MX_COLD_ON;
    g->cfg.cold_tuning = (mx_cold_tuning){.fileops = &ops, .min_free_bytes = -1,
                                          .stop_us = 300000, .retry_us = 1};
}

typedef struct prompt {
    int32_t tokens[N_PROMPT];
    question q;
} prompt;

MX_UNUSED static void make_prompt(prompt *p, uint64_t seed)
{
    random_prompt(p->tokens, N_PROMPT, seed);
    p->q = (question){.prompt = p->tokens, .n_prompt = N_PROMPT, .max_tokens = 20, .seed = seed};
}

/* Asks with and without the cache; both must say the same. Returns what happened with it. */
MX_UNUSED static mx_request_stats ask_both(rig *g, const prompt *p, const char *what)
{
    answer want, got;
    ask_and_wait(g, &p->q, &got);
    ask_cold(g, &p->q, &want);
    assert_same(&want, &got, what);
    mx_request_stats s = got.stats;
    answer_free(&want);
    answer_free(&got);
    return s;
}

/* Of the tier itself: what the engine publishes of it may be old, or, while it sleeps, very old. */
MX_UNUSED static mx_cold_stats cold_stats(rig *g)
{
    mx_cold_stats s;
    mx_cold_get_stats(mx_engine_cold(g->engine), &s);
    return s;
}

/* Then all that hangs is the writer: the sweeper, which looks at the folder at the start, is done. */
MX_UNUSED static void close_tap(rig *g)
{
    const uint64_t until = mx_now_us() + 60 * 1000000ull;
    while (!cold_stats(g).is_loaded) {
        assert_true(mx_now_us() < until);
        usleep(1000);
    }
    pthread_mutex_lock(&tap);
    atomic_store(&is_sync_tapped, true);
}

/* Until then the writer may be before or between two jobs, where it lets anybody delete. */
MX_UNUSED static void wait_for_held(void)
{
    const uint64_t until = mx_now_us() + 60 * 1000000ull;
    while (atomic_load(&n_held) == 0) {
        assert_true(mx_now_us() < until);
        usleep(1000);
    }
}

MX_UNUSED static void open_tap(void)
{
    atomic_store(&is_sync_tapped, false);
    pthread_mutex_unlock(&tap);
}

#endif
