/* SPDX-License-Identifier: MIT
 *
 * split_gguf.h: cuts a sound GGUF file into parts as tools that split models do: all metadata in part
 * 1, the tensors dealt out in order, a data section for each part. Aborts when memory fails.
 */
#ifndef SPLIT_GGUF_H
#define SPLIT_GGUF_H

#include "base/buf.h"
#include "gguf/gguf.h"
#include "gguf/gguf_file.h"

#include <stdio.h>
#include <stdlib.h>

enum { SPLIT_ALIGN = 32, SPLIT_MAX_PARTS = 8 };

MX_UNUSED static void split_int(mx_buf *b, uint64_t v, size_t bytes)
{
    uint8_t le[8];
    mx_put_le64(le, v);
    mx_buf_append(b, le, bytes);
}

MX_UNUSED static void split_key(mx_buf *b, const char *key, uint32_t type, uint64_t v, size_t bytes)
{
    split_int(b, strlen(key), 8);
    mx_buf_str(b, key);
    split_int(b, type, 4);
    split_int(b, v, bytes);
}

MX_UNUSED static void split_pad(mx_buf *b)
{
    while (b->len % SPLIT_ALIGN != 0) {
        mx_buf_char(b, 0);
    }
}

/* Tensors [from, to) of g, which is open from memory, as part `no`; with total it says how many there are together. */
MX_UNUSED static void split_write(mx_buf *b, const mx_gguf *g, size_t from, size_t to, uint64_t no,
                                  uint64_t n_parts, uint64_t total)
{
    *b = (mx_buf){0};
    mx_buf_str(b, "GGUF");
    split_int(b, 3, 4);
    split_int(b, to - from, 8);
    split_int(b, (no == 0 ? g->n_kvs : 0) + 3, 8);
    if (no == 0 && g->n_kvs > 0) {
        const uint8_t *begin = g->header + 24;
        const gguf_kv *last = &g->kvs[g->n_kvs - 1];
        mx_buf_append(b, begin, (size_t)(last->data + last->n_bytes - begin));
    }
    split_key(b, "split.no", 2, no, 2);
    split_key(b, "split.count", 2, n_parts, 2);
    split_key(b, "split.tensors.count", 5, total, 4);
    uint64_t offset = 0;
    for (size_t i = from; i < to; i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, i);
        split_int(b, t->name.len, 8);
        mx_buf_append(b, t->name.ptr, t->name.len);
        split_int(b, t->n_dims, 4);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            split_int(b, t->ne[d], 8);
        }
        split_int(b, (uint64_t)t->type->type, 4);
        split_int(b, offset, 8);
        offset += mx_round_up(t->n_bytes, SPLIT_ALIGN);
    }
    for (size_t i = from; i < to; i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, i);
        split_pad(b);
        mx_buf_append(b, g->bytes + t->offset, t->n_bytes);
    }
    split_pad(b);
    if (b->failed) {
        abort();
    }
}

/* out: [n_parts]; the first part has no tensors when first_is_empty. */
MX_UNUSED static void split_gguf(const mx_buf *whole, size_t n_parts, bool first_is_empty,
                                 mx_buf *out)
{
    mx_gguf *g;
    mx_errbuf eb;
    if (mx_gguf_open_memory(&g, (const uint8_t *)whole->ptr, whole->len, &eb) != MX_OK) {
        fprintf(stderr, "split_gguf: %s\n", eb.text);
        abort();
    }
    const size_t n = mx_gguf_n_tensors(g), skip = first_is_empty ? 1 : 0;
    for (size_t i = 0; i < n_parts; i++) {
        const size_t from = i < skip ? 0 : n * (i - skip) / (n_parts - skip);
        const size_t to = i < skip ? 0 : n * (i + 1 - skip) / (n_parts - skip);
        split_write(&out[i], g, from, to, i, n_parts, n);
    }
    mx_gguf_close(g);
}

/* FOLDER/m-0000I-of-0000N.gguf */
MX_UNUSED static const char *split_name(char out[256], const char *folder, size_t no, size_t n)
{
    snprintf(out, 256, "%s/m-%05zu-of-%05zu.gguf", folder, no + 1, n);
    return out;
}

MX_UNUSED static void split_save(const char *path, const mx_buf *b)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(b->ptr, 1, b->len, f) != b->len || fclose(f) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        abort();
    }
}

#endif
