/* SPDX-License-Identifier: MIT
 *
 * The memory behind pages: one reserved address range, cut into blocks of equal size.
 *
 *   | committed, in use or on a free list      | reserved only (PROT_NONE)                |
 *   ^ base (2 MiB aligned)                     ^ base + committed_bytes                   ^ max
 *
 * Why not malloc per block: it is a megabyte or more, so each would be its own mapping, faulted in by
 * the forward pass 4 KiB at a time. Here memory is committed in slabs of at least SLAB_BYTES,
 * populated by one system call, in huge pages where the kernel has them, and not given back: the
 * budget was granted. Only where something else of the same budget wants it do free blocks become
 * bare, that is the system gets their memory back.
 *
 * Recycled blocks wait on the dirty list and are zeroed when they are taken or, better, by idle
 * work.
 */
#include "kv/kv_arena.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>

#ifdef MX_CHECK
#include <stdio.h>
#include <stdlib.h>
#endif

/* Absent from older headers; the value is the kernel's. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
    OS_PAGE = 4096,
    /* Two or three pages of the default model, half a page of a large one. The time goes into clearing
     * (0.05 to 2 ms per MiB on a virtual machine: the host may have to find the memory first), not
     * into the calls, so a larger slab would only make waiting longer, and what an idle pool holds in
     * reserve more. */
    SLAB_BYTES = 4 << 20,
};

mx_err mx_kv_arena_open(mx_kv_arena *a, size_t block_bytes, size_t max_blocks, mx_errbuf *eb)
{
    *a = (mx_kv_arena){0};
    if (block_bytes == 0) {
        return MX_OK;
    }
    const size_t span = mx_round_up(block_bytes * max_blocks, MX_HUGE_PAGE);
    a->map_bytes = span + MX_HUGE_PAGE;
    a->blocks = mx_calloc(max_blocks, sizeof *a->blocks);
    if (a->blocks == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "KV pool: no memory for %zu page records", max_blocks);
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *map = mmap(NULL, a->map_bytes, PROT_NONE, flags, -1, 0);
    if (map == MAP_FAILED) {
        int saved = errno;
        mx_free(a->blocks);
        *a = (mx_kv_arena){0};
        return mx_fail_errno(eb, MX_E_NOMEM, saved, "KV pool: cannot reserve %zu MiB of addresses",
                             span >> 20);
    }
    a->map = map;
    a->base = a->map + (-(uintptr_t)map & (MX_HUGE_PAGE - 1));
    /* Only advice: without huge pages everything works, a little slower. */
    (void)madvise(a->base, span, MADV_HUGEPAGE);
    a->block_bytes = block_bytes;
    a->max_blocks = max_blocks;
    return MX_OK;
}

void mx_kv_arena_close(mx_kv_arena *a)
{
    if (a->block_bytes == 0) {
        return;
    }
    MX_KV_SHOW(a->base, a->committed_bytes);
    int rc = munmap(a->map, a->map_bytes);
    assert(rc == 0);
    (void)rc;
    mx_free(a->blocks);
    *a = (mx_kv_arena){0};
}

static bool populate_here(uint8_t *at, size_t n_bytes)
{
    if (madvise(at, n_bytes, MADV_POPULATE_WRITE) == 0) {
        return true;
    }
    if (errno != EINVAL) {
        return false;
    }
    /* A kernel before 5.14: fault in by hand. */
    for (size_t i = 0; i < n_bytes; i += OS_PAGE) {
        ((volatile uint8_t *)at)[i] = 0;
    }
    return true;
}

typedef struct populate_job {
    uint8_t *at;
    size_t n_bytes;
    mx_pool_cursor cursor;
    int error; /* some failure's errno; atomic access */
} populate_job;

static void populate_worker(void *arg, unsigned worker)
{
    (void)worker;
    populate_job *job = arg;
    size_t begin, end;
    while (mx_pool_take(&job->cursor, job->n_bytes, MX_HUGE_PAGE, &begin, &end)) {
        if (!populate_here(job->at + begin, end - begin)) {
            __atomic_store_n(&job->error, errno, __ATOMIC_RELAXED);
        }
    }
}

bool mx_kv_populate(mx_pool *workers, uint8_t *at, size_t n_bytes)
{
    if (workers == NULL || n_bytes <= MX_HUGE_PAGE) {
        return populate_here(at, n_bytes);
    }
    populate_job job = {.at = at, .n_bytes = n_bytes};
    mx_pool_run(workers, populate_worker, &job);
    errno = job.error;
    return job.error == 0;
}

size_t mx_kv_arena_resident(const mx_kv_arena *a)
{
    return (a->n_known - a->n_bare) * a->block_bytes;
}

bool mx_kv_arena_has_free(const mx_kv_arena *a)
{
    return a->clean != NULL || a->dirty != NULL;
}

static mx_kv_block *pop(mx_kv_block **list)
{
    mx_kv_block *block = *list;
    *list = block->next;
    block->next = NULL;
    return block;
}

static void push(mx_kv_block **list, mx_kv_block *block)
{
    block->next = *list;
    *list = block;
}

static mx_kv_block *pop_clean(mx_kv_arena *a)
{
    a->n_clean--;
    return pop(&a->clean);
}

static void push_clean(mx_kv_arena *a, mx_kv_block *block)
{
    push(&a->clean, block);
    a->n_clean++;
}

static uint8_t *data_of(const mx_kv_arena *a, const mx_kv_block *block)
{
    return mx_kv_arena_data(a, (size_t)(block - a->blocks));
}

/* Commits the next slab: at least one block of it, and n_more at most. */
static bool commit_slab(mx_kv_arena *a, size_t n_more)
{
    const size_t n_most = mx_min_size(a->n_known + n_more, a->max_blocks);
    size_t want = mx_round_up((a->n_known + 1) * a->block_bytes, MX_HUGE_PAGE);
    want = mx_max_size(want, a->committed_bytes + SLAB_BYTES);
    want = mx_min_size(want, mx_round_up(n_most * a->block_bytes, MX_HUGE_PAGE));
    want = mx_max_size(want, a->committed_bytes);
    uint8_t *at = a->base + a->committed_bytes;
    size_t n_bytes = want - a->committed_bytes;
    if (n_bytes > 0) {
        if (mprotect(at, n_bytes, PROT_READ | PROT_WRITE) != 0 ||
            !mx_kv_populate(a->workers, at, n_bytes))
        {
            return false;
        }
        a->committed_bytes = want;
    }
    size_t n_blocks = mx_min_size(want / a->block_bytes, n_most);
    /* Pushed in descending order, so that blocks are handed out in ascending order of address. */
    for (size_t i = n_blocks; i-- > a->n_known;) {
        push_clean(a, &a->blocks[i]);
        MX_KV_HIDE(mx_kv_arena_data(a, i), a->block_bytes);
    }
    a->n_known = n_blocks;
    return true;
}

bool mx_kv_arena_grow(mx_kv_arena *a, size_t n_bytes)
{
    errno = 0;
    if (n_bytes < a->block_bytes || (a->bare == NULL && a->n_known == a->max_blocks)) {
        return false;
    }
    if (a->bare == NULL) {
        return commit_slab(a, n_bytes / a->block_bytes);
    }
    if (!mx_kv_populate(a->workers, data_of(a, a->bare), a->block_bytes)) {
        return false;
    }
    push_clean(a, pop(&a->bare));
    a->n_bare--;
    return true;
}

bool mx_kv_arena_wants_slab(const mx_kv_arena *a, size_t n_bytes)
{
    return a->n_clean == 0 ||
           a->n_clean * a->block_bytes + mx_max_size(SLAB_BYTES, a->block_bytes) <= n_bytes;
}

bool mx_kv_arena_shrink(mx_kv_arena *a)
{
    if (!mx_kv_arena_has_free(a)) {
        return false;
    }
    mx_kv_block *block = a->dirty != NULL ? pop(&a->dirty) : pop_clean(a);
    uint8_t *data = data_of(a, block);
    MX_KV_SHOW(data, a->block_bytes);
    if (madvise(data, a->block_bytes, MADV_DONTNEED) != 0) {
        /* Not known to happen with memory of this kind; costs memory, and nothing else. */
        memset(data, 0, a->block_bytes);
    }
    MX_KV_HIDE(data, a->block_bytes);
    block->is_dirty = false;
    push(&a->bare, block);
    a->n_bare++;
    return true;
}

size_t mx_kv_arena_take(mx_kv_arena *a, bool poison)
{
    assert(mx_kv_arena_has_free(a));
    mx_kv_block *block = a->clean != NULL ? pop_clean(a) : pop(&a->dirty);
    uint8_t *data = data_of(a, block);
    MX_KV_SHOW(data, a->block_bytes);
    if (poison) {
        memset(data, 0xFF, a->block_bytes);
    } else if (block->is_dirty) {
        memset(data, 0, a->block_bytes);
    }
    block->is_dirty = true; /* whoever takes a block writes to it */
    a->n_used++;
    return (size_t)(block - a->blocks);
}

void mx_kv_arena_give(mx_kv_arena *a, size_t block)
{
    push(&a->dirty, &a->blocks[block]);
    a->n_used--;
    MX_KV_HIDE(mx_kv_arena_data(a, block), a->block_bytes);
}

bool mx_kv_arena_clean_one(mx_kv_arena *a)
{
    if (a->dirty == NULL) {
        return false;
    }
    mx_kv_block *block = pop(&a->dirty);
    uint8_t *data = data_of(a, block);
    MX_KV_SHOW(data, a->block_bytes);
    memset(data, 0, a->block_bytes);
    MX_KV_HIDE(data, a->block_bytes);
    block->is_dirty = false;
    push_clean(a, block);
    return true;
}

#ifdef MX_CHECK
static void require(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "mx_kv_arena_check: %s\n", what);
        abort();
    }
}

static size_t check_list(const mx_kv_arena *a, const mx_kv_block *list, bool is_dirty)
{
    size_t n = 0;
    for (const mx_kv_block *block = list; block != NULL; block = block->next) {
        require(block >= a->blocks && block < a->blocks + a->n_known, "stray free block");
        require(block->is_dirty == is_dirty, "a block is on the wrong free list");
        require(++n <= a->n_known, "a free list has a cycle");
    }
    return n;
}

void mx_kv_arena_check(const mx_kv_arena *a)
{
    require(a->n_known * a->block_bytes <= a->committed_bytes, "more blocks than committed memory");
    const size_t n_bare = check_list(a, a->bare, false);
    require(check_list(a, a->clean, false) == a->n_clean, "count of clean blocks");
    const size_t n_free = a->n_clean + check_list(a, a->dirty, true);
    require(n_bare == a->n_bare, "count of bare blocks");
    require(a->n_used + n_free + n_bare == a->n_known, "a block is neither used nor free");
}
#else
void mx_kv_arena_check(const mx_kv_arena *a)
{
    (void)a;
}
#endif
