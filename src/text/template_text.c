/* SPDX-License-Identifier: MIT
 *
 * The methods of strings. Each result is put together from ranges of its sources, so that every
 * character keeps its origin. Python's `safe` strings stay safe and escape what is put into them.
 */
#include "text/template_internal.h"

static mx_value *as_safe_as(mx_value *v, const mx_value *s)
{
    if (v != NULL) {
        v->s.is_safe = s->s.is_safe;
    }
    return v;
}

/* A text argument as it goes into s: escaped when s is safe and the argument is not. */
static void add_into(mx_run *r, mx_sb *b, const mx_value *s, const mx_value *v)
{
    if (s->s.is_safe && !v->s.is_safe) {
        mx_sb_escaped(r, b, &v->s);
    } else {
        mx_sb_text(r, b, &v->s);
    }
}

/* ---- strip ---- */

static bool strips(const mx_value *chars, uint32_t cp, const char *p, size_t n)
{
    if (chars == NULL) {
        return mx_uc_is_space(cp);
    }
    mx_text one = {.ptr = p, .len = n};
    return mx_text_find(&chars->s, &one, 0) != SIZE_MAX;
}

mx_value *mx_text_strip(mx_run *r, mx_value *s, const mx_value *chars, bool left, bool right)
{
    if (chars != NULL && mx_v_is(chars, MX_V_NONE)) {
        chars = NULL;
    }
    if (chars != NULL && !mx_v_is(chars, MX_V_STRING)) {
        return mx_run_fail(r, MX_E_INVALID, "strip needs a string, not a %s",
                           mx_v_type_name(chars));
    }
    size_t begin = 0, end = s->s.len;
    uint64_t n = 0;
    while (left && begin < end) {
        size_t at = begin;
        uint32_t cp = mx_text_next(&s->s, &at);
        if (!strips(chars, cp, s->s.ptr + begin, at - begin)) {
            break;
        }
        begin = at;
        n++;
    }
    while (right && end > begin) {
        size_t from = end - 1;
        while (((unsigned char)s->s.ptr[from] & 0xC0) == 0x80) {
            from--;
        }
        size_t at = from;
        uint32_t cp = mx_text_next(&s->s, &at);
        if (!strips(chars, cp, s->s.ptr + from, end - from)) {
            break;
        }
        end = from;
        n++;
    }
    uint64_t cost = 1 + (chars == NULL ? 0 : chars->s.len / 16);
    return mx_run_step(r, n * cost / 16) ? mx_v_part(r, s, begin, end) : NULL;
}

static mx_value *strip_method(mx_run *r, mx_value *s, const mx_args *args, bool left, bool right)
{
    static const char *const names[] = {"chars"};
    mx_value *a[1];
    bool ok = mx_bind(r, "strip", args, names, 1, 0, a);
    return ok ? mx_text_strip(r, s, a[0], left, right) : NULL;
}

static mx_value *m_strip(mx_run *r, mx_value *s, const mx_args *args)
{
    return strip_method(r, s, args, true, true);
}

static mx_value *m_lstrip(mx_run *r, mx_value *s, const mx_args *args)
{
    return strip_method(r, s, args, true, false);
}

static mx_value *m_rstrip(mx_run *r, mx_value *s, const mx_args *args)
{
    return strip_method(r, s, args, false, true);
}

/* ---- split ---- */

/* Words between white space; the rest behind the last cut keeps its blanks. */
static mx_value *split_words(mx_run *r, mx_value *s, int64_t max)
{
    mx_value *list = mx_v_seq(r, MX_SEQ_LIST, 0);
    size_t at = 0;
    while (r->err == MX_OK) {
        size_t begin = at;
        while (begin < s->s.len) {
            size_t next = begin;
            if (!mx_uc_is_space(mx_text_next(&s->s, &next))) {
                break;
            }
            begin = next;
        }
        if (begin == s->s.len) {
            break;
        }
        if (max == 0) {
            mx_v_push(r, list, mx_v_part(r, s, begin, s->s.len));
            break;
        }
        size_t end = begin;
        while (end < s->s.len) {
            size_t next = end;
            if (mx_uc_is_space(mx_text_next(&s->s, &next))) {
                break;
            }
            end = next;
        }
        if (!mx_v_push(r, list, mx_v_part(r, s, begin, end))) {
            return NULL;
        }
        at = end;
        max -= max > 0;
    }
    return r->err == MX_OK ? list : NULL;
}

static mx_value *split_at(mx_run *r, mx_value *s, const mx_value *sep, int64_t max)
{
    mx_value *list = mx_v_seq(r, MX_SEQ_LIST, 0);
    size_t at = 0;
    while (list != NULL) {
        size_t hit = max == 0 ? SIZE_MAX : mx_text_find(&s->s, &sep->s, at);
        if (!mx_v_push(r, list, mx_v_part(r, s, at, hit == SIZE_MAX ? s->s.len : hit))) {
            return NULL;
        }
        if (hit == SIZE_MAX) {
            break;
        }
        at = hit + sep->s.len;
        max -= max > 0;
    }
    return list;
}

/* The last place of `what` that ends at or before `end`. */
static size_t find_last(const mx_text *s, const mx_text *what, size_t from, size_t end)
{
    for (size_t at = end; what->len <= at && at - what->len >= from; at--) {
        if (memcmp(s->ptr + at - what->len, what->ptr, what->len) == 0) {
            return at - what->len;
        }
        if (at == 0) {
            break;
        }
    }
    return SIZE_MAX;
}

/* What a search from the right may cost: it compares byte by byte. */
static bool pay_for_search(mx_run *r, const mx_value *s, const mx_value *what)
{
    return mx_run_step(r, s->s.len / 16 + s->s.len / 64 * what->s.len);
}

static mx_value *rsplit_at(mx_run *r, mx_value *s, const mx_value *sep, int64_t max)
{
    if (!pay_for_search(r, s, sep)) {
        return NULL;
    }
    mx_value *list = mx_v_seq(r, MX_SEQ_LIST, 0);
    size_t end = s->s.len;
    while (list != NULL) {
        size_t hit = max == 0 ? SIZE_MAX : find_last(&s->s, &sep->s, 0, end);
        size_t begin = hit == SIZE_MAX ? 0 : hit + sep->s.len;
        if (!mx_v_push(r, list, mx_v_part(r, s, begin, end))) {
            return NULL;
        }
        if (hit == SIZE_MAX) {
            break;
        }
        end = hit;
        max -= max > 0;
    }
    for (size_t i = 0; list != NULL && i < list->seq.n / 2; i++) {
        mx_value *v = list->seq.items[i];
        list->seq.items[i] = list->seq.items[list->seq.n - 1 - i];
        list->seq.items[list->seq.n - 1 - i] = v;
    }
    return list;
}

static mx_value *split_method(mx_run *r, mx_value *s, const mx_args *args, bool from_right)
{
    static const char *const names[] = {"sep", "maxsplit"};
    mx_value *a[2];
    int64_t max;
    if (!mx_bind(r, "split", args, names, 2, 0, a) || !mx_arg_int(r, a[1], -1, &max) ||
        !mx_run_step(r, s->s.len / 16))
    {
        return NULL;
    }
    if (a[0] == NULL || mx_v_is(a[0], MX_V_NONE)) {
        if (from_right && max >= 0) {
            return mx_run_fail(r, MX_E_INVALID, "rsplit with a limit needs a separator");
        }
        return split_words(r, s, max);
    }
    if (mx_arg_text(r, "split", a[0]) == NULL) {
        return NULL;
    }
    if (a[0]->s.len == 0) {
        return mx_run_fail(r, MX_E_INVALID, "an empty separator");
    }
    return from_right ? rsplit_at(r, s, a[0], max) : split_at(r, s, a[0], max);
}

static mx_value *m_split(mx_run *r, mx_value *s, const mx_args *args)
{
    return split_method(r, s, args, false);
}

static mx_value *m_rsplit(mx_run *r, mx_value *s, const mx_args *args)
{
    return split_method(r, s, args, true);
}

static mx_value *partition(mx_run *r, mx_value *s, const mx_args *args, bool from_right)
{
    static const char *const names[] = {"sep"};
    mx_value *a[1];
    if (!mx_bind(r, "partition", args, names, 1, 1, a) ||
        mx_arg_text(r, "partition", a[0]) == NULL)
    {
        return NULL;
    }
    if (a[0]->s.len == 0) {
        return mx_run_fail(r, MX_E_INVALID, "an empty separator");
    }
    if (from_right && !pay_for_search(r, s, a[0])) {
        return NULL;
    }
    size_t hit = from_right ? find_last(&s->s, &a[0]->s, 0, s->s.len)
                            : mx_text_find(&s->s, &a[0]->s, 0);
    size_t cut = hit == SIZE_MAX ? (from_right ? 0 : s->s.len) : hit;
    size_t behind = hit == SIZE_MAX ? cut : hit + a[0]->s.len;
    mx_value *t = mx_v_seq(r, MX_SEQ_TUPLE, 3);
    bool ok = mx_v_push(r, t, mx_v_part(r, s, 0, cut)) &&
              mx_v_push(r, t, mx_v_part(r, s, cut, behind)) &&
              mx_v_push(r, t, mx_v_part(r, s, behind, s->s.len));
    return ok ? t : NULL;
}

static mx_value *m_partition(mx_run *r, mx_value *s, const mx_args *args)
{
    return partition(r, s, args, false);
}

static mx_value *m_rpartition(mx_run *r, mx_value *s, const mx_args *args)
{
    return partition(r, s, args, true);
}

mx_value *mx_text_lines(mx_run *r, mx_value *s, bool keep_ends)
{
    mx_value *list = mx_v_seq(r, MX_SEQ_LIST, 0);
    size_t begin = 0;
    for (size_t at = 0; list != NULL && at < s->s.len;) {
        size_t end = at;
        uint32_t cp = mx_text_next(&s->s, &at);
        if (!mx_uc_is_line_end(cp)) {
            continue;
        }
        if (cp == '\r' && at < s->s.len && s->s.ptr[at] == '\n') {
            at++;
        }
        if (!mx_v_push(r, list, mx_v_part(r, s, begin, keep_ends ? at : end))) {
            return NULL;
        }
        begin = at;
    }
    if (begin < s->s.len && !mx_v_push(r, list, mx_v_part(r, s, begin, s->s.len))) {
        return NULL;
    }
    return list;
}

static mx_value *m_splitlines(mx_run *r, mx_value *s, const mx_args *args)
{
    static const char *const names[] = {"keepends"};
    mx_value *a[1];
    return mx_bind(r, "splitlines", args, names, 1, 0, a)
               ? mx_text_lines(r, s, a[0] != NULL && mx_v_truthy(a[0])) : NULL;
}

/* ---- searching ---- */

/* Narrows s to the slice that the optional start and end arguments name; *offset in characters. */
static mx_value *narrowed(mx_run *r, mx_value *s, mx_value *start, mx_value *end, int64_t *offset)
{
    *offset = 0;
    if (start == NULL && end == NULL) {
        return s;
    }
    if (start != NULL && mx_v_as_int(start, offset)) {
        int64_t n = (int64_t)s->s.n_chars;
        *offset = *offset < -n ? 0 : *offset < 0 ? *offset + n : *offset;
    }
    return mx_v_slice(r, s, start, end, NULL);
}

static mx_value *affix(mx_run *r, mx_value *s, const mx_args *args, bool at_end)
{
    static const char *const names[] = {"affix", "start", "end"};
    mx_value *a[3];
    int64_t offset;
    if (!mx_bind(r, "startswith", args, names, 3, 1, a) ||
        (s = narrowed(r, s, a[1], a[2], &offset)) == NULL)
    {
        return NULL;
    }
    bool is_tuple = mx_v_is(a[0], MX_V_LIST) && a[0]->sub == MX_SEQ_TUPLE;
    size_t n = is_tuple ? a[0]->seq.n : 1;
    for (size_t i = 0; i < n; i++) {
        mx_value *x = mx_arg_text(r, "startswith", is_tuple ? a[0]->seq.items[i] : a[0]);
        if (x == NULL) {
            return NULL;
        }
        size_t at = at_end ? s->s.len - mx_min_size(x->s.len, s->s.len) : 0;
        if (x->s.len <= s->s.len &&
            (x->s.len == 0 || memcmp(s->s.ptr + at, x->s.ptr, x->s.len) == 0))
        {
            return mx_v_bool(r, true);
        }
    }
    return mx_v_bool(r, false);
}

static mx_value *m_startswith(mx_run *r, mx_value *s, const mx_args *args)
{
    return affix(r, s, args, false);
}

static mx_value *m_endswith(mx_run *r, mx_value *s, const mx_args *args)
{
    return affix(r, s, args, true);
}

static mx_value *remove_affix(mx_run *r, mx_value *s, const mx_args *args, bool at_end)
{
    mx_value *has = affix(r, s, args, at_end);
    if (has == NULL || !has->b) {
        return has == NULL ? NULL : s;
    }
    if (args->n_pos != 1 || !mx_v_is(args->pos[0], MX_V_STRING)) {
        return mx_run_fail(r, MX_E_INVALID, "one string is needed");
    }
    size_t n = args->pos[0]->s.len;
    return at_end ? mx_v_part(r, s, 0, s->s.len - n) : mx_v_part(r, s, n, s->s.len);
}

static mx_value *m_removeprefix(mx_run *r, mx_value *s, const mx_args *args)
{
    return remove_affix(r, s, args, false);
}

static mx_value *m_removesuffix(mx_run *r, mx_value *s, const mx_args *args)
{
    return remove_affix(r, s, args, true);
}

static mx_value *find(mx_run *r, mx_value *s, const mx_args *args, bool from_right, bool must)
{
    static const char *const names[] = {"sub", "start", "end"};
    mx_value *a[3];
    int64_t offset;
    if (!mx_bind(r, "find", args, names, 3, 1, a) || mx_arg_text(r, "find", a[0]) == NULL ||
        (s = narrowed(r, s, a[1], a[2], &offset)) == NULL || !mx_run_step(r, s->s.len / 16))
    {
        return NULL;
    }
    if (from_right && !pay_for_search(r, s, a[0])) {
        return NULL;
    }
    size_t hit = from_right ? find_last(&s->s, &a[0]->s, 0, s->s.len)
                            : mx_text_find(&s->s, &a[0]->s, 0);
    if (hit == SIZE_MAX) {
        return must ? mx_run_fail(r, MX_E_INVALID, "substring not found") : mx_v_int(r, -1);
    }
    mx_value *before = mx_v_part(r, s, 0, hit);
    return before == NULL ? NULL : mx_v_int(r, offset + (int64_t)before->s.n_chars);
}

static mx_value *m_find(mx_run *r, mx_value *s, const mx_args *args)
{
    return find(r, s, args, false, false);
}

static mx_value *m_rfind(mx_run *r, mx_value *s, const mx_args *args)
{
    return find(r, s, args, true, false);
}

static mx_value *m_index(mx_run *r, mx_value *s, const mx_args *args)
{
    return find(r, s, args, false, true);
}

static mx_value *m_rindex(mx_run *r, mx_value *s, const mx_args *args)
{
    return find(r, s, args, true, true);
}

static mx_value *m_count(mx_run *r, mx_value *s, const mx_args *args)
{
    static const char *const names[] = {"sub", "start", "end"};
    mx_value *a[3];
    int64_t offset;
    if (!mx_bind(r, "count", args, names, 3, 1, a) || mx_arg_text(r, "count", a[0]) == NULL ||
        (s = narrowed(r, s, a[1], a[2], &offset)) == NULL || !mx_run_step(r, s->s.len / 16))
    {
        return NULL;
    }
    if (a[0]->s.len == 0) {
        return mx_v_size(r, s->s.n_chars + 1);
    }
    size_t n = 0;
    for (size_t at = 0; (at = mx_text_find(&s->s, &a[0]->s, at)) != SIZE_MAX; at += a[0]->s.len) {
        n++;
    }
    return mx_v_size(r, n);
}

/* ---- replace, join ---- */

mx_value *mx_text_replace(mx_run *r, mx_value *s, mx_value *from, mx_value *to, int64_t count)
{
    mx_sb b = {0};
    size_t done = 0, at = 0;
    while (count != 0 && r->err == MX_OK) {
        size_t hit = mx_text_find(&s->s, &from->s, at);
        if (hit == SIZE_MAX) {
            break;
        }
        mx_sb_range(r, &b, &s->s, done, hit);
        add_into(r, &b, s, to);
        done = hit + from->s.len;
        at = done;
        count -= count > 0;
        if (from->s.len == 0) { /* between all characters */
            if (at == s->s.len || !mx_run_step(r, 1)) {
                break;
            }
            mx_text_next(&s->s, &at);
        }
    }
    mx_sb_range(r, &b, &s->s, done, s->s.len);
    return mx_run_step(r, s->s.len / 16) ? as_safe_as(mx_sb_finish(r, &b), s) : NULL;
}

static mx_value *m_replace(mx_run *r, mx_value *s, const mx_args *args)
{
    static const char *const names[] = {"old", "new", "count"};
    mx_value *a[3];
    int64_t count;
    if (!mx_bind(r, "replace", args, names, 3, 2, a) || mx_arg_text(r, "replace", a[0]) == NULL ||
        mx_arg_text(r, "replace", a[1]) == NULL || !mx_arg_int(r, a[2], -1, &count))
    {
        return NULL;
    }
    return mx_text_replace(r, s, a[0], a[1], count);
}

static mx_value *m_join(mx_run *r, mx_value *s, const mx_args *args)
{
    static const char *const names[] = {"items"};
    mx_value *a[1];
    mx_value *items = mx_bind(r, "join", args, names, 1, 1, a) ? mx_v_list_of(r, a[0]) : NULL;
    mx_sb b = {0};
    for (size_t i = 0; items != NULL && i < items->seq.n; i++) {
        mx_value *item = mx_arg_text(r, "join", items->seq.items[i]);
        if (item == NULL) {
            return NULL;
        }
        if (i > 0) {
            mx_sb_text(r, &b, &s->s);
        }
        add_into(r, &b, s, item);
    }
    return items == NULL ? NULL : as_safe_as(mx_sb_finish(r, &b), s);
}

/* ---- case ---- */

mx_value *mx_text_cased(mx_run *r, const mx_value *s, int which)
{
    mx_sb b = {0};
    for (size_t at = 0; at < s->s.len && r->err == MX_OK;) {
        size_t from = at;
        uint32_t out[3], cp = mx_text_next(&s->s, &at);
        size_t n = mx_uc_case(cp, which, out);
        bool mark = mx_text_mark_at(&s->s, from);
        for (size_t i = 0; i < n; i++) {
            mx_sb_cp(r, &b, out[i], mark);
        }
    }
    return mx_run_step(r, s->s.len / 4) ? as_safe_as(mx_sb_finish(r, &b), s) : NULL;
}

static bool no_arguments(mx_run *r, const mx_args *args)
{
    return mx_bind(r, "this method", args, NULL, 0, 0, NULL);
}

static mx_value *m_upper(mx_run *r, mx_value *s, const mx_args *args)
{
    return no_arguments(r, args) ? mx_text_cased(r, s, MX_CASE_UPPER) : NULL;
}

static mx_value *m_lower(mx_run *r, mx_value *s, const mx_args *args)
{
    return no_arguments(r, args) ? mx_text_cased(r, s, MX_CASE_LOWER) : NULL;
}

enum { CASE_CAPITALIZE, CASE_WORDS, CASE_SWAP };

static mx_value *recased(mx_run *r, mx_value *s, const mx_args *args, int how)
{
    mx_sb b = {0};
    bool after_letter = false;
    for (size_t at = 0; no_arguments(r, args) && at < s->s.len && r->err == MX_OK;) {
        size_t from = at;
        uint32_t out[3], cp = mx_text_next(&s->s, &at);
        bool is_cased = mx_uc_is_upper(cp) || mx_uc_is_lower(cp);
        int which = after_letter ? MX_CASE_LOWER : MX_CASE_TITLE;
        if (how == CASE_SWAP) {
            which = mx_uc_is_upper(cp) ? MX_CASE_LOWER : MX_CASE_UPPER;
        }
        size_t n = mx_uc_case(cp, which, out);
        for (size_t i = 0; i < n; i++) {
            mx_sb_cp(r, &b, out[i], mx_text_mark_at(&s->s, from));
        }
        after_letter = how == CASE_CAPITALIZE || is_cased;
    }
    return mx_run_step(r, s->s.len / 4) ? as_safe_as(mx_sb_finish(r, &b), s) : NULL;
}

static mx_value *m_capitalize(mx_run *r, mx_value *s, const mx_args *args)
{
    return recased(r, s, args, CASE_CAPITALIZE);
}

static mx_value *m_title(mx_run *r, mx_value *s, const mx_args *args)
{
    return recased(r, s, args, CASE_WORDS);
}

static mx_value *m_swapcase(mx_run *r, mx_value *s, const mx_args *args)
{
    return recased(r, s, args, CASE_SWAP);
}

/* ---- what a text consists of ---- */

static bool is_alnum(uint32_t cp)
{
    return mx_uc_is_alpha(cp) || mx_uc_is_digit(cp);
}

static mx_value *all_are(mx_run *r, mx_value *s, const mx_args *args, bool (*is)(uint32_t cp))
{
    bool all = s->s.len > 0;
    for (size_t at = 0; all && at < s->s.len;) {
        all = is(mx_text_next(&s->s, &at));
    }
    return no_arguments(r, args) && mx_run_step(r, s->s.len / 8) ? mx_v_bool(r, all) : NULL;
}

static mx_value *m_isdigit(mx_run *r, mx_value *s, const mx_args *args)
{
    return all_are(r, s, args, mx_uc_is_digit);
}

static mx_value *m_isalpha(mx_run *r, mx_value *s, const mx_args *args)
{
    return all_are(r, s, args, mx_uc_is_alpha);
}

static mx_value *m_isalnum(mx_run *r, mx_value *s, const mx_args *args)
{
    return all_are(r, s, args, is_alnum);
}

static mx_value *m_isspace(mx_run *r, mx_value *s, const mx_args *args)
{
    return all_are(r, s, args, mx_uc_is_space);
}

/* Some letter of this case and none of the other. */
static mx_value *is_case(mx_run *r, mx_value *s, const mx_args *args, bool upper)
{
    bool some = false, other = false;
    for (size_t at = 0; at < s->s.len && !other;) {
        uint32_t cp = mx_text_next(&s->s, &at);
        bool is_upper = mx_uc_is_upper(cp), is_lower = !is_upper && mx_uc_is_lower(cp);
        some = some || (upper ? is_upper : is_lower);
        other = upper ? is_lower : is_upper;
    }
    return no_arguments(r, args) && mx_run_step(r, s->s.len / 8) ? mx_v_bool(r, some && !other)
                                                                  : NULL;
}

static mx_value *m_isupper(mx_run *r, mx_value *s, const mx_args *args)
{
    return is_case(r, s, args, true);
}

static mx_value *m_islower(mx_run *r, mx_value *s, const mx_args *args)
{
    return is_case(r, s, args, false);
}

/* ---- padding ---- */

static mx_value *padded(mx_run *r, mx_value *s, const mx_args *args, int side)
{
    static const char *const names[] = {"width", "fillchar"};
    mx_value *a[2];
    int64_t width;
    if (!mx_bind(r, "this method", args, names, 2, 1, a) || !mx_arg_int(r, a[0], 0, &width)) {
        return NULL;
    }
    mx_value *fill = a[1] != NULL ? mx_arg_text(r, "fillchar", a[1]) : mx_v_cstr(r, " ");
    if (fill == NULL || fill->s.n_chars != 1) {
        return mx_run_fail(r, MX_E_INVALID, "the fill must be one character");
    }
    int64_t n = (int64_t)s->s.n_chars;
    int64_t pad = width > n ? width - n : 0;
    /* Python's centre puts the odd blank to the left when the width is odd. */
    int64_t left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & width & 1);
    mx_value *before = mx_v_repeat(r, fill, left), *after = mx_v_repeat(r, fill, pad - left);
    mx_sb b = {0};
    if (before == NULL || after == NULL) {
        return NULL;
    }
    mx_sb_text(r, &b, &before->s);
    mx_sb_text(r, &b, &s->s);
    mx_sb_text(r, &b, &after->s);
    return as_safe_as(mx_sb_finish(r, &b), s);
}

static mx_value *m_ljust(mx_run *r, mx_value *s, const mx_args *args)
{
    return padded(r, s, args, -1);
}

static mx_value *m_rjust(mx_run *r, mx_value *s, const mx_args *args)
{
    return padded(r, s, args, 1);
}

static mx_value *m_center(mx_run *r, mx_value *s, const mx_args *args)
{
    return padded(r, s, args, 0);
}

static mx_value *m_zfill(mx_run *r, mx_value *s, const mx_args *args)
{
    static const char *const names[] = {"width"};
    mx_value *a[1];
    int64_t width;
    if (!mx_bind(r, "zfill", args, names, 1, 1, a) || !mx_arg_int(r, a[0], 0, &width)) {
        return NULL;
    }
    size_t sign = s->s.len > 0 && (s->s.ptr[0] == '-' || s->s.ptr[0] == '+');
    int64_t pad = width - (int64_t)s->s.n_chars;
    mx_value *zero = mx_v_cstr(r, "0");
    mx_value *zeros = zero == NULL ? NULL : mx_v_repeat(r, zero, pad);
    mx_sb b = {0};
    if (zeros == NULL) {
        return NULL;
    }
    mx_sb_range(r, &b, &s->s, 0, sign);
    mx_sb_text(r, &b, &zeros->s);
    mx_sb_range(r, &b, &s->s, sign, s->s.len);
    return mx_sb_finish(r, &b);
}

const mx_builtin mx_text_methods[] = {
    {"capitalize", m_capitalize},     {"center", m_center},         {"count", m_count},
    {"endswith", m_endswith},         {"find", m_find},             {"format", mx_text_format},
    {"index", m_index},               {"isalnum", m_isalnum},       {"isalpha", m_isalpha},
    {"isdecimal", m_isdigit},         {"isdigit", m_isdigit},       {"islower", m_islower},
    {"isnumeric", m_isdigit},         {"isspace", m_isspace},       {"isupper", m_isupper},
    {"join", m_join},                 {"ljust", m_ljust},           {"lower", m_lower},
    {"lstrip", m_lstrip},             {"partition", m_partition},
    {"removeprefix", m_removeprefix},
    {"removesuffix", m_removesuffix}, {"replace", m_replace},       {"rfind", m_rfind},
    {"rindex", m_rindex},             {"rjust", m_rjust},           {"rpartition", m_rpartition},
    {"rsplit", m_rsplit},             {"rstrip", m_rstrip},         {"split", m_split},
    {"splitlines", m_splitlines},     {"startswith", m_startswith}, {"strip", m_strip},
    {"swapcase", m_swapcase},         {"title", m_title},           {"upper", m_upper},
    {"zfill", m_zfill},
};
const size_t mx_n_text_methods = MX_COUNT(mx_text_methods);
