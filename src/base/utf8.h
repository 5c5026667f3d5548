/* SPDX-License-Identifier: MIT
 *
 * utf8.h: well-formed UTF-8 only (no overlong forms, no surrogates, nothing above U+10FFFF).
 * Pure functions, any thread.
 */
#ifndef MX_UTF8_H
#define MX_UTF8_H

#include "base/buf.h"

enum { MX_UTF8_REPLACEMENT = 0xFFFD };

/* Decodes one code point at p (n >= 1 bytes remain). Returns the bytes taken. An ill-formed
 * sequence gives U+FFFD and the length of its maximal subpart (Unicode 15, section 3.9, U+FFFD
 * substitution of maximal subparts), so every ill-formed sequence becomes one replacement. */
size_t mx_utf8_decode(const char *p, size_t n, uint32_t *cp);

/* Writes cp (a scalar value) into out, returns 1..4. */
size_t mx_utf8_encode(uint32_t cp, char out[4]);

bool mx_utf8_valid(const char *p, size_t n);

/* The length of the longest prefix that does not end inside a sequence that more bytes could still
 * complete. What is behind it must be held back by a streamer. */
size_t mx_utf8_complete(const char *p, size_t n);

/* Appends p with each ill-formed sequence replaced by U+FFFD. */
void mx_utf8_append_clean(mx_buf *out, const char *p, size_t n);

#endif
