/* SPDX-License-Identifier: MIT
 *
 * value_internal.h: what the files of the template interpreter share about values: their layout,
 * the state of one rendering, the string builder, and the operations of Python that templates rely
 * on.
 *
 * Everything here belongs to the thread that renders. Values made by the public builders may be
 * shared by several renderings as long as nobody changes them, so the interpreter writes only into
 * values it made itself (is_own).
 *
 * Convention: a function that returns mx_value * gives NULL after it has recorded an error in the
 * run; a NULL argument is passed on as NULL, so that errors flow outwards without a test at each
 * step.
 */
#ifndef MX_VALUE_INTERNAL_H
#define MX_VALUE_INTERNAL_H

#include "base/buf.h"
#include "text/value.h"

/* Flavours of MX_V_LIST: what Python would have there. */
enum {
    MX_SEQ_LIST, MX_SEQ_TUPLE, MX_SEQ_RANGE,
    MX_SEQ_ONCE, /* generator */
    MX_SEQ_VIEW  /* d.keys() */
};
/* Flavours of MX_V_INT. */
enum { MX_INT_SMALL, MX_INT_BIG /* decimal text in .s */ };
/* Flavours of MX_V_OTHER. */
enum {
    MX_O_NAMESPACE, MX_O_MACRO, MX_O_LOOP, MX_O_METHOD, MX_O_FUNCTION, MX_O_CYCLER, MX_O_JOINER
};

/* Where each byte of a string came from. No marks: all bytes have the same origin, is_markup. */
typedef struct mx_text {
    const char *ptr; /* well-formed UTF-8, not NUL-terminated */
    size_t len;
    size_t n_chars;       /* code points; equal to len when all is ASCII */
    const mx_span *marks; /* sorted, merged ranges of markup */
    uint32_t n_marks;
    bool is_markup;
    bool is_safe; /* marked by the `safe` filter: joins escape the other side */
} mx_text;

typedef struct mx_pair {
    mx_value *key;
    mx_value *value;
    uint64_t hash;
} mx_pair;

typedef struct mx_dict {
    mx_pair *pairs; /* insertion order */
    size_t n, cap;
    uint32_t *slots; /* pair number + 1, open addressing; NULL while the dict is small */
    size_t n_slots;
} mx_dict;

typedef struct mx_seq {
    mx_value **items;
    size_t n, cap;
    size_t first; /* MX_SEQ_ONCE: items before it have been consumed */
} mx_seq;

struct mx_value {
    uint8_t kind; /* mx_value_kind */
    uint8_t sub;
    bool is_own; /* made by the rendering, so list methods may change it */
    uint8_t method; /* MX_O_METHOD, MX_O_FUNCTION: which one */
    uint32_t count; /* MX_O_CYCLER, MX_O_JOINER: position */
    union {
        bool b;
        int64_t i;
        double f;
        mx_text s;
        mx_seq seq;
        mx_dict dict;     /* also the attributes of a namespace */
        mx_value *self;   /* MX_O_METHOD: its object; MX_O_CYCLER, MX_O_JOINER: its items or text */
        struct mx_macro *macro;
        struct mx_loop *loop;
        mx_str hint;      /* MX_V_UNDEFINED: what an error says about it */
    };
};

/* The state of one rendering. */
typedef struct mx_run {
    mx_arena *arena;
    mx_err err;
    mx_errbuf *eb;
    bool is_template_error;
    uint64_t steps_left;
    uint32_t depth, max_depth;
    size_t max_string_bytes;
    uint32_t line;
    int64_t now_s;
    const mx_value *context;
    const struct mx_template *tmpl;
    mx_value **globals;      /* [n symbols] context lookups done so far */
    struct mx_sb *out;       /* where output goes now */
} mx_run;

/* Records the first error; returns NULL so that callers can return it. */
void *mx_run_fail(mx_run *r, mx_err code, const char *fmt, ...) MX_PRINTF(3, 4);
void *mx_run_nomem(mx_run *r);
bool mx_run_step(mx_run *r, uint64_t n); /* false = limit reached, error recorded */
bool mx_run_enter(mx_run *r);            /* one level deeper; false = too deep. Pair with leave. */
void mx_run_leave(mx_run *r);
void *mx_run_alloc(mx_run *r, size_t bytes);
void *mx_run_array(mx_run *r, size_t n, size_t elem_bytes);

size_t mx_arena_used(const mx_arena *a);
/* Grows the newest block of the arena in place; false when it is not the newest or does not fit. */
bool mx_arena_extend(mx_arena *a, void *p, size_t old_bytes, size_t new_bytes);

/* ---- strings ---- */

/* A string under construction. Zeroed to start; failures are recorded in the run. */
typedef struct mx_sb {
    char *ptr;
    size_t len, cap;
    mx_span *marks;
    size_t n_marks, marks_cap;
} mx_sb;

void mx_sb_add(mx_run *r, mx_sb *b, const char *p, size_t n, bool is_markup);
void mx_sb_cstr(mx_run *r, mx_sb *b, const char *s, bool is_markup);
void mx_sb_range(mx_run *r, mx_sb *b, const mx_text *s, size_t begin, size_t end);
void mx_sb_text(mx_run *r, mx_sb *b, const mx_text *s);
void mx_sb_cp(mx_run *r, mx_sb *b, uint32_t cp, bool is_markup);
mx_value *mx_sb_finish(mx_run *r, mx_sb *b);

mx_value *mx_v_text(mx_run *r, const char *p, size_t n, bool is_markup); /* copies */
mx_value *mx_v_cstr(mx_run *r, const char *s);                          /* markup; copies */
mx_value *mx_v_part(mx_run *r, const mx_value *s, size_t begin, size_t end); /* bytes; shares */
bool mx_text_mark_at(const mx_text *s, size_t byte);
bool mx_text_all_data(const mx_text *s);
size_t mx_text_offset(const mx_text *s, size_t n_chars); /* code points to bytes */
size_t mx_text_find(const mx_text *s, const mx_text *what, size_t from); /* SIZE_MAX = absent */
uint32_t mx_text_next(const mx_text *s, size_t *at); /* code point at *at, which moves on */
MX_INLINE mx_str mx_v_str(const mx_value *v)
{
    return (mx_str){v->s.ptr, v->s.len};
}
MX_INLINE bool mx_v_is(const mx_value *v, mx_value_kind k)
{
    return v->kind == (uint8_t)k;
}
MX_INLINE bool mx_v_is_other(const mx_value *v, int sub)
{
    return v->kind == MX_V_OTHER && v->sub == sub;
}

/* ---- making values ---- */

mx_value *mx_v_new(mx_run *r, mx_value_kind kind, int sub);
mx_value *mx_v_undefined(mx_run *r, const char *fmt, ...) MX_PRINTF(2, 3);
mx_value *mx_v_none(mx_run *r);
mx_value *mx_v_bool(mx_run *r, bool b);
mx_value *mx_v_int(mx_run *r, int64_t i);
mx_value *mx_v_size(mx_run *r, size_t n);
mx_value *mx_v_float(mx_run *r, double f);
mx_value *mx_v_seq(mx_run *r, int sub, size_t cap);
bool mx_v_push(mx_run *r, mx_value *seq, mx_value *item); /* false = failed, also for item NULL */
mx_value *mx_v_dict_new(mx_run *r);
bool mx_v_put(mx_run *r, mx_value *dict, mx_value *key, mx_value *item);
mx_pair *mx_dict_find(const mx_dict *d, const mx_value *key);
mx_pair *mx_dict_find_str(const mx_dict *d, mx_str key);
bool mx_v_hashable(const mx_value *v);
bool mx_dict_put(mx_arena *a, mx_dict *d, mx_value *key, mx_value *item); /* false = no memory */

/* ---- Python's operations ---- */

const char *mx_v_type_name(const mx_value *v); /* as Python says it: "str", "dict", "NoneType" */
void *mx_v_fail_undefined(mx_run *r, const mx_value *v);
bool mx_v_truthy(const mx_value *v);
/* Numbers as int (booleans too); false when v is no small integer. */
bool mx_v_as_int(const mx_value *v, int64_t *out);
bool mx_v_is_number(const mx_value *v);
double mx_v_as_double(const mx_value *v); /* v is a number */
bool mx_v_equal(mx_run *r, const mx_value *a, const mx_value *b);
/* -1, 0, 1 into *out (2 = not comparable, a NaN); false = error recorded. */
bool mx_v_compare(mx_run *r, const mx_value *a, const mx_value *b, int *out);
bool mx_v_contains(mx_run *r, const mx_value *box, const mx_value *item, bool *out);
bool mx_v_same(const mx_value *a, const mx_value *b); /* `is` */
bool mx_v_length(mx_run *r, const mx_value *v, size_t *out);
bool mx_v_is_iterable(const mx_value *v);
/* All items as a fresh sequence (MX_SEQ_LIST); consumes generators. */
mx_value *mx_v_list_of(mx_run *r, mx_value *v);
enum { MX_OP_ADD, MX_OP_SUB, MX_OP_MUL, MX_OP_DIV, MX_OP_FLOORDIV, MX_OP_MOD, MX_OP_POW };
mx_value *mx_v_binary(mx_run *r, int op, mx_value *a, mx_value *b);
mx_value *mx_v_negate(mx_run *r, mx_value *v);
mx_value *mx_v_slice(mx_run *r, mx_value *v, mx_value *from, mx_value *to, mx_value *step);
mx_value *mx_v_repeat(mx_run *r, mx_value *seq, int64_t times);

/* ---- text of values ---- */

void mx_sb_str(mx_run *r, mx_sb *b, const mx_value *v);  /* str(v) */
void mx_sb_repr(mx_run *r, mx_sb *b, const mx_value *v); /* repr(v) */
mx_value *mx_v_to_str(mx_run *r, mx_value *v);           /* v itself when it is a string */
size_t mx_float_repr(double f, char out[40]);
typedef struct mx_json_style {
    bool is_pretty; /* an indent was given */
    mx_text indent;
    mx_text item_sep, key_sep;
    bool ensure_ascii, sort_keys;
} mx_json_style;
mx_value *mx_v_to_json(mx_run *r, const mx_value *v, const mx_json_style *style);
mx_value *mx_v_from_json(mx_run *r, const mx_value *text);
void mx_sb_escaped(mx_run *r, mx_sb *b, const mx_text *s); /* HTML */
mx_value *mx_v_percent(mx_run *r, mx_value *format, mx_value *args); /* str % args */

/* ---- Unicode (value_unicode.c, tables generated) ---- */

bool mx_uc_is_space(uint32_t cp);
bool mx_uc_is_line_end(uint32_t cp);
bool mx_uc_is_alpha(uint32_t cp);
bool mx_uc_is_digit(uint32_t cp);
bool mx_uc_is_printable(uint32_t cp);
enum { MX_CASE_LOWER, MX_CASE_UPPER, MX_CASE_TITLE };
/* The mapping of one code point: 1 to 3 code points into out, returns how many. */
size_t mx_uc_case(uint32_t cp, int which, uint32_t out[3]);
bool mx_uc_is_upper(uint32_t cp);
bool mx_uc_is_lower(uint32_t cp);

#endif
