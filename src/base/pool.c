/* SPDX-License-Identifier: MIT
 *
 * A job is a gate: the caller opens it, workers enter, the caller works along, closes it when there is
 * nothing left to take, and waits until those inside have left. `gate` holds OPEN and the number of
 * workers inside; `generation` is raised once per job and is what idle workers wait for. Both are
 * waited for first by spinning, then by a futex. Nobody waits for a worker that has not entered: on a
 * machine with a busy neighbour that would cost a time slice per job, a hundred times per token.
 *
 * Why the order suffices: the caller writes fn and arg while the gate is closed and empty, then opens
 * it with release. A worker enters by a compare-and-swap with acquire that needs OPEN to be set, so it
 * sees the fn and arg of the job that is open now (whichever generation woke it). What it did is
 * released by its leaving, which the caller loads with acquire before it returns; fn and arg are only
 * rewritten after that. A worker enters at most once per generation it has seen; entering a later job
 * than the one that woke it is harmless, as the work is handed out by a cursor.
 */
#include "base/pool.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MAX_THREADS = 256,
    /* Longer than the gap between two jobs of one token (0.2 to 5 us), short enough that spinning on
     * a shared core costs little. In time, not in rounds: a pause takes 10 to 140 cycles. */
    SPIN_US = 20,
    ROUNDS_PER_LOOK = 16,
};

static const uint32_t OPEN = 1u << 31;

typedef struct worker {
    mx_pool *pool;
    pthread_t thread;
    unsigned index;
} worker;

struct mx_pool {
    unsigned n_threads;
    mx_pool_fn fn;
    void *arg;
    _Atomic uint32_t generation; /* futex word: raised once per job */
    _Atomic uint32_t gate;       /* futex word: OPEN | workers inside */
    _Atomic uint32_t n_ran;      /* futex word: workers that have run a job of mx_pool_run_each */
    bool is_each;                /* this job needs every worker */
    _Atomic bool is_stopping;
    worker *workers; /* [n_threads - 1] */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when *word is no longer `old`. */
static uint32_t wait_change(_Atomic uint32_t *word, uint32_t old)
{
    uint64_t end_us = 0;
    for (;;) {
        for (unsigned i = 0; i < ROUNDS_PER_LOOK; i++) {
            uint32_t now = atomic_load_explicit(word, memory_order_acquire);
            if (now != old) {
                return now;
            }
            cpu_relax();
        }
        uint64_t now_us = mx_now_us();
        if (end_us == 0) {
            end_us = now_us + SPIN_US;
        } else if (now_us >= end_us) {
            futex_wait(word, old);
        }
    }
}

static bool enter(mx_pool *p)
{
    uint32_t g = atomic_load_explicit(&p->gate, memory_order_relaxed);
    while ((g & OPEN) != 0) {
        if (atomic_compare_exchange_weak_explicit(&p->gate, &g, g + 1, memory_order_acquire,
                                                  memory_order_relaxed))
        {
            return true;
        }
    }
    return false;
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    mx_pool *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_change(&p->generation, seen);
        if (atomic_load(&p->is_stopping)) {
            return NULL;
        }
        if (!enter(p)) {
            continue;
        }
        p->fn(p->arg, w->index);
        if (p->is_each) {
            atomic_fetch_add_explicit(&p->n_ran, 1, memory_order_release);
            futex_wake_all(&p->n_ran);
        }
        if (atomic_fetch_sub_explicit(&p->gate, 1, memory_order_release) == 1) {
            futex_wake_all(&p->gate); /* closed, and the last one has left */
        }
    }
}

static void run(mx_pool *p, mx_pool_fn fn, void *arg, bool is_each)
{
    if (p->n_threads == 1) {
        fn(arg, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->is_each = is_each;
    atomic_store_explicit(&p->n_ran, 0, memory_order_relaxed);
    atomic_store_explicit(&p->gate, OPEN, memory_order_release);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    futex_wake_all(&p->generation);
    fn(arg, 0);
    uint32_t n;
    while (is_each &&
           (n = atomic_load_explicit(&p->n_ran, memory_order_acquire)) != p->n_threads - 1)
    {
        wait_change(&p->n_ran, n);
    }
    atomic_fetch_and_explicit(&p->gate, ~OPEN, memory_order_acq_rel);
    while ((n = atomic_load_explicit(&p->gate, memory_order_acquire)) != 0) {
        wait_change(&p->gate, n);
    }
}

void mx_pool_run(mx_pool *p, mx_pool_fn fn, void *arg)
{
    run(p, fn, arg, false);
}

void mx_pool_run_each(mx_pool *p, mx_pool_fn fn, void *arg)
{
    run(p, fn, arg, true);
}

mx_err mx_pool_create(mx_pool **out, unsigned n_threads, mx_errbuf *eb)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS) {
        return mx_fail(eb, MX_E_INVALID, "threads must be 1 to %d, not %u", MAX_THREADS, n_threads);
    }
    mx_pool *p = mx_calloc(1, sizeof *p);
    worker *workers = mx_calloc(n_threads, sizeof *workers);
    if (p == NULL || workers == NULL) {
        mx_free(p);
        mx_free(workers);
        return mx_fail(eb, MX_E_NOMEM, "no memory for the compute pool");
    }
    p->workers = workers;
    p->n_threads = 1;
    for (unsigned i = 1; i < n_threads; i++) {
        worker *w = &workers[i - 1];
        *w = (worker){.pool = p, .index = i};
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            mx_pool_destroy(p);
            return mx_fail_errno(eb, MX_E_IO, rc, "cannot start compute thread %u", i);
        }
        p->n_threads++;
    }
    *out = p;
    return MX_OK;
}

void mx_pool_destroy(mx_pool *p)
{
    if (p == NULL) {
        return;
    }
    atomic_store(&p->is_stopping, true);
    atomic_fetch_add(&p->generation, 1);
    futex_wake_all(&p->generation);
    for (unsigned i = 1; i < p->n_threads; i++) {
        pthread_join(p->workers[i - 1].thread, NULL);
    }
    mx_free(p->workers);
    mx_free(p);
}

unsigned mx_pool_size(const mx_pool *p)
{
    return p->n_threads;
}
