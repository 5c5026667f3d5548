/* SPDX-License-Identifier: MIT
 *
 * The folder worked on from outside of a server: what a person removes, and what stays.
 */
#include "cold/cold_help.h"

#include "cold/cold_tools.h"

#include <linux/capability.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { FILE_BYTES = MX_DISK_PAYLOAD_AT + TINY_BYTES, DAY_S = 86400 };

typedef help_bed state;

static mx_cold_counts gc(const state *s, uint64_t max_bytes, uint64_t ttl_s)
{
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    mx_err err = mx_cold_gc(s->dir, NULL, max_bytes, ttl_s, &n, &eb);
    assert_string_equal(eb.text, "");
    assert_int_equal(err, MX_OK);
    return n;
}

/* ---- gc -------------------------------------------------------------------------------------- */

static void test_gc_of_nothing(void **arg)
{
    assert_int_equal(gc(*arg, 0, 1).n_files, 0);
}

static void test_gc_takes_leftovers(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 100);
    help_spill_aged(s, "pages/ab/.tmp-old", 3601);
    help_spill_aged(s, "pages/ab/.tmp-young", 3000); /* somebody may be writing it */
    help_spill_aged(s, "trash/left", 0);
    help_spill_aged(s, ".tmp-model", 3601);
    help_spill_aged(s, "../.tmp-written", 3601);
    help_spill_aged(s, "../../.tmp-marker", 3601);
    mx_cold_counts n = gc(s, UINT64_MAX, 0);
    assert_int_equal(n.n_files, 5);
    assert_int_equal(n.n_bytes, 5);
    assert_false(help_is_there(s, "pages/ab/.tmp-old"));
    assert_false(help_is_there(s, "trash/left"));
    assert_true(help_is_there(s, "pages/ab/.tmp-young"));
    assert_int_equal(help_find_talk(s, &s->talk), 100);
}

static void test_gc_knows_the_time_to_live(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 300);
    help_age_all(s, "", 40 * DAY_S);
    help_keep_talk(s, &s->other, 2, 200);
    help_age_all(s, ".session", 60 * DAY_S); /* of the other, too: its pages are young */
    assert_int_equal(gc(s, UINT64_MAX, 0).n_files, 0);
    assert_int_equal(gc(s, UINT64_MAX, 41 * DAY_S).n_files, 0);
    help_spill_aged(s, "quarantine/young", 29 * DAY_S);
    help_spill_aged(s, "quarantine/old", 31 * DAY_S);
    assert_int_equal(gc(s, UINT64_MAX, 30 * DAY_S).n_files, 5 + 1 + 1);
    assert_true(help_is_there(s, "quarantine/young") && !help_is_there(s, "quarantine/old"));
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    assert_int_equal(help_find_talk(s, &s->other), 200);
    assert_int_equal(help_find_talk(s, &s->talk), 0);
}

/* Files that were written just now go as well: a person has asked for it. */
static void test_gc_goes_leaf_first_to_the_limit(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 640);
    help_spill_aged(s, "quarantine/bad", 0);
    mx_cold_counts n = gc(s, 5 * FILE_BYTES, 0);
    assert_true(n.n_bytes > 0);
    assert_false(help_is_there(s, "quarantine/bad"));
    size_t n_pages = help_count(s->root_dir, ".page");
    assert_true(n_pages >= 4 && n_pages <= 5);
    assert_int_equal(help_find_talk(s, &s->talk), n_pages * 64);
    gc(s, 0, 0);
    assert_int_equal(help_count(s->root_dir, ".page") + help_count(s->root_dir, ".session"), 0);
}

/* The rows of a tail can be found by its manifest only: that is as young as the tail. */
static void test_gc_leaves_the_manifest_of_what_is_used(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 100);
    help_keep_talk(s, &s->other, 2, 640);
    help_age_all(s, ".session", 9000);
    assert_int_equal(help_find_talk(s, &s->talk), 100);
    gc(s, 5 * FILE_BYTES, 0);
    talk_cut(&s->talk, 90);
    assert_int_equal(help_find_talk(s, &s->talk), 90);
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
}

static void pass_over(void *arg, const char *path, const char *reason)
{
    (void)arg;
    (void)path;
    (void)reason;
}

/* What is not seen must not look as if it were not there. */
static void test_gc_that_cannot_see_all_takes_nothing(void **arg)
{
    state *s = *arg;
    char path[700];
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    help_keep_talk(s, &s->talk, 1, 640);
    snprintf(path, sizeof path, "%s/sessions", s->root_dir);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(mx_cold_gc(s->dir, NULL, 0, 0, &n, &eb), MX_E_DENIED);
    assert_non_null(strstr(eb.text, "nothing was removed"));
    assert_non_null(strstr(eb.text, path)); /* what to mend */
    assert_int_equal(n.n_files, 0);
    eb.text[0] = '\0';
    assert_int_equal(mx_cold_verify(s->dir, NULL, NULL, false, pass_over, NULL, &n, &eb), MX_E_DENIED);
    assert_non_null(strstr(eb.text, path));
    assert_int_equal(help_count(s->root_dir, ".page"), 10);
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(gc(s, 0, 0).n_files, 11);
}

/* ---- one entry -------------------------------------------------------------------------------- */

static size_t count_all(const state *s)
{
    return help_count(s->root_dir, ".page") + help_count(s->root_dir, ".session");
}

/* With one file descriptor more at each try, something else cannot be opened: the removal either
 * takes all that it should, or nothing; what another entry names stays. */
static void test_rm_that_cannot_read_another_entry_takes_nothing(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 640);
    s->other = s->talk;
    mx_cold *c = help_open(&s->cfg);
    talk_make(&s->other, &s->root, 2, 320, 640);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    mx_cold_close(c);
    size_t all = count_all(s);
    assert_int_equal(all, 10 + 5 + 2);
    int first_free = open("/", O_RDONLY);
    close(first_free);
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    mx_err err = MX_E_IO;
    size_t n_failed = 0;
    for (int n = first_free; err != MX_OK; n++) {
        mx_cold_counts counts;
        mx_errbuf eb = {{0}};
        few = (struct rlimit){(rlim_t)n, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        err = mx_cold_remove_entry(s->dir, NULL, NULL, &s->talk.ids[9], NULL, 0, &counts, &eb);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (err != MX_OK) {
            assert_string_not_equal(eb.text, "");
            assert_int_equal(count_all(s), all);
            n_failed++;
        }
    }
    assert_true(n_failed >= 6); /* one each for what it opens */
    assert_int_equal(count_all(s), all - 5 - 1);
    assert_int_equal(help_find_talk(s, &s->other), 640);
}

/* A page that was found to be damaged holds text, too. */
static void test_rm_empties_quarantine(void **arg)
{
    state *s = *arg;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    help_keep_talk(s, &s->talk, 1, 640);
    help_keep_talk(s, &s->other, 2, 640);
    char hex[65], path[700];
    mx_hash256_hex(&s->talk.ids[4], hex);
    help_page_path(s, &s->talk.ids[4], path);
    assert_int_equal(truncate(path, 5000), 0);
    assert_int_equal(help_find_talk(s, &s->talk), 4 * 64);
    help_spill_aged(s, "trash/left", 0);
    snprintf(path, sizeof path, "quarantine/%s.page", hex);
    assert_true(help_is_there(s, path));
    mx_hash256 unknown = help_root(7);
    assert_int_equal(mx_cold_remove_entry(s->dir, NULL, NULL, &unknown, NULL, 0, &n, &eb), MX_E_NOT_FOUND);
    assert_true(help_is_there(s, path)); /* that was nobody's */
    assert_int_equal(mx_cold_remove_entry(s->dir, NULL, NULL, &s->talk.ids[9], NULL, 0, &n, &eb), MX_OK);
    assert_int_equal(n.n_files, 9 + 1 + 2 + 1);
    assert_false(help_is_there(s, path));
    assert_int_equal(help_count(s->root_dir, ".reason"), 0);
    assert_false(help_is_there(s, "trash/left"));
    assert_int_equal(help_find_talk(s, &s->other), 640);
}

/* ---- one model -------------------------------------------------------------------------------- */

static void test_remove_folder_leaves_the_others(void **arg)
{
    state *s = *arg;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    char hex[65], other_hex[65];
    help_keep_talk(s, &s->talk, 1, 640);
    help_spill_aged(s, "quarantine/bad", 0);
    mx_hash256_hex(&s->root, hex);
    s->root = s->cfg.root = help_root(2);
    help_keep_talk(s, &s->other, 2, 200);
    mx_hash256_hex(&s->root, other_hex);
    snprintf(s->root_dir, sizeof s->root_dir, "%s/v1/%s", s->dir, other_hex);
    help_spill_aged(s, "trash/others", 0);
    assert_int_equal(mx_cold_remove_folder(s->dir, NULL, hex, 0, &n, &eb), MX_OK);
    assert_int_equal(n.n_files, 10 + 1 + 1);
    assert_true(help_is_there(s, "trash/others"));
    assert_int_equal(help_find_talk(s, &s->other), 200);
    assert_int_equal(mx_cold_remove_folder(s->dir, NULL, hex, 0, &n, &eb), MX_OK);
    assert_int_equal(n.n_files, 0);
}

/* A server's worker must not wait without end for whoever removes files, and then removes nothing. */
static void test_removing_waits_no_longer_than_told(void **arg)
{
    state *s = *arg;
    mx_cold_counts n;
    mx_errbuf eb = {""};
    char path[700];
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 300);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    const char *folder = strrchr(s->root_dir, '/') + 1;
    snprintf(path, sizeof path, "%s/v1/gc.lock", s->dir);
    int held = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(held >= 0 && flock(held, LOCK_EX) == 0);
    size_t n_before = help_count(s->dir, "");
    assert_int_equal(mx_cold_remove_folder(s->dir, NULL, folder, 50, &n, &eb), MX_E_BUSY);
    assert_non_null(strstr(eb.text, "gc.lock"));
    assert_int_equal(mx_cold_remove_entry(s->dir, NULL, folder, &s->talk.ids[0], NULL, 0, &n, &eb),
                     MX_E_BUSY);
    assert_int_equal(help_count(s->dir, ""), n_before);
    assert_int_equal(close(held), 0);
    assert_int_equal(mx_cold_remove_folder(s->dir, NULL, folder, 0, &n, &eb), MX_OK);
    assert_true(n.n_files > 0);
    assert_int_equal(help_count(s->dir, ".page"), 0);
}

/* Root may write everywhere, unless it gives up that right for a while. */
static void obey_modes(bool on)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];
    assert_int_equal(syscall(SYS_capget, &head, caps), 0);
    if (on) {
        caps[0].effective &= ~(1u << CAP_DAC_OVERRIDE);
    } else {
        caps[0].effective |= caps[0].permitted & (1u << CAP_DAC_OVERRIDE);
    }
    assert_int_equal(syscall(SYS_capset, &head, caps), 0);
}

/* A person who removes a conversation must learn that some of it is still there. */
static void test_removing_says_what_is_left(void **arg)
{
    state *s = *arg;
    mx_cold_counts n;
    char hex[65], path[700];
    help_keep_talk(s, &s->talk, 1, 640);
    mx_hash256_hex(&s->talk.ids[4], hex);
    snprintf(path, sizeof path, "%s/pages/%.2s", s->root_dir, hex);
    const char *folder = strrchr(s->root_dir, '/') + 1;
    for (int i = 0; i < 3; i++) {
        mx_errbuf eb = {{0}};
        assert_int_equal(chmod(path, 0500), 0);
        obey_modes(true);
        mx_err err = i == 0   ? mx_cold_remove_entry(s->dir, NULL, folder, &s->talk.ids[9], NULL, 0, &n, &eb)
                     : i == 1 ? mx_cold_remove_folder(s->dir, NULL, folder, 0, &n, &eb)
                              : mx_cold_gc(s->dir, NULL, 0, 0, &n, &eb);
        obey_modes(false);
        assert_int_equal(err, MX_E_DENIED);
        assert_non_null(strstr(eb.text, "1 files are left in"));
        assert_non_null(strstr(eb.text, "Permission denied"));
        assert_int_equal(n.n_left, 1);
        assert_int_equal(n.n_files, 9 + 1); /* all others, and the manifest */
        assert_int_equal(help_count(s->root_dir, ".page"), 1);
        assert_int_equal(chmod(path, 0700), 0);
        help_keep_talk(s, &s->talk, 1, 640);
    }
    /* Nothing of a folder that cannot be entered was removed. */
    mx_errbuf eb = {{0}};
    assert_int_equal(chmod(s->root_dir, 0777), 0);
    assert_int_equal(mx_cold_remove_entry(s->dir, NULL, folder, &s->talk.ids[9], NULL, 0, &n, &eb), MX_E_DENIED);
    assert_int_equal(chmod(s->root_dir, 0700), 0);
    assert_int_equal(help_count(s->root_dir, ".page"), 10);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_gc_of_nothing),
        T(test_gc_takes_leftovers),
        T(test_gc_knows_the_time_to_live),
        T(test_gc_goes_leaf_first_to_the_limit),
        T(test_gc_leaves_the_manifest_of_what_is_used),
        T(test_gc_that_cannot_see_all_takes_nothing),
        T(test_rm_that_cannot_read_another_entry_takes_nothing),
        T(test_rm_empties_quarantine),
        T(test_remove_folder_leaves_the_others),
        T(test_removing_waits_no_longer_than_told),
        T(test_removing_says_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
