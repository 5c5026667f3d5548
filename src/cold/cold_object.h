/* SPDX-License-Identifier: MIT
 *
 * cold_object.h: one page or state file, read whole and checked as a reader of some model would
 * (docs/file-format.md, section 7, but for what only a request knows).
 *
 * For the tools, which know no model and no place in a chain. A reader is the scratch memory of one
 * thread; {0} with ops (and key) set is a fresh one.
 */
#ifndef MX_COLD_OBJECT_H
#define MX_COLD_OBJECT_H

#include "cold/cold_files.h"
#include "cold/cold_format.h"

/* How a folder may be used: ours alone, or with a key. */
typedef struct mx_cold_trust {
    const mx_cold_fileops *ops;
    const mx_hash256 *key; /* or NULL */
    bool needs_tag;        /* others can write it: what has no tag is not ours */
    mx_errbuf *why;        /* or NULL: gets the text of the first folder that cannot be entered */
} mx_cold_trust;

typedef struct mx_object_reader {
    mx_cold_trust trust;
    uint8_t *bytes, *raw;
    size_t bytes_cap, raw_cap;
    mx_codec codec;
} mx_object_reader;

/* Reads `name` in `dir`, the object named by id; *n_file: its bytes, set also when it is not sound.
 * *payload (decompressed, page->payload_bytes long) is good until the next call. MX_E_CORRUPT,
 * MX_E_UNSUPPORTED (another version's), MX_E_DENIED (no permission, or mx_object_other_key),
 * MX_E_NOT_FOUND, MX_E_NOMEM, MX_E_IO. */
mx_err mx_object_read(mx_object_reader *r, int dir, const char *name, mx_cold_object o,
                      const mx_hash256 *id, mx_disk_page *page, const uint8_t **payload,
                      uint64_t *n_file, mx_errbuf *eb);
void mx_object_reader_free(mx_object_reader *r);

/* Only what stands in front of the payload, which the name vouches for. False: it cannot be read, or is not
 * sound. */
bool mx_object_read_head(const mx_cold_fileops *ops, int dir, const char *name, mx_cold_object o,
                         const mx_hash256 *id, mx_disk_page *page);

/* MX_E_DENIED with its text: right sums, wrong tag. Of somebody with another key, or forged. */
mx_err mx_object_other_key(mx_errbuf *eb);

#endif
