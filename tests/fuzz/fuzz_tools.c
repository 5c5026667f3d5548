// link: mx_api
/* SPDX-License-Identifier: MIT
 *
 * Fuzzes what a model can say where it may call tools: the text of an answer, in the form that the
 * first byte chooses. Whatever comes: nothing of the text is lost, nothing of a call is shown, what
 * is a call is JSON, says the same when it comes back, and takes its place in a prompt again.
 */
#include "api/api_chat.h"
#include "http/http.h"

#include "base/utf8.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
    "\"string\"},\"i\":{\"type\":[\"integer\",\"null\"]},\"o\":{\"anyOf\":[{\"type\":\"object\"},{\"type\":"
    "\"boolean\"}]}}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

/* As Mistral's are, as far as calls go. */
static const char template_text[] =
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    "{{ c.function | tojson }}{% endfor %}]</s>{% else %}<{{ m.content }}>{% endif %}{% endfor %}";

static const uint8_t nonce[MX_TURN_NONCE] = {1, 2, 3};

static void must(bool ok)
{
    if (!ok) {
        abort();
    }
}

static bool said(void *arg, const uint8_t asked[MX_TURN_NONCE], mx_buf *out)
{
    const mx_str *text = arg;
    mx_buf_append(out, text->ptr, text->len);
    return memcmp(asked, nonce, sizeof nonce) == 0;
}

static bool holds(const mx_buf *b, mx_str what)
{
    return what.len == 0 ||
           (b->len >= what.len && memmem(b->ptr, b->len, what.ptr, what.len) != NULL);
}

/* A conversation in which the calls come back. */
static void replay(const mx_tool_calls *c, mx_tool_form form, mx_str text)
{
    mx_buf body = {0}, calls = {0};
    struct json_object *o;
    mx_template *t = NULL;
    mx_rendered r;
    mx_problem p = {0};
    size_t n_replayed;
    must(mx_template_parse(&t, mx_str_of(template_text), NULL) == MX_OK);
    mx_tool_calls_write(&calls, c, nonce, false);
    mx_buf_printf(&body, "{\"tools\":%s,\"messages\":[{\"role\":\"assistant\",\"content\":", tools_text);
    mx_http_json_string(&body, c->content.ptr, c->content.len);
    mx_buf_str(&body, ",\"tool_calls\":[");
    mx_buf_append(&body, calls.ptr, calls.len);
    mx_buf_str(&body, "]},{\"role\":\"tool\",\"content\":\"r\"}]}");
    mx_err e = mx_json_parse(&o, mx_buf_view(&body), NULL);
    must(e == MX_OK || e == MX_E_LIMIT);
    if (e == MX_OK) {
        mx_chat_env env = {.template = t, .tool_form = form, .said = said, .said_arg = &text};
        must(mx_chat_render_replayed(&env, o, &r, &n_replayed, &p));
        must(n_replayed == 1 && holds(&r.text, text));
        for (size_t i = 0; i < r.n_markup; i++) {
            must(r.markup[i].end <= r.text.len && r.markup[i].begin < r.markup[i].end);
            must(i == 0 || r.markup[i].begin >= r.markup[i - 1].end);
        }
        mx_rendered_free(&r);
        json_object_put(o);
    }
    mx_template_destroy(t);
    mx_buf_free(&body);
    mx_buf_free(&calls);
}

static void check_calls(const mx_tool_calls *c, mx_tool_form form, mx_str text)
{
    must(c->n > 0 && c->n <= MX_TOOL_CALLS_MAX);
    must(c->content.len <= text.len && memcmp(c->content.ptr, text.ptr, c->content.len) == 0);
    for (size_t i = 0; i < c->n; i++) {
        struct json_object *arguments;
        must(c->calls[i].name.len > 0);
        mx_err e = mx_json_parse(&arguments, mx_tool_call_arguments(&c->calls[i]), NULL);
        must(e == MX_OK);
        must(json_object_is_type(arguments, json_type_object));
        json_object_put(arguments);
    }
    replay(c, form, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == 0 || n > 1 << 16) {
        return 0;
    }
    mx_tool_form form = (mx_tool_form)(bytes[0] % MX_N_TOOL_FORMS);
    mx_buf clean = {0};
    mx_utf8_append_clean(&clean, (const char *)bytes + 1, n - 1); /* as answers are */
    mx_str text = {clean.ptr == NULL ? "" : clean.ptr, clean.len};
    struct json_object *tools;
    must(mx_json_parse(&tools, mx_str_of(tools_text), NULL) == MX_OK);
    mx_tool_calls c;
    bool has_calls = mx_tool_calls_read(&c, form, tools, text);
    size_t step = 1 + text.len / 256, before = 0;
    for (size_t k = 0; k <= text.len; k += step) {
        size_t safe = mx_tool_calls_safe(form, (mx_str){text.ptr, k});
        must(safe <= k && safe >= before && (!has_calls || safe <= c.content.len));
        before = safe;
    }
    if (has_calls) {
        check_calls(&c, form, text);
    }
    mx_tool_calls_free(&c);
    (void)mx_tool_form_of(text);
    json_object_put(tools);
    mx_buf_free(&clean);
    return 0;
}
