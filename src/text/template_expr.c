/* SPDX-License-Identifier: MIT
 *
 * Expressions. Binary operators are parsed by climbing their levels, and a run of operators of one
 * level becomes one node with all its operands: a long a + b + c + ... costs no depth, neither here
 * nor when it is evaluated. From loosest to tightest: or, and, not, comparisons, + -, ~, * / // %,
 * **, then signs, then postfix and filters and tests.
 */
#include "text/template_internal.h"

enum { L_OR = 1, L_AND, L_NOT, L_COMPARE, L_ADD, L_CONCAT, L_MUL, L_POW };

static mx_node *parse_unary(mx_parser *p, bool with_filters);
static mx_node *parse_binary(mx_parser *p, int level);

/* Which operator comes next, if it has this level or a tighter one? */
static int next_operator(const mx_parser *p, int min_level, uint8_t *op, size_t *n_tokens)
{
    static const struct {
        const char *text;
        uint8_t level, op;
    } table[] = {
        {"==", L_COMPARE, MX_CMP_EQ}, {"!=", L_COMPARE, MX_CMP_NE}, {"<", L_COMPARE, MX_CMP_LT},
        {"<=", L_COMPARE, MX_CMP_LE}, {">", L_COMPARE, MX_CMP_GT},  {">=", L_COMPARE, MX_CMP_GE},
        {"+", L_ADD, MX_OP_ADD},      {"-", L_ADD, MX_OP_SUB},      {"~", L_CONCAT, 0},
        {"*", L_MUL, MX_OP_MUL},      {"/", L_MUL, MX_OP_DIV},      {"//", L_MUL, MX_OP_FLOORDIV},
        {"%", L_MUL, MX_OP_MOD},      {"**", L_POW, MX_OP_POW},
    };
    const mx_tok *t = mx_parse_peek(p, 0);
    *n_tokens = 1;
    int level = 0;
    if (t->type == MX_T_OP) {
        for (size_t i = 0; i < MX_COUNT(table) && level == 0; i++) {
            if (strcmp(table[i].text, t->op) == 0) {
                level = table[i].level;
                *op = table[i].op;
            }
        }
    } else if (mx_parse_is_name(p, "or")) {
        level = L_OR;
    } else if (mx_parse_is_name(p, "and")) {
        level = L_AND;
    } else if (mx_parse_is_name(p, "in")) {
        level = L_COMPARE;
        *op = MX_CMP_IN;
    } else if (mx_parse_is_name(p, "not")) {
        const mx_tok *next = mx_parse_peek(p, 1);
        if (next->type == MX_T_NAME && mx_str_eq(next->text, MX_STR("in"))) {
            level = L_COMPARE;
            *op = MX_CMP_NOT_IN;
            *n_tokens = 2;
        }
    }
    return level >= min_level ? level : 0;
}

/* All operands of one level, from `first` on. */
static mx_node *parse_run(mx_parser *p, mx_node *first, int level)
{
    static const uint8_t types[] = {[L_OR] = MX_N_OR, [L_AND] = MX_N_AND,
                                    [L_COMPARE] = MX_N_COMPARE, [L_ADD] = MX_N_MATH,
                                    [L_CONCAT] = MX_N_CONCAT, [L_MUL] = MX_N_MATH,
                                    [L_POW] = MX_N_MATH};
    mx_node *n = mx_parse_node(p, (mx_node_type)types[level]);
    mx_nodes kids = {0};
    mx_buf ops = {0};
    if (n == NULL || !mx_parse_push(p, &kids, first)) {
        return NULL;
    }
    uint8_t op = 0;
    size_t n_tokens;
    while (next_operator(p, level, &op, &n_tokens) == level) {
        p->at += n_tokens;
        mx_buf_append(&ops, &op, 1);
        mx_node *operand = level == L_POW ? parse_unary(p, true) : parse_binary(p, level + 1);
        if (!mx_parse_push(p, &kids, operand)) {
            mx_buf_free(&ops);
            return NULL;
        }
    }
    n->ops = mx_parse_alloc(p, ops.len);
    if (n->ops == NULL || ops.failed) {
        mx_buf_free(&ops);
        p->err = p->err != MX_OK ? p->err : MX_E_NOMEM;
        return NULL;
    }
    memcpy(n->ops, ops.ptr, ops.len);
    mx_buf_free(&ops);
    mx_parse_take(&kids, n);
    return n;
}

static mx_node *parse_binary(mx_parser *p, int level)
{
    mx_node *left;
    if (!mx_parse_enter(p)) {
        return NULL;
    }
    if (level <= L_NOT && mx_parse_skip_name(p, "not")) {
        left = mx_parse_node(p, MX_N_NOT);
        mx_node *inner = left == NULL ? NULL : parse_binary(p, L_NOT);
        if (inner == NULL) {
            return NULL;
        }
        left->a = inner;
    } else {
        left = parse_unary(p, true);
    }
    uint8_t op = 0;
    size_t n_tokens;
    int next;
    while (left != NULL && (next = next_operator(p, level, &op, &n_tokens)) != 0) {
        left = parse_run(p, left, next);
    }
    p->depth--;
    return left;
}

mx_node *mx_parse_expression(mx_parser *p, bool with_condition)
{
    mx_node *e = parse_binary(p, L_OR);
    while (with_condition && e != NULL && mx_parse_skip_name(p, "if")) {
        mx_node *n = mx_parse_node(p, MX_N_COND);
        mx_node *condition = n == NULL ? NULL : parse_binary(p, L_OR);
        if (condition == NULL) {
            return NULL;
        }
        n->a = condition;
        n->b = e;
        if (mx_parse_skip_name(p, "else")) {
            if (!mx_parse_enter(p)) {
                return NULL;
            }
            n->c = mx_parse_expression(p, true);
            p->depth--;
            if (n->c == NULL) {
                return NULL;
            }
        }
        e = n;
    }
    return e;
}

static mx_node *parse_list(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_LIST);
    mx_nodes kids = {0};
    p->at++;
    while (n != NULL && !mx_parse_is_op(p, "]")) {
        if (kids.n > 0 && (!mx_parse_expect_op(p, ",") || mx_parse_is_op(p, "]"))) {
            break;
        }
        if (!mx_parse_push(p, &kids, mx_parse_expression(p, true))) {
            return NULL;
        }
    }
    if (n == NULL || p->err != MX_OK || !mx_parse_expect_op(p, "]")) {
        return NULL;
    }
    mx_parse_take(&kids, n);
    return n;
}

static mx_node *parse_dict(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_DICT);
    mx_nodes kids = {0};
    p->at++;
    while (n != NULL && !mx_parse_is_op(p, "}")) {
        if (kids.n > 0 && (!mx_parse_expect_op(p, ",") || mx_parse_is_op(p, "}"))) {
            break;
        }
        if (!mx_parse_push(p, &kids, mx_parse_expression(p, true)) ||
            !mx_parse_expect_op(p, ":") ||
            !mx_parse_push(p, &kids, mx_parse_expression(p, true)))
        {
            return NULL;
        }
    }
    if (n == NULL || p->err != MX_OK || !mx_parse_expect_op(p, "}")) {
        return NULL;
    }
    mx_parse_take(&kids, n);
    return n;
}

/* Adjacent strings are one string. */
static mx_node *parse_strings(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_CONST);
    if (n == NULL) {
        return NULL;
    }
    n->value = mx_parse_peek(p, 0)->value;
    p->at++;
    if (mx_parse_peek(p, 0)->type != MX_T_STRING) {
        return n;
    }
    mx_buf b = {0};
    mx_buf_append(&b, n->value->s.ptr, n->value->s.len);
    for (; mx_parse_peek(p, 0)->type == MX_T_STRING; p->at++) {
        mx_str s = mx_v_str(mx_parse_peek(p, 0)->value);
        mx_buf_append(&b, s.ptr, s.len);
    }
    n->value = b.failed ? NULL : mx_value_string(p->t->arena, mx_buf_view(&b), true);
    mx_buf_free(&b);
    if (n->value == NULL) {
        p->err = MX_E_NOMEM;
        return NULL;
    }
    return n;
}

static mx_node *parse_name(mx_parser *p)
{
    static const char *const reserved[] = {"and", "or", "not", "in", "is", "if", "else", "elif"};
    const mx_tok *t = mx_parse_peek(p, 0);
    for (size_t i = 0; i < MX_COUNT(reserved); i++) {
        if (mx_parse_is_name(p, reserved[i])) {
            return mx_parse_fail(p, "unexpected '%s'", reserved[i]);
        }
    }
    p->at++;
    bool is_true = mx_str_eq(t->text, MX_STR("true")) || mx_str_eq(t->text, MX_STR("True"));
    bool is_false = mx_str_eq(t->text, MX_STR("false")) || mx_str_eq(t->text, MX_STR("False"));
    bool is_none = mx_str_eq(t->text, MX_STR("none")) || mx_str_eq(t->text, MX_STR("None"));
    mx_node *n = mx_parse_node(p, is_true || is_false || is_none ? MX_N_CONST : MX_N_NAME);
    if (n == NULL) {
        return NULL;
    }
    if (n->type == MX_N_CONST) {
        n->value = is_none ? mx_value_none(p->t->arena) : mx_value_bool(p->t->arena, is_true);
        if (n->value == NULL) {
            p->err = MX_E_NOMEM;
            return NULL;
        }
        return n;
    }
    n->sym = mx_parse_symbol(p, t->text);
    if (p->err != MX_OK) {
        return NULL;
    }
    n->name = p->t->symbols[n->sym];
    p->uses |= n->sym == p->t->sym_caller    ? MX_USES_CALLER
               : n->sym == p->t->sym_varargs ? MX_USES_VARARGS
               : n->sym == p->t->sym_kwargs  ? MX_USES_KWARGS : 0;
    return n;
}

static mx_node *parse_primary(mx_parser *p)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    mx_node *n;
    switch ((mx_tok_type)t->type) {
    case MX_T_NAME:
        return parse_name(p);
    case MX_T_STRING:
        return parse_strings(p);
    case MX_T_NUMBER:
        n = mx_parse_node(p, MX_N_CONST);
        if (n != NULL) {
            n->value = t->value;
            p->at++;
        }
        return n;
    case MX_T_OP:
        if (t->op[0] == '(') {
            p->at++;
            n = mx_parse_tuple(p, true, NULL, true);
            return n != NULL && mx_parse_expect_op(p, ")") ? n : NULL;
        }
        if (t->op[0] == '[') {
            return parse_list(p);
        }
        if (t->op[0] == '{') {
            return parse_dict(p);
        }
        return mx_parse_fail(p, "unexpected '%s'", t->op);
    default:
        return mx_parse_fail(p, "an expression is missing");
    }
}

mx_node *mx_parse_bare(mx_parser *p)
{
    if (!mx_parse_enter(p)) {
        return NULL;
    }
    mx_node *n = mx_parse_postfix(p, parse_primary(p));
    p->depth--;
    return n;
}

static mx_node *parse_unary(mx_parser *p, bool with_filters)
{
    mx_node *n;
    if (!mx_parse_enter(p)) {
        return NULL;
    }
    if (mx_parse_is_op(p, "-") || mx_parse_is_op(p, "+")) {
        n = mx_parse_node(p, mx_parse_is_op(p, "-") ? MX_N_NEG : MX_N_POS);
        p->at++;
        mx_node *inner = n == NULL ? NULL : parse_unary(p, false);
        if (inner == NULL) {
            return NULL;
        }
        n->a = inner;
    } else {
        n = parse_primary(p);
    }
    n = mx_parse_postfix(p, n);
    if (with_filters) {
        n = mx_parse_filters(p, n, false);
    }
    p->depth--;
    return n;
}

static bool tuple_ends(const mx_parser *p, const char *end_name)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    return t->type == MX_T_PRINT_END || t->type == MX_T_BLOCK_END || mx_parse_is_op(p, ")") ||
           (end_name != NULL && mx_parse_is_name(p, end_name));
}

mx_node *mx_parse_tuple(mx_parser *p, bool with_condition, const char *end_name, bool in_parens)
{
    mx_nodes kids = {0};
    bool is_tuple = false;
    while (!tuple_ends(p, end_name)) {
        if (!mx_parse_push(p, &kids, mx_parse_expression(p, with_condition))) {
            return NULL;
        }
        if (!mx_parse_skip_op(p, ",")) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && kids.n == 1) {
        return kids.v[0];
    }
    if (!is_tuple && !in_parens) {
        return mx_parse_fail(p, "an expression is missing");
    }
    mx_node *n = mx_parse_node(p, MX_N_TUPLE);
    if (n != NULL) {
        mx_parse_take(&kids, n);
    }
    return n;
}

static bool is_assignable(mx_parser *p, const mx_node *n, uint32_t level)
{
    if (n->type == MX_N_NAME) {
        return true;
    }
    if (n->type != MX_N_TUPLE || level > 8) {
        return false;
    }
    for (uint32_t i = 0; i < n->n_kids; i++) {
        if (!is_assignable(p, n->kids[i], level + 1)) {
            return false;
        }
    }
    return true;
}

mx_node *mx_parse_target(mx_parser *p, const char *end_name)
{
    mx_nodes kids = {0};
    bool is_tuple = false;
    while (!tuple_ends(p, end_name) && !mx_parse_is_op(p, "=")) {
        if (!mx_parse_push(p, &kids, parse_primary(p))) {
            return NULL;
        }
        if (!mx_parse_skip_op(p, ",")) {
            break;
        }
        is_tuple = true;
    }
    mx_node *n = kids.n == 1 && !is_tuple ? kids.v[0] : mx_parse_node(p, MX_N_TUPLE);
    if (n == NULL) {
        return NULL;
    }
    if (kids.n != 1 || is_tuple) {
        mx_parse_take(&kids, n);
    }
    return is_assignable(p, n, 0) ? n : mx_parse_fail(p, "this cannot be assigned to");
}
