/* SPDX-License-Identifier: MIT
 *
 * Arithmetic, concatenation, slices. Integers are 64 bits wide here; Python's have no end, so a
 * result that does not fit is an error instead of a wrong number.
 */
#include "text/value_internal.h"

#include <math.h>

static const char *const op_names[] = {"+", "-", "*", "/", "//", "%", "**"};

static mx_value *bad_operands(mx_run *r, int op, const mx_value *a, const mx_value *b)
{
    return mx_run_fail(r, MX_E_INVALID, "unsupported operands for %s: a %s and a %s", op_names[op],
                       mx_v_type_name(a), mx_v_type_name(b));
}

static mx_value *too_big(mx_run *r, int op)
{
    return mx_run_fail(r, MX_E_INVALID, "the result of %s does not fit into 64 bits", op_names[op]);
}

static mx_value *by_zero(mx_run *r)
{
    return mx_run_fail(r, MX_E_INVALID, "division by zero");
}

static mx_value *float_op(mx_run *r, int op, double x, double y)
{
    if (y == 0.0 && (op == MX_OP_DIV || op == MX_OP_FLOORDIV || op == MX_OP_MOD)) {
        return by_zero(r);
    }
    double m;
    switch (op) {
    case MX_OP_ADD:
        return mx_v_float(r, x + y);
    case MX_OP_SUB:
        return mx_v_float(r, x - y);
    case MX_OP_MUL:
        return mx_v_float(r, x * y);
    case MX_OP_DIV:
        return mx_v_float(r, x / y);
    case MX_OP_POW:
        if ((x == 0.0 && y < 0.0) || (x < 0.0 && y != floor(y))) {
            return mx_run_fail(r, MX_E_INVALID, "** has no real result here");
        }
        m = pow(x, y);
        return isinf(m) && isfinite(x) && isfinite(y) ? too_big(r, op) : mx_v_float(r, m);
    default:
        /* The remainder has the sign of the divisor. */
        m = fmod(x, y);
        if (m != 0.0 && (m < 0.0) != (y < 0.0)) {
            m += y;
        } else if (m == 0.0) {
            m = copysign(0.0, y);
        }
        if (op == MX_OP_MOD) {
            return mx_v_float(r, m);
        }
        double q = (x - m) / y;
        double whole = floor(q);
        return mx_v_float(r, q - whole > 0.5 ? whole + 1.0 : whole);
    }
}

static mx_value *int_power(mx_run *r, int64_t x, int64_t y)
{
    if (y < 0) {
        return x == 0 ? by_zero(r) : float_op(r, MX_OP_POW, (double)x, (double)y);
    }
    int64_t result = 1;
    for (int64_t base = x; y > 0; y >>= 1) {
        if ((y & 1) && __builtin_mul_overflow(result, base, &result)) {
            return too_big(r, MX_OP_POW);
        }
        if (y > 1 && __builtin_mul_overflow(base, base, &base)) {
            return too_big(r, MX_OP_POW);
        }
    }
    return mx_v_int(r, result);
}

static mx_value *int_op(mx_run *r, int op, int64_t x, int64_t y)
{
    int64_t z = 0;
    bool overflow = false;
    if (y == 0 && (op == MX_OP_DIV || op == MX_OP_FLOORDIV || op == MX_OP_MOD)) {
        return by_zero(r);
    }
    switch (op) {
    case MX_OP_ADD:
        overflow = __builtin_add_overflow(x, y, &z);
        break;
    case MX_OP_SUB:
        overflow = __builtin_sub_overflow(x, y, &z);
        break;
    case MX_OP_MUL:
        overflow = __builtin_mul_overflow(x, y, &z);
        break;
    case MX_OP_DIV:
        return mx_v_float(r, (double)x / (double)y);
    case MX_OP_POW:
        return int_power(r, x, y);
    default:
        if (y == -1) { /* INT64_MIN / -1 is the one quotient that traps */
            overflow = op == MX_OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, x, &z);
            z = op == MX_OP_MOD ? 0 : z;
            break;
        }
        z = op == MX_OP_MOD ? x % y : x / y;
        if (x % y != 0 && (x < 0) != (y < 0)) {
            z += op == MX_OP_MOD ? y : -1;
        }
    }
    return overflow ? too_big(r, op) : mx_v_int(r, z);
}

static void add_side(mx_run *r, mx_sb *b, const mx_text *s, bool escape)
{
    if (escape) {
        mx_sb_escaped(r, b, s);
    } else {
        mx_sb_text(r, b, s);
    }
}

static mx_value *concat_texts(mx_run *r, const mx_text *a, const mx_text *b)
{
    mx_sb sb = {0};
    bool is_safe = a->is_safe || b->is_safe;
    add_side(r, &sb, a, is_safe && !a->is_safe);
    add_side(r, &sb, b, is_safe && !b->is_safe);
    mx_value *v = mx_sb_finish(r, &sb);
    if (v != NULL) {
        v->s.is_safe = is_safe;
    }
    return v;
}

static mx_value *concat_seqs(mx_run *r, const mx_value *a, const mx_value *b)
{
    mx_value *v = mx_run_step(r, a->seq.n + b->seq.n) ? mx_v_seq(r, a->sub, a->seq.n + b->seq.n)
                                                     : NULL;
    for (size_t i = 0; v != NULL && i < a->seq.n; i++) {
        v->seq.items[v->seq.n++] = a->seq.items[i];
    }
    for (size_t i = 0; v != NULL && i < b->seq.n; i++) {
        v->seq.items[v->seq.n++] = b->seq.items[i];
    }
    return v;
}

mx_value *mx_v_repeat(mx_run *r, mx_value *x, int64_t times)
{
    size_t n = times > 0 ? (size_t)times : 0;
    if (mx_v_is(x, MX_V_STRING)) {
        if (x->s.len > 0 && n > r->max_string_bytes / x->s.len) {
            return mx_run_fail(r, MX_E_LIMIT, "the template makes a text of more than %zu bytes",
                               r->max_string_bytes);
        }
        mx_sb b = {0};
        for (size_t i = 0; i < n && x->s.len > 0 && mx_run_step(r, 1); i++) {
            mx_sb_text(r, &b, &x->s);
        }
        mx_value *v = mx_sb_finish(r, &b);
        if (v != NULL) {
            v->s.is_safe = x->s.is_safe;
        }
        return v;
    }
    size_t total;
    if (!mx_mul_ok(n, x->seq.n, &total) || !mx_run_step(r, total)) {
        return mx_run_fail(r, MX_E_LIMIT, "the template takes too many steps");
    }
    mx_value *v = mx_v_seq(r, x->sub, total);
    for (size_t i = 0; v != NULL && i < total; i++) {
        v->seq.items[v->seq.n++] = x->seq.items[i % x->seq.n];
    }
    return v;
}

static bool can_repeat(const mx_value *v)
{
    return mx_v_is(v, MX_V_STRING) ||
           (mx_v_is(v, MX_V_LIST) && (v->sub == MX_SEQ_LIST || v->sub == MX_SEQ_TUPLE));
}

mx_value *mx_v_binary(mx_run *r, int op, mx_value *a, mx_value *b)
{
    int64_t x, y;
    if (a == NULL || b == NULL) {
        return NULL;
    }
    if (mx_v_as_int(a, &x) && mx_v_as_int(b, &y)) {
        return int_op(r, op, x, y);
    }
    if (mx_v_is_number(a) && mx_v_is_number(b)) {
        if (mx_v_is(a, MX_V_FLOAT) || mx_v_is(b, MX_V_FLOAT) || op == MX_OP_DIV) {
            return float_op(r, op, mx_v_as_double(a), mx_v_as_double(b));
        }
        return too_big(r, op);
    }
    if (op == MX_OP_MOD && mx_v_is(a, MX_V_STRING)) {
        return mx_v_percent(r, a, b);
    }
    if (mx_v_is(a, MX_V_UNDEFINED) || mx_v_is(b, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, mx_v_is(a, MX_V_UNDEFINED) ? a : b);
    }
    if (op == MX_OP_ADD && mx_v_is(a, MX_V_STRING) && mx_v_is(b, MX_V_STRING)) {
        return concat_texts(r, &a->s, &b->s);
    }
    if (op == MX_OP_ADD && mx_v_is(a, MX_V_LIST) && mx_v_is(b, MX_V_LIST) && a->sub == b->sub &&
        can_repeat(a))
    {
        return concat_seqs(r, a, b);
    }
    if (op == MX_OP_MUL && can_repeat(a) && mx_v_as_int(b, &y)) {
        return mx_v_repeat(r, a, y);
    }
    if (op == MX_OP_MUL && can_repeat(b) && mx_v_as_int(a, &x)) {
        return mx_v_repeat(r, b, x);
    }
    return bad_operands(r, op, a, b);
}

mx_value *mx_v_negate(mx_run *r, mx_value *v)
{
    int64_t x;
    if (v == NULL) {
        return NULL;
    }
    if (mx_v_as_int(v, &x)) {
        return int_op(r, MX_OP_SUB, 0, x);
    }
    if (mx_v_is(v, MX_V_FLOAT)) {
        return mx_v_float(r, -v->f);
    }
    if (mx_v_is(v, MX_V_INT)) {
        bool is_negative = v->s.ptr[0] == '-';
        char *p = mx_run_alloc(r, v->s.len + 2);
        if (p == NULL) {
            return NULL;
        }
        size_t n = 0;
        if (!is_negative) {
            p[n++] = '-';
        }
        memcpy(p + n, v->s.ptr + is_negative, v->s.len - is_negative);
        n += v->s.len - is_negative;
        mx_value *big = mx_value_number_text(r->arena, (mx_str){p, n});
        return big == NULL ? mx_run_nomem(r) : big;
    }
    if (mx_v_is(v, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, v);
    }
    return mx_run_fail(r, MX_E_INVALID, "a %s has no negative", mx_v_type_name(v));
}

/* ---- slices ---- */

static bool slice_bound(mx_run *r, const mx_value *v, int64_t absent, int64_t *out)
{
    if (v == NULL || mx_v_is(v, MX_V_NONE)) {
        *out = absent;
        return true;
    }
    if (mx_v_as_int(v, out)) {
        return true;
    }
    if (mx_v_is(v, MX_V_INT)) { /* beyond every length */
        *out = v->s.ptr[0] == '-' ? INT64_MIN : INT64_MAX;
        return true;
    }
    mx_run_fail(r, MX_E_INVALID, "a slice needs integers, not a %s", mx_v_type_name(v));
    return false;
}

static int64_t clamp_bound(int64_t i, int64_t n, bool is_backward)
{
    if (i < 0) {
        i = i < -n ? (is_backward ? -1 : 0) : i + n;
    }
    int64_t top = is_backward ? n - 1 : n;
    return i > top ? top : i;
}

static mx_value *slice_text(mx_run *r, const mx_value *v, int64_t from, int64_t step, size_t count)
{
    if (step == 1) {
        size_t begin = mx_text_offset(&v->s, (size_t)from);
        mx_text rest = {.ptr = v->s.ptr + begin, .len = v->s.len - begin};
        rest.n_chars = v->s.n_chars - (size_t)from;
        return mx_v_part(r, v, begin, begin + mx_text_offset(&rest, count));
    }
    /* Where each character begins, so that a step of any size costs the same. */
    size_t *at = mx_run_array(r, v->s.n_chars + 1, sizeof *at);
    if (at == NULL || !mx_run_step(r, v->s.n_chars)) {
        return NULL;
    }
    size_t n = 0;
    for (size_t i = 0; i < v->s.len; i++) {
        if (((unsigned char)v->s.ptr[i] & 0xC0) != 0x80) {
            at[n++] = i;
        }
    }
    at[n] = v->s.len;
    mx_sb b = {0};
    for (size_t k = 0; k < count && r->err == MX_OK; k++) {
        size_t c = (size_t)(from + (int64_t)k * step);
        mx_sb_range(r, &b, &v->s, at[c], at[c + 1]);
    }
    mx_value *out = mx_sb_finish(r, &b);
    if (out != NULL) {
        out->s.is_safe = v->s.is_safe;
    }
    return out;
}

mx_value *mx_v_slice(mx_run *r, mx_value *v, mx_value *from_v, mx_value *to_v, mx_value *step_v)
{
    int64_t from, to, step;
    if (!slice_bound(r, step_v, 1, &step)) {
        return NULL;
    }
    if (step == 0) {
        return mx_run_fail(r, MX_E_INVALID, "a slice step of zero");
    }
    bool is_text = mx_v_is(v, MX_V_STRING);
    int64_t n = (int64_t)(is_text ? v->s.n_chars : v->seq.n);
    bool is_backward = step < 0;
    if (!slice_bound(r, from_v, is_backward ? INT64_MAX : 0, &from) ||
        !slice_bound(r, to_v, is_backward ? INT64_MIN : INT64_MAX, &to))
    {
        return NULL;
    }
    from = clamp_bound(from, n, is_backward);
    to = clamp_bound(to, n, is_backward);
    size_t count = 0;
    if (is_backward && from > to) {
        /* INT64_MIN has no absolute value in 64 bits; unsigned arithmetic gives it. */
        count = (size_t)((uint64_t)(from - to - 1) / (0 - (uint64_t)step)) + 1;
    } else if (!is_backward && to > from) {
        count = (size_t)((to - from - 1) / step) + 1;
    }
    if (count <= 1) {
        step = 1; /* so that from + k * step cannot overflow, and the short path serves */
    }
    if (is_text) {
        return slice_text(r, v, count == 0 ? 0 : from, step, count);
    }
    mx_value *out = mx_run_step(r, count) ? mx_v_seq(r, v->sub, count) : NULL;
    for (size_t k = 0; out != NULL && k < count; k++) {
        out->seq.items[out->seq.n++] = v->seq.items[from + (int64_t)k * step];
    }
    return out;
}

/* ---- items ---- */

mx_value *mx_v_list_of(mx_run *r, mx_value *v)
{
    if (v == NULL) {
        return NULL;
    }
    mx_value *list = mx_v_seq(r, MX_SEQ_LIST, 0);
    switch ((mx_value_kind)v->kind) {
    case MX_V_UNDEFINED:
        return list;
    case MX_V_STRING:
        for (size_t at = 0; at < v->s.len && list != NULL;) {
            size_t from = at;
            mx_text_next(&v->s, &at);
            mx_value *c = mx_v_part(r, v, from, at);
            if (c != NULL) {
                c->s.is_safe = false;
            }
            if (!mx_v_push(r, list, c)) {
                return NULL;
            }
        }
        return list;
    case MX_V_LIST:
        for (size_t i = v->seq.first; i < v->seq.n; i++) {
            if (!mx_v_push(r, list, v->seq.items[i])) {
                return NULL;
            }
        }
        if (v->sub == MX_SEQ_ONCE) {
            v->seq.first = v->seq.n;
        }
        return list;
    case MX_V_DICT:
        for (size_t i = 0; i < v->dict.n; i++) {
            if (!mx_v_push(r, list, v->dict.pairs[i].key)) {
                return NULL;
            }
        }
        return list;
    default:
        return mx_run_fail(r, MX_E_INVALID, "a %s cannot be iterated", mx_v_type_name(v));
    }
}
