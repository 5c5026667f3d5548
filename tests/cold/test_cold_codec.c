/* SPDX-License-Identifier: MIT
 *
 * Compression of payloads: what goes in comes out, of any length and content; what is stored may be
 * cut, changed or made up, and decoding stays inside of its buffers and says so.
 */
#include "cold_help.h"

#include "cold/cold_codec.h"

enum { MAX_RAW = 3 * MX_CODEC_BLOCK_BYTES + 1001 };

static const uint32_t methods[] = {MX_CODEC_LZ4, MX_CODEC_ZSTD};
static const uint32_t planes[] = {1, 2, 4};

/* What a page is like: numbers of 2 or 4 bytes whose upper byte repeats itself. */
static void fill_numbers(uint8_t *raw, size_t n, uint32_t width, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = help_random(&seed);
        raw[i] = i % width == width - 1 ? (uint8_t)(0x30 | (r & 0x3)) : (uint8_t)r;
    }
}

static uint8_t *room(size_t n)
{
    uint8_t *p = malloc(n + 1); /* exact, so that a sanitizer sees one byte too many */
    assert_non_null(p);
    return p;
}

static void check_round_trip(mx_codec *c, uint32_t id, const uint8_t *raw, size_t n, bool must_shrink)
{
    uint8_t *stored = room(n), *back = room(n);
    size_t n_stored = 0;
    assert_int_equal(mx_codec_encode(c, id, raw, n, stored, &n_stored), MX_OK);
    assert_true(n_stored < n || n_stored == 0);
    if (must_shrink) {
        assert_true(n_stored > 0);
    }
    if (n_stored > 0) {
        uint8_t *exact = malloc(n_stored);
        mx_errbuf eb;
        assert_non_null(exact);
        memcpy(exact, stored, n_stored);
        assert_int_equal(mx_codec_decode(c, id, exact, n_stored, back, n, &eb), MX_OK);
        assert_memory_equal(back, raw, n);
        free(exact);
    }
    free(back);
    free(stored);
}

static void test_what_goes_in_comes_out(void **arg)
{
    static const size_t sizes[] = {1, 2, 3, 4, 5, 64, 127, 1000, 4096, 4098, MX_CODEC_BLOCK_BYTES - 1,
                                   MX_CODEC_BLOCK_BYTES, MX_CODEC_BLOCK_BYTES + 1,
                                   MX_CODEC_BLOCK_BYTES + 3, MAX_RAW};
    (void)arg;
    mx_codec c = {0};
    uint8_t *raw = room(MAX_RAW);
    for (size_t m = 0; m < MX_COUNT(methods) * MX_COUNT(planes); m++) {
        uint32_t width = planes[m % MX_COUNT(planes)];
        uint32_t id = mx_codec_id(methods[m / MX_COUNT(planes)], width);
        assert_true(mx_codec_is_known(id));
        for (size_t i = 0; i < MX_COUNT(sizes); i++) {
            size_t n = sizes[i];
            memset(raw, 0, n);
            check_round_trip(&c, id, raw, n, n >= 1000);
            fill_numbers(raw, n, width, i);
            check_round_trip(&c, id, raw, n, n >= 4096 && methods[m / 3] == MX_CODEC_ZSTD);
            uint64_t seed = i; /* noise does not shrink, and is not made larger */
            for (size_t k = 0; k < n; k++) {
                raw[k] = (uint8_t)help_random(&seed);
            }
            check_round_trip(&c, id, raw, n, false);
        }
    }
    free(raw);
    mx_codec_free(&c);
}

static void test_unknown_codecs_are_known_as_such(void **arg)
{
    (void)arg;
    static const uint32_t bad[] = {0, 1, 2, 3, 0x0103, 0x0300, 0x0301, 0x0302, 0x0501, 0x10101, 0x200};
    for (size_t i = 0; i < MX_COUNT(bad); i++) {
        assert_false(mx_codec_is_known(bad[i]));
    }
}

/* Decodes from a block of exactly n_stored bytes into one of exactly n. */
static mx_err decode_exact(mx_codec *c, uint32_t id, const uint8_t *stored, size_t n_stored, size_t n)
{
    uint8_t *from = malloc(n_stored > 0 ? n_stored : 1), *to = malloc(n);
    mx_errbuf eb;
    assert_true(from != NULL && to != NULL);
    memcpy(from, stored, n_stored);
    mx_err err = mx_codec_decode(c, id, from, n_stored, to, n, &eb);
    assert_true(err == MX_OK || err == MX_E_CORRUPT);
    free(from);
    free(to);
    return err;
}

static void test_damaged_bytes_stay_inside(void **arg)
{
    enum { N = 6000 };
    (void)arg;
    mx_codec c = {0};
    uint8_t raw[N], stored[N];
    for (size_t m = 0; m < MX_COUNT(methods) * MX_COUNT(planes); m++) {
        uint32_t width = planes[m % MX_COUNT(planes)];
        uint32_t id = mx_codec_id(methods[m / MX_COUNT(planes)], width);
        size_t n_stored;
        memset(raw, 0, N);
        fill_numbers(raw, N / 3, width, m);
        assert_int_equal(mx_codec_encode(&c, id, raw, N, stored, &n_stored), MX_OK);
        assert_true(n_stored > 0 && n_stored < N);
        for (size_t n = 0; n < n_stored; n++) {
            assert_int_equal(decode_exact(&c, id, stored, n, N), MX_E_CORRUPT);
        }
        for (size_t i = 0; i < n_stored; i++) {
            for (int bit = 0; bit < 8; bit++) {
                stored[i] ^= (uint8_t)(1 << bit);
                (void)decode_exact(&c, id, stored, n_stored, N); /* its checksum tells the rest */
                stored[i] ^= (uint8_t)(1 << bit);
            }
        }
        /* The right bytes for another length, or with something behind them. */
        assert_int_equal(decode_exact(&c, id, stored, n_stored, N), MX_OK);
        assert_int_equal(decode_exact(&c, id, stored, n_stored, N - 1), MX_E_CORRUPT);
        assert_int_equal(decode_exact(&c, id, stored, n_stored, N + 1), MX_E_CORRUPT);
        assert_int_equal(decode_exact(&c, id, stored, n_stored, 2 * N), MX_E_CORRUPT);
        stored[n_stored] = 0;
        assert_int_equal(decode_exact(&c, id, stored, n_stored + 1, N), MX_E_CORRUPT);
    }
    mx_codec_free(&c);
}

static void test_made_up_lengths_are_refused(void **arg)
{
    (void)arg;
    mx_codec c = {0};
    uint8_t stored[64] = {0};
    for (size_t m = 0; m < MX_COUNT(methods); m++) {
        static const uint32_t lengths[] = {0, 41, 61, 1000, 0x7FFFFFFF, 0x80000000, UINT32_MAX};
        for (size_t i = 0; i < MX_COUNT(lengths); i++) {
            mx_put_le32(stored, lengths[i]);
            assert_int_equal(decode_exact(&c, mx_codec_id(methods[m], 1), stored, 64, 40),
                             MX_E_CORRUPT);
        }
    }
    /* A frame that says it holds 2^62 bytes, and one with a window of gigabytes. */
    static const uint8_t huge[] = {20, 0, 0, 0, 0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 0, 0, 0, 0x40,
                                   1, 0, 0, 0, 0, 0, 0};
    static const uint8_t wide[] = {10, 0, 0, 0, 0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xFF, 0x01, 0, 0, 0};
    assert_int_equal(decode_exact(&c, 0x102, huge, sizeof huge, 4096), MX_E_CORRUPT);
    assert_int_equal(decode_exact(&c, 0x102, wide, sizeof wide, 4096), MX_E_CORRUPT);
    mx_codec_free(&c);
}

static void test_random_bytes(void **arg)
{
    (void)arg;
    mx_codec c = {0};
    uint64_t seed = 77;
    uint8_t stored[300];
    for (int i = 0; i < 20000; i++) {
        size_t n = help_random(&seed) % sizeof stored;
        for (size_t k = 0; k < n; k++) {
            stored[k] = (uint8_t)help_random(&seed);
        }
        uint32_t id = mx_codec_id(methods[i % 2], planes[i / 2 % 3]);
        if (n > 8) {
            mx_put_le32(stored, (uint32_t)(help_random(&seed) % n)); /* or few get behind it */
            mx_put_le32(stored + 4, 0xFD2FB528);
        }
        (void)decode_exact(&c, id, stored, n, 1 + help_random(&seed) % 1000);
    }
    mx_codec_free(&c);
}

static void test_without_memory(void **arg)
{
    (void)arg;
    mx_codec c = {0};
    mx_errbuf eb;
    uint8_t raw[2000] = {0}, out[2000];
    size_t n;
    mx_mem_fail_at(1);
    assert_int_equal(mx_codec_encode(&c, 0x102, raw, sizeof raw, out, &n), MX_E_NOMEM);
    mx_mem_fail_at(1);
    assert_int_equal(mx_codec_decode(&c, 0x102, raw, sizeof raw, out, sizeof out, &eb), MX_E_NOMEM);
    mx_mem_fail_at(0);
    assert_int_equal(mx_codec_encode(&c, 0x102, raw, sizeof raw, out, &n), MX_OK);
    assert_true(n > 0);
    mx_codec_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_goes_in_comes_out),
        cmocka_unit_test(test_unknown_codecs_are_known_as_such),
        cmocka_unit_test(test_damaged_bytes_stay_inside),
        cmocka_unit_test(test_made_up_lengths_are_refused),
        cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
