/* SPDX-License-Identifier: MIT
 *
 * model_internal.h: the three structs behind a model: the blueprint (what the file says about its
 * shape), the weights (repacked, immutable), the state (scratch of a forward pass).
 *
 * Blueprint and weights are constant after loading; the state belongs to the engine thread, which
 * lends parts of it to the compute pool while a stage runs. Only files of src/model include this.
 */
#ifndef MX_MODEL_INTERNAL_H
#define MX_MODEL_INTERNAL_H

#include "gguf/gguf.h"
#include "model/model.h"

/* ---- blueprint ------------------------------------------------------------------------------- */

/* What sets one architecture apart from the others; the shapes come from the file. */
typedef struct mx_arch {
    const char *name;
    mx_rope_pairing pairing;
    bool has_qk_norm; /* every head of q and k is normalised before the rotation */
    bool has_window;  /* attention.sliding_window counts, if there is one, for all layers */
    bool has_local_layers; /* it counts for all but every so manieth, which turn otherwise, too */
    bool has_post_norms;   /* the outputs of attention and FFN are normalised */
    bool has_gelu;         /* the FFN's gate is a GELU; else SiLU */
    bool has_scaled_embd;  /* the embedding is multiplied by the root of its width */
    bool has_experts;      /* the FFN of every layer is a mixture of experts */
    bool has_shared_expert;  /* and one more that every row visits */
    bool has_gdn;          /* Gated DeltaNet in all but every so manieth layer, attention with a
                            * gate in that one; the FFN's norm has another name */
    bool has_tiled_heads;  /* value head j of a GDN layer goes with key head j mod their number;
                            * else value heads of one key head stand together */
} mx_arch;

/* The period of global layers where the file does not say it, and the base of local rotation. */
#define MX_LOCAL_PERIOD 6
#define MX_LOCAL_FREQ_BASE 10000.0

/* Gated DeltaNet layers: keys and values have head_dim dimensions. All 0 when there are none. */
typedef struct mx_gdn_shape {
    uint32_t n_k_heads; /* divides n_v_heads */
    uint32_t n_v_heads;
    uint32_t head_dim;  /* a multiple of 16 */
    uint32_t n_taps;    /* of the convolution before it, > 1 */
} mx_gdn_shape;

typedef struct mx_blueprint {
    const mx_arch *arch;
    uint32_t n_layers;
    uint32_t n_mtp_layers;  /* behind them in the file: heads for multi-token prediction, not run */
    uint32_t attn_period;   /* every so manieth layer has attention, others are GDN; 0 = all do */
    mx_gdn_shape gdn;
    uint32_t n_embd;
    uint32_t n_heads;    /* query heads */
    uint32_t n_kv_heads; /* divides n_heads */
    uint32_t head_dim;
    uint32_t n_ff;       /* of one expert in a mixture */
    uint32_t n_experts;  /* 0 = the FFN is no mixture */
    uint32_t n_experts_used; /* per token */
    uint32_t n_ff_shared; /* of the expert that all rows visit; 0 = none */
    uint32_t n_vocab;
    uint32_t n_ctx_train;
    uint32_t n_ctx;
    uint32_t window; /* a token sees so many tokens up to itself; 0 = all */
    uint32_t local_period; /* every so manieth layer is global; 0 = all layers are alike */
    float rms_eps;
    float attn_scale;
    float embd_scale;    /* 1 = none */
    mx_rope_params rope; /* factors points to rope_factors or is NULL */
    mx_rope_params rope_local; /* of the layers that are not global; n_rot is the same */
    float *rope_factors; /* [n_rot / 2], owned */
} mx_blueprint;

MX_INLINE uint32_t mx_q_width(const mx_blueprint *bp)
{
    return bp->n_heads * bp->head_dim;
}

MX_INLINE uint32_t mx_kv_width(const mx_blueprint *bp)
{
    return bp->n_kv_heads * bp->head_dim;
}

/* Whether a layer is Gated DeltaNet, which has a state instead of keys and values. */
MX_INLINE bool mx_layer_is_gdn(const mx_blueprint *bp, uint32_t layer)
{
    return bp->attn_period != 0 && (layer + 1) % bp->attn_period != 0;
}

/* The layer's number among those of its kind: in a page, or in a state. */
MX_INLINE uint32_t mx_layer_in_kind(const mx_blueprint *bp, uint32_t layer)
{
    if (bp->attn_period == 0) {
        return layer;
    }
    const uint32_t n_before = layer / bp->attn_period; /* with attention */
    return mx_layer_is_gdn(bp, layer) ? layer - n_before : n_before;
}

MX_INLINE uint32_t mx_n_gdn_layers(const mx_blueprint *bp)
{
    return bp->attn_period != 0 ? bp->n_layers - bp->n_layers / bp->attn_period : 0;
}

/* Channels of a GDN layer's convolution: queries and keys, then values. */
MX_INLINE uint32_t mx_v_width(const mx_blueprint *bp)
{
    return bp->gdn.n_v_heads * bp->gdn.head_dim;
}

MX_INLINE uint32_t mx_conv_width(const mx_blueprint *bp)
{
    return 2 * bp->gdn.n_k_heads * bp->gdn.head_dim + mx_v_width(bp);
}

/* A GDN layer's part of a state, in floats: the inputs of the convolution, oldest first,
 * [n_taps - 1][conv_width], then S, [n_v_heads][head_dim / 16][head_dim][16]. */
MX_INLINE size_t mx_gdn_past_floats(const mx_blueprint *bp)
{
    return (size_t)(bp->gdn.n_taps - 1) * mx_conv_width(bp);
}

MX_INLINE size_t mx_gdn_state_floats(const mx_blueprint *bp)
{
    return mx_gdn_past_floats(bp) + (size_t)mx_v_width(bp) * bp->gdn.head_dim;
}

/* What a row's matrices before the mixer give, in floats: q, k, v[, gate] with attention,
 * conv_width, z, beta, alpha with GDN. */
MX_INLINE uint32_t mx_qkv_width(const mx_blueprint *bp)
{
    const uint32_t with_attn = (bp->arch->has_gdn ? 2 : 1) * mx_q_width(bp) + 2 * mx_kv_width(bp);
    const uint32_t with_gdn = mx_conv_width(bp) + mx_v_width(bp) + 2 * bp->gdn.n_v_heads;
    return with_attn > with_gdn ? with_attn : with_gdn;
}

/* Whether a layer sees the window only and is rotated by rope_local; false when all are alike. */
MX_INLINE bool mx_layer_is_local(const mx_blueprint *bp, uint32_t layer)
{
    return bp->local_period != 0 && (layer + 1) % bp->local_period != 0;
}

/* The window of a layer, 0 = none. */
MX_INLINE uint32_t mx_layer_window(const mx_blueprint *bp, uint32_t layer)
{
    return bp->local_period == 0 || mx_layer_is_local(bp, layer) ? bp->window : 0;
}

/* Layers of which a page keeps the rows of all tokens. Where all have a window, so that there would be
 * none, the first one counts: a page is never empty. */
MX_INLINE uint32_t mx_n_global_layers(const mx_blueprint *bp)
{
    const uint32_t n = bp->local_period != 0 ? bp->n_layers / bp->local_period : 0;
    return bp->window == 0 ? bp->n_layers - mx_n_gdn_layers(bp) : n != 0 ? n : 1;
}

/* The number of a layer that has keys and values in a page: those with a window come last. */
MX_INLINE uint32_t mx_layer_in_page(const mx_blueprint *bp, uint32_t layer)
{
    if (bp->window == 0 || bp->local_period == 0 || bp->local_period > bp->n_layers) {
        return mx_layer_in_kind(bp, layer);
    }
    const uint32_t n_before = layer / bp->local_period; /* that have none */
    return mx_layer_is_local(bp, layer) ? mx_n_global_layers(bp) + layer - n_before : n_before;
}

/* How many experts each row visits; a plain FFN counts as one. */
MX_INLINE uint32_t mx_n_visits(const mx_blueprint *bp)
{
    return bp->n_experts != 0 ? bp->n_experts_used : 1;
}

/* Whether the model needs the kernels of docs/numerics.md section 13. */
MX_INLINE bool mx_needs_extras(const mx_blueprint *bp)
{
    return bp->n_experts != 0 || bp->arch->has_gelu || bp->arch->has_scaled_embd;
}

/* Whether it needs those of section 14. */
MX_INLINE bool mx_needs_gdn(const mx_blueprint *bp)
{
    return bp->arch->has_gdn;
}

/* Reads and checks every key of the architecture. n_ctx 0 = the file's. */
mx_err mx_blueprint_read(mx_blueprint *bp, const mx_gguf *g, uint32_t n_ctx, mx_errbuf *eb);
void mx_blueprint_free(mx_blueprint *bp);

/* ---- weights --------------------------------------------------------------------------------- */

typedef struct mx_layer {
    float *attn_norm;  /* [n_embd] */
    mx_wmat qkv[3];    /* q [q_width][n_embd], k and v [kv_width][n_embd]; or one matrix of all, in
                        * a GDN layer [conv_width][n_embd] */
    uint32_t n_qkv;    /* 3, or 1 when the file has them fused */
    float *qkv_bias;   /* [q_width + 2 kv_width] or NULL */
    float *q_norm;     /* [head_dim] or NULL */
    float *k_norm;     /* [head_dim] or NULL */
    mx_wmat out_gate;  /* [q_width][n_embd], or z [v_width][n_embd]; unused without a gate */
    mx_wmat attn_out;  /* [n_embd][q_width], or [n_embd][v_width] */
    float *attn_post_norm; /* [n_embd] or NULL */
    float *ffn_norm;   /* [n_embd] */
    float *ffn_post_norm;  /* [n_embd] or NULL */
    mx_wmat gate, up;  /* [n_ff][n_embd]; unused in a mixture */
    mx_wmat down;      /* [n_embd][n_ff] */
    mx_wmat router;    /* [n_experts][n_embd] */
    mx_wmat *gates;    /* [n_experts] of [n_ff][n_embd], or [2 n_ff][n_embd]: gate, then up */
    mx_wmat *ups;      /* [n_experts], or NULL when they are in gates */
    mx_wmat *downs;    /* [n_experts] */
    mx_wmat shared_router; /* [1][n_embd] */
    mx_wmat shared_gate, shared_up; /* [n_ff_shared][n_embd] */
    mx_wmat shared_down;   /* [n_embd][n_ff_shared] */
    mx_wmat beta, alpha;   /* [n_v_heads][n_embd]; these and the following in GDN layers only */
    float *taps;       /* [n_taps][conv_width] */
    float *dt;         /* [n_v_heads] */
    float *a;          /* [n_v_heads] */
    float *gdn_norm;   /* [gdn.head_dim] */
} mx_layer;

typedef struct mx_weights {
    mx_wmat token_embd; /* [n_vocab][n_embd] rows are looked up */
    mx_wmat output;     /* [n_vocab][n_embd]; a copy of the struct token_embd when tied */
    float *output_norm; /* [n_embd] */
    mx_layer *layers;   /* [n_layers] */
    mx_wmat *experts;   /* what gates, ups and downs of all layers point to */
    uint8_t *arena;     /* all of the above point into it */
    size_t arena_bytes;
    uint64_t n_params;
    uint64_t n_mtp_params; /* in the file, not loaded */
} mx_weights;

/* Checks name and shape of every tensor, then repacks them on all workers of the pool; with pool NULL
 * it only checks and measures: arena and the panels of all matrices stay NULL. */
mx_err mx_weights_load(mx_weights *w, const mx_blueprint *bp, const mx_gguf *g, mx_pool *pool,
                       mx_errbuf *eb);
void mx_weights_free(mx_weights *w);

/* ---- state ----------------------------------------------------------------------------------- */

/* One row of the running batch. */
typedef struct mx_row {
    const mx_seq *seq;
    const mx_page *page; /* that takes its keys and values */
    uint32_t pos;
    uint32_t batch_row; /* its index in mx_batch.rows */
    int32_t hidden_to;
    uint32_t n_parts;   /* 0 = its attention is not cut into spans */
    float *parts;       /* [n_heads][n_parts][mx_attn_part_floats] */
    bool is_bad;        /* something was not finite: x is kept at 0 from then on */
} mx_row;

/* Consecutive rows of one sequence whose attention, or recurrence, is computed together. */
typedef struct mx_row_group {
    uint32_t first_row, n_rows;
    size_t first_item;   /* of the attention stage: [span or all][kv_head] */
    uint32_t first_span, n_spans; /* n_spans 0: one item goes over all spans */
} mx_row_group;

enum {
    /* Most query rows (heads of a group x rows) in one attention call: enough to use an unpacked
     * part of a tile many times while it is in L1, few enough for a hundred work items in a chunk
     * of 512; a multiple of the six rows that the kernels compute together. */
    MX_ATTN_QUERIES = 96,
    /* Up to so many query rows each span is an item of its own: a single sequence has too few KV
     * heads to share out. */
    MX_ATTN_SPLIT_QUERIES = 16,
    /* Spans of whole rows for which there is room at least. */
    MX_ATTN_MIN_PARTS = 64,
};

/* One matrix times some rows. */
typedef struct mx_matmul_job {
    const mx_wmat *w;
    mx_act act;       /* its rows 0..n_rows - 1 are the input */
    uint32_t n_rows;
    float *y;
    size_t ldy;
} mx_matmul_job;

/* A mixture of experts. A place is one row's visit to one expert; places are sorted by expert, then
 * by row, so that the rows of an expert stand together. */
typedef struct mx_moe {
    float *p;         /* [max_rows][n_experts] the router's scores, then probabilities */
    uint32_t *chosen; /* [max_rows][n_experts_used] experts in ascending order */
    float *weight;    /* [max_rows][n_experts_used] */
    uint32_t *place;  /* [max_rows][n_experts_used] */
    uint32_t *begin;  /* [n_experts + 1] an expert's places are begin[e]..begin[e + 1] - 1 */
    mx_act act;       /* [places] rows of n_embd */
    float *down;      /* [places][n_embd] */
    /* The shared expert. */
    float *shared_weight;  /* [max_rows] */
    float *shared_gate_up; /* [max_rows][2 n_ff_shared] */
    float *shared_down;    /* [max_rows][n_embd] */
    mx_act shared_act;     /* rows of n_ff_shared */
} mx_moe;

typedef struct mx_worker_scratch {
    void *matmul;              /* [mx_kern_matmul_scratch] */
    float *attention;          /* [attn_scratch_floats] */
    const uint8_t **k_tiles;   /* [max_pages] */
    const uint8_t **v_tiles;   /* [max_pages] */
} mx_worker_scratch;

typedef struct mx_state {
    mx_row *rows;         /* [max_rows] */
    mx_row_group *groups; /* [max_rows] */
    mx_row_group *runs;   /* [max_rows] all rows of a sequence each; NULL without states */
    uint32_t n_rows, n_groups, n_runs;
    float *x;             /* [max_rows][n_embd] residual stream */
    float *h;             /* [max_rows][n_embd] a norm's output, then what is added to x */
    mx_act act_embd;      /* rows of n_embd */
    /* Of the mixer, that is attention or GDN; what follows it uses the same memory. */
    float *qkv;           /* [max_rows][mx_qkv_width] */
    float *attn;          /* [max_rows][q_width], or [max_rows][v_width] */
    float *parts;         /* [parts_cap] results of spans, for the rows that point there */
    size_t parts_cap;
    mx_act act_attn;      /* rows of q_width, of 16 bits in any case */
    mx_act act_gdn;       /* rows of v_width, likewise, in the same memory */
    /* Of the FFN, in the memory of the mixer. */
    float *gate_up;       /* [max_rows x visits][2 n_ff] */
    mx_act act_ff;        /* [max_rows x visits] rows of n_ff */
    mx_moe moe;
    size_t n_attn_items;
    uint32_t *cut_rows;   /* [max_rows] those with parts in this layer, */
    uint32_t n_cut_rows, most_parts; /* and how many one of them has at most */
    mx_matmul_job *jobs;  /* as many as any stage has */
    float *rope;          /* [n_ctx][n_rot / 2][2] cos, sin; rows that a pass has needed */
    float *rope_local;    /* the same for local layers, or NULL */
    bool *has_rope;       /* [n_ctx / MX_PAGE_TOKENS + 1] of so many rows in both tables */
    mx_worker_scratch *workers; /* [pool size] */
    uint8_t *arena;       /* everything above but the two tables */
    size_t arena_bytes, table_bytes;
} mx_state;

struct mx_model {
    mx_model_config config;
    mx_blueprint bp;
    mx_weights w;
    mx_state s;
    mx_kv_shape kv_shape;
    bool has_root_key;
    mx_hash256 root_key;
    const mx_kern *kern;
    mx_act_type act_type;
    mx_pool *pool; /* borrowed; NULL when the model is only looked at */
    unsigned n_workers; /* the pool's size, or that of the pool to reckon memory for */
    mx_tokenizer *tokenizer;
    char *chat_template;
    size_t chat_template_len;
    mx_hash256 fingerprint;
    mx_hash256 numerics_id;
    uint32_t max_batch_rows, max_logit_rows;
};

/* Allocates the state; memory that no pass has used yet is not resident. */
mx_err mx_state_create(mx_model *m, mx_errbuf *eb);
/* Before the rows of the RoPE tables at pos are read: computes them when they are not there. */
void mx_state_need_rope(mx_state *s, const mx_blueprint *bp, uint32_t pos);
void mx_state_free(mx_state *s);
/* Bytes of work space and of RoPE tables (0 and 0 when they are too large for this machine). */
void mx_state_measure(const mx_model *m, size_t *work_bytes, size_t *table_bytes);

#endif
