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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_turn_finds_the_replay),
        cmocka_unit_test(it_can_be_switched_off),
        cmocka_unit_test(what_is_not_to_be_stored_is_not),
        cmocka_unit_test(keys_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
