/* SPDX-License-Identifier: MIT
 *
 * Random histories of the SessionBank against a model that keeps every stored token list as a plain
 * list and finds prefixes by comparing with all of them.
 *
 * After every step: all invariant walkers; every stored page and entry is in the model; everything
 * in the model is stored, unless pages were evicted in this step (then the model follows); the
 * number of pages is that of distinct ones; each reference of each page has an owner. Rows are made
 * from the hash of their token prefix, so a row from elsewhere does not go unnoticed, and so are
 * states: with a shape that has them, each entry holds one, and a restore must end where the greatest
 * entry within the common prefix does. With windowed layers it must end at the greatest place within
 * the common prefix behind which all rows are there that the next token sees.
 */
#include "kv/kv_help.h"

#include "bank/bank.h"
#include "base/mem.h"

#include <stdlib.h>

enum {
    N_SEQS = 4,
    N_ROOTS = 2,
    MAX_TOKENS = 330,
    MAX_LISTS = 400,
    N_HIDDEN = 2,
    N_STEPS = 400,
    GAP = 8,
};

/* Pages of 4 KiB; a state counts as two of them. */
static const mx_kv_shape plain = {1, 2, 4, MX_KV_F16, 0, 0, 0}, stateful = {1, 2, 4, MX_KV_F16, 5000, 0, 0};

/* Two blocks of 4 KiB a page, and a window that begins in the middle of pages. */
static const mx_kv_shape windowed = {2, 2, 4, MX_KV_F16, 0, 1, 70};

/* A stored token list; its end may be an entry. */
typedef struct list {
    int root;
    size_t n;
    bool is_entry;
    bool is_point; /* an entry that is a boundary only */
    bool has_hidden;
    uint32_t n_local[MAX_TOKENS / MX_PAGE_TOKENS + 1]; /* of each page, rows of windowed layers */
    int32_t t[MAX_TOKENS];
} list;

typedef struct run {
    mx_seq seq;
    int root;
    bool is_approximate; /* its state is of another position: nothing of it may be stored */
    int32_t t[MAX_TOKENS]; /* [seq.n_tokens] */
} run;

/* The number of children of a page is counted by mx_kv_pool_check, which release builds leave
 * out. */
#ifdef MX_CHECK
static const bool can_count_refs = true;
#else
static const bool can_count_refs = false;
#endif

typedef struct world {
    uint64_t seed, rng;
    unsigned step;
    bool has_states, has_window, is_approximate;
    mx_kv_pool *pool;
    mx_bank *bank;
    mx_hash256 roots[N_ROOTS];
    run runs[N_SEQS];
    size_t n_model, n_seen;
    list *model; /* [n_model] */
    list *seen;  /* [n_seen] what mx_bank_walk shows */
    uint64_t n_evicted;
    size_t n_restored_tokens, n_kinds[MX_RESTORE_STEM + 1], n_full, n_evictions, n_approximate;
} world;

#define EXPECT(w, cond, ...)                                                                       \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            print_error("seed %llu, step %u: ", (unsigned long long)(w)->seed, (w)->step);         \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

static uint32_t pick(world *w, uint32_t below)
{
    return help_rand(&w->rng, below);
}

static size_t common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i]) {
        i++;
    }
    return i;
}

static bool is_prefix(const list *a, const list *b)
{
    return a->root == b->root && a->n <= b->n && common(a->t, a->n, b->t, b->n) == a->n;
}

static float hidden_of(const int32_t *t, size_t n, int i)
{
    return (float)(help_prefix_hash(t, n) >> 40) + (float)i;
}

static list *model_add(world *w, int root, const int32_t *t, size_t n, bool is_entry,
                       bool has_hidden, bool is_point)
{
    for (size_t i = 0; i < w->n_model; i++) {
        list *l = &w->model[i];
        if (l->root == root && l->n == n && common(l->t, n, t, n) == n && l->is_entry == is_entry) {
            l->has_hidden |= has_hidden;
            l->is_point = l->is_point && is_point;
            return l;
        }
    }
    EXPECT(w, w->n_model < MAX_LISTS, "the model is too small");
    list *l = &w->model[w->n_model++];
    *l = (list){.root = root, .n = n, .is_entry = is_entry, .has_hidden = has_hidden,
                .is_point = is_point};
    memcpy(l->t, t, n * sizeof *t);
    return l;
}

/* ---- comparing -------------------------------------------------------------------------------- */

static void see_point(void *arg, const mx_bank_point *p)
{
    world *w = arg;
    list *l = &w->seen[w->n_seen++];
    *l = (list){.root = mx_hash256_eq(p->root, &w->roots[1]), .n = p->n_tokens,
                .is_entry = p->is_entry, .has_hidden = p->is_entry && p->hidden != NULL,
                .is_point = p->is_entry && p->kind == MX_ENTRY_POINT};
    EXPECT(w, l->n <= MAX_TOKENS, "a stored list of %zu tokens", l->n);
    for (const mx_page *page = p->page; page != NULL; page = page->parent) {
        size_t first = (size_t)page->index * MX_PAGE_TOKENS;
        size_t n = page == p->page ? l->n - first : MX_PAGE_TOKENS;
        memcpy(l->t + first, page->tokens, n * sizeof *page->tokens);
        l->n_local[page->index] = page->local != NULL ? page->local_rows : 0;
    }
    for (int i = 0; l->has_hidden && i < N_HIDDEN; i++) {
        EXPECT(w, p->hidden[i] == hidden_of(l->t, l->n, i), "a hidden vector of another prefix");
    }
    EXPECT(w, (p->state != NULL) == (p->is_entry && w->has_states), "a state too many or few");
    if (p->state != NULL) {
        EXPECT(w, help_state_is(&stateful, p->state, l->n, help_prefix_hash(l->t, l->n)),
               "the state of another prefix");
    }
    if (!p->is_entry) {
        ((mx_page *)(uintptr_t)p->page)->n_seen++; /* the node's reference */
    }
}

static void require_refs(void *arg, const mx_bank_point *p)
{
    world *w = arg;
    EXPECT(w, !can_count_refs || p->page->refs == p->page->n_seen,
           "a stored page has %u references, %u are known", p->page->refs, p->page->n_seen);
    size_t n_holds = p->page->local != NULL; /* the node's, at most */
    for (int i = 0; i < N_SEQS; i++) {
        const mx_seq *s = &w->runs[i].seq;
        size_t k = (size_t)p->page->index;
        n_holds += k >= s->first_local && k < s->n_pages && s->pages[k] == p->page;
    }
    EXPECT(w, p->page->local_refs <= n_holds, "page %zu is held %u times, %zu are known",
           (size_t)p->page->index, p->page->local_refs, n_holds);
}

/* How many pages hold all that is stored when nothing is there twice: prefixes cut at pages, except
 * those that another one within the same page begins with. */
static size_t model_pages(const world *w)
{
    size_t n_pages = 0;
    for (size_t i = 0; i < w->n_model; i++) {
        for (size_t end = MX_PAGE_TOKENS;; end += MX_PAGE_TOKENS) {
            list a = w->model[i];
            a.n = mx_min_size(a.n, end);
            bool is_new = true;
            for (size_t k = 0; k < w->n_model && is_new; k++) {
                list b = w->model[k];
                b.n = mx_min_size(b.n, end);
                bool holds_a = is_prefix(&a, &b) && b.n > end - MX_PAGE_TOKENS;
                is_new = !holds_a || (a.n == b.n && k >= i);
            }
            n_pages += is_new;
            if (end >= w->model[i].n) {
                break;
            }
        }
    }
    return n_pages;
}

static void follow(world *w)
{
    mx_bank_stats st;
    mx_bank_get_stats(w->bank, &st);
    mx_bank_check(w->bank);
    mx_kv_pool_check(w->pool); /* leaves the number of children in n_seen */
    w->n_seen = 0;
    mx_bank_walk(w->bank, see_point, w);
    for (int i = 0; i < N_SEQS; i++) {
        run *r = &w->runs[i];
        if (!r->is_approximate) {
            help_check_rows(&r->seq, r->t, w->seed);
        }
        for (size_t k = 0; k < r->seq.n_pages; k++) {
            r->seq.pages[k]->n_seen++;
        }
    }
    for (int i = 0; i < N_SEQS; i++) {
        for (size_t k = 0; k < w->runs[i].seq.n_pages; k++) {
            const mx_page *page = w->runs[i].seq.pages[k];
            EXPECT(w, !can_count_refs || page->refs == page->n_seen,
                   "a page has %u references, %u are known", page->refs, page->n_seen);
        }
    }
    mx_bank_walk(w->bank, require_refs, w);

    for (size_t i = 0; i < w->n_seen; i++) {
        bool is_known = false;
        for (size_t k = 0; k < w->n_model && !is_known; k++) {
            is_known = w->seen[i].is_entry
                           ? w->model[k].is_entry && w->model[k].n == w->seen[i].n &&
                                 is_prefix(&w->seen[i], &w->model[k])
                           : is_prefix(&w->seen[i], &w->model[k]);
        }
        EXPECT(w, is_known, "%zu tokens are stored that nobody stored (entry: %d)", w->seen[i].n,
               w->seen[i].is_entry);
    }
    if (st.evicted_pages + st.evicted_entries != w->n_evicted) {
        w->n_evicted = st.evicted_pages + st.evicted_entries;
        w->n_evictions++;
        memcpy(w->model, w->seen, w->n_seen * sizeof *w->model);
        w->n_model = w->n_seen;
    }
    for (size_t i = 0; i < w->n_model; i++) {
        bool is_stored = false;
        for (size_t k = 0; k < w->n_seen && !is_stored; k++) {
            const list *s = &w->seen[k];
            is_stored = w->model[i].is_entry
                            ? s->is_entry && s->n == w->model[i].n && is_prefix(&w->model[i], s) &&
                                  s->has_hidden == w->model[i].has_hidden &&
                                  s->is_point == w->model[i].is_point
                            : is_prefix(&w->model[i], s);
        }
        EXPECT(w, is_stored, "%zu stored tokens are gone (entry: %d)", w->model[i].n,
               w->model[i].is_entry);
    }
    EXPECT(w, model_pages(w) == st.n_pages, "%zu pages are held, %zu suffice", st.n_pages,
           model_pages(w));
}

static size_t model_lcp(const world *w, int root, const int32_t *t, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < w->n_model; i++) {
        if (w->model[i].root == root) {
            best = mx_max_size(best, common(w->model[i].t, w->model[i].n, t, n));
        }
    }
    return best;
}

/* The greatest entry within the first n tokens. */
static size_t model_boundary(const world *w, int root, const int32_t *t, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < w->n_model; i++) {
        const list *l = &w->model[i];
        if (l->is_entry && l->root == root && l->n <= n && common(l->t, l->n, t, n) == l->n) {
            best = mx_max_size(best, l->n);
        }
    }
    return best;
}

/* The greatest place within the first n tokens from which one can go on. */
static size_t model_window(const world *w, int root, const int32_t *t, size_t n)
{
    uint32_t rows[MAX_TOKENS / MX_PAGE_TOKENS + 1] = {0};
    for (size_t i = 0; i < w->n_seen; i++) {
        const list *l = &w->seen[i];
        size_t c = l->root == root ? common(l->t, l->n, t, n) : 0;
        for (size_t k = 0; k * MX_PAGE_TOKENS < c; k++) {
            size_t m = mx_min_size(c - k * MX_PAGE_TOKENS, l->n_local[k]);
            rows[k] = (uint32_t)mx_max_size(rows[k], mx_min_size(m, MX_PAGE_TOKENS));
        }
    }
    for (size_t m = n; m > 0; m--) {
        size_t last = (m - 1) / MX_PAGE_TOKENS;
        bool is_good = rows[last] >= m - last * MX_PAGE_TOKENS;
        for (size_t k = 0; k < last && is_good; k++) {
            is_good = rows[k] == MX_PAGE_TOKENS || (k + 1) * MX_PAGE_TOKENS + windowed.window < m + 2;
        }
        if (is_good) {
            return m;
        }
    }
    return 0;
}

/* Is there an entry at most GAP tokens behind the n tokens, and none at them? */
static bool model_is_near(const world *w, int root, const int32_t *t, size_t n)
{
    bool is_near = false;
    for (size_t i = 0; i < w->n_model; i++) {
        const list *l = &w->model[i];
        if (l->is_entry && l->root == root && common(l->t, l->n, t, n) == n) {
            if (l->n == n) {
                return false;
            }
            is_near |= l->n <= n + GAP;
        }
    }
    return is_near && n > 0;
}

/* Everything about a match but its length. limit: what cut it short, if anything. */
static void check_match(world *w, int root, const int32_t *t, size_t n, size_t limit,
                        const mx_bank_match *m)
{
    size_t lcp = model_lcp(w, root, t, n);
    mx_restore_kind kind = m->n_tokens > 0 ? MX_RESTORE_STEM : MX_RESTORE_NONE;
    bool diverged = false, token_is_right = false, has_hidden = false;
    for (size_t i = 0; i < w->n_model; i++) {
        const list *l = &w->model[i];
        size_t c = l->root == root ? common(l->t, l->n, t, n) : 0;
        if (l->root != root || c < m->n_tokens) {
            continue;
        }
        if (l->is_entry && m->n_tokens > 0 && l->n == m->n_tokens) {
            kind = l->is_point ? MX_RESTORE_BOUNDARY : MX_RESTORE_EXACT_PREFIX;
            has_hidden |= l->has_hidden && l->n == n;
        } else if (l->is_entry && m->n_tokens > 0 && l->n <= m->n_tokens + GAP &&
                   kind == MX_RESTORE_STEM)
        {
            kind = MX_RESTORE_NEAR_PREFIX;
        }
        if ((m->n_tokens == lcp || w->has_states || w->has_window) && c == lcp && lcp < n && l->n > lcp) {
            diverged = true;
            token_is_right |= l->t[lcp] == m->stored_token;
        }
    }
    if (w->has_window && kind == MX_RESTORE_STEM && m->n_tokens < mx_min_size(lcp, limit)) {
        kind = MX_RESTORE_BOUNDARY;
    }
    EXPECT(w, m->kind == kind, "%zu of %zu tokens: expected %s, got %s", m->n_tokens, n,
           mx_restore_kind_name(kind), mx_restore_kind_name(m->kind));
    EXPECT(w, m->diverged == diverged && (!diverged || token_is_right),
           "%zu of %zu tokens: diverged %d, expected %d (token %d)", m->n_tokens, n, m->diverged,
           diverged, m->stored_token);
    EXPECT(w, (m->hidden != NULL) == has_hidden, "hidden vector: expected %d", has_hidden);
    EXPECT(w, m->hidden == NULL || m->hidden[1] == hidden_of(t, n, 1), "foreign hidden vector");
    EXPECT(w, m->n_full_pages == m->n_tokens / MX_PAGE_TOKENS, "number of full pages");
    EXPECT(w, m->n_shared == lcp, "%zu tokens are shared, not %zu", lcp, m->n_shared);
    w->n_kinds[m->kind]++;
}

/* ---- steps ------------------------------------------------------------------------------------ */

/* The beginning of something known (or of nothing), then something random from few tokens. */
static size_t make_prompt(world *w, int32_t *t)
{
    size_t n_known = 0;
    if (w->n_model > 0 && pick(w, 8) > 0) {
        const list *l = &w->model[pick(w, (uint32_t)w->n_model)];
        n_known = pick(w, 3) > 0 ? l->n - mx_min_size(l->n, pick(w, 12))
                                 : pick(w, (uint32_t)l->n + 1);
        memcpy(t, l->t, n_known * sizeof *t);
    }
    size_t n_new = pick(w, 2) ? pick(w, 12) : pick(w, 150);
    size_t n = mx_min_size(mx_max_size(n_known + n_new, 1), MAX_TOKENS);
    for (size_t i = n_known; i < n; i++) {
        t[i] = (int32_t)pick(w, 3) - 1;
    }
    return n;
}

static void extend(world *w, run *r, size_t n)
{
    mx_err e = n > r->seq.n_tokens ? help_feed(&r->seq, r->t, n) : MX_OK;
    if (e == MX_E_FULL) {
        w->n_full++;
        (void)mx_bank_evict(w->bank, 6);
        e = help_feed(&r->seq, r->t, n);
    }
    EXPECT(w, e == MX_OK || e == MX_E_FULL, "feeding: %s", mx_err_name(e));
}

/* Ends on the greatest boundary, or a smaller one where there was no page for its tail. */
static void restore_with_state(world *w, run *r, const int32_t *t, size_t n, size_t max,
                               size_t n_shared, bool is_near)
{
    mx_bank_match m;
    size_t expected = model_boundary(w, r->root, t, n_shared);
    mx_err e = mx_bank_restore_cache(w->bank, &r->seq, t, n, max, &m);
    EXPECT(w, e == MX_OK || e == MX_E_FULL, "restore: %s", mx_err_name(e));
    EXPECT(w, m.n_tokens == r->seq.n_tokens, "restored %zu, said %zu", r->seq.n_tokens, m.n_tokens);
    EXPECT(w, (r->seq.state != NULL) == (m.n_tokens > 0), "pages without their state");
    EXPECT(w, !m.is_approximate || is_near, "approximate without a reason");
    if (m.is_approximate) {
        w->n_approximate++;
        EXPECT(w, m.n_tokens == n_shared && m.kind == MX_RESTORE_NEAR_PREFIX,
               "approximate: %zu of %zu tokens, %s", m.n_tokens, n_shared,
               mx_restore_kind_name(m.kind));
        r->is_approximate = true;
    } else if (m.n_tokens != expected) {
        w->n_full++;
        EXPECT(w, e == MX_E_FULL && m.n_tokens < expected, "restored %zu of %zu: %s", m.n_tokens,
               expected, mx_err_name(e));
        EXPECT(w, m.n_tokens == 0 || m.n_tokens == model_boundary(w, r->root, t, m.n_tokens),
               "restored %zu, where no boundary is", m.n_tokens);
    }
    follow(w);
    if (!m.is_approximate) {
        check_match(w, r->root, t, n, max, &m);
    }
    w->n_restored_tokens += m.n_tokens;
    if (pick(w, 4) > 0) {
        extend(w, r, n);
    }
}

/* Ends where all is there, or before that where there was no page for its tail. */
static void restore_with_window(world *w, run *r, const int32_t *t, size_t n, size_t max)
{
    mx_bank_match m;
    size_t n_shared = mx_min_size(model_lcp(w, r->root, t, n), max);
    size_t expected = model_window(w, r->root, t, n_shared);
    mx_err e = mx_bank_restore_cache(w->bank, &r->seq, t, n, max, &m);
    EXPECT(w, e == MX_OK || e == MX_E_FULL, "restore: %s", mx_err_name(e));
    EXPECT(w, m.n_tokens == r->seq.n_tokens, "restored %zu, said %zu", r->seq.n_tokens, m.n_tokens);
    EXPECT(w, e == MX_OK ? m.n_tokens == expected : m.n_tokens < expected,
           "restored %zu of %zu: %s", m.n_tokens, expected, mx_err_name(e));
    EXPECT(w, mx_seq_can_go_on(&r->seq), "%zu tokens, but nobody can go on", m.n_tokens);
    w->n_full += e == MX_E_FULL;
    follow(w);
    check_match(w, r->root, t, n, max, &m);
    w->n_restored_tokens += m.n_tokens;
    if (pick(w, 4) > 0) {
        extend(w, r, n);
    }
}

static void step_restore(world *w, run *r)
{
    mx_seq_free(&r->seq);
    r->is_approximate = false;
    r->root = (int)pick(w, N_ROOTS);
    mx_seq_init(&r->seq, w->pool, &w->roots[r->root]);
    follow(w); /* local rows that only the sequence held are gone */
    int32_t t[MAX_TOKENS];
    size_t n = make_prompt(w, t);
    memcpy(r->t, t, n * sizeof *t);
    size_t lcp = model_lcp(w, r->root, t, n);

    mx_bank_match m;
    mx_bank_lookup(w->bank, &w->roots[r->root], t, n, &m);
    size_t found = w->has_states   ? model_boundary(w, r->root, t, lcp)
                   : w->has_window ? model_window(w, r->root, t, lcp)
                                   : lcp;
    EXPECT(w, m.n_tokens == found, "lookup of %zu tokens finds %zu, expected %zu", n, m.n_tokens,
           found);
    check_match(w, r->root, t, n, n, &m);

    size_t max = pick(w, 3) == 0 ? n : pick(w, 4) == 0 ? pick(w, (uint32_t)n + 1) : n - 1;
    size_t expected = mx_min_size(lcp, max);
    bool is_near = w->is_approximate && model_is_near(w, r->root, t, expected);
    if (w->has_states) {
        restore_with_state(w, r, t, n, max, expected, is_near);
        return;
    }
    if (w->has_window) {
        restore_with_window(w, r, t, n, max);
        return;
    }
    mx_err e = mx_bank_restore_cache(w->bank, &r->seq, t, n, max, &m);
    if (e == MX_E_FULL) {
        w->n_full++;
        EXPECT(w, expected % MX_PAGE_TOKENS > 0, "full without a reason");
        EXPECT(w, mx_kv_pool_used(w->pool) == mx_kv_pool_max(w->pool), "full, but the pool is not");
        expected -= expected % MX_PAGE_TOKENS;
    } else {
        EXPECT(w, e == MX_OK, "restore: %s", mx_err_name(e));
    }
    EXPECT(w, m.n_tokens == expected && r->seq.n_tokens == expected,
           "restored %zu (sequence: %zu), expected %zu", m.n_tokens, r->seq.n_tokens, expected);
    follow(w); /* room may have been made */
    check_match(w, r->root, t, n, max, &m);
    w->n_restored_tokens += expected;
    if (pick(w, 4) > 0) {
        extend(w, r, n);
    }
}

static void step_store(world *w, run *r, bool as_entry)
{
    float hidden[N_HIDDEN];
    size_t n = r->seq.n_tokens, n_full = n - n % MX_PAGE_TOKENS;
    bool has_hidden = pick(w, 2);
    mx_entry_kind kind = MX_ENTRY_TURN;
    mx_err e;
    if (r->is_approximate) {
        return; /* the caller's duty */
    }
    if (as_entry) {
        for (int i = 0; i < N_HIDDEN; i++) {
            hidden[i] = hidden_of(r->t, n, i);
        }
        kind = pick(w, 2) ? MX_ENTRY_PROMPT : MX_ENTRY_TURN;
        if (w->has_states && pick(w, 2)) {
            kind = MX_ENTRY_POINT;
        }
        e = mx_bank_snapshot_cache(w->bank, &r->seq, kind, has_hidden ? hidden : NULL, NULL);
        EXPECT(w, (e == MX_E_INVALID) == (n == 0), "snapshot of %zu tokens: %s", n, mx_err_name(e));
    } else {
        e = mx_bank_insert_pages(w->bank, &r->seq);
    }
    if (e == MX_E_INVALID) {
        return;
    }
    if (n_full > 0) {
        model_add(w, r->root, r->t, n_full, false, false, false);
    }
    if (e == MX_OK && w->has_window && n > 0 && pick(w, 2)) {
        size_t at = 1 + pick(w, (uint32_t)n);
        mx_err kept = mx_bank_keep_window(w->bank, &r->seq, at);
        EXPECT(w, kept == MX_OK || kept == MX_E_FULL, "keep: %s", mx_err_name(kept));
        if (kept == MX_OK) {
            model_add(w, r->root, r->t, at, true, false, true);
        }
    }
    if (e == MX_OK && as_entry) {
        model_add(w, r->root, r->t, n, true, has_hidden, kind == MX_ENTRY_POINT);
    }
    if (e != MX_OK) {
        /* Some of the pages are in; which ones is for the walk to say, as after an eviction. */
        EXPECT(w, e == MX_E_FULL, "store: %s", mx_err_name(e));
        w->n_full++;
        w->n_evicted = UINT64_MAX;
    }
}

static void step(world *w)
{
    run *r = &w->runs[pick(w, N_SEQS)], *other = &w->runs[pick(w, N_SEQS)];
    size_t n = r->seq.n_tokens;
    switch (pick(w, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        step_restore(w, r);
        break;
    case 4:
    case 5:
    case 6: { /* decode */
        size_t n_more = pick(w, 3) ? pick(w, 10) : pick(w, 90);
        size_t end = mx_min_size(n + n_more, MAX_TOKENS);
        for (size_t i = n; i < end; i++) {
            r->t[i] = (int32_t)pick(w, 3) - 1;
        }
        extend(w, r, end);
        break;
    }
    case 7:
        step_store(w, r, false);
        break;
    case 8:
    case 9:
    case 10:
        step_store(w, r, true);
        break;
    case 11:
        if (r != other) {
            size_t n_fork = w->has_states ? other->seq.n_tokens
                                          : pick(w, (uint32_t)other->seq.n_tokens + 1);
            mx_seq_free(&r->seq);
            r->root = other->root;
            r->is_approximate = other->is_approximate;
            mx_seq_init(&r->seq, w->pool, &w->roots[r->root]);
            mx_err e = mx_seq_fork(&r->seq, &other->seq, n_fork);
            EXPECT(w, e == MX_OK || (w->has_window && e == MX_E_INVALID), "fork");
            memcpy(r->t, other->t, n_fork * sizeof *r->t);
        }
        break;
    case 12:
        mx_seq_cut(&r->seq, n - pick(w, (uint32_t)n + 1)); /* with states: all or nothing */
        r->is_approximate = r->is_approximate && r->seq.n_tokens > 0;
        break;
    case 13:
        mx_seq_free(&r->seq);
        r->is_approximate = false;
        mx_seq_init(&r->seq, w->pool, &w->roots[r->root]);
        break;
    case 14:
        if (pick(w, 4) == 0) {
            size_t n_free = mx_kv_pool_max(w->pool) - mx_kv_pool_used(w->pool);
            size_t got = mx_bank_evict(w->bank, n_free + pick(w, 6));
            size_t n_now = mx_kv_pool_max(w->pool) - mx_kv_pool_used(w->pool);
            EXPECT(w, w->has_window ? n_now >= n_free : n_now == n_free + got, "%zu pages freed, %zu said", n_now - n_free, got);
        }
        break;
    default:
        (void)mx_bank_idle(w->bank);
        (void)mx_seq_reserve(&r->seq, pick(w, 20)); /* left open, or rolled back by others */
        if (pick(w, 2)) {
            mx_seq_rollback(&r->seq);
        }
        break;
    }
    follow(w);
}

static size_t history_of(const mx_kv_shape *shape, uint64_t seed, size_t n_pages,
                         const mx_bank_config *cfg)
{
    int64_t live = mx_mem_live();
    world w = {.seed = seed, .rng = seed * 1000003, .roots = {{{3}}, {{4}}}};
    w.has_states = shape->state_bytes > 0;
    w.has_window = shape->n_local > 0;
    w.is_approximate = cfg->approximate_restore;
    w.model = mx_calloc(MAX_LISTS, sizeof *w.model);
    w.seen = mx_calloc(MAX_LISTS, sizeof *w.seen);
    assert_int_equal(mx_kv_pool_create(&w.pool, shape, n_pages, NULL), MX_OK);
    assert_int_equal(mx_bank_create(&w.bank, w.pool, cfg, NULL), MX_OK);
    for (int i = 0; i < N_SEQS; i++) {
        mx_seq_init(&w.runs[i].seq, w.pool, &w.roots[0]);
    }
    for (w.step = 0; w.step < N_STEPS; w.step++) {
        step(&w);
    }
    print_message("seed %llu: %zu tokens restored; none %zu, exact %zu, boundary %zu, near %zu, "
                  "stem %zu, approximate %zu; %zu steps evicted, %zu found no room; %zu points at "
                  "the end\n",
                  (unsigned long long)seed, w.n_restored_tokens, w.n_kinds[MX_RESTORE_NONE],
                  w.n_kinds[MX_RESTORE_EXACT_PREFIX], w.n_kinds[MX_RESTORE_BOUNDARY],
                  w.n_kinds[MX_RESTORE_NEAR_PREFIX], w.n_kinds[MX_RESTORE_STEM], w.n_approximate,
                  w.n_evictions, w.n_full, w.n_seen);
    /* With the sequences gone, nothing is pinned: the bank can be emptied to the last page. */
    for (int i = 0; i < N_SEQS; i++) {
        mx_seq_free(&w.runs[i].seq);
        follow(&w);
    }
    mx_bank_clear(w.bank);
    follow(&w);
    assert_int_equal(mx_kv_pool_used(w.pool), 0);
    mx_bank_destroy(w.bank);
    mx_kv_pool_destroy(w.pool);
    mx_free(w.model);
    mx_free(w.seen);
    assert_int_equal(mx_mem_live(), live);
    return w.n_approximate;
}

static void history(uint64_t seed, size_t n_pages, const mx_bank_config *cfg)
{
    (void)history_of(&plain, seed, n_pages, cfg);
}

static const mx_bank_config base_config = {
    .near_prefix_gap = GAP, .lazy_snapshot = true, .n_hidden = N_HIDDEN, .us_per_token = 500};

/* The long suite (MTPLX_LONG) walks twenty times as many. */
static uint64_t n_histories(uint64_t n)
{
    return getenv("MTPLX_LONG") != NULL ? 20 * n : n;
}

static void test_roomy(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 1 + n_histories(4); seed++) {
        history(seed, 300, &base_config);
    }
}

static void test_small_pool(void **state)
{
    (void)state;
    for (uint64_t seed = 11; seed < 11 + n_histories(6); seed++) {
        history(seed, 24, &base_config);
    }
}

static void test_small_budget(void **state)
{
    (void)state;
    mx_bank_config cfg = base_config;
    cfg.max_bytes = 12 * 4096 + 8192;
    for (uint64_t seed = 21; seed < 21 + n_histories(4); seed++) {
        history(seed, 60, &cfg);
    }
}

/* Eager, settled and both in turn. */
static mx_bank_config config_of(uint64_t seed)
{
    mx_bank_config cfg = base_config;
    cfg.lazy_snapshot = seed % 3 != 0;
    cfg.settle_snapshot = seed % 3 != 1;
    return cfg;
}

static void test_eager_and_settled(void **state)
{
    (void)state;
    for (uint64_t seed = 31; seed < 31 + n_histories(6); seed++) {
        const mx_bank_config cfg = config_of(seed);
        history(seed, seed % 2 ? 26 : 200, &cfg);
    }
}

static void test_states(void **state)
{
    (void)state;
    for (uint64_t seed = 41; seed < 41 + n_histories(6); seed++) {
        const mx_bank_config cfg = config_of(seed);
        (void)history_of(&stateful, seed, seed % 2 ? 600 : 48, &cfg);
    }
}

static void test_windows(void **state)
{
    (void)state;
    for (uint64_t seed = 71; seed < 71 + n_histories(9); seed++) {
        const mx_bank_config cfg = config_of(seed);
        (void)history_of(&windowed, seed, seed % 2 ? 200 : 20, &cfg);
    }
}

static void test_windows_small_budget(void **state)
{
    (void)state;
    mx_bank_config cfg = base_config;
    cfg.max_bytes = 20 * 4096 + 16384;
    for (uint64_t seed = 81; seed < 81 + n_histories(4); seed++) {
        (void)history_of(&windowed, seed, 60, &cfg);
    }
}

static void test_states_small_budget(void **state)
{
    (void)state;
    mx_bank_config cfg = base_config;
    cfg.max_bytes = 20 * 4096 + 16384;
    for (uint64_t seed = 51; seed < 51 + n_histories(4); seed++) {
        (void)history_of(&stateful, seed, 90, &cfg);
    }
}

static void test_states_approximate(void **state)
{
    (void)state;
    mx_bank_config cfg = base_config;
    cfg.approximate_restore = true;
    size_t n_approximate = 0;
    for (uint64_t seed = 61; seed < 61 + n_histories(4); seed++) {
        n_approximate += history_of(&stateful, seed, seed % 2 ? 600 : 60, &cfg);
    }
    assert_true(n_approximate > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_windows_small_budget),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_states_small_budget),
        cmocka_unit_test(test_states_approximate),
        cmocka_unit_test(test_roomy),
        cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_small_budget),
        cmocka_unit_test(test_eager_and_settled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
