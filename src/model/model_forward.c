/* SPDX-License-Identifier: MIT
 *
 * The forward pass, top to bottom: mx_model_forward at the end of the file, its stages above it in
 * the order in which they run.
 *
 * A stage is a loop over independent items (rows, panels of weights, heads x groups of rows) that
 * the workers of the pool share by taking a few at a time; a stage ends when all items are done.
 * Each output element is computed by one kernel call whose arithmetic depends on that element alone
 * (docs/numerics.md), so neither the sharing nor the batch can change a bit. Stages with little to
 * do run on the calling thread: for a single row they are most of the stages, and waking a worker
 * costs more than they do.
 *
 *     x = token_embd[token]                                        [rows][n_embd]
 *     each layer:  qkv = Wqkv norm(x);  rotate q, k;  store k, v into the pages
 *                  x += Wo attention(q, pages)
 *                  x += Wdown (silu(Wgate norm(x)) * Wup norm(x))
 *     hidden = norm(x)
 */
#include "base/mem.h"
#include "model/model_internal.h"

#include <assert.h>

/* ---- running a stage ------------------------------------------------------------------------- */

typedef struct pass {
    mx_model *m;
    const mx_batch *batch;
    bool is_cancelled; /* atomic access */

    /* The stage that runs now. */
    void (*item)(struct pass *p, unsigned worker, size_t begin, size_t end);
    mx_pool_cursor cursor;
    size_t n_items, chunk;

    /* What the stages are told. */
    uint32_t layer;
    const float *norm;                 /* weights of the norm stage */
    bool adds_h;                       /* the norm stage adds h to x first */
    const mx_act *act;                 /* matmul stage: input */
    struct {
        const mx_wmat *w;
        float *y;
        size_t ldy;
    } jobs[3];
    uint32_t n_jobs, n_act_rows;
    bool is_not_finite;                /* logits stage: found something; atomic access */
} pass;

static bool poll_cancel(pass *p)
{
    if (p->batch != NULL && p->batch->is_cancelled != NULL && !p->is_cancelled &&
        p->batch->is_cancelled(p->batch->cancel_arg))
    {
        __atomic_store_n(&p->is_cancelled, true, __ATOMIC_RELAXED);
    }
    return p->is_cancelled;
}

static void stage_worker(void *arg, unsigned worker)
{
    pass *p = arg;
    size_t begin, end;
    mx_mem_forbid(true);
    while (!__atomic_load_n(&p->is_cancelled, __ATOMIC_RELAXED) &&
           mx_pool_take(&p->cursor, p->n_items, p->chunk, &begin, &end))
    {
        p->item(p, worker, begin, end);
        if (worker == 0) {
            (void)poll_cancel(p);
        }
    }
    mx_mem_forbid(false);
}

/* Runs item over [0, n) in runs of `chunk`. False when the pass was cancelled. */
static bool run_stage(pass *p, size_t n, size_t chunk,
                      void (*item)(pass *p, unsigned worker, size_t begin, size_t end))
{
    if (poll_cancel(p)) {
        return false;
    }
    p->item = item;
    p->n_items = n;
    p->chunk = chunk;
    p->cursor = (mx_pool_cursor){0};
    if (n <= chunk) {
        stage_worker(p, 0);
    } else {
        mx_pool_run(p->m->pool, stage_worker, p);
    }
    return !p->is_cancelled;
}

/* Rows are cheap items: four at a time, so that a few rows do not wake the pool. */
enum { ROWS_PER_TURN = 4 };

static bool run_rows(pass *p, void (*item)(pass *p, unsigned worker, size_t begin, size_t end))
{
    return run_stage(p, p->m->s.n_rows, ROWS_PER_TURN, item);
}

/* Quantises row r of `a` from x. A row that is not finite is marked and goes on as zeros: it must
 * not disturb the rows beside it, and zeros stay finite to the end. */
static void quantize_row(pass *p, mx_act *a, float *x, uint32_t r)
{
    const mx_kern *k = p->m->kern;
    if (!k->act_quantize(a, x, a->n_cols, r, r + 1)) {
        p->m->s.rows[r].is_bad = true;
        memset(x, 0, a->n_cols * sizeof *x);
        memset(p->m->s.x + (size_t)r * p->m->bp.n_embd, 0, p->m->bp.n_embd * sizeof *x);
        (void)k->act_quantize(a, x, a->n_cols, r, r + 1);
    }
}

/* ---- stages ---------------------------------------------------------------------------------- */

static void embed_rows(pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    for (size_t r = begin; r < end; r++) {
        uint32_t token = (uint32_t)p->batch->rows[m->s.rows[r].batch_row].token;
        m->kern->wmat_row(&m->w.token_embd, token, m->s.x + r * m->bp.n_embd);
    }
}

/* [x += h]; act_embd = norm(x) */
static void norm_rows(pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t n = m->bp.n_embd;
    for (size_t r = begin; r < end; r++) {
        float *x = m->s.x + r * n, *h = m->s.h + r * n;
        if (p->adds_h) {
            m->kern->add(x, h, n);
        }
        m->kern->rmsnorm(h, x, p->norm, n, m->bp.rms_eps);
        quantize_row(p, &m->s.act_embd, h, (uint32_t)r);
    }
}

/* y = W act for all matrices of the stage; an item is a panel of 16 outputs of one of them. */
static void matmul_panels(pass *p, unsigned worker, size_t begin, size_t end)
{
    size_t first = 0; /* number of the job's first panel among all */
    for (uint32_t j = 0; j < p->n_jobs && first < end; j++) {
        const mx_wmat *w = p->jobs[j].w;
        size_t from = mx_max_size(begin, first), to = mx_min_size(end, first + w->n_panels);
        if (from < to) {
            p->m->kern->matmul(w, p->act, p->n_act_rows, p->jobs[j].y, p->jobs[j].ldy,
                               (uint32_t)(from - first), (uint32_t)(to - first),
                               p->m->s.workers[worker].matmul);
        }
        first += w->n_panels;
    }
}

static void add_job(pass *p, const mx_wmat *w, float *y, size_t ldy)
{
    p->jobs[p->n_jobs].w = w;
    p->jobs[p->n_jobs].y = y;
    p->jobs[p->n_jobs++].ldy = ldy;
}

/* Runs the jobs that were added. About 16 turns per worker: a worker that loses its core to another
 * process holds up the stage for a sixteenth of it. */
static bool run_matmul(pass *p, const mx_act *act, uint32_t n_rows)
{
    size_t n_panels = 0;
    for (uint32_t j = 0; j < p->n_jobs; j++) {
        n_panels += p->jobs[j].w->n_panels;
    }
    size_t chunk = n_panels / (16 * (size_t)mx_pool_size(p->m->pool));
    p->act = act;
    p->n_act_rows = n_rows;
    bool ok = run_stage(p, n_panels, mx_max_size(chunk, 1), matmul_panels);
    p->n_jobs = 0;
    return ok;
}

/* Bias, norms of the heads, rotation, and k and v into the page. */
static void store_rows(pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    const mx_kern *kern = m->kern;
    const mx_layer *l = &m->w.layers[p->layer];
    const uint32_t d = bp->head_dim, q_width = mx_q_width(bp), kv_width = mx_kv_width(bp);
    const uint32_t width = q_width + 2 * kv_width;
    for (size_t r = begin; r < end; r++) {
        mx_row *row = &m->s.rows[r];
        float *q = m->s.qkv + r * width, *k = q + q_width, *v = k + kv_width;
        if (l->qkv_bias != NULL) {
            kern->add(q, l->qkv_bias, width);
        }
        for (uint32_t h = 0; l->q_norm != NULL && h < bp->n_heads; h++) {
            kern->rmsnorm(q + h * d, q + h * d, l->q_norm, d, bp->rms_eps);
        }
        for (uint32_t h = 0; l->k_norm != NULL && h < bp->n_kv_heads; h++) {
            kern->rmsnorm(k + h * d, k + h * d, l->k_norm, d, bp->rms_eps);
        }
        const float *cos_sin = m->s.rope + (size_t)row->pos * bp->rope.n_rot;
        kern->rope(q, bp->n_heads, d, &bp->rope, cos_sin);
        kern->rope(k, bp->n_kv_heads, d, &bp->rope, cos_sin);
        for (uint32_t h = 0; h < bp->n_kv_heads; h++) {
            uint8_t *k_tile = mx_page_k_tile(&m->kv_shape, row->payload, p->layer, h);
            uint8_t *v_tile = mx_page_v_tile(&m->kv_shape, row->payload, p->layer, h);
            if (!kern->kv_store(m->kv_shape.type, k_tile, v_tile, d, row->pos % MX_PAGE_TOKENS,
                                k + h * d, v + h * d))
            {
                row->is_bad = true;
            }
        }
    }
}

/* One key-value head for one group of rows: all query heads that share it, for all rows. */
static void attend(pass *p, unsigned worker, size_t begin, size_t end)
{
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    mx_worker_scratch *ws = &m->s.workers[worker];
    const uint32_t d = bp->head_dim, n_shared = bp->n_heads / bp->n_kv_heads;
    const uint32_t width = mx_q_width(bp) + 2 * mx_kv_width(bp);
    const float *q[MX_ATTN_QUERIES];
    float *out[MX_ATTN_QUERIES];
    uint32_t n_valid[MX_ATTN_QUERIES], first_valid[MX_ATTN_QUERIES];
    for (size_t item = begin; item < end; item++) {
        /* Last group first: in a prompt it sees the most tokens; the last turn should be short. */
        const mx_row_group *g = &m->s.groups[m->s.n_groups - 1 - item / bp->n_kv_heads];
        const uint32_t kv_head = (uint32_t)(item % bp->n_kv_heads);
        uint32_t n = 0;
        for (uint32_t i = 0; i < g->n_rows; i++) {
            const size_t r = g->first_row + i;
            const uint32_t pos = m->s.rows[r].pos;
            for (uint32_t h = kv_head * n_shared; h < (kv_head + 1) * n_shared; h++, n++) {
                q[n] = m->s.qkv + r * width + h * d;
                out[n] = m->s.attn + r * mx_q_width(bp) + h * d;
                n_valid[n] = pos + 1;
                first_valid[n] = bp->window != 0 && pos >= bp->window ? pos + 1 - bp->window : 0;
            }
        }
        const mx_seq *seq = m->s.rows[g->first_row].seq;
        const uint32_t n_pages = (n_valid[n - 1] - 1) / MX_PAGE_TOKENS + 1;
        for (uint32_t i = 0; i < n_pages; i++) {
            uint8_t *payload = seq->pages[i]->payload;
            ws->k_tiles[i] = mx_page_k_tile(&m->kv_shape, payload, p->layer, kv_head);
            ws->v_tiles[i] = mx_page_v_tile(&m->kv_shape, payload, p->layer, kv_head);
        }
        m->kern->attention(&(mx_attn_args){
            .kv_type = m->kv_shape.type,
            .head_dim = d,
            .n_queries = n,
            .q = q,
            .out = out,
            .n_valid = n_valid,
            .first_valid = bp->window != 0 ? first_valid : NULL,
            .k_tiles = ws->k_tiles,
            .v_tiles = ws->v_tiles,
            .scale = bp->attn_scale,
            .scratch = ws->attention,
        });
    }
}

static void quantize_attn_rows(pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    for (size_t r = begin; r < end; r++) {
        quantize_row(p, &m->s.act_attn, m->s.attn + r * mx_q_width(&m->bp), (uint32_t)r);
    }
}

/* act_ff = silu(gate) * up */
static void gate_rows(pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t n = m->bp.n_ff;
    for (size_t r = begin; r < end; r++) {
        float *gate = m->s.gate_up + r * 2 * n, *up = gate + n;
        m->kern->silu_mul(gate, gate, up, n);
        quantize_row(p, &m->s.act_ff, gate, (uint32_t)r);
    }
}

/* hidden = norm(x + h) */
static void finish_rows(pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t n = m->bp.n_embd;
    for (size_t r = begin; r < end; r++) {
        mx_row *row = &m->s.rows[r];
        float *x = m->s.x + r * n, *hidden = p->batch->hidden + (size_t)row->hidden_to * n;
        m->kern->add(x, m->s.h + r * n, n);
        m->kern->rmsnorm(hidden, x, m->w.output_norm, n, m->bp.rms_eps);
        if (!m->kern->all_finite(hidden, n)) {
            row->is_bad = true;
        }
    }
}

/* ---- the batch ------------------------------------------------------------------------------- */

static mx_err check_batch(const mx_model *m, const mx_batch *b, mx_errbuf *eb)
{
    if (b->n_rows == 0 || b->n_rows > m->max_batch_rows || b->n_hidden_rows > m->max_logit_rows) {
        return mx_fail(eb, MX_E_INVALID, "a batch of %u rows with %u results (limits %u and %u)",
                       b->n_rows, b->n_hidden_rows, m->max_batch_rows, m->max_logit_rows);
    }
    for (uint32_t i = 0; i < b->n_rows; i++) {
        const mx_batch_row *r = &b->rows[i];
        if (r->token < 0 || (uint32_t)r->token >= m->bp.n_vocab) {
            return mx_fail(eb, MX_E_INVALID, "row %u: there is no token %d", i, r->token);
        }
        if (r->pos >= m->bp.n_ctx) {
            return mx_fail(eb, MX_E_INVALID, "row %u: position %u is beyond the context of %u", i,
                           r->pos, m->bp.n_ctx);
        }
        if (r->pos < r->seq->n_tokens || r->pos >= r->seq->n_tokens + r->seq->n_reserved) {
            return mx_fail(eb, MX_E_INVALID, "row %u: position %u is not reserved (%zu + %zu)", i,
                           r->pos, r->seq->n_tokens, r->seq->n_reserved);
        }
        if (i > 0 && r[-1].seq == r->seq && r->pos != r[-1].pos + 1) {
            return mx_fail(eb, MX_E_INVALID, "row %u: position %u does not follow %u", i, r->pos,
                           r[-1].pos);
        }
        if (r->hidden_to < -1 || r->hidden_to >= (int64_t)b->n_hidden_rows) {
            return mx_fail(eb, MX_E_INVALID, "row %u: there is no result row %d", i, r->hidden_to);
        }
    }
    return MX_OK;
}

static void begin_rows(mx_state *s, const mx_batch *b)
{
    s->n_rows = b->n_rows;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        mx_batch_row *r = &b->rows[i];
        r->is_bad = false;
        s->rows[i] = (mx_row){
            .seq = r->seq,
            .payload = r->seq->pages[r->pos / MX_PAGE_TOKENS]->payload,
            .pos = r->pos,
            .batch_row = i,
            .hidden_to = r->hidden_to,
        };
    }
}

static void group_rows(mx_state *s, const mx_blueprint *bp)
{
    const uint32_t most = MX_ATTN_QUERIES / (bp->n_heads / bp->n_kv_heads);
    s->n_groups = 0;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        mx_row_group *g = s->n_groups > 0 ? &s->groups[s->n_groups - 1] : NULL;
        if (g != NULL && g->n_rows < most && s->rows[r].seq == s->rows[g->first_row].seq) {
            g->n_rows++;
        } else {
            s->groups[s->n_groups++] = (mx_row_group){.first_row = r, .n_rows = 1};
        }
    }
}

/* Tells the batch which of the state's rows went wrong so far. */
static void report_bad_rows(const mx_state *s, const mx_batch *b)
{
    for (uint32_t r = 0; r < s->n_rows; r++) {
        b->rows[s->rows[r].batch_row].is_bad |= s->rows[r].is_bad;
    }
}

/* The last layer's keys and values are stored: from here on only rows whose result somebody wants
 * are worth computing. */
static void keep_wanted_rows(pass *p)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
    const size_t width = mx_q_width(bp) + 2 * mx_kv_width(bp);
    uint32_t n = 0;
    report_bad_rows(s, p->batch);
    for (uint32_t r = 0; r < s->n_rows; r++) {
        if (s->rows[r].hidden_to < 0) {
            continue;
        }
        if (n != r) {
            s->rows[n] = s->rows[r];
            memcpy(s->x + (size_t)n * bp->n_embd, s->x + (size_t)r * bp->n_embd,
                   bp->n_embd * sizeof *s->x);
            memcpy(s->qkv + n * width, s->qkv + r * width, mx_q_width(bp) * sizeof *s->qkv);
        }
        n++;
    }
    s->n_rows = n;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* False when cancelled. */
static bool forward_layer(pass *p, const mx_layer *l, bool is_last)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
    const size_t q_width = mx_q_width(bp), kv_width = mx_kv_width(bp);
    const size_t width = q_width + 2 * kv_width, n_ff = bp->n_ff;

    p->norm = l->attn_norm;
    if (!run_rows(p, norm_rows)) {
        return false;
    }
    add_job(p, &l->qkv[0], s->qkv, width);
    if (l->n_qkv == 3) {
        add_job(p, &l->qkv[1], s->qkv + q_width, width);
        add_job(p, &l->qkv[2], s->qkv + q_width + kv_width, width);
    }
    if (!run_matmul(p, &s->act_embd, s->n_rows) || !run_rows(p, store_rows)) {
        return false;
    }
    if (is_last) {
        keep_wanted_rows(p);
        if (s->n_rows == 0) {
            return true;
        }
    }
    group_rows(s, bp);
    if (!run_stage(p, (size_t)s->n_groups * bp->n_kv_heads, 1, attend) ||
        !run_rows(p, quantize_attn_rows))
    {
        return false;
    }
    add_job(p, &l->attn_out, s->h, bp->n_embd);
    if (!run_matmul(p, &s->act_attn, s->n_rows)) {
        return false;
    }
    p->norm = l->ffn_norm;
    p->adds_h = true;
    if (!run_rows(p, norm_rows)) {
        return false;
    }
    add_job(p, &l->gate, s->gate_up, 2 * n_ff);
    add_job(p, &l->up, s->gate_up + n_ff, 2 * n_ff);
    if (!run_matmul(p, &s->act_embd, s->n_rows) || !run_rows(p, gate_rows)) {
        return false;
    }
    add_job(p, &l->down, s->h, bp->n_embd);
    return run_matmul(p, &s->act_ff, s->n_rows);
}

/* False when cancelled. */
static bool forward_rows(pass *p)
{
    mx_model *m = p->m;
    begin_rows(&m->s, p->batch);
    if (!run_rows(p, embed_rows)) {
        return false;
    }
    for (p->layer = 0; p->layer < m->bp.n_layers; p->layer++) {
        if (!forward_layer(p, &m->w.layers[p->layer], p->layer + 1 == m->bp.n_layers)) {
            return false;
        }
    }
    if (m->s.n_rows > 0 && !run_rows(p, finish_rows)) {
        return false;
    }
    report_bad_rows(&m->s, p->batch);
    return true;
}

mx_err mx_model_forward(mx_model *m, const mx_batch *b, uint32_t *bad_row, mx_errbuf *eb)
{
    MX_TRY(check_batch(m, b, eb));
    pass p = {.m = m, .batch = b};
    mx_kern_thread_init(); /* whatever this thread did before */
    if (!forward_rows(&p)) {
        return mx_fail(eb, MX_E_CANCELLED, "the forward pass was cancelled");
    }
    uint32_t first_bad = b->n_rows;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        mx_batch_row *r = &b->rows[i];
        /* A row that follows a bad one has seen its keys and values. */
        r->is_bad = r->is_bad || (i > 0 && r[-1].seq == r->seq && r[-1].is_bad);
        if (r->is_bad && first_bad == b->n_rows) {
            first_bad = i;
        }
    }
    if (first_bad < b->n_rows) {
        *bad_row = first_bad;
        return mx_fail(eb, MX_E_NONFINITE,
                       "the model gave a value that is not finite at position %u",
                       b->rows[first_bad].pos);
    }
    return MX_OK;
}

/* ---- LM head --------------------------------------------------------------------------------- */

static void logits_panels(pass *p, unsigned worker, size_t begin, size_t end)
{
    const uint32_t n_vocab = p->jobs[0].w->n_rows;
    matmul_panels(p, worker, begin, end);
    size_t from = begin * MX_PANEL_ROWS, to = mx_min_size(end * MX_PANEL_ROWS, n_vocab);
    for (uint32_t r = 0; r < p->n_act_rows; r++) {
        if (!p->m->kern->all_finite(p->jobs[0].y + r * p->jobs[0].ldy + from, to - from)) {
            __atomic_store_n(&p->is_not_finite, true, __ATOMIC_RELAXED);
        }
    }
}

bool mx_model_logits(mx_model *m, const float *hidden, uint32_t n, float *logits)
{
    assert(n <= m->max_logit_rows);
    if (n == 0) {
        return true;
    }
    pass p = {.m = m};
    mx_kern_thread_init();
    if (!m->kern->act_quantize(&m->s.act_embd, hidden, m->bp.n_embd, 0, n)) {
        return false;
    }
    add_job(&p, &m->w.output, logits, m->bp.n_vocab);
    p.act = &m->s.act_embd;
    p.n_act_rows = n;
    size_t n_panels = m->w.output.n_panels;
    size_t chunk = n_panels / (16 * (size_t)mx_pool_size(m->pool));
    (void)run_stage(&p, n_panels, mx_max_size(chunk, 1), logits_panels);
    return !p.is_not_finite;
}
