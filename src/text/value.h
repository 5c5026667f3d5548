/* SPDX-License-Identifier: MIT
 *
 * value.h: the values a chat template works on: undefined, none, booleans, numbers, strings, lists,
 * dicts (insertion order kept).
 *
 * All memory of one rendering comes from one arena and is freed with it; values are never freed one
 * by one. Belongs to the thread that renders. Every string carries, byte range by byte range, where
 * its text came from: template markup, or data (messages, tools). The tag follows each character
 * through filters, slices and concatenation, so that a user cannot forge a control token.
 */
#ifndef MX_VALUE_H
#define MX_VALUE_H

#include "base/err.h"
#include "text/tokenizer.h"

typedef struct mx_arena mx_arena;
mx_arena *mx_arena_create(size_t max_bytes); /* NULL = no memory; max_bytes 0 = no limit */
void mx_arena_destroy(mx_arena *a);
void *mx_arena_alloc(mx_arena *a, size_t bytes); /* 16-byte aligned, zeroed; NULL when exhausted */

typedef enum mx_value_kind {
    MX_V_UNDEFINED, MX_V_NONE, MX_V_BOOL, MX_V_INT, MX_V_FLOAT, MX_V_STRING, MX_V_LIST, MX_V_DICT,
    MX_V_OTHER /* callables, namespaces, loop objects: the interpreter's own */
} mx_value_kind;

typedef struct mx_value mx_value;

/* Building a context (api converts JSON with these). NULL = arena exhausted; passing NULL on is
 * allowed and gives NULL, so a builder checks once at the end. Strings are copied. */
mx_value *mx_value_none(mx_arena *a);
mx_value *mx_value_bool(mx_arena *a, bool v);
mx_value *mx_value_int(mx_arena *a, int64_t v);
/* A number as text: an integer of any length keeps its digits; a float becomes a double, which
 * prints as Python's repr does (1.10 as 1.1), because that is what the model was trained on. */
mx_value *mx_value_number_text(mx_arena *a, mx_str text);
mx_value *mx_value_float(mx_arena *a, double v);
mx_value *mx_value_string(mx_arena *a, mx_str s, bool is_markup);
mx_value *mx_value_list(mx_arena *a);
mx_value *mx_value_dict(mx_arena *a);
/* Both return the box. A key that is there already gets the new value and keeps its place. */
mx_value *mx_value_list_add(mx_arena *a, mx_value *list, mx_value *item);
mx_value *mx_value_dict_set(mx_arena *a, mx_value *dict, mx_str key, mx_value *item);

/* Looking at values. */
mx_value_kind mx_value_get_kind(const mx_value *v);
size_t mx_value_count(const mx_value *v);                       /* list or dict, else 0 */
const mx_value *mx_value_at(const mx_value *v, size_t i);       /* list item or dict value */
const mx_value *mx_value_get(const mx_value *v, mx_str key);    /* dict value or NULL */

#endif
