/* SPDX-License-Identifier: MIT
 *
 * Bookmarks: their bytes (docs/file-format.md, section 14), and what they keep in a folder.
 */
#include "cold/cold_help.h"

#include "base/clock.h"
#include "cold/cold_bookmark.h"
#include "cold/cold_sweep.h"
#include "cold/cold_tools.h"

enum { FILE_BYTES = MX_DISK_PAYLOAD_AT + TINY_BYTES, DAY_S = 86400 };

typedef help_bed state;

static const char golden[] = "ec1b777d77d1d7fe17a67244bdf6e9ab5e9ce1efdd1deec846d485fb24930ce4";

static mx_hash256 filled(int with)
{
    mx_hash256 h;
    memset(h.b, with, sizeof h.b);
    return h;
}

static mx_bookmark example(void)
{
    mx_bookmark b = {.root = filled(0x11),
                     .entry = filled(0x44),
                     .forked_from = filled(0x55),
                     .is_session = true,
                     .is_pinned = true,
                     .n_tokens = 100,
                     .created_s = 1700000000,
                     .ttl_s = 3600,
                     .name = "talk"};
    b.own = mx_session_id(&b.root, MX_STR("talk"));
    return b;
}

static void put(uint8_t *to, const void *from, size_t n)
{
    memcpy(to, from, n);
}

static void seal(uint8_t bytes[MX_BOOKMARK_BYTES])
{
    mx_hash128 sum = mx_xxh3_128(bytes, 496);
    put(bytes + 496, sum.b, 16);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static void test_golden(void **arg)
{
    (void)arg;
    mx_bookmark b = example(), back;
    uint8_t got[MX_BOOKMARK_BYTES], want[MX_BOOKMARK_BYTES] = {0x89, 'M', 'X', 'M', 'A', 'R', 'K', 0x0A};
    uint8_t named[16 + 32 + 8 + 4];
    put(named, "mtplx session v1", 16);
    put(named + 16, b.root.b, 32);
    mx_put_le64(named + 48, 4);
    put(named + 56, "talk", 4);
    mx_hash256 own = mx_sha256_of(named, sizeof named);
    assert_true(mx_hash256_eq(&own, &b.own));
    mx_put_le32(want + 8, 1);
    mx_put_le32(want + 12, 512);
    put(want + 32, b.root.b, 32);
    put(want + 64, own.b, 32);
    put(want + 96, b.entry.b, 32);
    put(want + 128, b.forked_from.b, 32);
    mx_put_le32(want + 160, 1);
    mx_put_le32(want + 164, 1);
    mx_put_le64(want + 168, 100);
    mx_put_le64(want + 176, 1700000000);
    mx_put_le64(want + 184, 3600);
    mx_put_le32(want + 192, 4);
    put(want + 240, "talk", 4);
    seal(want);
    assert_int_equal(mx_bookmark_encode(&b, NULL, got), MX_OK);
    assert_memory_equal(got, want, sizeof want);
    char hex[65];
    mx_hash256 sum = mx_sha256_of(got, sizeof got);
    mx_hash256_hex(&sum, hex);
    assert_string_equal(hex, golden);
    assert_int_equal(mx_bookmark_decode(&back, got, NULL, false, NULL), MX_OK);
    memset(got, 0, sizeof got);
    assert_int_equal(mx_bookmark_encode(&back, NULL, got), MX_OK);
    assert_memory_equal(got, want, sizeof want);
}

static void test_errors(void **arg)
{
    (void)arg;
    static const struct {
        size_t at;
        uint8_t value;
        mx_err want;
    } cases[] = {
        {8, 2, MX_E_UNSUPPORTED},   {12, 1, MX_E_UNSUPPORTED},  {16, 1, MX_E_UNSUPPORTED}, {24, 1, MX_OK},
        {160, 2, MX_E_CORRUPT},     {160, 0, MX_E_CORRUPT},     {164, 2, MX_E_CORRUPT},    {193, 2, MX_E_CORRUPT},
        {192, 3, MX_E_CORRUPT},     {192, 0, MX_E_CORRUPT},     {196, 2, MX_E_UNSUPPORTED}, {200, 1, MX_E_CORRUPT},
        {232, 1, MX_E_CORRUPT},     {241, 7, MX_E_CORRUPT},     {241, 0xFF, MX_E_CORRUPT}, {241, 'x', MX_E_CORRUPT},
        {64, 0, MX_E_CORRUPT},      {250, 1, MX_E_CORRUPT},     {32, 0, MX_E_CORRUPT},
    };
    mx_bookmark b = example(), back;
    uint8_t good[MX_BOOKMARK_BYTES], bad[MX_BOOKMARK_BYTES];
    mx_errbuf eb;
    assert_int_equal(mx_bookmark_encode(&b, NULL, good), MX_OK);
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        put(bad, good, sizeof bad);
        bad[cases[i].at] = cases[i].value;
        assert_int_equal(mx_bookmark_decode(&back, bad, NULL, false, &eb), MX_E_CORRUPT); /* the checksum */
        seal(bad);
        if (mx_bookmark_decode(&back, bad, NULL, false, &eb) != cases[i].want) {
            print_message("case %zu\n", i);
            fail();
        }
    }
    for (size_t bit = 0; bit < 8 * sizeof good; bit++) {
        put(bad, good, sizeof bad);
        bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(mx_bookmark_decode(&back, bad, NULL, false, &eb), MX_E_CORRUPT);
    }
}

static void test_authentication(void **arg)
{
    (void)arg;
    mx_bookmark b = example(), back;
    mx_hash256 key = filled(1), other = filled(2);
    uint8_t bytes[MX_BOOKMARK_BYTES], plain[MX_BOOKMARK_BYTES];
    assert_int_equal(mx_bookmark_encode(&b, &key, bytes), MX_OK);
    assert_int_equal(mx_bookmark_encode(&b, NULL, plain), MX_OK);
    assert_int_equal(mx_bookmark_decode(&back, bytes, &key, true, NULL), MX_OK);
    assert_int_equal(mx_bookmark_decode(&back, bytes, NULL, false, NULL), MX_OK);
    assert_int_equal(mx_bookmark_decode(&back, bytes, &other, true, NULL), MX_E_CORRUPT);
    assert_int_equal(mx_bookmark_decode(&back, plain, &key, true, NULL), MX_E_CORRUPT);
    assert_int_equal(mx_bookmark_decode(&back, plain, &key, false, NULL), MX_OK);
    bytes[164] = 0; /* somebody takes the pin away */
    seal(bytes);
    assert_int_equal(mx_bookmark_decode(&back, bytes, &key, true, NULL), MX_E_CORRUPT);
}

static void test_names(void **arg)
{
    (void)arg;
    char longest[MX_SESSION_NAME_MAX + 2];
    memset(longest, 'x', sizeof longest);
    assert_true(mx_session_name_ok((mx_str){longest, MX_SESSION_NAME_MAX}));
    assert_false(mx_session_name_ok((mx_str){longest, MX_SESSION_NAME_MAX + 1}));
    assert_true(mx_session_name_ok(MX_STR("a/b \xC3\xBC")));
    assert_false(mx_session_name_ok(MX_STR("")));
    assert_false(mx_session_name_ok(MX_STR("a\n")));
    assert_false(mx_session_name_ok(MX_STR("a\0b")));
    assert_false(mx_session_name_ok(MX_STR("\xC3")));
    mx_hash256 one = filled(1), two = filled(2);
    mx_hash256 a = mx_session_id(&one, MX_STR("a")), b = mx_session_id(&two, MX_STR("a"));
    assert_false(mx_hash256_eq(&a, &b)); /* another model's, or another API key's */
}

/* ---- in a folder ----------------------------------------------------------------------------- */

typedef struct wish {
    const talk *t;
    const char *name;
    bool pin;
    uint64_t ttl_s;
} wish;

static bool grant(void *arg, mx_bookmark *b, bool is_there)
{
    const wish *w = arg;
    (void)is_there;
    b->is_session = w->name != NULL;
    snprintf(b->name, sizeof b->name, "%s", w->name != NULL ? w->name : "");
    b->root = w->t->root;
    b->entry = w->t->ids[w->t->n_ids - 1];
    b->n_tokens = w->t->n;
    b->is_pinned = w->pin;
    b->ttl_s = w->ttl_s;
    return true;
}

static void remove_it(const char *path, void *arg)
{
    (void)arg;
    assert_int_equal(unlink(path), 0);
}

static const char *folder_of(const state *s)
{
    return strrchr(s->root_dir, '/') + 1;
}

static mx_hash256 mark(const state *s, wish w)
{
    mx_errbuf eb = {{0}};
    mx_hash256 own = w.name != NULL ? mx_session_id(&w.t->root, (mx_str){w.name, strlen(w.name)})
                                    : w.t->ids[w.t->n_ids - 1];
    assert_int_equal(mx_cold_change_bookmark(s->dir, NULL, folder_of(s), &own, grant, &w, &eb), MX_OK);
    return own;
}

static void gc(const state *s, uint64_t max_bytes, uint64_t ttl_s)
{
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    assert_int_equal(mx_cold_gc(s->dir, NULL, max_bytes, ttl_s, &n, &eb), MX_OK);
}

static size_t count(const state *s, const char *suffix)
{
    return help_count(s->root_dir, suffix);
}

static void sweep(state *s)
{
    mx_cold *c = help_open_settled(&s->cfg);
    mx_cold_close(c);
}

/* By gc and by a server's sweep; without a pin it goes. */
static void check_pinned(state *s, bool by_server)
{
    help_keep_talk(s, &s->talk, 1, 300);
    help_keep_talk(s, &s->other, 2, 640);
    mx_hash256 own = mark(s, (wish){.t = &s->talk, .pin = true});
    help_age_all(s, "", 9 * DAY_S);
    s->cfg.max_bytes = 3 * FILE_BYTES;
    s->cfg.ttl_s = DAY_S;
    if (by_server) {
        sweep(s);
    } else {
        gc(s, s->cfg.max_bytes, DAY_S);
    }
    assert_int_equal(count(s, ".page"), 5);
    assert_int_equal(count(s, ".session"), 1);
    s->cfg.max_bytes = (uint64_t)1 << 40;
    s->cfg.ttl_s = 0;
    assert_int_equal(help_find_talk(s, &s->talk), 300);
    mx_errbuf eb;
    assert_int_equal(mx_cold_remove_bookmark(s->dir, NULL, folder_of(s), &own, &eb), MX_OK);
    assert_int_equal(mx_cold_remove_bookmark(s->dir, NULL, folder_of(s), &own, &eb), MX_E_NOT_FOUND);
    help_age_all(s, "", 9 * DAY_S);
    gc(s, UINT64_MAX, DAY_S);
    assert_int_equal(count(s, ".page"), 0);
}

static void test_a_pin_holds_against_gc(void **arg)
{
    check_pinned(*arg, false);
}

static void test_a_pin_holds_against_a_sweep(void **arg)
{
    check_pinned(*arg, true);
}

static const state *choosing; /* NULL = nobody */

static int rename_and_pin(int old_dir, const char *old_name, int new_dir, const char *new_name)
{
    const state *s = choosing;
    if (s != NULL) {
        choosing = NULL;
        mark(s, (wish){.t = &s->other, .pin = true});
    }
    return mx_cold_real_fileops.rename(old_dir, old_name, new_dir, new_name);
}

/* The sweep has read all bookmarks, and its list is made; the first file goes when somebody pins one of the
 * others. */
static void test_a_pin_holds_against_a_sweep_that_runs(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 300);
    help_keep_talk(s, &s->other, 2, 300);
    help_age_all(s, "", 8 * DAY_S);
    for (size_t i = 0; i < s->talk.n_ids; i++) { /* so that these go first */
        char path[700];
        int64_t age_s = 9 * DAY_S;
        help_page_path(s, &s->talk.ids[i], path);
        help_age(path, &age_s);
    }
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.rename = rename_and_pin;
    s->cfg.tuning.fileops = &ops;
    s->cfg.ttl_s = DAY_S;
    choosing = s;
    sweep(s);
    assert_null(choosing);
    assert_int_equal(count(s, ".page"), 5);
    assert_int_equal(count(s, ".session"), 1);
    assert_int_equal(help_find_talk(s, &s->other), 300);
}

/* A conversation has gone on: its earlier point is superfluous, unless somebody stands there. */
static void check_superseded(state *s, bool is_named)
{
    help_keep_talk(s, &s->talk, 1, 300);
    mx_hash256 tail = s->talk.ids[s->talk.n_ids - 1];
    if (is_named) {
        mark(s, (wish){.t = &s->talk, .name = "fork"});
    }
    help_keep_talk(s, &s->other, 1, 640); /* the same tokens, and more */
    help_age_all(s, "", 7200);
    sweep(s);
    char hex[65], path[200];
    mx_hash256_hex(&tail, hex);
    snprintf(path, sizeof path, "sessions/%s.session", hex);
    assert_int_equal(help_is_there(s, path), is_named);
    snprintf(path, sizeof path, "pages/%.2s/%s.page", hex, hex);
    assert_int_equal(help_is_there(s, path), is_named);
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    const mx_hash256 *last = &s->other.ids[s->other.n_ids - 1];
    assert_int_equal(mx_cold_remove_session(s->dir, NULL, folder_of(s), last, NULL, 0, &n, &eb), MX_OK);
    assert_int_equal(help_find_talk(s, &s->talk), is_named ? 300 : 0);
}

static void test_a_name_keeps_its_point(void **arg)
{
    check_superseded(*arg, true);
}

static void test_without_a_name_it_goes(void **arg)
{
    check_superseded(*arg, false);
}

/* Turns end inside of pages, and the sweep that would remove them may be minutes away: a conversation that
 * is removed must not leave them. Another one that leaves it in the same page stays. */
static void test_a_session_goes_with_its_turns(void **arg)
{
    state *s = *arg;
    static talk branch;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    const size_t ends[] = {300, 310, 320, 640};
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&branch, &s->root, 1, 0, 300);
    talk_make(&branch, &s->root, 2, 290, 300);
    assert_int_equal(help_write_talk(c, &branch), MX_OK);
    for (size_t most = 1; most <= MX_COUNT(ends); most++) {
        for (size_t i = 0; i < most; i++) {
            talk_make(&s->talk, &s->root, 1, 0, ends[i]);
            assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
        }
        assert_int_equal(count(s, ".session"), most + 1);
        const mx_hash256 *last = &s->talk.ids[s->talk.n_ids - 1];
        assert_int_equal(mx_cold_remove_session(s->dir, NULL, folder_of(s), last, NULL, 0, &n, &eb), MX_OK);
        assert_int_equal(count(s, ".session"), 1);
        assert_int_equal(count(s, ".page"), branch.n_ids);
        assert_true(mx_cold_sweep(c, 20000000)); /* as mx_engine_forget does */
    }
    assert_int_equal(help_read_talk(c, &branch, 300), 300);
    mx_cold_close(c);
}

/* Which tokens it has is known all the same, and no row of it is looked at. */
static void test_a_turn_with_damaged_rows_goes_with_its_session(void **arg)
{
    state *s = *arg;
    char path[700];
    static uint8_t bytes[FILE_BYTES];
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    help_keep_talk(s, &s->talk, 1, 300);
    help_page_path(s, &s->talk.ids[4], path);
    size_t n_bytes = help_slurp(path, bytes, sizeof bytes);
    assert_in_range(n_bytes, MX_DISK_PAYLOAD_AT + 1, sizeof bytes);
    bytes[MX_DISK_PAYLOAD_AT] ^= 1;
    help_spill(path, bytes, n_bytes);
    help_keep_talk(s, &s->talk, 1, 310);
    assert_int_equal(count(s, ".session"), 2);
    mx_err err = mx_cold_remove_session(s->dir, NULL, folder_of(s), &s->talk.ids[4], NULL, 0, &n, &eb);
    assert_int_equal(err, MX_OK);
    assert_int_equal(count(s, ".session"), 0);
    assert_int_equal(count(s, ".page"), 0);
}

/* What an entry of a later version names is not known. */
static void test_a_session_beside_what_cannot_be_read_stays_whole(void **arg)
{
    enum { HEADER_BYTES = MX_DISK_MANIFEST_HEADER_BYTES };
    state *s = *arg;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    uint8_t bytes[1024];
    char path[700], later[700];
    help_keep_talk(s, &s->talk, 1, 64);
    help_session_path(s, &s->talk.ids[0], path);
    snprintf(later, sizeof later, "%s/sessions/%064d.session", s->root_dir, 0);
    size_t n_bytes = help_slurp(path, bytes, sizeof bytes);
    assert_in_range(n_bytes, HEADER_BYTES, sizeof bytes - 1);
    mx_put_le32(bytes + 8, 2);
    mx_hash128 sum = mx_xxh3_128(bytes, HEADER_BYTES - 16);
    put(bytes + HEADER_BYTES - 16, sum.b, 16);
    help_spill(later, bytes, n_bytes);
    assert_int_equal(chmod(later, 0600), 0);
    for (size_t end = 128; end <= 640; end += 128) {
        help_keep_talk(s, &s->talk, 1, end);
    }
    mx_err err = mx_cold_remove_session(s->dir, NULL, folder_of(s), &s->talk.ids[9], NULL, 0, &n, &eb);
    assert_int_equal(err, MX_E_UNSUPPORTED);
    assert_non_null(strstr(eb.text, "nothing was removed"));
    assert_int_equal(n.n_files, 0);
    assert_int_equal(count(s, ".session"), 7);
}

/* Removing the entry takes the bookmarks with it; a bookmark without its entry is of no use. */
static void test_bookmarks_go_with_their_entry(void **arg)
{
    state *s = *arg;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    help_keep_talk(s, &s->talk, 1, 300);
    help_keep_talk(s, &s->other, 2, 300);
    mark(s, (wish){.t = &s->talk, .name = "one"});
    mark(s, (wish){.t = &s->talk, .pin = true});
    mark(s, (wish){.t = &s->other, .name = "two", .pin = true});
    assert_int_equal(count(s, ".bookmark"), 3);
    assert_int_equal(mx_cold_remove_entry(s->dir, NULL, folder_of(s), &s->talk.ids[4], NULL, 0, &n, &eb), MX_OK);
    assert_int_equal(count(s, ".bookmark"), 1);
    help_each_file(s->root_dir, ".session", remove_it, NULL);
    gc(s, UINT64_MAX, 0);
    assert_int_equal(count(s, ".bookmark"), 0);
}

/* Who has seen it a while ago does not know what it has become since. */
static void test_a_bookmark_that_was_changed_is_not_removed(void **arg)
{
    state *s = *arg;
    mx_bookmark seen;
    char path[700], name[MX_COLD_NAME_CAP];
    uint8_t bytes[MX_BOOKMARK_BYTES];
    const mx_cold_fileops *ops = &mx_cold_real_fileops;
    help_keep_talk(s, &s->talk, 1, 300);
    mx_hash256 own = mark(s, (wish){.t = &s->talk, .name = "one"});
    snprintf(path, sizeof path, "%s/sessions", s->root_dir);
    int dir = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(dir >= 0);
    assert_int_equal(mx_bookmark_read(ops, dir, &own, NULL, false, &seen, NULL), MX_OK);
    mx_bookmark_file_name(&own, name);
    snprintf(path, sizeof path, "%s/sessions/%s", s->root_dir, name);
    assert_int_equal(help_slurp(path, bytes, sizeof bytes), sizeof bytes);
    mark(s, (wish){.t = &s->talk, .name = "one", .pin = true});
    assert_int_equal(mx_bookmark_remove_unchanged(ops, dir, &seen, NULL, false), MX_E_BUSY);
    mx_put_le32(bytes + 8, 2); /* of a later version */
    seal(bytes);
    help_spill(path, bytes, sizeof bytes);
    assert_int_equal(mx_bookmark_remove_unchanged(ops, dir, &seen, NULL, false), MX_E_BUSY);
    assert_int_equal(count(s, ".bookmark"), 1);
    close(dir);
}

/* Two sessions at the same point, and one whose time is over: then both. */
static void test_time_to_live(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 300);
    help_keep_talk(s, &s->other, 2, 640);
    mark(s, (wish){.t = &s->talk, .name = "short", .ttl_s = 3600});
    mark(s, (wish){.t = &s->talk, .name = "long", .ttl_s = 9 * DAY_S});
    mark(s, (wish){.t = &s->other, .name = "pinned", .ttl_s = 1, .pin = true});
    help_age_all(s, "", 3000);
    gc(s, UINT64_MAX, 0);
    assert_int_equal(count(s, ".bookmark"), 3);
    help_age_all(s, "", 7200);
    sweep(s);
    assert_int_equal(count(s, ".bookmark"), 2);
    assert_int_equal(help_find_talk(s, &s->talk), 300);
    help_age_all(s, "", 10 * DAY_S);
    mx_cold *c = help_open_settled(&s->cfg);
    mx_hash256 entry;
    assert_true(mx_cold_take_expired(c, &entry)); /* for the tier in RAM */
    assert_true(mx_hash256_eq(&entry, &s->talk.ids[4]));
    assert_false(mx_cold_take_expired(c, &entry));
    mx_cold_close(c);
    assert_int_equal(count(s, ".bookmark"), 1);
    assert_int_equal(count(s, ".page"), 10);
    assert_int_equal(help_find_talk(s, &s->other), 640);
}

typedef struct expiry {
    const state *s;
    size_t n_told;
    bool is_enough;
} expiry;

/* One of the two has gone; the other session is pinned, or used, at this moment. */
static bool keep_the_other(void *arg, const char *folder, const mx_hash256 *entry)
{
    expiry *x = arg;
    const state *s = x->s;
    bool was_first = mx_hash256_eq(entry, &s->talk.ids[s->talk.n_ids - 1]);
    (void)folder;
    mark(s, (wish){.t = was_first ? &s->other : &s->talk, .name = was_first ? "two" : "one",
                   .ttl_s = 3600, .pin = true});
    x->n_told++;
    return true;
}

static bool tell(void *arg, const char *folder, const mx_hash256 *entry)
{
    expiry *x = arg;
    (void)folder, (void)entry;
    x->n_told++;
    return !x->is_enough;
}

static size_t expire_by(const state *s, const mx_cold_fileops *ops, bool is_enough, mx_sweep_expired_fn *fn,
                        mx_err want)
{
    expiry x = {.s = s, .is_enough = is_enough};
    mx_cold_counts n = {0};
    char path[300];
    snprintf(path, sizeof path, "%s/v1", s->dir);
    int v1 = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(v1 >= 0);
    const mx_cold_trust trust = {ops, NULL, false, NULL};
    assert_int_equal(mx_sweep_expire_sessions(v1, &trust, mx_wall_s(), 0, fn, &x, &n), want);
    close(v1);
    return x.n_told;
}

static size_t expire(const state *s, bool is_enough, mx_sweep_expired_fn *fn)
{
    return expire_by(s, &mx_cold_real_fileops, is_enough, fn, MX_OK);
}

static void keep_two(state *s)
{
    help_keep_talk(s, &s->talk, 1, 300);
    help_keep_talk(s, &s->other, 2, 300);
    mark(s, (wish){.t = &s->talk, .name = "one", .ttl_s = 3600});
    mark(s, (wish){.t = &s->other, .name = "two", .ttl_s = 3600});
    help_age_all(s, "", 7200);
}

/* Others may take long to go. */
static void test_a_session_that_is_pinned_while_others_expire_stays(void **arg)
{
    state *s = *arg;
    keep_two(s);
    assert_int_equal(expire(s, false, keep_the_other), 1);
    assert_int_equal(count(s, ".bookmark"), 1);
    assert_int_equal(count(s, ".session"), 1);
    assert_int_equal(count(s, ".page"), 5);
}

/* The server stops: one more is not begun. */
static void test_expiring_ends_when_it_is_told_to(void **arg)
{
    state *s = *arg;
    keep_two(s);
    assert_int_equal(expire(s, true, tell), 1);
    assert_int_equal(count(s, ".bookmark"), 1);
    assert_int_equal(expire(s, true, tell), 1);
    assert_int_equal(count(s, ".bookmark"), 0);
    assert_int_equal(count(s, ".page"), 0);
}

static ino_t unreadable;

static ssize_t read_but_one(int fd, const struct iovec *iov, int n, long at)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_ino == unreadable) {
        errno = EIO;
        return -1;
    }
    return mx_cold_real_fileops.preadv(fd, iov, n, at);
}

/* Where it stands is not known, so that point must not go with the session whose chain it is in. */
static void test_a_pin_that_cannot_be_read_holds(void **arg)
{
    state *s = *arg;
    char path[700], name[MX_COLD_NAME_CAP];
    struct stat st;
    help_keep_talk(s, &s->talk, 1, 128);
    mx_hash256 own = mark(s, (wish){.t = &s->talk, .pin = true});
    mx_bookmark_file_name(&own, name);
    snprintf(path, sizeof path, "%s/sessions/%s", s->root_dir, name);
    assert_int_equal(stat(path, &st), 0);
    unreadable = st.st_ino;
    help_keep_talk(s, &s->talk, 1, 300);
    mark(s, (wish){.t = &s->talk, .name = "one", .ttl_s = 3600});
    help_age_all(s, "", 7200);
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.preadv = read_but_one;
    assert_int_equal(expire_by(s, &ops, false, tell, MX_E_IO), 0);
    assert_int_equal(count(s, ".session"), 2);
    assert_int_equal(count(s, ".bookmark"), 2);
    assert_int_equal(expire(s, false, tell), 1);
    assert_int_equal(count(s, ".session"), 1);
}

/* Two that stand at one point, both over: the last one takes it along. */
static void test_sessions_at_one_point_expire_together(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 300);
    mark(s, (wish){.t = &s->talk, .name = "one", .ttl_s = 3600});
    mark(s, (wish){.t = &s->talk, .name = "fork", .ttl_s = 3600});
    help_age_all(s, "", 7200);
    assert_int_equal(expire(s, false, tell), 1);
    assert_int_equal(count(s, ".bookmark"), 0);
    assert_int_equal(count(s, ".page"), 0);
}

/* What was read a moment ago is in use, by whomever: the beginning, which others share, or all of it. */
static void test_what_is_read_does_not_expire(void **arg)
{
    state *s = *arg;
    char path[700];
    const int64_t age_s = 60;
    for (int is_end = 1; is_end >= 0; is_end--) {
        help_keep_talk(s, &s->talk, 1, 300);
        mark(s, (wish){.t = &s->talk, .name = "one", .ttl_s = 3600});
        help_age_all(s, "", 7200);
        help_page_path(s, &s->talk.ids[is_end ? 4 : 0], path);
        help_age(path, (void *)(uintptr_t)&age_s);
        sweep(s);
        assert_int_equal(count(s, ".bookmark"), is_end);
        assert_int_equal(count(s, ".session"), is_end);
        assert_int_equal(count(s, ".page"), is_end ? 5 : 1);
    }
}

static const state *returning; /* NULL = nobody */

static int unlink_and_return(int dir, const char *name, int flags)
{
    if (returning != NULL && strncmp(name, ".tmp-1", 6) == 0) {
        mark(returning, (wish){.t = &returning->other, .name = "back"});
        returning = NULL;
    }
    return mx_cold_real_fileops.unlink(dir, name, flags);
}

static bool is_manifest_of(const talk *t, const char *name)
{
    char own[MX_COLD_NAME_CAP];
    mx_cold_session_name(&t->ids[t->n_ids - 1], own);
    return strcmp(name, own) == 0;
}

/* Bookmarks are looked at before the manifests of others. */
static int open_and_return(int dir, const char *name, int flags, unsigned mode)
{
    const state *s = returning;
    if (s != NULL && is_manifest_of(&s->other, name)) {
        returning = NULL;
        mark(s, (wish){.t = &s->talk, .name = "back", .pin = true});
    }
    return mx_cold_real_fileops.open(dir, name, flags, mode);
}

/* Its time is over, and something happens while the manifests of others are read. */
static void expire_talk(const state *s, int (*open)(int dir, const char *name, int flags, unsigned mode))
{
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.open = open;
    mark(s, (wish){.t = &s->talk, .name = "back", .ttl_s = 3600});
    help_age_all(s, "", 7200);
    assert_int_equal(expire_by(s, &ops, false, tell, MX_OK), 1);
}

static mx_cold *storing; /* NULL = nobody */
static talk stored, beside;

static int open_and_store(int dir, const char *name, int flags, unsigned mode)
{
    mx_cold *c = storing;
    if (c != NULL && is_manifest_of(&beside, name)) {
        storing = NULL;
        assert_int_equal(help_write_talk(c, &stored), MX_OK);
    }
    return mx_cold_real_fileops.open(dir, name, flags, mode);
}

/* Another conversation has the same beginning. It becomes durable while all manifests are read, which tells
 * who needs what; its own may be passed over. */
static void test_what_is_stored_while_others_expire_stays(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &beside, 9, 300);
    help_keep_talk(s, &s->talk, 1, 300);
    talk_make(&stored, &s->root, 1, 0, 200);
    talk_make(&stored, &s->root, 2, 128, 200);
    mx_cold *c = storing = help_open_settled(&s->cfg);
    expire_talk(s, open_and_store);
    assert_null(storing);
    assert_int_equal(count(s, ".session"), 2);
    assert_int_equal(help_read_talk(c, &stored, 200), 200);
    assert_int_equal(count(s, ".page"), 5 + 4);
    mx_cold_close(c);
}

/* Too late for the files, but not for what is said of the session: its next turn stands behind it. */
static void test_a_session_that_comes_back_too_late_keeps_its_name(void **arg)
{
    state *s = *arg;
    help_keep_talk(s, &s->talk, 1, 300);
    help_keep_talk(s, &s->other, 2, 300);
    returning = s;
    expire_talk(s, open_and_return);
    assert_null(returning);
    assert_int_equal(count(s, ".session"), 1);
    assert_int_equal(count(s, ".bookmark"), 1);
}

/* The entry is gone, and with it the bookmark; but the session goes on just then. */
static void test_a_session_that_comes_back_keeps_its_name(void **arg)
{
    state *s = *arg;
    char path[700];
    help_keep_talk(s, &s->talk, 1, 300);
    help_keep_talk(s, &s->other, 2, 300);
    mark(s, (wish){.t = &s->talk, .name = "back"});
    help_session_path(s, &s->talk.ids[4], path);
    assert_int_equal(unlink(path), 0);
    help_age_all(s, "", 7200);
    help_spill_aged(s, "sessions/.tmp-1", 9 * DAY_S); /* goes before it */
    mx_cold_fileops ops = mx_cold_real_fileops;
    ops.unlink = unlink_and_return;
    s->cfg.tuning.fileops = &ops;
    s->cfg.tuning.delete_age_s = s->cfg.tuning.orphan_age_s = 600;
    returning = s;
    sweep(s);
    assert_null(returning);
    assert_int_equal(count(s, ".bookmark"), 1);
    help_each_file(s->root_dir, ".session", remove_it, NULL);
    help_age_all(s, "", 7200);
    sweep(s);
    assert_int_equal(count(s, ".bookmark"), 0);
}

static void test_pins_are_known_after_a_start(void **arg)
{
    state *s = *arg;
    mx_hash256 old, next = filled(9);
    help_keep_talk(s, &s->talk, 1, 300);
    mx_hash256 own = mark(s, (wish){.t = &s->talk, .name = "kept", .pin = true});
    mx_cold *c = help_open_settled(&s->cfg);
    assert_true(mx_cold_has_pins(c) && mx_cold_is_pinned(c, &s->talk.ids[4]));
    assert_true(mx_cold_move_pin(c, &own, &next, &old));
    assert_true(mx_hash256_eq(&old, &s->talk.ids[4]));
    assert_true(mx_cold_sweep(c, 60 * 1000000)); /* the folder does not know yet */
    assert_true(mx_cold_is_pinned(c, &next) && !mx_cold_is_pinned(c, &old));
    mx_cold_set_pin(c, &own, &next, false);
    assert_false(mx_cold_has_pins(c) || mx_cold_move_pin(c, &own, &next, &old));
    mx_cold_close(c);
}

/* What is damaged or foreign pins nothing, and costs nothing else. */
static void test_damaged_bookmarks(void **arg)
{
    state *s = *arg;
    uint8_t bytes[MX_BOOKMARK_BYTES];
    char name[MX_COLD_NAME_CAP], path[700], command[1500];
    help_keep_talk(s, &s->talk, 1, 300);
    mx_hash256 own = mark(s, (wish){.t = &s->talk, .name = "kept", .pin = true});
    mx_bookmark_file_name(&own, name);
    snprintf(path, sizeof path, "%s/sessions/%s", s->root_dir, name);
    assert_int_equal(help_slurp(path, bytes, sizeof bytes), sizeof bytes);
    bytes[250] ^= 1;
    help_spill(path, bytes, sizeof bytes);
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    help_age_all(s, "", 9 * DAY_S);
    gc(s, UINT64_MAX, DAY_S);
    assert_int_equal(count(s, ".page"), 0);
    assert_int_equal(count(s, ".bookmark"), 1);
    mark(s, (wish){.t = &s->talk, .name = "kept"}); /* written over */
    assert_int_equal(help_slurp(path, bytes, sizeof bytes), sizeof bytes);
    snprintf(command, sizeof command, "rm '%s' && mkdir -p '%s/x'", path, path);
    assert_int_equal(system(command), 0);
    mark(s, (wish){.t = &s->talk, .name = "kept"}); /* makes way */
    assert_int_equal(help_slurp(path, bytes, sizeof bytes), sizeof bytes);
    snprintf(command, sizeof command, "rm -r '%s/quarantine/'*", s->root_dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(mx_cold_remove_all(s->dir, NULL, &n.n_files, &n.n_bytes, &eb), MX_OK);
    assert_string_equal(eb.text, "");
}

/* A session that was used while the clock was not set yet (1970) has not expired when it is. */
static void test_session_of_1970_has_not_expired(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(&s->talk, &s->root, 1, 0, 200);
    assert_int_equal(help_write_talk(c, &s->talk), MX_OK);
    mx_cold_close(c);
    mark(s, (wish){.t = &s->talk, .name = "early", .ttl_s = 9 * DAY_S});
    int64_t age = time(NULL) - 100;
    help_each_file(s->root_dir, ".bookmark", help_age, &age);
    c = help_open_settled(&s->cfg);
    assert_true(mx_cold_sweep(c, 20000000));
    assert_int_equal(help_count(s->root_dir, ".bookmark"), 1);
    assert_int_equal(help_read_talk(c, &s->talk, 200), 200);
    mx_cold_close(c); /* the reader says behind its answer what it has used */
    help_age_all(s, "", 10 * DAY_S);
    sweep(s);
    assert_int_equal(help_count(s->root_dir, ".bookmark"), 0);
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, help_setup, help_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_authentication),
        cmocka_unit_test(test_names),
        T(test_a_pin_holds_against_gc),
        T(test_a_pin_holds_against_a_sweep),
        T(test_a_pin_holds_against_a_sweep_that_runs),
        T(test_a_name_keeps_its_point),
        T(test_without_a_name_it_goes),
        T(test_a_session_goes_with_its_turns),
        T(test_a_turn_with_damaged_rows_goes_with_its_session),
        T(test_a_session_beside_what_cannot_be_read_stays_whole),
        T(test_bookmarks_go_with_their_entry),
        T(test_a_bookmark_that_was_changed_is_not_removed),
        T(test_time_to_live),
        T(test_a_session_that_is_pinned_while_others_expire_stays),
        T(test_expiring_ends_when_it_is_told_to),
        T(test_a_pin_that_cannot_be_read_holds),
        T(test_sessions_at_one_point_expire_together),
        T(test_what_is_read_does_not_expire),
        T(test_what_is_stored_while_others_expire_stays),
        T(test_a_session_that_comes_back_too_late_keeps_its_name),
        T(test_a_session_that_comes_back_keeps_its_name),
        T(test_pins_are_known_after_a_start),
        T(test_damaged_bookmarks),
        T(test_session_of_1970_has_not_expired),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
