/* SPDX-License-Identifier: MIT
 *
 * How each pre-tokeniser splits text into words. Those that have recorded vectors are tested with
 * whole vocabularies elsewhere; here are the rules one by one, and for all of them: the words are
 * the text, the JIT and the interpreter agree, and time grows with length only.
 */
#include "base/buf.h"
#include "base/clock.h"
#include "text/tokenizer_impl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *const names[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "dbrx",
                                    "deepseek-llm", "deepseek-coder", "deepseek-v3", "tekken",
                                    "gpt-4o", "default"};

/* Words joined by '|'; a '|' inside a word is not used by these tests. */
static mx_err join(void *arg, const char *word, size_t n)
{
    mx_buf *b = arg;
    if (b->len > 0) {
        mx_buf_char(b, '|');
    }
    mx_buf_append(b, word, n);
    return MX_OK;
}

static mx_buf split_text(const tok_pre *p, const char *text, size_t n)
{
    mx_buf b = {0};
    void *match = tok_pre_match_create();
    assert_non_null(match);
    mx_buf_reserve(&b, 1);
    assert_int_equal(tok_pre_split(p, match, text, n, join, &b), MX_OK);
    tok_pre_match_destroy(match);
    return b;
}

typedef struct split_case {
    const char *pre, *text, *want;
} split_case;

static const split_case cases[] = {
    {"gpt-2", "I'll say 'REALLY' 123 times!!", "I|'ll| say| '|REALLY|'| 123| times|!!"},
    {"gpt-2", "a  b\n\n c", "a| | b|\n\n| c"},
    {"gpt-2", "x   ", "x|   "},
    {"smollm", "12 a 3", "1|2| a| |3"},
    {"llama-bpe", "I'LL\tgo 12345\n\n\nend", "I|'LL|\tgo| |123|45|\n\n\n|end"},
    {"llama-bpe", "(foo) ...\n x", "(foo|)| ...\n| x"},
    {"llama-bpe", "it'\xC5\xBF", "it|'\xC5\xBF"}, /* the long s is no contraction */
    {"llama-bpe", "a \n \n b", "a| \n \n| b"},
    {"qwen2", "123", "1|2|3"},
    {"qwen2", "e\xCC\x81t", "e|\xCC\x81t"},
    {"qwen35", "e\xCC\x81t", "e\xCC\x81t"},
    {"dbrx", "1234 x", "123|4| x"},
    {"deepseek-coder", "ab \xC3\xA9! x\n1", "ab| \xC3\xA9|!| x|\n|1"},
    {"deepseek-llm", "ab 12, cd", "ab| |12|,| cd"},
    {"deepseek-llm", "ab  \ncd  ", "ab|  |\n|cd|  "},
    {"deepseek-llm", "a\xE4\xB8\xAD\xE6\x96\x87z", "a|\xE4\xB8\xAD\xE6\x96\x87|z"},
    {"deepseek-v3", "abc1234 $x_y .foo", "abc|123|4| $|x|_y| .|foo"},
    {"deepseek-v3", "\xE3\x81\x82\xE4\xB8\xAD" "a e\xCC\x81",
     "\xE3\x81\x82\xE4\xB8\xAD|a| e\xCC\x81"},
    {"tekken", "HelloWorld 12 I'm", "Hello|World| |1|2| I|'m"},
    {"tekken", "HTTPServer/\nx", "HTTPServer|/\n|x"},
    {"gpt-4o", "HelloWorld's 1234 I'M", "Hello|World's| |123|4| I'M"},
    {"gpt-4o", "a//\n\nb", "a|//\n\n|b"},
    {"default", "a+b = 1234, ok", "a|+|b| |=| |123|4|,| ok"},
    /* U+180E is no white space, U+3000 is; Unicode 15 letters are letters. */
    {"gpt-2", "a\xE1\xA0\x8E" "b", "a|\xE1\xA0\x8E|b"},
    {"gpt-2", "a\xE3\x80\x80\xE3\x80\x80" "b", "a|\xE3\x80\x80|\xE3\x80\x80|b"},
    {"gpt-2", "a\xF0\xB1\x8D\x90" "b", "a\xF0\xB1\x8D\x90" "b"},
};

static void test_rules(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        tok_pre p;
        mx_errbuf eb;
        assert_int_equal(tok_pre_create(&p, cases[i].pre, &eb), MX_OK);
        mx_buf got = split_text(&p, cases[i].text, strlen(cases[i].text));
        if (strcmp(got.ptr, cases[i].want) != 0) {
            fail_msg("%s \"%s\"\n  expected %s\n  came     %s", cases[i].pre, cases[i].text,
                     cases[i].want, got.ptr);
        }
        mx_buf_free(&got);
        tok_pre_destroy(&p);
    }
}

static void test_names(void **state)
{
    (void)state;
    tok_pre p;
    mx_errbuf eb;
    assert_int_equal(tok_pre_create(&p, "llama3", &eb), MX_OK);
    assert_true(p.ignore_merges && p.adds_bos);
    tok_pre_destroy(&p);
    assert_int_equal(tok_pre_create(&p, NULL, &eb), MX_OK);
    assert_int_equal(p.n_passes, 4);
    tok_pre_destroy(&p);
    assert_int_equal(tok_pre_create(&p, "", &eb), MX_E_UNSUPPORTED);
    for (size_t i = 0; i < MX_COUNT(names); i++) {
        assert_non_null(strstr(eb.text, names[i]));
    }
}

/* Random text over what the rules look at. */
static size_t random_text(uint64_t *seed, char *out, size_t room)
{
    static const char *const parts[] = {
        " ", "  ", "\n", "\r\n", "\t", "a", "Z", "'s", "'LL", "7", "123", "!", "...", "$", "/", "_",
        "\xC3\xA9", "\xCC\x81", "\xE4\xB8\xAD", "\xE3\x80\x80", "\xE1\xA0\x8E", "\xF0\x9F\x98\x80",
        "\xC2\xA0", "\xC2\xB2", "\xC7\x85", "\xCA\xB0", "\xE2\x80\x99", "word", "\xEF\xBF\xBD",
        "\x1C",
    };
    size_t n = 0;
    for (;;) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        const char *part = parts[(*seed >> 33) % MX_COUNT(parts)];
        if (n + strlen(part) > room) {
            return n;
        }
        memcpy(out + n, part, strlen(part));
        n += strlen(part);
    }
}

typedef struct coverage {
    const char *at;
    bool ok;
} coverage;

static mx_err follows(void *arg, const char *word, size_t n)
{
    coverage *c = arg;
    c->ok = c->ok && n > 0 && word == c->at;
    c->at += n;
    return MX_OK;
}

static void test_words_are_the_text(void **state)
{
    (void)state;
    for (size_t k = 0; k < MX_COUNT(names); k++) {
        tok_pre p;
        mx_errbuf eb;
        uint64_t seed = 7 + k;
        assert_int_equal(tok_pre_create(&p, names[k], &eb), MX_OK);
        for (int round = 0; round < 200; round++) {
            char text[200];
            uint64_t before = seed;
            size_t n = random_text(&seed, text, (size_t)round);
            coverage c = {text, true};
            void *match = tok_pre_match_create();
            assert_int_equal(tok_pre_split(&p, match, text, n, follows, &c), MX_OK);
            tok_pre_match_destroy(match);
            if (!c.ok || c.at != text + n) {
                fail_msg("%s, seed %llu: the words are not the text", names[k],
                         (unsigned long long)before);
            }
            tok_pre interpreted = p;
            interpreted.has_jit = false;
            mx_buf a = split_text(&p, text, n), b = split_text(&interpreted, text, n);
            if (a.len != b.len || memcmp(a.ptr, b.ptr, a.len) != 0) {
                fail_msg("%s, seed %llu: JIT and interpreter differ", names[k],
                         (unsigned long long)before);
            }
            mx_buf_free(&a);
            mx_buf_free(&b);
        }
        tok_pre_destroy(&p);
    }
}

static mx_err count(void *arg, const char *word, size_t n)
{
    (void)word;
    *(size_t *)arg += n;
    return MX_OK;
}

/* Also without the JIT, which some systems forbid. A quadratic rule would take minutes here. */
static void test_linear(void **state)
{
    (void)state;
    static const char *const units[] = {" ", "a", "A", "\n", "\xCC\x81", "1", "!", "'", " \n",
                                        "\xC7\x85", "\xE4\xB8\xAD", "$", "\xE3\x80\x80"};
    enum { SIZE = 100000 };
    char *text = malloc(SIZE);
    assert_non_null(text);
    for (size_t k = 0; k < MX_COUNT(names) * MX_COUNT(units) * 2; k++) {
        const char *name = names[k / 2 / MX_COUNT(units)], *unit = units[k / 2 % MX_COUNT(units)];
        tok_pre p;
        mx_errbuf eb;
        size_t len = strlen(unit), total = 0;
        assert_int_equal(tok_pre_create(&p, name, &eb), MX_OK);
        for (size_t i = 0; i < SIZE; i++) {
            text[i] = unit[i % len];
        }
        size_t n = SIZE - SIZE % len;
        if (len == 1) {
            text[n - 1] = 'x'; /* a run that does not reach the end of the text */
        }
        p.has_jit = p.has_jit && k % 2 == 0;
        void *match = tok_pre_match_create();
        uint64_t begin = mx_now_us();
        mx_err e = tok_pre_split(&p, match, text, n, count, &total);
        uint64_t us = mx_now_us() - begin;
        tok_pre_match_destroy(match);
        if (e != MX_OK || total != n || us > 3000000) {
            fail_msg("%s, unit %zu, %s: %s after %llu us, %zu of %zu bytes", name,
                     k / 2 % MX_COUNT(units), p.has_jit ? "JIT" : "interpreter", mx_err_name(e),
                     (unsigned long long)us, total, n);
        }
        tok_pre_destroy(&p);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_words_are_the_text),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
