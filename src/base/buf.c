/* SPDX-License-Identifier: MIT
 *
 * The growing buffer. One failure flag instead of a result per append: a renderer makes thousands
 * of appends, and one check at the end cannot be forgotten in the middle.
 */
#include "base/buf.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>

char *mx_buf_reserve(mx_buf *b, size_t n)
{
    size_t need;
    if (b->failed || !mx_add_ok(b->len, n, &need) || need == SIZE_MAX ||
        (b->max_bytes != 0 && need > b->max_bytes))
    {
        b->failed = true;
        return NULL;
    }
    void *p = b->ptr;
    if (!mx_grow(&p, &b->cap, need + 1, 1)) {
        b->failed = true;
        return NULL;
    }
    b->ptr = p;
    return b->ptr + b->len;
}

void mx_buf_append(mx_buf *b, const void *bytes, size_t n)
{
    char *to = mx_buf_reserve(b, n);
    if (to != NULL) {
        if (n > 0) {
            memcpy(to, bytes, n);
        }
        b->len += n;
        b->ptr[b->len] = '\0';
    }
}

void mx_buf_str(mx_buf *b, const char *c_string)
{
    mx_buf_append(b, c_string, strlen(c_string));
}

void mx_buf_char(mx_buf *b, char c)
{
    mx_buf_append(b, &c, 1);
}

void mx_buf_printf(mx_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *to = n < 0 ? NULL : mx_buf_reserve(b, (size_t)n);
    if (to != NULL) {
        vsnprintf(to, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else {
        b->failed = true;
    }
    va_end(again);
    va_end(ap);
}

void mx_buf_clear(mx_buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->ptr != NULL) {
        b->ptr[0] = '\0';
    }
}

void mx_buf_free(mx_buf *b)
{
    mx_free(b->ptr);
    *b = (mx_buf){.max_bytes = b->max_bytes};
}
