// link: mx_gguf mx_base
/* SPDX-License-Identifier: MIT
 *
 * Any bytes as a model file: refused with a sentence, or opened so that every key, every value and
 * every tensor byte can be read. Input that begins with "PART" is a model in two parts: the length of
 * the first in four bytes, then both.
 */
#include "base/mem.h"
#include "gguf/gguf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++) {
        sink += b[i];
    }
}

static void read_value(const mx_gguf *g, const char *key)
{
    uint64_t u;
    int64_t i;
    double d;
    bool b;
    mx_str s;
    size_t n = 0;
    mx_errbuf eb;
    (void)mx_gguf_get_u64(g, key, &u, &eb);
    (void)mx_gguf_get_i64(g, key, &i, &eb);
    (void)mx_gguf_get_f64(g, key, &d, &eb);
    (void)mx_gguf_get_bool(g, key, &b, &eb);
    if (mx_gguf_get_str(g, key, &s, &eb) == MX_OK) {
        touch(s.ptr, s.len);
    }
    if (mx_gguf_array_count(g, key, &n, &eb) != MX_OK || n == 0) {
        return;
    }
    (void)mx_gguf_array_u64(g, key, n - 1, &u, &eb);
    void *values = mx_calloc(n, sizeof(mx_str));
    if (values == NULL) {
        return;
    }
    if (mx_gguf_array_strs(g, key, n, values, &eb) == MX_OK) {
        for (size_t k = 0; k < n; k++) {
            touch(((mx_str *)values)[k].ptr, ((mx_str *)values)[k].len);
        }
    }
    (void)mx_gguf_array_i32s(g, key, n, values, &eb);
    (void)mx_gguf_array_f32s(g, key, n, values, &eb);
    mx_free(values);
}

static mx_err open_input(mx_gguf **g, const uint8_t *data, size_t size, mx_errbuf *eb)
{
    if (size < 8 || memcmp(data, "PART", 4) != 0) {
        return mx_gguf_open_memory(g, data, size, eb);
    }
    const size_t n = mx_min_size(mx_get_le32(data + 4), size - 8);
    const mx_str parts[2] = {{(const char *)data + 8, n}, {(const char *)data + 8 + n, size - 8 - n}};
    return mx_gguf_open_memory_parts(g, parts, 2, eb);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mx_gguf *g;
    mx_errbuf eb = {{0}};
    if (open_input(&g, data, size, &eb) != MX_OK) {
        if (eb.text[0] == '\0') {
            abort(); /* a refusal without a sentence */
        }
        return 0;
    }
    for (size_t i = 0; i < mx_gguf_n_keys(g); i++) {
        mx_str k = mx_gguf_key_at(g, i);
        char *key = mx_strndup(k.ptr, k.len);
        if (key != NULL) {
            read_value(g, key);
        }
        mx_free(key);
    }
    for (size_t i = 0; i < mx_gguf_n_tensors(g); i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, i);
        touch(t->name.ptr, t->name.len);
        uint8_t *bytes = mx_alloc(t->n_bytes);
        if (bytes != NULL) {
            if (mx_gguf_read_tensor(g, t, 0, bytes, t->n_bytes, &eb) != MX_OK) {
                abort(); /* what was checked at open must be there */
            }
            touch(bytes, t->n_bytes);
        }
        mx_free(bytes);
    }
    mx_gguf_close(g);
    return 0;
}
