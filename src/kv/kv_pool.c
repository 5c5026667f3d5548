/* SPDX-License-Identifier: MIT
 *
 * The page pool: two arenas and the states, under one budget.
 *
 * A page has a payload for its whole life, and one block for the rows of windowed layers as long as
 * somebody may still see them. They lie in arenas of their own (kv_arena.c), because they come and go
 * at different times. The budget is in bytes and knows no such border: where one kind is wanted and
 * free memory of the other has taken all of it, that goes back to the system first. Recurrent states
 * (kv_state.c) have memory of their own inside the same budget.
 *
 * Page structs live in one array beside the payloads (untouched parts of which cost no memory), so
 * that taking a page never goes to the heap.
 */
#include "kv/kv_internal.h"

#include "base/log.h"
#include "base/mem.h"

#include <assert.h>
#include <errno.h>

#ifdef MX_CHECK
#include <stdio.h>
#include <stdlib.h>
#endif

mx_err mx_kv_pool_create(mx_kv_pool **out, const mx_kv_shape *shape, size_t max_pages,
                         mx_errbuf *eb)
{
    *out = NULL;
    const size_t payload_bytes = mx_kv_payload_bytes(shape), local_bytes = mx_kv_local_bytes(shape);
    const size_t page_bytes = payload_bytes + local_bytes;
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
    p->max_bytes = span;
    p->state_pages = state_pages;
    const size_t max_payloads = span / payload_bytes;
    mx_err err = mx_kv_arena_open(&p->payloads, payload_bytes, max_payloads, eb);
    if (err == MX_OK) {
        err = mx_kv_arena_open(&p->locals, local_bytes, max_pages, eb);
    }
    p->pages = err == MX_OK ? mx_calloc(max_payloads, sizeof *p->pages) : NULL;
    if (err == MX_OK && p->pages == NULL) {
        err = mx_fail(eb, MX_E_NOMEM, "KV pool: no memory for %zu page records", max_payloads);
    }
    if (err != MX_OK) {
        mx_kv_arena_close(&p->payloads);
        mx_kv_arena_close(&p->locals);
        mx_free(p);
        return err;
    }
    *out = p;
    return MX_OK;
}

void mx_kv_pool_set_workers(mx_kv_pool *p, mx_pool *workers)
{
    p->payloads.workers = p->locals.workers = workers;
}

void mx_kv_pool_keep_ahead(mx_kv_pool *p, size_t n_bytes)
{
    p->ahead_bytes = n_bytes;
}

void mx_kv_pool_destroy(mx_kv_pool *p)
{
    if (p == NULL) {
        return;
    }
    assert(p->payloads.n_used == 0 && p->locals.n_used == 0 && "a page is still referenced");
    mx_kvstate_destroy_all(p);
    mx_kv_arena_close(&p->payloads);
    mx_kv_arena_close(&p->locals);
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
    return p->max_bytes / p->page_bytes;
}

size_t mx_kv_pool_used_bytes(const mx_kv_pool *p)
{
    return p->payloads.n_used * p->payloads.block_bytes + p->locals.n_used * p->locals.block_bytes +
           (p->n_states - p->n_free_states) * p->state_pages * p->page_bytes;
}

size_t mx_kv_pool_used(const mx_kv_pool *p)
{
    return (mx_kv_pool_used_bytes(p) + p->page_bytes - 1) / p->page_bytes;
}

size_t mx_kv_pool_state_pages(const mx_kv_pool *p)
{
    return p->state_pages;
}

void mx_kv_pool_set_poison(mx_kv_pool *p, bool on)
{
    p->poison = on;
}

size_t mx_kv_pool_resident(const mx_kv_pool *p)
{
    return mx_kv_arena_resident(&p->payloads) + mx_kv_arena_resident(&p->locals) +
           p->n_states * p->state_pages * p->page_bytes;
}

/* The system has no memory: the pool ends where it is, so that "full" and "evict until there is
 * room" mean what they say. */
static void limit_pool(mx_kv_pool *p)
{
    p->max_bytes = mx_kv_pool_resident(p);
    mx_log(MX_LOG_WARN, "kv_pool_limited: reason=\"%s\" pages=%zu (a smaller --kv-budget avoids "
           "this)", strerror(errno), p->max_bytes / p->page_bytes);
}

static bool grow(mx_kv_pool *p, mx_kv_arena *a)
{
    if (mx_kv_arena_grow(a, p->max_bytes - mx_kv_pool_resident(p))) {
        return true;
    }
    if (errno != 0) {
        limit_pool(p);
    }
    return false;
}

/* A free block of this arena, for which free memory of another kind may have to go. */
static bool find_block(mx_kv_pool *p, mx_kv_arena *a)
{
    mx_kv_arena *other = a == &p->payloads ? &p->locals : &p->payloads;
    while (!mx_kv_arena_has_free(a) && !grow(p, a)) {
        if (!mx_kvstate_release_one(p) && !mx_kv_arena_shrink(other)) {
            return false;
        }
    }
    return true;
}

void mx_kv_pool_make_room(mx_kv_pool *p)
{
    const size_t n_bytes = p->state_pages * p->page_bytes;
    while (mx_kv_pool_resident(p) + n_bytes > p->max_bytes &&
           (mx_kv_arena_shrink(&p->payloads) || mx_kv_arena_shrink(&p->locals)))
    {
    }
}

/* Do n_bytes more fit the budget? */
static bool fits(const mx_kv_pool *p, size_t n_bytes)
{
    return mx_kv_pool_used_bytes(p) + n_bytes <= p->max_bytes;
}

/* A block for the local rows, of which the budget has been asked. */
static bool take_local(mx_kv_pool *p, mx_page *page)
{
    if (!find_block(p, &p->locals)) {
        return false;
    }
    page->local = mx_kv_arena_data(&p->locals, mx_kv_arena_take(&p->locals, p->poison));
    return true;
}

static mx_page *alloc(mx_kv_pool *p, bool is_whole)
{
    is_whole = is_whole && p->locals.block_bytes > 0;
    if (!fits(p, p->payloads.block_bytes + (is_whole ? p->locals.block_bytes : 0)) ||
        !find_block(p, &p->payloads))
    {
        return NULL;
    }
    const size_t i = mx_kv_arena_take(&p->payloads, p->poison);
    mx_page *page = &p->pages[i];
    *page = (mx_page){.payload = mx_kv_arena_data(&p->payloads, i), .refs = 1,
                      .local_rows = MX_PAGE_TOKENS};
    if (is_whole && !take_local(p, page)) {
        mx_page_unref(p, page);
        return NULL;
    }
    return page;
}

mx_page *mx_page_alloc(mx_kv_pool *p)
{
    return alloc(p, true);
}

mx_page *mx_page_alloc_payload(mx_kv_pool *p)
{
    return alloc(p, false);
}

bool mx_kv_pool_idle(mx_kv_pool *p)
{
    mx_kv_arena *arenas[] = {&p->payloads, &p->locals};
    for (size_t i = 0; i < MX_COUNT(arenas); i++) {
        mx_kv_arena *a = arenas[i];
        if (a->block_bytes > 0 &&
            (mx_kv_arena_clean_one(a) ||
             (mx_kv_arena_wants_slab(a, a == &p->payloads ? p->ahead_bytes : 0) && grow(p, a))))
        {
            return true;
        }
    }
    return false;
}

mx_page *mx_page_ref(mx_page *page)
{
    assert(page->refs > 0 && page->refs < UINT32_MAX);
    page->refs++;
    return page;
}

static void release_local(mx_kv_pool *p, mx_page *page)
{
    if (page->local != NULL) {
        mx_kv_arena_give(&p->locals, mx_kv_arena_block(&p->locals, page->local));
        page->local = NULL;
    }
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
        page->local_refs = 0;
        release_local(p, page);
        mx_kv_arena_give(&p->payloads, (size_t)(page - p->pages));
        page = parent;
    }
}

void mx_page_hold_local(mx_page *page)
{
    assert(page->refs > page->local_refs);
    page->local_refs++;
}

void mx_page_drop_local(mx_kv_pool *p, mx_page *page)
{
    assert(page->local_refs > 0);
    page->local_refs--;
    mx_page_shed_local(p, page);
}

void mx_page_shed_local(mx_kv_pool *p, mx_page *page)
{
    if (page->local_refs == 0) {
        release_local(p, page);
    }
}

bool mx_page_move_local(mx_page *to, mx_page *from)
{
    assert(to->local == NULL && to->local_refs == 0);
    if (from->local == NULL || from->local_refs > 1) {
        return false;
    }
    to->local = from->local;
    to->local_rows = from->local_rows;
    from->local = NULL;
    return true;
}

bool mx_page_give_local(mx_kv_pool *p, mx_page *to, const mx_page *from, uint32_t n_rows)
{
    assert(mx_page_has_local(&p->shape, from, n_rows) && !mx_page_has_local(&p->shape, to, n_rows));
    if (to->local == NULL && (!fits(p, p->locals.block_bytes) || !take_local(p, to))) {
        return false;
    }
    /* The rows that others see are written again, with the same bits. */
    mx_page_copy_local(&p->shape, to, from, n_rows);
    to->local_rows = n_rows;
    return true;
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

void mx_kv_pool_check(const mx_kv_pool *p)
{
    const size_t n_known = p->payloads.n_known;
    size_t n_used = 0, n_locals = 0;
    for (size_t i = 0; i < n_known; i++) {
        p->pages[i].n_seen = 0;
    }
    for (size_t i = 0; i < n_known; i++) {
        const mx_page *page = &p->pages[i];
        if (page->refs == 0) {
            require(page->parent == NULL && page->local == NULL, p, page, "free but referenced");
            continue;
        }
        n_used++;
        n_locals += page->local != NULL;
        require(page->payload == mx_kv_arena_data(&p->payloads, i), p, page, "payload moved");
        require(page->local_refs <= page->refs, p, page, "more holds than references");
        require(page->local == NULL || (size_t)(page->local - p->locals.base) <
                    p->locals.n_known * p->locals.block_bytes, p, page, "stray rows");
        require(page->local != NULL || page->local_refs == 0 || p->shape.n_local == 0, p, page,
                "rows that are held are gone");
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
    for (size_t i = 0; i < n_known; i++) {
        const mx_page *page = &p->pages[i];
        require(page->n_seen <= page->refs, p, page, "more children than references");
        require(page->n_seen == 0 || page->n_rows == MX_PAGE_TOKENS, p, page,
                "a page that is not sealed has a child");
    }
    require(n_used == p->payloads.n_used, p, NULL, "count of used pages is wrong");
    require(n_locals == p->locals.n_used, p, NULL, "count of blocks for windowed layers is wrong");
    mx_kv_arena_check(&p->payloads);
    mx_kv_arena_check(&p->locals);
    mx_kvstate_check_all(p);
}
#else
void mx_kv_pool_check(const mx_kv_pool *p)
{
    (void)p;
}
#endif
