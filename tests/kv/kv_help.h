/* SPDX-License-Identifier: MIT
 *
 * kv_help.h: rows that tell where they belong. The payload of a token's row is derived from a hash
 * of all tokens up to and including it, which is what a model does, too: a row that turns up behind
 * another prefix, or in the wrong place, does not match.
 */
#ifndef MX_TEST_KV_HELP_H
#define MX_TEST_KV_HELP_H

#include "kv/kv.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

/* splitmix64. */
MX_INLINE uint64_t help_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The hash of a prefix from that of the prefix one token shorter (0 for none). */
MX_INLINE uint64_t help_extend(uint64_t hash, int32_t token)
{
    return help_mix(hash ^ help_mix((uint64_t)(uint32_t)token + 1));
}

MX_INLINE uint64_t help_prefix_hash(const int32_t *tokens, size_t n)
{
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) {
        h = help_extend(h, tokens[i]);
    }
    return h;
}

MX_INLINE uint32_t help_rand(uint64_t *state, uint32_t below)
{
    *state = help_mix(*state);
    return (uint32_t)((*state >> 20) % below);
}

/* The scale of a row in a tile (layer, head, K or V), where the type has scales. */
MX_INLINE uint8_t *help_scale(const mx_kv_shape *s, uint8_t *payload, uint32_t row, uint32_t tile)
{
    size_t at = tile * mx_kv_tile_bytes(s->type, s->head_dim);
    return payload + at + MX_PAGE_TOKENS * s->head_dim * mx_kv_elem_bytes(s->type) +
           row * mx_kv_scale_bytes(s->type);
}

/* Element `e` (0 .. layers * heads * 2 * head_dim - 1) of a row: its tile, and its place in there. */
typedef struct help_place {
    bool is_key;
    uint32_t layer, head;
    size_t at;
} help_place;

MX_INLINE help_place help_place_of(const mx_kv_shape *s, uint32_t row, uint32_t e)
{
    uint32_t d = e % s->head_dim, tile = e / s->head_dim;
    bool is_key = tile % 2 == 0;
    return (help_place){
        .is_key = is_key,
        .layer = tile / 2 / s->n_kv_heads,
        .head = tile / 2 % s->n_kv_heads,
        .at = (is_key ? d * MX_PAGE_TOKENS + row : row * s->head_dim + d) * mx_kv_elem_bytes(s->type),
    };
}

MX_INLINE uint8_t *help_elem(const mx_kv_shape *s, uint8_t *payload, uint32_t row, uint32_t e)
{
    const help_place p = help_place_of(s, row, e);
    return p.at + (p.is_key ? mx_page_k_tile(s, payload, p.layer, p.head)
                            : mx_page_v_tile(s, payload, p.layer, p.head));
}

MX_INLINE uint32_t help_n_elems(const mx_kv_shape *s)
{
    return s->n_layers * s->n_kv_heads * 2 * s->head_dim;
}

MX_INLINE void help_write_row(const mx_kv_shape *s, uint8_t *payload, uint32_t row, uint64_t hash)
{
    for (uint32_t e = 0; e < help_n_elems(s); e++) {
        uint64_t v = help_mix(hash + e);
        memcpy(help_elem(s, payload, row, e), &v, mx_kv_elem_bytes(s->type));
        memcpy(help_scale(s, payload, row, e / s->head_dim), &v, mx_kv_scale_bytes(s->type));
    }
}

MX_INLINE bool help_row_is(const mx_kv_shape *s, uint8_t *payload, uint32_t row, uint64_t hash)
{
    for (uint32_t e = 0; e < help_n_elems(s); e++) {
        uint64_t v = help_mix(hash + e);
        uint8_t *scale = help_scale(s, payload, row, e / s->head_dim);
        bool is_last = (e + 1) % s->head_dim == 0; /* the last element of a tile wrote the scale */
        if (memcmp(help_elem(s, payload, row, e), &v, mx_kv_elem_bytes(s->type)) != 0 ||
            (is_last && memcmp(scale, &v, mx_kv_scale_bytes(s->type)) != 0))
        {
            return false;
        }
    }
    return true;
}

/* The same of a page: local rows must be there. */
MX_INLINE uint8_t *help_page_elem(const mx_kv_shape *s, const mx_page *page, uint32_t row, uint32_t e)
{
    const help_place p = help_place_of(s, row, e);
    return p.at + (p.is_key ? mx_page_k_of(s, page, p.layer, p.head)
                            : mx_page_v_of(s, page, p.layer, p.head));
}

/* Elements of a row in the layers that have no window. */
MX_INLINE uint32_t help_n_global(const mx_kv_shape *s)
{
    return (s->n_layers - s->n_local) * s->n_kv_heads * 2 * s->head_dim;
}

/* Types without scales only. */
MX_INLINE void help_write_page_row(const mx_kv_shape *s, const mx_page *page, uint32_t row,
                                   uint64_t hash)
{
    for (uint32_t e = 0; e < help_n_elems(s); e++) {
        uint64_t v = help_mix(hash + e);
        memcpy(help_page_elem(s, page, row, e), &v, mx_kv_elem_bytes(s->type));
    }
}

MX_INLINE bool help_page_row_is(const mx_kv_shape *s, const mx_page *page, uint32_t row,
                                uint64_t hash, bool with_local)
{
    uint32_t n = with_local ? help_n_elems(s) : help_n_global(s);
    for (uint32_t e = 0; e < n; e++) {
        uint64_t v = help_mix(hash + e);
        if (memcmp(help_page_elem(s, page, row, e), &v, mx_kv_elem_bytes(s->type)) != 0) {
            return false;
        }
    }
    return true;
}

MX_INLINE mx_page *help_page_of(const mx_seq *s, size_t pos)
{
    return s->pages[pos / MX_PAGE_TOKENS];
}

/* Writes the state behind the prefix of n tokens with that hash. */
MX_INLINE void help_write_state(const mx_kv_shape *s, mx_kvstate *st, size_t n, uint64_t hash)
{
    for (size_t i = 0; i < s->state_bytes; i++) {
        st->data[i] = (uint8_t)help_mix(hash + ~i);
    }
    st->n_tokens = n;
}

MX_INLINE bool help_state_is(const mx_kv_shape *s, const mx_kvstate *st, size_t n, uint64_t hash)
{
    for (size_t i = 0; i < s->state_bytes; i++) {
        if (st->data[i] != (uint8_t)help_mix(hash + ~i)) {
            return false;
        }
    }
    return st->n_tokens == n;
}

/* Computes the rows of tokens[s->n_tokens .. n - 1] and the state behind them; tokens is the whole
 * list. */
MX_INLINE mx_err help_feed(mx_seq *s, const int32_t *tokens, size_t n)
{
    size_t from = s->n_tokens;
    mx_err e = mx_seq_reserve(s, n - from);
    if (e != MX_OK) {
        return e;
    }
    uint64_t h = help_prefix_hash(tokens, from);
    for (size_t i = from; i < n; i++) {
        h = help_extend(h, tokens[i]);
        help_write_page_row(mx_kv_pool_shape(s->pool), help_page_of(s, i), i % MX_PAGE_TOKENS, h);
    }
    if (s->next != NULL) {
        help_write_state(mx_kv_pool_shape(s->pool), s->next, n, h);
    }
    mx_seq_commit(s, tokens + from, n - from);
    return MX_OK;
}

/* Every row of the sequence is the one that its tokens say. */
MX_INLINE void help_check_rows(const mx_seq *s, const int32_t *tokens, uint64_t seed)
{
    uint64_t h = 0;
    mx_seq_check(s);
    for (size_t i = 0; i < s->n_tokens; i++) {
        mx_page *page = help_page_of(s, i);
        h = help_extend(h, tokens[i]);
        if (page->tokens[i % MX_PAGE_TOKENS] != tokens[i]) {
            fail_msg("seed %llu: position %zu holds token %d, expected %d",
                     (unsigned long long)seed, i, page->tokens[i % MX_PAGE_TOKENS], tokens[i]);
        }
        if (!help_page_row_is(mx_kv_pool_shape(s->pool), page, i % MX_PAGE_TOKENS, h,
                              i / MX_PAGE_TOKENS >= s->first_local))
        {
            fail_msg("seed %llu: the row at position %zu belongs to another prefix",
                     (unsigned long long)seed, i);
        }
    }
    if (s->state != NULL && !help_state_is(mx_kv_pool_shape(s->pool), s->state, s->n_tokens, h)) {
        fail_msg("seed %llu: the state at position %zu belongs to another prefix",
                 (unsigned long long)seed, s->n_tokens);
    }
}

#endif
