/* SPDX-License-Identifier: MIT
 *
 * kern_check.h: random and hostile data for the kernel tests, and comparison by bits.
 */
#ifndef MX_KERN_CHECK_H
#define MX_KERN_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/kern.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <math.h>

static const mx_qtype all_types[] = {
    MX_F32,  MX_F16,  MX_BF16, MX_Q4_0, MX_Q4_1, MX_Q5_0,   MX_Q5_1,   MX_Q8_0,
    MX_Q2_K, MX_Q3_K, MX_Q4_K, MX_Q5_K, MX_Q6_K, MX_IQ4_NL, MX_IQ4_XS, MX_MXFP4,
};

/* The levels that a build for this architecture has (an older CPU may lack some of them), and a test
 * of its own for each, which skips visibly: from the file's levels_equal(level). */
#define LEVEL_TEST_FN(name, level)                                                                 \
    static void name##_equals_portable(void **state)                                               \
    {                                                                                              \
        (void)state;                                                                               \
        levels_equal(level);                                                                       \
    }
#if defined(__aarch64__)
#define VECTOR_LEVELS MX_CPU_NEON
#define LEVEL_TEST_FNS LEVEL_TEST_FN(neon, MX_CPU_NEON)
#define LEVEL_TESTS cmocka_unit_test(neon_equals_portable)
#else
#define VECTOR_LEVELS MX_CPU_AVX2, MX_CPU_AVXVNNI, MX_CPU_AVX512
#define LEVEL_TEST_FNS                                                                             \
    LEVEL_TEST_FN(avx2, MX_CPU_AVX2)                                                               \
    LEVEL_TEST_FN(avxvnni, MX_CPU_AVXVNNI)                                                         \
    LEVEL_TEST_FN(avx512, MX_CPU_AVX512)
#define LEVEL_TESTS                                                                                \
    cmocka_unit_test(avx2_equals_portable), cmocka_unit_test(avxvnni_equals_portable),            \
        cmocka_unit_test(avx512_equals_portable)
#endif

typedef struct rng {
    uint64_t state;
} rng;

MX_INLINE uint32_t rng_u32(rng *r)
{
    r->state = r->state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(r->state >> 32);
}

MX_INLINE uint32_t rng_below(rng *r, uint32_t n)
{
    return (uint32_t)((uint64_t)rng_u32(r) * n >> 32);
}

/* -1 <= x < 1 */
MX_INLINE float rng_float(rng *r)
{
    return (float)((int32_t)(rng_u32(r) >> 8) - 0x800000) * 0x1p-23f;
}

/* Ways to fill data: ordinary, and what may break a kernel. */
typedef enum fill {
    FILL_NORMAL,
    FILL_ZERO,
    FILL_OUTLIER,  /* one value 10^6 times the others */
    FILL_DENORMAL, /* below 2^-126 */
    FILL_TINY,     /* around the 2^-100 border */
    FILL_HUGE,     /* up to 2^127 */
    FILL_ANY_FINITE,
    FILL_KINDS,
} fill;

MX_INLINE float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

MX_INLINE uint32_t bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

MX_INLINE void fill_floats(rng *r, fill kind, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float f = rng_float(r);
        uint32_t bits;
        switch (kind) {
        case FILL_ZERO:
            x[i] = rng_u32(r) & 1 ? 0.0f : -0.0f;
            break;
        case FILL_OUTLIER:
            x[i] = rng_below(r, 300) == 0 ? f * 1e6f : f;
            break;
        case FILL_DENORMAL:
            x[i] = float_of_bits(rng_u32(r) & 0x807fffffu);
            break;
        case FILL_TINY:
            x[i] = f * 0x1p-99f;
            break;
        case FILL_HUGE:
            x[i] = f * 0x1p127f;
            break;
        case FILL_ANY_FINITE:
            bits = rng_u32(r);
            x[i] = float_of_bits((bits & 0x7f800000u) == 0x7f800000u ? bits & 0xbfffffffu : bits);
            break;
        default:
            x[i] = f;
        }
    }
}

/* Offsets of the f16 scales in a block, -1 ends. */
MX_INLINE void half_offsets(mx_qtype type, int at[3])
{
    at[0] = at[1] = at[2] = -1;
    switch (type) {
    case MX_Q2_K:
        at[0] = 80;
        at[1] = 82;
        break;
    case MX_Q3_K:
        at[0] = 108;
        break;
    case MX_Q6_K:
        at[0] = 208;
        break;
    case MX_Q4_1:
    case MX_Q5_1:
    case MX_Q4_K:
    case MX_Q5_K:
        at[1] = 2;
        at[0] = 0;
        break;
    case MX_MXFP4:
    case MX_F32:
    case MX_BF16:
        break;
    default:
        at[0] = 0;
    }
}

MX_INLINE uint16_t random_half(rng *r, fill kind)
{
    const uint16_t bits = (uint16_t)rng_u32(r);
    switch (kind) {
    case FILL_ZERO:
        return bits & 0x8000u;
    case FILL_DENORMAL:
    case FILL_TINY:
        return bits & 0x83ffu;
    case FILL_HUGE:
        return (uint16_t)((bits & 0x83ffu) | 0x7800u);
    case FILL_ANY_FINITE:
    case FILL_OUTLIER:
        return (bits & 0x7c00u) == 0x7c00u ? bits & 0xbfffu : bits;
    default:
        return (uint16_t)((bits & 0x87ffu) | 0x2000u); /* 2^-7 .. 2^-5 */
    }
}

/* File bytes of n_blocks blocks; scales are finite, the rest is any byte. */
MX_INLINE void fill_blocks(rng *r, fill kind, mx_qtype type, uint8_t *bytes, size_t n_blocks)
{
    const mx_qtype_info *info = mx_qtype_get(type);
    int at[3];
    half_offsets(type, at);
    for (size_t b = 0; b < n_blocks; b++, bytes += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++) {
            bytes[i] = (uint8_t)rng_u32(r);
        }
        for (int i = 0; at[i] >= 0; i++) {
            mx_put_le16(bytes + at[i], random_half(r, kind));
        }
        float f;
        fill_floats(r, kind, &f, 1);
        if (type == MX_F32) {
            mx_put_le32(bytes, bits_of_float(f));
        } else if (type == MX_BF16) {
            mx_put_le16(bytes, (uint16_t)(bits_of_float(f) >> 16));
        } else if (type == MX_MXFP4 && kind == FILL_NORMAL) {
            bytes[0] = (uint8_t)(120 + bytes[0] % 8);
        } else if (type == MX_MXFP4 && kind == FILL_DENORMAL) {
            bytes[0] = bytes[0] % 4;
        }
    }
}

/* A column count that the type can have, near `wanted`. */
MX_INLINE uint32_t fit_cols(mx_qtype type, uint32_t wanted)
{
    const uint32_t block = mx_qtype_get(type)->block_elems;
    const uint32_t n = wanted / block * block;
    return n == 0 ? block : n;
}

/* Equal as bits, or both NaN. */
MX_INLINE bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || bits_of_float(a) == bits_of_float(b);
}

MX_INLINE void check_same(const float *want, const float *got, size_t n, const char *what,
                          uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        if (!same(want[i], got[i])) {
            fail_msg("%s: element %zu: expected %a (%08x), got %a (%08x), seed %llu", what, i,
                     (double)want[i], bits_of_float(want[i]), (double)got[i],
                     bits_of_float(got[i]), (unsigned long long)seed);
        }
    }
}

#if defined(__x86_64__)
/* The compiler's library has no name for it. */
MX_INLINE bool cpu_has_avx_vnni(void)
{
    uint32_t a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;
}
#endif

/* Does the CPU have what the level needs? Asked of the compiler's library, not of kern.c, which is under
 * test. */
MX_INLINE bool cpu_has(mx_cpu_level level)
{
#if defined(__x86_64__)
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return level == MX_CPU_PORTABLE || (level == MX_CPU_AVX2 && has_avx2)
           || (level == MX_CPU_AVXVNNI && has_avx2 && cpu_has_avx_vnni())
           || (level == MX_CPU_AVX512 && has_avx2 && __builtin_cpu_supports("avx512f")
               && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
               && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"));
#elif defined(__aarch64__)
    return level == MX_CPU_PORTABLE || level == MX_CPU_NEON;
#else
    return level == MX_CPU_PORTABLE;
#endif
}

/* NULL (and a visible line) when this CPU lacks the level; a build that has lost it is a failure. */
MX_INLINE const mx_kern *level_or_null(mx_cpu_level level)
{
    const mx_kern *k = mx_kern_get(level);
    if (k->level == level) {
        return k;
    }
    if (cpu_has(level)) {
        fail_msg("the CPU has all of %s, but %s is what runs", mx_cpu_level_name(level), k->name);
    }
    print_message("SKIPPED: this CPU has no level %s\n", mx_cpu_level_name(level));
    return NULL;
}

MX_INLINE void *need(size_t bytes)
{
    void *p = mx_alloc_aligned(64, bytes + 64);
    assert_non_null(p);
    memset(p, 0, bytes + 64);
    return p;
}

#endif
