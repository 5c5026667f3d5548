/* SPDX-License-Identifier: MIT
 *
 * Looking into values and calling them: attributes, items, macros, and the sorting of arguments
 * that every builtin uses. `x.name` prefers a method, `x['name']` the key, as in Python.
 */
#include "text/template_internal.h"

static mx_value *no_attribute(mx_run *r, const mx_value *x, mx_str name)
{
    return mx_v_undefined(r, "'%s object' has no attribute '%.*s'", mx_v_type_name(x),
                          (int)mx_min_size(name.len, 80), name.ptr);
}

/* Attributes that are no keys; NULL without an error when there is none. */
static mx_value *own_attribute(mx_run *r, mx_value *x, mx_str name)
{
    if (mx_v_is_other(x, MX_O_NAMESPACE)) {
        mx_pair *p = mx_dict_find_str(&x->dict, name);
        return p == NULL ? NULL : p->value;
    }
    if (mx_v_is_other(x, MX_O_LOOP)) {
        mx_value *v = mx_loop_attr(r, x, name);
        return v != NULL || r->err != MX_OK ? v : mx_find_method(r, x, name);
    }
    if (mx_v_is_other(x, MX_O_MACRO) && mx_str_eq(name, MX_STR("name"))) {
        mx_str n = x->macro->node->name;
        return mx_v_text(r, n.ptr, n.len, true);
    }
    if (mx_v_is_other(x, MX_O_CYCLER) && mx_str_eq(name, MX_STR("current"))) {
        return x->self->seq.items[x->count];
    }
    return mx_find_method(r, x, name);
}

mx_value *mx_attr(mx_run *r, mx_value *x, mx_str name)
{
    if (mx_v_is(x, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, x);
    }
    mx_value *v = own_attribute(r, x, name);
    if (v == NULL && r->err == MX_OK && mx_v_is(x, MX_V_DICT)) {
        mx_pair *p = mx_dict_find_str(&x->dict, name);
        v = p == NULL ? NULL : p->value;
    }
    return v != NULL || r->err != MX_OK ? v : no_attribute(r, x, name);
}

/* i-th of n, from the end when negative. */
static bool index_ok(int64_t i, size_t n, size_t *out)
{
    if (i < 0) {
        i += (int64_t)n;
    }
    *out = (size_t)i;
    return i >= 0 && (size_t)i < n;
}

mx_value *mx_item(mx_run *r, mx_value *x, mx_value *key)
{
    int64_t i;
    size_t at;
    if (mx_v_is(x, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, x);
    }
    if (mx_v_is(x, MX_V_DICT)) {
        mx_pair *p = mx_v_hashable(key) ? mx_dict_find(&x->dict, key) : NULL;
        if (p != NULL) {
            return p->value;
        }
    } else if (mx_v_as_int(key, &i)) {
        if (mx_v_is(x, MX_V_LIST) && x->sub <= MX_SEQ_RANGE && index_ok(i, x->seq.n, &at)) {
            return x->seq.items[at];
        }
        if (mx_v_is(x, MX_V_STRING) && index_ok(i, x->s.n_chars, &at)) {
            size_t begin = mx_text_offset(&x->s, at), end = begin;
            mx_text_next(&x->s, &end);
            return mx_v_part(r, x, begin, end);
        }
        return mx_v_undefined(r, "%s object has no element %lld", mx_v_type_name(x), (long long)i);
    }
    if (mx_v_is(key, MX_V_STRING)) {
        mx_value *v = own_attribute(r, x, mx_v_str(key));
        return v != NULL || r->err != MX_OK ? v : no_attribute(r, x, mx_v_str(key));
    }
    return mx_v_undefined(r, "%s object has no such element", mx_v_type_name(x));
}

static mx_value *or_absent(mx_value *x, mx_value *absent)
{
    return x != NULL && absent != NULL && mx_v_is(x, MX_V_UNDEFINED) ? absent : x;
}

mx_value *mx_path(mx_run *r, mx_value *x, const mx_value *path)
{
    return mx_path_or(r, x, path, NULL);
}

mx_value *mx_path_or(mx_run *r, mx_value *x, const mx_value *path, mx_value *absent)
{
    if (path == NULL || mx_v_is(path, MX_V_NONE)) {
        return x;
    }
    if (!mx_v_is(path, MX_V_STRING)) {
        int64_t i;
        if (!mx_v_as_int(path, &i)) {
            return mx_run_fail(r, MX_E_INVALID, "an attribute must be a name");
        }
        mx_value *key = mx_v_int(r, i);
        return key == NULL ? NULL : or_absent(mx_item(r, x, key), absent);
    }
    size_t at = 0;
    while (x != NULL && at <= path->s.len) {
        const char *dot = memchr(path->s.ptr + at, '.', path->s.len - at);
        size_t end = dot == NULL ? path->s.len : (size_t)(dot - path->s.ptr);
        mx_value *key = mx_v_part(r, path, at, end);
        bool is_index = end > at;
        int64_t i = 0;
        for (size_t k = at; k < end; k++) {
            char c = path->s.ptr[k];
            is_index = is_index && c >= '0' && c <= '9' && i < INT64_MAX / 20;
            i = is_index ? i * 10 + (c - '0') : 0;
        }
        key = is_index && key != NULL ? mx_v_int(r, i) : key;
        x = key == NULL ? NULL : or_absent(mx_item(r, x, key), absent);
        at = end + 1;
    }
    return x;
}

/* ---- macros ---- */

static bool put_named(mx_run *r, const mx_macro *m, const mx_args *args, bool *used, mx_scope *s)
{
    const mx_params *ps = m->node->params;
    mx_value *rest = mx_v_dict_new(r);
    mx_value *caller = NULL;
    for (size_t k = 0; k < args->n_kw; k++) {
        uint32_t i = 0;
        while (i < ps->n && !mx_str_eq(ps->names[i], args->kw_names[k])) {
            i++;
        }
        bool is_caller = i == ps->n && (m->node->flags & MX_USES_CALLER) != 0 &&
                         mx_str_eq(args->kw_names[k], MX_STR("caller"));
        if (is_caller) {
            caller = args->kw[k];
        } else if (i < ps->n && !used[i]) {
            used[i] = true;
            if (!mx_scope_set(r, s, ps->syms[i], args->kw[k])) {
                return false;
            }
        } else if ((m->node->flags & MX_USES_KWARGS) != 0) {
            mx_value *name = mx_v_text(r, args->kw_names[k].ptr, args->kw_names[k].len, true);
            if (!mx_v_put(r, rest, name, args->kw[k])) {
                return false;
            }
        } else {
            mx_run_fail(r, MX_E_INVALID, "the macro '%.*s' takes no argument '%.*s' here",
                        (int)mx_min_size(m->node->name.len, 80), m->node->name.ptr,
                        (int)mx_min_size(args->kw_names[k].len, 80), args->kw_names[k].ptr);
            return false;
        }
    }
    if ((m->node->flags & MX_USES_CALLER) != 0) {
        bool is_param = false;
        for (uint32_t i = 0; i < ps->n; i++) {
            is_param = is_param || ps->syms[i] == r->tmpl->sym_caller;
        }
        caller = caller != NULL ? caller : mx_v_undefined(r, "no caller defined");
        if (!is_param && !mx_scope_set(r, s, r->tmpl->sym_caller, caller)) {
            return false;
        }
    }
    return (m->node->flags & MX_USES_KWARGS) == 0 ||
           mx_scope_set(r, s, r->tmpl->sym_kwargs, rest);
}

static bool bind_macro(mx_run *r, const mx_macro *m, const mx_args *args, mx_scope *s)
{
    const mx_params *ps = m->node->params;
    bool *used = mx_run_array(r, (size_t)ps->n + 1, sizeof *used);
    if (used == NULL) {
        return false;
    }
    size_t n_direct = mx_min_size(args->n_pos, ps->n);
    for (size_t i = 0; i < n_direct; i++) {
        used[i] = true;
        if (!mx_scope_set(r, s, ps->syms[i], args->pos[i])) {
            return false;
        }
    }
    if ((m->node->flags & MX_USES_VARARGS) != 0) {
        mx_value *rest = mx_v_seq(r, MX_SEQ_TUPLE, 0);
        for (size_t i = n_direct; i < args->n_pos; i++) {
            if (!mx_v_push(r, rest, args->pos[i])) {
                return false;
            }
        }
        if (!mx_scope_set(r, s, r->tmpl->sym_varargs, rest)) {
            return false;
        }
    } else if (args->n_pos > ps->n) {
        mx_run_fail(r, MX_E_INVALID, "the macro '%.*s' takes not more than %u arguments",
                    (int)mx_min_size(m->node->name.len, 80), m->node->name.ptr, (unsigned)ps->n);
        return false;
    }
    if (!put_named(r, m, args, used, s)) {
        return false;
    }
    for (uint32_t i = 0; i < ps->n; i++) {
        if (used[i]) {
            continue;
        }
        mx_value *v = ps->defaults[i] != NULL
                          ? mx_eval(r, ps->defaults[i], s)
                          : mx_v_undefined(r, "parameter '%.*s' was not provided",
                                           (int)mx_min_size(ps->names[i].len, 80),
                                           ps->names[i].ptr);
        if (!mx_scope_set(r, s, ps->syms[i], v)) {
            return false;
        }
    }
    return true;
}

mx_value *mx_call_macro(mx_run *r, const mx_macro *m, const mx_args *args)
{
    mx_scope *s = mx_scope_new(r, m->scope);
    if (s == NULL || !bind_macro(r, m, args, s)) {
        return NULL;
    }
    mx_sb b = {0};
    mx_sb *around = r->out;
    r->out = &b;
    mx_flow flow = mx_exec(r, m->node->c, s);
    r->out = around;
    return flow == MX_FLOW_ERROR ? NULL : mx_sb_finish(r, &b);
}

mx_value *mx_call(mx_run *r, mx_value *fn, const mx_args *args)
{
    if (mx_v_is(fn, MX_V_UNDEFINED)) {
        return mx_v_fail_undefined(r, fn);
    }
    if (mx_v_is(fn, MX_V_OTHER)) {
        switch (fn->sub) {
        case MX_O_MACRO:
            return mx_call_macro(r, fn->macro, args);
        case MX_O_LOOP:
            return mx_call_loop(r, fn->loop, args);
        case MX_O_METHOD:
            return mx_call_method(r, fn, args);
        case MX_O_FUNCTION:
        case MX_O_JOINER:
            return mx_call_global(r, fn, args);
        default:
            break;
        }
    }
    return mx_run_fail(r, MX_E_INVALID, "a %s cannot be called", mx_v_type_name(fn));
}

/* ---- arguments of builtins ---- */

bool mx_bind(mx_run *r, const char *what, const mx_args *args, const char *const *names, size_t n,
             size_t n_required, mx_value **out)
{
    if (args->n_pos > n) {
        mx_run_fail(r, MX_E_INVALID, "%s takes not more than %zu arguments", what, n);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        out[i] = i < args->n_pos ? args->pos[i] : NULL;
    }
    for (size_t k = 0; k < args->n_kw; k++) {
        size_t i = 0;
        while (i < n && !mx_str_eq(mx_str_of(names[i]), args->kw_names[k])) {
            i++;
        }
        if (i == n || out[i] != NULL) {
            mx_run_fail(r, MX_E_INVALID, "%s takes no argument '%.*s' here", what,
                        (int)mx_min_size(args->kw_names[k].len, 80), args->kw_names[k].ptr);
            return false;
        }
        out[i] = args->kw[k];
    }
    for (size_t i = 0; i < n_required; i++) {
        if (out[i] == NULL) {
            mx_run_fail(r, MX_E_INVALID, "%s needs the argument '%s'", what, names[i]);
            return false;
        }
    }
    return true;
}

bool mx_arg_int(mx_run *r, const mx_value *v, int64_t absent, int64_t *out)
{
    if (v == NULL) {
        *out = absent;
        return true;
    }
    if (mx_v_as_int(v, out)) {
        return true;
    }
    mx_run_fail(r, MX_E_INVALID, "an integer is needed, not a %s", mx_v_type_name(v));
    return false;
}

mx_value *mx_arg_text(mx_run *r, const char *what, mx_value *v)
{
    if (v == NULL || mx_v_is(v, MX_V_STRING)) {
        return v;
    }
    return mx_run_fail(r, MX_E_INVALID, "%s needs a string, not a %s", what, mx_v_type_name(v));
}
