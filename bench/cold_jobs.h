/* SPDX-License-Identifier: MIT
 *
 * cold_jobs.h: what the benches of the cold tier share: giving it a job and waiting for the end, and
 * random numbers. Header only; one thread.
 */
#ifndef MX_COLD_JOBS_H
#define MX_COLD_JOBS_H

#include "cold/cold.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

static sem_t woken; /* jobs_begin, then the tier's threads: one is done */

static void jobs_begin(void)
{
    sem_init(&woken, 0, 0);
}

/* For mx_cold_config.wake. */
static void wake(void *arg)
{
    (void)arg;
    sem_post(&woken);
}

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
        exit(1);
    }
}

/* Returns when the job, the only one that the tier has, has done what it was to do. */
static void run_job(mx_cold *c, mx_cold_job *job)
{
    const mx_cold_job *done;
    must(mx_cold_submit(c, job) == MX_OK, "a job was not taken");
    while ((done = mx_cold_poll(c)) == NULL) {
        sem_wait(&woken);
    }
    must(done == job && job->status == MX_OK, "a job failed");
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

#endif
