/* SPDX-License-Identifier: MIT
 *
 * Tickets: jobs that the cold tier holds for the engine.
 *
 * A ticket owns everything its job points to (token copy, page list, references on the pages), so
 * the job stays valid whatever becomes of the request: a request that ends or stops waiting just
 * lets go of its ticket, and the answer is dropped when it comes. Writing is best effort: what finds
 * the queue full is offered again at the next commit, and at the end of a turn given up.
 *
 * A folder may hang for ever. Pages are what everybody needs, so a ticket that is let go gives them
 * back at once, all but the one that a system call fills at that moment.
 */
#include "sched/sched_internal.h"

#include "base/log.h"
#include "base/mem.h"

struct mx_ticket {
    mx_cold_job job; /* job.user points back here */
    mx_ticket *next;
    mx_request *request; /* who waits for it, or NULL */
    mx_query *query;     /* likewise */
    int32_t *tokens;
    mx_page **pages; /* [n_pages] one reference each, NULL where it was passed on */
    uint8_t **payloads, **locals;
    bool holds_local;     /* the rows of windowed layers of pages[0], to be written */
    mx_hash256 *ids;
    size_t n_pages;
    mx_kvstate *state;    /* one reference: to be written, or filled; NULL = none, or passed on */
    uint64_t *positions;  /* of a manifest's states */
    mx_turn *turns;       /* and its answers */
    char *session_name;   /* of the request; or NULL */
    bool is_late;         /* counted in the engine's n_late */
    bool is_second;       /* a manifest that is offered again */
    uint32_t n_tail_rows; /* of a manifest's last page, which is pages[n_pages - 1]; 0 = it is full */
};

static void drop_page(mx_engine *e, mx_ticket *t, size_t i)
{
    if (t->holds_local && t->pages[i] != NULL) {
        mx_page_drop_local(e->pool, t->pages[i]);
        t->holds_local = false;
    }
    mx_page_unref(e->pool, t->pages[i]);
    t->pages[i] = NULL;
}

static void free_ticket(mx_engine *e, mx_ticket *t)
{
    if (t->query != NULL) {
        mx_query_answered(e, t->query, NULL);
    }
    for (size_t i = 0; i < t->n_pages; i++) {
        drop_page(e, t, i);
    }
    mx_kvstate_unref(e->pool, t->state);
    mx_free(t->tokens);
    mx_free(t->pages);
    mx_free(t->payloads);
    mx_free(t->locals);
    mx_free(t->ids);
    mx_free(t->positions);
    mx_free(t->turns);
    mx_free(t->session_name);
    mx_cold_ids_free(&t->job.found);
    mx_free(t);
}

static mx_ticket *new_ticket(mx_cold_job_kind kind, const mx_hash256 *root, size_t n_pages)
{
    mx_ticket *t = mx_calloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    t->pages = mx_calloc(n_pages, sizeof *t->pages);
    t->payloads = mx_calloc(n_pages, sizeof *t->payloads);
    t->locals = mx_calloc(n_pages, sizeof *t->locals);
    if (t->pages == NULL || t->payloads == NULL || t->locals == NULL) {
        mx_free(t->pages);
        mx_free(t->payloads);
        mx_free(t->locals);
        mx_free(t);
        return NULL;
    }
    t->job.kind = kind;
    t->job.root = *root;
    t->job.user = t;
    return t;
}

/* Hands the ticket over; frees it when the cold tier does not take it. */
static mx_err submit(mx_engine *e, mx_ticket *t)
{
    mx_err err = mx_cold_submit(e->cold, &t->job);
    if (err != MX_OK) {
        free_ticket(e, t);
        return err;
    }
    t->next = e->tickets;
    e->tickets = t;
    return MX_OK;
}

/* ---- reading ---------------------------------------------------------------------------------- */

/* A ticket for what follows the whole pages that r's sequence has, and for a state anywhere in the
 * prompt where there are states. The prompt's last token is left out: it is computed again in any
 * case. */
static mx_ticket *reading_ticket(mx_request *r, mx_cold_job_kind kind, size_t n_pages)
{
    mx_ticket *t = new_ticket(kind, &r->root, n_pages);
    if (t == NULL) {
        return NULL;
    }
    size_t from = r->seq.n_pages * MX_PAGE_TOKENS;
    size_t n = r->n_tokens - 1 - from;
    size_t first = r->engine->spacing > 0 ? 0 : from; /* names of states follow from all tokens */
    t->tokens = mx_alloc((from - first + n) * sizeof *t->tokens);
    if (t->tokens == NULL) {
        free_ticket(r->engine, t);
        return NULL;
    }
    memcpy(t->tokens, r->tokens + first, (from - first + n) * sizeof *t->tokens);
    t->request = r;
    if (r->engine->spacing > 0) {
        t->job.chain = t->tokens;
        t->job.state_min = r->match.n_tokens;
    }
    t->job.parent_id = r->seq.n_pages > 0 ? r->seq.pages[r->seq.n_pages - 1]->id : r->root;
    t->job.first_page = r->seq.n_pages;
    t->job.tokens = t->tokens + (from - first);
    t->job.n_tokens = n;
    return t;
}

bool mx_ticket_probe(mx_engine *e, mx_request *r)
{
    mx_ticket *t = e->n_late == 0 ? reading_ticket(r, MX_COLD_PROBE, 0) : NULL;
    if (t == NULL || submit(e, t) != MX_OK) {
        return false;
    }
    r->ticket = t;
    return true;
}

bool mx_ticket_read(mx_engine *e, mx_request *r, const mx_cold_job *probe)
{
    size_t n_pages = probe->n_full + (probe->tail_rows > 0);
    mx_ticket *t = reading_ticket(r, MX_COLD_READ, n_pages);
    if (t == NULL) {
        return false;
    }
    /* In front of the window only what the other layers see is wanted. */
    size_t end = (t->job.first_page + probe->n_full) * MX_PAGE_TOKENS + probe->tail_rows;
    size_t first_whole = r->reads_all ? 0 : mx_kv_first_kept(mx_kv_pool_shape(e->pool), end);
    while (t->n_pages < n_pages) {
        mx_page *page = mx_admit_page(e, t->job.first_page + t->n_pages >= first_whole);
        if (page == NULL) {
            break; /* everything is in use: read as many as there is room for */
        }
        t->pages[t->n_pages] = page;
        t->payloads[t->n_pages] = page->payload;
        t->locals[t->n_pages++] = page->local;
    }
    if (e->window_spacing > 0 && t->n_pages < n_pages) {
        free_ticket(e, t); /* a part of it cannot be gone on from */
        return false;
    }
    if (e->spacing > 0) {
        t->state = mx_admit_state(e);
        if (t->state == NULL) {
            free_ticket(e, t);
            return false;
        }
        t->job.state_payload = t->state->data;
        t->job.state_at = probe->state_at;
        t->job.state_id = probe->state_id;
    }
    bool has_all = t->n_pages == n_pages;
    t->job.n_full = has_all ? probe->n_full : t->n_pages;
    t->job.tail_id = probe->tail_id;
    t->job.tail_file_rows = probe->tail_file_rows;
    t->job.tail_rows = has_all ? probe->tail_rows : 0;
    t->job.read_bytes = probe->read_bytes;
    t->job.payloads = t->payloads;
    t->job.locals = t->locals;
    if (t->n_pages == 0 && t->state == NULL) {
        free_ticket(e, t);
        return false;
    }
    if (submit(e, t) != MX_OK) {
        return false;
    }
    r->ticket = t;
    return true;
}

bool mx_ticket_query(mx_engine *e, mx_query *q, const mx_hash256 *root, const int32_t *tokens,
                     size_t n, size_t n_full, size_t n_ram)
{
    size_t from = n_full * MX_PAGE_TOKENS;
    mx_ticket *t = e->n_late == 0 && n > from ? new_ticket(MX_COLD_PROBE, root, 0) : NULL;
    if (t == NULL) {
        return false;
    }
    t->tokens = mx_alloc(n * sizeof *t->tokens);
    if (t->tokens == NULL) {
        free_ticket(e, t);
        return false;
    }
    memcpy(t->tokens, tokens, n * sizeof *t->tokens);
    t->job.parent_id = *root;
    for (size_t i = 0; i < from; i += MX_PAGE_TOKENS) {
        t->job.parent_id = mx_page_identity(root, &t->job.parent_id, tokens + i, MX_PAGE_TOKENS);
    }
    t->job.first_page = n_full;
    t->job.tokens = t->tokens + from;
    t->job.n_tokens = n - from;
    if (e->spacing > 0) {
        t->job.chain = t->tokens;
        t->job.state_min = n_ram;
    }
    if (submit(e, t) != MX_OK) {
        return false;
    }
    t->query = q; /* from here on it is answered */
    return true;
}

bool mx_ticket_ids(mx_engine *e, mx_query *q, const mx_hash256 *root, const mx_hash256 *session)
{
    mx_ticket *t = e->n_late == 0 ? new_ticket(MX_COLD_READ_IDS, root, 0) : NULL;
    if (t == NULL) {
        return false;
    }
    t->job.page_id = *session;
    if (submit(e, t) != MX_OK) {
        return false;
    }
    t->query = q;
    return true;
}

/* The pages and the state that the cold tier is not just using. True when there were any. */
static bool give_back_pages(mx_engine *e, mx_ticket *t)
{
    bool any = false;
    bool is_light = t->job.kind == MX_COLD_WRITE_SESSION || t->job.kind == MX_COLD_CONDEMN;
    mx_cold_busy busy;
    memset(&busy, 0xFF, sizeof busy);
    if (!is_light) {
        busy = mx_cold_abandon(e->cold, &t->job);
    }
    for (size_t i = 0; i < t->n_pages; i++) {
        if (mx_cold_is_busy(&busy, i) || t->pages[i] == NULL) {
            continue;
        }
        if (t->job.kind == MX_COLD_WRITE_PAGE) {
            t->pages[i]->is_queued = false;
        }
        drop_page(e, t, i);
        any = true;
    }
    size_t state = t->job.kind == MX_COLD_WRITE_STATE ? 0 : MX_COLD_STATE_PAYLOAD;
    bool is_state_busy = mx_cold_is_busy(&busy, state);
    if (t->state != NULL && !is_state_busy) {
        mx_kvstate_unref(e->pool, t->state);
        t->state = NULL;
        any = true;
    }
    return any;
}

static bool is_write(const mx_ticket *t)
{
    return t->job.kind == MX_COLD_WRITE_PAGE || t->job.kind == MX_COLD_WRITE_STATE ||
           t->job.kind == MX_COLD_WRITE_SESSION;
}

void mx_ticket_abandon(mx_request *r, bool is_late)
{
    mx_ticket *t = r->ticket;
    if (t == NULL) {
        return;
    }
    t->request = NULL;
    r->ticket = NULL;
    if (is_late) {
        t->is_late = true;
        r->engine->n_late++;
    }
    give_back_pages(r->engine, t);
}

bool mx_ticket_is_writing(const mx_engine *e)
{
    for (const mx_ticket *t = e->tickets; t != NULL; t = t->next) {
        if (is_write(t)) {
            return true;
        }
    }
    return false;
}

bool mx_ticket_shed(mx_engine *e)
{
    bool any = false;
    for (mx_ticket *t = e->tickets; t != NULL; t = t->next) {
        if (is_write(t)) {
            any |= give_back_pages(e, t);
        }
    }
    if (any) {
        mx_log(MX_LOG_WARN, "cold: out of KV pages while the cache folder is slow; what is not "
               "written yet is dropped (--kv-budget)");
    }
    return any;
}

/* ---- writing ---------------------------------------------------------------------------------- */

static const mx_hash256 *parent_id(const mx_hash256 *root, const mx_page *page)
{
    return page->parent != NULL ? &page->parent->id : root;
}

/* Offers n_rows rows of one page; MX_OK also when it is known to be there. */
static mx_err store_page(mx_engine *e, const mx_hash256 *root, mx_page *page, uint32_t n_rows,
                         const mx_hash256 *id)
{
    bool is_full = n_rows == MX_PAGE_TOKENS;
    const bool has_local = mx_page_has_local(mx_kv_pool_shape(e->pool), page, n_rows);
    if (is_full && page->is_queued) {
        return MX_OK;
    }
    if (has_local ? mx_cold_has_whole_page(e->cold, id) : mx_cold_has_page(e->cold, id)) {
        e->live.disk_bytes_saved += mx_kv_rows_bytes(mx_kv_pool_shape(e->pool), n_rows);
        return MX_OK;
    }
    if (!has_local && !is_full) {
        return MX_E_NOT_FOUND; /* nothing could be resumed in it */
    }
    mx_ticket *t = new_ticket(MX_COLD_WRITE_PAGE, root, 1);
    if (t == NULL) {
        return MX_E_NOMEM;
    }
    t->tokens = mx_alloc(n_rows * sizeof *t->tokens); /* the page may be taken back before */
    if (t->tokens == NULL) {
        free_ticket(e, t);
        return MX_E_NOMEM;
    }
    memcpy(t->tokens, page->tokens, n_rows * sizeof *t->tokens);
    t->pages[0] = mx_page_ref(page);
    t->n_pages = 1;
    if (has_local) {
        mx_page_hold_local(page);
        t->holds_local = true;
        t->job.local = page->local;
    }
    t->job.parent_id = *parent_id(root, page);
    t->job.first_page = page->index;
    t->job.tokens = t->tokens;
    t->job.n_tokens = n_rows;
    t->job.payload = page->payload;
    t->job.page_id = *id;
    MX_TRY(submit(e, t));
    page->is_queued = page->is_queued || is_full;
    return MX_OK;
}

/* ---- states ---- */

/* One look at the part of a request's way that is new. */
typedef struct state_walk {
    mx_engine *e;
    mx_request *r;
    bool is_stuck;       /* a state found the queue full: the next walk begins with it */
} state_walk;

static bool is_on_its_way(const mx_engine *e, const mx_hash256 *id)
{
    for (const mx_ticket *t = e->tickets; t != NULL; t = t->next) {
        if (t->job.kind == MX_COLD_WRITE_STATE && mx_hash256_eq(&t->job.page_id, id)) {
            return true;
        }
    }
    return false;
}

static bool store_state(state_walk *w, mx_kvstate *state, const mx_hash256 *parent, size_t page,
                        const mx_hash256 *id)
{
    mx_ticket *t = new_ticket(MX_COLD_WRITE_STATE, &w->r->root, 0);
    if (t == NULL) {
        return false;
    }
    size_t n = (size_t)state->n_tokens - page * MX_PAGE_TOKENS;
    t->tokens = mx_alloc(n * sizeof *t->tokens);
    if (t->tokens == NULL) {
        free_ticket(w->e, t);
        return false;
    }
    memcpy(t->tokens, w->r->tokens + page * MX_PAGE_TOKENS, n * sizeof *t->tokens);
    t->state = mx_kvstate_ref(state);
    t->job.parent_id = *parent;
    t->job.first_page = page;
    t->job.tokens = t->tokens;
    t->job.n_tokens = n;
    t->job.payload = state->data;
    t->job.page_id = *id;
    return submit(w->e, t) == MX_OK;
}

static bool note_sent(mx_sent_states *s, const mx_hash256 *id, size_t at)
{
    void *ids = s->ids, *positions = s->positions;
    bool ok = mx_grow(&ids, &s->ids_cap, s->n + 1, sizeof *s->ids);
    s->ids = ids;
    ok = mx_grow(&positions, &s->positions_cap, s->n + 1, sizeof *s->positions) && ok;
    s->positions = positions;
    if (ok) {
        s->ids[s->n] = *id;
        s->positions[s->n++] = at;
    }
    return ok;
}

/* A state is megabytes, and the end of a prompt soon gives way to the end of the turn: it is written
 * only where the boundary before it is at least a page away. */
static void offer_state(void *arg, size_t at, mx_kvstate *state, mx_entry_kind kind)
{
    state_walk *w = arg;
    mx_sent_states *sent = &w->r->sent;
    size_t last = sent->n > 0 ? (size_t)sent->positions[sent->n - 1] : 0;
    if (w->is_stuck || at == last || at < w->e->cfg.cold_min_tokens ||
        (kind == MX_ENTRY_PROMPT && at < last + MX_PAGE_TOKENS))
    {
        return;
    }
    size_t page = (at - 1) / MX_PAGE_TOKENS;
    const mx_hash256 *parent = page > 0 ? &w->r->seq.pages[page - 1]->id : &w->r->root;
    mx_hash256 id = mx_cold_state_identity(&w->r->root, parent, page,
                                           w->r->tokens + page * MX_PAGE_TOKENS,
                                           (uint32_t)(at - page * MX_PAGE_TOKENS));
    bool is_sent = mx_cold_has_page(w->e->cold, &id) || is_on_its_way(w->e, &id) ||
                   store_state(w, state, parent, page, &id);
    if (!is_sent || !note_sent(sent, &id, at)) {
        w->is_stuck = true;
        sent->until = at;
    }
}

/* Offers the states of r's way whose rows, the first n_rows, the writer has. Each stretch is walked
 * once, or a long prompt, which comes in many pieces, would cost the square of its length; but a boundary
 * may still be made at the very end of what was walked, or become that of a turn. */
static void store_states(mx_engine *e, mx_request *r, size_t n_rows)
{
    state_walk w = {.e = e, .r = r};
    size_t from = r->sent.until > 0 ? r->sent.until - 1 : 0;
    if (e->spacing == 0 || n_rows <= from) {
        return;
    }
    mx_bank_boundaries_behind(e->bank, &r->seq, r->tokens, from, n_rows, offer_state, &w);
    r->sent.until = w.is_stuck ? r->sent.until : n_rows;
}

/* ---- manifests ---- */

/* The ticket holds the end of the chain, and so all of it: should pages turn out to be gone from the
 * folder, they are written again. */
static void store_session(mx_engine *e, mx_request *r, mx_entry_kind kind,
                          const mx_hash256 *tail_id)
{
    const mx_sent_states *states = &r->sent;
    size_t n_full = r->seq.n_tokens / MX_PAGE_TOKENS;
    size_t n_ids = n_full + (tail_id != NULL);
    mx_ticket *t = n_ids > 0 ? new_ticket(MX_COLD_WRITE_SESSION, &r->root, 1) : NULL;
    if (t == NULL) {
        return;
    }
    t->ids = mx_alloc((n_ids + states->n) * sizeof *t->ids);
    if (t->ids == NULL) {
        free_ticket(e, t);
        return;
    }
    if (states->n > 0) {
        t->positions = mx_alloc(states->n * sizeof *t->positions);
    }
    if (t->positions != NULL) { /* without them it is a session all the same */
        memcpy(t->ids + n_ids, states->ids, states->n * sizeof *t->ids);
        memcpy(t->positions, states->positions, states->n * sizeof *t->positions);
        t->job.state_ids = t->ids + n_ids;
        t->job.state_positions = t->positions;
        t->job.n_states = states->n;
    }
    t->turns = mx_alloc(r->params.n_turns * sizeof *t->turns);
    if (t->turns != NULL && r->params.n_turns > 0) { /* without them it is a session all the same */
        memcpy(t->turns, r->turns, r->params.n_turns * sizeof *t->turns);
        t->job.turns = t->turns;
        t->job.n_turns = r->params.n_turns;
    }
    for (size_t i = 0; i < n_full; i++) {
        t->ids[i] = r->seq.pages[i]->id;
    }
    if (tail_id != NULL) {
        t->ids[n_full] = *tail_id;
        t->n_tail_rows = (uint32_t)(r->seq.n_tokens % MX_PAGE_TOKENS);
    }
    t->pages[0] = mx_page_ref(r->seq.pages[n_ids - 1]);
    t->n_pages = 1;
    t->job.page_ids = t->ids;
    t->job.n_pages = n_ids;
    t->job.n_session_tokens = tail_id != NULL ? r->seq.n_tokens : n_full * MX_PAGE_TOKENS;
    t->job.entry_kind = kind == MX_ENTRY_TURN;
    t->job.session_id = t->ids[n_ids - 1];
    if (kind == MX_ENTRY_TURN && r->session_name[0] != '\0') {
        t->session_name = mx_strdup(r->session_name); /* without memory it is nobody's */
        t->job.session_name = t->session_name;
    }
    (void)submit(e, t);
}

/* Pages of a manifest were not in the folder, though they had been: somebody removed them. Offers
 * what is missing and the manifest once more. True: the ticket is in the cold tier's hands again. */
static bool store_again(mx_engine *e, mx_ticket *t)
{
    mx_page *page = t->pages[0];
    if (t->is_second || page == NULL) {
        return false;
    }
    size_t n = t->job.n_pages;
    mx_page **chain = mx_calloc(n, sizeof *chain);
    bool is_stored = chain != NULL;
    for (size_t i = n; is_stored && i-- > 0; page = page->parent) {
        chain[i] = page;
    }
    for (size_t i = 0; is_stored && i < n; i++) {
        uint32_t n_rows = i + 1 == n && t->n_tail_rows > 0 ? t->n_tail_rows : MX_PAGE_TOKENS;
        is_stored = store_page(e, &t->job.root, chain[i], n_rows, &t->ids[i]) == MX_OK;
    }
    mx_free(chain);
    t->is_second = true;
    if (!is_stored || mx_cold_submit(e->cold, &t->job) != MX_OK) {
        return false;
    }
    t->next = e->tickets;
    e->tickets = t;
    return true;
}

void mx_ticket_store(mx_engine *e, mx_request *r, mx_entry_kind kind, bool with_entry)
{
    if (e->cold == NULL || !mx_request_may_store(r) ||
        r->seq.n_tokens < e->cfg.cold_min_tokens)
    {
        return;
    }
    if (e->us_per_token > 0 &&
        e->us_per_token * (double)r->seq.n_tokens < (double)e->cfg.cold_min_us)
    {
        return; /* computed again before anybody has noticed */
    }
    size_t n_full = r->seq.n_tokens / MX_PAGE_TOKENS;
    while (r->n_cold_pages < n_full) {
        mx_page *page = r->seq.pages[r->n_cold_pages];
        mx_err err = store_page(e, &r->root, page, MX_PAGE_TOKENS, &page->id);
        if (err != MX_OK) {
            if (with_entry && kind == MX_ENTRY_TURN && err == MX_E_FULL) {
                mx_log(e->is_queue_full ? MX_LOG_DEBUG : MX_LOG_WARN,
                       "cold: request=%s the write queue is full, pages_dropped=%zu; said once "
                       "until it has room again", r->params.id, n_full - r->n_cold_pages);
                e->is_queue_full = true;
            }
            return; /* a manifest without its pages would promise what is not there */
        }
        r->n_cold_pages++;
    }
    e->is_queue_full = false;
    /* With a recurrent state the tail of a prompt is written, too: without its rows no state in it is
     * of use, and what could be resumed might be a thousand tokens before. */
    uint32_t n_rows = (uint32_t)(r->seq.n_tokens % MX_PAGE_TOKENS);
    bool has_tail = with_entry && n_rows > 0 && (kind == MX_ENTRY_TURN || e->spacing > 0);
    mx_hash256 id = {{0}};
    if (has_tail) {
        mx_page *tail = r->seq.pages[n_full];
        id = mx_page_identity(&r->root, parent_id(&r->root, tail), tail->tokens, n_rows);
        if (store_page(e, &r->root, tail, n_rows, &id) != MX_OK) {
            return;
        }
    }
    store_states(e, r, has_tail ? r->seq.n_tokens : n_full * MX_PAGE_TOKENS);
    if (with_entry) {
        store_session(e, r, kind, has_tail ? &id : NULL);
    }
}

void mx_ticket_condemn(mx_engine *e, const mx_request *r, const mx_hash256 *ids, size_t n_pages,
                       size_t n_states)
{
    size_t n = n_pages + n_states;
    mx_ticket *t = e->cold != NULL && n > 0 ? new_ticket(MX_COLD_CONDEMN, &r->root, 0) : NULL;
    if (t == NULL) {
        return;
    }
    t->ids = mx_alloc(n * sizeof *t->ids);
    if (t->ids == NULL) {
        free_ticket(e, t);
        return;
    }
    memcpy(t->ids, ids, n * sizeof *t->ids);
    t->job.page_ids = t->ids;
    t->job.n_pages = n_pages;
    t->job.state_ids = t->ids + n_pages;
    t->job.n_states = n_states;
    t->job.reason = "verify";
    (void)submit(e, t);
}

/* ---- dropping -------------------------------------------------------------------------------- */

static bool is_manifest_of(const mx_ticket *t, const mx_hash256 *id)
{
    return t->job.kind == MX_COLD_WRITE_SESSION
           && mx_hash256_eq(&t->job.page_ids[t->job.n_pages - 1], id);
}

static bool is_among(const mx_hash256 *ids, size_t n, const mx_hash256 *id)
{
    size_t i = 0;
    while (i < n && !mx_hash256_eq(&ids[i], id)) {
        i++;
    }
    return i < n;
}

/* Is it the chain that has these n_rows rows in that page, behind that parent? */
static bool is_way_of(const mx_doomed *d, const mx_ticket *t, size_t page, const mx_hash256 *parent,
                      const int32_t *rows, size_t n_rows)
{
    const size_t at = page * MX_PAGE_TOKENS;
    return d->tokens != NULL && at + n_rows <= d->n_tokens && page <= d->names.n_pages
           && (page == 0 || mx_hash256_eq(parent, &d->names.page_ids[page - 1]))
           && mx_hash256_eq(&t->job.root, d->root)
           && memcmp(rows, d->tokens + at, n_rows * sizeof *rows) == 0;
}

static bool is_doomed_page(const mx_ticket *t, const mx_doomed *d)
{
    return is_among(d->names.page_ids, d->names.n_pages, &t->job.page_id)
           || is_way_of(d, t, (size_t)t->job.first_page, &t->job.parent_id, t->job.tokens, t->job.n_tokens);
}

/* Also the manifest of a beginning: nobody can ask for its removal as long as it is not there. */
static bool is_doomed_manifest(const mx_ticket *t, const mx_doomed *d)
{
    const size_t last = t->job.n_pages - 1;
    if (is_manifest_of(t, d->id) || is_among(d->names.page_ids, d->names.n_pages, &t->job.page_ids[last])) {
        return true;
    }
    return t->n_tail_rows > 0 && t->pages[0] != NULL
           && is_way_of(d, t, last, last > 0 ? &t->job.page_ids[last - 1] : NULL, t->pages[0]->tokens,
                        t->n_tail_rows);
}

static bool is_doomed(const mx_ticket *t, const mx_doomed *d)
{
    switch (t->job.kind) {
    case MX_COLD_WRITE_SESSION: return is_doomed_manifest(t, d);
    case MX_COLD_WRITE_PAGE: return is_doomed_page(t, d);
    case MX_COLD_WRITE_STATE:
        return is_among(d->names.state_ids, d->names.n_states, &t->job.page_id);
    default: return false;
    }
}

bool mx_ticket_drop(mx_engine *e, const mx_doomed *d)
{
    bool any = false;
    for (mx_ticket *t = e->tickets; t != NULL; t = t->next) {
        if (!is_write(t) || (d != NULL && !is_doomed(t, d))) {
            continue;
        }
        any = true;
        if (t->job.kind == MX_COLD_WRITE_SESSION) {
            (void)mx_cold_abandon(e->cold, &t->job);
            mx_page_unref(e->pool, t->pages[0]); /* without it, it is not offered again */
            t->pages[0] = NULL;
        } else {
            give_back_pages(e, t);
        }
    }
    return any;
}

const mx_cold_job *mx_ticket_manifest(const mx_engine *e, const mx_hash256 *id)
{
    for (const mx_ticket *t = e->tickets; t != NULL; t = t->next) {
        if (is_manifest_of(t, id)) {
            return &t->job;
        }
    }
    return NULL;
}

/* ---- completions ------------------------------------------------------------------------------ */

static void unlink_ticket(mx_engine *e, mx_ticket *t)
{
    mx_ticket **link = &e->tickets;
    while (*link != t) {
        link = &(*link)->next;
    }
    *link = t->next;
    if (t->is_late && --e->n_late == 0) {
        mx_log(MX_LOG_INFO, "restore: the cache folder answers again");
    }
}

/* True: the ticket is on its way again. */
static bool complete(mx_engine *e, mx_ticket *t)
{
    mx_request *r = t->request;
    if (t->job.kind == MX_COLD_WRITE_PAGE && t->pages[0] != NULL) {
        t->pages[0]->is_queued = false; /* from here on mx_cold_has_page knows, or it is offered again */
    }
    if (t->query != NULL) {
        mx_query *q = t->query;
        t->query = NULL;
        mx_query_answered(e, q, &t->job);
    }
    if (t->job.kind == MX_COLD_WRITE_SESSION && t->job.status == MX_E_NOT_FOUND
        && store_again(e, t)) {
        return true;
    }
    e->n_unwritten += is_write(t) && t->job.status != MX_OK && t->job.status != MX_E_CANCELLED;
    if (r == NULL) {
        return false;
    }
    r->ticket = NULL;
    if (t->job.kind == MX_COLD_PROBE) {
        mx_admit_probed(e, r, &t->job);
    } else if (t->job.kind == MX_COLD_READ) {
        for (size_t i = 0; i < t->n_pages; i++) {
            if (t->pages[i] != NULL && t->locals[i] == NULL) {
                mx_page_shed_local(e->pool, t->pages[i]); /* the file has none */
            }
        }
        mx_admit_read(e, r, &t->job, t->pages, &t->state);
    }
    return false;
}

bool mx_ticket_collect(mx_engine *e)
{
    bool any = false;
    mx_cold_job *job;
    while (e->cold != NULL && (job = mx_cold_poll(e->cold)) != NULL) {
        mx_ticket *t = job->user;
        unlink_ticket(e, t);
        if (!complete(e, t)) {
            free_ticket(e, t);
        }
        any = true;
    }
    return any;
}

void mx_ticket_release_all(mx_engine *e)
{
    while (e->tickets != NULL) {
        mx_ticket *t = e->tickets;
        e->tickets = t->next;
        if (t->request != NULL) {
            t->request->ticket = NULL;
        }
        free_ticket(e, t);
    }
}
