/* SPDX-License-Identifier: MIT
 *
 * A direct-mapped table: eight bytes of the identity choose the slot, eight others are kept in it.
 * Relaxed atomics suffice, because nothing else is published through a slot.
 */
#include "base/gone.h"

#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>

struct mx_gone {
    size_t mask;
    _Atomic uint64_t *slots; /* 0 = empty */
};

mx_gone *mx_gone_create(size_t n_slots)
{
    assert(n_slots > 0 && (n_slots & (n_slots - 1)) == 0);
    mx_gone *g = mx_calloc(1, sizeof *g);
    if (g != NULL) {
        g->mask = n_slots - 1;
        g->slots = mx_calloc(n_slots, sizeof *g->slots);
        if (g->slots == NULL) {
            mx_free(g);
            g = NULL;
        }
    }
    return g;
}

void mx_gone_destroy(mx_gone *g)
{
    if (g != NULL) {
        mx_free(g->slots);
        mx_free(g);
    }
}

static _Atomic uint64_t *slot_of(const mx_gone *g, const mx_hash256 *id, uint64_t *value)
{
    *value = mx_get_le64(id->b + 8) | 1; /* never "empty" */
    return &g->slots[mx_get_le64(id->b) & g->mask];
}

void mx_gone_add(mx_gone *g, const mx_hash256 *id)
{
    if (g != NULL) {
        uint64_t value;
        _Atomic uint64_t *slot = slot_of(g, id, &value);
        atomic_store_explicit(slot, value, memory_order_relaxed);
    }
}

bool mx_gone_has(const mx_gone *g, const mx_hash256 *id)
{
    if (g == NULL) {
        return false;
    }
    uint64_t value;
    _Atomic uint64_t *slot = slot_of(g, id, &value);
    return atomic_load_explicit(slot, memory_order_relaxed) == value;
}
