/* SPDX-License-Identifier: MIT
 *
 * model.h: a loaded model: weights, hyper-parameters, vocabulary, template, and its forward pass.
 *
 * Loading checks the file, then reads and repacks it tensor by tensor. Afterwards the description
 * (config, tokeniser, template) is immutable and may be read by any thread; the forward
 * pass belongs to the engine thread and its compute pool.
 *
 * Contract (docs/numerics.md): the logits of a token depend only on the tokens before it: not on
 * the batch, the chunk borders, the number of threads or where a page came from.
 */
#ifndef MX_MODEL_H
#define MX_MODEL_H

#include "base/pool.h"
#include "kv/kv.h"
#include "text/tokenizer.h"

#include <stdatomic.h>

typedef struct mx_model mx_model;

typedef struct mx_model_options {
    const char *path;
    mx_kv_type kv_type;
    mx_act_type act_type;       /* 16 bits (0, exact to 1e-6) or 8 */
    uint32_t max_batch_rows;    /* rows one forward call may have */
    uint32_t max_logit_rows;    /* of which at most so many want hidden vectors */
    uint32_t n_ctx;             /* 0 = the model's own context length */
    mx_cpu_level cpu_level;     /* highest level to use */
    const mx_hash256 *root_key; /* or NULL; copied: makes all roots others (mx_cold_derive_keys) */
    const char *fingerprint_cache_dir; /* folder for cached fingerprints, NULL = always hash */
    unsigned n_workers;         /* with pool NULL: size of the pool to reckon memory for */
} mx_model_options;

typedef struct mx_model_config {
    char architecture[32];
    char name[128];
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    uint32_t n_gdn_layers; /* of n_layers: Gated DeltaNet, without keys and values */
    uint32_t n_mtp_layers; /* in the file behind n_layers, for multi-token prediction: not run */
    uint32_t n_experts, n_experts_used; /* 0 = no mixture; n_ff is one expert's */
    uint32_t n_ctx_train, n_ctx; /* the file's, and the one in force */
    float rms_eps;
    uint64_t n_params, n_mtp_params; /* the second not in memory and not in the first */
    uint64_t file_bytes;
    int64_t file_time_s;
} mx_model_config;

/* With pool NULL nothing is computed and no weight is read: the file is checked as for loading, and the
 * result can only be looked at (no forward pass, no fingerprint, no root). */
mx_err mx_model_load(mx_model **out, const mx_model_options *opt, mx_pool *pool, mx_errbuf *eb);
void mx_model_destroy(mx_model *m);

const mx_model_config *mx_model_get_config(const mx_model *m);
const mx_tokenizer *mx_model_tokenizer(const mx_model *m);

/* So many bytes of keys and values are worth having memory for before they are needed: those of a pass of
 * n_tokens, but not more than 32 MiB, and little beside the weights. */
size_t mx_model_ahead_bytes(const mx_model *m, size_t n_tokens);

/* What the model takes; work space and tables become resident as they are used. */
typedef struct mx_model_memory {
    size_t weight_bytes;
    size_t work_bytes;   /* for batches of max_batch_rows */
    size_t table_bytes;  /* rotations for n_ctx positions */
    size_t page_bytes;   /* keys and values of MX_PAGE_TOKENS tokens */
} mx_model_memory;

mx_model_memory mx_model_get_memory(const mx_model *m);
mx_str mx_model_chat_template(const mx_model *m); /* empty when the file has none */
const mx_kv_shape *mx_model_kv_shape(const mx_model *m);
const mx_kern *mx_model_kern(const mx_model *m);
mx_pool *mx_model_workers(const mx_model *m); /* those it was loaded with; busy during a pass */
mx_act_type mx_model_act_type(const mx_model *m);
const mx_hash256 *mx_model_fingerprint(const mx_model *m); /* tree hash of every byte of the file */
const mx_hash256 *mx_model_numerics_id(const mx_model *m); /* docs/numerics.md section 11 */
/* The root of all page identities: everything that changes the numbers for the same tokens. salt:
 * isolation salt of an API key, or NULL. */
mx_hash256 mx_model_root(const mx_model *m, const mx_hash256 *salt);
/* The same without any salt or key: equal on all machines that compute the same numbers. */
mx_hash256 mx_model_bare_root(const mx_model *m);

/* One row of a batch: a token at the next uncommitted position of a sequence. */
typedef struct mx_batch_row {
    mx_seq *seq;
    uint32_t pos;      /* >= seq->n_tokens, < n_tokens + n_reserved; a seq's rows stand together,
                        * one position after the other; in a model with states the first
                        * of them is n_tokens */
    int32_t token;
    int32_t hidden_to; /* -1, or the index in `hidden` that receives the vector after output_norm */
    bool is_bad;       /* out: this row, or one of its sequence before it, was not finite */
} mx_batch_row;

typedef struct mx_batch {
    mx_batch_row *rows;
    uint32_t n_rows;
    float *hidden;     /* [n_hidden_rows][n_embd] */
    uint32_t n_hidden_rows;
    /* Polled between operations and every 64 rows; true = give up. May be NULL. */
    bool (*is_cancelled)(void *arg);
    void *cancel_arg;
} mx_batch;

/* Computes KV rows (written into the sequences' reserved rows), states (behind the last row of each
 * sequence, written into its `next`) and hidden vectors. Commits nothing: the caller commits or
 * rolls back. MX_E_CANCELLED (is_cancelled is called on this thread only), MX_E_NONFINITE (with
 * *bad_row = the first row of the batch that went wrong; every row with is_bad is to be thrown
 * away, the others are sound; in a model with states the whole sequence of a bad row must be rolled
 * back), MX_E_INVALID (a row does not follow the rules above; nothing was computed). No
 * allocation. */
mx_err mx_model_forward(mx_model *m, const mx_batch *b, uint32_t *bad_row, mx_errbuf *eb);

/* logits[i] = LM head of hidden[i]; n <= max_logit_rows. False when a logit is not finite. */
bool mx_model_logits(mx_model *m, const float *hidden, uint32_t n,
                     float *logits /* [n][n_vocab] */);

#endif
