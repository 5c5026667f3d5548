/* SPDX-License-Identifier: MIT
 *
 * Keys from files: what counts as one, what is refused, and that no message repeats a key.
 */
#include "base/mem.h"
#include "cli/cli_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];

static void put(const char *text, unsigned mode)
{
    snprintf(path, sizeof path, "/tmp/mtplx-keys-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static mx_err read_keys(mx_settings *s, const char *admin, const char *key, mx_errbuf *eb)
{
    char *argv[8] = {(char *)(uintptr_t)"--api-key-file", path};
    int n = 2;
    if (admin != NULL) {
        argv[n++] = (char *)(uintptr_t)"--admin-key";
        argv[n++] = (char *)(uintptr_t)admin;
    }
    if (key != NULL) {
        argv[n++] = (char *)(uintptr_t)"--api-key";
        argv[n++] = (char *)(uintptr_t)key;
    }
    *eb = (mx_errbuf){{0}};
    assert_int_equal(mx_settings_parse(s, n, argv, eb), MX_OK);
    return mx_cli_read_api_keys(s, eb);
}

static void lines(void **state)
{
    (void)state;
    mx_settings s;
    mx_errbuf eb;
    put("# mine\n\nkey-one\r\nkey-two  \n  # no\n", 0600);
    /* "  # no" is no comment: it begins with a space, and has one in it. */
    assert_int_equal(read_keys(&s, NULL, NULL, &eb), MX_E_INVALID);
    assert_non_null(strstr(eb.text, "line 5"));
    mx_settings_free(&s);
    unlink(path);
    put("# mine\n\nkey-one\r\nkey-two  \nkey#three", 0600);
    assert_int_equal(read_keys(&s, "admin", "key-zero", &eb), MX_OK);
    static const char *const want[] = {"key-zero", "key-one", "key-two", "key#three"};
    assert_int_equal(s.api_keys.n, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(s.api_keys.items[i], want[i]);
    }
    mx_buf json = {0};
    mx_settings_json(&s, &json);
    assert_non_null(strstr(json.ptr, "\"api-key\":\"4 set\""));
    assert_non_null(strstr(json.ptr, "\"admin-key\":\"set\""));
    assert_null(strstr(json.ptr, "key-one"));
    assert_null(strstr(json.ptr, "\"admin\""));
    mx_buf_free(&json);
    mx_settings_free(&s);
    unlink(path);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned mode;
        const char *admin, *key, *words;
    } rows[] = {
        {"", 0600, NULL, NULL, "has no key"},
        {"\n# only words\n", 0600, NULL, "more", "has no key"},
        {"secret key\n", 0600, NULL, NULL, "line 1"},
        {"good\nsecret\x01key\n", 0600, NULL, NULL, "line 2"},
        {"good\n", 0622, NULL, NULL, "chmod 600"},
        {"good\n", 0644, NULL, NULL, "chmod 600"},
        {"good\n", 0640, NULL, NULL, "chmod 600"},
        {"secret\n", 0600, "secret", NULL, "also an API key"},
        {"good\n", 0600, "secret key", NULL, "--admin-key"},
        {"good\n", 0600, NULL, "secret key", "number 1"},
    };
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        mx_settings s;
        mx_errbuf eb;
        put(rows[i].text, rows[i].mode);
        mx_err e = read_keys(&s, rows[i].admin, rows[i].key, &eb);
        if (e != MX_E_INVALID || strstr(eb.text, rows[i].words) == NULL
            || strstr(eb.text, "secret") != NULL)
        {
            fail_msg("row %zu: expected \"%s\", got %s: %s", i, rows[i].words, mx_err_name(e),
                     eb.text);
        }
        mx_settings_free(&s);
        unlink(path);
    }
    mx_settings s;
    mx_errbuf eb;
    assert_int_equal(read_keys(&s, NULL, NULL, &eb), MX_E_NOT_FOUND); /* the file is gone */
    mx_settings_free(&s);
}

static void cache_keys(void **state)
{
    (void)state;
    mx_settings s;
    mx_errbuf eb;
    mx_hash256 a, b;
    put("key\n", 0600);
    assert_int_equal(read_keys(&s, NULL, NULL, &eb), MX_OK);
    s.ssd_mode = MX_COLD_OFF;
    assert_int_equal(mx_cli_cache_key(&s, "", &a, &eb), MX_OK);
    assert_int_equal(mx_cli_cache_key(&s, "", &b, &eb), MX_OK);
    assert_false(mx_hash256_eq(&a, &b)); /* no folder: a new one for each process */
    s.ssd_mode = MX_COLD_ON;
    mx_log_set_level(MX_LOG_ERROR);
    assert_int_equal(mx_cli_cache_key(&s, "/dev/null/folder", &a, &eb), MX_OK);
    assert_false(mx_hash256_eq(&a, &b));
    s.cache_key_file = mx_strdup("/proc/nonexistent");
    assert_int_equal(mx_cli_cache_key(&s, "/dev/null/folder", &a, &eb), MX_E_NOT_FOUND);
    mx_settings_free(&s);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines), cmocka_unit_test(refusals), cmocka_unit_test(cache_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
