/* SPDX-License-Identifier: MIT
 *
 * Statements at work, and the entry of a rendering. Scopes are lexical: a macro looks up names
 * where it was defined, each iteration of a loop starts with an empty scope, `if` has none of its
 * own. A loop's scope is recycled from one iteration to the next unless a macro has been made in
 * it.
 */
#include "text/template_internal.h"

#include "base/mem.h"

enum {
    DEFAULT_OUTPUT_BYTES = 64 << 20,
    DEFAULT_STEPS = 50 * 1000 * 1000,
    DEFAULT_DEPTH = 1000,
};

mx_scope *mx_scope_new(mx_run *r, mx_scope *outer)
{
    mx_scope *s = mx_run_alloc(r, sizeof *s);
    if (s != NULL) {
        s->outer = outer;
    }
    return s;
}

bool mx_scope_set(mx_run *r, mx_scope *s, uint32_t sym, mx_value *v)
{
    if (s == NULL || v == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->syms[i] == sym) {
            s->values[i] = v;
            return true;
        }
    }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        uint32_t *syms = mx_run_array(r, cap, sizeof *syms);
        mx_value **values = mx_run_array(r, cap, sizeof *values);
        if (syms == NULL || values == NULL) {
            return false;
        }
        if (s->n > 0) {
            memcpy(syms, s->syms, s->n * sizeof *syms);
            memcpy(values, s->values, s->n * sizeof *values);
        }
        s->syms = syms;
        s->values = values;
        s->cap = cap;
    }
    s->syms[s->n] = sym;
    s->values[s->n++] = v;
    return true;
}

static mx_scope *captured(mx_scope *s)
{
    for (mx_scope *o = s; o != NULL && !o->is_captured; o = o->outer) {
        o->is_captured = true;
    }
    return s;
}

/* ---- assignment ---- */

static bool assign_attribute(mx_run *r, const mx_node *target, mx_scope *s, mx_value *v)
{
    mx_node name = {.type = MX_N_NAME, .line = target->line, .sym = target->sym,
                    .name = r->tmpl->symbols[target->sym]};
    mx_value *ns = mx_eval(r, &name, s);
    if (ns == NULL) {
        return false;
    }
    if (!mx_v_is_other(ns, MX_O_NAMESPACE)) {
        mx_run_fail(r, MX_E_INVALID, "only a namespace's attributes can be assigned");
        return false;
    }
    return mx_v_put(r, ns, mx_v_text(r, target->name.ptr, target->name.len, true), v);
}

bool mx_assign(mx_run *r, const mx_node *target, mx_scope *s, mx_value *v)
{
    if (v == NULL) {
        return false;
    }
    if (target->type == MX_N_NAME) {
        return mx_scope_set(r, s, target->sym, v);
    }
    if (target->type == MX_N_NS_REF) {
        return assign_attribute(r, target, s, v);
    }
    mx_value *items = mx_v_list_of(r, v);
    if (items == NULL) {
        return false;
    }
    if (items->seq.n != target->n_kids) {
        mx_run_fail(r, MX_E_INVALID, "%zu values for %u names", items->seq.n,
                    (unsigned)target->n_kids);
        return false;
    }
    for (uint32_t i = 0; i < target->n_kids; i++) {
        if (!mx_assign(r, target->kids[i], s, items->seq.items[i])) {
            return false;
        }
    }
    return true;
}

/* ---- captured output ---- */

/* Runs a body and gives what it printed; NULL after an error. */
static mx_value *capture(mx_run *r, const mx_node *body, mx_scope *s)
{
    mx_sb b = {0};
    mx_sb *around = r->out;
    r->out = &b;
    mx_flow flow = mx_exec(r, body, s);
    r->out = around;
    return flow == MX_FLOW_ERROR ? NULL : mx_sb_finish(r, &b);
}

static mx_flow print(mx_run *r, const mx_value *v)
{
    mx_sb_str(r, r->out, v);
    return r->err == MX_OK ? MX_FLOW_NEXT : MX_FLOW_ERROR;
}

static mx_flow done_if(bool ok)
{
    return ok ? MX_FLOW_NEXT : MX_FLOW_ERROR;
}

static mx_flow exec_set_block(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v = capture(r, n->c, mx_scope_new(r, s));
    if (v != NULL && n->b != NULL) {
        v = mx_eval_filters(r, n->b, s, v);
    }
    return done_if(mx_assign(r, n->a, s, v));
}

static mx_flow exec_filter_block(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v = capture(r, n->c, mx_scope_new(r, s));
    v = v == NULL ? NULL : mx_eval_filters(r, n->b, s, v);
    return v == NULL ? MX_FLOW_ERROR : print(r, v);
}

static mx_value *make_macro(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v = mx_v_new(r, MX_V_OTHER, MX_O_MACRO);
    mx_macro *m = mx_run_alloc(r, sizeof *m);
    if (v == NULL || m == NULL) {
        return NULL;
    }
    *m = (mx_macro){n, captured(s)};
    v->macro = m;
    return v;
}

static mx_flow exec_call_block(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_args args;
    mx_value *fn = mx_eval(r, n->a->a, s);
    mx_value *caller = make_macro(r, n, s);
    if (fn == NULL || caller == NULL || !mx_eval_args(r, n->a->args, s, &args)) {
        return MX_FLOW_ERROR;
    }
    mx_value **kw = mx_run_array(r, args.n_kw + 1, sizeof *kw);
    mx_str *names = mx_run_array(r, args.n_kw + 1, sizeof *names);
    if (kw == NULL || names == NULL) {
        return MX_FLOW_ERROR;
    }
    if (args.n_kw > 0) {
        memcpy(kw, args.kw, args.n_kw * sizeof *kw);
        memcpy(names, args.kw_names, args.n_kw * sizeof *names);
    }
    kw[args.n_kw] = caller;
    names[args.n_kw] = MX_STR("caller");
    args.kw = kw;
    args.kw_names = names;
    args.n_kw++;
    mx_value *v = mx_call(r, fn, &args);
    return v == NULL ? MX_FLOW_ERROR : print(r, v);
}

/* ---- loops ---- */

/* The next item that the loop's condition lets through; NULL = no more, or an error. The condition
 * is asked only when the item is needed, since it may depend on what the body has done. */
static mx_value *next_item(mx_run *r, mx_loop *l)
{
    const mx_seq *items = &l->items->seq;
    if (l->passed != NULL) {
        l->is_drained = l->passed_at == l->passed->seq.n;
        return l->is_drained ? NULL : l->passed->seq.items[l->passed_at++];
    }
    while (l->at < items->n) {
        mx_value *item = items->items[l->at++];
        if (!mx_run_step(r, 1)) {
            return NULL;
        }
        if (l->node->c == NULL) {
            return item;
        }
        mx_scope *s = mx_scope_new(r, l->outer);
        mx_value *verdict =
            mx_assign(r, l->node->a, s, item) ? mx_eval(r, l->node->c, s) : NULL;
        if (verdict == NULL) {
            return NULL;
        }
        if (mx_v_truthy(verdict)) {
            return item;
        }
    }
    l->is_drained = true;
    return NULL;
}

static mx_value *peek_item(mx_run *r, mx_loop *l)
{
    if (l->after == NULL && !l->is_drained) {
        l->after = next_item(r, l);
    }
    return l->after;
}

/* How many items the loop has: those behind the condition must all be asked now. */
static bool loop_length(mx_run *r, mx_loop *l)
{
    if (l->has_length) {
        return true;
    }
    if (l->node->c == NULL) {
        l->length = l->items->seq.n;
    } else {
        mx_value *rest = mx_v_seq(r, MX_SEQ_LIST, 0);
        if (l->after != NULL && !mx_v_push(r, rest, l->after)) {
            return false;
        }
        for (mx_value *v; (v = next_item(r, l)) != NULL;) {
            if (!mx_v_push(r, rest, v)) {
                return false;
            }
        }
        if (r->err != MX_OK) {
            return false;
        }
        /* From here on the loop runs over what has passed; `after` is the first of it. */
        l->length = (size_t)(l->index0 + 1) + rest->seq.n;
        l->passed = rest;
        l->passed_at = l->after != NULL ? 1 : 0;
        l->is_drained = rest->seq.n == l->passed_at;
    }
    l->has_length = true;
    return true;
}

mx_value *mx_loop_attr(mx_run *r, mx_value *loop, mx_str name)
{
    mx_loop *l = loop->loop;
    mx_value *v;
    if (mx_str_eq(name, MX_STR("index"))) {
        return mx_v_int(r, l->index0 + 1);
    }
    if (mx_str_eq(name, MX_STR("index0"))) {
        return mx_v_int(r, l->index0);
    }
    if (mx_str_eq(name, MX_STR("first"))) {
        return mx_v_bool(r, l->index0 == 0);
    }
    if (mx_str_eq(name, MX_STR("last"))) {
        v = peek_item(r, l);
        return r->err == MX_OK ? mx_v_bool(r, v == NULL) : NULL;
    }
    if (mx_str_eq(name, MX_STR("previtem"))) {
        return l->before != NULL ? l->before : mx_v_undefined(r, "there is no previous item");
    }
    if (mx_str_eq(name, MX_STR("nextitem"))) {
        v = peek_item(r, l);
        return v != NULL || r->err != MX_OK ? v : mx_v_undefined(r, "there is no next item");
    }
    if (mx_str_eq(name, MX_STR("depth")) || mx_str_eq(name, MX_STR("depth0"))) {
        return mx_v_int(r, (int64_t)l->depth0 + (name.len == 5));
    }
    bool is_length = mx_str_eq(name, MX_STR("length"));
    bool is_rev = mx_str_eq(name, MX_STR("revindex"));
    if (is_length || is_rev || mx_str_eq(name, MX_STR("revindex0"))) {
        if (!loop_length(r, l)) {
            return NULL;
        }
        int64_t n = (int64_t)l->length;
        return mx_v_int(r, is_length ? n : is_rev ? n - l->index0 : n - l->index0 - 1);
    }
    return NULL;
}

/* One loop over `iterable`, printing to r->out. */
static mx_flow run_loop(mx_run *r, const mx_node *n, mx_scope *outer, mx_value *iterable,
                        uint32_t depth0)
{
    mx_loop *l = mx_run_alloc(r, sizeof *l);
    mx_value *loop = mx_v_new(r, MX_V_OTHER, MX_O_LOOP);
    mx_value *items = mx_v_list_of(r, iterable);
    mx_scope *s = mx_scope_new(r, outer);
    if (l == NULL || loop == NULL || items == NULL || s == NULL) {
        return MX_FLOW_ERROR;
    }
    *l = (mx_loop){.node = n, .items = items, .outer = outer, .index0 = -1, .depth0 = depth0};
    loop->loop = l;
    /* Jinja takes the else branch when no iteration has reached its end: `continue` and `break`
     * count as no iteration at all. */
    bool came_through = false;
    for (;;) {
        mx_value *item = peek_item(r, l);
        if (item == NULL) {
            break;
        }
        l->after = NULL;
        l->before = l->current;
        l->current = item;
        l->index0++;
        if (s->is_captured) {
            s = mx_scope_new(r, outer);
        } else {
            s->n = 0;
        }
        if (!mx_scope_set(r, s, r->tmpl->sym_loop, loop) || !mx_assign(r, n->a, s, item)) {
            return MX_FLOW_ERROR;
        }
        mx_flow flow = mx_exec(r, n->kids[0], s);
        if (flow == MX_FLOW_ERROR) {
            return flow;
        }
        if (flow == MX_FLOW_BREAK) {
            break;
        }
        came_through = came_through || flow == MX_FLOW_NEXT;
    }
    if (r->err != MX_OK) {
        return MX_FLOW_ERROR;
    }
    if (!came_through && n->kids[1] != NULL) {
        return mx_exec(r, n->kids[1], mx_scope_new(r, outer));
    }
    return MX_FLOW_NEXT;
}

mx_value *mx_call_loop(mx_run *r, mx_loop *l, const mx_args *args)
{
    if ((l->node->flags & MX_IS_RECURSIVE) == 0) {
        return mx_run_fail(r, MX_E_INVALID, "only a recursive loop can be called");
    }
    if (args->n_pos != 1 || args->n_kw != 0) {
        return mx_run_fail(r, MX_E_INVALID, "a loop is called with the items to go through");
    }
    mx_sb b = {0};
    mx_sb *around = r->out;
    r->out = &b;
    mx_flow flow = run_loop(r, l->node, l->outer, args->pos[0], l->depth0 + 1);
    r->out = around;
    return flow == MX_FLOW_ERROR ? NULL : mx_sb_finish(r, &b);
}

static mx_flow exec_for(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *iterable = mx_eval(r, n->b, s);
    if (iterable == NULL) {
        return MX_FLOW_ERROR;
    }
    return run_loop(r, n, s, iterable, 0);
}

/* ---- the rest ---- */

static mx_flow exec_if(mx_run *r, const mx_node *n, mx_scope *s)
{
    for (uint32_t i = 0; i < n->n_kids; i += 2) {
        mx_value *condition = mx_eval(r, n->kids[i], s);
        if (condition == NULL) {
            return MX_FLOW_ERROR;
        }
        if (mx_v_truthy(condition)) {
            return mx_exec(r, n->kids[i + 1], s);
        }
    }
    return n->c == NULL ? MX_FLOW_NEXT : mx_exec(r, n->c, s);
}

static mx_flow exec_with(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_scope *inner = mx_scope_new(r, s);
    for (uint32_t i = 0; i < n->n_kids; i += 2) {
        if (!mx_assign(r, n->kids[i], inner, mx_eval(r, n->kids[i + 1], s))) {
            return MX_FLOW_ERROR;
        }
    }
    return inner == NULL ? MX_FLOW_ERROR : mx_exec(r, n->c, inner);
}

static mx_flow exec_node(mx_run *r, const mx_node *n, mx_scope *s)
{
    mx_value *v;
    switch ((mx_node_type)n->type) {
    case MX_N_BODY:
        for (uint32_t i = 0; i < n->n_kids; i++) {
            mx_flow flow = mx_exec(r, n->kids[i], s);
            if (flow != MX_FLOW_NEXT) {
                return flow;
            }
        }
        return MX_FLOW_NEXT;
    case MX_N_TEXT:
        return print(r, n->value);
    case MX_N_PRINT:
        v = mx_eval(r, n->a, s);
        return v == NULL ? MX_FLOW_ERROR : print(r, v);
    case MX_N_FOR:
        return exec_for(r, n, s);
    case MX_N_IF:
        return exec_if(r, n, s);
    case MX_N_SET:
        return done_if(mx_assign(r, n->a, s, mx_eval(r, n->b, s)));
    case MX_N_SET_BLOCK:
        return exec_set_block(r, n, s);
    case MX_N_MACRO:
        return done_if(mx_scope_set(r, s, n->sym, make_macro(r, n, s)));
    case MX_N_CALL_BLOCK:
        return exec_call_block(r, n, s);
    case MX_N_FILTER_BLOCK:
        return exec_filter_block(r, n, s);
    case MX_N_WITH:
        return exec_with(r, n, s);
    case MX_N_SCOPE:
        return mx_exec(r, n->c, mx_scope_new(r, s));
    case MX_N_BREAK:
        return MX_FLOW_BREAK;
    case MX_N_CONTINUE:
        return MX_FLOW_CONTINUE;
    default:
        mx_run_fail(r, MX_E_INVALID, "an expression where a statement belongs");
        return MX_FLOW_ERROR;
    }
}

mx_flow mx_exec(mx_run *r, const mx_node *n, mx_scope *s)
{
    if (s == NULL || !mx_run_enter(r)) {
        return MX_FLOW_ERROR;
    }
    r->line = n->line;
    mx_flow flow = exec_node(r, n, s);
    mx_run_leave(r);
    return r->err == MX_OK ? flow : MX_FLOW_ERROR;
}

/* ---- entry ---- */

static mx_err take_output(const mx_sb *b, mx_rendered *out)
{
    mx_buf_append(&out->text, b->ptr, b->len);
    if (out->text.failed) {
        return MX_E_NOMEM;
    }
    if (b->n_marks > 0) {
        out->markup = mx_alloc(b->n_marks * sizeof *out->markup);
        if (out->markup == NULL) {
            return MX_E_NOMEM;
        }
        memcpy(out->markup, b->marks, b->n_marks * sizeof *out->markup);
        out->n_markup = b->n_marks;
    }
    return MX_OK;
}

mx_err mx_template_render(const mx_template *t, mx_arena *arena, const mx_value *context,
                          int64_t now_s, const mx_render_limits *limits, mx_rendered *out,
                          mx_errbuf *eb)
{
    static const mx_render_limits defaults = {0};
    const mx_render_limits *m = limits != NULL ? limits : &defaults;
    *out = (mx_rendered){0};
    if (context == NULL || mx_value_get_kind(context) != MX_V_DICT) {
        return mx_fail(eb, MX_E_INVALID, "the variables of a template must be a dict");
    }
    mx_sb b = {0};
    mx_run r = {
        .arena = arena,
        .eb = eb,
        .steps_left = m->max_steps ? m->max_steps : DEFAULT_STEPS,
        .max_depth = m->max_depth ? m->max_depth : DEFAULT_DEPTH,
        .max_string_bytes = m->max_output_bytes ? m->max_output_bytes : DEFAULT_OUTPUT_BYTES,
        .now_s = now_s,
        .context = context,
        .tmpl = t,
        .out = &b,
    };
    r.globals = mx_run_array(&r, t->n_symbols, sizeof *r.globals);
    mx_scope *s = mx_scope_new(&r, NULL);
    if (s != NULL && r.globals != NULL) {
        mx_exec(&r, t->root, s);
    }
    if (r.err == MX_OK && take_output(&b, out) != MX_OK) {
        r.line = 0;
        mx_run_nomem(&r);
    }
    if (r.err != MX_OK) {
        mx_rendered_free(out);
    }
    out->is_template_error = r.is_template_error;
    return r.err;
}

void mx_rendered_free(mx_rendered *r)
{
    mx_buf_free(&r->text);
    mx_free(r->markup);
    *r = (mx_rendered){0};
}
