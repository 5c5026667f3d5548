/* SPDX-License-Identifier: MIT
 *
 * The cache file is written under a private name and renamed, so a reader sees a whole file or
 * none; it is not synced, because a file that a crash left empty or torn fails its checksum and is
 * ignored.
 *
 * Layout (little endian): "MTPLXFPR", u32 version 1, u32 0, u64 device, inode, size, i64 mtime ns,
 * i64 ctime ns, fingerprint[32], XXH3-128 of all before it.
 */
#include "model/model_fingerprint.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEAF_BYTES = 1 << 20, TAG_BYTES = 24 };
enum { KEY_AT = 16, HASH_AT = 56, SUM_AT = 88, FILE_BYTES = 104 }; /* the cache file */

static const char tree_tag[TAG_BYTES] = "mtplx model file v1";
static const char parts_tag[TAG_BYTES] = "mtplx model parts v1";
static const uint8_t file_magic[8] = {'M', 'T', 'P', 'L', 'X', 'F', 'P', 'R'};

mx_file_stamp mx_file_stamp_of(const mx_gguf *g, size_t part)
{
    const mx_gguf_part p = mx_gguf_part_at(g, part);
    return (mx_file_stamp){.device = p.device, .inode = p.inode, .size = p.n_bytes,
                           .mtime_ns = p.mtime_ns, .ctime_ns = p.ctime_ns};
}

/* ---- tree hash ------------------------------------------------------------------------------- */

typedef struct hash_job {
    const mx_gguf *g;
    size_t part, n_bytes, n_leaves;
    uint8_t *leaves; /* [n_leaves][32] */
    mx_pool_cursor cursor;
    mx_err err; /* atomic access */
    mx_errbuf eb;
} hash_job;

static void hash_worker(void *arg, unsigned worker)
{
    (void)worker;
    hash_job *job = arg;
    size_t begin, end;
    mx_errbuf eb;
    uint8_t *bytes = mx_alloc(LEAF_BYTES);
    mx_err e = bytes != NULL ? MX_OK : mx_fail(&eb, MX_E_NOMEM, "no memory to hash the model file");
    while (e == MX_OK && mx_pool_take(&job->cursor, job->n_leaves, 1, &begin, &end)) {
        const size_t at = begin * LEAF_BYTES, n = mx_min_size(LEAF_BYTES, job->n_bytes - at);
        e = mx_gguf_read(job->g, job->part, at, bytes, n, &eb);
        if (e == MX_OK) {
            mx_hash256 h = mx_sha256_of(bytes, n);
            memcpy(job->leaves + begin * sizeof h.b, h.b, sizeof h.b);
        }
    }
    mx_free(bytes);
    mx_err none = MX_OK;
    if (e != MX_OK && __atomic_compare_exchange_n(&job->err, &none, e, false, __ATOMIC_RELAXED,
                                                  __ATOMIC_RELAXED))
    {
        job->eb = eb;
    }
}

mx_hash256 mx_fingerprint_join(const mx_hash256 *parts, size_t n_parts)
{
    if (n_parts == 1) {
        return parts[0];
    }
    uint8_t head[TAG_BYTES + 32];
    memcpy(head, parts_tag, TAG_BYTES);
    mx_hash256 all = mx_sha256_of(parts, n_parts * sizeof *parts);
    memcpy(head + TAG_BYTES, all.b, sizeof all.b);
    return mx_sha256_of(head, sizeof head);
}

mx_err mx_fingerprint_compute(const mx_gguf *g, size_t part, mx_pool *pool, mx_hash256 *out,
                              mx_errbuf *eb)
{
    const mx_gguf_part p = mx_gguf_part_at(g, part);
    hash_job job = {.g = g, .part = part, .n_bytes = p.n_bytes};
    job.n_leaves = job.n_bytes / LEAF_BYTES + (job.n_bytes % LEAF_BYTES != 0);
    size_t head = TAG_BYTES + 8;
    uint8_t *root = mx_alloc(head + job.n_leaves * sizeof out->b);
    if (root == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "no memory to hash the model file");
    }
    memcpy(root, tree_tag, TAG_BYTES);
    mx_put_le64(root + TAG_BYTES, job.n_bytes);
    job.leaves = root + head;
    mx_pool_run(pool, hash_worker, &job);
    *out = mx_sha256_of(root, head + job.n_leaves * sizeof out->b);
    mx_free(root);
    return job.err == MX_OK ? MX_OK : mx_fail(eb, job.err, "%s", job.eb.text);
}

/* ---- memory of it ---------------------------------------------------------------------------- */

static void encode(uint8_t out[FILE_BYTES], const mx_file_stamp *s, const mx_hash256 *hash)
{
    memset(out, 0, FILE_BYTES);
    memcpy(out, file_magic, sizeof file_magic);
    mx_put_le32(out + 8, 1);
    mx_put_le64(out + KEY_AT, s->device);
    mx_put_le64(out + KEY_AT + 8, s->inode);
    mx_put_le64(out + KEY_AT + 16, s->size);
    mx_put_le64(out + KEY_AT + 24, (uint64_t)s->mtime_ns);
    mx_put_le64(out + KEY_AT + 32, (uint64_t)s->ctime_ns);
    memcpy(out + HASH_AT, hash->b, sizeof hash->b);
    mx_hash128 sum = mx_xxh3_128(out, SUM_AT);
    memcpy(out + SUM_AT, sum.b, sizeof sum.b);
}

/* fingerprint-<hash of the key>: one file per state of a model file. */
static int open_named(const char *dir, const mx_file_stamp *stamp, char name[64])
{
    uint8_t bytes[FILE_BYTES];
    char hex[65];
    encode(bytes, stamp, &(mx_hash256){{0}});
    mx_hash256 h = mx_sha256_of(bytes + KEY_AT, HASH_AT - KEY_AT);
    mx_hash256_hex(&h, hex);
    snprintf(name, 64, "fingerprint-%.24s", hex);
    return open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool mx_fingerprint_cached(const char *dir, const mx_file_stamp *stamp, mx_hash256 *out)
{
    char name[64];
    uint8_t found[FILE_BYTES + 1], expected[FILE_BYTES];
    int dirfd = open_named(dir, stamp, name);
    if (dirfd < 0) {
        return false;
    }
    int fd = openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    close(dirfd);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, found, sizeof found);
    close(fd);
    if (n != FILE_BYTES) {
        return false;
    }
    /* What a sound file with this fingerprint looks like is known to the byte. */
    memcpy(out->b, found + HASH_AT, sizeof out->b);
    encode(expected, stamp, out);
    return memcmp(found, expected, FILE_BYTES) == 0;
}

static mx_err write_file(int dirfd, const char *name, const uint8_t *bytes, size_t n, mx_errbuf *eb)
{
    char temp[96];
    snprintf(temp, sizeof temp, ".%s.%ld", name, (long)getpid());
    int fd = openat(dirfd, temp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot write %s", temp);
    }
    ssize_t written = write(fd, bytes, n);
    int saved = errno;
    bool ok = written == (ssize_t)n;
    if (close(fd) != 0 && ok) {
        saved = errno;
        ok = false;
    }
    if (ok && renameat(dirfd, temp, dirfd, name) != 0) {
        saved = errno;
        ok = false;
    }
    if (!ok) {
        (void)unlinkat(dirfd, temp, 0);
        return mx_fail_errno(eb, MX_E_IO, written < 0 || written == (ssize_t)n ? saved : ENOSPC,
                             "cannot write %s", name);
    }
    return MX_OK;
}

mx_err mx_fingerprint_remember(const char *dir, const mx_file_stamp *stamp, const mx_hash256 *hash,
                               mx_errbuf *eb)
{
    char name[64];
    uint8_t bytes[FILE_BYTES];
    int64_t now_ns = mx_wall_s() * 1000000000;
    if (now_ns - stamp->ctime_ns < 2000000000) {
        return MX_OK;
    }
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot make the folder %s", dir);
    }
    int dirfd = open_named(dir, stamp, name);
    if (dirfd < 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot open the folder %s", dir);
    }
    encode(bytes, stamp, hash);
    mx_err e = write_file(dirfd, name, bytes, sizeof bytes, eb);
    close(dirfd);
    return e;
}
