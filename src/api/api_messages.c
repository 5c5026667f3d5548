/* SPDX-License-Identifier: MIT
 *
 * Messages requests to chat requests. The two differ in where things stand (the system prompt is a
 * field, calls and their results are blocks of content), not in what they say, so the one is
 * written as the other, as JSON text that is parsed again: everything behind it, from the checks
 * of parameters to the replay of calls, exists once.
 *
 * What the chat request would refuse under a name that the client did not write (`stop`,
 * `messages[7]`) is checked here first.
 */
#include "api/api_messages.h"

#include "api/api_chat.h"
#include "api/api_params.h"
#include "http/http.h"

#include <stdio.h>

enum { DEFAULT_MAX_TOKENS = 4096, WHERE_CAP = 96 };

typedef enum last_message { LAST_NONE, LAST_CLOSED, LAST_OPEN_USER } last_message;

typedef struct mapping {
    mx_buf *b;
    mx_problem *p;
    last_message last;   /* what was written last; a user's message stays open for more parts */
} mapping;

static void json_str(mx_buf *b, mx_str s)
{
    mx_http_json_string(b, s.ptr == NULL ? "" : s.ptr, s.len);
}

/* A value as it came: order of keys and numbers are the client's. */
static void json_value(mx_buf *b, struct json_object *v)
{
    size_t n = 0;
    const char *text = json_object_to_json_string_length(
        v, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    if (text == NULL) {
        b->failed = true;
        return;
    }
    mx_buf_append(b, text, n);
}

static bool is_string(struct json_object *v)
{
    return v != NULL && json_object_is_type(v, json_type_string);
}

static struct json_object *string_field(struct json_object *o, const char *name)
{
    struct json_object *v = mx_json_field(o, name);
    return is_string(v) ? v : NULL;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A text to be read, or nothing; false: refused. *text stays NULL for a block that carries none. own:
 * which of calls and their results may stand here, "" = neither. */
static bool read_block(mapping *m, struct json_object *block, const char *where, const char *own,
                       mx_str *type, struct json_object **text)
{
    *text = NULL;
    if (!json_object_is_type(block, json_type_object)) {
        return mx_problem_field(m->p, where, "'%s' must be an object with a \"type\", not %s",
                                where, mx_json_kind(block));
    }
    struct json_object *t = string_field(block, "type");
    if (t == NULL) {
        return mx_problem_field(m->p, where, "'%s.type' must be a string such as \"text\"", where);
    }
    *type = mx_json_text(t);
    if (mx_str_eq(*type, MX_STR("text"))) {
        *text = string_field(block, "text");
        return *text != NULL ||
               mx_problem_field(m->p, where, "'%s.text' must be a string", where);
    }
    struct json_object *source = mx_json_field(block, "source");
    bool is_document = mx_str_eq(*type, MX_STR("document"));
    if (is_document && json_object_is_type(source, json_type_object)) {
        struct json_object *kind = string_field(source, "type");
        if (kind != NULL && mx_str_eq(mx_json_text(kind), MX_STR("text"))) {
            *text = string_field(source, "data");
        }
    }
    if (*text == NULL && (is_document || mx_chat_is_media(*type))) {
        return mx_problem_set(m->p, 400, "unsupported_content", where, "'%s' has the type \"%.*s\": "
                              "this model reads text only", where, (int)type->len, type->ptr);
    }
    /* What the model is to read must not be left out in silence; other blocks (of the reasoning or
     * the tools of Anthropic's own servers, say) are history without a text, and are. */
    bool is_call = mx_str_eq(*type, MX_STR("tool_use"));
    if ((is_call || mx_str_eq(*type, MX_STR("tool_result"))) && !mx_str_eq(*type, mx_str_of(own))) {
        return mx_problem_field(m->p, where, "'%s' has the type \"%.*s\", which belongs directly into "
                                "the content of a message from the %s", where, (int)type->len,
                                type->ptr, is_call ? "assistant" : "user");
    }
    if (mx_str_eq(*type, MX_STR("search_result")) || mx_str_eq(*type, MX_STR("container_upload"))) {
        return mx_problem_set(m->p, 400, "unsupported_content", where,
                              "'%s' has the type \"%.*s\", which is not read here: send what it "
                              "says as a block of text", where, (int)type->len, type->ptr);
    }
    return true;
}

/* The content of a message: a string counts as one block of text. */
static bool check_content(mapping *m, struct json_object *content, const char *where)
{
    if (content == NULL || is_string(content) || json_object_is_type(content, json_type_array)) {
        return true;
    }
    return mx_problem_field(m->p, where, "'%s' must be a string or an array of blocks, not %s",
                            where, mx_json_kind(content));
}

static size_t n_blocks(struct json_object *content)
{
    return json_object_is_type(content, json_type_array) ? json_object_array_length(content) : 0;
}

static bool is_block(struct json_object *block, const char *type)
{
    struct json_object *t = json_object_is_type(block, json_type_object)
                                ? string_field(block, "type") : NULL;
    return t != NULL && mx_str_eq(mx_json_text(t), mx_str_of(type));
}

/* ---- messages -------------------------------------------------------------------------------- */

static void close_user(mapping *m)
{
    if (m->last == LAST_OPEN_USER) {
        mx_buf_str(m->b, "]}");
        m->last = LAST_CLOSED;
    }
}

static void begin_message(mapping *m, const char *role)
{
    close_user(m);
    mx_buf_printf(m->b, "%s{\"role\":\"%s\",\"content\":", m->last == LAST_NONE ? "" : ",", role);
    m->last = LAST_CLOSED;
}

static void text_part(mapping *m, mx_str text)
{
    mx_buf_str(m->b, "{\"type\":\"text\",\"text\":");
    json_str(m->b, text);
    mx_buf_str(m->b, "}");
}

/* What a user says next; consecutive messages are one, as they are at Anthropic: many templates
 * refuse two in a row. is_first: the first part of a message of the client. */
static void user_part(mapping *m, bool is_first, mx_str text)
{
    if (m->last != LAST_OPEN_USER) {
        begin_message(m, "user");
        mx_buf_str(m->b, "[");
        m->last = LAST_OPEN_USER;
    } else {
        mx_buf_str(m->b, ",");
        if (is_first) {
            text_part(m, MX_STR("\n\n"));
            mx_buf_str(m->b, ",");
        }
    }
    text_part(m, text);
}

static bool tool_result(mapping *m, struct json_object *block, const char *where)
{
    struct json_object *id = string_field(block, "tool_use_id");
    struct json_object *content = mx_json_field(block, "content");
    struct json_object *error = mx_json_field(block, "is_error");
    bool is_error = json_object_get_boolean(error), ok = true;
    if (id == NULL) {
        return mx_problem_field(m->p, where, "'%s.tool_use_id' must be a string", where);
    }
    if (error != NULL && !json_object_is_type(error, json_type_boolean)) {
        return mx_problem_field(m->p, where, "'%s.is_error' must be true or false, not %s", where,
                                mx_json_kind(error));
    }
    char at[WHERE_CAP];
    snprintf(at, sizeof at, "%.60s.content", where);
    if (!check_content(m, content, at)) {
        return false;
    }
    mx_buf text = {0};
    if (is_string(content)) {
        mx_buf_append(&text, mx_json_text(content).ptr, mx_json_text(content).len);
    }
    for (size_t i = 0, n = n_blocks(content); ok && i < n; i++) {
        char part[WHERE_CAP];
        snprintf(part, sizeof part, "%.60s.content[%zu]", where, i);
        mx_str type;
        struct json_object *t;
        ok = read_block(m, json_object_array_get_idx(content, i), part, "", &type, &t);
        if (ok && t != NULL) {
            mx_buf_append(&text, mx_json_text(t).ptr, mx_json_text(t).len);
        }
    }
    if (ok) {
        static const char mark[] = "Error";
        size_t n_mark = strlen(mark);
        bool is_marked = text.len >= n_mark && memcmp(text.ptr, mark, n_mark) == 0;
        begin_message(m, "tool");
        if (is_error && !is_marked) { /* templates have no other place for it */
            mx_buf line = {0};
            mx_buf_str(&line, "Error: ");
            mx_buf_append(&line, text.ptr, text.len);
            json_str(m->b, mx_buf_view(&line));
            m->b->failed = m->b->failed || line.failed;
            mx_buf_free(&line);
        } else {
            json_str(m->b, mx_buf_view(&text));
        }
        mx_buf_str(m->b, ",\"tool_call_id\":");
        json_str(m->b, mx_json_text(id));
        mx_buf_str(m->b, "}");
    }
    m->b->failed = m->b->failed || text.failed;
    mx_buf_free(&text);
    return ok;
}

/* Results first, each a message of its own, then what the user says. */
static bool user_message(mapping *m, struct json_object *content, const char *where)
{
    char part[WHERE_CAP];
    bool is_first = true, has_results = false;
    if (is_string(content)) {
        user_part(m, true, mx_json_text(content));
        return true;
    }
    size_t n = n_blocks(content);
    for (size_t i = 0; i < n; i++) {
        struct json_object *block = json_object_array_get_idx(content, i);
        if (is_block(block, "tool_result")) {
            snprintf(part, sizeof part, "%.60s[%zu]", where, i);
            has_results = true;
            if (!tool_result(m, block, part)) {
                return false;
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        mx_str type;
        struct json_object *text;
        snprintf(part, sizeof part, "%.60s[%zu]", where, i);
        if (!read_block(m, json_object_array_get_idx(content, i), part, "tool_result", &type, &text)) {
            return false;
        }
        if (text != NULL) {
            user_part(m, is_first, mx_json_text(text));
            is_first = false;
        }
    }
    if (is_first && !has_results) {
        user_part(m, true, MX_STR(""));
    }
    return true;
}

static bool tool_use(mapping *m, struct json_object *block, const char *where, bool is_first)
{
    struct json_object *id = string_field(block, "id"), *name = string_field(block, "name");
    struct json_object *input = mx_json_field(block, "input");
    if (id == NULL || name == NULL) {
        return mx_problem_field(m->p, where, "'%s.%s' must be a string", where,
                                id == NULL ? "id" : "name");
    }
    if (input != NULL && !json_object_is_type(input, json_type_object)) {
        return mx_problem_field(m->p, where, "'%s.input' must be an object, not %s", where,
                                mx_json_kind(input));
    }
    mx_buf_str(m->b, is_first ? ",\"tool_calls\":[{\"id\":" : ",{\"id\":");
    json_str(m->b, mx_json_text(id));
    mx_buf_str(m->b, ",\"type\":\"function\",\"function\":{\"name\":");
    json_str(m->b, mx_json_text(name));
    mx_buf_str(m->b, ",\"arguments\":");
    if (input != NULL) {
        json_value(m->b, input);
    } else {
        mx_buf_str(m->b, "{}");
    }
    mx_buf_str(m->b, "}}");
    return true;
}

static bool assistant_message(mapping *m, struct json_object *content, const char *where)
{
    begin_message(m, "assistant");
    if (!json_object_is_type(content, json_type_array)) {
        json_str(m->b, is_string(content) ? mx_json_text(content) : MX_STR(""));
        mx_buf_str(m->b, "}");
        return true;
    }
    char part[WHERE_CAP];
    size_t n = n_blocks(content), n_parts = 0, n_calls = 0;
    mx_buf_str(m->b, "[");
    for (size_t i = 0; i < n; i++) {
        struct json_object *block = json_object_array_get_idx(content, i), *text;
        mx_str type;
        snprintf(part, sizeof part, "%.60s[%zu]", where, i);
        if (!read_block(m, block, part, "tool_use", &type, &text)) {
            return false;
        }
        struct json_object *thinking = NULL;
        if (mx_str_eq(type, MX_STR("thinking")) &&
            (thinking = string_field(block, "thinking")) == NULL)
        {
            return mx_problem_field(m->p, part, "'%s.thinking' must be a string", part);
        }
        if (text == NULL && thinking == NULL) {
            continue;
        }
        mx_buf_str(m->b, n_parts++ > 0 ? "," : "");
        if (text != NULL) {
            text_part(m, mx_json_text(text));
        } else {
            mx_buf_str(m->b, "{\"type\":\"thinking\",\"thinking\":");
            json_str(m->b, mx_json_text(thinking));
            mx_buf_str(m->b, "}");
        }
    }
    mx_buf_str(m->b, "]");
    for (size_t i = 0; i < n; i++) {
        struct json_object *block = json_object_array_get_idx(content, i);
        snprintf(part, sizeof part, "%.60s[%zu]", where, i);
        if (is_block(block, "tool_use") && !tool_use(m, block, part, n_calls++ == 0)) {
            return false;
        }
    }
    mx_buf_str(m->b, n_calls > 0 ? "]}" : "}");
    return true;
}

/* ---- the system prompt ----------------------------------------------------------------------- */

/* A line that some clients put at the beginning of the system prompt for the server's accounting;
 * part of it changes with each request, so nothing behind it would ever be found in the cache. */
static mx_str without_billing(mx_str text)
{
    static const char prefix[] = "x-anthropic-billing-header:";
    size_t n = strlen(prefix);
    if (text.len < n || memcmp(text.ptr, prefix, n) != 0) {
        return text;
    }
    const char *end = memchr(text.ptr, '\n', text.len);
    size_t skip = end == NULL ? text.len : (size_t)(end - text.ptr) + 1;
    return (mx_str){text.ptr + skip, text.len - skip};
}

/* The texts of a system prompt, a blank line between two blocks. */
static bool system_text(mapping *m, struct json_object *v, const char *where, mx_buf *out)
{
    if (!check_content(m, v, where)) {
        return false;
    }
    if (is_string(v)) {
        mx_str text = without_billing(mx_json_text(v));
        mx_buf_append(out, text.ptr, text.len);
    }
    for (size_t i = 0, n = n_blocks(v); i < n; i++) {
        char part[WHERE_CAP];
        mx_str type;
        struct json_object *t;
        snprintf(part, sizeof part, "%.60s[%zu]", where, i);
        if (!read_block(m, json_object_array_get_idx(v, i), part, "", &type, &t)) {
            return false;
        }
        mx_str text = t != NULL ? without_billing(mx_json_text(t)) : MX_STR("");
        if (text.len > 0) {
            mx_buf_str(out, out->len > 0 ? "\n\n" : "");
            mx_buf_append(out, text.ptr, text.len);
        }
    }
    m->b->failed = m->b->failed || out->failed;
    return true;
}

/* In the middle of a conversation most templates refuse such a message or move it to the top, which
 * would change the beginning of every prompt: so it is said by the user, marked. */
static bool system_message(mapping *m, struct json_object *content, const char *where)
{
    mx_buf text = {0};
    mx_buf_str(&text, "<system>\n");
    bool ok = system_text(m, content, where, &text);
    mx_buf_str(&text, "\n</system>");
    if (ok) {
        user_part(m, true, mx_buf_view(&text));
    }
    mx_buf_free(&text);
    return ok;
}

static bool map_message(mapping *m, struct json_object *messages, size_t at)
{
    char where[WHERE_CAP];
    struct json_object *v = json_object_array_get_idx(messages, at);
    snprintf(where, sizeof where, "messages[%zu]", at);
    if (!json_object_is_type(v, json_type_object)) {
        return mx_problem_field(m->p, where, "'%s' must be an object with \"role\" and "
                                "\"content\", not %s", where, mx_json_kind(v));
    }
    struct json_object *role = string_field(v, "role"), *content = mx_json_field(v, "content");
    mx_str r = role != NULL ? mx_json_text(role) : MX_STR("");
    snprintf(where, sizeof where, "messages[%zu].content", at);
    if (!check_content(m, content, where)) {
        return false;
    }
    if (mx_str_eq(r, MX_STR("user"))) {
        return user_message(m, content, where);
    }
    if (mx_str_eq(r, MX_STR("assistant"))) {
        return assistant_message(m, content, where);
    }
    if (mx_str_eq(r, MX_STR("system"))) {
        return system_message(m, content, where);
    }
    snprintf(where, sizeof where, "messages[%zu].role", at);
    return mx_problem_field(m->p, where, "'%s' must be user, assistant or system", where);
}

static bool map_messages(mapping *m, struct json_object *body)
{
    struct json_object *messages = mx_json_field(body, "messages");
    if (messages == NULL || !json_object_is_type(messages, json_type_array) ||
        json_object_array_length(messages) == 0)
    {
        return mx_problem_field(m->p, "messages", "'messages' must be an array of at least one "
                                "message, such as [{\"role\": \"user\", \"content\": \"Hello\"}]");
    }
    mx_buf system = {0};
    bool ok = system_text(m, mx_json_field(body, "system"), "system", &system);
    mx_buf_str(m->b, "\"messages\":[");
    if (ok && system.len > 0) {
        begin_message(m, "system");
        json_str(m->b, mx_buf_view(&system));
        mx_buf_str(m->b, "}");
    }
    mx_buf_free(&system);
    for (size_t i = 0, n = json_object_array_length(messages); ok && i < n; i++) {
        ok = map_message(m, messages, i);
    }
    close_user(m);
    mx_buf_str(m->b, "]");
    return ok;
}

/* ---- tools ----------------------------------------------------------------------------------- */

static bool map_tool(mapping *m, struct json_object *tool, size_t at, bool is_first)
{
    char where[WHERE_CAP];
    snprintf(where, sizeof where, "tools[%zu]", at);
    struct json_object *name = string_field(tool, "name");
    struct json_object *schema = mx_json_field(tool, "input_schema");
    struct json_object *description = mx_json_field(tool, "description");
    if (mx_json_field(tool, "function") != NULL) {
        return mx_problem_field(m->p, where, "'%s' is one of a chat completion: here \"name\", "
                                "\"description\" and \"input_schema\" stand in the tool itself", where);
    }
    if (name == NULL) {
        return mx_problem_field(m->p, where, "'%s.name' must be a string", where);
    }
    if (description != NULL && !is_string(description)) {
        return mx_problem_field(m->p, where, "'%s.description' must be a string, not %s", where,
                                mx_json_kind(description));
    }
    if (schema != NULL && !json_object_is_type(schema, json_type_object)) {
        return mx_problem_field(m->p, where, "'%s.input_schema' must be an object, not %s", where,
                                mx_json_kind(schema));
    }
    mx_buf_str(m->b, is_first ? "" : ",");
    mx_buf_str(m->b, "{\"type\":\"function\",\"function\":{\"name\":");
    json_str(m->b, mx_json_text(name));
    if (description != NULL) {
        mx_buf_str(m->b, ",\"description\":");
        json_str(m->b, mx_json_text(description));
    }
    if (schema != NULL) {
        mx_buf_str(m->b, ",\"parameters\":");
        json_value(m->b, schema);
    }
    mx_buf_str(m->b, "}}");
    return true;
}

/* Tools that Anthropic's servers run or know by heart (web_search_..., bash_...) have no schema and
 * mean nothing here. */
static bool is_hosted(struct json_object *tool)
{
    struct json_object *type = string_field(tool, "type");
    return type != NULL && !mx_str_eq(mx_json_text(type), MX_STR("custom")) &&
           mx_json_field(tool, "input_schema") == NULL && mx_json_field(tool, "function") == NULL;
}

static bool map_tool_choice(mapping *m, struct json_object *body, bool has_tools)
{
    struct json_object *v = mx_json_field(body, "tool_choice");
    if (v == NULL) {
        return true;
    }
    struct json_object *type = json_object_is_type(v, json_type_object) ? string_field(v, "type")
                                                                        : NULL;
    static const char *const known[] = {"auto", "none", "any", "tool"};
    size_t i = 0;
    while (type != NULL && i < MX_COUNT(known) &&
           !mx_str_eq(mx_json_text(type), mx_str_of(known[i])))
    {
        i++;
    }
    if (type == NULL || i == MX_COUNT(known)) {
        return mx_problem_field(m->p, "tool_choice", "'tool_choice' must be an object whose "
                                "\"type\" is auto, none, any or tool");
    }
    if (i >= 2) {
        return has_tools
            ? mx_problem_set(m->p, 400, "unsupported_parameter", "tool_choice", "'tool_choice' can "
                             "have the type \"auto\" or \"none\": a call cannot be forced yet")
            : mx_problem_field(m->p, "tool_choice", "'tool_choice' asks for a call, but there are "
                               "no 'tools'");
    }
    bool is_single = false;
    if (!mx_json_get_bool(v, "tool_choice.disable_parallel_tool_use", &is_single, m->p)) {
        return false;
    }
    mx_buf_printf(m->b, ",\"tool_choice\":\"%s\"%s", known[i],
                  is_single ? ",\"parallel_tool_calls\":false" : "");
    return true;
}

static bool map_tools(mapping *m, struct json_object *body)
{
    struct json_object *tools = mx_json_field(body, "tools");
    if (tools != NULL && !json_object_is_type(tools, json_type_array)) {
        return mx_problem_field(m->p, "tools", "'tools' must be an array, not %s",
                                mx_json_kind(tools));
    }
    size_t n = tools == NULL ? 0 : json_object_array_length(tools), n_written = 0;
    mx_buf_str(m->b, ",\"tools\":[");
    for (size_t i = 0; i < n; i++) {
        struct json_object *tool = json_object_array_get_idx(tools, i);
        if (!json_object_is_type(tool, json_type_object)) {
            return mx_problem_field(m->p, "tools", "'tools[%zu]' must be an object, not %s", i,
                                    mx_json_kind(tool));
        }
        if (!is_hosted(tool) && !map_tool(m, tool, i, n_written++ == 0)) {
            return false;
        }
    }
    mx_buf_str(m->b, "]");
    return map_tool_choice(m, body, n_written > 0);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static bool map_stops(mapping *m, struct json_object *body)
{
    struct json_object *v = mx_json_field(body, "stop_sequences");
    if (v == NULL) {
        return true;
    }
    bool ok = json_object_is_type(v, json_type_array);
    size_t n = ok ? json_object_array_length(v) : 0;
    for (size_t i = 0; ok && i < n; i++) {
        ok = is_string(json_object_array_get_idx(v, i));
    }
    if (!ok) {
        return mx_problem_field(m->p, "stop_sequences", "'stop_sequences' must be an array of "
                                "strings");
    }
    if (n > MX_API_MAX_STOPS) {
        return mx_problem_field(m->p, "stop_sequences", "'stop_sequences' has %zu entries; at most %d "
                                "are possible", n, MX_API_MAX_STOPS);
    }
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes = mx_json_text(json_object_array_get_idx(v, i)).len;
        if (n_bytes > MX_API_MAX_STOP_BYTES) {
            return mx_problem_field(m->p, "stop_sequences", "'stop_sequences[%zu]' has %zu bytes; at "
                                    "most %d are possible", i, n_bytes, MX_API_MAX_STOP_BYTES);
        }
    }
    mx_buf_str(m->b, ",\"stop\":");
    json_value(m->b, v);
    return true;
}

/* Thinking on or off and how much of it: whatever the template makes of that. */
static bool map_thinking(mapping *m, struct json_object *body)
{
    struct json_object *v = mx_json_field(body, "thinking");
    struct json_object *type = json_object_is_type(v, json_type_object) ? string_field(v, "type")
                                                                        : NULL;
    if (v != NULL && type == NULL) {
        return mx_problem_field(m->p, "thinking", "'thinking' must be an object with a \"type\"");
    }
    if (type != NULL && mx_json_field(body, "enable_thinking") == NULL) {
        bool is_off = mx_str_eq(mx_json_text(type), MX_STR("disabled"));
        mx_buf_printf(m->b, ",\"enable_thinking\":%s", is_off ? "false" : "true");
    }
    if (mx_json_field(body, "output_format") != NULL) { /* as output_config.format was called */
        return mx_problem_set(m->p, 400, "unsupported_parameter", "output_format",
                              "'output_format' is not supported: output cannot be constrained yet; "
                              "ask for JSON in the prompt instead");
    }
    struct json_object *config = mx_json_field(body, "output_config");
    if (config == NULL) {
        return true;
    }
    if (!json_object_is_type(config, json_type_object)) {
        return mx_problem_field(m->p, "output_config", "'output_config' must be an object, not %s",
                                mx_json_kind(config));
    }
    if (mx_json_field(config, "format") != NULL) {
        return mx_problem_set(m->p, 400, "unsupported_parameter", "output_config", "'output_config."
                              "format' is not supported: output cannot be constrained yet; ask for "
                              "JSON in the prompt instead");
    }
    struct json_object *effort = mx_json_field(config, "effort");
    if (effort != NULL && !is_string(effort)) {
        return mx_problem_field(m->p, "output_config", "'output_config.effort' must be a string, not "
                                "%s", mx_json_kind(effort));
    }
    if (effort != NULL && mx_json_field(body, "reasoning_effort") == NULL) {
        mx_buf_str(m->b, ",\"reasoning_effort\":");
        json_str(m->b, mx_json_text(effort));
    }
    return true;
}

/* Fields that mean the same in both requests, and our own. */
static void copy_fields(mapping *m, struct json_object *body)
{
    static const char *const names[] = {
        "model", "max_tokens", "stream", "temperature", "top_p", "top_k", "min_p", "seed",
        "presence_penalty", "frequency_penalty", "repetition_penalty", "repeat_penalty",
        "repeat_last_n", "logit_bias", "ignore_eos", "chat_template_kwargs", "enable_thinking",
        "reasoning_effort", "cache", "prompt_cache_key",
    };
    for (size_t i = 0; i < MX_COUNT(names); i++) {
        struct json_object *v = mx_json_field(body, names[i]);
        if (v != NULL) {
            mx_buf_printf(m->b, ",\"%s\":", names[i]);
            json_value(m->b, v);
        }
    }
    if (mx_json_field(body, "max_tokens") == NULL) {
        mx_buf_printf(m->b, ",\"max_tokens\":%d", DEFAULT_MAX_TOKENS);
    }
}

static bool parse_again(mx_buf *b, struct json_object **out, mx_problem *p)
{
    mx_errbuf eb = {0};
    mx_err e = b->failed ? MX_E_NOMEM : mx_json_parse(out, mx_buf_view(b), &eb);
    switch (e) {
    case MX_OK: return true;
    case MX_E_LIMIT:
        return mx_problem_field(p, NULL, "the body exceeds a limit: %s (at most %d levels and %d "
                                "values, those of the chat request that it becomes)", eb.text,
                                MX_JSON_MAX_DEPTH, MX_JSON_MAX_VALUES);
    case MX_E_NOMEM: return mx_problem_set(p, 500, NULL, NULL, "out of memory");
    default:
        return mx_problem_set(p, 500, NULL, NULL, "the request could not be translated: %s",
                              eb.text);
    }
}

bool mx_messages_to_chat(struct json_object *body, struct json_object **out, mx_problem *p)
{
    mx_buf b = {0};
    mapping m = {.b = &b, .p = p};
    *out = NULL;
    mx_buf_str(&b, "{");
    bool ok = map_messages(&m, body) && map_tools(&m, body) && map_stops(&m, body) &&
              map_thinking(&m, body);
    if (ok) {
        copy_fields(&m, body);
        mx_buf_str(&b, "}");
        ok = parse_again(&b, out, p);
    }
    mx_buf_free(&b);
    return ok;
}

static bool has_own_blocks(struct json_object *message)
{
    static const char *const types[] = {"tool_use", "tool_result", "document", "search_result"};
    struct json_object *content = json_object_is_type(message, json_type_object)
                                      ? mx_json_field(message, "content") : NULL;
    for (size_t i = 0, n = n_blocks(content); i < n; i++) {
        for (size_t k = 0; k < MX_COUNT(types); k++) {
            if (is_block(json_object_array_get_idx(content, i), types[k])) {
                return true;
            }
        }
    }
    return false;
}

bool mx_messages_is_request(struct json_object *body)
{
    struct json_object *messages = mx_json_field(body, "messages");
    for (size_t i = 0; json_object_is_type(messages, json_type_array) &&
                       i < json_object_array_length(messages); i++)
    {
        if (has_own_blocks(json_object_array_get_idx(messages, i))) {
            return true;
        }
    }
    struct json_object *tools = mx_json_field(body, "tools");
    struct json_object *tool = json_object_is_type(tools, json_type_array)
                                   ? json_object_array_get_idx(tools, 0) : NULL;
    return mx_json_field(body, "system") != NULL || mx_json_field(body, "stop_sequences") != NULL ||
           (json_object_is_type(tool, json_type_object) &&
            mx_json_field(tool, "function") == NULL && string_field(tool, "name") != NULL);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *error_type(unsigned status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void mx_messages_error(mx_buf *b, const mx_problem *p, const char *request_id)
{
    char message[sizeof p->message + 32];
    bool is_too_long = p->code != NULL && strcmp(p->code, "context_length_exceeded") == 0;
    snprintf(message, sizeof message, "%s%s", /* clients look for these words */
             is_too_long ? "prompt is too long: " : "", p->message);
    mx_buf_printf(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                  error_type(p->status));
    mx_http_json_string(b, message, strlen(message));
    mx_buf_str(b, "},\"request_id\":");
    mx_http_json_string(b, request_id, strlen(request_id));
    mx_buf_str(b, "}");
}
