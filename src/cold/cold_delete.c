/* SPDX-License-Identifier: MIT
 *
 * Deleting what a sweep has marked. The caller holds gc.lock.
 *
 * A file that somebody starts to use at the same moment must not be lost to him: it goes to trash/
 * first, its time is looked at again, and only then is it unlinked. What a process that was killed in
 * between has left there is judged by the next sweep, by the same times.
 */
#include "cold/cold_sweep.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

int mx_sweep_open_root(const mx_sweep *s, uint16_t root)
{
    mx_err err;
    mx_errbuf eb;
    return mx_cold_open_dir(s->f->ops, s->f->v1_fd, s->roots[root], false, &err, &eb);
}

int mx_sweep_open_folder(const mx_sweep *s, int root_fd, const char *folder)
{
    mx_err err;
    mx_errbuf eb;
    const char *slash = strchr(folder, '/');
    if (slash == NULL) {
        return mx_cold_open_dir(s->f->ops, root_fd, folder, false, &err, &eb);
    }
    char objects[16];
    snprintf(objects, sizeof objects, "%.*s", (int)(slash - folder), folder);
    int above = mx_cold_open_dir(s->f->ops, root_fd, objects, false, &err, &eb);
    if (above < 0) {
        return -1;
    }
    int fd = mx_cold_open_dir(s->f->ops, above, slash + 1, false, &err, &eb);
    close(above);
    return fd;
}

void mx_swept_name(const mx_swept_file *e, char name[300])
{
    if (e->name != NULL) {
        snprintf(name, 300, "%s", e->name);
        return;
    }
    char hex[65];
    mx_hash256_hex(&e->id, hex);
    static const char *const suffixes[] = {"page", "state", "session"}; /* by kind */
    snprintf(name, 300, "%s.%s", hex, suffixes[e->kind]);
}

/* By the clock as it is now: when it was set back since the sweep began, a stamp that was made just now looks
 * old from there. */
static int64_t age_now_s(const mx_sweep *s, int64_t mtime_s)
{
    int64_t now_s = s->c != NULL ? mx_cold_now_s(s->c) : mx_wall_s();
    now_s = now_s < s->now_s ? now_s : s->now_s;
    return mtime_s > now_s ? 0 : now_s - mtime_s;
}

/* Rename to trash/, look at the time again, unlink. Somebody who touched the file to use it
 * meanwhile gets it back under its name: then errno is 0. */
static bool through_trash(const mx_sweep *s, int root_fd, int dir, const char *name)
{
    const mx_cold_fileops *ops = s->f->ops;
    mx_err err;
    mx_errbuf eb;
    int trash = mx_cold_open_dir(ops, root_fd, "trash", true, &err, &eb);
    if (trash < 0) {
        errno = err == MX_E_DENIED ? EACCES : EIO;
        return false;
    }
    struct stat st;
    bool is_deleted = false;
    if (ops->rename(dir, name, trash, name) == 0
        && fstatat(trash, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (age_now_s(s, st.st_mtim.tv_sec) < s->delete_age_s) {
            (void)mx_cold_give_back(ops, trash, dir, name); /* else it stays there */
            errno = 0;
        } else {
            is_deleted = ops->unlink(trash, name, 0) == 0;
        }
    }
    const int e = errno;
    close(trash);
    errno = e;
    return is_deleted;
}

/* Of a file in trash/: where it came from. False: not one of ours. */
static bool former_folder(const char *name, char folder[24])
{
    static const struct {
        const char *suffix, *folder;
        bool has_xx;
    } kinds[] = {{".page", "pages", true}, {".state", "states", true}, {".session", "sessions", false}};
    mx_hash256 id;
    if (strlen(name) < 64 || !mx_hash256_from_hex(&id, name, 64)) {
        return false;
    }
    for (size_t i = 0; i < MX_COUNT(kinds); i++) {
        if (strcmp(name + 64, kinds[i].suffix) == 0) {
            snprintf(folder, 24, kinds[i].has_xx ? "%s/%.2s" : "%s", kinds[i].folder, name);
            return true;
        }
    }
    return false;
}

/* A file that was in use when it came to trash/ goes back: the rename is the last change of its inode
 * (or not even that), so it came no later than its ctime. */
static bool put_back(const mx_sweep *s, int root_fd, int trash, const char *name)
{
    struct stat st;
    char folder[24];
    if (!former_folder(name, folder) || fstatat(trash, name, &st, AT_SYMLINK_NOFOLLOW) != 0
        || !S_ISREG(st.st_mode) || st.st_ctim.tv_sec - st.st_mtim.tv_sec >= s->delete_age_s)
    {
        return false;
    }
    int dir = mx_sweep_open_folder(s, root_fd, folder);
    bool is_back = dir >= 0 && mx_cold_give_back(s->f->ops, trash, dir, name);
    if (is_back) {
        mx_log(MX_LOG_INFO, "cold: sweep: file=%s/%s was in use when it was deleted: it is back",
               folder, name);
    }
    if (dir >= 0) {
        close(dir);
    }
    return is_back;
}

/* What a server has to know about a file that is gone. */
static void tell(const mx_sweep *s, const mx_swept_file *e)
{
    mx_cold *c = s->c;
    if (e->root == s->own_root && (e->kind == MX_SWEPT_PAGE || e->kind == MX_SWEPT_STATE)) {
        mx_cold_index_remove(c->index, &e->id);
        mx_gone_add(c->gone, &e->id);
    } else if (e->root == s->own_root && e->kind == MX_SWEPT_SESSION) {
        mx_cold_index_unmark_manifest(c->index, &e->id);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.files_swept++;
    c->stats.files_over_limit += s->cause == MX_SWEPT_OVER_LIMIT;
    c->stats.files_expired += s->cause == MX_SWEPT_EXPIRED;
    c->stats.bytes_swept += e->bytes;
    pthread_mutex_unlock(&c->lock);
}

/* One whose entry is gone, unless a session has come back to it meanwhile: then errno is 0. */
static bool delete_bookmark(const mx_sweep *s, const mx_swept_file *e, int dir, const char *name)
{
    size_t i = 0;
    while (i < s->n_bookmarks && (&s->files[s->bookmarks[i].file] != e || !s->bookmarks[i].is_dead)) {
        i++;
    }
    if (i == s->n_bookmarks) {
        return s->f->ops->unlink(dir, name, 0) == 0;
    }
    mx_err err = mx_bookmark_remove_unchanged(s->f->ops, dir, &s->bookmarks[i].b, s->key, s->needs_tag);
    errno = err == MX_E_BUSY ? 0 : errno;
    return err == MX_OK;
}

static void delete_file(mx_sweep *s, mx_swept_file *e)
{
    char name[300];
    mx_swept_name(e, name);
    int root_fd = mx_sweep_open_root(s, e->root);
    int dir = root_fd >= 0 ? mx_sweep_open_folder(s, root_fd, e->folder) : -1;
    bool is_deleted = false;
    int e_left = dir < 0 ? EACCES : 0;
    if (dir >= 0) {
        mx_log(MX_LOG_DEBUG, "cold: deleting file=%s/%s bytes=%llu", e->folder, name,
               (unsigned long long)e->bytes);
        if (mx_swept_is_stored(e)) {
            is_deleted = through_trash(s, root_fd, dir, name);
            e_left = errno;
        } else if (e->kind == MX_SWEPT_BOOKMARK) {
            is_deleted = delete_bookmark(s, e, dir, name);
            e_left = errno;
        } else if (e->kind != MX_SWEPT_TRASH || !put_back(s, root_fd, dir, name)) {
            is_deleted = s->f->ops->unlink(dir, name, 0) == 0;
            e_left = errno;
        }
        close(dir);
    }
    if (root_fd >= 0) {
        close(root_fd);
    }
    if (!is_deleted) {
        if (e_left != 0 && e_left != ENOENT) { /* in use, or somebody else was faster */
            s->failed_files++;
            s->failed_errno = e_left;
        }
        return;
    }
    e->is_gone = true;
    s->total_files--;
    s->total_bytes -= e->bytes;
    s->deleted_files++;
    s->deleted_bytes += e->bytes;
    if (s->c != NULL) {
        tell(s, e);
    }
}

static void delete_strays_in(mx_sweep *s, int dir)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return; /* the next sweep tries again */
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL && !mx_sweep_is_stopping(s);) {
        struct stat st;
        if (strncmp(e->d_name, ".tmp-", 5) == 0
            && fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)
            && mx_sweep_age_s(s, st.st_mtim.tv_sec) >= s->orphan_age_s
            && s->f->ops->unlink(dir, e->d_name, 0) == 0) {
            mx_log(MX_LOG_INFO, "cold: sweep: deleted file=%s bytes=%llu reason=leftovers", e->d_name,
                   (unsigned long long)st.st_size);
            s->deleted_files++;
            s->deleted_bytes += (uint64_t)st.st_size;
        }
    }
    closedir(d);
}

void mx_sweep_delete_strays(mx_sweep *s)
{
    if (s->f->top_fd >= 0) {
        delete_strays_in(s, s->f->top_fd);
    }
    delete_strays_in(s, s->f->v1_fd);
    for (size_t i = 0; i < s->n_roots; i++) {
        int root = mx_sweep_open_root(s, (uint16_t)i);
        if (root >= 0) {
            delete_strays_in(s, root);
            close(root);
        }
    }
}

void mx_sweep_delete(mx_sweep *s, bool *marked, const char *why)
{
    uint64_t n = 0, bytes = 0, deleted_before = s->deleted_files;
    for (size_t i = 0; i < s->n_files; i++) {
        n += marked[i];
        bytes += marked[i] ? s->files[i].bytes : 0;
    }
    if (n == 0) {
        return;
    }
    mx_log(MX_LOG_INFO, "cold: sweep: deleting files=%llu bytes=%llu reason=%s",
           (unsigned long long)n, (unsigned long long)bytes, why);
    for (size_t i = 0; i < s->n_files && !mx_sweep_is_stopping(s); i++) {
        if (marked[i]) {
            delete_file(s, &s->files[i]);
        }
    }
    if (s->deleted_files - deleted_before != n) {
        mx_log(MX_LOG_INFO, "cold: sweep: deleted files=%llu, the others are in use or cannot be",
               (unsigned long long)(s->deleted_files - deleted_before));
    }
    memset(marked, 0, s->n_files * sizeof *marked);
}
