/* SPDX-License-Identifier: MIT
 *
 * Strings and where each of their bytes came from. Most strings are of one origin, so they carry
 * one flag; only a mixed string has a list of its markup ranges. The builder always writes ranges
 * and finish() takes the list away again when it says no more than the flag would.
 */
#include "text/value_internal.h"

#include "base/utf8.h"

/* One step pays for this many bytes written: the step limit then bounds time and memory, too. */
enum { BYTES_PER_STEP = 16 };

static bool sb_reserve(mx_run *r, mx_sb *b, size_t n)
{
    size_t need;
    if (!mx_run_step(r, n / BYTES_PER_STEP)) {
        return false;
    }
    if (!mx_add_ok(b->len, n, &need) || need > r->max_string_bytes) {
        mx_run_fail(r, MX_E_LIMIT, "the template makes a text of more than %zu bytes",
                    r->max_string_bytes);
        return false;
    }
    if (need <= b->cap) {
        return true;
    }
    size_t cap = mx_max_size(mx_max_size(need, b->cap * 2), 64);
    if (mx_arena_extend(r->arena, b->ptr, b->cap, cap)) {
        b->cap = cap;
        return true;
    }
    char *p = mx_run_alloc(r, cap);
    if (p == NULL) {
        return false;
    }
    if (b->len > 0) {
        memcpy(p, b->ptr, b->len);
    }
    b->ptr = p;
    b->cap = cap;
    return true;
}

static bool sb_mark(mx_run *r, mx_sb *b, size_t begin, size_t end)
{
    if (b->n_marks > 0 && b->marks[b->n_marks - 1].end == begin) {
        b->marks[b->n_marks - 1].end = end;
        return true;
    }
    if (b->n_marks == b->marks_cap) {
        size_t cap = b->marks_cap ? b->marks_cap * 2 : 4;
        mx_span *marks = mx_run_array(r, cap, sizeof *marks);
        if (marks == NULL) {
            return false;
        }
        if (b->n_marks > 0) {
            memcpy(marks, b->marks, b->n_marks * sizeof *marks);
        }
        b->marks = marks;
        b->marks_cap = cap;
    }
    b->marks[b->n_marks++] = (mx_span){begin, end};
    return true;
}

void mx_sb_add(mx_run *r, mx_sb *b, const char *p, size_t n, bool is_markup)
{
    if (n == 0 || !sb_reserve(r, b, n)) {
        return;
    }
    if (is_markup && !sb_mark(r, b, b->len, b->len + n)) {
        return;
    }
    memcpy(b->ptr + b->len, p, n);
    b->len += n;
}

void mx_sb_cstr(mx_run *r, mx_sb *b, const char *s, bool is_markup)
{
    mx_sb_add(r, b, s, strlen(s), is_markup);
}

/* The first mark that ends behind `byte`. */
static size_t first_mark(const mx_text *s, size_t byte)
{
    size_t lo = 0, hi = s->n_marks;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->marks[mid].end <= byte) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

void mx_sb_range(mx_run *r, mx_sb *b, const mx_text *s, size_t begin, size_t end)
{
    if (s->n_marks == 0) {
        mx_sb_add(r, b, s->ptr + begin, end - begin, s->is_markup);
        return;
    }
    for (size_t m = first_mark(s, begin); begin < end && r->err == MX_OK; m++) {
        size_t mark_begin = m < s->n_marks ? s->marks[m].begin : end;
        size_t mark_end = m < s->n_marks ? s->marks[m].end : end;
        if (mark_begin > begin) {
            size_t to = mx_min_size(mark_begin, end);
            mx_sb_add(r, b, s->ptr + begin, to - begin, false);
            begin = to;
        }
        if (begin < end) {
            size_t to = mx_min_size(mark_end, end);
            mx_sb_add(r, b, s->ptr + begin, to - begin, true);
            begin = to;
        }
    }
}

void mx_sb_text(mx_run *r, mx_sb *b, const mx_text *s)
{
    mx_sb_range(r, b, s, 0, s->len);
}

void mx_sb_cp(mx_run *r, mx_sb *b, uint32_t cp, bool is_markup)
{
    char enc[4];
    mx_sb_add(r, b, enc, mx_utf8_encode(cp, enc), is_markup);
}

static size_t count_chars(const char *p, size_t n)
{
    size_t chars = 0;
    for (size_t i = 0; i < n; i++) {
        chars += ((unsigned char)p[i] & 0xC0) != 0x80;
    }
    return chars;
}

mx_value *mx_sb_finish(mx_run *r, mx_sb *b)
{
    mx_value *v = mx_v_new(r, MX_V_STRING, 0);
    if (v == NULL) {
        return NULL;
    }
    v->s = (mx_text){.ptr = b->len > 0 ? b->ptr : "",
                     .len = b->len,
                     .n_chars = count_chars(b->ptr, b->len)};
    if (b->n_marks == 1 && b->marks[0].begin == 0 && b->marks[0].end == b->len) {
        v->s.is_markup = true;
    } else if (b->n_marks > UINT32_MAX) {
        return mx_run_fail(r, MX_E_LIMIT, "a text of too many pieces");
    } else {
        v->s.marks = b->marks;
        v->s.n_marks = (uint32_t)b->n_marks;
    }
    /* An empty text has no origin of its own; markup is the harmless choice for what is added. */
    if (b->len == 0) {
        v->s.is_markup = true;
    }
    return v;
}

mx_value *mx_v_text(mx_run *r, const char *p, size_t n, bool is_markup)
{
    mx_sb b = {0};
    mx_sb_add(r, &b, p, n, is_markup);
    return mx_sb_finish(r, &b);
}

mx_value *mx_v_cstr(mx_run *r, const char *s)
{
    return mx_v_text(r, s, strlen(s), true);
}

mx_value *mx_v_part(mx_run *r, const mx_value *s, size_t begin, size_t end)
{
    if (s == NULL || !mx_run_step(r, (end - begin) / BYTES_PER_STEP)) {
        return NULL;
    }
    mx_value *v = mx_v_new(r, MX_V_STRING, 0);
    if (v == NULL) {
        return NULL;
    }
    v->s = (mx_text){.ptr = s->s.ptr + begin,
                     .len = end - begin,
                     .is_markup = s->s.is_markup,
                     .is_safe = s->s.is_safe};
    v->s.n_chars = s->s.len == s->s.n_chars ? end - begin : count_chars(v->s.ptr, v->s.len);
    if (s->s.n_marks == 0) {
        return v;
    }
    size_t from = first_mark(&s->s, begin), to = from;
    while (to < s->s.n_marks && s->s.marks[to].begin < end) {
        to++;
    }
    if (from == to) {
        return v; /* only data in this part */
    }
    mx_span *marks = mx_run_array(r, to - from, sizeof *marks);
    if (marks == NULL) {
        return NULL;
    }
    for (size_t m = from; m < to; m++) {
        marks[m - from].begin = mx_max_size(s->s.marks[m].begin, begin) - begin;
        marks[m - from].end = mx_min_size(s->s.marks[m].end, end) - begin;
    }
    if (to - from == 1 && marks[0].begin == 0 && marks[0].end == v->s.len) {
        v->s.is_markup = true;
    } else {
        v->s.marks = marks;
        v->s.n_marks = (uint32_t)(to - from);
    }
    return v;
}

bool mx_text_mark_at(const mx_text *s, size_t byte)
{
    if (s->n_marks == 0) {
        return s->is_markup;
    }
    size_t m = first_mark(s, byte);
    return m < s->n_marks && s->marks[m].begin <= byte;
}

bool mx_text_all_data(const mx_text *s)
{
    return s->n_marks == 0 && !s->is_markup && s->len > 0;
}

size_t mx_text_offset(const mx_text *s, size_t n_chars)
{
    if (n_chars >= s->n_chars) {
        return s->len;
    }
    if (s->len == s->n_chars) {
        return n_chars;
    }
    size_t at = 0;
    while (n_chars > 0) {
        at++;
        while (at < s->len && ((unsigned char)s->ptr[at] & 0xC0) == 0x80) {
            at++;
        }
        n_chars--;
    }
    return at;
}

size_t mx_text_find(const mx_text *s, const mx_text *what, size_t from)
{
    if (from > s->len || what->len > s->len - from) {
        return SIZE_MAX;
    }
    if (what->len == 0) {
        return from;
    }
    const char *hit = memmem(s->ptr + from, s->len - from, what->ptr, what->len);
    return hit == NULL ? SIZE_MAX : (size_t)(hit - s->ptr);
}

uint32_t mx_text_next(const mx_text *s, size_t *at)
{
    uint32_t cp;
    *at += mx_utf8_decode(s->ptr + *at, s->len - *at, &cp);
    return cp;
}

void mx_sb_escaped(mx_run *r, mx_sb *b, const mx_text *s)
{
    size_t done = 0;
    for (size_t i = 0; i < s->len && r->err == MX_OK; i++) {
        const char *name;
        switch (s->ptr[i]) {
        case '&': name = "&amp;"; break;
        case '<': name = "&lt;"; break;
        case '>': name = "&gt;"; break;
        case '\'': name = "&#39;"; break;
        case '"': name = "&#34;"; break;
        default: continue;
        }
        mx_sb_range(r, b, s, done, i);
        mx_sb_cstr(r, b, name, mx_text_mark_at(s, i));
        done = i + 1;
    }
    mx_sb_range(r, b, s, done, s->len);
}
