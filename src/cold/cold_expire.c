/* SPDX-License-Identifier: MIT
 *
 * What goes because time has passed: files that nobody uses, folders of models that nobody runs.
 *
 * A file's modification time is its last use (docs/file-format.md, section 6).
 */
#include "cold/cold_sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

static bool is_unused(const mx_sweep *s, const mx_swept_file *e)
{
    int64_t age = mx_swept_age_s(s, e);
    return !e->is_pinned && age >= s->ttl_s && age >= s->delete_age_s;
}

void mx_sweep_mark_expired(const mx_sweep *s, bool *marked)
{
    for (size_t i = 0; s->ttl_s > 0 && i < s->n_files; i++) {
        const mx_swept_file *e = &s->files[i];
        bool is_aging = mx_swept_is_stored(e) || e->kind == MX_SWEPT_QUARANTINE;
        marked[i] = is_aging && !e->is_gone && is_unused(s, e);
    }
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
