/* SPDX-License-Identifier: MIT
 *
 * The shape of a page's payload, and moving rows between payloads.
 *
 *   payload: [layer][kv_head] { K tile [head_dim][64] | V tile [64][head_dim] }, padded to 4 KiB
 *            (in q8 each tile is followed by the scales of its tokens, [64])
 *   local:   the same for the layers that have a window, which are the last ones
 *
 * A whole page in one piece is the layers of the payload, then those of local, without a gap, and in the
 * end padded to 4 KiB.
 *
 * A token is a column of the K tile and a row of the V tile, so the first n tokens are head_dim
 * short runs in the one and a single run in the other. Rows are moved as bytes; their type matters
 * only for its size.
 */
#include "kv/kv.h"

#include <assert.h>

enum {
    PAYLOAD_ALIGN = 4096,
    GROUP_FULL_ATTENTION = 0, /* the only layer group so far */
    TAG_BYTES = 16,
};

/* Far beyond any model, small enough that no product below can overflow 64 bits. */
static const uint64_t max_dimension = 1u << 16;
static const uint64_t max_payload_bytes = 1ull << 32;

static bool shape_is_possible(const mx_kv_shape *s)
{
    return s->n_layers - 1u < max_dimension && s->n_kv_heads - 1u < max_dimension &&
           s->head_dim - 1u < max_dimension && (unsigned)s->type <= MX_KV_Q8 &&
           s->n_local < s->n_layers && (s->n_local == 0) == (s->window == 0) &&
           s->state_bytes <= max_payload_bytes &&
           (uint64_t)s->n_layers * s->n_kv_heads <= max_payload_bytes &&
           (uint64_t)s->n_layers * s->n_kv_heads * 2 *
                   mx_kv_tile_bytes(s->type, s->head_dim) <= max_payload_bytes;
}

static size_t layers_bytes(const mx_kv_shape *s, uint32_t n_layers)
{
    size_t tiles = (size_t)n_layers * s->n_kv_heads * 2;
    return mx_round_up(tiles * mx_kv_tile_bytes(s->type, s->head_dim), PAYLOAD_ALIGN);
}

size_t mx_kv_payload_bytes(const mx_kv_shape *s)
{
    return shape_is_possible(s) ? layers_bytes(s, s->n_layers - s->n_local) : 0;
}

size_t mx_kv_local_bytes(const mx_kv_shape *s)
{
    return shape_is_possible(s) ? layers_bytes(s, s->n_local) : 0;
}

size_t mx_kv_page_bytes(const mx_kv_shape *s)
{
    return shape_is_possible(s) ? layers_bytes(s, s->n_layers) : 0;
}

size_t mx_kv_first_seen(const mx_kv_shape *s, size_t n_tokens)
{
    return s->n_local > 0 && n_tokens >= s->window ? (n_tokens + 1 - s->window) / MX_PAGE_TOKENS : 0;
}

size_t mx_kv_first_kept(const mx_kv_shape *s, size_t n_tokens)
{
    return n_tokens > 0 ? mx_kv_first_seen(s, n_tokens - 1) : 0;
}

size_t mx_kv_chain_bytes(const mx_kv_shape *s, size_t n_tokens)
{
    size_t n = (n_tokens + MX_PAGE_TOKENS - 1) / MX_PAGE_TOKENS;
    return n * mx_kv_payload_bytes(s) + (n - mx_kv_first_kept(s, n_tokens)) * mx_kv_local_bytes(s);
}

size_t mx_kv_rows_bytes(const mx_kv_shape *s, uint32_t n_rows)
{
    if (!shape_is_possible(s) || n_rows > MX_PAGE_TOKENS) {
        return 0;
    }
    return (size_t)s->n_layers * s->n_kv_heads * 2 * mx_kv_tile_bytes(s->type, s->head_dim) /
           MX_PAGE_TOKENS * n_rows;
}

/* Where the tiles of the first n_pairs layers and heads end. */
static size_t tiles_end(const mx_kv_shape *s, size_t n_pairs)
{
    return n_pairs * 2 * mx_kv_tile_bytes(s->type, s->head_dim);
}

uint8_t *mx_page_k_tile(const mx_kv_shape *s, uint8_t *bytes, uint32_t layer, uint32_t head)
{
    assert(layer < s->n_layers && head < s->n_kv_heads);
    return bytes + tiles_end(s, (size_t)layer * s->n_kv_heads + head);
}

uint8_t *mx_page_v_tile(const mx_kv_shape *s, uint8_t *bytes, uint32_t layer, uint32_t head)
{
    return mx_page_k_tile(s, bytes, layer, head) + mx_kv_tile_bytes(s->type, s->head_dim);
}

/* Layers of the payload. */
static uint32_t n_global(const mx_kv_shape *s)
{
    return s->n_layers - s->n_local;
}

uint8_t *mx_page_k_of(const mx_kv_shape *s, const mx_page *page, uint32_t layer, uint32_t head)
{
    if (layer < n_global(s)) {
        return mx_page_k_tile(s, page->payload, layer, head);
    }
    assert(page->local != NULL);
    return mx_page_k_tile(s, page->local, layer - n_global(s), head);
}

uint8_t *mx_page_v_of(const mx_kv_shape *s, const mx_page *page, uint32_t layer, uint32_t head)
{
    return mx_page_k_of(s, page, layer, head) + mx_kv_tile_bytes(s->type, s->head_dim);
}

/* Where the second group of layers begins in one piece. */
static size_t local_at(const mx_kv_shape *s)
{
    return tiles_end(s, (size_t)n_global(s) * s->n_kv_heads);
}

const uint8_t *mx_page_local_in(const mx_kv_shape *s, const uint8_t *bytes)
{
    return s->n_local > 0 ? bytes + local_at(s) : NULL;
}

void mx_page_join(const mx_kv_shape *s, uint8_t *bytes, const uint8_t *payload,
                  const uint8_t *local)
{
    const size_t at = local_at(s), end = tiles_end(s, (size_t)s->n_layers * s->n_kv_heads);
    memcpy(bytes, payload, at);
    if (end > at) {
        memcpy(bytes + at, local, end - at);
    }
    memset(bytes + end, 0, mx_kv_page_bytes(s) - end);
}

void mx_page_part(const mx_kv_shape *s, uint8_t *payload, uint8_t *local, const uint8_t *bytes)
{
    const size_t at = local_at(s), end = tiles_end(s, (size_t)s->n_layers * s->n_kv_heads);
    memcpy(payload, bytes, at);
    if (local != NULL) {
        memcpy(local, bytes + at, end - at);
    }
}

/* Copies n_rows tokens of all tiles between two places that differ in how far apart the head_dim
 * runs of a K tile are and how long a tile is. */
typedef struct tile_form {
    size_t k_run_bytes; /* from one dimension's run to the next in a K tile */
    size_t scales_at;   /* behind the elements of a tile: one for each token, or nothing */
    size_t tile_bytes;
} tile_form;

static void move_rows(const mx_kv_shape *s, uint32_t n_layers, uint8_t *dst, tile_form to,
                      const uint8_t *src, tile_form from, uint32_t n_rows)
{
    size_t run = n_rows * mx_kv_elem_bytes(s->type), scales = n_rows * mx_kv_scale_bytes(s->type);
    size_t pairs = (size_t)n_layers * s->n_kv_heads;
    for (size_t i = 0; i < pairs; i++) {
        for (uint32_t d = 0; d < s->head_dim; d++) {
            memcpy(dst + d * to.k_run_bytes, src + d * from.k_run_bytes, run);
        }
        memcpy(dst + to.tile_bytes, src + from.tile_bytes, run * s->head_dim);
        memcpy(dst + to.scales_at, src + from.scales_at, scales);
        memcpy(dst + to.tile_bytes + to.scales_at, src + from.tile_bytes + from.scales_at, scales);
        dst += 2 * to.tile_bytes;
        src += 2 * from.tile_bytes;
    }
}

static tile_form packed_form(const mx_kv_shape *s, uint32_t n_rows)
{
    const size_t run = n_rows * mx_kv_elem_bytes(s->type);
    return (tile_form){
        .k_run_bytes = run,
        .scales_at = run * s->head_dim,
        .tile_bytes = run * s->head_dim + n_rows * mx_kv_scale_bytes(s->type),
    };
}

static tile_form page_form(const mx_kv_shape *s)
{
    return packed_form(s, MX_PAGE_TOKENS);
}

static void copy_layers(const mx_kv_shape *s, uint32_t n_layers, uint8_t *dst, const uint8_t *src,
                        uint32_t n_rows)
{
    assert(n_rows <= MX_PAGE_TOKENS);
    if (n_rows == MX_PAGE_TOKENS) {
        memcpy(dst, src, (size_t)n_layers * s->n_kv_heads * 2 *
                             mx_kv_tile_bytes(s->type, s->head_dim));
        return;
    }
    move_rows(s, n_layers, dst, page_form(s), src, page_form(s), n_rows);
}

void mx_page_copy_rows(const mx_kv_shape *s, uint8_t *dst, const uint8_t *src, uint32_t n_rows)
{
    copy_layers(s, s->n_layers, dst, src, n_rows);
}

void mx_page_copy(mx_kv_pool *p, mx_page *to, const mx_page *from, uint32_t n_rows)
{
    const mx_kv_shape *s = mx_kv_pool_shape(p);
    copy_layers(s, n_global(s), to->payload, from->payload, n_rows);
    if (from->local != NULL && from->local_rows >= n_rows) {
        assert(to->local != NULL);
        copy_layers(s, s->n_local, to->local, from->local, n_rows);
    } else {
        mx_page_shed_local(p, to);
    }
}

void mx_page_copy_local(const mx_kv_shape *s, mx_page *to, const mx_page *from, uint32_t n_rows)
{
    copy_layers(s, s->n_local, to->local, from->local, n_rows);
}

void mx_page_pack_rows(const mx_kv_shape *s, uint8_t *out, const uint8_t *bytes, uint32_t n_rows)
{
    assert(n_rows <= MX_PAGE_TOKENS);
    move_rows(s, s->n_layers, out, packed_form(s, n_rows), bytes, page_form(s), n_rows);
}

void mx_page_pack_blocks(const mx_kv_shape *s, uint8_t *out, const uint8_t *payload,
                         const uint8_t *local, uint32_t n_rows)
{
    assert(n_rows <= MX_PAGE_TOKENS);
    const tile_form to = packed_form(s, n_rows), from = page_form(s);
    const size_t at = (size_t)n_global(s) * s->n_kv_heads * 2 * to.tile_bytes;
    move_rows(s, n_global(s), out, to, payload, from, n_rows);
    if (s->n_local > 0) {
        move_rows(s, s->n_local, out + at, to, local, from, n_rows);
    }
}

void mx_page_unpack_rows(const mx_kv_shape *s, uint8_t *bytes, const uint8_t *in, uint32_t n_rows)
{
    assert(n_rows <= MX_PAGE_TOKENS);
    move_rows(s, s->n_layers, bytes, page_form(s), in, packed_form(s, n_rows), n_rows);
}

void mx_page_poison_tail(const mx_kv_shape *s, mx_page *page)
{
    size_t elem = mx_kv_elem_bytes(s->type), scale = mx_kv_scale_bytes(s->type);
    size_t scales_at = MX_PAGE_TOKENS * s->head_dim * elem;
    size_t keep = page->n_rows;
    const uint32_t n_layers = page->local != NULL ? s->n_layers : n_global(s);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        for (uint32_t head = 0; head < s->n_kv_heads; head++) {
            uint8_t *k = mx_page_k_of(s, page, layer, head);
            uint8_t *v = mx_page_v_of(s, page, layer, head);
            for (uint32_t d = 0; d < s->head_dim; d++) {
                memset(k + (d * MX_PAGE_TOKENS + keep) * elem, 0xFF,
                       (MX_PAGE_TOKENS - keep) * elem);
            }
            memset(v + keep * s->head_dim * elem, 0xFF,
                   (MX_PAGE_TOKENS - keep) * s->head_dim * elem);
            memset(k + scales_at + keep * scale, 0xFF, (MX_PAGE_TOKENS - keep) * scale);
            memset(v + scales_at + keep * scale, 0xFF, (MX_PAGE_TOKENS - keep) * scale);
        }
    }
}

mx_hash256 mx_page_identity(const mx_hash256 *root, const mx_hash256 *parent_id,
                            const int32_t *tokens, uint32_t n_tokens)
{
    static const char tag[TAG_BYTES] = "mtplx page v1";
    uint8_t bytes[TAG_BYTES + 32 + 32 + 4 + 4 + 4 * MX_PAGE_TOKENS];
    assert(n_tokens <= MX_PAGE_TOKENS);
    uint8_t *p = bytes;
    memcpy(p, tag, TAG_BYTES);
    p += TAG_BYTES;
    memcpy(p, root->b, 32);
    memcpy(p + 32, parent_id->b, 32);
    p += 64;
    mx_put_le32(p, GROUP_FULL_ATTENTION);
    mx_put_le32(p + 4, n_tokens);
    p += 8;
    for (uint32_t i = 0; i < n_tokens; i++, p += 4) {
        mx_put_le32(p, (uint32_t)tokens[i]);
    }
    return mx_sha256_of(bytes, (size_t)(p - bytes));
}
