/* SPDX-License-Identifier: MIT
 *
 * The page pool: one reserved address range, cut into payloads of equal size.
 *
 *   | committed, in use or on a free list      | reserved only (PROT_NONE)                |
 *   ^ base (2 MiB aligned)                     ^ base + committed_bytes                   ^ max
 *
 * Why not malloc per page: a payload is a megabyte or more, so each would be its own mapping,
 * faulted in by the forward pass 4 KiB at a time. Here memory is committed in slabs of at least
 * SLAB_BYTES, populated by one system call, in huge pages where the kernel has them, and never
 * given back: the budget was granted to the pool. Page structs live in one array beside it
 * (untouched parts of which cost no memory), so that taking a page never goes to the heap.
 *
 * Recycled pages wait on the dirty list and are zeroed when they are taken or, better, by idle
 * work. Under AddressSanitizer the payload of a free page may not be touched. Recurrent states
 * (kv_state.c) have memory of their own inside the same budget: where a state is to be made and
 * pages have taken all of it, free pages become bare, that is the system gets their memory back.
 */
#include "kv/kv_internal.h"

#include "base/log.h"
#include "base/mem.h"

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
     * (1 ms per MiB on a virtual machine), not into the calls, so a larger slab would only make
     * waiting longer, and what an idle pool holds in reserve more. */
    SLAB_BYTES = 4 << 20,
};

mx_err mx_kv_pool_create(mx_kv_pool **out, const mx_kv_shape *shape, size_t max_pages,
                         mx_errbuf *eb)
{
    *out = NULL;
    size_t page_bytes = mx_kv_page_bytes(shape);
    if (page_bytes == 0 || max_pages == 0) {
        return mx_fail(eb, MX_E_INVALID, "KV pool: impossible shape (%u layers, %u heads of %u) or "
                       "no pages", shape->n_layers, shape->n_kv_heads, shape->head_dim);
    }
    const size_t state_pages = (shape->state_bytes + page_bytes - 1) / page_bytes;
    if (state_pages > 0 && (max_pages - 1) / 2 < state_pages) {
        /* A sequence that goes on has one state behind it and one being written. */
        return mx_fail(eb, MX_E_LIMIT, "KV pool: %zu pages of %zu KiB are too few: the state of one "
                       "sequence takes two times %zu", max_pages, page_bytes >> 10, state_pages);
    }
    size_t span;
    if (!mx_mul_ok(page_bytes, max_pages, &span) || span > SIZE_MAX / 4) {
        return mx_fail(eb, MX_E_INVALID, "KV pool: %zu pages of %zu bytes exceed the address space",
                       max_pages, page_bytes);
    }
    mx_kv_pool *p = mx_calloc(1, sizeof *p);
    if (p == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "KV pool: out of memory");
    }
    p->shape = *shape;
    p->page_bytes = page_bytes;
    p->max_pages = max_pages;
    p->state_pages = state_pages;
    p->span_bytes = mx_round_up(span, MX_HUGE_PAGE);
    p->map_bytes = p->span_bytes + MX_HUGE_PAGE;
    p->pages = mx_calloc(max_pages, sizeof *p->pages);
    if (p->pages == NULL) {
        mx_free(p);
        return mx_fail(eb, MX_E_NOMEM, "KV pool: no memory for %zu page records", max_pages);
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *map = mmap(NULL, p->map_bytes, PROT_NONE, flags, -1, 0);
    if (map == MAP_FAILED) {
        int saved = errno;
        mx_free(p->pages);
        mx_free(p);
        return mx_fail_errno(eb, MX_E_NOMEM, saved, "KV pool: cannot reserve %zu MiB of addresses",
                             span >> 20);
    }
    p->map = map;
    p->base = p->map + (-(uintptr_t)map & (MX_HUGE_PAGE - 1));
    /* Only advice: without huge pages everything works, a little slower. */
    (void)madvise(p->base, p->span_bytes, MADV_HUGEPAGE);
    *out = p;
    return MX_OK;
}

void mx_kv_pool_destroy(mx_kv_pool *p)
{
    if (p == NULL) {
        return;
    }
    assert(p->n_used == 0 && "a page is still referenced");
    mx_kvstate_destroy_all(p);
    MX_KV_SHOW(p->base, p->committed_bytes);
    int rc = munmap(p->map, p->map_bytes);
    assert(rc == 0);
    (void)rc;
    mx_free(p->pages);
    mx_free(p);
}

const mx_kv_shape *mx_kv_pool_shape(const mx_kv_pool *p)
{
    return &p->shape;
}

size_t mx_kv_pool_page_bytes(const mx_kv_pool *p)
{
    return p->page_bytes;
}

size_t mx_kv_pool_max(const mx_kv_pool *p)
{
    return p->max_pages;
}

size_t mx_kv_pool_used(const mx_kv_pool *p)
{
    return p->n_used + (p->n_states - p->n_free_states) * p->state_pages;
}

size_t mx_kv_pool_state_pages(const mx_kv_pool *p)
{
    return p->state_pages;
}

void mx_kv_pool_set_poison(mx_kv_pool *p, bool on)
{
    p->poison = on;
}

bool mx_kv_populate(uint8_t *at, size_t n_bytes)
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

/* Pages that have memory, and pages' worth of memory that states have. */
static size_t resident(const mx_kv_pool *p)
{
    return p->n_known - p->n_bare + p->n_states * p->state_pages;
}

/* The system has no memory: the pool ends where it is, so that "full" and "evict until there is
 * room" mean what they say. */
static void limit_pool(mx_kv_pool *p)
{
    mx_log(MX_LOG_WARN, "kv_pool_limited: reason=\"%s\" pages=%zu configured=%zu (a "
           "smaller --kv-budget avoids this)", strerror(errno), resident(p), p->max_pages);
    p->max_pages = resident(p);
}

/* Commits the next slab: at least one page of it, which fits the budget. */
static bool commit_slab(mx_kv_pool *p)
{
    const size_t n_most = p->n_known + (p->max_pages - resident(p));
    size_t want = mx_round_up((p->n_known + 1) * p->page_bytes, MX_HUGE_PAGE);
    want = mx_max_size(want, p->committed_bytes + SLAB_BYTES);
    want = mx_min_size(want, mx_round_up(n_most * p->page_bytes, MX_HUGE_PAGE));
    want = mx_max_size(want, p->committed_bytes);
    uint8_t *at = p->base + p->committed_bytes;
    size_t n_bytes = want - p->committed_bytes;
    if (n_bytes > 0) {
        if (mprotect(at, n_bytes, PROT_READ | PROT_WRITE) != 0 || !mx_kv_populate(at, n_bytes)) {
            limit_pool(p);
            return false;
        }
        p->committed_bytes = want;
    }
    size_t n_pages = mx_min_size(want / p->page_bytes, n_most);
    /* Pushed in descending order, so that pages are handed out in ascending order of address. */
    for (size_t i = n_pages; i-- > p->n_known;) {
        mx_page *page = &p->pages[i];
        page->payload = p->base + i * p->page_bytes;
        page->next_free = p->clean;
        p->clean = page;
        MX_KV_HIDE(page->payload, p->page_bytes);
    }
    p->n_known = n_pages;
    return true;
}

static mx_page *pop(mx_page **list)
{
    mx_page *page = *list;
    *list = page->next_free;
    page->next_free = NULL;
    return page;
}

static void push(mx_page **list, mx_page *page)
{
    page->next_free = *list;
    *list = page;
}

/* Puts at least one page on the clean list, within the budget. */
static bool find_memory(mx_kv_pool *p)
{
    if (resident(p) >= p->max_pages) {
        return false;
    }
    if (p->bare == NULL) {
        return commit_slab(p);
    }
    mx_page *page = p->bare;
    if (!mx_kv_populate(page->payload, p->page_bytes)) {
        limit_pool(p);
        return false;
    }
    (void)pop(&p->bare);
    p->n_bare--;
    push(&p->clean, page);
    return true;
}

void mx_kv_pool_make_room(mx_kv_pool *p)
{
    while (resident(p) + p->state_pages > p->max_pages && (p->dirty != NULL || p->clean != NULL)) {
        mx_page *page = pop(p->dirty != NULL ? &p->dirty : &p->clean);
        MX_KV_SHOW(page->payload, p->page_bytes);
        if (madvise(page->payload, p->page_bytes, MADV_DONTNEED) != 0) {
            /* Not known to happen with memory of this kind; costs memory, and nothing else. */
            memset(page->payload, 0, p->page_bytes);
        }
        MX_KV_HIDE(page->payload, p->page_bytes);
        page->is_dirty = false;
        push(&p->bare, page);
        p->n_bare++;
    }
}

mx_page *mx_page_alloc(mx_kv_pool *p)
{
    if (mx_kv_pool_used(p) >= p->max_pages) {
        return NULL;
    }
    while (p->clean == NULL && p->dirty == NULL && !find_memory(p)) {
        if (!mx_kvstate_release_one(p)) {
            return NULL;
        }
    }
    mx_page *page = pop(p->clean != NULL ? &p->clean : &p->dirty);
    MX_KV_SHOW(page->payload, p->page_bytes);
    if (p->poison) {
        memset(page->payload, 0xFF, p->page_bytes);
    } else if (page->is_dirty) {
        memset(page->payload, 0, p->page_bytes);
    }
    page->is_dirty = true; /* whoever takes a page writes to it */
    page->refs = 1;
    page->n_rows = 0;
    page->has_appender = false;
    page->parent = NULL;
    page->index = 0;
    page->owner = NULL;
    page->is_queued = false;
    memset(page->tokens, 0, sizeof page->tokens);
    memset(&page->id, 0, sizeof page->id);
    p->n_used++;
    return page;
}

bool mx_kv_pool_idle(mx_kv_pool *p)
{
    if (p->dirty == NULL) {
        return p->clean == NULL && find_memory(p);
    }
    mx_page *page = pop(&p->dirty);
    MX_KV_SHOW(page->payload, p->page_bytes);
    memset(page->payload, 0, p->page_bytes);
    MX_KV_HIDE(page->payload, p->page_bytes);
    page->is_dirty = false;
    push(&p->clean, page);
    return true;
}

mx_page *mx_page_ref(mx_page *page)
{
    assert(page->refs > 0 && page->refs < UINT32_MAX);
    page->refs++;
    return page;
}

void mx_page_unref(mx_kv_pool *p, mx_page *page)
{
    while (page != NULL) {
        assert(page->refs > 0);
        if (--page->refs > 0) {
            return;
        }
        assert(page->owner == NULL && "the bank's node must let go of a page first");
        mx_page *parent = page->parent;
        page->parent = NULL;
        push(&p->dirty, page);
        p->n_used--;
        MX_KV_HIDE(page->payload, p->page_bytes);
        page = parent;
    }
}

void mx_page_link(mx_page *page, mx_page *parent, const mx_hash256 *root, const int32_t *tokens,
                  uint32_t n_rows)
{
    assert(page->n_rows == 0 && page->parent == NULL && n_rows <= MX_PAGE_TOKENS);
    assert(parent == NULL || parent->n_rows == MX_PAGE_TOKENS);
    page->parent = parent != NULL ? mx_page_ref(parent) : NULL;
    page->index = parent != NULL ? parent->index + 1 : 0;
    page->n_rows = n_rows;
    memcpy(page->tokens, tokens, n_rows * sizeof *tokens);
    if (n_rows == MX_PAGE_TOKENS) {
        page->id = mx_page_identity(root, parent != NULL ? &parent->id : root, tokens, n_rows);
    }
}

#ifdef MX_CHECK
static void require(bool ok, const mx_kv_pool *p, const mx_page *page, const char *what)
{
    if (!ok) {
        fprintf(stderr, "mx_kv_pool_check: page %td: %s\n", page ? page - p->pages : -1, what);
        abort();
    }
}

static size_t check_free_list(const mx_kv_pool *p, const mx_page *list, bool is_dirty)
{
    size_t n = 0;
    for (const mx_page *page = list; page != NULL; page = page->next_free) {
        require(page >= p->pages && page < p->pages + p->n_known, p, NULL, "stray free page");
        require(page->refs == 0 && page->parent == NULL, p, page, "free but referenced");
        require(page->is_dirty == is_dirty, p, page, "on the wrong free list");
        require(++n <= p->n_known, p, page, "free list has a cycle");
    }
    return n;
}

void mx_kv_pool_check(const mx_kv_pool *p)
{
    size_t n_used = 0;
    require(p->n_known * p->page_bytes <= p->committed_bytes, p, NULL,
            "more pages than committed memory");
    for (size_t i = 0; i < p->n_known; i++) {
        p->pages[i].n_seen = 0;
    }
    for (size_t i = 0; i < p->n_known; i++) {
        const mx_page *page = &p->pages[i];
        require(page->payload == p->base + i * p->page_bytes, p, page, "payload moved");
        if (page->refs == 0) {
            continue;
        }
        n_used++;
        require(page->n_rows <= MX_PAGE_TOKENS, p, page, "too many rows");
        require(!page->has_appender || page->n_rows < MX_PAGE_TOKENS, p, page,
                "sealed but writable");
        require((page->parent == NULL) == (page->index == 0) || page->n_rows == 0, p, page,
                "parent does not fit the index");
        if (page->parent != NULL) {
            require(page->parent->refs > 0, p, page, "parent was freed");
            require(page->parent->index + 1 == page->index, p, page, "parent at a wrong index");
            page->parent->n_seen++;
        }
    }
    for (size_t i = 0; i < p->n_known; i++) {
        const mx_page *page = &p->pages[i];
        require(page->n_seen <= page->refs, p, page, "more children than references");
        require(page->n_seen == 0 || page->n_rows == MX_PAGE_TOKENS, p, page,
                "a page that is not sealed has a child");
    }
    require(n_used == p->n_used, p, NULL, "count of used pages is wrong");
    size_t n_bare = check_free_list(p, p->bare, false);
    size_t n_free = check_free_list(p, p->clean, false) + check_free_list(p, p->dirty, true);
    require(n_bare == p->n_bare, p, NULL, "count of bare pages is wrong");
    mx_kvstate_check_all(p);
    n_free += n_bare;
    require(n_used + n_free == p->n_known, p, NULL, "a page is neither used nor free");
}
#else
void mx_kv_pool_check(const mx_kv_pool *p)
{
    (void)p;
}
#endif
