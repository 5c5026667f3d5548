/* SPDX-License-Identifier: MIT
 *
 * test_env.h: where the optional material of the tests is. Both functions return NULL when it is
 * absent and print what is missing, so that a test can skip visibly. For main threads only.
 */
#ifndef MX_TEST_ENV_H
#define MX_TEST_ENV_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

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
