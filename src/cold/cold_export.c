/* SPDX-License-Identifier: MIT
 *
 * The export file as bytes, and how it comes out of a folder.
 *
 * The header is written last: a file that was cut short has none. It counts everything, so the
 * length of the file is known from it, and a number that is a lie does not survive the comparison
 * with the length that the file has; no memory is asked for before that.
 */
#include "cold/cold_export.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/mem.h"
#include "cold/cold_manifest.h"
#include "cold/cold_object.h"
#include "cold/cold_turn.h"

static const uint8_t magic[8] = {0x89, 'M', 'X', 'E', 'X', 'P', 'T', '\n'};

/* docs/file-format.md, section 13. */
enum {
    X_VERSION = 8,
    X_HEADER_LENGTH = 12,
    X_INCOMPATIBLE = 16,
    X_FINGERPRINT = 32,
    X_NUMERICS = 64,
    X_ROOT = 96,
    X_K_TYPE = 128,
    X_V_TYPE = 130,
    X_PAGE_SIZE = 132,
    X_N_LAYERS = 136,
    X_N_KV_HEADS = 140,
    X_HEAD_DIM = 144,
    X_ENTRY_KIND = 148,
    X_STATE_BYTES = 152,
    X_N_TOKENS = 160,
    X_N_PAGES = 168,
    X_N_STATES = 172,
    X_N_TURNS = 176,
    X_ZERO_1 = 180,
    X_BODY_SUM = 184,
    X_ZERO_2 = 200,
    X_HEADER_SUM = 240,
    SUM_BYTES = 16,
    STATE_BYTES = 8 + SUM_BYTES,
};
static const uint64_t max_state_bytes = (uint64_t)1 << 30;

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool is_zero(const uint8_t *p, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) {
        any |= p[i];
    }
    return any == 0;
}

void mx_export_lay_out(mx_export *x)
{
    const mx_kv_shape *s = &x->model.shape;
    uint32_t n_tail = (uint32_t)(x->n_tokens - (uint64_t)(x->n_pages - 1) * MX_DISK_PAGE_TOKENS);
    x->body_at = MX_EXPORT_HEADER_BYTES + (uint64_t)(x->n_pages - 1) * mx_kv_page_bytes(s)
                 + mx_disk_payload_bytes(s, n_tail) + (uint64_t)x->n_states * s->state_bytes;
    x->body_bytes = (size_t)x->n_tokens * 4 + (size_t)x->n_pages * SUM_BYTES
                    + (size_t)x->n_states * STATE_BYTES + (size_t)x->n_turns * MX_TURN_BYTES;
}

void mx_export_encode_header(const mx_export *x, uint8_t out[MX_EXPORT_HEADER_BYTES])
{
    const mx_kv_shape *s = &x->model.shape;
    mx_hash128 sum = mx_xxh3_128(x->body, x->body_bytes);
    memset(out, 0, MX_EXPORT_HEADER_BYTES);
    memcpy(out, magic, sizeof magic);
    mx_put_le32(out + X_VERSION, 1);
    mx_put_le32(out + X_HEADER_LENGTH, MX_EXPORT_HEADER_BYTES);
    memcpy(out + X_FINGERPRINT, x->model.fingerprint.b, 32);
    memcpy(out + X_NUMERICS, x->model.numerics_id.b, 32);
    memcpy(out + X_ROOT, x->model.bare_root.b, 32);
    mx_put_le16(out + X_K_TYPE, mx_disk_kv_type(s->type));
    mx_put_le16(out + X_V_TYPE, mx_disk_kv_type(s->type));
    mx_put_le32(out + X_PAGE_SIZE, MX_DISK_PAGE_TOKENS);
    mx_put_le32(out + X_N_LAYERS, s->n_layers);
    mx_put_le32(out + X_N_KV_HEADS, s->n_kv_heads);
    mx_put_le32(out + X_HEAD_DIM, s->head_dim);
    mx_put_le32(out + X_ENTRY_KIND, x->is_turn ? MX_DISK_ENTRY_TURN : MX_DISK_ENTRY_PROMPT);
    mx_put_le64(out + X_STATE_BYTES, s->state_bytes);
    mx_put_le64(out + X_N_TOKENS, x->n_tokens);
    mx_put_le32(out + X_N_PAGES, x->n_pages);
    mx_put_le32(out + X_N_STATES, x->n_states);
    mx_put_le32(out + X_N_TURNS, x->n_turns);
    memcpy(out + X_BODY_SUM, sum.b, sizeof sum.b);
    sum = mx_xxh3_128(out, X_HEADER_SUM);
    memcpy(out + X_HEADER_SUM, sum.b, sizeof sum.b);
}

static bool kv_type_of(uint32_t disk, mx_kv_type *out)
{
    static const mx_kv_type types[] = {MX_KV_F16, MX_KV_F32, MX_KV_Q8};
    for (size_t i = 0; i < MX_COUNT(types); i++) {
        if (mx_disk_kv_type(types[i]) == disk) {
            *out = types[i];
            return true;
        }
    }
    return false;
}

/* What every version has in the same place, and then what only this one knows. */
static mx_err check_common(const uint8_t *h, mx_errbuf *eb)
{
    if (memcmp(h, magic, sizeof magic) != 0) {
        return mx_fail(eb, MX_E_CORRUPT, "it is not an exported conversation");
    }
    mx_hash128 sum = mx_xxh3_128(h, X_HEADER_SUM);
    if (memcmp(h + X_HEADER_SUM, sum.b, sizeof sum.b) != 0) {
        return mx_fail(eb, MX_E_CORRUPT, "damaged: header checksum");
    }
    if (mx_get_le32(h + X_VERSION) != 1
        || mx_get_le32(h + X_HEADER_LENGTH) != MX_EXPORT_HEADER_BYTES
        || mx_get_le64(h + X_INCOMPATIBLE) != 0)
    {
        return mx_fail(eb, MX_E_UNSUPPORTED, "it was written by another version of mtplx (format "
                       "%u)", (unsigned)mx_get_le32(h + X_VERSION));
    }
    return MX_OK;
}

static mx_err check_fields(const uint8_t *h, mx_export *x, mx_errbuf *eb)
{
    const mx_kv_shape *s = &x->model.shape;
    const char *bad = NULL;
    mx_kv_type type;
    if (!is_zero(h + X_ZERO_1, 4) || !is_zero(h + X_ZERO_2, X_HEADER_SUM - X_ZERO_2)) {
        bad = "zero field";
    } else if (!kv_type_of(mx_get_le16(h + X_K_TYPE), &type)
               || mx_get_le16(h + X_V_TYPE) != mx_get_le16(h + X_K_TYPE)) {
        bad = "type of keys and values";
    } else if (mx_get_le32(h + X_PAGE_SIZE) != MX_DISK_PAGE_TOKENS) {
        bad = "page size";
    } else if (mx_get_le64(h + X_STATE_BYTES) > max_state_bytes || mx_kv_page_bytes(s) == 0) {
        bad = "shape";
    } else if (mx_get_le32(h + X_ENTRY_KIND) > MX_DISK_ENTRY_TURN) {
        bad = "entry kind";
    } else if (x->n_pages < 1 || x->n_pages > MX_DISK_MANIFEST_MAX_PAGES
               || x->n_tokens <= (uint64_t)(x->n_pages - 1) * MX_DISK_PAGE_TOKENS
               || x->n_tokens > (uint64_t)x->n_pages * MX_DISK_PAGE_TOKENS) {
        bad = "number of tokens or pages";
    } else if (x->n_states > x->n_pages || (x->n_states > 0 && s->state_bytes == 0)) {
        bad = "number of states";
    } else if (x->n_turns > MX_DISK_MANIFEST_MAX_TURNS) {
        bad = "number of turns";
    }
    return bad == NULL ? MX_OK : mx_fail(eb, MX_E_CORRUPT, "damaged: %s", bad);
}

mx_err mx_export_decode_header(mx_export *x, const uint8_t h[MX_EXPORT_HEADER_BYTES],
                               uint64_t file_bytes, mx_errbuf *eb)
{
    memset(x, 0, sizeof *x);
    MX_TRY(check_common(h, eb));
    mx_kv_shape *s = &x->model.shape;
    memcpy(x->model.fingerprint.b, h + X_FINGERPRINT, 32);
    memcpy(x->model.numerics_id.b, h + X_NUMERICS, 32);
    memcpy(x->model.bare_root.b, h + X_ROOT, 32);
    (void)kv_type_of(mx_get_le16(h + X_K_TYPE), &s->type);
    s->n_layers = mx_get_le32(h + X_N_LAYERS);
    s->n_kv_heads = mx_get_le32(h + X_N_KV_HEADS);
    s->head_dim = mx_get_le32(h + X_HEAD_DIM);
    s->state_bytes = (size_t)mx_get_le64(h + X_STATE_BYTES);
    x->is_turn = mx_get_le32(h + X_ENTRY_KIND) == MX_DISK_ENTRY_TURN;
    x->n_tokens = mx_get_le64(h + X_N_TOKENS);
    x->n_pages = mx_get_le32(h + X_N_PAGES);
    x->n_states = mx_get_le32(h + X_N_STATES);
    x->n_turns = mx_get_le32(h + X_N_TURNS);
    memcpy(x->body_sum.b, h + X_BODY_SUM, sizeof x->body_sum.b);
    MX_TRY(check_fields(h, x, eb));
    mx_export_lay_out(x);
    if (file_bytes != x->body_at + x->body_bytes) {
        return mx_fail(eb, MX_E_CORRUPT, "damaged: it has %llu bytes and should have %llu",
                       (unsigned long long)file_bytes,
                       (unsigned long long)(x->body_at + x->body_bytes));
    }
    return MX_OK;
}

mx_err mx_export_decode_body(mx_export *x, const uint8_t *body, mx_errbuf *eb)
{
    mx_hash128 sum = mx_xxh3_128(body, x->body_bytes);
    if (!mx_hash128_eq(&sum, &x->body_sum)) {
        return mx_fail(eb, MX_E_CORRUPT, "damaged: checksum of the tokens");
    }
    x->body = body;
    uint64_t last = 0;
    for (uint32_t i = 0; i < x->n_states; i++) {
        uint64_t at = mx_export_state_at(x, i).position;
        if (at <= last || at > x->n_tokens) {
            return mx_fail(eb, MX_E_CORRUPT, "damaged: position of a state");
        }
        last = at;
    }
    for (uint32_t i = 0; i < x->n_turns; i++) {
        mx_turn turn;
        if (!mx_turn_decode(&turn, mx_export_turns(x) + i * MX_TURN_BYTES)
            || turn.n_prompt >= x->n_tokens)
        {
            return mx_fail(eb, MX_E_CORRUPT, "damaged: a turn");
        }
    }
    return MX_OK;
}

uint32_t mx_export_tokens(const mx_export *x, uint32_t page, int32_t out[MX_PAGE_TOKENS])
{
    uint64_t first = (uint64_t)page * MX_DISK_PAGE_TOKENS, rest = x->n_tokens - first;
    uint32_t n = rest < MX_DISK_PAGE_TOKENS ? (uint32_t)rest : MX_DISK_PAGE_TOKENS;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (int32_t)mx_get_le32(x->body + 4 * (first + i));
    }
    return n;
}

static const uint8_t *sums_of(const mx_export *x)
{
    return x->body + 4 * x->n_tokens;
}

mx_hash128 mx_export_page_sum(const mx_export *x, uint32_t page)
{
    mx_hash128 sum;
    memcpy(sum.b, sums_of(x) + (size_t)page * SUM_BYTES, SUM_BYTES);
    return sum;
}

mx_export_state mx_export_state_at(const mx_export *x, uint32_t i)
{
    const uint8_t *at = sums_of(x) + (size_t)x->n_pages * SUM_BYTES + (size_t)i * STATE_BYTES;
    mx_export_state s = {.position = mx_get_le64(at)};
    memcpy(s.sum.b, at + 8, SUM_BYTES);
    return s;
}

void mx_export_put_state(mx_buf *body, const mx_export_state *s)
{
    uint8_t bytes[STATE_BYTES];
    mx_put_le64(bytes, s->position);
    memcpy(bytes + 8, s->sum.b, SUM_BYTES);
    mx_buf_append(body, bytes, sizeof bytes);
}

const uint8_t *mx_export_turns(const mx_export *x)
{
    return x->body + x->body_bytes - (size_t)x->n_turns * MX_TURN_BYTES;
}

/* ---- of which model -------------------------------------------------------------------------- */

static const char *type_name(mx_kv_type t)
{
    return t == MX_KV_F16 ? "f16" : t == MX_KV_F32 ? "f32" : "q8";
}

mx_err mx_export_check_model(const mx_export *x, const mx_export_model *m, mx_errbuf *eb)
{
    const mx_kv_shape *a = &x->model.shape, *b = &m->shape;
    char theirs[65], ours[65];
    if (!mx_hash256_eq(&x->model.fingerprint, &m->fingerprint)) {
        mx_hash256_hex(&x->model.fingerprint, theirs);
        mx_hash256_hex(&m->fingerprint, ours);
        return mx_fail(eb, MX_E_UNSUPPORTED, "it is of another model: the fingerprint of that one's "
                       "file is %.16s..., of this one's %.16s... (--model names another file)",
                       theirs, ours);
    }
    if (a->type != b->type) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "its keys and values are %s, and %s are wanted: "
                       "--kv-type %s takes it in for a server with --kv-type %s", type_name(a->type),
                       type_name(b->type), type_name(a->type), type_name(a->type));
    }
    if (!mx_hash256_eq(&x->model.numerics_id, &m->numerics_id)) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "it was computed with another arithmetic than this one: by "
                       "another version of mtplx, or with another value of --activations");
    }
    if (!mx_hash256_eq(&x->model.bare_root, &m->bare_root) || a->n_layers != b->n_layers
        || a->n_kv_heads != b->n_kv_heads || a->head_dim != b->head_dim
        || a->state_bytes != b->state_bytes)
    {
        return mx_fail(eb, MX_E_UNSUPPORTED, "it was computed with other settings of the same model");
    }
    return MX_OK;
}

/* ---- out of a folder ------------------------------------------------------------------------- */

typedef struct writing {
    mx_cold_folder folder;
    mx_object_reader reader;
    mx_disk_manifest m;
    const mx_export_model *model;
    int fd;
    mx_export x;
    mx_buf tokens, sums, states; /* in the end all in tokens: the body */
} writing;

static mx_err append(writing *w, const uint8_t *bytes, size_t n, mx_errbuf *eb)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = write(w->fd, bytes + at, n - at);
        if (k < 0 && errno != EINTR) {
            return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot write the file");
        }
        at += k < 0 ? 0 : (size_t)k;
    }
    return MX_OK;
}

static mx_err read_object(writing *w, mx_cold_object o, const mx_hash256 *id, mx_disk_page *page,
                          const uint8_t **payload, mx_errbuf *eb)
{
    char xx[3], name[MX_COLD_NAME_CAP];
    uint64_t n_file;
    mx_err err;
    mx_cold_object_name(o, id, xx, name);
    const mx_cold_folder *f = &w->folder;
    int dir = mx_cold_open_dir(f->ops, mx_cold_objects_fd(f, o), xx, false, &err, eb);
    if (dir < 0) {
        return err;
    }
    err = mx_object_read(&w->reader, dir, name, o, id, page, payload, &n_file, eb);
    close(dir);
    return err;
}

/* Is it what has to stand in this place of this chain of this model? */
static bool fits(const writing *w, const mx_disk_page *p, const mx_hash256 *parent, uint64_t first,
                 uint64_t payload_bytes)
{
    return mx_hash256_eq(&p->root, &w->m.root) && mx_hash256_eq(&p->parent, parent)
           && p->first_position == first && p->payload_bytes == payload_bytes
           && p->kv_type == mx_disk_kv_type(w->model->shape.type);
}

static const mx_hash256 *parent_of(const writing *w, uint64_t page)
{
    return page == 0 ? &w->m.root : &w->m.page_ids[page - 1];
}

static mx_err copy_page(writing *w, uint32_t i, mx_errbuf *eb)
{
    uint64_t first = (uint64_t)i * MX_DISK_PAGE_TOKENS, rest = w->m.n_tokens - first;
    uint32_t n = rest < MX_DISK_PAGE_TOKENS ? (uint32_t)rest : MX_DISK_PAGE_TOKENS;
    mx_disk_page page;
    const uint8_t *payload;
    mx_errbuf why = {{0}};
    mx_err err = read_object(w, MX_COLD_PAGE, &w->m.page_ids[i], &page, &payload, &why);
    if (err == MX_E_NOT_FOUND) {
        return mx_fail(eb, err, "page %u of %u is not in the folder any more", i + 1, w->m.n_pages);
    }
    if (err == MX_OK && page.lacks_local) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "page %u of %u is stored without what only the tokens right "
                       "behind it see (sliding window), so the whole cannot be exported", i + 1,
                       w->m.n_pages);
    }
    if (err == MX_OK
        && (!fits(w, &page, parent_of(w, i), first, mx_disk_payload_bytes(&w->model->shape, n))
            || page.n_tokens != n))
    {
        err = mx_fail(&why, MX_E_CORRUPT, "it does not belong there");
    }
    if (err != MX_OK) {
        return mx_fail(eb, err, "page %u of %u cannot be used: %s (`mtplx cache verify --quarantine`)",
                       i + 1, w->m.n_pages, why.text);
    }
    mx_hash128 sum = mx_xxh3_128(payload, (size_t)page.payload_bytes);
    for (uint32_t k = 0; k < n; k++) {
        uint8_t id[4];
        mx_put_le32(id, (uint32_t)page.tokens[k]);
        mx_buf_append(&w->tokens, id, sizeof id);
    }
    mx_buf_append(&w->sums, sum.b, sizeof sum.b);
    return append(w, payload, (size_t)page.payload_bytes, eb);
}

/* A state that is gone or does not fit is a longer way back, no more; a damaged one is said. */
static mx_err copy_state(writing *w, const mx_hash256 *id, mx_errbuf *eb)
{
    mx_disk_page s;
    const uint8_t *payload;
    mx_errbuf why = {{0}};
    mx_err err = read_object(w, MX_COLD_STATE, id, &s, &payload, &why);
    if (err == MX_E_NOT_FOUND) {
        return MX_OK;
    }
    if (err != MX_OK) {
        return mx_fail(eb, err, "a state cannot be used: %s (`mtplx cache verify --quarantine`)",
                       why.text);
    }
    mx_export_state out = {.position = s.first_position + s.n_tokens};
    bool is_ours = out.position <= w->m.n_tokens
                   && fits(w, &s, parent_of(w, s.first_position / MX_DISK_PAGE_TOKENS),
                           s.first_position, w->model->shape.state_bytes);
    for (uint32_t k = 0; is_ours && k < s.n_tokens; k++) {
        const uint8_t *ids = (const uint8_t *)w->tokens.ptr + 4 * s.first_position;
        is_ours = mx_get_le32(ids + 4 * k) == (uint32_t)s.tokens[k];
    }
    uint64_t last = w->states.len == 0 ? 0
                                       : mx_get_le64((const uint8_t *)w->states.ptr + w->states.len
                                                     - STATE_BYTES);
    if (!is_ours || out.position <= last) {
        return MX_OK;
    }
    out.sum = mx_xxh3_128(payload, w->model->shape.state_bytes);
    mx_export_put_state(&w->states, &out);
    w->x.n_states++;
    return append(w, payload, w->model->shape.state_bytes, eb);
}

static mx_err finish(writing *w, mx_errbuf *eb)
{
    uint8_t header[MX_EXPORT_HEADER_BYTES];
    mx_buf *body = &w->tokens;
    mx_export_lay_out(&w->x);
    mx_buf_append(body, w->sums.ptr, w->sums.len);
    if (w->states.len > 0) {
        mx_buf_append(body, w->states.ptr, w->states.len);
    }
    if (w->m.n_turns > 0) {
        mx_buf_append(body, w->m.turns, (size_t)w->m.n_turns * MX_TURN_BYTES);
    }
    if (body->failed || w->sums.failed || w->states.failed) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    assert(body->len == w->x.body_bytes);
    w->x.body = (const uint8_t *)body->ptr;
    MX_TRY(append(w, w->x.body, w->x.body_bytes, eb));
    mx_export_encode_header(&w->x, header);
    if (pwrite(w->fd, header, sizeof header, 0) != (ssize_t)sizeof header || fsync(w->fd) != 0) {
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot write the file");
    }
    return MX_OK;
}

static mx_err write_open(writing *w, mx_errbuf *eb)
{
    static const uint8_t blank[MX_EXPORT_HEADER_BYTES];
    w->x = (mx_export){.model = *w->model,
                       .is_turn = w->m.entry_kind == MX_DISK_ENTRY_TURN,
                       .n_tokens = w->m.n_tokens,
                       .n_pages = w->m.n_pages,
                       .n_turns = w->m.n_turns};
    MX_TRY(append(w, blank, sizeof blank, eb));
    for (uint32_t i = 0; i < w->m.n_pages; i++) {
        MX_TRY(copy_page(w, i, eb));
        if (w->tokens.failed) {
            return mx_fail(eb, MX_E_NOMEM, "out of memory");
        }
    }
    for (uint32_t i = 0; i < w->m.n_states && w->model->shape.state_bytes > 0; i++) {
        MX_TRY(copy_state(w, &w->m.state_ids[i], eb));
    }
    return finish(w, eb);
}

static mx_err write_new(writing *w, const char *file, mx_errbuf *eb)
{
    w->fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (w->fd < 0 && errno == EEXIST) {
        return mx_fail(eb, MX_E_IO, "cannot make %.200s: it is there already; name a new file, or remove "
                       "it", file);
    }
    if (w->fd < 0) {
        return mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot make %.200s", file);
    }
    mx_err err = write_open(w, eb);
    if (close(w->fd) != 0 && err == MX_OK) {
        err = mx_fail_errno(eb, mx_cold_errno(errno), errno, "cannot write %.200s", file);
    }
    if (err != MX_OK) {
        unlink(file);
    }
    return err;
}

/* Opens the model's folder: ours alone, or with a key whoever's. */
static mx_err open_folder(writing *w, const char *dir, const mx_hash256 *key,
                          const mx_hash256 *root, mx_errbuf *eb)
{
    bool has_states = w->model->shape.state_bytes > 0;
    w->reader.trust = (mx_cold_trust){&mx_cold_real_fileops, key, false, NULL};
    mx_cold_folder_init(&w->folder, w->reader.trust.ops, dir, root, has_states);
    mx_err err = mx_cold_folder_ready(&w->folder, false, eb);
    if (err == MX_E_DENIED && key != NULL) {
        w->reader.trust = (mx_cold_trust){&mx_cold_shared_fileops, key, true, NULL};
        mx_cold_folder_init(&w->folder, w->reader.trust.ops, dir, root, has_states);
        err = mx_cold_folder_ready(&w->folder, false, eb);
    }
    return err;
}

mx_err mx_cold_export(const char *dir, const mx_hash256 *key, const mx_hash256 *root,
                      const mx_hash256 *id, const mx_export_model *model, const char *file,
                      mx_export_counts *out, mx_errbuf *eb)
{
    writing w = {.model = model};
    char name[MX_COLD_NAME_CAP];
    uint8_t *copy = NULL;
    *out = (mx_export_counts){0};
    MX_TRY(open_folder(&w, dir, key, root, eb));
    mx_cold_session_name(id, name);
    const mx_cold_trust *t = &w.reader.trust;
    mx_err err = mx_cold_read_manifest(t->ops, w.folder.sessions_fd, name, id, key, t->needs_tag,
                                       &w.m, &copy, eb);
    if (err == MX_OK) {
        err = write_new(&w, file, eb);
    }
    if (err == MX_OK) {
        *out = (mx_export_counts){w.x.body_at + w.x.body_bytes, w.x.n_tokens, w.x.n_pages,
                                  w.x.n_states};
    }
    mx_free(copy);
    mx_buf_free(&w.tokens);
    mx_buf_free(&w.sums);
    mx_buf_free(&w.states);
    mx_object_reader_free(&w.reader);
    mx_cold_folder_close(&w.folder);
    return err;
}
