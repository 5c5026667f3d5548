/* SPDX-License-Identifier: MIT
 *
 * test_env.h: where the optional material of the tests is. Both functions return NULL when it is
 * absent and print what is missing; then the test ends with mx_skip_or_fail, or mx_skip_no_model. For
 * main threads only.
 */
#ifndef MX_TEST_ENV_H
#define MX_TEST_ENV_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* In CI everything is there that any test needs: a test that cannot run says that CI is broken. */
__attribute__((unused)) static bool mx_test_is_ci(void)
{
    const char *ci = getenv("CI");
    return ci != NULL && ci[0] != '\0';
}

/* Ends a test (of cmocka, whose header the user includes) that lacks what it needs: a skip that is
 * seen, a failure in CI. */
#define mx_skip_or_fail(reason)                                                                    \
    do {                                                                                           \
        if (mx_test_is_ci()) {                                                                     \
            fail_msg("%s (in CI that is a failure)", reason);                                      \
        }                                                                                          \
        print_message("SKIPPED: %s\n", reason);                                                    \
        skip();                                                                                    \
    } while (0)

/* The same where mx_test_model gave nothing; leaving it out on purpose is no failure. */
#define mx_skip_no_model()                                                                         \
    do {                                                                                           \
        if (getenv("MTPLX_TEST_TINY") != NULL) {                                                   \
            skip();                                                                                \
        }                                                                                          \
        mx_skip_or_fail("the default model is missing");                                           \
    } while (0)

/* The folder with vectors and reference scripts: $MTPLX_SHARED, else ../shared beside the source
 * root, which is the working folder of every test. */
__attribute__((unused)) static const char *mx_test_shared(void)
{
    const char *path = getenv("MTPLX_SHARED");
    path = path != NULL && path[0] != '\0' ? path : "../shared";
    if (access(path, R_OK) == 0) {
        return path;
    }
    printf("missing: %s (set MTPLX_SHARED to the folder with vectors/ and reference/)\n", path);
    return NULL;
}

/* The default model's file: $MTPLX_TEST_MODEL, else where `make start` puts it. Nothing when
 * $MTPLX_TEST_TINY is set: for tests that would take an emulator ten minutes. */
__attribute__((unused)) static const char *mx_test_model(void)
{
    static char path[4096];
    const char *named = getenv("MTPLX_TEST_MODEL");
    const char *home = getenv("HOME");
    if (getenv("MTPLX_TEST_TINY") != NULL) {
        printf("left out: the default model (MTPLX_TEST_TINY is set)\n");
        return NULL;
    }
    if (named != NULL && named[0] != '\0') {
        snprintf(path, sizeof path, "%s", named);
    } else {
        snprintf(path, sizeof path, "%s/.mtplx/models/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home != NULL ? home : "");
    }
    if (access(path, R_OK) == 0) {
        return path;
    }
    printf("missing: %s (set MTPLX_TEST_MODEL to the default model's file)\n", path);
    return NULL;
}

#endif
