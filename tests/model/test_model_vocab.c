/* SPDX-License-Identifier: MIT
 *
 * From the bytes of a model file to a tokeniser: keys that are missing, of the wrong type or
 * length, ids outside the vocabulary, memory that runs out, and every bit of a small file flipped.
 */
#include "base/mem.h"
#include "gguf/gguf_writer.h"
#include "model/model_vocab.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const char *const tokens[] = {"a", "b", "ab", "<|end|>", "<u>"};
enum { N = 5 };

/* What a test changes in an otherwise good file. */
typedef struct variant {
    const char *skip; /* the key that is left out */
    uint64_t n_types, n_scores;
    uint32_t bos_type;
    uint64_t bos;
    const char *model;
} variant;

static const variant good = {"", N, N, GW_U32, 3, "gpt2"};

static void strings(gguf_writer *w, const char *key, const char *const *s, size_t n)
{
    gw_kv_array(w, key, GW_STR, n);
    for (size_t i = 0; i < n; i++) {
        gw_str(w, s[i], strlen(s[i]));
    }
}

static gguf_writer write_vocabulary(variant v)
{
    static const char *const merges[] = {"a b"};
    gguf_writer w;
    gw_begin(&w, 3);
    if (strcmp(v.skip, "model") != 0) {
        gw_kv_str(&w, "tokenizer.ggml.model", v.model);
    }
    gw_kv_str(&w, "tokenizer.ggml.pre", "gpt-2");
    if (strcmp(v.skip, "tokens") != 0) {
        strings(&w, "tokenizer.ggml.tokens", tokens, N);
    }
    if (v.n_types > 0) {
        gw_kv_array(&w, "tokenizer.ggml.token_type", GW_I32, v.n_types);
        for (uint64_t i = 0; i < v.n_types; i++) {
            gw_int(&w, i == 3 || i == 4 ? i : 1, 4);
        }
    }
    if (v.n_scores > 0) {
        gw_kv_array(&w, "tokenizer.ggml.scores", GW_F32, v.n_scores);
        for (uint64_t i = 0; i < v.n_scores; i++) {
            gw_int(&w, 0, 4);
        }
    }
    if (strcmp(v.skip, "merges") != 0) {
        strings(&w, "tokenizer.ggml.merges", merges, 1);
    }
    gw_kv_int(&w, "tokenizer.ggml.bos_token_id", v.bos_type, v.bos);
    gw_kv_int(&w, "tokenizer.ggml.add_bos_token", GW_BOOL, 1);
    return w;
}

/* The whole way; what the tokeniser made of "ab<|end|>" as user text goes to *out when all is
 * well. */
static mx_err run(const gguf_writer *w, mx_tokens *out, mx_errbuf *eb)
{
    mx_gguf *g = NULL;
    mx_vocab_desc d;
    void *memory = NULL;
    mx_tokenizer *t = NULL;
    mx_err e = mx_gguf_open_memory(&g, (const uint8_t *)w->b.ptr, w->b.len, eb);
    if (e == MX_OK) {
        e = mx_vocab_from_gguf(g, &d, &memory, eb);
    }
    if (e == MX_OK) {
        e = mx_tokenizer_create(&t, &d, eb);
    }
    mx_free(memory);
    mx_gguf_close(g); /* the tokeniser keeps nothing of it */
    if (e == MX_OK) {
        e = mx_tokenizer_encode(t, "ab<|end|>", 9, NULL, 0, true, out);
    }
    mx_tokenizer_destroy(t);
    return e;
}

static void expect(variant v, mx_err code, const char *part)
{
    mx_errbuf eb = {{0}};
    mx_tokens out = {0};
    gguf_writer w = write_vocabulary(v);
    mx_err e = run(&w, &out, &eb);
    if (e != code || (code != MX_OK && strstr(eb.text, part) == NULL)) {
        fail_msg("expected %s with \"%s\", came %s: %s", mx_err_name(code), part, mx_err_name(e),
                 eb.text);
    }
    mx_tokens_free(&out);
    mx_buf_free(&w.b);
}

static void test_good(void **state)
{
    (void)state;
    mx_errbuf eb;
    mx_tokens out = {0};
    gguf_writer w = write_vocabulary(good);
    assert_int_equal(run(&w, &out, &eb), MX_OK);
    assert_int_equal(out.n, 2); /* BOS and "ab"; "<|end|>" has no letters in this vocabulary */
    assert_int_equal(out.ids[0], 3);
    assert_int_equal(out.ids[1], 2);
    mx_tokens_free(&out);
    mx_buf_free(&w.b);
}

static void test_description(void **state)
{
    (void)state;
    gguf_writer w = write_vocabulary(good);
    mx_gguf *g;
    mx_vocab_desc d;
    void *memory;
    mx_errbuf eb;
    assert_int_equal(mx_gguf_open_memory(&g, (const uint8_t *)w.b.ptr, w.b.len, &eb), MX_OK);
    assert_int_equal(mx_vocab_from_gguf(g, &d, &memory, &eb), MX_OK);
    assert_string_equal(d.model, "gpt2");
    assert_string_equal(d.pre, "gpt-2");
    assert_int_equal(d.n_tokens, N);
    assert_int_equal(d.n_merges, 1);
    assert_true(mx_str_eq(d.tokens[2], MX_STR("ab")));
    assert_int_equal(d.types[4], MX_TOKEN_USER_DEFINED);
    assert_true(mx_str_eq(d.merges[0], MX_STR("a b")));
    assert_int_equal(d.bos_id, 3);
    assert_int_equal(d.eos_id, -1);
    assert_int_equal(d.add_bos, 1);
    assert_int_equal(d.add_eos, -1);
    mx_free(memory);
    mx_gguf_close(g);
    mx_buf_free(&w.b);
}

static void test_refused(void **state)
{
    (void)state;
    variant v = good;
    v.skip = "model";
    expect(v, MX_E_NOT_FOUND, "no vocabulary");
    v.skip = "tokens";
    expect(v, MX_E_NOT_FOUND, "no vocabulary");
    v.skip = "merges"; /* only letters then */
    expect(v, MX_OK, "");
    v = good;
    v.n_types = N - 1;
    expect(v, MX_E_FORMAT, "token_type");
    v = good;
    v.n_scores = N + 1;
    expect(v, MX_E_FORMAT, "scores");
    v = good;
    v.n_types = v.n_scores = 0;
    expect(v, MX_OK, "");
    v = good;
    v.bos = N;
    expect(v, MX_E_FORMAT, "bos_token_id");
    v.bos = UINT32_MAX; /* how some converters write "none" */
    expect(v, MX_OK, "");
    v.bos_type = GW_F32;
    expect(v, MX_E_FORMAT, "bos_token_id");
    v = good;
    v.model = "wordpiece";
    expect(v, MX_E_UNSUPPORTED, "wordpiece");
    v.model = "a name that is much longer than any tokeniser's name would ever have to be";
    expect(v, MX_E_FORMAT, "tokenizer.ggml.model");
}

static void test_every_bit_flipped(void **state)
{
    (void)state;
    gguf_writer w = write_vocabulary(good);
    int64_t live = mx_mem_live();
    for (size_t bit = 0; bit < w.b.len * 8; bit++) {
        mx_errbuf eb = {{0}};
        mx_tokens out = {0};
        w.b.ptr[bit / 8] = (char)(w.b.ptr[bit / 8] ^ 1 << bit % 8);
        mx_err e = run(&w, &out, &eb);
        w.b.ptr[bit / 8] = (char)(w.b.ptr[bit / 8] ^ 1 << bit % 8);
        mx_tokens_free(&out);
        if ((e != MX_OK && eb.text[0] == '\0') || mx_mem_live() != live) {
            fail_msg("bit %zu: %s, \"%s\", %lld blocks left over", bit, mx_err_name(e), eb.text,
                     (long long)(mx_mem_live() - live));
        }
    }
    mx_buf_free(&w.b);
}

static void test_no_memory(void **state)
{
    (void)state;
    gguf_writer w = write_vocabulary(good);
    mx_gguf *g;
    mx_errbuf eb = {{0}};
    mx_vocab_desc d;
    void *memory;
    assert_int_equal(mx_gguf_open_memory(&g, (const uint8_t *)w.b.ptr, w.b.len, &eb), MX_OK);
    mx_mem_fail_at(1);
    mx_err e = mx_vocab_from_gguf(g, &d, &memory, &eb);
    mx_mem_fail_at(0);
    assert_int_equal(e, MX_E_NOMEM);
    assert_null(memory);
    assert_true(eb.text[0] != '\0');
    mx_gguf_close(g);
    mx_buf_free(&w.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),    cmocka_unit_test(test_description),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_every_bit_flipped),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
