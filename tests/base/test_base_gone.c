/* SPDX-License-Identifier: MIT
 *
 * The memory of what went: it remembers, it forgets rather than grows, and it invents nothing.
 */
#include "base/gone.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static mx_hash256 id_of(unsigned i)
{
    return mx_sha256_of(&i, sizeof i);
}

static void remembers(void **state)
{
    (void)state;
    int64_t live = mx_mem_live();
    mx_gone *g = mx_gone_create(1024);
    assert_non_null(g);
    unsigned n_kept = 0;
    for (unsigned i = 0; i < 256; i++) {
        mx_hash256 id = id_of(i);
        assert_false(mx_gone_has(g, &id));
        mx_gone_add(g, &id);
        assert_true(mx_gone_has(g, &id));
    }
    for (unsigned i = 0; i < 256; i++) {
        mx_hash256 id = id_of(i);
        n_kept += mx_gone_has(g, &id);
    }
    assert_true(n_kept > 200); /* a quarter full: about one in eight was overwritten */
    int64_t before = mx_mem_live();
    for (unsigned i = 256; i < 20000; i++) {
        mx_hash256 id = id_of(i);
        mx_gone_add(g, &id);
    }
    assert_int_equal(mx_mem_live(), before);
    unsigned n_old = 0, n_false = 0;
    for (unsigned i = 0; i < 40000; i++) {
        mx_hash256 id = id_of(i);
        n_old += i < 256 && mx_gone_has(g, &id);
        n_false += i >= 20000 && mx_gone_has(g, &id);
    }
    assert_true(n_old < 5);
    assert_int_equal(n_false, 0);
    mx_gone_destroy(g);
    assert_int_equal(mx_mem_live(), live);
}

static void none(void **state)
{
    (void)state;
    mx_hash256 id = id_of(1), zero = {{0}};
    mx_gone_add(NULL, &id);
    assert_false(mx_gone_has(NULL, &id));
    mx_gone_destroy(NULL);
    mx_gone *g = mx_gone_create(1);
    assert_false(mx_gone_has(g, &zero)); /* an empty slot is nobody's */
    mx_gone_destroy(g);
    mx_mem_fail_at(2);
    assert_null(mx_gone_create(16));
    mx_mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(remembers), cmocka_unit_test(none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
