/* SPDX-License-Identifier: MIT
 *
 * gguf.h: reads GGUF v2/v3 model files.
 *
 * The file is untrusted: every count and offset is checked against the bytes that remain before it
 * is used. Opened and closed by one thread; in between any thread may read.
 *
 * Metadata, names and everything returned as mx_str lie in a private copy of the header. Tensor data
 * is read into the caller's memory and never mapped: a file cut short by somebody else gives an
 * error instead of a signal, and what has been read does not stay resident in a second copy, however
 * large the pieces are in which the kernel maps files.
 *
 * A model may be split into parts (NAME-00001-of-0000N.gguf): metadata stands in part 1, each part
 * has tensors of its own. Opening any of them opens all, and they read as one file.
 */
#ifndef MX_GGUF_H
#define MX_GGUF_H

#include "base/err.h"
#include "base/qtype.h"

typedef struct mx_gguf mx_gguf;

enum { MX_GGUF_MAX_DIMS = 4 };

typedef struct mx_gguf_tensor {
    mx_str name;
    uint32_t n_dims;
    uint64_t ne[MX_GGUF_MAX_DIMS]; /* ne[0] is contiguous; unused ones are 1 */
    const mx_qtype_info *type;
    size_t part;                   /* the file that holds it, from 0 */
    uint64_t offset;               /* of its first byte in that file */
    size_t n_bytes;
} mx_gguf_tensor;

mx_err mx_gguf_open(mx_gguf **out, const char *path, mx_errbuf *eb);
/* The same from memory (tests, fuzzing); the bytes are borrowed until close. */
mx_err mx_gguf_open_memory(mx_gguf **out, const uint8_t *bytes, size_t n, mx_errbuf *eb);
mx_err mx_gguf_open_memory_parts(mx_gguf **out, const mx_str *parts, size_t n_parts, mx_errbuf *eb);
void mx_gguf_close(mx_gguf *g);

/* One file of the model: what the system said about it when it was opened (zeros but for the size when
 * it is borrowed memory). */
typedef struct mx_gguf_part {
    size_t n_bytes;
    uint64_t device, inode;
    int64_t mtime_ns, ctime_ns;
} mx_gguf_part;

size_t mx_gguf_n_parts(const mx_gguf *g); /* at least 1 */
mx_gguf_part mx_gguf_part_at(const mx_gguf *g, size_t i);

/* Bytes of the files of a model by what the system says about them: of all parts that are there when
 * the name is that of a part. 0 when there is none. Opens nothing. */
uint64_t mx_gguf_files_bytes(const char *path);

size_t mx_gguf_n_tensors(const mx_gguf *g);
const mx_gguf_tensor *mx_gguf_tensor_at(const mx_gguf *g, size_t i);
const mx_gguf_tensor *mx_gguf_find_tensor(const mx_gguf *g, const char *name); /* NULL = absent */

/* Metadata. Integers of any width are read; MX_E_NOT_FOUND when the key is absent, MX_E_FORMAT when
 * it has another type or does not fit. */
bool mx_gguf_has(const mx_gguf *g, const char *key);
mx_err mx_gguf_get_u64(const mx_gguf *g, const char *key, uint64_t *out, mx_errbuf *eb);
mx_err mx_gguf_get_i64(const mx_gguf *g, const char *key, int64_t *out, mx_errbuf *eb);
mx_err mx_gguf_get_f64(const mx_gguf *g, const char *key, double *out, mx_errbuf *eb);
mx_err mx_gguf_get_bool(const mx_gguf *g, const char *key, bool *out, mx_errbuf *eb);
mx_err mx_gguf_get_str(const mx_gguf *g, const char *key, mx_str *out, mx_errbuf *eb);

/* Arrays. count gives the length (also of a scalar: 1, so that "scalar or per layer" keys work). */
mx_err mx_gguf_array_count(const mx_gguf *g, const char *key, size_t *n, mx_errbuf *eb);
mx_err mx_gguf_array_u64(const mx_gguf *g, const char *key, size_t i, uint64_t *out, mx_errbuf *eb);
/* Whole arrays into caller's memory of exactly n elements. */
mx_err mx_gguf_array_strs(const mx_gguf *g, const char *key, size_t n, mx_str *out, mx_errbuf *eb);
mx_err mx_gguf_array_i32s(const mx_gguf *g, const char *key, size_t n, int32_t *out, mx_errbuf *eb);
mx_err mx_gguf_array_f32s(const mx_gguf *g, const char *key, size_t n, float *out, mx_errbuf *eb);

size_t mx_gguf_n_keys(const mx_gguf *g);
mx_str mx_gguf_key_at(const mx_gguf *g, size_t i);

/* Copies n bytes of a part, from `at` on. MX_E_IO when they cannot be read, or when the file is no longer
 * what was opened (its size or time changed); MX_E_INVALID when there are no such bytes. */
mx_err mx_gguf_read(const mx_gguf *g, size_t part, uint64_t at, void *out, size_t n, mx_errbuf *eb);
/* The same within a tensor: `at` counts from its first byte. */
mx_err mx_gguf_read_tensor(const mx_gguf *g, const mx_gguf_tensor *t, size_t at, void *out, size_t n,
                           mx_errbuf *eb);

#endif
