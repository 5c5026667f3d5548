/* SPDX-License-Identifier: MIT
 *
 * A model that is loaded without a pool can only be looked at, as `mtplx inspect` does. What is seen
 * then must be what loading the same file takes and gives.
 */
#include "model/model_internal.h"
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

/* Rows are copied beside their integers only where a matrix wants them as they are, and the halves of a
 * layer use the same memory: what a pass writes to is what it takes time to get from the system. */
static void work_memory_is_as_small_as_can_be(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool embd, mixed, ff; /* meet float matrices */
    } want[] = {
        {"f32", true, true, true},
        {"q4_1", false, false, false},
        {"q8_0", true, false, false},     /* an output matrix of F16 */
        {"qwen3moe", true, false, false}, /* the router */
        {"qwen35moe", true, true, true},
    };
    size_t n_seen = 0;
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        char path[64];
        rig_write(path, &tinies[i].spec);
        rig r = rig_open(path, rig_default());
        unlink(path);
        const mx_state *s = &r.model->s;
        assert_ptr_equal(s->gate_up, s->qkv);
        for (size_t k = 0; k < MX_COUNT(want); k++) {
            if (strcmp(tinies[i].name, want[k].name) == 0) {
                n_seen++;
                assert_int_equal(s->act_embd.x != NULL, want[k].embd);
                assert_int_equal(s->act_attn.x != NULL, want[k].mixed);
                assert_int_equal(s->act_ff.x != NULL, want[k].ff);
            }
        }
        rig_close(&r);
    }
    assert_int_equal(n_seen, MX_COUNT(want));
}

/* What is kept ahead for the first prompt is neither more than its pages nor much beside the weights. */
static void memory_ahead_is_bounded(void **state)
{
    (void)state;
    for (size_t i = 0; i < MX_COUNT(tinies); i++) {
        char path[64];
        rig_write(path, &tinies[i].spec);
        rig r = rig_open(path, rig_default());
        unlink(path);
        const size_t weights = mx_model_get_memory(r.model).weight_bytes;
        const size_t page = mx_kv_payload_bytes(mx_model_kv_shape(r.model));
        assert_int_equal(mx_model_ahead_bytes(r.model, 0), 0);
        assert_int_equal(mx_model_ahead_bytes(r.model, 1), mx_min_size(page, weights / 16));
        assert_int_equal(mx_model_ahead_bytes(r.model, 65), mx_min_size(2 * page, weights / 16));
        assert_int_equal(mx_model_ahead_bytes(r.model, 1 << 20), weights / 16);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(looking_is_like_loading),
        cmocka_unit_test(work_memory_is_as_small_as_can_be),
        cmocka_unit_test(memory_ahead_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
