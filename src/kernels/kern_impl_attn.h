/* SPDX-License-Identifier: MIT
 *
 * kern_impl_attn.h (internal, part of kern_impl.h): softmax(q K^T) V over pages of 64 tokens.
 *
 * The page loop is outermost, so that a K/V tile is read from memory once for all query rows; each
 * row carries its own running maximum, sums and accumulators (docs/numerics.md, section 10). A row
 * is never affected by which other rows are in the call. With many rows a f16 tile is converted
 * once; up to four rows share each load of K and V.
 */

enum {
    ATTN_GROUP = 4,     /* query rows that share the loads */
    ATTN_CONVERT = 5,   /* from this many rows on, a f16 tile is converted once per page */
    ATTN_ACTIVE = 64,   /* rows looked at together */
    ATTN_VECS = MX_PAGE_TOKENS / 16,
};

/* Scratch: state of each query, then the two converted tiles. */
typedef struct attn_state {
    float *m;   /* [n_queries] */
    float *l;   /* [n_queries][16] */
    float *acc; /* [n_queries][head_dim] */
    float *k32; /* [head_dim][MX_PAGE_TOKENS] */
    float *v32; /* [MX_PAGE_TOKENS][head_dim] */
} attn_state;

static size_t attn_scratch_floats(uint32_t head_dim, uint32_t n_queries)
{
    return (size_t)n_queries * (1 + 16 + (size_t)head_dim) + 2 * (size_t)head_dim * MX_PAGE_TOKENS;
}

/* What one row does in one page: rows lo..hi-1 of it, never empty. */
typedef struct attn_row {
    uint32_t query;
    int lo, hi;
} attn_row;

typedef struct attn_page {
    const mx_attn_args *args;
    attn_state st;
    const uint8_t *k; /* in `type` */
    const uint8_t *v;
    mx_kv_type type;
} attn_page;

MX_INLINE v16f load_kv(const mx_kv_type type, const uint8_t *tile, size_t index)
{
    if (type == MX_KV_F16) {
        return vf_load_h((const uint16_t *)(const void *)tile + index);
    }
    return vf_load((const float *)(const void *)tile + index);
}

/* The same for n < 16 elements: the end of the last row is the end of the tile. */
MX_INLINE v16f load_kv_n(const mx_kv_type type, const uint8_t *tile, size_t index, size_t n)
{
    if (type == MX_KV_F16) {
        uint16_t buf[16] = {0};
        memcpy(buf, tile + index * 2, n * 2);
        return vf_load_h(buf);
    }
    return load_n((const float *)(const void *)tile + index, n);
}

/* ---- scores ----------------------------------------------------------------------------------- */

/* Scores of nq rows for nv vectors of 16 tokens from vector v0 on. */
MX_INLINE void scores_block(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                            const int nq, int v0, const int nv, float (*s)[MX_PAGE_TOKENS])
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
    for (uint32_t d = 0; d < head_dim; d++) {
        v16f k[ATTN_VECS];
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            k[j] = load_kv(type, pg->k, (size_t)d * MX_PAGE_TOKENS + (size_t)(16 * (v0 + j)));
        }
        MX_UNROLL
        for (int i = 0; i < nq; i++) {
            const v16f x = vf_set1(q[i][d]);
            MX_UNROLL
            for (int j = 0; j < nv; j++) {
                sum[i][j] = vf_fma(x, k[j], sum[i][j]);
            }
        }
    }
    const v16f scale = vf_set1(pg->args->scale);
    MX_UNROLL
    for (int i = 0; i < nq; i++) {
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            vf_store(&s[i][16 * (v0 + j)], vf_mul(sum[i][j], scale));
        }
    }
}

/* nq rows, all vectors of the page that any of them can see. */
MX_INLINE void scores(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                      const int nq, const int nv, float (*s)[MX_PAGE_TOKENS])
{
    int lo = MX_PAGE_TOKENS;
    int hi = 0;
    for (int i = 0; i < nq; i++) {
        lo = rows[i].lo < lo ? rows[i].lo : lo;
        hi = rows[i].hi > hi ? rows[i].hi : hi;
    }
    int v = lo / 16;
    const int end = (hi + 15) / 16;
    for (; v + nv <= end; v += nv) {
        scores_block(type, pg, rows, nq, v, nv, s);
    }
    for (; v < end; v++) {
        scores_block(type, pg, rows, nq, v, 1, s);
    }
}

/* Turns scores into weights in place, updates m and l, and returns the factor for acc (1 = none). */
static float softmax_step(attn_state *st, const attn_row *row, float *s)
{
    const v16f low = vf_set1(-INFINITY);
    const v16f zero = vf_zero();
    v16f v[ATTN_VECS];
    MX_UNROLL
    for (int j = 0; j < ATTN_VECS; j++) { /* vectors outside lo..hi hold no scores: not read */
        const int lo = row->lo - 16 * j;
        const int hi = row->hi - 16 * j;
        v[j] = lo < 16 && hi > 0 ? vf_keep(vf_load(s + 16 * j), lo, hi, low) : low;
    }
    const float page_max = vf_tree_max(vf_max(vf_max(vf_max(v[0], v[1]), v[2]), v[3]));
    const float old = st->m[row->query];
    const float m = old > page_max ? old : page_max;
    const v16f vm = vf_set1(m);
    float *l = st->l + (size_t)row->query * 16;
    v16f sum = vf_load(l);
    float f = 1.0f;
    if (m != old) {
        float lanes[16];
        vf_store(lanes, vec_exp(vf_set1(old - m)));
        f = lanes[0];
        sum = vf_mul(sum, vf_set1(f));
    }
    MX_UNROLL
    for (int j = 0; j < ATTN_VECS; j++) {
        const v16f p = vf_keep(vec_exp(vf_sub(v[j], vm)), row->lo - 16 * j, row->hi - 16 * j, zero);
        vf_store(s + 16 * j, p);
        sum = vf_add(sum, p);
    }
    vf_store(l, sum);
    st->m[row->query] = m;
    return f;
}

/* ---- weighted sum of V ------------------------------------------------------------------------ */

/* acc[d0 .. d0 + 16 nv) of nq rows over tokens lo..hi-1; n < 16 only with nv = 1. */
MX_INLINE void values_block(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                            const int nq, uint32_t d0, const int nv, size_t n, int lo, int hi,
                            float (*s)[MX_PAGE_TOKENS])
{
    const uint32_t head_dim = pg->args->head_dim;
    v16f sum[ATTN_GROUP][ATTN_VECS];
    float *acc[ATTN_GROUP];
    MX_UNROLL
    for (int i = 0; i < nq; i++) {
        acc[i] = pg->st.acc + (size_t)rows[i].query * head_dim + d0;
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            sum[i][j] = load_n(acc[i] + 16 * j, n);
        }
    }
    for (int t = lo; t < hi; t++) {
        const size_t at = (size_t)t * head_dim + d0;
        v16f v[ATTN_VECS];
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            v[j] = MX_LIKELY(n >= 16) ? load_kv(type, pg->v, at + (size_t)(16 * j))
                                      : load_kv_n(type, pg->v, at, n);
        }
        MX_UNROLL
        for (int i = 0; i < nq; i++) {
            const v16f p = vf_set1(s[i][t]);
            MX_UNROLL
            for (int j = 0; j < nv; j++) {
                sum[i][j] = vf_fma(p, v[j], sum[i][j]);
            }
        }
    }
    MX_UNROLL
    for (int i = 0; i < nq; i++) {
        MX_UNROLL
        for (int j = 0; j < nv; j++) {
            store_n(acc[i] + 16 * j, sum[i][j], n);
        }
    }
}

MX_INLINE void values(const mx_kv_type type, const attn_page *pg, const attn_row *rows,
                      const int nq, const int nv, int lo, int hi, float (*s)[MX_PAGE_TOKENS])
{
    const uint32_t head_dim = pg->args->head_dim;
    uint32_t d = 0;
    for (; d + 16 * (uint32_t)nv <= head_dim; d += 16 * (uint32_t)nv) {
        values_block(type, pg, rows, nq, d, nv, 16, lo, hi, s);
    }
    for (; d + 16 <= head_dim; d += 16) {
        values_block(type, pg, rows, nq, d, 1, 16, lo, hi, s);
    }
    if (d < head_dim) {
        values_block(type, pg, rows, nq, d, 1, head_dim - d, lo, hi, s);
    }
}

/* ---- a page ----------------------------------------------------------------------------------- */

static void scale_acc(float *acc, uint32_t head_dim, float f)
{
    const v16f vf = vf_set1(f);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        store_n(acc + d, vf_mul(load_n(acc + d, head_dim - d), vf), head_dim - d);
    }
}

/* nq rows through one page. Tokens are added per row in ascending order: those that only some of
 * the rows see come before or after the common ones. */
MX_INLINE void page_rows(const mx_kv_type type, attn_page *pg, const attn_row *rows, const int nq,
                         const int nv)
{
    float s[ATTN_GROUP][MX_PAGE_TOKENS];
    scores(type, pg, rows, nq, nv, s);
    int lo = 0;
    int hi = MX_PAGE_TOKENS;
    for (int i = 0; i < nq; i++) {
        const float f = softmax_step(&pg->st, &rows[i], s[i]);
        if (f != 1.0f) {
            const uint32_t head_dim = pg->args->head_dim;
            scale_acc(pg->st.acc + (size_t)rows[i].query * head_dim, head_dim, f);
        }
        lo = rows[i].lo > lo ? rows[i].lo : lo;
        hi = rows[i].hi < hi ? rows[i].hi : hi;
    }
    if (nq == 1 || lo >= hi) {
        for (int i = 0; i < nq; i++) {
            values(type, pg, rows + i, 1, VEC_WIDE_1, rows[i].lo, rows[i].hi, s + i);
        }
        return;
    }
    for (int i = 0; i < nq; i++) {
        if (rows[i].lo < lo) {
            values(type, pg, rows + i, 1, VEC_WIDE_1, rows[i].lo, lo, s + i);
        }
    }
    values(type, pg, rows, nq, nv, lo, hi, s);
    for (int i = 0; i < nq; i++) {
        if (hi < rows[i].hi) {
            values(type, pg, rows + i, 1, VEC_WIDE_1, hi, rows[i].hi, s + i);
        }
    }
}

#define PAGE_FN(name, type, nq, nv)                                                                \
    static MX_NOINLINE void name(attn_page *pg, const attn_row *rows)                              \
    {                                                                                              \
        page_rows(type, pg, rows, nq, nv);                                                         \
    }

PAGE_FN(page_f16_4, MX_KV_F16, 4, VEC_WIDE_4)
PAGE_FN(page_f16_3, MX_KV_F16, 3, VEC_WIDE_4)
PAGE_FN(page_f16_2, MX_KV_F16, 2, VEC_WIDE_2)
PAGE_FN(page_f16_1, MX_KV_F16, 1, VEC_WIDE_1)
PAGE_FN(page_f32_4, MX_KV_F32, 4, VEC_WIDE_4)
PAGE_FN(page_f32_3, MX_KV_F32, 3, VEC_WIDE_4)
PAGE_FN(page_f32_2, MX_KV_F32, 2, VEC_WIDE_2)
PAGE_FN(page_f32_1, MX_KV_F32, 1, VEC_WIDE_1)

static void all_rows_of_page(attn_page *pg, const attn_row *rows, int n)
{
    static void (*const fns[2][5])(attn_page *, const attn_row *) = {
        [MX_KV_F16] = {NULL, page_f16_1, page_f16_2, page_f16_3, page_f16_4},
        [MX_KV_F32] = {NULL, page_f32_1, page_f32_2, page_f32_3, page_f32_4},
    };
    for (int i = 0; i < n;) {
        const int step = n - i < ATTN_GROUP ? n - i : ATTN_GROUP;
        fns[pg->type][step](pg, rows + i);
        i += step;
    }
}

static void convert_tile(const uint8_t *tile, uint32_t head_dim, float *out)
{
    const size_t n = (size_t)head_dim * MX_PAGE_TOKENS; /* a multiple of 64 */
    for (size_t i = 0; i < n; i += 16) {
        vf_store(out + i, load_kv(MX_KV_F16, tile, i));
    }
}

/* The rows of one page: collects, 64 queries at a time, those that see anything of it. */
static void attend_page(const mx_attn_args *args, const attn_state *st, uint32_t page)
{
    const uint32_t base = page * MX_PAGE_TOKENS;
    attn_page pg = {.args = args, .st = *st, .k = args->k_tiles[page], .v = args->v_tiles[page],
                    .type = args->kv_type};
    if (args->kv_type == MX_KV_F16 && args->n_queries >= ATTN_CONVERT) {
        convert_tile(pg.k, args->head_dim, st->k32);
        convert_tile(pg.v, args->head_dim, st->v32);
        pg.k = (const uint8_t *)st->k32;
        pg.v = (const uint8_t *)st->v32;
        pg.type = MX_KV_F32;
    }
    attn_row rows[ATTN_ACTIVE];
    int n = 0;
    for (uint32_t i = 0; i < args->n_queries; i++) {
        const uint32_t first = args->first_valid != NULL ? args->first_valid[i] : 0;
        const uint32_t end = args->n_valid[i];
        if (end > base && first < base + MX_PAGE_TOKENS && first < end) {
            rows[n++] = (attn_row){
                .query = i,
                .lo = first > base ? (int)(first - base) : 0,
                .hi = end - base < MX_PAGE_TOKENS ? (int)(end - base) : MX_PAGE_TOKENS,
            };
        }
        if (n == ATTN_ACTIVE || (n > 0 && i + 1 == args->n_queries)) {
            all_rows_of_page(&pg, rows, n);
            n = 0;
        }
    }
}

static void attention(const mx_attn_args *args)
{
    const uint32_t head_dim = args->head_dim;
    const size_t nq = args->n_queries;
    attn_state st;
    st.m = args->scratch;
    st.l = st.m + nq;
    st.acc = st.l + nq * 16;
    st.k32 = st.acc + nq * head_dim;
    st.v32 = st.k32 + (size_t)head_dim * MX_PAGE_TOKENS;
    uint32_t begin = UINT32_MAX;
    uint32_t end = 0;
    for (size_t i = 0; i < nq; i++) {
        const uint32_t first = args->first_valid != NULL ? args->first_valid[i] : 0;
        begin = first < begin ? first : begin;
        end = args->n_valid[i] > end ? args->n_valid[i] : end;
        st.m[i] = -INFINITY;
    }
    memset(st.l, 0, nq * (16 + (size_t)head_dim) * sizeof(float)); /* l and acc */
    for (uint32_t p = begin / MX_PAGE_TOKENS; p * (uint64_t)MX_PAGE_TOKENS < end; p++) {
        attend_page(args, &st, p);
    }
    for (size_t i = 0; i < nq; i++) {
        const v16f l = vf_set1(vf_tree_sum(vf_load(st.l + i * 16)));
        const uint32_t first = args->first_valid != NULL ? args->first_valid[i] : 0;
        const bool is_empty = first >= args->n_valid[i];
        for (uint32_t d = 0; d < head_dim; d += 16) {
            const v16f acc = load_n(st.acc + i * head_dim + d, head_dim - d);
            store_n(args->out[i] + d, is_empty ? vf_zero() : vf_div(acc, l), head_dim - d);
        }
    }
}
