/* SPDX-License-Identifier: MIT
 *
 * Where boundaries are left on the way, for models with a recurrent state.
 *
 * The state of a position exists only at the end of a pass, so passes are made to end where a
 * boundary is wanted: at the marks that the request names (the end of system and tools, of the last
 * message), and at even distances, which bound what has to be computed again after any cut. The ends
 * of prompts and turns come by themselves. A prompt that leaves what is stored between two boundaries
 * pays for the way there once: it leaves one where the two part, for the next edit in the same place.
 *
 * The local rows of windowed layers are there for all positions of a pass, and for a while longer. So
 * passes end where they like, and windows are kept afterwards, at the same kinds of places.
 */
#include "sched/sched_internal.h"

#include "base/log.h"

enum {
    /* The distance: a state costs as much as the pages between two of them, but no cut shall cost
     * more than the larger number of tokens, and small states shall not cut passes into pieces.
     * docs/decisions/0009-boundary-spacing.md, 2026-11. */
    SPACING_MIN = 256,
    SPACING_MAX = 1024,
    /* Of the local rows between two ends a fourth is kept, and a cut costs at most four windows.
     * docs/decisions/0016-window-pages.md, 2026-11. */
    WINDOWS_APART = 4,
};

size_t mx_stop_spacing(const mx_kv_shape *shape)
{
    if (shape->state_bytes == 0) {
        return 0;
    }
    size_t page_bytes = mx_kv_page_bytes(shape);
    size_t n_pages = (shape->state_bytes + page_bytes - 1) / page_bytes;
    size_t n = mx_min_size(n_pages, SPACING_MAX / MX_PAGE_TOKENS) * MX_PAGE_TOKENS;
    return mx_max_size(n, SPACING_MIN);
}

size_t mx_stop_window_spacing(const mx_kv_shape *shape)
{
    size_t n = mx_max_size((size_t)WINDOWS_APART * shape->window, SPACING_MIN);
    return shape->n_local > 0 ? mx_round_up(n, MX_PAGE_TOKENS) : 0;
}

size_t mx_stop_next(const mx_engine *e, const mx_request *r)
{
    if (e->spacing == 0) {
        return SIZE_MAX;
    }
    size_t at = r->seq.n_tokens;
    size_t next = (at / e->spacing + 1) * e->spacing;
    for (size_t i = 0; i < r->params.n_marks; i++) {
        if (r->params.marks[i] > at) {
            next = mx_min_size(next, r->params.marks[i]);
        }
    }
    for (size_t i = 0; i < MX_COUNT(r->asked_stops); i++) {
        if (r->asked_stops[i] > at) {
            next = mx_min_size(next, r->asked_stops[i]);
        }
    }
    return next;
}

bool mx_stop_want(const mx_engine *e, mx_request *o, size_t n)
{
    const size_t spacing = e->spacing > 0 ? e->spacing : e->window_spacing;
    if (spacing == 0 || n == o->n_prompt || n % spacing == 0) {
        return true;
    }
    size_t *place = NULL;
    for (size_t i = 0; i < MX_COUNT(o->asked_stops); i++) {
        if (o->asked_stops[i] == n) {
            return true;
        }
        if (o->asked_stops[i] <= o->seq.n_tokens) {
            place = &o->asked_stops[i];
        }
    }
    if (place != NULL) {
        *place = n;
    }
    return place != NULL;
}

void mx_stop_learn(const mx_engine *e, mx_request *r)
{
    if ((e->spacing > 0 || e->window_spacing > 0) && r->look.n_common < r->n_prompt
        && r->look.n_common >= r->seq.n_tokens + MX_STOP_MIN_TOKENS)
    {
        (void)mx_stop_want(e, r, r->look.n_common);
    }
}

static void keep_window(mx_engine *e, mx_request *r, size_t n)
{
    mx_err err = mx_bank_keep_window(e->bank, &r->seq, n);
    if (err != MX_OK) {
        mx_log(MX_LOG_DEBUG, "bank: request=%s window before %zu not kept: %s", r->params.id, n,
               mx_err_name(err));
    }
}

void mx_stop_keep_windows(mx_engine *e, mx_request *r, bool with_tail)
{
    const size_t from = r->n_windows;
    const size_t n = with_tail ? r->seq.n_tokens
                               : r->seq.n_tokens / MX_PAGE_TOKENS * MX_PAGE_TOKENS;
    if (e->window_spacing == 0 || n <= from) {
        return;
    }
    for (size_t at = (from / e->window_spacing + 1) * e->window_spacing; at <= n;
         at += e->window_spacing)
    {
        keep_window(e, r, at);
    }
    for (size_t i = 0; i < r->params.n_marks; i++) {
        if (r->params.marks[i] > from && r->params.marks[i] <= n) {
            keep_window(e, r, r->params.marks[i]);
        }
    }
    for (size_t i = 0; i < MX_COUNT(r->asked_stops); i++) {
        if (r->asked_stops[i] > from && r->asked_stops[i] <= n) {
            keep_window(e, r, r->asked_stops[i]);
        }
    }
    r->n_windows = n;
}

void mx_stop_keep_here(mx_engine *e, mx_request *r)
{
    size_t n = r->seq.n_tokens / MX_PAGE_TOKENS * MX_PAGE_TOKENS;
    if (e->window_spacing > 0 && r->state == MX_RUN_ACTIVE && n > 0 && mx_request_may_store(r)) {
        keep_window(e, r, n);
    }
}

static bool is_stop(const mx_engine *e, const mx_request *r)
{
    size_t at = r->seq.n_tokens;
    for (size_t i = 0; i < r->params.n_marks; i++) {
        if (r->params.marks[i] == at) {
            return true;
        }
    }
    for (size_t i = 0; i < MX_COUNT(r->asked_stops); i++) {
        if (r->asked_stops[i] == at) {
            return true;
        }
    }
    return at % e->spacing == 0;
}

bool mx_stop_keep(mx_engine *e, mx_request *r)
{
    if (e->spacing == 0 || r->seq.n_tokens == 0 || !is_stop(e, r)) {
        return false;
    }
    mx_errbuf eb;
    if (mx_bank_snapshot_cache(e->bank, &r->seq, MX_ENTRY_POINT, NULL, &eb) != MX_OK) {
        mx_log(MX_LOG_DEBUG, "bank: request=%s boundary at %zu not kept: %s", r->params.id,
               r->seq.n_tokens, eb.text);
    }
    return true;
}
