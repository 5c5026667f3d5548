/* SPDX-License-Identifier: MIT
 *
 * cold_manifest.h: one manifest file, read and checked as docs/file-format.md says (section 7).
 *
 * No state, any thread.
 */
#ifndef MX_COLD_MANIFEST_H
#define MX_COLD_MANIFEST_H

#include "cold/cold_files.h"
#include "cold/cold_format.h"

/* Reads `name` in `dir`, which has to be the manifest named by `id`. With a key, its tag
 * has to be made with that; needs_tag: and has to be there. *copy is the caller's to mx_free,
 * and *m points into it; NULL unless MX_OK. MX_E_NOT_FOUND, MX_E_CORRUPT (to quarantine; the text says
 * which check failed), MX_E_UNSUPPORTED (of another version), MX_E_NOMEM, MX_E_DENIED, MX_E_IO. */
mx_err mx_cold_read_manifest(const mx_cold_fileops *ops, int dir, const char *name,
                             const mx_hash256 *id, const mx_hash256 *key, bool needs_tag,
                             mx_disk_manifest *m, uint8_t **copy, mx_errbuf *eb);

#endif
