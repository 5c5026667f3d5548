/* SPDX-License-Identifier: MIT
 *
 * A conversation out of one folder and into another under another root. What is wrong with a file is
 * said before anything is written.
 */
#define HELP_STATE_BYTES 803
#define HELP_COMPRESS MX_COLD_COMPRESS_LZ4
#include "cold/cold_help.h"

#include "base/clock.h"
#include "cold/cold_export.h"

enum { N_TOKENS = 3 * 64 + 11, N_VOCAB = 49152, FILE_CAP = 1 << 20 };

typedef struct state {
    help_bed *bed;
    char file[300], to_dir[256];
    mx_export_model model;
    mx_cold_config to;
    talk there; /* the same tokens under the other root */
    uint8_t bytes[FILE_CAP];
    size_t n;
} state;

static mx_errbuf why;
static const mx_turn answer = {
    .text = {{0x66}}, .n_bytes = 700, .sum = 5, .n_prompt = 150, .n_end = UINT32_MAX, .nonce = {8}};

static mx_err export(state *s)
{
    mx_export_counts n;
    why.text[0] = '\0';
    return mx_cold_export(s->bed->dir, NULL, &s->bed->root, &s->bed->talk.ids[s->bed->talk.n_ids - 1],
                          &s->model, s->file, &n, &why);
}

static mx_err import_with(state *s, bool with_turns)
{
    mx_import *im;
    mx_hash256 id;
    why.text[0] = '\0';
    mx_err err = mx_import_open(&im, s->file, &s->model, N_VOCAB, &why);
    if (err == MX_OK) {
        err = mx_import_write(im, &s->to, &s->there.root, with_turns, &id, &why);
        assert_true(err != MX_OK || mx_hash256_eq(&id, &s->there.ids[s->there.n_ids - 1]));
        mx_import_close(im);
    } else {
        assert_null(im);
    }
    return err;
}

static void assert_turns(mx_cold *c, const talk *t, size_t n)
{
    mx_cold_job job = {.kind = MX_COLD_READ_IDS, .root = t->root, .page_id = t->ids[t->n_ids - 1]};
    assert_int_equal(help_run(c, &job), n > 0 ? MX_OK : MX_E_NOT_FOUND);
    assert_int_equal(job.found.n_turns, n);
    if (n > 0) {
        assert_int_equal(job.found.n, t->n);
        assert_memory_equal(job.found.ids, t->tokens, t->n * sizeof *t->tokens);
        assert_true(mx_hash256_eq(&job.found.turns[0].text, &answer.text));
        assert_int_equal(job.found.turns[0].n_prompt, answer.n_prompt);
    }
    mx_cold_ids_free(&job.found);
}

static mx_err import(state *s)
{
    return import_with(s, true);
}

static int setup(void **arg)
{
    state *s = calloc(1, sizeof *s);
    assert_non_null(s);
    help_setup((void **)&s->bed);
    help_make_folder(s->to_dir);
    snprintf(s->file, sizeof s->file, "%s.export", s->bed->dir);
    s->model = (mx_export_model){help_root(7), help_root(8), help_root(9), tiny};
    mx_hash256 root = help_root(2);
    s->to = help_config(s->to_dir, &root);
    talk_make(&s->bed->talk, &s->bed->root, 1, 0, N_TOKENS);
    talk_make(&s->there, &root, 1, 0, N_TOKENS);
    mx_cold *c = help_open(&s->bed->cfg);
    assert_int_equal(help_write_talk(c, &s->bed->talk), MX_OK);
    assert_int_equal(help_write_answered(c, &s->bed->talk, &answer, 1), MX_OK);
    mx_cold_close(c);
    *arg = s;
    return 0;
}

static int setup_exported(void **arg)
{
    setup(arg);
    state *s = *arg;
    assert_int_equal(export(s), MX_OK);
    s->n = help_slurp(s->file, s->bytes, FILE_CAP);
    assert_true(s->n > MX_EXPORT_HEADER_BYTES && s->n < FILE_CAP);
    return 0;
}

static int teardown(void **arg)
{
    state *s = *arg;
    unlink(s->file);
    help_remove_tree(s->to_dir);
    void *bed = s->bed;
    help_teardown(&bed);
    free(s);
    return 0;
}

static void assert_nothing_written(const state *s)
{
    assert_int_equal(help_count(s->to_dir, ""), 0);
}

static void refuse(state *s, const uint8_t *bytes, size_t n, mx_err want, const char *text)
{
    help_spill(s->file, bytes, n);
    assert_int_equal(import(s), want);
    assert_non_null(strstr(why.text, text));
    assert_nothing_written(s);
}

static void reseal_header(uint8_t *bytes)
{
    mx_hash128 sum = mx_xxh3_128(bytes, 240);
    memcpy(bytes + 240, sum.b, 16);
}

/* ---- there and back -------------------------------------------------------------------------- */

static void test_another_root(void **arg)
{
    state *s = *arg;
    assert_int_equal(import(s), MX_OK);
    assert_int_equal(help_count(s->to_dir, ".page"), 4);
    assert_int_equal(help_count(s->to_dir, ".state"), 3);
    mx_cold *c = help_open_settled(&s->to);
    for (size_t n = 0; n <= s->there.n + 30; n += 7) {
        assert_int_equal(help_read_talk(c, &s->there, n), talk_boundary(&s->there, n));
    }
    assert_turns(c, &s->there, 1);
    mx_cold_close(c);
    /* No identity of either side is in the file. */
    for (size_t i = 0; i < s->there.n_ids; i++) {
        for (size_t at = 0; at + 32 <= s->n; at++) {
            assert_true(memcmp(s->bytes + at, s->there.ids[i].b, 32) != 0);
            assert_true(memcmp(s->bytes + at, s->bed->talk.ids[i].b, 32) != 0);
        }
    }
}

/* The same conversation under the same model is the same file, wherever it came from
 * (docs/file-format.md, section 9). */
static void test_goes_on_from_there(void **arg)
{
    state *s = *arg;
    assert_int_equal(s->n, 16685);
    mx_hash256 sum = mx_sha256_of(s->bytes, s->n);
    char digits[65];
    mx_hash256_hex(&sum, digits);
    assert_string_equal(digits,
                        "b64de0a3d721f2b0c0ba732886bb260b6e401bb6c97ed393595e9e4f747e81be");
    char second[400];
    mx_export_counts n;
    static uint8_t again[FILE_CAP];
    assert_int_equal(import(s), MX_OK);
    snprintf(second, sizeof second, "%s.second", s->file);
    assert_int_equal(mx_cold_export(s->to_dir, NULL, &s->there.root,
                                    &s->there.ids[s->there.n_ids - 1], &s->model, second, &n, &why),
                     MX_OK);
    assert_int_equal(n.n_bytes, s->n);
    assert_int_equal(help_slurp(second, again, FILE_CAP), s->n);
    assert_memory_equal(again, s->bytes, s->n);
    unlink(second);
}

static void test_without_turns(void **arg)
{
    state *s = *arg;
    assert_int_equal(import_with(s, false), MX_OK);
    mx_cold *c = help_open_settled(&s->to);
    assert_int_equal(help_read_talk(c, &s->there, N_TOKENS), N_TOKENS);
    assert_turns(c, &s->there, 0);
    mx_cold_close(c);
}

static size_t count_objects(const state *s)
{
    return help_count(s->to_dir, ".page") + help_count(s->to_dir, ".state")
           + help_count(s->to_dir, ".session");
}

static void test_what_is_there_stays(void **arg)
{
    state *s = *arg;
    mx_cold *c = help_open(&s->to);
    assert_int_equal(help_write_talk(c, &s->there), MX_OK);
    mx_cold_close(c);
    size_t n = count_objects(s);
    char path[700], hex[65], root[65];
    struct stat before, after;
    mx_hash256_hex(&s->there.root, root);
    mx_hash256_hex(&s->there.ids[s->there.n_ids - 1], hex);
    snprintf(path, sizeof path, "%s/v1/%s/sessions/%s.session", s->to_dir, root, hex);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(import(s), MX_OK);
    assert_int_equal(stat(path, &after), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_int_equal(count_objects(s), n);
}

static void test_over_the_limit(void **arg)
{
    state *s = *arg;
    s->to.max_bytes = 6000; /* one page, and no more */
    s->to.compress = MX_COLD_COMPRESS_OFF;
    assert_int_equal(import(s), MX_E_FULL);
    assert_non_null(strstr(why.text, "--ssd-session-cache-max-size"));
    assert_int_equal(help_count(s->to_dir, ".session"), 0);
}

/* The same file on the days that follow: each writes what is missing, as far as its budget goes. */
static void test_goes_on_after_the_days_budget(void **arg)
{
    state *s = *arg;
    s->to.write_budget = 10500; /* two pages, or three */
    s->to.compress = MX_COLD_COMPRESS_OFF;
    size_t n_before = 0, n_days = 1;
    while (import(s) == MX_E_LIMIT) {
        assert_non_null(strstr(why.text, "--ssd-write-budget"));
        size_t n = count_objects(s);
        assert_true(n > n_before && n <= n_before + 3);
        assert_int_equal(help_count(s->to_dir, ".session"), 0);
        assert_int_equal(import(s), MX_E_LIMIT); /* still the same day */
        assert_int_equal(count_objects(s), n);
        n_before = n;
        n_days++;
        char path[300], line[64];
        snprintf(path, sizeof path, "%s/v1/written.txt", s->to_dir);
        int n_line = snprintf(line, sizeof line, "day %lld bytes 10000\n",
                              (long long)(mx_wall_s() / 86400 - 1));
        help_spill(path, (const uint8_t *)line, (size_t)n_line);
    }
    assert_string_equal(why.text, "");
    assert_true(n_days > 1);
    assert_int_equal(help_count(s->to_dir, ".session"), 1);
}

/* ---- out ------------------------------------------------------------------------------------- */

static void damage(const char *path, void *arg)
{
    (void)arg;
    static uint8_t bytes[FILE_CAP];
    size_t n = help_slurp(path, bytes, sizeof bytes);
    bytes[n - 1] ^= 1;
    help_spill(path, bytes, n);
}

static void remove_it(const char *path, void *arg)
{
    (void)arg;
    assert_int_equal(unlink(path), 0);
}

static void test_damage_is_not_exported(void **arg)
{
    state *s = *arg;
    help_each_file(s->bed->root_dir, ".state", damage, NULL);
    assert_int_equal(export(s), MX_E_CORRUPT);
    help_each_file(s->bed->root_dir, ".state", remove_it, NULL);
    assert_int_equal(export(s), MX_OK); /* without states, which is a longer way back */
    assert_int_equal(export(s), MX_E_IO);
    assert_non_null(strstr(why.text, "it is there already"));
    assert_int_equal(unlink(s->file), 0);
    help_each_file(s->bed->root_dir, ".page", damage, NULL);
    assert_int_equal(export(s), MX_E_CORRUPT);
    assert_non_null(strstr(why.text, "page 1 of 4"));
    assert_int_not_equal(access(s->file, F_OK), 0);
    help_each_file(s->bed->root_dir, ".page", remove_it, NULL);
    assert_int_equal(export(s), MX_E_NOT_FOUND);
    assert_int_not_equal(access(s->file, F_OK), 0);
}

/* ---- hostile files --------------------------------------------------------------------------- */

static void test_every_truncation(void **arg)
{
    state *s = *arg;
    uint8_t *copy = malloc(s->n + 1);
    assert_non_null(copy);
    memcpy(copy, s->bytes, s->n);
    copy[s->n] = 0;
    for (size_t n = 0; n < s->n; n += n < 300 ? 1 : 97) {
        refuse(s, copy, n, MX_E_CORRUPT, ": ");
    }
    refuse(s, copy, s->n - 1, MX_E_CORRUPT, "should have");
    refuse(s, copy, s->n + 1, MX_E_CORRUPT, "should have");
    free(copy);
}

static void test_every_flip(void **arg)
{
    state *s = *arg;
    for (size_t at = 0; at < s->n; at += at < 300 || at + 900 > s->n ? 1 : 61) {
        s->bytes[at] ^= 0x10;
        refuse(s, s->bytes, s->n, MX_E_CORRUPT, ": ");
        s->bytes[at] ^= 0x10;
    }
    help_spill(s->file, s->bytes, s->n);
    assert_int_equal(import(s), MX_OK);
}

/* With the right checksum of the header: a number that is a lie. */
static void test_absurd_numbers(void **arg)
{
    state *s = *arg;
    static const struct {
        size_t at, width;
        uint64_t value;
        mx_err want;
        const char *text;
    } lies[] = {
        {8, 4, 2, MX_E_UNSUPPORTED, "another version"},
        {16, 8, 1, MX_E_UNSUPPORTED, "another version"},
        {128, 2, 9, MX_E_CORRUPT, "type of keys"},
        {130, 2, 2, MX_E_CORRUPT, "type of keys"},
        {132, 4, 128, MX_E_CORRUPT, "page size"},
        {136, 4, UINT32_MAX, MX_E_CORRUPT, "shape"},
        {140, 4, 0, MX_E_CORRUPT, "shape"},
        {144, 4, 1 << 30, MX_E_CORRUPT, "shape"},
        {148, 4, 2, MX_E_CORRUPT, "entry kind"},
        {152, 8, UINT64_MAX, MX_E_CORRUPT, "shape"},
        {160, 8, UINT64_MAX, MX_E_CORRUPT, "tokens"},
        {160, 8, 3 * 64, MX_E_CORRUPT, "tokens"},
        {168, 4, 0, MX_E_CORRUPT, "tokens or pages"},
        {168, 4, UINT32_MAX, MX_E_CORRUPT, "tokens or pages"},
        {172, 4, UINT32_MAX, MX_E_CORRUPT, "states"},
        {172, 4, 1, MX_E_CORRUPT, "should have"},
        {176, 4, 257, MX_E_CORRUPT, "turns"},
        {176, 4, 2, MX_E_CORRUPT, "should have"},
        {180, 4, 1, MX_E_CORRUPT, "zero field"},
        {239, 1, 1, MX_E_CORRUPT, "zero field"},
    };
    for (size_t i = 0; i < MX_COUNT(lies); i++) {
        uint8_t *copy = malloc(s->n), value[8];
        assert_non_null(copy);
        memcpy(copy, s->bytes, s->n);
        mx_put_le64(value, lies[i].value);
        memcpy(copy + lies[i].at, value, lies[i].width);
        reseal_header(copy);
        refuse(s, copy, s->n, lies[i].want, lies[i].text);
        free(copy);
    }
}

static uint8_t *body_of(state *s, size_t *n)
{
    mx_export x;
    assert_int_equal(mx_export_decode_header(&x, s->bytes, s->n, &why), MX_OK);
    *n = x.body_bytes;
    return s->bytes + x.body_at;
}

static void reseal(state *s)
{
    size_t n;
    uint8_t *body = body_of(s, &n);
    mx_hash128 sum = mx_xxh3_128(body, n);
    memcpy(s->bytes + 184, sum.b, 16);
    reseal_header(s->bytes);
}

/* With all checksums right: what the model has no use for. */
static void test_lies_in_the_body(void **arg)
{
    state *s = *arg;
    size_t n, states = N_TOKENS * 4 + 4 * 16;
    uint8_t *body = body_of(s, &n), keep[8];
    mx_put_le32(body + 40, N_VOCAB);
    reseal(s);
    refuse(s, s->bytes, s->n, MX_E_CORRUPT, "token 10");
    mx_put_le32(body + 40, (uint32_t)s->there.tokens[10]);
    memcpy(keep, body + states, 8);
    mx_put_le64(body + states, 0);
    reseal(s);
    refuse(s, s->bytes, s->n, MX_E_CORRUPT, "position of a state");
    mx_put_le64(body + states, N_TOKENS + 1);
    reseal(s);
    refuse(s, s->bytes, s->n, MX_E_CORRUPT, "position of a state");
    memcpy(body + states, keep, 8);
    mx_put_le64(body + states + 24, 100); /* twice the same */
    reseal(s);
    refuse(s, s->bytes, s->n, MX_E_CORRUPT, "position of a state");
    mx_put_le64(body + states + 24, 200);
    mx_put_le32(body + n - MX_TURN_BYTES + 48, N_TOKENS);
    reseal(s);
    refuse(s, s->bytes, s->n, MX_E_CORRUPT, "a turn");
}

static void test_other_models(void **arg)
{
    state *s = *arg;
    const mx_export_model right = s->model;
    s->model.fingerprint.b[0] ^= 1;
    refuse(s, s->bytes, s->n, MX_E_UNSUPPORTED, "of another model");
    s->model = right;
    s->model.shape.type = MX_KV_Q8;
    refuse(s, s->bytes, s->n, MX_E_UNSUPPORTED, "--kv-type f16");
    s->model = right;
    s->model.numerics_id.b[3] ^= 1;
    refuse(s, s->bytes, s->n, MX_E_UNSUPPORTED, "--activations");
    s->model = right;
    s->model.bare_root.b[31] ^= 1;
    refuse(s, s->bytes, s->n, MX_E_UNSUPPORTED, "other settings");
    s->model = right;
    s->model.shape.n_layers++;
    refuse(s, s->bytes, s->n, MX_E_UNSUPPORTED, "other settings");
}

int main(void)
{
    mx_log_set_level(MX_LOG_ERROR);
#define T(f) cmocka_unit_test_setup_teardown(f, setup_exported, teardown)
    const struct CMUnitTest tests[] = {
        T(test_another_root),
        T(test_goes_on_from_there),
        T(test_without_turns),
        T(test_what_is_there_stays),
        T(test_over_the_limit),
        T(test_goes_on_after_the_days_budget),
        cmocka_unit_test_setup_teardown(test_damage_is_not_exported, setup, teardown),
        T(test_every_truncation),
        T(test_every_flip),
        T(test_absurd_numbers),
        T(test_lies_in_the_body),
        T(test_other_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
