/* SPDX-License-Identifier: MIT
 *
 * http.h: the HTTP/1.1 server: sockets, limits, deadlines, streams, hang-up detection. It knows
 * nothing about models: complete requests go to a handler, which answers at once, later, or with a
 * stream.
 *
 * Threads: one loop thread owns all sockets (libmicrohttpd in external-epoll mode); a few workers
 * run the handler, so that parsing, rendering and tokenising never block the sockets. A source's
 * functions run on the loop thread and must be quick. mx_http_wake may be called from any thread.
 *
 * Before a request reaches the handler it has passed: header and body limits, deadlines, framing
 * checks (no Content-Length together with Transfer-Encoding), the Host and Origin rules, OPTIONS
 * and CORS, the API key. Replies made here are OpenAI error objects. Only what libmicrohttpd itself
 * cannot parse (a malformed request line, a header far beyond the limit) gets that library's reply, in
 * HTML: it has no way to change that (docs/decisions/0004-http.md has the list).
 *
 * A client that closes only its sending side counts as gone while it waits for a worker, a deferred
 * answer or a stream; an answer that is ready at once still reaches it.
 */
#ifndef MX_HTTP_H
#define MX_HTTP_H

#include "base/buf.h"

typedef struct mx_http mx_http;
typedef struct mx_http_exchange mx_http_exchange;

typedef void (*mx_http_handler)(void *arg, mx_http_exchange *x);

typedef struct mx_http_config {
    const char *host;             /* "127.0.0.1" and "localhost" also bind [::1] where possible */
    uint16_t port;                /* 0 = any free one */
    unsigned n_workers;           /* 0 = 2 */
    size_t max_body_bytes;        /* 0 = 64 MiB */
    size_t max_header_bytes;      /* 0 = 32 KiB */
    unsigned max_connections;     /* 0 = 1024 */
    unsigned max_waiting;         /* for a worker; beyond: 503 + Retry-After; 0 = 256 */
    unsigned header_timeout_ms;   /* whole header must have arrived; 0 = 10 s */
    unsigned body_timeout_ms;     /* no progress in the body; 0 = 30 s */
    unsigned idle_timeout_ms;     /* keep-alive connection without a request; 0 = 120 s */
    const char *const *origins;   /* allowed Origin values beside the loopback ones; "*" = any */
    size_t n_origins;
    const char *const *hosts;     /* allowed Host names beside loopback, addresses, `host` */
    size_t n_hosts;
    const char *const *api_keys;  /* accepted keys; none = no authentication */
    size_t n_api_keys;
    /* Paths that never need a key, e.g. "/health"; compared after normalisation. */
    const char *const *open_paths;
    size_t n_open_paths;
    /* The administrator's paths, or NULL = there are none. As soon as keys are in use they need the
     * admin key; without one they are not there (404). The admin key opens nothing else. */
    bool (*is_admin_path)(const char *path);
    const char *admin_key;        /* NULL = none */
    /* Writes the body of an error that this server answers by itself, for paths whose clients expect other
     * words than OpenAI's; false = nothing was written. NULL = there are no such paths. Any thread. */
    bool (*error_words)(const mx_http_exchange *x, mx_buf *out, unsigned status, const char *message);
    mx_http_handler handler;
    void *handler_arg;
    unsigned send_timeout_ms;     /* a client that takes nothing of its answer; 0 = 60 s */
} mx_http_config;

/* Binds and starts the threads. The text of an error says what to do (port in use: which one). */
mx_err mx_http_start(mx_http **out, const mx_http_config *cfg, mx_errbuf *eb);
uint16_t mx_http_port(const mx_http *h);
/* Stops accepting; running exchanges go on. */
void mx_http_quiesce(mx_http *h);
/* Exchanges that have not ended yet. */
size_t mx_http_n_active(mx_http *h);
/* Closes what is left, joins the threads. */
void mx_http_stop(mx_http *h);

/* ---- the request, as the handler sees it ----------------------------------------------------- */

const char *mx_http_method(const mx_http_exchange *x); /* "GET", "POST"; HEAD is seen as "GET" */
/* Normalised: repeated slashes collapsed, trailing one removed, query cut off, percent-decoded. */
const char *mx_http_path(const mx_http_exchange *x);
/* The path as it was sent ends with a slash: a name behind it may have been left out by mistake. */
bool mx_http_path_is_open(const mx_http_exchange *x);
const char *mx_http_header(const mx_http_exchange *x, const char *name); /* NULL = absent */
mx_str mx_http_body(const mx_http_exchange *x);  /* a UTF-8 BOM is skipped */
const char *mx_http_request_id(const mx_http_exchange *x); /* also sent as x-request-id */
int mx_http_key_index(const mx_http_exchange *x); /* which api key was used, -1 = none needed */
/* How often the server that x belongs to has answered with each status. Any thread. */
enum { MX_HTTP_STATUS_MAX = 600 };
void mx_http_count_statuses(const mx_http_exchange *x, uint64_t counts[MX_HTTP_STATUS_MAX]);
/* The client is known to have gone: work for it can stop. Any thread. */
bool mx_http_hung_up(const mx_http_exchange *x);

/* ---- answering: exactly one of reply, stream, defer per exchange ----------------------------- */

/* The whole answer; any thread. extra_headers: "Name: value" strings, or NULL. */
void mx_http_reply(mx_http_exchange *x, unsigned status, const char *content_type, mx_str body,
                   const char *const *extra_headers, size_t n_extra);

typedef enum mx_http_pull { MX_HTTP_WAIT, MX_HTTP_MORE, MX_HTTP_END, MX_HTTP_ABORT } mx_http_pull;

typedef struct mx_http_source {
    /* Loop thread. Stream: append what can be sent now to out and return WAIT (call again after the
     * next wake), MORE (call again when the socket has room), END (send, then finish the body) or
     * ABORT (close the connection). It is only called when the socket has room: that is the
     * back-pressure. Deferred answer: out is unused; call mx_http_reply when complete and return
     * END, else WAIT. */
    mx_http_pull (*pull)(void *arg, mx_http_exchange *x, mx_buf *out);
    /* Loop thread, exactly once, when the exchange is over: the client hung up (then as soon as
     * that is seen, within 50 ms, also while a prompt is being read), or the answer was sent, or
     * the source aborted. Nothing of the source is called afterwards. */
    void (*closed)(void *arg, bool hung_up);
    void *arg;
    const char *idle_text; /* stream: sent after idle_ms without output, e.g. ": keep-alive\n\n" */
    unsigned idle_ms;
} mx_http_source;

/* Starts a chunked answer; the headers leave at once. `source` is copied. Handler's thread only. */
void mx_http_stream(mx_http_exchange *x, unsigned status, const char *content_type,
                    const mx_http_source *source);
/* The answer comes later through source->pull. Handler's thread only. */
void mx_http_defer(mx_http_exchange *x, const mx_http_source *source);

/* Asks for a pull. Any thread; cheap; may be called after the exchange is over while a reference is
 * held. */
void mx_http_wake(mx_http_exchange *x);
mx_http_exchange *mx_http_ref(mx_http_exchange *x);
void mx_http_unref(mx_http_exchange *x); /* any thread */

/* An OpenAI error object into out: {"error":{"message","type","param","code"}}; type follows from
 * the status. param and code may be NULL. */
void mx_http_error_body(mx_buf *out, unsigned status, const char *message, const char *param,
                        const char *code);
/* Appends s as a JSON string with quotes; ill-formed UTF-8 becomes U+FFFD. */
void mx_http_json_string(mx_buf *out, const char *s, size_t len);

#endif
