// link: mx_cold
/* SPDX-License-Identifier: MIT
 *
 * A page file: whatever the bytes are, decoding reads inside of them and accepts only what encodes
 * to the same bytes again. A second pass puts the right checksum into the header, or no mutation
 * would ever get behind it.
 */
#include <stdlib.h>

#include "cold/cold_format.h"

/* Whatever is stored decompresses into room of the length that is said, and nothing else. */
static void unpack(const mx_disk_page *page, const uint8_t *stored)
{
    enum { MAX_RAW = 1 << 20 };
    mx_codec codec = {0};
    mx_errbuf eb;
    uint8_t *raw = malloc(page->payload_bytes <= MAX_RAW ? (size_t)page->payload_bytes : 1);
    if (raw == NULL) {
        abort();
    }
    if (page->payload_bytes <= MAX_RAW) {
        mx_err err = mx_disk_page_unpack(page, &codec, stored, raw, &eb);
        if (err != MX_OK && err != MX_E_CORRUPT) {
            abort();
        }
    }
    free(raw);
    mx_codec_free(&codec);
}

static void check(const uint8_t *data, size_t size)
{
    mx_disk_page page;
    mx_errbuf eb;
    mx_err err = mx_disk_page_decode(&page, data, size, &eb);
    if (err != MX_OK) {
        if (err != MX_E_CORRUPT && err != MX_E_UNSUPPORTED) {
            abort();
        }
        return;
    }
    uint8_t again[MX_DISK_PAYLOAD_AT];
    mx_disk_page_encode(&page, again);
    /* Free to differ: compatible features, the writer's name, and the checksum over them. */
    if (memcmp(again, data, 24) != 0 || memcmp(again + 32, data + 32, 320) != 0
        || memcmp(again + 384, data + 384, 112) != 0
        || memcmp(again + 512, data + 512, MX_DISK_PAYLOAD_AT - 512) != 0) {
        abort();
    }
    mx_err verified = mx_disk_page_verify(&page, data + MX_DISK_PAYLOAD_AT,
                                          size - MX_DISK_PAYLOAD_AT, &eb);
    if (verified == MX_OK && page.stored_bytes != size - MX_DISK_PAYLOAD_AT) {
        abort();
    }
    if (verified == MX_OK && page.codec != MX_CODEC_NONE) {
        unpack(&page, data + MX_DISK_PAYLOAD_AT);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check(data, size);
    if (size >= 512) {
        uint8_t *copy = malloc(size);
        if (copy == NULL) {
            abort();
        }
        memcpy(copy, data, size);
        mx_hash128 sum = mx_xxh3_128(copy, 496);
        memcpy(copy + 496, sum.b, 16);
        check(copy, size);
        uint32_t n = mx_get_le32(copy + 148);
        if (size >= MX_DISK_PAYLOAD_AT && n >= 1 && n <= 64) { /* and the right identity */
            mx_hash256 root, parent;
            int32_t tokens[64];
            memcpy(root.b, copy + 32, 32);
            memcpy(parent.b, copy + 96, 32);
            memcpy(tokens, copy + 512, 4 * (size_t)n);
            mx_hash256 own = mx_page_identity(&root, &parent, tokens, n);
            memcpy(copy + 64, own.b, 32);
            size_t stored = size - MX_DISK_PAYLOAD_AT; /* and length and sum of what is there */
            sum = mx_xxh3_128(copy + MX_DISK_PAYLOAD_AT, stored);
            memcpy(copy + 192, sum.b, 16);
            mx_put_le64(copy + 176, stored);
            if (mx_get_le32(copy + 168) == MX_CODEC_NONE) {
                memcpy(copy + 208, sum.b, 16);
                mx_put_le64(copy + 184, stored);
            }
            sum = mx_xxh3_128(copy, 496);
            memcpy(copy + 496, sum.b, 16);
            check(copy, size);
        }
        free(copy);
    }
    return 0;
}
