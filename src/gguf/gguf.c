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
    const uint8_t *begin;
    const uint8_t *end;
} guard_frame;

static _Thread_local guard_frame *volatile active_guard;
static _Thread_local volatile sig_atomic_t in_foreign_fault;
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous_action; /* written before our handler is in force */

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
    if (f != NULL && info->si_code > 0 && at >= f->begin && at < f->end) {
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
    if ((uint64_t)st.st_size != g->n_bytes || st.st_mtim.tv_sec != g->mtime.tv_sec ||
        st.st_mtim.tv_nsec != g->mtime.tv_nsec)
    {
        return mx_fail(eb, MX_E_IO, "the model file changed while it was being read: start again "
                       "when it is complete");
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
    frame.begin = g->bytes;
    frame.end = g->bytes + g->n_bytes;
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
    return e == MX_OK ? check_unchanged(g, eb) : e;
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
    g->mtime = st.st_mtim;
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

mx_err mx_gguf_open(mx_gguf **out, const char *path, mx_errbuf *eb)
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

mx_err mx_gguf_open_memory(mx_gguf **out, const uint8_t *bytes, size_t n, mx_errbuf *eb)
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

void mx_gguf_close(mx_gguf *g)
{
    if (g == NULL) {
        return;
    }
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

const uint8_t *mx_gguf_bytes(const mx_gguf *g, size_t *n)
{
    *n = g->n_bytes;
    return g->bytes;
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
    if (!g->is_mapped || n == 0) {
        return;
    }
    /* A fault maps the whole window around it (64 KiB on Linux unless somebody tunes it), so what was
     * read has left pages beside it, too: 12 % of a file read in pieces of 512 KiB. Pages that a
     * neighbour still needs come back by themselves. */
    enum { FAULT_WINDOW = 64 << 10 };
    const uint8_t *begin = bytes - ((uintptr_t)bytes & (FAULT_WINDOW - 1));
    const uint8_t *end = bytes + n + (-(uintptr_t)(bytes + n) & (FAULT_WINDOW - 1));
    const uint8_t *last = g->bytes + mx_round_up(g->n_bytes, (size_t)sysconf(_SC_PAGESIZE));
    begin = begin < g->bytes ? g->bytes : begin;
    end = end > last ? last : end;
    /* Advice: when it is refused the pages merely stay longer. */
    (void)madvise((void *)(uintptr_t)begin, (size_t)(end - begin), MADV_DONTNEED);
}
