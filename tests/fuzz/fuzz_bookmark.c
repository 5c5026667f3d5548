// link: mx_cold
/* SPDX-License-Identifier: MIT
 *
 * A bookmark: what is taken is one that could have been written, so written again it is the same. A
 * second pass puts the right names and checksum in.
 */
#include <stdlib.h>

#include "cold/cold_bookmark.h"

static void check(const uint8_t bytes[MX_BOOKMARK_BYTES])
{
    mx_bookmark b, again;
    mx_errbuf eb;
    uint8_t out[MX_BOOKMARK_BYTES], same[MX_BOOKMARK_BYTES];
    mx_err err = mx_bookmark_decode(&b, bytes, NULL, false, &eb);
    if (err != MX_OK) {
        if (err != MX_E_CORRUPT && err != MX_E_UNSUPPORTED) {
            abort();
        }
        return;
    }
    mx_str name = {b.name, strlen(b.name)};
    if (b.is_session != mx_session_name_ok(name) || mx_bookmark_encode(&b, NULL, out) != MX_OK
        || mx_bookmark_decode(&again, out, NULL, false, &eb) != MX_OK
        || mx_bookmark_encode(&again, NULL, same) != MX_OK || memcmp(out, same, sizeof out) != 0)
    {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[MX_BOOKMARK_BYTES] = {0};
    memcpy(bytes, data, mx_min_size(size, sizeof bytes));
    check(bytes);
    mx_hash256 root;
    uint32_t n = mx_get_le32(bytes + 192);
    memcpy(root.b, bytes + 32, sizeof root.b);
    if (bytes[160] == 0) { /* a pin: named by its entry */
        memcpy(bytes + 64, bytes + 96, 32);
    } else if (n <= MX_SESSION_NAME_MAX) {
        mx_hash256 own = mx_session_id(&root, (mx_str){(const char *)bytes + 240, n});
        memcpy(bytes + 64, own.b, 32);
    }
    mx_hash128 sum = mx_xxh3_128(bytes, 496);
    memcpy(bytes + 496, sum.b, 16);
    check(bytes);
    return 0;
}
