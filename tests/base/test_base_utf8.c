/* SPDX-License-Identifier: MIT
 *
 * UTF-8: every scalar value, every two-byte input, and truncations, against an independent rule.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/utf8.h"

static bool is_scalar(uint32_t cp)
{
    return cp < 0x110000 && (cp < 0xD800 || cp > 0xDFFF);
}

static void test_every_scalar(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (!is_scalar(cp)) {
            continue;
        }
        char enc[4];
        size_t n = mx_utf8_encode(cp, enc);
        size_t want = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
        uint32_t back = 0;
        size_t took = mx_utf8_decode(enc, n, &back);
        if (n != want || took != n || back != cp || !mx_utf8_valid(enc, n)) {
            print_message("U+%04X: expected %zu bytes, came %zu, decoded U+%04X of %zu\n", cp, want,
                          n, back, took);
            fail();
        }
        /* Cut anywhere, it is incomplete from its first byte. */
        for (size_t cut = 1; cut < n; cut++) {
            assert_false(mx_utf8_valid(enc, cut));
            assert_int_equal(mx_utf8_complete(enc, cut), 0);
        }
        assert_int_equal(mx_utf8_complete(enc, n), n);
    }
}

/* Only scalar values, each in its shortest form: a slow, obvious decoder. */
static bool obvious_valid(const uint8_t *p, size_t n)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    while (n > 0) {
        size_t len = p[0] < 0x80 ? 1 : (p[0] & 0xE0) == 0xC0 ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 :
                     (p[0] & 0xF8) == 0xF0 ? 4 : 0;
        if (len == 0 || len > n) {
            return false;
        }
        uint32_t cp = len == 1 ? p[0] : p[0] & (0x7Fu >> len);
        for (size_t i = 1; i < len; i++) {
            if ((p[i] & 0xC0) != 0x80) {
                return false;
            }
            cp = cp << 6 | (p[i] & 0x3Fu);
        }
        if (cp < least[len] || !is_scalar(cp)) {
            return false;
        }
        p += len;
        n -= len;
    }
    return true;
}

static void check(const uint8_t *p, size_t n)
{
    const char *s = (const char *)p;
    bool want = obvious_valid(p, n);
    if (mx_utf8_valid(s, n) != want) {
        print_message("%02x %02x %02x %02x (%zu): expected valid=%d\n", p[0], p[1], p[2], p[3], n,
                      want);
        fail();
    }
    mx_buf clean = {0};
    mx_utf8_append_clean(&clean, s, n);
    assert_true(mx_utf8_valid(clean.ptr, clean.len));
    if (want) {
        assert_int_equal(clean.len, n);
        assert_memory_equal(clean.ptr, s, n);
    }
    mx_buf_free(&clean);
    /* What is complete does not become invalid through what follows, and at most 3 bytes wait. */
    size_t done = mx_utf8_complete(s, n);
    assert_true(done <= n && n - done <= 3);
    if (want) {
        assert_int_equal(done, n);
    }
}

static void test_against_obvious(void **state)
{
    (void)state;
    uint8_t p[4] = {0};
    for (unsigned a = 0; a < 256; a++) {
        for (unsigned b = 0; b < 256; b++) {
            p[0] = (uint8_t)a;
            p[1] = (uint8_t)b;
            check(p, 1);
            check(p, 2);
        }
    }
    static const uint8_t edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                    0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xEC, 0xED,
                                    0xEE, 0xEF, 0xF0, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF};
    enum { N = sizeof edges };
    for (size_t i = 0; i < (size_t)N * N * N * N; i++) {
        p[0] = edges[i % N];
        p[1] = edges[i / N % N];
        p[2] = edges[i / N / N % N];
        p[3] = edges[i / N / N / N];
        check(p, 4);
        check(p, 3);
    }
}

static void test_replacements(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n_replaced; /* maximal subparts, Unicode 15 table 3-8 */
    } cases[] = {
        {"\xC0\xAF", 2},
        {"\xE0\x80\xAF", 3},
        {"\xF0\x80\x80\xAF", 4},
        {"\xED\xA0\x80", 3},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", 4},
        {"\xF0\x9F\x98", 1},
        {"\xF4\x91\x92\x93", 4},
        {"\xFF", 1},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_buf out = {0};
        mx_utf8_append_clean(&out, cases[i].in, strlen(cases[i].in));
        if (out.len != 3 * cases[i].n_replaced) {
            print_message("case %zu: expected %zu replacements, came %zu bytes\n", i,
                          cases[i].n_replaced, out.len);
        }
        assert_int_equal(out.len, 3 * cases[i].n_replaced);
        mx_buf_free(&out);
    }
}

/* A stream cut at every byte: what was released and what is left make the whole. */
static void test_complete_in_stream(void **state)
{
    (void)state;
    const char *text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z\xF0\x9F\x98\x81";
    size_t n = strlen(text);
    mx_buf sent = {0};
    size_t from = 0;
    for (size_t have = 1; have <= n; have++) {
        size_t ready = mx_utf8_complete(text + from, have - from);
        assert_true(mx_utf8_valid(text + from, ready));
        mx_buf_append(&sent, text + from, ready);
        from += ready;
    }
    assert_int_equal(from, n);
    assert_string_equal(sent.ptr, text);
    mx_buf_free(&sent);
    /* Bytes that no continuation can save are not held back. */
    assert_int_equal(mx_utf8_complete("\xFF", 1), 1);
    assert_int_equal(mx_utf8_complete("\x80", 1), 1);
    assert_int_equal(mx_utf8_complete("\xE0\x80", 2), 2);
    assert_int_equal(mx_utf8_complete("\xC0", 1), 1);
    assert_int_equal(mx_utf8_complete("", 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scalar),
        cmocka_unit_test(test_against_obvious),
        cmocka_unit_test(test_replacements),
        cmocka_unit_test(test_complete_in_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
