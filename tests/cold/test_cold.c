/* SPDX-License-Identifier: MIT
 *
 * The cold tier as the engine sees it: what was written comes back bit for bit, in the same
 * process, in another, after a restart; nothing else does.
 */
#include "cold/cold_help.h"

typedef help_bed state;

static void test_write_and_read_back(void **arg)
{
    state *s = *arg;
    talk_make(&s->talk, &s->root, 1, 0, 5 * 64 + 17);
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), 0);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    for (size_t i = 0; i < s->talk.n_ids; i++) {
        assert_true(mx_cold_has_page(c, &s->talk.ids[i]));
    }
    for (size_t n = 0; n <= s->talk.n + 40; n++) {
        size_t want = n < s->talk.n ? n : s->talk.n;
        assert_int_equal(help_read_talk(c, &s->talk, n), want);
    }
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.pages_written, 6);
    assert_int_equal(st.sessions_written, 1);
    assert_int_equal(st.write_failures, 0);
    assert_int_equal(st.quarantined, 0);
    assert_false(st.is_degraded);
    assert_true(st.read_bytes_per_us > 0);
    mx_cold_close(c);
}

/* The index is empty then: chains and whole partial pages are found by name alone, a page that
 * matches in part through the manifest. */
static void test_restart(void **arg)
{
    state *s = *arg;
    talk_make(&s->talk, &s->root, 2, 0, 9 * 64 + 31);
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    assert_true(mx_cold_flush(c, 10000000));
    mx_cold_close(c);

    c = help_open(&s->cfg);
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n + 100), s->talk.n);
    assert_true(mx_cold_sweep(c, 10000000));
    for (size_t common = 0; common <= s->talk.n; common += 7) {
        s->other = s->talk;
        talk_make(&s->other, &s->root, 99, common, s->talk.n + 64);
        assert_int_equal(help_read_talk(c, &s->other, s->other.n), common);
    }
    mx_cold_close(c);
}

static void test_longest_child_wins(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    talk_make(&s->talk, &s->root, 3, 0, 64 + 10);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    talk_cut(&s->talk, 64 + 40);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    s->other = s->talk;
    talk_make(&s->other, &s->root, 4, 64 + 25, 128);
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    /* 33 tokens of the partial page with 40, 25 of the full page of the other conversation. */
    talk *t = &s->other;
    *t = s->talk;
    talk_make(t, &s->root, 5, 64 + 33, 200);
    assert_int_equal(help_read_talk(c, t, 200), 64 + 33);
    mx_cold_close(c);
}

static void test_first_page_in_the_middle(void **arg)
{
    state *s = *arg;
    talk_make(&s->talk, &s->root, 6, 0, 6 * 64 + 5);
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_job job = {.kind = MX_COLD_PROBE,
                       .root = s->root,
                       .parent_id = s->talk.ids[1],
                       .first_page = 2,
                       .tokens = s->talk.tokens + 128,
                       .n_tokens = s->talk.n - 128};
    assert_int_equal(help_run(c, &job), MX_OK);
    assert_int_equal(job.n_full, 4);
    assert_int_equal(job.tail_rows, 5);
    assert_int_equal(job.tail_file_rows, 5);
    assert_int_equal(job.read_bytes, 4 * TINY_BYTES + mx_kv_rows_bytes(&tiny, 5));
    mx_cold_close(c);
}

static void test_other_roots_are_not_found(void **arg)
{
    state *s = *arg;
    talk_make(&s->talk, &s->root, 7, 0, 200);
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_hash256 salted = help_root(2);
    talk_make(&s->other, &salted, 7, 0, 200);
    assert_int_equal(help_read_talk(c, &s->other, 200), 0);
    /* A salted conversation lies in the same folder and comes back under its own root. */
    assert_int_equal(help_write_talk(c, &s->other), MX_OK);
    assert_int_equal(help_read_talk(c, &s->other, 200), 200);
    mx_cold_close(c);
}

static void test_lying_jobs_are_refused(void **arg)
{
    state *s = *arg;
    talk_make(&s->talk, &s->root, 8, 0, 130);
    mx_cold *c = help_open(&s->cfg);
    s->talk.ids[0].b[5] ^= 1;
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_E_INVALID);
    s->talk.ids[0].b[5] ^= 1;
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    /* A manifest whose pages are not there: nothing is claimed. */
    assert_int_equal(help_write_session(c, &s->talk), MX_E_NOT_FOUND);
    assert_false(mx_cold_has_page(c, &s->talk.ids[1]));
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.sessions_written, 0);
    assert_false(st.is_degraded);
    mx_cold_close(c);
    assert_int_equal(help_count(s->dir, ".session"), 0);
}

/* Disk use grows with the tokens, not with the turns: each full page once. */
static void test_growing_conversation_writes_each_page_once(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    size_t n_partial = 0, partial_bytes = 0;
    talk_make(&s->talk, &s->root, 9, 0, 10);
    for (int turn = 1; turn <= 20; turn++) {
        size_t n = (size_t)turn * 150;
        talk_cut(&s->talk, n);
        for (size_t i = 0; i < s->talk.n_ids; i++) { /* all, also those that are known */
            assert_int_equal(help_write_page(c, &s->talk, i), MX_OK);
        }
        assert_int_equal(help_write_session(c, &s->talk), MX_OK);
        if (n % 64 != 0) {
            n_partial++;
            partial_bytes += MX_DISK_PAYLOAD_AT + mx_kv_rows_bytes(&tiny, n % 64);
        }
    }
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    size_t n_full = 20 * 150 / 64;
    assert_int_equal(st.pages_written, n_full + n_partial);
    size_t plain = n_full * (MX_DISK_PAYLOAD_AT + TINY_BYTES) + partial_bytes;
    if (HELP_COMPRESS == MX_COLD_COMPRESS_OFF) {
        assert_int_equal(st.bytes_written, plain);
    } else {
        assert_true(st.bytes_written < plain - n_full * TINY_BYTES / 4);
    }
    mx_cold_close(c);
}

static void test_write_only(void **arg)
{
    state *s = *arg;
    s->cfg.mode = MX_COLD_WRITE_ONLY;
    talk_make(&s->talk, &s->root, 10, 0, 100);
    mx_cold *c = help_open(&s->cfg);
    mx_cold_job job = {.kind = MX_COLD_PROBE, .root = s->root, .parent_id = s->root};
    assert_int_equal(mx_cold_submit(c, &job), MX_E_UNSUPPORTED);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    s->cfg.mode = MX_COLD_OFF;
    mx_errbuf eb;
    assert_int_equal(mx_cold_open(&c, &tiny, &s->cfg, &eb), MX_E_INVALID);
}

static void test_queue_is_bounded(void **arg)
{
    state *s = *arg;
    enum { N = 40 };
    s->cfg.queue_bytes = 4 * TINY_BYTES;
    talk_make(&s->talk, &s->root, 11, 0, N * 64);
    static uint8_t payloads[N][TINY_BYTES] __attribute__((aligned(64)));
    static mx_cold_job jobs[N];
    mx_cold *c = help_open(&s->cfg);
    size_t n_queued = 0, n_refused = 0;
    for (size_t i = 0; i < N; i++) {
        talk_payload(&s->talk, i, 64, payloads[i]);
        jobs[i] = (mx_cold_job){.kind = MX_COLD_WRITE_PAGE,
                                .root = s->root,
                                .parent_id = talk_parent(&s->talk, i),
                                .first_page = i,
                                .tokens = s->talk.tokens + 64 * i,
                                .n_tokens = 64,
                                .payload = payloads[i],
                                .page_id = s->talk.ids[i]};
        mx_err err = mx_cold_submit(c, &jobs[i]);
        assert_true(err == MX_OK || err == MX_E_FULL);
        n_queued += err == MX_OK;
        n_refused += err == MX_E_FULL;
        mx_cold_stats st;
        mx_cold_get_stats(c, &st);
        assert_true(st.queued_bytes <= s->cfg.queue_bytes);
    }
    assert_true(n_queued >= 4);
    assert_true(mx_cold_flush(c, 10000000));
    for (size_t i = 0; i < n_queued; i++) {
        assert_int_equal(help_wait(c)->status, MX_OK);
    }
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.queued_jobs, 0);
    assert_int_equal(st.queued_bytes, 0);
    assert_int_equal(st.dropped_full, n_refused);
    mx_cold_close(c);
}

static void test_stop_hands_jobs_back(void **arg)
{
    state *s = *arg;
    enum { N = 32 };
    talk_make(&s->talk, &s->root, 12, 0, N * 64);
    static uint8_t payloads[N][TINY_BYTES] __attribute__((aligned(64)));
    static mx_cold_job jobs[N];
    mx_cold *c = help_open(&s->cfg);
    for (size_t i = 0; i < N; i++) {
        talk_payload(&s->talk, i, 64, payloads[i]);
        jobs[i] = (mx_cold_job){.kind = MX_COLD_WRITE_PAGE,
                                .root = s->root,
                                .parent_id = talk_parent(&s->talk, i),
                                .first_page = i,
                                .tokens = s->talk.tokens + 64 * i,
                                .n_tokens = 64,
                                .payload = payloads[i],
                                .page_id = s->talk.ids[i]};
        assert_int_equal(mx_cold_submit(c, &jobs[i]), MX_OK);
    }
    assert_true(mx_cold_stop(c));
    size_t n = 0;
    for (mx_cold_job *job; (job = mx_cold_poll(c)) != NULL; n++) {
        assert_true(job->status == MX_OK || job->status == MX_E_CANCELLED);
    }
    assert_int_equal(n, N);
    assert_int_equal(mx_cold_submit(c, &jobs[0]), MX_E_CANCELLED);
    mx_cold_close(c);
    c = help_open(&s->cfg);
    size_t gained = help_read_talk(c, &s->talk, s->talk.n);
    assert_int_equal(gained % 64, 0);
    mx_cold_close(c);
}

static void check_mode(const char *path, void *arg)
{
    struct stat st;
    (void)arg;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
}

static void test_modes_and_marker(void **arg)
{
    state *s = *arg;
    char deep[300], path[700];
    snprintf(deep, sizeof deep, "%s/a/b/cache", s->dir);
    s->cfg.dir = deep;
    mode_t old = umask(0);
    talk_make(&s->talk, &s->root, 13, 0, 70);
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_close(c);
    umask(old);
    assert_true(help_each_file(deep, "", check_mode, NULL) >= 5);
    char hex[65];
    mx_hash256_hex(&s->root, hex);
    static const char *const folders[] = {"", "/v1", "/v1/%s", "/v1/%s/pages", "/v1/%s/sessions"};
    for (size_t i = 0; i < MX_COUNT(folders); i++) {
        char tail[200];
        struct stat st;
        snprintf(tail, sizeof tail, i < 2 ? "%s" : folders[i], i < 2 ? folders[i] : hex);
        snprintf(path, sizeof path, "%s%s", deep, tail);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0700);
    }
    assert_int_equal(help_count(deep, "model.json"), 1);
    assert_int_equal(help_count(deep, MX_COLD_MARKER_NAME), 1);
    assert_int_equal(help_count(deep, "gc.lock"), 1);
}

/* Two users of one folder, here two instances: each finds what the other wrote, at once. */
static void test_two_on_one_folder(void **arg)
{
    state *s = *arg;
    mx_cold *a = help_open(&s->cfg), *b = help_open(&s->cfg);
    talk_make(&s->talk, &s->root, 14, 0, 300);
    assert_int_equal(help_write_talk(a, &s->talk), MX_OK);
    assert_int_equal(help_read_talk(b, &s->talk, 300), 300);
    talk_cut(&s->talk, 500);
    assert_int_equal(help_write_talk(b, &s->talk), MX_OK);
    assert_int_equal(help_read_talk(a, &s->talk, 500), 500);
    /* The second does not write what is there. */
    for (size_t i = 0; i < s->talk.n_ids; i++) {
        assert_int_equal(help_write_page(a, &s->talk, i), MX_OK);
    }
    mx_cold_stats st;
    mx_cold_get_stats(a, &st);
    assert_int_equal(st.pages_written, 5);
    assert_int_equal(st.pages_skipped, s->talk.n_ids);
    mx_cold_close(a);
    mx_cold_close(b);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_write_and_read_back),
        T(test_restart),
        T(test_longest_child_wins),
        T(test_first_page_in_the_middle),
        T(test_other_roots_are_not_found),
        T(test_lying_jobs_are_refused),
        T(test_growing_conversation_writes_each_page_once),
        T(test_write_only),
        T(test_queue_is_bounded),
        T(test_stop_hands_jobs_back),
        T(test_modes_and_marker),
        T(test_two_on_one_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
