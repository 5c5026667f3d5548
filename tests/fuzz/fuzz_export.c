// link: mx_cold
/* SPDX-License-Identifier: MIT
 *
 * An exported conversation: whatever the bytes are, decoding reads inside of them, and what it accepts
 * encodes to the same header again. A second pass puts the right checksums in, or no mutation would
 * ever get behind them.
 */
#include <stdlib.h>

#include "cold/cold_export.h"

static void read_all(const mx_export *x)
{
    int32_t tokens[MX_PAGE_TOKENS];
    uint64_t n = 0, last = 0;
    for (uint32_t i = 0; i < x->n_pages; i++) {
        n += mx_export_tokens(x, i, tokens);
        (void)mx_export_page_sum(x, i);
    }
    for (uint32_t i = 0; i < x->n_states; i++) {
        mx_export_state s = mx_export_state_at(x, i);
        if (s.position <= last || s.position > n) {
            abort();
        }
        last = s.position;
    }
    if (n != x->n_tokens) {
        abort();
    }
}

static void check(const uint8_t *data, size_t size)
{
    mx_export x;
    mx_errbuf eb;
    uint8_t again[MX_EXPORT_HEADER_BYTES];
    if (size < MX_EXPORT_HEADER_BYTES) {
        return;
    }
    mx_err err = mx_export_decode_header(&x, data, size, &eb);
    if (err == MX_OK) {
        err = mx_export_decode_body(&x, data + x.body_at, &eb);
    }
    if (err != MX_OK) {
        if (err != MX_E_CORRUPT && err != MX_E_UNSUPPORTED) {
            abort();
        }
        return;
    }
    read_all(&x);
    mx_export_encode_header(&x, again);
    /* Free to differ: compatible features, and the checksum over them. */
    if (memcmp(again, data, 24) != 0 || memcmp(again + 32, data + 32, 208) != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check(data, size);
    if (size < MX_EXPORT_HEADER_BYTES) {
        return 0;
    }
    uint8_t *copy = malloc(size);
    if (copy == NULL) {
        abort();
    }
    memcpy(copy, data, size);
    mx_export x;
    mx_errbuf eb;
    mx_hash128 sum = mx_xxh3_128(copy, 240);
    memcpy(copy + 240, sum.b, 16);
    if (mx_export_decode_header(&x, copy, size, &eb) == MX_OK) {
        sum = mx_xxh3_128(copy + x.body_at, x.body_bytes);
        memcpy(copy + 184, sum.b, 16);
        sum = mx_xxh3_128(copy, 240);
        memcpy(copy + 240, sum.b, 16);
    }
    check(copy, size);
    free(copy);
    return 0;
}
