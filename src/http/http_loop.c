/* SPDX-License-Identifier: MIT
 *
 * The loop thread: waits, accepts, watches for hang-ups and deadlines, and lets libmicrohttpd run.
 *
 *     own epoll set:  libmicrohttpd's epoll set | wake eventfd | listeners | every connection
 *                     (readable = run it)                        (EPOLLRDHUP, edge-triggered)
 *
 * The library is used without its internal thread, whose epoll loop stalls whenever exactly 128
 * events arrive at once. It does not watch a suspended connection, so each connection is also in
 * our own set for nothing but EPOLLRDHUP: a hang-up is seen at once and costs nothing while it does
 * not happen. Deadlines are kept here, because the library's timeout restarts with every byte. One
 * lower bound of all deadlines decides how long to sleep; an idle server sleeps for ever.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "http_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    EVENTS_PER_TURN = 64,
    ACCEPTS_PER_TURN = 64,
    ACCEPT_PAUSE_US = 100000,
    STOP_TURNS = 100,
};

/* ---- connections ----------------------------------------------------------------------------- */

mx_http_conn *http_conn_of_fd(const mx_http *h, int fd)
{
    return (size_t)fd < h->conn_of_fd_cap ? h->conn_of_fd[fd] : NULL;
}

void http_set_deadline(mx_http_conn *c, uint64_t deadline_us)
{
    c->deadline_us = deadline_us;
    if (deadline_us != 0 && deadline_us < c->h->next_deadline_us) {
        c->h->next_deadline_us = deadline_us;
    }
}

void http_conn_kill(mx_http_conn *c)
{
    if (c->is_killed) {
        return;
    }
    c->is_killed = true;
    c->deadline_us = 0;
    shutdown(c->fd, SHUT_RDWR);
    if (c->x != NULL && c->x->is_suspended) {
        c->x->is_suspended = false;
        MHD_resume_connection(c->mhd);
    }
}

void http_conn_linger(mx_http_conn *c)
{
    if (c->linger_fd < 0 && c->h->n_lingers < HTTP_MAX_LINGER) {
        c->linger_fd = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
    }
}

static void linger_start(mx_http *h, int fd)
{
    http_linger *l = mx_calloc(1, sizeof *l);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = l};
    if (l == NULL || epoll_ctl(h->ep, EPOLL_CTL_ADD, fd, &event) != 0) {
        mx_free(l);
        close(fd);
        return;
    }
    shutdown(fd, SHUT_WR);
    *l = (http_linger){HTTP_TAG_LINGER, fd, mx_now_us() + HTTP_LINGER_MS * 1000, h->lingers};
    h->lingers = l;
    h->n_lingers++;
    if (l->deadline_us < h->next_deadline_us) {
        h->next_deadline_us = l->deadline_us;
    }
}

static void linger_end(mx_http *h, http_linger *l)
{
    for (http_linger **at = &h->lingers; *at != NULL; at = &(*at)->next) {
        if (*at == l) {
            *at = l->next;
            break;
        }
    }
    h->n_lingers--;
    close(l->fd);
    mx_free(l);
}

static void linger_read(mx_http *h, http_linger *l)
{
    char sink[16384];
    for (int i = 0; i < 16; i++) { /* a bounded share of one turn */
        ssize_t n = recv(l->fd, sink, sizeof sink, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            linger_end(h, l);
            return;
        }
        if (n < 0) {
            return;
        }
    }
}

static mx_http_conn *conn_new(mx_http *h, int fd)
{
    void *table = h->conn_of_fd;
    size_t old_cap = h->conn_of_fd_cap;
    mx_http_conn *c = mx_calloc(1, sizeof *c);
    if (c == NULL || !mx_grow(&table, &h->conn_of_fd_cap, (size_t)fd + 1, sizeof *h->conn_of_fd)) {
        mx_free(c);
        return NULL;
    }
    h->conn_of_fd = table;
    memset(h->conn_of_fd + old_cap, 0, (h->conn_of_fd_cap - old_cap) * sizeof *h->conn_of_fd);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(h->ep, EPOLL_CTL_ADD, fd, &event) != 0) {
        mx_free(c);
        return NULL;
    }
    *c = (mx_http_conn){.tag = HTTP_TAG_CONN, .fd = fd, .linger_fd = -1, .h = h};
    c->next = h->conns;
    if (h->conns != NULL) {
        h->conns->prev = c;
    }
    h->conns = c;
    h->conn_of_fd[fd] = c;
    h->n_conns++;
    http_set_deadline(c, mx_now_us() + (uint64_t)h->cfg.header_timeout_ms * 1000);
    return c;
}

void http_conn_closed(mx_http_conn *c)
{
    mx_http *h = c->h;
    if (c->x != NULL) {
        c->x->conn = NULL;
        http_exchange_finish(c->x, true);
        mx_http_unref(c->x);
    }
    /* Explicitly, because a lingering duplicate would keep the registration alive. */
    epoll_ctl(h->ep, EPOLL_CTL_DEL, c->fd, NULL);
    h->conn_of_fd[c->fd] = NULL;
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        h->conns = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    h->n_conns--;
    if (c->linger_fd >= 0) {
        linger_start(h, c->linger_fd);
    }
    mx_free(c);
}

/* ---- accepting ------------------------------------------------------------------------------- */

/* Makes room by closing the connection that has been idle longest; false when all are busy. */
static bool close_idlest(mx_http *h)
{
    mx_http_conn *idlest = NULL;
    for (mx_http_conn *c = h->conns; c != NULL; c = c->next) {
        if (c->is_idle && !c->is_killed &&
            (idlest == NULL || c->idle_since_us < idlest->idle_since_us))
        {
            idlest = c;
        }
    }
    if (idlest != NULL) {
        http_conn_kill(idlest);
    }
    return idlest != NULL;
}

static void take_connection(mx_http *h, int fd, const struct sockaddr *addr, socklen_t addr_len)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    unsigned vanish_ms = h->cfg.send_timeout_ms; /* a peer that lost its power sends no FIN */
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &vanish_ms, sizeof vanish_ms);
    /* The killed ones go in the next run of the library: a few more than the limit for a moment. */
    if (h->n_conns >= h->cfg.max_connections &&
        (h->n_conns >= h->cfg.max_connections + 8u || !close_idlest(h)))
    {
        http_raw_error(fd, 503, NULL, "Too many connections: try again in a moment.");
        if (h->n_lingers < HTTP_MAX_LINGER) {
            linger_start(h, fd);
        } else {
            close(fd);
        }
        return;
    }
    mx_http_conn *c = conn_new(h, fd);
    if (c == NULL) {
        close(fd);
        return;
    }
    if (MHD_add_connection(h->mhd, fd, addr, addr_len) != MHD_YES && http_conn_of_fd(h, fd) == c) {
        http_conn_closed(c); /* the library has closed the socket */
    }
}

static void watch_listeners(mx_http *h, bool on)
{
    for (size_t i = 0; i < h->n_listeners; i++) {
        struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = &h->listeners[i]};
        if (h->listeners[i].fd >= 0) {
            epoll_ctl(h->ep, EPOLL_CTL_MOD, h->listeners[i].fd, &event);
        }
    }
}

static void pause_accepting(mx_http *h, int why)
{
    uint64_t now = mx_now_us();
    if (h->accept_warned_us == 0 || now - h->accept_warned_us > 60000000) {
        h->accept_warned_us = now;
        mx_log(MX_LOG_WARN, "http: event=accept_failed reason=\"%s\"; connections wait; raise the "
               "limit with ulimit -n", strerror(why));
    }
    close_idlest(h);
    watch_listeners(h, false);
    h->accept_again_us = now + ACCEPT_PAUSE_US;
    if (h->accept_again_us < h->next_deadline_us) {
        h->next_deadline_us = h->accept_again_us;
    }
}

static void accept_some(mx_http *h, http_listener *l)
{
    for (int i = 0; i < ACCEPTS_PER_TURN && l->fd >= 0; i++) {
        struct sockaddr_storage addr;
        socklen_t len = sizeof addr;
        int fd = accept4(l->fd, (struct sockaddr *)&addr, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            take_connection(h, fd, (struct sockaddr *)&addr, len);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(h, errno);
            return;
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return;
        }
    }
}

static void close_listeners(mx_http *h)
{
    for (size_t i = 0; i < h->n_listeners; i++) {
        if (h->listeners[i].fd >= 0) {
            close(h->listeners[i].fd);
            h->listeners[i].fd = -1;
        }
    }
}

/* ---- hang-ups and deadlines ------------------------------------------------------------------ */

/* While a request is being read, a closed sending side is the library's business: all bytes may be
 * there. While an answer is being made it means that nobody will read it. */
static void on_hup(mx_http_conn *c)
{
    c->hup = true;
    mx_http_exchange *x = c->x;
    if (x == NULL || x->is_over || !x->is_queued) {
        return;
    }
    int answer = atomic_load_explicit(&x->answer, memory_order_acquire);
    if (answer == HTTP_REPLY) {
        return; /* a write will tell */
    }
    if (answer == HTTP_NONE) {
        uint64_t now = mx_now_us();
        bool is_waiting = atomic_load(&x->claim) == HTTP_QUEUED;
        if (is_waiting &&
            (now < x->queued_us + HTTP_HALF_CLOSE_GRACE_US || !http_work_all_busy(c->h)))
        {
            http_set_deadline(c, now + HTTP_HALF_CLOSE_GRACE_US);
            return;
        }
        atomic_store(&x->is_hung, true);
        int queued = HTTP_QUEUED;
        if (!atomic_compare_exchange_strong(&x->claim, &queued, HTTP_DROPPED)) {
            return; /* the handler is at work; what it makes of it decides */
        }
    }
    http_exchange_finish(x, true);
    http_conn_kill(c);
}

/* True when the client has taken nothing since the last look. */
static bool is_stuck(mx_http_conn *c)
{
    int outq = 0;
    ioctl(c->fd, SIOCOUTQ, &outq);
    bool is_same = c->x != NULL && c->sent_mark == c->x->n_sent && c->outq_mark == outq && outq > 0;
    c->sent_mark = c->x == NULL ? 0 : c->x->n_sent;
    c->outq_mark = outq;
    return is_same;
}

static void expire_work(mx_http_conn *c, uint64_t now)
{
    mx_http_exchange *x = c->x;
    if (x == NULL) {
        return;
    }
    if (c->hup) {
        on_hup(c);
        return;
    }
    if (!x->is_answering || x->source.idle_text == NULL || x->source.idle_ms == 0) {
        return;
    }
    uint64_t due = x->last_out_us + (uint64_t)x->source.idle_ms * 1000;
    if (now < due) {
        http_set_deadline(c, due);
        return;
    }
    mx_buf_clear(&x->out);
    x->out_at = 0;
    mx_buf_str(&x->out, x->source.idle_text);
    x->is_suspended = false;
    MHD_resume_connection(c->mhd);
}

static void expire(mx_http_conn *c, uint64_t now)
{
    c->deadline_us = 0;
    switch (c->phase) {
    case HTTP_PHASE_HEADER:
        http_conn_kill(c);
        break;
    case HTTP_PHASE_BODY:
        http_raw_error(c->fd, 408, c->x == NULL ? NULL : c->x->id,
                       "The body of the request did not arrive in time.");
        http_conn_kill(c);
        break;
    case HTTP_PHASE_WORK:
        if (c->x != NULL && c->x->is_suspended) {
            expire_work(c, now);
        }
        break;
    case HTTP_PHASE_SEND:
        if (is_stuck(c)) {
            if (c->x != NULL) {
                http_exchange_finish(c->x, true);
            }
            http_conn_kill(c);
        } else {
            http_set_deadline(c, now + (uint64_t)c->h->cfg.send_timeout_ms * 500);
        }
        break;
    }
}

static void expire_all(mx_http *h, uint64_t now)
{
    h->next_deadline_us = UINT64_MAX;
    for (mx_http_conn *c = h->conns; c != NULL; c = c->next) {
        if (c->deadline_us != 0 && c->deadline_us <= now) {
            expire(c, now);
        }
        if (c->deadline_us != 0 && c->deadline_us < h->next_deadline_us) {
            h->next_deadline_us = c->deadline_us;
        }
    }
    for (http_linger *l = h->lingers, *next; l != NULL; l = next) {
        next = l->next;
        if (l->deadline_us <= now) {
            linger_end(h, l);
        } else if (l->deadline_us < h->next_deadline_us) {
            h->next_deadline_us = l->deadline_us;
        }
    }
    if (h->accept_again_us != 0 && h->accept_again_us <= now) {
        h->accept_again_us = 0;
        watch_listeners(h, true);
    } else if (h->accept_again_us != 0 && h->accept_again_us < h->next_deadline_us) {
        h->next_deadline_us = h->accept_again_us;
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void take_wakes(mx_http *h)
{
    uint64_t count;
    ssize_t got = read(h->wake_fd, &count, sizeof count);
    (void)got; /* EAGAIN: somebody else's bell was answered already */
    pthread_mutex_lock(&h->wake_lock);
    mx_http_exchange *x = h->wake_head;
    h->wake_head = h->wake_tail = NULL;
    pthread_mutex_unlock(&h->wake_lock);
    while (x != NULL) {
        mx_http_exchange *next = x->next_wake;
        atomic_exchange_explicit(&x->is_posted, false, memory_order_acq_rel);
        http_request_advance(x);
        mx_http_unref(x);
        x = next;
    }
}

static void quiesce(mx_http *h)
{
    h->is_quiescing = true;
    close_listeners(h);
    for (mx_http_conn *c = h->conns; c != NULL; c = c->next) {
        if (c->x == NULL) {
            http_conn_kill(c);
        }
    }
}

static int wait_ms(mx_http *h)
{
    MHD_UNSIGNED_LONG_LONG mhd_ms;
    int ms = -1;
    if (h->next_deadline_us != UINT64_MAX) {
        uint64_t now = mx_now_us();
        uint64_t left = h->next_deadline_us > now ? h->next_deadline_us - now : 0;
        ms = left > 3600000000u ? 3600000 : (int)((left + 999) / 1000);
    }
    if (MHD_get_timeout(h->mhd, &mhd_ms) == MHD_YES && (ms < 0 || mhd_ms < (unsigned)ms)) {
        ms = mhd_ms > 3600000 ? 3600000 : (int)mhd_ms;
    }
    return ms;
}

static void turn(mx_http *h, int timeout_ms)
{
    struct epoll_event events[EVENTS_PER_TURN];
    int n = epoll_wait(h->ep, events, EVENTS_PER_TURN, timeout_ms);
    /* No connection is freed before MHD_run, so every pointer of this batch stays good. A listener
     * and a linger end only by their own event. */
    for (int i = 0; i < n; i++) {
        void *what = events[i].data.ptr;
        switch (*(http_tag *)what) {
        case HTTP_TAG_MHD: break;
        case HTTP_TAG_WAKE: take_wakes(h); break;
        case HTTP_TAG_LISTEN: accept_some(h, what); break;
        case HTTP_TAG_CONN: on_hup(what); break;
        case HTTP_TAG_LINGER: linger_read(h, what); break;
        }
    }
    if (atomic_load(&h->wants_quiesce) && !h->is_quiescing) {
        quiesce(h);
    }
    uint64_t now = mx_now_us();
    if (now >= h->next_deadline_us) {
        expire_all(h, now);
    }
    MHD_run(h->mhd);
}

static void end_all(mx_http *h)
{
    if (!h->is_quiescing) {
        quiesce(h);
    }
    for (mx_http_conn *c = h->conns; c != NULL; c = c->next) {
        if (c->x != NULL) {
            http_exchange_finish(c->x, true);
        }
        http_conn_kill(c);
    }
    for (int i = 0; i < STOP_TURNS && h->conns != NULL; i++) {
        turn(h, i < 10 ? 0 : 5);
    }
    MHD_stop_daemon(h->mhd);
    h->mhd = NULL;
    assert(h->conns == NULL);
    while (h->lingers != NULL) {
        linger_end(h, h->lingers);
    }
    pthread_mutex_lock(&h->wake_lock);
    h->is_loop_done = true;
    pthread_mutex_unlock(&h->wake_lock);
    take_wakes(h);
}

void *http_loop_main(void *arg)
{
    mx_http *h = arg;
    while (!atomic_load(&h->wants_stop)) {
        turn(h, wait_ms(h));
    }
    end_all(h);
    return NULL;
}
