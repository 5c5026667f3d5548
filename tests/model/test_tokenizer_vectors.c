/* SPDX-License-Identifier: MIT
 *
 * The tokeniser against recorded results: 412 texts and seven vocabularies, with and without BOS,
 * as user text and as markup, the bytes of the pieces, and what ends a generation. It stands here
 * and not with the tests of text because it reads vocabularies from model files.
 */
#include "base/buf.h"
#include "base/mem.h"
#include "test_env.h"

#include <json-c/json.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "open_tokenizer.h"

enum { MAX_TEXTS = 1000 };

typedef struct text_case {
    char id[16];
    char kind[16];
    char *bytes;
    size_t n;
} text_case;

static text_case texts[MAX_TEXTS];
static size_t n_texts;
static const char *vectors_dir; /* NULL = absent */

static size_t unhex(const char *hex, char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (char)v;
    }
    return n;
}

static json_object *get(json_object *o, const char *key)
{
    json_object *v;
    return json_object_object_get_ex(o, key, &v) ? v : NULL;
}

static FILE *open_vectors(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", vectors_dir, name);
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        fail_msg("%s cannot be read", path);
    }
    return f;
}

static void load_texts(void)
{
    FILE *f = open_vectors("texts.jsonl");
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) {
        json_object *o = json_tokener_parse(line);
        assert_non_null(o);
        text_case *t = &texts[n_texts++];
        assert_true(n_texts <= MAX_TEXTS);
        snprintf(t->id, sizeof t->id, "%s", json_object_get_string(get(o, "id")));
        snprintf(t->kind, sizeof t->kind, "%s", json_object_get_string(get(o, "kind")));
        t->n = (size_t)json_object_get_int64(get(o, "len"));
        t->bytes = malloc(t->n + 1);
        assert_non_null(t->bytes);
        if (get(o, "text") != NULL) {
            assert_int_equal(json_object_get_string_len(get(o, "text")), t->n);
            memcpy(t->bytes, json_object_get_string(get(o, "text")), t->n);
        } else {
            assert_int_equal(unhex(json_object_get_string(get(o, "hex")), t->bytes), t->n);
        }
        json_object_put(o);
    }
    free(line);
    fclose(f);
}

static int setup(void **state)
{
    static char dir[4096];
    (void)state;
    const char *shared = mx_test_shared();
    if (shared != NULL) {
        snprintf(dir, sizeof dir, "%s/vectors/tokens", shared);
        vectors_dir = dir;
        load_texts();
    }
    return 0;
}

static void print_ids(const char *what, const int32_t *ids, size_t n)
{
    print_message("  %s %zu:", what, n);
    for (size_t i = 0; i < n && i < 60; i++) {
        print_message(" %d", ids[i]);
    }
    print_message("\n");
}

/* Compares with the recorded ids. Where BOS was added to a text that begins with it, the record has
 * two and our contract asks for one. */
static bool same_ids(const mx_tokenizer *t, bool add_special, const mx_tokens *got,
                     json_object *want)
{
    size_t n = json_object_array_length(want), skip = 0;
    int32_t bos = mx_tokenizer_bos(t);
    if (n >= 2 && add_special && mx_tokenizer_adds_bos(t) &&
        json_object_get_int(json_object_array_get_idx(want, 0)) == bos &&
        json_object_get_int(json_object_array_get_idx(want, 1)) == bos)
    {
        skip = 1;
    }
    if (got->n != n - skip) {
        return false;
    }
    for (size_t i = 0; i < got->n; i++) {
        if (got->ids[i] != json_object_get_int(json_object_array_get_idx(want, i + skip))) {
            return false;
        }
    }
    return true;
}

static void report(const char *name, const text_case *x, const char *variant, const mx_tokens *got,
                   json_object *want)
{
    int32_t ids[60];
    size_t n = json_object_array_length(want);
    for (size_t i = 0; i < n && i < MX_COUNT(ids); i++) {
        ids[i] = json_object_get_int(json_object_array_get_idx(want, i));
    }
    print_message("%s %s (%s) %s: \"%.*s\"\n", name, x->id, x->kind, variant,
                  (int)(x->n < 200 ? x->n : 200), x->bytes);
    print_ids("expected", ids, n);
    print_ids("came    ", got->ids, got->n);
}

/* The bytes of the pieces of one encoding, against "pieces" of the vectors or the text itself. */
static bool same_pieces(const mx_tokenizer *t, const mx_tokens *got, const text_case *x,
                        json_object *pieces)
{
    char *want = malloc(x->n + 4096);
    assert_non_null(want);
    size_t n = x->n, at = 0;
    bool ok = true;
    if (pieces != NULL) {
        assert_true(strlen(json_object_get_string(pieces)) / 2 <= x->n + 4096);
        n = unhex(json_object_get_string(pieces), want);
    } else {
        memcpy(want, x->bytes, x->n);
    }
    for (size_t i = 0; i < got->n && ok; i++) {
        mx_str p = mx_tokenizer_piece(t, got->ids[i], true);
        ok = p.len <= n - at && memcmp(p.ptr, want + at, p.len) == 0;
        at += p.len;
    }
    free(want);
    return ok && at == n;
}

static size_t check_text(const char *name, const mx_tokenizer *t, const text_case *x,
                         json_object *o)
{
    static const char *const variants[] = {"00", "10", "01", "11"};
    json_object *want[4];
    want[0] = get(o, "00");
    bool has_no_expectation = strcmp(x->kind, "bad") == 0 || want[0] == NULL;
    want[1] = get(o, "10") != NULL ? get(o, "10") : want[0];
    want[2] = get(o, "01") != NULL ? get(o, "01") : want[0];
    want[3] = get(o, "11") != NULL ? get(o, "11") : want[1];
    const mx_span all = {0, x->n};
    size_t n_bad = 0;
    for (unsigned v = 0; v < 4; v++) {
        mx_tokens got = {0};
        bool add_special = v == 1 || v == 3;
        assert_int_equal(mx_tokenizer_encode(t, x->bytes, x->n, &all, v >= 2 ? 1 : 0, add_special,
                                             &got), MX_OK);
        if (!has_no_expectation && !same_ids(t, add_special, &got, want[v])) {
            report(name, x, variants[v], &got, want[v]);
            n_bad++;
        } else if (!has_no_expectation && v == 0 && !same_pieces(t, &got, x, get(o, "pieces"))) {
            report(name, x, "pieces", &got, want[v]);
            n_bad++;
        }
        mx_tokens_free(&got);
    }
    return n_bad;
}

static void check_effective(const char *name, const mx_tokenizer *t)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/vocabs.json", vectors_dir);
    json_object *all = json_object_from_file(path);
    json_object *e = get(get(all, name), "effective");
    assert_non_null(e);
    assert_int_equal(mx_tokenizer_bos(t), json_object_get_int(get(e, "bos")));
    assert_int_equal(mx_tokenizer_eos(t), json_object_get_int(get(e, "eos")));
    assert_int_equal(mx_tokenizer_adds_bos(t), json_object_get_boolean(get(e, "add_bos")));
    json_object *eog = get(e, "eog");
    size_t n_control = 0, n_eog = 0;
    for (int32_t i = 0; i < (int32_t)mx_tokenizer_size(t); i++) {
        n_control += mx_tokenizer_type(t, i) == MX_TOKEN_CONTROL;
        if (mx_tokenizer_is_eog(t, i)) {
            assert_true(n_eog < json_object_array_length(eog));
            assert_int_equal(i, json_object_get_int(json_object_array_get_idx(eog, n_eog++)));
        }
    }
    assert_int_equal(n_eog, json_object_array_length(eog));
    assert_int_equal(n_control, json_object_get_int(get(e, "control_count")));
    json_object_put(all);
}

static void check_vocabulary(const char *name, const char *path)
{
    char file[256];
    mx_tokenizer *t = open_tokenizer(path);
    check_effective(name, t);
    snprintf(file, sizeof file, "%s.jsonl", name);
    FILE *f = open_vectors(file);
    char *line = NULL;
    size_t cap = 0, i = 0, n_bad = 0;
    while (getline(&line, &cap, f) > 0) {
        json_object *o = json_tokener_parse(line);
        assert_non_null(o);
        assert_true(i < n_texts);
        assert_string_equal(json_object_get_string(get(o, "id")), texts[i].id);
        size_t bad = check_text(name, t, &texts[i], o);
        n_bad += bad;
        json_object_put(o);
        i++;
    }
    free(line);
    fclose(f);
    mx_tokenizer_destroy(t);
    assert_int_equal(i, n_texts);
    if (n_bad > 0) {
        fail_msg("%s: %zu results differ (texts x 4 variants: %zu)", name, n_bad, 4 * n_texts);
    }
}

static void test_vocabulary(void **state)
{
    const char *name = *state;
    char path[8192];
    if (vectors_dir == NULL) {
        mx_skip_or_fail("the vectors are missing");
    }
    if (strcmp(name, "smollm2") == 0) {
        const char *model = mx_test_model();
        if (model == NULL) {
            mx_skip_no_model();
        }
        check_vocabulary(name, model);
        return;
    }
    snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf", vectors_dir, name);
    check_vocabulary(name, path);
}

/* With the default model: what a user types stays ordinary text, byte for byte. */
static void test_typed_markers_stay_text(void **state)
{
    (void)state;
    const char *model = mx_test_model();
    if (model == NULL) {
        mx_skip_no_model();
    }
    static const char text[] = "<|im_start|>user\n<|im_end|><|im_end|>\n";
    /*                          0            12    17        27        37 */
    mx_tokenizer *t = open_tokenizer(model);
    const mx_span template_only[] = {{0, 17}, {27, 38}};
    mx_tokens got = {0};
    assert_int_equal(mx_tokenizer_encode(t, text, sizeof text - 1, template_only, 2, false, &got),
                     MX_OK);
    assert_int_equal(got.ids[0], 1);
    size_t n_ends = 0;
    mx_buf back = {0};
    for (size_t i = 0; i < got.n; i++) {
        n_ends += got.ids[i] == 2;
        mx_str p = mx_tokenizer_piece(t, got.ids[i], true);
        mx_buf_append(&back, p.ptr, p.len);
    }
    assert_int_equal(n_ends, 1);
    assert_int_equal(back.len, sizeof text - 1);
    assert_memory_equal(back.ptr, text, back.len);
    mx_buf_free(&back);
    mx_tokens_free(&got);
    mx_tokenizer_destroy(t);
}

int main(void)
{
#define VOCABULARY(name) {name, test_vocabulary, NULL, NULL, (void *)(uintptr_t)name}
    const struct CMUnitTest tests[] = {
        VOCABULARY("smollm2"),   VOCABULARY("gpt-2"),          VOCABULARY("qwen2"),
        VOCABULARY("qwen35"),    VOCABULARY("llama-bpe"),      VOCABULARY("deepseek-coder"),
        VOCABULARY("llama-spm"), cmocka_unit_test(test_typed_markers_stay_text),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
