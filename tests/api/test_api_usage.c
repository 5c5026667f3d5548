/* SPDX-License-Identifier: MIT
 *
 * The numbers that an answer tells, without a server: sums over several prompts, which tier they say, and
 * log probabilities that JSON has no number for.
 */
#include "api/api_write.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void expect(mx_buf *b, const char *part)
{
    if (b->failed || b->ptr == NULL || strstr(b->ptr, part) == NULL) {
        fail_msg("expected %s in %s", part, b->ptr != NULL ? b->ptr : "(nothing)");
    }
}

/* Three prompts of one request: from RAM, from disk, from nowhere. */
static void counts_are_sums(void **state)
{
    (void)state;
    static const mx_request_stats prompts[] = {
        {.cache_mode = MX_MODE_WARM_PREFIX, .restore = MX_RESTORE_STEM, .n_prompt = 100, .n_ram = 64,
         .n_computed = 36, .n_generated = 5, .queue_us = 1000, .restore_us = 2000,
         .prefill_us = 3000, .decode_us = 4000},
        {.cache_mode = MX_MODE_SSD, .restore = MX_RESTORE_EXACT_PREFIX, .n_prompt = 200, .n_ssd = 128,
         .n_computed = 72, .n_generated = 7, .queue_us = 10000, .restore_us = 20000,
         .prefill_us = 30000, .decode_us = 40000},
        {.cache_mode = MX_MODE_COLD, .n_prompt = 10, .n_computed = 10, .n_generated = 1},
    };
    static const char *const modes[] = {"warm_prefix", "ssd", "ssd"};
    mx_usage u = {.prompt_source = "client"};
    mx_buf b = {0};
    for (size_t i = 0; i < MX_COUNT(prompts); i++) {
        mx_usage_add(&u, &prompts[i], i == 0);
        assert_string_equal(mx_usage_mode(&u), modes[i]);
    }
    mx_write_usage(&b, &u);
    expect(&b, "\"prompt_tokens\":310,\"completion_tokens\":13,\"total_tokens\":323");
    expect(&b, "\"cached_tokens\":192");
    expect(&b, "\"cache_mode\":\"ssd\"");
    expect(&b, "\"ram_tokens\":64,\"ssd_tokens\":128,\"computed_tokens\":118,\"restore_ms\":22.000");
    expect(&b, "\"miss\":null");
    mx_buf_clear(&b);
    mx_write_timings(&b, &u);
    expect(&b, "\"queue_ms\":11.000,\"restore_ms\":22.000,\"cache_n\":192,\"prompt_n\":118");
    expect(&b, "\"prompt_ms\":33.000,\"predicted_n\":13,\"predicted_ms\":44.000");
    mx_buf_free(&b);
}

/* Where keys share their prefixes, what is stored may be another's. */
static void stored_text_can_be_hidden(void **state)
{
    (void)state;
    mx_usage u = {.prompt_source = "client", .hides_stored = true};
    u.total.miss_reason = "diverged_at";
    u.total.miss = (mx_miss_text){.token_index = 9, .stored = {1, 2}, .n_stored = 2};
    mx_buf b = {0};
    mx_write_miss(&b, &u);
    expect(&b, "\"reason\":\"diverged_at\",\"token_index\":9");
    expect(&b, "\"stored\":null");
    mx_buf_free(&b);
}

/* Offsets count characters, and a token that cannot be has a number that JSON has. */
static void log_probabilities_of_a_completion(void **state)
{
    (void)state;
    char pieces[] = "\xC3\xA9\xE2\x82\xACx!";
    mx_token_event events[] = {
        {.sample = {.logprob = -0.5f}, .text_begin = 0, .text_end = 5}, /* two characters */
        {.sample = {.logprob = -INFINITY}, .text_begin = 5, .text_end = 6},
        {.sample = {.logprob = -1}, .text_begin = 6, .text_end = 7},
    };
    mx_output out = {.tokens = events, .n_tokens = MX_COUNT(events),
                     .pieces = {.ptr = pieces, .len = sizeof pieces - 1}};
    mx_logprobs l = {0};
    mx_buf b = {0};
    mx_logprobs_add(&l, false, NULL, &out);
    mx_write_logprobs(&b, &l, false);
    expect(&b, "\"token_logprobs\":[-0.500000,-9999.000000,-1.000000]");
    expect(&b, "\"text_offset\":[0,2,3]");
    mx_buf_free(&b);
    mx_logprobs_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_sums),
        cmocka_unit_test(stored_text_can_be_hidden),
        cmocka_unit_test(log_probabilities_of_a_completion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
