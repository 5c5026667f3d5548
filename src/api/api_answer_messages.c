/* SPDX-License-Identifier: MIT
 *
 * A running answer in Anthropic's words: a message of blocks, as one object or as a stream of named
 * events. There is one choice; its text is the first block, each call of a tool another.
 *
 * Clients draw the length of the prompt and what of it was cached from the first event, so that
 * waits until both are known: a ping keeps the line open as long as the prompt is read.
 */
#include "api/api_answer.h"
#include "api/api_messages.h"

static const char *stop_reason(const mx_choice *c)
{
    if (c->calls.n > 0) {
        return "tool_use";
    }
    return c->finish == MX_FINISH_LENGTH ? "max_tokens"
           : c->out.stop.len > 0         ? "stop_sequence"
                                         : "end_turn";
}

/* "stop_reason":...,"stop_sequence":... */
static void write_ending(mx_buf *b, const mx_choice *c)
{
    mx_buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c));
    if (c->calls.n == 0 && c->finish == MX_FINISH_STOP && c->out.stop.len > 0) {
        mx_http_json_string(b, c->out.stop.ptr, c->out.stop.len);
    } else {
        mx_buf_str(b, "null");
    }
}

/* What was not in the cache counts as input: the three sum up to the prompt. */
static void write_usage(mx_buf *b, const mx_answer *s)
{
    mx_usage u;
    mx_answer_sum_usage(s, &u);
    mx_buf_printf(b, "{\"input_tokens\":%zu,\"cache_creation_input_tokens\":0,"
                  "\"cache_read_input_tokens\":%zu,\"output_tokens\":%zu,",
                  u.total.n_computed, u.total.n_ram + u.total.n_ssd, u.total.n_generated);
    mx_write_cache_fields(b, &u);
    mx_buf_str(b, "}");
}

static void write_text_block(mx_buf *b, mx_str text)
{
    mx_buf_str(b, "{\"type\":\"text\",\"text\":");
    mx_http_json_string(b, text.ptr == NULL ? "" : text.ptr, text.len);
    mx_buf_str(b, "}");
}

/* Without its input, which a stream sends apart, unless it is given. */
static void write_call_block(mx_buf *b, const mx_choice *c, size_t i, mx_str input)
{
    char id[MX_TOOL_ID_CAP];
    mx_tool_id("toolu_", c->nonce, i, id);
    mx_buf_printf(b, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", id);
    mx_http_json_string(b, c->calls.calls[i].name.ptr, c->calls.calls[i].name.len);
    mx_buf_str(b, ",\"input\":");
    mx_buf_append(b, input.ptr, input.len);
    mx_buf_str(b, "}");
}

/* ---- one object ------------------------------------------------------------------------------ */

static void write_content(mx_buf *b, const mx_choice *c)
{
    mx_str text = c->calls.n > 0 ? c->calls.content : mx_buf_view(&c->text);
    bool has_text = text.len > 0 || c->calls.n == 0; /* clients look at the first block */
    if (has_text) {
        write_text_block(b, text);
    }
    for (size_t i = 0; i < c->calls.n; i++) {
        mx_buf_str(b, has_text || i > 0 ? "," : "");
        write_call_block(b, c, i, mx_tool_call_arguments(&c->calls.calls[i]));
    }
    b->failed = b->failed || c->text.failed;
}

static void write_object(mx_answer *s, mx_buf *b)
{
    const mx_choice *c = &s->choices[0];
    mx_buf_str(b, ",\"content\":[");
    write_content(b, c);
    mx_buf_str(b, "],");
    write_ending(b, c);
    mx_buf_str(b, ",\"usage\":");
    write_usage(b, s);
    mx_buf_str(b, "}\n");
}

mx_http_pull mx_messages_pull_object(void *arg, mx_http_exchange *x, mx_buf *out)
{
    (void)out;
    return mx_answer_pull_object(arg, x, write_object);
}

/* ---- a stream -------------------------------------------------------------------------------- */

static void open_event(mx_buf *b, const char *name)
{
    mx_buf_printf(b, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void close_event(mx_buf *b)
{
    mx_buf_str(b, "}\n\n");
}

static void stream_begin(mx_answer *s, mx_buf *b)
{
    open_event(b, "message_start");
    mx_buf_str(b, ",\"message\":");
    mx_buf_append(b, s->head.ptr, s->head.len);
    mx_buf_str(b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    write_usage(b, s);
    mx_buf_str(b, "}");
    close_event(b);
    open_event(b, "ping");
    close_event(b);
    s->has_begun = true;
}

static void open_block(mx_buf *b, size_t index)
{
    open_event(b, "content_block_start");
    mx_buf_printf(b, ",\"index\":%zu,\"content_block\":", index);
}

static void stop_block(mx_buf *b, size_t index)
{
    open_event(b, "content_block_stop");
    mx_buf_printf(b, ",\"index\":%zu", index);
    close_event(b);
}

static void open_delta(mx_buf *b, size_t index, const char *type, const char *field)
{
    open_event(b, "content_block_delta");
    mx_buf_printf(b, ",\"index\":%zu,\"delta\":{\"type\":\"%s\",\"%s\":", index, type, field);
}

static void open_text(mx_answer *s, mx_buf *b)
{
    if (!s->has_open_block) {
        open_block(b, 0);
        write_text_block(b, MX_STR(""));
        close_event(b);
        s->has_open_block = true;
    }
}

static void stream_text(mx_answer *s, mx_choice *c, mx_buf *b)
{
    mx_str text = mx_answer_next_text(s, c);
    if (text.len > 0) {
        open_text(s, b);
        open_delta(b, 0, "text_delta", "text");
        mx_http_json_string(b, text.ptr, text.len);
        mx_buf_str(b, "}");
        close_event(b);
    }
}

/* Whole, in one piece: a client that gets half of a call, because the answer ends there, may run
 * what is left of it. */
static void stream_call(const mx_choice *c, size_t i, size_t index, mx_buf *b)
{
    open_block(b, index);
    write_call_block(b, c, i, MX_STR("{}"));
    close_event(b);
    mx_str input = mx_tool_call_arguments(&c->calls.calls[i]);
    open_delta(b, index, "input_json_delta", "partial_json");
    mx_http_json_string(b, input.ptr, input.len);
    mx_buf_str(b, "}");
    close_event(b);
    stop_block(b, index);
}

static void stream_end(mx_answer *s, mx_choice *c, mx_buf *b)
{
    if (c->calls.n == 0) {
        open_text(s, b);
    }
    size_t index = s->has_open_block ? 1 : 0;
    if (s->has_open_block) {
        stop_block(b, 0);
    }
    for (size_t i = 0; i < c->calls.n; i++) {
        stream_call(c, i, index++, b);
    }
    open_event(b, "message_delta");
    mx_buf_str(b, ",\"delta\":{");
    write_ending(b, c);
    mx_buf_str(b, "},\"usage\":");
    write_usage(b, s);
    close_event(b);
    open_event(b, "message_stop");
    close_event(b);
}

mx_http_pull mx_messages_pull_stream(void *arg, mx_http_exchange *x, mx_buf *out)
{
    (void)x;
    mx_answer *s = arg;
    mx_choice *c = &s->choices[0];
    bool is_over = mx_answer_read(s);
    mx_problem p = {0};
    if (mx_answer_find_problem(s, &p)) {
        s->status = p.status;
        mx_answer_cancel(s);
        mx_buf_str(out, "event: error\ndata: ");
        mx_messages_error(out, &p, s->request_id);
        mx_buf_str(out, "\n\n");
        return MX_HTTP_END;
    }
    if (!s->has_begun) {
        if (!is_over && c->out.n_ids == 0) {
            return MX_HTTP_WAIT; /* the prompt is being read */
        }
        stream_begin(s, out);
    }
    stream_text(s, c, out);
    if (!is_over) {
        return MX_HTTP_WAIT;
    }
    stream_end(s, c, out);
    s->status = 200;
    return MX_HTTP_END;
}
