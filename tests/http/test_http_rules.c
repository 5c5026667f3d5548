/* SPDX-License-Identifier: MIT
 *
 * The pure rules: paths, Host, Origin.
 */
#include "http_client.h"

#include "http/http_internal.h"

static void test_paths(void **state)
{
    (void)state;
    static const struct {
        const char *in, *want; /* NULL = refused */
    } cases[] = {
        {"/", "/"},
        {"//", "/"},
        {"/v1/models", "/v1/models"},
        {"//v1///models//", "/v1/models"},
        {"/v1/models/?limit=1000", "/v1/models"},
        {"/v1/models?beta=true", "/v1/models"},
        {"/?x=//", "/"},
        {"/a#b", "/a"},
        {"/a%20b", "/a b"},
        {"/%2Fv1%2f", "/v1"},
        {"/caf%C3%A9", "/caf\xC3\xA9"},
        {"/%E9", NULL},
        {"/%00", NULL},
        {"/%0a", NULL},
        {"/%7f", NULL},
        {"/%", NULL},
        {"/%4", NULL},
        {"/%zz", NULL},
        {"/%4?", NULL},
        {"/%41", "/A"},
        {"", NULL},
        {"v1/models", NULL},
        {"*", "*"},
        {"http://localhost:8000/v1/models", "/v1/models"},
        {"http://localhost:8000", "/"},
        {"http://localhost?x", "/"},
        {"ftp://localhost/", NULL},
        {"/\xff", NULL},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        char *out = http_normalise_path(cases[i].in);
        bool is_same = out == NULL || cases[i].want == NULL ? out == cases[i].want
                                                            : strcmp(out, cases[i].want) == 0;
        if (!is_same) {
            print_message("'%s': expected %s, came %s\n", cases[i].in,
                          cases[i].want ? cases[i].want : "(refused)", out ? out : "(refused)");
        }
        assert_true(is_same);
        mx_free(out);
    }
}

static void test_hosts(void **state)
{
    (void)state;
    const char *hosts[] = {"box.lan", "proxy.example:8443"};
    mx_http_config cfg = {.host = "myname", .hosts = hosts, .n_hosts = 2};
    static const struct {
        const char *in;
        bool want;
    } cases[] = {
        {"localhost", true}, {"LOCALHOST:8000", true}, {"127.0.0.1:1", true}, {"127.9.9.9", true},
        {"[::1]", true}, {"[::1]:8000", true}, {"192.168.1.5:8000", true}, {"[fe80::1]:1", true},
        {"a.localhost", true}, {".localhost", false}, {"myname:9", true}, {"box.lan", true},
        {"Box.Lan:8000", true}, {"proxy.example:8443", true}, {"proxy.example", false},
        {"evil.example", false}, {"localhost.evil.example", false},
        {"127.0.0.1.evil.example", false},
        {"evil.example:8000", false}, {"", false}, {":8000", false}, {"[::1", false},
        {"[::1]x", false}, {"localhost:80x", false}, {"localhost@evil", false}, {"0", false},
        {"2130706433", false}, {"xlocalhost", false}, {"box.lan.evil", false},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        bool got = http_host_allowed(&cfg, mx_str_of(cases[i].in));
        if (got != cases[i].want) {
            print_message("Host '%s': expected %d, came %d\n", cases[i].in, cases[i].want, got);
        }
        assert_true(got == cases[i].want);
    }
    const char *any[] = {"*"};
    cfg = (mx_http_config){.host = "127.0.0.1", .hosts = any, .n_hosts = 1};
    assert_true(http_host_allowed(&cfg, MX_STR("evil.example")));
}

static void test_origins(void **state)
{
    (void)state;
    const char *origins[] = {"https://app.example", "vscode-webview://abc"};
    mx_http_config cfg = {.host = "127.0.0.1", .origins = origins, .n_origins = 2};
    static const struct {
        const char *in, *host;
        bool want;
    } cases[] = {
        {"http://localhost:3000", "127.0.0.1:8000", true},
        {"https://localhost", "127.0.0.1:8000", true},
        {"http://127.0.0.1:5173", "127.0.0.1:8000", true},
        {"http://[::1]:5173", "127.0.0.1:8000", true},
        {"https://app.example", "127.0.0.1:8000", true},
        {"HTTPS://APP.example", "127.0.0.1:8000", true},
        {"https://app.example:444", "127.0.0.1:8000", false},
        {"http://app.example", "127.0.0.1:8000", false},
        {"vscode-webview://abc", "127.0.0.1:8000", true},
        {"http://192.168.1.5:8000", "192.168.1.5:8000", true},
        {"http://192.168.1.5:9000", "192.168.1.5:8000", false},
        {"http://192.168.1.6:8000", "127.0.0.1:8000", false},
        {"http://evil.example", "127.0.0.1:8000", false},
        {"http://localhost.evil.example", "127.0.0.1:8000", false},
        {"http://localhost@evil.example", "127.0.0.1:8000", false},
        {"http://localhost/x", "127.0.0.1:8000", false},
        {"null", "127.0.0.1:8000", false},
        {"file://", "127.0.0.1:8000", false},
        {"", "127.0.0.1:8000", false},
        {"http://", "", false},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        bool got = http_origin_allowed(&cfg, mx_str_of(cases[i].in), mx_str_of(cases[i].host));
        if (got != cases[i].want) {
            print_message("Origin '%s': expected %d, came %d\n", cases[i].in, cases[i].want, got);
        }
        assert_true(got == cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
