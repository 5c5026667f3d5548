/* SPDX-License-Identifier: MIT
 *
 * A sequence: a chain of pages of which it sees n_tokens rows, and may write n_reserved more.
 *
 *   pages:   [ sealed ][ sealed ][ tail, n_tokens % 64 rows seen ][ reserved, empty ] ...
 *                                  ^ may be shared                  ^ always ours alone
 *
 * Only the tail can be both shared and written to, and only by whoever holds its append right: rows
 * below anybody's count never change, rows above are invisible. A sequence that sees fewer rows
 * than the page has, or comes second, copies its rows when (and only when) it wants to go on
 * writing.
 *
 * Where the model has recurrent layers, two states go with it: the one at n_tokens, which others may
 * share, and the one that the next rows are being computed into. A commit exchanges them.
 */
#include "kv/kv.h"

#include "base/mem.h"

#include <assert.h>

#ifdef MX_CHECK
#include <stdio.h>
#include <stdlib.h>
#endif

static size_t pages_for(size_t n_tokens)
{
    return n_tokens / MX_PAGE_TOKENS + (n_tokens % MX_PAGE_TOKENS != 0);
}

void mx_seq_init(mx_seq *s, mx_kv_pool *pool, const mx_hash256 *root)
{
    *s = (mx_seq){.pool = pool, .root = *root, .keep_from = SIZE_MAX};
}

/* Gives back the append right of the page that takes row n_tokens. */
static void drop_right(mx_seq *s)
{
    if (s->has_right) {
        mx_page *page = s->pages[s->n_tokens / MX_PAGE_TOKENS];
        assert(page->has_appender);
        page->has_appender = false;
        s->has_right = false;
    }
}

/* Shortens the page list to n, last page first, so that a parent outlives its child's entry
 * here. */
static void drop_pages(mx_seq *s, size_t n)
{
    while (s->n_pages > n) {
        mx_page *page = s->pages[--s->n_pages];
        if (s->n_pages >= s->first_local) {
            mx_page_drop_local(s->pool, page);
        }
        mx_page_unref(s->pool, page);
    }
    s->first_local = mx_min_size(s->first_local, n);
}

/* From now on the local rows are held from page n on only. */
static void drop_local_before(mx_seq *s, size_t n)
{
    for (; s->first_local < n; s->first_local++) {
        mx_page_drop_local(s->pool, s->pages[s->first_local]);
    }
}

void mx_seq_trim(mx_seq *s)
{
    size_t n = mx_kv_first_kept(mx_kv_pool_shape(s->pool), s->n_tokens);
    drop_local_before(s, mx_min_size(mx_min_size(n, s->keep_from), s->n_pages));
}

bool mx_seq_can_go_on(const mx_seq *s)
{
    return s->first_local <= mx_kv_first_seen(mx_kv_pool_shape(s->pool), s->n_tokens);
}

void mx_seq_free(mx_seq *s)
{
    if (s->pool != NULL) {
        mx_seq_rollback(s);
        drop_right(s);
        drop_pages(s, 0);
        mx_kvstate_unref(s->pool, s->state);
    }
    mx_free(s->pages);
    *s = (mx_seq){0};
}

static bool grow_pages(mx_seq *s, size_t need)
{
    void *array = s->pages;
    if (!mx_grow(&array, &s->pages_cap, need, sizeof(mx_page *))) {
        return false;
    }
    s->pages = array;
    return true;
}

/* How the tail page becomes writable. */
typedef enum tail_access {
    TAIL_READY, /* no tail, or the right is already ours */
    TAIL_TAKE,  /* the right is free: take it */
    TAIL_SHRINK, /* nobody else refers to the page: forget the rows above ours, take the right */
    TAIL_COPY   /* somebody else needs the rows above ours, or writes there */
} tail_access;

static tail_access tail_access_of(const mx_seq *s, const mx_page *tail, uint32_t n_rows)
{
    if (s->has_right || n_rows == 0) {
        return TAIL_READY;
    }
    if (!tail->has_appender && tail->n_rows == n_rows) {
        return TAIL_TAKE;
    }
    return tail->refs == 1 ? TAIL_SHRINK : TAIL_COPY;
}

/* Replaces the tail by `copy`, a fresh page that gets its rows and what leads to it. */
static void replace_tail(mx_seq *s, mx_page *copy, uint32_t n_rows)
{
    size_t at = s->n_tokens / MX_PAGE_TOKENS;
    mx_page *tail = s->pages[at];
    mx_page_copy(s->pool, copy, tail, n_rows);
    mx_page_link(copy, at > 0 ? s->pages[at - 1] : NULL, &s->root, tail->tokens, n_rows);
    mx_page_hold_local(copy);
    s->pages[at] = copy;
    mx_page_drop_local(s->pool, tail);
    mx_page_unref(s->pool, tail);
}

mx_err mx_seq_reserve(mx_seq *s, size_t n_new)
{
    size_t total, n_old = s->n_pages;
    const bool wants_state = n_new > 0 && s->next == NULL && mx_kv_pool_state_pages(s->pool) > 0;
    assert(mx_kv_pool_state_pages(s->pool) == 0 || (s->state != NULL) == (s->n_tokens > 0));
    assert(mx_seq_can_go_on(s));
    mx_seq_trim(s);
    if (n_new <= s->n_reserved && !wants_state) {
        return MX_OK;
    }
    n_new = mx_max_size(n_new, s->n_reserved);
    if (!mx_add_ok(s->n_tokens, n_new, &total)) {
        return MX_E_FULL;
    }
    size_t n_want = pages_for(total);
    size_t at = s->n_tokens / MX_PAGE_TOKENS;
    uint32_t n_rows = (uint32_t)(s->n_tokens % MX_PAGE_TOKENS);
    tail_access access = tail_access_of(s, n_rows > 0 ? s->pages[at] : NULL, n_rows);
    size_t n_need = n_want - n_old + (access == TAIL_COPY);
    n_need += wants_state ? mx_kv_pool_state_pages(s->pool) : 0;
    /* Asked first, because a failed attempt would have zeroed pages for nothing. */
    if (n_need > mx_kv_pool_max(s->pool) - mx_kv_pool_used(s->pool)) {
        return MX_E_FULL;
    }
    if (!grow_pages(s, n_want)) {
        return MX_E_NOMEM;
    }
    mx_page *copy = NULL;
    mx_kvstate *next = wants_state ? mx_kvstate_alloc(s->pool) : NULL;
    bool got_all = (next != NULL) == wants_state &&
                   (access != TAIL_COPY || (copy = mx_page_alloc(s->pool)) != NULL);
    while (got_all && s->n_pages < n_want) {
        mx_page *page = mx_page_alloc(s->pool);
        got_all = page != NULL;
        if (got_all) {
            mx_page_hold_local(page);
            s->pages[s->n_pages++] = page;
        }
    }
    if (!got_all) {
        drop_pages(s, n_old);
        mx_page_unref(s->pool, copy);
        mx_kvstate_unref(s->pool, next);
        return MX_E_FULL;
    }

    s->next = wants_state ? next : s->next;
    if (access == TAIL_COPY) {
        replace_tail(s, copy, n_rows);
    } else if (access == TAIL_SHRINK) {
        assert(s->pages[at]->owner == NULL);
        s->pages[at]->n_rows = n_rows;
    }
    if (n_rows > 0) {
        s->pages[at]->has_appender = true;
    }
    /* A reserved page becomes part of the chain (parent, index) only when its first row is
     * committed: until then the page before it is not sealed. */
    for (size_t i = n_old; i < n_want; i++) {
        s->pages[i]->has_appender = true;
    }
    s->has_right = true;
    s->n_reserved = n_new;
    return MX_OK;
}

void mx_seq_commit(mx_seq *s, const int32_t *tokens, size_t n_new)
{
    assert(n_new <= s->n_reserved);
    if (n_new > 0 && mx_kv_pool_state_pages(s->pool) > 0) {
        assert(s->next != NULL && s->next->n_tokens == s->n_tokens + n_new);
        mx_kvstate_unref(s->pool, s->state);
        s->state = s->next;
        s->next = NULL;
    }
    while (n_new > 0) {
        size_t at = s->n_tokens / MX_PAGE_TOKENS;
        uint32_t row = (uint32_t)(s->n_tokens % MX_PAGE_TOKENS);
        mx_page *page = s->pages[at];
        mx_page *parent = at > 0 ? s->pages[at - 1] : NULL;
        assert(s->has_right && page->has_appender && page->n_rows == row);
        uint32_t n = (uint32_t)mx_min_size(n_new, MX_PAGE_TOKENS - row);
        if (row == 0) {
            mx_page_link(page, parent, &s->root, tokens, 0);
        }
        memcpy(page->tokens + row, tokens, n * sizeof *tokens);
        page->n_rows = row + n;
        if (page->local_rows < page->n_rows) { /* they were given to it up to here; now there are more */
            page->local_rows = page->n_rows;
        }
        s->n_tokens += n;
        s->n_reserved -= n;
        tokens += n;
        n_new -= n;
        if (page->n_rows == MX_PAGE_TOKENS) {
            page->id = mx_page_identity(&s->root, parent != NULL ? &parent->id : &s->root,
                                        page->tokens, MX_PAGE_TOKENS);
            page->has_appender = false;
            s->has_right = at + 1 < s->n_pages;
        }
    }
}

void mx_seq_rollback(mx_seq *s)
{
    size_t n_keep = pages_for(s->n_tokens);
    if (s->n_pages > n_keep) {
        if (s->n_tokens % MX_PAGE_TOKENS == 0) {
            drop_right(s); /* of the first page that goes */
        }
        for (size_t i = n_keep; i < s->n_pages; i++) {
            s->pages[i]->has_appender = false;
        }
        drop_pages(s, n_keep);
    }
    s->n_reserved = 0;
    mx_kvstate_unref(s->pool, s->next);
    s->next = NULL;
}

void mx_seq_cut(mx_seq *s, size_t n_tokens)
{
    assert(n_tokens <= s->n_tokens);
    mx_seq_rollback(s);
    if (n_tokens == s->n_tokens) {
        return;
    }
    n_tokens = mx_kv_pool_state_pages(s->pool) > 0 ? 0 : n_tokens;
    if (s->first_local > mx_kv_first_seen(mx_kv_pool_shape(s->pool), n_tokens)) {
        n_tokens = 0;
    }
    drop_right(s);
    drop_pages(s, pages_for(n_tokens));
    s->n_tokens = n_tokens;
    mx_kvstate_unref(s->pool, s->state);
    s->state = NULL;
}

mx_err mx_seq_push_page(mx_seq *s, mx_page *page, uint32_t n_rows)
{
    assert(s->n_reserved == 0 && !s->has_right && s->n_tokens == s->n_pages * MX_PAGE_TOKENS);
    assert(n_rows > 0 && n_rows <= page->n_rows && page->index == s->n_pages);
    if (!grow_pages(s, s->n_pages + 1)) {
        return MX_E_NOMEM;
    }
    if (n_rows == page->n_rows && n_rows < MX_PAGE_TOKENS && !page->has_appender) {
        page->has_appender = true;
        s->has_right = true;
    }
    s->pages[s->n_pages++] = page;
    s->n_tokens += n_rows;
    if (mx_page_has_local(mx_kv_pool_shape(s->pool), page, n_rows)) {
        mx_page_hold_local(page);
    } else {
        drop_local_before(s, s->n_pages - 1);
        s->first_local = s->n_pages;
    }
    return MX_OK;
}

mx_err mx_seq_set_state(mx_seq *s, mx_kvstate *st)
{
    assert(s->n_tokens > 0 && st->n_tokens == s->n_tokens && s->n_reserved == 0);
    if (st->n_tokens != s->n_tokens) {
        return MX_E_INVALID;
    }
    mx_kvstate_unref(s->pool, s->state);
    s->state = st;
    return MX_OK;
}

mx_err mx_seq_fork(mx_seq *dst, const mx_seq *src, size_t n_tokens)
{
    assert(dst->n_pages == 0 && dst->pool == src->pool && n_tokens <= src->n_tokens);
    if (mx_kv_pool_state_pages(src->pool) > 0 && n_tokens != 0 && n_tokens != src->n_tokens) {
        return MX_E_INVALID;
    }
    mx_err e = MX_OK;
    for (size_t i = 0; i < pages_for(n_tokens); i++) {
        size_t left = n_tokens - i * MX_PAGE_TOKENS;
        mx_page *page = mx_page_ref(src->pages[i]);
        e = mx_seq_push_page(dst, page, (uint32_t)mx_min_size(left, MX_PAGE_TOKENS));
        if (e != MX_OK) {
            mx_page_unref(src->pool, page);
            break;
        }
    }
    if (e == MX_OK && !mx_seq_can_go_on(dst)) {
        e = MX_E_INVALID;
    }
    if (e != MX_OK) {
        drop_right(dst);
        drop_pages(dst, 0);
        dst->n_tokens = 0;
        return e;
    }
    dst->state = n_tokens > 0 && src->state != NULL ? mx_kvstate_ref(src->state) : NULL;
    return MX_OK;
}

#ifdef MX_CHECK
static void require(bool ok, size_t at, const char *what)
{
    if (!ok) {
        fprintf(stderr, "mx_seq_check: page %zu: %s\n", at, what);
        abort();
    }
}

static void check_committed(const mx_seq *s, size_t at, const mx_page *page)
{
    const mx_page *parent = at > 0 ? s->pages[at - 1] : NULL;
    size_t seen = mx_min_size(s->n_tokens - at * MX_PAGE_TOKENS, MX_PAGE_TOKENS);
    require(page->n_rows >= seen, at, "fewer rows than the sequence sees");
    require(page->index == at, at, "wrong index");
    require((page->parent == NULL) == (parent == NULL), at, "wrong parent");
    /* The same page or one with the same identity: a duplicate that the bank has not merged. */
    require(parent == NULL || mx_hash256_eq(&page->parent->id, &parent->id), at, "foreign parent");
    if (page->n_rows == MX_PAGE_TOKENS) {
        mx_hash256 id = mx_page_identity(&s->root, parent != NULL ? &parent->id : &s->root,
                                         page->tokens, MX_PAGE_TOKENS);
        require(mx_hash256_eq(&id, &page->id), at, "wrong identity");
    }
    if (seen == MX_PAGE_TOKENS) {
        require(!page->has_appender, at, "sealed but writable");
    }
}

static void check_states(const mx_seq *s)
{
    const bool has_states = mx_kv_pool_state_pages(s->pool) > 0;
    require((s->state != NULL) == (has_states && s->n_tokens > 0), 0, "a state too many or few");
    require(s->state == NULL || (s->state->refs > 0 && s->state->n_tokens == s->n_tokens), 0,
            "the state of another position");
    require(s->next == NULL || (has_states && s->next->refs == 1 && s->next != s->state), 0,
            "the state to be written is shared");
}

void mx_seq_check(const mx_seq *s)
{
    if (s->pool != NULL) {
        check_states(s);
    }
    require(s->n_pages <= s->pages_cap, 0, "more pages than room");
    require(s->first_local <= s->n_pages, 0, "holds begin behind the last page");
    require(s->n_pages == pages_for(s->n_tokens + s->n_reserved), 0, "wrong number of pages");
    for (size_t i = 0; i < s->n_pages; i++) {
        const mx_page *page = s->pages[i];
        require(page->refs > 0, i, "not referenced");
        require(i < s->first_local || page->local_refs > 0, i, "local rows that are not held");
        uint32_t n_seen = (uint32_t)mx_min_size(
            s->n_tokens - mx_min_size(i * MX_PAGE_TOKENS, s->n_tokens), MX_PAGE_TOKENS);
        require(i < s->first_local || mx_page_has_local(mx_kv_pool_shape(s->pool), page, n_seen), i,
                "local rows that are held are gone");
        if (i * MX_PAGE_TOKENS < s->n_tokens) {
            check_committed(s, i, page);
        } else {
            require(page->n_rows == 0 && page->refs == 1 && page->parent == NULL, i,
                    "a reserved page is shared or has rows");
            require(page->has_appender, i, "a reserved page is not writable");
        }
    }
    require(s->n_reserved == 0 || s->has_right, s->n_pages, "reserved without the right");
    if (s->has_right) {
        size_t at = s->n_tokens / MX_PAGE_TOKENS;
        require(at < s->n_pages, at, "a right without a page");
        require(s->pages[at]->has_appender, at, "the right is not marked");
        require(s->pages[at]->n_rows == s->n_tokens % MX_PAGE_TOKENS, at, "right at a wrong row");
    }
}
#else
void mx_seq_check(const mx_seq *s)
{
    (void)s;
}
#endif
