/* SPDX-License-Identifier: MIT
 *
 * Models with a sliding window: rows that no token can see any more cost no memory, a conversation
 * goes on where it ended all the same, from RAM and, after a restart, from disk, and each answer is
 * the cold one bit for bit.
 */
#include "engine_rig.h"
#include "tiny_models.h"

#include "sched/sched_internal.h"

#include <stdatomic.h>

enum { N_CTX = 2048, N_LONG = 1500 };

static mx_tiny_spec gemma3(void)
{
    return rig_spec_of(tiny_named("gemma3"), N_CTX);
}

typedef struct usage {
    size_t n_bytes, n_bank;
} usage;

static void measure(void *arg, const mx_engine_view *view)
{
    usage *u = arg;
    mx_bank_stats s;
    mx_bank_get_stats(view->bank, &s);
    mx_bank_check(view->bank);
    mx_kv_pool_check(view->pool);
    u->n_bytes = mx_kv_pool_used_bytes(view->pool);
    u->n_bank = s.bytes;
}

static usage usage_of(rig *g)
{
    usage u = {0};
    if (mx_engine_cold(g->engine) != NULL) { /* its queue holds pages */
        rig_wait_written(g);
    }
    assert_int_equal(mx_engine_call(g->engine, measure, &u), MX_OK);
    return u;
}

/* Asks, compares with the cold answer, and returns the statistics. */
static mx_request_stats ask_both(rig *g, const question *q, int32_t *next, const char *what)
{
    answer cold, got;
    ask_cold(g, q, &cold);
    ask_and_wait(g, q, &got);
    assert_same(&cold, &got, what);
    for (size_t i = 0; next != NULL && i < got.n_ids; i++) {
        next[i] = got.ids[i];
    }
    mx_request_stats s = got.stats;
    answer_free(&cold);
    answer_free(&got);
    return s;
}

/* A prompt of many windows, its continuation, and an edit in the middle. */
static void talk(mx_cold_mode mode)
{
    mx_tiny_spec spec = gemma3();
    static int32_t t[N_CTX];
    rig g;
    rig_open(&g, &spec, 1, 0);
    g.cfg.cold_mode = mode;
    g.cfg.cold_tuning = (mx_cold_tuning){.min_free_bytes = -1};
    rig_start(&g);
    const mx_kv_shape *shape = mx_model_kv_shape(g.model);
    assert_int_equal(shape->n_local, 3);
    assert_int_equal(shape->window, 21);
    const size_t spacing = mx_stop_window_spacing(shape);
    random_prompt(t, N_CTX, 5);

    uint32_t mark = 700;
    question q = {.prompt = t, .n_prompt = N_LONG, .max_tokens = 8, .seed = 3, .marks = &mark,
                  .n_marks = 1};
    (void)ask_both(&g, &q, t + N_LONG, "first");
    /* Windows at ends, the mark, and every 256 tokens; each needs at most two pages. */
    const size_t n_pages = (N_LONG + 8) / MX_PAGE_TOKENS + 1, n_windows = N_LONG / spacing + 3;
    const size_t most = n_pages * mx_kv_payload_bytes(shape) +
                        2 * n_windows * mx_kv_local_bytes(shape);
    usage u = usage_of(&g);
    if (u.n_bytes > most) {
        fail_msg("%zu pages use %zu bytes; expected at most %zu", n_pages, u.n_bytes, most);
    }
    assert_true(u.n_bank < most + n_pages * 1024);
    assert_true(most < n_pages * (mx_kv_payload_bytes(shape) + mx_kv_local_bytes(shape)));

    /* The turn comes back. */
    q.n_prompt = N_LONG + 8 + 30;
    mx_request_stats s = ask_both(&g, &q, NULL, "next turn");
    assert_int_equal(s.n_ram, N_LONG + 7);
    assert_int_equal(s.restore, MX_RESTORE_EXACT_PREFIX);

    /* From RAM alone an edit goes back to the window before it, and says so. */
    static int32_t edit[N_CTX];
    memcpy(edit, t, sizeof edit);
    edit[650]++;
    question e = {.prompt = edit, .n_prompt = 800, .max_tokens = 4, .seed = 1};
    s = ask_both(&g, &e, NULL, "edit");
    if (mode == MX_COLD_OFF) {
        assert_true(s.n_ram >= 512 && s.n_ram < 576); /* 512, and to the end of its page */
        assert_string_equal(s.miss_reason, "boundary_only");
        assert_int_equal(s.restore, MX_RESTORE_BOUNDARY);
    } else {
        assert_int_equal(s.n_ram + s.n_ssd, 650);
    }
    /* The next one in the same place does not. */
    edit[650]++;
    s = ask_both(&g, &e, NULL, "edit again");
    assert_int_equal(s.n_ram + s.n_ssd, 650);
    /* At the mark, too. */
    memcpy(edit, t, sizeof edit);
    edit[mark]++;
    s = ask_both(&g, &e, NULL, "mark");
    assert_int_equal(s.n_ram + s.n_ssd, mark);

    if (mode != MX_COLD_OFF) {
        rig_stop(&g);
        rig_start(&g);
        q.seed = 9;
        s = ask_both(&g, &q, NULL, "after a restart");
        assert_int_equal(s.n_ssd, N_LONG + 8 + 30 - 1);
        u = usage_of(&g);
        assert_true(u.n_bytes <= most);
    }
    rig_close(&g);
}

static void test_ram(void **state)
{
    (void)state;
    talk(MX_COLD_OFF);
}

static void test_disk(void **state)
{
    (void)state;
    talk(MX_COLD_ON);
}

/* A budget that whole pages would exceed three times over: the sequence fits, and its next turn is
 * found. */
static void test_small_budget(void **state)
{
    (void)state;
    mx_tiny_spec spec = gemma3();
    static int32_t t[N_CTX];
    rig g;
    rig_open(&g, &spec, 1, 10 + 2); /* of 24 pages */
    g.cfg.prefill_chunk = 64;
    rig_start(&g);
    random_prompt(t, N_CTX, 6);
    assert_true(mx_engine_max_tokens(g.engine) >= N_LONG);
    question q = {.prompt = t, .n_prompt = N_LONG, .max_tokens = 4, .seed = 3};
    (void)ask_both(&g, &q, t + N_LONG, "first");
    q.n_prompt = N_LONG + 4 + 10;
    mx_request_stats s = ask_both(&g, &q, NULL, "next turn");
    assert_true(s.n_ram >= 256);
    rig_close(&g);
}

/* ---- rows that go while the folder is asked --------------------------------------------------- */

static pthread_mutex_t sync_tap = PTHREAD_MUTEX_INITIALIZER; /* held: the writer hangs */
static pthread_mutex_t open_tap = PTHREAD_MUTEX_INITIALIZER; /* held: the next one to open something does */
static atomic_bool is_open_tapped;
static atomic_int n_opening;

static int tapped_fsync(int fd)
{
    (void)fd;
    pthread_mutex_lock(&sync_tap);
    pthread_mutex_unlock(&sync_tap);
    return 0;
}

static int tapped_open(int dir, const char *name, int flags, unsigned mode)
{
    if (atomic_exchange(&is_open_tapped, false)) {
        atomic_fetch_add(&n_opening, 1);
        pthread_mutex_lock(&open_tap);
        pthread_mutex_unlock(&open_tap);
    }
    return mx_cold_real_fileops.open(dir, name, flags, mode);
}

/* A prompt leaves another one's text in its second page. The rows of the first are kept only as long as the
 * writer has not written it, and this it has when the folder answers that it has as much as RAM; those of
 * the second likewise, or for a mark. They were found, so they are used, or read. */
static void check_rows_go(bool has_mark)
{
    enum { N_FIRST = 300, N_SHARED = 74, N_SECOND = 150, MARK = 120 };
    mx_tiny_spec spec = gemma3();
    static int32_t t[N_FIRST], u[N_SECOND];
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.fsync = tapped_fsync;
    ops.open = tapped_open;
    rig g;
    rig_open(&g, &spec, 1, 0);
    g.cfg.cold_mode = MX_COLD_ON;
    g.cfg.cold_tuning = (mx_cold_tuning){.fileops = &ops, .min_free_bytes = -1};
    pthread_mutex_lock(&sync_tap);
    rig_start(&g);
    random_prompt(t, N_FIRST, 7);
    random_prompt(u, N_SECOND, 8);
    memcpy(u, t, N_SHARED * sizeof *u);
    u[N_SHARED] = t[N_SHARED] + 1;
    uint32_t mark = MARK;
    question q = {.prompt = t, .n_prompt = N_FIRST, .max_tokens = 2, .seed = 1, .marks = &mark,
                  .n_marks = has_mark};
    (void)ask_both(&g, &q, NULL, "first");
    q = (question){.prompt = u, .n_prompt = N_SECOND, .max_tokens = 2, .seed = 1};
    answer cold, got;
    ask_cold(&g, &q, &cold);

    pthread_mutex_lock(&open_tap);
    atomic_store(&n_opening, 0);
    atomic_store(&is_open_tapped, true); /* by the reader, which has not seen the folder yet */
    asking a;
    const uint64_t begin = mx_now_us(), until = begin + 60 * 1000000ull;
    ask(&g, &a, &q);
    while (atomic_load(&n_opening) == 0) {
        assert_true(mx_now_us() < until);
        usleep(1000);
    }
    pthread_mutex_unlock(&sync_tap);
    (void)usage_of(&g);
    pthread_mutex_unlock(&open_tap);
    await(&a, &got);
    assert_same(&cold, &got, "second");
    assert_int_equal(got.stats.n_ram, has_mark ? N_SHARED : MX_PAGE_TOKENS);
    if (has_mark || mx_now_us() - begin < MX_PROBE_WAIT_US) { /* later it is not waited for */
        assert_int_equal(got.stats.n_ram + got.stats.n_ssd, N_SHARED);
    }
    answer_free(&cold);
    answer_free(&got);
    rig_close(&g);
}

static void test_rows_go_meanwhile(void **state)
{
    (void)state;
    check_rows_go(true);
    check_rows_go(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ram),
        cmocka_unit_test(test_disk),
        cmocka_unit_test(test_small_budget),
        cmocka_unit_test(test_rows_go_meanwhile),
    };
    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
