/* SPDX-License-Identifier: MIT
 *
 * Quantised tensors are random bits with sensible scales: every code and every sub-block scale
 * occurs, which a quantiser of smooth data would not give. The scale of each type is chosen so that
 * the values have the deviation that keeps a random network's activations near 1.
 */
#include "tiny_gguf.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEY_U32 = 4, KEY_I32 = 5, KEY_F32 = 6, KEY_BOOL = 7, KEY_STR = 8, KEY_ARRAY = 9 };
enum { MAX_TENSORS = 512, ALIGNMENT = 32 };

static const char default_template[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

typedef struct tensor {
    char name[64];
    uint32_t n_dims;
    uint64_t ne[3];
    mx_qtype type;
    double mean, deviation;
} tensor;

typedef struct builder {
    const mx_tiny_spec *spec;
    mx_buf kv;
    uint64_t n_kv;
    tensor tensors[MAX_TENSORS];
    size_t n_tensors;
} builder;

mx_tiny_spec mx_tiny_default(void)
{
    return (mx_tiny_spec){.arch = "llama",
                          .n_layers = 2,
                          .n_embd = 64,
                          .n_heads = 4,
                          .n_kv_heads = 2,
                          .head_dim = 16,
                          .n_ff = 96,
                          .n_vocab = 331,
                          .n_ctx = 512,
                          .type = MX_F32,
                          .embd_type = MX_F32,
                          .is_tied = true,
                          .seed = 1};
}

mx_tiny_spec mx_tiny_mixture(void)
{
    mx_tiny_spec s = mx_tiny_default();
    s.arch = "qwen3moe";
    s.has_qk_norm = true;
    s.n_experts = 6;
    s.n_experts_used = 2;
    return s;
}

mx_tiny_spec mx_tiny_gemma(void)
{
    mx_tiny_spec s = mx_tiny_default();
    s.arch = "gemma3";
    s.has_qk_norm = true;
    s.has_post_norms = true;
    s.window = 21;
    return s;
}

mx_tiny_spec mx_tiny_hybrid(void)
{
    mx_tiny_spec s = mx_tiny_mixture();
    s.arch = "qwen35moe";
    s.n_rot = 8;
    s.n_ff_shared = 32;
    s.attn_period = 2;
    s.gdn_k_heads = 2;
    s.gdn_v_heads = 4;
    s.gdn_dim = 16;
    s.gdn_taps = 4;
    s.n_mtp = 1;
    return s;
}

uint64_t mx_tiny_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    return z ^ z >> 32;
}

double mx_tiny_normal(uint64_t *state)
{
    /* A sum of uniform numbers: no function of libm, so the same on every machine. */
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += mx_tiny_random(state) >> 32;
    }
    return ((double)sum * 0x1p-32 - 2.0) * 1.7320508075688772;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void put32(mx_buf *b, uint32_t v)
{
    uint8_t le[4];
    mx_put_le32(le, v);
    mx_buf_append(b, le, sizeof le);
}

static void put64(mx_buf *b, uint64_t v)
{
    uint8_t le[8];
    mx_put_le64(le, v);
    mx_buf_append(b, le, sizeof le);
}

static void put_str(mx_buf *b, const char *s)
{
    put64(b, strlen(s));
    mx_buf_str(b, s);
}

/* Starts a key; false when the description leaves it out. "*" stands for the architecture. */
static bool key(builder *b, const char *name, uint32_t type)
{
    char full[96];
    if (name[0] == '*') {
        snprintf(full, sizeof full, "%s%s", b->spec->arch, name + 1);
    } else {
        snprintf(full, sizeof full, "%s", name);
    }
    if (b->spec->omit != NULL && strcmp(full, b->spec->omit) == 0) {
        return false;
    }
    put_str(&b->kv, full);
    put32(&b->kv, type);
    b->n_kv++;
    return true;
}

static void key_u32(builder *b, const char *name, uint32_t v)
{
    if (key(b, name, KEY_U32)) {
        put32(&b->kv, v);
    }
}

static void key_f32(builder *b, const char *name, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (key(b, name, KEY_F32)) {
        put32(&b->kv, bits);
    }
}

static void key_str(builder *b, const char *name, const char *v)
{
    if (key(b, name, KEY_STR)) {
        put_str(&b->kv, v);
    }
}

/* Byte-level BPE writes byte b as a printable character: itself where it is one, else 256 + n. */
static void byte_token(unsigned byte, char out[4])
{
    unsigned code = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool is_printable = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
        if (b == byte) {
            code = is_printable ? b : code;
        } else if (!is_printable) {
            code++;
        }
    }
    if (code < 128) {
        out[0] = (char)code;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        out[2] = '\0';
    }
}

static const mx_tiny_word *word_of(const mx_tiny_spec *s, uint32_t id)
{
    bool is_word = id >= MX_TINY_FIRST_WORD && id - MX_TINY_FIRST_WORD < s->n_words;
    return is_word ? &s->words[id - MX_TINY_FIRST_WORD] : NULL;
}

static void put_word(mx_buf *out, const mx_tiny_word *w)
{
    mx_buf text = {0};
    for (const char *c = w->text; *c != '\0'; c++) {
        char byte[4] = {*c, '\0'};
        if (!w->is_control) {
            byte_token((unsigned char)*c, byte);
        }
        mx_buf_str(&text, byte);
    }
    put_str(out, text.ptr);
    mx_buf_free(&text);
}

static void token_text(uint32_t id, uint32_t n_vocab, char out[24])
{
    static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    if (id < 256) {
        byte_token(id, out);
    } else if (id + 3 >= n_vocab) {
        snprintf(out, 24, "%s", control[id + 3 - n_vocab]);
    } else if (id == 256) {
        snprintf(out, 24, "th");
    } else {
        snprintf(out, 24, "tok%u", id);
    }
}

static void add_vocabulary(builder *b)
{
    uint32_t n = b->spec->n_vocab;
    char text[24];
    key_str(b, "tokenizer.ggml.model", "gpt2");
    key_str(b, "tokenizer.ggml.pre", "smollm");
    if (key(b, "tokenizer.ggml.tokens", KEY_ARRAY)) {
        put32(&b->kv, KEY_STR);
        put64(&b->kv, n);
        for (uint32_t i = 0; i < n; i++) {
            if (word_of(b->spec, i) != NULL) {
                put_word(&b->kv, word_of(b->spec, i));
            } else {
                token_text(i, n, text);
                put_str(&b->kv, text);
            }
        }
    }
    if (key(b, "tokenizer.ggml.token_type", KEY_ARRAY)) {
        put32(&b->kv, KEY_I32);
        put64(&b->kv, n);
        for (uint32_t i = 0; i < n; i++) {
            const mx_tiny_word *w = word_of(b->spec, i);
            put32(&b->kv, i + 3 >= n || (w != NULL && w->is_control) ? 3 : 1);
        }
    }
    if (key(b, "tokenizer.ggml.merges", KEY_ARRAY)) {
        put32(&b->kv, KEY_STR);
        put64(&b->kv, 1);
        put_str(&b->kv, "t h");
    }
    key_u32(b, "tokenizer.ggml.bos_token_id", n - 1);
    key_u32(b, "tokenizer.ggml.eos_token_id", n - 1);
    key_u32(b, "tokenizer.ggml.eot_token_id", n - 2);
    if (key(b, "tokenizer.ggml.add_bos_token", KEY_BOOL)) {
        mx_buf_char(&b->kv, 0);
    }
    key_str(b, "tokenizer.chat_template",
            b->spec->chat_template != NULL ? b->spec->chat_template : default_template);
}

static void add_hybrid_keys(builder *b)
{
    const mx_tiny_spec *s = b->spec;
    if (s->attn_period > 0) {
        key_u32(b, "*.full_attention_interval", s->attn_period);
        key_u32(b, "*.ssm.conv_kernel", s->gdn_taps);
        key_u32(b, "*.ssm.state_size", s->gdn_dim);
        key_u32(b, "*.ssm.group_count", s->gdn_k_heads);
        key_u32(b, "*.ssm.time_step_rank", s->gdn_v_heads);
        key_u32(b, "*.ssm.inner_size", s->gdn_v_heads * s->gdn_dim);
    }
    if (s->n_ff_shared > 0) {
        key_u32(b, "*.expert_shared_feed_forward_length", s->n_ff_shared);
    }
    if (s->n_mtp > 0) {
        key_u32(b, "*.nextn_predict_layers", s->n_mtp);
    }
}

static void add_keys(builder *b)
{
    const mx_tiny_spec *s = b->spec;
    key_str(b, "general.architecture", s->arch);
    key_str(b, "general.name", "tiny");
    key_u32(b, "*.block_count", s->n_layers + s->n_mtp);
    key_u32(b, "*.context_length", s->n_ctx);
    key_u32(b, "*.embedding_length", s->n_embd);
    key_u32(b, "*.feed_forward_length", s->n_ff);
    key_u32(b, "*.attention.head_count", s->n_heads);
    key_u32(b, "*.attention.head_count_kv", s->n_kv_heads);
    key_u32(b, "*.attention.key_length", s->head_dim);
    key_u32(b, "*.attention.value_length", s->head_dim);
    key_f32(b, "*.attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(b, "*.rope.freq_base", 10000.0f);
    key_u32(b, "*.rope.dimension_count", s->n_rot > 0 ? s->n_rot : s->head_dim);
    add_hybrid_keys(b);
    if (s->window > 0) {
        key_u32(b, "*.attention.sliding_window", s->window);
    }
    if (s->window_pattern > 0) {
        key_u32(b, "*.attention.sliding_window_pattern", s->window_pattern);
    }
    if (s->n_experts > 0) {
        key_u32(b, "*.expert_count", s->n_experts);
        key_u32(b, "*.expert_used_count", s->n_experts_used);
        key_u32(b, "*.expert_feed_forward_length", s->n_ff);
    }
    if (s->extra_key != NULL) {
        key_u32(b, s->extra_key, s->extra_value);
    }
    add_vocabulary(b);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* n_out 0 = a vector, n_slices 0 = no third dimension */
static void tensor_add_3d(builder *b, const char *name, uint64_t n_in, uint64_t n_out,
                          uint64_t n_slices, mx_qtype type, double mean, double deviation)
{
    const mx_tiny_spec *s = b->spec;
    if (s->omit != NULL && strcmp(name, s->omit) == 0) {
        return;
    }
    if (b->n_tensors == MAX_TENSORS) {
        abort();
    }
    tensor *t = &b->tensors[b->n_tensors++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_dims = n_slices > 0 ? 3 : n_out > 0 ? 2 : 1;
    t->ne[0] = n_in;
    t->ne[1] = n_out > 0 ? n_out : 1;
    t->ne[2] = n_slices > 0 ? n_slices : 1;
    t->type = type;
    t->mean = mean;
    t->deviation = deviation;
    if (s->wide != NULL && strcmp(name, s->wide) == 0) {
        t->ne[t->n_dims - 1]++;
    }
}

static void tensor_add(builder *b, const char *name, uint64_t n_in, uint64_t n_out, mx_qtype type,
                       double mean, double deviation)
{
    tensor_add_3d(b, name, n_in, n_out, 0, type, mean, deviation);
}

static void matrix(builder *b, uint32_t layer, const char *what, uint32_t n_in, uint32_t n_out)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, what);
    tensor_add(b, name, n_in, n_out, b->spec->type, 0, 1.0 / sqrt((double)n_in));
}

static void vector(builder *b, uint32_t layer, const char *what, uint32_t n, double mean,
                   double deviation)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", layer, what);
    tensor_add(b, name, n, 0, MX_F32, mean, deviation);
}

static void experts(builder *b, uint32_t layer, const char *what, uint32_t n_in, uint32_t n_out)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s.weight", layer, what);
    tensor_add_3d(b, name, n_in, n_out, b->spec->n_experts, b->spec->type, 0,
                  1.0 / sqrt((double)n_in));
}

static void add_gdn(builder *b, uint32_t i)
{
    const mx_tiny_spec *s = b->spec;
    const uint32_t v = s->gdn_v_heads * s->gdn_dim, conv = 2 * s->gdn_k_heads * s->gdn_dim + v;
    char name[64];
    if (s->has_ssm_in) {
        matrix(b, i, "ssm_in", s->n_embd, conv + v);
    } else {
        matrix(b, i, "attn_qkv", s->n_embd, conv);
        matrix(b, i, "attn_gate", s->n_embd, v);
    }
    if (s->has_ssm_ba) {
        matrix(b, i, "ssm_ba", s->n_embd, 2 * s->gdn_v_heads);
    } else {
        matrix(b, i, "ssm_beta", s->n_embd, s->gdn_v_heads);
        matrix(b, i, "ssm_alpha", s->n_embd, s->gdn_v_heads);
    }
    snprintf(name, sizeof name, "blk.%u.ssm_conv1d.weight", i);
    tensor_add(b, name, s->gdn_taps, conv, MX_F32, 0, 0.5);
    vector(b, i, "ssm_dt.bias", s->gdn_v_heads, -0.5, 0.6);
    vector(b, i, "ssm_a", s->gdn_v_heads, -2, 0.5);
    vector(b, i, "ssm_norm.weight", s->gdn_dim, 1, 0.1);
    matrix(b, i, "ssm_out", v, s->n_embd);
}

/* Some of what such a block has. */
static void add_mtp(builder *b, uint32_t i)
{
    const mx_tiny_spec *s = b->spec;
    vector(b, i, "attn_norm.weight", s->n_embd, 1, 0.1);
    matrix(b, i, "nextn.eh_proj", 2 * s->n_embd, s->n_embd);
    vector(b, i, "nextn.enorm.weight", s->n_embd, 1, 0.1);
}

static void add_shared_expert(builder *b, uint32_t i)
{
    const mx_tiny_spec *s = b->spec;
    vector(b, i, "ffn_gate_inp_shexp.weight", s->n_embd, 0, 0.2);
    matrix(b, i, "ffn_gate_shexp", s->n_embd, s->n_ff_shared);
    matrix(b, i, "ffn_up_shexp", s->n_embd, s->n_ff_shared);
    matrix(b, i, "ffn_down_shexp", s->n_ff_shared, s->n_embd);
}

static void add_ffn(builder *b, uint32_t i)
{
    const mx_tiny_spec *s = b->spec;
    char name[64];
    if (s->n_experts == 0) {
        matrix(b, i, "ffn_gate", s->n_embd, s->n_ff);
        matrix(b, i, "ffn_up", s->n_embd, s->n_ff);
        matrix(b, i, "ffn_down", s->n_ff, s->n_embd);
        return;
    }
    /* Decided enough that the experts' weights differ. */
    snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", i);
    tensor_add(b, name, s->n_embd, s->n_experts, s->has_quantized_router ? s->type : MX_F32, 0,
               3.0 / sqrt((double)s->n_embd));
    if (s->has_fused_gate_up) {
        experts(b, i, "ffn_gate_up_exps", s->n_embd, 2 * s->n_ff);
    } else {
        experts(b, i, "ffn_gate_exps", s->n_embd, s->n_ff);
        experts(b, i, "ffn_up_exps", s->n_embd, s->n_ff);
    }
    experts(b, i, "ffn_down_exps", s->n_ff, s->n_embd);
    if (s->n_ff_shared > 0) {
        add_shared_expert(b, i);
    }
}

static void add_attention(builder *b, uint32_t i)
{
    const mx_tiny_spec *s = b->spec;
    const uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    if (s->has_fused_qkv) {
        matrix(b, i, "attn_qkv", s->n_embd, q + 2 * kv);
    } else {
        matrix(b, i, "attn_q", s->n_embd, s->attn_period > 0 ? 2 * q : q);
        matrix(b, i, "attn_k", s->n_embd, kv);
        matrix(b, i, "attn_v", s->n_embd, kv);
    }
    if (s->has_qkv_bias) {
        vector(b, i, "attn_q.bias", q, 0, 0.3);
        vector(b, i, "attn_k.bias", kv, 0, 0.3);
        vector(b, i, "attn_v.bias", kv, 0, 0.3);
    }
    if (s->has_qk_norm) {
        vector(b, i, "attn_q_norm.weight", s->head_dim, 1, 0.1);
        vector(b, i, "attn_k_norm.weight", s->head_dim, 1, 0.1);
    }
    matrix(b, i, "attn_output", q, s->n_embd);
}

static void add_tensors(builder *b)
{
    const mx_tiny_spec *s = b->spec;
    tensor_add(b, "token_embd.weight", s->n_embd, s->n_vocab, s->embd_type, 0, 1);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        vector(b, i, "attn_norm.weight", s->n_embd, 1, 0.1);
        if (s->attn_period > 0 && (i + 1) % s->attn_period != 0) {
            add_gdn(b, i);
        } else {
            add_attention(b, i);
        }
        vector(b, i, s->attn_period > 0 ? "post_attention_norm.weight" : "ffn_norm.weight",
               s->n_embd, 1, 0.1);
        if (s->has_post_norms) {
            vector(b, i, "post_attention_norm.weight", s->n_embd, 1, 0.1);
            vector(b, i, "post_ffw_norm.weight", s->n_embd, 1, 0.1);
        }
        add_ffn(b, i);
    }
    for (uint32_t i = 0; i < s->n_mtp; i++) {
        add_mtp(b, s->n_layers + i);
    }
    tensor_add(b, "output_norm.weight", s->n_embd, 0, MX_F32, 1, 0.1);
    if (!s->is_tied) {
        tensor_add(b, "output.weight", s->n_embd, s->n_vocab, s->embd_type, 0,
                   1.0 / sqrt((double)s->n_embd));
    }
    if (s->has_rope_freqs) {
        tensor_add(b, "rope_freqs.weight", s->head_dim / 2, 0, MX_F32, 4, 0.5);
    }
}

/* ---- bytes of a tensor ----------------------------------------------------------------------- */

static uint16_t half_of(double v)
{
    /* Truncation is good enough: any finite scale will do. */
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, mantissa = bits & 0x7fffff;
    int exponent = (int)(bits >> 23 & 255) - 112;
    if (exponent >= 31) {
        return (uint16_t)(sign | 0x7bff);
    }
    if (exponent <= 0) {
        return (uint16_t)(sign | (exponent > -10 ? (mantissa | 0x800000) >> (14 - exponent) : 0));
    }
    return (uint16_t)(sign | (uint32_t)exponent << 10 | mantissa >> 13);
}

/* Where a block keeps its f16 scale and minimum (or -1), the deviation of its values for scale 1
 * and random bits, and the minimum that centres them on 0, in units of the scale. */
static const struct layout {
    mx_qtype type;
    int scale_at, min_at;
    double deviation, min;
} layouts[] = {
    {MX_Q4_0, 0, -1, 4.6, 0},    {MX_Q4_1, 0, 2, 4.6, -7.5},   {MX_Q5_0, 0, -1, 9.2, 0},
    {MX_Q5_1, 0, 2, 9.2, -15.5}, {MX_Q8_0, 0, -1, 73.9, 0},    {MX_Q2_K, 80, 82, 13.9, 1.5},
    {MX_Q3_K, 108, -1, 43.3, 0}, {MX_Q4_K, 0, 2, 255.6, 7.5},  {MX_Q5_K, 0, 2, 521.3, 15.5},
    {MX_Q6_K, 208, -1, 1366, 0}, {MX_IQ4_NL, 0, -1, 70, 0},    {MX_IQ4_XS, 0, -1, 1300, 0},
};

static void put_float(mx_buf *out, mx_qtype type, double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint8_t le[4];
    if (type == MX_F32) {
        put32(out, bits);
        return;
    }
    mx_put_le16(le, type == MX_F16 ? half_of(v) : (uint16_t)(bits >> 16));
    mx_buf_append(out, le, 2);
}

static void put_block(mx_buf *out, const mx_qtype_info *info, double deviation, uint64_t *rng)
{
    uint8_t block[256];
    for (uint32_t i = 0; i < info->block_bytes; i++) {
        block[i] = (uint8_t)(mx_tiny_random(rng) >> 56);
    }
    double vary = 0.75 + (double)(mx_tiny_random(rng) >> 40) * 0x1p-25;
    if (info->type == MX_MXFP4) {
        block[0] = (uint8_t)(125 + (int)floor(log2(deviation)) + (vary > 1));
    }
    for (size_t i = 0; i < MX_COUNT(layouts); i++) {
        if (layouts[i].type == info->type) {
            double scale = deviation / layouts[i].deviation * vary;
            mx_put_le16(block + layouts[i].scale_at, half_of(scale));
            if (layouts[i].min_at >= 0) {
                mx_put_le16(block + layouts[i].min_at, half_of(scale * layouts[i].min));
            }
        }
    }
    mx_buf_append(out, block, info->block_bytes);
}

static void put_tensor(mx_buf *out, const tensor *t, uint64_t seed)
{
    /* Each tensor has random numbers of its own: leaving one out does not change the others. */
    uint64_t rng = seed;
    for (const char *c = t->name; *c != '\0'; c++) {
        rng = mx_tiny_random(&rng) ^ (uint8_t)*c;
    }
    const mx_qtype_info *info = mx_qtype_get((uint32_t)t->type);
    size_t n = (size_t)(t->ne[0] * t->ne[1] * t->ne[2]);
    if (info == NULL || t->ne[0] % info->block_elems != 0) {
        fprintf(stderr, "tiny_gguf: %s: %llu inputs do not fit its type\n", t->name,
                (unsigned long long)t->ne[0]);
        abort();
    }
    for (size_t i = 0; i < n; i += info->block_elems) {
        if (info->block_elems == 1) {
            put_float(out, t->type, t->mean + t->deviation * mx_tiny_normal(&rng));
        } else {
            put_block(out, info, t->deviation, &rng);
        }
    }
}

/* The same experts as in two tensors: of each expert the gate's rows, then those of `up`. */
static void put_fused(mx_buf *out, const tensor *t, uint64_t seed)
{
    mx_buf half[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        tensor part = *t;
        part.ne[1] /= 2;
        snprintf(part.name, sizeof part.name, "%.*s%s_exps.weight",
                 (int)(strstr(t->name, "gate_up") - t->name), t->name, i == 0 ? "gate" : "up");
        put_tensor(&half[i], &part, seed);
    }
    size_t bytes = half[0].len / (size_t)t->ne[2];
    for (size_t at = 0; at < half[0].len; at += bytes) {
        mx_buf_append(out, half[0].ptr + at, bytes);
        mx_buf_append(out, half[1].ptr + at, bytes);
    }
    mx_buf_free(&half[0]);
    mx_buf_free(&half[1]);
}

/* The same weights as attn_qkv and attn_gate have: of each key head its query, its key, and the
 * values and gates of its value heads. */
static void put_ssm_in(mx_buf *out, const tensor *t, const mx_tiny_spec *s)
{
    const uint32_t d = s->gdn_dim, nk = s->gdn_k_heads, n = s->gdn_v_heads / nk;
    mx_buf part[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        tensor sub = *t;
        sub.ne[1] = i == 0 ? (2 + n) * nk * d : n * nk * d;
        snprintf(sub.name, sizeof sub.name, "%.*sattn_%s.weight",
                 (int)(strstr(t->name, "ssm_in") - t->name), t->name, i == 0 ? "qkv" : "gate");
        put_tensor(&part[i], &sub, s->seed);
    }
    const size_t head = part[1].len / (n * nk);
    for (uint32_t g = 0; g < nk; g++) {
        mx_buf_append(out, part[0].ptr + g * head, head);
        mx_buf_append(out, part[0].ptr + (nk + g) * head, head);
        mx_buf_append(out, part[0].ptr + (2 * nk + g * n) * head, n * head);
        mx_buf_append(out, part[1].ptr + g * n * head, n * head);
    }
    mx_buf_free(&part[0]);
    mx_buf_free(&part[1]);
}

static void pad(mx_buf *out)
{
    while (out->len % ALIGNMENT != 0) {
        mx_buf_char(out, 0);
    }
}

void mx_tiny_build(mx_buf *out, const mx_tiny_spec *spec)
{
    builder *b = mx_calloc(1, sizeof *b);
    if (b == NULL || spec->n_vocab < MX_TINY_FIRST_WORD + 3 + spec->n_words) {
        abort();
    }
    b->spec = spec;
    add_keys(b);
    add_tensors(b);

    mx_buf data = {0}, infos = {0};
    for (size_t i = 0; i < b->n_tensors; i++) {
        const tensor *t = &b->tensors[i];
        put_str(&infos, t->name);
        put32(&infos, t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            put64(&infos, t->ne[d]);
        }
        put32(&infos, (uint32_t)t->type);
        put64(&infos, data.len);
        if (strstr(t->name, "gate_up") != NULL) {
            put_fused(&data, t, spec->seed);
        } else if (strstr(t->name, "ssm_in.") != NULL) {
            put_ssm_in(&data, t, spec);
        } else {
            put_tensor(&data, t, spec->seed);
        }
        pad(&data);
    }
    mx_buf_str(out, "GGUF");
    put32(out, 3);
    put64(out, b->n_tensors);
    put64(out, b->n_kv);
    mx_buf_append(out, b->kv.ptr, b->kv.len);
    mx_buf_append(out, infos.ptr, infos.len);
    pad(out);
    mx_buf_append(out, data.ptr, data.len);
    if (out->failed || data.failed || infos.failed || b->kv.failed) {
        abort();
    }
    mx_buf_free(&data);
    mx_buf_free(&infos);
    mx_buf_free(&b->kv);
    mx_free(b);
}

void mx_tiny_write(const char *path, const mx_tiny_spec *spec)
{
    mx_buf bytes = {0};
    mx_tiny_build(&bytes, spec);
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes.ptr, 1, bytes.len, f) != bytes.len || fclose(f) != 0) {
        fprintf(stderr, "tiny_gguf: cannot write %s\n", path);
        abort();
    }
    mx_buf_free(&bytes);
}
