/* SPDX-License-Identifier: MIT
 *
 * base.h: compiler macros, small arithmetic helpers and the string view that every module uses.
 *
 * Nothing here allocates, locks or prints. All functions may be called from any thread.
 */
#ifndef MX_BASE_H
#define MX_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MX_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MX_MUST_CHECK __attribute__((warn_unused_result))
#define MX_UNUSED __attribute__((unused))
#define MX_NOINLINE __attribute__((noinline))
#define MX_INLINE static inline __attribute__((always_inline, unused))
#define MX_LIKELY(x) __builtin_expect(!!(x), 1)
#define MX_PREFETCH(p) __builtin_prefetch(p)
#define MX_PREFETCH_WRITE(p) __builtin_prefetch(p, 1)
#define MX_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define MX_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* A borrowed run of bytes; not NUL-terminated, may hold NUL and ill-formed UTF-8. */
typedef struct mx_str {
    const char *ptr;
    size_t len;
} mx_str;

#define MX_STR(literal) ((mx_str){(literal), sizeof(literal) - 1})

MX_INLINE mx_str mx_str_of(const char *c_string)
{
    return (mx_str){c_string, strlen(c_string)};
}

MX_INLINE bool mx_str_eq(mx_str a, mx_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

/* Checked size arithmetic: false on overflow, *out is then unspecified. */
MX_INLINE MX_MUST_CHECK bool mx_add_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

MX_INLINE MX_MUST_CHECK bool mx_mul_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Rounds n up to a multiple of `align` (a power of two); the caller knows it cannot overflow. */
MX_INLINE size_t mx_round_up(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

MX_INLINE size_t mx_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

MX_INLINE size_t mx_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Explicit little-endian accessors: the only way integers cross a file boundary. */
MX_INLINE uint16_t mx_get_le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (uint16_t)p[1] << 8);
}

MX_INLINE uint32_t mx_get_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

MX_INLINE uint64_t mx_get_le64(const uint8_t *p)
{
    return (uint64_t)mx_get_le32(p) | (uint64_t)mx_get_le32(p + 4) << 32;
}

MX_INLINE void mx_put_le16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

MX_INLINE void mx_put_le32(uint8_t *p, uint32_t v)
{
    mx_put_le16(p, (uint16_t)v);
    mx_put_le16(p + 2, (uint16_t)(v >> 16));
}

MX_INLINE void mx_put_le64(uint8_t *p, uint64_t v)
{
    mx_put_le32(p, (uint32_t)v);
    mx_put_le32(p + 4, (uint32_t)(v >> 32));
}

#endif
