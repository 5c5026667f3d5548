/* SPDX-License-Identifier: MIT
 *
 * The memory of sampled ids: what is found, what is not, and its bounds. Random histories are
 * compared with a plain list that is searched from end to end.
 */
#include "api/api_recall.h"

#include "base/mem.h"
#include "tiny_gguf.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const mx_hash256 scope_one = {{1}}, scope_two = {{2}};

static mx_recall *create(size_t max_entries, size_t max_bytes, unsigned sum_bits)
{
    mx_recall_config cfg = {max_entries, max_bytes, sum_bits};
    mx_recall *m;
    mx_errbuf eb;
    assert_int_equal(mx_recall_create(&m, &cfg, &eb), MX_OK);
    return m;
}

static mx_recall_text text_of(const char *text)
{
    return (mx_recall_text){.scope = &scope_one, .is_chat = true, .text = mx_str_of(text)};
}

/* A prompt of n_prompt ids with an answer of the rest. */
static void put(mx_recall *m, const mx_recall_text *t, size_t n_prompt, const int32_t *ids,
                size_t n)
{
    static uint32_t n_puts;
    mx_turn turn = {.n_end = 0};
    if (mx_recall_name(t, n_prompt, &turn)) {
        mx_put_le32(turn.nonce, __atomic_add_fetch(&n_puts, 1, __ATOMIC_RELAXED));
        mx_recall_store(m, t->scope, &(mx_turns){&turn, 1, 1}, ids, n);
    }
}

/* Stores under one id. */
static void store(mx_recall *m, const mx_recall_text *t, int32_t id)
{
    put(m, t, 1, &id, 1);
    assert_true(mx_recall_check(m));
}

/* The one id of what was found, -1 = nothing; the length must be that of `found`. */
static int32_t find(mx_recall *m, const mx_recall_text *t, const char *found)
{
    mx_tokens ids = {0};
    assert_int_equal(mx_tokens_push(&ids, 77), MX_OK); /* what is there stays */
    size_t n = mx_recall_find(m, NULL, t, &ids, NULL);
    if (n != strlen(found)) {
        fail_msg("\"%.*s\": expected %zu bytes, came %zu", (int)t->text.len, t->text.ptr,
                 strlen(found), n);
    }
    assert_int_equal(ids.n, n > 0 ? 2 : 1);
    assert_int_equal(ids.ids[0], 77);
    int32_t id = n > 0 ? ids.ids[1] : -1;
    mx_tokens_free(&ids);
    return id;
}

static int32_t find_text(mx_recall *m, const char *text, const char *found)
{
    mx_recall_text t = text_of(text);
    return find(m, &t, found);
}

static void longest_prefix_is_found(void **state)
{
    (void)state;
    mx_recall *m = create(0, 0, 0);
    assert_int_equal(find_text(m, "anything", ""), -1);
    static const char *const texts[] = {"Hello", "Hello, wor", "Hello, world, how", "Hello, moon"};
    for (int32_t i = 0; i < (int32_t)MX_COUNT(texts); i++) {
        mx_recall_text t = text_of(texts[i]);
        store(m, &t, i);
    }
    assert_int_equal(find_text(m, "Hello, world", texts[1]), 1);
    assert_int_equal(find_text(m, "Hello, world, how are you", texts[2]), 2);
    assert_int_equal(find_text(m, "Hello, world, how", texts[2]), 2); /* all of it */
    assert_int_equal(find_text(m, "Hello, world, ho", texts[1]), 1);
    assert_int_equal(find_text(m, "Hello, moonlight", texts[3]), 3);
    assert_int_equal(find_text(m, "Hello", texts[0]), 0);
    assert_int_equal(find_text(m, "Hell", ""), -1);
    assert_int_equal(find_text(m, "", ""), -1);
    assert_int_equal(find_text(m, "Jello, world", ""), -1);
    mx_recall_text with_nul = text_of("");
    with_nul.text = (mx_str){"Hello\0more", 10};
    store(m, &with_nul, 9);
    with_nul.text.len = 9;
    assert_int_equal(find(m, &with_nul, "Hello"), 0);
    /* The same text again: the newer ids count. With the same ids there is one entry of it. */
    mx_recall_text t = text_of(texts[1]);
    store(m, &t, 5);
    assert_int_equal(find_text(m, "Hello, world", texts[1]), 5);
    store(m, &t, 5);
    mx_recall_stats s;
    mx_recall_get_stats(m, &s);
    assert_int_equal(s.n_entries, MX_COUNT(texts) + 2);
    assert_int_equal(s.n_evicted, 0);
    mx_recall_destroy(m);
}

/* Neither another scope (key, model) nor the other kind of prompt sees a text. */
static void scopes_and_kinds_are_apart(void **state)
{
    (void)state;
    mx_recall *m = create(0, 0, 0);
    mx_recall_text t = text_of("A secret");
    store(m, &t, 1);
    t.scope = &scope_two;
    assert_int_equal(find(m, &t, ""), -1);
    t.is_chat = false;
    assert_int_equal(find(m, &t, ""), -1);
    t.scope = &scope_one;
    assert_int_equal(find(m, &t, ""), -1);
    store(m, &t, 2);
    t.scope = &scope_two;
    store(m, &t, 3);
    assert_int_equal(find(m, &t, "A secret"), 3);
    t.scope = &scope_one;
    assert_int_equal(find(m, &t, "A secret"), 2);
    assert_int_equal(find_text(m, "A secret!", "A secret"), 1);
    mx_recall_destroy(m);
}

/* <|u|>hi<|a|>yes: control tokens must be where they were, and the answer has none. */
static void controls_must_agree(void **state)
{
    (void)state;
    mx_recall *m = create(0, 0, 0);
    const mx_span spans[] = {{0, 5}, {7, 12}};
    mx_recall_text t = text_of("<|u|>hi<|a|>yes");
    t.controls = spans;
    t.n_controls = 2;
    store(m, &t, 1);

    mx_recall_text next = text_of("<|u|>hi<|a|>yes<|e|>");
    const mx_span good[] = {{0, 5}, {7, 12}, {15, 20}};
    next.controls = good;
    next.n_controls = 3;
    assert_int_equal(find(m, &next, "<|u|>hi<|a|>yes"), 1);
    const struct { mx_span s[3]; size_t n; } bad[] = {
        {{{0, 0}}, 0},                      /* the user wrote all that */
        {{{0, 5}}, 1},
        {{{7, 12}}, 1},
        {{{0, 5}, {7, 11}}, 2},
        {{{0, 5}, {6, 12}}, 2},
        {{{0, 5}, {7, 12}, {14, 20}}, 3},   /* one begins in the answer */
        {{{0, 5}, {7, 12}, {13, 14}}, 3},   /* one lies in it */
    };
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        next.controls = bad[i].s;
        next.n_controls = bad[i].n;
        assert_int_equal(find(m, &next, ""), -1);
    }
    /* Both readings can be remembered side by side. */
    next.controls = bad[1].s;
    next.n_controls = 1;
    store(m, &next, 2);
    assert_int_equal(find(m, &next, "<|u|>hi<|a|>yes<|e|>"), 2);
    next.controls = good;
    next.n_controls = 3;
    assert_int_equal(find(m, &next, "<|u|>hi<|a|>yes"), 1);
    mx_recall_destroy(m);
}

static void bounds_hold(void **state)
{
    (void)state;
    mx_recall *m = create(3, 0, 0);
    static const char *const texts[] = {"alpha", "beta", "gamma", "delta", "eps"};
    for (int32_t i = 0; i < 3; i++) {
        mx_recall_text t = text_of(texts[i]);
        store(m, &t, i);
    }
    assert_int_equal(find_text(m, "alphabet", "alpha"), 0); /* used: "beta" is the oldest now */
    mx_recall_text t = text_of(texts[3]);
    store(m, &t, 3);
    assert_int_equal(find_text(m, "beta", ""), -1);
    assert_int_equal(find_text(m, "alpha", "alpha"), 0);
    assert_int_equal(find_text(m, "gamma", "gamma"), 2);
    t = text_of(texts[4]);
    store(m, &t, 4);
    assert_int_equal(find_text(m, "delta", ""), -1);
    mx_recall_stats s;
    mx_recall_get_stats(m, &s);
    assert_int_equal(s.n_entries, 3);
    assert_int_equal(s.n_evicted, 2);
    mx_recall_destroy(m);

    m = create(0, 10000, 0);
    int32_t *ids = mx_calloc(3000, sizeof *ids);
    for (int32_t i = 0; i < 40; i++) {
        char text[3] = {(char)('a' + i % 26), (char)('0' + i / 26), '\0'};
        t = text_of(text);
        put(m, &t, 225, ids, 225);
        mx_tokens found = {0};
        assert_int_equal(mx_recall_find(m, NULL, &t, &found, NULL), 2);
        assert_int_equal(found.n, 225);
        mx_tokens_free(&found);
    }
    mx_recall_get_stats(m, &s);
    assert_in_range(s.n_entries, 5, 11);
    assert_in_range(s.bytes, 900 * s.n_entries, 10000);
    /* What never fits throws nothing out; what makes no sense is not stored. */
    mx_recall_text short_text = text_of("short");
    put(m, &short_text, 1, ids, 3000);
    put(m, &short_text, 1, ids, 0);
    put(m, &short_text, 0, ids, 1);
    put(m, &short_text, 2, ids, 1);
    mx_recall_stats after;
    mx_recall_get_stats(m, &after);
    assert_memory_equal(&s, &after, sizeof s);
    mx_free(ids);
    mx_recall_destroy(m);
}

/* ---- random histories against a list ------------------------------------------------------- */

enum { N_KEPT = 3000 };

typedef struct kept {
    char text[40];
    mx_span span;
    const mx_hash256 *scope;
    int32_t id;
} kept;

static bool kept_fits(const kept *k, const mx_recall_text *t)
{
    size_t n = strlen(k->text);
    return k->scope == t->scope && n <= t->text.len && memcmp(k->text, t->text.ptr, n) == 0 &&
           k->span.begin == t->controls[0].begin &&
           k->span.end == mx_min_size(t->controls[0].end, n);
}

/* Texts of two letters and few lengths, so that many share prefixes. */
static void like_a_list(unsigned sum_bits, uint64_t seed)
{
    mx_recall *m = create(N_KEPT, 0, sum_bits);
    kept *list = mx_calloc(N_KEPT, sizeof *list);
    size_t n_found = 0;
    uint64_t rng = seed;
    for (int32_t round = 0; round < N_KEPT; round++) {
        kept k = {.id = round, .span = {0, 1 + mx_tiny_random(&rng) % 2}};
        size_t n = 3 + mx_tiny_random(&rng) % 12;
        for (size_t i = 0; i < n; i++) {
            k.text[i] = "ab"[mx_tiny_random(&rng) % 2];
        }
        k.scope = mx_tiny_random(&rng) % 2 ? &scope_one : &scope_two;
        mx_recall_text t = {.scope = k.scope, .text = mx_str_of(k.text), .controls = &k.span,
                            .n_controls = 1};
        const kept *want = NULL;
        for (int32_t i = 0; i < round; i++) {
            if (kept_fits(&list[i], &t) &&
                (want == NULL || strlen(list[i].text) >= strlen(want->text)))
            {
                want = &list[i];
            }
        }
        int32_t id = find(m, &t, want != NULL ? want->text : "");
        if (id != (want != NULL ? want->id : -1)) {
            fail_msg("seed %llu, round %d: expected id %d, came %d", (unsigned long long)seed,
                     round, want != NULL ? want->id : -1, id);
        }
        n_found += want != NULL;
        put(m, &t, 1, &k.id, 1);
        list[round] = k;
    }
    assert_true(n_found > N_KEPT / 2);
    assert_true(mx_recall_check(m));
    mx_free(list);
    mx_recall_destroy(m);
}

static void collisions_change_nothing(void **state)
{
    (void)state;
    like_a_list(0, 11);
    like_a_list(1, 12);
    like_a_list(3, 13);
}

/* ---- memory that runs out ------------------------------------------------------------------ */

static void no_memory_is_no_failure(void **state)
{
    (void)state;
    int64_t live = mx_mem_live();
    bool was_stored = false, was_found = false;
    for (uint64_t k = 1; k < 12; k++) {
        mx_recall *m = create(0, 0, 0);
        mx_recall_text t = text_of("some text");
        mx_mem_fail_at(k);
        put(m, &t, 2, (const int32_t[]){1, 2}, 2);
        mx_mem_fail_at(0);
        assert_true(mx_recall_check(m));
        mx_recall_stats s;
        mx_recall_get_stats(m, &s);
        was_stored = s.n_entries == 1;
        put(m, &t, 2, (const int32_t[]){1, 2}, 2);
        mx_tokens ids = {0};
        mx_mem_fail_at(k);
        mx_turns turns = {0};
        size_t n = mx_recall_find(m, NULL, &t, &ids, &turns);
        mx_mem_fail_at(0);
        was_found = n > 0;
        assert_int_equal(ids.n, n > 0 ? 2 : 0);
        mx_turns_free(&turns);
        mx_tokens_free(&ids);
        assert_true(mx_recall_check(m));
        mx_recall_destroy(m);
        assert_int_equal(mx_mem_live(), live);
        if (k == 1) {
            assert_false(was_stored || was_found); /* the test does make something fail */
        }
    }
    assert_true(was_stored && was_found);
}

/* ---- threads ------------------------------------------------------------------------------- */

/* Entries are evicted all the time while others hold them; ids always are those of their text. */
static void *hammer(void *arg)
{
    mx_recall *m = arg;
    static _Atomic uint64_t next_seed = 1;
    uint64_t rng = next_seed++;
    for (int i = 0; i < 1500; i++) {
        char text[64];
        uint32_t a = (uint32_t)(mx_tiny_random(&rng) % 30);
        uint32_t b = (uint32_t)(mx_tiny_random(&rng) % 30);
        int n_short = snprintf(text, sizeof text, "conversation %02u", a);
        snprintf(text + n_short, sizeof text - (size_t)n_short, ", turn %02u", b);
        mx_recall_text whole = text_of(text), begin = whole;
        begin.text.len = (size_t)n_short;
        put(m, &begin, 1, (const int32_t[]){(int32_t)a}, 1);
        put(m, &whole, 2, (const int32_t[]){(int32_t)a, (int32_t)b}, 2);
        mx_tokens ids = {0};
        size_t n = mx_recall_find(m, NULL, &whole, &ids, NULL);
        /* Two digits always: no other text of this test is a beginning of this one. */
        bool ok = n == whole.text.len   ? ids.n == 2 && ids.ids[1] == (int32_t)b
                  : n == begin.text.len ? ids.n == 1
                                        : n == 0;
        ok = ok && (n == 0 || ids.ids[0] == (int32_t)a);
        mx_tokens_free(&ids);
        if (!ok) {
            return m;
        }
    }
    return NULL;
}

static void threads_share_it(void **state)
{
    (void)state;
    int64_t live = mx_mem_live();
    mx_recall *m = create(20, 0, 0);
    pthread_t threads[4];
    for (size_t i = 0; i < MX_COUNT(threads); i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, hammer, m), 0);
    }
    for (size_t i = 0; i < MX_COUNT(threads); i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
    assert_true(mx_recall_check(m));
    mx_recall_stats s;
    mx_recall_get_stats(m, &s);
    assert_true(s.n_evicted > 100 && s.n_found > 100);
    mx_recall_destroy(m);
    assert_int_equal(mx_mem_live(), live);
}

/* ---- what was shown ------------------------------------------------------------------------ */

/* Letters, two bytes that are half a character each, a control token, a word of two letters. */
enum { A, B, LEAD, TRAIL, CONTROL, AB };

static mx_tokenizer *letters(void)
{
    static const mx_str tokens[] = {{"a", 1}, {"b", 1}, {"\xC3\x83", 2}, {"\xC2\xA9", 2},
                                    {"<c>", 3}, {"ab", 2}};
    static const int32_t types[] = {1, 1, 1, 1, 3, 1};
    mx_vocab_desc d = {.model = "gpt2", .pre = "gpt-2", .n_tokens = MX_COUNT(tokens),
                       .tokens = tokens, .types = types, .bos_id = -1, .eos_id = -1, .eot_id = -1,
                       .eom_id = -1, .unk_id = -1, .pad_id = -1, .add_bos = -1, .add_eos = -1,
                       .add_space_prefix = -1};
    mx_tokenizer *t;
    mx_errbuf eb;
    assert_int_equal(mx_tokenizer_create(&t, &d, &eb), MX_OK);
    return t;
}

/* What is found for a text behind the prompt "p" (id 7): its ids in one number, in base 10. */
static int64_t answer_of(mx_recall *m, const mx_tokenizer *tok, const mx_recall_text *t,
                         size_t *n_bytes)
{
    mx_tokens ids = {0};
    mx_turns turns = {0};
    *n_bytes = mx_recall_find(m, tok, t, &ids, &turns);
    int64_t sum = 0;
    for (size_t i = 0; i < ids.n; i++) {
        sum = sum * 10 + ids.ids[i];
    }
    assert_int_equal(turns.n, ids.n > 1);
    if (turns.n > 0) {
        static const uint8_t none[MX_TURN_NONCE] = {0};
        mx_buf text = {0};
        bool is_whole = memcmp(turns.list[0].nonce, none, sizeof none) != 0;
        assert_true(is_whole == mx_recall_said(m, tok, &scope_one, turns.list[0].nonce, &text));
        assert_true(!is_whole || text.len == *n_bytes - 1);
        mx_buf_free(&text);
        assert_int_equal(turns.list[0].n_prompt, 1);
        assert_int_equal(turns.list[0].n_end, ids.n);
    }
    mx_turns_free(&turns);
    mx_tokens_free(&ids);
    return sum;
}

/* The answer counts as far as it spells the text: a template or a client may cut its end. */
static void answers_count_as_far_as_they_agree(void **state)
{
    (void)state;
    mx_tokenizer *tok = letters();
    mx_recall *m = create(0, 0, 0);
    mx_recall_text p = text_of("p");
    put(m, &p, 1, (const int32_t[]){7, A, B, AB}, 4);
    put(m, &p, 1, (const int32_t[]){7, AB, A, LEAD}, 4);
    const struct {
        const char *text;
        int64_t ids;
        size_t n_bytes;
    } cases[] = {
        {"pabab", 7015, 5},
        {"pababa", 7015, 5},
        {"pabaxx", 750, 4},  /* the second says more of it */
        {"pab", 75, 3},      /* both: the newer */
        {"paxx", 70, 2},
        {"pxx", 7, 1},
        {"p", 7, 1},
        {"", 0, 0},
        {"xab", 0, 0},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_recall_text t = text_of(cases[i].text);
        size_t n_bytes;
        int64_t ids = answer_of(m, tok, &t, &n_bytes);
        if (ids != cases[i].ids || n_bytes != cases[i].n_bytes) {
            fail_msg("\"%s\": expected %lld, %zu bytes; came %lld, %zu", cases[i].text,
                     (long long)cases[i].ids, cases[i].n_bytes, (long long)ids, n_bytes);
        }
    }
    /* Not into a control token, though its letters are those of the answer. */
    const mx_span control = {3, 5};
    mx_recall_text t = text_of("pabab");
    t.controls = &control;
    t.n_controls = 1;
    size_t n_bytes;
    assert_int_equal(answer_of(m, tok, &t, &n_bytes), 75);
    assert_int_equal(n_bytes, 3);
    /* What goes on where another ended takes its place; the beginning of one adds nothing. */
    mx_recall_stats before, s;
    mx_recall_get_stats(m, &before);
    put(m, &p, 1, (const int32_t[]){7, A, B, AB, A}, 5);
    put(m, &p, 1, (const int32_t[]){7, A, B}, 3);
    put(m, &p, 1, (const int32_t[]){7}, 1);
    mx_recall_get_stats(m, &s);
    assert_int_equal(s.n_entries, before.n_entries);
    t = text_of("pababa");
    assert_int_equal(answer_of(m, tok, &t, &n_bytes), 70150);
    assert_true(mx_recall_check(m));
    mx_recall_destroy(m);
    mx_tokenizer_destroy(tok);
}

/* Of turns that are known by name only: those that begin the text, longest first. */
/* Stores `ids` behind "p" as the answer that has this number for its nonce. */
static void put_named(mx_recall *m, uint32_t nonce, const int32_t *ids, size_t n)
{
    mx_recall_text p = text_of("p");
    mx_turn turn;
    assert_true(mx_recall_name(&p, 1, &turn));
    mx_put_le32(turn.nonce, nonce);
    mx_recall_store(m, &scope_one, &(mx_turns){&turn, 1, 1}, ids, n);
    assert_true(mx_recall_check(m));
}

static bool says(mx_recall *m, const mx_tokenizer *tok, uint32_t number, const char *text)
{
    uint8_t nonce[MX_TURN_NONCE] = {0};
    mx_put_le32(nonce, number);
    mx_buf out = {0};
    bool ok = mx_recall_said(m, tok, &scope_one, nonce, &out) && out.len == strlen(text) &&
              memcmp(out.ptr, text, out.len) == 0;
    mx_buf_free(&out);
    return ok;
}

/* A request that is retried, or that several clients send at once, has the same answer more than
 * once. The calls in it have other ids each time, and any of them may come back. */
static void repeated_answer_keeps_its_names(void **state)
{
    (void)state;
    mx_tokenizer *tok = letters();
    mx_recall *m = create(0, 0, 0);
    const int32_t ids[] = {7, A, B, AB};
    put_named(m, 1, ids, 4);
    put_named(m, 2, ids, 4);
    put_named(m, 3, ids, 4);
    put_named(m, 1, ids, 4); /* read from the folder again */
    mx_recall_stats s;
    mx_recall_get_stats(m, &s);
    assert_int_equal(s.n_entries, 1);
    for (uint32_t i = 1; i <= 3; i++) {
        assert_true(says(m, tok, i, "abab"));
    }
    assert_false(says(m, tok, 4, "abab"));
    /* What goes on where that one ended is another answer. */
    put_named(m, 4, (const int32_t[]){7, A, B, AB, A}, 5);
    assert_true(says(m, tok, 4, "ababa"));
    assert_false(says(m, tok, 3, "ababa"));
    /* However often: the latest are known. */
    for (uint32_t i = 10; i < 40; i++) {
        put_named(m, i, (const int32_t[]){7, B}, 2);
    }
    assert_true(says(m, tok, 39, "b"));
    assert_true(says(m, tok, 32, "b"));
    assert_false(says(m, tok, 31, "b"));
    mx_recall_destroy(m);
    mx_tokenizer_destroy(tok);
}

static void far_turns_are_matched(void **state)
{
    (void)state;
    static const char *const texts[] = {"p", "pabxx", "pab", "q", "paba", "pa"};
    mx_turn list[MX_COUNT(texts)];
    for (size_t i = 0; i < MX_COUNT(texts); i++) {
        mx_recall_text t = text_of(texts[i]);
        assert_true(mx_recall_name(&t, 1, &list[i]));
    }
    list[5].sum ^= 1; /* not its own sum: not looked at */
    uint32_t order[MX_COUNT(texts)];
    mx_recall_text t = text_of("pabab");
    assert_int_equal(mx_recall_match(&t, list, MX_COUNT(texts), 0, order), 3);
    assert_int_equal(order[0], 4);
    assert_int_equal(order[1], 2);
    assert_int_equal(order[2], 0);
    assert_int_equal(mx_recall_match(&t, list, MX_COUNT(texts), 3, order), 1);
    assert_int_equal(order[0], 4);
    list[4].text.b[0] ^= 1; /* the sum alone proves nothing */
    assert_int_equal(mx_recall_match(&t, list, MX_COUNT(texts), 1, order), 1);
    assert_int_equal(order[0], 2);
    t.is_chat = false;
    assert_int_equal(mx_recall_match(&t, list, MX_COUNT(texts), 0, order), 0);
}

static void only_what_was_seen_is_kept(void **state)
{
    (void)state;
    mx_tokenizer *t = letters();
    assert_int_equal(mx_tokenizer_piece(t, LEAD, false).len, 1); /* C3 */
    const struct {
        int32_t ids[5];
        size_t n;
        const char *seen;
        size_t want, want_bytes;
    } cases[] = {
        {{A, B, AB}, 3, "abab", 3, 4},
        {{0}, 0, "", 0, 0},
        {{A, B}, 2, "", 0, 0},
        {{A, B, AB}, 3, "aba", 2, 2},                 /* a stop string took half of the last one */
        {{A, B, AB}, 3, "ab", 2, 2},
        {{A, LEAD, TRAIL, B}, 4, "a\xC3\xA9" "b", 4, 4},
        {{A, LEAD, TRAIL, B}, 4, "a\xC3\xA9", 3, 3},
        {{A, LEAD, B}, 3, "a\xEF\xBF\xBD" "b", 1, 1}, /* half a character was replaced */
        {{A, LEAD}, 2, "a\xEF\xBF\xBD", 1, 1},
        {{A, TRAIL, B}, 3, "a\xEF\xBF\xBD" "b", 1, 1},
        {{A, CONTROL, B}, 3, "ab", 1, 1},             /* nobody saw it: what follows is not kept */
        {{CONTROL, A}, 2, "a", 0, 0},
        {{A, 99, B}, 3, "ab", 1, 1},                  /* no such id */
        {{B, A}, 2, "ab", 0, 0},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        size_t n_bytes = 99;
        size_t n = mx_recall_shown(t, cases[i].ids, cases[i].n, mx_str_of(cases[i].seen), &n_bytes);
        if (n != cases[i].want || n_bytes != cases[i].want_bytes) {
            fail_msg("case %zu: expected %zu ids, %zu bytes; came %zu, %zu", i, cases[i].want,
                     cases[i].want_bytes, n, n_bytes);
        }
    }
    mx_tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(longest_prefix_is_found),
        cmocka_unit_test(scopes_and_kinds_are_apart),
        cmocka_unit_test(controls_must_agree),
        cmocka_unit_test(bounds_hold),
        cmocka_unit_test(collisions_change_nothing),
        cmocka_unit_test(no_memory_is_no_failure),
        cmocka_unit_test(threads_share_it),
        cmocka_unit_test(only_what_was_seen_is_kept),
        cmocka_unit_test(answers_count_as_far_as_they_agree),
        cmocka_unit_test(repeated_answer_keeps_its_names),
        cmocka_unit_test(far_turns_are_matched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
