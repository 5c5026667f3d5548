/* SPDX-License-Identifier: MIT
 *
 * The table of small templates (template_cases.json, written by make_template_cases.py with
 * Jinja2): every statement, operator, filter, test and method, every rule of white space.
 */
#include "template_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { NOW_S = 1785067200 }; /* 2026-07-26 12:00 UTC, as in the script */

static bool check(struct json_object *c, struct json_object *context)
{
    struct json_object *source, *own, *expected = NULL, *error = NULL;
    json_object_object_get_ex(c, "template", &source);
    json_object_object_get_ex(c, "expected", &expected);
    json_object_object_get_ex(c, "error", &error);
    if (json_object_object_get_ex(c, "context", &own)) {
        context = own;
    }
    const char *text = json_object_get_string(source);
    const char *want = expected != NULL ? json_object_get_string(expected) : NULL;
    const char *words = error != NULL ? json_object_get_string(error) : "";
    case_run run;
    case_render(&run, mx_str_of(text), context, NOW_S, NULL);
    mx_err err = run.parse_err != MX_OK ? run.parse_err : run.err;
    const char *got = run.out.text.ptr != NULL ? run.out.text.ptr : "";
    bool ok = want != NULL ? err == MX_OK && strcmp(got, want) == 0 : err != MX_OK;
    if (ok && want == NULL && words[0] != '\0') {
        ok = run.out.is_template_error && strcmp(run.eb.text, words) == 0;
    }
    if (!ok) {
        print_message("template %s\n  expected %s\n  got      %s\n",
                      json_object_to_json_string(source),
                      want != NULL ? want : words[0] != '\0' ? words : "(an error)",
                      err != MX_OK ? run.eb.text : got);
    }
    mx_rendered_free(&run.out);
    return ok;
}

static void small_templates_render_as_in_jinja(void **state)
{
    (void)state;
    struct json_object *table = json_object_from_file("tests/text/template_cases.json");
    struct json_object *cases, *context;
    assert_non_null(table);
    json_object_object_get_ex(table, "cases", &cases);
    json_object_object_get_ex(table, "context", &context);
    size_t n = json_object_array_length(cases), failed = 0;
    for (size_t i = 0; i < n; i++) {
        failed += !check(json_object_array_get_idx(cases, i), context);
    }
    json_object_put(table);
    print_message("%zu templates, %zu differ\n", n, failed);
    assert_true(n > 300);
    assert_int_equal(failed, 0);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(small_templates_render_as_in_jinja)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
