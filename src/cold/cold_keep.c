/* SPDX-License-Identifier: MIT
 *
 * What a sweep must not take, because a bookmark says so.
 *
 * A point that has a name keeps its manifest and the rows behind its last whole page, also when another
 * conversation has gone on from there: else that one's removal would take the rest of it. What is
 * pinned keeps all that its manifest names. A bookmark that nothing is left of goes itself.
 */
#include "cold/cold_sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "cold/cold_manifest.h"

typedef struct kept_id {
    mx_hash256 id;
    uint16_t root;
    bool is_pinned;
    bool is_entry; /* its manifest is meant, too; a page inside a chain may be the end of another */
} kept_id;

typedef struct keeping {
    mx_sweep *s;
    kept_id *ids; /* [n] */
    size_t n, cap;
} keeping;

static int compare_kept(const void *a, const void *b)
{
    const kept_id *x = a, *y = b;
    int c = memcmp(&x->id, &y->id, sizeof x->id);
    return c != 0 ? c : (int)x->root - (int)y->root;
}

static void keep(keeping *k, const kept_id *kept)
{
    void *ids = k->ids;
    if (!mx_grow(&ids, &k->cap, k->n + 1, sizeof *k->ids)) {
        k->s->err = MX_E_NOMEM; /* nothing is deleted then */
    } else {
        k->ids = ids;
        k->ids[k->n++] = *kept;
    }
}

static void keep_chain(keeping *k, int sessions_fd, uint16_t root, const mx_hash256 *entry)
{
    mx_disk_manifest m;
    uint8_t *copy;
    char name[MX_COLD_NAME_CAP];
    mx_cold_session_name(entry, name);
    mx_err err = mx_cold_read_manifest(k->s->f->ops, sessions_fd, name, entry, k->s->key,
                                       k->s->needs_tag, &m, &copy, NULL);
    if (err == MX_E_IO || err == MX_E_NOMEM) {
        k->s->err = err; /* what it names is not known, and must not go */
    }
    for (uint32_t i = 0; err == MX_OK && i < m.n_pages + m.n_states; i++) {
        const mx_hash256 *id = i < m.n_pages ? &m.page_ids[i] : &m.state_ids[i - m.n_pages];
        keep(k, &(kept_id){.id = *id, .root = root, .is_pinned = true});
    }
    mx_free(copy);
}

static void load_bookmark(keeping *k, int sessions_fd, size_t i)
{
    mx_sweep *s = k->s;
    mx_swept_file *e = &s->files[i];
    mx_hash256 own;
    struct stat st;
    char manifest[MX_COLD_NAME_CAP];
    void *bookmarks = s->bookmarks;
    mx_bookmark b;
    if (!mx_hash256_from_hex(&own, e->name, 64)) {
        return;
    }
    mx_err err = mx_bookmark_read(s->f->ops, sessions_fd, &own, s->key, s->needs_tag, &b, NULL);
    if (err == MX_E_IO || err == MX_E_NOMEM) {
        s->err = err;
    }
    if (err != MX_OK) {
        s->n_foreign += err == MX_E_UNSUPPORTED || err == MX_E_CORRUPT;
        return;
    }
    if (!mx_grow(&bookmarks, &s->bookmarks_cap, s->n_bookmarks + 1, sizeof *s->bookmarks)) {
        s->err = MX_E_NOMEM;
        return;
    }
    s->bookmarks = bookmarks;
    mx_cold_session_name(&b.entry, manifest);
    bool is_dead = fstatat(sessions_fd, manifest, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
    s->bookmarks[s->n_bookmarks++] = (mx_swept_bookmark){b, i, is_dead};
    keep(k, &(kept_id){b.entry, e->root, b.is_pinned, true});
    if (b.is_pinned) {
        keep_chain(k, sessions_fd, e->root, &b.entry);
    }
}

static void load_root(keeping *k, uint16_t root)
{
    mx_sweep *s = k->s;
    int root_fd = -1, sessions_fd = -1;
    mx_err err;
    for (size_t i = 0; i < s->n_files; i++) {
        if (s->files[i].kind != MX_SWEPT_BOOKMARK || s->files[i].root != root) {
            continue;
        }
        if (sessions_fd < 0) { /* most folders have none */
            root_fd = mx_cold_open_dir(s->f->ops, s->f->v1_fd, s->roots[root], false, &err, NULL);
            sessions_fd = root_fd < 0 ? -1
                                      : mx_cold_open_dir(s->f->ops, root_fd, "sessions", false, &err, NULL);
            if (sessions_fd < 0) {
                s->err = err;
                break;
            }
        }
        load_bookmark(k, sessions_fd, i);
    }
    if (sessions_fd >= 0) {
        close(sessions_fd);
    }
    if (root_fd >= 0) {
        close(root_fd);
    }
}

void mx_sweep_load_bookmarks(mx_sweep *s)
{
    keeping k = {.s = s};
    for (size_t root = 0; root < s->n_roots; root++) {
        load_root(&k, (uint16_t)root);
    }
    if (k.n > 0) {
        qsort(k.ids, k.n, sizeof *k.ids, compare_kept);
    }
    for (size_t i = 0; k.n > 0 && i < s->n_files; i++) {
        mx_swept_file *e = &s->files[i];
        kept_id key = {.id = e->id, .root = e->root};
        const kept_id *hit = mx_swept_is_stored(e) ? bsearch(&key, k.ids, k.n, sizeof key, compare_kept)
                                                   : NULL;
        if (hit == NULL) {
            continue;
        }
        while (hit > k.ids && compare_kept(hit - 1, &key) == 0) {
            hit--;
        }
        for (; hit < k.ids + k.n && compare_kept(hit, &key) == 0; hit++) {
            bool is_meant = e->kind != MX_SWEPT_SESSION || hit->is_entry;
            e->is_named |= is_meant;
            e->is_pinned |= is_meant && hit->is_pinned;
        }
    }
    mx_free(k.ids);
}

void mx_sweep_mark_dead_bookmarks(const mx_sweep *s, bool *marked)
{
    for (size_t i = 0; i < s->n_bookmarks; i++) {
        const mx_swept_bookmark *b = &s->bookmarks[i];
        marked[b->file] = b->is_dead && mx_swept_is_old_enough(s, &s->files[b->file]);
    }
}
