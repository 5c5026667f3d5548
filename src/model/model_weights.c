/* SPDX-License-Identifier: MIT
 *
 * Loading weights in three passes: look up every tensor and check its shape (so that a wrong file
 * is refused before any memory is taken), allocate one arena, then repack on all workers. One arena
 * because weights live and die together, and large pages spare the TLB: decode reads all of it for
 * every token.
 *
 * Matrices are read and repacked in pieces, and the arena becomes resident as it is written: what is
 * resident is one copy of what has been repacked so far and half a megabyte per worker of the file.
 */
#include "base/mem.h"
#include "model/model_internal.h"

#include <stdio.h>
#include <sys/mman.h>

enum { SLICE_ALIGN = 64, TENSORS_PER_LAYER = 24, TENSORS_BESIDE = 8 };

/* Which rows of a tensor make a matrix, and in which order. */
typedef enum row_order {
    ROWS_ALL,
    ROWS_QUERY,      /* of attn_q with a gate: each head's query stands before its gate */
    ROWS_QUERY_GATE,
    ROWS_GDN_QKV,    /* of ssm_in: of each key head q, k, and v and z of its value heads */
    ROWS_GDN_Z,
    ROWS_GDN_BETA,   /* of ssm_ba: of each key head beta, then alpha of its value heads */
    ROWS_GDN_ALPHA,
} row_order;

/* One tensor to load: into a matrix (or one per expert), or as floats behind a pointer. */
typedef struct item {
    const mx_gguf_tensor *t;
    mx_wmat *matrix;    /* [n_matrices] or NULL */
    uint32_t n_matrices;
    uint32_t n_out;     /* rows of each */
    row_order order;
    bool is_transposed; /* floats */
    size_t offset;      /* into the arena */
    size_t apart_bytes; /* from one matrix to the next */
} item;

typedef struct loader {
    const mx_gguf *g;
    const mx_blueprint *bp;
    mx_errbuf *eb;
    item *items;
    size_t n_items;
    /* Float vectors and the pointers that will point to them. */
    struct {
        float **pointer;
        size_t offset;
    } *vectors;
    size_t n_vectors;
    size_t arena_bytes;
    uint64_t n_params;
    uint64_t n_mtp_params;
} loader;

/* ---- pass 1: look up and check --------------------------------------------------------------- */

static mx_err take_slice(loader *l, size_t bytes, size_t *offset)
{
    *offset = l->arena_bytes;
    if (bytes == 0 || bytes > SIZE_MAX - SLICE_ALIGN ||
        !mx_add_ok(l->arena_bytes, mx_round_up(bytes, SLICE_ALIGN), &l->arena_bytes))
    {
        return mx_fail(l->eb, MX_E_FORMAT, "the model's matrices do not fit into memory");
    }
    return MX_OK;
}

/* n_out 0 = a vector, n_experts 0 = a matrix. */
static mx_err find_tensor(loader *l, const char *name, uint32_t n_in, uint32_t n_out,
                          uint32_t n_experts, const mx_gguf_tensor **out)
{
    char expected[48], found[96] = "";
    const uint32_t n_dims = n_experts > 0 ? 3 : n_out > 0 ? 2 : 1;
    static const char *const shapes[] = {"{%u}", "{%u, %u}", "{%u, %u, %u}"};
    snprintf(expected, sizeof expected, shapes[n_dims - 1], n_in, n_out, n_experts);
    const mx_gguf_tensor *t = mx_gguf_find_tensor(l->g, name);
    if (t == NULL) {
        return mx_fail(l->eb, MX_E_FORMAT, "the file lacks tensor %s of shape %s", name, expected);
    }
    if (t->n_dims != n_dims || t->ne[0] != n_in || t->ne[1] != (n_dims > 1 ? n_out : 1) ||
        t->ne[2] != (n_dims > 2 ? n_experts : 1))
    {
        for (uint32_t d = 0; d < t->n_dims; d++) {
            size_t len = strlen(found);
            snprintf(found + len, sizeof found - len, "%s%llu", d > 0 ? ", " : "",
                     (unsigned long long)t->ne[d]);
        }
        return mx_fail(l->eb, MX_E_FORMAT, "tensor %s has shape {%s}, expected %s", name, found,
                       expected);
    }
    /* A tensor that gives two matrices is looked up twice in a row. */
    if (l->n_items == 0 || l->items[l->n_items - 1].t != t) {
        l->n_params += (uint64_t)n_in * t->ne[1] * t->ne[2];
    }
    *out = t;
    return MX_OK;
}

/* Space for what it->t gives: n_matrices of n_out rows. */
static mx_err take_matrices(loader *l, item *it, uint32_t n_matrices, uint32_t n_out, mx_wmat *dst)
{
    const mx_gguf_tensor *t = it->t;
    size_t bytes = mx_wmat_bytes(t->type->type, n_out, (uint32_t)t->ne[0]);
    if (bytes == 0) {
        return mx_fail(l->eb, MX_E_FORMAT, "tensor %.*s: rows of %u values do not fit type %s",
                       (int)t->name.len, t->name.ptr, (uint32_t)t->ne[0], t->type->name);
    }
    it->matrix = dst;
    it->n_matrices = n_matrices;
    it->n_out = n_out;
    it->apart_bytes = mx_round_up(bytes, SLICE_ALIGN);
    l->n_items++;
    for (uint32_t k = 0; k < n_matrices; k++) { /* its place comes with the arena */
        mx_wmat_bind(&dst[k], t->type->type, n_out, (uint32_t)t->ne[0], NULL);
    }
    if (!mx_mul_ok(it->apart_bytes, it->n_matrices, &bytes)) {
        bytes = 0; /* refused as too large */
    }
    return take_slice(l, bytes, &it->offset);
}

/* One matrix (n_experts 0), or one per expert, behind dst. */
static mx_err want_matrices(loader *l, const char *name, uint32_t n_in, uint32_t n_out,
                            uint32_t n_experts, mx_wmat *dst)
{
    item *it = &l->items[l->n_items];
    MX_TRY(find_tensor(l, name, n_in, n_out, n_experts, &it->t));
    return take_matrices(l, it, n_experts > 0 ? n_experts : 1, n_out, dst);
}

/* Some rows of a tensor of n_all rows. */
static mx_err want_rows(loader *l, const char *name, uint32_t n_in, uint32_t n_all, row_order order,
                        uint32_t n_out, mx_wmat *dst)
{
    item *it = &l->items[l->n_items];
    MX_TRY(find_tensor(l, name, n_in, n_all, 0, &it->t));
    it->order = order;
    return take_matrices(l, it, 1, n_out, dst);
}

static mx_err want_matrix(loader *l, const char *name, uint32_t n_in, uint32_t n_out, mx_wmat *dst)
{
    return want_matrices(l, name, n_in, n_out, 0, dst);
}

/* Loads a vector into floats at `offset` of the arena. */
static mx_err want_floats(loader *l, const char *name, uint32_t n, size_t offset)
{
    item *it = &l->items[l->n_items];
    MX_TRY(find_tensor(l, name, n, 0, 0, &it->t));
    if (n % it->t->type->block_elems != 0) {
        return mx_fail(l->eb, MX_E_FORMAT, "tensor %s: %u values do not fit type %s", name, n,
                       it->t->type->name);
    }
    it->matrix = NULL;
    it->offset = offset;
    l->n_items++;
    return MX_OK;
}

static mx_err new_vector(loader *l, float **pointer, uint32_t n, size_t *offset)
{
    MX_TRY(take_slice(l, (size_t)n * sizeof(float), offset));
    l->vectors[l->n_vectors].pointer = pointer;
    l->vectors[l->n_vectors++].offset = *offset;
    return MX_OK;
}

static mx_err want_vector(loader *l, const char *name, uint32_t n, float **pointer)
{
    size_t offset;
    MX_TRY(new_vector(l, pointer, n, &offset));
    return want_floats(l, name, n, offset);
}

static const char *in_layer(char out[64], uint32_t layer, const char *what)
{
    snprintf(out, 64, "blk.%u.%s", layer, what);
    return out;
}

static mx_err want_qkv(loader *l, const mx_blueprint *bp, uint32_t i, mx_layer *layer)
{
    char name[64];
    uint32_t q = mx_q_width(bp), kv = mx_kv_width(bp);
    if (mx_gguf_find_tensor(l->g, in_layer(name, i, "attn_qkv.weight")) != NULL) {
        if (bp->arch->has_gdn) { /* where would the gate be? */
            return mx_fail(l->eb, MX_E_UNSUPPORTED, "tensor %s: queries, keys and values in one "
                           "tensor are not supported in the attention layers of architecture %s",
                           name, bp->arch->name);
        }
        layer->n_qkv = 1;
        MX_TRY(want_matrix(l, name, bp->n_embd, q + 2 * kv, &layer->qkv[0]));
    } else {
        layer->n_qkv = 3;
        in_layer(name, i, "attn_q.weight");
        if (bp->arch->has_gdn) {
            MX_TRY(want_rows(l, name, bp->n_embd, 2 * q, ROWS_QUERY, q, &layer->qkv[0]));
            MX_TRY(want_rows(l, name, bp->n_embd, 2 * q, ROWS_QUERY_GATE, q, &layer->out_gate));
        } else {
            MX_TRY(want_matrix(l, name, bp->n_embd, q, &layer->qkv[0]));
        }
        MX_TRY(want_matrix(l, in_layer(name, i, "attn_k.weight"), bp->n_embd, kv, &layer->qkv[1]));
        MX_TRY(want_matrix(l, in_layer(name, i, "attn_v.weight"), bp->n_embd, kv, &layer->qkv[2]));
    }
    size_t offset;
    if (mx_gguf_find_tensor(l->g, in_layer(name, i, "attn_q.bias")) != NULL) {
        MX_TRY(new_vector(l, &layer->qkv_bias, q + 2 * kv, &offset));
        MX_TRY(want_floats(l, name, q, offset));
        MX_TRY(want_floats(l, in_layer(name, i, "attn_k.bias"), kv, offset + q * sizeof(float)));
        MX_TRY(want_floats(l, in_layer(name, i, "attn_v.bias"), kv,
                           offset + (q + kv) * sizeof(float)));
    } else if (mx_gguf_find_tensor(l->g, in_layer(name, i, "attn_qkv.bias")) != NULL) {
        MX_TRY(want_vector(l, name, q + 2 * kv, &layer->qkv_bias));
    }
    if (bp->arch->has_qk_norm) {
        MX_TRY(want_vector(l, in_layer(name, i, "attn_q_norm.weight"), bp->head_dim,
                           &layer->q_norm));
        MX_TRY(want_vector(l, in_layer(name, i, "attn_k_norm.weight"), bp->head_dim,
                           &layer->k_norm));
    }
    return MX_OK;
}

/* The convolution: the file has the taps of a channel together. */
static mx_err want_taps(loader *l, const mx_blueprint *bp, uint32_t i, mx_layer *layer)
{
    char name[64];
    const uint32_t n = mx_conv_width(bp);
    item *it = &l->items[l->n_items];
    size_t offset;
    MX_TRY(new_vector(l, &layer->taps, bp->gdn.n_taps * n, &offset));
    MX_TRY(find_tensor(l, in_layer(name, i, "ssm_conv1d.weight"), bp->gdn.n_taps, n, 0, &it->t));
    if (it->t->type->block_elems != 1) {
        return mx_fail(l->eb, MX_E_UNSUPPORTED, "tensor %s: type %s is not supported (supported: "
                       "f32, f16, bf16)", name, it->t->type->name);
    }
    it->is_transposed = true;
    it->offset = offset;
    l->n_items++;
    return MX_OK;
}

static mx_err want_gdn(loader *l, const mx_blueprint *bp, uint32_t i, mx_layer *layer)
{
    char name[64];
    const mx_gdn_shape *s = &bp->gdn;
    const uint32_t e = bp->n_embd, conv = mx_conv_width(bp), v = mx_v_width(bp);
    layer->n_qkv = 1;
    if (!bp->arch->has_tiled_heads &&
        mx_gguf_find_tensor(l->g, in_layer(name, i, "ssm_in.weight")) != NULL)
    {
        MX_TRY(want_rows(l, name, e, conv + v, ROWS_GDN_QKV, conv, &layer->qkv[0]));
        MX_TRY(want_rows(l, name, e, conv + v, ROWS_GDN_Z, v, &layer->out_gate));
    } else {
        MX_TRY(want_matrix(l, in_layer(name, i, "attn_qkv.weight"), e, conv, &layer->qkv[0]));
        MX_TRY(want_matrix(l, in_layer(name, i, "attn_gate.weight"), e, v, &layer->out_gate));
    }
    if (!bp->arch->has_tiled_heads) {
        const uint32_t n = s->n_v_heads;
        in_layer(name, i, "ssm_ba.weight");
        MX_TRY(want_rows(l, name, e, 2 * n, ROWS_GDN_BETA, n, &layer->beta));
        MX_TRY(want_rows(l, name, e, 2 * n, ROWS_GDN_ALPHA, n, &layer->alpha));
    } else {
        MX_TRY(want_matrix(l, in_layer(name, i, "ssm_beta.weight"), e, s->n_v_heads, &layer->beta));
        MX_TRY(want_matrix(l, in_layer(name, i, "ssm_alpha.weight"), e, s->n_v_heads,
                           &layer->alpha));
    }
    MX_TRY(want_taps(l, bp, i, layer));
    MX_TRY(want_vector(l, in_layer(name, i, "ssm_dt.bias"), s->n_v_heads, &layer->dt));
    MX_TRY(want_vector(l, in_layer(name, i, "ssm_a"), s->n_v_heads, &layer->a));
    MX_TRY(want_vector(l, in_layer(name, i, "ssm_norm.weight"), s->head_dim, &layer->gdn_norm));
    return want_matrix(l, in_layer(name, i, "ssm_out.weight"), v, e, &layer->attn_out);
}

/* The expert that every row visits; how much of it counts is a matrix of one row. */
static mx_err want_shared_expert(loader *l, const mx_blueprint *bp, uint32_t i, mx_layer *layer)
{
    char name[64];
    const uint32_t e = bp->n_embd, n = bp->n_ff_shared;
    item *it = &l->items[l->n_items];
    const mx_gguf_tensor *t;
    in_layer(name, i, "ffn_gate_inp_shexp.weight");
    t = mx_gguf_find_tensor(l->g, name);
    MX_TRY(find_tensor(l, name, e, t != NULL && t->n_dims == 2 ? 1 : 0, 0, &it->t));
    if (it->t->type->block_elems != 1) {
        return mx_fail(l->eb, MX_E_UNSUPPORTED, "tensor %s: a router of type %s is not supported "
                       "(supported: f32, f16, bf16)", name, it->t->type->name);
    }
    MX_TRY(take_matrices(l, it, 1, 1, &layer->shared_router));
    MX_TRY(want_matrix(l, in_layer(name, i, "ffn_gate_shexp.weight"), e, n, &layer->shared_gate));
    MX_TRY(want_matrix(l, in_layer(name, i, "ffn_up_shexp.weight"), e, n, &layer->shared_up));
    return want_matrix(l, in_layer(name, i, "ffn_down_shexp.weight"), n, e, &layer->shared_down);
}

static mx_err want_experts(loader *l, const mx_blueprint *bp, uint32_t i, mx_layer *layer)
{
    char name[64];
    const uint32_t e = bp->n_embd, n = bp->n_experts;
    in_layer(name, i, "ffn_gate_inp.weight");
    MX_TRY(want_matrix(l, name, e, n, &layer->router));
    const mx_qtype_info *type = l->items[l->n_items - 1].t->type;
    if (type->block_elems != 1) {
        return mx_fail(l->eb, MX_E_UNSUPPORTED, "tensor %s: a router of type %s is not supported "
                       "(supported: f32, f16, bf16)", name, type->name);
    }
    if (mx_gguf_find_tensor(l->g, in_layer(name, i, "ffn_gate_up_exps.weight")) != NULL) {
        layer->ups = NULL;
        MX_TRY(want_matrices(l, name, e, 2 * bp->n_ff, n, layer->gates));
    } else {
        MX_TRY(want_matrices(l, in_layer(name, i, "ffn_gate_exps.weight"), e, bp->n_ff, n,
                             layer->gates));
        MX_TRY(want_matrices(l, in_layer(name, i, "ffn_up_exps.weight"), e, bp->n_ff, n,
                             layer->ups));
    }
    MX_TRY(want_matrices(l, in_layer(name, i, "ffn_down_exps.weight"), bp->n_ff, e, n,
                         layer->downs));
    return bp->n_ff_shared != 0 ? want_shared_expert(l, bp, i, layer) : MX_OK;
}

static mx_err want_layer(loader *l, const mx_blueprint *bp, uint32_t i, mx_layer *layer)
{
    char name[64];
    uint32_t e = bp->n_embd;
    MX_TRY(want_vector(l, in_layer(name, i, "attn_norm.weight"), e, &layer->attn_norm));
    if (mx_layer_is_gdn(bp, i)) {
        MX_TRY(want_gdn(l, bp, i, layer));
    } else {
        MX_TRY(want_qkv(l, bp, i, layer));
        MX_TRY(want_matrix(l, in_layer(name, i, "attn_output.weight"), mx_q_width(bp), e,
                           &layer->attn_out));
    }
    if (bp->arch->has_post_norms) {
        MX_TRY(want_vector(l, in_layer(name, i, "post_attention_norm.weight"), e,
                           &layer->attn_post_norm));
        MX_TRY(want_vector(l, in_layer(name, i, "post_ffw_norm.weight"), e,
                           &layer->ffn_post_norm));
    }
    in_layer(name, i, bp->arch->has_gdn ? "post_attention_norm.weight" : "ffn_norm.weight");
    MX_TRY(want_vector(l, name, e, &layer->ffn_norm));
    if (bp->n_experts != 0) {
        return want_experts(l, bp, i, layer);
    }
    MX_TRY(want_matrix(l, in_layer(name, i, "ffn_gate.weight"), e, bp->n_ff, &layer->gate));
    MX_TRY(want_matrix(l, in_layer(name, i, "ffn_up.weight"), e, bp->n_ff, &layer->up));
    return want_matrix(l, in_layer(name, i, "ffn_down.weight"), bp->n_ff, e, &layer->down);
}

/* Whether a tensor belongs to a block for multi-token prediction, which is not run. */
static bool is_mtp(const mx_blueprint *bp, mx_str name)
{
    char text[64];
    for (uint32_t i = 0; i < bp->n_mtp_layers; i++) {
        const size_t n = (size_t)snprintf(text, sizeof text, "blk.%u.", bp->n_layers + i);
        if (name.len > n && memcmp(name.ptr, text, n) == 0) {
            return true;
        }
    }
    return false;
}

/* A tensor that nothing here uses means that the model computes something that we do not. */
static mx_err refuse_unused(loader *l, const mx_blueprint *bp)
{
    for (size_t i = 0; i < mx_gguf_n_tensors(l->g); i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(l->g, i);
        bool is_used = mx_str_eq(t->name, MX_STR("rope_freqs.weight"));
        for (size_t k = 0; k < l->n_items && !is_used; k++) {
            is_used = l->items[k].t == t;
        }
        if (!is_used && is_mtp(bp, t->name)) {
            l->n_mtp_params += t->ne[0] * t->ne[1] * t->ne[2];
        } else if (!is_used) {
            return mx_fail(l->eb, MX_E_UNSUPPORTED, "tensor %.*s: models of architecture %s that "
                           "have it are not supported", (int)mx_min_size(t->name.len, 64),
                           t->name.ptr, bp->arch->name);
        }
    }
    return MX_OK;
}

static mx_err look_up(loader *l, mx_weights *w, const mx_blueprint *bp)
{
    /* The largest first: the last thing that the workers take should be small. */
    MX_TRY(want_matrix(l, "token_embd.weight", bp->n_embd, bp->n_vocab, &w->token_embd));
    if (mx_gguf_find_tensor(l->g, "output.weight") != NULL) {
        MX_TRY(want_matrix(l, "output.weight", bp->n_embd, bp->n_vocab, &w->output));
    }
    for (uint32_t i = 0; i < bp->n_layers; i++) {
        MX_TRY(want_layer(l, bp, i, &w->layers[i]));
    }
    MX_TRY(want_vector(l, "output_norm.weight", bp->n_embd, &w->output_norm));
    return refuse_unused(l, bp);
}

/* ---- pass 3: repack -------------------------------------------------------------------------- */

/* About so many bytes of the file at a time: what a worker holds of it, and the unit in which a large
 * matrix is shared between workers. */
enum { PIECE_BYTES = 512 << 10 };

/* Some panels of one matrix, or (n_panels 0) a vector. */
typedef struct piece {
    const item *it;
    uint32_t matrix; /* which of the item's */
    uint32_t first_panel, n_panels;
} piece;

typedef struct repack_job {
    const loader *l;
    uint8_t *arena;
    const piece *pieces;
    size_t n_pieces;
    size_t most_bytes; /* of the file that one piece takes */
    mx_pool_cursor cursor;
    mx_err err; /* the first failure; atomic access */
    mx_errbuf eb;
} repack_job;

static size_t row_bytes_of(const mx_gguf_tensor *t)
{
    return (size_t)t->ne[0] / t->type->block_elems * t->type->block_bytes;
}

/* The tensor's row that becomes row r of the matrix. */
static uint32_t source_row(const mx_blueprint *bp, row_order order, uint32_t r)
{
    if (order == ROWS_ALL) {
        return r; /* the shapes below belong to architectures that have other orders */
    }
    const uint32_t d = bp->gdn.head_dim, hd = bp->head_dim;
    const uint32_t kd = bp->gdn.n_k_heads * d;
    const uint32_t n = bp->gdn.n_v_heads / bp->gdn.n_k_heads; /* value heads of a key head */
    const uint32_t group = (2 + 2 * n) * d;
    switch (order) {
    case ROWS_QUERY:
        return r / hd * 2 * hd + r % hd;
    case ROWS_QUERY_GATE:
        return r / hd * 2 * hd + hd + r % hd;
    case ROWS_GDN_QKV:
        if (r < 2 * kd) {
            return r % kd / d * group + r / kd * d + r % d;
        }
        r -= 2 * kd;
        return r / (n * d) * group + 2 * d + r % (n * d);
    case ROWS_GDN_Z:
        return r / (n * d) * group + (2 + n) * d + r % (n * d);
    case ROWS_GDN_BETA:
        return r / n * 2 * n + r % n;
    case ROWS_GDN_ALPHA:
        return r / n * 2 * n + n + r % n;
    default:
        return r;
    }
}

static uint32_t rows_of(const piece *p)
{
    const uint32_t left = p->it->n_out - p->first_panel * MX_PANEL_ROWS;
    const uint32_t most = p->n_panels * MX_PANEL_ROWS;
    return most < left ? most : left;
}

static size_t bytes_of(const piece *p)
{
    return p->n_panels == 0 ? p->it->t->n_bytes : rows_of(p) * row_bytes_of(p->it->t);
}

/* Brings the rows of the piece together, in the matrix' order. Rows that are neighbours in the file
 * are read at once. */
static mx_err read_rows(const loader *l, const piece *p, uint8_t *rows, mx_errbuf *eb)
{
    const size_t row_bytes = row_bytes_of(p->it->t);
    const uint32_t first = p->first_panel * MX_PANEL_ROWS, n = rows_of(p);
    for (uint32_t r = 0, run; r < n; r += run) {
        const uint32_t from = source_row(l->bp, p->it->order, first + r);
        run = 1;
        while (r + run < n && source_row(l->bp, p->it->order, first + r + run) == from + run) {
            run++;
        }
        const size_t at = ((size_t)p->matrix * p->it->n_out + from) * row_bytes;
        MX_TRY(mx_gguf_read_tensor(l->g, p->it->t, at, rows + r * row_bytes, run * row_bytes, eb));
    }
    return MX_OK;
}

static void transpose(const mx_gguf_tensor *t, const uint8_t *bytes, float *out)
{
    const size_t n = (size_t)t->ne[0];
    for (size_t r = 0; r < t->ne[1]; r++) {
        float row[64];
        mx_dequantize(t->type->type, bytes + r * row_bytes_of(t), n, row);
        for (size_t i = 0; i < n; i++) {
            out[i * (size_t)t->ne[1] + r] = row[i];
        }
    }
}

/* `bytes` is space for what the piece takes of the file. */
static mx_err repack_piece(const repack_job *job, const piece *p, uint8_t *bytes, mx_errbuf *eb)
{
    const mx_gguf_tensor *t = p->it->t;
    if (p->n_panels != 0) {
        mx_wmat part = p->it->matrix[p->matrix];
        part.panels += p->first_panel * part.panel_bytes;
        part.n_rows = rows_of(p);
        part.n_panels = p->n_panels;
        MX_TRY(read_rows(job->l, p, bytes, eb));
        mx_wmat_repack_panels(&part, 0, part.n_panels, bytes);
        return MX_OK;
    }
    float *floats = (float *)(void *)(job->arena + p->it->offset);
    MX_TRY(mx_gguf_read_tensor(job->l->g, t, 0, bytes, t->n_bytes, eb));
    if (p->it->is_transposed) {
        transpose(t, bytes, floats);
    } else {
        mx_dequantize(t->type->type, bytes, (size_t)t->ne[0], floats);
    }
    return MX_OK;
}

static void repack_worker(void *arg, unsigned worker)
{
    (void)worker;
    repack_job *job = arg;
    size_t begin, end;
    mx_errbuf eb;
    uint8_t *bytes = mx_alloc(job->most_bytes);
    mx_err e = bytes != NULL ? MX_OK : mx_fail(&eb, MX_E_NOMEM, "no memory for the model");
    while (e == MX_OK && __atomic_load_n(&job->err, __ATOMIC_RELAXED) == MX_OK &&
           mx_pool_take(&job->cursor, job->n_pieces, 1, &begin, &end))
    {
        e = repack_piece(job, &job->pieces[begin], bytes, &eb);
    }
    mx_free(bytes);
    mx_err none = MX_OK;
    if (e != MX_OK && __atomic_compare_exchange_n(&job->err, &none, e, false, __ATOMIC_RELAXED,
                                                  __ATOMIC_RELAXED))
    {
        job->eb = eb; /* only the first one writes */
    }
}

static uint32_t panels_per_piece(const mx_wmat *w)
{
    const size_t n = PIECE_BYTES / w->panel_bytes;
    return n < 1 ? 1 : n < w->n_panels ? (uint32_t)n : w->n_panels;
}

/* Binds all matrices to their places; with pieces NULL it only counts. */
static size_t cut_into_pieces(const loader *l, uint8_t *arena, piece *pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_items; i++) {
        const item *it = &l->items[i];
        if (it->matrix == NULL) {
            n++;
            if (pieces != NULL) {
                pieces[n - 1] = (piece){.it = it};
            }
            continue;
        }
        for (uint32_t k = 0; k < it->n_matrices; k++) {
            mx_wmat *w = &it->matrix[k];
            mx_wmat_bind(w, it->t->type->type, it->n_out, (uint32_t)it->t->ne[0],
                         arena + it->offset + k * it->apart_bytes);
            const uint32_t step = panels_per_piece(w);
            for (uint32_t p = 0; p < w->n_panels; p += step) {
                const uint32_t left = w->n_panels - p;
                n++;
                if (pieces != NULL) {
                    pieces[n - 1] = (piece){it, k, p, step < left ? step : left};
                }
            }
        }
    }
    return n;
}

static mx_err run_pieces(loader *l, uint8_t *arena, mx_pool *pool)
{
    repack_job job = {.l = l, .arena = arena};
    job.n_pieces = cut_into_pieces(l, arena, NULL);
    piece *pieces = mx_calloc(job.n_pieces, sizeof *pieces);
    if (pieces == NULL) {
        return mx_fail(l->eb, MX_E_NOMEM, "no memory for the model");
    }
    (void)cut_into_pieces(l, arena, pieces);
    job.pieces = pieces;
    for (size_t i = 0; i < job.n_pieces; i++) {
        job.most_bytes = mx_max_size(job.most_bytes, bytes_of(&pieces[i]));
    }
    mx_pool_run(pool, repack_worker, &job);
    mx_free(pieces);
    return job.err == MX_OK ? MX_OK : mx_fail(l->eb, job.err, "%s", job.eb.text);
}

static mx_err repack_all(loader *l, mx_weights *w, mx_pool *pool)
{
    w->arena = mx_alloc_pages(w->arena_bytes);
    if (w->arena == NULL) {
        return mx_fail(l->eb, MX_E_NOMEM, "no memory for the model's weights (%zu MiB)",
                       l->arena_bytes >> 20);
    }
    /* A hint: without it all works, slower. */
    (void)madvise(w->arena, w->arena_bytes, MADV_HUGEPAGE);
    MX_TRY(run_pieces(l, w->arena, pool));
    for (size_t i = 0; i < l->n_vectors; i++) {
        *l->vectors[i].pointer = (float *)(void *)(w->arena + l->vectors[i].offset);
    }
    if (w->output.panels == NULL) {
        w->output = w->token_embd;
    }
    return MX_OK;
}

static void deal_out_experts(mx_weights *w, const mx_blueprint *bp)
{
    mx_wmat *next = w->experts;
    for (uint32_t i = 0; i < bp->n_layers && bp->n_experts != 0; i++, next += 3 * bp->n_experts) {
        w->layers[i].gates = next;
        w->layers[i].ups = next + bp->n_experts;
        w->layers[i].downs = next + 2 * (size_t)bp->n_experts;
    }
}

mx_err mx_weights_load(mx_weights *w, const mx_blueprint *bp, const mx_gguf *g, mx_pool *pool,
                       mx_errbuf *eb)
{
    size_t n_max = (size_t)bp->n_layers * TENSORS_PER_LAYER + TENSORS_BESIDE;
    loader l = {.g = g, .bp = bp, .eb = eb};
    *w = (mx_weights){0};
    w->layers = mx_calloc(bp->n_layers, sizeof *w->layers);
    /* Blueprints are bounded: the product is below 2^26. */
    w->experts = mx_calloc(bp->n_experts != 0 ? 3 * (size_t)bp->n_layers * bp->n_experts : 1,
                           sizeof *w->experts);
    l.items = mx_calloc(n_max, sizeof *l.items);
    l.vectors = mx_calloc(n_max, sizeof *l.vectors);
    mx_err e;
    if (w->layers == NULL || w->experts == NULL || l.items == NULL || l.vectors == NULL) {
        e = mx_fail(eb, MX_E_NOMEM, "no memory for the model");
    } else {
        deal_out_experts(w, bp);
        e = look_up(&l, w, bp);
    }
    if (e == MX_OK) {
        w->n_params = l.n_params;
        w->n_mtp_params = l.n_mtp_params;
        /* Rounded up, so that the last large page is whole. */
        w->arena_bytes = mx_round_up(l.arena_bytes, MX_HUGE_PAGE);
        e = pool != NULL ? repack_all(&l, w, pool) : MX_OK;
    }
    mx_free(l.items);
    mx_free(l.vectors);
    if (e != MX_OK) {
        mx_weights_free(w);
    }
    return e;
}

void mx_weights_free(mx_weights *w)
{
    mx_free(w->layers);
    mx_free(w->experts);
    mx_free_pages(w->arena, w->arena_bytes);
    *w = (mx_weights){0};
}
