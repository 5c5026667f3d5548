/* SPDX-License-Identifier: MIT
 *
 * From the keys of a model file to a blueprint. A key that changes the numbers and that we do not
 * know how to honour is refused by name: a wrong answer is worse than none.
 */
#include "base/mem.h"
#include "model/model_internal.h"

#include <math.h>
#include <stdio.h>

static const mx_arch known[] = {
    {.name = "llama", .pairing = MX_ROPE_NORM, .has_window = true},
    {.name = "qwen2", .pairing = MX_ROPE_NEOX},
    {.name = "qwen3", .pairing = MX_ROPE_NEOX, .has_qk_norm = true},
    {.name = "qwen3moe", .pairing = MX_ROPE_NEOX, .has_qk_norm = true, .has_experts = true},
    {.name = "gemma3", .pairing = MX_ROPE_NEOX, .has_qk_norm = true, .has_window = true,
     .has_local_layers = true, .has_post_norms = true, .has_gelu = true, .has_scaled_embd = true},
    {.name = "qwen35", .pairing = MX_ROPE_NEOX, .has_qk_norm = true, .has_gdn = true,
     .has_tiled_heads = true},
    {.name = "qwen35moe", .pairing = MX_ROPE_NEOX, .has_qk_norm = true, .has_experts = true,
     .has_shared_expert = true, .has_gdn = true, .has_tiled_heads = true},
    {.name = "qwen3next", .pairing = MX_ROPE_NEOX, .has_qk_norm = true, .has_experts = true,
     .has_shared_expert = true, .has_gdn = true},
};

/* Upper limits: far above any model, low enough that products of two of them fit 64 bits. */
enum {
    MAX_LAYERS = 4096,
    MAX_WIDTH = 1 << 20,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 1024,
    MAX_FF = 1 << 24,
    MAX_CTX = 1 << 26,
    MAX_EXPERTS = 1024,
    MAX_TAPS = 16,
    DEFAULT_ATTN_PERIOD = 4,
};

typedef struct reader {
    const mx_gguf *g;
    const char *arch;
    mx_errbuf *eb;
    char key[96];
} reader;

static const char *full_key(reader *r, const char *suffix)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, suffix);
    return r->key;
}

static mx_err check_range(reader *r, uint64_t v, uint32_t max, uint32_t *out)
{
    if (v < 1 || v > max) {
        return mx_fail(r->eb, MX_E_FORMAT, "%s is %llu, expected 1 to %u", r->key,
                       (unsigned long long)v, max);
    }
    *out = (uint32_t)v;
    return MX_OK;
}

static mx_err need_u32(reader *r, const char *suffix, uint32_t max, uint32_t *out)
{
    uint64_t v;
    MX_TRY(mx_gguf_get_u64(r->g, full_key(r, suffix), &v, r->eb));
    return check_range(r, v, max, out);
}

static mx_err want_u32(reader *r, const char *suffix, uint32_t max, uint32_t absent, uint32_t *out)
{
    *out = absent;
    return mx_gguf_has(r->g, full_key(r, suffix)) ? need_u32(r, suffix, max, out) : MX_OK;
}

/* A number, or an array with the same number for every layer. */
static mx_err want_uniform_u32(reader *r, const char *suffix, uint32_t max, uint32_t absent,
                               uint32_t *out)
{
    size_t n;
    uint64_t first, v;
    *out = absent;
    if (!mx_gguf_has(r->g, full_key(r, suffix))) {
        return absent != 0 ? MX_OK
                           : mx_fail(r->eb, MX_E_FORMAT, "the key %s is missing", r->key);
    }
    MX_TRY(mx_gguf_array_count(r->g, r->key, &n, r->eb));
    if (n == 0) {
        return mx_fail(r->eb, MX_E_FORMAT, "%s is an empty array", r->key);
    }
    MX_TRY(mx_gguf_array_u64(r->g, r->key, 0, &first, r->eb));
    for (size_t i = 1; i < n; i++) {
        MX_TRY(mx_gguf_array_u64(r->g, r->key, i, &v, r->eb));
        if (v != first) {
            return mx_fail(r->eb, MX_E_UNSUPPORTED,
                           "%s differs from layer to layer, which is not supported yet", r->key);
        }
    }
    return check_range(r, first, max, out);
}

static mx_err want_f64(reader *r, const char *suffix, double min, double max, double absent,
                       double *out)
{
    *out = absent;
    if (!mx_gguf_has(r->g, full_key(r, suffix))) {
        return MX_OK;
    }
    MX_TRY(mx_gguf_get_f64(r->g, r->key, out, r->eb));
    if (!(*out >= min && *out <= max)) {
        return mx_fail(r->eb, MX_E_FORMAT, "%s is %g, expected %g to %g", r->key, *out, min, max);
    }
    return MX_OK;
}

static mx_err find_arch(const mx_gguf *g, const mx_arch **out, mx_errbuf *eb)
{
    mx_str name;
    char list[256] = "";
    MX_TRY(mx_gguf_get_str(g, "general.architecture", &name, eb));
    for (size_t i = 0; i < MX_COUNT(known); i++) {
        if (mx_str_eq(name, mx_str_of(known[i].name))) {
            *out = &known[i];
            return MX_OK;
        }
        size_t len = strlen(list);
        snprintf(list + len, sizeof list - len, "%s%s", i > 0 ? ", " : "", known[i].name);
    }
    return mx_fail(eb, MX_E_UNSUPPORTED, "architecture \"%.*s\" is not supported (supported: %s)",
                   (int)mx_min_size(name.len, 64), name.ptr, list);
}

static mx_err refuse_foreign_keys(reader *r, const mx_arch *arch)
{
    static const char *const suffixes[] = {
        "attn_logit_softcapping", "final_logit_softcapping",
        "logit_scale",           "residual_scale",         "embedding_scale",
        "attention.clamp_kqv",   "attention.max_alibi_bias", "attention.logit_softcapping",
        "expert_shared_count",   "expert_group_count",     "leading_dense_block_count",
    };
    static const char shared[] = "expert_shared_feed_forward_length", experts[] = "expert_count";
    const size_t n = MX_COUNT(suffixes);
    for (size_t i = 0; i < n + 2; i++) {
        const bool is_known = i == n ? arch->has_shared_expert : i > n && arch->has_experts;
        double v;
        if (is_known || !mx_gguf_has(r->g, full_key(r, i < n    ? suffixes[i]
                                                       : i == n ? shared
                                                                : experts)))
        {
            continue;
        }
        if (mx_gguf_get_f64(r->g, r->key, &v, NULL) != MX_OK) {
            uint64_t count = 1;
            (void)mx_gguf_get_u64(r->g, r->key, &count, NULL);
            v = (double)count;
        }
        if (v != 0.0) {
            return mx_fail(r->eb, MX_E_UNSUPPORTED,
                           "%s is %g: models of architecture %s that use it are not supported",
                           r->key, v, r->arch);
        }
    }
    return MX_OK;
}

static mx_err read_rope_scaling(reader *r, mx_rope_params *p)
{
    mx_str type = MX_STR("linear");
    double old_scale, ext_factor, log_multiplier, attn_factor, yarn_attn_factor;
    MX_TRY(want_f64(r, "rope.scale_linear", 1e-3, 1e6, 1.0, &old_scale));
    MX_TRY(want_f64(r, "rope.scaling.factor", 0.0, 1e6, old_scale, &p->scale_factor));
    if (mx_gguf_has(r->g, full_key(r, "rope.scaling.type"))) {
        MX_TRY(mx_gguf_get_str(r->g, r->key, &type, r->eb));
    }
    if (mx_str_eq(type, MX_STR("none")) || p->scale_factor == 0.0) {
        p->scale_factor = 1.0;
        return MX_OK;
    }
    if (mx_str_eq(type, MX_STR("linear"))) {
        return MX_OK;
    }
    if (!mx_str_eq(type, MX_STR("yarn"))) {
        return mx_fail(r->eb, MX_E_UNSUPPORTED,
                       "RoPE scaling \"%.*s\" is not supported (supported: none, linear, yarn)",
                       (int)mx_min_size(type.len, 64), type.ptr);
    }
    uint32_t orig_ctx;
    p->is_yarn = true;
    MX_TRY(need_u32(r, "rope.scaling.original_context_length", MAX_CTX, &orig_ctx));
    p->yarn_orig_ctx = (double)orig_ctx;
    MX_TRY(want_f64(r, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0, &p->yarn_beta_fast));
    MX_TRY(want_f64(r, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0, &p->yarn_beta_slow));
    MX_TRY(want_f64(r, "rope.scaling.attn_factor", 1e-3, 1e3, 1.0, &attn_factor));
    MX_TRY(want_f64(r, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, 1.0, &yarn_attn_factor));
    p->yarn_attn_factor = attn_factor * yarn_attn_factor;
    MX_TRY(want_f64(r, "rope.scaling.yarn_ext_factor", -1e6, 1e6, 1.0, &ext_factor));
    MX_TRY(want_f64(r, "rope.scaling.yarn_log_multiplier", -1e6, 1e6, 0.0, &log_multiplier));
    if ((ext_factor != 1.0 && ext_factor != -1.0) || log_multiplier != 0.0) {
        return mx_fail(r->eb, MX_E_UNSUPPORTED,
                       "RoPE scaling yarn with yarn_ext_factor %g and yarn_log_multiplier %g is "
                       "not supported (1 and 0 are)", ext_factor, log_multiplier);
    }
    return MX_OK;
}

static mx_err read_rope(reader *r, mx_blueprint *bp)
{
    mx_rope_params *p = &bp->rope;
    p->pairing = bp->arch->pairing;
    MX_TRY(want_u32(r, "rope.dimension_count", MAX_HEAD_DIM, bp->head_dim, &p->n_rot));
    if (p->n_rot % 2 != 0 || p->n_rot > bp->head_dim) {
        return mx_fail(r->eb, MX_E_FORMAT,
                       "%s is %u, expected an even number up to the head size %u",
                       full_key(r, "rope.dimension_count"), p->n_rot, bp->head_dim);
    }
    MX_TRY(want_f64(r, "rope.freq_base", 1.0, 1e12, 10000.0, &p->freq_base));
    MX_TRY(read_rope_scaling(r, p));
    bp->rope_local = (mx_rope_params){.pairing = p->pairing, .n_rot = p->n_rot, .scale_factor = 1};
    return want_f64(r, "rope.freq_base_swa", 1.0, 1e12, MX_LOCAL_FREQ_BASE,
                    &bp->rope_local.freq_base);
}

static mx_err read_floats(reader *r, const mx_gguf_tensor *t, float *out)
{
    uint8_t *bytes = mx_alloc(t->n_bytes);
    if (bytes == NULL) {
        return mx_fail(r->eb, MX_E_NOMEM, "no memory for the model");
    }
    mx_err e = mx_gguf_read_tensor(r->g, t, 0, bytes, t->n_bytes, r->eb);
    if (e == MX_OK) {
        mx_dequantize(t->type->type, bytes, (size_t)t->ne[0], out);
    }
    mx_free(bytes);
    return e;
}

/* The divisors of llama-3's scaling are a tensor; they are part of the RoPE table, not a weight. */
static mx_err read_rope_factors(reader *r, mx_blueprint *bp)
{
    const mx_gguf_tensor *t = mx_gguf_find_tensor(r->g, "rope_freqs.weight");
    if (t == NULL) {
        return MX_OK;
    }
    uint32_t n = bp->rope.n_rot / 2;
    if (t->n_dims != 1 || t->ne[0] != n || t->type->block_elems != 1) {
        return mx_fail(r->eb, MX_E_FORMAT,
                       "tensor rope_freqs.weight: expected %u floats, found %llu of type %s", n,
                       (unsigned long long)t->ne[0], t->type->name);
    }
    bp->rope_factors = mx_calloc(n, sizeof *bp->rope_factors);
    if (bp->rope_factors == NULL) {
        return mx_fail(r->eb, MX_E_NOMEM, "no memory for the model");
    }
    bp->rope.factors = bp->rope_factors;
    MX_TRY(read_floats(r, t, bp->rope_factors));
    for (uint32_t j = 0; j < n; j++) {
        if (!(bp->rope_factors[j] > 0.0f && bp->rope_factors[j] < 1e30f)) {
            return mx_fail(r->eb, MX_E_FORMAT, "tensor rope_freqs.weight: entry %u is %g", j,
                           (double)bp->rope_factors[j]);
        }
    }
    return MX_OK;
}

static mx_err read_heads(reader *r, mx_blueprint *bp)
{
    uint32_t value_dim;
    MX_TRY(want_uniform_u32(r, "attention.head_count", MAX_HEADS, 0, &bp->n_heads));
    MX_TRY(want_uniform_u32(r, "attention.head_count_kv", MAX_HEADS, bp->n_heads, &bp->n_kv_heads));
    if (bp->n_heads % bp->n_kv_heads != 0) {
        return mx_fail(r->eb, MX_E_FORMAT, "%u query heads cannot share %u key-value heads evenly",
                       bp->n_heads, bp->n_kv_heads);
    }
    if (bp->n_heads / bp->n_kv_heads > MX_ATTN_QUERIES) {
        return mx_fail(r->eb, MX_E_UNSUPPORTED, "%u query heads per key-value head: at most %d",
                       bp->n_heads / bp->n_kv_heads, MX_ATTN_QUERIES);
    }
    if (!mx_gguf_has(r->g, full_key(r, "attention.key_length")) &&
        bp->n_embd % bp->n_heads != 0)
    {
        return mx_fail(r->eb, MX_E_FORMAT, "%u embedding dimensions do not split into %u heads",
                       bp->n_embd, bp->n_heads);
    }
    MX_TRY(want_u32(r, "attention.key_length", MAX_HEAD_DIM, bp->n_embd / bp->n_heads,
                    &bp->head_dim));
    MX_TRY(want_u32(r, "attention.value_length", MAX_HEAD_DIM, bp->head_dim, &value_dim));
    if (value_dim != bp->head_dim) {
        return mx_fail(r->eb, MX_E_UNSUPPORTED,
                       "keys of %u and values of %u dimensions: only equal sizes are supported",
                       bp->head_dim, value_dim);
    }
    if (bp->head_dim % 16 != 0) {
        return mx_fail(r->eb, MX_E_UNSUPPORTED, "heads of %u dimensions: only multiples of 16 are "
                       "supported", bp->head_dim);
    }
    return MX_OK;
}

/* A number or a truth value that the code takes for granted: absent, or as the formula has it. */
static mx_err refuse_unless(reader *r, const char *suffix, double expected)
{
    double v = expected;
    uint64_t n;
    bool b;
    if (!mx_gguf_has(r->g, full_key(r, suffix))) {
        return MX_OK;
    }
    if (mx_gguf_get_bool(r->g, r->key, &b, NULL) == MX_OK) {
        v = b ? 1.0 : 0.0;
    } else if (mx_gguf_get_u64(r->g, r->key, &n, NULL) == MX_OK) {
        v = (double)n;
    } else {
        MX_TRY(mx_gguf_get_f64(r->g, r->key, &v, r->eb));
    }
    return v == expected ? MX_OK
                         : mx_fail(r->eb, MX_E_UNSUPPORTED, "%s is %g: only %g is supported",
                                   r->key, v, expected);
}

static mx_err read_ffn(reader *r, mx_blueprint *bp)
{
    if (!bp->arch->has_experts) {
        return want_uniform_u32(r, "feed_forward_length", MAX_FF, 0, &bp->n_ff);
    }
    MX_TRY(need_u32(r, "expert_count", MAX_EXPERTS, &bp->n_experts));
    MX_TRY(need_u32(r, "expert_used_count", MAX_EXPERTS, &bp->n_experts_used));
    MX_TRY(need_u32(r, "expert_feed_forward_length", MAX_FF, &bp->n_ff));
    if (bp->arch->has_shared_expert) {
        MX_TRY(need_u32(r, "expert_shared_feed_forward_length", MAX_FF, &bp->n_ff_shared));
    }
    if (bp->n_experts_used > bp->n_experts) {
        return mx_fail(r->eb, MX_E_FORMAT, "%u experts per token, but there are only %u",
                       bp->n_experts_used, bp->n_experts);
    }
    MX_TRY(refuse_unless(r, "expert_gating_func", 1.0)); /* softmax */
    MX_TRY(refuse_unless(r, "expert_weights_norm", 1.0));
    return refuse_unless(r, "expert_weights_scale", 1.0);
}

static mx_err read_window(reader *r, mx_blueprint *bp)
{
    uint64_t window = 0;
    if (bp->arch->has_local_layers) {
        MX_TRY(need_u32(r, "attention.sliding_window", MAX_CTX, &bp->window));
        return want_u32(r, "attention.sliding_window_pattern", MAX_LAYERS, MX_LOCAL_PERIOD,
                        &bp->local_period);
    }
    if (bp->arch->has_window && mx_gguf_has(r->g, full_key(r, "attention.sliding_window"))) {
        MX_TRY(mx_gguf_get_u64(r->g, r->key, &window, r->eb));
    }
    bp->window = window < bp->n_ctx ? (uint32_t)window : 0;
    return MX_OK;
}

static mx_err read_scales(reader *r, mx_blueprint *bp)
{
    double scale, width = (double)bp->head_dim;
    if (bp->arch->has_local_layers && bp->n_layers == 62) {
        /* The 27B model was trained with another scale, and its files do not say so. */
        width = (double)bp->n_embd / (double)bp->n_heads;
    }
    MX_TRY(want_f64(r, "attention.scale", 0.0, 1e3, 0.0, &scale));
    bp->attn_scale = (float)(scale != 0.0 ? scale : 1.0 / sqrt(width));
    bp->embd_scale = bp->arch->has_scaled_embd ? (float)sqrt((double)bp->n_embd) : 1.0f;
    return MX_OK;
}

/* Which layers have attention is a period in all files; a list may say the same. */
static mx_err check_layer_kinds(reader *r, const mx_blueprint *bp)
{
    size_t n;
    uint64_t v;
    if (!mx_gguf_has(r->g, full_key(r, "attention.recurrent_layers"))) {
        return MX_OK;
    }
    MX_TRY(mx_gguf_array_count(r->g, r->key, &n, r->eb));
    for (size_t i = 0; i < n && i < bp->n_layers; i++) {
        MX_TRY(mx_gguf_array_u64(r->g, r->key, i, &v, r->eb));
        if ((v != 0) != mx_layer_is_gdn(bp, (uint32_t)i)) {
            return mx_fail(r->eb, MX_E_UNSUPPORTED, "%s: layer %zu does not fit a period of %u, "
                           "which is all that is supported", r->key, i, bp->attn_period);
        }
    }
    return MX_OK;
}

static mx_err read_gdn(reader *r, mx_blueprint *bp)
{
    mx_gdn_shape *s = &bp->gdn;
    uint32_t inner;
    MX_TRY(want_u32(r, "full_attention_interval", MAX_LAYERS, DEFAULT_ATTN_PERIOD,
                    &bp->attn_period));
    if (bp->attn_period > bp->n_layers) {
        return mx_fail(r->eb, MX_E_UNSUPPORTED, "%u layers, of which every %uth has attention: "
                       "models without any are not supported", bp->n_layers, bp->attn_period);
    }
    MX_TRY(check_layer_kinds(r, bp));
    MX_TRY(need_u32(r, "ssm.conv_kernel", MAX_TAPS, &s->n_taps));
    MX_TRY(need_u32(r, "ssm.state_size", MAX_HEAD_DIM, &s->head_dim));
    MX_TRY(need_u32(r, "ssm.group_count", MAX_HEADS, &s->n_k_heads));
    MX_TRY(need_u32(r, "ssm.time_step_rank", MAX_HEADS, &s->n_v_heads));
    MX_TRY(need_u32(r, "ssm.inner_size", MAX_HEADS * MAX_HEAD_DIM, &inner));
    if (s->n_taps < 2 || s->head_dim % 16 != 0) {
        return mx_fail(r->eb, MX_E_UNSUPPORTED, "ssm.conv_kernel %u and ssm.state_size %u: at "
                       "least 2 and a multiple of 16 are supported", s->n_taps, s->head_dim);
    }
    if (s->n_v_heads % s->n_k_heads != 0) {
        return mx_fail(r->eb, MX_E_FORMAT, "%u value heads (ssm.time_step_rank) cannot share %u "
                       "key heads (ssm.group_count) evenly", s->n_v_heads, s->n_k_heads);
    }
    if (inner != mx_v_width(bp)) {
        return mx_fail(r->eb, MX_E_FORMAT, "ssm.inner_size is %u, expected %u heads of %u", inner,
                       s->n_v_heads, s->head_dim);
    }
    return MX_OK;
}

/* The last blocks of the file may be heads for multi-token prediction. */
static mx_err read_layers(reader *r, mx_blueprint *bp)
{
    MX_TRY(need_u32(r, "block_count", MAX_LAYERS, &bp->n_layers));
    uint64_t n_mtp = 0;
    if (bp->arch->has_gdn && mx_gguf_has(r->g, full_key(r, "nextn_predict_layers"))) {
        MX_TRY(mx_gguf_get_u64(r->g, r->key, &n_mtp, r->eb));
    }
    if (n_mtp >= bp->n_layers) {
        return mx_fail(r->eb, MX_E_FORMAT, "%s is %llu, but there are %u blocks in all", r->key,
                       (unsigned long long)n_mtp, bp->n_layers);
    }
    bp->n_mtp_layers = (uint32_t)n_mtp;
    bp->n_layers -= bp->n_mtp_layers;
    return MX_OK;
}

mx_err mx_blueprint_read(mx_blueprint *bp, const mx_gguf *g, uint32_t n_ctx, mx_errbuf *eb)
{
    double eps;
    *bp = (mx_blueprint){0};
    MX_TRY(find_arch(g, &bp->arch, eb));
    reader r = {.g = g, .arch = bp->arch->name, .eb = eb};
    MX_TRY(refuse_foreign_keys(&r, bp->arch));
    MX_TRY(read_layers(&r, bp));
    MX_TRY(need_u32(&r, "embedding_length", MAX_WIDTH, &bp->n_embd));
    MX_TRY(read_ffn(&r, bp));
    MX_TRY(need_u32(&r, "context_length", MAX_CTX, &bp->n_ctx_train));
    MX_TRY(read_heads(&r, bp));
    if (bp->arch->has_gdn) {
        MX_TRY(read_gdn(&r, bp));
    }
    MX_TRY(want_f64(&r, "attention.layer_norm_rms_epsilon", 0.0, 1.0, 1e-5, &eps));
    bp->rms_eps = (float)eps;
    MX_TRY(read_scales(&r, bp));
    MX_TRY(read_rope(&r, bp));
    MX_TRY(read_rope_factors(&r, bp));
    bp->n_ctx = n_ctx != 0 ? n_ctx : bp->n_ctx_train;
    if (bp->n_ctx > bp->n_ctx_train) {
        return mx_fail(eb, MX_E_INVALID, "a context of %u tokens was asked for, but the model was "
                       "trained for %u", bp->n_ctx, bp->n_ctx_train);
    }
    return read_window(&r, bp);
}

void mx_blueprint_free(mx_blueprint *bp)
{
    mx_free(bp->rope_factors);
    *bp = (mx_blueprint){0};
}
