/* SPDX-License-Identifier: MIT
 *
 * template_case.h: what the template tests share: JSON into template values, one rendering with all
 * its parts, and reading files.
 */
#ifndef MX_TEMPLATE_CASE_H
#define MX_TEMPLATE_CASE_H

#include "text/template.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((unused)) static mx_value *case_value(mx_arena *a, struct json_object *j)
{
    mx_value *v;
    switch (json_object_get_type(j)) {
    case json_type_null:
        return mx_value_none(a);
    case json_type_boolean:
        return mx_value_bool(a, json_object_get_boolean(j));
    case json_type_int:
        return mx_value_int(a, json_object_get_int64(j));
    case json_type_double: /* json-c keeps the text it read */
        return mx_value_number_text(a, mx_str_of(json_object_to_json_string(j)));
    case json_type_string:
        return mx_value_string(
            a, (mx_str){json_object_get_string(j), (size_t)json_object_get_string_len(j)}, false);
    case json_type_array:
        v = mx_value_list(a);
        for (size_t i = 0; i < json_object_array_length(j); i++) {
            v = mx_value_list_add(a, v, case_value(a, json_object_array_get_idx(j, i)));
        }
        return v;
    case json_type_object:
        break;
    }
    v = mx_value_dict(a);
    struct json_object_iterator it = json_object_iter_begin(j), end = json_object_iter_end(j);
    for (; !json_object_iter_equal(&it, &end); json_object_iter_next(&it)) {
        v = mx_value_dict_set(a, v, mx_str_of(json_object_iter_peek_name(&it)),
                              case_value(a, json_object_iter_peek_value(&it)));
    }
    return v;
}

typedef struct case_run {
    mx_err parse_err, err;
    mx_rendered out;
    mx_errbuf eb;
} case_run;

/* Parses and renders; free with mx_rendered_free(&c->out). context NULL = no variables. */
__attribute__((unused)) static void case_render(case_run *c, mx_str source,
                                                struct json_object *context, int64_t now_s,
                                                const mx_render_limits *limits)
{
    *c = (case_run){0};
    mx_template *t = NULL;
    c->parse_err = mx_template_parse(&t, source, &c->eb);
    if (c->parse_err == MX_OK) {
        mx_arena *a = mx_arena_create(0);
        mx_value *v = context != NULL ? case_value(a, context) : mx_value_dict(a);
        c->err = mx_template_render(t, a, v, now_s, limits, &c->out, &c->eb);
        mx_arena_destroy(a);
    }
    mx_template_destroy(t);
}

/* A whole file, NUL-terminated, or NULL. */
__attribute__((unused)) static char *case_read(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return NULL;
    }
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *p = malloc((size_t)n + 1);
    *len = p == NULL ? 0 : fread(p, 1, (size_t)n, f);
    if (p != NULL) {
        p[*len] = '\0';
    }
    fclose(f);
    return p;
}

#endif
