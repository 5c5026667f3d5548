/* SPDX-License-Identifier: MIT
 *
 * The cold tier on a folder with many conversations: how soon after start it answers, how soon it
 * knows everything, how long a look-up takes then, and what an entry costs in memory.
 *
 *   bench_cold_many FOLDER [--entries N, default 100000] [--stems N, default 100] [--keep]
 *
 * The entries are those of cold_entries.h. FOLDER is made, or used as it is when an earlier run kept it.
 * As root the kernel's caches (pages, names, inodes) are dropped first; else it says that they are warm.
 */
#include "base/log.h"
#include "cold_entries.h"

enum { N_LOOKUPS = 2000 };

/* ---- the folder ------------------------------------------------------------------------------ */

static bool is_ours(const char *top, const mx_hash256 *root)
{
    char hex[65], path[4400];
    struct stat st;
    mx_hash256_hex(root, hex);
    snprintf(path, sizeof path, "%s/v1/%s", top, hex);
    return stat(path, &st) == 0;
}

static bool drop_caches(void)
{
    sync();
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    bool is_dropped = fd >= 0 && write(fd, "3", 1) == 1;
    if (fd >= 0) {
        close(fd);
    }
    return is_dropped;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static uint64_t memory_kib(const char *what)
{
    char line[256];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, what, strlen(what)) == 0) {
            kib = strtoull(line + strlen(what) + 1, NULL, 10);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return kib;
}

/* Microseconds until the answer is here; *n = tokens found. */
static uint64_t look_up(mx_cold *c, const mx_hash256 *root, const entry *e, size_t *n)
{
    mx_cold_job job = {.kind = MX_COLD_PROBE,
                       .root = *root,
                       .parent_id = *root,
                       .tokens = e->tokens,
                       .n_tokens = PROMPT_TOKENS};
    uint64_t start = mx_now_us();
    run_job(c, &job);
    *n = job.n_full * MX_PAGE_TOKENS + job.tail_rows;
    return mx_now_us() - start;
}

static int compare_us(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* is_drifting: the prompt leaves the entry in the middle of its tail, so that only the index can say
 * that there is one; else it goes on behind it. */
static void look_up_many(mx_cold *c, const mx_hash256 *root, size_t n_entries, size_t n_stems,
                         bool is_drifting, const char *name)
{
    static uint64_t us[N_LOOKUPS];
    uint64_t random = 5, n_found = 0;
    for (size_t i = 0; i < N_LOOKUPS; i++) {
        entry e;
        size_t n, want;
        make_entry(&e, root, next_random(&random) % n_entries, n_stems);
        want = is_drifting ? e.n_tokens - 4 : e.n_tokens;
        for (size_t k = want; k < PROMPT_TOKENS; k++) {
            e.tokens[k] = 49152;
        }
        us[i] = look_up(c, root, &e, &n);
        n_found += n >= want;
    }
    qsort(us, N_LOOKUPS, sizeof *us, compare_us);
    printf("look-up, %-34s median %.3f ms, 99 %% below %.3f ms, at most %.3f ms, found %llu of %d\n",
           name, (double)us[N_LOOKUPS / 2] * 1e-3, (double)us[N_LOOKUPS * 99 / 100] * 1e-3,
           (double)us[N_LOOKUPS - 1] * 1e-3, (unsigned long long)n_found, N_LOOKUPS);
}

static void measure(const char *dir, const mx_hash256 *root, size_t n_entries, size_t n_stems)
{
    bool is_cold = drop_caches();
    mx_cold_config cfg = {.mode = MX_COLD_ON,
                          .dir = dir,
                          .max_bytes = (uint64_t)1 << 40,
                          .root = *root,
                          .wake = wake};
    mx_cold *c;
    mx_errbuf eb;
    mx_cold_stats st = {0};
    entry e;
    size_t n;
    make_entry(&e, root, n_entries / 2, n_stems);
    uint64_t before = memory_kib("VmRSS:"), start = mx_now_us();
    must(mx_cold_open(&c, &shape, &cfg, &eb) == MX_OK, "cannot open the tier");
    uint64_t opened = mx_now_us();
    look_up(c, root, &e, &n);
    uint64_t served = mx_now_us();
    must(n == e.n_tokens, "the first look-up does not find all of the entry");
    while (!st.is_loaded) {
        usleep(2000);
        mx_cold_get_stats(c, &st);
    }
    uint64_t loaded = mx_now_us();
    while (!st.is_complete) {
        usleep(2000);
        mx_cold_get_stats(c, &st);
    }
    uint64_t complete = mx_now_us(), after = memory_kib("VmRSS:");
    printf("kernel caches %s: open %.1f ms, first look-up answered after %.3f s, manifests read after "
           "%.2f s, heads of crowds after %.2f s\n", is_cold ? "dropped" : "warm (not root)",
           (double)(opened - start) * 1e-3, (double)(served - start) * 1e-6,
           (double)(loaded - start) * 1e-6, (double)(complete - start) * 1e-6);
    printf("memory: %.0f bytes an entry afterwards, %.0f at the peak\n",
           (double)(after - before) * 1024 / (double)n_entries,
           (double)(memory_kib("VmHWM:") - before) * 1024 / (double)n_entries);
    look_up_many(c, root, n_entries, n_stems, false, "prompt goes on behind the entry:");
    look_up_many(c, root, n_entries, n_stems, true, "prompt leaves it, first time:");
    look_up_many(c, root, n_entries, n_stems, true, "prompt leaves it, again:");
    start = mx_now_us();
    must(mx_cold_sweep(c, 600000000), "the sweep does not end");
    printf("a later sweep: %.2f s\n", (double)(mx_now_us() - start) * 1e-6);
    mx_cold_close(c);
}

int main(int argc, char **argv)
{
    static const char usage[] =
        "usage: bench_cold_many FOLDER [--entries N] [--stems N] [--keep]";
    size_t n_entries = 100000, n_stems = 100;
    bool is_kept = false;
    must(argc >= 2 && argv[1][0] != '-', usage);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--keep") == 0) {
            is_kept = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--entries") == 0) {
            n_entries = strtoull(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--stems") == 0) {
            n_stems = strtoull(argv[++i], NULL, 10);
        } else {
            must(false, usage);
        }
    }
    must(n_stems > 0 && n_stems <= n_entries, "what number is that?");
    mx_hash256 root = mx_sha256_of("bench_cold_many", 15);
    struct stat st;
    jobs_begin();
    mx_log_set_level(MX_LOG_WARN);
    if (stat(argv[1], &st) != 0) {
        uint64_t start = mx_now_us();
        must(mkdir(argv[1], 0700) == 0, "cannot make the folder");
        make_folder(argv[1], &root, n_entries, n_stems);
        printf("made %zu entries in %.1f s\n", n_entries, (double)(mx_now_us() - start) * 1e-6);
    }
    must(is_ours(argv[1], &root), "that folder was not made by this bench, and would be removed");
    printf("%zu entries on %zu stems\n", n_entries, n_stems);
    measure(argv[1], &root, n_entries, n_stems);
    if (!is_kept) {
        char command[4400];
        snprintf(command, sizeof command, "rm -rf '%s'", argv[1]);
        must(system(command) == 0, "cannot remove the folder");
    }
    return 0;
}
