/* SPDX-License-Identifier: MIT
 *
 * Reading an object without knowing what should be in it: the file tells, and is held to it.
 */
#include "cold/cold_object.h"

#include <unistd.h>

#include "base/mem.h"

enum { MAX_OBJECT_BYTES = 1 << 30 };

static mx_err grow(uint8_t **bytes, size_t *cap, size_t n, mx_errbuf *eb)
{
    void *p = *bytes;
    if (!mx_grow(&p, cap, n, 1)) {
        return mx_fail(eb, MX_E_NOMEM, "no memory to read it");
    }
    *bytes = p;
    return MX_OK;
}

mx_err mx_object_other_key(mx_errbuf *eb)
{
    return mx_fail(eb, MX_E_DENIED, "whole, but authenticated with another key, or forged");
}

static mx_err decode(mx_cold_object o, const mx_hash256 *id, const uint8_t *bytes, size_t n,
                     mx_disk_page *page, mx_errbuf *eb)
{
    MX_TRY(o == MX_COLD_STATE ? mx_disk_state_decode(page, bytes, n, eb)
                              : mx_disk_page_decode(page, bytes, n, eb));
    return mx_hash256_eq(&page->own, id) ? MX_OK
                                         : mx_fail(eb, MX_E_CORRUPT, "the name is not the identity");
}

bool mx_object_read_head(const mx_cold_fileops *ops, int dir, const char *name, mx_cold_object o,
                         const mx_hash256 *id, mx_disk_page *page)
{
    uint8_t head[MX_DISK_PAYLOAD_AT];
    struct iovec iov = {head, sizeof head};
    uint64_t n;
    int fd;
    if (mx_cold_open_file(ops, dir, name, &fd, &n, NULL) != MX_OK) {
        return false;
    }
    bool is_read = mx_cold_read_all(ops, fd, &iov, 1, NULL) == MX_OK;
    close(fd);
    return is_read && decode(o, id, head, sizeof head, page, NULL) == MX_OK;
}

static mx_err check(mx_object_reader *r, mx_cold_object o, const mx_hash256 *id, size_t n,
                    mx_disk_page *page, const uint8_t **payload, mx_errbuf *eb)
{
    const uint8_t *stored = r->bytes + MX_DISK_PAYLOAD_AT;
    MX_TRY(decode(o, id, r->bytes, n, page, eb));
    if (n != MX_DISK_PAYLOAD_AT + page->stored_bytes || page->payload_bytes > MAX_OBJECT_BYTES) {
        return mx_fail(eb, MX_E_CORRUPT, "size");
    }
    MX_TRY(mx_disk_page_verify(page, stored, n - MX_DISK_PAYLOAD_AT, eb));
    if (r->trust.key != NULL && (r->trust.needs_tag || page->auth != MX_DISK_AUTH_NONE)) {
        mx_err err = mx_disk_page_authenticate(r->bytes, r->trust.key, stored,
                                               n - MX_DISK_PAYLOAD_AT, eb);
        if (err != MX_OK) {
            return err == MX_E_CORRUPT ? mx_object_other_key(eb) : err;
        }
    }
    *payload = stored;
    if (page->codec == MX_CODEC_NONE) {
        return MX_OK;
    }
    MX_TRY(grow(&r->raw, &r->raw_cap, (size_t)page->payload_bytes, eb));
    *payload = r->raw;
    return mx_disk_page_unpack(page, &r->codec, stored, r->raw, eb);
}

mx_err mx_object_read(mx_object_reader *r, int dir, const char *name, mx_cold_object o,
                      const mx_hash256 *id, mx_disk_page *page, const uint8_t **payload,
                      uint64_t *n_file, mx_errbuf *eb)
{
    int fd = -1;
    *n_file = 0;
    mx_err err = mx_cold_open_file(r->trust.ops, dir, name, &fd, n_file, eb);
    if (err == MX_OK && (*n_file < MX_DISK_PAYLOAD_AT || *n_file > MAX_OBJECT_BYTES)) {
        err = mx_fail(eb, MX_E_CORRUPT, "size");
    }
    if (err == MX_OK) {
        err = grow(&r->bytes, &r->bytes_cap, (size_t)*n_file, eb);
    }
    if (err == MX_OK) {
        struct iovec iov = {r->bytes, (size_t)*n_file};
        err = mx_cold_read_all(r->trust.ops, fd, &iov, 1, eb);
    }
    if (fd >= 0) {
        close(fd);
    }
    return err == MX_OK ? check(r, o, id, (size_t)*n_file, page, payload, eb) : err;
}

void mx_object_reader_free(mx_object_reader *r)
{
    mx_free(r->bytes);
    mx_free(r->raw);
    mx_codec_free(&r->codec);
}
