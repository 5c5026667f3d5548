/* SPDX-License-Identifier: MIT
 *
 * kern_impl_matmul.h (internal, part of kern_impl.h): matrix times rows.
 *
 * A panel is walked group by group (256 inputs, one activation scale). With many rows, a group of
 * VEC_PANELS panels is expanded to pairs of i16 in L1 once and register tiles run over the rows; with
 * few rows the quants are unpacked in registers instead. Integer sums are exact, so both ways and all
 * tilings give the same bits as long as the f32 steps keep their order.
 */

/* ---- unpacking -------------------------------------------------------------------------------- */

MX_INLINE v16i shift_right(v16i v, int n)
{
    return n > 0 ? vi_srl(v, n) : n < 0 ? vi_sll(v, -n) : v;
}

/* `bits` bits at bit `at` of each half, moved to bit `to`. */
MX_INLINE v16i plane_field(v16i v, const int bits, const int at, const int to)
{
    const int mask = ((1 << bits) - 1) << to;
    if (at + bits == 16 && to == 0) {
        return vi_srl16(v, at); /* the mask would change nothing */
    }
    return vi_and(shift_right(v, at - to), vi_set1(mask | mask << 16));
}

/* The stored fields (table values for table types) of inputs 2p, 2p + 1 of a sub-block, 16 rows. */
MX_INLINE v16i unpack_pair(const mx_qtype type, const uint8_t *q, const int p)
{
    const mx_quant_class cls = mx_class_of(type);
    v16i v = vi_set1(0);
    if (cls == MX_CLASS_NIB || cls == MX_CLASS_NIB_BIT || cls == MX_CLASS_NIB_TWO) {
        v = plane_field(vi_load(q + p / 4 * MX_VEC_BYTES), 4, p % 4 * 4, 0);
    }
    switch (cls) {
    case MX_CLASS_NIB:
        return mx_lut_of(type) != NULL ? vi_lut(v, mx_lut_of(type)) : v;
    case MX_CLASS_NIB_BIT:
        return vi_or(v, plane_field(vi_load(q + 4 * MX_VEC_BYTES), 1, mx_one_bit_at(p), 4));
    case MX_CLASS_NIB_TWO:
        return vi_or(v, plane_field(vi_load(q + (4 + p / 8) * MX_VEC_BYTES), 2,
                                    mx_two_bits_at(p), 4));
    case MX_CLASS_TWO:
        return plane_field(vi_load(q + p / 8 * MX_VEC_BYTES), 2, mx_two_bits_at(p), 0);
    case MX_CLASS_TWO_BIT:
        return vi_or(plane_field(vi_load(q + p / 8 * MX_VEC_BYTES), 2, mx_two_bits_at(p), 0),
                     plane_field(vi_load(q + 2 * MX_VEC_BYTES), 1, mx_one_bit_at(p), 2));
    case MX_CLASS_BYTE:
        return plane_field(vi_load(q + (p / 4 * 2 + p % 2) * MX_VEC_BYTES), 8, p % 4 / 2 * 8, 0);
    case MX_CLASS_FLOAT:
        break;
    }
    return v;
}

typedef struct super_scales {
    v16f d, dmin;
} super_scales;

MX_INLINE v16f load_halves(const uint8_t *p)
{
    return vf_load_h((const uint16_t *)(const void *)p);
}

MX_INLINE super_scales load_super(const mx_qtype type, const uint8_t *scales)
{
    super_scales s = {vf_zero(), vf_zero()};
    if (mx_is_super(type)) {
        s.d = load_halves(scales);
        s.dmin = mx_has_min(type) ? load_halves(scales + 32) : s.d;
    }
    return s;
}

MX_INLINE v16f exponent_scale(const uint8_t *e)
{
    float f[16];
    for (int i = 0; i < 16; i++) {
        f[i] = mx_f32_of_e8m0_half(e[i]);
    }
    return vf_load(f);
}

/* ws and wm of sub-block s (counted in units of its own size) of a group. */
MX_INLINE void load_scales(const mx_qtype type, const uint8_t *scales, const super_scales *super,
                           int s, v16f *ws, v16f *wm)
{
    const int n = MX_ACT_BLOCK / mx_sub_of(type);
    const uint8_t *bytes = scales + (mx_has_min(type) ? 64 : 32) + s * 16;
    *wm = vf_zero();
    if (type == MX_MXFP4) {
        *ws = exponent_scale(scales + s * 16);
    } else if (!mx_is_super(type)) {
        *ws = load_halves(scales + s * (mx_has_min(type) ? 64 : 32));
        if (mx_has_min(type)) {
            *wm = load_halves(scales + s * 64 + 32);
        }
    } else if (type == MX_Q2_K) {
        const v16i b = vi_load_u8(bytes);
        *ws = vf_mul(super->d, vf_of_int(vi_and(b, vi_set1(15))));
        const v16f m = vf_mul(super->dmin, vf_of_int(vi_srl(b, 4)));
        *wm = vi_bits(vi_sub(vf_bits(m), vi_set1(INT32_MIN)));
    } else {
        *ws = vf_mul(super->d, vf_of_int(vi_load_i8(bytes)));
        if (mx_has_min(type)) {
            const v16f m = vf_mul(super->dmin, vf_of_int(vi_load_u8(bytes + n * 16)));
            *wm = vi_bits(vi_sub(vf_bits(m), vi_set1(INT32_MIN)));
        }
    }
}

MX_INLINE v16i broadcast_four(const uint8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return vi_set1(v);
}

MX_INLINE v16i broadcast_pair(const int16_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return vi_set1(v);
}

/* ---- many rows: expand once, then a register tile --------------------------------------------- */

_Static_assert(VEC_PANELS <= (int)MX_MATMUL_PANELS && VEC_PANELS % VEC_TILE_PANELS == 0,
               "panels go over the rows in whole tiles");
_Static_assert(VEC_TILE_ROWS < 8, "rests of tiles are of 4 and of 1 rows");

/* The panels of a tile, as j. */
#define EACH_PANEL MX_UNROLL for (size_t j = 0; j < VEC_TILE_PANELS; j++)

/* The first panels of the tiles that share some rows, as j. */
#define EACH_TILE for (size_t j = 0; j < n_panels; j += VEC_TILE_PANELS)

typedef struct group_rows {
    int n_subs;         /* sub-blocks of 32 in this group */
    const int16_t *q;   /* first row, at this group */
    size_t q_stride;
    const int8_t *q8;   /* with 8 bits, likewise; the same stride */
    const uint8_t *q8_biased;
    const float *sum;   /* sums per sub-block of the weights, likewise */
    size_t sum_stride;
    const float *scale; /* of this group: one, or with 8 bits one per sub-block of 32 */
    size_t scale_stride;
    bool is_8;
} group_rows;

MX_INLINE uint32_t n_groups_of(const mx_act *a)
{
    return (a->n_cols + MX_ACT_BLOCK - 1) / MX_ACT_BLOCK;
}

MX_INLINE group_rows rows_of_group(const mx_act *a, uint32_t row, uint32_t group, const int sub)
{
    const uint32_t left = a->n_cols - group * MX_ACT_BLOCK;
    const size_t n_sums = sub == 16 ? a->n_sums : a->n_sums32;
    const size_t at = (size_t)row * a->q_stride + (size_t)group * MX_ACT_BLOCK;
    return (group_rows){
        .n_subs = (int)((left < MX_ACT_BLOCK ? left : MX_ACT_BLOCK) / MX_SUB_BLOCK),
        .q = a->q + at,
        .q_stride = a->q_stride,
        .q8 = a->q8 != NULL ? a->q8 + at : NULL,
        .q8_biased = a->q8_biased != NULL ? a->q8_biased + at : NULL,
        .sum = (sub == 16 ? a->sum : a->sum32) + (size_t)row * n_sums +
               group * (size_t)(MX_ACT_BLOCK / sub),
        .sum_stride = n_sums,
        .scale = a->scale + (size_t)row * a->n_blocks +
                 group * (size_t)(a->type == MX_ACT_8 ? MX_GROUP_SUBS : 1),
        .scale_stride = a->n_blocks,
        .is_8 = a->type == MX_ACT_8,
    };
}

/* The rows of a tile lie apart, so nothing but this fetches those of the next from L2, or from
 * further away when all rows of a wide matrix do not fit there. Behind the last row is who knows
 * what: asking for it does no harm, but a pointer must not get there by arithmetic of its own. */
MX_INLINE void prefetch_row(const void *q, size_t ahead)
{
    MX_PREFETCH((const void *)((uintptr_t)q + ahead));
}

MX_INLINE void expand_scales(const mx_qtype type, const uint8_t *scales, int n_subs,
                             mx_expanded *x)
{
    const super_scales super = load_super(type, scales);
    const int n = n_subs * (MX_SUB_BLOCK / mx_sub_of(type));
    for (int s = 0; s < n; s++) {
        v16f ws;
        v16f wm;
        load_scales(type, scales, &super, s, &ws, &wm);
        vf_store(x->ws[s], ws);
        if (mx_has_min(type)) {
            vf_store(x->wm[s], wm);
        }
    }
}

/* Panels come from memory, and the hardware's own prefetching ends at every 4 KiB. Asked for this far
 * ahead, decoding took 0.55 of the time; 1.5, 4 and 16 KiB were slower (Xeon with AVX-512). */
enum { PANEL_AHEAD = 8192 };

/* Asks for the eighth `s32` of the group that lies PANEL_AHEAD behind this one. There may be nothing:
 * asking does no harm, but a pointer must not get there by arithmetic of its own. */
MX_INLINE void prefetch_panel(const mx_qtype type, const uint8_t *group, const int s32)
{
    const size_t step = (mx_group_bytes(type, MX_GROUP_SUBS) / MX_GROUP_SUBS + 63) / 64 * 64;
    const uintptr_t at = (uintptr_t)group + PANEL_AHEAD + (size_t)s32 * step;
    MX_UNROLL
    for (size_t i = 0; i < step; i += 64) {
        MX_PREFETCH((const void *)(at + i));
    }
}

MX_INLINE void expand_as(const mx_qtype type, const uint8_t *group, int n_subs,
                         mx_expanded *x)
{
    const size_t quant_bytes = mx_quant_bytes(type);
    const uint8_t *scales = group + (size_t)n_subs * quant_bytes;
    const int offset = mx_offset_of(type);
    const v16i off = vi_set1(offset | offset << 16);
    for (int s = 0; s < n_subs; s++) {
        prefetch_panel(type, group, s);
        MX_UNROLL
        for (int p = 0; p < 16; p++) {
            const v16i v = unpack_pair(type, group + (size_t)s * quant_bytes, p);
            vi_store(x->w16[16 * s + p], offset != 0 ? vi_sub16(v, off) : v);
        }
    }
    expand_scales(type, scales, n_subs, x);
}

/* tm rows against the expanded groups; x->acc is the running result of each. is_8: activations of 8
 * bits, whose scales change with every 32 inputs (only levels without a product of bytes get
 * here with them, and types whose bytes do not fit it). */
MX_INLINE void tile(const int sub, const bool has_min, const bool is_8, const int tm,
                    mx_matmul_scratch *x, const group_rows *g, size_t row,
                    size_t j0)
{
    const int pairs = sub / 2;
    const float *sum = g->sum + row * g->sum_stride;
    const int16_t *q[VEC_TILE_ROWS];
    v16f t[VEC_TILE_ROWS][VEC_TILE_PANELS];
    v16f c[VEC_TILE_ROWS][VEC_TILE_PANELS];
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        q[r] = g->q + (row + (size_t)r) * g->q_stride;
        EACH_PANEL {
            t[r][j] = vf_zero();
            c[r][j] = is_8 ? vf_load(x->acc[j0 + j][row + (size_t)r]) : vf_zero();
        }
    }
    const int n = g->n_subs * (MX_SUB_BLOCK / sub);
    for (int s = 0; s < n; s++) {
        v16i is[VEC_TILE_ROWS][VEC_TILE_PANELS];
        MX_UNROLL
        for (int r = 0; r < tm; r++) {
            EACH_PANEL {
                is[r][j] = vi_set1(0);
            }
        }
        MX_UNROLL
        for (int p = 0; p < pairs; p++) {
            v16i v[VEC_TILE_PANELS];
            EACH_PANEL {
                v[j] = vi_load(x->group[j0 + j].w16[s * pairs + p]);
                vi_pin(&v[j]); /* one load for all rows */
            }
            MX_UNROLL
            for (int r = 0; r < tm; r++) {
                const v16i a = broadcast_pair(q[r] + 2 * p);
                EACH_PANEL {
                    is[r][j] = vi_dot(is[r][j], v[j], a);
                    vi_pin(&is[r][j]);
                }
            }
        }
        MX_UNROLL
        for (int r = 0; r < tm; r++) {
            prefetch_row(q[r], (size_t)tm * g->q_stride * sizeof *q[r]);
            q[r] += sub;
        }
        EACH_PANEL {
            const v16f ws = vf_load(x->group[j0 + j].ws[s]);
            MX_UNROLL
            for (int r = 0; r < tm; r++) {
                t[r][j] = vf_fma(vf_of_int(is[r][j]), ws, t[r][j]);
            }
        }
        if (has_min) {
            MX_UNROLL
            for (int r = 0; r < tm; r++) {
                const v16f asum = vf_set1(sum[(size_t)r * g->sum_stride + (size_t)s]);
                EACH_PANEL {
                    t[r][j] = vf_fma(asum, vf_load(x->group[j0 + j].wm[s]), t[r][j]);
                }
            }
        }
        if (is_8 && (sub == MX_SUB_BLOCK || s % 2 == 1)) {
            const size_t block = (size_t)s * (size_t)sub / MX_SUB_BLOCK;
            MX_UNROLL
            for (int r = 0; r < tm; r++) {
                const float scale = g->scale[(row + (size_t)r) * g->scale_stride + block];
                EACH_PANEL {
                    c[r][j] = vf_fma(t[r][j], vf_set1(scale), c[r][j]);
                    t[r][j] = vf_zero();
                }
            }
        }
    }
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        const v16f scale = vf_set1(is_8 ? 0 : g->scale[(row + (size_t)r) * g->scale_stride]);
        EACH_PANEL {
            float *acc = x->acc[j0 + j][row + (size_t)r];
            vf_store(acc, is_8 ? c[r][j] : vf_fma(t[r][j], scale, vf_load(acc)));
        }
    }
}

/* Whether the next of the rows left should be a whole tile. Eight or nine begin with two tiles of
 * four: one row alone waits for its sums. */
MX_INLINE bool whole_tile(size_t left, const int tile_rows)
{
    return left >= (size_t)tile_rows && (tile_rows <= 4 || (left != 8 && left != 9));
}

#define TILE_ROWS_FN(name, sub, has_min, is_8)                                                     \
    static MX_NOINLINE void name(mx_matmul_scratch *x, const group_rows *g, size_t n_rows,         \
                                 size_t n_panels)                                                  \
    {                                                                                              \
        size_t row = 0;                                                                            \
        for (; whole_tile(n_rows - row, VEC_TILE_ROWS); row += VEC_TILE_ROWS) {                    \
            EACH_TILE                                                                              \
                tile(sub, has_min, is_8, VEC_TILE_ROWS, x, g, row, j);                             \
        }                                                                                          \
        for (; VEC_TILE_ROWS > 4 && row + 4 <= n_rows; row += 4) {                                 \
            EACH_TILE                                                                              \
                tile(sub, has_min, is_8, VEC_TILE_ROWS > 4 ? 4 : 1, x, g, row, j);                 \
        }                                                                                          \
        for (; row < n_rows; row++) {                                                              \
            EACH_TILE                                                                              \
                tile(sub, has_min, is_8, 1, x, g, row, j);                                         \
        }                                                                                          \
    }

TILE_ROWS_FN(tile_rows_32, 32, false, false)
TILE_ROWS_FN(tile_rows_32_min, 32, true, false)
TILE_ROWS_FN(tile_rows_16, 16, false, false)
TILE_ROWS_FN(tile_rows_16_min, 16, true, false)
#if !VEC_BYTES || VEC_BYTES_NARROW /* 8 bits that bytes do not serve */
TILE_ROWS_FN(tile_rows_32_as_8, 32, false, true)
TILE_ROWS_FN(tile_rows_32_min_as_8, 32, true, true)
TILE_ROWS_FN(tile_rows_16_as_8, 16, false, true)
TILE_ROWS_FN(tile_rows_16_min_as_8, 16, true, true)
#endif

/* ---- few rows: unpack in registers ------------------------------------------------------------ */

/* How many sums each of tm rows gets so that the latency of one does not show. */
MX_INLINE int chains_for(const int tm)
{
    return VEC_CHAINS / tm > 0 ? VEC_CHAINS / tm : 1;
}

/* is[r] = what it holds plus the sum of row r over the pairs p0.. . */
MX_INLINE void direct_sums(const mx_qtype type, const uint8_t *q, const int p0, const int pairs,
                           const int16_t *const *a, const int at, const int tm, v16i *is)
{
    const int chains = chains_for(tm);
    v16i part[VEC_DIRECT_ROWS][VEC_CHAINS];
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        MX_UNROLL
        for (int c = 0; c < chains; c++) {
            part[r][c] = c == 0 ? is[r] : vi_set1(0);
        }
    }
    MX_UNROLL
    for (int p = 0; p < pairs; p++) {
        v16i v = unpack_pair(type, q, p0 + p);
        vi_pin(&v); /* unpacked once for all rows */
        MX_UNROLL
        for (int r = 0; r < tm; r++) {
            v16i *s = &part[r][p % chains];
            *s = vi_dot(*s, v, broadcast_pair(a[r] + at + 2 * p));
            vi_pin(s);
        }
    }
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        MX_UNROLL
        for (int h = chains / 2; h > 0; h /= 2) {
            MX_UNROLL
            for (int c = 0; c < h; c++) {
                part[r][c] = vi_add(part[r][c], part[r][c + h]);
            }
        }
        is[r] = part[r][0];
    }
}

MX_INLINE void direct_group(const mx_qtype type, const uint8_t *group, const group_rows *g,
                            const size_t *rows, const int tm, v16f *acc)
{
    const uint8_t *first = group;
    const int sub = mx_sub_of(type);
    const int per = MX_SUB_BLOCK / sub;
    const int offset = mx_offset_of(type);
    const int zeros = offset != 0 ? __builtin_ctz((unsigned)offset) : 0;
    const v16f minus = vf_set1((float)-(offset >> zeros)); /* -1, or -3 */
    const size_t quant_bytes = mx_quant_bytes(type);
    const uint8_t *scales = group + (size_t)g->n_subs * quant_bytes;
    const super_scales super = load_super(type, scales);
    const int16_t *a[VEC_DIRECT_ROWS];
    const float *sum[VEC_DIRECT_ROWS];
    v16f t[VEC_DIRECT_ROWS];
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        a[r] = g->q + rows[r] * g->q_stride;
        sum[r] = g->sum + rows[r] * g->sum_stride;
        t[r] = vf_zero();
    }
    for (int s32 = 0; s32 < g->n_subs; s32++, group += quant_bytes) {
        prefetch_panel(type, first, s32);
        MX_UNROLL
        for (int h = 0; h < per; h++) {
            const int s = s32 * per + h;
            v16f ws;
            v16f wm;
            v16i is[VEC_DIRECT_ROWS];
            MX_UNROLL
            for (int r = 0; r < tm; r++) { /* exact, and a vector all the way */
                is[r] = offset == 0 ? vi_set1(0)
                                    : vi_sll(vf_to_int(vf_mul(vf_set1(sum[r][s]), minus)), zeros);
            }
            direct_sums(type, group, h * (sub / 2), sub / 2, a, s * sub, tm, is);
            load_scales(type, scales, &super, s, &ws, &wm);
            MX_UNROLL
            for (int r = 0; r < tm; r++) {
                t[r] = vf_fma(vf_of_int(is[r]), ws, t[r]);
                if (mx_has_min(type)) {
                    t[r] = vf_fma(vf_set1(sum[r][s]), wm, t[r]);
                }
            }
        }
        if (g->is_8 || s32 + 1 == g->n_subs) { /* the inputs of one activation scale end here */
            MX_UNROLL
            for (int r = 0; r < tm; r++) {
                const float *scale = g->scale + rows[r] * g->scale_stride;
                acc[r] = vf_fma(t[r], vf_set1(scale[g->is_8 ? s32 : 0]), acc[r]);
                t[r] = vf_zero();
            }
        }
    }
}

/* Rows `row`.. of a; of the tm results only the first n count, the others repeat the last row. */
MX_INLINE void direct_panel_as(const mx_qtype type, const uint8_t *panel, const mx_act *a,
                               uint32_t row, int n, const int tm, float (*out)[MX_PANEL_ROWS])
{
    v16f acc[VEC_DIRECT_ROWS];
    size_t rows[VEC_DIRECT_ROWS];
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        acc[r] = vf_zero();
        rows[r] = (size_t)(r < n ? r : n - 1);
    }
    for (uint32_t b = 0; b < n_groups_of(a); b++, panel += mx_group_bytes(type, MX_GROUP_SUBS)) {
        const group_rows g = rows_of_group(a, row, b, mx_sub_of(type));
        direct_group(type, panel, &g, rows, tm, acc);
    }
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        vf_store(out[r], acc[r]);
    }
}

/* ---- one pair of functions per type ----------------------------------------------------------- */

#define QUANT_TYPES(X)                                                                             \
    X(MX_Q4_0) X(MX_Q4_1) X(MX_Q5_0) X(MX_Q5_1) X(MX_Q8_0) X(MX_Q2_K) X(MX_Q3_K) X(MX_Q4_K)        \
    X(MX_Q5_K) X(MX_Q6_K) X(MX_IQ4_NL) X(MX_IQ4_XS) X(MX_MXFP4)

#define TYPE_FNS(type)                                                                             \
    static MX_NOINLINE void expand_##type(const uint8_t *group, int n_subs, mx_expanded *x)  \
    {                                                                                              \
        expand_as(type, group, n_subs, x);                                                         \
    }                                                                                              \
    static MX_NOINLINE void direct_##type(const uint8_t *panel, const mx_act *a, uint32_t row,     \
                                          int n, float (*out)[MX_PANEL_ROWS])                      \
    {                                                                                              \
        if (n == 1) {                                                                              \
            direct_panel_as(type, panel, a, row, n, 1, out);                                       \
        } else if (VEC_DIRECT_ROWS >= 2 && n == 2) {                                               \
            direct_panel_as(type, panel, a, row, n, VEC_DIRECT_ROWS >= 2 ? 2 : 1, out);            \
        } else if (VEC_DIRECT_ROWS >= 4 && n <= 4) {                                               \
            direct_panel_as(type, panel, a, row, n, VEC_DIRECT_ROWS >= 4 ? 4 : 1, out);            \
        } else if (VEC_DIRECT_ROWS >= 8) {                                                         \
            direct_panel_as(type, panel, a, row, n, VEC_DIRECT_ROWS >= 8 ? 8 : 1, out);            \
        }                                                                                          \
    }

QUANT_TYPES(TYPE_FNS)

typedef void (*expand_fn)(const uint8_t *group, int n_subs, mx_expanded *x);
typedef void (*direct_fn)(const uint8_t *panel, const mx_act *a, uint32_t row, int n,
                          float (*out)[MX_PANEL_ROWS]);
typedef void (*tile_rows_fn)(mx_matmul_scratch *x, const group_rows *g, size_t n_rows,
                             size_t n_panels);

static expand_fn expand_for(mx_qtype t)
{
    switch (t) {
#define CASE(type)                                                                                 \
    case type:                                                                                     \
        return expand_##type;
        QUANT_TYPES(CASE)
#undef CASE
    default:
        return NULL;
    }
}

static direct_fn direct_for(mx_qtype t)
{
    switch (t) {
#define CASE(type)                                                                                 \
    case type:                                                                                     \
        return direct_##type;
        QUANT_TYPES(CASE)
#undef CASE
    default:
        return NULL;
    }
}

static tile_rows_fn tile_rows_for(mx_qtype t, mx_act_type act)
{
#if !VEC_BYTES || VEC_BYTES_NARROW
    if (act == MX_ACT_8) {
        if (mx_sub_of(t) == 32) {
            return mx_has_min(t) ? tile_rows_32_min_as_8 : tile_rows_32_as_8;
        }
        return mx_has_min(t) ? tile_rows_16_min_as_8 : tile_rows_16_as_8;
    }
#endif
    (void)act;
    if (mx_sub_of(t) == 32) {
        return mx_has_min(t) ? tile_rows_32_min : tile_rows_32;
    }
    return mx_has_min(t) ? tile_rows_16_min : tile_rows_16;
}

#if VEC_BYTES
#include "kernels/kern_impl_matmul8.h"
#endif

/* ---- F32, F16, BF16 --------------------------------------------------------------------------- */

MX_INLINE v16f load_weights(const mx_qtype type, const uint8_t *p)
{
    if (type == MX_F32) {
        return vi_bits(vi_load(p));
    }
    const uint16_t *h = (const uint16_t *)(const void *)p;
    return type == MX_F16 ? vf_load_h(h) : vi_bits(vi_sll(vi_load_u16(h), 16));
}

enum { FLOAT_ROWS = 4 };

MX_INLINE void float_tile(const mx_qtype type, const uint8_t *panel, const mx_act *a, uint32_t row,
                          const int tm, float (*out)[MX_PANEL_ROWS])
{
    const size_t step = MX_PANEL_ROWS * mx_float_bytes(type);
    assert(a->x != NULL && "activations that do not keep their rows");
    const float *x = a->x + (size_t)row * a->n_cols;
    v16f acc[FLOAT_ROWS];
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        acc[r] = vf_zero();
    }
    for (uint32_t k = 0; k < a->n_cols; k++, panel += step) {
        const v16f w = load_weights(type, panel);
        MX_UNROLL
        for (int r = 0; r < tm; r++) {
            acc[r] = vf_fma(w, vf_set1(x[(size_t)r * a->n_cols + k]), acc[r]);
        }
    }
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        vf_store(out[r], acc[r]);
    }
}

#define FLOAT_FN(type)                                                                             \
    static MX_NOINLINE void float_rows_##type(const uint8_t *panel, const mx_act *a, uint32_t row, \
                                              size_t n_rows, float (*out)[MX_PANEL_ROWS])          \
    {                                                                                              \
        size_t r = 0;                                                                              \
        for (; r + FLOAT_ROWS <= n_rows; r += FLOAT_ROWS) {                                        \
            float_tile(type, panel, a, row + (uint32_t)r, FLOAT_ROWS, out + r);                    \
        }                                                                                          \
        for (; r < n_rows; r++) {                                                                  \
            float_tile(type, panel, a, row + (uint32_t)r, 1, out + r);                             \
        }                                                                                          \
    }

FLOAT_FN(MX_F32)
FLOAT_FN(MX_F16)
FLOAT_FN(MX_BF16)

_Static_assert(VEC_DIRECT_MAX < (int)MX_SELFTEST_MANY &&
                   VEC_TILE_ROWS <= (int)MX_SELFTEST_MANY &&
                   (VEC_DIRECT_ROWS < 8 || VEC_DIRECT_MAX >= 7),
               "the self-test gets to whole tiles and to every number of direct rows");
_Static_assert((VEC_TILE_ROWS <= 4 || MX_SELFTEST_MOST % VEC_TILE_ROWS >= 4) &&
                   (VEC_TILE_ROWS == 1 || MX_SELFTEST_MOST % VEC_TILE_ROWS % 4 != 0),
               "and to every rest of a tile");

/* ---- the whole product ------------------------------------------------------------------------ */

/* Some panels that lie side by side. A tile that wants one more gets the last of them again. */
static void expanded_rows(const mx_wmat *w, const uint8_t *panel, size_t n_panels, const mx_act *a,
                          uint32_t row, size_t n, mx_matmul_scratch *x)
{
    expand_fn expand = expand_for(w->type);
    tile_rows_fn tile_rows = tile_rows_for(w->type, a->type);
#if VEC_BYTES
    if (a->type == MX_ACT_8 && bytes_run(w->type) != 0) {
        expand = expand8_for(w->type);
        tile_rows = tile8_rows_for(w->type);
    }
#endif
    const size_t n_used = (n_panels + VEC_TILE_PANELS - 1) / VEC_TILE_PANELS * VEC_TILE_PANELS;
    for (size_t j = 0; j < n_used; j++) {
        memset(x->acc[j], 0, n * sizeof x->acc[j][0]);
    }
    for (uint32_t b = 0; b < n_groups_of(a); b++) {
        const group_rows g = rows_of_group(a, row, b, mx_sub_of(w->type));
        const uint8_t *group = panel + b * mx_group_bytes(w->type, MX_GROUP_SUBS);
        for (size_t j = 0; j < n_used; j++) {
            expand(group + (j < n_panels ? j : n_panels - 1) * w->panel_bytes, g.n_subs, &x->group[j]);
        }
        tile_rows(x, &g, n, n_used);
    }
}

/* Passes over the panel of 8, 4, 2 or 1 rows. Seven and three repeat a row (see direct_panel_as):
 * that costs less than another pass, and a pass for each number would be much code. */
static void direct_rows(const mx_wmat *w, const uint8_t *panel, const mx_act *a, uint32_t row,
                        size_t n, float (*out)[MX_PANEL_ROWS])
{
    const direct_fn direct = direct_for(w->type);
    for (size_t r = 0; r < n;) {
        const size_t left = mx_min_size(n - r, VEC_DIRECT_ROWS);
        const size_t take = left == 5 || left == 6 ? 4 : left;
        direct(panel, a, row + (uint32_t)r, (int)take, out + r);
        r += take;
    }
}

/* Few rows, or floats: each panel by itself. */
static void single_panel(const mx_wmat *w, const uint8_t *panel, const mx_act *a, uint32_t row,
                         size_t n, float (*out)[MX_PANEL_ROWS])
{
    switch (w->type) {
    case MX_F32:
        float_rows_MX_F32(panel, a, row, n, out);
        break;
    case MX_F16:
        float_rows_MX_F16(panel, a, row, n, out);
        break;
    case MX_BF16:
        float_rows_MX_BF16(panel, a, row, n, out);
        break;
    default:
        direct_rows(w, panel, a, row, n, out);
        break;
    }
}

/* The most rows for which unpacking in registers costs less than expanding. */
static size_t direct_most(mx_qtype type, mx_act_type act)
{
#if VEC_BYTES
    if (act == MX_ACT_8 && bytes_run(type) != 0) {
        return BYTES_DIRECT_MAX;
    }
#endif
    (void)type;
    (void)act;
    return VEC_DIRECT_MAX;
}

static void panel_rows(const mx_wmat *w, const uint8_t *panel, size_t n_panels, const mx_act *a,
                       uint32_t row, size_t n, mx_matmul_scratch *x)
{
    if (mx_class_of(w->type) != MX_CLASS_FLOAT && n > direct_most(w->type, a->type)) {
        expanded_rows(w, panel, n_panels, a, row, n, x);
        return;
    }
    for (size_t j = 0; j < n_panels; j++) {
        single_panel(w, panel + j * w->panel_bytes, a, row, n, x->acc[j]);
    }
}

/* How many of the rows that are left share the next expansion: whole tiles, turns of like size. */
static uint32_t rows_per_turn(uint32_t left)
{
    const uint32_t turns = (left + MX_MATMUL_ROWS - 1) / MX_MATMUL_ROWS;
    const uint32_t tiles = ((left + turns - 1) / turns + VEC_TILE_ROWS - 1) / VEC_TILE_ROWS;
    return tiles * VEC_TILE_ROWS < left ? tiles * VEC_TILE_ROWS : left;
}

/* Results to y. Its rows lie apart and are not in a near cache: asked for some rows ahead, so that
 * the stores do not wait one after the other. */
static void store_rows(const mx_matmul_scratch *x, const mx_wmat *w, uint32_t p, uint32_t n_panels,
                       size_t n, float *y, size_t ldy)
{
    for (size_t r = 0; r < n; r++, y += ldy) {
        MX_PREFETCH_WRITE((const void *)((uintptr_t)y + 16 * ldy * sizeof *y));
        for (uint32_t j = 0; j < n_panels; j++) {
            const uint32_t at = (p + j) * MX_PANEL_ROWS;
            store_n(y + at - p * MX_PANEL_ROWS, vf_load(x->acc[j][r]), w->n_rows - at);
        }
    }
}

static void matmul(const mx_wmat *w, const mx_act *a, uint32_t n_rows, float *y, size_t ldy,
                   uint32_t panel0, uint32_t panel1, void *scratch)
{
    assert(w->n_cols == a->n_cols && n_rows <= a->max_rows && panel1 <= w->n_panels);
    mx_matmul_scratch *x = scratch;
    for (uint32_t p = panel0, n_panels; p < panel1; p += n_panels) {
        n_panels = panel1 - p < VEC_PANELS ? panel1 - p : VEC_PANELS;
        const uint8_t *panel = w->panels + p * w->panel_bytes;
        for (uint32_t row = 0, n; row < n_rows; row += n) {
            n = rows_per_turn(n_rows - row);
            panel_rows(w, panel, n_panels, a, row, n, x);
            store_rows(x, w, p, n_panels, n, y + row * ldy + (size_t)p * MX_PANEL_ROWS, ldy);
        }
    }
}
