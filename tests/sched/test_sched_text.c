/* SPDX-License-Identifier: MIT
 *
 * The text assembler: whatever way a text is cut into pieces, what comes out is the same: the text
 * before the first stop string, well-formed, and never a byte that had to be taken back.
 */
#include "base/utf8.h"
#include "sched/sched_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

typedef struct text_case {
    const char *what;
    const char *input; /* bytes; \xff etc. allowed */
    size_t input_len;
    const char *stops[4];
    const char *expected;
    bool stopped;
} text_case;

#define CASE(what, in, out, stopped, ...)                                                          \
    {                                                                                              \
        what, in, sizeof(in) - 1, {__VA_ARGS__}, out, stopped                                      \
    }

static const text_case cases[] = {
    CASE("plain", "hello world", "hello world", false, NULL),
    CASE("empty", "", "", false, "x"),
    CASE("stop in the middle", "one STOP two", "one ", true, "STOP"),
    CASE("stop at once", "STOP two", "", true, "STOP"),
    CASE("stop at the end", "one STOP", "one ", true, "STOP"),
    CASE("almost a stop", "one STO", "one STO", false, "STOP"),
    CASE("overlapping beginnings", "aaab", "a", true, "aab"),
    CASE("two that end together: the longer", "xab", "x", true, "b", "ab"),
    CASE("the earliest of two", "x END y STOP", "x ", true, "STOP", "END"),
    CASE("complete first wins over begun first", "abcd", "a", true, "bc", "abcd"),
    CASE("prefix of a longer stop wins when earlier", "abXcd", "ab", true, "abXY", "X"),
    CASE("stop with newline", "a\nUser: b", "a", true, "\nUser:"),
    CASE("two bytes", "\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9", false, NULL),
    CASE("four bytes", "a\xf0\x9f\x98\x80z", "a\xf0\x9f\x98\x80z", false, NULL),
    CASE("stop of many bytes", "a\xf0\x9f\x98\x80z", "a", true, "\xf0\x9f\x98\x80"),
    CASE("unfinished at the end", "a\xf0\x9f\x98", "a\xef\xbf\xbd", false, NULL),
    CASE("stray continuation", "a\x80z", "a\xef\xbf\xbdz", false, NULL),
    CASE("lead then ASCII", "a\xe2z", "a\xef\xbf\xbdz", false, NULL),
    CASE("overlong", "\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd", false, NULL),
    CASE("NUL stays", "a\0b", "a", false, NULL), /* compared by length below */
};

static size_t n_stops_of(const text_case *c, mx_str *out)
{
    size_t n = 0;
    while (n < MX_COUNT(c->stops) && c->stops[n] != NULL) {
        out[n] = mx_str_of(c->stops[n]);
        n++;
    }
    return n;
}

/* Feeds the input in pieces chosen by `seed` (0 = one byte each, 1 = whole). */
static void feed(const text_case *c, uint32_t seed, mx_buf *out, bool *stopped)
{
    mx_str stops[4];
    mx_text t;
    mx_text_init(&t, stops, n_stops_of(c, stops));
    *stopped = false;
    for (size_t at = 0; at < c->input_len && !*stopped;) {
        size_t n = 1;
        if (seed == 1) {
            n = c->input_len;
        } else if (seed > 1) {
            seed = seed * 1664525u + 1013904223u;
            n = 1 + (seed >> 24) % 4;
        }
        n = mx_min_size(n, c->input_len - at);
        *stopped = mx_text_push(&t, (mx_str){c->input + at, n}, out);
        assert_true(mx_utf8_valid(out->ptr ? out->ptr : "", out->len));
        at += n;
    }
    if (!*stopped) {
        *stopped = mx_text_finish(&t, out);
    }
    assert_false(mx_text_failed(&t));
    assert_int_equal(t.n_released, out->len);
    assert_int_equal(t.stop.len > 0, *stopped);
    mx_text_free(&t);
}

static void any_cut_gives_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        const text_case *c = &cases[i];
        for (uint32_t seed = 0; seed < 50; seed++) {
            mx_buf out = {0};
            bool stopped;
            feed(c, seed, &out, &stopped);
            size_t want = c->input_len == 3 && c->input[1] == '\0' ? 3 : strlen(c->expected);
            const char *bytes = want == 3 && c->input[1] == '\0' ? c->input : c->expected;
            if (out.len != want || memcmp(out.ptr ? out.ptr : "", bytes, want) != 0 ||
                stopped != c->stopped)
            {
                fail_msg("%s, seed %u: expected \"%s\" (stop %d), came \"%s\" (stop %d)", c->what,
                         seed, c->expected, c->stopped, out.ptr ? out.ptr : "", stopped);
            }
            mx_buf_free(&out);
        }
    }
}

/* What cannot become a stop string must not wait. */
static void text_is_not_held_without_need(void **state)
{
    (void)state;
    mx_str stop = MX_STR("STOP");
    mx_text t;
    mx_text_init(&t, &stop, 1);
    mx_buf out = {0};
    assert_false(mx_text_push(&t, MX_STR("hello S"), &out));
    assert_string_equal(out.ptr, "hello ");
    assert_false(mx_text_push(&t, MX_STR("un"), &out));
    assert_string_equal(out.ptr, "hello Sun");
    assert_false(mx_text_push(&t, MX_STR("\xe2\x82"), &out));
    assert_string_equal(out.ptr, "hello Sun");
    assert_false(mx_text_push(&t, MX_STR("\xac"), &out));
    assert_string_equal(out.ptr, "hello Sun\xe2\x82\xac");
    mx_buf_free(&out);
    mx_text_free(&t);
}

/* Of several that end at one place the longest was meant. */
static void the_stop_string_is_named(void **state)
{
    (void)state;
    mx_str stops[] = {MX_STR("no"), MX_STR("op"), MX_STR("stop")};
    for (size_t first = 0; first < MX_COUNT(stops); first++) {
        mx_str order[3] = {stops[first], stops[(first + 1) % 3], stops[(first + 2) % 3]};
        mx_text t;
        mx_buf out = {0};
        mx_text_init(&t, order, 3);
        assert_false(mx_text_push(&t, MX_STR("a st"), &out));
        assert_int_equal(t.stop.len, 0);
        assert_true(mx_text_push(&t, MX_STR("op no"), &out));
        assert_true(mx_str_eq(t.stop, MX_STR("stop")));
        mx_buf_free(&out);
        mx_text_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_the_same),
        cmocka_unit_test(text_is_not_held_without_need),
        cmocka_unit_test(the_stop_string_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
