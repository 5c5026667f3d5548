/* SPDX-License-Identifier: MIT
 *
 * cold_format.h: page files and manifests as bytes (docs/file-format.md, version 1).
 *
 * Pure functions: no I/O, no state, any thread. The constants are those of the disk, frozen, and
 * deliberately never the same symbols as the enums in RAM.
 *
 * Codes: MX_E_CORRUPT = damaged, to quarantine; MX_E_UNSUPPORTED = intact but of a foreign version
 * or feature, to leave alone. The text says which check failed.
 */
#ifndef MX_COLD_FORMAT_H
#define MX_COLD_FORMAT_H

#include "base/buf.h"
#include "cold/cold_codec.h"
#include "kv/kv.h"

enum {
    MX_DISK_VERSION = 1,
    MX_DISK_PAGE_HEADER_BYTES = 512,
    MX_DISK_PAYLOAD_AT = 4096,
    MX_DISK_PAGE_TOKENS = 64,
    MX_DISK_KIND_KV = 1,
    MX_DISK_KIND_STATE = 2,
    MX_DISK_GROUP_FULL = 0,
    MX_DISK_PRESENT_KV = 3,
    MX_DISK_PRESENT_RECURRENT = 4,
    MX_DISK_FEATURE_NO_WINDOW = 1, /* incompatible, of a page: rows of windowed layers are left out */
    MX_DISK_POSITIONS_PLAIN = 0,
    MX_DISK_TYPE_F16 = 1,
    MX_DISK_TYPE_F32 = 2,
    MX_DISK_TYPE_Q8 = 3,
    MX_DISK_AUTH_NONE = 0,
    MX_DISK_AUTH_HMAC_SHA256 = 1,
    MX_DISK_ENTRY_PROMPT = 0,
    MX_DISK_ENTRY_TURN = 1,
    MX_DISK_MANIFEST_HEADER_BYTES = 256,
    MX_DISK_MANIFEST_MAX_PAGES = 1 << 20,
    MX_DISK_TURN_BYTES = 80,
    MX_DISK_MANIFEST_MAX_TURNS = 256,
    MX_DISK_MANIFEST_MAX_BYTES = 64 << 20,
};

/* ---- pages and states ------------------------------------------------------------------------ */

/* A decoded header with its token ids. A state belongs to the end of its tokens, which are the
 * beginning of a page: everything but own and the payload is as in a page of these. */
typedef struct mx_disk_page {
    bool is_state;
    bool lacks_local;         /* without the rows of windowed layers; only with 64 tokens */
    mx_hash256 root, own, parent;
    uint32_t n_tokens;        /* 1..64 */
    uint64_t first_position;  /* a multiple of 64 */
    uint16_t kv_type;         /* MX_DISK_TYPE_* */
    uint64_t payload_bytes;   /* in RAM: decompressed */
    mx_hash128 payload_sum;
    uint32_t codec;           /* MX_CODEC_NONE: as it is; else of stored_bytes < payload_bytes */
    uint64_t stored_bytes;
    mx_hash128 stored_sum;
    uint32_t auth;            /* MX_DISK_AUTH_*; the tag is looked at by mx_disk_page_authenticate */
    mx_hash256 tag;
    int32_t tokens[MX_DISK_PAGE_TOKENS]; /* [n_tokens], the rest zero */
} mx_disk_page;

/* The bytes in front of the payload. p->own and the sums are the caller's to fill. */
void mx_disk_page_encode(const mx_disk_page *p, uint8_t out[MX_DISK_PAYLOAD_AT]);

/* Steps 3 to 6 and 8 of the specification over the first n bytes of a file (n >= 4096, or the file
 * is corrupt). Reads nothing beyond. */
mx_err mx_disk_page_decode(mx_disk_page *p, const uint8_t *bytes, size_t n, mx_errbuf *eb);
mx_err mx_disk_state_decode(mx_disk_page *p, const uint8_t *bytes, size_t n, mx_errbuf *eb);

/* Step 10, of the payload as it is in the file. */
mx_err mx_disk_page_verify(const mx_disk_page *p, const uint8_t *stored, size_t n, mx_errbuf *eb);
/* And of a compressed one, after mx_disk_page_verify: decompresses it into p->payload_bytes bytes. */
mx_err mx_disk_page_unpack(const mx_disk_page *p, mx_codec *codec, const uint8_t *stored,
                           uint8_t *payload, mx_errbuf *eb);

/* Puts a tag over header, token ids and stored payload into encoded bytes. MX_E_NOMEM. */
mx_err mx_disk_page_seal(uint8_t head[MX_DISK_PAYLOAD_AT], const mx_hash256 *key,
                         const uint8_t *stored, size_t n);
/* Of decoded ones: made by somebody who has the key? Else MX_E_CORRUPT, or MX_E_NOMEM. */
mx_err mx_disk_page_authenticate(const uint8_t head[MX_DISK_PAYLOAD_AT], const mx_hash256 *key,
                                 const uint8_t *stored, size_t n, mx_errbuf *eb);

/* The length of the payload in the file that begins with these bytes, of which nothing but the header
 * checksum was looked at. MX_E_CORRUPT: that is wrong. */
mx_err mx_disk_stored_bytes(const uint8_t header[MX_DISK_PAGE_HEADER_BYTES], uint64_t *n);
/* How a page of this type is compressed by that method (MX_CODEC_*). */
uint32_t mx_disk_codec(uint32_t method, mx_kv_type type);

/* Payload bytes of a stored page of this shape: whole for 64 tokens, compact below. */
size_t mx_disk_payload_bytes(const mx_kv_shape *shape, uint32_t n_tokens);
/* Is this what the decoded page has to have? */
bool mx_disk_is_payload_bytes(const mx_kv_shape *shape, const mx_disk_page *p);
uint16_t mx_disk_kv_type(mx_kv_type type);

/* ---- manifests ------------------------------------------------------------------------------- */

typedef struct mx_disk_manifest {
    mx_hash256 root, session_id;
    uint32_t entry_kind;          /* MX_DISK_ENTRY_* */
    uint64_t n_tokens;
    uint32_t n_pages;
    const mx_hash256 *page_ids;   /* [n_pages]; decoded: points into the bytes */
    uint32_t n_states;            /* at most n_pages */
    const mx_hash256 *state_ids;  /* [n_states]; likewise */
    const uint8_t *turns;         /* [n_turns][MX_DISK_TURN_BYTES] mx_turn_decode; likewise */
    uint32_t n_turns;
    uint64_t created_s;
    bool is_imported;
    uint32_t auth;                /* MX_DISK_AUTH_*, decoded only */
} mx_disk_manifest;

/* Appends the whole file to *out (whose `failed` tells of a lack of memory). */
void mx_disk_manifest_encode(mx_buf *out, const mx_disk_manifest *m);
/* As for pages, over the whole file. */
mx_err mx_disk_manifest_seal(uint8_t *bytes, size_t n, const mx_hash256 *key);
mx_err mx_disk_manifest_authenticate(const uint8_t *bytes, size_t n, const mx_hash256 *key,
                                     mx_errbuf *eb);
mx_err mx_disk_manifest_decode(mx_disk_manifest *m, const uint8_t *bytes, size_t n, mx_errbuf *eb);

#endif
