/* SPDX-License-Identifier: MIT
 *
 * The time of a pass is close to linear in its prompt rows, from the first row on: SmolLM2 beside one
 * stream 15 ms + 1.3 ms a row, at a depth of 2,048 tokens 41 ms + 8 ms a row, whether 4 rows or 128.
 * So small chunks waste next to nothing, and a pass that may last STRETCH times as long as its decode
 * rows alone gives the prompt (STRETCH - 1) / STRETCH of the machine, whatever the model. (The fixed
 * 128 rows that stood here before made a stream 12 and 25 times slower. Xeon, 2 cores, 2026-11-29.)
 *
 * Both costs change: with depth, with the number of streams, with what else the machine does. They
 * are therefore followed and never assumed: the cost of a row by the mean of the last few passes,
 * which one pass can halve or multiply by four, so that neither a deep prompt after a shallow one nor
 * a machine that was asleep for a second is felt for long; the cost of the decode rows alone by
 * leaving the prompts out of every REMEASURE-th pass. That one goes down faster than up: a pass that
 * was interrupted on a busy machine must not pass for what decoding costs, and too low a value is to
 * the streams' good.
 */
#include "sched/sched_share.h"

#include "base/base.h"

/* Below 2, because the streams are to keep half of their speed with the measuring noise on top. */
static const double STRETCH = 1.85;
/* Costs the prompt less than 2 % of its time. */
static const uint32_t REMEASURE = 32;
/* Until there is a measurement: little for any model, enough to measure. */
static const size_t FIRST_ROWS = 16;

static size_t slot_of(size_t n_decode)
{
    return mx_min_size(n_decode, MX_SHARE_SIZES - 1);
}

static double mix(double old, double now, double weight)
{
    return old > 0 ? old + weight * (now - old) : now;
}

size_t mx_share_rows(const mx_share *s, size_t n_decode, size_t max_rows)
{
    size_t slot = slot_of(n_decode);
    if (s->decode_us[slot] <= 0 || s->age[slot] >= REMEASURE) {
        return 0;
    }
    if (s->row_us <= 0) {
        return mx_min_size(FIRST_ROWS, max_rows);
    }
    double rows = (STRETCH - 1) * s->decode_us[slot] / s->row_us;
    if (rows >= (double)max_rows) {
        return max_rows;
    }
    return rows < 1 ? 1 : (size_t)(rows + 0.5);
}

void mx_share_note(mx_share *s, size_t n_decode, size_t n_prompt, double us)
{
    size_t slot = slot_of(n_decode);
    if (n_prompt == 0) {
        s->decode_us[slot] = mix(s->decode_us[slot], us, us < s->decode_us[slot] ? 0.5 : 0.15);
        s->age[slot] = 0;
        return;
    }
    double alone = n_decode > 0 ? s->decode_us[slot] : 0;
    double row_us = us > alone ? (us - alone) / (double)n_prompt : 0;
    if (s->row_us > 0 && row_us > 7 * s->row_us) {
        row_us = 7 * s->row_us;
    }
    s->row_us = mix(s->row_us, row_us, 0.5);
    if (n_decode > 0) {
        s->age[slot]++;
    }
}
