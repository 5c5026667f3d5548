/* SPDX-License-Identifier: MIT
 *
 * What is in a folder, whether it is sound, and what is too much. How it is walked is cold_visit.c;
 * removing single points is cold_forget.c.
 */
#include "cold/cold_tools.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cold/cold_sweep.h"
#include "cold/cold_visit.h"

typedef struct listing {
    mx_cold_entry_fn *fn;
    void *arg;
    const mx_visit_model *model;
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
    if (l->is_over || !mx_visit_is_named(name, ".session", &id)
        || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0
        || mx_visit_manifest(&l->model->trust, dir, name, &id, &m, &copy, &eb) != MX_OK)
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
        mx_visit_object_path(is_page ? MX_COLD_PAGE : MX_COLD_STATE,
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

static mx_err list_model(void *arg, const mx_visit_model *m)
{
    listing *l = arg;
    l->model = m;
    return mx_visit_names(&m->trust, m->fd, "sessions", list_one, l);
}

mx_err mx_cold_list(const char *dir, const mx_hash256 *key, const char *folder,
                    mx_cold_entry_fn *fn, void *arg, mx_errbuf *eb)
{
    mx_visit o;
    listing l = {.fn = fn, .arg = arg};
    mx_err err = mx_visit_open(&o, dir, key, false, 0, eb);
    if (err == MX_OK) {
        err = mx_visit_models(&o, folder, list_model, &l);
    }
    return mx_visit_done(&o, err, dir, eb);
}

/* ---- bookmarks ------------------------------------------------------------------------------- */

typedef struct bookmark_listing {
    mx_cold_bookmark_fn *fn;
    void *arg;
} bookmark_listing;

static mx_err list_bookmarks(void *arg, const mx_visit_model *m)
{
    const bookmark_listing *l = arg;
    mx_err err = mx_visit_bookmarks(m, l->fn, l->arg);
    return err == MX_E_IO ? MX_OK : err; /* a list is of use without one of them */
}

mx_err mx_cold_list_bookmarks(const char *dir, const mx_hash256 *key, const char *folder,
                              mx_cold_bookmark_fn *fn, void *arg, mx_errbuf *eb)
{
    mx_visit o;
    bookmark_listing l = {fn, arg};
    mx_err err = mx_visit_open(&o, dir, key, false, 0, eb);
    if (err == MX_OK) {
        err = mx_visit_models(&o, folder, list_bookmarks, &l);
    }
    return mx_visit_done(&o, err, dir, eb);
}

static mx_err open_model(mx_cold_folder *f, const char *dir, const mx_hash256 *key,
                         const char *folder, mx_errbuf *eb)
{
    mx_hash256 root;
    if (!mx_hash256_from_hex(&root, folder, strlen(folder))) {
        return mx_fail(eb, MX_E_INVALID, "%.64s is not the name of a model's folder", folder);
    }
    mx_cold_folder_init(f, key != NULL ? &mx_cold_shared_fileops : &mx_cold_real_fileops, dir, &root,
                        false);
    mx_err err = mx_cold_folder_ready(f, false, eb);
    if (err != MX_OK) {
        mx_cold_folder_close(f);
    }
    return err;
}

/* A bookmark in the making. */
typedef struct changing {
    const mx_cold_folder *f;
    const mx_hash256 *key;
    mx_bookmark_fn *fn;
    void *arg;
} changing;

static void renew_state(const mx_cold_folder *f, const mx_hash256 *id, int64_t now_ns)
{
    char path[MX_COLD_NAME_CAP + 16];
    mx_disk_page head;
    mx_visit_object_path(MX_COLD_STATE, id, path);
    if (mx_object_read_head(f->ops, f->root_fd, path, MX_COLD_STATE, id, &head)) {
        uint64_t at = head.first_position + head.n_tokens;
        (void)mx_cold_renew(f, f->root_fd, path, mx_cold_state_time_ns(now_ns, at));
    }
}

static void renew_chain(const mx_cold_folder *f, const mx_hash256 *key, const mx_hash256 *entry)
{
    const int64_t now_ns = mx_cold_wall_ns();
    char name[MX_COLD_NAME_CAP], path[MX_COLD_NAME_CAP + 16];
    mx_disk_manifest m;
    uint8_t *copy;
    mx_cold_session_name(entry, name);
    if (mx_cold_read_manifest(f->ops, f->sessions_fd, name, entry, key, false, &m, &copy, NULL) != MX_OK) {
        return;
    }
    (void)mx_cold_renew(f, f->sessions_fd, name, now_ns);
    for (uint32_t i = 0; i < m.n_states; i++) {
        renew_state(f, &m.state_ids[i], now_ns);
    }
    for (uint32_t i = m.n_pages; i-- > 0;) {
        mx_visit_object_path(MX_COLD_PAGE, &m.page_ids[i], path);
        (void)mx_cold_renew(f, f->root_fd, path, mx_cold_page_time_ns(now_ns, i));
    }
    mx_free(copy);
}

/* A sweep that has read the bookmarks before does not know of this one; but it lets be what is in use, and
 * what it points to is from here on. */
static bool change_and_renew(void *arg, mx_bookmark *b, bool is_there)
{
    const changing *c = arg;
    bool is_changed = c->fn(c->arg, b, is_there);
    if (is_changed && (b->is_pinned || !is_there)) {
        renew_chain(c->f, c->key, &b->entry);
    }
    return is_changed;
}

mx_err mx_cold_change_bookmark(const char *dir, const mx_hash256 *key, const char *folder,
                               const mx_hash256 *own, mx_bookmark_fn *fn, void *arg,
                               mx_errbuf *eb)
{
    mx_cold_folder f;
    MX_TRY(open_model(&f, dir, key, folder, eb));
    changing c = {&f, key, fn, arg};
    mx_err err = mx_bookmark_change(&f, own, key, change_and_renew, &c, eb);
    mx_cold_folder_close(&f);
    return err;
}

static bool pin(void *arg, mx_bookmark *b, bool is_there)
{
    const mx_cold_entry *e = *(const mx_cold_entry *const *)arg;
    (void)is_there;
    b->root = e->root;
    b->entry = e->id;
    b->n_tokens = e->n_tokens;
    b->is_pinned = true;
    return true;
}

mx_err mx_cold_pin_entry(const char *dir, const mx_hash256 *key, const mx_cold_entry *e,
                         mx_errbuf *eb)
{
    return mx_cold_change_bookmark(dir, key, e->folder, &e->id, pin, &e, eb);
}

mx_err mx_cold_remove_bookmark(const char *dir, const mx_hash256 *key, const char *folder,
                               const mx_hash256 *own, mx_errbuf *eb)
{
    mx_cold_folder f;
    MX_TRY(open_model(&f, dir, key, folder, eb));
    mx_err err = mx_bookmark_remove(f.ops, f.sessions_fd, own);
    mx_cold_folder_close(&f);
    return err == MX_OK || err == MX_E_NOT_FOUND
               ? err
               : mx_fail_errno(eb, err, errno, "cannot remove a bookmark in %s", dir);
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
    const mx_visit_model *model;
    char folder[16]; /* of the file at hand, below the model's: "pages/ab" */
    mx_object_reader reader;
} checking;

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
    if (!mx_visit_is_named(name, c->object == MX_COLD_STATE ? ".state" : ".page", &id)
        || (c->only != NULL && !mx_visit_is_among(c->ids, c->n_ids, &id)))
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
    snprintf(c->folder, sizeof c->folder, "%s/%s", mx_visit_folder_of(c->object), name);
    return mx_visit_names(&c->model->trust, dir, name, check_object, c);
}

static mx_err check_manifest(void *arg, int dir, const char *name)
{
    checking *c = arg;
    mx_hash256 id;
    mx_disk_manifest m;
    uint8_t *copy;
    mx_errbuf eb = {{0}};
    struct stat st;
    if (!mx_visit_is_named(name, ".session", &id) || (c->only != NULL && !mx_hash256_eq(c->only, &id))) {
        return MX_OK;
    }
    const mx_cold_trust *t = &c->model->trust;
    mx_err err = mx_visit_manifest(t, dir, name, &id, &m, &copy, &eb);
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
        qsort(c->ids, c->n_ids, sizeof *c->ids, mx_visit_compare);
    }
    mx_free(copy);
    judge(c, dir, name, err, &eb);
    return MX_OK;
}

static mx_err check_bookmark(void *arg, int dir, const char *name)
{
    checking *c = arg;
    mx_hash256 own;
    mx_bookmark b;
    mx_errbuf eb = {{0}};
    const mx_cold_trust *t = &c->model->trust;
    if (!mx_visit_is_named(name, ".bookmark", &own)) {
        return MX_OK;
    }
    mx_err err = mx_bookmark_read(t->ops, dir, &own, t->key, t->needs_tag, &b, &eb);
    if (err == MX_E_CORRUPT && t->key != NULL
        && mx_bookmark_read(t->ops, dir, &own, NULL, false, &b, NULL) == MX_OK)
    {
        err = mx_object_other_key(&eb);
    }
    c->out->n_files++;
    c->out->n_bytes += MX_BOOKMARK_BYTES;
    judge(c, dir, name, err, &eb);
    return MX_OK;
}

static mx_err check_model(void *arg, const mx_visit_model *m)
{
    checking *c = arg;
    c->model = m;
    snprintf(c->folder, sizeof c->folder, "sessions");
    mx_err err = mx_visit_names(&m->trust, m->fd, "sessions", check_manifest, c);
    if (err == MX_OK && c->only == NULL) {
        err = mx_visit_names(&m->trust, m->fd, "sessions", check_bookmark, c);
    }
    if (err == MX_OK) {
        c->object = MX_COLD_PAGE;
        err = mx_visit_names(&m->trust, m->fd, "pages", check_xx, c);
    }
    if (err == MX_OK) {
        c->object = MX_COLD_STATE;
        err = mx_visit_names(&m->trust, m->fd, "states", check_xx, c);
    }
    mx_free(c->ids);
    c->ids = NULL;
    c->n_ids = 0;
    return err;
}

mx_err mx_cold_verify(const char *dir, const mx_hash256 *key, const mx_hash256 *id, bool quarantine,
                      mx_cold_bad_fn *fn, void *arg, mx_cold_counts *out, mx_errbuf *eb)
{
    mx_visit o;
    *out = (mx_cold_counts){0};
    checking c = {.only = id, .quarantine = quarantine, .fn = fn, .arg = arg, .out = out};
    mx_err err = mx_visit_open(&o, dir, key, quarantine, MX_COLD_WAIT_FOREVER, eb);
    if (err == MX_OK) {
        err = mx_visit_models(&o, NULL, check_model, &c);
    }
    mx_object_reader_free(&c.reader);
    err = mx_visit_done(&o, err, dir, eb);
    if (id != NULL && err == MX_OK && out->n_files == 0) {
        return mx_fail(eb, MX_E_NOT_FOUND, "there is no such entry in %s", dir);
    }
    return err;
}

mx_err mx_cold_see_lock(const char *dir, const mx_hash256 *key, uint32_t wait_ms, mx_errbuf *eb)
{
    mx_visit o;
    const mx_err err = mx_visit_open(&o, dir, key, true, wait_ms, eb);
    mx_visit_close(&o);
    return err == MX_E_BUSY ? err : MX_OK;
}

/* ---- everything, or what is too much --------------------------------------------------------- */

/* The walk of a server's sweep, and what of its rules needs no knowledge of a model. Asked for by a
 * person, so files go at any age; but a temporary file may be one that is being written. */
typedef struct tool_sweep {
    mx_visit o;
    mx_cold_folder folder;
    mx_sweep s;
    bool *marked; /* [s.n_files] */
} tool_sweep;

static mx_err begin_sweep(tool_sweep *t, const char *dir, const mx_hash256 *key,
                          const char *only_root, uint32_t wait_ms, mx_cold_counts *expired,
                          mx_errbuf *eb)
{
    enum { ORPHAN_AGE_S = 3600 };
    static const mx_hash256 no_root;
    *t = (tool_sweep){.o = {.top = -1, .v1 = -1, .lock = -1}};
    MX_TRY(mx_visit_open(&t->o, dir, key, true, wait_ms, eb));
    mx_cold_folder_init(&t->folder, t->o.trust.ops, dir, &no_root, false);
    t->folder.top_fd = t->o.top; /* lent, */
    t->folder.v1_fd = t->o.v1;   /* like this one */
    t->s = (mx_sweep){.f = &t->folder,
                      .orphan_age_s = ORPHAN_AGE_S,
                      .only_root = only_root,
                      .key = t->o.trust.key,
                      .needs_tag = t->o.trust.needs_tag,
                      .own_root = MX_SWEEP_NO_ROOT,
                      .now_s = mx_wall_s()};
    if (expired != NULL) {
        (void)mx_sweep_expire_sessions(t->o.v1, &t->o.trust, t->s.now_s, 0, NULL, NULL, expired);
    }
    mx_sweep_walk(&t->s);
    t->marked = mx_calloc(t->s.n_files + 1, sizeof *t->marked);
    mx_err err = t->marked == NULL ? MX_E_NOMEM : t->s.err;
    return err == MX_OK ? MX_OK
                        : mx_fail(eb, err, "nothing was removed: cannot see all of %s: %s", dir,
                                  t->s.why.text[0] != '\0' ? t->s.why.text : mx_err_name(err));
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
    return mx_visit_done_removing(&t->o, err, out, dir, eb);
}

mx_err mx_cold_gc(const char *dir, const mx_hash256 *key, uint64_t max_bytes, uint64_t ttl_s,
                  mx_cold_counts *out, mx_errbuf *eb)
{
    tool_sweep t;
    mx_cold_counts expired = {0};
    mx_err err = begin_sweep(&t, dir, key, NULL, MX_COLD_WAIT_FOREVER, &expired, eb);
    if (err == MX_OK) {
        t.s.ttl_s = (int64_t)(ttl_s < INT64_MAX ? ttl_s : INT64_MAX);
        mx_sweep_mark_leftovers(&t.s, t.marked);
        mx_sweep_mark_dead_bookmarks(&t.s, t.marked);
        mx_sweep_delete(&t.s, t.marked, "leftovers");
        mx_sweep_delete_strays(&t.s);
        mx_sweep_mark_expired(&t.s, t.marked);
        mx_sweep_delete(&t.s, t.marked, "unused_for_longer_than_ttl");
        mx_sweep_mark_over_budget(&t.s, t.marked, max_bytes);
        mx_sweep_delete(&t.s, t.marked, "over_limit");
    }
    t.s.deleted_files += expired.n_files;
    t.s.deleted_bytes += expired.n_bytes;
    t.s.failed_files += expired.n_left;
    t.s.failed_errno = expired.n_left > 0 ? expired.left_errno : t.s.failed_errno;
    return end_sweep(&t, err, out, dir, eb);
}

mx_err mx_cold_remove_folder(const char *dir, const mx_hash256 *key, const char *folder,
                             uint32_t wait_ms, mx_cold_counts *out, mx_errbuf *eb)
{
    tool_sweep t;
    mx_err err = begin_sweep(&t, dir, key, folder, wait_ms, NULL, eb);
    if (err == MX_OK) {
        mx_sweep_mark_leftovers(&t.s, t.marked);
        for (size_t i = 0; i < t.s.n_files; i++) {
            t.marked[i] |= t.s.files[i].kind != MX_SWEPT_TEMP;
        }
        mx_sweep_delete(&t.s, t.marked, "asked_for");
    }
    return end_sweep(&t, err, out, dir, eb);
}
