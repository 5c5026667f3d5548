/* SPDX-License-Identifier: MIT
 *
 * Whole requests against a real server: what reaches the handler, what is refused and how.
 */
#include "http_client.h"

static mx_http *server;
static atomic_int n_handled;

/* Echoes what it saw as text, with the body at the end. */
static void echo(void *arg, mx_http_exchange *x)
{
    (void)arg;
    atomic_fetch_add(&n_handled, 1);
    if (strcmp(mx_http_path(x), "/silent") == 0) {
        return; /* a handler's bug: the client must still get an answer */
    }
    mx_buf out = {0};
    const char *accept = mx_http_header(x, "ACCEPT");
    mx_str body = mx_http_body(x);
    mx_buf_printf(&out, "%s %s key=%d accept=%s id=%s len=%zu body=", mx_http_method(x),
                  mx_http_path(x), mx_http_key_index(x), accept ? accept : "-",
                  mx_http_request_id(x), body.len);
    mx_buf_append(&out, body.ptr, mx_min_size(body.len, 100));
    const char *extra[] = {"X-Extra: one two", "Retry-After:7"};
    mx_http_reply(x, 200, "text/plain", mx_buf_view(&out), extra, 2);
    mx_buf_free(&out);
}

static void start(mx_http_config cfg)
{
    mx_errbuf eb = {""};
    cfg.host = cfg.host ? cfg.host : "127.0.0.1";
    cfg.handler = echo;
    mx_err err = mx_http_start(&server, &cfg, &eb);
    if (err != MX_OK) {
        print_message("start: %s\n", eb.text);
    }
    assert_int_equal(err, MX_OK);
}

static int stop(void **state)
{
    (void)state;
    mx_http_stop(server);
    server = NULL;
    if (mx_mem_live() != 0) {
        print_message("blocks left after stop: %lld\n", (long long)mx_mem_live());
        return -1;
    }
    return 0;
}

static void expect(const char *text, int status, const char *in_body)
{
    client_reply r;
    client_once(server, text, &r);
    if (r.status != status || (in_body != NULL && strstr(r.body.ptr, in_body) == NULL)) {
        print_message("sent: %.200s\nexpected %d with '%s', came %d: %s\n%s\n", text, status,
                      in_body ? in_body : "", r.status, r.head, r.body.ptr ? r.body.ptr : "");
    }
    assert_int_equal(r.status, status);
    assert_true(r.is_whole);
    if (in_body != NULL) {
        assert_non_null(strstr(r.body.ptr, in_body));
    }
    if (status >= 400) {
        assert_non_null(strstr(r.body.ptr, "{\"error\":{\"message\":\""));
        assert_string_equal(head_value(r.head, "content-type"), "application/json");
    }
    assert_non_null(head_value(r.head, "x-request-id"));
    reply_free(&r);
}

#define H "Host: 127.0.0.1\r\n"

static void test_plain(void **state)
{
    (void)state;
    start((mx_http_config){0});
    expect("GET / HTTP/1.1\r\n" H "\r\n", 200, "GET / key=-1 accept=- id=req_");
    expect("GET //v1//models/?a=b HTTP/1.1\r\n" H "aCCept: x/y\r\n\r\n", 200,
           "GET /v1/models key=-1 accept=x/y");
    expect("POST /p HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", 200, "len=5 body=hello");
    expect("POST /p HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", 200, "len=0 body=");
    expect("POST /p HTTP/1.1\r\n" H "\r\n", 200, "len=0 body=");
    expect("POST /p HTTP/1.1\r\n" H "Content-Length: 8\r\n\r\n\xEF\xBB\xBFhello", 200,
           "len=5 body=hello");
    expect("POST /p HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
           "3\r\nabc\r\n1;ext=1\r\nd\r\n0\r\nTrailer: x\r\n\r\n", 200, "len=4 body=abcd");
    expect("DELETE /p HTTP/1.1\r\n" H "\r\n", 200, "DELETE /p");
    expect("BREW /p HTTP/1.1\r\n" H "\r\n", 200, "BREW /p");
    expect("GET /x HTTP/1.0\r\n\r\n", 200, "GET /x");
    expect("GET http://localhost:1/x HTTP/1.1\r\n" H "\r\n", 200, "GET /x");
    expect("GET /silent HTTP/1.1\r\n" H "\r\n", 500, "did not answer");
}

static void test_head(void **state)
{
    (void)state;
    start((mx_http_config){0});
    int fd = client_connect(server);
    for (int i = 0; i < 3; i++) { /* on one connection: no stray body may follow */
        client_reply r;
        client_text(fd, "HEAD /x HTTP/1.1\r\n" H "\r\n");
        client_read(fd, &r, true);
        assert_status(&r, 200);
        assert_non_null(head_value(r.head, "content-length"));
        assert_string_equal(head_value(r.head, "x-extra"), "one two");
        assert_string_equal(head_value(r.head, "retry-after"), "7");
        reply_free(&r);
    }
    close(fd);
}

static void test_keep_alive_and_pipeline(void **state)
{
    (void)state;
    start((mx_http_config){0});
    int fd = client_connect(server);
    client_text(fd, "POST /1 HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\n" H
                    "\r\nPOST /3 HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n1\r\nq\r\n0\r\n"
                    "\r\n");
    const char *want[] = {"POST /1", "GET /2", "POST /3"};
    char ids[3][64];
    for (int i = 0; i < 3; i++) {
        client_reply r;
        client_read(fd, &r, false);
        assert_status(&r, 200);
        assert_non_null(strstr(r.body.ptr, want[i]));
        snprintf(ids[i], sizeof ids[i], "%s", head_value(r.head, "x-request-id"));
        assert_string_equal(ids[i], head_value(r.head, "request-id"));
        reply_free(&r);
    }
    assert_string_not_equal(ids[0], ids[1]);
    assert_string_not_equal(ids[1], ids[2]);
    close(fd);
}

static void test_framing(void **state)
{
    (void)state;
    start((mx_http_config){0});
    int before = atomic_load(&n_handled);
    expect("POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
           "0\r\n\r\nGET /smuggled HTTP/1.1\r\n" H "\r\n", 400, "not both");
    expect("POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
           "0\r\n\r\n", 400, "not both");
    expect("POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400,
           "repeated");
    expect("POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501,
           "chunked");
    expect("POST / HTTP/1.0\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "HTTP/1.0");
    expect("GET / HTTP/1.1\r\n" H "Host: 127.0.0.1\r\n\r\n", 400, "Host header is repeated");
    expect("GET / HTTP/1.1\r\n\r\n", 400, "no Host header");
    expect("GET /%zz HTTP/1.1\r\n" H "\r\n", 400, "path");
    assert_int_equal(atomic_load(&n_handled), before);
    /* After a refusal whose end is uncertain nothing more is read from the connection. */
    int fd = client_connect(server);
    client_text(fd, "POST / HTTP/1.1\r\n" H "Content-Length: 5\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                    "GET /smuggled HTTP/1.1\r\n" H "\r\n");
    client_reply r;
    client_read(fd, &r, false);
    assert_status(&r, 400);
    reply_free(&r);
    client_read(fd, &r, false);
    assert_int_equal(r.status, 0);
    close(fd);
    assert_int_equal(atomic_load(&n_handled), before);
}

/* What the library itself refuses: any 4xx or a closed connection, and the server lives on. */
static void test_garbage(void **state)
{
    (void)state;
    /* Some leave the server waiting for more. */
    start((mx_http_config){.header_timeout_ms = 300, .body_timeout_ms = 300, .idle_timeout_ms = 300});
    static const char *const texts[] = {
        "\r\n\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/9.9\r\n" H "\r\n",
        "\x16\x03\x01\x02\x01\x01", "GET / HTTP/1.1\r\nnocolon\r\n\r\n",
        "GET / HTTP/1.1\r\n: x\r\n\r\n", "GET / HTTP/1.1\r\n" H "a b: x\r\n\r\n",
        "POST / HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\n" H "Content-Length: 1x\r\n\r\nab",
        "POST / HTTP/1.1\r\n" H "Content-Length: 99999999999999999999999\r\n\r\nab",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\n" H " folded\r\n\r\n",
    };
    for (size_t i = 0; i < MX_COUNT(texts); i++) {
        int fd = client_connect(server);
        client_text(fd, texts[i]);
        shutdown(fd, SHUT_WR);
        client_reply r;
        client_read(fd, &r, false);
        if (r.status >= 500 && r.status != 501 && r.status != 505) {
            print_message("case %zu: %s\n", i, r.head);
            fail();
        }
        reply_free(&r);
        close(fd);
    }
    uint32_t seed = 20261129;
    for (int i = 0; i < 300; i++) {
        char text[200];
        size_t n = 0;
        const char *base = "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";
        n = strlen(base);
        memcpy(text, base, n);
        for (int e = 0; e < 4; e++) {
            seed = seed * 1664525u + 1013904223u;
            text[(seed >> 8) % n] = (char)(seed >> 24);
        }
        int fd = client_connect(server);
        client_send(fd, text, n);
        shutdown(fd, SHUT_WR);
        assert_int_equal(client_wait_close(fd, CLIENT_MS), 0);
        close(fd);
    }
    expect("GET / HTTP/1.1\r\n" H "\r\n", 200, "GET /");
}

static void test_host_origin(void **state)
{
    (void)state;
    const char *hosts[] = {"box.lan"};
    const char *origins[] = {"https://app.example"};
    start((mx_http_config){.hosts = hosts, .n_hosts = 1, .origins = origins, .n_origins = 1});
    expect("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "--allowed-host");
    expect("GET http://evil.example/ HTTP/1.1\r\n" H "\r\n", 403, "evil.example");
    expect("GET / HTTP/1.1\r\nHost: ev\"il<>\x80\r\n\r\n", 403, "--allowed-host");
    expect("GET / HTTP/1.1\r\nHost: box.lan:99\r\n\r\n", 200, NULL);
    expect("POST / HTTP/1.1\r\n" H "Origin: http://evil.example\r\nContent-Length: 2\r\n\r\nhi",
           403, "--allowed-origin");
    expect("GET / HTTP/1.1\r\n" H "Origin: null\r\n\r\n", 403, "--allowed-origin");
    client_reply r;
    client_once(server, "GET / HTTP/1.1\r\n" H "Origin: https://app.example\r\n\r\n", &r);
    assert_status(&r, 200);
    assert_string_equal(head_value(r.head, "access-control-allow-origin"), "https://app.example");
    assert_string_equal(head_value(r.head, "vary"), "Origin");
    assert_non_null(strstr(head_value(r.head, "access-control-expose-headers"), "x-request-id"));
    reply_free(&r);
    client_once(server, "GET / HTTP/1.1\r\n" H "Origin: http://evil.example\r\n\r\n", &r);
    assert_null(head_value(r.head, "access-control-allow-origin"));
    reply_free(&r);
}

static void test_preflight(void **state)
{
    (void)state;
    const char *keys[] = {"secret"};
    start((mx_http_config){.api_keys = keys, .n_api_keys = 1});
    int before = atomic_load(&n_handled);
    client_reply r;
    client_once(server, "OPTIONS /v1/anything HTTP/1.1\r\n" H "Origin: http://localhost:3000\r\n"
                "Access-Control-Request-Method: POST\r\n"
                "Access-Control-Request-Headers: authorization,content-type\r\n"
                "Access-Control-Request-Private-Network: true\r\n\r\n", &r);
    assert_status(&r, 204);
    assert_string_equal(head_value(r.head, "access-control-allow-origin"), "http://localhost:3000");
    assert_string_equal(head_value(r.head, "access-control-allow-headers"),
                        "authorization,content-type");
    assert_non_null(strstr(head_value(r.head, "access-control-allow-methods"), "DELETE"));
    assert_non_null(head_value(r.head, "access-control-max-age"));
    assert_string_equal(head_value(r.head, "access-control-allow-private-network"), "true");
    assert_non_null(head_value(r.head, "x-request-id"));
    reply_free(&r);
    client_once(server, "OPTIONS / HTTP/1.1\r\n" H "Origin: http://evil.example\r\n\r\n", &r);
    assert_status(&r, 403);
    reply_free(&r);
    client_once(server, "OPTIONS * HTTP/1.1\r\n" H "\r\n", &r);
    assert_status(&r, 204);
    reply_free(&r);
    assert_int_equal(atomic_load(&n_handled), before);
    stop(NULL);
    const char *any[] = {"*"};
    start((mx_http_config){.origins = any, .n_origins = 1});
    client_once(server, "OPTIONS / HTTP/1.1\r\n" H "Origin: http://evil.example\r\n"
                "Access-Control-Request-Private-Network: true\r\n\r\n", &r);
    assert_status(&r, 204);
    assert_string_equal(head_value(r.head, "access-control-allow-origin"), "*");
    assert_null(head_value(r.head, "access-control-allow-private-network"));
    reply_free(&r);
}

static void test_keys(void **state)
{
    (void)state;
    const char *keys[] = {"first", "second"};
    const char *open_paths[] = {"/health"};
    start((mx_http_config){.api_keys = keys, .n_api_keys = 2, .open_paths = open_paths,
                           .n_open_paths = 1});
    expect("GET / HTTP/1.1\r\n" H "\r\n", 401, "Authorization: Bearer KEY");
    expect("GET / HTTP/1.1\r\n" H "Authorization: Bearer wrong\r\n\r\n", 401, "API key");
    expect("GET / HTTP/1.1\r\n" H "Authorization: Bearer \r\n\r\n", 401, NULL);
    expect("GET / HTTP/1.1\r\n" H "Authorization: first\r\n\r\n", 401, NULL);
    expect("GET / HTTP/1.1\r\n" H "Authorization: Bearer firstx\r\n\r\n", 401, NULL);
    expect("GET / HTTP/1.1\r\n" H "x-api-key: firs\r\n\r\n", 401, NULL);
    expect("GET / HTTP/1.1\r\n" H "Authorization: Bearer first\r\n\r\n", 200, "key=0");
    expect("GET / HTTP/1.1\r\n" H "authorization: bearer second\r\n\r\n", 200, "key=1");
    expect("GET / HTTP/1.1\r\n" H "X-Api-Key: second\r\n\r\n", 200, "key=1");
    expect("GET / HTTP/1.1\r\n" H "api-key: first\r\n\r\n", 200, "key=0");
    expect("GET / HTTP/1.1\r\n" H "Authorization: Bearer no\r\nx-api-key: first\r\n\r\n", 200,
           "key=0");
    expect("GET //health/ HTTP/1.1\r\n" H "\r\n", 200, "GET /health key=-1");
    expect("GET /health/x HTTP/1.1\r\n" H "\r\n", 401, NULL);
    expect("POST / HTTP/1.1\r\n" H "Content-Length: 4\r\n\r\nbody", 401, NULL);
    client_reply r;
    client_once(server, "GET / HTTP/1.1\r\n" H "\r\n", &r);
    assert_string_equal(head_value(r.head, "www-authenticate"), "Bearer");
    reply_free(&r);
}

static bool is_admin_path(const char *path)
{
    return strcmp(path, "/info") == 0;
}

/* Who may go where: with API keys and without, with an admin key and without. */
static void test_admin_key(void **state)
{
    (void)state;
    const char *keys[] = {"first", "second"};
    const struct {
        size_t n_keys;
        const char *admin;
        /* Status of /info and of /x: without a key, with a wrong one, an API key, the admin key. */
        int info[4], other[4];
    } rows[] = {
        {0, NULL, {200, 200, 200, 200}, {200, 200, 200, 200}},
        {2, NULL, {404, 404, 404, 404}, {401, 401, 200, 401}},
        {0, "root", {401, 401, 401, 200}, {200, 200, 200, 200}},
        {2, "root", {401, 401, 403, 200}, {401, 401, 200, 401}},
    };
    static const char *const headers[] = {"", "Authorization: Bearer roo\r\n",
                                          "x-api-key: second\r\n", "Authorization: Bearer root\r\n"};
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        start((mx_http_config){.api_keys = keys, .n_api_keys = rows[i].n_keys,
                               .admin_key = rows[i].admin, .is_admin_path = is_admin_path});
        for (size_t k = 0; k < MX_COUNT(headers); k++) {
            char text[256];
            static const char *const paths[] = {"/info", "//info/", "/%69nfo?x=1", "/x", "/infox"};
            for (size_t n = 0; n < MX_COUNT(paths); n++) {
                snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" H "%s\r\n", paths[n], headers[k]);
                expect(text, n < 3 ? rows[i].info[k] : rows[i].other[k], NULL);
            }
        }
        stop(NULL);
    }
    start((mx_http_config){.api_keys = keys, .n_api_keys = 2, .admin_key = "root",
                           .is_admin_path = is_admin_path});
    expect("GET /info HTTP/1.1\r\n" H "Authorization: Bearer root\r\nx-api-key: second\r\n\r\n", 200,
           "key=1");
    expect("GET /info HTTP/1.1\r\n" H "Authorization: Bearer first\r\nx-api-key: root\r\n\r\n", 200,
           "key=0");
}

/* Refused with a body: the connection stays usable, because the body was read. */
static void test_refusal_keeps_connection(void **state)
{
    (void)state;
    const char *keys[] = {"k"};
    start((mx_http_config){.api_keys = keys, .n_api_keys = 1});
    int fd = client_connect(server);
    for (int i = 0; i < 3; i++) {
        client_reply r;
        client_text(fd, "POST /a HTTP/1.1\r\n" H "Content-Length: 6\r\n\r\nabcdef");
        client_read(fd, &r, false);
        assert_status(&r, 401);
        reply_free(&r);
        client_text(fd, "POST /a HTTP/1.1\r\n" H "api-key: k\r\nContent-Length: 6\r\n\r\nabcdef");
        client_read(fd, &r, false);
        assert_status(&r, 200);
        reply_free(&r);
    }
    close(fd);
}

static void test_encoding(void **state)
{
    (void)state;
    start((mx_http_config){0});
    expect("POST / HTTP/1.1\r\n" H "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nxx", 415,
           "uncompressed");
    expect("POST / HTTP/1.1\r\n" H "Content-Encoding: zstd\r\nContent-Length: 2\r\n\r\nxx", 415,
           NULL);
    expect("POST / HTTP/1.1\r\n" H "Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nxx", 200,
           "body=xx");
}

static void test_start_errors(void **state)
{
    (void)state;
    start((mx_http_config){0});
    mx_errbuf eb = {""};
    mx_http *second = NULL;
    mx_http_config cfg = {.host = "127.0.0.1", .port = mx_http_port(server), .handler = echo};
    assert_int_equal(mx_http_start(&second, &cfg, &eb), MX_E_BUSY);
    assert_null(second);
    char port[16];
    snprintf(port, sizeof port, "port %u", mx_http_port(server));
    assert_non_null(strstr(eb.text, port));
    assert_non_null(strstr(eb.text, "--port"));
    cfg = (mx_http_config){.host = "192.0.2.1", .handler = echo};
    assert_int_equal(mx_http_start(&second, &cfg, &eb), MX_E_INVALID);
    assert_non_null(strstr(eb.text, "--host"));
    cfg = (mx_http_config){.host = "no such host", .handler = echo};
    assert_int_equal(mx_http_start(&second, &cfg, &eb), MX_E_INVALID);
    assert_non_null(strstr(eb.text, "no such host"));
}

/* The k-th allocation of a start fails: an error and nothing left behind. */
static void test_start_no_memory(void **state)
{
    (void)state;
    const char *list[] = {"a", "b"};
    mx_http_config cfg = {.host = "127.0.0.1", .handler = echo, .origins = list, .n_origins = 2,
                          .hosts = list, .n_hosts = 2, .api_keys = list, .n_api_keys = 2,
                          .open_paths = list, .n_open_paths = 2};
    int64_t before = mx_mem_live();
    bool is_started = false;
    uint64_t k;
    for (k = 1; k < 100 && !is_started; k++) {
        mx_http *h = NULL;
        mx_errbuf eb = {""};
        mx_mem_fail_at(k);
        mx_err err = mx_http_start(&h, &cfg, &eb);
        mx_mem_fail_at(0);
        is_started = err == MX_OK;
        if (is_started) {
            mx_http_stop(h);
        } else {
            assert_int_equal(err, MX_E_NOMEM);
            assert_non_null(strstr(eb.text, "memory"));
        }
        assert_int_equal(mx_mem_live(), before);
    }
    assert_true(k > 10);
}

/* The k-th allocation while a request is served fails: an answer or a closed connection, and the
 * next request is served. */
static void test_request_no_memory(void **state)
{
    (void)state;
    start((mx_http_config){0});
    for (uint64_t k = 1; k < 40; k++) {
        mx_mem_fail_at(k);
        client_reply r;
        int fd = client_connect(server);
        client_text(fd, "POST /p HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello");
        client_read(fd, &r, false);
        close(fd);
        mx_mem_fail_at(0);
        reply_free(&r);
        expect("GET /alive HTTP/1.1\r\n" H "\r\n", 200, "GET /alive");
    }
}

/* Asked of the machine and not of the server, which would be excused by what it failed to do. */
static bool has_ipv6_loopback(void)
{
    struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_there = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return is_there;
}

static void test_ipv6(void **state)
{
    (void)state;
    if (!has_ipv6_loopback()) {
        /* A machine without it is no broken CI: containers often have none. */
        print_message("SKIPPED: there is no [::1] on this machine\n");
        skip();
    }
    start((mx_http_config){0});
    int fd = client_connect_to(mx_http_port(server), AF_INET6);
    assert_true(fd >= 0);
    client_reply r;
    client_text(fd, "GET /six HTTP/1.1\r\nHost: [::1]:8000\r\n\r\n");
    client_read(fd, &r, false);
    assert_status(&r, 200);
    assert_non_null(strstr(r.body.ptr, "GET /six"));
    reply_free(&r);
    close(fd);
    /* by itself, also as it stands in a URL */
    static const char *const hosts[] = {"::1", "[::1]"};
    for (size_t i = 0; i < MX_COUNT(hosts); i++) {
        stop(NULL);
        start((mx_http_config){.host = hosts[i]});
        fd = client_connect_to(mx_http_port(server), AF_INET6);
        assert_true(fd >= 0);
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_plain, stop),
        cmocka_unit_test_teardown(test_head, stop),
        cmocka_unit_test_teardown(test_keep_alive_and_pipeline, stop),
        cmocka_unit_test_teardown(test_framing, stop),
        cmocka_unit_test_teardown(test_garbage, stop),
        cmocka_unit_test_teardown(test_host_origin, stop),
        cmocka_unit_test_teardown(test_preflight, stop),
        cmocka_unit_test_teardown(test_keys, stop),
        cmocka_unit_test_teardown(test_admin_key, stop),
        cmocka_unit_test_teardown(test_refusal_keeps_connection, stop),
        cmocka_unit_test_teardown(test_encoding, stop),
        cmocka_unit_test_teardown(test_start_errors, stop),
        cmocka_unit_test(test_start_no_memory),
        cmocka_unit_test_teardown(test_request_no_memory, stop),
        cmocka_unit_test_teardown(test_ipv6, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
