/* SPDX-License-Identifier: MIT
 *
 * Starting and stopping. The order of stopping matters: first no new requests, then the workers
 * (their running handlers end), then the loop (which tells every source that it is over). The
 * server object itself lives until the last exchange is let go: a late mx_http_wake is harmless.
 */
#include "base/log.h"
#include "base/mem.h"
#include "http_internal.h"

#include <errno.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void free_list(const char *const *list, size_t n)
{
    for (size_t i = 0; list != NULL && i < n; i++) {
        mx_free((void *)(uintptr_t)list[i]);
    }
    mx_free((void *)(uintptr_t)list);
}

static bool copy_list(const char *const **list, size_t *n)
{
    const char *const *from = *list;
    size_t count = *n;
    *list = NULL;
    *n = 0;
    if (count == 0) {
        return true;
    }
    const char **to = mx_calloc(count, sizeof *to);
    if (to == NULL) {
        return false;
    }
    *list = to;
    *n = count;
    for (size_t i = 0; i < count; i++) {
        to[i] = mx_strdup(from[i]);
        if (to[i] == NULL) {
            return false;
        }
    }
    return true;
}

void http_free(mx_http *h)
{
    if (atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < h->n_listeners; i++) {
        if (h->listeners[i].fd >= 0) {
            close(h->listeners[i].fd);
        }
    }
    if (h->mhd != NULL) {
        MHD_stop_daemon(h->mhd);
    }
    if (h->wake_fd >= 0) {
        close(h->wake_fd);
    }
    if (h->ep >= 0) {
        close(h->ep);
    }
    pthread_mutex_destroy(&h->wake_lock);
    pthread_mutex_destroy(&h->work_lock);
    pthread_cond_destroy(&h->work_cond);
    free_list(h->cfg.origins, h->cfg.n_origins);
    free_list(h->cfg.hosts, h->cfg.n_hosts);
    free_list(h->cfg.api_keys, h->cfg.n_api_keys);
    free_list(h->cfg.open_paths, h->cfg.n_open_paths);
    mx_free((void *)(uintptr_t)h->cfg.host);
    mx_free((void *)(uintptr_t)h->cfg.admin_key);
    mx_free(h->key_hashes);
    mx_free(h->conn_of_fd);
    mx_free(h);
}

static void set_default(unsigned *value, unsigned default_value)
{
    if (*value == 0) {
        *value = default_value;
    }
}

static bool copy_config(mx_http *h, const mx_http_config *cfg)
{
    mx_http_config *c = &h->cfg;
    *c = *cfg;
    set_default(&c->n_workers, 2);
    set_default(&c->max_connections, 1024);
    set_default(&c->max_waiting, 256);
    set_default(&c->header_timeout_ms, 10000);
    set_default(&c->body_timeout_ms, 30000);
    set_default(&c->idle_timeout_ms, 120000);
    set_default(&c->send_timeout_ms, HTTP_SEND_TIMEOUT_MS);
    if (c->max_body_bytes == 0) {
        c->max_body_bytes = (size_t)64 << 20;
    }
    if (c->max_header_bytes == 0) {
        c->max_header_bytes = (size_t)32 << 10;
    }
    c->host = mx_strdup(cfg->host);
    /* All run, whatever fails, so that every pointer of the copy is the copy's own. */
    bool is_good = c->host != NULL;
    if (cfg->admin_key != NULL) {
        c->admin_key = mx_strdup(cfg->admin_key);
        h->admin_hash = mx_sha256_of(cfg->admin_key, strlen(cfg->admin_key));
        is_good = c->admin_key != NULL && is_good;
    }
    is_good = copy_list(&c->origins, &c->n_origins) && is_good;
    is_good = copy_list(&c->hosts, &c->n_hosts) && is_good;
    is_good = copy_list(&c->api_keys, &c->n_api_keys) && is_good;
    is_good = copy_list(&c->open_paths, &c->n_open_paths) && is_good;
    h->key_hashes = mx_calloc(c->n_api_keys, sizeof *h->key_hashes);
    if (!is_good || h->key_hashes == NULL) {
        return false;
    }
    for (size_t i = 0; i < c->n_api_keys; i++) {
        h->key_hashes[i] = mx_sha256_of(c->api_keys[i], strlen(c->api_keys[i]));
    }
    return true;
}

/* A write to a closed socket must be an error, not a signal that ends the process. */
static void ignore_sigpipe(void)
{
    struct sigaction old;
    if (sigaction(SIGPIPE, NULL, &old) == 0 && old.sa_handler == SIG_DFL) {
        struct sigaction ignore = {.sa_handler = SIG_IGN};
        sigaction(SIGPIPE, &ignore, NULL);
    }
}

static bool watch(mx_http *h, int fd, http_tag *tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    return epoll_ctl(h->ep, EPOLL_CTL_ADD, fd, &event) == 0;
}

static mx_err start(mx_http *h, mx_errbuf *eb)
{
    h->ep = epoll_create1(EPOLL_CLOEXEC);
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->ep < 0 || h->wake_fd < 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot create the event loop");
    }
    MX_TRY(http_listen(h, eb));
    MX_TRY(http_request_start(h, eb));
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    h->mhd_tag = HTTP_TAG_MHD;
    h->wake_tag = HTTP_TAG_WAKE;
    if (info == NULL || !watch(h, info->epoll_fd, &h->mhd_tag) ||
        !watch(h, h->wake_fd, &h->wake_tag))
    {
        return mx_fail(eb, MX_E_IO, "cannot set up the event loop");
    }
    MX_TRY(http_work_start(h, eb));
    int rc = pthread_create(&h->loop, NULL, http_loop_main, h);
    if (rc != 0) {
        return mx_fail_errno(eb, MX_E_IO, rc, "cannot start the HTTP thread");
    }
    h->is_loop_started = true;
    return MX_OK;
}

mx_err mx_http_start(mx_http **out, const mx_http_config *cfg, mx_errbuf *eb)
{
    *out = NULL;
    mx_http *h = mx_calloc(1, sizeof *h);
    if (h == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the HTTP server");
    }
    atomic_init(&h->refs, 1);
    h->ep = h->wake_fd = -1;
    h->next_deadline_us = UINT64_MAX;
    pthread_mutex_init(&h->wake_lock, NULL);
    pthread_mutex_init(&h->work_lock, NULL);
    pthread_cond_init(&h->work_cond, NULL);
    ignore_sigpipe();
    mx_err err = copy_config(h, cfg) ? start(h, eb)
                                     : mx_fail(eb, MX_E_NOMEM, "no memory for the HTTP server");
    if (err != MX_OK) {
        mx_http_stop(h);
        return err;
    }
    *out = h;
    return MX_OK;
}

uint16_t mx_http_port(const mx_http *h)
{
    return h->port;
}

size_t mx_http_n_active(mx_http *h)
{
    return atomic_load(&h->n_active);
}

static void ring(mx_http *h)
{
    uint64_t one = 1;
    if (write(h->wake_fd, &one, sizeof one) != (ssize_t)sizeof one) {
        mx_log(MX_LOG_ERROR, "http: event=wake_failed reason=\"%s\"", strerror(errno));
    }
}

void mx_http_quiesce(mx_http *h)
{
    atomic_store(&h->wants_quiesce, true);
    ring(h);
}

void mx_http_stop(mx_http *h)
{
    if (h == NULL) {
        return;
    }
    if (h->is_loop_started) {
        mx_http_quiesce(h);
    }
    http_work_stop(h);
    if (h->is_loop_started) {
        atomic_store(&h->wants_stop, true);
        ring(h);
        pthread_join(h->loop, NULL);
    }
    http_free(h);
}
