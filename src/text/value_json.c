/* SPDX-License-Identifier: MIT
 *
 * JSON, both ways, as Python's json module does it: key order kept, ", " and ": " between items, no
 * escapes but the necessary ones. Reading exists for templates that parse tool arguments; strings
 * that come out of it keep the origin of the text they were in.
 */
#include "text/value_internal.h"

#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void json_text(mx_run *r, mx_sb *b, const mx_text *s, bool ensure_ascii)
{
    mx_sb_cstr(r, b, "\"", false);
    size_t done = 0;
    for (size_t i = 0; i < s->len && r->err == MX_OK;) {
        size_t at = i;
        uint32_t cp = mx_text_next(s, &i);
        char esc[16];
        static const char short_forms[] = "\bb\ff\nn\rr\tt\"\"\\\\";
        const char *hit = cp < 0x80 && cp != 0 ? strchr(short_forms, (int)cp) : NULL;
        /* The letters of the pairs are no matches themselves: only even positions are. */
        bool is_short = hit != NULL && (hit - short_forms) % 2 == 0;
        if (is_short) {
            snprintf(esc, sizeof esc, "\\%c", hit[1]);
        } else if (cp >= 0x20 && (cp < 0x7F || !ensure_ascii)) {
            continue;
        } else if (cp < 0x10000) {
            snprintf(esc, sizeof esc, "\\u%04x", (unsigned)cp);
        } else {
            unsigned high = 0xD800 + (unsigned)((cp - 0x10000) >> 10);
            unsigned low = 0xDC00 + (unsigned)((cp - 0x10000) & 0x3FF);
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", high, low);
        }
        mx_sb_range(r, b, s, done, at);
        mx_sb_cstr(r, b, esc, mx_text_mark_at(s, at));
        done = i;
    }
    mx_sb_range(r, b, s, done, s->len);
    mx_sb_cstr(r, b, "\"", false);
}

static void new_line(mx_run *r, mx_sb *b, const mx_json_style *style, uint32_t level)
{
    if (!style->is_pretty) {
        return;
    }
    mx_sb_cstr(r, b, "\n", false);
    for (uint32_t i = 0; i < level && r->err == MX_OK; i++) {
        mx_sb_text(r, b, &style->indent);
    }
}

static void json_value(mx_run *r, mx_sb *b, const mx_value *v, const mx_json_style *style,
                       uint32_t level);

static void json_list(mx_run *r, mx_sb *b, const mx_seq *s, const mx_json_style *style,
                      uint32_t level)
{
    mx_sb_cstr(r, b, "[", false);
    for (size_t i = 0; i < s->n && r->err == MX_OK; i++) {
        if (i > 0) {
            mx_sb_text(r, b, &style->item_sep);
        }
        new_line(r, b, style, level + 1);
        json_value(r, b, s->items[i], style, level + 1);
    }
    if (s->n > 0) {
        new_line(r, b, style, level);
    }
    mx_sb_cstr(r, b, "]", false);
}

static void json_key(mx_run *r, mx_sb *b, const mx_value *key, const mx_json_style *style)
{
    switch ((mx_value_kind)key->kind) {
    case MX_V_STRING:
        json_text(r, b, &key->s, style->ensure_ascii);
        break;
    case MX_V_NONE:
    case MX_V_BOOL:
    case MX_V_INT:
    case MX_V_FLOAT:
        mx_sb_cstr(r, b, "\"", false);
        json_value(r, b, key, style, 0);
        mx_sb_cstr(r, b, "\"", false);
        break;
    default:
        mx_run_fail(r, MX_E_INVALID, "a %s cannot be a key in JSON", mx_v_type_name(key));
    }
}

/* Pointers to the pairs in the order of their keys; keys that are no strings keep their place. */
static int by_key(const void *a, const void *b)
{
    const mx_pair *x = *(const mx_pair *const *)a, *y = *(const mx_pair *const *)b;
    if (!mx_v_is(x->key, MX_V_STRING) || !mx_v_is(y->key, MX_V_STRING)) {
        return x < y ? -1 : x > y;
    }
    int c = memcmp(x->key->s.ptr, y->key->s.ptr, mx_min_size(x->key->s.len, y->key->s.len));
    return c != 0 ? c : x->key->s.len < y->key->s.len ? -1 : x->key->s.len > y->key->s.len;
}

static void json_dict(mx_run *r, mx_sb *b, const mx_dict *d, const mx_json_style *style,
                      uint32_t level)
{
    const mx_pair **order = NULL;
    if (style->sort_keys && d->n > 0) {
        order = mx_run_array(r, d->n, sizeof *order);
        if (order == NULL) {
            return;
        }
        for (size_t i = 0; i < d->n; i++) {
            order[i] = &d->pairs[i];
        }
        qsort(order, d->n, sizeof *order, by_key);
    }
    mx_sb_cstr(r, b, "{", false);
    for (size_t i = 0; i < d->n && r->err == MX_OK; i++) {
        const mx_pair *p = order != NULL ? order[i] : &d->pairs[i];
        if (i > 0) {
            mx_sb_text(r, b, &style->item_sep);
        }
        new_line(r, b, style, level + 1);
        json_key(r, b, p->key, style);
        mx_sb_text(r, b, &style->key_sep);
        json_value(r, b, p->value, style, level + 1);
    }
    if (d->n > 0) {
        new_line(r, b, style, level);
    }
    mx_sb_cstr(r, b, "}", false);
}

static void json_value(mx_run *r, mx_sb *b, const mx_value *v, const mx_json_style *style,
                       uint32_t level)
{
    if (!mx_run_enter(r)) {
        return;
    }
    switch ((mx_value_kind)v->kind) {
    case MX_V_NONE:
        mx_sb_cstr(r, b, "null", true);
        break;
    case MX_V_BOOL:
        mx_sb_cstr(r, b, v->b ? "true" : "false", true);
        break;
    case MX_V_INT:
        mx_sb_repr(r, b, v);
        break;
    case MX_V_FLOAT:
        if (isfinite(v->f)) {
            mx_sb_repr(r, b, v);
        } else {
            mx_sb_cstr(r, b, isnan(v->f) ? "NaN" : v->f < 0 ? "-Infinity" : "Infinity", true);
        }
        break;
    case MX_V_STRING:
        json_text(r, b, &v->s, style->ensure_ascii);
        break;
    case MX_V_LIST:
        if (v->sub == MX_SEQ_LIST || v->sub == MX_SEQ_TUPLE) {
            json_list(r, b, &v->seq, style, level);
            break;
        }
        mx_run_fail(r, MX_E_INVALID, "a %s has no JSON form", mx_v_type_name(v));
        break;
    case MX_V_DICT:
        json_dict(r, b, &v->dict, style, level);
        break;
    case MX_V_UNDEFINED:
        mx_run_fail(r, MX_E_INVALID, "an undefined value has no JSON form (%.*s)",
                    (int)v->hint.len, v->hint.ptr);
        break;
    case MX_V_OTHER:
        mx_run_fail(r, MX_E_INVALID, "a %s has no JSON form", mx_v_type_name(v));
        break;
    }
    mx_run_leave(r);
}

mx_value *mx_v_to_json(mx_run *r, const mx_value *v, const mx_json_style *style)
{
    mx_sb b = {0};
    json_value(r, &b, v, style, 0);
    return mx_sb_finish(r, &b);
}

/* ---- reading ---- */

typedef struct reader {
    mx_run *r;
    const mx_text *s;
    size_t at;
} reader;

static void *bad_json(reader *j)
{
    return mx_run_fail(j->r, MX_E_INVALID, "not valid JSON at byte %zu", j->at);
}

static int peek(const reader *j)
{
    return j->at < j->s->len ? (unsigned char)j->s->ptr[j->at] : -1;
}

static void skip_blanks(reader *j)
{
    while (peek(j) == ' ' || peek(j) == '\t' || peek(j) == '\n' || peek(j) == '\r') {
        j->at++;
    }
}

static bool read_hex4(reader *j, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, j->at++) {
        int c = peek(j);
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) {
            return false;
        }
        *out = *out << 4 | (uint32_t)d;
    }
    return true;
}

static bool read_escape(reader *j, mx_sb *b)
{
    bool mark = mx_text_mark_at(j->s, j->at);
    j->at++; /* the backslash */
    int c = peek(j);
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *hit = c > 0 ? strchr(from, c) : NULL;
    if (hit != NULL) {
        mx_sb_add(j->r, b, &to[hit - from], 1, mark);
        j->at++;
        return true;
    }
    j->at++;
    uint32_t cp;
    if (c != 'u' || !read_hex4(j, &cp)) {
        return false;
    }
    if (cp >= 0xD800 && cp < 0xDC00 && peek(j) == '\\' && j->at + 1 < j->s->len &&
        j->s->ptr[j->at + 1] == 'u')
    {
        size_t back = j->at;
        uint32_t low;
        j->at += 2;
        if (!read_hex4(j, &low)) {
            return false;
        }
        if (low >= 0xDC00 && low < 0xE000) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        } else {
            j->at = back;
        }
    }
    mx_sb_cp(j->r, b, cp >= 0xD800 && cp < 0xE000 ? MX_UTF8_REPLACEMENT : cp, mark);
    return true;
}

static mx_value *read_text(reader *j)
{
    mx_sb b = {0};
    j->at++; /* the quote */
    for (;;) {
        size_t from = j->at;
        while (j->at < j->s->len && j->s->ptr[j->at] != '"' && j->s->ptr[j->at] != '\\' &&
               (unsigned char)j->s->ptr[j->at] >= 0x20)
        {
            j->at++;
        }
        mx_sb_range(j->r, &b, j->s, from, j->at);
        int c = peek(j);
        if (c == '"') {
            j->at++;
            return mx_sb_finish(j->r, &b);
        }
        if (c != '\\' || !read_escape(j, &b) || j->r->err != MX_OK) {
            return bad_json(j);
        }
    }
}

static mx_value *read_number(reader *j)
{
    size_t from = j->at;
    bool has_digit = false;
    for (int c = peek(j); c > 0 && strchr("+-.eE0123456789", c) != NULL; c = peek(j)) {
        has_digit = has_digit || (c >= '0' && c <= '9');
        j->at++;
    }
    if (!has_digit) {
        return bad_json(j);
    }
    mx_value *v = mx_value_number_text(j->r->arena, (mx_str){j->s->ptr + from, j->at - from});
    return v == NULL ? mx_run_nomem(j->r) : v;
}

static mx_value *read_value(reader *j);

static mx_value *read_list(reader *j)
{
    mx_value *list = mx_v_seq(j->r, MX_SEQ_LIST, 0);
    j->at++;
    skip_blanks(j);
    if (peek(j) == ']') {
        j->at++;
        return list;
    }
    for (;;) {
        if (!mx_v_push(j->r, list, read_value(j))) {
            return NULL;
        }
        skip_blanks(j);
        int c = peek(j);
        j->at++;
        if (c == ']') {
            return list;
        }
        if (c != ',') {
            return bad_json(j);
        }
    }
}

static mx_value *read_dict(reader *j)
{
    mx_value *dict = mx_v_dict_new(j->r);
    j->at++;
    skip_blanks(j);
    if (peek(j) == '}') {
        j->at++;
        return dict;
    }
    for (;;) {
        skip_blanks(j);
        mx_value *key = peek(j) == '"' ? read_text(j) : bad_json(j);
        skip_blanks(j);
        if (key == NULL || peek(j) != ':') {
            return bad_json(j);
        }
        j->at++;
        if (!mx_v_put(j->r, dict, key, read_value(j))) {
            return NULL;
        }
        skip_blanks(j);
        int c = peek(j);
        j->at++;
        if (c == '}') {
            return dict;
        }
        if (c != ',') {
            return bad_json(j);
        }
    }
}

static bool read_word(reader *j, const char *word)
{
    size_t n = strlen(word);
    if (j->s->len - j->at < n || memcmp(j->s->ptr + j->at, word, n) != 0) {
        return false;
    }
    j->at += n;
    return true;
}

static mx_value *read_value(reader *j)
{
    if (!mx_run_enter(j->r)) {
        return NULL;
    }
    mx_value *v;
    skip_blanks(j);
    switch (peek(j)) {
    case '{':
        v = read_dict(j);
        break;
    case '[':
        v = read_list(j);
        break;
    case '"':
        v = read_text(j);
        break;
    case 't':
    case 'f': {
        bool is_true = peek(j) == 't';
        v = read_word(j, is_true ? "true" : "false") ? mx_v_bool(j->r, is_true) : bad_json(j);
        break;
    }
    case 'n':
        v = read_word(j, "null") ? mx_v_none(j->r) : bad_json(j);
        break;
    default:
        v = read_number(j);
    }
    mx_run_leave(j->r);
    return v;
}

mx_value *mx_v_from_json(mx_run *r, const mx_value *text)
{
    reader j = {r, &text->s, 0};
    mx_value *v = read_value(&j);
    skip_blanks(&j);
    return v != NULL && j.at < text->s.len ? bad_json(&j) : v;
}
