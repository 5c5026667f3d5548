/* SPDX-License-Identifier: MIT
 *
 * Files that appear whole or not at all, in a folder that nobody else can write.
 *
 * Everything is relative to an open folder descriptor and nothing follows a symbolic link, so a
 * folder that is swapped while the server runs can make us miss, never write elsewhere. Failures
 * come back as a code with a sentence; whether to go on is decided above.
 */
#include "cold/cold_files.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

static int real_open(int dir, const char *name, int flags, unsigned mode)
{
    return openat(dir, name, flags, (mode_t)mode);
}

static int real_mkdir(int dir, const char *name, unsigned mode)
{
    return mkdirat(dir, name, (mode_t)mode);
}

static int real_utimens(int dir, const char *name, const struct timespec times[2])
{
    return utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW);
}

static int real_rename_new(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    return renameat2(old_dir, old_name, new_dir, new_name, RENAME_NOREPLACE);
}

static ssize_t real_preadv(int fd, const struct iovec *iov, int n, long at)
{
    return preadv(fd, iov, n, (off_t)at);
}

#define REAL_CALLS                                                                                 \
    .open = real_open, .mkdir = real_mkdir, .writev = writev, .preadv = real_preadv, .fsync = fsync, \
    .rename = renameat, .rename_new = real_rename_new, .unlink = unlinkat, .utimens = real_utimens,  \
    .statvfs = fstatvfs

const mx_cold_fileops mx_cold_real_fileops = {REAL_CALLS};
const mx_cold_fileops mx_cold_shared_fileops = {REAL_CALLS, .accepts_others = true};

mx_err mx_cold_errno(int e)
{
    switch (e) {
    case ENOSPC:
    case EDQUOT: return MX_E_FULL;
    case EACCES:
    case EPERM:
    case EROFS: return MX_E_DENIED;
    case ENOENT: return MX_E_NOT_FOUND;
    case ENOMEM: return MX_E_NOMEM;
    default: return MX_E_IO;
    }
}

int64_t mx_cold_wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return mx_cold_time_ns(&now);
}

void mx_cold_object_name(mx_cold_object o, const mx_hash256 *id, char xx[3],
                         char name[MX_COLD_NAME_CAP])
{
    char hex[65];
    mx_hash256_hex(id, hex);
    snprintf(xx, 3, "%.2s", hex);
    snprintf(name, MX_COLD_NAME_CAP, "%s.%s", hex, o == MX_COLD_STATE ? "state" : "page");
}

void mx_cold_session_name(const mx_hash256 *last_page, char name[MX_COLD_NAME_CAP])
{
    char hex[65];
    mx_hash256_hex(last_page, hex);
    snprintf(name, MX_COLD_NAME_CAP, "%s.session", hex);
}

/* ---- folders --------------------------------------------------------------------------------- */

void mx_cold_folder_init(mx_cold_folder *f, const mx_cold_fileops *ops, const char *dir,
                         const mx_hash256 *root, bool has_states)
{
    memset(f, 0, sizeof *f);
    f->has_states = has_states;
    f->ops = ops != NULL ? ops : &mx_cold_real_fileops;
    f->dir = dir;
    mx_hash256_hex(root, f->root_hex);
    f->top_fd = f->v1_fd = f->root_fd = f->pages_fd = f->states_fd = f->sessions_fd = -1;
    f->temp_start = mx_boottime_us();
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void mx_cold_folder_close(mx_cold_folder *f)
{
    close_fd(&f->sessions_fd);
    close_fd(&f->states_fd);
    close_fd(&f->pages_fd);
    close_fd(&f->root_fd);
    close_fd(&f->v1_fd);
    close_fd(&f->top_fd);
    memset(f->name_sync, MX_COLD_NAME_UNKNOWN, sizeof f->name_sync);
}

/* Long enough for every text about it: an mx_errbuf has room for more words. */
typedef struct place {
    char path[320];
} place;

/* Where a name in an open folder is, for people: "3f" alone would leave them to search. The kernel
 * knows the folder's path; where it does not tell, the name has to do. Keeps errno. */
static const char *place_of(place *p, int dir, const char *name)
{
    const int e = errno;
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    const ssize_t n = dir == AT_FDCWD ? -1 : readlink(link, p->path, sizeof p->path);
    if (n > 0 && (size_t)n + strlen(name) + 2 <= sizeof p->path) {
        snprintf(p->path + n, sizeof p->path - (size_t)n, "/%s", name);
    } else {
        snprintf(p->path, sizeof p->path, "%s", name);
    }
    errno = e;
    return p->path;
}

/* Ours, and nobody else can write: otherwise what we read is not what we wrote. */
static mx_err check_dir(const mx_cold_fileops *ops, int parent, int fd, const char *name,
                        mx_errbuf *eb)
{
    place at;
    static const char way_out[] = "--cache-key-file FILE authenticates every file in it, and uses it as "
                                  "it is";
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot look at the folder %s",
                             place_of(&at, parent, name));
    }
    if (ops->accepts_others) {
        return MX_OK;
    }
    if (st.st_uid != geteuid()) {
        return mx_fail(eb, MX_E_DENIED, "the folder %s belongs to user %u, not to us; %s",
                       place_of(&at, parent, name), (unsigned)st.st_uid, way_out);
    }
    if ((st.st_mode & 022) != 0) {
        return mx_fail(eb, MX_E_DENIED, "others can write the folder %s (mode %o): chmod go-w it; "
                       "or %s", place_of(&at, parent, name), (unsigned)st.st_mode & 07777, way_out);
    }
    return MX_OK;
}

/* What is made in a folder that a group shares is the group's, too; what others may do with the folder
 * stays without consequence: it is about conversations. Best effort. */
static void share_with_group(const mx_cold_fileops *ops, int dir, int fd, mode_t group, mode_t own)
{
    struct stat st;
    if (ops->accepts_others && fstat(dir, &st) == 0 && (st.st_mode & group) != 0) {
        int rc = fchmod(fd, own | (st.st_mode & group));
        (void)rc;
    }
}

static int open_dir(const mx_cold_fileops *ops, int parent, const char *name, bool create,
                    bool *is_made, mx_err *err, mx_errbuf *eb)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    place at;
    int fd = ops->open(parent, name, flags, 0);
    *is_made = fd < 0 && errno == ENOENT && create;
    if (*is_made) {
        if (ops->mkdir(parent, name, 0700) != 0 && errno != EEXIST) {
            *err = mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot make the folder %s",
                                 place_of(&at, parent, name));
            return -1;
        }
        fd = ops->open(parent, name, flags, 0);
        if (fd >= 0 && parent != AT_FDCWD) {
            share_with_group(ops, parent, fd, 02070, 0700);
        }
        /* The new name must be durable before anything that is said to be durable lies below it. */
        if (fd >= 0 && parent != AT_FDCWD && ops->fsync(parent) != 0) {
            *err = mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync the parent of %s",
                                 place_of(&at, parent, name));
            ops->unlink(parent, name, AT_REMOVEDIR); /* so that the next try makes and syncs it */
            close(fd);
            return -1;
        }
    }
    if (fd < 0) {
        *err = errno == ELOOP || errno == ENOTDIR ? MX_E_DENIED : mx_cold_errno(errno);
        mx_fail_errno(eb, *err, errno, "cannot open the folder %s", place_of(&at, parent, name));
        return -1;
    }
    *err = check_dir(ops, parent, fd, name, eb);
    if (*err != MX_OK) {
        close(fd);
        return -1;
    }
    return fd;
}

int mx_cold_open_dir(const mx_cold_fileops *ops, int parent, const char *name, bool create,
                     mx_err *err, mx_errbuf *eb)
{
    bool is_made;
    return open_dir(ops, parent, name, create, &is_made, err, eb);
}

int mx_cold_open_synced(mx_cold_folder *f, mx_cold_object o, const mx_hash256 *id, bool create,
                        mx_err *err, mx_errbuf *eb)
{
    char xx[3], name[MX_COLD_NAME_CAP];
    uint8_t *sync = &f->name_sync[o][id->b[0]];
    int above = mx_cold_objects_fd(f, o);
    bool is_made;
    if (*sync == MX_COLD_NAME_FAILED) {
        *err = MX_E_IO;
        return -1;
    }
    mx_cold_object_name(o, id, xx, name);
    int fd = open_dir(f->ops, above, xx, create, &is_made, err, eb);
    if (fd < 0) {
        return -1;
    }
    /* It was there, but whoever made it may have been killed before he synced it. */
    if (!is_made && *sync == MX_COLD_NAME_UNKNOWN && f->ops->fsync(above) != 0) {
        place at;
        *err = mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync the parent of %s",
                             place_of(&at, above, xx));
        *sync = MX_COLD_NAME_FAILED;
        close(fd);
        return -1;
    }
    *sync = MX_COLD_NAME_SYNCED;
    return fd;
}

/* Copies what is in front of the last component; "." when there is nothing. */
static void parent_path(const char *dir, char out[4096])
{
    size_t len = strlen(dir);
    while (len > 1 && dir[len - 1] == '/') {
        len--;
    }
    while (len > 0 && dir[len - 1] != '/') {
        len--;
    }
    while (len > 1 && dir[len - 1] == '/') {
        len--;
    }
    if (len == 0 || len >= 4096) {
        snprintf(out, 4096, ".");
        return;
    }
    memcpy(out, dir, len);
    out[len] = '\0';
}

/* Makes the missing parents of the configured folder, like mkdir -p. They are the user's: no
 * checks, but what we made is synced, so that a durable page is not lost with the folder above
 * it. */
static mx_err make_parents(const mx_cold_fileops *ops, const char *dir, mx_errbuf *eb)
{
    char path[4096], above[4096];
    parent_path(dir, path);
    for (char *p = path + 1;; p++) {
        bool is_end = *p == '\0';
        if (*p != '/' && !is_end) {
            continue;
        }
        *p = '\0';
        if (ops->mkdir(AT_FDCWD, path, 0700) == 0) {
            parent_path(path, above);
            int fd = ops->open(AT_FDCWD, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
            if (fd < 0 || ops->fsync(fd) != 0) {
                mx_log(MX_LOG_DEBUG, "cold: cannot sync %s: %s", above, strerror(errno));
            }
            if (fd >= 0) {
                close(fd);
            }
        } else if (errno != EEXIST) {
            return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot make the folder %s",
                                 path);
        }
        if (is_end) {
            return MX_OK;
        }
        *p = '/';
    }
}

/* Opens the configured folder; a new one is synced into its parent. */
static int open_top(mx_cold_folder *f, bool create, mx_err *err, mx_errbuf *eb)
{
    struct stat st;
    size_t len = strlen(f->dir);
    if (len == 0 || len >= 4000) {
        *err = mx_fail(eb, MX_E_INVALID, "the folder's path is empty or too long");
        return -1;
    }
    if (!create || lstat(f->dir, &st) == 0) {
        return mx_cold_open_dir(f->ops, AT_FDCWD, f->dir, false, err, eb);
    }
    *err = make_parents(f->ops, f->dir, eb);
    if (*err != MX_OK) {
        return -1;
    }
    char above[4096];
    parent_path(f->dir, above);
    int fd = mx_cold_open_dir(f->ops, AT_FDCWD, f->dir, true, err, eb);
    int parent = f->ops->open(AT_FDCWD, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0 && (parent < 0 || f->ops->fsync(parent) != 0)) {
        *err = mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync %s", above);
        close(fd);
        fd = -1;
        f->ops->unlink(AT_FDCWD, f->dir, AT_REMOVEDIR);
    }
    if (parent >= 0) {
        close(parent);
    }
    return fd;
}

/* Is the folder, or would it be, on another device than before? */
static bool is_other_device(const mx_cold_folder *f)
{
    struct stat st;
    char above[4096];
    if (!f->has_device) {
        return false;
    }
    if (stat(f->dir, &st) == 0) {
        return st.st_dev != f->device;
    }
    parent_path(f->dir, above);
    return stat(above, &st) == 0 && st.st_dev != f->device;
}

/* Is the open folder still the one that the path leads to? Not after it was removed, replaced, or
 * unmounted while we held it open. */
static bool is_current(const mx_cold_folder *f)
{
    struct stat at_path, at_fd;
    return f->top_fd >= 0 && lstat(f->dir, &at_path) == 0 && fstat(f->top_fd, &at_fd) == 0
           && at_path.st_dev == at_fd.st_dev && at_path.st_ino == at_fd.st_ino;
}

static bool is_alive(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink > 0;
}

bool mx_cold_has_marker(int top_fd)
{
    char text[sizeof MX_COLD_MARKER_LINE] = {0};
    int fd = openat(top_fd, MX_COLD_MARKER_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    bool has = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
               && pread(fd, text, sizeof text, 0) == (ssize_t)sizeof text
               && memcmp(text, MX_COLD_MARKER_LINE "\n", sizeof text) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return has;
}

/* One that is damaged is written anew: without it nobody could list, check or remove what lies here. What
 * cannot be written over, a folder, is no reason to do without the cache. */
static mx_err write_marker(mx_cold_folder *f, mx_errbuf *eb)
{
    static const char text[] =
        MX_COLD_MARKER_LINE "\n"
        "This folder holds the KV pages of conversations with a local model, so that they need\n"
        "not be computed again. The conversations can be read from it. `mtplx cache rm --all`\n"
        "removes everything here; the server makes it again.\n";
    struct stat st;
    if (mx_cold_has_marker(f->top_fd)) {
        return MX_OK;
    }
    if (fstatat(f->top_fd, MX_COLD_MARKER_NAME, &st, AT_SYMLINK_NOFOLLOW) == 0
        && (S_ISDIR(st.st_mode)
            || (S_ISREG(st.st_mode)
                && faccessat(f->top_fd, MX_COLD_MARKER_NAME, R_OK, AT_EACCESS) != 0)))
    {
        return MX_OK; /* or another user's, in a folder that is shared */
    }
    struct iovec iov = {(void *)(uintptr_t)text, sizeof text - 1};
    return mx_cold_write_file(f, f->top_fd, MX_COLD_MARKER_NAME, &iov, 1, eb);
}

/* Syncs the names of the configured folder and of those around it that can be ours. Best effort: not
 * all that can be entered can be read. */
static void sync_path(const mx_cold_folder *f)
{
    char path[4096], above[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s", f->dir);
    while (strcmp(path, "/") != 0 && strcmp(path, ".") != 0 && lstat(path, &st) == 0
           && st.st_uid == geteuid()) {
        parent_path(path, above);
        int fd = f->ops->open(AT_FDCWD, above, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        if (fd < 0 || f->ops->fsync(fd) != 0) {
            mx_log(MX_LOG_DEBUG, "cold: cannot sync %s: %s", above, strerror(errno));
        }
        if (fd >= 0) {
            close(fd);
        }
        memcpy(path, above, sizeof path);
    }
}

/* The folders may have been made by a process that was killed before it synced their names. */
static mx_err sync_names(const mx_cold_folder *f, mx_errbuf *eb)
{
    const int folders[] = {f->top_fd, f->v1_fd, f->root_fd};
    sync_path(f);
    for (size_t i = 0; i < MX_COUNT(folders); i++) {
        if (f->ops->fsync(folders[i]) != 0) {
            return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync a folder of %s",
                                 f->dir);
        }
    }
    return MX_OK;
}

static mx_err open_all(mx_cold_folder *f, bool create, mx_errbuf *eb)
{
    mx_err err = MX_OK;
    if (is_other_device(f)) {
        return mx_fail(eb, MX_E_DENIED, "%s is on another device now (unmounted?)", f->dir);
    }
    f->top_fd = open_top(f, create, &err, eb);
    if (f->top_fd < 0) {
        return err;
    }
    if (create) {
        MX_TRY(write_marker(f, eb));
    }
    f->v1_fd = mx_cold_open_dir(f->ops, f->top_fd, "v1", create, &err, eb);
    if (f->v1_fd < 0) {
        return err;
    }
    if (create) { /* `cache rm --all` may have seen no v1 a moment ago and removed the marker that we saw */
        MX_TRY(write_marker(f, eb));
    }
    struct {
        int *fd;
        const int *parent;
        const char *name;
    } const below[] = {
        {&f->root_fd, &f->v1_fd, f->root_hex},
        {&f->pages_fd, &f->root_fd, "pages"},
        {&f->sessions_fd, &f->root_fd, "sessions"},
        {&f->states_fd, &f->root_fd, "states"},
    };
    for (size_t i = 0; i < MX_COUNT(below) - !f->has_states; i++) {
        *below[i].fd = mx_cold_open_dir(f->ops, *below[i].parent, below[i].name, create, &err, eb);
        if (*below[i].fd < 0) {
            return err;
        }
    }
    struct stat st;
    if (create) {
        MX_TRY(sync_names(f, eb));
    }
    if (fstat(f->top_fd, &st) == 0) {
        f->has_device = true;
        f->device = st.st_dev;
    }
    return MX_OK;
}

mx_err mx_cold_folder_top(mx_cold_folder *f, bool with_marker, mx_errbuf *eb)
{
    mx_err err = MX_OK;
    f->top_fd = open_top(f, true, &err, eb);
    return f->top_fd < 0 || !with_marker ? err : write_marker(f, eb);
}

mx_err mx_cold_folder_ready(mx_cold_folder *f, bool create, mx_errbuf *eb)
{
    if (is_current(f) && is_alive(f->root_fd) && is_alive(f->pages_fd)
        && is_alive(f->sessions_fd) && (!f->has_states || is_alive(f->states_fd))) {
        /* `cache rm --all` removes the marker last, when the folders may be there again; without it the
         * next one would refuse. */
        return create ? write_marker(f, eb) : MX_OK;
    }
    mx_cold_folder_close(f);
    mx_err err = open_all(f, create, eb);
    if (err != MX_OK) {
        mx_cold_folder_close(f);
    }
    return err;
}

mx_err mx_cold_open_lock(const mx_cold_fileops *ops, int v1_fd, const char *dir, int *fd, mx_errbuf *eb)
{
    struct stat st;
    *fd = ops->open(v1_fd, "gc.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    const int e = errno;
    /* Something else in its place locks nobody out; a FIFO would even open. */
    if (*fd < 0 ? fstatat(v1_fd, "gc.lock", &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode)
                : fstat(*fd, &st) == 0 && !S_ISREG(st.st_mode))
    {
        close_fd(fd);
        return mx_fail(eb, MX_E_DENIED, "%s/v1/gc.lock is not a file: remove it", dir);
    }
    return *fd >= 0 ? MX_OK
                    : mx_fail_errno(eb, mx_cold_errno(e), e, "cannot open %s/v1/gc.lock", dir);
}

/* ---- reading --------------------------------------------------------------------------------- */

mx_err mx_cold_open_file(const mx_cold_fileops *ops, int dir, const char *name, int *fd,
                         uint64_t *bytes, mx_errbuf *eb)
{
    /* O_NONBLOCK: a FIFO that somebody put there must not hang us before we see what it is. */
    *fd = ops->open(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
    if (*fd < 0) {
        if (errno == ELOOP || errno == ENXIO) {
            return mx_fail(eb, MX_E_CORRUPT, "not a regular file");
        }
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot open %s", name);
    }
    struct stat st;
    if (fstat(*fd, &st) != 0) {
        int e = errno;
        close_fd(fd);
        return mx_fail_errno(eb, MX_E_IO, e, "cannot look at %s", name);
    }
    if (!S_ISREG(st.st_mode)) {
        close_fd(fd);
        return mx_fail(eb, MX_E_CORRUPT, "not a regular file");
    }
    *bytes = (uint64_t)st.st_size;
    return MX_OK;
}

/* Drops n bytes from the front of the vectors; returns how many vectors are left to do. */
static int advance(struct iovec **iov, int n_iov, size_t n)
{
    while (n_iov > 0 && n >= (*iov)->iov_len) {
        n -= (*iov)->iov_len;
        (*iov)++;
        n_iov--;
    }
    if (n_iov > 0) {
        (*iov)->iov_base = (uint8_t *)(*iov)->iov_base + n;
        (*iov)->iov_len -= n;
    }
    return n_iov;
}

mx_err mx_cold_read_all(const mx_cold_fileops *ops, int fd, struct iovec *iov, int n_iov,
                        mx_errbuf *eb)
{
    long at = 0;
    while (n_iov > 0) {
        ssize_t n = ops->preadv(fd, iov, n_iov, at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return mx_fail_errno(eb, MX_E_IO, errno, "cannot read");
        }
        if (n == 0) {
            return mx_fail(eb, MX_E_CORRUPT, "size");
        }
        at += n;
        n_iov = advance(&iov, n_iov, (size_t)n);
    }
    return MX_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* 0, or the errno. */
static int write_all(const mx_cold_fileops *ops, int fd, struct iovec *iov, int n_iov)
{
    while (n_iov > 0) {
        ssize_t n = ops->writev(fd, iov, n_iov);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n == 0 ? ENOSPC : errno;
        }
        n_iov = advance(&iov, n_iov, (size_t)n);
    }
    return 0;
}

/* A new file under a name that no other process or thread uses. */
static int open_temp(mx_cold_folder *f, int dir, char name[MX_COLD_NAME_CAP])
{
    enum { TRIES = 16 };
    int fd = -1;
    for (int i = 0; i < TRIES && fd < 0; i++) {
        /* The address tells the threads of one process apart. */
        snprintf(name, MX_COLD_NAME_CAP, ".tmp-%ld-%llx%llx-%llu", (long)getpid(),
                 (unsigned long long)f->temp_start, (unsigned long long)((uintptr_t)f & 0xFFFFFF),
                 (unsigned long long)++f->temp_counter);
        fd = f->ops->open(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST) {
            break;
        }
    }
    if (fd >= 0) {
        share_with_group(f->ops, dir, fd, 0060, 0600);
    }
    return fd;
}

mx_err mx_cold_write_file(mx_cold_folder *f, int dir, const char *name, struct iovec *iov,
                          int n_iov, mx_errbuf *eb)
{
    char temp[MX_COLD_NAME_CAP];
    place at;
    f->is_renamed_unsynced = false;
    int fd = open_temp(f, dir, temp);
    if (fd < 0) {
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot make %s",
                             place_of(&at, dir, name));
    }
    const char *failed = "write";
    int e = write_all(f->ops, fd, iov, n_iov);
    if (e == 0 && f->ops->fsync(fd) != 0) {
        failed = "sync";
        e = errno;
    }
    if (close(fd) != 0 && e == 0) {
        failed = "close";
        e = errno;
    }
    if (e == 0 && f->ops->rename(dir, temp, dir, name) != 0) {
        failed = "rename a file to";
        e = errno;
    }
    if (e != 0) {
        f->ops->unlink(dir, temp, 0); /* best effort: the sweep finds what stays */
        return mx_fail_errno(eb, mx_cold_errno(e), e, "cannot %s %s", failed,
                             place_of(&at, dir, name));
    }
    if (f->ops->fsync(dir) != 0) {
        f->is_renamed_unsynced = true;
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync the folder of %s",
                             place_of(&at, dir, name));
    }
    return MX_OK;
}

bool mx_cold_give_back(const mx_cold_fileops *ops, int from, int to, const char *name)
{
    struct stat st;
    if (ops->rename_new(from, name, to, name) != 0) {
        if (errno != EINVAL && errno != ENOSYS) {
            return false;
        }
        /* Not every file system can. Between the look and the rename nobody but a writer of the same content
         * makes that name. */
        if (fstatat(to, name, &st, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT
            || ops->rename(from, name, to, name) != 0) {
            return false;
        }
    }
    (void)ops->fsync(to); /* whoever uses it relies on a name that had been durable */
    return true;
}

mx_err mx_cold_renew(const mx_cold_folder *f, int dir, const char *name, int64_t ns)
{
    enum { SLACK_S = 60 }; /* pages of a chain have times one behind the other */
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0
        && (int64_t)st.st_mtim.tv_sec > ns / 1000000000 + SLACK_S) {
        return MX_OK;
    }
    return mx_cold_touch(f, dir, name, ns);
}

mx_err mx_cold_touch(const mx_cold_folder *f, int dir, const char *name, int64_t ns)
{
    const struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    const struct timespec times[2] = {{0, UTIME_OMIT}, t};
    return f->ops->utimens(dir, name, times) == 0 ? MX_OK : mx_cold_errno(errno);
}

/* ---- quarantine ------------------------------------------------------------------------------ */

bool mx_cold_quarantine(mx_cold_folder *f, int dir, const char *name, const char *reason)
{
    mx_err err;
    mx_errbuf eb;
    int to = mx_cold_open_dir(f->ops, f->root_fd, "quarantine", true, &err, &eb);
    if (to < 0) {
        mx_log(MX_LOG_WARN, "cold: damaged file=%s reason=\"%s\" cannot be moved to quarantine: %s",
               name, reason, eb.text);
        return false;
    }
    char to_name[MX_COLD_NAME_CAP + 24];
    snprintf(to_name, sizeof to_name, "%s", name);
    bool is_moved = f->ops->rename(dir, name, to, to_name) == 0;
    if (!is_moved
        && (errno == EISDIR || errno == ENOTDIR || errno == ENOTEMPTY || errno == EEXIST)) {
        /* A folder under that name is in quarantine already, or this is one. */
        snprintf(to_name, sizeof to_name, "%s.%llx", name, (unsigned long long)mx_cold_wall_ns());
        is_moved = f->ops->rename(dir, name, to, to_name) == 0;
    }
    if (is_moved) {
        mx_log(MX_LOG_WARN, "cold: quarantined file=%s reason=\"%s\"", name, reason);
        char reason_name[sizeof to_name + 8], text[256];
        snprintf(reason_name, sizeof reason_name, "%s.reason", to_name);
        int n = snprintf(text, sizeof text, "%lld %s\n", (long long)mx_wall_s(), reason);
        struct iovec iov = {text, mx_min_size((size_t)n, sizeof text - 1)};
        bool was_unsynced = f->is_renamed_unsynced;
        err = mx_cold_write_file(f, to, reason_name, &iov, 1, &eb);
        f->is_renamed_unsynced = was_unsynced; /* it is about the caller's file */
        if (err != MX_OK) {
            mx_log(MX_LOG_DEBUG, "cold: reason of %s not written: %s", name, eb.text);
        }
    } else if (errno != ENOENT) {
        mx_log(MX_LOG_WARN, "cold: damaged file=%s reason=\"%s\" cannot be moved to quarantine: %s",
               name, reason, strerror(errno));
    }
    close(to);
    return is_moved;
}
