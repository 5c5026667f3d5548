/* SPDX-License-Identifier: MIT
 *
 * Answers and their ids in the cold tier: what manifests tell of is found by the same root only,
 * also after a restart, and what is damaged or gone gives fewer ids or none.
 */
#include "cold/cold_help.h"

#include <pthread.h>

#include "cold/cold_tools.h"
#include "cold/cold_turns.h"

typedef help_bed state;

/* Answer k to a prompt of n_prompt ids. */
static mx_turn turn_of(int k, uint32_t n_prompt, uint32_t n_end)
{
    mx_turn t = {.n_bytes = n_prompt * 4, .sum = (uint64_t)k, .n_prompt = n_prompt, .n_end = n_end};
    t.text = mx_sha256_of(&k, sizeof k);
    memset(t.nonce, k, sizeof t.nonce);
    return t;
}

static mx_err write_with(mx_cold *c, const talk *t, const mx_turn *turns, size_t n_turns)
{
    for (size_t i = 0; i < t->n_ids; i++) {
        assert_int_equal(help_write_page(c, t, i), MX_OK);
    }
    return help_write_answered(c, t, turns, n_turns);
}

static mx_err read_ids(mx_cold *c, const mx_hash256 *root, const mx_hash256 *session,
                       mx_cold_ids *out)
{
    mx_cold_job job = {.kind = MX_COLD_READ_IDS, .root = *root, .page_id = *session};
    mx_err err = help_run(c, &job);
    *out = job.found;
    assert_true(err == MX_OK || (out->ids == NULL && out->turns == NULL));
    return err;
}

static size_t list(mx_cold *c, const mx_hash256 *root, uint64_t min, uint64_t max,
                   const uint8_t *nonce, mx_turn *first, mx_hash256 *session)
{
    mx_turn *turns;
    mx_hash256 *sessions;
    size_t n;
    assert_int_equal(mx_cold_list_turns(c, root, min, max, nonce, 10000000, &turns, &sessions, &n),
                     MX_OK);
    if (n > 0 && first != NULL) {
        *first = turns[0];
        *session = sessions[0];
    }
    mx_free(turns);
    mx_free(sessions);
    return n;
}

/* What a session of two answers gives: all its tokens, and both. */
static void check_whole(mx_cold *c, const state *s)
{
    mx_turn t;
    mx_hash256 session;
    assert_int_equal(list(c, &s->root, 0, 10000, NULL, NULL, NULL), 2);
    assert_int_equal(list(c, &s->root, 400, 10000, NULL, &t, &session), 1);
    assert_int_equal(t.n_prompt, 150);
    assert_memory_equal(&session, &s->talk.ids[s->talk.n_ids - 1], sizeof session);
    assert_int_equal(list(c, &s->root, 0, 599, NULL, &t, &session), 1);
    assert_int_equal(t.n_prompt, 100);
    mx_turn second = turn_of(2, 150, UINT32_MAX);
    assert_int_equal(list(c, &s->root, 10000, 0, second.nonce, &t, &session), 1);
    assert_memory_equal(&t, &second, sizeof t);
    mx_cold_ids found;
    assert_int_equal(read_ids(c, &s->root, &session, &found), MX_OK);
    assert_int_equal(found.n, s->talk.n);
    assert_memory_equal(found.ids, s->talk.tokens, s->talk.n * sizeof *found.ids);
    assert_int_equal(found.n_turns, 2);
    assert_memory_equal(&found.turns[1], &second, sizeof second);
    mx_cold_ids_free(&found);
    /* Another root (another API key, another model) sees nothing, not even with the right names. */
    mx_hash256 other = help_root(2);
    assert_int_equal(list(c, &other, 0, 10000, NULL, NULL, NULL), 0);
    assert_int_equal(list(c, &other, 0, 0, second.nonce, NULL, NULL), 0);
    assert_int_equal(read_ids(c, &other, &session, &found), MX_E_NOT_FOUND);
}

static void write_two(state *s, mx_cold *c)
{
    talk_make(&s->talk, &s->root, 1, 0, 3 * 64 + 9);
    /* The third ends, the fourth begins behind what is stored: they are left out. */
    mx_turn turns[4] = {turn_of(1, 100, 130), turn_of(2, 150, UINT32_MAX), turn_of(3, 190, 202),
                        turn_of(4, 201, 300)};
    assert_int_equal(write_with(c, &s->talk, turns, 4), MX_OK);
}

static void test_answers_come_back(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    write_two(s, c);
    check_whole(c, s);
    mx_cold_close(c);
    c = help_open(&s->cfg);
    check_whole(c, s);
    mx_cold_close(c);
    s->cfg.mode = MX_COLD_WRITE_ONLY;
    c = help_open(&s->cfg);
    assert_int_equal(list(c, &s->root, 0, 10000, NULL, NULL, NULL), 0);
    mx_cold_close(c);
}

/* The manifest of a later turn tells of the earlier ones, too: that of the earlier one may go. */
static void test_later_turn_takes_over(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 130);
    mx_turn turns[2] = {turn_of(1, 100, UINT32_MAX), turn_of(2, 150, UINT32_MAX)};
    assert_int_equal(write_with(c, &s->talk, turns, 1), MX_OK);
    turns[0].n_end = 130;
    talk_cut(&s->talk, 201);
    assert_int_equal(write_with(c, &s->talk, turns, 2), MX_OK);
    check_whole(c, s);
    assert_true(mx_cold_sweep(c, 10000000));
    assert_int_equal(help_count(s->root_dir, ".session"), 1);
    check_whole(c, s);
    /* Repeated as it was, it is not written again; with another answer in it, it is. */
    mx_cold_stats before, after;
    mx_cold_get_stats(c, &before);
    assert_int_equal(before.turns, 2);
    assert_int_equal(write_with(c, &s->talk, turns, 2), MX_OK);
    mx_cold_get_stats(c, &after);
    assert_int_equal(after.sessions_written, before.sessions_written);
    assert_int_equal(after.sessions_skipped, before.sessions_skipped + 1);
    assert_int_equal(write_with(c, &s->talk, turns, 1), MX_OK);
    mx_cold_get_stats(c, &after);
    assert_int_equal(after.sessions_written, before.sessions_written + 1);
    mx_cold_close(c);
}

static void flip(const char *path, void *arg)
{
    uint8_t bytes[8192];
    size_t n = help_slurp(path, bytes, sizeof bytes);
    bytes[*(const size_t *)arg] ^= 1;
    help_spill(path, bytes, n);
}

/* The page whose first token is that of position `first`. */
typedef struct wanted {
    const talk *t;
    size_t page, at;
} wanted;

static void flip_page(const char *path, void *arg)
{
    const wanted *w = arg;
    char hex[65];
    mx_hash256_hex(&w->t->ids[w->page], hex);
    if (strstr(path, hex) != NULL) {
        size_t at = w->at;
        flip(path, &at);
    }
}

static void test_damage(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    write_two(s, c);
    const mx_hash256 session = s->talk.ids[s->talk.n_ids - 1];
    mx_cold_ids found;
    /* A token of the third page: what comes before it is right. */
    wanted w = {&s->talk, 2, 512 + 40};
    help_each_file(s->root_dir, ".page", flip_page, &w);
    assert_int_equal(read_ids(c, &s->root, &session, &found), MX_OK);
    assert_int_equal(found.n, 128);
    assert_memory_equal(found.ids, s->talk.tokens, 128 * sizeof *found.ids);
    assert_int_equal(found.n_turns, 1); /* the second answer begins behind that */
    mx_cold_ids_free(&found);
    mx_cold_stats st;
    mx_cold_get_stats(c, &st);
    assert_int_equal(st.quarantined, 1);
    /* The second page: not even the first answer. */
    w = (wanted){&s->talk, 1, 512};
    help_each_file(s->root_dir, ".page", flip_page, &w);
    assert_int_equal(read_ids(c, &s->root, &session, &found), MX_E_NOT_FOUND);
    assert_int_equal(list(c, &s->root, 0, 10000, NULL, NULL, NULL), 0); /* not asked for again */
    mx_cold_close(c);
}

static void test_damaged_manifest(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    write_two(s, c);
    const mx_hash256 session = s->talk.ids[s->talk.n_ids - 1];
    size_t at = 256 + 32 * 4 + 50; /* in a turn */
    assert_int_equal(help_each_file(s->root_dir, ".session", flip, &at), 1);
    mx_cold_ids found;
    assert_int_equal(read_ids(c, &s->root, &session, &found), MX_E_NOT_FOUND);
    assert_int_equal(list(c, &s->root, 0, 10000, NULL, NULL, NULL), 0);
    assert_int_equal(help_count(s->root_dir, ".reason"), 1);
    mx_cold_close(c);
}

/* `mtplx cache rm` and DELETE /admin/cache take the ids along. */
static void test_removed_with_the_conversation(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    write_two(s, c);
    const mx_hash256 session = s->talk.ids[s->talk.n_ids - 1];
    char hex[65];
    mx_cold_counts n = {0};
    mx_errbuf eb = {{0}};
    mx_hash256_hex(&s->root, hex);
    assert_int_equal(mx_cold_remove_entry(s->dir, NULL, hex, &session, NULL, 0, &n, &eb), MX_OK);
    mx_cold_ids found;
    assert_int_equal(read_ids(c, &s->root, &session, &found), MX_E_NOT_FOUND);
    assert_int_equal(list(c, &s->root, 0, 10000, NULL, NULL, NULL), 0);
    assert_int_equal(help_count(s->root_dir, ".page"), 0);
    mx_cold_close(c);
}

static void test_memory_runs_out(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->cfg);
    write_two(s, c);
    const mx_hash256 session = s->talk.ids[s->talk.n_ids - 1];
    assert_true(mx_cold_sweep(c, 10000000)); /* nothing else allocates from here on */
    int64_t live = mx_mem_live();
    mx_err err = MX_E_NOMEM;
    uint64_t k = 1;
    for (; err != MX_OK; k++) {
        mx_cold_ids found;
        mx_mem_fail_at(k);
        err = read_ids(c, &s->root, &session, &found);
        mx_mem_fail_at(0);
        assert_true(err == MX_OK || err == MX_E_NOMEM);
        mx_cold_ids_free(&found);
        assert_int_equal(mx_mem_live(), live);
    }
    assert_int_equal(k, 5); /* manifest, ids, turns; then none failed */
    mx_cold_close(c);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void test_table_is_bounded(void **arg)
{
    (void)arg;
    int64_t live = mx_mem_live();
    mx_cold_turns *t = mx_cold_turns_create();
    mx_hash256 root = help_root(1), session = help_root(2), last = help_root(3);
    enum { EXTRA = 500 };
    for (int k = 0; k < MX_COLD_TURNS_MAX + EXTRA; k++) {
        mx_turn turn = turn_of(k, 10 + (uint32_t)k, UINT32_MAX);
        mx_cold_turns_add(t, &root, k % 2 ? &session : &last, 100, &turn);
    }
    assert_int_equal(mx_cold_turns_count(t), MX_COLD_TURNS_MAX);
    mx_turn *turns;
    mx_hash256 *sessions;
    size_t n;
    assert_int_equal(mx_cold_turns_list(t, &root, 0, UINT64_MAX, NULL, &turns, &sessions, &n),
                     MX_OK);
    assert_int_equal(n, MX_COLD_TURNS_MAX);
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        least = turns[i].n_prompt < least ? turns[i].n_prompt : least;
    }
    assert_int_equal(least, 10 + EXTRA); /* what was learned first went first */
    mx_free(turns);
    mx_free(sessions);
    /* The same answer again takes no second place; half of them go with their manifest. */
    mx_turn again = turn_of(MX_COLD_TURNS_MAX, 10 + MX_COLD_TURNS_MAX, 77);
    mx_cold_turns_add(t, &root, &last, 100, &again);
    assert_int_equal(mx_cold_turns_count(t), MX_COLD_TURNS_MAX);
    mx_cold_turns_drop(t, &root, &session);
    assert_int_equal(mx_cold_turns_count(t), MX_COLD_TURNS_MAX / 2);
    assert_int_equal(mx_cold_turns_list(t, &root, 0, 0, again.nonce, &turns, &sessions, &n), MX_OK);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) { /* a nonce of this test is a byte of the number */
        assert_memory_equal(&sessions[i], &last, sizeof last);
    }
    mx_free(turns);
    mx_free(sessions);
    for (int k = 0; k < 3000; k++) { /* places that are free are used again */
        mx_turn turn = turn_of(-k - 1, 10, UINT32_MAX);
        mx_cold_turns_add(t, &root, &session, 100, &turn);
    }
    mx_cold_turns_drop(t, &root, &last);
    assert_in_range(mx_cold_turns_count(t), 1, 3000);
    mx_cold_turns_destroy(t);
    assert_int_equal(mx_mem_live(), live);
}

/* Manifests are read in any order after a start; the longest is the one that stays. */
static void test_the_longest_manifest_counts(void **arg)
{
    (void)arg;
    mx_cold_turns *t = mx_cold_turns_create();
    mx_hash256 root = help_root(1), sessions[] = {help_root(2), help_root(3), help_root(4)};
    static const uint64_t n_tokens[] = {200, 300, 100};
    mx_turn turn = turn_of(1, 10, 20), *turns;
    for (size_t i = 0; i < MX_COUNT(sessions); i++) {
        mx_cold_turns_add(t, &root, &sessions[i], n_tokens[i], &turn);
    }
    mx_hash256 *found;
    size_t n;
    assert_int_equal(mx_cold_turns_list(t, &root, 0, 0, turn.nonce, &turns, &found, &n), MX_OK);
    assert_int_equal(n, 1);
    assert_memory_equal(&found[0], &sessions[1], sizeof *found);
    mx_free(turns);
    mx_free(found);
    mx_cold_turns_destroy(t);
}

#define T(f) cmocka_unit_test_setup_teardown(f, help_setup, help_teardown)
#define AGELESS(f) cmocka_unit_test_setup_teardown(f, help_setup_ageless, help_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_answers_come_back),      AGELESS(test_later_turn_takes_over),
        T(test_damage),                 T(test_damaged_manifest),
        T(test_removed_with_the_conversation),
        T(test_memory_runs_out),        cmocka_unit_test(test_table_is_bounded),
        cmocka_unit_test(test_the_longest_manifest_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
