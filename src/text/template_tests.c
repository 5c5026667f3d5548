/* SPDX-License-Identifier: MIT
 *
 * Tests (`x is name`), and the look-up of filters and tests by name, which happens once, while a
 * template is parsed. A name that does not exist is an error only where it is reached.
 */
#include "text/template_internal.h"

static bool none_given(mx_run *r, const mx_args *args)
{
    return mx_bind(r, "this test", args, NULL, 0, 0, NULL);
}

static mx_value *verdict(mx_run *r, const mx_args *args, bool is)
{
    return none_given(r, args) ? mx_v_bool(r, is) : NULL;
}

static mx_value *t_defined(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, !mx_v_is(v, MX_V_UNDEFINED));
}

static mx_value *t_undefined(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_UNDEFINED));
}

static mx_value *t_none(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_NONE));
}

static mx_value *t_boolean(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_BOOL));
}

static mx_value *t_true(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_BOOL) && v->b);
}

static mx_value *t_false(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_BOOL) && !v->b);
}

static mx_value *t_integer(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_INT));
}

static mx_value *t_float(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_FLOAT));
}

static mx_value *t_number(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is_number(v));
}

static mx_value *t_string(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_STRING));
}

static mx_value *t_mapping(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_DICT));
}

static mx_value *t_iterable(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is_iterable(v) || mx_v_is_other(v, MX_O_LOOP));
}

/* What has a length and can be indexed; in Python that includes dicts. */
static mx_value *t_sequence(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_STRING) || mx_v_is(v, MX_V_DICT) ||
                                mx_v_is(v, MX_V_UNDEFINED) ||
                                (mx_v_is(v, MX_V_LIST) && v->sub <= MX_SEQ_RANGE));
}

static mx_value *t_callable(mx_run *r, mx_value *v, const mx_args *args)
{
    bool is = mx_v_is(v, MX_V_OTHER) && v->sub != MX_O_NAMESPACE && v->sub != MX_O_CYCLER;
    return verdict(r, args, is || mx_v_is(v, MX_V_UNDEFINED)); /* fails only when called */
}

static mx_value *t_escaped(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_STRING) && v->s.is_safe);
}

static mx_value *t_case(mx_run *r, mx_value *v, const mx_args *args, const char *method)
{
    mx_value *s = mx_v_to_str(r, v);
    mx_value *m = s == NULL ? NULL : mx_find_method(r, s, mx_str_of(method));
    return m == NULL ? NULL : mx_call_method(r, m, args);
}

static mx_value *t_lower(mx_run *r, mx_value *v, const mx_args *args)
{
    return t_case(r, v, args, "islower");
}

static mx_value *t_upper(mx_run *r, mx_value *v, const mx_args *args)
{
    return t_case(r, v, args, "isupper");
}

static mx_value *t_filter(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_STRING) && mx_find_filter(mx_v_str(v)) != NULL);
}

static mx_value *t_test(mx_run *r, mx_value *v, const mx_args *args)
{
    return verdict(r, args, mx_v_is(v, MX_V_STRING) && mx_find_test(mx_v_str(v)) != NULL);
}

/* The one argument of the tests below; NULL after an error. */
static mx_value *other(mx_run *r, const mx_args *args)
{
    static const char *const names[] = {"other"};
    mx_value *a[1];
    return mx_bind(r, "this test", args, names, 1, 1, a) ? a[0] : NULL;
}

static mx_value *remainder_is(mx_run *r, mx_value *v, int64_t by, int64_t wanted)
{
    mx_value *n = mx_v_int(r, by), *w = mx_v_int(r, wanted);
    mx_value *m = n == NULL ? NULL : mx_v_binary(r, MX_OP_MOD, v, n);
    return m == NULL || w == NULL ? NULL : mx_v_bool(r, mx_v_equal(r, m, w));
}

static mx_value *t_odd(mx_run *r, mx_value *v, const mx_args *args)
{
    return none_given(r, args) ? remainder_is(r, v, 2, 1) : NULL;
}

static mx_value *t_even(mx_run *r, mx_value *v, const mx_args *args)
{
    return none_given(r, args) ? remainder_is(r, v, 2, 0) : NULL;
}

static mx_value *t_divisibleby(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *zero = mx_v_int(r, 0);
    mx_value *m = zero == NULL ? NULL : mx_v_binary(r, MX_OP_MOD, v, other(r, args));
    return m == NULL ? NULL : mx_v_bool(r, mx_v_equal(r, m, zero));
}

static mx_value *t_sameas(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *o = other(r, args);
    return o == NULL ? NULL : mx_v_bool(r, mx_v_same(v, o));
}

static mx_value *t_in(mx_run *r, mx_value *v, const mx_args *args)
{
    bool is = false;
    mx_value *o = other(r, args);
    return o != NULL && mx_v_contains(r, o, v, &is) ? mx_v_bool(r, is) : NULL;
}

static mx_value *t_eq(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *o = other(r, args);
    return o == NULL ? NULL : mx_v_bool(r, mx_v_equal(r, v, o));
}

static mx_value *t_ne(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *o = other(r, args);
    return o == NULL ? NULL : mx_v_bool(r, !mx_v_equal(r, v, o));
}

static mx_value *t_lt(mx_run *r, mx_value *v, const mx_args *args)
{
    int order;
    mx_value *o = other(r, args);
    return o != NULL && mx_v_compare(r, v, o, &order) ? mx_v_bool(r, order == -1) : NULL;
}

static mx_value *t_le(mx_run *r, mx_value *v, const mx_args *args)
{
    int order;
    mx_value *o = other(r, args);
    return o != NULL && mx_v_compare(r, v, o, &order) ? mx_v_bool(r, order <= 0) : NULL;
}

static mx_value *t_gt(mx_run *r, mx_value *v, const mx_args *args)
{
    int order;
    mx_value *o = other(r, args);
    return o != NULL && mx_v_compare(r, v, o, &order) ? mx_v_bool(r, order == 1) : NULL;
}

static mx_value *t_ge(mx_run *r, mx_value *v, const mx_args *args)
{
    int order;
    mx_value *o = other(r, args);
    return o != NULL && mx_v_compare(r, v, o, &order) ? mx_v_bool(r, order == 0 || order == 1)
                                                      : NULL;
}

static const mx_builtin tests[] = {
    {"!=", t_ne},           {"<", t_lt},           {"<=", t_le},
    {"==", t_eq},           {">", t_gt},           {">=", t_ge},
    {"boolean", t_boolean}, {"callable", t_callable}, {"defined", t_defined},
    {"divisibleby", t_divisibleby}, {"eq", t_eq},  {"equalto", t_eq},
    {"escaped", t_escaped}, {"even", t_even},      {"false", t_false},
    {"filter", t_filter},   {"float", t_float},    {"ge", t_ge},
    {"greaterthan", t_gt},  {"gt", t_gt},          {"in", t_in},
    {"integer", t_integer}, {"iterable", t_iterable}, {"le", t_le},
    {"lessthan", t_lt},     {"lower", t_lower},    {"lt", t_lt},
    {"mapping", t_mapping}, {"ne", t_ne},          {"none", t_none},
    {"number", t_number},   {"odd", t_odd},        {"sameas", t_sameas},
    {"sequence", t_sequence}, {"string", t_string}, {"test", t_test},
    {"true", t_true},       {"undefined", t_undefined}, {"upper", t_upper},
};

static const mx_builtin *look_up(const mx_builtin *table, size_t n, mx_str name)
{
    for (size_t i = 0; i < n; i++) {
        if (mx_str_eq(mx_str_of(table[i].name), name)) {
            return &table[i];
        }
    }
    return NULL;
}

const mx_builtin *mx_find_filter(mx_str name)
{
    const mx_builtin *b = look_up(mx_text_filters, mx_n_text_filters, name);
    return b != NULL ? b : look_up(mx_seq_filters, mx_n_seq_filters, name);
}

const mx_builtin *mx_find_test(mx_str name)
{
    return look_up(tests, MX_COUNT(tests), name);
}
