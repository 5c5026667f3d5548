/* SPDX-License-Identifier: MIT
 *
 * A small HTTP client on raw sockets for the tests: it can send things that no library would, stop
 * reading, hang up at any point, and it tells what came and when.
 */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "http/http.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct client_reply {
    int status;     /* 0 = the connection ended or timed out before a whole answer */
    char head[8192];
    mx_buf body;    /* without chunk framing */
    bool is_whole;
    uint64_t us;    /* from the call to the end */
} client_reply;

MX_UNUSED static void sleep_ms(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* What comes at all has come by then, on a busy machine, too. */
enum { CLIENT_MS = 60000 };

MX_UNUSED static uint64_t client_end_us(void)
{
    return mx_now_us() + CLIENT_MS * 1000ull;
}

/* Waits until *flag is at least `want`; false after CLIENT_MS. */
MX_UNUSED static bool wait_for(atomic_int *flag, int want)
{
    uint64_t end = client_end_us();
    while (atomic_load(flag) < want) {
        if (mx_now_us() > end) {
            return false;
        }
        sleep_ms(1);
    }
    return true;
}

/* Waits until so many requests are in progress; not after CLIENT_MS. */
MX_UNUSED static void wait_active(mx_http *h, size_t want)
{
    uint64_t end = client_end_us();
    while (mx_http_n_active(h) != want && mx_now_us() < end) {
        sleep_ms(1);
    }
    assert_int_equal(mx_http_n_active(h), want);
}

MX_UNUSED static int client_connect_to(uint16_t port, int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    int rc;
    if (family == AF_INET6) {
        struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
        a.sin6_addr = in6addr_loopback;
        rc = connect(fd, (struct sockaddr *)&a, sizeof a);
    } else {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        rc = connect(fd, (struct sockaddr *)&a, sizeof a);
    }
    if (rc != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

MX_UNUSED static int client_connect(const mx_http *h)
{
    int fd = client_connect_to(mx_http_port(h), AF_INET);
    assert_true(fd >= 0);
    return fd;
}

MX_UNUSED static bool client_send(int fd, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n > 0) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w <= 0) {
            return false;
        }
        p += w;
        n -= (size_t)w;
    }
    return true;
}

MX_UNUSED static bool client_text(int fd, const char *text)
{
    return client_send(fd, text, strlen(text));
}

/* 1 = a byte, 0 = end, -1 = error, -2 = timeout */
MX_UNUSED static int client_byte(int fd, char *c, uint64_t end_us)
{
    uint64_t now = mx_now_us();
    struct pollfd p = {fd, POLLIN, 0};
    int wait = now >= end_us ? 0 : (int)((end_us - now) / 1000 + 1);
    if (poll(&p, 1, wait) <= 0) {
        return -2;
    }
    ssize_t n = recv(fd, c, 1, 0);
    return n == 1 ? 1 : n == 0 ? 0 : -1;
}

/* A line without CR LF; false when the connection ended or time is up. */
MX_UNUSED static bool client_line(int fd, char *line, size_t cap, uint64_t end_us)
{
    size_t n = 0;
    char c;
    while (client_byte(fd, &c, end_us) == 1) {
        if (c == '\n') {
            if (n > 0 && line[n - 1] == '\r') {
                n--;
            }
            line[n] = '\0';
            return true;
        }
        if (n + 1 < cap) {
            line[n++] = c;
        }
    }
    return false;
}

MX_UNUSED static bool client_bytes(int fd, mx_buf *out, size_t n, uint64_t end_us)
{
    while (n > 0) {
        struct pollfd p = {fd, POLLIN, 0};
        uint64_t now = mx_now_us();
        if (now >= end_us || poll(&p, 1, (int)((end_us - now) / 1000 + 1)) <= 0) {
            return false;
        }
        char block[16384];
        ssize_t got = recv(fd, block, n < sizeof block ? n : sizeof block, 0);
        if (got <= 0) {
            return false;
        }
        mx_buf_append(out, block, (size_t)got);
        n -= (size_t)got;
    }
    return true;
}

/* The value of a header in a head; NULL = absent. Points into a static buffer. */
MX_UNUSED static const char *head_value(const char *head, const char *name)
{
    static _Thread_local char value[1024];
    size_t len = strlen(name);
    for (const char *p = strchr(head, '\n'); p != NULL; p = strchr(p, '\n')) {
        p++;
        if (strncasecmp(p, name, len) == 0 && p[len] == ':') {
            p += len + 1;
            p += strspn(p, " ");
            size_t n = strcspn(p, "\n");
            snprintf(value, sizeof value, "%.*s", (int)n, p);
            return value;
        }
    }
    return NULL;
}

MX_UNUSED static bool client_head(int fd, client_reply *r, uint64_t end_us)
{
    char line[2048];
    size_t n = 0;
    r->head[0] = '\0';
    while (client_line(fd, line, sizeof line, end_us)) {
        if (line[0] == '\0') {
            r->status = atoi(r->head + 9);
            return true;
        }
        int wrote = snprintf(r->head + n, sizeof r->head - n, "%s\n", line);
        n = mx_min_size(n + (size_t)wrote, sizeof r->head - 1);
    }
    return false;
}

/* One chunk of a chunked body into out; 0 = last chunk, -1 = cut off, else its size. */
MX_UNUSED static long client_chunk(int fd, mx_buf *out, uint64_t end_us)
{
    char line[64];
    if (!client_line(fd, line, sizeof line, end_us)) {
        return -1;
    }
    char *end;
    unsigned long n = strtoul(line, &end, 16);
    if (end == line || !client_bytes(fd, out, n, end_us) ||
        !client_line(fd, line, sizeof line, end_us) || line[0] != '\0')
    {
        return -1;
    }
    return (long)n;
}

MX_UNUSED static void client_read(int fd, client_reply *r, bool is_head)
{
    uint64_t start = mx_now_us(), end_us = client_end_us();
    memset(r, 0, sizeof *r);
    do {
        if (!client_head(fd, r, end_us)) {
            r->status = 0;
            return;
        }
    } while (r->status == 100);
    const char *length = head_value(r->head, "content-length");
    if (is_head || r->status == 204) {
        r->is_whole = true;
    } else if (length != NULL) {
        r->is_whole = client_bytes(fd, &r->body, (size_t)atoll(length), end_us);
    } else if (head_value(r->head, "transfer-encoding") != NULL) {
        long n;
        while ((n = client_chunk(fd, &r->body, end_us)) > 0) {
        }
        r->is_whole = n == 0;
    } else {
        char c;
        int rc;
        while ((rc = client_byte(fd, &c, end_us)) == 1) {
            mx_buf_char(&r->body, c);
        }
        r->is_whole = rc == 0;
    }
    if (r->body.ptr == NULL) {
        mx_buf_str(&r->body, "");
    }
    r->us = mx_now_us() - start;
}

MX_UNUSED static void reply_free(client_reply *r)
{
    mx_buf_free(&r->body);
}

/* Waits for the peer to close: 0 = it did (or reset), -2 = not within ms. Discards what comes. */
MX_UNUSED static int client_wait_close(int fd, unsigned ms)
{
    uint64_t end = mx_now_us() + (uint64_t)ms * 1000;
    char c;
    int rc;
    while ((rc = client_byte(fd, &c, end)) == 1) {
    }
    return rc == -2 ? -2 : 0;
}

/* Sends text on a new connection, reads one answer, closes. */
MX_UNUSED static void client_once(const mx_http *h, const char *text, client_reply *r)
{
    int fd = client_connect(h);
    client_text(fd, text);
    client_read(fd, r, false);
    close(fd);
}

#define assert_status(r, want)                                                                     \
    do {                                                                                           \
        if ((r)->status != (want)) {                                                               \
            print_message("expected status %d, came %d: %s%s\n", (want), (r)->status, (r)->head,   \
                          (r)->body.ptr ? (r)->body.ptr : "");                                     \
        }                                                                                          \
        assert_int_equal((r)->status, (want));                                                     \
    } while (0)

#endif
