/* SPDX-License-Identifier: MIT
 *
 * err.h: error codes and the text that goes with them.
 *
 * Everything that can fail returns mx_err; 0 is success. The detail (what, where, what to do) goes
 * into an errbuf that the caller supplies, or NULL where the code alone is enough. A library
 * function never prints and never exits; a programmer's error is an assert, bad input is a code.
 */
#ifndef MX_ERR_H
#define MX_ERR_H

#include "base/base.h"

typedef enum mx_err {
    MX_OK = 0,
    MX_E_NOMEM,       /* an allocation failed */
    MX_E_IO,          /* a system call on a file or socket failed */
    MX_E_FORMAT,      /* bytes from outside do not follow their format */
    MX_E_CORRUPT,     /* bytes of our own do not match their checksum or identity */
    MX_E_UNSUPPORTED, /* well formed, but not something this build can do */
    MX_E_INVALID,     /* a caller's or user's argument is out of range */
    MX_E_LIMIT,       /* a stated limit was exceeded */
    MX_E_NOT_FOUND,   /* no such thing */
    MX_E_FULL,        /* a bounded queue or pool has no room now */
    MX_E_BUSY,        /* held by somebody else now */
    MX_E_CANCELLED,   /* the caller asked to stop */
    MX_E_DENIED,      /* permission or key refused */
    MX_E_NONFINITE,   /* arithmetic gave an infinity or a NaN */
    MX_E_COUNT
} mx_err;

typedef struct mx_errbuf {
    char text[512]; /* NUL-terminated, cut if longer; a sentence for a person */
} mx_errbuf;

/* The short name of a code, e.g. "corrupt". Never NULL. */
const char *mx_err_name(mx_err e);

/* Writes the formatted text into eb (may be NULL) and returns `code`. */
mx_err mx_fail(mx_errbuf *eb, mx_err code, const char *fmt, ...) MX_PRINTF(3, 4);

/* Like mx_fail, with ": <strerror(saved_errno)>" behind the text. */
mx_err mx_fail_errno(mx_errbuf *eb, mx_err code, int saved_errno, const char *fmt, ...)
    MX_PRINTF(4, 5);

/* Returns from the calling function when `expr` is not MX_OK. */
#define MX_TRY(expr)                                                                               \
    do {                                                                                           \
        mx_err mx_try_err_ = (expr);                                                               \
        if (mx_try_err_ != MX_OK) {                                                                \
            return mx_try_err_;                                                                    \
        }                                                                                          \
    } while (0)

#endif
