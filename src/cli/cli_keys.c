/* SPDX-License-Identifier: MIT
 *
 * Keys from files. Nothing here logs or repeats a key, not even a wrong one.
 */
#include "cli/cli_keys.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_FILE_MAX_BYTES = 1 << 20 };

static mx_err read_file(const char *path, mx_buf *out, mx_errbuf *eb)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        int e = errno;
        if (fd >= 0) {
            close(fd);
        }
        return mx_fail_errno(eb, MX_E_NOT_FOUND, e, "--api-key-file %.200s", path);
    }
    /* The standard of the cache key (cold_key.c): these keys are worth as much. */
    bool is_private = (st.st_uid == geteuid() || st.st_uid == 0) && (st.st_mode & 077) == 0;
    if (!S_ISREG(st.st_mode) || st.st_size > KEY_FILE_MAX_BYTES || !is_private) {
        close(fd);
        return mx_fail(eb, MX_E_INVALID, "--api-key-file %.200s must be a regular file of this user, of "
                       "at most 1 MiB, that nobody else can read or write: chmod 600", path);
    }
    char block[4096];
    ssize_t n;
    while ((n = read(fd, block, sizeof block)) > 0) {
        mx_buf_append(out, block, (size_t)n);
    }
    int e = errno;
    close(fd);
    if (n < 0) {
        return mx_fail_errno(eb, MX_E_IO, e, "--api-key-file %.200s", path);
    }
    return out->failed ? mx_fail(eb, MX_E_NOMEM, "out of memory") : MX_OK;
}

/* A key travels in a header: bytes that cannot would make it one that never fits. */
static bool is_key(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] <= 0x20 || s[i] == 0x7f) {
            return false;
        }
    }
    return n > 0;
}

static mx_err add_lines(mx_settings *s, mx_str text, mx_errbuf *eb)
{
    size_t at = 0, n_line = 0;
    while (at < text.len) {
        const char *line = text.ptr + at;
        const char *end = memchr(line, '\n', text.len - at);
        size_t len = end == NULL ? text.len - at : (size_t)(end - line);
        at += len + 1;
        n_line++;
        while (len > 0 && strchr(" \t\r", line[len - 1]) != NULL) {
            len--;
        }
        if (len == 0 || line[0] == '#') {
            continue;
        }
        if (!is_key(line, len)) {
            return mx_fail(eb, MX_E_INVALID, "line %zu of --api-key-file is not a key: it has a "
                           "space or a control character in it", n_line);
        }
        mx_string_list *l = &s->api_keys;
        char *copy = mx_strndup(line, len);
        if (copy == NULL || !mx_grow((void **)&l->items, &l->cap, l->n + 1, sizeof *l->items)) {
            mx_free(copy);
            return mx_fail(eb, MX_E_NOMEM, "out of memory");
        }
        l->items[l->n++] = copy;
    }
    return MX_OK;
}

mx_err mx_cli_check_keys(const mx_settings *s, mx_errbuf *eb)
{
    for (size_t i = 0; i < s->api_keys.n; i++) {
        if (!is_key(s->api_keys.items[i], strlen(s->api_keys.items[i]))) {
            return mx_fail(eb, MX_E_INVALID, "API key number %zu has a space or a control character "
                           "in it: no client could send it", i + 1);
        }
        if (s->admin_key != NULL && strcmp(s->admin_key, s->api_keys.items[i]) == 0) {
            return mx_fail(eb, MX_E_INVALID, "--admin-key is also an API key: take another one, or "
                           "everybody who has it is an administrator");
        }
    }
    if (s->admin_key != NULL && !is_key(s->admin_key, strlen(s->admin_key))) {
        return mx_fail(eb, MX_E_INVALID, "--admin-key has a space or a control character in it: no "
                       "client could send it");
    }
    return MX_OK;
}

mx_err mx_cli_read_api_keys(mx_settings *s, mx_errbuf *eb)
{
    if (s->api_key_file != NULL) {
        mx_buf text = {0};
        size_t n_before = s->api_keys.n;
        mx_err err = read_file(s->api_key_file, &text, eb);
        if (err == MX_OK) {
            err = add_lines(s, mx_buf_view(&text), eb);
        }
        mx_buf_free(&text);
        MX_TRY(err);
        if (s->api_keys.n == n_before) {
            /* An empty file must not open the server to everybody. */
            return mx_fail(eb, MX_E_INVALID, "--api-key-file %.200s has no key in it",
                           s->api_key_file);
        }
    }
    return mx_cli_check_keys(s, eb);
}

mx_err mx_cli_cache_key(const mx_settings *s, const char *cache_dir, mx_hash256 *out,
                        mx_errbuf *eb)
{
    *out = (mx_hash256){{0}};
    if (s->api_keys.n == 0 || s->shared_prefixes) {
        return MX_OK;
    }
    if (s->cache_key_file != NULL) {
        return mx_cold_cache_key(cache_dir, s->cache_key_file, out, eb);
    }
    if (s->ssd_mode != MX_COLD_OFF) {
        mx_errbuf why = {0};
        mx_err err = mx_cold_cache_key(cache_dir, NULL, out, &why);
        if (err == MX_OK) {
            return MX_OK;
        }
        char text[sizeof why.text];
        mx_log(MX_LOG_WARN, "keys: no cache key from the folder of the session cache: %s; what is "
               "stored under API keys will not be found after a restart",
               mx_log_safe(text, sizeof text, why.text, strlen(why.text)));
    }
    if (getrandom(out->b, sizeof out->b, 0) != (ssize_t)sizeof out->b) {
        return mx_fail_errno(eb, MX_E_IO, errno, "no random numbers for the cache key");
    }
    return MX_OK;
}

mx_err mx_cli_read_auth(const char *file, mx_cli_auth *out, mx_errbuf *eb)
{
    mx_hash256 key;
    *out = (mx_cli_auth){.is_on = file != NULL};
    if (file == NULL) {
        return MX_OK;
    }
    MX_TRY(mx_cold_cache_key(NULL, file, &key, eb));
    mx_err err = mx_cold_derive_keys(&key, &out->object_key, &out->root_key);
    return err == MX_OK ? MX_OK : mx_fail(eb, err, "out of memory");
}
