/* SPDX-License-Identifier: MIT
 *
 * hybrid_model.h: the tiny random model with recurrent layers that the tests of boundaries share: one
 * layer of four has attention, one token is one byte, and the context has room for long prompts.
 */
#ifndef MX_HYBRID_MODEL_H
#define MX_HYBRID_MODEL_H

#include "tiny_gguf.h"

MX_UNUSED static mx_tiny_spec hybrid_spec(void)
{
    return (mx_tiny_spec){
        .arch = "qwen35", .n_layers = 4, .n_embd = 64, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32,
        .n_rot = 8, .n_ff = 96, .n_vocab = 288, .n_ctx = 4096, .type = MX_F32, .embd_type = MX_F32,
        .has_qk_norm = true, .attn_period = 4, .gdn_k_heads = 2, .gdn_v_heads = 4, .gdn_dim = 16,
        .gdn_taps = 4, .seed = 7, .omit = "tokenizer.ggml.merges",
    };
}

#endif
