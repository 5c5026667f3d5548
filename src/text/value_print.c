/* SPDX-License-Identifier: MIT
 *
 * Values as text: Python's str() and repr(), and JSON as json.dumps writes it. Strings keep the
 * origin of each byte; the punctuation around them is data in JSON and repr, since it stands
 * between pieces of data. Numbers and names like True are markup: they cannot spell a control
 * token.
 */
#include "text/value_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Shortest digits that read back as f, laid out by Python's rules. Returns the length. */
size_t mx_float_repr(double f, char out[40])
{
    if (isnan(f)) {
        return (size_t)snprintf(out, 40, "nan");
    }
    if (isinf(f)) {
        return (size_t)snprintf(out, 40, f < 0 ? "-inf" : "inf");
    }
    char e[40];
    for (int precision = 0; precision < 17; precision++) {
        snprintf(e, sizeof e, "%.*e", precision, f);
        if (strtod(e, NULL) == f) {
            break;
        }
    }
    /* e is [-]d[.ddd]e[+-]xx */
    char digits[20];
    size_t n = 0;
    const char *p = e + (e[0] == '-');
    for (; *p != 'e'; p++) {
        if (*p != '.') {
            digits[n++] = *p;
        }
    }
    int exponent = atoi(p + 1);
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    char *o = out;
    if (e[0] == '-') {
        *o++ = '-';
    }
    if (exponent < -4 || exponent >= 16) {
        *o++ = digits[0];
        if (n > 1) {
            *o++ = '.';
            memcpy(o, digits + 1, n - 1);
            o += n - 1;
        }
        o += sprintf(o, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return (size_t)(o - out);
    }
    if (exponent < 0) {
        o += sprintf(o, "0.");
        for (int i = -1; i > exponent; i--) {
            *o++ = '0';
        }
        memcpy(o, digits, n);
        o += n;
    } else {
        size_t whole = (size_t)exponent + 1;
        for (size_t i = 0; i < whole; i++) {
            *o++ = i < n ? digits[i] : '0';
        }
        *o++ = '.';
        if (n > whole) {
            memcpy(o, digits + whole, n - whole);
            o += n - whole;
        } else {
            *o++ = '0';
        }
    }
    *o = '\0';
    return (size_t)(o - out);
}

static void add_int(mx_run *r, mx_sb *b, const mx_value *v)
{
    if (v->sub == MX_INT_BIG) {
        mx_sb_add(r, b, v->s.ptr, v->s.len, true);
        return;
    }
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRId64, v->i);
    mx_sb_add(r, b, text, (size_t)n, true);
}

static void repr_text(mx_run *r, mx_sb *b, const mx_text *s)
{
    bool has_single = memchr(s->ptr, '\'', s->len) != NULL;
    char quote = has_single && memchr(s->ptr, '"', s->len) == NULL ? '"' : '\'';
    mx_sb_add(r, b, &quote, 1, false);
    size_t done = 0;
    for (size_t i = 0; i < s->len && r->err == MX_OK;) {
        size_t at = i;
        uint32_t cp = mx_text_next(s, &i);
        char esc[16];
        if (cp == (uint32_t)quote || cp == '\\') {
            snprintf(esc, sizeof esc, "\\%c", (int)cp);
        } else if (cp == '\n' || cp == '\r' || cp == '\t') {
            snprintf(esc, sizeof esc, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        } else if (cp >= 0x20 && (cp < 0x7F || (cp > 0x7F && mx_uc_is_printable(cp)))) {
            continue;
        } else if (cp < 0x100) {
            snprintf(esc, sizeof esc, "\\x%02x", (unsigned)cp);
        } else {
            snprintf(esc, sizeof esc, cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
        }
        mx_sb_range(r, b, s, done, at);
        mx_sb_cstr(r, b, esc, mx_text_mark_at(s, at));
        done = i;
    }
    mx_sb_range(r, b, s, done, s->len);
    mx_sb_add(r, b, &quote, 1, false);
}

static void repr_seq(mx_run *r, mx_sb *b, const mx_value *v)
{
    const mx_seq *s = &v->seq;
    if (v->sub == MX_SEQ_ONCE) {
        mx_sb_cstr(r, b, "<generator object>", false);
        return;
    }
    if (v->sub == MX_SEQ_RANGE && s->n > 0) {
        int64_t step = s->n > 1 ? s->items[1]->i - s->items[0]->i : 1;
        char text[96];
        int n = snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64, s->items[0]->i,
                         s->items[s->n - 1]->i + step);
        n += snprintf(text + n, sizeof text - (size_t)n, step == 1 ? ")" : ", %" PRId64 ")", step);
        mx_sb_add(r, b, text, (size_t)n, false);
        return;
    }
    const char *open = v->sub == MX_SEQ_TUPLE ? "(" : v->sub == MX_SEQ_VIEW ? "dict_view([" : "[";
    const char *shut = v->sub == MX_SEQ_TUPLE ? ")" : v->sub == MX_SEQ_VIEW ? "])" : "]";
    mx_sb_cstr(r, b, open, false);
    for (size_t i = 0; i < s->n && r->err == MX_OK; i++) {
        if (i > 0) {
            mx_sb_cstr(r, b, ", ", false);
        }
        mx_sb_repr(r, b, s->items[i]);
    }
    if (v->sub == MX_SEQ_TUPLE && s->n == 1) {
        mx_sb_cstr(r, b, ",", false);
    }
    mx_sb_cstr(r, b, shut, false);
}

static void repr_dict(mx_run *r, mx_sb *b, const mx_dict *d)
{
    mx_sb_cstr(r, b, "{", false);
    for (size_t i = 0; i < d->n && r->err == MX_OK; i++) {
        if (i > 0) {
            mx_sb_cstr(r, b, ", ", false);
        }
        mx_sb_repr(r, b, d->pairs[i].key);
        mx_sb_cstr(r, b, ": ", false);
        mx_sb_repr(r, b, d->pairs[i].value);
    }
    mx_sb_cstr(r, b, "}", false);
}

static void repr_other(mx_run *r, mx_sb *b, const mx_value *v)
{
    if (v->sub == MX_O_NAMESPACE) {
        mx_sb_cstr(r, b, "<Namespace ", false);
        repr_dict(r, b, &v->dict);
        mx_sb_cstr(r, b, ">", false);
        return;
    }
    mx_sb_cstr(r, b, "<", false);
    mx_sb_cstr(r, b, mx_v_type_name(v), false);
    mx_sb_cstr(r, b, ">", false);
}

void mx_sb_repr(mx_run *r, mx_sb *b, const mx_value *v)
{
    if (v == NULL || !mx_run_enter(r)) {
        return;
    }
    char number[40];
    switch ((mx_value_kind)v->kind) {
    case MX_V_UNDEFINED:
        mx_sb_cstr(r, b, "Undefined", true);
        break;
    case MX_V_NONE:
        mx_sb_cstr(r, b, "None", true);
        break;
    case MX_V_BOOL:
        mx_sb_cstr(r, b, v->b ? "True" : "False", true);
        break;
    case MX_V_INT:
        add_int(r, b, v);
        break;
    case MX_V_FLOAT:
        mx_sb_add(r, b, number, mx_float_repr(v->f, number), true);
        break;
    case MX_V_STRING:
        if (v->s.is_safe) {
            mx_sb_cstr(r, b, "Markup(", false);
        }
        repr_text(r, b, &v->s);
        if (v->s.is_safe) {
            mx_sb_cstr(r, b, ")", false);
        }
        break;
    case MX_V_LIST:
        repr_seq(r, b, v);
        break;
    case MX_V_DICT:
        repr_dict(r, b, &v->dict);
        break;
    case MX_V_OTHER:
        repr_other(r, b, v);
        break;
    }
    mx_run_leave(r);
}

void mx_sb_str(mx_run *r, mx_sb *b, const mx_value *v)
{
    if (v == NULL || mx_v_is(v, MX_V_UNDEFINED)) {
        return; /* prints as nothing */
    }
    if (mx_v_is(v, MX_V_STRING)) {
        mx_sb_text(r, b, &v->s);
    } else {
        mx_sb_repr(r, b, v);
    }
}

mx_value *mx_v_to_str(mx_run *r, mx_value *v)
{
    if (v == NULL || mx_v_is(v, MX_V_STRING)) {
        return v;
    }
    mx_sb b = {0};
    mx_sb_str(r, &b, v);
    return mx_sb_finish(r, &b);
}
