/* SPDX-License-Identifier: MIT
 *
 * hybrid_model.h: a tiny random model with recurrent layers, made by the reference script of the
 * shared folder.
 */
#ifndef MX_HYBRID_MODEL_H
#define MX_HYBRID_MODEL_H

#include "test_env.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The script gives it a context of 512 tokens; nothing in the file depends on that but the number. */
MX_UNUSED static bool hybrid_extend(const char *path, uint32_t n_ctx)
{
    static const char key[] = "qwen35.context_length"; /* then u32 type, u32 value */
    static char head[1 << 16];
    FILE *f = fopen(path, "r+b");
    if (f == NULL) {
        return false;
    }
    size_t n = fread(head, 1, sizeof head, f);
    uint8_t value[4];
    mx_put_le32(value, n_ctx);
    bool ok = false;
    for (size_t i = 0; !ok && i + sizeof key + 8 < n; i++) {
        if (memcmp(head + i, key, sizeof key - 1) == 0) {
            ok = fseek(f, (long)(i + sizeof key - 1 + 4), SEEK_SET) == 0
                 && fwrite(value, 1, 4, f) == 4;
        }
    }
    return fclose(f) == 0 && ok;
}

/* Writes it to path; false, and says why, when the script or numpy is missing. */
MX_UNUSED static bool hybrid_write(const char *path)
{
    const char *shared = mx_test_shared();
    if (shared == NULL) {
        return false;
    }
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    char command[4600];
    for (size_t i = 0; i < MX_COUNT(pythons); i++) {
        snprintf(command, sizeof command, "%s -c 'import numpy' 2>/dev/null", pythons[i]);
        if (system(command) != 0) {
            continue;
        }
        snprintf(command, sizeof command,
                 "PYTHONDONTWRITEBYTECODE=1 %s '%s/reference/gen/gen_qwen35.py' '%s' dense >/dev/null",
                 pythons[i], shared, path);
        return system(command) == 0 && hybrid_extend(path, 4096);
    }
    printf("missing: python3 with numpy\n");
    return false;
}

#endif
