/* SPDX-License-Identifier: MIT
 *
 * Power cuts. A workload is recorded call by call; then the power fails after each of them (in the
 * short suite after some), what was not synced is lost, torn or there by chance, and a new process
 * opens what is left: everything that was called durable is there, nothing is damaged, nothing wrong
 * is read, nothing is left over after a sweep, and the conversations can go on.
 *
 * And the same where a process was killed before: then the next one relies on names that nobody has
 * synced.
 */
#include "cold/power_help.h"

#include "cold/cold_tools.h"

enum { N_TALKS = 3, N_TURNS = 3, MAX_MARKS = 64 };

/* Conversations, the second a branch of the first; a turn is longer than the one before. */
static const struct {
    uint64_t seed;
    size_t n_tokens[N_TURNS];
} plans[N_TALKS] = {{1, {30, 150, 300}}, {2, {140, 200, 290}}, {3, {64, 90, 128}}};

typedef struct mark { /* after so many events this was called durable */
    size_t n_events;
    unsigned talk, turn;
} mark;

typedef struct state {
    char dir[256], work[300], sub[320], cut[300], cut_sub[320];
    mx_hash256 root;
    mx_cold_config cfg;
    talk talk;
    mark marks[MAX_MARKS];
    size_t n_marks;
    power_disk disk;
} state;

static int setup(void **arg)
{
    state *s = calloc(1, sizeof *s);
    assert_non_null(s);
    help_make_folder(s->dir);
    s->root = help_root(1);
    snprintf(s->work, sizeof s->work, "%s/work", s->dir);
    snprintf(s->sub, sizeof s->sub, "%s/new/cache", s->work);
    snprintf(s->cut, sizeof s->cut, "%s/cut", s->dir);
    snprintf(s->cut_sub, sizeof s->cut_sub, "%s/new/cache", s->cut);
    s->cfg = help_config(s->sub, &s->root);
    s->cfg.tuning.fileops = &power_fileops;
    s->cfg.tuning.delete_age_s = -1;
    s->cfg.tuning.retry_us = 3600000000u;
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

static void make_talk(state *s, unsigned number, unsigned turn)
{
    talk_make(&s->talk, &s->root, plans[0].seed, 0, 1);
    if (number > 0) { /* the branch leaves the first one in its second page */
        talk_make(&s->talk, &s->root, plans[number].seed, number == 1 ? 100 : 0, 1);
    }
    talk_cut(&s->talk, plans[number].n_tokens[turn]);
}

/* One life of a process, until it is done or dead. */
static void live(state *s)
{
    mx_cold *c;
    if (mx_cold_open(&c, &tiny, &s->cfg, NULL) != MX_OK) {
        return;
    }
    mx_cold_sweep(c, 20000000); /* what one before left, before anything of it is used again */
    for (unsigned turn = 0; turn < N_TURNS; turn++) {
        for (unsigned i = 0; i < N_TALKS; i++) {
            make_talk(s, i, turn);
            if (help_write_talk(c, &s->talk) == MX_OK) {
                assert_true(s->n_marks < MAX_MARKS);
                pthread_mutex_lock(&power.lock);
                s->marks[s->n_marks++] = (mark){power.n_events, i, turn};
                pthread_mutex_unlock(&power.lock);
            }
        }
        mx_cold_sweep(c, 20000000); /* partial pages and manifests that were outgrown go */
    }
    mx_cold_close(c);
}

static void begin(state *s)
{
    if (access(s->work, F_OK) == 0) {
        power_remove(s->work);
    }
    assert_int_equal(mkdir(s->work, 0700), 0);
    power_begin(s->work);
    s->n_marks = 0;
}

static void ignore_bad(void *arg, const char *path, const char *reason)
{
    if (*(bool *)arg) {
        print_message("damaged: %s: %s\n", path, reason);
    }
}

/* Is all that was called durable within the first n events there? */
static bool is_durable_there(state *s, mx_cold *c, size_t n, bool is_loud)
{
    for (unsigned i = 0; i < N_TALKS; i++) {
        unsigned n_turns = 0;
        for (size_t k = 0; k < s->n_marks && s->marks[k].n_events <= n; k++) {
            if (s->marks[k].talk == i && s->marks[k].turn >= n_turns) {
                n_turns = s->marks[k].turn + 1;
            }
        }
        make_talk(s, i, N_TURNS - 1);
        size_t got = help_read_talk(c, &s->talk, s->talk.n);
        size_t want = n_turns > 0 ? plans[i].n_tokens[n_turns - 1] : 0;
        if (got < want) {
            if (is_loud) {
                print_message("conversation %u: %zu tokens were durable, %zu are there\n", i, want,
                              got);
            }
            return false;
        }
    }
    return true;
}

static bool is_clean(state *s, bool is_loud)
{
    mx_cold_counts counts;
    mx_errbuf eb;
    char path[700], hex[65];
    struct stat st;
    if (stat(s->cut_sub, &st) != 0) {
        return true; /* nothing was durable */
    }
    mx_hash256_hex(&s->root, hex);
    snprintf(path, sizeof path, "%s/v1/%s/trash", s->cut_sub, hex);
    size_t n_temp = 0, n_trash = help_count(path, "");
    static const char *const folders[] = {"", "/v1", "/v1/%s", "/v1/%s/sessions"};
    for (size_t i = 0; i < MX_COUNT(folders); i++) {
        char tail[200];
        snprintf(tail, sizeof tail, i < 2 ? "%s" : folders[i], i < 2 ? folders[i] : hex);
        snprintf(path, sizeof path, "%s%s", s->cut_sub, tail);
        DIR *d = opendir(path);
        for (const struct dirent *e; d != NULL && i >= 3 && (e = readdir(d)) != NULL;) {
            n_temp += strncmp(e->d_name, ".tmp-", 5) == 0;
        }
        if (d != NULL) {
            closedir(d);
        }
    }
    mx_err err = mx_cold_verify(s->cut_sub, NULL, NULL, false, ignore_bad, &is_loud, &counts, &eb);
    bool is_sound = err == MX_OK && counts.n_bad == 0 && n_temp == 0 && n_trash == 0;
    if (!is_sound && is_loud) {
        print_message("after the sweep: verify %d, %llu damaged, %zu temporary, %zu in trash\n",
                      (int)err, (unsigned long long)counts.n_bad, n_temp, n_trash);
    }
    return is_sound;
}

/* The power fails after n events. False: something was lost, wrong, or left. */
static bool survives(state *s, size_t n, power_fate fate, uint64_t seed, bool is_loud)
{
    power_cut(&s->disk, n, fate, seed);
    power_make(&s->disk, 0, s->cut, 0);
    mx_cold_config cfg = s->cfg;
    mx_cold_stats st;
    cfg.dir = s->cut_sub;
    cfg.tuning.fileops = NULL;
    cfg.tuning.orphan_age_s = -1;
    mx_cold *c = help_open(&cfg);
    bool is_good = is_durable_there(s, c, n, is_loud);
    is_good = is_good && mx_cold_sweep(c, 20000000) && is_durable_there(s, c, n, is_loud);
    is_good = is_good && is_clean(s, is_loud);
    mx_cold_get_stats(c, &st);
    is_good = is_good && st.quarantined == 0 && !st.is_degraded;
    for (unsigned i = 0; is_good && i < N_TALKS; i++) { /* and it goes on */
        make_talk(s, i, N_TURNS - 1);
        is_good = help_write_talk(c, &s->talk) == MX_OK
                  && help_read_talk(c, &s->talk, s->talk.n) == s->talk.n;
    }
    mx_cold_close(c);
    power_remove(s->cut);
    if (!is_good && is_loud) {
        print_message("power cut after event %zu of %zu, fate %d, seed %llu, quarantined %llu\n", n,
                      power.n_events, (int)fate, (unsigned long long)seed,
                      (unsigned long long)st.quarantined);
    }
    return is_good;
}

static bool is_long(void)
{
    return getenv("MTPLX_LONG") != NULL;
}

static void test_every_cut(void **arg)
{
    state *s = *arg;
    begin(s);
    live(s);
    assert_int_equal(s->n_marks, N_TALKS * N_TURNS);
    size_t step = is_long() ? 1 : power.n_events / 40 + 1, n_cuts = 0;
    uint64_t seed = (uint64_t)time(NULL);
    /* An even sample that starts elsewhere each time; all after some runs. */
    for (size_t n = help_random(&seed) % step; n <= power.n_events; n += step) {
        for (int fate = 0; fate < POWER_N_FATES; fate++) {
            assert_true(survives(s, n, (power_fate)fate, help_random(&seed), true));
            n_cuts++;
        }
    }
    assert_true(survives(s, power.n_events, POWER_LOST, 0, true));
    print_message("%zu power cuts in %zu events\n", n_cuts, power.n_events);
}

/* A process is killed; the next one lives through the same; then the power fails. */
static void test_cuts_after_a_kill(void **arg)
{
    state *s = *arg;
    begin(s);
    live(s);
    size_t n_first = power.n_events, step = is_long() ? 1 : n_first / 25 + 1, n_cuts = 0;
    uint64_t seed = (uint64_t)time(NULL);
    for (size_t die_at = help_random(&seed) % step; die_at < n_first; die_at += step) {
        begin(s);
        power.die_at = die_at;
        live(s);
        power.die_at = SIZE_MAX;
        live(s);
        size_t cuts[] = {power.n_events,
                         die_at + help_random(&seed) % (power.n_events - die_at + 1)};
        for (size_t i = 0; i < MX_COUNT(cuts); i++, n_cuts++) {
            power_fate fate = i == 0 ? POWER_LOST : (power_fate)(help_random(&seed) % POWER_N_FATES);
            if (!survives(s, cuts[i], fate, help_random(&seed), true)) {
                print_message("the process before was killed after event %zu\n", die_at);
                fail();
            }
        }
    }
    print_message("%zu power cuts after a kill\n", n_cuts);
}

/* A tier without its syncs must not pass: else the tests above would prove nothing. */
static void test_missing_syncs_are_found(void **arg)
{
    state *s = *arg;
    for (int which = 0; which < 2; which++) {
        begin(s);
        power.ignores_file_syncs = which == 0;
        power.ignores_folder_syncs = which == 1;
        live(s);
        size_t n_bad = 0, n_cuts = 0;
        uint64_t seed = 1;
        mx_log_set_level(MX_LOG_ERROR);
        for (size_t n = power.n_events / 8; n <= power.n_events; n += power.n_events / 8, n_cuts++) {
            n_bad += !survives(s, n, which == 0 ? POWER_TORN : POWER_LOST, help_random(&seed), false);
        }
        print_message("%s: %zu of %zu cuts lose or damage something\n",
                      which == 0 ? "files not synced" : "folders not synced", n_bad, n_cuts);
        assert_true(n_bad > n_cuts / 2);
    }
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_every_cut),
        T(test_cuts_after_a_kill),
        T(test_missing_syncs_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
