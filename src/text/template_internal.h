/* SPDX-License-Identifier: MIT
 *
 * template_internal.h: what the files of the interpreter share: tokens, the syntax tree, scopes,
 * and the tables of filters, tests and methods.
 *
 * The tree lives in the arena of its template and does not change after parsing, so that several
 * threads may walk it. Scopes, macros and loops live in the arena of one rendering.
 */
#ifndef MX_TEMPLATE_INTERNAL_H
#define MX_TEMPLATE_INTERNAL_H

#include "text/template.h"
#include "text/value_internal.h"

/* strchr would find the NUL at the end of the set, and texts may hold NULs. */
MX_INLINE bool mx_is_one_of(int c, const char *set)
{
    return c != 0 && strchr(set, c) != NULL;
}

/* ---- tokens ---- */

typedef enum mx_tok_type {
    MX_T_END, MX_T_TEXT, MX_T_PRINT_BEGIN, MX_T_PRINT_END, MX_T_BLOCK_BEGIN, MX_T_BLOCK_END,
    MX_T_NAME, MX_T_STRING, MX_T_NUMBER, MX_T_OP
} mx_tok_type;

typedef struct mx_tok {
    uint8_t type;
    char op[3];      /* MX_T_OP: the operator, NUL-terminated */
    uint32_t line;
    mx_str text;     /* name, or template text, or the number's digits */
    mx_value *value; /* string and number */
} mx_tok;

typedef struct mx_toks {
    mx_tok *t;
    size_t n, cap;
} mx_toks;

/* Cuts a source (well-formed UTF-8, newlines already "\n") into tokens; the last one is MX_T_END.
 * Texts point into the source, values are made in the arena. Free t->t with mx_free. */
mx_err mx_tmpl_lex(mx_toks *t, mx_arena *arena, mx_str source, mx_errbuf *eb);

/* ---- the tree ---- */

typedef enum mx_node_type {
    /* expressions */
    MX_N_CONST,  /* value */
    MX_N_NAME,   /* sym, name */
    MX_N_LIST, MX_N_TUPLE, /* kids */
    MX_N_DICT,   /* kids: key, value, key, value ... */
    MX_N_ATTR,   /* a.name */
    MX_N_ITEM,   /* a[b] */
    MX_N_SLICE,  /* a[kids 0 : 1 : 2], absent ones NULL */
    MX_N_CALL,   /* a(args) */
    MX_N_FILTER, /* a|name(args); a NULL in filter blocks: the text of the block */
    MX_N_TEST,   /* a is name(args) */
    MX_N_NOT, MX_N_NEG, MX_N_POS, /* a */
    MX_N_COND,   /* b if a else c (c may be NULL) */
    MX_N_OR, MX_N_AND, MX_N_CONCAT, /* kids, two or more */
    MX_N_MATH, MX_N_COMPARE,        /* kids, ops between them */
    /* statements */
    MX_N_BODY,   /* kids */
    MX_N_TEXT,   /* value */
    MX_N_PRINT,  /* a */
    MX_N_FOR,    /* for a in b if c: kids 0 = body, 1 = else (or NULL); flag = recursive */
    MX_N_IF,     /* kids: condition, body, condition, body ...; c = else or NULL */
    MX_N_SET,    /* a = b */
    MX_N_SET_BLOCK,    /* a, filter b (or NULL), body c */
    MX_N_MACRO,        /* sym, name, params, body c */
    MX_N_CALL_BLOCK,   /* call a, params, body c */
    MX_N_FILTER_BLOCK, /* filter b, body c */
    MX_N_WITH,         /* kids: target, value, target, value ...; body c */
    MX_N_SCOPE,        /* body c: generation blocks */
    MX_N_BREAK, MX_N_CONTINUE,
    /* targets, besides NAME and TUPLE */
    MX_N_NS_REF /* sym.name */
} mx_node_type;

enum { MX_CMP_EQ, MX_CMP_NE, MX_CMP_LT, MX_CMP_LE, MX_CMP_GT, MX_CMP_GE, MX_CMP_IN, MX_CMP_NOT_IN };
enum { MX_USES_CALLER = 1, MX_USES_VARARGS = 2, MX_USES_KWARGS = 4, MX_IS_RECURSIVE = 8 };

typedef struct mx_node mx_node;

typedef struct mx_arg_nodes {
    mx_node **pos;
    mx_node **kw;
    mx_str *kw_names;
    uint32_t n_pos, n_kw;
    mx_node *star, *star_star;
} mx_arg_nodes;

typedef struct mx_params {
    uint32_t *syms;
    mx_str *names;
    mx_node **defaults; /* NULL = none */
    uint32_t n;
} mx_params;

struct mx_node {
    uint8_t type;
    uint8_t flags;
    uint32_t line;
    uint32_t sym;
    uint32_t n_kids;
    mx_node *a, *b, *c;
    mx_node **kids;
    uint8_t *ops;
    mx_value *value;
    mx_arg_nodes *args;
    mx_params *params;
    mx_str name;
    const struct mx_builtin *builtin; /* filter or test, NULL when the name is unknown */
};

struct mx_template {
    mx_arena *arena;
    mx_node *root;
    mx_str *symbols; /* names of variables; a node's sym is an index */
    uint32_t n_symbols;
    uint32_t sym_loop, sym_caller, sym_varargs, sym_kwargs;
};

/* The parser: template_parse.c holds statements, template_expr.c expressions. */
typedef struct mx_parser {
    mx_template *t;
    mx_toks toks;
    size_t at;
    uint32_t depth;
    uint32_t loop_depth; /* break and continue are refused outside */
    uint8_t uses;        /* MX_USES_* seen in the macro being parsed */
    size_t n_symbols, symbols_cap;
    uint32_t *slots;     /* hash of names to symbols */
    size_t n_slots;
    mx_err err;
    mx_errbuf *eb;
} mx_parser;

void *mx_parse_fail(mx_parser *p, const char *fmt, ...) MX_PRINTF(2, 3);
void *mx_parse_alloc(mx_parser *p, size_t bytes);
bool mx_parse_enter(mx_parser *p);
mx_node *mx_parse_node(mx_parser *p, mx_node_type type);
uint32_t mx_parse_symbol(mx_parser *p, mx_str name);
const mx_tok *mx_parse_peek(const mx_parser *p, size_t ahead);
bool mx_parse_is_op(const mx_parser *p, const char *op);
bool mx_parse_is_name(const mx_parser *p, const char *name);
bool mx_parse_skip_op(mx_parser *p, const char *op);
bool mx_parse_skip_name(mx_parser *p, const char *name);
bool mx_parse_expect_op(mx_parser *p, const char *op);
const mx_tok *mx_parse_expect_name(mx_parser *p);
/* A list of nodes under construction. */
typedef struct mx_nodes {
    mx_node **v;
    size_t n, cap;
} mx_nodes;
bool mx_parse_push(mx_parser *p, mx_nodes *list, mx_node *n); /* false on failure and for NULL */
void mx_parse_take(mx_nodes *list, mx_node *n);               /* list becomes the kids of n */

mx_node *mx_parse_expression(mx_parser *p, bool with_condition);
mx_node *mx_parse_tuple(mx_parser *p, bool with_condition, const char *end_name, bool in_parens);
mx_node *mx_parse_target(mx_parser *p, const char *end_name);
mx_node *mx_parse_filters(mx_parser *p, mx_node *n, bool starts_with_name);
mx_node *mx_parse_postfix(mx_parser *p, mx_node *n);
mx_node *mx_parse_bare(mx_parser *p); /* a primary with its postfixes: the argument of a test */
mx_params *mx_parse_params(mx_parser *p);

/* ---- running ---- */

typedef struct mx_scope {
    struct mx_scope *outer;
    uint32_t n, cap;
    uint32_t *syms;
    mx_value **values;
    bool is_captured; /* a macro made here may look into it later: do not recycle */
} mx_scope;

typedef struct mx_macro {
    const mx_node *node;
    mx_scope *scope; /* where it was defined */
} mx_macro;

typedef struct mx_loop {
    const mx_node *node;
    mx_value *items; /* the whole sequence, before the filter */
    size_t at;       /* next item of it to look at */
    mx_scope *outer;
    mx_value *before, *current, *after; /* NULL = none (after: not looked up yet) */
    bool is_drained;                    /* no item left behind `after` */
    mx_value *passed;                   /* once the length was asked for: the items that passed */
    size_t passed_at;
    int64_t index0;
    size_t length;
    bool has_length;
    mx_value *changed; /* arguments of the last changed() */
    uint32_t depth0;
} mx_loop;

typedef enum mx_flow { MX_FLOW_NEXT, MX_FLOW_BREAK, MX_FLOW_CONTINUE, MX_FLOW_ERROR } mx_flow;

typedef struct mx_args {
    mx_value **pos;
    mx_value **kw;
    mx_str *kw_names;
    size_t n_pos, n_kw;
} mx_args;

mx_flow mx_exec(mx_run *r, const mx_node *n, mx_scope *s);
mx_value *mx_eval(mx_run *r, const mx_node *n, mx_scope *s);
bool mx_eval_args(mx_run *r, const mx_arg_nodes *a, mx_scope *s, mx_args *out);
mx_value *mx_eval_filters(mx_run *r, const mx_node *n, mx_scope *s, mx_value *input);
mx_value *mx_call(mx_run *r, mx_value *fn, const mx_args *args);
mx_value *mx_call_macro(mx_run *r, const mx_macro *m, const mx_args *args);
mx_value *mx_call_loop(mx_run *r, mx_loop *l, const mx_args *args);
bool mx_assign(mx_run *r, const mx_node *target, mx_scope *s, mx_value *v);
mx_scope *mx_scope_new(mx_run *r, mx_scope *outer);
bool mx_scope_set(mx_run *r, mx_scope *s, uint32_t sym, mx_value *v);
/* x.name and x[key], with Python's order of looking. */
mx_value *mx_attr(mx_run *r, mx_value *x, mx_str name);
mx_value *mx_item(mx_run *r, mx_value *x, mx_value *key);
mx_value *mx_loop_attr(mx_run *r, mx_value *loop, mx_str name); /* NULL without error = unknown */
/* The value at a path such as "function.name" or 0, as sort(attribute=) and others take it. */
mx_value *mx_path(mx_run *r, mx_value *x, const mx_value *path);
/* The same, with `absent` (may be NULL) wherever a part of the path leads to nothing. */
mx_value *mx_path_or(mx_run *r, mx_value *x, const mx_value *path, mx_value *absent);

/* ---- builtins ---- */

typedef mx_value *(*mx_builtin_fn)(mx_run *r, mx_value *self, const mx_args *args);
typedef struct mx_builtin {
    const char *name;
    mx_builtin_fn fn;
} mx_builtin;

/* NULL = no such name. Filters and tests take the tested value as self; tests return a bool
 * value. */
const mx_builtin *mx_find_filter(mx_str name);
const mx_builtin *mx_find_test(mx_str name);
/* The method of a value, as a bound value; NULL without an error when it has none of that name. */
mx_value *mx_find_method(mx_run *r, mx_value *self, mx_str name);
mx_value *mx_call_method(mx_run *r, mx_value *method, const mx_args *args);
mx_value *mx_find_global(mx_run *r, mx_str name); /* range, namespace ...; NULL = none */
mx_value *mx_call_global(mx_run *r, mx_value *fn, const mx_args *args);

extern const mx_builtin mx_text_filters[], mx_seq_filters[], mx_text_methods[];
extern const size_t mx_n_text_filters, mx_n_seq_filters, mx_n_text_methods;

/* Sorts arguments into out[n] by position and name; absent ones are NULL. False = wrong call. */
bool mx_bind(mx_run *r, const char *what, const mx_args *args, const char *const *names, size_t n,
             size_t n_required, mx_value **out);
bool mx_arg_int(mx_run *r, const mx_value *v, int64_t absent, int64_t *out);
mx_value *mx_arg_text(mx_run *r, const char *what, mx_value *v); /* must be a string */
mx_value *mx_text_format(mx_run *r, mx_value *self, const mx_args *args); /* str.format */
mx_value *mx_text_strip(mx_run *r, mx_value *s, const mx_value *chars, bool left, bool right);
mx_value *mx_text_replace(mx_run *r, mx_value *s, mx_value *from, mx_value *to, int64_t count);
mx_value *mx_text_cased(mx_run *r, const mx_value *s, int which);
mx_value *mx_text_lines(mx_run *r, mx_value *s, bool keep_ends);

#endif
