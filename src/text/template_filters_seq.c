/* SPDX-License-Identifier: MIT
 *
 * Filters on sequences and dicts. What is a generator in Jinja (map, select, items ...) is computed
 * at once here, but keeps a generator's manners: it has no length, is always true, and can be gone
 * through once.
 */
#include "text/template_internal.h"

static mx_value *f_default(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"default_value", "boolean"};
    mx_value *a[2];
    if (!mx_bind(r, "default", args, names, 2, 0, a)) {
        return NULL;
    }
    bool also_false = a[1] != NULL && mx_v_truthy(a[1]);
    if (mx_v_is(v, MX_V_UNDEFINED) || (also_false && !mx_v_truthy(v))) {
        return a[0] != NULL ? a[0] : mx_v_cstr(r, "");
    }
    return v;
}

static mx_value *f_length(mx_run *r, mx_value *v, const mx_args *args)
{
    size_t n;
    return mx_bind(r, "length", args, NULL, 0, 0, NULL) && mx_v_length(r, v, &n) ? mx_v_size(r, n)
                                                                                : NULL;
}

static mx_value *f_list(mx_run *r, mx_value *v, const mx_args *args)
{
    return mx_bind(r, "list", args, NULL, 0, 0, NULL) ? mx_v_list_of(r, v) : NULL;
}

static mx_value *f_items(mx_run *r, mx_value *v, const mx_args *args)
{
    if (!mx_bind(r, "items", args, NULL, 0, 0, NULL)) {
        return NULL;
    }
    mx_value *out = mx_v_seq(r, MX_SEQ_ONCE, 0);
    if (mx_v_is(v, MX_V_UNDEFINED)) {
        return out;
    }
    if (!mx_v_is(v, MX_V_DICT)) {
        return mx_run_fail(r, MX_E_INVALID, "items needs a dict, not a %s", mx_v_type_name(v));
    }
    for (size_t i = 0; i < v->dict.n; i++) {
        mx_value *pair = mx_v_seq(r, MX_SEQ_TUPLE, 2);
        if (!mx_v_push(r, pair, v->dict.pairs[i].key) ||
            !mx_v_push(r, pair, v->dict.pairs[i].value) || !mx_v_push(r, out, pair))
        {
            return NULL;
        }
    }
    return out;
}

static mx_value *f_join(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"d", "attribute"};
    mx_value *a[2];
    mx_value *items = mx_bind(r, "join", args, names, 2, 0, a) ? mx_v_list_of(r, v) : NULL;
    mx_sb b = {0};
    for (size_t i = 0; items != NULL && i < items->seq.n; i++) {
        mx_value *item = mx_path(r, items->seq.items[i], a[1]);
        if (item == NULL) {
            return NULL;
        }
        if (i > 0 && a[0] != NULL) {
            mx_sb_str(r, &b, a[0]);
        }
        mx_sb_str(r, &b, item);
    }
    return items == NULL ? NULL : mx_sb_finish(r, &b);
}

static mx_value *f_first(mx_run *r, mx_value *v, const mx_args *args)
{
    if (!mx_bind(r, "first", args, NULL, 0, 0, NULL)) {
        return NULL;
    }
    if (mx_v_is(v, MX_V_LIST) && v->seq.first < v->seq.n) {
        return v->seq.items[v->sub == MX_SEQ_ONCE ? v->seq.first++ : 0];
    }
    mx_value *items = mx_v_list_of(r, v);
    if (items == NULL || items->seq.n > 0) {
        return items == NULL ? NULL : items->seq.items[0];
    }
    return mx_v_undefined(r, "no first item, the sequence was empty");
}

static mx_value *f_last(mx_run *r, mx_value *v, const mx_args *args)
{
    if (!mx_bind(r, "last", args, NULL, 0, 0, NULL)) {
        return NULL;
    }
    if (mx_v_is(v, MX_V_LIST) && v->sub == MX_SEQ_ONCE) {
        return mx_run_fail(r, MX_E_INVALID, "a generator has no last item");
    }
    mx_value *items = mx_v_list_of(r, v);
    if (items == NULL || items->seq.n > 0) {
        return items == NULL ? NULL : items->seq.items[items->seq.n - 1];
    }
    return mx_v_undefined(r, "no last item, the sequence was empty");
}

static mx_value *f_reverse(mx_run *r, mx_value *v, const mx_args *args)
{
    if (!mx_bind(r, "reverse", args, NULL, 0, 0, NULL)) {
        return NULL;
    }
    if (mx_v_is(v, MX_V_STRING)) {
        mx_value *step = mx_v_int(r, -1);
        return step == NULL ? NULL : mx_v_slice(r, v, NULL, NULL, step);
    }
    mx_value *items = mx_v_list_of(r, v);
    mx_value *out = items == NULL ? NULL : mx_v_seq(r, MX_SEQ_ONCE, items->seq.n);
    for (size_t i = items == NULL ? 0 : items->seq.n; i > 0; i--) {
        if (!mx_v_push(r, out, items->seq.items[i - 1])) {
            return NULL;
        }
    }
    return out;
}

/* ---- order ---- */

/* Strings compare without case unless asked otherwise. */
static mx_value *fold(mx_run *r, mx_value *v, bool case_sensitive)
{
    return v == NULL || case_sensitive || !mx_v_is(v, MX_V_STRING)
               ? v : mx_text_cased(r, v, MX_CASE_LOWER);
}

typedef struct keyed {
    mx_value *key, *item;
} keyed;

/* Stable merge sort: qsort is not stable and cannot stop at an error. */
static bool merge_sort(mx_run *r, keyed *v, keyed *spare, size_t n, bool reverse)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = mx_min_size(lo + width, n), hi = mx_min_size(lo + 2 * width, n);
            size_t a = lo, b = mid;
            for (size_t k = lo; k < hi; k++) {
                int order = 0;
                /* Equal keys need no order: two undefined ones have none. */
                if (a < mid && b < hi && !mx_v_equal(r, v[b].key, v[a].key) &&
                    !mx_v_compare(r, v[b].key, v[a].key, &order))
                {
                    return false;
                }
                if (!mx_run_step(r, 1)) {
                    return false;
                }
                bool second = a == mid || (b < hi && (reverse ? order == 1 : order == -1));
                spare[k] = second ? v[b++] : v[a++];
            }
        }
        memcpy(v, spare, n * sizeof *v);
    }
    return true;
}

/* The sort key of an item: its attribute, or a list of them for "a,b". */
static mx_value *sort_key(mx_run *r, mx_value *item, const mx_value *path, bool case_sensitive,
                          mx_value *absent)
{
    if (path == NULL || !mx_v_is(path, MX_V_STRING) ||
        memchr(path->s.ptr, ',', path->s.len) == NULL)
    {
        return fold(r, mx_path_or(r, item, path, absent), case_sensitive);
    }
    mx_value *key = mx_v_seq(r, MX_SEQ_LIST, 2);
    for (size_t at = 0; at <= path->s.len;) {
        const char *comma = memchr(path->s.ptr + at, ',', path->s.len - at);
        size_t end = comma == NULL ? path->s.len : (size_t)(comma - path->s.ptr);
        mx_value *part = mx_v_part(r, path, at, end);
        if (part == NULL ||
            !mx_v_push(r, key, fold(r, mx_path(r, item, part), case_sensitive)))
        {
            return NULL;
        }
        at = end + 1;
    }
    return key;
}

static mx_value *sorted(mx_run *r, mx_value *items, const mx_value *path, bool case_sensitive,
                        bool reverse, mx_value *absent)
{
    size_t n = items == NULL ? 0 : items->seq.n;
    keyed *v = mx_run_array(r, n, sizeof *v), *spare = mx_run_array(r, n, sizeof *spare);
    mx_value *out = mx_v_seq(r, MX_SEQ_LIST, n);
    if (items == NULL || v == NULL || spare == NULL || out == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        v[i].item = items->seq.items[i];
        v[i].key = sort_key(r, v[i].item, path, case_sensitive, absent);
        if (v[i].key == NULL) {
            return NULL;
        }
    }
    if (!merge_sort(r, v, spare, n, reverse)) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        out->seq.items[out->seq.n++] = v[i].item;
    }
    return out;
}

static bool is_set(const mx_value *v)
{
    return v != NULL && mx_v_truthy(v);
}

static mx_value *f_sort(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"reverse", "case_sensitive", "attribute"};
    mx_value *a[3];
    return mx_bind(r, "sort", args, names, 3, 0, a)
               ? sorted(r, mx_v_list_of(r, v), a[2], is_set(a[1]), is_set(a[0]), NULL) : NULL;
}

static mx_value *f_dictsort(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"case_sensitive", "by", "reverse"};
    mx_value *a[3];
    if (!mx_bind(r, "dictsort", args, names, 3, 0, a)) {
        return NULL;
    }
    if (!mx_v_is(v, MX_V_DICT)) {
        return mx_run_fail(r, MX_E_INVALID, "dictsort needs a dict, not a %s", mx_v_type_name(v));
    }
    bool by_value = a[1] != NULL && mx_v_is(a[1], MX_V_STRING) &&
                    mx_str_eq(mx_v_str(a[1]), MX_STR("value"));
    mx_value *pairs = f_items(r, v, &(mx_args){0});
    mx_value *at = mx_v_int(r, by_value);
    return at == NULL ? NULL : sorted(r, pairs, at, is_set(a[0]), is_set(a[2]), NULL);
}

static mx_value *extreme(mx_run *r, mx_value *v, const mx_args *args, int wanted)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    mx_value *a[2];
    mx_value *items = mx_bind(r, "min", args, names, 2, 0, a) ? mx_v_list_of(r, v) : NULL;
    mx_value *best = NULL, *best_key = NULL;
    for (size_t i = 0; items != NULL && i < items->seq.n; i++) {
        mx_value *key = fold(r, mx_path(r, items->seq.items[i], a[1]), is_set(a[0]));
        int order = wanted;
        if (key == NULL || (best != NULL && !mx_v_compare(r, key, best_key, &order))) {
            return NULL;
        }
        if (order == wanted) {
            best = items->seq.items[i];
            best_key = key;
        }
    }
    if (items == NULL || best != NULL) {
        return best;
    }
    return mx_v_undefined(r, "no item to take, the sequence was empty");
}

static mx_value *f_min(mx_run *r, mx_value *v, const mx_args *args)
{
    return extreme(r, v, args, -1);
}

static mx_value *f_max(mx_run *r, mx_value *v, const mx_args *args)
{
    return extreme(r, v, args, 1);
}

static mx_value *f_unique(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"case_sensitive", "attribute"};
    mx_value *a[2];
    mx_value *items = mx_bind(r, "unique", args, names, 2, 0, a) ? mx_v_list_of(r, v) : NULL;
    mx_value *seen = mx_v_dict_new(r), *out = mx_v_seq(r, MX_SEQ_ONCE, 0);
    for (size_t i = 0; items != NULL && i < items->seq.n; i++) {
        mx_value *key = fold(r, mx_path(r, items->seq.items[i], a[1]), is_set(a[0]));
        if (key == NULL || seen == NULL) {
            return NULL;
        }
        size_t before = seen->dict.n;
        if (!mx_v_put(r, seen, key, key) ||
            (seen->dict.n > before && !mx_v_push(r, out, items->seq.items[i])))
        {
            return NULL;
        }
    }
    return items == NULL ? NULL : out;
}

static mx_value *f_sum(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"attribute", "start"};
    mx_value *a[2];
    mx_value *items = mx_bind(r, "sum", args, names, 2, 0, a) ? mx_v_list_of(r, v) : NULL;
    mx_value *sum = items == NULL ? NULL : a[1] != NULL ? a[1] : mx_v_int(r, 0);
    if (sum != NULL && mx_v_is(sum, MX_V_STRING)) {
        return mx_run_fail(r, MX_E_INVALID, "sum does not add strings");
    }
    for (size_t i = 0; sum != NULL && i < items->seq.n; i++) {
        sum = mx_v_binary(r, MX_OP_ADD, sum, mx_path(r, items->seq.items[i], a[0]));
    }
    return sum;
}

static mx_value *f_groupby(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"attribute", "default", "case_sensitive"};
    mx_value *a[3];
    if (!mx_bind(r, "groupby", args, names, 3, 1, a)) {
        return NULL;
    }
    mx_value *items = sorted(r, mx_v_list_of(r, v), a[0], is_set(a[2]), false, a[1]);
    mx_value *out = mx_v_seq(r, MX_SEQ_LIST, 0), *group = NULL, *last = NULL;
    for (size_t i = 0; items != NULL && i < items->seq.n; i++) {
        mx_value *value = mx_path_or(r, items->seq.items[i], a[0], a[1]);
        mx_value *key = fold(r, value, is_set(a[2]));
        if (key == NULL) {
            return NULL;
        }
        if (mx_v_is(key, MX_V_UNDEFINED) && items->seq.n > 1) {
            return mx_v_fail_undefined(r, key); /* what is undefined has no order */
        }
        if (last == NULL || !mx_v_equal(r, key, last)) {
            mx_value *pair = mx_v_seq(r, MX_SEQ_TUPLE, 2);
            group = mx_v_seq(r, MX_SEQ_LIST, 0);
            if (!mx_v_push(r, pair, value) || !mx_v_push(r, pair, group) ||
                !mx_v_push(r, out, pair))
            {
                return NULL;
            }
            last = key;
        }
        if (!mx_v_push(r, group, items->seq.items[i])) {
            return NULL;
        }
    }
    return items == NULL ? NULL : out;
}

/* ---- rows ---- */

static mx_value *f_batch(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"linecount", "fill_with"};
    mx_value *a[2];
    int64_t width;
    if (!mx_bind(r, "batch", args, names, 2, 1, a) || !mx_arg_int(r, a[0], 0, &width)) {
        return NULL;
    }
    mx_value *items = mx_v_list_of(r, v), *out = mx_v_seq(r, MX_SEQ_ONCE, 0), *row = NULL;
    for (size_t i = 0; items != NULL && i < items->seq.n; i++) {
        if (row == NULL || (width > 0 && row->seq.n == (size_t)width)) {
            row = mx_v_seq(r, MX_SEQ_LIST, 0);
            if (!mx_v_push(r, out, row)) {
                return NULL;
            }
        }
        if (!mx_v_push(r, row, items->seq.items[i])) {
            return NULL;
        }
    }
    bool fills = row != NULL && a[1] != NULL && !mx_v_is(a[1], MX_V_NONE);
    while (fills && (int64_t)row->seq.n < width) {
        if (!mx_v_push(r, row, a[1])) {
            return NULL;
        }
    }
    return items == NULL ? NULL : out;
}

static mx_value *f_slice(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"slices", "fill_with"};
    mx_value *a[2];
    int64_t n;
    if (!mx_bind(r, "slice", args, names, 2, 1, a) || !mx_arg_int(r, a[0], 0, &n)) {
        return NULL;
    }
    if (n <= 0) {
        return mx_run_fail(r, MX_E_INVALID, "slice needs at least one slice");
    }
    mx_value *items = mx_v_list_of(r, v), *out = mx_v_seq(r, MX_SEQ_ONCE, 0);
    size_t len = items == NULL ? 0 : items->seq.n, at = 0;
    for (int64_t k = 0; items != NULL && k < n; k++) {
        mx_value *row = mx_v_seq(r, MX_SEQ_LIST, 0);
        bool is_long = (uint64_t)k < len % (uint64_t)n;
        size_t take = len / (uint64_t)n + is_long;
        for (size_t i = 0; i < take; i++) {
            if (!mx_v_push(r, row, items->seq.items[at++])) {
                return NULL;
            }
        }
        bool fills = a[1] != NULL && !mx_v_is(a[1], MX_V_NONE) && !is_long;
        if ((fills && !mx_v_push(r, row, a[1])) || !mx_v_push(r, out, row)) {
            return NULL;
        }
    }
    return items == NULL ? NULL : out;
}

/* ---- map, select ---- */

/* The arguments behind the first n, for the filter or test that is applied to each item. */
static mx_args behind(const mx_args *args, size_t n)
{
    mx_args rest = *args;
    n = mx_min_size(n, args->n_pos);
    rest.pos = n > 0 ? rest.pos + n : rest.pos;
    rest.n_pos -= n;
    return rest;
}

static mx_value *f_attr(mx_run *r, mx_value *v, const mx_args *args)
{
    static const char *const names[] = {"name"};
    mx_value *a[1];
    if (!mx_bind(r, "attr", args, names, 1, 1, a) || mx_arg_text(r, "attr", a[0]) == NULL) {
        return NULL;
    }
    if (mx_v_is(v, MX_V_DICT)) { /* attributes only, no keys */
        mx_value *m = mx_find_method(r, v, mx_v_str(a[0]));
        return m != NULL || r->err != MX_OK ? m : mx_v_undefined(r, "no such attribute");
    }
    return mx_attr(r, v, mx_v_str(a[0]));
}

static mx_value *map_attribute(mx_run *r, mx_value *items, const mx_args *args)
{
    static const char *const names[] = {"attribute", "default"};
    mx_value *a[2];
    mx_value *out = mx_v_seq(r, MX_SEQ_ONCE, 0);
    if (!mx_bind(r, "map", args, names, 2, 1, a)) {
        return NULL;
    }
    mx_value *absent = a[1] != NULL && !mx_v_is(a[1], MX_V_NONE) ? a[1] : NULL;
    for (size_t i = 0; i < items->seq.n; i++) {
        if (!mx_v_push(r, out, mx_path_or(r, items->seq.items[i], a[0], absent))) {
            return NULL;
        }
    }
    return out;
}

static mx_value *f_map(mx_run *r, mx_value *v, const mx_args *args)
{
    if (!mx_v_truthy(v)) {
        return mx_v_seq(r, MX_SEQ_ONCE, 0);
    }
    mx_value *items = mx_v_list_of(r, v);
    if (items == NULL) {
        return NULL;
    }
    if (args->n_pos == 0) {
        return map_attribute(r, items, args);
    }
    mx_value *name = mx_arg_text(r, "map", args->pos[0]);
    const mx_builtin *filter = name == NULL ? NULL : mx_find_filter(mx_v_str(name));
    if (filter == NULL) {
        return mx_run_fail(r, MX_E_INVALID, "map: there is no such filter");
    }
    mx_args rest = behind(args, 1);
    mx_value *out = mx_v_seq(r, MX_SEQ_ONCE, 0);
    if (!mx_run_enter(r)) {
        return NULL;
    }
    for (size_t i = 0; i < items->seq.n; i++) {
        if (!mx_v_push(r, out, filter->fn(r, items->seq.items[i], &rest))) {
            return NULL;
        }
    }
    mx_run_leave(r);
    return out;
}

static mx_value *chosen(mx_run *r, mx_value *v, const mx_args *args, bool by_attribute, bool wanted)
{
    mx_value *out = mx_v_seq(r, MX_SEQ_ONCE, 0);
    if (!mx_v_truthy(v)) {
        return out;
    }
    if (by_attribute && args->n_pos == 0) {
        return mx_run_fail(r, MX_E_INVALID, "the name of an attribute is missing");
    }
    const mx_builtin *test = NULL;
    if (args->n_pos > by_attribute) {
        mx_value *name = mx_arg_text(r, "select", args->pos[by_attribute]);
        test = name == NULL ? NULL : mx_find_test(mx_v_str(name));
        if (test == NULL) {
            return mx_run_fail(r, MX_E_INVALID, "select: there is no such test");
        }
    }
    mx_args rest = behind(args, (size_t)by_attribute + 1);
    mx_value *items = mx_v_list_of(r, v);
    for (size_t i = 0; items != NULL && i < items->seq.n; i++) {
        mx_value *x = mx_path(r, items->seq.items[i], by_attribute ? args->pos[0] : NULL);
        if (x != NULL && test != NULL) {
            x = test->fn(r, x, &rest);
        }
        if (x == NULL) {
            return NULL;
        }
        if (mx_v_truthy(x) == wanted && !mx_v_push(r, out, items->seq.items[i])) {
            return NULL;
        }
    }
    return items == NULL ? NULL : out;
}

static mx_value *f_select(mx_run *r, mx_value *v, const mx_args *args)
{
    return chosen(r, v, args, false, true);
}

static mx_value *f_reject(mx_run *r, mx_value *v, const mx_args *args)
{
    return chosen(r, v, args, false, false);
}

static mx_value *f_selectattr(mx_run *r, mx_value *v, const mx_args *args)
{
    return chosen(r, v, args, true, true);
}

static mx_value *f_rejectattr(mx_run *r, mx_value *v, const mx_args *args)
{
    return chosen(r, v, args, true, false);
}

const mx_builtin mx_seq_filters[] = {
    {"attr", f_attr},       {"batch", f_batch},           {"count", f_length},
    {"d", f_default},       {"default", f_default},       {"dictsort", f_dictsort},
    {"first", f_first},     {"groupby", f_groupby},       {"items", f_items},
    {"join", f_join},       {"last", f_last},             {"length", f_length},
    {"list", f_list},       {"map", f_map},               {"max", f_max},
    {"min", f_min},         {"reject", f_reject},         {"rejectattr", f_rejectattr},
    {"reverse", f_reverse}, {"select", f_select},         {"selectattr", f_selectattr},
    {"slice", f_slice},     {"sort", f_sort},             {"sum", f_sum},
    {"unique", f_unique},
};
const size_t mx_n_seq_filters = MX_COUNT(mx_seq_filters);
