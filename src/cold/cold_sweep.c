/* SPDX-License-Identifier: MIT
 *
 * The background thread's work: see what is there, read manifests, delete what is superfluous.
 *
 * One walk over all roots below v1 gives names, sizes and times; everything else follows from that
 * list. Deleting needs flock(gc.lock), which one process gets at a time; who does not get it walks
 * all the same, to know the sizes. The walk costs one fstatat per file, every ten minutes and
 * whenever the writer runs out of room, never per write.
 */
#include "cold/cold_sweep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    QUARANTINE_MAX_FILES = 64,               /* with their reasons: 128 names */
    QUARANTINE_MAX_BYTES = 256 * 1024 * 1024, /* a few states of a large model */
    ROOT_CAP = 4096,           /* models and settings; each new numerics version makes one */
    NO_ROOT = 0xFFFF,
    FUTURE_SLACK_S = 60,
};

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

/* ---- the walk -------------------------------------------------------------------------------- */

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
    while (!atomic_load(&s->c->is_stopping)) {
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

/* Has a name that is an identity. */
static bool is_stored(const mx_swept_file *e)
{
    return e->kind == MX_SWEPT_PAGE || e->kind == MX_SWEPT_STATE || e->kind == MX_SWEPT_SESSION;
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
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(st.st_mode)) {
        return;
    }
    uint64_t bytes = file_bytes(&st);
    s->total_files++;
    s->total_bytes += bytes;
    if (!mx_grow((void **)&s->files, &s->files_cap, s->n_files + 1, sizeof *s->files)) {
        s->err = MX_E_NOMEM;
        return;
    }
    mx_swept_file e = {.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
                    .bytes = bytes,
                    .kind = (uint8_t)kind,
                    .root = p->root};
    snprintf(e.folder, sizeof e.folder, "%s", p->folder);
    if (is_stored(&e)) {
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
    if (st.st_mtim.tv_sec > s->now_s + FUTURE_SLACK_S) {
        mx_cold_touch(s->f, dir, name, mx_cold_wall_ns()); /* or it would stay the youngest */
    }
    s->files[s->n_files++] = e;
}

static void visit_file(mx_sweep *s, int dir, const char *name, void *arg)
{
    const place *p = arg;
    if (strncmp(name, ".tmp-", 5) == 0) {
        add_file(s, dir, name, p, MX_SWEPT_TEMP);
    } else if (p->suffix == NULL || is_own_name(name, p->suffix)) {
        add_file(s, dir, name, p, p->kind);
    } else {
        s->n_foreign++;
    }
}

static void walk_files(mx_sweep *s, int parent, const char *name, const place *p)
{
    mx_err err;
    int dir = mx_cold_open_dir(s->f->ops, parent, name, false, &err, NULL);
    if (dir < 0) {
        struct stat st;
        if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode)) {
            s->n_foreign++; /* not a folder of ours: no reason to leave the rest unswept */
        } else if (err != MX_E_NOT_FOUND) {
            s->err = err;
        }
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
        s->n_foreign += strcmp(name, "gc.lock") != 0 && strcmp(name, MX_COLD_WEAR_NAME) != 0;
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
    if (fd < 0) {
        s->n_foreign++;
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
        int dir_fd = mx_cold_open_dir(s->f->ops, fd, p.folder, false, &err, &eb);
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

/* ---- deleting -------------------------------------------------------------------------------- */

static int open_root(const mx_sweep *s, uint16_t root, mx_errbuf *eb)
{
    mx_err err;
    return mx_cold_open_dir(s->f->ops, s->f->v1_fd, s->roots[root], false, &err, eb);
}

static int open_folder(const mx_sweep *s, int root_fd, const char *folder)
{
    mx_err err;
    mx_errbuf eb;
    const char *slash = strchr(folder, '/');
    if (slash == NULL) {
        return mx_cold_open_dir(s->f->ops, root_fd, folder, false, &err, &eb);
    }
    char objects[16];
    snprintf(objects, sizeof objects, "%.*s", (int)(slash - folder), folder);
    int above = mx_cold_open_dir(s->f->ops, root_fd, objects, false, &err, &eb);
    if (above < 0) {
        return -1;
    }
    int fd = mx_cold_open_dir(s->f->ops, above, slash + 1, false, &err, &eb);
    close(above);
    return fd;
}

static void file_name(const mx_swept_file *e, char name[300])
{
    if (e->name != NULL) {
        snprintf(name, 300, "%s", e->name);
        return;
    }
    char hex[65];
    mx_hash256_hex(&e->id, hex);
    static const char *const suffixes[] = {"page", "state", "session"}; /* by kind */
    snprintf(name, 300, "%s.%s", hex, suffixes[e->kind]);
}

static int64_t age_s(const mx_sweep *s, int64_t mtime_s)
{
    return mtime_s > s->now_s ? 0 : s->now_s - mtime_s;
}

/* Rename to trash/, look at the time again, unlink. Somebody who touched the file to use it
 * meanwhile gets it back under its name. */
static bool through_trash(const mx_sweep *s, int root_fd, int dir, const char *name)
{
    const mx_cold_fileops *ops = s->f->ops;
    mx_err err;
    mx_errbuf eb;
    int trash = mx_cold_open_dir(ops, root_fd, "trash", true, &err, &eb);
    if (trash < 0) {
        return false;
    }
    struct stat st;
    bool is_deleted = false;
    if (ops->rename(dir, name, trash, name) == 0
        && fstatat(trash, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (age_s(s, st.st_mtim.tv_sec) < s->c->tuning.delete_age_s) {
            renameat2(trash, name, dir, name, RENAME_NOREPLACE); /* else it stays in trash/ */
        } else {
            is_deleted = ops->unlink(trash, name, 0) == 0;
        }
    }
    close(trash);
    return is_deleted;
}

static bool delete_file(mx_sweep *s, mx_swept_file *e)
{
    mx_cold *c = s->c;
    char name[300];
    file_name(e, name);
    mx_errbuf eb;
    int root_fd = open_root(s, e->root, &eb);
    int dir = root_fd >= 0 ? open_folder(s, root_fd, e->folder) : -1;
    bool is_deleted = false;
    if (dir >= 0) {
        mx_log(MX_LOG_DEBUG, "cold: deleting file=%s/%s bytes=%llu", e->folder, name,
               (unsigned long long)e->bytes);
        is_deleted = is_stored(e)
                         ? through_trash(s, root_fd, dir, name)
                         : s->f->ops->unlink(dir, name, 0) == 0;
        close(dir);
    }
    if (root_fd >= 0) {
        close(root_fd);
    }
    if (!is_deleted) {
        return false;
    }
    e->is_gone = true;
    s->total_files--;
    s->total_bytes -= e->bytes;
    if (e->root == s->own_root && (e->kind == MX_SWEPT_PAGE || e->kind == MX_SWEPT_STATE)) {
        mx_cold_index_remove(c->index, &e->id);
        mx_gone_add(c->gone, &e->id);
    } else if (e->root == s->own_root && e->kind == MX_SWEPT_SESSION) {
        mx_cold_index_unmark_manifest(c->index, &e->id);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.files_swept++;
    c->stats.files_over_limit += s->cause == MX_SWEPT_OVER_LIMIT;
    c->stats.files_expired += s->cause == MX_SWEPT_EXPIRED;
    c->stats.bytes_swept += e->bytes;
    pthread_mutex_unlock(&c->lock);
    return true;
}

/* Deletes the files that are marked, after saying so. */
static void delete_marked(mx_sweep *s, const bool *marked, const char *why)
{
    uint64_t n = 0, bytes = 0, n_deleted = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        n += marked[i];
        bytes += marked[i] ? s->files[i].bytes : 0;
    }
    if (n == 0) {
        return;
    }
    mx_log(MX_LOG_INFO, "cold: sweep: deleting files=%llu bytes=%llu reason=%s",
           (unsigned long long)n, (unsigned long long)bytes, why);
    for (size_t i = 0; i < s->n_files && !atomic_load(&s->c->is_stopping); i++) {
        n_deleted += marked[i] && delete_file(s, &s->files[i]);
    }
    if (n_deleted != n) {
        mx_log(MX_LOG_INFO, "cold: sweep: deleted files=%llu, the others are in use or cannot be",
               (unsigned long long)n_deleted);
    }
}

/* ---- what is superfluous --------------------------------------------------------------------- */

static bool is_old_enough(const mx_sweep *s, const mx_swept_file *e)
{
    return age_s(s, e->mtime_ns / 1000000000) >= s->c->tuning.delete_age_s;
}

static void mark_leftovers(const mx_sweep *s, bool *marked)
{
    struct {
        uint64_t n_files, n_bytes;
    } *kept = mx_calloc(s->n_roots, sizeof *kept); /* in quarantine */
    for (size_t i = kept != NULL ? s->n_files : 0; i-- > 0;) { /* youngest first */
        const mx_swept_file *e = &s->files[i];
        if (e->kind == MX_SWEPT_TEMP) {
            marked[i] = age_s(s, e->mtime_ns / 1000000000) >= s->c->tuning.orphan_age_s;
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

/* Does a full page with the same parent begin with this partial page's tokens? */
static bool is_extended(mx_sweep *s, const mx_cold_partial *partial)
{
    enum { BATCH = 32, ROUNDS = 8 };
    mx_cold *c = s->c;
    mx_disk_page page, other;
    mx_cold_want want = {.id = partial->id};
    if (mx_cold_load_page(c, s->f, &want, c->sweeper_head, NULL, &page) != MX_OK
        || !mx_hash256_eq(&page.parent, &partial->parent)) { /* a manifest said so: a hint */
        return false;
    }
    for (int round = 0; round < ROUNDS; round++) {
        mx_cold_child unknown[BATCH];
        size_t n_unknown;
        mx_cold_child best =
            mx_cold_index_best_child(c->index, &partial->parent, page.tokens, page.n_tokens,
                                     MX_PAGE_TOKENS, unknown, BATCH, &n_unknown);
        if (best.n_common >= page.n_tokens || n_unknown == 0) {
            return n_unknown == 0 ? best.n_common >= page.n_tokens : true;
        }
        for (size_t i = 0; i < n_unknown; i++) {
            want.id = unknown[i].id;
            if (mx_cold_load_page(c, s->f, &want, c->sweeper_head, NULL, &other) != MX_OK
                || mx_cold_index_link(c->index, &want.id, &other.parent, other.n_tokens,
                                      other.tokens) != MX_OK) {
                return false;
            }
        }
    }
    return false;
}

/* A state that can never be reached: the page before the one that it stands in is gone. (Where only
 * that one is gone, the state is as old and will not stay long.) */
static bool is_orphan(mx_sweep *s, const mx_swept_file *e)
{
    mx_disk_page state;
    mx_cold_want want = {.object = MX_COLD_STATE, .id = e->id};
    return s->f->states_fd >= 0
           && mx_cold_load_page(s->c, s->f, &want, s->c->sweeper_head, NULL, &state) == MX_OK
           && state.first_position > 0
           && !mx_cold_page_exists(s->c, s->f, &state.parent, MX_PAGE_TOKENS);
}

static void mark_superfluous(mx_sweep *s, bool *marked)
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
    if (extended != NULL) {
        qsort(extended, n_extended, sizeof *extended, compare_id);
    }
    for (size_t i = 0; i < s->n_files; i++) {
        const mx_swept_file *e = &s->files[i];
        if (e->root != s->own_root || !is_stored(e) || !is_old_enough(s, e)) {
            continue;
        }
        if (e->kind == MX_SWEPT_STATE) {
            marked[i] = is_orphan(s, e);
            continue;
        }
        /* A manifest has the name of its last page: it goes with a partial one. */
        marked[i] = (n_extended > 0
                     && bsearch(&e->id, extended, n_extended, sizeof *extended, compare_id) != NULL)
                    || (e->kind == MX_SWEPT_SESSION
                        && mx_cold_index_manifest_is_dead(s->c->index, &e->id));
    }
    mx_free(extended);
    mx_free(partials);
}

/* ---- states that are close to another ---- */

typedef struct boundary {
    mx_hash256 parent;   /* of the page that it stands in */
    uint64_t first, at;  /* where that page begins, and where the state stands */
    uint64_t reach;      /* the last position that has to come back to it */
    size_t file;
} boundary;

static int compare_place(const void *a, const void *b)
{
    const boundary *x = a, *y = b;
    int c = memcmp(&x->parent, &y->parent, sizeof x->parent);
    return c != 0 ? c : x->at < y->at ? -1 : x->at > y->at;
}

/* The last one before b that stays, in the same page or one of the `most` tokens before; NULL = none.
 * Which branch another state behind the same page belongs to is not looked at: that costs tokens,
 * nothing else. */
static boundary *boundary_before(const mx_sweep *s, boundary *list, size_t n, const bool *marked,
                                 const boundary *b, uint64_t most)
{
    mx_hash256 parent = b->parent;
    for (uint64_t first = b->first; b->at - first < most; first -= MX_PAGE_TOKENS) {
        size_t lo = 0, hi = n;
        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;
            if (memcmp(&list[mid].parent, &parent, sizeof parent) < 0) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        boundary *last = NULL;
        for (; lo < n && mx_hash256_eq(&list[lo].parent, &parent) && list[lo].at < b->at; lo++) {
            last = marked[list[lo].file] ? last : &list[lo];
        }
        if (last != NULL || first == 0 || !mx_cold_index_parent(s->c->index, &parent, &parent)) {
            return last;
        }
    }
    return NULL;
}

static size_t list_boundaries(mx_sweep *s, boundary *list)
{
    size_t n = 0;
    for (size_t i = s->n_files; i-- > 0;) {
        const mx_swept_file *e = &s->files[i];
        mx_disk_page state;
        mx_cold_want want = {.object = MX_COLD_STATE, .id = e->id};
        if (e->kind == MX_SWEPT_STATE && e->root == s->own_root && !e->is_gone
            && mx_cold_load_page(s->c, s->f, &want, s->c->sweeper_head, NULL, &state) == MX_OK) {
            uint64_t at = state.first_position + state.n_tokens;
            list[n++] = (boundary){state.parent, state.first_position, at, at, i};
        }
    }
    qsort(list, n, sizeof *list, compare_place);
    return n;
}

/* By coverage, before anything goes by age: the state without which the fewest tokens are computed
 * again, as long as another one stands close before it. */
static void mark_close_states(mx_sweep *s, bool *marked, uint64_t low, uint64_t *left)
{
    enum { CLOSE_TOKENS = 512 };
    bool is_wanted = s->f->has_states && *left > low;
    boundary *list = is_wanted ? mx_calloc(s->n_files, sizeof *list) : NULL;
    size_t n = list != NULL ? list_boundaries(s, list) : 0;
    while (*left > low && !atomic_load(&s->c->is_stopping)) {
        boundary *least = NULL, *back = NULL;
        uint64_t least_cost = CLOSE_TOKENS;
        for (size_t k = 0; k < n; k++) {
            boundary *b = &list[k];
            if (marked[b->file] || !is_old_enough(s, &s->files[b->file])) {
                continue;
            }
            boundary *before = boundary_before(s, list, n, marked, b, CLOSE_TOKENS);
            uint64_t cost = before != NULL ? b->reach - before->at : CLOSE_TOKENS;
            bool is_tie = cost == least_cost && least != NULL;
            if (cost < least_cost || (is_tie && b->file > least->file)) {
                least = b;
                back = before;
                least_cost = cost;
            }
        }
        if (least == NULL) {
            break;
        }
        marked[least->file] = true;
        back->reach = least->reach > back->reach ? least->reach : back->reach;
        *left -= s->files[least->file].bytes;
    }
    mx_free(list);
}

/* Down to the low water: what is damaged first, then states close to another, then the oldest; files are sorted by time. */
static void mark_over_budget(mx_sweep *s, bool *marked, uint64_t limit)
{
    uint64_t low = mx_cold_low_water(s->c, limit), left = s->total_bytes;
    for (size_t i = 0; i < s->n_files && left > low; i++) {
        const mx_swept_file *e = &s->files[i];
        if (!e->is_gone && e->kind == MX_SWEPT_QUARANTINE && is_old_enough(s, e)) {
            marked[i] = true;
            left -= e->bytes;
        }
    }
    mark_close_states(s, marked, low, &left);
    for (size_t i = 0; i < s->n_files && left > low; i++) {
        const mx_swept_file *e = &s->files[i];
        if (!e->is_gone && !marked[i] && is_stored(e) && is_old_enough(s, e)) {
            marked[i] = true;
            left -= e->bytes;
        }
    }
}

/* ---- manifests ------------------------------------------------------------------------------- */

static void load_manifest(mx_sweep *s, const mx_swept_file *e)
{
    mx_cold *c = s->c;
    char name[300];
    file_name(e, name);
    mx_errbuf eb;
    int fd = -1;
    uint64_t bytes = 0;
    uint8_t *copy = NULL;
    mx_disk_manifest m;
    mx_err err = mx_cold_open_file(s->f->ops, s->f->sessions_fd, name, &fd, &bytes, &eb);
    if (err == MX_OK
        && (bytes < MX_DISK_MANIFEST_HEADER_BYTES || bytes > MX_DISK_MANIFEST_MAX_BYTES)) {
        err = mx_fail(&eb, MX_E_CORRUPT, "size");
    }
    if (err == MX_OK) {
        copy = mx_alloc((size_t)bytes);
        struct iovec iov = {copy, (size_t)bytes};
        err = copy == NULL ? MX_E_NOMEM : mx_cold_read_all(s->f->ops, fd, &iov, 1, &eb);
    }
    if (err == MX_OK) {
        err = mx_disk_manifest_decode(&m, copy, (size_t)bytes, &eb);
    }
    if (err == MX_OK && !mx_hash256_eq(&m.page_ids[m.n_pages - 1], &e->id)) {
        err = mx_fail(&eb, MX_E_CORRUPT, "the name is not the last page");
    }
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
    if (fd >= 0) {
        close(fd);
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

static bool is_page_size(const mx_cold *c, uint64_t bytes)
{
    for (uint32_t n = 1; n <= MX_PAGE_TOKENS; n++) {
        if (bytes == MX_DISK_PAYLOAD_AT + mx_disk_payload_bytes(&c->shape, n)) {
            return true;
        }
    }
    return false;
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
        if (is_right && e->root == s->own_root && mx_cold_index_add(c->index, &e->id, false) != MX_OK) {
            s->err = MX_E_NOMEM;
        }
    }
}

static int compare_time(const void *a, const void *b)
{
    const mx_swept_file *x = a, *y = b;
    return x->mtime_ns < y->mtime_ns ? -1 : x->mtime_ns > y->mtime_ns;
}

static void delete_superfluous(mx_sweep *s)
{
    bool *marked = mx_calloc(s->n_files, sizeof *marked);
    if (marked == NULL) {
        return;
    }
    mark_leftovers(s, marked);
    delete_marked(s, marked, "leftovers");
    memset(marked, 0, s->n_files * sizeof *marked);
    mark_superfluous(s, marked);
    delete_marked(s, marked, "superseded");
    memset(marked, 0, s->n_files * sizeof *marked);
    mx_sweep_mark_expired(s, marked);
    s->cause = MX_SWEPT_EXPIRED;
    delete_marked(s, marked, "unused_for_longer_than_ttl");
    memset(marked, 0, s->n_files * sizeof *marked);
    mark_over_budget(s, marked, mx_cold_limit(s->c, s->f));
    s->cause = MX_SWEPT_OVER_LIMIT;
    delete_marked(s, marked, "over_limit");
    mx_free(marked);
    mx_sweep_remove_empty_roots(s);
}

/* -1 = somebody else has it, or the folder cannot be written. */
static int take_gc_lock(const mx_sweep *s)
{
    int fd = s->f->ops->open(s->f->v1_fd, "gc.lock",
                             O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void run(mx_sweep *s)
{
    mx_cold *c = s->c;
    int lock = take_gc_lock(s);
    pthread_mutex_lock(&c->lock);
    c->written_bytes = c->written_files = 0;
    pthread_mutex_unlock(&c->lock);
    mx_cold_index_scan_begin(c->index);
    if (!for_each(s, s->f->v1_fd, visit_root, NULL)) {
        s->err = MX_E_IO;
    }
    index_objects(s);
    bool is_whole = s->err == MX_OK && !atomic_load(&c->is_stopping);
    if (is_whole) {
        mx_cold_index_scan_end(c->index);
    }
    if (s->n_files > 0) {
        qsort(s->files, s->n_files, sizeof *s->files, compare_time);
    }
    load_manifests(s);
    if (lock >= 0 && is_whole) {
        delete_superfluous(s);
    }
    if (lock >= 0) {
        close(lock);
    }
    pthread_mutex_lock(&c->lock);
    if (is_whole) {
        /* What was written during the walk may be counted twice until the next one: too much is the
         * safe side. */
        c->stats.files = s->total_files + c->written_files;
        c->stats.bytes = s->total_bytes + c->written_bytes;
    }
    pthread_mutex_unlock(&c->lock);
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

void mx_cold_sweep_once(mx_cold *c)
{
    mx_sweep *s = mx_calloc(1, sizeof *s);
    if (s == NULL) {
        return;
    }
    mx_errbuf eb;
    s->c = c;
    s->f = &c->sweeper_folder;
    s->own_root = NO_ROOT;
    s->now_s = mx_cold_now_s(c);
    mx_err err = mx_cold_folder_ready(s->f, false, &eb);
    if (err == MX_OK) {
        run(s);
    } else if (err == MX_E_NOT_FOUND) {
        forget_all(c);
    } else {
        mx_cold_failed(c, MX_COLD_READING, eb.text);
    }
    mx_free(s->roots);
    for (size_t i = 0; i < s->n_files; i++) {
        mx_free(s->files[i].name);
    }
    mx_free(s->files);
    mx_free(s);
}
