/* SPDX-License-Identifier: MIT
 *
 * Two stages. The first cuts the byte stream at the last complete character and replaces ill-formed
 * sequences; the second looks for stop strings in clean text and keeps back the longest suffix that
 * is a proper beginning of one. Stop strings are few and short, so they are compared directly, at the
 * ends of new text only.
 */
#include "sched/sched_text.h"

#include "base/utf8.h"

void mx_text_init(mx_text *t, const mx_str *stops, size_t n_stops)
{
    *t = (mx_text){.stops = stops, .n_stops = n_stops};
    for (size_t i = 0; i < n_stops; i++) {
        t->max_stop_len = mx_max_size(t->max_stop_len, stops[i].len);
    }
}

void mx_text_free(mx_text *t)
{
    mx_buf_free(&t->raw);
    mx_buf_free(&t->held);
}

bool mx_text_failed(const mx_text *t)
{
    return t->raw.failed || t->held.failed;
}

static void drop_front(mx_buf *b, size_t n)
{
    if (n > 0) {
        memmove(b->ptr, b->ptr + n, b->len - n);
        b->len -= n;
    }
}

static void release(mx_text *t, size_t n, mx_buf *out)
{
    mx_buf_append(out, t->held.ptr, n);
    t->n_released += n;
    drop_front(&t->held, n);
}

/* Where the stop string begins that is complete first; held.len = none. Which one that is depends on
 * the text alone, not on how it arrived: the smallest end behind `old` counts (before it there was
 * none), and of several that end there the longest. */
static size_t find_stop(const mx_text *t, size_t old, mx_str *found)
{
    for (size_t end = old + 1; end <= t->held.len; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < t->n_stops; i++) {
            mx_str s = t->stops[i];
            if (s.len <= end && s.len > longest &&
                memcmp(t->held.ptr + end - s.len, s.ptr, s.len) == 0)
            {
                longest = s.len;
                *found = s;
            }
        }
        if (longest > 0) {
            return end - longest;
        }
    }
    return t->held.len;
}

/* How many bytes at the end of `held` are a proper beginning of some stop string. */
static size_t stop_suffix(const mx_text *t)
{
    size_t most = t->max_stop_len > 0 ? mx_min_size(t->max_stop_len - 1, t->held.len) : 0;
    for (size_t n = most; n > 0; n--) {
        const char *tail = t->held.ptr + t->held.len - n;
        for (size_t i = 0; i < t->n_stops; i++) {
            if (n < t->stops[i].len && memcmp(tail, t->stops[i].ptr, n) == 0) {
                return n;
            }
        }
    }
    return 0;
}

/* Moves n raw bytes into `held`, cleaned; releases what can be. */
static bool advance(mx_text *t, size_t n, bool is_last, mx_buf *out)
{
    size_t old = t->held.len;
    mx_utf8_append_clean(&t->held, t->raw.ptr, n);
    drop_front(&t->raw, n);
    t->n_clean += t->held.len - old;
    size_t at = find_stop(t, old, &t->stop);
    if (at < t->held.len) {
        release(t, at, out);
        mx_buf_clear(&t->held);
        mx_buf_clear(&t->raw);
        return true;
    }
    release(t, t->held.len - (is_last ? 0 : stop_suffix(t)), out);
    return false;
}

bool mx_text_push(mx_text *t, mx_str piece, mx_buf *out)
{
    mx_buf_append(&t->raw, piece.ptr, piece.len);
    if (t->raw.len == 0) {
        return false;
    }
    return advance(t, mx_utf8_complete(t->raw.ptr, t->raw.len), false, out);
}

bool mx_text_finish(mx_text *t, mx_buf *out)
{
    return advance(t, t->raw.len, true, out);
}
