/* SPDX-License-Identifier: MIT
 *
 * clock_gettime cannot fail for these clocks on Linux, so there is no error to report.
 */
#include "base/clock.h"

#include <time.h>

static uint64_t read_us(clockid_t id)
{
    struct timespec t = {0};
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

uint64_t mx_now_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

uint64_t mx_boottime_us(void)
{
    return read_us(CLOCK_BOOTTIME);
}

int64_t mx_wall_s(void)
{
    return (int64_t)(read_us(CLOCK_REALTIME) / 1000000u);
}

uint64_t mx_thread_cpu_us(void)
{
    return read_us(CLOCK_THREAD_CPUTIME_ID);
}
