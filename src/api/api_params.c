/* SPDX-License-Identifier: MIT
 *
 * Request parameters. Defaults are OpenAI's (temperature 1, top_p 1, no penalties), because clients
 * leave a field out when they mean that default; a temperature of 0 is greedy decoding. A field
 * that we know but cannot honour is refused by name: an answer that silently ignored `n` or
 * `response_format` would look right and be wrong.
 */
#include "api/api_params.h"

#include "api/api_chat.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

static bool is_given(struct json_object *o, const char *name)
{
    return mx_json_field(o, name) != NULL;
}

static bool unsupported(mx_problem *p, const char *name, const char *what)
{
    return mx_problem_set(p, 400, "unsupported_parameter", name, "'%s' %s", name, what);
}

/* `n`, `best_of` and the like: only `allowed` is. */
static bool check_only(struct json_object *o, const char *name, int64_t allowed, mx_problem *p)
{
    int64_t v = allowed;
    if (!mx_json_get_int(o, name, INT64_MIN, INT64_MAX, &v, p)) {
        return false;
    }
    if (v != allowed) {
        return mx_problem_set(p, 400, "unsupported_parameter", name,
                              "'%s' must be %lld: this server gives one answer per request", name,
                              (long long)allowed);
    }
    return true;
}

static bool check_response_format(struct json_object *o, mx_problem *p)
{
    struct json_object *f = mx_json_field(o, "response_format");
    if (f == NULL) {
        return true;
    }
    if (!json_object_is_type(f, json_type_object)) {
        return mx_problem_field(p, "response_format", "'response_format' must be an object, not %s",
                                mx_json_kind(f));
    }
    mx_str type = MX_STR("");
    if (!mx_json_get_string(f, "response_format.type", &type, p)) {
        return false;
    }
    if (mx_str_eq(type, MX_STR("text"))) {
        return true;
    }
    return mx_problem_set(p, 400, "unsupported_parameter", "response_format",
                          "'response_format' is supported with type \"text\" only: constrained "
                          "output is not available yet; ask for JSON in the prompt instead");
}

static bool check_unsupported(struct json_object *o, bool is_chat, mx_problem *p)
{
    if (!check_only(o, "n", 1, p) || !check_only(o, "best_of", 1, p)
        || !check_response_format(o, p))
    {
        return false;
    }
    static const char *const constrained[] = {"grammar", "json_schema", "guided_json",
                                              "guided_regex", "guided_choice"};
    for (size_t i = 0; i < MX_COUNT(constrained); i++) {
        if (is_given(o, constrained[i])) {
            return unsupported(p, constrained[i], "is not supported: output cannot be constrained "
                                                  "yet; leave it out");
        }
    }
    if (is_chat) {
        if (is_given(o, "audio")) {
            return unsupported(p, "audio", "is not supported: the model answers in text");
        }
        if (is_given(o, "web_search_options")) {
            return unsupported(p, "web_search_options", "is not supported: there is no web search");
        }
        struct json_object *m = mx_json_field(o, "modalities");
        if (m != NULL && !json_object_is_type(m, json_type_array)) {
            return mx_problem_field(p, "modalities", "'modalities' must be an array such as [\"text\"], "
                                    "not %s", mx_json_kind(m));
        }
        size_t n = m != NULL ? json_object_array_length(m) : 0;
        for (size_t i = 0; i < n; i++) {
            struct json_object *e = json_object_array_get_idx(m, i);
            if (!json_object_is_type(e, json_type_string)
                || !mx_str_eq(mx_json_text(e), MX_STR("text")))
            {
                return unsupported(p, "modalities", "may hold \"text\" only");
            }
        }
        return true;
    }
    bool echo = false;
    if (!mx_json_get_bool(o, "echo", &echo, p)) {
        return false;
    }
    if (echo) {
        return unsupported(p, "echo", "is not supported: the answer does not repeat the prompt");
    }
    mx_str suffix = MX_STR("");
    if (!mx_json_get_string(o, "suffix", &suffix, p)) {
        return false;
    }
    if (suffix.len > 0) {
        return unsupported(p, "suffix", "is not supported: the model has no fill-in-the-middle "
                                        "tokens in use");
    }
    return true;
}

static bool read_stops(mx_api_params *a, struct json_object *o, mx_problem *p)
{
    struct json_object *v = mx_json_field(o, "stop");
    if (v == NULL) {
        return true;
    }
    bool is_array = json_object_is_type(v, json_type_array);
    if (!is_array && !json_object_is_type(v, json_type_string)) {
        return mx_problem_field(p, "stop", "'stop' must be a string or an array of strings, not %s",
                                mx_json_kind(v));
    }
    size_t n = is_array ? json_object_array_length(v) : 1;
    if (n > MX_API_MAX_STOPS) {
        return mx_problem_field(p, "stop", "'stop' has %zu entries; at most %d are possible", n,
                                MX_API_MAX_STOPS);
    }
    a->stops = mx_calloc(n == 0 ? 1 : n, sizeof *a->stops);
    if (a->stops == NULL) {
        return mx_problem_set(p, 500, NULL, NULL, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        struct json_object *e = is_array ? json_object_array_get_idx(v, i) : v;
        char where[32] = "stop";
        if (is_array) {
            snprintf(where, sizeof where, "stop[%zu]", i);
        }
        if (!json_object_is_type(e, json_type_string)) {
            return mx_problem_field(p, "stop", "'%s' must be a string, not %s", where,
                                    mx_json_kind(e));
        }
        mx_str s = mx_json_text(e);
        if (s.len > MX_API_MAX_STOP_BYTES) {
            return mx_problem_field(p, "stop", "'%s' has %zu bytes; at most %d are possible", where,
                                    s.len, MX_API_MAX_STOP_BYTES);
        }
        if (s.len > 0) {
            a->stops[a->n_stops++] = s;
        }
    }
    return true;
}

static bool read_bias(mx_api_params *a, struct json_object *o, size_t n_vocab, mx_problem *p)
{
    struct json_object *v = mx_json_field(o, "logit_bias");
    if (v == NULL) {
        return true;
    }
    if (!json_object_is_type(v, json_type_object)) {
        return mx_problem_field(p, "logit_bias", "'logit_bias' must be an object that maps token "
                                "ids to numbers, not %s", mx_json_kind(v));
    }
    size_t n = (size_t)json_object_object_length(v);
    a->bias = mx_calloc(n == 0 ? 1 : n, sizeof *a->bias);
    if (a->bias == NULL) {
        return mx_problem_set(p, 500, NULL, NULL, "out of memory");
    }
    size_t i = 0;
    json_object_object_foreach(v, key, value) {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (*key < '0' || *key > '9' || *end != '\0' || (unsigned long long)id >= n_vocab) {
            return mx_problem_field(p, "logit_bias", "'logit_bias' has the key \"%.32s\", which "
                                    "is not a token id of this model (0 to %zu)", key, n_vocab - 1);
        }
        double d = json_object_get_double(value);
        bool is_number = json_object_is_type(value, json_type_double)
                         || json_object_is_type(value, json_type_int);
        if (!is_number || !(d >= -100 && d <= 100)) {
            return mx_problem_field(p, "logit_bias", "'logit_bias.%.32s' must be a number between "
                                    "-100 and 100", key);
        }
        a->bias[i++] = (mx_logit_bias){.token = (int32_t)id, .bias = (float)d};
    }
    a->sampling.bias = a->bias;
    a->sampling.n_bias = i;
    return true;
}

static bool read_float(struct json_object *o, const char *name, double min, double max, float *out,
                       mx_problem *p)
{
    double d = (double)*out;
    if (!mx_json_get_double(o, name, min, max, &d, p)) {
        return false;
    }
    *out = (float)d;
    return true;
}

static bool read_seed(mx_sampling *s, struct json_object *o, mx_problem *p)
{
    struct json_object *v = mx_json_field(o, "seed");
    int64_t seed = -1;
    if (!mx_json_get_int(o, "seed", INT64_MIN, INT64_MAX, &seed, p)) {
        return false;
    }
    if (v != NULL && json_object_is_type(v, json_type_int) && seed == INT64_MAX) {
        s->seed = json_object_get_uint64(v); /* the upper half of the unsigned range */
        return true;
    }
    s->seed = (uint64_t)seed;
    if (seed == -1 && getrandom(&s->seed, sizeof s->seed, 0) != (ssize_t)sizeof s->seed) {
        return mx_problem_set(p, 500, NULL, NULL, "the system gave no random seed");
    }
    return true;
}

static bool read_sampling(mx_api_params *a, struct json_object *o, mx_problem *p)
{
    mx_sampling *s = &a->sampling;
    *s = mx_sampling_default();
    s->temperature = 1.0f;
    /* OpenAI has no min_p, and its temperature 1 samples from the whole vocabulary. A small model's
     * tail is noise: asked "Hello", the default model once went on for 6,900 tokens (2026-11). */
    s->min_p = 0.05f;
    if (!read_float(o, "temperature", 0, 100, &s->temperature, p)
        || !read_float(o, "top_p", 0, 1, &s->top_p, p)
        || !read_float(o, "min_p", 0, 1, &s->min_p, p)
        || !read_float(o, "presence_penalty", -2, 2, &s->presence_penalty, p)
        || !read_float(o, "frequency_penalty", -2, 2, &s->frequency_penalty, p)
        || !read_float(o, "repeat_penalty", 0.01, 100, &s->repetition_penalty, p)
        || !read_float(o, "repetition_penalty", 0.01, 100, &s->repetition_penalty, p)
        || !read_seed(s, o, p))
    {
        return false;
    }
    int64_t top_k = 0, window = -2;
    if (!mx_json_get_int(o, "top_k", -1, INT32_MAX, &top_k, p)
        || !mx_json_get_int(o, "repeat_last_n", -1, INT32_MAX, &window, p))
    {
        return false;
    }
    s->top_k = top_k > 0 ? (uint32_t)top_k : 0;
    if (window == 0) {
        s->repetition_penalty = 1.0f; /* a window of nothing */
    } else if (window != -2) {
        s->penalty_window = window > 0 ? (uint32_t)window : 0;
    }
    if (s->top_p <= 0) { /* nothing but the best token is left */
        s->temperature = 0;
        s->top_p = 1;
    }
    return true;
}

static bool read_logprobs(mx_api_params *a, struct json_object *o, bool is_chat, mx_problem *p)
{
    mx_sampling *s = &a->sampling;
    int64_t n = 0;
    if (!is_chat) {
        struct json_object *v = mx_json_field(o, "logprobs");
        if (v != NULL && json_object_is_type(v, json_type_boolean)) {
            return mx_problem_field(p, "logprobs", "'logprobs' must be an integer from 0 to 5 here "
                                    "(true and false belong to chat completions)");
        }
        if (!mx_json_get_int(o, "logprobs", 0, 5, &n, p)) {
            return false;
        }
        s->want_logprobs = v != NULL;
    } else {
        if (!mx_json_get_bool(o, "logprobs", &s->want_logprobs, p)
            || !mx_json_get_int(o, "top_logprobs", 0, MX_MAX_TOP_LOGPROBS, &n, p))
        {
            return false;
        }
        if (n > 0 && !s->want_logprobs) {
            return mx_problem_field(p, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
        }
    }
    s->n_top_logprobs = (uint32_t)n;
    return true;
}

static bool read_limits(mx_api_params *a, struct json_object *o, bool is_chat, mx_problem *p)
{
    int64_t most = is_chat ? -1 : 16;
    if (!mx_json_get_int(o, "max_tokens", -1, INT64_MAX, &most, p)
        || !mx_json_get_int(o, "max_completion_tokens", -1, INT64_MAX, &most, p)
        || !mx_json_get_bool(o, "ignore_eos", &a->ignore_eos, p))
    {
        return false;
    }
    a->max_tokens = most < 0 || most >= UINT32_MAX ? UINT32_MAX : (uint32_t)most;
    return true;
}

/* What is wrong with them the rendering says. */
static bool read_tools(mx_api_params *a, struct json_object *o, mx_problem *p)
{
    bool is_parallel = true;
    if (!mx_json_get_bool(o, "parallel_tool_calls", &is_parallel, p)) {
        return false;
    }
    a->single_call = !is_parallel;
    const char *name;
    struct json_object *tools = mx_json_field(o, "tools"), *choice = mx_chat_tool_choice(o, &name);
    if (tools == NULL) {
        tools = mx_json_field(o, "functions");
    }
    a->has_tools = json_object_is_type(tools, json_type_array) &&
                   json_object_array_length(tools) > 0 &&
                   !(json_object_is_type(choice, json_type_string) &&
                     mx_str_eq(mx_json_text(choice), MX_STR("none")));
    a->tools = tools;
    return true;
}

static bool read_stream(mx_api_params *a, struct json_object *o, mx_problem *p)
{
    if (!mx_json_get_bool(o, "stream", &a->stream, p)) {
        return false;
    }
    struct json_object *v = mx_json_field(o, "stream_options");
    if (v == NULL) {
        return true;
    }
    if (!json_object_is_type(v, json_type_object)) {
        return mx_problem_field(p, "stream_options", "'stream_options' must be an object, not %s",
                                mx_json_kind(v));
    }
    return mx_json_get_bool(v, "stream_options.include_usage", &a->include_usage, p);
}

static bool read_cache(mx_api_params *a, struct json_object *o, mx_problem *p)
{
    mx_str s = MX_STR("on");
    if (!mx_json_get_string(o, "cache", &s, p)) {
        return false;
    }
    if (mx_str_eq(s, MX_STR("on"))) {
        a->cache = MX_CACHE_USE;
    } else if (mx_str_eq(s, MX_STR("no-store"))) {
        a->cache = MX_CACHE_NO_STORE;
    } else if (mx_str_eq(s, MX_STR("off"))) {
        a->cache = MX_CACHE_OFF;
    } else {
        return mx_problem_field(p, "cache", "'cache' must be \"on\", \"no-store\" or \"off\"");
    }
    return true;
}

static bool read_session(mx_api_params *a, struct json_object *o, mx_problem *p)
{
    if (!mx_json_get_string(o, "prompt_cache_key", &a->session, p)) {
        return false;
    }
    if (a->session.len > 0 && !mx_session_name_ok(a->session)) {
        return mx_problem_field(p, "prompt_cache_key", "'prompt_cache_key' must be at most %d bytes without "
                                "control characters", MX_SESSION_NAME_MAX);
    }
    return true;
}

bool mx_api_params_read(mx_api_params *out, struct json_object *body, bool is_chat, size_t n_vocab,
                        mx_problem *p)
{
    *out = (mx_api_params){0};
    if (!mx_json_get_string(body, "model", &out->model, p)) {
        return false;
    }
    if (out->model.len > 256) {
        return mx_problem_field(p, "model", "'model' is longer than 256 bytes");
    }
    return check_unsupported(body, is_chat, p) && read_tools(out, body, p)
           && read_sampling(out, body, p) && read_logprobs(out, body, is_chat, p) && read_limits(out, body, is_chat, p)
           && read_stream(out, body, p) && read_cache(out, body, p) && read_session(out, body, p)
           && read_stops(out, body, p)
           && read_bias(out, body, n_vocab, p);
}

void mx_api_params_free(mx_api_params *a)
{
    mx_free(a->stops);
    mx_free(a->bias);
    *a = (mx_api_params){0};
}
