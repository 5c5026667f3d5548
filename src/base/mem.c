/* SPDX-License-Identifier: MIT
 *
 * A thin layer over malloc. It keeps two atomic counters and one countdown; they cost a few
 * nanoseconds each, which no caller notices because nothing hot allocates (mx_mem_forbid proves it).
 */
#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define MEM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEM_ASAN 1
#endif
#endif

static atomic_uint_fast64_t n_calls;
static atomic_int_fast64_t n_live;
static atomic_uint_fast64_t fail_countdown;
static _Thread_local int forbid_depth;

static bool may_allocate(void)
{
    assert(forbid_depth == 0 && "allocation inside a loop that must not allocate");
    atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed);
    if (MX_LIKELY(atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0)) {
        return true;
    }
    /* Only one thread sees the countdown go from 1 to 0, so exactly one allocation fails. */
    uint_fast64_t left = atomic_load(&fail_countdown);
    while (left > 0 && !atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) {
    }
    return left != 1;
}

static void *counted(void *p)
{
    if (p != NULL) {
        atomic_fetch_add_explicit(&n_live, 1, memory_order_relaxed);
    }
    return p;
}

void *mx_alloc(size_t bytes)
{
    return may_allocate() ? counted(malloc(bytes ? bytes : 1)) : NULL;
}

void *mx_calloc(size_t count, size_t bytes)
{
    size_t total; /* checked here, because sanitizers abort in calloc where libc returns NULL */
    if (!mx_mul_ok(count, bytes, &total) || !may_allocate()) {
        return NULL;
    }
    return counted(calloc(count ? count : 1, bytes ? bytes : 1));
}

void *mx_realloc(void *p, size_t bytes)
{
    if (!may_allocate()) {
        return NULL;
    }
    void *q = realloc(p, bytes ? bytes : 1);
    return p == NULL ? counted(q) : q;
}

void *mx_alloc_aligned(size_t align, size_t bytes)
{
    if (!may_allocate() || bytes > SIZE_MAX - align) {
        return NULL;
    }
    return counted(aligned_alloc(align, mx_round_up(bytes ? bytes : 1, align)));
}

#ifdef MEM_ASAN
/* The sanitizer knows the ends of heap blocks, not those of mappings. */
void *mx_alloc_pages(size_t bytes)
{
    void *p = mx_alloc_aligned(MX_HUGE_PAGE, bytes);
    if (p != NULL) {
        memset(p, 0, bytes);
    }
    return p;
}

void mx_free_pages(void *p, size_t bytes)
{
    (void)bytes;
    mx_free(p);
}
#else
static size_t mapping_bytes(size_t bytes)
{
    return mx_round_up(bytes ? bytes : 1, MX_HUGE_PAGE);
}

void *mx_alloc_pages(size_t bytes)
{
    if (!may_allocate() || bytes > SIZE_MAX / 2) {
        return NULL;
    }
    const size_t n = mapping_bytes(bytes);
    uint8_t *map = mmap(NULL, n + MX_HUGE_PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    /* Cut off what stands before and behind the aligned part. */
    const size_t before = -(uintptr_t)map & (MX_HUGE_PAGE - 1);
    if (before > 0) {
        munmap(map, before);
    }
    munmap(map + before + n, MX_HUGE_PAGE - before);
    return counted(map + before);
}

void mx_free_pages(void *p, size_t bytes)
{
    if (p != NULL) {
        atomic_fetch_sub_explicit(&n_live, 1, memory_order_relaxed);
        munmap(p, mapping_bytes(bytes));
    }
}
#endif

char *mx_strndup(const char *s, size_t len)
{
    char *copy = len < SIZE_MAX ? mx_alloc(len + 1) : NULL;
    if (copy != NULL) {
        memcpy(copy, s, len);
        copy[len] = '\0';
    }
    return copy;
}

char *mx_strdup(const char *s)
{
    return mx_strndup(s, strlen(s));
}

void mx_free(void *p)
{
    if (p != NULL) {
        atomic_fetch_sub_explicit(&n_live, 1, memory_order_relaxed);
        free(p);
    }
}

bool mx_grow(void **array, size_t *cap, size_t need, size_t elem_bytes)
{
    if (need <= *cap) {
        return true;
    }
    size_t want = *cap ? *cap : 8;
    while (want < need) {
        if (!mx_mul_ok(want, 2, &want)) {
            return false;
        }
    }
    size_t bytes;
    if (!mx_mul_ok(want, elem_bytes, &bytes)) {
        return false;
    }
    void *p = mx_realloc(*array, bytes);
    if (p == NULL) {
        return false;
    }
    *array = p;
    *cap = want;
    return true;
}

uint64_t mx_mem_calls(void)
{
    return atomic_load(&n_calls);
}

int64_t mx_mem_live(void)
{
    return atomic_load(&n_live);
}

void mx_mem_fail_at(uint64_t k)
{
    atomic_store(&fail_countdown, k);
}

void mx_mem_forbid(bool on)
{
    forbid_depth += on ? 1 : -1;
    assert(forbid_depth >= 0);
}
