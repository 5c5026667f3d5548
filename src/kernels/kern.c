/* SPDX-License-Identifier: MIT
 *
 * Which level runs: asks the CPU once per call (cheap, and no state to initialise), and the OS
 * through XGETBV whether it saves the wide registers; a CPU flag alone is not enough. On aarch64 the
 * kernel's AT_HWCAP says both.
 */
#include "kernels/kern_internal.h"

#if defined(MX_HAVE_X86)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(MX_HAVE_NEON)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const struct {
    mx_cpu_level level;
    const char *name;
} names[] = {
    {MX_CPU_PORTABLE, "portable"},
    {MX_CPU_AVX2, "avx2"},
    {MX_CPU_AVXVNNI, "avxvnni"},
    {MX_CPU_AVX512, "avx512"},
    {MX_CPU_NEON, "neon"},
};

const char *mx_kv_type_name(mx_kv_type type)
{
    return type == MX_KV_F16 ? "f16" : type == MX_KV_F32 ? "f32" : "q8";
}

#if defined(MX_HAVE_X86)

static uint64_t xcr0(void)
{
    uint32_t low;
    uint32_t high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has_all(uint32_t bits, uint32_t wanted)
{
    return (bits & wanted) == wanted;
}

/* Needs nothing of the OS that AVX2 does not. */
static bool has_avx_vnni(void)
{
    enum { AVX_VNNI = 1 << 4 };
    uint32_t a;
    uint32_t b;
    uint32_t c;
    uint32_t d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && has_all(a, AVX_VNNI);
}

mx_cpu_level mx_cpu_best(void)
{
    uint32_t a;
    uint32_t b;
    uint32_t c;
    uint32_t d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) {
        return MX_CPU_PORTABLE;
    }
    const uint64_t os = xcr0();
    if ((os & 0x6) != 0x6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_all(b, bit_AVX2)) {
        return MX_CPU_PORTABLE;
    }
    if ((os & 0xe6) == 0xe6 &&
        has_all(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
        has_all(c, bit_AVX512VNNI))
    {
        return MX_CPU_AVX512;
    }
    return has_avx_vnni() ? MX_CPU_AVXVNNI : MX_CPU_AVX2;
}

void mx_kern_thread_init(void)
{
    _mm_setcsr(0x1F80);
}

#else

mx_cpu_level mx_cpu_best(void)
{
#if defined(MX_HAVE_NEON)
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMD) != 0) {
        return MX_CPU_NEON;
    }
#endif
    return MX_CPU_PORTABLE;
}

void mx_kern_thread_init(void)
{
#if defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
#endif
}

#endif

const mx_kern *mx_kern_get(mx_cpu_level max_level)
{
    const mx_cpu_level best = mx_cpu_best();
    const mx_cpu_level level = best < max_level ? best : max_level;
#if defined(MX_HAVE_X86)
    if (level >= MX_CPU_AVX512) {
        return &mx_kern_avx512;
    }
    /* There are CPUs with AVX-512 that lack it. */
    if (level >= MX_CPU_AVXVNNI && has_avx_vnni()) {
        return &mx_kern_avxvnni;
    }
    if (level >= MX_CPU_AVX2) {
        return &mx_kern_avx2;
    }
#elif defined(MX_HAVE_NEON)
    if (level >= MX_CPU_NEON) {
        return &mx_kern_neon;
    }
#endif
    (void)level;
    return &mx_kern_portable;
}

bool mx_cpu_level_is_built(mx_cpu_level level)
{
#if defined(MX_HAVE_X86)
    return level != MX_CPU_NEON;
#elif defined(MX_HAVE_NEON)
    return level == MX_CPU_PORTABLE || level == MX_CPU_NEON;
#else
    return level == MX_CPU_PORTABLE;
#endif
}

const char *mx_cpu_level_name(mx_cpu_level level)
{
    for (size_t i = 0; i < MX_COUNT(names); i++) {
        if (names[i].level == level) {
            return names[i].name;
        }
    }
    return "unknown";
}

bool mx_cpu_level_from_name(const char *name, mx_cpu_level *out)
{
    for (size_t i = 0; i < MX_COUNT(names); i++) {
        if (strcmp(names[i].name, name) == 0) {
            *out = names[i].level;
            return true;
        }
    }
    return false;
}

size_t mx_kern_matmul_scratch(const mx_wmat *w)
{
    (void)w; /* a group of a panel is all that is ever expanded */
    return sizeof(mx_matmul_scratch);
}
