/* SPDX-License-Identifier: MIT
 *
 * Everything that a forward pass writes to, allocated once: the token loop never asks the heap.
 *
 * Pages that nobody has written to take no memory, and most are never written to: the work space is
 * for the largest batch, the RoPE tables for the longest context (134 MB for 128K tokens of 256
 * rotated dimensions). So the tables are filled as positions come up, which costs a microsecond per
 * position, once.
 */
#include "base/mem.h"
#include "model/model_internal.h"

enum { ALIGN = 64 };

/* Lays out parts one behind the other; run once to measure and once to place. */
typedef struct layout {
    uint8_t *base; /* NULL while measuring */
    size_t at;
    bool is_too_big;
} layout;

static void *part(layout *l, size_t count, size_t elem_bytes)
{
    size_t bytes;
    size_t begin = l->at;
    if (!mx_mul_ok(count, elem_bytes, &bytes) || bytes > SIZE_MAX / 4 - begin) {
        l->is_too_big = true;
        return NULL;
    }
    l->at = begin + mx_round_up(bytes, ALIGN);
    return l->base != NULL ? l->base + begin : NULL;
}

static void act_part(layout *l, mx_act_type type, mx_act *a, uint32_t max_rows, uint32_t n_cols,
                     bool keeps_x)
{
    size_t bytes = mx_act_bytes(type, max_rows, n_cols, keeps_x);
    l->is_too_big |= bytes == 0;
    void *memory = part(l, 1, bytes);
    if (memory != NULL) {
        mx_act_bind(a, type, max_rows, n_cols, keeps_x, memory);
    }
}

/* Which activations meet float matrices: most files have none but the router of a mixture. */
typedef struct float_uses {
    bool embd;  /* the residual stream, normalised */
    bool mixed; /* what attention or GDN gives */
    bool moe;   /* the rows of experts, */
    bool ff;    /* and what goes into their second matrix, or into the only one */
    bool shared; /* likewise in the shared expert */
} float_uses;

/* One that the layer does not have takes nothing. */
static bool takes_floats(const mx_wmat *w)
{
    return w->n_panels != 0 && mx_wmat_takes_floats(w);
}

static float_uses find_float_uses(const mx_weights *w, const mx_blueprint *bp)
{
    /* The embedding multiplies where there is no other output matrix. */
    float_uses u = {.embd = takes_floats(&w->output) || takes_floats(&w->token_embd)};
    for (uint32_t i = 0; i < bp->n_layers; i++) {
        const mx_layer *l = &w->layers[i];
        const mx_wmat *of_embd[] = {&l->qkv[0], &l->qkv[1], &l->qkv[2], &l->out_gate, &l->alpha,
                                    &l->beta, &l->gate, &l->up, &l->router, &l->shared_router,
                                    &l->shared_gate, &l->shared_up};
        for (size_t k = 0; k < MX_COUNT(of_embd); k++) {
            u.embd |= takes_floats(of_embd[k]);
        }
        u.mixed |= takes_floats(&l->attn_out);
        u.ff |= takes_floats(&l->down);
        u.shared |= takes_floats(&l->shared_down);
        if (bp->n_experts != 0) { /* all have one type, they come from one tensor */
            u.moe |= takes_floats(l->gates) || (l->ups != NULL && takes_floats(l->ups));
            u.ff |= takes_floats(l->downs);
        }
    }
    return u;
}

static size_t largest_matmul_scratch(const mx_weights *w, const mx_blueprint *bp)
{
    size_t most = mx_kern_matmul_scratch(&w->output);
    for (uint32_t i = 0; i < bp->n_layers; i++) {
        const mx_layer *l = &w->layers[i];
        /* Of experts the first: all have one shape. */
        const mx_wmat *all[] = {&l->qkv[0], &l->qkv[1], &l->qkv[2], &l->attn_out, &l->gate, &l->up,
                                &l->down,   &l->router, l->gates,   l->ups,       l->downs,
                                &l->out_gate, &l->alpha, &l->beta, &l->shared_router,
                                &l->shared_gate, &l->shared_up, &l->shared_down};
        for (size_t k = 0; k < MX_COUNT(all); k++) {
            if (all[k] != NULL && all[k]->panels != NULL) {
                most = mx_max_size(most, mx_kern_matmul_scratch(all[k]));
            }
        }
    }
    return most;
}

static void lay_out_moe(mx_model *m, layout *l, uint32_t n_places, const float_uses *u)
{
    mx_moe *moe = &m->s.moe;
    const mx_blueprint *bp = &m->bp;
    const size_t rows = m->max_batch_rows;
    moe->p = part(l, rows, bp->n_experts * sizeof *moe->p);
    moe->chosen = part(l, n_places, sizeof *moe->chosen);
    moe->weight = part(l, n_places, sizeof *moe->weight);
    moe->place = part(l, n_places, sizeof *moe->place);
    moe->begin = part(l, (size_t)bp->n_experts + 1, sizeof *moe->begin);
    act_part(l, m->act_type, &moe->act, n_places, bp->n_embd, u->moe);
    moe->down = part(l, n_places, bp->n_embd * sizeof *moe->down);
    if (bp->n_ff_shared != 0) {
        moe->shared_weight = part(l, rows, sizeof *moe->shared_weight);
        moe->shared_gate_up = part(l, rows, 2 * (size_t)bp->n_ff_shared * sizeof(float));
        moe->shared_down = part(l, rows, bp->n_embd * sizeof *moe->shared_down);
        act_part(l, m->act_type, &moe->shared_act, m->max_batch_rows, bp->n_ff_shared, u->shared);
    }
}

/* What the first half of a layer writes. The mixer's output as activations is that of attention or of
 * GDN, never of both at once. It has 16 bits in any case (docs/numerics.md section 3). */
static void lay_out_mixer(mx_model *m, layout *l, bool keeps_x)
{
    mx_state *s = &m->s;
    const mx_blueprint *bp = &m->bp;
    const uint32_t rows = m->max_batch_rows, q_width = mx_q_width(bp), v_width = mx_v_width(bp);
    const size_t n_spans = mx_max_size(bp->n_ctx / MX_ATTN_SPAN + 1, MX_ATTN_MIN_PARTS);
    s->qkv = part(l, rows, mx_qkv_width(bp) * sizeof(float));
    s->attn = part(l, rows, mx_max_size(q_width, v_width) * sizeof(float));
    const size_t begin = l->at;
    act_part(l, MX_ACT_16, &s->act_attn, rows, q_width, keeps_x);
    if (v_width > 0) {
        const size_t end = l->at;
        l->at = begin; /* the same memory */
        act_part(l, MX_ACT_16, &s->act_gdn, rows, v_width, keeps_x);
        l->at = mx_max_size(l->at, end);
    }
    s->parts_cap = n_spans * bp->n_heads * mx_attn_part_floats(bp->head_dim);
    s->parts = part(l, s->parts_cap, sizeof(float));
}

/* What the second half of a layer writes. */
static void lay_out_ffn(mx_model *m, layout *l, const float_uses *u)
{
    mx_state *s = &m->s;
    const mx_blueprint *bp = &m->bp;
    const uint64_t n_places = (uint64_t)m->max_batch_rows * mx_n_visits(bp);
    if (n_places > UINT32_MAX) {
        l->is_too_big = true;
        return;
    }
    s->gate_up = part(l, n_places, 2 * (size_t)bp->n_ff * sizeof(float));
    if (bp->n_experts != 0) {
        lay_out_moe(m, l, (uint32_t)n_places, u);
    }
    act_part(l, m->act_type, &s->act_ff, (uint32_t)n_places, bp->n_ff, u->ff);
}

static void lay_out(mx_model *m, layout *l)
{
    mx_state *s = &m->s;
    const mx_blueprint *bp = &m->bp;
    size_t rows = m->max_batch_rows;
    uint32_t head_rows = m->max_batch_rows > m->max_logit_rows ? m->max_batch_rows
                                                               : m->max_logit_rows;
    const float_uses uses = find_float_uses(&m->w, bp);
    s->rows = part(l, rows, sizeof *s->rows);
    s->groups = part(l, rows, sizeof *s->groups);
    s->cut_rows = part(l, rows, sizeof *s->cut_rows);
    s->x = part(l, rows, bp->n_embd * sizeof(float));
    s->h = part(l, rows, bp->n_embd * sizeof(float));
    s->runs = bp->arch->has_gdn ? part(l, rows, sizeof *s->runs) : NULL;
    s->jobs = part(l, 2 * (size_t)bp->n_experts + 4, sizeof *s->jobs);
    act_part(l, m->act_type, &s->act_embd, head_rows, bp->n_embd, uses.embd);
    /* The halves of a layer take turns with the same memory: one has given its output to h when the
     * other begins. */
    const size_t begin = l->at;
    lay_out_mixer(m, l, uses.mixed);
    const size_t end = l->at;
    l->at = begin;
    lay_out_ffn(m, l, &uses);
    l->at = mx_max_size(l->at, end);

    size_t matmul_bytes = largest_matmul_scratch(&m->w, bp);
    size_t attn_floats = m->kern->attn_scratch_floats(bp->head_dim, MX_ATTN_QUERIES);
    size_t max_pages = (size_t)bp->n_ctx / MX_PAGE_TOKENS + 1;
    s->workers = part(l, m->n_workers, sizeof *s->workers);
    s->has_rope = part(l, max_pages, sizeof *s->has_rope);
    for (unsigned i = 0; i < m->n_workers; i++) {
        mx_worker_scratch ws = {
            .matmul = part(l, 1, matmul_bytes),
            .attention = part(l, attn_floats, sizeof(float)),
            .k_tiles = part(l, max_pages, sizeof(uint8_t *)),
            .v_tiles = part(l, max_pages, sizeof(uint8_t *)),
        };
        if (s->workers != NULL) {
            s->workers[i] = ws;
        }
    }
}

void mx_state_measure(const mx_model *m, size_t *work_bytes, size_t *table_bytes)
{
    mx_model copy = *m; /* measuring writes to the pointers */
    layout l = {0};
    lay_out(&copy, &l);
    const size_t n_tables = m->bp.local_period != 0 ? 2 : 1;
    const size_t row_bytes = (size_t)m->bp.rope.n_rot * sizeof(float) * n_tables;
    if (l.is_too_big || !mx_mul_ok(m->bp.n_ctx, row_bytes, table_bytes)) {
        *work_bytes = *table_bytes = 0;
        return;
    }
    *work_bytes = l.at;
}

mx_err mx_state_create(mx_model *m, mx_errbuf *eb)
{
    mx_state *s = &m->s;
    const mx_blueprint *bp = &m->bp;
    layout l = {0};
    size_t table_bytes;
    lay_out(m, &l);
    if (l.is_too_big || !mx_mul_ok(bp->n_ctx, (size_t)bp->rope.n_rot * sizeof(float), &table_bytes))
    {
        return mx_fail(eb, MX_E_LIMIT, "batches of %u rows are too large for this model",
                       m->max_batch_rows);
    }
    s->arena_bytes = l.at;
    s->table_bytes = table_bytes;
    s->arena = mx_alloc_pages(l.at); /* zeroed: the kernels want zeros behind short rows */
    s->rope = mx_alloc_pages(table_bytes);
    s->rope_local = bp->local_period != 0 ? mx_alloc_pages(table_bytes) : NULL;
    if (s->arena == NULL || s->rope == NULL || (bp->local_period != 0 && s->rope_local == NULL)) {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the model's working space (%zu MiB)",
                       (l.at + table_bytes * (bp->local_period != 0 ? 2 : 1)) >> 20);
    }
    l = (layout){.base = s->arena};
    lay_out(m, &l);
    return MX_OK;
}

void mx_state_need_rope(mx_state *s, const mx_blueprint *bp, uint32_t pos)
{
    const uint32_t block = pos / MX_PAGE_TOKENS, first = block * MX_PAGE_TOKENS;
    if (s->has_rope[block]) {
        return;
    }
    const uint32_t n = bp->n_ctx - first < MX_PAGE_TOKENS ? bp->n_ctx - first : MX_PAGE_TOKENS;
    const size_t at = (size_t)first * bp->rope.n_rot;
    mx_rope_rows(&bp->rope, first, n, s->rope + at);
    if (s->rope_local != NULL) {
        mx_rope_rows(&bp->rope_local, first, n, s->rope_local + at);
    }
    s->has_rope[block] = true;
}

void mx_state_free(mx_state *s)
{
    mx_free_pages(s->arena, s->arena_bytes);
    mx_free_pages(s->rope, s->table_bytes);
    mx_free_pages(s->rope_local, s->table_bytes);
    *s = (mx_state){0};
}
