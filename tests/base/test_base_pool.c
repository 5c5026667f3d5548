/* SPDX-License-Identifier: MIT
 *
 * The compute pool: run_each reaches every worker once, what they wrote is seen, work is handed out
 * without gaps or overlaps, and an idle pool sleeps. Run under TSan as well.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/mem.h"
#include "base/pool.h"

#include <sys/resource.h>
#include <time.h>

enum { MAX_WORKERS = 8, ITEMS = 1000 };

typedef struct shared {
    unsigned plain[MAX_WORKERS]; /* not atomic: the pool's own ordering must suffice */
    uint32_t items[ITEMS];
    mx_pool_cursor cursor;
    size_t chunk;
} shared;

static void count(void *arg, unsigned worker)
{
    shared *s = arg;
    s->plain[worker]++;
}

static void test_each_worker_once(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= MAX_WORKERS; n++) {
        mx_pool *p = NULL;
        assert_int_equal(mx_pool_create(&p, n, NULL), MX_OK);
        assert_int_equal(mx_pool_size(p), n);
        shared s = {0};
        for (unsigned job = 1; job <= 200; job++) {
            mx_pool_run_each(p, count, &s);
            for (unsigned w = 0; w < MAX_WORKERS; w++) {
                assert_int_equal(s.plain[w], w < n ? job : 0);
            }
        }
        mx_pool_destroy(p);
    }
    mx_pool_destroy(NULL);
    assert_int_equal(mx_mem_live(), 0);
}

static void take_items(void *arg, unsigned worker)
{
    (void)worker;
    shared *s = arg;
    size_t begin, end;
    while (mx_pool_take(&s->cursor, ITEMS, s->chunk, &begin, &end)) {
        for (size_t i = begin; i < end; i++) {
            s->items[i]++;
        }
    }
}

static void test_cursor(void **state)
{
    (void)state;
    mx_pool *p = NULL;
    assert_int_equal(mx_pool_create(&p, 3, NULL), MX_OK);
    static const size_t chunks[] = {1, 3, 7, 999, 1000, 5000};
    for (size_t c = 0; c < MX_COUNT(chunks); c++) {
        shared s = {.chunk = chunks[c]};
        mx_pool_run(p, take_items, &s);
        for (size_t i = 0; i < ITEMS; i++) {
            if (s.items[i] != 1) {
                print_message("chunk %zu: item %zu was done %u times\n", chunks[c], i, s.items[i]);
            }
            assert_int_equal(s.items[i], 1);
        }
    }
    mx_pool_destroy(p);
}

static void sleep_ms(long ms)
{
    struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

/* Jobs after pauses longer than the spinning: the workers have to be woken from their sleep. */
static void test_sleep_and_wake(void **state)
{
    (void)state;
    mx_pool *p = NULL;
    assert_int_equal(mx_pool_create(&p, 4, NULL), MX_OK);
    shared s = {0};
    for (unsigned job = 1; job <= 20; job++) {
        sleep_ms(2);
        mx_pool_run_each(p, count, &s);
        for (unsigned w = 0; w < 4; w++) {
            assert_int_equal(s.plain[w], job);
        }
    }
    struct rusage a, b;
    sleep_ms(20);
    getrusage(RUSAGE_SELF, &a);
    sleep_ms(200);
    getrusage(RUSAGE_SELF, &b);
    long us = (b.ru_utime.tv_sec - a.ru_utime.tv_sec) * 1000000 + b.ru_utime.tv_usec -
              a.ru_utime.tv_usec + (b.ru_stime.tv_sec - a.ru_stime.tv_sec) * 1000000 +
              b.ru_stime.tv_usec - a.ru_stime.tv_usec;
    print_message("idle pool: %ld us of CPU in 200 ms\n", us);
    assert_true(us < 20000);
    mx_pool_destroy(p);
}

static void test_limits(void **state)
{
    (void)state;
    mx_pool *p = (mx_pool *)(uintptr_t)1;
    mx_errbuf eb;
    assert_int_equal(mx_pool_create(&p, 0, &eb), MX_E_INVALID);
    assert_null(p);
    assert_non_null(strstr(eb.text, "not 0"));
    assert_int_equal(mx_pool_create(&p, 257, &eb), MX_E_INVALID);
    for (uint64_t k = 1; k <= 2; k++) {
        mx_mem_fail_at(k);
        assert_int_equal(mx_pool_create(&p, 2, &eb), MX_E_NOMEM);
        mx_mem_fail_at(0);
        assert_null(p);
    }
    assert_int_equal(mx_mem_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_worker_once),
        cmocka_unit_test(test_cursor),
        cmocka_unit_test(test_sleep_and_wake),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
