/* SPDX-License-Identifier: MIT
 *
 * The loops whose rate is a roof: one family of instructions on registers alone, in 12 chains, which
 * is more than latency times rate of any of them needs. In assembly, because a compiler would see
 * that nothing comes of it. Operands are ordinary numbers: zeros can be cheaper in current, and
 * denormals are dearer.
 */
#include "cli/cli_roof.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static bool always(void)
{
    return true;
}

/* What the compiler makes of plain C for the baseline CPU. */
static void run_portable(uint64_t n_rounds)
{
    enum { N = 64 };
    static const int16_t a[N] = {3, 5, 7, 9}, b[N] = {11, 13, 17, 19};
    int32_t sums[N] = {0};
    for (uint64_t r = 0; r < n_rounds; r++) {
        for (size_t i = 0; i < N; i++) {
            sums[i] += a[i] * b[i];
        }
        __asm__ volatile("" : : "r"(sums), "r"(a), "r"(b) : "memory");
    }
}

#if defined(__x86_64__)

/* rax..: leaf 7 and leaf 7.1, as far as the CPU has them. */
static uint32_t leaf7(unsigned sub, char reg)
{
    uint32_t a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (sub > 0 && a < sub)) {
        return 0;
    }
    if (sub > 0) {
        __cpuid_count(7, sub, a, b, c, d);
    }
    return reg == 'a' ? a : reg == 'b' ? b : c;
}

static bool has_avx2(void)
{
    return mx_cpu_best() >= MX_CPU_AVX2;
}

static bool has_avx_vnni(void)
{
    return has_avx2() && (leaf7(1, 'a') & 1u << 4) != 0;
}

static bool has_avx512(void)
{
    return mx_cpu_best() >= MX_CPU_AVX512;
}

static bool has_bf16(void)
{
    return has_avx512() && (leaf7(1, 'a') & 1u << 5) != 0;
}

#define LOOP(name, width, pattern, chain)                                                          \
    static void name(uint64_t n_rounds)                                                            \
    {                                                                                              \
        __asm__ volatile("vzeroall\n"                                                              \
                         "vmovd %1, %%xmm12\n"                                                     \
                         "vpbroadcastd %%xmm12, %%" width "12\n"                                   \
                         "vpbroadcastd %%xmm12, %%" width "13\n"                                   \
                         "1:\n" CHAINS(chain) "dec %0\n"                                           \
                         "jnz 1b\n"                                                                \
                         "vzeroupper\n"                                                            \
                         : "+r"(n_rounds)                                                          \
                         : "r"(pattern)                                                            \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",   \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");  \
    }

#define FMA(w, i) "vfmadd231ps %%" w "12, %%" w "13, %%" w #i "\n"
#define MADDWD(w, i)                                                                               \
    "vpmaddwd %%" w "12, %%" w "13, %%" w "15\nvpaddd %%" w "15, %%" w #i ", %%" w #i "\n"
#define MADDUBS(w, i)                                                                              \
    "vpmaddubsw %%" w "12, %%" w "13, %%" w "15\nvpmaddwd %%" w "12, %%" w "15, %%" w "15\n"       \
    "vpaddd %%" w "15, %%" w #i ", %%" w #i "\n"
#define MADDUBS4(w, i)                                                                             \
    "vpmaddubsw %%" w "12, %%" w "13, %%" w "15\nvpaddw %%" w "15, %%" w #i ", %%" w #i "\n"
#define DOT(op, w, i) op " %%" w "12, %%" w "13, %%" w #i "\n"

#define FMA_Y(i) FMA("ymm", i)
#define FMA_Z(i) FMA("zmm", i)
#define MADDWD_Y(i) MADDWD("ymm", i)
#define MADDWD_Z(i) MADDWD("zmm", i)
#define MADDUBS_Y(i) MADDUBS("ymm", i)
#define MADDUBS_Z(i) MADDUBS("zmm", i)
#define MADDUBS4_Y(i) MADDUBS4("ymm", i)
#define WSSD_Y(i) DOT("%{vex%} vpdpwssd", "ymm", i)
#define BUSD_Y(i) DOT("%{vex%} vpdpbusd", "ymm", i)
#define WSSD_Z(i) DOT("vpdpwssd", "zmm", i)
#define BUSD_Z(i) DOT("vpdpbusd", "zmm", i)
#define BF16_Z(i) DOT("vdpbf16ps", "zmm", i)

enum { HALF_F32 = 0x3F000000, HALF_BF16 = 0x3F003F00, INTS = 0x05070B0D };

LOOP(run_fma_y, "ymm", HALF_F32, FMA_Y)
LOOP(run_fma_z, "zmm", HALF_F32, FMA_Z)
LOOP(run_maddwd_y, "ymm", INTS, MADDWD_Y)
LOOP(run_maddwd_z, "zmm", INTS, MADDWD_Z)
LOOP(run_maddubs_y, "ymm", INTS, MADDUBS_Y)
LOOP(run_maddubs_z, "zmm", INTS, MADDUBS_Z)
LOOP(run_maddubs4_y, "ymm", INTS, MADDUBS4_Y)
LOOP(run_wssd_y, "ymm", INTS, WSSD_Y)
LOOP(run_busd_y, "ymm", INTS, BUSD_Y)
LOOP(run_wssd_z, "zmm", INTS, WSSD_Z)
LOOP(run_busd_z, "zmm", INTS, BUSD_Z)
LOOP(run_bf16_z, "zmm", HALF_BF16, BF16_Z)

#elif defined(__aarch64__)

static bool has_dotprod(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

#define LOOP(name, pattern, chain)                                                                 \
    static void name(uint64_t n_rounds)                                                            \
    {                                                                                              \
        __asm__ volatile(".arch armv8.2-a+dotprod\n" CHAINS(ZERO) "dup v30.4s, %w1\n"              \
                         "dup v31.4s, %w1\n"                                                       \
                         "1:\n" CHAINS(chain) "subs %0, %0, #1\n"                                  \
                         "b.ne 1b\n"                                                               \
                         : "+r"(n_rounds)                                                          \
                         : "r"(pattern)                                                            \
                         : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9",       \
                           "v10", "v11", "v30", "v31");                                            \
    }

#define ZERO(i) "movi v" #i ".4s, #0\n"
#define FMLA(i) "fmla v" #i ".4s, v30.4s, v31.4s\n"
#define SMLAL(i) "smlal v" #i ".4s, v30.4h, v31.4h\n"
#define SDOT(i) "sdot v" #i ".4s, v30.16b, v31.16b\n"

enum { HALF_F32 = 0x3F000000, INTS = 0x05070B0D };

LOOP(run_fmla, HALF_F32, FMLA)
LOOP(run_smlal, INTS, SMLAL)
LOOP(run_sdot, INTS, SDOT)

#endif

/* Of each level, and each number of bits, the one that the kernels use comes first. */
static const mx_roof_family families[] = {
    {"i16 x i16 plain C", MX_CPU_PORTABLE, 64, always, run_portable},
#if defined(__x86_64__)
    {"i16 x i16 vpmaddwd 256", MX_CPU_AVX2, 12 * 16, has_avx2, run_maddwd_y},
    {"u4 x s8 vpmaddubsw+vpaddw 256", MX_CPU_AVX2, 12 * 32, has_avx2, run_maddubs4_y},
    {"u8 x s8 vpmaddubsw+vpmaddwd 256", MX_CPU_AVX2, 12 * 32, has_avx2, run_maddubs_y},
    {"f32 vfmadd 256", MX_CPU_AVX2, 12 * 8, has_avx2, run_fma_y},
    {"i16 x i16 vpdpwssd 256", MX_CPU_AVXVNNI, 12 * 16, has_avx_vnni, run_wssd_y},
    {"u8 x s8 vpdpbusd 256", MX_CPU_AVXVNNI, 12 * 32, has_avx_vnni, run_busd_y},
    {"i16 x i16 vpdpwssd 512", MX_CPU_AVX512, 12 * 32, has_avx512, run_wssd_z},
    {"i16 x i16 vpmaddwd 512", MX_CPU_AVX512, 12 * 32, has_avx512, run_maddwd_z},
    {"u8 x s8 vpdpbusd 512", MX_CPU_AVX512, 12 * 64, has_avx512, run_busd_z},
    {"u8 x s8 vpmaddubsw+vpmaddwd 512", MX_CPU_AVX512, 12 * 64, has_avx512, run_maddubs_z},
    {"f32 vfmadd 512", MX_CPU_AVX512, 12 * 16, has_avx512, run_fma_z},
    {"bf16 vdpbf16ps 512", MX_CPU_AVX512, 12 * 32, has_bf16, run_bf16_z},
#elif defined(__aarch64__)
    {"i16 x i16 smlal", MX_CPU_NEON, 12 * 4, always, run_smlal},
    {"s8 x s8 sdot", MX_CPU_NEON, 12 * 16, has_dotprod, run_sdot},
    {"f32 fmla", MX_CPU_NEON, 12 * 4, always, run_fmla},
#endif
};

const mx_roof_family *mx_roof_families(size_t *n)
{
    *n = MX_COUNT(families);
    return families;
}

const mx_roof_family *mx_roof_of_level(mx_cpu_level level, mx_act_type act)
{
    const char *operand = act == MX_ACT_8 ? " x s8 " : " x i16 ";
    for (size_t i = 0; i < MX_COUNT(families); i++) {
        bool is_kind = level == MX_CPU_PORTABLE || strstr(families[i].name, operand) != NULL;
        if (families[i].level == level && is_kind && families[i].is_there()) {
            return &families[i];
        }
    }
    return &families[0];
}
