/* SPDX-License-Identifier: MIT
 *
 * A folder that others can write: used with a key only, and then nothing in it is used that was not
 * made with that key, however right its checksums are.
 */
#define HELP_AUTH 1
#include "cold/cold_help.h"
#include "cold/cold_tools.h"

enum { FILE_CAP = 1 << 14, SUM_AT = 496, KIND_AT = 288, TAG_AT = 296 };

static const mx_hash256 other_key = {{8}};

static int setup(void **arg)
{
    int rc = help_setup(arg);
    help_bed *s = *arg;
    talk_make(&s->talk, &s->root, 1, 0, 3 * 64 + 20);
    return rc;
}

static void page_path(const help_bed *s, size_t page, char path[700])
{
    help_page_path(s, &s->talk.ids[page], path);
}

static void put_sum(uint8_t *at, const uint8_t *bytes, size_t n)
{
    mx_hash128 sum = mx_xxh3_128(bytes, n);
    memcpy(at, sum.b, sizeof sum.b);
}

/* What somebody without the key does: other keys and values, all checksums right. */
static void forge(uint8_t *bytes, size_t n)
{
    bytes[MX_DISK_PAYLOAD_AT + 100] ^= 0x40;
    put_sum(bytes + 192, bytes + MX_DISK_PAYLOAD_AT, n - MX_DISK_PAYLOAD_AT);
    put_sum(bytes + 208, bytes + MX_DISK_PAYLOAD_AT, n - MX_DISK_PAYLOAD_AT);
    put_sum(bytes + SUM_AT, bytes, SUM_AT);
}

static void check_reason(const help_bed *s, const mx_hash256 *id, const char *suffix, const char *reason)
{
    char hex[65], path[700];
    uint8_t text[300] = {0};
    mx_hash256_hex(id, hex);
    snprintf(path, sizeof path, "%s/quarantine/%s%s.reason", s->root_dir, hex, suffix);
    help_slurp(path, text, sizeof text - 1);
    if (strstr((char *)text, reason) == NULL) {
        print_message("expected the reason %s, got %s\n", reason, (char *)text);
        fail();
    }
}

static void test_forged_page_is_never_served(void **arg)
{
    help_bed *s = *arg;
    static uint8_t good[FILE_CAP], bad[FILE_CAP];
    char path[700];
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    for (size_t page = 0; page < s->talk.n_ids; page++) {
        page_path(s, page, path);
        size_t n = help_slurp(path, good, sizeof good);
        for (int kind = 0; kind < 4; kind++) {
            const char *reason = "authentication";
            memcpy(bad, good, n);
            forge(bad, n); /* 0: the old tag */
            if (kind == 1) { /* none */
                memset(bad + KIND_AT, 0, 4);
                memset(bad + TAG_AT, 0, 32);
                put_sum(bad + SUM_AT, bad, SUM_AT);
                reason = "not authenticated";
            } else if (kind == 2) { /* somebody else's */
                assert_int_equal(mx_disk_page_seal(bad, &other_key, bad + MX_DISK_PAYLOAD_AT,
                                                   n - MX_DISK_PAYLOAD_AT), MX_OK);
            } else if (kind == 3) { /* what is in front of the payload is under the tag, too */
                memcpy(bad, good, n);
                bad[352] ^= 1;
                put_sum(bad + SUM_AT, bad, SUM_AT);
            }
            help_spill(path, bad, n);
            assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), page * 64);
            check_reason(s, &s->talk.ids[page], ".page", reason);
        }
        help_spill(path, good, n);
        assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    }
    /* Whatever was moved away is computed and stored again. */
    page_path(s, 1, path);
    size_t n = help_slurp(path, bad, sizeof bad);
    forge(bad, n);
    help_spill(path, bad, n);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 64);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    mx_cold_close(c);
}

static void test_forged_manifest_is_not_believed(void **arg)
{
    help_bed *s = *arg;
    static uint8_t bytes[FILE_CAP];
    char path[700];
    const mx_hash256 *last = &s->talk.ids[s->talk.n_ids - 1];
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    help_session_path(s, last, path);
    size_t n = help_slurp(path, bytes, sizeof bytes);
    bytes[96] ^= 1; /* another kind of point, all checksums right */
    put_sum(bytes + 240, bytes, 240);
    help_spill(path, bytes, n);
    c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 20000000));
    check_reason(s, last, ".session", "authentication");
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n); /* by name, all the same */
    mx_cold_close(c);
}

/* Of the configuration without a key; it has to say what helps. */
static void check_refused(help_bed *s, const char *what)
{
    mx_cold_config cfg = s->cfg;
    mx_cold_stats st;
    cfg.auth_key = NULL;
    mx_cold *c = help_open(&cfg);
    mx_err err = help_write_talk(c, &s->talk);
    assert_true(err == MX_E_DENIED || err == MX_E_IO); /* the latter when the sweep met it first */
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 0);
    mx_cold_get_stats(c, &st);
    mx_cold_close(c);
    assert_true(st.is_degraded);
    if (strstr(st.degraded_reason, what) == NULL
        || strstr(st.degraded_reason, "--cache-key-file") == NULL)
    {
        print_message("expected %s and --cache-key-file, got: %s\n", what, st.degraded_reason);
        fail();
    }
}

static void test_refused_without_a_key(void **arg)
{
    help_bed *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    check_refused(s, "others can write");
    assert_int_equal(chmod(s->dir, 0700), 0);
    if (geteuid() != 0) {
        print_message("not run as root: no folder of another user to try\n");
        return;
    }
    assert_int_equal(chown(s->dir, 12345, 12345), 0);
    check_refused(s, "belongs to user 12345");
    c = help_open(&s->cfg);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    mx_cold_close(c);
}

/* With another key the chains have other names: misses, and nothing is touched. */
static void test_another_key_finds_nothing(void **arg)
{
    help_bed *s = *arg;
    mx_hash256 object[2], root[2], cache_key[2] = {{{1}}, {{2}}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mx_cold_derive_keys(&cache_key[i], &object[i], &root[i]), MX_OK);
        assert_false(mx_hash256_eq(&object[i], &root[i]));
    }
    assert_false(mx_hash256_eq(&object[0], &object[1]));
    assert_false(mx_hash256_eq(&root[0], &root[1]));
    /* The same root with another key, which servers do not do: not served either. */
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    mx_cold_config cfg = s->cfg;
    cfg.auth_key = &other_key;
    c = help_open(&cfg);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 0);
    mx_cold_close(c);
    check_reason(s, &s->talk.ids[0], ".page", "authentication");
}

static char last_bad[300];

static void note_bad(void *arg, const char *path, const char *reason)
{
    (void)arg;
    (void)path;
    snprintf(last_bad, sizeof last_bad, "%s", reason);
}

static bool count_entry(void *arg, const mx_cold_entry *e)
{
    (void)e;
    ++*(size_t *)arg;
    return true;
}

static void test_tools_know_the_key(void **arg)
{
    help_bed *s = *arg;
    static uint8_t bytes[FILE_CAP];
    mx_cold_counts n;
    mx_errbuf eb;
    size_t n_entries = 0;
    char path[700];
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    assert_int_equal(mx_cold_verify(s->dir, NULL, NULL, false, note_bad, NULL, &n, &eb), MX_E_DENIED);
    assert_non_null(strstr(eb.text, "--cache-key-file"));
    assert_int_equal(mx_cold_list(s->dir, NULL, NULL, count_entry, &n_entries, &eb), MX_E_DENIED);
    assert_int_equal(mx_cold_list(s->dir, &help_key, NULL, count_entry, &n_entries, &eb), MX_OK);
    assert_int_equal(n_entries, 1);
    assert_int_equal(mx_cold_verify(s->dir, &help_key, NULL, false, note_bad, NULL, &n, &eb), MX_OK);
    assert_int_equal(n.n_bad, 0);
    page_path(s, 2, path);
    size_t size = help_slurp(path, bytes, sizeof bytes);
    forge(bytes, size);
    help_spill(path, bytes, size);
    assert_int_equal(mx_cold_verify(s->dir, &help_key, NULL, false, note_bad, NULL, &n, &eb), MX_OK);
    assert_int_equal(n.n_bad, 1);
    assert_non_null(strstr(last_bad, "another key"));
    /* Ours alone: without the key checksums are all there is to check. */
    char command[300];
    snprintf(command, sizeof command, "chmod -R go-w '%s'", s->dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(mx_cold_verify(s->dir, NULL, NULL, false, note_bad, NULL, &n, &eb), MX_OK);
    assert_int_equal(n.n_bad, 0);
    assert_int_equal(chmod(s->dir, 0777), 0);
    assert_int_equal(mx_cold_verify(s->dir, &other_key, NULL, true, note_bad, NULL, &n, &eb), MX_OK);
    /* Who has another key must not lose the files of who has this one. */
    assert_int_equal(n.n_bad, s->talk.n_ids + 1);
    assert_int_equal(n.n_moved, 0);
    assert_int_equal(help_count(s->root_dir, ".reason"), 0);
    assert_int_equal(mx_cold_gc(s->dir, NULL, 0, 0, &n, &eb), MX_E_DENIED);
    assert_int_equal(mx_cold_gc(s->dir, &help_key, 0, 0, &n, &eb), MX_OK);
    assert_true(n.n_files > 0);
    uint64_t n_files, n_bytes;
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, &eb), MX_E_DENIED);
    assert_int_equal(mx_cold_remove_all(s->dir, &help_key, &n_files, &n_bytes, &eb), MX_OK);
}

/* What is put into a group's folder is the group's to read, and nobody else's. */
static void test_modes_follow_the_folder(void **arg)
{
    help_bed *s = *arg;
    static const struct {
        mode_t folder, below, file;
    } rows[] = {{0777, 0770, 0660}, {0770, 0770, 0660}, {0750, 0750, 0640}, {0700, 0700, 0600}};
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        struct stat st;
        char path[700], v1[300];
        uint64_t n_files, n_bytes;
        assert_int_equal(chmod(s->dir, rows[i].folder), 0);
        mx_cold *c = help_open(&s->cfg);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        mx_cold_close(c);
        snprintf(v1, sizeof v1, "%s/v1", s->dir);
        page_path(s, 0, path);
        assert_int_equal(stat(v1, &st), 0);
        assert_int_equal(st.st_mode & 07777, rows[i].below);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, rows[i].file);
        assert_int_equal(mx_cold_remove_all(s->dir, &help_key, &n_files, &n_bytes, NULL), MX_OK);
    }
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_forged_page_is_never_served),
        T(test_forged_manifest_is_not_believed),
        T(test_refused_without_a_key),
        T(test_another_key_finds_nothing),
        T(test_tools_know_the_key),
        T(test_modes_follow_the_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
