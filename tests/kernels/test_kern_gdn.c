/* SPDX-License-Identifier: MIT
 *
 * The kernels of Gated DeltaNet layers: accuracy against double precision, every level against the
 * portable one, and that neither the number of rows in a call nor the columns beside a column change
 * a bit. Every buffer ends at a page that may not be touched.
 */
#include "kern_check.h"

#include <sys/mman.h>

/* All 16 inputs of a vector at once: also what lies behind the last float of a buffer is noticed. */
typedef struct guarded {
    float *x;
    size_t n;
    void *map;
    size_t map_bytes;
} guarded;

static guarded guarded_new(size_t n)
{
    const size_t page = 4096, bytes = mx_round_up(n * sizeof(float), page);
    guarded g = {.n = n, .map_bytes = bytes + page};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect((uint8_t *)g.map + bytes, page, PROT_NONE), 0);
    g.x = (float *)(void *)((uint8_t *)g.map + bytes) - n;
    return g;
}

static guarded guarded_random(rng *r, fill kind, size_t n)
{
    guarded g = guarded_new(n);
    fill_floats(r, kind, g.x, n);
    return g;
}

static guarded guarded_copy(const guarded *from)
{
    guarded g = guarded_new(from->n);
    memcpy(g.x, from->x, from->n * sizeof(float));
    return g;
}

static void guarded_free(guarded *g)
{
    assert_int_equal(munmap(g->map, g->map_bytes), 0);
}

static const mx_cpu_level levels[] = {MX_CPU_PORTABLE, VECTOR_LEVELS};

/* ---- element by element ----------------------------------------------------------------------- */

static double sigmoid_exact(double x)
{
    return 1 / (1 + exp(-x));
}

static double decay_exact(double x, double dt, double a)
{
    const double t = x + dt;
    return exp(a * (t > 30 ? t : log1p(exp(t))));
}

static void check_close(double want, float got, double relative, double least, const char *what)
{
    if (!(fabs(want - (double)got) <= relative * fabs(want) + least)) {
        fail_msg("%s: expected %.9g, got %.9g", what, want, (double)got);
    }
}

static void gates_are_accurate(void **state)
{
    (void)state;
    enum { N = 40007 };
    const mx_kern *k = mx_kern_get(MX_CPU_PORTABLE);
    static float x[N], s[N], y[N], d[N], dt[N], a[N];
    rng r = {1};
    for (int i = 0; i < N; i++) {
        x[i] = -60.0f + 0.003f * (float)i;
        s[i] = x[i];
        d[i] = x[i];
        y[i] = rng_float(&r);
        dt[i] = rng_float(&r);
        a[i] = -0.01f - fabsf(rng_float(&r));
    }
    k->sigmoid(s, N);
    k->gdn_decay(d, dt, a, N);
    for (int i = 0; i < N; i++) {
        check_close(sigmoid_exact((double)x[i]), s[i], 4e-7, 1e-38, "sigmoid");
        /* exp(g) has g's absolute error as its relative one: g is up to 60 here. */
        check_close(decay_exact((double)(x[i] + dt[i]), 0, (double)a[i]), d[i], 2e-5, 1e-38,
                    "decay");
    }
    memcpy(s, y, sizeof s);
    k->sigmoid_mul(s, x, N);
    for (int i = 0; i < N; i++) {
        check_close((double)y[i] * sigmoid_exact((double)x[i]), s[i], 4e-7, 1e-38, "sigmoid_mul");
    }
    /* Where softplus matters most, to the last digits. */
    for (int i = 0; i < N; i++) {
        d[i] = -12.0f + 0.0006f * (float)i;
        dt[i] = 0;
        a[i] = -1;
    }
    memcpy(x, d, sizeof x);
    k->gdn_decay(d, dt, a, N);
    for (int i = 0; i < N; i++) {
        check_close(decay_exact((double)x[i], 0, -1), d[i], 1.5e-6, 0, "decay near 0");
    }
    float edge[6] = {-INFINITY, INFINITY, NAN, 1e30f, -1e30f, 0};
    const float zero[6] = {0}, minus[6] = {-1, -1, -1, -1, -1, 0};
    k->gdn_decay(edge, zero, minus, 6);
    assert_true(edge[0] == 1 && edge[1] == 0 && isnan(edge[2]) && edge[3] == 0 && edge[4] == 1);
    assert_true(edge[5] == 1);
}

static void elementwise_levels(void **state)
{
    (void)state;
    enum { N = 67 };
    for (int kind = 0; kind < FILL_KINDS + 1; kind++) {
        for (size_t n = 1; n <= N; n++) {
            rng r = {(uint64_t)kind * 1000 + n};
            guarded x = guarded_random(&r, (fill)(kind % FILL_KINDS), n);
            guarded y = guarded_random(&r, FILL_NORMAL, n), a = guarded_random(&r, FILL_NORMAL, n);
            for (size_t i = 0; kind == FILL_KINDS && i < n; i++) {
                x.x[i] *= 100; /* where exp is not trivial */
            }
            float want[4][N];
            for (size_t l = 0; l < MX_COUNT(levels); l++) {
                const mx_kern *k = mx_kern_get(levels[l]);
                if (k->level != levels[l]) {
                    continue;
                }
                guarded got[4] = {guarded_copy(&x), guarded_copy(&y), guarded_copy(&x),
                                  guarded_copy(&x)};
                k->sigmoid(got[0].x, n);
                k->sigmoid_mul(got[1].x, x.x, n);
                k->gdn_decay(got[2].x, y.x, a.x, n);
                k->l2norm(got[3].x, 0.125f, (uint32_t)n);
                for (int f = 0; f < 4; f++) {
                    if (l == 0) {
                        memcpy(want[f], got[f].x, n * sizeof(float));
                    }
                    check_same(want[f], got[f].x, n, k->name, r.state);
                    guarded_free(&got[f]);
                }
            }
            guarded_free(&x);
            guarded_free(&y);
            guarded_free(&a);
        }
    }
}

static void l2norm_is_accurate(void **state)
{
    (void)state;
    float x[128];
    for (uint64_t seed = 0; seed < 50; seed++) {
        rng r = {seed};
        fill_floats(&r, FILL_NORMAL, x, 128);
        double ss = 0, was[128];
        for (int i = 0; i < 128; i++) {
            was[i] = (double)x[i];
            ss += was[i] * was[i];
        }
        mx_kern_get(MX_CPU_PORTABLE)->l2norm(x, 0.5f, 128);
        for (int i = 0; i < 128; i++) {
            check_close(was[i] * 0.5 / sqrt(ss + 1e-6), x[i], 1e-6, 0, "l2norm");
        }
    }
}

/* ---- convolution ------------------------------------------------------------------------------ */

typedef struct conv_case {
    uint32_t n, n_taps, n_rows;
    size_t ldx, ld;
} conv_case;

/* Runs rows in calls of at most `chunk` on copies; returns the rows, past is changed. */
static guarded run_conv(const mx_kern *k, const conv_case *c, const guarded *x, const guarded *taps,
                        guarded *past, uint32_t chunk)
{
    guarded y = guarded_copy(x);
    for (uint32_t r = 0; r < c->n_rows; r += chunk) {
        const uint32_t n = c->n_rows - r < chunk ? c->n_rows - r : chunk;
        k->gdn_conv(y.x + r * c->ldx, c->ldx, n, c->n, taps->x, past->x, c->n_taps, c->ld);
    }
    return y;
}

static void one_conv(const conv_case *c, fill kind, uint64_t seed)
{
    rng r = {seed};
    guarded x = guarded_random(&r, kind, (c->n_rows - 1) * c->ldx + c->n);
    guarded taps = guarded_random(&r, FILL_NORMAL, (c->n_taps - 1) * c->ld + c->n);
    guarded past = guarded_random(&r, FILL_NORMAL, (c->n_taps - 2) * c->ld + c->n);
    guarded want_past = guarded_copy(&past);
    guarded want = run_conv(mx_kern_get(MX_CPU_PORTABLE), c, &x, &taps, &want_past, c->n_rows);
    for (uint32_t t = 0; kind == FILL_NORMAL && t < c->n_rows; t++) {
        for (uint32_t i = 0; i < c->n; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < c->n_taps; j++) {
                const int64_t at = (int64_t)t - (c->n_taps - 1) + j;
                const float in = at < 0 ? past.x[(size_t)(at + c->n_taps - 1) * c->ld + i]
                                        : x.x[(size_t)at * c->ldx + i];
                sum += (double)taps.x[j * c->ld + i] * (double)in;
            }
            check_close(sum * sigmoid_exact(sum), want.x[t * c->ldx + i], 2e-6, 3e-7, "conv");
        }
    }
    /* What is handed on is the last inputs, the oldest first. */
    for (uint32_t j = 0; j + 1 < c->n_taps; j++) {
        const int64_t at = (int64_t)c->n_rows - (c->n_taps - 1) + j;
        const float *in = at < 0 ? past.x + (size_t)(at + c->n_taps - 1) * c->ld
                                 : x.x + (size_t)at * c->ldx;
        assert_memory_equal(in, want_past.x + j * c->ld, c->n * sizeof(float));
    }
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        const mx_kern *k = mx_kern_get(levels[l]);
        for (uint32_t chunk = 1; k->level == levels[l] && chunk <= c->n_rows; chunk += 2) {
            guarded got_past = guarded_copy(&past);
            guarded got = run_conv(k, c, &x, &taps, &got_past, chunk);
            check_same(want.x, got.x, got.n, k->name, seed);
            check_same(want_past.x, got_past.x, got_past.n, k->name, seed);
            guarded_free(&got);
            guarded_free(&got_past);
        }
    }
    guarded_free(&x);
    guarded_free(&taps);
    guarded_free(&past);
    guarded_free(&want);
    guarded_free(&want_past);
}

static void convolution(void **state)
{
    (void)state;
    static const conv_case cases[] = {
        {16, 4, 7, 16, 16}, {48, 4, 5, 50, 64}, {128, 4, 9, 200, 128}, {16, 2, 4, 16, 16},
        {32, 7, 3, 32, 32}, {112, 4, 21, 120, 112},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        for (int kind = 0; kind < FILL_KINDS; kind++) {
            one_conv(&cases[i], (fill)kind, i * 100 + (uint64_t)kind);
        }
    }
}

/* ---- the recurrence --------------------------------------------------------------------------- */

typedef struct step_case {
    uint32_t d, n_cols, n_rows;
} step_case;

typedef struct step_data {
    guarded row;   /* [n_rows]{q [d] | k [d] | v [n_cols] | decay | beta} */
    guarded state; /* [n_cols / 16][d][16] */
    size_t ld;
} step_data;

static guarded run_step(const mx_kern *k, const step_case *c, const step_data *in, guarded *to,
                        uint32_t chunk)
{
    guarded out = guarded_new((size_t)c->n_rows * c->n_cols);
    for (uint32_t r = 0; r < c->n_rows; r += chunk) {
        const float *row = in->row.x + r * in->ld;
        const mx_gdn_args args = {
            .d = c->d,
            .n_cols = c->n_cols,
            .n_rows = c->n_rows - r < chunk ? c->n_rows - r : chunk,
            .q = row,
            .k = row + c->d,
            .v = row + 2 * c->d,
            .ld = in->ld,
            .decay = row + 2 * c->d + c->n_cols,
            .beta = row + 2 * c->d + c->n_cols + 1,
            .ld_gates = in->ld,
            .from = r == 0 ? in->state.x : to->x,
            .to = to->x,
            .out = out.x + (size_t)r * c->n_cols,
            .ldo = c->n_cols,
        };
        k->gdn_step(&args);
    }
    return out;
}

static step_data make_step(const step_case *c, fill kind, uint64_t seed)
{
    rng r = {seed};
    step_data s = {.ld = 2 * (size_t)c->d + c->n_cols + 2};
    s.row = guarded_random(&r, kind, c->n_rows * s.ld);
    s.state = guarded_random(&r, kind, (size_t)c->n_cols * c->d);
    for (uint32_t t = 0; t < c->n_rows; t++) {
        float *row = s.row.x + t * s.ld;
        row[s.ld - 2] = 0.5f + 0.5f * rng_float(&r);
        row[s.ld - 1] = 0.5f + 0.5f * rng_float(&r);
        if (kind == FILL_NORMAL) {
            mx_kern_get(MX_CPU_PORTABLE)->l2norm(row, 0.25f, c->d);
            mx_kern_get(MX_CPU_PORTABLE)->l2norm(row + c->d, 1, c->d);
        }
    }
    return s;
}

/* Column n of S in double precision, as the formula has it. */
static void check_column(const step_case *c, const step_data *in, uint32_t n, const guarded *out)
{
    double s[256];
    for (uint32_t i = 0; i < c->d; i++) {
        s[i] = (double)in->state.x[(n / 16 * c->d + i) * 16 + n % 16];
    }
    for (uint32_t t = 0; t < c->n_rows; t++) {
        const float *q = in->row.x + t * in->ld, *k = q + c->d, *v = k + c->d;
        const double decay = (double)v[c->n_cols], beta = (double)v[c->n_cols + 1];
        double r = 0, o = 0;
        for (uint32_t i = 0; i < c->d; i++) {
            s[i] *= decay;
            r += s[i] * (double)k[i];
        }
        for (uint32_t i = 0; i < c->d; i++) {
            s[i] += (double)k[i] * beta * ((double)v[n] - r);
            o += s[i] * (double)q[i];
        }
        check_close(o, out->x[t * c->n_cols + n], 1e-5, 2e-6, "step");
    }
}

static void one_step(const step_case *c, fill kind, uint64_t seed)
{
    step_data in = make_step(c, kind, seed);
    guarded want_state = guarded_new(in.state.n);
    guarded want = run_step(mx_kern_get(MX_CPU_PORTABLE), c, &in, &want_state, c->n_rows);
    for (uint32_t n = 0; kind == FILL_NORMAL && n < c->n_cols; n++) {
        check_column(c, &in, n, &want);
    }
    for (size_t l = 0; l < MX_COUNT(levels); l++) {
        const mx_kern *k = mx_kern_get(levels[l]);
        const uint32_t last = c->n_rows < 10 ? c->n_rows : 1;
        for (uint32_t chunk = 1; k->level == levels[l] && chunk <= last; chunk += 3) {
            guarded to = guarded_new(in.state.n), before = guarded_copy(&in.state);
            guarded got = run_step(k, c, &in, &to, chunk);
            check_same(want.x, got.x, got.n, k->name, seed);
            check_same(want_state.x, to.x, to.n, k->name, seed);
            assert_memory_equal(before.x, in.state.x, before.n * sizeof(float));
            guarded_free(&got);
            guarded_free(&to);
            guarded_free(&before);
        }
        if (k->level == levels[l]) { /* token by token to where no vector is aligned */
            guarded to = guarded_new(in.state.n + 1);
            to.n--;
            guarded got = run_step(k, c, &in, &to, 1);
            check_same(want.x, got.x, got.n, k->name, seed);
            check_same(want_state.x, to.x, to.n, k->name, seed);
            to.n++;
            guarded_free(&got);
            guarded_free(&to);
        }
        if (k->level == levels[l]) { /* in place */
            step_data own = in;
            own.state = guarded_copy(&in.state);
            guarded got = run_step(k, c, &own, &own.state, c->n_rows);
            check_same(want.x, got.x, got.n, k->name, seed);
            check_same(want_state.x, own.state.x, own.state.n, k->name, seed);
            guarded_free(&got);
            guarded_free(&own.state);
        }
    }
    guarded_free(&want);
    guarded_free(&want_state);
    guarded_free(&in.row);
    guarded_free(&in.state);
}

static void recurrence(void **state)
{
    (void)state;
    static const step_case cases[] = {
        {16, 16, 7}, {32, 48, 5}, {64, 64, 4}, {128, 64, 5}, {128, 112, 3}, {48, 128, 4},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        for (int kind = 0; kind < FILL_KINDS; kind++) {
            one_step(&cases[i], (fill)kind, i * 100 + (uint64_t)kind);
        }
    }
}

/* A long text: the error does not grow, and the state stays what the formula says. */
static void long_text(void **state)
{
    (void)state;
    const step_case c = {32, 16, 2000};
    one_step(&c, FILL_NORMAL, 77);
}

int main(void)
{
    mx_kern_thread_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_are_accurate), cmocka_unit_test(elementwise_levels),
        cmocka_unit_test(l2norm_is_accurate), cmocka_unit_test(convolution),
        cmocka_unit_test(recurrence),         cmocka_unit_test(long_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
