/* SPDX-License-Identifier: MIT
 *
 * Faults: the k-th system call of each kind fails with each plausible errno, the k-th allocation
 * fails, the folder hangs. Nothing may crash, nothing wrong may come back, and what was said to be
 * durable must be readable afterwards.
 */
#include "cold/cold_help.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/statvfs.h>

#include "cold/cold_files.h"
#include "test_threads.h"

typedef enum op {
    OP_OPEN,
    OP_MKDIR,
    OP_WRITE,
    OP_READ,
    OP_FSYNC,
    OP_RENAME,
    OP_UNLINK,
    OP_UTIMENS,
    OP_STATVFS,
    OP_COUNT
} op;
static const char *const op_names[] = {"open",   "mkdir",  "write",   "read",   "fsync",
                                       "rename", "unlink", "utimens", "statvfs"};

/* The fault: set while no tier is open; the countdown is shared by its threads. */
static op fault_op;
static int fault_errno;
static atomic_long fault_countdown; /* 1 = the next call; 0 = off */
static atomic_bool fault_for_ever;  /* all calls from then on */
static atomic_long fault_hits;

static bool must_fail(op which)
{
    long left = which == fault_op ? atomic_load(&fault_countdown) : 0;
    while (left > 0) {
        long next = left > 1 ? left - 1 : atomic_load(&fault_for_ever);
        if (atomic_compare_exchange_weak(&fault_countdown, &left, next)) {
            if (left > 1) {
                return false;
            }
            atomic_fetch_add(&fault_hits, 1);
            errno = fault_errno;
            return true;
        }
    }
    return false;
}

static int f_open(int dir, const char *name, int flags, unsigned mode)
{
    return must_fail(OP_OPEN) ? -1 : mx_cold_real_fileops.open(dir, name, flags, mode);
}

static int f_mkdir(int dir, const char *name, unsigned mode)
{
    return must_fail(OP_MKDIR) ? -1 : mx_cold_real_fileops.mkdir(dir, name, mode);
}

/* A write that fails has often written something; and a write may be short without failing. */
static ssize_t f_writev(int fd, const struct iovec *iov, int n)
{
    struct iovec part = {iov[0].iov_base, iov[0].iov_len / 2 + 1};
    if (must_fail(OP_WRITE)) {
        ssize_t ignored = write(fd, part.iov_base, part.iov_len);
        (void)ignored;
        errno = fault_errno;
        return -1;
    }
    return iov[0].iov_len > 3000 ? writev(fd, &part, 1) : writev(fd, iov, n);
}

static ssize_t f_preadv(int fd, const struct iovec *iov, int n, long at)
{
    struct iovec part = {iov[0].iov_base, iov[0].iov_len / 2 + 1};
    if (must_fail(OP_READ)) {
        return -1;
    }
    return iov[0].iov_len > 3000 ? preadv(fd, &part, 1, at) : preadv(fd, iov, n, at);
}

static int f_fsync(int fd)
{
    return must_fail(OP_FSYNC) ? -1 : fsync(fd);
}

static int f_rename(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    return must_fail(OP_RENAME) ? -1 : renameat(old_dir, old_name, new_dir, new_name);
}

static int f_rename_new(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    return must_fail(OP_RENAME)
               ? -1
               : mx_cold_real_fileops.rename_new(old_dir, old_name, new_dir, new_name);
}

static int f_unlink(int dir, const char *name, int flags)
{
    return must_fail(OP_UNLINK) ? -1 : unlinkat(dir, name, flags);
}

static int f_utimens(int dir, const char *name, const struct timespec times[2])
{
    return must_fail(OP_UTIMENS) ? -1 : mx_cold_real_fileops.utimens(dir, name, times);
}

static int f_statvfs(int fd, struct statvfs *out)
{
    return must_fail(OP_STATVFS) ? -1 : fstatvfs(fd, out);
}

static const mx_cold_fileops faulty = {
    .open = f_open,     .mkdir = f_mkdir,   .writev = f_writev,   .preadv = f_preadv,
    .fsync = f_fsync,   .rename = f_rename, .unlink = f_unlink,   .utimens = f_utimens,
    .statvfs = f_statvfs, .rename_new = f_rename_new,
};

static void set_fault(op which, int error, long k, bool for_ever)
{
    fault_op = which;
    fault_errno = error;
    atomic_store(&fault_for_ever, for_ever);
    atomic_store(&fault_hits, 0);
    atomic_store(&fault_countdown, k);
}

typedef struct state {
    char dir[256], sub[300];
    mx_hash256 root;
    mx_cold_config cfg;
    talk talk, again;
} state;

static int setup(void **arg)
{
    state *s = calloc(1, sizeof *s);
    help_make_folder(s->dir);
    s->root = help_root(1);
    snprintf(s->sub, sizeof s->sub, "%s/new/cache", s->dir);
    s->cfg = help_config(s->sub, &s->root);
    s->cfg.tuning.retry_us = 1;
    talk_make(&s->talk, &s->root, 1, 0, 2 * 64 + 9);
    *arg = s;
    return 0;
}

static int teardown(void **arg)
{
    state *s = *arg;
    set_fault(OP_OPEN, 0, 0, false);
    help_remove_tree(s->dir);
    free(s);
    return 0;
}

/* Opens, writes, reads, grows, sweeps; true = the tier said that all of it is durable. */
static bool use_tier(state *s, const mx_cold_config *cfg)
{
    mx_cold *c;
    mx_errbuf eb;
    bool is_durable = false;
    talk_cut(&s->talk, 2 * 64 + 9);
    if (mx_cold_open(&c, &tiny, cfg, &eb) != MX_OK) {
        return false;
    }
    help_write_talk(c, &s->talk);
    help_read_talk(c, &s->talk, s->talk.n);
    talk_cut(&s->talk, 3 * 64 + 30);
    is_durable = help_write_talk(c, &s->talk) == MX_OK;
    mx_cold_sweep(c, 20000000);
    help_read_talk(c, &s->talk, s->talk.n + 30);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.quarantined, 0); /* a fault never leaves a file that is not whole */
    mx_cold_close(c);
    return is_durable;
}

static void check_after(state *s, bool is_durable, const char *what, long k)
{
    mx_cold_config cfg = s->cfg;
    cfg.tuning.fileops = NULL;
    mx_cold *c = help_open(&cfg);
    size_t got = help_read_talk(c, &s->talk, s->talk.n);
    if (is_durable && got != s->talk.n) {
        print_message("%s k=%ld: said to be durable, but only %zu of %zu tokens are there\n",
                      what, k, got, s->talk.n);
        fail();
    }
    /* The tier works again, and puts right what is missing. */
    mx_err err = help_write_talk(c, &s->talk);
    if (err != MX_OK) {
        print_message("%s k=%ld: does not recover: %s\n", what, k, mx_err_name(err));
        fail();
    }
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.quarantined, 0);
    mx_cold_close(c);
    help_remove_tree(s->sub);
}

static void fail_each_call(state *s, op which, int error)
{
    s->cfg.tuning.fileops = &faulty;
    long k = 1;
    for (;; k++) {
        set_fault(which, error, k, false);
        bool is_durable = use_tier(s, &s->cfg);
        long hits = atomic_load(&fault_hits);
        set_fault(which, 0, 0, false);
        check_after(s, is_durable, op_names[which], k);
        if (hits == 0) {
            break;
        }
        assert_true(k < 1000);
    }
    print_message("%s: %ld calls failed one by one, errno %d\n", op_names[which], k - 1, error);
    assert_true(k > 1);
}

static void test_each_system_call_fails(void **arg)
{
    static const int errors[] = {EIO, ENOSPC, EACCES};
    for (int which = 0; which < OP_COUNT; which++) {
        if (which == OP_UNLINK) {
            continue; /* nothing is unlinked in a run without other faults */
        }
        for (size_t i = 0; i < MX_COUNT(errors); i++) {
            fail_each_call(*arg, (op)which, errors[i]);
        }
    }
}

/* From the k-th call on the folder is gone for good: RAM only, one warning. */
static void test_folder_fails_for_ever(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.fileops = &faulty;
    s->cfg.tuning.retry_us = 3600000000u;
    static const struct {
        op which;
        int error;
    } cases[] = {{OP_WRITE, ENOSPC}, {OP_FSYNC, EIO}, {OP_OPEN, EACCES}, {OP_MKDIR, EROFS},
                 {OP_RENAME, EIO}};
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        char text[4000];
        const help_log log = help_log_begin();
        set_fault(cases[i].which, cases[i].error, 1, true);
        mx_cold *c = help_open(&s->cfg);
        mx_err err = MX_OK;
        for (int n = 0; n < 5; n++) {
            err = help_write_talk(c, &s->talk);
        }
        mx_cold_stats st;
        mx_cold_get_stats(c, &st);
        bool is_flushed = mx_cold_flush(c, 1000000);
        mx_cold_close(c);
        help_log_end(&log, text, sizeof text);
        set_fault(OP_OPEN, 0, 0, false);
        if (help_count_text(text, "warning: ") != 1 || strstr(text, "off for now") == NULL) {
            print_message("%s: expected one warning, got: %s\n", op_names[cases[i].which], text);
            fail();
        }
        assert_true(err != MX_OK);
        assert_true(st.is_degraded);
        if (strstr(st.degraded_reason, " /") == NULL) {
            print_message("%s: expected where, got: %s\n", op_names[cases[i].which], st.degraded_reason);
            fail();
        }
        assert_true(st.write_failures > 0);
        assert_true(is_flushed); /* nothing was queued */
        help_remove_tree(s->sub);
    }
}

static void test_recovers_after_the_retry_time(void **arg)
{
    state *s = *arg;
    mx_cold_stats st;
    s->cfg.tuning.fileops = &faulty;
    s->cfg.tuning.retry_us = 3600 * 1000000ull;
    mx_cold *c = help_open_settled(&s->cfg); /* or the look at the folder gets the faults */
    set_fault(OP_WRITE, ENOSPC, 1, true);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_E_FULL);
    set_fault(OP_OPEN, 0, 0, false);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_E_IO); /* not even tried */
    mx_cold_get_stats(c, &st);
    assert_true(st.is_degraded);
    assert_int_equal(st.write_failures, 2);
    mx_cold_close(c);

    s->cfg.tuning.retry_us = 10000;
    c = help_open_settled(&s->cfg);
    set_fault(OP_WRITE, ENOSPC, 1, true);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_E_FULL);
    set_fault(OP_OPEN, 0, 0, false);
    usleep(10000);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_get_stats(c, &st);
    assert_false(st.is_degraded);
    assert_int_equal(st.write_failures, 1);
    mx_cold_close(c);
}

/* The name is there, its durability is not known, and asking again could lie. Written anew it is as good as
 * any: one failure must not cost every conversation with that page until a restart. */
static void test_failed_folder_sync_is_never_repeated(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.fileops = &faulty;
    mx_cold *c = help_open_settled(&s->cfg);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    set_fault(OP_FSYNC, EIO, 3, false); /* parent of the new folder, the file, then the folder */
    assert_int_equal(help_write_page(c, &s->talk, 1), MX_E_IO);
    assert_int_equal(atomic_load(&fault_hits), 1);
    usleep(1000);
    assert_false(mx_cold_has_page(c, &s->talk.ids[1]));
    assert_int_equal(help_write_page(c, &s->talk, 2), MX_OK);
    assert_int_equal(help_write_session(c, &s->talk), MX_E_NOT_FOUND);
    assert_int_equal(help_count(s->sub, ".session"), 0);
    /* Readable all the same; without a state it leads nowhere. */
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), HELP_STATE_BYTES > 0 ? 0 : s->talk.n);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_false(st.is_degraded);
    assert_int_equal(st.pages_written, 2);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.pages_written, 3);
    assert_int_equal(st.pages_skipped, 0);
    mx_cold_close(c);
}

static void test_reserve_of_the_disk(void **arg)
{
    state *s = *arg;
    s->cfg.tuning.min_free_bytes = (int64_t)1 << 60;
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_E_FULL);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_true(st.is_degraded);
    assert_non_null(strstr(st.degraded_reason, "nearly full"));
    assert_int_equal(st.pages_written, 0);
    mx_cold_close(c);
    assert_int_equal(help_count(s->sub, ".page"), 0);
}

/* Like `cache rm --all` at a bad moment: no reason to stay away from the folder. */
static void test_folder_removed_while_writing(void **arg)
{
    state *s = *arg;
    static const op ops[] = {OP_OPEN, OP_RENAME};
    s->cfg.tuning.fileops = &faulty;
    s->cfg.tuning.retry_us = 3600000000u;
    mx_cold *c = help_open_settled(&s->cfg);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_OK);
    for (size_t i = 0; i < MX_COUNT(ops); i++) {
        set_fault(ops[i], ENOENT, 1, false);
        assert_int_equal(help_write_page(c, &s->talk, 1 + i), MX_OK);
        assert_int_equal(atomic_load(&fault_hits), 1);
    }
    set_fault(OP_RENAME, ENOENT, 1, false);
    assert_int_equal(help_write_session(c, &s->talk), MX_OK);
    assert_int_equal(atomic_load(&fault_hits), 1);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_false(st.is_degraded);
    set_fault(OP_OPEN, 0, 0, false);
    /* Without a state it leads nowhere. */
    assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), HELP_STATE_BYTES > 0 ? 0 : s->talk.n);
    mx_cold_close(c);
}

/* The default limit is a share of what is free, which is nothing worth while the disk is full. */
static void test_default_limit_waits_for_free_space(void **arg)
{
    state *s = *arg;
    mx_cold_fileops told = faulty;
    told.statvfs = help_statvfs;
    s->cfg.tuning.fileops = &told;
    s->cfg.tuning.min_free_bytes = 1 << 20;
    s->cfg.max_bytes = 0;
    atomic_store(&help_bytes_free, 1000);
    mx_cold *c = help_open_settled(&s->cfg);
    assert_int_equal(help_write_page(c, &s->talk, 0), MX_E_FULL);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_non_null(strstr(st.degraded_reason, "nearly full"));
    assert_int_equal(st.max_bytes, 0);
    atomic_store(&help_bytes_free, (uint64_t)1 << 30);
    usleep(1000);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_get_stats(c, &st);
    assert_false(st.is_degraded);
    assert_in_range(st.max_bytes, ((uint64_t)1 << 30) / 10, ((uint64_t)1 << 30) / 9);
    mx_cold_close(c);
}

/* The default limit is a tenth of what would be free without the cache, whoever settles it: the sweep after
 * start, or, when somebody else holds gc.lock, the writer. A restart makes it neither larger nor smaller. */
static void test_default_limit_counts_what_is_there(void **arg)
{
    state *s = *arg;
    enum { FILE_BYTES = MX_DISK_PAYLOAD_AT + TINY_BYTES, N_FREE = 300 * FILE_BYTES };
    mx_cold_fileops told = faulty;
    told.statvfs = help_statvfs;
    s->cfg.tuning.fileops = &told;
    s->cfg.tuning.min_free_bytes = -1;
    s->cfg.max_bytes = 0;
    atomic_store(&help_bytes_free, N_FREE);
    for (int is_locked = 0; is_locked < 2; is_locked++) {
        char path[300];
        mx_cold_stats st;
        mx_cold *c = help_open_settled(&s->cfg);
        assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        mx_cold_close(c);
        snprintf(path, sizeof path, "%s/v1/gc.lock", s->cfg.dir);
        int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(lock >= 0 && (!is_locked || flock(lock, LOCK_EX) == 0));
        c = help_open_settled(&s->cfg);
        talk_make(&s->again, &s->root, 99 + (uint64_t)is_locked, 0, 64);
        assert_int_equal(help_write_page(c, &s->again, 0), MX_OK);
        mx_cold_get_stats(c, &st);
        close(lock);
        uint64_t want = (N_FREE + st.bytes) / 10;
        print_message("%llu bytes there: limit %llu, expected %llu\n", (unsigned long long)st.bytes,
                      (unsigned long long)st.max_bytes, (unsigned long long)want);
        assert_true(st.bytes > 2 * FILE_BYTES);
        assert_in_range(st.max_bytes, want - FILE_BYTES / 5, want);
        mx_cold_close(c);
    }
}

/* What was stored stays readable when nothing can be written any more. */
static void test_read_only_folder_still_gives_pages(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    char command[400];
    snprintf(command, sizeof command, "chmod -R a-w '%s'", s->sub);
    assert_int_equal(system(command), 0);
    static const op denied[] = {OP_MKDIR, OP_WRITE, OP_RENAME, OP_UTIMENS};
    s->cfg.tuning.fileops = &faulty; /* root writes everywhere, so the calls must fail, too */
    for (size_t i = 0; i < MX_COUNT(denied); i++) {
        set_fault(denied[i], EROFS, 1, true);
        c = help_open(&s->cfg);
        assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
        talk_make(&s->again, &s->root, 55, 0, 64);
        mx_err err = help_write_talk(c, &s->again);
        if (denied[i] != OP_UTIMENS && denied[i] != OP_MKDIR) {
            assert_int_equal(err, MX_E_DENIED);
        }
        assert_int_equal(help_read_talk(c, &s->talk, s->talk.n), s->talk.n);
        mx_cold_close(c);
        set_fault(OP_OPEN, 0, 0, false);
    }
    snprintf(command, sizeof command, "chmod -R u+w '%s'", s->sub);
    assert_int_equal(system(command), 0);
}

static void test_each_allocation_fails(void **arg)
{
    state *s = *arg;
    uint64_t k = 1;
    for (;; k++) {
        int64_t live = mx_mem_live();
        uint64_t calls = mx_mem_calls();
        mx_mem_fail_at(k);
        bool is_durable = use_tier(s, &s->cfg);
        bool was_hit = mx_mem_calls() - calls >= k;
        mx_mem_fail_at(0);
        if (mx_mem_live() != live) {
            print_message("k=%llu: %lld blocks leaked\n", (unsigned long long)k,
                          (long long)(mx_mem_live() - live));
            fail();
        }
        talk_cut(&s->talk, 3 * 64 + 30);
        check_after(s, is_durable, "allocation", (long)k);
        if (!was_hit) {
            break;
        }
        assert_true(k < 2000);
    }
    print_message("%llu allocations failed one by one\n", (unsigned long long)(k - 1));
    assert_true(k > 20);
}

/* ---- a folder that hangs --------------------------------------------------------------------- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static mx_cold *stuck; /* a tier that could not be closed keeps its memory, reachable from here */

static atomic_int n_hanging;

static int hang_fsync(int fd)
{
    atomic_fetch_add(&n_hanging, 1);
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return fsync(fd);
}

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void test_hanging_folder_blocks_nobody(void **arg)
{
    state *s = *arg;
    mx_cold_fileops ops = mx_cold_real_fileops;
    static mx_cold_fileops kept;
    static uint8_t payload[TINY_BYTES] __attribute__((aligned(64)));
    static talk t;
    ops.fsync = hang_fsync;
    kept = ops;
    s->cfg.tuning.fileops = &kept;
    s->cfg.tuning.stop_us = 200000;
    t = s->talk;
    talk_payload(&t, 0, 64, payload);
    static mx_cold_job job, second;
    job = (mx_cold_job){.kind = MX_COLD_WRITE_PAGE,
                        .root = t.root,
                        .parent_id = t.root,
                        .tokens = t.tokens,
                        .n_tokens = 64,
                        .payload = payload,
                        .page_id = t.ids[0]};
    second = job;
    pthread_mutex_lock(&gate);
    size_t n_threads = mx_test_n_threads_before();
    stuck = help_open(&s->cfg);
    uint64_t start = now_us();
    assert_int_equal(mx_cold_submit(stuck, &job), MX_OK);
    while (atomic_load(&n_hanging) == 0) {
        assert_true(now_us() - start < 20000000);
        usleep(1000);
    }
    start = now_us();
    assert_int_equal(mx_cold_submit(stuck, &second), MX_OK);
    assert_false(mx_cold_has_page(stuck, &t.ids[0]));
    assert_null(mx_cold_poll(stuck));
    assert_int_equal(help_read_talk(stuck, &t, 64), 0); /* reading is another thread */
    assert_false(mx_cold_flush(stuck, 100000));
    assert_false(mx_cold_stop(stuck));
    assert_true(now_us() - start < 5000000);
    assert_ptr_equal(mx_cold_poll(stuck), &second);
    assert_int_equal(second.status, MX_E_CANCELLED);
    mx_cold_close(stuck);
    pthread_mutex_unlock(&gate);
    assert_true(mx_test_wait_threads(n_threads)); /* it ends by itself */
    pthread_mutex_lock(&gate); /* what it did before is over, also for ThreadSanitizer */
    pthread_mutex_unlock(&gate);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_each_system_call_fails),
        T(test_folder_fails_for_ever),
        T(test_recovers_after_the_retry_time),
        T(test_failed_folder_sync_is_never_repeated),
        T(test_reserve_of_the_disk),
        T(test_folder_removed_while_writing),
        T(test_default_limit_waits_for_free_space),
        T(test_default_limit_counts_what_is_there),
        T(test_read_only_folder_still_gives_pages),
        T(test_each_allocation_fails),
        T(test_hanging_folder_blocks_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
