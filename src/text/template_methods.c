/* SPDX-License-Identifier: MIT
 *
 * The methods of dicts, lists and loops, and the functions every template has. Dicts cannot be
 * changed, as in the sandbox that templates are written for. Lists can, if the rendering made them:
 * a published template collects call ids with append, which the sandbox refuses, and refusing it
 * here would help nobody; the context stays as the caller built it.
 */
#include "text/template_internal.h"

#include <stdio.h>
#include <time.h>

static bool bind(mx_run *r, const mx_args *args, size_t n, size_t n_required, mx_value **out)
{
    static const char *const names[] = {"first", "second", "third"};
    return mx_bind(r, "this method", args, names, n, n_required, out);
}

/* ---- dict ---- */

static mx_value *view(mx_run *r, mx_value *d, const mx_args *args, int what)
{
    mx_value *v = bind(r, args, 0, 0, NULL) ? mx_v_seq(r, MX_SEQ_VIEW, d->dict.n) : NULL;
    for (size_t i = 0; v != NULL && i < d->dict.n; i++) {
        mx_value *item = what == 0 ? d->dict.pairs[i].key : d->dict.pairs[i].value;
        if (what == 2) {
            item = mx_v_seq(r, MX_SEQ_TUPLE, 2);
            if (!mx_v_push(r, item, d->dict.pairs[i].key) ||
                !mx_v_push(r, item, d->dict.pairs[i].value))
            {
                return NULL;
            }
        }
        if (!mx_v_push(r, v, item)) {
            return NULL;
        }
    }
    return v;
}

static mx_value *d_keys(mx_run *r, mx_value *d, const mx_args *args)
{
    return view(r, d, args, 0);
}

static mx_value *d_values(mx_run *r, mx_value *d, const mx_args *args)
{
    return view(r, d, args, 1);
}

static mx_value *d_items(mx_run *r, mx_value *d, const mx_args *args)
{
    return view(r, d, args, 2);
}

static mx_value *d_get(mx_run *r, mx_value *d, const mx_args *args)
{
    static const char *const names[] = {"key", "default"};
    mx_value *a[2];
    if (!mx_bind(r, "get", args, names, 2, 1, a)) {
        return NULL;
    }
    if (!mx_v_hashable(a[0])) {
        return mx_run_fail(r, MX_E_INVALID, "a %s cannot be a key", mx_v_type_name(a[0]));
    }
    mx_pair *p = mx_dict_find(&d->dict, a[0]);
    return p != NULL ? p->value : a[1] != NULL ? a[1] : mx_v_none(r);
}

static mx_value *d_copy(mx_run *r, mx_value *d, const mx_args *args)
{
    mx_value *v = bind(r, args, 0, 0, NULL) ? mx_v_dict_new(r) : NULL;
    for (size_t i = 0; v != NULL && i < d->dict.n; i++) {
        if (!mx_v_put(r, v, d->dict.pairs[i].key, d->dict.pairs[i].value)) {
            return NULL;
        }
    }
    return v;
}

static mx_value *d_refused(mx_run *r, mx_value *d, const mx_args *args)
{
    (void)d;
    (void)args;
    return mx_run_fail(r, MX_E_INVALID, "a template cannot change a dict");
}

static const mx_builtin dict_methods[] = {
    {"clear", d_refused}, {"copy", d_copy},        {"get", d_get},
    {"items", d_items},   {"keys", d_keys},        {"pop", d_refused},
    {"popitem", d_refused}, {"setdefault", d_refused}, {"update", d_refused},
    {"values", d_values},
};

/* ---- list ---- */

static bool may_change(mx_run *r, const mx_value *l)
{
    if (l->is_own && l->sub == MX_SEQ_LIST) {
        return true;
    }
    mx_run_fail(r, MX_E_INVALID, "a template cannot change this %s", mx_v_type_name(l));
    return false;
}

static mx_value *l_append(mx_run *r, mx_value *l, const mx_args *args)
{
    mx_value *a[1];
    bool ok = bind(r, args, 1, 1, a) && may_change(r, l) && mx_v_push(r, l, a[0]);
    return ok ? mx_v_none(r) : NULL;
}

static mx_value *l_extend(mx_run *r, mx_value *l, const mx_args *args)
{
    mx_value *a[1];
    mx_value *more = bind(r, args, 1, 1, a) && may_change(r, l) ? mx_v_list_of(r, a[0]) : NULL;
    for (size_t i = 0; more != NULL && i < more->seq.n; i++) {
        if (!mx_v_push(r, l, more->seq.items[i])) {
            return NULL;
        }
    }
    return more == NULL ? NULL : mx_v_none(r);
}

static mx_value *take_out(mx_run *r, mx_value *l, size_t at)
{
    mx_value *v = l->seq.items[at];
    for (size_t i = at + 1; i < l->seq.n; i++) {
        l->seq.items[i - 1] = l->seq.items[i];
    }
    l->seq.n--;
    return mx_run_step(r, (l->seq.n - at) / 8) ? v : NULL;
}

static mx_value *l_pop(mx_run *r, mx_value *l, const mx_args *args)
{
    mx_value *a[1];
    int64_t i;
    if (!bind(r, args, 1, 0, a) || !may_change(r, l) || !mx_arg_int(r, a[0], -1, &i)) {
        return NULL;
    }
    i += i < 0 ? (int64_t)l->seq.n : 0;
    if (i < 0 || (size_t)i >= l->seq.n) {
        return mx_run_fail(r, MX_E_INVALID, "pop: no such element");
    }
    return take_out(r, l, (size_t)i);
}

static mx_value *l_insert(mx_run *r, mx_value *l, const mx_args *args)
{
    mx_value *a[2];
    int64_t i;
    if (!bind(r, args, 2, 2, a) || !may_change(r, l) || !mx_arg_int(r, a[0], 0, &i) ||
        !mx_v_push(r, l, a[1]))
    {
        return NULL;
    }
    int64_t n = (int64_t)l->seq.n - 1;
    i = i < -n ? 0 : i < 0 ? i + n : i > n ? n : i;
    for (int64_t k = n; k > i; k--) {
        l->seq.items[k] = l->seq.items[k - 1];
    }
    l->seq.items[i] = a[1];
    return mx_run_step(r, (uint64_t)(n - i) / 8) ? mx_v_none(r) : NULL;
}

/* The position of a value; SIZE_MAX = absent or an error. */
static size_t position(mx_run *r, const mx_value *l, const mx_value *v)
{
    for (size_t i = 0; i < l->seq.n && mx_run_step(r, 1); i++) {
        if (mx_v_equal(r, l->seq.items[i], v)) {
            return i;
        }
    }
    return SIZE_MAX;
}

static mx_value *l_index(mx_run *r, mx_value *l, const mx_args *args)
{
    mx_value *a[1];
    size_t i = bind(r, args, 1, 1, a) ? position(r, l, a[0]) : SIZE_MAX;
    return i == SIZE_MAX ? mx_run_fail(r, MX_E_INVALID, "index: the list has no such value")
                         : mx_v_size(r, i);
}

static mx_value *l_remove(mx_run *r, mx_value *l, const mx_args *args)
{
    mx_value *a[1];
    size_t i = bind(r, args, 1, 1, a) && may_change(r, l) ? position(r, l, a[0]) : SIZE_MAX;
    if (i == SIZE_MAX) {
        return mx_run_fail(r, MX_E_INVALID, "remove: the list has no such value");
    }
    return take_out(r, l, i) == NULL ? NULL : mx_v_none(r);
}

static mx_value *l_count(mx_run *r, mx_value *l, const mx_args *args)
{
    mx_value *a[1];
    size_t n = 0;
    if (!bind(r, args, 1, 1, a)) {
        return NULL;
    }
    for (size_t i = 0; i < l->seq.n && mx_run_step(r, 1); i++) {
        n += mx_v_equal(r, l->seq.items[i], a[0]);
    }
    return mx_v_size(r, n);
}

static mx_value *l_copy(mx_run *r, mx_value *l, const mx_args *args)
{
    return bind(r, args, 0, 0, NULL) ? mx_v_list_of(r, l) : NULL;
}

static mx_value *l_refused(mx_run *r, mx_value *l, const mx_args *args)
{
    (void)args;
    return mx_run_fail(r, MX_E_INVALID, "a template cannot reorder or empty a %s",
                       mx_v_type_name(l));
}

static const mx_builtin list_methods[] = {
    {"append", l_append}, {"clear", l_refused},   {"copy", l_copy}, {"count", l_count},
    {"extend", l_extend}, {"index", l_index},     {"insert", l_insert}, {"pop", l_pop},
    {"remove", l_remove}, {"reverse", l_refused}, {"sort", l_refused},
};

/* ---- loop, cycler ---- */

static mx_value *loop_cycle(mx_run *r, mx_value *loop, const mx_args *args)
{
    if (args->n_pos == 0 || args->n_kw > 0) {
        return mx_run_fail(r, MX_E_INVALID, "no items for cycling given");
    }
    return args->pos[(size_t)loop->loop->index0 % args->n_pos];
}

static mx_value *loop_changed(mx_run *r, mx_value *loop, const mx_args *args)
{
    mx_value *now = mx_v_seq(r, MX_SEQ_TUPLE, args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++) {
        if (!mx_v_push(r, now, args->pos[i])) {
            return NULL;
        }
    }
    mx_loop *l = loop->loop;
    bool changed = now != NULL && (l->changed == NULL || !mx_v_equal(r, l->changed, now));
    if (changed) {
        l->changed = now;
    }
    return mx_v_bool(r, changed);
}

static const mx_builtin loop_methods[] = {{"changed", loop_changed}, {"cycle", loop_cycle}};

static mx_value *cycler_next(mx_run *r, mx_value *c, const mx_args *args)
{
    mx_value *v = c->self->seq.items[c->count];
    c->count = (uint32_t)((c->count + 1) % c->self->seq.n);
    return bind(r, args, 0, 0, NULL) ? v : NULL;
}

static mx_value *cycler_reset(mx_run *r, mx_value *c, const mx_args *args)
{
    c->count = 0;
    return bind(r, args, 0, 0, NULL) ? mx_v_none(r) : NULL;
}

static const mx_builtin cycler_methods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

/* ---- finding and calling methods ---- */

static const mx_builtin *table_of(const mx_value *x, size_t *n)
{
    *n = 0;
    if (mx_v_is(x, MX_V_STRING)) {
        *n = mx_n_text_methods;
        return mx_text_methods;
    }
    if (mx_v_is(x, MX_V_DICT)) {
        *n = MX_COUNT(dict_methods);
        return dict_methods;
    }
    if (mx_v_is(x, MX_V_LIST) && x->sub <= MX_SEQ_RANGE) {
        *n = MX_COUNT(list_methods);
        return list_methods;
    }
    if (mx_v_is_other(x, MX_O_LOOP)) {
        *n = MX_COUNT(loop_methods);
        return loop_methods;
    }
    if (mx_v_is_other(x, MX_O_CYCLER)) {
        *n = MX_COUNT(cycler_methods);
        return cycler_methods;
    }
    return NULL;
}

mx_value *mx_find_method(mx_run *r, mx_value *self, mx_str name)
{
    size_t n;
    const mx_builtin *table = table_of(self, &n);
    bool is_fixed = mx_v_is(self, MX_V_LIST) && self->sub != MX_SEQ_LIST;
    if (is_fixed && !mx_str_eq(name, MX_STR("count")) && !mx_str_eq(name, MX_STR("index"))) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        if (mx_str_eq(mx_str_of(table[i].name), name)) {
            mx_value *m = mx_v_new(r, MX_V_OTHER, MX_O_METHOD);
            if (m != NULL) {
                m->self = self;
                m->method = (uint8_t)i;
            }
            return m;
        }
    }
    return NULL;
}

mx_value *mx_call_method(mx_run *r, mx_value *method, const mx_args *args)
{
    size_t n;
    const mx_builtin *table = table_of(method->self, &n);
    return table[method->method].fn(r, method->self, args);
}

/* ---- functions ---- */

enum { MAX_RANGE = 100000 };

static mx_value *g_range(mx_run *r, mx_value *self, const mx_args *args)
{
    mx_value *a[3];
    int64_t from, to, step;
    (void)self;
    if (!bind(r, args, 3, 1, a) || !mx_arg_int(r, a[0], 0, &from) || !mx_arg_int(r, a[1], 0, &to) ||
        !mx_arg_int(r, a[2], 1, &step))
    {
        return NULL;
    }
    if (a[1] == NULL) {
        to = from;
        from = 0;
    }
    if (step == 0) {
        return mx_run_fail(r, MX_E_INVALID, "range: a step of zero");
    }
    bool is_empty = step > 0 ? from >= to : from <= to;
    uint64_t span = is_empty ? 0 : step > 0 ? (uint64_t)to - (uint64_t)from
                                            : (uint64_t)from - (uint64_t)to;
    uint64_t width = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    uint64_t n = span == 0 ? 0 : (span - 1) / width + 1;
    if (n > MAX_RANGE) {
        return mx_run_fail(r, MX_E_LIMIT, "range: more than %d numbers", MAX_RANGE);
    }
    mx_value *v = mx_v_seq(r, MX_SEQ_RANGE, (size_t)n);
    for (uint64_t i = 0; i < n; i++) {
        if (!mx_v_push(r, v, mx_v_int(r, (int64_t)((uint64_t)from + i * (uint64_t)step)))) {
            return NULL;
        }
    }
    return v;
}

/* The pairs of dict(...) and namespace(...): of an optional dict or list of pairs, then the
 * names. */
static mx_value *fill_pairs(mx_run *r, mx_value *v, const mx_args *args)
{
    mx_value *base = args->n_pos > 0 ? args->pos[0] : NULL;
    if (args->n_pos > 1) {
        return mx_run_fail(r, MX_E_INVALID, "one positional argument at most");
    }
    if (base != NULL && mx_v_is(base, MX_V_DICT)) {
        for (size_t i = 0; i < base->dict.n; i++) {
            if (!mx_v_put(r, v, base->dict.pairs[i].key, base->dict.pairs[i].value)) {
                return NULL;
            }
        }
    } else if (base != NULL) {
        mx_value *pairs = mx_v_list_of(r, base);
        for (size_t i = 0; pairs != NULL && i < pairs->seq.n; i++) {
            mx_value *pair = mx_v_list_of(r, pairs->seq.items[i]);
            if (pair == NULL || pair->seq.n != 2) {
                return mx_run_fail(r, MX_E_INVALID, "a pair of key and value is needed");
            }
            if (!mx_v_put(r, v, pair->seq.items[0], pair->seq.items[1])) {
                return NULL;
            }
        }
    }
    for (size_t i = 0; i < args->n_kw; i++) {
        mx_value *name = mx_v_text(r, args->kw_names[i].ptr, args->kw_names[i].len, true);
        if (!mx_v_put(r, v, name, args->kw[i])) {
            return NULL;
        }
    }
    return r->err == MX_OK ? v : NULL;
}

static mx_value *g_dict(mx_run *r, mx_value *self, const mx_args *args)
{
    (void)self;
    return fill_pairs(r, mx_v_dict_new(r), args);
}

static mx_value *g_namespace(mx_run *r, mx_value *self, const mx_args *args)
{
    (void)self;
    return fill_pairs(r, mx_v_new(r, MX_V_OTHER, MX_O_NAMESPACE), args);
}

static mx_value *g_raise(mx_run *r, mx_value *self, const mx_args *args)
{
    mx_value *a[1];
    (void)self;
    mx_value *text = bind(r, args, 1, 1, a) ? mx_v_to_str(r, a[0]) : NULL;
    if (text == NULL) {
        return NULL;
    }
    r->is_template_error = true;
    return mx_run_fail(r, MX_E_INVALID, "%.*s", (int)mx_min_size(text->s.len, INT32_MAX),
                       text->s.ptr != NULL ? text->s.ptr : "");
}

static mx_value *g_strftime(mx_run *r, mx_value *self, const mx_args *args)
{
    enum { MAX_BYTES = 4096 };
    mx_value *a[1];
    (void)self;
    if (!bind(r, args, 1, 1, a) || mx_arg_text(r, "strftime_now", a[0]) == NULL) {
        return NULL;
    }
    const mx_text *f = &a[0]->s;
    time_t now = (time_t)r->now_s;
    struct tm tm;
    /* A leading character tells an empty result from one that does not fit. */
    char *format = f->len < MAX_BYTES ? mx_run_alloc(r, f->len + 2) : NULL;
    char *out = format == NULL ? NULL : mx_run_alloc(r, MAX_BYTES);
    if (out == NULL || localtime_r(&now, &tm) == NULL) {
        return mx_run_fail(r, MX_E_INVALID, "strftime_now: the format is too long");
    }
    format[0] = '>';
    if (f->len > 0) {
        memcpy(format + 1, f->ptr, f->len);
    }
    size_t n = strftime(out, MAX_BYTES, format, &tm);
    if (n == 0) {
        return mx_run_fail(r, MX_E_INVALID, "strftime_now: the result is too long");
    }
    mx_value *v = mx_value_string(r->arena, (mx_str){out + 1, n - 1}, f->is_markup);
    return v == NULL ? mx_run_nomem(r) : v;
}

static mx_value *g_cycler(mx_run *r, mx_value *self, const mx_args *args)
{
    (void)self;
    if (args->n_pos == 0 || args->n_kw > 0) {
        return mx_run_fail(r, MX_E_INVALID, "cycler needs at least one item");
    }
    mx_value *v = mx_v_new(r, MX_V_OTHER, MX_O_CYCLER);
    mx_value *items = mx_v_seq(r, MX_SEQ_TUPLE, args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++) {
        if (!mx_v_push(r, items, args->pos[i])) {
            return NULL;
        }
    }
    if (v != NULL) {
        v->self = items;
    }
    return v;
}

static mx_value *g_joiner(mx_run *r, mx_value *self, const mx_args *args)
{
    static const char *const names[] = {"sep"};
    mx_value *a[1];
    (void)self;
    mx_value *v = mx_bind(r, "joiner", args, names, 1, 0, a) ? mx_v_new(r, MX_V_OTHER, MX_O_JOINER)
                                                            : NULL;
    if (v != NULL) {
        v->self = a[0] != NULL ? a[0] : mx_v_cstr(r, ", ");
    }
    return v;
}

static const mx_builtin functions[] = {
    {"cycler", g_cycler},       {"dict", g_dict},   {"joiner", g_joiner},
    {"namespace", g_namespace}, {"range", g_range}, {"raise_exception", g_raise},
    {"strftime_now", g_strftime},
};

mx_value *mx_find_global(mx_run *r, mx_str name)
{
    for (size_t i = 0; i < MX_COUNT(functions); i++) {
        if (mx_str_eq(mx_str_of(functions[i].name), name)) {
            mx_value *v = mx_v_new(r, MX_V_OTHER, MX_O_FUNCTION);
            if (v != NULL) {
                v->method = (uint8_t)i;
            }
            return v;
        }
    }
    return NULL;
}

mx_value *mx_call_global(mx_run *r, mx_value *fn, const mx_args *args)
{
    if (mx_v_is_other(fn, MX_O_JOINER)) {
        bool is_first = fn->count == 0;
        fn->count = 1;
        return is_first ? mx_v_cstr(r, "") : fn->self;
    }
    return functions[fn->method].fn(r, NULL, args);
}
