/* SPDX-License-Identifier: MIT
 *
 * pool.h: the compute pool: n threads that run one function together, then sleep.
 *
 * The calling thread is worker 0, so a pool of 1 starts no thread. Owned by the engine thread: one
 * mx_pool_run at a time. Workers spin for a few microseconds after a job (the next one is usually
 * that close) and then wait on a futex: an idle server uses no CPU.
 */
#ifndef MX_POOL_H
#define MX_POOL_H

#include "base/err.h"

typedef struct mx_pool mx_pool;
typedef void (*mx_pool_fn)(void *arg, unsigned worker);

mx_err mx_pool_create(mx_pool **out, unsigned n_threads, mx_errbuf *eb);
void mx_pool_destroy(mx_pool *p); /* joins; NULL is allowed */
unsigned mx_pool_size(const mx_pool *p);

/* Runs fn(arg, worker) on the caller and on those workers that come in time, and returns when all of
 * them have returned. A worker that the system does not let run (a busy neighbour has its core) is
 * not waited for: so fn must hand out its work with mx_pool_take and must be able to do all of it on
 * any subset of the workers. What fn wrote is visible to the caller. */
void mx_pool_run(mx_pool *p, mx_pool_fn fn, void *arg);
/* The same on every worker, exactly once each: for setting up threads. */
void mx_pool_run_each(mx_pool *p, mx_pool_fn fn, void *arg);

/* Work stealing inside one run: hands out [0, n_items) in runs of `chunk`; each worker calls it in
 * a loop until it returns false. Reset with {0} before the run. */
typedef struct mx_pool_cursor {
    size_t next; /* atomic access only */
} mx_pool_cursor;

MX_INLINE bool mx_pool_take(mx_pool_cursor *c, size_t n_items, size_t chunk, size_t *begin,
                            size_t *end)
{
    size_t at = __atomic_fetch_add(&c->next, chunk, __ATOMIC_RELAXED);
    if (at >= n_items) {
        return false;
    }
    *begin = at;
    *end = mx_min_size(at + chunk, n_items);
    return true;
}

#endif
