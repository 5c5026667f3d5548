/* SPDX-License-Identifier: MIT
 *
 * Chat requests to prompt text: the messages (api_chat_messages.c) and whatever else a template may
 * ask for, rendered.
 *
 * To continue a final assistant message, a random mark is put behind its content, and the
 * rendered text is cut where the mark appears. That works with any template, because what follows
 * the content (the end of the turn) is then behind the cut, whatever it is.
 */
#include "api/api_chat_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <sys/random.h>

enum { MAX_MESSAGES = 100000 };
/* Memory of one rendering: a request of 64 MiB and its text several times over. */
static const size_t ARENA_BYTES = (size_t)1 << 30;

static bool is_assistant(struct json_object *m)
{
    struct json_object *role = json_object_is_type(m, json_type_object)
                                   ? mx_json_field(m, "role") : NULL;
    return role != NULL && json_object_is_type(role, json_type_string)
           && mx_str_eq(mx_json_text(role), MX_STR("assistant"));
}

/* Random, because anything that can be known can be sent: also in parts that only become the mark
 * when they are joined, or in a tool's description. */
bool mx_chat_choose_mark(mx_chat *c, char out[MX_CHAT_MARK_CAP])
{
    uint8_t random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        return mx_problem_set(c->p, 500, NULL, NULL, "the system gave no random number");
    }
    int n = snprintf(out, MX_CHAT_MARK_CAP, "mtplx-");
    for (size_t i = 0; i < sizeof random; i++) {
        n += snprintf(out + n, MX_CHAT_MARK_CAP - (size_t)n, "%02x", random[i]);
    }
    return true;
}

/* Decides whether the last message is continued, and whether a new one is opened. */
static bool read_ending(mx_chat *c, bool *opens_message)
{
    struct json_object *last = json_object_array_get_idx(c->messages, c->n_messages - 1);
    bool continue_asked = true, generation_asked = false;
    if (!mx_json_get_bool(c->body, "continue_final_message", &continue_asked, c->p)
        || !mx_json_get_bool(c->body, "add_generation_prompt", &generation_asked, c->p))
    {
        return false;
    }
    bool continue_given = mx_json_field(c->body, "continue_final_message") != NULL;
    bool generation_given = mx_json_field(c->body, "add_generation_prompt") != NULL;
    if (!is_assistant(last)) {
        if (continue_given && continue_asked) {
            return mx_problem_field(c->p, "continue_final_message",
                                    "'continue_final_message' needs a "
                                    "last message with the role assistant");
        }
        *opens_message = !generation_given || generation_asked;
        return true;
    }
    if (c->n_messages > 1
        && is_assistant(json_object_array_get_idx(c->messages, c->n_messages - 2)))
    {
        return mx_problem_field(c->p, "messages", "'messages' ends with two assistant messages: "
                                "join them, or put a user message between or behind them");
    }
    struct json_object *calls = mx_json_field(last, "tool_calls");
    bool has_calls = json_object_is_type(calls, json_type_array)
                     && json_object_array_length(calls) > 0;
    c->continues = continue_asked && !generation_asked && !has_calls;
    *opens_message = !c->continues;
    return true;
}

/* ---- tools and variables --------------------------------------------------------------------- */

struct json_object *mx_chat_tool_choice(struct json_object *body, const char **name)
{
    struct json_object *v = mx_json_field(body, "tool_choice");
    *name = v != NULL ? "tool_choice" : "function_call";
    return v != NULL ? v : mx_json_field(body, "function_call");
}

static bool read_tool_choice(mx_chat *c, bool has_tools)
{
    const char *name;
    struct json_object *v = mx_chat_tool_choice(c->body, &name);
    if (v == NULL) {
        return true;
    }
    if (json_object_is_type(v, json_type_string)) {
        mx_str s = mx_json_text(v);
        if (mx_str_eq(s, MX_STR("none")) || mx_str_eq(s, MX_STR("auto"))) {
            return true;
        }
        if (!mx_str_eq(s, MX_STR("required"))) {
            return mx_problem_field(c->p, name, "'%s' must be \"none\", \"auto\", \"required\" or an "
                                    "object", name);
        }
    } else if (!json_object_is_type(v, json_type_object)) {
        return mx_problem_field(c->p, name, "'%s' must be a string or an object, not %s", name,
                                mx_json_kind(v));
    }
    if (!has_tools) {
        return mx_problem_field(c->p, name, "'%s' asks for a call, but there are no 'tools'", name);
    }
    return mx_problem_set(c->p, 400, "unsupported_parameter", name,
                          "'%s' can be \"auto\" or \"none\": a call cannot be forced yet", name);
}

/* One tool of the list in the shape templates know; NULL with a problem set, or to be left out. */
static mx_value *build_tool(mx_chat *c, size_t at, struct json_object *tool, bool is_bare)
{
    const char *field = is_bare ? "functions" : "tools";
    if (!json_object_is_type(tool, json_type_object)) {
        mx_problem_field(c->p, field, "'%s[%zu]' must be an object, not %s", field, at,
                         mx_json_kind(tool));
        return NULL;
    }
    struct json_object *f = is_bare ? tool : mx_json_field(tool, "function");
    if (!is_bare) {
        struct json_object *type = mx_json_field(tool, "type");
        if (type != NULL && (!json_object_is_type(type, json_type_string)
                             || !mx_str_eq(mx_json_text(type), MX_STR("function"))))
        {
            return NULL; /* hosted tools mean nothing to a local model */
        }
    }
    struct json_object *name = json_object_is_type(f, json_type_object) ? mx_json_field(f, "name")
                                                                        : NULL;
    if (name == NULL || !json_object_is_type(name, json_type_string)) {
        mx_problem_field(c->p, field, "'%s[%zu].%sname' must be a string", field, at,
                         is_bare ? "" : "function.");
        return NULL;
    }
    struct json_object *parameters = mx_json_field(f, "parameters");
    if (parameters != NULL && !json_object_is_type(parameters, json_type_object)) {
        mx_problem_field(c->p, field, "'%s[%zu].%sparameters' must be an object, not %s", field, at,
                         is_bare ? "" : "function.", mx_json_kind(parameters));
        return NULL;
    }
    mx_value *function = mx_chat_value(c, f);
    if (parameters == NULL) {
        mx_value *schema = mx_value_dict(c->arena);
        mx_chat_set(c, schema, "type", mx_chat_data(c, MX_STR("object")));
        mx_chat_set(c, schema, "properties", mx_value_dict(c->arena));
        mx_chat_set(c, function, "parameters", schema);
    }
    mx_value *out = mx_value_dict(c->arena);
    mx_chat_set(c, out, "type", mx_chat_data(c, MX_STR("function")));
    mx_chat_set(c, out, "function", function);
    return out;
}

static bool add_tools(mx_chat *c, mx_value *context)
{
    struct json_object *tools = mx_json_field(c->body, "tools");
    bool is_bare = false;
    if (tools == NULL && (tools = mx_json_field(c->body, "functions")) != NULL) {
        is_bare = true;
    }
    if (tools != NULL && !json_object_is_type(tools, json_type_array)) {
        return mx_problem_field(c->p, is_bare ? "functions" : "tools",
                                "'%s' must be an array, not %s",
                                is_bare ? "functions" : "tools", mx_json_kind(tools));
    }
    size_t n = tools == NULL ? 0 : json_object_array_length(tools);
    mx_value *list = mx_value_list(c->arena);
    for (size_t i = 0; i < n; i++) {
        mx_value *tool = build_tool(c, i, json_object_array_get_idx(tools, i), is_bare);
        if (c->p->status != 0) {
            return false;
        }
        if (tool != NULL) {
            list = mx_value_list_add(c->arena, list, tool);
        }
    }
    bool has_tools = mx_value_count(list) > 0;
    if (has_tools) { /* no tools at all: the variable stays undefined, as templates expect */
        mx_chat_set(c, context, "tools", list);
    }
    return read_tool_choice(c, has_tools);
}

/* chat_template_kwargs, and the fields that clients use for the same purpose. */
static bool add_variables(mx_chat *c, mx_value *context)
{
    mx_str effort = {0};
    if (!mx_json_get_string(c->body, "reasoning_effort", &effort, c->p)) {
        return false;
    }
    if (effort.len > 0) {
        mx_chat_set(c, context, "reasoning_effort", mx_chat_data(c, effort));
        if (mx_str_eq(effort, MX_STR("none"))) {
            mx_chat_set(c, context, "enable_thinking", mx_value_bool(c->arena, false));
        }
    }
    bool thinking = false;
    if (mx_json_field(c->body, "enable_thinking") != NULL) {
        if (!mx_json_get_bool(c->body, "enable_thinking", &thinking, c->p)) {
            return false;
        }
        mx_chat_set(c, context, "enable_thinking", mx_value_bool(c->arena, thinking));
    }
    struct json_object *kwargs = mx_json_field(c->body, "chat_template_kwargs");
    if (kwargs == NULL) {
        return true;
    }
    if (!json_object_is_type(kwargs, json_type_object)) {
        return mx_problem_field(c->p, "chat_template_kwargs", "'chat_template_kwargs' must be an "
                                "object, not %s", mx_json_kind(kwargs));
    }
    static const char *const ours[] = {"messages", "tools", "add_generation_prompt", "bos_token",
                                       "eos_token"};
    json_object_object_foreach(kwargs, key, item) {
        for (size_t i = 0; i < MX_COUNT(ours); i++) {
            if (strcmp(key, ours[i]) == 0) {
                return mx_problem_field(c->p, "chat_template_kwargs",
                                        "'chat_template_kwargs.%s' is set by the server; use the "
                                        "field of the request", key);
            }
        }
        mx_chat_set(c, context, key, mx_chat_value(c, item));
    }
    return true;
}

/* ---- rendering ------------------------------------------------------------------------------- */

static bool cut_at_mark(mx_chat *c, mx_rendered *out)
{
    size_t n_mark = strlen(c->mark);
    char *at = NULL;
    if (out->text.len >= n_mark) {
        at = memmem(out->text.ptr, out->text.len, c->mark, n_mark);
    }
    if (at == NULL) {
        return mx_problem_field(c->p, "messages", "'messages' ends with one from the assistant "
                                "that the model's chat template does not render, so it cannot be "
                                "continued: end with a user message");
    }
    size_t cut = (size_t)(at - out->text.ptr);
    out->text.len = cut;
    *at = '\0';
    while (out->n_markup > 0 && out->markup[out->n_markup - 1].begin >= cut) {
        out->n_markup--;
    }
    if (out->n_markup > 0 && out->markup[out->n_markup - 1].end > cut) {
        out->markup[out->n_markup - 1].end = cut;
    }
    return true;
}

static bool render(mx_chat *c, const mx_value *context, mx_rendered *out)
{
    mx_errbuf eb = {0};
    mx_render_limits limits = {.max_output_bytes = c->env->max_text_bytes};
    mx_err e = mx_template_render(c->env->template, c->arena, context, c->env->now_s, &limits, out,
                                  &eb);
    switch (e) {
    case MX_OK:
        break;
    case MX_E_NOMEM:
        return mx_problem_set(c->p, 500, NULL, NULL, "out of memory while rendering the prompt");
    case MX_E_LIMIT:
        return mx_problem_field(c->p, "messages", "rendering the prompt exceeded a limit: %s",
                                eb.text);
    default:
        return mx_problem_field(c->p, "messages", out->is_template_error
                                ? "the model's chat template refuses these messages: %s"
                                : "the model's chat template fails on these messages: %s", eb.text);
    }
    if (out->text.failed) {
        return mx_problem_set(c->p, 500, NULL, NULL, "out of memory while rendering the prompt");
    }
    if (!mx_chat_put_said(c, out)) {
        return mx_problem_set(c->p, 500, NULL, NULL, "the calls of an answer found no place in the "
                              "prompt, or no memory");
    }
    return !c->continues || cut_at_mark(c, out);
}

static bool read_messages(mx_chat *c)
{
    struct json_object *v = mx_json_field(c->body, "messages");
    if (v == NULL) {
        return mx_problem_field(c->p, "messages", "'messages' is missing: send an array such as "
                                "[{\"role\": \"user\", \"content\": \"Hello\"}]");
    }
    if (!json_object_is_type(v, json_type_array)) {
        return mx_problem_field(c->p, "messages", "'messages' must be an array, not %s",
                                mx_json_kind(v));
    }
    c->messages = v;
    c->n_messages = json_object_array_length(v);
    if (c->n_messages == 0) {
        return mx_problem_field(c->p, "messages", "'messages' is empty: it needs at least one "
                                "message");
    }
    if (c->n_messages > MAX_MESSAGES) {
        return mx_problem_field(c->p, "messages", "'messages' has %zu entries; at most %d are "
                                "possible",
                                c->n_messages, MAX_MESSAGES);
    }
    return true;
}

static void add_special_texts(mx_chat *c, mx_value *context)
{
    if (c->env->bos_text.len > 0) {
        mx_chat_set(c, context, "bos_token", mx_value_string(c->arena, c->env->bos_text, true));
    }
    if (c->env->eos_text.len > 0) {
        mx_chat_set(c, context, "eos_token", mx_value_string(c->arena, c->env->eos_text, true));
    }
}

static bool fill_context(mx_chat *c, mx_value *context)
{
    bool opens_message = true;
    if (!read_messages(c) || !read_ending(c, &opens_message)) {
        return false;
    }
    if (c->continues && !mx_chat_choose_mark(c, c->mark)) {
        return false;
    }
    mx_value *messages = mx_chat_build_messages(c);
    if (c->p->status != 0) {
        return false;
    }
    mx_chat_set(c, context, "messages", messages);
    mx_chat_set(c, context, "add_generation_prompt", mx_value_bool(c->arena, opens_message));
    add_special_texts(c, context);
    if (!add_tools(c, context) || !add_variables(c, context)) {
        return false;
    }
    /* The builders pass a failure on; one more value tells whether the arena is exhausted. */
    if (messages == NULL || mx_arena_alloc(c->arena, 1) == NULL) {
        return mx_problem_set(c->p, 500, NULL, NULL, "out of memory");
    }
    return true;
}

/* The conversation with its answer, and a message of the user whose content is the mark. */
static bool fill_next_context(mx_chat *c, mx_str answer, mx_value *context)
{
    bool opens_message = true;
    if (!read_messages(c) || !read_ending(c, &opens_message) || c->continues || !opens_message ||
        !mx_chat_choose_mark(c, c->mark))
    {
        return false;
    }
    mx_value *messages = mx_chat_build_messages(c);
    const struct { const char *role; mx_str content; } more[] = {
        {"assistant", answer}, {"user", mx_str_of(c->mark)},
    };
    for (size_t i = 0; i < MX_COUNT(more) && messages != NULL; i++) {
        mx_value *m = mx_value_dict(c->arena);
        mx_chat_set(c, m, "role", mx_chat_data(c, mx_str_of(more[i].role)));
        mx_chat_set(c, m, "content", mx_chat_data(c, more[i].content));
        messages = mx_value_list_add(c->arena, messages, m);
    }
    if (c->p->status != 0 || messages == NULL) {
        return false;
    }
    mx_chat_set(c, context, "messages", messages);
    mx_chat_set(c, context, "add_generation_prompt", mx_value_bool(c->arena, true));
    add_special_texts(c, context);
    c->continues = true; /* render cuts the text at the mark */
    return add_tools(c, context) && add_variables(c, context);
}

/* System messages at the beginning, and a message of a user who is somebody else: many templates
 * refuse to render without any. */
static bool fill_stem_context(mx_chat *c, mx_value *context)
{
    if (!read_messages(c)) {
        return false;
    }
    size_t n = 0;
    mx_str role;
    for (; n < c->n_messages; n++) {
        struct json_object *m = json_object_array_get_idx(c->messages, n);
        if (!json_object_is_type(m, json_type_object) || !mx_chat_read_role(c, n, m, &role)
            || !mx_str_eq(role, MX_STR("system")))
        {
            break;
        }
    }
    c->n_messages = n;
    mx_value *messages = mx_chat_build_messages(c);
    mx_value *user = mx_value_dict(c->arena);
    mx_chat_set(c, user, "role", mx_chat_data(c, MX_STR("user")));
    mx_chat_set(c, user, "content", mx_chat_data(c, MX_STR(".")));
    messages = messages != NULL ? mx_value_list_add(c->arena, messages, user) : NULL;
    if (c->p->status != 0 || messages == NULL) {
        return false;
    }
    mx_chat_set(c, context, "messages", messages);
    mx_chat_set(c, context, "add_generation_prompt", mx_value_bool(c->arena, true));
    add_special_texts(c, context);
    return add_tools(c, context) && add_variables(c, context);
}

/* What both texts begin with, cut back to the end of markup: what the two users say may begin
 * alike. */
static size_t common_stem(const mx_rendered *a, const mx_rendered *b)
{
    size_t n = mx_min_size(a->text.len, b->text.len), i = 0, end = 0;
    while (i < n && a->text.ptr[i] == b->text.ptr[i]) {
        i++;
    }
    for (size_t k = 0; k < a->n_markup && a->markup[k].begin < i; k++) {
        end = mx_min_size(a->markup[k].end, i);
    }
    return end;
}

size_t mx_chat_stem(const mx_chat_env *env, struct json_object *body, const mx_rendered *rendered)
{
    mx_problem p = {0};
    mx_rendered stem = {0};
    mx_chat c = {.env = env, .p = &p, .body = body, .arena = mx_arena_create(ARENA_BYTES)};
    mx_value *context = c.arena == NULL ? NULL : mx_value_dict(c.arena);
    size_t n = 0;
    if (context != NULL && fill_stem_context(&c, context) && render(&c, context, &stem)) {
        n = common_stem(rendered, &stem);
    }
    mx_rendered_free(&stem);
    mx_arena_destroy(c.arena);
    return n;
}

bool mx_chat_render_next(const mx_chat_env *env, struct json_object *body, mx_str answer,
                         mx_rendered *out, mx_problem *p)
{
    *out = (mx_rendered){0};
    mx_chat c = {.env = env, .p = p, .body = body, .arena = mx_arena_create(ARENA_BYTES)};
    mx_value *context = c.arena == NULL ? NULL : mx_value_dict(c.arena);
    bool ok = env->template != NULL && context != NULL &&
              fill_next_context(&c, answer, context) && render(&c, context, out);
    mx_chat_free_said(&c);
    mx_arena_destroy(c.arena);
    return ok;
}

/* Is prompt + answer what the next prompt begins with? */
static bool repeats(const mx_chat_env *env, struct json_object *body, mx_str prompt, mx_str answer)
{
    mx_problem p = {0};
    mx_rendered next;
    bool ok = mx_chat_render_next(env, body, answer, &next, &p);
    ok = ok && next.text.len >= prompt.len + answer.len &&
         memcmp(next.text.ptr, prompt.ptr, prompt.len) == 0 &&
         memcmp(next.text.ptr + prompt.len, answer.ptr, answer.len) == 0;
    mx_rendered_free(&next);
    return ok;
}

static bool rewrites_after(const mx_chat_env *env, const char *question)
{
    static const char *const answers[] = {"b", "<think>\nb\n</think>\n\nc", "b\n</think>\n\nc"};
    struct json_object *body;
    if (mx_json_parse(&body, mx_str_of(question), NULL) != MX_OK) {
        return false;
    }
    mx_problem p = {0};
    mx_rendered prompt;
    bool is_rendered = mx_chat_render(env, body, &prompt, &p), rewrites = false;
    for (size_t i = 0; is_rendered && !rewrites && i < MX_COUNT(answers); i++) {
        rewrites = !repeats(env, body, mx_buf_view(&prompt.text), mx_str_of(answers[i]));
    }
    mx_rendered_free(&prompt);
    json_object_put(body);
    return rewrites;
}

bool mx_chat_rewrites_answers(const mx_chat_env *env)
{
    static const char user[] = "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    static const char tools[] = "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
                                "\"description\":\"g\",\"parameters\":{\"type\":\"object\","
                                "\"properties\":{}}}}],";
    static const char system[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
                                 "{\"role\":\"user\",\"content\":\"a\"}]}";
    char plain[128], with_tools[512];
    snprintf(plain, sizeof plain, "{%s", user);
    snprintf(with_tools, sizeof with_tools, "{%s%s", tools, user);
    return rewrites_after(env, plain) || rewrites_after(env, system) ||
           rewrites_after(env, with_tools);
}

bool mx_chat_render(const mx_chat_env *env, struct json_object *body, mx_rendered *out,
                    mx_problem *p)
{
    size_t n_replayed;
    return mx_chat_render_replayed(env, body, out, &n_replayed, p);
}

bool mx_chat_render_replayed(const mx_chat_env *env, struct json_object *body, mx_rendered *out,
                             size_t *n_replayed, mx_problem *p)
{
    *out = (mx_rendered){0};
    *n_replayed = 0;
    if (env->template == NULL) {
        return mx_problem_set(p, 400, "no_chat_template", "messages",
                              "the model file has no usable chat template, so messages cannot "
                                  "become a prompt: use /v1/completions with the prompt text");
    }
    mx_chat c = {.env = env, .p = p, .body = body, .arena = mx_arena_create(ARENA_BYTES)};
    mx_value *context = c.arena == NULL ? NULL : mx_value_dict(c.arena);
    bool ok = context != NULL ? fill_context(&c, context) && render(&c, context, out)
                              : mx_problem_set(p, 500, NULL, NULL, "out of memory");
    *n_replayed = c.n_replayed;
    mx_chat_free_said(&c);
    mx_arena_destroy(c.arena);
    return ok;
}
