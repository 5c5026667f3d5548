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
    static const char *const media[] = {"image_url", "image", "input_image", "input_audio", "audio",
                                        "video_url", "file", "input_file"};
    for (size_t i = 0; i < MX_COUNT(media); i++) {
        if (mx_str_eq(type, mx_str_of(media[i]))) {
            return mx_problem_set(c->p, 400, "unsupported_content", where,
                                  "'%s' has the type \"%s\": this model reads text only", where,
                                  media[i]);
        }
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

/* ---- tool calls ------------------------------------------------------------------------------ */

/* Arguments arrive as a string that holds JSON; templates want the object. Text that does not parse
 * stays text: it is history, and refusing it would end the conversation. */
static mx_value *arguments_of(mx_chat *c, struct json_object *v)
{
    if (v == NULL) {
        return mx_value_dict(c->arena);
    }
    if (!json_object_is_type(v, json_type_string)) {
        return mx_chat_value(c, v);
    }
    mx_str text = mx_json_text(v);
    if (text.len == 0) {
        return mx_value_dict(c->arena);
    }
    struct json_object *parsed;
    if (mx_json_parse(&parsed, text, NULL) != MX_OK) {
        return mx_chat_data(c, text);
    }
    mx_value *out = json_object_is_type(parsed, json_type_object) ? mx_chat_value(c, parsed)
                                                                  : mx_chat_data(c, text);
    json_object_put(parsed);
    return out;
}

static bool add_tool_calls(mx_chat *c, size_t at, struct json_object *calls, mx_value *dict)
{
    char where[80];
    snprintf(where, sizeof where, "messages[%zu].tool_calls", at);
    if (!json_object_is_type(calls, json_type_array)) {
        return mx_problem_field(c->p, where, "'%s' must be an array, not %s", where,
                                mx_json_kind(calls));
    }
    size_t n = json_object_array_length(calls);
    if (n == 0) {
        return true;
    }
    mx_value *list = mx_value_list(c->arena);
    for (size_t i = 0; i < n; i++) {
        struct json_object *call = json_object_array_get_idx(calls, i);
        struct json_object *f = json_object_is_type(call, json_type_object)
                                    ? mx_json_field(call, "function") : NULL;
        struct json_object *name = json_object_is_type(f, json_type_object)
                                       ? mx_json_field(f, "name") : NULL;
        if (name == NULL || !json_object_is_type(name, json_type_string)) {
            return mx_problem_field(c->p, where, "'%s[%zu]' must be an object with "
                                    "\"function\": {\"name\": \"...\", \"arguments\": \"...\"}",
                                    where, i);
        }
        mx_value *function = mx_value_dict(c->arena);
        mx_chat_set(c, function, "name", mx_chat_data(c, mx_json_text(name)));
        mx_chat_set(c, function, "arguments", arguments_of(c, mx_json_field(f, "arguments")));
        mx_value *out = mx_value_dict(c->arena);
        struct json_object *id = mx_json_field(call, "id");
        if (id != NULL && json_object_is_type(id, json_type_string)) {
            mx_chat_set(c, out, "id", mx_chat_data(c, mx_json_text(id)));
        }
        mx_chat_set(c, out, "type", mx_chat_data(c, MX_STR("function")));
        mx_chat_set(c, out, "function", function);
        list = mx_value_list_add(c->arena, list, out);
    }
    mx_chat_set(c, dict, "tool_calls", list);
    return true;
}

/* The message says what one of our answers said, in other words or the same: then it says it in
 * the words that were sampled, calls and all. A template renders those as it would render any
 * answer. */
static bool replay(mx_chat *c, mx_str content, struct json_object *calls, mx_value *dict)
{
    uint8_t nonce[MX_TURN_NONCE];
    size_t index;
    struct json_object *first = json_object_is_type(calls, json_type_array)
                                    ? json_object_array_get_idx(calls, 0) : NULL;
    struct json_object *id = json_object_is_type(first, json_type_object)
                                 ? mx_json_field(first, "id") : NULL;
    if (c->env->said == NULL || id == NULL || !json_object_is_type(id, json_type_string) ||
        !mx_tool_id_read(mx_json_text(id), nonce, &index) || index != 0)
    {
        return false;
    }
    mx_buf raw = {0};
    mx_tool_calls ours = {.n = 0};
    bool ok = c->env->said(c->env->said_arg, nonce, &raw) &&
              mx_tool_calls_read(&ours, mx_buf_view(&raw)) && mx_str_eq(content, ours.content) &&
              mx_tool_calls_equal(&ours, nonce, calls);
    if (ok) {
        mx_chat_set(c, dict, "content", mx_chat_data(c, mx_buf_view(&raw)));
        c->n_replayed++;
    }
    mx_tool_calls_free(&ours);
    mx_buf_free(&raw);
    return ok;
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

static bool copy_text_field(mx_chat *c, size_t at, struct json_object *m, const char *name,
                            mx_value *dict)
{
    mx_str s = {0};
    if (mx_json_field(m, name) == NULL) {
        return true;
    }
    if (!mx_json_get_string(m, name, &s, c->p)) {
        snprintf(c->p->param, sizeof c->p->param, "messages[%zu].%s", at, name);
        return false;
    }
    mx_chat_set(c, dict, name, mx_chat_data(c, s));
    return true;
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
        bool is_ours = calls != NULL && reasoning->len == 0 &&
                       replay(c, mx_buf_view(text), calls, dict);
        if (calls != NULL && !is_ours && !add_tool_calls(c, at, calls, dict)) {
            return false;
        }
    }
    if (mx_str_eq(role, MX_STR("tool"))) {
        return copy_text_field(c, at, m, "tool_call_id", dict)
               && copy_text_field(c, at, m, "name", dict);
    }
    return true;
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
