/* SPDX-License-Identifier: MIT
 *
 * Streams and deferred answers: order, back-pressure, hang-ups in each state, wakes from other
 * threads. A request names what it wants in its path: the handler makes a job, which a producer
 * thread may feed.
 */
#include "http_client.h"

enum { MAX_JOBS = 512 };

typedef struct job {
    mx_http_exchange *x; /* a reference */
    pthread_mutex_t lock;
    mx_buf pending;
    bool is_done;
    bool flood;
    atomic_int n_pulls, n_closed, hung_up;
    uint64_t closed_us;
} job;

static mx_http *server;
static job jobs[MAX_JOBS];
static atomic_int n_jobs;
static atomic_int n_entered, gate; /* "/gate" handlers wait here */
static unsigned idle_ms;

static mx_http_pull pull_stream(void *arg, mx_http_exchange *x, mx_buf *out)
{
    job *j = arg;
    (void)x;
    atomic_fetch_add(&j->n_pulls, 1);
    if (j->flood) {
        char block[4096];
        memset(block, 'f', sizeof block);
        mx_buf_append(out, block, sizeof block);
        return MX_HTTP_MORE;
    }
    pthread_mutex_lock(&j->lock);
    mx_buf_append(out, j->pending.ptr, j->pending.len);
    mx_buf_clear(&j->pending);
    bool is_done = j->is_done;
    pthread_mutex_unlock(&j->lock);
    return is_done ? MX_HTTP_END : MX_HTTP_WAIT;
}

static mx_http_pull pull_deferred(void *arg, mx_http_exchange *x, mx_buf *out)
{
    job *j = arg;
    assert_null(out);
    atomic_fetch_add(&j->n_pulls, 1);
    pthread_mutex_lock(&j->lock);
    bool is_done = j->is_done;
    pthread_mutex_unlock(&j->lock);
    if (!is_done) {
        return MX_HTTP_WAIT;
    }
    mx_http_reply(x, 200, "text/plain", mx_buf_view(&j->pending), NULL, 0);
    return MX_HTTP_END;
}

static mx_http_pull pull_abort(void *arg, mx_http_exchange *x, mx_buf *out)
{
    (void)arg;
    (void)x;
    if (out != NULL) {
        mx_buf_str(out, "half");
    }
    return MX_HTTP_ABORT;
}

static mx_http_pull pull_nothing(void *arg, mx_http_exchange *x, mx_buf *out)
{
    job *j = arg;
    (void)x;
    (void)out;
    atomic_fetch_add(&j->n_pulls, 1);
    return MX_HTTP_END;
}

static void closed(void *arg, bool hung_up)
{
    job *j = arg;
    j->closed_us = mx_now_us();
    atomic_store(&j->hung_up, hung_up);
    atomic_fetch_add(&j->n_closed, 1);
}

static void handle(void *arg, mx_http_exchange *x)
{
    (void)arg;
    const char *path = mx_http_path(x);
    if (strcmp(path, "/now") == 0) {
        mx_http_reply(x, 200, "text/plain", MX_STR("now"), NULL, 0);
        return;
    }
    if (strcmp(path, "/gate") == 0) {
        atomic_fetch_add(&n_entered, 1);
        while (!atomic_load(&gate)) {
            sleep_ms(1);
        }
        mx_http_reply(x, 200, "text/plain", MX_STR("gate"), NULL, 0);
        return;
    }
    static pthread_mutex_t jobs_lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&jobs_lock);
    job *j = &jobs[atomic_load(&n_jobs) % MAX_JOBS];
    pthread_mutex_init(&j->lock, NULL);
    j->x = mx_http_ref(x);
    j->flood = strcmp(path, "/flood") == 0;
    atomic_fetch_add(&n_jobs, 1); /* last: the test looks at the job when it is counted */
    pthread_mutex_unlock(&jobs_lock);
    mx_http_source source = {.pull = pull_stream, .closed = closed, .arg = j,
                             .idle_text = ": keep-alive\n\n", .idle_ms = idle_ms};
    if (strcmp(path, "/abort") == 0 || strcmp(path, "/abort-deferred") == 0) {
        source.pull = pull_abort;
    } else if (strcmp(path, "/nothing") == 0) {
        source.pull = pull_nothing;
    }
    if (strncmp(path, "/late", 5) == 0) {
        atomic_fetch_add(&n_entered, 1);
        while (!atomic_load(&gate)) {
            sleep_ms(1);
        }
    }
    if (strcmp(path, "/deferred") == 0 || strcmp(path, "/abort-deferred") == 0 ||
        strcmp(path, "/nothing") == 0 || strcmp(path, "/late-deferred") == 0)
    {
        if (source.pull == pull_stream) {
            source.pull = pull_deferred;
        }
        mx_http_defer(x, &source);
    } else {
        mx_http_stream(x, 200, "text/event-stream; charset=utf-8", &source);
    }
}

static void feed(job *j, const char *text, bool is_last)
{
    pthread_mutex_lock(&j->lock);
    mx_buf_str(&j->pending, text);
    j->is_done = j->is_done || is_last;
    pthread_mutex_unlock(&j->lock);
    mx_http_wake(j->x);
}

static int start_with(mx_http_config cfg)
{
    mx_errbuf eb;
    cfg.host = "127.0.0.1";
    cfg.handler = handle;
    atomic_store(&n_jobs, 0);
    atomic_store(&n_entered, 0);
    atomic_store(&gate, 0);
    memset(jobs, 0, sizeof jobs);
    return mx_http_start(&server, &cfg, &eb) == MX_OK ? 0 : -1;
}

static int start(void **state)
{
    (void)state;
    idle_ms = 0;
    return start_with((mx_http_config){0});
}

/* Each source is told exactly once; nothing is left. */
static int stop(void **state)
{
    (void)state;
    mx_http_stop(server);
    server = NULL;
    for (int i = 0; i < atomic_load(&n_jobs); i++) {
        if (atomic_load(&jobs[i].n_closed) != 1) {
            print_message("job %d: closed was called %d times\n", i,
                          atomic_load(&jobs[i].n_closed));
            return -1;
        }
        mx_http_wake(jobs[i].x); /* harmless after the server's end */
        mx_http_unref(jobs[i].x);
        mx_buf_free(&jobs[i].pending);
        pthread_mutex_destroy(&jobs[i].lock);
    }
    if (mx_mem_live() != 0) {
        print_message("blocks left after stop: %lld\n", (long long)mx_mem_live());
        return -1;
    }
    return 0;
}

static int open_request(const char *path)
{
    char text[200];
    int fd = client_connect(server);
    snprintf(text, sizeof text,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi", path);
    assert_true(client_text(fd, text));
    return fd;
}

static job *wait_job(int index)
{
    assert_true(wait_for(&n_jobs, index + 1));
    job *j = &jobs[index];
    return j;
}

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_stream(void **state)
{
    (void)state;
    int fd = open_request("/stream");
    job *j = wait_job(0);
    client_reply r = {0};
    /* The header is there before any data. */
    assert_true(client_head(fd, &r, client_end_us()));
    assert_status(&r, 200);
    assert_string_equal(head_value(r.head, "content-type"), "text/event-stream; charset=utf-8");
    assert_string_equal(head_value(r.head, "cache-control"), "no-cache");
    assert_string_equal(head_value(r.head, "x-accel-buffering"), "no");
    assert_string_equal(head_value(r.head, "transfer-encoding"), "chunked");
    assert_non_null(head_value(r.head, "x-request-id"));
    uint64_t took[50];
    for (int i = 0; i < 50; i++) {
        char text[32];
        snprintf(text, sizeof text, "data: %d\n\n", i);
        uint64_t from = mx_now_us();
        feed(j, text, false);
        assert_true(client_chunk(fd, &r.body, client_end_us()) > 0);
        took[i] = mx_now_us() - from;
        assert_string_equal(r.body.ptr, text);
        mx_buf_clear(&r.body);
        sleep_ms(2);
    }
    /* 40 ms is what Nagle together with delayed acknowledgements would cost each time, a busy machine
     * costs as much now and then. */
    qsort(took, MX_COUNT(took), sizeof took[0], by_time);
    print_message("event latency: a quarter within %llu us, worst %llu us\n",
                  (unsigned long long)took[12], (unsigned long long)took[49]);
    assert_true(took[12] < 20000);
    assert_int_equal(mx_http_n_active(server), 1);
    feed(j, "data: [DONE]\n\n", true);
    assert_true(client_chunk(fd, &r.body, client_end_us()) > 0);
    assert_int_equal(client_chunk(fd, &r.body, client_end_us()), 0);
    assert_true(wait_for(&j->n_closed, 1));
    assert_int_equal(atomic_load(&j->hung_up), 0);
    wait_active(server, 0);
    reply_free(&r);
    /* The connection is good for another request. */
    client_text(fd, "GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_read(fd, &r, false);
    assert_status(&r, 200);
    assert_string_equal(r.body.ptr, "now");
    reply_free(&r);
    close(fd);
}

static void test_deferred(void **state)
{
    (void)state;
    int fd = open_request("/deferred");
    job *j = wait_job(0);
    for (int i = 0; i < 5; i++) {
        mx_http_wake(j->x); /* nothing to say yet */
        sleep_ms(2);
    }
    assert_int_equal(atomic_load(&j->n_closed), 0);
    feed(j, "the answer", true);
    client_reply r;
    client_read(fd, &r, false);
    assert_status(&r, 200);
    assert_string_equal(r.body.ptr, "the answer");
    assert_true(wait_for(&j->n_closed, 1));
    assert_int_equal(atomic_load(&j->hung_up), 0);
    reply_free(&r);
    close(fd);
}

static void test_http10_stream(void **state)
{
    (void)state;
    int fd = client_connect(server);
    client_text(fd, "GET /stream HTTP/1.0\r\n\r\n");
    job *j = wait_job(0);
    feed(j, "one ", false);
    sleep_ms(20);
    feed(j, "two", true);
    client_reply r;
    client_read(fd, &r, false);
    assert_status(&r, 200);
    assert_null(head_value(r.head, "transfer-encoding"));
    assert_string_equal(r.body.ptr, "one two");
    assert_true(r.is_whole);
    reply_free(&r);
    close(fd);
}

static void test_head_of_stream(void **state)
{
    (void)state;
    int fd = client_connect(server);
    client_text(fd, "HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_reply r;
    client_read(fd, &r, true);
    assert_status(&r, 200);
    reply_free(&r);
    job *j = wait_job(0);
    assert_true(wait_for(&j->n_closed, 1));
    client_text(fd, "GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_read(fd, &r, false);
    assert_status(&r, 200);
    reply_free(&r);
    close(fd);
}

static void test_abort(void **state)
{
    (void)state;
    int fd = open_request("/abort");
    client_reply r;
    client_read(fd, &r, false);
    assert_int_equal(r.status, 200);
    assert_false(r.is_whole); /* a cut stream must look cut */
    reply_free(&r);
    close(fd);
    fd = open_request("/abort-deferred");
    client_read(fd, &r, false);
    assert_int_equal(r.status, 0);
    reply_free(&r);
    close(fd);
    fd = open_request("/nothing"); /* a source's bug: END without an answer */
    client_read(fd, &r, false);
    assert_status(&r, 500);
    reply_free(&r);
    close(fd);
    assert_int_equal(atomic_load(&wait_job(0)->hung_up), 0);
}

static void test_idle_text(void **state)
{
    (void)state;
    idle_ms = 60;
    int fd = open_request("/stream");
    job *j = wait_job(0);
    client_reply r = {0};
    assert_true(client_head(fd, &r, client_end_us()));
    uint64_t from = mx_now_us();
    for (int i = 0; i < 3; i++) {
        assert_true(client_chunk(fd, &r.body, client_end_us()) > 0);
        assert_string_equal(r.body.ptr, ": keep-alive\n\n");
        mx_buf_clear(&r.body);
    }
    uint64_t took = mx_now_us() - from;
    print_message("three keep-alive texts in %llu ms (60 ms each)\n",
                  (unsigned long long)took / 1000);
    assert_true(took >= 120000);
    /* Output resets the clock: no text while events come every 20 ms, but where a busy machine lets one
     * wait for longer. */
    for (int i = 0; i < 16; i++) {
        feed(j, "x", false);
        sleep_ms(20);
    }
    feed(j, "y", true);
    while (client_chunk(fd, &r.body, client_end_us()) > 0) {
    }
    assert_non_null(strstr(r.body.ptr, "xxxx")); /* more than 60 ms */
    reply_free(&r);
    close(fd);
}

/* A client that does not read: the source is not asked for more than the socket takes. */
static void test_back_pressure(void **state)
{
    (void)state;
    int fd = open_request("/flood");
    job *j = wait_job(0);
    int before = -1, now = 0;
    for (int i = 0; i < 100 && before != now; i++) {
        before = now;
        sleep_ms(100);
        now = atomic_load(&j->n_pulls);
    }
    assert_int_equal(before, now);
    print_message("pulls of 4 KiB until the socket was full: %d\n", now);
    assert_true(now > 0 && now < 8192);
    sleep_ms(200);
    assert_int_equal(atomic_load(&j->n_pulls), now); /* none while it is full */
    mx_buf sink = {0};
    for (int i = 0; i < 200 && atomic_load(&j->n_pulls) == now; i++) {
        mx_buf_clear(&sink);
        assert_true(client_bytes(fd, &sink, 65536, client_end_us()));
    }
    mx_buf_free(&sink);
    assert_true(wait_for(&j->n_pulls, now + 1)); /* reading makes room */
    close(fd);
    assert_true(wait_for(&j->n_closed, 1));
    assert_int_equal(atomic_load(&j->hung_up), 1);
}

/* A reader that stops in the middle of a stream is given up, also where the stream has waited
 * before and sends no keep-alive text. */
static void test_reader_stops_in_stream(void **state)
{
    stop(state);
    assert_int_equal(start_with((mx_http_config){.send_timeout_ms = 400}), 0);
    int fd = open_request("/stream");
    job *j = wait_job(0);
    client_reply r = {0};
    assert_true(client_head(fd, &r, client_end_us()));
    sleep_ms(600); /* waiting for the source is no fault of the reader's */
    feed(j, "x", false);
    assert_true(client_chunk(fd, &r.body, client_end_us()) > 0);
    reply_free(&r);
    char *block = mx_alloc((16 << 20) + 1);
    assert_non_null(block);
    memset(block, 'y', 16 << 20);
    block[16 << 20] = '\0';
    uint64_t from = mx_now_us();
    feed(j, block, false);
    mx_free(block);
    assert_true(wait_for(&j->n_closed, 1));
    print_message("given up after %llu ms\n", (unsigned long long)(mx_now_us() - from) / 1000);
    assert_int_equal(atomic_load(&j->hung_up), 1);
    close(fd);
}

/* What a hang-up is seen within, from the closing to the end of the source. */
enum { SEEN_US = 50000 };

/* Where a busy machine lets the server wait for its turn, another attempt shows it. */
enum { ATTEMPTS = 20 };

static uint64_t hang_up(const char *path, bool is_reset, bool read_head_first)
{
    int at = atomic_load(&n_jobs);
    int fd = open_request(path);
    job *j = wait_job(at);
    if (read_head_first) {
        client_reply r = {0};
        assert_true(client_head(fd, &r, client_end_us()));
    } else {
        sleep_ms(30);
    }
    if (is_reset) {
        struct linger l = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    }
    uint64_t from = mx_now_us();
    close(fd);
    assert_true(wait_for(&j->n_closed, 1));
    assert_int_equal(atomic_load(&j->hung_up), 1);
    int pulls = atomic_load(&j->n_pulls);
    mx_http_wake(j->x); /* nothing of the source is called any more */
    sleep_ms(10);
    assert_int_equal(atomic_load(&j->n_pulls), pulls);
    assert_int_equal(atomic_load(&j->n_closed), 1);
    assert_true(mx_http_hung_up(j->x));
    return j->closed_us - from;
}

static void check_hang_up(const char *path, bool is_reset, bool read_head_first)
{
    uint64_t us = UINT64_MAX;
    for (int i = 0; i < ATTEMPTS && us >= SEEN_US; i++) {
        us = hang_up(path, is_reset, read_head_first);
        print_message("%s %s: seen after %llu us\n", path, is_reset ? "reset" : "close",
                      (unsigned long long)us);
    }
    assert_true(us < SEEN_US);
}

static void test_hang_up(void **state)
{
    (void)state;
    for (int reset = 0; reset < 2; reset++) {
        check_hang_up("/stream", reset, true);
        check_hang_up("/stream", reset, false);
        check_hang_up("/deferred", reset, false);
    }
    wait_active(server, 0);
}

/* Sends the text on new connections and closes them, until one is seen soon; `n` requests are in progress
 * beside it. */
static void check_seen_soon(const char *text, size_t n)
{
    uint64_t us = UINT64_MAX;
    for (int i = 0; i < ATTEMPTS && us >= SEEN_US; i++) {
        int fd = client_connect(server);
        assert_true(client_text(fd, text));
        wait_active(server, n + 1);
        uint64_t from = mx_now_us();
        close(fd);
        wait_active(server, n);
        us = mx_now_us() - from;
        print_message("seen after %llu us\n", (unsigned long long)us);
    }
    assert_true(us < SEEN_US);
}

/* The client leaves while its request waits for a worker: the handler is never called. */
static void test_hang_up_queued(void **state)
{
    (void)state;
    int busy[2] = {open_request("/gate"), open_request("/gate")};
    assert_true(wait_for(&n_entered, 2));
    check_seen_soon("GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n", 2);
    /* Gone within the grace of a half-close: seen, too. */
    close(open_request("/stream"));
    sleep_ms(100);
    wait_active(server, 2);
    atomic_store(&gate, 1);
    for (int i = 0; i < 2; i++) {
        client_reply r;
        client_read(busy[i], &r, false);
        assert_status(&r, 200);
        reply_free(&r);
        close(busy[i]);
    }
    sleep_ms(20);
    assert_int_equal(atomic_load(&n_jobs), 0);
}

/* The client leaves while the handler is still at work: the source is told as soon as it exists. */
static void test_hang_up_in_handler(void **state)
{
    (void)state;
    int a = open_request("/late-stream"), b = open_request("/late-deferred");
    assert_true(wait_for(&n_entered, 2));
    sleep_ms(30);
    close(a);
    close(b);
    sleep_ms(60);
    atomic_store(&gate, 1);
    for (int i = 0; i < 2; i++) {
        job *j = wait_job(i);
        assert_true(wait_for(&j->n_closed, 1));
        assert_int_equal(atomic_load(&j->hung_up), 1);
        assert_int_equal(atomic_load(&j->n_pulls), 0);
    }
}

static void test_hang_up_in_body(void **state)
{
    (void)state;
    check_seen_soon("POST /stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc", 0);
    assert_int_equal(atomic_load(&n_jobs), 0);
}

/* Sends, closes its sending side, reads: what "nc -N" does. An answer that needs no waiting for a
 * worker or a model still arrives, also when the closing is seen before it. */
static void test_half_close(void **state)
{
    (void)state;
    for (int i = 0; i < 52; i++) {
        bool is_slow = i >= 50;
        int fd = client_connect(server);
        client_text(fd, is_slow ? "GET /gate HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                : "GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
        shutdown(fd, SHUT_WR);
        if (is_slow) {
            sleep_ms(60);
            atomic_store(&gate, 1);
        }
        client_reply r;
        client_read(fd, &r, false);
        if (r.status != 200) {
            print_message("request %d\n", i);
        }
        assert_status(&r, 200);
        reply_free(&r);
        close(fd);
        atomic_store(&gate, 0);
    }
}

/* ---- many at once ---------------------------------------------------------------------------- */

enum { N_STREAMS = 64, N_EVENTS = 200 };

static void *feeder(void *arg)
{
    unsigned first = (unsigned)(uintptr_t)arg;
    for (int e = 0; e < N_EVENTS; e++) {
        for (unsigned s = first; s < N_STREAMS; s += 2) {
            char text[64];
            snprintf(text, sizeof text, "data: %d\n\n", e);
            feed(&jobs[s], text, e == N_EVENTS - 1);
        }
    }
    return NULL;
}

/* Every event of every stream arrives, once and in order, whatever the wakes do; meanwhile plain
 * requests are answered. */
static void test_parallel_streams(void **state)
{
    (void)state;
    int fds[N_STREAMS];
    for (int s = 0; s < N_STREAMS; s++) {
        fds[s] = open_request("/stream");
        wait_job(s);
    }
    pthread_t threads[2];
    for (uintptr_t t = 0; t < 2; t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, feeder, (void *)t), 0);
    }
    for (int i = 0; i < 20; i++) {
        client_reply r;
        client_once(server, "GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n", &r);
        assert_status(&r, 200);
        reply_free(&r);
    }
    mx_buf want = {0};
    for (int e = 0; e < N_EVENTS; e++) {
        mx_buf_printf(&want, "data: %d\n\n", e);
    }
    for (int s = 0; s < N_STREAMS; s++) {
        client_reply r;
        client_read(fds[s], &r, false);
        assert_status(&r, 200);
        assert_true(r.is_whole);
        assert_string_equal(r.body.ptr, want.ptr);
        reply_free(&r);
        close(fds[s]);
    }
    mx_buf_free(&want);
    for (int t = 0; t < 2; t++) {
        pthread_join(threads[t], NULL);
    }
}

/* Wakes race with hang-ups and with the end of the server. */
static void test_wake_races(void **state)
{
    (void)state;
    int fds[N_STREAMS];
    for (int s = 0; s < N_STREAMS; s++) {
        fds[s] = open_request(s % 3 == 0 ? "/deferred" : "/stream");
        wait_job(s);
    }
    pthread_t threads[2];
    for (uintptr_t t = 0; t < 2; t++) {
        assert_int_equal(pthread_create(&threads[t], NULL, feeder, (void *)t), 0);
    }
    for (int s = 0; s < N_STREAMS; s += 2) {
        close(fds[s]);
    }
    mx_http_stop(server);
    server = NULL;
    for (int t = 0; t < 2; t++) {
        pthread_join(threads[t], NULL);
    }
    for (int s = 1; s < N_STREAMS; s += 2) {
        close(fds[s]);
    }
}

static void test_stop_while_active(void **state)
{
    (void)state;
    int fds[] = {open_request("/stream"), open_request("/deferred"), open_request("/flood")};
    for (int i = 0; i < 3; i++) {
        wait_job(i);
    }
    int body = client_connect(server), fresh = client_connect(server);
    client_text(body, "POST /stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc");
    sleep_ms(30);
    uint64_t from = mx_now_us();
    mx_http_stop(server);
    server = NULL;
    assert_true(mx_now_us() - from < 8000000); /* it waits for no time limit; the least is 10 s */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(atomic_load(&jobs[i].n_closed), 1);
        assert_int_equal(atomic_load(&jobs[i].hung_up), 1);
        assert_int_equal(client_wait_close(fds[i], CLIENT_MS), 0);
        close(fds[i]);
    }
    assert_int_equal(client_wait_close(body, CLIENT_MS), 0);
    assert_int_equal(client_wait_close(fresh, CLIENT_MS), 0);
    close(body);
    close(fresh);
}

/* Quiesce: running streams end normally, idle connections close, new ones are refused. */
static void test_quiesce(void **state)
{
    (void)state;
    int idle = client_connect(server);
    client_reply r;
    client_text(idle, "GET /now HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_read(idle, &r, false);
    assert_status(&r, 200);
    reply_free(&r);
    int fd = open_request("/stream");
    job *j = wait_job(0);
    uint16_t port = mx_http_port(server);
    mx_http_quiesce(server);
    assert_int_equal(client_wait_close(idle, CLIENT_MS), 0);
    close(idle);
    int late = client_connect_to(port, AF_INET);
    assert_true(late < 0);
    assert_int_equal(mx_http_n_active(server), 1);
    feed(j, "the rest", true);
    client_read(fd, &r, false);
    assert_status(&r, 200);
    assert_true(r.is_whole);
    assert_string_equal(r.body.ptr, "the rest");
    reply_free(&r);
    assert_int_equal(client_wait_close(fd, CLIENT_MS), 0);
    close(fd);
    wait_active(server, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_stream, start, stop),
        cmocka_unit_test_setup_teardown(test_deferred, start, stop),
        cmocka_unit_test_setup_teardown(test_http10_stream, start, stop),
        cmocka_unit_test_setup_teardown(test_head_of_stream, start, stop),
        cmocka_unit_test_setup_teardown(test_abort, start, stop),
        cmocka_unit_test_setup_teardown(test_idle_text, start, stop),
        cmocka_unit_test_setup_teardown(test_back_pressure, start, stop),
        cmocka_unit_test_setup_teardown(test_reader_stops_in_stream, start, stop),
        cmocka_unit_test_setup_teardown(test_hang_up, start, stop),
        cmocka_unit_test_setup_teardown(test_hang_up_queued, start, stop),
        cmocka_unit_test_setup_teardown(test_hang_up_in_handler, start, stop),
        cmocka_unit_test_setup_teardown(test_hang_up_in_body, start, stop),
        cmocka_unit_test_setup_teardown(test_half_close, start, stop),
        cmocka_unit_test_setup_teardown(test_parallel_streams, start, stop),
        cmocka_unit_test_setup_teardown(test_wake_races, start, stop),
        cmocka_unit_test_setup_teardown(test_stop_while_active, start, stop),
        cmocka_unit_test_setup_teardown(test_quiesce, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
