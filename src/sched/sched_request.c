/* SPDX-License-Identifier: MIT
 *
 * A request: what a client wants, made by a server thread, and the way its output takes back.
 *
 * The output buffer is guarded by a mutex of its own: one token's worth is appended under it, the
 * reader swaps buffers under it, so neither side ever waits for long. The engine pauses a sequence
 * whose reader is behind (mx_request_unread); the reader then wakes the engine when it has fetched.
 */
#include "sched/sched_internal.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <stdio.h>

/* Those that make sense; the end of the prompt is a boundary in any case. */
static size_t copy_marks(mx_request *r, const mx_request_params *p)
{
    size_t n = 0, last = 0;
    for (size_t i = 0; i < p->n_marks; i++) {
        if (p->marks[i] >= last + MX_STOP_MIN_TOKENS && p->marks[i] < p->n_prompt) {
            last = p->marks[i];
            r->marks[n++] = p->marks[i];
        }
    }
    return n;
}

static mx_err copy_params(mx_request *r, const mx_request_params *p, mx_errbuf *eb)
{
    size_t stop_bytes = 0;
    for (size_t i = 0; i < p->n_stops; i++) {
        stop_bytes += p->stops[i].len;
    }
    r->bias = mx_alloc(p->sampling.n_bias * sizeof *r->bias);
    r->stops = mx_alloc(p->n_stops * sizeof *r->stops);
    r->stop_bytes = mx_alloc(stop_bytes);
    r->marks = mx_alloc(p->n_marks * sizeof *r->marks);
    size_t n_turns = mx_min_size(p->n_turns, MX_TURNS_MAX);
    r->turns = mx_alloc(n_turns * sizeof *r->turns);
    r->tokens = mx_alloc(r->max_total * sizeof *r->tokens);
    r->hidden = mx_alloc(r->engine->mc->n_embd * sizeof *r->hidden);
    if (r->bias == NULL || r->stops == NULL || r->stop_bytes == NULL || r->marks == NULL ||
        r->turns == NULL || r->tokens == NULL || r->hidden == NULL)
    {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the request");
    }
    if (p->sampling.n_bias > 0) {
        memcpy(r->bias, p->sampling.bias, p->sampling.n_bias * sizeof *r->bias);
    }
    char *to = r->stop_bytes;
    size_t n_stops = 0;
    for (size_t i = 0; i < p->n_stops; i++) {
        if (p->stops[i].len > 0) {
            memcpy(to, p->stops[i].ptr, p->stops[i].len);
            r->stops[n_stops++] = (mx_str){to, p->stops[i].len};
            to += p->stops[i].len;
        }
    }
    memcpy(r->tokens, p->prompt, p->n_prompt * sizeof *r->tokens);
    r->n_tokens = r->n_prompt = p->n_prompt;
    r->params = *p;
    r->params.prompt = r->tokens;
    r->params.stops = r->stops;
    r->params.n_stops = n_stops;
    r->params.sampling.bias = r->bias;
    r->params.salt = NULL;
    if (n_turns > 0) { /* of too many the last, which are found first */
        memcpy(r->turns, p->turns + (p->n_turns - n_turns), n_turns * sizeof *r->turns);
    }
    r->params.turns = r->turns;
    r->params.n_turns = n_turns;
    r->params.marks = r->marks;
    r->params.n_marks = copy_marks(r, p);
    r->params.session = (mx_str){0};
    if (mx_session_name_ok(p->session)) {
        memcpy(r->session_name, p->session.ptr, p->session.len);
    }
    r->root = p->salt != NULL ? mx_model_root(r->engine->model, p->salt) : r->engine->root;
    r->session = mx_session_id(&r->root, (mx_str){r->session_name, strlen(r->session_name)});
    return MX_OK;
}

static mx_err check_params(const mx_engine *e, const mx_request_params *p, mx_errbuf *eb)
{
    size_t limit = e->max_seq_tokens;
    assert(!p->is_idle || p->max_tokens == 0);
    if (p->n_prompt == 0) {
        return mx_fail(eb, MX_E_INVALID, "the prompt is empty");
    }
    if (p->n_prompt > limit || (p->n_prompt == limit && p->max_tokens != 0)) {
        bool is_budget = limit < e->mc->n_ctx;
        return mx_fail(eb, MX_E_LIMIT,
                       "request (%zu tokens) exceeds the available context size (%zu tokens); this "
                       "model's maximum context length is %u tokens%s",
                       p->n_prompt, limit, e->mc->n_ctx,
                       is_budget ? "; raise --kv-budget to use more of it" : "");
    }
    for (size_t i = 0; i < p->n_prompt; i++) {
        if (p->prompt[i] < 0 || (uint32_t)p->prompt[i] >= e->mc->n_vocab) {
            return mx_fail(eb, MX_E_INVALID, "prompt token %zu has id %d; ids go from 0 to %u", i,
                           p->prompt[i], e->mc->n_vocab - 1);
        }
    }
    return MX_OK;
}

mx_err mx_request_create(mx_request **out, mx_engine *e, const mx_request_params *p, mx_errbuf *eb)
{
    *out = NULL;
    MX_TRY(check_params(e, p, eb));
    mx_request *r = mx_calloc(1, sizeof *r);
    if (r == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "no memory for the request");
    }
    pthread_mutex_init(&r->mu, NULL);
    atomic_store(&r->refs, 1);
    r->engine = e;
    size_t room = e->max_seq_tokens - p->n_prompt;
    r->max_total = p->n_prompt + mx_min_size(p->max_tokens, room);
    mx_err err = copy_params(r, p, eb);
    if (err == MX_OK) {
        err = mx_sampler_create(&r->sampler, e->mc->n_vocab, &r->params.sampling, eb);
    }
    if (err != MX_OK) {
        mx_request_unref(r);
        return err;
    }
    for (size_t i = 0; i < r->n_prompt; i++) {
        mx_sampler_accept(r->sampler, r->tokens[i], false);
    }
    mx_text_init(&r->text, r->stops, r->params.n_stops);
    mx_seq_init(&r->seq, e->pool, &r->root);
    r->stats.n_prompt = r->n_prompt;
    *out = r;
    return MX_OK;
}

mx_request *mx_request_ref(mx_request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void mx_request_unref(mx_request *r)
{
    /* acq_rel: whoever frees sees everything that the other holders did before they let go. */
    if (r == NULL || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    /* The engine dropped the pages when it ended the request; one that never ran has none. */
    mx_sampler_destroy(r->sampler);
    mx_text_free(&r->text);
    mx_buf_free(&r->held_pieces);
    mx_output_free(&r->out);
    pthread_mutex_destroy(&r->mu);
    mx_free(r->held);
    mx_free(r->sent.ids);
    mx_free(r->sent.positions);
    mx_free(r->bias);
    mx_free(r->stops);
    mx_free(r->stop_bytes);
    mx_free(r->marks);
    mx_free(r->turns);
    mx_free(r->tokens);
    mx_free(r->hidden);
    mx_free(r);
}

void mx_request_cancel(mx_request *r)
{
    atomic_store(&r->is_cancelled, true);
    mx_engine_wake(r->engine);
}

/* ---- output ----------------------------------------------------------------------------------- */

void mx_output_free(mx_output *o)
{
    mx_buf_free(&o->text);
    mx_buf_free(&o->pieces);
    mx_free(o->tokens);
    mx_free(o->ids);
    *o = (mx_output){0};
}

void mx_request_read(mx_request *r, mx_output *out)
{
    mx_buf_clear(&out->text);
    mx_buf_clear(&out->pieces);
    out->n_tokens = 0;
    out->n_ids = 0;
    pthread_mutex_lock(&r->mu);
    mx_output fresh = r->out;
    /* The reader's emptied buffers become the engine's next ones: no copy, no allocation. */
    r->out = (mx_output){
        .text = out->text,
        .pieces = out->pieces,
        .tokens = out->tokens,
        .tokens_cap = out->tokens_cap,
        .ids = out->ids,
        .ids_cap = out->ids_cap,
        .finish = fresh.finish,
        .stop = fresh.stop,
        .error = fresh.error,
    };
    memcpy(r->out.error_text, fresh.error_text, sizeof fresh.error_text);
    bool wants_room = r->wants_room;
    r->wants_room = false;
    pthread_mutex_unlock(&r->mu);
    *out = fresh;
    if (wants_room) {
        mx_engine_wake(r->engine);
    }
}

void mx_request_get_stats(mx_request *r, mx_request_stats *out)
{
    pthread_mutex_lock(&r->mu);
    *out = r->stats;
    pthread_mutex_unlock(&r->mu);
}

size_t mx_request_unread(mx_request *r)
{
    pthread_mutex_lock(&r->mu);
    size_t n = r->out.text.len + r->out.pieces.len + r->out.n_tokens * sizeof *r->out.tokens +
               r->out.n_ids * sizeof *r->out.ids;
    r->wants_room = n >= MX_OUT_PAUSE_BYTES;
    pthread_mutex_unlock(&r->mu);
    return n;
}

void mx_request_wake_reader(mx_request *r)
{
    if (r->params.wake != NULL) {
        r->params.wake(r->params.wake_arg);
    }
}

/* Moves held token records whose text is out, with their bytes, to the reader. mu is held. At the
 * end a token counts as shown when the first byte of its text is. */
static bool release_tokens_locked(mx_request *r, bool is_last)
{
    mx_output *o = &r->out;
    size_t n = 0;
    uint64_t released = r->text.n_released;
    while (n < r->n_held &&
           (r->held[n].end <= released || (is_last && r->held[n].begin < released)))
    {
        void *tokens = o->tokens;
        if (!mx_grow(&tokens, &o->tokens_cap, o->n_tokens + 1, sizeof *o->tokens)) {
            return false;
        }
        o->tokens = tokens;
        const mx_held_token *h = &r->held[n];
        uint32_t begin = (uint32_t)o->pieces.len;
        mx_buf_append(&o->pieces, r->held_pieces.ptr + h->piece_begin,
                      h->piece_end - h->piece_begin);
        o->tokens[o->n_tokens++] = (mx_token_event){
            .sample = h->sample,
            .text_begin = begin,
            .text_end = (uint32_t)o->pieces.len,
        };
        n++;
    }
    r->n_held -= n;
    memmove(r->held, r->held + n, r->n_held * sizeof *r->held);
    if (r->n_held == 0) {
        mx_buf_clear(&r->held_pieces);
    }
    return !o->pieces.failed;
}

static bool hold_token(mx_request *r, const mx_sample *s, mx_str piece, uint64_t clean_before)
{
    void *held = r->held;
    if (!mx_grow(&held, &r->held_cap, r->n_held + 1, sizeof *r->held)) {
        return false;
    }
    r->held = held;
    uint32_t begin = (uint32_t)r->held_pieces.len;
    mx_buf_append(&r->held_pieces, piece.ptr, piece.len);
    r->held[r->n_held++] = (mx_held_token){
        .sample = *s,
        .begin = clean_before,
        .end = r->text.n_clean,
        .piece_begin = begin,
        .piece_end = (uint32_t)r->held_pieces.len,
    };
    return !r->held_pieces.failed;
}

static bool push_id(mx_output *o, int32_t id)
{
    void *ids = o->ids;
    if (!mx_grow(&ids, &o->ids_cap, o->n_ids + 1, sizeof *o->ids)) {
        return false;
    }
    o->ids = ids;
    o->ids[o->n_ids++] = id;
    return true;
}

bool mx_request_emit(mx_request *r, const mx_sample *s)
{
    mx_str piece = mx_tokenizer_piece(r->engine->tok, s->token, false);
    uint64_t clean_before = r->text.n_clean;
    pthread_mutex_lock(&r->mu);
    bool ok = push_id(&r->out, s->token);
    bool is_stop = mx_text_push(&r->text, piece, &r->out.text);
    r->out.stop = r->text.stop;
    if (r->params.sampling.want_logprobs) {
        ok = ok && hold_token(r, s, piece, clean_before) && release_tokens_locked(r, is_stop);
        if (is_stop) {
            r->n_held = 0; /* records of text that the stop string took away */
        }
    }
    r->stats.n_generated++;
    ok = ok && !r->out.text.failed && !mx_text_failed(&r->text);
    pthread_mutex_unlock(&r->mu);
    if (!ok) {
        /* The caller ends the request at its next look at the flag; text that is not whole must
         * not be presented as an answer. */
        mx_request_end(r, MX_FINISH_ERROR, MX_E_NOMEM, "no memory for the answer's text");
    }
    return is_stop;
}

void mx_request_flush_text(mx_request *r)
{
    pthread_mutex_lock(&r->mu);
    mx_text_finish(&r->text, &r->out.text);
    r->out.stop = r->text.stop;
    if (r->params.sampling.want_logprobs) {
        release_tokens_locked(r, true);
    }
    pthread_mutex_unlock(&r->mu);
}

void mx_request_end(mx_request *r, mx_finish finish, mx_err error, const char *text)
{
    if (r->state == MX_RUN_DONE) {
        return;
    }
    r->state = MX_RUN_DONE;
    mx_admit_unfollow(r);
    mx_ticket_abandon(r, false);
    mx_seq_free(&r->seq);
    uint64_t now = mx_now_us();
    pthread_mutex_lock(&r->mu);
    r->out.finish = finish;
    r->out.error = error;
    snprintf(r->out.error_text, sizeof r->out.error_text, "%s", text != NULL ? text : "");
    if (r->prefill_done_us != 0) {
        r->stats.decode_us = now - r->prefill_done_us;
    }
    pthread_mutex_unlock(&r->mu);
    mx_request_wake_reader(r);
}
