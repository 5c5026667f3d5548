/* SPDX-License-Identifier: MIT
 *
 * The folder walked from outside a server. Three levels: the folders of models, the kinds of files
 * in them, the files. Names that are not ours are passed over; links are not followed.
 *
 * A page may be named by many manifests, so what a removed one leaves behind is found by reading the
 * others: their page names, sorted, are the pages that stay.
 */
#include "cold/cold_tools.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cold/cold_manifest.h"
#include "cold/cold_object.h"
#include "cold/cold_sweep.h"

/* An open model folder. */
typedef struct model_dir {
    char name[65];
    int fd;
    mx_cold_trust trust;
} model_dir;

typedef struct opened {
    int top, v1, lock; /* -1 = closed */
    mx_cold_trust trust;
} opened;

static void close_all(opened *o)
{
    int *const fds[] = {&o->lock, &o->v1, &o->top};
    for (size_t i = 0; i < MX_COUNT(fds); i++) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
        }
        *fds[i] = -1;
    }
}

/* Nothing but what a server makes before it writes for the first time: the key, the marker's draft. */
static bool is_new(const mx_cold_fileops *ops, int top)
{
    mx_err err;
    int fd = mx_cold_open_dir(ops, top, ".", false, &err, NULL);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    bool is_so = true;
    for (const struct dirent *e; is_so && (e = readdir(d)) != NULL;) {
        is_so = e->d_name[0] == '.' || strcmp(e->d_name, MX_COLD_KEY_NAME) == 0;
    }
    closedir(d);
    return is_so;
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

/* MX_E_NOT_FOUND: nothing is there. MX_E_INVALID: only other files. With `lock` other removers are
 * kept out; MX_E_BUSY: one of them has the lock. */
static mx_err open_all(opened *o, const char *dir, const mx_hash256 *key, bool lock,
                       uint32_t wait_ms, mx_errbuf *eb)
{
    *o = (opened){-1, -1, -1, {&mx_cold_real_fileops, key, false}};
    mx_fail(eb, MX_OK, "%s", "");
    mx_err err;
    struct stat st;
    o->top = mx_cold_open_dir(o->trust.ops, AT_FDCWD, dir, false, &err, eb);
    if (o->top < 0 && err == MX_E_DENIED && key != NULL) {
        o->trust = (mx_cold_trust){&mx_cold_shared_fileops, key, true};
        o->top = mx_cold_open_dir(o->trust.ops, AT_FDCWD, dir, false, &err, eb);
    }
    if (o->top < 0) {
        return err;
    }
    if (fstatat(o->top, MX_COLD_MARKER_NAME, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (is_new(o->trust.ops, o->top)) {
            return MX_E_NOT_FOUND;
        }
        return mx_fail(eb, MX_E_INVALID, "%s has no file %s, so it is not a session cache", dir,
                       MX_COLD_MARKER_NAME);
    }
    o->v1 = mx_cold_open_dir(o->trust.ops, o->top, "v1", false, &err, eb);
    if (o->v1 < 0) {
        return err;
    }
    if (lock) {
        o->lock = openat(o->v1, "gc.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                         0600);
        if (o->lock < 0) {
            return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot open %s/v1/gc.lock", dir);
        }
        MX_TRY(take_lock(o->lock, dir, wait_ms, eb));
    }
    return MX_OK;
}

/* ---- walking --------------------------------------------------------------------------------- */

typedef mx_err name_fn(void *arg, int dir, const char *name);

static mx_err each_name(const mx_cold_trust *t, int parent, const char *folder, name_fn *fn, void *arg)
{
    mx_err err;
    int fd = mx_cold_open_dir(t->ops, parent, folder, false, &err, NULL);
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

static bool has_suffix(const char *name, const char *suffix, mx_hash256 *id)
{
    size_t n = strlen(name);
    return n == 64 + strlen(suffix) && strcmp(name + 64, suffix) == 0
           && mx_hash256_from_hex(id, name, 64);
}

typedef struct model_walk {
    const mx_cold_trust *trust;
    const char *only; /* NULL = all */
    mx_err (*fn)(void *arg, const model_dir *m);
    void *arg;
} model_walk;

static mx_err visit_model(void *arg, int v1, const char *name)
{
    const model_walk *w = arg;
    mx_hash256 id;
    mx_err err;
    if (!has_suffix(name, "", &id) || (w->only != NULL && strcmp(w->only, name) != 0)) {
        return MX_OK;
    }
    model_dir m = {.fd = mx_cold_open_dir(w->trust->ops, v1, name, false, &err, NULL),
                   .trust = *w->trust};
    if (m.fd < 0) {
        bool is_others = err == MX_E_DENIED && w->only == NULL;
        return is_others || err == MX_E_NOT_FOUND ? MX_OK : err;
    }
    snprintf(m.name, sizeof m.name, "%s", name);
    err = w->fn(w->arg, &m);
    close(m.fd);
    return err;
}

static mx_err each_model(const opened *o, const char *only, mx_err (*fn)(void *, const model_dir *),
                         void *arg)
{
    model_walk w = {&o->trust, only, fn, arg};
    return each_name(&o->trust, o->v1, ".", visit_model, &w);
}

/* ---- manifests ------------------------------------------------------------------------------- */

static mx_err read_manifest(const mx_cold_trust *t, int dir, const char *name, const mx_hash256 *id,
                            mx_disk_manifest *m, uint8_t **copy, mx_errbuf *eb)
{
    return mx_cold_read_manifest(t->ops, dir, name, id, t->key, t->needs_tag, m, copy, eb);
}

static const char *folder_of(mx_cold_object o)
{
    return o == MX_COLD_STATE ? "states" : "pages";
}

static void object_path(mx_cold_object o, const mx_hash256 *id, char path[MX_COLD_NAME_CAP + 16])
{
    char xx[3], name[MX_COLD_NAME_CAP];
    mx_cold_object_name(o, id, xx, name);
    snprintf(path, MX_COLD_NAME_CAP + 16, "%s/%s/%.80s", folder_of(o), xx, name);
}

typedef struct listing {
    mx_cold_entry_fn *fn;
    void *arg;
    const model_dir *model;
    bool is_over;
} listing;

static mx_err list_one(void *arg, int dir, const char *name)
{
    listing *l = arg;
    mx_hash256 id;
    mx_disk_manifest m;
    uint8_t *copy;
    struct stat st;
    mx_errbuf eb;
    if (l->is_over || !has_suffix(name, ".session", &id)
        || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0
        || read_manifest(&l->model->trust, dir, name, &id, &m, &copy, &eb) != MX_OK)
    {
        return MX_OK;
    }
    mx_cold_entry e = {
        .root = m.root,
        .id = id,
        .is_turn = m.entry_kind == MX_DISK_ENTRY_TURN,
        .n_tokens = m.n_tokens,
        .n_pages = m.n_pages,
        .bytes = (uint64_t)st.st_size,
        .created_s = (int64_t)m.created_s,
        .used_s = st.st_mtim.tv_sec,
    };
    snprintf(e.folder, sizeof e.folder, "%s", l->model->name);
    for (uint32_t i = 0; i < m.n_pages + m.n_states; i++) {
        char path[MX_COLD_NAME_CAP + 16];
        bool is_page = i < m.n_pages;
        object_path(is_page ? MX_COLD_PAGE : MX_COLD_STATE,
                    is_page ? &m.page_ids[i] : &m.state_ids[i - m.n_pages], path);
        if (fstatat(l->model->fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
            e.bytes += (uint64_t)st.st_size;
            if (i + 1 == m.n_pages && st.st_mtim.tv_sec > e.used_s) {
                e.used_s = st.st_mtim.tv_sec; /* a reader sets the times of pages only */
            }
        } else {
            e.n_missing += is_page;
        }
    }
    mx_free(copy);
    l->is_over = !l->fn(l->arg, &e);
    return MX_OK;
}

static mx_err list_model(void *arg, const model_dir *m)
{
    listing *l = arg;
    l->model = m;
    return each_name(&m->trust, m->fd, "sessions", list_one, l);
}

/* What failed below the folder has no text of its own. */
static mx_err done(opened *o, mx_err err, const char *dir, mx_errbuf *eb)
{
    close_all(o);
    if (err == MX_OK || err == MX_E_NOT_FOUND) {
        return MX_OK;
    }
    return eb->text[0] != '\0' ? err : mx_fail(eb, err, "cannot read all of %s: %s", dir,
                                               mx_err_name(err));
}

mx_err mx_cold_list(const char *dir, const mx_hash256 *key, const char *folder,
                    mx_cold_entry_fn *fn, void *arg, mx_errbuf *eb)
{
    opened o;
    listing l = {.fn = fn, .arg = arg};
    mx_err err = open_all(&o, dir, key, false, 0, eb);
    if (err == MX_OK) {
        err = each_model(&o, folder, list_model, &l);
    }
    return done(&o, err, dir, eb);
}

/* ---- checking -------------------------------------------------------------------------------- */

typedef struct checking {
    const mx_hash256 *only; /* this manifest and what it names; NULL = all */
    mx_hash256 *ids;        /* [n_ids] then: pages and states, sorted */
    size_t n_ids;
    mx_cold_object object;  /* looked at now */
    bool quarantine;
    mx_cold_bad_fn *fn;
    void *arg;
    mx_cold_counts *out;
    const model_dir *model;
    char folder[16]; /* of the file at hand, below the model's: "pages/ab" */
    mx_object_reader reader;
} checking;

static int compare_hash(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(mx_hash256));
}

static bool is_among(const mx_hash256 *sorted, size_t n, const mx_hash256 *id)
{
    return n > 0 && bsearch(id, sorted, n, sizeof *sorted, compare_hash) != NULL;
}

static void judge(checking *c, int dir, const char *name, mx_err err, const mx_errbuf *eb)
{
    if (err == MX_E_UNSUPPORTED) {
        c->out->n_foreign++;
    }
    if (err == MX_OK || err == MX_E_UNSUPPORTED || err == MX_E_NOT_FOUND) {
        return;
    }
    c->out->n_bad++;
    char path[256];
    snprintf(path, sizeof path, "v1/%s/%s/%s", c->model->name, c->folder, name);
    c->fn(c->arg, path, eb->text);
    if (c->quarantine && err == MX_E_CORRUPT) {
        mx_cold_folder f;
        mx_hash256 root = {{0}};
        mx_cold_folder_init(&f, c->model->trust.ops, "", &root, false);
        f.root_fd = c->model->fd; /* lent */
        c->out->n_moved += mx_cold_quarantine(&f, dir, name, eb->text);
    }
}

static mx_err check_object(void *arg, int dir, const char *name)
{
    checking *c = arg;
    mx_hash256 id;
    mx_errbuf eb = {{0}};
    mx_disk_page page;
    const uint8_t *payload;
    uint64_t n = 0;
    if (!has_suffix(name, c->object == MX_COLD_STATE ? ".state" : ".page", &id)
        || (c->only != NULL && !is_among(c->ids, c->n_ids, &id)))
    {
        return MX_OK;
    }
    c->reader.trust = c->model->trust;
    mx_err err = mx_object_read(&c->reader, dir, name, c->object, &id, &page, &payload, &n, &eb);
    if (err == MX_E_NOMEM) {
        return err;
    }
    c->out->n_files++;
    c->out->n_bytes += n;
    judge(c, dir, name, err, &eb);
    return MX_OK;
}

static mx_err check_xx(void *arg, int dir, const char *name)
{
    checking *c = arg;
    if (strlen(name) != 2 || strspn(name, "0123456789abcdef") != 2) {
        return MX_OK;
    }
    snprintf(c->folder, sizeof c->folder, "%s/%s", folder_of(c->object), name);
    return each_name(&c->model->trust, dir, name, check_object, c);
}

static mx_err check_manifest(void *arg, int dir, const char *name)
{
    checking *c = arg;
    mx_hash256 id;
    mx_disk_manifest m;
    uint8_t *copy;
    mx_errbuf eb = {{0}};
    struct stat st;
    if (!has_suffix(name, ".session", &id) || (c->only != NULL && !mx_hash256_eq(c->only, &id))) {
        return MX_OK;
    }
    const mx_cold_trust *t = &c->model->trust;
    mx_err err = read_manifest(t, dir, name, &id, &m, &copy, &eb);
    if (err == MX_E_CORRUPT && t->key != NULL) {
        mx_errbuf unused;
        if (mx_cold_read_manifest(t->ops, dir, name, &id, NULL, false, &m, &copy, &unused) == MX_OK) {
            mx_free(copy);
            copy = NULL;
            err = mx_object_other_key(&eb);
        }
    }
    c->out->n_files++;
    c->out->n_bytes +=
        fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? (uint64_t)st.st_size : 0;
    if (err == MX_OK && c->only != NULL) {
        c->n_ids = (size_t)m.n_pages + m.n_states;
        c->ids = mx_alloc(c->n_ids * sizeof *c->ids);
        if (c->ids == NULL) {
            mx_free(copy);
            return MX_E_NOMEM;
        }
        memcpy(c->ids, m.page_ids, m.n_pages * sizeof *c->ids);
        memcpy(c->ids + m.n_pages, m.state_ids, m.n_states * sizeof *c->ids);
        qsort(c->ids, c->n_ids, sizeof *c->ids, compare_hash);
    }
    mx_free(copy);
    judge(c, dir, name, err, &eb);
    return MX_OK;
}

static mx_err check_model(void *arg, const model_dir *m)
{
    checking *c = arg;
    c->model = m;
    snprintf(c->folder, sizeof c->folder, "sessions");
    mx_err err = each_name(&m->trust, m->fd, "sessions", check_manifest, c);
    if (err == MX_OK) {
        c->object = MX_COLD_PAGE;
        err = each_name(&m->trust, m->fd, "pages", check_xx, c);
    }
    if (err == MX_OK) {
        c->object = MX_COLD_STATE;
        err = each_name(&m->trust, m->fd, "states", check_xx, c);
    }
    mx_free(c->ids);
    c->ids = NULL;
    c->n_ids = 0;
    return err;
}

mx_err mx_cold_verify(const char *dir, const mx_hash256 *key, const mx_hash256 *id, bool quarantine,
                      mx_cold_bad_fn *fn, void *arg, mx_cold_counts *out, mx_errbuf *eb)
{
    opened o;
    *out = (mx_cold_counts){0};
    checking c = {.only = id, .quarantine = quarantine, .fn = fn, .arg = arg, .out = out};
    mx_err err = open_all(&o, dir, key, quarantine, MX_COLD_WAIT_FOREVER, eb);
    if (err == MX_OK) {
        err = each_model(&o, NULL, check_model, &c);
    }
    mx_object_reader_free(&c.reader);
    err = done(&o, err, dir, eb);
    if (id != NULL && err == MX_OK && out->n_files == 0) {
        return mx_fail(eb, MX_E_NOT_FOUND, "there is no such entry in %s", dir);
    }
    return err;
}

/* ---- removing -------------------------------------------------------------------------------- */

static void remove_file(int dir, const char *path, mx_cold_counts *out)
{
    struct stat st;
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
        return;
    }
    if (unlinkat(dir, path, 0) == 0) {
        out->n_files++;
        out->n_bytes += (uint64_t)st.st_size;
    } else if (errno != ENOENT) {
        out->n_left++;
        out->left_errno = errno;
    }
}

/* done, for what removes. */
static mx_err done_removing(opened *o, mx_err err, const mx_cold_counts *n, const char *dir,
                            mx_errbuf *eb)
{
    err = done(o, err, dir, eb);
    return err != MX_OK || n->n_left == 0
               ? err
               : mx_fail_errno(eb, mx_cold_errno(n->left_errno), n->left_errno,
                               "%llu files are left in %s, for they cannot be removed",
                               (unsigned long long)n->n_left, dir);
}

/* The pages and states of all manifests but one. */
typedef struct kept {
    const mx_hash256 *but;
    mx_hash256 *ids; /* [n] */
    size_t n, cap;
    const mx_cold_trust *trust;
    mx_errbuf *eb;
} kept;

static mx_err keep_objects(void *arg, int dir, const char *name)
{
    kept *k = arg;
    mx_hash256 id;
    mx_disk_manifest m;
    uint8_t *copy;
    mx_errbuf eb;
    if (!has_suffix(name, ".session", &id) || mx_hash256_eq(&id, k->but)) {
        return MX_OK;
    }
    mx_err err = read_manifest(k->trust, dir, name, &id, &m, &copy, &eb);
    if (err == MX_E_CORRUPT || err == MX_E_NOT_FOUND) {
        return MX_OK; /* it keeps nothing */
    }
    if (err != MX_OK) { /* what it names is not known, and must not go */
        return mx_fail(k->eb, err, "nothing was removed, for another entry, %.16s..., cannot be "
                       "read: %s", name, eb.text);
    }
    void *ids = k->ids;
    bool ok = mx_grow(&ids, &k->cap, k->n + m.n_pages + m.n_states, sizeof *k->ids);
    k->ids = ids;
    if (ok) {
        memcpy(k->ids + k->n, m.page_ids, m.n_pages * sizeof *k->ids);
        memcpy(k->ids + k->n + m.n_pages, m.state_ids, m.n_states * sizeof *k->ids);
        k->n += m.n_pages + m.n_states;
    }
    mx_free(copy);
    return ok ? MX_OK : MX_E_NOMEM;
}

/* A damaged file cannot say whose it was: whoever removes an entry gets rid of all that may hold some
 * of it. */
static mx_err remove_any(void *arg, int dir, const char *name)
{
    remove_file(dir, name, arg);
    return MX_OK;
}

static mx_err remove_damaged(const model_dir *model, mx_cold_counts *out)
{
    MX_TRY(each_name(&model->trust, model->fd, "quarantine", remove_any, out));
    return each_name(&model->trust, model->fd, "trash", remove_any, out);
}

typedef struct removal {
    const mx_hash256 *id;
    const mx_cold_names *also;
    mx_cold_counts *out;
    mx_errbuf *eb;
    bool was_found;
} removal;

/* States before their pages, leaf first. */
static void remove_objects(const model_dir *model, const mx_cold_names *names, const kept *k,
                           mx_cold_counts *out)
{
    char path[MX_COLD_NAME_CAP + 16];
    for (size_t i = names->n_pages + names->n_states; i-- > 0;) {
        bool is_page = i < names->n_pages;
        const mx_hash256 *id = is_page ? &names->page_ids[i]
                                       : &names->state_ids[i - names->n_pages];
        if (!is_among(k->ids, k->n, id)) {
            object_path(is_page ? MX_COLD_PAGE : MX_COLD_STATE, id, path);
            remove_file(model->fd, path, out);
        }
    }
}

static mx_err remove_from(void *arg, const model_dir *model)
{
    static const mx_cold_names none;
    removal *r = arg;
    char name[MX_COLD_NAME_CAP], path[MX_COLD_NAME_CAP + 16];
    mx_disk_manifest m;
    uint8_t *copy = NULL;
    struct stat st;
    const mx_cold_names *also = r->also != NULL ? r->also : &none;
    mx_cold_session_name(r->id, name);
    snprintf(path, sizeof path, "sessions/%.90s", name);
    bool has_manifest = fstatat(model->fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!has_manifest && also->n_pages == 0) {
        return MX_OK;
    }
    r->was_found = true;
    kept k = {.but = r->id, .trust = &model->trust, .eb = r->eb};
    mx_err err = has_manifest ? read_manifest(&model->trust, model->fd, path, r->id, &m, &copy,
                                              r->eb)
                              : MX_OK;
    if (err != MX_OK && err != MX_E_CORRUPT) {
        return err;
    }
    err = each_name(&model->trust, model->fd, "sessions", keep_objects, &k);
    if (err == MX_OK) {
        /* The manifest first: a removal that is interrupted leaves pages, which age, and no promise. */
        remove_file(model->fd, path, r->out);
        if (k.n > 0) {
            qsort(k.ids, k.n, sizeof *k.ids, compare_hash);
        }
        if (copy != NULL) {
            remove_objects(model,
                           &(mx_cold_names){m.page_ids, m.n_pages, m.state_ids, m.n_states}, &k,
                           r->out);
        }
        remove_objects(model, also, &k, r->out);
        err = remove_damaged(model, r->out);
    }
    mx_free(k.ids);
    mx_free(copy);
    return err;
}

mx_err mx_cold_remove_entry(const char *dir, const mx_hash256 *key, const char *folder,
                            const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                            mx_cold_counts *out, mx_errbuf *eb)
{
    opened o;
    *out = (mx_cold_counts){0};
    removal r = {.id = id, .also = also, .out = out, .eb = eb};
    mx_err err = open_all(&o, dir, key, true, wait_ms, eb);
    if (err == MX_OK) {
        err = each_model(&o, folder, remove_from, &r);
    }
    err = done_removing(&o, err, out, dir, eb);
    if (err == MX_OK && !r.was_found) {
        return mx_fail(eb, MX_E_NOT_FOUND, "there is no such entry in %s", dir);
    }
    return err;
}

/* ---- everything, or what is too much --------------------------------------------------------- */

/* The walk of a server's sweep, and what of its rules needs no knowledge of a model. Asked for by a
 * person, so files go at any age; but a temporary file may be one that is being written. */
typedef struct tool_sweep {
    opened o;
    mx_cold_folder folder;
    mx_sweep s;
    bool *marked; /* [s.n_files] */
} tool_sweep;

static mx_err begin_sweep(tool_sweep *t, const char *dir, const mx_hash256 *key,
                          const char *only_root, uint32_t wait_ms, mx_errbuf *eb)
{
    enum { ORPHAN_AGE_S = 3600 };
    static const mx_hash256 no_root;
    *t = (tool_sweep){.o = {.top = -1, .v1 = -1, .lock = -1}};
    MX_TRY(open_all(&t->o, dir, key, true, wait_ms, eb));
    mx_cold_folder_init(&t->folder, t->o.trust.ops, dir, &no_root, false);
    t->folder.top_fd = t->o.top; /* lent, */
    t->folder.v1_fd = t->o.v1;   /* like this one */
    t->s = (mx_sweep){.f = &t->folder,
                      .orphan_age_s = ORPHAN_AGE_S,
                      .only_root = only_root,
                      .own_root = MX_SWEEP_NO_ROOT,
                      .now_s = mx_wall_s()};
    mx_sweep_walk(&t->s);
    t->marked = mx_calloc(t->s.n_files + 1, sizeof *t->marked);
    mx_err err = t->marked == NULL ? MX_E_NOMEM : t->s.err;
    return err == MX_OK ? MX_OK
                        : mx_fail(eb, err, "cannot see all of %s (%s); nothing was removed", dir,
                                  mx_err_name(err));
}

static mx_err end_sweep(tool_sweep *t, mx_err err, mx_cold_counts *out, const char *dir,
                        mx_errbuf *eb)
{
    *out = (mx_cold_counts){.n_files = t->s.deleted_files,
                            .n_bytes = t->s.deleted_bytes,
                            .n_left = t->s.failed_files,
                            .left_errno = t->s.failed_errno};
    mx_sweep_free(&t->s);
    mx_free(t->marked);
    return done_removing(&t->o, err, out, dir, eb);
}

mx_err mx_cold_gc(const char *dir, const mx_hash256 *key, uint64_t max_bytes, uint64_t ttl_s,
                  mx_cold_counts *out, mx_errbuf *eb)
{
    tool_sweep t;
    mx_err err = begin_sweep(&t, dir, key, NULL, MX_COLD_WAIT_FOREVER, eb);
    if (err == MX_OK) {
        t.s.ttl_s = (int64_t)(ttl_s < INT64_MAX ? ttl_s : INT64_MAX);
        mx_sweep_mark_leftovers(&t.s, t.marked);
        mx_sweep_delete(&t.s, t.marked, "leftovers");
        mx_sweep_delete_strays(&t.s);
        mx_sweep_mark_expired(&t.s, t.marked);
        mx_sweep_delete(&t.s, t.marked, "unused_for_longer_than_ttl");
        mx_sweep_mark_over_budget(&t.s, t.marked, max_bytes);
        mx_sweep_delete(&t.s, t.marked, "over_limit");
    }
    return end_sweep(&t, err, out, dir, eb);
}

mx_err mx_cold_remove_folder(const char *dir, const mx_hash256 *key, const char *folder,
                             uint32_t wait_ms, mx_cold_counts *out, mx_errbuf *eb)
{
    tool_sweep t;
    mx_err err = begin_sweep(&t, dir, key, folder, wait_ms, eb);
    if (err == MX_OK) {
        mx_sweep_mark_leftovers(&t.s, t.marked);
        for (size_t i = 0; i < t.s.n_files; i++) {
            t.marked[i] |= t.s.files[i].kind != MX_SWEPT_TEMP;
        }
        mx_sweep_delete(&t.s, t.marked, "asked_for");
    }
    return end_sweep(&t, err, out, dir, eb);
}
