/* SPDX-License-Identifier: MIT
 *
 * Calls out of the text of an answer, in the form that the model's family has. What a parser
 * understands has to be all of the text from the first call on; where it stumbles, everything stays
 * the text that it was. Only closing marks at the very end may be missing: models leave them out,
 * and nothing has to be guessed then.
 *
 * A model that thinks about calls mentions their marks before it makes one, so each place where one
 * could begin is tried, the first ones first.
 *
 * The forms that are not JSON are written as JSON, then parsed: {"name": ..., "arguments": {...}}.
 */
#include "api/api_tool_types.h"
#include "api/api_tools.h"

#include "http/http.h"

enum { MAX_TRIES = 64 };

typedef struct reader {
    mx_str rest;                /* still to be read */
    struct json_object *tools;  /* of the request, or NULL */
    mx_tool_calls *out;
} reader;

/* ---- pieces of text -------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void advance(reader *r, size_t n)
{
    r->rest = (mx_str){r->rest.ptr + n, r->rest.len - n};
}

static void skip_blanks(reader *r)
{
    while (r->rest.len > 0 && is_blank(*r->rest.ptr)) {
        advance(r, 1);
    }
}

static mx_str trim(mx_str s)
{
    while (s.len > 0 && is_blank(*s.ptr)) {
        s = (mx_str){s.ptr + 1, s.len - 1};
    }
    while (s.len > 0 && is_blank(s.ptr[s.len - 1])) {
        s.len--;
    }
    return s;
}

static bool is_next(const reader *r, const char *mark)
{
    size_t n = strlen(mark);
    return r->rest.len >= n && memcmp(r->rest.ptr, mark, n) == 0;
}

/* Reads the mark, if it is next. */
static bool take(reader *r, const char *mark)
{
    bool ok = is_next(r, mark);
    if (ok) {
        advance(r, strlen(mark));
    }
    return ok;
}

/* A closing mark, which may be missing where the text ends. */
static bool take_end(reader *r, const char *mark)
{
    skip_blanks(r);
    return take(r, mark) || r->rest.len == 0;
}

static const char *find(mx_str s, const char *what)
{
    return s.len > 0 ? memmem(s.ptr, s.len, what, strlen(what)) : NULL;
}

/* Reads up to the mark, and the mark. */
static bool take_until(reader *r, const char *mark, mx_str *out)
{
    const char *at = find(r->rest, mark);
    if (at == NULL) {
        return false;
    }
    *out = (mx_str){r->rest.ptr, (size_t)(at - r->rest.ptr)};
    advance(r, out->len + strlen(mark));
    return true;
}

/* Reads an object or array as far as its brackets go; whether it is JSON is seen later. */
static bool take_json(reader *r, mx_str *out)
{
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < r->rest.len; i++) {
        char c = r->rest.ptr[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = depth > 0;
            if (!in_string) {
                return false;
            }
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth == 0) {
            return false;
        } else if ((c == '}' || c == ']') && --depth == 0) {
            *out = (mx_str){r->rest.ptr, i + 1};
            advance(r, i + 1);
            return true;
        }
    }
    return false;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct json_object *string_field(struct json_object *o, const char *name)
{
    struct json_object *v = mx_json_field(o, name);
    return v != NULL && json_object_is_type(v, json_type_string) ? v : NULL;
}

/* Takes the object over when it is a call. Models know several words for the same. */
static bool add_object(reader *r, struct json_object *o)
{
    mx_tool_calls *c = r->out;
    if (c->n == MX_TOOL_CALLS_MAX || !json_object_is_type(o, json_type_object)) {
        return false;
    }
    struct json_object *f = mx_json_field(o, "function");
    struct json_object *inner = json_object_is_type(f, json_type_object) ? f : o;
    struct json_object *name = string_field(inner, "name");
    name = name != NULL ? name : string_field(inner, "function");
    struct json_object *arguments = mx_json_field(inner, "arguments");
    arguments = arguments != NULL ? arguments : mx_json_field(inner, "parameters");
    if (name == NULL || mx_json_text(name).len == 0 || arguments == NULL) {
        return false;
    }
    if (json_object_is_type(arguments, json_type_string)) { /* JSON in a string */
        struct json_object *parsed;
        if (mx_json_parse(&parsed, mx_json_text(arguments), NULL) != MX_OK) {
            return false;
        }
        if (!json_object_is_type(parsed, json_type_object) ||
            json_object_object_add(inner, "arguments", parsed) != 0)
        {
            json_object_put(parsed);
            return false;
        }
        arguments = parsed;
    }
    if (!json_object_is_type(arguments, json_type_object)) {
        return false;
    }
    struct json_object *id = string_field(o, "id");
    c->calls[c->n++] = (mx_tool_call){
        .object = o,
        .name = mx_json_text(name),
        .arguments = arguments,
        .id = id != NULL ? mx_json_text(id) : (mx_str){"", 0},
    };
    return true;
}

/* Models that write code into an argument break its lines as they are, which JSON does not allow:
 * the same text with such characters escaped. */
static void escape_controls(mx_buf *out, mx_str json)
{
    bool in_string = false;
    for (size_t i = 0; i < json.len; i++) {
        char c = json.ptr[i];
        if (in_string && (unsigned char)c < 0x20) {
            mx_buf_printf(out, "\\u%04x", (unsigned)c);
            continue;
        }
        mx_buf_char(out, c);
        if (in_string && c == '\\' && i + 1 < json.len) {
            mx_buf_char(out, json.ptr[++i]);
        } else if (c == '"') {
            in_string = !in_string;
        }
    }
}

static bool parse_call(struct json_object **out, mx_str json)
{
    if (mx_json_parse(out, json, NULL) == MX_OK) {
        return true;
    }
    mx_buf escaped = {0};
    escape_controls(&escaped, json);
    bool ok = !escaped.failed && mx_json_parse(out, mx_buf_view(&escaped), NULL) == MX_OK;
    mx_buf_free(&escaped);
    return ok;
}

static bool add_text(reader *r, mx_str json)
{
    struct json_object *o;
    if (!parse_call(&o, json)) {
        return false;
    }
    bool ok = add_object(r, o);
    if (!ok) {
        json_object_put(o);
    }
    return ok;
}

/* A name, and arguments that are JSON already. */
static bool add_named(reader *r, mx_str name, mx_str id, mx_str arguments)
{
    mx_buf b = {0};
    mx_buf_str(&b, "{\"name\":");
    mx_http_json_string(&b, name.ptr, name.len);
    mx_buf_str(&b, ",\"id\":");
    mx_http_json_string(&b, id.ptr, id.len);
    mx_buf_str(&b, ",\"arguments\":");
    mx_buf_append(&b, arguments.ptr, arguments.len);
    mx_buf_str(&b, "}");
    bool ok = !b.failed && name.len > 0 && add_text(r, mx_buf_view(&b));
    mx_buf_free(&b);
    return ok;
}

/* A name as it stands between marks: one word. */
static bool is_name(mx_str s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (is_blank(s.ptr[i]) || strchr("<>[]{}\"", s.ptr[i]) != NULL) {
            return false;
        }
    }
    return s.len > 0;
}

/* ---- <tool_call>{...}</tool_call> ------------------------------------------------------------ */

static bool read_hermes(reader *r)
{
    while (r->rest.len > 0) {
        mx_str json;
        if (!take(r, "<tool_call>")) {
            return false;
        }
        skip_blanks(r);
        if (!take_json(r, &json) || !add_text(r, json) || !take_end(r, "</tool_call>")) {
            return false;
        }
        skip_blanks(r);
    }
    return true;
}

/* ---- <function=f><parameter=k>v</parameter></function>, <function=f>{...}</function> ---------- */

/* Of the line breaks around it one each belongs to the mark. */
static mx_str value_of(mx_str s)
{
    if (s.len > 0 && *s.ptr == '\n') {
        s = (mx_str){s.ptr + 1, s.len - 1};
    }
    if (s.len > 0 && s.ptr[s.len - 1] == '\n') {
        s.len--;
    }
    return s;
}

/* Reads a value and its closing mark. A value may hold that mark itself (code that writes such
 * calls): it ends where something goes on behind it as a call does. */
static bool take_value(reader *r, mx_str *out)
{
    static const char closer[] = "</parameter>";
    const char *begin = r->rest.ptr;
    for (;;) {
        mx_str part;
        if (!take_until(r, closer, &part)) {
            return false;
        }
        *out = value_of((mx_str){begin, (size_t)(r->rest.ptr - begin) - strlen(closer)});
        reader ahead = *r;
        skip_blanks(&ahead);
        if (ahead.rest.len == 0 || is_next(&ahead, "<parameter=") ||
            is_next(&ahead, "</function>"))
        {
            *r = ahead;
            return true;
        }
    }
}

static bool read_parameters(reader *r, mx_str name)
{
    struct json_object *function = mx_tool_find(r->tools, name);
    mx_str key, value;
    mx_buf b = {0};
    bool ok = true;
    mx_buf_str(&b, "{");
    for (size_t n = 0; ok && take(r, "<parameter="); n++) {
        ok = take_until(r, ">", &key) && is_name(key) && take_value(r, &value);
        if (ok) {
            mx_buf_str(&b, n > 0 ? "," : "");
            mx_http_json_string(&b, key.ptr, key.len);
            mx_buf_str(&b, ":");
            mx_tool_write_value(&b, function, key, value);
        }
    }
    mx_buf_str(&b, "}");
    ok = ok && !b.failed && take_end(r, "</function>") &&
         add_named(r, name, MX_STR(""), mx_buf_view(&b));
    mx_buf_free(&b);
    return ok;
}

static bool read_function(reader *r)
{
    mx_str name, json;
    if (!take(r, "<function=") || !take_until(r, ">", &name) || !is_name(name)) {
        return false;
    }
    skip_blanks(r);
    bool is_json = r->rest.len > 0 && *r->rest.ptr == '{';
    bool ok = is_json ? take_json(r, &json) && take_end(r, "</function>") &&
                            add_named(r, name, MX_STR(""), json)
                      : read_parameters(r, name);
    skip_blanks(r);
    return ok;
}

static bool read_xml(reader *r)
{
    while (r->rest.len > 0) {
        const char *closer = NULL;
        if (take(r, "<tool_call>")) {
            closer = "</tool_call>";
        } else if (take(r, "<seed:tool_call>")) {
            closer = "</seed:tool_call>";
        }
        skip_blanks(r);
        if (!read_function(r) || (closer != NULL && !take_end(r, closer))) {
            return false;
        }
        if (closer == NULL) { /* models forget the opening mark, not the tools that there are */
            if (mx_tool_find(r->tools, r->out->calls[r->out->n - 1].name) == NULL) {
                return false;
            }
            (void)(take(r, "</tool_call>") || take(r, "</seed:tool_call>"));
        }
        skip_blanks(r);
    }
    return true;
}

/* ---- {"name": ..., "parameters": {...}} ------------------------------------------------------ */

/* JSON alone may be an answer, too: only what names a tool of the request is a call. */
static bool read_llama(reader *r)
{
    (void)take(r, "<|python_tag|>");
    skip_blanks(r);
    while (r->rest.len > 0) {
        mx_str json;
        if (!take_json(r, &json) || !add_text(r, json)) {
            return false;
        }
        const mx_tool_call *last = &r->out->calls[r->out->n - 1];
        if (mx_tool_find(r->tools, last->name) == NULL) {
            return false;
        }
        skip_blanks(r);
        (void)(take(r, ";") || take(r, "<|python_tag|>"));
        skip_blanks(r);
    }
    return r->out->n > 0;
}

/* ---- [TOOL_CALLS] ---------------------------------------------------------------------------- */

static bool read_array(reader *r)
{
    mx_str json;
    struct json_object *list;
    if (!take_json(r, &json) || !parse_call(&list, json)) {
        return false;
    }
    size_t n = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    bool ok = n > 0;
    for (size_t i = 0; ok && i < n; i++) {
        struct json_object *o = json_object_get(json_object_array_get_idx(list, i));
        ok = add_object(r, o);
        if (!ok) {
            json_object_put(o);
        }
    }
    json_object_put(list);
    return ok;
}

/* f[ARGS]{...}, f[CALL_ID]x[ARGS]{...}, and f{...} */
static bool read_named(reader *r)
{
    mx_str before = {r->rest.ptr, 0}, id = MX_STR(""), json;
    const char *brace = find(r->rest, "{");
    if (brace == NULL) {
        return false;
    }
    before.len = (size_t)(brace - r->rest.ptr);
    reader head = {.rest = before};
    mx_str name = before, more;
    if (take_until(&head, "[CALL_ID]", &name)) {
        if (!take_until(&head, "[ARGS]", &id)) {
            return false;
        }
        more = head.rest;
    } else if (take_until(&head, "[ARGS]", &name)) {
        more = head.rest;
    } else {
        more = MX_STR("");
    }
    name = trim(name);
    if (trim(more).len > 0 || !is_name(name)) {
        return false;
    }
    advance(r, before.len);
    return take_json(r, &json) && add_named(r, name, trim(id), json);
}

static bool read_mistral(reader *r)
{
    while (r->rest.len > 0) {
        if (!take(r, "[TOOL_CALLS]")) {
            return false;
        }
        skip_blanks(r);
        if (r->rest.len > 0 && *r->rest.ptr == '[' ? !read_array(r) : !read_named(r)) {
            return false;
        }
        skip_blanks(r);
    }
    return true;
}

/* ---- <｜tool▁calls▁begin｜> ------------------------------------------------------------------- */

static bool read_deepseek(reader *r)
{
    static const char sep[] = "<｜tool▁sep｜>";
    (void)take(r, "<｜tool▁calls▁begin｜>");
    skip_blanks(r);
    while (take(r, "<｜tool▁call▁begin｜>")) {
        mx_str name, json;
        if (!take_until(r, sep, &name)) {
            return false;
        }
        skip_blanks(r);
        if (r->rest.len > 0 && *r->rest.ptr != '{') {
            /* What stood before was the kind of the call; its arguments are in a fence. */
            if (!take_until(r, "\n", &name)) {
                return false;
            }
            skip_blanks(r);
            (void)take(r, "```json");
            skip_blanks(r);
        }
        name = trim(name);
        if (!take_json(r, &json) || !is_name(name) || !add_named(r, name, MX_STR(""), json)) {
            return false;
        }
        skip_blanks(r);
        (void)take(r, "```");
        if (!take_end(r, "<｜tool▁call▁end｜>")) {
            return false;
        }
        skip_blanks(r);
    }
    (void)take(r, "<｜tool▁calls▁end｜>");
    skip_blanks(r);
    return r->rest.len == 0;
}

/* ---- an answer ------------------------------------------------------------------------------- */

static bool read_from(mx_tool_calls *out, mx_tool_form form, struct json_object *tools, mx_str text)
{
    static bool (*const readers[MX_N_TOOL_FORMS])(reader *) = {
        [MX_TOOL_HERMES] = read_hermes, [MX_TOOL_XML] = read_xml, [MX_TOOL_LLAMA] = read_llama,
        [MX_TOOL_MISTRAL] = read_mistral, [MX_TOOL_DEEPSEEK] = read_deepseek,
    };
    reader r = {.rest = text, .tools = tools, .out = out};
    bool ok = readers[form](&r) && out->n > 0;
    if (!ok) {
        mx_tool_calls_free(out);
    }
    return ok;
}

/* Where the next call may begin; NULL = nowhere. */
static const char *next_opener(mx_tool_form form, mx_str text)
{
    size_t n;
    const char *const *openers = mx_tool_form_openers(form, &n), *first = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *at = find(text, openers[i]);
        if (at != NULL && (first == NULL || at < first)) {
            first = at;
        }
    }
    return first;
}

bool mx_tool_calls_read(mx_tool_calls *out, mx_tool_form form, struct json_object *tools,
                        mx_str text)
{
    out->n = 0;
    out->content = MX_STR("");
    if (form == MX_TOOL_TEXT) {
        return false;
    }
    mx_str whole = trim(text);
    if (form == MX_TOOL_LLAMA && mx_tool_may_be_bare(whole) &&
        read_from(out, form, tools, whole))
    {
        return true;
    }
    mx_str rest = text;
    for (int i = 0; i < MAX_TRIES; i++) {
        const char *at = next_opener(form, rest);
        if (at == NULL) {
            break;
        }
        size_t n = (size_t)(at - text.ptr);
        if (read_from(out, form, tools, trim((mx_str){at, text.len - n}))) {
            out->content = (mx_str){text.ptr, n};
            while (out->content.len > 0 && is_blank(text.ptr[out->content.len - 1])) {
                out->content.len--;
            }
            return true;
        }
        rest = (mx_str){at + 1, text.len - n - 1};
    }
    return false;
}
