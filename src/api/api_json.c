/* SPDX-License-Identifier: MIT
 *
 * Strict JSON in front of json-c. json-c keeps key order and survives lone surrogates, but even its
 * strict mode lets through what is not JSON (NaN, "1.", "-01", raw control characters, ill-formed
 * UTF-8), cuts a key at \u0000, saturates integers beyond 64 bits and reports errors without a
 * line. So one pass over the bytes checks the grammar first; json-c then only builds the tree of a
 * text that is known to be good. An integer beyond 64 bits is handed to json-c with "e0" behind it:
 * as a float it keeps its text, and mx_json_number_text takes the "e0" off again.
 */
#include "api/api_json.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool mx_problem_set(mx_problem *p, unsigned status, const char *code, const char *param,
                    const char *fmt, ...)
{
    if (p->status != 0) {
        return false;
    }
    p->status = status;
    p->code = code;
    snprintf(p->param, sizeof p->param, "%s", param == NULL ? "" : param);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->message, sizeof p->message, fmt, ap);
    va_end(ap);
    return false;
}

bool mx_problem_field(mx_problem *p, const char *param, const char *fmt, ...)
{
    char text[sizeof p->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mx_problem_set(p, 400, NULL, param, "%s", text);
}

/* ---- the strict check ------------------------------------------------------------------------ */

typedef struct scan {
    const char *begin, *p, *end;
    mx_errbuf *eb;
    size_t n_values;
    size_t n_huge;      /* integers beyond 64 bits */
    mx_buf patched;     /* the text with "e0" behind them, once there is one */
    const char *copied; /* up to where `patched` holds the text */
} scan;

static mx_err bad(scan *s, const char *at, const char *what)
{
    size_t line = 1;
    const char *start = s->begin;
    for (const char *q = s->begin; q < at; q++) {
        if (*q == '\n') {
            line++;
            start = q + 1;
        }
    }
    return mx_fail(s->eb, MX_E_FORMAT, "%s at line %zu, column %zu (byte %zu)", what, line,
                   (size_t)(at - start) + 1, (size_t)(at - s->begin));
}

static void skip_space(scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\n' || *s->p == '\r')) {
        s->p++;
    }
}

static bool is_digit(const scan *s)
{
    return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* p is behind the backslash. */
static mx_err scan_escape(scan *s, bool is_key)
{
    if (s->p == s->end) {
        return bad(s, s->p, "the text ends inside a string");
    }
    if (*s->p != 'u') {
        if (strchr("\"\\/bfnrt", *s->p) == NULL || *s->p == '\0') {
            return bad(s, s->p, "unknown escape in a string");
        }
        s->p++;
        return MX_OK;
    }
    unsigned code = 0;
    for (int i = 1; i <= 4; i++) {
        int v = s->p + i < s->end ? hex_value(s->p[i]) : -1;
        if (v < 0) {
            return bad(s, s->p, "\\u needs four hexadecimal digits");
        }
        code = code << 4 | (unsigned)v;
    }
    if (code == 0 && is_key) {
        return bad(s, s->p, "\\u0000 in a key is not supported");
    }
    s->p += 5;
    return MX_OK;
}

/* p is at the opening quote. */
static mx_err scan_string(scan *s, bool is_key)
{
    s->p++;
    for (;;) {
        if (s->p == s->end) {
            return bad(s, s->p, "the text ends inside a string");
        }
        unsigned char c = (unsigned char)*s->p;
        if (c == '"') {
            s->p++;
            return MX_OK;
        }
        if (c < 0x20) {
            return bad(s, s->p, "raw control character in a string (write it as \\u00xx)");
        }
        s->p++;
        if (c == '\\') {
            MX_TRY(scan_escape(s, is_key));
        }
    }
}

static bool is_beyond_64_bits(const char *digits, size_t n, bool negative)
{
    const char *limit = negative ? "9223372036854775808" : "18446744073709551615";
    size_t n_limit = strlen(limit);
    return n > n_limit || (n == n_limit && memcmp(digits, limit, n) > 0);
}

static mx_err scan_number(scan *s)
{
    bool negative = *s->p == '-';
    s->p += negative;
    const char *digits = s->p;
    if (!is_digit(s)) {
        return bad(s, s->p, "a digit is missing in a number");
    }
    if (*s->p == '0') {
        s->p++;
        if (is_digit(s)) {
            return bad(s, s->p, "a number must not start with 0");
        }
    }
    while (is_digit(s)) {
        s->p++;
    }
    size_t n_digits = (size_t)(s->p - digits);
    bool is_integer = true;
    if (s->p < s->end && *s->p == '.') {
        is_integer = false;
        s->p++;
        if (!is_digit(s)) {
            return bad(s, s->p, "a digit is missing behind the decimal point");
        }
        while (is_digit(s)) {
            s->p++;
        }
    }
    if (s->p < s->end && (*s->p == 'e' || *s->p == 'E')) {
        is_integer = false;
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-')) {
            s->p++;
        }
        if (!is_digit(s)) {
            return bad(s, s->p, "a digit is missing in an exponent");
        }
        while (is_digit(s)) {
            s->p++;
        }
    }
    if (is_integer && is_beyond_64_bits(digits, n_digits, negative)) {
        mx_buf_append(&s->patched, s->copied, (size_t)(s->p - s->copied));
        mx_buf_str(&s->patched, "e0");
        s->copied = s->p;
        s->n_huge++;
    }
    return MX_OK;
}

static mx_err scan_word(scan *s)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < MX_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, words[i], n) == 0) {
            s->p += n;
            return MX_OK;
        }
    }
    if (*s->p == 'N' || *s->p == 'I') {
        return bad(s, s->p, "NaN and Infinity are not JSON");
    }
    return bad(s, s->p, "a value was expected");
}

static mx_err scan_scalar(scan *s)
{
    if (s->p == s->end) {
        return bad(s, s->p, "the text ends where a value was expected");
    }
    if (*s->p == '"') {
        return scan_string(s, false);
    }
    return *s->p == '-' || is_digit(s) ? scan_number(s) : scan_word(s);
}

static mx_err scan_key(scan *s)
{
    skip_space(s);
    if (s->p == s->end || *s->p != '"') {
        return bad(s, s->p, "a key in double quotes was expected");
    }
    MX_TRY(scan_string(s, true));
    skip_space(s);
    if (s->p == s->end || *s->p != ':') {
        return bad(s, s->p, "':' was expected behind a key");
    }
    s->p++;
    return MX_OK;
}

/* One value of any depth; the open brackets are on a stack of our own. */
static mx_err scan_value(scan *s)
{
    char open[MX_JSON_MAX_DEPTH];
    size_t depth = 0;
    for (;;) {
        if (++s->n_values > MX_JSON_MAX_VALUES) {
            return mx_fail(s->eb, MX_E_LIMIT, "more than %d values", MX_JSON_MAX_VALUES);
        }
        skip_space(s);
        bool is_open = s->p < s->end && (*s->p == '{' || *s->p == '[');
        if (is_open) {
            if (depth == MX_JSON_MAX_DEPTH) {
                bad(s, s->p, "nested too deeply");
                return MX_E_LIMIT;
            }
            char c = open[depth++] = *s->p++;
            skip_space(s);
            if (s->p < s->end && *s->p == (c == '{' ? '}' : ']')) {
                s->p++;
                depth--;
            } else {
                if (c == '{') {
                    MX_TRY(scan_key(s));
                }
                continue;
            }
        } else {
            MX_TRY(scan_scalar(s));
        }
        /* A value has ended: close brackets, or go on behind a comma. */
        for (;;) {
            if (depth == 0) {
                return MX_OK;
            }
            skip_space(s);
            char c = s->p < s->end ? *s->p : '\0';
            bool in_object = open[depth - 1] == '{';
            if (c == (in_object ? '}' : ']')) {
                s->p++;
                depth--;
            } else if (c == ',') {
                s->p++;
                if (in_object) {
                    MX_TRY(scan_key(s));
                }
                break;
            } else {
                return bad(s, s->p, in_object ? "',' or '}' was expected" : "',' or ']' was "
                           "expected");
            }
        }
    }
}

static mx_err scan_utf8(scan *s)
{
    if (mx_utf8_valid(s->begin, (size_t)(s->end - s->begin))) {
        return MX_OK;
    }
    for (const char *q = s->begin; q < s->end;) {
        uint32_t cp;
        size_t n = mx_utf8_decode(q, (size_t)(s->end - q), &cp);
        if (!mx_utf8_valid(q, n)) {
            return bad(s, q, "the text is not valid UTF-8");
        }
        q += n;
    }
    return bad(s, s->end, "the text is not valid UTF-8");
}

static mx_err build_tree(struct json_object **out, mx_str text, mx_errbuf *eb)
{
    if (text.len > (size_t)INT32_MAX - 1) {
        return mx_fail(eb, MX_E_LIMIT, "the text is longer than 2 GiB");
    }
    /* json-c counts the top level as a level and wants room for one more. */
    struct json_tokener *tok = json_tokener_new_ex(MX_JSON_MAX_DEPTH + 2);
    if (tok == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    json_tokener_set_flags(tok, JSON_TOKENER_STRICT);
    struct json_object *o = json_tokener_parse_ex(tok, text.ptr, (int)text.len);
    enum json_tokener_error e = json_tokener_get_error(tok);
    /* a bare number at the end could go on: say that it does not */
    if (e == json_tokener_continue) {
        o = json_tokener_parse_ex(tok, "", 1);
        e = json_tokener_get_error(tok);
    }
    size_t at = json_tokener_get_parse_end(tok);
    json_tokener_free(tok);
    if (e != json_tokener_success) {
        json_object_put(o);
        return mx_fail(eb, MX_E_FORMAT, "%s (byte %zu)", json_tokener_error_desc(e), at);
    }
    *out = o;
    return MX_OK;
}

mx_err mx_json_parse(struct json_object **out, mx_str text, mx_errbuf *eb)
{
    *out = NULL;
    if (text.len == 0) {
        return mx_fail(eb, MX_E_FORMAT, "the text is empty");
    }
    scan s = {.begin = text.ptr, .p = text.ptr, .end = text.ptr + text.len, .eb = eb,
              .copied = text.ptr};
    mx_err err = scan_utf8(&s);
    if (err == MX_OK) {
        err = scan_value(&s);
    }
    if (err == MX_OK) {
        skip_space(&s);
        if (s.p != s.end) {
            err = bad(&s, s.p, "something follows the end of the value");
        }
    }
    if (err == MX_OK && s.n_huge > 0) {
        mx_buf_append(&s.patched, s.copied, (size_t)(s.end - s.copied));
        text = mx_buf_view(&s.patched);
        if (s.patched.failed) {
            err = mx_fail(eb, MX_E_NOMEM, "out of memory");
        }
    }
    if (err == MX_OK) {
        err = build_tree(out, text, eb);
    }
    mx_buf_free(&s.patched);
    return err;
}

/* ---- access ---------------------------------------------------------------------------------- */

struct json_object *mx_json_field(struct json_object *object, const char *name)
{
    struct json_object *v = NULL;
    return json_object_object_get_ex(object, name, &v) ? v : NULL;
}

mx_str mx_json_text(struct json_object *string)
{
    return (mx_str){json_object_get_string(string), (size_t)json_object_get_string_len(string)};
}

mx_str mx_json_number_text(struct json_object *number)
{
    mx_str t = mx_str_of(json_object_to_json_string_ext(number, JSON_C_TO_STRING_PLAIN));
    if (json_object_is_type(number, json_type_double) && t.len > 2
        && memcmp(t.ptr + t.len - 2, "e0", 2) == 0)
    {
        bool negative = t.ptr[0] == '-';
        size_t n_digits = 0;
        while (t.ptr[negative + n_digits] >= '0' && t.ptr[negative + n_digits] <= '9') {
            n_digits++;
        }
        if (negative + n_digits == t.len - 2
            && is_beyond_64_bits(t.ptr + negative, n_digits, negative))
        {
            t.len -= 2;
        }
    }
    return t;
}

const char *mx_json_kind(struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_null: return "null";
    case json_type_boolean: return "a boolean";
    case json_type_double:
    case json_type_int: return "a number";
    case json_type_object: return "an object";
    case json_type_array: return "an array";
    case json_type_string: return "a string";
    }
    return "something else";
}

static struct json_object *named_field(struct json_object *o, const char *name)
{
    const char *dot = strrchr(name, '.');
    return mx_json_field(o, dot != NULL ? dot + 1 : name);
}

bool mx_json_get_bool(struct json_object *o, const char *name, bool *out, mx_problem *p)
{
    struct json_object *v = named_field(o, name);
    if (v == NULL) {
        return true;
    }
    if (!json_object_is_type(v, json_type_boolean)) {
        return mx_problem_field(p, name, "'%s' must be true or false, not %s", name,
                                mx_json_kind(v));
    }
    *out = json_object_get_boolean(v);
    return true;
}

bool mx_json_get_double(struct json_object *o, const char *name, double min, double max,
                        double *out, mx_problem *p)
{
    struct json_object *v = named_field(o, name);
    if (v == NULL) {
        return true;
    }
    if (!json_object_is_type(v, json_type_double) && !json_object_is_type(v, json_type_int)) {
        return mx_problem_field(p, name, "'%s' must be a number, not %s", name, mx_json_kind(v));
    }
    double d = json_object_get_double(v);
    if (!(d >= min && d <= max)) {
        return mx_problem_field(p, name, "'%s' must be between %g and %g", name, min, max);
    }
    *out = d;
    return true;
}

bool mx_json_get_int(struct json_object *o, const char *name, int64_t min, int64_t max,
                     int64_t *out, mx_problem *p)
{
    struct json_object *v = named_field(o, name);
    if (v == NULL) {
        return true;
    }
    bool is_int = json_object_is_type(v, json_type_int);
    if (!is_int && !json_object_is_type(v, json_type_double)) {
        return mx_problem_field(p, name, "'%s' must be an integer, not %s", name, mx_json_kind(v));
    }
    int64_t i = is_int ? json_object_get_int64(v) : 0;
    if (!is_int) {
        double d = json_object_get_double(v);
        if (isfinite(d) && d != floor(d)) {
            return mx_problem_field(p, name, "'%s' must be an integer, not a fraction", name);
        }
        /* 2^63 as a double is exact; anything at or beyond it is out of every range below. */
        i = d >= 9223372036854775808.0 || isnan(d) ? INT64_MAX : d < -9223372036854775808.0
            ? INT64_MIN : (int64_t)d;
    }
    if (i < min || i > max) {
        return mx_problem_field(p, name, "'%s' must be between %lld and %lld", name, (long long)min,
                                (long long)max);
    }
    *out = i;
    return true;
}

bool mx_json_get_string(struct json_object *o, const char *name, mx_str *out, mx_problem *p)
{
    struct json_object *v = named_field(o, name);
    if (v == NULL) {
        return true;
    }
    if (!json_object_is_type(v, json_type_string)) {
        return mx_problem_field(p, name, "'%s' must be a string, not %s", name, mx_json_kind(v));
    }
    *out = mx_json_text(v);
    return true;
}
