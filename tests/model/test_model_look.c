/* SPDX-License-Identifier: MIT
 *
 * A model that is loaded without a pool can only be looked at, as `mtplx inspect` does. What is seen
 * then must be what loading the same file takes and gives.
 */
#include "model_rig.h"
#include "tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void looking_is_like_loading(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        char path[64];
        rig_options o = rig_default();
        o.n_threads = 3;
        rig_write(path, &tinies[i].spec);
        rig r = rig_open(path, o);
        const mx_model_options opt = {.path = path,
                                      .max_batch_rows = o.max_rows,
                                      .max_logit_rows = o.max_rows,
                                      .cpu_level = o.level,
                                      .n_workers = o.n_threads};
        mx_model *m;
        mx_errbuf eb = {{0}};
        rig_check(mx_model_load(&m, &opt, NULL, &eb), &eb, path);
        unlink(path);
        const mx_model_memory want = mx_model_get_memory(r.model), got = mx_model_get_memory(m);
        assert_int_equal(got.weight_bytes, want.weight_bytes);
        assert_int_equal(got.work_bytes, want.work_bytes);
        assert_int_equal(got.table_bytes, want.table_bytes);
        assert_int_equal(got.page_bytes, want.page_bytes);
        const mx_model_config *c = mx_model_get_config(m), *loaded = mx_model_get_config(r.model);
        assert_int_equal(c->n_params, loaded->n_params);
        assert_int_equal(c->n_mtp_params, loaded->n_mtp_params);
        assert_int_equal(c->file_bytes, loaded->file_bytes);
        mx_model_destroy(m);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looking_is_like_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
