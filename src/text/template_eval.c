/* SPDX-License-Identifier: MIT
 *
 * Expressions at work: a walk over the tree. Every node costs a step and one level of depth, which
 * is what keeps a hostile template from running for long or eating the stack.
 */
#include "text/template_internal.h"

/* A name: the scopes from the inside out, then the context, then what every template has. */
static mx_value *eval_name(mx_run *r, const mx_node *n, mx_scope *s)
{
    for (; s != NULL; s = s->outer) {
        for (uint32_t i = 0; i < s->n; i++) {
            if (s->syms[i] == n->sym) {
                return s->values[i];
            }
        }
    }
    if (r->globals[n->sym] != NULL) {
        return r->globals[n->sym];
    }
    mx_pair *p = mx_dict_find_str(&r->context->dict, n->name);
    mx_value *v = p != NULL ? p->value : mx_find_global(r, n->name);
    if (v == NULL && r->err == MX_OK) {
        v = mx_v_undefined(r, "'%.*s' is undefined", (int)mx_min_size(n->name.len, 80),
                           n->name.ptr);
    }
    r->globals[n->sym] = v;
    return v;
}

static mx_value *eval_seq(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v = mx_v_seq(r, n->type == MX_N_LIST ? MX_SEQ_LIST : MX_SEQ_TUPLE, n->n_kids);
    for (uint32_t i = 0; i < n->n_kids; i++) {
        if (!mx_v_push(r, v, mx_eval(r, n->kids[i], s))) {
            return NULL;
        }
    }
    return v;
}

static mx_value *eval_dict(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v = mx_v_dict_new(r);
    for (uint32_t i = 0; i < n->n_kids; i += 2) {
        mx_value *key = mx_eval(r, n->kids[i], s);
        if (key == NULL || !mx_v_put(r, v, key, mx_eval(r, n->kids[i + 1], s))) {
            return NULL;
        }
    }
    return v;
}

static mx_value *eval_slice(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *x = mx_eval(r, n->a, s);
    mx_value *parts[3] = {NULL, NULL, NULL};
    for (uint32_t i = 0; i < 3 && x != NULL; i++) {
        if (n->kids[i] != NULL && (parts[i] = mx_eval(r, n->kids[i], s)) == NULL) {
            return NULL;
        }
    }
    if (x == NULL) {
        return NULL;
    }
    if (mx_v_is(x, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, x);
    }
    if (mx_v_is(x, MX_V_STRING) || (mx_v_is(x, MX_V_LIST) && x->sub <= MX_SEQ_RANGE)) {
        return mx_v_slice(r, x, parts[0], parts[1], parts[2]);
    }
    return mx_run_fail(r, MX_E_INVALID, "a %s cannot be sliced", mx_v_type_name(x));
}

/* and, or: an operand, not a boolean. */
static mx_value *eval_logic(mx_run *r, const mx_node *n, mx_scope *s)
{
    bool stop_at = n->type == MX_N_OR;
    mx_value *v = NULL;
    for (uint32_t i = 0; i < n->n_kids; i++) {
        v = mx_eval(r, n->kids[i], s);
        if (v == NULL || mx_v_truthy(v) == stop_at) {
            break;
        }
    }
    return v;
}

static mx_value *eval_concat(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_sb b = {0};
    for (uint32_t i = 0; i < n->n_kids; i++) {
        mx_value *v = mx_eval(r, n->kids[i], s);
        if (v == NULL) {
            return NULL;
        }
        mx_sb_str(r, &b, v);
    }
    return mx_sb_finish(r, &b);
}

static mx_value *eval_math(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v = mx_eval(r, n->kids[0], s);
    for (uint32_t i = 1; i < n->n_kids && v != NULL; i++) {
        v = mx_v_binary(r, n->ops[i - 1], v, mx_eval(r, n->kids[i], s));
    }
    return v;
}

static bool compare_one(mx_run *r, int op, const mx_value *a, const mx_value *b, bool *out)
{
    int order;
    switch (op) {
    case MX_CMP_EQ:
    case MX_CMP_NE:
        *out = mx_v_equal(r, a, b) == (op == MX_CMP_EQ);
        return r->err == MX_OK;
    case MX_CMP_IN:
    case MX_CMP_NOT_IN:
        if (!mx_v_contains(r, b, a, out)) {
            return false;
        }
        *out = *out == (op == MX_CMP_IN);
        return true;
    default:
        if (!mx_v_compare(r, a, b, &order)) {
            return false;
        }
        *out = order != 2 && (op == MX_CMP_LT   ? order < 0
                              : op == MX_CMP_LE ? order <= 0
                              : op == MX_CMP_GT ? order > 0 : order >= 0);
        return true;
    }
}

static mx_value *eval_compare(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *left = mx_eval(r, n->kids[0], s);
    bool holds = true;
    for (uint32_t i = 1; i < n->n_kids && left != NULL && holds; i++) {
        mx_value *right = mx_eval(r, n->kids[i], s);
        if (right == NULL || !compare_one(r, n->ops[i - 1], left, right, &holds)) {
            return NULL;
        }
        left = right;
    }
    return left == NULL ? NULL : mx_v_bool(r, holds);
}

static bool spread_positional(mx_run *r, const mx_arg_nodes *a, mx_scope *s, mx_args *out)
{
    mx_value *list = mx_v_list_of(r, mx_eval(r, a->star, s));
    mx_value **pos = list == NULL ? NULL : mx_run_array(r, out->n_pos + list->seq.n, sizeof *pos);
    if (pos == NULL) {
        return false;
    }
    if (out->n_pos > 0) {
        memcpy(pos, out->pos, out->n_pos * sizeof *pos);
    }
    if (list->seq.n > 0) {
        memcpy(pos + out->n_pos, list->seq.items, list->seq.n * sizeof *pos);
    }
    out->pos = pos;
    out->n_pos += list->seq.n;
    return true;
}

static bool spread_named(mx_run *r, const mx_arg_nodes *a, mx_scope *s, mx_args *out)
{
    mx_value *d = mx_eval(r, a->star_star, s);
    if (d == NULL) {
        return false;
    }
    if (!mx_v_is(d, MX_V_DICT)) {
        mx_run_fail(r, MX_E_INVALID, "the argument behind ** is no dict");
        return false;
    }
    size_t n = out->n_kw + d->dict.n;
    mx_value **kw = mx_run_array(r, n, sizeof *kw);
    mx_str *names = mx_run_array(r, n, sizeof *names);
    if (kw == NULL || names == NULL) {
        return false;
    }
    if (out->n_kw > 0) {
        memcpy(kw, out->kw, out->n_kw * sizeof *kw);
        memcpy(names, out->kw_names, out->n_kw * sizeof *names);
    }
    for (size_t i = 0; i < d->dict.n; i++) {
        if (!mx_v_is(d->dict.pairs[i].key, MX_V_STRING)) {
            mx_run_fail(r, MX_E_INVALID, "the names of arguments must be strings");
            return false;
        }
        kw[out->n_kw] = d->dict.pairs[i].value;
        names[out->n_kw++] = mx_v_str(d->dict.pairs[i].key);
    }
    out->kw = kw;
    out->kw_names = names;
    return true;
}

bool mx_eval_args(mx_run *r, const mx_arg_nodes *a, mx_scope *s, mx_args *out)
{
    *out = (mx_args){0};
    if (a == NULL) {
        return true;
    }
    out->n_pos = a->n_pos;
    out->n_kw = a->n_kw;
    out->kw_names = a->kw_names;
    out->pos = a->n_pos > 0 ? mx_run_array(r, a->n_pos, sizeof *out->pos) : NULL;
    out->kw = a->n_kw > 0 ? mx_run_array(r, a->n_kw, sizeof *out->kw) : NULL;
    if (r->err != MX_OK) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_pos; i++) {
        if ((out->pos[i] = mx_eval(r, a->pos[i], s)) == NULL) {
            return false;
        }
    }
    for (uint32_t i = 0; i < a->n_kw; i++) {
        if ((out->kw[i] = mx_eval(r, a->kw[i], s)) == NULL) {
            return false;
        }
    }
    return (a->star == NULL || spread_positional(r, a, s, out)) &&
           (a->star_star == NULL || spread_named(r, a, s, out));
}

static mx_value *eval_call(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_args args;
    mx_value *fn = mx_eval(r, n->a, s);
    if (fn == NULL || !mx_eval_args(r, n->args, s, &args)) {
        return NULL;
    }
    r->line = n->line;
    return mx_call(r, fn, &args);
}

static mx_value *apply(mx_run *r, const mx_node *n, mx_scope *s, mx_value *input)
{
    mx_args args;
    if (input == NULL || !mx_eval_args(r, n->args, s, &args)) {
        return NULL;
    }
    r->line = n->line;
    if (n->builtin == NULL) {
        return mx_run_fail(r, MX_E_INVALID, "there is no %s named '%.*s'",
                           n->type == MX_N_TEST ? "test" : "filter",
                           (int)mx_min_size(n->name.len, 80), n->name.ptr);
    }
    return n->builtin->fn(r, input, &args);
}

mx_value *mx_eval_filters(mx_run *r, const mx_node *n, mx_scope *s, mx_value *input)
{
    if (n == NULL) {
        return input;
    }
    if (n->type != MX_N_FILTER) {
        return mx_run_fail(r, MX_E_INVALID, "only filters can stand here");
    }
    if (!mx_run_enter(r)) {
        return NULL;
    }
    mx_value *v = apply(r, n, s, mx_eval_filters(r, n->a, s, input));
    mx_run_leave(r);
    return v;
}

static mx_value *eval_cond(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *condition = mx_eval(r, n->a, s);
    if (condition == NULL) {
        return NULL;
    }
    if (mx_v_truthy(condition)) {
        return mx_eval(r, n->b, s);
    }
    return n->c != NULL ? mx_eval(r, n->c, s)
                        : mx_v_undefined(r, "the inline if was false and has no else");
}

static mx_value *eval_node(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v, *key;
    switch ((mx_node_type)n->type) {
    case MX_N_CONST:
        return n->value;
    case MX_N_NAME:
        return eval_name(r, n, s);
    case MX_N_LIST:
    case MX_N_TUPLE:
        return eval_seq(r, n, s);
    case MX_N_DICT:
        return eval_dict(r, n, s);
    case MX_N_ATTR:
        v = mx_eval(r, n->a, s);
        return v == NULL ? NULL : mx_attr(r, v, n->name);
    case MX_N_ITEM:
        v = mx_eval(r, n->a, s);
        key = v == NULL ? NULL : mx_eval(r, n->b, s);
        return key == NULL ? NULL : mx_item(r, v, key);
    case MX_N_SLICE:
        return eval_slice(r, n, s);
    case MX_N_CALL:
        return eval_call(r, n, s);
    case MX_N_FILTER:
    case MX_N_TEST:
        if (n->a == NULL) {
            return mx_run_fail(r, MX_E_INVALID, "a filter without a value");
        }
        return apply(r, n, s, mx_eval(r, n->a, s));
    case MX_N_NOT:
        v = mx_eval(r, n->a, s);
        return v == NULL ? NULL : mx_v_bool(r, !mx_v_truthy(v));
    case MX_N_NEG:
        return mx_v_negate(r, mx_eval(r, n->a, s));
    case MX_N_POS:
        v = mx_eval(r, n->a, s);
        if (v != NULL && !mx_v_is_number(v)) {
            return mx_run_fail(r, MX_E_INVALID, "+ needs a number, not a %s", mx_v_type_name(v));
        }
        return v != NULL && mx_v_is(v, MX_V_BOOL) ? mx_v_int(r, v->b) : v;
    case MX_N_COND:
        return eval_cond(r, n, s);
    case MX_N_OR:
    case MX_N_AND:
        return eval_logic(r, n, s);
    case MX_N_CONCAT:
        return eval_concat(r, n, s);
    case MX_N_MATH:
        return eval_math(r, n, s);
    case MX_N_COMPARE:
        return eval_compare(r, n, s);
    default:
        return mx_run_fail(r, MX_E_INVALID, "a statement where an expression belongs");
    }
}

mx_value *mx_eval(mx_run *r, const mx_node *n, mx_scope *s)
{
    if (s == NULL || !mx_run_enter(r)) {
        return NULL;
    }
    mx_value *v = eval_node(r, n, s);
    mx_run_leave(r);
    return r->err == MX_OK ? v : NULL;
}
