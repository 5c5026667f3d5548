/* SPDX-License-Identifier: MIT
 *
 * power_help.h: a disk that loses what was not synced. All changes that a cold tier makes to its
 * folder are recorded; any prefix of them can be made into a folder as a power cut may leave it.
 *
 * The model is the weakest that POSIX allows: what was written to a file is safe after an fsync of
 * that file; a name (made, renamed, removed) after an fsync of its folder, each name by itself and in
 * any order; nothing else is. A rename happens whole or not at all.
 */
#ifndef MX_POWER_HELP_H
#define MX_POWER_HELP_H

#include "cold/cold_help.h"

#include <ftw.h>
#include <pthread.h>
#include <sys/uio.h>

#include "cold/cold_files.h"

typedef enum power_kind {
    POWER_MADE_FILE,
    POWER_MADE_FOLDER,
    POWER_RENAMED,
    POWER_REMOVED,
    POWER_WROTE,
    POWER_SYNCED
} power_kind;

/* A file or folder by number: 0 is the folder around all. */
typedef struct power_event {
    power_kind kind;
    size_t object;
    size_t dir, to_dir;        /* where the name is, and where to it was renamed */
    char name[120], to_name[120];
    uint8_t *bytes;            /* [n_bytes] appended */
    size_t n_bytes;
} power_event;

enum { POWER_MAX_EVENTS = 16384, POWER_MAX_OBJECTS = 4096, POWER_NONE = 0xFFFFFFFF };

typedef struct power_log {
    pthread_mutex_t lock;      /* around a call and its event, so that their order is that of the calls */
    power_event events[POWER_MAX_EVENTS];
    size_t n_events;
    struct {
        dev_t dev;
        ino_t ino;
        bool is_folder;
    } objects[POWER_MAX_OBJECTS];
    size_t n_objects;
    size_t die_at;             /* from so many events on every call fails, as if the process were dead */
    bool ignores_file_syncs, ignores_folder_syncs; /* a tier that forgets them must be found out */
} power_log;

static power_log power = {.lock = PTHREAD_MUTEX_INITIALIZER};

HELP bool power_is_dead(void)
{
    if (power.n_events >= power.die_at) {
        errno = EIO;
        return true;
    }
    return false;
}

HELP size_t power_find(const struct stat *st)
{
    for (size_t i = power.n_objects; i-- > 0;) { /* an inode that is used again is another object */
        if (power.objects[i].ino == st->st_ino && power.objects[i].dev == st->st_dev) {
            return i;
        }
    }
    return POWER_NONE;
}

HELP size_t power_new(const struct stat *st, bool is_folder)
{
    size_t n = power.n_objects++;
    if (n >= POWER_MAX_OBJECTS) {
        abort(); /* in a thread of the tier: no cmocka */
    }
    power.objects[n].dev = st->st_dev;
    power.objects[n].ino = st->st_ino;
    power.objects[n].is_folder = is_folder;
    return n;
}

HELP power_event *power_add(power_kind kind, size_t object)
{
    if (power.n_events >= POWER_MAX_EVENTS) {
        abort();
    }
    power_event *e = &power.events[power.n_events++];
    *e = (power_event){.kind = kind, .object = object, .dir = POWER_NONE, .to_dir = POWER_NONE};
    return e;
}

/* The folder of a name and its last component. */
HELP size_t power_place(int dir, const char *name, char last[120])
{
    char above[4096];
    struct stat st;
    const char *slash = strrchr(name, '/');
    snprintf(last, 120, "%.119s", slash != NULL ? slash + 1 : name);
    snprintf(above, sizeof above, "%.*s", slash != NULL ? (int)(slash - name) : 1,
             slash != NULL ? name : ".");
    return fstatat(dir, above, &st, 0) == 0 ? power_find(&st) : POWER_NONE;
}

HELP size_t power_object(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? power_find(&st) : POWER_NONE;
}

/* ---- the calls ------------------------------------------------------------------------------- */

HELP int power_open(int dir, const char *name, int flags, unsigned mode)
{
    struct stat st;
    pthread_mutex_lock(&power.lock);
    int fd = -1;
    if (!power_is_dead()) {
        bool is_new = (flags & O_CREAT) != 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0;
        fd = mx_cold_real_fileops.open(dir, name, flags, mode);
        if (fd >= 0 && is_new && fstat(fd, &st) == 0) {
            power_event *e = power_add(POWER_MADE_FILE, power_new(&st, false));
            e->dir = power_place(dir, name, e->name);
        }
    }
    pthread_mutex_unlock(&power.lock);
    return fd;
}

HELP int power_mkdir(int dir, const char *name, unsigned mode)
{
    struct stat st;
    pthread_mutex_lock(&power.lock);
    int rc = power_is_dead() ? -1 : mx_cold_real_fileops.mkdir(dir, name, mode);
    if (rc == 0 && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        power_event *e = power_add(POWER_MADE_FOLDER, power_new(&st, true));
        e->dir = power_place(dir, name, e->name);
    }
    pthread_mutex_unlock(&power.lock);
    return rc;
}

HELP ssize_t power_writev(int fd, const struct iovec *iov, int n)
{
    struct stat st;
    pthread_mutex_lock(&power.lock);
    struct iovec first = {iov[0].iov_base, n == 1 ? iov[0].iov_len / 2 + 1 : iov[0].iov_len};
    ssize_t done = power_is_dead() ? -1 : writev(fd, &first, 1); /* in pieces: each can be the last */
    if (done > 0 && fstat(fd, &st) == 0) {
        power_event *e = power_add(POWER_WROTE, power_find(&st));
        e->n_bytes = (size_t)done;
        e->bytes = malloc(e->n_bytes);
        memcpy(e->bytes, first.iov_base, e->n_bytes);
    }
    pthread_mutex_unlock(&power.lock);
    return done;
}

HELP ssize_t power_preadv(int fd, const struct iovec *iov, int n, long at)
{
    return mx_cold_real_fileops.preadv(fd, iov, n, at);
}

HELP int power_fsync(int fd)
{
    struct stat st;
    pthread_mutex_lock(&power.lock);
    int rc = power_is_dead() ? -1 : fstat(fd, &st);
    size_t object = rc == 0 ? power_find(&st) : POWER_NONE;
    if (object != POWER_NONE
        && !(power.objects[object].is_folder ? power.ignores_folder_syncs : power.ignores_file_syncs))
    {
        power_add(POWER_SYNCED, object);
    }
    pthread_mutex_unlock(&power.lock);
    return rc;
}

typedef int power_rename_fn(int old_dir, const char *old_name, int new_dir, const char *new_name);

HELP int power_rename_by(power_rename_fn *real, int old_dir, const char *old_name, int new_dir,
                         const char *new_name)
{
    pthread_mutex_lock(&power.lock);
    size_t object = power_object(old_dir, old_name);
    int rc = power_is_dead() ? -1 : real(old_dir, old_name, new_dir, new_name);
    if (rc == 0) {
        power_event *e = power_add(POWER_RENAMED, object);
        e->dir = power_place(old_dir, old_name, e->name);
        e->to_dir = power_place(new_dir, new_name, e->to_name);
    }
    pthread_mutex_unlock(&power.lock);
    return rc;
}

HELP int power_rename(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    return power_rename_by(renameat, old_dir, old_name, new_dir, new_name);
}

HELP int power_rename_new(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    return power_rename_by(mx_cold_real_fileops.rename_new, old_dir, old_name, new_dir, new_name);
}

HELP int power_unlink(int dir, const char *name, int flags)
{
    pthread_mutex_lock(&power.lock);
    size_t object = power_object(dir, name);
    int rc = power_is_dead() ? -1 : unlinkat(dir, name, flags);
    if (rc == 0) {
        power_event *e = power_add(POWER_REMOVED, object);
        e->dir = power_place(dir, name, e->name);
    }
    pthread_mutex_unlock(&power.lock);
    return rc;
}

HELP int power_utimens(int dir, const char *name, const struct timespec times[2])
{
    pthread_mutex_lock(&power.lock);
    int rc = power_is_dead() ? -1 : mx_cold_real_fileops.utimens(dir, name, times);
    pthread_mutex_unlock(&power.lock);
    return rc;
}

HELP int power_statvfs(int fd, struct statvfs *out)
{
    return mx_cold_real_fileops.statvfs(fd, out);
}

static const mx_cold_fileops power_fileops = {
    .open = power_open,     .mkdir = power_mkdir,   .writev = power_writev,
    .preadv = power_preadv, .fsync = power_fsync,   .rename = power_rename,
    .unlink = power_unlink, .utimens = power_utimens, .statvfs = power_statvfs,
    .rename_new = power_rename_new,
};

/* Begins a new record of what happens below `around`, which is there and safe. */
HELP void power_begin(const char *around)
{
    struct stat st;
    for (size_t i = 0; i < power.n_events; i++) {
        free(power.events[i].bytes);
    }
    power.n_events = power.n_objects = 0;
    power.die_at = SIZE_MAX;
    power.ignores_file_syncs = power.ignores_folder_syncs = false;
    assert_int_equal(stat(around, &st), 0);
    assert_int_equal(power_new(&st, true), 0);
}

/* ---- the cut --------------------------------------------------------------------------------- */

/* What happens to what was not synced. */
typedef enum power_fate {
    POWER_LOST,  /* all of it lost */
    POWER_TORN,  /* every name is there, the data behind them are not */
    POWER_MIXED, /* each name by chance, and each file's data */
    POWER_N_FATES
} power_fate;

typedef struct power_name {
    size_t dir, object;
    const char *name;
} power_name;

typedef struct power_disk {
    power_name names[POWER_MAX_EVENTS];
    size_t n_names;
    size_t n_written[POWER_MAX_OBJECTS], n_safe[POWER_MAX_OBJECTS];
    size_t n_events;
    power_fate fate;
    uint64_t random;
} power_disk;

HELP void power_take(power_disk *d, size_t dir, const char *name)
{
    for (size_t i = 0; i < d->n_names; i++) {
        if (d->names[i].dir == dir && strcmp(d->names[i].name, name) == 0) {
            d->names[i] = d->names[--d->n_names];
            return;
        }
    }
}

HELP void power_put(power_disk *d, size_t dir, const char *name, size_t object)
{
    power_take(d, dir, name);
    d->names[d->n_names++] = (power_name){dir, object, name};
}

HELP void power_apply(power_disk *d, const power_event *e)
{
    for (size_t i = 0; i < d->n_names; i++) {
        if (d->names[i].object == e->object && d->names[i].dir == e->dir
            && strcmp(d->names[i].name, e->name) == 0) {
            d->names[i] = d->names[--d->n_names];
            break;
        }
    }
    if (e->kind == POWER_RENAMED) {
        power_put(d, e->to_dir, e->to_name, e->object);
    } else if (e->kind != POWER_REMOVED) {
        power_put(d, e->dir, e->name, e->object);
    }
}

/* The names after the first n events, and how much of each file is safe. */
HELP void power_cut(power_disk *d, size_t n, power_fate fate, uint64_t seed)
{
    static size_t synced_at[POWER_MAX_OBJECTS]; /* 1 + the last sync; 0 = none */
    memset(d, 0, sizeof *d);
    memset(synced_at, 0, sizeof synced_at);
    d->n_events = n;
    d->fate = fate;
    d->random = seed;
    for (size_t i = 0; i < n; i++) {
        const power_event *e = &power.events[i];
        if (e->kind == POWER_WROTE) {
            d->n_written[e->object] += e->n_bytes;
        } else if (e->kind == POWER_SYNCED) {
            synced_at[e->object] = i + 1;
            d->n_safe[e->object] = d->n_written[e->object];
        }
    }
    for (size_t i = 0; i < n; i++) {
        const power_event *e = &power.events[i];
        if (e->kind == POWER_WROTE || e->kind == POWER_SYNCED) {
            continue;
        }
        bool is_safe = synced_at[e->dir] > i
                       || (e->kind == POWER_RENAMED && synced_at[e->to_dir] > i);
        if (is_safe || fate == POWER_TORN || (fate == POWER_MIXED && help_random(&d->random) % 2 == 0))
        {
            power_apply(d, e);
        }
    }
}

/* What is in a file: the safe bytes, then whatever the disk has. */
HELP void power_write_file(power_disk *d, size_t object, const char *path)
{
    size_t n = d->n_written[object], safe = d->n_safe[object], at = 0;
    uint8_t *bytes = malloc(n + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < d->n_events; i++) {
        const power_event *e = &power.events[i];
        if (e->kind == POWER_WROTE && e->object == object) {
            memcpy(bytes + at, e->bytes, e->n_bytes);
            at += e->n_bytes;
        }
    }
    assert_int_equal(at, n);
    if (n > safe) {
        switch (d->fate == POWER_LOST ? 0 : help_random(&d->random) % 4) {
        case 0: n = safe; break;
        case 1: n = safe + help_random(&d->random) % (n - safe); break;
        case 2: memset(bytes + safe, 0, n - safe); break;
        default:
            for (size_t i = safe + help_random(&d->random) % (n - safe); i < n; i++) {
                bytes[i] = (uint8_t)help_random(&d->random);
            }
        }
    }
    help_spill(path, bytes, n);
    assert_int_equal(chmod(path, 0600), 0);
    free(bytes);
}

/* Makes the folder `object` as path; folders are at most six deep. */
HELP void power_make(power_disk *d, size_t object, const char *path, int depth)
{
    assert_int_equal(mkdir(path, 0700), 0);
    assert_true(depth < 10);
    for (size_t i = 0; i < d->n_names; i++) {
        const power_name *e = &d->names[i];
        char sub[1024];
        if (e->dir == object) {
            assert_true(snprintf(sub, sizeof sub, "%s/%s", path, e->name) < (int)sizeof sub);
            if (power.objects[e->object].is_folder) {
                power_make(d, e->object, sub, depth + 1);
            } else {
                power_write_file(d, e->object, sub);
            }
        }
    }
}

HELP int power_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

HELP void power_remove(const char *path)
{
    assert_int_equal(nftw(path, power_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

#endif
