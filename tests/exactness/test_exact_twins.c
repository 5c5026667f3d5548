/* SPDX-License-Identifier: MIT
 *
 * Prompts that are read at the same time and have a beginning in common: it is computed once, whoever
 * of them ends or is cancelled, and the bits are those of a request alone.
 */
#include "engine_rig.h"

enum { N_PROMPT = 1500, N_ANSWER = 12 };

static mx_tiny_spec model_spec(void)
{
    mx_tiny_spec s = rig_spec(2048);
    s.type = MX_Q8_0;
    return s;
}

static void open_engine(rig *g, mx_cold_mode cold)
{
    mx_tiny_spec spec = model_spec();
    rig_open(g, &spec, 2, 0);
    g->cfg.prefill_chunk = 64; /* many passes: all of them are under way together */
    g->cfg.cold_mode = cold;
    rig_start(g);
}

/* Requests that differ in nothing but the seed of their answer. */
static void identical_prompts_are_computed_once(void **state)
{
    (void)state;
    enum { N = 4 };
    rig g;
    open_engine(&g, MX_COLD_OFF);
    int32_t prompt[N_PROMPT];
    random_prompt(prompt, N_PROMPT, 3);
    answer alone[N], got;
    asking a[N];
    question q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_ANSWER};
    for (size_t i = 0; i < N; i++) {
        q.seed = i;
        ask_cold(&g, &q, &alone[i]);
    }
    for (size_t i = 0; i < N; i++) {
        q.seed = i;
        ask(&g, &a[i], &q);
    }
    size_t n_computed = 0;
    for (size_t i = 0; i < N; i++) {
        await(&a[i], &got);
        assert_same(&alone[i], &got, "one of many");
        n_computed += got.stats.n_computed;
        assert_int_equal(got.stats.n_computed, i == 0 ? N_PROMPT : 0);
        assert_int_equal(got.stats.cache_mode, i == 0 ? MX_MODE_COLD : MX_MODE_WARM_PREFIX);
        answer_free(&got);
        answer_free(&alone[i]);
    }
    assert_int_equal(n_computed, N_PROMPT);
    rig_close(&g);
}

/* The first `cut` tokens of src, then others. */
static void branch(int32_t *dst, const int32_t *src, size_t cut, uint64_t seed)
{
    random_prompt(dst, N_PROMPT, seed);
    memcpy(dst, src, cut * sizeof *dst);
    dst[cut] = src[cut] ^ 1;
}

static void common_beginnings_are_computed_once(void **state)
{
    (void)state;
    enum { N = 4 };
    static const size_t n_shared[N] = {0, 700, 701, 1000};
    rig g;
    open_engine(&g, MX_COLD_OFF);
    int32_t prompts[N][N_PROMPT];
    answer alone[N], got;
    asking a[N];
    random_prompt(prompts[0], N_PROMPT, 5);
    branch(prompts[1], prompts[0], n_shared[1], 6);
    branch(prompts[2], prompts[0], n_shared[2], 7);
    branch(prompts[3], prompts[1], n_shared[3], 8); /* waits for one that itself waits */
    for (size_t i = 0; i < N; i++) {
        question q = {.prompt = prompts[i], .n_prompt = N_PROMPT, .max_tokens = N_ANSWER, .seed = i};
        ask_cold(&g, &q, &alone[i]);
    }
    for (size_t i = 0; i < N; i++) {
        question q = {.prompt = prompts[i], .n_prompt = N_PROMPT, .max_tokens = N_ANSWER, .seed = i};
        ask(&g, &a[i], &q);
    }
    for (size_t i = 0; i < N; i++) {
        await(&a[i], &got);
        assert_same(&alone[i], &got, "one of a family");
        assert_int_equal(got.stats.n_computed, N_PROMPT - n_shared[i]);
        answer_free(&got);
        answer_free(&alone[i]);
    }
    rig_close(&g);
}

/* The one that everybody waits for goes away: the next one takes over where it stopped. */
static void who_leads_may_leave(void **state)
{
    (void)state;
    enum { N = 3 };
    rig g;
    open_engine(&g, MX_COLD_OFF);
    int32_t prompt[N_PROMPT];
    bool was_partial = false;
    unsigned wait_us = 3000; /* found by trying, as machines differ */
    for (uint64_t round = 0; round < 20 && !was_partial; round++) {
        random_prompt(prompt, N_PROMPT, 100 + round);
        question q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_ANSWER, .seed = 9};
        asking a[N];
        answer got[N], alone;
        for (size_t i = 0; i < N; i++) {
            ask(&g, &a[i], &q);
        }
        usleep(wait_us);
        mx_request_cancel(a[0].request);
        for (size_t i = 0; i < N; i++) {
            await(&a[i], &got[i]);
        }
        ask_cold(&g, &q, &alone);
        bool was_cut = got[0].finish == MX_FINISH_CANCELLED && !got[0].stats.has_started;
        size_t n_kept = got[1].stats.n_ram;
        for (size_t i = 1; i < N; i++) {
            assert_same(&alone, &got[i], "after its leader had left");
        }
        if (was_cut) {
            assert_int_equal(n_kept % MX_PAGE_TOKENS, 0);
            assert_int_equal(got[1].stats.n_computed, N_PROMPT - n_kept);
            assert_int_equal(got[2].stats.n_computed, 0);
            was_partial = n_kept > 0;
        }
        wait_us = was_cut ? wait_us * 2 : wait_us / 3;
        for (size_t i = 0; i < N; i++) {
            answer_free(&got[i]);
        }
        answer_free(&alone);
    }
    assert_true(was_partial); /* otherwise this test shows nothing */
    rig_close(&g);
}

/* Nobody waits for what will not be left behind, or takes what it does not want to. */
static void policies_are_kept(void **state)
{
    (void)state;
    rig g;
    open_engine(&g, MX_COLD_OFF);
    int32_t prompt[N_PROMPT];
    random_prompt(prompt, N_PROMPT, 17);
    question q = {.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_ANSWER, .seed = 1};
    answer alone, got;
    ask_cold(&g, &q, &alone);
    static const mx_cache_policy first[] = {MX_CACHE_NO_STORE, MX_CACHE_OFF, MX_CACHE_USE};
    for (size_t i = 0; i < MX_COUNT(first); i++) {
        asking a[2];
        q.cache = first[i];
        ask(&g, &a[0], &q);
        q.cache = first[i] == MX_CACHE_USE ? MX_CACHE_OFF : MX_CACHE_NO_STORE;
        ask(&g, &a[1], &q);
        for (size_t k = 0; k < 2; k++) {
            await(&a[k], &got);
            assert_same(&alone, &got, "policies");
            assert_int_equal(got.stats.n_computed, N_PROMPT);
            answer_free(&got);
        }
    }
    answer_free(&alone);
    rig_close(&g);
}

/* After a restart: part of the prompt is in the folder, the rest is computed once. */
static void twins_after_a_restart(void **state)
{
    (void)state;
    rig g;
    open_engine(&g, MX_COLD_ON);
    int32_t prompt[N_PROMPT];
    random_prompt(prompt, N_PROMPT, 23);
    question q = {.prompt = prompt, .n_prompt = 640, .max_tokens = 0};
    answer alone, got;
    ask_and_wait(&g, &q, &got);
    answer_free(&got);
    q = (question){.prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = N_ANSWER, .seed = 1};
    ask_cold(&g, &q, &alone);
    /* The second one's files are read before, while or after the first one computes the rest. Another rest
     * each time, because it is stored, too. */
    for (int round = 0; round < 8; round++) {
        random_prompt(prompt + 640, N_PROMPT - 640, 24 + (uint64_t)round);
        answer_free(&alone);
        ask_cold(&g, &q, &alone);
        rig_stop(&g);
        rig_start(&g);
        asking a[2];
        ask(&g, &a[0], &q);
        ask(&g, &a[1], &q);
        size_t n_computed = 0;
        for (size_t i = 0; i < 2; i++) {
            await(&a[i], &got);
            assert_same(&alone, &got, "after a restart");
            n_computed += got.stats.n_computed;
            answer_free(&got);
        }
        assert_int_equal(n_computed, N_PROMPT - 640);
    }
    answer_free(&alone);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identical_prompts_are_computed_once),
        cmocka_unit_test(common_beginnings_are_computed_once),
        cmocka_unit_test(who_leads_may_leave),
        cmocka_unit_test(policies_are_kept),
        cmocka_unit_test(twins_after_a_restart),
    };
    return cmocka_run_group_tests_name("twins", tests, NULL, NULL);
}
