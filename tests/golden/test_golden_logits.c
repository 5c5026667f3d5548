/* SPDX-License-Identifier: MIT
 *
 * Golden hashes of raw logits. A machine has one instruction set, so "all levels give the same
 * bits" can only be shown against values that are kept: every machine and level compares with those
 * in logits.txt. When this test fails, either a kernel is wrong or the numerics changed; the latter
 * needs a new name in kern.h and docs/numerics.md, or caches written before would be mixed with
 * pages of other numbers.
 *
 * Every architecture, weight type, page type and width of activations occurs; the default model
 * reads 32 tokens and chooses 32 more. `test_golden_logits --write` makes the file anew, and refuses
 * to change a hash under the old name of the numerics.
 */
#include "golden_smollm2.h"
#include "model_rig.h"
#include "test_env.h"
#include "tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The working folder of every test is the source root. */
#define TABLE_PATH "tests/golden/logits.txt"

/* Sanitizers make the kernels ten to thirty times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SLOW_BUILD 1
#else
#define IS_SLOW_BUILD 0
#endif

enum {
    N_TOKENS = 70,
    N_FEW = 8,      /* of the default model, for the levels that take seconds for a token */
    N_CHOSEN = 32,  /* tokens that the default model adds to those of golden_smollm2.h */
    /* How many hashes there are, in numbers: a model, a way to run it or a line of the file that
     * goes must be taken out here, too, and so does not go unseen. */
    N_TINY_HASHES = 80,       /* 12 models in 4 ways, 16 block types with 16 and 8 bits */
    N_TINY_HASHES_SLOW = 40,  /* in slow builds: 12 models in 2 ways, 16 block types with 16 bits */
    N_DEFAULT_HASHES = 6,     /* few tokens in 4 ways, all and the chosen ones in 2 */
    N_DEFAULT_HASHES_FEW = 4, /* where only the portable level is */
    N_DEFAULT_HASHES_SLOW = 2,
    TABLE_CAP = 256,
    LINE_CAP = 256,
};

typedef struct entry {
    char name[96];
    char sha256[65]; /* of f32 logits [tokens][n_vocab], little endian */
} entry;

typedef struct table {
    char numerics[64];
    size_t n;
    entry entries[TABLE_CAP];
} table;

static table golden;   /* what the file says */
static table computed; /* what this machine says */

static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, MX_CPU_AVX2, MX_CPU_AVXVNNI, MX_CPU_AVX512,
                                          MX_CPU_NEON};

/* How a model can be run: each is numbers of its own. */
static const struct {
    mx_kv_type kv_type;
    mx_act_type act_type;
    bool is_basic; /* runs in slow builds, too; the default model goes on after its few tokens */
    const char *name;
} variants[] = {
    {MX_KV_F16, MX_ACT_16, true, "f16 pages"},
    {MX_KV_F32, MX_ACT_16, true, "f32 pages"},
    {MX_KV_Q8, MX_ACT_16, false, "q8 pages"},
    {MX_KV_F16, MX_ACT_8, false, "f16 pages, 8-bit activations"},
};
enum { VARIANT_DEFAULT = 0, VARIANT_ACT_8 = 3 };

static const struct {
    const char *name;
    mx_qtype type;
} block_types[] = {
    {"only f32", MX_F32},       {"only f16", MX_F16},       {"only bf16", MX_BF16},
    {"only q4_0", MX_Q4_0},     {"only q4_1", MX_Q4_1},     {"only q5_0", MX_Q5_0},
    {"only q5_1", MX_Q5_1},     {"only q8_0", MX_Q8_0},     {"only q2_k", MX_Q2_K},
    {"only q3_k", MX_Q3_K},     {"only q4_k", MX_Q4_K},     {"only q5_k", MX_Q5_K},
    {"only q6_k", MX_Q6_K},     {"only iq4_nl", MX_IQ4_NL}, {"only iq4_xs", MX_IQ4_XS},
    {"only mxfp4", MX_MXFP4},
};

/* ---- the table -------------------------------------------------------------------------------- */

static const entry *find(const table *t, const char *name)
{
    for (size_t i = 0; i < t->n; i++) {
        if (strcmp(t->entries[i].name, name) == 0) {
            return &t->entries[i];
        }
    }
    return NULL;
}

static bool add(table *t, const char *name, const char *sha256)
{
    if (t->n == TABLE_CAP || find(t, name) != NULL) {
        return false;
    }
    entry *e = &t->entries[t->n++];
    snprintf(e->name, sizeof e->name, "%.90s", name);
    snprintf(e->sha256, sizeof e->sha256, "%.64s", sha256);
    return true;
}

/* "# comment", "numerics NAME", "HASH  NAME" */
static bool table_read(table *t)
{
    char line[LINE_CAP];
    FILE *f = fopen(TABLE_PATH, "re");
    bool is_ok = f != NULL;
    *t = (table){.n = 0};
    while (is_ok && fgets(line, sizeof line, f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#') {
            continue;
        }
        if (strncmp(line, "numerics ", 9) == 0) {
            snprintf(t->numerics, sizeof t->numerics, "%.60s", line + 9);
        } else if (strlen(line) > 66 && line[64] == ' ' && line[65] == ' ') {
            line[64] = '\0';
            is_ok = add(t, line + 66, line);
        } else {
            is_ok = false;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return is_ok;
}

static bool table_write(const table *t)
{
    FILE *f = fopen(TABLE_PATH, "we");
    if (f == NULL) {
        return false;
    }
    fprintf(f, "# SHA-256 of raw logits, equal on every machine: see test_golden_logits.c\n"
               "numerics %s\n", MX_NUMERICS_NAME);
    for (size_t i = 0; i < t->n; i++) {
        fprintf(f, "%s  %s\n", t->entries[i].sha256, t->entries[i].name);
    }
    return fclose(f) == 0;
}

/* Takes one result, which must be what a level before this one gave. Returns the mistakes. */
static size_t take(const char *name, const char *sha256, mx_cpu_level level)
{
    const entry *before = find(&computed, name);
    if (before != NULL && strcmp(before->sha256, sha256) != 0) {
        print_error("%s: %s gives %s, a level before it %s\n", name, mx_cpu_level_name(level),
                    sha256, before->sha256);
        return 1;
    }
    if (before == NULL && !add(&computed, name, sha256)) {
        print_error("%s: no room\n", name);
        return 1;
    }
    return 0;
}

/* Compares what was computed from entry `from` on with the file. */
static size_t compare(size_t from)
{
    size_t n_wrong = 0;
    for (size_t i = from; i < computed.n; i++) {
        const entry *got = &computed.entries[i], *want = find(&golden, got->name);
        if (want == NULL || strcmp(want->sha256, got->sha256) != 0) {
            print_error("%s: expected %s, got %s\n", got->name,
                        want == NULL ? "(no entry)" : want->sha256, got->sha256);
            n_wrong++;
        }
    }
    return n_wrong;
}

/* ---- the models ------------------------------------------------------------------------------- */

static void hash_floats(const float *x, size_t n, char hex[65])
{
    uint8_t *le = mx_calloc(n, 4);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        mx_put_le32(le + 4 * i, bits);
    }
    mx_hash256 h = mx_sha256_of(le, n * 4);
    mx_hash256_hex(&h, hex);
    mx_free(le);
}

static int32_t largest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return (int32_t)best;
}

/* Logits of n tokens read at once, then of n_chosen more, each the likeliest after those before. */
static void hash_logits(rig *r, const int32_t *tokens, uint32_t n, uint32_t n_chosen, char hex[65])
{
    const size_t rows = (size_t)n + n_chosen;
    float *hidden = mx_calloc((size_t)n * r->n_embd, sizeof *hidden);
    float *logits = mx_calloc(rows * r->n_vocab, sizeof *logits);
    mx_seq s;
    mx_seq_init(&s, r->kv, &r->root);
    rig_feed(r, &s, tokens, n, hidden);
    rig_logits(r, hidden, n, logits);
    for (uint32_t i = 0; i < n_chosen; i++) {
        float *last = logits + (size_t)(n + i) * r->n_vocab;
        const int32_t token = largest(last - r->n_vocab, r->n_vocab);
        rig_feed(r, &s, &token, 1, hidden);
        rig_logits(r, hidden, 1, last);
    }
    hash_floats(logits, rows * r->n_vocab, hex);
    mx_seq_free(&s);
    mx_free(hidden);
    mx_free(logits);
}

static size_t check_tiny(const char *model, const mx_tiny_spec *spec, size_t variant)
{
    char name[96];
    snprintf(name, sizeof name, "%s, %s", model, variants[variant].name);
    size_t n_wrong = 0;
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        if (mx_kern_get(levels[l])->level != levels[l]) {
            continue; /* this machine or build does not have it */
        }
        rig_options o = rig_default();
        o.level = levels[l];
        o.kv_type = variants[variant].kv_type;
        o.act_type = variants[variant].act_type;
        rig r = rig_open_tiny(spec, o);
        int32_t tokens[N_TOKENS];
        uint64_t rng = 2026;
        for (int i = 0; i < N_TOKENS; i++) {
            tokens[i] = (int32_t)(mx_tiny_random(&rng) % r.n_vocab);
        }
        char hex[65];
        hash_logits(&r, tokens, N_TOKENS, 0, hex);
        n_wrong += take(name, hex, levels[l]);
        rig_close(&r);
    }
    return n_wrong;
}

static size_t check_tinies(void)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        for (size_t v = 0; v < MX_COUNT(variants); v++) {
            if (variants[v].is_basic || !IS_SLOW_BUILD) {
                n_wrong += check_tiny(tinies[i].name, &tinies[i].spec, v);
            }
        }
    }
    for (size_t i = 0; i < MX_COUNT(block_types); i++) {
        mx_tiny_spec spec = mx_tiny_default();
        spec.n_layers = 1;
        spec.n_embd = 256;
        spec.n_ff = 512;
        spec.n_vocab = 280;
        spec.type = block_types[i].type;
        spec.embd_type = block_types[i].type;
        spec.n_heads = 16;
        spec.n_kv_heads = 8;
        n_wrong += check_tiny(block_types[i].name, &spec, VARIANT_DEFAULT);
        if (!IS_SLOW_BUILD) {
            n_wrong += check_tiny(block_types[i].name, &spec, VARIANT_ACT_8);
        }
    }
    return n_wrong;
}

static size_t check_default_model(const char *path)
{
    size_t n_wrong = 0;
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        if (mx_kern_get(levels[l])->level != levels[l]) {
            continue;
        }
        for (size_t v = 0; v < MX_COUNT(variants); v++) {
            if (!variants[v].is_basic && IS_SLOW_BUILD) {
                continue;
            }
            char name[96], hex[65];
            rig_options o = rig_default();
            o.level = levels[l];
            o.kv_type = variants[v].kv_type;
            o.act_type = variants[v].act_type;
            o.n_ctx = 128;
            o.max_pages = 4;
            rig r = rig_open(path, o);
            snprintf(name, sizeof name, "SmolLM2, %d tokens, %s", N_FEW, variants[v].name);
            hash_logits(&r, golden_tokens, N_FEW, 0, hex);
            n_wrong += take(name, hex, levels[l]);
            if (variants[v].is_basic && !IS_SLOW_BUILD && levels[l] != MX_CPU_PORTABLE) {
                snprintf(name, sizeof name, "SmolLM2, %d tokens and %d chosen, %s", GOLDEN_TOKENS,
                         N_CHOSEN, variants[v].name);
                hash_logits(&r, golden_tokens, GOLDEN_TOKENS, N_CHOSEN, hex);
                n_wrong += take(name, hex, levels[l]);
            }
            rig_close(&r);
        }
    }
    return n_wrong;
}

/* ---- tests ------------------------------------------------------------------------------------ */

static int read_golden(void **state)
{
    (void)state;
    if (!table_read(&golden)) {
        print_error("%s cannot be read, or has a line that is none\n", TABLE_PATH);
        return -1;
    }
    if (strcmp(golden.numerics, MX_NUMERICS_NAME) != 0) {
        print_error("%s is of %s, this build is %s: write it anew (--write)\n", TABLE_PATH,
                    golden.numerics, MX_NUMERICS_NAME);
        return -1;
    }
    if (golden.n != N_TINY_HASHES + N_DEFAULT_HASHES) {
        print_error("%s has %zu hashes, expected %d\n", TABLE_PATH, golden.n,
                    N_TINY_HASHES + N_DEFAULT_HASHES);
        return -1;
    }
    return 0;
}

static void bits_are_those_of_every_machine(void **state)
{
    (void)state;
    assert_int_equal(check_tinies(), 0);
    assert_int_equal(compare(0), 0);
    assert_int_equal(computed.n, IS_SLOW_BUILD ? N_TINY_HASHES_SLOW : N_TINY_HASHES);
}

static void default_model_has_the_same_bits(void **state)
{
    (void)state;
    const char *path = mx_test_model();
    if (path == NULL) {
        mx_skip_no_model();
    }
    const size_t from = computed.n;
    assert_int_equal(check_default_model(path), 0);
    assert_int_equal(compare(from), 0);
    const bool is_fast = mx_kern_get(mx_cpu_best())->level != MX_CPU_PORTABLE;
    assert_int_equal(computed.n - from, IS_SLOW_BUILD ? N_DEFAULT_HASHES_SLOW
                                        : is_fast     ? N_DEFAULT_HASHES
                                                      : N_DEFAULT_HASHES_FEW);
}

/* Makes the file. A hash that changes under the same name of the numerics is refused: old caches
 * would be taken for good. An entry whose model was changed has to be deleted by hand. */
static int write_golden(void)
{
    const char *path = mx_test_model();
    if (path == NULL) {
        return 1;
    }
    if (!table_read(&golden) || strcmp(golden.numerics, MX_NUMERICS_NAME) != 0) {
        golden.n = 0;
    }
    if (check_tinies() + check_default_model(path) != 0) {
        return 1;
    }
    for (size_t i = 0; i < computed.n; i++) {
        const entry *old = find(&golden, computed.entries[i].name);
        if (old != NULL && strcmp(old->sha256, computed.entries[i].sha256) != 0) {
            fprintf(stderr, "%s changed, but the numerics are still called %s: give them a new "
                    "name in kern.h and docs/numerics.md first\n", old->name, MX_NUMERICS_NAME);
            return 1;
        }
    }
    if (!table_write(&computed)) {
        fprintf(stderr, "%s cannot be written\n", TABLE_PATH);
        return 1;
    }
    printf("wrote %zu hashes to %s\n", computed.n, TABLE_PATH);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--write") == 0) {
        return write_golden();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_every_machine),
        cmocka_unit_test(default_model_has_the_same_bits),
    };
    return cmocka_run_group_tests(tests, read_golden, NULL);
}
