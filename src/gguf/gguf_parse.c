/* SPDX-License-Identifier: MIT
 *
 * Reads the header of a GGUF file: metadata entries, then tensor descriptions.
 *
 *   magic version n_tensors n_kv | n_kv x (key type value)
 *   | n_tensors x (name dims type offset) | padding | data
 *
 * Nothing in it is believed. A count is compared with the bytes that remain, at the smallest size
 * its items can have, before memory is taken for it; a string length before the string is touched.
 * Names are found through a hash table, so a file with many entries costs linear time.
 *
 * Tensors may stand anywhere in the data section as long as they are aligned, inside the file and
 * apart from each other. That is less than what some readers ask for (offsets that are the running
 * sum of the sizes), and enough for safety.
 */
#include "gguf/gguf_file.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>

enum {
    MAX_ENTRIES = 1 << 16,  /* of keys, and of tensors: real files have at most a few thousand */
    MAX_PARTS = 1024,
    MAX_NAME_BYTES = 63,    /* of a tensor; other readers hold names in 64 bytes with a NUL */
    MIN_KV_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 4 + 4 + 8,
    DEFAULT_ALIGNMENT = 32,
};

static const struct {
    const char *name;
    size_t bytes;
} types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},       [GGUF_U32] = {"u32", 4},     [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},       [GGUF_BOOL] = {"bool", 1},   [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0},   [GGUF_U64] = {"u64", 8},     [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

size_t gguf_type_bytes(uint32_t type)
{
    return type < GGUF_TYPE_COUNT ? types[type].bytes : 0;
}

const char *gguf_type_name(uint32_t type)
{
    return type < GGUF_TYPE_COUNT ? types[type].name : "unknown type";
}

/* A name from the file, fit for an error sentence. */
typedef struct safe_name {
    char text[80];
} safe_name;

static const char *show(safe_name *s, mx_str name)
{
    return mx_log_safe(s->text, sizeof s->text, name.ptr, name.len);
}

bool gguf_skip_values(gguf_cursor *c, uint32_t type, uint64_t count)
{
    size_t each = gguf_type_bytes(type);
    if (each > 0) {
        if (count > SIZE_MAX / each || !gguf_has(c, count * each)) {
            c->ran_out = true;
            return false;
        }
        c->at += count * each;
        return true;
    }
    /* Strings: each takes at least 8 bytes, so a false count ends the loop soon. */
    for (uint64_t i = 0; i < count; i++) {
        mx_str s;
        if (!gguf_read_str(c, &s)) {
            return false;
        }
    }
    return true;
}

static mx_err cut_short(mx_errbuf *eb, const char *what, uint64_t i)
{
    return mx_fail(eb, MX_E_FORMAT,
                   "the file ends inside its header, in %s %llu: it is truncated or damaged, "
                   "download it again", what, (unsigned long long)i);
}

/* ---- the fixed beginning --------------------------------------------------------------------- */

static mx_err check_magic(gguf_cursor *c, mx_errbuf *eb)
{
    uint32_t version;
    if (gguf_left(c) < 8) {
        return mx_fail(eb, MX_E_FORMAT, "not a GGUF file: it has only %zu bytes", gguf_left(c));
    }
    const uint8_t *p = c->at;
    if (memcmp(p, "GGUF", 4) != 0) {
        if (memcmp(p, "version ", 8) == 0) {
            return mx_fail(eb, MX_E_FORMAT, "not a GGUF file but a Git LFS pointer: fetch the real "
                           "file with `git lfs pull`");
        }
        return mx_fail(eb, MX_E_FORMAT, "not a GGUF file: it begins with %02X %02X %02X %02X "
                       "instead of 47 47 55 46", p[0], p[1], p[2], p[3]);
    }
    c->at += 4;
    if (!gguf_read_u32(c, &version)) {
        return cut_short(eb, "field", 0);
    }
    if (version != 0 && (version & 0xFFFF) == 0) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "this GGUF file is big-endian: convert it to "
                       "little-endian");
    }
    if (version != 2 && version != 3) {
        return mx_fail(eb, MX_E_UNSUPPORTED, "GGUF version %u is not supported (2 and 3 are): "
                       "convert the model again with a current tool", version);
    }
    return MX_OK;
}

static mx_err read_counts(gguf_cursor *c, uint64_t *n_tensors, uint64_t *n_kvs, mx_errbuf *eb)
{
    MX_TRY(check_magic(c, eb));
    if (!gguf_read_u64(c, n_tensors) || !gguf_read_u64(c, n_kvs)) {
        return cut_short(eb, "field", 1);
    }
    if (*n_tensors > MAX_ENTRIES || *n_kvs > MAX_ENTRIES) {
        return mx_fail(eb, MX_E_LIMIT, "the file claims %llu tensors and %llu keys; at most %d of "
                       "each are read", (unsigned long long)*n_tensors, (unsigned long long)*n_kvs,
                       (int)MAX_ENTRIES);
    }
    /* Both are small now: the sums cannot overflow. */
    if (!gguf_has(c, *n_kvs * MIN_KV_BYTES + *n_tensors * MIN_TENSOR_BYTES)) {
        return mx_fail(eb, MX_E_FORMAT, "the file claims %llu tensors and %llu keys but has only "
                       "%zu bytes left for them: it is truncated or damaged",
                       (unsigned long long)*n_tensors, (unsigned long long)*n_kvs, gguf_left(c));
    }
    return MX_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

static mx_err read_kv(gguf_cursor *c, uint64_t i, gguf_kv *kv, mx_errbuf *eb)
{
    safe_name s;
    *kv = (gguf_kv){.count = 1};
    if (!gguf_read_str(c, &kv->key) || !gguf_read_u32(c, &kv->type)) {
        return cut_short(eb, "metadata key", i);
    }
    if (kv->key.len == 0) {
        return mx_fail(eb, MX_E_FORMAT, "metadata key %llu is empty", (unsigned long long)i);
    }
    if (kv->type == GGUF_ARRAY) {
        kv->is_array = true;
        if (!gguf_read_u32(c, &kv->type) || !gguf_read_u64(c, &kv->count)) {
            return cut_short(eb, "metadata key", i);
        }
        if (kv->type == GGUF_ARRAY) {
            return mx_fail(eb, MX_E_UNSUPPORTED, "key \"%s\" is an array of arrays, which is not "
                           "supported", show(&s, kv->key));
        }
    }
    if (kv->type >= GGUF_TYPE_COUNT) {
        return mx_fail(eb, MX_E_FORMAT, "key \"%s\" has the unknown value type %u",
                       show(&s, kv->key), kv->type);
    }
    kv->data = c->at;
    if (!gguf_skip_values(c, kv->type, kv->count)) {
        return mx_fail(eb, MX_E_FORMAT, "key \"%s\" does not fit into the file (%llu values of "
                       "type %s, %zu bytes left): it is truncated or damaged", show(&s, kv->key),
                       (unsigned long long)kv->count, gguf_type_name(kv->type),
                       (size_t)(c->end - kv->data));
    }
    kv->n_bytes = (size_t)(c->at - kv->data);
    return MX_OK;
}

static mx_err refuse_type(uint32_t type, mx_str name, mx_errbuf *eb)
{
    safe_name s;
    const char *foreign = mx_qtype_foreign_name(type);
    if (foreign == NULL) {
        return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\" has the unknown type %u", show(&s, name),
                       type);
    }
    return mx_fail(eb, MX_E_UNSUPPORTED, "tensor \"%s\" is stored as %s, which is not supported; "
                   "supported are %s", show(&s, name), foreign, mx_qtype_list());
}

/* ne[0] * ... as bytes; false when the product or the size overflows. */
static bool tensor_bytes(const mx_gguf_tensor *t, size_t *n_bytes)
{
    uint64_t elems = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        if (__builtin_mul_overflow(elems, t->ne[d], &elems) || elems > INT64_MAX) {
            return false;
        }
    }
    return mx_mul_ok((size_t)(elems / t->type->block_elems), t->type->block_bytes, n_bytes);
}

static mx_err read_tensor(gguf_cursor *c, uint64_t i, mx_gguf_tensor *t, uint64_t *offset,
                          mx_errbuf *eb)
{
    safe_name s;
    *t = (mx_gguf_tensor){0};
    if (!gguf_read_str(c, &t->name) || !gguf_read_u32(c, &t->n_dims)) {
        return cut_short(eb, "tensor", i);
    }
    if (t->name.len == 0 || t->name.len > MAX_NAME_BYTES) {
        return mx_fail(eb, MX_E_FORMAT, "the name of tensor %llu has %zu bytes; 1 to %d are "
                       "allowed", (unsigned long long)i, t->name.len, (int)MAX_NAME_BYTES);
    }
    if (t->n_dims > MX_GGUF_MAX_DIMS) {
        return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\" has %u dimensions; at most %d are allowed",
                       show(&s, t->name), t->n_dims, (int)MX_GGUF_MAX_DIMS);
    }
    for (uint32_t d = 0; d < MX_GGUF_MAX_DIMS; d++) {
        t->ne[d] = 1;
        if (d < t->n_dims && !gguf_read_u64(c, &t->ne[d])) {
            return cut_short(eb, "tensor", i);
        }
    }
    uint32_t type;
    if (!gguf_read_u32(c, &type) || !gguf_read_u64(c, offset)) {
        return cut_short(eb, "tensor", i);
    }
    t->type = mx_qtype_get(type);
    if (t->type == NULL) {
        return refuse_type(type, t->name, eb);
    }
    if (t->ne[0] % t->type->block_elems != 0) {
        return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\": a row of %llu elements is no whole number "
                       "of %s blocks of %u", show(&s, t->name), (unsigned long long)t->ne[0],
                       t->type->name, t->type->block_elems);
    }
    if (!tensor_bytes(t, &t->n_bytes)) {
        return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\": the product of its dimensions is too large",
                       show(&s, t->name));
    }
    return MX_OK;
}

static mx_err pass_header(gguf_cursor *c, mx_errbuf *eb)
{
    uint64_t n_tensors, n_kvs;
    MX_TRY(read_counts(c, &n_tensors, &n_kvs, eb));
    for (uint64_t i = 0; i < n_kvs; i++) {
        gguf_kv kv;
        MX_TRY(read_kv(c, i, &kv, eb));
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        mx_gguf_tensor t;
        uint64_t offset;
        MX_TRY(read_tensor(c, i, &t, &offset, eb));
    }
    return MX_OK;
}

mx_err gguf_measure_header(const uint8_t *bytes, size_t n, size_t *n_header, bool *ran_out,
                           mx_errbuf *eb)
{
    gguf_cursor c = {.at = bytes, .end = bytes + n};
    const mx_err e = pass_header(&c, eb);
    *ran_out = c.ran_out;
    *n_header = (size_t)(c.at - bytes);
    return e;
}

/* ---- the index ------------------------------------------------------------------------------- */

static uint64_t hash_name(mx_str s)
{
    mx_hash128 h = mx_xxh3_128(s.ptr, s.len);
    return mx_get_le64(h.b);
}

static mx_err index_create(gguf_index *x, size_t n_entries)
{
    size_t n = 8;
    while (n < 2 * n_entries + 1) {
        n *= 2;
    }
    x->slots = mx_calloc(n, sizeof *x->slots);
    x->n_slots = x->slots != NULL ? n : 0;
    return x->slots != NULL ? MX_OK : MX_E_NOMEM;
}

/* The name of entry i of either table. */
static mx_str name_of(const mx_gguf *g, const gguf_index *x, size_t i)
{
    return x == &g->kv_index ? g->kvs[i].key : g->tensors[i].name;
}

/* The slot that holds `name`, or the empty slot where it belongs. */
static uint32_t *find_slot(const mx_gguf *g, const gguf_index *x, mx_str name)
{
    size_t mask = x->n_slots - 1;
    for (size_t at = (size_t)hash_name(name) & mask;; at = (at + 1) & mask) {
        uint32_t *slot = &x->slots[at];
        if (*slot == 0 || mx_str_eq(name_of(g, x, *slot - 1), name)) {
            return slot;
        }
    }
}

/* Enters entry i; false when its name is there already. */
static bool index_add(mx_gguf *g, gguf_index *x, size_t i)
{
    uint32_t *slot = find_slot(g, x, name_of(g, x, i));
    if (*slot != 0) {
        return false;
    }
    *slot = (uint32_t)(i + 1);
    return true;
}

const gguf_kv *gguf_find_kv(const mx_gguf *g, const char *key)
{
    uint32_t slot = *find_slot(g, &g->kv_index, mx_str_of(key));
    return slot != 0 ? &g->kvs[slot - 1] : NULL;
}

const mx_gguf_tensor *mx_gguf_find_tensor(const mx_gguf *g, const char *name)
{
    uint32_t slot = *find_slot(g, &g->tensor_index, mx_str_of(name));
    return slot != 0 ? &g->tensors[slot - 1] : NULL;
}

/* ---- the data section ------------------------------------------------------------------------ */

static int by_offset(const void *a, const void *b)
{
    const mx_gguf_tensor *x = *(const mx_gguf_tensor *const *)a;
    const mx_gguf_tensor *y = *(const mx_gguf_tensor *const *)b;
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

static mx_err check_overlap(const mx_gguf *g, mx_errbuf *eb)
{
    const mx_gguf_tensor **order = mx_calloc(g->n_tensors, sizeof *order);
    if (order == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for the tensor list");
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        order[i] = &g->tensors[i];
    }
    qsort(order, g->n_tensors, sizeof *order, by_offset);
    mx_err e = MX_OK;
    for (size_t i = 1; i < g->n_tensors && e == MX_OK; i++) {
        const mx_gguf_tensor *a = order[i - 1];
        const mx_gguf_tensor *b = order[i];
        if (b->offset - a->offset < a->n_bytes) {
            safe_name s, z;
            e = mx_fail(eb, MX_E_FORMAT, "tensors \"%s\" and \"%s\" overlap in the file",
                        show(&s, a->name), show(&z, b->name));
        }
    }
    mx_free(order);
    return e;
}

static mx_err read_alignment(const mx_gguf *g, uint64_t *alignment, mx_errbuf *eb)
{
    *alignment = DEFAULT_ALIGNMENT;
    if (!mx_gguf_has(g, "general.alignment")) {
        return MX_OK;
    }
    MX_TRY(mx_gguf_get_u64(g, "general.alignment", alignment, eb));
    if (*alignment == 0 || (*alignment & (*alignment - 1)) != 0) {
        return mx_fail(eb, MX_E_FORMAT, "general.alignment is %llu, which is no power of two",
                       (unsigned long long)*alignment);
    }
    return MX_OK;
}

static mx_err place_tensors(mx_gguf *g, mx_errbuf *eb)
{
    uint64_t alignment;
    MX_TRY(read_alignment(g, &alignment, eb));
    if (g->n_tensors == 0) {
        return MX_OK; /* a vocabulary file may end without the padding */
    }
    uint64_t start = (g->n_header + (alignment - 1)) & ~(alignment - 1);
    if (start < g->n_header || start > g->n_bytes) {
        return mx_fail(eb, MX_E_FORMAT, "the file ends before its tensor data: it is truncated or "
                       "damaged, download it again");
    }
    uint64_t room = g->n_bytes - start;
    for (size_t i = 0; i < g->n_tensors; i++) {
        mx_gguf_tensor *t = &g->tensors[i];
        uint64_t offset = g->offsets[i];
        safe_name s;
        if (offset % alignment != 0) {
            return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\" starts at %llu, which is no multiple "
                           "of %llu", show(&s, t->name), (unsigned long long)offset,
                           (unsigned long long)alignment);
        }
        if (offset > room || t->n_bytes > room - offset) {
            return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\" lies beyond the end of the file (%zu "
                           "bytes at %llu of %llu): the file is truncated or damaged, "
                           "download it again", show(&s, t->name), t->n_bytes,
                           (unsigned long long)offset, (unsigned long long)room);
        }
        t->offset = start + offset;
    }
    return check_overlap(g, eb);
}

static mx_err read_split(mx_gguf *g, mx_errbuf *eb)
{
    g->n_split = 1;
    if (!mx_gguf_has(g, "split.count")) {
        return MX_OK;
    }
    MX_TRY(mx_gguf_get_u64(g, "split.count", &g->n_split, eb));
    if (g->n_split <= 1) {
        g->n_split = 1;
        return MX_OK;
    }
    if (g->n_split > MAX_PARTS) {
        return mx_fail(eb, MX_E_LIMIT, "the model is split into %llu files; at most %d are read",
                       (unsigned long long)g->n_split, (int)MAX_PARTS);
    }
    MX_TRY(mx_gguf_get_u64(g, "split.no", &g->split_no, eb));
    MX_TRY(mx_gguf_get_u64(g, "split.tensors.count", &g->split_tensors, eb));
    if (g->split_no >= g->n_split) {
        return mx_fail(eb, MX_E_FORMAT, "split.no is %llu in a model of %llu parts",
                       (unsigned long long)g->split_no, (unsigned long long)g->n_split);
    }
    return MX_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static mx_err parse_kvs(mx_gguf *g, gguf_cursor *c, size_t n, mx_errbuf *eb)
{
    g->kvs = mx_calloc(n, sizeof *g->kvs);
    if (g->kvs == NULL || index_create(&g->kv_index, n) != MX_OK) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for %zu metadata keys", n);
    }
    for (size_t i = 0; i < n; i++) {
        MX_TRY(read_kv(c, i, &g->kvs[i], eb));
        g->n_kvs = i + 1;
        if (!index_add(g, &g->kv_index, i)) {
            safe_name s;
            return mx_fail(eb, MX_E_FORMAT, "key \"%s\" stands in the file twice",
                           show(&s, g->kvs[i].key));
        }
    }
    return MX_OK;
}

static mx_err parse_tensors(mx_gguf *g, gguf_cursor *c, size_t n, mx_errbuf *eb)
{
    g->tensors = mx_calloc(n, sizeof *g->tensors);
    g->offsets = mx_calloc(n, sizeof *g->offsets);
    if (g->tensors == NULL || g->offsets == NULL || index_create(&g->tensor_index, n) != MX_OK) {
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for %zu tensor descriptions", n);
    }
    for (size_t i = 0; i < n; i++) {
        MX_TRY(read_tensor(c, i, &g->tensors[i], &g->offsets[i], eb));
        g->n_tensors = i + 1;
        if (!index_add(g, &g->tensor_index, i)) {
            safe_name s;
            return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\" stands in the file twice",
                           show(&s, g->tensors[i].name));
        }
    }
    return MX_OK;
}

mx_err gguf_merge_tensors(mx_gguf *g, mx_errbuf *eb)
{
    size_t n = g->n_tensors;
    for (size_t i = 0; i < g->n_more; i++) {
        n += g->more[i]->n_tensors; /* each is bounded, and so is their number */
    }
    if (n > MAX_ENTRIES) {
        return mx_fail(eb, MX_E_LIMIT, "the parts have %zu tensors; at most %d are read", n,
                       (int)MAX_ENTRIES);
    }
    mx_gguf_tensor *all = mx_calloc(n, sizeof *all);
    gguf_index index;
    if (all == NULL || index_create(&index, n) != MX_OK) {
        mx_free(all);
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for %zu tensor descriptions", n);
    }
    if (g->n_tensors > 0) {
        memcpy(all, g->tensors, g->n_tensors * sizeof *all);
    }
    size_t at = g->n_tensors;
    for (size_t i = 0; i < g->n_more; i++) {
        const mx_gguf *part = g->more[i];
        if (part->n_tensors > 0) {
            memcpy(all + at, part->tensors, part->n_tensors * sizeof *all);
        }
        for (size_t k = 0; k < part->n_tensors; k++) {
            all[at + k].part = i + 1;
        }
        at += part->n_tensors;
    }
    mx_free(g->tensors);
    mx_free(g->tensor_index.slots);
    g->tensors = all;
    g->tensor_index = index;
    g->n_tensors = n;
    for (size_t i = 0; i < n; i++) {
        if (!index_add(g, &g->tensor_index, i)) {
            safe_name s;
            return mx_fail(eb, MX_E_FORMAT, "tensor \"%s\" stands in two parts: they are not of one "
                           "model", show(&s, g->tensors[i].name));
        }
    }
    return MX_OK;
}

mx_err gguf_parse(mx_gguf *g, mx_errbuf *eb)
{
    gguf_cursor c = {.at = g->header, .end = g->header + g->n_header};
    uint64_t n_tensors, n_kvs;
    MX_TRY(read_counts(&c, &n_tensors, &n_kvs, eb));
    MX_TRY(parse_kvs(g, &c, (size_t)n_kvs, eb));
    MX_TRY(read_split(g, eb));
    MX_TRY(parse_tensors(g, &c, (size_t)n_tensors, eb));
    g->n_header = (size_t)(c.at - g->header);
    mx_err e = place_tensors(g, eb);
    mx_free(g->offsets);
    g->offsets = NULL;
    return e;
}
