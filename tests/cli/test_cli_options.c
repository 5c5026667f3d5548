/* SPDX-License-Identifier: MIT
 *
 * The option table: defaults, arguments over environment, refusals that name the option or
 * variable, and that no key reaches /info. Also what the machine offers, from files a test has
 * written.
 */
#include "base/mem.h"
#include "cli/cli_machine.h"
#include "cli/cli_options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static mx_err parse(mx_settings *s, const char *a, const char *b, const char *c, const char *d,
                    mx_errbuf *eb)
{
    char *argv[] = {(char *)(uintptr_t)a, (char *)(uintptr_t)b, (char *)(uintptr_t)c,
                    (char *)(uintptr_t)d};
    int n = 0;
    while (n < 4 && argv[n] != NULL) {
        n++;
    }
    *eb = (mx_errbuf){0};
    return mx_settings_parse(s, n, argv, eb);
}

static void defaults(void **state)
{
    (void)state;
    mx_settings s;
    mx_errbuf eb;
    assert_int_equal(parse(&s, NULL, NULL, NULL, NULL, &eb), MX_OK);
    assert_string_equal(s.host, "127.0.0.1");
    assert_int_equal(s.port, 8000);
    assert_int_equal(s.ssd_mode, MX_COLD_ON);
    assert_int_equal(s.ssd_min_tokens, 32);
    assert_int_equal(s.near_prefix_gap, 8);
    assert_true(s.lazy_snapshot && !s.snapshot_settle && s.boundary_true_restore);
    assert_false(s.strict_model);
    mx_settings_free(&s);
}

static void sources(void **state)
{
    (void)state;
    mx_settings s;
    mx_errbuf eb;
    setenv("MTPLX_PORT", "9000", 1);
    setenv("MTPLX_API_KEY", "one,two", 1);
    setenv("MTPLX_STRICT_MODEL", "1", 1);
    assert_int_equal(parse(&s, NULL, NULL, NULL, NULL, &eb), MX_OK);
    assert_int_equal(s.port, 9000);
    assert_int_equal(s.api_keys.n, 2);
    assert_string_equal(s.api_keys.items[1], "two");
    assert_true(s.strict_model);
    mx_settings_free(&s);
    assert_int_equal(parse(&s, "--port=7", "--api-key", "three,four", "--strict-model=off", &eb),
                     MX_OK);
    assert_int_equal(s.port, 7);
    assert_int_equal(s.api_keys.n, 1);
    assert_string_equal(s.api_keys.items[0], "three,four");
    assert_false(s.strict_model);
    mx_buf json = {0};
    mx_settings_json(&s, &json);
    assert_non_null(strstr(json.ptr, "\"port\":7"));
    assert_non_null(strstr(json.ptr, "\"api-key\":\"1 set\""));
    assert_null(strstr(json.ptr, "three"));
    mx_buf_free(&json);
    mx_settings_session_json(&s, &json);
    assert_string_equal(json.ptr,
                        "{\"MTPLX_SESSION_LAZY_SNAPSHOT\":1,\"MTPLX_SESSION_SNAPSHOT_SETTLE\":0,"
                        "\"MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP\":8,"
                        "\"MTPLX_SESSION_BOUNDARY_TRUE_RESTORE\":1}");
    mx_buf_free(&json);
    mx_settings_free(&s);
    unsetenv("MTPLX_PORT");
    unsetenv("MTPLX_API_KEY");
    unsetenv("MTPLX_STRICT_MODEL");
}

static void refusals(void **state)
{
    (void)state;
    static const struct { const char *a, *b, *words; } rows[] = {
        {"--port", "70000", "--port"}, {"--port", "x", "--port"}, {"--port", "-1", "--port"},
        {"--port", NULL, "needs a value"}, {"--prot", "1", "--prot"}, {"start", NULL, "start"},
        {"--kv-budget", "12Q", "--kv-budget"}, {"--kv-type", "f8", "f16|f32|q8"},
        {"--ssd-session-cache", "maybe", "on|off|write-only"}, {"--max-batch", "0",
                                                                "--max-batch"},
        {"--strict-model=perhaps", NULL, "--strict-model"}, {"--host", "", "--host"},
        {"--api-key", "", "--api-key"}, {"--ssd-session-cache-ttl", "3w", "12h or 30d"},
        {"--ssd-session-cache-ttl", "d", "12h or 30d"}, {"--ssd-session-cache-ttl", "1dd", "12h"},
        {"--ssd-session-cache-ttl", "-1", "12h"}, {"--ssd-session-cache-ttl", "30", "with its unit"},
        {"--ssd-write-budget", "much", "size"}, {"--allowed-origin", "good.example", "browsers send"},
        {"--allowed-origin", "https://good.example/", "browsers send"},
        {"--allowed-origin", "https://", "browsers send"}, {"--allowed-origin", "://x", "browsers send"},
        {"--allowed-host", "http://box", "--allowed-host"}, {"--allowed-host", "a b", "--allowed-host"},
        {"--ssd-session-cache-max-size", "10", "give the unit"},
        {"--max-context", "1", "at least 64"}, {"--max-context", "63", "at least 64"},
        {"--kv-budget", "512", "give the unit"}, {"--ssd-write-budget", "20", "give the unit"},
    };
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        mx_settings s;
        mx_errbuf eb;
        mx_err e = parse(&s, rows[i].a, rows[i].b, NULL, NULL, &eb);
        if (e != MX_E_INVALID || strstr(eb.text, rows[i].words) == NULL) {
            fail_msg("%s: expected \"%s\", got %s: %s", rows[i].a, rows[i].words, mx_err_name(e),
                     eb.text);
        }
        mx_settings_free(&s);
    }
    static const struct { const char *name, *value; } bad_env[] = {
        {"MTPLX_SESSION_LAZY_SNAPSHOT", "2"}, {"MTPLX_SESSION_LAZY_SNAPSHOT", ""},
        {"MTPLX_SESSION_SNAPSHOT_SETTLE", "maybe"}, {"MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP",
                                                     "-1"},
        {"MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP", "8.5"}, {"MTPLX_SESSION_BOUNDARY_TRUE_RESTORE",
                                                             "x"},
        {"MTPLX_PORT", "http"},
    };
    for (size_t i = 0; i < MX_COUNT(bad_env); i++) {
        mx_settings s;
        mx_errbuf eb;
        setenv(bad_env[i].name, bad_env[i].value, 1);
        mx_err e = parse(&s, NULL, NULL, NULL, NULL, &eb);
        unsetenv(bad_env[i].name);
        if (e != MX_E_INVALID || strstr(eb.text, bad_env[i].name) == NULL) {
            fail_msg("%s=%s: got %s: %s", bad_env[i].name, bad_env[i].value, mx_err_name(e),
                     eb.text);
        }
        mx_settings_free(&s);
    }
}

static void sizes(void **state)
{
    (void)state;
    static const struct { const char *text; uint64_t bytes; } good[] = {
        {"0", 0}, {"4096", 4096}, {"1K", 1024}, {"1k", 1024}, {"2MiB", 2097152}, {"1.5G",
                1610612736},
        {"1GB", 1073741824}, {"3T", 3298534883328}, {"7B", 7},
    };
    uint64_t n;
    for (size_t i = 0; i < MX_COUNT(good); i++) {
        if (!mx_parse_size(good[i].text, &n) || n != good[i].bytes) {
            fail_msg("%s: expected %llu, got %llu", good[i].text, (unsigned long long)good[i].bytes,
                     (unsigned long long)n);
        }
    }
    static const char *const bad[] = {"", "G", "-1", "1X", "1KX", "1e999", "99999999T", "1 K",
                                      "nan",
                                      "inf"};
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        if (mx_parse_size(bad[i], &n)) {
            fail_msg("\"%s\" was accepted as %llu", bad[i], (unsigned long long)n);
        }
    }
}

/* 0 is "as the machine has it" or "no limit", and stays possible. */
static void sizes_of_budgets(void **state)
{
    (void)state;
    static const char *const names[] = {"--kv-budget", "--ssd-write-budget",
                                        "--ssd-session-cache-max-size"};
    for (size_t i = 0; i < MX_COUNT(names); i++) {
        mx_settings s;
        mx_errbuf eb;
        assert_int_equal(parse(&s, names[i], "0", NULL, NULL, &eb), MX_OK);
        mx_settings_free(&s);
        assert_int_equal(parse(&s, names[i], "1M", NULL, NULL, &eb), MX_OK);
        mx_settings_free(&s);
    }
}

static void times(void **state)
{
    (void)state;
    static const struct { const char *text; uint64_t seconds; } rows[] = {
        {"0", 0}, {"90s", 90}, {"5m", 300}, {"12h", 43200}, {"30d", 2592000}};
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        mx_settings s;
        mx_errbuf eb;
        assert_int_equal(parse(&s, "--ssd-session-cache-ttl", rows[i].text, NULL, NULL, &eb),
                         MX_OK);
        assert_int_equal(s.ssd_ttl_s, rows[i].seconds);
        mx_settings_free(&s);
    }
}

static void names_of_others(void **state)
{
    (void)state;
    static const struct { const char *option, *value; } rows[] = {
        {"--allowed-origin", "*"}, {"--allowed-origin", "null"}, {"--allowed-origin", "https://good.example"},
        {"--allowed-origin", "http://[fd00::1]:3000"}, {"--allowed-origin", "chrome-extension://abcdef"},
        {"--allowed-host", "*"}, {"--allowed-host", "box"}, {"--allowed-host", "box.lan:8000"},
        {"--allowed-host", "fd00::1"},
    };
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        mx_settings s;
        mx_errbuf eb = {{0}};
        if (parse(&s, rows[i].option, rows[i].value, NULL, NULL, &eb) != MX_OK) {
            fail_msg("%s %s: %s", rows[i].option, rows[i].value, eb.text);
        }
        mx_settings_free(&s);
    }
}

static void help_names_every_setting(void **state)
{
    (void)state;
    mx_buf b = {0};
    mx_settings_help(&b);
    static const char *const names[] = {
        "--model FILE", "--host", "--port", "--threads", "--max-context", "--kv-budget SIZE", "--api-key "
            "KEY",
        "MTPLX_API_KEY", "--allowed-origin", "--allowed-host", "--strict-model", "--canonical-prompts",
        "--cpu-level", "--ssd-session-cache on|off|write-only", "--ssd-session-cache-dir DIR",
        "--ssd-session-cache-max-size SIZE", "--ssd-session-cache-min-tokens",
        "--ssd-restore auto|always", "--kv-type "
            "f16|f32", "--log-level", "--max-batch", "--max-queued",
        "--api-key-file FILE", "--admin-key KEY", "--shared-prefixes", "--cache-key-file FILE",
        "MTPLX_ADMIN_KEY", "--prefill-chunk", "--shutdown-drain", "--shutdown-flush",
        "MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP (default 8)",
    };
    for (size_t i = 0; i < MX_COUNT(names); i++) {
        if (strstr(b.ptr, names[i]) == NULL) {
            fail_msg("help does not say \"%s\"", names[i]);
        }
    }
    mx_buf_free(&b);
}

static void write_file(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *c = full + strlen(root) + 1; *c != '\0'; c++) {
        if (*c == '/') {
            *c = '\0';
            mkdir(full, 0700);
            *c = '/';
        }
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void free_memory(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    char root[256];
    snprintf(root, sizeof root, "%s/mtplx-test-XXXXXX", tmp == NULL ? "/tmp" : tmp);
    assert_non_null(mkdtemp(root));
    assert_int_equal(mx_machine_free_bytes(root), 0);
    write_file(root, "/proc/meminfo", "MemTotal: 100 kB\nMemFree: 1 kB\nMemAvailable:   50 kB\n");
    assert_int_equal(mx_machine_free_bytes(root), 51200);
    write_file(root, "/sys/fs/cgroup/memory.max", "max\n");
    write_file(root, "/sys/fs/cgroup/memory.current", "30000\n");
    assert_int_equal(mx_machine_free_bytes(root), 51200);
    write_file(root, "/sys/fs/cgroup/memory.max", "40000\n");
    assert_int_equal(mx_machine_free_bytes(root), 10000);
    write_file(root, "/sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 4000\n");
    assert_int_equal(mx_machine_free_bytes(root), 14000);
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
    assert_true(mx_machine_cores() >= 1);
}

/* Another architecture's level would leave the best one of this CPU in force, silently. */
static void cpu_levels(void **state)
{
    (void)state;
#if defined(__aarch64__)
    static const char *const there[] = {"auto", "portable", "neon"}, *const absent[] = {"avx2", "avx512"};
#else
    static const char *const there[] = {"auto", "portable", "avx2", "avx512"}, *const absent[] = {"neon"};
#endif
    mx_settings s;
    mx_errbuf eb;
    mx_cpu_level level;
    for (size_t i = 0; i < MX_COUNT(there); i++) {
        assert_int_equal(parse(&s, "--cpu-level", there[i], NULL, NULL, &eb), MX_OK);
        assert_int_equal(mx_cli_cpu_level(s.cpu_level, &level, &eb), MX_OK);
        assert_string_equal(mx_cpu_level_name(level),
                            i == 0 ? mx_cpu_level_name(mx_cpu_best()) : there[i]);
        mx_settings_free(&s);
    }
    for (size_t i = 0; i < MX_COUNT(absent); i++) {
        assert_int_equal(parse(&s, "--cpu-level", absent[i], NULL, NULL, &eb), MX_E_INVALID);
        assert_non_null(strstr(eb.text, absent[i]));
        assert_non_null(strstr(eb.text, "inspect --cpu"));
        mx_settings_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(sources),
        cmocka_unit_test(refusals),
        cmocka_unit_test(sizes),
        cmocka_unit_test(sizes_of_budgets),
        cmocka_unit_test(times),
        cmocka_unit_test(names_of_others),
        cmocka_unit_test(help_names_every_setting),
        cmocka_unit_test(cpu_levels),
        cmocka_unit_test(free_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
