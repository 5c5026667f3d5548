/* SPDX-License-Identifier: MIT
 *
 * Recurrent states on disk: a restore ends at the greatest boundary whose rows and state are there
 * and whole, wherever the pages before it are, and whatever became of the files.
 */
#define HELP_STATE_BYTES 5003
#include "cold/cold_help.h"

#include "cold/cold_files.h"
#include "cold/cold_tools.h"

enum { STATE_FILE_BYTES = 4096 + HELP_STATE_BYTES };

typedef help_bed state;

static void object_path(const state *s, const char *folder, const mx_hash256 *id,
                        const char *suffix, char out[700])
{
    char root[65], hex[65];
    mx_hash256_hex(&s->root, root);
    mx_hash256_hex(id, hex);
    snprintf(out, 700, "%s/v1/%s/%s/%.2s/%s.%s", s->dir, root, folder, hex, hex, suffix);
}

static void state_path(const state *s, size_t n, char out[700])
{
    mx_hash256 id = talk_state_id(&s->talk, n);
    object_path(s, "states", &id, "state", out);
}

static mx_cold *write_talk(state *s, size_t n)
{
    talk_make(&s->talk, &s->root, 1, 0, n);
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    return c;
}

static void test_every_cut(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 7 * 64 + 17);
    for (size_t n = 0; n <= s->talk.n + 40; n++) {
        assert_int_equal(help_read_talk(c, &s->talk, n), talk_boundary(&s->talk, n));
    }
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.states_written, 5);
    assert_int_equal(st.pages_written, 8);
    assert_int_equal(st.quarantined, 0);
    mx_cold_close(c);

    c = help_open(&s->cfg); /* after a restart, and before and after the scan */
    assert_int_equal(help_read_talk(c, &s->talk, 300), 300);
    assert_true(mx_cold_sweep(c, 10000000));
    for (size_t common = 1; common <= s->talk.n; common += 13) {
        s->other = s->talk;
        talk_make(&s->other, &s->root, 99, common, s->talk.n + 64);
        assert_int_equal(help_read_talk(c, &s->other, s->other.n), talk_boundary(&s->talk, common));
    }
    mx_cold_close(c);
}

/* What another process writes meanwhile is found by its name. */
static void test_found_without_a_scan(void **arg)
{
    state *s = *arg;
    talk_make(&s->talk, &s->root, 1, 0, 450);
    mx_cold *mine = help_open(&s->cfg), *other = help_open(&s->cfg);
    assert_true(mx_cold_sweep(mine, 10000000));
    assert_int_equal(help_write_talk(other, &s->talk), MX_OK);
    assert_int_equal(help_read_talk(mine, &s->talk, 500), 450);
    assert_int_equal(help_read_talk(mine, &s->talk, 449), 400);
    mx_cold_close(other);
    mx_cold_close(mine);
}

/* The first pages are in RAM; the state may stand before their end, or behind more pages. */
static void test_pages_in_ram(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 450);
    static const struct { size_t first, n, min, at, n_full, rows; } cases[] = {
        {5, 450, 0, 450, 2, 2},  /* 320 tokens in RAM, 130 more */
        {5, 449, 0, 400, 1, 16},
        {5, 399, 0, 300, 0, 0},  /* all pages are in RAM */
        {5, 399, 299, 300, 0, 0},
        {5, 399, 300, 0, 0, 0},  /* RAM has as much */
        {0, 399, 0, 300, 4, 44}, /* the rest of a whole page is left out */
        {1, 200, 100, 200, 2, 8},
        {3, 199, 0, 100, 0, 0},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        size_t from = cases[i].first * MX_PAGE_TOKENS;
        mx_cold_job job = {.kind = MX_COLD_PROBE,
                           .root = s->root,
                           .parent_id = talk_parent(&s->talk, cases[i].first),
                           .first_page = cases[i].first,
                           .chain = s->talk.tokens,
                           .state_min = cases[i].min,
                           .tokens = s->talk.tokens + from,
                           .n_tokens = cases[i].n - from};
        assert_int_equal(help_run(c, &job), MX_OK);
        if (job.state_at != cases[i].at || job.n_full != cases[i].n_full
            || job.tail_rows != cases[i].rows) {
            fail_msg("case %zu: state at %llu, %zu pages, %u rows", i,
                     (unsigned long long)job.state_at, job.n_full, job.tail_rows);
        }
        uint8_t got[HELP_STATE_BYTES], want[HELP_STATE_BYTES + 1];
        uint8_t *memory = mx_alloc_aligned(4096, 8 * TINY_BYTES), *payloads[8];
        for (size_t k = 0; k < 8; k++) {
            payloads[k] = memory + k * TINY_BYTES;
        }
        job.kind = MX_COLD_READ;
        job.payloads = payloads;
        job.state_payload = got;
        assert_int_equal(help_run(c, &job), MX_OK);
        assert_int_equal(job.state_at, cases[i].at);
        assert_int_equal(job.n_read, cases[i].n_full + (cases[i].rows > 0));
        if (job.state_at > 0) {
            talk_state(&s->talk, job.state_at, want);
            assert_memory_equal(got, want, HELP_STATE_BYTES);
        }
        mx_free(memory);
    }
    mx_cold_close(c);
}

/* A state file that is gone, cut short or damaged anywhere costs the way from the boundary before. */
static void test_damaged_states(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 300);
    mx_cold_close(c);
    char path[700];
    static uint8_t good[STATE_FILE_BYTES], bad[STATE_FILE_BYTES + 1];
    state_path(s, 200, path);
    assert_int_equal(help_slurp(path, good, sizeof good), STATE_FILE_BYTES);
    uint64_t random = 5;
    for (int i = 0; i < 160; i++) {
        memcpy(bad, good, sizeof good);
        size_t n = STATE_FILE_BYTES;
        size_t at = i < 64 ? (size_t)i * 12 : help_random(&random) % n;
        if (i % 4 == 3) {
            n = i % 8 == 3 ? at : n + 1; /* too short, or too long */
        } else {
            bad[at] ^= (uint8_t)(1 << (i % 8));
        }
        help_spill(path, bad, n);
        c = help_open(&s->cfg);
        size_t got = help_read_talk(c, &s->talk, 299); /* compares each byte */
        bool is_unseen = n == STATE_FILE_BYTES && at >= 24 && at < 32; /* compatible features */
        if (got != 100 && !(is_unseen && got == 200)) {
            fail_msg("byte %zu of %zu: restored %zu", at, n, got);
        }
        assert_int_equal(help_read_talk(c, &s->talk, 300), 300); /* the next one is whole */
        mx_cold_close(c);
    }
    assert_int_equal(unlink(path) == 0 || errno == ENOENT, 1);
    c = help_open(&s->cfg);
    assert_int_equal(help_read_talk(c, &s->talk, 299), 100);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK); /* and it is written again */
    assert_int_equal(help_read_talk(c, &s->talk, 299), 200);
    mx_cold_close(c);
}

/* Found by the probe, bad when read: the read itself goes back, also behind a page that is bad. */
static void test_bad_when_read(void **arg)
{
    state *s = *arg;
    for (int what = 0; what < 3; what++) {
        mx_cold *c = write_talk(s, 500);
        mx_cold_job job = {.kind = MX_COLD_PROBE,
                           .root = s->root,
                           .parent_id = s->root,
                           .chain = s->talk.tokens,
                           .tokens = s->talk.tokens,
                           .n_tokens = 500};
        assert_int_equal(help_run(c, &job), MX_OK);
        assert_int_equal(job.state_at, 500);
        char path[700];
        if (what == 0) {
            state_path(s, 500, path);
        } else {
            object_path(s, "pages", &s->talk.ids[what == 1 ? 4 : 0], "page", path);
        }
        uint8_t bytes[10000];
        size_t n = help_slurp(path, bytes, sizeof bytes);
        bytes[n - 1] ^= 1;
        help_spill(path, bytes, n);
        uint8_t got[HELP_STATE_BYTES], want_state[HELP_STATE_BYTES + 1];
        uint8_t *memory = mx_alloc_aligned(4096, 8 * TINY_BYTES), *payloads[8];
        for (size_t k = 0; k < 8; k++) {
            payloads[k] = memory + k * TINY_BYTES;
        }
        job.kind = MX_COLD_READ;
        job.payloads = payloads;
        job.state_payload = got;
        assert_int_equal(help_run(c, &job), MX_OK);
        size_t want = what == 0 ? 400 : what == 1 ? 200 : 0;
        assert_int_equal(job.state_at, want);
        if (want > 0) {
            talk_state(&s->talk, want, want_state);
            assert_memory_equal(got, want_state, HELP_STATE_BYTES);
        }
        mx_free(memory);
        mx_cold_stats st;
        mx_cold_get_stats(c, &st);
        assert_int_equal(st.quarantined, 1);
        mx_cold_close(c);
        help_remove_tree(s->dir);
    }
}

/* Another conversation's state under this one's name, with all checksums right. */
static void test_foreign_state(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 300);
    s->other = s->talk;
    talk_make(&s->talk, &s->root, 2, 150, 300);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    uint8_t bytes[STATE_FILE_BYTES];
    char path[700];
    state_path(s, 200, path);
    help_slurp(path, bytes, sizeof bytes);
    s->talk = s->other;
    state_path(s, 200, path);
    help_spill(path, bytes, sizeof bytes);
    c = help_open(&s->cfg);
    assert_int_equal(help_read_talk(c, &s->talk, 299), 100);
    mx_cold_close(c);
}

typedef struct listing {
    size_t n_states;
    mx_hash256 first;
} listing;

static void see_manifest(const char *path, void *arg)
{
    listing *l = arg;
    static uint8_t bytes[8192];
    mx_disk_manifest m;
    size_t n = help_slurp(path, bytes, sizeof bytes);
    assert_int_equal(mx_disk_manifest_decode(&m, bytes, n, NULL), MX_OK);
    l->n_states = m.n_states;
    l->first = m.state_ids[0];
}

static void test_manifest_lists_states(void **arg)
{
    state *s = *arg;
    talk_make(&s->talk, &s->root, 1, 0, 450);
    mx_cold *c = help_open(&s->cfg);
    for (size_t i = 0; i < s->talk.n_ids; i++) {
        assert_int_equal(help_write_page(c, &s->talk, i), MX_OK);
    }
    assert_int_equal(help_write_state(c, &s->talk, 200), MX_OK);
    assert_int_equal(help_write_state(c, &s->talk, 450), MX_OK);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK); /* names five that could be */
    listing l = {0};
    assert_int_equal(help_each_file(s->dir, ".session", see_manifest, &l), 1);
    mx_hash256 id = talk_state_id(&s->talk, 200);
    assert_int_equal(l.n_states, 2);
    assert_memory_equal(&l.first, &id, sizeof id);
    mx_cold_stats before, after;
    mx_cold_get_stats(c, &before);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK); /* nothing is new */
    mx_cold_get_stats(c, &after);
    assert_int_equal(after.sessions_skipped, before.sessions_skipped + 1);
    mx_cold_close(c);
}

/* The same pages with as many states, but others: the manifest of these is another one. */
static void test_manifest_follows_its_states(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 450);
    mx_hash256 ids[2];
    uint64_t positions[2];
    mx_cold_job job = help_session_job(&s->talk);
    job.state_ids = ids;
    job.state_positions = positions;
    job.n_states = 2;
    for (size_t first = 100; first <= 300; first += 100) {
        for (size_t i = 0; i < 2; i++) {
            positions[i] = first + i * 100;
            ids[i] = talk_state_id(&s->talk, positions[i]);
        }
        mx_cold_stats st[3];
        listing l = {0};
        mx_cold_get_stats(c, &st[0]);
        assert_int_equal(help_run(c, &job), MX_OK);
        mx_cold_get_stats(c, &st[1]);
        assert_int_equal(help_run(c, &job), MX_OK); /* nothing is new */
        mx_cold_get_stats(c, &st[2]);
        assert_int_equal(st[1].sessions_written, st[0].sessions_written + 1);
        assert_int_equal(st[2].sessions_written, st[1].sessions_written);
        assert_int_equal(st[2].sessions_skipped, st[0].sessions_skipped + 1);
        assert_int_equal(help_each_file(s->dir, ".session", see_manifest, &l), 1);
        assert_int_equal(l.n_states, 2);
        assert_memory_equal(&l.first, &ids[0], sizeof ids[0]);
    }
    mx_cold_close(c);
}

/* States are files like pages: swept when their pages are gone, counted, taken by the limit. */
static void test_sweep(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 450);
    mx_cold_close(c);
    char path[700];
    object_path(s, "pages", &s->talk.ids[2], "page", path);
    assert_int_equal(unlink(path), 0);
    c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    assert_int_equal(help_count(s->dir, ".state"), 5); /* too young to go */
    help_age_all(s, ".state", 7200);
    assert_true(mx_cold_sweep(c, 10000000));
    assert_int_equal(help_count(s->dir, ".state"), 4); /* that at 200 stands behind page 2 */
    assert_int_equal(help_read_talk(c, &s->talk, 450), 100);
    mx_cold_close(c);

    c = write_talk(s, 450);
    assert_int_equal(help_count(s->dir, ".state"), 5);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    mx_cold_close(c);
    s->cfg.max_bytes = 60000; /* of five states and eight pages, together 111 KiB */
    s->cfg.tuning.delete_age_s = -1;
    c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_get_stats(c, &st);
    assert_true(st.bytes <= 60000);
    size_t n = help_read_talk(c, &s->talk, 450);
    if (n == 0 || n >= 400) { /* leaf first: what is left is a beginning, with its states */
        fail_msg("%zu tokens are left", n);
    }
    mx_cold_close(c);
}

/* Something in the way of a look at the page before is not its absence: the state stays. */
static void test_look_that_fails_is_not_absence(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 450);
    char path[700];
    object_path(s, "pages", &s->talk.ids[2], "page", path);
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    if (rmdir(path) != 0) { /* with another page in it */
        fail_msg("the test needs other tokens: two pages in %s", path);
    }
    assert_int_equal(symlink(strrchr(path, '/') + 1, path), 0); /* leads to itself */
    help_age_all(s, ".state", 7200);
    assert_true(mx_cold_sweep(c, 10000000));
    assert_int_equal(help_count(s->dir, ".state"), 5);
    assert_int_equal(unlink(path), 0);
    assert_true(mx_cold_sweep(c, 10000000));
    assert_int_equal(help_count(s->dir, ".state"), 4);
    mx_cold_close(c);
}

static _Atomic size_t n_reads;

static ssize_t counting_preadv(int fd, const struct iovec *iov, int n, long at)
{
    n_reads++;
    return mx_cold_real_fileops.preadv(fd, iov, n, at);
}

/* A sweep that asks for orphans and makes room, too, reads the head of each state once. */
static void test_sweep_reads_states_once(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 1000);
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    mx_cold_close(c);
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.preadv = counting_preadv;
    s->cfg.tuning.fileops = &ops;
    s->cfg.tuning.delete_age_s = -1;
    s->cfg.max_bytes = st.bytes + 8 * (TINY_BYTES + 4096); /* room for some has to be made */
    n_reads = 0;
    c = help_open_settled(&s->cfg);
    mx_cold_close(c);
    assert_true(help_count(s->dir, ".state") < 10);
    assert_int_equal(n_reads, 10 + 1); /* and the manifest */
}

/* Under the limit states that stand close to another go before any page, every other one of a row. */
static void test_thinned_by_coverage(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 1000); /* states at 100, 200, ... 1000; 16 pages */
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    mx_cold_close(c);
    uint64_t all = st.bytes, low_water = all - 3 * STATE_FILE_BYTES + 100;
    /* What the sweep goes down to is the limit less what it keeps free (8 pages and a state). */
    s->cfg.max_bytes = low_water + 8 * (TINY_BYTES + 4096) + HELP_STATE_BYTES;
    s->cfg.tuning.delete_age_s = -1;
    c = help_open(&s->cfg);
    assert_true(mx_cold_sweep(c, 10000000));
    size_t n_states = help_count(s->dir, ".state");
    assert_int_equal(n_states, 7);
    assert_int_equal(help_count(s->dir, ".page"), 16);
    size_t last = 0;
    for (size_t n = 1; n <= 1000; n++) {
        size_t got = help_read_talk(c, &s->talk, n);
        assert_true(n - got <= 200); /* the distance was 100 */
        last = got;
    }
    assert_int_equal(last, 1000);
    mx_cold_close(c);
}

/* A model without states has no folder for them, and does not touch that of one that has. */
static int64_t time_ns(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

/* It is as if it had been read: in order, so that without the pin the end goes first. */
static void test_a_pin_makes_a_chain_young(void **arg)
{
    state *s = *arg;
    char path[700];
    mx_errbuf eb = {{0}};
    mx_cold_close(write_talk(s, 300));
    help_age_all(s, "", 9 * 86400);
    const int64_t before_ns = (int64_t)time(NULL) * 1000000000 - 1000000;
    mx_cold_entry e = {.root = s->root, .id = s->talk.ids[4], .n_tokens = 300};
    snprintf(e.folder, sizeof e.folder, "%s", strrchr(s->root_dir, '/') + 1);
    assert_int_equal(mx_cold_pin_entry(s->dir, NULL, &e, &eb), MX_OK);
    int64_t pages[5];
    for (size_t i = 0; i < 5; i++) {
        object_path(s, "pages", &s->talk.ids[i], "page", path);
        pages[i] = time_ns(path);
        assert_true(pages[i] >= before_ns && (i == 0 || pages[i] < pages[i - 1]));
    }
    for (size_t at = TALK_SPACING; at <= 300; at += TALK_SPACING) {
        state_path(s, at, path);
        int64_t ns = time_ns(path);
        size_t page = (at - 1) / 64;
        assert_true(ns >= before_ns && ns < pages[page] && (page == 4 || ns > pages[page + 1]));
    }
    assert_int_equal(help_each_file(s->root_dir, ".session", NULL, NULL), 1);
    char hex[65];
    mx_hash256_hex(&s->talk.ids[4], hex);
    snprintf(path, sizeof path, "%s/sessions/%s.session", s->root_dir, hex);
    assert_true(time_ns(path) >= before_ns);
}

static void test_models_without_states(void **arg)
{
    state *s = *arg;
    mx_cold *c = write_talk(s, 300);
    mx_cold_close(c);
    static const mx_kv_shape plain = {.n_layers = 2, .n_kv_heads = 1, .head_dim = 8,
                                      .type = MX_KV_F16};
    mx_hash256 root = help_root(2);
    mx_cold_config cfg = s->cfg;
    cfg.root = root;
    assert_int_equal(mx_cold_open(&c, &plain, &cfg, NULL), MX_OK);
    talk_make(&s->other, &root, 7, 0, 300);
    for (size_t i = 0; i < s->other.n_ids; i++) {
        assert_int_equal(help_write_page(c, &s->other, i), MX_OK);
    }
    assert_int_equal(help_write_state(c, &s->other, 100), MX_E_INVALID);
    assert_true(mx_cold_sweep(c, 10000000));
    mx_cold_close(c);
    char path[700], hex[65];
    mx_hash256_hex(&root, hex);
    snprintf(path, sizeof path, "%s/v1/%s/states", s->dir, hex);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(help_count(s->dir, ".state"), 3);
    uint64_t n_files, n_bytes;
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n_files, &n_bytes, NULL), MX_OK);
    assert_int_equal(help_count(s->dir, ""), 0);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup, help_teardown)
    const struct CMUnitTest tests[] = {
        T(test_every_cut),
        T(test_found_without_a_scan),
        T(test_pages_in_ram),
        T(test_damaged_states),
        T(test_bad_when_read),
        T(test_foreign_state),
        T(test_manifest_lists_states),
        T(test_manifest_follows_its_states),
        T(test_sweep),
        T(test_look_that_fails_is_not_absence),
        T(test_sweep_reads_states_once),
        T(test_thinned_by_coverage),
        T(test_a_pin_makes_a_chain_young),
        T(test_models_without_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
