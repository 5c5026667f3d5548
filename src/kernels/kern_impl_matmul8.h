/* SPDX-License-Identifier: MIT
 *
 * kern_impl_matmul8.h (internal, part of kern_impl_matmul.h): many rows of 8-bit activations on the
 * levels that multiply bytes. The others, and few rows, use the 16-bit text on the same numbers;
 * the sums are exact either way.
 *
 * The instructions want one unsigned and one signed operand. Types without an offset have unsigned
 * weights and take the activations as they are. Types with an offset get it taken off while a group
 * is expanded, and the activations carry a bias of 128 instead: what that adds is 128 times the sum
 * of the weights, the same for all rows, and the sums start at minus that.
 *
 * A level of its own defines VEC_BYTES as 1 and
 *   vb_dot(n, u, s)   adds the products of unsigned u and signed s to the narrow sums n
 *   vb_widen(n)       narrow sums to one i32 per lane
 *   vi_sub8, vb_lut   bytes less bytes; all bytes 0..15 replaced by table bytes
 *   vb_narrow(...)    16 activations of i16 to both kinds of bytes
 * and VEC_BYTES_NARROW as 1 when narrow sums are pairs of i16, which hold a few products only.
 */

#if VEC_BYTES_NARROW
/* largest sum of `run` steps of two products each, per kind of type (see bytes_run) */
_Static_assert(8 * 2 * 8 * 255 <= 32767, "Q4_0: weights of -8..7, 8 steps");
_Static_assert(4 * 2 * 16 * 255 <= 32767, "Q5_0, MXFP4: -16..15, 4 steps");
_Static_assert(2 * 2 * 32 * 255 <= 32767, "Q6_K, Q3_K: -32..31, 2 steps");
_Static_assert(8 * 2 * 15 * 127 <= 32767, "Q4_1, Q4_K: 0..15, 8 steps");
_Static_assert(4 * 2 * 31 * 127 <= 32767, "Q5_1, Q5_K, Q2_K: 0..31, 4 steps");
#endif

/* Unpacking in registers makes pairs of i16 of bytes; from more rows than these on it pays to expand and
 * multiply bytes (Q4_K out of cache, 8 rows: 1.3 times the speed on AVX-512, 1.2 times on AVX2). */
enum { BYTES_DIRECT_MAX = 4 };

/* Steps of four inputs that one narrow sum takes; 0: the type's products do not fit. */
MX_INLINE int bytes_run(mx_qtype t)
{
    switch (t) {
    case MX_Q8_0:
    case MX_IQ4_NL:
    case MX_IQ4_XS:
        return VEC_BYTES_NARROW ? 0 : 8;
    case MX_Q5_0:
    case MX_Q5_1:
    case MX_Q5_K:
    case MX_MXFP4:
        return 4;
    case MX_Q6_K:
    case MX_Q3_K:
        return 2;
    default:
        return 8;
    }
}

/* `bits` bits at bit `at` of each byte, moved to bit `to`. */
MX_INLINE v16i byte_field(v16i v, const int bits, const int at, const int to)
{
    const uint32_t mask = ((1u << bits) - 1) << to;
    return vi_and(shift_right(v, at - to), vi_set1((int32_t)(mask * 0x01010101u)));
}

/* The stored fields (table values for table types) of step u of a sub-block: the inputs 0 4 1 5 (u
 * even) or 2 6 3 7 (u odd) of the eight u / 2. */
MX_INLINE v16i unpack_four(const mx_qtype type, const uint8_t *q, const int u)
{
    const int bit = u;         /* of each byte, in a one-bit plane */
    const int two = 2 * (u % 4); /* likewise, in a two-bit plane */
    const v16i nib = byte_field(vi_load(q + u / 2 * MX_VEC_BYTES), 4, u % 2 * 4, 0);
    switch (mx_class_of(type)) {
    case MX_CLASS_NIB:
        return mx_lut_of(type) != NULL ? vb_lut(nib, mx_lut_of(type)) : nib;
    case MX_CLASS_NIB_BIT:
        return vi_or(nib, byte_field(vi_load(q + 4 * MX_VEC_BYTES), 1, bit, 4));
    case MX_CLASS_NIB_TWO:
        return vi_or(nib, byte_field(vi_load(q + (4 + u / 4) * MX_VEC_BYTES), 2, two, 4));
    case MX_CLASS_TWO:
        return byte_field(vi_load(q + u / 4 * MX_VEC_BYTES), 2, two, 0);
    case MX_CLASS_TWO_BIT:
        return vi_or(byte_field(vi_load(q + u / 4 * MX_VEC_BYTES), 2, two, 0),
                     byte_field(vi_load(q + 2 * MX_VEC_BYTES), 1, bit, 2));
    case MX_CLASS_BYTE:
        return vi_load(q + u * MX_VEC_BYTES);
    case MX_CLASS_FLOAT:
        break;
    }
    return nib;
}

MX_INLINE void expand8_as(const mx_qtype type, const uint8_t *group, int n_subs,
                          mx_expanded *x)
{
    const size_t quant_bytes = mx_quant_bytes(type);
    const int offset = mx_offset_of(type);
    const int steps = mx_sub_of(type) / 4;
    const v16i off = vi_set1((int32_t)((uint32_t)offset * 0x01010101u));
    v16i sum = vi_set1(0);
    for (int s = 0; s < n_subs; s++) {
        prefetch_panel(type, group, s);
        MX_UNROLL
        for (int u = 0; u < 8; u++) {
            v16i v = unpack_four(type, group + (size_t)s * quant_bytes, u);
            if (offset != 0) {
                v = vi_sub8(v, off);
                /* 8 or 4 steps of ones fit narrow sums of every type */
                sum = vb_dot(u % steps == 0 ? vi_set1(0) : sum, vi_set1(0x01010101), v);
                if ((u + 1) % steps == 0) {
                    vi_store(x->start[(8 * s + u) / steps],
                             vi_sub(vi_set1(0), vi_sll(vb_widen(sum), 7)));
                }
            }
            vi_store(x->w8[8 * s + u], v);
        }
    }
    expand_scales(type, group + (size_t)n_subs * quant_bytes, n_subs, x);
}

/* As `tile`, for bytes. run: steps that narrow sums take; a divisor of all. */
MX_INLINE void tile8(const int sub, const bool has_min, const int run, const int tm,
                     mx_matmul_scratch *x, const group_rows *g, size_t row,
                     size_t j0)
{
    const int steps = sub / 4;
    const int per = MX_SUB_BLOCK / sub;
    const uint8_t *q[VEC_BYTE_ROWS];
    v16f c[VEC_BYTE_ROWS][VEC_TILE_PANELS];
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        q[r] = (has_min ? (const uint8_t *)g->q8 : g->q8_biased) +
               (row + (size_t)r) * g->q_stride;
        EACH_PANEL {
            c[r][j] = vf_load(x->acc[j0 + j][row + (size_t)r]);
        }
    }
    for (int s32 = 0; s32 < g->n_subs; s32++) {
        v16f t[VEC_BYTE_ROWS][VEC_TILE_PANELS];
        MX_UNROLL
        for (int h = 0; h < per; h++) {
            const int s = s32 * per + h;
            v16i is[VEC_BYTE_ROWS][VEC_TILE_PANELS];
            EACH_PANEL {
                const v16i start = has_min ? vi_set1(0) : vi_load(x->group[j0 + j].start[s]);
                MX_UNROLL
                for (int r = 0; r < tm; r++) {
                    is[r][j] = start;
                }
            }
            MX_UNROLL
            for (int u0 = 0; u0 < steps; u0 += run) {
                v16i n[VEC_BYTE_ROWS][VEC_TILE_PANELS];
                MX_UNROLL
                for (int u = u0; u < u0 + run; u++) {
                    v16i v[VEC_TILE_PANELS];
                    EACH_PANEL {
                        v[j] = vi_load(x->group[j0 + j].w8[s * steps + u]);
                        vi_pin(&v[j]);
                    }
                    MX_UNROLL
                    for (int r = 0; r < tm; r++) {
                        const v16i a = broadcast_four(q[r] + h * sub + 4 * u);
                        EACH_PANEL {
                            const v16i before = u != u0            ? n[r][j]
                                                : VEC_BYTES_NARROW ? vi_set1(0)
                                                                   : is[r][j];
                            n[r][j] = has_min ? vb_dot(before, v[j], a) : vb_dot(before, a, v[j]);
                            vi_pin(&n[r][j]);
                        }
                    }
                }
                MX_UNROLL
                for (int r = 0; r < tm; r++) {
                    EACH_PANEL {
                        is[r][j] =
                            VEC_BYTES_NARROW ? vi_add(is[r][j], vb_widen(n[r][j])) : n[r][j];
                    }
                }
            }
            EACH_PANEL {
                const v16f ws = vf_load(x->group[j0 + j].ws[s]);
                MX_UNROLL
                for (int r = 0; r < tm; r++) {
                    t[r][j] = vf_fma(vf_of_int(is[r][j]), ws, h == 0 ? vf_zero() : t[r][j]);
                }
            }
            if (has_min) {
                MX_UNROLL
                for (int r = 0; r < tm; r++) {
                    const v16f asum = vf_set1(g->sum[(row + (size_t)r) * g->sum_stride + (size_t)s]);
                    EACH_PANEL {
                        t[r][j] = vf_fma(asum, vf_load(x->group[j0 + j].wm[s]), t[r][j]);
                    }
                }
            }
        }
        MX_UNROLL
        for (int r = 0; r < tm; r++) {
            const v16f scale = vf_set1(g->scale[(row + (size_t)r) * g->scale_stride + (size_t)s32]);
            EACH_PANEL {
                c[r][j] = vf_fma(t[r][j], scale, c[r][j]);
            }
            if (s32 % 2 == 0) { /* two sub-blocks in a line */
                prefetch_row(q[r], (size_t)tm * g->q_stride);
            }
            q[r] += MX_SUB_BLOCK;
        }
    }
    MX_UNROLL
    for (int r = 0; r < tm; r++) {
        EACH_PANEL {
            vf_store(x->acc[j0 + j][row + (size_t)r], c[r][j]);
        }
    }
}

_Static_assert(VEC_BYTE_ROWS <= (int)MX_SELFTEST_MANY &&
                   (VEC_BYTE_ROWS <= 4 || MX_SELFTEST_MOST % VEC_BYTE_ROWS >= 4) &&
                   (VEC_BYTE_ROWS == 1 || MX_SELFTEST_MOST % VEC_BYTE_ROWS % 4 != 0),
               "the self-test gets to whole tiles and every rest");

#define TILE8_ROWS_FN(name, sub, has_min, run)                                                     \
    static MX_NOINLINE void name(mx_matmul_scratch *x, const group_rows *g, size_t n_rows,         \
                                 size_t n_panels)                                                  \
    {                                                                                              \
        size_t row = 0;                                                                            \
        for (; whole_tile(n_rows - row, VEC_BYTE_ROWS); row += VEC_BYTE_ROWS) {                    \
            EACH_TILE                                                                              \
                tile8(sub, has_min, run, VEC_BYTE_ROWS, x, g, row, j);                             \
        }                                                                                          \
        for (; VEC_BYTE_ROWS > 4 && row + 4 <= n_rows; row += 4) {                                 \
            EACH_TILE                                                                              \
                tile8(sub, has_min, run, VEC_BYTE_ROWS > 4 ? 4 : 1, x, g, row, j);                 \
        }                                                                                          \
        for (; row < n_rows; row++) {                                                              \
            EACH_TILE                                                                              \
                tile8(sub, has_min, run, 1, x, g, row, j);                                         \
        }                                                                                          \
    }

TILE8_ROWS_FN(tile8_rows_32, 32, false, 8)
TILE8_ROWS_FN(tile8_rows_32_min, 32, true, 8)
TILE8_ROWS_FN(tile8_rows_16_min, 16, true, 4)
#if VEC_BYTES_NARROW
TILE8_ROWS_FN(tile8_rows_32_short, 32, false, 4)
TILE8_ROWS_FN(tile8_rows_32_min_short, 32, true, 4)
TILE8_ROWS_FN(tile8_rows_16, 16, false, 2)
#else
#define tile8_rows_32_short tile8_rows_32
#define tile8_rows_32_min_short tile8_rows_32_min
TILE8_ROWS_FN(tile8_rows_16, 16, false, 4)
#endif

#define TYPE8_FN(type)                                                                             \
    static MX_NOINLINE void expand8_##type(const uint8_t *group, int n_subs, mx_expanded *x) \
    {                                                                                              \
        expand8_as(type, group, n_subs, x);                                                        \
    }

QUANT_TYPES(TYPE8_FN)

static expand_fn expand8_for(mx_qtype t)
{
    switch (t) {
#define CASE(type)                                                                                 \
    case type:                                                                                     \
        return expand8_##type;
        QUANT_TYPES(CASE)
#undef CASE
    default:
        return NULL;
    }
}

static tile_rows_fn tile8_rows_for(mx_qtype t)
{
    if (mx_sub_of(t) == 16) {
        return mx_has_min(t) ? tile8_rows_16_min : tile8_rows_16;
    }
    if (mx_has_min(t)) {
        return bytes_run(t) == 4 ? tile8_rows_32_min_short : tile8_rows_32_min;
    }
    return bytes_run(t) == 4 ? tile8_rows_32_short : tile8_rows_32;
}
