/* SPDX-License-Identifier: MIT
 *
 * The growing buffer: contents, the limit, sticky failure.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"

static void test_append(void **state)
{
    (void)state;
    mx_buf b = {0};
    mx_buf_append(&b, NULL, 0);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.ptr, "");
    mx_buf_str(&b, "one");
    mx_buf_char(&b, ' ');
    mx_buf_printf(&b, "%d-%s", 42, "x");
    mx_buf_append(&b, "\0z", 2);
    assert_int_equal(b.len, 10);
    assert_memory_equal(b.ptr, "one 42-x\0z", 11);
    assert_false(b.failed);
    mx_str view = mx_buf_view(&b);
    assert_ptr_equal(view.ptr, b.ptr);
    assert_int_equal(view.len, 10);
    mx_buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.ptr, "");
    mx_buf_free(&b);
    assert_null(b.ptr);
    mx_buf_free(&b); /* twice is harmless */
    assert_int_equal(mx_mem_live(), 0);
}

static void test_long_contents(void **state)
{
    (void)state;
    mx_buf b = {0};
    for (int i = 0; i < 100000; i++) {
        mx_buf_printf(&b, "%06d", i);
    }
    assert_int_equal(b.len, 600000);
    assert_memory_equal(b.ptr + 6 * 54321, "054321", 6);
    assert_int_equal(b.ptr[b.len], '\0');
    mx_buf_free(&b);
}

static void test_reserve(void **state)
{
    (void)state;
    mx_buf b = {0};
    char *to = mx_buf_reserve(&b, 5);
    assert_non_null(to);
    memcpy(to, "abcde", 5);
    b.len += 5;
    to = mx_buf_reserve(&b, 1000);
    assert_ptr_equal(to, b.ptr + 5);
    assert_memory_equal(b.ptr, "abcde", 5);
    assert_null(mx_buf_reserve(&b, SIZE_MAX));
    assert_true(b.failed);
    mx_buf_str(&b, "ignored");
    assert_int_equal(b.len, 5);
    mx_buf_free(&b);
}

static void test_limit(void **state)
{
    (void)state;
    mx_buf b = {.max_bytes = 10};
    mx_buf_str(&b, "0123456789");
    assert_false(b.failed);
    mx_buf_char(&b, 'x');
    assert_true(b.failed);
    assert_int_equal(b.len, 10);
    assert_string_equal(b.ptr, "0123456789");
    mx_buf_append(&b, NULL, 0); /* failure stays, whatever comes */
    assert_true(b.failed);
    mx_buf_clear(&b);
    assert_false(b.failed);
    mx_buf_printf(&b, "%s", "0123456789A");
    assert_true(b.failed);
    mx_buf_free(&b);
    assert_int_equal(b.max_bytes, 10);
    assert_false(b.failed);
}

static void test_no_memory(void **state)
{
    (void)state;
    for (uint64_t k = 1; k <= 8; k++) {
        mx_buf b = {0};
        size_t before = 0;
        mx_mem_fail_at(k);
        for (int i = 0; i < 2000 && !b.failed; i++) {
            before = b.len;
            mx_buf_str(&b, "0123456789");
        }
        mx_mem_fail_at(0);
        assert_true(b.failed);
        assert_int_equal(b.len, before); /* what was there stays whole */
        assert_true(b.len == 0 || memcmp(b.ptr + b.len - 10, "0123456789", 11) == 0);
        mx_buf_str(&b, "x");
        assert_int_equal(b.len, before);
        mx_buf_free(&b);
    }
    assert_int_equal(mx_mem_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append),  cmocka_unit_test(test_long_contents),
        cmocka_unit_test(test_reserve), cmocka_unit_test(test_limit),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
