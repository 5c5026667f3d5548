/* SPDX-License-Identifier: MIT
 *
 * The bytes of docs/file-format.md. The expected files are put together here from the tables of
 * that document, with numbers written out, so that a changed constant in the code cannot change
 * both. The SHA-256 of each golden file is pinned: a difference means a new format version, not a
 * new number.
 */
#include "cold/cold_help.h"
#include "base/buf.h"
#include "base/hash.h"

static const char golden_page[] =
    "e61822958bb01208078f525f53cdd12a1abeb12895f68e06c15ecee8c815d23b";
static const char golden_manifest[] =
    "78fc2443aeb420ecc3c01b2c849d825cc4b3f6abbfe1bc31230d36ec44a291a2";
static const char golden_turns[] =
    "6aaa5645a3d8038e90e89770eb6ed6f82979d00ca8ffcc1c500524ad1182276c";

static const char golden_state[] =
    "d4c1ce2533f6ea8249274ef9178c2c1301a8c638362c18fc39f788489426da3a";

static mx_hash256 filled(uint8_t value)
{
    mx_hash256 h;
    memset(h.b, value, sizeof h.b);
    return h;
}

static void check_golden(const uint8_t *bytes, size_t n, const char *want)
{
    char hex[65];
    mx_hash256 h = mx_sha256_of(bytes, n);
    mx_hash256_hex(&h, hex);
    if (strcmp(hex, want) != 0) {
        print_message("expected %s\n     got %s\n", want, hex);
        fail();
    }
}

static void put_sum(uint8_t *at, const uint8_t *bytes, size_t n)
{
    mx_hash128 h = mx_xxh3_128(bytes, n);
    memcpy(at, h.b, 16);
}

/* Root 11 11 ..., parent 22 22 ..., tokens 100, 103, -1 at position 128, f16, payload 192 bytes. */
static mx_disk_page example(const uint8_t payload[192])
{
    mx_disk_page p = {.root = filled(0x11),
                      .parent = filled(0x22),
                      .n_tokens = 3,
                      .first_position = 128,
                      .kv_type = MX_DISK_TYPE_F16,
                      .payload_bytes = 192,
                      .payload_sum = mx_xxh3_128(payload, 192),
                      .stored_bytes = 192,
                      .stored_sum = mx_xxh3_128(payload, 192),
                      .tokens = {100, 103, -1}};
    p.own = mx_page_identity(&p.root, &p.parent, p.tokens, 3);
    return p;
}

static void test_page_bytes(void **arg)
{
    (void)arg;
    uint8_t payload[192], got[4096 + 192], want[4096 + 192] = {0};
    for (size_t i = 0; i < sizeof payload; i++) {
        payload[i] = (uint8_t)i;
    }
    mx_disk_page p = example(payload);
    mx_disk_page_encode(&p, got);
    memcpy(got + 4096, payload, sizeof payload);

    memcpy(want, "\x89MXPAGE\n", 8);
    want[8] = 1;                       /* version */
    want[13] = 2;                      /* header length 512 */
    memset(want + 32, 0x11, 32);       /* root */
    memcpy(want + 64, p.own.b, 32);
    memset(want + 96, 0x22, 32);       /* parent */
    want[128] = 1;                     /* kind */
    want[136] = 3;                     /* presence */
    want[144] = 64;                    /* page size */
    want[148] = 3;                     /* n_tokens */
    want[152] = 128;                   /* first position */
    want[164] = 1;                     /* K type */
    want[166] = 1;                     /* V type */
    want[176] = 192;                   /* stored */
    want[184] = 192;                   /* raw */
    put_sum(want + 192, payload, 192);
    put_sum(want + 208, payload, 192);
    memcpy(want + 352, "mtplx file-format 1", 19);
    put_sum(want + 496, want, 496);
    want[512] = 100;
    want[516] = 103;
    memset(want + 520, 0xFF, 4);
    memcpy(want + 4096, payload, 192);
    for (size_t i = 0; i < sizeof want; i++) {
        if (got[i] != want[i]) {
            print_message("byte %zu: expected %02x, got %02x\n", i, want[i], got[i]);
            fail();
        }
    }
    check_golden(got, sizeof got, golden_page);

    mx_disk_page back;
    mx_errbuf eb;
    assert_int_equal(mx_disk_page_decode(&back, got, sizeof got, &eb), MX_OK);
    assert_memory_equal(&back, &p, sizeof p);
    assert_int_equal(mx_disk_page_verify(&back, got + 4096, 192, &eb), MX_OK);
    assert_int_equal(mx_disk_page_verify(&back, got + 4096, 191, &eb), MX_E_CORRUPT);
    got[4100] ^= 0x40;
    assert_int_equal(mx_disk_page_verify(&back, got + 4096, 192, &eb), MX_E_CORRUPT);
    assert_string_equal(eb.text, "payload checksum");
}

/* The same page's position as a state: kind, presence and identity differ. */
static void test_state_bytes(void **arg)
{
    (void)arg;
    uint8_t payload[192], page[4096], got[4096 + 192], hashed[96] = {0};
    for (size_t i = 0; i < sizeof payload; i++) {
        payload[i] = (uint8_t)i;
    }
    mx_disk_page p = example(payload);
    mx_disk_page_encode(&p, page);
    memcpy(hashed, "mtplx state v1", 14);
    memset(hashed + 16, 0x11, 32);     /* root */
    memcpy(hashed + 48, p.own.b, 32);  /* the page that ends here */
    hashed[80] = 131;                  /* position */
    hashed[88] = 4;                    /* presence */
    mx_hash256 own = mx_sha256_of(hashed, sizeof hashed);
    p.own = mx_cold_state_identity(&p.root, &p.parent, 2, p.tokens, 3);
    assert_memory_equal(&p.own, &own, sizeof own);
    p.is_state = true;
    mx_disk_page_encode(&p, got);
    memcpy(got + 4096, payload, sizeof payload);
    memcpy(page + 64, own.b, 32);
    page[128] = 2;                     /* kind */
    page[136] = 4;                     /* presence */
    put_sum(page + 496, page, 496);
    assert_memory_equal(got, page, sizeof page);
    check_golden(got, sizeof got, golden_state);

    mx_disk_page back;
    mx_errbuf eb;
    assert_int_equal(mx_disk_state_decode(&back, got, sizeof got, &eb), MX_OK);
    assert_memory_equal(&back, &p, sizeof p);
    assert_int_equal(mx_disk_page_decode(&back, got, sizeof got, &eb), MX_E_CORRUPT);
    assert_string_equal(eb.text, "kind"); /* neither passes for the other */
    p.is_state = false;
    mx_disk_page_encode(&p, got);
    assert_int_equal(mx_disk_state_decode(&back, got, sizeof got, &eb), MX_E_CORRUPT);
    assert_string_equal(eb.text, "kind");
    p.is_state = true;
    p.first_position = 192;            /* the position is part of the name */
    mx_disk_page_encode(&p, got);
    assert_int_equal(mx_disk_state_decode(&back, got, sizeof got, &eb), MX_E_CORRUPT);
    assert_string_equal(eb.text, "identity");
}

/* The same page compressed: only codec, stored length and stored checksum differ. */
static void test_packed_page(void **arg)
{
    (void)arg;
    uint8_t payload[192] = {0}, back[192], stored[192], plain[4096], got[4096];
    mx_codec codec = {0};
    mx_errbuf eb;
    size_t n;
    for (size_t i = 0; i < sizeof payload; i += 2) {
        payload[i] = (uint8_t)i;
    }
    mx_disk_page p = example(payload), q;
    mx_disk_page_encode(&p, plain);
    assert_int_equal(mx_disk_codec(MX_CODEC_ZSTD, MX_KV_F16), 0x202);
    p.codec = 0x202;
    assert_int_equal(mx_codec_encode(&codec, p.codec, payload, 192, stored, &n), MX_OK);
    assert_true(n > 0 && n < 192);
    p.stored_bytes = n;
    p.stored_sum = mx_xxh3_128(stored, n);
    mx_disk_page_encode(&p, got);
    plain[168] = 2;
    plain[169] = 2;
    plain[176] = (uint8_t)n;
    put_sum(plain + 192, stored, n);
    put_sum(plain + 496, plain, 496);
    assert_memory_equal(got, plain, sizeof got);
    assert_int_equal(mx_disk_page_decode(&q, got, sizeof got, &eb), MX_OK);
    assert_memory_equal(&q, &p, sizeof q);
    uint64_t length;
    assert_int_equal(mx_disk_stored_bytes(got, &length), MX_OK);
    assert_int_equal(length, n);
    assert_int_equal(mx_disk_page_verify(&q, stored, n, &eb), MX_OK);
    assert_int_equal(mx_disk_page_unpack(&q, &codec, stored, back, &eb), MX_OK);
    assert_memory_equal(back, payload, sizeof back);
    /* Bytes that decompress to something else than was said. */
    q.payload_sum.b[3] ^= 1;
    assert_int_equal(mx_disk_page_unpack(&q, &codec, stored, back, &eb), MX_E_CORRUPT);
    assert_string_equal(eb.text, "raw checksum");
    /* Not shorter than it is. */
    p.stored_bytes = 192;
    mx_disk_page_encode(&p, got);
    assert_int_equal(mx_disk_page_decode(&q, got, sizeof got, &eb), MX_E_CORRUPT);
    assert_string_equal(eb.text, "stored and raw differ");
    /* A method, a number of planes that nobody knows; a state is never compressed. */
    p.stored_bytes = n;
    static const uint32_t unknown[] = {0x203, 0x302, 0x10202};
    for (size_t i = 0; i < MX_COUNT(unknown); i++) {
        p.codec = unknown[i];
        mx_disk_page_encode(&p, got);
        assert_int_equal(mx_disk_page_decode(&q, got, sizeof got, &eb), MX_E_UNSUPPORTED);
        assert_string_equal(eb.text, "codec");
    }
    p.codec = 0x202;
    p.is_state = true;
    mx_disk_page_encode(&p, got);
    assert_int_equal(mx_disk_state_decode(&q, got, sizeof got, &eb), MX_E_UNSUPPORTED);
    got[100] ^= 1;
    assert_int_equal(mx_disk_stored_bytes(got, &length), MX_E_CORRUPT);
    mx_codec_free(&codec);
}

/* One example of each error of section 7, in the order of the checks. */
static void test_page_errors(void **arg)
{
    (void)arg;
    static const struct {
        size_t at;
        uint8_t value;
        bool has_new_sum;
        mx_err err;
        const char *text;
    } cases[] = {
        {0, 0, true, MX_E_CORRUPT, "magic"},
        {7, 0x0D, true, MX_E_CORRUPT, "magic"},
        {8, 2, false, MX_E_CORRUPT, "header checksum"},
        {500, 1, false, MX_E_CORRUPT, "header checksum"},
        {8, 2, true, MX_E_UNSUPPORTED, "version 2"},
        {8, 0, true, MX_E_UNSUPPORTED, "version 0"},
        {16, 2, true, MX_E_UNSUPPORTED, "incompatible features 2"},
        {16, 1, true, MX_E_CORRUPT, "rows of windowed layers left out"},
        {12, 8, true, MX_E_UNSUPPORTED, "header length"},
        {168, 1, true, MX_E_UNSUPPORTED, "codec"},
        {160, 1, true, MX_E_UNSUPPORTED, "position scheme"},
        {288, 2, true, MX_E_UNSUPPORTED, "authentication or encryption"},
        {292, 1, true, MX_E_UNSUPPORTED, "authentication or encryption"},
        {255, 1, true, MX_E_UNSUPPORTED, "input digest or adapter"},
        {256, 1, true, MX_E_UNSUPPORTED, "input digest or adapter"},
        {172, 1, true, MX_E_CORRUPT, "zero field"},
        {296, 1, true, MX_E_CORRUPT, "zero field"},
        {351, 1, true, MX_E_CORRUPT, "zero field"},
        {384, 1, true, MX_E_CORRUPT, "zero field"},
        {495, 1, true, MX_E_CORRUPT, "zero field"},
        {128, 2, true, MX_E_CORRUPT, "kind"},
        {132, 1, true, MX_E_CORRUPT, "layer group"},
        {136, 1, true, MX_E_CORRUPT, "presence"},
        {144, 32, true, MX_E_CORRUPT, "page size"},
        {148, 0, true, MX_E_CORRUPT, "n_tokens"},
        {148, 65, true, MX_E_CORRUPT, "n_tokens"},
        {152, 1, true, MX_E_CORRUPT, "first position"},
        {164, 2, true, MX_E_CORRUPT, "type"},
        {184, 1, true, MX_E_CORRUPT, "stored and raw differ"},
        {208, 0xEE, true, MX_E_CORRUPT, "stored and raw differ"},
        {524, 1, false, MX_E_CORRUPT, "zero bytes before the payload"},
        {4095, 1, false, MX_E_CORRUPT, "zero bytes before the payload"},
        {512, 101, false, MX_E_CORRUPT, "identity"},
        {32, 0x12, true, MX_E_CORRUPT, "identity"},
        {64, 0, true, MX_E_CORRUPT, "identity"},
        {96, 0, true, MX_E_CORRUPT, "identity"},
        {148, 2, true, MX_E_CORRUPT, "zero bytes before the payload"},
        {24, 0xFF, true, MX_OK, ""}, /* compatible features that are not known */
        {352, 'x', true, MX_OK, ""},
    };
    uint8_t payload[192] = {0}, bytes[4096];
    mx_disk_page p = example(payload), back;
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_errbuf eb = {""};
        mx_disk_page_encode(&p, bytes);
        assert_true(bytes[cases[i].at] != cases[i].value);
        bytes[cases[i].at] = cases[i].value;
        if (cases[i].has_new_sum) {
            put_sum(bytes + 496, bytes, 496);
        }
        mx_err err = mx_disk_page_decode(&back, bytes, sizeof bytes, &eb);
        if (err != cases[i].err || strcmp(eb.text, cases[i].text) != 0) {
            print_message("byte %zu = %u: expected %s \"%s\", got %s \"%s\"\n", cases[i].at,
                          cases[i].value, mx_err_name(cases[i].err), cases[i].text,
                          mx_err_name(err), eb.text);
            fail();
        }
    }
    mx_disk_page_encode(&p, bytes);
    assert_int_equal(mx_disk_page_decode(&back, bytes, 4095, NULL), MX_E_CORRUPT);
    assert_int_equal(mx_disk_page_decode(&back, NULL, 0, NULL), MX_E_CORRUPT);
}

/* Root 11 ..., session 33 ..., pages 44 ... and 55 ..., 100 tokens, end of turn. */
static void make_manifest(mx_buf *out)
{
    const mx_hash256 ids[2] = {filled(0x44), filled(0x55)};
    mx_disk_manifest m = {.root = filled(0x11),
                          .session_id = filled(0x33),
                          .entry_kind = MX_DISK_ENTRY_TURN,
                          .n_tokens = 100,
                          .n_pages = 2,
                          .page_ids = ids,
                          .created_s = 1700000000};
    mx_disk_manifest_encode(out, &m);
    assert_false(out->failed);
}

static void test_manifest_bytes(void **arg)
{
    (void)arg;
    uint8_t want[256 + 64] = {0};
    mx_buf got = {0};
    make_manifest(&got);
    memcpy(want, "\x89MXSESS\n", 8);
    want[8] = 1;
    want[13] = 1;                                 /* header length 256 */
    memset(want + 32, 0x11, 32);
    memset(want + 64, 0x33, 32);
    want[96] = 1;                                 /* end of turn */
    want[100] = 64;
    want[104] = 100;
    want[112] = 2;
    memcpy(want + 128, "\x00\xF1\x53\x65", 4);    /* 1,700,000,000 */
    memcpy(want + 144, "mtplx file-format 1", 19);
    memset(want + 256, 0x44, 32);
    memset(want + 288, 0x55, 32);
    put_sum(want + 176, want + 256, 64);
    put_sum(want + 240, want, 240);
    assert_int_equal(got.len, sizeof want);
    assert_memory_equal(got.ptr, want, sizeof want);
    check_golden(want, sizeof want, golden_manifest);
    mx_disk_manifest m;
    assert_int_equal(mx_disk_manifest_decode(&m, want, sizeof want, NULL), MX_OK);
    assert_int_equal(m.n_pages, 2);
    assert_int_equal(m.n_tokens, 100);
    assert_int_equal(m.entry_kind, 1);
    assert_int_equal(m.created_s, 1700000000);
    assert_int_equal(m.page_ids[1].b[31], 0x55);
    mx_buf_free(&got);
}

static void test_manifest_errors(void **arg)
{
    (void)arg;
    static const struct {
        size_t at;
        uint8_t value;
        bool has_new_sum;
        mx_err err;
        const char *text;
    } cases[] = {
        {1, 'm', true, MX_E_CORRUPT, "magic"},
        {112, 3, false, MX_E_CORRUPT, "header checksum"},
        {8, 3, true, MX_E_UNSUPPORTED, "version 3"},
        {23, 0x80, true, MX_E_UNSUPPORTED, "incompatible features 8000000000000000"},
        {12, 1, true, MX_E_UNSUPPORTED, "header length"},
        {140, 1, true, MX_E_CORRUPT, "zero field"},
        {239, 1, true, MX_E_CORRUPT, "zero field"},
        {96, 2, true, MX_E_CORRUPT, "entry kind"},
        {100, 65, true, MX_E_CORRUPT, "page size"},
        {112, 0, true, MX_E_CORRUPT, "number of pages or states"},
        {115, 0xFF, true, MX_E_CORRUPT, "number of pages or states"},
        {116, 3, true, MX_E_CORRUPT, "number of pages or states"},
        {104, 64, true, MX_E_CORRUPT, "n_tokens"},
        {104, 129, true, MX_E_CORRUPT, "n_tokens"},
        {111, 0xFF, true, MX_E_CORRUPT, "n_tokens"},
        {136, 2, true, MX_E_CORRUPT, "origin"},
        {127, 0xFF, true, MX_E_CORRUPT, "length of the turns"},
        {120, 1, true, MX_E_CORRUPT, "length of the turns"},
        {122, 1, true, MX_E_CORRUPT, "length of the turns"},
        {120, 80, true, MX_E_CORRUPT, "size"},
        {116, 1, true, MX_E_CORRUPT, "size"},
        {256, 0x45, false, MX_E_CORRUPT, "body checksum"},
        {319, 0, false, MX_E_CORRUPT, "body checksum"},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_errbuf eb = {""};
        mx_buf b = {0};
        make_manifest(&b);
        uint8_t *bytes = (uint8_t *)b.ptr;
        bytes[cases[i].at] = cases[i].value;
        if (cases[i].has_new_sum) {
            put_sum(bytes + 240, bytes, 240);
        }
        mx_disk_manifest m;
        mx_err err = mx_disk_manifest_decode(&m, bytes, b.len, &eb);
        if (err != cases[i].err || strcmp(eb.text, cases[i].text) != 0) {
            print_message("byte %zu = %u: expected %s \"%s\", got %s \"%s\"\n", cases[i].at,
                          cases[i].value, mx_err_name(cases[i].err), cases[i].text,
                          mx_err_name(err), eb.text);
            fail();
        }
        mx_buf_free(&b);
    }
}

/* The manifest above with two answers: tokens 40 to 60, and from 70 on. */
static void make_manifest_with_turns(mx_buf *out)
{
    const mx_hash256 ids[2] = {filled(0x44), filled(0x55)};
    mx_turn turns[2] = {{.text = filled(0x66), .n_bytes = 0x1234, .sum = 0x0102030405060708,
                         .n_prompt = 40, .n_end = 60},
                        {.text = filled(0x77), .n_bytes = 0x5678, .sum = 9, .n_prompt = 70,
                         .n_end = UINT32_MAX}};
    uint8_t bytes[2 * MX_TURN_BYTES];
    for (size_t i = 0; i < 2; i++) {
        memset(turns[i].nonce, 0x88 + (int)i, sizeof turns[i].nonce);
        mx_turn_encode(&turns[i], bytes + i * MX_TURN_BYTES);
    }
    mx_disk_manifest m = {.root = filled(0x11),
                          .session_id = filled(0x33),
                          .entry_kind = MX_DISK_ENTRY_TURN,
                          .n_tokens = 100,
                          .n_pages = 2,
                          .page_ids = ids,
                          .turns = bytes,
                          .n_turns = 2,
                          .created_s = 1700000000};
    mx_disk_manifest_encode(out, &m);
    assert_false(out->failed);
}

static void test_turns_bytes(void **arg)
{
    (void)arg;
    mx_buf got = {0}, without = {0};
    make_manifest_with_turns(&got);
    make_manifest(&without);
    uint8_t want[256 + 64 + 160];
    memset(want, 0, sizeof want);
    memcpy(want, without.ptr, 256 + 64);
    want[120] = 160;
    memset(want + 320, 0x66, 32);
    memcpy(want + 352, "\x34\x12", 2);
    memcpy(want + 360, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
    want[368] = 40;
    want[372] = 60;
    memset(want + 376, 0x88, 16);
    memset(want + 400, 0x77, 32);
    memcpy(want + 432, "\x78\x56", 2);
    want[440] = 9;
    want[448] = 70;
    memset(want + 452, 0xFF, 4);
    memset(want + 456, 0x89, 16);
    put_sum(want + 176, want + 256, sizeof want - 256);
    put_sum(want + 240, want, 240);
    assert_int_equal(got.len, sizeof want);
    assert_memory_equal(got.ptr, want, sizeof want);
    check_golden(want, sizeof want, golden_turns);
    mx_disk_manifest m;
    mx_turn t;
    assert_int_equal(mx_disk_manifest_decode(&m, want, sizeof want, NULL), MX_OK);
    assert_int_equal(m.n_turns, 2);
    assert_true(mx_turn_decode(&t, m.turns + MX_TURN_BYTES));
    assert_int_equal(t.n_prompt, 70);
    assert_int_equal(t.n_end, UINT32_MAX);
    mx_buf_free(&got);
    mx_buf_free(&without);
}

static void test_turns_errors(void **arg)
{
    (void)arg;
    static const struct {
        size_t at, n;
        uint8_t value;
    } cases[] = {
        {352, 8, 0},    /* no text */
        {368, 4, 0},    /* no prompt */
        {368, 1, 100},  /* begins behind the chain */
        {372, 1, 40},   /* no answer */
        {392, 1, 1},    /* zero field */
        {479, 1, 1},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_errbuf eb = {""};
        mx_buf b = {0};
        make_manifest_with_turns(&b);
        uint8_t *bytes = (uint8_t *)b.ptr;
        memset(bytes + cases[i].at, cases[i].value, cases[i].n);
        put_sum(bytes + 176, bytes + 256, b.len - 256);
        put_sum(bytes + 240, bytes, 240);
        mx_disk_manifest m;
        assert_int_equal(mx_disk_manifest_decode(&m, bytes, b.len, &eb), MX_E_CORRUPT);
        assert_string_equal(eb.text, "a turn");
        mx_buf_free(&b);
    }
}

/* The larger form of one page needs the smaller forms of partial pages to differ in size: a file's
 * length says how many rows it has. */
static void test_sizes_differ(void **arg)
{
    (void)arg;
    for (uint32_t n = 2; n <= 64; n++) {
        assert_true(mx_disk_payload_bytes(&tiny, n) > mx_disk_payload_bytes(&tiny, n - 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_bytes),      cmocka_unit_test(test_page_errors),
        cmocka_unit_test(test_state_bytes),     cmocka_unit_test(test_packed_page),
        cmocka_unit_test(test_manifest_bytes),  cmocka_unit_test(test_manifest_errors),
        cmocka_unit_test(test_turns_bytes),     cmocka_unit_test(test_turns_errors),
        cmocka_unit_test(test_sizes_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
