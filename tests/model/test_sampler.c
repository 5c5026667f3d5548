/* SPDX-License-Identifier: MIT
 *
 * The sampler against small cases worked out by hand, against a slow second implementation of
 * docs/sampling.md (full sort, libm), against expected frequencies, and against golden values that
 * every machine must reproduce.
 */
#include "base/mem.h"
#include "model/sampler.h"
#include "model/sampler_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static mx_sampler *make(uint32_t n_vocab, const mx_sampling *set)
{
    mx_sampler *s = NULL;
    mx_errbuf eb = {{0}};
    mx_err e = mx_sampler_create(&s, n_vocab, set, &eb);
    if (e != MX_OK) {
        print_error("sampler refused: %s\n", eb.text);
    }
    assert_int_equal(e, MX_OK);
    return s;
}

/* Samples once with fresh logits. */
static int32_t once(mx_sampler *s, const float *logits, uint32_t n, uint64_t pos)
{
    float copy[4096];
    assert_true(n <= MX_COUNT(copy));
    memcpy(copy, logits, n * sizeof *logits);
    mx_sample out;
    mx_sampler_sample(s, copy, pos, &out);
    return out.token;
}

static int32_t choose(const mx_sampling *set, const float *logits, uint32_t n, uint64_t pos)
{
    mx_sampler *s = make(n, set);
    int32_t token = once(s, logits, n, pos);
    mx_sampler_destroy(s);
    return token;
}

static void math_is_accurate(void **state)
{
    (void)state;
    uint64_t rng = 7;
    for (int i = 0; i < 200000; i++) {
        double x = ((double)next_random(&rng) / 0x1p31 - 0.5) * (i % 2 ? 1400.0 : 4.0);
        double want = exp(x), got = mx_sampler_exp(x);
        if (fabs(got - want) > 1e-15 * want) {
            fail_msg("exp(%a): expected %a, got %a", x, want, got);
        }
        x = fabs(x) * (i % 3 ? 1e3 : 1e-9) + 1e-300;
        want = log(x), got = mx_sampler_log(x);
        if (fabs(got - want) > 1e-15 * (1 + fabs(want))) {
            fail_msg("log(%a): expected %a, got %a", x, want, got);
        }
    }
    assert_true(mx_sampler_exp(0.0) == 1.0);
    assert_true(mx_sampler_exp(-INFINITY) == 0.0);
    assert_true(mx_sampler_exp((double)NAN) == 0.0);
    assert_true(mx_sampler_log(1.0) == 0.0);
}

static void uniform_is_uniform(void **state)
{
    (void)state;
    /* Neighbouring seeds and neighbouring positions must look independent: mean, and a 16 x 16
     * table of pairs with a chi-square far below its 1e-6 quantile (255 degrees: 374). */
    for (int by_seed = 0; by_seed < 2; by_seed++) {
        unsigned pairs[256] = {0};
        double sum = 0;
        enum { N = 65536 };
        double last = 0.5;
        for (uint64_t i = 0; i < N; i++) {
            double u = by_seed ? mx_sampler_uniform(i, 5) : mx_sampler_uniform(5, i);
            assert_true(u >= 0.0 && u < 1.0);
            pairs[(int)(last * 16) * 16 + (int)(u * 16)]++;
            sum += u;
            last = u;
        }
        double chi = 0, want = N / 256.0;
        for (int i = 0; i < 256; i++) {
            chi += (pairs[i] - want) * (pairs[i] - want) / want;
        }
        if (fabs(sum / N - 0.5) > 0.006 || chi > 374) {
            fail_msg("by %s: mean %g (0.5), chi-square %g (< 374)", by_seed ? "seed" : "position",
                     sum / N, chi);
        }
    }
}

static void greedy_takes_smallest_id_among_equals(void **state)
{
    (void)state;
    float l[6] = {-1, 3, 2, 3, 3, -INFINITY};
    mx_sampling ways[3] = {mx_sampling_default(), mx_sampling_default(), mx_sampling_default()};
    ways[0].temperature = 0;
    ways[1].top_k = 1;
    ways[2].top_p = 0;
    for (int w = 0; w < 3; w++) {
        for (uint64_t pos = 0; pos < 50; pos++) {
            assert_int_equal(choose(&ways[w], l, 6, pos), 1);
        }
    }
    /* A NaN is never chosen. */
    float with_nan[3] = {NAN, -5, NAN};
    assert_int_equal(choose(&ways[0], with_nan, 3, 0), 1);
    mx_sampling plain = mx_sampling_default();
    assert_int_equal(choose(&plain, with_nan, 3, 0), 1);
}

static void bias_and_bans(void **state)
{
    (void)state;
    float l[4] = {1, 4, 2, 3};
    mx_logit_bias bias[] = {{1, -100}, {2, 1.5f}};
    mx_sampling set = mx_sampling_default();
    set.temperature = 0;
    set.bias = bias;
    set.n_bias = 2;
    assert_int_equal(choose(&set, l, 4, 0), 2);

    mx_logit_bias all[] = {{0, -100}, {1, -100}, {2, -100}, {3, -1000}};
    set.bias = all;
    set.n_bias = 4;
    assert_int_equal(choose(&set, l, 4, 0), 1); /* greedy, everything banned */
    set.temperature = 1;
    assert_int_equal(choose(&set, l, 4, 9), 1);
    set.top_p = 0.5f;
    set.top_k = 2;
    assert_int_equal(choose(&set, l, 4, 9), 1);
    float none[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    set.n_bias = 0;
    assert_int_equal(choose(&set, none, 4, 9), 0);
    set.top_k = 0;
    set.top_p = 1;
    assert_int_equal(choose(&set, none, 4, 9), 0);
    /* One token left: it comes, whatever the draw. */
    float one[4] = {-INFINITY, -INFINITY, -50, -INFINITY};
    for (uint64_t pos = 0; pos < 100; pos++) {
        assert_int_equal(choose(&set, one, 4, pos), 2);
    }
}

static void penalties(void **state)
{
    (void)state;
    mx_sampling set = mx_sampling_default();
    set.temperature = 0;
    set.repetition_penalty = 2;
    set.penalty_window = 2;
    mx_sampler *s = make(4, &set);
    float l[4] = {3, 2, 1, -1};
    assert_int_equal(once(s, l, 4, 0), 0);
    mx_sampler_accept(s, 0, false);
    mx_sampler_accept(s, 0, false); /* twice within the window: penalised once, 3 -> 1.5 */
    assert_int_equal(once(s, l, 4, 0), 1);
    float close[4] = {3, 1.4f, 1, -1};
    assert_int_equal(once(s, close, 4, 0), 0);
    mx_sampler_accept(s, 1, true);
    mx_sampler_accept(s, 1, true); /* 0 has left the window */
    assert_int_equal(once(s, l, 4, 0), 0);
    mx_sampler_destroy(s);

    set.penalty_window = 0; /* the whole context */
    s = make(4, &set);
    for (int i = 0; i < 5000; i++) {
        mx_sampler_accept(s, i % 2, false);
    }
    assert_int_equal(once(s, l, 4, 0), 0); /* 1.5, 1, 1, -1 */
    float negative[4] = {-1, -1.5f, -5, -5};
    assert_int_equal(once(s, negative, 4, 0), 0); /* -2, -3 */
    mx_sampler_destroy(s);

    set = mx_sampling_default();
    set.temperature = 0;
    set.frequency_penalty = 1;
    set.presence_penalty = 0.5f;
    s = make(4, &set);
    for (int i = 0; i < 9; i++) {
        mx_sampler_accept(s, 0, false); /* the prompt does not count */
    }
    assert_int_equal(once(s, l, 4, 0), 0);
    mx_sampler_accept(s, 0, true);
    assert_int_equal(once(s, l, 4, 0), 1); /* 3 - 1 - 0.5 = 1.5 < 2 */
    mx_sampler_accept(s, 1, true);
    mx_sampler_accept(s, 0, true);
    float m[4] = {3, 2, 0.4f, -1};
    assert_int_equal(once(s, m, 4, 0), 0); /* 0.5, 0.5, 0.4 */
    mx_sampler_destroy(s);
}

static void settings_are_checked(void **state)
{
    (void)state;
    mx_logit_bias outside = {10, 1}, nan_bias = {1, NAN};
    struct {
        mx_sampling set;
        const char *names;
    } bad[] = {
        {mx_sampling_default(), "temperature"}, {mx_sampling_default(), "top_p"},
        {mx_sampling_default(), "min_p"},       {mx_sampling_default(), "repetition_penalty"},
        {mx_sampling_default(), "presence"},    {mx_sampling_default(), "top_logprobs"},
        {mx_sampling_default(), "token 10"},    {mx_sampling_default(), "token 1"},
        {mx_sampling_default(), "window"},
    };
    bad[0].set.temperature = NAN;
    bad[1].set.top_p = 1.01f;
    bad[2].set.min_p = -0.1f;
    bad[3].set.repetition_penalty = 0;
    bad[4].set.presence_penalty = INFINITY;
    bad[5].set.n_top_logprobs = 21;
    bad[6].set.bias = &outside;
    bad[6].set.n_bias = 1;
    bad[7].set.bias = &nan_bias;
    bad[7].set.n_bias = 1;
    bad[8].set.penalty_window = UINT32_MAX;
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        mx_sampler *s;
        mx_errbuf eb = {{0}};
        assert_int_equal(mx_sampler_create(&s, 10, &bad[i].set, &eb), MX_E_INVALID);
        assert_null(s);
        if (strstr(eb.text, bad[i].names) == NULL) {
            fail_msg("case %zu: \"%s\" does not name %s", i, eb.text, bad[i].names);
        }
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    mx_sampling set = mx_sampling_default();
    set.top_k = 5;
    set.repetition_penalty = 1.1f;
    set.presence_penalty = 1;
    set.want_logprobs = true;
    set.n_top_logprobs = 3;
    int64_t live = mx_mem_live();
    for (uint64_t k = 1;; k++) {
        mx_sampler *s;
        mx_mem_fail_at(k);
        mx_err e = mx_sampler_create(&s, 100, &set, NULL);
        mx_mem_fail_at(0);
        if (e == MX_OK) {
            assert_true(k > 6);
            mx_sampler_destroy(s);
            break;
        }
        assert_int_equal(e, MX_E_NOMEM);
        assert_int_equal(mx_mem_live(), live);
    }
    assert_int_equal(mx_mem_live(), live);
}

/* ---- a second implementation ----------------------------------------------------------------- */

typedef struct item {
    float logit;
    int32_t id;
} item;

static int by_order(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->logit != y->logit) {
        return x->logit > y->logit ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

/* Probability of each token after all filters, by sorting everything. */
static void slow_distribution(const mx_sampling *set, const float *logits, uint32_t n, double *p)
{
    item *order = malloc(n * sizeof *order);
    for (uint32_t i = 0; i < n; i++) {
        order[i] = (item){logits[i], (int32_t)i};
        p[i] = 0;
    }
    qsort(order, n, sizeof *order, by_order);
    uint32_t kept = set->top_k && set->top_k < n ? set->top_k : n;
    double total = 0, sum = 0, left = 0;
    double *w = malloc(n * sizeof *w);
    for (uint32_t i = 0; i < kept; i++) {
        w[i] = exp(((double)order[i].logit - (double)order[0].logit) / (double)set->temperature);
        total += w[i];
    }
    for (uint32_t i = 0; i < kept && (set->top_p >= 1 || sum < (double)set->top_p * total); i++) {
        sum += w[i];
        if (w[i] >= (double)set->min_p) {
            p[order[i].id] = w[i];
            left += w[i];
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        p[i] /= left;
    }
    free(w);
    free(order);
}

static void agrees_with_slow_implementation(void **state)
{
    (void)state;
    uint64_t rng = 20261129;
    enum { MAX_N = 700 };
    static float l[MAX_N];
    static double p[MAX_N];
    for (int round = 0; round < 400; round++) {
        uint64_t seed = rng;
        uint32_t n = 2 + (uint32_t)(next_random(&rng) % (MAX_N - 1));
        for (uint32_t i = 0; i < n; i++) {
            /* Few distinct values, so that ties sit at the borders of the filters. */
            l[i] = (float)(next_random(&rng) % 64) * (round % 2 ? 0.25f : 0.03f) - 3.0f;
        }
        mx_sampling set = mx_sampling_default();
        set.temperature = 0.3f + (float)(next_random(&rng) % 20) * 0.1f;
        set.top_k = next_random(&rng) % 2 ? (uint32_t)(next_random(&rng) % (n + 3)) : 0;
        set.top_k = set.top_k == 1 ? 2 : set.top_k;
        set.top_p = next_random(&rng) % 2 ? 0.05f + (float)(next_random(&rng) % 95) * 0.01f : 1.0f;
        set.min_p = next_random(&rng) % 3 ? 0.0f : (float)(next_random(&rng) % 50) * 0.01f;
        set.seed = next_random(&rng);
        slow_distribution(&set, l, n, p);
        mx_sampler *s = make(n, &set);
        for (uint64_t pos = 0; pos < 40; pos++) {
            int32_t got = once(s, l, n, pos);
            double u = mx_sampler_uniform(set.seed, pos), sum = 0;
            int32_t want = -1;
            double margin = 1;
            for (uint32_t i = 0; i < n && want < 0; i++) {
                sum += p[i];
                margin = fabs(sum - u) < margin ? fabs(sum - u) : margin;
                want = p[i] > 0 && sum > u ? (int32_t)i : -1;
            }
            if (got != want && margin > 1e-12) {
                fail_msg("seed %llu round %d pos %llu: expected %d, got %d (T %g k %u p %g min %g)",
                         (unsigned long long)seed, round, (unsigned long long)pos, want, got,
                         (double)set.temperature, set.top_k, (double)set.top_p,
                         (double)set.min_p);
            }
        }
        mx_sampler_destroy(s);
    }
}

static void frequencies_are_right(void **state)
{
    (void)state;
    float l[8] = {0, 1, -1, 2, 0.5f, -3, 1.5f, 0};
    mx_sampling set = mx_sampling_default();
    set.temperature = 0.8f;
    set.top_p = 0.97f;
    double p[8];
    slow_distribution(&set, l, 8, p);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        set.seed = seed;
        mx_sampler *s = make(8, &set);
        unsigned count[8] = {0};
        enum { N = 40000 };
        for (uint64_t pos = 0; pos < N; pos++) {
            count[once(s, l, 8, pos)]++;
        }
        for (int i = 0; i < 8; i++) {
            double sigma = sqrt(p[i] * (1 - p[i]) / N);
            if (fabs(count[i] / (double)N - p[i]) > 4.5 * sigma) {
                fail_msg("seed %llu token %d: expected %g, got %g (sigma %g)",
                         (unsigned long long)seed, i, p[i], count[i] / (double)N, sigma);
            }
        }
        mx_sampler_destroy(s);
    }
}

static void logprobs_are_those_of_the_model(void **state)
{
    (void)state;
    float l[5] = {1, 2, 2, -INFINITY, 0};
    mx_logit_bias ban = {1, -100};
    mx_sampling set = mx_sampling_default();
    set.temperature = 0;
    set.want_logprobs = true;
    set.n_top_logprobs = 20;
    set.bias = &ban;
    set.n_bias = 1;
    mx_sampler *s = make(5, &set);
    mx_sample out;
    mx_sampler_sample(s, l, 0, &out);
    double lse = log(exp(1) + 2 * exp(2) + 1);
    assert_int_equal(out.token, 2);
    assert_true(fabs((double)out.logprob - (2 - lse)) < 1e-6);
    assert_int_equal(out.n_top, 4); /* the impossible one is not listed */
    int32_t ids[4] = {1, 2, 0, 4};
    double logits[4] = {2, 2, 1, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out.top[i].token, ids[i]);
        assert_true(fabs((double)out.top[i].logprob - (logits[i] - lse)) < 1e-6);
    }
    mx_sampler_destroy(s);
}

static void extreme_logits_are_survived(void **state)
{
    (void)state;
    float l[4] = {3e38f, -3e38f, 3e38f, 0};
    mx_logit_bias bias = {0, 99};
    mx_sampling set = mx_sampling_default();
    set.repetition_penalty = 1e-5f; /* drives a logit to infinity */
    set.temperature = 1e-30f;
    set.bias = &bias;
    set.n_bias = 1;
    set.top_p = 0.9f;
    mx_sampler *s = make(4, &set);
    mx_sampler_accept(s, 2, true);
    for (uint64_t pos = 0; pos < 20; pos++) {
        assert_int_equal(once(s, l, 4, pos), 2);
    }
    mx_sampler_destroy(s);
}

/* A change here changes every seeded text: it needs a reason, and docs/sampling.md changes too. */
static void golden_values(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed, pos;
        double u;
    } draws[] = {
        {0u, 0u, 0x1.7ceb9a7442a54p-3},
        {0u, 1u, 0x1.13bdc2572bcb8p-3},
        {1u, 0u, 0x1.91d0bfbadad8ap-1},
        {42u, 7u, 0x1.328089d2fe2e3p-1},
        {UINT64_MAX, UINT64_MAX, 0x1.e9eed58b84251p-1},
        {123456789u, 1099511627776u, 0x1.c493e24a8a39ap-1},
    };
    for (size_t i = 0; i < MX_COUNT(draws); i++) {
        double got = mx_sampler_uniform(draws[i].seed, draws[i].pos);
        if (got != draws[i].u) {
            fail_msg("uniform(%llu, %llu): expected %a, got %a", (unsigned long long)draws[i].seed,
                     (unsigned long long)draws[i].pos, draws[i].u, got);
        }
    }
    enum { N = 3000, STEPS = 24 };
    static float l[N];
    uint64_t rng = 1;
    for (int i = 0; i < N; i++) {
        l[i] = (float)(next_random(&rng) % 4096) / 256.0f - 8.0f;
    }
    static const int32_t want[3][STEPS] = {
        {399, 1185, 448, 2960, 2755, 701, 712, 1786,
         1654, 2333, 1804, 1068, 1254, 369, 986, 141,
         204, 785, 2797, 2816, 2647, 1921, 701, 47},
        {448, 1190, 510, 2960, 2757, 752, 760, 1804,
         1673, 2379, 1807, 1084, 1260, 394, 998, 206,
         231, 814, 2822, 2834, 2666, 1932, 754, 63},
        {723, 1190, 745, 2920, 2755, 780, 785, 1932,
         1744, 2384, 2084, 1139, 1296, 394, 1062, 206,
         369, 872, 2907, 2834, 2565, 2319, 767, 119},
    };
    for (int c = 0; c < 3; c++) {
        mx_sampling set = mx_sampling_default();
        set.seed = 42;
        set.temperature = c == 0 ? 1.0f : 0.7f;
        set.top_k = c == 2 ? 40 : 0;
        set.top_p = c == 0 ? 1.0f : 0.95f;
        set.repetition_penalty = c == 2 ? 1.1f : 1.0f;
        mx_sampler *s = make(N, &set);
        int32_t got[STEPS];
        for (int i = 0; i < STEPS; i++) {
            got[i] = once(s, l, N, (uint64_t)i);
            mx_sampler_accept(s, got[i], true);
        }
        if (memcmp(got, want[c], sizeof got) != 0) {
            for (int i = 0; i < STEPS; i++) {
                print_error("%d,%s", got[i], i + 1 < STEPS ? " " : "\n");
            }
            fail_msg("case %d: other tokens than the golden ones (above: what came)", c);
        }
        mx_sampler_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(math_is_accurate),
        cmocka_unit_test(uniform_is_uniform),
        cmocka_unit_test(greedy_takes_smallest_id_among_equals),
        cmocka_unit_test(bias_and_bans),
        cmocka_unit_test(penalties),
        cmocka_unit_test(settings_are_checked),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(agrees_with_slow_implementation),
        cmocka_unit_test(frequencies_are_right),
        cmocka_unit_test(logprobs_are_those_of_the_model),
        cmocka_unit_test(extreme_logits_are_survived),
        cmocka_unit_test(golden_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
