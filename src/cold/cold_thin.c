/* SPDX-License-Identifier: MIT
 *
 * Recurrent states: which can never be reached, and which stand close to another. Under the folder's
 * limit the latter go before anything goes by age.
 *
 * Losing a state costs the tokens from the one before it, for every conversation that would have
 * ended up there. Which one costs the fewest changes with each that goes, so one is taken at a
 * time.
 */
#include "cold/cold_sweep.h"

#include <stdlib.h>

#include "base/mem.h"

static int compare_place(const void *a, const void *b)
{
    const mx_swept_state *x = a, *y = b;
    int c = memcmp(&x->parent, &y->parent, sizeof x->parent);
    return c != 0 ? c : x->at < y->at ? -1 : x->at > y->at;
}

void mx_sweep_load_states(mx_sweep *s)
{
    s->states = s->f->has_states ? mx_alloc((s->n_files + 1) * sizeof *s->states) : NULL;
    for (size_t i = s->states != NULL ? s->n_files : 0; i-- > 0 && !mx_sweep_is_stopping(s);) {
        const mx_swept_file *e = &s->files[i];
        mx_disk_page head;
        mx_cold_want want = {.object = MX_COLD_STATE, .id = e->id};
        if (e->kind == MX_SWEPT_STATE && e->root == s->own_root && !e->is_gone
            && mx_cold_load_page(s->c, s->f, &want, &s->c->sweeper_scratch, NULL, &head) == MX_OK) {
            uint64_t at = head.first_position + head.n_tokens;
            s->states[s->n_states++] =
                (mx_swept_state){head.parent, head.first_position, at, at, i};
        }
    }
    if (s->n_states > 0) {
        qsort(s->states, s->n_states, sizeof *s->states, compare_place);
    }
}

/* The page before the one that it stands in is gone. (Where only that one is gone, the state is as old
 * and will not stay long.) A folder that would not say is no reason to delete. */
void mx_sweep_mark_orphans(mx_sweep *s, bool *marked)
{
    for (size_t k = 0; k < s->n_states && !mx_sweep_is_stopping(s); k++) {
        const mx_swept_state *b = &s->states[k];
        const mx_swept_file *e = &s->files[b->file];
        if (b->first > 0 && !e->is_gone && !e->is_named && mx_swept_is_old_enough(s, e)) {
            marked[b->file] = mx_cold_look_for(s->c, s->f, MX_COLD_PAGE, &b->parent, MX_PAGE_TOKENS)
                              == MX_E_NOT_FOUND;
        }
    }
}

static bool is_left(const mx_sweep *s, const bool *marked, const mx_swept_state *b)
{
    return !marked[b->file] && !s->files[b->file].is_gone;
}

/* The last one before b that stays, in the same page or one of the `most` tokens before; NULL =
 * none. Which branch another state behind the same page belongs to is not looked at: that costs
 * tokens, nothing else. */
static mx_swept_state *state_before(mx_sweep *s, const bool *marked, const mx_swept_state *b,
                                    uint64_t most)
{
    mx_swept_state *list = s->states;
    size_t n = s->n_states;
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
        mx_swept_state *last = NULL;
        for (; lo < n && mx_hash256_eq(&list[lo].parent, &parent) && list[lo].at < b->at; lo++) {
            last = is_left(s, marked, &list[lo]) ? &list[lo] : last;
        }
        if (last != NULL || first == 0 || !mx_cold_index_parent(s->c->index, &parent, &parent)) {
            return last;
        }
    }
    return NULL;
}

/* By coverage, before anything goes by age: the state without which the fewest tokens are computed
 * again, as long as another one stands close before it. */
void mx_sweep_mark_close_states(mx_sweep *s, bool *marked, uint64_t low, uint64_t *left)
{
    enum { CLOSE_TOKENS = 512 };
    while (*left > low && !mx_sweep_is_stopping(s)) {
        mx_swept_state *least = NULL, *back = NULL;
        uint64_t least_cost = CLOSE_TOKENS;
        for (size_t k = 0; k < s->n_states; k++) {
            mx_swept_state *b = &s->states[k];
            if (!is_left(s, marked, b) || !mx_swept_is_old_enough(s, &s->files[b->file])) {
                continue;
            }
            mx_swept_state *before = state_before(s, marked, b, CLOSE_TOKENS);
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
}
