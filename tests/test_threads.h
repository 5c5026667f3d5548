/* SPDX-License-Identifier: MIT
 *
 * test_threads.h: how many threads the process has, for tests of threads that nobody can join: one that
 * hangs in a system call is left behind, and what it does when it comes back must be over before a test
 * takes its folder away.
 */
#ifndef MX_TEST_THREADS_H
#define MX_TEST_THREADS_H

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

/* 0 = the system does not say. */
__attribute__((unused)) static size_t mx_test_n_threads(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        n += e->d_name[0] != '.';
    }
    if (d != NULL) {
        closedir(d);
    }
    return n;
}

__attribute__((unused)) static void *mx_test_stand_by(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Without those that the program is about to make, with a sanitizer's own, which comes with the first of
 * them: one more is there while the others are counted. */
__attribute__((unused)) static size_t mx_test_n_threads_before(void)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t t;
    pthread_mutex_lock(&gate);
    const bool is_made = pthread_create(&t, NULL, mx_test_stand_by, &gate) == 0;
    const size_t n = mx_test_n_threads();
    pthread_mutex_unlock(&gate);
    if (is_made) {
        pthread_join(t, NULL);
    }
    return n - (is_made && n > 0);
}

/* Waits until there are no more than that; false after a minute. */
__attribute__((unused)) static bool mx_test_wait_threads(size_t n)
{
    for (int i = 0; i < 60000 && mx_test_n_threads() > n; i++) {
        usleep(1000);
    }
    return mx_test_n_threads() <= n;
}

#endif
