/* SPDX-License-Identifier: MIT
 *
 * Sixteen times the text costs about sixteen times the work, whatever the text: with every vocabulary,
 * 18 texts that some tokeniser has needed their length squared for. Work is counted in instructions of
 * this thread, which the load of the machine does not change; where the kernel does not count them,
 * it is the thread's processor time, the less of two. A factor of 256 would be quadratic; the limit
 * stands at 48, for the caches' sake and because the tree over a long word grows with its logarithm.
 */
#include "base/buf.h"
#include "test_env.h"

#include <linux/perf_event.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>

#include <cmocka.h>

#include "open_tokenizer.h"

enum { SMALL = 16 << 10, TIMES = 16, MOST = 48 };

static int counter = -1;
static const char *vectors_dir; /* NULL = absent */

static int setup(void **state)
{
    (void)state;
    static char dir[4096];
    struct perf_event_attr a = {.type = PERF_TYPE_HARDWARE, .size = sizeof a,
                                .config = PERF_COUNT_HW_INSTRUCTIONS, .exclude_kernel = 1,
                                .exclude_hv = 1};
    counter = (int)syscall(SYS_perf_event_open, &a, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
    print_message("work is counted in %s\n", counter >= 0 ? "instructions" : "processor time");
    const char *shared = mx_test_shared();
    if (shared != NULL) {
        snprintf(dir, sizeof dir, "%s/vectors/tokens", shared);
        vectors_dir = dir;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return counter >= 0 ? close(counter) : 0;
}

static uint64_t work_so_far(void)
{
    uint64_t n;
    if (counter >= 0) {
        assert_int_equal(read(counter, &n, sizeof n), sizeof n);
        return n;
    }
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static mx_buf repeated(const char *unit, size_t bytes)
{
    mx_buf b = {0};
    while (b.len < bytes) {
        mx_buf_str(&b, unit);
    }
    assert_false(b.failed);
    return b;
}

/* Letters in no order: one word whose merges are everywhere. */
static mx_buf noise(size_t bytes)
{
    mx_buf b = {0};
    uint32_t x = 1;
    while (b.len < bytes) {
        x = x * 1664525u + 1013904223u;
        mx_buf_char(&b, (char)('a' + (x >> 24) % 26));
    }
    assert_false(b.failed);
    return b;
}

static uint64_t work_of(const mx_tokenizer *t, const mx_buf *text)
{
    const mx_span all = {0, text->len}; /* markup, so that control tokens are looked for, too */
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 2; i++) {
        mx_tokens out = {0};
        uint64_t before = work_so_far();
        assert_int_equal(mx_tokenizer_encode(t, text->ptr, text->len, &all, 1, false, &out), MX_OK);
        uint64_t work = work_so_far() - before;
        assert_true(out.n > 0);
        mx_tokens_free(&out);
        least = work < least ? work : least;
    }
    return least;
}

static void check_growth(const mx_tokenizer *t, const char *unit)
{
    mx_buf few = unit != NULL ? repeated(unit, SMALL) : noise(SMALL);
    mx_buf many = unit != NULL ? repeated(unit, (size_t)SMALL * TIMES) : noise((size_t)SMALL * TIMES);
    uint64_t less = work_of(t, &few), more = work_of(t, &many);
    if (more > less * MOST) {
        fail_msg("\"%s\" repeated: %d times the text took %.1f times the work",
                 unit != NULL ? unit : "(letters)", TIMES, (double)more / (double)less);
    }
    mx_buf_free(&few);
    mx_buf_free(&many);
}

static void work_grows_with_the_text(void **state)
{
    static const char *const units[] = {
        "a", " ", "\n", "7", "!", "\xCC\x81", "\xE4\xB8\xAD", "<", "<|im_end|>", "\xFF", " a", "A", "'",
        "e\xCC\x81", "\r\n", " \n", "\t", NULL,
    };
    const char *name = *state;
    char path[8192];
    if (strcmp(name, "smollm2") == 0) {
        const char *model = mx_test_model();
        if (model == NULL) {
            mx_skip_no_model();
        }
        snprintf(path, sizeof path, "%s", model);
    } else if (vectors_dir == NULL) {
        mx_skip_or_fail("the vocabularies are missing");
    } else {
        snprintf(path, sizeof path, "%s/vocab/ggml-vocab-%s.gguf", vectors_dir, name);
    }
    mx_tokenizer *t = open_tokenizer(path);
    for (size_t i = 0; i < MX_COUNT(units); i++) {
        check_growth(t, units[i]);
    }
    mx_tokenizer_destroy(t);
}

int main(void)
{
#define VOCABULARY(name) {name, work_grows_with_the_text, NULL, NULL, (void *)(uintptr_t)name}
    const struct CMUnitTest tests[] = {
        VOCABULARY("smollm2"),   VOCABULARY("gpt-2"),          VOCABULARY("qwen2"),
        VOCABULARY("qwen35"),    VOCABULARY("llama-bpe"),      VOCABULARY("deepseek-coder"),
        VOCABULARY("llama-spm"),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
