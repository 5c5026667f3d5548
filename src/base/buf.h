/* SPDX-License-Identifier: MIT
 *
 * buf.h: a growing byte buffer with sticky failure.
 *
 * Owned by its holder; not thread-safe. Initialise with {0}. After an allocation failure or after
 * max_bytes is reached every further append is ignored and `failed` stays set, so a writer appends
 * freely and checks once at the end.
 */
#ifndef MX_BUF_H
#define MX_BUF_H

#include "base/err.h"

typedef struct mx_buf {
    char *ptr;        /* len bytes, then a NUL that does not count (once anything was appended) */
    size_t len;
    size_t cap;
    size_t max_bytes; /* 0 = no limit */
    bool failed;
} mx_buf;

void mx_buf_append(mx_buf *b, const void *bytes, size_t n);
void mx_buf_str(mx_buf *b, const char *c_string);
void mx_buf_char(mx_buf *b, char c);
void mx_buf_printf(mx_buf *b, const char *fmt, ...) MX_PRINTF(2, 3);
/* Makes room for n more bytes and returns where they go; the caller then adds to len. NULL = failed. */
char *mx_buf_reserve(mx_buf *b, size_t n);
void mx_buf_clear(mx_buf *b); /* len 0, memory kept, `failed` cleared */
void mx_buf_free(mx_buf *b);  /* back to {0}, the limit kept */

MX_INLINE mx_str mx_buf_view(const mx_buf *b)
{
    return (mx_str){b->ptr, b->len};
}

#endif
