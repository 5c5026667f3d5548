/* SPDX-License-Identifier: MIT
 *
 * The numerics id: fixed pseudo-random inputs through every function of a table, the raw results
 * chained through SHA-256. Nothing is allocated, so that it cannot fail. A change of any order of
 * operations changes the id, and pages kept under the old one are not found any more.
 */
#include "kernels/kern_internal.h"

#include <assert.h>

enum {
    ROWS = 19,     /* two panels, the second padded */
    COLS = 288,    /* 256-blocks only: 256; a short last activation block for the others */
    TOKENS = MX_SELFTEST_MOST,
    HEAD_DIM = MX_SELFTEST_HEAD,
    QUERIES = MX_SELFTEST_QUERIES,
    PAGES = 2,
    MAX_BYTES = 32 * 1024,
};

typedef struct chain {
    mx_hash256 digest;
    uint64_t seed;
} chain;

static uint32_t next_u32(chain *c)
{
    c->seed = c->seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(c->seed >> 33);
}

/* -1 <= x < 1, 23 bits: exact */
static float next_float(chain *c)
{
    return (float)((int32_t)(next_u32(c) & 0xffffffu) - 0x800000) * 0x1p-23f;
}

static void fill_floats(chain *c, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = next_float(c);
    }
}

static void absorb(chain *c, const void *bytes, size_t n)
{
    uint8_t buf[2 * sizeof(mx_hash256)];
    const mx_hash256 part = mx_sha256_of(bytes, n);
    memcpy(buf, &c->digest, sizeof c->digest);
    memcpy(buf + sizeof c->digest, &part, sizeof part);
    c->digest = mx_sha256_of(buf, sizeof buf);
}

/* Random file bytes with finite scales: every f16 scale gets a small exponent. */
static void fill_weights(chain *c, mx_qtype type, uint8_t *bytes, size_t n_blocks)
{
    const mx_qtype_info *info = mx_qtype_get(type);
    for (size_t b = 0; b < n_blocks; b++, bytes += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++) {
            bytes[i] = (uint8_t)next_u32(c);
        }
        const uint16_t d = (uint16_t)(0x2000u | (next_u32(c) & 0x8bffu));
        const uint16_t m = (uint16_t)(0x2000u | (next_u32(c) & 0x8bffu));
        switch (type) {
        case MX_F32:
            mx_put_le32(bytes, mx_bits_of_f32(next_float(c)));
            break;
        case MX_BF16:
            mx_put_le16(bytes, (uint16_t)(mx_bits_of_f32(next_float(c)) >> 16));
            break;
        case MX_MXFP4:
            bytes[0] = (uint8_t)(118 + bytes[0] % 8);
            break;
        case MX_Q2_K:
        case MX_Q3_K:
        case MX_Q6_K:
            mx_put_le16(bytes + info->block_bytes - 2, m);
            if (type == MX_Q2_K) {
                mx_put_le16(bytes + 80, d);
            }
            break;
        case MX_Q4_1:
        case MX_Q5_1:
        case MX_Q4_K:
        case MX_Q5_K:
            mx_put_le16(bytes + 2, m);
            mx_put_le16(bytes, d);
            break;
        default:
            mx_put_le16(bytes, d);
        }
    }
}

/* At the end of the stack frame they would have to be counted; here they are named. */
typedef struct matmul_space {
    _Alignas(64) uint8_t act[64 * 1024];
    _Alignas(64) uint8_t panels[MAX_BYTES * 2];
    _Alignas(64) mx_matmul_scratch scratch;
    uint8_t file[MAX_BYTES];
    float x[TOKENS * COLS];
    float y[TOKENS * ROWS];
} matmul_space;

static MX_NOINLINE void test_matmul(chain *c, const mx_kern *k, mx_qtype type, mx_act_type act)
{
    /* Few rows are multiplied in ways of their own, other ones on each level (kern_internal.h). */
    static const uint32_t n_rows[] = {1, 2, 3, 7, MX_SELFTEST_MANY, MX_SELFTEST_MOST};
    matmul_space s;
    const mx_qtype_info *info = mx_qtype_get(type);
    const uint32_t cols = info->block_elems == 256 ? 256 : COLS;
    assert(mx_wmat_bytes(type, ROWS, cols) <= sizeof s.panels);
    assert(mx_act_bytes(act, TOKENS, cols, true) <= sizeof s.act);
    assert((size_t)ROWS * cols / info->block_elems * info->block_bytes <= sizeof s.file);
    fill_weights(c, type, s.file, (size_t)ROWS * cols / info->block_elems);
    fill_floats(c, s.x, TOKENS * cols);
    mx_wmat w;
    mx_act a;
    mx_wmat_repack(&w, type, ROWS, cols, s.file, s.panels);
    mx_act_bind(&a, act, TOKENS, cols, true, s.act);
    const bool finite = k->act_quantize(&a, s.x, cols, 0, TOKENS);
    absorb(c, &finite, 1);
    for (size_t i = 0; i < MX_COUNT(n_rows); i++) {
        k->matmul(&w, &a, n_rows[i], s.y, ROWS, 0, w.n_panels, &s.scratch);
        absorb(c, s.y, n_rows[i] * ROWS * sizeof(float));
    }
    k->wmat_row(&w, ROWS - 1, s.x);
    absorb(c, s.x, cols * sizeof(float));
}

typedef struct attn_space {
    float q[QUERIES][HEAD_DIM];
    float out[QUERIES][HEAD_DIM];
    float kv[2][HEAD_DIM];
    _Alignas(64) uint8_t tiles[2][PAGES][MX_PAGE_TOKENS * HEAD_DIM * 4];
    _Alignas(64) float scratch[16 + QUERIES * (19 + HEAD_DIM + 16 + MX_PAGE_TOKENS) +
                               HEAD_DIM * 4 * 16];
} attn_space;

static bool fill_pages(chain *c, const mx_kern *k, mx_kv_type type, attn_space *s)
{
    bool finite = true;
    for (uint32_t t = 0; t < PAGES * MX_PAGE_TOKENS; t++) {
        fill_floats(c, s->kv[0], 2 * HEAD_DIM);
        const uint32_t page = t / MX_PAGE_TOKENS;
        finite = k->kv_store(type, s->tiles[0][page], s->tiles[1][page], HEAD_DIM,
                             t % MX_PAGE_TOKENS, s->kv[0], s->kv[1]) && finite;
    }
    return finite;
}

/* Every number of queries: those that see tokens of their own each, and such that see the same. */
static MX_NOINLINE void test_attention(chain *c, const mx_kern *k, mx_kv_type type)
{
    static const uint32_t n_valid[2][QUERIES] = {
        {1, 63, 64, 65, 100, 128, 128, 127, 3, 90, 33, 70},
        {100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100},
    };
    static const uint32_t first_valid[2][QUERIES] = {
        {0, 10, 0, 64, 40, 70, 0, 1, 2, 30, 5, 64},
        {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3},
    };
    attn_space s;
    assert(k->attn_scratch_floats(HEAD_DIM, QUERIES) <= MX_COUNT(s.scratch));
    const bool finite = fill_pages(c, k, type, &s);
    absorb(c, &finite, 1);
    const float *q[QUERIES];
    float *out[QUERIES];
    for (uint32_t i = 0; i < QUERIES; i++) {
        fill_floats(c, s.q[i], HEAD_DIM);
        q[i] = s.q[i];
        out[i] = s.out[i];
    }
    const uint8_t *const k_tiles[PAGES] = {s.tiles[0][0], s.tiles[0][1]};
    const uint8_t *const v_tiles[PAGES] = {s.tiles[1][0], s.tiles[1][1]};
    for (uint32_t n = 1; n <= QUERIES; n++) {
        for (int same = 0; same < 2; same++) {
            const mx_attn_args args = {
                .kv_type = type, .head_dim = HEAD_DIM, .n_queries = n, .q = q, .out = out,
                .n_valid = n_valid[same], .first_valid = first_valid[same], .k_tiles = k_tiles,
                .v_tiles = v_tiles, .scale = 1.75f, .scratch = s.scratch,
            };
            k->attention(&args);
            absorb(c, s.out, n * sizeof s.out[0]);
        }
    }
}

/* Beyond one span: the two pages again and again. Then the same in parts. */
static MX_NOINLINE void test_spans(chain *c, const mx_kern *k, mx_kv_type type)
{
    enum {
        LONG_PAGES = 2 * MX_ATTN_SPAN / MX_PAGE_TOKENS + 1,
        SPANS = 3,
        PART = (HEAD_DIM + 2 + 15) / 16 * 16,
    };
    static const uint32_t n_valid[2] = {2 * MX_ATTN_SPAN + 3, MX_ATTN_SPAN + 1};
    static const uint32_t first_valid[2] = {0, MX_ATTN_SPAN};
    attn_space s;
    float parts[2][SPANS][PART];
    assert(mx_attn_part_floats(HEAD_DIM) == PART);
    (void)fill_pages(c, k, type, &s);
    const uint8_t *k_tiles[LONG_PAGES];
    const uint8_t *v_tiles[LONG_PAGES];
    for (int i = 0; i < LONG_PAGES; i++) {
        k_tiles[i] = s.tiles[0][i % PAGES];
        v_tiles[i] = s.tiles[1][i % PAGES];
    }
    fill_floats(c, s.q[0], 2 * HEAD_DIM);
    const float *const q[2] = {s.q[0], s.q[1]};
    float *out[2] = {s.out[0], s.out[1]};
    mx_attn_args args = {
        .kv_type = type, .head_dim = HEAD_DIM, .n_queries = 2, .q = q, .out = out,
        .n_valid = n_valid, .first_valid = first_valid, .k_tiles = k_tiles, .v_tiles = v_tiles,
        .scale = 3.0f, .scratch = s.scratch,
    };
    k->attention(&args);
    absorb(c, s.out, 2 * sizeof s.out[0]);
    for (uint32_t span = 0; span < SPANS; span++) {
        out[0] = parts[0][span];
        out[1] = parts[1][span];
        k->attention_span(&args, span);
    }
    for (int i = 0; i < 2; i++) {
        k->attention_merge(s.out[i], parts[i][0], PART, SPANS, HEAD_DIM);
    }
    absorb(c, s.out, 2 * sizeof s.out[0]);
}

static MX_NOINLINE void test_vectors(chain *c, const mx_kern *k)
{
    enum { N = 67, POSITIONS = 3, D = 32 };
    float x[N];
    float y[N];
    float z[N];
    float table[POSITIONS][D];
    fill_floats(c, x, N);
    fill_floats(c, y, N);
    k->rmsnorm(z, x, y, N, 1e-5f);
    absorb(c, z, sizeof z);
    for (int i = 0; i < N; i++) {
        x[i] *= (float)(1 << i % 9); /* arguments of exp from 2^-23 to 256 */
    }
    k->silu_mul(z, x, y, N);
    absorb(c, z, sizeof z);
    k->add(z, x, N);
    absorb(c, z, sizeof z);
    const bool finite = k->all_finite(z, N);
    absorb(c, &finite, 1);
    mx_rope_params p = {.n_rot = D, .freq_base = 1e6, .scale_factor = 4, .is_yarn = true,
                        .yarn_orig_ctx = 4096, .yarn_beta_fast = 32, .yarn_beta_slow = 1,
                        .yarn_attn_factor = 1};
    for (int i = 0; i < 2; i++) {
        p.is_yarn = i == 0;
        p.pairing = i == 0 ? MX_ROPE_NEOX : MX_ROPE_NORM;
        mx_rope_table(&p, POSITIONS, table[0]);
        absorb(c, table, sizeof table);
        k->rope(z, 2, D, &p, table[POSITIONS - 1]);
        absorb(c, z, sizeof z);
    }
}

static mx_hash256 numerics_id(const mx_kern *k, mx_act_type act, const char *name)
{
    static const mx_qtype types[] = {
        MX_F32,  MX_F16,  MX_BF16, MX_Q4_0, MX_Q4_1,   MX_Q5_0,   MX_Q5_1, MX_Q8_0,
        MX_Q2_K, MX_Q3_K, MX_Q4_K, MX_Q5_K, MX_Q6_K,   MX_IQ4_NL, MX_IQ4_XS, MX_MXFP4,
    };
    chain c = {.digest = mx_sha256_of(name, strlen(name) + 1), .seed = 1};
    for (size_t i = 0; i < MX_COUNT(types); i++) {
        test_matmul(&c, k, types[i], act);
    }
    test_attention(&c, k, MX_KV_F16);
    test_attention(&c, k, MX_KV_F32);
    test_attention(&c, k, MX_KV_Q8);
    test_spans(&c, k, MX_KV_F16);
    test_spans(&c, k, MX_KV_F32);
    test_spans(&c, k, MX_KV_Q8);
    test_vectors(&c, k);
    return c.digest;
}

mx_hash256 mx_kern_numerics_id(const mx_kern *k)
{
    return numerics_id(k, MX_ACT_16, MX_NUMERICS_NAME);
}

mx_hash256 mx_kern_numerics_id_8(const mx_kern *k)
{
    return numerics_id(k, MX_ACT_8, MX_NUMERICS_NAME_8);
}

const char *mx_numerics_name(mx_act_type type)
{
    return type == MX_ACT_8 ? MX_NUMERICS_NAME_8 : MX_NUMERICS_NAME;
}

mx_hash256 mx_kern_extras_id(const mx_kern *k)
{
    static const char tag[] = MX_NUMERICS_NAME " extras 1";
    enum { N = 67 };
    float x[N];
    float y[N];
    float z[N];
    chain c = {.digest = mx_sha256_of(tag, sizeof tag), .seed = 2};
    fill_floats(&c, x, N);
    fill_floats(&c, y, N);
    for (int i = 0; i < N; i++) {
        x[i] *= (float)(1 << i % 9);
    }
    k->gelu_mul(z, x, y, N);
    absorb(&c, z, sizeof z);
    k->add_scaled(z, x[1], x, N);
    absorb(&c, z, sizeof z);
    k->scale(z, x[2], N);
    absorb(&c, z, sizeof z);
    for (size_t n = 1; n <= N; n += 11) {
        memcpy(z, x, sizeof z);
        k->softmax(z, n);
        absorb(&c, z, sizeof z);
    }
    return c.digest;
}

/* Two heads' worth of a hybrid layer: everything behind its matrices. */
mx_hash256 mx_kern_gdn_id(const mx_kern *k)
{
    static const char tag[] = MX_NUMERICS_NAME " gdn 1";
    enum { D = MX_SELFTEST_GDN, N_ROWS = 3, N_TAPS = 4, N = 67 };
    float x[N];
    float y[N];
    float taps[N_TAPS][D];
    float past[N_TAPS - 1][D];
    float rows[3][N_ROWS][D];
    float out[N_ROWS][D];
    float state[D * D];
    float gates[2][N_ROWS];
    chain c = {.digest = mx_sha256_of(tag, sizeof tag), .seed = 3};
    fill_floats(&c, x, N);
    fill_floats(&c, y, N);
    for (int i = 0; i < N; i++) {
        x[i] *= (float)(1 << i % 9);
    }
    k->sigmoid_mul(y, x, N);
    absorb(&c, y, sizeof y);
    k->gdn_decay(x, y, y + 1, N - 1);
    absorb(&c, x, sizeof x);
    k->sigmoid(x, N);
    absorb(&c, x, sizeof x);
    fill_floats(&c, taps[0], sizeof taps / sizeof(float));
    fill_floats(&c, past[0], sizeof past / sizeof(float));
    fill_floats(&c, rows[0][0], sizeof rows / sizeof(float));
    fill_floats(&c, state, D * D);
    for (int i = 0; i < 3; i++) {
        k->gdn_conv(rows[i][0], D, N_ROWS, D, taps[0], past[0], N_TAPS, D);
    }
    absorb(&c, rows, sizeof rows);
    absorb(&c, past, sizeof past);
    for (int r = 0; r < N_ROWS; r++) {
        k->l2norm(rows[0][r], 0.25f, D);
        k->l2norm(rows[1][r], 1.0f, D);
        gates[0][r] = 0.5f + 0.25f * next_float(&c);
        gates[1][r] = next_float(&c);
    }
    const mx_gdn_args args = {
        .d = D, .n_cols = D, .n_rows = N_ROWS, .q = rows[0][0], .k = rows[1][0], .v = rows[2][0],
        .ld = D, .decay = gates[0], .beta = gates[1], .ld_gates = 1, .from = state, .to = state,
        .out = out[0], .ldo = D,
    };
    k->gdn_step(&args);
    absorb(&c, out, sizeof out);
    absorb(&c, state, sizeof state);
    return c.digest;
}
