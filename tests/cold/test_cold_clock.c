/* SPDX-License-Identifier: MIT
 *
 * A system clock that jumps, back and forth, by hours and by years, while the server runs and while it
 * does not: nothing is deleted too early, nothing stays for ever, and the day's budget goes on.
 *
 * Files get their times from the kernel, which has the right time here; so each file that is written is
 * stamped with the wrong one right after it has got its name.
 */
#include "cold/cold_help.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "cold/cold_files.h"
#include "cold/cold_tools.h"

enum { FILE_BYTES = MX_DISK_PAYLOAD_AT + TINY_BYTES, HOUR_S = 3600, DAY_S = 86400 };

typedef help_bed state;

/* How wrong the wall clock is, and how much time has really passed. */
static atomic_llong wrong_s, passed_s;

static int64_t wall_ns(void)
{
    return mx_cold_wall_ns() + (atomic_load(&wrong_s) + atomic_load(&passed_s)) * 1000000000;
}

static uint64_t boot_us(void)
{
    return mx_boottime_us() + (uint64_t)atomic_load(&passed_s) * 1000000;
}

static const mx_cold_clock jumping = {wall_ns, boot_us};

/* Called when a file goes to trash/. */
static void (*on_trash)(int dir, const char *name);

static int stamp(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    if (mx_cold_real_fileops.rename(old_dir, old_name, new_dir, new_name) != 0) {
        return -1;
    }
    int64_t ns = wall_ns();
    struct timespec times[2] = {{ns / 1000000000, ns % 1000000000}, {ns / 1000000000, ns % 1000000000}};
    if (strncmp(old_name, ".tmp-", 5) == 0) {
        (void)utimensat(new_dir, new_name, times, AT_SYMLINK_NOFOLLOW);
    } else if (on_trash != NULL) {
        on_trash(new_dir, new_name);
    }
    return 0;
}

static mx_cold_fileops stamping;

static int setup(void **arg)
{
    help_setup(arg);
    state *s = *arg;
    stamping = mx_cold_real_fileops;
    stamping.rename = stamp;
    s->cfg.tuning.fileops = &stamping;
    s->cfg.tuning.clock = &jumping;
    atomic_store(&wrong_s, 0);
    atomic_store(&passed_s, 0);
    on_trash = NULL;
    return 0;
}

static void sweep(mx_cold *c)
{
    assert_true(mx_cold_sweep(c, 20000000));
}

/* That much time passes, with a sweep twice an hour at the most and 300 at the most. */
static void pass(mx_cold *c, int64_t seconds)
{
    int64_t step = seconds / 300 > HOUR_S / 2 ? seconds / 300 : HOUR_S / 2;
    for (; seconds > 0; seconds -= step) {
        atomic_fetch_add(&passed_s, seconds < step ? seconds : step);
        sweep(c);
    }
}

static void restart(state *s, mx_cold **c)
{
    mx_cold_close(*c);
    *c = help_open_settled(&s->cfg);
}

static void write_talk(state *s, mx_cold *c, talk *t, uint64_t seed, size_t n)
{
    talk_make(t, &s->root, seed, 0, n);
    assert_int_equal(help_write_talk(c, t), MX_OK);
}

/* What does not fit makes the sweep take something away. */
static void write_with_room(state *s, mx_cold *c, uint64_t seed, size_t n)
{
    talk_make(&s->other, &s->root, seed, 0, n);
    mx_err err = help_write_talk(c, &s->other);
    pass(c, 2 * HOUR_S);
    if (err != MX_OK) {
        assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    }
}

/* ---- deleting -------------------------------------------------------------------------------- */

/* Back by more than the time to live, and forth again: with and without a restart in between. */
static void test_back_and_forth_deletes_nothing(void **arg)
{
    state *s = *arg;
    s->cfg.ttl_s = 30 * DAY_S;
    for (int i = 0; i < 8; i++) {
        bool back_first = i % 2 == 0, is_restarted_away = (i & 2) != 0, is_restarted_back = (i & 4) != 0;
        mx_cold *c = help_open_settled(&s->cfg);
        write_talk(s, c, &s->talk, 1, 300);
        atomic_store(&wrong_s, back_first ? -40 * DAY_S : 20 * DAY_S);
        if (is_restarted_away) {
            restart(s, &c);
        }
        pass(c, 3 * HOUR_S);
        write_talk(s, c, &s->other, 2, 200);
        assert_int_equal(help_read_talk(c, &s->talk, 300), 300);
        pass(c, 3 * HOUR_S);
        atomic_store(&wrong_s, 0);
        if (is_restarted_back) {
            restart(s, &c);
        }
        pass(c, 6 * HOUR_S);
        assert_int_equal(help_read_talk(c, &s->talk, 300), 300);
        /* What was written in a past beyond the time to live may look old. */
        assert_true(!back_first || help_count(s->root_dir, ".page") >= 5);
        assert_true(back_first || help_read_talk(c, &s->other, 200) == 200);
        mx_cold_close(c);
        help_remove_tree(s->dir);
    }
}

/* Forth while it runs: for a day it is not believed, and what is used in that day is young then. */
static void test_forward_jump_is_believed_after_a_day(void **arg)
{
    state *s = *arg;
    s->cfg.ttl_s = 30 * DAY_S;
    mx_cold *c = help_open_settled(&s->cfg);
    write_talk(s, c, &s->talk, 1, 300);
    write_talk(s, c, &s->other, 2, 200);
    atomic_store(&wrong_s, 1000 * DAY_S);
    pass(c, 23 * HOUR_S);
    assert_int_equal(help_count(s->root_dir, ".page"), 5 + 4);
    assert_int_equal(help_read_talk(c, &s->other, 200), 200);
    help_wait_used(s, 4, wall_ns() / 1000000000 - 60);
    pass(c, 2 * HOUR_S);
    assert_int_equal(help_read_talk(c, &s->other, 200), 200);
    assert_int_equal(help_count(s->root_dir, ".page"), 4);
    pass(c, 31 * DAY_S);
    assert_int_equal(help_count(s->root_dir, ".page"), 0);
    mx_cold_close(c);
}

/* A clock that was ahead at the start and was set right: what it said then is no reason to believe the next jump
 * at once. */
static void test_set_right_once_is_not_believed_twice(void **arg)
{
    state *s = *arg;
    s->cfg.ttl_s = 30 * DAY_S;
    atomic_store(&wrong_s, 2000 * DAY_S);
    mx_cold *c = help_open_settled(&s->cfg);
    sweep(c);
    atomic_store(&wrong_s, 0);
    write_talk(s, c, &s->talk, 1, 300);
    sweep(c);
    atomic_store(&wrong_s, 1000 * DAY_S);
    pass(c, 2 * HOUR_S);
    assert_int_equal(help_read_talk(c, &s->talk, 300), 300);
    mx_cold_close(c);
}

/* A machine without a battery: at first it is 1970. Nothing goes, nothing gets a stamp of that time; and once
 * the clock is set, room is made again. */
static void test_started_in_1970(void **arg)
{
    state *s = *arg;
    s->cfg.ttl_s = 30 * DAY_S;
    s->cfg.max_bytes = 20 * FILE_BYTES;
    s->cfg.tuning.retry_us = 1;
    mx_cold *c = help_open_settled(&s->cfg);
    write_talk(s, c, &s->talk, 1, 600);
    restart(s, &c);
    atomic_store(&wrong_s, -time(NULL) + 100);
    restart(s, &c);
    write_talk(s, c, &s->other, 7, 60);
    pass(c, 2 * HOUR_S);
    assert_int_equal(help_read_talk(c, &s->talk, 600), 600); /* that makes nothing older */
    atomic_store(&wrong_s, 0);
    pass(c, HOUR_S);
    assert_int_equal(help_read_talk(c, &s->talk, 600), 600);
    assert_int_equal(help_read_talk(c, &s->other, 60), 60);
    for (uint64_t i = 2; i < 6; i++) {
        write_with_room(s, c, i, 600);
    }
    assert_true(help_count(s->root_dir, ".page") <= 20);
    mx_cold_close(c);
}

/* The times of what was stored while the clock was ahead by ten years: that, too, goes in the end. */
static void test_times_in_the_future_are_settled(void **arg)
{
    state *s = *arg;
    s->cfg.ttl_s = 30 * DAY_S;
    atomic_store(&wrong_s, 3650 * DAY_S);
    mx_cold *c = help_open_settled(&s->cfg);
    write_talk(s, c, &s->talk, 1, 300);
    mx_cold_close(c);
    int64_t age = -3650 * DAY_S;
    help_spill_aged(s, "sessions/.tmp-1-left", age);
    help_spill_aged(s, "quarantine/bad", age);
    atomic_store(&wrong_s, 0);
    c = help_open_settled(&s->cfg);
    pass(c, 6 * DAY_S);
    restart(s, &c); /* that it is not believed yet is remembered */
    pass(c, 2 * DAY_S);
    assert_int_equal(help_count(s->root_dir, ".page"), 5);
    assert_false(help_is_there(s, "sessions/.tmp-1-left"));
    assert_true(help_is_there(s, "quarantine/bad"));
    pass(c, 20 * DAY_S);
    assert_int_equal(help_count(s->root_dir, ".page"), 5);
    pass(c, 11 * DAY_S);
    assert_int_equal(help_count(s->root_dir, ".page"), 0);
    assert_int_equal(help_count(s->root_dir, ".session"), 0);
    assert_false(help_is_there(s, "quarantine/bad"));
    /* Nothing is left to remember. */
    char path[400];
    struct stat st;
    snprintf(path, sizeof path, "%s/v1/gc.lock", s->dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 0);
    mx_cold_close(c);
}

/* Further ahead than nanoseconds since 1970 can say: in the future like others, not in the past. */
static void test_times_after_2262(void **arg)
{
    state *s = *arg;
    char path[700];
    struct stat st;
    mx_cold *c = help_open_settled(&s->cfg);
    write_talk(s, c, &s->talk, 1, 300);
    help_spill_aged(s, "quarantine/bad", -400 * 365 * (int64_t)DAY_S);
    assert_true(mx_cold_sweep(c, 20000000));
    mx_cold_close(c);
    snprintf(path, sizeof path, "%s/quarantine/bad", s->root_dir);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_mtim.tv_sec > time(NULL) + DAY_S);
}

/* Under the limit, too: what was written with a clock that was ahead must not push out all else. */
static void test_eviction_takes_settled_files(void **arg)
{
    state *s = *arg;
    s->cfg.max_bytes = 30 * FILE_BYTES;
    atomic_store(&wrong_s, 3650 * DAY_S);
    mx_cold *c = help_open_settled(&s->cfg);
    write_talk(s, c, &s->talk, 1, 640);
    mx_cold_close(c);
    atomic_store(&wrong_s, 0);
    c = help_open_settled(&s->cfg);
    pass(c, 8 * DAY_S);
    for (uint64_t i = 2; i < 5; i++) {
        write_with_room(s, c, i, 640);
    }
    assert_int_equal(help_read_talk(c, &s->other, 640), 640);
    assert_true(help_read_talk(c, &s->talk, 640) < 640);
    mx_cold_close(c);
}

/* Used at the very moment when it is deleted, by a clock that is a day behind by then. */
static void use_a_day_ago(int dir, const char *name)
{
    atomic_store(&wrong_s, -DAY_S);
    int64_t s = wall_ns() / 1000000000;
    const struct timespec times[2] = {{s, 0}, {s, 0}};
    assert_int_equal(utimensat(dir, name, times, 0), 0);
}

static void test_used_while_the_clock_is_set_back(void **arg)
{
    state *s = *arg;
    s->cfg.ttl_s = 30 * DAY_S;
    mx_cold *c = help_open_settled(&s->cfg);
    write_talk(s, c, &s->talk, 1, 60);
    on_trash = use_a_day_ago;
    atomic_store(&passed_s, 31 * DAY_S);
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".page"), 1);
    assert_int_equal(help_read_talk(c, &s->talk, 60), 60);
    mx_cold_close(c);
}

/* A person's request has no age limit, whatever the stamps say. */
static void test_removing_takes_files_of_the_future(void **arg)
{
    state *s = *arg;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    atomic_store(&wrong_s, 3650 * DAY_S);
    mx_cold *c = help_open_settled(&s->cfg);
    write_talk(s, c, &s->talk, 1, 300);
    mx_cold_close(c);
    assert_int_equal(mx_cold_gc(s->dir, NULL, 0, 0, &n, &eb), MX_OK);
    assert_int_equal(help_count(s->root_dir, ".page"), 0);
}

/* ---- the day's budget ------------------------------------------------------------------------- */

/* Pages of a fresh conversation that the budget lets through. */
static size_t count_writes(state *s, mx_cold *c, uint64_t seed)
{
    size_t n = 0;
    talk_make(&s->talk, &s->root, seed, 0, 20 * 64);
    for (size_t i = 0; i < 20; i++) {
        mx_err err = help_write_page(c, &s->talk, i);
        assert_true(err == MX_OK || err == MX_E_LIMIT);
        n += err == MX_OK;
    }
    return n;
}

/* Noon: hours more or less are the same day. */
static void go_to_noon(void)
{
    int64_t now = wall_ns() / 1000000000;
    atomic_fetch_add(&passed_s, DAY_S + DAY_S / 2 - now % DAY_S);
}

static void test_budget_goes_on_after_jumps(void **arg)
{
    state *s = *arg;
    s->cfg.write_budget = 6 * FILE_BYTES;
    static const int64_t jumps[] = {-5 * HOUR_S, 5 * HOUR_S, -3 * DAY_S, 3 * DAY_S, -4000 * DAY_S,
                                    4000 * DAY_S};
    uint64_t seed = 0;
    for (size_t i = 0; i < MX_COUNT(jumps); i++) {
        for (int is_restarted = 0; is_restarted < 2; is_restarted++) {
            /* Spent on a day that was wrong, then set right. */
            go_to_noon();
            atomic_store(&wrong_s, jumps[i]);
            mx_cold *c = help_open_settled(&s->cfg);
            assert_int_equal(count_writes(s, c, ++seed), 6);
            assert_int_equal(count_writes(s, c, ++seed), 0);
            atomic_store(&wrong_s, 0);
            if (is_restarted) {
                restart(s, &c);
            }
            sweep(c);
            size_t same_day = count_writes(s, c, ++seed);
            /* At most one day's more, at the next midnight the latest after the next one. */
            assert_true(same_day == 0 || (same_day == 6 && jumps[i] < -DAY_S));
            size_t n = 0;
            for (int day = 0; day < 2; day++) {
                atomic_fetch_add(&passed_s, DAY_S);
                sweep(c);
                n += count_writes(s, c, ++seed);
            }
            if (n < 6) {
                print_message("jump of %lld s, restart %d: expected 6 pages or more in two days, got %zu\n",
                              (long long)jumps[i], is_restarted, n);
                fail();
            }
            assert_true(n <= 12);
            mx_cold_close(c);
            help_remove_tree(s->dir);
        }
    }
}

/* A few seconds back and forth around midnight are no new days. */
static void test_midnight_comes_once(void **arg)
{
    state *s = *arg;
    s->cfg.write_budget = 6 * FILE_BYTES;
    mx_cold *c = help_open_settled(&s->cfg);
    int64_t now = wall_ns() / 1000000000;
    atomic_fetch_add(&passed_s, 2 * DAY_S - now % DAY_S - 30);
    assert_int_equal(count_writes(s, c, 1), 6);
    size_t n = 0;
    for (uint64_t i = 0; i < 10; i++) {
        atomic_store(&wrong_s, i % 2 == 0 ? 50 : 0);
        atomic_fetch_add(&passed_s, i == 0 ? 50 : 0);
        n += count_writes(s, c, 2 + i);
        atomic_store(&wrong_s, -50);
        n += count_writes(s, c, 100 + i);
        if (i == 5) {
            restart(s, &c);
        }
    }
    assert_int_equal(n, 6);
    mx_cold_close(c);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_back_and_forth_deletes_nothing),
        T(test_forward_jump_is_believed_after_a_day),
        T(test_set_right_once_is_not_believed_twice),
        T(test_started_in_1970),
        T(test_times_in_the_future_are_settled),
        T(test_times_after_2262),
        T(test_eviction_takes_settled_files),
        T(test_used_while_the_clock_is_set_back),
        T(test_removing_takes_files_of_the_future),
        T(test_budget_goes_on_after_jumps),
        T(test_midnight_comes_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
