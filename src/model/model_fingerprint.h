/* SPDX-License-Identifier: MIT
 *
 * model_fingerprint.h: what a model file's bytes are called, and a memory of it.
 *
 * The fingerprint of a file is a tree hash, so that all cores can work on it: SHA-256 over (tag, file
 * size, SHA-256 of each MiB). That of a model in several files is SHA-256 over (another tag, SHA-256
 * over those of the files in their order).
 *
 * Hashing a large file takes seconds, so the fingerprint of each file is kept in a small file of its
 * own, whose key is what the system says about the file (device, inode, size, times), never its path:
 * a changed file is hashed again, a moved one is not.
 */
#ifndef MX_MODEL_FINGERPRINT_H
#define MX_MODEL_FINGERPRINT_H

#include "base/hash.h"
#include "base/pool.h"
#include "gguf/gguf.h"

typedef struct mx_file_stamp {
    uint64_t device, inode, size;
    int64_t mtime_ns, ctime_ns;
} mx_file_stamp;

/* As it was when the file was opened; mx_gguf_read fails once the file has changed since. */
mx_file_stamp mx_file_stamp_of(const mx_gguf *g, size_t part);

/* Hashes every byte of one part of the model (0 unless it is split) on all workers of the pool. */
mx_err mx_fingerprint_compute(const mx_gguf *g, size_t part, mx_pool *pool, mx_hash256 *out,
                              mx_errbuf *eb);
/* The fingerprint of a model from those of its parts: of one part its own. */
mx_hash256 mx_fingerprint_join(const mx_hash256 *parts, size_t n_parts);

/* False when nothing usable is stored for the stamp; a damaged file counts as nothing. */
bool mx_fingerprint_cached(const char *dir, const mx_file_stamp *stamp, mx_hash256 *out);

/* Stores it (the folder is made, mode 0700, when only its last part is missing). A file that
 * changed within the last two seconds is not remembered: it might change again without its times
 * showing it. Failure is harmless: the next start hashes again. */
mx_err mx_fingerprint_remember(const char *dir, const mx_file_stamp *stamp, const mx_hash256 *hash,
                               mx_errbuf *eb);

#endif
