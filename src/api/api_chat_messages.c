/* SPDX-License-Identifier: MIT
 *
 * Messages of a client to values of a template.
 *
 * Published templates are written for well-behaved messages, clients send everything else: content
 * as a list of parts, null beside tool calls, arguments as a string of JSON, a `developer` role. So
 * messages are brought into one shape: content is always a string, arguments an ordered object,
 * reasoning stands under each name a template may ask for. Everything that came from the client is
 * data, not markup: a user who types a control token gets its letters.
 */
#include "api/api_chat_internal.h"

#include "base/mem.h"

#include <stdio.h>

mx_value *mx_chat_value(mx_chat *c, struct json_object *v)
{
    mx_arena *a = c->arena;
    switch (json_object_get_type(v)) {
    case json_type_null: return mx_value_none(a);
    case json_type_boolean: return mx_value_bool(a, json_object_get_boolean(v));
    case json_type_string: return mx_chat_data(c, mx_json_text(v));
    case json_type_double:
    case json_type_int: return mx_value_number_text(a, mx_json_number_text(v));
    case json_type_array: {
        mx_value *list = mx_value_list(a);
        for (size_t i = 0, n = json_object_array_length(v); i < n; i++) {
            list = mx_value_list_add(a, list, mx_chat_value(c, json_object_array_get_idx(v, i)));
        }
        return list;
    }
    case json_type_object: {
        mx_value *dict = mx_value_dict(a);
        json_object_object_foreach(v, key, item) {
            dict = mx_value_dict_set(a, dict, mx_str_of(key), mx_chat_value(c, item));
        }
        return dict;
    }
    }
    return mx_value_none(a);
}

/* ---- content --------------------------------------------------------------------------------- */

static bool is_one_of(mx_str type, const char *const *list, size_t n)
{
    size_t i = 0;
    while (i < n && !mx_str_eq(type, mx_str_of(list[i]))) {
        i++;
    }
    return i < n;
}

bool mx_chat_is_media(mx_str type)
{
    static const char *const media[] = {"image_url", "image", "input_image", "input_audio", "audio",
                                        "video_url", "file", "input_file"};
    return is_one_of(type, media, MX_COUNT(media));
}

static bool content_part(mx_chat *c, size_t at, size_t part, struct json_object *v, mx_buf *text,
                         mx_buf *reasoning)
{
    char where[64];
    snprintf(where, sizeof where, "messages[%zu].content[%zu]", at, part);
    if (json_object_is_type(v, json_type_string)) {
        mx_buf_append(text, mx_json_text(v).ptr, mx_json_text(v).len);
        return true;
    }
    if (!json_object_is_type(v, json_type_object)) {
        return mx_problem_field(c->p, where, "'%s' must be an object with a \"type\", not %s",
                                where,
                                mx_json_kind(v));
    }
    struct json_object *type_v = mx_json_field(v, "type");
    if (type_v == NULL || !json_object_is_type(type_v, json_type_string)) {
        return mx_problem_field(c->p, where, "'%s.type' must be a string such as \"text\"", where);
    }
    mx_str type = mx_json_text(type_v);
    static const struct { const char *type, *field; bool is_reasoning; } readable[] = {
        {"text", "text", false},          {"input_text", "text", false},
        {"output_text", "text", false},   {"refusal", "refusal", false},
        {"thinking", "thinking", true},
    };
    for (size_t i = 0; i < MX_COUNT(readable); i++) {
        if (!mx_str_eq(type, mx_str_of(readable[i].type))) {
            continue;
        }
        struct json_object *t = mx_json_field(v, readable[i].field);
        if (t == NULL || !json_object_is_type(t, json_type_string)) {
            return mx_problem_field(c->p, where, "'%s.%s' must be a string", where,
                                    readable[i].field);
        }
        mx_buf_append(readable[i].is_reasoning ? reasoning : text, mx_json_text(t).ptr,
                      mx_json_text(t).len);
        return true;
    }
    if (mx_chat_is_media(type)) {
        return mx_problem_set(c->p, 400, "unsupported_content", where, "'%s' has the type \"%.*s\": "
                              "this model reads text only", where, (int)type.len, type.ptr);
    }
    static const char *const blocks[] = {"tool_use", "tool_result", "document", "search_result"};
    if (is_one_of(type, blocks, MX_COUNT(blocks))) {
        return mx_problem_set(c->p, 400, "unsupported_content", where, "'%s' has the type \"%.*s\", "
                              "which belongs to /v1/messages: here calls stand in 'tool_calls', their "
                              "results in messages with the role \"tool\", and other texts in parts of "
                              "the type \"text\"", where, (int)type.len, type.ptr);
    }
    return true; /* unknown kinds carry no text */
}

static bool read_content(mx_chat *c, size_t at, struct json_object *m, mx_buf *text,
                         mx_buf *reasoning)
{
    struct json_object *v = mx_json_field(m, "content");
    if (v == NULL) {
        return true;
    }
    if (json_object_is_type(v, json_type_string)) {
        mx_buf_append(text, mx_json_text(v).ptr, mx_json_text(v).len);
        return true;
    }
    char where[64];
    snprintf(where, sizeof where, "messages[%zu].content", at);
    if (!json_object_is_type(v, json_type_array)) {
        return mx_problem_field(c->p, where, "'%s' must be a string or an array of parts, not %s",
                                where, mx_json_kind(v));
    }
    for (size_t i = 0, n = json_object_array_length(v); i < n; i++) {
        if (!content_part(c, at, i, json_object_array_get_idx(v, i), text, reasoning)) {
            return false;
        }
    }
    return true;
}

/* ---- messages -------------------------------------------------------------------------------- */

bool mx_chat_read_role(mx_chat *c, size_t at, struct json_object *m, mx_str *role)
{
    static const struct { const char *given, *used; } roles[] = {
        {"system", "system"}, {"developer", "system"}, {"user", "user"},
        {"assistant", "assistant"}, {"tool", "tool"}, {"function", "tool"},
    };
    char where[64];
    snprintf(where, sizeof where, "messages[%zu].role", at);
    struct json_object *v = mx_json_field(m, "role");
    if (v == NULL || !json_object_is_type(v, json_type_string)) {
        return mx_problem_field(c->p, where, "'%s' must be a string: system, user, assistant or "
                                "tool",
                                where);
    }
    for (size_t i = 0; i < MX_COUNT(roles); i++) {
        if (mx_str_eq(mx_json_text(v), mx_str_of(roles[i].given))) {
            *role = mx_str_of(roles[i].used);
            return true;
        }
    }
    return mx_problem_field(c->p, where, "'%s' is not one of system, developer, user, assistant, "
                            "tool, function", where);
}

static bool build_message(mx_chat *c, size_t at, mx_buf *text, mx_buf *reasoning, mx_value *dict)
{
    struct json_object *m = json_object_array_get_idx(c->messages, at);
    if (!json_object_is_type(m, json_type_object)) {
        char where[64];
        snprintf(where, sizeof where, "messages[%zu]", at);
        return mx_problem_field(c->p, where, "'%s' must be an object with \"role\" and "
                                "\"content\", not %s", where, mx_json_kind(m));
    }
    mx_str role;
    if (!mx_chat_read_role(c, at, m, &role) || !read_content(c, at, m, text, reasoning)) {
        return false;
    }
    if (c->continues && at + 1 == c->n_messages) {
        mx_buf_str(text, c->mark);
    }
    mx_chat_set(c, dict, "role", mx_chat_data(c, role));
    mx_chat_set(c, dict, "content", mx_chat_data(c, mx_buf_view(text)));
    if (mx_str_eq(role, MX_STR("assistant"))) {
        static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
        for (size_t i = 0; i < MX_COUNT(names) && reasoning->len == 0; i++) {
            struct json_object *r = mx_json_field(m, names[i]);
            if (r != NULL && json_object_is_type(r, json_type_string)) {
                mx_buf_append(reasoning, mx_json_text(r).ptr, mx_json_text(r).len);
            }
        }
        for (size_t i = 0; i < MX_COUNT(names) && reasoning->len > 0; i++) {
            mx_chat_set(c, dict, names[i], mx_chat_data(c, mx_buf_view(reasoning)));
        }
        struct json_object *calls = mx_json_field(m, "tool_calls");
        return calls == NULL ||
               mx_chat_add_calls(c, at, mx_buf_view(text), reasoning->len > 0, calls, dict);
    }
    return !mx_str_eq(role, MX_STR("tool")) || mx_chat_add_result(c, at, m, dict);
}

mx_value *mx_chat_build_messages(mx_chat *c)
{
    mx_value *list = mx_value_list(c->arena);
    mx_buf text = {0}, reasoning = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < c->n_messages; i++) {
        mx_buf_clear(&text);
        mx_buf_clear(&reasoning);
        mx_value *dict = mx_value_dict(c->arena);
        ok = build_message(c, i, &text, &reasoning, dict);
        list = mx_value_list_add(c->arena, list, dict);
        if (text.failed || reasoning.failed) {
            ok = mx_problem_set(c->p, 500, NULL, NULL, "out of memory");
        }
    }
    mx_buf_free(&text);
    mx_buf_free(&reasoning);
    return ok ? list : NULL;
}
