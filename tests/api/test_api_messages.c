/* SPDX-License-Identifier: MIT
 *
 * Anthropic's Messages API: what a request becomes, what is refused and under which name, and what
 * answers, streams and errors look like, through the whole server on a tiny model that says what a
 * test wants.
 */
#include "api/api_messages.h"
#include "api_rig.h"

static const mx_api_config sampled = {.canonical_prompts = false};
static const mx_api_config canonical = {.canonical_prompts = true};

/* ---- requests -------------------------------------------------------------------------------- */

static struct json_object *parse(const char *text)
{
    struct json_object *o;
    mx_errbuf eb = {{0}};
    if (mx_json_parse(&o, mx_str_of(text), &eb) != MX_OK) {
        fail_msg("%s: %s", text, eb.text);
    }
    return o;
}

#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"u\"}]"
#define USER(text) "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" text "\"}]}"
#define REST ",\"tools\":[],\"max_tokens\":4096}"

static void requests_become_chat(void **state)
{
    (void)state;
    static const struct { const char *from, *to; } cases[] = {
        {"{" ASK "}", "{\"messages\":[" USER("u") "]" REST},
        {"{" ASK ",\"max_tokens\":7,\"system\":\"s\",\"metadata\":{\"user_id\":\"x\"},\"betas\":[1]}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"}," USER("u") "],\"tools\":[],"
         "\"max_tokens\":7}"},
        /* Blocks of a system prompt; a line that changes with each request is not one. */
        {"{" ASK ",\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cch=1;\"},"
         "{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}},"
         "{\"type\":\"text\",\"text\":\"b\"}]}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"a\\n\\nb\"}," USER("u") "]" REST},
        {"{" ASK ",\"system\":\"x-anthropic-billing-header: cch=2;\\nrest\"}",
         "{\"messages\":[{\"role\":\"system\",\"content\":\"rest\"}," USER("u") "]" REST},
        {"{" ASK ",\"system\":\"x-anthropic-billing-header: cch=2;\"}",
         "{\"messages\":[" USER("u") "]" REST},
        /* Two messages of a user are one; so is what the system says in between. */
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":"
         "\"s\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},"
         "{\"type\":\"odd\"},{\"type\":\"text\",\"text\":\"c\"}]}]}",
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"text\",\"text\":\"\\n\\n\"},{\"type\":\"text\",\"text\":"
         "\"<system>\\ns\\n</system>\"},{\"type\":\"text\",\"text\":\"\\n\\n\"},{\"type\":\"text\","
         "\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"}]}]" REST},
        /* Calls and results. */
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":["
         "{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"\"},{\"type\":\"text\",\"text\":"
         "\"I look.\"},{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{\"b\":1.50,"
         "\"a\":[]}},{\"type\":\"tool_use\",\"id\":\"j\",\"name\":\"g\"}]},{\"role\":\"user\","
         "\"content\":[{\"type\":\"text\",\"text\":\"and\"},{\"type\":\"tool_result\","
         "\"tool_use_id\":\"i\",\"content\":[{\"type\":\"text\",\"text\":\"r\"},{\"type\":\"text\","
         "\"text\":\"s\"}]},{\"type\":\"tool_result\",\"tool_use_id\":\"j\",\"is_error\":true,"
         "\"content\":\"no\"}]}]}",
         "{\"messages\":[" USER("u") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
         "\"thinking\":\"t\"},{\"type\":\"text\",\"text\":\"I look.\"}],\"tool_calls\":[{\"id\":"
         "\"i\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"b\":1.50,\"a\":"
         "[]}}},{\"id\":\"j\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]"
         "},{\"role\":\"tool\",\"content\":\"rs\",\"tool_call_id\":\"i\"},{\"role\":\"tool\","
         "\"content\":\"Error: no\",\"tool_call_id\":\"j\"}," USER("and") "]" REST},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"i\"},{\"type\":\"tool_result\",\"tool_use_id\":\"j\",\"is_error\":true,\"content\":"
         "\"Error: no\"}]}]}",
         "{\"messages\":[{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":\"i\"},{\"role\":"
         "\"tool\",\"content\":\"Error: no\",\"tool_call_id\":\"j\"}]" REST},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[]},{\"role\":\"assistant\",\"content\":"
         "null},{\"role\":\"user\",\"content\":[{\"type\":\"document\",\"source\":{\"type\":\"text\","
         "\"data\":\"d\"}}]}]}",
         "{\"messages\":[" USER("") ",{\"role\":\"assistant\",\"content\":\"\"}," USER("d") "]"
         REST},
        /* Tools: those with a schema, and those whose schema is that there is none. */
        {"{" ASK ",\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":"
         "\"object\"}},{\"type\":\"web_search_20250305\",\"name\":\"web_search\"},{\"type\":"
         "\"custom\",\"name\":\"g\"}],\"tool_choice\":{\"type\":\"auto\","
         "\"disable_parallel_tool_use\":true}}",
         "{\"messages\":[" USER("u") "],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
         "\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\","
         "\"function\":{\"name\":\"g\"}}],\"tool_choice\":\"auto\",\"parallel_tool_calls\":false,"
         "\"max_tokens\":4096}"},
        {"{" ASK ",\"tool_choice\":{\"type\":\"none\"},\"stop_sequences\":[\"x\"],\"stream\":true,"
         "\"temperature\":0.50,\"thinking\":{\"type\":\"disabled\"},\"output_config\":{\"effort\":"
         "\"low\"},\"n\":5,\"cache\":\"off\",\"prompt_cache_key\":\"k\"}",
         "{\"messages\":[" USER("u") "],\"tools\":[],\"tool_choice\":\"none\",\"stop\":[\"x\"],"
         "\"enable_thinking\":false,\"reasoning_effort\":\"low\",\"stream\":true,\"temperature\":"
         "0.50,\"cache\":\"off\",\"prompt_cache_key\":\"k\",\"max_tokens\":4096}"},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        struct json_object *from = parse(cases[i].from), *to;
        mx_problem p = {0};
        if (!mx_messages_to_chat(from, &to, &p)) {
            fail_msg("%s was refused: %s", cases[i].from, p.message);
        }
        const char *text = json_object_to_json_string_ext(
            to, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
        if (strcmp(text, cases[i].to) != 0) {
            fail_msg("%s\nexpected: %s\ncame:     %s", cases[i].from, cases[i].to, text);
        }
        json_object_put(to);
        json_object_put(from);
    }
}

#define EIGHT(x) x x x x x x x x
#define MANY_STOPS EIGHT(EIGHT("\"s\",")) "\"s\"" /* 65 */
#define LONG_STOP EIGHT(EIGHT(EIGHT("ab"))) "c"   /* 1025 bytes */

static void refusals_name_the_field(void **state)
{
    (void)state;
    static const struct { const char *body, *param; } cases[] = {
        {"{}", "messages"}, {"{\"messages\":[]}", "messages"}, {"{\"messages\":{}}", "messages"},
        {"{\"messages\":[7]}", "messages[0]"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":7}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{}]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{}}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"i\",\"content\":[{\"type\":\"image\"}]}]}]}", "messages[0].content[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"i\",\"content\":7}]}]}", "messages[0].content[0].content"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"name\":\"f\"}"
         "]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"name\":\"f\","
         "\"id\":\"i\",\"input\":\"{}\"}]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\"}]}]}",
         "messages[0].content[0]"},
        {"{" ASK ",\"system\":7}", "system"},
        {"{" ASK ",\"system\":[{\"type\":\"image\"}]}", "system[0]"},
        {"{" ASK ",\"tools\":{}}", "tools"}, {"{" ASK ",\"tools\":[7]}", "tools"},
        {"{" ASK ",\"tools\":[{}]}", "tools[0]"},
        {"{" ASK ",\"tools\":[{\"name\":\"f\",\"input_schema\":7}]}", "tools[0]"},
        {"{" ASK ",\"tools\":[{\"name\":\"f\",\"description\":7}]}", "tools[0]"},
        {"{" ASK ",\"tool_choice\":\"auto\"}", "tool_choice"},
        {"{" ASK ",\"tool_choice\":{\"type\":\"always\"}}", "tool_choice"},
        {"{" ASK ",\"tool_choice\":{\"type\":\"any\"}}", "tool_choice"},
        {"{" ASK ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":1}}",
         "tool_choice.disable_parallel_tool_use"},
        {"{" ASK ",\"tools\":[{\"name\":\"f\"}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}}",
         "tool_choice"},
        {"{" ASK ",\"stop_sequences\":\"x\"}", "stop_sequences"},
        {"{" ASK ",\"stop_sequences\":[7]}", "stop_sequences"},
        {"{" ASK ",\"stop_sequences\":[" MANY_STOPS "]}", "stop_sequences"},
        {"{" ASK ",\"stop_sequences\":[\"" LONG_STOP "\"]}", "stop_sequences"},
        {"{" ASK ",\"output_config\":\"low\"}", "output_config"},
        {"{" ASK ",\"output_config\":{\"effort\":7}}", "output_config"},
        /* A call or a result where it says nothing would be left out in silence. */
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\",\"id\":\"i\","
         "\"name\":\"f\"}]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_result\","
         "\"tool_use_id\":\"i\",\"content\":\"r\"}]}]}", "messages[0].content[0]"},
        {"{" ASK ",\"system\":[{\"type\":\"tool_result\"}]}", "system[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"i\",\"content\":[{\"type\":\"tool_result\"}]}]}]}", "messages[0].content[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"i\",\"is_error\":1}]}]}", "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         "messages[0].content[0]"},
        {"{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}", "tools[0]"},
        {"{" ASK ",\"thinking\":true}", "thinking"},
        {"{" ASK ",\"output_config\":{\"format\":{\"type\":\"json_schema\"}}}", "output_config"},
        {"{" ASK ",\"output_format\":{\"type\":\"json_schema\"}}", "output_format"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"container_upload\"}]}]}",
         "messages[0].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
         "\"i\",\"content\":[{\"type\":\"search_result\",\"content\":[]}]}]}]}",
         "messages[0].content[0].content[0]"},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        struct json_object *from = parse(cases[i].body), *to;
        mx_problem p = {0};
        bool ok = mx_messages_to_chat(from, &to, &p);
        if (ok || to != NULL || p.status != 400 || strcmp(p.param, cases[i].param) != 0 ||
            strstr(p.message, cases[i].param) == NULL)
        {
            fail_msg("%s: expected 400 for '%s', came %u for '%s': %s", cases[i].body,
                     cases[i].param, p.status, p.param, p.message);
        }
        json_object_put(from);
    }
}

static void bodies_are_told_apart(void **state)
{
    (void)state;
    static const struct { const char *body; bool is_messages; } cases[] = {
        {"{" ASK "}", false}, {"{" ASK ",\"system\":\"s\"}", true},
        {"{" ASK ",\"stop_sequences\":[]}", true},
        {"{" ASK ",\"tools\":[{\"name\":\"f\",\"input_schema\":{}}]}", true},
        {"{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}", false},
        {"{" ASK ",\"tools\":[]}", false}, {"{" ASK ",\"tools\":[7]}", false},
        {"{\"messages\":[7,{\"role\":\"user\",\"content\":[7,{\"type\":\"tool_result\"}]}]}", true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"document\"}]}]}", true},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", false},
        {"{\"messages\":7}", false},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        struct json_object *o = parse(cases[i].body);
        assert_int_equal(mx_messages_is_request(o), cases[i].is_messages);
        json_object_put(o);
    }
}

/* ---- the server ------------------------------------------------------------------------------ */

/* The tools stand in front, and results are written as any message. */
static const char with_tools[] =
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static const mx_tiny_word call_words[] = {
    {"I look.\n", false},
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1.50, \"a\": \"x\"}}\n</tool_call>", false},
};

static void start(service *s, const mx_api_config *switches)
{
    mx_tiny_spec spec = mx_tiny_default();
    spec.chat_template = with_tools;
    spec.words = call_words;
    spec.n_words = MX_COUNT(call_words);
    service_start_spec(s, switches, spec, 0);
}

#define TOOLS ",\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":" \
    "\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}]"

/* messages: elements, without the brackets. */
static struct json_object *say(service *s, const char *messages, const char *more)
{
    mx_buf body = {0};
    client_reply r;
    mx_buf_printf(&body, "{\"messages\":[%s]%s}", messages, more);
    post(s, "/v1/messages", 0, body.ptr, &r);
    struct json_object *o = parse(r.body.ptr);
    reply_free(&r);
    mx_buf_free(&body);
    return o;
}

static const char *text_at(struct json_object *o, const char *name)
{
    return json_object_get_string(field(o, name));
}

static size_t count(struct json_object *message, const char *name)
{
    return (size_t)json_object_get_int(field(field(message, "usage"), name));
}

static size_t prompt_of(struct json_object *message)
{
    return count(message, "input_tokens") + count(message, "cache_read_input_tokens") +
           count(message, "cache_creation_input_tokens");
}

#define SAY "{\"role\":\"user\",\"content\":\"Say it.\"}"

static void plain_answers(void **state)
{
    (void)state;
    service s;
    char words[256], more[512];
    start(&s, &canonical);
    struct json_object *o = say(&s, SAY, says_words(1, words));
    assert_string_equal(text_at(o, "type"), "message");
    assert_string_equal(text_at(o, "role"), "assistant");
    assert_string_equal(text_at(o, "model"), "mtplx");
    assert_memory_equal(text_at(o, "id"), "msg_", 4);
    assert_string_equal(text_at(o, "stop_reason"), "end_turn");
    assert_null(field(o, "stop_sequence"));
    struct json_object *block = json_object_array_get_idx(field(o, "content"), 0);
    assert_string_equal(text_at(block, "type"), "text");
    assert_string_equal(text_at(block, "text"), "I look.\n");
    size_t n_prompt = prompt_of(o);
    json_object_put(o);
    /* Again: all but the last token of the prompt is found, and the sum stays the same. */
    snprintf(more, sizeof more, "%s,\"stop_sequences\":[\"nothing\",\"look\"]", words);
    o = say(&s, SAY, more);
    assert_int_equal(prompt_of(o), n_prompt);
    assert_true(count(o, "cache_read_input_tokens") + 1 >= n_prompt);
    assert_string_equal(text_at(o, "stop_reason"), "stop_sequence");
    assert_string_equal(text_at(o, "stop_sequence"), "look");
    json_object_put(o);
    /* The limit; and an answer without a word is a block without a text. */
    snprintf(more, sizeof more, "%s,\"max_tokens\":1", words);
    o = say(&s, SAY, more);
    assert_string_equal(text_at(o, "stop_reason"), "max_tokens");
    json_object_put(o);
    o = say(&s, SAY, ",\"temperature\":0,\"logit_bias\":{\"329\":100}");
    block = json_object_array_get_idx(field(o, "content"), 0);
    assert_string_equal(text_at(block, "text"), "");
    json_object_put(o);
    service_stop(&s);
}

#define RESULT ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"%s\"," \
    "\"content\":[{\"type\":\"text\",\"text\":\"7\"}]}]}"
#define CALLED ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"I look.\"}," \
    "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":\"f\",\"input\":%s}]}"

/* The client writes the call in its own way: the next turn has the sampled one all the same, and
 * reuses all of it, on this surface and on the other. */
static void calls_come_back_as_they_were_sampled(void **state)
{
    (void)state;
    service s;
    char words[256], more[1024], messages[1024], id[64];
    start(&s, &sampled);
    snprintf(more, sizeof more, "%s" TOOLS, says_words(2, words));
    struct json_object *o = say(&s, SAY, more), *content = field(o, "content");
    assert_string_equal(text_at(o, "stop_reason"), "tool_use");
    assert_int_equal(json_object_array_length(content), 2);
    struct json_object *block = json_object_array_get_idx(content, 0);
    assert_string_equal(text_at(block, "text"), "I look.");
    block = json_object_array_get_idx(content, 1);
    assert_string_equal(text_at(block, "type"), "tool_use");
    assert_string_equal(text_at(block, "name"), "f");
    assert_string_equal(json_object_to_json_string_ext(field(block, "input"), 0),
                        "{\"b\":1.50,\"a\":\"x\"}");
    snprintf(id, sizeof id, "%s", text_at(block, "id"));
    assert_memory_equal(id, "toolu_", 6);
    size_t n_turn = prompt_of(o) + count(o, "output_tokens");
    json_object_put(o);

    snprintf(messages, sizeof messages, SAY CALLED RESULT, id, "{\"a\":\"x\",\"b\":1.5}", id);
    snprintf(more, sizeof more, ",\"max_tokens\":1" TOOLS);
    o = say(&s, messages, more);
    struct json_object *cache = field(field(o, "usage"), "cache");
    assert_string_equal(text_at(cache, "prompt_source"), "tool_map");
    assert_true(count(o, "cache_read_input_tokens") + 1 >= n_turn);
    json_object_put(o);
    /* What was changed counts as it is. */
    snprintf(messages, sizeof messages, SAY CALLED RESULT, id, "{\"a\":\"y\",\"b\":1.5}", id);
    o = say(&s, messages, more);
    cache = field(field(o, "usage"), "cache");
    assert_string_equal(text_at(cache, "prompt_source"), "client");
    json_object_put(o);

    client_reply r;
    char body[2048];
    snprintf(body, sizeof body, "{\"messages\":[" SAY ",{\"role\":\"assistant\",\"content\":"
             "\"I look.\",\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":{"
             "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\\\"x\\\",\\\"b\\\":1.5}\"}}]},{\"role\":"
             "\"tool\",\"tool_call_id\":\"%s\",\"content\":\"7\"}],\"max_tokens\":1,\"tools\":[{"
             "\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
             "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}]}",
             id, id);
    post(&s, "/v1/chat/completions", 0, body, &r);
    told other = read_told(r.body.ptr);
    assert_string_equal(other.source, "tool_map");
    assert_true(other.ram + 1 >= n_turn);
    reply_free(&r);
    service_stop(&s);
}

static const mx_tiny_word two_calls[] = {
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", false},
    {"<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>", false},
};

static void one_call_when_one_is_asked_for(void **state)
{
    (void)state;
    service s;
    char words[256], more[1024];
    mx_tiny_spec spec = mx_tiny_default();
    spec.chat_template = with_tools;
    spec.words = two_calls;
    spec.n_words = MX_COUNT(two_calls);
    service_start_spec(&s, &sampled, spec, 0);
    static const char *const fields[] = {
        "", ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}",
    };
    for (size_t i = 0; i < MX_COUNT(fields); i++) {
        snprintf(more, sizeof more, "%s" TOOLS "%s", says_words(2, words), fields[i]);
        struct json_object *o = say(&s, SAY, more);
        assert_int_equal(json_object_array_length(field(o, "content")), 2 - i);
        assert_string_equal(text_at(o, "stop_reason"), "tool_use");
        json_object_put(o);
    }
    service_stop(&s);
}

static void without_tools_calls_are_text(void **state)
{
    (void)state;
    service s;
    char words[256], more[1024];
    start(&s, &sampled);
    static const char *const fields[] = {"", TOOLS ",\"tool_choice\":{\"type\":\"none\"}"};
    for (size_t i = 0; i < MX_COUNT(fields); i++) {
        snprintf(more, sizeof more, "%s%s", says_words(2, words), fields[i]);
        struct json_object *o = say(&s, SAY, more);
        struct json_object *block = json_object_array_get_idx(field(o, "content"), 0);
        assert_string_equal(text_at(o, "stop_reason"), "end_turn");
        assert_non_null(strstr(text_at(block, "text"), "<tool_call>\n{"));
        json_object_put(o);
    }
    service_stop(&s);
}

/* What came, an event a line: its name and what is in it that does not change. */
static void outline(const char *stream, mx_buf *out)
{
    while (*stream != '\0') {
        char name[64];
        const char *data = strstr(stream, "\ndata: "), *end = strstr(stream, "\n\n");
        assert_non_null(end);
        assert_non_null(data);
        assert_int_equal(sscanf(stream, "event: %63s\n", name), 1);
        mx_buf json = {0};
        mx_buf_append(&json, data + 7, (size_t)(end - data) - 7);
        struct json_object *o = parse(json.ptr), *v;
        assert_string_equal(text_at(o, "type"), name);
        mx_buf_printf(out, "%s", name);
        static const char *const shown[] = {"index", "content_block", "delta"};
        for (size_t i = 0; i < MX_COUNT(shown); i++) {
            if (json_object_object_get_ex(o, shown[i], &v)) {
                if (json_object_is_type(v, json_type_object)) {
                    json_object_object_del(v, "id");
                }
                mx_buf_printf(out, " %s", json_object_to_json_string_ext(v, 0));
            }
        }
        mx_buf_char(out, '\n');
        json_object_put(o);
        mx_buf_free(&json);
        stream = end + 2;
    }
}

static void streams_are_events(void **state)
{
    (void)state;
    service s;
    char words[256];
    static const char call[] =
        "message_start\nping\n"
        "content_block_start 0 {\"type\":\"text\",\"text\":\"\"}\n"
        "content_block_delta 0 {\"type\":\"text_delta\",\"text\":\"I look.\"}\n"
        "content_block_stop 0\n"
        "content_block_start 1 {\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}\n"
        "content_block_delta 1 {\"type\":\"input_json_delta\",\"partial_json\":"
        "\"{\\\"b\\\":1.50,\\\"a\\\":\\\"x\\\"}\"}\n"
        "content_block_stop 1\n"
        "message_delta {\"stop_reason\":\"tool_use\",\"stop_sequence\":null}\n"
        "message_stop\n";
    static const char nothing[] =
        "message_start\nping\n"
        "content_block_start 0 {\"type\":\"text\",\"text\":\"\"}\n"
        "content_block_stop 0\n"
        "message_delta {\"stop_reason\":\"end_turn\",\"stop_sequence\":null}\n"
        "message_stop\n";
    start(&s, &sampled);
    const struct { const char *fields, *want; } cases[] = {
        {says_words(2, words), call},
        {",\"temperature\":0,\"logit_bias\":{\"329\":100}", nothing},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        char body[1024];
        client_reply r;
        mx_buf seen = {0};
        snprintf(body, sizeof body, "{\"stream\":true,\"messages\":[" SAY "]%s" TOOLS "}",
                 cases[i].fields);
        post(&s, "/v1/messages?beta=true", 0, body, &r);
        outline(r.body.ptr, &seen);
        assert_string_equal(seen.ptr, cases[i].want);
        /* The first event knows the prompt, the last but one all of it. */
        const char *first = strstr(r.body.ptr, "\"input_tokens\":");
        assert_non_null(first);
        assert_true(atoi(first + strlen("\"input_tokens\":")) > 0 || i > 0);
        assert_non_null(strstr(strstr(r.body.ptr, "event: message_delta"), "\"output_tokens\":"));
        mx_buf_free(&seen);
        reply_free(&r);
    }
    service_stop(&s);
}

static void counts_are_those_of_the_request(void **state)
{
    (void)state;
    service s;
    client_reply r;
    char more[1024];
    start(&s, &canonical);
    static const char *const fields[] = {",\"system\":\"s\"", ",\"system\":\"s\"" TOOLS};
    size_t counted[2];
    for (size_t i = 0; i < MX_COUNT(fields); i++) {
        char body[1024];
        snprintf(body, sizeof body, "{\"messages\":[" SAY "]%s}", fields[i]);
        post(&s, "/v1/messages/count_tokens", 0, body, &r);
        struct json_object *o = parse(r.body.ptr);
        counted[i] = (size_t)json_object_get_int(field(o, "input_tokens"));
        json_object_put(o);
        reply_free(&r);
        snprintf(more, sizeof more, "%s,\"max_tokens\":1", fields[i]);
        o = say(&s, SAY, more);
        assert_int_equal(counted[i], prompt_of(o));
        json_object_put(o);
    }
    assert_true(counted[1] > counted[0]);
    service_stop(&s);
}

static void errors_have_their_envelope(void **state)
{
    (void)state;
    service s;
    client_reply r;
    mx_buf huge = {0};
    start(&s, &canonical);
    mx_buf_str(&huge, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 3000; i++) {
        mx_buf_str(&huge, "x.");
    }
    mx_buf_str(&huge, "\"}]}");
    const struct { const char *path, *body; int status; const char *type, *text; } cases[] = {
        {"/v1/messages", "{}", 400, "invalid_request_error", "messages"},
        {"/v1/messages", "{bad", 400, "invalid_request_error", "JSON"},
        {"/v1/messages", huge.ptr, 400, "invalid_request_error", "prompt is too long: "},
        {"/v1/messages/count_tokens", "[]", 400, "invalid_request_error", "object"},
        {"/v1/messages", "{" ASK ",\"temperature\":-1}", 400, "invalid_request_error", "temperature"},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        try_post(&s, cases[i].path, 0, cases[i].body, &r);
        assert_status(&r, cases[i].status);
        struct json_object *o = parse(r.body.ptr), *e = field(o, "error");
        assert_string_equal(text_at(o, "type"), "error");
        assert_string_equal(text_at(e, "type"), cases[i].type);
        if (strstr(text_at(e, "message"), cases[i].text) == NULL) {
            fail_msg("%s: no \"%s\" in %s", cases[i].body, cases[i].text, r.body.ptr);
        }
        assert_true(strlen(text_at(o, "request_id")) > 0);
        json_object_put(o);
        reply_free(&r);
    }
    /* Who says in a header what he is gets it everywhere. */
    client_once(s.http, "GET /v1/nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "anthropic-version: 2023-06-01\r\n\r\n", &r);
    assert_status(&r, 404);
    assert_non_null(strstr(r.body.ptr, "\"not_found_error\""));
    reply_free(&r);
    client_once(s.http, "GET /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", &r);
    assert_status(&r, 405);
    assert_memory_equal(r.body.ptr, "{\"type\":\"error\"", 15);
    reply_free(&r);
    mx_buf_free(&huge);
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_become_chat),
        cmocka_unit_test(refusals_name_the_field),
        cmocka_unit_test(bodies_are_told_apart),
        cmocka_unit_test(plain_answers),
        cmocka_unit_test(calls_come_back_as_they_were_sampled),
        cmocka_unit_test(one_call_when_one_is_asked_for),
        cmocka_unit_test(without_tools_calls_are_text),
        cmocka_unit_test(streams_are_events),
        cmocka_unit_test(counts_are_those_of_the_request),
        cmocka_unit_test(errors_have_their_envelope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
