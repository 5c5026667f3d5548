/* SPDX-License-Identifier: MIT
 *
 * A running answer: one engine request per prompt, and their output. What it looks like to the
 * client is the business of its surface (api_answer_openai.c, api_answer_messages.c). The ids of
 * the answer are put behind those of its prompt and remembered (api_recall.h) before the client can
 * see the end: its next request may come at once.
 *
 * Made on a worker (mx_api_answer), then owned by the HTTP loop thread: pull and closed run there.
 * The engine thread only reaches the waker. After mx_http_stream or mx_http_defer the worker must
 * not touch the answer again: it may be over already.
 */
#include "api/api_answer.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <sys/random.h>

enum { KEEP_ALIVE_MS = 10000 };

static void answer_free(mx_answer *s)
{
    if (s->waker != NULL) {
        mx_waker_put(s->api, s->waker);
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->requests != NULL && s->requests[i] != NULL) {
            mx_request_unref(s->requests[i]);
        }
        if (s->choices != NULL) {
            mx_output_free(&s->choices[i].out);
            mx_prompt_free(&s->choices[i].prompt);
            mx_buf_free(&s->choices[i].text);
            mx_tool_calls_free(&s->choices[i].calls);
            mx_logprobs_free(&s->choices[i].logprobs);
        }
    }
    mx_reply_free(&s->reply);
    json_object_put(s->tools);
    mx_free(s->requests);
    mx_free(s->choices);
    mx_buf_free(&s->head);
    mx_free(s);
}

void mx_answer_sum_usage(const mx_answer *s, mx_usage *u)
{
    *u = (mx_usage){.prompt_source = "client", .tokenizer = s->tokenizer,
                    .hides_stored = mx_api_hides_stored(s->api)};
    for (size_t i = 0; i < s->n; i++) {
        if (s->choices[i].prompt.is_replayed) {
            u->prompt_source = "tool_map";
        } else if (s->choices[i].prompt.is_sampled && strcmp(u->prompt_source, "client") == 0) {
            u->prompt_source = "sampled_ids";
        }
        mx_request_stats stats;
        mx_request_get_stats(s->requests[i], &stats);
        mx_usage_add(u, &stats, i == 0);
    }
}

/* ---- finishing ------------------------------------------------------------------------------- */

bool mx_answer_find_problem(mx_answer *s, mx_problem *p)
{
    for (size_t i = 0; i < s->n; i++) {
        mx_choice *c = &s->choices[i];
        if (c->finish == MX_FINISH_CANCELLED) {
            mx_problem_set(p, 503, "stopping", NULL, "the request was stopped because the server "
                           "is shutting down");
            p->retry_after_s = 5;
            return true;
        }
        if (c->finish == MX_FINISH_ERROR) {
            const char *text = c->out.error_text[0] == '\0' ? mx_err_name(c->out.error)
                                                            : c->out.error_text;
            mx_problem_set(p, 500, mx_err_name(c->out.error), NULL,
                           "the answer could not be computed: "
                           "%s", text);
            return true;
        }
    }
    return false;
}

void mx_answer_cancel(mx_answer *s)
{
    for (size_t i = 0; i < s->n; i++) {
        if (s->requests[i] != NULL) {
            mx_request_cancel(s->requests[i]);
        }
    }
}

/* ---- remembering ----------------------------------------------------------------------------- */

static void remember(mx_answer *s, mx_choice *c)
{
    if (c->prompt.is_kept) {
        mx_recall_store(s->api->recall, &s->rules.scope, &c->prompt.turns, c->prompt.tokens.ids,
                        c->prompt.tokens.n);
        c->prompt.is_kept = false;
    }
}

/* Puts the ids that were read behind those of the prompt; gives up for good when there is no
 * memory. */
static void take_answer(mx_answer *s, mx_choice *c)
{
    for (size_t i = 0; c->keeps_ids && i < c->out.n_ids; i++) {
        c->keeps_ids = mx_tokens_push(&c->prompt.tokens, c->out.ids[i]) == MX_OK;
    }
    c->prompt.is_kept = c->prompt.is_kept && c->keeps_ids;
    if (s->reply.body != NULL) {
        mx_buf_append(&s->reply.text, c->out.text.ptr, c->out.text.len);
    }
    if (c->finish == MX_FINISH_STOP || c->finish == MX_FINISH_LENGTH) {
        remember(s, c);
        /* Behind a call comes its result, not a message of the user. */
        if (c->keeps_ids && c->calls.n == 0 && s->reply.body != NULL && !s->reply.text.failed) {
            mx_post_answer(s->api->post, &s->reply, &s->rules, s->salt, &c->prompt.tokens);
        }
    }
}

/* The client has gone. What was sampled for it is kept, whether it has seen it or not: it may have
 * stopped the answer to go on from there, or ask again. */
static void remember_all(mx_answer *s)
{
    for (size_t i = 0; i < s->n; i++) {
        mx_choice *c = &s->choices[i];
        if (c->finish != MX_FINISH_ERROR && c->prompt.tokens.n > c->n_prompt) {
            remember(s, c);
        }
    }
}

bool mx_answer_read(mx_answer *s)
{
    bool all_ended = true, any_failed = false;
    for (size_t i = 0; i < s->n; i++) {
        mx_choice *c = &s->choices[i];
        if (c->finish != MX_FINISH_NONE) {
            mx_buf_clear(&c->out.text);
            c->out.n_tokens = 0;
            continue;
        }
        mx_request_read(s->requests[i], &c->out);
        c->finish = c->out.finish;
        if (!s->stream || s->has_tools) {
            mx_buf_append(&c->text, c->out.text.ptr, c->out.text.len);
        }
        if (s->has_tools && c->finish == MX_FINISH_STOP) {
            (void)mx_tool_calls_read(&c->calls, s->api->tool_form, s->tools,
                                     mx_buf_view(&c->text));
            mx_tool_calls_cut(&c->calls, s->single_call ? 1 : MX_TOOL_CALLS_MAX);
        }
        take_answer(s, c);
        all_ended = all_ended && c->finish != MX_FINISH_NONE;
        any_failed = any_failed || c->finish == MX_FINISH_ERROR || c->finish == MX_FINISH_CANCELLED;
        if (s->want_logprobs) {
            mx_logprobs_add(&c->logprobs, s->is_chat, s->tokenizer, &c->out);
        }
    }
    return all_ended || any_failed;
}

mx_str mx_answer_next_text(mx_answer *s, mx_choice *c)
{
    if (!s->has_tools) {
        return mx_buf_view(&c->out.text);
    }
    mx_str all = mx_buf_view(&c->text);
    size_t end = c->calls.n > 0                  ? c->calls.content.len
                 : c->finish == MX_FINISH_NONE ? mx_tool_calls_safe(s->api->tool_form, all)
                                               : all.len;
    end = mx_max_size(end, c->n_sent);
    mx_str text = {all.ptr + c->n_sent, end - c->n_sent};
    c->n_sent = end;
    return text;
}

mx_http_pull mx_answer_pull_object(mx_answer *s, mx_http_exchange *x,
                                   void (*write)(mx_answer *s, mx_buf *b))
{
    if (!mx_answer_read(s)) {
        return MX_HTTP_WAIT;
    }
    mx_problem p = {0};
    if (mx_answer_find_problem(s, &p)) {
        s->status = p.status;
        mx_answer_cancel(s);
        mx_api_reply_problem(x, &p);
        return MX_HTTP_END;
    }
    mx_buf b = {0};
    mx_buf_append(&b, s->head.ptr, s->head.len);
    write(s, &b);
    s->status = b.failed ? 500 : 200;
    mx_api_reply_json(x, 200, &b);
    return MX_HTTP_END;
}

/* ---- the end --------------------------------------------------------------------------------- */

static const char *path_of(mx_surface surface)
{
    switch (surface) {
    case MX_SURFACE_CHAT: return "/v1/chat/completions";
    case MX_SURFACE_MESSAGES: return "/v1/messages";
    case MX_SURFACE_TEXT: break;
    }
    return "/v1/completions";
}

static void closed(void *arg, bool hung_up)
{
    mx_answer *s = arg;
    mx_usage u;
    if (hung_up) {
        mx_answer_cancel(s);
        (void)mx_answer_read(s);
        remember_all(s);
    }
    mx_answer_sum_usage(s, &u);
    const mx_request_stats *t = &u.total;
    bool is_over = s->choices[0].finish != MX_FINISH_NONE;
    mx_log(MX_LOG_INFO,
           "request: id=%s status=%u path=%s stream=%s cache_mode=%s ctx=%zu+%zu+%zu generated=%zu "
           "prompt_source=%s finish=%s queue_ms=%.1f restore_ms=%.1f prefill_ms=%.1f "
           "decode_ms=%.1f total_ms=%.1f",
           s->request_id, hung_up && !is_over ? 499 : s->status,
           path_of(s->surface), s->stream ? "yes" : "no",
           mx_usage_mode(&u), t->n_ram, t->n_ssd, t->n_computed, t->n_generated, u.prompt_source,
           hung_up && !is_over ? "hung_up" : mx_finish_name(s->choices[0].finish),
           (double)t->queue_us / 1e3, (double)t->restore_us / 1e3, (double)t->prefill_us / 1e3,
           (double)t->decode_us / 1e3, (double)(mx_now_us() - s->received_us) / 1e3);
    answer_free(s);
}

/* ---- the beginning --------------------------------------------------------------------------- */

bool mx_api_too_long(const mx_api *a, const char *field, size_t n_prompt, mx_problem *p)
{
    size_t n_ctx = mx_engine_max_tokens(a->engine);
    p->n_prompt_tokens = n_prompt;
    p->n_ctx = n_ctx;
    const char *cure = "start with a larger --max-context";
    char memory[160];
    if (n_ctx < mx_model_get_config(a->model)->n_ctx) {
        mx_engine_stats e;
        mx_engine_get_stats(a->engine, &e);
        double mib = (double)e.kv_page_bytes / MX_PAGE_TOKENS / (1 << 20);
        snprintf(memory, sizeof memory, "start with a larger --kv-budget (%zu tokens take %.1f MiB "
                 "of keys and values, %.1f MiB are there)", n_prompt + 1, mib * (double)(n_prompt + 1),
                 mib * (double)n_ctx);
        cure = memory;
    }
    return mx_problem_set(p, 400, "context_length_exceeded", field,
                          "request (%zu tokens) exceeds the available context size (%zu tokens); "
                              "this model's maximum context length is %zu tokens, of which one "
                              "must be left for the answer: shorten '%s', or %s", n_prompt,
                          n_ctx, n_ctx, field, cure);
}

/* What is needed of the prompt as long as the answer runs. */
static void take_prompt(mx_answer *s, mx_choice *c, mx_prompt *prompt)
{
    c->prompt = *prompt;
    *prompt = (mx_prompt){0};
    c->n_prompt = c->prompt.tokens.n;
    if (c->prompt.turns.n > 0) {
        memcpy(c->nonce, c->prompt.turns.list[c->prompt.turns.n - 1].nonce, sizeof c->nonce);
    } else if (s->has_tools && getrandom(c->nonce, sizeof c->nonce, 0) < 0) {
        s->has_tools = false; /* without a name for them, calls are text */
    }
    c->keeps_ids = s->reply.body != NULL || c->prompt.is_kept;
    if (!c->keeps_ids) {
        mx_tokens_free(&c->prompt.tokens);
    }
}

static bool create_request(mx_answer *s, size_t i, const mx_api_params *a, mx_prompt *prompt,
                           const mx_hash256 *salt, mx_problem *p)
{
    size_t n_ctx = mx_engine_max_tokens(s->api->engine);
    size_t n = prompt->tokens.n;
    if (n > n_ctx || (n == n_ctx && a->max_tokens > 0)) {
        return mx_api_too_long(s->api, s->is_chat ? "messages" : "prompt", n, p);
    }
    mx_request_params r = {
        .prompt = prompt->tokens.ids,
        .n_prompt = n,
        .max_tokens = a->max_tokens,
        .sampling = a->sampling,
        .stops = a->stops,
        .n_stops = a->n_stops,
        .ignore_eos = a->ignore_eos,
        .cache = a->cache,
        .salt = salt,
        .marks = prompt->marks,
        .n_marks = prompt->n_marks,
        .turns = prompt->turns.list,
        .n_turns = prompt->turns.n,
        .session = s->n == 1 ? a->session : (mx_str){0}, /* one session, one prompt */
        .wake = mx_waker_wake,
        .wake_arg = s->waker,
    };
    snprintf(r.id, sizeof r.id, "%s", s->request_id);
    mx_errbuf eb = {0};
    mx_err e = mx_request_create(&s->requests[i], s->api->engine, &r, &eb);
    if (e == MX_OK) {
        take_prompt(s, &s->choices[i], prompt);
        return true;
    }
    s->requests[i] = NULL;
    if (e == MX_E_INVALID || e == MX_E_LIMIT) {
        return mx_problem_set(p, 400, "context_length_exceeded", s->is_chat ? "messages" : "prompt",
                              "%s", eb.text);
    }
    return mx_problem_set(p, 500, mx_err_name(e), NULL, "the request could not be set up: %s",
                          eb.text);
}

static bool submit_request(mx_answer *s, size_t i, mx_problem *p)
{
    mx_errbuf eb = {0};
    mx_err e = mx_engine_submit(s->api->engine, s->requests[i], &eb);
    if (e == MX_OK) {
        return true;
    }
    p->retry_after_s = 5;
    if (e == MX_E_FULL) {
        return mx_problem_set(p, 503, "queue_full", NULL, "too many requests are waiting already; "
                              "try again later (--max-queued sets how many may wait)");
    }
    if (e == MX_E_CANCELLED) {
        return mx_problem_set(p, 503, "stopping", NULL, "the server is shutting down");
    }
    return mx_problem_set(p, 500, mx_err_name(e), NULL, "the request could not be queued: %s",
                          eb.text);
}

static void write_id(mx_answer *s, const char *prefix)
{
    unsigned char random[12] = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        uint64_t n = __atomic_add_fetch(&s->api->next_id, 1, __ATOMIC_RELAXED);
        memcpy(random, &n, sizeof n); /* unique in this process is what an id needs */
    }
    mx_buf_printf(&s->head, "{\"id\":\"%s", prefix);
    for (size_t i = 0; i < sizeof random; i++) {
        mx_buf_printf(&s->head, "%02x", random[i]);
    }
}

static void write_head(mx_answer *s, const mx_api_params *a)
{
    mx_buf *b = &s->head;
    if (s->surface == MX_SURFACE_MESSAGES) {
        write_id(s, "msg_");
        mx_buf_str(b, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    } else {
        write_id(s, s->is_chat ? "chatcmpl-" : "cmpl-");
        const char *object = !s->is_chat ? "text_completion"
                             : s->stream ? "chat.completion.chunk" : "chat.completion";
        mx_buf_printf(b, "\",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
                      (long long)mx_wall_s());
    }
    mx_str model = a->model.len > 0 ? a->model : MX_STR("mtplx");
    mx_http_json_string(b, model.ptr, model.len);
    if (s->surface != MX_SURFACE_MESSAGES) {
        mx_buf_printf(b, ",\"system_fingerprint\":\"%s\"", s->api->fingerprint);
    }
}

static mx_answer *answer_new(mx_api *api, mx_http_exchange *x, mx_surface surface,
                             const mx_api_params *a, size_t n)
{
    mx_answer *s = mx_calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->api = api;
    s->surface = surface;
    s->is_chat = surface != MX_SURFACE_TEXT;
    s->stream = a->stream;
    s->include_usage = a->include_usage;
    s->want_logprobs = a->sampling.want_logprobs;
    s->has_tools = s->is_chat && a->has_tools && api->tool_form != MX_TOOL_TEXT;
    if (s->has_tools && json_object_deep_copy(a->tools, &s->tools, NULL) != 0) {
        s->tools = NULL; /* without memory for them, no argument has a type */
    }
    s->single_call = a->single_call;
    s->tokenizer = mx_model_tokenizer(api->model);
    s->status = 200;
    s->n = n;
    snprintf(s->request_id, sizeof s->request_id, "%s", mx_http_request_id(x));
    s->requests = mx_calloc(n, sizeof *s->requests);
    s->choices = mx_calloc(n, sizeof *s->choices);
    s->waker = mx_waker_get(api, x);
    write_head(s, a);
    if (s->requests == NULL || s->choices == NULL || s->waker == NULL || s->head.failed) {
        answer_free(s);
        return NULL;
    }
    return s;
}

void mx_api_answer(mx_api *api, mx_http_exchange *x, mx_surface surface,
                   const mx_api_params *params, const mx_prompt_rules *rules, mx_prompt *prompts,
                   size_t n_prompts, mx_reply *reply, uint64_t received_us)
{
    mx_problem p = {0};
    mx_answer *s = answer_new(api, x, surface, params, n_prompts);
    if (s == NULL) {
        mx_problem_set(&p, 500, NULL, NULL, "out of memory");
        mx_api_reply_problem(x, &p);
        mx_reply_free(reply);
        return;
    }
    s->received_us = received_us;
    s->rules = *rules;
    s->reply = *reply;
    *reply = (mx_reply){0};
    s->salt = mx_api_salt(api, mx_http_key_index(x));
    bool ok = true;
    for (size_t i = 0; ok && i < n_prompts; i++) {
        ok = create_request(s, i, params, &prompts[i], s->salt, &p);
    }
    for (size_t i = 0; ok && i < n_prompts; i++) {
        ok = submit_request(s, i, &p);
    }
    if (!ok) {
        mx_answer_cancel(s);
        answer_free(s);
        mx_api_reply_problem(x, &p);
        return;
    }
    mx_waker_watch(s->waker, s->requests, s->n);
    bool is_stream = s->stream, is_openai = surface != MX_SURFACE_MESSAGES;
    const char *idle_text = is_openai ? ": keep-alive\n\n"
                                      : "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    mx_http_source source = {
        .pull = is_stream ? (is_openai ? mx_openai_pull_stream : mx_messages_pull_stream)
                          : (is_openai ? mx_openai_pull_object : mx_messages_pull_object),
        .closed = closed,
        .arg = s,
        .idle_text = is_stream ? idle_text : NULL,
        .idle_ms = KEEP_ALIVE_MS,
    };
    mx_http_ref(x);
    if (is_stream) {
        mx_http_stream(x, 200, "text/event-stream; charset=utf-8", &source);
    } else {
        mx_http_defer(x, &source);
    }
    mx_http_wake(x); /* output may have come before there was anybody to pull it */
    mx_http_unref(x);
}
