/* SPDX-License-Identifier: MIT
 *
 * What is superfluous, and what goes when the folder is full.
 */
#include "cold/cold_sweep.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

enum {
    QUARANTINE_MAX_FILES = 64,               /* with their reasons: 128 names */
    QUARANTINE_MAX_BYTES = 256 * 1024 * 1024, /* a few states of a large model */
};

/* ---- what is superfluous --------------------------------------------------------------------- */

void mx_sweep_mark_leftovers(const mx_sweep *s, bool *marked)
{
    struct {
        uint64_t n_files, n_bytes;
    } *kept = mx_calloc(s->n_roots, sizeof *kept); /* in quarantine */
    for (size_t i = kept != NULL ? s->n_files : 0; i-- > 0;) { /* youngest first */
        const mx_swept_file *e = &s->files[i];
        if (e->kind == MX_SWEPT_TEMP) {
            marked[i] = mx_swept_age_s(s, e) >= s->orphan_age_s;
        } else if (e->kind == MX_SWEPT_TRASH) {
            marked[i] = true; /* whoever put it there held the lock that we hold now */
        } else if (e->kind == MX_SWEPT_QUARANTINE) {
            kept[e->root].n_bytes += e->bytes;
            marked[i] = ++kept[e->root].n_files > 2 * QUARANTINE_MAX_FILES
                        || kept[e->root].n_bytes > QUARANTINE_MAX_BYTES;
        }
    }
    mx_free(kept);
}

static int compare_id(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(mx_hash256));
}

/* Another process may have written it a moment ago: what it stands in for must not be gone from the
 * disk before it is there. */
static bool is_durable(mx_sweep *s, const mx_hash256 *id)
{
    mx_err err;
    if (mx_cold_index_is_synced(s->c->index, id)) {
        return true;
    }
    if (mx_cold_index_is_doubtful(s->c->index, id)) {
        return false;
    }
    int dir = mx_cold_open_synced(s->f, MX_COLD_PAGE, id, false, &err, NULL);
    if (dir < 0) {
        return false;
    }
    bool is_synced = s->f->ops->fsync(dir) == 0;
    if (!is_synced) {
        mx_cold_index_doubt(s->c->index, id);
    }
    close(dir);
    return is_synced;
}

/* Does a full page with the same parent begin with this partial page's tokens? One that lacks the rows of
 * windowed layers does not count, for nothing could be resumed in it; nor does one that no manifest names:
 * the partial page's own goes with it, and then nobody would find the rows after a restart. */
static bool is_extended(mx_sweep *s, const mx_cold_partial *partial)
{
    enum { BATCH = 32, ROUNDS = 8 };
    mx_cold *c = s->c;
    mx_disk_page page, other;
    mx_cold_want want = {.id = partial->id};
    if (mx_cold_load_page(c, s->f, &want, &c->sweeper_scratch, NULL, &page) != MX_OK
        || !mx_hash256_eq(&page.parent, &partial->parent)) { /* a manifest said so: a hint */
        return false;
    }
    for (int round = 0; round < ROUNDS; round++) {
        mx_cold_child unknown[BATCH];
        size_t n_unknown;
        mx_cold_child best =
            mx_cold_index_best_child(c->index, &partial->parent, page.tokens, page.n_tokens,
                                     MX_COLD_AMONG_FULL, unknown, BATCH, &n_unknown);
        if (best.n_common >= page.n_tokens) {
            if (!mx_cold_page_is_whole(c, s->f, &best.id, &c->sweeper_scratch)) {
                continue; /* from now on the index knows */
            }
            return mx_cold_index_is_named(c->index, &best.id) && is_durable(s, &best.id);
        }
        if (n_unknown == 0) {
            return false;
        }
        for (size_t i = 0; i < n_unknown; i++) {
            want.id = unknown[i].id;
            if (mx_cold_load_page(c, s->f, &want, &c->sweeper_scratch, NULL, &other) != MX_OK
                || mx_cold_index_link(c->index, &want.id, &other.parent, other.n_tokens,
                                      other.tokens) != MX_OK) {
                return false;
            }
        }
    }
    return false;
}

/* Marks the files of our root that have one of these names and may go. */
static void mark_named(const mx_sweep *s, bool *marked, mx_hash256 *ids, size_t n, bool also_pages)
{
    if (n > 0) {
        qsort(ids, n, sizeof *ids, compare_id);
    }
    for (size_t i = 0; n > 0 && i < s->n_files; i++) {
        const mx_swept_file *e = &s->files[i];
        bool is_right = e->kind == MX_SWEPT_SESSION || (e->kind == MX_SWEPT_PAGE && also_pages);
        if (is_right && !e->is_named && e->root == s->own_root && !e->is_gone && mx_swept_is_old_enough(s, e)) {
            marked[i] = bsearch(&e->id, ids, n, sizeof *ids, compare_id) != NULL;
        }
    }
}

/* Manifests that say what the marked ones do must not be lost after these: another process may have
 * written one a moment ago. */
static void spare_unless_synced(const mx_sweep *s, bool *marked, size_t n_marked)
{
    if (n_marked > 0 && s->f->ops->fsync(s->f->sessions_fd) != 0) {
        mx_cold_index_doubt_manifests(s->c->index);
        memset(marked, 0, s->n_files * sizeof *marked);
    }
}

void mx_sweep_mark_superseded(mx_sweep *s, bool *marked)
{
    mx_cold_partial *partials;
    size_t n_partials, n_extended = 0;
    mx_err err = mx_cold_index_partials(s->c->index, &partials, &n_partials);
    mx_hash256 *extended = err == MX_OK ? mx_calloc(n_partials, sizeof *extended) : NULL;
    for (size_t i = 0; extended != NULL && i < n_partials; i++) {
        if (is_extended(s, &partials[i])) {
            extended[n_extended++] = partials[i].id;
        }
    }
    /* A manifest has the name of its last page: it goes with a partial one. */
    mark_named(s, marked, extended, n_extended, true);
    spare_unless_synced(s, marked, n_extended);
    mx_free(extended);
    mx_free(partials);
}

void mx_sweep_mark_dead_manifests(mx_sweep *s, bool *marked)
{
    mx_hash256 *dead;
    size_t n_dead;
    if (mx_cold_index_dead_manifests(s->c->index, &dead, &n_dead) == MX_OK) {
        mark_named(s, marked, dead, n_dead, false);
    }
    spare_unless_synced(s, marked, n_dead);
    mx_free(dead);
}

/* ---- what is too much ------------------------------------------------------------------------ */

/* Files are sorted by time. */
void mx_sweep_mark_over_budget(mx_sweep *s, bool *marked, uint64_t most)
{
    uint64_t left = s->total_bytes;
    for (size_t i = 0; i < s->n_files && left > most; i++) {
        const mx_swept_file *e = &s->files[i];
        if (!e->is_gone && e->kind == MX_SWEPT_QUARANTINE && mx_swept_is_old_enough(s, e)) {
            marked[i] = true;
            left -= e->bytes;
        }
    }
    mx_sweep_mark_close_states(s, marked, most, &left);
    for (size_t i = 0; i < s->n_files && left > most; i++) {
        const mx_swept_file *e = &s->files[i];
        if (!e->is_gone && !marked[i] && mx_swept_is_stored(e) && mx_swept_is_old_enough(s, e)) {
            marked[i] = true;
            left -= e->bytes;
        }
    }
}
