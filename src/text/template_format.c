/* SPDX-License-Identifier: MIT
 *
 * Formatting: "..." % values, and "{}".format(...) with positions, names, attributes, items and the
 * usual specifications. Every piece keeps its origin; padding is data.
 */
#include "text/template_internal.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct spec {
    uint32_t fill;   /* 0 = a blank */
    char align;      /* < > ^ = or 0 for what the type has */
    char sign;       /* + or blank or 0 */
    bool zero, alternate, comma;
    int64_t width, precision; /* -1 = none */
    char type;       /* 0 = what the value has */
} spec;

static void add_fill(mx_run *r, mx_sb *b, const spec *f, int64_t n)
{
    for (; n > 0 && mx_run_step(r, 1); n--) {
        mx_sb_cp(r, b, f->fill ? f->fill : ' ', false);
    }
}

static void add_padded(mx_run *r, mx_sb *b, const spec *f, const mx_text *s, char natural)
{
    int64_t pad = f->width - (int64_t)s->n_chars;
    char align = f->align ? f->align : natural;
    int64_t left = pad <= 0 || align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    add_fill(r, b, f, left);
    mx_sb_text(r, b, s);
    add_fill(r, b, f, pad - left);
}

/* Digits in groups of three, when asked for. */
static void add_digits(mx_run *r, mx_sb *b, const char *p, size_t n, bool comma)
{
    size_t whole = 0;
    while (whole < n && p[whole] >= '0' && p[whole] <= '9') {
        whole++;
    }
    for (size_t i = 0; i < n; i++) {
        if (comma && i > 0 && i < whole && (whole - i) % 3 == 0) {
            mx_sb_cstr(r, b, ",", true);
        }
        mx_sb_add(r, b, p + i, 1, true);
    }
}

static void add_number_text(mx_run *r, mx_sb *b, const spec *f, const char *p, size_t n)
{
    mx_sb body = {0};
    bool is_negative = n > 0 && p[0] == '-';
    add_digits(r, &body, p + is_negative, n - is_negative, f->comma);
    const char *sign = is_negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    mx_sb out = {0};
    mx_sb_cstr(r, &out, sign, true);
    spec zeros = {.fill = f->zero ? '0' : f->fill};
    if (f->zero || f->align == '=') {
        add_fill(r, &out, &zeros, f->width - (int64_t)body.len - (int64_t)strlen(sign));
    }
    mx_sb_add(r, &out, body.ptr, body.len, true);
    mx_value *v = mx_sb_finish(r, &out);
    if (v != NULL) {
        add_padded(r, b, f, &v->s, '>');
    }
}

static bool add_float(mx_run *r, mx_sb *b, const spec *f, double d, char type)
{
    char text[512], form[8] = {'%', '.', '*', type == '%' ? 'f' : type, '\0'};
    int64_t precision = f->precision < 0 ? 6 : f->precision;
    if (precision > 100) {
        mx_run_fail(r, MX_E_LIMIT, "format: a precision above 100");
        return false;
    }
    int n = snprintf(text, sizeof text - 1, form, (int)precision, type == '%' ? d * 100.0 : d);
    if (n > 0 && type == '%') {
        text[n++] = '%';
    }
    add_number_text(r, b, f, text, (size_t)n);
    return true;
}

static bool add_integer(mx_run *r, mx_sb *b, const spec *f, const mx_value *v, char type)
{
    char text[72];
    int64_t i;
    if (!mx_v_as_int(v, &i)) {
        if (!mx_v_is(v, MX_V_INT) || type != 'd') {
            mx_run_fail(r, MX_E_INVALID, "format: an integer is needed");
            return false;
        }
        add_number_text(r, b, f, v->s.ptr, v->s.len);
        return true;
    }
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    uint64_t base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    char *p = text + sizeof text;
    size_t n_digits = 0;
    do {
        *--p = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
        u /= base;
        n_digits++;
    } while (u > 0);
    if (f->alternate && base != 10) {
        *--p = type;
        *--p = '0';
    }
    if (i < 0) {
        *--p = '-';
    }
    add_number_text(r, b, f, p, (size_t)(text + sizeof text - p));
    return true;
}

static bool add_text(mx_run *r, mx_sb *b, const spec *f, mx_value *s, char natural)
{
    if (s == NULL) {
        return false;
    }
    if (f->precision >= 0 && (uint64_t)f->precision < s->s.n_chars) {
        s = mx_v_part(r, s, 0, mx_text_offset(&s->s, (size_t)f->precision));
    }
    if (s != NULL) {
        add_padded(r, b, f, &s->s, natural);
    }
    return s != NULL;
}

static mx_value *repr_of(mx_run *r, const mx_value *v)
{
    mx_sb b = {0};
    mx_sb_repr(r, &b, v);
    return mx_sb_finish(r, &b);
}

static mx_value *escaped_for(mx_run *r, const mx_value *format, mx_value *s)
{
    if (s == NULL || !format->s.is_safe || s->s.is_safe) {
        return s;
    }
    mx_sb b = {0};
    mx_sb_escaped(r, &b, &s->s);
    return mx_sb_finish(r, &b);
}

static bool read_number(const mx_text *s, size_t *at, int64_t *out)
{
    size_t from = *at;
    *out = 0;
    while (*at < s->len && s->ptr[*at] >= '0' && s->ptr[*at] <= '9' && *out < INT32_MAX) {
        *out = *out * 10 + (s->ptr[(*at)++] - '0');
    }
    return *at > from;
}

/* ---- % ---- */

typedef struct percent {
    mx_run *r;
    mx_value *format, *args;
    size_t at, next; /* in the format; in a tuple of arguments */
    bool used;       /* the one argument, or a dict by name */
} percent;

static mx_value *next_argument(percent *p)
{
    bool is_tuple = mx_v_is(p->args, MX_V_LIST) && p->args->sub == MX_SEQ_TUPLE;
    if (is_tuple ? p->next >= p->args->seq.n : p->used) {
        return mx_run_fail(p->r, MX_E_INVALID, "not enough arguments for the format");
    }
    p->used = true;
    return is_tuple ? p->args->seq.items[p->next++] : p->args;
}

/* `*` or digits. */
static bool percent_number(percent *p, int64_t *out)
{
    const mx_text *s = &p->format->s;
    if (p->at < s->len && s->ptr[p->at] == '*') {
        p->at++;
        mx_value *v = next_argument(p);
        return v != NULL && mx_arg_int(p->r, v, 0, out);
    }
    (void)read_number(s, &p->at, out);
    return true;
}

static bool percent_spec(percent *p, spec *f, mx_value **named)
{
    const mx_text *s = &p->format->s;
    *f = (spec){.width = 0, .precision = -1};
    *named = NULL;
    if (p->at < s->len && s->ptr[p->at] == '(') {
        const char *shut = memchr(s->ptr + p->at, ')', s->len - p->at);
        if (shut == NULL || !mx_v_is(p->args, MX_V_DICT)) {
            mx_run_fail(p->r, MX_E_INVALID, "the format needs a dict of values");
            return false;
        }
        mx_str key = {s->ptr + p->at + 1, (size_t)(shut - s->ptr) - p->at - 1};
        mx_pair *pair = mx_dict_find_str(&p->args->dict, key);
        if (pair == NULL) {
            mx_run_fail(p->r, MX_E_INVALID, "the format names a value that is not there");
            return false;
        }
        *named = pair->value;
        p->used = true;
        p->at = (size_t)(shut - s->ptr) + 1;
    }
    for (; p->at < s->len && mx_is_one_of(s->ptr[p->at], "-+ 0#"); p->at++) {
        char c = s->ptr[p->at];
        f->align = c == '-' ? '<' : f->align;
        f->sign = c == '+' || (c == ' ' && f->sign == 0) ? c : f->sign;
        f->zero = f->zero || c == '0';
        f->alternate = f->alternate || c == '#';
    }
    if (!percent_number(p, &f->width)) {
        return false;
    }
    if (f->width < 0) {
        f->align = '<';
        f->width = -f->width;
    }
    if (p->at < s->len && s->ptr[p->at] == '.') {
        p->at++;
        if (!percent_number(p, &f->precision)) {
            return false;
        }
    }
    f->zero = f->zero && f->align != '<';
    while (p->at < s->len && mx_is_one_of(s->ptr[p->at], "hlL")) {
        p->at++;
    }
    if (p->at >= s->len) {
        mx_run_fail(p->r, MX_E_INVALID, "the format ends inside a specification");
        return false;
    }
    f->type = s->ptr[p->at++];
    return true;
}

static bool percent_value(percent *p, mx_sb *b, const spec *f, mx_value *v)
{
    mx_run *r = p->r;
    char type = f->type;
    if (type == 's') {
        return add_text(r, b, f, escaped_for(r, p->format, mx_v_to_str(r, v)), '>');
    }
    if (type == 'r' || type == 'a') {
        return add_text(r, b, f, escaped_for(r, p->format, repr_of(r, v)), '>');
    }
    if (type == 'c' && mx_v_is(v, MX_V_STRING)) {
        return add_text(r, b, f, v, '>');
    }
    if (mx_v_is_number(v)) {
        if (mx_is_one_of(type, "eEfFgG")) {
            return add_float(r, b, f, mx_v_as_double(v), type);
        }
        if (mx_is_one_of(type, "diu")) {
            if (mx_v_is(v, MX_V_FLOAT)) {
                v = v->f > -9e18 && v->f < 9e18 ? mx_v_int(r, (int64_t)v->f) : v;
            }
            return v != NULL && add_integer(r, b, f, v, 'd');
        }
        if (mx_is_one_of(type, "xXo")) {
            return add_integer(r, b, f, v, type);
        }
    }
    mx_run_fail(r, MX_E_INVALID, "the format cannot show a %s here", mx_v_type_name(v));
    return false;
}

mx_value *mx_v_percent(mx_run *r, mx_value *format, mx_value *args)
{
    percent p = {.r = r, .format = format, .args = args};
    const mx_text *s = &format->s;
    mx_sb b = {0};
    while (p.at < s->len && r->err == MX_OK) {
        const char *hit = memchr(s->ptr + p.at, '%', s->len - p.at);
        size_t end = hit == NULL ? s->len : (size_t)(hit - s->ptr);
        mx_sb_range(r, &b, s, p.at, end);
        p.at = end + 1;
        if (hit == NULL) {
            break;
        }
        if (p.at < s->len && s->ptr[p.at] == '%') {
            mx_sb_range(r, &b, s, p.at, p.at + 1);
            p.at++;
            continue;
        }
        spec f;
        mx_value *v;
        if (!percent_spec(&p, &f, &v)) {
            return NULL;
        }
        v = v != NULL ? v : next_argument(&p);
        if (v == NULL || !percent_value(&p, &b, &f, v)) {
            return NULL;
        }
    }
    bool is_tuple = mx_v_is(args, MX_V_LIST) && args->sub == MX_SEQ_TUPLE;
    bool is_box = mx_v_is(args, MX_V_LIST) || mx_v_is(args, MX_V_DICT) ||
                  mx_v_is(args, MX_V_UNDEFINED);
    if (is_tuple ? p.next < args->seq.n : !p.used && !is_box) {
        return mx_run_fail(r, MX_E_INVALID, "the format does not use all arguments");
    }
    mx_value *v = mx_sb_finish(r, &b);
    if (v != NULL) {
        v->s.is_safe = format->s.is_safe;
    }
    return v;
}

/* ---- str.format ---- */

static bool brace_spec(mx_run *r, const mx_text *s, spec *f)
{
    size_t at = 0, second;
    *f = (spec){.precision = -1};
    if (s->len > 0) {
        second = 0;
        uint32_t cp = mx_text_next(s, &second);
        if (second < s->len && mx_is_one_of(s->ptr[second], "<>^=")) {
            f->fill = cp;
            f->align = s->ptr[second];
            at = second + 1;
        } else if (mx_is_one_of(s->ptr[0], "<>^=")) {
            f->align = s->ptr[0];
            at = 1;
        }
    }
    if (at < s->len && mx_is_one_of(s->ptr[at], "+- ")) {
        f->sign = s->ptr[at] == '-' ? '\0' : s->ptr[at];
        at++;
    }
    f->alternate = at < s->len && s->ptr[at] == '#';
    at += f->alternate;
    f->zero = at < s->len && s->ptr[at] == '0' && f->align == 0;
    (void)read_number(s, &at, &f->width);
    f->comma = at < s->len && s->ptr[at] == ',';
    at += f->comma;
    if (at < s->len && s->ptr[at] == '.') {
        at++;
        if (!read_number(s, &at, &f->precision)) {
            at = s->len + 1;
        }
    }
    if (at < s->len) {
        f->type = s->ptr[at++];
    }
    if (at != s->len) {
        mx_run_fail(r, MX_E_INVALID, "a bad format specification");
        return false;
    }
    return true;
}

static bool brace_value(mx_run *r, mx_sb *b, const spec *f, mx_value *v, const mx_value *format)
{
    char type = f->type;
    bool is_number = mx_v_is_number(v) && !(mx_v_is(v, MX_V_BOOL) && type == 0);
    if (!is_number || type == 's') {
        if (type != 0 && type != 's') {
            mx_run_fail(r, MX_E_INVALID, "format: '%c' cannot show a %s", type, mx_v_type_name(v));
            return false;
        }
        return add_text(r, b, f, escaped_for(r, format, mx_v_to_str(r, v)), '<');
    }
    if (mx_is_one_of(type, "eEfFgG%")) {
        return add_float(r, b, f, mx_v_as_double(v), type);
    }
    if (mx_v_is(v, MX_V_FLOAT)) {
        if (type != 0) {
            mx_run_fail(r, MX_E_INVALID, "format: '%c' cannot show a float", type);
            return false;
        }
        if (f->precision >= 0) {
            return add_float(r, b, f, v->f, 'g');
        }
        char text[40];
        add_number_text(r, b, f, text, mx_float_repr(v->f, text));
        return true;
    }
    if (type != 0 && !mx_is_one_of(type, "dxXob")) {
        mx_run_fail(r, MX_E_INVALID, "format: '%c' cannot show an integer", type);
        return false;
    }
    return add_integer(r, b, f, v, type ? type : 'd');
}

typedef struct braces {
    mx_run *r;
    mx_value *format;
    const mx_args *args;
    size_t next; /* for {} without a number */
} braces;

/* The value that "name.attribute[item]" names. */
static mx_value *brace_field(braces *p, size_t from, size_t to)
{
    mx_run *r = p->r;
    const char *s = p->format->s.ptr;
    size_t at = from;
    while (at < to && s[at] != '.' && s[at] != '[') {
        at++;
    }
    mx_text name = {.ptr = s + from, .len = at - from};
    mx_value *v = NULL;
    int64_t number = (int64_t)p->next;
    size_t used = 0;
    if (name.len == 0 || (read_number(&name, &used, &number) && used == name.len)) {
        p->next += name.len == 0;
        v = number < (int64_t)p->args->n_pos ? p->args->pos[number] : NULL;
    }
    for (size_t i = 0; v == NULL && i < p->args->n_kw; i++) {
        if (mx_str_eq(p->args->kw_names[i], (mx_str){name.ptr, name.len})) {
            v = p->args->kw[i];
        }
    }
    if (v == NULL) {
        return mx_run_fail(r, MX_E_INVALID, "format: a value is missing");
    }
    while (at < to && v != NULL) {
        bool is_item = s[at++] == '[';
        size_t begin = at;
        while (at < to && (is_item ? s[at] != ']' : s[at] != '.' && s[at] != '[')) {
            at++;
        }
        mx_text part = {.ptr = s + begin, .len = at - begin};
        used = 0;
        if (is_item && read_number(&part, &used, &number) && used == part.len) {
            v = mx_item(r, v, mx_v_int(r, number));
        } else if (is_item) {
            mx_value *key = mx_v_part(r, p->format, begin, at);
            v = key == NULL ? NULL : mx_item(r, v, key);
        } else {
            v = mx_attr(r, v, (mx_str){part.ptr, part.len});
        }
        at += is_item;
    }
    return v;
}

/* One {...}, whose inside is [from, to). */
static bool brace_piece(braces *p, mx_sb *b, size_t from, size_t to)
{
    const char *s = p->format->s.ptr;
    const char *colon = memchr(s + from, ':', to - from);
    size_t field_end = colon == NULL ? to : (size_t)(colon - s);
    const char *bang = memchr(s + from, '!', field_end - from);
    size_t name_end = bang == NULL ? field_end : (size_t)(bang - s);
    mx_value *v = brace_field(p, from, name_end);
    mx_text text = {0};
    spec f;
    if (v == NULL) {
        return false;
    }
    if (bang != NULL) {
        v = bang + 1 < s + to && bang[1] == 'r' ? repr_of(p->r, v) : mx_v_to_str(p->r, v);
    }
    if (colon != NULL) {
        text = (mx_text){.ptr = colon + 1, .len = to - field_end - 1};
    }
    return v != NULL && brace_spec(p->r, &text, &f) && brace_value(p->r, b, &f, v, p->format);
}

mx_value *mx_text_format(mx_run *r, mx_value *self, const mx_args *args)
{
    braces p = {.r = r, .format = self, .args = args};
    const mx_text *s = &self->s;
    mx_sb b = {0};
    for (size_t at = 0; at < s->len && r->err == MX_OK;) {
        char c = s->ptr[at];
        if ((c == '{' || c == '}') && at + 1 < s->len && s->ptr[at + 1] == c) {
            mx_sb_range(r, &b, s, at, at + 1);
            at += 2;
        } else if (c == '{') {
            const char *shut = memchr(s->ptr + at, '}', s->len - at);
            if (shut == NULL) {
                return mx_run_fail(r, MX_E_INVALID, "format: '}' is missing");
            }
            size_t end = (size_t)(shut - s->ptr);
            if (!brace_piece(&p, &b, at + 1, end)) {
                return NULL;
            }
            at = end + 1;
        } else if (c == '}') {
            return mx_run_fail(r, MX_E_INVALID, "format: a lone '}'");
        } else {
            size_t end = at;
            while (end < s->len && s->ptr[end] != '{' && s->ptr[end] != '}') {
                end++;
            }
            mx_sb_range(r, &b, s, at, end);
            at = end;
        }
    }
    mx_value *v = mx_sb_finish(r, &b);
    if (v != NULL) {
        v->s.is_safe = self->s.is_safe;
    }
    return v;
}
