/* SPDX-License-Identifier: MIT
 *
 * Removing a point of a conversation, asked for by a person.
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
    bool was_found;
} removal;

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
    kept k = {.but = r->id, .trust = &model->trust, .eb = r->eb};
    mx_err err = has_manifest ? mx_visit_manifest(&model->trust, model->fd, path, r->id, &m, &copy,
                                              r->eb)
                              : MX_OK;
    if (err != MX_OK && err != MX_E_CORRUPT) {
        return err;
    }
    err = mx_visit_names(&model->trust, model->fd, "sessions", keep_objects, &k);
    if (err == MX_OK) {
        /* The manifest first: a removal that is interrupted leaves pages, which age, and no promise. */
        remove_file(model->fd, path, r->out);
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
    mx_free(copy);
    return err;
}

mx_err mx_cold_remove_entry(const char *dir, const mx_hash256 *key, const char *folder,
                            const mx_hash256 *id, const mx_cold_names *also, uint32_t wait_ms,
                            mx_cold_counts *out, mx_errbuf *eb)
{
    mx_visit o;
    *out = (mx_cold_counts){0};
    removal r = {.id = id, .also = also, .out = out, .eb = eb};
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
