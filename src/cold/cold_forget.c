/* SPDX-License-Identifier: MIT
 *
 * Removing a point of a conversation, asked for by a person, or because a session's time is over.
 *
 * A page may be named by many manifests, so what a removed one leaves behind is found by reading the
 * others: their page names, sorted, are the pages that stay.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "cold/cold_sweep.h"
#include "cold/cold_visit.h"

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

/* The pages and states of all manifests but one; and, when a whole session goes, but those of points
 * inside its chain that no bookmark points to. */
typedef struct kept {
    const mx_hash256 *but;
    const mx_disk_manifest *chain; /* NULL = the one only */
    const mx_hash256 *marked;      /* [n_marked] */
    size_t n_marked;
    mx_cold_counts *out;
    mx_hash256 *ids; /* [n] */
    size_t n, cap;
    const mx_cold_trust *trust;
    mx_errbuf *eb;
} kept;

static bool is_listed(const mx_hash256 *ids, size_t n, const mx_hash256 *id)
{
    size_t i = 0;
    while (i < n && !mx_hash256_eq(&ids[i], id)) {
        i++;
    }
    return i < n;
}

static bool is_inside(const kept *k, const mx_disk_manifest *m, const mx_hash256 *id)
{
    return k->chain != NULL && m->n_pages <= k->chain->n_pages
           && memcmp(m->page_ids, k->chain->page_ids, m->n_pages * sizeof *m->page_ids) == 0
           && !is_listed(k->marked, k->n_marked, id);
}

static mx_err keep_objects(void *arg, int dir, const char *name)
{
    kept *k = arg;
    mx_hash256 id;
    mx_disk_manifest m;
    uint8_t *copy;
    mx_errbuf eb;
    if (!mx_visit_is_named(name, ".session", &id) || mx_hash256_eq(&id, k->but)) {
        return MX_OK;
    }
    mx_err err = mx_visit_manifest(k->trust, dir, name, &id, &m, &copy, &eb);
    if (err == MX_E_CORRUPT || err == MX_E_NOT_FOUND) {
        return MX_OK; /* it keeps nothing */
    }
    if (err != MX_OK) { /* what it names is not known, and must not go */
        return mx_fail(k->eb, err, "nothing was removed, for another entry, %.16s..., cannot be "
                       "read: %s", name, eb.text);
    }
    if (is_inside(k, &m, &id)) {
        remove_file(dir, name, k->out);
        mx_free(copy);
        return MX_OK;
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

static mx_err remove_damaged(const mx_visit_model *model, mx_cold_counts *out)
{
    MX_TRY(mx_visit_names(&model->trust, model->fd, "quarantine", remove_any, out));
    return mx_visit_names(&model->trust, model->fd, "trash", remove_any, out);
}

typedef struct removal {
    const mx_hash256 *id;
    const mx_cold_names *also;
    mx_cold_counts *out;
    mx_errbuf *eb;
    bool is_session; /* points inside its chain go, too */
    bool was_found;
} removal;

/* Bookmarks of an entry that is removed. */
typedef struct unmarking {
    const mx_visit_model *model;
    const mx_hash256 *entry;
    mx_cold_counts *out;
} unmarking;

static mx_err unmark(void *arg, int dir, const char *name)
{
    const unmarking *u = arg;
    mx_hash256 own;
    mx_bookmark b;
    const mx_cold_trust *t = &u->model->trust;
    if (mx_visit_is_named(name, ".bookmark", &own)
        && mx_bookmark_read(t->ops, dir, &own, t->key, t->needs_tag, &b, NULL) == MX_OK
        && mx_hash256_eq(&b.entry, u->entry))
    {
        remove_file(dir, name, u->out);
    }
    return MX_OK;
}

/* States before their pages, leaf first. */
static void remove_objects(const mx_visit_model *model, const mx_cold_names *names, const kept *k,
                           mx_cold_counts *out)
{
    char path[MX_COLD_NAME_CAP + 16];
    for (size_t i = names->n_pages + names->n_states; i-- > 0;) {
        bool is_page = i < names->n_pages;
        const mx_hash256 *id = is_page ? &names->page_ids[i]
                                       : &names->state_ids[i - names->n_pages];
        if (!mx_visit_is_among(k->ids, k->n, id)) {
            mx_visit_object_path(is_page ? MX_COLD_PAGE : MX_COLD_STATE, id, path);
            remove_file(model->fd, path, out);
        }
    }
}

/* Where the bookmarks of a folder stand, but for one entry. */
typedef struct bookmark_ends {
    const mx_hash256 *but;
    mx_hash256 *ids; /* [n] */
    size_t n, cap;
    bool has_failed;
} bookmark_ends;

static bool add_end(void *arg, const char *folder, const mx_bookmark *b)
{
    bookmark_ends *e = arg;
    void *ids = e->ids;
    (void)folder;
    if (mx_hash256_eq(&b->entry, e->but)) {
        return true;
    }
    e->has_failed = !mx_grow(&ids, &e->cap, e->n + 1, sizeof *e->ids);
    e->ids = ids;
    if (!e->has_failed) {
        e->ids[e->n++] = b->entry;
    }
    return !e->has_failed;
}

static mx_err remove_from(void *arg, const mx_visit_model *model)
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
    kept k = {.but = r->id, .trust = &model->trust, .out = r->out, .eb = r->eb};
    bookmark_ends ends = {.but = r->id};
    mx_err err = has_manifest ? mx_visit_manifest(&model->trust, model->fd, path, r->id, &m, &copy,
                                              r->eb)
                              : MX_OK;
    if (err != MX_OK && err != MX_E_CORRUPT) {
        return err;
    }
    if (r->is_session && copy != NULL) {
            err = mx_visit_bookmarks(model, add_end, &ends);
        err = err == MX_OK && ends.has_failed ? MX_E_NOMEM : err;
        k.chain = &m;
        k.marked = ends.ids;
        k.n_marked = ends.n;
    } else {
        err = MX_OK; /* a damaged manifest says nothing, and goes */
    }
    if (err == MX_OK) {
        err = mx_visit_names(&model->trust, model->fd, "sessions", keep_objects, &k);
    }
    if (err == MX_OK) {
        /* The manifest first: a removal that is interrupted leaves pages, which age, and no promise. */
        remove_file(model->fd, path, r->out);
        unmarking u = {model, r->id, r->out};
        (void)mx_visit_names(&model->trust, model->fd, "sessions", unmark, &u);
        if (k.n > 0) {
            qsort(k.ids, k.n, sizeof *k.ids, mx_visit_compare);
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
    mx_free(ends.ids);
    mx_free(copy);
    return err;
}

static mx_err remove_entry(const char *dir, const mx_hash256 *key, const char *folder,
                           removal r, uint32_t wait_ms, mx_cold_counts *out, mx_errbuf *eb)
{
    mx_visit o;
    *out = (mx_cold_counts){0};
    r.out = out;
    r.eb = eb;
    mx_err err = mx_visit_open(&o, dir, key, true, wait_ms, eb);
    if (err == MX_OK) {
        err = mx_visit_models(&o, folder, remove_from, &r);
    }
    err = mx_visit_done_removing(&o, err, out, dir, eb);
    if (err == MX_OK && !r.was_found) {
        return mx_fail(eb, MX_E_NOT_FOUND, "there is no such entry in %s", dir);
    }
    return err;
}

mx_err mx_cold_remove_entry(const char *dir, const mx_hash256 *key, const char *folder,
                            const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                            mx_cold_counts *out, mx_errbuf *eb)
{
    return remove_entry(dir, key, folder, (removal){.id = id, .also = also}, wait_ms, out, eb);
}

mx_err mx_cold_remove_session(const char *dir, const mx_hash256 *key, const char *folder,
                              const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                              mx_cold_counts *out, mx_errbuf *eb)
{
    removal r = {.id = id, .also = also, .is_session = true};
    return remove_entry(dir, key, folder, r, wait_ms, out, eb);
}

/* ---- sessions that have had their time -------------------------------------------------------- */

enum { EXPIRED_AT_ONCE = 256 }; /* of one model; the rest goes with the next sweep */

typedef struct expiring {
    int64_t now_s, min_age_s;
    mx_sweep_expired_fn *fn;
    void *arg;
    mx_cold_counts *out;
    mx_bookmark expired[EXPIRED_AT_ONCE]; /* [n] of one model */
    size_t n;
    mx_hash256 *others; /* [n_others] entries that other bookmarks point to */
    size_t n_others, others_cap;
    bool has_failed;
} expiring;

static bool is_expired(const expiring *x, const mx_bookmark *b)
{
    int64_t age = x->now_s > b->used_s ? x->now_s - b->used_s : 0;
    bool is_known = b->used_s >= MX_SWEPT_PLAUSIBLE_S; /* else the sweep stamps it anew */
    return b->is_session && !b->is_pinned && b->ttl_s > 0 && is_known && age >= x->min_age_s
           && (uint64_t)age >= b->ttl_s;
}

static bool sort_bookmark(void *arg, const char *folder, const mx_bookmark *b)
{
    expiring *x = arg;
    (void)folder;
    if (is_expired(x, b) && x->n < EXPIRED_AT_ONCE) {
        x->expired[x->n++] = *b;
        return true;
    }
    void *others = x->others;
    if (!mx_grow(&others, &x->others_cap, x->n_others + 1, sizeof *x->others)) {
        x->has_failed = true;
        return false;
    }
    x->others = others;
    x->others[x->n_others++] = b->entry;
    return true;
}

static mx_err expire_in(void *arg, const mx_visit_model *model)
{
    expiring *x = arg;
    x->n = x->n_others = 0;
    MX_TRY(mx_visit_bookmarks(model, sort_bookmark, x));
    if (x->has_failed) {
        return MX_E_NOMEM;
    }
    for (size_t i = 0; i < x->n; i++) {
        const mx_bookmark *b = &x->expired[i];
        char name[MX_COLD_NAME_CAP], path[MX_COLD_NAME_CAP + 16];
        bool is_shared = false;
        for (size_t k = 0; k < x->n_others && !is_shared; k++) {
            is_shared = mx_hash256_eq(&x->others[k], &b->entry);
        }
        mx_bookmark_file_name(&b->own, name);
        snprintf(path, sizeof path, "sessions/%.90s", name);
        remove_file(model->fd, path, x->out);
        if (!is_shared) {
            mx_errbuf eb = {{0}};
            removal r = {.id = &b->entry, .out = x->out, .eb = &eb, .is_session = true};
            (void)remove_from(&r, model); /* what cannot go now ages as the rest does */
            if (x->fn != NULL) {
                x->fn(x->arg, model->name, &b->entry);
            }
        }
    }
    return MX_OK;
}

mx_err mx_sweep_expire_sessions(int v1_fd, const mx_cold_trust *trust, int64_t now_s,
                                int64_t min_age_s, mx_sweep_expired_fn *fn, void *arg,
                                mx_cold_counts *out)
{
    expiring *x = mx_calloc(1, sizeof *x);
    mx_visit o = {.top = -1, .v1 = v1_fd, .lock = -1, .trust = *trust}; /* lent */
    if (x == NULL) {
        return MX_E_NOMEM;
    }
    *x = (expiring){.now_s = now_s, .min_age_s = min_age_s, .fn = fn, .arg = arg, .out = out};
    mx_err err = mx_visit_models(&o, NULL, expire_in, x);
    mx_free(x->others);
    mx_free(x);
    return err;
}
