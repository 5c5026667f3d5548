/* SPDX-License-Identifier: MIT
 *
 * Memory: counting, failing on demand, growing, overflow. And the error texts.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_counting(void **state)
{
    (void)state;
    int64_t live = mx_mem_live();
    uint64_t calls = mx_mem_calls();
    void *a = mx_alloc(0), *b = mx_alloc(0);
    assert_non_null(a);
    assert_ptr_not_equal(a, b);
    void *c = mx_alloc_aligned(4096, 100);
    assert_int_equal((uintptr_t)c % 4096, 0);
    char *d = mx_strndup("abcdef", 3);
    assert_string_equal(d, "abc");
    uint8_t *z = mx_calloc(1000, 3);
    for (size_t i = 0; i < 3000; i++) {
        assert_int_equal(z[i], 0);
    }
    assert_int_equal(mx_mem_live(), live + 5);
    assert_int_equal(mx_mem_calls(), calls + 5);
    d = mx_realloc(d, 100000);
    assert_string_equal(d, "abc");
    assert_int_equal(mx_mem_live(), live + 5);
    mx_free(a);
    mx_free(b);
    mx_free(c);
    mx_free(d);
    mx_free(z);
    mx_free(NULL);
    assert_int_equal(mx_mem_live(), live);
}

static void test_fail_at(void **state)
{
    (void)state;
    mx_mem_fail_at(3);
    void *a = mx_alloc(1), *b = mx_alloc(1), *c = mx_alloc(1), *d = mx_alloc(1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    assert_non_null(d); /* only that one */
    mx_mem_fail_at(1);
    char *same = mx_realloc(d, 50);
    assert_null(same); /* and the old block is still there */
    mx_free(a);
    mx_free(b);
    mx_free(d);
    mx_mem_fail_at(1);
    assert_null(mx_strdup("x"));
    mx_mem_fail_at(1);
    assert_null(mx_calloc(1, 1));
    mx_mem_fail_at(1);
    assert_null(mx_alloc_aligned(64, 1));
    mx_mem_fail_at(5);
    mx_mem_fail_at(0);
    for (int i = 0; i < 10; i++) {
        void *p = mx_alloc(1);
        assert_non_null(p);
        mx_free(p);
    }
}

static void test_overflow(void **state)
{
    (void)state;
    /* Through volatile, or the compiler objects to the very size that is tested. */
    volatile size_t most = SIZE_MAX;
    assert_null(mx_calloc(most / 2, 4));
    assert_null(mx_alloc_aligned(64, most - 10));
    size_t out;
    assert_false(mx_mul_ok(most / 2, 3, &out));
    assert_true(mx_mul_ok(most / 2, 2, &out));
    assert_false(mx_add_ok(most, 1, &out));
    assert_true(mx_add_ok(most - 1, 1, &out));
    void *array = NULL;
    size_t cap = 0;
    assert_false(mx_grow(&array, &cap, most / 4, 8));
    assert_null(array);
    assert_int_equal(cap, 0);
    assert_false(mx_grow(&array, &cap, most, 1));
    assert_null(array);
}

static void test_grow(void **state)
{
    (void)state;
    void *array = NULL;
    size_t cap = 0;
    uint64_t calls = mx_mem_calls();
    for (uint32_t i = 0; i < 10000; i++) {
        assert_true(mx_grow(&array, &cap, i + 1u, sizeof(uint32_t)));
        ((uint32_t *)array)[i] = i;
    }
    assert_true(mx_mem_calls() - calls < 20); /* doubling, not one by one */
    for (uint32_t i = 0; i < 10000; i++) {
        assert_int_equal(((uint32_t *)array)[i], i);
    }
    size_t old_cap = cap;
    void *old = array;
    mx_mem_fail_at(1);
    assert_false(mx_grow(&array, &cap, cap + 1, sizeof(uint32_t)));
    mx_mem_fail_at(0);
    assert_ptr_equal(array, old);
    assert_int_equal(cap, old_cap);
    mx_free(array);
}

static void test_pages(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 4096, MX_HUGE_PAGE - 1, MX_HUGE_PAGE, 5 * MX_HUGE_PAGE + 3};
    const int64_t live = mx_mem_live();
    for (size_t i = 0; i < MX_COUNT(sizes); i++) {
        uint8_t *p = mx_alloc_pages(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % MX_HUGE_PAGE, 0);
        assert_int_equal(mx_mem_live(), live + 1);
        for (size_t k = 0; k < sizes[i]; k++) {
            if (p[k] != 0) {
                fail_msg("byte %zu of %zu is %d", k, sizes[i], p[k]);
            }
        }
        memset(p, 0xFF, sizes[i]);
        mx_free_pages(p, sizes[i]);
        assert_int_equal(mx_mem_live(), live);
    }
    mx_free_pages(NULL, 5);
    assert_null(mx_alloc_pages(SIZE_MAX - 5));
    mx_mem_fail_at(1);
    assert_null(mx_alloc_pages(10));
    assert_int_equal(mx_mem_live(), live);
}

/* An allocation in a loop that must not allocate ends the process; outside of it, nothing does. */
static void test_forbid(void **state)
{
    (void)state;
    for (int nested = 0; nested < 2; nested++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            close(STDERR_FILENO);
            signal(SIGABRT, SIG_DFL);
            mx_mem_forbid(true);
            mx_mem_forbid(true);
            mx_mem_forbid(false);
            if (nested) {
                mx_mem_forbid(false);
            }
            void *p = mx_alloc(10);
            _exit(p != NULL ? 7 : 8);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
#ifdef NDEBUG
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
#else
        if (nested) {
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        } else {
            assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        }
#endif
    }
}

static void test_errors(void **state)
{
    (void)state;
    for (int e = 0; e < MX_E_COUNT; e++) {
        const char *name = mx_err_name((mx_err)e);
        assert_true(name[0] != '\0');
        for (int f = 0; f < e; f++) {
            assert_string_not_equal(name, mx_err_name((mx_err)f));
        }
    }
    assert_string_equal(mx_err_name(MX_E_COUNT), "unknown");
    assert_string_equal(mx_err_name((mx_err)-1), "unknown");
    mx_errbuf eb;
    assert_int_equal(mx_fail(&eb, MX_E_LIMIT, "%d of %s", 3, "four"), MX_E_LIMIT);
    assert_string_equal(eb.text, "3 of four");
    assert_int_equal(mx_fail(NULL, MX_E_IO, "nobody reads this"), MX_E_IO);
    assert_int_equal(mx_fail_errno(&eb, MX_E_IO, ENOSPC, "file %s", "x"), MX_E_IO);
    assert_string_equal(eb.text, "file x: No space left on device");
    char large[2000];
    memset(large, 'y', sizeof large);
    large[sizeof large - 1] = '\0';
    mx_fail_errno(&eb, MX_E_IO, ENOSPC, "%s", large); /* cut, and terminated */
    assert_int_equal(strlen(eb.text), sizeof eb.text - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counting), cmocka_unit_test(test_fail_at),
        cmocka_unit_test(test_overflow), cmocka_unit_test(test_grow),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_forbid),   cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
