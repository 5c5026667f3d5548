/* SPDX-License-Identifier: MIT
 *
 * kv_internal.h (internal): the pool behind pages and states, which share its budget.
 */
#ifndef MX_KV_INTERNAL_H
#define MX_KV_INTERNAL_H

#include "kv/kv.h"
#include "kv/kv_arena.h"

struct mx_kv_pool {
    mx_kv_shape shape;
    size_t page_bytes;
    size_t max_bytes;    /* the budget, for pages and states */
    mx_kv_arena payloads; /* block i is the payload of pages[i] */
    mx_kv_arena locals;   /* the rows of windowed layers, in no order */
    mx_page *pages;       /* [payloads.max_blocks] */
    size_t state_pages;   /* what one state counts; 0 = the shape has none */
    mx_kvstate *states;   /* all, in use or free, by next */
    mx_kvstate *free_states;
    size_t n_states, n_free_states;
    size_t ahead_bytes;   /* of zeroed payloads that idle work sees to */
    bool poison;
};

/* Bytes that pages and states have memory for, in use or not. */
size_t mx_kv_pool_resident(const mx_kv_pool *p);
/* Gives back the memory of free pages until a new state fits the budget beside what is resident. */
void mx_kv_pool_make_room(mx_kv_pool *p);
/* The local rows alone; both pages have the block. */
void mx_page_copy_local(const mx_kv_shape *s, mx_page *to, const mx_page *from, uint32_t n_rows);
/* Frees one recycled state; false when there is none. */
bool mx_kvstate_release_one(mx_kv_pool *p);
/* Frees all of them; every state must be free. */
void mx_kvstate_destroy_all(mx_kv_pool *p);
/* The states' part of mx_kv_pool_check. */
void mx_kvstate_check_all(const mx_kv_pool *p);

#endif
