/* SPDX-License-Identifier: MIT
 *
 * The writer spares the CPU while it is paced, and what ends that. A clock that says that each job took a
 * second makes it rest for a minute and a half, so whatever comes back in these tests was not waited
 * for; that it rests is told by its own counter.
 */
#include "cold_help.h"

#include <pthread.h>

#include "base/clock.h"
#include "cold/cold_files.h"
#include "cold/cold_pace.h"

enum { HOUR_S = 3600, N_PAGES = 5 };

typedef struct state {
    char dir[256];
    mx_cold_config cfg;
    talk talk;
    uint8_t payloads[N_PAGES][TINY_BYTES] __attribute__((aligned(64)));
    mx_cold_job jobs[N_PAGES];
} state;

/* The writer's only. */
static uint64_t second_a_look(void)
{
    static uint64_t us;
    return us += 1000000;
}

static int setup(void **arg)
{
    state *s = aligned_alloc(64, (sizeof *s + 63) / 64 * 64);
    assert_non_null(s);
    memset(s, 0, sizeof *s);
    help_make_folder(s->dir);
    mx_hash256 root = help_root(1);
    s->cfg = help_config(s->dir, &root);
    s->cfg.tuning.cpu_us = second_a_look;
    s->cfg.tuning.pace_us = (uint64_t)HOUR_S * 1000000;
    talk_make(&s->talk, &root, 1, 0, N_PAGES * MX_PAGE_TOKENS);
    *arg = s;
    return 0;
}

static int teardown(void **arg)
{
    state *s = *arg;
    help_remove_tree(s->dir);
    free(s);
    return 0;
}

static void submit(state *s, mx_cold *c, size_t page)
{
    s->jobs[page] = help_page_job(&s->talk, page, s->payloads[page]);
    assert_int_equal(mx_cold_submit(c, &s->jobs[page]), MX_OK);
}

static void expect(state *s, mx_cold *c, size_t page)
{
    assert_ptr_equal(help_wait(c), &s->jobs[page]);
    assert_int_equal(s->jobs[page].status, MX_OK);
}

static mx_cold_stats wait_for_rest(mx_cold *c, uint64_t n_rests)
{
    const uint64_t until = mx_now_us() + 60 * 1000000ull;
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    while (st.rests < n_rests) {
        assert_true(mx_now_us() < until);
        usleep(1000);
        mx_cold_get_stats(c, &st);
    }
    assert_int_equal(st.rests, n_rests);
    return st;
}

/* A writer that has written page 0, has pages 1 and 2 to write, and rests. */
static mx_cold *open_resting(state *s)
{
    mx_cold *c = help_open(&s->cfg);
    mx_cold_pace(c, true);
    for (size_t page = 0; page < 3; page++) {
        submit(s, c, page);
    }
    expect(s, c, 0);
    mx_cold_stats st = wait_for_rest(c, 1);
    assert_int_equal(st.pages_written, 1);
    assert_int_equal(st.queued_jobs, 2);
    return c;
}

static void test_rule(void **arg)
{
    (void)arg;
    /* 1 % of one core, */
    assert_int_equal(mx_pace_rest_us(10000, 0, 5, 10000000), 990000);
    assert_int_equal(mx_pace_rest_us(0, 0, 5, 10000000), 0);
    /* but the oldest of 20 has 4 s left: five a second; */
    assert_int_equal(mx_pace_rest_us(10000, 6000000, 20, 10000000), 200000);
    assert_int_equal(mx_pace_rest_us(10000, 9999999, 1, 10000000), 1);
    /* and then none. */
    assert_int_equal(mx_pace_rest_us(10000, 10000000, 1, 10000000), 0);
    assert_int_equal(mx_pace_rest_us(10000, UINT64_MAX, 1, 10000000), 0);
}

static void test_rests_until_nobody_decodes(void **arg)
{
    state *s = *arg;
    mx_cold *c = open_resting(s);
    mx_cold_pace(c, false);
    expect(s, c, 1);
    expect(s, c, 2);
    mx_cold_close(c);
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static int fsync_behind_gate(int fd)
{
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return mx_cold_real_fileops.fsync(fd);
}

static void *flush_patiently(void *arg)
{
    return mx_cold_flush(arg, 60 * 1000000ull) ? arg : NULL;
}

/* Two wait for the writer; one of them has no time. */
static void test_works_on_for_the_other_who_waits(void **arg)
{
    state *s = *arg;
    pthread_t other;
    void *is_flushed;
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.fsync = fsync_behind_gate;
    s->cfg.tuning.fileops = &ops;
    mx_cold *c = help_open(&s->cfg);
    mx_cold_pace(c, true);
    pthread_mutex_lock(&gate);
    for (size_t page = 0; page < 3; page++) {
        submit(s, c, page);
    }
    assert_int_equal(pthread_create(&other, NULL, flush_patiently, c), 0);
    usleep(50000); /* that it waits cannot be seen */
    assert_false(mx_cold_flush(c, 1000));
    pthread_mutex_unlock(&gate);
    for (size_t page = 0; page < 3; page++) {
        expect(s, c, page);
    }
    pthread_join(other, &is_flushed);
    assert_non_null(is_flushed);
    mx_cold_close(c);
}

/* What comes later does not begin before the rest is over, either. */
static void test_rest_outlasts_an_empty_queue(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    mx_cold_pace(c, true);
    submit(s, c, 0);
    expect(s, c, 0);
    submit(s, c, 1);
    assert_int_equal(wait_for_rest(c, 1).queued_jobs, 1);
    mx_cold_pace(c, false);
    expect(s, c, 1);
    mx_cold_close(c);
}

static void test_flush_does_not_rest(void **arg)
{
    state *s = *arg;
    mx_cold *c = open_resting(s);
    assert_true(mx_cold_flush(c, 20000000));
    expect(s, c, 1);
    expect(s, c, 2);
    mx_cold_close(c);
}

static void test_stop_does_not_wait_for_a_rest(void **arg)
{
    state *s = *arg;
    mx_cold *c = open_resting(s);
    assert_true(mx_cold_stop(c));
    for (size_t page = 1; page < 3; page++) {
        assert_ptr_equal(mx_cold_poll(c), &s->jobs[page]);
        assert_int_equal(s->jobs[page].status, MX_E_CANCELLED);
    }
    mx_cold_close(c);
}

/* More than half of the queue: it writes until that is no longer so. */
static void test_full_queue_does_not_rest(void **arg)
{
    state *s = *arg;
    s->cfg.queue_bytes = 4 * TINY_BYTES;
    mx_cold *c = help_open(&s->cfg);
    mx_cold_pace(c, true);
    submit(s, c, 0);
    expect(s, c, 0);
    submit(s, c, 1);
    submit(s, c, 2);
    wait_for_rest(c, 1);
    submit(s, c, 3);
    expect(s, c, 1);
    assert_int_equal(wait_for_rest(c, 2).queued_jobs, 2);
    mx_cold_pace(c, false);
    expect(s, c, 2);
    expect(s, c, 3);
    mx_cold_close(c);
}

static void test_old_jobs_do_not_rest(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.pace_us = 1;
    mx_cold *c = help_open(&s->cfg);
    mx_cold_pace(c, true);
    for (size_t page = 0; page < 3; page++) {
        submit(s, c, page);
    }
    for (size_t page = 0; page < 3; page++) {
        expect(s, c, page);
    }
    mx_cold_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),
        cmocka_unit_test_setup_teardown(test_rests_until_nobody_decodes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_works_on_for_the_other_who_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rest_outlasts_an_empty_queue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_flush_does_not_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop_does_not_wait_for_a_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_queue_does_not_rest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_old_jobs_do_not_rest, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
