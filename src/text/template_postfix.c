/* SPDX-License-Identifier: MIT
 *
 * What follows a primary expression: attributes, subscripts, calls, filters, tests. These are
 * loops, not recursion, so a long chain costs no stack while parsing.
 */
#include "text/template_internal.h"

static mx_node *parse_attribute(mx_parser *p, mx_node *object)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    bool is_index = t->type == MX_T_NUMBER && mx_v_is(t->value, MX_V_INT);
    mx_node *n = mx_parse_node(p, is_index ? MX_N_ITEM : MX_N_ATTR);
    if (n == NULL) {
        return NULL;
    }
    n->a = object;
    if (is_index) {
        n->b = mx_parse_node(p, MX_N_CONST);
        if (n->b == NULL) {
            return NULL;
        }
        n->b->value = t->value;
    } else if (t->type == MX_T_NAME) {
        n->name = t->text;
    } else {
        return mx_parse_fail(p, "a name is missing behind '.'");
    }
    p->at++;
    return n;
}

/* One part of a slice: NULL in *out when it is left out. */
static bool slice_part(mx_parser *p, mx_node **out)
{
    *out = NULL;
    if (!mx_parse_is_op(p, ":") && !mx_parse_is_op(p, "]") && !mx_parse_is_op(p, ",")) {
        *out = mx_parse_expression(p, true);
        return *out != NULL;
    }
    return true;
}

static mx_node *parse_subscript(mx_parser *p, mx_node *object)
{
    mx_node *parts[3] = {NULL, NULL, NULL};
    if (!slice_part(p, &parts[0])) {
        return NULL;
    }
    bool is_slice = mx_parse_skip_op(p, ":");
    if (is_slice) {
        if (!slice_part(p, &parts[1]) ||
            (mx_parse_skip_op(p, ":") && !slice_part(p, &parts[2])))
        {
            return NULL;
        }
    } else if (parts[0] == NULL) {
        return mx_parse_fail(p, "an index is missing");
    }
    mx_node *n = mx_parse_node(p, is_slice ? MX_N_SLICE : MX_N_ITEM);
    if (n == NULL) {
        return NULL;
    }
    n->a = object;
    if (!is_slice) {
        mx_nodes index = {0};
        if (!mx_parse_is_op(p, ",")) {
            n->b = parts[0];
            return mx_parse_expect_op(p, "]") ? n : NULL;
        }
        if (!mx_parse_push(p, &index, parts[0])) {
            return NULL;
        }
        while (mx_parse_skip_op(p, ",") && !mx_parse_is_op(p, "]")) {
            if (!mx_parse_push(p, &index, mx_parse_expression(p, true))) {
                return NULL;
            }
        }
        n->b = mx_parse_node(p, MX_N_TUPLE);
        if (n->b == NULL) {
            return NULL;
        }
        mx_parse_take(&index, n->b);
        return mx_parse_expect_op(p, "]") ? n : NULL;
    }
    n->kids = mx_parse_alloc(p, sizeof parts);
    if (n->kids == NULL) {
        return NULL;
    }
    memcpy(n->kids, parts, sizeof parts);
    n->n_kids = 3;
    return mx_parse_expect_op(p, "]") ? n : NULL;
}

static bool push_keyword(mx_parser *p, mx_arg_nodes *a, mx_nodes *kw, mx_str name)
{
    for (size_t i = 0; i < kw->n; i++) {
        if (mx_str_eq(a->kw_names[i], name)) {
            mx_parse_fail(p, "the argument '%.*s' is given twice", (int)name.len, name.ptr);
            return false;
        }
    }
    /* The names grow by doubling as the nodes do. */
    if ((kw->n & (kw->n + 1)) == 0 || kw->n == 0) {
        mx_str *names = mx_parse_alloc(p, (kw->n * 2 + 2) * sizeof *names);
        if (names == NULL) {
            return false;
        }
        if (kw->n > 0) {
            memcpy(names, a->kw_names, kw->n * sizeof *names);
        }
        a->kw_names = names;
    }
    a->kw_names[kw->n] = name;
    return mx_parse_push(p, kw, mx_parse_expression(p, true));
}

static bool parse_argument(mx_parser *p, mx_arg_nodes *a, mx_nodes *pos, mx_nodes *kw)
{
    const mx_tok *t = mx_parse_peek(p, 0), *next = mx_parse_peek(p, 1);
    bool is_star = mx_parse_is_op(p, "*"), is_star_star = mx_parse_is_op(p, "**");
    if (a->star_star != NULL || (is_star && a->star != NULL)) {
        mx_parse_fail(p, "an argument behind ** or a second *");
        return false;
    }
    if (is_star || is_star_star) {
        p->at++;
        mx_node *n = mx_parse_expression(p, true);
        *(is_star ? &a->star : &a->star_star) = n;
        return n != NULL;
    }
    if (t->type == MX_T_NAME && next->type == MX_T_OP && strcmp(next->op, "=") == 0) {
        p->at += 2;
        return push_keyword(p, a, kw, t->text);
    }
    if (a->star != NULL || kw->n > 0) {
        mx_parse_fail(p, "a positional argument behind a named one");
        return false;
    }
    return mx_parse_push(p, pos, mx_parse_expression(p, true));
}

/* Behind the opening parenthesis, through the closing one. */
static mx_arg_nodes *parse_arguments(mx_parser *p)
{
    mx_arg_nodes *a = mx_parse_alloc(p, sizeof *a);
    mx_nodes pos = {0}, kw = {0};
    bool is_first = true;
    while (a != NULL && !mx_parse_is_op(p, ")")) {
        if (!is_first && (!mx_parse_expect_op(p, ",") || mx_parse_is_op(p, ")"))) {
            break;
        }
        is_first = false;
        if (!parse_argument(p, a, &pos, &kw)) {
            return NULL;
        }
    }
    if (a == NULL || p->err != MX_OK || !mx_parse_expect_op(p, ")")) {
        return NULL;
    }
    a->pos = pos.v;
    a->n_pos = (uint32_t)pos.n;
    a->kw = kw.v;
    a->n_kw = (uint32_t)kw.n;
    return a;
}

static mx_node *parse_call(mx_parser *p, mx_node *fn)
{
    mx_node *n = mx_parse_node(p, MX_N_CALL);
    p->at++;
    if (n == NULL) {
        return NULL;
    }
    n->a = fn;
    n->args = parse_arguments(p);
    return n->args == NULL ? NULL : n;
}

mx_node *mx_parse_postfix(mx_parser *p, mx_node *n)
{
    while (n != NULL) {
        if (mx_parse_skip_op(p, ".")) {
            n = parse_attribute(p, n);
        } else if (mx_parse_skip_op(p, "[")) {
            n = parse_subscript(p, n);
        } else if (mx_parse_is_op(p, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

static mx_node *parse_filter(mx_parser *p, mx_node *input)
{
    mx_node *n = mx_parse_node(p, MX_N_FILTER);
    const mx_tok *t = n == NULL ? NULL : mx_parse_expect_name(p);
    if (t == NULL) {
        return NULL;
    }
    n->a = input;
    n->name = t->text;
    n->builtin = mx_find_filter(t->text);
    if (mx_parse_skip_op(p, "(")) {
        n->args = parse_arguments(p);
        return n->args == NULL ? NULL : n;
    }
    return n;
}

/* `x is divisibleby 3`: an argument without parentheses may follow. */
static bool bare_argument_follows(const mx_parser *p)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    if (t->type == MX_T_STRING || t->type == MX_T_NUMBER || mx_parse_is_op(p, "[") ||
        mx_parse_is_op(p, "{"))
    {
        return true;
    }
    static const char *const words[] = {"else", "or", "and", "if", "in", "not", "is", "recursive"};
    for (size_t i = 0; i < MX_COUNT(words); i++) {
        if (mx_parse_is_name(p, words[i])) {
            return false;
        }
    }
    return t->type == MX_T_NAME;
}

static mx_node *parse_test(mx_parser *p, mx_node *tested)
{
    bool is_negated = mx_parse_skip_name(p, "not");
    mx_node *n = mx_parse_node(p, MX_N_TEST);
    const mx_tok *t = n == NULL ? NULL : mx_parse_expect_name(p);
    if (t == NULL) {
        return NULL;
    }
    n->a = tested;
    n->name = t->text;
    n->builtin = mx_find_test(t->text);
    if (mx_parse_skip_op(p, "(")) {
        n->args = parse_arguments(p);
        if (n->args == NULL) {
            return NULL;
        }
    } else if (bare_argument_follows(p)) {
        mx_nodes pos = {0};
        n->args = mx_parse_alloc(p, sizeof *n->args);
        if (n->args == NULL || !mx_parse_push(p, &pos, mx_parse_bare(p))) {
            return NULL;
        }
        n->args->pos = pos.v;
        n->args->n_pos = 1;
    }
    if (!is_negated) {
        return n;
    }
    mx_node *not = mx_parse_node(p, MX_N_NOT);
    if (not != NULL) {
        not->a = n;
    }
    return not;
}

mx_node *mx_parse_filters(mx_parser *p, mx_node *n, bool starts_with_name)
{
    if (starts_with_name) {
        n = parse_filter(p, n);
        if (n == NULL) {
            return NULL;
        }
    } else if (n == NULL) {
        return NULL;
    }
    while (n != NULL) {
        if (mx_parse_skip_op(p, "|")) {
            n = parse_filter(p, n);
        } else if (mx_parse_skip_name(p, "is")) {
            n = parse_test(p, n);
        } else if (mx_parse_is_op(p, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}
