/* SPDX-License-Identifier: MIT
 *
 * The decoder follows table 3-7 of the Unicode standard: the allowed range of the second byte
 * depends on the first, all later bytes are 80..BF.
 */
#include "base/utf8.h"

/* How many bytes a sequence with this lead has (0: no lead), and the range of its second byte. */
static size_t lead_info(uint8_t lead, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        *lo = lead == 0xE0 ? 0xA0 : 0x80;
        *hi = lead == 0xED ? 0x9F : 0xBF;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        *lo = lead == 0xF0 ? 0x90 : 0x80;
        *hi = lead == 0xF4 ? 0x8F : 0xBF;
        return 4;
    }
    return 0;
}

/* Bytes of the well-formed beginning of the sequence at p; *whole says that nothing is missing. */
static size_t sequence(const uint8_t *p, size_t n, bool *whole)
{
    uint8_t lo, hi;
    size_t len = lead_info(p[0], &lo, &hi);
    *whole = false;
    if (len == 0) {
        return 1;
    }
    size_t i = 1;
    while (i < len && i < n && p[i] >= lo && p[i] <= hi) {
        i++;
        lo = 0x80;
        hi = 0xBF;
    }
    *whole = i == len;
    return i;
}

size_t mx_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const uint8_t *p = (const uint8_t *)s;
    bool whole;
    size_t len = sequence(p, n, &whole);
    if (!whole) {
        *cp = MX_UTF8_REPLACEMENT;
    } else if (len == 1) {
        *cp = p[0];
    } else {
        uint32_t v = p[0] & (0x7Fu >> len);
        for (size_t i = 1; i < len; i++) {
            v = v << 6 | (p[i] & 0x3Fu);
        }
        *cp = v;
    }
    return len;
}

size_t mx_utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool mx_utf8_valid(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    for (size_t i = 0; i < n;) {
        bool whole;
        size_t len = sequence(p + i, n - i, &whole);
        if (!whole) {
            return false;
        }
        i += len;
    }
    return true;
}

size_t mx_utf8_complete(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    /* A sequence has at most 4 bytes, so an unfinished one starts within the last 3. */
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        uint8_t lo, hi;
        size_t len = lead_info(p[n - back], &lo, &hi);
        if (len > 1) {
            bool whole;
            size_t have = sequence(p + n - back, back, &whole);
            return !whole && have == back ? n - back : n;
        }
        if (len == 1) {
            return n;
        }
    }
    return n;
}

void mx_utf8_append_clean(mx_buf *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = mx_utf8_decode(p + i, n - i, &cp);
        char enc[4];
        mx_buf_append(out, enc, mx_utf8_encode(cp, enc));
        i += len;
    }
}
