/* SPDX-License-Identifier: MIT
 *
 * The engine's manners: limits, refusals, stop conditions, policies, failures, shutdown. What the
 * answers are is the business of tests/exactness.
 */
#include "../exactness/engine_rig.h"

#include "gguf/gguf.h"
#include "sched/sched_internal.h"

static void limits_are_refused_with_numbers(void **state)
{
    (void)state;
    rig g;
    rig_run(&g, 256);
    mx_engine_stats stats; /* all there from the first moment */
    mx_engine_get_stats(g.engine, &stats);
    assert_true(stats.kv_pages_max > 0 && stats.kv_page_bytes > 0);
    int32_t prompt[300];
    random_prompt(prompt, 300, 1);
    asking a;
    mx_errbuf eb;
    question q = {.prompt = prompt, .n_prompt = 300, .max_tokens = 5};
    assert_int_equal(try_ask(&g, &a, &q, &eb), MX_E_LIMIT);
    assert_non_null(strstr(eb.text, "300 tokens"));
    assert_non_null(strstr(eb.text, "256 tokens"));
    q.n_prompt = 256;
    assert_int_equal(try_ask(&g, &a, &q, &eb), MX_E_LIMIT);
    q.n_prompt = 0;
    assert_int_equal(try_ask(&g, &a, &q, &eb), MX_E_INVALID);
    q.n_prompt = 10;
    prompt[4] = 331;
    assert_int_equal(try_ask(&g, &a, &q, &eb), MX_E_INVALID);
    assert_non_null(strstr(eb.text, "331"));
    prompt[4] = -1;
    assert_int_equal(try_ask(&g, &a, &q, &eb), MX_E_INVALID);
    rig_close(&g);
}

static void context_end_is_a_length_finish(void **state)
{
    (void)state;
    rig g;
    rig_run(&g, 256);
    int32_t prompt[256];
    random_prompt(prompt, 256, 1);
    question q = {.prompt = prompt, .n_prompt = 250, .max_tokens = UINT32_MAX};
    answer got;
    ask_and_wait(&g, &q, &got);
    assert_int_equal(got.finish, MX_FINISH_LENGTH);
    assert_int_equal(got.n_tokens, 6);
    answer_free(&got);
    q.n_prompt = 256;
    q.max_tokens = 0; /* prefill only */
    ask_and_wait(&g, &q, &got);
    assert_int_equal(got.finish, MX_FINISH_LENGTH);
    assert_int_equal(got.n_tokens, 0);
    assert_true(got.stats.has_started);
    answer_free(&got);
    rig_close(&g);
}

static void stop_string_ends_the_answer(void **state)
{
    (void)state;
    rig g;
    rig_run(&g, 512);
    int32_t prompt[20];
    random_prompt(prompt, 20, 1);
    question q = {.prompt = prompt, .n_prompt = 20, .max_tokens = 200, .seed = 4};
    answer whole, cut;
    ask_and_wait(&g, &q, &whole);
    assert_true(whole.text.len > 40);
    /* Nine bytes of the middle that begin with a character, occur there for the first time, and can
     * be a C string. */
    enum { N_STOP = 9 };
    char stop[N_STOP + 1] = {0};
    size_t at = 30;
    for (; at + N_STOP < whole.text.len; at++) {
        const char *here = whole.text.ptr + at;
        memcpy(stop, here, N_STOP);
        if (strlen(stop) == N_STOP && (*here & 0xC0) != 0x80 &&
            memmem(whole.text.ptr, whole.text.len, stop, N_STOP) == here)
        {
            break;
        }
    }
    assert_true(at + N_STOP < whole.text.len);
    q.stop = stop;
    ask_and_wait(&g, &q, &cut);
    assert_int_equal(cut.finish, MX_FINISH_STOP);
    assert_int_equal(cut.text.len, at);
    assert_memory_equal(cut.text.ptr, whole.text.ptr, at);
    answer_free(&whole);
    answer_free(&cut);
    rig_close(&g);
}

/* What was kept back, because a stop string could have begun with it, is said at the end. */
static void the_beginning_of_a_stop_string_is_text(void **state)
{
    (void)state;
    rig g;
    rig_run(&g, 512);
    int32_t prompt[20];
    random_prompt(prompt, 20, 1);
    question q = {.prompt = prompt, .n_prompt = 20, .max_tokens = 40, .seed = 4};
    answer whole, got;
    unsigned char last = 0xFF;
    for (; last > 0x7E; q.max_tokens++) { /* until the answer ends in a character of one byte */
        assert_true(q.max_tokens < 200);
        ask_and_wait(&g, &q, &whole);
        last = (unsigned char)whole.text.ptr[whole.text.len - 1];
        answer_free(&whole);
    }
    q.max_tokens--;
    ask_and_wait(&g, &q, &whole);
    char stop[] = {(char)last, 'n', 'e', 'v', 'e', 'r', '~', '\0'};
    q.stop = stop;
    ask_and_wait(&g, &q, &got);
    assert_int_equal(got.finish, MX_FINISH_LENGTH);
    assert_int_equal(got.text.len, whole.text.len);
    assert_memory_equal(got.text.ptr, whole.text.ptr, whole.text.len);
    assert_int_equal(got.n_tokens, whole.n_tokens);
    answer_free(&whole);
    answer_free(&got);
    rig_close(&g);
}

/* The rig compares ids with the log probability records wherever there are some. */
static void ids_come_without_logprobs(void **state)
{
    (void)state;
    rig g;
    rig_run(&g, 512);
    int32_t prompt[20];
    random_prompt(prompt, 20, 1);
    question q = {.prompt = prompt, .n_prompt = 20, .max_tokens = 90, .seed = 4};
    answer with, without, cut;
    ask_and_wait(&g, &q, &with);
    q.no_logprobs = true;
    ask_and_wait(&g, &q, &without);
    assert_int_equal(without.n_tokens, 0);
    assert_int_equal(with.n_ids, 90);
    assert_int_equal(without.n_ids, 90);
    assert_memory_equal(with.ids, without.ids, 90 * sizeof *with.ids);
    /* Those that a stop string takes away were sampled all the same. */
    char stop[5];
    snprintf(stop, sizeof stop, "%.4s", with.text.ptr + 20);
    q.stop = stop;
    ask_and_wait(&g, &q, &cut);
    assert_int_equal(cut.finish, MX_FINISH_STOP);
    assert_in_range(cut.n_ids, 1, 89);
    assert_memory_equal(with.ids, cut.ids, cut.n_ids * sizeof *with.ids);
    answer_free(&with);
    answer_free(&without);
    answer_free(&cut);
    rig_close(&g);
}

/* A control token has no text, so that only its id is waiting: it counts, too. */
static void unread_ids_count(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(512);
    rig g;
    rig_open(&g, &spec, 1, 0);
    rig_start(&g);
    int32_t prompt[1] = {65};
    mx_request_params p = {.prompt = prompt, .n_prompt = 1, .max_tokens = 9,
                           .sampling = mx_sampling_default()};
    mx_request *r;
    mx_errbuf eb;
    rig_must(mx_request_create(&r, g.engine, &p, &eb), &eb, "create");
    const mx_sample control = {.token = (int32_t)spec.n_vocab - 3}, letter = {.token = 'a'};
    for (int i = 0; i < 10; i++) {
        assert_false(mx_request_emit(r, &control));
    }
    assert_int_equal(mx_request_unread(r), 10 * sizeof(int32_t));
    mx_output o = {0};
    mx_request_read(r, &o);
    assert_int_equal(o.n_ids, 10);
    assert_int_equal(o.text.len, 0);
    assert_int_equal(mx_request_unread(r), 0);
    assert_false(mx_request_emit(r, &letter));
    assert_int_equal(mx_request_unread(r), sizeof(int32_t) + 1);
    mx_request_read(r, &o);
    assert_int_equal(o.n_ids, 1);
    assert_int_equal(o.ids[0], 'a');
    mx_request_read(r, &o);
    assert_int_equal(o.n_ids, 0);
    mx_output_free(&o);
    mx_request_unref(r);
    rig_close(&g);
}

static void policies_store_what_they_say(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(512);
    rig g;
    rig_open(&g, &spec, 1, 0);
    g.cfg.cold_mode = MX_COLD_ON;
    rig_start(&g);
    int32_t prompt[200];
    random_prompt(prompt, 200, 1);
    question q = {.prompt = prompt, .n_prompt = 200, .max_tokens = 5};
    answer got;
    q.cache = MX_CACHE_NO_STORE;
    ask_and_wait(&g, &q, &got);
    answer_free(&got);
    q.cache = MX_CACHE_OFF;
    ask_and_wait(&g, &q, &got);
    assert_string_equal(got.stats.miss_reason, "cache_off");
    answer_free(&got);
    q.cache = MX_CACHE_USE;
    ask_and_wait(&g, &q, &got);
    assert_int_equal(got.stats.cache_mode, MX_MODE_COLD); /* neither of the two left anything */
    assert_string_equal(got.stats.miss_reason, "no_entry");
    answer_free(&got);
    q.cache = MX_CACHE_NO_STORE;
    ask_and_wait(&g, &q, &got);
    assert_int_equal(got.stats.cache_mode, MX_MODE_WARM_PREFIX); /* but it reads */
    answer_free(&got);
    prompt[130] ^= 1;
    q.cache = MX_CACHE_USE;
    ask_and_wait(&g, &q, &got);
    assert_int_equal(got.stats.n_ram, 130);
    assert_int_equal(got.stats.restore, MX_RESTORE_STEM);
    assert_true(got.stats.diverged);
    assert_int_equal(got.stats.diverged_at, 130);
    assert_string_equal(got.stats.miss_reason, "diverged_at");
    answer_free(&got);
    rig_close(&g);
}

/* Two API keys never share a prefix, in neither tier. */
static void salts_isolate(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(512);
    rig g;
    rig_open(&g, &spec, 1, 0);
    g.cfg.cold_mode = MX_COLD_ON;
    rig_start(&g);
    int32_t prompt[200];
    random_prompt(prompt, 200, 1);
    mx_hash256 salts[2] = {{{1}}, {{2}}};
    for (int round = 0; round < 4; round++) {
        mx_errbuf eb;
        asking a = {.waiter = take_waiter()};
        mx_request_params p = {
            .prompt = prompt,
            .n_prompt = 200,
            .max_tokens = 3,
            .sampling = mx_sampling_default(),
            .salt = &salts[round % 2],
            .wake = on_wake,
            .wake_arg = a.waiter,
        };
        rig_must(mx_request_create(&a.request, g.engine, &p, &eb), &eb, "create");
        rig_must(mx_engine_submit(g.engine, a.request, &eb), &eb, "submit");
        answer got;
        await(&a, &got);
        assert_int_equal(got.stats.cache_mode, round < 2 ? MX_MODE_COLD : MX_MODE_WARM_PREFIX);
        answer_free(&got);
    }
    rig_close(&g);
}

/* A NaN in the embedding of token 200: requests with it fail, others in the same batch do not. */
static void non_finite_ends_one_request(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(512);
    rig g;
    rig_open(&g, &spec, 2, 0);
    mx_model_destroy(g.model);
    mx_errbuf eb = {{0}};
    mx_gguf *file;
    rig_must(mx_gguf_open(&file, g.model_path, &eb), &eb, "gguf");
    const mx_gguf_tensor *t = mx_gguf_find_tensor(file, "token_embd.weight");
    long offset = (long)t->offset + 200 * (long)spec.n_embd * 4;
    mx_gguf_close(file);
    FILE *f = fopen(g.model_path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, offset, SEEK_SET), 0);
    assert_int_equal(fwrite("\0\0\xc0\x7f", 1, 4, f), 4);
    assert_int_equal(fclose(f), 0);
    mx_model_options opt = {.path = g.model_path, .max_batch_rows = 528, .max_logit_rows = 16,
                            .cpu_level = mx_cpu_best()};
    rig_must(mx_model_load(&g.model, &opt, g.pool, &eb), &eb, "model");
    rig_start(&g);
    int32_t good[100], bad[100];
    for (int i = 0; i < 100; i++) {
        good[i] = i;
        bad[i] = i == 90 ? 200 : i + 1;
    }
    question qg = {.prompt = good, .n_prompt = 100, .max_tokens = 10};
    question qb = {.prompt = bad, .n_prompt = 100, .max_tokens = 10};
    asking ag, ab;
    ask(&g, &ab, &qb);
    ask(&g, &ag, &qg);
    answer got;
    await(&ab, &got);
    assert_int_equal(got.finish, MX_FINISH_ERROR);
    assert_int_equal(got.error, MX_E_NONFINITE);
    assert_true(strlen(got.error_text) > 0);
    answer_free(&got);
    await(&ag, &got);
    assert_int_not_equal(got.finish, MX_FINISH_ERROR);
    answer_free(&got);
    ask_and_wait(&g, &qb, &got); /* nothing of it was kept */
    assert_int_equal(got.stats.n_ram, 0);
    answer_free(&got);
    rig_close(&g);
}

static void full_queue_is_refused(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(512);
    rig g;
    rig_open(&g, &spec, 1, 0);
    g.cfg.max_running = 1;
    g.cfg.max_queued = 2;
    rig_start(&g);
    int32_t prompt[50];
    random_prompt(prompt, 50, 1);
    question q = {.prompt = prompt, .n_prompt = 50, .max_tokens = 400};
    asking a[8];
    size_t n = 0;
    mx_errbuf eb;
    mx_err err = MX_OK;
    while (n < 8 && err == MX_OK) {
        err = try_ask(&g, &a[n], &q, &eb);
        n += err == MX_OK;
    }
    assert_int_equal(err, MX_E_FULL);
    assert_non_null(strstr(eb.text, "--max-queued"));
    assert_true(n >= 2 && n < 8);
    for (size_t i = 0; i < n; i++) {
        await_end(&a[i], MX_FINISH_LENGTH);
    }
    rig_close(&g);
}

static void stopping_ends_everything(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(512);
    for (int drain = 0; drain < 2; drain++) {
        rig g;
        rig_open(&g, &spec, 2, 0);
        g.cfg.cold_mode = MX_COLD_ON;
        g.cfg.max_running = 2;
        rig_start(&g);
        int32_t prompt[100];
        random_prompt(prompt, 100, 1);
        question q = {.prompt = prompt, .n_prompt = 100, .max_tokens = 300};
        asking a[4];
        for (size_t i = 0; i < 4; i++) {
            ask(&g, &a[i], &q);
        }
        usleep(10000);
        mx_engine_stop(g.engine, drain ? 60 * 1000000 : 0, 10 * 1000000);
        for (size_t i = 0; i < 4; i++) {
            mx_output o = {0};
            mx_request_cancel(a[i].request); /* too late, and harmless */
            mx_request_read(a[i].request, &o);
            assert_int_not_equal(o.finish, MX_FINISH_NONE);
            if (drain) {
                assert_int_equal(o.finish, MX_FINISH_LENGTH);
            }
            mx_output_free(&o);
            mx_request_unref(a[i].request);
        }
        mx_engine_destroy(g.engine);
        g.engine = NULL;
        rig_close(&g);
    }
}

typedef struct glance {
    const mx_request *r;
    mx_run_state state;
    uint64_t paused_since_us;
} glance;

static void look_at_run(void *arg, const mx_engine_view *view)
{
    (void)view;
    glance *l = arg;
    l->state = l->r->state;
    l->paused_since_us = l->r->paused_since_us;
}

/* A run is paused because nobody reads what it wrote, and then has to give its pages to an older one:
 * however long it waits in the line, that is not its reader's fault, who would be taken for gone. */
static void waiting_in_line_is_no_pause(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(2048);
    rig g;
    rig_open(&g, &spec, 1, 28);
    rig_start(&g);
    int32_t prompt[10];
    random_prompt(prompt, 10, 1);
    question q = {.prompt = prompt, .n_prompt = 10, .max_tokens = 1600, .no_logprobs = true};
    question unread = {.prompt = prompt, .n_prompt = 9, .max_tokens = 1600, .seed = 3};
    asking a, b;
    ask(&g, &a, &q);
    ask(&g, &b, &unread);
    glance l = {.r = b.request};
    bool was_paused = false;
    uint64_t until = mx_now_us() + 60 * 1000000;
    do {
        assert_true(mx_now_us() < until);
        usleep(500);
        assert_int_equal(mx_engine_call(g.engine, look_at_run, &l), MX_OK);
        was_paused = was_paused || l.paused_since_us != 0;
    } while (!was_paused || l.state != MX_RUN_QUEUED);
    assert_int_equal(l.paused_since_us, 0);
    await_end(&a, MX_FINISH_LENGTH);
    await_end(&b, MX_FINISH_LENGTH);
    rig_close(&g);
}

/* What a request says of itself, the engine adds up. */
static void numbers_add_up(void **state)
{
    (void)state;
    enum { N = 100, N_ANSWER = 20 };
    rig g;
    rig_run(&g, 256);
    int32_t prompt[N];
    random_prompt(prompt, N, 3);
    question q = {.prompt = prompt, .n_prompt = N, .max_tokens = N_ANSWER};
    answer cold, warm;
    ask_and_wait(&g, &q, &cold);
    ask_and_wait(&g, &q, &warm);
    assert_true(cold.stats.prefill_us > 0 && cold.stats.decode_us > 0);
    assert_int_equal(cold.stats.n_computed, N);
    assert_int_equal(warm.stats.cache_mode, MX_MODE_WARM_PREFIX);
    assert_int_equal(warm.stats.n_ram + warm.stats.n_computed, N);
    mx_engine_stats e;
    RIG_WAIT_STATS(&g, &e, e.n_generated_tokens == 2 * N_ANSWER);
    assert_int_equal(e.n_requests, 2);
    assert_int_equal(e.n_generated_tokens, 2 * N_ANSWER);
    assert_int_equal(e.n_prompt_tokens, 2 * N);
    assert_int_equal(e.n_ram_tokens, warm.stats.n_ram);
    assert_int_equal(e.n_computed_tokens, N + warm.stats.n_computed);
    assert_int_equal(e.prefill_us, cold.stats.prefill_us + warm.stats.prefill_us);
    assert_int_equal(e.restore_us[MX_MODE_COLD], cold.stats.restore_us);
    assert_int_equal(e.restore_us[MX_MODE_WARM_PREFIX], warm.stats.restore_us);
    answer_free(&cold);
    answer_free(&warm);
    rig_close(&g);
}

typedef struct latecomers {
    rig *g;
    question q;
    asking a[64];
    size_t n;
    mx_err err; /* what the last one was told */
    pthread_t stopper;
} latecomers;

static void *stop_engine(void *arg)
{
    latecomers *l = arg;
    mx_engine_stop(l->g->engine, 0, 10 * 1000000);
    return NULL;
}

/* On the engine's thread, which has taken what had come and will look next whether it is to end. */
static void come_until_stopped(void *arg, const mx_engine_view *view)
{
    (void)view;
    latecomers *l = arg;
    mx_errbuf eb;
    if (try_ask(l->g, &l->a[l->n++], &l->q, &eb) != MX_OK ||
        pthread_create(&l->stopper, NULL, stop_engine, l) != 0)
    {
        abort();
    }
    while (l->n < MX_COUNT(l->a)) {
        l->err = try_ask(l->g, &l->a[l->n], &l->q, &eb);
        if (l->err != MX_OK) {
            return;
        }
        l->n++;
        usleep(1000);
    }
}

/* On the engine's thread, which takes nobody out of the line meanwhile. */
static void come_until_full(void *arg, const mx_engine_view *view)
{
    (void)view;
    latecomers *l = arg;
    mx_errbuf eb;
    while (l->n < MX_COUNT(l->a) && (l->err = try_ask(l->g, &l->a[l->n], &l->q, &eb)) == MX_OK) {
        l->n++;
    }
}

static void line_is_as_long_as_said(void **state)
{
    (void)state;
    mx_tiny_spec spec = rig_spec(256);
    rig g;
    rig_open(&g, &spec, 1, 0);
    g.cfg.max_queued = 3;
    rig_start(&g);
    int32_t prompt[10];
    random_prompt(prompt, 10, 1);
    latecomers l = {.g = &g, .q = {.prompt = prompt, .n_prompt = 10, .max_tokens = 5}};
    assert_int_equal(mx_engine_call(g.engine, come_until_full, &l), MX_OK);
    assert_int_equal(l.err, MX_E_FULL);
    assert_int_equal(l.n, 3);
    for (size_t i = 0; i < l.n; i++) {
        await_end(&l.a[i], MX_FINISH_LENGTH);
    }
    rig_close(&g);
}

/* Whom the engine has let in is told the end, also who came at the last moment. */
static void stopping_forgets_nobody(void **state)
{
    (void)state;
    rig g;
    rig_run(&g, 256);
    int32_t prompt[10];
    random_prompt(prompt, 10, 1);
    latecomers l = {.g = &g, .q = {.prompt = prompt, .n_prompt = 10, .max_tokens = 5}};
    assert_int_equal(mx_engine_call(g.engine, come_until_stopped, &l), MX_OK);
    pthread_join(l.stopper, NULL);
    assert_int_equal(l.err, MX_E_CANCELLED);
    for (size_t i = 0; i < l.n; i++) {
        mx_output o = {0};
        mx_request_read(l.a[i].request, &o);
        assert_int_equal(o.finish, MX_FINISH_CANCELLED);
        mx_output_free(&o);
        mx_request_unref(l.a[i].request);
        put_waiter(l.a[i].waiter);
    }
    mx_engine_destroy(g.engine);
    g.engine = NULL;
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_refused_with_numbers),
        cmocka_unit_test(context_end_is_a_length_finish),
        cmocka_unit_test(stop_string_ends_the_answer),
        cmocka_unit_test(the_beginning_of_a_stop_string_is_text),
        cmocka_unit_test(ids_come_without_logprobs),
        cmocka_unit_test(unread_ids_count),
        cmocka_unit_test(policies_store_what_they_say),
        cmocka_unit_test(salts_isolate),
        cmocka_unit_test(non_finite_ends_one_request),
        cmocka_unit_test(full_queue_is_refused),
        cmocka_unit_test(stopping_ends_everything),
        cmocka_unit_test(numbers_add_up),
        cmocka_unit_test(line_is_as_long_as_said),
        cmocka_unit_test(stopping_forgets_nobody),
        cmocka_unit_test(waiting_in_line_is_no_pause),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
