/* SPDX-License-Identifier: MIT
 *
 * Published chat templates against what the Python stack makes of them: the same text, or, where
 * the template itself refuses, the same words; where Python fails, a failure.
 */
#include "template_case.h"
#include "test_env.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

static size_t n_cases, n_failed, n_excused;

/* Cases that differ on purpose. The Python sandbox refuses list.append; templates that use it could
 * then never be given a tool call, so it is allowed here (test_template_cases checks the
 * outcome). */
static bool is_excused(struct json_object *c)
{
    struct json_object *cls;
    return json_object_object_get_ex(c, "error_class", &cls) &&
           strcmp(json_object_get_string(cls), "SecurityError") == 0;
}

static void report(const char *file, const char *name, const char *what, const char *expected,
                   const char *got)
{
    n_failed++;
    if (n_failed > 10) {
        return;
    }
    size_t same = 0;
    while (expected[same] != '\0' && expected[same] == got[same]) {
        same++;
    }
    size_t from = same > 60 ? same - 60 : 0;
    print_message("%s, case %s: %s; they differ at byte %zu\n"
                  "  expected ...%.200s\n  got      ...%.200s\n",
                  file, name, what, same, expected + from, got + from);
}

static void check_case(const char *file, mx_str source, struct json_object *c, int64_t now_s)
{
    struct json_object *name, *input, *expected, *error, *cls;
    json_object_object_get_ex(c, "name", &name);
    json_object_object_get_ex(c, "input", &input);
    const char *label = json_object_get_string(name);
    case_run run;
    n_cases++;
    if (is_excused(c)) {
        n_excused++;
        return;
    }
    case_render(&run, source, input, now_s, NULL);
    const char *got = run.out.text.ptr != NULL ? run.out.text.ptr : "";
    if (run.parse_err != MX_OK) {
        report(file, label, "the template does not parse", "", run.eb.text);
    } else if (json_object_object_get_ex(c, "expected", &expected)) {
        const char *want = json_object_get_string(expected);
        size_t len = (size_t)json_object_get_string_len(expected);
        if (run.err != MX_OK) {
            report(file, label, "it failed", want, run.eb.text);
        } else if (run.out.text.len != len || memcmp(got, want, len) != 0) {
            report(file, label, "the texts are not equal", want, got);
        }
    } else {
        json_object_object_get_ex(c, "error", &error);
        json_object_object_get_ex(c, "error_class", &cls);
        bool own_words = strcmp(json_object_get_string(cls), "TemplateError") == 0;
        if (run.err == MX_OK) {
            report(file, label, "it should have failed", json_object_get_string(error), got);
        } else if (own_words != run.out.is_template_error) {
            report(file, label, "another kind of error", json_object_get_string(error),
                   run.eb.text);
        } else if (own_words && strcmp(json_object_get_string(error), run.eb.text) != 0) {
            report(file, label, "other words", json_object_get_string(error), run.eb.text);
        }
    }
    mx_rendered_free(&run.out);
}

static void check_file(const char *folder, const char *file)
{
    char path[8192];
    size_t len = 0;
    struct json_object *j, *cases, *name, *now;
    snprintf(path, sizeof path, "%s/expected/%s", folder, file);
    j = json_object_from_file(path);
    assert_non_null(j);
    json_object_object_get_ex(j, "template", &name);
    json_object_object_get_ex(j, "now", &now);
    json_object_object_get_ex(j, "cases", &cases);
    struct tm tm = {0};
    assert_non_null(strptime(json_object_get_string(now), "%Y-%m-%dT%H:%M:%SZ", &tm));
    snprintf(path, sizeof path, "%s/templates/%s", folder, json_object_get_string(name));
    char *source = case_read(path, &len);
    assert_non_null(source);
    size_t failed_before = n_failed;
    for (size_t i = 0; i < json_object_array_length(cases); i++) {
        check_case(file, (mx_str){source, len}, json_object_array_get_idx(cases, i), timegm(&tm));
    }
    if (n_failed > failed_before) {
        print_message("%s: %zu of %zu cases differ\n", file, n_failed - failed_before,
                      json_object_array_length(cases));
    }
    free(source);
    json_object_put(j);
}

static void published_templates_render_as_in_python(void **state)
{
    (void)state;
    const char *shared = mx_test_shared();
    char folder[4096];
    if (shared == NULL) {
        mx_skip_or_fail("the vectors are missing");
    }
    snprintf(folder, sizeof folder, "%s/vectors/templates", shared);
    char *expected = malloc(strlen(folder) + 16);
    sprintf(expected, "%s/expected", folder);
    DIR *d = opendir(expected);
    free(expected);
    if (d == NULL) {
        fail_msg("%s has no vectors/templates/expected", shared);
    }
    const char *only = getenv("MTPLX_TEMPLATE");
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        bool is_json = n > 5 && strcmp(e->d_name + n - 5, ".json") == 0;
        if (is_json && (only == NULL || strstr(e->d_name, only) != NULL)) {
            check_file(folder, e->d_name);
        }
    }
    closedir(d);
    print_message("%zu cases, %zu failed, %zu differ on purpose (list.append)\n", n_cases, n_failed,
                  n_excused);
    assert_true(n_cases > 0);
    assert_int_equal(n_failed, 0);
}

int main(void)
{
    setenv("TZ", "UTC", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_templates_render_as_in_python)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
