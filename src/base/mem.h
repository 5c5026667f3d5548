/* SPDX-License-Identifier: MIT
 *
 * mem.h: the only way to the heap. Counted, aligned on request, and failable on demand, so that a
 * test can make the k-th allocation fail and see what happens.
 *
 * Thread-safe. Memory from here is freed with mx_free, aligned or not.
 */
#ifndef MX_MEM_H
#define MX_MEM_H

#include "base/base.h"

void *mx_alloc(size_t bytes);                   /* NULL on failure; bytes 0 gives a unique pointer */
void *mx_calloc(size_t count, size_t bytes);    /* zeroed; NULL on failure or overflow */
void *mx_realloc(void *p, size_t bytes);        /* as realloc; the old block stays on failure */
void *mx_alloc_aligned(size_t align, size_t bytes); /* align: a power of two >= sizeof(void *) */
/* Zeroed pages that take memory only as they are written to: for arenas of many megabytes. Aligned to
 * MX_HUGE_PAGE. Freed by mx_free_pages with the same size; NULL is allowed there. */
enum { MX_HUGE_PAGE = 2 << 20 };
void *mx_alloc_pages(size_t bytes);
void mx_free_pages(void *p, size_t bytes);
char *mx_strndup(const char *s, size_t len);    /* a NUL-terminated copy */
char *mx_strdup(const char *s);
void mx_free(void *p);                          /* NULL is allowed */

/* Makes an array grow: at least `need` elements, doubling. False (array unchanged) on failure. */
bool mx_grow(void **array, size_t *cap, size_t need, size_t elem_bytes) MX_MUST_CHECK;

/* How many allocation calls have been made by this process; for tests and leak checks. */
uint64_t mx_mem_calls(void);
/* How many blocks are live now. */
int64_t mx_mem_live(void);

/* Test hook: the k-th allocation from now (1 = the next) and only that one fails; 0 switches off. */
void mx_mem_fail_at(uint64_t k);

/* Debug guard for loops that must not allocate: between forbid(true) and forbid(false) an
 * allocation on this thread aborts the process in builds without NDEBUG. Nests by counting. */
void mx_mem_forbid(bool on);

#endif
