/* SPDX-License-Identifier: MIT
 *
 * A roof is the best that was seen in many short slices: what takes the cores away for a while, or
 * turns the clock down for somebody else, only makes slices worse. For memory and disk the median is
 * as interesting, because nobody is alone with them.
 */
#include "cli/cli_roof.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 256, SLICE_US = 3000, BLOCK = 1 << 20 };

/* ---- threads -------------------------------------------------------------------------------- */

typedef struct crew {
    unsigned n;
    /* multiply-accumulates */
    const mx_roof_family *family;
    uint64_t end_us;
    /* memory and disk */
    const uint8_t *bytes;
    size_t n_bytes;
    int fd;
    bool failed[MAX_THREADS];
    double rate[MAX_THREADS];
} crew;

/* Runs the work on n threads; the seconds until the last has done it, or 0. */
static double run_crew(crew *c, mx_pool_fn work)
{
    mx_pool *pool;
    if (c->n > MAX_THREADS || mx_pool_create(&pool, c->n, NULL) != MX_OK) {
        return 0;
    }
    uint64_t begin = mx_now_us();
    mx_pool_run_each(pool, work, c);
    double seconds = (double)(mx_now_us() - begin) / 1e6;
    mx_pool_destroy(pool);
    return seconds;
}

/* ---- multiply-accumulates ------------------------------------------------------------------- */

/* Of the calling thread alone: the turns of others in between do not count. */
static uint64_t cpu_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* At least one slice, however late the thread gets its turn. */
static void mac_slices(void *arg, unsigned index)
{
    crew *c = arg;
    uint64_t n_rounds = 1000;
    double best = 0;
    do {
        uint64_t begin = cpu_us();
        c->family->run(n_rounds);
        uint64_t us = cpu_us() - begin;
        if (us < SLICE_US / 2) {
            n_rounds *= 2; /* until a slice is long beside the clock's tick */
            continue;
        }
        double rate = (double)n_rounds * c->family->macs / (double)us * 1e6;
        best = rate > best ? rate : best;
    } while (best <= 0 || mx_now_us() < c->end_us);
    c->rate[index] = best;
}

double mx_roof_macs(const mx_roof_family *f, unsigned n_threads, double seconds)
{
    crew c = {
        .n = n_threads,
        .family = f,
        .end_us = mx_now_us() + (uint64_t)(seconds * 1e6),
    };
    if (run_crew(&c, mac_slices) <= 0) {
        return 0;
    }
    double sum = 0;
    for (unsigned i = 0; i < n_threads; i++) {
        sum += c.rate[i];
    }
    return sum;
}

/* ---- memory --------------------------------------------------------------------------------- */

size_t mx_roof_dram_bytes(void)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    long pages = sysconf(_SC_AVPHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    /* Eight times the last cache: one that keeps part of a stream keeps an eighth at most. */
    size_t n = l3 > 0 ? (size_t)l3 * 8 : 0;
    n = mx_max_size(n, (size_t)1 << 30);
    size_t free_bytes = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : n * 4;
    return mx_min_size(n, free_bytes / 4) / BLOCK * BLOCK;
}

static void read_plain(const uint8_t *p, size_t n)
{
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + 64 <= n; i += 64) {
        const uint64_t *words = (const uint64_t *)(const void *)(p + i);
        for (size_t k = 0; k < 8; k++) {
            sums[k] += words[k];
        }
    }
    __asm__ volatile("" : : "r"(sums) : "memory");
}

#if defined(__x86_64__)
static void read_wide(const uint8_t *p, size_t n)
{
    const uint8_t *end = p + n / 256 * 256;
    if (p == end) {
        return;
    }
    __asm__ volatile("1:\n"
                     "vmovdqu (%0), %%ymm0\n vmovdqu 32(%0), %%ymm1\n"
                     "vmovdqu 64(%0), %%ymm2\n vmovdqu 96(%0), %%ymm3\n"
                     "vmovdqu 128(%0), %%ymm4\n vmovdqu 160(%0), %%ymm5\n"
                     "vmovdqu 192(%0), %%ymm6\n vmovdqu 224(%0), %%ymm7\n"
                     "add $256, %0\n"
                     "cmp %1, %0\n"
                     "jb 1b\n"
                     "vzeroupper\n"
                     : "+r"(p)
                     : "r"(end)
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",
                       "xmm7");
}
#endif

static void part_of(const crew *c, unsigned index, size_t *begin, size_t *end)
{
    size_t n_blocks = c->n_bytes / BLOCK;
    *begin = n_blocks * index / c->n * BLOCK;
    *end = n_blocks * (index + 1) / c->n * BLOCK;
}

static void read_part(void *arg, unsigned index)
{
    crew *c = arg;
    size_t begin, end;
    part_of(c, index, &begin, &end);
#if defined(__x86_64__)
    if (mx_cpu_best() >= MX_CPU_AVX2) {
        read_wide(c->bytes + begin, end - begin);
        return;
    }
#endif
    read_plain(c->bytes + begin, end - begin);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

mx_err mx_roof_dram(double rates[2], unsigned n_threads, size_t n_bytes, unsigned repeats,
                    mx_errbuf *eb)
{
    double all[64];
    assert(repeats >= 1 && repeats <= MX_COUNT(all));
    uint8_t *bytes = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bytes == MAP_FAILED) {
        return mx_fail_errno(eb, MX_E_NOMEM, errno, "no %zu bytes to read from", n_bytes);
    }
    (void)madvise(bytes, n_bytes, MADV_HUGEPAGE);
    memset(bytes, 1, n_bytes); /* pages that were never written are all the same one */
    crew c = {.n = n_threads, .bytes = bytes, .n_bytes = n_bytes};
    mx_err err = MX_OK;
    for (unsigned i = 0; i < repeats && err == MX_OK; i++) {
        double seconds = run_crew(&c, read_part);
        all[i] = seconds > 0 ? (double)n_bytes / seconds : 0;
        if (seconds <= 0) {
            err = mx_fail(eb, MX_E_IO, "cannot start %u threads", n_threads);
        }
    }
    munmap(bytes, n_bytes);
    if (err == MX_OK) {
        qsort(all, repeats, sizeof *all, by_value);
        rates[0] = all[repeats - 1];
        rates[1] = all[repeats / 2];
    }
    return err;
}

/* ---- disk ----------------------------------------------------------------------------------- */

/* Numbers that no file system compresses or finds twice. */
static void fill_noise(uint64_t *words, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        words[i] = *state;
    }
}

static void read_file_part(void *arg, unsigned index)
{
    crew *c = arg;
    size_t at, end;
    part_of(c, index, &at, &end);
    void *block = mx_alloc_aligned(4096, BLOCK);
    c->failed[index] = block == NULL;
    while (!c->failed[index] && at < end) {
        ssize_t n = pread(c->fd, block, BLOCK, (off_t)at);
        c->failed[index] = n <= 0;
        at += n > 0 ? (size_t)n : 0;
    }
    mx_free(block);
}

static double read_file(int fd, size_t n_bytes, unsigned n_threads)
{
    crew c = {.n = n_threads, .fd = fd, .n_bytes = n_bytes};
    double seconds = run_crew(&c, read_file_part);
    for (unsigned i = 0; i < n_threads; i++) {
        if (c.failed[i]) {
            return 0;
        }
    }
    return seconds > 0 ? (double)n_bytes / seconds : 0;
}

static bool write_file(int fd, size_t n_bytes)
{
    uint64_t state = 88172645463325252u;
    void *block = mx_alloc_aligned(4096, BLOCK);
    bool ok = block != NULL;
    for (size_t at = 0; ok && at < n_bytes; at += BLOCK) {
        fill_noise(block, BLOCK / 8, &state);
        ok = pwrite(fd, block, BLOCK, (off_t)at) == BLOCK;
    }
    ok = ok && fsync(fd) == 0;
    mx_free(block);
    return ok;
}

/* A file without a name, so that nothing is left behind. */
static int open_nameless(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) {
        return fd;
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/.mtplx-bench-XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

mx_err mx_roof_disk(mx_roof_disk_rates *out, const char *dir, size_t n_bytes, unsigned n_threads,
                    mx_errbuf *eb)
{
    *out = (mx_roof_disk_rates){0};
    n_bytes = n_bytes / BLOCK * BLOCK;
    if (n_bytes == 0) {
        return mx_fail(eb, MX_E_INVALID, "a file of less than 1 MiB says nothing about a disk");
    }
    int fd = open_nameless(dir);
    if (fd < 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot make a file in %.200s", dir);
    }
    uint64_t begin = mx_now_us();
    if (!write_file(fd, n_bytes)) {
        mx_err err = mx_fail_errno(eb, MX_E_IO, errno, "cannot write %zu bytes in %.200s", n_bytes,
                                   dir);
        close(fd);
        return err;
    }
    out->write = (double)n_bytes / (double)(mx_now_us() - begin) * 1e6;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    out->cold = read_file(fd, n_bytes, 1);
    out->cached = read_file(fd, n_bytes, 1);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0) { /* tmpfs has none */
        out->direct = read_file(fd, n_bytes, 1);
        out->direct_threads = read_file(fd, n_bytes, n_threads);
    }
    close(fd);
    return MX_OK;
}
