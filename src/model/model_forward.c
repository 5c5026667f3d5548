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
 *                  x += Wo attention(q, pages), or what model_gdn.c puts in its place
 *                  x += Wdown (silu(Wgate norm(x)) * Wup norm(x)), or a mixture (model_moe.c)
 *     hidden = norm(x)
 */
#include "base/mem.h"
#include "model/model_pass.h"

#include <assert.h>

/* ---- running a stage ------------------------------------------------------------------------- */

static bool poll_cancel(mx_pass *p)
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
    mx_pass *p = arg;
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

bool mx_pass_stage(mx_pass *p, size_t n, size_t chunk, mx_pass_item *item)
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

bool mx_pass_rows(mx_pass *p, mx_pass_item *item)
{
    return mx_pass_stage(p, p->m->s.n_rows, ROWS_PER_TURN, item);
}

void mx_pass_quantize(mx_pass *p, mx_act *a, float *x, uint32_t act_row, uint32_t row)
{
    const mx_kern *k = p->m->kern;
    if (!k->act_quantize(a, x, a->n_cols, act_row, act_row + 1)) {
        mx_pass_spoil(p, row);
        memset(x, 0, a->n_cols * sizeof *x);
        (void)k->act_quantize(a, x, a->n_cols, act_row, act_row + 1);
    }
}

void mx_pass_spoil(mx_pass *p, uint32_t row)
{
    p->m->s.rows[row].is_bad = true;
    memset(p->m->s.x + (size_t)row * p->m->bp.n_embd, 0, p->m->bp.n_embd * sizeof *p->m->s.x);
}

/* ---- stages ---------------------------------------------------------------------------------- */

static void embed_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    for (size_t r = begin; r < end; r++) {
        uint32_t token = (uint32_t)p->batch->rows[m->s.rows[r].batch_row].token;
        float *x = m->s.x + r * m->bp.n_embd;
        m->kern->wmat_row(&m->w.token_embd, token, x);
        if (m->bp.embd_scale != 1.0f) {
            m->kern->scale(x, m->bp.embd_scale, m->bp.n_embd);
        }
    }
}

/* x += h, or norm(h) where the architecture has it so */
static void add_output(const mx_pass *p, float *x, float *h)
{
    const mx_model *m = p->m;
    if (p->post_norm != NULL) {
        m->kern->rmsnorm(h, h, p->post_norm, m->bp.n_embd, m->bp.rms_eps);
    }
    m->kern->add(x, h, m->bp.n_embd);
}

/* [x += h]; act_embd = norm(x) */
static void norm_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t n = m->bp.n_embd;
    for (size_t r = begin; r < end; r++) {
        float *x = m->s.x + r * n, *h = m->s.h + r * n;
        if (p->adds_h) {
            add_output(p, x, h);
        }
        m->kern->rmsnorm(h, x, p->norm, n, m->bp.rms_eps);
        mx_pass_quantize(p, &m->s.act_embd, h, (uint32_t)r, (uint32_t)r);
    }
}

/* y = W act for all jobs of the stage; an item is a panel of 16 outputs of one of them. */
static void matmul_panels(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    size_t first = 0; /* number of the job's first panel among all */
    for (uint32_t j = 0; j < p->n_jobs && first < end; j++) {
        const mx_matmul_job *job = &p->m->s.jobs[j];
        const size_t n_panels = job->w->n_panels;
        size_t from = mx_max_size(begin, first), to = mx_min_size(end, first + n_panels);
        if (from < to) {
            p->m->kern->matmul(job->w, &job->act, job->n_rows, job->y, job->ldy,
                               (uint32_t)(from - first), (uint32_t)(to - first),
                               p->m->s.workers[worker].matmul);
        }
        first += n_panels;
    }
}

void mx_pass_job(mx_pass *p, const mx_wmat *w, const mx_act *act, uint32_t n_rows, float *y,
                 size_t ldy)
{
    p->m->s.jobs[p->n_jobs++] =
        (mx_matmul_job){.w = w, .act = *act, .n_rows = n_rows, .y = y, .ldy = ldy};
}

/* About 16 turns per worker: a worker that loses its core to another process holds up the stage
 * for a sixteenth of it. */
static bool run_jobs(mx_pass *p, mx_pass_item *item)
{
    size_t n_panels = 0;
    for (uint32_t j = 0; j < p->n_jobs; j++) {
        n_panels += p->m->s.jobs[j].w->n_panels;
    }
    size_t chunk = mx_max_size(n_panels / (16 * (size_t)mx_pool_size(p->m->pool)), 1);
    if (p->m->s.n_rows > ROWS_PER_TURN) { /* few read the weights only, and should end together */
        chunk = mx_round_up(chunk, MX_MATMUL_PANELS);
    }
    bool ok = mx_pass_stage(p, n_panels, chunk, item);
    p->n_jobs = 0;
    return ok;
}

bool mx_pass_matmul(mx_pass *p)
{
    return run_jobs(p, matmul_panels);
}

/* Bias, norms of the heads, rotation, and k and v into the page. */
static void store_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    const mx_kern *kern = m->kern;
    const mx_layer *l = &m->w.layers[p->layer];
    const uint32_t d = bp->head_dim, q_width = mx_q_width(bp), kv_width = mx_kv_width(bp);
    const uint32_t width = mx_qkv_width(bp), kv_layer = mx_layer_in_page(bp, p->layer);
    /* What differs from rope in rope_local is in the table alone. */
    const float *table = mx_layer_is_local(bp, p->layer) ? m->s.rope_local : m->s.rope;
    for (size_t r = begin; r < end; r++) {
        const mx_row *row = &m->s.rows[r];
        float *q = m->s.qkv + r * width, *k = q + q_width;
        if (l->qkv_bias != NULL) {
            kern->add(q, l->qkv_bias, q_width + 2 * kv_width);
        }
        for (uint32_t h = 0; l->q_norm != NULL && h < bp->n_heads; h++) {
            kern->rmsnorm(q + h * d, q + h * d, l->q_norm, d, bp->rms_eps);
        }
        for (uint32_t h = 0; l->k_norm != NULL && h < bp->n_kv_heads; h++) {
            kern->rmsnorm(k + h * d, k + h * d, l->k_norm, d, bp->rms_eps);
        }
        const float *cos_sin = table + (size_t)row->pos * bp->rope.n_rot;
        kern->rope(q, bp->n_heads, d, &bp->rope, cos_sin);
        kern->rope(k, bp->n_kv_heads, d, &bp->rope, cos_sin);
    }
    /* Head by head: a row writes into every line of a K tile, which then are in L1 for the next row. */
    for (uint32_t h = 0; h < bp->n_kv_heads; h++) {
        for (size_t r = begin; r < end; r++) {
            mx_row *row = &m->s.rows[r];
            const float *k = m->s.qkv + r * width + q_width + h * d, *v = k + kv_width;
            uint8_t *k_tile = mx_page_k_of(&m->kv_shape, row->page, kv_layer, h);
            uint8_t *v_tile = mx_page_v_of(&m->kv_shape, row->page, kv_layer, h);
            if (!kern->kv_store(m->kv_shape.type, k_tile, v_tile, d, row->pos % MX_PAGE_TOKENS, k, v)) {
                row->is_bad = true;
            }
        }
    }
}

/* Points ws at one head's tiles of the pages that hold the tokens first..end-1. */
static void find_tiles(const mx_model *m, mx_worker_scratch *ws, const mx_seq *seq,
                       uint32_t kv_layer, uint32_t kv_head, uint32_t first, uint32_t end)
{
    for (uint32_t i = first / MX_PAGE_TOKENS; i * MX_PAGE_TOKENS < end; i++) {
        const mx_page *page = seq->pages[i];
        ws->k_tiles[i] = mx_page_k_of(&m->kv_shape, page, kv_layer, kv_head);
        ws->v_tiles[i] = mx_page_v_of(&m->kv_shape, page, kv_layer, kv_head);
    }
}

/* One key-value head for one group of rows: all query heads that share it, for all rows; in all
 * spans of the sequence or in one. */
static void attend(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    mx_model *m = p->m;
    const mx_blueprint *bp = &m->bp;
    mx_worker_scratch *ws = &m->s.workers[worker];
    const uint32_t d = bp->head_dim, n_shared = bp->n_heads / bp->n_kv_heads;
    const uint32_t width = mx_qkv_width(bp), kv_layer = mx_layer_in_page(bp, p->layer);
    const uint32_t window = mx_layer_window(bp, p->layer);
    const float *q[MX_ATTN_QUERIES];
    float *out[MX_ATTN_QUERIES];
    uint32_t n_valid[MX_ATTN_QUERIES], first_valid[MX_ATTN_QUERIES];
    for (size_t item = begin; item < end; item++) {
        const mx_row_group *g = m->s.groups; /* the last items belong to the first group */
        while (item < g->first_item) {
            g++;
        }
        const size_t of_group = item - g->first_item;
        const uint32_t kv_head = (uint32_t)(of_group % bp->n_kv_heads);
        const uint32_t span = (uint32_t)(of_group / bp->n_kv_heads);
        uint32_t n = 0;
        for (uint32_t i = 0; i < g->n_rows; i++) {
            const size_t r = g->first_row + i;
            const mx_row *row = &m->s.rows[r];
            const uint32_t pos = row->pos;
            for (uint32_t h = kv_head * n_shared; h < (kv_head + 1) * n_shared; h++, n++) {
                q[n] = m->s.qkv + r * width + h * d;
                out[n] = g->n_spans == 0
                             ? m->s.attn + r * mx_q_width(bp) + h * d
                             : row->parts + (h * row->n_parts + span) * mx_attn_part_floats(d);
                n_valid[n] = pos + 1;
                first_valid[n] = window != 0 && pos >= window ? pos + 1 - window : 0;
            }
        }
        /* The first row sees the oldest token of all, the last row the newest. A span looks at its
         * own pages only: all of them for each span would be quadratic in the length. */
        uint32_t first = first_valid[0], stop = n_valid[n - 1];
        if (g->n_spans != 0) {
            const uint32_t at = (g->first_span + span) * MX_ATTN_SPAN, left = stop - at;
            first = first > at ? first : at;
            stop = at + (left < MX_ATTN_SPAN ? left : MX_ATTN_SPAN);
        }
        find_tiles(m, ws, m->s.rows[g->first_row].seq, kv_layer, kv_head, first, stop);
        const mx_attn_args args = {
            .kv_type = m->kv_shape.type,
            .head_dim = d,
            .n_queries = n,
            .q = q,
            .out = out,
            .n_valid = n_valid,
            .first_valid = window != 0 ? first_valid : NULL,
            .k_tiles = ws->k_tiles,
            .v_tiles = ws->v_tiles,
            .scale = bp->attn_scale,
            .scratch = ws->attention,
        };
        if (g->n_spans == 0) {
            m->kern->attention(&args);
        } else {
            m->kern->attention_span(&args, g->first_span + span);
        }
    }
}

/* Puts spans together that were computed one by one. An item is a head of a row that was cut. */
static void join_spans(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t d = m->bp.head_dim;
    const size_t part = mx_attn_part_floats(d);
    for (size_t i = begin; i < end; i++) {
        const size_t r = m->s.cut_rows[i / m->bp.n_heads], h = i % m->bp.n_heads;
        const mx_row *row = &m->s.rows[r];
        m->kern->attention_merge(m->s.attn + r * mx_q_width(&m->bp) + h * d,
                                 row->parts + h * row->n_parts * part, part, row->n_parts, d);
    }
}

/* So many spans of a head are worth waking a worker for: 3 to 8 us, where waking takes up to 4. */
enum { SPANS_PER_TURN = 256 };

static bool join_all_spans(mx_pass *p)
{
    const mx_state *s = &p->m->s;
    const size_t n_heads = p->m->bp.n_heads;
    return s->n_cut_rows == 0 ||
           mx_pass_stage(p, s->n_cut_rows * n_heads,
                         mx_max_size(SPANS_PER_TURN / s->most_parts, 1), join_spans);
}

static void quantize_attn_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t n = mx_q_width(&m->bp);
    const uint32_t gate_at = n + 2 * mx_kv_width(&m->bp);
    for (size_t r = begin; r < end; r++) {
        float *y = m->s.attn + r * n;
        if (m->bp.arch->has_gdn) {
            m->kern->sigmoid_mul(y, m->s.qkv + r * mx_qkv_width(&m->bp) + gate_at, n);
        }
        mx_pass_quantize(p, &m->s.act_attn, y, (uint32_t)r, (uint32_t)r);
    }
}

void mx_pass_gate(mx_pass *p, float *gate_up, uint32_t act_row, uint32_t row)
{
    mx_model *m = p->m;
    const uint32_t n = m->bp.n_ff;
    if (m->bp.arch->has_gelu) {
        m->kern->gelu_mul(gate_up, gate_up, gate_up + n, n);
    } else {
        m->kern->silu_mul(gate_up, gate_up, gate_up + n, n);
    }
    mx_pass_quantize(p, &m->s.act_ff, gate_up, act_row, row);
}

static void gate_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    for (size_t r = begin; r < end; r++) {
        mx_pass_gate(p, p->m->s.gate_up + r * 2 * p->m->bp.n_ff, (uint32_t)r, (uint32_t)r);
    }
}

/* hidden = norm(x + h) */
static void finish_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t n = m->bp.n_embd;
    for (size_t r = begin; r < end; r++) {
        mx_row *row = &m->s.rows[r];
        float *x = m->s.x + r * n, *hidden = p->batch->hidden + (size_t)row->hidden_to * n;
        add_output(p, x, m->s.h + r * n);
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
    return m->kv_shape.state_bytes != 0 ? mx_gdn_check_batch(b, eb) : MX_OK;
}

static void begin_rows(mx_state *s, const mx_blueprint *bp, const mx_batch *b)
{
    s->n_rows = b->n_rows;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        mx_batch_row *r = &b->rows[i];
        r->is_bad = false;
        s->rows[i] = (mx_row){
            .seq = r->seq,
            .page = r->seq->pages[r->pos / MX_PAGE_TOKENS],
            .pos = r->pos,
            .batch_row = i,
            .hidden_to = r->hidden_to,
        };
        mx_state_need_rope(s, bp, r->pos);
    }
}

/* Decides whether the spans of a group become items of their own; *used floats of the parts are
 * taken. */
static void split_group(mx_pass *p, mx_row_group *g, size_t *used)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
    const mx_row *rows = &s->rows[g->first_row];
    const uint32_t window = mx_layer_window(bp, p->layer);
    const uint32_t first = window != 0 && rows[0].pos >= window ? rows[0].pos + 1 - window : 0;
    const uint32_t first_span = first / MX_ATTN_SPAN;
    const uint32_t n = rows[g->n_rows - 1].pos / MX_ATTN_SPAN + 1 - first_span;
    const size_t floats = (size_t)n * bp->n_heads * mx_attn_part_floats(bp->head_dim);
    const bool splits = n > 1 && mx_pool_size(p->m->pool) > 1 &&
                        g->n_rows * (bp->n_heads / bp->n_kv_heads) <= MX_ATTN_SPLIT_QUERIES &&
                        floats * g->n_rows <= s->parts_cap - *used;
    g->first_span = first_span;
    g->n_spans = splits ? n : 0;
    for (uint32_t i = 0; i < g->n_rows; i++) {
        mx_row *row = &s->rows[g->first_row + i];
        row->n_parts = g->n_spans;
        row->parts = splits ? s->parts + *used : NULL;
        if (splits) {
            *used += floats;
            s->cut_rows[s->n_cut_rows++] = g->first_row + i;
        }
    }
    s->most_parts = g->n_spans > s->most_parts ? g->n_spans : s->most_parts;
}

/* Groups the rows for the attention stage. Last group first: in a prompt it sees the most tokens;
 * the last turn should be short. */
static void group_rows(mx_pass *p)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
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
    size_t used = 0;
    s->n_attn_items = 0;
    s->n_cut_rows = s->most_parts = 0;
    for (uint32_t i = s->n_groups; i-- > 0;) {
        mx_row_group *g = &s->groups[i];
        split_group(p, g, &used);
        g->first_item = s->n_attn_items;
        s->n_attn_items += (size_t)bp->n_kv_heads * (g->n_spans != 0 ? g->n_spans : 1);
    }
}

/* Tells the batch which of the state's rows went wrong so far. */
static void report_bad_rows(const mx_state *s, const mx_batch *b)
{
    for (uint32_t r = 0; r < s->n_rows; r++) {
        b->rows[s->rows[r].batch_row].is_bad |= s->rows[r].is_bad;
    }
}

void mx_pass_keep_wanted_rows(mx_pass *p)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
    const size_t width = mx_qkv_width(bp);
    /* A recurrence has given its output by now, attention comes only after this. */
    const size_t v_width = mx_layer_is_gdn(bp, p->layer) ? mx_v_width(bp) : 0;
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
            memcpy(s->qkv + n * width, s->qkv + r * width, width * sizeof *s->qkv);
            memcpy(s->attn + n * v_width, s->attn + r * v_width, v_width * sizeof *s->attn);
        }
        n++;
    }
    s->n_rows = n;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* h = Wdown (gate * up). False when cancelled. */
static bool forward_ffn(mx_pass *p, const mx_layer *l)
{
    mx_state *s = &p->m->s;
    const size_t n_ff = p->m->bp.n_ff;
    mx_pass_job(p, &l->gate, &s->act_embd, s->n_rows, s->gate_up, 2 * n_ff);
    mx_pass_job(p, &l->up, &s->act_embd, s->n_rows, s->gate_up + n_ff, 2 * n_ff);
    if (!mx_pass_matmul(p) || !mx_pass_rows(p, gate_rows)) {
        return false;
    }
    mx_pass_job(p, &l->down, &s->act_ff, s->n_rows, s->h, p->m->bp.n_embd);
    return mx_pass_matmul(p);
}

/* h = Wo attention. False when cancelled. */
static bool forward_attention(mx_pass *p, const mx_layer *l, bool is_last)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
    const size_t q_width = mx_q_width(bp), kv_width = mx_kv_width(bp);
    const size_t width = mx_qkv_width(bp);

    mx_pass_job(p, &l->qkv[0], &s->act_embd, s->n_rows, s->qkv, width);
    if (l->n_qkv == 3) {
        mx_pass_job(p, &l->qkv[1], &s->act_embd, s->n_rows, s->qkv + q_width, width);
        mx_pass_job(p, &l->qkv[2], &s->act_embd, s->n_rows, s->qkv + q_width + kv_width, width);
    }
    if (bp->arch->has_gdn) {
        mx_pass_job(p, &l->out_gate, &s->act_embd, s->n_rows, s->qkv + q_width + 2 * kv_width,
                    width);
    }
    if (!mx_pass_matmul(p) || !mx_pass_rows(p, store_rows)) {
        return false;
    }
    if (is_last) {
        mx_pass_keep_wanted_rows(p);
        if (s->n_rows == 0) {
            return true;
        }
    }
    group_rows(p);
    if (!mx_pass_stage(p, s->n_attn_items, 1, attend) || !join_all_spans(p) ||
        !mx_pass_rows(p, quantize_attn_rows))
    {
        return false;
    }
    mx_pass_job(p, &l->attn_out, &s->act_attn, s->n_rows, s->h, bp->n_embd);
    return mx_pass_matmul(p);
}

/* False when cancelled. */
static bool forward_layer(mx_pass *p, const mx_layer *l, bool is_last)
{
    const mx_blueprint *bp = &p->m->bp;
    p->norm = l->attn_norm;
    if (!mx_pass_rows(p, norm_rows)) {
        return false;
    }
    p->adds_h = true;
    if (!(mx_layer_is_gdn(bp, p->layer) ? mx_gdn_forward(p, l, is_last)
                                        : forward_attention(p, l, is_last)))
    {
        return false;
    }
    if (p->m->s.n_rows == 0) {
        return true;
    }
    p->norm = l->ffn_norm;
    p->post_norm = l->attn_post_norm;
    if (!mx_pass_rows(p, norm_rows)) {
        return false;
    }
    p->post_norm = l->ffn_post_norm; /* for whoever adds h next */
    return bp->n_experts != 0 ? mx_moe_forward(p, l) : forward_ffn(p, l);
}

/* False when cancelled. */
static bool forward_rows(mx_pass *p)
{
    mx_model *m = p->m;
    begin_rows(&m->s, &m->bp, p->batch);
    if (m->s.runs != NULL) {
        mx_gdn_begin(&m->s);
    }
    if (!mx_pass_rows(p, embed_rows)) {
        return false;
    }
    for (p->layer = 0; p->layer < m->bp.n_layers; p->layer++) {
        if (!forward_layer(p, &m->w.layers[p->layer], p->layer + 1 == m->bp.n_layers)) {
            return false;
        }
    }
    if (m->s.n_rows > 0 && !mx_pass_rows(p, finish_rows)) {
        return false;
    }
    report_bad_rows(&m->s, p->batch);
    return true;
}

mx_err mx_model_forward(mx_model *m, const mx_batch *b, uint32_t *bad_row, mx_errbuf *eb)
{
    MX_TRY(check_batch(m, b, eb));
    mx_pass p = {.m = m, .batch = b};
    mx_kern_thread_init(); /* whatever this thread did before */
    mx_mem_forbid(true);
    const bool is_done = forward_rows(&p);
    mx_mem_forbid(false);
    if (!is_done) {
        return mx_fail(eb, MX_E_CANCELLED, "the forward pass was cancelled");
    }
    if (m->kv_shape.state_bytes != 0) {
        mx_gdn_end(b);
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

static void logits_panels(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    const mx_matmul_job *job = &p->m->s.jobs[0];
    matmul_panels(p, worker, begin, end);
    size_t from = begin * MX_PANEL_ROWS, to = mx_min_size(end * MX_PANEL_ROWS, job->w->n_rows);
    for (uint32_t r = 0; r < job->n_rows; r++) {
        if (!p->m->kern->all_finite(job->y + r * job->ldy + from, to - from)) {
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
    mx_pass p = {.m = m};
    mx_kern_thread_init();
    if (!m->kern->act_quantize(&m->s.act_embd, hidden, m->bp.n_embd, 0, n)) {
        return false;
    }
    mx_pass_job(&p, &m->w.output, &m->s.act_embd, n, logits, m->bp.n_vocab);
    mx_mem_forbid(true);
    (void)run_jobs(&p, logits_panels);
    mx_mem_forbid(false);
    return !p.is_not_finite;
}
