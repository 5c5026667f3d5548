/* SPDX-License-Identifier: MIT
 *
 * The writer's jobs: a page, a manifest. Order and reasons are in docs/file-format.md, section 5.
 *
 * A page costs two fsyncs (file, folder). Syncing folders only before the manifest would save some
 * of them, but then has_page would need a third state, "written, not yet durable".
 */
#include "cold/cold_state.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cold/cold_manifest.h"

/* ---- room ------------------------------------------------------------------------------------ */

/* Below the folder's limit, and the reserve of the disk stays free. */
static mx_err check_room(mx_cold *c, uint64_t need, mx_errbuf *eb)
{
    mx_cold_folder *f = &c->writer_folder;
    uint64_t limit = mx_cold_limit(c, f);
    pthread_mutex_lock(&c->lock);
    uint64_t used = c->stats.bytes;
    pthread_mutex_unlock(&c->lock);
    if (used + need > mx_cold_low_water(c, limit)) {
        mx_cold_want_sweep(c);
    }
    if (used + need > limit) {
        if (!atomic_exchange(&c->is_limit_logged, true)) {
            mx_log(MX_LOG_INFO, "cold: folder=%s is full bytes=%llu limit=%llu; pages are not "
                   "written until older ones may be deleted (--ssd-session-cache-max-size)",
                   c->dir, (unsigned long long)used, (unsigned long long)limit);
        }
        return MX_E_FULL;
    }
    struct statvfs vfs;
    if (f->ops->statvfs(f->root_fd, &vfs) != 0) {
        return mx_fail_errno(eb, MX_E_IO, errno, "cannot ask for free space");
    }
    uint64_t is_free = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    uint64_t reserve = mx_cold_disk_reserve(c, &vfs);
    if (is_free < reserve || is_free - reserve < need) {
        return mx_fail(eb, MX_E_FULL, "the disk of %s is nearly full (%llu MiB free, %llu MiB kept "
                       "as reserve): make room, or choose another --ssd-session-cache-dir",
                       c->dir, (unsigned long long)(is_free >> 20),
                       (unsigned long long)(reserve >> 20));
    }
    return MX_OK;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static mx_err write_model_json(mx_cold *c, mx_errbuf *eb)
{
    static const char name[] = "model.json";
    mx_cold_folder *f = &c->writer_folder;
    struct stat st;
    if (c->model_json == NULL || fstatat(f->root_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        return MX_OK;
    }
    struct iovec iov = {c->model_json, strlen(c->model_json)};
    return mx_cold_write_file(f, f->root_fd, name, &iov, 1, eb);
}

static mx_err ready(mx_cold *c, mx_errbuf *eb)
{
    MX_TRY(mx_cold_folder_ready(&c->writer_folder, true, eb));
    return write_model_json(c, eb);
}

/* Something else sits where we want a file or a folder of ours. It would fail every write to that
 * name, and each failure would turn off the whole tier. */
static void make_way(mx_cold *c, int dir, const char *name, mode_t type)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (st.st_mode & S_IFMT) != type
        && mx_cold_quarantine(&c->writer_folder, dir, name, "not a file or folder of the cache")) {
        mx_cold_quarantined(c);
    }
}

/* ---- pages and states ------------------------------------------------------------------------ */

static mx_cold_object object_of(const mx_cold_job *job)
{
    return job->kind == MX_COLD_WRITE_STATE ? MX_COLD_STATE : MX_COLD_PAGE;
}

static mx_err note_object(mx_cold *c, const mx_cold_job *job)
{
    MX_TRY(mx_cold_index_add(c->index, &job->page_id, true));
    if (object_of(job) == MX_COLD_STATE) {
        return MX_OK; /* it is found by its name */
    }
    if (job->local != NULL) {
        mx_cold_index_set_lacks(c->index, &job->page_id, false);
    }
    return mx_cold_index_link(c->index, &job->page_id, &job->parent_id, (uint32_t)job->n_tokens,
                              job->tokens);
}

/* One that is there is not written again: touched first, so that whoever is about to delete it
 * sees that, then looked at. MX_E_NOT_FOUND = write it. */
static mx_err reuse_object(mx_cold *c, const mx_cold_job *job, int dir, const char *name,
                           mx_errbuf *eb)
{
    mx_cold_folder *f = &c->writer_folder;
    bool is_state = object_of(job) == MX_COLD_STATE;
    mx_err err = mx_cold_renew(f, dir, name, mx_cold_stamp_ns(c));
    if (err != MX_OK && !(err == MX_E_DENIED && f->ops->accepts_others)) { /* another user's */
        return err == MX_E_NOT_FOUND ? err : mx_fail(eb, err, "cannot touch a page");
    }
    if (is_state ? !mx_cold_state_exists(c, f, &job->page_id)
                 : !mx_cold_page_exists(c, f, &job->page_id, (uint32_t)job->n_tokens)) {
        return MX_E_NOT_FOUND; /* or bad: then what is written goes over it */
    }
    if (job->local != NULL && !mx_cold_page_is_whole(c, f, &job->page_id, &c->writer_scratch)) {
        return MX_E_NOT_FOUND; /* likewise: now there is more of it */
    }
    if (mx_cold_index_is_doubtful(c->index, &job->page_id)) {
        return MX_E_NOT_FOUND; /* likewise: then the name is a new one */
    }
    if (!mx_cold_index_is_synced(c->index, &job->page_id) && f->ops->fsync(dir) != 0) {
        f->is_renamed_unsynced = true;
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync a folder");
    }
    pthread_mutex_lock(&c->lock);
    c->stats.pages_skipped += !is_state;
    c->stats.bytes_skipped += MX_DISK_PAYLOAD_AT + mx_cold_object_bytes(c, object_of(job),
                                                                        (uint32_t)job->n_tokens);
    pthread_mutex_unlock(&c->lock);
    return MX_OK;
}

static bool lacks_local(const mx_cold *c, const mx_cold_job *job)
{
    return job->kind == MX_COLD_WRITE_PAGE && c->shape.n_local > 0 && job->local == NULL;
}

/* *n_stored: how many bytes the payload has in the file. */
static mx_err write_payload(mx_cold *c, const mx_cold_job *job, const uint8_t *payload,
                            size_t bytes, int dir, const char *name, size_t *n_stored,
                            mx_errbuf *eb)
{
    mx_cold_folder *f = &c->writer_folder;
    mx_cold_scratch *s = &c->writer_scratch;
    uint32_t n = (uint32_t)job->n_tokens;
    bool is_state = object_of(job) == MX_COLD_STATE;
    mx_disk_page page = {.is_state = is_state,
                         .lacks_local = lacks_local(c, job),
                         .root = job->root,
                         .own = job->page_id,
                         .parent = job->parent_id,
                         .n_tokens = n,
                         .first_position = job->first_page * MX_PAGE_TOKENS,
                         .kv_type = mx_disk_kv_type(c->shape.type),
                         .payload_bytes = bytes,
                         .payload_sum = mx_xxh3_128(payload, bytes)};
    const uint8_t *stored = payload;
    size_t packed = 0;
    if (c->codec != MX_CODEC_NONE && !is_state) {
        if (!mx_cold_reserve_stored(c, s)) {
            return MX_E_NOMEM;
        }
        MX_TRY(mx_codec_encode(&s->codec, c->codec, payload, bytes, s->stored, &packed));
    }
    if (packed > 0) {
        stored = s->stored;
        page.codec = c->codec;
        page.stored_bytes = packed;
        page.stored_sum = mx_xxh3_128(stored, packed);
    } else {
        page.stored_bytes = bytes;
        page.stored_sum = page.payload_sum;
    }
    *n_stored = (size_t)page.stored_bytes;
    memcpy(page.tokens, job->tokens, n * sizeof page.tokens[0]);
    mx_disk_page_encode(&page, s->head);
    if (c->has_auth_key) {
        MX_TRY(mx_disk_page_seal(s->head, &c->auth_key, stored, *n_stored));
    }
    struct iovec iov[2] = {{s->head, MX_DISK_PAYLOAD_AT},
                           {(void *)(uintptr_t)stored, (size_t)page.stored_bytes}};
    return mx_cold_write_file(f, dir, name, iov, 2, eb);
}

static mx_err write_new_object(mx_cold *c, mx_cold_job *job, int dir, const char *name,
                               mx_errbuf *eb)
{
    uint32_t n = (uint32_t)job->n_tokens;
    bool is_state = object_of(job) == MX_COLD_STATE;
    size_t bytes = lacks_local(c, job) ? mx_kv_payload_bytes(&c->shape)
                                       : mx_cold_object_bytes(c, object_of(job), n);
    MX_TRY(check_room(c, bytes + MX_DISK_PAYLOAD_AT, eb));
    MX_TRY(mx_cold_wear_check(c, bytes + MX_DISK_PAYLOAD_AT));
    if (!mx_cold_claim(c, job, 0, 0)) {
        return MX_E_CANCELLED;
    }
    mx_err err;
    size_t n_stored = 0;
    if (is_state) {
        /* As large as it is, it is not copied; it holds nothing but itself. */
        err = write_payload(c, job, job->payload, bytes, dir, name, &n_stored, eb);
        mx_cold_unclaim(c, job, 0);
    } else {
        /* A copy, for a page of RAM must not depend on how long the disk takes (and it holds its
         * whole chain). */
        if (n < MX_PAGE_TOKENS) {
            mx_page_pack_blocks(&c->shape, c->writer_rows, job->payload, job->local, n);
        } else if (job->local != NULL) {
            mx_page_join(&c->shape, c->writer_rows, job->payload, job->local);
        } else {
            memcpy(c->writer_rows, job->payload, bytes);
        }
        mx_cold_unclaim(c, job, 0);
        err = write_payload(c, job, c->writer_rows, bytes, dir, name, &n_stored, eb);
    }
    MX_TRY(err);
    mx_cold_index_set_good(c->index, &job->page_id);
    if (lacks_local(c, job) && mx_cold_index_add(c->index, &job->page_id, false) == MX_OK) {
        mx_cold_index_set_lacks(c->index, &job->page_id, true);
    }
    mx_cold_account(c, 1, (int64_t)(n_stored + MX_DISK_PAYLOAD_AT));
    pthread_mutex_lock(&c->lock);
    c->stats.pages_written += !is_state;
    c->stats.states_written += is_state;
    c->stats.bytes_written += n_stored + MX_DISK_PAYLOAD_AT;
    pthread_mutex_unlock(&c->lock);
    mx_cold_wear_note(c, n_stored + MX_DISK_PAYLOAD_AT);
    return MX_OK;
}

static bool is_valid_object(const mx_cold *c, const mx_cold_job *job)
{
    uint32_t n = (uint32_t)job->n_tokens;
    bool is_state = object_of(job) == MX_COLD_STATE;
    if (job->n_tokens < 1 || job->n_tokens > MX_PAGE_TOKENS || job->payload == NULL
        || (is_state && c->shape.state_bytes == 0)
        || (lacks_local(c, job) && n < MX_PAGE_TOKENS)) {
        return false;
    }
    mx_hash256 id = is_state ? mx_cold_state_identity(&job->root, &job->parent_id, job->first_page,
                                                      job->tokens, n)
                             : mx_page_identity(&job->root, &job->parent_id, job->tokens, n);
    return mx_hash256_eq(&id, &job->page_id);
}

static mx_err write_object(mx_cold *c, mx_cold_job *job, mx_errbuf *eb)
{
    mx_cold_folder *f = &c->writer_folder;
    MX_TRY(ready(c, eb));
    char xx[3], name[MX_COLD_NAME_CAP];
    mx_err err;
    int objects = mx_cold_objects_fd(f, object_of(job));
    mx_cold_object_name(object_of(job), &job->page_id, xx, name);
    make_way(c, objects, xx, S_IFDIR);
    int dir = mx_cold_open_synced(f, object_of(job), &job->page_id, true, &err, eb);
    if (dir < 0) {
        return err;
    }
    f->is_renamed_unsynced = false;
    err = reuse_object(c, job, dir, name, eb);
    if (err == MX_E_NOT_FOUND) {
        err = write_new_object(c, job, dir, name, eb);
    }
    if (f->is_renamed_unsynced) {
        mx_cold_index_doubt(c->index, &job->page_id);
    }
    close(dir);
    return err == MX_OK ? note_object(c, job) : err;
}

/* ---- manifests ------------------------------------------------------------------------------- */

static size_t count_missing(mx_cold *c, const mx_cold_job *job)
{
    size_t n_missing = 0;
    for (size_t i = 0; i < job->n_pages; i++) {
        uint32_t n = i + 1 < job->n_pages
                         ? MX_PAGE_TOKENS
                         : (uint32_t)(job->n_session_tokens - i * MX_PAGE_TOKENS);
        n_missing += !mx_cold_page_exists(c, &c->writer_folder, &job->page_ids[i], n);
    }
    return n_missing;
}

/* Pages that we did not write ourselves: their names may not be durable yet. One fsync per
 * folder. */
static mx_err sync_pages(mx_cold *c, const mx_cold_job *job, mx_errbuf *eb)
{
    mx_cold_folder *f = &c->writer_folder;
    bool is_synced[256] = {false};
    for (size_t i = 0; i < job->n_pages; i++) {
        const mx_hash256 *id = &job->page_ids[i];
        if (mx_cold_index_is_synced(c->index, id)) {
            continue;
        }
        if (mx_cold_index_is_doubtful(c->index, id)) {
            return MX_E_NOT_FOUND; /* what mx_cold_has_page says, too: it is written again */
        }
        if (!is_synced[id->b[0]]) {
            mx_err err;
            int dir = mx_cold_open_synced(f, MX_COLD_PAGE, id, false, &err, eb);
            if (dir < 0) {
                return err;
            }
            if (f->ops->fsync(dir) != 0) {
                err = mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync a folder");
                mx_cold_index_doubt(c->index, id);
            }
            close(dir);
            MX_TRY(err);
            is_synced[id->b[0]] = true;
        }
        MX_TRY(mx_cold_index_add(c->index, id, true));
    }
    return MX_OK;
}

/* What the index learns from a manifest, our own or one that was found. */
mx_err mx_cold_learn_manifest(mx_cold *c, const mx_disk_manifest *m)
{
    const mx_hash256 *parent = &m->root;
    for (uint32_t i = 0; i < m->n_pages; i++) {
        bool is_last = i + 1 == m->n_pages;
        uint32_t n = is_last ? (uint32_t)(m->n_tokens - (uint64_t)i * MX_PAGE_TOKENS)
                             : MX_PAGE_TOKENS;
        MX_TRY(mx_cold_index_link(c->index, &m->page_ids[i], parent, n, NULL));
        parent = &m->page_ids[i];
    }
    mx_cold_index_mark_manifest(c->index, parent);
    mx_turn turn;
    for (uint32_t i = 0; i < m->n_turns; i++) {
        if (mx_turn_decode(&turn, m->turns + i * MX_DISK_TURN_BYTES)) {
            mx_cold_turns_add(c->turns, &m->root, parent, m->n_tokens, &turn);
        }
    }
    return MX_OK;
}

static bool is_valid_session(const mx_cold_job *job)
{
    return job->n_pages >= 1 && job->n_pages <= MX_DISK_MANIFEST_MAX_PAGES
           && job->n_session_tokens > (job->n_pages - 1) * MX_PAGE_TOKENS
           && job->n_session_tokens <= job->n_pages * MX_PAGE_TOKENS
           && job->entry_kind <= MX_DISK_ENTRY_TURN;
}

static bool is_state_durable(mx_cold *c, const mx_hash256 *id)
{
    mx_cold_folder *f = &c->writer_folder;
    if (!mx_cold_state_exists(c, f, id)) {
        return false;
    }
    if (mx_cold_index_is_synced(c->index, id)) {
        return true;
    }
    if (mx_cold_index_is_doubtful(c->index, id)) {
        return false;
    }
    /* Another process wrote it, or an earlier one of ours. */
    mx_err err;
    int dir = mx_cold_open_synced(f, MX_COLD_STATE, id, false, &err, NULL);
    bool is_synced = dir >= 0 && f->ops->fsync(dir) == 0;
    if (dir >= 0) {
        close(dir);
        if (!is_synced) {
            mx_cold_index_doubt(c->index, id);
        }
    }
    return is_synced && mx_cold_index_add(c->index, id, true) == MX_OK;
}

/* The states of the job that are in the folder, at most as many as a manifest may name: of too many
 * the last ones, from which more can be resumed. *ids is the caller's to mx_free. */
static mx_err list_states(mx_cold *c, const mx_cold_job *job, mx_hash256 **ids, uint32_t *n)
{
    *n = 0;
    *ids = mx_alloc(job->n_states * sizeof **ids);
    if (*ids == NULL) {
        return MX_E_NOMEM;
    }
    size_t first = job->n_states > job->n_pages ? job->n_states - job->n_pages : 0;
    for (size_t i = first; i < job->n_states; i++) {
        if (is_state_durable(c, &job->state_ids[i])) {
            (*ids)[(*n)++] = job->state_ids[i];
        }
    }
    return MX_OK;
}

static mx_err put_manifest(mx_cold *c, const mx_disk_manifest *m, mx_errbuf *eb)
{
    mx_cold_folder *f = &c->writer_folder;
    char name[MX_COLD_NAME_CAP];
    mx_cold_session_name(&m->page_ids[m->n_pages - 1], name);
    mx_buf bytes = {0};
    mx_disk_manifest_encode(&bytes, m);
    mx_err err = bytes.failed ? MX_E_NOMEM : check_room(c, bytes.len, eb);
    if (err == MX_OK && c->has_auth_key) {
        err = mx_disk_manifest_seal((uint8_t *)bytes.ptr, bytes.len, &c->auth_key);
    }
    if (err == MX_OK) {
        struct stat st;
        make_way(c, f->sessions_fd, name, S_IFREG);
        bool is_new = fstatat(f->sessions_fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0;
        int64_t size = (int64_t)bytes.len;
        struct iovec iov = {bytes.ptr, bytes.len};
        err = mx_cold_write_file(f, f->sessions_fd, name, &iov, 1, eb);
        if (err == MX_OK) {
            mx_cold_account(c, is_new, is_new ? size : 0);
        } else if (f->is_renamed_unsynced) {
            mx_cold_index_doubt_manifests(c->index);
        }
    }
    mx_buf_free(&bytes);
    return err;
}

/* Pages that are missing; a state that is missing is no more than a longer way back. */
static size_t touch_all(mx_cold *c, const mx_cold_job *job)
{
    int64_t now = mx_cold_stamp_ns(c);
    for (size_t i = 0; i < job->n_states; i++) {
        (void)mx_cold_touch_state(c, &c->writer_folder, &job->state_ids[i],
                                  job->state_positions[i], now);
    }
    return mx_cold_touch_chain(c, &c->writer_folder, job->page_ids, job->n_pages, now);
}

/* The same answers, but for the nonces: with these, each repetition would be another manifest,
 * and all that the old one's costs is that a tool call of the last repetition is tokenised
 * again. */
static bool are_same_turns(const mx_disk_manifest *a, const mx_disk_manifest *b)
{
    bool is_same = a->n_turns == b->n_turns;
    for (uint32_t i = 0; is_same && i < a->n_turns; i++) {
        mx_turn x, y;
        is_same = mx_turn_decode(&x, a->turns + i * MX_DISK_TURN_BYTES)
                  && mx_turn_decode(&y, b->turns + i * MX_DISK_TURN_BYTES)
                  && mx_hash256_eq(&x.text, &y.text) && x.n_bytes == y.n_bytes && x.sum == y.sum
                  && x.n_prompt == y.n_prompt && x.n_end == y.n_end;
    }
    return is_same;
}

/* Does the folder's manifest of that name say all this? That of a turn stands for that of a
 * prompt. */
static bool is_manifest_there(const mx_cold *c, const char *name, const mx_disk_manifest *want)
{
    const mx_cold_folder *f = &c->writer_folder;
    mx_disk_manifest m;
    uint8_t *copy;
    const mx_hash256 *last = &want->page_ids[want->n_pages - 1];
    if (mx_cold_read_manifest(f->ops, f->sessions_fd, name, last, mx_cold_auth_key(c), true, &m,
                              &copy, NULL) != MX_OK) {
        return false;
    }
    bool is_same =
        mx_hash256_eq(&m.root, &want->root) && mx_hash256_eq(&m.session_id, &want->session_id)
        && m.entry_kind >= want->entry_kind && m.n_tokens == want->n_tokens
        && m.n_pages == want->n_pages && m.n_states == want->n_states
        && memcmp(m.page_ids, want->page_ids, m.n_pages * sizeof *m.page_ids) == 0
        && (m.n_states == 0
            || memcmp(m.state_ids, want->state_ids, m.n_states * sizeof *m.state_ids) == 0)
        && are_same_turns(&m, want);
    mx_free(copy);
    return is_same;
}

/* The same point again: all that is new is its age. Written anew, each repetition of a prompt
 * would cost two fsyncs and a file; a new age for each page at every repetition would still wear
 * the disk. An age needs to be right to a fraction of the time after which a file may be
 * deleted. False: it is not there (any more). */
static bool is_session_kept(mx_cold *c, const mx_cold_job *job, const mx_disk_manifest *m)
{
    enum { REFRESH_S = 60 };
    mx_cold_folder *f = &c->writer_folder;
    const mx_hash256 *last = &job->page_ids[job->n_pages - 1];
    char name[MX_COLD_NAME_CAP];
    uint64_t touched_us, now = mx_now_us();
    mx_cold_session_name(last, name);
    if (!mx_cold_index_is_durable(c->index, last, job->entry_kind, &touched_us)
        || !is_manifest_there(c, name, m) || count_missing(c, job) > 0) {
        return false;
    }
    int64_t refresh_s = c->tuning.delete_age_s / 10;
    refresh_s = refresh_s < REFRESH_S ? refresh_s : REFRESH_S;
    if (now - touched_us >= (uint64_t)refresh_s * 1000000) {
        if (touch_all(c, job) > 0
            || mx_cold_renew(f, f->sessions_fd, name, mx_cold_stamp_ns(c)) == MX_E_NOT_FOUND) {
            return false;
        }
        mx_cold_index_set_durable(c->index, last, job->entry_kind, now);
    }
    pthread_mutex_lock(&c->lock);
    c->stats.sessions_skipped++;
    pthread_mutex_unlock(&c->lock);
    return true;
}

/* What was computed here knows better what it is. */
static bool has_own_manifest(mx_cold *c, const mx_disk_manifest *m)
{
    mx_cold_folder *f = &c->writer_folder;
    mx_disk_manifest own;
    uint8_t *copy;
    char name[MX_COLD_NAME_CAP];
    const mx_hash256 *last = &m->page_ids[m->n_pages - 1];
    mx_cold_session_name(last, name);
    mx_err err = mx_cold_read_manifest(f->ops, f->sessions_fd, name, last, mx_cold_auth_key(c), true,
                                       &own, &copy, NULL);
    mx_free(copy);
    return err == MX_OK;
}

/* The answers that are in the chain, the last one perhaps not to its end. One that goes on
 * behind it is told of by a longer one. */
static uint32_t encode_turns(const mx_cold_job *job, uint8_t *out)
{
    uint32_t n = 0;
    for (size_t i = 0; i < job->n_turns && n < MX_DISK_MANIFEST_MAX_TURNS; i++) {
        const mx_turn *t = &job->turns[i];
        if (t->n_prompt < job->n_session_tokens
            && (t->n_end == UINT32_MAX || t->n_end <= job->n_session_tokens)) {
            mx_turn_encode(t, out + MX_DISK_TURN_BYTES * n++);
        }
    }
    return n;
}

/* Where a reader of the chain would end, as far as this process knows: pages of which the rows of windowed
 * layers had to go before they were written (out of memory) are of use behind a window only. */
static size_t resumed_tokens(mx_cold *c, const mx_cold_job *job)
{
    size_t n_pages = job->n_pages, n = job->n_session_tokens;
    while (c->shape.n_local > 0 && n_pages > 0) {
        const size_t first = mx_kv_first_seen(&c->shape, n);
        size_t i = n_pages;
        while (i > first && !mx_cold_index_lacks(c->index, &job->page_ids[i - 1])) {
            i--;
        }
        if (i <= first) {
            break;
        }
        n_pages = i - 1;
        n = n_pages * MX_PAGE_TOKENS;
    }
    return n;
}

/* People and tests rely on it: what is said here is found by the next process, to that token. */
static void log_durable(mx_cold *c, const mx_cold_job *job, uint32_t n_states)
{
    char hex[65], resumed[40] = "";
    const size_t n = resumed_tokens(c, job);
    if (n < job->n_session_tokens) {
        snprintf(resumed, sizeof resumed, " resumed_tokens=%zu", n);
    }
    mx_hash256_hex(&job->session_id, hex);
    mx_log(MX_LOG_INFO, "durable session=%.16s kind=%s tokens=%zu pages=%zu states=%u%s", hex,
           job->entry_kind == MX_DISK_ENTRY_TURN ? "turn" : "prompt", job->n_session_tokens,
           job->n_pages, n_states, resumed);
}

static mx_err write_session(mx_cold *c, const mx_cold_job *job, const mx_hash256 *state_ids,
                            uint32_t n_states, mx_errbuf *eb)
{
    uint8_t turns[MX_DISK_MANIFEST_MAX_TURNS * MX_DISK_TURN_BYTES];
    uint32_t n_turns = encode_turns(job, turns);
    mx_disk_manifest m = {.root = job->root,
                          .session_id = job->session_id,
                          .entry_kind = job->entry_kind,
                          .n_tokens = job->n_session_tokens,
                          .n_pages = (uint32_t)job->n_pages,
                          .page_ids = job->page_ids,
                          .n_states = n_states,
                          .state_ids = state_ids,
                          .turns = turns,
                          .n_turns = n_turns,
                          .created_s = (uint64_t)mx_wall_s(),
                          .is_imported = job->is_imported};
    if (is_session_kept(c, job, &m)) {
        return MX_OK;
    }
    uint64_t touched_us = mx_now_us();
    if (touch_all(c, job) > 0 || count_missing(c, job) > 0) {
        return MX_E_NOT_FOUND;
    }
    MX_TRY(sync_pages(c, job, eb));
    if (!job->is_imported || !has_own_manifest(c, &m)) {
        MX_TRY(put_manifest(c, &m, eb));
    } else if (c->writer_folder.ops->fsync(c->writer_folder.sessions_fd) != 0) { /* whoever wrote it */
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot sync a folder");
    }
    MX_TRY(mx_cold_learn_manifest(c, &m));
    if (count_missing(c, job) > 0) {
        return MX_E_NOT_FOUND;
    }
    mx_cold_index_set_durable(c->index, &job->page_ids[job->n_pages - 1], job->entry_kind,
                              touched_us);
    pthread_mutex_lock(&c->lock);
    c->stats.sessions_written++;
    pthread_mutex_unlock(&c->lock);
    log_durable(c, job, n_states);
    return MX_OK;
}

static bool move_bookmark(void *arg, mx_bookmark *b, bool is_there)
{
    enum { REFRESH_S = 60 };
    const mx_cold_job *job = *(const mx_cold_job *const *)arg;
    const mx_hash256 *entry = &job->page_ids[job->n_pages - 1];
    bool is_same = is_there && mx_hash256_eq(&b->entry, entry) && b->n_tokens == job->n_session_tokens;
    int64_t age_s = mx_wall_s() - b->used_s;
    if (is_same && age_s >= 0 && age_s < REFRESH_S) {
        return false; /* a repeated request */
    }
    b->is_session = true;
    b->root = job->root;
    b->entry = *entry;
    b->n_tokens = job->n_session_tokens;
    snprintf(b->name, sizeof b->name, "%s", job->session_name);
    return true;
}

/* The turn is durable whether this succeeds or not. */
static void note_session(mx_cold *c, const mx_cold_job *job)
{
    mx_errbuf eb = {{0}};
    mx_str name = {job->session_name, strlen(job->session_name)};
    mx_hash256 own = mx_session_id(&job->root, name);
    if (mx_bookmark_change(&c->writer_folder, &own, mx_cold_auth_key(c), move_bookmark, &job, &eb) != MX_OK) {
        mx_log(MX_LOG_INFO, "cold: the name of a session was not kept: %s", eb.text);
    }
}

static mx_err store_session(mx_cold *c, const mx_cold_job *job, mx_errbuf *eb)
{
    MX_TRY(ready(c, eb));
    mx_hash256 *state_ids;
    uint32_t n_states;
    MX_TRY(list_states(c, job, &state_ids, &n_states));
    mx_err err = write_session(c, job, state_ids, n_states, eb);
    if (err == MX_OK && job->session_name != NULL) {
        note_session(c, job);
    }
    mx_free(state_ids);
    return err;
}

/* ---- condemning ------------------------------------------------------------------------------ */

static mx_err condemn_all(mx_cold *c, const mx_cold_job *job)
{
    mx_cold_folder *f = &c->writer_folder;
    mx_errbuf eb = {{0}};
    mx_err err = mx_cold_folder_ready(f, false, &eb);
    if (err == MX_E_NOT_FOUND) {
        return MX_OK; /* no folder, no files */
    }
    for (size_t i = 0; err == MX_OK && i < job->n_pages + job->n_states; i++) {
        bool is_page = i < job->n_pages;
        const mx_hash256 *id = is_page ? &job->page_ids[i] : &job->state_ids[i - job->n_pages];
        mx_cold_condemn(c, f, is_page ? MX_COLD_PAGE : MX_COLD_STATE, id, job->reason);
        err = mx_cold_index_is_bad(c->index, id) ? MX_E_IO : MX_OK;
    }
    if (err != MX_OK) {
        mx_log(MX_LOG_ERROR, "cold: wrong files cannot be moved to quarantine, and a later start of "
               "the server would use them: `mtplx cache rm --all` removes them; folder=%s %s",
               c->dir, eb.text);
    }
    return err;
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* A folder that was there a moment ago is not: somebody removes them all (`cache rm --all`), which may
 * meet each new one again until it is done. To be off for half a minute would lose what comes meanwhile. */
static mx_err write_patiently(mx_cold *c, mx_cold_job *job, mx_errbuf *eb)
{
    static const useconds_t pauses_us[] = {0, 1000, 4000, 16000, 64000};
    mx_err err;
    for (size_t i = 0;; i++) {
        eb->text[0] = '\0';
        err = job->kind != MX_COLD_WRITE_SESSION ? write_object(c, job, eb) : store_session(c, job, eb);
        if (err != MX_E_NOT_FOUND || eb->text[0] == '\0' || i == MX_COUNT(pauses_us)
            || atomic_load(&c->is_stopping))
        {
            return err;
        }
        usleep(pauses_us[i]);
    }
}

void mx_cold_write_job(mx_cold *c, mx_cold_job *job)
{
    uint64_t start = mx_now_us();
    mx_errbuf eb = {{0}};
    mx_err err;
    if (job->kind == MX_COLD_CONDEMN) {
        job->status = condemn_all(c, job);
        job->elapsed_us = mx_now_us() - start;
        return;
    }
    bool is_object = job->kind != MX_COLD_WRITE_SESSION;
    if (!(is_object ? is_valid_object(c, job) : is_valid_session(job))) {
        err = MX_E_INVALID;
    } else if (!mx_cold_claim(c, job, 0, SIZE_MAX)) {
        err = MX_E_CANCELLED;
    } else if (!mx_cold_may_write(c)) {
        err = MX_E_IO;
    } else {
        err = write_patiently(c, job, &eb);
        /* Codes with a text come from the folder; those without are our own business. */
        if (err == MX_OK) {
            mx_cold_worked(c, MX_COLD_WRITING);
        } else if (err != MX_E_NOMEM && eb.text[0] != '\0') {
            mx_cold_failed(c, MX_COLD_WRITING, eb.text);
            err = err == MX_E_NOT_FOUND ? MX_E_IO : err; /* not found means pages, to the caller */
        }
    }
    if (err == MX_E_LIMIT || (err == MX_E_FULL && eb.text[0] == '\0')) {
        pthread_mutex_lock(&c->lock);
        c->stats.dropped_full++;
        pthread_mutex_unlock(&c->lock);
    }
    job->status = err;
    job->elapsed_us = mx_now_us() - start;
}
