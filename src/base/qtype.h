/* SPDX-License-Identifier: MIT
 *
 * qtype.h: how numbers are stored in a model file: ids (those of GGUF), names, block geometry.
 *
 * Shared by the file reader and the kernels, which must not know each other.
 */
#ifndef MX_QTYPE_H
#define MX_QTYPE_H

#include "base/base.h"

typedef enum mx_qtype {
    MX_F32 = 0,
    MX_F16 = 1,
    MX_Q4_0 = 2,
    MX_Q4_1 = 3,
    MX_Q5_0 = 6,
    MX_Q5_1 = 7,
    MX_Q8_0 = 8,
    MX_Q2_K = 10,
    MX_Q3_K = 11,
    MX_Q4_K = 12,
    MX_Q5_K = 13,
    MX_Q6_K = 14,
    MX_IQ4_NL = 20,
    MX_IQ4_XS = 23,
    MX_BF16 = 30,
    MX_MXFP4 = 39,
} mx_qtype;

typedef struct mx_qtype_info {
    mx_qtype type;
    const char *name;      /* as in GGUF tools: "Q4_K" */
    uint32_t block_elems;  /* 1 for the float types */
    uint32_t block_bytes;
} mx_qtype_info;

/* NULL for an id that this build does not know. */
const mx_qtype_info *mx_qtype_get(uint32_t id);
/* The name of any GGUF tensor type, also of those that are not supported; "type <n>" is the
 * caller's business when this returns NULL. */
const char *mx_qtype_foreign_name(uint32_t id);
/* "F32, F16, ...": for error messages. */
const char *mx_qtype_list(void);

#endif
