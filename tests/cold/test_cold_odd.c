/* SPDX-License-Identifier: MIT
 *
 * Odd things in the folder: bad files that cannot be moved away, folders in the place of files and
 * files in the place of folders, files with holes, many models. Each costs what it is worth, never
 * the whole tier.
 */
#include "cold/cold_help.h"

#include <stdatomic.h>
#include <sys/uio.h>

#include "cold/cold_files.h"

static atomic_int n_reads, n_utimens, n_syncs;
static atomic_int n_vanishing; /* so many folders are removed before a file can be made in them */
static atomic_bool is_read_only, is_unreadable, is_short_of_files;

static int open_unless_short(int dir, const char *name, int flags, unsigned mode)
{
    if (atomic_load(&is_short_of_files) && strlen(name) == 2) { /* pages/xx */
        errno = EMFILE;
        return -1;
    }
    if (strncmp(name, ".tmp-", 5) == 0 && atomic_load(&n_vanishing) > 0) {
        atomic_fetch_sub(&n_vanishing, 1);
        errno = ENOENT;
        return -1;
    }
    return mx_cold_real_fileops.open(dir, name, flags, mode);
}

static ssize_t count_preadv(int fd, const struct iovec *iov, int n, long at)
{
    atomic_fetch_add(&n_reads, 1);
    if (atomic_load(&is_unreadable)) {
        errno = EIO;
        return -1;
    }
    return mx_cold_real_fileops.preadv(fd, iov, n, at);
}

static int deny_rename(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    if (atomic_load(&is_read_only)) {
        errno = EROFS;
        return -1;
    }
    return mx_cold_real_fileops.rename(old_dir, old_name, new_dir, new_name);
}

static int count_utimens(int dir, const char *name, const struct timespec times[2])
{
    atomic_fetch_add(&n_utimens, 1);
    return mx_cold_real_fileops.utimens(dir, name, times);
}

static int count_fsync(int fd)
{
    atomic_fetch_add(&n_syncs, 1);
    return mx_cold_real_fileops.fsync(fd);
}

typedef struct state {
    char dir[256];
    mx_hash256 root;
    mx_cold_config cfg;
    mx_cold_fileops ops;
    talk talk;
} state;

static int setup(void **arg)
{
    state *s = calloc(1, sizeof *s);
    help_make_folder(s->dir);
    s->root = help_root(1);
    s->cfg = help_config(s->dir, &s->root);
    s->ops = mx_cold_real_fileops;
    s->ops.preadv = count_preadv;
    s->ops.rename = deny_rename;
    s->ops.utimens = count_utimens;
    s->ops.fsync = count_fsync;
    s->ops.open = open_unless_short;
    s->cfg.tuning.fileops = &s->ops;
    atomic_store(&is_read_only, false);
    atomic_store(&is_unreadable, false);
    atomic_store(&is_short_of_files, false);
    talk_make(&s->talk, &s->root, 3, 0, 2 * 64 + 9);
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

static void write_talk(state *s)
{
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
}

static void page_path(const state *s, size_t page, char out[500])
{
    char root[65], own[65];
    mx_hash256_hex(&s->root, root);
    mx_hash256_hex(&s->talk.ids[page], own);
    snprintf(out, 500, "%s/v1/%s/pages/%.2s/%s.page", s->dir, root, own, own);
}

static void spoil(const char *path)
{
    static uint8_t bytes[16384];
    size_t n = help_slurp(path, bytes, sizeof bytes);
    assert_true(n > 5000);
    bytes[5000] ^= 1;
    help_spill(path, bytes, n);
}

/* It is read once, and reported once; the rest of the chain is used all the same. When the folder
 * can be written again, the page is stored over it. */
static void test_bad_file_that_cannot_be_moved(void **arg)
{
    state *s = *arg;
    char path[500];
    write_talk(s);
    page_path(s, 1, path);
    spoil(path);
    atomic_store(&is_read_only, true);
    mx_cold *c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 64);
    atomic_store(&n_reads, 0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 64);
    }
    assert_int_equal(atomic_load(&n_reads), 10); /* page 0 each time */
    assert_true(mx_cold_sweep(c, 10000000));     /* which sees the name */
    assert_false(mx_cold_has_page(c, &s->talk.ids[1]));
    assert_true(mx_cold_has_page(c, &s->talk.ids[0]));
    atomic_store(&is_read_only, false);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    mx_cold_close(c);
}

/* What was condemned but cannot be moved now, for too many files are open, must not be believed again when there
 * is room. */
static void test_condemned_while_files_are_short(void **arg)
{
    state *s = *arg;
    write_talk(s);
    mx_cold *c = help_open_settled(&s->cfg);
    mx_cold_job job = {.kind = MX_COLD_CONDEMN,
                       .root = s->root,
                       .page_ids = &s->talk.ids[1],
                       .n_pages = 1,
                       .reason = "test"};
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n); /* the folders are open */
    assert_int_equal(mx_cold_sweep(c, 20000000), true);
    talk other;
    talk_make(&other, &s->root, 4, 0, 64);
    assert_int_equal(help_write_page(c, &other, 0), MX_OK);
    atomic_store(&is_short_of_files, true);
    assert_int_not_equal(help_run(c, &job), MX_OK);
    atomic_store(&is_short_of_files, false);
    assert_false(mx_cold_has_page(c, &s->talk.ids[1]));
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 64);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK); /* another file of that name */
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    mx_cold_close(c);
}

/* Reading that fails is said to fail until it works, whatever writing does, and the other way
 * round. */
static void test_reading_and_writing_fail_apart(void **arg)
{
    state *s = *arg;
    mx_cold_stats st;
    write_talk(s);
    talk other;
    talk_make(&other, &s->root, 4, 0, 64);
    s->cfg.tuning.retry_us = 3600000000u;
    mx_cold *c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    atomic_store(&is_unreadable, true);
    assert_int_equal(help_read_talk(c, &s->talk, 64), 0);
    mx_cold_get_stats(c, &st);
    assert_true(st.is_degraded);
    assert_int_equal(help_write_talk(c, &other), MX_OK); /* does not wait for the retry time */
    mx_cold_get_stats(c, &st);
    assert_true(st.is_degraded);
    atomic_store(&is_unreadable, false);
    assert_int_equal(help_read_talk(c, &other, 64), 64);
    mx_cold_get_stats(c, &st);
    assert_false(st.is_degraded);
    atomic_store(&is_read_only, true);
    talk_make(&other, &s->root, 5, 0, 64);
    assert_int_equal(help_write_talk(c, &other), MX_E_DENIED);
    help_read_talk(c, &s->talk, 64);
    mx_cold_get_stats(c, &st);
    assert_true(st.is_degraded);
    mx_cold_close(c);
}

static void test_folders_and_files_in_each_others_place(void **arg)
{
    state *s = *arg;
    char path[500], command[2400], root[65], last[65];
    mx_cold_stats st;
    mx_hash256_hex(&s->root, root);
    mx_hash256_hex(&s->talk.ids[2], last);
    write_talk(s);
    for (int round = 0; round < 3; round++) {
        page_path(s, 0, path);
        snprintf(command, sizeof command,
                 "set -e; rm -rf '%s'; mkdir '%s'; echo x > '%s/x'; cd '%s/v1/%s';"
                 "rm -rf pages/%.2s; echo x > pages/%.2s;"
                 "rm -rf sessions/%s.session; mkdir sessions/%s.session; echo x > "
                 "sessions/%s.session/x",
                 path, path, path, s->dir, root, last, last, last, last, last);
        assert_int_equal(system(command), 0);
        mx_cold *c = help_open(&s->cfg);
        assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 0);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
        mx_cold_get_stats(c, &st);
        assert_false(st.is_degraded);
        assert_true(st.quarantined >= 3);
        mx_cold_close(c);
    }
}

/* `cache rm --all` removes folders as fast as they are made again, but not for ever. */
static void test_folders_that_keep_vanishing(void **arg)
{
    state *s = *arg;
    mx_cold_stats st;
    s->cfg.tuning.retry_us = 3600000000u;
    mx_cold *c = help_open_settled(&s->cfg);
    for (size_t i = 0; i < s->talk.n_ids; i++) {
        atomic_store(&n_vanishing, 5);
        assert_int_equal(help_write_page(c, &s->talk, i), MX_OK);
    }
    atomic_store(&n_vanishing, 5);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    mx_cold_get_stats(c, &st);
    assert_false(st.is_degraded);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    mx_cold_close(c);
}

/* One strange name does not stop the sweep from seeing the rest. */
static void test_sweep_passes_over_strange_folders(void **arg)
{
    state *s = *arg;
    char command[900], root[65];
    mx_hash256_hex(&s->root, root);
    write_talk(s);
    snprintf(command, sizeof command,
             "cd '%s/v1/%s/pages' && for i in 00 11 22 33; do [ -e $i ] || ln -s / $i; done; "
             "for i in 44 55 66; do [ -e $i ] || echo x > $i; done", s->dir, root);
    assert_int_equal(system(command), 0);
    mx_cold_stats st;
    mx_cold *c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.files, 4); /* three pages, a manifest */
    assert_true(mx_cold_has_page(c, &s->talk.ids[0]));
    mx_cold_close(c);
}

/* As long as the sweep cannot lock others out, or see everything, the folder only grows: people are told,
 * once, and where. */
static void test_what_hinders_deleting_is_said(void **arg)
{
    static const struct {
        const char *harm, *mend, *text;
    } cases[] = {
        {"ln -s / v1/gc.lock", "rm v1/gc.lock", "/v1/gc.lock is not a file: remove it"},
        {"mkdir v1/gc.lock", "rmdir v1/gc.lock", "/v1/gc.lock is not a file: remove it"},
        {"mkfifo v1/gc.lock", "rm v1/gc.lock", "/v1/gc.lock is not a file: remove it"},
        {"chmod 777 v1/*/pages/*", "chmod 700 v1/*/pages/*", "/pages/"},
    };
    state *s = *arg;
    char command[900], text[4000];
    write_talk(s);
    mx_cold *c = help_open_settled(&s->cfg);
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        snprintf(command, sizeof command, "cd '%s' && echo x > v1/.tmp-1-1-1 && touch -d '2 days ago' "
                 "v1/.tmp-1-1-1 && rm -f v1/gc.lock && %s", s->dir, cases[i].harm);
        assert_int_equal(system(command), 0);
        const help_log log = help_log_begin();
        assert_true(mx_cold_sweep(c, 10000000));
        assert_true(mx_cold_sweep(c, 10000000));
        help_log_end(&log, text, sizeof text);
        if (help_count_text(text, "warning: ") != 1 || strstr(text, cases[i].text) == NULL
            || strstr(text, "nothing is deleted") == NULL || help_count(s->dir, "-1-1") != 1)
        {
            print_message("%s: expected one warning, got: %s\n", cases[i].harm, text);
            fail();
        }
        snprintf(command, sizeof command, "cd '%s' && %s", s->dir, cases[i].mend);
        assert_int_equal(system(command), 0);
        assert_true(mx_cold_sweep(c, 10000000));
        assert_int_equal(help_count(s->dir, "-1-1"), 0);
    }
    mx_cold_close(c);
}

/* A file with a hole of a terabyte is not a full folder. What is in quarantine gives way first. */
static void test_holes_and_quarantine_cost_no_pages(void **arg)
{
    state *s = *arg;
    char command[1200], root[65];
    mx_hash256_hex(&s->root, root);
    write_talk(s);
    snprintf(command, sizeof command,
             "cd '%s/v1/%s' && mkdir -p quarantine && n=%064d && truncate -s 1T sessions/$n.session && "
             "head -c 3000000 /dev/zero > quarantine/$n.page && touch -d '1 day ago' */*.* */*/*.* && "
             "touch -d '2 days ago' pages/*/*",
             s->dir, root, 7);
    assert_int_equal(system(command), 0);
    s->cfg.max_bytes = 1 << 20;
    mx_cold_stats st;
    mx_cold *c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_get_stats(c, &st);
    assert_true(st.bytes < 1 << 20);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    mx_cold_close(c);
}

/* Each new model, setting or version of the numerics makes a folder: they all count. */
static void test_two_hundred_models(void **arg)
{
    state *s = *arg;
    char command[900];
    write_talk(s);
    snprintf(command, sizeof command,
             "cd '%s/v1' && for i in $(seq 200); do d=$(printf %%064x $i)/pages/ab; mkdir -p $d; "
             "n=$(printf ab%%062x $i); head -c 100 /dev/zero > $d/$n.page; done; chmod -R go-w .",
             s->dir);
    assert_int_equal(system(command), 0);
    mx_cold_stats st;
    mx_cold *c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.files, 4 + 200);
    assert_true(mx_cold_has_page(c, &s->talk.ids[0])); /* ours was among those that were seen */
    mx_cold_close(c);
}

static void test_removed_folder_is_forgotten(void **arg)
{
    state *s = *arg;
    mx_cold_stats st;
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    help_remove_tree(s->dir);
    assert_true(mx_cold_sweep(c, 10000000));
    assert_false(mx_cold_has_page(c, &s->talk.ids[0]));
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.bytes, 0);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
}

/* The same manifest again costs no write and no sync; one of a turn stands for that of a prompt; one
 * that was removed is written again. */
static void test_same_manifest_is_not_written_again(void **arg)
{
    state *s = *arg;
    char path[500], root[65], last[65];
    mx_cold_stats st;
    s->cfg.tuning.delete_age_s = 600;
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    atomic_store(&n_syncs, 0);
    atomic_store(&n_utimens, 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    }
    assert_int_equal(atomic_load(&n_syncs), 0);
    assert_int_equal(atomic_load(&n_utimens), 0);
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.sessions_written, 1);
    assert_int_equal(st.sessions_skipped, 5);
    mx_hash256_hex(&s->root, root);
    mx_hash256_hex(&s->talk.ids[2], last);
    snprintf(path, sizeof path, "%s/v1/%s/sessions/%s.session", s->dir, root, last);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    assert_int_equal(access(path, F_OK), 0);
    page_path(s, 1, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(help_write_session(c, &s->talk), MX_E_NOT_FOUND);
    mx_cold_close(c);
}

/* Where files may be deleted at any age, each use counts. */
static void test_age_is_kept_fresh(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.delete_age_s = -1;
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    atomic_store(&n_utimens, 0);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    assert_int_equal(atomic_load(&n_utimens), 4); /* three pages, the manifest */
    mx_cold_close(c);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_bad_file_that_cannot_be_moved),
        T(test_condemned_while_files_are_short),
        T(test_reading_and_writing_fail_apart),
        T(test_folders_and_files_in_each_others_place),
        T(test_folders_that_keep_vanishing),
        T(test_sweep_passes_over_strange_folders),
        T(test_what_hinders_deleting_is_said),
        T(test_holes_and_quarantine_cost_no_pages),
        T(test_two_hundred_models),
        T(test_removed_folder_is_forgotten),
        T(test_same_manifest_is_not_written_again),
        T(test_age_is_kept_fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
