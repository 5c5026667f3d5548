/* SPDX-License-Identifier: MIT
 *
 * The cold tier alone: pages written, and read back by a process that has none of them, with a warm
 * page cache and with one from which they were dropped; plain and compressed. No model, no engine.
 *
 *   bench_cold FOLDER [--pages N, default 128] [--kv-type f16|f32|q8] [--rounds N] [PAGE-FILE...]
 *
 * The shape is that of a 0.6B model (28 layers, 8 heads of 128). Its numbers are Gaussian, or, when page
 * files of some model are given (plain ones, of that KV type), what is in those, over and over:
 * ratios are those of real keys and values then. FOLDER is made and removed.
 *
 *   build/bench_cold /var/tmp/bench_cold ~/.mtplx/session_cache/v1/HASH/pages/HH/HASH.page ...
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cold_jobs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, MAX_ROUNDS = 32 };

typedef struct setup {
    const char *dir;
    size_t n_pages;
    int n_rounds;
    mx_kv_shape shape;
    size_t page_bytes;
    uint8_t *source;            /* [source_bytes] what pages are filled with */
    size_t source_bytes;
    int32_t *tokens;            /* [n_pages * 64] */
    mx_hash256 *ids;            /* [n_pages] */
    mx_hash256 root;
    uint8_t **payloads;         /* [n_pages] */
} setup;

static double thread_cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- content --------------------------------------------------------------------------------- */

/* Standard deviation about 1: the sum of 12 even numbers. */
static float gauss(uint64_t *state)
{
    float sum = -6;
    for (int i = 0; i < 6; i++) {
        uint64_t r = next_random(state);
        sum += (float)(uint32_t)r * 0x1p-32f + (float)(uint32_t)(r >> 32) * 0x1p-32f;
    }
    return sum;
}

/* Rounds towards zero; the numbers are in the range of normal ones. */
static uint16_t to_f16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    uint32_t exponent = u >> 23 & 0xFF;
    return exponent < 113 ? (uint16_t)(u >> 16 & 0x8000)
                          : (uint16_t)((u >> 16 & 0x8000) | (exponent - 112) << 10 | (u >> 13 & 0x3FF));
}

static void fill_source(setup *s)
{
    uint64_t state = 1;
    s->source_bytes = s->page_bytes;
    s->source = mx_alloc(s->source_bytes);
    must(s->source != NULL, "no memory");
    for (size_t i = 0; i + 4 <= s->source_bytes; i += 4) {
        float a = gauss(&state), b = gauss(&state);
        if (s->shape.type == MX_KV_F16) {
            mx_put_le16(s->source + i, to_f16(a));
            mx_put_le16(s->source + i + 2, to_f16(b));
        } else if (s->shape.type == MX_KV_F32) {
            memcpy(s->source + i, &a, sizeof a);
        } else {
            for (size_t k = 0; k < 4; k++) {
                s->source[i + k] = (uint8_t)(int8_t)(gauss(&state) * 40);
            }
        }
    }
}

static void read_source(setup *s, int n_files, char **files)
{
    size_t cap = 0;
    for (int i = 0; i < n_files; i++) {
        FILE *f = fopen(files[i], "rb");
        struct stat st;
        must(f != NULL && fstat(fileno(f), &st) == 0 && st.st_size > HEADER_BYTES, "no page file");
        size_t n = (size_t)st.st_size - HEADER_BYTES;
        void *source = s->source;
        must(mx_grow(&source, &cap, s->source_bytes + n, 1), "no memory");
        s->source = source;
        must(fseek(f, HEADER_BYTES, SEEK_SET) == 0
                 && fread(s->source + s->source_bytes, 1, n, f) == n, "cannot read a page file");
        s->source_bytes += n;
        fclose(f);
    }
}

static void fill_page(const setup *s, size_t page, uint8_t *payload)
{
    size_t at = page * s->page_bytes % s->source_bytes;
    for (size_t done = 0; done < s->page_bytes;) {
        size_t n = mx_min_size(s->page_bytes - done, s->source_bytes - at);
        memcpy(payload + done, s->source + at, n);
        done += n;
        at = 0;
    }
}

/* ---- the folder ------------------------------------------------------------------------------ */

typedef uint64_t file_fn(const char *path);

static uint64_t each_file(const char *path, file_fn *fn)
{
    uint64_t sum = 0;
    DIR *d = opendir(path);
    must(d != NULL, "cannot list the folder");
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char sub[1024];
        struct stat st;
        snprintf(sub, sizeof sub, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.' && lstat(sub, &st) == 0) {
            sum += S_ISDIR(st.st_mode) ? each_file(sub, fn) : S_ISREG(st.st_mode) ? fn(sub) : 0;
        }
    }
    closedir(d);
    return sum;
}

static uint64_t drop_from_cache(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    must(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "cannot drop a file");
    close(fd);
    return 1;
}

static mx_cold *open_tier(const setup *s, mx_cold_compress compress)
{
    mx_cold *c;
    mx_errbuf eb;
    mx_cold_config cfg = {.mode = MX_COLD_ON,
                          .compress = compress,
                          .dir = s->dir,
                          .max_bytes = (uint64_t)1 << 40,
                          .root = s->root,
                          .wake = wake};
    must(mx_cold_open(&c, &s->shape, &cfg, &eb) == MX_OK, "cannot open the tier");
    return c;
}

static void write_all(const setup *s, mx_cold_compress compress, const char *name)
{
    mx_cold *c = open_tier(s, compress);
    uint8_t *payload = mx_alloc_aligned(4096, s->page_bytes);
    must(payload != NULL, "no memory");
    double us = 0, cpu = thread_cpu_ms();
    double fill = 0;
    for (size_t i = 0; i < s->n_pages; i++) {
        double before = thread_cpu_ms();
        fill_page(s, i, payload);
        fill += thread_cpu_ms() - before;
        mx_cold_job job = {.kind = MX_COLD_WRITE_PAGE,
                           .root = s->root,
                           .parent_id = i == 0 ? s->root : s->ids[i - 1],
                           .first_page = i,
                           .tokens = s->tokens + i * MX_PAGE_TOKENS,
                           .n_tokens = MX_PAGE_TOKENS,
                           .payload = payload,
                           .page_id = s->ids[i]};
        run_job(c, &job);
        us += (double)job.elapsed_us;
    }
    cpu = thread_cpu_ms() - cpu - fill;
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    double raw = (double)(s->n_pages * s->page_bytes);
    printf("%-5s write: ratio %.3f, %6.0f MB/s, %.2f ms CPU a page\n", name,
           raw / (double)st.bytes_written, raw / us, cpu / (double)s->n_pages);
    mx_cold_close(c);
    mx_free(payload);
}

static void read_all(const setup *s, const char *name, bool is_dropped)
{
    double ms[MAX_ROUNDS], best = 1e9, best_cpu = 1e9, probe = 1e9;
    for (int round = 0; round < s->n_rounds; round++) {
        if (is_dropped) {
            sync();
            each_file(s->dir, drop_from_cache);
        }
        mx_cold *c = open_tier(s, MX_COLD_COMPRESS_OFF);
        mx_cold_job job = {.kind = MX_COLD_PROBE,
                           .root = s->root,
                           .parent_id = s->root,
                           .tokens = s->tokens,
                           .n_tokens = s->n_pages * MX_PAGE_TOKENS};
        run_job(c, &job);
        must(job.n_full == s->n_pages, "not all pages are there");
        probe = (double)job.elapsed_us < probe ? (double)job.elapsed_us : probe;
        job.kind = MX_COLD_READ;
        job.payloads = s->payloads;
        double cpu = thread_cpu_ms();
        run_job(c, &job);
        cpu = thread_cpu_ms() - cpu;
        must(job.n_read == s->n_pages, "not all pages were read");
        ms[round] = (double)job.elapsed_us / 1000;
        best = ms[round] < best ? ms[round] : best;
        best_cpu = cpu < best_cpu ? cpu : best_cpu;
        mx_cold_close(c);
    }
    printf("%-5s read, page cache %s: probe %.1f ms, read %.0f ms at best (%.2f GB/s), CPU %.0f ms; all:",
           name, is_dropped ? "dropped" : "warm   ", probe / 1000, best,
           (double)(s->n_pages * s->page_bytes) / best * 1e-6, best_cpu);
    for (int i = 0; i < s->n_rounds; i++) {
        printf(" %.0f", ms[i]);
    }
    printf("\n");
}

static void prepare(setup *s, int n_files, char **files)
{
    s->page_bytes = mx_kv_page_bytes(&s->shape);
    s->root = mx_sha256_of("bench_cold", 10);
    s->tokens = mx_alloc(s->n_pages * MX_PAGE_TOKENS * sizeof *s->tokens);
    s->ids = mx_alloc(s->n_pages * sizeof *s->ids);
    s->payloads = mx_alloc(s->n_pages * sizeof *s->payloads);
    uint8_t *memory = mx_alloc_pages(s->n_pages * s->page_bytes);
    must(s->tokens && s->ids && s->payloads && memory, "no memory");
    memset(memory, 1, s->n_pages * s->page_bytes); /* the engine's pool is pre-faulted, too */
    for (size_t i = 0; i < s->n_pages; i++) {
        for (size_t k = 0; k < MX_PAGE_TOKENS; k++) {
            s->tokens[i * MX_PAGE_TOKENS + k] = (int32_t)(i * 64 + k);
        }
        s->payloads[i] = memory + i * s->page_bytes;
        s->ids[i] = mx_page_identity(&s->root, i == 0 ? &s->root : &s->ids[i - 1],
                                     s->tokens + i * MX_PAGE_TOKENS, MX_PAGE_TOKENS);
    }
    if (n_files > 0) {
        read_source(s, n_files, files);
    } else {
        fill_source(s);
    }
}

int main(int argc, char **argv)
{
    static const struct { const char *name; mx_kv_type type; } types[] = {
        {"f16", MX_KV_F16}, {"f32", MX_KV_F32}, {"q8", MX_KV_Q8}};
    static const struct { const char *name; mx_cold_compress value; } methods[] = {
        {"plain", MX_COLD_COMPRESS_OFF}, {"lz4", MX_COLD_COMPRESS_LZ4},
        {"zstd", MX_COLD_COMPRESS_ZSTD}};
    static const char usage[] =
        "usage: bench_cold FOLDER [--pages N] [--kv-type f16|f32|q8] [--rounds N] [PAGE-FILE...]";
    setup s = {.n_pages = 128, .n_rounds = 5, .shape = {28, 8, 128, MX_KV_F16, 0}};
    int at = 2;
    must(argc >= 2 && argv[1][0] != '-', usage);
    s.dir = argv[1];
    for (; at < argc && argv[at][0] == '-'; at += 2) {
        const char *word = at + 1 < argc ? argv[at + 1] : "";
        if (strcmp(argv[at], "--pages") == 0) {
            s.n_pages = strtoull(word, NULL, 10);
        } else if (strcmp(argv[at], "--rounds") == 0) {
            s.n_rounds = atoi(word);
        } else {
            size_t i = 0;
            while (i < MX_COUNT(types) && strcmp(word, types[i].name) != 0) {
                i++;
            }
            must(strcmp(argv[at], "--kv-type") == 0 && i < MX_COUNT(types), usage);
            s.shape.type = types[i].type;
        }
    }
    must(s.n_pages > 0 && s.n_rounds > 0 && s.n_rounds <= MAX_ROUNDS, "what number is that?");
    must(access(s.dir, F_OK) != 0, "that folder is there already, and would be removed");
    jobs_begin();
    mx_log_set_level(MX_LOG_ERROR);
    prepare(&s, argc - at, argv + at);
    printf("%zu pages of %.2f MB, %s\n", s.n_pages, (double)s.page_bytes * 1e-6,
           argc > at ? "from files" : "Gaussian");
    for (size_t i = 0; i < MX_COUNT(methods); i++) { /* the folder itself stays, empty */
        uint64_t n_files, n_bytes;
        mx_errbuf eb;
        write_all(&s, methods[i].value, methods[i].name);
        read_all(&s, methods[i].name, false);
        read_all(&s, methods[i].name, true);
        must(mx_cold_remove_all(s.dir, NULL, &n_files, &n_bytes, &eb) == MX_OK, "cannot remove the files");
    }
    must(rmdir(s.dir) == 0, "cannot remove the folder");
    return 0;
}
