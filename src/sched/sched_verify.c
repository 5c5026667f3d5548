/* SPDX-License-Identifier: MIT
 *
 * --verify-restore: the promise, checked. What a restore gave is computed again from the tokens, in a
 * sequence of its own, and compared bit for bit: rows of all pages, the state, the hidden vector.
 *
 * It runs at once, between two passes, and everybody waits for it: it is for people who doubt their
 * memory, their disk or this program, and costs what the cache had saved.
 */
#include "sched/sched_internal.h"

#include "base/log.h"
#include "base/mem.h"

/* Computes the first n tokens of r; the last one's hidden vector goes to e->hidden. */
static mx_err compute(mx_engine *e, const mx_request *r, mx_seq *seq, size_t n, mx_errbuf *eb)
{
    while (seq->n_tokens < n) {
        size_t first = seq->n_tokens;
        size_t count = mx_min_size(n - first, e->cfg.prefill_chunk);
        mx_err err = mx_seq_reserve(seq, count);
        if (err == MX_E_FULL) {
            size_t n_pages = count / MX_PAGE_TOKENS + 2 + 2 * mx_kv_pool_state_pages(e->pool);
            (void)mx_bank_evict(e->bank, n_pages);
            err = mx_seq_reserve(seq, count);
        }
        MX_TRY(err);
        for (size_t i = 0; i < count; i++) {
            e->rows[i] = (mx_batch_row){.seq = seq,
                                        .pos = (uint32_t)(first + i),
                                        .token = r->tokens[first + i],
                                        .hidden_to = first + i + 1 == n ? 0 : -1};
        }
        mx_batch batch = {.rows = e->rows,
                          .n_rows = (uint32_t)count,
                          .hidden = e->hidden,
                          .n_hidden_rows = first + count == n};
        uint32_t bad_row = 0;
        MX_TRY(mx_model_forward(e->model, &batch, &bad_row, eb));
        mx_seq_commit(seq, r->tokens + first, count);
    }
    return MX_OK;
}

static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    size_t i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* What differs: identities of pages, then of the state. */
typedef struct wrong {
    mx_hash256 *ids; /* [n_pages + n_states] */
    size_t n_pages, n_states;
    bool has_hidden;
} wrong;

/* The names under which the rows of page i, n_rows of them, can be in the folder. */
static void add_page(wrong *w, const mx_request *r, const mx_seq *right, size_t i, uint32_t n_rows)
{
    const mx_hash256 *parent = i > 0 ? &right->pages[i - 1]->id : &r->root;
    w->ids[w->n_pages++] =
        mx_page_identity(&r->root, parent, r->tokens + i * MX_PAGE_TOKENS, n_rows);
    if (r->has_cold_tail && (i + 1) * MX_PAGE_TOKENS >= right->n_tokens) {
        w->ids[w->n_pages++] = r->cold_tail_id;
    }
}

/* All pages are compared, for each has a file of its own; the first that differs is described. */
static void compare_pages(const mx_engine *e, const mx_request *r, const mx_seq *right,
                          uint8_t *got, uint8_t *want, uint8_t *whole, wrong *w)
{
    const mx_kv_shape *shape = mx_kv_pool_shape(e->pool);
    for (size_t i = 0; i * MX_PAGE_TOKENS < right->n_tokens; i++) {
        uint32_t n_rows = (uint32_t)mx_min_size(right->n_tokens - i * MX_PAGE_TOKENS,
                                                MX_PAGE_TOKENS);
        size_t n = mx_kv_rows_bytes(shape, n_rows);
        const mx_page *g = r->seq.pages[i], *w_page = right->pages[i];
        /* Local rows that r has not are not looked at: they stand for themselves. */
        mx_page_join(shape, whole, g->payload, i >= r->seq.first_local ? g->local : w_page->local);
        mx_page_pack_rows(shape, got, whole, n_rows);
        mx_page_join(shape, whole, w_page->payload, w_page->local);
        mx_page_pack_rows(shape, want, whole, n_rows);
        size_t at = first_difference(got, want, n);
        if (at < n && w->n_pages == 0) {
            mx_log(MX_LOG_ERROR, "verify: request=%s the restored keys and values are not those of "
                   "the tokens: page=%zu positions=%zu..%zu layer=%zu byte=%zu", r->params.id, i,
                   i * MX_PAGE_TOKENS, i * MX_PAGE_TOKENS + n_rows - 1,
                   at / (n / shape->n_layers), at);
        }
        if (at < n) {
            add_page(w, r, right, i, n_rows);
        }
    }
}

static void compare(const mx_engine *e, const mx_request *r, const mx_seq *right, uint8_t *scratch,
                    size_t page_bytes, wrong *w)
{
    compare_pages(e, r, right, scratch, scratch + page_bytes, scratch + 2 * page_bytes, w);
    size_t n_state = mx_kv_pool_shape(e->pool)->state_bytes, n = right->n_tokens;
    if (n_state > 0 && memcmp(r->seq.state->data, right->state->data, n_state) != 0) {
        mx_log(MX_LOG_ERROR, "verify: request=%s the restored state is not that of the tokens: "
               "position=%zu byte=%zu", r->params.id, n,
               first_difference(r->seq.state->data, right->state->data, n_state));
        size_t page = (n - 1) / MX_PAGE_TOKENS;
        w->ids[w->n_pages + w->n_states++] = mx_cold_state_identity(
            &r->root, page > 0 ? &right->pages[page - 1]->id : &r->root, page,
            r->tokens + page * MX_PAGE_TOKENS, (uint32_t)(n - page * MX_PAGE_TOKENS));
    }
    bool has_hidden = r->hidden_at > 0 && r->hidden_at == n;
    if (has_hidden && memcmp(r->hidden, e->hidden, e->mc->n_embd * sizeof *e->hidden) != 0) {
        mx_log(MX_LOG_ERROR, "verify: request=%s the restored hidden vector is not that of the "
               "tokens: position=%zu", r->params.id, n);
        w->has_hidden = true;
    }
}

bool mx_verify_restored(mx_engine *e, mx_request *r)
{
    size_t page_bytes = mx_kv_pool_page_bytes(e->pool);
    if (e->cfg.spoil_restore != NULL && atomic_exchange(e->cfg.spoil_restore, false)) {
        mx_page *page = r->seq.pages[r->seq.n_pages / 2];
        page->payload[0] ^= 1; /* a row of layer 0 */
    }
    mx_seq right;
    mx_errbuf eb = {{0}};
    mx_seq_init(&right, e->pool, &r->root);
    right.keep_from = 0;
    uint8_t *scratch = mx_alloc(3 * page_bytes);
    wrong w = {.ids = mx_alloc((r->seq.n_pages + 2) * sizeof *w.ids)};
    mx_err err = scratch != NULL && w.ids != NULL ? compute(e, r, &right, r->seq.n_tokens, &eb) : MX_E_NOMEM;
    bool is_good = true;
    if (err == MX_OK) {
        compare(e, r, &right, scratch, page_bytes, &w);
        is_good = w.n_pages + w.n_states == 0 && !w.has_hidden;
        e->live.n_verified += is_good;
        e->live.n_verify_failed += !is_good;
        if (!is_good) {
            mx_log(MX_LOG_ERROR, "verify: request=%s wrong_pages=%zu wrong_states=%zu: all that is in "
                   "RAM is dropped, files of what differs go to quarantine, the answer is computed",
                   r->params.id, w.n_pages, w.n_states);
            mx_ticket_condemn(e, r, w.ids, w.n_pages, w.n_states);
        }
    } else {
        mx_log(MX_LOG_WARN, "verify: request=%s cannot compute tokens=%zu again: %s %s",
               r->params.id, r->seq.n_tokens, mx_err_name(err), eb.text);
    }
    mx_free(scratch);
    mx_free(w.ids);
    mx_seq_rollback(&right);
    mx_seq_free(&right);
    return is_good;
}
