/* SPDX-License-Identifier: MIT
 *
 * Pages of models with windowed layers on disk: whole, or without the rows that nobody sees.
 */
#include "cold_help.h"

#include "cold/cold_format.h"

/* One layer that sees everything, two that see 70 tokens. */
static const mx_kv_shape shape = {.n_layers = 3, .n_kv_heads = 1, .head_dim = 16,
                                  .type = MX_KV_F16, .n_local = 2, .window = 70};
enum { PAYLOAD = 4096, LOCAL = 8192, N_PAGES = 4, N_TOKENS = 3 * MX_PAGE_TOKENS + 20 };

typedef struct setup {
    char dir[256];
    mx_cold *c;
    mx_hash256 root, ids[N_PAGES];
    int32_t tokens[N_TOKENS];
    uint8_t payload[N_PAGES][PAYLOAD], local[N_PAGES][LOCAL];
} setup;

static mx_cold *open_tier(setup *s, mx_cold_compress compress)
{
    mx_cold_config cfg = help_config(s->dir, &s->root);
    cfg.compress = compress;
    cfg.tuning.delete_age_s = -1;
    mx_cold *c;
    assert_int_equal(mx_cold_open(&c, &shape, &cfg, NULL), MX_OK);
    return c;
}

static void make(setup *s, mx_cold_compress compress)
{
    *s = (setup){.root = {{9}}};
    help_make_folder(s->dir);
    uint64_t seed = 3;
    for (size_t i = 0; i < N_TOKENS; i++) {
        s->tokens[i] = (int32_t)(help_random(&seed) % 1000);
    }
    for (size_t p = 0; p < N_PAGES; p++) {
        size_t n = mx_min_size(N_TOKENS - p * MX_PAGE_TOKENS, MX_PAGE_TOKENS);
        s->ids[p] = mx_page_identity(&s->root, p > 0 ? &s->ids[p - 1] : &s->root,
                                     s->tokens + p * MX_PAGE_TOKENS, (uint32_t)n);
        for (size_t i = 0; i < PAYLOAD; i++) {
            s->payload[p][i] = (uint8_t)(help_random(&seed) & 0x33);
        }
        for (size_t i = 0; i < LOCAL; i++) {
            s->local[p][i] = (uint8_t)(help_random(&seed) & 0x33);
        }
    }
    s->c = open_tier(s, compress);
}

static void end(setup *s)
{
    mx_cold_close(s->c);
    help_remove_tree(s->dir);
}

/* The first n rows of page p. */
static mx_err store_rows(setup *s, size_t p, uint32_t n, bool is_whole, mx_hash256 *id)
{
    const mx_hash256 *parent = p > 0 ? &s->ids[p - 1] : &s->root;
    *id = mx_page_identity(&s->root, parent, s->tokens + p * MX_PAGE_TOKENS, n);
    mx_cold_job job = {.kind = MX_COLD_WRITE_PAGE, .root = s->root, .first_page = p,
                       .parent_id = *parent, .tokens = s->tokens + p * MX_PAGE_TOKENS,
                       .n_tokens = n, .payload = s->payload[p],
                       .local = is_whole ? s->local[p] : NULL, .page_id = *id};
    return help_run(s->c, &job);
}

static mx_err store(setup *s, size_t p, bool is_whole)
{
    mx_hash256 id;
    size_t n = mx_min_size(N_TOKENS - p * MX_PAGE_TOKENS, MX_PAGE_TOKENS);
    return store_rows(s, p, (uint32_t)n, is_whole, &id);
}

static mx_err store_session(setup *s, const mx_hash256 *ids, size_t n_pages, size_t n_tokens)
{
    mx_cold_job job = {.kind = MX_COLD_WRITE_SESSION, .root = s->root, .parent_id = s->root,
                       .page_ids = ids, .n_pages = n_pages, .n_session_tokens = n_tokens,
                       .entry_kind = 1, .session_id = ids[n_pages - 1]};
    return help_run(s->c, &job);
}

/* Probes and reads; the local rows of pages from first_local on are wanted. Everything that came is
 * compared. How many tokens the probe promised; *n_whole: pages that came with local rows. */
static size_t fetch(setup *s, size_t first_local, size_t *n_whole)
{
    static uint8_t payloads[N_PAGES][PAYLOAD], locals[N_PAGES][LOCAL];
    uint8_t *payload_at[N_PAGES], *local_at[N_PAGES];
    mx_cold_job job = {.kind = MX_COLD_PROBE, .root = s->root, .parent_id = s->root,
                       .tokens = s->tokens, .n_tokens = N_TOKENS};
    assert_int_equal(help_run(s->c, &job), MX_OK);
    size_t n = job.n_full * MX_PAGE_TOKENS + job.tail_rows;
    for (size_t i = 0; i < N_PAGES; i++) {
        payload_at[i] = payloads[i];
        local_at[i] = i >= first_local ? locals[i] : NULL;
    }
    memset(payloads, 0, sizeof payloads);
    memset(locals, 0, sizeof locals);
    *n_whole = 0;
    if (n == 0) {
        return 0;
    }
    job.kind = MX_COLD_READ;
    job.payloads = payload_at;
    job.locals = local_at;
    assert_int_equal(help_run(s->c, &job), MX_OK);
    assert_int_equal(job.n_read, job.n_full + (job.tail_rows > 0));
    for (size_t i = 0; i < job.n_full; i++) {
        assert_memory_equal(payloads[i], s->payload[i], PAYLOAD);
        if (local_at[i] != NULL) {
            assert_memory_equal(locals[i], s->local[i], LOCAL);
        }
        *n_whole += local_at[i] != NULL;
    }
    if (job.tail_rows > 0) { /* of a V tile the rows stand one behind the other */
        size_t v = MX_PAGE_TOKENS * shape.head_dim * 2;
        assert_memory_equal(payloads[job.n_full] + v, s->payload[job.n_full] + v,
                            job.tail_rows * shape.head_dim * 2);
        assert_memory_equal(locals[job.n_full] + v, s->local[job.n_full] + v,
                            job.tail_rows * shape.head_dim * 2);
    }
    return n;
}

static void add_size(const char *path, void *arg)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    *(size_t *)arg += (size_t)st.st_size;
}

static void check_whole(mx_cold_compress compress)
{
    setup s;
    make(&s, compress);
    for (size_t p = 0; p < N_PAGES; p++) {
        assert_int_equal(store(&s, p, true), MX_OK);
        assert_true(mx_cold_has_whole_page(s.c, &s.ids[p]));
    }
    size_t n_whole;
    assert_int_equal(fetch(&s, 0, &n_whole), N_TOKENS);
    assert_int_equal(n_whole, 3);
    assert_int_equal(fetch(&s, 2, &n_whole), N_TOKENS); /* what is not wanted is not filled */
    assert_int_equal(n_whole, 1);
    end(&s);
}

static void test_whole(void **state)
{
    (void)state;
    check_whole(MX_COLD_COMPRESS_OFF);
    check_whole(MX_COLD_COMPRESS_ZSTD);
}

/* Page 0 lacks rows that nobody sees behind page 2, but they are needed for what ends in page 1. */
static void check_lacking(mx_cold_compress compress)
{
    setup s;
    size_t n_whole, n_bytes = 0;
    make(&s, compress);
    assert_int_equal(store(&s, 0, false), MX_OK);
    if (compress == MX_COLD_COMPRESS_OFF) {
        help_each_file(s.dir, ".page", add_size, &n_bytes);
        assert_int_equal(n_bytes, MX_DISK_PAYLOAD_AT + PAYLOAD);
    }
    assert_true(mx_cold_has_page(s.c, &s.ids[0]) && !mx_cold_has_whole_page(s.c, &s.ids[0]));
    assert_int_equal(fetch(&s, 0, &n_whole), 0);
    assert_int_equal(store(&s, 1, true), MX_OK);
    assert_int_equal(fetch(&s, 0, &n_whole), 0); /* the token at 128 sees 59 */
    assert_int_equal(store(&s, 2, true), MX_OK);
    assert_int_equal(fetch(&s, 0, &n_whole), 3 * MX_PAGE_TOKENS);
    assert_int_equal(n_whole, 2);
    assert_int_equal(store(&s, 3, false), MX_E_INVALID); /* full pages only */
    assert_int_equal(store(&s, 3, true), MX_OK);
    /* Another process knows nothing of it, and finds the same. */
    mx_cold_close(s.c);
    s.c = open_tier(&s, compress);
    assert_int_equal(fetch(&s, 0, &n_whole), N_TOKENS);
    assert_int_equal(n_whole, 2);
    /* What lacks something gives way to what does not, and not the other way round. */
    assert_int_equal(store(&s, 0, true), MX_OK);
    assert_int_equal(fetch(&s, 0, &n_whole), N_TOKENS);
    assert_int_equal(n_whole, 3);
    assert_int_equal(store(&s, 0, false), MX_OK);
    assert_int_equal(fetch(&s, 0, &n_whole), N_TOKENS);
    assert_int_equal(n_whole, 3);
    mx_cold_stats stats;
    mx_cold_get_stats(s.c, &stats);
    assert_int_equal(stats.quarantined, 0);
    end(&s);
}

static void test_lacking(void **state)
{
    (void)state;
    check_lacking(MX_COLD_COMPRESS_OFF);
    check_lacking(MX_COLD_COMPRESS_ZSTD);
}

/* Prompts that agree in the first n tokens can be resumed behind the first n_want, whose rows some file has
 * for all layers, whichever file has more of the others. */
static void check_place(setup *s, size_t n, size_t n_want)
{
    int32_t tokens[N_TOKENS];
    memcpy(tokens, s->tokens, sizeof tokens);
    for (size_t i = n; i < N_TOKENS; i++) {
        tokens[i]++;
    }
    mx_cold_job job = {.kind = MX_COLD_PROBE, .root = s->root, .parent_id = s->root,
                       .tokens = tokens, .n_tokens = N_TOKENS};
    assert_int_equal(help_run(s->c, &job), MX_OK);
    assert_int_equal(job.n_full * MX_PAGE_TOKENS + job.tail_rows, n_want);
    assert_int_equal(job.n_shared, n);
}

static void test_lacking_sibling(void **state)
{
    (void)state;
    enum { N_TAIL = 44, N_END = MX_PAGE_TOKENS + N_TAIL };
    setup s;
    size_t n_whole;
    make(&s, MX_COLD_COMPRESS_OFF);
    mx_hash256 tail[2];
    assert_int_equal(store(&s, 0, true), MX_OK);
    assert_int_equal(store_rows(&s, 1, N_TAIL, true, &tail[1]), MX_OK);
    tail[0] = s.ids[0];
    assert_int_equal(store_session(&s, tail, 2, N_END), MX_OK);
    assert_int_equal(store(&s, 1, false), MX_OK);
    assert_int_equal(store_session(&s, s.ids, 2, 2 * MX_PAGE_TOKENS), MX_OK);
    for (int reopen = 0; reopen < 2; reopen++) {
        check_place(&s, N_END, N_END);
        check_place(&s, N_END + 5, N_END);
        check_place(&s, N_END - 5, N_END - 5);
        check_place(&s, 2 * MX_PAGE_TOKENS, N_END);
        assert_int_equal(fetch(&s, 0, &n_whole), N_END);
        /* So it is not superfluous either. */
        assert_true(mx_cold_sweep(s.c, 20000000));
        assert_true(mx_cold_sweep(s.c, 20000000));
        assert_int_equal(help_count(s.dir, ".page"), 3);
        mx_cold_close(s.c);
        s.c = open_tier(&s, MX_COLD_COMPRESS_OFF);
    }
    assert_int_equal(store(&s, 1, true), MX_OK);
    check_place(&s, 2 * MX_PAGE_TOKENS, 2 * MX_PAGE_TOKENS);
    check_place(&s, N_END + 5, N_END + 5);
    assert_true(mx_cold_sweep(s.c, 20000000));
    assert_int_equal(help_count(s.dir, ".page"), 2);
    check_place(&s, N_END, N_END);
    end(&s);
}

/* The look-up of a prompt that goes on far behind a page sees its name and not what it lacks. */
static void test_lacking_sibling_of_another_process(void **state)
{
    (void)state;
    enum { N_TAIL = 44 };
    setup s;
    make(&s, MX_COLD_COMPRESS_OFF);
    mx_hash256 tail;
    assert_int_equal(store_rows(&s, 0, N_TAIL, true, &tail), MX_OK);
    assert_int_equal(store_session(&s, &tail, 1, N_TAIL), MX_OK);
    assert_true(mx_cold_sweep(s.c, 20000000));
    mx_cold *ours = s.c;
    s.c = open_tier(&s, MX_COLD_COMPRESS_OFF);
    for (size_t p = 0; p < N_PAGES; p++) {
        assert_int_equal(store(&s, p, p > 0), MX_OK);
    }
    assert_int_equal(store_session(&s, s.ids, N_PAGES, N_TOKENS), MX_OK);
    mx_cold_close(s.c);
    s.c = ours;
    check_place(&s, N_TOKENS, N_TOKENS);
    assert_true(mx_cold_has_whole_page(s.c, &s.ids[0])); /* as far as was seen */
    assert_true(mx_cold_sweep(s.c, 20000000));
    assert_int_equal(help_count(s.dir, ".page"), N_PAGES + 1);
    check_place(&s, N_TAIL, N_TAIL);
    end(&s);
}

/* What the log calls durable the next process finds, to the token. */
static void test_durable_says_how_far(void **state)
{
    static const struct {
        unsigned lacking; /* bit p = page p */
        size_t resumed;
    } cases[] = {{0, N_TOKENS}, {3, N_TOKENS}, {4, 128}, {6, 64}, {7, 0}};
    (void)state;
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        setup s;
        char text[4000], want[100] = "states=0\n";
        size_t n_whole;
        make(&s, MX_COLD_COMPRESS_OFF);
        for (size_t p = 0; p < N_PAGES; p++) {
            assert_int_equal(store(&s, p, (cases[i].lacking >> p & 1) == 0), MX_OK);
        }
        const help_log log = help_log_begin();
        assert_int_equal(store_session(&s, s.ids, N_PAGES, N_TOKENS), MX_OK);
        help_log_end(&log, text, sizeof text);
        if (cases[i].resumed < N_TOKENS) {
            snprintf(want, sizeof want, "states=0 resumed_tokens=%zu\n", cases[i].resumed);
        }
        if (strstr(text, want) == NULL) {
            print_message("without rows of pages %x: expected %s, got: %s", cases[i].lacking, want, text);
            fail();
        }
        mx_cold_close(s.c);
        s.c = open_tier(&s, MX_COLD_COMPRESS_OFF);
        assert_int_equal(fetch(&s, 0, &n_whole), cases[i].resumed);
        end(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_lacking),
        cmocka_unit_test(test_lacking_sibling),
        cmocka_unit_test(test_lacking_sibling_of_another_process),
        cmocka_unit_test(test_durable_says_how_far),
    };
    return cmocka_run_group_tests_name("cold, windows", tests, NULL, NULL);
}
