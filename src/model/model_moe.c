/* SPDX-License-Identifier: MIT
 *
 * A mixture of experts in the place of the FFN: a router chooses a few experts for each row.
 *
 * Going through the experts row by row would read each expert's weights once per row. So the visits
 * of all rows are sorted by expert (a counting sort) and copied to places that stand together, and
 * each expert's matrices run over its places once. All experts are jobs of one stage whose panels
 * the workers share, however unevenly the rows chose. Then each row collects what its experts gave,
 * in ascending order of their ids: neither the sorting nor the company can change a bit
 * (docs/numerics.md section 13).
 *
 *     row        0          1          2             chosen (ascending)
 *     experts    1 4        0 4        1 2
 *     place      1 4        0 5        2 3           place[row][k]
 *     expert     0 | 1 1 | 2 | 4 4                   of places 0..5; begin = 0 1 3 4 4 6
 */
#include "model/model_pass.h"

/* The K largest of p[n], of equal ones the smaller index first; ids in ascending order. */
static void choose(const float *p, uint32_t n, uint32_t k_max, uint32_t *ids)
{
    uint32_t n_ids = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (n_ids == k_max && !(p[e] > p[ids[k_max - 1]])) {
            continue;
        }
        /* Behind those that are as large: they came first. */
        uint32_t at = n_ids < k_max ? n_ids++ : k_max - 1;
        for (; at > 0 && p[e] > p[ids[at - 1]]; at--) {
            ids[at] = ids[at - 1];
        }
        ids[at] = e;
    }
    for (uint32_t i = 1; i < n_ids; i++) {
        uint32_t id = ids[i], at = i;
        for (; at > 0 && ids[at - 1] > id; at--) {
            ids[at] = ids[at - 1];
        }
        ids[at] = id;
    }
}

/* From the router's scores to experts and their weights. */
static void route_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_model *m = p->m;
    const uint32_t n = m->bp.n_experts, k_max = m->bp.n_experts_used;
    for (size_t r = begin; r < end; r++) {
        float *prob = m->s.moe.p + r * n, *weight = m->s.moe.weight + r * k_max;
        uint32_t *ids = m->s.moe.chosen + r * k_max;
        if (!m->kern->all_finite(prob, n)) {
            mx_pass_spoil(p, (uint32_t)r);
            memset(prob, 0, n * sizeof *prob);
        }
        m->kern->softmax(prob, n);
        choose(prob, n, k_max, ids);
        float sum = 0;
        for (uint32_t k = 0; k < k_max; k++) {
            sum = sum + prob[ids[k]];
        }
        sum = sum > 0x1p-14f ? sum : 0x1p-14f;
        for (uint32_t k = 0; k < k_max; k++) {
            weight[k] = prob[ids[k]] / sum;
        }
    }
}

/* Gives every visit its place. */
static void sort_visits(mx_state *s, const mx_blueprint *bp)
{
    mx_moe *moe = &s->moe;
    const uint32_t n = bp->n_experts;
    const size_t n_visits = (size_t)s->n_rows * bp->n_experts_used;
    memset(moe->begin, 0, ((size_t)n + 1) * sizeof *moe->begin);
    for (size_t i = 0; i < n_visits; i++) {
        moe->begin[moe->chosen[i] + 1]++;
    }
    for (uint32_t e = 0; e < n; e++) {
        moe->begin[e + 1] += moe->begin[e];
    }
    /* Each begin moves to its end, which is where the next one began. */
    for (size_t i = 0; i < n_visits; i++) {
        moe->place[i] = moe->begin[moe->chosen[i]]++;
    }
    memmove(moe->begin + 1, moe->begin, n * sizeof *moe->begin);
    moe->begin[0] = 0;
}

/* Copies each row to its places. Quantising again is cheaper than it looks: a thousandth of what
 * the experts do with the row. */
static void scatter_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_state *s = &p->m->s;
    const uint32_t k_max = p->m->bp.n_experts_used;
    for (size_t r = begin; r < end; r++) {
        float *h = s->h + r * p->m->bp.n_embd;
        for (uint32_t k = 0; k < k_max; k++) {
            mx_pass_quantize(p, &s->moe.act, h, s->moe.place[r * k_max + k], (uint32_t)r);
        }
    }
}

static void gate_places(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_state *s = &p->m->s;
    const uint32_t k_max = p->m->bp.n_experts_used;
    /* By rows, not by places: one worker for all that may spoil a row. */
    for (size_t r = begin; r < end; r++) {
        for (uint32_t k = 0; k < k_max; k++) {
            const uint32_t place = s->moe.place[r * k_max + k];
            mx_pass_gate(p, s->gate_up + (size_t)place * 2 * p->m->bp.n_ff, place, (uint32_t)r);
        }
    }
}

/* h = the weighted sum of what the experts gave */
static void collect_rows(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_state *s = &p->m->s;
    const uint32_t k_max = p->m->bp.n_experts_used, n = p->m->bp.n_embd;
    for (size_t r = begin; r < end; r++) {
        float *h = s->h + r * n;
        memset(h, 0, n * sizeof *h);
        for (uint32_t k = 0; k < k_max; k++) {
            const size_t visit = r * k_max + k;
            p->m->kern->add_scaled(h, s->moe.weight[visit],
                                   s->moe.down + (size_t)s->moe.place[visit] * n, n);
        }
        if (p->m->bp.n_ff_shared != 0) {
            p->m->kern->add_scaled(h, s->moe.shared_weight[r], s->moe.shared_down + r * n, n);
        }
    }
}

/* The shared expert's gate, and how much of it counts. */
static void gate_shared(mx_pass *p, unsigned worker, size_t begin, size_t end)
{
    (void)worker;
    mx_moe *moe = &p->m->s.moe;
    const uint32_t n = p->m->bp.n_ff_shared;
    for (size_t r = begin; r < end; r++) {
        float *gate_up = moe->shared_gate_up + r * 2 * n;
        p->m->kern->sigmoid(moe->shared_weight + r, 1);
        p->m->kern->silu_mul(gate_up, gate_up, gate_up + n, n);
        mx_pass_quantize(p, &moe->shared_act, gate_up, (uint32_t)r, (uint32_t)r);
    }
}

/* Adds a job for each expert that has visitors. y: [places][width] */
static void add_experts(mx_pass *p, const mx_wmat *w, const mx_act *act, float *y, size_t width)
{
    const uint32_t *begin = p->m->s.moe.begin;
    for (uint32_t e = 0; e < p->m->bp.n_experts; e++) {
        if (begin[e] < begin[e + 1]) {
            const mx_act rows = mx_act_from_row(act, begin[e]);
            mx_pass_job(p, &w[e], &rows, begin[e + 1] - begin[e], y + begin[e] * width, width);
        }
    }
}

bool mx_moe_forward(mx_pass *p, const mx_layer *l)
{
    mx_state *s = &p->m->s;
    const mx_blueprint *bp = &p->m->bp;
    const size_t n_ff = bp->n_ff, n_shared = bp->n_ff_shared;
    mx_pass_job(p, &l->router, &s->act_embd, s->n_rows, s->moe.p, bp->n_experts);
    if (n_shared != 0) {
        float *gate_up = s->moe.shared_gate_up;
        mx_pass_job(p, &l->shared_router, &s->act_embd, s->n_rows, s->moe.shared_weight, 1);
        mx_pass_job(p, &l->shared_gate, &s->act_embd, s->n_rows, gate_up, 2 * n_shared);
        mx_pass_job(p, &l->shared_up, &s->act_embd, s->n_rows, gate_up + n_shared, 2 * n_shared);
    }
    if (!mx_pass_matmul(p) || !mx_pass_rows(p, route_rows) ||
        (n_shared != 0 && !mx_pass_rows(p, gate_shared)))
    {
        return false;
    }
    sort_visits(s, bp);
    if (!mx_pass_rows(p, scatter_rows)) {
        return false;
    }
    add_experts(p, l->gates, &s->moe.act, s->gate_up, 2 * n_ff);
    if (l->ups != NULL) {
        add_experts(p, l->ups, &s->moe.act, s->gate_up + n_ff, 2 * n_ff);
    }
    if (!mx_pass_matmul(p) || !mx_pass_rows(p, gate_places)) {
        return false;
    }
    add_experts(p, l->downs, &s->act_ff, s->moe.down, bp->n_embd);
    if (n_shared != 0) {
        mx_pass_job(p, &l->shared_down, &s->moe.shared_act, s->n_rows, s->moe.shared_down,
                    bp->n_embd);
    }
    return mx_pass_matmul(p) && mx_pass_rows(p, collect_rows);
}
