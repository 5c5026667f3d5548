/* SPDX-License-Identifier: MIT
 *
 * Opening, closing, and the guard against a file that is cut short while it is mapped.
 *
 * The header is copied out of the mapping before it is parsed: metadata views (the vocabulary, the
 * chat template) stay sound whatever happens to the file, and a file rewritten between two reads
 * cannot show the parser two different counts. Only tensor data is read from the mapping; for
 * that, mx_gguf_guard turns SIGBUS into an error.
 *
 * SIGBUS cannot be avoided by checking the size first, because the file can shrink at any moment,
 * so a handler jumps out of the guarded function when the fault lies inside the guarded mapping,
 * on the thread that is guarded. Any other fault goes to the handler that was there before.
 */
#include "gguf/gguf.h"

#include "base/mem.h"
#include "gguf/gguf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- guard ----------------------------------------------------------------------------------- */

typedef struct guard_frame {
    sigjmp_buf jump;
    const mx_gguf *g;
} guard_frame;

static _Thread_local guard_frame *volatile active_guard;
static _Thread_local volatile sig_atomic_t in_foreign_fault;
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous_action; /* written before our handler is in force */

static bool is_inside(const mx_gguf *g, const uint8_t *at)
{
    return g->is_mapped && at >= g->bytes && at < g->bytes + g->n_bytes;
}

/* The part that holds an address, or NULL. Called by the handler: reads only. */
static const mx_gguf *find_part(const mx_gguf *g, const uint8_t *at)
{
    const mx_gguf *found = is_inside(g, at) ? g : NULL;
    for (size_t i = 0; i < g->n_more && found == NULL; i++) {
        found = is_inside(g->more[i], at) ? g->more[i] : NULL;
    }
    return found;
}

/* The default action ends the process: when the handler returns, the faulting instruction runs
 * again, and a signal that was sent is sent again. */
static void end_by_signal(const siginfo_t *info)
{
    struct sigaction dfl = {.sa_handler = SIG_DFL};
    sigaction(SIGBUS, &dfl, NULL);
    if (info->si_code <= 0) {
        raise(SIGBUS);
    }
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    guard_frame *f = active_guard;
    const uint8_t *at = info->si_addr;
    /* si_code <= 0: sent by a process; there is no address then. */
    if (f != NULL && info->si_code > 0 && find_part(f->g, at) != NULL) {
        siglongjmp(f->jump, 1);
    }
    /* A handler installed after ours may itself chain to ours: then the chain is a ring. */
    bool is_ring = in_foreign_fault != 0;
    bool takes_info = (previous_action.sa_flags & SA_SIGINFO) != 0;
    bool is_default = !takes_info && (previous_action.sa_handler == SIG_DFL ||
                                      previous_action.sa_handler == SIG_IGN);
    if (is_ring || is_default) {
        end_by_signal(info);
        return;
    }
    in_foreign_fault = 1;
    if (takes_info) {
        previous_action.sa_sigaction(sig, info, context);
    } else {
        previous_action.sa_handler(sig);
    }
    in_foreign_fault = 0;
}

/* Once per process in the normal case; again when somebody has replaced the handler since. */
static bool install_handler(void)
{
    struct sigaction now, ours = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    sigemptyset(&ours.sa_mask);
    pthread_mutex_lock(&install_lock);
    bool ok = sigaction(SIGBUS, NULL, &now) == 0;
    if (ok && !((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_sigbus)) {
        previous_action = now;
        ok = sigaction(SIGBUS, &ours, NULL) == 0;
    }
    pthread_mutex_unlock(&install_lock);
    return ok;
}

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

static mx_err check_all_unchanged(const mx_gguf *g, mx_errbuf *eb)
{
    MX_TRY(check_unchanged(g, eb));
    for (size_t i = 0; i < g->n_more; i++) {
        MX_TRY(check_unchanged(g->more[i], eb));
    }
    return MX_OK;
}

mx_err mx_gguf_guard(const mx_gguf *g, mx_err (*fn)(void *arg, mx_errbuf *eb), void *arg,
                     mx_errbuf *eb)
{
    guard_frame frame;
    mx_err e;
    if (!g->is_mapped) {
        return fn(arg, eb);
    }
    if (!install_handler()) {
        return mx_fail(eb, MX_E_IO, "the handler for SIGBUS cannot be installed");
    }
    if (active_guard != NULL) {
        return mx_fail(eb, MX_E_INVALID, "mx_gguf_guard called inside mx_gguf_guard");
    }
    frame.g = g;
    if (sigsetjmp(frame.jump, 1) != 0) {
        active_guard = NULL;
        return mx_fail(eb, MX_E_IO, "the model file was cut short or cannot be read (%zu bytes "
                       "when it was opened): start again when it is complete", g->n_bytes);
    }
    active_guard = &frame;
    in_foreign_fault = 0; /* a foreign handler that jumped out has left it set */
    /* The handler must see the frame before fn touches the mapping, and no longer after. */
    atomic_signal_fence(memory_order_seq_cst);
    e = fn(arg, eb);
    atomic_signal_fence(memory_order_seq_cst);
    active_guard = NULL;
    return e == MX_OK ? check_all_unchanged(g, eb) : e;
}

/* ---- open and close -------------------------------------------------------------------------- */

typedef struct header_job {
    const mx_gguf *g;
    uint8_t *copy; /* NULL: only measure */
    size_t n_header;
} header_job;

static mx_err header_step(void *arg, mx_errbuf *eb)
{
    header_job *job = arg;
    if (job->copy == NULL) {
        return gguf_measure_header(job->g, &job->n_header, eb);
    }
    memcpy(job->copy, job->g->bytes, job->n_header);
    return MX_OK;
}

static mx_err copy_header(mx_gguf *g, mx_errbuf *eb)
{
    header_job job = {.g = g};
    MX_TRY(mx_gguf_guard(g, header_step, &job, eb));
    g->header_copy = mx_alloc(job.n_header);
    if (g->header_copy == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for the header (%zu bytes)",
                       job.n_header);
    }
    job.copy = g->header_copy;
    MX_TRY(mx_gguf_guard(g, header_step, &job, eb));
    g->header = g->header_copy;
    g->n_header = job.n_header;
    return MX_OK;
}

static mx_err map_file(mx_gguf *g, const char *path, mx_errbuf *eb)
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
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, g->fd, 0);
    if (p == MAP_FAILED) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot map it");
    }
    g->bytes = p;
    g->n_bytes = (size_t)st.st_size;
    g->is_mapped = true;
    return MX_OK;
}

static mx_err open_path(mx_gguf *g, const char *path, mx_errbuf *eb)
{
    MX_TRY(map_file(g, path, eb));
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
    if (g->is_mapped) {
        munmap((void *)(uintptr_t)g->bytes, g->n_bytes);
    }
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
        .bytes = p->bytes,
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

void mx_gguf_drop(const mx_gguf *g, const uint8_t *bytes, size_t n)
{
    const mx_gguf *part = find_part(g, bytes);
    if (part == NULL || n == 0) {
        return;
    }
    /* A fault maps the whole window around it (64 KiB on Linux unless somebody tunes it), so what was
     * read has left pages beside it, too: 12 % of a file read in pieces of 512 KiB. Pages that a
     * neighbour still needs come back by themselves. */
    enum { FAULT_WINDOW = 64 << 10 };
    const uint8_t *begin = bytes - ((uintptr_t)bytes & (FAULT_WINDOW - 1));
    const uint8_t *end = bytes + n + (-(uintptr_t)(bytes + n) & (FAULT_WINDOW - 1));
    const size_t n_mapped = mx_round_up(part->n_bytes, (size_t)sysconf(_SC_PAGESIZE));
    const uint8_t *last = part->bytes + n_mapped;
    begin = begin < part->bytes ? part->bytes : begin;
    end = end > last ? last : end;
    /* Advice: when it is refused the pages merely stay longer. */
    (void)madvise((void *)(uintptr_t)begin, (size_t)(end - begin), MADV_DONTNEED);
}
