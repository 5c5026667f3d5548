/* SPDX-License-Identifier: MIT
 *
 * Character properties. The C library's depend on the locale, and templates were written against
 * Python's: so the tables are Python's, searched by bisection.
 */
#include "text/value_internal.h"
#include "text/value_ucd.h"

static bool in_ranges(const uc_range *t, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t[mid].last < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && t[lo].first <= cp;
}

bool mx_uc_is_space(uint32_t cp)
{
    if (cp < 0x80) {
        return cp == ' ' || (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1F);
    }
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool mx_uc_is_line_end(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 ||
           cp == 0x2028 || cp == 0x2029;
}

bool mx_uc_is_alpha(uint32_t cp)
{
    return in_ranges(alpha_ranges, MX_COUNT(alpha_ranges), cp);
}

bool mx_uc_is_digit(uint32_t cp)
{
    return in_ranges(digit_ranges, MX_COUNT(digit_ranges), cp);
}

bool mx_uc_is_printable(uint32_t cp)
{
    return !in_ranges(hidden_ranges, MX_COUNT(hidden_ranges), cp);
}

static size_t special(const uc_special *t, size_t n, uint32_t cp, uint32_t out[3])
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t[mid].cp < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == n || t[lo].cp != cp) {
        return 0;
    }
    size_t k = 0;
    while (k < 3 && t[lo].to[k] != 0) {
        out[k] = t[lo].to[k];
        k++;
    }
    return k;
}

static uint32_t simple(const uc_case_range *t, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t[mid].last < cp) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    if (lo == n || t[lo].first > cp || (cp - t[lo].first) % (uint32_t)t[lo].stride != 0) {
        return cp;
    }
    return (uint32_t)((int32_t)cp + t[lo].delta);
}

size_t mx_uc_case(uint32_t cp, int which, uint32_t out[3])
{
    out[0] = cp;
    if (cp < 0x80) {
        if (which == MX_CASE_LOWER && cp >= 'A' && cp <= 'Z') {
            out[0] = cp + 32;
        } else if (which != MX_CASE_LOWER && cp >= 'a' && cp <= 'z') {
            out[0] = cp - 32;
        }
        return 1;
    }
    size_t n = 0;
    if (which == MX_CASE_LOWER) {
        n = special(lower_specials, MX_COUNT(lower_specials), cp, out);
        out[0] = n > 0 ? out[0] : simple(lower_ranges, MX_COUNT(lower_ranges), cp);
        return n > 0 ? n : 1;
    }
    if (which == MX_CASE_TITLE) {
        n = special(title_specials, MX_COUNT(title_specials), cp, out);
    }
    if (n == 0) {
        n = special(upper_specials, MX_COUNT(upper_specials), cp, out);
    }
    out[0] = n > 0 ? out[0] : simple(upper_ranges, MX_COUNT(upper_ranges), cp);
    return n > 0 ? n : 1;
}

bool mx_uc_is_upper(uint32_t cp)
{
    uint32_t out[3];
    return mx_uc_case(cp, MX_CASE_LOWER, out) != 1 || out[0] != cp;
}

bool mx_uc_is_lower(uint32_t cp)
{
    uint32_t out[3];
    return mx_uc_case(cp, MX_CASE_UPPER, out) != 1 || out[0] != cp;
}
