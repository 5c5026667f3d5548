/* SPDX-License-Identifier: MIT
 *
 * The GGUF reader against well-formed files, and against files made to hurt it: cut at every byte,
 * bits flipped, counts that lie, tensors that overlap, memory that runs out, a file that shrinks
 * while it is mapped.
 */
#include "base/mem.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* One key of every kind and three tensors. */
static gguf_writer sample(void)
{
    gguf_writer w;
    gw_begin(&w, 3);
    gw_kv_str(&w, "general.architecture", "llama");
    gw_kv_int(&w, "i.u8", GW_U8, 200);
    gw_kv_int(&w, "i.i8", GW_I8, (uint64_t)-5);
    gw_kv_int(&w, "i.u16", GW_U16, 60000);
    gw_kv_int(&w, "i.i16", GW_I16, (uint64_t)-300);
    gw_kv_int(&w, "i.u32", GW_U32, 4000000000u);
    gw_kv_int(&w, "i.i32", GW_I32, (uint64_t)-70000);
    gw_kv_int(&w, "i.u64", GW_U64, UINT64_MAX);
    gw_kv_int(&w, "i.i64", GW_I64, (uint64_t)INT64_MIN);
    gw_kv_int(&w, "f.f32", GW_F32, 0x3FC00000u);          /* 1.5 */
    gw_kv_int(&w, "f.f64", GW_F64, 0xC004000000000000u);  /* -2.5 */
    gw_kv_int(&w, "b.yes", GW_BOOL, 1);
    gw_kv_int(&w, "b.bad", GW_BOOL, 2);
    gw_kv_array(&w, "a.i32", GW_I32, 3);
    gw_int(&w, 7, 4);
    gw_int(&w, (uint64_t)-8, 4);
    gw_int(&w, 9, 4);
    gw_kv_array(&w, "a.str", GW_STR, 3);
    gw_str(&w, "one", 3);
    gw_str(&w, "", 0);
    gw_str(&w, "t\0o", 3);
    gw_kv_array(&w, "a.f32", GW_F32, 2);
    gw_int(&w, 0x3F800000u, 4);
    gw_int(&w, 0x7FC00000u, 4); /* a NaN is a value like any other here */
    gw_kv_array(&w, "a.bool", GW_BOOL, 2);
    gw_int(&w, 1, 1);
    gw_int(&w, 0, 1);
    gw_kv_array(&w, "a.empty", GW_STR, 0);
    const uint64_t a[] = {8, 2}, b[] = {32, 3, 1, 1}, c[] = {4};
    gw_tensor(&w, "a.weight", 2, a, 0, 0);    /* F32: 64 bytes */
    gw_tensor(&w, "b.weight", 4, b, 3, 96);   /* Q4_1: 60 bytes */
    gw_tensor(&w, "c.bias", 1, c, 1, 64);     /* F16: 8 bytes */
    gw_data(&w, 32, 96 + 60);
    return w;
}

static mx_err open_bytes(const gguf_writer *w, mx_errbuf *eb)
{
    mx_gguf *g;
    mx_err e = mx_gguf_open_memory(&g, (const uint8_t *)w->b.ptr, w->b.len, eb);
    mx_gguf_close(g);
    return e;
}

/* The writer's file must be refused with this code and a sentence that holds `part`. Frees it. */
static void expect_refused(gguf_writer w, mx_err code, const char *part)
{
    mx_errbuf eb = {{0}};
    mx_err e = open_bytes(&w, &eb);
    mx_buf_free(&w.b);
    if (e != code || strstr(eb.text, part) == NULL) {
        fail_msg("expected %s with \"%s\", came %s: %s", mx_err_name(code), part, mx_err_name(e),
                 eb.text);
    }
}

static void test_scalars(void **state)
{
    (void)state;
    gguf_writer w = sample();
    mx_gguf *g;
    mx_errbuf eb;
    uint64_t u;
    int64_t i;
    double d;
    bool b;
    mx_str s;
    assert_int_equal(mx_gguf_open_memory(&g, (const uint8_t *)w.b.ptr, w.b.len, &eb), MX_OK);
    assert_int_equal(mx_gguf_n_keys(g), 18);
    assert_true(mx_str_eq(mx_gguf_key_at(g, 1), MX_STR("i.u8")));
    assert_true(mx_gguf_has(g, "i.u8"));
    assert_false(mx_gguf_has(g, "i.u"));
    assert_int_equal(mx_gguf_get_str(g, "general.architecture", &s, &eb), MX_OK);
    assert_true(mx_str_eq(s, MX_STR("llama")));

    static const struct { const char *key; int64_t value; } ints[] = {
        {"i.u8", 200}, {"i.i8", -5}, {"i.u16", 60000}, {"i.i16", -300}, {"i.u32", 4000000000},
        {"i.i32", -70000}, {"i.i64", INT64_MIN},
    };
    for (size_t k = 0; k < MX_COUNT(ints); k++) {
        assert_int_equal(mx_gguf_get_i64(g, ints[k].key, &i, &eb), MX_OK);
        assert_true(i == ints[k].value);
        mx_err e = mx_gguf_get_u64(g, ints[k].key, &u, &eb);
        assert_int_equal(e, ints[k].value < 0 ? MX_E_FORMAT : MX_OK);
    }
    assert_int_equal(mx_gguf_get_u64(g, "i.u64", &u, &eb), MX_OK);
    assert_true(u == UINT64_MAX);
    assert_int_equal(mx_gguf_get_i64(g, "i.u64", &i, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_f64(g, "f.f32", &d, &eb), MX_OK);
    assert_true(d == 1.5);
    assert_int_equal(mx_gguf_get_f64(g, "f.f64", &d, &eb), MX_OK);
    assert_true(d == -2.5);
    assert_int_equal(mx_gguf_get_f64(g, "i.i8", &d, &eb), MX_OK);
    assert_true(d == -5.0);
    assert_int_equal(mx_gguf_get_bool(g, "b.yes", &b, &eb), MX_OK);
    assert_true(b);
    assert_int_equal(mx_gguf_get_bool(g, "b.bad", &b, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_bool(g, "i.u8", &b, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_u64(g, "b.yes", &u, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_u64(g, "f.f32", &u, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_str(g, "i.u8", &s, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_u64(g, "a.i32", &u, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_str(g, "a.str", &s, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_get_u64(g, "no.such", &u, &eb), MX_E_NOT_FOUND);
    assert_non_null(strstr(eb.text, "no.such"));
    mx_gguf_close(g);
    mx_buf_free(&w.b);
}

static void test_arrays(void **state)
{
    (void)state;
    gguf_writer w = sample();
    mx_gguf *g;
    mx_errbuf eb;
    size_t n;
    uint64_t u;
    int32_t ints[3];
    float floats[2];
    mx_str strs[3];
    assert_int_equal(mx_gguf_open_memory(&g, (const uint8_t *)w.b.ptr, w.b.len, &eb), MX_OK);
    assert_int_equal(mx_gguf_array_count(g, "a.i32", &n, &eb), MX_OK);
    assert_int_equal(n, 3);
    assert_int_equal(mx_gguf_array_count(g, "i.u8", &n, &eb), MX_OK);
    assert_int_equal(n, 1);
    assert_int_equal(mx_gguf_array_count(g, "a.empty", &n, &eb), MX_OK);
    assert_int_equal(n, 0);
    assert_int_equal(mx_gguf_array_u64(g, "a.i32", 2, &u, &eb), MX_OK);
    assert_int_equal(u, 9);
    assert_int_equal(mx_gguf_array_u64(g, "a.i32", 1, &u, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_array_u64(g, "a.i32", 3, &u, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_array_u64(g, "i.u8", 0, &u, &eb), MX_OK);
    assert_int_equal(u, 200);
    assert_int_equal(mx_gguf_array_u64(g, "a.bool", 0, &u, &eb), MX_OK);
    assert_int_equal(u, 1);
    assert_int_equal(mx_gguf_array_i32s(g, "a.i32", 3, ints, &eb), MX_OK);
    assert_int_equal(ints[1], -8);
    assert_int_equal(mx_gguf_array_i32s(g, "a.i32", 2, ints, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_array_i32s(g, "i.u32", 1, ints, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_array_i32s(g, "a.str", 3, ints, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_array_f32s(g, "a.f32", 2, floats, &eb), MX_OK);
    assert_true(floats[0] == 1.0f && floats[1] != floats[1]);
    assert_int_equal(mx_gguf_array_f32s(g, "a.i32", 3, floats, &eb), MX_E_FORMAT);
    assert_int_equal(mx_gguf_array_strs(g, "a.str", 3, strs, &eb), MX_OK);
    assert_true(mx_str_eq(strs[0], MX_STR("one")));
    assert_int_equal(strs[1].len, 0);
    assert_true(mx_str_eq(strs[2], MX_STR("t\0o")));
    assert_int_equal(mx_gguf_array_strs(g, "a.i32", 3, strs, &eb), MX_E_FORMAT);
    mx_gguf_close(g);
    mx_buf_free(&w.b);
}

static void test_tensors(void **state)
{
    (void)state;
    gguf_writer w = sample();
    mx_gguf *g;
    mx_errbuf eb;
    assert_int_equal(mx_gguf_open_memory(&g, (const uint8_t *)w.b.ptr, w.b.len, &eb), MX_OK);
    assert_int_equal(mx_gguf_n_tensors(g), 3);
    const mx_gguf_tensor *t = mx_gguf_find_tensor(g, "b.weight");
    assert_ptr_equal(t, mx_gguf_tensor_at(g, 1));
    assert_int_equal(t->type->type, MX_Q4_1);
    assert_int_equal(t->n_bytes, 60);
    assert_int_equal(t->ne[0], 32);
    assert_int_equal(t->ne[1], 3);
    uint8_t byte;
    assert_int_equal(mx_gguf_read_tensor(g, t, 0, &byte, 1, &eb), MX_OK);
    assert_int_equal(byte, 96);
    t = mx_gguf_find_tensor(g, "c.bias");
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(mx_gguf_read_tensor(g, t, 1, &byte, 1, &eb), MX_OK);
    assert_int_equal(byte, 65);
    assert_null(mx_gguf_find_tensor(g, "d"));
    assert_null(mx_gguf_tensor_at(g, 3));
    mx_gguf_close(g);
    mx_buf_free(&w.b);
}

static void test_versions(void **state)
{
    (void)state;
    gguf_writer w = sample();
    mx_errbuf eb;
    mx_put_le32((uint8_t *)w.b.ptr + 4, 2);
    assert_int_equal(open_bytes(&w, &eb), MX_OK);
    static const struct { uint32_t version; const char *part; } bad[] = {
        {0, "version 0"}, {1, "version 1"}, {4, "version 4"}, {3u << 24, "big-endian"},
    };
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        gguf_writer x = sample();
        mx_put_le32((uint8_t *)x.b.ptr + 4, bad[i].version);
        expect_refused(x, MX_E_UNSUPPORTED, bad[i].part);
    }
    w.b.ptr[0] = 'g';
    expect_refused(w, MX_E_FORMAT, "not a GGUF file");
    w = (gguf_writer){0};
    mx_buf_str(&w.b, "version https://git-lfs.github.com/spec/v1\n");
    expect_refused(w, MX_E_FORMAT, "git lfs pull");
    w = (gguf_writer){0};
    mx_buf_str(&w.b, "GGUF");
    expect_refused(w, MX_E_FORMAT, "only 4 bytes");
}

/* Every prefix of the file is refused: the last byte of tensor data is needed, too. */
static void test_truncated_everywhere(void **state)
{
    (void)state;
    gguf_writer w = sample();
    for (size_t n = 0; n < w.b.len; n++) {
        uint8_t *copy = malloc(n + 1); /* exact, so that a sanitizer sees a read beyond it */
        mx_gguf *g;
        mx_errbuf eb = {{0}};
        assert_non_null(copy);
        memcpy(copy, w.b.ptr, n);
        uint8_t *exact = realloc(copy, n ? n : 1);
        assert_non_null(exact);
        mx_err e = mx_gguf_open_memory(&g, exact, n, &eb);
        if (e != MX_E_FORMAT || eb.text[0] == '\0') {
            fail_msg("cut at %zu of %zu: came %s: %s", n, w.b.len, mx_err_name(e), eb.text);
        }
        free(exact);
    }
    mx_buf_free(&w.b);
}

static void test_every_bit_flipped(void **state)
{
    (void)state;
    gguf_writer w = sample();
    size_t n_refused = 0;
    for (size_t bit = 0; bit < w.b.len * 8; bit++) {
        mx_errbuf eb = {{0}};
        w.b.ptr[bit / 8] = (char)(w.b.ptr[bit / 8] ^ 1 << bit % 8);
        mx_err e = open_bytes(&w, &eb);
        w.b.ptr[bit / 8] = (char)(w.b.ptr[bit / 8] ^ 1 << bit % 8);
        n_refused += e != MX_OK;
        if (e != MX_OK && eb.text[0] == '\0') {
            fail_msg("bit %zu: refused with %s and no sentence", bit, mx_err_name(e));
        }
    }
    assert_true(n_refused > 1000);
    mx_buf_free(&w.b);
}

static void test_lying_counts(void **state)
{
    (void)state;
    static const uint64_t huge[] = {1 << 10, 1 << 16, (1 << 16) + 1, 1u << 31, 1ull << 60,
                                    UINT64_MAX};
    for (size_t i = 0; i < MX_COUNT(huge); i++) {
        gguf_writer w = sample();
        gw_counts(&w, huge[i], 18);
        expect_refused(w, huge[i] > 1 << 16 ? MX_E_LIMIT : MX_E_FORMAT, "claims");
        w = sample();
        gw_counts(&w, 3, huge[i]);
        expect_refused(w, huge[i] > 1 << 16 ? MX_E_LIMIT : MX_E_FORMAT, "claims");
        for (uint32_t type = GW_U8; type <= GW_F64; type++) {
            if (type == GW_ARR || (huge[i] == 1 << 10 && type == GW_U8)) {
                continue;
            }
            gw_begin(&w, 3);
            gw_kv_array(&w, "a", type, huge[i]);
            gw_data(&w, 32, 64);
            expect_refused(w, MX_E_FORMAT, "does not fit");
        }
        gw_begin(&w, 3);
        gw_key(&w, "s", GW_STR);
        gw_int(&w, huge[i], 8);
        gw_data(&w, 32, 64);
        expect_refused(w, MX_E_FORMAT, "does not fit");
    }
}

static void test_bad_keys(void **state)
{
    (void)state;
    gguf_writer w;
    gw_begin(&w, 3);
    gw_kv_int(&w, "", GW_U8, 1);
    gw_data(&w, 32, 0);
    expect_refused(w, MX_E_FORMAT, "empty");
    gw_begin(&w, 3);
    gw_kv_int(&w, "twice", GW_U8, 1);
    gw_kv_int(&w, "other", GW_U8, 1);
    gw_kv_int(&w, "twice", GW_U32, 1);
    expect_refused(w, MX_E_FORMAT, "\"twice\" stands in the file twice");
    gw_begin(&w, 3);
    gw_key(&w, "nested", GW_ARR);
    gw_int(&w, GW_ARR, 4);
    gw_int(&w, 1, 8);
    gw_data(&w, 32, 64);
    expect_refused(w, MX_E_UNSUPPORTED, "array of arrays");
    gw_begin(&w, 3);
    gw_key(&w, "odd", 13);
    gw_data(&w, 32, 64);
    expect_refused(w, MX_E_FORMAT, "unknown value type 13");
    gw_begin(&w, 3);
    gw_kv_int(&w, "split.count", GW_U16, 3);
    gw_kv_int(&w, "split.no", GW_U16, 1);
    gw_kv_int(&w, "split.tensors.count", GW_I32, 0);
    expect_refused(w, MX_E_NOT_FOUND, "split into 3 files");
    gw_begin(&w, 3);
    gw_kv_int(&w, "split.count", GW_U16, 1);
    mx_errbuf eb;
    assert_int_equal(open_bytes(&w, &eb), MX_OK);
    mx_buf_free(&w.b);
}

static void test_bad_alignment(void **state)
{
    (void)state;
    static const struct { uint32_t type; uint64_t bits; const char *part; } bad[] = {
        {GW_U32, 0, "power of two"}, {GW_U32, 48, "power of two"},
        {GW_U64, UINT64_MAX, "power of two"},
        {GW_F32, 0x7FC00000u, "integer"}, {GW_I32, (uint64_t)-32, "range"}, {GW_BOOL, 1, "integer"},
        {GW_U64, 1ull << 63, "ends before"},
    };
    const uint64_t ne[] = {4};
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        gguf_writer w;
        gw_begin(&w, 3);
        gw_kv_int(&w, "general.alignment", bad[i].type, bad[i].bits);
        gw_tensor(&w, "t", 1, ne, 0, 0);
        gw_data(&w, 32, 64);
        expect_refused(w, MX_E_FORMAT, bad[i].part);
    }
    gguf_writer w;
    mx_errbuf eb;
    gw_begin(&w, 3);
    gw_kv_int(&w, "general.alignment", GW_U32, 128);
    gw_tensor(&w, "t", 1, ne, 0, 128);
    gw_data(&w, 128, 128 + 16);
    assert_int_equal(open_bytes(&w, &eb), MX_OK);
    mx_buf_free(&w.b);
}

/* One tensor with these fields behind a good one of 64 bytes at offset 0. */
static gguf_writer one_bad(const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                           uint64_t offset)
{
    gguf_writer w;
    const uint64_t good[] = {16};
    gw_begin(&w, 3);
    gw_tensor(&w, "good", 1, good, 0, 0);
    gw_tensor(&w, name, n_dims, ne, type, offset);
    gw_data(&w, 32, 256);
    return w;
}

static void test_bad_tensors(void **state)
{
    (void)state;
    const uint64_t ne[] = {32, 1, 1, 1, 1};
    const uint64_t odd[] = {33}, wide[] = {1u << 31, 1u << 31, 1u << 31};
    const uint64_t negative[] = {UINT64_MAX - 31}, large[] = {1ull << 40};
    char long_name[65];
    memset(long_name, 'n', 64);
    long_name[64] = '\0';
    expect_refused(one_bad("good", 1, ne, 0, 64), MX_E_FORMAT, "\"good\" stands in the file twice");
    expect_refused(one_bad(long_name, 1, ne, 0, 64), MX_E_FORMAT, "has 64 bytes");
    expect_refused(one_bad("", 1, ne, 0, 64), MX_E_FORMAT, "has 0 bytes");
    expect_refused(one_bad("t", 5, ne, 0, 64), MX_E_FORMAT, "5 dimensions");
    expect_refused(one_bad("t", 1, ne, 99, 64), MX_E_FORMAT, "unknown type 99");
    expect_refused(one_bad("t", 1, ne, 16, 64), MX_E_UNSUPPORTED, "IQ2_XXS");
    expect_refused(one_bad("t", 1, odd, 8, 64), MX_E_FORMAT, "blocks of 32");
    expect_refused(one_bad("t", 3, wide, 0, 64), MX_E_FORMAT, "too large");
    expect_refused(one_bad("t", 1, negative, 0, 64), MX_E_FORMAT, "too large");
    expect_refused(one_bad("t", 1, large, 0, 64), MX_E_FORMAT, "beyond the end");
    expect_refused(one_bad("t", 1, ne, 0, 1ull << 50), MX_E_FORMAT, "beyond the end");
    expect_refused(one_bad("t", 1, ne, 0, UINT64_MAX - 31), MX_E_FORMAT, "beyond the end");
    expect_refused(one_bad("t", 1, ne, 0, 160), MX_E_FORMAT, "beyond the end");
    expect_refused(one_bad("t", 1, ne, 0, 68), MX_E_FORMAT, "no multiple of 32");
    expect_refused(one_bad("t", 1, ne, 0, 0), MX_E_FORMAT, "overlap");
    expect_refused(one_bad("t", 1, ne, 0, 32), MX_E_FORMAT, "overlap");
    long_name[63] = '\0';
    gguf_writer w = one_bad(long_name, 1, ne, 0, 128);
    mx_errbuf eb;
    assert_int_equal(open_bytes(&w, &eb), MX_OK);
    mx_buf_free(&w.b);
}

/* Many keys and tensors: the index must not be quadratic. 40,000 of each take milliseconds. */
static void test_many_entries(void **state)
{
    (void)state;
    enum { N = 40000 };
    gguf_writer w;
    const uint64_t ne[] = {8};
    char name[32];
    mx_gguf *g;
    mx_errbuf eb;
    gw_begin(&w, 3);
    for (uint64_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "key.%d", (int)i);
        gw_kv_int(&w, name, GW_U32, i);
    }
    for (uint64_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t.%d", (int)i);
        gw_tensor(&w, name, 1, ne, 0, i * 32);
    }
    gw_data(&w, 32, N * 32);
    assert_int_equal(mx_gguf_open_memory(&g, (const uint8_t *)w.b.ptr, w.b.len, &eb), MX_OK);
    for (int i = 0; i < N; i += 997) {
        uint64_t v;
        snprintf(name, sizeof name, "key.%d", i);
        assert_int_equal(mx_gguf_get_u64(g, name, &v, &eb), MX_OK);
        assert_int_equal(v, i);
        snprintf(name, sizeof name, "t.%d", i);
        assert_ptr_equal(mx_gguf_find_tensor(g, name), mx_gguf_tensor_at(g, (size_t)i));
    }
    mx_gguf_close(g);
    mx_buf_free(&w.b);
}

/* ---- real files ------------------------------------------------------------------------------ */

static char *write_temp(const gguf_writer *w, size_t n)
{
    char path[] = P_tmpdir "/mtplx-test-gguf-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, w->b.ptr, n), (ssize_t)n);
    assert_int_equal(close(fd), 0);
    char *copy = strdup(path);
    assert_non_null(copy);
    return copy;
}

static void drop_temp(char *path)
{
    unlink(path);
    free(path);
}

/* Three pages of data behind the header. */
static gguf_writer large_sample(void)
{
    gguf_writer w;
    const uint64_t ne[] = {8192};
    gw_begin(&w, 3);
    gw_kv_str(&w, "general.architecture", "llama");
    gw_tensor(&w, "t", 1, ne, 0, 0);
    gw_data(&w, 32, 32768);
    return w;
}

static mx_err read_first(const mx_gguf *g, uint8_t *out, mx_errbuf *eb)
{
    const mx_gguf_tensor *t = mx_gguf_tensor_at(g, 0);
    return mx_gguf_read_tensor(g, t, 0, out, t->n_bytes, eb);
}

static void test_file(void **state)
{
    (void)state;
    gguf_writer w = large_sample();
    char *path = write_temp(&w, w.b.len);
    mx_gguf *g;
    mx_errbuf eb;
    assert_int_equal(mx_gguf_open(&g, path, &eb), MX_OK);
    assert_int_equal(mx_gguf_n_parts(g), 1);
    const mx_gguf_part part = mx_gguf_part_at(g, 0);
    assert_int_equal(part.n_bytes, w.b.len);
    uint8_t *bytes = malloc(w.b.len);
    assert_non_null(bytes);
    assert_int_equal(mx_gguf_read(g, 0, 0, bytes, part.n_bytes, &eb), MX_OK);
    assert_memory_equal(bytes, w.b.ptr, part.n_bytes);
    assert_int_equal(read_first(g, bytes, &eb), MX_OK);
    for (size_t i = 0; i < 32768; i++) {
        assert_int_equal(bytes[i], i & 0xFF);
    }
    free(bytes);
    mx_gguf_close(g);
    drop_temp(path);
    mx_buf_free(&w.b);
    assert_int_equal(mx_gguf_open(&g, "/proc/nonexistent/model.gguf", &eb), MX_E_NOT_FOUND);
    assert_non_null(strstr(eb.text, "/proc/nonexistent/model.gguf"));
    assert_int_equal(mx_gguf_open(&g, P_tmpdir, &eb), MX_E_INVALID);
}

static void test_reads_out_of_bounds(void **state)
{
    (void)state;
    gguf_writer w = large_sample();
    char *path = write_temp(&w, w.b.len);
    for (int from_memory = 0; from_memory < 2; from_memory++) {
        mx_gguf *g;
        mx_errbuf eb;
        uint8_t byte;
        assert_int_equal(from_memory
                             ? mx_gguf_open_memory(&g, (const uint8_t *)w.b.ptr, w.b.len, &eb)
                             : mx_gguf_open(&g, path, &eb),
                         MX_OK);
        assert_int_equal(mx_gguf_read(g, 0, w.b.len - 1, &byte, 1, &eb), MX_OK);
        assert_int_equal(mx_gguf_read(g, 0, w.b.len, &byte, 0, &eb), MX_OK);
        assert_int_equal(mx_gguf_read(g, 0, w.b.len, &byte, 1, &eb), MX_E_INVALID);
        assert_int_equal(mx_gguf_read(g, 0, UINT64_MAX, &byte, 1, &eb), MX_E_INVALID);
        assert_int_equal(mx_gguf_read(g, 0, 1, &byte, SIZE_MAX, &eb), MX_E_INVALID);
        assert_int_equal(mx_gguf_read(g, 1, 0, &byte, 1, &eb), MX_E_INVALID);
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, 0);
        assert_int_equal(mx_gguf_read_tensor(g, t, t->n_bytes - 1, &byte, 1, &eb), MX_OK);
        assert_int_equal(mx_gguf_read_tensor(g, t, t->n_bytes, &byte, 1, &eb), MX_E_INVALID);
        assert_int_equal(mx_gguf_read_tensor(g, t, SIZE_MAX, &byte, 2, &eb), MX_E_INVALID);
        mx_gguf_close(g);
    }
    drop_temp(path);
    mx_buf_free(&w.b);
}

static void test_shrinks_after_open(void **state)
{
    (void)state;
    static const size_t cuts[] = {0, 100, 4096, 10000, 32768};
    for (size_t i = 0; i < MX_COUNT(cuts); i++) {
        gguf_writer w = large_sample();
        char *path = write_temp(&w, w.b.len);
        mx_gguf *g;
        mx_errbuf eb;
        mx_str s;
        static uint8_t bytes[32768];
        assert_int_equal(mx_gguf_open(&g, path, &eb), MX_OK);
        assert_int_equal(read_first(g, bytes, &eb), MX_OK);
        assert_int_equal(truncate(path, (off_t)cuts[i]), 0);
        mx_err e = read_first(g, bytes, &eb);
        if (e != MX_E_IO) {
            fail_msg("cut to %zu after it was opened: expected io, came %s", cuts[i],
                     mx_err_name(e));
        }
        /* Nor bytes that are still there: the file is another one now. */
        assert_int_equal(mx_gguf_read(g, 0, 0, bytes, 16, &eb), MX_E_IO);
        assert_int_equal(mx_gguf_get_str(g, "general.architecture", &s, &eb), MX_OK);
        assert_true(mx_str_eq(s, MX_STR("llama")));
        mx_gguf_close(g);
        drop_temp(path);
        mx_buf_free(&w.b);
    }
}

/* A header longer than what is read of the file at first (4 MiB, then 16, ...), whole and cut at and
 * around those sizes. */
static void test_long_header(void **state)
{
    (void)state;
    enum { LONG = 20 << 20, MIB = 1 << 20 };
    gguf_writer w;
    const uint64_t ne[] = {32};
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'x', LONG);
    text[LONG] = '\0';
    gw_begin(&w, 3);
    gw_kv_str(&w, "long", text);
    gw_tensor(&w, "a", 1, ne, 0, 0);
    gw_data(&w, 32, 128);
    static const size_t cuts[] = {SIZE_MAX, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 16 * MIB, LONG};
    for (size_t i = 0; i < MX_COUNT(cuts); i++) {
        char *path = write_temp(&w, mx_min_size(cuts[i], w.b.len));
        mx_gguf *g;
        mx_errbuf eb;
        mx_str s;
        const mx_err e = mx_gguf_open(&g, path, &eb);
        if (cuts[i] == SIZE_MAX) {
            uint8_t bytes[128];
            assert_int_equal(e, MX_OK);
            assert_int_equal(mx_gguf_get_str(g, "long", &s, &eb), MX_OK);
            assert_int_equal(s.len, LONG);
            assert_memory_equal(s.ptr, text, LONG);
            assert_int_equal(read_first(g, bytes, &eb), MX_OK);
            assert_int_equal(bytes[127], 127);
            mx_gguf_close(g);
        } else {
            assert_int_equal(e, MX_E_FORMAT);
            assert_non_null(strstr(eb.text, "truncated or damaged"));
        }
        drop_temp(path);
    }
    free(text);
    mx_buf_free(&w.b);
}

static void test_no_memory(void **state)
{
    (void)state;
    gguf_writer w = sample();
    char *path = write_temp(&w, w.b.len);
    int64_t live = mx_mem_live();
    uint64_t k = 1;
    mx_err e = MX_E_NOMEM;
    for (; e != MX_OK && k < 100; k++) {
        mx_gguf *g;
        mx_errbuf eb = {{0}};
        mx_mem_fail_at(k);
        e = mx_gguf_open(&g, path, &eb);
        mx_mem_fail_at(0);
        if (e != MX_OK) {
            assert_int_equal(e, MX_E_NOMEM);
            assert_true(eb.text[0] != '\0');
            assert_null(g);
        }
        mx_gguf_close(g);
        assert_int_equal(mx_mem_live(), live);
    }
    assert_true(k > 6); /* at least that many allocations were made to fail */
    drop_temp(path);
    mx_buf_free(&w.b);
}

int main(int argc, char **argv)
{
    if (argc == 2) { /* test_gguf DIR: writes the seeds of the fuzz corpus */
        char path[4096];
        gguf_writer all[] = {sample(), one_bad("t", 1, (const uint64_t[]){32}, 8, 64)};
        for (size_t i = 0; i < MX_COUNT(all); i++) {
            snprintf(path, sizeof path, "%s/sample%zu.gguf", argv[1], i);
            FILE *f = fopen(path, "wb");
            if (f == NULL || fwrite(all[i].b.ptr, 1, all[i].b.len, f) != all[i].b.len ||
                fclose(f) != 0)
            {
                return 1;
            }
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),           cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_tensors),           cmocka_unit_test(test_versions),
        cmocka_unit_test(test_truncated_everywhere), cmocka_unit_test(test_every_bit_flipped),
        cmocka_unit_test(test_lying_counts),      cmocka_unit_test(test_bad_keys),
        cmocka_unit_test(test_bad_alignment),     cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_many_entries),      cmocka_unit_test(test_file),
        cmocka_unit_test(test_reads_out_of_bounds), cmocka_unit_test(test_shrinks_after_open),
        cmocka_unit_test(test_long_header),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
