/* SPDX-License-Identifier: MIT
 *
 * The background thread's work: see what is there, read manifests, delete what is superfluous.
 *
 * Deleting needs flock(gc.lock), which one process gets at a time; who does not get it walks all
 * the same, to know the sizes. The walk is made every ten minutes and whenever the writer runs out
 * of room, never per write.
 */
#include "cold/cold_sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "cold/cold_manifest.h"

/* ---- manifests ------------------------------------------------------------------------------- */

static void load_manifest(mx_sweep *s, const mx_swept_file *e)
{
    mx_cold *c = s->c;
    char name[300];
    mx_swept_name(e, name);
    mx_errbuf eb;
    uint8_t *copy;
    mx_disk_manifest m;
    mx_err err = mx_cold_read_manifest(s->f->ops, s->f->sessions_fd, name, &e->id,
                                       mx_cold_auth_key(c), true, &m, &copy, &eb);
    if (err == MX_OK) {
        err = mx_cold_learn_manifest(c, &m);
    }
    if (err == MX_E_CORRUPT && mx_cold_quarantine(s->f, s->f->sessions_fd, name, eb.text)) {
        mx_cold_quarantined(c);
    }
    if (err == MX_E_UNSUPPORTED) {
        s->n_foreign++;
    }
    /* Not read for lack of memory or for a fault of the disk: the next sweep tries again. */
    if (err != MX_OK && err != MX_E_UNSUPPORTED) {
        mx_cold_index_unmark_manifest(c->index, &e->id);
    }
    mx_free(copy);
}

static void load_manifests(mx_sweep *s)
{
    for (size_t i = 0; i < s->n_files && !atomic_load(&s->c->is_stopping); i++) {
        const mx_swept_file *e = &s->files[i];
        if (e->kind == MX_SWEPT_SESSION && e->root == s->own_root
            && mx_cold_index_mark_manifest(s->c->index, &e->id)) {
            load_manifest(s, e);
        }
    }
}

/* ---- a sweep --------------------------------------------------------------------------------- */

/* Of any number of rows, compressed or not: which one it has to be is seen when it is used. */
static bool is_page_size(const mx_cold *c, uint64_t bytes)
{
    return bytes > MX_DISK_PAYLOAD_AT && bytes <= MX_DISK_PAYLOAD_AT + c->page_bytes;
}

static void index_objects(mx_sweep *s)
{
    mx_cold *c = s->c;
    for (size_t i = 0; i < s->n_files; i++) {
        const mx_swept_file *e = &s->files[i];
        uint64_t payload = e->bytes - MX_DISK_PAYLOAD_AT;
        bool is_right = e->kind == MX_SWEPT_PAGE ? is_page_size(c, e->bytes)
                                             : e->kind == MX_SWEPT_STATE
                                                   && payload == c->shape.state_bytes;
        if (e->kind == MX_SWEPT_SESSION && e->root == s->own_root) {
            mx_cold_index_see_manifest(c->index, &e->id);
        }
        if (is_right && e->root == s->own_root
            && mx_cold_index_add(c->index, &e->id, false) != MX_OK) {
            s->err = MX_E_NOMEM;
        }
    }
}

static void delete_superfluous(mx_sweep *s)
{
    bool *marked = mx_calloc(s->n_files, sizeof *marked);
    if (marked == NULL) {
        return;
    }
    mx_sweep_mark_leftovers(s, marked);
    mx_sweep_mark_dead_bookmarks(s, marked);
    mx_sweep_delete(s, marked, "leftovers");
    mx_sweep_delete_strays(s);
    mx_sweep_mark_superseded(s, marked);
    mx_sweep_delete(s, marked, "superseded");
    mx_sweep_load_states(s);
    mx_sweep_mark_dead_manifests(s, marked);
    mx_sweep_mark_orphans(s, marked);
    mx_sweep_delete(s, marked, "of_no_use");
    mx_sweep_mark_expired(s, marked);
    s->cause = MX_SWEPT_EXPIRED;
    mx_sweep_delete(s, marked, "unused_for_longer_than_ttl");
    mx_sweep_mark_over_budget(s, marked, mx_cold_low_water(s->c, mx_cold_limit(s->c, s->f)));
    s->cause = MX_SWEPT_OVER_LIMIT;
    mx_sweep_delete(s, marked, "over_limit");
    mx_free(marked);
    mx_sweep_remove_empty_roots(s);
}

/* -1 = somebody else has it, or there is none to be had, which `why` tells. */
static int take_gc_lock(const mx_sweep *s, mx_errbuf *why)
{
    int fd;
    if (mx_cold_open_lock(s->f->ops, s->f->v1_fd, s->c->dir, &fd, why) == MX_OK
        && flock(fd, LOCK_EX | LOCK_NB) != 0)
    {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Nothing is deleted as long as that lasts: the folder stays full, and nobody would know why. Where the
 * tier is off people have been told, and of the same thing. */
static void tell_of_hindrance(mx_cold *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    const bool is_new = why[0] != '\0' && !c->is_hindrance_told && !c->stats.is_degraded;
    c->is_hindrance_told = why[0] != '\0' && (c->is_hindrance_told || is_new);
    pthread_mutex_unlock(&c->lock);
    if (is_new) {
        mx_log(MX_LOG_WARN, "cold: nothing is deleted from folder=%s until this is mended: %s", c->dir,
               why);
    }
}

/* What was written during the walk may be counted twice until the next one: too much is the safe side. */
static void count(const mx_sweep *s)
{
    mx_cold *c = s->c;
    pthread_mutex_lock(&c->lock);
    c->stats.files = s->total_files + c->written_files;
    c->stats.bytes = s->total_bytes + c->written_bytes;
    c->is_counted = true;
    pthread_mutex_unlock(&c->lock);
}

static bool note_expired(void *arg, const char *folder, const mx_hash256 *entry)
{
    mx_sweep *s = arg;
    mx_cold *c = s->c;
    mx_log(MX_LOG_INFO, "cold: sweep: a session has expired folder=%.16s", folder);
    if (strcmp(folder, s->f->root_hex) == 0) {
        pthread_mutex_lock(&c->lock);
        if (c->n_expired < MX_COUNT(c->expired)) { /* of more, RAM forgets the rest in its own time */
            c->expired[c->n_expired++] = *entry;
        }
        pthread_mutex_unlock(&c->lock);
    }
    return !mx_sweep_is_stopping(s);
}

static void expire_sessions(mx_sweep *s)
{
    mx_cold *c = s->c;
    mx_cold_counts n = {0};
    mx_cold_trust trust = {s->f->ops, s->key, s->key != NULL, NULL};
    (void)mx_sweep_expire_sessions(s->f->v1_fd, &trust, s->now_s, s->delete_age_s, note_expired, s, &n);
    pthread_mutex_lock(&c->lock);
    bool is_told = c->n_expired > 0;
    c->stats.files_swept += n.n_files;
    c->stats.bytes_swept += n.n_bytes;
    c->stats.files_expired += n.n_files;
    pthread_mutex_unlock(&c->lock);
    if (is_told && c->wake != NULL && !atomic_load(&c->is_stopping)) {
        c->wake(c->wake_arg);
    }
}

static void learn_pins(const mx_sweep *s)
{
    mx_cold *c = s->c;
    size_t n = 0;
    mx_cold_pin *seen = mx_alloc(MX_PINS_MAX * sizeof *seen);
    for (size_t i = 0; seen != NULL && i < s->n_bookmarks && n < MX_PINS_MAX; i++) {
        const mx_swept_bookmark *b = &s->bookmarks[i];
        if (b->b.is_pinned && s->files[b->file].root == s->own_root) {
            seen[n++] = (mx_cold_pin){b->b.own, b->b.entry};
        }
    }
    if (seen != NULL && s->err == MX_OK) {
        mx_cold_learn_pins(c, seen, n);
    }
    mx_free(seen);
}

static void run(mx_sweep *s)
{
    mx_cold *c = s->c;
    mx_errbuf why = {{0}};
    int lock = take_gc_lock(s, &why);
    pthread_mutex_lock(&c->lock);
    c->written_bytes = c->written_files = 0;
    pthread_mutex_unlock(&c->lock);
    if (lock >= 0) {
        expire_sessions(s);
    }
    mx_cold_index_scan_begin(c->index);
    mx_sweep_walk(s);
    learn_pins(s);
    index_objects(s);
    bool is_whole = s->err == MX_OK && !atomic_load(&c->is_stopping);
    if (s->err != MX_OK && why.text[0] == '\0') {
        mx_fail(&why, s->err, "%s", s->why.text[0] != '\0' ? s->why.text : mx_err_name(s->err));
    }
    tell_of_hindrance(c, why.text);
    if (is_whole) {
        mx_cold_index_scan_end(c->index);
    }
    load_manifests(s);
    if (is_whole) {
        count(s);
    }
    if (lock >= 0 && is_whole) {
        mx_sweep_settle_times(s, lock);
        delete_superfluous(s);
    }
    if (lock >= 0) {
        close(lock);
    }
    if (is_whole) {
        count(s);
    }
    mx_log(MX_LOG_DEBUG, "cold: sweep: files=%llu bytes=%llu foreign=%llu",
           (unsigned long long)s->total_files, (unsigned long long)s->total_bytes,
           (unsigned long long)s->n_foreign);
}

/* The folder was removed: nothing in it counts as stored any more. */
static void forget_all(mx_cold *c)
{
    mx_cold_index_scan_begin(c->index);
    mx_cold_index_scan_end(c->index);
    pthread_mutex_lock(&c->lock);
    c->stats.files = c->stats.bytes = 0;
    pthread_mutex_unlock(&c->lock);
}

/* After the start: can files be kept here at all? Else the first request would find out, and until then
 * people would be told that their conversations are kept. */
static void look_first(mx_sweep *s)
{
    mx_cold *c = s->c;
    mx_errbuf eb;
    pthread_mutex_lock(&c->lock);
    bool is_looked_at = c->stats.is_looked_at;
    pthread_mutex_unlock(&c->lock);
    if (is_looked_at) {
        return;
    }
    mx_err err = mx_cold_folder_top(s->f, false, &eb);
    if (err == MX_OK && faccessat(s->f->top_fd, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        err = mx_fail_errno(&eb, mx_cold_errno(errno), errno, "cannot write in %s", c->dir);
    }
    if (err != MX_OK) {
        mx_cold_failed(c, MX_COLD_WRITING, eb.text);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.is_looked_at = true;
    pthread_mutex_unlock(&c->lock);
}

void mx_cold_sweep_once(mx_cold *c)
{
    mx_sweep *s = mx_calloc(1, sizeof *s);
    if (s == NULL) {
        return;
    }
    mx_errbuf eb;
    s->c = c;
    s->f = &c->sweeper_folder;
    s->own_root = MX_SWEEP_NO_ROOT;
    mx_cold_follow_clock(c);
    s->now_s = mx_cold_now_s(c);
    s->delete_age_s = c->tuning.delete_age_s;
    s->orphan_age_s = c->tuning.orphan_age_s;
    s->ttl_s = c->ttl_s;
    s->key = mx_cold_auth_key(c);
    s->needs_tag = true;
    look_first(s);
    mx_err err = mx_cold_folder_ready(s->f, false, &eb);
    if (err == MX_OK) {
        run(s);
    } else if (err == MX_E_NOT_FOUND) {
        forget_all(c);
    } else {
        mx_cold_failed(c, MX_COLD_READING, eb.text);
    }
    mx_sweep_free(s);
    mx_free(s);
}
