/* SPDX-License-Identifier: MIT
 *
 * gguf.h: reads GGUF v2/v3 model files through a mapping.
 *
 * The file is untrusted: every count and offset is checked against the bytes that remain before it
 * is used. A file cut short by somebody else while it is mapped gives a load error, not a crash
 * (mx_gguf_guard). Opened and closed by one thread; in between any thread may read.
 *
 * Metadata, names and everything returned as mx_str lie in a private copy of the header and are
 * sound whatever happens to the file. Only tensor data and mx_gguf_bytes are the mapping itself:
 * read them inside mx_gguf_guard.
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
    const uint8_t *data;           /* inside the mapping */
    size_t n_bytes;
} mx_gguf_tensor;

mx_err mx_gguf_open(mx_gguf **out, const char *path, mx_errbuf *eb);
/* The same from memory (tests, fuzzing); the bytes are borrowed until close. */
mx_err mx_gguf_open_memory(mx_gguf **out, const uint8_t *bytes, size_t n, mx_errbuf *eb);
mx_err mx_gguf_open_memory_parts(mx_gguf **out, const mx_str *parts, size_t n_parts, mx_errbuf *eb);
void mx_gguf_close(mx_gguf *g);

/* One file of the model: its bytes, for fingerprinting, and what the system said about it when it was
 * opened (zeros when it is borrowed memory). */
typedef struct mx_gguf_part {
    const uint8_t *bytes; /* the mapping */
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

/* Runs fn(arg) with a guard: when the calling thread faults in the mapping (the file was cut short
 * under us) the call returns MX_E_IO instead of ending the process, and so it does when the file's
 * size or time is no longer that of open. fn must not allocate or lock while it reads tensor data.
 * The guard covers the calling thread only: work spread over a pool calls it on each worker. It
 * cannot be nested. */
mx_err mx_gguf_guard(const mx_gguf *g, mx_err (*fn)(void *arg, mx_errbuf *eb), void *arg,
                     mx_errbuf *eb);

/* Tells the kernel that these bytes of the mapping are no longer needed: they do not count as
 * resident until somebody reads them again. */
void mx_gguf_drop(const mx_gguf *g, const uint8_t *bytes, size_t n);

#endif
