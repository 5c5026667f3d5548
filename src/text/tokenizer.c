/* SPDX-License-Identifier: MIT
 *
 * Creation of a tokeniser and the questions that are asked about it. The tables are made in
 * tokenizer_vocab.c, text becomes tokens in tokenizer_encode.c.
 */
#include "text/tokenizer_impl.h"

#include "base/mem.h"

static mx_err check_desc(const mx_vocab_desc *d, mx_errbuf *eb)
{
    const int32_t ids[] = {d->bos_id, d->eos_id, d->eot_id, d->eom_id, d->unk_id, d->pad_id};
    if (d->n_tokens == 0 || d->n_tokens > 1u << 30) {
        return mx_fail(eb, MX_E_FORMAT, "a vocabulary of %zu tokens cannot be used", d->n_tokens);
    }
    for (size_t i = 0; i < MX_COUNT(ids); i++) {
        if (ids[i] < -1 || (ids[i] >= 0 && (size_t)ids[i] >= d->n_tokens)) {
            return mx_fail(eb, MX_E_FORMAT, "the vocabulary names token %d as special, but has %zu "
                           "tokens", ids[i], d->n_tokens);
        }
    }
    return MX_OK;
}

static mx_err fill(mx_tokenizer *t, const mx_vocab_desc *d, mx_errbuf *eb)
{
    MX_TRY(check_desc(d, eb));
    if (d->model != NULL && strcmp(d->model, "gpt2") == 0) {
        t->model = TOK_BPE;
        MX_TRY(tok_pre_create(&t->pre, d->pre, eb));
    } else if (d->model != NULL && strcmp(d->model, "llama") == 0) {
        t->model = TOK_SPM;
    } else {
        return mx_fail(eb, MX_E_UNSUPPORTED, "the tokeniser model \"%.60s\" is not supported; "
                       "supported are gpt2 (byte-level BPE) and llama (SPM)",
                       d->model != NULL ? d->model : "");
    }
    MX_TRY(tok_vocab_fill(t, d, eb));
    MX_TRY(tok_merges_fill(t, d, eb));
    /* What files of the SPM kind leave out is 1, 2 and 0 by convention. */
    bool is_spm = t->model == TOK_SPM;
    t->bos_id = d->bos_id < 0 && is_spm && t->n_tokens > 2 ? 1 : d->bos_id;
    t->eos_id = d->eos_id < 0 && is_spm && t->n_tokens > 2 ? 2 : d->eos_id;
    t->unk_id = d->unk_id < 0 && is_spm ? 0 : d->unk_id;
    if (t->eos_id >= 0) {
        t->is_eog[t->eos_id] = 1;
    }
    bool default_bos = is_spm || t->pre.adds_bos;
    t->adds_bos = t->bos_id >= 0 && (d->add_bos >= 0 ? d->add_bos != 0 : default_bos);
    t->adds_eos = t->eos_id >= 0 && d->add_eos > 0;
    t->adds_space = is_spm && d->add_space_prefix != 0;
    return MX_OK;
}

mx_err mx_tokenizer_create(mx_tokenizer **out, const mx_vocab_desc *desc, mx_errbuf *eb)
{
    mx_errbuf detail = {{0}};
    *out = NULL;
    mx_tokenizer *t = mx_calloc(1, sizeof *t);
    mx_err e = t != NULL ? fill(t, desc, &detail) : MX_E_NOMEM;
    if (e == MX_OK) {
        *out = t;
        return MX_OK;
    }
    mx_tokenizer_destroy(t);
    if (detail.text[0] == '\0') {
        return mx_fail(eb, e, "not enough memory for a tokeniser of %zu tokens", desc->n_tokens);
    }
    return mx_fail(eb, e, "%s", detail.text);
}

void mx_tokenizer_destroy(mx_tokenizer *t)
{
    if (t == NULL) {
        return;
    }
    tok_pre_destroy(&t->pre);
    mx_free(t->arena);
    mx_free(t->text_at);
    mx_free(t->piece_at);
    mx_free(t->types);
    mx_free(t->is_eog);
    mx_free(t->is_said);
    mx_free(t->neighbours);
    mx_free(t->words.slots);
    mx_free(t->pairs);
    mx_free(t->merged);
    mx_free(t->priority);
    mx_free(t->specials);
    mx_free(t);
}

mx_err mx_tokens_push(mx_tokens *t, int32_t id)
{
    if (t->n == t->cap && !mx_grow((void **)&t->ids, &t->cap, t->n + 1, sizeof *t->ids)) {
        return MX_E_NOMEM;
    }
    t->ids[t->n++] = id;
    return MX_OK;
}

void mx_tokens_free(mx_tokens *t)
{
    mx_free(t->ids);
    *t = (mx_tokens){0};
}

static bool is_id(const mx_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_tokens;
}

mx_str mx_tokenizer_piece(const mx_tokenizer *t, int32_t id, bool show_control)
{
    if (!is_id(t, id)) {
        return (mx_str){"", 0};
    }
    bool is_hidden = (t->types[id] == MX_TOKEN_CONTROL && !t->is_said[id]) ||
                     t->types[id] == MX_TOKEN_UNKNOWN;
    return is_hidden && !show_control ? (mx_str){"", 0} : tok_piece(t, (uint32_t)id);
}

mx_str mx_tokenizer_text(const mx_tokenizer *t, int32_t id)
{
    return is_id(t, id) ? tok_text(t, (uint32_t)id) : (mx_str){"", 0};
}

size_t mx_tokenizer_size(const mx_tokenizer *t)
{
    return t->n_tokens;
}

mx_token_type mx_tokenizer_type(const mx_tokenizer *t, int32_t id)
{
    return is_id(t, id) ? (mx_token_type)t->types[id] : MX_TOKEN_UNKNOWN;
}

bool mx_tokenizer_is_eog(const mx_tokenizer *t, int32_t id)
{
    return is_id(t, id) && t->is_eog[id] != 0;
}

int32_t mx_tokenizer_bos(const mx_tokenizer *t)
{
    return t->bos_id;
}

int32_t mx_tokenizer_eos(const mx_tokenizer *t)
{
    return t->eos_id;
}

bool mx_tokenizer_adds_bos(const mx_tokenizer *t)
{
    return t->adds_bos;
}

bool mx_tokenizer_adds_eos(const mx_tokenizer *t)
{
    return t->adds_eos;
}
