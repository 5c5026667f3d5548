/* SPDX-License-Identifier: MIT
 *
 * Files of every architecture with damaged headers: some bytes of the keys and of the tensor list
 * are replaced by others. The file loads (the damage hit a name, or a value that may be so), or it
 * is refused with a sentence; nothing else happens, and nothing is left behind.
 */
#include "gguf/gguf.h"
#include "model_rig.h"
#include "tiny_models.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_MUTATIONS = 150 };

static size_t header_bytes(const mx_buf *file)
{
    mx_gguf *g;
    mx_errbuf eb;
    rig_check(mx_gguf_open_memory(&g, (const uint8_t *)file->ptr, file->len, &eb), &eb, "gguf");
    size_t n = (size_t)mx_gguf_tensor_at(g, 0)->offset;
    mx_gguf_close(g);
    return n;
}

/* Small numbers and powers of two are what a key may be mistaken for. */
static uint8_t other_byte(uint8_t was, uint64_t *rng)
{
    const uint64_t r = mx_tiny_random(rng);
    switch (r % 4) {
    case 0:
        return (uint8_t)(r >> 32);
    case 1:
        return (uint8_t)(was + 1);
    case 2:
        return (uint8_t)(was ^ (1u << (r >> 32) % 8));
    default:
        return r >> 32 & 1 ? 0 : 255;
    }
}

static bool loads(const char *path, mx_pool *pool, const char *name, uint64_t seed)
{
    mx_errbuf eb = {{0}};
    mx_model *m;
    const int64_t live = mx_mem_live();
    mx_model_options o = {.path = path, .max_batch_rows = 8, .max_logit_rows = 4, .n_ctx = 64,
                          .cpu_level = mx_cpu_best()};
    mx_err e = mx_model_load(&m, &o, pool, &eb);
    if (e == MX_OK) {
        mx_model_destroy(m);
    } else if (eb.text[0] == '\0') {
        fail_msg("%s, seed %llu: %s without a sentence", name, (unsigned long long)seed,
                 mx_err_name(e));
    }
    if (mx_mem_live() != live) {
        fail_msg("%s, seed %llu: memory is left behind", name, (unsigned long long)seed);
    }
    return e == MX_OK;
}

static void one_architecture(const tiny *t, mx_pool *pool)
{
    char path[64];
    mx_buf file = {0};
    size_t n_loaded = 0;
    mx_tiny_build(&file, &t->spec);
    const size_t n_header = header_bytes(&file);
    rig_write(path, &t->spec);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    for (uint64_t seed = 0; seed < N_MUTATIONS; seed++) {
        uint64_t rng = seed * 1000 + t->spec.seed;
        size_t at[3];
        const size_t n = 1 + seed % 3;
        for (size_t i = 0; i < n; i++) {
            /* The keys of the architecture stand in front of a long vocabulary. */
            const size_t range = mx_tiny_random(&rng) % 2 != 0 ? 1500 : n_header;
            at[i] = mx_tiny_random(&rng) % mx_min_size(range, n_header);
            uint8_t b = other_byte((uint8_t)file.ptr[at[i]], &rng);
            assert_int_equal(pwrite(fd, &b, 1, (off_t)at[i]), 1);
        }
        n_loaded += loads(path, pool, t->name, seed);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(pwrite(fd, file.ptr + at[i], 1, (off_t)at[i]), 1);
        }
    }
    assert_true(loads(path, pool, t->name, N_MUTATIONS));
    /* Otherwise the mutations would not reach beyond the parser, or change nothing at all. */
    if (n_loaded == 0 || n_loaded == N_MUTATIONS) {
        fail_msg("%s: %zu of %d damaged files load", t->name, n_loaded, N_MUTATIONS);
    }
    close(fd);
    unlink(path);
    mx_buf_free(&file);
}

static void damaged_headers(void **state)
{
    (void)state;
    mx_pool *pool;
    mx_errbuf eb;
    rig_check(mx_pool_create(&pool, 1, &eb), &eb, "pool");
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        one_architecture(&tinies[i], pool);
    }
    mx_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
