/* SPDX-License-Identifier: MIT
 *
 * The arena of one rendering: a list of blocks, each filled from its beginning. Blocks grow with
 * the arena, so a short prompt costs one small block and a long one few large ones. A request
 * larger than the next block gets a block of its own size.
 */
#include "text/value_internal.h"

#include "base/mem.h"

enum { FIRST_BLOCK = 32 << 10, MAX_BLOCK = 4 << 20, ALIGN = 16 };

typedef struct block {
    struct block *older;
    size_t cap, used; /* bytes behind this header */
} block;

struct mx_arena {
    block *newest;
    size_t max_bytes;
    size_t total_bytes; /* taken from the heap */
    char *last;         /* the newest allocation, for mx_arena_extend */
};

static size_t header_bytes(void)
{
    return mx_round_up(sizeof(block), ALIGN);
}

mx_arena *mx_arena_create(size_t max_bytes)
{
    mx_arena *a = mx_calloc(1, sizeof *a);
    if (a != NULL) {
        a->max_bytes = max_bytes;
    }
    return a;
}

void mx_arena_destroy(mx_arena *a)
{
    if (a == NULL) {
        return;
    }
    for (block *b = a->newest; b != NULL;) {
        block *older = b->older;
        mx_free(b);
        b = older;
    }
    mx_free(a);
}

static block *add_block(mx_arena *a, size_t bytes)
{
    size_t cap = a->newest == NULL ? FIRST_BLOCK : mx_min_size(a->newest->cap * 2, MAX_BLOCK);
    size_t left = a->max_bytes == 0 ? SIZE_MAX : a->max_bytes - a->total_bytes;
    cap = mx_max_size(mx_min_size(cap, left), bytes);
    if (cap > left || cap > SIZE_MAX - header_bytes()) {
        return NULL;
    }
    block *b = mx_calloc(1, header_bytes() + cap);
    if (b == NULL) {
        return NULL;
    }
    b->cap = cap;
    b->older = a->newest;
    a->newest = b;
    a->total_bytes += cap;
    return b;
}

void *mx_arena_alloc(mx_arena *a, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    bytes = mx_round_up(bytes ? bytes : 1, ALIGN);
    block *b = a->newest;
    if (b == NULL || b->cap - b->used < bytes) {
        b = add_block(a, bytes);
        if (b == NULL) {
            return NULL;
        }
    }
    char *p = (char *)b + header_bytes() + b->used;
    b->used += bytes;
    a->last = p;
    return p;
}

bool mx_arena_extend(mx_arena *a, void *p, size_t old_bytes, size_t new_bytes)
{
    block *b = a->newest;
    if (p == NULL || p != (void *)a->last || new_bytes > SIZE_MAX / 2) {
        return false;
    }
    size_t have = mx_round_up(old_bytes ? old_bytes : 1, ALIGN);
    size_t want = mx_round_up(new_bytes ? new_bytes : 1, ALIGN);
    if (want < have || want - have > b->cap - b->used) {
        return false;
    }
    b->used += want - have;
    return true;
}

size_t mx_arena_used(const mx_arena *a)
{
    return a->total_bytes;
}
