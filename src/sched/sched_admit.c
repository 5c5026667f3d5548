/* SPDX-License-Identifier: MIT
 *
 * Admission: what of a request's tokens is known already, and where to get it from.
 *
 * Order of a miss: RAM, SSD, compute. RAM answers at once. The cold tier may take a while (or hang),
 * so it is asked through a ticket: meanwhile the request holds the whole pages that RAM had and
 * everybody else goes on. If it does not answer in time, the request continues without it.
 *
 * What an older run is about to compute is not computed twice: the request waits until that run has
 * it, then finds it in RAM. Whoever waits so is looked at again when the older run has got there, has
 * ended for any reason, or gave way; so nothing is promised, and nothing can be waited for in vain.
 */
#include "sched/sched_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    READ_WAIT_MIN_US = 5 * 1000000,
    /* A common beginning of fewer tokens is quicker computed along than waited for. */
    FOLLOW_MIN_TOKENS = 16,
};

/* Pages that a run may need before somebody has to make room: its tokens, MX_ADMIT_TOKENS of
 * answer, one for the copied tail, and the recurrent states before and behind its next rows. Sharing
 * makes it less; this is the safe side. */
static size_t pages_wanted(const mx_engine *e, const mx_request *r)
{
    size_t answer = mx_min_size(r->max_total - r->n_tokens, MX_ADMIT_TOKENS);
    size_t n_states = 2 * mx_kv_pool_state_pages(e->pool);
    size_t n_whole = (r->n_tokens + answer + MX_PAGE_TOKENS - 1) / MX_PAGE_TOKENS;
    if (e->window_spacing > 0) { /* those of a pass are whole before the window is past them */
        size_t n_bytes = mx_kv_chain_bytes(mx_kv_pool_shape(e->pool), r->n_tokens + answer);
        size_t n = n_bytes / mx_kv_pool_page_bytes(e->pool) + 1;
        n_whole = mx_min_size(n_whole, n + e->cfg.prefill_chunk / MX_PAGE_TOKENS + 1);
    }
    return n_whole + 1 + n_states;
}

static bool has_room(const mx_engine *e, const mx_request *r)
{
    size_t sum = pages_wanted(e, r);
    for (const mx_request *o = e->runs; o != NULL; o = o->next) {
        sum += pages_wanted(e, o);
    }
    return e->runs == NULL || sum <= mx_kv_pool_max(e->pool);
}

mx_page *mx_admit_page(mx_engine *e, bool is_whole)
{
    mx_page *(*alloc)(mx_kv_pool *) = is_whole ? mx_page_alloc : mx_page_alloc_payload;
    mx_page *page = alloc(e->pool);
    if (page == NULL && mx_bank_evict(e->bank, 1) > 0) {
        page = alloc(e->pool);
    }
    return page;
}

mx_kvstate *mx_admit_state(mx_engine *e)
{
    mx_kvstate *state = mx_kvstate_alloc(e->pool);
    if (state == NULL && mx_bank_evict(e->bank, mx_kv_pool_state_pages(e->pool)) > 0) {
        state = mx_kvstate_alloc(e->pool);
    }
    return state;
}

/* ---- following -------------------------------------------------------------------------------- */

/* Tokens at the beginning of both, as far as o's prompt goes. */
static size_t n_common(const mx_request *r, const mx_request *o)
{
    size_t n = mx_min_size(r->n_tokens, o->n_prompt);
    size_t i = 0;
    while (i < n && r->tokens[i] == o->tokens[i]) {
        i++;
    }
    return i;
}

/* Reads its prompt, and leaves in the bank what it computes. */
static bool can_lead(const mx_request *o, const mx_request *r)
{
    bool is_on = o->state == MX_RUN_ACTIVE || o->state == MX_RUN_FOLLOWING;
    return is_on && !o->is_prompt_done && mx_request_may_store(o) &&
           mx_hash256_eq(&o->root, &r->root);
}

/* Where o has to have got to for r to find the *n tokens that they share. */
static size_t what_to_wait_for(const mx_engine *e, const mx_request *r, const mx_request *o,
                               size_t *n)
{
    if (e->spacing > 0) {
        /* A boundary, which o makes where it is asked to; at the end of its prompt there is one with
         * the hidden vector, elsewhere the last token is to be computed again. */
        *n = *n == o->n_prompt && *n == r->n_tokens ? *n : mx_min_size(*n, r->n_tokens - 1);
        return *n;
    }
    /* The bank has whole pages, and at the end of a prompt the rest. */
    size_t whole = (*n + MX_PAGE_TOKENS - 1) / MX_PAGE_TOKENS * MX_PAGE_TOKENS;
    return mx_min_size(whole, o->n_prompt);
}

/* r has (or could restore) n_have tokens. True: an older run will soon have more, r gave up its pages
 * and waits for it. Only older runs lead, so nobody waits in a circle. */
static bool follow(mx_engine *e, mx_request *r, size_t n_have)
{
    size_t best = n_have + FOLLOW_MIN_TOKENS - 1;
    mx_request *leader = NULL;
    bool may_read = r->params.cache != MX_CACHE_OFF;
    for (mx_request *o = e->runs; may_read && o != NULL && o != r; o = o->next) {
        size_t n = can_lead(o, r) ? n_common(r, o) : 0;
        size_t until = what_to_wait_for(e, r, o, &n);
        if (n > best && o->seq.n_tokens < until) {
            best = n;
            leader = o;
            r->follow_until = until;
        }
    }
    /* With windowed layers the place where the two part is what r will look for. */
    size_t wanted = e->window_spacing > 0 ? best : r->follow_until;
    if (leader == NULL || !mx_stop_want(e, leader, wanted)) {
        return false;
    }
    mx_seq_free(&r->seq);
    mx_seq_init(&r->seq, e->pool, &r->root);
    r->hidden_at = 0;
    r->leader = leader;
    r->state = MX_RUN_FOLLOWING;
    return true;
}

static bool is_there(const mx_request *r)
{
    const mx_request *o = r->leader;
    return o == NULL || o->is_prompt_done || o->seq.n_tokens >= r->follow_until;
}

void mx_admit_unfollow(mx_request *r)
{
    for (mx_request *o = r->engine->runs; o != NULL; o = o->next) {
        if (o->leader == r) {
            o->leader = NULL;
        }
    }
    r->leader = NULL;
}

/* ---- the statistics of the prompt, settled once ----------------------------------------------- */

/* What was restored is wrong: nothing in RAM is believed any more, the files of what differs are
 * condemned, and this request uses and keeps nothing, so that it cannot be given the same page by
 * somebody who still holds it. The next one computes the right pages, and they are stored. */
static void drop_restored(mx_engine *e, mx_request *r)
{
    mx_seq_free(&r->seq);
    mx_seq_init(&r->seq, e->pool, &r->root);
    r->hidden_at = 0;
    mx_request_begin_store(r, 0);
    r->params.cache = MX_CACHE_OFF;
    mx_bank_forget_all(e->bank);
}

static void activate(mx_engine *e, mx_request *r, size_t n_ssd, mx_restore_kind kind, bool not_worth)
{
    if (e->cfg.verify_restore && r->seq.n_tokens > 0 && !r->is_approximate
        && !mx_verify_restored(e, r))
    {
        drop_restored(e, r);
        n_ssd = 0;
    }
    if (follow(e, r, r->seq.n_tokens)) {
        return;
    }
    r->state = MX_RUN_ACTIVE;
    if (r->was_admitted) {
        return; /* a resumed run: its prompt was accounted for when it first started */
    }
    r->was_admitted = true;
    r->restored_us = mx_now_us();
    mx_stop_learn(e, r);
    if (r->params.is_idle) {
        return;
    }
    size_t n_whole = r->seq.n_tokens / MX_PAGE_TOKENS;
    mx_miss_case m = {
        .root = r->root,
        .parent = n_whole > 0 ? &r->seq.pages[n_whole - 1]->id : NULL,
        .tokens = r->tokens,
        .n_prompt = r->n_prompt,
        .n_reused = r->seq.n_tokens,
        .is_cache_off = r->params.cache == MX_CACHE_OFF,
        .is_not_worth = not_worth,
    };
    pthread_mutex_lock(&r->mu);
    mx_request_stats *s = &r->stats;
    s->n_ssd = n_ssd;
    s->n_ram = r->seq.n_tokens - n_ssd;
    s->n_computed = r->n_prompt - r->seq.n_tokens;
    s->restore = r->seq.n_tokens > 0 ? kind : MX_RESTORE_NONE;
    s->cache_mode = n_ssd > 0          ? MX_MODE_SSD
                    : s->n_ram > 0     ? MX_MODE_WARM_PREFIX
                                       : MX_MODE_COLD;
    s->queue_us = r->admit_us - r->submit_us;
    s->restore_us = r->restored_us - r->admit_us;
    mx_miss_explain(e, &m, &r->look, s);
    mx_miss_count(e, s);
    s->is_approximate = r->is_approximate;
    e->live.n_requests++;
    e->live.n_prompt_tokens += r->n_prompt;
    e->live.n_ram_tokens += s->n_ram;
    e->live.n_ssd_tokens += s->n_ssd;
    pthread_mutex_unlock(&r->mu);
}

/* ---- RAM -------------------------------------------------------------------------------------- */

void mx_admit_look(const mx_engine *e, const mx_hash256 *root, const int32_t *tokens, size_t n,
                   mx_bank_match *m)
{
    mx_bank_lookup(e->bank, root, tokens, n, m);
    bool is_cut = e->spacing > 0 || e->window_spacing > 0; /* then less may mean much less */
    if (is_cut && n > 1 && m->n_tokens == n && m->hidden == NULL) {
        mx_bank_lookup(e->bank, root, tokens, n - 1, m);
    }
}

/* Fills r->seq from the bank, at most max_tokens. */
static void restore_from_ram(mx_engine *e, mx_request *r, size_t max_tokens, mx_bank_match *m)
{
    /* MX_E_FULL: the whole pages alone; MX_E_NOMEM: nothing. What is missing is computed. */
    (void)mx_bank_restore_cache(e->bank, &r->seq, r->tokens, r->n_tokens, max_tokens, m);
    mx_request_begin_store(r, 0);
}

/* What the request has held so far, while the same is looked for again: windowed rows may be there only
 * because it holds them. To be freed when the new sequence has them, and before they are verified: what
 * turns out to be wrong must be held by nobody. */
static mx_seq take_held(mx_engine *e, mx_request *r)
{
    mx_seq held = r->seq;
    mx_seq_init(&r->seq, e->pool, &r->root);
    return held;
}

/* Everything that RAM has, and on; then held is let go of. All but the last token at most, so that there is
 * a token to compute the next one from, unless the entry kept the hidden vector of the very end. */
static void start_from_ram(mx_engine *e, mx_request *r, mx_seq *held, bool not_worth)
{
    const float *hidden = r->match.n_tokens == r->n_tokens ? r->match.hidden : NULL;
    if (hidden != NULL) {
        memcpy(r->hidden, hidden, e->mc->n_embd * sizeof *hidden);
    }
    mx_bank_match m = {0};
    restore_from_ram(e, r, hidden != NULL ? r->n_tokens : r->n_tokens - 1, &m);
    mx_seq_free(held);
    r->is_approximate = r->is_approximate || m.is_approximate;
    if (hidden != NULL && r->seq.n_tokens == r->n_tokens) {
        r->hidden_at = r->n_tokens;
    } else if (r->seq.n_tokens >= r->n_tokens) {
        mx_seq_cut(&r->seq, r->n_tokens - 1);
    }
    activate(e, r, 0, m.kind, not_worth);
}

static void go_on_without_cold(mx_engine *e, mx_request *r, bool not_worth)
{
    mx_seq held = take_held(e, r);
    mx_admit_look(e, &r->root, r->tokens, r->n_tokens, &r->match);
    start_from_ram(e, r, &held, not_worth);
}

void mx_admit_without_cold(mx_engine *e, mx_request *r)
{
    go_on_without_cold(e, r, false);
}

/* held is what the request has held, see take_held; afterwards it is freed. */
static void start(mx_engine *e, mx_request *r, mx_seq *held)
{
    r->admit_us = mx_now_us();
    r->leader = NULL;
    r->hidden_at = 0;
    r->has_cold_tail = false;
    r->match = (mx_bank_match){0};
    if (r->params.cache == MX_CACHE_OFF) {
        mx_seq_free(held);
        activate(e, r, 0, MX_RESTORE_NONE, false);
        return;
    }
    mx_admit_look(e, &r->root, r->tokens, r->n_tokens, &r->match);
    bool is_whole = r->match.n_tokens + 1 >= r->n_tokens;
    if (!is_whole && follow(e, r, r->match.n_tokens)) {
        mx_seq_free(held);
        return;
    }
    if (!is_whole && !r->was_admitted) {
        mx_miss_look_ram(e, &r->root, r->tokens, r->n_tokens, &r->look);
    }
    if (e->cold == NULL || is_whole) {
        start_from_ram(e, r, held, false);
        return;
    }
    /* Hold the whole pages now: they must not be evicted while the cold tier looks behind them. */
    if (e->spacing > 0) {
        size_t n_most = mx_min_size(r->match.n_shared, r->n_tokens - 1);
        (void)mx_bank_hold_pages(e->bank, &r->seq, r->tokens, n_most / MX_PAGE_TOKENS);
        mx_request_begin_store(r, 0);
    } else if (e->window_spacing > 0) {
        size_t n_pages = mx_min_size(r->match.n_tokens, r->n_tokens - 1) / MX_PAGE_TOKENS;
        (void)mx_bank_hold_pages(e->bank, &r->seq, r->tokens, n_pages);
        mx_request_begin_store(r, 0);
    } else {
        mx_bank_match m;
        restore_from_ram(e, r, r->match.n_full_pages * MX_PAGE_TOKENS, &m);
    }
    mx_seq_free(held);
    if (mx_ticket_probe(e, r)) {
        r->state = MX_RUN_PROBING;
        r->wait_deadline_us = mx_now_us() + MX_PROBE_WAIT_US;
    } else {
        mx_admit_without_cold(e, r);
    }
}

void mx_admit_start(mx_engine *e, mx_request *r)
{
    mx_seq none = {0};
    start(e, r, &none);
}

/* ---- SSD -------------------------------------------------------------------------------------- */

bool mx_admit_is_worth_reading(const mx_engine *e, const mx_cold_job *job, size_t n_gain)
{
    if (e->cfg.ssd_restore == MX_SSD_RESTORE_ALWAYS || e->us_per_token <= 0) {
        return true;
    }
    mx_cold_stats s;
    mx_cold_get_stats(e->cold, &s);
    if (s.read_bytes_per_us <= 0) {
        return true; /* not measured yet: try, that measures it */
    }
    return (double)job->read_bytes / s.read_bytes_per_us < e->us_per_token * (double)n_gain;
}

/* Has RAM got n tokens by now? While the files were read somebody may have computed the same, and more. */
static bool is_in_ram(const mx_engine *e, const mx_request *r, size_t n)
{
    mx_bank_match now;
    mx_admit_look(e, &r->root, r->tokens, r->n_tokens, &now);
    return now.n_tokens >= n;
}

static void start_again(mx_engine *e, mx_request *r)
{
    mx_seq held = take_held(e, r);
    start(e, r, &held);
}

void mx_admit_probed(mx_engine *e, mx_request *r, const mx_cold_job *job)
{
    size_t n_cold = job->n_full * MX_PAGE_TOKENS + job->tail_rows;
    size_t n_ram_rows = r->match.n_tokens - r->seq.n_tokens; /* in the page that differs */
    mx_miss_look_cold(&r->look, job);
    if (e->spacing > 0) { /* how far each tier leads is all that counts */
        n_cold = (size_t)job->state_at;
        n_ram_rows = r->match.n_tokens;
    }
    if (job->status == MX_OK && n_cold <= n_ram_rows && !r->has_looked_again
        && !is_in_ram(e, r, r->match.n_tokens))
    {
        /* RAM led as far as the folder when the question was put, and no longer does: an end may have
         * given way to a later one, and its window with it. */
        r->has_looked_again = true;
        start_again(e, r);
        return;
    }
    if (job->status != MX_OK || n_cold <= n_ram_rows) {
        mx_admit_without_cold(e, r);
        return;
    }
    bool is_worth = mx_admit_is_worth_reading(e, job, n_cold - n_ram_rows);
    if (is_worth && mx_ticket_read(e, r, job)) {
        r->state = MX_RUN_READING;
        uint64_t recompute = (uint64_t)(e->us_per_token * (double)n_cold);
        r->wait_deadline_us = mx_now_us() + mx_max_size(READ_WAIT_MIN_US, recompute);
        return;
    }
    go_on_without_cold(e, r, !is_worth);
}

/* The label of a chain that came from files. What counts is how its last stored page ended. */
mx_restore_kind mx_admit_cold_kind(const mx_engine *e, const mx_cold_job *job)
{
    bool has_tail = job->tail_rows > 0 && (job->kind == MX_COLD_PROBE || job->n_read > job->n_full);
    if (e->spacing > 0) {
        uint64_t end = (job->first_page + job->n_full) * MX_PAGE_TOKENS + job->tail_rows;
        bool is_end = has_tail && job->tail_rows == job->tail_file_rows && job->state_at == end;
        return is_end ? MX_RESTORE_EXACT_PREFIX : MX_RESTORE_BOUNDARY;
    }
    if (has_tail && job->tail_rows == job->tail_file_rows) {
        return MX_RESTORE_EXACT_PREFIX;
    }
    bool is_near = has_tail && job->tail_file_rows < MX_PAGE_TOKENS &&
                   job->tail_file_rows - job->tail_rows <= e->cfg.bank.near_prefix_gap;
    return is_near ? MX_RESTORE_NEAR_PREFIX : MX_RESTORE_STEM;
}

/* Appends what was read, up to position `end`. The file of a tail is remembered. */
static void push_read_pages(mx_engine *e, mx_request *r, const mx_cold_job *job, mx_page **pages,
                            size_t end)
{
    const int32_t *tokens = r->tokens + r->seq.n_tokens;
    for (size_t i = 0; i < job->n_read && r->seq.n_tokens < end; i++) {
        mx_page *page = pages[i];
        uint32_t n_rows = i < job->n_full ? MX_PAGE_TOKENS : (uint32_t)job->tail_rows;
        n_rows = (uint32_t)mx_min_size(n_rows, end - r->seq.n_tokens);
        mx_page *parent = r->seq.n_pages > 0 ? r->seq.pages[r->seq.n_pages - 1] : NULL;
        mx_page_link(page, parent, &r->root, tokens, n_rows);
        tokens += n_rows;
        pages[i] = NULL;
        if (i >= job->n_full) {
            r->has_cold_tail = true;
            r->cold_tail_id = job->tail_id;
        }
        if (mx_seq_push_page(&r->seq, page, n_rows) != MX_OK) {
            mx_page_unref(e->pool, page);
            break;
        }
    }
}

/* How many of n tokens, whose pages are those of r and then what was read, one can go on from. */
static size_t resumable(const mx_engine *e, const mx_request *r, const mx_cold_job *job, size_t n)
{
    const mx_kv_shape *s = mx_kv_pool_shape(e->pool);
    const size_t n_old = r->seq.n_pages;
    size_t lowest = mx_kv_first_seen(s, n);
    for (size_t i = (n + MX_PAGE_TOKENS - 1) / MX_PAGE_TOKENS; s->n_local > 0 && i-- > lowest;) {
        bool has = i < n_old ? i >= r->seq.first_local : job->locals[i - n_old] != NULL;
        if (!has) {
            n = i * MX_PAGE_TOKENS;
            lowest = mx_kv_first_seen(s, n);
        }
    }
    return n;
}

/* The pages of both tiers up to the state, and the state: all of it or nothing. What the bank holds
 * of it from now on it gives to others, too. */
static void admit_read_state(mx_engine *e, mx_request *r, const mx_cold_job *job, mx_page **pages,
                             mx_kvstate **state)
{
    size_t at = (size_t)job->state_at;
    mx_err err = MX_OK;
    r->look.n_condemned += job->n_condemned;
    if (is_in_ram(e, r, at)) {
        mx_admit_without_cold(e, r);
        return;
    }
    (*state)->n_tokens = at;
    if (at <= r->seq.n_tokens) {
        mx_seq_free(&r->seq); /* what was held stays pinned by nobody, but nothing runs in between */
        mx_seq_init(&r->seq, e->pool, &r->root);
        err = mx_bank_restore_at(e->bank, &r->seq, r->tokens, at, *state);
    } else {
        push_read_pages(e, r, job, pages, at);
        err = r->seq.n_tokens == at ? mx_seq_set_state(&r->seq, *state) : MX_E_NOMEM;
    }
    if (err != MX_OK) {
        mx_admit_without_cold(e, r);
        return;
    }
    *state = NULL;
    if (r->params.cache == MX_CACHE_USE) {
        (void)mx_bank_snapshot_cache(e->bank, &r->seq, MX_ENTRY_POINT, NULL, NULL);
    }
    mx_request_begin_store(r, at / MX_PAGE_TOKENS);
    activate(e, r, at - r->match.n_tokens, mx_admit_cold_kind(e, job), false);
}

void mx_admit_read(mx_engine *e, mx_request *r, const mx_cold_job *job, mx_page **pages,
                   mx_kvstate **state)
{
    if (e->spacing > 0) {
        admit_read_state(e, r, job, pages, state);
        return;
    }
    size_t n_ram = r->seq.n_tokens;
    size_t n_got = 0;
    for (size_t i = 0; i < job->n_read; i++) {
        n_got += i < job->n_full ? MX_PAGE_TOKENS : job->tail_rows;
    }
    r->look.n_condemned += job->n_condemned;
    size_t n_end = resumable(e, r, job, n_ram + n_got);
    if (n_end < n_ram + n_got && !r->reads_all) {
        /* A file turned out to be bad or gone. One can go on from a place before it, perhaps, with rows
         * that were not read: now they are. */
        r->reads_all = true;
        start_again(e, r);
        return;
    }
    if (is_in_ram(e, r, n_end)) {
        mx_admit_without_cold(e, r); /* the files were bad, or late */
        return;
    }
    push_read_pages(e, r, job, pages, n_end);
    if (!mx_seq_can_go_on(&r->seq)) { /* no memory */
        mx_admit_without_cold(e, r);
        return;
    }
    mx_request_begin_store(r, r->seq.n_tokens / MX_PAGE_TOKENS);
    if (r->params.cache == MX_CACHE_USE) {
        /* Promotion. The tail follows with the entry that the prefill leaves at its end. */
        (void)mx_bank_insert_pages(e->bank, &r->seq);
    }
    bool is_all = r->seq.n_tokens >= r->n_tokens - 1;
    activate(e, r, r->seq.n_tokens - n_ram,
             is_all ? MX_RESTORE_EXACT_PREFIX : mx_admit_cold_kind(e, job), false);
}

/* ---- the line --------------------------------------------------------------------------------- */

bool mx_admit_all(mx_engine *e)
{
    bool any = false;
    for (mx_request *r = e->runs; r != NULL; r = r->next) {
        if (r->state == MX_RUN_FOLLOWING && is_there(r)) {
            mx_admit_start(e, r);
            any = true;
        }
    }
    /* Strictly in order: a small request never overtakes a big one for ever. */
    while (e->queue != NULL && e->n_runs < e->cfg.max_running && has_room(e, e->queue)) {
        mx_request *r = e->queue;
        e->queue = r->next;
        r->next = NULL;
        mx_request **end = &e->runs;
        while (*end != NULL) {
            end = &(*end)->next;
        }
        *end = r;
        e->n_runs++;
        mx_admit_start(e, r);
        any = true;
    }
    return any;
}

void mx_admit_requeue(mx_engine *e, mx_request *r)
{
    mx_log(MX_LOG_INFO, "requeue: request=%s tokens=%zu, out of KV pages (--kv-budget)", r->params.id,
           r->seq.n_tokens);
    mx_seq_rollback(&r->seq);
    if (mx_request_may_store(r) && r->seq.n_tokens > 0) {
        const float *hidden = r->hidden_at == r->seq.n_tokens ? r->hidden : NULL;
        (void)mx_bank_insert_pages(e->bank, &r->seq);
        (void)mx_bank_snapshot_cache(e->bank, &r->seq, MX_ENTRY_TURN, hidden, NULL);
    }
    mx_seq_free(&r->seq);
    mx_seq_init(&r->seq, e->pool, &r->root);
    r->state = MX_RUN_QUEUED;
    r->paused_since_us = 0; /* the line is not the reader's fault */
    mx_admit_unfollow(r);
    r->hidden_at = 0;
    e->live.n_requeued++;
    mx_request **link = &e->runs;
    while (*link != r) {
        link = &(*link)->next;
    }
    *link = r->next;
    e->n_runs--;
    r->next = e->queue;
    e->queue = r;
}
