// link: mx_cold
/* SPDX-License-Identifier: MIT
 *
 * A manifest: decoding stays inside of the bytes, and all page identities that it hands out lie
 * there, too. A second pass puts the right checksums in.
 */
#include <stdlib.h>

#include "cold/cold_format.h"
#include "cold/cold_turn.h"

static void check(const uint8_t *data, size_t size)
{
    mx_disk_manifest m;
    mx_errbuf eb;
    mx_err err = mx_disk_manifest_decode(&m, data, size, &eb);
    if (err != MX_OK) {
        if (err != MX_E_CORRUPT && err != MX_E_UNSUPPORTED) {
            abort();
        }
        return;
    }
    if (m.n_pages < 1 || m.n_tokens <= ((uint64_t)m.n_pages - 1) * 64
        || m.n_tokens > (uint64_t)m.n_pages * 64 || m.entry_kind > 1) {
        abort();
    }
    uint8_t all = 0;
    for (uint32_t i = 0; i < m.n_pages; i++) { /* a sanitizer sees one that lies outside */
        for (size_t k = 0; k < 32; k++) {
            all ^= m.page_ids[i].b[k];
        }
    }
    mx_turn turn;
    for (uint32_t i = 0; i < m.n_turns; i++) {
        if (!mx_turn_decode(&turn, m.turns + i * MX_TURN_BYTES) || turn.n_prompt >= m.n_tokens) {
            abort();
        }
        all ^= turn.nonce[0];
    }
    volatile uint8_t sink = all;
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check(data, size);
    if (size >= 256) {
        uint8_t *copy = malloc(size);
        if (copy == NULL) {
            abort();
        }
        memcpy(copy, data, size);
        mx_hash128 sum = mx_xxh3_128(copy + 256, size - 256);
        memcpy(copy + 176, sum.b, 16);
        sum = mx_xxh3_128(copy, 240);
        memcpy(copy + 240, sum.b, 16);
        check(copy, size);
        free(copy);
    }
    return 0;
}
