/* SPDX-License-Identifier: MIT
 *
 * Reads the tokenizer.ggml.* keys into one block of memory. Arrays that belong together must have
 * the same length; ids must lie inside the vocabulary, because everything later indexes with them.
 */
#include "model/model_vocab.h"

#include "base/mem.h"

/* Ids are int32_t everywhere; the largest published vocabulary has about 2^18 tokens. */
enum { MAX_TOKENS = 1 << 24, MAX_MERGES = 1 << 25, MAX_NAME = 64 };

/* Everything that *out points to and that is not inside the file; freed as one block. */
typedef struct vocab_memory {
    char model[MAX_NAME];
    char pre[MAX_NAME];
    mx_str *tokens;
    mx_str *merges;
    int32_t *types;
    float *scores;
} vocab_memory;

static mx_err copy_name(const mx_gguf *g, const char *key, char out[MAX_NAME], mx_errbuf *eb)
{
    mx_str s;
    MX_TRY(mx_gguf_get_str(g, key, &s, eb));
    if (s.len >= MAX_NAME || memchr(s.ptr, '\0', s.len) != NULL) {
        return mx_fail(eb, MX_E_FORMAT, "key \"%s\" holds no usable name", key);
    }
    memcpy(out, s.ptr, s.len);
    out[s.len] = '\0';
    return MX_OK;
}

/* 0 when the key is absent. */
static mx_err count_of(const mx_gguf *g, const char *key, size_t max, size_t *n, mx_errbuf *eb)
{
    *n = 0;
    if (!mx_gguf_has(g, key)) {
        return MX_OK;
    }
    MX_TRY(mx_gguf_array_count(g, key, n, eb));
    if (*n > max) {
        return mx_fail(eb, MX_E_LIMIT, "key \"%s\" has %zu entries; at most %zu are read", key, *n,
                       max);
    }
    return MX_OK;
}

static mx_err allocate(size_t n_tokens, size_t n_merges, bool has_types, bool has_scores,
                       vocab_memory **out, mx_errbuf *eb)
{
    /* All counts are bounded above: the sum cannot overflow. */
    size_t bytes = sizeof(vocab_memory) + (n_tokens + n_merges) * sizeof(mx_str) +
                   n_tokens * (sizeof(int32_t) + sizeof(float));
    vocab_memory *m = mx_calloc(1, bytes);
    if (m == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for a vocabulary of %zu tokens",
                       n_tokens);
    }
    m->tokens = (mx_str *)(m + 1);
    m->merges = m->tokens + n_tokens;
    m->types = has_types ? (int32_t *)(m->merges + n_merges) : NULL;
    m->scores = has_scores ? (float *)((int32_t *)(m->merges + n_merges) + n_tokens) : NULL;
    *out = m;
    return MX_OK;
}

static mx_err read_arrays(const mx_gguf *g, mx_vocab_desc *d, vocab_memory *m, mx_errbuf *eb)
{
    MX_TRY(copy_name(g, "tokenizer.ggml.model", m->model, eb));
    d->model = m->model;
    if (mx_gguf_has(g, "tokenizer.ggml.pre")) {
        MX_TRY(copy_name(g, "tokenizer.ggml.pre", m->pre, eb));
        d->pre = m->pre;
    }
    MX_TRY(mx_gguf_array_strs(g, "tokenizer.ggml.tokens", d->n_tokens, m->tokens, eb));
    d->tokens = m->tokens;
    if (m->types != NULL) {
        MX_TRY(mx_gguf_array_i32s(g, "tokenizer.ggml.token_type", d->n_tokens, m->types, eb));
        d->types = m->types;
    }
    if (m->scores != NULL) {
        MX_TRY(mx_gguf_array_f32s(g, "tokenizer.ggml.scores", d->n_tokens, m->scores, eb));
        d->scores = m->scores;
    }
    if (d->n_merges > 0) {
        MX_TRY(mx_gguf_array_strs(g, "tokenizer.ggml.merges", d->n_merges, m->merges, eb));
        d->merges = m->merges;
    }
    return MX_OK;
}

static mx_err read_id(const mx_gguf *g, const char *key, size_t n_tokens, int32_t *id,
                      mx_errbuf *eb)
{
    int64_t v;
    *id = -1;
    if (!mx_gguf_has(g, key)) {
        return MX_OK;
    }
    MX_TRY(mx_gguf_get_i64(g, key, &v, eb));
    /* Some converters write -1 or 2^32-1 for "there is none". */
    if (v == -1 || v == (int64_t)UINT32_MAX) {
        return MX_OK;
    }
    if (v < 0 || (uint64_t)v >= n_tokens) {
        return mx_fail(eb, MX_E_FORMAT, "key \"%s\" is %lld, but there are %zu tokens", key,
                       (long long)v, n_tokens);
    }
    *id = (int32_t)v;
    return MX_OK;
}

static mx_err read_switch(const mx_gguf *g, const char *key, int *value, mx_errbuf *eb)
{
    bool v;
    *value = -1;
    if (!mx_gguf_has(g, key)) {
        return MX_OK;
    }
    MX_TRY(mx_gguf_get_bool(g, key, &v, eb));
    *value = v;
    return MX_OK;
}

static mx_err read_scalars(const mx_gguf *g, mx_vocab_desc *d, mx_errbuf *eb)
{
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &d->bos_id},
        {"tokenizer.ggml.eos_token_id", &d->eos_id},
        {"tokenizer.ggml.eot_token_id", &d->eot_id},
        {"tokenizer.ggml.eom_token_id", &d->eom_id},
        {"tokenizer.ggml.unknown_token_id", &d->unk_id},
        {"tokenizer.ggml.padding_token_id", &d->pad_id},
    };
    for (size_t i = 0; i < MX_COUNT(ids); i++) {
        MX_TRY(read_id(g, ids[i].key, d->n_tokens, ids[i].id, eb));
    }
    MX_TRY(read_switch(g, "tokenizer.ggml.add_bos_token", &d->add_bos, eb));
    MX_TRY(read_switch(g, "tokenizer.ggml.add_eos_token", &d->add_eos, eb));
    return read_switch(g, "tokenizer.ggml.add_space_prefix", &d->add_space_prefix, eb);
}

mx_err mx_vocab_from_gguf(const mx_gguf *g, mx_vocab_desc *out, void **memory_to_free,
                          mx_errbuf *eb)
{
    vocab_memory *m = NULL;
    *memory_to_free = NULL;
    *out = (mx_vocab_desc){0};
    if (!mx_gguf_has(g, "tokenizer.ggml.model") || !mx_gguf_has(g, "tokenizer.ggml.tokens")) {
        return mx_fail(eb, MX_E_NOT_FOUND, "the model file has no vocabulary (tokenizer.ggml.model "
                       "and tokenizer.ggml.tokens)");
    }
    MX_TRY(count_of(g, "tokenizer.ggml.tokens", MAX_TOKENS, &out->n_tokens, eb));
    MX_TRY(count_of(g, "tokenizer.ggml.merges", MAX_MERGES, &out->n_merges, eb));
    if (out->n_tokens == 0) {
        return mx_fail(eb, MX_E_FORMAT, "the vocabulary of the model file is empty");
    }
    MX_TRY(allocate(out->n_tokens, out->n_merges, mx_gguf_has(g, "tokenizer.ggml.token_type"),
                    mx_gguf_has(g, "tokenizer.ggml.scores"), &m, eb));
    mx_err e = read_arrays(g, out, m, eb);
    if (e == MX_OK) {
        e = read_scalars(g, out, eb);
    }
    if (e != MX_OK) {
        mx_free(m);
        return e;
    }
    *memory_to_free = m;
    return MX_OK;
}
