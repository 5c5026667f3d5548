/* SPDX-License-Identifier: MIT
 *
 * sched_share.h: how many prompt rows may ride along when other sequences are decoding.
 *
 * Running streams keep at least half their speed while somebody else's prompt is read. Nothing about
 * the machine or the model is assumed: the engine reports what its passes cost, and the answer
 * follows from that. Only speed depends on it, never a bit.
 *
 * Owned by the engine thread; plain numbers, {0} is a valid start.
 */
#ifndef MX_SCHED_SHARE_H
#define MX_SCHED_SHARE_H

#include <stddef.h>
#include <stdint.h>

enum { MX_SHARE_SIZES = 65 };

typedef struct mx_share {
    double decode_us[MX_SHARE_SIZES]; /* a pass of i decode rows alone (the last: or more); 0 = not
                                         measured yet */
    uint32_t age[MX_SHARE_SIZES];     /* shared passes since then */
    double rows_us, rows_rows;        /* sums, decaying, over passes with n prompt rows: n x what they
                                         added, n x n. Their quotient is what a row adds */
    double last_rows;                 /* prompt rows of the last pass that had any */
} mx_share;

/* Prompt rows for a pass with n_decode > 0 decode rows, at most max_rows > 0. 0: leave the prompts
 * out this once, what the decode rows cost alone has to be measured (again). */
size_t mx_share_rows(const mx_share *s, size_t n_decode, size_t max_rows);

/* A pass of these rows took so long, from choosing to sampling. */
void mx_share_note(mx_share *s, size_t n_decode, size_t n_prompt, double us);

#endif
