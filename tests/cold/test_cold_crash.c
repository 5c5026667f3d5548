/* SPDX-License-Identifier: MIT
 *
 * kill -9 at random moments, and several processes on one folder. After each kill everything that
 * was reported durable is read back and compared, and whatever else is found is right.
 *
 * MTPLX_TEST_KILLS sets the number of kills (50; the long suite uses 1,000).
 */
#include "cold/cold_help.h"

#include <signal.h>
#include <sys/wait.h>

enum { N_TALKS = 12, TURNS = 6 };

typedef help_bed state;

static size_t turn_tokens(unsigned number, unsigned turn)
{
    return 30 + number * 11 + turn * 83;
}

typedef struct report {
    unsigned number, turn;
} report;

/* Writes conversations turn by turn until it is killed; a report goes out when one is durable. No
 * cmocka in here: its jumps belong to the parent. */
static void child_writes(state *s, unsigned first, int report_fd)
{
    mx_cold *c;
    if (mx_cold_open(&c, &tiny, &s->cfg, NULL) != MX_OK) {
        _exit(2);
    }
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (unsigned i = 0; i < N_TALKS; i++) {
            report r = {(first + i) % N_TALKS, turn};
            talk_make(&s->talk, &s->root, r.number, 0, turn_tokens(r.number, turn));
            if (help_write_talk(c, &s->talk) == MX_OK && report_fd >= 0
                && write(report_fd, &r, sizeof r) != sizeof r)
            {
                _exit(3);
            }
        }
    }
    /* More of the same, so that it is killed at work and not at rest. */
    for (unsigned i = 0; report_fd >= 0 && i < 2000; i++) {
        talk_make(&s->talk, &s->root, 1000 + first * 10000 + i, 0, 100 + i % 500);
        help_write_talk(c, &s->talk);
    }
    mx_cold_close(c);
    _exit(0);
}

static void check_durable(state *s, const unsigned durable[N_TALKS], int kill_number)
{
    mx_cold *c = help_open(&s->cfg);
    for (unsigned i = 0; i < N_TALKS; i++) {
        talk_make(&s->talk, &s->root, i, 0, turn_tokens(i, TURNS - 1));
        size_t want = durable[i] > 0 ? turn_tokens(i, durable[i] - 1) : 0;
        size_t got = help_read_talk(c, &s->talk, s->talk.n);
        if (got < want) {
            print_message("kill %d, conversation %u: expected %zu tokens, got %zu\n",
                          kill_number, i, want, got);
            fail();
        }
    }
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.quarantined, 0); /* there are whole files or none */
    mx_cold_close(c);
}

static void test_kill_at_random_moments(void **arg)
{
    state *s = *arg;
    const char *text = getenv("MTPLX_TEST_KILLS");
    int n_kills = text != NULL ? atoi(text) : 50;
    uint64_t random = (uint64_t)time(NULL);
    size_t n_cut_short = 0, n_reports = 0;
    print_message("%d kills, seed %llu\n", n_kills, (unsigned long long)random);
    unsigned durable[N_TALKS] = {0};
    /* On a slow machine (an emulator) nobody gets anything done in the time that he has: more tries and
     * more time. */
    unsigned longest_us = 25000;
    for (int i = 0; i < n_kills || (n_reports == 0 && i < 20 * n_kills); i++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        uint64_t r = help_random(&random);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            close(fds[0]);
            child_writes(s, (unsigned)(r >> 32) % N_TALKS, fds[1]);
        }
        close(fds[1]);
        usleep((unsigned)(r % longest_us));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        n_cut_short += WIFSIGNALED(status);
        for (report got; read(fds[0], &got, sizeof got) == sizeof got;) {
            n_reports++;
            if (durable[got.number] < got.turn + 1) {
                durable[got.number] = got.turn + 1;
            }
        }
        close(fds[0]);
        check_durable(s, durable, i);
        if (n_reports == 0 && i % 10 == 9 && longest_us < 3000000) {
            longest_us *= 2;
        }
        if (i % 10 == 9) { /* start over, so that new files are written again */
            help_remove_tree(s->dir);
            memset(durable, 0, sizeof durable);
        }
    }
    print_message("%zu of %d cut short, %zu durable turns reported\n", n_cut_short, n_kills,
                  n_reports);
    assert_true(n_cut_short > 0 && n_reports > 0);
    /* What the killed ones left behind is swept. */
    s->cfg.tuning.orphan_age_s = -1;
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    assert_true(mx_cold_sweep(c, 20000000));
    mx_cold_close(c);
    size_t n_temp = 0;
    char command[400];
    snprintf(command, sizeof command, "find '%s' -name '.tmp-*' | wc -l", s->dir);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu", &n_temp), 1);
    pclose(f);
    assert_int_equal(n_temp, 0);
}

/* Three processes write the same conversations, one of them under a limit that makes it delete all
 * the time. Nobody fails, nothing wrong is read. */
static void test_several_processes(void **arg)
{
    state *s = *arg;
    pid_t pids[3];
    for (unsigned i = 0; i < 3; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            if (i == 2) {
                s->cfg.max_bytes = 200 * 1024;
                s->cfg.tuning.delete_age_s = -1;
                s->cfg.tuning.retry_us = 1000;
            }
            child_writes(s, i * 5, -1);
        }
    }
    mx_cold *c = help_open(&s->cfg);
    for (int round = 0; round < 20; round++) {
        for (unsigned i = 0; i < N_TALKS; i++) {
            talk_make(&s->talk, &s->root, i, 0, turn_tokens(i, TURNS - 1));
            help_read_talk(c, &s->talk, s->talk.n); /* compares each row */
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    /* What was deleted is written again by whoever needs it. */
    for (unsigned i = 0; i < N_TALKS; i++) {
        talk_make(&s->talk, &s->root, i, 0, turn_tokens(i, TURNS - 1));
        if (help_write_talk(c, &s->talk) != MX_OK) { /* the index was behind: now it knows */
            assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        }
        assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    }
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.quarantined, 0);
    assert_false(st.is_degraded);
    mx_cold_close(c);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_kill_at_random_moments),
        T(test_several_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
