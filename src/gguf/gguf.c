/* SPDX-License-Identifier: MIT
 *
 * Opening, closing, and reading.
 *
 * The header is copied before it is parsed: metadata views (the vocabulary, the chat template) stay
 * sound whatever happens to the file, and a file rewritten between two reads cannot show the parser
 * two different counts.
 */
#include "gguf/gguf.h"

#include "base/mem.h"
#include "gguf/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading --------------------------------------------------------------------------------- */

/* The file must still be what was checked at open: a file cut inside its last page reads as zeros
 * without any signal. */
static mx_err check_unchanged(const mx_gguf *g, mx_errbuf *eb)
{
    struct stat st;
    if (g->fd < 0) {
        return MX_OK;
    }
    if (fstat(g->fd, &st) != 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "the model file cannot be examined");
    }
    if ((uint64_t)st.st_size != g->n_bytes || st.st_mtim.tv_sec != g->st.st_mtim.tv_sec ||
        st.st_mtim.tv_nsec != g->st.st_mtim.tv_nsec)
    {
        return mx_fail(eb, MX_E_IO, "the model file changed while it was being read: start again "
                       "when it is complete");
    }
    return MX_OK;
}

static mx_err read_file(const mx_gguf *g, uint64_t at, uint8_t *out, size_t n, mx_errbuf *eb)
{
    while (n > 0) {
        const ssize_t got = pread(g->fd, out, n, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return mx_fail_errno(eb, MX_E_IO, errno, "the model file cannot be read at byte %llu",
                                 (unsigned long long)at);
        }
        if (got == 0) {
            return mx_fail(eb, MX_E_IO, "the model file was cut short at byte %llu (%zu bytes when "
                           "it was opened): start again when it is complete",
                           (unsigned long long)at, g->n_bytes);
        }
        out += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return check_unchanged(g, eb);
}

mx_err mx_gguf_read(const mx_gguf *g, size_t part, uint64_t at, void *out, size_t n, mx_errbuf *eb)
{
    const mx_gguf *p = part == 0 ? g : part <= g->n_more ? g->more[part - 1] : NULL;
    if (p == NULL || at > p->n_bytes || n > p->n_bytes - at) {
        return mx_fail(eb, MX_E_INVALID, "the model has no bytes %llu to %llu in part %zu",
                       (unsigned long long)at, (unsigned long long)(at + n), part);
    }
    if (p->fd < 0) {
        memcpy(out, p->bytes + at, n);
        return MX_OK;
    }
    return read_file(p, at, out, n, eb);
}

mx_err mx_gguf_read_tensor(const mx_gguf *g, const mx_gguf_tensor *t, size_t at, void *out, size_t n,
                           mx_errbuf *eb)
{
    if (at > t->n_bytes || n > t->n_bytes - at) {
        return mx_fail(eb, MX_E_INVALID, "tensor \"%.*s\" has %zu bytes, not %zu from %zu on",
                       (int)t->name.len, t->name.ptr, t->n_bytes, n, at);
    }
    return mx_gguf_read(g, t->part, t->offset + at, out, n, eb);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* How much of the file is taken for its header at first, and at most: a vocabulary of 250,000 words
 * with its merges takes some 16 MiB. */
enum { FIRST_READ = 4 << 20, MAX_HEADER = 1 << 30 };

static mx_err resize_header(mx_gguf *g, size_t n, mx_errbuf *eb)
{
    uint8_t *p = mx_realloc(g->header_copy, n);
    if (p == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for the header (%zu bytes)", n);
    }
    g->header_copy = p;
    return MX_OK;
}

static mx_err copy_header(mx_gguf *g, mx_errbuf *eb)
{
    size_t have = 0, want = FIRST_READ, n_header;
    bool ran_out;
    mx_err e;
    do {
        want = mx_min_size(want, g->n_bytes);
        MX_TRY(resize_header(g, want, eb));
        MX_TRY(read_file(g, have, g->header_copy + have, want - have, eb));
        have = want;
        want *= 4;
        e = gguf_measure_header(g->header_copy, have, &n_header, &ran_out, eb);
    } while (e != MX_OK && ran_out && have < g->n_bytes && have < MAX_HEADER);
    if (e != MX_OK && ran_out && have < g->n_bytes) {
        return mx_fail(eb, MX_E_LIMIT, "its header has more than %d bytes", (int)MAX_HEADER);
    }
    MX_TRY(e);
    MX_TRY(resize_header(g, n_header, eb));
    g->header = g->header_copy;
    g->n_header = n_header;
    return MX_OK;
}

static mx_err open_fd(mx_gguf *g, const char *path, mx_errbuf *eb)
{
    struct stat st;
    /* O_NONBLOCK: a FIFO given by mistake is refused below instead of waited for. */
    g->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (g->fd < 0) {
        return mx_fail_errno(eb, errno == ENOENT ? MX_E_NOT_FOUND : MX_E_IO, errno,
                             "cannot open it");
    }
    if (fstat(g->fd, &st) != 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot examine it");
    }
    if (!S_ISREG(st.st_mode)) {
        return mx_fail(eb, MX_E_INVALID, "not a regular file");
    }
    if (st.st_size < 8) {
        return mx_fail(eb, MX_E_FORMAT, "not a GGUF file: it has only %lld bytes",
                       (long long)st.st_size);
    }
    g->st = st;
    g->n_bytes = (size_t)st.st_size;
    return MX_OK;
}

static mx_err open_path(mx_gguf *g, const char *path, mx_errbuf *eb)
{
    MX_TRY(open_fd(g, path, eb));
    MX_TRY(copy_header(g, eb));
    return gguf_parse(g, eb);
}

static mx_gguf *create(void)
{
    mx_gguf *g = mx_calloc(1, sizeof *g);
    if (g != NULL) {
        g->fd = -1;
    }
    return g;
}

/* One file, whether or not it is a part. */
static mx_err open_file(mx_gguf **out, const char *path, mx_errbuf *eb)
{
    mx_errbuf detail = {{0}};
    *out = NULL;
    mx_gguf *g = create();
    if (g == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory to open a model file");
    }
    mx_err e = open_path(g, path, &detail);
    if (e != MX_OK) {
        mx_gguf_close(g);
        return mx_fail(eb, e, "%.160s: %s", path, detail.text);
    }
    *out = g;
    return MX_OK;
}

static mx_err open_part(mx_gguf **parts, const char *path, uint64_t given, uint64_t i, uint64_t n,
                        mx_errbuf *eb)
{
    mx_errbuf detail = {{0}};
    char *name = gguf_part_path(path, given, i, n, &detail);
    if (name == NULL) {
        return mx_fail(eb, MX_E_FORMAT, "%.160s: %s", path, detail.text);
    }
    mx_err e = open_file(&parts[i], name, &detail);
    mx_free(name);
    if (e == MX_E_NOT_FOUND) {
        return mx_fail(eb, e, "part %llu of %llu is missing: all parts must be in one folder (%s)",
                       (unsigned long long)i + 1, (unsigned long long)n, detail.text);
    }
    return e == MX_OK ? e : mx_fail(eb, e, "%s", detail.text);
}

static mx_err join(mx_gguf **out, mx_gguf **parts, size_t n, const char *path, mx_errbuf *eb)
{
    mx_errbuf detail = {{0}};
    mx_err e = gguf_join(parts, n, &detail);
    if (e == MX_OK) {
        *out = parts[0];
        parts[0] = NULL;
        return MX_OK;
    }
    return mx_fail(eb, e, "%.160s: %s", path, detail.text);
}

/* `one` is any part; it is taken over. */
static mx_err open_parts(mx_gguf **out, mx_gguf *one, const char *path, mx_errbuf *eb)
{
    const uint64_t n = one->n_split, given = one->split_no;
    mx_gguf **parts = mx_calloc((size_t)n, sizeof *parts);
    mx_err e = MX_OK;
    if (parts == NULL) {
        mx_gguf_close(one);
        return mx_fail(eb, MX_E_NOMEM, "not enough memory to open a model file");
    }
    parts[given] = one;
    for (uint64_t i = 0; i < n && e == MX_OK; i++) {
        if (i != given) {
            e = open_part(parts, path, given, i, n, eb);
        }
    }
    if (e == MX_OK) {
        e = join(out, parts, (size_t)n, path, eb);
    }
    for (uint64_t i = 0; i < n; i++) {
        mx_gguf_close(parts[i]);
    }
    mx_free(parts);
    return e;
}

mx_err mx_gguf_open(mx_gguf **out, const char *path, mx_errbuf *eb)
{
    mx_gguf *g;
    *out = NULL;
    MX_TRY(open_file(&g, path, eb));
    if (g->n_split > 1) {
        return open_parts(out, g, path, eb);
    }
    *out = g;
    return MX_OK;
}

static mx_err open_memory(mx_gguf **out, const uint8_t *bytes, size_t n, mx_errbuf *eb)
{
    *out = NULL;
    mx_gguf *g = create();
    if (g == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory to open a model file");
    }
    g->bytes = g->header = bytes;
    g->n_bytes = g->n_header = n;
    mx_err e = gguf_parse(g, eb);
    if (e != MX_OK) {
        mx_gguf_close(g);
        return e;
    }
    *out = g;
    return MX_OK;
}

mx_err mx_gguf_open_memory_parts(mx_gguf **out, const mx_str *parts, size_t n_parts, mx_errbuf *eb)
{
    *out = NULL;
    mx_gguf **opened = mx_calloc(n_parts, sizeof *opened);
    mx_err e = opened == NULL ? mx_fail(eb, MX_E_NOMEM, "not enough memory for the parts") : MX_OK;
    for (size_t i = 0; i < n_parts && e == MX_OK; i++) {
        e = open_memory(&opened[i], (const uint8_t *)parts[i].ptr, parts[i].len, eb);
    }
    if (e == MX_OK) {
        e = join(out, opened, n_parts, "memory", eb);
    }
    for (size_t i = 0; i < n_parts && opened != NULL; i++) {
        mx_gguf_close(opened[i]);
    }
    mx_free(opened);
    return e;
}

mx_err mx_gguf_open_memory(mx_gguf **out, const uint8_t *bytes, size_t n, mx_errbuf *eb)
{
    MX_TRY(open_memory(out, bytes, n, eb));
    const uint64_t n_split = (*out)->n_split;
    if (n_split > 1) {
        mx_gguf_close(*out);
        *out = NULL;
        return mx_fail(eb, MX_E_NOT_FOUND, "this is one part of a model split into %llu files, and the "
                       "others are not there", (unsigned long long)n_split);
    }
    return MX_OK;
}

void mx_gguf_close(mx_gguf *g)
{
    if (g == NULL) {
        return;
    }
    for (size_t i = 0; i < g->n_more; i++) {
        mx_gguf_close(g->more[i]); /* parts have no parts: one level deep */
    }
    mx_free(g->more);
    if (g->fd >= 0) {
        close(g->fd);
    }
    mx_free(g->header_copy);
    mx_free(g->kvs);
    mx_free(g->kv_index.slots);
    mx_free(g->tensors);
    mx_free(g->offsets);
    mx_free(g->tensor_index.slots);
    mx_free(g);
}

/* ---- plain views ----------------------------------------------------------------------------- */

size_t mx_gguf_n_parts(const mx_gguf *g)
{
    return 1 + g->n_more;
}

mx_gguf_part mx_gguf_part_at(const mx_gguf *g, size_t i)
{
    const mx_gguf *p = i == 0 ? g : g->more[i - 1];
    return (mx_gguf_part){
        .n_bytes = p->n_bytes,
        .device = (uint64_t)p->st.st_dev,
        .inode = (uint64_t)p->st.st_ino,
        .mtime_ns = (int64_t)p->st.st_mtim.tv_sec * 1000000000 + p->st.st_mtim.tv_nsec,
        .ctime_ns = (int64_t)p->st.st_ctim.tv_sec * 1000000000 + p->st.st_ctim.tv_nsec,
    };
}

size_t mx_gguf_n_tensors(const mx_gguf *g)
{
    return g->n_tensors;
}

const mx_gguf_tensor *mx_gguf_tensor_at(const mx_gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}
