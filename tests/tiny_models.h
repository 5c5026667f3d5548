/* SPDX-License-Identifier: MIT
 *
 * tiny_models.h: the tiny random models that the exactness and golden tests share.
 */
#ifndef MX_TINY_MODELS_H
#define MX_TINY_MODELS_H

#include "tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tiny {
    const char *name;
    mx_tiny_spec spec;
} tiny;

/* The sizes are odd on purpose: inputs that are no multiple of 256 (576 = 2 x 256 + 64), outputs
 * that are no multiple of 16. */
static const tiny tinies[] = {
    {"f32", {.arch = "llama", .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
             .head_dim = 16, .n_ff = 96, .n_vocab = 331, .n_ctx = 512, .type = MX_F32,
             .embd_type = MX_F32, .seed = 11}},
    {"q4_1", {.arch = "llama", .n_layers = 2, .n_embd = 576, .n_heads = 9, .n_kv_heads = 3,
              .head_dim = 64, .n_ff = 352, .n_vocab = 517, .n_ctx = 512, .type = MX_Q4_1,
              .embd_type = MX_Q8_0, .is_tied = true, .seed = 12}},
    {"q4_k", {.arch = "llama", .n_layers = 2, .n_embd = 256, .n_heads = 8, .n_kv_heads = 4,
              .head_dim = 32, .n_ff = 512, .n_vocab = 300, .n_ctx = 512, .type = MX_Q4_K,
              .embd_type = MX_Q6_K, .is_tied = true, .has_rope_freqs = true, .seed = 13}},
    {"q8_0", {.arch = "llama", .n_layers = 3, .n_embd = 96, .n_heads = 6, .n_kv_heads = 1,
              .head_dim = 16, .n_ff = 160, .n_vocab = 290, .n_ctx = 512, .type = MX_Q8_0,
              .embd_type = MX_F16, .has_fused_qkv = true, .seed = 14}},
    {"f16", {.arch = "llama", .n_layers = 2, .n_embd = 80, .n_heads = 5, .n_kv_heads = 5,
             .head_dim = 16, .n_ff = 112, .n_vocab = 275, .n_ctx = 512, .type = MX_F16,
             .embd_type = MX_F16, .seed = 15}},
    {"qwen3", {.arch = "qwen3", .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2,
               .head_dim = 32, .n_ff = 96, .n_vocab = 270, .n_ctx = 512, .type = MX_Q5_0,
               .embd_type = MX_Q8_0, .is_tied = true, .has_qk_norm = true, .has_qkv_bias = true,
               .seed = 16}},
    {"qwen3moe", {.arch = "qwen3moe", .n_layers = 2, .n_embd = 96, .n_heads = 4, .n_kv_heads = 2,
                  .head_dim = 32, .n_ff = 160, .n_vocab = 270, .n_ctx = 512, .type = MX_Q4_1,
                  .embd_type = MX_Q8_0, .has_qk_norm = true, .n_experts = 11, .n_experts_used = 3,
                  .seed = 17}},
    {"qwen3moe fused", {.arch = "qwen3moe", .n_layers = 2, .n_embd = 64, .n_heads = 4,
                        .n_kv_heads = 4, .head_dim = 16, .n_ff = 40, .n_vocab = 262, .n_ctx = 512,
                        .type = MX_F16, .embd_type = MX_F32, .is_tied = true, .has_qk_norm = true,
                        .n_experts = 40, .n_experts_used = 8, .has_fused_gate_up = true,
                        .seed = 18}},
    /* A window much shorter than the texts of the tests; layer 2 of 4 is global. */
    {"gemma3", {.arch = "gemma3", .n_layers = 4, .n_embd = 64, .n_heads = 4, .n_kv_heads = 1,
                .head_dim = 32, .n_ff = 96, .n_vocab = 290, .n_ctx = 512, .type = MX_Q8_0,
                .embd_type = MX_Q8_0, .is_tied = true, .has_qk_norm = true, .has_post_norms = true,
                .window = 21, .window_pattern = 3, .seed = 19}},
    /* More value heads than key heads in all of them; the last layer of the first has no
     * attention. */
    {"qwen35", {.arch = "qwen35", .n_layers = 5, .n_embd = 96, .n_heads = 4, .n_kv_heads = 2,
                .head_dim = 32, .n_rot = 16, .n_ff = 160, .n_vocab = 270, .n_ctx = 512,
                .type = MX_Q8_0, .embd_type = MX_Q8_0, .is_tied = true, .has_qk_norm = true,
                .attn_period = 3, .gdn_k_heads = 2, .gdn_v_heads = 6, .gdn_dim = 32, .gdn_taps = 4,
                .n_mtp = 1, .seed = 20}},
    {"qwen35moe", {.arch = "qwen35moe", .n_layers = 4, .n_embd = 64, .n_heads = 4, .n_kv_heads = 1,
                   .head_dim = 64, .n_rot = 16, .n_ff = 40, .n_vocab = 262, .n_ctx = 512,
                   .type = MX_F16, .embd_type = MX_F32, .has_qk_norm = true, .n_experts = 7,
                   .n_experts_used = 2, .n_ff_shared = 48, .attn_period = 4, .gdn_k_heads = 2,
                   .gdn_v_heads = 4, .gdn_dim = 48, .gdn_taps = 4, .seed = 21}},
    {"qwen3next", {.arch = "qwen3next", .n_layers = 4, .n_embd = 96, .n_heads = 2, .n_kv_heads = 2,
                   .head_dim = 32, .n_rot = 8, .n_ff = 64, .n_vocab = 275, .n_ctx = 512,
                   .type = MX_Q4_1, .embd_type = MX_Q8_0, .has_qk_norm = true, .n_experts = 6,
                   .n_experts_used = 3, .n_ff_shared = 96, .attn_period = 2, .gdn_k_heads = 3,
                   .gdn_v_heads = 6, .gdn_dim = 16, .gdn_taps = 3, .has_ssm_ba = true,
                   .has_ssm_in = true, .seed = 22}},
};

MX_UNUSED static mx_tiny_spec tiny_named(const char *name)
{
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        if (strcmp(tinies[i].name, name) == 0) {
            return tinies[i].spec;
        }
    }
    fprintf(stderr, "there is no tiny model %s\n", name);
    abort();
}

#endif
