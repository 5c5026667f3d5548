/* SPDX-License-Identifier: MIT
 *
 * The tokeniser with small vocabularies made here: which tokens text can become, where control
 * tokens are recognised, ill-formed text, long words, memory that runs out.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_VOCAB = 400 };

/* A vocabulary under construction. Ids 0..255 are the bytes in a byte-level one. */
typedef struct maker {
    mx_vocab_desc d;
    mx_str tokens[MAX_VOCAB];
    int32_t types[MAX_VOCAB];
    float scores[MAX_VOCAB];
    mx_str merges[64];
    char alphabet[256][4];
} maker;

static int32_t add(maker *m, const char *text, int32_t type)
{
    size_t i = m->d.n_tokens++;
    assert_true(i < MAX_VOCAB);
    m->tokens[i] = mx_str_of(text);
    m->types[i] = type;
    return (int32_t)i;
}

static void add_merge(maker *m, const char *text)
{
    assert_true(m->d.n_merges < MX_COUNT(m->merges));
    m->merges[m->d.n_merges++] = mx_str_of(text);
}

static void start(maker *m, const char *model, const char *pre)
{
    memset(m, 0, sizeof *m);
    m->d = (mx_vocab_desc){.model = model, .pre = pre, .tokens = m->tokens, .types = m->types,
                           .scores = m->scores, .merges = m->merges, .bos_id = -1, .eos_id = -1,
                           .eot_id = -1, .eom_id = -1, .unk_id = -1, .pad_id = -1, .add_bos = -1,
                           .add_eos = -1, .add_space_prefix = -1};
}

/* Bytes 0..255, then "ab", "abc", "he", "ll", "hell" by merges, then specials. */
enum { AB = 256, ABC, HE, LL, HELL, CTRL, CTRL_LONG, USER, USER_LETTER, ABCD_USER };

static void start_bytes(maker *m, const char *pre)
{
    start(m, "gpt2", pre);
    uint32_t next = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        size_t n = mx_utf8_encode(own ? b : next++, m->alphabet[b]);
        m->tokens[b] = (mx_str){m->alphabet[b], n};
        m->types[b] = MX_TOKEN_NORMAL;
    }
    m->d.n_tokens = 256;
    add(m, "ab", MX_TOKEN_NORMAL);
    add(m, "abc", MX_TOKEN_NORMAL);
    add(m, "he", MX_TOKEN_NORMAL);
    add(m, "ll", MX_TOKEN_NORMAL);
    add(m, "hell", MX_TOKEN_NORMAL);
    add(m, "<|x|>", MX_TOKEN_CONTROL);
    add(m, "<|x|>y", MX_TOKEN_CONTROL);
    add(m, "<tool>", MX_TOKEN_USER_DEFINED);
    add(m, "\xC3\x80", MX_TOKEN_USER_DEFINED); /* the letter U+00C0, not the byte C0 */
    add(m, "<|x", MX_TOKEN_USER_DEFINED);
    add_merge(m, "a b");
    add_merge(m, "ab c");
    add_merge(m, "h e");
    add_merge(m, "l l");
    add_merge(m, "he ll");
}

static mx_tokenizer *create(const maker *m)
{
    mx_tokenizer *t;
    mx_errbuf eb = {{0}};
    if (mx_tokenizer_create(&t, &m->d, &eb) != MX_OK) {
        fail_msg("not created: %s", eb.text);
    }
    return t;
}

static void expect_ids(const mx_tokenizer *t, mx_str text, const mx_span *spans, size_t n_spans,
                       bool add_special, const int32_t *want, size_t n)
{
    mx_tokens got = {0};
    assert_int_equal(mx_tokenizer_encode(t, text.ptr, text.len, spans, n_spans, add_special, &got),
                     MX_OK);
    bool same = got.n == n && (n == 0 || memcmp(got.ids, want, n * sizeof *want) == 0);
    if (!same) {
        print_message("text \"%.*s\"\n  expected:", (int)text.len, text.ptr);
        for (size_t i = 0; i < n; i++) {
            print_message(" %d", want[i]);
        }
        print_message("\n  came:    ");
        for (size_t i = 0; i < got.n; i++) {
            print_message(" %d", got.ids[i]);
        }
        fail_msg("other tokens");
    }
    mx_tokens_free(&got);
}

#define EXPECT(t, text, spans, n_spans, ...)                                                       \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        expect_ids(t, MX_STR(text), spans, n_spans, false, want_, MX_COUNT(want_));                \
    } while (0)

/* The pieces of a text's tokens, one behind the other. */
static mx_buf round_trip(const mx_tokenizer *t, const char *text, size_t n)
{
    mx_tokens got = {0};
    mx_buf back = {0};
    assert_int_equal(mx_tokenizer_encode(t, text, n, NULL, 0, false, &got), MX_OK);
    for (size_t i = 0; i < got.n; i++) {
        mx_str p = mx_tokenizer_piece(t, got.ids[i], false);
        mx_buf_append(&back, p.ptr, p.len);
    }
    mx_tokens_free(&got);
    return back;
}

static void test_merges(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    mx_tokenizer *t = create(&m);
    expect_ids(t, MX_STR(""), NULL, 0, false, NULL, 0);
    EXPECT(t, "abc", NULL, 0, ABC);
    EXPECT(t, "abab", NULL, 0, AB, AB);
    EXPECT(t, "abcc", NULL, 0, ABC, 'c');
    EXPECT(t, "hello", NULL, 0, HELL, 'o');
    EXPECT(t, "helll", NULL, 0, HELL, 'l');
    EXPECT(t, "hlll", NULL, 0, 'h', LL, 'l'); /* of equal pairs the leftmost */
    EXPECT(t, "he ll", NULL, 0, HE, ' ', LL);
    assert_int_equal(mx_tokenizer_size(t), 266);
    assert_int_equal(mx_tokenizer_type(t, CTRL), MX_TOKEN_CONTROL);
    assert_int_equal(mx_tokenizer_bos(t), -1);
    assert_int_equal(mx_tokenizer_piece(t, CTRL, false).len, 0);
    assert_true(mx_str_eq(mx_tokenizer_piece(t, CTRL, true), MX_STR("<|x|>")));
    assert_true(mx_str_eq(mx_tokenizer_piece(t, USER, false), MX_STR("<tool>")));
    assert_true(mx_str_eq(mx_tokenizer_piece(t, USER_LETTER, false), MX_STR("\xC3\x80")));
    assert_true(mx_str_eq(mx_tokenizer_piece(t, 0xC0, false), MX_STR("\xC0")));
    assert_int_equal(mx_tokenizer_piece(t, -1, true).len, 0);
    assert_int_equal(mx_tokenizer_piece(t, 266, true).len, 0);
    assert_int_equal(mx_tokenizer_text(t, INT32_MAX).len, 0);
    mx_tokenizer_destroy(t);
}

static void test_control_only_in_markup(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    m.d.n_tokens--; /* without the user-defined "<|x" */
    mx_tokenizer *t = create(&m);
    const mx_span all = {0, 5}, wide = {0, 6}, begin = {0, 4}, end = {1, 5}, none = {2, 2};
    const mx_span touching[] = {{0, 2}, {2, 2}, {2, 5}}, apart[] = {{0, 2}, {3, 5}};
    EXPECT(t, "<|x|>", &all, 1, CTRL);
    EXPECT(t, "<|x|>", NULL, 0, '<', '|', 'x', '|', '>');
    EXPECT(t, "<|x|>", &begin, 1, '<', '|', 'x', '|', '>');
    EXPECT(t, "<|x|>", &end, 1, '<', '|', 'x', '|', '>');
    EXPECT(t, "<|x|>", &none, 1, '<', '|', 'x', '|', '>');
    EXPECT(t, "<|x|>", touching, 3, CTRL);
    EXPECT(t, "<|x|>", apart, 2, '<', '|', 'x', '|', '>');
    /* The longest that lies inside the markup. */
    EXPECT(t, "<|x|>y", &wide, 1, CTRL_LONG);
    EXPECT(t, "<|x|>y", &all, 1, CTRL, 'y');
    /* User-defined ones everywhere, across borders, too. */
    EXPECT(t, "<tool>", NULL, 0, USER);
    EXPECT(t, "<tool>", touching, 3, USER);
    EXPECT(t, "a\xC3\x80z", NULL, 0, 'a', USER_LETTER, 'z');
    /* Text is one piece, whatever the borders: "ab" over a border still merges. */
    const mx_span first = {0, 1};
    EXPECT(t, "abc", &first, 1, ABC);
    /* A data marker between two markup ones. */
    const mx_span outer[] = {{0, 5}, {10, 15}};
    EXPECT(t, "<|x|><|x|><|x|>", outer, 2, CTRL, '<', '|', 'x', '|', '>', CTRL);
    mx_tokenizer_destroy(t);
}

static void test_longest_special_wins(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    mx_tokenizer *t = create(&m);
    const mx_span all = {0, 6};
    EXPECT(t, "<|x|>y", &all, 1, CTRL_LONG);
    EXPECT(t, "<|x|>y", NULL, 0, ABCD_USER, '|', '>', 'y');
    EXPECT(t, "<|x", NULL, 0, ABCD_USER);
    EXPECT(t, "<|", NULL, 0, '<', '|');
    EXPECT(t, "<<|xx", NULL, 0, '<', ABCD_USER, 'x');
    mx_tokenizer_destroy(t);
}

/* Neither a merge nor the whole-word rule makes a control token out of text. */
static void test_text_never_becomes_control(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "llama-bpe");
    int32_t ctl = add(&m, "zz", MX_TOKEN_CONTROL);
    int32_t unk = add(&m, "qq", MX_TOKEN_UNKNOWN);
    int32_t end = add(&m, "</s>", MX_TOKEN_NORMAL); /* control by its name */
    add_merge(&m, "z z");
    add_merge(&m, "q q");
    mx_tokenizer *t = create(&m);
    EXPECT(t, "zz", NULL, 0, 'z', 'z');
    EXPECT(t, "qq", NULL, 0, 'q', 'q');
    EXPECT(t, "</s>", NULL, 0, '<', '/', 's', '>');
    const mx_span all = {0, 4};
    EXPECT(t, "zzqq", &all, 1, ctl, unk);
    EXPECT(t, "</s>", &all, 1, end);
    assert_int_equal(mx_tokenizer_type(t, end), MX_TOKEN_CONTROL);
    assert_true(mx_tokenizer_is_eog(t, end));
    assert_false(mx_tokenizer_is_eog(t, ctl));
    assert_false(mx_tokenizer_is_eog(t, -1));
    mx_tokenizer_destroy(t);
}

static void test_ignore_merges(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "llama-bpe");
    int32_t whole = add(&m, "xyz", MX_TOKEN_NORMAL); /* no merge leads to it */
    mx_tokenizer *t = create(&m);
    EXPECT(t, "xyz", NULL, 0, whole);
    mx_tokenizer_destroy(t);
    m.d.pre = "qwen2";
    t = create(&m);
    EXPECT(t, "xyz", NULL, 0, 'x', 'y', 'z');
    mx_tokenizer_destroy(t);
}

static void test_bos_and_eos(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "llama-bpe");
    m.d.bos_id = CTRL;
    m.d.eos_id = CTRL_LONG;
    mx_tokenizer *t = create(&m);
    const mx_span all = {0, 12};
    const int32_t plain[] = {CTRL, 'q'}, both[] = {CTRL, 'q', CTRL_LONG}, empty[] = {CTRL};
    const int32_t marked[] = {CTRL, CTRL_LONG};
    assert_true(mx_tokenizer_adds_bos(t)); /* by the pre-tokeniser's default */
    expect_ids(t, MX_STR("q"), NULL, 0, true, plain, 2);
    expect_ids(t, MX_STR("q"), NULL, 0, false, plain + 1, 1);
    expect_ids(t, MX_STR(""), NULL, 0, true, empty, 1);
    expect_ids(t, MX_STR("<|x|>q"), &all, 1, true, plain, 2); /* not twice */
    mx_tokenizer_destroy(t);
    m.d.add_eos = 1;
    t = create(&m);
    expect_ids(t, MX_STR("q"), NULL, 0, true, both, 3);
    expect_ids(t, MX_STR("<|x|><|x|>y"), &all, 1, true, marked, 2);
    mx_tokenizer_destroy(t);
    m.d.add_bos = 0;
    t = create(&m);
    assert_false(mx_tokenizer_adds_bos(t));
    expect_ids(t, MX_STR("q"), NULL, 0, true, both + 1, 2);
    mx_tokenizer_destroy(t);
}

static void test_tokens_append(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "llama-bpe");
    m.d.bos_id = CTRL;
    mx_tokenizer *t = create(&m);
    mx_tokens got = {0};
    assert_int_equal(mx_tokens_push(&got, 7), MX_OK);
    assert_int_equal(mx_tokenizer_encode(t, "abc", 3, NULL, 0, true, &got), MX_OK);
    assert_int_equal(got.n, 3);
    assert_int_equal(got.ids[0], 7);
    assert_int_equal(got.ids[1], CTRL);
    assert_int_equal(got.ids[2], ABC);
    mx_tokens_free(&got);
    assert_null(got.ids);
    mx_tokenizer_destroy(t);
}

/* Each ill-formed sequence becomes one U+FFFD, and spans keep their place around it. */
static void test_ill_formed(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    mx_tokenizer *t = create(&m);
    static const struct { const char *text; size_t n; const char *want; } cases[] = {
        {"\xFF", 1, "\xEF\xBF\xBD"},
        {"a\xC3", 2, "a\xEF\xBF\xBD"},
        {"\xE2\x82(", 3, "\xEF\xBF\xBD("},
        {"\xC0\x80", 2, "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xED\xA0\x80z", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz"},
        {"\xF4\x90\x80\x80", 4, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"a\0b", 3, NULL},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_buf back = round_trip(t, cases[i].text, cases[i].n);
        size_t n = cases[i].want != NULL ? strlen(cases[i].want) : cases[i].n;
        assert_int_equal(back.len, n);
        assert_memory_equal(back.ptr, cases[i].want != NULL ? cases[i].want : cases[i].text, n);
        mx_buf_free(&back);
    }
    const mx_span spans[] = {{1, 6}, {8, 13}};
    EXPECT(t, "\xFF<|x|>\xE2\x82<|x|>", spans, 2, 0xEF, 0xBF, 0xBD, CTRL, 0xEF, 0xBF, 0xBD, CTRL);
    /* A border inside an ill-formed sequence, and spans that end beyond the text. */
    const mx_span odd[] = {{0, 1}, {2, 99}};
    EXPECT(t, "\xE2\x82<|x|>", odd, 2, 0xEF, 0xBF, 0xBD, CTRL);
    mx_tokenizer_destroy(t);
}

/* A vocabulary without tokens for some bytes drops them and keeps the others. */
static void test_missing_bytes(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    m.types['x'] = MX_TOKEN_CONTROL;
    mx_tokenizer *t = create(&m);
    EXPECT(t, "axb", NULL, 0, 'a', 'b');
    mx_tokenizer_destroy(t);
}

/* ---- SPM ------------------------------------------------------------------------------------- */

#define BLANK "\xE2\x96\x81"

enum { UNK, BOS, EOS, SP, A, B, SPM_AB, SP_AB, BYTE0 };

static void start_spm(maker *m)
{
    static char names[256][8];
    start(m, "llama", NULL);
    add(m, "<unk>", MX_TOKEN_UNKNOWN);
    add(m, "<s>", MX_TOKEN_CONTROL);
    add(m, "</s>", MX_TOKEN_CONTROL);
    add(m, BLANK, MX_TOKEN_NORMAL);
    add(m, "a", MX_TOKEN_NORMAL);
    add(m, "b", MX_TOKEN_NORMAL);
    add(m, "ab", MX_TOKEN_NORMAL);
    add(m, BLANK "ab", MX_TOKEN_NORMAL);
    for (unsigned b = 0; b < 256; b++) {
        snprintf(names[b], sizeof names[b], "<0x%02X>", b);
        add(m, names[b], MX_TOKEN_BYTE);
    }
    const float scores[] = {0, 0, 0, -10, -11, -12, -1, -2};
    memcpy(m->scores, scores, sizeof scores);
}

static void test_spm(void **state)
{
    (void)state;
    maker m;
    start_spm(&m);
    int32_t user = add(&m, BLANK "t", MX_TOKEN_USER_DEFINED);
    mx_tokenizer *t = create(&m);
    const mx_span all = {0, 8};
    const int32_t with_bos[] = {BOS, SP_AB};
    expect_ids(t, MX_STR(""), NULL, 0, false, NULL, 0);
    expect_ids(t, MX_STR("ab"), NULL, 0, true, with_bos, 2);
    EXPECT(t, "ab ab", NULL, 0, SP_AB, SP_AB);
    EXPECT(t, "abab", NULL, 0, SP_AB, SPM_AB);
    EXPECT(t, "ba", NULL, 0, SP, B, A);
    EXPECT(t, "a" BLANK "b", NULL, 0, SP, A, SP, B);
    EXPECT(t, "\xC3\xA9", NULL, 0, SP, BYTE0 + 0xC3, BYTE0 + 0xA9);
    EXPECT(t, "a<s>a", &all, 1, SP, A, BOS, SP, A);
    EXPECT(t, "b tb", NULL, 0, SP, B, user, SP, B); /* the blank of a user-defined token */
    EXPECT(t, "<s>", NULL, 0, SP, BYTE0 + '<', BYTE0 + 's', BYTE0 + '>');
    EXPECT(t, "<0x41>", NULL, 0, SP, BYTE0 + '<', BYTE0 + '0', BYTE0 + 'x', BYTE0 + '4',
           BYTE0 + '1', BYTE0 + '>');
    assert_true(mx_str_eq(mx_tokenizer_piece(t, SP_AB, false), MX_STR(" ab")));
    assert_true(mx_str_eq(mx_tokenizer_text(t, SP_AB), MX_STR(BLANK "ab")));
    assert_true(mx_str_eq(mx_tokenizer_piece(t, BYTE0 + 10, false), MX_STR("\n")));
    assert_true(mx_tokenizer_is_eog(t, EOS));
    mx_tokenizer_destroy(t);
    m.d.add_space_prefix = 0;
    m.d.n_tokens = 8; /* no byte tokens: unknown */
    t = create(&m);
    EXPECT(t, "ab", NULL, 0, SPM_AB);
    EXPECT(t, "xa", NULL, 0, UNK, A);
    mx_tokenizer_destroy(t);
}

/* ---- the rest of a text ---------------------------------------------------------------------- */

static void expect_rest(const mx_tokenizer *t, mx_str text, const mx_span *spans, size_t n_spans,
                        size_t at, int32_t before, const int32_t *want, size_t n)
{
    mx_tokens got = {0};
    if (before >= 0) {
        assert_int_equal(mx_tokens_push(&got, before), MX_OK);
    }
    size_t first = got.n;
    assert_int_equal(mx_tokenizer_encode_rest(t, text.ptr, text.len, spans, n_spans, at, &got),
                     MX_OK);
    if (got.n - first != n || (n > 0 && memcmp(got.ids + first, want, n * sizeof *want) != 0)) {
        print_message("\"%.*s\" from %zu: expected %zu tokens, came", (int)text.len, text.ptr, at,
                      n);
        for (size_t i = first; i < got.n; i++) {
            print_message(" %d", got.ids[i]);
        }
        fail_msg("other tokens");
    }
    mx_tokens_free(&got);
}

#define EXPECT_REST(t, text, spans, n_spans, at, before, ...)                                      \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        expect_rest(t, MX_STR(text), spans, n_spans, at, before, want_, MX_COUNT(want_));          \
    } while (0)

static void test_rest_of_a_text(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    m.d.n_tokens--; /* without the user-defined "<|x" */
    mx_tokenizer *t = create(&m);
    EXPECT_REST(t, "abc", NULL, 0, 1, 'a', 'b', 'c');  /* no token reaches across */
    EXPECT_REST(t, "abab", NULL, 0, 2, AB, AB);
    expect_rest(t, MX_STR("ab"), NULL, 0, 2, AB, NULL, 0);
    const mx_span spans[] = {{0, 5}, {7, 12}}, wide = {0, 10};
    EXPECT_REST(t, "<|x|>ab<|x|>", spans, 2, 7, AB, CTRL);
    EXPECT_REST(t, "<|x|>ab<|x|>", spans, 2, 5, CTRL, AB, CTRL);
    EXPECT_REST(t, "<|x|>ab<|x|>", spans, 1, 7, AB, '<', '|', 'x', '|', '>');
    EXPECT_REST(t, "<|x|><|x|>", &wide, 1, 5, CTRL, CTRL); /* a span that lies across */
    EXPECT_REST(t, "<tool>", NULL, 0, 1, '<', 't', 'o', 'o', 'l', '>');
    mx_tokenizer_destroy(t);

    start_spm(&m);
    m.d.add_eos = 1;
    t = create(&m);
    assert_true(mx_tokenizer_adds_bos(t) && mx_tokenizer_adds_eos(t));
    const mx_span control = {2, 6};
    EXPECT_REST(t, "abab", NULL, 0, 2, SP_AB, SPM_AB); /* behind text there is no blank, */
    EXPECT_REST(t, "ab ab", NULL, 0, 2, SP_AB, SP_AB);
    EXPECT_REST(t, "</s>ab", NULL, 0, 4, EOS, SP_AB);   /* behind a special token there is one, */
    EXPECT_REST(t, "ab</s>ab", &control, 1, 2, SP_AB, EOS, SP_AB); /* also one that comes later, */
    EXPECT_REST(t, "ab", NULL, 0, 0, -1, SP_AB);        /* and where the text begins */
    mx_tokenizer_destroy(t);
}

static void test_find_controls(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    mx_tokenizer *t = create(&m);
    const mx_str text = MX_STR("<|x|>y<tool><|x|><|x|>");
    const struct { mx_span spans[3]; size_t n; mx_span want[3]; size_t n_want; } cases[] = {
        {{{0, 0}}, 0, {{0, 0}}, 0},
        {{{0, 22}}, 1, {{0, 6}, {12, 17}, {17, 22}}, 3},
        {{{0, 5}, {6, 16}}, 2, {{0, 5}}, 1},
        {{{1, 14}, {14, 19}}, 2, {{12, 17}}, 1},
        {{{0, 7}, {17, 22}}, 2, {{0, 6}, {17, 22}}, 2},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_span *got;
        size_t n;
        assert_int_equal(mx_tokenizer_find_controls(t, text, cases[i].spans, cases[i].n, &got, &n),
                         MX_OK);
        if (n != cases[i].n_want ||
            (n > 0 && memcmp(got, cases[i].want, n * sizeof *got) != 0))
        {
            fail_msg("case %zu: expected %zu control tokens, came %zu", i, cases[i].n_want, n);
        }
        mx_free(got);
    }
    mx_tokenizer_destroy(t);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    (void)state;
    maker m;
    mx_tokenizer *t;
    mx_errbuf eb;
    start_bytes(&m, "no-such");
    assert_int_equal(mx_tokenizer_create(&t, &m.d, &eb), MX_E_UNSUPPORTED);
    assert_null(t);
    assert_non_null(strstr(eb.text, "no-such"));
    assert_non_null(strstr(eb.text, "qwen35"));
    assert_non_null(strstr(eb.text, "default"));
    start_bytes(&m, "gpt-2");
    m.d.model = "bert";
    assert_int_equal(mx_tokenizer_create(&t, &m.d, &eb), MX_E_UNSUPPORTED);
    assert_non_null(strstr(eb.text, "bert"));
    start_bytes(&m, "gpt-2");
    m.d.bos_id = 9999;
    assert_int_equal(mx_tokenizer_create(&t, &m.d, &eb), MX_E_FORMAT);
    start_bytes(&m, "gpt-2");
    m.d.n_tokens = 0;
    assert_int_equal(mx_tokenizer_create(&t, &m.d, &eb), MX_E_FORMAT);
}

/* Empty and doubled texts, merges that make no sense, unknown types: no reason to refuse a file. */
static void test_odd_vocabularies(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "gpt-2");
    add(&m, "", MX_TOKEN_NORMAL);
    add(&m, "", MX_TOKEN_CONTROL);
    add(&m, "<|x|>", MX_TOKEN_CONTROL);
    add(&m, "\xFF\xFE", MX_TOKEN_CONTROL);
    add(&m, "\xC3", MX_TOKEN_USER_DEFINED);
    int32_t twice = add(&m, "ab", MX_TOKEN_NORMAL);
    add(&m, "ok", 99);
    add_merge(&m, "");
    add_merge(&m, " ");
    add_merge(&m, "nothing");
    add_merge(&m, "a ");
    add_merge(&m, " a");
    add_merge(&m, "a b");
    add_merge(&m, "o k");
    mx_tokenizer *t = create(&m);
    EXPECT(t, "ab", NULL, 0, twice);
    EXPECT(t, "\xC3\xA9", NULL, 0, 0xC3, 0xA9);
    EXPECT(t, "ok", NULL, 0, 272);
    mx_tokenizer_destroy(t);
}

/* ---- size and faults ------------------------------------------------------------------------- */

/* Against the definition, done naively: long words take the tree, the naive loop does not. */
static void naive(const int32_t *ids, size_t n, mx_tokens *out)
{
    static const int32_t rules[][3] = {
        {'a', 'b', AB}, {AB, 'c', ABC}, {'h', 'e', HE}, {'l', 'l', LL}, {HE, LL, HELL},
    };
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(mx_tokens_push(out, ids[i]), MX_OK);
    }
    for (;;) {
        size_t best = out->n, rank = MX_COUNT(rules);
        for (size_t i = 0; i + 1 < out->n; i++) {
            for (size_t r = 0; r < rank; r++) {
                if (out->ids[i] == rules[r][0] && out->ids[i + 1] == rules[r][1]) {
                    best = i;
                    rank = r;
                }
            }
        }
        if (rank == MX_COUNT(rules)) {
            return;
        }
        out->ids[best] = rules[rank][2];
        memmove(out->ids + best + 1, out->ids + best + 2, (out->n - best - 2) * sizeof *out->ids);
        out->n--;
    }
}

static void test_long_words_like_the_definition(void **state)
{
    (void)state;
    static const char letters[] = "abchel";
    char pairs[6 * 6 * 2 + 1] = {0};
    maker m;
    start_bytes(&m, "gpt-2");
    /* A token in which any two letters meet, so that words are not cut before they are merged. */
    for (size_t i = 0; i < 36; i++) {
        pairs[2 * i] = letters[i / 6];
        pairs[2 * i + 1] = letters[i % 6];
    }
    add(&m, pairs, MX_TOKEN_NORMAL);
    mx_tokenizer *t = create(&m);
    uint64_t seed = 20261129;
    for (int round = 0; round < 60; round++) {
        char text[1500];
        int32_t ids[1500];
        size_t n = round < 30 ? (size_t)(60 + round) : (size_t)(100 + 45 * (round - 30));
        for (size_t i = 0; i < n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            text[i] = letters[(seed >> 33) % 6];
            ids[i] = text[i];
        }
        mx_tokens want = {0};
        naive(ids, n, &want);
        expect_ids(t, (mx_str){text, n}, NULL, 0, false, want.ids, want.n);
        mx_tokens_free(&want);
    }
    mx_tokenizer_destroy(t);
}

/* One word of a megabyte, made of what hurts: the time limit is thirty times what it takes, and a
 * quadratic loop would need hours. */
static void test_hostile_text_is_linear(void **state)
{
    (void)state;
    static const char *const units[] = {"a", "ab", "hell", " ", "\n", "\t ", "1", "!", "'",
                                        "\xCC\x81", "A", "\xE4\xB8\x80", " \n", "<|", "\xFF", "a ",
                                        "$", "  x"};
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "dbrx",
                                       "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken",
                                       "gpt-4o", "default"};
    enum { N = 300000 };
    char *text = malloc(N);
    assert_non_null(text);
    for (size_t p = 0; p < MX_COUNT(pres); p++) {
        maker m;
        start_bytes(&m, pres[p]);
        mx_tokenizer *t = create(&m);
        for (size_t u = 0; u < MX_COUNT(units); u++) {
            size_t len = strlen(units[u]);
            for (size_t i = 0; i < N; i++) {
                text[i] = units[u][i % len];
            }
            size_t n = N - N % len;
            text[n - 1] = u == 3 ? 'x' : text[n - 1]; /* blanks that do not reach the end */
            mx_tokens got = {0};
            uint64_t begin = mx_now_us();
            assert_int_equal(mx_tokenizer_encode(t, text, n, NULL, 0, false, &got), MX_OK);
            uint64_t us = mx_now_us() - begin;
            if (us > 5000000) {
                fail_msg("%s, unit %zu: %d bytes took %llu us", pres[p], u, (int)N,
                         (unsigned long long)us);
            }
            assert_true(got.n > 0);
            mx_tokens_free(&got);
        }
        mx_tokenizer_destroy(t);
    }
    free(text);
}

static void test_no_memory(void **state)
{
    (void)state;
    int64_t live = mx_mem_live();
    for (int spm = 0; spm < 2; spm++) {
        maker m;
        if (spm) {
            start_spm(&m);
        } else {
            start_bytes(&m, "deepseek-coder");
        }
        uint64_t n_calls = mx_mem_calls();
        mx_tokenizer_destroy(create(&m));
        n_calls = mx_mem_calls() - n_calls;
        assert_true(n_calls > 8);
        for (uint64_t k = 1; k <= n_calls; k++) {
            mx_tokenizer *t;
            mx_errbuf eb = {{0}};
            mx_mem_fail_at(k);
            mx_err e = mx_tokenizer_create(&t, &m.d, &eb);
            mx_mem_fail_at(0);
            /* MX_OK: it was an allocation of the JIT compiler, which can be done without. */
            assert_true(e == MX_OK || (e == MX_E_NOMEM && t == NULL && eb.text[0] != '\0'));
            mx_tokenizer_destroy(t);
            assert_int_equal(mx_mem_live(), live);
        }

        char text[200];
        memset(text, 'a', sizeof text);
        text[100] = (char)0xFF;
        mx_tokenizer *t = create(&m);
        const mx_span span = {0, 1};
        mx_err e = MX_E_NOMEM;
        uint64_t k = 1;
        for (; e != MX_OK && k < 200; k++) {
            mx_tokens got = {0};
            mx_mem_fail_at(k);
            e = mx_tokenizer_encode(t, text, sizeof text, &span, 1, true, &got);
            mx_mem_fail_at(0);
            assert_true(e == MX_OK || (e == MX_E_NOMEM && got.n == 0));
            mx_tokens_free(&got);
        }
        assert_true(e == MX_OK && k > 4);
        for (k = 1, e = MX_E_NOMEM; e != MX_OK && k < 200; k++) {
            mx_tokens got = {0};
            assert_int_equal(mx_tokens_push(&got, 7), MX_OK);
            mx_mem_fail_at(k);
            e = mx_tokenizer_encode_rest(t, text, sizeof text, &span, 1, 50, &got);
            mx_mem_fail_at(0);
            assert_true(e == MX_OK || (e == MX_E_NOMEM && got.n == 1));
            mx_tokens_free(&got);
        }
        assert_true(e == MX_OK && k > 4);
        const mx_str mark = spm ? MX_STR("<s>") : MX_STR("<|x|>");
        const mx_span all = {0, mark.len};
        mx_span *controls;
        size_t n_controls;
        mx_mem_fail_at(1);
        e = mx_tokenizer_find_controls(t, mark, &all, 1, &controls, &n_controls);
        mx_mem_fail_at(0);
        assert_int_equal(e, MX_E_NOMEM);
        mx_tokenizer_destroy(t);
        assert_int_equal(mx_mem_live(), live);
    }
}

/* Many threads, one tokeniser, the same answers (a race is for ThreadSanitizer to see). */
static const char shared_text[] = "hello abc, <tool> 12 abcabc!\n  hell";

static void *encode_often(void *arg)
{
    static const int32_t want[] = {HELL, 'o', ' ', ABC, ',', ' ', USER, ' ', '1', '2', ' ', ABC,
                                   ABC, '!', '\n', ' ', ' ', HELL};
    for (int i = 0; i < 300; i++) {
        mx_tokens got = {0};
        if (mx_tokenizer_encode(arg, shared_text, sizeof shared_text - 1, NULL, 0, false, &got) !=
                MX_OK ||
            got.n != MX_COUNT(want) || memcmp(got.ids, want, sizeof want) != 0)
        {
            return arg;
        }
        mx_tokens_free(&got);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    maker m;
    start_bytes(&m, "smollm");
    mx_tokenizer *t = create(&m);
    pthread_t threads[4];
    for (size_t i = 0; i < MX_COUNT(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
    }
    for (size_t i = 0; i < MX_COUNT(threads); i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
    mx_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_control_only_in_markup),
        cmocka_unit_test(test_longest_special_wins),
        cmocka_unit_test(test_text_never_becomes_control),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_bos_and_eos),
        cmocka_unit_test(test_tokens_append),
        cmocka_unit_test(test_ill_formed),
        cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_rest_of_a_text),
        cmocka_unit_test(test_find_controls),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_odd_vocabularies),
        cmocka_unit_test(test_long_words_like_the_definition),
        cmocka_unit_test(test_hostile_text_is_linear),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
