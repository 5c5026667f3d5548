/* SPDX-License-Identifier: MIT
 *
 * Finding and reading recurrent states.
 *
 * The name of a state follows from the tokens before it, as that of a page does, so a prompt can name
 * each state it could use: one per position. All positions are looked up in the index, which knows
 * every name that the last scan saw and every state that this process wrote; the folder itself is
 * asked where another process is likely to have left one just now: at borders of pages, where
 * states at even distances stand, and in the last stretch of what is stored, where turns end. The
 * greatest comes first, so a usual search ends soon; a hash or two for each position costs a
 * thousandth of computing that token.
 *
 * A state is of use with all rows before it only, and the other way round. So what a probe or a read
 * has found out about pages is cut to the state, and where a state turns out to be bad, the next
 * smaller one takes its place.
 */
#include "cold/cold_state.h"

#include <assert.h>

#include "base/log.h"
#include "base/mem.h"

enum { BY_NAME_TOKENS = 128 };
static const uint64_t LOAD_WAIT_US = 250000;

/* Identities of the whole pages within the first n tokens of the prompt, from position 0. */
static bool fill_path(mx_cold *c, const mx_cold_job *job, size_t n)
{
    size_t n_pages = n / MX_PAGE_TOKENS;
    void *path = c->reader_path;
    if (!mx_grow(&path, &c->reader_path_cap, n_pages + 1, sizeof *c->reader_path)) {
        return false;
    }
    c->reader_path = path;
    for (size_t i = 0; i < n_pages; i++) {
        const mx_hash256 *parent = i == 0 ? &job->root : &c->reader_path[i - 1];
        c->reader_path[i] = mx_page_identity(&job->root, parent, job->chain + i * MX_PAGE_TOKENS,
                                             MX_PAGE_TOKENS);
    }
    return true;
}

static const mx_hash256 *path_parent(const mx_cold *c, const mx_cold_job *job, size_t page)
{
    return page == 0 ? &job->root : &c->reader_path[page - 1];
}

mx_err mx_cold_find_state(mx_cold *c, mx_cold_job *job, uint64_t most)
{
    job->state_at = 0;
    if (most <= job->state_min) {
        return MX_OK;
    }
    if (!fill_path(c, job, (size_t)most)) {
        return MX_E_NOMEM;
    }
    bool is_loaded = mx_cold_is_loaded(c);
    for (uint64_t at = most; at > job->state_min; at--) {
        size_t page = (size_t)((at - 1) / MX_PAGE_TOKENS);
        const int32_t *tokens = job->chain + page * MX_PAGE_TOKENS;
        uint32_t n = (uint32_t)(at - page * MX_PAGE_TOKENS);
        mx_hash256 id =
            mx_cold_state_identity(&job->root, path_parent(c, job, page), page, tokens, n);
        bool is_likely = !is_loaded || most - at < BY_NAME_TOKENS || at % MX_PAGE_TOKENS == 0;
        if ((is_likely || mx_cold_index_has(c->index, &id))
            && mx_cold_state_exists(c, &c->reader_folder, &id)) {
            mx_err err = mx_cold_index_add(c->index, &id, false);
            (void)err; /* without memory for the index nothing is lost but a hint */
            job->state_at = at;
            job->state_id = id;
            break;
        }
    }
    return MX_OK;
}

mx_err mx_cold_probe_state(mx_cold *c, mx_cold_job *job)
{
    uint64_t first = job->first_page * MX_PAGE_TOKENS;
    mx_cold_wait_loaded(c, LOAD_WAIT_US);
    MX_TRY(mx_cold_find_state(c, job, first + job->n_full * MX_PAGE_TOKENS + job->tail_rows));
    uint64_t at = job->state_at;
    if (at <= first) { /* the pages are all with the caller, or there is nothing */
        job->n_full = 0;
        job->tail_rows = job->tail_file_rows = 0;
    } else {
        size_t n_full = (size_t)((at - first) / MX_PAGE_TOKENS);
        uint32_t n_rows = (uint32_t)((at - first) % MX_PAGE_TOKENS);
        if (n_full < job->n_full && n_rows > 0) { /* the tail is the beginning of a whole page */
            job->tail_id = c->reader_path[job->first_page + n_full];
            job->tail_file_rows = MX_PAGE_TOKENS;
        }
        job->n_full = n_full;
        job->tail_rows = n_rows;
        job->tail_file_rows = n_rows > 0 ? job->tail_file_rows : 0;
    }
    job->read_bytes = at > 0 ? c->shape.state_bytes + (uint64_t)job->n_full * c->page_bytes : 0;
    if (job->tail_rows > 0) {
        job->read_bytes += mx_disk_payload_bytes(&c->shape, job->tail_file_rows);
    }
    return MX_OK;
}

static mx_err load_state(mx_cold *c, mx_cold_job *job)
{
    size_t page_at = (size_t)((job->state_at - 1) / MX_PAGE_TOKENS);
    const int32_t *tokens = job->chain + page_at * MX_PAGE_TOKENS;
    mx_cold_want want = {.object = MX_COLD_STATE,
                         .id = job->state_id,
                         .root = &job->root,
                         .parent = path_parent(c, job, page_at),
                         .n_tokens = (uint32_t)(job->state_at - page_at * MX_PAGE_TOKENS),
                         .first_position = page_at * MX_PAGE_TOKENS};
    mx_disk_page page;
    if (!mx_cold_claim(c, job, 0, MX_COLD_STATE_PAYLOAD)) {
        return MX_E_CANCELLED;
    }
    mx_err err = mx_cold_load_page(c, &c->reader_folder, &want, &c->reader_scratch, job->state_payload,
                                   &page);
    mx_cold_unclaim(c, job, 0);
    MX_TRY(err);
    return page.n_tokens == want.n_tokens
                   && memcmp(page.tokens, tokens, page.n_tokens * sizeof *tokens) == 0
               ? MX_OK
               : MX_E_NOT_FOUND;
}

mx_err mx_cold_read_state(mx_cold *c, mx_cold_job *job, uint64_t *bytes)
{
    uint64_t first = job->first_page * MX_PAGE_TOKENS, have = first;
    for (size_t i = 0; i < job->n_read; i++) {
        have += i < job->n_full ? MX_PAGE_TOKENS : job->tail_rows;
    }
    uint64_t wanted = job->state_at;
    if (wanted == 0 || job->state_payload == NULL) {
        job->state_at = 0;
        return MX_OK;
    }
    if (wanted > have) {
        MX_TRY(mx_cold_find_state(c, job, have));
    } else if (!fill_path(c, job, (size_t)wanted)) {
        job->state_at = 0;
        return MX_E_NOMEM;
    }
    while (job->state_at > 0) {
        if (atomic_load(&c->is_stopping)) {
            job->state_at = 0;
            return MX_E_CANCELLED;
        }
        mx_err err = load_state(c, job);
        if (err == MX_OK) {
            break;
        }
        uint64_t bad = job->state_at;
        job->state_at = 0;
        if (err == MX_E_CANCELLED || err == MX_E_NOMEM) {
            return err;
        }
        mx_cold_index_remove(c->index, &job->state_id); /* or a foreign one would be found again */
        MX_TRY(mx_cold_find_state(c, job, bad - 1));
    }
    if (job->state_at > 0) {
        *bytes += c->shape.state_bytes;
        c->reader_state = job->state_id;
        c->reader_state_at = job->state_at;
        pthread_mutex_lock(&c->lock);
        c->stats.states_read++;
        pthread_mutex_unlock(&c->lock);
    }
    if (job->state_at != wanted) {
        mx_log(MX_LOG_INFO, "cold: the state at %llu could not be used, going back to %llu",
               (unsigned long long)wanted, (unsigned long long)job->state_at);
    }
    return MX_OK;
}
