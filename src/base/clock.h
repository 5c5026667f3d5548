/* SPDX-License-Identifier: MIT
 *
 * clock.h: the four clocks. Durations use the monotonic clock, ages of files on disk the one that
 * also runs during suspend, time stamps for people the wall clock (which may jump), what something costs
 * the CPU time of the calling thread.
 */
#ifndef MX_CLOCK_H
#define MX_CLOCK_H

#include "base/base.h"

uint64_t mx_now_us(void);      /* CLOCK_MONOTONIC */
uint64_t mx_boottime_us(void); /* CLOCK_BOOTTIME */
int64_t mx_wall_s(void);       /* seconds since 1970 */
uint64_t mx_thread_cpu_us(void); /* CLOCK_THREAD_CPUTIME_ID */

#endif
