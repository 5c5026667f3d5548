/* SPDX-License-Identifier: MIT
 *
 * Text to tokens: ill-formed sequences are replaced, special tokens are cut out, and the fragments
 * between them are split and merged.
 *
 * Special tokens are found in one pass over the text. They are sorted by their text, and those that
 * agree with the text so far are a range of that list, which each further byte narrows; of all that
 * match and are allowed at a position the longest wins. User-defined tokens are allowed everywhere,
 * control tokens only wholly inside one span of markup.
 */
#include "text/tokenizer_impl.h"

#include "base/mem.h"
#include "base/utf8.h"

typedef struct encode_job {
    const mx_tokenizer *t;
    mx_tokens *out;
    tok_scratch scratch;
    void *match;        /* for the pre-tokeniser */
    mx_buf fragment;    /* SPM: a fragment with its blank in front and U+2581 replaced */
    bool goes_on;       /* the next fragment goes on in the middle of a text */
} encode_job;

/* ---- clean text ------------------------------------------------------------------------------ */

/* Text and spans as they are used: the caller's, or copies with U+FFFD for what was ill-formed. */
typedef struct clean_text {
    mx_str text;
    const mx_span *spans;
    size_t n_spans;
    mx_buf copy;
    mx_span *span_copy;
} clean_text;

/* A border inside a sequence moves in front of it. Borders come in ascending order. */
static mx_err clean(clean_text *c, const char *text, size_t len, const mx_span *spans,
                    size_t n_spans)
{
    *c = (clean_text){.text = {text, len}, .spans = spans, .n_spans = n_spans};
    if (mx_utf8_valid(text, len)) {
        return MX_OK;
    }
    c->span_copy = mx_calloc(n_spans, sizeof *c->span_copy);
    if (c->span_copy == NULL) {
        return MX_E_NOMEM;
    }
    size_t border = 0; /* 2k: begin of span k; 2k + 1: its end */
    for (size_t at = 0; at <= len;) {
        uint32_t cp;
        char enc[4];
        size_t step = at < len ? mx_utf8_decode(text + at, len - at, &cp) : 1;
        for (; border < 2 * n_spans; border++) {
            const mx_span *s = &spans[border / 2];
            size_t old = border % 2 == 0 ? s->begin : s->end;
            if (old >= at + step && at < len) {
                break;
            }
            *(border % 2 == 0 ? &c->span_copy[border / 2].begin : &c->span_copy[border / 2].end) =
                c->copy.len;
        }
        if (at < len) {
            mx_buf_append(&c->copy, enc, mx_utf8_encode(cp, enc));
        }
        at += step;
    }
    c->text = mx_buf_view(&c->copy);
    c->spans = c->span_copy;
    return c->copy.failed ? MX_E_NOMEM : MX_OK;
}

static void clean_free(clean_text *c)
{
    mx_buf_free(&c->copy);
    mx_free(c->span_copy);
}

/* ---- fragments ------------------------------------------------------------------------------- */

static mx_err on_word(void *arg, const char *word, size_t n)
{
    encode_job *job = arg;
    const mx_tokenizer *t = job->t;
    if (n == 1 && t->byte_id[(uint8_t)word[0]] != TOK_NONE) {
        return mx_tokens_push(job->out, (int32_t)t->byte_id[(uint8_t)word[0]]);
    }
    if (t->pre.ignore_merges) {
        uint32_t id = tok_find_word(t, word, n);
        if (id != TOK_NONE) {
            return mx_tokens_push(job->out, (int32_t)id);
        }
    }
    return tok_merge(t, &job->scratch, word, n, job->out);
}

/* SPM: every fragment follows a special token or begins the text, so each gets the blank; only the
 * rest of a text may go on behind other text. */
static mx_err encode_spm(encode_job *job, mx_str f)
{
    mx_buf *b = &job->fragment;
    mx_buf_clear(b);
    if (job->t->adds_space && !job->goes_on) {
        mx_buf_char(b, ' ');
    }
    for (size_t at = 0; at < f.len;) {
        const char *hit = memmem(f.ptr + at, f.len - at, "\xE2\x96\x81", 3);
        size_t n = hit != NULL ? (size_t)(hit - f.ptr) - at : f.len - at;
        mx_buf_append(b, f.ptr + at, n);
        at += n;
        if (hit != NULL) {
            mx_buf_char(b, ' ');
            at += 3;
        }
    }
    return b->failed ? MX_E_NOMEM : tok_merge(job->t, &job->scratch, b->ptr, b->len, job->out);
}

static mx_err encode_fragment(encode_job *job, mx_str f)
{
    if (f.len == 0) {
        return MX_OK;
    }
    if (job->t->model == TOK_SPM) {
        return encode_spm(job, f);
    }
    return tok_pre_split(&job->t->pre, job->match, f.ptr, f.len, on_word, job);
}

/* ---- special tokens -------------------------------------------------------------------------- */

/* The first special in [lo, hi) whose byte number `depth` is at least `byte`; all of them agree in
 * the bytes before, and those that end there stand first. */
static uint32_t lower_bound(const mx_tokenizer *t, uint32_t lo, uint32_t hi, size_t depth,
                            unsigned byte)
{
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        mx_str s = tok_special_text(t, t->specials[mid]);
        if (s.len <= depth || (uint8_t)s.ptr[depth] < byte) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest special token at text[at..], of which control tokens must end by markup_end. Returns
 * its id or TOK_NONE. */
static uint32_t find_special(const mx_tokenizer *t, mx_str text, size_t at, size_t markup_end)
{
    unsigned byte = (uint8_t)text.ptr[at];
    uint32_t lo = t->special_at[byte], hi = t->special_at[byte + 1];
    uint32_t best = TOK_NONE;
    for (size_t depth = 1; lo < hi; depth++) {
        /* Specials of exactly `depth` bytes: several when texts are doubled. */
        while (lo < hi && tok_special_text(t, t->specials[lo]).len == depth) {
            uint32_t id = t->specials[lo++];
            if (t->types[id] == MX_TOKEN_USER_DEFINED || at + depth <= markup_end) {
                best = id;
            }
        }
        if (at + depth >= text.len) {
            break;
        }
        byte = (uint8_t)text.ptr[at + depth];
        lo = lower_bound(t, lo, hi, depth, byte);
        hi = lower_bound(t, lo, hi, depth, byte + 1);
    }
    return best;
}

/* The spans of a text, walked from left to right; spans that touch count as one. */
typedef struct span_walk {
    const mx_span *spans;
    size_t n, next;
    mx_span now; /* the last span that begins at or before the position asked for */
} span_walk;

/* The end of the span that holds position `at`, or 0. */
static size_t markup_end_at(span_walk *w, size_t at)
{
    while (w->next < w->n && w->spans[w->next].begin <= at) {
        w->now = w->spans[w->next++];
        while (w->next < w->n && w->spans[w->next].begin <= w->now.end) {
            w->now.end = mx_max_size(w->now.end, w->spans[w->next++].end);
        }
    }
    return at >= w->now.begin && at < w->now.end ? w->now.end : 0;
}

/* The first special token at or behind *at, which moves there; TOK_NONE: there is none. */
static uint32_t next_special(const mx_tokenizer *t, mx_str text, span_walk *walk, size_t *at)
{
    for (; *at < text.len; (*at)++) {
        unsigned byte = (uint8_t)text.ptr[*at];
        if (t->special_at[byte] != t->special_at[byte + 1]) {
            uint32_t id = find_special(t, text, *at, markup_end_at(walk, *at));
            if (id != TOK_NONE) {
                return id;
            }
        }
    }
    return TOK_NONE;
}

static mx_err encode_clean(encode_job *job, const clean_text *c)
{
    const mx_tokenizer *t = job->t;
    span_walk walk = {.spans = c->spans, .n = c->n_spans};
    size_t begin = 0, at = 0;
    uint32_t id;
    while ((id = next_special(t, c->text, &walk, &at)) != TOK_NONE) {
        MX_TRY(encode_fragment(job, (mx_str){c->text.ptr + begin, at - begin}));
        MX_TRY(mx_tokens_push(job->out, (int32_t)id));
        job->goes_on = false;
        at += tok_special_text(t, id).len;
        begin = at;
    }
    return encode_fragment(job, (mx_str){c->text.ptr + begin, c->text.len - begin});
}

/* ---- all of it ------------------------------------------------------------------------------- */

static mx_err encode_text(encode_job *job, const char *text, size_t len, const mx_span *markup,
                          size_t n_spans)
{
    clean_text c;
    mx_err e = clean(&c, text, len, markup, n_spans);
    if (e == MX_OK && job->t->model == TOK_BPE) {
        job->match = tok_pre_match_create();
        e = job->match != NULL ? MX_OK : MX_E_NOMEM;
    }
    if (e == MX_OK) {
        e = encode_clean(job, &c);
    }
    tok_pre_match_destroy(job->match);
    clean_free(&c);
    return e;
}

/* A template that writes BOS or EOS itself must not give two. */
static mx_err add_ends(const mx_tokenizer *t, mx_tokens *out, size_t first)
{
    if (t->adds_bos && !(out->n > first && out->ids[first] == t->bos_id)) {
        MX_TRY(mx_tokens_push(out, 0));
        memmove(out->ids + first + 1, out->ids + first, (out->n - 1 - first) * sizeof *out->ids);
        out->ids[first] = t->bos_id;
    }
    if (t->adds_eos && !(out->n > first && out->ids[out->n - 1] == t->eos_id)) {
        MX_TRY(mx_tokens_push(out, t->eos_id));
    }
    return MX_OK;
}

mx_err mx_tokenizer_encode(const mx_tokenizer *t, const char *text, size_t len,
                           const mx_span *markup, size_t n_spans, bool add_special, mx_tokens *out)
{
    encode_job job = {.t = t, .out = out};
    size_t first = out->n;
    tok_scratch_init(&job.scratch);
    mx_err e = encode_text(&job, text, len, markup, n_spans);
    tok_scratch_free(&job.scratch);
    mx_buf_free(&job.fragment);
    if (e == MX_OK && add_special) {
        e = add_ends(t, out, first);
    }
    if (e != MX_OK) {
        out->n = first;
    }
    return e;
}

/* The spans of text[at..], counted from there. */
static mx_span *spans_behind(const mx_span *spans, size_t n, size_t at, size_t *n_out)
{
    mx_span *rest = mx_calloc(n, sizeof *rest);
    *n_out = 0;
    for (size_t i = 0; rest != NULL && i < n; i++) {
        if (spans[i].end > at) {
            rest[(*n_out)++] = (mx_span){mx_max_size(spans[i].begin, at) - at, spans[i].end - at};
        }
    }
    return rest;
}

mx_err mx_tokenizer_encode_rest(const mx_tokenizer *t, const char *text, size_t len,
                                const mx_span *markup, size_t n_spans, size_t at, mx_tokens *out)
{
    size_t first = out->n;
    size_t n_rest;
    mx_span *rest = spans_behind(markup, n_spans, at, &n_rest);
    if (rest == NULL) {
        return MX_E_NOMEM;
    }
    mx_token_type before = first > 0 ? mx_tokenizer_type(t, out->ids[first - 1])
                                     : MX_TOKEN_CONTROL;
    encode_job job = {
        .t = t,
        .out = out,
        .goes_on = before != MX_TOKEN_CONTROL && before != MX_TOKEN_USER_DEFINED &&
                   before != MX_TOKEN_UNKNOWN,
    };
    tok_scratch_init(&job.scratch);
    mx_err e = encode_text(&job, text + at, len - at, rest, n_rest);
    tok_scratch_free(&job.scratch);
    mx_buf_free(&job.fragment);
    mx_free(rest);
    if (e != MX_OK) {
        out->n = first;
    }
    return e;
}

mx_err mx_tokenizer_find_controls(const mx_tokenizer *t, mx_str text, const mx_span *markup,
                                  size_t n_spans, mx_span **out, size_t *n_out)
{
    span_walk walk = {.spans = markup, .n = n_spans};
    void *list = NULL;
    size_t n = 0, cap = 0, at = 0;
    uint32_t id;
    while ((id = next_special(t, text, &walk, &at)) != TOK_NONE) {
        size_t end = at + tok_special_text(t, id).len;
        if (t->types[id] != MX_TOKEN_USER_DEFINED) {
            if (!mx_grow(&list, &cap, n + 1, sizeof(mx_span))) {
                mx_free(list);
                return MX_E_NOMEM;
            }
            ((mx_span *)list)[n++] = (mx_span){at, end};
        }
        at = end;
    }
    *out = list;
    *n_out = n;
    return MX_OK;
}
