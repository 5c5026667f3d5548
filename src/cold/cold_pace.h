/* SPDX-License-Identifier: MIT
 *
 * cold_pace.h: how long the writer rests between two jobs while somebody waits for a next token. A pure
 * function of what it is given; the writer (cold.c) asks it, tests do.
 */
#ifndef MX_COLD_PACE_H
#define MX_COLD_PACE_H

#include <stddef.h>
#include <stdint.h>

/* Microseconds from the end of a job that took cpu_us of CPU time to the beginning of the next of n_queued
 * (at least 1), the oldest of which has waited for age_us. All of them are to be begun before that one has
 * waited for limit_us: then there is no rest (0). */
uint64_t mx_pace_rest_us(uint64_t cpu_us, uint64_t age_us, size_t n_queued, uint64_t limit_us);

#endif
