/* SPDX-License-Identifier: MIT
 *
 * The walk: what lies below v1, of all models.
 *
 * One fstatat per file gives names, sizes and times; everything else follows from that list.
 * Whatever could not be seen makes the walk incomplete, and then nothing is deleted: what is not
 * seen must not look deleted.
 */
#include "cold/cold_sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

enum { ROOT_CAP = 4096 }; /* models and settings; each new numerics version makes one */

static bool is_hex(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f'))) {
            return false;
        }
    }
    return true;
}

static bool is_own_name(const char *name, const char *suffix)
{
    return strlen(name) == 64 + strlen(suffix) && is_hex(name, 64)
           && strcmp(name + 64, suffix) == 0;
}

/* Calls visit(s, folder fd, name) for each name. False = the folder could not be listed. */
typedef void visit_fn(mx_sweep *s, int dir, const char *name, void *arg);

static bool for_each(mx_sweep *s, int dir, visit_fn *visit, void *arg)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    bool is_whole = true;
    while (!mx_sweep_is_stopping(s)) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (e == NULL) {
            is_whole = errno == 0;
            break;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            visit(s, dir, e->d_name, arg);
        }
    }
    closedir(d);
    return is_whole;
}

typedef struct place {
    uint16_t root;
    const char *folder; /* "pages/xx" */
    mx_swept_kind kind;     /* of a file with the right name */
    const char *suffix; /* NULL = any name */
} place;

/* What a file takes. One with holes, larger than any of ours, would count as a full disk and cost
 * everything else its place. */
static uint64_t file_bytes(const struct stat *st)
{
    uint64_t size = (uint64_t)st->st_size, stored = (uint64_t)st->st_blocks * 512;
    return size > MX_DISK_MANIFEST_MAX_BYTES && stored < size ? stored : size;
}

static void add_file(mx_sweep *s, int dir, const char *name, const place *p, mx_swept_kind kind)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        s->err = errno == ENOENT ? s->err : MX_E_IO; /* deleted meanwhile, or not to be seen */
        return;
    }
    if (S_ISDIR(st.st_mode)) {
        return;
    }
    uint64_t bytes = file_bytes(&st);
    s->total_files++;
    s->total_bytes += bytes;
    if (!mx_grow((void **)&s->files, &s->files_cap, s->n_files + 1, sizeof *s->files)) {
        s->err = MX_E_NOMEM;
        return;
    }
    mx_swept_file e = {.mtime_ns = mx_cold_time_ns(&st.st_mtim),
                    .bytes = bytes,
                    .kind = (uint8_t)kind,
                    .root = p->root};
    snprintf(e.folder, sizeof e.folder, "%s", p->folder);
    if (mx_swept_is_stored(&e)) {
        if (!mx_hash256_from_hex(&e.id, name, 64)) {
            return;
        }
    } else {
        e.name = mx_strdup(name);
        if (e.name == NULL) {
            s->err = MX_E_NOMEM;
            return;
        }
    }
    s->files[s->n_files++] = e;
}

static void visit_file(mx_sweep *s, int dir, const char *name, void *arg)
{
    const place *p = arg;
    if (strncmp(name, ".tmp-", 5) == 0) {
        add_file(s, dir, name, p, MX_SWEPT_TEMP);
    } else if (p->kind == MX_SWEPT_SESSION && is_own_name(name, ".bookmark")) {
        add_file(s, dir, name, p, MX_SWEPT_BOOKMARK);
    } else if (p->suffix == NULL || is_own_name(name, p->suffix)) {
        add_file(s, dir, name, p, p->kind);
    } else {
        s->n_foreign++;
    }
}

/* -1: there is none, or it cannot be seen, which s->err tells then. */
static int open_seen(mx_sweep *s, int parent, const char *name)
{
    mx_err err;
    mx_errbuf eb = {{0}};
    struct stat st;
    int dir = mx_cold_open_dir(s->f->ops, parent, name, false, &err, &eb);
    if (dir < 0 && fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode)) {
        s->n_foreign++; /* not a folder of ours: no reason to leave the rest unswept */
    } else if (dir < 0 && err != MX_E_NOT_FOUND) {
        s->err = err;
        s->why = eb;
    }
    return dir;
}

static void walk_files(mx_sweep *s, int parent, const char *name, const place *p)
{
    int dir = open_seen(s, parent, name);
    if (dir < 0) {
        return;
    }
    place copy = *p;
    if (!for_each(s, dir, visit_file, &copy)) {
        s->err = MX_E_IO;
    }
    close(dir);
}

static void visit_xx(mx_sweep *s, int dir, const char *name, void *arg)
{
    if (strlen(name) != 2 || !is_hex(name, 2)) {
        s->n_foreign++;
        return;
    }
    place p = *(const place *)arg;
    char folder[16];
    snprintf(folder, sizeof folder, "%s/%.2s", p.folder, name);
    p.folder = folder;
    walk_files(s, dir, name, &p);
}

static void visit_root(mx_sweep *s, int dir, const char *name, void *arg)
{
    (void)arg;
    if (strlen(name) != 64 || !is_hex(name, 64)) {
        s->n_foreign += strcmp(name, "gc.lock") != 0 && strcmp(name, MX_COLD_WEAR_NAME) != 0
                        && strncmp(name, ".tmp-", 5) != 0;
        return;
    }
    if (s->only_root != NULL && strcmp(name, s->only_root) != 0) {
        return;
    }
    mx_err err;
    mx_errbuf eb;
    void *roots = s->roots;
    if (s->n_roots == ROOT_CAP
        || !mx_grow(&roots, &s->roots_cap, s->n_roots + 1, sizeof *s->roots)) {
        s->err = MX_E_NOMEM; /* what is not seen must not look deleted */
        return;
    }
    s->roots = roots;
    int fd = mx_cold_open_dir(s->f->ops, dir, name, false, &err, &eb);
    if (fd < 0) { /* somebody else's, or not to be seen */
        s->n_foreign++;
        s->err = err == MX_E_DENIED || err == MX_E_NOT_FOUND ? s->err : err;
        return;
    }
    uint16_t root = (uint16_t)s->n_roots;
    snprintf(s->roots[s->n_roots++], 65, "%s", name);
    if (strcmp(name, s->f->root_hex) == 0) {
        s->own_root = root;
    }
    const place objects[] = {{root, "pages", MX_SWEPT_PAGE, ".page"},
                             {root, "states", MX_SWEPT_STATE, ".state"}};
    for (size_t i = 0; i < MX_COUNT(objects); i++) {
        place p = objects[i];
        int dir_fd = open_seen(s, fd, p.folder);
        if (dir_fd >= 0) {
            if (!for_each(s, dir_fd, visit_xx, &p)) {
                s->err = MX_E_IO;
            }
            close(dir_fd);
        }
    }
    walk_files(s, fd, "sessions", &(place){root, "sessions", MX_SWEPT_SESSION, ".session"});
    walk_files(s, fd, "trash", &(place){root, "trash", MX_SWEPT_TRASH, NULL});
    walk_files(s, fd, "quarantine", &(place){root, "quarantine", MX_SWEPT_QUARANTINE, NULL});
    close(fd);
}

/* A page before the manifest that is named after it: the shorter chain is of use without the former. */
static int compare_time(const void *a, const void *b)
{
    const mx_swept_file *x = a, *y = b;
    if (x->mtime_ns != y->mtime_ns) {
        return x->mtime_ns < y->mtime_ns ? -1 : 1;
    }
    return (int)x->kind - (int)y->kind;
}

static int compare_id(const void *a, const void *b)
{
    const mx_swept_file *x = a, *y = b;
    int c = memcmp(&x->id, &y->id, sizeof x->id);
    return c != 0 ? c : (int)x->kind - (int)y->kind;
}

/* Only pages and states are given a new time by a reader, so a manifest is as young as the page that
 * it is named after: without it, after a restart, nobody would know what that page continues. */
static void rejuvenate_manifests(mx_sweep *s)
{
    qsort(s->files, s->n_files, sizeof *s->files, compare_id);
    for (size_t i = 1; i < s->n_files; i++) {
        const mx_swept_file *page = &s->files[i - 1];
        mx_swept_file *e = &s->files[i];
        if (e->kind == MX_SWEPT_SESSION && page->kind == MX_SWEPT_PAGE && page->root == e->root
            && mx_hash256_eq(&page->id, &e->id) && page->mtime_ns > e->mtime_ns) {
            e->mtime_ns = page->mtime_ns;
        }
    }
}

void mx_sweep_walk(mx_sweep *s)
{
    if (!for_each(s, s->f->v1_fd, visit_root, NULL)) {
        s->err = MX_E_IO;
    }
    if (s->n_files > 0) {
        rejuvenate_manifests(s);
        qsort(s->files, s->n_files, sizeof *s->files, compare_time);
    }
    mx_sweep_load_bookmarks(s);
}

void mx_sweep_free(mx_sweep *s)
{
    mx_free(s->roots);
    for (size_t i = 0; i < s->n_files; i++) {
        mx_free(s->files[i].name);
    }
    mx_free(s->files);
    mx_free(s->states);
    mx_free(s->bookmarks);
}
