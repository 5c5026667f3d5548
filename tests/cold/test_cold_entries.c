/* SPDX-License-Identifier: MIT
 *
 * A folder with many conversations: answers at once after the start, finds each of them once the folder
 * has been read, keeps so many bytes for each and no more, and deletes none. 100,000 of them in the long
 * suite (MTPLX_LONG); bench/bench_cold_many.c takes the time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../bench/cold_entries.h"
#include "base/log.h"

#include <malloc.h>
#include <sys/statvfs.h>
#include <time.h>

enum { MAX_BYTES_EACH = 400 }; /* of memory */

typedef struct state {
    char dir[64];
    mx_hash256 root;
    mx_cold *c;
    size_t n_entries, n_stems;
} state;

static bool is_long(void)
{
    return getenv("MTPLX_LONG") != NULL;
}

/* In memory where there is room for 200,000 files of 4 KiB. */
static const char *where(void)
{
    struct statvfs vfs;
    bool has_room = access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &vfs) == 0
                    && (uint64_t)vfs.f_bavail * vfs.f_frsize >= (uint64_t)2 << 30;
    return has_room ? "/dev/shm" : "/tmp";
}

static int set_up(void **arg)
{
    state *s = calloc(1, sizeof *s);
    assert_non_null(s);
    snprintf(s->dir, sizeof s->dir, "%s/mtplx-many-XXXXXX", where());
    assert_non_null(mkdtemp(s->dir));
    s->root = mx_sha256_of("many", 4);
    *arg = s;
    return 0;
}

static int tear_down(void **arg)
{
    state *s = *arg;
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    assert_int_equal(system(command), 0);
    free(s);
    return 0;
}

/* The first n tokens of the entry, then others: what of it is found. */
static size_t look_up(const state *s, size_t number, size_t less, mx_cold_job *job)
{
    static entry e;
    make_entry(&e, &s->root, number, s->n_stems);
    for (size_t i = e.n_tokens - less; i < PROMPT_TOKENS; i++) {
        e.tokens[i] = 49152; /* none of theirs */
    }
    *job = (mx_cold_job){.kind = MX_COLD_PROBE,
                         .root = s->root,
                         .parent_id = s->root,
                         .tokens = e.tokens,
                         .n_tokens = PROMPT_TOKENS};
    run_job(s->c, job);
    size_t n = job->n_full * MX_PAGE_TOKENS + job->tail_rows;
    if (n != e.n_tokens - less) {
        print_message("entry %zu of %zu on %zu stems: expected %zu tokens, got %zu\n", number, s->n_entries,
                      s->n_stems, e.n_tokens - less, n);
    }
    assert_int_equal(n, e.n_tokens - less);
    return n;
}

/* And what it found is what was stored: zeros, of the right tokens, which the reader checks. */
static void look_up_and_read(const state *s, size_t number, size_t less)
{
    enum { PAGE_BYTES = 4096 };
    static uint8_t pages[2][PAGE_BYTES] __attribute__((aligned(64)));
    static const uint8_t zeros[PAGE_BYTES];
    uint8_t *payloads[2] = {pages[0], pages[1]};
    mx_cold_job job;
    assert_int_equal(mx_kv_page_bytes(&shape), PAGE_BYTES);
    (void)look_up(s, number, less, &job);
    memset(pages, 0xAA, sizeof pages[0]);
    memset(pages[1], 0, sizeof pages[1]);
    job.kind = MX_COLD_READ;
    job.payloads = payloads;
    run_job(s->c, &job);
    assert_int_equal(job.n_read, 2);
    assert_memory_equal(pages[0], zeros, PAGE_BYTES);
    assert_memory_equal(pages[1], zeros, PAGE_BYTES);
}

/* 0 under a sanitizer. */
static size_t heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static mx_cold_stats wait_complete(mx_cold *c)
{
    mx_cold_stats st;
    for (mx_cold_get_stats(c, &st); !st.is_complete; mx_cold_get_stats(c, &st)) {
        usleep(2000);
    }
    return st;
}

/* Inside of a page only the index knows the way. */
static void sample(const state *s, size_t less)
{
    enum { N_SAMPLES = 2000 };
    uint64_t random = (uint64_t)time(NULL) + less;
    mx_cold_job job;
    for (int i = 0; i < N_SAMPLES; i++) {
        size_t number = next_random(&random) % s->n_entries;
        (void)look_up(s, number, less, &job);
        if (i % 50 == 0) {
            look_up_and_read(s, number, less);
        }
    }
}

static void run(state *s, size_t n_entries, size_t n_stems)
{
    mx_errbuf eb;
    uint64_t random = (uint64_t)time(NULL);
    s->n_entries = n_entries;
    s->n_stems = n_stems;
    make_folder(s->dir, &s->root, n_entries, n_stems);
    mx_cold_config cfg = {.mode = MX_COLD_ON,
                          .dir = s->dir,
                          .max_bytes = (uint64_t)1 << 40,
                          .root = s->root,
                          .wake = wake,
                          .tuning = {.delete_age_s = -1, .min_free_bytes = -1}};
    size_t before = heap_bytes();
    assert_int_equal(mx_cold_open(&s->c, &shape, &cfg, &eb), MX_OK);
    look_up_and_read(s, next_random(&random) % n_entries, 0); /* while the folder is still being read */
    mx_cold_stats st = wait_complete(s->c);
    size_t each = (heap_bytes() - before) / n_entries;
    assert_int_equal(st.files, 2 * n_entries + n_stems);
    print_message("%zu entries on %zu stems: %zu bytes each\n", n_entries, n_stems, each);
    assert_true(each <= MAX_BYTES_EACH);
    sample(s, 4);
    sample(s, 0);
    assert_true(mx_cold_sweep(s->c, 600000000));
    mx_cold_get_stats(s->c, &st);
    assert_int_equal(st.files, 2 * n_entries + n_stems);
    assert_int_equal(st.files_swept, 0);
    assert_int_equal(st.quarantined, 0);
    assert_false(st.is_degraded);
    sample(s, 4);
    mx_cold_close(s->c);
}

static void test_many_stems(void **arg)
{
    run(*arg, is_long() ? 100000 : 3000, 100);
}

/* All conversations begin with the same page. */
static void test_one_stem(void **arg)
{
    run(*arg, is_long() ? 100000 : 3000, 1);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
    jobs_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_many_stems, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_one_stem, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
