/* SPDX-License-Identifier: MIT
 *
 * exp, silu, RMS norm, addition, RoPE: accuracy against the C library in double or long double, and
 * every level against the portable one. Also the numerics id and the dispatcher.
 */
#include "kern_check.h"

#include "kernels/kern_vec_portable.h"

#include "kernels/kern_impl_exp.h"

#define MX_NUMERICS_GOLDEN "f1f1fb6fdf1ff2f6e62b32d7f43ae7c6316a6cf3c0460e13b87d881bf68d8a89"
#define MX_GDN_GOLDEN "30455299da612d3733483e7cdd88a98392727349ef0fb898720e33acb6e5cd74"
#define MX_EXTRAS_GOLDEN "b488ea4e42c35b748b8c0809a6aa6783fd7a152e3b6ea98ed9f98026dea4355f"
#define MX_NUMERICS_8_GOLDEN "20ae3317d57dbbdd8e01a72a7a07f4144d5808e033535db8deb63522023deb63"

static const mx_cpu_level levels[] = {VECTOR_LEVELS};

static float exp_one(float x)
{
    float out[16];
    vf_store(out, vec_exp(vf_set1(x)));
    return out[0];
}

/* Below 1 ulp wherever the result is normal; half an ulp more where it is denormal. */
static void exp_accuracy(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t i = 0; i < 200000; i++) {
        const float x = -104.0f + (float)i * (193.0f / 200000);
        const double want = exp((double)x);
        const float got = exp_one(x);
        if (want > 3.4028234e38) {
            assert_true(isinf(got) || got == 0x1.fffffep127f);
            continue;
        }
        int e;
        frexp(want, &e);
        const double ulp = ldexp(1, e - 24 < -149 ? -149 : e - 24);
        const double err = fabs((double)got - want) / ulp;
        worst = e > -126 && err > worst ? err : worst;
        if (err > (e > -126 ? 1.0 : 1.5)) {
            fail_msg("exp(%a): expected %a, got %a, %g ulp", (double)x, want, (double)got, err);
        }
    }
    printf("exp: worst error %.3f ulp\n", worst);
    assert_int_equal(bits_of_float(exp_one(0)), 0x3f800000);
    assert_int_equal(bits_of_float(exp_one(-0.0f)), 0x3f800000);
    assert_int_equal(bits_of_float(exp_one(-104.0f)), 0);
    assert_int_equal(bits_of_float(exp_one(-INFINITY)), 0);
    assert_true(isinf(exp_one(89.0f)) && isinf(exp_one(INFINITY)));
    assert_true(isnan(exp_one(NAN)));
}

static void silu(void **state)
{
    (void)state;
    enum { N = 4099 };
    float gate[N];
    float up[N];
    float want[N];
    float got[N];
    const mx_kern *ref = mx_kern_get(MX_CPU_PORTABLE);
    for (int kind = 0; kind < FILL_KINDS + 1; kind++) {
        rng r = {(uint64_t)kind};
        fill_floats(&r, (fill)(kind % FILL_KINDS), gate, N);
        fill_floats(&r, FILL_NORMAL, up, N);
        if (kind == FILL_KINDS) { /* the range where silu is not trivial */
            for (int i = 0; i < N; i++) {
                gate[i] *= 100;
            }
        }
        ref->silu_mul(want, gate, up, N);
        for (int i = 0; i < N; i++) {
            const double g = (double)gate[i];
            const double exact = g / (1 + exp(-g)) * (double)up[i];
            const double bound = 4e-7 * fabs(exact) + 1e-37;
            if (g > -80 && fabs(exact) < 1e38 && fabs(exact - (double)want[i]) > bound) {
                fail_msg("silu(%g) * %g: expected %.9g, got %.9g", g, (double)up[i], exact,
                         (double)want[i]);
            }
        }
        for (size_t l = 0; l < MX_COUNT(levels); l++) {
            const mx_kern *k = level_or_null(levels[l]);
            for (size_t n = N; k != NULL && n > N - 20; n--) {
                memset(got, 0xff, sizeof got);
                k->silu_mul(got, gate, up, n);
                check_same(want, got, n, "silu_mul", (uint64_t)kind);
                assert_true(n == N || bits_of_float(got[n]) == 0xffffffffu);
            }
        }
    }
}

static double gelu_exact(double g)
{
    return 0.5 * g * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g)));
}

static void gelu(void **state)
{
    (void)state;
    enum { N = 4099 };
    float gate[N];
    float up[N];
    float want[N];
    float got[N];
    const mx_kern *ref = mx_kern_get(MX_CPU_PORTABLE);
    for (int kind = 0; kind < FILL_KINDS + 1; kind++) {
        rng r = {(uint64_t)kind};
        fill_floats(&r, (fill)(kind % FILL_KINDS), gate, N);
        fill_floats(&r, FILL_NORMAL, up, N);
        for (int i = 0; kind == FILL_KINDS && i < N; i++) {
            gate[i] *= 8; /* the range where gelu is not trivial */
        }
        ref->gelu_mul(want, gate, up, N);
        for (int i = 0; i < N; i++) {
            /* Below -3 the formula with tanh loses its digits; there only the size is looked at. */
            const double exact = gelu_exact((double)gate[i]) * (double)up[i];
            const double bound =
                gate[i] < -3 ? 1e-4 * fabs(exact) + 1e-9 : 2e-6 * fabs(exact) + 1e-37;
            if (!(fabs(exact - (double)want[i]) <= bound) && fabs(exact) < 1e38) {
                fail_msg("gelu(%g) * %g: expected %.9g, got %.9g", (double)gate[i], (double)up[i],
                         exact, (double)want[i]);
            }
        }
        for (size_t l = 0; l < MX_COUNT(levels); l++) {
            const mx_kern *k = level_or_null(levels[l]);
            for (size_t n = N; k != NULL && n > N - 20; n--) {
                memset(got, 0xff, sizeof got);
                k->gelu_mul(got, gate, up, n);
                check_same(want, got, n, "gelu_mul", (uint64_t)kind);
                assert_true(n == N || bits_of_float(got[n]) == 0xffffffffu);
            }
        }
    }
}

static void softmax_of(const mx_kern *k, const float *x, size_t n, float *out /* [n + 1] */)
{
    memcpy(out, x, n * sizeof *x);
    out[n] = 77;
    k->softmax(out, n);
    assert_true(out[n] == 77); /* nothing is written behind the end */
}

static void softmax_and_scaled_sums(void **state)
{
    (void)state;
    enum { N = 515 };
    static const size_t sizes[] = {1, 2, 7, 15, 16, 17, 64, 100, 128, N};
    float x[N];
    float y[N];
    float want[N + 1];
    float got[N + 1];
    for (size_t i = 0; i < MX_COUNT(sizes) * FILL_KINDS; i++) {
        const size_t n = sizes[i / FILL_KINDS];
        const fill kind = (fill)(i % FILL_KINDS);
        rng r = {i};
        fill_floats(&r, kind, x, n);
        fill_floats(&r, FILL_NORMAL, y, n);
        softmax_of(mx_kern_get(MX_CPU_PORTABLE), x, n, want);
        double largest = (double)x[0];
        double sum = 0;
        for (size_t j = 0; j < n; j++) {
            largest = (double)x[j] > largest ? (double)x[j] : largest;
        }
        for (size_t j = 0; j < n; j++) {
            sum += exp((double)x[j] - largest);
        }
        for (size_t j = 0; j < n; j++) {
            const double exact = exp((double)x[j] - largest) / sum;
            if (!(fabs(exact - (double)want[j]) <= 1e-5 * exact + 1e-38)) {
                fail_msg("softmax of %zu, kind %d: expected %.9g, got %.9g", n, (int)kind, exact,
                         (double)want[j]);
            }
        }
        for (int l = -1; l < (int)MX_COUNT(levels); l++) {
            const mx_kern *k = level_or_null(l < 0 ? MX_CPU_PORTABLE : levels[l]);
            if (k == NULL) {
                continue;
            }
            softmax_of(k, x, n, got);
            check_same(want, got, n, "softmax", i);
            memcpy(got, y, n * sizeof *got);
            k->add_scaled(got, x[0], x, n);
            k->scale(got, x[n - 1], n);
            for (size_t j = 0; j < n; j++) {
                const float one = fmaf(x[0], x[j], y[j]) * x[n - 1];
                check_same(&one, got + j, 1, "add_scaled, scale", i);
            }
        }
    }
}

static void norm_and_add(void **state)
{
    (void)state;
    enum { N = 1536 };
    float x[N];
    float w[N];
    float want[N];
    float got[N];
    const mx_kern *ref = mx_kern_get(MX_CPU_PORTABLE);
    static const uint32_t sizes[] = {1, 8, 15, 16, 17, 64, 96, 100, 576, 1536};
    for (size_t i = 0; i < MX_COUNT(sizes); i++) {
        const uint32_t n = sizes[i];
        for (int kind = 0; kind < FILL_KINDS; kind++) {
            rng r = {i * 10 + (uint64_t)kind};
            fill_floats(&r, (fill)kind, x, n);
            fill_floats(&r, FILL_NORMAL, w, n);
            ref->rmsnorm(want, x, w, n, 1e-5f);
            double sum = 0;
            for (uint32_t j = 0; j < n; j++) {
                sum += (double)x[j] * (double)x[j];
            }
            for (uint32_t j = 0; j < n && kind < FILL_HUGE; j++) {
                const double exact =
                    (double)x[j] * (double)w[j] / sqrt(sum / n + (double)1e-5f);
                if (fabs(exact - (double)want[j]) > 2e-6 * fabs(exact) + 1e-44) {
                    fail_msg("rmsnorm n %u: expected %.9g, got %.9g", n, exact, (double)want[j]);
                }
            }
            for (size_t l = 0; l < MX_COUNT(levels); l++) {
                const mx_kern *k = level_or_null(levels[l]);
                if (k == NULL) {
                    continue;
                }
                k->rmsnorm(got, x, w, n, 1e-5f);
                check_same(want, got, n, "rmsnorm", i);
                memcpy(got, w, n * sizeof *got);
                k->add(got, x, n);
                for (uint32_t j = 0; j < n; j++) {
                    const float sum1 = w[j] + x[j];
                    check_same(&sum1, got + j, 1, "add", i);
                }
                memcpy(got, x, n * sizeof *got); /* in place, as callers may */
                k->rmsnorm(got, got, w, n, 1e-5f);
                check_same(want, got, n, "rmsnorm in place", i);
            }
        }
    }
}

/* Angles up to 10^6 radians against long double. */
static void rope_table(void **state)
{
    (void)state;
    static const double bases[] = {10000, 500000, 1e6, 1e7};
    enum { N_POS = 1000001, HALF = 3 };
    float *table = need((size_t)N_POS * HALF * 2 * sizeof *table);
    double worst = 0;
    for (size_t b = 0; b < MX_COUNT(bases); b++) {
        const float factors[HALF] = {1, 2.5f, 8};
        const mx_rope_params p = {.n_rot = 2 * HALF, .freq_base = bases[b],
                                  .scale_factor = b == 2 ? 4 : 1,
                                  .factors = b == 1 ? factors : NULL};
        mx_rope_table(&p, N_POS, table);
        for (uint32_t pos = 0; pos < N_POS; pos += pos < 300 ? 1 : 997) {
            for (int j = 0; j < HALF; j++) {
                long double t = (long double)pos * powl((long double)bases[b], -2.0L * j / 6);
                t /= (long double)p.scale_factor * (b == 1 ? (long double)factors[j] : 1);
                const float *got = table + ((size_t)pos * HALF + (size_t)j) * 2;
                const double ec = fabs((double)(cosl(t) - (long double)got[0]));
                const double es = fabs((double)(sinl(t) - (long double)got[1]));
                worst = ec > worst ? ec : es > worst ? es : worst;
                if (!(ec < 1e-7 && es < 1e-7)) {
                    fail_msg("base %g pos %u pair %d: expected %.9Lf %.9Lf, got %.9g %.9g",
                             bases[b], pos, j, cosl(t), sinl(t), (double)got[0], (double)got[1]);
                }
            }
        }
    }
    printf("rope: worst error %.3g\n", worst);
    mx_free(table);
}

/* Any cut of the table has the same bits. */
static void rope_rows(void **state)
{
    (void)state;
    enum { N_POS = 1000, N_ROT = 64 };
    for (int is_yarn = 0; is_yarn < 2; is_yarn++) {
        const mx_rope_params p = {.n_rot = N_ROT, .freq_base = 1e6, .scale_factor = 4,
                                  .is_yarn = is_yarn != 0, .yarn_orig_ctx = 512,
                                  .yarn_beta_fast = 32, .yarn_beta_slow = 1, .yarn_attn_factor = 1};
        float *table = need((size_t)N_POS * N_ROT * sizeof *table);
        float *rows = need((size_t)N_POS * N_ROT * sizeof *rows);
        mx_rope_table(&p, N_POS, table);
        for (uint32_t first = 0, n = 1; first < N_POS; first += n, n = (7 * n + 3) % 64 + 1) {
            n = n < N_POS - first ? n : N_POS - first;
            mx_rope_rows(&p, first, n, rows + (size_t)first * N_ROT);
        }
        assert_memory_equal(table, rows, (size_t)N_POS * N_ROT * sizeof *table);
        mx_free(table);
        mx_free(rows);
    }
}

static void rope_yarn(void **state)
{
    (void)state;
    enum { N_POS = 5000, N_ROT = 64 };
    const double base = 1e6;
    const double factor = 4;
    const double ctx = 32768;
    const mx_rope_params p = {.n_rot = N_ROT, .freq_base = base, .scale_factor = factor,
                              .is_yarn = true, .yarn_orig_ctx = ctx, .yarn_beta_fast = 32,
                              .yarn_beta_slow = 1, .yarn_attn_factor = 1.5};
    float *table = need((size_t)N_POS * N_ROT * sizeof *table);
    mx_rope_table(&p, N_POS, table);
    const double pi = acos(-1);
    const double lo = floor(N_ROT * log(ctx / (32 * 2 * pi)) / (2 * log(base)));
    const double hi = ceil(N_ROT * log(ctx / (1 * 2 * pi)) / (2 * log(base)));
    const double scale = 1.5 * (1 + 0.1 * log(factor));
    for (int j = 0; j < N_ROT / 2; j++) {
        double u = (j - lo) / (hi - lo);
        u = u < 0 ? 0 : u > 1 ? 1 : u;
        const double f = pow(base, -2.0 * j / N_ROT);
        const double mixed = f / factor * u + f * (1 - u);
        for (int pos = 0; pos < N_POS; pos += 7) {
            const float *got = table + (size_t)pos * N_ROT + 2 * j;
            assert_true(fabs((double)got[0] - cos(pos * mixed) * scale) < 2e-7);
            assert_true(fabs((double)got[1] - sin(pos * mixed) * scale) < 2e-7);
        }
    }
    mx_free(table);
}

static void rope_rotation(void **state)
{
    (void)state;
    enum { HEADS = 3, D = 24, N_ROT = 16, POS = 9 };
    float x[HEADS * D];
    float table[(POS + 1) * N_ROT];
    for (int pairing = 0; pairing < 2; pairing++) {
        const mx_rope_params p = {.pairing = (mx_rope_pairing)pairing, .n_rot = N_ROT,
                                  .freq_base = 10000, .scale_factor = 1};
        mx_rope_table(&p, POS + 1, table);
        rng r = {1};
        fill_floats(&r, FILL_NORMAL, x, HEADS * D);
        for (int l = -1; l < (int)MX_COUNT(levels); l++) {
            const mx_kern *k = level_or_null(l < 0 ? MX_CPU_PORTABLE : levels[l]);
            if (k == NULL) {
                continue;
            }
            float y[HEADS * D];
            memcpy(y, x, sizeof x);
            k->rope(y, HEADS, D, &p, table + POS * N_ROT);
            for (int h = 0; h < HEADS; h++) {
                for (int j = 0; j < N_ROT / 2; j++) {
                    const int a = h * D + (pairing == MX_ROPE_NORM ? 2 * j : j);
                    const int b = a + (pairing == MX_ROPE_NORM ? 1 : N_ROT / 2);
                    const float c = table[POS * N_ROT + 2 * j];
                    const float s = table[POS * N_ROT + 2 * j + 1];
                    const float want_a = fmaf(x[a], c, -(x[b] * s));
                    const float want_b = fmaf(x[a], s, x[b] * c);
                    check_same(&want_a, y + a, 1, "rope", (uint64_t)j);
                    check_same(&want_b, y + b, 1, "rope", (uint64_t)j);
                    const double t = POS * pow(10000, -2.0 * j / N_ROT);
                    assert_true(fabs((double)y[a] - ((double)x[a] * cos(t) -
                                                     (double)x[b] * sin(t))) < 1e-6);
                }
                assert_memory_equal(x + h * D + N_ROT, y + h * D + N_ROT, (D - N_ROT) * 4);
            }
        }
    }
}

static void check_id(mx_hash256 (*id_of)(const mx_kern *k), const char *golden)
{
    const mx_hash256 want = id_of(mx_kern_get(MX_CPU_PORTABLE));
    char hex[65];
    mx_hash256_hex(&want, hex);
    printf("numerics id %s\n", hex);
    /* A change here is a change of numerics: it needs a new MX_NUMERICS_NAME, and old caches are
     * not found any more. */
    assert_string_equal(hex, golden);
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        const mx_kern *k = level_or_null(levels[l]);
        if (k != NULL) {
            const mx_hash256 got = id_of(k);
            assert_true(mx_hash256_eq(&want, &got));
        }
    }
}

static void one_numerics_id(void **state)
{
    (void)state;
    check_id(mx_kern_numerics_id, MX_NUMERICS_GOLDEN);
    check_id(mx_kern_numerics_id_8, MX_NUMERICS_8_GOLDEN);
    check_id(mx_kern_extras_id, MX_EXTRAS_GOLDEN);
    check_id(mx_kern_gdn_id, MX_GDN_GOLDEN);
}

static void dispatcher(void **state)
{
    (void)state;
    assert_int_equal(mx_kern_get(MX_CPU_PORTABLE)->level, MX_CPU_PORTABLE);
    assert_true(mx_kern_get(MX_CPU_NEON)->level <= mx_cpu_best());
    for (int l = 0; l <= MX_CPU_NEON; l++) {
        mx_cpu_level level = MX_CPU_PORTABLE;
        assert_true(mx_cpu_level_from_name(mx_cpu_level_name((mx_cpu_level)l), &level));
        assert_int_equal(level, l);
        const mx_kern *k = mx_kern_get((mx_cpu_level)l);
        assert_string_equal(k->name, mx_cpu_level_name(k->level));
    }
    mx_cpu_level unused;
    assert_false(mx_cpu_level_from_name("sse9", &unused));
}

int main(void)
{
    mx_kern_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_accuracy),  cmocka_unit_test(silu),
        cmocka_unit_test(norm_and_add),  cmocka_unit_test(rope_table),
        cmocka_unit_test(rope_rows),
        cmocka_unit_test(rope_yarn),     cmocka_unit_test(rope_rotation),
        cmocka_unit_test(one_numerics_id), cmocka_unit_test(dispatcher),
        cmocka_unit_test(gelu),          cmocka_unit_test(softmax_and_scaled_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
