/* SPDX-License-Identifier: MIT
 *
 * Typed reading of metadata. Files write the same key as u32, u64 or i32, so integers are read at
 * any width and then checked for range; all other types must be what the caller asks for.
 */
#include "gguf/gguf_file.h"

/* A number of any type of the format. */
typedef struct number {
    enum { NUM_INT, NUM_FLOAT, NUM_BOOL, NUM_BAD_BOOL, NUM_NONE } kind;
    uint64_t magnitude; /* of an integer or bool */
    bool is_negative;
    double real;
} number;

static number from_signed(int64_t v)
{
    return (number){NUM_INT, v < 0 ? 0 - (uint64_t)v : (uint64_t)v, v < 0, 0};
}

static number from_unsigned(uint64_t v)
{
    return (number){NUM_INT, v, false, 0};
}

static number from_real(double v)
{
    return (number){NUM_FLOAT, 0, false, v};
}

static float f32_at(const uint8_t *p)
{
    uint32_t bits = mx_get_le32(p);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static double f64_at(const uint8_t *p)
{
    uint64_t bits = mx_get_le64(p);
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static number number_at(const gguf_kv *kv, size_t i)
{
    const uint8_t *p = kv->data + i * gguf_type_bytes(kv->type);
    switch (kv->type) {
    case GGUF_U8: return from_unsigned(p[0]);
    case GGUF_I8: return from_signed((int8_t)p[0]);
    case GGUF_U16: return from_unsigned(mx_get_le16(p));
    case GGUF_I16: return from_signed((int16_t)mx_get_le16(p));
    case GGUF_U32: return from_unsigned(mx_get_le32(p));
    case GGUF_I32: return from_signed((int32_t)mx_get_le32(p));
    case GGUF_U64: return from_unsigned(mx_get_le64(p));
    case GGUF_I64: return from_signed((int64_t)mx_get_le64(p));
    case GGUF_F32: return from_real((double)f32_at(p));
    case GGUF_F64: return from_real(f64_at(p));
    case GGUF_BOOL: return (number){p[0] > 1 ? NUM_BAD_BOOL : NUM_BOOL, p[0], false, 0};
    default: return (number){.kind = NUM_NONE};
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static mx_err absent(const char *key, mx_errbuf *eb)
{
    return mx_fail(eb, MX_E_NOT_FOUND, "the model file has no key \"%s\"", key);
}

static mx_err wrong_type(const gguf_kv *kv, const char *key, const char *wanted, mx_errbuf *eb)
{
    return mx_fail(eb, MX_E_FORMAT, "key \"%s\" is %s%s where %s is expected", key,
                   kv->is_array ? "an array of " : "of type ", gguf_type_name(kv->type), wanted);
}

static mx_err out_of_range(const char *key, const char *wanted, mx_errbuf *eb)
{
    return mx_fail(eb, MX_E_FORMAT, "key \"%s\" holds a value that is out of range for %s", key,
                   wanted);
}

/* ---- conversions ----------------------------------------------------------------------------- */

static mx_err find_scalar(const mx_gguf *g, const char *key, const char *wanted, const gguf_kv **kv,
                          mx_errbuf *eb)
{
    *kv = gguf_find_kv(g, key);
    if (*kv == NULL) {
        return absent(key, eb);
    }
    return (*kv)->is_array ? wrong_type(*kv, key, wanted, eb) : MX_OK;
}

static mx_err to_u64(const gguf_kv *kv, const char *key, size_t i, uint64_t *out, mx_errbuf *eb)
{
    number v = number_at(kv, i);
    /* Per-layer switches are arrays of bool; a single bool is never a count. */
    if (v.kind != NUM_INT && !(v.kind == NUM_BOOL && kv->is_array)) {
        return wrong_type(kv, key, "an integer", eb);
    }
    if (v.is_negative) {
        return out_of_range(key, "an unsigned integer", eb);
    }
    *out = v.magnitude;
    return MX_OK;
}

static mx_err to_i64(const gguf_kv *kv, const char *key, size_t i, int64_t *out, mx_errbuf *eb)
{
    number v = number_at(kv, i);
    if (v.kind != NUM_INT) {
        return wrong_type(kv, key, "an integer", eb);
    }
    if (v.magnitude > (uint64_t)INT64_MAX + (v.is_negative ? 1 : 0)) {
        return out_of_range(key, "a signed 64-bit integer", eb);
    }
    *out = (int64_t)(v.is_negative ? 0 - v.magnitude : v.magnitude);
    return MX_OK;
}

static mx_err to_f64(const gguf_kv *kv, const char *key, size_t i, double *out, mx_errbuf *eb)
{
    number v = number_at(kv, i);
    if (v.kind == NUM_FLOAT) {
        *out = v.real;
    } else if (v.kind == NUM_INT) {
        *out = v.is_negative ? -(double)v.magnitude : (double)v.magnitude;
    } else {
        return wrong_type(kv, key, "a number", eb);
    }
    return MX_OK;
}

bool mx_gguf_has(const mx_gguf *g, const char *key)
{
    return gguf_find_kv(g, key) != NULL;
}

mx_err mx_gguf_get_u64(const mx_gguf *g, const char *key, uint64_t *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_scalar(g, key, "an integer", &kv, eb));
    return to_u64(kv, key, 0, out, eb);
}

mx_err mx_gguf_get_i64(const mx_gguf *g, const char *key, int64_t *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_scalar(g, key, "an integer", &kv, eb));
    return to_i64(kv, key, 0, out, eb);
}

mx_err mx_gguf_get_f64(const mx_gguf *g, const char *key, double *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_scalar(g, key, "a number", &kv, eb));
    return to_f64(kv, key, 0, out, eb);
}

mx_err mx_gguf_get_bool(const mx_gguf *g, const char *key, bool *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_scalar(g, key, "a bool", &kv, eb));
    number v = number_at(kv, 0);
    if (v.kind == NUM_BAD_BOOL) {
        return out_of_range(key, "a bool (0 or 1)", eb);
    }
    if (v.kind != NUM_BOOL) {
        return wrong_type(kv, key, "a bool", eb);
    }
    *out = v.magnitude != 0;
    return MX_OK;
}

mx_err mx_gguf_get_str(const mx_gguf *g, const char *key, mx_str *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_scalar(g, key, "a string", &kv, eb));
    gguf_cursor c = {.at = kv->data, .end = kv->data + kv->n_bytes};
    if (kv->type != GGUF_STRING || !gguf_read_str(&c, out)) {
        return wrong_type(kv, key, "a string", eb);
    }
    return MX_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

mx_err mx_gguf_array_count(const mx_gguf *g, const char *key, size_t *n, mx_errbuf *eb)
{
    const gguf_kv *kv = gguf_find_kv(g, key);
    if (kv == NULL) {
        return absent(key, eb);
    }
    *n = (size_t)kv->count; /* at most the bytes of the file, each value has one at least */
    return MX_OK;
}

mx_err mx_gguf_array_u64(const mx_gguf *g, const char *key, size_t i, uint64_t *out, mx_errbuf *eb)
{
    const gguf_kv *kv = gguf_find_kv(g, key);
    if (kv == NULL) {
        return absent(key, eb);
    }
    if (i >= kv->count) {
        return mx_fail(eb, MX_E_FORMAT, "key \"%s\" has %llu values where at least %zu are "
                       "expected", key, (unsigned long long)kv->count, i + 1);
    }
    return to_u64(kv, key, i, out, eb);
}

static mx_err find_array(const mx_gguf *g, const char *key, size_t n, const gguf_kv **kv,
                         mx_errbuf *eb)
{
    *kv = gguf_find_kv(g, key);
    if (*kv == NULL) {
        return absent(key, eb);
    }
    if ((*kv)->count != n) {
        return mx_fail(eb, MX_E_FORMAT, "key \"%s\" has %llu values where %zu are expected", key,
                       (unsigned long long)(*kv)->count, n);
    }
    return MX_OK;
}

mx_err mx_gguf_array_strs(const mx_gguf *g, const char *key, size_t n, mx_str *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_array(g, key, n, &kv, eb));
    gguf_cursor c = {.at = kv->data, .end = kv->data + kv->n_bytes};
    for (size_t i = 0; i < n; i++) {
        if (kv->type != GGUF_STRING || !gguf_read_str(&c, &out[i])) {
            return wrong_type(kv, key, "an array of strings", eb);
        }
    }
    return MX_OK;
}

mx_err mx_gguf_array_i32s(const mx_gguf *g, const char *key, size_t n, int32_t *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_array(g, key, n, &kv, eb));
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        MX_TRY(to_i64(kv, key, i, &v, eb));
        if (v < INT32_MIN || v > INT32_MAX) {
            return out_of_range(key, "a signed 32-bit integer", eb);
        }
        out[i] = (int32_t)v;
    }
    return MX_OK;
}

mx_err mx_gguf_array_f32s(const mx_gguf *g, const char *key, size_t n, float *out, mx_errbuf *eb)
{
    const gguf_kv *kv;
    MX_TRY(find_array(g, key, n, &kv, eb));
    for (size_t i = 0; i < n; i++) {
        if (kv->type != GGUF_F32) {
            return wrong_type(kv, key, "an array of f32", eb);
        }
        out[i] = f32_at(kv->data + 4 * i);
    }
    return MX_OK;
}

size_t mx_gguf_n_keys(const mx_gguf *g)
{
    return g->n_kvs;
}

mx_str mx_gguf_key_at(const mx_gguf *g, size_t i)
{
    return i < g->n_kvs ? g->kvs[i].key : (mx_str){NULL, 0};
}
