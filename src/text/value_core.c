/* SPDX-License-Identifier: MIT
 *
 * Values: making them, and the dict. A dict is an array of pairs in insertion order; above a few
 * pairs a table of slots finds a key, so that a client's object with a hundred thousand keys is not
 * searched pair by pair. The hash is seeded with an address, which differs from process to process.
 *
 * Two layers: functions on an arena (the public builders, for the context), and mx_v_* on a run,
 * which record errors.
 */
#include "text/value_internal.h"

#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALL_DICT = 8 };

static mx_value *make(mx_arena *a, mx_value_kind kind, int sub)
{
    mx_value *v = mx_arena_alloc(a, sizeof *v);
    if (v != NULL) {
        v->kind = (uint8_t)kind;
        v->sub = (uint8_t)sub;
    }
    return v;
}

mx_value *mx_value_none(mx_arena *a)
{
    return make(a, MX_V_NONE, 0);
}

mx_value *mx_value_bool(mx_arena *a, bool b)
{
    mx_value *v = make(a, MX_V_BOOL, 0);
    if (v != NULL) {
        v->b = b;
    }
    return v;
}

mx_value *mx_value_int(mx_arena *a, int64_t i)
{
    mx_value *v = make(a, MX_V_INT, MX_INT_SMALL);
    if (v != NULL) {
        v->i = i;
    }
    return v;
}

mx_value *mx_value_float(mx_arena *a, double f)
{
    mx_value *v = make(a, MX_V_FLOAT, 0);
    if (v != NULL) {
        v->f = f;
    }
    return v;
}

static char *copy_z(mx_arena *a, mx_str text)
{
    char *p = text.len < SIZE_MAX ? mx_arena_alloc(a, text.len + 1) : NULL;
    if (p != NULL && text.len > 0) {
        memcpy(p, text.ptr, text.len);
    }
    return p;
}

mx_value *mx_value_number_text(mx_arena *a, mx_str text)
{
    char *z = copy_z(a, text);
    if (z == NULL) {
        return NULL;
    }
    size_t digits = text.len > 0 && z[0] == '-' ? 1 : 0;
    bool is_integer = digits < text.len;
    for (size_t i = digits; i < text.len; i++) {
        is_integer = is_integer && z[i] >= '0' && z[i] <= '9';
    }
    if (!is_integer) {
        return mx_value_float(a, strtod(z, NULL));
    }
    errno = 0;
    long long small = strtoll(z, NULL, 10);
    if (errno == 0) {
        return mx_value_int(a, small);
    }
    /* No leading zeros: two equal big integers then have equal texts. */
    char *first = z + digits;
    while (*first == '0') {
        first++;
    }
    if (digits == 1) {
        *--first = '-';
    }
    mx_value *v = make(a, MX_V_INT, MX_INT_BIG);
    if (v != NULL) {
        v->s.ptr = first;
        v->s.len = text.len - (size_t)(first - z);
        v->s.n_chars = v->s.len;
    }
    return v;
}

mx_value *mx_value_string(mx_arena *a, mx_str s, bool is_markup)
{
    size_t bytes = 0, n_chars = 0;
    for (size_t i = 0; i < s.len; n_chars++) {
        uint32_t cp;
        char enc[4];
        i += mx_utf8_decode(s.ptr + i, s.len - i, &cp);
        bytes += mx_utf8_encode(cp, enc);
    }
    mx_value *v = make(a, MX_V_STRING, 0);
    char *p = v == NULL ? NULL : mx_arena_alloc(a, bytes);
    if (p == NULL) {
        return NULL;
    }
    v->s = (mx_text){.ptr = p, .len = bytes, .n_chars = n_chars, .is_markup = is_markup};
    for (size_t i = 0; i < s.len;) {
        uint32_t cp;
        i += mx_utf8_decode(s.ptr + i, s.len - i, &cp);
        p += mx_utf8_encode(cp, p);
    }
    return v;
}

mx_value *mx_value_list(mx_arena *a)
{
    return make(a, MX_V_LIST, MX_SEQ_LIST);
}

mx_value *mx_value_dict(mx_arena *a)
{
    return make(a, MX_V_DICT, 0);
}

static bool seq_push(mx_arena *a, mx_seq *s, mx_value *item)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        size_t bytes;
        if (!mx_mul_ok(cap, sizeof *s->items, &bytes)) {
            return false;
        }
        mx_value **items = mx_arena_alloc(a, bytes);
        if (items == NULL) {
            return false;
        }
        if (s->n > 0) {
            memcpy(items, s->items, s->n * sizeof *items);
        }
        s->items = items;
        s->cap = cap;
    }
    s->items[s->n++] = item;
    return true;
}

mx_value *mx_value_list_add(mx_arena *a, mx_value *list, mx_value *item)
{
    if (list == NULL || item == NULL || !mx_v_is(list, MX_V_LIST)) {
        return NULL;
    }
    return seq_push(a, &list->seq, item) ? list : NULL;
}

mx_value *mx_value_dict_set(mx_arena *a, mx_value *dict, mx_str key, mx_value *item)
{
    if (dict == NULL || item == NULL || !mx_v_is(dict, MX_V_DICT)) {
        return NULL;
    }
    mx_value *k = mx_value_string(a, key, false);
    return k != NULL && mx_dict_put(a, &dict->dict, k, item) ? dict : NULL;
}

mx_value_kind mx_value_get_kind(const mx_value *v)
{
    return v == NULL ? MX_V_UNDEFINED : (mx_value_kind)v->kind;
}

size_t mx_value_count(const mx_value *v)
{
    switch (mx_value_get_kind(v)) {
    case MX_V_LIST:
        return v->seq.n;
    case MX_V_DICT:
        return v->dict.n;
    default:
        return 0;
    }
}

const mx_value *mx_value_at(const mx_value *v, size_t i)
{
    if (i >= mx_value_count(v)) {
        return NULL;
    }
    return mx_v_is(v, MX_V_LIST) ? v->seq.items[i] : v->dict.pairs[i].value;
}

const mx_value *mx_value_get(const mx_value *v, mx_str key)
{
    if (mx_value_get_kind(v) != MX_V_DICT) {
        return NULL;
    }
    mx_pair *p = mx_dict_find_str(&v->dict, key);
    return p == NULL ? NULL : p->value;
}

/* ---- the dict ---- */

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = (uint64_t)(uintptr_t)&hash_bytes ^ n * 0x9E3779B97F4A7C15u;
    while (n > 0) {
        uint64_t w = 0;
        size_t take = mx_min_size(n, 8);
        memcpy(&w, p, take);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        p += take;
        n -= take;
    }
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

bool mx_v_hashable(const mx_value *v)
{
    if (mx_v_is(v, MX_V_LIST)) {
        return v->sub == MX_SEQ_TUPLE || v->sub == MX_SEQ_RANGE;
    }
    return !mx_v_is(v, MX_V_DICT);
}

/* Equal values have equal hashes: 1, 1.0 and true are one key, as in Python. */
static uint64_t hash_value(const mx_value *v)
{
    if (mx_v_is(v, MX_V_STRING)) {
        return hash_bytes(v->s.ptr, v->s.len);
    }
    if (mx_v_is_number(v)) {
        double f = mx_v_as_double(v) + 0.0;
        return hash_bytes((const char *)&f, sizeof f);
    }
    return v->kind;
}

static bool keys_equal(const mx_value *a, const mx_value *b)
{
    if (a == b) {
        return true;
    }
    if (mx_v_is(a, MX_V_STRING) || mx_v_is(b, MX_V_STRING)) {
        return a->kind == b->kind && mx_str_eq(mx_v_str(a), mx_v_str(b));
    }
    if (mx_v_is(a, MX_V_LIST) && mx_v_is(b, MX_V_LIST)) {
        bool same = a->sub == b->sub && a->seq.n == b->seq.n;
        for (size_t i = 0; same && i < a->seq.n; i++) {
            /* Tuples inside tuples as keys compare by identity: nobody writes them. */
            const mx_value *x = a->seq.items[i], *y = b->seq.items[i];
            same = mx_v_is(x, MX_V_LIST) ? x == y : keys_equal(x, y);
        }
        return same;
    }
    return mx_v_same(a, b) ||
           (mx_v_is_number(a) && mx_v_is_number(b) && mx_v_as_double(a) == mx_v_as_double(b));
}

static void index_pair(mx_dict *d, size_t number)
{
    size_t at = (size_t)d->pairs[number].hash & (d->n_slots - 1);
    while (d->slots[at] != 0) {
        at = (at + 1) & (d->n_slots - 1);
    }
    d->slots[at] = (uint32_t)number + 1;
}

static mx_pair *find_hashed(const mx_dict *d, const mx_value *key, uint64_t hash)
{
    if (d->slots == NULL) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->pairs[i].hash == hash && keys_equal(d->pairs[i].key, key)) {
                return &d->pairs[i];
            }
        }
        return NULL;
    }
    for (size_t at = (size_t)hash & (d->n_slots - 1); d->slots[at] != 0;
         at = (at + 1) & (d->n_slots - 1))
    {
        mx_pair *p = &d->pairs[d->slots[at] - 1];
        if (p->hash == hash && keys_equal(p->key, key)) {
            return p;
        }
    }
    return NULL;
}

mx_pair *mx_dict_find(const mx_dict *d, const mx_value *key)
{
    return find_hashed(d, key, hash_value(key));
}

mx_pair *mx_dict_find_str(const mx_dict *d, mx_str key)
{
    mx_value k = {.kind = MX_V_STRING, .s = {.ptr = key.ptr, .len = key.len}};
    return find_hashed(d, &k, hash_bytes(key.ptr, key.len));
}

static bool dict_reserve(mx_arena *a, mx_dict *d)
{
    if (d->n < d->cap) {
        return true;
    }
    size_t cap = d->cap ? d->cap * 2 : 4;
    if (cap > UINT32_MAX / 4) {
        return false;
    }
    mx_pair *pairs = mx_arena_alloc(a, cap * sizeof *pairs);
    uint32_t *slots = NULL;
    if (pairs == NULL) {
        return false;
    }
    if (cap > SMALL_DICT) {
        slots = mx_arena_alloc(a, cap * 2 * sizeof *slots);
        if (slots == NULL) {
            return false;
        }
    }
    if (d->n > 0) {
        memcpy(pairs, d->pairs, d->n * sizeof *pairs);
    }
    d->pairs = pairs;
    d->cap = cap;
    d->slots = slots;
    d->n_slots = slots == NULL ? 0 : cap * 2;
    for (size_t i = 0; slots != NULL && i < d->n; i++) {
        index_pair(d, i);
    }
    return true;
}

bool mx_dict_put(mx_arena *a, mx_dict *d, mx_value *key, mx_value *item)
{
    uint64_t hash = hash_value(key);
    mx_pair *p = find_hashed(d, key, hash);
    if (p != NULL) {
        p->value = item;
        return true;
    }
    if (!dict_reserve(a, d)) {
        return false;
    }
    d->pairs[d->n] = (mx_pair){key, item, hash};
    if (d->slots != NULL) {
        index_pair(d, d->n);
    }
    d->n++;
    return true;
}

/* ---- on a run ---- */

void *mx_run_fail(mx_run *r, mx_err code, const char *fmt, ...)
{
    if (r->err != MX_OK) {
        return NULL;
    }
    r->err = code;
    if (r->eb != NULL) {
        int n = 0;
        if (r->line > 0 && !r->is_template_error) {
            n = snprintf(r->eb->text, sizeof r->eb->text, "line %u: ", (unsigned)r->line);
        }
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(r->eb->text + n, sizeof r->eb->text - (size_t)n, fmt, ap);
        va_end(ap);
        /* A cut through a character would leave ill-formed UTF-8 for the client to see. */
        size_t len = strlen(r->eb->text);
        r->eb->text[mx_utf8_complete(r->eb->text, len)] = '\0';
    }
    return NULL;
}

void *mx_run_nomem(mx_run *r)
{
    return mx_run_fail(r, MX_E_NOMEM, "the template needs more memory than it may have");
}

bool mx_run_step(mx_run *r, uint64_t n)
{
    if (MX_UNLIKELY(r->err != MX_OK)) {
        return false;
    }
    if (MX_UNLIKELY(r->steps_left < n)) {
        mx_run_fail(r, MX_E_LIMIT, "the template takes too many steps");
        return false;
    }
    r->steps_left -= n;
    return true;
}

bool mx_run_enter(mx_run *r)
{
    if (r->depth >= r->max_depth) {
        mx_run_fail(r, MX_E_LIMIT, "the template is nested deeper than %u levels",
                    (unsigned)r->max_depth);
        return false;
    }
    if (!mx_run_step(r, 1)) {
        return false;
    }
    r->depth++;
    return true;
}

void mx_run_leave(mx_run *r)
{
    r->depth--;
}

void *mx_run_alloc(mx_run *r, size_t bytes)
{
    if (r->err != MX_OK) {
        return NULL;
    }
    void *p = mx_arena_alloc(r->arena, bytes);
    return p == NULL ? mx_run_nomem(r) : p;
}

void *mx_run_array(mx_run *r, size_t n, size_t elem_bytes)
{
    size_t bytes;
    return mx_mul_ok(n, elem_bytes, &bytes) ? mx_run_alloc(r, bytes) : mx_run_nomem(r);
}

mx_value *mx_v_new(mx_run *r, mx_value_kind kind, int sub)
{
    mx_value *v = mx_run_alloc(r, sizeof *v);
    if (v != NULL) {
        v->kind = (uint8_t)kind;
        v->sub = (uint8_t)sub;
        v->is_own = true;
    }
    return v;
}

mx_value *mx_v_undefined(mx_run *r, const char *fmt, ...)
{
    mx_value *v = mx_v_new(r, MX_V_UNDEFINED, 0);
    if (v == NULL) {
        return NULL;
    }
    char text[160];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t len = n < 0 ? 0 : mx_min_size((size_t)n, sizeof text - 1);
    char *copy = mx_run_alloc(r, len);
    if (copy == NULL) {
        return NULL;
    }
    memcpy(copy, text, len);
    v->hint = (mx_str){copy, len};
    return v;
}

mx_value *mx_v_none(mx_run *r)
{
    return mx_v_new(r, MX_V_NONE, 0);
}

mx_value *mx_v_bool(mx_run *r, bool b)
{
    mx_value *v = mx_v_new(r, MX_V_BOOL, 0);
    if (v != NULL) {
        v->b = b;
    }
    return v;
}

mx_value *mx_v_int(mx_run *r, int64_t i)
{
    mx_value *v = mx_v_new(r, MX_V_INT, MX_INT_SMALL);
    if (v != NULL) {
        v->i = i;
    }
    return v;
}

mx_value *mx_v_size(mx_run *r, size_t n)
{
    return mx_v_int(r, (int64_t)n);
}

mx_value *mx_v_float(mx_run *r, double f)
{
    mx_value *v = mx_v_new(r, MX_V_FLOAT, 0);
    if (v != NULL) {
        v->f = f;
    }
    return v;
}

mx_value *mx_v_seq(mx_run *r, int sub, size_t cap)
{
    mx_value *v = mx_v_new(r, MX_V_LIST, sub);
    if (v != NULL && cap > 0) {
        v->seq.items = mx_run_array(r, cap, sizeof *v->seq.items);
        v->seq.cap = cap;
    }
    return r->err == MX_OK ? v : NULL;
}

bool mx_v_push(mx_run *r, mx_value *seq, mx_value *item)
{
    if (seq == NULL || item == NULL || !mx_run_step(r, 1)) {
        return false;
    }
    if (!seq_push(r->arena, &seq->seq, item)) {
        mx_run_nomem(r);
        return false;
    }
    return true;
}

mx_value *mx_v_dict_new(mx_run *r)
{
    return mx_v_new(r, MX_V_DICT, 0);
}

bool mx_v_put(mx_run *r, mx_value *dict, mx_value *key, mx_value *item)
{
    if (dict == NULL || key == NULL || item == NULL || !mx_run_step(r, 1)) {
        return false;
    }
    if (!mx_v_hashable(key)) {
        mx_run_fail(r, MX_E_INVALID, "a %s cannot be a key", mx_v_type_name(key));
        return false;
    }
    if (!mx_dict_put(r->arena, &dict->dict, key, item)) {
        mx_run_nomem(r);
        return false;
    }
    return true;
}
