/* SPDX-License-Identifier: MIT
 *
 * The folder walked from outside a server. Three levels: the folders of models, the kinds of files in
 * them, the files. Names that are not ours are passed over; links are not followed.
 */
#include "cold/cold_visit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"

void mx_visit_close(mx_visit *o)
{
    int *const fds[] = {&o->lock, &o->v1, &o->top};
    for (size_t i = 0; i < MX_COUNT(fds); i++) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
        }
        *fds[i] = -1;
    }
}

/* What lies in the folder beside the key, the marker and its draft: nothing, v1 alone, or other names.
 * One listing, since all of them may come and go between two questions. */
typedef enum top_content { TOP_NEW, TOP_V1, TOP_OTHER } top_content;

static top_content look_at_top(const mx_cold_fileops *ops, int top)
{
    mx_err err;
    int fd = mx_cold_open_dir(ops, top, ".", false, &err, NULL);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return TOP_OTHER;
    }
    top_content has = TOP_NEW;
    for (const struct dirent *e; has != TOP_OTHER && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, "v1") == 0) {
            has = TOP_V1;
        } else if (e->d_name[0] != '.' && strcmp(e->d_name, MX_COLD_KEY_NAME) != 0
                   && strcmp(e->d_name, MX_COLD_MARKER_NAME) != 0) {
            has = TOP_OTHER;
        }
    }
    closedir(d);
    return has;
}

mx_err mx_visit_check_marker(const mx_cold_fileops *ops, int top, const char *dir, mx_errbuf *eb)
{
    enum { STEP_US = 1000, WAIT_US = 1000000 };
    const uint64_t until = mx_now_us() + WAIT_US;
    while (!mx_cold_has_marker(top)) {
        const top_content has = look_at_top(ops, top);
        if (has == TOP_NEW) {
            return MX_E_NOT_FOUND;
        }
        /* A server that begins anew beside `cache rm --all` makes v1, sees that the marker has gone and
         * writes it. */
        if (has == TOP_OTHER || mx_now_us() >= until) {
            return mx_fail(eb, MX_E_INVALID, "%s has no file %s (or not as a server writes it), so it does not "
                           "look like a session cache and is left alone", dir, MX_COLD_MARKER_NAME);
        }
        usleep(STEP_US);
    }
    return MX_OK;
}

/* flock has no time limit of its own, so a limited wait asks again and again. */
static mx_err take_lock(int fd, const char *dir, uint32_t wait_ms, mx_errbuf *eb)
{
    enum { STEP_MS = 10 };
    const uint64_t until = mx_now_us() + (uint64_t)wait_ms * 1000;
    const int how = wait_ms == MX_COLD_WAIT_FOREVER ? LOCK_EX : LOCK_EX | LOCK_NB;
    while (flock(fd, how) != 0) {
        const int e = errno;
        if (e != EINTR && e != EWOULDBLOCK) {
            return mx_fail_errno(eb, mx_cold_errno(e), e, "cannot lock %s/v1/gc.lock", dir);
        }
        if (e == EWOULDBLOCK && mx_now_us() >= until) {
            return mx_fail(eb, MX_E_BUSY, "another process (or a sweep of this one) is removing files "
                           "in %s: it holds v1/gc.lock", dir);
        }
        usleep(e == EWOULDBLOCK ? STEP_MS * 1000 : 0);
    }
    return MX_OK;
}

mx_err mx_visit_open(mx_visit *o, const char *dir, const mx_hash256 *key, bool lock,
                       uint32_t wait_ms, mx_errbuf *eb)
{
    *o = (mx_visit){-1, -1, -1, {&mx_cold_real_fileops, key, false, eb}};
    mx_fail(eb, MX_OK, "%s", "");
    mx_err err;
    o->top = mx_cold_open_dir(o->trust.ops, AT_FDCWD, dir, false, &err, eb);
    if (o->top < 0 && err == MX_E_DENIED && key != NULL) {
        o->trust = (mx_cold_trust){&mx_cold_shared_fileops, key, true, eb};
        mx_fail(eb, MX_OK, "%s", "");
        o->top = mx_cold_open_dir(o->trust.ops, AT_FDCWD, dir, false, &err, eb);
    }
    if (o->top < 0) {
        return err;
    }
    MX_TRY(mx_visit_check_marker(o->trust.ops, o->top, dir, eb));
    o->v1 = mx_cold_open_dir(o->trust.ops, o->top, "v1", false, &err, eb);
    if (o->v1 < 0) {
        return err;
    }
    if (lock) {
        MX_TRY(mx_cold_open_lock(o->trust.ops, o->v1, dir, &o->lock, eb));
        MX_TRY(take_lock(o->lock, dir, wait_ms, eb));
    }
    return MX_OK;
}

/* ---- walking --------------------------------------------------------------------------------- */

/* A folder that cannot be entered, where that is an error. */
static void note_why(const mx_cold_trust *t, const mx_errbuf *eb)
{
    if (t->why != NULL && t->why->text[0] == '\0') {
        *t->why = *eb;
    }
}

mx_err mx_visit_names(const mx_cold_trust *t, int parent, const char *folder, mx_visit_name_fn *fn, void *arg)
{
    mx_err err;
    mx_errbuf eb = {{0}};
    int fd = mx_cold_open_dir(t->ops, parent, folder, false, &err, &eb);
    if (fd < 0 && err != MX_E_NOT_FOUND) {
        note_why(t, &eb);
    }
    if (fd < 0) {
        return err == MX_E_NOT_FOUND ? MX_OK : err;
    }
    DIR *d = fdopendir(fd);
    if (d == NULL) {
        close(fd);
        return MX_E_NOMEM;
    }
    err = MX_OK;
    while (err == MX_OK) {
        errno = 0;
        const struct dirent *e = readdir(d);
        if (e == NULL) {
            err = errno == 0 ? MX_OK : MX_E_IO; /* the rest is not absent */
            break;
        }
        if (e->d_name[0] != '.') {
            err = fn(arg, fd, e->d_name);
        }
    }
    closedir(d);
    return err;
}

bool mx_visit_is_named(const char *name, const char *suffix, mx_hash256 *id)
{
    size_t n = strlen(name);
    return n == 64 + strlen(suffix) && strcmp(name + 64, suffix) == 0
           && mx_hash256_from_hex(id, name, 64);
}

typedef struct model_walk {
    const mx_cold_trust *trust;
    const char *only; /* NULL = all */
    mx_visit_model_fn *fn;
    void *arg;
} model_walk;

static mx_err enter_model(void *arg, int v1, const char *name)
{
    const model_walk *w = arg;
    mx_hash256 id;
    mx_err err;
    if (!mx_visit_is_named(name, "", &id) || (w->only != NULL && strcmp(w->only, name) != 0)) {
        return MX_OK;
    }
    mx_errbuf eb = {{0}};
    mx_visit_model m = {.fd = mx_cold_open_dir(w->trust->ops, v1, name, false, &err, &eb),
                        .trust = *w->trust};
    if (m.fd < 0) {
        if (err == MX_E_NOT_FOUND || (err == MX_E_DENIED && w->only == NULL)) { /* or somebody else's */
            return MX_OK;
        }
        note_why(w->trust, &eb);
        return err;
    }
    snprintf(m.name, sizeof m.name, "%s", name);
    err = w->fn(w->arg, &m);
    close(m.fd);
    return err;
}

mx_err mx_visit_models(const mx_visit *o, const char *only, mx_visit_model_fn *fn, void *arg)
{
    model_walk w = {&o->trust, only, fn, arg};
    return mx_visit_names(&o->trust, o->v1, ".", enter_model, &w);
}

/* ---- manifests ------------------------------------------------------------------------------- */

mx_err mx_visit_manifest(const mx_cold_trust *t, int dir, const char *name, const mx_hash256 *id,
                            mx_disk_manifest *m, uint8_t **copy, mx_errbuf *eb)
{
    return mx_cold_read_manifest(t->ops, dir, name, id, t->key, t->needs_tag, m, copy, eb);
}

const char *mx_visit_folder_of(mx_cold_object o)
{
    return o == MX_COLD_STATE ? "states" : "pages";
}

void mx_visit_object_path(mx_cold_object o, const mx_hash256 *id, char path[MX_COLD_NAME_CAP + 16])
{
    char xx[3], name[MX_COLD_NAME_CAP];
    mx_cold_object_name(o, id, xx, name);
    snprintf(path, MX_COLD_NAME_CAP + 16, "%s/%s/%.80s", mx_visit_folder_of(o), xx, name);
}

int mx_visit_compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(mx_hash256));
}

bool mx_visit_is_among(const mx_hash256 *sorted, size_t n, const mx_hash256 *id)
{
    return n > 0 && bsearch(id, sorted, n, sizeof *sorted, mx_visit_compare) != NULL;
}

mx_err mx_visit_done(mx_visit *o, mx_err err, const char *dir, mx_errbuf *eb)
{
    mx_visit_close(o);
    if (err == MX_OK || err == MX_E_NOT_FOUND) {
        return MX_OK;
    }
    return eb->text[0] != '\0' ? err : mx_fail(eb, err, "cannot read all of %s: %s", dir,
                                               mx_err_name(err));
}

mx_err mx_visit_done_removing(mx_visit *o, mx_err err, const mx_cold_counts *n, const char *dir,
                            mx_errbuf *eb)
{
    err = mx_visit_done(o, err, dir, eb);
    return err != MX_OK || n->n_left == 0
               ? err
               : mx_fail_errno(eb, mx_cold_errno(n->left_errno), n->left_errno,
                               "%llu files are left in %s, for they cannot be removed",
                               (unsigned long long)n->n_left, dir);
}

/* ---- bookmarks ------------------------------------------------------------------------------- */

typedef struct bookmark_walk {
    mx_cold_bookmark_fn *fn;
    void *arg;
    const mx_visit_model *model;
    bool is_over;
    mx_err err; /* of one that may be sound */
} bookmark_walk;

static mx_err visit_bookmark(void *arg, int dir, const char *name)
{
    bookmark_walk *w = arg;
    mx_hash256 own;
    mx_bookmark b;
    mx_errbuf eb, why;
    const mx_cold_trust *t = &w->model->trust;
    if (w->is_over || !mx_visit_is_named(name, ".bookmark", &own)) {
        return MX_OK;
    }
    mx_err err = mx_bookmark_read(t->ops, dir, &own, t->key, t->needs_tag, &b, &eb);
    if (err == MX_OK) {
        w->is_over = !w->fn(w->arg, w->model->name, &b);
    } else if (err == MX_E_IO || err == MX_E_NOMEM) {
        w->err = mx_fail(&why, err, "the bookmark %.16s... cannot be read: %s", name, eb.text);
        note_why(t, &why);
    }
    return MX_OK;
}

mx_err mx_visit_bookmarks(const mx_visit_model *m, mx_cold_bookmark_fn *fn, void *arg)
{
    bookmark_walk w = {.fn = fn, .arg = arg, .model = m};
    mx_err err = mx_visit_names(&m->trust, m->fd, "sessions", visit_bookmark, &w);
    return err != MX_OK ? err : w.err;
}
