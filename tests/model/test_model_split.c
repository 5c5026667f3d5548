/* SPDX-License-Identifier: MIT
 *
 * A model in several files computes what the same model in one file computes, and has one fingerprint
 * whichever part was named, whether or not the parts' hashes were remembered.
 */
#include "model_rig.h"
#include "split_gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

enum { N = 3, N_TOKENS = 70 };

static void compute(const char *path, float *logits)
{
    rig r = rig_open(path, rig_default());
    int32_t ids[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++) {
        ids[i] = 7 * i % (int)r.n_vocab;
    }
    float *hidden = mx_calloc((size_t)N_TOKENS * r.n_embd, sizeof *hidden);
    mx_seq s;
    mx_seq_init(&s, r.kv, &r.root);
    rig_feed_chunks(&r, &s, ids, N_TOKENS, 33, hidden);
    rig_logits(&r, hidden, N_TOKENS, logits);
    mx_seq_free(&s);
    mx_free(hidden);
    rig_close(&r);
}

static mx_hash256 fingerprint(const char *path, const char *cache_dir)
{
    mx_pool *pool;
    mx_model *m;
    mx_errbuf eb;
    rig_check(mx_pool_create(&pool, 2, &eb), &eb, "pool");
    mx_model_options o = {.path = path, .max_batch_rows = 1, .max_logit_rows = 1,
                          .cpu_level = MX_CPU_PORTABLE, .fingerprint_cache_dir = cache_dir};
    rig_check(mx_model_load(&m, &o, pool, &eb), &eb, path);
    mx_hash256 h = *mx_model_fingerprint(m);
    assert_true(mx_model_get_config(m)->file_bytes == mx_gguf_files_bytes(path));
    mx_model_destroy(m);
    mx_pool_destroy(pool);
    return h;
}

static void split_model(void **state)
{
    (void)state;
    mx_tiny_spec spec = mx_tiny_default();
    mx_buf whole = {0}, parts[N];
    char folder[64] = P_tmpdir "/mtplx-split-XXXXXX", name[256], cache[96], command[160];
    assert_non_null(mkdtemp(folder));
    snprintf(cache, sizeof cache, "%s/fingerprints", folder);
    mx_tiny_build(&whole, &spec);
    split_gguf(&whole, N, true, parts);
    for (size_t i = 0; i < N; i++) {
        split_save(split_name(name, folder, i, N), &parts[i]);
        mx_buf_free(&parts[i]);
    }
    snprintf(name, sizeof name, "%s/whole.gguf", folder);
    split_save(name, &whole);
    mx_buf_free(&whole);

    /* Files that changed within the last two seconds are not remembered. */
    nanosleep(&(struct timespec){.tv_sec = 2, .tv_nsec = 100000000}, NULL);
    const size_t n = (size_t)N_TOKENS * spec.n_vocab;
    float *want = mx_calloc(n, sizeof *want), *got = mx_calloc(n, sizeof *got);
    compute(name, want);
    const mx_hash256 of_whole = fingerprint(name, NULL);
    const mx_hash256 first = fingerprint(split_name(name, folder, 0, N), NULL);
    assert_false(mx_hash256_eq(&of_whole, &first));
    for (size_t i = 0; i < N; i++) {
        compute(split_name(name, folder, i, N), got);
        assert_memory_equal(got, want, n * sizeof *want);
        const mx_hash256 h = fingerprint(name, NULL), cached = fingerprint(name, cache);
        assert_true(mx_hash256_eq(&h, &first));
        assert_true(mx_hash256_eq(&cached, &first));
    }
    mx_free(want);
    mx_free(got);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(split_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
