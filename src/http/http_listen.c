/* SPDX-License-Identifier: MIT
 *
 * The listening sockets. They are ours and not libmicrohttpd's, so that one daemon serves both
 * address families and the connection limit can answer instead of leaving clients waiting.
 *
 * On a loopback host a second one listens on [::1], because clients may resolve "localhost" to it
 * first. Where there is no IPv6, or where its port is taken, the first one has to do.
 */
#include "base/log.h"
#include "http_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT_TRIES = 16 };

static int open_listener(const struct sockaddr *addr, socklen_t len, int *saved_errno)
{
    int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        *saved_errno = errno;
        return -1;
    }
    int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (addr->sa_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    }
    if (bind(fd, addr, len) != 0 || listen(fd, 1024) != 0) {
        *saved_errno = errno;
        close(fd);
        return -1;
    }
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage addr = {0};
    socklen_t len = sizeof addr;
    getsockname(fd, (struct sockaddr *)&addr, &len);
    if (addr.ss_family == AF_INET6) {
        return ntohs(((struct sockaddr_in6 *)&addr)->sin6_port);
    }
    return ntohs(((struct sockaddr_in *)&addr)->sin_port);
}

static int open_loopback6(uint16_t port, int *saved_errno)
{
    struct sockaddr_in6 addr = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    addr.sin6_addr = in6addr_loopback;
    return open_listener((struct sockaddr *)&addr, sizeof addr, saved_errno);
}

static mx_err fail_bind(const mx_http *h, int saved_errno, mx_errbuf *eb)
{
    if (saved_errno == EADDRINUSE) {
        return mx_fail(eb, MX_E_BUSY,
                       "port %u on %s is in use by another program: stop that one (it may be a "
                       "second mtplx), or choose another port with --port N",
                       h->cfg.port, h->cfg.host);
    }
    if (saved_errno == EACCES) {
        return mx_fail(eb, MX_E_DENIED,
                       "port %u needs more rights than this user has: choose one above 1023 with "
                       "--port N",
                       h->cfg.port);
    }
    if (saved_errno == EADDRNOTAVAIL) {
        return mx_fail(eb, MX_E_INVALID,
                       "'%s' is not an address of this machine: give one that is with --host ADDR",
                       h->cfg.host);
    }
    return mx_fail_errno(eb, MX_E_IO, saved_errno, "cannot listen on %s port %u", h->cfg.host,
                         h->cfg.port);
}

static mx_err open_first(mx_http *h, int *out_fd, mx_errbuf *eb)
{
    const char *host = h->cfg.host;
    char service[8], bare[64];
    snprintf(service, sizeof service, "%u", h->cfg.port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    if (strcmp(host, "localhost") == 0) {
        hints.ai_family = AF_INET;
        host = "127.0.0.1";
    }
    size_t n = strlen(host);
    if (n > 2 && n < sizeof bare && host[0] == '[' && host[n - 1] == ']') { /* as in a URL */
        snprintf(bare, sizeof bare, "%.*s", (int)(n - 2), host + 1);
        host = bare;
    }
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) {
        return mx_fail(eb, MX_E_INVALID, "the host '%s' cannot be resolved (%s): give an address "
                       "with --host ADDR", h->cfg.host, gai_strerror(rc));
    }
    int saved_errno = 0;
    int fd = -1;
    for (struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = open_listener(a->ai_addr, a->ai_addrlen, &saved_errno);
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return fail_bind(h, saved_errno, eb);
    }
    *out_fd = fd;
    return MX_OK;
}

static mx_err add_listener(mx_http *h, int fd, mx_errbuf *eb)
{
    http_listener *l = &h->listeners[h->n_listeners++];
    *l = (http_listener){HTTP_TAG_LISTEN, fd};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    if (epoll_ctl(h->ep, EPOLL_CTL_ADD, fd, &event) != 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot watch the listening socket");
    }
    return MX_OK;
}

mx_err http_listen(mx_http *h, mx_errbuf *eb)
{
    bool wants6 = strcmp(h->cfg.host, "127.0.0.1") == 0 || strcmp(h->cfg.host, "localhost") == 0;
    int fd = -1, fd6 = -1;
    int saved_errno = 0;
    for (int i = 0; i < PORT_TRIES; i++) {
        MX_TRY(open_first(h, &fd, eb));
        h->port = port_of(fd);
        fd6 = wants6 ? open_loopback6(h->port, &saved_errno) : -1;
        /* Only a port chosen by the system can be chosen again. */
        if (!wants6 || fd6 >= 0 || h->cfg.port != 0 || saved_errno != EADDRINUSE ||
            i == PORT_TRIES - 1)
        {
            break;
        }
        close(fd);
    }
    if (wants6 && fd6 < 0 && saved_errno == EADDRINUSE) {
        mx_log(MX_LOG_WARN, "http: event=ipv6_port_taken port=%u: another program answers on "
               "[::1]; use 127.0.0.1 instead of localhost", h->port);
    }
    mx_err err = add_listener(h, fd, eb);
    if (fd6 >= 0 && err == MX_OK) {
        err = add_listener(h, fd6, eb);
    } else if (fd6 >= 0) {
        close(fd6);
    }
    return err;
}
