/* SPDX-License-Identifier: MIT
 *
 * Hashes against published values, and hex in both directions.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/hash.h"
#include "base/mem.h"

static void check_sha(const void *bytes, size_t n, const char *want)
{
    char hex[65];
    mx_hash256 h = mx_sha256_of(bytes, n);
    mx_hash256_hex(&h, hex);
    assert_string_equal(hex, want);
    for (size_t step = 1; step <= n + 1; step = step * 3 + 1) { /* in pieces: the same */
        mx_sha256 s;
        mx_sha256_init(&s);
        for (size_t at = 0; at < n; at += step) {
            mx_sha256_update(&s, (const char *)bytes + at, mx_min_size(step, n - at));
        }
        mx_hash256 out;
        assert_true(mx_sha256_finish(&s, &out));
        assert_true(mx_hash256_eq(&out, &h));
    }
}

static void test_sha256(void **state)
{
    (void)state;
    /* FIPS 180-2, appendix B. */
    check_sha("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check_sha(two, strlen(two), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *million = mx_alloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    check_sha(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    mx_free(million);
}

static void test_hex(void **state)
{
    (void)state;
    mx_hash256 h, back;
    for (size_t i = 0; i < 32; i++) {
        h.b[i] = (uint8_t)(i * 37 + 5);
    }
    char hex[66];
    mx_hash256_hex(&h, hex);
    assert_true(mx_hash256_from_hex(&back, hex, 64));
    assert_true(mx_hash256_eq(&h, &back));
    for (size_t i = 0; hex[i] != '\0'; i++) { /* upper case is read, too */
        hex[i] = (char)(hex[i] >= 'a' ? hex[i] - 32 : hex[i]);
    }
    assert_true(mx_hash256_from_hex(&back, hex, 64));
    assert_true(mx_hash256_eq(&h, &back));
    assert_false(mx_hash256_from_hex(&back, hex, 63));
    assert_false(mx_hash256_from_hex(&back, hex, 65));
    static const char bad[] = "gG/:@`\x80 ";
    for (size_t at = 0; at < 64; at++) {
        char keep = hex[at];
        hex[at] = bad[at % (sizeof bad - 1)];
        assert_false(mx_hash256_from_hex(&back, hex, 64));
        hex[at] = keep;
    }
    back = h;
    back.b[31] ^= 1;
    assert_false(mx_hash256_eq(&h, &back));
}

static void test_xxh3(void **state)
{
    (void)state;
    /* The value of the empty input, seed 0, from the specification of XXH3. */
    static const uint8_t empty[16] = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                                      0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
    mx_hash128 h = mx_xxh3_128("", 0);
    assert_memory_equal(h.b, empty, 16);
    /* One flipped bit changes the sum, at every length class of the algorithm. */
    static const size_t lengths[] = {1, 3, 8, 16, 128, 240, 241, 1024, 65536};
    char *bytes = mx_calloc(1, 65536);
    assert_non_null(bytes);
    for (size_t i = 0; i < MX_COUNT(lengths); i++) {
        mx_hash128 a = mx_xxh3_128(bytes, lengths[i]);
        bytes[lengths[i] / 2] ^= 4;
        mx_hash128 b = mx_xxh3_128(bytes, lengths[i]);
        bytes[lengths[i] / 2] ^= 4;
        mx_hash128 c = mx_xxh3_128(bytes, lengths[i]);
        assert_false(mx_hash128_eq(&a, &b));
        assert_true(mx_hash128_eq(&a, &c));
    }
    mx_free(bytes);
}

/* RFC 4231, cases 1, 2 and 6 (a key longer than a block). */
static void test_hmac(void **state)
{
    (void)state;
    uint8_t long_key[131], short_key[20];
    memset(long_key, 0xaa, sizeof long_key);
    memset(short_key, 0x0b, sizeof short_key);
    static const char text[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    const struct {
        const void *key;
        size_t n_key;
        const char *text, *mac;
    } rows[] = {
        {short_key, 20, "Hi There",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {"Jefe", 4, "what do ya want for nothing?",
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {long_key, 131, text, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    for (size_t i = 0; i < MX_COUNT(rows); i++) {
        size_t n = strlen(rows[i].text);
        for (size_t cut = 0; cut <= n; cut++) {
            mx_hash256 mac;
            char hex[65];
            assert_true(mx_hmac_sha256(rows[i].key, rows[i].n_key, rows[i].text, cut,
                                       rows[i].text + cut, n - cut, &mac));
            mx_hash256_hex(&mac, hex);
            assert_string_equal(hex, rows[i].mac);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_hex),
        cmocka_unit_test(test_xxh3),
        cmocka_unit_test(test_hmac),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
