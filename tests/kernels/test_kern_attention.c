/* SPDX-License-Identifier: MIT
 *
 * Attention over pages: the portable level against double precision, all levels and all groupings
 * of query rows bit for bit, with NaN in every row that a query must not see.
 */
#include "kern_check.h"

#include <sys/mman.h>

/* More than two spans. */
enum { PAGES = 19, MAX_TOKENS = PAGES * MX_PAGE_TOKENS, MAX_QUERIES = 150 };

typedef struct world {
    mx_kv_type type;
    uint32_t head_dim, n_queries;
    uint64_t seed;
    float *k, *v; /* [MAX_TOKENS][head_dim] as stored */
    uint8_t *tiles[2][PAGES];
    float *q, *out; /* [n_queries][head_dim] */
    const float *q_rows[MAX_QUERIES];
    float *out_rows[MAX_QUERIES];
    uint32_t n_valid[MAX_QUERIES], first[MAX_QUERIES];
    float *scratch;
    size_t scratch_bytes;
} world;

/* Memory with an inaccessible page right behind it; kept to the end of the process. */
static void *guarded(size_t bytes)
{
    const size_t page = 4096;
    const size_t size = mx_round_up(bytes, page);
    uint8_t *p = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p + size, page, PROT_NONE), 0);
    return p + size - bytes;
}

static void unguard(void *p, size_t bytes)
{
    const size_t page = 4096;
    const size_t size = mx_round_up(bytes, page);
    assert_int_equal(munmap((uint8_t *)p + bytes - size, size + page), 0);
}

static void world_init(world *w, const mx_kern *kern, mx_kv_type type, uint32_t head_dim,
                       uint32_t n_queries, float amplitude, uint64_t seed)
{
    *w = (world){.type = type, .head_dim = head_dim, .n_queries = n_queries, .seed = seed};
    rng r = {seed};
    const size_t n = (size_t)MAX_TOKENS * head_dim;
    w->k = need(n * sizeof(float));
    w->v = need(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        w->k[i] = rng_float(&r) * amplitude;
        w->v[i] = rng_float(&r);
    }
    for (int p = 0; p < PAGES; p++) {
        w->tiles[0][p] = guarded(mx_kv_tile_bytes(type, head_dim));
        w->tiles[1][p] = guarded(mx_kv_tile_bytes(type, head_dim));
    }
    for (uint32_t t = 0; t < MAX_TOKENS; t++) {
        assert_true(kern->kv_store(type, w->tiles[0][t / 64], w->tiles[1][t / 64], head_dim, t % 64,
                                   w->k + (size_t)t * head_dim, w->v + (size_t)t * head_dim));
    }
    w->q = guarded((size_t)n_queries * head_dim * sizeof(float));
    w->out = guarded((size_t)n_queries * head_dim * sizeof(float));
    fill_floats(&r, FILL_NORMAL, w->q, (size_t)n_queries * head_dim);
    w->scratch_bytes = mx_kern_get(mx_cpu_best())->attn_scratch_floats(head_dim, n_queries) *
                       sizeof(float); /* the most of all levels */
    w->scratch = guarded(w->scratch_bytes);
    for (uint32_t i = 0; i < n_queries; i++) {
        w->q_rows[i] = w->q + (size_t)i * head_dim;
        w->out_rows[i] = w->out + (size_t)i * head_dim;
    }
}

static void world_free(world *w)
{
    for (int p = 0; p < PAGES; p++) {
        unguard(w->tiles[0][p], mx_kv_tile_bytes(w->type, w->head_dim));
        unguard(w->tiles[1][p], mx_kv_tile_bytes(w->type, w->head_dim));
    }
    mx_free(w->k);
    mx_free(w->v);
    unguard(w->q, (size_t)w->n_queries * w->head_dim * sizeof(float));
    unguard(w->out, (size_t)w->n_queries * w->head_dim * sizeof(float));
    unguard(w->scratch, w->scratch_bytes);
}

static mx_attn_args args_of(const world *w, uint32_t first, uint32_t n, bool windowed)
{
    return (mx_attn_args){
        .kv_type = w->type, .head_dim = w->head_dim, .n_queries = n, .q = w->q_rows + first,
        .out = w->out_rows + first, .n_valid = w->n_valid + first,
        .first_valid = windowed ? w->first + first : NULL,
        .k_tiles = (const uint8_t *const *)w->tiles[0],
        .v_tiles = (const uint8_t *const *)w->tiles[1],
        .scale = 1.0f / sqrtf((float)w->head_dim), .scratch = w->scratch,
    };
}

/* Queries first..first + n - 1 in one call. */
static void attend(world *w, const mx_kern *kern, uint32_t first, uint32_t n, bool windowed)
{
    const mx_attn_args args = args_of(w, first, n, windowed);
    kern->attention(&args);
}

/* All queries, each span on its own, then put together. */
static void attend_in_parts(world *w, const mx_kern *kern, bool windowed)
{
    enum { SPANS = (MAX_TOKENS + MX_ATTN_SPAN - 1) / MX_ATTN_SPAN };
    const size_t part = mx_attn_part_floats(w->head_dim);
    float *parts = need(w->n_queries * SPANS * part * sizeof *parts);
    float *rows[MAX_QUERIES];
    for (uint32_t span = 0; span < SPANS; span++) {
        for (uint32_t i = 0; i < w->n_queries; i++) {
            rows[i] = parts + (i * SPANS + span) * part;
        }
        mx_attn_args args = args_of(w, 0, w->n_queries, windowed);
        args.out = rows;
        kern->attention_span(&args, span);
    }
    for (uint32_t i = 0; i < w->n_queries; i++) {
        kern->attention_merge(w->out_rows[i], parts + i * SPANS * part, part, SPANS, w->head_dim);
    }
    mx_free(parts);
}

static void element(const world *w, uint32_t t, uint32_t d, double *k, double *v)
{
    const uint8_t *kt = w->tiles[0][t / 64];
    const uint8_t *vt = w->tiles[1][t / 64];
    const size_t ki = (size_t)d * 64 + t % 64;
    const size_t vi = (size_t)(t % 64) * w->head_dim + d;
    float a;
    float b;
    const size_t size = mx_kv_elem_bytes(w->type);
    const mx_qtype as = w->type == MX_KV_F16 ? MX_F16 : MX_F32;
    if (w->type == MX_KV_Q8) {
        memcpy(&a, kt + 64 * w->head_dim + t % 64 * sizeof a, sizeof a);
        memcpy(&b, vt + 64 * w->head_dim + t % 64 * sizeof b, sizeof b);
        *k = (double)a * (int8_t)kt[ki];
        *v = (double)b * (int8_t)vt[vi];
        return;
    }
    mx_dequantize(as, kt + ki * size, 1, &a);
    mx_dequantize(as, vt + vi * size, 1, &b);
    *k = (double)a;
    *v = (double)b;
}

static void check_against_double(const world *w, uint32_t i, bool windowed)
{
    double s[MAX_TOKENS];
    double max = -INFINITY;
    double sum = 0;
    const uint32_t first = windowed ? w->first[i] : 0;
    double k;
    double v;
    for (uint32_t t = first; t < w->n_valid[i]; t++) {
        s[t] = 0;
        for (uint32_t d = 0; d < w->head_dim; d++) {
            element(w, t, d, &k, &v);
            s[t] += k * (double)w->q_rows[i][d];
        }
        s[t] /= sqrt(w->head_dim);
        max = s[t] > max ? s[t] : max;
    }
    for (uint32_t t = first; t < w->n_valid[i]; t++) {
        s[t] = exp(s[t] - max);
        sum += s[t];
    }
    for (uint32_t d = 0; d < w->head_dim; d++) {
        double want = 0;
        for (uint32_t t = first; t < w->n_valid[i]; t++) {
            element(w, t, d, &k, &v);
            want += s[t] / sum * v;
        }
        const double got = (double)w->out_rows[i][d];
        if (!(fabs(want - got) <= 2e-6)) {
            fail_msg("query %u dim %u: expected %.9g, got %.9g, seed %llu", i, d, want, got,
                     (unsigned long long)w->seed);
        }
    }
}

static void close_to_exact(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 12, 16, 32, 64, 80, 128, 256};
    static const uint32_t ends[] = {1,   2,   15,  16,  17,  63,   64,   65,       127,
                                    129, 300, 511, 512, 513, 1024, 1025, MAX_TOKENS};
    const mx_kern *kern = mx_kern_get(MX_CPU_PORTABLE);
    for (size_t j = 0; j < MX_COUNT(dims); j++) {
        world w;
        world_init(&w, kern, (mx_kv_type)(j % 3), dims[j], MX_COUNT(ends), 3.0f, j);
        rng r = {j};
        for (uint32_t i = 0; i < w.n_queries; i++) {
            w.n_valid[i] = ends[i];
            w.first[i] = rng_below(&r, ends[i]);
        }
        for (int windowed = 0; windowed < 2; windowed++) {
            attend(&w, kern, 0, w.n_queries, windowed);
            for (uint32_t i = 0; i < w.n_queries; i++) {
                check_against_double(&w, i, windowed);
            }
        }
        world_free(&w);
    }
}

/* NaN in all token rows from n_valid of the last query on, and in rows before the first window. */
static void poison(world *w, uint32_t from, uint32_t to)
{
    const size_t size = mx_kv_elem_bytes(w->type), scale = mx_kv_scale_bytes(w->type);
    for (uint32_t t = from; t < to; t++) {
        memset(w->tiles[0][t / 64] + 64 * w->head_dim * size + t % 64 * scale, 0xff, scale);
        memset(w->tiles[1][t / 64] + 64 * w->head_dim * size + t % 64 * scale, 0xff, scale);
        for (uint32_t d = 0; d < w->head_dim; d++) {
            memset(w->tiles[0][t / 64] + ((size_t)d * 64 + t % 64) * size, 0xff, size);
            memset(w->tiles[1][t / 64] + ((size_t)(t % 64) * w->head_dim + d) * size, 0xff, size);
        }
    }
}

/* All the ways to compute the same rows on level k, against the portable level one by one. */
static void compare_level(const mx_kern *kern, mx_kv_type type, uint32_t head_dim, uint32_t n,
                          float amplitude, bool windowed, uint64_t seed)
{
    const mx_kern *ref = mx_kern_get(MX_CPU_PORTABLE);
    world w;
    world_init(&w, kern, type, head_dim, n, amplitude, seed);
    rng r = {seed};
    uint32_t last = 0;
    uint32_t first = MAX_TOKENS;
    const uint32_t heads = 1 + rng_below(&r, 4);
    const uint32_t start = 1 + rng_below(&r, seed % 3 == 0 ? MAX_TOKENS - n : 200);
    for (uint32_t i = 0; i < n; i++) { /* heads of one token side by side, then arbitrary ones */
        w.n_valid[i] = i % 3 == 2 && seed % 2 ? 1 + rng_below(&r, MAX_TOKENS) : start + i / heads;
        w.n_valid[i] = w.n_valid[i] > MAX_TOKENS ? MAX_TOKENS : w.n_valid[i];
        w.first[i] = w.n_valid[i] > 70 ? w.n_valid[i] - 70 : 0;
        last = w.n_valid[i] > last ? w.n_valid[i] : last;
        first = w.first[i] < first ? w.first[i] : first;
    }
    float *want = need((size_t)n * head_dim * sizeof *want);
    for (uint32_t i = 0; i < n; i++) {
        attend(&w, ref, i, 1, windowed);
        memcpy(want + (size_t)i * head_dim, w.out_rows[i], head_dim * sizeof *want);
    }
    poison(&w, last, MAX_TOKENS);
    if (windowed) {
        poison(&w, 0, first);
    }
    for (uint32_t step = 1; step <= n; step = step < 9 ? step + 1 : step * 2) {
        memset(w.out, 0xff, (size_t)n * head_dim * sizeof *w.out);
        for (uint32_t i = 0; i < n; i += step) {
            attend(&w, kern, i, n - i < step ? n - i : step, windowed);
        }
        check_same(want, w.out, (size_t)n * head_dim, "grouping", seed * 1000 + step);
    }
    attend(&w, kern, 0, n, windowed);
    check_same(want, w.out, (size_t)n * head_dim, "all at once", seed);
    memset(w.out, 0xff, (size_t)n * head_dim * sizeof *w.out);
    attend_in_parts(&w, kern, windowed);
    check_same(want, w.out, (size_t)n * head_dim, "span by span", seed);
    mx_free(want);
    world_free(&w);
}

static void levels_equal(mx_cpu_level level)
{
    static const uint32_t dims[] = {8, 12, 16, 32, 64, 80, 128};
    const mx_kern *kern = level_or_null(level);
    if (kern == NULL) {
        skip();
    }
    uint64_t seed = 1;
    for (size_t j = 0; j < MX_COUNT(dims); j++) {
        for (int type = 0; type <= MX_KV_Q8; type++) {
            for (int windowed = 0; windowed < 2; windowed++, seed++) {
                const uint32_t n = 1 + (uint32_t)(seed * 13 % 30);
                compare_level(kern, (mx_kv_type)type, dims[j], n, 3.0f, windowed, seed);
            }
        }
        /* weights that underflow and overflow-sized scores */
        compare_level(kern, MX_KV_F32, dims[j], 9, 1e4f, false, seed++);
        compare_level(kern, MX_KV_F32, dims[j], 9, 1e37f, false, seed++);
        compare_level(kern, MX_KV_F16, dims[j], 9, 6e4f, false, seed++);
        compare_level(kern, MX_KV_Q8, dims[j], 9, 1e37f, false, seed++);
    }
    compare_level(kern, MX_KV_F16, 64, MAX_QUERIES, 3.0f, false, seed++);
    compare_level(kern, MX_KV_F16, 64, MAX_QUERIES, 3.0f, true, seed++);
}

static void portable_groupings(void **state)
{
    (void)state;
    levels_equal(MX_CPU_PORTABLE);
}

LEVEL_TEST_FNS

static void stored_rows(void **state)
{
    (void)state;
    static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, VECTOR_LEVELS};
    enum { D = 24 };
    static _Alignas(64) uint8_t tiles[2][4][64 * D * 4];
    for (int type = 0; type <= MX_KV_Q8; type++) {
        memset(tiles, 0, sizeof tiles);
        for (size_t l = 0; l < MX_COUNT(levels); l++) {
            const mx_kern *kern = level_or_null(levels[l]);
            if (kern == NULL) {
                continue;
            }
            rng r = {5};
            float k[D];
            float v[D];
            for (uint32_t t = 0; t < 64; t++) { /* also halves that are denormal, rounded, huge */
                for (int d = 0; d < D; d++) {
                    k[d] = ldexpf(rng_float(&r), (int)rng_below(&r, 60) - 44);
                    v[d] = ldexpf(rng_float(&r), (int)rng_below(&r, 60) - 44);
                    k[d] = fabsf(k[d]) > 65000 ? 65519.0f : k[d];
                    v[d] = fabsf(v[d]) > 65000 ? -65519.0f : v[d];
                }
                assert_true(kern->kv_store((mx_kv_type)type, tiles[0][l], tiles[1][l], D, t, k, v));
            }
            assert_memory_equal(tiles[0][0], tiles[0][l], sizeof tiles[0][0]);
            assert_memory_equal(tiles[1][0], tiles[1][l], sizeof tiles[1][0]);
            static const float bad[] = {INFINITY, -INFINITY, NAN, 65520.0f, -1e30f};
            for (size_t i = 0; i < MX_COUNT(bad); i++) {
                const bool refused = type == MX_KV_F16 || !isfinite(bad[i]);
                float *row = i % 2 ? k : v;
                row[D - 1] = bad[i];
                assert_int_equal(
                    kern->kv_store((mx_kv_type)type, tiles[0][3], tiles[1][3], D, 0, k, v),
                    !refused);
                row[D - 1] = 0;
            }
        }
    }
}

static void nothing_to_see(void **state)
{
    (void)state;
    const mx_kern *kern = mx_kern_get(mx_cpu_best());
    world w;
    world_init(&w, kern, MX_KV_F16, 16, 2, 1.0f, 3);
    w.n_valid[0] = 0;
    w.n_valid[1] = 5;
    w.out[0] = 7;
    attend(&w, kern, 0, 2, false);
    for (int d = 0; d < 16; d++) {
        assert_int_equal(bits_of_float(w.out[d]), 0);
    }
    check_against_double(&w, 1, false);
    w.n_valid[0] = 9; /* a window that begins where the rows end */
    w.first[0] = 9;
    w.out[3] = 7;
    attend(&w, kern, 0, 2, true);
    for (int d = 0; d < 16; d++) {
        assert_int_equal(bits_of_float(w.out[d]), 0);
    }
    world_free(&w);
}

int main(void)
{
    mx_kern_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_to_exact), cmocka_unit_test(portable_groupings),
        cmocka_unit_test(stored_rows),    cmocka_unit_test(nothing_to_see),
        LEVEL_TESTS,
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
