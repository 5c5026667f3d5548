/* SPDX-License-Identifier: MIT
 *
 * kv_internal.h (internal): the pool behind pages and states, which share its budget.
 */
#ifndef MX_KV_INTERNAL_H
#define MX_KV_INTERNAL_H

#include "base/mem.h"
#include "kv/kv.h"

#if defined(__SANITIZE_ADDRESS__)
#define MX_KV_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MX_KV_ASAN 1
#endif
#endif

/* Under AddressSanitizer nobody may touch the memory of a free page or state. */
#ifdef MX_KV_ASAN
#include <sanitizer/asan_interface.h>
#define MX_KV_HIDE(ptr, n) ASAN_POISON_MEMORY_REGION(ptr, n)
#define MX_KV_SHOW(ptr, n) ASAN_UNPOISON_MEMORY_REGION(ptr, n)
#else
#define MX_KV_HIDE(ptr, n) ((void)(ptr), (void)(n))
#define MX_KV_SHOW(ptr, n) ((void)(ptr), (void)(n))
#endif

struct mx_kv_pool {
    mx_kv_shape shape;
    size_t page_bytes;
    size_t max_pages;       /* the budget, in pages; states count as some */
    size_t n_used;          /* pages, without states */
    size_t n_known;         /* pages that have been on a free list at least once: committed */
    uint8_t *map;           /* what mmap gave */
    size_t map_bytes;
    uint8_t *base;
    size_t committed_bytes; /* from base, a multiple of MX_HUGE_PAGE */
    size_t span_bytes;      /* all pages, rounded up to MX_HUGE_PAGE */
    mx_page *pages;         /* [max_pages] */
    mx_page *clean;         /* free, payload zero */
    mx_page *dirty;         /* free, payload to be zeroed */
    mx_page *bare;          /* free, memory given back in favour of states */
    size_t n_bare;
    size_t state_pages;     /* what one state counts; 0 = the shape has none */
    mx_kvstate *states;     /* all, in use or free, by next */
    mx_kvstate *free_states;
    size_t n_states, n_free_states;
    bool poison;
};

/* Populates memory of the pool's own; false when the system has none. */
bool mx_kv_populate(uint8_t *at, size_t n_bytes);
/* Gives back the memory of free pages until a new state fits the budget beside what is resident. */
void mx_kv_pool_make_room(mx_kv_pool *p);
/* Frees one recycled state; false when there is none. */
bool mx_kvstate_release_one(mx_kv_pool *p);
/* Frees all of them; every state must be free. */
void mx_kvstate_destroy_all(mx_kv_pool *p);
/* The states' part of mx_kv_pool_check. */
void mx_kvstate_check_all(const mx_kv_pool *p);

#endif
