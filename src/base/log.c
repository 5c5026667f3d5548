/* SPDX-License-Identifier: MIT
 *
 * The log. A line is formatted on the stack and leaves in one write, which needs no lock: the
 * kernel keeps short writes to a terminal, file (O_APPEND) or pipe whole.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { LINE_CAP = 2048 };

static atomic_int max_level = MX_LOG_INFO;

void mx_log_set_level(mx_log_level level)
{
    atomic_store(&max_level, (int)level);
}

bool mx_log_enabled(mx_log_level level)
{
    return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed);
}

void mx_log(mx_log_level level, const char *fmt, ...)
{
    if (!mx_log_enabled(level)) {
        return;
    }
    static const char *const prefix[] = {"error: ", "warning: ", "", ""};
    char line[LINE_CAP];
    int n = snprintf(line, sizeof line, "[mtplx] %s", prefix[level]);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
    va_end(ap);
    if (m < 0) {
        return;
    }
    size_t len = mx_min_size((size_t)n + (size_t)m, sizeof line - 2);
    line[len++] = '\n';
    for (size_t done = 0; done < len;) {
        ssize_t w = write(STDERR_FILENO, line + done, len - done);
        if (w <= 0) {
            return; /* a log that cannot be written must not stop the server */
        }
        done += (size_t)w;
    }
}

const char *mx_log_safe(char *out, size_t cap, const char *s, size_t len)
{
    size_t n = mx_min_size(len, cap - 1);
    for (size_t i = 0; i < n; i++) {
        out[i] = s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?';
    }
    out[n] = '\0';
    return out;
}
