/* SPDX-License-Identifier: MIT
 *
 * gguf_file.h: what the files of this folder share: the opened file, its index, a bounded cursor.
 *
 * Private to src/gguf. An mx_gguf is built by mx_gguf_open and does not change afterwards.
 */
#ifndef MX_GGUF_FILE_H
#define MX_GGUF_FILE_H

#include "gguf/gguf.h"

#include <sys/stat.h>

/* Value types as numbered in the file. */
enum {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
    GGUF_TYPE_COUNT
};

/* One metadata entry; `data` lies in the header, its `n_bytes` have been checked. */
typedef struct gguf_kv {
    mx_str key;
    uint32_t type;      /* of the value, or of the elements of an array; never GGUF_ARRAY */
    bool is_array;
    uint64_t count;     /* 1 for a scalar */
    const uint8_t *data;
    size_t n_bytes;
} gguf_kv;

/* Open addressing: slots hold index + 1, 0 is empty; n_slots is a power of two > 2 * entries. */
typedef struct gguf_index {
    uint32_t *slots;
    size_t n_slots;
} gguf_index;

struct mx_gguf {
    const uint8_t *bytes;   /* borrowed from the caller; NULL when there is a file */
    size_t n_bytes;         /* of the whole file */
    uint8_t *header_copy;   /* NULL when the bytes are borrowed */
    const uint8_t *header;  /* what keys, values and names point into */
    size_t n_header;
    int fd;                 /* -1 when the bytes are borrowed */
    struct stat st;         /* at open; zeros when the bytes are borrowed */

    /* Set by parsing; n_split 1 = not split. */
    uint64_t n_split, split_no, split_tensors;
    /* Of part 1 when the model is split: the others, whose tensors are in `tensors`, too. */
    struct mx_gguf **more;
    size_t n_more;

    gguf_kv *kvs;
    size_t n_kvs;
    gguf_index kv_index;
    mx_gguf_tensor *tensors;
    uint64_t *offsets;      /* [n_tensors] relative to the data section; while opening only */
    size_t n_tensors;
    gguf_index tensor_index;
};

/* Bytes [at, end) are still unread. */
typedef struct gguf_cursor {
    const uint8_t *at;
    const uint8_t *end;
    bool ran_out; /* something was asked for that lies beyond the end */
} gguf_cursor;

MX_INLINE size_t gguf_left(const gguf_cursor *c)
{
    return (size_t)(c->end - c->at);
}

/* Whether n more bytes are there; it is remembered when they are not. */
MX_INLINE bool gguf_has(gguf_cursor *c, uint64_t n)
{
    const bool has = n <= gguf_left(c);
    c->ran_out = c->ran_out || !has;
    return has;
}

MX_INLINE MX_MUST_CHECK bool gguf_read_u32(gguf_cursor *c, uint32_t *out)
{
    if (!gguf_has(c, 4)) {
        return false;
    }
    *out = mx_get_le32(c->at);
    c->at += 4;
    return true;
}

MX_INLINE MX_MUST_CHECK bool gguf_read_u64(gguf_cursor *c, uint64_t *out)
{
    if (!gguf_has(c, 8)) {
        return false;
    }
    *out = mx_get_le64(c->at);
    c->at += 8;
    return true;
}

MX_INLINE MX_MUST_CHECK bool gguf_read_str(gguf_cursor *c, mx_str *out)
{
    uint64_t len;
    if (!gguf_read_u64(c, &len) || !gguf_has(c, len)) {
        return false;
    }
    *out = (mx_str){(const char *)c->at, (size_t)len};
    c->at += len;
    return true;
}

/* Bytes of a value of a fixed-size type, 0 for strings, arrays and unknown types. */
size_t gguf_type_bytes(uint32_t type);
/* "u32", "string", ...; "unknown type". */
const char *gguf_type_name(uint32_t type);

/* Steps over `count` values of a type; false when they do not fit into what remains. */
bool gguf_skip_values(gguf_cursor *c, uint32_t type, uint64_t count) MX_MUST_CHECK;

/* Fills g from the bytes of its header. Everything it allocates hangs on g. */
mx_err gguf_parse(mx_gguf *g, mx_errbuf *eb);
/* How many bytes the header has, which begins at `bytes`; allocates nothing. After a failure *ran_out
 * tells whether it goes on behind the n bytes. */
mx_err gguf_measure_header(const uint8_t *bytes, size_t n, size_t *n_header, bool *ran_out,
                           mx_errbuf *eb);

/* Joins parts that were opened one by one: checks that they belong together and gives parts[0] the
 * tensors of all. parts[0] owns the others from then on; parts[1..] become NULL, also on failure. */
mx_err gguf_join(mx_gguf **parts, size_t n_parts, mx_errbuf *eb);
/* Puts the tensors of g->more behind those of g. */
mx_err gguf_merge_tensors(mx_gguf *g, mx_errbuf *eb);
/* The path of part `no` (from 0) when `path` names part `given` of n; NULL with *eb set when it does
 * not end as such a name must, or for lack of memory. Freed with mx_free. */
char *gguf_part_path(const char *path, uint64_t given, uint64_t no, uint64_t n, mx_errbuf *eb);

/* The entry, or NULL. */
const gguf_kv *gguf_find_kv(const mx_gguf *g, const char *key);

#endif
