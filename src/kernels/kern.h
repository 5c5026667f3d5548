/* SPDX-License-Identifier: MIT
 *
 * kern.h: the arithmetic of the forward pass, one table of functions per CPU level.
 *
 * The order of every operation is fixed by docs/numerics.md. All levels give the same bits, for any
 * number of rows in a call, any split of the rows or panels over calls and threads. The portable
 * level is the reference; mx_kern_get hands out the best level that the CPU has.
 *
 * Functions here do not allocate, lock or fail; they may run on several threads at once as long as
 * the outputs do not overlap. Callers run on threads prepared with mx_kern_thread_init.
 */
#ifndef MX_KERN_H
#define MX_KERN_H

#include "base/err.h"
#include "base/hash.h"
#include "base/qtype.h"

enum {
    MX_PAGE_TOKENS = 64, /* tokens in a KV page; also the attention step */
    MX_ATTN_SPAN = 512,  /* tokens of a sequence that attention sums up by themselves */
    MX_PANEL_ROWS = 16,  /* weight rows that are computed together, one lane each */
    MX_MATMUL_PANELS = 2, /* panels that go over many rows together: ranges of matmul are best even */
    MX_SUB_BLOCK = 32,   /* most products in one integer sum */
    MX_ACT_BLOCK = 256,  /* activations that share one 16-bit scale; a row's last may be short */
};

typedef enum mx_cpu_level {
    MX_CPU_PORTABLE,
    MX_CPU_AVX2,
    MX_CPU_AVXVNNI,
    MX_CPU_AVX512,
    MX_CPU_NEON
} mx_cpu_level;

typedef enum mx_kv_type { MX_KV_F16, MX_KV_F32, MX_KV_Q8 } mx_kv_type;

/* ---- weights ---------------------------------------------------------------------------------- */

/* A matrix of n_rows outputs by n_cols inputs, repacked into panels of MX_PANEL_ROWS rows. The last
 * panel is padded with zero rows. Immutable after mx_wmat_repack; shared by all threads. */
typedef struct mx_wmat {
    mx_qtype type;
    uint32_t n_rows;
    uint32_t n_cols;
    uint32_t n_panels;
    size_t panel_bytes;
    uint8_t *panels; /* [n_panels][panel_bytes], 64-byte aligned, owned by whoever allocated it */
} mx_wmat;

/* Whether it is multiplied with the rows as they are, so that the activations have to keep them. */
MX_INLINE bool mx_wmat_takes_floats(const mx_wmat *w)
{
    return w->type == MX_F32 || w->type == MX_F16 || w->type == MX_BF16;
}

/* Bytes that the repacked form needs; 0 when the shape cannot be (n_cols not a multiple of the
 * type's block, a dimension of 0, overflow). */
size_t mx_wmat_bytes(mx_qtype type, uint32_t n_rows, uint32_t n_cols);

/* Fills *w from rows as stored in the file (n_rows x n_cols / block x block_bytes); `memory` is
 * 64-byte aligned, mx_wmat_bytes long and stays the caller's to free. */
void mx_wmat_repack(mx_wmat *w, mx_qtype type, uint32_t n_rows, uint32_t n_cols,
                    const uint8_t *file_rows, void *memory);
/* The same in two steps, so that several threads can share a matrix: bind fills *w, then each panel
 * is packed once. file_rows points to row 0 of the matrix, whichever panels are packed. */
void mx_wmat_bind(mx_wmat *w, mx_qtype type, uint32_t n_rows, uint32_t n_cols, void *memory);
void mx_wmat_repack_panels(const mx_wmat *w, uint32_t first, uint32_t n, const uint8_t *file_rows);

/* Portable reference: n elements (a multiple of the type's block) of file bytes to f32. */
void mx_dequantize(mx_qtype type, const uint8_t *bytes, size_t n, float *out);

/* ---- activations ------------------------------------------------------------------------------ */

/* How rows of activations are rounded (docs/numerics.md section 3); each has a numerics id. */
typedef enum mx_act_type {
    MX_ACT_16, /* 16 bits, one scale per MX_ACT_BLOCK inputs */
    MX_ACT_8,  /* 8 bits, one scale per MX_SUB_BLOCK inputs: faster, less exact */
} mx_act_type;

/* Rows of activations as integers with one f32 scale per block of inputs, plus what the kernels
 * need beside them (sums per sub-block for types with a minimum; the f32 row itself for
 * F32/F16/BF16 matrices). Layout inside is the kernels' business. */
typedef struct mx_act {
    mx_act_type type;
    uint32_t max_rows;
    uint32_t n_cols;
    uint32_t q_stride;   /* elements between rows of q: n_cols rounded up to MX_SUB_BLOCK */
    uint32_t n_blocks;   /* scales per row */
    uint32_t n_sums;     /* sums of 16 per row */
    uint32_t n_sums32;   /* sums of 32 per row */
    int16_t *q;          /* [max_rows][q_stride] */
    float *scale;        /* [max_rows][n_blocks] */
    float *sum;          /* [max_rows][n_sums], exact integers */
    float *sum32;        /* [max_rows][n_sums32], likewise */
    float *x;            /* [max_rows][n_cols] the unquantised row, or NULL */
    int8_t *q8;          /* MX_ACT_8: [max_rows][q_stride], of each 8 inputs 0 4 1 5 2 6 3 7 */
    uint8_t *q8_biased;  /* likewise, + 128 */
} mx_act;

/* keeps_x: the rows will be multiplied with a float matrix (mx_wmat_takes_floats), too. 0 when the
 * shape cannot be. */
size_t mx_act_bytes(mx_act_type type, uint32_t max_rows, uint32_t n_cols, bool keeps_x);
/* Points *a into memory (64-byte aligned, mx_act_bytes long). */
void mx_act_bind(mx_act *a, mx_act_type type, uint32_t max_rows, uint32_t n_cols, bool keeps_x,
                 void *memory);
/* The rows of a from row0 (< max_rows) on, as activations of their own over the same memory. */
mx_act mx_act_from_row(const mx_act *a, uint32_t row0);

/* ---- RoPE ------------------------------------------------------------------------------------- */

typedef enum mx_rope_pairing { MX_ROPE_NORM, MX_ROPE_NEOX } mx_rope_pairing;

typedef struct mx_rope_params {
    mx_rope_pairing pairing;
    uint32_t n_rot;      /* rotated dimensions, even, <= head_dim */
    double freq_base;
    double scale_factor; /* linear scaling: theta / factor; 1 = none */
    bool is_yarn;        /* then scale_factor is yarn's and these four count */
    double yarn_orig_ctx, yarn_beta_fast, yarn_beta_slow, yarn_attn_factor;
    const float *factors; /* [n_rot / 2] or NULL: theta_j / factors[j] (llama-3) */
} mx_rope_params;

/* Fills cos_sin for positions 0..n_pos-1. Own sine, cosine and power in double: no libm. */
void mx_rope_table(const mx_rope_params *p, uint32_t n_pos, float *cos_sin /* [n_pos][n_rot/2][2] */);
/* The rows first..first+n_pos-1 of that table. */
void mx_rope_rows(const mx_rope_params *p, uint32_t first, uint32_t n_pos, float *cos_sin);

/* ---- attention over pages --------------------------------------------------------------------- */

/* One KV head of one layer in one page: K transposed so that a lane is a token, V by rows.
 *   K tile [head_dim][MX_PAGE_TOKENS]     V tile [MX_PAGE_TOKENS][head_dim]
 * f16 (IEEE half) by default, f32 as the reference option; q8 (i8) to halve the memory: there each
 * tile ends with one f32 scale per token, [MX_PAGE_TOKENS]. */
MX_INLINE size_t mx_kv_elem_bytes(mx_kv_type type)
{
    return type == MX_KV_F16 ? 2 : type == MX_KV_F32 ? 4 : 1;
}

/* Bytes of a tile behind the elements for each token. */
MX_INLINE size_t mx_kv_scale_bytes(mx_kv_type type)
{
    return type == MX_KV_Q8 ? sizeof(float) : 0;
}

MX_INLINE size_t mx_kv_tile_bytes(mx_kv_type type, uint32_t head_dim)
{
    return MX_PAGE_TOKENS * (head_dim * mx_kv_elem_bytes(type) + mx_kv_scale_bytes(type));
}

/* "f16", "f32", "q8" */
const char *mx_kv_type_name(mx_kv_type type);

typedef struct mx_attn_args {
    mx_kv_type kv_type;
    uint32_t head_dim;
    uint32_t n_queries;            /* query rows: heads of the group x tokens, in any order */
    const float *const *q;         /* [n_queries] -> [head_dim], already rotated */
    float *const *out;             /* [n_queries] -> [head_dim] */
    const uint32_t *n_valid;       /* [n_queries] the query sees rows first_valid..n_valid-1 */
    const uint32_t *first_valid;   /* [n_queries] or NULL = 0 (sliding window) */
    const uint8_t *const *k_tiles; /* [pages of this sequence] */
    const uint8_t *const *v_tiles;
    float scale;                   /* applied to the scores */
    float *scratch;                /* mx_kern.attn_scratch_floats(head_dim, n_queries) */
} mx_attn_args;

/* Floats of a part: the accumulators, the maximum, the sum. */
MX_INLINE size_t mx_attn_part_floats(uint32_t head_dim)
{
    return mx_round_up((size_t)head_dim + 2, 16);
}

/* ---- the table -------------------------------------------------------------------------------- */

/* ---- Gated DeltaNet -------------------------------------------------------------------------- */

/* Some columns of one head's state S [d keys][d values] over the rows of a chunk, in order. S is
 * cut into slabs of 16 columns: [n_cols / 16][d][16]. */
typedef struct mx_gdn_args {
    uint32_t d;      /* a multiple of 16 */
    uint32_t n_cols; /* a multiple of 16 */
    uint32_t n_rows; /* > 0 */
    const float *q;  /* [d], scaled; ld floats to the next row, as for k and v */
    const float *k;  /* [d] */
    const float *v;  /* [n_cols] */
    size_t ld;
    const float *decay, *beta; /* one number each; ld_gates floats to the next row's */
    size_t ld_gates;
    const float *from; /* before the first row */
    float *to;         /* behind the last row; may be `from` */
    float *out;        /* [n_cols]; ldo floats to the next row */
    size_t ldo;
} mx_gdn_args;

typedef struct mx_kern {
    mx_cpu_level level;
    const char *name; /* "portable", "avx2", ... */

    /* y = x * w / sqrt(mean(x^2) + eps), n elements. */
    void (*rmsnorm)(float *y, const float *x, const float *w, uint32_t n, float eps);

    /* Quantises rows row0..row1-1 of a from x (x[0] is row row0, ldx floats between rows). Returns
     * false when a value is an infinity or a NaN. */
    bool (*act_quantize)(mx_act *a, const float *x, size_t ldx, uint32_t row0, uint32_t row1);

    /* y[r][16 * panel + lane] = row . weights for rows 0..n_rows-1 of a and panels panel0..panel1-1;
     * padding lanes of the last panel are not written. scratch: mx_kern_matmul_scratch(w) bytes,
     * one per thread, 64-byte aligned. */
    void (*matmul)(const mx_wmat *w, const mx_act *a, uint32_t n_rows, float *y, size_t ldy,
                   uint32_t panel0, uint32_t panel1, void *scratch);

    /* out[0..n_cols-1] = row `row` of w, dequantised as mx_dequantize would. */
    void (*wmat_row)(const mx_wmat *w, uint32_t row, float *out);

    /* Rotates n_heads heads of head_dim in place with one position's table row. */
    void (*rope)(float *x, uint32_t n_heads, uint32_t head_dim, const mx_rope_params *p,
                 const float *cos_sin_row);

    /* Writes token row `slot` (0..MX_PAGE_TOKENS-1) of a K and a V tile. Returns false when a value
     * is not finite as stored. */
    bool (*kv_store)(mx_kv_type type, uint8_t *k_tile, uint8_t *v_tile, uint32_t head_dim,
                     uint32_t slot, const float *k, const float *v);

    /* Causal attention of some query rows of one KV head. */
    void (*attention)(const mx_attn_args *args);
    /* The same in parts, for several threads: attention_span looks at the tokens of one span only
     * (span * MX_ATTN_SPAN on) and leaves mx_attn_part_floats(head_dim) floats in each out row;
     * attention_merge makes the result from the parts of one row, in ascending order, `stride`
     * floats apart. All spans of which the row sees something must be there; others may be. */
    void (*attention_span)(const mx_attn_args *args, uint32_t span);
    void (*attention_merge)(float *out, const float *parts, size_t stride, uint32_t n_parts,
                            uint32_t head_dim);
    size_t (*attn_scratch_floats)(uint32_t head_dim, uint32_t n_queries);

    void (*silu_mul)(float *y, const float *gate, const float *up, size_t n); /* y = silu(gate)*up */
    void (*add)(float *y, const float *x, size_t n);                         /* y += x */
    bool (*all_finite)(const float *x, size_t n);

    /* What only some architectures need (docs/numerics.md section 13). */
    void (*gelu_mul)(float *y, const float *gate, const float *up, size_t n); /* gelu(gate) * up */
    void (*scale)(float *x, float s, size_t n);                               /* x *= s */
    void (*add_scaled)(float *y, float s, const float *x, size_t n);          /* y += s * x */
    void (*softmax)(float *x, size_t n);                                      /* in place */

    /* What Gated DeltaNet hybrids need (section 14). */
    void (*sigmoid)(float *x, size_t n);                            /* in place */
    void (*sigmoid_mul)(float *y, const float *gate, size_t n);     /* y *= sigmoid(gate) */
    void (*l2norm)(float *x, float scale_to, uint32_t n);           /* to the length scale_to */
    /* x = exp(a softplus(x + dt)) */
    void (*gdn_decay)(float *x, const float *dt, const float *a, size_t n);
    /* silu of a causal convolution of each channel, in place, row after row. taps [n_taps][ld] and
     * past [n_taps - 1][ld]: the inputs before the first row, oldest first; afterwards those before
     * the row behind the last. n channels, a multiple of 16. */
    void (*gdn_conv)(float *x, size_t ldx, uint32_t n_rows, uint32_t n, const float *taps,
                     float *past, uint32_t n_taps, size_t ld);
    void (*gdn_step)(const mx_gdn_args *args);
} mx_kern;

/* The best level the CPU (and OS) has, at most `max_level`. The AVX-512 and NEON levels may be
 * absent from a build; then the next lower one is returned. Never NULL. */
const mx_kern *mx_kern_get(mx_cpu_level max_level);
mx_cpu_level mx_cpu_best(void);
/* Is it in this build, whatever this CPU has? */
bool mx_cpu_level_is_built(mx_cpu_level level);
const char *mx_cpu_level_name(mx_cpu_level level);
bool mx_cpu_level_from_name(const char *name, mx_cpu_level *out);

/* Scratch of one matmul call on any level. */
size_t mx_kern_matmul_scratch(const mx_wmat *w);

/* Sets the floating-point control word of the calling thread (MXCSR 0x1F80 / FPCR 0). */
void mx_kern_thread_init(void);

/* The name of the numerics and the hash of a self-test run through `k`; equal on all levels. Takes
 * a few milliseconds, on the portable level tens. */
#define MX_NUMERICS_NAME "mx3-a16"
#define MX_NUMERICS_NAME_8 "mx3-a8"
const char *mx_numerics_name(mx_act_type type);
mx_hash256 mx_kern_numerics_id(const mx_kern *k); /* MX_ACT_16 */
mx_hash256 mx_kern_numerics_id_8(const mx_kern *k);
/* The same for the functions that only some architectures need: those of sections 13 and 14. */
mx_hash256 mx_kern_extras_id(const mx_kern *k);
mx_hash256 mx_kern_gdn_id(const mx_kern *k);

#endif
