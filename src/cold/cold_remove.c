/* SPDX-License-Identifier: MIT
 *
 * `mtplx cache rm --all`: removes what the cache has made, and nothing else.
 *
 * Not a recursive delete: each folder is entered by a known name and only known names in it go, so
 * a wrong --ssd-session-cache-dir cannot cost anybody his files. The marker goes last: a removal
 * that was interrupted can be repeated.
 */
#include "cold/cold.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/clock.h"
#include "cold/cold_state.h"
#include "cold/cold_visit.h"

typedef struct removal {
    uint64_t n_files, n_bytes, n_foreign;
    uint64_t again_until_us; /* set when a folder had got a new file before it could be removed */
    mx_err err;
    mx_errbuf *eb;
    const mx_cold_fileops *ops;
} removal;

/* What may be in a folder, and what is in the folders below. */
typedef struct name_rule {
    bool (*is_file)(const char *name);   /* NULL = no files */
    bool (*is_folder)(const char *name); /* NULL = no folders */
    const struct name_rule *(*below)(const char *name);
} name_rule;

static bool is_hex_name(const char *name, size_t n)
{
    return strlen(name) >= n && strspn(name, "0123456789abcdef") >= n;
}

static bool is_temp(const char *name)
{
    return strncmp(name, ".tmp-", 5) == 0;
}

static bool is_stored_file(const char *name)
{
    return is_temp(name)
           || (is_hex_name(name, 64)
               && (strcmp(name + 64, ".page") == 0 || strcmp(name + 64, ".state") == 0
                   || strcmp(name + 64, ".session") == 0
                   || strcmp(name + 64, ".bookmark") == 0));
}

static bool is_quarantined(const char *name)
{
    return is_temp(name) || is_hex_name(name, 64);
}

static bool is_root_file(const char *name)
{
    return is_temp(name) || strcmp(name, "model.json") == 0;
}

static bool is_v1_file(const char *name)
{
    return is_temp(name) || strcmp(name, "gc.lock") == 0
           || strcmp(name, MX_COLD_WEAR_NAME) == 0;
}

static bool is_xx(const char *name)
{
    return strlen(name) == 2 && is_hex_name(name, 2);
}

static bool is_root(const char *name)
{
    return strlen(name) == 64 && is_hex_name(name, 64);
}

static bool is_v1(const char *name)
{
    return strcmp(name, "v1") == 0;
}

static bool is_kind_folder(const char *name)
{
    static const char *const names[] = {"pages", "states", "sessions", "trash", "quarantine"};
    for (size_t i = 0; i < MX_COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static const name_rule stored_rule = {is_stored_file, NULL, NULL};
static const name_rule quarantine_rule = {is_quarantined, NULL, NULL};

static const name_rule *below_xx(const char *name)
{
    (void)name;
    return &stored_rule;
}
static const name_rule xx_rule = {NULL, is_xx, below_xx};

static const name_rule *below_root(const char *name)
{
    if (strcmp(name, "pages") == 0 || strcmp(name, "states") == 0) {
        return &xx_rule;
    }
    return strcmp(name, "sessions") == 0 ? &stored_rule : &quarantine_rule;
}
static const name_rule root_rule = {is_root_file, is_kind_folder, below_root};

static const name_rule *below_v1(const char *name)
{
    (void)name;
    return &root_rule;
}
static const name_rule v1_rule = {is_v1_file, is_root, below_v1};

static const name_rule *below_top(const char *name)
{
    (void)name;
    return &v1_rule;
}

static bool is_top_file(const char *name)
{
    return is_temp(name) || strcmp(name, MX_COLD_KEY_NAME) == 0;
}
static const name_rule top_rule = {is_top_file, is_v1, below_top};

/* What somebody else has removed meanwhile is gone as well. */
static void fail(removal *r, const char *what, const char *name)
{
    if (r->err == MX_OK && errno != ENOENT) {
        r->err = mx_fail_errno(r->eb, mx_cold_errno(errno), errno, "cannot %s %s", what, name);
    }
}

static void remove_name(removal *r, int dir, const char *name, const name_rule *rule, int depth);

/* Entered at most five deep: the rules end there. */
static void remove_in(removal *r, int dir, const name_rule *rule, int depth)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        fail(r, "list", "a folder");
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            remove_name(r, dir, e->d_name, rule, depth);
        }
    }
    closedir(d);
}

/* A server that writes all the time wins many rounds in a row, how many depends on the machine: time
 * is what the person who waits for the command has a measure of. */
static bool goes_round_again(removal *r)
{
    enum { AGAIN_US = 10000000 };
    const uint64_t now = mx_now_us();
    if (r->again_until_us == 0) {
        r->again_until_us = now + AGAIN_US;
    }
    return now < r->again_until_us;
}

static void remove_name(removal *r, int dir, const char *name, const name_rule *rule, int depth)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return;
    }
    if (S_ISREG(st.st_mode) && rule->is_file != NULL && rule->is_file(name)) {
        if (unlinkat(dir, name, 0) == 0) {
            r->n_files++;
            r->n_bytes += (uint64_t)st.st_size;
        } else {
            fail(r, "remove", name);
        }
    } else if (S_ISDIR(st.st_mode) && rule->is_folder != NULL && rule->is_folder(name)
               && depth < 5) {
        mx_err err;
        mx_errbuf eb;
        int fd = mx_cold_open_dir(r->ops, dir, name, false, &err, &eb);
        if (fd < 0) {
            if (r->err == MX_OK && err != MX_E_NOT_FOUND) {
                r->err = mx_fail(r->eb, err, "%s", eb.text);
            }
            return;
        }
        uint64_t foreign_before = r->n_foreign;
        bool is_gone = false;
        do { /* a server may have written into it meanwhile */
            remove_in(r, fd, rule->below(name), depth + 1);
            is_gone = r->n_foreign > foreign_before || unlinkat(dir, name, AT_REMOVEDIR) == 0;
        } while (!is_gone && (errno == ENOTEMPTY || errno == EEXIST) && goes_round_again(r));
        if (!is_gone) {
            fail(r, "remove the folder", name);
        }
        close(fd);
    } else if (strcmp(name, MX_COLD_MARKER_NAME) != 0 || depth > 0) {
        r->n_foreign++; /* also a link in the place of one of ours */
    }
}

/* A server may have begun anew behind us: then the marker that it found still counts. (One that has found
 * it and makes v1 after we looked, looks again itself.) */
static void remove_marker(removal *r, int dir)
{
    static const char going[] = ".tmp-marker";
    struct stat st;
    if (fstatat(dir, MX_COLD_MARKER_NAME, &st, AT_SYMLINK_NOFOLLOW) != 0
        || renameat(dir, MX_COLD_MARKER_NAME, dir, going) != 0) {
        return;
    }
    if (faccessat(dir, "v1", F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        (void)renameat(dir, going, dir, MX_COLD_MARKER_NAME);
    } else if (unlinkat(dir, going, 0) == 0) {
        r->n_files++;
        r->n_bytes += (uint64_t)st.st_size;
    }
}

mx_err mx_cold_remove_all(const char *dir, const mx_hash256 *key, uint64_t *n_files, uint64_t *n_bytes, mx_errbuf *eb)
{
    const mx_cold_fileops *ops = key != NULL ? &mx_cold_shared_fileops : &mx_cold_real_fileops;
    removal r = {.eb = eb, .ops = ops};
    *n_files = *n_bytes = 0;
    mx_err err;
    int fd = mx_cold_open_dir(ops, AT_FDCWD, dir, false, &err, eb);
    if (fd < 0) {
        return err == MX_E_NOT_FOUND ? MX_OK : err;
    }
    err = mx_visit_check_marker(ops, fd, dir, eb);
    if (err != MX_OK) {
        close(fd);
        return err == MX_E_NOT_FOUND ? MX_OK : err;
    }
    int v1 = openat(fd, "v1", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int lock = v1 >= 0 ? openat(v1, "gc.lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK) : -1;
    while (lock >= 0 && flock(lock, LOCK_EX) != 0 && errno == EINTR) {
        /* a sweep of a running server ends first */
    }
    remove_in(&r, fd, &top_rule, 0);
    if (r.err == MX_OK && r.n_foreign == 0) {
        remove_marker(&r, fd);
    } else if (r.err == MX_OK) {
        mx_fail(eb, MX_OK, "left alone: %llu names below %s that are not the cache's",
                (unsigned long long)r.n_foreign, dir);
    }
    if (lock >= 0) {
        close(lock);
    }
    if (v1 >= 0) {
        close(v1);
    }
    close(fd);
    *n_files = r.n_files;
    *n_bytes = r.n_bytes;
    return r.err;
}
