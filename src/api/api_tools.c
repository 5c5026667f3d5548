/* SPDX-License-Identifier: MIT
 *
 * Calls are taken from the whole text of an answer at its end, not as they are written: until a
 * call is closed nobody can tell whether it is one, and a client can do nothing with half of one.
 */
#include "api/api_tools.h"

#include "base/mem.h"
#include "http/http.h"

#include <stdio.h>

static const char opener[] = "<tool_call>", closer[] = "</tool_call>";

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

static mx_str trim(mx_str s)
{
    s = trim_end(s);
    while (s.len > 0 && is_blank(*s.ptr)) {
        s.ptr++;
        s.len--;
    }
    return s;
}

static const char *find(mx_str s, const char *what)
{
    return s.len > 0 ? memmem(s.ptr, s.len, what, strlen(what)) : NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool read_call(mx_tool_call *out, mx_str text)
{
    struct json_object *o;
    if (mx_json_parse(&o, text, NULL) != MX_OK) {
        return false;
    }
    bool is_object = json_object_is_type(o, json_type_object);
    struct json_object *name = is_object ? mx_json_field(o, "name") : NULL;
    struct json_object *arguments = is_object ? mx_json_field(o, "arguments") : NULL;
    if (name == NULL || !json_object_is_type(name, json_type_string) || arguments == NULL ||
        !json_object_is_type(arguments, json_type_object))
    {
        json_object_put(o);
        return false;
    }
    *out = (mx_tool_call){o, mx_json_text(name), arguments};
    return true;
}

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

bool mx_tool_calls_read(mx_tool_calls *out, mx_str text)
{
    out->n = 0;
    const char *at = find(text, opener);
    if (at == NULL) {
        return false;
    }
    out->content = trim_end((mx_str){text.ptr, (size_t)(at - text.ptr)});
    mx_str rest = trim((mx_str){at, text.len - (size_t)(at - text.ptr)});
    bool ok = true;
    while (ok && rest.len > 0) {
        size_t n_open = strlen(opener);
        ok = rest.len > n_open && memcmp(rest.ptr, opener, n_open) == 0 &&
             out->n < MX_TOOL_CALLS_MAX;
        const char *end = ok ? find(rest, closer) : NULL;
        ok = end != NULL &&
             read_call(&out->calls[out->n],
                       trim((mx_str){rest.ptr + n_open, (size_t)(end - rest.ptr) - n_open}));
        if (ok) {
            out->n++;
            const char *next = end + strlen(closer);
            rest = trim((mx_str){next, rest.len - (size_t)(next - rest.ptr)});
        }
    }
    if (!ok) {
        mx_tool_calls_free(out);
    }
    return ok;
}

size_t mx_tool_calls_safe(mx_str text)
{
    const char *at = find(text, opener);
    size_t n = at != NULL ? (size_t)(at - text.ptr) : text.len;
    if (at == NULL) { /* the end may be the beginning of one */
        for (size_t k = mx_min_size(strlen(opener) - 1, n); k > 0; k--) {
            if (memcmp(text.ptr + n - k, opener, k) == 0) {
                n -= k;
                break;
            }
        }
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
