/* SPDX-License-Identifier: MIT
 *
 * JSON Schema, as far as it says of which type a value is: `type`, and alternatives in anyOf, oneOf
 * and allOf, which are all taken together.
 */
#include "api/api_tool_types.h"

#include "http/http.h"

enum { MAY_NULL = 1, MAY_INT = 2, MAY_NUMBER = 4, MAY_BOOL = 8, MAY_OBJECT = 16, MAY_ARRAY = 32,
       MAX_SCHEMA_DEPTH = 8 };

static struct json_object *object_field(struct json_object *o, const char *name)
{
    bool is_object = json_object_is_type(o, json_type_object);
    struct json_object *v = is_object ? mx_json_field(o, name) : NULL;
    return json_object_is_type(v, json_type_object) ? v : NULL;
}

struct json_object *mx_tool_find(struct json_object *tools, mx_str name)
{
    size_t n = json_object_is_type(tools, json_type_array) ? json_object_array_length(tools) : 0;
    for (size_t i = 0; i < n; i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        struct json_object *f = object_field(tool, "function");
        f = f != NULL ? f : tool; /* `functions` are bare */
        struct json_object *v = json_object_is_type(f, json_type_object) ? mx_json_field(f, "name")
                                                                         : NULL;
        if (v != NULL && json_object_is_type(v, json_type_string) &&
            mx_str_eq(mx_json_text(v), name))
        {
            return f;
        }
    }
    return NULL;
}

static unsigned type_bit(struct json_object *name)
{
    static const struct { const char *name; unsigned bit; } types[] = {
        {"null", MAY_NULL}, {"integer", MAY_INT}, {"number", MAY_NUMBER}, {"boolean", MAY_BOOL},
        {"object", MAY_OBJECT}, {"array", MAY_ARRAY},
    };
    for (size_t i = 0; json_object_is_type(name, json_type_string) && i < MX_COUNT(types); i++) {
        if (mx_str_eq(mx_json_text(name), mx_str_of(types[i].name))) {
            return types[i].bit;
        }
    }
    return 0;
}

static unsigned types_of(struct json_object *schema, unsigned depth)
{
    unsigned may = 0;
    if (depth >= MAX_SCHEMA_DEPTH || !json_object_is_type(schema, json_type_object)) {
        return 0;
    }
    struct json_object *type = mx_json_field(schema, "type");
    may |= type_bit(type);
    for (size_t i = 0; json_object_is_type(type, json_type_array) &&
                       i < json_object_array_length(type); i++)
    {
        may |= type_bit(json_object_array_get_idx(type, i));
    }
    static const char *const several[] = {"anyOf", "oneOf", "allOf"};
    for (size_t k = 0; k < MX_COUNT(several); k++) {
        struct json_object *list = mx_json_field(schema, several[k]);
        for (size_t i = 0; json_object_is_type(list, json_type_array) &&
                           i < json_object_array_length(list); i++)
        {
            may |= types_of(json_object_array_get_idx(list, i), depth + 1);
        }
    }
    return may;
}

/* The type of what was parsed, as bits; an integer is a number, too. */
static unsigned type_of(struct json_object *v)
{
    switch (json_object_get_type(v)) {
    case json_type_null: return MAY_NULL;
    case json_type_boolean: return MAY_BOOL;
    case json_type_int: return MAY_INT | MAY_NUMBER;
    case json_type_double: {
        double d = json_object_get_double(v);
        bool is_whole = d >= -9e15 && d <= 9e15 && d == (double)(int64_t)d;
        return MAY_NUMBER | (is_whole ? MAY_INT : 0);
    }
    case json_type_object: return MAY_OBJECT;
    case json_type_array: return MAY_ARRAY;
    case json_type_string: break;
    }
    return 0;
}

static mx_str trimmed(mx_str s)
{
    static const char blanks[] = " \t\r\n";
    while (s.len > 0 && strchr(blanks, *s.ptr) != NULL && *s.ptr != '\0') {
        s = (mx_str){s.ptr + 1, s.len - 1};
    }
    while (s.len > 0 && s.ptr[s.len - 1] != '\0' && strchr(blanks, s.ptr[s.len - 1]) != NULL) {
        s.len--;
    }
    return s;
}

/* Python's words for them are what models that write code fall into. */
static mx_str json_words(mx_str s)
{
    static const struct { const char *python, *json; } words[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"},
    };
    for (size_t i = 0; i < MX_COUNT(words); i++) {
        if (mx_str_eq(s, mx_str_of(words[i].python))) {
            return mx_str_of(words[i].json);
        }
    }
    return s;
}

void mx_tool_write_value(mx_buf *out, struct json_object *function, mx_str parameter, mx_str text)
{
    struct json_object *properties = object_field(object_field(function, "parameters"),
                                                  "properties");
    unsigned may = 0;
    if (properties != NULL) {
        json_object_object_foreach(properties, key, schema) {
            if (mx_str_eq(mx_str_of(key), parameter)) {
                may = types_of(schema, 0);
            }
        }
    }
    struct json_object *v = NULL;
    mx_str word = json_words(trimmed(text));
    if (may != 0 && mx_json_parse(&v, word, NULL) == MX_OK && (type_of(v) & may) != 0) {
        mx_buf_append(out, word.ptr, word.len);
    } else {
        mx_http_json_string(out, text.ptr, text.len);
    }
    json_object_put(v);
}
