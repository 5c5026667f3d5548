/* SPDX-License-Identifier: MIT
 *
 * Every prefix is found: random histories of requests, forks, edits, aborts, evictions, lost files
 * and restarts over both tiers, against a model that keeps the token list of all that was ever fed.
 *
 * The model knows nothing of trees, look-ups or schedules. Before each request both tiers are
 * listed: the bank is walked, the files are read. What is stored is compared with the prompt token
 * by token; how far the two tiers lead together (with a recurrent state: to the greatest boundary
 * on that way) is how much has to be reused, exactly, and never more than some earlier text shares
 * with the prompt. The answer is compared, log probabilities as raw bytes, with that of a run that
 * uses no cache. And after each step, everything in the model is still in the tier that it was
 * promised to, unless this step evicted something or took files away.
 *
 * Aborts are timed, so a seed does not give the same history twice; a failure says its seed, and
 * MTPLX_HISTORY_SEED runs that one in all configurations. MTPLX_LONG walks many more.
 */
#include "history_rig.h"
#include "tiny_models.h"

/* ---- asking ----------------------------------------------------------------------------------- */

typedef struct prompt {
    int root;
    size_t n;
    int32_t t[MAX_PROMPT];
    uint32_t marks[MAX_MARKS];
    question q;
} prompt;

/* Where to leave a text: its end, shortly before, a border of pages, anywhere. */
static size_t cut_of(world *w, const text *x)
{
    size_t at = x->n + x->has_last;
    switch (pick(w, 6)) {
    case 0:
        at -= mx_min_size(at, pick(w, 12));
        break;
    case 1:
        at = pick(w, (uint32_t)(at / MX_PAGE_TOKENS + 1)) * MX_PAGE_TOKENS + pick(w, 3);
        at -= mx_min_size(at, 1);
        break;
    case 2:
        at = pick(w, (uint32_t)at + 1);
        break;
    default:
        break;
    }
    return mx_min_size(mx_min_size(at, x->n + x->has_last), MAX_PROMPT);
}

/* The beginning of some text, most often a recent one, and something of its own. */
static void make_prompt(world *w, prompt *p, const text *like)
{
    *p = (prompt){.root = pick(w, 4) == 0};
    if (like == NULL && w->n_texts > 0 && pick(w, 20) > 0) {
        size_t back = pick(w, 2) ? pick(w, 4) : pick(w, (uint32_t)w->n_texts);
        like = &w->texts[w->n_texts - 1 - mx_min_size(back, w->n_texts - 1)];
    }
    if (like != NULL) {
        p->root = pick(w, 16) ? like->root : p->root;
        p->n = cut_of(w, like);
        memcpy(p->t, like->t, p->n * sizeof *p->t);
    }
    static const uint32_t most_new[] = {2, 6, 40, 120, 300};
    size_t n_new = pick(w, most_new[pick(w, MX_COUNT(most_new))]);
    size_t n = mx_min_size(mx_max_size(p->n + n_new, 1), MAX_PROMPT);
    uint32_t n_letters = pick(w, 2) ? 3 : 250; /* few: siblings that share much */
    while (p->n < n) {
        p->t[p->n++] = (int32_t)pick(w, n_letters);
    }
    p->q = (question){.prompt = p->t,
                      .n_prompt = n,
                      .max_tokens = pick(w, 5) ? pick(w, MAX_ANSWER) : 0,
                      .seed = 1 + pick(w, 3),
                      .salt = p->root == 1 ? &w->salt : NULL,
                      .marks = p->marks};
    p->q.cache = pick(w, 10) > 0 ? MX_CACHE_USE : pick(w, 2) ? MX_CACHE_NO_STORE : MX_CACHE_OFF;
    uint32_t from = 0;
    while (p->q.n_marks < MAX_MARKS && from + MX_STOP_MIN_TOKENS + 1 < n && pick(w, 2)) {
        from += MX_STOP_MIN_TOKENS + pick(w, (uint32_t)n - from - MX_STOP_MIN_TOKENS);
        p->marks[p->q.n_marks++] = from;
    }
}

static void promise_bound(const world *w, text *x, size_t at, unsigned tiers)
{
    if ((w->has_states || w->window > 0) && at > 0) {
        tiers &= w->h->cold == MX_COLD_OFF || at < MIN_DISK_TOKENS || !w->has_states ? RAM
                                                                                     : RAM | DISK;
        assert_true(x->n_bounds < MAX_BOUNDS);
        x->bounds[x->n_bounds].at = at;
        x->bounds[x->n_bounds++].tiers = tiers;
    }
}

/* The text of p and its answer. What has to be kept of it follows from whether it ended. */
static void remember(world *w, const prompt *p, const answer *a, size_t n_reused, bool is_whole)
{
    EXPECT(w, w->n_texts < MAX_TEXTS, "too many texts for this test");
    text *x = &w->texts[w->n_texts++];
    *x = (text){.root = p->root, .n = p->n + a->n_ids};
    memcpy(x->t, p->t, p->n * sizeof *p->t);
    if (a->n_ids > 0) {
        memcpy(x->t + p->n, a->ids, a->n_ids * sizeof *a->ids);
        x->has_last = true;
        x->n--;
    }
    if (!is_whole) {
        return; /* n_kept is what is found afterwards */
    }
    x->n_kept[RAM] = x->n;
    x->n_kept[DISK] = w->h->cold == MX_COLD_OFF || x->n < MIN_DISK_TOKENS ? 0 : x->n;
    /* The end of a prompt soon gives way to that of the turn, so the disk need not have it. */
    promise_bound(w, x, p->n, RAM);
    promise_bound(w, x, x->n, RAM | DISK);
    for (size_t i = 0; i < p->q.n_marks; i++) {
        if (p->marks[i] > n_reused) {
            promise_bound(w, x, p->marks[i], RAM | DISK);
        }
    }
    for (size_t at = SPACING; at <= x->n; at += SPACING) {
        if (at > n_reused) {
            promise_bound(w, x, at, RAM | DISK);
        }
    }
}

/* The last text was left in the middle: what is there of it has to stay. */
static void keep_what_is_there(world *w)
{
    text *x = &w->texts[w->n_texts - 1];
    for (unsigned where = RAM; where <= DISK; where++) {
        x->n_kept[where] = reach(w, x->root, x->t, x->n, where | STRAYS);
    }
}

static void describe(char out[160], const prompt *p, const answer *a)
{
    snprintf(out, 160, "%zu tokens, policy %d, answer %u: ram %zu, ssd %zu, %s", p->n, p->q.cache,
             p->q.max_tokens, a->stats.n_ram, a->stats.n_ssd,
             mx_restore_kind_name(a->stats.restore));
}

static void check_answer(world *w, const prompt *p, const answer *cold, const answer *got)
{
    char what[160], where[64];
    describe(what, p, got);
    EXPECT(w, got->stats.n_ram + got->stats.n_ssd + got->stats.n_computed == p->n, "%s", what);
    EXPECT(w, !got->stats.is_approximate, "%s: approximate", what);
    snprintf(where, sizeof where, "%s, seed %llu, step %u", w->h->what, (unsigned long long)w->seed,
             w->step);
    assert_same(cold, got, where);
    w->n_asked++;
    w->n_reused[RAM] += got->stats.n_ram;
    w->n_reused[DISK] += got->stats.n_ssd;
    w->n_whole += got->stats.n_computed == 0;
}

static void ask_one(world *w)
{
    prompt p;
    answer cold, got;
    make_prompt(w, &p, NULL);
    ask_cold(&w->g, &p.q, &cold);
    follow(w);
    bool may_read = p.q.cache != MX_CACHE_OFF;
    size_t want = may_read ? expected(w, p.root, p.t, p.n, 0) : 0;
    size_t limit = may_read ? expected(w, p.root, p.t, p.n, STRAYS) : 0;
    size_t most = most_shared(w, p.root, p.t, p.n);
    ask_and_wait(&w->g, &p.q, &got);
    char what[160];
    describe(what, &p, &got);
    size_t n_reused = got.stats.n_ram + got.stats.n_ssd;
    bool is_exact = w->h->cold_max_bytes == 0; /* else a sweep may be at it */
    EXPECT(w, (n_reused >= want || !is_exact) && n_reused <= limit,
           "%s; expected %zu (in RAM %zu, on disk %zu)", what, want,
           reach(w, p.root, p.t, p.n, RAM), reach(w, p.root, p.t, p.n, DISK));
    EXPECT(w, n_reused <= most, "%s; nothing that was fed shares more than %zu", what, most);
    check_answer(w, &p, &cold, &got);
    if (p.q.cache == MX_CACHE_USE) {
        remember(w, &p, &got, n_reused, true);
    }
    answer_free(&cold);
    answer_free(&got);
    follow(w);
}

/* Gives up somewhere in the prompt or the answer; what was finished by then stays. */
static void abort_one(world *w)
{
    prompt p;
    answer got;
    asking a;
    make_prompt(w, &p, NULL);
    ask(&w->g, &a, &p.q);
    usleep(pick(w, 4000));
    mx_request_cancel(a.request);
    await(&a, &got);
    if (p.q.cache == MX_CACHE_USE) {
        remember(w, &p, &got, 0, false);
        follow(w);
        keep_what_is_there(w);
    }
    w->n_aborted += got.finish == MX_FINISH_CANCELLED;
    answer_free(&got);
}

/* Several at once that begin alike: each gets at least what was there before. */
static void ask_together(world *w)
{
    enum { N = 3 };
    static prompt p[N];
    answer got[N];
    asking a[N];
    size_t want[N];
    follow(w);
    size_t n_texts = w->n_texts;
    size_t like = n_texts > 0 ? n_texts - 1 - pick(w, (uint32_t)mx_min_size(n_texts, 6)) : 0;
    for (size_t i = 0; i < N; i++) {
        make_prompt(w, &p[i], n_texts > 0 ? &w->texts[like] : NULL);
        want[i] = p[i].q.cache == MX_CACHE_OFF ? 0 : expected(w, p[i].root, p[i].t, p[i].n, 0);
    }
    for (size_t i = 0; i < N; i++) {
        ask(&w->g, &a[i], &p[i].q);
    }
    for (size_t i = 0; i < N; i++) {
        await(&a[i], &got[i]);
        remember(w, &p[i], &got[i], 0, false);
    }
    list_all(w);
    for (size_t i = 0; i < N; i++) {
        char what[160];
        describe(what, &p[i], &got[i]);
        size_t n_reused = got[i].stats.n_ram + got[i].stats.n_ssd;
        EXPECT(w, n_reused >= want[i] || w->has_lost[RAM] || w->has_lost[DISK],
               "%s (%zu of %d); expected %zu", what, i, N, want[i]);
        EXPECT(w, n_reused <= most_shared(w, p[i].root, p[i].t, p[i].n), "%s: too much", what);
    }
    for (size_t i = 0; i < N; i++) {
        answer cold;
        ask_cold(&w->g, &p[i].q, &cold);
        check_answer(w, &p[i], &cold, &got[i]);
        answer_free(&cold);
        answer_free(&got[i]);
    }
    follow(w);
    /* Those of others than MX_CACHE_USE need not be there; their text is a text all the same. */
    for (; n_texts < w->n_texts; n_texts++) {
        text *x = &w->texts[n_texts];
        for (unsigned where = RAM; where <= DISK; where++) {
            x->n_kept[where] = reach(w, x->root, x->t, x->n, where | STRAYS);
        }
    }
}

/* ---- what else happens ------------------------------------------------------------------------ */

static void evict_some(void *arg, const mx_engine_view *view)
{
    world *w = arg;
    (void)mx_bank_evict(view->bank, mx_kv_pool_max(view->pool) - mx_kv_pool_used(view->pool) + 1
                                        + pick(w, 8));
}

static void evict_all(void *arg, const mx_engine_view *view)
{
    (void)arg;
    mx_bank_clear(view->bank);
}

static void evict(world *w)
{
    bool is_all = pick(w, 3) == 0;
    assert_int_equal(mx_engine_call(w->g.engine, is_all ? evict_all : evict_some, w), MX_OK);
    w->has_lost[RAM] = w->has_lost[RAM] || is_all;
    follow(w);
}

/* One file in four, of any kind. */
static int lose_file(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st;
    (void)f;
    bool is_ours = ends_with(path, ".page") || ends_with(path, ".state")
                   || ends_with(path, ".session");
    if (type == FTW_F && is_ours && pick(listing, 4) == 0) {
        return unlink(path);
    }
    return 0;
}

/* Those that this manifest names are none. */
static int read_manifest(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)f;
    world *w = listing;
    if (type != FTW_F || !ends_with(path, ".session")) {
        return 0;
    }
    size_t n = (size_t)st->st_size;
    uint8_t *bytes = malloc(n);
    FILE *file = fopen(path, "rb");
    assert_true(bytes != NULL && file != NULL && fread(bytes, 1, n, file) == n);
    fclose(file);
    mx_disk_manifest m;
    mx_errbuf eb = {{0}};
    EXPECT(w, mx_disk_manifest_decode(&m, bytes, n, &eb) == MX_OK, "%s: %s", path, eb.text);
    for (uint32_t i = 0; i < m.n_pages; i++) {
        for (size_t k = 0; k < w->n_strays; k++) {
            if (mx_hash256_eq(&m.page_ids[i], &w->strays[k])) {
                w->strays[k] = w->strays[--w->n_strays];
                break;
            }
        }
    }
    free(bytes);
    return 0;
}

static void find_strays(world *w)
{
    w->n_strays = 0;
    w->n_items = 0;
    walk_folder(w, add_file);
    for (size_t i = 0; i < w->n_items; i++) {
        if (w->items[i].kind == PAGE) {
            w->strays[w->n_strays++] = w->items[i].name;
        }
    }
    walk_folder(w, read_manifest);
}

static void start(world *w)
{
    find_strays(w);
    rig_start(&w->g);
    mx_cold *cold = mx_engine_cold(w->g.engine);
    mx_cold_stats s = {0};
    for (int i = 0; cold != NULL && !s.is_loaded && i < 3000; i++) {
        mx_cold_get_stats(cold, &s);
        usleep(s.is_loaded ? 0 : 1000);
    }
    EXPECT(w, cold == NULL || s.is_loaded, "the folder is not read");
    w->n_gone = w->n_dropped = 0;
}

/* In order; at once, so that what is queued is lost; or with files that went meanwhile. */
static void restart(world *w)
{
    follow(w);
    for (size_t i = 0; i < w->n_texts; i++) {
        text *x = &w->texts[i];
        x->n_kept[RAM] = 0;
        for (size_t k = 0; k < x->n_bounds; k++) {
            x->bounds[k].tiers &= DISK;
        }
    }
    uint32_t way = pick(w, 3);
    prompt p;
    make_prompt(w, &p, NULL);
    p.q.cache = MX_CACHE_USE;
    if (way == 1) {
        answer got;
        ask_and_wait(&w->g, &p.q, &got);
        remember(w, &p, &got, 0, false);
        answer_free(&got);
        mx_engine_stop(w->g.engine, 0, 0);
        mx_engine_destroy(w->g.engine);
    } else {
        rig_stop(&w->g);
    }
    if (way == 2 && w->h->cold != MX_COLD_OFF) {
        walk_folder(w, lose_file);
        w->has_lost[DISK] = true;
    }
    start(w);
    follow(w);
    if (way == 1) {
        keep_what_is_there(w);
    }
    w->n_restarts++;
}

static void sweep(world *w)
{
    mx_cold *cold = mx_engine_cold(w->g.engine);
    if (cold != NULL) {
        EXPECT(w, mx_cold_sweep(cold, 60 * 1000000), "the sweep does not end");
        follow(w);
    }
}

/* ---- histories -------------------------------------------------------------------------------- */

static int quick_fsync(int fd)
{
    (void)fd; /* no power goes off here */
    return 0;
}

static void open_world(world *w, mx_cold_fileops *ops)
{
    rig_open(&w->g, &w->h->spec, 1, 0);
    mx_model *m = w->g.model;
    w->has_states = mx_model_kv_shape(m)->state_bytes > 0;
    EXPECT(w, !w->has_states || mx_stop_spacing(mx_model_kv_shape(m)) == SPACING,
           "boundaries at other distances than this test supposes");
    w->window = mx_model_kv_shape(m)->window;
    EXPECT(w, w->window == 0 || mx_stop_window_spacing(mx_model_kv_shape(m)) == SPACING,
           "windows at other distances than this test supposes");
    w->salt = (mx_hash256){{7}};
    w->roots[0] = mx_model_root(m, NULL);
    w->roots[1] = mx_model_root(m, &w->salt);
    w->texts = calloc(MAX_TEXTS, sizeof *w->texts);
    w->items = calloc(MAX_ITEMS, sizeof *w->items);
    w->strays = calloc(MAX_ITEMS, sizeof *w->strays);
    w->heads = calloc(MAX_ITEMS, sizeof *w->heads);
    assert_true(w->texts != NULL && w->items != NULL && w->strays != NULL && w->heads != NULL);
    mx_engine_config *cfg = &w->g.cfg;
    const mx_kv_shape *shape = mx_model_kv_shape(m);
    size_t page_bytes = mx_kv_page_bytes(shape);
    if (w->h->budget_pages > 0) {
        size_t state_pages = (shape->state_bytes + page_bytes - 1) / page_bytes;
        cfg->kv_budget_bytes = (w->h->budget_pages + 8 * state_pages) * page_bytes;
    }
    static const uint32_t chunks[] = {40, 64, 100, 512};
    cfg->prefill_chunk = chunks[w->seed % MX_COUNT(chunks)];
    cfg->bank.lazy_snapshot = w->seed % 3 != 0;
    cfg->bank.settle_snapshot = w->seed % 3 == 1;
    cfg->cold_mode = w->h->cold;
    cfg->cold_max_bytes = w->h->cold_max_bytes;
    cfg->cold_min_tokens = MIN_DISK_TOKENS;
    *ops = mx_cold_real_fileops;
    ops->fsync = quick_fsync;
    cfg->cold_tuning = (mx_cold_tuning){.fileops = ops, .min_free_bytes = -1, .delete_age_s = -1,
                                        .retry_us = 1};
}

static void run_history(const history *h, uint64_t seed, unsigned n_steps)
{
    static mx_cold_fileops ops;
    world w = {.h = h, .seed = seed, .rng = seed * 1000003};
    open_world(&w, &ops);
    start(&w);
    for (w.step = 0; w.step < n_steps; w.step++) {
        uint32_t what = pick(&w, 20);
        if (what < 13) {
            ask_one(&w);
        } else if (what < 15) {
            abort_one(&w);
        } else if (what < 16) {
            ask_together(&w);
        } else if (what < 18) {
            evict(&w);
        } else if (what < 19) {
            restart(&w);
        } else {
            sweep(&w);
        }
    }
    print_message("%s, seed %llu: %zu asked; %zu tokens from RAM, %zu from disk; %zu whole; %zu "
                  "aborted; %zu evictions, %zu restarts; %zu texts, %zu items\n", h->what,
                  (unsigned long long)seed, w.n_asked, w.n_reused[RAM], w.n_reused[DISK], w.n_whole,
                  w.n_aborted, w.n_evicted, w.n_restarts, w.n_texts, w.n_items);
    free(w.texts);
    free(w.items);
    free(w.strays);
    free(w.heads);
    rig_close(&w.g);
}

static void run_histories(const history *h, unsigned n)
{
    enum { N_STEPS = 100 };
    bool is_long = getenv("MTPLX_LONG") != NULL;
    const char *only = getenv("MTPLX_HISTORY_SEED");
    uint64_t first = only != NULL ? strtoull(only, NULL, 10) : 1;
    n = only != NULL ? 1 : is_long ? 12 * n : n;
    for (uint64_t seed = first; seed < first + n; seed++) {
        run_history(h, seed, N_STEPS);
    }
}

static mx_tiny_spec tiny_of(const char *name)
{
    return rig_spec_of(tiny_named(name), 1024);
}

static void attention(void **state)
{
    (void)state;
    history h = {.what = "attention", .spec = tiny_of("f32"), .cold = MX_COLD_ON};
    run_histories(&h, 2);
    h.what = "attention, few pages";
    h.budget_pages = 30;
    run_histories(&h, 2);
    h.what = "attention, no disk";
    h.cold = MX_COLD_OFF;
    run_histories(&h, 1);
}

static void attention_small_folder(void **state)
{
    (void)state;
    history h = {.what = "attention, small folder", .spec = tiny_of("f32"), .cold = MX_COLD_ON,
                 .cold_max_bytes = 1500000};
    run_histories(&h, 1);
}

static void window(void **state)
{
    (void)state;
    history h = {.what = "window", .spec = tiny_of("gemma3"), .cold = MX_COLD_ON,
                 .budget_pages = 40};
    run_histories(&h, 2);
    h.what = "window, no disk";
    h.cold = MX_COLD_OFF;
    run_histories(&h, 2);
    h.what = "window, plenty of pages";
    h.cold = MX_COLD_ON;
    h.budget_pages = 0;
    run_histories(&h, 1);
    h.what = "window in all layers, no disk";
    h.spec = tiny_of("f32");
    h.spec.window = 64;
    h.cold = MX_COLD_OFF;
    run_histories(&h, 1);
}

static void hybrid(void **state)
{
    (void)state;
    history h = {.what = "hybrid", .spec = tiny_of("qwen35"), .cold = MX_COLD_ON};
    h.spec.gdn_k_heads = h.spec.gdn_v_heads = 2; /* small states stand at the least distance */
    h.spec.gdn_dim = 16;
    run_histories(&h, 2);
    h.what = "hybrid, few pages";
    h.budget_pages = 30;
    run_histories(&h, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),
        cmocka_unit_test(attention_small_folder),
        cmocka_unit_test(window),
        cmocka_unit_test(hybrid),
    };
    return cmocka_run_group_tests_name("histories", tests, NULL, NULL);
}
