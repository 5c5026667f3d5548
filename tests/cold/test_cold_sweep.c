/* SPDX-License-Identifier: MIT
 *
 * What is deleted, what is left alone, and which folders are refused.
 */
#include "cold/cold_help.h"

#include "cold/cold_files.h"
#include "cold/cold_tools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mount.h>

typedef help_bed state;

static void add_size(const char *path, void *arg)
{
    struct stat st;
    if (lstat(path, &st) == 0) {
        *(uint64_t *)arg += (uint64_t)st.st_size;
    } else { /* the sweep got there first */
        assert_int_equal(errno, ENOENT);
    }
}

static uint64_t bytes_below(const char *path)
{
    uint64_t bytes = 0;
    help_each_file(path, "", add_size, &bytes);
    return bytes;
}

static void sweep(mx_cold *c)
{
    assert_true(mx_cold_sweep(c, 20000000));
}

static void test_over_budget_goes_leaf_first(void **arg)
{
    state *s = *arg;
    enum { PAGES = 10, FILE_BYTES = MX_DISK_PAYLOAD_AT + TINY_BYTES };
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, PAGES * 64);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    usleep(20000); /* the step of file times */
    talk_make(&s->other, &s->root, 2, 0, PAGES * 64);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    mx_cold_close(c);

    s->cfg.max_bytes = 25 * FILE_BYTES;
    c = help_open_settled(&s->cfg);
    sweep(c);
    char v1[300];
    snprintf(v1, sizeof v1, "%s/v1", s->dir);
    assert_true(bytes_below(v1) <= s->cfg.max_bytes);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_true(st.bytes <= s->cfg.max_bytes);
    assert_int_equal(st.bytes + strlen(s->cfg.model_json), bytes_below(v1));
    assert_true(st.files_swept > 0);
    /* The older one has lost its end, not its beginning; the younger one nothing. */
    assert_int_equal(help_read_talk(c, &s->other, s->other.n), s->other.n);
    size_t left = help_read_talk(c, &s->talk, s->talk.n);
    assert_true(left >= 2 * 64 && left < s->talk.n);
    assert_int_equal(left % 64, 0);
    for (size_t i = 0; i < PAGES; i++) {
        assert_int_equal(mx_cold_has_page(c, &s->talk.ids[i]), i < left / 64);
    }
    mx_cold_close(c);
    assert_int_equal(help_count(s->root_dir, ".page"), PAGES + left / 64);
}

/* Used last = deleted last, also when it was written first. */
static void test_reading_makes_young(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 640);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    talk_make(&s->other, &s->root, 2, 0, 640);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    help_age_all(s, ".page", 5000);
    assert_int_equal(help_read_talk(c, &s->talk, 640), 640);
    mx_cold_close(c);
    s->cfg.max_bytes = 24 * (MX_DISK_PAYLOAD_AT + TINY_BYTES);
    c = help_open_settled(&s->cfg);
    sweep(c);
    assert_int_equal(help_read_talk(c, &s->talk, 640), 640);
    assert_true(help_read_talk(c, &s->other, 640) < 640);
    mx_cold_close(c);
}

/* So is its manifest, though no reader touches that: without it nobody could tell after a restart how
 * the conversation goes on inside of a page. */
static void test_reading_makes_the_manifest_young(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 100);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    talk_make(&s->other, &s->root, 2, 0, 640);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    help_age_all(s, ".session", 9000);
    assert_int_equal(help_read_talk(c, &s->talk, 100), 100);
    mx_cold_close(c);
    s->cfg.max_bytes = 12 * (MX_DISK_PAYLOAD_AT + TINY_BYTES);
    c = help_open_settled(&s->cfg);
    sweep(c);
    mx_cold_close(c);
    char path[700];
    help_session_path(s, &s->talk.ids[1], path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(help_count(s->root_dir, ".session"), 1); /* the other's went with its last page */
    c = help_open_settled(&s->cfg);
    assert_int_equal(help_read_talk(c, &s->talk, 90), 90);
    assert_true(help_read_talk(c, &s->other, 640) < 640);
    mx_cold_close(c);
}

static void test_young_files_are_never_deleted(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.delete_age_s = 0; /* the default: 10 minutes */
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 640);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    s->cfg.max_bytes = 4 * (MX_DISK_PAYLOAD_AT + TINY_BYTES);
    c = help_open_settled(&s->cfg);
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".page"), 10);
    /* Over the limit nothing is added, and that is not a fault of the folder. */
    talk_make(&s->other, &s->root, 2, 0, 64);
    assert_int_equal(help_write_page(c, &s->other, 0), MX_E_FULL);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_false(st.is_degraded);
    assert_int_equal(st.dropped_full, 1);
    help_age_all(s, ".page", 540);
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".page"), 10);
    help_age_all(s, "", 700);
    sweep(c);
    assert_true(help_count(s->root_dir, ".page") <= 4);
    assert_int_equal(help_write_page(c, &s->other, 0), MX_OK);
    mx_cold_close(c);
}

/* The writer that runs out of room starts the sweep by itself. */
static void test_writer_starts_the_sweep(void **arg)
{
    state *s = *arg;
    s->cfg.max_bytes = 40 * (MX_DISK_PAYLOAD_AT + TINY_BYTES);
    s->cfg.tuning.retry_us = 1000;
    mx_cold *c = help_open_settled(&s->cfg);
    size_t n_ok = 0;
    for (uint64_t i = 0; i < 40; i++) {
        talk_make(&s->talk, &s->root, i, 0, 4 * 64);
        n_ok += help_write_talk(c, &s->talk) == MX_OK;
        usleep(2000);
        mx_cold_stats st;
        mx_cold_get_stats(c, &st);
        assert_true(bytes_below(s->root_dir) <= s->cfg.max_bytes + 4096);
    }
    assert_true(n_ok > 20);
    sweep(c);
    mx_cold_close(c);
    assert_true(help_count(s->root_dir, ".page") >= 20);
}

static void test_superseded_partial_pages_go(void **arg)
{
    state *s = *arg;
    for (int reopen = 0; reopen < 2; reopen++) {
        mx_cold *c = help_open_settled(&s->cfg);
        talk_make(&s->talk, &s->root, (uint64_t)reopen, 0, 64 + 20);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        /* A branch that leaves inside of the partial page keeps it alive. */
        s->other = s->talk;
        talk_make(&s->other, &s->root, 77, 64 + 10, 128);
        assert_int_equal(help_write_talk(c, &s->other), MX_OK);
        sweep(c);
        assert_int_equal(help_read_talk(c, &s->talk, 84), 84);
        assert_int_equal(help_count(s->root_dir, ".session"), 2);
        /* Now the same conversation goes on, and the partial page is part of a full one. */
        talk_cut(&s->talk, 128 + 5);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        if (reopen) { /* known by manifests and page heads alone */
            mx_cold_close(c);
            c = help_open_settled(&s->cfg);
        }
        sweep(c);
        sweep(c);
        talk_cut(&s->talk, 84);
        assert_false(mx_cold_has_page(c, &s->talk.ids[1]));
        assert_int_equal(help_count(s->root_dir, ".page"), 1 + 1 + 1 + 1);
        assert_int_equal(help_count(s->root_dir, ".session"), 2);
        assert_int_equal(help_read_talk(c, &s->talk, 84), 84); /* rows of the full page */
        assert_int_equal(help_read_talk(c, &s->other, 128), 128);
        mx_cold_close(c);
        help_remove_tree(s->dir);
    }
}

/* Under the limit the longer conversation has lost its end and its manifest, not yet the full page: who
 * starts later would not know that this page goes on where the shorter one's is gone. */
static void test_partial_page_outlives_an_unnamed_full_one(void **arg)
{
    state *s = *arg;
    char path[700];
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 64 + 20);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    talk_cut(&s->talk, 128 + 5);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    help_page_path(s, &s->talk.ids[2], path);
    assert_int_equal(unlink(path), 0);
    help_session_path(s, &s->talk.ids[2], path);
    assert_int_equal(unlink(path), 0);
    sweep(c);
    sweep(c);
    mx_cold_close(c);
    c = help_open_settled(&s->cfg);
    talk_cut(&s->talk, 64 + 20);
    assert_int_equal(help_read_talk(c, &s->talk, 64 + 20), 64 + 20);
    mx_cold_close(c);
}

static void test_superfluous_manifests_go(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 64);
    for (int i = 1; i <= 5; i++) {
        talk_cut(&s->talk, (size_t)i * 64);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    }
    assert_int_equal(help_count(s->root_dir, ".session"), 5);
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    /* Its first page is gone: the rest can never be reached. */
    char path[700];
    help_page_path(s, &s->talk.ids[0], path);
    assert_int_equal(unlink(path), 0);
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".session"), 0);
    assert_false(mx_cold_has_page(c, &s->talk.ids[0]));
    mx_cold_close(c);
}

static atomic_bool is_short_of_files;
static atomic_int n_refused; /* calls that a test lets fail */

static int open_with_few_files(int dir, const char *name, int flags, unsigned mode)
{
    if (atomic_load(&is_short_of_files) && strcmp(name, "pages") == 0) {
        atomic_fetch_add(&n_refused, 1);
        errno = EMFILE;
        return -1;
    }
    return mx_cold_real_fileops.open(dir, name, flags, mode);
}

/* Pages that cannot be seen for a moment, for this process has too many files open, are not gone: their
 * manifests stay. */
static void test_walk_that_cannot_see_pages_deletes_nothing(void **arg)
{
    state *s = *arg;
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.open = open_with_few_files;
    s->cfg.tuning.fileops = &ops;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 300);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    sweep(c); /* it has the folder open from now on */
    atomic_store(&n_refused, 0);
    atomic_store(&is_short_of_files, true);
    sweep(c);
    atomic_store(&is_short_of_files, false);
    assert_true(atomic_load(&n_refused) > 0);
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    assert_true(mx_cold_has_page(c, &s->talk.ids[0]));
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    mx_cold_close(c);
}

/* A beginning that was stored as an entry, too, outlives the entry that went on from it. */
static void test_manifest_stays_when_the_longer_one_goes(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.delete_age_s = 0; /* the default: 10 minutes */
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 128);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    talk_make(&s->other, &s->root, 1, 0, 320);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    sweep(c); /* both are too young to go */
    assert_int_equal(help_count(s->root_dir, ".session"), 2);
    mx_cold_counts n;
    mx_errbuf eb;
    assert_int_equal(mx_cold_remove_entry(s->dir, NULL, NULL, &s->other.ids[4], NULL, 0, &n, &eb), MX_OK);
    assert_int_equal(n.n_files, 1 + 3);
    help_age_all(s, "", 700);
    sweep(c);
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    assert_int_equal(help_count(s->root_dir, ".page"), 2);
    /* The longer one comes back: now the shorter one says nothing that it does not. */
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    help_age_all(s, "", 700);
    sweep(c);
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    assert_int_equal(help_read_talk(c, &s->other, 320), 320);
    mx_cold_close(c);
}

/* What a later version has written may be of use in a way that we do not know. */
static void test_manifest_of_another_version_stays(void **arg)
{
    state *s = *arg;
    uint8_t bytes[4096];
    char path[700];
    mx_cold *c = help_open(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 128);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    help_session_path(s, &s->talk.ids[1], path);
    size_t n = help_slurp(path, bytes, sizeof bytes);
    mx_put_le32(bytes + 8, 3);
    mx_hash128 sum = mx_xxh3_128(bytes, 240);
    memcpy(bytes + 240, sum.b, sizeof sum.b);
    help_spill(path, bytes, n);
    char page[700];
    help_page_path(s, &s->talk.ids[1], page);
    assert_int_equal(unlink(page), 0);
    c = help_open_settled(&s->cfg);
    sweep(c);
    assert_int_equal(access(path, F_OK), 0);
    mx_cold_close(c);
}

static void test_leftovers_and_foreign_names(void **arg)
{
    state *s = *arg;
    char path[700];
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 70);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    snprintf(path, sizeof path, "%s/trash", s->root_dir);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/quarantine", s->root_dir);
    assert_int_equal(mkdir(path, 0700), 0);
    help_spill_aged(s, "sessions/.tmp-1-old", 4000);
    help_spill_aged(s, "sessions/.tmp-2-young", 3000);
    /* Of model.json, written.txt and the marker, by a process that was killed. */
    static const char *const strays[] = {".tmp-3", "../.tmp-4", "../../.tmp-5"};
    for (size_t i = 0; i < MX_COUNT(strays); i++) {
        char young[40];
        snprintf(young, sizeof young, "%s-young", strays[i]);
        help_spill_aged(s, strays[i], 4000);
        help_spill_aged(s, young, 3000);
    }
    help_spill_aged(s, "sessions/notes.txt", 900000);
    help_spill_aged(s, "trash/something.page", 10);
    help_spill_aged(s, "README", 900000);
    for (int i = 0; i < 200; i++) {
        char name[64];
        snprintf(name, sizeof name, "quarantine/bad%03d", i);
        help_spill_aged(s, name, 10000 - i);
    }
    snprintf(path, sizeof path, "%s/v2", s->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/v1/gc.lock", s->dir);
    int lock = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(lock >= 0);
    /* Somebody else deletes now: we do not. */
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    sweep(c);
    assert_true(help_is_there(s, "sessions/.tmp-1-old"));
    assert_true(help_is_there(s, "trash/something.page"));
    close(lock);
    sweep(c);
    assert_false(help_is_there(s, "sessions/.tmp-1-old"));
    assert_true(help_is_there(s, "sessions/.tmp-2-young"));
    for (size_t i = 0; i < MX_COUNT(strays); i++) {
        char young[40];
        snprintf(young, sizeof young, "%s-young", strays[i]);
        assert_false(help_is_there(s, strays[i]));
        assert_true(help_is_there(s, young));
    }
    assert_true(help_is_there(s, "sessions/notes.txt"));
    assert_true(help_is_there(s, "README"));
    assert_false(help_is_there(s, "trash/something.page"));
    assert_false(help_is_there(s, "quarantine/bad000"));
    assert_true(help_is_there(s, "quarantine/bad199"));
    assert_int_equal(help_count(s->root_dir, "") >= 128, true);
    assert_int_equal(help_read_talk(c, &s->talk, 70), 70);
    mx_cold_close(c);
}

/* A process that is killed while it deletes leaves a file in trash/. Was it in use then, it is needed. */
static void trash_and_back(state *s)
{
    char name[2][100], from[700], to[700];
    int64_t age = 864000;
    s->cfg.tuning.delete_age_s = 600;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 128);
    talk_make(&s->other, &s->root, 2, 0, 64);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    snprintf(to, sizeof to, "%s/trash", s->root_dir);
    (void)mkdir(to, 0700);
    for (int i = 0; i < 2; i++) {
        char hex[65];
        mx_hash256_hex(i == 0 ? &s->talk.ids[1] : &s->other.ids[0], hex);
        snprintf(name[i], sizeof name[i], "pages/%.2s/%s.page", hex, hex);
        snprintf(from, sizeof from, "%s/%s", s->root_dir, name[i]);
        snprintf(to, sizeof to, "%s/trash/%s.page", s->root_dir, hex);
        if (i == 1) {
            help_age(from, &age);
        }
        assert_int_equal(rename(from, to), 0);
    }
    sweep(c);
    assert_true(help_is_there(s, name[0]));
    assert_false(help_is_there(s, name[1]));
    snprintf(to, sizeof to, "%s/trash", s->root_dir);
    assert_int_equal(help_count(to, ""), 0);
    assert_int_equal(help_read_talk(c, &s->talk, 128), 128);
    mx_cold_close(c);
}

static void test_trash_gives_back_what_was_in_use(void **arg)
{
    trash_and_back(*arg);
}

static int cannot_rename_new(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    (void)old_dir, (void)old_name, (void)new_dir, (void)new_name;
    atomic_fetch_add(&n_refused, 1);
    errno = EINVAL;
    return -1;
}

/* NFS and others cannot rename without replacing. */
static void test_trash_gives_back_on_any_file_system(void **arg)
{
    state *s = *arg;
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.rename_new = cannot_rename_new;
    s->cfg.tuning.fileops = &ops;
    atomic_store(&n_refused, 0);
    trash_and_back(s);
    assert_true(atomic_load(&n_refused) > 0);
}

/* Files of another model count, and are the first to go when they are the oldest. */
static void test_limit_covers_all_models(void **arg)
{
    state *s = *arg;
    mx_hash256 elder = help_root(9);
    mx_cold_config cfg = s->cfg;
    cfg.root = elder;
    mx_cold *c = help_open(&cfg);
    talk_make(&s->other, &elder, 1, 0, 640);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    mx_cold_close(c);
    int64_t age = 100;
    help_each_file(s->dir, ".page", help_age, &age);
    s->cfg.max_bytes = 16 * (MX_DISK_PAYLOAD_AT + TINY_BYTES);
    c = help_open_settled(&s->cfg);
    sweep(c);
    talk_make(&s->talk, &s->root, 1, 0, 256);
    mx_err err = help_write_talk(c, &s->talk);
    for (int i = 0; err != MX_OK && i < 5; i++) {
        sweep(c);
        err = help_write_talk(c, &s->talk);
    }
    sweep(c);
    assert_int_equal(help_read_talk(c, &s->talk, 256), 256);
    assert_true(help_count(s->dir, ".page") <= 8);
    assert_int_equal(help_count(s->root_dir, ".page"), 4);
    mx_cold_close(c);
}

/* ---- folders that are refused ---------------------------------------------------------------- */

static void check_refused(state *s, const char *why)
{
    talk_make(&s->talk, &s->root, 1, 0, 70);
    mx_cold *c = help_open_settled(&s->cfg);
    mx_err err = help_write_page(c, &s->talk, 0);
    assert_true(err == MX_E_DENIED || err == MX_E_IO); /* the latter when the sweep met it first */
    assert_int_equal(help_read_talk(c, &s->talk, 70), 0);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    if (!st.is_degraded || strstr(st.degraded_reason, why) == NULL) {
        print_message("expected \"%s\", got \"%s\"\n", why, st.degraded_reason);
        fail();
    }
    mx_cold_close(c);
}

static void test_refused_folders(void **arg)
{
    state *s = *arg;
    char link[300], path[700], target[300];
    /* writable by others */
    assert_int_equal(chmod(s->dir, 0777), 0);
    check_refused(s, "others can write");
    assert_int_equal(chmod(s->dir, 0720), 0);
    check_refused(s, "others can write");
    assert_int_equal(chmod(s->dir, 0700), 0);
    /* a symbolic link in its place, with and without a slash behind it */
    snprintf(target, sizeof target, "%s/target", s->dir);
    snprintf(link, sizeof link, "%s/link", s->dir);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, link), 0);
    s->cfg.dir = link;
    check_refused(s, "cannot open the folder");
    snprintf(path, sizeof path, "%s/", link);
    s->cfg.dir = path;
    check_refused(s, "cannot open the folder");
    /* a link one level below */
    snprintf(path, sizeof path, "%s/v1", s->dir);
    assert_int_equal(symlink(target, path), 0);
    s->cfg.dir = s->dir;
    check_refused(s, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(help_count(target, ""), 0);
    /* a file in its place */
    snprintf(path, sizeof path, "%s/file", s->dir);
    help_spill(path, (const uint8_t *)"x", 1);
    s->cfg.dir = path;
    check_refused(s, "cannot open the folder");
}

static void test_refused_owner(void **arg)
{
    state *s = *arg;
    if (geteuid() != 0) {
        print_message("SKIPPED: only root can make a folder that belongs to somebody else\n");
        skip();
    }
    assert_int_equal(chown(s->dir, 65534, 65534), 0);
    check_refused(s, "belongs to user 65534");
}

static void test_removed_while_running(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.retry_us = 1;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 200);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        assert_int_equal(help_read_talk(c, &s->talk, 200), 200);
        help_remove_tree(s->dir);
        assert_int_equal(help_read_talk(c, &s->talk, 200), 0);
        /* The index still believes in the pages; the manifest finds out. */
        assert_int_equal(help_write_session(c, &s->talk), MX_E_NOT_FOUND);
        assert_false(mx_cold_has_page(c, &s->talk.ids[0]));
    }
    mx_cold_close(c);
}

static void test_small_and_vanishing_disk(void **arg)
{
    state *s = *arg;
    char disk[300], dir[400];
    snprintf(disk, sizeof disk, "%s/disk", s->dir);
    assert_int_equal(mkdir(disk, 0700), 0);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=256k,mode=700") != 0) {
        if (errno != EPERM) {
            fail_msg("a small tmpfs cannot be mounted: %s", strerror(errno));
        }
        print_message("SKIPPED: this user may not mount a small tmpfs\n");
        skip();
    }
    snprintf(dir, sizeof dir, "%s/cache", disk);
    s->cfg.dir = dir;
    s->cfg.tuning.retry_us = 1;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, MAX_PAGES * 64);
    mx_err err = help_write_talk(c, &s->talk);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    size_t got = help_read_talk(c, &s->talk, s->talk.n);
    int gone = umount2(disk, MNT_DETACH);
    assert_int_equal(gone, 0);
    mx_err after = help_write_page(c, &s->talk, 0);
    mx_cold_close(c);
    assert_int_equal(err, MX_E_FULL);
    assert_true(st.pages_written > 5 && st.pages_written < MAX_PAGES);
    assert_true(got >= 5 * 64);
    assert_int_equal(after, MX_E_DENIED);
    assert_int_equal(help_count(disk, ""), 0); /* the disk below is not filled instead */
}

/* ---- mtplx cache rm --all -------------------------------------------------------------------- */

typedef struct busy {
    const char *root_dir;
    atomic_bool is_over;
} busy;

/* As a server does that goes on writing: folders and files, again and again, with pauses. Without
 * any the next file waits at the folder's lock each time that one is deleted, and on a busy machine
 * a thousand attempts to remove the folder can fail. */
static void *keep_writing(void *arg)
{
    busy *b = arg;
    char folder[600], path[700];
    snprintf(folder, sizeof folder, "%s/pages/ab", b->root_dir);
    snprintf(path, sizeof path, "%s/.tmp-1", folder);
    for (unsigned i = 1; !atomic_load(&b->is_over); i++) {
        (void)mkdir(folder, 0700);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) {
            close(fd);
        }
        if (i % 16 == 0) {
            usleep(50);
        }
    }
    return NULL;
}

static void test_remove_all_beside_a_writer(void **arg)
{
    state *s = *arg;
    busy b = {.root_dir = s->root_dir};
    pthread_t t;
    talk_make(&s->talk, &s->root, 1, 0, 300);
    assert_int_equal(pthread_create(&t, NULL, keep_writing, &b), 0);
    for (int i = 0; i < 100; i++) {
        uint64_t n_files = 0, n_bytes;
        mx_errbuf eb = {""};
        mx_cold *c = help_open(&s->cfg);
        assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
        mx_cold_close(c);
        mx_err err = mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb);
        if (err != MX_OK || n_files == 0) {
            atomic_store(&b.is_over, true);
            pthread_join(t, NULL);
            fail_msg("round %d: %llu files, %s", i, (unsigned long long)n_files, eb.text);
        }
    }
    atomic_store(&b.is_over, true);
    pthread_join(t, NULL);
}

static void test_remove_all(void **arg)
{
    state *s = *arg;
    uint64_t n_files, n_bytes;
    char path[700], away[300];
    mx_errbuf eb = {""};
    snprintf(away, sizeof away, "%s-away", s->dir);
    /* absent, empty */
    assert_int_equal(mx_cold_remove_all(away, NULL, &n_files, &n_bytes, &eb), MX_OK);
    assert_int_equal(n_files, 0);
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_OK);
    /* somebody's folder, even with a v1 in it */
    snprintf(path, sizeof path, "%s/v1", s->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/v1/thesis.tex", s->dir);
    help_spill(path, (const uint8_t *)"x", 1);
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_E_INVALID);
    assert_non_null(strstr(eb.text, "does not look like"));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(path), 0);
    /* ours, with everything that can be in it */
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 300);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    sweep(c);
    mx_cold_close(c);
    snprintf(path, sizeof path, "%s/quarantine", s->root_dir);
    assert_int_equal(mkdir(path, 0700), 0);
    char hex[65];
    mx_hash256_hex(&s->talk.ids[0], hex);
    snprintf(path, sizeof path, "quarantine/%s.page.reason", hex);
    help_spill_aged(s, path, 0);
    uint64_t before = bytes_below(s->dir);
    size_t n_before = help_count(s->dir, "");
    /* a name that is not ours, and a link where a page could be: both stay, and the rest goes */
    help_spill(away, (const uint8_t *)"keep", 4);
    snprintf(path, sizeof path, "%s/sessions/%s.session", s->root_dir, hex);
    assert_int_equal(symlink(away, path), 0);
    eb.text[0] = '\0';
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_OK);
    assert_non_null(strstr(eb.text, "left alone"));
    assert_int_equal(n_files, n_before - 1); /* all but the marker */
    assert_int_equal(access(away, F_OK), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_OK);
    assert_int_equal(n_files, 1);
    assert_true(before > 0);
    assert_int_equal(help_count(s->dir, ""), 0);
    assert_int_equal(rmdir(s->dir), 0); /* really empty */
    assert_int_equal(mkdir(s->dir, 0700), 0);
    assert_int_equal(unlink(away), 0);
    /* a link to a cache is not a cache */
    assert_int_equal(symlink(s->dir, away), 0);
    assert_int_equal(mx_cold_remove_all(away, NULL, &n_files, &n_bytes, &eb), MX_E_DENIED);
    assert_int_equal(unlink(away), 0);
}

/* A removal that a server overtook took the marker from the new files: with the next one that is
 * written it is there again, or nobody could remove them. */
static void test_marker_comes_back(void **arg)
{
    state *s = *arg;
    uint64_t n_files, n_bytes;
    char path[400], command[900];
    static const char *const harms[] = {"rm -f", "truncate -s 0", "sed -i s/session/sessiom/", "ln -sf /dev/zero",
                                        "rm -f $F; mkfifo"};
    mx_errbuf eb = {""};
    mx_cold *c = help_open(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 300);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    snprintf(path, sizeof path, "%s/" MX_COLD_MARKER_NAME, s->dir);
    for (size_t i = 0; i < MX_COUNT(harms); i++) {
        snprintf(command, sizeof command, "F='%s'; %s \"$F\"", path, harms[i]);
        assert_int_equal(system(command), 0);
        assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_E_INVALID);
        assert_int_equal(help_write_page(c, &s->talk, 1 + i % 2), MX_OK);
        assert_int_equal(mx_cold_list(s->dir, NULL, NULL, NULL, NULL, &eb), MX_OK);
    }
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_OK);
    assert_true(n_files >= 2);
    mx_cold_close(c);
}

/* rm --all goes between the look for the marker and the making of v1. */
static int make_v1_without_marker(int dir, const char *name, mode_t mode)
{
    if (strcmp(name, "v1") == 0) {
        assert_int_equal(unlinkat(dir, MX_COLD_MARKER_NAME, 0), 0);
    }
    return mx_cold_real_fileops.mkdir(dir, name, mode);
}

static void test_marker_removed_at_the_start(void **arg)
{
    state *s = *arg;
    char path[400];
    mx_cold_fileops late = mx_cold_real_fileops;
    late.mkdir = make_v1_without_marker;
    s->cfg.tuning.fileops = &late;
    mx_cold *c = help_open(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 300);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    snprintf(path, sizeof path, "%s/" MX_COLD_MARKER_NAME, s->dir);
    assert_int_equal(access(path, F_OK), 0);
    mx_cold_close(c);
}

static void *write_marker_late(void *arg)
{
    static const char text[] = MX_COLD_MARKER_LINE "\n";
    usleep(20000);
    help_spill(arg, (const uint8_t *)text, sizeof text - 1);
    return NULL;
}

/* A cache whose marker is still a draft is an empty one; one that has v1, too, is waited for. */
static void test_remove_all_of_a_beginning(void **arg)
{
    state *s = *arg;
    uint64_t n_files, n_bytes;
    char draft[400], marker[400], v1[400];
    mx_errbuf eb = {""};
    pthread_t t;
    snprintf(draft, sizeof draft, "%s/.tmp-1", s->dir);
    snprintf(marker, sizeof marker, "%s/" MX_COLD_MARKER_NAME, s->dir);
    snprintf(v1, sizeof v1, "%s/v1", s->dir);
    help_spill(draft, (const uint8_t *)"m", 1);
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_OK);
    assert_int_equal(n_files, 0);
    assert_int_equal(mkdir(v1, 0700), 0);
    assert_int_equal(pthread_create(&t, NULL, write_marker_late, marker), 0);
    mx_err err = mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb);
    pthread_join(t, NULL);
    assert_int_equal(err, MX_OK);
    assert_int_equal(n_files, 2);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup_ageless, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_over_budget_goes_leaf_first),
        T(test_reading_makes_young),
        T(test_reading_makes_the_manifest_young),
        T(test_young_files_are_never_deleted),
        T(test_writer_starts_the_sweep),
        T(test_superseded_partial_pages_go),
        T(test_partial_page_outlives_an_unnamed_full_one),
        T(test_superfluous_manifests_go),
        T(test_walk_that_cannot_see_pages_deletes_nothing),
        T(test_manifest_stays_when_the_longer_one_goes),
        T(test_manifest_of_another_version_stays),
        T(test_leftovers_and_foreign_names),
        T(test_trash_gives_back_what_was_in_use),
        T(test_trash_gives_back_on_any_file_system),
        T(test_limit_covers_all_models),
        T(test_refused_folders),
        T(test_refused_owner),
        T(test_removed_while_running),
        T(test_small_and_vanishing_disk),
        T(test_remove_all),
        T(test_remove_all_beside_a_writer),
        T(test_remove_all_of_a_beginning),
        T(test_marker_removed_at_the_start),
        T(test_marker_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
