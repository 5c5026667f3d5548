/* SPDX-License-Identifier: MIT
 *
 * hash.h: SHA-256 for identities (libcrypto) and XXH3-128 for checksums (xxhash).
 *
 * An identity may be compared with one made by an adversary, so it is SHA-256, whole. A checksum
 * guards against accidents only. Thread-safe; a mx_sha256 belongs to its holder.
 */
#ifndef MX_HASH_H
#define MX_HASH_H

#include "base/base.h"

typedef struct mx_hash256 {
    uint8_t b[32];
} mx_hash256;

typedef struct mx_hash128 {
    uint8_t b[16]; /* XXH128 canonical (big-endian) form */
} mx_hash128;

typedef struct mx_sha256 {
    void *ctx;
    bool failed;
} mx_sha256;

/* Incremental. init may fail for lack of memory: then finish returns false. */
void mx_sha256_init(mx_sha256 *h);
void mx_sha256_update(mx_sha256 *h, const void *bytes, size_t n);
bool mx_sha256_finish(mx_sha256 *h, mx_hash256 *out) MX_MUST_CHECK; /* frees the state always */

/* One call, no allocation, cannot fail. */
mx_hash256 mx_sha256_of(const void *bytes, size_t n);
mx_hash128 mx_xxh3_128(const void *bytes, size_t n);

/* HMAC-SHA-256 of two parts, one behind the other. False: no memory. */
bool mx_hmac_sha256(const void *key, size_t n_key, const void *a, size_t n_a, const void *b,
                    size_t n_b, mx_hash256 *out) MX_MUST_CHECK;

MX_INLINE bool mx_hash256_eq(const mx_hash256 *a, const mx_hash256 *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

MX_INLINE bool mx_hash128_eq(const mx_hash128 *a, const mx_hash128 *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

/* 64 lower-case hex digits and a NUL. */
void mx_hash256_hex(const mx_hash256 *h, char out[65]);
/* Reads exactly 64 hex digits; false when they are not. */
bool mx_hash256_from_hex(mx_hash256 *h, const char *hex, size_t len) MX_MUST_CHECK;

#endif
