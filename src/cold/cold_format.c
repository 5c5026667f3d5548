/* SPDX-License-Identifier: MIT
 *
 * Explicit offsets and little-endian accessors, field by field in the order of docs/file-format.md,
 * so that the two can be read side by side. A struct dump would be shorter and would put padding,
 * byte order and the compiler into the format.
 */
#include "cold/cold_format.h"

#include <assert.h>

#include "cold/cold.h"
#include "cold/cold_turn.h"

static const uint8_t page_magic[8] = {0x89, 'M', 'X', 'P', 'A', 'G', 'E', '\n'};
static const uint8_t manifest_magic[8] = {0x89, 'M', 'X', 'S', 'E', 'S', 'S', '\n'};
_Static_assert((int)MX_DISK_TURN_BYTES == (int)MX_TURN_BYTES, "a turn on disk");
_Static_assert((int)MX_DISK_MANIFEST_MAX_TURNS == (int)MX_TURNS_MAX, "turns of a manifest");

static const char writer_build[32] = "mtplx file-format 1";

/* The same in every version. */
enum { AT_VERSION = 8, AT_HEADER_LENGTH = 12, AT_INCOMPATIBLE = 16, AT_ROOT = 32 };

enum {
    P_OWN = 64,
    P_PARENT = 96,
    P_KIND = 128,
    P_GROUP = 132,
    P_PRESENCE = 136,
    P_PAGE_SIZE = 144,
    P_N_TOKENS = 148,
    P_FIRST = 152,
    P_SCHEME = 160,
    P_K_TYPE = 164,
    P_V_TYPE = 166,
    P_CODEC = 168,
    P_ZERO_1 = 172,
    P_STORED = 176,
    P_RAW = 184,
    P_STORED_SUM = 192,
    P_RAW_SUM = 208,
    P_DIGEST = 224,
    P_ADAPTER = 256,
    P_AUTH_KIND = 288,
    P_CRYPT_KIND = 292,
    P_AUTH_TAG = 296,
    P_NONCE = 328,
    P_BUILD = 352,
    P_ZERO_2 = 384,
    P_HEADER_SUM = 496,
};
_Static_assert(P_HEADER_SUM + 16 == MX_DISK_PAGE_HEADER_BYTES, "the checksum ends the header");
_Static_assert(MX_DISK_PAGE_HEADER_BYTES + 4 * MX_DISK_PAGE_TOKENS <= MX_DISK_PAYLOAD_AT, "fits");
_Static_assert((int)MX_PAGE_TOKENS == (int)MX_DISK_PAGE_TOKENS, "version 1 has pages of 64 tokens");

enum {
    S_SESSION = 64,
    S_ENTRY_KIND = 96,
    S_PAGE_SIZE = 100,
    S_N_TOKENS = 104,
    S_N_PAGES = 112,
    S_N_STATES = 116,
    S_TURNS = 120,
    S_CREATED = 128,
    S_ORIGIN = 136,
    S_ZERO_1 = 140,
    S_BUILD = 144,
    S_BODY_SUM = 176,
    S_AUTH_KIND = 192,
    S_AUTH_TAG = 196,
    S_ZERO_2 = 228,
    S_HEADER_SUM = 240,
};
_Static_assert(S_HEADER_SUM + 16 == MX_DISK_MANIFEST_HEADER_BYTES, "the checksum ends the header");
_Static_assert(sizeof(mx_hash256) == 32 && _Alignof(mx_hash256) == 1, "identities can be mapped");

static bool is_zero(const uint8_t *p, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) {
        any |= p[i];
    }
    return any == 0;
}

static bool sum_is(const uint8_t *stored, const uint8_t *bytes, size_t n)
{
    mx_hash128 h = mx_xxh3_128(bytes, n);
    return memcmp(stored, h.b, sizeof h.b) == 0;
}

static void put_sum(uint8_t *at, const uint8_t *bytes, size_t n)
{
    mx_hash128 h = mx_xxh3_128(bytes, n);
    memcpy(at, h.b, sizeof h.b);
}

static void put_common(uint8_t *h, const uint8_t magic[8], uint32_t header_bytes,
                       const mx_hash256 *root)
{
    memcpy(h, magic, 8);
    mx_put_le32(h + AT_VERSION, MX_DISK_VERSION);
    mx_put_le32(h + AT_HEADER_LENGTH, header_bytes);
    memcpy(h + AT_ROOT, root->b, 32);
}

/* ---- authenticity ---------------------------------------------------------------------------- */

enum { AUTH_HEAD_MAX = MX_DISK_PAGE_HEADER_BYTES + 4 * MX_DISK_PAGE_TOKENS };

/* Which header: where its kind, tag and checksum are, and how many bytes stand for all in front of
 * the rest of the file (what is left out has to be zero). */
typedef struct auth_place {
    size_t kind_at, tag_at, sum_at, head_bytes;
} auth_place;

static const auth_place page_auth = {P_AUTH_KIND, P_AUTH_TAG, P_HEADER_SUM, AUTH_HEAD_MAX};
static const auth_place manifest_auth = {S_AUTH_KIND, S_AUTH_TAG, S_HEADER_SUM,
                                         MX_DISK_MANIFEST_HEADER_BYTES};

/* HMAC-SHA-256 over the file, with zeros for the tag and for the checksum over it. */
static bool make_tag(const auth_place *p, const uint8_t *head, const mx_hash256 *key,
                     const uint8_t *rest, size_t n, mx_hash256 *tag)
{
    uint8_t copy[AUTH_HEAD_MAX];
    memcpy(copy, head, p->head_bytes);
    mx_put_le32(copy + p->kind_at, MX_DISK_AUTH_HMAC_SHA256);
    memset(copy + p->tag_at, 0, sizeof tag->b);
    memset(copy + p->sum_at, 0, 16);
    return mx_hmac_sha256(key->b, sizeof key->b, copy, p->head_bytes, rest, n, tag);
}

static mx_err seal(const auth_place *p, uint8_t *head, const mx_hash256 *key, const uint8_t *rest,
                   size_t n)
{
    mx_hash256 tag;
    if (!make_tag(p, head, key, rest, n, &tag)) {
        return MX_E_NOMEM;
    }
    mx_put_le32(head + p->kind_at, MX_DISK_AUTH_HMAC_SHA256);
    memcpy(head + p->tag_at, tag.b, sizeof tag.b);
    put_sum(head + p->sum_at, head, p->sum_at);
    return MX_OK;
}

static mx_err authenticate(const auth_place *p, const uint8_t *head, const mx_hash256 *key,
                           const uint8_t *rest, size_t n, mx_errbuf *eb)
{
    mx_hash256 tag;
    if (mx_get_le32(head + p->kind_at) != MX_DISK_AUTH_HMAC_SHA256) {
        return mx_fail(eb, MX_E_CORRUPT, "not authenticated");
    }
    if (!make_tag(p, head, key, rest, n, &tag)) {
        return mx_fail(eb, MX_E_NOMEM, "no memory to authenticate a file");
    }
    uint8_t differs = 0; /* in constant time: how much of a guess is right is nobody's business */
    for (size_t i = 0; i < sizeof tag.b; i++) {
        differs |= (uint8_t)(tag.b[i] ^ head[p->tag_at + i]);
    }
    return differs == 0 ? MX_OK : mx_fail(eb, MX_E_CORRUPT, "authentication");
}

/* Magic, header checksum, version, features: in this order, so that damage is told from
 * foreignness. */
/* `known`: the incompatible features that mean something to the caller. */
static mx_err check_common(const uint8_t *h, const uint8_t magic[8], size_t sum_at, uint64_t known,
                           mx_errbuf *eb)
{
    if (memcmp(h, magic, 8) != 0) {
        return mx_fail(eb, MX_E_CORRUPT, "magic");
    }
    if (!sum_is(h + sum_at, h, sum_at)) {
        return mx_fail(eb, MX_E_CORRUPT, "header checksum");
    }
    uint32_t version = mx_get_le32(h + AT_VERSION);
    if (version != MX_DISK_VERSION) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "version %u", version);
    }
    uint64_t features = mx_get_le64(h + AT_INCOMPATIBLE);
    if ((features & ~known) != 0) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "incompatible features %llx",
                       (unsigned long long)features);
    }
    if (mx_get_le32(h + AT_HEADER_LENGTH) != sum_at + 16) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "header length");
    }
    return MX_OK;
}

/* ---- pages and states ------------------------------------------------------------------------ */

mx_hash256 mx_cold_state_identity(const mx_hash256 *root, const mx_hash256 *parent_id,
                                  uint64_t first_page, const int32_t *tokens, uint32_t n_tokens)
{
    static const char tag[16] = "mtplx state v1";
    uint8_t bytes[sizeof tag + 32 + 32 + 8 + 8];
    mx_hash256 chain = mx_page_identity(root, parent_id, tokens, n_tokens);
    memcpy(bytes, tag, sizeof tag);
    memcpy(bytes + 16, root->b, 32);
    memcpy(bytes + 48, chain.b, 32);
    mx_put_le64(bytes + 80, first_page * MX_DISK_PAGE_TOKENS + n_tokens);
    mx_put_le64(bytes + 88, MX_DISK_PRESENT_RECURRENT);
    return mx_sha256_of(bytes, sizeof bytes);
}

size_t mx_disk_payload_bytes(const mx_kv_shape *shape, uint32_t n_tokens)
{
    assert(n_tokens >= 1 && n_tokens <= MX_PAGE_TOKENS);
    return n_tokens == MX_PAGE_TOKENS ? mx_kv_page_bytes(shape)
                                      : mx_kv_rows_bytes(shape, n_tokens);
}

bool mx_disk_is_payload_bytes(const mx_kv_shape *shape, const mx_disk_page *p)
{
    if (p->lacks_local && shape->n_local == 0) {
        return false;
    }
    return p->payload_bytes == (p->is_state      ? shape->state_bytes
                                : p->lacks_local ? mx_kv_payload_bytes(shape)
                                                 : mx_disk_payload_bytes(shape, p->n_tokens));
}

uint16_t mx_disk_kv_type(mx_kv_type type)
{
    switch (type) {
    case MX_KV_F16: return MX_DISK_TYPE_F16;
    case MX_KV_F32: return MX_DISK_TYPE_F32;
    case MX_KV_Q8: return MX_DISK_TYPE_Q8;
    }
    assert(false && "unknown KV type");
    return 0;
}

void mx_disk_page_encode(const mx_disk_page *p, uint8_t out[MX_DISK_PAYLOAD_AT])
{
    assert(p->n_tokens >= 1 && p->n_tokens <= MX_DISK_PAGE_TOKENS);
    assert(p->first_position % MX_DISK_PAGE_TOKENS == 0);
    memset(out, 0, MX_DISK_PAYLOAD_AT);
    assert(!p->lacks_local || (!p->is_state && p->n_tokens == MX_DISK_PAGE_TOKENS));
    put_common(out, page_magic, MX_DISK_PAGE_HEADER_BYTES, &p->root);
    mx_put_le64(out + AT_INCOMPATIBLE, p->lacks_local ? MX_DISK_FEATURE_NO_WINDOW : 0);
    memcpy(out + P_OWN, p->own.b, 32);
    memcpy(out + P_PARENT, p->parent.b, 32);
    mx_put_le32(out + P_KIND, p->is_state ? MX_DISK_KIND_STATE : MX_DISK_KIND_KV);
    mx_put_le32(out + P_GROUP, MX_DISK_GROUP_FULL);
    mx_put_le64(out + P_PRESENCE, p->is_state ? MX_DISK_PRESENT_RECURRENT : MX_DISK_PRESENT_KV);
    mx_put_le32(out + P_PAGE_SIZE, MX_DISK_PAGE_TOKENS);
    mx_put_le32(out + P_N_TOKENS, p->n_tokens);
    mx_put_le64(out + P_FIRST, p->first_position);
    mx_put_le32(out + P_SCHEME, MX_DISK_POSITIONS_PLAIN);
    mx_put_le16(out + P_K_TYPE, p->kv_type);
    mx_put_le16(out + P_V_TYPE, p->kv_type);
    mx_put_le32(out + P_CODEC, p->codec);
    mx_put_le64(out + P_STORED, p->stored_bytes);
    mx_put_le64(out + P_RAW, p->payload_bytes);
    memcpy(out + P_STORED_SUM, p->stored_sum.b, 16);
    memcpy(out + P_RAW_SUM, p->payload_sum.b, 16);
    mx_put_le32(out + P_AUTH_KIND, p->auth);
    memcpy(out + P_AUTH_TAG, p->tag.b, 32);
    memcpy(out + P_BUILD, writer_build, sizeof writer_build);
    put_sum(out + P_HEADER_SUM, out, P_HEADER_SUM);
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        mx_put_le32(out + MX_DISK_PAGE_HEADER_BYTES + 4 * i, (uint32_t)p->tokens[i]);
    }
}

/* Step 5: what a later version may turn on, and this one cannot do. */
static mx_err check_page_features(const uint8_t *b, bool is_state, mx_errbuf *eb)
{
    uint32_t codec = mx_get_le32(b + P_CODEC);
    if (codec != MX_CODEC_NONE && (is_state || !mx_codec_is_known(codec))) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "codec");
    }
    if (mx_get_le32(b + P_SCHEME) != MX_DISK_POSITIONS_PLAIN) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "position scheme");
    }
    if (mx_get_le32(b + P_AUTH_KIND) > MX_DISK_AUTH_HMAC_SHA256
        || mx_get_le32(b + P_CRYPT_KIND) != 0) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "authentication or encryption");
    }
    if (!is_zero(b + P_DIGEST, 32) || !is_zero(b + P_ADAPTER, 32)) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "input digest or adapter");
    }
    return MX_OK;
}

/* As it is, it is the same twice; compressed, it is shorter, or it would not have been. */
static bool is_stored_right(const uint8_t *b)
{
    uint64_t stored = mx_get_le64(b + P_STORED), raw = mx_get_le64(b + P_RAW);
    return mx_get_le32(b + P_CODEC) == MX_CODEC_NONE
               ? stored == raw && memcmp(b + P_STORED_SUM, b + P_RAW_SUM, 16) == 0
               : stored < raw;
}

/* Step 6: what version 1 fixes. */
static mx_err check_page_fields(const uint8_t *b, bool is_state, mx_errbuf *eb)
{
    uint32_t n = mx_get_le32(b + P_N_TOKENS);
    uint32_t kind = is_state ? MX_DISK_KIND_STATE : MX_DISK_KIND_KV;
    uint64_t presence = is_state ? MX_DISK_PRESENT_RECURRENT : MX_DISK_PRESENT_KV;
    const char *bad = NULL;
    bool has_tag = mx_get_le32(b + P_AUTH_KIND) != MX_DISK_AUTH_NONE;
    if (!is_zero(b + P_ZERO_1, 4) || (!has_tag && !is_zero(b + P_AUTH_TAG, 32))
        || !is_zero(b + P_NONCE, P_BUILD - P_NONCE)
        || !is_zero(b + P_ZERO_2, P_HEADER_SUM - P_ZERO_2)) {
        bad = "zero field";
    } else if (mx_get_le32(b + P_KIND) != kind) {
        bad = "kind";
    } else if (mx_get_le32(b + P_GROUP) != MX_DISK_GROUP_FULL) {
        bad = "layer group";
    } else if (mx_get_le64(b + P_PRESENCE) != presence) {
        bad = "presence";
    } else if (mx_get_le32(b + P_PAGE_SIZE) != MX_DISK_PAGE_TOKENS) {
        bad = "page size";
    } else if (n < 1 || n > MX_DISK_PAGE_TOKENS) {
        bad = "n_tokens";
    } else if (mx_get_le64(b + AT_INCOMPATIBLE) != 0 && (is_state || n < MX_DISK_PAGE_TOKENS)) {
        bad = "rows of windowed layers left out";
    } else if (mx_get_le64(b + P_FIRST) % MX_DISK_PAGE_TOKENS != 0) {
        bad = "first position";
    } else if (mx_get_le16(b + P_K_TYPE) != mx_get_le16(b + P_V_TYPE)) {
        bad = "type";
    } else if (!is_stored_right(b)) {
        bad = "stored and raw differ";
    } else {
        size_t end = MX_DISK_PAGE_HEADER_BYTES + 4 * (size_t)n;
        if (!is_zero(b + end, MX_DISK_PAYLOAD_AT - end)) {
            bad = "zero bytes before the payload";
        }
    }
    return bad == NULL ? MX_OK : mx_fail(eb, MX_E_CORRUPT, "%s", bad);
}

static mx_err decode(mx_disk_page *p, bool is_state, const uint8_t *bytes, size_t n,
                     mx_errbuf *eb)
{
    memset(p, 0, sizeof *p);
    p->is_state = is_state;
    if (n < MX_DISK_PAYLOAD_AT) {
        return mx_fail(eb, MX_E_CORRUPT, "size");
    }
    MX_TRY(check_common(bytes, page_magic, P_HEADER_SUM, MX_DISK_FEATURE_NO_WINDOW, eb));
    MX_TRY(check_page_features(bytes, is_state, eb));
    MX_TRY(check_page_fields(bytes, is_state, eb));
    memcpy(p->root.b, bytes + AT_ROOT, 32);
    p->lacks_local = mx_get_le64(bytes + AT_INCOMPATIBLE) == MX_DISK_FEATURE_NO_WINDOW;
    memcpy(p->own.b, bytes + P_OWN, 32);
    memcpy(p->parent.b, bytes + P_PARENT, 32);
    p->n_tokens = mx_get_le32(bytes + P_N_TOKENS);
    p->first_position = mx_get_le64(bytes + P_FIRST);
    p->kv_type = mx_get_le16(bytes + P_K_TYPE);
    p->codec = mx_get_le32(bytes + P_CODEC);
    p->payload_bytes = mx_get_le64(bytes + P_RAW);
    p->stored_bytes = mx_get_le64(bytes + P_STORED);
    memcpy(p->payload_sum.b, bytes + P_RAW_SUM, 16);
    memcpy(p->stored_sum.b, bytes + P_STORED_SUM, 16);
    p->auth = mx_get_le32(bytes + P_AUTH_KIND);
    memcpy(p->tag.b, bytes + P_AUTH_TAG, 32);
    for (uint32_t i = 0; i < p->n_tokens; i++) {
        p->tokens[i] = (int32_t)mx_get_le32(bytes + MX_DISK_PAGE_HEADER_BYTES + 4 * i);
    }
    mx_hash256 own = is_state ? mx_cold_state_identity(&p->root, &p->parent,
                                                       p->first_position / MX_DISK_PAGE_TOKENS,
                                                       p->tokens, p->n_tokens)
                              : mx_page_identity(&p->root, &p->parent, p->tokens, p->n_tokens);
    if (!mx_hash256_eq(&own, &p->own)) {
        return mx_fail(eb, MX_E_CORRUPT, "identity");
    }
    return MX_OK;
}

mx_err mx_disk_page_decode(mx_disk_page *p, const uint8_t *bytes, size_t n, mx_errbuf *eb)
{
    return decode(p, false, bytes, n, eb);
}

mx_err mx_disk_state_decode(mx_disk_page *p, const uint8_t *bytes, size_t n, mx_errbuf *eb)
{
    return decode(p, true, bytes, n, eb);
}

mx_err mx_disk_page_verify(const mx_disk_page *p, const uint8_t *stored, size_t n, mx_errbuf *eb)
{
    if (n != p->stored_bytes) {
        return mx_fail(eb, MX_E_CORRUPT, "payload length");
    }
    if (!sum_is(p->stored_sum.b, stored, n)) {
        return mx_fail(eb, MX_E_CORRUPT, "payload checksum");
    }
    return MX_OK;
}

mx_err mx_disk_page_unpack(const mx_disk_page *p, mx_codec *codec, const uint8_t *stored,
                           uint8_t *payload, mx_errbuf *eb)
{
    size_t n = (size_t)p->payload_bytes;
    MX_TRY(mx_codec_decode(codec, p->codec, stored, (size_t)p->stored_bytes, payload, n, eb));
    return sum_is(p->payload_sum.b, payload, n) ? MX_OK : mx_fail(eb, MX_E_CORRUPT, "raw checksum");
}

mx_err mx_disk_page_seal(uint8_t head[MX_DISK_PAYLOAD_AT], const mx_hash256 *key,
                         const uint8_t *stored, size_t n)
{
    return seal(&page_auth, head, key, stored, n);
}

mx_err mx_disk_page_authenticate(const uint8_t head[MX_DISK_PAYLOAD_AT], const mx_hash256 *key,
                                 const uint8_t *stored, size_t n, mx_errbuf *eb)
{
    return authenticate(&page_auth, head, key, stored, n, eb);
}

mx_err mx_disk_stored_bytes(const uint8_t header[MX_DISK_PAGE_HEADER_BYTES], uint64_t *n)
{
    *n = mx_get_le64(header + P_STORED);
    return sum_is(header + P_HEADER_SUM, header, P_HEADER_SUM) ? MX_OK : MX_E_CORRUPT;
}

uint32_t mx_disk_codec(uint32_t method, mx_kv_type type)
{
    if (method == MX_CODEC_NONE) {
        return MX_CODEC_NONE;
    }
    return mx_codec_id(method, type == MX_KV_F16 ? 2 : type == MX_KV_F32 ? 4 : 1);
}

/* ---- manifests ------------------------------------------------------------------------------- */

void mx_disk_manifest_encode(mx_buf *out, const mx_disk_manifest *m)
{
    assert(m->n_pages >= 1 && m->n_pages <= MX_DISK_MANIFEST_MAX_PAGES);
    assert(m->n_states <= m->n_pages && m->n_turns <= MX_DISK_MANIFEST_MAX_TURNS);
    size_t turns_bytes = MX_DISK_TURN_BYTES * (size_t)m->n_turns;
    uint8_t h[MX_DISK_MANIFEST_HEADER_BYTES] = {0};
    put_common(h, manifest_magic, sizeof h, &m->root);
    memcpy(h + S_SESSION, m->session_id.b, 32);
    mx_put_le32(h + S_ENTRY_KIND, m->entry_kind);
    mx_put_le32(h + S_PAGE_SIZE, MX_DISK_PAGE_TOKENS);
    mx_put_le64(h + S_N_TOKENS, m->n_tokens);
    mx_put_le32(h + S_N_PAGES, m->n_pages);
    mx_put_le32(h + S_N_STATES, m->n_states);
    mx_put_le64(h + S_TURNS, turns_bytes);
    mx_put_le64(h + S_CREATED, m->created_s);
    mx_put_le32(h + S_ORIGIN, m->is_imported);
    memcpy(h + S_BUILD, writer_build, sizeof writer_build);
    size_t at = out->len;
    mx_buf_append(out, h, sizeof h);
    mx_buf_append(out, m->page_ids, 32 * (size_t)m->n_pages);
    if (m->n_states > 0) {
        mx_buf_append(out, m->state_ids, 32 * (size_t)m->n_states);
    }
    if (m->n_turns > 0) {
        mx_buf_append(out, m->turns, turns_bytes);
    }
    if (out->failed) {
        return;
    }
    uint8_t *header = (uint8_t *)out->ptr + at, *body = header + sizeof h;
    put_sum(header + S_BODY_SUM, body, 32 * ((size_t)m->n_pages + m->n_states) + turns_bytes);
    put_sum(header + S_HEADER_SUM, header, S_HEADER_SUM);
}

static bool are_turns(const uint8_t *b, uint64_t n, uint64_t n_tokens)
{
    mx_turn t;
    for (uint64_t i = 0; i < n; i++) {
        if (!mx_turn_decode(&t, b + i * MX_DISK_TURN_BYTES) || t.n_prompt >= n_tokens) {
            return false;
        }
    }
    return true;
}

mx_err mx_disk_manifest_seal(uint8_t *bytes, size_t n, const mx_hash256 *key)
{
    assert(n >= MX_DISK_MANIFEST_HEADER_BYTES);
    return seal(&manifest_auth, bytes, key, bytes + MX_DISK_MANIFEST_HEADER_BYTES,
                n - MX_DISK_MANIFEST_HEADER_BYTES);
}

mx_err mx_disk_manifest_authenticate(const uint8_t *bytes, size_t n, const mx_hash256 *key,
                                     mx_errbuf *eb)
{
    assert(n >= MX_DISK_MANIFEST_HEADER_BYTES);
    return authenticate(&manifest_auth, bytes, key, bytes + MX_DISK_MANIFEST_HEADER_BYTES,
                        n - MX_DISK_MANIFEST_HEADER_BYTES, eb);
}

static mx_err check_manifest_fields(const uint8_t *b, size_t n, mx_errbuf *eb)
{
    uint64_t n_pages = mx_get_le32(b + S_N_PAGES), n_states = mx_get_le32(b + S_N_STATES);
    uint64_t n_tokens = mx_get_le64(b + S_N_TOKENS), turns = mx_get_le64(b + S_TURNS);
    const char *bad = NULL;
    bool has_tag = mx_get_le32(b + S_AUTH_KIND) != MX_DISK_AUTH_NONE;
    if (mx_get_le32(b + S_AUTH_KIND) > MX_DISK_AUTH_HMAC_SHA256) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "authentication");
    }
    if (!is_zero(b + S_ZERO_1, 4) || (!has_tag && !is_zero(b + S_AUTH_TAG, 32))
        || !is_zero(b + S_ZERO_2, S_HEADER_SUM - S_ZERO_2)) {
        bad = "zero field";
    } else if (mx_get_le32(b + S_ENTRY_KIND) > MX_DISK_ENTRY_TURN) {
        bad = "entry kind";
    } else if (mx_get_le32(b + S_PAGE_SIZE) != MX_DISK_PAGE_TOKENS) {
        bad = "page size";
    } else if (n_pages < 1 || n_pages > MX_DISK_MANIFEST_MAX_PAGES || n_states > n_pages) {
        bad = "number of pages or states";
    } else if (n_tokens <= (n_pages - 1) * MX_DISK_PAGE_TOKENS
               || n_tokens > n_pages * MX_DISK_PAGE_TOKENS) {
        bad = "n_tokens";
    } else if (mx_get_le32(b + S_ORIGIN) > 1) {
        bad = "origin";
    } else if (turns % MX_DISK_TURN_BYTES != 0
               || turns / MX_DISK_TURN_BYTES > MX_DISK_MANIFEST_MAX_TURNS) {
        bad = "length of the turns";
    } else if (n != MX_DISK_MANIFEST_HEADER_BYTES + 32 * (n_pages + n_states) + turns) {
        bad = "size";
    } else if (!sum_is(b + S_BODY_SUM, b + MX_DISK_MANIFEST_HEADER_BYTES,
                       n - MX_DISK_MANIFEST_HEADER_BYTES)) {
        bad = "body checksum";
    } else if (!are_turns(b + n - turns, turns / MX_DISK_TURN_BYTES, n_tokens)) {
        bad = "a turn";
    }
    return bad == NULL ? MX_OK : mx_fail(eb, MX_E_CORRUPT, "%s", bad);
}

mx_err mx_disk_manifest_decode(mx_disk_manifest *m, const uint8_t *bytes, size_t n, mx_errbuf *eb)
{
    memset(m, 0, sizeof *m);
    if (n < MX_DISK_MANIFEST_HEADER_BYTES || n > MX_DISK_MANIFEST_MAX_BYTES) {
        return mx_fail(eb, MX_E_CORRUPT, "size");
    }
    MX_TRY(check_common(bytes, manifest_magic, S_HEADER_SUM, 0, eb));
    MX_TRY(check_manifest_fields(bytes, n, eb));
    memcpy(m->root.b, bytes + AT_ROOT, 32);
    memcpy(m->session_id.b, bytes + S_SESSION, 32);
    m->entry_kind = mx_get_le32(bytes + S_ENTRY_KIND);
    m->n_tokens = mx_get_le64(bytes + S_N_TOKENS);
    m->n_pages = mx_get_le32(bytes + S_N_PAGES);
    m->created_s = mx_get_le64(bytes + S_CREATED);
    m->is_imported = mx_get_le32(bytes + S_ORIGIN) == 1;
    m->auth = mx_get_le32(bytes + S_AUTH_KIND);
    m->page_ids = (const mx_hash256 *)(bytes + MX_DISK_MANIFEST_HEADER_BYTES);
    m->n_states = mx_get_le32(bytes + S_N_STATES);
    m->state_ids = m->page_ids + m->n_pages;
    m->turns = (const uint8_t *)(m->state_ids + m->n_states);
    m->n_turns = (uint32_t)(mx_get_le64(bytes + S_TURNS) / MX_DISK_TURN_BYTES);
    return MX_OK;
}
