/* SPDX-License-Identifier: MIT
 *
 * Golden hashes of raw logits. A machine has one instruction set, so "all levels give the same
 * bits" can only be shown against values that are kept: every machine compares with these. When
 * this test fails, either a kernel is wrong or the numerics changed; the latter needs a new name in
 * kern.h and docs/numerics.md, or caches written before would be mixed with pages of other numbers.
 *
 * Every weight type occurs. MTPLX_PRINT_GOLDEN=1 prints the table instead of comparing.
 */
#include "model_rig.h"
#include "tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_TOKENS = 70 };

static const struct {
    const char *name;
    const char *sha256; /* of f32 logits [N_TOKENS][n_vocab], little endian */
} golden[] = {
    {"f32",
     "4cce20489331ef1115e7ef0cc7c3126e986627530078763c94ff1943833f4a0a"},
    {"q4_1",
     "f7dd8327bb0f56f9cda0b8411fb865391361146c8f11f36aabf9f394569644eb"},
    {"q4_k",
     "fa90d12efc8de1cd4148d852e1ad68d8cbc1c1b7a846b926e075ded7a414956f"},
    {"q8_0",
     "d908bbab085c5401f26fdcd4a7aeababf20d54805f0b5255bd411585893f1e71"},
    {"f16",
     "31a204546e12d9fe8c4efd6833dda28264688a5d0045c64e3f6bf752d8fdf8a8"},
    {"qwen3",
     "59669598903df85938b82d176829966c43bcf067db3aad0ff7dbb7a2294eb13b"},
    {"qwen3moe",
     "5798add26e97a395829e19e7c26170551c296da8ef401d61359ebe28acce582c"},
    {"qwen3moe fused",
     "e47972fb13f2a283521eaabaa73aba6ccd02b659f7055ea448dbcbdfed51cfd5"},
    {"gemma3",
     "7140b81e7d691dfb5b42b5416bea0965b495b5e29afc40b1e3ed328f7c18c830"},
    {"only f32",
     "2e7e06d44a2ac741b400d42dfbc173d22fbf1eb1cdfb6160a7728afdcc1d063e"},
    {"only f16",
     "3d90a9eccd7717bb4b029704bb3d8225ee7ff0040cd76936039da2e834946767"},
    {"only bf16",
     "e35aa42515e1c98d77d6a3de7872e3adc9445a7c81f9b0afccc2b6f3512f6e54"},
    {"only q4_0",
     "084ccc1efe097d8a04b19e3b8b7cbd5b8be0dca1a98c9bb13465bcd36abfe4c7"},
    {"only q4_1",
     "4e812094c204f7fb2c3f108f94cbfef6667eff842ab414193585452d2024dd7f"},
    {"only q5_0",
     "9f87fdaf3876e16b001c42b85b0d510205bd2a3cfff5b67e1a6f5934a7677666"},
    {"only q5_1",
     "437d41f23146e418a5acfa74de38a7140d03ba441b7a97e101c98ebaaa3b40ac"},
    {"only q8_0",
     "068cd0fe59ccd0f6026ed54d34dea495bce0097d5e92d362edbd148fbd5d1523"},
    {"only q2_k",
     "3f15e06d3346a42d4f196ee1751c0bbe008f36147447845d5160b072d1a5c543"},
    {"only q3_k",
     "3f3614da9fe5d32129467352e4c0b8e0ffb3b7fd60ba0e0c180775d1fb65c84c"},
    {"only q4_k",
     "e54201c58181251400232b4ed3be239eacd86503a1bfe4f97a855b84cc170ebf"},
    {"only q5_k",
     "38f54627190590e3cb28ee39a4cdd6c4348454e7d5d689a21a1e7b63b1e6a991"},
    {"only q6_k",
     "4d7570b0b5a00b70d521cdfe9fc0cb3c56c63213e33f325d6ede4adf26adb798"},
    {"only iq4_nl",
     "a7f8d7a9e8f1a6db25d5770b3425f9d6a4bff0aa62985ad1127048be3f47b15f"},
    {"only iq4_xs",
     "d0390b185751223466a2f34163b81d3e255ff6a9970dd04092e8bb9d730e72c2"},
    {"only mxfp4",
     "d84647cf18d26119246da117ed0a5698a6ab81dd014a37d4e31a27a6145601c7"},
};

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

static void hash_logits(const mx_tiny_spec *spec, mx_cpu_level level, char hex[65])
{
    rig_options o = rig_default();
    o.level = level;
    rig r = rig_open_tiny(spec, o);
    int32_t tokens[N_TOKENS];
    uint64_t rng = 2026;
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = (int32_t)(mx_tiny_random(&rng) % r.n_vocab);
    }
    size_t n = (size_t)N_TOKENS * r.n_vocab;
    float *hidden = mx_calloc((size_t)N_TOKENS * r.n_embd, sizeof *hidden);
    float *logits = mx_calloc(n, sizeof *logits);
    uint8_t *le = mx_calloc(n, 4);
    mx_seq s;
    mx_seq_init(&s, r.kv, &r.root);
    rig_feed(&r, &s, tokens, N_TOKENS, hidden);
    rig_logits(&r, hidden, N_TOKENS, logits);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        mx_put_le32(le + 4 * i, bits);
    }
    mx_hash256 h = mx_sha256_of(le, n * 4);
    mx_hash256_hex(&h, hex);
    mx_seq_free(&s);
    mx_free(hidden);
    mx_free(logits);
    mx_free(le);
    rig_close(&r);
}

static size_t check_one(size_t i, const char *name, const mx_tiny_spec *spec)
{
    static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, MX_CPU_AVX2, MX_CPU_AVX512, MX_CPU_NEON};
    size_t n_wrong = 0;
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        if (mx_kern_get(levels[l])->level != levels[l]) {
            continue;
        }
        char hex[65];
        hash_logits(spec, levels[l], hex);
        if (getenv("MTPLX_PRINT_GOLDEN") != NULL) {
            printf("    {\"%s\",\n     \"%s\"}, /* %s */\n", name, hex,
                   mx_cpu_level_name(levels[l]));
            continue;
        }
        bool is_known = i < MX_COUNT(golden) && strcmp(golden[i].name, name) == 0;
        if (!is_known || strcmp(golden[i].sha256, hex) != 0) {
            print_error("%s, %s: expected %s, got %s\n", name, mx_cpu_level_name(levels[l]),
                        is_known ? golden[i].sha256 : "(no entry)", hex);
            n_wrong++;
        }
    }
    return n_wrong;
}

static void bits_are_those_of_every_machine(void **state)
{
    (void)state;
    size_t n_wrong = 0, n = 0;
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        n_wrong += check_one(n++, tinies[i].name, &tinies[i].spec);
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
        n_wrong += check_one(n++, block_types[i].name, &spec);
    }
    assert_int_equal(n, MX_COUNT(golden));
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_every_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
