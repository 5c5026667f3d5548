/* SPDX-License-Identifier: MIT
 *
 * Statements, and what both halves of the parser share. All memory of the tree comes from the arena
 * of the template; a failure anywhere throws the whole arena away. Nesting is limited here, so that
 * neither parsing nor walking the tree can exhaust the stack.
 */
#include "text/template_internal.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_NESTING = 200, MAX_SOURCE_BYTES = 4 << 20 };

static mx_node *parse_body(mx_parser *p, const char *const *ends);

/* ---- shared with template_expr.c ---- */

void *mx_parse_fail(mx_parser *p, const char *fmt, ...)
{
    if (p->err == MX_OK) {
        char text[256];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        p->err = mx_fail(p->eb, MX_E_FORMAT, "line %u: %s", (unsigned)p->toks.t[p->at].line, text);
    }
    return NULL;
}

void *mx_parse_alloc(mx_parser *p, size_t bytes)
{
    void *q = p->err == MX_OK ? mx_arena_alloc(p->t->arena, bytes) : NULL;
    if (q == NULL && p->err == MX_OK) {
        p->err = MX_E_NOMEM;
    }
    return q;
}

bool mx_parse_enter(mx_parser *p)
{
    if (p->depth >= MAX_NESTING && p->err == MX_OK) {
        p->err = mx_fail(p->eb, MX_E_LIMIT, "line %u: nested deeper than %d levels",
                         (unsigned)p->toks.t[p->at].line, MAX_NESTING);
    }
    p->depth++;
    return p->err == MX_OK;
}

mx_node *mx_parse_node(mx_parser *p, mx_node_type type)
{
    mx_node *n = mx_parse_alloc(p, sizeof *n);
    if (n != NULL) {
        n->type = (uint8_t)type;
        n->line = p->toks.t[p->at].line;
    }
    return n;
}

static uint32_t hash_name(mx_str s)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < s.len; i++) {
        h = (h ^ (uint8_t)s.ptr[i]) * 16777619u;
    }
    return h;
}

static bool grow_symbols(mx_parser *p)
{
    size_t cap = p->n_slots ? p->n_slots * 2 : 64;
    uint32_t *slots = mx_parse_alloc(p, cap * sizeof *slots);
    mx_str *names = mx_parse_alloc(p, cap / 2 * sizeof *names);
    if (slots == NULL || names == NULL) {
        return false;
    }
    if (p->n_symbols > 0) {
        memcpy(names, p->t->symbols, p->n_symbols * sizeof *names);
    }
    for (uint32_t i = 0; i < p->n_symbols; i++) {
        size_t at = hash_name(names[i]) & (cap - 1);
        while (slots[at] != 0) {
            at = (at + 1) & (cap - 1);
        }
        slots[at] = i + 1;
    }
    p->slots = slots;
    p->n_slots = cap;
    p->t->symbols = names;
    return true;
}

uint32_t mx_parse_symbol(mx_parser *p, mx_str name)
{
    if (p->n_symbols * 2 >= p->n_slots && !grow_symbols(p)) {
        return 0;
    }
    size_t at = hash_name(name) & (p->n_slots - 1);
    for (; p->slots[at] != 0; at = (at + 1) & (p->n_slots - 1)) {
        if (mx_str_eq(p->t->symbols[p->slots[at] - 1], name)) {
            return p->slots[at] - 1;
        }
    }
    p->t->symbols[p->n_symbols++] = name;
    p->slots[at] = (uint32_t)p->n_symbols;
    return (uint32_t)p->n_symbols - 1;
}

const mx_tok *mx_parse_peek(const mx_parser *p, size_t ahead)
{
    return &p->toks.t[mx_min_size(p->at + ahead, p->toks.n - 1)];
}

bool mx_parse_is_op(const mx_parser *p, const char *op)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    return t->type == MX_T_OP && strcmp(t->op, op) == 0;
}

bool mx_parse_is_name(const mx_parser *p, const char *name)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    return t->type == MX_T_NAME && mx_str_eq(t->text, mx_str_of(name));
}

bool mx_parse_skip_op(mx_parser *p, const char *op)
{
    bool hit = mx_parse_is_op(p, op);
    p->at += hit;
    return hit;
}

bool mx_parse_skip_name(mx_parser *p, const char *name)
{
    bool hit = mx_parse_is_name(p, name);
    p->at += hit;
    return hit;
}

bool mx_parse_expect_op(mx_parser *p, const char *op)
{
    if (!mx_parse_skip_op(p, op)) {
        mx_parse_fail(p, "'%s' is missing", op);
        return false;
    }
    return true;
}

const mx_tok *mx_parse_expect_name(mx_parser *p)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    if (t->type != MX_T_NAME) {
        return mx_parse_fail(p, "a name is missing");
    }
    p->at++;
    return t;
}

bool mx_parse_push(mx_parser *p, mx_nodes *list, mx_node *n)
{
    if (n == NULL) {
        return false;
    }
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 4;
        mx_node **v = mx_parse_alloc(p, cap * sizeof(mx_node *));
        if (v == NULL) {
            return false;
        }
        if (list->n > 0) {
            memcpy(v, list->v, list->n * sizeof *v);
        }
        list->v = v;
        list->cap = cap;
    }
    list->v[list->n++] = n;
    return true;
}

void mx_parse_take(mx_nodes *list, mx_node *n)
{
    n->kids = list->v;
    n->n_kids = (uint32_t)list->n;
}

/* ---- statements ---- */

static bool expect_block_end(mx_parser *p)
{
    if (mx_parse_peek(p, 0)->type != MX_T_BLOCK_END) {
        mx_parse_fail(p, "the end of the block is missing");
        return false;
    }
    p->at++;
    return true;
}

/* The rest of an opening tag, then a body up to one of the ends, whose name is left to be read. */
static mx_node *open_body(mx_parser *p, const char *const *ends)
{
    mx_parse_skip_op(p, ":"); /* allowed, as in Python */
    return expect_block_end(p) ? parse_body(p, ends) : NULL;
}

/* A body whose only end is `end`, and that end's name. */
static mx_node *whole_body(mx_parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    mx_node *body = open_body(p, ends);
    p->at += body != NULL;
    return body;
}

static mx_node *parse_for(mx_parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    mx_node *n = mx_parse_node(p, MX_N_FOR);
    if (n == NULL || (n->a = mx_parse_target(p, "in")) == NULL) {
        return NULL;
    }
    if (!mx_parse_skip_name(p, "in")) {
        return mx_parse_fail(p, "'in' is missing");
    }
    if ((n->b = mx_parse_tuple(p, false, "recursive", false)) == NULL) {
        return NULL;
    }
    if (mx_parse_skip_name(p, "if") && (n->c = mx_parse_expression(p, true)) == NULL) {
        return NULL;
    }
    n->flags = mx_parse_skip_name(p, "recursive") ? MX_IS_RECURSIVE : 0;
    n->kids = mx_parse_alloc(p, 2 * sizeof(mx_node *));
    if (n->kids == NULL) {
        return NULL;
    }
    p->loop_depth++;
    n->kids[0] = open_body(p, ends);
    p->loop_depth--;
    if (n->kids[0] == NULL) {
        return NULL;
    }
    if (mx_parse_skip_name(p, "endfor")) {
        return n;
    }
    p->at++; /* else */
    n->kids[1] = whole_body(p, "endfor");
    return n->kids[1] == NULL ? NULL : n;
}

static mx_node *parse_if(mx_parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    mx_node *n = mx_parse_node(p, MX_N_IF);
    mx_nodes kids = {0};
    if (n == NULL) {
        return NULL;
    }
    do {
        if (!mx_parse_push(p, &kids, mx_parse_tuple(p, false, NULL, false)) ||
            !mx_parse_push(p, &kids, open_body(p, ends)))
        {
            return NULL;
        }
    } while (mx_parse_skip_name(p, "elif"));
    mx_parse_take(&kids, n);
    if (mx_parse_skip_name(p, "endif")) {
        return n;
    }
    p->at++; /* else */
    n->c = whole_body(p, "endif");
    return n->c == NULL ? NULL : n;
}

static mx_node *parse_set_target(mx_parser *p)
{
    const mx_tok *t = mx_parse_peek(p, 0), *next = mx_parse_peek(p, 1);
    if (t->type != MX_T_NAME || next->type != MX_T_OP || strcmp(next->op, ".") != 0) {
        return mx_parse_target(p, NULL);
    }
    mx_node *n = mx_parse_node(p, MX_N_NS_REF);
    if (n == NULL) {
        return NULL;
    }
    n->sym = mx_parse_symbol(p, t->text);
    p->at += 2;
    const mx_tok *attribute = mx_parse_expect_name(p);
    if (attribute == NULL) {
        return NULL;
    }
    n->name = attribute->text;
    return n;
}

static mx_node *parse_set(mx_parser *p)
{
    mx_node *target = parse_set_target(p);
    if (target == NULL) {
        return NULL;
    }
    bool is_block = !mx_parse_skip_op(p, "=");
    mx_node *n = mx_parse_node(p, is_block ? MX_N_SET_BLOCK : MX_N_SET);
    if (n == NULL) {
        return NULL;
    }
    n->a = target;
    if (!is_block) {
        n->b = mx_parse_tuple(p, true, NULL, false);
        return n->b == NULL ? NULL : n;
    }
    if (mx_parse_skip_op(p, "|") && (n->b = mx_parse_filters(p, NULL, true)) == NULL) {
        return NULL;
    }
    n->c = whole_body(p, "endset");
    return n->c == NULL ? NULL : n;
}

mx_params *mx_parse_params(mx_parser *p)
{
    mx_params *ps = mx_parse_alloc(p, sizeof *ps);
    size_t cap = 0;
    if (ps == NULL || !mx_parse_expect_op(p, "(")) {
        return NULL;
    }
    while (!mx_parse_is_op(p, ")")) {
        const mx_tok *t = ps->n > 0 && !mx_parse_expect_op(p, ",") ? NULL : mx_parse_expect_name(p);
        if (t == NULL) {
            return NULL;
        }
        if (ps->n == cap) {
            cap = cap ? cap * 2 : 4;
            uint32_t *syms = mx_parse_alloc(p, cap * sizeof *syms);
            mx_str *names = mx_parse_alloc(p, cap * sizeof *names);
            mx_node **defaults = mx_parse_alloc(p, cap * sizeof(mx_node *));
            if (syms == NULL || names == NULL || defaults == NULL) {
                return NULL;
            }
            if (ps->n > 0) {
                memcpy(syms, ps->syms, ps->n * sizeof *syms);
                memcpy(names, ps->names, ps->n * sizeof *names);
                memcpy(defaults, ps->defaults, ps->n * sizeof *defaults);
            }
            *ps = (mx_params){syms, names, defaults, ps->n};
        }
        ps->syms[ps->n] = mx_parse_symbol(p, t->text);
        ps->names[ps->n] = t->text;
        if (mx_parse_skip_op(p, "=")) {
            ps->defaults[ps->n] = mx_parse_expression(p, true);
            if (ps->defaults[ps->n] == NULL) {
                return NULL;
            }
        } else if (ps->n > 0 && ps->defaults[ps->n - 1] != NULL) {
            return mx_parse_fail(p, "a parameter without a default behind one with a default");
        }
        ps->n++;
    }
    p->at++;
    return p->err == MX_OK ? ps : NULL;
}

/* The body of a macro or call block: notes which special names it uses, also for the macro
 * around. */
static bool macro_body(mx_parser *p, mx_node *n, const char *end)
{
    uint8_t around = p->uses;
    uint32_t loops = p->loop_depth;
    p->uses = 0;
    p->loop_depth = 0;
    n->c = whole_body(p, end);
    n->flags = p->uses;
    p->uses |= around;
    p->loop_depth = loops;
    return n->c != NULL;
}

static mx_node *parse_macro(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_MACRO);
    const mx_tok *t = n == NULL ? NULL : mx_parse_expect_name(p);
    if (t == NULL) {
        return NULL;
    }
    n->name = t->text;
    n->sym = mx_parse_symbol(p, t->text);
    n->params = mx_parse_params(p);
    return n->params != NULL && macro_body(p, n, "endmacro") ? n : NULL;
}

static mx_node *parse_call_block(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_CALL_BLOCK);
    if (n == NULL) {
        return NULL;
    }
    n->name = MX_STR("caller");
    n->params = mx_parse_is_op(p, "(") ? mx_parse_params(p) : mx_parse_alloc(p, sizeof(mx_params));
    if (n->params == NULL || (n->a = mx_parse_expression(p, true)) == NULL) {
        return NULL;
    }
    if (n->a->type != MX_N_CALL) {
        return mx_parse_fail(p, "a call block needs a call");
    }
    return macro_body(p, n, "endcall") ? n : NULL;
}

static mx_node *parse_filter_block(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_FILTER_BLOCK);
    if (n == NULL || (n->b = mx_parse_filters(p, NULL, true)) == NULL) {
        return NULL;
    }
    n->c = whole_body(p, "endfilter");
    return n->c == NULL ? NULL : n;
}

static mx_node *parse_with(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_WITH);
    mx_nodes kids = {0};
    while (n != NULL && mx_parse_peek(p, 0)->type != MX_T_BLOCK_END) {
        if ((kids.n > 0 && !mx_parse_expect_op(p, ",")) ||
            !mx_parse_push(p, &kids, mx_parse_target(p, NULL)) || !mx_parse_expect_op(p, "=") ||
            !mx_parse_push(p, &kids, mx_parse_expression(p, true)))
        {
            return NULL;
        }
    }
    if (n == NULL) {
        return NULL;
    }
    mx_parse_take(&kids, n);
    n->c = whole_body(p, "endwith");
    return n->c == NULL ? NULL : n;
}

static mx_node *parse_generation(mx_parser *p)
{
    mx_node *n = mx_parse_node(p, MX_N_SCOPE);
    if (n == NULL) {
        return NULL;
    }
    n->c = whole_body(p, "endgeneration");
    return n->c == NULL ? NULL : n;
}

static mx_node *parse_jump(mx_parser *p, mx_node_type type)
{
    return p->loop_depth > 0 ? mx_parse_node(p, type)
                             : mx_parse_fail(p, "break or continue outside of a loop");
}

static mx_node *parse_break(mx_parser *p)
{
    return parse_jump(p, MX_N_BREAK);
}

static mx_node *parse_continue(mx_parser *p)
{
    return parse_jump(p, MX_N_CONTINUE);
}

static mx_node *parse_statement(mx_parser *p)
{
    static const struct {
        const char *name;
        mx_node *(*parse)(mx_parser *p);
    } table[] = {
        {"for", parse_for},         {"if", parse_if},           {"set", parse_set},
        {"macro", parse_macro},     {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"break", parse_break},     {"continue", parse_continue},
        {"generation", parse_generation},
    };
    const mx_tok *t = mx_parse_peek(p, 0);
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        if (mx_parse_skip_name(p, table[i].name)) {
            mx_node *n = table[i].parse(p);
            return n != NULL && expect_block_end(p) ? n : NULL;
        }
    }
    if (t->type != MX_T_NAME) {
        return mx_parse_fail(p, "the name of a statement is missing");
    }
    return mx_parse_fail(p, "unknown or misplaced statement '%.*s'",
                         (int)mx_min_size(t->text.len, 40), t->text.ptr);
}

static bool at_end_name(const mx_parser *p, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++) {
        if (mx_parse_is_name(p, *ends)) {
            return true;
        }
    }
    return false;
}

/* One piece of a body; *is_end says that an end name has been reached instead. */
static mx_node *parse_piece(mx_parser *p, const char *const *ends, bool *is_end)
{
    const mx_tok *t = mx_parse_peek(p, 0);
    mx_node *n;
    switch ((mx_tok_type)t->type) {
    case MX_T_TEXT:
        n = mx_parse_node(p, MX_N_TEXT);
        p->at++;
        if (n != NULL && (n->value = mx_value_string(p->t->arena, t->text, true)) == NULL) {
            p->err = MX_E_NOMEM;
        }
        return n;
    case MX_T_PRINT_BEGIN:
        p->at++;
        n = mx_parse_node(p, MX_N_PRINT);
        if (n == NULL || (n->a = mx_parse_tuple(p, true, NULL, false)) == NULL) {
            return NULL;
        }
        if (mx_parse_peek(p, 0)->type != MX_T_PRINT_END) {
            return mx_parse_fail(p, "'}}' is missing");
        }
        p->at++;
        return n;
    case MX_T_BLOCK_BEGIN:
        p->at++;
        if (at_end_name(p, ends)) {
            *is_end = true;
            return NULL;
        }
        return parse_statement(p);
    default:
        return mx_parse_fail(p, "'%s' is missing", ends != NULL ? ends[0] : "the end");
    }
}

/* Until the end of the template (ends NULL) or an end name, which is left to be read. */
static mx_node *parse_body(mx_parser *p, const char *const *ends)
{
    mx_node *body = mx_parse_node(p, MX_N_BODY);
    mx_nodes kids = {0};
    bool is_end = false;
    if (body == NULL || !mx_parse_enter(p)) {
        return NULL;
    }
    while (ends != NULL || mx_parse_peek(p, 0)->type != MX_T_END) {
        mx_node *n = parse_piece(p, ends, &is_end);
        if (is_end) {
            break;
        }
        if (!mx_parse_push(p, &kids, n)) {
            return NULL;
        }
    }
    p->depth--;
    mx_parse_take(&kids, body);
    return p->err == MX_OK ? body : NULL;
}

/* The source as the lexer wants it: well-formed, "\n" for every newline, the last one dropped. */
static mx_err clean_source(mx_arena *arena, mx_str source, mx_str *out)
{
    mx_buf b = {0};
    mx_utf8_append_clean(&b, source.ptr, source.len);
    char *p = b.failed ? NULL : mx_arena_alloc(arena, b.len);
    size_t n = 0;
    for (size_t i = 0; p != NULL && i < b.len; i++) {
        char c = b.ptr[i];
        if (c == '\r') {
            c = '\n';
            i += i + 1 < b.len && b.ptr[i + 1] == '\n';
        }
        p[n++] = c;
    }
    mx_buf_free(&b);
    if (p == NULL) {
        return MX_E_NOMEM;
    }
    *out = (mx_str){p, n - (n > 0 && p[n - 1] == '\n')};
    return MX_OK;
}

static mx_err parse_all(mx_parser *p, mx_str source)
{
    mx_template *t = p->t;
    mx_str clean;
    t->sym_loop = mx_parse_symbol(p, MX_STR("loop"));
    t->sym_caller = mx_parse_symbol(p, MX_STR("caller"));
    t->sym_varargs = mx_parse_symbol(p, MX_STR("varargs"));
    t->sym_kwargs = mx_parse_symbol(p, MX_STR("kwargs"));
    MX_TRY(p->err);
    MX_TRY(clean_source(t->arena, source, &clean));
    MX_TRY(mx_tmpl_lex(&p->toks, t->arena, clean, p->eb));
    t->root = parse_body(p, NULL);
    t->n_symbols = (uint32_t)p->n_symbols;
    return t->root == NULL && p->err == MX_OK ? MX_E_NOMEM : p->err;
}

mx_err mx_template_parse(mx_template **out, mx_str source, mx_errbuf *eb)
{
    *out = NULL;
    if (source.len > MAX_SOURCE_BYTES) {
        return mx_fail(eb, MX_E_LIMIT, "a template of %zu bytes; the limit is %d", source.len,
                       (int)MAX_SOURCE_BYTES);
    }
    mx_template *t = mx_calloc(1, sizeof *t);
    if (t != NULL) {
        t->arena = mx_arena_create(0);
    }
    if (t == NULL || t->arena == NULL) {
        mx_free(t);
        return mx_fail(eb, MX_E_NOMEM, "no memory for the template");
    }
    mx_parser p = {.t = t, .eb = eb};
    mx_err err = parse_all(&p, source);
    mx_free(p.toks.t);
    if (err != MX_OK) {
        if (err == MX_E_NOMEM) {
            mx_fail(eb, err, "no memory for the template");
        }
        mx_template_destroy(t);
        return err;
    }
    *out = t;
    return MX_OK;
}

void mx_template_destroy(mx_template *t)
{
    if (t != NULL) {
        mx_arena_destroy(t->arena);
        mx_free(t);
    }
}
