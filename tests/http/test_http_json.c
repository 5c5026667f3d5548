/* SPDX-License-Identifier: MIT
 *
 * JSON strings and error objects.
 */
#include "http_client.h"

static void check_string(const char *in, size_t len, const char *want)
{
    mx_buf out = {0};
    mx_http_json_string(&out, in, len);
    assert_false(out.failed);
    assert_string_equal(out.ptr, want);
    mx_buf_free(&out);
}

static void test_escapes(void **state)
{
    (void)state;
    check_string("", 0, "\"\"");
    check_string("plain", 5, "\"plain\"");
    check_string("a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\"");
    check_string("\n\r\t\b\f", 5, "\"\\n\\r\\t\\b\\f\"");
    check_string("\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\"");
    check_string("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 9,
                 "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
}

static void test_ill_formed(void **state)
{
    (void)state;
    check_string("a\xFFz", 3, "\"a\xEF\xBF\xBDz\"");
    check_string("\xC3", 1, "\"\xEF\xBF\xBD\"");
    check_string("\xE2\x82", 2, "\"\xEF\xBF\xBD\"");
    check_string("\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""); /* a surrogate */
    check_string("\xC0\xAF", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");             /* overlong */
    check_string("\xEF\xBF\xBD", 3, "\"\xEF\xBF\xBD\"");                     /* the real one */
    check_string("x\xE2\x82\"", 4, "\"x\xEF\xBF\xBD\\\"\"");
}

static void test_error_body(void **state)
{
    (void)state;
    mx_buf out = {0};
    mx_http_error_body(&out, 400, "no \"x\"", "messages[0]", NULL);
    assert_string_equal(out.ptr, "{\"error\":{\"message\":\"no \\\"x\\\"\","
                                 "\"type\":\"invalid_request_error\",\"param\":\"messages[0]\","
                                 "\"code\":null}}");
    static const struct {
        unsigned status;
        const char *type;
    } types[] = {{400, "invalid_request_error"}, {401, "authentication_error"},
                 {403, "permission_error"},      {404, "invalid_request_error"},
                 {413, "invalid_request_error"}, {429, "rate_limit_error"},
                 {500, "server_error"},          {503, "unavailable_error"}};
    for (size_t i = 0; i < MX_COUNT(types); i++) {
        mx_buf_clear(&out);
        mx_http_error_body(&out, types[i].status, "m", NULL, "c");
        if (strstr(out.ptr, types[i].type) == NULL) {
            print_message("status %u: expected %s, came %s\n", types[i].status, types[i].type,
                          out.ptr);
            fail();
        }
    }
    mx_buf_free(&out);
}

/* Every allocation on the way may fail: then the buffer says so and nothing else happens. */
static void test_no_memory(void **state)
{
    (void)state;
    for (uint64_t k = 1; k < 4; k++) {
        mx_buf out = {0};
        mx_mem_fail_at(k);
        mx_http_error_body(&out, 500, "a long message that needs several allocations to be built: "
                           "0123456789012345678901234567890123456789", "p", "c");
        mx_mem_fail_at(0);
        assert_true(out.failed || k > 1);
        mx_buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_ill_formed),
        cmocka_unit_test(test_error_body),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
