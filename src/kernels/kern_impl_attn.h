/* SPDX-License-Identifier: MIT
 *
 * kern_impl_attn.h (internal, part of kern_impl.h): softmax(q K^T) V over pages of 64 tokens.
 *
 * The page loop is outermost, so that a K/V tile is read from memory once for all query rows; each
 * row carries its own running maximum, sums and accumulators (docs/numerics.md, section 10). A row
 * is never affected by which other rows are in the call.
 *
 * Two ways through a page. Few rows (decode) wait for memory: they read the tiles as stored and
 * ask for memory some steps ahead. Many rows (prefill) wait for the multipliers: a part of a tile
 * as wide as a register block is unpacked to f32 and stays in L1 while all rows pass over it, six at
 * a time.
 *
 *     K tile [head_dim][64]       panel [head_dim][W]        W = 16 VEC_PANEL tokens
 *     V tile [64][head_dim]       panel [64][W], or [64][16] for each vector left over
 */

enum {
    ATTN_GROUP = 6,     /* query rows that share the loads of a panel */
    ATTN_FEW = 4,       /* the same for tiles as stored */
    ATTN_DIRECT = 6,    /* up to so many rows in a call the tiles are read as stored */
    ATTN_ACTIVE = 96,   /* rows of which the scores are kept at a time */
    ATTN_VECS = MX_PAGE_TOKENS / 16,
    ATTN_SPAN_PAGES = MX_ATTN_SPAN / MX_PAGE_TOKENS,
};

_Static_assert(MX_SELFTEST_QUERIES >= ATTN_DIRECT + ATTN_GROUP && ATTN_DIRECT >= ATTN_FEW,
               "the self-test has a group of every size, with few rows and with many");
_Static_assert(MX_SELFTEST_HEAD >= 16 * ATTN_VECS + 16 && MX_SELFTEST_HEAD % 16 != 0 &&
                   (VEC_PANEL == 1 || MX_SELFTEST_HEAD / 16 % VEC_PANEL != 0),
               "and whole blocks of dimensions, a vector of them, and less");

/* Scratch: the state of each query in the current span, then what is needed for a page. */
typedef struct attn_state {
    size_t acc_stride; /* head_dim rounded up to 16 */
    float *m;          /* [n_queries] maximum of the current span */
    float *l;          /* [n_queries][16] */
    float *all;        /* [n_queries][2] maximum and sum of the spans before */
    float *acc;        /* [n_queries][acc_stride] */
    float *s;          /* [ATTN_ACTIVE][MX_PAGE_TOKENS] scores, then weights */
    float *panel;      /* [head_dim or MX_PAGE_TOKENS][16 VEC_PANEL] a part of a tile as f32 */
} attn_state;

MX_INLINE size_t round_16(size_t n)
{
    return (n + 15) / 16 * 16;
}

static size_t attn_scratch_floats(uint32_t head_dim, uint32_t n_queries)
{
    const size_t active = n_queries < ATTN_ACTIVE ? n_queries : ATTN_ACTIVE;
    return round_16((size_t)n_queries * 3) + (size_t)n_queries * (16 + round_16(head_dim)) +
           active * MX_PAGE_TOKENS +
           (size_t)(head_dim > MX_PAGE_TOKENS ? head_dim : MX_PAGE_TOKENS) * 16 * VEC_PANEL;
}

static attn_state attn_state_in(const mx_attn_args *args)
{
    const size_t nq = args->n_queries;
    attn_state st = {.acc_stride = round_16(args->head_dim), .m = args->scratch};
    st.all = st.m + nq;
    st.l = st.m + round_16(nq * 3);
    st.acc = st.l + nq * 16;
    st.s = st.acc + nq * st.acc_stride;
    st.panel = st.s + (nq < ATTN_ACTIVE ? nq : ATTN_ACTIVE) * MX_PAGE_TOKENS;
    return st;
}

/* What one row does in one page: rows lo..hi-1 of it, never empty. */
typedef struct attn_row {
    uint32_t query;
    int lo, hi;
    float f; /* what the accumulators are multiplied with before this page is added */
} attn_row;

typedef struct attn_page {
    const mx_attn_args *args;
    attn_state st;
    const uint8_t *k; /* tiles as stored */
    const uint8_t *v;
    const uint8_t *next; /* the K tile after this page, or any tile */
} attn_page;

MX_INLINE v16f load_kv(const mx_kv_type type, const uint8_t *tile, size_t index)
{
    if (type == MX_KV_F16) {
        return vf_load_h((const uint16_t *)(const void *)tile + index);
    }
    if (type == MX_KV_Q8) {
        return vf_of_int(vi_load_i8(tile + index));
    }
    return vf_load((const float *)(const void *)tile + index);
}

/* The same for n < 16 elements: the end of the last row is the end of the elements. */
MX_INLINE v16f load_kv_n(const mx_kv_type type, const uint8_t *tile, size_t index, size_t n)
{
    _Alignas(4) uint8_t buf[64] = {0};
    if (MX_LIKELY(n >= 16)) {
        return load_kv(type, tile, index);
    }
    const size_t size = mx_kv_elem_bytes(type);
    memcpy(buf, tile + index * size, n * size);
    return load_kv(type, buf, 0);
}

/* So many bytes ahead memory is asked for. Pages lie megabytes apart and the hardware's own
 * prefetching ends at every 4 KiB: without asking, keys and values come from memory at 0.62 of the
 * rate of a loop that only reads, with a whole tile (16 KiB) ahead at 0.80, like this at 0.88; 4, 8
 * and 12 KiB are slower (2026-11-30, one core of a Zen 5, head_dim 128). */
enum { ATTN_AHEAD = 6144 };

/* What to ask for while a tile is read row by row: the lines that are read ATTN_AHEAD bytes later,
 * of this tile and then of the one read next. Numbers, since `next` may lie before all memory. */
typedef struct attn_ahead {
    uintptr_t own, next; /* row i of either: + i * row_bytes */
    size_t row_bytes;
    int turn; /* the row at which *next begins */
} attn_ahead;

MX_INLINE attn_ahead ahead_of(const uint8_t *tile, const uint8_t *next, size_t n_rows,
                              size_t row_bytes)
{
    const size_t n_ahead = ATTN_AHEAD / row_bytes < n_rows ? ATTN_AHEAD / row_bytes : n_rows;
    const size_t turn = n_rows - n_ahead;
    return (attn_ahead){(uintptr_t)tile + n_ahead * row_bytes, (uintptr_t)next - turn * row_bytes,
                        row_bytes, (int)turn};
}

MX_INLINE void fetch_row(const attn_ahead *a, int row)
{
    const uintptr_t at = (row < a->turn ? a->own : a->next) + (size_t)row * a->row_bytes;
    for (size_t i = 0; i < a->row_bytes; i += 64) {
        MX_PREFETCH((const void *)(at + i));
    }
}

/* The scales behind the elements of a q8 tile: [MX_PAGE_TOKENS]. */
MX_INLINE const float *kv_scales(const uint8_t *tile, uint32_t head_dim)
{
    return (const float *)(const void *)(tile + (size_t)head_dim * MX_PAGE_TOKENS);
}

/* ---- scores ----------------------------------------------------------------------------------- */

/* Unscaled scores of nq rows for nv vectors of 16 tokens from vector v0 on. The k of dimension d
 * stand at k[at + d * stride]. With `ahead` not NULL what it says is asked for. */
MX_INLINE void scores_block(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                            const int nq, const int nv, const uint8_t *k, size_t at,
                            const size_t stride, const attn_ahead *ahead, float *s)
{
    const uint32_t head_dim = pg->args->head_dim;
    v16f sum[ATTN_GROUP][ATTN_VECS];
    const float *q[ATTN_GROUP];
    MX_UNROLL
    for (int i = 0; i < nq; i++) {
        q[i] = pg->args->q[rows[i].query];
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            sum[i][j] = vf_zero();
        }
    }
    for (uint32_t d = 0; d < head_dim; d++, at += stride) {
        v16f x[ATTN_VECS];
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            x[j] = load_kv(type, k, at + (size_t)(16 * j));
        }
        MX_UNROLL
        for (int i = 0; i < nq; i++) {
            const v16f y = vf_set1(q[i][d]);
            MX_UNROLL
            for (int j = 0; j < nv; j++) {
                sum[i][j] = vf_fma(y, x[j], sum[i][j]);
            }
        }
        if (ahead != NULL) {
            fetch_row(ahead, (int)d);
        }
    }
    MX_UNROLL
    for (int i = 0; i < nq; i++) {
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            vf_store(s + i * MX_PAGE_TOKENS + 16 * j, sum[i][j]);
        }
    }
}

/* Scales the scores of a row, with -infinity for tokens that it does not see, and returns their
 * maximum. */
MX_INLINE float row_maximum(const mx_kv_type type, const attn_page *pg, const attn_row *row,
                            float *s)
{
    const v16f low = vf_set1(-INFINITY);
    const v16f scale = vf_set1(pg->args->scale);
    const float *k_scale = kv_scales(pg->k, pg->args->head_dim);
    v16f v[ATTN_VECS];
    MX_UNROLL
    for (int j = 0; j < ATTN_VECS; j++) { /* vectors outside lo..hi hold no scores: not read */
        const int lo = row->lo - 16 * j;
        const int hi = row->hi - 16 * j;
        v[j] = low;
        if (lo < 16 && hi > 0) {
            v[j] = vf_load(s + 16 * j);
            if (type == MX_KV_Q8) {
                v[j] = vf_mul(v[j], vf_load(k_scale + 16 * j));
            }
            v[j] = vf_mul(v[j], scale);
            if (lo > 0 || hi < 16) {
                v[j] = vf_keep(v[j], lo, hi, low);
            }
        }
        vf_store(s + 16 * j, v[j]);
    }
    return vf_tree_max(vf_max(vf_max(vf_max(v[0], v[1]), v[2]), v[3]));
}

/* Turns scaled scores into weights: exp(s - m). */
MX_INLINE void row_weights(const mx_kv_type type, const attn_page *pg, const attn_row *row,
                           float f, float *s)
{
    const v16f m = vf_set1(pg->st.m[row->query]);
    const float *v_scale = kv_scales(pg->v, pg->args->head_dim);
    float *l = pg->st.l + (size_t)row->query * 16;
    v16f sum = vf_mul(vf_load(l), vf_set1(f));
    MX_UNROLL
    for (int j = 0; j < ATTN_VECS; j++) {
        const int lo = row->lo - 16 * j;
        const int hi = row->hi - 16 * j;
        v16f p = vec_exp_low(vf_sub(vf_load(s + 16 * j), m));
        if (lo > 0 || hi < 16) {
            p = vf_keep(p, lo, hi, vf_zero());
        }
        sum = vf_add(sum, p);
        if (type == MX_KV_Q8) {
            p = vf_mul(p, vf_load(v_scale + 16 * j));
        }
        vf_store(s + 16 * j, p);
    }
    vf_store(l, sum);
}

/* Scores of n rows to weights; updates m and l, and sets the factors for acc. Row by row the steps
 * would wait for each other; and where the maximum moves cannot be foretold, so nothing branches on
 * it: a factor of exp(0) is exactly 1. */
MX_INLINE void softmax_rows(const mx_kv_type type, const attn_page *pg, attn_row *rows, int n,
                            float *s)
{
    float f[16] = {0};
    for (int i = 0; i < n; i += 16) {
        const int end = n - i < 16 ? n - i : 16;
        for (int j = 0; j < end; j++) {
            const float top = row_maximum(type, pg, rows + i + j, s + (i + j) * MX_PAGE_TOKENS);
            float *m = &pg->st.m[rows[i + j].query];
            const float old = *m;
            *m = old > top ? old : top;
            f[j] = old - *m;
        }
        vf_store(f, vec_exp_low(vf_load(f)));
        for (int j = 0; j < end; j++) {
            rows[i + j].f = f[j];
            row_weights(type, pg, rows + i + j, f[j], s + (i + j) * MX_PAGE_TOKENS);
        }
    }
}

/* ---- weighted sum of V ------------------------------------------------------------------------ */

/* acc[d0 .. d0 + 16 nv) of nq rows, first multiplied by the rows' factors when is_first, over
 * tokens lo..hi-1. The v of token t stand at v[at + t * stride]; n < 16 of them only with nv = 1. */
MX_INLINE void values_block(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                            const int nq, const int nv, const uint8_t *v, size_t at,
                            const size_t stride, uint32_t d0, size_t n, int lo, int hi,
                            bool is_first, const attn_ahead *ahead, const float *s)
{
    v16f sum[ATTN_GROUP][ATTN_VECS];
    float *acc[ATTN_GROUP];
    MX_UNROLL
    for (int i = 0; i < nq; i++) {
        acc[i] = pg->st.acc + (size_t)rows[i].query * pg->st.acc_stride + d0;
        const v16f f = vf_set1(is_first ? rows[i].f : 1.0f);
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            sum[i][j] = vf_mul(vf_load(acc[i] + 16 * j), f);
        }
    }
    at += (size_t)lo * stride;
    for (int t = lo; t < hi; t++, at += stride) {
        v16f x[ATTN_VECS];
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            x[j] = load_kv_n(type, v, at + (size_t)(16 * j), n);
        }
        MX_UNROLL
        for (int i = 0; i < nq; i++) {
            const v16f p = vf_set1(s[i * MX_PAGE_TOKENS + t]);
            MX_UNROLL
            for (int j = 0; j < nv; j++) {
                sum[i][j] = vf_fma(p, x[j], sum[i][j]);
            }
        }
        if (ahead != NULL) {
            fetch_row(ahead, t);
        }
    }
    MX_UNROLL
    for (int i = 0; i < nq; i++) {
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            vf_store(acc[i] + 16 * j, sum[i][j]);
        }
    }
}

/* What the rows of a group see all, and what any of them sees. */
typedef struct attn_reach {
    int all_lo, all_hi, any_lo, any_hi;
} attn_reach;

MX_INLINE attn_reach reach_of(const attn_row *rows, const int nq)
{
    attn_reach r = {rows[0].lo, rows[0].hi, rows[0].lo, rows[0].hi};
    for (int i = 1; i < nq; i++) {
        r.all_lo = rows[i].lo > r.all_lo ? rows[i].lo : r.all_lo;
        r.all_hi = rows[i].hi < r.all_hi ? rows[i].hi : r.all_hi;
        r.any_lo = rows[i].lo < r.any_lo ? rows[i].lo : r.any_lo;
        r.any_hi = rows[i].hi > r.any_hi ? rows[i].hi : r.any_hi;
    }
    return r;
}

/* Tokens are added per row in ascending order: those that only some of the rows see come before or
 * after the common ones, row by row. */
MX_INLINE void values_group(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                            const int nq, const int nv, const uint8_t *v, size_t at,
                            const size_t stride, uint32_t d0, size_t n, const attn_ahead *ahead,
                            const float *s)
{
    const attn_reach r = reach_of(rows, nq);
    if (MX_LIKELY(nq == 1 || (r.all_lo == r.any_lo && r.all_hi == r.any_hi))) {
        values_block(type, pg, rows, nq, nv, v, at, stride, d0, n, r.all_lo, r.all_hi, true, ahead,
                     s);
        return;
    }
    const bool has_common = r.all_lo < r.all_hi;
    const int lo = has_common ? r.all_lo : MX_PAGE_TOKENS;
    for (int i = 0; i < nq; i++) { /* also to bring in the factor */
        values_block(type, pg, rows + i, 1, nv, v, at, stride, d0, n, rows[i].lo,
                     rows[i].hi < lo ? rows[i].hi : lo, true, NULL, s + i * MX_PAGE_TOKENS);
    }
    if (!has_common) {
        return;
    }
    values_block(type, pg, rows, nq, nv, v, at, stride, d0, n, lo, r.all_hi, false, NULL, s);
    for (int i = 0; i < nq; i++) {
        if (r.all_hi < rows[i].hi) {
            values_block(type, pg, rows + i, 1, nv, v, at, stride, d0, n, r.all_hi, rows[i].hi,
                         false, NULL, s + i * MX_PAGE_TOKENS);
        }
    }
}

/* ---- few rows: tiles as stored ---------------------------------------------------------------- */

MX_INLINE void few_scores(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                          const int nq, const int nv, float *s)
{
    const attn_reach r = reach_of(rows, nq);
    const attn_ahead ahead = ahead_of(pg->k, pg->v, pg->args->head_dim,
                                      MX_PAGE_TOKENS * mx_kv_elem_bytes(type));
    int v = r.any_lo / 16;
    const int first = v;
    const int end = (r.any_hi + 15) / 16;
    for (; v + nv <= end; v += nv) {
        scores_block(type, pg, rows, nq, nv, pg->k, (size_t)(16 * v), MX_PAGE_TOKENS,
                     v == first ? &ahead : NULL, s + 16 * v);
    }
    for (; v < end; v++) {
        scores_block(type, pg, rows, nq, 1, pg->k, (size_t)(16 * v), MX_PAGE_TOKENS, NULL,
                     s + 16 * v);
    }
}

MX_INLINE void few_values(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                          const int nq, const int nv, const float *s)
{
    const uint32_t head_dim = pg->args->head_dim;
    const attn_ahead ahead = ahead_of(pg->v, pg->next, MX_PAGE_TOKENS,
                                      head_dim * mx_kv_elem_bytes(type));
    uint32_t d = 0;
    for (; d + 16 * (uint32_t)nv <= head_dim; d += 16 * (uint32_t)nv) {
        values_group(type, pg, rows, nq, nv, pg->v, d, head_dim, d, 16, d == 0 ? &ahead : NULL, s);
    }
    for (; d < head_dim; d += 16) {
        values_group(type, pg, rows, nq, 1, pg->v, d, head_dim, d,
                     head_dim - d < 16 ? head_dim - d : 16, NULL, s);
    }
}

/* Rows of one group through one page. */
typedef void few_fn(const attn_page *pg, attn_row *rows, float *s);

#define FEW_FN(name, type, nq, nv)                                                                 \
    static MX_NOINLINE void name(const attn_page *pg, attn_row *rows, float *s)                    \
    {                                                                                              \
        few_scores(type, pg, rows, nq, nv, s);                                                     \
        softmax_rows(type, pg, rows, nq, s);                                                       \
        few_values(type, pg, rows, nq, nv, s);                                                     \
    }

#define FEW_FNS(name, type)                                                                        \
    FEW_FN(name##_1, type, 1, VEC_WIDE_1)                                                          \
    FEW_FN(name##_2, type, 2, VEC_WIDE_2)                                                          \
    FEW_FN(name##_3, type, 3, VEC_WIDE_4)                                                          \
    FEW_FN(name##_4, type, 4, VEC_WIDE_4)                                                          \
    static few_fn *const name[ATTN_FEW + 1] = {NULL, name##_1, name##_2, name##_3, name##_4};

FEW_FNS(few_f16, MX_KV_F16)
FEW_FNS(few_f32, MX_KV_F32)
FEW_FNS(few_q8, MX_KV_Q8)

static void few_rows(const attn_page *pg, attn_row *rows, int n)
{
    static few_fn *const *const fns[] = {
        [MX_KV_F16] = few_f16, [MX_KV_F32] = few_f32, [MX_KV_Q8] = few_q8};
    const int n_groups = (n + ATTN_FEW - 1) / ATTN_FEW;
    for (int g = 0, i = 0; g < n_groups; g++) {
        const int step = (n - i + n_groups - g - 1) / (n_groups - g); /* 6 = 3 + 3, not 4 + 2 */
        fns[pg->args->kv_type][step](pg, rows + i, pg->st.s + (size_t)i * MX_PAGE_TOKENS);
        i += step;
    }
}

/* ---- many rows: panels ------------------------------------------------------------------------ */

enum { PANEL_ELEMS = 16 * VEC_PANEL };

/* Unpacks `width` of each of n_rows rows of a tile, from element `at` on. */
MX_INLINE void unpack_width(const mx_kv_type type, const uint8_t *tile, size_t at, size_t stride,
                            size_t n_rows, const int nv, size_t n, float *out)
{
    for (size_t i = 0; i < n_rows; i++, at += stride) {
        MX_UNROLL
        for (int j = 0; j < nv; j++, out += 16) {
            vf_store(out, load_kv_n(type, tile, at + (size_t)(16 * j), n));
        }
    }
}

typedef void unpack_fn(const uint8_t *tile, size_t at, size_t stride, size_t n_rows, size_t n,
                       float *out);

/* n >= 16: a whole panel; else one vector, the end of a row. */
#define UNPACK_FN(name, type)                                                                      \
    static MX_NOINLINE void name(const uint8_t *tile, size_t at, size_t stride, size_t n_rows,     \
                                 size_t n, float *out)                                             \
    {                                                                                              \
        if (n >= PANEL_ELEMS) {                                                                    \
            unpack_width(type, tile, at, stride, n_rows, VEC_PANEL, 16, out);                      \
        } else {                                                                                   \
            unpack_width(type, tile, at, stride, n_rows, 1, n, out);                               \
        }                                                                                          \
    }

UNPACK_FN(unpack_f16, MX_KV_F16)
UNPACK_FN(unpack_f32, MX_KV_F32)
UNPACK_FN(unpack_q8, MX_KV_Q8)

/* The panel of K with the tokens from t on, for a group of rows. */
MX_INLINE void panel_scores(const attn_page *pg, const attn_row *rows, const int nq, int t,
                            float *s)
{
    const attn_reach r = reach_of(rows, nq);
    if (t < r.any_hi && t + PANEL_ELEMS > r.any_lo) {
        scores_block(MX_KV_F32, pg, rows, nq, VEC_PANEL, (const uint8_t *)pg->st.panel, 0,
                     PANEL_ELEMS, NULL, s + t);
    }
}

/* The panel of V with the dimensions from d on, for a group of rows. */
MX_INLINE void panel_values(const attn_page *pg, const attn_row *rows, const int nq, uint32_t d,
                            float *s)
{
    const uint8_t *v = (const uint8_t *)pg->st.panel;
    if (d + PANEL_ELEMS <= pg->args->head_dim) {
        values_group(MX_KV_F32, pg, rows, nq, VEC_PANEL, v, 0, PANEL_ELEMS, d, 16, NULL, s);
    } else {
        values_group(MX_KV_F32, pg, rows, nq, 1, v, 0, 16, d, 16, NULL, s);
    }
}

typedef void panel_scores_fn(const attn_page *pg, const attn_row *rows, int t, float *s);
typedef void panel_values_fn(const attn_page *pg, const attn_row *rows, uint32_t d, float *s);

#define PANEL_FNS(nq)                                                                              \
    static MX_NOINLINE void panel_scores_##nq(const attn_page *pg, const attn_row *rows, int t,    \
                                              float *s)                                            \
    {                                                                                              \
        panel_scores(pg, rows, nq, t, s);                                                          \
    }                                                                                              \
    static MX_NOINLINE void panel_values_##nq(const attn_page *pg, const attn_row *rows,           \
                                              uint32_t d, float *s)                                \
    {                                                                                              \
        panel_values(pg, rows, nq, d, s);                                                          \
    }

PANEL_FNS(1)
PANEL_FNS(2)
PANEL_FNS(3)
PANEL_FNS(4)
PANEL_FNS(5)
PANEL_FNS(6)

static MX_NOINLINE void softmax_many(const attn_page *pg, attn_row *rows, int n)
{
    if (pg->args->kv_type == MX_KV_Q8) {
        softmax_rows(MX_KV_Q8, pg, rows, n, pg->st.s);
    } else {
        softmax_rows(MX_KV_F32, pg, rows, n, pg->st.s);
    }
}

static void many_rows(const attn_page *pg, attn_row *rows, int n)
{
    static unpack_fn *const unpack_of[] = {
        [MX_KV_F16] = unpack_f16, [MX_KV_F32] = unpack_f32, [MX_KV_Q8] = unpack_q8};
    static panel_scores_fn *const scores_of[ATTN_GROUP + 1] = {
        NULL, panel_scores_1, panel_scores_2, panel_scores_3, panel_scores_4, panel_scores_5,
        panel_scores_6};
    static panel_values_fn *const values_of[ATTN_GROUP + 1] = {
        NULL, panel_values_1, panel_values_2, panel_values_3, panel_values_4, panel_values_5,
        panel_values_6};
    const uint32_t head_dim = pg->args->head_dim;
    unpack_fn *const unpack = unpack_of[pg->args->kv_type];
    const attn_reach all = reach_of(rows, n);
    for (int t = 0; t < all.any_hi; t += PANEL_ELEMS) {
        if (t + PANEL_ELEMS <= all.any_lo) {
            continue;
        }
        unpack(pg->k, (size_t)t, MX_PAGE_TOKENS, head_dim, PANEL_ELEMS, pg->st.panel);
        for (int i = 0; i < n; i += ATTN_GROUP) {
            const int step = n - i < ATTN_GROUP ? n - i : ATTN_GROUP;
            scores_of[step](pg, rows + i, t, pg->st.s + (size_t)i * MX_PAGE_TOKENS);
        }
    }
    softmax_many(pg, rows, n);
    for (uint32_t d = 0; d < head_dim;) {
        unpack(pg->v, d, head_dim, MX_PAGE_TOKENS, head_dim - d, pg->st.panel);
        for (int i = 0; i < n; i += ATTN_GROUP) {
            const int step = n - i < ATTN_GROUP ? n - i : ATTN_GROUP;
            values_of[step](pg, rows + i, d, pg->st.s + (size_t)i * MX_PAGE_TOKENS);
        }
        d += d + PANEL_ELEMS <= head_dim ? PANEL_ELEMS : 16;
    }
}

/* ---- pages and spans -------------------------------------------------------------------------- */

MX_INLINE uint32_t first_row_of(const mx_attn_args *args, uint32_t query)
{
    return args->first_valid != NULL ? args->first_valid[query] : 0;
}

/* The rows of one page: collects those queries that see anything of it. */
static void attend_page(const mx_attn_args *args, const attn_state *st, uint32_t page,
                        uint32_t next)
{
    const uint32_t base = page * MX_PAGE_TOKENS;
    const attn_page pg = {.args = args, .st = *st, .k = args->k_tiles[page],
                          .v = args->v_tiles[page], .next = args->k_tiles[next]};
    const bool is_direct = args->n_queries <= ATTN_DIRECT;
    attn_row rows[ATTN_ACTIVE];
    int n = 0;
    for (uint32_t i = 0; i < args->n_queries; i++) {
        const uint32_t first = first_row_of(args, i);
        const uint32_t end = args->n_valid[i];
        if (end > base && first < base + MX_PAGE_TOKENS && first < end) {
            rows[n++] = (attn_row){
                .query = i,
                .lo = first > base ? (int)(first - base) : 0,
                .hi = end - base < MX_PAGE_TOKENS ? (int)(end - base) : MX_PAGE_TOKENS,
            };
        }
        if (n == ATTN_ACTIVE || (n > 0 && i + 1 == args->n_queries)) {
            (is_direct ? few_rows : many_rows)(&pg, rows, n);
            n = 0;
        }
    }
}

/* The state of all queries after pages begin..end-1, which lie in one span. The caller goes on up
 * to page n_pages. */
static void attend_span(const mx_attn_args *args, const attn_state *st, uint32_t begin,
                        uint32_t end, uint32_t n_pages)
{
    for (size_t i = 0; i < args->n_queries; i++) {
        st->m[i] = -INFINITY;
    }
    memset(st->l, 0, args->n_queries * (16 + st->acc_stride) * sizeof(float)); /* l and acc */
    for (uint32_t p = begin; p < end; p++) {
        attend_page(args, st, p, p + 1 < n_pages ? p + 1 : p);
    }
}

/* Adds a span's maximum m, sum l and acc to those of the spans before it, which are in *all_m,
 * *all_l and all. A sum of 0 says that there was nothing to see (else it is at least 1). */
static void merge_span(float *all_m, float *all_l, float *all, float m, float l, const float *acc,
                       uint32_t head_dim)
{
    if (l == 0) {
        return;
    }
    if (*all_l == 0) {
        *all_m = m;
        *all_l = l;
        memcpy(all, acc, head_dim * sizeof *all);
        return;
    }
    const float top = *all_m > m ? *all_m : m;
    const v16f a = vec_exp(vf_set1(*all_m - top));
    const v16f b = vec_exp(vf_set1(m - top));
    *all_m = top;
    *all_l = *all_l * vf_first(a) + l * vf_first(b);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        const size_t n = head_dim - d;
        store_n(all + d, vf_fma(load_n(acc + d, n), b, vf_mul(load_n(all + d, n), a)), n);
    }
}

static void divide(float *out, float l, uint32_t head_dim)
{
    const v16f vl = vf_set1(l);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        const v16f v = load_n(out + d, head_dim - d);
        store_n(out + d, l == 0 ? vf_zero() : vf_div(v, vl), head_dim - d);
    }
}

static void attention(const mx_attn_args *args)
{
    const uint32_t head_dim = args->head_dim;
    const attn_state st = attn_state_in(args);
    uint32_t begin = UINT32_MAX;
    uint32_t end = 0;
    for (uint32_t i = 0; i < args->n_queries; i++) {
        const uint32_t first = first_row_of(args, i);
        begin = first < begin ? first : begin;
        end = args->n_valid[i] > end ? args->n_valid[i] : end;
        st.all[2 * i + 1] = 0;
    }
    begin /= MX_PAGE_TOKENS;
    end = end / MX_PAGE_TOKENS + (end % MX_PAGE_TOKENS != 0);
    while (begin < end) {
        const uint32_t limit = (begin / ATTN_SPAN_PAGES + 1) * ATTN_SPAN_PAGES;
        const uint32_t stop = end < limit ? end : limit;
        attend_span(args, &st, begin, stop, end);
        for (size_t i = 0; i < args->n_queries; i++) {
            merge_span(&st.all[2 * i], &st.all[2 * i + 1], args->out[i], st.m[i],
                       vf_tree_sum(vf_load(st.l + i * 16)), st.acc + i * st.acc_stride, head_dim);
        }
        begin = stop;
    }
    for (size_t i = 0; i < args->n_queries; i++) {
        divide(args->out[i], st.all[2 * i + 1], head_dim);
    }
}

static void attention_span(const mx_attn_args *args, uint32_t span)
{
    const attn_state st = attn_state_in(args);
    uint32_t begin = (span + 1) * ATTN_SPAN_PAGES;
    uint32_t end = span * ATTN_SPAN_PAGES;
    for (uint32_t i = 0; i < args->n_queries; i++) {
        const uint32_t first = first_row_of(args, i) / MX_PAGE_TOKENS;
        const uint32_t n = args->n_valid[i];
        const uint32_t stop = n / MX_PAGE_TOKENS + (n % MX_PAGE_TOKENS != 0);
        begin = first < begin ? first : begin;
        end = stop > end ? stop : end;
    }
    begin = begin > span * ATTN_SPAN_PAGES ? begin : span * ATTN_SPAN_PAGES;
    end = end < (span + 1) * ATTN_SPAN_PAGES ? end : (span + 1) * ATTN_SPAN_PAGES;
    attend_span(args, &st, begin, end, end);
    for (size_t i = 0; i < args->n_queries; i++) {
        float *part = args->out[i];
        memcpy(part, st.acc + i * st.acc_stride, args->head_dim * sizeof *part);
        part[args->head_dim] = st.m[i];
        part[args->head_dim + 1] = vf_tree_sum(vf_load(st.l + i * 16));
    }
}

static void attention_merge(float *out, const float *parts, size_t stride, uint32_t n_parts,
                            uint32_t head_dim)
{
    float m = 0;
    float l = 0;
    for (uint32_t i = 0; i < n_parts; i++, parts += stride) {
        merge_span(&m, &l, out, parts[head_dim], parts[head_dim + 1], parts, head_dim);
    }
    divide(out, l, head_dim);
}
