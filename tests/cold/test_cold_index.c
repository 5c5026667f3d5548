/* SPDX-License-Identifier: MIT
 *
 * The index alone: which child of a page goes on most like a prompt, compared with looking at each
 * of them, while pages come, go, and say of themselves what a manifest had said wrongly; and that it
 * does not take a walk over all of them.
 */
#include "cold/cold_help.h"

#include <time.h>
#include "cold/cold_index.h"

enum { N_CHILDREN = 300, N_PARENTS = 3, N_STEPS = 6000, N_VOCABULARY = 3, CAP = 2 * N_CHILDREN };

/* What the index should know of a page. */
typedef struct child {
    mx_hash256 id;
    int32_t tokens[MX_PAGE_TOKENS];
    uint32_t n_tokens;
    int parent;      /* where it is linked; -1 = nowhere yet */
    int true_parent; /* what it says itself */
    bool is_there, is_known;
    bool lacks;      /* rows of windowed layers */
} child;

static mx_hash256 id_of(unsigned kind, unsigned number)
{
    unsigned text[2] = {kind, number};
    return mx_sha256_of(text, sizeof text);
}

/* Of few different tokens, so that there is something in common. */
static uint32_t make_tokens(uint64_t *random, int32_t tokens[MX_PAGE_TOKENS])
{
    for (size_t i = 0; i < MX_PAGE_TOKENS; i++) {
        uint64_t r = help_random(random);
        tokens[i] = r % 64 < 40 ? 7 : (int32_t)(r >> 32) % N_VOCABULARY;
    }
    return help_random(random) % 3 == 0 ? MX_PAGE_TOKENS
                                        : 1 + (uint32_t)(help_random(random) % (MX_PAGE_TOKENS - 1));
}

static uint32_t common_of(const child *c, const int32_t *tokens, size_t n)
{
    uint32_t k = 0;
    while (k < n && k < c->n_tokens && c->tokens[k] == tokens[k]) {
        k++;
    }
    return k;
}

static const child *find(const child *all, const mx_hash256 *id)
{
    for (size_t i = 0; i < N_CHILDREN; i++) {
        if (mx_hash256_eq(&all[i].id, id)) {
            return &all[i];
        }
    }
    return NULL;
}

static void check_search(mx_cold_index *ix, const child *all, int parent, const int32_t *tokens,
                         size_t n, mx_cold_among among)
{
    static mx_cold_child unknown[CAP];
    mx_hash256 parent_id = id_of(0, (unsigned)parent);
    size_t n_unknown, n_want = 0;
    uint32_t most = 0;
    for (size_t i = 0; i < N_CHILDREN; i++) {
        const child *c = &all[i];
        const bool is_full = c->n_tokens == MX_PAGE_TOKENS;
        const bool counts = among == MX_COLD_AMONG_ALL || (is_full ? !c->lacks : among == MX_COLD_AMONG_WHOLE);
        if (c->parent == parent && c->is_there && counts) {
            n_want += !c->is_known;
            uint32_t k = c->is_known ? common_of(c, tokens, n) : 0;
            most = k > most ? k : most;
        }
    }
    mx_cold_child best = mx_cold_index_best_child(ix, &parent_id, tokens, n, among, unknown, CAP,
                                                  &n_unknown);
    assert_int_equal(best.n_common, most);
    assert_int_equal(n_unknown, n_want);
    for (size_t i = 0; i < n_unknown; i++) {
        const child *c = find(all, &unknown[i].id);
        assert_true(c != NULL && c->parent == parent && c->is_there && !c->is_known);
        assert_int_equal(unknown[i].n_tokens, c->n_tokens);
    }
    if (most > 0) {
        const child *c = find(all, &best.id);
        assert_true(c != NULL && c->parent == parent && c->is_there && c->is_known);
        assert_int_equal(best.n_tokens, c->n_tokens);
        assert_int_equal(common_of(c, tokens, n), most);
        assert_true(best.n_next <= 8 && best.n_next == (c->n_tokens - most < 8 ? c->n_tokens - most : 8));
        assert_memory_equal(best.next, c->tokens + most, best.n_next * sizeof best.next[0]);
    }
}

static void test_best_child_is_the_best(void **arg)
{
    (void)arg;
    static child all[N_CHILDREN];
    uint64_t random = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)random);
    mx_cold_index *ix = mx_cold_index_create();
    assert_non_null(ix);
    for (unsigned i = 0; i < N_CHILDREN; i++) {
        all[i] = (child){.id = id_of(1, i), .parent = -1};
        all[i].n_tokens = make_tokens(&random, all[i].tokens);
        all[i].true_parent = (int)(help_random(&random) % N_PARENTS);
    }
    size_t n_there = 0;
    for (int step = 0; step < N_STEPS; step++) {
        child *c = &all[help_random(&random) % N_CHILDREN];
        switch (help_random(&random) % 9) {
        case 0: /* a manifest says so, perhaps wrongly */
        case 1: {
            int parent = help_random(&random) % 8 == 0 ? (c->true_parent + 1) % N_PARENTS
                                                       : c->true_parent;
            mx_hash256 up = id_of(0, (unsigned)parent);
            assert_int_equal(mx_cold_index_link(ix, &c->id, &up, c->n_tokens, NULL), MX_OK);
            c->parent = c->parent < 0 ? parent : c->parent;
            break;
        }
        case 2: { /* the page itself does */
            mx_hash256 up = id_of(0, (unsigned)c->true_parent);
            assert_int_equal(mx_cold_index_link(ix, &c->id, &up, c->n_tokens, c->tokens), MX_OK);
            c->parent = c->true_parent;
            c->is_known = true;
            break;
        }
        case 3:
        case 4:
        case 5:
            assert_int_equal(mx_cold_index_add(ix, &c->id, false), MX_OK);
            n_there += !c->is_there;
            c->is_there = true;
            break;
        case 6:
            mx_cold_index_remove(ix, &c->id);
            n_there -= c->is_there;
            c->is_there = c->lacks = false;
            break;
        case 7: { /* full ones alone can lack something */
            const bool lacks = c->n_tokens == MX_PAGE_TOKENS && help_random(&random) % 2 == 0;
            mx_cold_index_set_lacks(ix, &c->id, lacks);
            c->lacks = c->is_there && lacks;
            assert_int_equal(mx_cold_index_lacks(ix, &c->id), c->lacks);
            break;
        }
        default: {
            int32_t tokens[MX_PAGE_TOKENS];
            make_tokens(&random, tokens);
            if (c->n_tokens > 1) { /* like one of them, up to somewhere */
                memcpy(tokens, c->tokens, help_random(&random) % c->n_tokens * sizeof tokens[0]);
            }
            check_search(ix, all, c->true_parent, tokens, 1 + help_random(&random) % MX_PAGE_TOKENS,
                         (mx_cold_among)(help_random(&random) % 3));
        }
        }
    }
    assert_int_equal(mx_cold_index_count(ix), n_there);
    /* A scan that sees every other page. */
    mx_cold_index_scan_begin(ix);
    for (size_t i = 0; i < N_CHILDREN; i++) {
        all[i].is_there = i % 2 == 0;
        if (all[i].is_there) {
            assert_int_equal(mx_cold_index_add(ix, &all[i].id, false), MX_OK);
        }
    }
    mx_cold_index_scan_end(ix);
    for (size_t i = 0; i < N_CHILDREN; i++) {
        check_search(ix, all, (int)(i % N_PARENTS), all[i].tokens, all[i].n_tokens, MX_COLD_AMONG_ALL);
    }
    assert_int_equal(mx_cold_index_count(ix), N_CHILDREN / 2);
    mx_cold_index_destroy(ix);
}

/* A manifest is a hint, and may be forged: a page is found where it says itself that it belongs. */
static void test_page_knows_its_parent_best(void **arg)
{
    (void)arg;
    mx_cold_index *ix = mx_cold_index_create();
    assert_non_null(ix);
    mx_hash256 id = id_of(1, 1), wrong = id_of(0, 1), right = id_of(0, 2), parent;
    int32_t tokens[MX_PAGE_TOKENS] = {5, 6, 7};
    size_t n_unknown;
    assert_int_equal(mx_cold_index_add(ix, &id, false), MX_OK);
    assert_int_equal(mx_cold_index_link(ix, &id, &wrong, MX_PAGE_TOKENS, NULL), MX_OK);
    assert_int_equal(mx_cold_index_link(ix, &id, &right, 3, tokens), MX_OK);
    assert_int_equal(mx_cold_index_link(ix, &id, &wrong, MX_PAGE_TOKENS, NULL), MX_OK);
    assert_true(mx_cold_index_parent(ix, &id, &parent) && mx_hash256_eq(&parent, &right));
    mx_cold_child best = mx_cold_index_best_child(ix, &right, tokens, 3, MX_COLD_AMONG_ALL, NULL, 0, &n_unknown);
    assert_int_equal(best.n_common, 3);
    best = mx_cold_index_best_child(ix, &wrong, tokens, 3, MX_COLD_AMONG_ALL, NULL, 0, &n_unknown);
    assert_int_equal(best.n_common, 0);
    mx_cold_index_destroy(ix);
}

/* A chain of pages with a manifest at its end; all seen. */
static void add_chain(mx_cold_index *ix, unsigned number, unsigned n_pages)
{
    mx_hash256 parent = id_of(0, 0);
    int32_t tokens[MX_PAGE_TOKENS] = {(int32_t)number};
    for (unsigned i = 0; i < n_pages; i++) {
        mx_hash256 id = id_of(100 + number, i);
        assert_int_equal(mx_cold_index_add(ix, &id, true), MX_OK);
        assert_int_equal(mx_cold_index_link(ix, &id, &parent, MX_PAGE_TOKENS, tokens), MX_OK);
        parent = id;
    }
    (void)mx_cold_index_mark_manifest(ix, &parent);
}

/* What comes and goes leaves nothing behind but what has to be remembered. */
static void test_gone_pages_are_forgotten(void **arg)
{
    (void)arg;
    enum { ROUNDS = 50, N_CHAINS = 20, N_PAGES = 30 };
    mx_cold_index *ix = mx_cold_index_create();
    assert_non_null(ix);
    mx_hash256 bad = id_of(101, 4), kept = id_of(102, N_PAGES - 1), parent;
    int64_t first = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        mx_cold_index_scan_begin(ix);
        for (unsigned i = 0; i < N_CHAINS; i++) {
            add_chain(ix, i == 2 ? 2 : round * N_CHAINS + i, N_PAGES); /* one that stays */
        }
        mx_cold_index_set_bad(ix, &bad);
        mx_cold_index_scan_end(ix);
        first = round == 4 ? mx_mem_live() : first;
    }
    print_message("%lld blocks after 5 scans, %lld after %d\n", (long long)first,
                  (long long)mx_mem_live(), ROUNDS);
    assert_true(mx_mem_live() <= first + first / 4);
    assert_int_equal(mx_cold_index_count(ix), N_CHAINS * N_PAGES);
    assert_true(mx_cold_index_is_bad(ix, &bad));
    assert_true(mx_cold_index_is_named(ix, &kept) && mx_cold_index_parent(ix, &kept, &parent));
    /* A page that is gone inside of a chain that is there is still known to continue. */
    mx_hash256 inside = id_of(102, 5), next = id_of(102, 6);
    for (int i = 0; i < 3; i++) {
        mx_cold_index_scan_begin(ix);
        for (unsigned k = 0; k < N_PAGES; k++) {
            mx_hash256 id = id_of(102, k);
            if (k != 5) {
                assert_int_equal(mx_cold_index_add(ix, &id, false), MX_OK);
            }
        }
        mx_cold_index_see_manifest(ix, &kept);
        mx_cold_index_scan_end(ix);
    }
    assert_false(mx_cold_index_has(ix, &inside));
    assert_true(mx_cold_index_parent(ix, &next, &parent) && mx_hash256_eq(&parent, &inside));
    assert_true(mx_cold_index_parent(ix, &inside, &parent));
    assert_int_equal(mx_cold_index_count(ix), N_PAGES - 1);
    mx_cold_index_destroy(ix);
}

/* A file that takes the place of a durable one is not durable when the sync behind it fails; nor is one beside it
 * that was not before. */
static void test_names_behind_a_failed_sync_are_in_doubt(void **arg)
{
    (void)arg;
    mx_cold_index *ix = mx_cold_index_create();
    assert_non_null(ix);
    enum { REPLACED, DURABLE, SEEN, ELSEWHERE, N_NAMES };
    mx_hash256 ids[N_NAMES];
    for (unsigned i = 0; i < N_NAMES; i++) {
        ids[i] = id_of(7, i);
        ids[i].b[0] = i == ELSEWHERE;
        assert_int_equal(mx_cold_index_add(ix, &ids[i], i <= DURABLE), MX_OK);
    }
    mx_cold_index_doubt(ix, &ids[REPLACED]);
    for (unsigned i = 0; i < N_NAMES; i++) {
        bool is_good = i == DURABLE || i == ELSEWHERE;
        assert_true(mx_cold_index_has(ix, &ids[i]));
        assert_int_equal(mx_cold_index_is_synced(ix, &ids[i]), i == DURABLE);
        assert_int_equal(mx_cold_index_is_doubtful(ix, &ids[i]), !is_good);
        assert_int_equal(mx_cold_index_is_kept(ix, &ids[i]), is_good);
    }
    assert_int_equal(mx_cold_index_add(ix, &ids[SEEN], false), MX_OK); /* seen again: no news */
    assert_false(mx_cold_index_is_kept(ix, &ids[SEEN]));
    assert_int_equal(mx_cold_index_add(ix, &ids[SEEN], true), MX_OK); /* written anew */
    assert_true(mx_cold_index_is_kept(ix, &ids[SEEN]) && mx_cold_index_is_synced(ix, &ids[SEEN]));
    mx_cold_index_destroy(ix);
}

/* ---- many ------------------------------------------------------------------------------------ */

/* The time that others have the core does not count. */
static uint64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Microseconds of CPU time for some searches among so many children, the best of three. */
static uint64_t time_searches(unsigned n_children)
{
    enum { N_SEARCHES = 2000 };
    mx_cold_index *ix = mx_cold_index_create();
    assert_non_null(ix);
    mx_hash256 up = id_of(0, 0);
    uint64_t random = 1, least = UINT64_MAX;
    int32_t tokens[MX_PAGE_TOKENS];
    for (unsigned i = 0; i < n_children; i++) {
        mx_hash256 id = id_of(1, i);
        uint32_t n = make_tokens(&random, tokens);
        assert_int_equal(mx_cold_index_add(ix, &id, false), MX_OK);
        assert_int_equal(mx_cold_index_link(ix, &id, &up, n, tokens), MX_OK);
    }
    for (int round = 0; round < 3; round++) {
        uint64_t start = cpu_us();
        for (int i = 0; i < N_SEARCHES; i++) {
            size_t n_unknown;
            make_tokens(&random, tokens);
            mx_cold_child best = mx_cold_index_best_child(ix, &up, tokens, MX_PAGE_TOKENS,
                                                          MX_COLD_AMONG_ALL, NULL, 0, &n_unknown);
            assert_true(best.n_common > 0);
        }
        uint64_t us = cpu_us() - start;
        least = us < least ? us : least;
    }
    mx_cold_index_destroy(ix);
    return least;
}

/* 64 times as many children take a walk over all of them 64 times as long. */
static void test_search_does_not_grow_with_siblings(void **arg)
{
    (void)arg;
    uint64_t few = time_searches(1000), many = time_searches(64000);
    print_message("2000 searches: %llu us among 1,000, %llu us among 64,000\n", (unsigned long long)few,
                  (unsigned long long)many);
    assert_true(many < 16 * few);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_child_is_the_best),
        cmocka_unit_test(test_page_knows_its_parent_best),
        cmocka_unit_test(test_gone_pages_are_forgotten),
        cmocka_unit_test(test_names_behind_a_failed_sync_are_in_doubt),
        cmocka_unit_test(test_search_does_not_grow_with_siblings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
