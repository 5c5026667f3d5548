/* SPDX-License-Identifier: MIT
 *
 * Calls of tools with the published templates of the model families, through the whole server: a
 * model that writes a call in its family's form, marks as control tokens where it has them so, and
 * a client that sends the call back in words of its own. The next prompt has what was sampled, and
 * begins with all of it.
 */
#include "api/api_tool_form.h"
#include "api_rig.h"

#include "test_env.h"

static const mx_api_config sampled = {.canonical_prompts = false};

typedef struct family {
    const char *template_name;
    bool is_partly; /* what opens an answer is not repeated before it: the answer is read again */
    mx_tiny_word words[6];
} family;

#define HERMES_CALL "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " \
    "{\"town\": \"Oslo\", \"days\": 3}}\n</tool_call>"
#define XML_CALL "<tool_call>\n<function=get_weather>\n<parameter=town>\nOslo\n</parameter>\n" \
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
#define ARGUMENTS "{\"town\": \"Oslo\", \"days\": 3}"
#define LLAMA_CALL "{\"name\": \"get_weather\", \"parameters\":  " ARGUMENTS "}"

static const family families[] = {
    {"Qwen-Qwen3-0.6B", false, {{"I look.\n", false}, {HERMES_CALL, false}}},
    {"Qwen-Qwen2.5-7B-Instruct", false, {{"<tool_call>", true}, {HERMES_CALL + 11, false}}},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", false, {{HERMES_CALL, false}}},
    {"Qwen-QwQ-32B", true, {{HERMES_CALL, false}}},
    {"SmolLM2-135M-Instruct", false, {{HERMES_CALL, false}}},
    {"HuggingFaceTB-SmolLM3-3B", false, {{HERMES_CALL, false}}},
    {"Qwen3-Coder", false, {{XML_CALL, false}}},
    {"Qwen3.5-4B", false, {{"I look.\n</think>\n\n", false}, {XML_CALL, false}}},
    {"ByteDance-Seed-OSS", false,
     {{"<seed:tool_call>", true}, {"\n<function=get_weather>\n<parameter=town>Oslo</parameter>\n"
      "<parameter=days>3</parameter>\n</function>\n", false}, {"</seed:tool_call>", true}}},
    {"meetkai-functionary-medium-v3.1", false,
     {{"<function=get_weather>" ARGUMENTS "</function>", false}}},
    {"meta-llama-Llama-3.1-8B-Instruct", false, {{LLAMA_CALL, false}}},
    {"meta-llama-Llama-3.2-3B-Instruct", false, {{"<|python_tag|>", true}, {LLAMA_CALL, false}}},
    {"mistralai-Mistral-Nemo-Instruct-2407", false,
     {{"[TOOL_CALLS]", true}, {"[{\"name\": \"get_weather\", \"arguments\": " ARGUMENTS
      ", \"id\": \"abc123def\"}]", false}}},
    {"Mistral-Small-3.2-24B-Instruct-2506", false,
     {{"[TOOL_CALLS]", true}, {"get_weather", false}, {"[CALL_ID]", true}, {"abc123def", false},
      {"[ARGS]", true}, {ARGUMENTS, false}}},
    {"unsloth-mistral-Devstral-Small-2507", false,
     {{"I look.", false}, {"[TOOL_CALLS]", true}, {"get_weather", false}, {"[ARGS]", true},
      {ARGUMENTS, false}}},
    {"deepseek-ai-DeepSeek-V3.1", false,
     {{"<｜tool▁calls▁begin｜>", true}, {"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" ARGUMENTS
      "<｜tool▁call▁end｜>", false}, {"<｜tool▁calls▁end｜>", true}}},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", true,
     {{"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
      ARGUMENTS "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>", false}}},
};

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fail_msg("%s cannot be read", path);
    }
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

static char *template_of(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/vectors/templates/templates/%s.jinja", mx_test_shared(), name);
    return read_text(path);
}

static const family *family_of(const char *name)
{
    size_t i = 0;
    while (strcmp(families[i].template_name, name) != 0) {
        assert_true(++i < MX_COUNT(families));
    }
    return &families[i];
}

static int start(service *s, const family *f, const char *text)
{
    mx_tiny_spec spec = mx_tiny_default();
    int n = 0;
    while (n < (int)MX_COUNT(f->words) && f->words[n].text != NULL) {
        n++;
    }
    spec.n_ctx = 8192;
    spec.chat_template = text;
    spec.words = f->words;
    spec.n_words = (uint32_t)n;
    service_start_spec(s, &sampled, spec, 0);
    return n;
}

#define SCHEMA "{\"type\":\"object\",\"properties\":{\"town\":{\"type\":\"string\",\"description\":" \
    "\"Which town.\"},\"days\":{\"type\":\"integer\",\"description\":\"How many.\"}},\"required\":[" \
    "\"town\"]}"
#define CHAT_TOOLS ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"," \
    "\"description\":\"The weather.\",\"parameters\":" SCHEMA "}}]"
#define MESSAGES_TOOLS ",\"tools\":[{\"name\":\"get_weather\",\"description\":\"The weather.\"," \
    "\"input_schema\":" SCHEMA "}]"
#define ASK "{\"role\":\"user\",\"content\":\"Weather in Oslo for 3 days?\"}"

static struct json_object *ask_for(service *s, const char *path, const char *body)
{
    client_reply r;
    post(s, path, 0, body, &r);
    struct json_object *o = json_tokener_parse(r.body.ptr);
    assert_non_null(o);
    reply_free(&r);
    return o;
}

static int number(struct json_object *o, const char *name)
{
    return json_object_get_int(field(o, name));
}

static const char *string(struct json_object *o, const char *name)
{
    return json_object_get_string(field(o, name));
}

/* Prompt and answer of the first turn, in tokens; the id of its call, and the text before it. */
typedef struct turn {
    size_t prompt, all;
    char id[64], content[64];
} turn;

static void expect_call(const family *f, struct json_object *arguments, const char *name)
{
    if (strcmp(name, "get_weather") != 0 || json_object_object_length(arguments) != 2 ||
        strcmp(string(arguments, "town"), "Oslo") != 0 || number(arguments, "days") != 3)
    {
        fail_msg("%s: came %s %s", f->template_name, name, json_object_to_json_string(arguments));
    }
}

static turn first_on_chat(service *s, const family *f, int n_words)
{
    turn t = {0};
    char body[2048], words[256];
    snprintf(body, sizeof body, "{\"messages\":[" ASK "]" CHAT_TOOLS "%s}",
             says_words(n_words, words));
    struct json_object *o = ask_for(s, "/v1/chat/completions", body);
    struct json_object *choice = json_object_array_get_idx(field(o, "choices"), 0);
    struct json_object *message = field(choice, "message"), *usage = field(o, "usage");
    if (strcmp(string(choice, "finish_reason"), "tool_calls") != 0) {
        fail_msg("%s: no call in \"%s\"", f->template_name, string(message, "content"));
    }
    struct json_object *call = json_object_array_get_idx(field(message, "tool_calls"), 0);
    struct json_object *function = field(call, "function");
    struct json_object *arguments = json_tokener_parse(string(function, "arguments"));
    expect_call(f, arguments, string(function, "name"));
    json_object_put(arguments);
    snprintf(t.id, sizeof t.id, "%s", string(call, "id"));
    snprintf(t.content, sizeof t.content, "%s",
             json_object_to_json_string_ext(field(message, "content"), JSON_C_TO_STRING_NOSLASHESCAPE));
    t.prompt = (size_t)number(usage, "prompt_tokens");
    t.all = t.prompt + (size_t)number(usage, "completion_tokens");
    json_object_put(o);
    return t;
}

static void expect_replay(const family *f, const turn *t, struct json_object *usage, const char *where)
{
    struct json_object *cache = field(usage, "cache");
    size_t want = f->is_partly ? t->prompt - 20 : t->all - 1;
    if (strcmp(string(cache, "prompt_source"), "tool_map") != 0 ||
        (size_t)number(cache, "ram_tokens") < want)
    {
        fail_msg("%s, %s: expected %zu tokens of a tool_map (prompt %zu), came %s", f->template_name,
                 where, want, t->prompt, json_object_to_json_string(usage));
    }
}

/* more: messages behind the result, each with a comma in front. */
static struct json_object *second_on_chat(service *s, const turn *t, const char *more)
{
    char body[4096];
    snprintf(body, sizeof body, "{\"messages\":[" ASK ",{\"role\":\"assistant\",\"content\":%s,"
             "\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":"
             "\"get_weather\",\"arguments\":\"{ \\\"days\\\":3,\\\"town\\\":\\\"Oslo\\\"}\"}}]},"
             "{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"Rain.\"}%s],"
             "\"max_tokens\":1" CHAT_TOOLS "}", t->content, t->id, t->id, more);
    return ask_for(s, "/v1/chat/completions", body);
}

static struct json_object *second_on_messages(service *s, const turn *t)
{
    char body[4096], text[128] = "";
    if (strcmp(t->content, "\"\"") != 0) {
        snprintf(text, sizeof text, "{\"type\":\"text\",\"text\":%s},", t->content);
    }
    snprintf(body, sizeof body, "{\"messages\":[" ASK ",{\"role\":\"assistant\",\"content\":[%s"
             "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":\"get_weather\",\"input\":{\"days\":3,"
             "\"town\":\"Oslo\"}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
             "\"tool_use_id\":\"%s\",\"content\":\"Rain.\"}]}],\"max_tokens\":1" MESSAGES_TOOLS "}",
             text, t->id, t->id);
    return ask_for(s, "/v1/messages", body);
}

/* docs/tools.md says so. */
static void expect_row(const char *doc, const family *f, const char *template_text)
{
    char row[256];
    mx_tool_form form = mx_tool_form_of(mx_str_of(template_text));
    snprintf(row, sizeof row, "| %s | %s | %s", f->template_name, mx_tool_form_name(form),
             f->is_partly ? "the prompt, up to what opens the answer |" : "all");
    if (strstr(doc, row) == NULL) {
        fail_msg("docs/tools.md has no row with\n%s", row);
    }
}

static void calls_are_replayed(void **state)
{
    (void)state;
    if (mx_test_shared() == NULL) {
        mx_skip_or_fail("../shared with the templates is missing");
    }
    char *doc = read_text("docs/tools.md");
    for (size_t i = 0; i < MX_COUNT(families); i++) {
        const family *f = &families[i];
        service s;
        char *text = template_of(f->template_name);
        int n_words = start(&s, f, text);
        expect_row(doc, f, text);
        turn t = first_on_chat(&s, f, n_words);
        struct json_object *o = second_on_chat(&s, &t, "");
        expect_replay(f, &t, field(o, "usage"), "chat");
        json_object_put(o);
        o = second_on_messages(&s, &t);
        expect_replay(f, &t, field(o, "usage"), "messages");
        json_object_put(o);
        /* The conversation goes on; some templates move things then, but none refuses it. */
        o = second_on_chat(&s, &t, ",{\"role\":\"assistant\",\"content\":\"It rains.\"},{\"role\":"
                           "\"user\",\"content\":\"Thanks.\"}");
        assert_string_equal(string(field(field(o, "usage"), "cache"), "prompt_source"), "tool_map");
        json_object_put(o);
        service_stop(&s);
        free(text);
    }
    size_t n_rows = 0;
    for (const char *at = strstr(doc, "| reused |"); (at = strstr(at, "\n| ")) != NULL; at++) {
        n_rows++;
    }
    assert_int_equal(n_rows, MX_COUNT(families));
    free(doc);
}

/* The same call in a stream: its text is not seen, its content is. */
static void calls_are_streamed(void **state)
{
    (void)state;
    if (mx_test_shared() == NULL) {
        mx_skip_or_fail("../shared with the templates is missing");
    }
    for (size_t i = 0; i < MX_COUNT(families); i++) {
        const family *f = &families[i];
        service s;
        client_reply r;
        char body[2048], words[256];
        char *text = template_of(f->template_name);
        int n_words = start(&s, f, text);
        snprintf(body, sizeof body, "{\"stream\":true,\"messages\":[" ASK "]" MESSAGES_TOOLS "%s}",
                 says_words(n_words, words));
        post(&s, "/v1/messages", 0, body, &r);
        if (strstr(r.body.ptr, "\"stop_reason\":\"tool_use\"") == NULL ||
            strstr(r.body.ptr, "\"name\":\"get_weather\"") == NULL ||
            strstr(r.body.ptr, "tool_call>") != NULL || strstr(r.body.ptr, "<function") != NULL ||
            strstr(r.body.ptr, "TOOL_CALLS") != NULL || strstr(r.body.ptr, "python") != NULL ||
            strstr(r.body.ptr, "▁") != NULL)
        {
            fail_msg("%s: %s", f->template_name, r.body.ptr);
        }
        reply_free(&r);
        service_stop(&s);
        free(text);
    }
}

/* Ids that a template does not take are others in the prompt, the same ones each time. */
static void foreign_ids_are_made_to_fit(void **state)
{
    (void)state;
    if (mx_test_shared() == NULL) {
        mx_skip_or_fail("../shared with the templates is missing");
    }
    const family *f = family_of("Mistral-Small-3.2-24B-Instruct-2506");
    service s;
    char *text = template_of(f->template_name);
    assert_non_null(strstr(text, "length != 9"));
    start(&s, f, text);
    turn t = {.content = "\"\"", .id = "toolu_from_elsewhere"};
    struct json_object *one = second_on_chat(&s, &t, ""), *two = second_on_chat(&s, &t, "");
    struct json_object *cache = field(field(two, "usage"), "cache");
    assert_string_equal(string(cache, "prompt_source"), "client");
    assert_int_equal(number(cache, "computed_tokens"), 0);
    json_object_put(one);
    json_object_put(two);
    service_stop(&s);
    free(text);
}

/* A template that does not let the text of a call through gets the call in the client's words. */
static void a_template_may_refuse_the_text(void **state)
{
    (void)state;
    static const char strict[] =
        "{% for m in messages %}{% if m.role == 'assistant' and not m.tool_calls %}"
        "{{ raise_exception('no call') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    const family *f = family_of("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use");
    service s;
    int n_words = start(&s, f, strict);
    turn t = first_on_chat(&s, f, n_words);
    struct json_object *o = second_on_chat(&s, &t, "");
    assert_string_equal(string(field(field(o, "usage"), "cache"), "prompt_source"), "client");
    json_object_put(o);
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_replayed),
        cmocka_unit_test(calls_are_streamed),
        cmocka_unit_test(foreign_ids_are_made_to_fit),
        cmocka_unit_test(a_template_may_refuse_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
