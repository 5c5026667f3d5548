/* SPDX-License-Identifier: MIT
 *
 * Error names and text. One table, checked against the enum at compile time.
 */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const names[] = {
    [MX_OK] = "ok",
    [MX_E_NOMEM] = "no_memory",
    [MX_E_IO] = "io",
    [MX_E_FORMAT] = "format",
    [MX_E_CORRUPT] = "corrupt",
    [MX_E_UNSUPPORTED] = "unsupported",
    [MX_E_INVALID] = "invalid",
    [MX_E_LIMIT] = "limit",
    [MX_E_NOT_FOUND] = "not_found",
    [MX_E_FULL] = "full",
    [MX_E_BUSY] = "busy",
    [MX_E_CANCELLED] = "cancelled",
    [MX_E_DENIED] = "denied",
    [MX_E_NONFINITE] = "non_finite",
};
_Static_assert(MX_COUNT(names) == MX_E_COUNT, "every code has a name");

const char *mx_err_name(mx_err e)
{
    return (unsigned)e < MX_E_COUNT ? names[e] : "unknown";
}

mx_err mx_fail(mx_errbuf *eb, mx_err code, const char *fmt, ...)
{
    if (eb != NULL) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(eb->text, sizeof eb->text, fmt, ap);
        va_end(ap);
    }
    return code;
}

mx_err mx_fail_errno(mx_errbuf *eb, mx_err code, int saved_errno, const char *fmt, ...)
{
    if (eb != NULL) {
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(eb->text, sizeof eb->text, fmt, ap);
        va_end(ap);
        if (n >= 0 && (size_t)n < sizeof eb->text) {
            char reason[128];
            /* The GNU strerror_r may return a static text instead of filling the buffer. */
            const char *r = strerror_r(saved_errno, reason, sizeof reason);
            snprintf(eb->text + n, sizeof eb->text - (size_t)n, ": %s", r);
        }
    }
    return code;
}
