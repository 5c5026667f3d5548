/* SPDX-License-Identifier: MIT
 *
 * Reading a manifest: small, so it is read whole before anything in it is believed.
 */
#include "cold/cold_manifest.h"

#include <unistd.h>

#include "base/mem.h"

static mx_err read_open(const mx_cold_fileops *ops, int fd, uint64_t bytes, uint8_t **copy,
                        mx_errbuf *eb)
{
    if (bytes < MX_DISK_MANIFEST_HEADER_BYTES || bytes > MX_DISK_MANIFEST_MAX_BYTES) {
        return mx_fail(eb, MX_E_CORRUPT, "size");
    }
    *copy = mx_alloc((size_t)bytes);
    if (*copy == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    struct iovec iov = {*copy, (size_t)bytes};
    return mx_cold_read_all(ops, fd, &iov, 1, eb);
}

mx_err mx_cold_read_manifest(const mx_cold_fileops *ops, int dir, const char *name,
                             const mx_hash256 *id, const mx_hash256 *key, bool needs_tag,
                             mx_disk_manifest *m, uint8_t **copy, mx_errbuf *eb)
{
    int fd = -1;
    uint64_t bytes = 0;
    *copy = NULL;
    MX_TRY(mx_cold_open_file(ops, dir, name, &fd, &bytes, eb));
    mx_err err = read_open(ops, fd, bytes, copy, eb);
    close(fd);
    if (err == MX_OK) {
        err = mx_disk_manifest_decode(m, *copy, (size_t)bytes, eb);
    }
    if (err == MX_OK && key != NULL && (needs_tag || m->auth != MX_DISK_AUTH_NONE)) {
        err = mx_disk_manifest_authenticate(*copy, (size_t)bytes, key, eb);
    }
    if (err == MX_OK && !mx_hash256_eq(&m->page_ids[m->n_pages - 1], id)) {
        err = mx_fail(eb, MX_E_CORRUPT, "the name is not the last page");
    }
    if (err != MX_OK) {
        mx_free(*copy);
        *copy = NULL;
    }
    return err;
}
