/* SPDX-License-Identifier: MIT
 *
 * Between libmicrohttpd and the exchange: its callbacks, and the answers that go back through it.
 * Everything here runs on the loop thread.
 *
 *   request line -> on_target     creates the exchange
 *   header       -> on_header     checks; may refuse: at once, or after the body has been discarded
 *   body         -> on_body       counted and kept, or counted and discarded
 *   end          -> on_complete   to the workers, suspended
 *   answer       -> send_answer   reply or stream; on_stream is called while the socket has room
 *   over         -> on_completed
 *
 * A refusal normally waits for the end of the body (at most max_body_bytes of it), because that
 * keeps the connection usable and because a client that is still sending does not read. Where the
 * body is too large, or where it ends cannot be told, the answer leaves at once, and the socket
 * lingers, so that the kernel does not destroy the answer with a reset.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "http_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* Bodies of all requests together; beyond, 503. Loopback clients alone could otherwise take
 * max_connections * max_body_bytes of memory. */
static size_t body_budget(const mx_http *h)
{
    size_t four;
    size_t floor_bytes = (size_t)256 << 20;
    return mx_mul_ok(h->cfg.max_body_bytes, 4, &four) ? mx_max_size(four, floor_bytes) : SIZE_MAX;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void header(struct MHD_Response *r, const char *name, const char *value)
{
    if (MHD_add_response_header(r, name, value) != MHD_YES) {
        mx_log(MX_LOG_DEBUG, "http: response header %s was not accepted", name);
    }
}

static void add_common_headers(mx_http_exchange *x, struct MHD_Response *r)
{
    header(r, "x-request-id", x->id);
    header(r, "request-id", x->id);
    if (x->cors_origin != NULL) {
        header(r, "Access-Control-Allow-Origin", x->cors_origin);
        header(r, "Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
        header(r, "Vary", "Origin");
    }
    if (x->close_after || x->h->is_quiescing) {
        header(r, "Connection", "close");
    }
}

static void unref_exchange(void *x)
{
    mx_http_unref(x);
}

/* Half the timeout: a client is given up when it took nothing between two looks. */
static uint64_t send_check_us(const mx_http *h)
{
    return (uint64_t)h->cfg.send_timeout_ms * 500;
}

static enum MHD_Result queue(mx_http_exchange *x, unsigned status, struct MHD_Response *r)
{
    mx_http_conn *c = x->conn;
    x->is_answering = true;
    if (status < MX_HTTP_STATUS_MAX) {
        atomic_fetch_add_explicit(&x->h->n_answered[status], 1, memory_order_relaxed);
    }
    c->phase = HTTP_PHASE_SEND;
    c->sent_mark = UINT64_MAX;
    http_set_deadline(c, mx_now_us() + send_check_us(x->h));
    enum MHD_Result result = MHD_queue_response(c->mhd, status, r);
    MHD_destroy_response(r);
    return result;
}

/* The response borrows `body` from the exchange and holds a reference to it. */
static struct MHD_Response *response_of_buf(mx_http_exchange *x, mx_buf *body)
{
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback_cls(
        body->len, body->ptr == NULL ? x->id : body->ptr, unref_exchange, x);
    if (r != NULL) {
        mx_http_ref(x);
    }
    return r;
}

void http_own_error(const mx_http_exchange *x, mx_buf *out, unsigned status, const char *message,
                    const char *code)
{
    const mx_http_config *cfg = &x->h->cfg;
    if (x->path == NULL || cfg->error_words == NULL || !cfg->error_words(x, out, status, message)) {
        mx_http_error_body(out, status, message, NULL, code);
    }
}

static enum MHD_Result send_error(mx_http_exchange *x, unsigned status, const char *message,
                                  const char *code)
{
    mx_buf_clear(&x->reply_body);
    http_own_error(x, &x->reply_body, status, message, code);
    struct MHD_Response *r = x->reply_body.failed ? NULL : response_of_buf(x, &x->reply_body);
    if (r == NULL) {
        return MHD_NO;
    }
    add_common_headers(x, r);
    header(r, "Content-Type", "application/json");
    if (status == 401) {
        header(r, "WWW-Authenticate", "Bearer");
    }
    if (status == 503) {
        header(r, "Retry-After", "1");
    }
    return queue(x, status, r);
}

static enum MHD_Result send_preflight(mx_http_exchange *x)
{
    struct MHD_Response *r = response_of_buf(x, &x->reply_body);
    if (r == NULL) {
        return MHD_NO;
    }
    add_common_headers(x, r);
    header(r, "Allow", "GET, POST, HEAD, OPTIONS, DELETE");
    if (x->cors_origin != NULL) {
        header(r, "Access-Control-Allow-Methods", "GET, POST, HEAD, OPTIONS, DELETE");
        const char *wanted = mx_http_header(x, "access-control-request-headers");
        header(r, "Access-Control-Allow-Headers", wanted != NULL && *wanted != '\0' ? wanted : "*");
        header(r, "Access-Control-Max-Age", "86400");
        const char *private_network = mx_http_header(x, "access-control-request-private-network");
        if (private_network != NULL && http_token_eq(private_network, "true") &&
            strcmp(x->cors_origin, "*") != 0)
        {
            header(r, "Access-Control-Allow-Private-Network", "true");
        }
    }
    return queue(x, 204, r);
}

static enum MHD_Result send_reply(mx_http_exchange *x)
{
    if (x->reply_body.failed || x->reply_headers.failed) {
        return MHD_NO; /* no memory for the answer: a closed connection is an honest one */
    }
    struct MHD_Response *r = response_of_buf(x, &x->reply_body);
    if (r == NULL) {
        return MHD_NO;
    }
    add_common_headers(x, r);
    if (x->content_type != NULL) {
        header(r, "Content-Type", x->content_type);
    }
    for (size_t at = 0; at < x->reply_headers.len;) {
        char *line = x->reply_headers.ptr + at;
        at += strlen(line) + 1;
        char *colon = strchr(line, ':');
        if (colon != NULL) {
            *colon = '\0';
            header(r, line, colon + 1 + strspn(colon + 1, " "));
        }
    }
    return queue(x, x->status, r);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void suspend(mx_http_exchange *x)
{
    assert(!x->is_suspended);
    x->is_suspended = true;
    MHD_suspend_connection(x->conn->mhd);
}

static void resume(mx_http_exchange *x)
{
    if (x->is_suspended) {
        x->is_suspended = false;
        MHD_resume_connection(x->conn->mhd);
    }
}

static void pull_stream(mx_http_exchange *x)
{
    mx_buf_clear(&x->out);
    x->out_at = 0;
    x->pull_again = false;
    mx_http_pull result = x->source.pull(x->source.arg, x, &x->out);
    x->waits = result == MX_HTTP_WAIT;
    x->is_ended = result == MX_HTTP_END;
    x->is_aborted = result == MX_HTTP_ABORT || x->out.failed;
    if (result == MX_HTTP_MORE && x->out.len == 0) {
        /* More, but not now: another turn of the loop, so that no source starves the rest. */
        x->waits = true;
        mx_http_wake(x);
    }
}

/* libmicrohttpd calls this only when everything before has been written to the socket. */
static ssize_t on_stream(void *arg, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    mx_http_exchange *x = arg;
    for (;;) {
        if (x->is_over || x->conn == NULL) {
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        size_t left = x->out.len - x->out_at;
        if (left > 0) {
            size_t n = mx_min_size(left, max);
            memcpy(buf, x->out.ptr + x->out_at, n);
            x->out_at += n;
            x->n_sent += n;
            x->last_out_us = mx_now_us();
            x->conn->phase = HTTP_PHASE_SEND;
            if (x->conn->deadline_us == 0) { /* from now on somebody must read */
                http_set_deadline(x->conn, x->last_out_us + send_check_us(x->h));
            }
            return (ssize_t)n;
        }
        if (x->is_aborted) {
            http_exchange_finish(x, false);
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        if (x->is_ended) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        if (x->waits && !x->pull_again) {
            mx_http_conn *c = x->conn;
            c->phase = HTTP_PHASE_WORK;
            suspend(x);
            http_set_deadline(c, x->source.idle_text == NULL || x->source.idle_ms == 0
                                     ? 0
                                     : x->last_out_us + (uint64_t)x->source.idle_ms * 1000);
            return 0;
        }
        pull_stream(x);
    }
}

static enum MHD_Result send_stream(mx_http_exchange *x)
{
    if (x->content_type == NULL) {
        return MHD_NO;
    }
    /* For HEAD the library would send the last chunk, a body where none may be. */
    struct MHD_Response *r =
        x->is_head ? MHD_create_response_from_buffer(0, x->id, MHD_RESPMEM_PERSISTENT)
                   : MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, on_stream, x,
                                                       unref_exchange);
    if (r == NULL) {
        return MHD_NO;
    }
    if (!x->is_head) {
        mx_http_ref(x);
    }
    add_common_headers(x, r);
    header(r, "Content-Type", x->content_type);
    header(r, "Cache-Control", "no-cache");
    header(r, "X-Accel-Buffering", "no");
    x->last_out_us = mx_now_us();
    return queue(x, x->status, r);
}

/* ---- answers past the library ---------------------------------------------------------------- */

/* Best effort: what fits into the socket's buffer, which is empty. */
static void raw_answer(int fd, unsigned status, const char *content_type, const char *request_id,
                       mx_str body)
{
    mx_buf text = {0};
    mx_buf_printf(&text, "HTTP/1.1 %u %s\r\nContent-Length: %zu\r\nConnection: close\r\n", status,
                  http_status_text(status), body.len);
    if (content_type != NULL) {
        mx_buf_printf(&text, "Content-Type: %s\r\n", content_type);
    }
    if (status == 503) {
        mx_buf_str(&text, "Retry-After: 1\r\n");
    }
    if (request_id != NULL) {
        mx_buf_printf(&text, "x-request-id: %s\r\nrequest-id: %s\r\n", request_id, request_id);
    }
    mx_buf_str(&text, "\r\n");
    mx_buf_append(&text, body.ptr, body.len);
    if (!text.failed) {
        ssize_t n = send(fd, text.ptr, text.len, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)n;
    }
    mx_buf_free(&text);
}

void http_raw_error(int fd, unsigned status, const char *request_id, const char *message)
{
    mx_buf body = {0};
    mx_http_error_body(&body, status, message, NULL, NULL);
    if (!body.failed) {
        raw_answer(fd, status, "application/json", request_id, mx_buf_view(&body));
    }
    mx_buf_free(&body);
}

/* ---- what the other threads did -------------------------------------------------------------- */

static void fail_deferred(mx_http_exchange *x)
{
    mx_buf body = {0};
    http_own_error(x, &body, 500, "The request ended without an answer.", NULL);
    mx_http_reply(x, 500, "application/json", mx_buf_view(&body), NULL, 0);
    mx_buf_free(&body);
}

static void advance_deferred(mx_http_exchange *x)
{
    if (!atomic_load_explicit(&x->is_reply_ready, memory_order_acquire)) {
        mx_http_pull result = x->source.pull(x->source.arg, x, NULL);
        if (result == MX_HTTP_ABORT) {
            http_exchange_finish(x, false);
            http_conn_kill(x->conn);
            return;
        }
        if (!atomic_load_explicit(&x->is_reply_ready, memory_order_acquire)) {
            if (result != MX_HTTP_END) {
                return;
            }
            fail_deferred(x);
        }
    }
    resume(x);
}

void http_request_advance(mx_http_exchange *x)
{
    int answer = atomic_load_explicit(&x->answer, memory_order_acquire);
    if (x->is_over || x->conn == NULL) {
        http_exchange_finish(x, true); /* tells a source that came too late */
        return;
    }
    if (answer == HTTP_NONE || !x->is_queued) {
        return;
    }
    if (x->conn->hup && answer != HTTP_REPLY) {
        http_exchange_finish(x, true);
        http_conn_kill(x->conn);
        return;
    }
    if (x->conn->hup && !x->is_answering) {
        /* Half closed, or gone: the library would take the end of input for the end of all. */
        if (!x->reply_body.failed && !x->is_head) {
            raw_answer(x->conn->fd, x->status, x->content_type, x->id, mx_buf_view(&x->reply_body));
        }
        http_exchange_finish(x, false);
        http_conn_kill(x->conn);
        return;
    }
    if (answer == HTTP_DEFER && !x->is_answering) {
        advance_deferred(x);
    } else if (answer == HTTP_STREAM && x->is_answering) {
        x->pull_again = true;
        resume(x);
    } else if (!x->is_answering) {
        resume(x);
    }
}

static enum MHD_Result send_answer(mx_http_exchange *x)
{
    int answer = atomic_load_explicit(&x->answer, memory_order_acquire);
    if (answer == HTTP_STREAM) {
        return send_stream(x);
    }
    if (answer != HTTP_NONE && atomic_load_explicit(&x->is_reply_ready, memory_order_acquire)) {
        return send_reply(x);
    }
    suspend(x); /* resumed without an answer: wait on */
    return MHD_YES;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void *on_target(void *arg, const char *target, struct MHD_Connection *mhd)
{
    mx_http *h = arg;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    mx_http_conn *c = info == NULL ? NULL : http_conn_of_fd(h, info->connect_fd);
    if (c == NULL) {
        return NULL;
    }
    if (c->x != NULL) { /* the one before ended without a notice */
        c->x->conn = NULL;
        http_exchange_finish(c->x, true);
        mx_http_unref(c->x);
        c->x = NULL;
    }
    mx_http_exchange *x = http_exchange_new(h, c);
    if (x == NULL) {
        return NULL;
    }
    x->raw_path = mx_strdup(target);
    c->x = x;
    c->phase = HTTP_PHASE_HEADER;
    c->is_idle = false;
    if (c->had_request) { /* the first one's time has been running since the connection was made */
        http_set_deadline(c, mx_now_us() + (uint64_t)h->cfg.header_timeout_ms * 1000);
    }
    c->had_request = true;
    return x;
}

static enum MHD_Result collect_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                      size_t name_len, const char *value, size_t value_len)
{
    (void)kind;
    mx_http_exchange *x = arg;
    if (strlen(name) != name_len || (value != NULL && strlen(value) != value_len)) {
        x->early_status = 400;
        snprintf(x->early_text, sizeof x->early_text, "A header contains a NUL byte.");
        return MHD_NO;
    }
    if (!http_add_header(x, name, value == NULL ? "" : value)) {
        x->early_status = 431;
        snprintf(x->early_text, sizeof x->early_text, "The request has more than %d headers.",
                 HTTP_MAX_HEADERS);
        return MHD_NO;
    }
    return MHD_YES;
}

static void refuse(mx_http_exchange *x, unsigned status, const char *code, const char *fmt, ...)
    MX_PRINTF(4, 5);

static void refuse(mx_http_exchange *x, unsigned status, const char *code, const char *fmt, ...)
{
    if (x->early_status == 0) {
        x->early_status = status;
        x->early_code = code;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(x->early_text, sizeof x->early_text, fmt, ap);
        va_end(ap);
    }
}

static void check_host_and_origin(mx_http_exchange *x, const char *version)
{
    const mx_http_config *cfg = &x->h->cfg;
    char safe[80];
    mx_str host = http_target_authority(x->raw_path);
    const char *field = mx_http_header(x, "host");
    if (host.ptr == NULL && field != NULL) {
        host = mx_str_of(field);
    }
    if (field == NULL && !http_token_eq(version, "HTTP/1.0")) {
        refuse(x, 400, NULL, "The request has no Host header.");
    } else if (host.ptr != NULL && !http_host_allowed(cfg, host)) {
        mx_log_safe(safe, sizeof safe, host.ptr, host.len);
        refuse(x, 403, "host_not_allowed",
               "The host name '%s' is not one of this server's. If it should be, start it with "
               "--allowed-host NAME; otherwise use http://127.0.0.1:%u.",
               safe, x->h->port);
    }
    const char *origin = mx_http_header(x, "origin");
    if (origin == NULL) {
        return;
    }
    if (!http_origin_allowed(cfg, mx_str_of(origin), host)) {
        mx_log_safe(safe, sizeof safe, origin, strlen(origin));
        refuse(x, 403, "origin_not_allowed",
               "Web pages from '%s' may not use this server. If they should, start it with "
               "--allowed-origin ORIGIN.",
               safe);
        return;
    }
    bool is_any = false;
    for (size_t i = 0; i < cfg->n_origins; i++) {
        is_any = is_any || strcmp(cfg->origins[i], "*") == 0;
    }
    x->cors_origin = mx_strdup(is_any ? "*" : origin);
}

static void check_admin_key(mx_http_exchange *x)
{
    if (x->h->cfg.admin_key == NULL) {
        refuse(x, 404, "not_found", "There is nothing at this path.");
    } else if (http_has_admin_key(x->h, x)) {
        return;
    } else if (x->key_index >= 0) {
        refuse(x, 403, "admin_key_needed", "This path needs the admin key; an API key is not "
               "enough.");
    } else {
        refuse(x, 401, "invalid_api_key",
               "This path needs the admin key: send it as 'Authorization: Bearer KEY'. It is the "
               "one that the server was started with (MTPLX_ADMIN_KEY or --admin-key).");
    }
}

static void check_key(mx_http_exchange *x)
{
    const mx_http_config *cfg = &x->h->cfg;
    if (cfg->n_api_keys == 0 && cfg->admin_key == NULL) {
        return;
    }
    x->key_index = http_find_key(x->h, x);
    if (x->path != NULL && cfg->is_admin_path != NULL && cfg->is_admin_path(x->path)) {
        check_admin_key(x);
        return;
    }
    if (cfg->n_api_keys == 0) {
        return;
    }
    for (size_t i = 0; i < cfg->n_open_paths && x->path != NULL; i++) {
        if (strcmp(cfg->open_paths[i], x->path) == 0) {
            return;
        }
    }
    if (x->key_index < 0) {
        refuse(x, 401, "invalid_api_key",
               "This server needs an API key: send it as 'Authorization: Bearer KEY' or as "
               "'x-api-key: KEY'. The key is the one that the server was started with.");
    }
}

/* All checks that need only the header. */
static void check_request(mx_http_exchange *x, const char *version, uint64_t body_len)
{
    mx_http *h = x->h;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->conn->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (info != NULL && info->header_size > h->cfg.max_header_bytes) {
        refuse(x, 431, NULL, "The request header is larger than %zu bytes.",
               h->cfg.max_header_bytes);
    }
    if (x->path == NULL) {
        refuse(x, 400, NULL, "The path of the request is malformed.");
    }
    check_host_and_origin(x, version);
    if (strcmp(x->method, "OPTIONS") != 0) {
        check_key(x);
    }
    const char *encoding = mx_http_header(x, "content-encoding");
    if (encoding != NULL && *encoding != '\0' && !http_token_eq(encoding, "identity")) {
        refuse(x, 415, NULL,
               "Content-Encoding is not understood here: send the body uncompressed.");
    }
    if (h->is_quiescing) {
        refuse(x, 503, NULL, "The server is shutting down.");
    }
    if (body_len > h->cfg.max_body_bytes) {
        x->early_status = 0; /* its length decides how the answer must leave */
        refuse(x, 413, NULL, "The body has %llu bytes; at most %zu are accepted.",
               (unsigned long long)body_len, h->cfg.max_body_bytes);
    }
}

static enum MHD_Result refuse_now(mx_http_exchange *x)
{
    x->close_after = true;
    http_conn_linger(x->conn);
    return send_error(x, x->early_status, x->early_text, x->early_code);
}

static enum MHD_Result on_header(mx_http_exchange *x, const char *method, const char *version)
{
    mx_http_conn *c = x->conn;
    x->is_begun = true;
    x->is_head = strcmp(method, "HEAD") == 0;
    snprintf(x->method, sizeof x->method, "%s", x->is_head ? "GET" : method);
    x->path = x->raw_path == NULL ? NULL : http_normalise_path(x->raw_path);
    MHD_get_connection_values_n(c->mhd, MHD_HEADER_KIND, collect_header, x);
    if (x->raw_path == NULL || x->header_text.failed) {
        return MHD_NO;
    }
    unsigned status = 0;
    uint64_t body_len = 0;
    bool is_chunked = false;
    const char *bad = http_check_framing(x, version, &status, &body_len, &is_chunked);
    if (bad != NULL || x->early_status != 0) {
        refuse(x, status, NULL, "%s", bad == NULL ? "" : bad);
        return refuse_now(x);
    }
    check_request(x, version, body_len);
    const char *expect = mx_http_header(x, "expect");
    bool waits_for_us = expect != NULL && http_token_eq(expect, "100-continue");
    bool has_body = is_chunked || body_len > 0;
    if (x->early_status == 413 || (x->early_status != 0 && has_body && waits_for_us)) {
        return refuse_now(x);
    }
    c->phase = HTTP_PHASE_BODY;
    http_set_deadline(c, mx_now_us() + (uint64_t)x->h->cfg.body_timeout_ms * 1000);
    return MHD_YES;
}

/* libmicrohttpd takes no answer in the middle of a body, so this one is written past it. */
static enum MHD_Result refuse_in_body(mx_http_exchange *x, unsigned status, const char *message)
{
    http_raw_error(x->conn->fd, status, x->id, message);
    http_conn_linger(x->conn);
    http_exchange_finish(x, false);
    return MHD_NO;
}

static enum MHD_Result on_body(mx_http_exchange *x, const char *bytes, size_t n)
{
    mx_http *h = x->h;
    char text[120];
    x->body_bytes += n;
    size_t all = atomic_fetch_add(&h->body_bytes, n) + n;
    if (x->body_bytes > h->cfg.max_body_bytes) {
        snprintf(text, sizeof text, "The body has more than the %zu bytes that are accepted.",
                 h->cfg.max_body_bytes);
        return refuse_in_body(x, 413, text);
    }
    if (all > body_budget(h)) {
        return refuse_in_body(x, 503, "Too many large requests at once: try again in a moment.");
    }
    if (x->early_status == 0) {
        mx_buf_append(&x->body, bytes, n);
        if (x->body.failed) {
            return refuse_in_body(x, 503, "There is no memory for the body now: try again later.");
        }
    }
    http_set_deadline(x->conn, mx_now_us() + (uint64_t)h->cfg.body_timeout_ms * 1000);
    return MHD_YES;
}

static enum MHD_Result on_complete(mx_http_exchange *x)
{
    mx_http_conn *c = x->conn;
    if (x->early_status != 0) {
        return send_error(x, x->early_status, x->early_text, x->early_code);
    }
    if (strcmp(x->method, "OPTIONS") == 0) {
        return send_preflight(x);
    }
    x->is_queued = true;
    if (!http_work_push(x->h, x)) {
        return send_error(x, 503, "Too many requests are waiting: try again in a moment.", NULL);
    }
    c->phase = HTTP_PHASE_WORK;
    http_set_deadline(c, c->hup ? x->queued_us + HTTP_HALF_CLOSE_GRACE_US : 0);
    suspend(x);
    return MHD_YES;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_len, void **con_cls)
{
    (void)arg;
    (void)url;
    mx_http_exchange *x = *con_cls;
    if (x == NULL || x->conn == NULL || x->is_over) {
        return MHD_NO;
    }
    x->conn->mhd = mhd;
    if (!x->is_begun) {
        return on_header(x, method, version);
    }
    if (*upload_len > 0) {
        size_t n = *upload_len;
        *upload_len = 0;
        return on_body(x, upload, n);
    }
    return x->is_queued ? send_answer(x) : on_complete(x);
}

static void on_completed(void *arg, struct MHD_Connection *mhd, void **con_cls,
                         enum MHD_RequestTerminationCode why)
{
    (void)mhd;
    mx_http *h = arg;
    mx_http_exchange *x = *con_cls;
    *con_cls = NULL;
    if (x == NULL || x->conn == NULL) {
        return;
    }
    mx_http_conn *c = x->conn;
    x->is_suspended = false;
    x->conn = NULL;
    http_exchange_finish(x, why != MHD_REQUEST_TERMINATED_COMPLETED_OK);
    assert(c->x == x);
    c->x = NULL;
    mx_http_unref(x);
    c->phase = HTTP_PHASE_HEADER;
    c->is_idle = true;
    c->idle_since_us = mx_now_us();
    /* While shutting down, a connection without a request has no future. */
    uint64_t idle_us = h->is_quiescing ? 0 : (uint64_t)h->cfg.idle_timeout_ms * 1000;
    http_set_deadline(c, c->idle_since_us + idle_us);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    (void)socket_context;
    mx_http *h = arg;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    mx_http_conn *c = info == NULL ? NULL : http_conn_of_fd(h, info->connect_fd);
    if (c == NULL) {
        return;
    }
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        c->mhd = mhd;
    } else {
        http_conn_closed(c);
    }
}

/* Paths are decoded by http_normalise_path, from the target as it was sent. */
static size_t keep_escapes(void *arg, struct MHD_Connection *mhd, char *s)
{
    (void)arg;
    (void)mhd;
    return strlen(s);
}

mx_err http_request_start(mx_http *h, mx_errbuf *eb)
{
    /* Room for a header of the allowed size, the library's index of it, and a block to send. What
     * is larger than this gets the library's own 431. */
    size_t memory = 2 * h->cfg.max_header_bytes + (size_t)32 * 1024;
    h->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL,
        on_request, h, MHD_OPTION_CONNECTION_LIMIT, h->cfg.max_connections + 16u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory, MHD_OPTION_URI_LOG_CALLBACK, on_target, h,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        h, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1,
        MHD_OPTION_END);
    if (h->mhd == NULL) {
        return mx_fail(eb, MX_E_IO, "the HTTP library did not start (out of file descriptors?)");
    }
    return MX_OK;
}
