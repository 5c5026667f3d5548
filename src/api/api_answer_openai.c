/* SPDX-License-Identifier: MIT
 *
 * A running answer in OpenAI's words: chat completions and completions, as one object or as a
 * stream of chunks.
 */
#include "api/api_answer.h"

/* ---- one object ------------------------------------------------------------------------------ */

static const char *finish_reason(const mx_choice *c)
{
    return c->calls.n > 0 ? "tool_calls" : mx_finish_name(c->finish);
}

static void write_choice(mx_answer *s, size_t i, mx_buf *b)
{
    mx_choice *c = &s->choices[i];
    mx_buf_printf(b, i == 0 ? "{\"index\":%zu," : ",{\"index\":%zu,", i);
    mx_buf_str(b, s->is_chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    mx_str text = c->calls.n > 0 ? c->calls.content : mx_buf_view(&c->text);
    mx_http_json_string(b, text.ptr == NULL ? "" : text.ptr, text.len);
    if (c->calls.n > 0) {
        mx_buf_str(b, ",\"tool_calls\":[");
        mx_tool_calls_write(b, &c->calls, c->nonce, false);
        mx_buf_str(b, "]");
    }
    mx_buf_str(b, s->is_chat ? ",\"refusal\":null},\"logprobs\":" : ",\"logprobs\":");
    if (s->want_logprobs) {
        mx_write_logprobs(b, &c->logprobs, s->is_chat);
    } else {
        mx_buf_str(b, "null");
    }
    mx_buf_printf(b, ",\"finish_reason\":\"%s\"}", finish_reason(c));
    b->failed = b->failed || c->text.failed;
}

/* "usage":...,"timings":... and the end of the object. */
static void write_usage(const mx_answer *s, mx_buf *b)
{
    mx_usage u;
    mx_answer_sum_usage(s, &u);
    mx_buf_str(b, "\"usage\":");
    mx_write_usage(b, &u);
    mx_buf_str(b, ",\"timings\":");
    mx_write_timings(b, &u);
    mx_buf_str(b, "}\n");
}

static void write_object(mx_answer *s, mx_buf *b)
{
    mx_buf_str(b, ",\"choices\":[");
    for (size_t i = 0; i < s->n; i++) {
        write_choice(s, i, b);
    }
    mx_buf_str(b, "],");
    write_usage(s, b);
}

mx_http_pull mx_openai_pull_object(void *arg, mx_http_exchange *x, mx_buf *out)
{
    (void)out;
    return mx_answer_pull_object(arg, x, write_object);
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void open_chunk(mx_answer *s, size_t index, mx_buf *b)
{
    mx_buf_str(b, "data: ");
    mx_buf_append(b, s->head.ptr, s->head.len);
    mx_buf_printf(b, ",\"choices\":[{\"index\":%zu,", index);
}

static void close_chunk(mx_buf *b, const char *finish_reason)
{
    if (finish_reason == NULL) {
        mx_buf_str(b, ",\"finish_reason\":null}]}\n\n");
    } else {
        mx_buf_printf(b, ",\"finish_reason\":\"%s\"}]}\n\n", finish_reason);
    }
}

static void stream_begin(mx_answer *s, mx_buf *b)
{
    for (size_t i = 0; s->is_chat && i < s->n; i++) {
        open_chunk(s, i, b);
        mx_buf_str(b, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
        close_chunk(b, NULL);
    }
    s->has_begun = true;
}

static void stream_calls(mx_answer *s, size_t i, mx_buf *b)
{
    mx_choice *c = &s->choices[i];
    if (c->calls.n > 0) {
        open_chunk(s, i, b);
        mx_buf_str(b, "\"delta\":{\"tool_calls\":[");
        mx_tool_calls_write(b, &c->calls, c->nonce, true);
        mx_buf_str(b, "]},\"logprobs\":null");
        close_chunk(b, NULL);
    }
}

static void stream_text(mx_answer *s, size_t i, mx_buf *b)
{
    mx_choice *c = &s->choices[i];
    mx_str text = mx_answer_next_text(s, c);
    if (text.len == 0 && c->logprobs.n == 0) {
        return;
    }
    open_chunk(s, i, b);
    mx_buf_str(b, s->is_chat ? "\"delta\":{\"content\":" : "\"text\":");
    mx_http_json_string(b, text.ptr == NULL ? "" : text.ptr, text.len);
    mx_buf_str(b, s->is_chat ? "},\"logprobs\":" : ",\"logprobs\":");
    if (s->want_logprobs) {
        mx_write_logprobs(b, &c->logprobs, s->is_chat);
    } else {
        mx_buf_str(b, "null");
    }
    close_chunk(b, NULL);
}

static void stream_finish(mx_answer *s, size_t i, mx_buf *b)
{
    open_chunk(s, i, b);
    mx_buf_str(b,
               s->is_chat ? "\"delta\":{},\"logprobs\":null" : "\"text\":\"\",\"logprobs\":null");
    close_chunk(b, finish_reason(&s->choices[i]));
}

static void stream_usage(mx_answer *s, mx_buf *b)
{
    mx_buf_str(b, "data: ");
    mx_buf_append(b, s->head.ptr, s->head.len);
    mx_buf_str(b, ",\"choices\":[],");
    write_usage(s, b);
    mx_buf_str(b, "\n");
}

mx_http_pull mx_openai_pull_stream(void *arg, mx_http_exchange *x, mx_buf *out)
{
    (void)x;
    mx_answer *s = arg;
    if (!s->has_begun) {
        stream_begin(s, out);
    }
    bool was_open[MX_API_MAX_PROMPTS];
    for (size_t i = 0; i < s->n; i++) {
        was_open[i] = s->choices[i].finish == MX_FINISH_NONE;
    }
    bool is_over = mx_answer_read(s);
    mx_problem p = {0};
    bool has_failed = mx_answer_find_problem(s, &p);
    for (size_t i = 0; i < s->n; i++) {
        stream_text(s, i, out);
        mx_finish f = s->choices[i].finish;
        if (was_open[i] && (f == MX_FINISH_STOP || f == MX_FINISH_LENGTH)) {
            stream_calls(s, i, out);
            stream_finish(s, i, out);
        }
    }
    if (has_failed) {
        s->status = p.status;
        mx_answer_cancel(s);
        mx_buf_str(out, "data: ");
        mx_api_error_json(out, &p);
        mx_buf_str(out, "\n\n");
        return MX_HTTP_END;
    }
    if (!is_over) {
        return MX_HTTP_WAIT;
    }
    if (s->include_usage) {
        stream_usage(s, out);
    }
    mx_buf_str(out, "data: [DONE]\n\n");
    s->status = 200;
    return MX_HTTP_END;
}
