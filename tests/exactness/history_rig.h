/* SPDX-License-Identifier: MIT
 *
 * history_rig.h: the model behind test_exact_history.c: every token list that was ever fed, what
 * the two tiers list of it, and what follows for a prompt. Header only, for that test.
 */
#ifndef MX_HISTORY_RIG_H
#define MX_HISTORY_RIG_H

#include "engine_rig.h"
#include "tiny_gguf.h"

#include "cold/cold_files.h"
#include "cold/cold_format.h"
#include "sched/sched_internal.h"

#include <fcntl.h>
#include <ftw.h>

enum {
    MAX_PROMPT = 560,
    MAX_ANSWER = 16,
    MAX_TOKENS = MAX_PROMPT + MAX_ANSWER,
    MAX_TEXTS = 320,
    MAX_ITEMS = 6000,
    MAX_BOUNDS = 8,
    MAX_MARKS = 2,
    N_ROOTS = 2, /* one request in four has another key's salt */
    MIN_DISK_TOKENS = 32,
    SPACING = 256,
};

typedef enum tier { RAM = 1, DISK = 2 } tier;
static const char *const tier_names[] = {"", "RAM", "disk"};

/* What a request fed, and what has to be left of it. */
typedef struct text {
    int root;
    size_t n;                /* fed; behind them t has the token sampled last, which was not */
    bool has_last;
    size_t n_kept[DISK + 1]; /* [tier] so many of its tokens are in that tier */
    struct {
        size_t at;
        unsigned tiers;
    } bounds[MAX_BOUNDS];
    size_t n_bounds;
    int32_t t[MAX_TOKENS + 1];
} text;

/* Something that a tier lists: rows of a page, or what stands at the end of these tokens. */
typedef enum kind { PAGE, STATE, HIDDEN } kind;

typedef struct item {
    kind kind;
    unsigned tiers;
    mx_hash256 parent, name; /* of the page before it, and of its own tokens in that place */
    bool is_stray;           /* see world.strays */
    uint64_t index;
    uint32_t n;
    uint32_t n_local[DISK + 1]; /* [tier] PAGE: so many of the rows are there for windowed layers, too */
    int32_t t[MX_PAGE_TOKENS]; /* [n] */
} item;

typedef struct history {
    const char *what;
    mx_tiny_spec spec;
    size_t budget_pages; /* 0 = plenty */
    uint64_t cold_max_bytes;
    mx_cold_mode cold;
} history;

typedef struct world {
    const history *h;
    uint64_t seed, rng;
    unsigned step;
    rig g;
    bool has_states;
    uint32_t window; /* 0 = the model has none */
    mx_hash256 salt, roots[N_ROOTS];
    text *texts;  /* [n_texts] */
    size_t n_texts;
    item *items;  /* [n_items] */
    size_t n_items;
    mx_disk_page *heads; /* [n_heads] of files that were read once: they never change, but for
                          * whether the rows of windowed layers are in it */
    size_t n_heads;
    /* Pages that were on disk when the engine started and that no manifest names: a prompt that has
     * all of their tokens finds them by name, one that has some may or may not. */
    mx_hash256 *strays; /* [n_strays] */
    size_t n_strays;
    uint64_t n_gone;          /* evictions and refusals of the bank, when it was last listed */
    uint64_t n_dropped;       /* what found the writer's queue full, likewise */
    bool has_lost[DISK + 1];  /* [tier] in this step things may have gone */
    size_t n_asked, n_reused[DISK + 1], n_whole, n_aborted, n_evicted, n_restarts;
} world;

#define EXPECT(w, cond, ...)                                                                       \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            print_error("%s, seed %llu, step %u: ", (w)->h->what, (unsigned long long)(w)->seed,   \
                        (w)->step);                                                                \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

static uint32_t pick(world *w, uint32_t below)
{
    return (uint32_t)(mx_tiny_random(&w->rng) >> 20) % below;
}

static size_t common(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    size_t i = 0;
    while (i < n_a && i < n_b && a[i] == b[i]) {
        i++;
    }
    return i;
}

/* ---- what the tiers list ---------------------------------------------------------------------- */

static item *add_item(world *w, kind k, tier where, const mx_hash256 *root, const mx_hash256 *parent,
                      uint64_t index, const int32_t *t, uint32_t n)
{
    mx_hash256 name = mx_page_identity(root, parent, t, n);
    for (size_t i = 0; i < w->n_items; i++) {
        if (w->items[i].kind == k && mx_hash256_eq(&w->items[i].name, &name)) {
            w->items[i].tiers |= where;
            return &w->items[i];
        }
    }
    EXPECT(w, w->n_items < MAX_ITEMS, "too many items for this test");
    item *it = &w->items[w->n_items++];
    *it = (item){
        .kind = k, .tiers = where, .parent = *parent, .name = name, .index = index, .n = n};
    memcpy(it->t, t, n * sizeof *t);
    for (size_t i = 0; i < w->n_strays && where == DISK; i++) {
        it->is_stray |= mx_hash256_eq(&w->strays[i], &name);
    }
    return it;
}

static void add_point(void *arg, const mx_bank_point *p)
{
    world *w = arg;
    const mx_page *page = p->page;
    const mx_hash256 *parent = page->parent != NULL ? &page->parent->id : p->root;
    uint32_t n = (uint32_t)(p->n_tokens - page->index * MX_PAGE_TOKENS);
    if (!p->is_entry) {
        item *it = add_item(w, PAGE, RAM, p->root, parent, page->index, page->tokens, n);
        uint32_t n_local = page->local != NULL ? page->local_rows : 0;
        it->n_local[RAM] = w->window == 0 || n_local > n ? n : n_local;
        return;
    }
    EXPECT(w, (p->state != NULL) == w->has_states, "an entry with a state too many or few");
    if (p->state != NULL) {
        add_item(w, STATE, RAM, p->root, parent, page->index, page->tokens, n);
    }
    if (p->hidden != NULL) {
        add_item(w, HIDDEN, RAM, p->root, parent, page->index, page->tokens, n);
    }
}

static void list_ram(void *arg, const mx_engine_view *view)
{
    world *w = arg;
    mx_bank_stats s;
    mx_bank_get_stats(view->bank, &s);
    uint64_t n_gone = s.evicted_pages + s.evicted_entries + s.refused_entries;
    w->n_evicted += n_gone != w->n_gone;
    w->has_lost[RAM] = w->has_lost[RAM] || n_gone != w->n_gone;
    w->n_gone = n_gone;
    mx_bank_walk(view->bank, add_point, w);
}

static world *listing; /* nftw hands nothing on */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), n_end = strlen(end);
    return n >= n_end && strcmp(s + n - n_end, end) == 0;
}

/* False: the file is not there any more. */
static bool read_head(const char *path, mx_disk_page *p)
{
    static uint8_t head[MX_DISK_PAYLOAD_AT];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, head, sizeof head);
    if (fd < 0) {
        return false;
    }
    close(fd);
    mx_errbuf eb = {{0}};
    mx_err err = n != (ssize_t)sizeof head      ? MX_E_IO
                 : ends_with(path, ".page")     ? mx_disk_page_decode(p, head, sizeof head, &eb)
                                                : mx_disk_state_decode(p, head, sizeof head, &eb);
    EXPECT(listing, err == MX_OK, "%s: %s", path, eb.text);
    return true;
}

static int add_file(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st;
    bool is_page = strstr(path, "/pages/") != NULL && ends_with(path, ".page");
    bool is_state = strstr(path, "/states/") != NULL && ends_with(path, ".state");
    if (type != FTW_F || (!is_page && !is_state)) {
        return 0;
    }
    world *w = listing;
    mx_hash256 own;
    assert_true(mx_hash256_from_hex(&own, path + f->base, 64));
    size_t at = 0;
    while (at < w->n_heads && !mx_hash256_eq(&w->heads[at].own, &own)) {
        at++;
    }
    mx_disk_page *p = &w->heads[at];
    if (at == w->n_heads) {
        EXPECT(w, w->n_heads < MAX_ITEMS, "too many files for this test");
        w->n_heads += read_head(path, p);
        if (at == w->n_heads) {
            return 0; /* went since it was listed: a tail, a whole page has taken its place */
        }
    } else if (w->window > 0 && !read_head(path, p)) {
        return 0;
    }
    item *it = add_item(w, is_page ? PAGE : STATE, DISK, &p->root, &p->parent,
                        p->first_position / MX_PAGE_TOKENS, p->tokens, p->n_tokens);
    it->n_local[DISK] = p->lacks_local ? 0 : p->n_tokens;
    return 0;
}

static void walk_folder(world *w, int (*fn)(const char *, const struct stat *, int, struct FTW *))
{
    listing = w;
    if (access(w->g.cache_dir, F_OK) == 0) { /* made with the first file */
        assert_int_equal(nftw(w->g.cache_dir, fn, 16, FTW_PHYS), 0);
    }
}

static void do_nothing(void *arg, const mx_engine_view *view)
{
    (void)arg;
    (void)view;
}

/* Lists both tiers, when all that was handed to the writer is on disk. */
static void list_all(world *w)
{
    mx_cold *cold = mx_engine_cold(w->g.engine);
    assert_int_equal(mx_engine_call(w->g.engine, do_nothing, NULL), MX_OK);
    w->n_items = 0;
    if (cold != NULL) {
        bool is_flushed = mx_cold_flush(cold, 60 * 1000000);
        EXPECT(w, is_flushed || w->h->cold_max_bytes > 0, "what was queued could not be written");
        mx_cold_stats s;
        mx_cold_get_stats(cold, &s);
        w->has_lost[DISK] = w->has_lost[DISK] || s.dropped_full != w->n_dropped;
        w->n_dropped = s.dropped_full;
        walk_folder(w, add_file);
    }
    assert_int_equal(mx_engine_call(w->g.engine, list_ram, w), MX_OK);
}

/* ---- what follows from the lists -------------------------------------------------------------- */

enum { STRAYS = 4 }; /* beside tiers: also parts of strays */

/* How far the stored pages of these tiers lead along t. */
static size_t reach(const world *w, int root, const int32_t *t, size_t n, unsigned tiers)
{
    mx_hash256 at = w->roots[root];
    for (size_t pos = 0;; pos += MX_PAGE_TOKENS) {
        size_t best = 0;
        for (size_t i = 0; i < w->n_items; i++) {
            const item *it = &w->items[i];
            if (it->kind == PAGE && (it->tiers & tiers) != 0 && mx_hash256_eq(&it->parent, &at)) {
                size_t k = common(it->t, it->n, t + pos, n - pos);
                bool is_found = k == it->n || !it->is_stray || (tiers & STRAYS) != 0
                                || (it->tiers & tiers & RAM) != 0;
                best = is_found ? mx_max_size(best, k) : best;
            }
        }
        if (best < MX_PAGE_TOKENS) {
            return pos + best;
        }
        at = mx_page_identity(&w->roots[root], &at, t + pos, MX_PAGE_TOKENS);
    }
}

/* How much of t, of which the pages of this tier lead so far, can be gone on from: those that the next
 * token sees are whole, or before page `base`. */
static size_t reach_with_window(const world *w, int root, const int32_t *t, size_t n, tier where,
                                bool with_strays, size_t base)
{
    uint32_t rows[MAX_TOKENS / MX_PAGE_TOKENS + 1] = {0};
    mx_hash256 at = w->roots[root];
    for (size_t pos = 0; pos < n; pos += MX_PAGE_TOKENS) {
        uint32_t whole = 0;
        for (size_t i = 0; i < w->n_items; i++) {
            const item *it = &w->items[i];
            if (it->kind != PAGE || (it->tiers & where) == 0 || !mx_hash256_eq(&it->parent, &at)) {
                continue;
            }
            uint32_t k = (uint32_t)common(it->t, it->n, t + pos, n - pos);
            if (k < it->n && it->is_stray && !with_strays && where == DISK) {
                continue;
            }
            whole = k > whole ? k : whole;
            k = k < it->n_local[where] ? k : it->n_local[where];
            uint32_t *r = &rows[pos / MX_PAGE_TOKENS];
            *r = k > *r ? k : *r;
        }
        if (whole < MX_PAGE_TOKENS && pos >= base * MX_PAGE_TOKENS) {
            break;
        }
        at = mx_page_identity(&w->roots[root], &at, t + pos, MX_PAGE_TOKENS);
    }
    for (size_t m = n; m > base * MX_PAGE_TOKENS; m--) {
        size_t last = (m - 1) / MX_PAGE_TOKENS;
        size_t first = m >= w->window ? (m + 1 - w->window) / MX_PAGE_TOKENS : 0;
        bool is_good = rows[last] >= m - last * MX_PAGE_TOKENS;
        for (size_t i = mx_max_size(first, base); i < last; i++) {
            is_good = is_good && rows[i] == MX_PAGE_TOKENS;
        }
        if (is_good) {
            return m;
        }
    }
    return base * MX_PAGE_TOKENS;
}

/* RAM alone, or what the disk adds behind the whole pages of that. */
static size_t expected_with_window(const world *w, int root, const int32_t *t, size_t n,
                                   bool with_strays)
{
    size_t n_ram = reach_with_window(w, root, t, n, RAM, false, 0);
    size_t n_disk =
        reach_with_window(w, root, t, n, DISK, with_strays, n_ram / MX_PAGE_TOKENS);
    return mx_max_size(n_ram, n_disk);
}

/* The name of the first n tokens. */
static mx_hash256 name_of(const world *w, int root, const int32_t *t, size_t n)
{
    mx_hash256 at = w->roots[root];
    for (; n > MX_PAGE_TOKENS; n -= MX_PAGE_TOKENS, t += MX_PAGE_TOKENS) {
        at = mx_page_identity(&w->roots[root], &at, t, MX_PAGE_TOKENS);
    }
    return mx_page_identity(&w->roots[root], &at, t, (uint32_t)n);
}

static bool has_item(const world *w, kind k, int root, const int32_t *t, size_t n, unsigned tiers)
{
    mx_hash256 name = name_of(w, root, t, n);
    for (size_t i = 0; i < w->n_items; i++) {
        if (w->items[i].kind == k && (w->items[i].tiers & tiers) != 0
            && mx_hash256_eq(&w->items[i].name, &name))
        {
            return true;
        }
    }
    return false;
}

/* How much of the prompt has to be reused. With STRAYS: at most. */
static size_t expected(const world *w, int root, const int32_t *t, size_t n, unsigned strays)
{
    if (has_item(w, HIDDEN, root, t, n, RAM)) {
        return n; /* needs no forward pass at all */
    }
    /* The last token is computed again, so it is not looked for either. */
    if (w->window > 0) {
        return expected_with_window(w, root, t, n - 1, strays != 0);
    }
    size_t most = reach(w, root, t, n - 1, RAM | DISK | strays);
    if (!w->has_states) {
        return most;
    }
    size_t best = 0;
    for (size_t i = 0; i < w->n_items; i++) {
        const item *it = &w->items[i];
        size_t at = (size_t)it->index * MX_PAGE_TOKENS + it->n;
        if (it->kind == STATE && at <= most && at > best) {
            mx_hash256 name = name_of(w, root, t, at);
            best = mx_hash256_eq(&it->name, &name) ? at : best;
        }
    }
    return best;
}

/* What the prompt has in common with anything that was ever fed. */
static size_t most_shared(const world *w, int root, const int32_t *t, size_t n)
{
    size_t best = 0;
    for (size_t i = 0; i < w->n_texts; i++) {
        if (w->texts[i].root == root) {
            best = mx_max_size(best, common(w->texts[i].t, w->texts[i].n, t, n));
        }
    }
    return best;
}

/* One can go on from there. */
static bool has_bound(const world *w, const text *x, size_t at, tier where)
{
    return w->has_states ? has_item(w, STATE, x->root, x->t, at, where)
                         : reach_with_window(w, x->root, x->t, at, where, true, 0) == at;
}

/* Nothing that is promised is gone, or this step may have made it so. */
static void follow(world *w)
{
    list_all(w);
    for (size_t i = 0; i < w->n_texts; i++) {
        text *x = &w->texts[i];
        for (unsigned where = RAM; where <= DISK; where++) {
            size_t n = reach(w, x->root, x->t, x->n, where | STRAYS);
            EXPECT(w, n >= x->n_kept[where] || w->has_lost[where],
                   "text %zu: %zu tokens were in %s, %zu are left", i, x->n_kept[where],
                   tier_names[where], n);
            x->n_kept[where] = mx_min_size(n, x->n_kept[where]);
            for (size_t k = 0; k < x->n_bounds; k++) {
                bool is_there = (x->bounds[k].tiers & where) == 0
                                || has_bound(w, x, x->bounds[k].at, where);
                /* A state that is evicted before it was written is in no tier. */
                bool was_never = i + 1 == w->n_texts && w->has_lost[RAM];
                EXPECT(w, is_there || w->has_lost[where] || was_never,
                       "text %zu of %zu: the boundary at %zu is no more in %s", i, x->n,
                       x->bounds[k].at, tier_names[where]);
                x->bounds[k].tiers &= is_there ? ~0u : ~where;
            }
        }
    }
    w->has_lost[RAM] = false;
    w->has_lost[DISK] = w->h->cold_max_bytes > 0;
}

#endif
