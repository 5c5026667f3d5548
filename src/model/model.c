/* SPDX-License-Identifier: MIT
 *
 * A model from file to ready: map, read the keys, hash (or remember the hash), repack, unmap. The
 * forward pass is model_forward.c.
 */
#include "base/log.h"
#include "base/mem.h"
#include "model/model_fingerprint.h"
#include "model/model_internal.h"
#include "model/model_vocab.h"

#include <stdio.h>

static void copy_text(char *out, size_t cap, mx_str s)
{
    size_t n = mx_min_size(s.len, cap - 1);
    memcpy(out, s.ptr, n);
    out[n] = '\0';
}

static mx_err load_vocabulary(mx_model *m, const mx_gguf *g, mx_errbuf *eb)
{
    mx_vocab_desc desc;
    void *memory = NULL;
    MX_TRY(mx_vocab_from_gguf(g, &desc, &memory, eb));
    mx_err e = mx_tokenizer_create(&m->tokenizer, &desc, eb);
    mx_free(memory);
    MX_TRY(e);
    m->bp.n_vocab = (uint32_t)mx_tokenizer_size(m->tokenizer);

    mx_str template = {"", 0};
    if (mx_gguf_has(g, "tokenizer.chat_template")) {
        MX_TRY(mx_gguf_get_str(g, "tokenizer.chat_template", &template, eb));
    }
    m->chat_template = mx_strndup(template.ptr, template.len);
    m->chat_template_len = template.len;
    return m->chat_template != NULL ? MX_OK
                                    : mx_fail(eb, MX_E_NOMEM, "no memory for the chat template");
}

static mx_err part_fingerprint(mx_model *m, const mx_gguf *g, size_t part, const char *dir,
                               mx_hash256 *out, mx_errbuf *eb)
{
    const mx_file_stamp stamp = mx_file_stamp_of(g, part);
    if (dir != NULL && mx_fingerprint_cached(dir, &stamp, out)) {
        return MX_OK;
    }
    MX_TRY(mx_fingerprint_compute(g, part, m->pool, out, eb));
    mx_errbuf why;
    if (dir != NULL && mx_fingerprint_remember(dir, &stamp, out, &why) != MX_OK) {
        mx_log(MX_LOG_WARN, "fingerprint not stored, the next start hashes the model again: %s",
               why.text);
    }
    return MX_OK;
}

static mx_err load_fingerprint(mx_model *m, const mx_gguf *g, const char *dir, mx_errbuf *eb)
{
    const size_t n = mx_gguf_n_parts(g);
    mx_hash256 *parts = mx_calloc(n, sizeof *parts);
    mx_err e = parts != NULL ? MX_OK : mx_fail(eb, MX_E_NOMEM, "no memory for the model");
    for (size_t i = 0; i < n && e == MX_OK; i++) {
        e = part_fingerprint(m, g, i, dir, &parts[i], eb);
    }
    if (e == MX_OK) {
        m->fingerprint = mx_fingerprint_join(parts, n);
    }
    mx_free(parts);
    return e;
}

static void init_worker(void *arg, unsigned worker)
{
    (void)arg;
    (void)worker;
    mx_kern_thread_init();
}

static void fill_config(mx_model *m, const mx_gguf *g)
{
    mx_model_config *c = &m->config;
    const mx_blueprint *bp = &m->bp;
    mx_str name = {"", 0};
    copy_text(c->architecture, sizeof c->architecture, mx_str_of(bp->arch->name));
    (void)mx_gguf_get_str(g, "general.name", &name, NULL);
    copy_text(c->name, sizeof c->name, name);
    c->n_layers = bp->n_layers;
    c->n_gdn_layers = mx_n_gdn_layers(bp);
    c->n_mtp_layers = bp->n_mtp_layers;
    c->n_embd = bp->n_embd;
    c->n_heads = bp->n_heads;
    c->n_kv_heads = bp->n_kv_heads;
    c->head_dim = bp->head_dim;
    c->n_ff = bp->n_ff;
    c->n_experts = bp->n_experts;
    c->n_experts_used = bp->n_experts_used;
    c->n_vocab = bp->n_vocab;
    c->n_ctx_train = bp->n_ctx_train;
    c->n_ctx = bp->n_ctx;
    c->rms_eps = bp->rms_eps;
    c->n_params = m->w.n_params;
    c->n_mtp_params = m->w.n_mtp_params;
    c->file_bytes = 0;
    for (size_t i = 0; i < mx_gguf_n_parts(g); i++) {
        c->file_bytes += mx_gguf_part_at(g, i).n_bytes;
    }
    c->file_time_s = mx_gguf_part_at(g, 0).mtime_ns / 1000000000;
}

/* Kernels that came later have an id of their own: a model that does without them keeps its
 * pages. */
static mx_hash256 numerics_of(const mx_model *m)
{
    mx_hash256 ids[3] = {m->act_type == MX_ACT_8 ? mx_kern_numerics_id_8(m->kern)
                                                 : mx_kern_numerics_id(m->kern)};
    size_t n = 1;
    if (mx_needs_extras(&m->bp)) {
        ids[n++] = mx_kern_extras_id(m->kern);
    }
    if (mx_needs_gdn(&m->bp)) {
        ids[n++] = mx_kern_gdn_id(m->kern);
    }
    return n == 1 ? ids[0] : mx_sha256_of(ids, n * sizeof *ids);
}

static mx_err load_from(mx_model *m, const mx_gguf *g, const mx_model_options *opt,
                        mx_errbuf *eb)
{
    MX_TRY(mx_blueprint_read(&m->bp, g, opt->n_ctx, eb));
    MX_TRY(load_vocabulary(m, g, eb));
    m->kv_shape = (mx_kv_shape){.n_layers = m->bp.n_layers - mx_n_gdn_layers(&m->bp),
                                .n_kv_heads = m->bp.n_kv_heads,
                                .head_dim = m->bp.head_dim,
                                .type = opt->kv_type,
                                .state_bytes = mx_n_gdn_layers(&m->bp) *
                                               mx_gdn_state_floats(&m->bp) * sizeof(float)};
    m->kv_shape.n_local = m->kv_shape.n_layers - mx_n_global_layers(&m->bp);
    m->kv_shape.window = m->kv_shape.n_local > 0 ? m->bp.window : 0;
    if (mx_kv_page_bytes(&m->kv_shape) == 0) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "%u layers with %u key-value heads of %u dimensions "
                       "make no KV page, or the %zu bytes beside them no state",
                       m->kv_shape.n_layers, m->bp.n_kv_heads, m->bp.head_dim,
                       m->kv_shape.state_bytes);
    }
    if (m->pool != NULL) {
        MX_TRY(load_fingerprint(m, g, opt->fingerprint_cache_dir, eb));
        m->has_root_key = opt->root_key != NULL;
        m->root_key = opt->root_key != NULL ? *opt->root_key : m->root_key;
    }
    MX_TRY(mx_weights_load(&m->w, &m->bp, g, m->pool, eb));
    if (m->pool != NULL) {
        MX_TRY(mx_state_create(m, eb));
    }
    m->numerics_id = numerics_of(m);
    fill_config(m, g);
    return MX_OK;
}

mx_err mx_model_load(mx_model **out, const mx_model_options *opt, mx_pool *pool, mx_errbuf *eb)
{
    *out = NULL;
    if (opt->max_batch_rows == 0 || opt->max_logit_rows == 0) {
        return mx_fail(eb, MX_E_INVALID, "a model needs room for at least one row per batch");
    }
    mx_gguf *g = NULL;
    MX_TRY(mx_gguf_open(&g, opt->path, eb));
    mx_model *m = mx_calloc(1, sizeof *m);
    if (m == NULL) {
        mx_gguf_close(g);
        return mx_fail(eb, MX_E_NOMEM, "no memory for the model");
    }
    m->pool = pool;
    m->n_workers = pool != NULL ? mx_pool_size(pool) : opt->n_workers;
    m->kern = mx_kern_get(opt->cpu_level);
    m->act_type = opt->act_type;
    m->max_batch_rows = opt->max_batch_rows;
    m->max_logit_rows = opt->max_logit_rows;
    if (pool != NULL) {
        mx_pool_run_each(pool, init_worker, NULL);
    }
    mx_err e = load_from(m, g, opt, eb);
    mx_gguf_close(g);
    if (e != MX_OK) {
        mx_model_destroy(m);
        return e;
    }
    *out = m;
    return MX_OK;
}

void mx_model_destroy(mx_model *m)
{
    if (m == NULL) {
        return;
    }
    mx_state_free(&m->s);
    mx_weights_free(&m->w);
    mx_blueprint_free(&m->bp);
    mx_tokenizer_destroy(m->tokenizer);
    mx_free(m->chat_template);
    mx_free(m);
}

/* ---- root ------------------------------------------------------------------------------------ */

/* Rows of the RoPE table that go into the root: they show a changed sine as well as a changed key,
 * and do not depend on the context length in force. */
enum { ROOT_ROPE_ROWS = 16, ROOT_FIXED_BYTES = 512, LAYOUT_VERSION = 1, MAX_N_ROT = 1024 };
/* Of what mx_gdn_state_floats describes. */
enum { STATE_LAYOUT_VERSION = 1, WINDOW_LAYOUT_VERSION = 1 };

static void put32(uint8_t **at, uint32_t v)
{
    mx_put_le32(*at, v);
    *at += 4;
}

static void put_f64(uint8_t **at, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    mx_put_le64(*at, bits);
    *at += 8;
}

static void put_bytes(uint8_t **at, const void *bytes, size_t n)
{
    memcpy(*at, bytes, n);
    *at += n;
}

/* The effective rotation: parameters, divisors, and what the code makes of them. */
static mx_hash256 hash_rope(const mx_rope_params *p)
{
    float rows[ROOT_ROPE_ROWS * MAX_N_ROT];
    uint8_t bytes[128 + MAX_N_ROT / 2 * 4 + ROOT_ROPE_ROWS * MAX_N_ROT * 4];
    uint8_t *at = bytes;
    put32(&at, p->pairing == MX_ROPE_NEOX ? 1 : 0);
    put32(&at, p->n_rot);
    put_f64(&at, p->freq_base);
    put_f64(&at, p->scale_factor);
    put32(&at, p->is_yarn);
    if (p->is_yarn) {
        put_f64(&at, p->yarn_orig_ctx);
        put_f64(&at, p->yarn_beta_fast);
        put_f64(&at, p->yarn_beta_slow);
        put_f64(&at, p->yarn_attn_factor);
    }
    put32(&at, p->factors != NULL ? p->n_rot / 2 : 0);
    if (p->factors != NULL) {
        put_bytes(&at, p->factors, p->n_rot / 2 * sizeof(float));
    }
    mx_rope_table(p, ROOT_ROPE_ROWS, rows);
    put_bytes(&at, rows, ROOT_ROPE_ROWS * p->n_rot * sizeof(float));
    return mx_sha256_of(bytes, (size_t)(at - bytes));
}

/* Part of every root: frozen. */
static uint32_t root_kv_type(mx_kv_type type)
{
    return type == MX_KV_F16 ? 1 : type == MX_KV_F32 ? 2 : 3;
}

static mx_hash256 keyed_root(const mx_hash256 *root, const mx_hash256 *key)
{
    static const char tag[16] = "mtplx keyed";
    uint8_t bytes[sizeof tag + 32 + 32];
    memcpy(bytes, tag, sizeof tag);
    memcpy(bytes + 16, root->b, 32);
    memcpy(bytes + 48, key->b, 32);
    return mx_sha256_of(bytes, sizeof bytes);
}

static mx_hash256 unkeyed_root(const mx_model *m, const mx_hash256 *salt)
{
    static const char tag[16] = "mtplx root v1";
    const mx_hash256 none = {{0}};
    uint8_t bytes[ROOT_FIXED_BYTES];
    uint8_t *at = bytes;
    mx_hash256 rope = hash_rope(&m->bp.rope);
    put_bytes(&at, tag, sizeof tag);
    put_bytes(&at, m->fingerprint.b, 32);
    put_bytes(&at, m->numerics_id.b, 32);
    put32(&at, MX_PAGE_TOKENS);
    put32(&at, LAYOUT_VERSION);
    put32(&at, root_kv_type(m->kv_shape.type));
    put32(&at, m->kv_shape.n_layers);
    put32(&at, m->kv_shape.n_kv_heads);
    put32(&at, m->kv_shape.head_dim);
    put_bytes(&at, rope.b, 32);
    put32(&at, m->bp.window);
    put32(&at, MX_ATTN_SPAN);
    put32(&at, 0); /* number of adapters */
    put32(&at, salt != NULL);
    put_bytes(&at, (salt != NULL ? salt : &none)->b, 32);
    if (m->bp.local_period != 0) {
        mx_hash256 local = hash_rope(&m->bp.rope_local);
        put32(&at, m->bp.local_period);
        put_bytes(&at, local.b, 32);
    }
    if (m->bp.attn_period != 0) {
        put32(&at, STATE_LAYOUT_VERSION);
        put32(&at, m->bp.attn_period);
        put32(&at, m->bp.gdn.n_k_heads);
        put32(&at, m->bp.gdn.n_v_heads);
        put32(&at, m->bp.gdn.head_dim);
        put32(&at, m->bp.gdn.n_taps);
    }
    if (m->kv_shape.n_local != 0) { /* these layers come last in a page */
        put32(&at, WINDOW_LAYOUT_VERSION);
        put32(&at, m->kv_shape.n_local);
    }
    return mx_sha256_of(bytes, (size_t)(at - bytes));
}

mx_hash256 mx_model_root(const mx_model *m, const mx_hash256 *salt)
{
    mx_hash256 root = unkeyed_root(m, salt);
    return m->has_root_key ? keyed_root(&root, &m->root_key) : root;
}

mx_hash256 mx_model_bare_root(const mx_model *m)
{
    return unkeyed_root(m, NULL);
}

/* ---- looking in ------------------------------------------------------------------------------ */

const mx_model_config *mx_model_get_config(const mx_model *m)
{
    return &m->config;
}

mx_model_memory mx_model_get_memory(const mx_model *m)
{
    mx_model_memory out = {.weight_bytes = m->w.arena_bytes,
                           .page_bytes = mx_kv_page_bytes(&m->kv_shape)};
    mx_state_measure(m, &out.work_bytes, &out.table_bytes);
    return out;
}

const mx_tokenizer *mx_model_tokenizer(const mx_model *m)
{
    return m->tokenizer;
}

/* Getting memory from the system is most of what a first prompt costs more than a later one: up to 2 ms
 * per MiB on a virtual machine whose host gives unused memory away, 2026-11-30. An idle server can do it
 * before, but holds that memory. A sixteenth of the weights leaves the bounds on peak and resident memory
 * (1.25 and 1.1 of the file) alone: panels take up to 1.08 of it. */
enum { AHEAD_SHARE = 16, AHEAD_MAX_BYTES = 32 << 20 };

size_t mx_model_ahead_bytes(const mx_model *m, size_t n_tokens)
{
    const size_t n_pages = (n_tokens + MX_PAGE_TOKENS - 1) / MX_PAGE_TOKENS;
    const size_t most = mx_min_size(m->w.arena_bytes / AHEAD_SHARE, AHEAD_MAX_BYTES);
    return mx_min_size(n_pages * mx_kv_payload_bytes(&m->kv_shape), most);
}

mx_str mx_model_chat_template(const mx_model *m)
{
    return (mx_str){m->chat_template, m->chat_template_len};
}

const mx_kv_shape *mx_model_kv_shape(const mx_model *m)
{
    return &m->kv_shape;
}

const mx_kern *mx_model_kern(const mx_model *m)
{
    return m->kern;
}

mx_pool *mx_model_workers(const mx_model *m)
{
    return m->pool;
}

mx_act_type mx_model_act_type(const mx_model *m)
{
    return m->act_type;
}

const mx_hash256 *mx_model_fingerprint(const mx_model *m)
{
    return &m->fingerprint;
}

const mx_hash256 *mx_model_numerics_id(const mx_model *m)
{
    return &m->numerics_id;
}
