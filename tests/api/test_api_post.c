/* SPDX-License-Identifier: MIT
 *
 * Answers that the template replays in other words, through the whole server on a tiny model: the
 * replayed form is computed while idle, so the next turn finds it, and says what it would have
 * said.
 */
#include "api_rig.h"

static const mx_api_config on = {.post_commit = true}, off = {.post_commit = false};

/* What opens an answer is not repeated before it once it is history. */
static const char opener[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nHm: {% endif %}";

/* The same with calls. */
static const char opener_calls[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nHm: {% endif %}";

/* ---- the tests ----------------------------------------------------------------------------- */

/* One message, answered with 100 t's and h's; `more` are further fields, with a comma in front. */
static told first_turn(service *s, int key, const char *more)
{
    char body[512];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"Say it.\"}],"
             "\"temperature\":1,\"seed\":5,\"max_tokens\":100,"
             "\"logit_bias\":{\"116\":100,\"104\":100}%s}", more);
    client_reply r;
    post(s, "/v1/chat/completions", key, body, &r);
    told t = {0};
    if (strstr(more, "stream") == NULL) {
        t = read_told(r.body.ptr);
        assert_int_equal(strspn(t.text, "th"), 100);
    }
    reply_free(&r);
    return t;
}

static told second_turn(service *s, int key, const char *said, const char *more)
{
    char body[1600];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"Say it.\"},"
             "{\"role\":\"assistant\",\"content\":\"%s\"},"
             "{\"role\":\"user\",\"content\":\"Again.\"}],\"temperature\":0,"
             "\"max_tokens\":20%s}", said, more);
    client_reply r;
    post(s, "/v1/chat/completions", key, body, &r);
    told t = read_told(r.body.ptr);
    reply_free(&r);
    return t;
}

static mx_engine_stats wait_done(service *s, uint64_t n)
{
    uint64_t until = mx_now_us() + 20 * 1000000;
    mx_engine_stats e;
    do {
        usleep(1000);
        mx_engine_get_stats(s->g.engine, &e);
        assert_true(mx_now_us() < until);
    } while (e.n_idle_done < n);
    assert_int_equal(e.n_idle_done, n);
    return e;
}

/* Nothing is computed that nobody asked for. */
static void wait_for_nothing(service *s)
{
    usleep(200000);
    mx_engine_stats e;
    mx_engine_get_stats(s->g.engine, &e);
    assert_int_equal(e.n_idle_done + e.n_idle_dropped + e.n_idle_tokens, 0);
}

enum { LAST = 40 }; /* the tokens of the last message and what opens the answer: fewer */

static void next_turn_finds_the_replay(void **state)
{
    (void)state;
    service s;
    service_start(&s, &on, opener, 0);
    told first = first_turn(&s, 0, "");
    mx_engine_stats e = wait_done(&s, 1);
    /* With the one merge of this vocabulary ("th") the answer has fewer tokens than were
     * sampled. */
    assert_in_range(e.n_idle_tokens, 60, 130);
    told second = second_turn(&s, 0, first.text, "");
    assert_true(second.ram + LAST > second.prompt);
    told cold = second_turn(&s, 0, first.text, ",\"cache\":\"off\"");
    assert_string_equal(second.text, cold.text);
    assert_int_equal(second.prompt, cold.prompt);
    /* A stream is no different: another answer, another replay. */
    wait_done(&s, 2); /* of the second turn */
    first_turn(&s, 0, ",\"stream\":true,\"seed\":6");
    wait_done(&s, 3);
    service_stop(&s);
}

static void it_can_be_switched_off(void **state)
{
    (void)state;
    service s;
    service_start(&s, &off, opener, 0);
    told first = first_turn(&s, 0, "");
    wait_for_nothing(&s);
    told second = second_turn(&s, 0, first.text, "");
    assert_true(second.ram < first.prompt);
    service_stop(&s);
    /* Where answers come back as they are, there is nothing to do. */
    service_start(&s, &on, NULL, 0);
    first_turn(&s, 0, "");
    wait_for_nothing(&s);
    service_stop(&s);
}

static void what_is_not_to_be_stored_is_not(void **state)
{
    (void)state;
    service s;
    service_start(&s, &on, opener, 0);
    first_turn(&s, 0, ",\"cache\":\"no-store\"");
    first_turn(&s, 0, ",\"cache\":\"off\"");
    wait_for_nothing(&s);
    service_stop(&s);
}

static void keys_are_apart(void **state)
{
    (void)state;
    service s;
    service_start(&s, &on, opener, 2);
    told first = first_turn(&s, 0, "");
    wait_done(&s, 1);
    assert_int_equal(second_turn(&s, 1, first.text, ",\"cache\":\"no-store\"").ram, 0);
    told second = second_turn(&s, 0, first.text, "");
    assert_true(second.ram + LAST > second.prompt);
    service_stop(&s);
}

/* A call that came back in other words stands in the replay as it was sampled, as it does in the next
 * prompt. */
static void calls_are_in_the_replay(void **state)
{
    (void)state;
    static const mx_tiny_word words[] = {{"<tool_call>{\"name\": \"look\", \"arguments\": {\"far\": true, "
                                          "\"up\": false}}</tool_call>", false}};
    static const char tools[] = ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\"}}]";
    mx_tiny_spec spec = mx_tiny_default();
    spec.chat_template = opener_calls;
    spec.words = words;
    spec.n_words = MX_COUNT(words);
    service s;
    client_reply r;
    char body[2048], says[256], talk[1024];
    service_start_spec(&s, &on, spec, 0);
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"Look.\"}]%s%s}", tools,
             says_words(1, says));
    post(&s, "/v1/chat/completions", 0, body, &r);
    struct json_object *o = json_tokener_parse(r.body.ptr);
    struct json_object *message = field(json_object_array_get_idx(field(o, "choices"), 0), "message");
    const char *id = json_object_get_string(
        field(json_object_array_get_idx(field(message, "tool_calls"), 0), "id"));
    snprintf(talk, sizeof talk, "{\"role\":\"user\",\"content\":\"Look.\"},{\"role\":\"assistant\","
             "\"content\":\"\",\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":{"
             "\"name\":\"look\",\"arguments\":\"{\\\"up\\\":false,\\\"far\\\":true}\"}}]},"
             "{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"Nothing.\"}", id, id);
    json_object_put(o);
    reply_free(&r);
    snprintf(body, sizeof body, "{\"messages\":[%s]%s,\"temperature\":1,\"seed\":5,\"max_tokens\":100,"
             "\"logit_bias\":{\"116\":100,\"104\":100}}", talk, tools);
    post(&s, "/v1/chat/completions", 0, body, &r);
    told second = read_told(r.body.ptr);
    reply_free(&r);
    assert_string_equal(second.source, "tool_map");
    wait_done(&s, 1);
    snprintf(body, sizeof body, "{\"messages\":[%s,{\"role\":\"assistant\",\"content\":\"%s\"},"
             "{\"role\":\"user\",\"content\":\"Again.\"}]%s,\"max_tokens\":1}", talk, second.text, tools);
    post(&s, "/v1/chat/completions", 0, body, &r);
    told third = read_told(r.body.ptr);
    reply_free(&r);
    if (third.ram + LAST <= third.prompt) {
        fail_msg("of %zu tokens %zu were in RAM", third.prompt, third.ram);
    }
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_turn_finds_the_replay),
        cmocka_unit_test(it_can_be_switched_off),
        cmocka_unit_test(what_is_not_to_be_stored_is_not),
        cmocka_unit_test(keys_are_apart),
        cmocka_unit_test(calls_are_in_the_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
