/* SPDX-License-Identifier: MIT
 *
 * kern_internal.h (internal): what the levels and the dispatcher know of each other.
 */
#ifndef MX_KERN_INTERNAL_H
#define MX_KERN_INTERNAL_H

#include "kernels/kern_layout.h"

/* Rows of activations for which one group of a panel is expanded once: the expansion (about 400
 * cycles) then costs 3 % of the products, and the accumulators (16.5 KiB) share L1 with the group.
 * A multiple of every level's tile, so that 512 rows leave few rows over. */
enum { MX_MATMUL_ROWS = 264 };

/* One group of a panel. */
typedef struct mx_expanded {
    union {
        uint8_t w16[MX_ACT_BLOCK / 2][MX_VEC_BYTES]; /* pairs of i16, signed */
        struct {                                     /* 8 bits: fours of u8, or of i8 */
            uint8_t w8[MX_ACT_BLOCK / 4][MX_VEC_BYTES];
            uint8_t start[MX_ACT_BLOCK / 16][MX_VEC_BYTES]; /* what the bias of activations adds, x -1 */
        };
    };
    float ws[MX_ACT_BLOCK / 16][MX_PANEL_ROWS];
    float wm[MX_ACT_BLOCK / 16][MX_PANEL_ROWS];
} mx_expanded;

/* Scratch of one matmul call; the expanded groups stay in L1. */
typedef struct mx_matmul_scratch {
    mx_expanded group[MX_MATMUL_PANELS];
    float acc[MX_MATMUL_PANELS][MX_MATMUL_ROWS][MX_PANEL_ROWS];
} mx_matmul_scratch;

/* What the self-test behind the numerics ids (kern_selftest.c) runs, so that every path of every level
 * occurs: each level asserts next to a path that these numbers lead there. */
enum {
    MX_SELFTEST_MANY = 19, /* rows of two products with expanded weights; besides these 1, 2, 3, 7 */
    MX_SELFTEST_MOST = 23,
    MX_SELFTEST_QUERIES = 12, /* attention with 1, 2, ... of them */
    MX_SELFTEST_HEAD = 88,
    MX_SELFTEST_GDN = 80, /* columns of a state */
};

void mx_wmat_row_portable(const mx_wmat *w, uint32_t row, float *out);

extern const mx_kern mx_kern_portable;
extern const mx_kern mx_kern_avx2;
extern const mx_kern mx_kern_avxvnni;
extern const mx_kern mx_kern_avx512;
extern const mx_kern mx_kern_neon;

#endif
