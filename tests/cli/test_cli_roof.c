/* SPDX-License-Identifier: MIT
 *
 * The measurements of `mtplx bench roof`: every loop that this CPU is said to have runs and takes
 * time, memory and disk are read, and nothing is left behind.
 */
#include "cli/cli_roof.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static void every_family_runs(void **state)
{
    (void)state;
    size_t n, n_there = 0;
    const mx_roof_family *f = mx_roof_families(&n);
    for (size_t i = 0; i < n; i++) {
        if (!f[i].is_there()) {
            continue;
        }
        /* The time may be over before a thread gets its first turn. */
        double one = mx_roof_macs(&f[i], 1, 0.02), two = mx_roof_macs(&f[i], 2, 0);
        print_message("%-36s %7.1f %7.1f GMAC/s\n", f[i].name, one / 1e9, two / 1e9);
        /* A loop that the compiler threw away would be beyond any CPU. */
        assert_true(one > 1e6 && one < 1e13);
        assert_true(two > 1e6 && two < 1e13);
        assert_true(f[i].level <= mx_cpu_best() || f[i].level == MX_CPU_PORTABLE);
        n_there++;
    }
    assert_true(n_there >= 1);
}

static void a_level_has_its_roof(void **state)
{
    (void)state;
    for (int level = MX_CPU_PORTABLE; level <= MX_CPU_NEON; level++) {
        const mx_roof_family *f = mx_roof_of_level((mx_cpu_level)level, MX_ACT_16);
        const mx_roof_family *f8 = mx_roof_of_level((mx_cpu_level)level, MX_ACT_8);
        assert_true(f->is_there() && f8->is_there());
        assert_true(f == f8 || strstr(f8->name, "x s8") != NULL);
        assert_true(f8->level == f->level);
        bool is_own = mx_kern_get((mx_cpu_level)level)->level == (mx_cpu_level)level;
        assert_int_equal(f->level, is_own ? (mx_cpu_level)level : MX_CPU_PORTABLE);
        assert_non_null(strstr(f->name, "i16"));
    }
}

static void memory_is_read(void **state)
{
    (void)state;
    double rates[2];
    mx_errbuf eb = {{0}};
    assert_int_equal(mx_roof_dram(rates, 2, 8 << 20, 3, &eb), MX_OK);
    assert_true(rates[0] >= rates[1] && rates[1] > 1e6);
    assert_true(mx_roof_dram_bytes() % (1 << 20) == 0);
}

static size_t count_files(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    size_t n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    }
    closedir(d);
    return n;
}

static void disk_is_read_and_left_clean(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    char dir[256];
    snprintf(dir, sizeof dir, "%s/mtplx-test-XXXXXX", tmp == NULL ? "/tmp" : tmp);
    assert_non_null(mkdtemp(dir));
    mx_roof_disk_rates r;
    mx_errbuf eb = {{0}};
    assert_int_equal(mx_roof_disk(&r, dir, 4 << 20, 2, &eb), MX_OK);
    assert_true(r.write > 0 && r.cold > 0 && r.cached > 0);
    assert_true((r.direct > 0) == (r.direct_threads > 0));
    assert_int_equal(count_files(dir), 0);
    assert_int_equal(mx_roof_disk(&r, dir, 1000, 1, &eb), MX_E_INVALID);
    rmdir(dir);
    assert_int_equal(mx_roof_disk(&r, dir, 4 << 20, 1, &eb), MX_E_IO);
    assert_non_null(strstr(eb.text, dir));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_runs),
        cmocka_unit_test(a_level_has_its_roof),
        cmocka_unit_test(memory_is_read),
        cmocka_unit_test(disk_is_read_and_left_clean),
    };
    return cmocka_run_group_tests_name("roof", tests, NULL, NULL);
}
