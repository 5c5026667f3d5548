/* SPDX-License-Identifier: MIT
 *
 * Traces against a budget: who is still there when a conversation goes on.
 */
#include "kv/kv_help.h"

#include "bank/bank.h"
#include "base/mem.h"

enum {
    AGENT_PROMPT = 6000,
    AGENT_END = AGENT_PROMPT + 87, /* an answer, and a tail page that is not full */
    N_SHORT = 200,
    BUDGET_TOKENS = 7168,
    CHUNK = 512,
    MAX_TOKENS = 8192
};

static const mx_hash256 root = {{1}};

typedef struct trace {
    mx_kv_pool *pool;
    mx_bank *bank;
    int64_t live;
    int32_t agent[MAX_TOKENS];
    uint64_t rng;
    size_t n_computed; /* by short requests */
} trace;

/* Tokens of a request that shares its first n_stem tokens with all others of the same stem. */
static void fill(int32_t *tokens, size_t n, size_t n_stem, int32_t stem, int32_t own)
{
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)i % 1000 + 1000 * (i < n_stem ? stem : own);
    }
}

/* The budget counts pages and what is kept about them: 1 % more than the pages alone. */
static void open_trace(trace *t, size_t state_bytes)
{
    *t = (trace){.live = mx_mem_live(), .rng = 2026};
    mx_kv_shape shape = {4, 4, 16, MX_KV_F16, state_bytes, 0, 0}; /* 64 KiB a page */
    size_t page_bytes = 65536;
    assert_int_equal(mx_kv_pool_create(&t->pool, &shape, 2 * MAX_TOKENS / MX_PAGE_TOKENS, NULL),
                     MX_OK);
    assert_int_equal(mx_kv_pool_page_bytes(t->pool), page_bytes);
    mx_bank_config cfg = {.max_bytes = BUDGET_TOKENS / MX_PAGE_TOKENS * page_bytes * 101 / 100,
                          .near_prefix_gap = 8,
                          .lazy_snapshot = true,
                          .us_per_token = 1000};
    assert_int_equal(mx_bank_create(&t->bank, t->pool, &cfg, NULL), MX_OK);
    fill(t->agent, MAX_TOKENS, 0, 0, 1);
}

static void close_trace(trace *t)
{
    mx_bank_check(t->bank);
    mx_bank_destroy(t->bank);
    mx_kv_pool_destroy(t->pool);
    assert_int_equal(mx_mem_live(), t->live);
}

/* What the engine does with a request: restore, compute in chunks, an entry behind the prompt and
 * one behind the answer. Returns how many tokens were restored. */
static size_t run(trace *t, const int32_t *tokens, size_t n_prompt, size_t n_answer)
{
    mx_seq s;
    mx_bank_match m;
    mx_seq_init(&s, t->pool, &root);
    assert_int_equal(mx_bank_restore_cache(t->bank, &s, tokens, n_prompt, n_prompt - 1, &m),
                     MX_OK);
    while (s.n_tokens < n_prompt) {
        size_t n = mx_min_size(n_prompt, s.n_tokens + CHUNK);
        assert_int_equal(help_feed(&s, tokens, n), MX_OK);
        assert_int_equal(mx_bank_insert_pages(t->bank, &s), MX_OK);
    }
    assert_int_equal(mx_bank_snapshot_cache(t->bank, &s, MX_ENTRY_PROMPT, NULL, NULL), MX_OK);
    assert_int_equal(help_feed(&s, tokens, n_prompt + n_answer), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(t->bank, &s, MX_ENTRY_TURN, NULL, NULL), MX_OK);
    mx_seq_free(&s);
    mx_bank_trim(t->bank);
    return m.n_tokens;
}

static void run_short(trace *t, int32_t which, size_t n_stem)
{
    int32_t tokens[MAX_TOKENS];
    size_t n_own = 20 + help_rand(&t->rng, 180), n_answer = 5 + help_rand(&t->rng, 60);
    fill(tokens, MAX_TOKENS, n_stem, 2, 10 + which);
    t->n_computed += n_stem + n_own - run(t, tokens, n_stem + n_own, n_answer);
}

static mx_bank_stats stats(const trace *t)
{
    mx_bank_stats st;
    mx_bank_get_stats(t->bank, &st);
    return st;
}

/* 200 short requests, 30,000 tokens in all, none of which comes back, pass an agent by. */
static void test_agent_outlives_short_requests(void **state)
{
    (void)state;
    trace t;
    open_trace(&t, 0);
    assert_int_equal(run(&t, t.agent, AGENT_PROMPT, AGENT_END - AGENT_PROMPT), 0);
    for (int32_t i = 0; i < N_SHORT; i++) {
        run_short(&t, i, 0);
    }
    assert_true(t.n_computed > 2 * BUDGET_TOKENS); /* nobody has room for all of them */
    assert_true(stats(&t).evicted_pages > N_SHORT);
    assert_int_equal(run(&t, t.agent, AGENT_END + 150, 50), AGENT_END);
    close_trace(&t);
}

/* The same with requests that have a beginning in common: they do not hold it against the agent, nor
 * it against them. When all of them have to go, the beginning goes last. */
static void test_stem_outlives_its_branches(void **state)
{
    (void)state;
    enum { N_STEM = 320 };
    trace t;
    open_trace(&t, 0);
    assert_int_equal(run(&t, t.agent, AGENT_PROMPT, AGENT_END - AGENT_PROMPT), 0);
    for (int32_t i = 0; i < N_SHORT; i++) {
        run_short(&t, i, N_STEM);
    }
    assert_true(t.n_computed < N_STEM + N_SHORT * 200); /* the stem was computed once */
    assert_int_equal(run(&t, t.agent, AGENT_END + 150, 50), AGENT_END);
    close_trace(&t);

    open_trace(&t, 0);
    int32_t probe[MAX_TOKENS];
    fill(probe, MAX_TOKENS, N_STEM, 2, 9);
    for (int32_t i = 0; i < 40; i++) {
        run_short(&t, i, N_STEM);
    }
    size_t max = mx_kv_pool_max(t.pool), n_stem_pages = N_STEM / MX_PAGE_TOKENS;
    assert_true(stats(&t).n_pages > 10 * n_stem_pages);
    (void)mx_bank_evict(t.bank, max - n_stem_pages);
    assert_int_equal(stats(&t).n_pages, n_stem_pages);
    mx_bank_match m;
    mx_bank_lookup(t.bank, &root, probe, N_STEM + 50, &m);
    assert_int_equal(m.n_tokens, N_STEM);
    close_trace(&t);
}

/* Of two of equal size the one that was used last stays. */
static void test_equals_go_by_age(void **state)
{
    (void)state;
    trace t;
    open_trace(&t, 0);
    int32_t other[MAX_TOKENS];
    fill(other, MAX_TOKENS, 0, 0, 3);
    assert_int_equal(run(&t, t.agent, AGENT_PROMPT, AGENT_END - AGENT_PROMPT), 0);
    assert_int_equal(run(&t, other, AGENT_PROMPT, AGENT_END - AGENT_PROMPT), 0);
    mx_bank_match m;
    mx_bank_lookup(t.bank, &root, other, AGENT_END, &m);
    assert_int_equal(m.n_tokens, AGENT_END);
    mx_bank_lookup(t.bank, &root, t.agent, AGENT_END, &m);
    assert_true(m.n_tokens < BUDGET_TOKENS - AGENT_END);
    close_trace(&t);
}

/* Refused whole, with the name of the knob; nobody loses a page for it. */
static void test_too_large_is_refused(void **state)
{
    (void)state;
    trace t;
    open_trace(&t, 0);
    mx_seq s;
    mx_errbuf eb = {{0}};
    assert_int_equal(run(&t, t.agent, 640, 10), 0);
    int32_t other[MAX_TOKENS];
    fill(other, MAX_TOKENS, 0, 0, 3);
    mx_seq_init(&s, t.pool, &root);
    assert_int_equal(help_feed(&s, other, BUDGET_TOKENS + 100), MX_OK);
    assert_int_equal(mx_bank_snapshot_cache(t.bank, &s, MX_ENTRY_TURN, NULL, &eb), MX_E_FULL);
    assert_non_null(strstr(eb.text, "--kv-budget"));
    mx_seq_free(&s);
    assert_int_equal(stats(&t).refused_entries, 1);
    assert_int_equal(stats(&t).evicted_pages, 0);
    close_trace(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agent_outlives_short_requests),
        cmocka_unit_test(test_stem_outlives_its_branches),
        cmocka_unit_test(test_equals_go_by_age),
        cmocka_unit_test(test_too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
