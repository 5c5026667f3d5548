/* SPDX-License-Identifier: MIT
 *
 * tiny_gguf.h: writes small model files with random weights, the same bytes for the same
 * description on every machine. For tests only; aborts when memory or the disk fails.
 *
 * The vocabulary is byte-level BPE: ids 0..255 are the bytes, 256 is "th" (the only merge), then
 * "tok257"...; the last three are the control tokens <|im_start|>, <|im_end|>, <|endoftext|>
 * (BOS and EOS is the last one, end of turn <|im_end|>).
 */
#ifndef MX_TINY_GGUF_H
#define MX_TINY_GGUF_H

#include "base/buf.h"
#include "base/qtype.h"

enum { MX_TINY_FIRST_WORD = 257 };

/* A token that says more than most: with a bias for it, the model says just that. */
typedef struct mx_tiny_word {
    const char *text;
    bool is_control; /* else no text is ever tokenised to it: there are no merges that make it */
} mx_tiny_word;

typedef struct mx_tiny_spec {
    const char *arch; /* any; what sets one apart is in the fields below */
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx;
    uint32_t window;    /* attention.sliding_window, 0 = no such key */
    uint32_t window_pattern; /* attention.sliding_window_pattern, 0 = no such key */
    uint32_t n_experts; /* not 0: a mixture of experts of n_ff each instead of the FFN */
    uint32_t n_experts_used;
    bool has_fused_gate_up; /* of the experts */
    bool has_quantized_router; /* of `type`, as no sound file has it */
    bool has_post_norms;
    uint32_t attn_period; /* not 0: every so manieth layer has attention with a gate, the others are
                           * Gated DeltaNet of these: */
    uint32_t gdn_k_heads, gdn_v_heads, gdn_dim, gdn_taps;
    bool has_ssm_ba;      /* one tensor for beta and alpha, as qwen3next has it */
    bool has_ssm_in;      /* one for queries, keys, values and their gate: the same weights, sorted */
    uint32_t n_rot;       /* rotated dimensions of a head, 0 = all */
    uint32_t n_ff_shared; /* of the shared expert, 0 = none */
    uint32_t n_mtp;       /* blocks for multi-token prediction behind the layers */
    mx_qtype type;      /* of the matrices in the layers */
    mx_qtype embd_type; /* of token_embd and output */
    bool is_tied;       /* no output matrix */
    bool has_rope_freqs;
    bool has_fused_qkv;
    bool has_qk_norm;
    bool has_qkv_bias;
    uint64_t seed;
    const char *chat_template; /* NULL: a short ChatML one */
    const mx_tiny_word *words; /* [n_words] what the ids from MX_TINY_FIRST_WORD on say */
    uint32_t n_words;
    const char *omit;          /* name of a key or tensor to leave out, or NULL */
    const char *extra_key;     /* a u32 key to add, "*" for the architecture's name; or NULL */
    uint32_t extra_value;
    const char *wide;          /* name of a tensor that gets one row too many, or NULL */
} mx_tiny_spec;

/* llama, 2 layers, E 64, 4/2 heads of 16, FF 96, 331 tokens, context 512, F32, tied, seed 1. */
mx_tiny_spec mx_tiny_default(void);
/* The same sizes as qwen3moe: 6 experts, 2 used. */
mx_tiny_spec mx_tiny_mixture(void);
/* As gemma3, with a window of 21. */
mx_tiny_spec mx_tiny_gemma(void);
/* Everything that a hybrid can have: a mixture with a shared expert, and a head that is not run. */
mx_tiny_spec mx_tiny_hybrid(void);

void mx_tiny_build(mx_buf *out, const mx_tiny_spec *spec);
void mx_tiny_write(const char *path, const mx_tiny_spec *spec);

/* The random numbers behind it, for tests that need the same on every machine. */
uint64_t mx_tiny_random(uint64_t *state);
double mx_tiny_normal(uint64_t *state); /* mean 0, deviation 1, within +-3.5 */

#endif
