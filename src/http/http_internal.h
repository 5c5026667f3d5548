/* SPDX-License-Identifier: MIT
 *
 * http_internal.h: what the files of src/http share. Nobody else includes it.
 *
 * Who touches what:
 *   loop thread only      mx_http_conn, the libmicrohttpd daemon, everything marked [loop]
 *   handler's worker      an exchange's request fields (written before it is queued, then constant)
 *   any thread            the fields marked [any]: atomics, or guarded by the lock that is named
 *
 * Locks: wake_lock and work_lock are leaves; neither is taken while the other is held.
 */
#ifndef MX_HTTP_INTERNAL_H
#define MX_HTTP_INTERNAL_H

#include "base/hash.h"
#include "http/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    HTTP_MAX_LISTENERS = 2,
    HTTP_MAX_HEADERS = 200,
    HTTP_MAX_LINGER = 256,
    HTTP_SEND_TIMEOUT_MS = 60000,
    /* How long a rejected client may go on sending before its socket is closed: closing with unread
     * bytes makes the kernel send a reset, which destroys the answer before it was read. */
    HTTP_LINGER_MS = 2000,
    /* A half-closed client whose request a worker picks up within this time is served as if it were
     * open: "printf ... | nc -N" works. Later, while every worker is busy with other requests, the
     * same sign means that it has gone. */
    HTTP_HALF_CLOSE_GRACE_US = 20000,
};

/* What an epoll event's data.ptr points to: the first member tells. */
typedef enum http_tag {
    HTTP_TAG_MHD,
    HTTP_TAG_WAKE,
    HTTP_TAG_LISTEN,
    HTTP_TAG_CONN,
    HTTP_TAG_LINGER,
} http_tag;

typedef enum http_phase {
    HTTP_PHASE_HEADER, /* waiting for a request line, or for the rest of a header */
    HTTP_PHASE_BODY,
    HTTP_PHASE_WORK,   /* with a worker, deferred, or a stream that waits: suspended */
    HTTP_PHASE_SEND,
} http_phase;

typedef struct http_listener {
    http_tag tag;
    int fd; /* -1 = closed */
} http_listener;

typedef struct http_linger { /* [loop] */
    http_tag tag;
    int fd;
    uint64_t deadline_us;
    struct http_linger *next;
} http_linger;

typedef struct mx_http_conn { /* [loop] */
    http_tag tag;
    int fd;        /* owned by libmicrohttpd */
    int linger_fd; /* a duplicate that outlives it where bytes may still arrive, else -1 */
    mx_http *h;
    struct MHD_Connection *mhd;
    struct mx_http_exchange *x; /* the current one; holds a reference */
    struct mx_http_conn *prev, *next;
    http_phase phase;
    bool hup;              /* the peer has closed its sending side, or all of it */
    bool is_killed;
    bool had_request;
    bool is_idle;          /* between two requests */
    uint64_t deadline_us;  /* 0 = none */
    uint64_t idle_since_us;
    uint64_t sent_mark;    /* x->n_sent at the last look at a slow reader */
    int outq_mark;
} mx_http_conn;

typedef enum http_answer { HTTP_NONE, HTTP_REPLY, HTTP_STREAM, HTTP_DEFER } http_answer;

typedef enum http_claim { HTTP_QUEUED, HTTP_TAKEN, HTTP_DROPPED } http_claim;

typedef struct http_header {
    size_t name, value; /* offsets into header_text */
} http_header;

struct mx_http_exchange {
    mx_http *h; /* holds a reference */
    atomic_uint refs;
    char id[32];

    /* The request: written by the loop before the exchange is queued, constant afterwards. */
    char method[32];
    bool is_head;
    char *path;
    mx_buf header_text;
    http_header headers[HTTP_MAX_HEADERS];
    size_t n_headers;
    mx_buf body;
    int key_index;
    uint64_t queued_us;

    /* The answer. [any] Written by one thread, published by the atomics with release. */
    atomic_int answer; /* http_answer */
    atomic_bool is_reply_claimed;
    atomic_bool is_reply_ready;
    unsigned status;
    char *content_type;
    mx_buf reply_body;
    mx_buf reply_headers; /* "Name: value\0" after each other */
    mx_http_source source;

    atomic_bool is_posted; /* [any] is on the wake list */
    atomic_bool is_hung;   /* [any] the client has gone */
    atomic_int claim;      /* [any] http_claim: left HTTP_QUEUED once, by worker or loop */
    mx_http_exchange *next_wake; /* wake_lock */
    mx_http_exchange *next_work; /* work_lock */

    /* [loop] */
    mx_http_conn *conn; /* NULL once the connection has let go */
    char *raw_path;     /* from the request line */
    bool is_begun;      /* headers have been seen */
    bool is_counted;    /* in n_active */
    bool is_queued;     /* was given to a worker */
    bool is_answering;  /* a response has been queued */
    bool is_suspended;
    bool is_over;
    bool is_closed_told; /* source.closed was called */
    bool close_after;
    unsigned early_status; /* decided before the body has been read; 0 = none */
    char early_text[320];
    const char *early_code;
    char *cors_origin;     /* the value to send, NULL = none */
    size_t body_bytes;     /* counted in h->body_bytes */
    mx_buf out;            /* stream bytes not yet taken by libmicrohttpd */
    size_t out_at;
    bool waits, pull_again, is_ended, is_aborted;
    uint64_t n_sent;
    uint64_t last_out_us;
};

struct mx_http {
    atomic_uint refs; /* the owner, and each exchange */
    mx_http_config cfg; /* strings are copies; zeros replaced by the defaults */
    mx_hash256 *key_hashes, admin_hash;

    int ep;
    int wake_fd;
    http_tag mhd_tag, wake_tag;
    http_listener listeners[HTTP_MAX_LISTENERS];
    size_t n_listeners;
    uint16_t port;
    struct MHD_Daemon *mhd; /* [loop] */
    pthread_t loop;
    bool is_loop_started;

    pthread_mutex_t wake_lock;
    mx_http_exchange *wake_head, *wake_tail; /* wake_lock */
    bool is_loop_done;                       /* wake_lock */
    atomic_bool wants_quiesce, wants_stop;

    pthread_mutex_t work_lock;
    pthread_cond_t work_cond;
    mx_http_exchange *work_head, *work_tail; /* work_lock */
    unsigned n_waiting;                      /* work_lock */
    unsigned n_busy;                         /* work_lock: workers inside the handler */
    unsigned n_slow;                         /* work_lock: of those, with a slow request */
    bool is_work_stopped;                    /* work_lock */
    pthread_t *workers;
    unsigned n_workers;

    atomic_ullong n_answered[MX_HTTP_STATUS_MAX]; /* by status; relaxed: counters, no more */
    atomic_size_t n_active;
    atomic_size_t body_bytes; /* of all exchanges */

    /* [loop] */
    mx_http_conn *conns;
    mx_http_conn **conn_of_fd;
    size_t conn_of_fd_cap;
    unsigned n_conns;
    http_linger *lingers;
    unsigned n_lingers;
    uint64_t next_deadline_us; /* not later than the earliest one; UINT64_MAX = none */
    uint64_t accept_warned_us;
    uint64_t accept_again_us;  /* accepting pauses (no file descriptors left); 0 = it does not */
    bool is_quiescing;
};

/* ---- http_rules.c: pure checks --------------------------------------------------------------- */

/* The normalised path of a request target; NULL = malformed (or no memory). mx_free. */
char *http_normalise_path(const char *target);
/* The authority of an absolute target ("http://host:1/x"), or {0}. */
mx_str http_target_authority(const char *target);
/* `host_header` is a Host value: name[:port]. */
bool http_host_allowed(const mx_http_config *cfg, mx_str host_header);
bool http_origin_allowed(const mx_http_config *cfg, mx_str origin, mx_str host_header);
/* The index of the key that the request carries, -1 = none of them fits. */
int http_find_key(const mx_http *h, const mx_http_exchange *x);
bool http_has_admin_key(const mx_http *h, const mx_http_exchange *x);
/* A sentence when the framing headers cannot be trusted, else NULL. *body_len: Content-Length, 0
 * when absent. */
const char *http_check_framing(const mx_http_exchange *x, const char *version, unsigned *status,
                               uint64_t *body_len, bool *is_chunked);
bool http_token_eq(const char *a, const char *b); /* without case */
const char *http_status_text(unsigned status);

/* ---- http_exchange.c ------------------------------------------------------------------------- */

mx_http_exchange *http_exchange_new(mx_http *h, mx_http_conn *conn);
/* [loop] The exchange is over: tells the source, once. */
void http_exchange_finish(mx_http_exchange *x, bool hung_up);
bool http_add_header(mx_http_exchange *x, const char *name, const char *value);
void http_free(mx_http *h); /* drops one reference */

/* ---- http_work.c ----------------------------------------------------------------------------- */

mx_err http_work_start(mx_http *h, mx_errbuf *eb);
bool http_work_push(mx_http *h, mx_http_exchange *x); /* [loop] false = the queue is full */
bool http_work_all_busy(mx_http *h);
void http_work_stop(mx_http *h);

/* ---- http_request.c: the libmicrohttpd callbacks [loop] -------------------------------------- */

mx_err http_request_start(mx_http *h, mx_errbuf *eb); /* creates the daemon */
/* Acts on what other threads did to x: resumes, pulls, ends. */
void http_request_advance(mx_http_exchange *x);
/* The body of an error that no handler answers, in the words of its path. */
void http_own_error(const mx_http_exchange *x, mx_buf *out, unsigned status, const char *message,
                    const char *code);
/* A whole JSON error written straight to a socket, for the cases where libmicrohttpd cannot. */
void http_raw_error(int fd, unsigned status, const char *request_id, const char *message);

/* ---- http_loop.c [loop] ---------------------------------------------------------------------- */

void *http_loop_main(void *h);
void http_set_deadline(mx_http_conn *c, uint64_t deadline_us);
/* Ends a connection now; libmicrohttpd lets go of it in its next run. */
void http_conn_kill(mx_http_conn *c);
/* Keeps the socket open for a while after libmicrohttpd closes it, discarding what arrives. */
void http_conn_linger(mx_http_conn *c);
mx_http_conn *http_conn_of_fd(const mx_http *h, int fd);
void http_conn_closed(mx_http_conn *c);

/* ---- http_listen.c --------------------------------------------------------------------------- */

mx_err http_listen(mx_http *h, mx_errbuf *eb);

#endif
