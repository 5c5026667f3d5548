/* SPDX-License-Identifier: MIT
 *
 * cold_codec.h: payloads without loss in fewer bytes (docs/file-format.md, section 3.5).
 *
 * The bytes of a number are split into planes, which are compressed one by one: of a key or value in
 * f16 the upper byte has patterns, the lower one is noise and stays as it is. What decodes is bounded
 * by what the caller gives room for, whatever the stored bytes say.
 *
 * A mx_codec is the scratch memory of one thread. It is made at first use, so {0} is a fresh one.
 */
#ifndef MX_COLD_CODEC_H
#define MX_COLD_CODEC_H

#include "base/err.h"

/* On disk, frozen. A codec is one of these plus the number of planes, 1, 2 or 4, in bits 8 to 15. */
enum { MX_CODEC_NONE = 0, MX_CODEC_LZ4 = 1, MX_CODEC_ZSTD = 2, MX_CODEC_BLOCK_BYTES = 128 << 10 };

typedef struct mx_codec {
    uint8_t *planes; /* [MX_CODEC_BLOCK_BYTES] */
    void *compress, *decompress;
} mx_codec;

MX_INLINE uint32_t mx_codec_id(uint32_t method, uint32_t n_planes)
{
    return method | n_planes << 8;
}

/* Is it one that this version can decode? MX_CODEC_NONE is not. */
bool mx_codec_is_known(uint32_t id);

/* Writes fewer than n bytes to `out`, which has room for n. *n_out = 0: it would not be smaller by a
 * thirty-second at least, store it as it is. MX_E_NOMEM. */
mx_err mx_codec_encode(mx_codec *c, uint32_t id, const uint8_t *raw, size_t n, uint8_t *out,
                       size_t *n_out);
/* Exactly n bytes, or MX_E_CORRUPT; then `raw` holds anything. The stored bytes may be hostile. */
mx_err mx_codec_decode(mx_codec *c, uint32_t id, const uint8_t *stored, size_t n_stored,
                       uint8_t *raw, size_t n, mx_errbuf *eb);

void mx_codec_free(mx_codec *c);

#endif
