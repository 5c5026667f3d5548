/* SPDX-License-Identifier: MIT
 *
 * When the engine tells the cold writer to spare the CPU: while somebody decodes, and at no other time. The
 * writer is held up in its first job until the engine hands out a certain token, and the engine then
 * stands still until the writer rests or is done. To the writer's clock each job takes a second, and it may
 * take an hour for all of them, so nothing here gets done by a paced writer.
 */
#include "../exactness/engine_rig.h"

#include "cold/cold_files.h"

#include <stdatomic.h>

enum { N_PROMPT = 300, N_ANSWER = 100 };

static atomic_bool is_gate_open;
static mx_cold_fileops ops;

/* The writer's only. */
static uint64_t second_a_look(void)
{
    static uint64_t us;
    return us += 1000000;
}

static int gated_fsync(int fd)
{
    (void)fd;
    while (!atomic_load(&is_gate_open)) {
        usleep(500);
    }
    return 0;
}

static void start(rig *g)
{
    mx_tiny_spec spec = rig_spec(512);
    rig_open(g, &spec, 1, 0);
    ops = mx_cold_real_fileops;
    ops.fsync = gated_fsync;
    atomic_store(&is_gate_open, false);
    g->cfg.cold_mode = MX_COLD_ON;
    g->cfg.prefill_chunk = 2 * MX_PAGE_TOKENS;
    g->cfg.cold_tuning = (mx_cold_tuning){.fileops = &ops,
                                          .min_free_bytes = -1,
                                          .cpu_us = second_a_look,
                                          .pace_us = 3600 * 1000000ull};
    rig_start(g);
}

typedef struct watcher {
    rig *g;
    unsigned n_tokens, look_at; /* look at that token */
    mx_cold_stats seen;
} watcher;

/* The engine's thread, at each token and at the end. */
static void on_token(void *arg)
{
    watcher *w = arg;
    if (++w->n_tokens == w->look_at) {
        atomic_store(&is_gate_open, true);
        const uint64_t until = mx_now_us() + 60 * 1000000ull;
        do {
            usleep(500);
            mx_cold_get_stats(mx_engine_cold(w->g->engine), &w->seen);
        } while (w->seen.queued_jobs > 0 && w->seen.rests == 0 && mx_now_us() < until);
    }
}

/* What the writer does when the nth token is handed out; then everything has to be written. */
static mx_cold_stats look_at_token(unsigned n)
{
    rig g;
    start(&g);
    static watcher w;
    w = (watcher){.g = &g, .look_at = n};
    int32_t prompt[N_PROMPT];
    random_prompt(prompt, N_PROMPT, 5);
    mx_request_params p = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_ANSWER,
                           .sampling = mx_sampling_default(), .ignore_eos = true,
                           .wake = on_token, .wake_arg = &w, .id = "test"};
    mx_request *r;
    mx_errbuf eb = {{0}};
    rig_must(mx_request_create(&r, g.engine, &p, &eb), &eb, "create");
    rig_must(mx_engine_submit(g.engine, r, &eb), &eb, "submit");
    mx_engine_stats s;
    RIG_WAIT_STATS(&g, &s, s.n_generated_tokens == N_ANSWER && s.n_running == 0
                               && s.cold.queued_jobs == 0);
    assert_int_equal(s.n_generated_tokens, N_ANSWER);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.cold.queued_jobs, 0);
    assert_int_equal(s.cold.write_failures, 0);
    assert_int_equal(s.cold.pages_written, (N_PROMPT + N_ANSWER - 1) / MX_PAGE_TOKENS + 1);
    mx_request_unref(r);
    rig_close(&g);
    return w.seen;
}

/* The third token comes from a pass that took the second one. */
static void decoding_paces_the_writer(void **state)
{
    (void)state;
    mx_cold_stats seen = look_at_token(3);
    assert_int_equal(seen.rests, 1);
    assert_int_equal(seen.pages_written, 1);
    assert_true(seen.queued_jobs >= N_PROMPT / MX_PAGE_TOKENS - 1);
}

/* The first token comes from a pass that read the prompt. */
static void reading_a_prompt_does_not(void **state)
{
    (void)state;
    mx_cold_stats seen = look_at_token(1);
    assert_int_equal(seen.rests, 0);
    assert_int_equal(seen.queued_jobs, 0);
    assert_int_equal(seen.pages_written, N_PROMPT / MX_PAGE_TOKENS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_paces_the_writer),
        cmocka_unit_test(reading_a_prompt_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
