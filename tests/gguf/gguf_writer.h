/* SPDX-License-Identifier: MIT
 *
 * gguf_writer.h: writes small GGUF files for tests, well-formed or not.
 *
 * Counts are patched into the head by gw_counts, so a test may claim what it did not write.
 */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include "base/buf.h"

enum {
    GW_U8, GW_I8, GW_U16, GW_I16, GW_U32, GW_I32, GW_F32, GW_BOOL, GW_STR, GW_ARR, GW_U64, GW_I64,
    GW_F64
};

typedef struct gguf_writer {
    mx_buf b;
    uint64_t n_tensors, n_kvs;
} gguf_writer;

MX_UNUSED static void gw_int(gguf_writer *w, uint64_t v, size_t bytes)
{
    uint8_t le[8];
    mx_put_le64(le, v);
    mx_buf_append(&w->b, le, bytes);
}

MX_UNUSED static void gw_str(gguf_writer *w, const char *s, size_t len)
{
    gw_int(w, len, 8);
    mx_buf_append(&w->b, s, len);
}

MX_UNUSED static void gw_counts(gguf_writer *w, uint64_t n_tensors, uint64_t n_kvs)
{
    mx_put_le64((uint8_t *)w->b.ptr + 8, n_tensors);
    mx_put_le64((uint8_t *)w->b.ptr + 16, n_kvs);
}

MX_UNUSED static void gw_begin(gguf_writer *w, uint32_t version)
{
    *w = (gguf_writer){0};
    mx_buf_str(&w->b, "GGUF");
    gw_int(w, version, 4);
    gw_int(w, 0, 8);
    gw_int(w, 0, 8);
}

/* A key and its type; the value follows by gw_int or gw_str. */
MX_UNUSED static void gw_key(gguf_writer *w, const char *key, uint32_t type)
{
    gw_str(w, key, strlen(key));
    gw_int(w, type, 4);
    gw_counts(w, w->n_tensors, ++w->n_kvs);
}

MX_UNUSED static void gw_kv_int(gguf_writer *w, const char *key, uint32_t type, uint64_t v)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    gw_key(w, key, type);
    gw_int(w, v, bytes[type]);
}

MX_UNUSED static void gw_kv_str(gguf_writer *w, const char *key, const char *value)
{
    gw_key(w, key, GW_STR);
    gw_str(w, value, strlen(value));
}

MX_UNUSED static void gw_kv_array(gguf_writer *w, const char *key, uint32_t elem_type,
                                  uint64_t count)
{
    gw_key(w, key, GW_ARR);
    gw_int(w, elem_type, 4);
    gw_int(w, count, 8);
}

MX_UNUSED static void gw_tensor(gguf_writer *w, const char *name, uint32_t n_dims,
                                const uint64_t *ne, uint32_t type, uint64_t offset)
{
    gw_str(w, name, strlen(name));
    gw_int(w, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++) {
        gw_int(w, ne[d], 8);
    }
    gw_int(w, type, 4);
    gw_int(w, offset, 8);
    gw_counts(w, ++w->n_tensors, w->n_kvs);
}

/* Pads to the alignment and appends n data bytes 0, 1, 2, ... */
MX_UNUSED static void gw_data(gguf_writer *w, size_t alignment, size_t n)
{
    while (w->b.len % alignment != 0) {
        mx_buf_char(&w->b, 0);
    }
    for (size_t i = 0; i < n; i++) {
        mx_buf_char(&w->b, (char)i);
    }
}

#endif
