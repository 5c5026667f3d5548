/* SPDX-License-Identifier: MIT
 *
 * How much is written: in a conversation, and in a day. And what time alone deletes.
 */
#include "cold/cold_help.h"

#include "base/clock.h"
#include "cold/cold_files.h"

#include <sys/uio.h>

enum { FILE_BYTES = MX_DISK_PAYLOAD_AT + TINY_BYTES, DAY_S = 86400 };

typedef help_bed state;

static void spill_wear(const state *s, const void *text, size_t n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/v1/written.txt", s->dir);
    help_spill(path, text, n);
}

static mx_cold_stats stats_of(mx_cold *c)
{
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    return st;
}

/* ---- bytes of a conversation ------------------------------------------------------------------ */

static uint64_t n_written; /* by the writer's thread; read when it is idle */

static ssize_t counting_writev(int fd, const struct iovec *iov, int n)
{
    ssize_t got = mx_cold_real_fileops.writev(fd, iov, n);
    n_written += got > 0 ? (uint64_t)got : 0;
    return got;
}

/* 20 turns write each full page once, one tail a turn, and a manifest a turn; all else is there. */
static void test_conversation_writes_its_tokens_once(void **arg)
{
    state *s = *arg;
    enum { TURNS = 20, FIRST = 700, STEP = 87 };
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.writev = counting_writev;
    s->cfg.tuning.fileops = &ops;
    mx_cold *c = help_open_settled(&s->cfg);
    uint64_t most = 0;
    talk_make(&s->talk, &s->root, 1, 0, 1);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK); /* marker, model.json */
    n_written = 0;
    for (size_t turn = 0; turn < TURNS; turn++) {
        size_t n = FIRST + turn * STEP, n_tail = n % MX_PAGE_TOKENS;
        talk_make(&s->talk, &s->root, 2, 0, n);
        /* A client repeats its request now and then: nothing more is written for that. */
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        most += n_tail > 0 ? MX_DISK_PAYLOAD_AT + n_tail * (TINY_BYTES / MX_PAGE_TOKENS) : 0;
        most += MX_DISK_MANIFEST_HEADER_BYTES + 32 * s->talk.n_ids;
    }
    most += s->talk.n / MX_PAGE_TOKENS * FILE_BYTES;
    mx_cold_close(c);
    print_message("%zu tokens in %d turns: %llu bytes written, bound %llu\n", s->talk.n, TURNS,
                  (unsigned long long)n_written, (unsigned long long)most);
    assert_true(n_written > s->talk.n / MX_PAGE_TOKENS * FILE_BYTES); /* really counted */
    assert_true(n_written <= most);
}

/* ---- the day's budget ------------------------------------------------------------------------- */

static void put_wear(const state *s, int64_t day, uint64_t bytes)
{
    char text[96];
    int n = snprintf(text, sizeof text, "day %lld bytes %llu\n", (long long)day,
                     (unsigned long long)bytes);
    spill_wear(s, text, (size_t)n);
}

/* Pages of a fresh conversation that the budget lets through. */
static size_t count_writes(mx_cold *c, talk *t, const mx_hash256 *root, uint64_t seed)
{
    size_t n = 0;
    talk_make(t, root, seed, 0, 10 * 64);
    for (size_t i = 0; i < 10; i++) {
        mx_err err = help_write_page(c, t, i);
        assert_true(err == MX_OK || err == MX_E_LIMIT);
        n += err == MX_OK;
    }
    return n;
}

static void test_write_budget(void **arg)
{
    state *s = *arg;
    s->cfg.write_budget = 6 * FILE_BYTES;
    mx_cold *c = help_open_settled(&s->cfg);
    assert_int_equal(count_writes(c, &s->talk, &s->root, 1), 6);
    mx_cold_stats st = stats_of(c);
    assert_int_equal(st.dropped_budget, 4);
    assert_int_equal(st.bytes_today, 6 * FILE_BYTES);
    assert_int_equal(st.write_failures, 0); /* nothing has failed */
    assert_false(st.is_degraded);
    /* What is there is not written, and costs nothing; it is read as ever. */
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    assert_int_equal(help_read_talk(c, &s->talk, 640), 6 * 64);
    assert_int_equal(help_write_session(c, &s->talk), MX_E_NOT_FOUND);
    assert_int_equal(stats_of(c).write_failures, 0);
    /* What is refused is refused at once, not carried to the writer. */
    uint8_t payload[TINY_BYTES] = {0};
    mx_cold_job job = {.kind = MX_COLD_WRITE_PAGE,
                       .root = s->root,
                       .parent_id = s->talk.ids[8],
                       .first_page = 9,
                       .tokens = s->talk.tokens + 9 * MX_PAGE_TOKENS,
                       .n_tokens = MX_PAGE_TOKENS,
                       .payload = payload,
                       .page_id = s->talk.ids[9]};
    assert_int_equal(mx_cold_submit(c, &job), MX_E_LIMIT);
    assert_int_equal(stats_of(c).queued_jobs, 0);
    assert_int_equal(stats_of(c).dropped_budget, 5);
    assert_true(mx_cold_flush(c, 1000000)); /* nothing queued was lost */
    mx_cold_close(c);

    c = help_open_settled(&s->cfg); /* a restart is no new day */
    assert_int_equal(count_writes(c, &s->talk, &s->root, 2), 0);
    mx_cold_close(c);

    int64_t today = mx_wall_s() / DAY_S;
    put_wear(s, today - 1, 6 * FILE_BYTES);
    c = help_open_settled(&s->cfg);
    assert_int_equal(count_writes(c, &s->talk, &s->root, 3), 6);
    mx_cold_close(c);

    put_wear(s, today + 1000, 4 * FILE_BYTES); /* a clock that was wrong */
    c = help_open_settled(&s->cfg);
    assert_int_equal(count_writes(c, &s->talk, &s->root, 4), 2);
    mx_cold_close(c);

    spill_wear(s, "rubbish", 7);
    s->cfg.write_budget = 0;
    c = help_open_settled(&s->cfg);
    assert_int_equal(count_writes(c, &s->talk, &s->root, 5), 10);
    mx_cold_close(c);
}

/* ---- time ------------------------------------------------------------------------------------- */

static void test_ttl(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 300);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    help_age_all(s, "", 40 * DAY_S);
    assert_true(mx_cold_sweep(c, 20000000));
    mx_cold_close(c);
    assert_int_equal(help_count(s->root_dir, ".page"), 5); /* the default: never */

    s->cfg.ttl_s = 30 * DAY_S;
    c = help_open_settled(&s->cfg);
    talk_make(&s->other, &s->root, 2, 0, 200);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    mx_cold_close(c);
    s->cfg.ttl_s = 50 * DAY_S;
    help_age_all(s, "", 40 * DAY_S);
    help_age_all(s, ".session", 60 * DAY_S); /* older than the pages that they name: they stay */
    c = help_open_settled(&s->cfg);
    assert_true(mx_cold_sweep(c, 20000000));
    assert_int_equal(stats_of(c).files_expired, 0);
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    assert_int_equal(help_read_talk(c, &s->other, 200), 200); /* used: young again */
    help_wait_used(s, 4, time(NULL) - 60);
    mx_cold_close(c);

    s->cfg.ttl_s = 30 * DAY_S;
    talk_make(&s->talk, &s->root, 3, 0, 100);
    mx_cold_config writer = s->cfg;
    writer.ttl_s = 0;
    c = help_open_settled(&writer);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    for (size_t i = 0; i < s->talk.n_ids; i++) {
        char path[700];
        int64_t age = 31 * DAY_S;
        help_page_path(s, &s->talk.ids[i], path);
        help_age(path, &age);
    }
    mx_cold_close(c);
    help_age_all(s, ".session", 31 * DAY_S);
    c = help_open_settled(&s->cfg);
    assert_true(mx_cold_sweep(c, 20000000));
    assert_int_equal(stats_of(c).files_expired + help_count(s->root_dir, ".page"), 3 + 4);
    assert_int_equal(help_read_talk(c, &s->talk, 100), 0);
    assert_int_equal(help_read_talk(c, &s->other, 200), 200);

    help_age_all(s, "", -1000 * DAY_S); /* as young as can be */
    assert_true(mx_cold_sweep(c, 20000000));
    assert_int_equal(help_count(s->root_dir, ".page"), 4);
    mx_cold_close(c);
}

/* ---- what nobody needs ------------------------------------------------------------------------ */

static void age_tree(const char *path, int64_t age_s)
{
    char command[400];
    snprintf(command, sizeof command, "find '%s' -exec touch -h -d @%lld {} +", path,
             (long long)(time(NULL) - age_s));
    assert_int_equal(system(command), 0);
}

static void test_empty_folders_of_other_models(void **arg)
{
    state *s = *arg;
    char dirs[3][400], path[600];
    for (int i = 0; i < 3; i++) { /* three other models */
        mx_hash256 root = help_root(10 + i);
        char hex[65];
        mx_hash256_hex(&root, hex);
        snprintf(dirs[i], sizeof dirs[i], "%s/v1/%s", s->dir, hex);
        mx_cold_config cfg = s->cfg;
        cfg.root = root;
        mx_cold *c = help_open_settled(&cfg);
        talk_make(&s->talk, &root, (uint64_t)i, 0, 100);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        mx_cold_close(c);
    }
    snprintf(path, sizeof path, "%s/notes.txt", dirs[1]);
    help_spill(path, (const uint8_t *)"mine", 4);
    age_tree(s->dir, 40 * DAY_S);
    age_tree(dirs[2], 10 * DAY_S);
    s->cfg.ttl_s = 30 * DAY_S;
    s->cfg.tuning.delete_age_s = 0; /* the default, 10 minutes: emptied folders are too young */
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->other, &s->root, 7, 0, 64);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK); /* whoever has no folder does not sweep */
    assert_true(mx_cold_sweep(c, 20000000));
    assert_int_equal(help_count(dirs[0], ".page"), 0);
    assert_int_equal(access(dirs[0], F_OK), 0);
    age_tree(dirs[0], 3600);
    age_tree(dirs[1], 3600);
    assert_true(mx_cold_sweep(c, 20000000));
    assert_int_not_equal(access(dirs[0], F_OK), 0);  /* gone */
    assert_int_equal(access(path, F_OK), 0);         /* somebody's name: it stays, with its folder */
    assert_int_equal(help_count(dirs[2], ".page"), 2); /* not empty */
    mx_cold_close(c);
}

/* Ten files of 60 MiB: the youngest stay, below 256 MiB in all. */
static void test_quarantine_is_bounded_in_bytes(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 64);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    char path[600];
    snprintf(path, sizeof path, "%s/quarantine", s->root_dir);
    mkdir(path, 0700);
    for (int i = 0; i < 10; i++) { /* 60 MiB each: not so large that holes are looked at */
        snprintf(path, sizeof path, "%s/quarantine/bad%d.state", s->root_dir, i);
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, 60 << 20), 0);
        close(fd);
        int64_t age = 1000 - i;
        help_age(path, &age);
    }
    assert_true(mx_cold_sweep(c, 20000000));
    assert_int_equal(help_count(s->root_dir, ".state"), 4);
    assert_int_equal(access(path, F_OK), 0);
    mx_cold_close(c);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup_ageless, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_conversation_writes_its_tokens_once),
        T(test_write_budget),
        T(test_ttl),
        T(test_empty_folders_of_other_models),
        T(test_quarantine_is_bounded_in_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
