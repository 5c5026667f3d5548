/* SPDX-License-Identifier: MIT
 *
 * The cache key: made once, the same for everybody who comes later, refused where others could have
 * read or changed it, and gone with `cache rm --all`.
 */
#include "cold_help.h"

#include <pthread.h>

typedef struct place {
    char dir[256], key[300];
} place;

static int setup(void **state)
{
    place *p = calloc(1, sizeof *p);
    help_make_folder(p->dir);
    snprintf(p->key, sizeof p->key, "%s/" MX_COLD_KEY_NAME, p->dir);
    *state = p;
    return p == NULL;
}

static int teardown(void **state)
{
    place *p = *state;
    help_remove_tree(p->dir);
    free(p);
    return 0;
}

static void put(const char *path, const char *bytes, size_t n, unsigned mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && fchmod(fd, mode) == 0);
    close(fd);
}

static void expect(const place *p, const char *file, mx_err want, const char *words)
{
    mx_hash256 key;
    mx_errbuf eb = {{0}};
    mx_err got = mx_cold_cache_key(p->dir, file, &key, &eb);
    if (got != want || (words != NULL && strstr(eb.text, words) == NULL)) {
        fail_msg("expected %s \"%s\", got %s: %s", mx_err_name(want), words == NULL ? "" : words,
                 mx_err_name(got), eb.text);
    }
}

static void made_once(void **state)
{
    place *p = *state;
    mx_hash256 first, second;
    mx_errbuf eb = {{0}};
    assert_int_equal(mx_cold_cache_key(p->dir, NULL, &first, &eb), MX_OK);
    assert_int_equal(mx_cold_cache_key(p->dir, NULL, &second, &eb), MX_OK);
    assert_true(mx_hash256_eq(&first, &second));
    struct stat st;
    assert_int_equal(stat(p->key, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_nlink, 1); /* no temporary name is left */
    assert_int_equal(st.st_size, 65);
    uint64_t n_files, n_bytes;
    assert_int_equal(mx_cold_remove_all(p->dir, NULL, &n_files, &n_bytes, &eb), MX_OK);
    assert_int_equal(n_files, 2); /* the key and the marker */
    assert_int_equal(access(p->key, F_OK), -1);
    assert_int_equal(mx_cold_cache_key(p->dir, NULL, &second, &eb), MX_OK);
    assert_false(mx_hash256_eq(&first, &second));
}

typedef struct racer {
    const place *p;
    mx_hash256 key;
    mx_err err;
    pthread_t thread;
} racer;

static void *race(void *arg)
{
    racer *r = arg;
    mx_errbuf eb;
    r->err = mx_cold_cache_key(r->p->dir, NULL, &r->key, &eb);
    return NULL;
}

static void one_key_for_all_who_start_together(void **state)
{
    place *p = *state;
    for (int round = 0; round < 50; round++) {
        racer r[4];
        unlink(p->key);
        for (size_t i = 0; i < 4; i++) {
            r[i].p = p;
            assert_int_equal(pthread_create(&r[i].thread, NULL, race, &r[i]), 0);
        }
        for (size_t i = 0; i < 4; i++) {
            pthread_join(r[i].thread, NULL);
            assert_int_equal(r[i].err, MX_OK);
            assert_true(mx_hash256_eq(&r[i].key, &r[0].key));
        }
    }
}

static void refusals(void **state)
{
    place *p = *state;
    char bytes[5000], other[300];
    memset(bytes, 'k', sizeof bytes);
    snprintf(other, sizeof other, "%s/other", p->dir);
    put(p->key, bytes, 32, 0600);
    expect(p, NULL, MX_OK, NULL);
    put(p->key, bytes, 32, 0640);
    expect(p, NULL, MX_E_DENIED, "chmod 600");
    put(p->key, bytes, 32, 0602);
    expect(p, NULL, MX_E_DENIED, "chmod 600");
    put(p->key, bytes, 31, 0600);
    expect(p, NULL, MX_E_INVALID, "32 to 4096");
    put(p->key, bytes, 4096, 0600);
    expect(p, NULL, MX_OK, NULL);
    put(p->key, bytes, 4097, 0600);
    expect(p, NULL, MX_E_INVALID, "32 to 4096");
    put(other, bytes, 32, 0400);
    unlink(p->key);
    assert_int_equal(symlink(other, p->key), 0);
    expect(p, NULL, MX_E_IO, NULL); /* a link in the folder is not followed */
    expect(p, other, MX_OK, NULL);
    expect(p, p->key, MX_OK, NULL); /* one that the user names is */
    unlink(p->key);
    assert_int_equal(mkdir(p->key, 0700), 0);
    expect(p, NULL, MX_E_DENIED, "regular file");
    expect(p, "/proc/nonexistent/key", MX_E_NOT_FOUND, "/proc/nonexistent/key");
    assert_int_equal(rmdir(p->key), 0);
    assert_int_equal(chmod(p->dir, 0770), 0);
    expect(p, NULL, MX_E_DENIED, NULL); /* others could have put a key there */
    assert_int_equal(chmod(p->dir, 0700), 0);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(made_once), T(one_key_for_all_who_start_together), T(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
