/* SPDX-License-Identifier: MIT
 *
 * Truth, equality, order and membership, by Python's rules: booleans are numbers, sequences compare
 * item by item, unlike things are unequal but cannot be ordered.
 */
#include "text/value_internal.h"

#include <math.h>
#include <stdlib.h>

const char *mx_v_type_name(const mx_value *v)
{
    static const char *const kinds[] = {
        [MX_V_UNDEFINED] = "Undefined", [MX_V_NONE] = "NoneType", [MX_V_BOOL] = "bool",
        [MX_V_INT] = "int",             [MX_V_FLOAT] = "float",   [MX_V_STRING] = "str",
        [MX_V_LIST] = "list",           [MX_V_DICT] = "dict",     [MX_V_OTHER] = "object",
    };
    static const char *const seqs[] = {"list", "tuple", "range", "generator", "dict_view"};
    static const char *const others[] = {"Namespace", "Macro",  "LoopContext", "method",
                                         "function",  "Cycler", "Joiner"};
    if (mx_v_is(v, MX_V_LIST)) {
        return seqs[v->sub];
    }
    return mx_v_is(v, MX_V_OTHER) ? others[v->sub] : kinds[v->kind];
}

void *mx_v_fail_undefined(mx_run *r, const mx_value *v)
{
    return mx_run_fail(r, MX_E_INVALID, "%.*s", (int)v->hint.len, v->hint.ptr);
}

bool mx_v_truthy(const mx_value *v)
{
    switch ((mx_value_kind)v->kind) {
    case MX_V_UNDEFINED:
    case MX_V_NONE:
        return false;
    case MX_V_BOOL:
        return v->b;
    case MX_V_INT:
        return v->sub == MX_INT_BIG || v->i != 0;
    case MX_V_FLOAT:
        return v->f != 0.0;
    case MX_V_STRING:
        return v->s.len > 0;
    case MX_V_LIST:
        return v->sub == MX_SEQ_ONCE || v->seq.n > 0; /* a generator is true, even an empty one */
    case MX_V_DICT:
        return v->dict.n > 0;
    case MX_V_OTHER:
        return true;
    }
    return false;
}

bool mx_v_as_int(const mx_value *v, int64_t *out)
{
    if (mx_v_is(v, MX_V_BOOL)) {
        *out = v->b;
        return true;
    }
    if (mx_v_is(v, MX_V_INT) && v->sub == MX_INT_SMALL) {
        *out = v->i;
        return true;
    }
    return false;
}

bool mx_v_is_number(const mx_value *v)
{
    return mx_v_is(v, MX_V_BOOL) || mx_v_is(v, MX_V_INT) || mx_v_is(v, MX_V_FLOAT);
}

double mx_v_as_double(const mx_value *v)
{
    int64_t i;
    if (mx_v_is(v, MX_V_FLOAT)) {
        return v->f;
    }
    if (mx_v_as_int(v, &i)) {
        return (double)i;
    }
    return strtod(v->s.ptr, NULL); /* the text of a big integer ends with a NUL in the arena */
}

static bool is_big(const mx_value *v)
{
    return mx_v_is(v, MX_V_INT) && v->sub == MX_INT_BIG;
}

static int compare_big(const mx_value *a, const mx_value *b)
{
    bool a_neg = is_big(a) ? a->s.ptr[0] == '-' : false;
    bool b_neg = is_big(b) ? b->s.ptr[0] == '-' : false;
    if (!is_big(a)) {
        return b_neg ? 1 : -1; /* a big integer is beyond every small one */
    }
    if (!is_big(b) || a_neg != b_neg) {
        return a_neg ? -1 : 1;
    }
    int c = a->s.len != b->s.len ? (a->s.len < b->s.len ? -1 : 1)
                                 : memcmp(a->s.ptr, b->s.ptr, a->s.len);
    c = c < 0 ? -1 : c > 0;
    return a_neg ? -c : c;
}

static int compare_numbers(const mx_value *a, const mx_value *b)
{
    int64_t x, y;
    if (mx_v_as_int(a, &x) && mx_v_as_int(b, &y)) {
        return x < y ? -1 : x > y;
    }
    if (!mx_v_is(a, MX_V_FLOAT) && !mx_v_is(b, MX_V_FLOAT)) {
        return compare_big(a, b);
    }
    double f = mx_v_as_double(a), g = mx_v_as_double(b);
    if (isnan(f) || isnan(g)) {
        return 2;
    }
    return f < g ? -1 : f > g;
}

static int compare_texts(const mx_text *a, const mx_text *b)
{
    /* UTF-8 sorts by bytes as by code points. */
    size_t n = mx_min_size(a->len, b->len);
    int c = n == 0 ? 0 : memcmp(a->ptr, b->ptr, n);
    if (c != 0) {
        return c < 0 ? -1 : 1;
    }
    return a->len < b->len ? -1 : a->len > b->len;
}

bool mx_v_same(const mx_value *a, const mx_value *b)
{
    if (a == b) {
        return true;
    }
    if (a->kind != b->kind) {
        return false;
    }
    switch ((mx_value_kind)a->kind) {
    case MX_V_NONE:
        return true;
    case MX_V_BOOL:
        return a->b == b->b;
    case MX_V_INT: /* small integers are single objects in Python */
        return a->sub == MX_INT_SMALL && b->sub == MX_INT_SMALL && a->i == b->i;
    case MX_V_STRING:
        return a->s.ptr == b->s.ptr && a->s.len == b->s.len;
    default:
        return false;
    }
}

static bool seqs_equal(mx_run *r, const mx_value *a, const mx_value *b)
{
    if (a->sub != b->sub || a->seq.n != b->seq.n || a->sub == MX_SEQ_ONCE) {
        return false;
    }
    for (size_t i = 0; i < a->seq.n; i++) {
        if (!mx_v_equal(r, a->seq.items[i], b->seq.items[i])) {
            return false;
        }
    }
    return true;
}

static bool dicts_equal(mx_run *r, const mx_dict *a, const mx_dict *b)
{
    if (a->n != b->n) {
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        mx_pair *p = mx_dict_find(b, a->pairs[i].key);
        if (p == NULL || !mx_v_equal(r, a->pairs[i].value, p->value)) {
            return false;
        }
    }
    return true;
}

bool mx_v_equal(mx_run *r, const mx_value *a, const mx_value *b)
{
    if (a == b) {
        return !(mx_v_is(a, MX_V_FLOAT) && isnan(a->f));
    }
    if (mx_v_is_number(a) && mx_v_is_number(b)) {
        return compare_numbers(a, b) == 0;
    }
    if (a->kind != b->kind) {
        return false;
    }
    bool same = false;
    switch ((mx_value_kind)a->kind) {
    case MX_V_UNDEFINED:
    case MX_V_NONE:
        return true;
    case MX_V_STRING:
        return mx_run_step(r, a->s.len / 64) && mx_str_eq(mx_v_str(a), mx_v_str(b));
    case MX_V_LIST:
        if (mx_run_enter(r)) {
            same = seqs_equal(r, a, b);
            mx_run_leave(r);
        }
        return same;
    case MX_V_DICT:
        if (mx_run_enter(r)) {
            same = dicts_equal(r, &a->dict, &b->dict);
            mx_run_leave(r);
        }
        return same;
    default:
        return false;
    }
}

static bool compare_seqs(mx_run *r, const mx_value *a, const mx_value *b, int *out)
{
    for (size_t i = 0; i < a->seq.n && i < b->seq.n; i++) {
        if (!mx_v_equal(r, a->seq.items[i], b->seq.items[i])) {
            return r->err == MX_OK && mx_v_compare(r, a->seq.items[i], b->seq.items[i], out);
        }
    }
    *out = a->seq.n < b->seq.n ? -1 : a->seq.n > b->seq.n;
    return r->err == MX_OK;
}

bool mx_v_compare(mx_run *r, const mx_value *a, const mx_value *b, int *out)
{
    if (mx_v_is_number(a) && mx_v_is_number(b)) {
        *out = compare_numbers(a, b);
        return true;
    }
    if (mx_v_is(a, MX_V_STRING) && mx_v_is(b, MX_V_STRING)) {
        *out = compare_texts(&a->s, &b->s);
        return mx_run_step(r, mx_min_size(a->s.len, b->s.len) / 64);
    }
    if (mx_v_is(a, MX_V_LIST) && mx_v_is(b, MX_V_LIST) && a->sub == b->sub &&
        (a->sub == MX_SEQ_LIST || a->sub == MX_SEQ_TUPLE))
    {
        bool ok = mx_run_enter(r);
        if (ok) {
            ok = compare_seqs(r, a, b, out);
            mx_run_leave(r);
        }
        return ok;
    }
    if (mx_v_is(a, MX_V_UNDEFINED) || mx_v_is(b, MX_V_UNDEFINED)) {
        mx_v_fail_undefined(r, mx_v_is(a, MX_V_UNDEFINED) ? a : b);
        return false;
    }
    mx_run_fail(r, MX_E_INVALID, "a %s and a %s have no order", mx_v_type_name(a),
                mx_v_type_name(b));
    return false;
}

bool mx_v_contains(mx_run *r, const mx_value *box, const mx_value *item, bool *out)
{
    *out = false;
    switch ((mx_value_kind)box->kind) {
    case MX_V_STRING:
        if (!mx_v_is(item, MX_V_STRING)) {
            mx_run_fail(r, MX_E_INVALID, "'in <string>' needs a string on its left, not a %s",
                        mx_v_type_name(item));
            return false;
        }
        *out = mx_text_find(&box->s, &item->s, 0) != SIZE_MAX;
        return mx_run_step(r, box->s.len / 64);
    case MX_V_LIST:
        for (size_t i = box->seq.first; i < box->seq.n && !*out; i++) {
            if (!mx_run_step(r, 1)) {
                return false;
            }
            *out = mx_v_equal(r, item, box->seq.items[i]);
        }
        return r->err == MX_OK;
    case MX_V_DICT:
        if (!mx_v_hashable(item)) {
            mx_run_fail(r, MX_E_INVALID, "a %s cannot be a key", mx_v_type_name(item));
            return false;
        }
        *out = mx_dict_find(&box->dict, item) != NULL;
        return true;
    case MX_V_UNDEFINED:
        return true;
    default:
        mx_run_fail(r, MX_E_INVALID, "a %s cannot be searched with 'in'", mx_v_type_name(box));
        return false;
    }
}

bool mx_v_length(mx_run *r, const mx_value *v, size_t *out)
{
    switch ((mx_value_kind)v->kind) {
    case MX_V_UNDEFINED:
        *out = 0;
        return true;
    case MX_V_STRING:
        *out = v->s.n_chars;
        return true;
    case MX_V_LIST:
        *out = v->seq.n;
        if (v->sub != MX_SEQ_ONCE) {
            return true;
        }
        break;
    case MX_V_DICT:
        *out = v->dict.n;
        return true;
    default:
        break;
    }
    mx_run_fail(r, MX_E_INVALID, "a %s has no length", mx_v_type_name(v));
    return false;
}

bool mx_v_is_iterable(const mx_value *v)
{
    return mx_v_is(v, MX_V_UNDEFINED) || mx_v_is(v, MX_V_STRING) || mx_v_is(v, MX_V_LIST) ||
           mx_v_is(v, MX_V_DICT);
}
