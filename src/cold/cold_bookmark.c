/* SPDX-License-Identifier: MIT
 *
 * Bookmarks as bytes and as files.
 *
 * A conversation's files are named by what is in them, so a session that goes on has another manifest
 * with each turn, and two sessions with the same beginning have the same files. What is said of a
 * session (its name, a pin, how long it may rest) therefore stands in a file of its own, which
 * points to a manifest. Like that it is a hint: what it points to may be gone.
 */
#include "cold/cold_bookmark.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "cold/cold_format.h"

static const uint8_t magic[8] = {0x89, 'M', 'X', 'M', 'A', 'R', 'K', 0x0A};

/* docs/file-format.md, section 14; frozen. */
enum {
    B_VERSION = 8,
    B_LENGTH = 12,
    B_INCOMPATIBLE = 16,
    B_ROOT = 32,
    B_OWN = 64,
    B_ENTRY = 96,
    B_FORKED_FROM = 128,
    B_KIND = 160,
    B_FLAGS = 164,
    B_N_TOKENS = 168,
    B_CREATED = 176,
    B_TTL = 184,
    B_NAME_LENGTH = 192,
    B_AUTH_KIND = 196,
    B_AUTH_TAG = 200,
    B_ZERO = 232,
    B_NAME = 240,
    B_SUM = 496,
};
_Static_assert(B_NAME + MX_SESSION_NAME_MAX == B_SUM, "the name ends where the checksum begins");
_Static_assert(B_SUM + 16 == MX_BOOKMARK_BYTES, "the checksum is the last field");

enum { KIND_PIN = 0, KIND_SESSION = 1, FLAG_PINNED = 1 };

mx_hash256 mx_session_id(const mx_hash256 *root, mx_str name)
{
    uint8_t bytes[16 + 32 + 8 + MX_SESSION_NAME_MAX];
    size_t n = mx_min_size(name.len, MX_SESSION_NAME_MAX);
    memcpy(bytes, "mtplx session v1", 16);
    memcpy(bytes + 16, root->b, 32);
    mx_put_le64(bytes + 48, n);
    memcpy(bytes + 56, name.ptr, n);
    return mx_sha256_of(bytes, 56 + n);
}

bool mx_session_name_ok(mx_str name)
{
    for (size_t i = 0; i < name.len; i++) {
        if ((unsigned char)name.ptr[i] < 0x20 || name.ptr[i] == 0x7f) {
            return false;
        }
    }
    return name.len > 0 && name.len <= MX_SESSION_NAME_MAX && mx_utf8_valid(name.ptr, name.len);
}

mx_bookmark mx_bookmark_fork(const mx_bookmark *from, mx_str name)
{
    mx_bookmark b = *from;
    b.own = mx_session_id(&from->root, name);
    b.forked_from = from->own;
    b.is_pinned = false;
    b.ttl_s = 0;
    b.created_s = (uint64_t)mx_wall_s();
    memset(b.name, 0, sizeof b.name);
    memcpy(b.name, name.ptr, mx_min_size(name.len, MX_SESSION_NAME_MAX));
    return b;
}

bool mx_bookmark_apply_edit(void *arg, mx_bookmark *b, bool is_there)
{
    mx_bookmark_edit *e = arg;
    e->is_done = is_there == (e->forked == NULL);
    if (!e->is_done) {
        return false;
    }
    *b = e->forked != NULL ? *e->forked : *b;
    b->is_pinned = e->sets_pin ? e->is_pinned : b->is_pinned;
    b->ttl_s = e->sets_ttl ? e->ttl_s : b->ttl_s;
    e->result = *b;
    e->result.used_s = mx_wall_s(); /* as the file will say */
    return true;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool make_tag(const uint8_t *bytes, const mx_hash256 *key, mx_hash256 *tag)
{
    uint8_t copy[MX_BOOKMARK_BYTES];
    memcpy(copy, bytes, sizeof copy);
    mx_put_le32(copy + B_AUTH_KIND, MX_DISK_AUTH_HMAC_SHA256);
    memset(copy + B_AUTH_TAG, 0, sizeof tag->b);
    memset(copy + B_SUM, 0, 16);
    return mx_hmac_sha256(key->b, sizeof key->b, copy, sizeof copy, NULL, 0, tag);
}

mx_err mx_bookmark_encode(const mx_bookmark *b, const mx_hash256 *key,
                          uint8_t out[MX_BOOKMARK_BYTES])
{
    memset(out, 0, MX_BOOKMARK_BYTES);
    memcpy(out, magic, sizeof magic);
    mx_put_le32(out + B_VERSION, MX_DISK_VERSION);
    mx_put_le32(out + B_LENGTH, MX_BOOKMARK_BYTES);
    memcpy(out + B_ROOT, b->root.b, 32);
    memcpy(out + B_OWN, b->own.b, 32);
    memcpy(out + B_ENTRY, b->entry.b, 32);
    memcpy(out + B_FORKED_FROM, b->forked_from.b, 32);
    mx_put_le32(out + B_KIND, b->is_session ? KIND_SESSION : KIND_PIN);
    mx_put_le32(out + B_FLAGS, b->is_pinned ? FLAG_PINNED : 0);
    mx_put_le64(out + B_N_TOKENS, b->n_tokens);
    mx_put_le64(out + B_CREATED, b->created_s);
    mx_put_le64(out + B_TTL, b->ttl_s);
    size_t n = strlen(b->name);
    mx_put_le32(out + B_NAME_LENGTH, (uint32_t)n);
    memcpy(out + B_NAME, b->name, n);
    if (key != NULL) {
        mx_hash256 tag;
        if (!make_tag(out, key, &tag)) {
            return MX_E_NOMEM;
        }
        mx_put_le32(out + B_AUTH_KIND, MX_DISK_AUTH_HMAC_SHA256);
        memcpy(out + B_AUTH_TAG, tag.b, 32);
    }
    mx_hash128 sum = mx_xxh3_128(out, B_SUM);
    memcpy(out + B_SUM, sum.b, 16);
    return MX_OK;
}

static bool is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

static mx_err check_head(const uint8_t *p, mx_errbuf *eb)
{
    mx_hash128 sum = mx_xxh3_128(p, B_SUM);
    if (memcmp(p, magic, sizeof magic) != 0) {
        return mx_fail(eb, MX_E_CORRUPT, "magic");
    }
    if (memcmp(p + B_SUM, sum.b, 16) != 0) {
        return mx_fail(eb, MX_E_CORRUPT, "header checksum");
    }
    if (mx_get_le32(p + B_VERSION) != MX_DISK_VERSION || mx_get_le64(p + B_INCOMPATIBLE) != 0
        || mx_get_le32(p + B_LENGTH) != MX_BOOKMARK_BYTES
        || mx_get_le32(p + B_AUTH_KIND) > MX_DISK_AUTH_HMAC_SHA256)
    {
        return mx_fail(eb, MX_E_UNSUPPORTED, "version, feature or authentication");
    }
    return MX_OK;
}

mx_err mx_bookmark_decode(mx_bookmark *b, const uint8_t p[MX_BOOKMARK_BYTES],
                          const mx_hash256 *key, bool needs_tag, mx_errbuf *eb)
{
    *b = (mx_bookmark){.used_s = 0};
    MX_TRY(check_head(p, eb));
    uint32_t kind = mx_get_le32(p + B_KIND), flags = mx_get_le32(p + B_FLAGS);
    uint32_t n = mx_get_le32(p + B_NAME_LENGTH);
    bool has_tag = mx_get_le32(p + B_AUTH_KIND) != MX_DISK_AUTH_NONE;
    mx_str name = {(const char *)p + B_NAME, n};
    if (kind > KIND_SESSION || flags > FLAG_PINNED || n > MX_SESSION_NAME_MAX
        || !is_zero(p + B_ZERO, B_NAME - B_ZERO) || !is_zero(p + B_NAME + n, MX_SESSION_NAME_MAX - n)
        || (!has_tag && !is_zero(p + B_AUTH_TAG, 32))
        || (kind == KIND_SESSION ? !mx_session_name_ok(name) : n > 0))
    {
        return mx_fail(eb, MX_E_CORRUPT, "a field of a bookmark");
    }
    memcpy(b->root.b, p + B_ROOT, 32);
    memcpy(b->own.b, p + B_OWN, 32);
    memcpy(b->entry.b, p + B_ENTRY, 32);
    memcpy(b->forked_from.b, p + B_FORKED_FROM, 32);
    b->is_session = kind == KIND_SESSION;
    b->is_pinned = (flags & FLAG_PINNED) != 0;
    b->n_tokens = mx_get_le64(p + B_N_TOKENS);
    b->created_s = mx_get_le64(p + B_CREATED);
    b->ttl_s = mx_get_le64(p + B_TTL);
    memcpy(b->name, name.ptr, n);
    mx_hash256 own = b->is_session ? mx_session_id(&b->root, name) : b->entry, tag;
    if (!mx_hash256_eq(&own, &b->own)) {
        return mx_fail(eb, MX_E_CORRUPT, "identity");
    }
    if (key == NULL || (!has_tag && !needs_tag)) {
        return MX_OK;
    }
    if (!has_tag) {
        return mx_fail(eb, MX_E_CORRUPT, "not authenticated");
    }
    if (!make_tag(p, key, &tag)) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    return memcmp(tag.b, p + B_AUTH_TAG, 32) == 0 ? MX_OK
                                                  : mx_fail(eb, MX_E_CORRUPT, "authentication");
}

/* ---- files ----------------------------------------------------------------------------------- */

void mx_bookmark_file_name(const mx_hash256 *own, char name[MX_COLD_NAME_CAP])
{
    char hex[65];
    mx_hash256_hex(own, hex);
    snprintf(name, MX_COLD_NAME_CAP, "%s.bookmark", hex);
}

mx_err mx_bookmark_read(const mx_cold_fileops *ops, int sessions_fd, const mx_hash256 *own,
                        const mx_hash256 *key, bool needs_tag, mx_bookmark *b, mx_errbuf *eb)
{
    uint8_t bytes[MX_BOOKMARK_BYTES];
    char name[MX_COLD_NAME_CAP];
    struct stat st;
    int fd = -1;
    uint64_t n = 0;
    mx_bookmark_file_name(own, name);
    MX_TRY(mx_cold_open_file(ops, sessions_fd, name, &fd, &n, eb));
    struct iovec iov = {bytes, sizeof bytes};
    mx_err err = n != sizeof bytes ? mx_fail(eb, MX_E_CORRUPT, "size")
                                   : mx_cold_read_all(ops, fd, &iov, 1, eb);
    bool has_time = err == MX_OK && fstat(fd, &st) == 0;
    close(fd);
    if (err == MX_OK) {
        err = mx_bookmark_decode(b, bytes, key, needs_tag, eb);
    }
    if (err == MX_OK && !mx_hash256_eq(&b->own, own)) {
        err = mx_fail(eb, MX_E_CORRUPT, "it has another's name");
    }
    if (err == MX_OK) {
        b->used_s = has_time ? (int64_t)st.st_mtim.tv_sec : 0;
    }
    return err;
}

/* Held while one is read and written: the writer moves a session's, an administrator changes it, and the
 * sweep removes it. Nobody holds another lock then. */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

mx_err mx_bookmark_change(mx_cold_folder *f, const mx_hash256 *own, const mx_hash256 *key,
                          mx_bookmark_fn *fn, void *arg, mx_errbuf *eb)
{
    mx_bookmark b;
    uint8_t bytes[MX_BOOKMARK_BYTES];
    char name[MX_COLD_NAME_CAP];
    struct stat st;
    mx_bookmark_file_name(own, name);
    pthread_mutex_lock(&changing);
    mx_err err = mx_bookmark_read(f->ops, f->sessions_fd, own, key, true, &b, eb);
    bool is_there = err == MX_OK;
    if (err == MX_E_NOT_FOUND || err == MX_E_CORRUPT) { /* a damaged one is written over */
        b = (mx_bookmark){.own = *own, .created_s = (uint64_t)mx_wall_s()};
        mx_fail(eb, MX_OK, "%s", "");
        err = MX_OK;
    }
    if (err == MX_OK && fn(arg, &b, is_there)) {
        err = mx_bookmark_encode(&b, key, bytes);
        struct iovec iov = {bytes, sizeof bytes};
        if (!is_there && fstatat(f->sessions_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0
            && S_ISDIR(st.st_mode))
        { /* that a file cannot be written over */
            (void)mx_cold_quarantine(f, f->sessions_fd, name, "not a file or folder of the cache");
        }
        err = err != MX_OK ? mx_fail(eb, err, "out of memory")
                           : mx_cold_write_file(f, f->sessions_fd, name, &iov, 1, eb);
    }
    pthread_mutex_unlock(&changing);
    return err;
}

static mx_err unlink_bookmark(const mx_cold_fileops *ops, int sessions_fd, const mx_hash256 *own)
{
    char name[MX_COLD_NAME_CAP];
    mx_bookmark_file_name(own, name);
    return ops->unlink(sessions_fd, name, 0) == 0 ? MX_OK : mx_cold_errno(errno);
}

static bool is_unchanged(const mx_bookmark *a, const mx_bookmark *b)
{
    return mx_hash256_eq(&a->entry, &b->entry) && a->is_pinned == b->is_pinned && a->ttl_s == b->ttl_s
           && a->used_s == b->used_s;
}

mx_err mx_bookmark_remove_unchanged(const mx_cold_fileops *ops, int sessions_fd, const mx_bookmark *seen,
                                    const mx_hash256 *key, bool needs_tag)
{
    mx_bookmark now;
    pthread_mutex_lock(&changing);
    mx_err err = mx_bookmark_read(ops, sessions_fd, &seen->own, key, needs_tag, &now, NULL);
    if (err == MX_OK && is_unchanged(&now, seen)) {
        err = unlink_bookmark(ops, sessions_fd, &seen->own);
    } else if (err == MX_OK || err == MX_E_CORRUPT || err == MX_E_UNSUPPORTED) {
        err = MX_E_BUSY; /* it was sound then, and of this version */
    }
    pthread_mutex_unlock(&changing);
    return err;
}

mx_err mx_bookmark_remove(const mx_cold_fileops *ops, int sessions_fd, const mx_hash256 *own)
{
    pthread_mutex_lock(&changing);
    mx_err err = unlink_bookmark(ops, sessions_fd, own);
    pthread_mutex_unlock(&changing);
    return err;
}
