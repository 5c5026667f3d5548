/* SPDX-License-Identifier: MIT
 *
 * Two and four processes on one folder at once: one removes files in every way there is, the others
 * write, look up and restore, and one of them is killed at work. A page that goes shortens a chain,
 * nothing else: whatever is restored is compared row by row, nobody's folder counts as failing, and when
 * the removing is over, what one writes the others find without a restart. After the last sweep nothing
 * lies about.
 *
 * The players are this program again, started with --role: a failed check in a fork would jump into the
 * test runner's copy. Players hear from their standard input when to go on, and tell on descriptor 3 how
 * far they are.
 */
#include "cold/cold_help.h"

#include "cold/cold_tools.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum {
    REPORT_FD = 3,
    N_SHARED = 6,       /* conversations that everybody writes */
    N_OWN = 6,          /* and those of each */
    MAX_WORKERS = 3,
    FILE_BYTES = MX_DISK_PAYLOAD_AT + TINY_BYTES,
    WAIT_US = 20000000,
};

typedef help_bed state;
static const char *self; /* argv[0] */

/* ---- conversations --------------------------------------------------------------------------- */

/* Number `which` of worker `w`; of -1: shared. All have some tokens in front in common. */
static void make_talk(state *s, int w, int which, size_t n)
{
    talk_make(&s->talk, &s->root, 5, 0, 1);
    talk_make(&s->talk, &s->root, (uint64_t)(100 * (w + 2) + which), 64 * (size_t)(which % 3), n);
}

static size_t whole_tokens(int w, int which)
{
    return 200 + (size_t)(which * 37 + (w + 1) * 11);
}

/* ---- the players ----------------------------------------------------------------------------- */

static bool is_told(void)
{
    struct pollfd p = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&p, 1, 0) > 0 && read(0, &byte, 1) >= 0;
}

static void wait_for_word(void)
{
    char byte;
    assert_true(read(0, &byte, 1) == 1);
}

static void report(char what)
{
    assert_true(write(REPORT_FD, &what, 1) == 1);
}

/* Anything, of anybody, in any order. */
static void work(state *s, mx_cold *c, int me, int n_workers, bool is_all_removed)
{
    uint64_t random = (uint64_t)time(NULL) * 1000 + (uint64_t)getpid();
    while (!is_told()) {
        uint64_t r = help_random(&random);
        int w = (int)(r % (uint64_t)(n_workers + 1)) - 1, which = (int)((r >> 8) % N_OWN);
        size_t whole = whole_tokens(w, which);
        if ((r >> 40) % 2 == 0) {
            make_talk(s, w, which, whole);
            assert_true(help_read_talk(c, &s->talk, whole) <= whole);
        } else {
            make_talk(s, w < 0 ? w : me, which, whole - (r >> 50) % 150);
            mx_err err = help_write_talk(c, &s->talk);
            /* A folder that goes again and again while it is written to is a failing one. */
            if (err != MX_OK && err != MX_E_NOT_FOUND && !is_all_removed) {
                print_message("worker %d: a write of %zu tokens of %d/%d ended with %s\n", me, s->talk.n, w, which,
                              mx_err_name(err));
                fail();
            }
        }
    }
}

/* The first attempt may rely on what was there once. A state that is not there is left out of the
 * manifest, which then is as good; the next time it is written. */
static void write_whole(state *s, mx_cold *c, int w, int which)
{
    make_talk(s, w, which, whole_tokens(w, which));
    if (help_write_talk(c, &s->talk) != MX_OK || HELP_STATE_BYTES > 0) {
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    }
}

/* What could be the reason that too little came back. */
static void print_state(const state *s, mx_cold *c)
{
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    print_message("quarantined %llu, swept %llu, degraded: \"%s\"\n", (unsigned long long)st.quarantined,
                  (unsigned long long)st.files_swept, st.is_degraded ? st.degraded_reason : "");
    for (size_t i = 0; i < s->talk.n_ids; i++) {
        char path[700];
        struct stat now = {0};
        help_page_path(s, &s->talk.ids[i], path);
        int rc = stat(path, &now);
        print_message("page %zu: %s, %lld bytes, %s to this process\n", i, rc == 0 ? "there" : "absent",
                      (long long)now.st_size, mx_cold_has_page(c, &s->talk.ids[i]) ? "there" : "absent");
    }
}

/* All conversations of all, without the last `less` tokens. */
static void read_all(state *s, mx_cold *c, int n_workers, size_t less)
{
    for (int w = -1; w < n_workers; w++) {
        for (int which = 0; which < (w < 0 ? N_SHARED : N_OWN); which++) {
            size_t n = whole_tokens(w, which);
            make_talk(s, w, which, n);
            size_t want = HELP_STATE_BYTES > 0 ? talk_boundary(&s->talk, n - less) : n - less;
            size_t got = help_read_talk(c, &s->talk, n - less);
            if (got < want) { /* with states it may be more: of a shorter one that was written, too */
                print_message("conversation %d of %d: expected %zu tokens of %zu, got %zu\n", which, w, want,
                              n, got);
                print_state(s, c);
                print_message("a second read got %zu\n", help_read_talk(c, &s->talk, n - less));
                fail();
            }
        }
    }
}

static int be_worker(state *s, int me, int n_workers, bool is_all_removed)
{
    s->cfg.tuning.retry_us = 1000;
    s->cfg.tuning.delete_age_s = -1;
    mx_cold *c = help_open(&s->cfg);
    work(s, c, me, n_workers, is_all_removed);
    usleep(2000);
    for (int which = 0; which < N_OWN; which++) {
        write_whole(s, c, me, which);
    }
    for (int which = 0; which < N_SHARED; which++) {
        write_whole(s, c, -1, which);
    }
    report('w');
    wait_for_word();
    read_all(s, c, n_workers, 0);
    /* How a page goes on inside is known from manifests, which a sweep reads. */
    assert_true(mx_cold_sweep(c, WAIT_US));
    read_all(s, c, n_workers, 3);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    if (st.quarantined > 0 || st.is_degraded) {
        print_message("worker %d: quarantined %llu, degraded: \"%s\"\n", me,
                      (unsigned long long)st.quarantined, st.degraded_reason);
        fail();
    }
    report('r');
    wait_for_word();
    mx_cold_close(c);
    return 0;
}

static const char *const removers[] = {"sweep for room", "sweep for time", "gc", "rm", "rm --all"};
enum { SWEEP_ROOM, SWEEP_TIME, GC, RM, RM_ALL, N_REMOVERS };

static void remove_some(state *s, int how, uint64_t r)
{
    mx_cold_counts counts;
    mx_errbuf eb = {{0}};
    uint64_t n_files, n_bytes;
    mx_err err = MX_OK;
    if (how == GC) {
        err = mx_cold_gc(s->dir, NULL, r % 2 == 0 ? 30 * FILE_BYTES : UINT64_MAX, 1, &counts, &eb);
    } else if (how == RM && r % 16 == 0) {
        err = mx_cold_remove_folder(s->dir, NULL, strrchr(s->root_dir, '/') + 1, 1000, &counts, &eb);
    } else if (how == RM) {
        int w = (int)((r >> 16) % (MAX_WORKERS + 1)) - 1, which = (int)((r >> 8) % N_OWN);
        make_talk(s, w, which, whole_tokens(w, which));
        err = mx_cold_remove_entry(s->dir, NULL, NULL, &s->talk.ids[s->talk.n_ids - 1], NULL, 1000,
                                   &counts, &eb);
        err = err == MX_E_NOT_FOUND ? MX_OK : err;
    } else {
        err = mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb);
        usleep((unsigned)(r % 10000));
    }
    if (err != MX_OK) {
        print_message("%s: %s: %s\n", removers[how], mx_err_name(err), eb.text);
        fail();
    }
}

static int be_remover(state *s, int how)
{
    uint64_t random = (uint64_t)time(NULL);
    mx_cold *c = NULL;
    if (how == SWEEP_ROOM || how == SWEEP_TIME) {
        s->cfg.tuning.delete_age_s = -1;
        s->cfg.max_bytes = how == SWEEP_ROOM ? 40 * FILE_BYTES : s->cfg.max_bytes;
        s->cfg.ttl_s = how == SWEEP_TIME ? 1 : 0;
        c = help_open(&s->cfg);
    }
    size_t n = 0;
    for (; !is_told(); n++) {
        if (c != NULL) {
            assert_true(mx_cold_sweep(c, WAIT_US));
        } else {
            remove_some(s, how, help_random(&random));
        }
        usleep(1000);
    }
    if (c != NULL) {
        mx_cold_stats st;
        mx_cold_get_stats(c, &st);
        assert_int_equal(st.quarantined, 0);
        mx_cold_close(c);
    }
    assert_true(n > 0);
    return 0;
}

/* argv: --role worker FOLDER NUMBER OF IS_ALL_REMOVED, or --role remover FOLDER HOW. */
static int play(int argc, char **argv)
{
    state *s = calloc(1, sizeof *s);
    assert_true(argc > 4 && s != NULL);
    char hex[65];
    s->root = help_root(1);
    snprintf(s->dir, sizeof s->dir, "%s", argv[3]);
    s->cfg = help_config(s->dir, &s->root);
    mx_hash256_hex(&s->root, hex);
    snprintf(s->root_dir, sizeof s->root_dir, "%s/v1/%s", s->dir, hex);
    int rc = strcmp(argv[2], "worker") == 0
                 ? be_worker(s, atoi(argv[4]), atoi(argv[5]), atoi(argv[6]) != 0)
                 : be_remover(s, atoi(argv[4]));
    free(s);
    return rc;
}

/* ---- the test -------------------------------------------------------------------------------- */

typedef struct player {
    pid_t pid;
    int say, hear;
} player;

static player start(char *const *argv)
{
    int down[2], up[2];
    assert_int_equal(pipe2(down, O_CLOEXEC), 0);
    assert_int_equal(pipe2(up, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int from = fcntl(down[0], F_DUPFD, 10), to = fcntl(up[1], F_DUPFD, 10);
        if (from < 0 || to < 0 || dup2(from, 0) < 0 || dup2(to, REPORT_FD) < 0) {
            _exit(4);
        }
        close(from);
        close(to);
        execv(self, argv);
        _exit(5);
    }
    close(down[0]);
    close(up[1]);
    return (player){pid, down[1], up[0]};
}

static player start_worker(const state *s, int number, int n_workers, bool is_all_removed)
{
    char me[16], of[16];
    snprintf(me, sizeof me, "%d", number);
    snprintf(of, sizeof of, "%d", n_workers);
    char *const argv[] = {(char *)(uintptr_t)self, "--role", "worker", (char *)(uintptr_t)s->dir, me, of,
                          is_all_removed ? "1" : "0", NULL};
    return start(argv);
}

static player start_remover(const state *s, int how)
{
    char text[16];
    snprintf(text, sizeof text, "%d", how);
    char *const argv[] = {(char *)(uintptr_t)self, "--role", "remover", (char *)(uintptr_t)s->dir, text,
                          NULL};
    return start(argv);
}

static void tell(const player *p)
{
    assert_int_equal(write(p->say, "x", 1), 1);
}

static void end(player *p, bool is_killed)
{
    int status;
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->say);
    close(p->hear);
    assert_true(is_killed ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* False: it is dead. */
static bool hears(const player *p, char what)
{
    char byte = 0;
    return read(p->hear, &byte, 1) == 1 && byte == what;
}

static void on_bad_file(void *arg, const char *path, const char *reason)
{
    (void)arg;
    print_message("%s: %s\n", path, reason);
}

/* Nothing but whole files of the cache, all in their places. */
static void check_folder(state *s, int n_workers)
{
    mx_cold_counts counts;
    mx_errbuf eb = {{0}};
    char path[500], command[700];
    s->cfg.tuning.orphan_age_s = s->cfg.tuning.delete_age_s = -1;
    mx_cold *c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, WAIT_US));
    read_all(s, c, n_workers, 0);
    mx_cold_close(c);
    snprintf(command, sizeof command, "test -z \"$(find '%s' -name '.tmp-*')\"", s->dir);
    assert_int_equal(system(command), 0);
    snprintf(path, sizeof path, "%s/trash", s->root_dir);
    assert_int_equal(help_count(path, ""), 0);
    snprintf(path, sizeof path, "%s/quarantine", s->root_dir);
    assert_int_equal(help_count(path, ""), 0);
    snprintf(path, sizeof path, "%s/" MX_COLD_MARKER_NAME, s->dir);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(mx_cold_verify(s->dir, NULL, NULL, false, on_bad_file, NULL, &counts, &eb), MX_OK);
    assert_int_equal(counts.n_bad, 0);
    assert_true(counts.n_files > 0);
}

static void run(state *s, int how, int n_workers)
{
    uint64_t random = (uint64_t)time(NULL) + (uint64_t)how;
    unsigned run_us = getenv("MTPLX_LONG") != NULL ? 10000000 : 500000;
    player workers[MAX_WORKERS], remover;
    for (int w = 0; w < n_workers; w++) {
        workers[w] = start_worker(s, w, n_workers, how == RM_ALL);
    }
    usleep(100000);
    remover = start_remover(s, how);
    if (n_workers > 1) { /* one dies at work, and comes back */
        usleep(run_us / 4 + (unsigned)(help_random(&random) % 100000));
        kill(workers[0].pid, SIGKILL);
        end(&workers[0], true);
        workers[0] = start_worker(s, 0, n_workers, how == RM_ALL);
    }
    usleep(run_us);
    tell(&remover);
    end(&remover, false);
    for (int step = 0; step < 3; step++) {
        static const char awaited[] = {'w', 'r', 0};
        for (int w = 0; w < n_workers; w++) {
            tell(&workers[w]);
        }
        for (int w = 0; w < n_workers && awaited[step] != 0; w++) {
            if (!hears(&workers[w], awaited[step])) {
                fail_msg("%s beside %d workers: worker %d has failed", removers[how], n_workers, w);
            }
        }
    }
    for (int w = 0; w < n_workers; w++) {
        end(&workers[w], false);
    }
    check_folder(s, n_workers);
    help_remove_tree(s->dir);
}

static void test_two_processes(void **arg)
{
    for (int how = 0; how < N_REMOVERS; how++) {
        run(*arg, how, 1);
    }
}

static void test_four_processes(void **arg)
{
    for (int how = 0; how < N_REMOVERS; how++) {
        run(*arg, how, MAX_WORKERS);
    }
}

int main(int argc, char **argv)
{
    mx_log_set_level(MX_LOG_ERROR);
    self = argv[0];
    signal(SIGPIPE, SIG_IGN); /* of a player that is dead */
    if (argc > 2 && strcmp(argv[1], "--role") == 0) {
        return play(argc, argv);
    }
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_two_processes),
        T(test_four_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
