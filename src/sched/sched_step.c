/* SPDX-License-Identifier: MIT
 *
 * One pass of the engine: choose rows, make room for them, compute, commit, sample.
 *
 * A run has tokens (its prompt, then what was sampled) and a sequence that has been fed the first of
 * them. What is left to feed is a prompt's chunk, or the one token sampled last; there is no other
 * difference between reading and writing. Decode rows come first; prompts share the rest of the pass
 * in turn, less of it while somebody is waiting for a next token (sched_share.h).
 */
#include "sched/sched_internal.h"

#include "base/clock.h"
#include "base/log.h"

#include <math.h>

/* A page takes a few ms to write. */
static const uint64_t WRITER_WAIT_US = 250000;
/* What is lost at most when idle work is cut short; larger ones are hardly faster. */
enum { IDLE_CHUNK = 2 * MX_PAGE_TOKENS };

static bool is_paused(mx_request *r)
{
    if (!r->is_prompt_done || mx_request_unread(r) < MX_OUT_PAUSE_BYTES) {
        r->paused_since_us = 0;
        return false;
    }
    if (r->paused_since_us == 0) {
        r->paused_since_us = mx_now_us();
    }
    return true;
}

static size_t n_pending(const mx_request *r)
{
    return r->n_tokens - r->seq.n_tokens;
}

/* Waits for its next token, and does not read a prompt (or what it had before it gave way). */
static bool is_decoding(const mx_request *r)
{
    return r->is_prompt_done && n_pending(r) == 1;
}

/* ---- plan ------------------------------------------------------------------------------------- */

typedef struct plan {
    size_t n_runs;
    size_t n_rows;
    size_t n_prompt_rows; /* known once there is room for all */
} plan;

static void plan_add(mx_engine *e, plan *p, mx_request *r, size_t n)
{
    e->batch_runs[p->n_runs] = r;
    e->batch_count[p->n_runs] = n;
    p->n_runs++;
    p->n_rows += n;
}

/* Rows of r in this pass: up to `room`, ending on a page border where the prompt goes on behind it,
 * so that what a cancelled prompt leaves is whole pages, and at the next boundary. */
static size_t chunk_of(const mx_engine *e, const mx_request *r, size_t room)
{
    room = mx_min_size(room, r->params.is_idle ? IDLE_CHUNK : SIZE_MAX);
    room = mx_min_size(room, mx_stop_next(e, r) - r->seq.n_tokens);
    size_t left = n_pending(r);
    if (left <= room) {
        return left;
    }
    size_t end = (r->seq.n_tokens + room) / MX_PAGE_TOKENS * MX_PAGE_TOKENS;
    return end > r->seq.n_tokens ? end - r->seq.n_tokens : room;
}

static void make_plan(mx_engine *e, plan *p)
{
    size_t n_prompts = 0;
    for (mx_request *r = e->runs; r != NULL; r = r->next) {
        if (r->state != MX_RUN_ACTIVE || n_pending(r) == 0) {
            continue;
        }
        if (is_decoding(r)) {
            if (!is_paused(r)) {
                plan_add(e, p, r, 1);
            }
        } else {
            n_prompts++;
        }
    }
    if (n_prompts == 0) {
        return;
    }
    size_t room = e->cfg.prefill_chunk;
    if (p->n_rows > 0) {
        room = mx_share_rows(&e->share, p->n_rows, room);
    }
    /* Everybody gets the first place in turn; two walks over the list make the circle. */
    size_t first = e->turn++ % n_prompts;
    for (size_t lap = 0; lap < 2; lap++) {
        size_t i = 0;
        for (mx_request *r = e->runs; r != NULL; r = r->next) {
            if (r->state != MX_RUN_ACTIVE || n_pending(r) == 0 || is_decoding(r)) {
                continue;
            }
            bool is_ours = lap == 0 ? i >= first : i < first;
            i++;
            if (is_ours && room > 0 && p->n_runs < e->cfg.max_running) {
                size_t n = chunk_of(e, r, room);
                plan_add(e, p, r, n);
                room -= n;
            }
        }
    }
}

/* ---- room ------------------------------------------------------------------------------------- */

static void unplan(mx_engine *e, plan *p, const mx_request *r)
{
    for (size_t i = 0; i < p->n_runs; i++) {
        if (e->batch_runs[i] == r) {
            e->batch_count[i] = 0;
        }
    }
}

/* The youngest run behind r (admitted later) that has pages to give, or NULL. */
static mx_request *youngest_behind(const mx_request *r)
{
    mx_request *last = NULL;
    for (mx_request *o = r->next; o != NULL; o = o->next) {
        if (o->state == MX_RUN_ACTIVE && o->seq.n_pages > 0) {
            last = o;
        }
    }
    return last;
}

/* What the cold writer holds will be free in a moment, if the folder is well; if it is not, nobody
 * waits for it. True: there are pages. */
static bool take_from_writer(mx_engine *e)
{
    uint64_t now = mx_now_us();
    if (e->starved_since_us == 0) {
        e->starved_since_us = now;
    }
    return now - e->starved_since_us >= WRITER_WAIT_US && mx_ticket_shed(e);
}

/* Local rows of windowed layers stay that the cold writer has not been handed yet, and those before
 * places at which a window may still have to be kept. */
static void keep_rows(const mx_engine *e, mx_request *r)
{
    r->seq.keep_from = SIZE_MAX;
    if (e->window_spacing > 0 && mx_request_may_store(r)) {
        size_t n = mx_kv_first_kept(mx_kv_pool_shape(e->pool), r->n_windows);
        bool is_written = e->cold != NULL && !r->lets_rows_go;
        r->seq.keep_from = is_written ? mx_min_size(n, r->n_cold_pages) : n;
    }
}

/* The writer, or its folder, is slow: pages are written without what nobody sees any more. True: that
 * gave room. */
static bool let_rows_go(mx_engine *e)
{
    size_t n_used = mx_kv_pool_used_bytes(e->pool);
    for (mx_request *r = e->runs; r != NULL && e->window_spacing > 0; r = r->next) {
        if (r->state == MX_RUN_ACTIVE) {
            r->lets_rows_go = true;
            keep_rows(e, r);
            mx_seq_trim(&r->seq);
        }
    }
    return mx_kv_pool_used_bytes(e->pool) < n_used;
}

/* Makes n rows of r writable: evicts from the bank, then sends younger runs back to the line. False:
 * r sits this pass out, until an older run ends or the cold writer lets go of pages. Older runs never
 * give way, so there is always somebody who ends. */
static bool make_room(mx_engine *e, plan *p, mx_request *r, size_t n)
{
    size_t n_pages = n / MX_PAGE_TOKENS + 2 + mx_kv_pool_state_pages(e->pool);
    keep_rows(e, r);
    while (mx_seq_reserve(&r->seq, n) != MX_OK) {
        if (r->params.is_idle) { /* there was room when it began */
            unplan(e, p, r);
            e->live.n_idle_dropped++;
            mx_request_end(r, MX_FINISH_CANCELLED, MX_E_FULL, "no room");
            return false;
        }
        if (mx_bank_evict(e->bank, n_pages) > 0 || let_rows_go(e)) {
            continue;
        }
        mx_request *victim = youngest_behind(r);
        if (victim != NULL) {
            unplan(e, p, victim);
            mx_admit_requeue(e, victim);
        } else if (!take_from_writer(e)) {
            unplan(e, p, r);
            mx_seq_rollback(&r->seq);
            return false;
        }
    }
    e->starved_since_us = 0;
    return true;
}

/* Oldest first, so that a run that gives way has not been served in this pass. */
static void reserve_all(mx_engine *e, plan *p)
{
    for (mx_request *r = e->runs; r != NULL; r = r->next) {
        for (size_t i = 0; i < p->n_runs; i++) {
            if (e->batch_runs[i] == r && e->batch_count[i] > 0) {
                make_room(e, p, r, e->batch_count[i]);
                break;
            }
        }
    }
    size_t n_runs = 0;
    p->n_rows = 0;
    p->n_prompt_rows = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        if (e->batch_count[i] > 0) {
            p->n_prompt_rows += is_decoding(e->batch_runs[i]) ? 0 : e->batch_count[i];
            e->batch_runs[n_runs] = e->batch_runs[i];
            e->batch_count[n_runs++] = e->batch_count[i];
            p->n_rows += e->batch_count[i];
        }
    }
    p->n_runs = n_runs;
}

/* Whoever decodes would wait for the writer. A prompt that is read alone does not put writing off: what piled
 * up meanwhile would fall to its answer. Nor does a pass for which there are no pages, as the writer may
 * hold them. */
static void pace_writer(mx_engine *e, const plan *p)
{
    bool is_paced = p->n_rows > p->n_prompt_rows;
    if (e->cold != NULL && is_paced != e->is_writer_paced) {
        mx_cold_pace(e->cold, is_paced);
        e->is_writer_paced = is_paced;
    }
}

/* ---- compute ---------------------------------------------------------------------------------- */

typedef struct cancel_view {
    mx_request *const *runs;
    size_t n_runs;
    const _Atomic bool *is_wanted; /* when the pass is idle work, else NULL */
} cancel_view;

static bool any_cancelled(void *arg)
{
    const cancel_view *v = arg;
    /* Relaxed: all that is done about it is to look at the line, under its lock. */
    if (v->is_wanted != NULL && atomic_load_explicit(v->is_wanted, memory_order_relaxed)) {
        return true;
    }
    for (size_t i = 0; i < v->n_runs; i++) {
        if (atomic_load_explicit(&v->runs[i]->is_cancelled, memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

/* Fills the rows; run i's hidden vector goes to hidden[slot[i]] when its tokens end in this pass.
 * Slots ascend without gaps. */
static size_t fill_rows(mx_engine *e, const plan *p)
{
    size_t row = 0;
    size_t n_hidden = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        mx_request *r = e->batch_runs[i];
        e->batch_first[i] = row;
        for (size_t k = 0; k < e->batch_count[i]; k++) {
            size_t pos = r->seq.n_tokens + k;
            bool is_last = pos + 1 == r->n_tokens;
            e->rows[row++] = (mx_batch_row){
                .seq = &r->seq,
                .pos = (uint32_t)pos,
                .token = r->tokens[pos],
                .hidden_to = is_last ? (int32_t)n_hidden++ : -1,
            };
        }
    }
    return n_hidden;
}

static void rollback_all(mx_engine *e, const plan *p)
{
    for (size_t i = 0; i < p->n_runs; i++) {
        mx_seq_rollback(&e->batch_runs[i]->seq);
    }
}

static void fail_pass(mx_engine *e, const plan *p, mx_err err, uint32_t bad_row, const char *text)
{
    rollback_all(e, p);
    for (size_t i = 0; i < p->n_runs; i++) {
        bool is_guilty = err != MX_E_NONFINITE ||
                         (bad_row >= e->batch_first[i] &&
                          bad_row < e->batch_first[i] + e->batch_count[i]);
        if (is_guilty) {
            mx_log(MX_LOG_ERROR, "compute: request=%s %s", e->batch_runs[i]->params.id, text);
            mx_request_end(e->batch_runs[i], MX_FINISH_ERROR, err, text);
        }
    }
}

/* ---- sample ----------------------------------------------------------------------------------- */

/* What an entry can be resumed from without a forward pass. */
static const float *end_hidden(const mx_request *r)
{
    return r->hidden_at == r->seq.n_tokens && r->hidden_at > 0 ? r->hidden : NULL;
}

void mx_step_commit_turn(mx_engine *e, mx_request *r)
{
    if (!mx_request_may_store(r) || r->seq.n_tokens == 0) {
        return;
    }
    mx_errbuf eb;
    (void)mx_bank_insert_pages(e->bank, &r->seq);
    if (mx_bank_snapshot_cache(e->bank, &r->seq, MX_ENTRY_TURN, end_hidden(r), &eb) != MX_OK) {
        mx_log(MX_LOG_INFO, "bank: request=%s not kept: %s", r->params.id, eb.text);
    }
    mx_pin_point(e, r, true);
    mx_stop_keep_windows(e, r, true);
    mx_ticket_store(e, r, MX_ENTRY_TURN, true);
}

static void end_turn(mx_engine *e, mx_request *r, mx_finish finish)
{
    mx_step_commit_turn(e, r);
    mx_request_end(r, finish, MX_OK, NULL);
}

static void settle_prompt(mx_engine *e, mx_request *r)
{
    r->is_prompt_done = true;
    r->prefill_done_us = mx_now_us();
    if (mx_request_may_store(r)) {
        (void)mx_bank_snapshot_cache(e->bank, &r->seq, MX_ENTRY_PROMPT, end_hidden(r), NULL);
        mx_pin_point(e, r, false);
        mx_stop_keep_windows(e, r, true);
        mx_ticket_store(e, r, MX_ENTRY_PROMPT, true);
    }
    if (r->params.is_idle) {
        e->live.n_idle_done++;
        return;
    }
    pthread_mutex_lock(&r->mu);
    r->stats.has_started = true;
    r->stats.prefill_us = r->prefill_done_us - r->restored_us;
    e->live.prefill_us += r->stats.prefill_us;
    pthread_mutex_unlock(&r->mu);
}

/* All tokens of r have been fed: choose the next one. */
static void sample_next(mx_engine *e, mx_request *r, float *logits)
{
    if (r->params.is_idle) { /* its end is in both tiers */
        mx_request_end(r, MX_FINISH_LENGTH, MX_OK, NULL);
        return;
    }
    if (r->max_total == r->n_tokens) { /* max_tokens 0: the prompt was all that was asked for */
        end_turn(e, r, MX_FINISH_LENGTH);
        return;
    }
    for (size_t i = 0; r->params.ignore_eos && i < e->n_eog; i++) {
        logits[e->eog_ids[i]] = -INFINITY;
    }
    mx_sample s;
    mx_sampler_sample(r->sampler, logits, r->n_tokens, &s);
    if (mx_tokenizer_is_eog(e->tok, s.token)) {
        mx_request_flush_text(r);
        end_turn(e, r, MX_FINISH_STOP);
        return;
    }
    r->tokens[r->n_tokens++] = s.token;
    mx_sampler_accept(r->sampler, s.token, true);
    e->live.n_generated_tokens++;
    if (mx_request_emit(r, &s)) {
        end_turn(e, r, MX_FINISH_STOP);
    } else if (r->state != MX_RUN_DONE && r->n_tokens == r->max_total) {
        mx_request_flush_text(r);
        end_turn(e, r, MX_FINISH_LENGTH);
    } else {
        mx_request_wake_reader(r);
    }
}

/* Runs that were restored with their hidden vector need no forward pass, only the LM head. */
static bool sample_restored(mx_engine *e)
{
    bool any = false;
    mx_request *next;
    for (mx_request *r = e->runs; r != NULL; r = next) {
        next = r->next;
        if (r->state != MX_RUN_ACTIVE || n_pending(r) != 0 || r->hidden_at != r->n_tokens) {
            continue;
        }
        any = true;
        if (!mx_model_logits(e->model, r->hidden, 1, e->logits)) {
            mx_request_end(r, MX_FINISH_ERROR, MX_E_NONFINITE, "the logits are not finite");
            continue;
        }
        if (!r->is_prompt_done) {
            settle_prompt(e, r);
        }
        sample_next(e, r, e->logits);
    }
    return any;
}

/* ---- commit ----------------------------------------------------------------------------------- */

static void note_speed(mx_engine *e, const plan *p, uint64_t pass_us, uint64_t step_us)
{
    mx_share_note(&e->share, p->n_rows - p->n_prompt_rows, p->n_prompt_rows, (double)step_us);
    /* Only passes that are nearly all prompt say what a prompt token costs. */
    if (p->n_prompt_rows < 32 || p->n_prompt_rows * 2 < p->n_rows) {
        return;
    }
    double us = (double)pass_us / (double)p->n_rows;
    e->us_per_token = e->us_per_token > 0 ? 0.7 * e->us_per_token + 0.3 * us : us;
}

/* Run i of the pass has its rows: they become part of its sequence and of both tiers. */
static void commit_run(mx_engine *e, size_t i, size_t hidden_slot)
{
    mx_request *r = e->batch_runs[i];
    size_t n = e->batch_count[i];
    size_t old_pages = r->seq.n_tokens / MX_PAGE_TOKENS;
    mx_seq_commit(&r->seq, r->tokens + r->seq.n_tokens, n);
    if (r->seq.n_tokens == r->n_tokens) {
        memcpy(r->hidden, e->hidden + hidden_slot * e->mc->n_embd, e->mc->n_embd * sizeof(float));
        r->hidden_at = r->n_tokens;
    }
    if (mx_request_may_store(r)) {
        bool has_more_pages = r->seq.n_tokens / MX_PAGE_TOKENS > old_pages;
        if (has_more_pages) {
            (void)mx_bank_insert_pages(e->bank, &r->seq);
            mx_stop_keep_windows(e, r, false);
        }
        if (mx_stop_keep(e, r) || has_more_pages) {
            mx_ticket_store(e, r, MX_ENTRY_PROMPT, false);
        }
    }
    if (!r->is_prompt_done && r->seq.n_tokens >= r->n_prompt) {
        settle_prompt(e, r);
    }
}

static void finish_pass(mx_engine *e, const plan *p, size_t n_hidden)
{
    bool is_sound = n_hidden == 0 ||
                    mx_model_logits(e->model, e->hidden, (uint32_t)n_hidden, e->logits);
    size_t n_vocab = e->mc->n_vocab;
    size_t slot = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        mx_request *r = e->batch_runs[i];
        bool ends = r->seq.n_tokens + e->batch_count[i] == r->n_tokens;
        float *logits = e->logits + slot * n_vocab;
        if (ends && !is_sound && !mx_model_kern(e->model)->all_finite(logits, n_vocab)) {
            mx_seq_rollback(&r->seq);
            mx_log(MX_LOG_ERROR, "compute: request=%s the logits are not finite", r->params.id);
            mx_request_end(r, MX_FINISH_ERROR, MX_E_NONFINITE, "the logits are not finite");
        } else {
            commit_run(e, i, slot);
            if (ends) {
                sample_next(e, r, logits);
            }
        }
        slot += ends;
    }
}

bool mx_step(mx_engine *e)
{
    bool any = sample_restored(e);
    plan p = {0};
    make_plan(e, &p);
    reserve_all(e, &p);
    pace_writer(e, &p);
    if (p.n_runs == 0) {
        return any;
    }
    size_t n_hidden = fill_rows(e, &p);
    cancel_view view = {.runs = e->batch_runs, .n_runs = p.n_runs};
    if (e->batch_runs[0]->params.is_idle) { /* then it is alone */
        view.is_wanted = &e->is_wanted;
    }
    mx_batch batch = {
        .rows = e->rows,
        .n_rows = (uint32_t)p.n_rows,
        .hidden = e->hidden,
        .n_hidden_rows = (uint32_t)n_hidden,
        .is_cancelled = any_cancelled,
        .cancel_arg = &view,
    };
    uint32_t bad_row = 0;
    mx_errbuf eb = {{0}};
    uint64_t begin = mx_now_us();
    mx_err err = mx_model_forward(e->model, &batch, &bad_row, &eb);
    if (err == MX_E_CANCELLED) {
        rollback_all(e, &p);
    } else if (err != MX_OK) {
        fail_pass(e, &p, err, bad_row, eb.text);
    } else {
        uint64_t pass_us = mx_now_us() - begin;
        if (view.is_wanted != NULL) {
            e->live.n_idle_tokens += p.n_rows;
            e->live.idle_us += pass_us;
        }
        finish_pass(e, &p, n_hidden);
        note_speed(e, &p, pass_us, mx_now_us() - begin);
        mx_bank_trim(e->bank);
    }
    return true;
}
