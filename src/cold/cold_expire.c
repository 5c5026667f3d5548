/* SPDX-License-Identifier: MIT
 *
 * What goes because time has passed: files that nobody uses, folders of models that nobody runs.
 *
 * A file's modification time is its last use (docs/file-format.md, section 6). Only pages and states are
 * given a new one by a reader, so a manifest is as young as the page that it is named after: without
 * it, after a restart, nobody would know what that page continues.
 */
#include "cold/cold_sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

static bool is_unused(const mx_sweep *s, const mx_swept_file *e)
{
    int64_t age = mx_swept_age_s(s, e);
    return age >= s->ttl_s && age >= s->delete_age_s;
}

static int compare_ids(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(mx_hash256));
}

void mx_sweep_mark_expired(const mx_sweep *s, bool *marked)
{
    mx_hash256 *used = s->ttl_s > 0 ? mx_alloc((s->n_files + 1) * sizeof *used) : NULL;
    if (used == NULL) {
        return; /* no time to live, or no memory: the next sweep */
    }
    size_t n_used = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        const mx_swept_file *e = &s->files[i];
        if (e->kind == MX_SWEPT_PAGE && !e->is_gone && !is_unused(s, e)) {
            used[n_used++] = e->id;
        }
    }
    if (n_used > 0) {
        qsort(used, n_used, sizeof *used, compare_ids);
    }
    for (size_t i = 0; i < s->n_files; i++) {
        const mx_swept_file *e = &s->files[i];
        bool is_object = e->kind == MX_SWEPT_PAGE || e->kind == MX_SWEPT_STATE;
        if (e->is_gone || !(is_object || e->kind == MX_SWEPT_SESSION) || !is_unused(s, e)) {
            continue;
        }
        marked[i] = is_object || n_used == 0
                    || bsearch(&e->id, used, n_used, sizeof *used, compare_ids) == NULL;
    }
    mx_free(used);
}

/* ---- folders ---------------------------------------------------------------------------------- */

static bool is_young(const mx_sweep *s, int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0
           && s->now_s - (int64_t)st.st_mtim.tv_sec < s->delete_age_s;
}

/* rmdir does not take what is not empty, so nothing can be lost here, whoever writes at the same
 * time: he finds the folder gone, and makes it again. */
static void remove_folders(const mx_cold_folder *f, int root, const char *name)
{
    mx_err err;
    int dir = mx_cold_open_dir(f->ops, root, name, false, &err, NULL);
    if (dir < 0) {
        return;
    }
    for (int i = 0; i < 256; i++) {
        char xx[3];
        snprintf(xx, sizeof xx, "%02x", (unsigned)i);
        (void)f->ops->unlink(dir, xx, AT_REMOVEDIR);
    }
    close(dir);
    (void)f->ops->unlink(root, name, AT_REMOVEDIR);
}

static void remove_root(const mx_sweep *s, const char *name)
{
    static const char *const kinds[] = {"sessions", "trash", "quarantine", "pages", "states"};
    const mx_cold_folder *f = s->f;
    mx_err err;
    int root = mx_cold_open_dir(f->ops, f->v1_fd, name, false, &err, NULL);
    if (root < 0) {
        return;
    }
    bool any_young = is_young(s, f->v1_fd, name); /* somebody is just making it */
    for (size_t i = 0; i < MX_COUNT(kinds); i++) {
        any_young |= is_young(s, root, kinds[i]);
    }
    bool is_left = any_young;
    for (size_t i = 0; !any_young && i < MX_COUNT(kinds); i++) {
        if (i < 3) {
            (void)f->ops->unlink(root, kinds[i], AT_REMOVEDIR);
        } else {
            remove_folders(f, root, kinds[i]);
        }
        is_left |= faccessat(root, kinds[i], F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    }
    if (!is_left) {
        mx_log(MX_LOG_INFO, "cold: sweep: removing the empty folder of another model root=%.16s",
               name);
        (void)f->ops->unlink(root, "model.json", 0);
        (void)f->ops->unlink(f->v1_fd, name, AT_REMOVEDIR); /* not with a foreign name in it */
    }
    close(root);
}

void mx_sweep_remove_empty_roots(const mx_sweep *s)
{
    uint32_t *n_files = mx_calloc(s->n_roots + 1, sizeof *n_files);
    for (size_t i = 0; n_files != NULL && i < s->n_files; i++) {
        n_files[s->files[i].root] += !s->files[i].is_gone;
    }
    for (size_t i = 0; n_files != NULL && i < s->n_roots; i++) {
        if (n_files[i] == 0 && i != s->own_root && !mx_sweep_is_stopping(s)) {
            remove_root(s, s->roots[i]);
        }
    }
    mx_free(n_files);
}
