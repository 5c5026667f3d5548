/* SPDX-License-Identifier: MIT
 *
 * A whole layer against docs/numerics.md section 12, written out with the portable kernels: every
 * product of the layer must get its input in the width that section 3 says: the one that the model was
 * asked for, but always 16 bits where the output of attention goes in.
 * The text is one token, of which attention gives the value itself, bit for bit, with f32 pages.
 */
#include "gguf/gguf.h"
#include "model_rig.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef struct reference {
    const mx_kern *k;
    mx_gguf *g;
    const uint8_t *file; /* its bytes */
    mx_act_type act;
} reference;

static void *need(size_t count, size_t bytes)
{
    void *p = mx_calloc(count, bytes);
    assert_non_null(p);
    return p;
}

static const mx_gguf_tensor *tensor(const reference *ref, const char *name)
{
    const mx_gguf_tensor *t = mx_gguf_find_tensor(ref->g, name);
    if (t == NULL) {
        fail_msg("the file lacks %s", name);
    }
    return t;
}

static const uint8_t *bytes_of(const reference *ref, const mx_gguf_tensor *t)
{
    return ref->file + t->offset;
}

/* y = rmsnorm(x, the vector) */
static void norm(const reference *ref, const char *name, const float *x, float *y)
{
    const mx_gguf_tensor *t = tensor(ref, name);
    const uint32_t n = (uint32_t)t->ne[0];
    float *w = need(n, sizeof *w);
    mx_dequantize(t->type->type, bytes_of(ref, t), n, w);
    ref->k->rmsnorm(y, x, w, n, 1e-5f);
    mx_free(w);
}

/* y = W activations(x) */
static void product_of(const reference *ref, mx_act_type type, const char *name, const float *x,
                       float *y)
{
    const mx_gguf_tensor *t = tensor(ref, name);
    const uint32_t n_in = (uint32_t)t->ne[0], n_out = (uint32_t)t->ne[1];
    mx_wmat w;
    mx_act a;
    void *panels = mx_alloc_aligned(64, mx_wmat_bytes(t->type->type, n_out, n_in));
    const size_t act_bytes = mx_act_bytes(type, 1, n_in, true);
    void *act = mx_alloc_aligned(64, act_bytes);
    assert_true(panels != NULL && act != NULL);
    memset(act, 0, act_bytes);
    mx_wmat_repack(&w, t->type->type, n_out, n_in, bytes_of(ref, t), panels);
    void *scratch = mx_alloc_aligned(64, mx_round_up(mx_kern_matmul_scratch(&w), 64));
    assert_non_null(scratch);
    mx_act_bind(&a, type, 1, n_in, true, act);
    assert_true(ref->k->act_quantize(&a, x, n_in, 0, 1));
    ref->k->matmul(&w, &a, 1, y, n_out, 0, w.n_panels, scratch);
    mx_free(scratch);
    mx_free(act);
    mx_free(panels);
}

static void product(const reference *ref, const char *name, const float *x, float *y)
{
    product_of(ref, ref->act, name, x, y);
}

static void reference_hidden(const reference *ref, const mx_tiny_spec *s, uint32_t token,
                             float *hidden)
{
    const uint32_t e = s->n_embd, q_width = s->n_heads * s->head_dim;
    float *x = need(e, sizeof *x), *h = need(e, sizeof *h), *y = need(e, sizeof *y);
    float *v = need(s->n_kv_heads * s->head_dim, sizeof *v), *o = need(q_width, sizeof *o);
    float *gate = need(s->n_ff, sizeof *gate), *up = need(s->n_ff, sizeof *up);
    const mx_gguf_tensor *embd = tensor(ref, "token_embd.weight");
    mx_dequantize(embd->type->type, bytes_of(ref, embd) + embd->n_bytes / s->n_vocab * token, e, x);
    norm(ref, "blk.0.attn_norm.weight", x, h);
    product(ref, "blk.0.attn_v.weight", h, v);
    for (uint32_t i = 0; i < s->n_heads; i++) {
        memcpy(o + i * s->head_dim, v + i / (s->n_heads / s->n_kv_heads) * s->head_dim,
               s->head_dim * sizeof *o);
    }
    product_of(ref, MX_ACT_16, "blk.0.attn_output.weight", o, y);
    ref->k->add(x, y, e);
    norm(ref, "blk.0.ffn_norm.weight", x, h);
    product(ref, "blk.0.ffn_gate.weight", h, gate);
    product(ref, "blk.0.ffn_up.weight", h, up);
    ref->k->silu_mul(gate, gate, up, s->n_ff);
    product(ref, "blk.0.ffn_down.weight", gate, y);
    ref->k->add(x, y, e);
    norm(ref, "output_norm.weight", x, hidden);
    float *all[] = {x, h, y, v, o, gate, up};
    for (size_t i = 0; i < MX_COUNT(all); i++) {
        mx_free(all[i]);
    }
}

static void layer_is_what_is_written(mx_act_type act, mx_qtype type)
{
    mx_tiny_spec spec = mx_tiny_default();
    spec.n_layers = 1;
    spec.n_embd = 256;
    spec.n_heads = 16;
    spec.n_ff = 512;
    spec.type = type;
    spec.embd_type = MX_Q8_0;
    rig_options o = rig_default();
    o.act_type = act;
    o.kv_type = MX_KV_F32;
    mx_buf file = {0};
    mx_errbuf eb = {{0}};
    mx_tiny_build(&file, &spec);
    reference ref = {.k = mx_kern_get(MX_CPU_PORTABLE), .act = act,
                     .file = (const uint8_t *)file.ptr};
    rig_check(mx_gguf_open_memory(&ref.g, (const uint8_t *)file.ptr, file.len, &eb), &eb, "file");
    rig r = rig_open_tiny(&spec, o);
    float *want = need(r.n_embd, sizeof *want), *got = need(r.n_embd, sizeof *got);
    for (int32_t token = 0; token < 5; token++) {
        mx_seq s;
        mx_seq_init(&s, r.kv, &r.root);
        rig_feed(&r, &s, &token, 1, got);
        reference_hidden(&ref, &spec, (uint32_t)token, want);
        assert_memory_equal(got, want, r.n_embd * sizeof *got);
        mx_seq_free(&s);
    }
    mx_free(want);
    mx_free(got);
    rig_close(&r);
    mx_gguf_close(ref.g);
    mx_buf_free(&file);
}

static void at_16_bits(void **state)
{
    (void)state;
    layer_is_what_is_written(MX_ACT_16, MX_Q8_0);
    layer_is_what_is_written(MX_ACT_16, MX_Q4_K);
}

static void at_8_bits(void **state)
{
    (void)state;
    layer_is_what_is_written(MX_ACT_8, MX_Q8_0);
    layer_is_what_is_written(MX_ACT_8, MX_Q4_K);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_16_bits),
        cmocka_unit_test(at_8_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
