/* SPDX-License-Identifier: MIT
 *
 * Tiny models with f32 weights and the logits that an independent numpy implementation computes for
 * them in double precision: every architecture and every kind of RoPE scaling. The models are made
 * by the reference script of the shared folder when the test runs.
 */
#include "logitref.h"
#include "model_rig.h"
#include "test_env.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* how: what the script is told behind the file's name. */
static void run_case(const char *python, const char *shared, const char *script, const char *how)
{
    char gguf[64], command[4400], ref_path[80];
    snprintf(gguf, sizeof gguf, "/tmp/mtplx-test-XXXXXX");
    int fd = mkstemp(gguf);
    assert_true(fd >= 0);
    close(fd);
    snprintf(command, sizeof command,
             "PYTHONDONTWRITEBYTECODE=1 %s '%s/reference/gen/%s' %s %s >/dev/null", python, shared,
             script, gguf, how);
    if (system(command) != 0) {
        fail_msg("failed: %s", command);
    }
    logitref ref;
    snprintf(ref_path, sizeof ref_path, "%s.ref", gguf);
    assert_true(logitref_open(&ref, ref_path));
    assert_int_equal(ref.n_full, ref.n_tokens);
    for (int full = 0; full < 2; full++) {
        rig_options o = rig_default();
        o.kv_type = full ? MX_KV_F32 : MX_KV_F16;
        rig r = rig_open(gguf, o);
        assert_int_equal(r.n_vocab, ref.n_vocab);
        uint32_t n = ref.n_tokens;
        int32_t *ids = mx_calloc(n, sizeof *ids);
        float *hidden = mx_calloc((size_t)n * r.n_embd, sizeof *hidden);
        float *logits = mx_calloc((size_t)n * r.n_vocab, sizeof *logits);
        for (uint32_t t = 0; t < n; t++) {
            ids[t] = (int32_t)logitref_u32(&ref, LOGITREF_IDS, t);
        }
        mx_seq s;
        mx_seq_init(&s, r.kv, &r.root);
        rig_feed_chunks(&r, &s, ids, n, 13, hidden);
        rig_logits(&r, hidden, n, logits);
        double worst = 0, largest = 0;
        for (size_t i = 0; i < (size_t)n * r.n_vocab; i++) {
            double want = logitref_f32(&ref, LOGITREF_FULL, i);
            double d = fabs((double)logits[i] - want);
            worst = d > worst ? d : worst;
            largest = fabs(want) > largest ? fabs(want) : largest;
        }
        double bound = (full ? 1e-4 : 2e-3) * largest;
        printf("%s %s, %s pages: largest error %.2e of logits up to %.1f (bound %.1e)\n", script,
               how, full ? "f32" : "f16", worst, largest, bound);
        if (!(worst <= bound)) {
            fail_msg("%s %s: error %g, expected at most %g", script, how, worst, bound);
        }
        mx_seq_free(&s);
        mx_free(ids);
        mx_free(hidden);
        mx_free(logits);
        rig_close(&r);
    }
    logitref_close(&ref);
    unlink(ref_path);
    snprintf(ref_path, sizeof ref_path, "%s.json", gguf);
    unlink(ref_path);
    unlink(gguf);
}

static const char *python_with_numpy(void)
{
    /* The one in front may be another than Debian's, without Debian's packages. */
    if (system("python3 -c 'import numpy' 2>/dev/null") == 0) {
        return "python3";
    }
    const char *debian = "/usr/bin/python3";
    return system("/usr/bin/python3 -c 'import numpy' 2>/dev/null") == 0 ? debian : NULL;
}

static void agrees_with_reference(void **state)
{
    (void)state;
    const char *shared = mx_test_shared();
    if (shared == NULL) {
        mx_skip_or_fail("the reference scripts are missing");
    }
    const char *python = python_with_numpy();
    if (python == NULL) {
        mx_skip_or_fail("missing: python3 with numpy");
    }
    static const char *const cases[][2] = {
        {"gen_dense.py", "llama none"},    {"gen_dense.py", "llama linear"},
        {"gen_dense.py", "llama yarn"},    {"gen_dense.py", "llama factors"},
        {"gen_dense.py", "qwen2 none"},    {"gen_dense.py", "qwen2 yarn"},
        {"gen_dense.py", "qwen3 none"},    {"gen_dense.py", "qwen3 linear"},
        {"gen_dense.py", "qwen3moe none"}, {"gen_dense.py", "qwen3moe yarn"},
        {"gen_dense.py", "gemma3 none"},   {"gen_dense.py", "gemma3 linear"},
        {"gen_qwen35.py", "dense"},        {"gen_qwen35.py", "moe"},
        {"gen_qwen35.py", "next"},     {"gen_dense.py", "qwen3 yarn"},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        run_case(python, shared, cases[i][0], cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
