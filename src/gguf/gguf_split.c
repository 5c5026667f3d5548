/* SPDX-License-Identifier: MIT
 *
 * A model in several files. Part i of n is named NAME-<i>-of-<n>.gguf, five digits each, counted from
 * one, and says in its own keys which part it is (split.no, from zero), of how many (split.count), and
 * how many tensors all have together (split.tensors.count). Name and keys must agree: a part that was
 * renamed, mixed up or left behind by another model is named in the error instead of giving a model
 * with foreign weights.
 */
#include "base/mem.h"
#include "gguf/gguf_file.h"

#include <stdio.h>
#include <stdlib.h>

enum { SUFFIX_CAP = 64 };

static void suffix_of(char out[SUFFIX_CAP], uint64_t no, uint64_t n)
{
    snprintf(out, SUFFIX_CAP, "-%05llu-of-%05llu.gguf", (unsigned long long)no + 1,
             (unsigned long long)n);
}

char *gguf_part_path(const char *path, uint64_t given, uint64_t no, uint64_t n, mx_errbuf *eb)
{
    char old[SUFFIX_CAP], wanted[SUFFIX_CAP];
    suffix_of(old, given, n);
    suffix_of(wanted, no, n);
    const size_t len = strlen(path), n_old = strlen(old);
    if (len < n_old || strcmp(path + len - n_old, old) != 0) {
        mx_fail(eb, MX_E_FORMAT, "this is part %llu of a model split into %llu files, so its name must "
                "end in %s: give all parts the names back that they had",
                (unsigned long long)given + 1, (unsigned long long)n, old);
        return NULL;
    }
    /* The suffixes are equally long: counts and numbers have five digits. */
    char *out = mx_strndup(path, len);
    if (out == NULL) {
        mx_fail(eb, MX_E_NOMEM, "not enough memory to open a model file");
        return NULL;
    }
    memcpy(out + len - n_old, wanted, strlen(wanted));
    return out;
}

uint64_t mx_gguf_files_bytes(const char *path)
{
    static const char shape[] = "-ddddd-of-ddddd.gguf";
    struct stat st;
    const size_t len = strlen(path), n_shape = sizeof shape - 1;
    const char *end = len > n_shape ? path + len - n_shape : NULL;
    for (size_t i = 0; end != NULL && i < n_shape; i++) {
        bool fits = shape[i] == 'd' ? end[i] >= '0' && end[i] <= '9' : end[i] == shape[i];
        end = fits ? end : NULL;
    }
    if (end == NULL) {
        return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    }
    uint64_t sum = 0;
    const uint64_t no = strtoull(end + 1, NULL, 10), n = strtoull(end + 10, NULL, 10);
    for (uint64_t i = 0; no > 0 && i < n; i++) {
        char *part = gguf_part_path(path, no - 1, i, n, NULL);
        sum += part != NULL && stat(part, &st) == 0 ? (uint64_t)st.st_size : 0;
        mx_free(part);
    }
    return sum;
}

static mx_err check_part(const mx_gguf *first, const mx_gguf *part, size_t i, size_t n_parts,
                         mx_errbuf *eb)
{
    if (part->n_split != n_parts) {
        return mx_fail(eb, MX_E_FORMAT, "part %zu of %zu says that its model has %llu: the parts are "
                       "not of one model", i + 1, n_parts, (unsigned long long)part->n_split);
    }
    if (part->split_no != i) {
        return mx_fail(eb, MX_E_FORMAT, "part %zu of %zu says that it is part %llu: the files were "
                       "renamed or mixed up", i + 1, n_parts,
                       (unsigned long long)part->split_no + 1);
    }
    if (part->split_tensors != first->split_tensors) {
        return mx_fail(eb, MX_E_FORMAT, "part %zu of %zu belongs to a model of %llu tensors, part 1 to "
                       "one of %llu: the parts are not of one model", i + 1, n_parts,
                       (unsigned long long)part->split_tensors,
                       (unsigned long long)first->split_tensors);
    }
    return MX_OK;
}

mx_err gguf_join(mx_gguf **parts, size_t n_parts, mx_errbuf *eb)
{
    mx_gguf *g = parts[0];
    mx_gguf **more = mx_calloc(n_parts, sizeof *more);
    mx_err e = MX_OK;
    if (more == NULL) {
        e = mx_fail(eb, MX_E_NOMEM, "not enough memory for %zu parts", n_parts);
    }
    for (size_t i = 0; i < n_parts && e == MX_OK; i++) {
        e = check_part(g, parts[i], i, n_parts, eb);
    }
    for (size_t i = 1; i < n_parts; i++) {
        if (more != NULL) {
            more[i - 1] = parts[i];
        } else {
            mx_gguf_close(parts[i]);
        }
        parts[i] = NULL;
    }
    g->more = more;
    g->n_more = more != NULL ? n_parts - 1 : 0;
    MX_TRY(e);
    MX_TRY(gguf_merge_tensors(g, eb));
    if (g->n_tensors != g->split_tensors) {
        return mx_fail(eb, MX_E_FORMAT, "the %zu parts have %zu tensors, but there should be %llu: a "
                       "part is of another model or damaged", n_parts, g->n_tensors,
                       (unsigned long long)g->split_tensors);
    }
    return MX_OK;
}
