/* SPDX-License-Identifier: MIT
 *
 * Calls of tools: their ids, when a client's list says the same, and how a conversation is rendered
 * in which one comes back. What counts as a call: test_api_forms.c.
 */
#include "api/api_chat.h"
#include "api/api_tools.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define CALL_ONE "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [\"x\", 2.50]}}\n</tool_call>"
#define CALL_TWO "<tool_call>{\"arguments\":{},\"name\":\"g\"}</tool_call>"

static const uint8_t nonce[MX_TURN_NONCE] = {0xAB, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#define ID(index) "call_ab0102030405060708090a0b0c0d0e0f" index

static void ids_name_the_answer(void **state)
{
    (void)state;
    char id[MX_TOOL_ID_CAP];
    uint8_t back[MX_TURN_NONCE];
    size_t index;
    mx_tool_id("call_", nonce, 3, id);
    assert_string_equal(id, ID("03"));
    assert_true(mx_tool_id_read(mx_str_of(id), back, &index));
    assert_memory_equal(back, nonce, sizeof nonce);
    assert_int_equal(index, 3);
    static const char *const bad[] = {"", "call_", "call_1", ID("0"), ID("0g"), ID("003"),
                                      "CALL_ab0102030405060708090a0b0c0d0e0f00"};
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        assert_false(mx_tool_id_read(mx_str_of(bad[i]), back, &index));
    }
}

static bool says_the_same(const mx_tool_calls *c, const char *json)
{
    struct json_object *o;
    assert_int_equal(mx_json_parse(&o, mx_str_of(json), NULL), MX_OK);
    bool same = mx_tool_calls_equal(c, nonce, o);
    json_object_put(o);
    return same;
}

#define CLIENT(id, name, arguments) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" \
    arguments "}}"

static void order_and_blanks_do_not_matter(void **state)
{
    (void)state;
    mx_tool_calls c;
    assert_true(mx_tool_calls_read(&c, MX_TOOL_HERMES, NULL, mx_str_of(CALL_ONE)));
    static const char *const same[] = {
        "[" CLIENT(ID("00"), "f", "\"{\\\"a\\\": 1, \\\"b\\\": [\\\"x\\\", 2.50]}\"") "]",
        "[" CLIENT(ID("00"), "f", "\"{ \\\"b\\\" :[\\\"x\\\",2.5],\\n\\\"a\\\":1}\"") "]",
        "[" CLIENT(ID("00"), "f", "{\"b\":[\"x\",2.5],\"a\":1}") "]",
    };
    for (size_t i = 0; i < MX_COUNT(same); i++) {
        assert_true(says_the_same(&c, same[i]));
    }
    static const char *const other[] = {
        "[]", "7", "[7]",
        "[" CLIENT(ID("01"), "f", "{\"a\":1,\"b\":[\"x\",2.5]}") "]",
        "[" CLIENT("call_00000000000000000000000000000000" "00", "f", "{\"a\":1,\"b\":[\"x\",2.5]}") "]",
        "[" CLIENT(ID("00"), "g", "{\"a\":1,\"b\":[\"x\",2.5]}") "]",
        "[" CLIENT(ID("00"), "f", "{\"a\":2,\"b\":[\"x\",2.5]}") "]",
        "[" CLIENT(ID("00"), "f", "{\"a\":1,\"b\":[2.5,\"x\"]}") "]",
        "[" CLIENT(ID("00"), "f", "{\"a\":1}") "]",
        "[" CLIENT(ID("00"), "f", "\"{bad\"") "]",
        "[" CLIENT(ID("00"), "f", "{\"a\":1,\"b\":[\"x\",2.5]}") ","
            CLIENT(ID("01"), "f", "{\"a\":1,\"b\":[\"x\",2.5]}") "]",
    };
    for (size_t i = 0; i < MX_COUNT(other); i++) {
        if (says_the_same(&c, other[i])) {
            fail_msg("%s is not the same", other[i]);
        }
    }
    mx_tool_calls_free(&c);
}

static void calls_are_written(void **state)
{
    (void)state;
    mx_tool_calls c;
    mx_buf b = {0};
    assert_true(mx_tool_calls_read(&c, MX_TOOL_HERMES, NULL, mx_str_of(CALL_ONE CALL_TWO)));
    mx_tool_calls_write(&b, &c, nonce, true);
    assert_string_equal(b.ptr,
        "{\"index\":0,\"id\":\"" ID("00") "\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"a\\\":1,\\\"b\\\":[\\\"x\\\",2.50]}\"}},"
        "{\"index\":1,\"id\":\"" ID("01") "\",\"type\":\"function\",\"function\":{\"name\":\"g\","
        "\"arguments\":\"{}\"}}");
    mx_tool_calls_free(&c);
    mx_buf_free(&b);
}

/* ---- rendering ------------------------------------------------------------------------------- */

static bool said(void *arg, const uint8_t asked[MX_TURN_NONCE], mx_buf *out)
{
    if (memcmp(asked, nonce, sizeof nonce) != 0) {
        return false;
    }
    mx_buf_str(out, arg);
    return true;
}

/* The text of the assistant's message in a conversation with these calls. */
static size_t render(const char *content, const char *calls, const char *more, char *out, size_t cap)
{
    static const char template_text[] =
        "{% for m in messages %}[{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
        "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endif %}]{% endfor %}";
    mx_template *t;
    mx_errbuf eb = {0};
    assert_int_equal(mx_template_parse(&t, mx_str_of(template_text), &eb), MX_OK);
    mx_buf body = {0};
    mx_buf_printf(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\","
                  "\"content\":\"%s\",\"tool_calls\":%s%s},{\"role\":\"tool\",\"content\":\"r\"}]}",
                  content, calls, more);
    struct json_object *o;
    assert_int_equal(mx_json_parse(&o, mx_buf_view(&body), &eb), MX_OK);
    char raw[] = "I look.\n" CALL_ONE;
    mx_chat_env env = {.template = t, .tool_form = MX_TOOL_HERMES, .said = said, .said_arg = raw};
    mx_rendered r;
    mx_problem p = {0};
    size_t n_replayed;
    assert_true(mx_chat_render_replayed(&env, o, &r, &n_replayed, &p));
    snprintf(out, cap, "%.*s", (int)r.text.len, r.text.ptr);
    mx_rendered_free(&r);
    json_object_put(o);
    mx_buf_free(&body);
    mx_template_destroy(t);
    return n_replayed;
}

static void what_was_sampled_is_replayed(void **state)
{
    (void)state;
    static const char other_order[] = "[" CLIENT(ID("00"), "f", "{\"b\":[\"x\",2.5],\"a\":1}") "]";
    static const char other_call[] = "[" CLIENT(ID("00"), "f", "{\"b\":[\"x\",2.5],\"a\":2}") "]";
    static const char other_id[] = "[" CLIENT("call_1", "f", "{\"b\":[\"x\",2.5],\"a\":1}") "]";
    char text[1024];
    assert_int_equal(render("I look.", other_order, "", text, sizeof text), 1);
    assert_string_equal(text, "[u][I look.\n" CALL_ONE "][r]");
    /* What the client has changed counts as it is. */
    static const char *const changed[] = {other_call, other_id};
    for (size_t i = 0; i < MX_COUNT(changed); i++) {
        assert_int_equal(render("I look.", changed[i], "", text, sizeof text), 0);
        assert_non_null(strstr(text, "[I look.<tool_call>{\"name\": \"f\", \"arguments\": {\"b\""));
    }
    assert_int_equal(render("I looked.", other_order, "", text, sizeof text), 0);
    assert_int_equal(render("I look.", other_order, ",\"reasoning_content\":\"x\"", text, sizeof text),
                     0);
}

/* A result has the name of what was called, and the id that the prompt has for the call: the
 * model's own, else one that fits the template. */
static void results_follow_their_calls(void **state)
{
    (void)state;
    static const char template_text[] =
        "{% for m in messages %}{% if m.role == 'tool' %}<{{ m.name }} {{ m.tool_call_id }}>"
        "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}{{ c.function | tojson }}"
        "{{ c.id }}{% endfor %}]{% else %}{{ m.content }}{% endif %}{% endfor %}";
    static char raw[] = "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{},\"id\":\"abc123def\"},"
                        "{\"name\":\"g\",\"arguments\":{}}]";
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"tool_calls\":["
        CLIENT(ID("00"), "f", "{}") "," CLIENT(ID("01"), "g", "{}") "]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"" ID("01") "\",\"content\":\"r\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"" ID("00") "\",\"content\":\"r\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"123456789\",\"name\":\"h\",\"content\":\"r\"}]}";
    mx_template *t;
    struct json_object *o;
    mx_rendered r;
    mx_problem p = {0};
    size_t n_replayed;
    assert_int_equal(mx_template_parse(&t, mx_str_of(template_text), NULL), MX_OK);
    assert_int_equal(mx_json_parse(&o, mx_str_of(body), NULL), MX_OK);
    mx_chat_env env = {.template = t, .tool_form = MX_TOOL_MISTRAL, .said = said, .said_arg = raw};
    assert_true(mx_chat_render_replayed(&env, o, &r, &n_replayed, &p));
    char other[16], want[512];
    const char *g = strstr(r.text.ptr, "<g ");
    assert_non_null(g);
    assert_int_equal(sscanf(g, "<g %9[0-9A-Za-z]>", other), 1);
    assert_int_equal(strlen(other), 9);
    snprintf(want, sizeof want, "u%s<g %s><f abc123def><h 123456789>", raw, other);
    assert_string_equal(r.text.ptr, want);
    /* What is markup and what is data has moved along: the template's own words, nothing else. */
    assert_int_equal(r.n_markup, 7);
    assert_int_equal(r.markup[0].begin, 1 + strlen(raw));
    assert_int_equal(r.markup[6].end, r.text.len);
    mx_rendered_free(&r);
    env.said = NULL; /* as the client sends it, the id is the same one everywhere */
    assert_true(mx_chat_render(&env, o, &r, &p));
    snprintf(want, sizeof want, "%s]<g %s>", other, other);
    assert_non_null(strstr(r.text.ptr, want));
    mx_rendered_free(&r);
    json_object_put(o);
    mx_template_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_name_the_answer),
        cmocka_unit_test(order_and_blanks_do_not_matter),
        cmocka_unit_test(calls_are_written),
        cmocka_unit_test(what_was_sampled_is_replayed),
        cmocka_unit_test(results_follow_their_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
