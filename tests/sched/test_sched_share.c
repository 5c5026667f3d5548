/* SPDX-License-Identifier: MIT
 *
 * How the prompt rows of a shared pass are chosen, on machines made of formulas: the streams keep
 * half their speed, the prompt gets its part, and changes are followed.
 */
#include "base/base.h"
#include "sched/sched_share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

typedef struct machine {
    double decode_us, per_stream_us; /* a pass of decode rows alone */
    double row_us, row_us_per_token; /* a prompt row at depth 0, and more of it per token before it */
    size_t n_free;                   /* rows that cost nothing, where decoding waits for memory */
    unsigned noise;                  /* percent, up or down */
    double hiccup_us;                /* every fifth pass or so is interrupted, for up to so long */
} machine;

static double pass_us(const machine *m, size_t n_decode, size_t n_prompt, size_t depth,
                      uint32_t *rng)
{
    double us = n_decode > 0 ? m->decode_us + m->per_stream_us * (double)n_decode : 0;
    size_t n_paid = n_prompt > m->n_free ? n_prompt - m->n_free : 0;
    us += (double)n_paid * (m->row_us + m->row_us_per_token * (double)depth);
    *rng = *rng * 1664525u + 1013904223u;
    double swing = (double)(*rng >> 8) / (double)(1u << 24) * 2 - 1;
    us *= 1 + swing * m->noise / 100.0;
    *rng = *rng * 1664525u + 1013904223u;
    unsigned draw = *rng >> 8;
    return us + (draw % 5 == 0 ? (draw >> 8) % 256 / 255.0 * m->hiccup_us : 0);
}

typedef struct reading {
    double us;           /* until the prompt was read */
    size_t n_passes;     /* tokens that each stream got meanwhile */
    double longest_us;
} reading;

static reading read_prompt(mx_share *s, const machine *m, size_t n_decode, size_t n_tokens)
{
    reading r = {0};
    uint32_t rng = 7;
    size_t depth = 0, n_without = 0;
    while (depth < n_tokens) {
        size_t n = mx_share_rows(s, n_decode, mx_min_size(512, n_tokens - depth));
        n_without = n == 0 ? n_without + 1 : 0;
        assert_true(n_without < 2); /* the prompt never waits for two passes */
        double us = pass_us(m, n_decode, n, depth, &rng);
        mx_share_note(s, n_decode, n, us);
        depth += n;
        r.us += us;
        r.n_passes++;
        r.longest_us = us > r.longest_us ? us : r.longest_us;
    }
    return r;
}

static double alone_us(const machine *m, size_t n_tokens)
{
    double us = 0;
    for (size_t i = 0; i < n_tokens; i++) {
        us += m->row_us + m->row_us_per_token * (double)i;
    }
    return us;
}

static const machine machines[] = {
    {.decode_us = 13000, .per_stream_us = 2000, .row_us = 1300, .row_us_per_token = 3, .noise = 10},
    {.decode_us = 20000, .per_stream_us = 100, .row_us = 1700, .row_us_per_token = 1, .n_free = 6,
     .noise = 10},
    {.decode_us = 900, .per_stream_us = 50, .row_us = 20, .row_us_per_token = 0.001, .noise = 20},
    {.decode_us = 2000000, .per_stream_us = 0, .row_us = 9000, .row_us_per_token = 0, .noise = 0},
};

static void streams_keep_half_their_speed(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(machines); i++) {
        const machine *m = &machines[i];
        for (size_t n_decode = 1; n_decode <= 8; n_decode *= 2) {
            mx_share s = {0};
            reading r = read_prompt(&s, m, n_decode, 4096);
            double alone = m->decode_us + m->per_stream_us * (double)n_decode;
            double speed = (double)r.n_passes * alone / r.us;
            print_message("machine %zu, %zu streams: %.0f %% of their speed, prompt %.2f times its "
                          "time, longest pass %.1f\n", i, n_decode, 100 * speed,
                          r.us / alone_us(m, 4096), r.longest_us / alone);
            assert_true(speed >= 0.5);
            /* 1 / (1 - 1 / STRETCH) = 2.18, the passes without a prompt row, whole numbers of rows. */
            assert_true(r.us <= 2.5 * alone_us(m, 4096) + 4 * alone);
        }
    }
}

/* Neighbours take the cores away now and then. A stream's pass is interrupted as often when it is
 * alone, and that counts as its own speed. */
static void hiccups_do_not_cost_the_streams(void **state)
{
    (void)state;
    machine m = machines[0];
    m.hiccup_us = 60000;
    double alone = m.decode_us + m.per_stream_us * 4 + m.hiccup_us / 10;
    mx_share s = {0};
    size_t n_passes = 0;
    double us = 0;
    for (int i = 0; i < 10; i++) {
        uint32_t rng = (uint32_t)i;
        for (int k = 0; k < 50; k++) {
            mx_share_note(&s, 4, 0, pass_us(&m, 4, 0, 0, &rng));
        }
        reading r = read_prompt(&s, &m, 4, 1000);
        n_passes += r.n_passes;
        us += r.us;
    }
    double speed = (double)n_passes * alone / us;
    print_message("%.0f %% of their speed\n", 100 * speed);
    assert_true(speed >= 0.5);
}

static void no_pass_is_much_longer(void **state)
{
    (void)state;
    const machine *m = &machines[0];
    mx_share s = {0};
    reading r = read_prompt(&s, m, 4, 6000);
    double alone = m->decode_us + m->per_stream_us * 4;
    assert_true(r.longest_us < 3 * alone);
    /* The last rows of that prompt were dear; the next one begins with cheap ones, and the way back
     * is not a jump either. */
    r = read_prompt(&s, m, 4, 6000);
    assert_true(r.longest_us < 3 * alone);
    assert_true((double)r.n_passes * alone / r.us >= 0.5);
}

static void first_the_streams_alone(void **state)
{
    (void)state;
    mx_share s = {0};
    assert_int_equal(mx_share_rows(&s, 3, 512), 0);
    mx_share_note(&s, 3, 0, 10000);
    assert_int_equal(mx_share_rows(&s, 3, 512), 16); /* nothing known about prompts */
    assert_int_equal(mx_share_rows(&s, 3, 5), 5);
    assert_int_equal(mx_share_rows(&s, 4, 512), 0);  /* another number of streams */
    mx_share_note(&s, 3, 16, 10000 + 16 * 100);
    assert_int_equal(mx_share_rows(&s, 3, 512), 32); /* they were cheap: twice as many */
    mx_share_note(&s, 3, 32, 10000 + 32 * 100);
    mx_share_note(&s, 3, 64, 10000 + 64 * 100);
    assert_int_equal(mx_share_rows(&s, 3, 512), 85);
    for (int i = 0; i < 8; i++) {
        mx_share_note(&s, 0, 512, 512 * 300); /* a pass of prompt rows alone counts, too */
    }
    assert_in_range(mx_share_rows(&s, 3, 512), 28, 29);
    /* More streams than there are slots share the last one. */
    mx_share_note(&s, 5000, 0, 10000);
    assert_true(mx_share_rows(&s, 200, 512) > 0);
}

static void odd_measurements_do_no_harm(void **state)
{
    (void)state;
    mx_share s = {0};
    mx_share_note(&s, 1, 0, 10000);
    mx_share_note(&s, 1, 16, 9000); /* quicker than without prompt rows */
    assert_int_equal(mx_share_rows(&s, 1, 512), 32);
    for (int i = 0; i < 30; i++) {
        mx_share_note(&s, 1, 32, 10000 + 32 * 100);
    }
    mx_share_note(&s, 1, 0, 10000);
    assert_int_equal(mx_share_rows(&s, 1, 512), 64);
    for (int i = 0; i < 30; i++) {
        mx_share_note(&s, 1, 80, 10000 + 80 * 100);
    }
    mx_share_note(&s, 1, 0, 10000);
    assert_in_range(mx_share_rows(&s, 1, 512), 84, 86);
    mx_share_note(&s, 1, 80, 1e9); /* the machine slept: as if rows had cost four times as much, once */
    assert_in_range(mx_share_rows(&s, 1, 512), 60, 63);
    for (int i = 0; i < 16; i++) {
        mx_share_note(&s, 1, 60, 10000 + 60 * 100);
    }
    mx_share_note(&s, 1, 0, 10000);
    assert_in_range(mx_share_rows(&s, 1, 512), 75, 86);
    mx_share_note(&s, 1, 0, 1e9); /* nor is what the streams cost alone believed */
    assert_in_range(mx_share_rows(&s, 1, 512), 100, 120);
}

/* A row costs less than passes differ by themselves: the prompt must not end at a row a pass. */
static void noise_does_not_starve_the_prompt(void **state)
{
    (void)state;
    machine m = {.decode_us = 8000, .row_us = 1350, .noise = 40};
    for (int hiccups = 0; hiccups < 2; hiccups++) {
        m.hiccup_us = hiccups * 20000;
        mx_share s = {0};
        reading r = read_prompt(&s, &m, 4, 20000);
        double alone = m.decode_us + m.hiccup_us / 10;
        double ideal = 0.85 * alone / m.row_us; /* rows of a pass */
        double mean = 20000.0 / (double)r.n_passes;
        double speed = (double)r.n_passes * alone / r.us;
        print_message("%.1f of %.1f rows a pass, streams %.0f %%\n", mean, ideal, 100 * speed);
        assert_true(mean > 0.75 * ideal);
        assert_true(speed >= 0.5);
    }
}

/* Twice as fast, or half: what the streams cost alone is looked at again. */
static void decode_cost_is_followed(void **state)
{
    (void)state;
    mx_share s = {0};
    machine m = machines[0];
    read_prompt(&s, &m, 2, 1000);
    m.decode_us *= 3;
    m.per_stream_us *= 3;
    read_prompt(&s, &m, 2, 16000);
    double alone = m.decode_us + m.per_stream_us * 2;
    assert_true(s.decode_us[2] > 0.7 * alone && s.decode_us[2] < 1.1 * alone);
    m = machines[0];
    read_prompt(&s, &m, 2, 4000);
    alone = m.decode_us + m.per_stream_us * 2;
    assert_true(s.decode_us[2] > 0.9 * alone && s.decode_us[2] < 1.2 * alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_keep_half_their_speed),
        cmocka_unit_test(hiccups_do_not_cost_the_streams),
        cmocka_unit_test(no_pass_is_much_longer),
        cmocka_unit_test(first_the_streams_alone),
        cmocka_unit_test(odd_measurements_do_no_harm),
        cmocka_unit_test(noise_does_not_starve_the_prompt),
        cmocka_unit_test(decode_cost_is_followed),
    };
    return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
