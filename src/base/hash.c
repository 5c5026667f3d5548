/* SPDX-License-Identifier: MIT
 *
 * Hashes from libraries: libcrypto uses the SHA instructions where the CPU has them, xxhash is
 * compiled inline. For one-call hashes the low-level functions are used although OpenSSL 3 prefers
 * EVP: its SHA256() fetches the algorithm by name and allocates, hence may fail; these do not.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#define XXH_INLINE_ALL
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include <xxhash.h>
#pragma GCC diagnostic pop

void mx_sha256_init(mx_sha256 *h)
{
    h->ctx = EVP_MD_CTX_new();
    h->failed = h->ctx == NULL || EVP_DigestInit_ex(h->ctx, EVP_sha256(), NULL) != 1;
}

void mx_sha256_update(mx_sha256 *h, const void *bytes, size_t n)
{
    if (!h->failed && n > 0) {
        h->failed = EVP_DigestUpdate(h->ctx, bytes, n) != 1;
    }
}

bool mx_sha256_finish(mx_sha256 *h, mx_hash256 *out)
{
    if (!h->failed) {
        h->failed = EVP_DigestFinal_ex(h->ctx, out->b, NULL) != 1;
    }
    EVP_MD_CTX_free(h->ctx);
    h->ctx = NULL;
    return !h->failed;
}

mx_hash256 mx_sha256_of(const void *bytes, size_t n)
{
    mx_hash256 out;
    SHA256_CTX ctx;
    SHA256_Init(&ctx);
    SHA256_Update(&ctx, bytes, n);
    SHA256_Final(out.b, &ctx);
    return out;
}

/* RFC 2104 over the two functions above: OpenSSL's own is a page of calls that may each fail. */
bool mx_hmac_sha256(const void *key, size_t n_key, const void *a, size_t n_a, const void *b,
                    size_t n_b, mx_hash256 *out)
{
    enum { BLOCK = 64 };
    uint8_t pad[BLOCK] = {0};
    mx_hash256 inner;
    if (n_key > BLOCK) {
        inner = mx_sha256_of(key, n_key);
        memcpy(pad, inner.b, sizeof inner.b);
    } else if (n_key > 0) {
        memcpy(pad, key, n_key);
    }
    for (size_t i = 0; i < BLOCK; i++) {
        pad[i] ^= 0x36;
    }
    mx_sha256 h;
    mx_sha256_init(&h);
    mx_sha256_update(&h, pad, sizeof pad);
    mx_sha256_update(&h, a, n_a);
    mx_sha256_update(&h, b, n_b);
    bool ok = mx_sha256_finish(&h, &inner);
    uint8_t outer[BLOCK + sizeof inner.b];
    for (size_t i = 0; i < BLOCK; i++) {
        outer[i] = (uint8_t)(pad[i] ^ 0x36 ^ 0x5c);
    }
    memcpy(outer + BLOCK, inner.b, sizeof inner.b);
    *out = mx_sha256_of(outer, sizeof outer);
    OPENSSL_cleanse(pad, sizeof pad);
    OPENSSL_cleanse(outer, sizeof outer);
    return ok;
}

mx_hash128 mx_xxh3_128(const void *bytes, size_t n)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, n));
    mx_hash128 out;
    memcpy(out.b, canonical.digest, sizeof out.b);
    return out;
}

void mx_hash256_hex(const mx_hash256 *h, char out[65])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < 32; i++) {
        out[2 * i] = digits[h->b[i] >> 4];
        out[2 * i + 1] = digits[h->b[i] & 15];
    }
    out[64] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool mx_hash256_from_hex(mx_hash256 *h, const char *hex, size_t len)
{
    if (len != 64) {
        return false;
    }
    for (size_t i = 0; i < 32; i++) {
        int hi = hex_value(hex[2 * i]), lo = hex_value(hex[2 * i + 1]);
        if (hi < 0 || lo < 0) {
            return false;
        }
        h->b[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}
