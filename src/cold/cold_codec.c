/* SPDX-License-Identifier: MIT
 *
 * Byte planes, each compressed by a library.
 *
 * In blocks that stay in the second-level cache between splitting and compressing. Each plane has its
 * own length in front, so that one that does not shrink is stored as it is and costs no more than a
 * copy to read: for f16 that is half of all bytes. The figures behind this are in docs/decisions/0013.
 */
#include "cold/cold_codec.h"

#include <assert.h>
#include <lz4.h>
#include <zstd.h>

#include "base/mem.h"

enum { LENGTH_BYTES = 4, ZSTD_LEVEL = 1, MAX_PLANES = 4 };

static uint32_t method_of(uint32_t id)
{
    return id & 0xFF;
}

static size_t planes_of(uint32_t id)
{
    return id >> 8;
}

bool mx_codec_is_known(uint32_t id)
{
    size_t n = planes_of(id);
    return (method_of(id) == MX_CODEC_LZ4 || method_of(id) == MX_CODEC_ZSTD)
           && (n == 1 || n == 2 || n == 4);
}

static bool reserve(mx_codec *c)
{
    if (c->planes == NULL) {
        c->planes = mx_alloc_aligned(64, MX_CODEC_BLOCK_BYTES);
    }
    return c->planes != NULL;
}

void mx_codec_free(mx_codec *c)
{
    mx_free(c->planes);
    ZSTD_freeCCtx(c->compress);
    ZSTD_freeDCtx(c->decompress);
    *c = (mx_codec){0};
}

/* ---- planes ---------------------------------------------------------------------------------- */

/* Plane p of n bytes holds every byte whose index is p modulo n_planes. */
static size_t plane_bytes(size_t n, size_t n_planes, size_t p)
{
    return (n - p + n_planes - 1) / n_planes;
}

/* Written out for the compiler to make vectors of; the loop over any number of planes is 3 times as
 * slow. Both do n / n_planes whole numbers, of which the planes hold m bytes each. */
static void split_2(const uint8_t *restrict raw, size_t m, uint8_t *restrict a,
                    uint8_t *restrict b)
{
    for (size_t i = 0; i < m; i++) {
        a[i] = raw[2 * i];
        b[i] = raw[2 * i + 1];
    }
}

static void split_4(const uint8_t *restrict raw, size_t m, uint8_t *restrict a,
                    uint8_t *restrict b, uint8_t *restrict c, uint8_t *restrict d)
{
    for (size_t i = 0; i < m; i++) {
        a[i] = raw[4 * i];
        b[i] = raw[4 * i + 1];
        c[i] = raw[4 * i + 2];
        d[i] = raw[4 * i + 3];
    }
}

static void merge_2(uint8_t *restrict raw, size_t m, const uint8_t *restrict a,
                    const uint8_t *restrict b)
{
    for (size_t i = 0; i < m; i++) {
        raw[2 * i] = a[i];
        raw[2 * i + 1] = b[i];
    }
}

static void merge_4(uint8_t *restrict raw, size_t m, const uint8_t *restrict a,
                    const uint8_t *restrict b, const uint8_t *restrict c,
                    const uint8_t *restrict d)
{
    for (size_t i = 0; i < m; i++) {
        raw[4 * i] = a[i];
        raw[4 * i + 1] = b[i];
        raw[4 * i + 2] = c[i];
        raw[4 * i + 3] = d[i];
    }
}

/* Where the planes of a block of n bytes begin. */
static void place_planes(uint8_t *at, size_t n, size_t n_planes, uint8_t *planes[MAX_PLANES])
{
    for (size_t p = 0; p < n_planes && p < n; p++) {
        planes[p] = at;
        at += plane_bytes(n, n_planes, p);
    }
}

static void split(const uint8_t *raw, size_t n, size_t n_planes, uint8_t *const *to)
{
    size_t m = n / n_planes;
    if (m > 0 && n_planes == 1) {
        memcpy(to[0], raw, n);
    } else if (m > 0 && n_planes == 2) {
        split_2(raw, m, to[0], to[1]);
    } else if (m > 0) {
        split_4(raw, m, to[0], to[1], to[2], to[3]);
    }
    for (size_t p = 0; p < n % n_planes; p++) {
        to[p][m] = raw[m * n_planes + p];
    }
}

static void merge(uint8_t *raw, size_t n, size_t n_planes, const uint8_t *const *from)
{
    size_t m = n / n_planes;
    if (m > 0 && n_planes == 1) {
        memcpy(raw, from[0], n);
    } else if (m > 0 && n_planes == 2) {
        merge_2(raw, m, from[0], from[1]);
    } else if (m > 0) {
        merge_4(raw, m, from[0], from[1], from[2], from[3]);
    }
    for (size_t p = 0; p < n % n_planes; p++) {
        raw[m * n_planes + p] = from[p][m];
    }
}

/* ---- one plane ------------------------------------------------------------------------------- */

/* 0 = it does not get smaller than cap. */
static size_t compress_plane(mx_codec *c, uint32_t method, const uint8_t *from, size_t n,
                             uint8_t *to, size_t cap)
{
    if (method == MX_CODEC_LZ4) {
        int got = LZ4_compress_default((const char *)from, (char *)to, (int)n, (int)cap);
        return got > 0 ? (size_t)got : 0;
    }
    size_t got = ZSTD_compressCCtx(c->compress, to, cap, from, n, ZSTD_LEVEL);
    return ZSTD_isError(got) ? 0 : got;
}

static bool decompress_plane(mx_codec *c, uint32_t method, const uint8_t *from, size_t n_from,
                             uint8_t *to, size_t n)
{
    if (method == MX_CODEC_LZ4) {
        int got = LZ4_decompress_safe((const char *)from, (char *)to, (int)n_from, (int)n);
        return got >= 0 && (size_t)got == n;
    }
    size_t got = ZSTD_decompressDCtx(c->decompress, to, n, from, n_from);
    return !ZSTD_isError(got) && got == n;
}

/* ---- whole payloads -------------------------------------------------------------------------- */

/* Appends a plane's length and bytes; false = no room. */
static bool put_plane(mx_codec *c, uint32_t method, const uint8_t *from, size_t n, uint8_t *out,
                      size_t cap, size_t *used)
{
    if (cap - *used <= LENGTH_BYTES) {
        return false;
    }
    uint8_t *length = out + *used, *to = length + LENGTH_BYTES;
    size_t room = mx_min_size(cap - *used - LENGTH_BYTES, n - n / 32 - 1);
    size_t got = n > 64 ? compress_plane(c, method, from, n, to, room) : 0;
    if (got == 0) {
        if (cap - *used - LENGTH_BYTES < n) {
            return false;
        }
        memcpy(to, from, n);
        got = n;
    }
    mx_put_le32(length, (uint32_t)got);
    *used += LENGTH_BYTES + got;
    return true;
}

mx_err mx_codec_encode(mx_codec *c, uint32_t id, const uint8_t *raw, size_t n, uint8_t *out,
                       size_t *n_out)
{
    assert(mx_codec_is_known(id));
    *n_out = 0;
    if (c->compress == NULL && method_of(id) == MX_CODEC_ZSTD) {
        c->compress = ZSTD_createCCtx();
    }
    if (!reserve(c) || (c->compress == NULL && method_of(id) == MX_CODEC_ZSTD)) {
        return MX_E_NOMEM;
    }
    size_t n_planes = planes_of(id), cap = n - n / 32, used = 0;
    for (size_t at = 0; at < n; at += MX_CODEC_BLOCK_BYTES) {
        size_t block = mx_min_size(n - at, MX_CODEC_BLOCK_BYTES);
        uint8_t *plane[MAX_PLANES];
        place_planes(c->planes, block, n_planes, plane);
        split(raw + at, block, n_planes, plane);
        for (size_t p = 0; p < n_planes && p < block; p++) {
            size_t m = plane_bytes(block, n_planes, p);
            if (!put_plane(c, method_of(id), plane[p], m, out, cap, &used)) {
                return MX_OK; /* it does not pay */
            }
        }
    }
    *n_out = used;
    return MX_OK;
}

/* One block of n bytes from the front of the stored ones; *stored moves behind it. */
static bool decode_block(mx_codec *c, uint32_t id, const uint8_t **stored, const uint8_t *end,
                         uint8_t *raw, size_t n)
{
    size_t n_planes = planes_of(id);
    const uint8_t *planes[MAX_PLANES] = {NULL};
    uint8_t *scratch = c->planes;
    for (size_t p = 0; p < n_planes && p < n; p++) {
        size_t m = plane_bytes(n, n_planes, p), left = (size_t)(end - *stored);
        if (left < LENGTH_BYTES) {
            return false;
        }
        size_t length = mx_get_le32(*stored);
        const uint8_t *from = *stored + LENGTH_BYTES;
        if (length > left - LENGTH_BYTES || length > m || length == 0) {
            return false;
        }
        planes[p] = from;
        if (length < m) {
            planes[p] = scratch;
            if (!decompress_plane(c, method_of(id), from, length, scratch, m)) {
                return false;
            }
        }
        scratch += m;
        *stored = from + length;
    }
    merge(raw, n, n_planes, planes);
    return true;
}

mx_err mx_codec_decode(mx_codec *c, uint32_t id, const uint8_t *stored, size_t n_stored,
                       uint8_t *raw, size_t n, mx_errbuf *eb)
{
    assert(mx_codec_is_known(id));
    if (c->decompress == NULL && method_of(id) == MX_CODEC_ZSTD) {
        c->decompress = ZSTD_createDCtx();
    }
    if (!reserve(c) || (c->decompress == NULL && method_of(id) == MX_CODEC_ZSTD)) {
        return mx_fail(eb, MX_E_NOMEM, "no memory to decompress a page");
    }
    const uint8_t *end = stored + n_stored;
    for (size_t at = 0; at < n; at += MX_CODEC_BLOCK_BYTES) {
        size_t block = mx_min_size(n - at, MX_CODEC_BLOCK_BYTES);
        if (!decode_block(c, id, &stored, end, raw + at, block)) {
            return mx_fail(eb, MX_E_CORRUPT, "compressed bytes");
        }
    }
    return stored == end ? MX_OK : mx_fail(eb, MX_E_CORRUPT, "compressed bytes");
}
