/* SPDX-License-Identifier: MIT
 *
 * Chat requests to prompt text: the shapes clients send, what a template sees, what is markup, and
 * the continuation of a last assistant message.
 */
#include "api/api_chat.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const char chatml[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* Renders with a template; the text is the caller's to free through *r. */
static bool render(const char *template, const char *body, mx_rendered *r, mx_problem *p)
{
    mx_template *t = NULL;
    mx_errbuf eb = {0};
    struct json_object *o = NULL;
    if (template != NULL && mx_template_parse(&t, mx_str_of(template), &eb) != MX_OK) {
        fail_msg("template: %s", eb.text);
    }
    if (mx_json_parse(&o, mx_str_of(body), &eb) != MX_OK) {
        fail_msg("%s: %s", body, eb.text);
    }
    mx_chat_env env = {.template = t, .bos_text = MX_STR("<s>"), .eos_text = MX_STR("</s>")};
    *p = (mx_problem){0};
    bool ok = mx_chat_render(&env, o, r, p);
    json_object_put(o);
    mx_template_destroy(t);
    return ok;
}

static void expect_text(const char *template, const char *body, const char *want)
{
    mx_rendered r;
    mx_problem p;
    if (!render(template, body, &r, &p)) {
        fail_msg("%s was refused: %s", body, p.message);
    }
    mx_str got = mx_buf_view(&r.text);
    if (!mx_str_eq(got, mx_str_of(want))) {
        fail_msg("%s\nexpected: %s\ngot:      %.*s", body, want, (int)got.len, got.ptr);
    }
    mx_rendered_free(&r);
}

static void expect_problem(const char *template, const char *body, const char *param)
{
    mx_rendered r;
    mx_problem p;
    bool ok = render(template, body, &r, &p);
    if (ok || p.status != 400 || strcmp(p.param, param) != 0 || strstr(p.message, param) == NULL) {
        fail_msg("%s: expected 400 for '%s', got %u for '%s': %s", body, param, p.status, p.param,
                 p.message);
    }
    mx_rendered_free(&r);
}

static void message_shapes(void **state)
{
    (void)state;
    expect_text(chatml, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}",
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    expect_text(chatml, "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\","
                "\"text\":\"A\"},{\"type\":\"input_text\",\"text\":\"B\"},{\"type\":\"odd\"}]}]}",
                "<|im_start|>system\nAB<|im_end|>\n<|im_start|>assistant\n");
    expect_text(chatml,
                "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]},"
                "{\"role\":\"user\"}]}",
                "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
                "<|im_start|>assistant\n");
    expect_text(chatml, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                "\"add_generation_prompt\":false}", "<|im_start|>user\nx<|im_end|>\n");
    expect_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "<s>x</s>");
}

static void tools_and_variables(void **state)
{
    (void)state;
    expect_text("{% if tools is defined %}yes{% else %}no{% endif %}",
                "{\"messages\":[{\"role\":\"user\"}],\"tools\":[]}", "no");
    expect_text("{{ tools | tojson }}",
                "{\"messages\":[{\"role\":\"user\"}],\"tools\":[{\"type\":\"function\",\"function\":"
                "{\"name\":\"f\",\"parameters\":{\"z\":1.5,\"a\":18446744073709551616}}},"
                "{\"type\":\"web_search\"}]}",
                "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                "{\"z\": 1.5, \"a\": 18446744073709551616}}}]");
    expect_text("{{ messages[0].tool_calls[0].function.arguments.b }}",
                "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\","
                "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"b\\\": 7}\"}}]}]}", "7");
    expect_text("{{ messages[0].tool_calls[0].function.arguments }}",
                "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\","
                "\"function\":{\"name\":\"f\",\"arguments\":\"not json\"}}]}]}", "not json");
    expect_text("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
                "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\"},"
                "{\"role\":\"user\"}]}", "rr");
    expect_text("{{ enable_thinking }} {{ reasoning_effort }} {{ x }}",
                "{\"messages\":[{\"role\":\"user\"}],\"reasoning_effort\":\"none\","
                "\"chat_template_kwargs\":{\"x\":[1]}}", "False none [1]");
}

static void continues_the_assistant(void **state)
{
    (void)state;
    expect_text(chatml, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                "{\"role\":\"assistant\",\"content\":\"Once \"}]}",
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce ");
    expect_text(chatml, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},"
                "{\"role\":\"assistant\",\"content\":\"Once\"}],\"continue_final_message\":false}",
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nOnce<|im_end|>\n"
                "<|im_start|>assistant\n");
    expect_problem(chatml, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"},"
                   "{\"role\":\"assistant\",\"content\":\"b\"}]}", "messages");
    expect_problem("{{ messages[0].content }}", "{\"messages\":[{\"role\":\"user\"},"
                   "{\"role\":\"assistant\",\"content\":\"b\"}]}", "messages");
}

/* What the last message's end is found by must be nothing that a client can send. A template that
 * does not cut shows it: each rendering has another mark, so none can be known beforehand. */
static void mark_is_unknown(void **state)
{
    (void)state;
    static const char template[] = "{{ messages[-1].content ~ '!' ~ messages[-1].content }}";
    static const char body[] = "{\"messages\":[{\"role\":\"user\"},{\"role\":\"assistant\","
                               "\"content\":\"A\"}]}";
    expect_text(template, body, "A");
    /* A template that puts one letter of the mark before the content shows that letter. */
    char seen[64] = "";
    size_t n_changes = 0;
    for (int i = 0; i < 64; i++) {
        mx_rendered r;
        mx_problem p;
        assert_true(render("{{ messages[-1].content[-1:] ~ messages[-1].content }}", body, &r, &p));
        assert_int_equal(r.text.len, 2); /* one letter of the mark, then "A" */
        seen[i] = r.text.ptr[0];
        n_changes += i > 0 && seen[i] != seen[i - 1];
        mx_rendered_free(&r);
    }
    assert_in_range(n_changes, 1, 63); /* 64 equal hexadecimal digits by chance: 16^-63 */
}

static void user_text_is_not_markup(void **state)
{
    (void)state;
    mx_rendered r;
    mx_problem p;
    assert_true(render(chatml, "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}]}",
                       &r,
                       &p));
    const char *at = strstr(r.text.ptr, "<|im_end|>");
    assert_non_null(at);
    size_t begin = (size_t)(at - r.text.ptr), end = begin + strlen("<|im_end|>");
    size_t n_marked = 0;
    for (size_t i = 0; i < r.n_markup; i++) {
        if (r.markup[i].begin < end && r.markup[i].end > begin) {
            fail_msg("the user's text %zu..%zu is inside the markup %zu..%zu", begin, end,
                     r.markup[i].begin, r.markup[i].end);
        }
        n_marked += r.markup[i].end - r.markup[i].begin;
    }
    assert_true(n_marked > 20);
    mx_rendered_free(&r);
}

static void refusals(void **state)
{
    (void)state;
    static const struct { const char *body, *param; } rows[] = {
        {"{}", "messages"},
        {"{\"messages\":null}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":\"hi\"}", "messages"},
        {"{\"messages\":{}}", "messages"},
        {"{\"messages\":[1]}", "messages[0]"},
        {"{\"messages\":[[]]}", "messages[0]"},
        {"{\"messages\":[{}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":1}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"king\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{}]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}},{\"role\":\"user\"}]}",
         "messages[0].tool_calls"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[1]}]}", "messages[0].tool_calls"},
        {"{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":1}]}", "messages[0].tool_call_id"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":{}}", "tools"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":[1]}", "tools"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":[{\"function\":{}}]}", "tools"},
        {"{\"messages\":[{\"role\":\"user\"}],\"functions\":[1]}", "functions"},
        {"{\"messages\":[{\"role\":\"user\"}],\"functions\":[{}]}", "functions"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tool_choice\":\"required\"}", "tool_choice"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tool_choice\":7}", "tool_choice"},
        {"{\"messages\":[{\"role\":\"user\"}],\"functions\":[{\"name\":\"f\"}],\"function_call\":"
         "{\"name\":\"f\"}}", "function_call"},
        {"{\"messages\":[{\"role\":\"user\"}],\"functions\":[{\"name\":\"f\",\"parameters\":[]}]}",
         "functions"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":[{\"function\":{\"name\":\"f\","
         "\"parameters\":\"{}\"}}]}", "tools"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\"}],\"chat_template_kwargs\":[]}",
         "chat_template_kwargs"},
        {"{\"messages\":[{\"role\":\"user\"}],\"chat_template_kwargs\":{\"messages\":1}}",
         "chat_template_kwargs"},
        {"{\"messages\":[{\"role\":\"user\"}],\"continue_final_message\":true}",
         "continue_final_message"},
        {"{\"messages\":[{\"role\":\"user\"}],\"reasoning_effort\":1}", "reasoning_effort"},
    };
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        expect_problem(chatml, rows[i].body, rows[i].param);
    }
    expect_problem("{{ raise_exception('no kings') }}", "{\"messages\":[{\"role\":\"user\"}]}",
                   "messages");
    expect_problem(NULL, "{\"messages\":[{\"role\":\"user\"}]}", "messages");
}

/* Every allocation fails once: a refusal with a reason, no leak, and success when none fails. */
static void survives_lack_of_memory(void **state)
{
    (void)state;
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}]},"
        "{\"role\":\"assistant\",\"content\":\"Once\",\"reasoning\":\"r\"}],\"tools\":[{\"function\":"
        "{\"name\":\"f\"}}],\"chat_template_kwargs\":{\"x\":[1,2.5,null]}}";
    mx_template *t = NULL;
    struct json_object *o = NULL;
    assert_int_equal(mx_template_parse(&t, mx_str_of(chatml), NULL), MX_OK);
    assert_int_equal(mx_json_parse(&o, mx_str_of(body), NULL), MX_OK);
    mx_chat_env env = {.template = t};
    int64_t live = mx_mem_live();
    bool ok = false;
    uint64_t k = 0;
    while (!ok && ++k < 10000) {
        mx_rendered r;
        mx_problem p = {0};
        mx_mem_fail_at(k);
        ok = mx_chat_render(&env, o, &r, &p);
        mx_mem_fail_at(0);
        if (!ok && p.status != 500) {
            fail_msg("allocation %llu: status %u: %s", (unsigned long long)k, p.status, p.message);
        }
        mx_rendered_free(&r);
        if (mx_mem_live() != live) {
            fail_msg("allocation %llu: %lld blocks are left", (unsigned long long)k,
                     (long long)(mx_mem_live() - live));
        }
    }
    assert_true(ok && k > 3);
    json_object_put(o);
    mx_template_destroy(t);
}

/* The stem is what a conversation of somebody else with the same system message and tools begins with,
 * too, up to the end of markup. */
static void expect_stem(const char *template, const char *body, const char *want)
{
    mx_template *t = NULL;
    struct json_object *o = NULL;
    mx_rendered r;
    mx_problem p = {0};
    assert_int_equal(mx_template_parse(&t, mx_str_of(template), NULL), MX_OK);
    assert_int_equal(mx_json_parse(&o, mx_str_of(body), NULL), MX_OK);
    mx_chat_env env = {.template = t, .bos_text = MX_STR("<s>"), .eos_text = MX_STR("</s>")};
    assert_true(mx_chat_render(&env, o, &r, &p));
    size_t n = mx_chat_stem(&env, o, &r);
    if (n != strlen(want) || memcmp(r.text.ptr, want, n) != 0) {
        fail_msg("%s\nexpected: %s\ngot:      %.*s", body, want, (int)n, r.text.ptr);
    }
    mx_rendered_free(&r);
    json_object_put(o);
    mx_template_destroy(t);
}

static void test_stem(void **state)
{
    (void)state;
    static const char with_tools[] =
        "{{ bos_token }}{% if tools %}[tools]{% for t in tools %}{{ t.function.name }};{% endfor %}"
        "{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}";
    expect_stem(with_tools, "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
                "{\"role\":\"user\",\"content\":\"Hello\"}]}",
                "<s><|system|>Be brief.<|end|><|user|>");
    expect_stem(with_tools, "{\"messages\":[{\"role\":\"developer\",\"content\":\"A\"},"
                "{\"role\":\"user\",\"content\":\"...\"},{\"role\":\"assistant\","
                "\"content\":\"B\"},{\"role\":\"user\",\"content\":\"C\"}],"
                "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
                "<s>[tools]f;<|system|>A<|end|><|user|>");
    expect_stem(with_tools, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "<s><|user|>");
    /* Templates that refuse, or put something else first. */
    expect_stem("{% if messages | length < 3 %}{{ raise_exception('short') }}{% endif %}"
                "{% for m in messages %}<{{ m.content }}>{% endfor %}",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                "\"content\":\"b\"},{\"role\":\"user\",\"content\":\"c\"}]}", "");
    expect_stem("{{ messages[-1].content }}: {% for m in messages %}<{{ m.content }}>{% endfor %}",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stem),
        cmocka_unit_test(message_shapes),
        cmocka_unit_test(tools_and_variables),
        cmocka_unit_test(continues_the_assistant),
        cmocka_unit_test(mark_is_unknown),
        cmocka_unit_test(user_text_is_not_markup),
        cmocka_unit_test(refusals),
        cmocka_unit_test(survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
