/* SPDX-License-Identifier: MIT
 *
 * Idle work: what it computes is what a request would have computed, bit for bit; whoever comes
 * goes first; and it takes nobody's place.
 */
#include "../exactness/engine_rig.h"

#include "hybrid_model.h"

static void submit_idle(rig *g, const int32_t *prompt, size_t n)
{
    mx_request *r;
    mx_errbuf eb = {{0}};
    mx_request_params p = {.prompt = prompt, .n_prompt = n, .is_idle = true,
                           .sampling = mx_sampling_default(), .id = "idle"};
    rig_must(mx_request_create(&r, g->engine, &p, &eb), &eb, "create");
    rig_must(mx_engine_submit(g->engine, r, &eb), &eb, "submit");
    mx_request_unref(r);
}

static mx_engine_stats stats_of(rig *g)
{
    mx_engine_stats s;
    mx_engine_get_stats(g->engine, &s);
    return s;
}

/* Waits until n idle requests are settled, one way or the other. */
static mx_engine_stats wait_settled(rig *g, uint64_t n)
{
    uint64_t until = mx_now_us() + 300 * 1000000ull;
    mx_engine_stats s = stats_of(g);
    while (s.n_idle_done + s.n_idle_dropped < n) {
        assert_true(mx_now_us() < until);
        usleep(1000);
        s = stats_of(g);
    }
    return s;
}

/* The next turn finds all of it, at every length around a page border, and says the same. */
static void next_turn_is_exact(rig *opened)
{
    rig g = *opened;
    rig_start(&g);
    int32_t prompt[400];
    static const size_t lengths[] = {300, 191, 192, 193, 64, 33};
    for (size_t i = 0; i < MX_COUNT(lengths); i++) {
        size_t n = lengths[i];
        random_prompt(prompt, n + 20, 100 + i);
        question q = {.prompt = prompt, .n_prompt = n + 20, .max_tokens = 12, .seed = i};
        answer want, got;
        ask_cold(&g, &q, &want);
        submit_idle(&g, prompt, n);
        mx_engine_stats s = wait_settled(&g, i + 1);
        assert_int_equal(s.n_idle_done, i + 1);
        assert_int_equal(s.n_running, 0);
        ask_and_wait(&g, &q, &got);
        assert_int_equal(got.stats.n_ram, n);
        assert_same(&want, &got, "after idle work");
        answer_free(&want);
        answer_free(&got);
    }
    mx_engine_stats s = stats_of(&g);
    assert_int_equal(s.n_requests, 2 * MX_COUNT(lengths)); /* nobody asked for it: not counted */
    assert_int_equal(s.n_idle_tokens, 300 + 191 + 192 + 193 + 64 + 33);
    /* What is there already is not computed again. */
    submit_idle(&g, prompt, 33);
    s = wait_settled(&g, MX_COUNT(lengths) + 1);
    assert_in_range(s.n_idle_tokens, 973, 974);
    rig_close(&g);
}

static void attention_is_exact(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(512);
    rig g;
    rig_open(&g, &spec, 2, 0);
    next_turn_is_exact(&g);
}

/* Its end is a boundary, with the state. */
static void recurrence_is_exact(void **state)
{
    (void)state;
    mx_tiny_spec spec = hybrid_spec();
    rig g;
    rig_open(&g, &spec, 2, 0);
    next_turn_is_exact(&g);
}

enum { LONG = 8000, ATTEMPTS = 12 };

/* Submits idle work for the first n tokens, and returns some time later: a millisecond, then two, four, ...
 * so that one of the attempts meets it half-way on a machine of any speed. */
static void begin_idle(rig *g, const int32_t *prompt, size_t n, uint64_t attempt)
{
    submit_idle(g, prompt, n);
    usleep(1000u << attempt);
}

/* A request that comes meanwhile goes first; the idle one goes on behind it, from where it was. */
static void gives_way(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(8192);
    rig g;
    rig_open(&g, &spec, 1, 3000);
    rig_start(&g);
    int32_t *prompt = mx_alloc(LONG * sizeof *prompt), other[40];
    mx_engine_stats s = {0};
    for (uint64_t i = 0; i < ATTEMPTS && s.n_idle_gave_way == 0; i++) {
        random_prompt(prompt, LONG, 500 + i);
        random_prompt(other, 40, 600 + i);
        question q = {.prompt = prompt, .n_prompt = LONG, .max_tokens = 4, .seed = 3};
        question small = {.prompt = other, .n_prompt = 40, .max_tokens = 3, .seed = 4};
        answer want, got;
        ask_cold(&g, &q, &want);
        uint64_t before = stats_of(&g).n_idle_tokens;
        begin_idle(&g, prompt, LONG - 1, i);
        ask_and_wait(&g, &small, &got);
        answer_free(&got);
        s = wait_settled(&g, i + 1);
        assert_int_equal(s.n_idle_done, i + 1);
        /* A page was begun twice at most. */
        assert_in_range(s.n_idle_tokens - before, LONG - 1, LONG - 1 + 63);
        ask_and_wait(&g, &q, &got);
        assert_int_equal(got.stats.n_ram, LONG - 1);
        assert_same(&want, &got, "after idle work that gave way");
        answer_free(&want);
        answer_free(&got);
    }
    assert_true(s.n_idle_gave_way > 0);
    mx_free(prompt);
    rig_close(&g);
}

/* Its own next turn comes before it has ended: what was finished is used. */
static void next_turn_overtakes(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(8192);
    rig g;
    rig_open(&g, &spec, 1, 3000);
    rig_start(&g);
    int32_t *prompt = mx_alloc(LONG * sizeof *prompt);
    bool was_overtaken = false;
    for (uint64_t i = 0; i < ATTEMPTS && !was_overtaken; i++) {
        random_prompt(prompt, LONG, 700 + i);
        question q = {.prompt = prompt, .n_prompt = LONG, .max_tokens = 4, .seed = 3};
        answer want, got;
        ask_cold(&g, &q, &want);
        begin_idle(&g, prompt, LONG - 20, i);
        ask_and_wait(&g, &q, &got);
        assert_in_range(got.stats.n_ram, 0, LONG - 20);
        was_overtaken = got.stats.n_ram >= 64 && got.stats.n_ram < LONG - 84;
        assert_same(&want, &got, "the next turn during idle work");
        assert_int_equal(wait_settled(&g, i + 1).n_idle_done, i + 1); /* everything was there */
        answer_free(&want);
        answer_free(&got);
    }
    assert_true(was_overtaken);
    mx_free(prompt);
    rig_close(&g);
}

/* With all pages taken by what was used a moment ago, there is no room; by what was used long ago
 * (nothing else distinguishes them), there is. */
static void takes_nobodys_place(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(2048);
    rig g;
    rig_open(&g, &spec, 1, 30);
    rig_start(&g);
    int32_t prompt[1500];
    answer got;
    for (uint64_t i = 0; i < 4; i++) { /* 4 x 7 pages, used twice */
        random_prompt(prompt, 440, 20 + i);
        question q = {.prompt = prompt, .n_prompt = 440, .max_tokens = 1};
        ask_and_wait(&g, &q, &got);
        answer_free(&got);
        ask_and_wait(&g, &q, &got);
        answer_free(&got);
    }
    mx_engine_stats before = stats_of(&g);
    random_prompt(prompt, 400, 99);
    submit_idle(&g, prompt, 400);
    mx_engine_stats s = wait_settled(&g, 1);
    assert_int_equal(s.n_idle_dropped, 1);
    assert_int_equal(s.n_idle_tokens, 0);
    assert_int_equal(s.bank.evicted_pages, before.bank.evicted_pages);
    for (uint64_t i = 0; i < 4; i++) {
        random_prompt(prompt, 440, 20 + i);
        question q = {.prompt = prompt, .n_prompt = 440, .max_tokens = 1};
        ask_and_wait(&g, &q, &got);
        assert_true(got.stats.n_ram >= 439);
        answer_free(&got);
    }
    /* One that could never fit. */
    random_prompt(prompt, 1500, 98);
    submit_idle(&g, prompt, 1500);
    assert_int_equal(wait_settled(&g, 2).n_idle_dropped, 2);
    rig_close(&g);
}

/* Of many the oldest go, and the engine's end waits for none. */
static void line_is_bounded(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(8192);
    rig g;
    rig_open(&g, &spec, 1, 2000);
    rig_start(&g);
    enum { N = 8000 };
    int32_t *prompt = mx_alloc(N * sizeof *prompt);
    for (uint64_t i = 0; i < 30; i++) {
        random_prompt(prompt, N, 40 + i);
        submit_idle(&g, prompt, N);
    }
    uint64_t begin = mx_now_us();
    mx_engine_stop(g.engine, 60 * 1000000, 0);
    assert_true(mx_now_us() - begin < 10 * 1000000);
    mx_engine_stats s = stats_of(&g);
    assert_int_equal(s.n_idle_done + s.n_idle_dropped, 30);
    assert_true(s.n_idle_dropped >= 20);
    mx_engine_destroy(g.engine);
    g.engine = NULL;
    mx_free(prompt);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_exact),  cmocka_unit_test(recurrence_is_exact),
        cmocka_unit_test(gives_way),
        cmocka_unit_test(next_turn_overtakes), cmocka_unit_test(takes_nobodys_place),
        cmocka_unit_test(line_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
