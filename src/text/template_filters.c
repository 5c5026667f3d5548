/* SPDX-License-Identifier: MIT
 *
 * Filters on texts and numbers. They take whatever comes, as Jinja's do: most turn their input into
 * a string first. tojson is the one that chat templates are written for, without HTML escapes.
 */
#include "text/template_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static mx_value *cased(mx_run *r, mx_value *v, const mx_args *args, int which)
{
    mx_value *s = mx_bind(r, "this filter", args, NULL, 0, 0, NULL) ? mx_v_to_str(r, v) : NULL;
    return s == NULL ? NULL : mx_text_cased(r, s, which);
}

static mx_value *f_upper(mx_run *r, mx_value *v, const mx_args *args)
{
    return cased(r, v, args, MX_CASE_UPPER);
}

static mx_value *f_lower(mx_run *r, mx_value *v, const mx_args *args)
{
    return cased(r, v, args, MX_CASE_LOWER);
}

/* A method of strings as a filter. */
static mx_value *as_method(mx_run *r, mx_value *v, const mx_args *args, const char *name)
{
    mx_value *s = mx_v_to_str(r, v);
    mx_value *m = s == NULL ? NULL : mx_find_method(r, s, mx_str_of(name));
    return m == NULL ? NULL : mx_call_method(r, m, args);
}

static mx_value *f_capitalize(mx_run *r, mx_value *v, const mx_args *args)
{
    return as_method(r, v, args, "capitalize");
}

static mx_value *f_trim(mx_run *r, mx_value *v, const mx_args *args)
{
    return as_method(r, v, args, "strip");
}

static mx_value *f_center(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"width"};
    mx_value *a[1];
    if (!mx_bind(r, "center", args, names, 1, 0, a)) {
        return NULL;
    }
    mx_value *width = a[0] != NULL ? a[0] : mx_v_int(r, 80);
    return width == NULL ? NULL : as_method(r, v, &(mx_args){.pos = &width, .n_pos = 1}, "center");
}

/* Each word with a capital; words begin behind blanks and opening brackets, unlike str.title. */
static mx_value *f_title(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *s = mx_bind(r, "title", args, NULL, 0, 0, NULL) ? mx_v_to_str(r, v) : NULL;
    mx_sb b = {0};
    bool starts_word = true;
    for (size_t at = 0; s != NULL && at < s->s.len && r->err == MX_OK;) {
        size_t from = at;
        uint32_t out[3], cp = mx_text_next(&s->s, &at);
        size_t n = mx_uc_case(cp, starts_word ? MX_CASE_UPPER : MX_CASE_LOWER, out);
        for (size_t i = 0; i < n; i++) {
            mx_sb_cp(r, &b, out[i], mx_text_mark_at(&s->s, from));
        }
        starts_word = mx_uc_is_space(cp) || (cp < 0x80 && mx_is_one_of((int)cp, "-({[<"));
    }
    return s == NULL ? NULL : mx_sb_finish(r, &b);
}

static mx_value *f_replace(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"old", "new", "count"};
    mx_value *a[3];
    int64_t count = -1;
    if (!mx_bind(r, "replace", args, names, 3, 2, a)) {
        return NULL;
    }
    if (a[2] != NULL && !mx_v_is(a[2], MX_V_NONE) && !mx_arg_int(r, a[2], -1, &count)) {
        return NULL;
    }
    mx_value *s = mx_v_to_str(r, v), *old = mx_v_to_str(r, a[0]), *new = mx_v_to_str(r, a[1]);
    if (s == NULL || old == NULL || new == NULL) {
        return NULL;
    }
    mx_value *plain = mx_v_part(r, s, 0, s->s.len); /* the filter forgets what was safe */
    if (plain == NULL) {
        return NULL;
    }
    plain->s.is_safe = false;
    return mx_text_replace(r, plain, old, new, count);
}

static mx_value *f_string(mx_run *r, mx_value *v, const mx_args *args)
{
    return mx_bind(r, "string", args, NULL, 0, 0, NULL) ? mx_v_to_str(r, v) : NULL;
}

static mx_value *f_safe(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *s = f_string(r, v, args);
    mx_value *safe = s == NULL ? NULL : mx_v_part(r, s, 0, s->s.len);
    if (safe != NULL) {
        safe->s.is_safe = true;
    }
    return safe;
}

static mx_value *f_forceescape(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *s = f_string(r, v, args);
    mx_sb b = {0};
    if (s == NULL) {
        return NULL;
    }
    mx_sb_escaped(r, &b, &s->s);
    mx_value *out = mx_sb_finish(r, &b);
    if (out != NULL) {
        out->s.is_safe = true;
    }
    return out;
}

static mx_value *f_escape(mx_run *r, mx_value *v, const mx_args *args)
{
    return mx_v_is(v, MX_V_STRING) && v->s.is_safe ? v : f_forceescape(r, v, args);
}

static mx_value *f_indent(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"width", "first", "blank"};
    mx_value *a[3];
    int64_t width = 4;
    if (!mx_bind(r, "indent", args, names, 3, 0, a) || mx_arg_text(r, "indent", v) == NULL) {
        return NULL;
    }
    mx_value *pad = a[0] != NULL && mx_v_is(a[0], MX_V_STRING) ? a[0] : NULL;
    if (pad == NULL) {
        mx_value *blank = mx_v_cstr(r, " ");
        if (blank == NULL || !mx_arg_int(r, a[0], 4, &width) ||
            (pad = mx_v_repeat(r, blank, width)) == NULL)
        {
            return NULL;
        }
    }
    bool first = a[1] != NULL && mx_v_truthy(a[1]), blank = a[2] != NULL && mx_v_truthy(a[2]);
    /* A newline at the end makes the last, perhaps empty, line count. */
    mx_sb whole = {0}, b = {0};
    mx_sb_text(r, &whole, &v->s);
    mx_sb_cstr(r, &whole, "\n", true);
    mx_value *s = mx_sb_finish(r, &whole);
    mx_value *lines = s == NULL ? NULL : mx_text_lines(r, s, false);
    for (size_t i = 0; lines != NULL && i < lines->seq.n; i++) {
        const mx_text *line = &lines->seq.items[i]->s;
        if (i > 0) {
            mx_sb_cstr(r, &b, "\n", true);
        }
        if (i == 0 ? first : (blank || line->len > 0)) {
            mx_sb_text(r, &b, &pad->s);
        }
        mx_sb_text(r, &b, line);
    }
    mx_value *out = lines == NULL ? NULL : mx_sb_finish(r, &b);
    if (out != NULL) {
        out->s.is_safe = v->s.is_safe;
    }
    return out;
}

static mx_value *f_wordcount(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *s = f_string(r, v, args);
    size_t n = 0;
    bool inside = false;
    for (size_t at = 0; s != NULL && at < s->s.len;) {
        uint32_t cp = mx_text_next(&s->s, &at);
        bool is_word = cp == '_' || mx_uc_is_alpha(cp) || mx_uc_is_digit(cp);
        n += is_word && !inside;
        inside = is_word;
    }
    return s != NULL && mx_run_step(r, s->s.len / 8) ? mx_v_size(r, n) : NULL;
}

static mx_value *f_truncate(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"length", "killwords", "end", "leeway"};
    mx_value *a[4];
    int64_t length, leeway;
    size_t n;
    if (!mx_bind(r, "truncate", args, names, 4, 0, a) || !mx_arg_int(r, a[0], 255, &length) ||
        !mx_arg_int(r, a[3], 5, &leeway) || !mx_v_length(r, v, &n))
    {
        return NULL;
    }
    mx_value *end = a[2] != NULL ? mx_arg_text(r, "truncate", a[2]) : mx_v_cstr(r, "...");
    if (end == NULL) {
        return NULL;
    }
    int64_t keep = length - (int64_t)end->s.n_chars;
    if (keep < 0 || leeway < 0) {
        return mx_run_fail(r, MX_E_INVALID, "truncate: the length is less than that of the end");
    }
    if ((int64_t)n - length <= leeway) {
        return v;
    }
    if (mx_arg_text(r, "truncate", v) == NULL) {
        return NULL;
    }
    size_t cut = mx_text_offset(&v->s, (size_t)keep);
    bool kill = a[1] != NULL && mx_v_truthy(a[1]);
    const char *blank = kill || cut == 0 ? NULL : memrchr(v->s.ptr, ' ', cut);
    mx_sb b = {0};
    mx_sb_range(r, &b, &v->s, 0, blank == NULL ? cut : (size_t)(blank - v->s.ptr));
    mx_sb_text(r, &b, &end->s);
    return mx_sb_finish(r, &b);
}

static mx_value *f_format(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *s = mx_v_to_str(r, v);
    mx_value *given = args->n_kw > 0 ? mx_v_dict_new(r) : mx_v_seq(r, MX_SEQ_TUPLE, args->n_pos);
    if (s == NULL || given == NULL) {
        return NULL;
    }
    if (args->n_kw > 0 && args->n_pos > 0) {
        return mx_run_fail(r, MX_E_INVALID, "format takes positions or names, not both");
    }
    for (size_t i = 0; i < args->n_pos; i++) {
        if (!mx_v_push(r, given, args->pos[i])) {
            return NULL;
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        mx_value *name = mx_v_text(r, args->kw_names[i].ptr, args->kw_names[i].len, true);
        if (!mx_v_put(r, given, name, args->kw[i])) {
            return NULL;
        }
    }
    return mx_v_percent(r, s, given);
}

/* ---- JSON ---- */

/* The indent of tojson: a number of blanks or the text itself. */
static bool json_indent(mx_run *r, mx_value *v, mx_json_style *style)
{
    if (v == NULL || mx_v_is(v, MX_V_NONE)) {
        return true;
    }
    style->is_pretty = true;
    if (!mx_v_is(v, MX_V_STRING)) {
        int64_t n;
        mx_value *blank = mx_v_text(r, " ", 1, false);
        if (blank == NULL || !mx_arg_int(r, v, 0, &n) || (v = mx_v_repeat(r, blank, n)) == NULL) {
            return false;
        }
    }
    style->indent = v->s;
    return true;
}

static mx_value *f_tojson(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys"};
    mx_value *a[4];
    mx_json_style style = {.key_sep = {.ptr = ": ", .len = 2, .n_chars = 2}};
    if (!mx_bind(r, "tojson", args, names, 4, 0, a) || !json_indent(r, a[1], &style)) {
        return NULL;
    }
    style.item_sep = style.is_pretty ? (mx_text){.ptr = ",", .len = 1, .n_chars = 1}
                                     : (mx_text){.ptr = ", ", .len = 2, .n_chars = 2};
    style.ensure_ascii = a[0] != NULL && mx_v_truthy(a[0]);
    style.sort_keys = a[3] != NULL && mx_v_truthy(a[3]);
    if (a[2] != NULL && !mx_v_is(a[2], MX_V_NONE)) {
        mx_value *two = mx_v_list_of(r, a[2]);
        if (two == NULL || two->seq.n != 2 || !mx_v_is(two->seq.items[0], MX_V_STRING) ||
            !mx_v_is(two->seq.items[1], MX_V_STRING))
        {
            return mx_run_fail(r, MX_E_INVALID, "tojson: separators must be two strings");
        }
        style.item_sep = two->seq.items[0]->s;
        style.key_sep = two->seq.items[1]->s;
    }
    return mx_v_to_json(r, v, &style);
}

static mx_value *f_from_json(mx_run *r, mx_value *v, const mx_args *args)
{
    return mx_bind(r, "from_json", args, NULL, 0, 0, NULL) && mx_arg_text(r, "from_json", v) != NULL
               ? mx_v_from_json(r, v) : NULL;
}

/* ---- numbers ---- */

/* The whole text as a number, blanks around it aside; false when it is none. */
static bool parse_double(mx_run *r, const mx_text *s, double *out)
{
    char text[400];
    mx_value v = {.kind = MX_V_STRING, .s = *s};
    mx_value *bare = mx_text_strip(r, &v, NULL, true, true);
    if (bare == NULL || bare->s.len == 0 || bare->s.len >= sizeof text ||
        memchr(bare->s.ptr, 'x', bare->s.len) != NULL ||
        memchr(bare->s.ptr, 'X', bare->s.len) != NULL ||
        memchr(bare->s.ptr, '(', bare->s.len) != NULL)
    {
        return false;
    }
    memcpy(text, bare->s.ptr, bare->s.len);
    text[bare->s.len] = '\0';
    char *end;
    *out = strtod(text, &end);
    return end == text + bare->s.len;
}

static mx_value *whole_number(mx_run *r, double f)
{
    f = trunc(f);
    if (isnan(f) || isinf(f)) {
        return NULL;
    }
    if (f >= -0x1p63 && f < 0x1p63) {
        return mx_v_int(r, (int64_t)f);
    }
    char text[400]; /* the largest double has 309 digits */
    int n = snprintf(text, sizeof text, "%.0f", f);
    mx_value *v = mx_value_number_text(r->arena, (mx_str){text, (size_t)n});
    return v == NULL ? mx_run_nomem(r) : v;
}

static bool parse_integer(const mx_text *s, int64_t base, char *text, size_t cap, mx_str *out,
                          int64_t *small)
{
    if (s->len == 0 || s->len >= cap) {
        return false;
    }
    memcpy(text, s->ptr, s->len);
    text[s->len] = '\0';
    *out = (mx_str){text, s->len};
    char *end;
    errno = 0;
    *small = strtoll(text, &end, (int)base);
    return end == text + s->len;
}

static mx_value *text_to_int(mx_run *r, mx_value *v, int64_t base)
{
    char text[400];
    mx_str digits;
    int64_t small;
    double f;
    mx_value *bare = mx_text_strip(r, v, NULL, true, true);
    if (bare == NULL) {
        return NULL;
    }
    if (parse_integer(&bare->s, base, text, sizeof text, &digits, &small)) {
        if (errno == 0) {
            return mx_v_int(r, small);
        }
        if (base == 10) {
            if (digits.ptr[0] == '+') {
                digits.ptr++;
                digits.len--;
            }
            mx_value *big = mx_value_number_text(r->arena, digits);
            return big == NULL ? mx_run_nomem(r) : big;
        }
    }
    return parse_double(r, &v->s, &f) ? whole_number(r, f) : NULL;
}

static mx_value *f_int(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"default", "base"};
    mx_value *a[2];
    int64_t base, i;
    if (!mx_bind(r, "int", args, names, 2, 0, a) || !mx_arg_int(r, a[1], 10, &base)) {
        return NULL;
    }
    if (mx_v_is(v, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, v);
    }
    if (base != 0 && (base < 2 || base > 36)) {
        return mx_run_fail(r, MX_E_INVALID, "int: a base of %lld", (long long)base);
    }
    mx_value *out = NULL;
    if (mx_v_as_int(v, &i)) {
        out = mx_v_int(r, i);
    } else if (mx_v_is(v, MX_V_INT)) {
        out = v;
    } else if (mx_v_is(v, MX_V_FLOAT)) {
        out = whole_number(r, v->f);
    } else if (mx_v_is(v, MX_V_STRING)) {
        out = text_to_int(r, v, base);
    }
    if (out == NULL && r->err == MX_OK) {
        out = a[0] != NULL ? a[0] : mx_v_int(r, 0);
    }
    return out;
}

static mx_value *f_float(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"default"};
    mx_value *a[1];
    double f;
    if (!mx_bind(r, "float", args, names, 1, 0, a)) {
        return NULL;
    }
    if (mx_v_is(v, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, v);
    }
    if (mx_v_is_number(v)) {
        return mx_v_float(r, mx_v_as_double(v));
    }
    if (mx_v_is(v, MX_V_STRING) && parse_double(r, &v->s, &f)) {
        return mx_v_float(r, f);
    }
    return a[0] != NULL ? a[0] : mx_v_float(r, 0.0);
}

static mx_value *f_abs(mx_run *r, mx_value *v, const mx_args *args)
{
    if (!mx_bind(r, "abs", args, NULL, 0, 0, NULL)) {
        return NULL;
    }
    if (!mx_v_is_number(v)) {
        return mx_run_fail(r, MX_E_INVALID, "abs needs a number, not a %s", mx_v_type_name(v));
    }
    if (mx_v_is(v, MX_V_FLOAT)) {
        return mx_v_float(r, fabs(v->f));
    }
    int64_t i;
    bool is_negative = mx_v_as_int(v, &i) ? i < 0 : v->s.ptr[0] == '-';
    return is_negative ? mx_v_negate(r, v) : mx_v_is(v, MX_V_BOOL) ? mx_v_int(r, v->b) : v;
}

/* Round half to even in decimal, as Python does: through the exact decimal text of the double. */
static double round_common(double f, int64_t digits)
{
    char text[700];
    if (digits > 330 || !isfinite(f)) {
        return f;
    }
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        return strtod(text, NULL);
    }
    if (digits < -330) {
        return copysign(0.0, f);
    }
    double unit = pow(10.0, (double)-digits);
    return nearbyint(f / unit) * unit;
}

static mx_value *f_round(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"precision", "method"};
    mx_value *a[2];
    int64_t digits;
    if (!mx_bind(r, "round", args, names, 2, 0, a) || !mx_arg_int(r, a[0], 0, &digits)) {
        return NULL;
    }
    if (!mx_v_is_number(v)) {
        return mx_run_fail(r, MX_E_INVALID, "round needs a number, not a %s", mx_v_type_name(v));
    }
    mx_str method = a[1] != NULL && mx_v_is(a[1], MX_V_STRING) ? mx_v_str(a[1]) : MX_STR("common");
    double f = mx_v_as_double(v), unit = pow(10.0, (double)digits);
    if (mx_str_eq(method, MX_STR("ceil"))) {
        return mx_v_float(r, ceil(f * unit) / unit);
    }
    if (mx_str_eq(method, MX_STR("floor"))) {
        return mx_v_float(r, floor(f * unit) / unit);
    }
    if (!mx_str_eq(method, MX_STR("common"))) {
        return mx_run_fail(r, MX_E_INVALID, "round: the method must be common, ceil or floor");
    }
    if (!mx_v_is(v, MX_V_FLOAT)) {
        return digits >= 0 ? (mx_v_is(v, MX_V_BOOL) ? mx_v_int(r, v->b) : v)
                           : whole_number(r, round_common(f, digits));
    }
    return mx_v_float(r, round_common(f, digits));
}

const mx_builtin mx_text_filters[] = {
    {"abs", f_abs},           {"capitalize", f_capitalize}, {"center", f_center},
    {"e", f_escape},          {"escape", f_escape},         {"float", f_float},
    {"forceescape", f_forceescape}, {"format", f_format},   {"from_json", f_from_json},
    {"fromjson", f_from_json}, {"indent", f_indent},        {"int", f_int},
    {"lower", f_lower},       {"replace", f_replace},       {"round", f_round},
    {"safe", f_safe},         {"string", f_string},         {"title", f_title},
    {"tojson", f_tojson},     {"trim", f_trim},             {"truncate", f_truncate},
    {"upper", f_upper},       {"wordcount", f_wordcount},
};
const size_t mx_n_text_filters = MX_COUNT(mx_text_filters);
