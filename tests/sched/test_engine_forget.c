/* SPDX-License-Identifier: MIT
 *
 * What is deleted, or pinned, or has come to the end of its time, is so in RAM and in the folder at
 * once, also while the writer has it in its hands.
 */
#include "sched/sched_internal.h"
#include "tapped_folder.h"

#include "cold/cold_format.h"

#include <ftw.h>

/* ---- deleting --------------------------------------------------------------------------------- */

typedef struct entries {
    mx_hash256 ids[8];
    size_t n;
} entries;

static void add_entry(void *arg, const mx_bank_point *p)
{
    entries *l = arg;
    if (p->is_entry && l->n < MX_COUNT(l->ids)) {
        l->ids[l->n++] = mx_bank_point_id(p);
    }
}

static void list_entries(void *arg, const mx_engine_view *view)
{
    mx_bank_walk(view->bank, add_entry, arg);
}

static entries entries_of(rig *g)
{
    entries l = {.n = 0};
    assert_int_equal(mx_engine_call(g->engine, list_entries, &l), MX_OK);
    return l;
}

static const char *counted_suffix;
static size_t n_counted;

static int count_file(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)at;
    size_t len = strlen(path), tail = strlen(counted_suffix);
    n_counted += type == FTW_F && len > tail && strcmp(path + len - tail, counted_suffix) == 0;
    return 0;
}

static size_t count_files(const rig *g, const char *suffix)
{
    counted_suffix = suffix;
    n_counted = 0;
    assert_int_equal(nftw(g->cache_dir, count_file, 16, FTW_PHYS), 0);
    return n_counted;
}

static mx_err forget(rig *g, const mx_hash256 *id, uint64_t timeout_us)
{
    mx_forgotten n;
    mx_errbuf eb = {{0}};
    mx_err err = mx_engine_forget(g->engine, id, timeout_us, &n, &eb);
    assert_true(err == MX_OK || eb.text[0] != '\0');
    return err;
}

/* While the writer hangs in the first page, nothing can be deleted for certain, and so nothing is.
 * After that everything goes, though most of it was still waiting to be written. */
static void check_deleted_while_it_waits(bool all)
{
    rig g;
    open_rig(&g, 0);
    prompt p;
    make_prompt(&p, 71);
    rig_start(&g);
    close_tap(&g);
    ask_both(&g, &p, "first");
    wait_for_held();
    entries l = entries_of(&g);
    assert_true(l.n >= 2); /* the prompt's end, and the turn's */
    size_t n_asked = all ? 1 : l.n;
    for (size_t i = 0; i < n_asked; i++) {
        assert_int_equal(forget(&g, all ? NULL : &l.ids[i], 200000), MX_E_BUSY);
    }
    assert_int_equal(entries_of(&g).n, l.n);
    open_tap();
    for (size_t i = 0; i < n_asked; i++) {
        assert_int_equal(forget(&g, all ? NULL : &l.ids[i], 60000000), MX_OK);
    }
    assert_int_equal(entries_of(&g).n, 0);
    rig_wait_written(&g);
    mx_engine_stats s;
    RIG_WAIT_STATS(&g, &s, s.bank.n_pages == 0);
    assert_int_equal(s.bank.n_pages, 0); /* no ticket has held one */
    rig_stop(&g);
    assert_int_equal(count_files(&g, ".page"), 0);
    assert_int_equal(count_files(&g, ".session"), 0);
    rig_start(&g);
    mx_request_stats r = ask_both(&g, &p, "as if it had never been");
    assert_int_equal(r.cache_mode, MX_MODE_COLD);
    rig_close(&g);
}

static void entry_is_deleted_while_it_waits(void **state)
{
    (void)state;
    check_deleted_while_it_waits(false);
}

static void all_is_deleted_while_it_waits(void **state)
{
    (void)state;
    check_deleted_while_it_waits(true);
}

/* A turn ends inside of a page, and the conversation has gone on from there: that waits, too. */
static void session_is_deleted_while_it_waits(void **state)
{
    (void)state;
    enum { FIRST = N_PROMPT - 60 };
    rig g;
    open_rig(&g, 0);
    prompt p;
    answer turn;
    make_prompt(&p, 74);
    mx_forgotten n;
    mx_errbuf eb = {{0}};
    p.q.session = "talk";
    p.q.n_prompt = FIRST;
    rig_start(&g);
    close_tap(&g);
    ask_and_wait(&g, &p.q, &turn);
    assert_int_equal(turn.n_ids, 20);
    memcpy(p.tokens + FIRST, turn.ids, turn.n_ids * sizeof *turn.ids);
    answer_free(&turn);
    wait_for_held();
    p.q.n_prompt = N_PROMPT;
    ask_both(&g, &p, "second");
    entries l = entries_of(&g);
    assert_int_equal(l.n, 4); /* as far as it goes, so the last one is where it stands */
    const mx_hash256 *last = &l.ids[3];
    assert_int_equal(mx_engine_forget_session(g.engine, last, 200000, &n, &eb), MX_E_BUSY);
    open_tap();
    assert_int_equal(mx_engine_forget_session(g.engine, last, 60000000, &n, &eb), MX_OK);
    assert_int_equal(entries_of(&g).n, 0);
    rig_wait_written(&g);
    rig_stop(&g);
    assert_int_equal(count_files(&g, ".page"), 0);
    assert_int_equal(count_files(&g, ".session"), 0);
    rig_close(&g);
}

/* A manifest whose pages somebody has removed is offered again with all of them: not after it was
 * deleted. */
static void deleted_entry_is_not_stored_again(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    prompt p, other;
    make_prompt(&p, 72);
    make_prompt(&other, 73);
    uint64_t files, bytes;
    mx_errbuf eb = {{0}};
    rig_start(&g);
    ask_both(&g, &p, "first");
    rig_wait_written(&g);
    entries l = entries_of(&g);
    rig_must(mx_cold_remove_all(g.cache_dir, NULL, &files, &bytes, &eb), &eb, "remove");
    close_tap(&g);
    ask_both(&g, &other, "holds up the writer");
    wait_for_held();
    ask_both(&g, &p, "from RAM");
    for (size_t i = 0; i < l.n; i++) {
        assert_int_equal(forget(&g, &l.ids[i], 200000), MX_E_BUSY);
    }
    open_tap();
    rig_wait_written(&g);
    rig_stop(&g);
    assert_int_equal(count_files(&g, ".session"), 2); /* of the other one */
    assert_int_equal(count_files(&g, ".page"), 5);
    rig_close(&g);
}

/* ---- sessions --------------------------------------------------------------------------------- */

typedef struct pins {
    size_t n, n_tokens; /* pinned entries in RAM; where the last of them ends */
} pins;

static void add_pin(void *arg, const mx_bank_point *p)
{
    pins *l = arg;
    if (p->is_entry && p->is_pinned) {
        l->n++;
        l->n_tokens = p->n_tokens;
    }
}

static void list_pins(void *arg, const mx_engine_view *view)
{
    mx_bank_walk(view->bank, add_pin, arg);
}

static pins pins_of(rig *g)
{
    pins l = {0};
    assert_int_equal(mx_engine_call(g->engine, list_pins, &l), MX_OK);
    return l;
}

static bool set_pin(void *arg, mx_bookmark *b, bool is_there)
{
    assert_true(is_there && b->is_session);
    b->is_pinned = true;
    b->ttl_s = 0;
    *(mx_bookmark *)arg = *b;
    return true;
}

static mx_err change_session(rig *g, const char *name, mx_bookmark_fn *fn, void *arg)
{
    char hex[65];
    mx_errbuf eb;
    mx_hash256 root = mx_model_root(g->model, NULL), own = mx_session_id(&root, mx_str_of(name));
    mx_hash256_hex(&root, hex);
    return mx_cold_change_bookmark(g->cache_dir, NULL, hex, &own, fn, arg, &eb);
}

/* A pin that is on disk only, as after a restart, is in RAM, too, with the session's next turn, and moves with it:
 * what is pinned is the newest point, not all of them. Another session has no part in it. */
static void a_pinned_session_is_pinned_where_it_stands(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    prompt p;
    make_prompt(&p, 81);
    mx_bookmark b;
    rig_start(&g);
    p.q.session = "kept";
    p.q.n_prompt = N_PROMPT / 2;
    ask_both(&g, &p, "first");
    rig_wait_written(&g);
    assert_int_equal(change_session(&g, "kept", set_pin, &b), MX_OK);
    assert_int_equal(b.n_tokens, N_PROMPT / 2 + 19);
    rig_stop(&g);
    rig_start(&g);
    assert_true(mx_cold_sweep(mx_engine_cold(g.engine), 60 * 1000000));
    assert_int_equal(pins_of(&g).n, 0);
    for (size_t n = N_PROMPT - 20; n <= N_PROMPT; n += 20) {
        p.q.n_prompt = n;
        ask_both(&g, &p, "another turn");
        pins l = pins_of(&g);
        assert_int_equal(l.n, 1);
        assert_int_equal(l.n_tokens, n + 19); /* the last token sampled was not fed */
    }
    p.q.session = "another";
    p.q.n_prompt = N_PROMPT - 50;
    ask_both(&g, &p, "another session");
    assert_int_equal(pins_of(&g).n_tokens, N_PROMPT + 19);
    rig_wait_written(&g);
    assert_int_equal(change_session(&g, "kept", set_pin, &b), MX_OK);
    assert_int_equal(b.n_tokens, N_PROMPT + 19); /* the folder's has moved, too */
    rig_close(&g);
}

static bool let_rest(void *arg, mx_bookmark *b, bool is_there)
{
    (void)arg;
    b->ttl_s = 1;
    return is_there;
}

/* Its time is over: it leaves RAM with the folder, also the points on the way to where it stands. */
static void an_expired_session_leaves_ram(void **state)
{
    (void)state;
    rig g;
    open_rig(&g, 0);
    g.cfg.cold_tuning.delete_age_s = -1;
    prompt p;
    make_prompt(&p, 82);
    rig_start(&g);
    p.q.session = "short";
    ask_both(&g, &p, "first");
    rig_wait_written(&g);
    assert_true(entries_of(&g).n >= 2);
    assert_int_equal(change_session(&g, "short", let_rest, NULL), MX_OK);
    sleep(2);
    assert_true(mx_cold_sweep(mx_engine_cold(g.engine), 60 * 1000000));
    for (int i = 0; i < 100 && entries_of(&g).n > 0; i++) {
        usleep(50000);
    }
    assert_int_equal(entries_of(&g).n, 0);
    assert_int_equal(count_files(&g, ".session") + count_files(&g, ".bookmark"), 0);
    mx_request_stats s = ask_both(&g, &p, "as if it had never been");
    assert_int_equal(s.cache_mode, MX_MODE_COLD);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entry_is_deleted_while_it_waits),
        cmocka_unit_test(all_is_deleted_while_it_waits),
        cmocka_unit_test(session_is_deleted_while_it_waits),
        cmocka_unit_test(deleted_entry_is_not_stored_again),
        cmocka_unit_test(a_pinned_session_is_pinned_where_it_stands),
        cmocka_unit_test(an_expired_session_leaves_ram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
