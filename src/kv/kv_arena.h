/* SPDX-License-Identifier: MIT
 *
 * kv_arena.h (internal): one reserved address range, cut into blocks of equal size.
 *
 * An arena knows nothing of budgets: its owner says how much more memory it may take. Owned by the
 * engine thread, as the pool that it is part of.
 */
#ifndef MX_KV_ARENA_H
#define MX_KV_ARENA_H

#include "base/err.h"
#include "base/mem.h"
#include "base/pool.h"

#if defined(__SANITIZE_ADDRESS__)
#define MX_KV_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MX_KV_ASAN 1
#endif
#endif

/* Under AddressSanitizer nobody may touch the memory of a free block or state. */
#ifdef MX_KV_ASAN
#include <sanitizer/asan_interface.h>
#define MX_KV_HIDE(ptr, n) ASAN_POISON_MEMORY_REGION(ptr, n)
#define MX_KV_SHOW(ptr, n) ASAN_UNPOISON_MEMORY_REGION(ptr, n)
#else
#define MX_KV_HIDE(ptr, n) ((void)(ptr), (void)(n))
#define MX_KV_SHOW(ptr, n) ((void)(ptr), (void)(n))
#endif

typedef struct mx_kv_block mx_kv_block;
struct mx_kv_block {
    mx_kv_block *next; /* of the free list that it is on */
    bool is_dirty;     /* not all zero */
};

typedef struct mx_kv_arena {
    size_t block_bytes;     /* 0: there are no blocks, and nothing below is valid */
    size_t max_blocks;
    size_t n_known;         /* blocks that have been on a free list at least once: committed */
    size_t n_used;
    size_t n_bare;
    size_t n_clean;         /* on the list of that name */
    mx_pool *workers;       /* that populate new memory together; NULL = the caller alone */
    uint8_t *map;           /* what mmap gave */
    size_t map_bytes;
    uint8_t *base;
    size_t committed_bytes; /* from base, a multiple of MX_HUGE_PAGE */
    mx_kv_block *blocks;    /* [max_blocks] */
    mx_kv_block *clean;     /* free, zero */
    mx_kv_block *dirty;     /* free, to be zeroed */
    mx_kv_block *bare;      /* free, memory given back */
} mx_kv_arena;

/* Reserves the addresses. block_bytes, a multiple of 4096, 0: an arena without blocks.
 * MX_E_NOMEM. */
mx_err mx_kv_arena_open(mx_kv_arena *a, size_t block_bytes, size_t max_blocks, mx_errbuf *eb);
void mx_kv_arena_close(mx_kv_arena *a); /* safe on a zeroed struct */

size_t mx_kv_arena_resident(const mx_kv_arena *a); /* bytes that have memory */
bool mx_kv_arena_has_free(const mx_kv_arena *a);   /* one with memory */

/* Gives at least one free block memory, and all of them together at most n_bytes. False: there is
 * no block left (errno 0), or the system has no memory (errno). */
bool mx_kv_arena_grow(mx_kv_arena *a, size_t n_bytes);
/* Whether another slab leaves at most n_bytes in zeroed blocks, or there is no such block at all. */
bool mx_kv_arena_wants_slab(const mx_kv_arena *a, size_t n_bytes);
/* Gives the memory of one free block back. False: none has any. */
bool mx_kv_arena_shrink(mx_kv_arena *a);

/* A zeroed block (with poison: every bit set), of which mx_kv_arena_has_free. Its index. */
size_t mx_kv_arena_take(mx_kv_arena *a, bool poison);
void mx_kv_arena_give(mx_kv_arena *a, size_t block);
/* Zeroes one free block. False: there is none that is not zero. */
bool mx_kv_arena_clean_one(mx_kv_arena *a);

MX_INLINE uint8_t *mx_kv_arena_data(const mx_kv_arena *a, size_t block)
{
    return a->base + block * a->block_bytes;
}

MX_INLINE size_t mx_kv_arena_block(const mx_kv_arena *a, const uint8_t *data)
{
    return (size_t)(data - a->base) / a->block_bytes;
}

/* Populates memory of the caller's own with all workers (NULL: alone); false (errno) when the system
 * has none. */
bool mx_kv_populate(mx_pool *workers, uint8_t *at, size_t n_bytes);

/* Debug builds: aborts when a free list or a count is wrong. */
void mx_kv_arena_check(const mx_kv_arena *a);

#endif
