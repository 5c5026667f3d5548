/* SPDX-License-Identifier: MIT
 *
 * Finding and reading pages.
 *
 * A prompt names its own pages: identities are computed from the tokens, and the folder is asked by
 * name, galloping along the chain, so that what another process wrote a second ago is found, too.
 * Only the page that matches in part cannot be computed; for that the index knows the children of a
 * page, and partial pages that the prompt contains whole are probed by name (63 hashes, no I/O but
 * failing look-ups).
 *
 * Payloads are read with pread straight into the page memory that the caller gave, never mapped.
 */
#include "cold/cold_state.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* ---- one page file --------------------------------------------------------------------------- */

void mx_cold_object_path(mx_cold_object o, const mx_hash256 *id, char path[MX_COLD_NAME_CAP])
{
    char xx[3], name[MX_COLD_NAME_CAP];
    mx_cold_object_name(o, id, xx, name);
    snprintf(path, MX_COLD_NAME_CAP, "%s/%.80s", xx, name);
}

void mx_cold_condemn(mx_cold *c, mx_cold_folder *f, mx_cold_object o, const mx_hash256 *id,
                     const char *reason)
{
    char xx[3], name[MX_COLD_NAME_CAP];
    mx_err err;
    f->n_condemned++;
    mx_cold_object_name(o, id, xx, name);
    int dir = mx_cold_open_dir(f->ops, mx_cold_objects_fd(f, o), xx, false, &err, NULL);
    bool is_gone = dir < 0 && err == MX_E_NOT_FOUND; /* not where it cannot be seen */
    if (dir >= 0) {
        struct stat st;
        bool is_moved = mx_cold_quarantine(f, dir, name, reason);
        is_gone = is_moved
                  || (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT);
        if (is_moved) {
            mx_cold_quarantined(c);
        }
        close(dir);
    }
    if (is_gone) {
        mx_cold_index_remove(c->index, id);
        mx_cold_index_set_good(c->index, id); /* whatever comes under this name is another file */
    } else {
        mx_cold_index_set_bad(c->index, id); /* or it would be read and reported for ever */
    }
}

/* Of a file for which a payload of so many bytes is wanted. Pages may be compressed. */
static bool may_be_size(mx_cold_object o, uint64_t file_bytes, size_t payload_bytes)
{
    uint64_t whole = MX_DISK_PAYLOAD_AT + payload_bytes;
    return file_bytes == whole
           || (o == MX_COLD_PAGE && file_bytes > MX_DISK_PAYLOAD_AT && file_bytes < whole);
}

/* Steps 2 to 8 and 10 on an open file. */
static mx_err load_open(const mx_cold *c, const mx_cold_folder *f, int fd, uint64_t file_bytes,
                        const mx_cold_want *want, mx_cold_scratch *s, uint8_t *payload,
                        mx_disk_page *page, mx_errbuf *eb)
{
    size_t payload_bytes = 0;
    bool is_state = want->object == MX_COLD_STATE;
    if (want->n_tokens != 0) {
        payload_bytes = mx_cold_object_bytes(c, want->object, want->n_tokens);
        if (!may_be_size(want->object, file_bytes, payload_bytes)) {
            return mx_fail(eb, MX_E_CORRUPT, "size");
        }
    }
    uint8_t *stored = payload;
    size_t stored_bytes = payload_bytes;
    if (payload != NULL && file_bytes < MX_DISK_PAYLOAD_AT + payload_bytes) {
        if (!mx_cold_reserve_stored(c, s)) {
            return mx_fail(eb, MX_E_NOMEM, "no memory to decompress a page");
        }
        stored = s->stored;
        stored_bytes = (size_t)file_bytes - MX_DISK_PAYLOAD_AT;
    }
    struct iovec iov[2] = {{s->head, MX_DISK_PAYLOAD_AT}, {stored, stored_bytes}};
    MX_TRY(mx_cold_read_all(f->ops, fd, iov, payload != NULL ? 2 : 1, eb));
    MX_TRY(is_state ? mx_disk_state_decode(page, s->head, MX_DISK_PAYLOAD_AT, eb)
                    : mx_disk_page_decode(page, s->head, MX_DISK_PAYLOAD_AT, eb));
    if (!mx_hash256_eq(&page->own, &want->id)) {
        return mx_fail(eb, MX_E_CORRUPT, "own identity is not the file name");
    }
    if (page->kv_type != mx_disk_kv_type(c->shape.type)
        || !mx_disk_is_payload_bytes(&c->shape, page) || file_bytes != MX_DISK_PAYLOAD_AT + page->stored_bytes) {
        return mx_fail(eb, MX_E_CORRUPT, "type or length is not that of the model");
    }
    if (want->root != NULL
        && (!mx_hash256_eq(&page->root, want->root) || !mx_hash256_eq(&page->parent, want->parent)
            || page->first_position != want->first_position)) {
        return mx_fail(eb, MX_E_CORRUPT, "root, parent or position is not the wanted one");
    }
    if (payload == NULL) {
        return MX_OK;
    }
    MX_TRY(mx_disk_page_verify(page, stored, stored_bytes, eb));
    if (c->has_auth_key) {
        MX_TRY(mx_disk_page_authenticate(s->head, &c->auth_key, stored, stored_bytes, eb));
    }
    if (page->codec != MX_CODEC_NONE) {
        return mx_disk_page_unpack(page, &s->codec, stored, payload, eb);
    }
    if (stored != payload) { /* shorter, because it lacks something */
        memcpy(payload, stored, stored_bytes);
    }
    return MX_OK;
}

mx_err mx_cold_try_page(const mx_cold *c, const mx_cold_folder *f, const mx_cold_want *want,
                        mx_cold_scratch *s, uint8_t *payload, mx_disk_page *page, bool *is_open,
                        mx_errbuf *eb)
{
    assert(payload == NULL || want->n_tokens != 0);
    mx_err err;
    char xx[3], name[MX_COLD_NAME_CAP];
    mx_cold_object_name(want->object, &want->id, xx, name);
    int fd = -1;
    uint64_t bytes = 0;
    int dir = mx_cold_open_dir(f->ops, mx_cold_objects_fd(f, want->object), xx, false, &err, eb);
    if (dir >= 0) {
        err = mx_cold_open_file(f->ops, dir, name, &fd, &bytes, eb);
        close(dir);
    }
    if (is_open != NULL) {
        *is_open = fd >= 0;
    }
    if (err == MX_E_DENIED && f->ops->accepts_others) {
        err = MX_E_NOT_FOUND; /* another user's, for himself */
    }
    if (fd >= 0) {
        err = load_open(c, f, fd, bytes, want, s, payload, page, eb);
        close(fd);
    }
    return err;
}

mx_err mx_cold_load_page(mx_cold *c, mx_cold_folder *f, const mx_cold_want *want,
                         mx_cold_scratch *s, uint8_t *payload, mx_disk_page *page)
{
    mx_errbuf eb;
    bool is_open;
    mx_err err = mx_cold_try_page(c, f, want, s, payload, page, &is_open, &eb);
    if (err == MX_OK && want->object == MX_COLD_PAGE && c->shape.n_local > 0) {
        mx_cold_index_set_lacks(c->index, &want->id, page->lacks_local);
    } else if (err == MX_E_CORRUPT) {
        mx_cold_condemn(c, f, want->object, &want->id, eb.text);
    } else if (err == MX_E_NOT_FOUND) {
        mx_cold_index_remove(c->index, &want->id);
    } else if (err == MX_E_UNSUPPORTED) {
        if (!atomic_exchange(&c->is_foreign_logged, true)) {
            char hex[65];
            mx_hash256_hex(&want->id, hex);
            mx_log(MX_LOG_INFO, "cold: left alone, written by another version: file=%s %s", hex,
                   eb.text);
        }
    } else if (err != MX_OK && err != MX_E_NOMEM) {
        if (is_open) {
            mx_cold_index_set_bad(c->index, &want->id); /* a bad sector: write it somewhere else */
        }
        f->has_met_error = true;
        mx_cold_failed(c, MX_COLD_READING, eb.text);
    }
    return err;
}

bool mx_cold_page_is_whole(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id, mx_cold_scratch *s)
{
    mx_cold_want want = {.object = MX_COLD_PAGE, .id = *id};
    mx_disk_page page;
    return c->shape.n_local == 0
           || (mx_cold_load_page(c, f, &want, s, NULL, &page) == MX_OK && !page.lacks_local);
}

/* A compressed file tells itself how long it is. MX_E_CORRUPT: it is not; or it cannot be read. */
static mx_err check_packed_size(const mx_cold_folder *f, const char *path, uint64_t file_bytes)
{
    uint8_t header[MX_DISK_PAGE_HEADER_BYTES];
    struct iovec iov = {header, sizeof header};
    uint64_t n, stored = 0;
    int fd;
    MX_TRY(mx_cold_open_file(f->ops, f->pages_fd, path, &fd, &n, NULL));
    mx_err err = mx_cold_read_all(f->ops, fd, &iov, 1, NULL);
    close(fd);
    MX_TRY(err);
    MX_TRY(mx_disk_stored_bytes(header, &stored));
    return stored == file_bytes - MX_DISK_PAYLOAD_AT ? MX_OK : MX_E_CORRUPT;
}

mx_err mx_cold_look_for(mx_cold *c, mx_cold_folder *f, mx_cold_object o, const mx_hash256 *id,
                        uint32_t n_tokens)
{
    char path[MX_COLD_NAME_CAP];
    struct stat st;
    mx_cold_object_path(o, id, path);
    if (mx_cold_index_is_bad(c->index, id)) {
        return MX_E_NOT_FOUND;
    }
    if (fstatat(mx_cold_objects_fd(f, o), path, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        mx_err err = mx_cold_errno(errno);
        if (err == MX_E_NOT_FOUND) {
            mx_cold_index_remove(c->index, id);
        }
        return err;
    }
    bool is_file = S_ISREG(st.st_mode);
    size_t payload_bytes = mx_cold_object_bytes(c, o, n_tokens);
    uint64_t size = (uint64_t)st.st_size;
    mx_err err = is_file && may_be_size(o, size, payload_bytes) ? MX_OK : MX_E_CORRUPT;
    if (err == MX_OK && size < MX_DISK_PAYLOAD_AT + payload_bytes) {
        err = check_packed_size(f, path, size);
    }
    if (err == MX_E_CORRUPT) {
        mx_cold_condemn(c, f, o, id, is_file ? "size" : "not a regular file");
        err = MX_E_NOT_FOUND;
    }
    return err;
}

bool mx_cold_page_exists(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id, uint32_t n_tokens)
{
    return mx_cold_look_for(c, f, MX_COLD_PAGE, id, n_tokens) == MX_OK;
}

bool mx_cold_state_exists(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id)
{
    return mx_cold_look_for(c, f, MX_COLD_STATE, id, 0) == MX_OK;
}

bool mx_cold_touch_state(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id, uint64_t position,
                         int64_t now_ns)
{
    char path[MX_COLD_NAME_CAP];
    mx_cold_object_path(MX_COLD_STATE, id, path);
    mx_err err = mx_cold_renew(f, f->states_fd, path, mx_cold_state_time_ns(now_ns, position));
    if (err == MX_E_NOT_FOUND) {
        mx_cold_index_remove(c->index, id);
    }
    return err != MX_E_NOT_FOUND;
}

size_t mx_cold_touch_chain(mx_cold *c, mx_cold_folder *f, const mx_hash256 *ids, size_t n,
                           int64_t now_ns)
{
    size_t n_missing = 0;
    for (size_t i = n; i-- > 0;) {
        char path[MX_COLD_NAME_CAP];
        mx_cold_object_path(MX_COLD_PAGE, &ids[i], path);
        if (mx_cold_renew(f, f->pages_fd, path, mx_cold_page_time_ns(now_ns, i)) == MX_E_NOT_FOUND) {
            mx_cold_index_remove(c->index, &ids[i]);
            n_missing++;
        }
    }
    return n_missing;
}

/* ---- probing --------------------------------------------------------------------------------- */

/* The identities of a job's pages, computed as far as they were asked for. */
typedef struct chain {
    mx_cold *c;
    const mx_cold_job *job;
    size_t n; /* computed */
} chain;

static bool chain_reserve(mx_cold *c, size_t n)
{
    return mx_grow((void **)&c->reader_ids, &c->reader_ids_cap, n, sizeof *c->reader_ids);
}

static const mx_hash256 *chain_parent(const chain *ch, size_t i)
{
    return i == 0 ? &ch->job->parent_id : &ch->c->reader_ids[i - 1];
}

static const mx_hash256 *chain_id(chain *ch, size_t i)
{
    assert(i < ch->c->reader_ids_cap);
    for (; ch->n <= i; ch->n++) {
        ch->c->reader_ids[ch->n] = mx_page_identity(&ch->job->root, chain_parent(ch, ch->n),
                                                    ch->job->tokens + ch->n * MX_PAGE_TOKENS,
                                                    MX_PAGE_TOKENS);
    }
    return &ch->c->reader_ids[i];
}

static bool full_exists(chain *ch, size_t i)
{
    mx_cold *c = ch->c;
    const mx_hash256 *id = chain_id(ch, i);
    if (!mx_cold_page_exists(c, &c->reader_folder, id, MX_PAGE_TOKENS)) {
        return false;
    }
    /* Without memory for the index nothing is lost but a hint. */
    if (mx_cold_index_add(c->index, id, false) == MX_OK) {
        mx_err err = mx_cold_index_link(c->index, id, chain_parent(ch, i), MX_PAGE_TOKENS,
                                        ch->job->tokens + i * MX_PAGE_TOKENS);
        (void)err;
    }
    return true;
}

/* How many full pages are there from the front. Pages are deleted leaf first, so presence is nearly
 * monotone; where it is not, the read ends early, which it can do anyway. */
static size_t probe_full(chain *ch)
{
    size_t n_max = ch->job->n_tokens / MX_PAGE_TOKENS;
    size_t have = 0, step = 1;
    size_t lack = n_max + 1; /* so many are known not to be there */
    while (have < n_max && lack == n_max + 1) {
        size_t want = mx_min_size(have + step, n_max);
        if (full_exists(ch, want - 1)) {
            have = want;
            step *= 2;
        } else {
            lack = want;
        }
    }
    while (lack - have > 1) {
        size_t want = have + (lack - have) / 2;
        if (full_exists(ch, want - 1)) {
            have = want;
        } else {
            lack = want;
        }
    }
    return have;
}

/* Is the file of this child there, and whole where only such ones count? */
static bool is_usable(mx_cold *c, const mx_cold_child *child, mx_cold_among among)
{
    return mx_cold_page_exists(c, &c->reader_folder, &child->id, child->n_tokens)
           && (among == MX_COLD_AMONG_ALL
               || mx_cold_page_is_whole(c, &c->reader_folder, &child->id, &c->reader_scratch));
}

/* The best child that the index knows, its file checked; n_common 0 = none. */
static mx_cold_child probe_known(mx_cold *c, const mx_cold_job *job, const mx_hash256 *parent,
                                 const int32_t *rest, size_t n, uint64_t first_position,
                                 mx_cold_among among)
{
    enum { BATCH = 64, ROUNDS = 4 };
    mx_cold_child unknown[BATCH], best = {0};
    for (int round = 0; round < ROUNDS; round++) {
        size_t n_unknown;
        best = mx_cold_index_best_child(c->index, parent, rest, n, among, unknown, BATCH,
                                        &n_unknown);
        for (size_t i = 0; i < n_unknown; i++) {
            /* Only a manifest says that this is a child, and a manifest is a hint: what does not
             * fit is passed over, not condemned. */
            mx_cold_want want = {.id = unknown[i].id};
            mx_disk_page page;
            mx_err err =
                mx_cold_load_page(c, &c->reader_folder, &want, &c->reader_scratch, NULL, &page);
            if (err == MX_OK
                && (!mx_hash256_eq(&page.root, &job->root) || !mx_hash256_eq(&page.parent, parent)
                    || page.first_position != first_position)) {
                err = MX_E_NOT_FOUND;
            }
            if (err == MX_OK) {
                err = mx_cold_index_link(c->index, &want.id, parent, page.n_tokens, page.tokens);
            }
            if (err != MX_OK) {
                mx_cold_index_remove(c->index, &want.id); /* or it would be asked for ever */
            }
        }
        bool is_settled = n_unknown == 0;
        if (is_settled && best.n_common > 0 && !is_usable(c, &best, among)) {
            best.n_common = 0; /* gone, or not whole: the next round finds the next best */
            is_settled = false;
        }
        if (is_settled) {
            return best;
        }
    }
    return best.n_common > 0 && is_usable(c, &best, among) ? best : (mx_cold_child){0};
}

/* A tail that goes on behind the prompt is known from manifests only. Right after the start they are
 * being read: a moment of patience saves up to 63 tokens of computing, and a folder with so many
 * manifests that it takes longer is not waited for. */
static const uint64_t LOAD_WAIT_US = 250000;

/* What is stored of the page behind the first job->n_full ones. Without by_name only what the index knows:
 * 63 look-ups are too much for each page of a long chain. */
static mx_cold_child find_tail(chain *ch, const mx_cold_job *job, mx_cold_among among, bool by_name)
{
    mx_cold *c = ch->c;
    const mx_hash256 *parent = chain_parent(ch, job->n_full);
    const int32_t *rest = job->tokens + job->n_full * MX_PAGE_TOKENS;
    size_t n = mx_min_size(job->n_tokens - job->n_full * MX_PAGE_TOKENS, MX_PAGE_TOKENS);
    if (n == 0) {
        return (mx_cold_child){0};
    }
    uint64_t position = (job->first_page + job->n_full) * MX_PAGE_TOKENS;
    mx_cold_wait_loaded(c, LOAD_WAIT_US);
    mx_cold_child best = probe_known(c, job, parent, rest, n, position, among);
    const uint32_t most = by_name ? (uint32_t)mx_min_size(n, MX_PAGE_TOKENS - 1) : 0;
    for (uint32_t k = most; k > best.n_common; k--) {
        mx_hash256 id = mx_page_identity(&job->root, parent, rest, k);
        const mx_cold_child named = {.id = id, .n_tokens = k, .n_common = k};
        if (is_usable(c, &named, among)) {
            best = named;
            if (mx_cold_index_add(c->index, &id, false) == MX_OK) {
                mx_err err = mx_cold_index_link(c->index, &id, parent, k, rest);
                (void)err;
            }
        }
    }
    return best;
}

static void set_tail(mx_cold_job *job, const mx_cold_child *tail)
{
    const bool is_there = tail->n_common > 0;
    job->tail_id = tail->id;
    job->tail_file_rows = is_there ? tail->n_tokens : 0;
    job->tail_rows = tail->n_common;
}

/* Is the first page of these tokens there under that root? */
static bool has_first_page(int v1, const mx_hash256 *root, const int32_t *tokens)
{
    mx_hash256 id = mx_page_identity(root, root, tokens, MX_PAGE_TOKENS);
    char hex[65], path[MX_COLD_NAME_CAP], whole[192];
    struct stat st;
    mx_hash256_hex(root, hex);
    mx_cold_object_path(MX_COLD_PAGE, &id, path);
    snprintf(whole, sizeof whole, "%s/pages/%s", hex, path);
    return fstatat(v1, whole, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool any_root_has(const mx_cold *c, DIR *v1, const int32_t *tokens)
{
    enum { MAX_ROOTS = 16 };
    size_t n = 0;
    mx_hash256 root;
    for (const struct dirent *e; n < MAX_ROOTS && (e = readdir(v1)) != NULL;) {
        if (mx_hash256_from_hex(&root, e->d_name, strlen(e->d_name))
            && !mx_hash256_eq(&root, &c->root))
        {
            n++;
            if (has_first_page(dirfd(v1), &root, tokens)) {
                return true;
            }
        }
    }
    return false;
}

/* Nothing begins like this prompt here. Is its first page stored for another model, or for this one
 * with other settings? Only roots without a salt have a folder of their name, so it is asked for
 * such a prompt only. Our own folder need not be there. */
static bool is_under_other_root(const mx_cold *c, const mx_cold_job *job)
{
    mx_err err;
    mx_errbuf eb;
    if (job->first_page > 0 || job->n_tokens < MX_PAGE_TOKENS
        || !mx_hash256_eq(&job->root, &c->root)) {
        return false;
    }
    const mx_cold_fileops *ops = c->reader_folder.ops;
    int top = mx_cold_open_dir(ops, AT_FDCWD, c->dir, false, &err, &eb);
    int fd = top >= 0 ? mx_cold_open_dir(ops, top, "v1", false, &err, &eb) : -1;
    DIR *v1 = fd >= 0 ? fdopendir(fd) : NULL;
    bool is_there = v1 != NULL && any_root_has(c, v1, job->tokens);
    if (v1 != NULL) {
        closedir(v1);
    } else if (fd >= 0) {
        close(fd);
    }
    if (top >= 0) {
        close(top);
    }
    return is_there;
}

/* The chain ends where the next token sees all that it has to in windowed layers. Pages before it, which
 * need not have that, are of use behind it only. */
static void clip_to_window(chain *ch, mx_cold_job *job)
{
    mx_cold *c = ch->c;
    const mx_kv_shape *s = &c->shape;
    const size_t first = (size_t)job->first_page;
    bool is_tail_whole = false; /* or looked for among such */
    while (s->n_local > 0) {
        size_t i = job->n_full + (job->tail_rows > 0);
        const size_t n = (first + job->n_full) * MX_PAGE_TOKENS + job->tail_rows;
        size_t lowest = mx_max_size(mx_kv_first_seen(s, n), first) - first;
        lowest = mx_min_size(lowest, i);
        while (i > lowest
               && ((i > job->n_full && is_tail_whole)
                   || mx_cold_page_is_whole(c, &c->reader_folder,
                                            i > job->n_full ? &job->tail_id : chain_id(ch, i - 1),
                                            &c->reader_scratch))) {
            i--;
        }
        if (i == lowest) {
            break;
        }
        /* Page i - 1 lacks it. Another file may have it, as far as that begins alike. */
        job->n_full = i - 1;
        const mx_cold_child tail = find_tail(ch, job, MX_COLD_AMONG_WHOLE, !is_tail_whole);
        set_tail(job, &tail);
        is_tail_whole = true;
    }
}

static mx_err run_probe(mx_cold *c, mx_cold_job *job)
{
    job->n_full = 0;
    job->tail_rows = job->tail_file_rows = 0;
    job->read_bytes = 0;
    job->n_next = 0;
    chain ch = {.c = c, .job = job};
    if (!chain_reserve(c, job->n_tokens / MX_PAGE_TOKENS + 1)) {
        return MX_E_NOMEM;
    }
    job->n_full = probe_full(&ch);
    const mx_cold_child tail = find_tail(&ch, job, MX_COLD_AMONG_ALL, true);
    set_tail(job, &tail);
    job->n_next = tail.n_next;
    memcpy(job->next_tokens, tail.next, sizeof job->next_tokens);
    job->is_under_other_model = job->n_full == 0 && is_under_other_root(c, job);
    job->n_shared = (job->first_page + job->n_full) * MX_PAGE_TOKENS + job->tail_rows;
    clip_to_window(&ch, job);
    job->read_bytes = (uint64_t)job->n_full * c->page_bytes;
    if (job->tail_rows > 0) {
        job->read_bytes += mx_disk_payload_bytes(&c->shape, job->tail_file_rows);
    }
    return job->chain != NULL ? mx_cold_probe_state(c, job) : MX_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

uint8_t *mx_cold_place_of(const mx_cold *c, const mx_cold_job *job, mx_cold_scratch *s, size_t i)
{
    return c->shape.n_local == 0            ? job->payloads[i]
           : mx_cold_reserve_whole(c, s) ? s->whole
                                            : NULL;
}

void mx_cold_put_page(const mx_cold *c, mx_cold_job *job, size_t i, bool lacks_local,
                      const uint8_t *bytes)
{
    if (c->shape.n_local > 0) {
        job->locals[i] = lacks_local ? NULL : job->locals[i];
        mx_page_part(&c->shape, job->payloads[i], job->locals[i], bytes);
    }
}

static mx_err read_full(mx_cold *c, mx_cold_job *job, chain *ch, size_t i)
{
    const int32_t *tokens = job->tokens + i * MX_PAGE_TOKENS;
    mx_cold_want want = {.id = *chain_id(ch, i),
                         .root = &job->root,
                         .parent = chain_parent(ch, i),
                         .n_tokens = MX_PAGE_TOKENS,
                         .first_position = (job->first_page + i) * MX_PAGE_TOKENS};
    mx_disk_page page;
    uint8_t *place = mx_cold_place_of(c, job, &c->reader_scratch, i);
    if (place == NULL) {
        return MX_E_NOMEM;
    }
    if (!mx_cold_claim(c, job, 0, i)) {
        return MX_E_CANCELLED;
    }
    mx_err err = mx_cold_load_page(c, &c->reader_folder, &want, &c->reader_scratch, place, &page);
    if (err == MX_OK) {
        mx_cold_put_page(c, job, i, page.lacks_local, place);
    }
    mx_cold_unclaim(c, job, 0);
    MX_TRY(err);
    return memcmp(page.tokens, tokens, sizeof page.tokens) == 0 ? MX_OK : MX_E_NOT_FOUND;
}

static mx_err read_tail(mx_cold *c, mx_cold_job *job, chain *ch)
{
    uint32_t rows = job->tail_rows, file_rows = job->tail_file_rows;
    size_t at = job->n_full * MX_PAGE_TOKENS;
    if (file_rows > MX_PAGE_TOKENS || rows > file_rows || rows > job->n_tokens - at) {
        return MX_E_INVALID;
    }
    mx_cold_want want = {.id = job->tail_id,
                         .root = &job->root,
                         .parent = chain_parent(ch, job->n_full),
                         .n_tokens = file_rows,
                         .first_position = (job->first_page + job->n_full) * MX_PAGE_TOKENS};
    mx_disk_page page;
    MX_TRY(mx_cold_load_page(c, &c->reader_folder, &want, &c->reader_scratch, c->reader_rows, &page));
    if (memcmp(page.tokens, job->tokens + at, rows * sizeof page.tokens[0]) != 0) {
        return MX_E_NOT_FOUND;
    }
    const uint8_t *from = c->reader_rows;
    if (file_rows < MX_PAGE_TOKENS) {
        mx_page_unpack_rows(&c->shape, c->reader_page, c->reader_rows, file_rows);
        from = c->reader_page;
    }
    uint8_t *place = mx_cold_place_of(c, job, &c->reader_scratch, job->n_full);
    if (place == NULL) {
        return MX_E_NOMEM;
    }
    if (!mx_cold_claim(c, job, 0, job->n_full)) {
        return MX_E_CANCELLED;
    }
    if (c->shape.n_local > 0) {
        memset(place, 0, c->page_bytes);
    }
    mx_page_copy_rows(&c->shape, place, from, rows);
    mx_cold_put_page(c, job, job->n_full, page.lacks_local, place);
    mx_cold_unclaim(c, job, 0);
    return MX_OK;
}

static void count_read(mx_cold *c, size_t n_pages, uint64_t bytes, uint64_t us)
{
    pthread_mutex_lock(&c->lock);
    c->stats.pages_read += n_pages;
    c->stats.bytes_read += bytes;
    double rate = (double)bytes / (double)(us > 0 ? us : 1);
    if (bytes > 0) {
        double old = c->stats.read_bytes_per_us;
        c->stats.read_bytes_per_us = old > 0 ? old + (rate - old) / 4 : rate;
    }
    pthread_mutex_unlock(&c->lock);
}

/* A file is gone, or was moved to quarantine just now. */
static bool is_absent(mx_err err)
{
    return err == MX_E_NOT_FOUND || err == MX_E_CORRUPT;
}

/* What is stored of the page behind the whole ones, now that something turned out not to be. */
static void reprobe_tail(chain *ch, mx_cold_job *job)
{
    const bool is_windowed = ch->c->shape.n_local > 0;
    const mx_cold_child tail =
        find_tail(ch, job, is_windowed ? MX_COLD_AMONG_WHOLE : MX_COLD_AMONG_ALL, true);
    set_tail(job, &tail);
}

/* The whole pages end sooner than the probe, which gallops and sees no content, had thought. */
static mx_err end_at_gap(chain *ch, mx_cold_job *job)
{
    job->n_full = job->n_read;
    reprobe_tail(ch, job);
    if (!mx_cold_claim(ch->c, job, 0, job->n_full)) {
        return MX_E_CANCELLED;
    }
    /* It may have got unverified bytes. */
    memset(job->payloads[job->n_full], 0, mx_kv_payload_bytes(&ch->c->shape));
    mx_cold_unclaim(ch->c, job, 0);
    return MX_OK;
}

static mx_err run_read(mx_cold *c, mx_cold_job *job)
{
    enum { TAILS = 4 };
    job->n_read = 0;
    c->reader_n_used = 0;
    if (job->n_full > job->n_tokens / MX_PAGE_TOKENS) {
        return MX_E_INVALID;
    }
    if (!chain_reserve(c, job->n_full + 1)) {
        return MX_E_NOMEM;
    }
    chain ch = {.c = c, .job = job};
    uint64_t start = mx_now_us(), bytes = 0;
    mx_err err = MX_OK;
    if (job->n_full > 0) {
        (void)chain_id(&ch, job->n_full - 1);
        job->n_read = mx_cold_read_in_lanes(c, job, c->reader_ids);
        bytes = (uint64_t)job->n_read * c->page_bytes;
    }
    /* From the page on that the lanes have stopped at: mostly there is none. */
    while (job->n_read < job->n_full && err == MX_OK) {
        if (atomic_load(&c->is_stopping)) {
            return MX_E_CANCELLED;
        }
        err = read_full(c, job, &ch, job->n_read);
        if (err == MX_OK) {
            job->n_read++;
            bytes += c->page_bytes;
        }
    }
    if (is_absent(err)) {
        err = end_at_gap(&ch, job);
    }
    for (int i = 0; i < TAILS && err == MX_OK && job->tail_rows > 0; i++) {
        err = read_tail(c, job, &ch);
        if (err == MX_OK) {
            c->reader_ids[job->n_full] = job->tail_id;
            job->n_read++;
            bytes += mx_disk_payload_bytes(&c->shape, job->tail_file_rows);
            break;
        }
        if (is_absent(err)) { /* that file is out of the index now: the next best */
            reprobe_tail(&ch, job);
            err = MX_OK;
        }
    }
    c->reader_n_used = job->n_read;
    if (job->chain != NULL && err != MX_E_INVALID && err != MX_E_CANCELLED) {
        err = mx_cold_read_state(c, job, &bytes);
    }
    count_read(c, job->n_read, bytes, mx_now_us() - start);
    /* Less than was asked for is an answer, not an error. */
    return err == MX_E_INVALID || err == MX_E_NOMEM || err == MX_E_CANCELLED ? err : MX_OK;
}

void mx_cold_read_job(mx_cold *c, mx_cold_job *job)
{
    uint64_t start = mx_now_us();
    mx_errbuf eb;
    mx_err err = mx_cold_folder_ready(&c->reader_folder, false, &eb);
    c->reader_n_used = 0;
    c->reader_state_at = 0;
    c->reader_folder.has_met_error = false;
    c->reader_folder.n_condemned = 0;
    if (err == MX_OK) {
        err = !mx_cold_claim(c, job, 0, SIZE_MAX) ? MX_E_CANCELLED
              : job->kind == MX_COLD_PROBE     ? run_probe(c, job)
              : job->kind == MX_COLD_READ      ? run_read(c, job)
                                               : mx_cold_read_ids(c, job);
        if (err == MX_OK && !c->reader_folder.has_met_error) {
            mx_cold_worked(c, MX_COLD_READING);
        }
    } else {
        if (job->kind == MX_COLD_PROBE) {
            job->n_full = 0;
            job->tail_rows = job->tail_file_rows = 0;
            job->read_bytes = 0;
            job->n_shared = job->first_page * MX_PAGE_TOKENS;
            job->n_next = 0;
            job->is_under_other_model = err == MX_E_NOT_FOUND && is_under_other_root(c, job);
        }
        job->n_read = 0;
        job->state_at = 0;
        if (err == MX_E_NOT_FOUND) { /* no folder: nothing is stored */
            err = job->kind == MX_COLD_READ_IDS ? err : MX_OK;
        } else {
            mx_cold_failed(c, MX_COLD_READING, eb.text);
        }
    }
    job->status = err;
    job->n_condemned = c->reader_folder.n_condemned;
    job->elapsed_us = mx_now_us() - start;
}

void mx_cold_read_done(mx_cold *c)
{
    int64_t now = mx_cold_stamp_ns(c);
    if (c->reader_n_used > 0) {
        mx_cold_touch_chain(c, &c->reader_folder, c->reader_ids, c->reader_n_used, now);
    }
    if (c->reader_state_at > 0) {
        (void)mx_cold_touch_state(c, &c->reader_folder, &c->reader_state, c->reader_state_at,
                                  now);
    }
}
