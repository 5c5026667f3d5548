/* SPDX-License-Identifier: MIT
 *
 * The engine over a folder that hangs, fails, or is emptied under its feet. Every answer must be the
 * one that an engine without a folder gives, in about the time that one takes; what can be stored
 * again is. The faults come from the table of system calls (mx_cold_tuning).
 */
#include "hybrid_model.h"
#include "sched/sched_internal.h"
#include "tapped_folder.h"

#include "cold/cold_format.h"
#include "test_threads.h"

#include <ftw.h>
#include <sys/wait.h>

/* ---- tests ------------------------------------------------------------------------------------ */

/* The first request finds out; those behind it do not wait at all, and no page stays away. */
static void reads_that_hang_cost_one_wait(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    prompt p[3];
    rig_start(&g);
    for (uint64_t i = 0; i < 3; i++) {
        make_prompt(&p[i], i + 1);
        ask_both(&g, &p[i], "while all is well");
    }
    rig_stop(&g);
    g.cfg.bank.max_bytes = 1; /* nothing stays in RAM */
    rig_start(&g);
    pthread_mutex_lock(&tap);
    atomic_store(&is_read_tapped, true);
    mx_request_stats s = ask_both(&g, &p[0], "hanging");
    assert_int_equal(s.cache_mode, MX_MODE_COLD);
    assert_in_range(s.restore_us, 1000000, 20000000);
    s = ask_both(&g, &p[1], "still hanging");
    assert_int_equal(s.cache_mode, MX_MODE_COLD);
    print_message("the second request behind a folder that hangs waited for %llu ms\n",
                  (unsigned long long)s.restore_us / 1000);
    assert_true(s.restore_us < 1000000);
    /* The pages in system calls, all of them and no other: what a call may still write into must not
     * be given to anybody; pages in the queue of the writer are gone by now. */
    mx_engine_stats e;
    const int n_hanging = atomic_load(&n_held);
    assert_in_range(n_hanging, 1, MX_COLD_LANES);
    RIG_WAIT_STATS(&g, &e, e.kv_pages_used == (size_t)n_hanging);
    assert_int_equal(e.kv_pages_used, n_hanging);
    atomic_store(&is_read_tapped, false);
    pthread_mutex_unlock(&tap);
    RIG_WAIT_STATS(&g, &e, e.kv_pages_used == 0); /* what hung has come back */
    assert_int_equal(e.kv_pages_used, 0);
    s = ask_both(&g, &p[2], "well again");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    rig_close(&g);
}

typedef struct thief {
    const mx_request *r;
    mx_page *pages[64]; /* [n] */
    size_t n;
} thief;

/* While r is being read from the folder. */
static void take_all_pages(void *arg, const mx_engine_view *view)
{
    thief *t = arg;
    mx_page *page;
    while (t->r->state == MX_RUN_READING && t->n < MX_COUNT(t->pages) &&
           (page = mx_page_alloc(view->pool)) != NULL)
    {
        t->pages[t->n++] = page;
    }
}

static void give_pages_back(void *arg, const mx_engine_view *view)
{
    thief *t = arg;
    while (t->n > 0) {
        mx_page_unref(view->pool, t->pages[--t->n]);
    }
}

/* A prompt is restored slowly, and has to give way before the rest of it is computed. When it comes
 * back, that takes less time than the restore did: no reason for a time below zero. */
static void times_of_a_prompt_that_gave_way(void **state)
{
    (void)state;
    enum { N_LONG = 900, N_MOST = 1200 };
    rig g;
    open_rig(&g, 40);
    prompt p;
    int32_t long_prompt[N_LONG], short_prompt[10];
    make_prompt(&p, 61);
    rig_start(&g);
    ask_both(&g, &p, "stored");
    rig_stop(&g);
    random_prompt(long_prompt, N_LONG, 62);
    random_prompt(short_prompt, 10, 63);
    memcpy(long_prompt, p.tokens, sizeof p.tokens);
    rig_start(&g);
    atomic_store(&slow_read_us, 700000);
    asking older, younger;
    answer got;
    question q = {.prompt = short_prompt, .n_prompt = 10, .max_tokens = N_MOST, .seed = 1};
    ask(&g, &older, &q); /* stands still soon, as nobody reads it */
    q = (question){.prompt = long_prompt, .n_prompt = N_LONG, .max_tokens = 1, .seed = 2};
    ask(&g, &younger, &q);
    thief t = {.r = younger.request};
    const uint64_t until = mx_now_us() + 60 * 1000000ull;
    while (t.n == 0) {
        assert_true(mx_now_us() < until);
        assert_int_equal(mx_engine_call(g.engine, take_all_pages, &t), MX_OK);
    }
    mx_output o = {0};
    answer old = {0};
    mx_engine_stats e = {0};
    /* The older one is read, goes on, and needs a page of the younger's. */
    while (old.finish == MX_FINISH_NONE) {
        assert_true(mx_now_us() < until);
        take_output(&older, &o, &old);
        mx_engine_get_stats(g.engine, &e);
        if (e.n_requeued > 0 && t.n > 0) {
            atomic_store(&slow_read_us, 0);
            assert_int_equal(mx_engine_call(g.engine, give_pages_back, &t), MX_OK);
        }
    }
    assert_true(e.n_requeued > 0); /* otherwise this test shows nothing */
    assert_int_equal(old.n_tokens, N_MOST);
    mx_output_free(&o);
    answer_free(&old);
    mx_request_unref(older.request);
    put_waiter(older.waiter);
    await(&younger, &got);
    assert_int_equal(got.finish, MX_FINISH_LENGTH);
    print_message("restore %llu ms, prefill %llu ms\n",
                  (unsigned long long)got.stats.restore_us / 1000,
                  (unsigned long long)got.stats.prefill_us / 1000);
    assert_true(got.stats.restore_us > 1000000);
    assert_true(got.stats.prefill_us < 300 * 1000000ull);
    answer_free(&got);
    rig_close(&g);
}

/* Eight pages for all, seven for each request: with a writer that never ends, each needs what the one
 * before it left in the queue. */
static void writes_that_hang_keep_no_pages(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 8);
    rig_start(&g);
    pthread_mutex_lock(&tap);
    atomic_store(&is_sync_tapped, true);
    uint64_t longest = 0;
    for (uint64_t i = 0; i < 8; i++) {
        prompt p;
        make_prompt(&p, 100 + i);
        p.q.max_tokens = 100;
        mx_request_stats s = ask_both(&g, &p, "writer hangs");
        uint64_t us = s.queue_us + s.restore_us;
        longest = us > longest ? us : longest;
    }
    print_message("longest wait of 8 requests while the writer hangs: %llu ms\n",
                  (unsigned long long)longest / 1000);
    assert_true(longest < 5000000);
    atomic_store(&is_sync_tapped, false);
    pthread_mutex_unlock(&tap);
    rig_close(&g);
}

/* The engine goes while a thread is stuck in the folder; when that comes back, it must not touch
 * what is gone. In a process of its own: what the thread holds is never freed. */
static void child_leaves_a_hanging_folder(void)
{
    rig g;
    open_rig(&g, 0);
    size_t n_threads = mx_test_n_threads_before();
    rig_start(&g);
    pthread_mutex_lock(&tap);
    atomic_store(&is_sync_tapped, true);
    prompt p;
    make_prompt(&p, 7);
    ask_both(&g, &p, "before the end");
    wait_for_held();
    uint64_t begin = mx_now_us();
    mx_engine_stop(g.engine, 0, 200000);
    mx_engine_destroy(g.engine);
    bool is_quick = mx_now_us() - begin < 5000000;
    atomic_store(&is_sync_tapped, false);
    pthread_mutex_unlock(&tap);
    bool is_over = mx_test_wait_threads(n_threads);
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", g.folder);
    _exit(system(command) == 0 && is_quick && is_over ? 0 : 9);
}

static void engine_ends_before_a_hanging_folder(void **state)
{
    (void)state;
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        child_leaves_a_hanging_folder();
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* Ends the engine while the writer has much to do; what it says of that. */
static void end_while_writing(rig *g, uint64_t flush_us, char text[8192])
{
    prompt p;
    answer a;
    char path[300];
    make_prompt(&p, 91);
    g->cfg.cold_tuning.stop_us = 60 * 1000000; /* a slow write is none that hangs */
    rig_start(g);
    atomic_store(&slow_write_us, 100000);
    ask_and_wait(g, &p.q, &a);
    answer_free(&a);
    snprintf(path, sizeof path, "%s/log", g->folder);
    fflush(stderr);
    const int saved = dup(STDERR_FILENO), log = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && log >= 0);
    dup2(log, STDERR_FILENO);
    mx_engine_stop(g->engine, 0, flush_us);
    dup2(saved, STDERR_FILENO);
    close(saved);
    atomic_store(&slow_write_us, 0);
    mx_engine_destroy(g->engine);
    g->engine = NULL;
    const ssize_t n = pread(log, text, 8191, 0);
    close(log);
    text[n > 0 ? n : 0] = '\0';
}

static uint64_t jobs_lost(const char *text)
{
    const char *at = strstr(text, "jobs_lost=");
    return at != NULL ? strtoull(at + strlen("jobs_lost="), NULL, 10) : 0;
}

/* At the end: was there no time, or did writing fail, and why? */
static void end_says_what_was_not_written(void **state)
{
    (void)state;
    rig g;
    char text[8192];
    open_rig(&g, 0);
    end_while_writing(&g, 60 * 1000000ull, text);
    assert_non_null(strstr(text, "shutdown: SSD session cache flushed\n"));
    rig_close(&g);

    open_rig(&g, 0);
    end_while_writing(&g, 10000, text);
    assert_non_null(strstr(text, "not flushed within "));
    assert_non_null(strstr(text, "(--shutdown-flush)"));
    assert_true(jobs_lost(text) > 0);
    rig_close(&g);

    open_rig(&g, 0);
    atomic_store(&is_disk_full, true);
    end_while_writing(&g, 60 * 1000000ull, text);
    assert_null(strstr(text, "within"));
    const char *said = strstr(text, "shutdown: SSD session cache not flushed, jobs_lost=");
    assert_non_null(said);
    assert_non_null(strstr(said, "No space left on device"));
    assert_true(jobs_lost(text) > 0);
    rig_close(&g);
}

/* A sector that cannot be read: computed instead, written anew, and read again after that. Reading is
 * said to fail for as long as it does. */
static void pages_that_cannot_be_read_are_written_anew(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    prompt p, other;
    make_prompt(&p, 21);
    make_prompt(&other, 22);
    rig_start(&g);
    ask_both(&g, &p, "first");
    ask_both(&g, &other, "first");
    rig_stop(&g);
    g.cfg.bank.max_bytes = 1;
    rig_start(&g);
    atomic_store(&n_failing_reads, 1000); /* and fails again when it is tried again */
    mx_request_stats s = ask_both(&g, &p, "EIO");
    atomic_store(&n_failing_reads, 0);
    assert_int_equal(s.cache_mode, MX_MODE_COLD);
    s = ask_both(&g, &other, "another file");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    rig_wait_written(&g);
    mx_cold_stats c = cold_stats(&g);
    assert_false(c.is_degraded);
    assert_true(c.pages_written >= 1);
    s = ask_both(&g, &p, "written anew");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    assert_true(s.n_ssd >= N_PROMPT - 1);
    rig_close(&g);
}

/* `mtplx cache rm --all` while the server runs: the next turn finds that its pages are gone and
 * stores them all. */
static void what_was_removed_is_stored_again(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    prompt p;
    make_prompt(&p, 31);
    rig_start(&g);
    ask_both(&g, &p, "first");
    rig_wait_written(&g);
    uint64_t files, bytes;
    mx_errbuf eb = {{0}};
    rig_must(mx_cold_remove_all(g.cache_dir, NULL, &files, &bytes, &eb), &eb, "remove");
    assert_true(files >= 6);
    mx_request_stats s = ask_both(&g, &p, "from RAM");
    assert_int_equal(s.cache_mode, MX_MODE_WARM_PREFIX);
    rig_stop(&g);
    rig_start(&g);
    s = ask_both(&g, &p, "after the restart");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    assert_int_equal(s.n_ssd, N_PROMPT - 1);
    rig_close(&g);
}

/* The same request again ends at the same point, which is durable already. */
static void repetition_writes_nothing(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    prompt p;
    make_prompt(&p, 41);
    rig_start(&g);
    ask_both(&g, &p, "first");
    rig_wait_written(&g);
    long syncs = atomic_load(&n_syncs), writes = atomic_load(&n_writes);
    long touches = atomic_load(&n_touches);
    for (int i = 0; i < 5; i++) {
        ask_both(&g, &p, "again");
    }
    rig_wait_written(&g);
    assert_int_equal(atomic_load(&n_syncs) - syncs, 0);
    assert_int_equal(atomic_load(&n_writes) - writes, 0);
    assert_int_equal(atomic_load(&n_touches) - touches, 0);
    assert_int_equal(cold_stats(&g).sessions_skipped, 10); /* prompt and turn of each */
    rig_close(&g);
}

/* --verify-restore: from RAM and from files all is as computed; a page with one wrong bit is noticed,
 * and the answer is the right one all the same, now and later. */
static void wrong_bit_is_noticed(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    atomic_bool spoil = false;
    g.cfg.verify_restore = true;
    g.cfg.spoil_restore = &spoil;
    prompt p;
    make_prompt(&p, 51);
    mx_engine_stats st;
    rig_start(&g);
    ask_both(&g, &p, "first");
    rig_wait_written(&g);
    mx_request_stats s = ask_both(&g, &p, "from RAM");
    assert_int_equal(s.cache_mode, MX_MODE_WARM_PREFIX);
    rig_stop(&g);
    rig_start(&g);
    s = ask_both(&g, &p, "from files");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    mx_engine_get_stats(g.engine, &st);
    assert_true(st.n_verified >= 1);
    assert_int_equal(st.n_verify_failed, 0);

    rig_wait_written(&g);
    atomic_store(&spoil, true);
    s = ask_both(&g, &p, "spoilt");
    assert_int_equal(s.cache_mode, MX_MODE_COLD);
    mx_engine_get_stats(g.engine, &st);
    assert_int_equal(st.n_verify_failed, 1);
    s = ask_both(&g, &p, "after it"); /* the files are good */
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    mx_engine_get_stats(g.engine, &st);
    assert_int_equal(st.n_verify_failed, 1);

    p.tokens[N_PROMPT - 9]++; /* the folder is asked, and RAM has as much */
    rig_wait_written(&g);
    atomic_store(&spoil, true);
    s = ask_both(&g, &p, "another end, spoilt");
    assert_int_equal(s.cache_mode, MX_MODE_COLD);
    s = ask_both(&g, &p, "another end, after it");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    mx_engine_get_stats(g.engine, &st);
    assert_int_equal(st.n_verify_failed, 2);
    rig_close(&g);
}

/* ---- files that are wrong, with sums that are right ---- */

enum { ANY = 1, NONE = 2 }; /* no page begins there */
static const char *spoilt_suffix;
static uint64_t spoilt_position; /* of the page's first token */
static unsigned n_spoilt, n_in_quarantine;

static int spoil_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)at;
    size_t len = strlen(path), tail = strlen(spoilt_suffix);
    n_in_quarantine += strstr(path, "/quarantine/") != NULL && strstr(path, ".reason") == NULL;
    if (type != FTW_F || strstr(path, "/quarantine/") != NULL || len < tail
        || strcmp(path + len - tail, spoilt_suffix) != 0)
    {
        return 0;
    }
    size_t n = (size_t)st->st_size;
    uint8_t *bytes = malloc(n);
    FILE *f = fopen(path, "r+b");
    assert_true(bytes != NULL && f != NULL && fread(bytes, 1, n, f) == n);
    mx_disk_page page;
    mx_errbuf eb = {{0}};
    bool is_state = strcmp(spoilt_suffix, ".state") == 0;
    rig_must(is_state ? mx_disk_state_decode(&page, bytes, n, &eb)
                      : mx_disk_page_decode(&page, bytes, n, &eb), &eb, path);
    if (spoilt_position == ANY || page.first_position == spoilt_position) {
        bytes[MX_DISK_PAYLOAD_AT] ^= 1;
        page.payload_sum = mx_xxh3_128(bytes + MX_DISK_PAYLOAD_AT, n - MX_DISK_PAYLOAD_AT);
        page.stored_sum = page.payload_sum; /* not compressed */
        mx_disk_page_encode(&page, bytes);
        rewind(f);
        assert_int_equal(fwrite(bytes, 1, n, f), n);
        n_spoilt++;
    }
    fclose(f);
    free(bytes);
    return 0;
}

static void spoil(const rig *g, const char *suffix, uint64_t position)
{
    spoilt_suffix = suffix;
    spoilt_position = position;
    n_spoilt = n_in_quarantine = 0;
    assert_int_equal(nftw(g->cache_dir, spoil_file, 16, FTW_PHYS), 0);
}

/* Noticed once, out of the way, and written anew by the next request: never a failure again, also not
 * after a restart. */
static void check_replaced(rig *g, const char *suffix, uint64_t position)
{
    g->cfg.verify_restore = true;
    prompt p;
    make_prompt(&p, 61);
    mx_engine_stats st;
    rig_start(g);
    ask_both(g, &p, "first");
    rig_wait_written(g);
    rig_stop(g);
    spoil(g, suffix, position);
    assert_true(n_spoilt > 0);
    g->cfg.bank.max_bytes = 1; /* nothing stays in RAM */
    rig_start(g);
    mx_request_stats s = ask_both(g, &p, "wrong");
    assert_int_equal(s.cache_mode, MX_MODE_COLD);
    mx_engine_get_stats(g->engine, &st);
    assert_int_equal(st.n_verify_failed, 1);
    rig_wait_written(g);
    assert_int_equal(cold_stats(g).quarantined, 1);
    ask_both(g, &p, "computed and stored");
    rig_wait_written(g);
    rig_stop(g);
    rig_start(g);
    s = ask_both(g, &p, "right");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    assert_int_equal(s.n_ssd, N_PROMPT - 1);
    mx_engine_get_stats(g->engine, &st);
    assert_int_equal(st.n_verify_failed, 0);
    assert_true(st.n_verified >= 1);
    spoil(g, suffix, NONE);
    assert_int_equal(n_in_quarantine, 1);
}

static void wrong_page_is_replaced(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    check_replaced(&g, ".page", 2 * MX_PAGE_TOKENS);
    rig_close(&g);
}

static void wrong_tail_is_replaced(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    check_replaced(&g, ".page", 4 * MX_PAGE_TOKENS); /* the page in which the prompt ends */
    rig_close(&g);
}

static void open_hybrid_rig(rig *g)
{
    char folder[64], path[96];
    rig_folder(folder);
    snprintf(path, sizeof path, "%s/hybrid.gguf", folder);
    mx_tiny_spec spec = hybrid_spec();
    mx_tiny_write(path, &spec);
    rig_open_at(g, folder, NULL, path, 1, 0);
    g->cfg.cold_mode = MX_COLD_ON;
    g->cfg.cold_tuning = (mx_cold_tuning){.min_free_bytes = -1};
}

/* Each wrong state costs one failure, however many there are. */
static void wrong_states_are_replaced(void **state)
{
    (void)state;
    rig g;
    open_hybrid_rig(&g);
    g.cfg.verify_restore = true;
    prompt p;
    make_prompt(&p, 62);
    mx_engine_stats st;
    rig_start(&g);
    ask_both(&g, &p, "first");
    rig_wait_written(&g);
    rig_stop(&g);
    spoil(&g, ".state", ANY);
    unsigned n_wrong = n_spoilt;
    assert_true(n_wrong > 0);
    rig_start(&g);
    for (unsigned i = 0; i <= n_wrong; i++) {
        ask_both(&g, &p, "wrong or computed");
        rig_wait_written(&g);
    }
    mx_engine_get_stats(g.engine, &st);
    assert_true(st.n_verify_failed >= 1 && st.n_verify_failed <= n_wrong);
    assert_int_equal(cold_stats(&g).quarantined, st.n_verify_failed);
    rig_stop(&g);
    rig_start(&g);
    mx_request_stats s = ask_both(&g, &p, "right");
    assert_int_equal(s.cache_mode, MX_MODE_SSD);
    mx_engine_get_stats(g.engine, &st);
    assert_int_equal(st.n_verify_failed, 0);
    assert_true(st.n_verified >= 1);
    rig_close(&g);
}

/* ---- manifests of prompts that come in many pieces ---- */

static unsigned n_manifests, n_most_states;

static int look_at_manifest(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)at;
    size_t len = strlen(path);
    if (type != FTW_F || len < 8 || strcmp(path + len - 8, ".session") != 0) {
        return 0;
    }
    size_t n = (size_t)st->st_size;
    uint8_t *bytes = malloc(n);
    FILE *f = fopen(path, "rb");
    assert_true(bytes != NULL && f != NULL && fread(bytes, 1, n, f) == n);
    fclose(f);
    mx_disk_manifest m;
    mx_errbuf eb = {{0}};
    rig_must(mx_disk_manifest_decode(&m, bytes, n, &eb), &eb, path);
    n_manifests++;
    n_most_states = m.n_states > n_most_states ? m.n_states : n_most_states;
    free(bytes);
    return 0;
}

/* States are handed over as the prompt goes on, each once; the manifests name all of them, those of the
 * turns before, too. */
static void manifest_names_all_states(void **state)
{
    (void)state;
    rig g;
    open_hybrid_rig(&g);
    g.cfg.prefill_chunk = 32;
    prompt p;
    make_prompt(&p, 81);
    rig_start(&g);
    for (size_t i = 1; i <= 3; i++) {
        p.q.n_prompt = i * N_PROMPT / 3;
        p.q.max_tokens = 1;
        ask_both(&g, &p, "a piece more");
        rig_wait_written(&g);
    }
    mx_cold_stats s = cold_stats(&g);
    assert_int_equal(s.write_failures, 0);
    rig_stop(&g);
    n_manifests = n_most_states = 0;
    assert_int_equal(nftw(g.cache_dir, look_at_manifest, 16, FTW_PHYS), 0);
    print_message("%u manifests, the last one names %u of %llu states\n", n_manifests,
                  n_most_states, (unsigned long long)s.states_written);
    assert_true(n_manifests >= 3);
    assert_true(s.states_written >= 3);
    assert_int_equal(n_most_states, s.states_written);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_ends_before_a_hanging_folder), /* first: it forks */
        cmocka_unit_test(reads_that_hang_cost_one_wait),
        cmocka_unit_test(times_of_a_prompt_that_gave_way),
        cmocka_unit_test(writes_that_hang_keep_no_pages),
        cmocka_unit_test(end_says_what_was_not_written),
        cmocka_unit_test(pages_that_cannot_be_read_are_written_anew),
        cmocka_unit_test(what_was_removed_is_stored_again),
        cmocka_unit_test(repetition_writes_nothing),
        cmocka_unit_test(wrong_bit_is_noticed),
        cmocka_unit_test(wrong_page_is_replaced),
        cmocka_unit_test(wrong_tail_is_replaced),
        cmocka_unit_test(wrong_states_are_replaced),
        cmocka_unit_test(manifest_names_all_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
