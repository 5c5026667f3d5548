/* SPDX-License-Identifier: MIT
 *
 * engine_rig.h: a tiny model, an engine on it, and a client that asks and compares bit for bit.
 * Header only: used by the engine's tests.
 */
#ifndef MX_ENGINE_RIG_H
#define MX_ENGINE_RIG_H

#include "base/clock.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sched/sched_internal.h"
#include "tiny_gguf.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

typedef struct rig {
    char folder[64]; /* model file and cache folder */
    char model_path[4096];
    char cache_dir[96];
    mx_pool *pool;
    mx_model *model;
    mx_engine *engine;
    mx_engine_config cfg;
    bool is_writing; /* of rig_wait_written */
} rig;

MX_UNUSED static void rig_must(mx_err err, const mx_errbuf *eb, const char *what)
{
    if (err != MX_OK) {
        fail_msg("%s: %s: %s", what, mx_err_name(err), eb->text);
    }
}

MX_UNUSED static void rig_start(rig *g)
{
    mx_errbuf eb = {{0}};
    g->cfg.model = g->model;
    rig_must(mx_engine_start(&g->engine, &g->cfg, &eb), &eb, "engine start");
}

MX_UNUSED static void rig_stop(rig *g)
{
    mx_engine_stop(g->engine, 0, 20 * 1000000);
    mx_engine_destroy(g->engine);
    g->engine = NULL;
}

/* The tiny model with a context of so many tokens. Tied and untrained, it would repeat the last token
 * for ever. */
MX_UNUSED static mx_tiny_spec rig_spec_of(mx_tiny_spec s, uint32_t n_ctx)
{
    s.n_ctx = n_ctx;
    s.is_tied = false;
    return s;
}

MX_UNUSED static mx_tiny_spec rig_spec(uint32_t n_ctx)
{
    return rig_spec_of(mx_tiny_default(), n_ctx);
}

/* A new folder for a model file and a cache. */
MX_UNUSED static void rig_folder(char out[64])
{
    snprintf(out, 64, "/tmp/mtplx-test-XXXXXX");
    assert_non_null(mkdtemp(out));
}

/* A tiny model of this description, or with spec NULL the default model's file at model_path.
 * budget_pages 0 = plenty. The engine is not started: the test may change g->cfg before. */
MX_UNUSED static void rig_open_at(rig *g, const char *folder, const mx_tiny_spec *spec,
                                  const char *model_path, unsigned n_threads, size_t budget_pages)
{
    *g = (rig){0};
    mx_errbuf eb = {{0}};
    snprintf(g->folder, sizeof g->folder, "%s", folder);
    snprintf(g->cache_dir, sizeof g->cache_dir, "%s/cache", g->folder);
    if (spec != NULL) {
        snprintf(g->model_path, sizeof g->model_path, "%s/tiny.gguf", g->folder);
        mx_tiny_write(g->model_path, spec);
    } else {
        snprintf(g->model_path, sizeof g->model_path, "%s", model_path != NULL ? model_path : "");
    }
    rig_must(mx_pool_create(&g->pool, n_threads, &eb), &eb, "pool");
    mx_model_options opt = {
        .path = g->model_path,
        .max_batch_rows = 512 + 16,
        .max_logit_rows = 16,
        .cpu_level = mx_cpu_best(),
    };
    rig_must(mx_model_load(&g->model, &opt, g->pool, &eb), &eb, "model");
    size_t page_bytes = mx_kv_page_bytes(mx_model_kv_shape(g->model));
    g->cfg = (mx_engine_config){
        .kv_budget_bytes = (budget_pages ? budget_pages : 400) * page_bytes,
        .bank = {.near_prefix_gap = 8, .lazy_snapshot = true, .us_per_token = 100},
        .cold_mode = MX_COLD_OFF,
        .cold_dir = g->cache_dir,
        .cold_min_tokens = 32,
        .ssd_restore = MX_SSD_RESTORE_ALWAYS,
    };
}

MX_UNUSED static void rig_open(rig *g, const mx_tiny_spec *spec, unsigned n_threads,
                               size_t budget_pages)
{
    char folder[64];
    rig_folder(folder);
    rig_open_at(g, folder, spec, NULL, n_threads, budget_pages);
}

/* An engine on the tiny model that is running, with plenty of room and without a folder. */
MX_UNUSED static void rig_run(rig *g, uint32_t n_ctx)
{
    mx_tiny_spec spec = rig_spec(n_ctx);
    rig_open(g, &spec, 1, 0);
    rig_start(g);
}

MX_UNUSED static void rig_close(rig *g)
{
    if (g->engine != NULL) {
        rig_stop(g);
    }
    mx_model_destroy(g->model);
    mx_pool_destroy(g->pool);
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", g->folder);
    assert_int_equal(system(command), 0);
}

/* The engine's statistics are published from time to time: looks into *s until the condition holds, or
 * a minute has passed. What was waited for is for the caller to assert. */
#define RIG_WAIT_STATS(g, s, condition)                                                            \
    do {                                                                                           \
        const uint64_t until_us_ = mx_now_us() + 60 * 1000000ull;                                  \
        mx_engine_get_stats((g)->engine, s);                                                       \
        while (!(condition) && mx_now_us() < until_us_) {                                          \
            usleep(1000);                                                                          \
            mx_engine_get_stats((g)->engine, s);                                                   \
        }                                                                                          \
    } while (0)

MX_UNUSED static void rig_look_at_writes(void *arg, const mx_engine_view *view)
{
    (void)view;
    rig *g = arg;
    g->is_writing = mx_ticket_is_writing(g->engine);
}

/* Until the cold tier has written or refused all that belongs to the answers that have ended, and the
 * engine has noticed. Asked on the engine's thread, which has handed it over by then. */
MX_UNUSED static void rig_wait_written(rig *g)
{
    const uint64_t until_us = mx_now_us() + 60 * 1000000ull;
    do {
        assert_true(mx_now_us() < until_us);
        assert_int_equal(mx_engine_call(g->engine, rig_look_at_writes, g), MX_OK);
        (void)mx_cold_flush(mx_engine_cold(g->engine), 60 * 1000000);
    } while (g->is_writing);
}

/* ---- asking ----------------------------------------------------------------------------------- */

typedef struct question {
    const int32_t *prompt;
    size_t n_prompt;
    uint32_t max_tokens;
    uint64_t seed;
    mx_cache_policy cache;
    const char *stop;
    const uint32_t *marks;
    size_t n_marks;
    const mx_hash256 *salt;
    const char *session;
    bool obey_eos;
    bool no_logprobs;
} question;

/* The engine may call once more while the reader has seen the end already: what it calls is never
 * freed, only used again, where such a call is one look too many. */
typedef struct waiter waiter;
struct waiter {
    waiter *next_free;
    waiter *next_ever; /* so that a leak checker finds those that no test gave back */
    pthread_mutex_t mu;
    pthread_cond_t cond;
    unsigned n_wakes;
};

typedef struct asking {
    mx_request *request;
    waiter *waiter;
} asking;

typedef struct answer {
    mx_buf text;
    mx_buf bits;      /* every token with its log probabilities, as raw bytes */
    int32_t *tokens;  /* sampled, in order */
    size_t n_tokens, tokens_cap;
    int32_t *ids;     /* the same without log probabilities, and with what a stop string took */
    size_t n_ids, ids_cap;
    mx_finish finish;
    mx_err error;
    char error_text[256];
    mx_request_stats stats;
} answer;

static waiter *free_waiters; /* of the thread that asks */
static waiter *all_waiters;

MX_UNUSED static waiter *take_waiter(void)
{
    waiter *w = free_waiters;
    if (w != NULL) {
        free_waiters = w->next_free;
        return w;
    }
    w = calloc(1, sizeof *w);
    assert_non_null(w);
    pthread_mutex_init(&w->mu, NULL);
    pthread_cond_init(&w->cond, NULL);
    w->next_ever = all_waiters;
    all_waiters = w;
    return w;
}

MX_UNUSED static void put_waiter(waiter *w)
{
    w->next_free = free_waiters;
    free_waiters = w;
}

MX_UNUSED static void on_wake(void *arg)
{
    waiter *w = arg;
    pthread_mutex_lock(&w->mu);
    w->n_wakes++;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mu);
}

MX_UNUSED static mx_err try_ask(rig *g, asking *a, const question *q, mx_errbuf *eb)
{
    *a = (asking){.waiter = take_waiter()};
    mx_request_params p = {
        .prompt = q->prompt,
        .n_prompt = q->n_prompt,
        .max_tokens = q->max_tokens,
        .sampling = mx_sampling_default(),
        .cache = q->cache,
        .ignore_eos = !q->obey_eos,
        .marks = q->marks,
        .n_marks = q->n_marks,
        .salt = q->salt,
        .session = q->session != NULL ? mx_str_of(q->session) : (mx_str){NULL, 0},
        .wake = on_wake,
        .wake_arg = a->waiter,
        .id = "test",
    };
    mx_str stop = q->stop != NULL ? mx_str_of(q->stop) : (mx_str){NULL, 0};
    p.stops = &stop;
    p.n_stops = q->stop != NULL;
    p.sampling.temperature = 0.8f;
    p.sampling.seed = q->seed;
    p.sampling.want_logprobs = !q->no_logprobs;
    p.sampling.n_top_logprobs = q->no_logprobs ? 0 : MX_MAX_TOP_LOGPROBS;
    mx_err err = mx_request_create(&a->request, g->engine, &p, eb);
    if (err == MX_OK) {
        err = mx_engine_submit(g->engine, a->request, eb);
        if (err != MX_OK) {
            mx_request_unref(a->request);
            a->request = NULL;
        }
    }
    if (err != MX_OK) {
        put_waiter(a->waiter);
    }
    return err;
}

MX_UNUSED static void ask(rig *g, asking *a, const question *q)
{
    mx_errbuf eb = {{0}};
    rig_must(try_ask(g, a, q, &eb), &eb, "ask");
}

MX_UNUSED static void take_output(asking *a, mx_output *o, answer *out)
{
    mx_request_read(a->request, o);
    mx_buf_append(&out->text, o->text.ptr, o->text.len);
    for (size_t i = 0; i < o->n_tokens; i++) {
        const mx_sample *s = &o->tokens[i].sample;
        mx_buf_append(&out->bits, &s->token, sizeof s->token);
        mx_buf_append(&out->bits, &s->logprob, sizeof s->logprob);
        mx_buf_append(&out->bits, s->top, s->n_top * sizeof *s->top);
        void *tokens = out->tokens;
        assert_true(mx_grow(&tokens, &out->tokens_cap, out->n_tokens + 1, sizeof(int32_t)));
        out->tokens = tokens;
        out->tokens[out->n_tokens++] = s->token;
    }
    void *ids = out->ids;
    assert_true(mx_grow(&ids, &out->ids_cap, out->n_ids + o->n_ids, sizeof *out->ids));
    out->ids = ids;
    if (o->n_ids > 0) {
        memcpy(out->ids + out->n_ids, o->ids, o->n_ids * sizeof *o->ids);
    }
    out->n_ids += o->n_ids;
    out->finish = o->finish;
    out->error = o->error;
    memcpy(out->error_text, o->error_text, sizeof out->error_text);
}

/* Reads until the end; frees the asking. Five minutes without a sign of life fail the test; ten in an
 * emulator, where reading a long prompt takes that long. */
MX_UNUSED static void await(asking *a, answer *out)
{
    *out = (answer){0};
    mx_output o = {0};
    const int limit_s = getenv("MTPLX_TEST_TINY") != NULL ? 600 : 300;
    while (out->finish == MX_FINISH_NONE) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += limit_s;
        waiter *w = a->waiter;
        pthread_mutex_lock(&w->mu);
        int rc = 0;
        while (w->n_wakes == 0 && rc == 0) {
            rc = pthread_cond_timedwait(&w->cond, &w->mu, &until);
        }
        w->n_wakes = 0;
        pthread_mutex_unlock(&w->mu);
        if (rc != 0) {
            fail_msg("the engine gave no sign for %d s", limit_s);
        }
        take_output(a, &o, out);
    }
    mx_output_free(&o);
    mx_request_get_stats(a->request, &out->stats);
    if (out->finish == MX_FINISH_STOP || out->finish == MX_FINISH_LENGTH) {
        assert_int_equal(out->n_ids, out->stats.n_generated);
        assert_true(out->n_ids >= out->n_tokens);
        assert_true(out->n_tokens == 0 ||
                    memcmp(out->ids, out->tokens, out->n_tokens * sizeof *out->ids) == 0);
    }
    mx_request_unref(a->request);
    put_waiter(a->waiter);
}

MX_UNUSED static void answer_free(answer *a)
{
    mx_buf_free(&a->text);
    mx_buf_free(&a->bits);
    mx_free(a->tokens);
    mx_free(a->ids);
    *a = (answer){0};
}

/* Where only the end matters. */
MX_UNUSED static void await_end(asking *a, mx_finish want)
{
    answer got;
    await(a, &got);
    assert_int_equal(got.finish, want);
    answer_free(&got);
}

MX_UNUSED static void ask_and_wait(rig *g, const question *q, answer *out)
{
    asking a;
    ask(g, &a, q);
    await(&a, out);
}

/* The answer of an engine that neither reads nor stores anything. */
MX_UNUSED static void ask_cold(rig *g, const question *q, answer *out)
{
    question cold = *q;
    cold.cache = MX_CACHE_OFF;
    ask_and_wait(g, &cold, out);
    assert_int_equal(out->stats.cache_mode, MX_MODE_COLD);
    assert_int_equal(out->stats.n_computed, q->n_prompt);
}

MX_UNUSED static void assert_same(const answer *want, const answer *got, const char *what)
{
    if (want->finish != got->finish) {
        fail_msg("%s: expected finish %d, came %d (%s)", what, want->finish, got->finish,
                 got->error_text);
    }
    if (want->bits.len != got->bits.len ||
        (want->bits.len > 0 && memcmp(want->bits.ptr, got->bits.ptr, want->bits.len) != 0))
    {
        size_t at = 0;
        while (at < want->n_tokens && at < got->n_tokens && want->tokens[at] == got->tokens[at]) {
            at++;
        }
        fail_msg("%s: the log probabilities differ as bytes; %zu of %zu tokens equal", what, at,
                 want->n_tokens);
    }
    assert_int_equal(want->text.len, got->text.len);
    assert_true(want->text.len == 0 || memcmp(want->text.ptr, got->text.ptr, want->text.len) == 0);
}

/* Random ordinary tokens (no control token), the same for the same seed. */
MX_UNUSED static void random_prompt(int32_t *out, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (int32_t)(mx_tiny_random(&seed) % 256);
    }
}

#endif
