/* SPDX-License-Identifier: MIT
 *
 * api_json.h: reading request bodies: strict JSON with positions in its errors, and typed access to
 * fields where a wrong type or range becomes a sentence that names the field.
 *
 * The tree is json-c's; a strict check of our own runs before it
 * (docs/decisions/0001-json-library.md says why both). A tree belongs to the thread that parsed it.
 */
#ifndef MX_API_JSON_H
#define MX_API_JSON_H

#include "base/buf.h"

#include <json-c/json.h>

/* A body of 64 MiB could hold 32 million values of 100 bytes each once parsed: so the number of
 * values is limited as well. */
enum { MX_JSON_MAX_DEPTH = 128, MX_JSON_MAX_VALUES = 1000000 };

/* Why a request is refused: becomes an OpenAI error object. */
typedef struct mx_problem {
    unsigned status;         /* HTTP status, 0 = none yet */
    const char *code;        /* static text or NULL */
    char param[96];          /* the field, "" = none */
    char message[640];       /* says what is wrong and what to do */
    uint64_t n_prompt_tokens, n_ctx; /* for context_length_exceeded, else 0 */
    unsigned retry_after_s;  /* for 503, else 0 */
} mx_problem;

/* Fills *p (the first problem wins) and returns false, so that a check ends with
 * `return mx_problem_set(...)`. param and code may be NULL. */
bool mx_problem_set(mx_problem *p, unsigned status, const char *code, const char *param,
                    const char *fmt, ...) MX_PRINTF(5, 6);
/* The same for the usual case: 400 without a code. */
bool mx_problem_field(mx_problem *p, const char *param, const char *fmt, ...) MX_PRINTF(3, 4);

/* RFC 8259 and nothing else, well-formed UTF-8, no deeper than MX_JSON_MAX_DEPTH. MX_E_FORMAT (with
 * what, line, column, byte), MX_E_LIMIT (too deep, too many values), MX_E_NOMEM. Free with
 * json_object_put. Lone surrogates become U+FFFD; of duplicate keys the last value wins, at the
 * place of the first; numbers keep their text (mx_json_number_text). */
mx_err mx_json_parse(struct json_object **out, mx_str text, mx_errbuf *eb);

/* The field, or NULL when it is absent or null (the two are the same to every client). */
struct json_object *mx_json_field(struct json_object *object, const char *name);
/* A string's bytes (may hold NUL). */
mx_str mx_json_text(struct json_object *string);
/* A number as the client wrote it, valid until the object changes. */
mx_str mx_json_number_text(struct json_object *number);
/* "a string", "an array", ... for error messages. */
const char *mx_json_kind(struct json_object *v);

/* Typed fields: false = a problem was set. Absent or null: true, *out unchanged. The name may begin with
 * where o stands in the request, for the problem ("response_format.type"): the field is what is behind
 * the last dot. */
bool mx_json_get_bool(struct json_object *o, const char *name, bool *out, mx_problem *p);
bool mx_json_get_double(struct json_object *o, const char *name, double min, double max,
                        double *out, mx_problem *p);
/* A float without a fraction counts as an integer. */
bool mx_json_get_int(struct json_object *o, const char *name, int64_t min, int64_t max,
                     int64_t *out, mx_problem *p);
bool mx_json_get_string(struct json_object *o, const char *name, mx_str *out, mx_problem *p);

#endif
