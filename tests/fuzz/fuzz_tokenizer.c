// link: mx_text mx_base
/* SPDX-License-Identifier: MIT
 *
 * Two things by the first byte of the input: any text with any spans through a sound vocabulary
 * (its pieces must give the text back, ill-formed sequences replaced), or any lines as a
 * vocabulary.
 *
 *   text:       kind, n spans, 2 bytes for each border, text
 *   vocabulary: kind | 0x80, one token or merge a line: first byte type (or 'm'), then its text
 */
#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "dbrx",
                                   "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken",
                                   "gpt-4o", "default"};
enum { N_KINDS = MX_COUNT(pres) + 1, N_FIXED = 262, MAX_LINES = 300 };

static mx_vocab_desc empty_desc(unsigned kind)
{
    return (mx_vocab_desc){.model = kind < MX_COUNT(pres) ? "gpt2" : "llama",
                           .pre = kind < MX_COUNT(pres) ? pres[kind] : NULL,
                           .bos_id = -1, .eos_id = -1, .eot_id = -1, .eom_id = -1, .unk_id = -1,
                           .pad_id = -1, .add_bos = 0, .add_eos = 0, .add_space_prefix = 0};
}

/* A token for every byte, and a few on top; made once for each kind. */
static mx_tokenizer *sound(unsigned kind)
{
    static mx_tokenizer *made[N_KINDS];
    static char names[N_KINDS][256][8];
    mx_str tokens[N_FIXED];
    int32_t types[N_FIXED];
    const mx_str merges[] = {MX_STR("a b"), MX_STR("ab ab"), MX_STR("\xC4\xA0 a")};
    if (made[kind] != NULL) {
        return made[kind];
    }
    mx_vocab_desc d = empty_desc(kind);
    uint32_t next = 256;
    for (unsigned b = 0; b < 256; b++) {
        static const char hex[] = "0123456789ABCDEF";
        bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        char *name = names[kind][b];
        if (kind < MX_COUNT(pres)) {
            tokens[b] = (mx_str){name, mx_utf8_encode(own ? b : next++, name)};
            types[b] = MX_TOKEN_NORMAL;
        } else {
            memcpy(name, "<0x__>", 6);
            name[3] = hex[b / 16];
            name[4] = hex[b % 16];
            tokens[b] = (mx_str){name, 6};
            types[b] = MX_TOKEN_BYTE;
        }
    }
    const struct { mx_str text; int32_t type; } more[] = {
        {MX_STR("ab"), MX_TOKEN_NORMAL}, {MX_STR("abab"), MX_TOKEN_NORMAL},
        {kind < MX_COUNT(pres) ? MX_STR("\xC4\xA0" "a") : MX_STR("\xE2\x96\x81"), MX_TOKEN_NORMAL},
        {MX_STR("<|c|>"), MX_TOKEN_CONTROL}, {MX_STR("<|c|>d"), MX_TOKEN_CONTROL},
        {MX_STR("<u>"), MX_TOKEN_USER_DEFINED},
    };
    for (size_t i = 0; i < MX_COUNT(more); i++) {
        tokens[256 + i] = more[i].text;
        types[256 + i] = more[i].type;
    }
    d.n_tokens = N_FIXED;
    d.tokens = tokens;
    d.types = types;
    d.merges = merges;
    d.n_merges = MX_COUNT(merges);
    if (mx_tokenizer_create(&made[kind], &d, NULL) != MX_OK) {
        abort();
    }
    return made[kind];
}

/* What the pieces must add up to. */
static mx_buf wanted(unsigned kind, const char *text, size_t n)
{
    mx_buf clean = {0}, b = {0};
    mx_utf8_append_clean(&clean, text, n);
    if (kind < MX_COUNT(pres)) {
        return clean;
    }
    for (size_t i = 0; i < clean.len;) {
        bool blank = clean.len - i >= 3 && memcmp(clean.ptr + i, "\xE2\x96\x81", 3) == 0;
        mx_buf_char(&b, blank ? ' ' : clean.ptr[i]);
        i += blank ? 3 : 1;
    }
    mx_buf_free(&clean);
    return b;
}

static void check_text(unsigned kind, const uint8_t *data, size_t size)
{
    mx_span spans[8];
    size_t n_spans = size > 0 ? data[0] % 8 : 0, at = 1, last = 0;
    if (size < 1 + 4 * n_spans) {
        return;
    }
    for (size_t i = 0; i < n_spans; i++, at += 4) {
        spans[i].begin = last + mx_get_le16(data + at) % 64;
        spans[i].end = last = spans[i].begin + mx_get_le16(data + at + 2) % 64;
    }
    const char *text = (const char *)data + at;
    size_t n = size - at;
    mx_tokenizer *t = sound(kind);
    mx_tokens got = {0};
    if (mx_tokenizer_encode(t, text, n, spans, n_spans, true, &got) != MX_OK) {
        abort();
    }
    mx_buf want = wanted(kind, text, n);
    size_t have = 0;
    for (size_t i = 0; i < got.n; i++) {
        mx_str p = mx_tokenizer_piece(t, got.ids[i], true);
        if (p.len > want.len - have || memcmp(want.ptr + have, p.ptr, p.len) != 0 ||
            (n_spans == 0 && mx_tokenizer_type(t, got.ids[i]) == MX_TOKEN_CONTROL))
        {
            abort();
        }
        have += p.len;
    }
    if (have != want.len) {
        abort();
    }
    mx_buf_free(&want);
    mx_tokens_free(&got);
}

static void check_vocabulary(unsigned kind, const char *data, size_t size)
{
    mx_str tokens[MAX_LINES], merges[MAX_LINES];
    int32_t types[MAX_LINES];
    float scores[MAX_LINES];
    mx_vocab_desc d = empty_desc(kind);
    for (size_t at = 0; at < size && d.n_tokens < MAX_LINES && d.n_merges < MAX_LINES;) {
        const char *end = memchr(data + at, '\n', size - at);
        size_t n = end != NULL ? (size_t)(end - data) - at : size - at;
        if (n > 0 && data[at] == 'm') {
            merges[d.n_merges++] = (mx_str){data + at + 1, n - 1};
        } else if (n > 0) {
            scores[d.n_tokens] = (float)(n * 7 % 5);
            types[d.n_tokens] = data[at] % 8;
            tokens[d.n_tokens++] = (mx_str){data + at + 1, n - 1};
        }
        at += n + 1;
    }
    d.tokens = tokens;
    d.types = types;
    d.scores = scores;
    d.merges = merges;
    mx_tokenizer *t;
    mx_errbuf eb = {{0}};
    if (mx_tokenizer_create(&t, &d, &eb) != MX_OK) {
        if (eb.text[0] == '\0') {
            abort();
        }
        return;
    }
    mx_tokens got = {0};
    const mx_span all = {0, size};
    if (mx_tokenizer_encode(t, data, size, &all, 1, true, &got) != MX_OK) {
        abort();
    }
    for (size_t i = 0; i < got.n; i++) {
        if (got.ids[i] < 0 || (size_t)got.ids[i] >= d.n_tokens) {
            abort();
        }
        (void)mx_tokenizer_piece(t, got.ids[i], true);
    }
    mx_tokens_free(&got);
    mx_tokenizer_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    unsigned kind = (data[0] & 0x7Fu) % N_KINDS;
    if (data[0] & 0x80) {
        check_vocabulary(kind, (const char *)data + 1, size - 1);
    } else {
        check_text(kind, data + 1, size - 1);
    }
    return 0;
}
