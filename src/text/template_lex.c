/* SPDX-License-Identifier: MIT
 *
 * Cutting a template into tokens. All white space rules live here: what `-` and `+` at a delimiter
 * do, the newline that a block swallows (trim_blocks), the blanks before a block at the start of a
 * line (lstrip_blocks). The parser sees text that needs no further thought.
 *
 * The whole source becomes one array of tokens: the parser may then look ahead freely, and its
 * errors can name a line.
 */
#include "text/template_internal.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_BRACKETS = 256 };

typedef struct lexer {
    mx_toks *out;
    mx_arena *arena;
    const char *p;
    size_t len, at;
    uint32_t line;
    bool starts_line; /* what was matched last ended with a newline, or nothing was */
    char brackets[MAX_BRACKETS];
    size_t n_brackets;
    mx_errbuf *eb;
} lexer;

static MX_PRINTF(2, 3) mx_err lex_fail(lexer *x, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mx_fail(x->eb, MX_E_FORMAT, "line %u: %s", (unsigned)x->line, text);
}

static bool looking_at(const lexer *x, size_t at, const char *what)
{
    size_t n = strlen(what);
    return at <= x->len && x->len - at >= n && memcmp(x->p + at, what, n) == 0;
}

/* Behind the white space that begins at `at`. */
static size_t skip_space(const lexer *x, size_t at)
{
    while (at < x->len) {
        uint32_t cp;
        size_t n = mx_utf8_decode(x->p + at, x->len - at, &cp);
        if (!mx_uc_is_space(cp)) {
            break;
        }
        at += n;
    }
    return at;
}

/* The end of the text [from, to) without its trailing white space. */
static size_t strip_end(const lexer *x, size_t from, size_t to)
{
    while (to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)x->p[at] & 0xC0) == 0x80) {
            at--;
        }
        uint32_t cp;
        mx_utf8_decode(x->p + at, to - at, &cp);
        if (!mx_uc_is_space(cp)) {
            break;
        }
        to = at;
    }
    return to;
}

/* Moves on to `to`, counting lines. */
static void advance(lexer *x, size_t to)
{
    for (size_t i = x->at; i < to; i++) {
        x->line += x->p[i] == '\n';
    }
    if (to > x->at) {
        x->starts_line = x->p[to - 1] == '\n';
    }
    x->at = to;
}

static mx_tok *push(lexer *x, mx_tok_type type, size_t begin, size_t end)
{
    void *t = x->out->t;
    if (!mx_grow(&t, &x->out->cap, x->out->n + 1, sizeof *x->out->t)) {
        return NULL;
    }
    x->out->t = t;
    mx_tok *tok = &x->out->t[x->out->n++];
    *tok = (mx_tok){.type = (uint8_t)type, .line = x->line, .text = {x->p + begin, end - begin}};
    return tok;
}

/* Text up to `end`, where a delimiter with this sign begins. */
static mx_err push_text(lexer *x, size_t end, char sign, bool is_print)
{
    size_t begin = x->at, to = end;
    if (sign == '-') {
        to = strip_end(x, begin, end);
    } else if (sign != '+' && !is_print) {
        size_t line_begin = end;
        while (line_begin > begin && x->p[line_begin - 1] != '\n') {
            line_begin--;
        }
        if ((line_begin > begin || x->starts_line) && skip_space(x, line_begin) >= end) {
            to = line_begin;
        }
    }
    if (to > begin && push(x, MX_T_TEXT, begin, to) == NULL) {
        return MX_E_NOMEM;
    }
    advance(x, end);
    return MX_OK;
}

static char sign_at(const lexer *x, size_t at)
{
    return at < x->len && (x->p[at] == '-' || x->p[at] == '+') ? x->p[at] : '\0';
}

/* Where the closing delimiter `shut` that begins at `at` ends, with what it swallows; 0 = none
 * there. A print's `+` is an operator, not a sign. */
static size_t match_close(const lexer *x, size_t at, const char *shut)
{
    bool is_print = shut[0] == '}' && shut[1] == '}';
    char sign = sign_at(x, at);
    if (sign == '+' && is_print) {
        return 0;
    }
    size_t end = at + (sign != '\0') + 2;
    if (!looking_at(x, at + (sign != '\0'), shut)) {
        return 0;
    }
    if (sign == '-') {
        return skip_space(x, end);
    }
    if (sign == '\0' && !is_print && end < x->len && x->p[end] == '\n') {
        end++;
    }
    return end;
}

static mx_err lex_comment(lexer *x)
{
    for (size_t i = x->at; i < x->len; i++) {
        size_t end = match_close(x, i, "#}");
        if (end > 0) {
            advance(x, end);
            return MX_OK;
        }
    }
    return lex_fail(x, "a comment has no end");
}

/* If a tag of this one word begins at `at`: its end, with what it swallows, else 0. */
static size_t match_word_tag(const lexer *x, size_t at, const char *word, bool swallows_newline)
{
    if (!looking_at(x, at, "{%")) {
        return 0;
    }
    size_t i = skip_space(x, at + 2 + (sign_at(x, at + 2) != '\0'));
    if (!looking_at(x, i, word)) {
        return 0;
    }
    i = skip_space(x, i + strlen(word));
    if (swallows_newline) {
        return match_close(x, i, "%}");
    }
    if (looking_at(x, i, "-%}")) {
        return skip_space(x, i + 3);
    }
    return looking_at(x, i, "%}") ? i + 2 : 0;
}

static mx_err lex_raw(lexer *x)
{
    for (size_t i = x->at; i < x->len; i++) {
        size_t end = match_word_tag(x, i, "endraw", true);
        if (end > 0) {
            MX_TRY(push_text(x, i, sign_at(x, i + 2), false));
            advance(x, end);
            return MX_OK;
        }
    }
    return lex_fail(x, "a raw block has no end");
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them; returns their end, `at` itself when there are
 * none. */
static size_t digits_end(const lexer *x, size_t at)
{
    size_t i = at;
    while (i < x->len && (is_digit(x->p[i]) || (x->p[i] == '_' && i > at && i + 1 < x->len &&
                                               is_digit(x->p[i + 1]))))
    {
        i++;
    }
    return i;
}

static size_t number_end(const lexer *x, size_t at, bool *is_float)
{
    size_t i = digits_end(x, at);
    *is_float = false;
    if (at > 0 && x->p[at - 1] == '.') {
        return i; /* x.0.1: indices, not a number with a point */
    }
    size_t j = i;
    if (j + 1 < x->len && x->p[j] == '.' && is_digit(x->p[j + 1])) {
        j = digits_end(x, j + 1);
        *is_float = true;
    }
    size_t k = j;
    if (k < x->len && (x->p[k] == 'e' || x->p[k] == 'E')) {
        k++;
        k += k < x->len && (x->p[k] == '+' || x->p[k] == '-');
        if (k < x->len && is_digit(x->p[k])) {
            *is_float = true;
            j = digits_end(x, k);
        }
    }
    return *is_float ? j : i;
}

static mx_err lex_number(lexer *x)
{
    bool is_float = false;
    size_t begin = x->at, end;
    int base = 10;
    if (x->p[begin] == '0' && begin + 2 < x->len && mx_is_one_of(x->p[begin + 1], "bBoOxX")) {
        base = strchr("bB", x->p[begin + 1]) ? 2 : strchr("oO", x->p[begin + 1]) ? 8 : 16;
        end = begin + 2;
        while (end < x->len && mx_is_one_of(x->p[end], "0123456789abcdefABCDEF_")) {
            end++;
        }
    } else {
        end = number_end(x, begin, &is_float);
    }
    mx_buf digits = {0};
    for (size_t i = begin + (base != 10 ? 2 : 0); i < end; i++) {
        if (x->p[i] != '_') {
            mx_buf_char(&digits, x->p[i]);
        }
    }
    if (digits.failed) {
        mx_buf_free(&digits);
        return MX_E_NOMEM;
    }
    mx_tok *t = push(x, MX_T_NUMBER, begin, end);
    mx_err err = t == NULL ? MX_E_NOMEM : MX_OK;
    if (err == MX_OK && base != 10) {
        errno = 0;
        char *stop = NULL;
        long long v = digits.len > 0 ? strtoll(digits.ptr, &stop, base) : 0;
        if (digits.len == 0 || errno != 0 || *stop != '\0') {
            err = lex_fail(x, "a number that is not one, or beyond 64 bits");
        }
        t->value = mx_value_int(x->arena, v);
    } else if (err == MX_OK && digits.len > 1 && digits.ptr[0] == '0' && !is_float &&
               strspn(digits.ptr, "0") != digits.len)
    {
        err = lex_fail(x, "a number with leading zeros");
    } else if (err == MX_OK) {
        t->value = mx_value_number_text(x->arena, mx_buf_view(&digits));
    }
    mx_buf_free(&digits);
    if (err == MX_OK && t->value == NULL) {
        err = MX_E_NOMEM;
    }
    advance(x, end);
    return err;
}

static bool read_digits(const lexer *x, size_t *i, size_t end, size_t max, uint32_t base,
                        uint32_t *out)
{
    size_t n = 0;
    *out = 0;
    for (; n < max && *i < end; n++, (*i)++) {
        int c = x->p[*i];
        uint32_t d = c >= '0' && c <= '9' ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10) : 99;
        if (d >= base) {
            break;
        }
        *out = *out * base + d;
    }
    return base == 8 ? n > 0 : n == max;
}

/* One escape; *i stands behind the backslash. */
static mx_err lex_escape(lexer *x, mx_buf *b, size_t *i, size_t end)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = x->p[*i];
    const char *hit = strchr(from, c);
    if (c != '\0' && hit != NULL) {
        mx_buf_char(b, to[hit - from]);
        (*i)++;
        return MX_OK;
    }
    if (c == '\n') {
        (*i)++;
        return MX_OK;
    }
    uint32_t cp;
    size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width > 0) {
        (*i)++;
        if (!read_digits(x, i, end, width, 16, &cp) || cp > 0x10FFFF) {
            return lex_fail(x, "a bad \\%c escape in a string", c);
        }
        uint32_t low;
        size_t j = *i + 2;
        if (cp >= 0xD800 && cp < 0xDC00 && looking_at(x, *i, "\\u") &&
            read_digits(x, &j, end, 4, 16, &low) && low >= 0xDC00 && low < 0xE000)
        {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
            *i = j;
        }
    } else if (c >= '0' && c <= '7') {
        (void)read_digits(x, i, end, 3, 8, &cp);
    } else if (c == 'N') {
        return lex_fail(x, "\\N escapes are not supported");
    } else {
        mx_buf_char(b, '\\'); /* an unknown escape stands for itself */
        return MX_OK;
    }
    char enc[4];
    cp = cp >= 0xD800 && cp < 0xE000 ? MX_UTF8_REPLACEMENT : cp;
    mx_buf_append(b, enc, mx_utf8_encode(cp, enc));
    return MX_OK;
}

static mx_err lex_string(lexer *x)
{
    char quote = x->p[x->at];
    size_t end = x->at + 1;
    while (end < x->len && x->p[end] != quote) {
        end += x->p[end] == '\\' ? 2 : 1;
    }
    if (end >= x->len) {
        return lex_fail(x, "a string has no end");
    }
    mx_buf b = {0};
    mx_err err = MX_OK;
    for (size_t i = x->at + 1; i < end && err == MX_OK;) {
        char c = x->p[i++];
        if (c == '\\') {
            err = lex_escape(x, &b, &i, end);
        } else {
            mx_buf_char(&b, c);
        }
    }
    if (err == MX_OK) {
        mx_tok *t = push(x, MX_T_STRING, x->at, end + 1);
        mx_value *v = b.failed ? NULL : mx_value_string(x->arena, mx_buf_view(&b), true);
        if (t == NULL || v == NULL) {
            err = MX_E_NOMEM;
        } else {
            t->value = v;
        }
    }
    mx_buf_free(&b);
    advance(x, end + 1);
    return err;
}

static mx_err lex_operator(lexer *x)
{
    static const char *const ops[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%",
                                      "~",  "[",  "]",  "(",  ")",  "{",  "}", ">", "<", "=", ".",
                                      ":",  "|",  ",",  ";"};
    size_t k = 0;
    while (k < MX_COUNT(ops) && !looking_at(x, x->at, ops[k])) {
        k++;
    }
    if (k == MX_COUNT(ops)) {
        uint32_t cp;
        mx_utf8_decode(x->p + x->at, x->len - x->at, &cp);
        return lex_fail(x, "unexpected character U+%04X", (unsigned)cp);
    }
    char c = ops[k][0];
    if (strchr("([{", c) != NULL) {
        if (x->n_brackets == MAX_BRACKETS) {
            return mx_fail(x->eb, MX_E_LIMIT, "line %u: more than %d open brackets",
                           (unsigned)x->line, MAX_BRACKETS);
        }
        x->brackets[x->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (strchr(")]}", c) != NULL) {
        if (x->n_brackets == 0 || x->brackets[--x->n_brackets] != c) {
            return lex_fail(x, "unexpected '%c'", c);
        }
    }
    size_t n = strlen(ops[k]);
    mx_tok *t = push(x, MX_T_OP, x->at, x->at + n);
    if (t == NULL) {
        return MX_E_NOMEM;
    }
    memcpy(t->op, ops[k], n + 1);
    advance(x, x->at + n);
    return MX_OK;
}

static size_t name_end(const lexer *x, size_t at)
{
    size_t i = at;
    while (i < x->len) {
        uint32_t cp;
        size_t n = mx_utf8_decode(x->p + i, x->len - i, &cp);
        bool is_part = cp == '_' || mx_uc_is_alpha(cp) || (i > at && mx_uc_is_digit(cp));
        if (!is_part) {
            break;
        }
        i += n;
    }
    return i;
}

/* The inside of a tag, up to and with its closing delimiter. */
static mx_err lex_tag(lexer *x, const char *shut, mx_tok_type end_type)
{
    x->n_brackets = 0;
    while (x->at < x->len) {
        size_t end = x->n_brackets == 0 ? match_close(x, x->at, shut) : 0;
        if (end > 0) {
            mx_tok *t = push(x, end_type, x->at, end);
            advance(x, end);
            return t == NULL ? MX_E_NOMEM : MX_OK;
        }
        size_t next = skip_space(x, x->at);
        if (next > x->at) {
            advance(x, next);
            continue;
        }
        char c = x->p[x->at];
        next = name_end(x, x->at);
        if (is_digit(c)) {
            MX_TRY(lex_number(x));
        } else if (next > x->at) {
            if (push(x, MX_T_NAME, x->at, next) == NULL) {
                return MX_E_NOMEM;
            }
            advance(x, next);
        } else if (c == '"' || c == '\'') {
            MX_TRY(lex_string(x));
        } else {
            MX_TRY(lex_operator(x));
        }
    }
    return MX_OK; /* the parser will miss the closing delimiter */
}

/* From text up to and through the next tag, or to the end. */
static mx_err lex_piece(lexer *x)
{
    size_t i = x->at;
    for (;; i++) {
        const char *brace = memchr(x->p + i, '{', x->len - i);
        i = brace == NULL ? x->len : (size_t)(brace - x->p);
        if (i + 1 >= x->len || x->p[i + 1] == '{' || x->p[i + 1] == '%' || x->p[i + 1] == '#') {
            break;
        }
    }
    if (i + 1 >= x->len) {
        return push_text(x, x->len, '+', true);
    }
    char kind = x->p[i + 1];
    char sign = sign_at(x, i + 2);
    size_t raw_end = kind == '%' ? match_word_tag(x, i, "raw", false) : 0;
    MX_TRY(push_text(x, i, sign, kind == '{'));
    if (raw_end > 0) {
        advance(x, raw_end);
        return lex_raw(x);
    }
    advance(x, i + 2 + (sign != '\0'));
    if (kind == '#') {
        return lex_comment(x);
    }
    if (push(x, kind == '{' ? MX_T_PRINT_BEGIN : MX_T_BLOCK_BEGIN, i, i + 2) == NULL) {
        return MX_E_NOMEM;
    }
    return kind == '{' ? lex_tag(x, "}}", MX_T_PRINT_END) : lex_tag(x, "%}", MX_T_BLOCK_END);
}

mx_err mx_tmpl_lex(mx_toks *t, mx_arena *arena, mx_str source, mx_errbuf *eb)
{
    lexer x = {.out = t, .arena = arena, .p = source.ptr, .len = source.len, .line = 1,
               .starts_line = true, .eb = eb};
    while (x.at < x.len) {
        MX_TRY(lex_piece(&x));
    }
    return push(&x, MX_T_END, x.len, x.len) == NULL ? MX_E_NOMEM : MX_OK;
}
