/* SPDX-License-Identifier: MIT
 *
 * Calls of tools in the forms of the model families: which form a published template has, what
 * counts as a call in each, and what of an unfinished answer may be shown.
 */
#include "api/api_tools.h"

#include "base/mem.h"
#include "test_env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- which form ------------------------------------------------------------------------------ */

static void forms_of_published_templates(void **state)
{
    (void)state;
    static const struct { const char *name; mx_tool_form form; } cases[] = {
        {"Apertus-8B-Instruct", MX_TOOL_TEXT},
        {"ByteDance-Seed-OSS", MX_TOOL_XML},
        {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", MX_TOOL_TEXT},
        {"GLM-4.6", MX_TOOL_TEXT},
        {"HuggingFaceTB-SmolLM3-3B", MX_TOOL_HERMES},
        {"Kimi-K2-Instruct", MX_TOOL_TEXT},
        {"MiniMax-M2", MX_TOOL_TEXT},
        {"Mistral-Small-3.2-24B-Instruct-2506", MX_TOOL_MISTRAL},
        {"NVIDIA-Nemotron-Nano-v2", MX_TOOL_TEXT},
        {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", MX_TOOL_HERMES},
        {"Qwen-QwQ-32B", MX_TOOL_HERMES},
        {"Qwen-Qwen2.5-7B-Instruct", MX_TOOL_HERMES},
        {"Qwen-Qwen3-0.6B", MX_TOOL_HERMES},
        {"Qwen3-Coder", MX_TOOL_XML},
        {"Qwen3.5-4B", MX_TOOL_XML},
        {"SmolLM2-135M-Instruct", MX_TOOL_HERMES}, /* knows no calls at all */
        {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", MX_TOOL_DEEPSEEK},
        {"deepseek-ai-DeepSeek-V3.1", MX_TOOL_DEEPSEEK},
        {"google-gemma-4-31B-it", MX_TOOL_TEXT},
        {"ibm-granite-granite-3.3-2B-Instruct", MX_TOOL_TEXT},
        {"meetkai-functionary-medium-v3.1", MX_TOOL_XML},
        {"meta-llama-Llama-3.1-8B-Instruct", MX_TOOL_LLAMA},
        {"meta-llama-Llama-3.2-3B-Instruct", MX_TOOL_LLAMA},
        {"mistralai-Mistral-Nemo-Instruct-2407", MX_TOOL_MISTRAL},
        {"openai-gpt-oss-120b", MX_TOOL_TEXT},
        {"unsloth-mistral-Devstral-Small-2507", MX_TOOL_MISTRAL},
    };
    const char *shared = mx_test_shared();
    if (shared == NULL) {
        mx_skip_or_fail("../shared with the templates is missing");
    }
    char *text = malloc(1 << 20);
    assert_non_null(text);
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/vectors/templates/templates/%s.jinja", shared,
                 cases[i].name);
        FILE *f = fopen(path, "rb");
        if (f == NULL) {
            fail_msg("%s cannot be read", path);
        }
        size_t n = fread(text, 1, 1 << 20, f);
        fclose(f);
        mx_tool_form form = mx_tool_form_of((mx_str){text, n});
        if (form != cases[i].form) {
            fail_msg("%s: expected %s, came %s", cases[i].name, mx_tool_form_name(cases[i].form),
                     mx_tool_form_name(form));
        }
    }
    free(text);
    assert_int_equal(mx_tool_form_of(MX_STR("")), MX_TOOL_HERMES);
}

/* ---- what is a call -------------------------------------------------------------------------- */

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"d\":{\"type\":"
    "\"number\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"l\":{\"type\":\"array\"},"
    "\"z\":{\"type\":[\"null\",\"integer\"]},\"m\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
    "\"integer\"}]},\"e\":{\"enum\":[1]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}},{\"name\":\"bare\"},7]";

typedef struct form_case {
    mx_tool_form form;
    const char *text;
    const char *want; /* "content|name{arguments}|name{arguments}"; NULL: all of it is text */
} form_case;

#define HERMES(json) "<tool_call>\n" json "\n</tool_call>"
#define F_1 "{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [\"x\", 2.50]}}"
#define G_0 "<tool_call>{\"arguments\":{},\"name\":\"g\"}</tool_call>"
#define XML(function, parameters) "<tool_call>\n<function=" function ">\n" parameters \
    "</function>\n</tool_call>"
#define PARAM(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
#define DS_BEGIN "<｜tool▁calls▁begin｜>"
#define DS_END "<｜tool▁calls▁end｜>"
#define DS_CALL "<｜tool▁call▁begin｜>"
#define DS_SEP "<｜tool▁sep｜>"
#define DS_CLOSE "<｜tool▁call▁end｜>"

static const form_case cases[] = {
    /* Hermes */
    {MX_TOOL_HERMES, HERMES(F_1), "|f{\"a\":1,\"b\":[\"x\",2.50]}"},
    {MX_TOOL_HERMES, "I look.\n\n" HERMES(F_1) "\n" G_0 "\n",
     "I look.|f{\"a\":1,\"b\":[\"x\",2.50]}|g{}"},
    {MX_TOOL_HERMES, "  " G_0, "|g{}"},
    {MX_TOOL_HERMES, "", NULL},
    {MX_TOOL_HERMES, "No call.", NULL},
    {MX_TOOL_HERMES, HERMES(F_1) " and more", NULL},
    {MX_TOOL_HERMES, "<tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "|f{}"}, /* only the end fails */
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\"}</tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":7,\"arguments\":{}}</tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>",
     "|f{\"a\":1}"},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":\"a\"}</tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":\"[1]\"}</tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"parameters\":{\"a\":1}}</tool_call>", "|f{\"a\":1}"},
    {MX_TOOL_HERMES, "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}"
     "</tool_call>", "|f{}"},
    {MX_TOOL_HERMES, "<tool_call>[1]</tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{bad}</tool_call>", NULL},
    {MX_TOOL_HERMES, HERMES(F_1) "<tool_call>{bad}</tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call><function=f></function></tool_call>", NULL},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>",
     "|f{\"a\":\"</tool_call>\"}"},
    {MX_TOOL_HERMES, "<think>\nI could say <tool_call>.\n</think>\n\n" G_0,
     "<think>\nI could say <tool_call>.\n</think>|g{}"},
    {MX_TOOL_HERMES, "<think>\nFirst " G_0 ", then " G_0 "\n</think>\nDone.", NULL},
    {MX_TOOL_TEXT, G_0, NULL},
    /* Lines that were broken as they are, in a string and outside. */
    {MX_TOOL_HERMES, "<tool_call>\n{\"name\": \"f\",\n\"arguments\": {\"s\": \"a\n\tb\\n\\\"c\"}}\n</tool_call>",
     "|f{\"s\":\"a\\n\\tb\\n\\\"c\"}"},
    {MX_TOOL_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"a\\\n\"}}</tool_call>", NULL},
    /* XML */
    {MX_TOOL_XML, XML("f", PARAM("s", "a")), "|f{\"s\":\"a\"}"},
    {MX_TOOL_XML, "Now.\n\n" XML("f", PARAM("s", "a") PARAM("i", "5")) "\n" XML("g", ""),
     "Now.|f{\"s\":\"a\",\"i\":5}|g{}"},
    {MX_TOOL_XML, "<seed:tool_call>\n<function=f>\n<parameter=s>a</parameter>\n</function>\n"
     "</seed:tool_call>", "|f{\"s\":\"a\"}"},
    /* The schema decides, not the looks. */
    {MX_TOOL_XML, XML("f", PARAM("s", "02134") PARAM("s", "true") PARAM("s", "null")),
     "|f{\"s\":\"null\"}"},
    {MX_TOOL_XML, XML("f", PARAM("s", "{\"a\": 1}")), "|f{\"s\":\"{\\\"a\\\": 1}\"}"},
    {MX_TOOL_XML, XML("f", PARAM("i", "5.0") PARAM("d", "1e3") PARAM("b", "True")),
     "|f{\"i\":5.0,\"d\":1e3,\"b\":true}"},
    {MX_TOOL_XML, XML("f", PARAM("i", "5.5") PARAM("b", "yes") PARAM("d", "\"1\"")),
     "|f{\"i\":\"5.5\",\"b\":\"yes\",\"d\":\"\\\"1\\\"\"}"},
    {MX_TOOL_XML, XML("f", PARAM("o", "{\"a\": [1, 2]}") PARAM("l", "[\"x\"]") PARAM("z", "None")),
     "|f{\"o\":{\"a\":[1,2]},\"l\":[\"x\"],\"z\":null}"},
    {MX_TOOL_XML, XML("f", PARAM("m", "7") PARAM("e", "1") PARAM("other", "1")),
     "|f{\"m\":7,\"e\":\"1\",\"other\":\"1\"}"},
    {MX_TOOL_XML, XML("h", PARAM("i", "5")), "|h{\"i\":\"5\"}"}, /* a tool that there is not */
    /* One line break on each side is the mark's. */
    {MX_TOOL_XML, XML("f", PARAM("s", "\n  a\n")), "|f{\"s\":\"\\n  a\\n\"}"},
    {MX_TOOL_XML, XML("f", "<parameter=s></parameter>"), "|f{\"s\":\"\"}"},
    /* A value may hold the marks. */
    {MX_TOOL_XML, XML("f", PARAM("s", "x</parameter>y</function>")),
     "|f{\"s\":\"x</parameter>y</function>\"}"},
    {MX_TOOL_XML, XML("f", PARAM("s", "\"\\\xc3\xa4")), "|f{\"s\":\"\\\"\\\\\xc3\xa4\"}"},
    /* Marks that were forgotten. */
    {MX_TOOL_XML, "<function=f>\n" PARAM("i", "1") "</function>\n</tool_call>", "|f{\"i\":1}"},
    {MX_TOOL_XML, "<function=h>\n" PARAM("i", "1") "</function>", NULL}, /* not one of the tools */
    {MX_TOOL_XML, "<tool_call>\n<function=f>\n" PARAM("i", "1"), "|f{\"i\":1}"},
    {MX_TOOL_XML, "<tool_call>\n<function=f>\n<parameter=s>\nhalf a val", NULL},
    {MX_TOOL_XML, "<tool_call>\n<function=f>\n<param", NULL},
    {MX_TOOL_XML, "<tool_call>\n<function=>\n</function>\n</tool_call>", NULL},
    {MX_TOOL_XML, "<tool_call>\n<function=a b>\n</function>\n</tool_call>", NULL},
    {MX_TOOL_XML, XML("f", "") " so.", NULL},
    {MX_TOOL_XML, HERMES(F_1), NULL},
    {MX_TOOL_XML, "I look.<function=f>{\"s\": \"</function>\"}</function><function=g>{}</function>",
     "I look.|f{\"s\":\"</function>\"}|g{}"},
    {MX_TOOL_XML, "<function=h>{}</function>", NULL},
    {MX_TOOL_XML, "<function=f>{\"s\": 1</function>", NULL},
    {MX_TOOL_XML, "<function=f>[1]</function>", NULL},
    {MX_TOOL_XML, "I would write <function=f> here.", NULL},
    /* Llama */
    {MX_TOOL_LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "|f{\"a\":1}"},
    {MX_TOOL_LLAMA, "\n<|python_tag|>{\"name\": \"g\", \"parameters\": {}}\n", "|g{}"},
    {MX_TOOL_LLAMA, "I look. <|python_tag|>{\"name\": \"g\", \"parameters\": {}}", "I look.|g{}"},
    {MX_TOOL_LLAMA, "{\"type\": \"function\", \"name\": \"g\", \"parameters\": {}}", "|g{}"},
    {MX_TOOL_LLAMA, "{\"type\": \"function\", \"function\": {\"name\": \"g\", \"parameters\": {}}}",
     "|g{}"},
    {MX_TOOL_LLAMA, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
     "|f{}|g{}"},
    {MX_TOOL_LLAMA, "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"arguments\": {}}",
     "|f{}|g{}"},
    {MX_TOOL_LLAMA, "{\"name\": \"Anna\", \"parameters\": {}}", NULL}, /* an answer that is JSON */
    {MX_TOOL_LLAMA, "{\"name\": \"f\"}", NULL},
    {MX_TOOL_LLAMA, "{\"name\": \"f\", \"parameters\": {\"a\": ", NULL},
    {MX_TOOL_LLAMA, "Like {\"name\": \"f\", \"parameters\": {}}", NULL},
    {MX_TOOL_LLAMA, "{\"name\": \"f\", \"parameters\": {}} as asked", NULL},
    {MX_TOOL_LLAMA, "<|python_tag|>f.call(a=\"1\")", NULL},
    {MX_TOOL_LLAMA, "<|python_tag|>", NULL},
    {MX_TOOL_LLAMA, "{\"town\": \"Oslo\"}", NULL},
    /* Mistral */
    {MX_TOOL_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abc123def\"},"
     " {\"name\": \"g\", \"arguments\": {}}]", "|f{\"a\":1}#abc123def|g{}"},
    {MX_TOOL_MISTRAL, "I look.[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": {}}]", "I look.|g{}"},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": \"}\"}", "|f{\"a\":\"}\"}"},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]g[CALL_ID]x[ARGS]{\"b\": 2}",
     "|f{}#abc123def|g{\"b\":2}#x"},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]g{}", "|g{}"},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS][]", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 7]", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": 1", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]f[ARGS]x{}", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]f[CALL_ID]x{}", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]two words[ARGS]{}", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS][ARGS]{}", NULL},
    {MX_TOOL_MISTRAL, "[TOOL_CALLS]f[ARGS]{} and more", NULL},
    {MX_TOOL_MISTRAL, "[{\"name\": \"f\", \"arguments\": {}}]", NULL},
    /* DeepSeek */
    {MX_TOOL_DEEPSEEK, DS_BEGIN DS_CALL "f" DS_SEP "{\"a\": 1}" DS_CLOSE DS_CALL "g" DS_SEP "{}" DS_CLOSE
     DS_END, "|f{\"a\":1}|g{}"},
    {MX_TOOL_DEEPSEEK, "I look.\n" DS_BEGIN DS_CALL "function" DS_SEP "f\n```json\n{\"a\": 1}\n```"
     DS_CLOSE "\n" DS_CALL "function" DS_SEP "g\n```json\n{}\n```" DS_CLOSE DS_END,
     "I look.|f{\"a\":1}|g{}"},
    {MX_TOOL_DEEPSEEK, DS_CALL "g" DS_SEP "{}" DS_CLOSE, "|g{}"},
    {MX_TOOL_DEEPSEEK, DS_BEGIN DS_CALL "g" DS_SEP "{}", "|g{}"},
    {MX_TOOL_DEEPSEEK, DS_BEGIN DS_CALL "g" DS_SEP "{", NULL},
    {MX_TOOL_DEEPSEEK, DS_BEGIN DS_CALL "g", NULL},
    {MX_TOOL_DEEPSEEK, DS_BEGIN DS_END, NULL},
    {MX_TOOL_DEEPSEEK, DS_BEGIN DS_CALL "g" DS_SEP "{}" DS_CLOSE DS_END " so", NULL},
    {MX_TOOL_DEEPSEEK, DS_BEGIN DS_CALL "function" DS_SEP "g", NULL},
};

static void describe(const mx_tool_calls *c, mx_buf *out)
{
    mx_buf_append(out, c->content.ptr, c->content.len);
    for (size_t i = 0; i < c->n; i++) {
        mx_str arguments = mx_tool_call_arguments(&c->calls[i]);
        mx_buf_char(out, '|');
        mx_buf_append(out, c->calls[i].name.ptr, c->calls[i].name.len);
        mx_buf_append(out, arguments.ptr, arguments.len);
        if (c->calls[i].id.len > 0) {
            mx_buf_printf(out, "#%.*s", (int)c->calls[i].id.len, c->calls[i].id.ptr);
        }
    }
}

static struct json_object *tools(void)
{
    struct json_object *o;
    assert_int_equal(mx_json_parse(&o, mx_str_of(tools_json), NULL), MX_OK);
    return o;
}

static void calls_are_read(void **state)
{
    (void)state;
    struct json_object *list = tools();
    int64_t live = mx_mem_live();
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_tool_calls c;
        mx_buf came = {0};
        bool ok = mx_tool_calls_read(&c, cases[i].form, list, mx_str_of(cases[i].text));
        assert_int_equal(ok, c.n > 0);
        if (ok) {
            describe(&c, &came);
        }
        if (ok != (cases[i].want != NULL) || (ok && strcmp(came.ptr, cases[i].want) != 0)) {
            fail_msg("%s: %s\nexpected: %s\ncame:     %s", mx_tool_form_name(cases[i].form),
                     cases[i].text, cases[i].want ? cases[i].want : "text",
                     ok ? came.ptr : "text");
        }
        mx_buf_free(&came);
        mx_tool_calls_free(&c);
    }
    assert_int_equal(mx_mem_live(), live);
    json_object_put(list);
}

/* Without the request's tools nothing fails; only where a name alone makes a call, there is none. */
static void tools_may_be_unknown(void **state)
{
    (void)state;
    mx_tool_calls c;
    assert_true(mx_tool_calls_read(&c, MX_TOOL_XML, NULL, MX_STR(XML("f", PARAM("i", "5")))));
    assert_true(mx_str_eq(mx_tool_call_arguments(&c.calls[0]), MX_STR("{\"i\":\"5\"}")));
    mx_tool_calls_free(&c);
    assert_false(mx_tool_calls_read(&c, MX_TOOL_LLAMA, NULL,
                                    MX_STR("{\"name\":\"f\",\"parameters\":{}}")));
}

/* More than can be told apart by an id of ours stay text. */
static void calls_are_counted(void **state)
{
    (void)state;
    static const struct { mx_tool_form form; const char *call; } forms[] = {
        {MX_TOOL_HERMES, G_0}, {MX_TOOL_XML, XML("g", "")}, {MX_TOOL_MISTRAL, "[TOOL_CALLS]g[ARGS]{}"},
        {MX_TOOL_LLAMA, "{\"name\":\"g\",\"parameters\":{}}"},
        {MX_TOOL_DEEPSEEK, DS_CALL "g" DS_SEP "{}" DS_CLOSE},
    };
    struct json_object *list = tools();
    for (size_t k = 0; k < MX_COUNT(forms); k++) {
        mx_buf many = {0};
        for (int i = 0; i < MX_TOOL_CALLS_MAX; i++) {
            mx_buf_str(&many, forms[k].call);
        }
        mx_tool_calls c;
        assert_true(mx_tool_calls_read(&c, forms[k].form, list, mx_buf_view(&many)));
        assert_int_equal(c.n, MX_TOOL_CALLS_MAX);
        mx_tool_calls_free(&c);
        /* One more in front: the first cannot be one, the others are, and are shown as what they
         * are only if all are. */
        mx_buf_str(&many, forms[k].call);
        if (mx_tool_calls_read(&c, forms[k].form, list, mx_buf_view(&many))) {
            assert_true(c.content.len > 0);
            mx_tool_calls_free(&c);
        }
        mx_buf_free(&many);
    }
    json_object_put(list);
}

/* ---- what may be shown ----------------------------------------------------------------------- */

/* However an answer is cut into pieces, nothing of a call is shown, and nothing is ever taken
 * back. */
static void nothing_is_shown_too_early(void **state)
{
    (void)state;
    struct json_object *list = tools();
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_str text = mx_str_of(cases[i].text);
        size_t before = 0;
        mx_tool_calls c;
        bool has_calls = mx_tool_calls_read(&c, cases[i].form, list, text);
        for (size_t n = 0; n <= text.len; n++) {
            size_t safe = mx_tool_calls_safe(cases[i].form, (mx_str){text.ptr, n});
            if (safe > n || safe < before || (has_calls && safe > c.content.len)) {
                fail_msg("%s: of the first %zu bytes %zu are shown, before %zu", text.ptr, n, safe,
                         before);
            }
            before = safe;
        }
        mx_tool_calls_free(&c);
    }
    json_object_put(list);
}

/* Nor is anything held back that cannot be one. */
static void text_is_shown(void **state)
{
    (void)state;
    static const struct { mx_tool_form form; const char *text; size_t shown; } texts[] = {
        {MX_TOOL_HERMES, "I look. \n\n" G_0, 7}, {MX_TOOL_HERMES, "a < b <tool_calls", 17},
        {MX_TOOL_HERMES, "a <tool", 1}, {MX_TOOL_HERMES, "a <tool!", 8}, {MX_TOOL_HERMES, "plain  ", 5},
        {MX_TOOL_TEXT, "a " G_0 " ", 53}, {MX_TOOL_XML, "a <func", 1}, {MX_TOOL_XML, "a <fun!", 7},
        {MX_TOOL_LLAMA, "{\"na", 0}, {MX_TOOL_LLAMA, "{\"town\": 1", 10}, {MX_TOOL_LLAMA, "[{\"name\"", 8},
        {MX_TOOL_LLAMA, "a {\"name\"", 9}, {MX_TOOL_LLAMA, "a <|python", 1},
        {MX_TOOL_MISTRAL, "a [TOOL", 1}, {MX_TOOL_MISTRAL, "a [TOO]", 7},
        {MX_TOOL_DEEPSEEK, "a <\xef\xbd\x9c", 1}, {MX_TOOL_DEEPSEEK, "a <|", 4},
    };
    for (size_t i = 0; i < MX_COUNT(texts); i++) {
        size_t came = mx_tool_calls_safe(texts[i].form, mx_str_of(texts[i].text));
        if (came != texts[i].shown) {
            fail_msg("%s: expected %zu bytes, came %zu", texts[i].text, texts[i].shown, came);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_of_published_templates),
        cmocka_unit_test(calls_are_read),
        cmocka_unit_test(tools_may_be_unknown),
        cmocka_unit_test(calls_are_counted),
        cmocka_unit_test(nothing_is_shown_too_early),
        cmocka_unit_test(text_is_shown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
