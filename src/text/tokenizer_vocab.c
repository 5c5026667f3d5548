/* SPDX-License-Identifier: MIT
 *
 * Turns the description of a vocabulary into tables: texts and pieces, types, the hash of words,
 * the pairs that may merge, the sorted list of special tokens.
 *
 * In a byte-level vocabulary every token is written in a printable alphabet, one character a byte.
 * All tables here hold plain bytes, so that nothing has to be translated while text is encoded.
 *
 * What plain text can become is decided once, here: control and unknown tokens are not in the hash
 * of words and no merge makes them, so a user's text cannot turn into one by any route.
 */
#include "text/tokenizer_impl.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdlib.h>

/* ---- the printable alphabet ------------------------------------------------------------------ */

/* The byte that a character stands for, or -1. The 68 bytes that are not printable as they are
 * (0-32, 127-160, 173) have U+0100, U+0101, ... in ascending order. */
static int byte_of(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 255 && cp != 173)) {
        return (int)cp;
    }
    if (cp < 256 || cp > 256 + 67) {
        return -1;
    }
    int k = (int)cp - 256;
    if (k <= 32) {
        return k;
    }
    return k <= 66 ? 127 + (k - 33) : 173;
}

size_t tok_unprintable(mx_str s, char *out, bool *is_pure)
{
    size_t n = 0;
    *is_pure = true;
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        size_t len = mx_utf8_decode(s.ptr + i, s.len - i, &cp);
        int byte = byte_of(cp);
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else {
            *is_pure = false;
            memcpy(out + n, s.ptr + i, len);
            n += len;
        }
        i += len;
    }
    return n;
}

/* ---- the hash of words ----------------------------------------------------------------------- */

static uint32_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15u;
    while (n >= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = (h ^ v) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        p += 8;
        n -= 8;
    }
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        v = v << 8 | (uint8_t)p[i];
    }
    h = (h ^ v) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32 ^ h >> 17);
}

uint32_t tok_find_word(const mx_tokenizer *t, const char *p, size_t n)
{
    if (n == 0 || n > t->max_word_bytes) {
        return TOK_NONE;
    }
    for (uint32_t at = hash_bytes(p, n) & t->words.mask;; at = (at + 1) & t->words.mask) {
        uint32_t slot = t->words.slots[at];
        if (slot == 0) {
            return TOK_NONE;
        }
        mx_str piece = tok_piece(t, slot - 1);
        if (piece.len == n && memcmp(piece.ptr, p, n) == 0) {
            return slot - 1;
        }
    }
}

static void add_word(mx_tokenizer *t, uint32_t id)
{
    mx_str piece = tok_piece(t, id);
    uint32_t at = hash_bytes(piece.ptr, piece.len) & t->words.mask;
    while (t->words.slots[at] != 0 && !mx_str_eq(tok_piece(t, t->words.slots[at] - 1), piece)) {
        at = (at + 1) & t->words.mask;
    }
    /* Of two tokens with the same text the later one counts. */
    t->words.slots[at] = id + 1;
    for (size_t i = 1; i < piece.len; i++) {
        unsigned bit = (unsigned)(uint8_t)piece.ptr[i - 1] << 8 | (uint8_t)piece.ptr[i];
        t->neighbours[bit / 8] |= (uint8_t)(1u << bit % 8);
    }
    if (piece.len > t->max_word_bytes) {
        t->max_word_bytes = (uint32_t)piece.len;
    }
}

/* 2^k > 2 * n, so that a search always meets an empty slot soon. */
static uint32_t table_size(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n + 1) {
        size *= 2;
    }
    return size;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* Tokens that end a generation by their name, whatever the file calls their type. */
static const char *const eog_names[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "<|end_of_text|>", "<\xEF\xBD\x9C" "end\xE2\x96\x81of"
    "\xE2\x96\x81sentence\xEF\xBD\x9C>", "</s>",
    /* fill-in-the-middle: padding, repository, file separator */
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
    "<REPO>", "<reponame>", "<|file_sep|>",
};

/* Control tokens by their name, without ending a generation: fill-in-the-middle marks. */
static const char *const control_names[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>",
    "<\xEF\xBD\x9C" "fim\xE2\x96\x81" "begin\xEF\xBD\x9C>", "<\xEF\xBD\x9C" "fim\xE2\x96\x81hole"
    "\xEF\xBD\x9C>", "<\xEF\xBD\x9C" "fim\xE2\x96\x81" "end\xEF\xBD\x9C>",
};

/* Control tokens that an answer says: the marks of calls of tools, without which nobody can tell
 * calls from text. In most vocabularies they are no control tokens, in some they are. */
static const char *const said_names[] = {
    "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>",
    "<seed:tool_call>", "</seed:tool_call>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
};

static bool is_in(mx_str s, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (mx_str_eq(s, mx_str_of(names[i]))) {
            return true;
        }
    }
    return false;
}

static void fill_types(mx_tokenizer *t, const mx_vocab_desc *d)
{
    const int32_t ends[] = {d->eos_id, d->eot_id, d->eom_id};
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        int32_t type = d->types != NULL ? d->types[i] : MX_TOKEN_NORMAL;
        bool is_known = type >= MX_TOKEN_NORMAL && type <= MX_TOKEN_BYTE;
        t->types[i] = (uint8_t)(is_known ? type : MX_TOKEN_NORMAL);
        /* All these names begin with "<" and are short: most tokens are out at once. */
        mx_str s = d->tokens[i];
        t->is_said[i] = type == MX_TOKEN_CONTROL && is_in(s, said_names, MX_COUNT(said_names));
        if (s.len >= 4 && s.ptr[0] == '<') {
            t->is_eog[i] = is_in(s, eog_names, MX_COUNT(eog_names));
            if (t->is_eog[i] || is_in(s, control_names, MX_COUNT(control_names))) {
                t->types[i] = MX_TOKEN_CONTROL;
            }
        }
    }
    for (size_t k = 0; k < MX_COUNT(ends); k++) {
        if (ends[k] >= 0 && (uint32_t)ends[k] < t->n_tokens) {
            t->is_eog[ends[k]] = 1;
        }
    }
}

/* ---- texts and pieces ------------------------------------------------------------------------ */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0xHH>", the byte tokens of SPM vocabularies; -1 when it is something else. */
static int byte_token(mx_str s)
{
    if (s.len != 6 || memcmp(s.ptr, "<0x", 3) != 0 || s.ptr[5] != '>') {
        return -1;
    }
    int high = hex_digit(s.ptr[3]), low = hex_digit(s.ptr[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* U+2581 to a blank. */
static size_t unescape_blanks(mx_str s, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len;) {
        if (s.len - i >= 3 && memcmp(s.ptr + i, "\xE2\x96\x81", 3) == 0) {
            out[n++] = ' ';
            i += 3;
        } else {
            out[n++] = s.ptr[i++];
        }
    }
    return n;
}

/* Writes the bytes that token id stands for; at most as many as its text has. *is_word: plain text
 * can become this token. */
static size_t make_piece(mx_tokenizer *t, uint32_t id, mx_str text, char *out, bool *is_word)
{
    *is_word = false;
    int byte = byte_token(text);
    if (t->model == TOK_SPM && t->types[id] == MX_TOKEN_BYTE && byte >= 0) {
        t->byte_id[byte] = id;
        out[0] = (char)byte;
        return 1;
    }
    if (t->types[id] == MX_TOKEN_NORMAL || t->types[id] == MX_TOKEN_UNUSED ||
        t->types[id] == MX_TOKEN_BYTE)
    {
        *is_word = true;
        return t->model == TOK_SPM ? unescape_blanks(text, out)
                                   : tok_unprintable(text, out, is_word);
    }
    if (t->model == TOK_SPM && t->types[id] == MX_TOKEN_USER_DEFINED) {
        *is_word = true; /* cut out of raw text before, but merges go through it */
        return unescape_blanks(text, out);
    }
    memcpy(out, text.ptr, text.len);
    return text.len;
}

static mx_err fill_arena(mx_tokenizer *t, const mx_vocab_desc *d, mx_errbuf *eb)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        if (!mx_add_ok(bytes, d->tokens[i].len, &bytes) || bytes > UINT32_MAX / 2) {
            return mx_fail(eb, MX_E_LIMIT, "the texts of the vocabulary are longer than 2 GB");
        }
    }
    t->arena = mx_alloc(2 * bytes);
    t->words.mask = table_size(t->n_tokens) - 1;
    t->words.slots = mx_calloc((size_t)t->words.mask + 1, sizeof *t->words.slots);
    if (t->arena == NULL || t->words.slots == NULL) {
        return MX_E_NOMEM;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        t->text_at[i] = at;
        memcpy(t->arena + at, d->tokens[i].ptr, d->tokens[i].len);
        at += (uint32_t)d->tokens[i].len;
    }
    t->text_at[t->n_tokens] = at;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        bool is_word;
        t->piece_at[i] = at;
        at += (uint32_t)make_piece(t, i, tok_text(t, i), t->arena + at, &is_word);
        t->piece_at[i + 1] = at;
        if (is_word && t->piece_at[i] != at) {
            add_word(t, i);
        }
    }
    return MX_OK;
}

/* ---- special tokens -------------------------------------------------------------------------- */

typedef struct special_key {
    mx_str text;
    uint32_t id;
} special_key;

static int by_text(const void *a, const void *b)
{
    const special_key *x = a, *y = b;
    int c = memcmp(x->text.ptr, y->text.ptr, mx_min_size(x->text.len, y->text.len));
    if (c != 0) {
        return c;
    }
    if (x->text.len != y->text.len) {
        return x->text.len < y->text.len ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Ill-formed texts are left out: text is well-formed when it is searched, and a match must not cut
 * a character in two. */
static bool is_special(const mx_tokenizer *t, uint32_t id)
{
    bool has_type = t->types[id] == MX_TOKEN_CONTROL || t->types[id] == MX_TOKEN_UNKNOWN ||
                    t->types[id] == MX_TOKEN_USER_DEFINED;
    mx_str s = tok_special_text(t, id);
    return has_type && s.len > 0 && mx_utf8_valid(s.ptr, s.len);
}

static mx_err fill_specials(mx_tokenizer *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        n += is_special(t, i);
    }
    special_key *keys = mx_calloc(n, sizeof *keys);
    t->specials = mx_calloc(n, sizeof *t->specials);
    if (keys == NULL || t->specials == NULL) {
        mx_free(keys);
        return MX_E_NOMEM;
    }
    for (uint32_t i = 0, k = 0; i < t->n_tokens; i++) {
        if (is_special(t, i)) {
            keys[k++] = (special_key){tok_special_text(t, i), i};
        }
    }
    qsort(keys, n, sizeof *keys, by_text);
    for (uint32_t i = 0; i < n; i++) {
        t->specials[i] = keys[i].id;
    }
    t->n_specials = n;
    uint32_t k = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        while (k < n && (uint8_t)keys[k].text.ptr[0] < byte) {
            k++;
        }
        t->special_at[byte] = k;
    }
    t->special_at[256] = n;
    mx_free(keys);
    return MX_OK;
}

mx_err tok_vocab_fill(mx_tokenizer *t, const mx_vocab_desc *d, mx_errbuf *eb)
{
    t->n_tokens = (uint32_t)d->n_tokens;
    t->text_at = mx_calloc(d->n_tokens + 1, sizeof *t->text_at);
    t->piece_at = mx_calloc(d->n_tokens + 1, sizeof *t->piece_at);
    t->types = mx_calloc(d->n_tokens, 1);
    t->is_eog = mx_calloc(d->n_tokens, 1);
    t->is_said = mx_calloc(d->n_tokens, 1);
    t->neighbours = mx_calloc(256 * 256 / 8, 1);
    if (t->text_at == NULL || t->piece_at == NULL || t->types == NULL || t->is_eog == NULL ||
        t->is_said == NULL ||
        t->neighbours == NULL)
    {
        return MX_E_NOMEM;
    }
    for (size_t b = 0; b < 256; b++) {
        t->byte_id[b] = TOK_NONE;
    }
    fill_types(t, d);
    MX_TRY(fill_arena(t, d, eb));
    if (t->model == TOK_BPE) {
        for (unsigned b = 0; b < 256; b++) {
            char c = (char)b;
            t->byte_id[b] = tok_find_word(t, &c, 1);
        }
    }
    return fill_specials(t);
}

/* ---- merges ---------------------------------------------------------------------------------- */

static void add_pair(mx_tokenizer *t, uint32_t left, uint32_t right, uint32_t rank)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    uint32_t at = (uint32_t)(h >> 32) & t->pair_mask;
    while (t->pairs[at].rank != TOK_NONE) {
        if (t->pairs[at].left == left && t->pairs[at].right == right) {
            return; /* the first of two equal merges counts */
        }
        at = (at + 1) & t->pair_mask;
    }
    t->pairs[at] = (tok_pair){left, right, rank};
}

/* "left right", cut at the first blank behind the first byte: a left part may begin with one. */
static bool cut_merge(mx_str s, mx_str *left, mx_str *right)
{
    for (size_t i = 1; i < s.len; i++) {
        if (s.ptr[i] == ' ') {
            *left = (mx_str){s.ptr, i};
            *right = (mx_str){s.ptr + i + 1, s.len - i - 1};
            return right->len > 0;
        }
    }
    return false;
}

/* A merge counts when both parts and the whole are tokens that text can become. Others can never
 * take part in a result, or would make a token that text must not become. */
static void fill_merge(mx_tokenizer *t, mx_str merge, uint32_t rank, char *room)
{
    mx_str left, right;
    bool pure_left, pure_right;
    t->merged[rank] = TOK_NONE;
    if (!cut_merge(merge, &left, &right)) {
        return;
    }
    size_t n_left = tok_unprintable(left, room, &pure_left);
    size_t n_right = tok_unprintable(right, room + n_left, &pure_right);
    if (!pure_left || !pure_right) {
        return;
    }
    uint32_t l = tok_find_word(t, room, n_left);
    uint32_t r = tok_find_word(t, room + n_left, n_right);
    uint32_t whole = tok_find_word(t, room, n_left + n_right);
    if (l != TOK_NONE && r != TOK_NONE && whole != TOK_NONE) {
        t->merged[rank] = whole;
        add_pair(t, l, r, rank);
    }
}

static mx_err fill_pairs(mx_tokenizer *t, const mx_vocab_desc *d)
{
    size_t longest = 0;
    for (size_t i = 0; i < d->n_merges; i++) {
        longest = mx_max_size(longest, d->merges[i].len);
    }
    t->n_merges = (uint32_t)d->n_merges;
    t->pair_mask = table_size(d->n_merges) - 1;
    t->pairs = mx_calloc((size_t)t->pair_mask + 1, sizeof *t->pairs);
    t->merged = mx_calloc(d->n_merges, sizeof *t->merged);
    char *room = mx_alloc(longest);
    if (t->pairs == NULL || t->merged == NULL || room == NULL) {
        mx_free(room);
        return MX_E_NOMEM;
    }
    for (size_t i = 0; i <= t->pair_mask; i++) {
        t->pairs[i].rank = TOK_NONE;
    }
    for (uint32_t i = 0; i < t->n_merges; i++) {
        fill_merge(t, d->merges[i], i, room);
    }
    mx_free(room);
    return MX_OK;
}

typedef struct score_key {
    float score;
    uint32_t id;
} score_key;

static int by_score(const void *a, const void *b)
{
    const score_key *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score;
}

/* SPM: scores become ranks, so that both models share the merge loop. */
static mx_err fill_priorities(mx_tokenizer *t, const mx_vocab_desc *d)
{
    score_key *keys = mx_calloc(t->n_tokens, sizeof *keys);
    t->priority = mx_calloc(t->n_tokens, sizeof *t->priority);
    if (keys == NULL || t->priority == NULL) {
        mx_free(keys);
        return MX_E_NOMEM;
    }
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        float score = d->scores != NULL ? d->scores[i] : 0.0f;
        keys[i] = (score_key){score == score ? score : -__builtin_inff(), i}; /* no NaN */
    }
    qsort(keys, t->n_tokens, sizeof *keys, by_score);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        rank += i > 0 && keys[i].score < keys[i - 1].score;
        t->priority[keys[i].id] = rank;
    }
    mx_free(keys);
    return MX_OK;
}

mx_err tok_merges_fill(mx_tokenizer *t, const mx_vocab_desc *d, mx_errbuf *eb)
{
    if (t->model == TOK_SPM) {
        return fill_priorities(t, d);
    }
    if (d->n_merges >= 1u << 30) {
        return mx_fail(eb, MX_E_LIMIT, "the vocabulary has %zu merges", d->n_merges);
    }
    return fill_pairs(t, d);
}
