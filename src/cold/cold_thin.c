/* SPDX-License-Identifier: MIT
 *
 * States that stand close to another: under the folder's limit they go before anything goes by age.
 *
 * Losing a state costs the tokens from the one before it, for every conversation that would have
 * ended up there. Which one costs the fewest changes with each that goes, so one is taken at a
 * time.
 */
#include "cold/cold_sweep.h"

#include <stdlib.h>

#include "base/mem.h"

typedef struct boundary {
    mx_hash256 parent;   /* of the page that it stands in */
    uint64_t first, at;  /* where that page begins, and where the state stands */
    uint64_t reach;      /* the last position that has to come back to it */
    size_t file;
} boundary;

static int compare_place(const void *a, const void *b)
{
    const boundary *x = a, *y = b;
    int c = memcmp(&x->parent, &y->parent, sizeof x->parent);
    return c != 0 ? c : x->at < y->at ? -1 : x->at > y->at;
}

/* The last one before b that stays, in the same page or one of the `most` tokens before; NULL =
 * none. Which branch another state behind the same page belongs to is not looked at: that costs
 * tokens, nothing else. */
static boundary *boundary_before(const mx_sweep *s, boundary *list, size_t n, const bool *marked,
                                 const boundary *b, uint64_t most)
{
    mx_hash256 parent = b->parent;
    for (uint64_t first = b->first; b->at - first < most; first -= MX_PAGE_TOKENS) {
        size_t lo = 0, hi = n;
        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;
            if (memcmp(&list[mid].parent, &parent, sizeof parent) < 0) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        boundary *last = NULL;
        for (; lo < n && mx_hash256_eq(&list[lo].parent, &parent) && list[lo].at < b->at; lo++) {
            last = marked[list[lo].file] ? last : &list[lo];
        }
        if (last != NULL || first == 0 || !mx_cold_index_parent(s->c->index, &parent, &parent)) {
            return last;
        }
    }
    return NULL;
}

static size_t list_boundaries(mx_sweep *s, boundary *list)
{
    size_t n = 0;
    for (size_t i = s->n_files; i-- > 0;) {
        const mx_swept_file *e = &s->files[i];
        mx_disk_page state;
        mx_cold_want want = {.object = MX_COLD_STATE, .id = e->id};
        if (e->kind == MX_SWEPT_STATE && e->root == s->own_root && !e->is_gone
            && mx_cold_load_page(s->c, s->f, &want, s->c->sweeper_head, NULL, &state) == MX_OK) {
            uint64_t at = state.first_position + state.n_tokens;
            list[n++] = (boundary){state.parent, state.first_position, at, at, i};
        }
    }
    qsort(list, n, sizeof *list, compare_place);
    return n;
}

/* By coverage, before anything goes by age: the state without which the fewest tokens are computed
 * again, as long as another one stands close before it. */
void mx_sweep_mark_close_states(mx_sweep *s, bool *marked, uint64_t low, uint64_t *left)
{
    enum { CLOSE_TOKENS = 512 };
    bool is_wanted = s->f->has_states && *left > low;
    boundary *list = is_wanted ? mx_calloc(s->n_files, sizeof *list) : NULL;
    size_t n = list != NULL ? list_boundaries(s, list) : 0;
    while (*left > low && !mx_sweep_is_stopping(s)) {
        boundary *least = NULL, *back = NULL;
        uint64_t least_cost = CLOSE_TOKENS;
        for (size_t k = 0; k < n; k++) {
            boundary *b = &list[k];
            if (marked[b->file] || !mx_swept_is_old_enough(s, &s->files[b->file])) {
                continue;
            }
            boundary *before = boundary_before(s, list, n, marked, b, CLOSE_TOKENS);
            uint64_t cost = before != NULL ? b->reach - before->at : CLOSE_TOKENS;
            bool is_tie = cost == least_cost && least != NULL;
            if (cost < least_cost || (is_tie && b->file > least->file)) {
                least = b;
                back = before;
                least_cost = cost;
            }
        }
        if (least == NULL) {
            break;
        }
        marked[least->file] = true;
        back->reach = least->reach > back->reach ? least->reach : back->reach;
        *left -= s->files[least->file].bytes;
    }
    mx_free(list);
}
