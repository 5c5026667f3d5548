/* SPDX-License-Identifier: MIT
 *
 * The smallest HTTP client that does: it asks for the connection to be closed behind the answer, so
 * the answer ends where the connection does, and Content-Length tells whether all of it came. The
 * server that it talks to is ours and answers JSON in one piece.
 */
#include "cli/cli_post.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { TIMEOUT_S = 60, MAX_ANSWER = 64 << 20 };

typedef struct address {
    char host[256], port[8];
    bool is_v6;
} address;

static mx_err parse_url(const char *url, address *a, mx_errbuf *eb)
{
    static const char scheme[] = "http://";
    const char *s = url + sizeof scheme - 1;
    if (strncasecmp(url, scheme, sizeof scheme - 1) != 0) {
        return mx_fail(eb, MX_E_INVALID, "--url is \"%.100s\"; it must be like "
                       "http://127.0.0.1:8000", url);
    }
    a->is_v6 = *s == '[';
    s += a->is_v6;
    size_t n = strcspn(s, a->is_v6 ? "]" : ":/");
    const char *rest = s + n + (a->is_v6 && s[n] == ']');
    snprintf(a->port, sizeof a->port, "80");
    if (*rest == ':') {
        size_t digits = strspn(rest + 1, "0123456789");
        bool fits = digits < sizeof a->port && strtoul(rest + 1, NULL, 10) <= UINT16_MAX;
        snprintf(a->port, sizeof a->port, "%.*s", fits ? (int)digits : 0, rest + 1);
        rest += 1 + digits;
    }
    if (n == 0 || n >= sizeof a->host || (*rest != '\0' && strcmp(rest, "/") != 0) ||
        a->port[0] == '\0')
    {
        return mx_fail(eb, MX_E_INVALID, "--url is \"%.100s\"; it must be like "
                       "http://127.0.0.1:8000", url);
    }
    snprintf(a->host, sizeof a->host, "%.*s", (int)n, s);
    return MX_OK;
}

mx_err mx_cli_check_url(const char *url, mx_errbuf *eb)
{
    address a;
    return parse_url(url, &a, eb);
}

static int connect_to(const address *a, mx_errbuf *eb)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(a->host, a->port, &hints, &list);
    if (rc != 0) {
        mx_fail(eb, MX_E_NOT_FOUND, "cannot find the host %s: %s", a->host, gai_strerror(rc));
        return -1;
    }
    int fd = -1, e = 0;
    for (const struct addrinfo *i = list; i != NULL && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, i->ai_socktype | SOCK_CLOEXEC, i->ai_protocol);
        if (fd >= 0 && connect(fd, i->ai_addr, i->ai_addrlen) != 0) {
            e = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        mx_fail_errno(eb, MX_E_IO, e, "no server answers at http://%s%s%s:%s (is it running? --url "
                      "names another)", a->is_v6 ? "[" : "", a->host, a->is_v6 ? "]" : "", a->port);
        return -1;
    }
    struct timeval limit = {.tv_sec = TIMEOUT_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return fd;
}

static bool send_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent <= 0) {
            return false;
        }
        bytes += sent;
        n -= (size_t)sent;
    }
    return true;
}

static mx_err read_answer(int fd, mx_buf *all, mx_errbuf *eb)
{
    char block[16384];
    for (;;) {
        ssize_t n = recv(fd, block, sizeof block, 0);
        if (n == 0) {
            return MX_OK;
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return mx_fail_errno(eb, MX_E_IO, errno, "the server's answer did not come");
        }
        mx_buf_append(all, block, (size_t)n);
        if (all->failed || all->len > MAX_ANSWER) {
            return mx_fail(eb, MX_E_LIMIT, "the server's answer is too long");
        }
    }
}

/* Status and body of a whole answer. */
static mx_err split(mx_buf *all, unsigned *status, mx_buf *body, mx_errbuf *eb)
{
    mx_buf_char(all, '\0'); /* for the string functions below */
    const char *end = all->failed ? NULL : strstr(all->ptr, "\r\n\r\n");
    if (end == NULL || strncmp(all->ptr, "HTTP/1.", 7) != 0
        || sscanf(all->ptr + 8, " %3u", status) != 1)
    {
        return mx_fail(eb, MX_E_FORMAT, "what answers there does not speak HTTP");
    }
    const char *text = end + 4;
    size_t n = all->len - 1 - (size_t)(text - all->ptr);
    const char *length = strcasestr(all->ptr, "\r\ncontent-length:");
    if (length == NULL || length > end || strtoull(length + 17, NULL, 10) != n) {
        return mx_fail(eb, MX_E_FORMAT, "the server's answer is not whole");
    }
    mx_buf_append(body, text, n);
    return body->failed ? mx_fail(eb, MX_E_NOMEM, "out of memory") : MX_OK;
}

mx_err mx_cli_post(const char *url, const char *path, const char *headers, mx_str json,
                   unsigned *status, mx_buf *body, mx_errbuf *eb)
{
    address a = {.is_v6 = false};
    MX_TRY(parse_url(url, &a, eb));
    int fd = connect_to(&a, eb);
    if (fd < 0) {
        return MX_E_IO;
    }
    mx_buf b = {0};
    mx_buf_printf(&b, "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nConnection: close\r\n"
                  "Content-Type: application/json\r\nContent-Length: %zu\r\n%s\r\n", path,
                  a.is_v6 ? "[" : "", a.host, a.is_v6 ? "]" : "", a.port, json.len, headers);
    mx_buf_append(&b, json.ptr, json.len);
    mx_err err = MX_OK;
    if (b.failed) {
        err = mx_fail(eb, MX_E_NOMEM, "out of memory");
    } else if (!send_all(fd, b.ptr, b.len)) {
        err = mx_fail_errno(eb, MX_E_IO, errno, "cannot send the request");
    }
    mx_buf_clear(&b);
    if (err == MX_OK) {
        err = read_answer(fd, &b, eb);
    }
    if (err == MX_OK) {
        err = split(&b, status, body, eb);
    }
    close(fd);
    mx_buf_free(&b);
    return err;
}
