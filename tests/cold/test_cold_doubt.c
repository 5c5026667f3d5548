/* SPDX-License-Identifier: MIT
 *
 * What an fsync of a folder that failed says about the names in it. The next one may succeed although names
 * were never written, so none that was not durable before counts: it is written anew, and nothing goes
 * because of it until then.
 */
#include "cold/cold_help.h"

#include <stdatomic.h>

#include "cold/cold_files.h"

static int setup(void **arg)
{
    help_setup(arg);
    help_bed *s = *arg;
    s->cfg.tuning.retry_us = 1;
    talk_make(&s->talk, &s->root, 1, 0, 2 * 64 + 9);
    return 0;
}

static bool is_folder(int fd, const char *name)
{
    char link[64], path[400];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    const char *last = strrchr(path, '/');
    return last != NULL && strcmp(last, name) == 0;
}

static atomic_int n_unsynced;

static int fsync_but_of(const char *name, int fd)
{
    if (is_folder(fd, name)) {
        atomic_fetch_add(&n_unsynced, 1);
        errno = EIO;
        return -1;
    }
    return mx_cold_real_fileops.fsync(fd);
}

static int fail_in_quarantine(int fd)
{
    return fsync_but_of("/quarantine", fd);
}

static int fail_in_sessions(int fd)
{
    return fsync_but_of("/sessions", fd);
}

/* An import leaves the manifest that is there; another process may have written it just now, so it is synced
 * before it is called durable. */
static void test_manifest_of_another_is_synced(void **arg)
{
    help_bed *s = *arg;
    mx_cold_fileops told = mx_cold_real_fileops;
    for (int is_failing = 0; is_failing < 2; is_failing++) {
        mx_cold *c = help_open(&s->cfg);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        mx_cold_close(c);
        told.fsync = is_failing ? fail_in_sessions : mx_cold_real_fileops.fsync;
        mx_cold_config cfg = s->cfg;
        cfg.tuning.fileops = &told;
        c = help_open(&cfg);
        mx_cold_job job = help_session_job(&s->talk);
        job.is_imported = true;
        assert_int_equal(help_run(c, &job), is_failing ? MX_E_IO : MX_OK);
        mx_cold_close(c);
    }
}

/* Of one page, in the folder of that page. */
static void make_neighbour(talk *t, const mx_hash256 *root, const mx_hash256 *id, uint64_t seed)
{
    do {
        talk_make(t, root, seed++, 0, 64);
    } while (t->ids[0].b[0] != id->b[0]);
}

/* A damaged page goes to quarantine, where the sync fails, and there is no room for the new one: that says nothing
 * about the folder of the page. */
static void test_unsynced_reason_casts_no_doubt_on_the_page(void **arg)
{
    help_bed *s = *arg;
    mx_cold_fileops told = mx_cold_real_fileops;
    told.statvfs = help_statvfs;
    told.fsync = fail_in_quarantine;
    s->cfg.tuning.fileops = &told;
    s->cfg.tuning.min_free_bytes = 1 << 20;
    atomic_store(&help_bytes_free, (uint64_t)1 << 30);
    mx_cold *c = help_open(&s->cfg);
    make_neighbour(&s->other, &s->root, &s->talk.ids[0], 1000);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    assert_int_equal(help_write_page(c, &s->other, 0), MX_OK);
    mx_cold_close(c);
    char path[700];
    help_page_path(s, &s->talk.ids[0], path);
    assert_int_equal(truncate(path, 5000), 0);
    c = help_open_settled(&s->cfg);
    atomic_store(&help_bytes_free, 1000);
    atomic_store(&n_unsynced, 0);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_E_FULL);
    assert_true(atomic_load(&n_unsynced) > 0);
    assert_true(mx_cold_has_page(c, &s->other.ids[0]));
    atomic_store(&help_bytes_free, (uint64_t)1 << 30);
    usleep(1000);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    mx_cold_close(c);
}

/* The next sync of the folder of that name fails; set while there is none. */
static char failing_once[16];
static atomic_bool must_fail_once;

static int fail_once(int fd)
{
    bool is_due = true;
    if (atomic_load(&must_fail_once) && is_folder(fd, failing_once)
        && atomic_compare_exchange_strong(&must_fail_once, &is_due, false)) {
        errno = EIO;
        return -1;
    }
    return mx_cold_real_fileops.fsync(fd);
}

static void fail_next_sync(const char *folder)
{
    snprintf(failing_once, sizeof failing_once, "/%s", folder);
    atomic_store(&must_fail_once, true);
}

static void fail_next_sync_beside(const mx_hash256 *id)
{
    char hex[65], xx[3];
    mx_hash256_hex(id, hex);
    snprintf(xx, sizeof xx, "%.2s", hex);
    fail_next_sync(xx);
}

/* A page of an earlier process, whose name may not be durable yet: when a sync of its folder has failed, one
 * that succeeds says nothing about it. It is written anew, and then it is as good as any. */
static void test_a_failed_sync_casts_doubt_on_the_neighbours(void **arg)
{
    help_bed *s = *arg;
    static talk synced;
    mx_cold_stats before, after;
    mx_cold_fileops told = mx_cold_real_fileops;
    told.fsync = fail_once;
    talk_cut(&s->talk, 64);
    const mx_hash256 *id = &s->talk.ids[0];
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    mx_cold_close(c);
    make_neighbour(&synced, &s->root, id, 1000);
    make_neighbour(&s->other, &s->root, id, 5000);
    s->cfg.tuning.fileops = &told;
    c = help_open_settled(&s->cfg);
    assert_int_equal(help_write_page(c, &synced, 0), MX_OK);
    assert_true(mx_cold_has_page(c, id));
    fail_next_sync_beside(id);
    assert_int_equal(help_write_page(c, &s->other, 0), MX_E_IO);
    assert_false(atomic_load(&must_fail_once));
    usleep(1000);
    assert_true(mx_cold_has_page(c, &synced.ids[0]));
    assert_false(mx_cold_has_page(c, id));
    assert_int_equal(help_write_session(c, &s->talk), MX_E_NOT_FOUND);
    mx_cold_get_stats(c, &before);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    mx_cold_get_stats(c, &after);
    assert_int_equal(after.pages_written, before.pages_written + 1);
    assert_true(mx_cold_has_page(c, id));
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    mx_cold_get_stats(c, &after);
    assert_int_equal(after.pages_written, before.pages_written + 1);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    mx_cold_close(c);
}

#if HELP_STATE_BYTES > 0
static uint32_t states_in_manifest(const help_bed *s, const talk *t)
{
    char path[700];
    static uint8_t bytes[8192];
    mx_disk_manifest m;
    help_session_path(s, &t->ids[t->n_ids - 1], path);
    size_t n = help_slurp(path, bytes, sizeof bytes);
    assert_int_equal(mx_disk_manifest_decode(&m, bytes, n, NULL), MX_OK);
    return m.n_states;
}

/* Likewise; until it is, a manifest does without. */
static void test_a_state_in_doubt_is_left_out(void **arg)
{
    help_bed *s = *arg;
    mx_cold_fileops told = mx_cold_real_fileops;
    told.fsync = fail_once;
    talk_cut(&s->talk, 64);
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    assert_int_equal(help_write_state(c, &s->talk, 64), MX_OK);
    mx_cold_close(c);
    mx_hash256 id = talk_state_id(&s->talk, 64), beside;
    assert_int_not_equal(id.b[0], s->talk.ids[0].b[0]);
    uint64_t seed = 1000;
    do {
        talk_make(&s->other, &s->root, seed++, 0, 64);
        beside = talk_state_id(&s->other, 64);
    } while (beside.b[0] != id.b[0]);
    s->cfg.tuning.fileops = &told;
    c = help_open_settled(&s->cfg);
    fail_next_sync_beside(&id);
    assert_int_equal(help_write_state(c, &s->other, 64), MX_E_IO);
    usleep(1000);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    assert_int_equal(states_in_manifest(s, &s->talk), 0);
    assert_int_equal(help_write_state(c, &s->talk, 64), MX_OK);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    assert_int_equal(states_in_manifest(s, &s->talk), 1);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.states_written, 1);
    mx_cold_close(c);
}
#endif

static void sweep_aged(mx_cold *c, const help_bed *s)
{
    int64_t age_s = 7200;
    help_each_file(s->dir, "", help_age, &age_s);
    assert_true(mx_cold_sweep(c, 20000000));
}

/* A partial page goes when a full one says the same, which must be durable then: a failed sync of its folder,
 * the writer's or the sweep's own, is not made good by the next. */
static void check_partial_stays(help_bed *s, bool is_sweeps_own)
{
    mx_cold_fileops told = mx_cold_real_fileops;
    told.fsync = fail_once;
    mx_cold *c = help_open(&s->cfg);
    for (size_t n = 20; n <= 64; n += 44) {
        talk_cut(&s->talk, n);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    }
    mx_cold_close(c);
    make_neighbour(&s->other, &s->root, &s->talk.ids[0], 1000);
    mx_cold_config cfg = s->cfg;
    cfg.tuning.fileops = &told;
    c = help_open_settled(&cfg);
    fail_next_sync_beside(&s->talk.ids[0]);
    if (!is_sweeps_own) {
        assert_int_equal(help_write_page(c, &s->other, 0), MX_E_IO);
        usleep(1000);
    }
    for (int i = 0; i < 2; i++) {
        sweep_aged(c, s);
        assert_false(atomic_load(&must_fail_once));
        assert_int_equal(help_count(s->dir, ".session"), 2);
    }
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    sweep_aged(c, s);
    assert_int_equal(help_count(s->dir, ".session"), 1);
    mx_cold_close(c);
    assert_int_equal(help_count(s->dir, ".page"), is_sweeps_own ? 1 : 2);
}

static void test_what_a_page_in_doubt_replaces_stays(void **arg)
{
    check_partial_stays(*arg, false);
}

static void test_a_sync_that_fails_in_a_sweep_counts(void **arg)
{
    check_partial_stays(*arg, true);
}

/* A later point of the conversation makes the earlier one superfluous, if its manifest will still be there
 * after a power failure. */
static void check_earlier_stays(help_bed *s, size_t n_earlier, bool is_sweeps_own)
{
    mx_cold_fileops told = mx_cold_real_fileops;
    told.fsync = fail_once;
    mx_cold_config cfg = s->cfg;
    cfg.tuning.fileops = &told;
    mx_cold *c = help_open_settled(&cfg);
    talk_cut(&s->talk, n_earlier);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    talk_cut(&s->talk, 192);
    if (is_sweeps_own) { /* somebody else has written it */
        mx_cold *other = help_open(&s->cfg);
        assert_int_equal(help_write_talk(other, &s->talk), MX_OK);
        mx_cold_close(other);
        fail_next_sync("sessions");
    } else {
        fail_next_sync("sessions");
        assert_int_equal(help_write_talk(c, &s->talk), MX_E_IO);
        usleep(1000);
    }
    for (int i = 0; i < 2; i++) {
        sweep_aged(c, s);
        assert_false(atomic_load(&must_fail_once));
        assert_int_equal(help_count(s->dir, ".session"), 2);
        assert_int_equal(help_count(s->dir, ".page"), n_earlier % 64 == 0 ? 3 : 4);
    }
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    sweep_aged(c, s);
    mx_cold_close(c);
    assert_int_equal(help_count(s->dir, ".session"), 1);
    assert_int_equal(help_count(s->dir, ".page"), 3);
    help_remove_tree(s->dir);
}

static void test_what_a_manifest_in_doubt_replaces_stays(void **arg)
{
    check_earlier_stays(*arg, 128, false);
    check_earlier_stays(*arg, 150, false);
}

static void test_a_sync_of_manifests_that_fails_in_a_sweep_counts(void **arg)
{
    check_earlier_stays(*arg, 128, true);
    check_earlier_stays(*arg, 150, true);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_a_failed_sync_casts_doubt_on_the_neighbours),
#if HELP_STATE_BYTES > 0
        T(test_a_state_in_doubt_is_left_out),
#endif
        T(test_what_a_page_in_doubt_replaces_stays),
        T(test_a_sync_that_fails_in_a_sweep_counts),
        T(test_what_a_manifest_in_doubt_replaces_stays),
        T(test_a_sync_of_manifests_that_fails_in_a_sweep_counts),
        T(test_unsynced_reason_casts_no_doubt_on_the_page),
        T(test_manifest_of_another_is_synced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
