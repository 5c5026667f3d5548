/* SPDX-License-Identifier: MIT
 *
 * Calls of tools whose answers are on disk only, through the whole server on a tiny model: what a
 * prompt with many of them asks of the folder, and how long it waits for it.
 */
#include "api_rig.h"

#include "api/api_state.h"
#include "cold/cold_files.h"

static const mx_api_config sampled = {.canonical_prompts = false};

static const char with_calls[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const mx_tiny_word words[] = {
    {"<tool_call>{\"name\": \"look\", \"arguments\": {\"far\": true, \"up\": false}}</tool_call>", false},
};

#define TOOLS ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look\"}}]"
/* A call in the client's words. */
#define CALL "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\"," \
    "\"function\":{\"name\":\"look\",\"arguments\":\"{\\\"up\\\":false,\\\"far\\\":true}\"}}]}," \
    "{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"Nothing.\"}"

static void open_service(service *s)
{
    mx_tiny_spec spec = mx_tiny_default();
    spec.n_ctx = 8192;
    spec.chat_template = with_calls;
    spec.words = words;
    spec.n_words = MX_COUNT(words);
    service_open(s, spec);
    s->g.cfg.cold_mode = MX_COLD_ON;
    s->g.cfg.cold_tuning.min_free_bytes = -1;
}

/* Asks with the messages so far. Returns the answer's choice in *o, which is the caller's. */
static struct json_object *ask_with(service *s, const mx_buf *messages, const char *more,
                                    struct json_object **o)
{
    mx_buf body = {0};
    client_reply r;
    mx_buf_printf(&body, "{\"messages\":[%s]" TOOLS "%s}", messages->ptr, more);
    assert_false(body.failed);
    post(s, "/v1/chat/completions", 0, body.ptr, &r);
    *o = json_tokener_parse(r.body.ptr);
    assert_non_null(*o);
    reply_free(&r);
    mx_buf_free(&body);
    return json_object_array_get_idx(field(*o, "choices"), 0);
}

static void add_result(mx_buf *messages, const char *id)
{
    mx_buf_printf(messages, "," CALL, id, id);
}

static const char *source_of(struct json_object *o)
{
    return json_object_get_string(field(field(field(o, "usage"), "cache"), "prompt_source"));
}

static void one_reading_brings_all_turns(void **state)
{
    (void)state;
    enum { N_CALLS = 5 };
    service s;
    struct json_object *o;
    mx_buf messages = {0};
    mx_engine_stats e;
    char says[256];
    open_service(&s);
    service_serve(&s, &sampled, 0);
    mx_buf_str(&messages, "{\"role\":\"user\",\"content\":\"Look around, in all directions, one by one.\"}");
    for (int i = 0; i < N_CALLS; i++) {
        struct json_object *choice = ask_with(&s, &messages, says_words(1, says), &o);
        struct json_object *calls = field(field(choice, "message"), "tool_calls");
        add_result(&messages, json_object_get_string(field(json_object_array_get_idx(calls, 0), "id")));
        json_object_put(o);
    }
    RIG_WAIT_STATS(&s.g, &e, e.cold.queued_jobs == 0 && e.cold.turns >= N_CALLS);
    service_end(&s);
    service_serve(&s, &sampled, 0);
    ask_with(&s, &messages, ",\"max_tokens\":1,\"cache\":\"no-store\"", &o);
    assert_string_equal(source_of(o), "tool_map");
    json_object_put(o);
    mx_recall_stats recall;
    mx_recall_get_stats(s.api->recall, &recall);
    assert_int_equal(recall.n_stored, 1); /* it was read once, not once for each of its calls */
    mx_buf_free(&messages);
    service_stop(&s);
}

/* ---- a folder that does not answer ----------------------------------------------------------- */

static pthread_mutex_t tap = PTHREAD_MUTEX_INITIALIZER; /* held = it hangs */

static int hanging_open(int dir, const char *name, int flags, unsigned mode)
{
    pthread_mutex_lock(&tap);
    pthread_mutex_unlock(&tap);
    return mx_cold_real_fileops.open(dir, name, flags, mode);
}

static void a_folder_that_hangs_costs_one_wait(void **state)
{
    (void)state;
    enum { N_CALLS = 40 };
    static mx_cold_fileops ops;
    service s;
    struct json_object *o;
    mx_buf messages = {0};
    ops = mx_cold_real_fileops;
    ops.open = hanging_open;
    open_service(&s);
    s.g.cfg.cold_tuning.fileops = &ops;
    mx_buf_str(&messages, "{\"role\":\"user\",\"content\":\"Look.\"}");
    for (int i = 0; i < N_CALLS; i++) {
        char id[MX_TOOL_ID_CAP];
        uint8_t nonce[MX_TURN_NONCE] = {(uint8_t)(i + 1)};
        mx_tool_id("call_", nonce, 0, id);
        add_result(&messages, id);
    }
    pthread_mutex_lock(&tap);
    service_serve(&s, &sampled, 0);
    uint64_t begin = mx_now_us();
    ask_with(&s, &messages, ",\"max_tokens\":1", &o);
    uint64_t us = mx_now_us() - begin;
    pthread_mutex_unlock(&tap);
    double computed_ms = json_object_get_double(field(field(o, "timings"), "prompt_ms"));
    assert_true(computed_ms > 0);
    double waited_s = (double)us / 1e6 - computed_ms / 1e3;
    print_message("for %d calls nobody knows of: %.1f s, and %.1f s to compute the prompt\n", N_CALLS,
                  waited_s, computed_ms / 1e3);
    assert_true(waited_s < 8); /* a wait for each is ten seconds */
    assert_string_equal(source_of(o), "client");
    json_object_put(o);
    mx_buf_free(&messages);
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_reading_brings_all_turns),
        cmocka_unit_test(a_folder_that_hangs_costs_one_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
