/* SPDX-License-Identifier: MIT
 *
 * Request parameters: defaults, aliases, ranges, and the refusals that name their field.
 */
#include "api/api_params.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { N_VOCAB = 1000 };

typedef struct read_result {
    struct json_object *body;
    mx_api_params a;
    mx_problem p;
    bool ok;
} read_result;

static read_result read_text(const char *text, bool is_chat)
{
    read_result r = {0};
    mx_errbuf eb;
    assert_int_equal(mx_json_parse(&r.body, mx_str_of(text), &eb), MX_OK);
    r.ok = mx_api_params_read(&r.a, r.body, is_chat, N_VOCAB, &r.p);
    if (!r.ok && r.p.status == 0) {
        fail_msg("%s was refused without a problem", text);
    }
    return r;
}

static void drop(read_result *r)
{
    mx_api_params_free(&r->a);
    json_object_put(r->body);
}

static void defaults(void **state)
{
    (void)state;
    read_result r = read_text("{}", true);
    assert_true(r.ok);
    assert_true(r.a.sampling.temperature == 1.0f && r.a.sampling.top_p == 1.0f);
    assert_true(r.a.sampling.top_k == 0 && r.a.sampling.min_p == 0.05f);
    assert_true(r.a.sampling.repetition_penalty == 1.0f);
    assert_true(r.a.max_tokens == UINT32_MAX && !r.a.stream && r.a.n_stops == 0);
    assert_int_equal(r.a.cache, MX_CACHE_USE);
    uint64_t seed = r.a.sampling.seed;
    drop(&r);
    r = read_text("{\"seed\":null}", true);
    assert_true(r.a.sampling.seed != seed); /* random, 1 in 2^64 to be equal */
    drop(&r);
    r = read_text("{}", false);
    assert_int_equal(r.a.max_tokens, 16);
    drop(&r);
}

static void values(void **state)
{
    (void)state;
    read_result r = read_text(
        "{\"temperature\":0.5,\"top_p\":0.25,\"top_k\":40,\"min_p\":0.125,\"repeat_penalty\":1.5,"
        "\"presence_penalty\":-1,\"frequency_penalty\":2,\"seed\":7,\"max_tokens\":5,"
        "\"max_completion_tokens\":6.0,\"stop\":[\"a\",\"\",\"bc\"],\"logprobs\":true,"
        "\"top_logprobs\":20,\"ignore_eos\":true,\"cache\":\"no-store\",\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"logit_bias\":{\"5\":-100,\"999\":1.5},"
        "\"unknown\":[1],\"model\":\"x\",\"n\":1,\"response_format\":{\"type\":\"text\"}}", true);
    if (!r.ok) {
        fail_msg("refused: %s", r.p.message);
    }
    const mx_sampling *s = &r.a.sampling;
    assert_true(s->temperature == 0.5f && s->top_p == 0.25f && s->top_k == 40 && s->min_p == 0.125f);
    assert_true(s->repetition_penalty == 1.5f && s->presence_penalty == -1 && s->frequency_penalty == 2);
    assert_true(s->seed == 7 && s->want_logprobs && s->n_top_logprobs == 20);
    assert_int_equal(s->n_bias, 2);
    assert_true(s->bias[0].token == 5 && s->bias[0].bias == -100 && s->bias[1].token == 999);
    assert_int_equal(r.a.max_tokens, 6);
    assert_int_equal(r.a.n_stops, 2);
    assert_true(mx_str_eq(r.a.stops[1], MX_STR("bc")));
    assert_true(r.a.ignore_eos && r.a.stream && r.a.include_usage);
    assert_int_equal(r.a.cache, MX_CACHE_NO_STORE);
    drop(&r);
    r = read_text("{\"seed\":18446744073709551615,\"stop\":\"x\",\"top_k\":-1,\"max_tokens\":-1,"
                  "\"repetition_penalty\":1.25,\"repeat_penalty\":3,\"top_p\":0}", true);
    assert_true(r.ok && r.a.sampling.seed == UINT64_MAX && r.a.n_stops == 1);
    assert_true(r.a.sampling.repetition_penalty == 1.25f && r.a.max_tokens == UINT32_MAX);
    assert_true(r.a.sampling.temperature == 0);
    drop(&r);
    r = read_text("{\"logprobs\":5,\"max_tokens\":0}", false);
    assert_true(r.ok && r.a.sampling.want_logprobs && r.a.sampling.n_top_logprobs == 5);
    assert_int_equal(r.a.max_tokens, 0);
    drop(&r);
    static const char *const choices[] = {"", ",\"function_call\":\"auto\"", ",\"function_call\":\"none\"",
                                          ",\"tool_choice\":\"none\""};
    for (size_t i = 0; i < MX_COUNT(choices); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"functions\":[{\"name\":\"f\"}]%s}", choices[i]);
        r = read_text(text, true);
        assert_true(r.ok && r.a.has_tools == (i < 2));
        drop(&r);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct { bool is_chat; const char *text, *param; } rows[] = {
        {true, "{\"temperature\":\"hot\"}", "temperature"},
        {true, "{\"temperature\":-1}", "temperature"},
        {true, "{\"temperature\":1e400}", "temperature"},
        {true, "{\"top_p\":1.5}", "top_p"},
        {true, "{\"top_p\":[]}", "top_p"},
        {true, "{\"top_k\":1.5}", "top_k"},
        {true, "{\"top_k\":-2}", "top_k"},
        {true, "{\"min_p\":2}", "min_p"},
        {true, "{\"repeat_penalty\":0}", "repeat_penalty"},
        {true, "{\"presence_penalty\":3}", "presence_penalty"},
        {true, "{\"seed\":\"1\"}", "seed"},
        {true, "{\"seed\":1.5}", "seed"},
        {true, "{\"max_tokens\":-5}", "max_tokens"},
        {true, "{\"max_tokens\":\"5\"}", "max_tokens"},
        {true, "{\"max_completion_tokens\":0.5}", "max_completion_tokens"},
        {true, "{\"n\":2}", "n"},
        {true, "{\"n\":0}", "n"},
        {true, "{\"n\":\"1\"}", "n"},
        {true, "{\"modalities\":\"text\"}", "modalities"},
        {true, "{\"response_format\":{\"type\":1}}", "response_format.type"},
        {true, "{\"stop\":5}", "stop"},
        {true, "{\"stop\":[1]}", "stop"},
        {true, "{\"stream\":1}", "stream"},
        {true, "{\"stream_options\":true}", "stream_options"},
        {true, "{\"stream_options\":{\"include_usage\":\"yes\"}}", "stream_options.include_usage"},
        {true, "{\"logit_bias\":[]}", "logit_bias"},
        {true, "{\"logit_bias\":{\"1000\":1}}", "logit_bias"},
        {true, "{\"logit_bias\":{\"-1\":1}}", "logit_bias"},
        {true, "{\"logit_bias\":{\"x\":1}}", "logit_bias"},
        {true, "{\"logit_bias\":{\"1\":101}}", "logit_bias"},
        {true, "{\"logit_bias\":{\"1\":\"a\"}}", "logit_bias"},
        {true, "{\"logit_bias\":{\"99999999999999999999999\":1}}", "logit_bias"},
        {true, "{\"top_logprobs\":5}", "top_logprobs"},
        {true, "{\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs"},
        {true, "{\"logprobs\":3}", "logprobs"},
        {true, "{\"cache\":\"maybe\"}", "cache"},
        {true, "{\"cache\":1}", "cache"},
        {true, "{\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
        {true, "{\"response_format\":\"text\"}", "response_format"},
        {true, "{\"grammar\":\"x\"}", "grammar"},
        {true, "{\"audio\":{}}", "audio"},
        {true, "{\"modalities\":[\"text\",\"audio\"]}", "modalities"},
        {true, "{\"web_search_options\":{}}", "web_search_options"},
        {true, "{\"model\":5}", "model"},
        {true, "{\"ignore_eos\":\"no\"}", "ignore_eos"},
        {false, "{\"logprobs\":true}", "logprobs"},
        {false, "{\"logprobs\":6}", "logprobs"},
        {false, "{\"echo\":true}", "echo"},
        {false, "{\"suffix\":\"x\"}", "suffix"},
        {false, "{\"best_of\":2}", "best_of"},
    };
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        read_result r = read_text(rows[i].text, rows[i].is_chat);
        if (r.ok || r.p.status != 400 || strcmp(r.p.param, rows[i].param) != 0
            || strstr(r.p.message, rows[i].param) == NULL)
        {
            fail_msg("%s: expected 400 for %s, got %u for %s: %s", rows[i].text, rows[i].param,
                     r.p.status, r.p.param, r.p.message);
        }
        drop(&r);
    }
    read_result r = read_text("{\"n\":1e30}", true); /* a range would be no help */
    assert_true(!r.ok && strstr(r.p.message, "must be 1") != NULL);
    drop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(values),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
