/* SPDX-License-Identifier: MIT
 *
 * Limits and deadlines: sizes, slow clients, too many connections, a full queue, an idle server.
 */
#include "http_client.h"

#include <sys/resource.h>

static mx_http *server;
static atomic_int n_handled, n_entered, gate;

static void handle(void *arg, mx_http_exchange *x)
{
    (void)arg;
    atomic_fetch_add(&n_handled, 1);
    if (strcmp(mx_http_path(x), "/gate") == 0) {
        atomic_fetch_add(&n_entered, 1);
        while (!atomic_load(&gate)) {
            sleep_ms(1);
        }
    }
    if (strcmp(mx_http_path(x), "/large") == 0) {
        char *block = mx_calloc(1, (size_t)32 << 20);
        assert_non_null(block);
        mx_http_reply(x, 200, "text/plain", (mx_str){block, (size_t)32 << 20}, NULL, 0);
        mx_free(block);
        return;
    }
    char text[64];
    snprintf(text, sizeof text, "len=%zu", mx_http_body(x).len);
    mx_http_reply(x, 200, "text/plain", mx_str_of(text), NULL, 0);
}

static void start(mx_http_config cfg)
{
    mx_errbuf eb;
    cfg.host = "127.0.0.1";
    cfg.handler = handle;
    atomic_store(&n_handled, 0);
    atomic_store(&n_entered, 0);
    atomic_store(&gate, 0);
    assert_int_equal(mx_http_start(&server, &cfg, &eb), MX_OK);
}

static int stop(void **state)
{
    (void)state;
    atomic_store(&gate, 1);
    mx_http_stop(server);
    server = NULL;
    if (mx_mem_live() != 0) {
        print_message("blocks left after stop: %lld\n", (long long)mx_mem_live());
        return -1;
    }
    return 0;
}

#define POST "POST /x HTTP/1.1\r\nHost: localhost\r\n"

static void check_alive(void)
{
    client_reply r;
    client_once(server, "GET /alive HTTP/1.1\r\nHost: localhost\r\n\r\n", &r);
    assert_status(&r, 200);
    reply_free(&r);
}

static int post_of(size_t len, client_reply *r)
{
    char head[200];
    int fd = client_connect(server);
    snprintf(head, sizeof head, POST "Content-Length: %zu\r\n\r\n", len);
    char *body = calloc(1, len ? len : 1);
    client_text(fd, head);
    client_send(fd, body, len);
    free(body);
    client_read(fd, r, false);
    return fd;
}

static void test_body_limit(void **state)
{
    (void)state;
    start((mx_http_config){.max_body_bytes = 100000});
    client_reply r;
    close(post_of(100000, &r));
    assert_status(&r, 200);
    assert_string_equal(r.body.ptr, "len=100000");
    reply_free(&r);
    close(post_of(100001, &r));
    assert_status(&r, 413);
    assert_non_null(strstr(r.body.ptr, "100001"));
    reply_free(&r);
    /* A client that sends everything before it reads still gets to see the answer. */
    close(post_of(8 << 20, &r));
    assert_status(&r, 413);
    assert_non_null(strstr(r.body.ptr, "invalid_request_error"));
    assert_string_equal(head_value(r.head, "connection"), "close");
    reply_free(&r);
    assert_int_equal(atomic_load(&n_handled), 1);
    check_alive();
}

static bool send_chunk(int fd, size_t n)
{
    char head[32], *body = calloc(1, n);
    snprintf(head, sizeof head, "%zx\r\n", n);
    bool ok = client_text(fd, head) && client_send(fd, body, n) && client_text(fd, "\r\n");
    free(body);
    return ok;
}

static void test_chunked_limit(void **state)
{
    (void)state;
    start((mx_http_config){.max_body_bytes = 100000});
    for (int n = 9; n <= 11; n++) {
        int fd = client_connect(server);
        client_text(fd, POST "Transfer-Encoding: chunked\r\n\r\n");
        for (int i = 0; i < n; i++) {
            send_chunk(fd, 10000);
        }
        client_text(fd, "0\r\n\r\n");
        client_reply r;
        client_read(fd, &r, false);
        assert_status(&r, n <= 10 ? 200 : 413);
        assert_non_null(head_value(r.head, "x-request-id"));
        reply_free(&r);
        close(fd);
    }
    /* Endless: answered, then closed. */
    int fd = client_connect(server);
    client_text(fd, POST "Transfer-Encoding: chunked\r\n\r\n");
    int sent = 0;
    while (sent < 100 && send_chunk(fd, 100000)) {
        sent++;
    }
    client_reply r;
    client_read(fd, &r, false);
    assert_status(&r, 413);
    reply_free(&r);
    close(fd);
    check_alive();
}

static void test_expect(void **state)
{
    (void)state;
    start((mx_http_config){.max_body_bytes = 1000});
    int fd = client_connect(server);
    client_text(fd, POST "Content-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    client_reply r = {0};
    assert_true(client_head(fd, &r, client_end_us()));
    assert_status(&r, 100);
    client_text(fd, "body");
    client_read(fd, &r, false);
    assert_status(&r, 200);
    assert_string_equal(r.body.ptr, "len=4");
    reply_free(&r);
    close(fd);
    fd = client_connect(server); /* too large: refused instead of invited */
    client_text(fd, POST "Content-Length: 4000\r\nExpect: 100-continue\r\n\r\n");
    memset(&r, 0, sizeof r);
    assert_true(client_head(fd, &r, client_end_us()));
    assert_status(&r, 413);
    close(fd);
    fd = client_connect(server);
    client_text(fd, POST "Origin: http://evil.example\r\nContent-Length: 4\r\n"
                         "Expect: 100-continue\r\n\r\n");
    memset(&r, 0, sizeof r);
    assert_true(client_head(fd, &r, client_end_us()));
    assert_status(&r, 403);
    close(fd);
}

static void test_header_limit(void **state)
{
    (void)state;
    start((mx_http_config){.max_header_bytes = 8192});
    static const struct {
        size_t bytes;
        int status;
    } cases[] = {{7000, 200}, {9000, 431}, {20000, 431}, {200000, 431}};
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_buf text = {0};
        mx_buf_str(&text, "GET /x HTTP/1.1\r\nHost: localhost\r\nX-Long: ");
        for (size_t k = 0; k < cases[i].bytes; k++) {
            mx_buf_char(&text, 'a');
        }
        mx_buf_str(&text, "\r\n\r\n");
        client_reply r;
        int fd = client_connect(server);
        client_send(fd, text.ptr, text.len);
        client_read(fd, &r, false);
        if (cases[i].bytes < 100000) {
            assert_status(&r, cases[i].status);
        } else if (r.status != 0) { /* far beyond: the library's own answer, or a closed door */
            assert_status(&r, cases[i].status);
        }
        reply_free(&r);
        mx_buf_free(&text);
        close(fd);
    }
    mx_buf many = {0};
    mx_buf_str(&many, "GET /x HTTP/1.1\r\nHost: localhost\r\n");
    for (int k = 0; k < 250; k++) {
        mx_buf_printf(&many, "a%d: b\r\n", k);
    }
    mx_buf_str(&many, "\r\n");
    client_reply r;
    client_once(server, many.ptr, &r);
    assert_status(&r, 431);
    assert_non_null(strstr(r.body.ptr, "200 headers"));
    reply_free(&r);
    mx_buf_free(&many);
    mx_buf url = {0};
    mx_buf_str(&url, "GET /");
    for (int k = 0; k < 100000; k++) {
        mx_buf_char(&url, 'u');
    }
    mx_buf_str(&url, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    int fd = client_connect(server);
    client_send(fd, url.ptr, url.len);
    client_read(fd, &r, false);
    assert_true(r.status == 0 || r.status == 414 || r.status == 431);
    reply_free(&r);
    mx_buf_free(&url);
    close(fd);
    check_alive();
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static uint64_t closed_after(int fd)
{
    uint64_t from = mx_now_us();
    assert_int_equal(client_wait_close(fd, CLIENT_MS), 0);
    return (mx_now_us() - from) / 1000;
}

static void test_silent_connection(void **state)
{
    (void)state;
    start((mx_http_config){.header_timeout_ms = 300, .idle_timeout_ms = 600});
    int fd = client_connect(server);
    uint64_t ms = closed_after(fd);
    assert_in_range(ms, 250, 9000); /* without the setting: 10 s */
    close(fd);
    fd = client_connect(server);
    client_text(fd, "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_reply r;
    client_read(fd, &r, false);
    assert_status(&r, 200);
    reply_free(&r);
    ms = closed_after(fd);
    print_message("idle connection closed after %llu ms\n", (unsigned long long)ms);
    assert_in_range(ms, 500, 30000); /* 120 s */
    close(fd);
}

/* One byte now and then restarts no clock. */
static void test_slow_loris(void **state)
{
    (void)state;
    start((mx_http_config){.header_timeout_ms = 400, .idle_timeout_ms = 400});
    for (int second = 0; second < 2; second++) {
        int fd = client_connect(server);
        if (second) { /* the same on a connection that has had a request */
            client_reply r;
            client_text(fd, "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client_read(fd, &r, false);
            assert_status(&r, 200);
            reply_free(&r);
        }
        const char *text = "GET /x HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        uint64_t from = mx_now_us();
        size_t n = 0;
        struct pollfd p = {fd, POLLIN, 0};
        while (n < strlen(text) && client_send(fd, text + n, 1) && poll(&p, 1, 50) == 0) {
            n++;
        }
        uint64_t ms = (mx_now_us() - from) / 1000;
        print_message("slow header cut off after %llu ms\n", (unsigned long long)ms);
        assert_true(ms >= 300 && n < strlen(text));
        close(fd);
    }
}

static void test_stalled_body(void **state)
{
    (void)state;
    start((mx_http_config){.body_timeout_ms = 1000});
    int fd = client_connect(server);
    client_text(fd, POST "Content-Length: 100\r\n\r\nabc");
    client_reply r;
    client_read(fd, &r, false);
    assert_status(&r, 408);
    assert_in_range(r.us, 900000, 25000000); /* without the setting: 30 s */
    reply_free(&r);
    assert_int_equal(client_wait_close(fd, CLIENT_MS), 0);
    close(fd);
    /* Slow, but moving: served. */
    fd = client_connect(server);
    client_text(fd, POST "Content-Length: 16\r\n\r\n");
    for (int i = 0; i < 16; i++) {
        sleep_ms(80);
        client_text(fd, "x");
    }
    client_read(fd, &r, false);
    assert_status(&r, 200);
    reply_free(&r);
    close(fd);
}

static void test_reader_that_stops(void **state)
{
    (void)state;
    /* Long enough that a busy machine under a sanitizer does not look like a reader that stopped. */
    start((mx_http_config){.send_timeout_ms = 1500});
    int fd = client_connect(server);
    client_text(fd, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
    uint64_t from = mx_now_us();
    sleep_ms(100);
    wait_active(server, 0);
    uint64_t ms = (mx_now_us() - from) / 1000;
    print_message("reader that stopped: given up after %llu ms\n", (unsigned long long)ms);
    assert_in_range(ms, 1100, 50000); /* without the setting: 60 s */
    close(fd);
    /* Slow, but reading: gets all of it. */
    fd = client_connect(server);
    client_text(fd, "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
    client_reply r = {0};
    assert_true(client_head(fd, &r, client_end_us()));
    mx_buf sink = {0};
    for (int i = 0; i < 32; i++) {
        mx_buf_clear(&sink);
        if (i < 16) {
            sleep_ms(50);
        }
        assert_true(client_bytes(fd, &sink, 1 << 20, client_end_us()));
    }
    mx_buf_free(&sink);
    close(fd);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* The library's own epoll thread stalls at multiples of 128 ready connections. */
static void test_connection_counts(void **state)
{
    (void)state;
    start((mx_http_config){.max_waiting = 1000});
    static const int counts[] = {127, 128, 129, 255, 256, 257};
    for (size_t k = 0; k < MX_COUNT(counts); k++) {
        int n = counts[k];
        int fds[257];
        for (int i = 0; i < n; i++) {
            fds[i] = client_connect(server);
        }
        uint64_t least = UINT64_MAX; /* a stall is one in each round */
        for (int round = 0; round < 3; round++) {
            uint64_t from = mx_now_us();
            for (int i = 0; i < n; i++) {
                client_text(fds[i], POST "Content-Length: 2\r\n\r\nhi");
            }
            for (int i = 0; i < n; i++) {
                client_reply r;
                client_read(fds[i], &r, false);
                assert_status(&r, 200);
                reply_free(&r);
            }
            uint64_t took = mx_now_us() - from;
            least = took < least ? took : least;
        }
        print_message("%d connections: %llu ms a round\n", n, (unsigned long long)least / 1000);
        assert_true(least < 3000000);
        for (int i = 0; i < n; i++) {
            close(fds[i]);
        }
    }
}

static void test_connection_limit(void **state)
{
    (void)state;
    start((mx_http_config){.max_connections = 8, .n_workers = 8});
    int fds[8];
    for (int i = 0; i < 8; i++) { /* busy ones */
        fds[i] = client_connect(server);
        client_text(fds[i], "GET /gate HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    assert_true(wait_for(&n_entered, 8));
    client_reply r;
    client_once(server, "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n", &r);
    assert_status(&r, 503);
    assert_non_null(head_value(r.head, "retry-after"));
    assert_non_null(strstr(r.body.ptr, "unavailable_error"));
    reply_free(&r);
    atomic_store(&gate, 1);
    for (int i = 0; i < 8; i++) {
        client_read(fds[i], &r, false);
        assert_status(&r, 200);
        reply_free(&r);
    }
    /* All idle now: the one that has been idle longest makes room. */
    check_alive();
    int n_closed = 0;
    for (int i = 0; i < 8; i++) {
        n_closed += client_wait_close(fds[i], 50) == 0;
        close(fds[i]);
    }
    assert_int_equal(n_closed, 1);
}

static void test_full_queue(void **state)
{
    (void)state;
    start((mx_http_config){.max_waiting = 2, .n_workers = 1});
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = client_connect(server);
        client_text(fds[i], "GET /gate HTTP/1.1\r\nHost: localhost\r\n\r\n");
        wait_active(server, (size_t)i + 1);
        assert_true(i > 0 || wait_for(&n_entered, 1));
    }
    client_reply r;
    client_once(server, POST "Content-Length: 2\r\n\r\nhi", &r);
    assert_status(&r, 503);
    assert_non_null(head_value(r.head, "retry-after"));
    reply_free(&r);
    atomic_store(&gate, 1);
    for (int i = 0; i < 3; i++) {
        client_read(fds[i], &r, false);
        assert_status(&r, 200);
        reply_free(&r);
        close(fds[i]);
    }
    assert_int_equal(atomic_load(&n_handled), 3);
}

static bool is_gate(const char *path)
{
    return strcmp(path, "/gate") == 0;
}

/* Slow requests leave a worker to everybody else, and are served one after the other. */
static void check_leave_a_worker(const mx_http_config *cfg, size_t body_bytes)
{
    start(*cfg);
    enum { N = 3 };
    int fds[N];
    char head[200], *body = calloc(1, body_bytes);
    snprintf(head, sizeof head,
             "POST /gate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", body_bytes);
    for (int i = 0; i < N; i++) {
        fds[i] = client_connect(server);
        client_text(fds[i], head);
        assert_true(client_send(fds[i], body, body_bytes));
    }
    free(body);
    assert_true(wait_for(&n_entered, 1));
    sleep_ms(100);
    assert_int_equal(atomic_load(&n_entered), 1);
    check_alive();
    atomic_store(&gate, 1);
    for (int i = 0; i < N; i++) {
        client_reply r;
        client_read(fds[i], &r, false);
        assert_status(&r, 200);
        reply_free(&r);
        close(fds[i]);
    }
}

static void test_large_bodies_leave_a_worker(void **state)
{
    (void)state;
    check_leave_a_worker(&(mx_http_config){.n_workers = 2}, (size_t)2 << 20);
}

static void test_administrators_leave_a_worker(void **state)
{
    (void)state;
    check_leave_a_worker(&(mx_http_config){.n_workers = 2, .is_admin_path = is_gate}, 2);
}

/* Requests that are too many for the memory of all bodies together are refused, not held. */
static void test_body_budget(void **state)
{
    (void)state;
    start((mx_http_config){.max_body_bytes = (size_t)64 << 20});
    enum { N = 5, EACH = 60 << 20 };
    int fds[N];
    char head[200], *block = calloc(1, 1 << 20);
    snprintf(head, sizeof head, POST "Content-Length: %d\r\n\r\n", EACH);
    int n_refused = 0;
    for (int i = 0; i < N; i++) {
        fds[i] = client_connect(server);
        client_text(fds[i], head);
        for (int m = 0; m < (EACH >> 20) - 1; m++) { /* all but the last MiB */
            if (!client_send(fds[i], block, 1 << 20)) {
                break;
            }
        }
        struct pollfd p = {fds[i], POLLIN, 0};
        if (poll(&p, 1, i < N - 1 ? 300 : CLIENT_MS) > 0) {
            client_reply r;
            client_read(fds[i], &r, false);
            assert_status(&r, 503);
            reply_free(&r);
            n_refused++;
        }
    }
    assert_int_equal(n_refused, 1); /* 4 x 59 MiB fit into 256 MiB, the fifth does not */
    for (int i = 0; i < N; i++) {
        close(fds[i]);
    }
    free(block);
    wait_active(server, 0);
    client_reply r;
    close(post_of(EACH, &r)); /* the memory has come back */
    assert_status(&r, 200);
    reply_free(&r);
}

/* No descriptors left: connections wait, and are served when there are some again. */
static void test_no_descriptors(void **state)
{
    (void)state;
    start((mx_http_config){0});
    check_alive();
    int fd = client_connect(server);
    int waiting = socket(AF_INET, SOCK_STREAM, 0);
    struct rlimit old, small;
    getrlimit(RLIMIT_NOFILE, &old);
    small = old;
    small.rlim_cur = (rlim_t)waiting + 1; /* every number up to here is taken */
    int fillers[64], n = 0;
    setrlimit(RLIMIT_NOFILE, &small);
    while (n < 64 && (fillers[n] = dup(fd)) >= 0) {
        n++;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(mx_http_port(server))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(waiting, (struct sockaddr *)&a, sizeof a), 0);
    client_text(waiting, "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    sleep_ms(250);
    setrlimit(RLIMIT_NOFILE, &old);
    client_reply r;
    client_read(waiting, &r, false);
    assert_status(&r, 200);
    reply_free(&r);
    while (n > 0) {
        close(fillers[--n]);
    }
    close(waiting);
    close(fd);
}

static uint64_t cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Idle connections and requests in progress cost no wake-ups. */
static void test_idle_costs_nothing(void **state)
{
    (void)state;
    start((mx_http_config){0});
    int fds[10];
    for (int i = 0; i < 10; i++) {
        fds[i] = client_connect(server);
        client_text(fds[i], POST "Content-Length: 20\r\n\r\nabc");
    }
    wait_active(server, 10);
    sleep_ms(50);
    struct rusage a, b;
    uint64_t cpu = cpu_us();
    getrusage(RUSAGE_SELF, &a);
    sleep_ms(500);
    getrusage(RUSAGE_SELF, &b);
    long switches = b.ru_nvcsw - a.ru_nvcsw;
    print_message("idle for 500 ms: %ld switches, %llu us of CPU\n", switches,
                  (unsigned long long)(cpu_us() - cpu));
    assert_true(switches < 10);
    for (int i = 0; i < 10; i++) {
        close(fds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_body_limit, stop),
        cmocka_unit_test_teardown(test_chunked_limit, stop),
        cmocka_unit_test_teardown(test_expect, stop),
        cmocka_unit_test_teardown(test_header_limit, stop),
        cmocka_unit_test_teardown(test_silent_connection, stop),
        cmocka_unit_test_teardown(test_slow_loris, stop),
        cmocka_unit_test_teardown(test_stalled_body, stop),
        cmocka_unit_test_teardown(test_reader_that_stops, stop),
        cmocka_unit_test_teardown(test_connection_counts, stop),
        cmocka_unit_test_teardown(test_connection_limit, stop),
        cmocka_unit_test_teardown(test_full_queue, stop),
        cmocka_unit_test_teardown(test_large_bodies_leave_a_worker, stop),
        cmocka_unit_test_teardown(test_administrators_leave_a_worker, stop),
        cmocka_unit_test_teardown(test_body_budget, stop),
        cmocka_unit_test_teardown(test_no_descriptors, stop),
        cmocka_unit_test_teardown(test_idle_costs_nothing, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
