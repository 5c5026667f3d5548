/* SPDX-License-Identifier: MIT
 *
 * The options of both benches, and the table that `bench roof` prints.
 */
#include "cli/cli_bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cli_machine.h"
#include "cli/cli_options.h"
#include "cli/cli_roof.h"
#include "cli/cli_start.h"

#include <stdio.h>
#include <sys/stat.h>

#define AT(field) offsetof(mx_bench_settings, field)

#define COMMON                                                                                     \
    {"threads", OPT_NUMBER, AT(threads), "N", "0", 0, 256, NULL,                                   \
     "threads; 0 = as many as the process may use"},                                               \
    {"repeat", OPT_NUMBER, AT(repeat), "N", "5", 1, 64, NULL, "measurements of each kind"},        \
    {"json", OPT_FLAG, AT(json), NULL, "off", 0, 0, NULL, "print one JSON object"}

static const mx_option roof_rows[] = {
    COMMON,
    {"dir", OPT_TEXT, AT(dir), "DIR", NULL, 0, 0, NULL,
     "folder whose disk is measured; default: where the session cache is"},
    {"disk-size", OPT_SIZE, AT(disk_size), "SIZE", "256M", MX_SIZE_MIN, 0, NULL,
     "size of the file for that, which has no name and is gone at the end; 0 = none"},
};

static const mx_option model_rows[] = {
    COMMON,
    {"prompt", OPT_NUMBER, AT(prompt), "TOKENS", "512", 0, 1u << 20, NULL, "prompt to read; 0 = none"},
    {"gen", OPT_NUMBER, AT(gen), "TOKENS", "64", 0, 1u << 20, NULL,
     "tokens to generate, of each sequence; 0 = none"},
    {"depth", OPT_NUMBER, AT(depth), "TOKENS", "0", 0, 1u << 20, NULL,
     "tokens that stand before those generated"},
    {"batch", OPT_NUMBER, AT(batch), "N", "1", 1, 256, NULL, "sequences that generate together"},
    {"chunk", OPT_NUMBER, AT(chunk), "TOKENS", "512", 1, 8192, NULL, "prompt tokens per pass"},
    {"cpu-level", OPT_CHOICE, AT(cpu_level), NULL, "auto", 0, 0, mx_cpu_words,
     "highest instruction set to use"},
    {"kv-type", OPT_CHOICE, AT(kv_type), NULL, "f16", 0, 0, mx_kv_words,
     "how keys and values are stored"},
    {"activations", OPT_CHOICE, AT(act_type), NULL, "16", 0, 0, mx_act_words,
     "bits of the activations"},
    {"no-roof", OPT_FLAG, AT(no_roof), NULL, "off", 0, 0, NULL,
     "do not measure the machine's limits to compare with"},
};

static const mx_option_table roof_table = {"bench", false, roof_rows, MX_COUNT(roof_rows)};
static const mx_option_table model_table = {"bench", false, model_rows, MX_COUNT(model_rows)};

void mx_cli_bench_help(mx_buf *out)
{
    mx_buf_str(out, "mtplx bench roof: what this machine can do at most\n");
    mx_table_help(&roof_table, out);
    mx_buf_str(out, "\nmtplx bench model FILE: what a model does on it\n");
    mx_table_help(&model_table, out);
}

/* ---- roof ----------------------------------------------------------------------------------- */

static void roof_macs(const mx_bench_settings *s, unsigned n_threads)
{
    size_t n;
    const mx_roof_family *f = mx_roof_families(&n);
    double seconds = 0.03 * (double)s->repeat;
    bool is_first = true;
    if (s->json) {
        fputs("\"macs\":[", stdout);
    } else {
        printf("%-38s%10s%7u thr.\n", "multiply-accumulates, 10^9 per second", "1 thread", n_threads);
    }
    for (size_t i = 0; i < n; i++) {
        if (!f[i].is_there()) {
            continue;
        }
        double one = mx_roof_macs(&f[i], 1, seconds) / 1e9;
        double all = n_threads > 1 ? mx_roof_macs(&f[i], n_threads, seconds) / 1e9 : one;
        if (s->json) {
            printf("%s{\"name\":\"%s\",\"level\":\"%s\",\"one\":%.2f,\"all\":%.2f}",
                   is_first ? "" : ",", f[i].name, mx_cpu_level_name(f[i].level), one, all);
        } else {
            printf("  %-36s%10.1f%13.1f\n", f[i].name, one, all);
            fflush(stdout);
        }
        is_first = false;
    }
    fputs(s->json ? "]," : "", stdout);
}

static mx_err roof_dram(const mx_bench_settings *s, unsigned n_threads, mx_errbuf *eb)
{
    double one[2], all[2];
    size_t n_bytes = mx_roof_dram_bytes();
    MX_TRY(mx_roof_dram(one, 1, n_bytes, (unsigned)s->repeat, eb));
    memcpy(all, one, sizeof all);
    if (n_threads > 1) {
        MX_TRY(mx_roof_dram(all, n_threads, n_bytes, (unsigned)s->repeat, eb));
    }
    if (s->json) {
        printf("\"dram\":{\"bytes\":%zu,\"one\":%.2f,\"one_median\":%.2f,\"all\":%.2f,"
               "\"all_median\":%.2f}", n_bytes, one[0] / 1e9, one[1] / 1e9, all[0] / 1e9,
               all[1] / 1e9);
    } else {
        printf("reading memory, GB/s (%zu MiB)\n  %-36s%10.1f%13.1f\n  %-36s%10.1f%13.1f\n",
               n_bytes >> 20, "best", one[0] / 1e9, all[0] / 1e9, "median", one[1] / 1e9,
               all[1] / 1e9);
    }
    fflush(stdout);
    return MX_OK;
}

/* False: a disk that was named could not be measured. */
static bool roof_disk(const mx_bench_settings *s, unsigned n_threads)
{
    char standard[1024];
    const char *dir = s->dir, *home = mx_machine_home();
    struct stat st;
    if (dir == NULL && home != NULL) {
        mx_default_cache_dir(standard, sizeof standard, home);
        dir = stat(standard, &st) == 0 ? standard : home;
    }
    mx_roof_disk_rates r;
    mx_errbuf eb = {{0}};
    if (dir == NULL || mx_roof_disk(&r, dir, s->disk_size, n_threads, &eb) != MX_OK) {
        fprintf(stderr, "mtplx: the disk was not measured: %s\n",
                dir == NULL ? "there is no home folder; name one with --dir" : eb.text);
        return s->dir == NULL;
    }
    if (s->json) {
        printf(",\"disk\":{\"write\":%.3f,\"cold\":%.3f,\"direct\":%.3f,\"direct_threads\":%.3f,"
               "\"cached\":%.3f}", r.write / 1e9, r.cold / 1e9, r.direct / 1e9,
               r.direct_threads / 1e9, r.cached / 1e9);
        return true;
    }
    printf("disk, GB/s (%llu MiB in %s)\n", (unsigned long long)s->disk_size >> 20, dir);
    printf("  %-36s%10.2f\n", "write and sync", r.write / 1e9);
    printf("  %-36s%10.2f\n", "read, nothing in the page cache", r.cold / 1e9);
    printf("  %-36s%10.2f%13.2f\n", "read, O_DIRECT", r.direct / 1e9, r.direct_threads / 1e9);
    printf("  %-36s%10.2f\n", "read, from the page cache", r.cached / 1e9);
    return true;
}

static int bench_roof(const mx_bench_settings *s)
{
    unsigned n_threads = (unsigned)s->threads;
    mx_errbuf eb = {{0}};
    if (s->json) {
        printf("{\"threads\":%u,", n_threads);
    }
    roof_macs(s, n_threads);
    if (roof_dram(s, n_threads, &eb) != MX_OK) {
        fprintf(stderr, "mtplx: %s\n", eb.text);
        return 1;
    }
    bool ok = s->disk_size == 0 || roof_disk(s, n_threads);
    fputs(s->json ? "}\n" : "", stdout);
    return ok ? 0 : 1;
}

/* ---- the command ---------------------------------------------------------------------------- */

int mx_cli_bench(int argc, char **argv)
{
    bool is_roof = argc >= 1 && strcmp(argv[0], "roof") == 0;
    bool is_model = argc >= 2 && strcmp(argv[0], "model") == 0 && argv[1][0] != '-';
    if (!is_roof && !is_model) {
        fprintf(stderr, "mtplx: bench knows `roof` and `model FILE`; `mtplx help bench` shows more\n");
        return 2;
    }
    const mx_option_table *table = is_roof ? &roof_table : &model_table;
    int n_words = is_roof ? 1 : 2;
    mx_bench_settings s = {0};
    mx_errbuf eb = {{0}};
    int code = 2;
    mx_cpu_level level;
    if (mx_table_parse(table, &s, argc - n_words, argv + n_words, &eb) != MX_OK
        || (is_model && mx_cli_cpu_level(s.cpu_level, &level, &eb) != MX_OK))
    {
        fprintf(stderr, "mtplx: %s\n", eb.text);
    } else {
        s.threads = s.threads > 0 ? s.threads : mx_machine_cores();
        code = is_roof ? bench_roof(&s) : mx_bench_model(&s, argv[1]);
    }
    mx_table_free(table, &s);
    return code;
}
