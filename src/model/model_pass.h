/* SPDX-License-Identifier: MIT
 *
 * model_pass.h: one forward pass while it runs: how its stages are run, and what they are told.
 *
 * Belongs to the engine thread; the items of a stage run on the workers of the pool, each of them
 * with rows or panels of its own. Only model_forward.c and the files that hold parts of a layer
 * include this.
 */
#ifndef MX_MODEL_PASS_H
#define MX_MODEL_PASS_H

#include "model/model_internal.h"

typedef struct mx_pass mx_pass;

/* Does items begin..end-1 of a stage. */
typedef void mx_pass_item(mx_pass *p, unsigned worker, size_t begin, size_t end);

struct mx_pass {
    mx_model *m;
    const mx_batch *batch;
    bool is_cancelled; /* atomic access */

    /* The stage that runs now. */
    mx_pass_item *item;
    mx_pool_cursor cursor;
    size_t n_items, chunk;

    /* What the stages are told. */
    uint32_t layer;
    const float *norm;      /* weights of the norm stage */
    bool adds_h;            /* the norm stage adds h to x first, */
    const float *post_norm; /* normalised with these weights when not NULL */
    uint32_t n_jobs;        /* of the next matmul stage, in mx_state.jobs */
    bool is_not_finite;     /* logits stage: found something; atomic access */
};

/* Runs item over [0, n) in runs of `chunk`. False when the pass was cancelled. */
bool mx_pass_stage(mx_pass *p, size_t n, size_t chunk, mx_pass_item *item);
/* Over the rows of the batch. */
bool mx_pass_rows(mx_pass *p, mx_pass_item *item);

/* Adds y[r] = W act[r] for rows 0..n_rows-1 of act to the next matmul stage... */
void mx_pass_job(mx_pass *p, const mx_wmat *w, const mx_act *act, uint32_t n_rows, float *y,
                 size_t ldy);
/* ...and runs it. The workers share the panels of all jobs. */
bool mx_pass_matmul(mx_pass *p);

/* Quantises row act_row of `a` from x, which belongs to row `row` of the batch. A row that is not
 * finite is marked and goes on as zeros: it must not disturb the rows beside it, and zeros stay
 * finite to the end. */
void mx_pass_quantize(mx_pass *p, mx_act *a, float *x, uint32_t act_row, uint32_t row);
/* Marks a row of the batch as bad and empties its residual stream. */
void mx_pass_spoil(mx_pass *p, uint32_t row);

/* act_ff[act_row] = act(gate) * up, with gate_up [2 n_ff]. */
void mx_pass_gate(mx_pass *p, float *gate_up, uint32_t act_row, uint32_t row);

/* The last layer's keys, values and states are stored: from here on only rows whose result somebody
 * wants are worth computing. Drops the others; n_rows may become 0. */
void mx_pass_keep_wanted_rows(mx_pass *p);

/* Rules that the rows of a batch must follow where sequences have states. */
mx_err mx_gdn_check_batch(const mx_batch *b, mx_errbuf *eb);
/* Finds the runs of the batch's sequences. */
void mx_gdn_begin(mx_state *s);
/* h = the output of a Gated DeltaNet layer for act_embd; writes the layer's part of the sequences'
 * next states. False when cancelled. */
bool mx_gdn_forward(mx_pass *p, const mx_layer *l, bool is_last);
/* The next states of sequences without a bad row say where they are. */
void mx_gdn_end(const mx_batch *b);

/* h = the mixture of experts of act_embd (and h, the same rows unquantised). False when
 * cancelled. */
bool mx_moe_forward(mx_pass *p, const mx_layer *l);

#endif
