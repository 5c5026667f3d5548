/* SPDX-License-Identifier: MIT
 *
 * Models in several files: read as one whichever part is named; refused with the number of the part
 * when one is missing, renamed, cut short or another model's.
 */
#include "base/mem.h"
#include "split_gguf.h"
#include "tiny_gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 3 };

typedef struct fixture {
    mx_buf whole, parts[N];
    char folder[64];
} fixture;

static void setup(fixture *f, bool first_is_empty)
{
    mx_tiny_spec spec = mx_tiny_default();
    *f = (fixture){0};
    mx_tiny_build(&f->whole, &spec);
    split_gguf(&f->whole, N, first_is_empty, f->parts);
    snprintf(f->folder, sizeof f->folder, P_tmpdir "/mtplx-split-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    for (size_t i = 0; i < N; i++) {
        char name[256];
        split_save(split_name(name, f->folder, i, N), &f->parts[i]);
    }
}

static void teardown(fixture *f)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", f->folder);
    assert_int_equal(system(command), 0);
    mx_buf_free(&f->whole);
    for (size_t i = 0; i < N; i++) {
        mx_buf_free(&f->parts[i]);
    }
}

static void expect_same(const mx_gguf *g, const fixture *f)
{
    mx_gguf *whole;
    mx_errbuf eb;
    assert_int_equal(mx_gguf_open_memory(&whole, (const uint8_t *)f->whole.ptr, f->whole.len, &eb),
                     MX_OK);
    assert_int_equal(mx_gguf_n_parts(g), N);
    assert_int_equal(mx_gguf_n_tensors(g), mx_gguf_n_tensors(whole));
    for (size_t i = 0; i < mx_gguf_n_tensors(whole); i++) {
        const mx_gguf_tensor *want = mx_gguf_tensor_at(whole, i);
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)want->name.len, want->name.ptr);
        const mx_gguf_tensor *got = mx_gguf_find_tensor(g, name);
        assert_non_null(got);
        assert_int_equal(got->n_bytes, want->n_bytes);
        assert_memory_equal(got->ne, want->ne, sizeof want->ne);
        uint8_t *a = malloc(want->n_bytes), *b = malloc(want->n_bytes);
        assert_true(a != NULL && b != NULL);
        assert_int_equal(mx_gguf_read_tensor(g, got, 0, a, got->n_bytes, &eb), MX_OK);
        assert_int_equal(mx_gguf_read_tensor(whole, want, 0, b, want->n_bytes, &eb), MX_OK);
        assert_memory_equal(a, b, want->n_bytes);
        free(a);
        free(b);
    }
    for (size_t i = 0; i < mx_gguf_n_keys(whole); i++) {
        mx_str key = mx_gguf_key_at(whole, i);
        char name[80];
        snprintf(name, sizeof name, "%.*s", (int)key.len, key.ptr);
        assert_true(mx_gguf_has(g, name));
    }
    mx_gguf_close(whole);
}

static void any_part_opens_all(void **state)
{
    (void)state;
    for (int first_is_empty = 0; first_is_empty < 2; first_is_empty++) {
        fixture f;
        mx_gguf *g;
        mx_errbuf eb = {{0}};
        setup(&f, first_is_empty != 0);
        for (size_t i = 0; i < N; i++) {
            char name[256];
            if (mx_gguf_open(&g, split_name(name, f.folder, i, N), &eb) != MX_OK) {
                fail_msg("part %zu: %s", i, eb.text);
            }
            expect_same(g, &f);
            for (size_t k = 0; k < N; k++) {
                const mx_gguf_part p = mx_gguf_part_at(g, k);
                assert_int_equal(p.n_bytes, f.parts[k].len);
                uint8_t *bytes = malloc(p.n_bytes);
                assert_non_null(bytes);
                assert_int_equal(mx_gguf_read(g, k, 0, bytes, p.n_bytes, &eb), MX_OK);
                assert_memory_equal(bytes, f.parts[k].ptr, p.n_bytes);
                free(bytes);
                assert_true(p.inode != 0 && p.mtime_ns != 0);
            }
            mx_gguf_close(g);
        }
        mx_str parts[N];
        for (size_t i = 0; i < N; i++) {
            parts[i] = mx_buf_view(&f.parts[i]);
        }
        assert_int_equal(mx_gguf_open_memory_parts(&g, parts, N, &eb), MX_OK);
        expect_same(g, &f);
        mx_gguf_close(g);
        teardown(&f);
    }
}

/* Opens by the name of `part` and expects a refusal that says all of the words. */
static void expect_refused(const fixture *f, size_t part, mx_err want, const char *a, const char *b)
{
    char name[256];
    mx_gguf *g;
    mx_errbuf eb = {{0}};
    mx_err e = mx_gguf_open(&g, split_name(name, f->folder, part, N), &eb);
    if (e != want || strstr(eb.text, a) == NULL || strstr(eb.text, b) == NULL) {
        fail_msg("expected %s with \"%s\" and \"%s\", came %s: %s", mx_err_name(want), a, b,
                 mx_err_name(e), eb.text);
    }
    assert_null(g);
}

static void replace(const fixture *f, size_t part, const mx_buf *bytes)
{
    char name[256];
    split_save(split_name(name, f->folder, part, N), bytes);
}

static void wrong_parts(void **state)
{
    (void)state;
    fixture f;
    char name[256], other[256];
    mx_gguf *g, *tiny;
    mx_errbuf eb;
    setup(&f, false);
    unlink(split_name(name, f.folder, 1, N));
    expect_refused(&f, 0, MX_E_NOT_FOUND, "part 2 of 3 is missing", "m-00002-of-00003.gguf");
    expect_refused(&f, 2, MX_E_NOT_FOUND, "part 2 of 3 is missing", "m-00002-of-00003.gguf");
    replace(&f, 1, &f.parts[2]); /* the third under the name of the second */
    expect_refused(&f, 0, MX_E_FORMAT, "part 2 of 3 says that it is part 3", "mixed up");
    mx_buf cut = f.parts[1];
    cut.len -= 40;
    replace(&f, 1, &cut);
    expect_refused(&f, 0, MX_E_FORMAT, "m-00002-of-00003.gguf", "beyond the end of the file");
    replace(&f, 1, &f.parts[1]);

    /* Of a model with the same number of parts and another number of tensors, or the same. */
    assert_int_equal(mx_gguf_open_memory(&tiny, (const uint8_t *)f.whole.ptr, f.whole.len, &eb),
                     MX_OK);
    const size_t n = mx_gguf_n_tensors(tiny);
    mx_buf foreign;
    split_write(&foreign, tiny, n / 3, 2 * n / 3, 1, N, n + 1);
    replace(&f, 1, &foreign);
    expect_refused(&f, 0, MX_E_FORMAT, "part 2 of 3 belongs to a model of", "not of one model");
    mx_buf_free(&foreign);
    split_write(&foreign, tiny, 0, n / 3, 1, N, n);
    replace(&f, 1, &foreign);
    expect_refused(&f, 0, MX_E_FORMAT, "stands in two parts", "not of one model");
    mx_buf_free(&foreign);
    split_write(&foreign, tiny, n / 3, 2 * n / 3 - 1, 1, N, n);
    replace(&f, 1, &foreign);
    expect_refused(&f, 0, MX_E_FORMAT, "there should be", "the 3 parts have");
    mx_buf_free(&foreign);
    split_write(&foreign, tiny, n / 3, 2 * n / 3, 1, 4, n);
    replace(&f, 1, &foreign);
    expect_refused(&f, 0, MX_E_FORMAT, "part 2 of 3 says that its model has 4", "not of one");
    mx_buf_free(&foreign);
    mx_gguf_close(tiny);
    replace(&f, 1, &f.whole); /* a model that is not split */
    expect_refused(&f, 0, MX_E_FORMAT, "part 2 of 3 says that its model has 1", "not of one");
    replace(&f, 1, &f.parts[1]);

    snprintf(other, sizeof other, "%s/renamed.gguf", f.folder);
    assert_int_equal(rename(split_name(name, f.folder, 0, N), other), 0);
    assert_int_equal(mx_gguf_open(&g, other, &eb), MX_E_FORMAT);
    assert_non_null(strstr(eb.text, "must end in -00001-of-00003.gguf"));
    expect_refused(&f, 1, MX_E_NOT_FOUND, "part 1 of 3 is missing", "m-00001-of-00003.gguf");
    teardown(&f);
}

static void keys_that_lie(void **state)
{
    (void)state;
    static const struct { uint64_t no, count; mx_err err; const char *part; } bad[] = {
        {3, 3, MX_E_FORMAT, "split.no is 3"},
        {0, 1025, MX_E_LIMIT, "at most 1024"},
        {0, 65535, MX_E_LIMIT, "65535 files"},
        {0, 2, MX_E_NOT_FOUND, "others are not there"},
    };
    fixture f;
    mx_gguf *tiny, *g;
    mx_errbuf eb;
    setup(&f, false);
    assert_int_equal(mx_gguf_open_memory(&tiny, (const uint8_t *)f.whole.ptr, f.whole.len, &eb),
                     MX_OK);
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        mx_buf b;
        split_write(&b, tiny, 0, 1, bad[i].no, bad[i].count, 1);
        mx_err e = mx_gguf_open_memory(&g, (const uint8_t *)b.ptr, b.len, &eb);
        if (e != bad[i].err || strstr(eb.text, bad[i].part) == NULL) {
            fail_msg("%llu of %llu: came %s: %s", (unsigned long long)bad[i].no,
                     (unsigned long long)bad[i].count, mx_err_name(e), eb.text);
        }
        mx_buf_free(&b);
    }
    mx_gguf_close(tiny);
    teardown(&f);
}

/* The k-th allocation fails, for every k: an error, no leak, no crash. */
static void memory_runs_out(void **state)
{
    (void)state;
    fixture f;
    char name[256];
    mx_gguf *g;
    mx_errbuf eb;
    setup(&f, false);
    split_name(name, f.folder, 1, N);
    const int64_t live = mx_mem_live();
    uint64_t k = 1;
    for (;; k++) {
        mx_mem_fail_at(k);
        mx_err e = mx_gguf_open(&g, name, &eb);
        mx_mem_fail_at(0);
        if (e == MX_OK) {
            break;
        }
        assert_true(k < 200);
        assert_int_equal(mx_mem_live(), live);
    }
    mx_gguf_close(g);
    assert_true(k > 10);
    assert_int_equal(mx_mem_live(), live);
    teardown(&f);
}

static mx_err read_all(const mx_gguf *g, mx_errbuf *eb)
{
    mx_err e = MX_OK;
    for (size_t i = 0; i < mx_gguf_n_tensors(g) && e == MX_OK; i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, i);
        uint8_t *bytes = malloc(t->n_bytes);
        assert_non_null(bytes);
        e = mx_gguf_read_tensor(g, t, 0, bytes, t->n_bytes, eb);
        free(bytes);
    }
    return e;
}

/* A part that was cut short is found, whichever it is. */
static void parts_change_after_open(void **state)
{
    (void)state;
    fixture f;
    char name[256];
    mx_gguf *g;
    mx_errbuf eb;
    for (size_t i = 0; i < N; i++) {
        setup(&f, false);
        split_name(name, f.folder, i, N);
        assert_int_equal(mx_gguf_open(&g, name, &eb), MX_OK);
        assert_int_equal(read_all(g, &eb), MX_OK);
        assert_int_equal(truncate(name, 0), 0);
        assert_int_equal(read_all(g, &eb), MX_E_IO);
        mx_gguf_close(g);
        teardown(&f);
    }
}

static void sizes_of_files(void **state)
{
    (void)state;
    fixture f;
    char name[256];
    uint64_t sum = 0;
    setup(&f, false);
    for (size_t i = 0; i < N; i++) {
        sum += f.parts[i].len;
    }
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(mx_gguf_files_bytes(split_name(name, f.folder, i, N)), sum);
    }
    unlink(name);
    assert_int_equal(mx_gguf_files_bytes(name), sum - f.parts[N - 1].len);
    snprintf(name, sizeof name, "%s/m.gguf", f.folder);
    assert_int_equal(mx_gguf_files_bytes(name), 0);
    split_save(name, &f.whole);
    assert_int_equal(mx_gguf_files_bytes(name), f.whole.len);
    snprintf(name, sizeof name, "%s/m-00000-of-00003.gguf", f.folder);
    assert_int_equal(mx_gguf_files_bytes(name), 0);
    teardown(&f);
}

/* One bit of part 2, each in turn: opened, or refused with a sentence. */
static void bits_flipped(void **state)
{
    (void)state;
    fixture f;
    setup(&f, true);
    mx_str parts[N];
    for (size_t i = 0; i < N; i++) {
        parts[i] = mx_buf_view(&f.parts[i]);
    }
    size_t n_refused = 0;
    for (size_t bit = 0; bit < 2000 * 8; bit++) {
        mx_gguf *g;
        mx_errbuf eb = {{0}};
        char *byte = &f.parts[1].ptr[bit / 8];
        *byte = (char)(*byte ^ 1 << bit % 8);
        mx_err e = mx_gguf_open_memory_parts(&g, parts, N, &eb);
        *byte = (char)(*byte ^ 1 << bit % 8);
        n_refused += e != MX_OK;
        if (e != MX_OK && eb.text[0] == '\0') {
            fail_msg("bit %zu: refused with %s and no sentence", bit, mx_err_name(e));
        }
        mx_gguf_close(g);
    }
    assert_true(n_refused > 1000);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_opens_all), cmocka_unit_test(wrong_parts),
        cmocka_unit_test(keys_that_lie),      cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(parts_change_after_open), cmocka_unit_test(bits_flipped),
        cmocka_unit_test(sizes_of_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
