/* SPDX-License-Identifier: MIT
 *
 * Recurrent states: everything but pages that a model with recurrent layers needs to go on from a
 * position. A state cannot be cut back, so unlike a page it is valid at one position only; it is
 * written once and then shared by reference.
 *
 * States and pages come out of one budget. A state is tens of pages large and has to be in one
 * piece, and pages are scattered, so it has memory of its own; to keep the sum within the budget,
 * free pages give their memory back when a state wants it, and recycled states theirs when a page
 * does (kv_pool.c). Two states per running sequence go round and round, hence the free list.
 */
#include "kv/kv_internal.h"

#include "base/mem.h"

#include <assert.h>
#include <sys/mman.h>

#ifdef MX_CHECK
#include <stdio.h>
#include <stdlib.h>
#endif

enum { ALIGN = 64 };

/* A large state is mapped by itself: memory that goes back to the heap may stay with the process, and
 * then pages take the same budget again. */
static bool is_mapped(const mx_kv_pool *p)
{
    return p->shape.state_bytes >= 2 * MX_HUGE_PAGE;
}

static mx_kvstate *create(mx_kv_pool *p)
{
    const size_t n_bytes = p->shape.state_bytes;
    mx_kvstate *st = mx_calloc(1, sizeof *st);
    if (st == NULL) {
        return NULL;
    }
    st->data = is_mapped(p) ? mx_alloc_pages(n_bytes)
                            : mx_alloc_aligned(ALIGN, mx_round_up(n_bytes, ALIGN));
    if (st->data == NULL) {
        mx_free(st);
        return NULL;
    }
    if (is_mapped(p)) {
        /* The forward pass walks all of it for each token: it shall not fault, nor miss the TLB. */
        const size_t whole = n_bytes / MX_HUGE_PAGE * MX_HUGE_PAGE;
        (void)madvise(st->data, whole, MADV_HUGEPAGE);
        (void)mx_kv_populate(p->payloads.workers, st->data, whole);
    }
    st->next = p->states;
    p->states = st;
    p->n_states++;
    return st;
}

mx_kvstate *mx_kvstate_alloc(mx_kv_pool *p)
{
    assert(p->state_pages > 0);
    if (mx_kv_pool_used_bytes(p) + p->state_pages * p->page_bytes > p->max_bytes) {
        return NULL;
    }
    mx_kvstate *st = p->free_states;
    if (st != NULL) {
        p->free_states = st->next_free;
        p->n_free_states--;
    } else {
        mx_kv_pool_make_room(p);
        st = create(p);
        if (st == NULL) {
            return NULL;
        }
    }
    MX_KV_SHOW(st->data, p->shape.state_bytes);
    if (p->poison) {
        memset(st->data, 0xFF, p->shape.state_bytes);
    }
    st->next_free = NULL;
    st->n_tokens = 0;
    st->refs = 1;
    return st;
}

mx_kvstate *mx_kvstate_ref(mx_kvstate *st)
{
    assert(st->refs > 0 && st->refs < UINT32_MAX);
    st->refs++;
    return st;
}

void mx_kvstate_unref(mx_kv_pool *p, mx_kvstate *st)
{
    if (st == NULL) {
        return;
    }
    assert(st->refs > 0);
    if (--st->refs == 0) {
        st->next_free = p->free_states;
        p->free_states = st;
        p->n_free_states++;
        MX_KV_HIDE(st->data, p->shape.state_bytes);
    }
}

bool mx_kvstate_release_one(mx_kv_pool *p)
{
    mx_kvstate *st = p->free_states;
    if (st == NULL) {
        return false;
    }
    p->free_states = st->next_free;
    p->n_free_states--;
    mx_kvstate **link = &p->states;
    while (*link != st) {
        link = &(*link)->next;
    }
    *link = st->next;
    p->n_states--;
    MX_KV_SHOW(st->data, p->shape.state_bytes);
    if (is_mapped(p)) {
        mx_free_pages(st->data, p->shape.state_bytes);
    } else {
        mx_free(st->data);
    }
    mx_free(st);
    return true;
}

void mx_kvstate_destroy_all(mx_kv_pool *p)
{
    assert(p->n_free_states == p->n_states && "a state is still referenced");
    while (mx_kvstate_release_one(p)) {
    }
}

#ifdef MX_CHECK
static void require(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "mx_kv_pool_check: states: %s\n", what);
        abort();
    }
}

void mx_kvstate_check_all(const mx_kv_pool *p)
{
    size_t n_all = 0, n_unused = 0, n_free = 0;
    for (const mx_kvstate *st = p->states; st != NULL; st = st->next) {
        require(++n_all <= p->n_states, "more than are counted");
        require((uintptr_t)st->data % ALIGN == 0, "not aligned");
        n_unused += st->refs == 0;
    }
    for (const mx_kvstate *st = p->free_states; st != NULL; st = st->next_free) {
        require(++n_free <= p->n_free_states, "the free list has a cycle");
        require(st->refs == 0, "free but referenced");
    }
    require(n_all == p->n_states && n_free == p->n_free_states && n_unused == n_free,
            "a state is neither used nor free");
    require(p->state_pages > 0 || p->n_states == 0, "a state that the shape does not have");
    require(mx_kv_pool_resident(p) <= p->max_bytes, "more memory than the budget");
}
#else
void mx_kvstate_check_all(const mx_kv_pool *p)
{
    (void)p;
}
#endif
