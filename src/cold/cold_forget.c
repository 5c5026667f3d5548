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

typedef struct id_list {
    mx_hash256 *ids; /* [n] */
    size_t n, cap;
} id_list;

static bool add_ids(id_list *l, const mx_hash256 *ids, size_t n)
{
    void *grown = l->ids;
    bool ok = mx_grow(&grown, &l->cap, l->n + n, sizeof *l->ids);
    l->ids = grown;
    if (ok && n > 0) {
        memcpy(l->ids + l->n, ids, n * sizeof *l->ids);
        l->n += n;
    }
    return ok;
}

static bool is_listed(const id_list *l, const mx_hash256 *id)
{
    size_t i = 0;
    while (i < l->n && !mx_hash256_eq(&l->ids[i], id)) {
        i++;
    }
    return i < l->n;
}

/* What the manifests of a folder name when one of them goes: what stays, and, when a whole session
 * goes, the points inside its chain that no bookmark points to. */
typedef struct sorting {
    const mx_visit_model *model;
    const mx_hash256 *but;
    const mx_cold_names *chain; /* NULL = the one only */
    id_list marked;             /* where bookmarks of other points stand */
    id_list kept;               /* pages and states; sorted in the end */
    id_list points, states;     /* inside the chain: the last pages, which are names of manifests, too */
    bool is_marked;  /* one stands here, too */
    bool has_failed; /* no memory */
    mx_errbuf *eb;
} sorting;

static void free_sorting(sorting *k)
{
    id_list *const lists[] = {&k->marked, &k->kept, &k->points, &k->states};
    for (size_t i = 0; i < MX_COUNT(lists); i++) {
        mx_free(lists[i]->ids);
    }
}

/* Its payload says nothing here, and may be megabytes in each of thousands. */
static bool read_head(const mx_visit_model *model, const mx_hash256 *id, mx_disk_page *page)
{
    char path[MX_COLD_NAME_CAP + 16];
    mx_visit_object_path(MX_COLD_PAGE, id, path);
    return mx_object_read_head(model->trust.ops, model->fd, path, MX_COLD_PAGE, id, page);
}

/* A turn ends inside of a page as a rule, and the page that goes on from there has another name: their
 * tokens tell. */
static bool begins_with(const mx_visit_model *model, const mx_hash256 *whole, const mx_hash256 *part)
{
    mx_disk_page a, b;
    return read_head(model, whole, &a) && read_head(model, part, &b) && mx_hash256_eq(&a.parent, &b.parent)
           && b.n_tokens <= a.n_tokens && memcmp(a.tokens, b.tokens, b.n_tokens * sizeof *b.tokens) == 0;
}

static bool is_inside(const sorting *k, const mx_disk_manifest *m, const mx_hash256 *id)
{
    const mx_cold_names *chain = k->chain;
    const uint32_t last = m->n_pages - 1;
    if (chain == NULL || last >= chain->n_pages || is_listed(&k->marked, id)
        || memcmp(m->page_ids, chain->page_ids, last * sizeof *m->page_ids) != 0)
    {
        return false;
    }
    return mx_hash256_eq(id, &chain->page_ids[last])
           || (m->n_tokens % MX_PAGE_TOKENS != 0 && begins_with(k->model, &chain->page_ids[last], id));
}

static mx_err sort_manifest(void *arg, int dir, const char *name)
{
    sorting *k = arg;
    mx_hash256 id;
    mx_disk_manifest m;
    uint8_t *copy;
    mx_errbuf eb;
    if (!mx_visit_is_named(name, ".session", &id) || mx_hash256_eq(&id, k->but)) {
        return MX_OK;
    }
    mx_err err = mx_visit_manifest(&k->model->trust, dir, name, &id, &m, &copy, &eb);
    if (err == MX_E_CORRUPT || err == MX_E_NOT_FOUND) {
        return MX_OK; /* it keeps nothing */
    }
    if (err != MX_OK) { /* what it names is not known, and must not go */
        return mx_fail(k->eb, err, "nothing was removed, for another entry, %.16s..., cannot be "
                       "read: %s", name, eb.text);
    }
    bool goes = is_inside(k, &m, &id);
    bool ok = (goes ? add_ids(&k->points, &id, 1) : add_ids(&k->kept, m.page_ids, m.n_pages))
              && add_ids(goes ? &k->states : &k->kept, m.state_ids, m.n_states);
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
    mx_cold_names also; /* of its chain, as somebody else knows it */
    mx_cold_counts *out;
    mx_errbuf *eb;
    bool is_session; /* points inside its chain go, too */
    bool spares_marked; /* where a bookmark stands, nothing goes: then is_spared */
    int64_t now_s, min_age_s; /* what is younger stays; 0 = whatever its age, */
    int64_t since_ns;         /* unless it was used since then */
    bool was_found, is_spared;
} removal;

/* False: it stays, for it has been written since it was read: used, pinned, or moved on. */
static bool remove_bookmark(const mx_visit_model *model, int sessions_fd, const mx_bookmark *b,
                            mx_cold_counts *out)
{
    const mx_cold_trust *t = &model->trust;
    mx_err err = mx_bookmark_remove_unchanged(t->ops, sessions_fd, b, t->key, t->needs_tag);
    if (err == MX_OK) {
        out->n_files++;
        out->n_bytes += MX_BOOKMARK_BYTES;
    } else if (err != MX_E_BUSY && err != MX_E_NOT_FOUND) {
        out->n_left++;
        out->left_errno = errno;
    }
    return err == MX_OK;
}

/* Bookmarks of an entry that is removed. */
typedef struct unmarking {
    const mx_visit_model *model;
    int sessions_fd;
    const mx_hash256 *entry;
    mx_cold_counts *out;
} unmarking;

static bool unmark(void *arg, const char *folder, const mx_bookmark *b)
{
    const unmarking *u = arg;
    (void)folder;
    if (mx_hash256_eq(&b->entry, u->entry)) {
        (void)remove_bookmark(u->model, u->sessions_fd, b, u->out);
    }
    return true;
}

static void unmark_all(const removal *r, const mx_visit_model *model)
{
    mx_err err;
    int sessions_fd = mx_cold_open_dir(model->trust.ops, model->fd, "sessions", false, &err, NULL);
    if (sessions_fd >= 0) {
        unmarking u = {model, sessions_fd, r->id, r->out};
        (void)mx_visit_bookmarks(model, unmark, &u);
        close(sessions_fd);
    }
}

/* All manifests were read, but one may have been written since that names it: whoever writes one has set
 * the times of its pages before. A time in the future tells nothing of a use. */
static bool is_in_use(const removal *r, const struct stat *st)
{
    int64_t used_s = (int64_t)st->st_mtim.tv_sec, used_ns = mx_cold_time_ns(&st->st_mtim);
    return (r->min_age_s > 0 && used_s > r->now_s - r->min_age_s)
           || (used_ns >= r->since_ns && used_ns <= mx_cold_wall_ns());
}

static void remove_unused(const removal *r, int dir, const char *path)
{
    struct stat st;
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && !is_in_use(r, &st)) {
        remove_file(dir, path, r->out);
    }
}

/* States before their pages, leaf first. */
static void remove_objects(const removal *r, const mx_visit_model *model, const mx_cold_names *names,
                           const id_list *kept)
{
    char path[MX_COLD_NAME_CAP + 16];
    for (size_t i = names->n_pages + names->n_states; i-- > 0;) {
        bool is_page = i < names->n_pages;
        const mx_hash256 *id = is_page ? &names->page_ids[i]
                                       : &names->state_ids[i - names->n_pages];
        if (!mx_visit_is_among(kept->ids, kept->n, id)) {
            mx_visit_object_path(is_page ? MX_COLD_PAGE : MX_COLD_STATE, id, path);
            remove_unused(r, model->fd, path);
        }
    }
}

static bool add_end(void *arg, const char *folder, const mx_bookmark *b)
{
    sorting *k = arg;
    (void)folder;
    if (mx_hash256_eq(&b->entry, k->but)) {
        k->is_marked = true;
    } else {
        k->has_failed = !add_ids(&k->marked, &b->entry, 1);
    }
    return !k->has_failed;
}

static void manifest_path(const mx_hash256 *id, char path[MX_COLD_NAME_CAP + 16])
{
    char name[MX_COLD_NAME_CAP];
    mx_cold_session_name(id, name);
    snprintf(path, MX_COLD_NAME_CAP + 16, "sessions/%.90s", name);
}

/* The manifests first: a removal that is interrupted leaves pages, which age, and no promise. */
static mx_err remove_sorted(const removal *r, const sorting *k, const mx_cold_names *named)
{
    const mx_visit_model *model = k->model;
    char path[MX_COLD_NAME_CAP + 16];
    manifest_path(r->id, path);
    remove_file(model->fd, path, r->out);
    for (size_t i = 0; i < k->points.n; i++) {
        manifest_path(&k->points.ids[i], path);
        remove_unused(r, model->fd, path);
    }
    if (!r->spares_marked) { /* else there was none, and one that has come back needs its name */
        unmark_all(r, model);
    }
    const mx_cold_names inside = {k->points.ids, k->points.n, k->states.ids, k->states.n};
    remove_objects(r, model, named, &k->kept);
    remove_objects(r, model, &inside, &k->kept);
    remove_objects(r, model, &r->also, &k->kept);
    return remove_damaged(model, r->out);
}

static mx_err remove_from(void *arg, const mx_visit_model *model)
{
    removal *r = arg;
    char path[MX_COLD_NAME_CAP + 16];
    mx_disk_manifest m;
    mx_cold_names named = {0};
    uint8_t *copy = NULL;
    struct stat st;
    r->since_ns = mx_cold_wall_ns();
    manifest_path(r->id, path);
    bool has_manifest = fstatat(model->fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (!has_manifest && r->also.n_pages == 0) {
        return MX_OK;
    }
    r->was_found = true;
    mx_err err = has_manifest ? mx_visit_manifest(&model->trust, model->fd, path, r->id, &m, &copy,
                                                  r->eb)
                              : MX_OK;
    if (err != MX_OK && err != MX_E_CORRUPT) {
        return err;
    }
    sorting k = {.model = model, .but = r->id, .eb = r->eb};
    err = MX_OK; /* a damaged manifest says nothing, and goes */
    if (copy != NULL) {
        named = (mx_cold_names){m.page_ids, m.n_pages, m.state_ids, m.n_states};
    }
    if (r->is_session) {
        k.chain = copy != NULL ? &named : &r->also;
        err = mx_visit_bookmarks(model, add_end, &k);
        err = err == MX_OK && k.has_failed ? MX_E_NOMEM : err;
    }
    r->is_spared = r->spares_marked && k.is_marked;
    if (err == MX_OK && !r->is_spared) {
        err = mx_visit_names(&model->trust, model->fd, "sessions", sort_manifest, &k);
    }
    if (err == MX_OK && !r->is_spared) {
        if (k.kept.n > 0) {
            qsort(k.kept.ids, k.kept.n, sizeof *k.kept.ids, mx_visit_compare);
        }
        err = remove_sorted(r, &k, &named);
    }
    free_sorting(&k);
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

static mx_cold_names names_or_none(const mx_cold_names *names)
{
    return names != NULL ? *names : (mx_cold_names){0};
}

mx_err mx_cold_remove_entry(const char *dir, const mx_hash256 *key, const char *folder,
                            const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                            mx_cold_counts *out, mx_errbuf *eb)
{
    return remove_entry(dir, key, folder, (removal){.id = id, .also = names_or_none(also)}, wait_ms, out, eb);
}

mx_err mx_cold_remove_session(const char *dir, const mx_hash256 *key, const char *folder,
                              const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                              mx_cold_counts *out, mx_errbuf *eb)
{
    removal r = {.id = id, .also = names_or_none(also), .is_session = true};
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
    bool is_over; /* fn has said so */
} expiring;

static bool is_expired(const expiring *x, const mx_bookmark *b)
{
    int64_t age = x->now_s > b->used_s ? x->now_s - b->used_s : 0;
    bool is_known = b->used_s >= MX_SWEPT_PLAUSIBLE_S; /* else the sweep stamps it anew */
    return b->is_session && !b->is_pinned && b->ttl_s > 0 && is_known && age >= x->min_age_s
           && (uint64_t)age >= b->ttl_s;
}

static bool add_expired(void *arg, const char *folder, const mx_bookmark *b)
{
    expiring *x = arg;
    (void)folder;
    if (is_expired(x, b)) {
        x->expired[x->n++] = *b;
    }
    return x->n < EXPIRED_AT_ONCE;
}

/* Somebody has read it a moment ago, in another session or none. */
static bool is_read(const expiring *x, const mx_visit_model *model, const mx_hash256 *entry)
{
    char path[MX_COLD_NAME_CAP + 16];
    struct stat st;
    mx_visit_object_path(MX_COLD_PAGE, entry, path);
    return x->min_age_s > 0 && fstatat(model->fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0
           && (int64_t)st.st_mtim.tv_sec > x->now_s - x->min_age_s;
}

static mx_err expire_in(void *arg, const mx_visit_model *model)
{
    expiring *x = arg;
    mx_err err;
    x->n = 0;
    int sessions_fd = mx_cold_open_dir(model->trust.ops, model->fd, "sessions", false, &err, NULL);
    if (sessions_fd < 0) {
        return err == MX_E_NOT_FOUND ? MX_OK : err;
    }
    err = mx_visit_bookmarks(model, add_expired, x);
    for (size_t i = 0; err == MX_OK && i < x->n && !x->is_over; i++) {
        const mx_bookmark *b = &x->expired[i];
        mx_errbuf eb = {{0}};
        removal r = {.id = &b->entry, .out = x->out, .eb = &eb, .is_session = true, .spares_marked = true,
                     .now_s = x->now_s, .min_age_s = x->min_age_s};
        if (is_read(x, model, &b->entry) || !remove_bookmark(model, sessions_fd, b, x->out)) {
            continue; /* others may take long to go */
        }
        (void)remove_from(&r, model); /* what cannot go now ages as the rest does */
        x->is_over = !r.is_spared && x->fn != NULL && !x->fn(x->arg, model->name, &b->entry);
    }
    close(sessions_fd);
    return err;
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
    mx_free(x);
    return err;
}
