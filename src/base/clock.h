/* SPDX-License-Identifier: MIT
 *
 * clock.h: the three clocks. Durations use the monotonic clock, ages of files on disk the one that
 * also runs during suspend, time stamps for people the wall clock (which may jump).
 */
#ifndef MX_CLOCK_H
#define MX_CLOCK_H

#include "base/base.h"

uint64_t mx_now_us(void);      /* CLOCK_MONOTONIC */
uint64_t mx_boottime_us(void); /* CLOCK_BOOTTIME */
int64_t mx_wall_s(void);       /* seconds since 1970 */

#endif
