/* SPDX-License-Identifier: MIT
 *
 * An export file taken in. It is somebody else's: all of it is checked before anything is written,
 * and each payload once more when it is used, for the file may change meanwhile.
 *
 * The pages go through the writer of a cold tier that is opened for this: order of durability,
 * limits, compression and authentication are that one's business.
 */
#include "cold/cold_export.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <unistd.h>

#include "base/mem.h"
#include "cold/cold_files.h"
#include "cold/cold_format.h"
#include "cold/cold_turn.h"

struct mx_import {
    int fd;
    mx_export x;
    uint8_t *body;
    uint8_t *payload; /* of a page or state; what the writer is given, so aligned as in RAM */
    uint8_t *page;    /* a page in RAM */
};

/* ---- in -------------------------------------------------------------------------------------- */

static mx_err read_at(int fd, uint64_t at, uint8_t *to, size_t n, mx_errbuf *eb)
{
    for (size_t have = 0; have < n;) {
        ssize_t k = pread(fd, to + have, n - have, (off_t)(at + have));
        if (k < 0 && errno != EINTR) {
            return mx_fail_errno(eb, MX_E_IO, errno, "cannot read the file");
        }
        if (k == 0) {
            return mx_fail(eb, MX_E_CORRUPT, "damaged: it is too short");
        }
        have += k < 0 ? 0 : (size_t)k;
    }
    return MX_OK;
}

static uint32_t tokens_in(const mx_export *x, uint32_t page)
{
    uint64_t rest = x->n_tokens - (uint64_t)page * MX_PAGE_TOKENS;
    return rest < MX_PAGE_TOKENS ? (uint32_t)rest : MX_PAGE_TOKENS;
}

mx_err mx_import_payload(mx_import *im, uint32_t i, const uint8_t **payload, size_t *n,
                         mx_errbuf *eb)
{
    const mx_export *x = &im->x;
    const mx_kv_shape *shape = &x->model.shape;
    bool is_page = i < x->n_pages;
    uint64_t at = MX_EXPORT_HEADER_BYTES;
    mx_hash128 want;
    if (is_page) {
        *n = mx_disk_payload_bytes(shape, tokens_in(x, i));
        at += (uint64_t)i * mx_kv_page_bytes(shape);
        want = mx_export_page_sum(x, i);
    } else {
        *n = shape->state_bytes;
        at = x->body_at - (uint64_t)(x->n_pages + x->n_states - i) * shape->state_bytes;
        want = mx_export_state_at(x, i - x->n_pages).sum;
    }
    MX_TRY(read_at(im->fd, at, im->payload, *n, eb));
    mx_hash128 sum = mx_xxh3_128(im->payload, *n);
    *payload = im->payload;
    return mx_hash128_eq(&sum, &want)
               ? MX_OK
               : mx_fail(eb, MX_E_CORRUPT, "damaged: checksum of %s %u", is_page ? "page" : "state",
                         is_page ? i + 1 : i - x->n_pages + 1);
}

static mx_err check_tokens(const mx_export *x, uint32_t n_vocab, mx_errbuf *eb)
{
    int32_t ids[MX_PAGE_TOKENS];
    for (uint32_t i = 0; i < x->n_pages; i++) {
        uint32_t n = mx_export_tokens(x, i, ids);
        for (uint32_t k = 0; k < n; k++) {
            if (ids[k] < 0 || (uint32_t)ids[k] >= n_vocab) {
                return mx_fail(eb, MX_E_CORRUPT, "damaged: token %lld is none of the model",
                               (long long)i * MX_PAGE_TOKENS + k);
            }
        }
    }
    return MX_OK;
}

static mx_err read_all(mx_import *im, const char *file, const mx_export_model *model,
                       uint32_t n_vocab, mx_errbuf *eb)
{
    uint8_t header[MX_EXPORT_HEADER_BYTES];
    uint64_t n_file = 0;
    mx_export *x = &im->x;
    mx_err err = mx_cold_open_file(&mx_cold_real_fileops, AT_FDCWD, file, &im->fd, &n_file, eb);
    if (err == MX_OK && n_file < sizeof header) {
        err = mx_fail(eb, MX_E_CORRUPT, "it is not an exported conversation");
    }
    MX_TRY(err);
    MX_TRY(read_at(im->fd, 0, header, sizeof header, eb));
    MX_TRY(mx_export_decode_header(x, header, n_file, eb));
    MX_TRY(mx_export_check_model(x, model, eb));
    x->model.shape = model->shape; /* the same, and which layers have a window */
    size_t page_bytes = mx_kv_page_bytes(&model->shape);
    im->body = mx_alloc(x->body_bytes);
    im->payload = mx_alloc_aligned(64, mx_max_size(page_bytes, model->shape.state_bytes));
    im->page = mx_alloc_aligned(64, page_bytes);
    if (im->body == NULL || im->payload == NULL || im->page == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    MX_TRY(read_at(im->fd, x->body_at, im->body, x->body_bytes, eb));
    MX_TRY(mx_export_decode_body(x, im->body, eb));
    MX_TRY(check_tokens(x, n_vocab, eb));
    for (uint32_t i = 0; i < x->n_pages + x->n_states; i++) {
        const uint8_t *payload;
        size_t n;
        MX_TRY(mx_import_payload(im, i, &payload, &n, eb));
    }
    return MX_OK;
}

mx_err mx_import_open(mx_import **out, const char *file, const mx_export_model *model,
                      uint32_t n_vocab, mx_errbuf *eb)
{
    mx_errbuf why = {{0}};
    mx_import *im = mx_calloc(1, sizeof *im);
    *out = NULL;
    if (im == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    im->fd = -1;
    mx_err err = read_all(im, file, model, n_vocab, &why);
    if (err != MX_OK) {
        mx_import_close(im);
        return mx_fail(eb, err, "%.200s: %s", file, why.text);
    }
    *out = im;
    return MX_OK;
}

void mx_import_close(mx_import *im)
{
    if (im == NULL) {
        return;
    }
    if (im->fd >= 0) {
        close(im->fd);
    }
    mx_free(im->body);
    mx_free(im->payload);
    mx_free(im->page);
    mx_free(im);
}

const mx_export *mx_import_head(const mx_import *im)
{
    return &im->x;
}

/* ---- into a folder --------------------------------------------------------------------------- */

typedef struct taking {
    mx_import *im;
    mx_cold *cold;
    sem_t wake;
    const mx_hash256 *root;
    mx_hash256 *ids;     /* [n_pages] */
    mx_hash256 *states;  /* [n_states] */
    uint64_t *positions; /* likewise */
    mx_turn turns[MX_TURNS_MAX];
    size_t n_turns;
} taking;

static void wake(void *arg)
{
    sem_post(arg);
}

/* Hands the job over and waits for its end. */
static mx_err run(taking *t, mx_cold_job *job, mx_errbuf *eb)
{
    mx_cold_stats stats;
    mx_err err = mx_cold_submit(t->cold, job);
    if (err == MX_OK) {
        while (mx_cold_poll(t->cold) == NULL) {
            (void)sem_wait(&t->wake); /* interrupted: looks again */
        }
        err = job->status;
    }
    if (err == MX_OK) {
        return MX_OK;
    }
    if (err == MX_E_LIMIT) {
        return mx_fail(eb, err, "the folder's write budget of today is used up (--ssd-write-budget): what "
                       "was taken in so far is kept, import the file again after midnight UTC for the rest");
    }
    mx_cold_get_stats(t->cold, &stats);
    if (stats.degraded_reason[0] != '\0') {
        return mx_fail(eb, err, "%s", stats.degraded_reason);
    }
    return err == MX_E_FULL ? mx_fail(eb, err, "the folder has reached its limit "
                                      "(--ssd-session-cache-max-size)")
                            : mx_fail(eb, err, "cannot write to the folder: %s", mx_err_name(err));
}

static const mx_hash256 *parent_of(const taking *t, size_t page)
{
    return page == 0 ? t->root : &t->ids[page - 1];
}

static mx_err write_page(taking *t, uint32_t i, mx_errbuf *eb)
{
    const mx_kv_shape *shape = &t->im->x.model.shape;
    int32_t tokens[MX_PAGE_TOKENS];
    const uint8_t *payload;
    size_t n_bytes;
    MX_TRY(mx_import_payload(t->im, i, &payload, &n_bytes, eb));
    uint32_t n = mx_export_tokens(&t->im->x, i, tokens);
    if (n < MX_PAGE_TOKENS) {
        memset(t->im->page, 0, mx_kv_page_bytes(shape));
        mx_page_unpack_rows(shape, t->im->page, payload, n);
        payload = t->im->page;
    }
    t->ids[i] = mx_page_identity(t->root, parent_of(t, i), tokens, n);
    mx_cold_job job = {.kind = MX_COLD_WRITE_PAGE,
                       .root = *t->root,
                       .parent_id = *parent_of(t, i),
                       .first_page = i,
                       .tokens = tokens,
                       .n_tokens = n,
                       .payload = payload,
                       .local = mx_page_local_in(shape, payload),
                       .page_id = t->ids[i]};
    return run(t, &job, eb);
}

static mx_err write_state(taking *t, uint32_t i, mx_errbuf *eb)
{
    const mx_export *x = &t->im->x;
    int32_t tokens[MX_PAGE_TOKENS];
    const uint8_t *payload;
    size_t n_bytes;
    MX_TRY(mx_import_payload(t->im, x->n_pages + i, &payload, &n_bytes, eb));
    uint64_t at = mx_export_state_at(x, i).position;
    uint32_t page = (uint32_t)((at - 1) / MX_PAGE_TOKENS);
    uint32_t n = (uint32_t)(at - (uint64_t)page * MX_PAGE_TOKENS);
    (void)mx_export_tokens(x, page, tokens);
    t->positions[i] = at;
    t->states[i] = mx_cold_state_identity(t->root, parent_of(t, page), page, tokens, n);
    mx_cold_job job = {.kind = MX_COLD_WRITE_STATE,
                       .root = *t->root,
                       .parent_id = *parent_of(t, page),
                       .first_page = page,
                       .tokens = tokens,
                       .n_tokens = n,
                       .payload = payload,
                       .page_id = t->states[i]};
    return run(t, &job, eb);
}

static mx_err write_all(taking *t, mx_errbuf *eb)
{
    const mx_export *x = &t->im->x;
    for (uint32_t i = 0; i < x->n_pages; i++) {
        MX_TRY(write_page(t, i, eb));
    }
    for (uint32_t i = 0; i < x->n_states; i++) {
        MX_TRY(write_state(t, i, eb));
    }
    mx_cold_job job = {.kind = MX_COLD_WRITE_SESSION,
                       .root = *t->root,
                       .parent_id = *t->root,
                       .page_ids = t->ids,
                       .n_pages = x->n_pages,
                       .n_session_tokens = (size_t)x->n_tokens,
                       .entry_kind = x->is_turn ? MX_DISK_ENTRY_TURN : MX_DISK_ENTRY_PROMPT,
                       .state_ids = t->states,
                       .state_positions = t->positions,
                       .n_states = x->n_states,
                       .session_id = t->ids[x->n_pages - 1],
                       .turns = t->turns,
                       .n_turns = t->n_turns,
                       .is_imported = true};
    return run(t, &job, eb);
}

static mx_err write_with_tier(taking *t, const mx_cold_config *cfg, mx_errbuf *eb)
{
    static const uint64_t sweep_us = (uint64_t)3600 * 1000000;
    const mx_export *x = &t->im->x;
    mx_cold_config own = *cfg;
    own.wake = wake;
    own.wake_arg = &t->wake;
    t->ids = mx_alloc(x->n_pages * sizeof *t->ids);
    t->states = mx_alloc(x->n_states * sizeof *t->states);
    t->positions = mx_alloc(x->n_states * sizeof *t->positions);
    if (t->ids == NULL || t->states == NULL || t->positions == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    MX_TRY(mx_cold_open(&t->cold, &x->model.shape, &own, eb));
    if (cfg->max_bytes != 0 && cfg->max_bytes != UINT64_MAX) {
        (void)mx_cold_sweep(t->cold, sweep_us); /* until then nobody knows how full the folder is */
    }
    mx_err err = write_all(t, eb);
    mx_cold_close(t->cold);
    return err;
}

mx_err mx_import_write(mx_import *im, const mx_cold_config *cfg, const mx_hash256 *root,
                       bool with_turns, mx_hash256 *id, mx_errbuf *eb)
{
    const mx_export *x = &im->x;
    taking t = {.im = im, .root = root};
    for (uint32_t i = 0; with_turns && i < x->n_turns; i++) {
        t.n_turns += mx_turn_decode(&t.turns[t.n_turns], mx_export_turns(x) + i * MX_TURN_BYTES);
    }
    if (sem_init(&t.wake, 0, 0) != 0) {
        return mx_fail_errno(eb, MX_E_NOMEM, errno, "cannot wait for the folder");
    }
    mx_err err = write_with_tier(&t, cfg, eb);
    if (err == MX_OK) {
        *id = t.ids[x->n_pages - 1];
    }
    sem_destroy(&t.wake);
    mx_free(t.ids);
    mx_free(t.states);
    mx_free(t.positions);
    return err;
}
