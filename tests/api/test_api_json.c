/* SPDX-License-Identifier: MIT
 *
 * Strict JSON: what is accepted, what is refused and where, numbers beyond 64 bits, typed fields.
 */
#include "api/api_json.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static mx_err parse(const char *text, size_t len, struct json_object **out, mx_errbuf *eb)
{
    *eb = (mx_errbuf){0};
    return mx_json_parse(out, (mx_str){text, len}, eb);
}

static void expect_error(const char *text, size_t len, mx_err code, const char *words)
{
    struct json_object *o;
    mx_errbuf eb;
    mx_err e = parse(text, len, &o, &eb);
    if (e != code || strstr(eb.text, words) == NULL) {
        fail_msg("%.60s: expected %s with \"%s\", got %s with \"%s\"", text, mx_err_name(code),
                 words,
                 mx_err_name(e), eb.text);
    }
    assert_null(o);
}

static void accepts_json(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}", "[]", "0", "-0", "1.5e+3", "\"\"", "null", "true", " \r\n\t{ \"a\" : [ 1 , 2 ] } \n",
        "\"\\ud83d\\ude00 \\u0000 \\/ \\b\"", "[[[[]]]]", "{\"a\":{\"b\":{}}}", "-1.25E-7",
    };
    for (size_t i = 0; i < MX_COUNT(good); i++) {
        struct json_object *o;
        mx_errbuf eb;
        mx_err e = parse(good[i], strlen(good[i]), &o, &eb);
        if (e != MX_OK) {
            fail_msg("%s was refused: %s", good[i], eb.text);
        }
        json_object_put(o);
    }
}

static void refuses_what_is_not_json(void **state)
{
    (void)state;
    static const struct { const char *text, *words; } bad[] = {
        {"", "empty"}, {" ", "value was expected"}, {"{", "key in double quotes"},
        {"[1,]", "line 1, column 4"}, {"{\"a\":1,}", "key in double quotes"}, {"{a:1}", "key"},
        {"{\"a\" 1}", "':'"}, {"{\"a\":}", "value"}, {"[1 2]", "',' or ']'"},
        {"{\"a\":1 \"b\":2}", "',' or '}'"}, {"[1", "',' or ']'"}, {"[1}", "',' or ']'"},
        {"1 2", "follows"}, {"{}x", "follows"}, {"NaN", "NaN"}, {"[Infinity]", "Infinity"},
        {"-Infinity", "digit"}, {"01", "start with 0"}, {"-01", "start with 0"}, {"1.", "decimal"},
        {".5", "value was expected"}, {"+1", "value was expected"}, {"1e", "exponent"},
        {"0x10", "follows"}, {"'a'", "value was expected"}, {"\"a", "inside a string"},
        {"\"\\x\"", "escape"}, {"\"\\u12g4\"", "hexadecimal"}, {"\"\\u12", "hexadecimal"},
        {"\"a\nb\"", "control character"}, {"True", "value was expected"}, {"nul", "value"},
        {"/*c*/1", "value was expected"}, {"\"\xff\"", "UTF-8"}, {"\"\xed\xa0\x80\"", "UTF-8"},
        {"\"\xc0\xaf\"", "UTF-8"}, {"{\"a\\u0000b\":1}", "\\u0000"},
        {"\n\n [1,\n  tru]", "line 4, column 3"},
    };
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        expect_error(bad[i].text, strlen(bad[i].text), MX_E_FORMAT, bad[i].words);
    }
    expect_error("\"a\0b\"", 5, MX_E_FORMAT, "control character");
}

static void limits_depth_and_count(void **state)
{
    (void)state;
    enum { N = MX_JSON_MAX_DEPTH };
    char text[2 * N + 3];
    for (int extra = 0; extra <= 1; extra++) {
        size_t n = N + (size_t)extra;
        memset(text, '[', n);
        memset(text + n, ']', n);
        struct json_object *o;
        mx_errbuf eb;
        mx_err e = parse(text, 2 * n, &o, &eb);
        if (e != (extra ? MX_E_LIMIT : MX_OK)) {
            fail_msg("%zu levels gave %s: %s", n, mx_err_name(e), eb.text);
        }
        json_object_put(o);
    }
    size_t n = (size_t)2 * MX_JSON_MAX_VALUES + 1;
    char *many = mx_alloc(n + 1);
    assert_non_null(many);
    many[0] = '[';
    for (size_t i = 0; i < MX_JSON_MAX_VALUES; i++) {
        many[1 + 2 * i] = '1';
        many[2 + 2 * i] = i + 1 < MX_JSON_MAX_VALUES ? ',' : ']';
    }
    many[n] = '\0';
    expect_error(many, n, MX_E_LIMIT, "values");
    mx_free(many);
}

static void keeps_numbers_and_order(void **state)
{
    (void)state;
    static const char *const numbers[] = {
        "1.50", "18446744073709551615", "18446744073709551616", "-9223372036854775808",
        "-9223372036854775809", "123456789012345678901234567890", "1e400", "5e0", "0.10",
    };
    for (size_t i = 0; i < MX_COUNT(numbers); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"z\":%s,\"a\":[%s]}", numbers[i], numbers[i]);
        struct json_object *o;
        mx_errbuf eb;
        assert_int_equal(parse(text, strlen(text), &o, &eb), MX_OK);
        mx_str t = mx_json_number_text(mx_json_field(o, "z"));
        if (!mx_str_eq(t, mx_str_of(numbers[i]))) {
            fail_msg("%s came back as %.*s", numbers[i], (int)t.len, t.ptr);
        }
        t = mx_json_number_text(json_object_array_get_idx(mx_json_field(o, "a"), 0));
        assert_true(mx_str_eq(t, mx_str_of(numbers[i])));
        json_object_put(o);
    }
    struct json_object *o;
    mx_errbuf eb;
    const char *text = "{\"z\":1,\"a\":2,\"m\":3,\"z\":4}";
    assert_int_equal(parse(text, strlen(text), &o, &eb), MX_OK);
    assert_string_equal(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN),
                        "{\"z\":4,\"a\":2,\"m\":3}");
    json_object_put(o);
}

static void replaces_lone_surrogates(void **state)
{
    (void)state;
    static const char *const texts[] = {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"",
                                        "\"\\ud83d\\ud83d\\ude00\"", "\"\\ud83dx\""};
    static const char *const want[] = {"\xef\xbf\xbd", "\xef\xbf\xbd", "\xef\xbf\xbd" "A",
                                       "\xef\xbf\xbd\xf0\x9f\x98\x80", "\xef\xbf\xbdx"};
    for (size_t i = 0; i < MX_COUNT(texts); i++) {
        struct json_object *o;
        mx_errbuf eb;
        assert_int_equal(parse(texts[i], strlen(texts[i]), &o, &eb), MX_OK);
        assert_string_equal(json_object_get_string(o), want[i]);
        json_object_put(o);
    }
}

static void typed_fields(void **state)
{
    (void)state;
    const char *text = "{\"i\":3,\"f\":2.0,\"frac\":2.5,\"huge\":1e400,\"s\":\"x\",\"b\":true,"
                       "\"n\":null,\"big\":1e30}";
    struct json_object *o;
    mx_errbuf eb;
    assert_int_equal(parse(text, strlen(text), &o, &eb), MX_OK);
    int64_t i = -7;
    double d = -7;
    bool b = false;
    mx_problem p = {0};
    assert_true(mx_json_get_int(o, "i", 0, 10, &i, &p) && i == 3);
    assert_true(mx_json_get_int(o, "f", 0, 10, &i, &p) && i == 2);
    assert_true(mx_json_get_int(o, "n", 0, 10, &i, &p) && i == 2);
    assert_true(mx_json_get_int(o, "absent", 0, 10, &i, &p) && i == 2);
    assert_true(mx_json_get_bool(o, "b", &b, &p) && b);
    assert_int_equal(p.status, 0);
    static const char *const bad_ints[] = {"frac", "huge", "s", "b", "big"};
    for (size_t k = 0; k < MX_COUNT(bad_ints); k++) {
        mx_problem q = {0};
        assert_false(mx_json_get_int(o, bad_ints[k], 0, 10, &i, &q));
        assert_int_equal(q.status, 400);
        assert_string_equal(q.param, bad_ints[k]);
    }
    static const char *const bad_doubles[] = {"huge", "s", "b", "big"};
    for (size_t k = 0; k < MX_COUNT(bad_doubles); k++) {
        mx_problem q = {0};
        assert_false(mx_json_get_double(o, bad_doubles[k], 0, 10, &d, &q));
        assert_string_equal(q.param, bad_doubles[k]);
    }
    assert_false(mx_json_get_bool(o, "i", &b, &p));
    assert_false(mx_json_get_bool(o, "s", &b, &p)); /* the first problem stays */
    assert_string_equal(p.param, "i");
    json_object_put(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_json),
        cmocka_unit_test(refuses_what_is_not_json),
        cmocka_unit_test(limits_depth_and_count),
        cmocka_unit_test(keeps_numbers_and_order),
        cmocka_unit_test(replaces_lone_surrogates),
        cmocka_unit_test(typed_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
