/* SPDX-License-Identifier: MIT
 *
 * Answers that the template replays in other words, through the whole server on a tiny model: the
 * replayed form is computed while idle, so the next turn finds it, and says what it would have
 * said.
 */
#include "../exactness/engine_rig.h"
#include "../http/http_client.h"

#include "api/api.h"

#include <json-c/json.h>

/* What opens an answer is not repeated before it once it is history. */
static const char opener[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nHm: {% endif %}";

typedef struct service {
    rig g;
    mx_api *api;
    mx_http *http;
} service;

/* n_keys API keys: key-0, key-1. template_text NULL = one that repeats answers as they are. */
static void service_start(service *s, bool is_on, const char *template_text, size_t n_keys)
{
    static const char *const keys[] = {"key-0", "key-1"};
    mx_tiny_spec spec = mx_tiny_default();
    spec.is_tied = false;
    spec.n_ctx = 2048;
    spec.chat_template = template_text;
    mx_errbuf eb = {{0}};
    rig_open(&s->g, &spec, 1, 0);
    rig_start(&s->g);
    static const mx_hash256 cache_key = {{1, 2, 3}};
    mx_api_config cfg = {.cache_key = &cache_key, .post_commit = is_on,
                         .api_keys = keys, .n_api_keys = n_keys,
                         .model_path = s->g.model_path, .options_json = "{}",
                         .session_json = "{}", .cache_mode = "off"};
    rig_must(mx_api_create(&s->api, &cfg, &eb), &eb, "api");
    mx_http_config http = {.host = "127.0.0.1", .api_keys = keys, .n_api_keys = n_keys,
                           .handler = mx_api_handle, .handler_arg = s->api};
    rig_must(mx_http_start(&s->http, &http, &eb), &eb, "http");
    mx_api_set_ready(s->api, s->g.model, s->g.engine);
}

static void service_stop(service *s)
{
    mx_api_stop(s->api);
    mx_api_cancel_all(s->api);
    mx_http_stop(s->http);
    rig_stop(&s->g);
    mx_api_destroy(s->api);
    rig_close(&s->g);
}

/* ---- asking -------------------------------------------------------------------------------- */

typedef struct told {
    char text[1024], source[16], finish[16];
    size_t prompt, generated, ram;
} told;

static struct json_object *field(struct json_object *o, const char *name)
{
    struct json_object *v = NULL;
    if (!json_object_object_get_ex(o, name, &v)) {
        fail_msg("no \"%s\" in %s", name, json_object_to_json_string(o));
    }
    return v;
}

static void post(service *s, const char *path, int key, const char *body, client_reply *r)
{
    mx_buf b = {0};
    mx_buf_printf(&b, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer key-%d\r\n"
                  "Content-Length: %zu\r\n\r\n%s", path, key, strlen(body), body);
    int fd = client_connect(s->http);
    client_text(fd, b.ptr);
    client_read(fd, r, false, 60000);
    close(fd);
    mx_buf_free(&b);
    assert_status(r, 200);
}

static told read_told(const char *body)
{
    told t = {0};
    struct json_object *o = json_tokener_parse(body);
    struct json_object *choice = json_object_array_get_idx(field(o, "choices"), 0);
    struct json_object *message, *text;
    text = json_object_object_get_ex(choice, "message", &message) ? field(message, "content")
                                                                  : field(choice, "text");
    snprintf(t.text, sizeof t.text, "%s", json_object_get_string(text));
    snprintf(t.finish, sizeof t.finish, "%s",
             json_object_get_string(field(choice, "finish_reason")));
    struct json_object *usage = field(o, "usage"), *cache = field(usage, "cache");
    snprintf(t.source, sizeof t.source, "%s",
             json_object_get_string(field(cache, "prompt_source")));
    t.prompt = (size_t)json_object_get_int(field(usage, "prompt_tokens"));
    t.generated = (size_t)json_object_get_int(field(usage, "completion_tokens"));
    t.ram = (size_t)json_object_get_int(field(cache, "ram_tokens"));
    json_object_put(o);
    return t;
}

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
    service_start(&s, true, opener, 0);
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
    service_start(&s, false, opener, 0);
    told first = first_turn(&s, 0, "");
    wait_for_nothing(&s);
    told second = second_turn(&s, 0, first.text, "");
    assert_true(second.ram < first.prompt);
    service_stop(&s);
    /* Where answers come back as they are, there is nothing to do. */
    service_start(&s, true, NULL, 0);
    first_turn(&s, 0, "");
    wait_for_nothing(&s);
    service_stop(&s);
}

static void what_is_not_to_be_stored_is_not(void **state)
{
    (void)state;
    service s;
    service_start(&s, true, opener, 0);
    first_turn(&s, 0, ",\"cache\":\"no-store\"");
    first_turn(&s, 0, ",\"cache\":\"off\"");
    wait_for_nothing(&s);
    service_stop(&s);
}

static void keys_are_apart(void **state)
{
    (void)state;
    service s;
    service_start(&s, true, opener, 2);
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
