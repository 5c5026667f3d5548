/* SPDX-License-Identifier: MIT
 *
 * The promise for models with recurrent layers: an answer that goes on from a boundary, of either
 * tier, is the cold answer bit for bit, whichever boundary it is and however it came to be kept: the
 * end of a prompt or a turn, a mark, an even distance, a cancelled prompt, a run that gave way. And
 * where the state cannot be had, it is not made up.
 */
#include "engine_rig.h"
#include "hybrid_model.h"

enum { N_PROMPT = 700, MAX_PROMPT = 1900 };

/* Boundaries stand every 256 tokens. */
static void open_rig(rig *g, unsigned n_threads, size_t budget_pages, bool has_cold)
{
    char folder[64];
    mx_tiny_spec spec = hybrid_spec();
    rig_folder(folder);
    rig_open_at(g, folder, &spec, NULL, n_threads, budget_pages);
    g->cfg.cold_mode = has_cold ? MX_COLD_ON : MX_COLD_OFF;
    assert_true(mx_model_kv_shape(g->model)->state_bytes > 0);
    rig_start(g);
}

static void expect_reuse(const answer *a, mx_cache_mode mode, size_t n, mx_restore_kind kind,
                         const char *what)
{
    size_t got = a->stats.n_ram + a->stats.n_ssd;
    if (a->stats.cache_mode != mode || got != n || a->stats.restore != kind
        || a->stats.is_approximate)
    {
        fail_msg("%s: expected mode %d, %zu tokens, %s; got mode %d, %zu (ram %zu), %s", what, mode,
                 n, mx_restore_kind_name(kind), a->stats.cache_mode, got, a->stats.n_ram,
                 mx_restore_kind_name(a->stats.restore));
    }
}

/* Asks for the first n tokens and something of its own behind them, and compares with a cold run. */
static void ask_edited(rig *g, const int32_t *prompt, size_t n, uint64_t seed, answer *got)
{
    int32_t own[MAX_PROMPT];
    memcpy(own, prompt, n * sizeof *own);
    random_prompt(own + n, 20, seed);
    question q = {.prompt = own, .n_prompt = n + 20, .max_tokens = 6, .seed = seed};
    answer cold;
    ask_cold(g, &q, &cold);
    ask_and_wait(g, &q, got);
    char what[64];
    snprintf(what, sizeof what, "edited behind %zu", n);
    assert_same(&cold, got, what);
    answer_free(&cold);
}

/* Every tier, every boundary: prompt, turn, mark, distances; again after a restart. */
static void every_boundary_gives_the_cold_answer(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 2, 0, true);
    int32_t prompt[MAX_PROMPT];
    random_prompt(prompt, MAX_PROMPT, 7);
    const uint32_t marks[] = {90, 610};
    question q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 30, .seed = 11,
                  .marks = marks, .n_marks = 2};
    answer cold, got;
    ask_cold(&g, &q, &cold);
    ask_and_wait(&g, &q, &got);
    assert_same(&cold, &got, "first");
    answer_free(&got);
    ask_and_wait(&g, &q, &got);
    expect_reuse(&got, MX_MODE_WARM_PREFIX, N_PROMPT, MX_RESTORE_EXACT_PREFIX, "again");
    assert_same(&cold, &got, "again");
    answer_free(&got);

    int32_t turn[MAX_PROMPT];
    memcpy(turn, prompt, N_PROMPT * sizeof *turn);
    memcpy(turn + N_PROMPT, cold.tokens, cold.n_tokens * sizeof *turn);
    size_t n_turn = N_PROMPT + cold.n_tokens - 1; /* the last sampled token was never fed */
    ask_edited(&g, turn, n_turn, 50, &got);
    expect_reuse(&got, MX_MODE_WARM_PREFIX, n_turn, MX_RESTORE_EXACT_PREFIX, "next turn");
    answer_free(&got);

    static const struct { size_t n, at; mx_restore_kind kind; } cuts[] = {
        {89, 0, MX_RESTORE_NONE},        {90, 90, MX_RESTORE_BOUNDARY},
        {200, 90, MX_RESTORE_BOUNDARY},  {256, 256, MX_RESTORE_BOUNDARY},
        {400, 256, MX_RESTORE_BOUNDARY}, {530, 512, MX_RESTORE_BOUNDARY},
        {650, 610, MX_RESTORE_BOUNDARY}, {705, 700, MX_RESTORE_EXACT_PREFIX},
    };
    for (int restart = 0; restart < 2; restart++) {
        for (size_t i = 0; i < MX_COUNT(cuts); i++) {
            if (restart) {
                rig_stop(&g);
                rig_start(&g);
            }
            /* The first edit left a boundary where it parted, if that was worth one. */
            size_t at = restart && cuts[i].n >= cuts[i].at + 32 ? cuts[i].n : cuts[i].at;
            ask_edited(&g, turn, cuts[i].n, 100 + i + 20 * (uint64_t)restart, &got);
            mx_cache_mode mode = at == 0 ? MX_MODE_COLD
                                 : restart       ? MX_MODE_SSD
                                                 : MX_MODE_WARM_PREFIX;
            char what[80];
            snprintf(what, sizeof what, "cut at %zu, restart %d", cuts[i].n, restart);
            /* Files do not say what a boundary was the end of. */
            mx_restore_kind kind = restart && at > 0 ? got.stats.restore : cuts[i].kind;
            expect_reuse(&got, mode, at, kind, what);
            if (cuts[i].n > at) {
                assert_string_equal(got.stats.miss_reason, "boundary_only");
                assert_int_equal(got.stats.diverged_at, cuts[i].n);
            }
            answer_free(&got);
        }
    }
    answer_free(&cold);
    rig_close(&g);
}

/* Half of the way in RAM, the rest on disk: pages of both tiers and a state of one. */
static void both_tiers_together(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 1, 0, true);
    int32_t prompt[MAX_PROMPT];
    random_prompt(prompt, MAX_PROMPT, 17);
    question q = {.prompt = prompt, .n_prompt = 1000, .max_tokens = 5, .seed = 1};
    answer cold, got;
    ask_cold(&g, &q, &cold);
    ask_and_wait(&g, &q, &got);
    answer_free(&got);
    rig_stop(&g);
    rig_start(&g);
    question head = {.prompt = prompt, .n_prompt = 400, .max_tokens = 1, .seed = 1};
    ask_and_wait(&g, &head, &got); /* brings the first boundary and its pages into RAM */
    expect_reuse(&got, MX_MODE_SSD, 256, MX_RESTORE_BOUNDARY, "head");
    answer_free(&got);
    ask_and_wait(&g, &q, &got);
    assert_int_equal(got.stats.cache_mode, MX_MODE_SSD);
    assert_int_equal(got.stats.n_ram, 400); /* where the head ended */
    assert_true(got.stats.n_ram + got.stats.n_ssd >= 768);
    assert_same(&cold, &got, "both tiers");
    answer_free(&got);
    answer_free(&cold);
    rig_close(&g);
}

/* RAM has a boundary where the prompt ends, but not the hidden vector that belongs to it: the last token
 * has to be computed, so what counts is the boundary before, and that is on disk. */
static void boundary_at_the_very_end(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 1, 0, true);
    int32_t prompt[MAX_PROMPT];
    random_prompt(prompt, MAX_PROMPT, 19);
    const uint32_t mark = 610;
    question q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 1, .seed = 1, .marks = &mark,
                  .n_marks = 1};
    answer cold, got;
    ask_and_wait(&g, &q, &got);
    answer_free(&got);
    rig_stop(&g);
    rig_start(&g);
    ask_edited(&g, prompt, mark, 5, &got); /* brings that boundary into RAM, and no other */
    expect_reuse(&got, MX_MODE_SSD, mark, MX_RESTORE_BOUNDARY, "edited");
    answer_free(&got);
    question end = {.prompt = prompt, .n_prompt = mark, .max_tokens = 5, .seed = 1};
    mx_lookup look;
    assert_int_equal(mx_engine_lookup(g.engine, NULL, prompt, mark, 60 * 1000000, &look), MX_OK);
    assert_int_equal(look.stats.n_ram + look.stats.n_ssd, 512);
    ask_cold(&g, &end, &cold);
    ask_and_wait(&g, &end, &got);
    expect_reuse(&got, MX_MODE_SSD, 512, MX_RESTORE_BOUNDARY, "its beginning");
    assert_same(&cold, &got, "its beginning");
    answer_free(&got);
    answer_free(&cold);
    rig_close(&g);
}

/* Without their state, pages are of no use, and nothing is taken from anywhere else. */
static void missing_states(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 1, 0, true);
    int32_t prompt[MAX_PROMPT];
    random_prompt(prompt, MAX_PROMPT, 23);
    question q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 5, .seed = 1};
    answer cold, got;
    ask_cold(&g, &q, &cold);
    ask_and_wait(&g, &q, &got);
    answer_free(&got);
    rig_stop(&g);
    char command[200];
    snprintf(command, sizeof command, "test -n \"$(find '%s' -name '*.state' -print -delete)\"",
             g.cache_dir);
    assert_int_equal(system(command), 0);
    rig_start(&g);
    ask_and_wait(&g, &q, &got);
    expect_reuse(&got, MX_MODE_COLD, 0, MX_RESTORE_NONE, "no states");
    assert_string_equal(got.stats.miss_reason, "boundary_only");
    assert_same(&cold, &got, "no states");
    answer_free(&got);
    answer_free(&cold);
    rig_close(&g);
}

/* A cancelled prompt keeps its last finished chunk, whatever that ended on. */
static void cancelled_prompt_is_resumed(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 1, 0, false);
    rig_stop(&g);
    g.cfg.prefill_chunk = 64;
    rig_start(&g);
    int32_t prompt[MAX_PROMPT];
    answer cold, got;
    bool was_partial = false;
    unsigned wait_us = 5000;
    for (uint64_t i = 0; i < 20 && !was_partial; i++) {
        random_prompt(prompt, MAX_PROMPT, 1000 + i);
        question q = {.prompt = prompt, .n_prompt = MAX_PROMPT, .max_tokens = 5, .seed = 2};
        asking a;
        ask(&g, &a, &q);
        usleep(wait_us);
        mx_request_cancel(a.request);
        await(&a, &got);
        bool was_cut = got.finish == MX_FINISH_CANCELLED;
        answer_free(&got);
        ask_and_wait(&g, &q, &got);
        was_partial = was_cut && got.stats.n_ram > 0 && got.stats.n_ram < MAX_PROMPT - 1;
        wait_us = was_cut ? wait_us * 2 : wait_us / 3;
        if (was_partial) {
            assert_int_equal(got.stats.n_ram % 64, 0);
            ask_cold(&g, &q, &cold);
            assert_same(&cold, &got, "after the cancellation");
            answer_free(&cold);
        }
        answer_free(&got);
    }
    assert_true(was_partial);
    rig_close(&g);
}

/* Fewer pages than the requests need: runs give way and come back, boundaries are evicted and fetched
 * from disk. */
static void short_of_pages(void **state)
{
    (void)state;
    enum { N = 5 };
    rig g;
    open_rig(&g, 2, 0, false);
    int32_t prompts[N][300];
    answer alone[N];
    for (size_t i = 0; i < N; i++) {
        random_prompt(prompts[i], 300, 40 + i / 2); /* pairs share their beginning */
        random_prompt(prompts[i] + 200, 100, 60 + i);
        question q = {.prompt = prompts[i], .n_prompt = 300, .max_tokens = 500, .seed = i};
        ask_cold(&g, &q, &alone[i]);
    }
    rig_stop(&g);
    const mx_kv_shape *shape = mx_model_kv_shape(g.model);
    size_t page_bytes = mx_kv_page_bytes(shape);
    size_t state_pages = (shape->state_bytes + page_bytes - 1) / page_bytes;
    g.cfg.kv_budget_bytes = (28 + 2 * N * state_pages) * page_bytes;
    g.cfg.cold_mode = MX_COLD_ON;
    for (int round = 0; round < 2; round++) {
        rig_start(&g);
        asking a[N];
        for (size_t i = 0; i < N; i++) {
            question q = {.prompt = prompts[i], .n_prompt = 300, .max_tokens = 500, .seed = i};
            ask(&g, &a[i], &q);
        }
        for (size_t i = 0; i < N; i++) {
            answer got;
            await(&a[i], &got);
            char what[64];
            snprintf(what, sizeof what, "round %d, request %zu", round, i);
            assert_same(&alone[i], &got, what);
            answer_free(&got);
        }
        mx_engine_stats s;
        RIG_WAIT_STATS(&g, &s, s.bank.evicted_entries > 0);
        assert_true(s.bank.evicted_entries > 0); /* otherwise this test shows nothing */
        rig_stop(&g);
    }
    for (size_t i = 0; i < N; i++) {
        answer_free(&alone[i]);
    }
    rig_close(&g);
}

/* Random histories of requests, edits and restarts: what is reused differs, the answer never. */
static void forks_and_edits(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 1, 0, true);
    rig_stop(&g);
    g.cfg.prefill_chunk = 100; /* ends of passes at odd places */
    rig_start(&g);
    uint64_t rng = 5;
    size_t n_reused = 0;
    int n_rounds = getenv("MTPLX_LONG") != NULL ? 400 : 24;
    for (int round = 0; round < n_rounds; round++) {
        int32_t prompt[700];
        random_prompt(prompt, 700, 7 + mx_tiny_random(&rng) % 2);
        static const size_t cuts[] = {5, 64, 65, 128, 200, 257, 300, 511, 600};
        size_t cut = cuts[mx_tiny_random(&rng) % MX_COUNT(cuts)];
        size_t n = cut + 1 + mx_tiny_random(&rng) % 90;
        random_prompt(prompt + cut, n - cut, 100 + mx_tiny_random(&rng) % 3);
        uint32_t mark = (uint32_t)(cut - 1);
        question q = {.prompt = prompt, .n_prompt = n, .max_tokens = 8, .seed = 1, .marks = &mark,
                      .n_marks = 1};
        answer cold, got;
        ask_cold(&g, &q, &cold);
        ask_and_wait(&g, &q, &got);
        char what[96];
        snprintf(what, sizeof what, "round %d: %zu tokens, cut %zu, ram %zu ssd %zu", round, n, cut,
                 got.stats.n_ram, got.stats.n_ssd);
        assert_int_equal(got.stats.n_ram + got.stats.n_ssd + got.stats.n_computed, n);
        assert_same(&cold, &got, what);
        n_reused += got.stats.n_ram + got.stats.n_ssd;
        answer_free(&cold);
        answer_free(&got);
        if (round % 8 == 7) {
            rig_stop(&g);
            rig_start(&g);
        }
    }
    assert_true(n_reused > 1000);
    rig_close(&g);
}

/* MTPLX_SESSION_BOUNDARY_TRUE_RESTORE=0: said in the response, and nothing that comes of it is kept. */
static void approximate_is_said_and_not_stored(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 1, 0, true);
    rig_stop(&g);
    g.cfg.bank.approximate_restore = true;
    rig_start(&g);
    int32_t prompt[MAX_PROMPT], other[MAX_PROMPT];
    random_prompt(prompt, MAX_PROMPT, 31);
    question q = {.prompt = prompt, .n_prompt = 200, .max_tokens = 1, .seed = 1};
    answer got, cold, again;
    ask_and_wait(&g, &q, &got);
    answer_free(&got);
    memcpy(other, prompt, sizeof other);
    random_prompt(other + 195, 100, 32); /* five tokens before the end of the stored prompt */
    question edit = {.prompt = other, .n_prompt = 295, .max_tokens = 5, .seed = 1};
    ask_and_wait(&g, &edit, &got);
    assert_true(got.stats.is_approximate);
    assert_int_equal(got.stats.restore, MX_RESTORE_NEAR_PREFIX);
    assert_int_equal(got.stats.n_ram, 195);
    answer_free(&got);
    rig_stop(&g);
    g.cfg.bank.approximate_restore = false;
    rig_start(&g); /* what is on disk now is exact */
    ask_cold(&g, &edit, &cold);
    ask_and_wait(&g, &edit, &again);
    assert_false(again.stats.is_approximate);
    assert_int_equal(again.stats.n_ssd, 0); /* no boundary at or before 195 was ever stored */
    assert_same(&cold, &again, "exact again");
    answer_free(&cold);
    answer_free(&again);
    rig_close(&g);
}

/* Two that share a beginning: the younger waits for a boundary that the older one leaves for it. */
static void a_follower_gets_its_boundary(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 1, 0, false);
    int32_t prompts[2][900];
    random_prompt(prompts[0], 900, 3);
    memcpy(prompts[1], prompts[0], sizeof prompts[0]);
    random_prompt(prompts[1] + 333, 300, 4);
    question q[2] = {{.prompt = prompts[0], .n_prompt = 900, .max_tokens = 3, .seed = 1},
                     {.prompt = prompts[1], .n_prompt = 633, .max_tokens = 3, .seed = 1}};
    answer cold[2], got[2];
    asking a[2];
    ask_cold(&g, &q[0], &cold[0]);
    ask_cold(&g, &q[1], &cold[1]);
    ask(&g, &a[0], &q[0]);
    ask(&g, &a[1], &q[1]);
    await(&a[0], &got[0]);
    await(&a[1], &got[1]);
    assert_same(&cold[0], &got[0], "leader");
    assert_same(&cold[1], &got[1], "follower");
    print_message("the follower reused %zu tokens\n", got[1].stats.n_ram);
    assert_true(got[1].stats.n_ram == 333 || got[1].stats.n_ram == 256); /* 256: it came late */
    for (int i = 0; i < 2; i++) {
        answer_free(&cold[i]);
        answer_free(&got[i]);
    }
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_boundary_gives_the_cold_answer),
        cmocka_unit_test(both_tiers_together),
        cmocka_unit_test(boundary_at_the_very_end),
        cmocka_unit_test(missing_states),
        cmocka_unit_test(cancelled_prompt_is_resumed),
        cmocka_unit_test(short_of_pages),
        cmocka_unit_test(forks_and_edits),
        cmocka_unit_test(approximate_is_said_and_not_stored),
        cmocka_unit_test(a_follower_gets_its_boundary),
    };
    return cmocka_run_group_tests_name("hybrid exactness", tests, NULL, NULL);
}
