/* SPDX-License-Identifier: MIT
 *
 * A page costs the writer up to 10 ms of CPU time: copying, hashing, and above all the kernel's copy into
 * its page cache. The compute threads have all cores, and each pass waits for the slowest of them, so
 * decoding is later by each of those milliseconds. What has to be done will be done; but right behind a
 * prompt, whose last chunk is written while the first words of the answer are awaited, doing it at once
 * took 5 % of the time of 128 tokens (docs/decisions/0019-writer-pace.md).
 *
 * So the writer's CPU time is spread: it rests after each job until that was one hundredth of the time
 * since it began. Where that is not enough to get done, the work is spread evenly over what is left
 * until the oldest job is to be written: one burst at the end would hold up somebody's token by a second.
 */
#include "cold/cold_pace.h"

enum { RESTS_PER_JOB = 99 }; /* 1 % of one core */

uint64_t mx_pace_rest_us(uint64_t cpu_us, uint64_t age_us, size_t n_queued, uint64_t limit_us)
{
    if (age_us >= limit_us) {
        return 0;
    }
    uint64_t even_us = (limit_us - age_us) / n_queued;
    uint64_t spared_us = cpu_us * RESTS_PER_JOB;
    return spared_us < even_us ? spared_us : even_us;
}
