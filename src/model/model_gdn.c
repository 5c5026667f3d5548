/* SPDX-License-Identifier: MIT
 *
 * Gated DeltaNet in the place of attention: instead of keys and values of all earlier tokens, a
 * sequence has a matrix S per head, which each token reads and changes, and the last inputs of a
 * short convolution.
 *
 *     row of qkv:   [ m: q heads | k heads | v heads ][ z ][ beta ][ alpha ]
 *     stage 1       m = silu(conv(m)), q and k to unit length;  beta, alpha -> sigmoid, decay
 *     stage 2       S = decay S + k (beta (v - decay S' k))',  o = S' q           for each v head
 *     stage 3       act_gdn = silu(z) * norm(o)
 *
 * A token's arithmetic is the same whether it comes alone or in a chunk (docs/numerics.md section
 * 14). What goes over the rows one after the other is cut across them: an item of stages 1 and 2 is
 * a head, or some columns of its S, of one sequence for all of its rows. The state of a sequence is
 * never written to; the first row of a run reads it, and all of them write the sequence's next one.
 */
#include "model/model_pass.h"

#include "base/mem.h"

#include <math.h>

enum {
    COLUMNS = 64,   /* of S in an item of stage 2: 32 KiB for 128 keys */
    TURN_ROWS = 64, /* heads x rows that are worth waking a worker for, in stage 1 */
    STEP_ROWS = 4,  /* the same in stage 2, of which an item does 16 times as much */
};

/* ---- the batch ------------------------------------------------------------------------------- */

mx_err mx_gdn_check_batch(const mx_batch *b, mx_errbuf *eb)
{
    /* 0 marks a state that no row has claimed: a run's end is at least 1. */
    for (uint32_t i = 0; i < b->n_rows; i++) {
        if (b->rows[i].seq->next == NULL) {
            return mx_fail(eb, MX_E_INVALID, "row %u: its sequence has no place for a state", i);
        }
        b->rows[i].seq->next->n_tokens = 0;
    }
    for (uint32_t i = 0; i < b->n_rows; i++) {
        const mx_batch_row *r = &b->rows[i];
        const bool is_first = i == 0 || r[-1].seq != r->seq;
        if (is_first && (r->pos != r->seq->n_tokens || r->seq->next->n_tokens != 0)) {
            return mx_fail(eb, MX_E_INVALID, "row %u: position %u does not follow the state at %zu",
                           i, r->pos, r->seq->n_tokens);
        }
        r->seq->next->n_tokens = r->pos + 1;
    }
    for (uint32_t i = 0; i < b->n_rows; i++) {
        b->rows[i].seq->next->n_tokens = 0; /* until it is written */
    }
    return MX_OK;
}

void mx_gdn_begin(mx_state *s)
{
    s->n_runs = 0;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (r > 0 && s->rows[r].seq == s->rows[r - 1].seq) {
            s->runs[s->n_runs - 1].n_rows++;
        } else {
            s->runs[s->n_runs++] = (mx_row_group){.first_row = r, .n_rows = 1};
        }
    }
}

void mx_gdn_end(const mx_batch *b)
{
    for (uint32_t i = 0; i < b->n_rows; i++) {
        b->rows[i].seq->next->n_tokens = b->rows[i].pos + 1;
    }
    for (uint32_t i = 0; i < b->n_rows; i++) {
        if (b->rows[i].is_bad) {
            b->rows[i].seq->next->n_tokens = 0;
        }
    }
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* The layer's part of a state; NULL stays NULL. */
static float *part_of(const mx_pass *p, const mx_kvstate *st)
{
    const mx_blueprint *bp = &p->m->bp;
    return st == NULL ? NULL
                      : (float *)(void *)st->data +
                            mx_layer_in_kind(bp, p->layer) * mx_gdn_state_floats(bp);
}

/* Convolution of one head's channels, for queries and keys also the norm. */
static void convolve_head(mx_pass *p, const mx_row_group *run, uint32_t head)
{
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    const mx_seq *seq = m->s.rows[run->first_row].seq;
    const uint32_t d = bp->gdn.head_dim, n_k = bp->gdn.n_k_heads, n_taps = bp->gdn.n_taps;
    const size_t ld = mx_conv_width(bp), width = mx_qkv_width(bp);
    const float *old = part_of(p, seq->state);
    float *past = part_of(p, seq->next) + head * d;
    float *x = m->s.qkv + run->first_row * width + head * d;
    for (uint32_t t = 0; t + 1 < n_taps; t++) {
        if (old != NULL) {
            memcpy(past + t * ld, old + t * ld + head * d, d * sizeof *past);
        } else {
            memset(past + t * ld, 0, d * sizeof *past);
        }
    }
    m->kern->gdn_conv(x, width, run->n_rows, d, m->w.layers[p->layer].taps + head * d, past, n_taps,
                      ld);
    const float length = head < n_k ? (float)(1.0 / sqrt((double)d)) : 1.0f;
    for (uint32_t r = 0; head < 2 * n_k && r < run->n_rows; r++) {
        m->kern->l2norm(x + r * width, length, d);
    }
}

static void compute_gates(mx_pass *p, const mx_row_group *run)
{
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    const mx_layer *l = &m->w.layers[p->layer];
    const uint32_t n = bp->gdn.n_v_heads;
    for (uint32_t r = run->first_row; r < run->first_row + run->n_rows; r++) {
        float *beta = m->s.qkv + (size_t)r * mx_qkv_width(bp) + mx_conv_width(bp) + mx_v_width(bp);
        m->kern->sigmoid(beta, n);
        m->kern->gdn_decay(beta + n, l->dt, l->a, n);
    }
}

static uint32_t n_heads(const mx_blueprint *bp)
{
    return 2 * bp->gdn.n_k_heads + bp->gdn.n_v_heads;
}

/* Of each run its heads, then its gates. */
static void convolve(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    const uint32_t n_items = n_heads(&p->m->bp) + 1;
    for (size_t i = begin; i < end; i++) {
        const mx_row_group *run = &p->m->s.runs[i / n_items];
        const uint32_t head = (uint32_t)(i % n_items);
        if (head + 1 < n_items) {
            convolve_head(p, run, head);
        } else {
            compute_gates(p, run);
        }
    }
}

/* Some columns of a value head's S. */
static void step_columns(mx_pass *p, const mx_row_group *run, uint32_t head, uint32_t column)
{
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    const mx_gdn_shape *g = &bp->gdn;
    const mx_seq *seq = m->s.rows[run->first_row].seq;
    const uint32_t d = g->head_dim, left = d - column, n_cols = left < COLUMNS ? left : COLUMNS;
    const uint32_t k_head = bp->arch->has_tiled_heads ? head % g->n_k_heads
                                                      : head / (g->n_v_heads / g->n_k_heads);
    const size_t width = mx_qkv_width(bp);
    const size_t at = mx_gdn_past_floats(bp) + ((size_t)head * d + column) * d;
    const float *row = m->s.qkv + run->first_row * width;
    const float *gates = row + mx_conv_width(bp) + mx_v_width(bp);
    float *to = part_of(p, seq->next) + at;
    const float *from = part_of(p, seq->state);
    if (from != NULL) {
        from += at;
    } else {
        memset(to, 0, (size_t)n_cols * d * sizeof *to);
        from = to;
    }
    m->kern->gdn_step(&(mx_gdn_args){
        .d = d,
        .n_cols = n_cols,
        .n_rows = run->n_rows,
        .q = row + k_head * d,
        .k = row + (g->n_k_heads + k_head) * d,
        .v = row + (2 * g->n_k_heads + head) * d + column,
        .ld = width,
        .decay = gates + g->n_v_heads + head,
        .beta = gates + head,
        .ld_gates = width,
        .from = from,
        .to = to,
        .out = m->s.attn + run->first_row * (size_t)mx_v_width(bp) + head * d + column,
        .ldo = mx_v_width(bp),
    });
}

static uint32_t n_column_groups(const mx_blueprint *bp)
{
    return (bp->gdn.head_dim + COLUMNS - 1) / COLUMNS;
}

static void step(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    const mx_blueprint *bp = &p->m->bp;
    const uint32_t n_parts = n_column_groups(bp);
    const uint32_t n_items = bp->gdn.n_v_heads * n_parts;
    for (size_t i = begin; i < end; i++) {
        const uint32_t part = (uint32_t)(i % n_items);
        step_columns(p, &p->m->s.runs[i / n_items], part / n_parts, part % n_parts * COLUMNS);
    }
}

static void gate_output(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    const mx_layer *l = &m->w.layers[p->layer];
    const uint32_t d = bp->gdn.head_dim, n = mx_v_width(bp);
    for (size_t r = begin; r < end; r++) {
        float *o = m->s.attn + r * n;
        for (uint32_t h = 0; h < n; h += d) {
            m->kern->rmsnorm(o + h, o + h, l->gdn_norm, d, bp->rms_eps);
        }
        m->kern->silu_mul(o, m->s.qkv + r * mx_qkv_width(bp) + mx_conv_width(bp), o, n);
        mx_pass_quantize(p, &m->s.act_gdn, o, (uint32_t)r, (uint32_t)r);
    }
}

/* Runs a stage that goes over all rows of a run in each of its n items. Workers are woken when there is
 * a whole turn for a second one, too: not for the last of 65 items. */
static bool run_items(mx_pass *p, size_t n, size_t turn_rows, mx_pass_item *item)
{
    const mx_state *s = &p->m->s;
    const size_t rows_per_run = (s->n_rows + s->n_runs - 1) / s->n_runs;
    const size_t turn = mx_max_size(turn_rows / rows_per_run, 1);
    return mx_pass_stage(p, n, n < 2 * turn ? n : turn, item);
}

/* ---- the layer ------------------------------------------------------------------------------- */

bool mx_gdn_forward(mx_pass *p, const mx_layer *l, bool is_last)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
    const size_t width = mx_qkv_width(bp), conv = mx_conv_width(bp), v_width = mx_v_width(bp);
    float *gates = s->qkv + conv + v_width;
    mx_pass_job(p, &l->qkv[0], &s->act_embd, s->n_rows, s->qkv, width);
    mx_pass_job(p, &l->out_gate, &s->act_embd, s->n_rows, s->qkv + conv, width);
    mx_pass_job(p, &l->beta, &s->act_embd, s->n_rows, gates, width);
    mx_pass_job(p, &l->alpha, &s->act_embd, s->n_rows, gates + bp->gdn.n_v_heads, width);
    if (!mx_pass_matmul(p)) {
        return false;
    }
    const size_t n_runs = s->n_runs;
    if (!run_items(p, n_runs * (n_heads(bp) + 1), TURN_ROWS, convolve) ||
        !run_items(p, n_runs * bp->gdn.n_v_heads * n_column_groups(bp), STEP_ROWS, step))
    {
        return false;
    }
    if (is_last) {
        mx_pass_keep_wanted_rows(p);
        if (s->n_rows == 0) {
            return true;
        }
    }
    if (!mx_pass_rows(p, gate_output)) {
        return false;
    }
    mx_pass_job(p, &l->attn_out, &s->act_gdn, s->n_rows, s->h, bp->n_embd);
    return mx_pass_matmul(p);
}
