/* SPDX-License-Identifier: MIT
 *
 * The cache key: a secret that is made once and stays with the folder.
 *
 * Two processes that start at the same time must end up with the same key, so the new file gets its
 * name by link(), which never replaces: whoever comes second reads what the first has put there.
 * What counts as the key is the SHA-256 of the file's bytes, so that a file of any form will do.
 */
#include "cold/cold.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include "cold/cold_files.h"

enum { KEY_MIN_BYTES = 32, KEY_MAX_BYTES = 4096 };

static mx_err read_key(int fd, const char *name, mx_hash256 *out, mx_errbuf *eb)
{
    uint8_t bytes[KEY_MAX_BYTES + 1];
    size_t n = 0;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot look at the cache key file %s", name);
    }
    if (!S_ISREG(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0) ||
        (st.st_mode & 077) != 0)
    {
        return mx_fail(eb, MX_E_DENIED, "the cache key file %s must be a regular file of this user "
                       "that nobody else can read or write: chmod 600", name);
    }
    for (ssize_t got; n < sizeof bytes && (got = read(fd, bytes + n, sizeof bytes - n)) != 0;) {
        if (got < 0 && errno != EINTR) {
            return mx_fail_errno(eb, MX_E_IO, errno, "cannot read the cache key file %s", name);
        }
        n += got < 0 ? 0 : (size_t)got;
    }
    if (n < KEY_MIN_BYTES || n > KEY_MAX_BYTES) {
        return mx_fail(eb, MX_E_INVALID, "the cache key file %s must have %d to %d bytes, best "
                       "random ones: head -c 32 /dev/urandom > FILE", name, KEY_MIN_BYTES,
                       KEY_MAX_BYTES);
    }
    *out = mx_sha256_of(bytes, n);
    return MX_OK;
}

/* A new key under its name, unless somebody else was faster. */
static mx_err make_key(int dir, mx_errbuf *eb)
{
    mx_hash256 random;
    char text[66], temp[MX_COLD_NAME_CAP];
    if (getrandom(random.b, sizeof random.b, 0) != (ssize_t)sizeof random.b) {
        return mx_fail_errno(eb, MX_E_IO, errno, "no random numbers for the cache key");
    }
    mx_hash256_hex(&random, text);
    text[64] = '\n';
    snprintf(temp, sizeof temp, ".tmp-key-%ld-%llx", (long)getpid(),
             (unsigned long long)mx_cold_wall_ns());
    int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot make the cache key file");
    }
    bool ok = write(fd, text, 65) == 65 && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    ok = ok && (linkat(dir, temp, dir, MX_COLD_KEY_NAME, 0) == 0 || errno == EEXIST);
    int e = errno;
    unlinkat(dir, temp, 0);
    if (ok) {
        ok = fsync(dir) == 0;
        e = errno;
    }
    return ok ? MX_OK : mx_fail_errno(eb, mx_cold_errno(e), e, "cannot write the cache key file");
}

mx_err mx_cold_cache_key(const char *dir, const char *file, mx_hash256 *out, mx_errbuf *eb)
{
    if (file != NULL) {
        int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0) {
            return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot open the cache key file "
                                 "%s", file);
        }
        mx_err err = read_key(fd, file, out, eb);
        close(fd);
        return err;
    }
    mx_cold_folder f;
    mx_hash256 no_root = {{0}};
    mx_cold_folder_init(&f, &mx_cold_real_fileops, dir, &no_root, false);
    mx_err err = mx_cold_folder_top(&f, true, eb);
    static const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    int fd = err == MX_OK ? openat(f.top_fd, MX_COLD_KEY_NAME, flags) : -1;
    if (err == MX_OK && fd < 0 && errno == ENOENT) {
        err = make_key(f.top_fd, eb);
        fd = err == MX_OK ? openat(f.top_fd, MX_COLD_KEY_NAME, flags) : -1;
    }
    if (err == MX_OK && fd < 0) {
        err = mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot open %s/" MX_COLD_KEY_NAME,
                            dir);
    }
    if (err == MX_OK) {
        /* Whoever made it may have been killed before he synced its name; best effort, for the folder
         * may be read-only now. */
        int rc = fsync(f.top_fd);
        (void)rc;
        err = read_key(fd, MX_COLD_KEY_NAME, out, eb);
    }
    if (fd >= 0) {
        close(fd);
    }
    mx_cold_folder_close(&f);
    return err;
}

mx_err mx_cold_derive_keys(const mx_hash256 *cache_key, mx_hash256 *object, mx_hash256 *root)
{
    static const char object_name[] = "mtplx object key v1", root_name[] = "mtplx root key v1";
    bool ok = mx_hmac_sha256(cache_key->b, sizeof cache_key->b, object_name, sizeof object_name,
                             "", 0, object)
              && mx_hmac_sha256(cache_key->b, sizeof cache_key->b, root_name, sizeof root_name,
                                "", 0, root);
    return ok ? MX_OK : MX_E_NOMEM;
}
