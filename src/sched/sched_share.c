/* SPDX-License-Identifier: MIT
 *
 * The time of a pass is close to linear in its prompt rows, from the first row on: SmolLM2 beside one
 * stream 15 ms + 1.3 ms a row, at a depth of 2,048 tokens 41 ms + 8 ms a row, whether 4 rows or 128.
 * So small chunks waste next to nothing, and a pass that may last STRETCH times as long as its decode
 * rows alone gives the prompt (STRETCH - 1) / STRETCH of the machine, whatever the model. (The fixed
 * 128 rows that stood here before made a stream 12 and 25 times slower. Xeon, 2 cores, 2026-11-29.)
 *
 * Both costs change: with depth, with the number of streams, with what else the machine does. They
 * are therefore followed and never assumed. A pass is easily off by as much as a row or two costs, so
 * both are means without a lean to either side, and the cost of a row weighs a pass by its rows (least
 * squares): estimates that took only what was above zero, or gave a pass with one row as much say as
 * one with ten, found rows dear, chose fewer, knew even less, and stayed at one row. The cost of the
 * decode rows alone is measured by leaving the prompts out of every REMEASURE-th pass.
 */
#include "sched/sched_share.h"

#include "base/base.h"

/* Below 2, because the streams are to keep half of their speed with the measuring noise on top. */
static const double STRETCH = 1.85;
/* Costs the prompt 3 % of its time. */
static const uint32_t REMEASURE = 16;
/* Until there is a measurement: little for any model, enough to measure. */
static const size_t FIRST_ROWS = 16;
/* Weight of a pass of the size that is usual: the last dozen count. */
static const double NEWS = 1.0 / 8;
/* A pass that adds more than so many times what was expected was interrupted; it counts as that. */
static const double OUTLIER = 4;

static size_t slot_of(size_t n_decode)
{
    return mx_min_size(n_decode, MX_SHARE_SIZES - 1);
}

/* What a prompt row adds to a pass; 0 = not known. */
static double row_us(const mx_share *s)
{
    return s->rows_rows > 0 ? s->rows_us / s->rows_rows : 0;
}

size_t mx_share_rows(const mx_share *s, size_t n_decode, size_t max_rows)
{
    size_t slot = slot_of(n_decode);
    double alone = s->decode_us[slot];
    if (alone <= 0 || s->age[slot] >= REMEASURE) {
        return 0;
    }
    if (s->rows_rows <= 0) {
        return mx_min_size(FIRST_ROWS, max_rows);
    }
    /* Not more than twice what was usual, however cheap rows seem. */
    double rows = 2 * s->last_rows;
    if (row_us(s) * rows > (STRETCH - 1) * alone) {
        rows = (STRETCH - 1) * alone / row_us(s);
    }
    if (rows >= (double)max_rows) {
        return max_rows;
    }
    return rows < 1 ? 1 : (size_t)(rows + 0.5);
}

static void note_alone(mx_share *s, size_t slot, double us)
{
    double *alone = &s->decode_us[slot];
    if (*alone > 0) {
        us = us > OUTLIER * *alone ? OUTLIER * *alone : us;
        *alone += 0.25 * (us - *alone);
    } else {
        *alone = us;
    }
    s->age[slot] = 0;
}

void mx_share_note(mx_share *s, size_t n_decode, size_t n_prompt, double us)
{
    size_t slot = slot_of(n_decode);
    if (n_prompt == 0) {
        note_alone(s, slot, us);
        return;
    }
    double n = (double)n_prompt;
    double added = us - (n_decode > 0 ? s->decode_us[slot] : 0);
    if (row_us(s) > 0 && added > OUTLIER * n * row_us(s)) {
        added = OUTLIER * n * row_us(s);
    }
    s->rows_us += n * added - NEWS * s->rows_us;
    s->rows_rows += n * n - NEWS * s->rows_rows;
    s->last_rows = n;
    if (n_decode > 0) {
        s->age[slot]++;
    }
}
