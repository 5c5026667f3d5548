/* SPDX-License-Identifier: MIT
 *
 * Calls of tools and their results as values of a template, and the replay of calls that this
 * server has given out: they stand in the prompt as they were sampled, whatever a client or the
 * template makes of them.
 *
 * Most templates write a message with the sampled text as its content as they write any answer.
 * Mistral's count messages without calls as turns, which have to alternate: so the message gets a
 * call with a random name there, and what the template wrote for it is replaced by what was
 * sampled (mx_chat_put_said).
 */
#include "api/api_chat_internal.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdio.h>

/* ---- ids ------------------------------------------------------------------------------------- */

enum { SHORT_ID = 9 };

static bool is_short_id(mx_str id)
{
    bool ok = id.len == SHORT_ID;
    for (size_t i = 0; ok && i < id.len; i++) {
        char c = id.ptr[i];
        ok = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    }
    return ok;
}

/* Mistral's templates refuse ids that are not nine letters and digits: others are made such, the
 * same ones each time. */
static mx_value *id_value(mx_chat *c, mx_str id)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if (c->env->tool_form != MX_TOOL_MISTRAL || is_short_id(id)) {
        return mx_chat_data(c, id);
    }
    mx_hash256 h = mx_sha256_of(id.ptr, id.len);
    char out[SHORT_ID];
    for (size_t i = 0; i < SHORT_ID; i++) {
        out[i] = letters[h.b[i] % (sizeof letters - 1)];
    }
    return mx_chat_data(c, (mx_str){out, SHORT_ID});
}

/* ---- calls ----------------------------------------------------------------------------------- */

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

/* What is called, by its name; NULL: that is no call. */
static struct json_object *function_of(struct json_object *call, mx_str *name)
{
    struct json_object *f = json_object_is_type(call, json_type_object)
                                ? mx_json_field(call, "function") : NULL;
    bool is_object = json_object_is_type(f, json_type_object);
    struct json_object *v = is_object ? mx_json_field(f, "name") : NULL;
    if (v == NULL || !json_object_is_type(v, json_type_string)) {
        return NULL;
    }
    *name = mx_json_text(v);
    return f;
}

static bool write_calls(mx_chat *c, size_t at, struct json_object *calls, mx_value *dict)
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
        mx_str name;
        struct json_object *f = function_of(call, &name);
        if (f == NULL) {
            return mx_problem_field(c->p, where, "'%s[%zu]' must be an object with "
                                    "\"function\": {\"name\": \"...\", \"arguments\": \"...\"}",
                                    where, i);
        }
        mx_value *function = mx_value_dict(c->arena);
        mx_chat_set(c, function, "name", mx_chat_data(c, name));
        mx_chat_set(c, function, "arguments", arguments_of(c, mx_json_field(f, "arguments")));
        mx_value *out = mx_value_dict(c->arena);
        struct json_object *id = mx_json_field(call, "id");
        if (id != NULL && json_object_is_type(id, json_type_string)) {
            mx_chat_set(c, out, "id", id_value(c, mx_json_text(id)));
        }
        mx_chat_set(c, out, "type", mx_chat_data(c, MX_STR("function")));
        mx_chat_set(c, out, "function", function);
        list = mx_value_list_add(c->arena, list, out);
    }
    mx_chat_set(c, dict, "tool_calls", list);
    return true;
}

/* ---- replay ---------------------------------------------------------------------------------- */

static bool choose_said_mark(mx_chat *c)
{
    return c->said_mark[0] != '\0' || mx_chat_choose_mark(c, c->said_mark);
}

/* The one call of the message whose place the sampled text will take. */
static bool hold_place(mx_chat *c, mx_str raw, mx_value *dict)
{
    char name[MX_CHAT_MARK_CAP + 24];
    void *list = c->said;
    if (!choose_said_mark(c) || !mx_grow(&list, &c->said_cap, c->n_said + 1, sizeof *c->said)) {
        return false;
    }
    c->said = list;
    c->said[c->n_said] = (mx_buf){0};
    mx_buf_append(&c->said[c->n_said], raw.ptr, raw.len);
    snprintf(name, sizeof name, "%s-%zu-", c->said_mark, c->n_said++);
    mx_value *function = mx_value_dict(c->arena), *call = mx_value_dict(c->arena);
    mx_chat_set(c, function, "name", mx_chat_data(c, mx_str_of(name)));
    mx_chat_set(c, function, "arguments", mx_value_dict(c->arena));
    mx_chat_set(c, call, "id", mx_chat_data(c, MX_STR("000000000")));
    mx_chat_set(c, call, "type", mx_chat_data(c, MX_STR("function")));
    mx_chat_set(c, call, "function", function);
    mx_value *calls = mx_value_list_add(c->arena, mx_value_list(c->arena), call);
    mx_chat_set(c, dict, "tool_calls", calls);
    mx_chat_set(c, dict, "content", mx_chat_data(c, MX_STR("")));
    return !c->said[c->n_said - 1].failed;
}

static struct json_object *tools_of(struct json_object *body)
{
    struct json_object *tools = mx_json_field(body, "tools");
    return tools != NULL ? tools : mx_json_field(body, "functions");
}

static mx_str id_of(struct json_object *call)
{
    struct json_object *id = json_object_is_type(call, json_type_object)
                                 ? mx_json_field(call, "id") : NULL;
    return id != NULL && json_object_is_type(id, json_type_string) ? mx_json_text(id)
                                                                   : (mx_str){"", 0};
}

/* The message says what one of our answers said, in other words or the same: then it says it in
 * the words that were sampled, calls and all. */
static bool replay(mx_chat *c, mx_str content, struct json_object *calls, mx_value *dict)
{
    uint8_t nonce[MX_TURN_NONCE];
    size_t index;
    if (c->env->said == NULL || !json_object_is_type(calls, json_type_array) ||
        !mx_tool_id_read(id_of(json_object_array_get_idx(calls, 0)), nonce, &index) || index != 0)
    {
        return false;
    }
    mx_buf raw = {0};
    mx_tool_calls ours = {.n = 0};
    bool ok = c->env->said(c->env->said_arg, nonce, &raw) &&
              mx_tool_calls_read(&ours, c->env->tool_form, tools_of(c->body), mx_buf_view(&raw)) &&
              mx_str_eq(content, ours.content) && mx_tool_calls_equal(&ours, nonce, calls);
    if (ok && c->env->tool_form == MX_TOOL_MISTRAL) {
        ok = hold_place(c, mx_buf_view(&raw), dict);
    } else if (ok) {
        mx_chat_set(c, dict, "content", mx_chat_data(c, mx_buf_view(&raw)));
    }
    if (ok) {
        c->n_replayed++;
        mx_tool_calls_free(&c->last_calls);
        c->last_calls = ours;
        memcpy(c->last_nonce, nonce, sizeof nonce);
    } else {
        mx_tool_calls_free(&ours);
    }
    mx_buf_free(&raw);
    return ok;
}

bool mx_chat_add_calls(mx_chat *c, size_t at, mx_str content, bool has_reasoning,
                       struct json_object *calls, mx_value *dict)
{
    return (!has_reasoning && replay(c, content, calls, dict)) || write_calls(c, at, calls, dict);
}

void mx_chat_free_said(mx_chat *c)
{
    for (size_t i = 0; i < c->n_said; i++) {
        mx_buf_free(&c->said[i]);
    }
    mx_free(c->said);
    mx_tool_calls_free(&c->last_calls);
}

/* ---- results --------------------------------------------------------------------------------- */

static bool copy_text_field(mx_chat *c, size_t at, struct json_object *m, const char *name,
                            mx_value *dict)
{
    mx_str s = {0};
    if (mx_json_field(m, name) == NULL) {
        return true;
    }
    char where[64];
    snprintf(where, sizeof where, "messages[%zu].%s", at, name);
    if (!mx_json_get_string(m, where, &s, c->p)) {
        return false;
    }
    mx_chat_set(c, dict, name, mx_chat_data(c, s));
    return true;
}

/* The name of the function whose call has this id, in the messages before; some templates want it
 * with the result, and clients need not send it. */
static mx_str called_name(mx_chat *c, size_t at, mx_str id)
{
    enum { MAX_BACK = 64 }; /* results follow their calls */
    for (size_t i = at; i-- > 0 && at - i <= MAX_BACK;) {
        struct json_object *m = json_object_array_get_idx(c->messages, i);
        struct json_object *calls = json_object_is_type(m, json_type_object)
                                        ? mx_json_field(m, "tool_calls") : NULL;
        bool is_list = json_object_is_type(calls, json_type_array);
        for (size_t k = 0; is_list && k < json_object_array_length(calls); k++) {
            struct json_object *call = json_object_array_get_idx(calls, k);
            mx_str name;
            if (function_of(call, &name) != NULL && mx_str_eq(id_of(call), id)) {
                return name;
            }
        }
    }
    return (mx_str){"", 0};
}

/* The id that a result refers to: where its call is replayed and the model gave it one of its own,
 * that one. */
static mx_value *result_id(mx_chat *c, mx_str id)
{
    uint8_t nonce[MX_TURN_NONCE];
    size_t index;
    if (mx_tool_id_read(id, nonce, &index) && index < c->last_calls.n &&
        memcmp(nonce, c->last_nonce, sizeof nonce) == 0 && c->last_calls.calls[index].id.len > 0)
    {
        id = c->last_calls.calls[index].id;
    }
    return id_value(c, id);
}

bool mx_chat_add_result(mx_chat *c, size_t at, struct json_object *m, mx_value *dict)
{
    mx_str id = {"", 0};
    if (!copy_text_field(c, at, m, "tool_call_id", dict) ||
        !copy_text_field(c, at, m, "name", dict))
    {
        return false;
    }
    struct json_object *v = mx_json_field(m, "tool_call_id");
    if (v != NULL) {
        id = mx_json_text(v);
        mx_chat_set(c, dict, "tool_call_id", result_id(c, id));
    }
    mx_str name = id.len > 0 && mx_json_field(m, "name") == NULL ? called_name(c, at, id)
                                                                  : (mx_str){"", 0};
    if (name.len > 0) {
        mx_chat_set(c, dict, "name", mx_chat_data(c, name));
    }
    return true;
}

/* ---- putting it there ------------------------------------------------------------------------ */

/* The bytes of text that stand for the call whose name begins at `name`: from the opening mark to
 * the end of its arguments, or of the list around it. */
static bool find_place(mx_str text, size_t from, size_t name, mx_span *out)
{
    static const char opener[] = "[TOOL_CALLS]";
    size_t n = strlen(opener), begin = name;
    do {
        if (begin == from || name - begin > 64) {
            return false;
        }
        begin--;
    } while (text.len - begin < n || memcmp(text.ptr + begin, opener, n) != 0);
    const char *at = memmem(text.ptr + name, text.len - name, "{}", 2);
    if (at != NULL && text.ptr[begin + n] == '[') {
        at = memchr(at, ']', text.len - (size_t)(at - text.ptr));
        at = at != NULL ? at - 1 : NULL;
    }
    if (at == NULL) {
        return false;
    }
    *out = (mx_span){begin, (size_t)(at - text.ptr) + 2};
    return true;
}

/* What is in [begin, end) of a markup span, now `shift` bytes later. */
static void add_span(mx_rendered *r, mx_span s, size_t begin, size_t end, size_t to)
{
    s.begin = mx_max_size(s.begin, begin);
    s.end = mx_min_size(s.end, end);
    if (s.begin < s.end) {
        r->markup[r->n_markup++] = (mx_span){s.begin - begin + to, s.end - begin + to};
    }
}

/* Appends text[begin..end) of `from`, and what of it is markup; *k: the first span that may be. */
static void copy_part(mx_rendered *to, const mx_rendered *from, size_t begin, size_t end, size_t *k)
{
    size_t at = to->text.len;
    while (*k < from->n_markup && from->markup[*k].end <= begin) {
        ++*k;
    }
    for (size_t i = *k; i < from->n_markup && from->markup[i].begin < end; i++) {
        add_span(to, from->markup[i], begin, end, at);
    }
    mx_buf_append(&to->text, from->text.ptr + begin, end - begin);
}

bool mx_chat_put_said(mx_chat *c, mx_rendered *r)
{
    if (c->n_said == 0) {
        return true;
    }
    mx_rendered out = {.markup = mx_calloc(r->n_markup + c->n_said, sizeof *out.markup)};
    mx_str text = mx_buf_view(&r->text);
    size_t at = 0, k = 0;
    bool ok = out.markup != NULL;
    for (size_t i = 0; ok && i < c->n_said; i++) {
        char mark[MX_CHAT_MARK_CAP + 24];
        mx_span place;
        snprintf(mark, sizeof mark, "%s-%zu-", c->said_mark, i);
        const char *name = memmem(text.ptr + at, text.len - at, mark, strlen(mark));
        ok = name != NULL && find_place(text, at, (size_t)(name - text.ptr), &place);
        if (ok) {
            copy_part(&out, r, at, place.begin, &k);
            mx_buf_append(&out.text, c->said[i].ptr, c->said[i].len);
            at = place.end;
        }
    }
    if (ok) {
        copy_part(&out, r, at, text.len, &k);
        ok = !out.text.failed;
    }
    if (ok) {
        mx_rendered_free(r);
        *r = out;
    } else {
        mx_rendered_free(&out);
    }
    return ok;
}
