/* SPDX-License-Identifier: MIT
 *
 * The exchange: one request and its answer, shared by the loop, a worker and whoever computes.
 *
 * It is reference-counted, because an engine may still hold it when the client has long gone. What
 * other threads have to say goes through the wake list: they set their fields, then post the
 * exchange; the loop takes the list and acts. The flag is_posted keeps an exchange from being on
 * the list twice. The order suffices because both sides use read-modify-write: a producer stores
 * its data, then exchanges the flag; if it finds "true", the loop's later exchange to "false" reads
 * from it (or from one after it in the same release sequence) and sees the data before it acts.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "http_internal.h"

#include <assert.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

static void make_id(char out[32])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t bytes[12];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        uint64_t now = mx_now_us(); /* an id need not be secret, only different */
        memcpy(bytes, &now, sizeof now);
        memset(bytes + sizeof now, 0, sizeof bytes - sizeof now);
    }
    memcpy(out, "req_", 4);
    for (size_t i = 0; i < sizeof bytes; i++) {
        out[4 + 2 * i] = digits[bytes[i] >> 4];
        out[5 + 2 * i] = digits[bytes[i] & 15];
    }
    out[4 + 2 * sizeof bytes] = '\0';
}

mx_http_exchange *http_exchange_new(mx_http *h, mx_http_conn *conn)
{
    mx_http_exchange *x = mx_calloc(1, sizeof *x);
    if (x == NULL) {
        return NULL;
    }
    atomic_fetch_add(&h->refs, 1);
    atomic_fetch_add(&h->n_active, 1);
    x->h = h;
    x->conn = conn;
    x->is_counted = true;
    x->key_index = -1;
    atomic_init(&x->refs, 1);
    make_id(x->id);
    return x;
}

mx_http_exchange *mx_http_ref(mx_http_exchange *x)
{
    atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    return x;
}

void mx_http_unref(mx_http_exchange *x)
{
    /* acq_rel: the last owner sees everything the others did before they let go. */
    if (x == NULL || atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    mx_http *h = x->h;
    atomic_fetch_sub(&h->body_bytes, x->body_bytes);
    mx_buf_free(&x->header_text);
    mx_buf_free(&x->body);
    mx_buf_free(&x->reply_body);
    mx_buf_free(&x->reply_headers);
    mx_buf_free(&x->out);
    mx_free(x->content_type);
    mx_free(x->path);
    mx_free(x->raw_path);
    mx_free(x->cors_origin);
    mx_free(x);
    http_free(h);
}

void mx_http_wake(mx_http_exchange *x)
{
    if (atomic_exchange_explicit(&x->is_posted, true, memory_order_acq_rel)) {
        return;
    }
    mx_http *h = x->h;
    pthread_mutex_lock(&h->wake_lock);
    if (!h->is_loop_done) {
        mx_http_ref(x);
        x->next_wake = NULL;
        if (h->wake_tail == NULL) {
            h->wake_head = x;
            /* Only the first one on an empty list rings; the loop reads the bell before the list.
             * Under the lock, so that the descriptor cannot be closed in between. */
            uint64_t one = 1;
            ssize_t n = write(h->wake_fd, &one, sizeof one);
            assert(n == (ssize_t)sizeof one);
            (void)n;
        } else {
            h->wake_tail->next_wake = x;
        }
        h->wake_tail = x;
    }
    pthread_mutex_unlock(&h->wake_lock);
}

void http_exchange_finish(mx_http_exchange *x, bool hung_up)
{
    if (!x->is_over) {
        x->is_over = true;
        if (hung_up) {
            atomic_store(&x->is_hung, true);
        }
        if (x->is_counted) {
            x->is_counted = false;
            atomic_fetch_sub(&x->h->n_active, 1);
        }
    }
    /* The handler may hand over its source after the client has gone: then it is told at once. */
    int answer = atomic_load_explicit(&x->answer, memory_order_acquire);
    if ((answer == HTTP_STREAM || answer == HTTP_DEFER) && !x->is_closed_told) {
        x->is_closed_told = true;
        if (x->source.closed != NULL) {
            x->source.closed(x->source.arg, atomic_load(&x->is_hung));
        }
    }
}

/* ---- the request ----------------------------------------------------------------------------- */

bool http_add_header(mx_http_exchange *x, const char *name, const char *value)
{
    if (x->n_headers == HTTP_MAX_HEADERS) {
        return false;
    }
    http_header *header = &x->headers[x->n_headers];
    header->name = x->header_text.len;
    mx_buf_append(&x->header_text, name, strlen(name) + 1);
    header->value = x->header_text.len;
    mx_buf_append(&x->header_text, value, strlen(value) + 1);
    if (x->header_text.failed) {
        return false;
    }
    x->n_headers++;
    return true;
}

const char *mx_http_method(const mx_http_exchange *x)
{
    return x->method;
}

const char *mx_http_path(const mx_http_exchange *x)
{
    return x->path;
}

bool mx_http_path_is_open(const mx_http_exchange *x)
{
    size_t n = strcspn(x->raw_path, "?#");
    return (n > 1 && x->raw_path[n - 1] == '/')
           || (n > 3 && strncasecmp(x->raw_path + n - 3, "%2f", 3) == 0);
}

const char *mx_http_header(const mx_http_exchange *x, const char *name)
{
    for (size_t i = 0; i < x->n_headers; i++) {
        if (http_token_eq(x->header_text.ptr + x->headers[i].name, name)) {
            return x->header_text.ptr + x->headers[i].value;
        }
    }
    return NULL;
}

mx_str mx_http_body(const mx_http_exchange *x)
{
    static const char bom[3] = {'\xEF', '\xBB', '\xBF'};
    mx_str body = mx_buf_view(&x->body);
    if (body.len >= sizeof bom && memcmp(body.ptr, bom, sizeof bom) == 0) {
        body.ptr += sizeof bom;
        body.len -= sizeof bom;
    }
    return body.ptr == NULL ? MX_STR("") : body;
}

const char *mx_http_request_id(const mx_http_exchange *x)
{
    return x->id;
}

void mx_http_count_statuses(const mx_http_exchange *x, uint64_t counts[MX_HTTP_STATUS_MAX])
{
    for (size_t i = 0; i < MX_HTTP_STATUS_MAX; i++) {
        counts[i] = atomic_load_explicit(&x->h->n_answered[i], memory_order_relaxed);
    }
}

int mx_http_key_index(const mx_http_exchange *x)
{
    return x->key_index;
}

bool mx_http_hung_up(const mx_http_exchange *x)
{
    return atomic_load_explicit(&x->is_hung, memory_order_relaxed);
}

/* ---- the answer ------------------------------------------------------------------------------ */

void mx_http_reply(mx_http_exchange *x, unsigned status, const char *content_type, mx_str body,
                   const char *const *extra_headers, size_t n_extra)
{
    assert(atomic_load(&x->answer) != HTTP_STREAM && "a stream has its answer already");
    if (atomic_exchange(&x->is_reply_claimed, true)) {
        assert(false && "an exchange is answered once");
        return;
    }
    x->status = status;
    x->content_type = content_type == NULL ? NULL : mx_strdup(content_type);
    if (content_type != NULL && x->content_type == NULL) {
        x->reply_body.failed = true;
    }
    mx_buf_append(&x->reply_body, body.ptr, body.len);
    for (size_t i = 0; i < n_extra; i++) {
        mx_buf_append(&x->reply_headers, extra_headers[i], strlen(extra_headers[i]) + 1);
    }
    /* Release: pairs with the loop's acquire of either atomic. In a deferred exchange `answer`
     * stays what it is, because its source must still be told that the exchange is over. */
    atomic_store_explicit(&x->is_reply_ready, true, memory_order_release);
    int none = HTTP_NONE;
    atomic_compare_exchange_strong(&x->answer, &none, HTTP_REPLY);
    mx_http_wake(x);
}

static void answer_with_source(mx_http_exchange *x, http_answer answer,
                               const mx_http_source *source)
{
    assert(source->pull != NULL);
    x->source = *source;
    int none = HTTP_NONE;
    bool is_first = atomic_compare_exchange_strong_explicit(&x->answer, &none, (int)answer,
                                                            memory_order_release,
                                                            memory_order_relaxed);
    assert(is_first && "an exchange is answered once");
    (void)is_first;
    mx_http_wake(x);
}

void mx_http_stream(mx_http_exchange *x, unsigned status, const char *content_type,
                    const mx_http_source *source)
{
    x->status = status;
    x->content_type = mx_strdup(content_type);
    answer_with_source(x, HTTP_STREAM, source);
}

void mx_http_defer(mx_http_exchange *x, const mx_http_source *source)
{
    answer_with_source(x, HTTP_DEFER, source);
}
