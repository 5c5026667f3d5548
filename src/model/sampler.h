/* SPDX-License-Identifier: MIT
 *
 * sampler.h: from logits to a token.
 *
 * The steps and their order are defined in docs/sampling.md. Greedy (the largest logit after bias
 * and penalties) is meant by temperature 0, top_k 1 or top_p 0.
 *
 * Draw number i of a generation is a function of (seed, position) alone, so a resumed generation
 * goes on exactly as it would have. Ties go to the smaller id; own exp and log, so that results do
 * not change with the C library. Belongs to the engine thread.
 */
#ifndef MX_SAMPLER_H
#define MX_SAMPLER_H

#include "base/err.h"

typedef struct mx_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -100 or less bans */
} mx_logit_bias;

typedef struct mx_sampling {
    float temperature;       /* 0 = greedy */
    uint32_t top_k;          /* 0 = off */
    float top_p;             /* 1 = off */
    float min_p;             /* 0 = off */
    float repetition_penalty; /* 1 = off; over prompt and answer */
    uint32_t penalty_window;  /* last so many tokens, 64 by default; 0 = the whole context */
    float presence_penalty;  /* over generated tokens */
    float frequency_penalty;
    uint64_t seed;
    uint32_t n_top_logprobs; /* 0..20 */
    bool want_logprobs;
    const mx_logit_bias *bias; /* [n_bias], borrowed for the life of the sampler */
    size_t n_bias;
} mx_sampling;

/* The neutral settings: temperature 1, everything else off, seed 0. */
mx_sampling mx_sampling_default(void);

typedef struct mx_logprob {
    int32_t token;
    float logprob;
} mx_logprob;

enum { MX_MAX_TOP_LOGPROBS = 20 };

typedef struct mx_sample {
    int32_t token;
    float logprob;            /* natural log, of the unmodified distribution; when want_logprobs */
    uint32_t n_top;
    mx_logprob top[MX_MAX_TOP_LOGPROBS];
} mx_sample;

typedef struct mx_sampler mx_sampler;

/* Allocates everything it will need (sampling itself does not allocate). MX_E_INVALID names the
 * setting that is out of range. */
mx_err mx_sampler_create(mx_sampler **out, uint32_t n_vocab, const mx_sampling *s, mx_errbuf *eb);
void mx_sampler_destroy(mx_sampler *s);

/* Tells the sampler about context tokens (the prompt: is_generated false). */
void mx_sampler_accept(mx_sampler *s, int32_t token, bool is_generated);

/* Chooses the token for absolute position `pos`. logits are modified; a logit of -INFINITY is never
 * chosen (a caller's own bans), and a NaN neither. When everything is banned, the token that was
 * best before logit_bias comes. Does not call accept. */
void mx_sampler_sample(mx_sampler *s, float *logits, uint64_t pos, mx_sample *out);

#endif
