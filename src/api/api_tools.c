/* SPDX-License-Identifier: MIT
 *
 * What is found in an answer is compared, named and written here; how it is found stands in
 * api_tool_parse.c. Calls are taken from the whole text of an answer at its end, not as they are
 * written: until a call is closed nobody can tell whether it is one, and a client can do nothing
 * with half of one.
 */
#include "api/api_tools.h"

#include "base/mem.h"
#include "http/http.h"

#include <stdio.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static mx_str trim_end(mx_str s)
{
    while (s.len > 0 && is_blank(s.ptr[s.len - 1])) {
        s.len--;
    }
    return s;
}

/* ---- calls ----------------------------------------------------------------------------------- */

void mx_tool_calls_cut(mx_tool_calls *c, size_t n)
{
    while (c->n > n) {
        json_object_put(c->calls[--c->n].object);
    }
}

void mx_tool_calls_free(mx_tool_calls *c)
{
    mx_tool_calls_cut(c, 0);
}

/* ---- showing --------------------------------------------------------------------------------- */

/* How much of the text stands before the mark, or before what may become it. */
static size_t before_mark(mx_str text, const char *mark)
{
    size_t n_mark = strlen(mark);
    const char *at = text.len > 0 ? memmem(text.ptr, text.len, mark, n_mark) : NULL;
    if (at != NULL) {
        return (size_t)(at - text.ptr);
    }
    for (size_t k = mx_min_size(n_mark - 1, text.len); k > 0; k--) {
        if (memcmp(text.ptr + text.len - k, mark, k) == 0) {
            return text.len - k;
        }
    }
    return text.len;
}

bool mx_tool_may_be_bare(mx_str s)
{
    static const char *const keys[] = {"\"name\"", "\"type\"", "\"function\"", "\"parameters\"",
                                       "\"arguments\"", "\"id\""};
    if (s.len == 0 || *s.ptr != '{') {
        return false;
    }
    do {
        s = (mx_str){s.ptr + 1, s.len - 1};
    } while (s.len > 0 && is_blank(*s.ptr));
    for (size_t i = 0; i < MX_COUNT(keys); i++) {
        if (memcmp(s.ptr, keys[i], mx_min_size(s.len, strlen(keys[i]))) == 0) {
            return true;
        }
    }
    return false;
}

size_t mx_tool_calls_safe(mx_tool_form form, mx_str text)
{
    size_t n_openers, n = text.len, first = 0;
    const char *const *openers = mx_tool_form_openers(form, &n_openers);
    if (n_openers == 0) {
        return n;
    }
    for (size_t i = 0; i < n_openers; i++) {
        n = mx_min_size(n, before_mark(text, openers[i]));
    }
    while (first < text.len && is_blank(text.ptr[first])) {
        first++;
    }
    mx_str whole = {text.ptr + first, text.len - first};
    if (form == MX_TOOL_LLAMA && mx_tool_may_be_bare(whole)) {
        n = first;
    }
    return trim_end((mx_str){text.ptr, n}).len; /* blanks before a call are none of the content */
}

/* ---- ids ------------------------------------------------------------------------------------- */

static const char call_prefix[] = "call_", use_prefix[] = "toolu_";

void mx_tool_id(const char *prefix, const uint8_t nonce[MX_TURN_NONCE], size_t index,
                char out[MX_TOOL_ID_CAP])
{
    int n = snprintf(out, MX_TOOL_ID_CAP, "%.6s", prefix);
    for (size_t i = 0; i < MX_TURN_NONCE; i++) {
        n += snprintf(out + n, (size_t)(MX_TOOL_ID_CAP - n), "%02x", nonce[i]);
    }
    snprintf(out + n, (size_t)(MX_TOOL_ID_CAP - n), "%02x", (unsigned)(index & 0xFF));
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool mx_tool_id_read(mx_str id, uint8_t nonce[MX_TURN_NONCE], size_t *index)
{
    uint8_t bytes[MX_TURN_NONCE + 1];
    const char *prefix = id.len > 0 && *id.ptr == *use_prefix ? use_prefix : call_prefix;
    size_t n = strlen(prefix);
    if (id.len != n + 2 * sizeof bytes || memcmp(id.ptr, prefix, n) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        int high = digit(id.ptr[n + 2 * i]), low = digit(id.ptr[n + 2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    memcpy(nonce, bytes, MX_TURN_NONCE);
    *index = bytes[MX_TURN_NONCE];
    return true;
}

/* ---- comparing and writing ------------------------------------------------------------------- */

static bool is_same_call(const mx_tool_call *call, const uint8_t nonce[MX_TURN_NONCE],
                         size_t index, struct json_object *theirs)
{
    bool is_object = json_object_is_type(theirs, json_type_object);
    struct json_object *id = is_object ? mx_json_field(theirs, "id") : NULL;
    struct json_object *f = is_object ? mx_json_field(theirs, "function") : NULL;
    is_object = json_object_is_type(f, json_type_object);
    struct json_object *name = is_object ? mx_json_field(f, "name") : NULL;
    struct json_object *arguments = is_object ? mx_json_field(f, "arguments") : NULL, *parsed = NULL;
    uint8_t their_nonce[MX_TURN_NONCE];
    size_t their_index;
    if (id == NULL || !json_object_is_type(id, json_type_string) ||
        !mx_tool_id_read(mx_json_text(id), their_nonce, &their_index) || their_index != index ||
        memcmp(their_nonce, nonce, MX_TURN_NONCE) != 0 || name == NULL ||
        !json_object_is_type(name, json_type_string) ||
        !mx_str_eq(mx_json_text(name), call->name) || arguments == NULL)
    {
        return false;
    }
    if (json_object_is_type(arguments, json_type_string)) {
        if (mx_json_parse(&parsed, mx_json_text(arguments), NULL) != MX_OK) {
            return false;
        }
        arguments = parsed;
    }
    bool is_same = json_object_equal(arguments, call->arguments) == 1;
    json_object_put(parsed);
    return is_same;
}

bool mx_tool_calls_equal(const mx_tool_calls *c, const uint8_t nonce[MX_TURN_NONCE],
                         struct json_object *client_calls)
{
    bool ok = json_object_is_type(client_calls, json_type_array) &&
              json_object_array_length(client_calls) == c->n;
    for (size_t i = 0; ok && i < c->n; i++) {
        ok = is_same_call(&c->calls[i], nonce, i, json_object_array_get_idx(client_calls, i));
    }
    return ok;
}

mx_str mx_tool_call_arguments(const mx_tool_call *call)
{
    size_t n = 0;
    const char *text = json_object_to_json_string_length(
        call->arguments, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &n);
    return text != NULL ? (mx_str){text, n} : MX_STR("{}");
}

void mx_tool_calls_write(mx_buf *b, const mx_tool_calls *c, const uint8_t nonce[MX_TURN_NONCE],
                         bool with_index)
{
    for (size_t i = 0; i < c->n; i++) {
        char id[MX_TOOL_ID_CAP];
        mx_tool_id(call_prefix, nonce, i, id);
        mx_buf_str(b, i > 0 ? ",{" : "{");
        if (with_index) {
            mx_buf_printf(b, "\"index\":%zu,", i);
        }
        mx_buf_printf(b, "\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", id);
        mx_http_json_string(b, c->calls[i].name.ptr, c->calls[i].name.len);
        mx_buf_str(b, ",\"arguments\":");
        mx_str text = mx_tool_call_arguments(&c->calls[i]);
        mx_http_json_string(b, text.ptr, text.len);
        mx_buf_str(b, "}}");
    }
}
