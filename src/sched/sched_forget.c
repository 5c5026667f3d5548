/* SPDX-License-Identifier: MIT
 *
 * Removing an entry, or everything, from RAM, from what waits to be written, and from the folder.
 *
 * The order is what matters. Whatever waits for the writer is called off first, for a page on its
 * way would come after its removal, and a manifest that finds its pages gone would have them written
 * again. The writer may be in the middle of one of these: it is waited for, and if the folder hangs,
 * nothing is removed at all. Then the bank lets go, which it cannot as long as the writer holds the
 * pages. What was queued in between is called off in the same way, and then the files go.
 */
#include "sched/sched_internal.h"

#include "base/mem.h"

typedef struct forgetting {
    mx_engine *e;
    const mx_hash256 *id;   /* NULL = everything */
    bool is_session;        /* with what is inside its chain */
    bool is_last;           /* the bank lets go, too */
    mx_hash256 root;        /* of the entry in the bank, */
    const mx_page *page;    /* in which it ends; valid during a call */
    size_t n_tokens;
    mx_hash256 *pages, *states; /* [n], owned */
    size_t n_pages, n_states, pages_cap, states_cap;
    int32_t *tokens;        /* [n_tokens] */
    bool was_in_ram, has_dropped;
    mx_err err;
} forgetting;

static bool add_name(mx_hash256 **ids, size_t *n, size_t *cap, const mx_hash256 *id)
{
    void *array = *ids;
    bool ok = mx_grow(&array, cap, *n + 1, sizeof **ids);
    *ids = array;
    if (ok) {
        (*ids)[(*n)++] = *id;
    }
    return ok;
}

static void find_point(void *arg, const mx_bank_point *p)
{
    forgetting *f = arg;
    mx_hash256 id = {{0}};
    if (p->is_entry) {
        id = mx_bank_point_id(p);
    }
    if (p->is_entry && mx_hash256_eq(&id, f->id)) {
        f->root = *p->root;
        f->page = p->page;
        f->n_tokens = p->n_tokens;
    }
}

static void add_state(void *arg, size_t at, mx_kvstate *state, mx_entry_kind kind)
{
    (void)state;
    (void)kind;
    forgetting *f = arg;
    size_t page = (at - 1) / MX_PAGE_TOKENS;
    mx_hash256 id = mx_cold_state_identity(&f->root, page > 0 ? &f->pages[page - 1] : &f->root, page,
                                           f->tokens + page * MX_PAGE_TOKENS,
                                           (uint32_t)(at - page * MX_PAGE_TOKENS));
    if (!add_name(&f->states, &f->n_states, &f->states_cap, &id)) {
        f->err = MX_E_NOMEM;
    }
}

/* The chain of the entry as the bank has it. */
static mx_err names_from_bank(forgetting *f, const mx_bank *bank)
{
    f->page = NULL;
    mx_bank_walk(bank, find_point, f);
    if (f->page == NULL) {
        return MX_E_NOT_FOUND;
    }
    size_t n = (size_t)f->page->index + 1;
    void *pages = f->pages;
    bool ok = mx_grow(&pages, &f->pages_cap, n, sizeof *f->pages);
    f->pages = pages;
    mx_free(f->tokens);
    f->tokens = mx_alloc(n * MX_PAGE_TOKENS * sizeof *f->tokens);
    if (!ok || f->tokens == NULL) {
        return MX_E_NOMEM;
    }
    f->n_pages = n;
    f->n_states = 0;
    f->err = MX_OK;
    for (const mx_page *p = f->page; p != NULL; p = p->parent) {
        f->pages[p->index] = p == f->page ? *f->id : p->id;
        memcpy(f->tokens + (size_t)p->index * MX_PAGE_TOKENS, p->tokens, sizeof p->tokens);
    }
    mx_bank_boundaries(bank, &f->root, f->tokens, f->n_tokens, add_state, f);
    return f->err;
}

/* The bank may have had to evict it. */
static mx_err names_from_ticket(forgetting *f)
{
    const mx_cold_job *job = mx_ticket_manifest(f->e, f->id);
    bool ok = true;
    for (size_t i = 0; job != NULL && ok && i < job->n_pages; i++) {
        ok = add_name(&f->pages, &f->n_pages, &f->pages_cap, &job->page_ids[i]);
    }
    for (size_t i = 0; job != NULL && ok && i < job->n_states; i++) {
        ok = add_name(&f->states, &f->n_states, &f->states_cap, &job->state_ids[i]);
    }
    return ok ? MX_OK : MX_E_NOMEM;
}

static mx_cold_names names_of(const forgetting *f)
{
    return (mx_cold_names){f->pages, f->n_pages, f->states, f->n_states};
}

/* On the engine thread. */
static void forget(void *arg, const mx_engine_view *view)
{
    forgetting *f = arg;
    f->err = MX_OK;
    if (f->id != NULL) {
        f->err = names_from_bank(f, view->bank);
        if (f->err == MX_E_NOT_FOUND) {
            f->err = f->n_pages == 0 ? names_from_ticket(f) : MX_OK;
        }
    }
    if (f->err != MX_OK) {
        return;
    }
    const mx_doomed doomed = {f->id, names_of(f), &f->root, f->is_session ? f->tokens : NULL, f->n_tokens};
    if (f->e->cold != NULL) {
        mx_ticket_collect(f->e); /* what has ended holds pages until then */
        f->has_dropped = mx_ticket_drop(f->e, f->id != NULL ? &doomed : NULL);
    }
    if (!f->is_last) {
        return;
    }
    if (f->id == NULL) {
        mx_bank_forget_all(view->bank);
        f->was_in_ram = true;
    } else {
        f->was_in_ram = (f->is_session ? mx_bank_forget_chain(view->bank, f->id)
                                       : mx_bank_forget(view->bank, f->id)) == MX_OK;
    }
}

static mx_err run(forgetting *f, uint64_t timeout_us, mx_errbuf *eb)
{
    mx_err err = mx_engine_call(f->e, forget, f);
    if (err != MX_OK) {
        return mx_fail(eb, err, "the engine has ended");
    }
    if (f->err != MX_OK) {
        return mx_fail(eb, f->err, "out of memory");
    }
    mx_cold *cold = mx_engine_cold(f->e);
    if (cold != NULL && (f->has_dropped || !f->is_last) && !mx_cold_settle(cold, timeout_us)) {
        return mx_fail(eb, MX_E_BUSY, "the cache folder is still being written; no file was removed, "
                       "try again");
    }
    return MX_OK;
}

static mx_err remove_files(const forgetting *f, mx_cold_counts *out, mx_errbuf *eb)
{
    enum { LOCK_MS = 2000 };
    mx_cold *cold = mx_engine_cold(f->e);
    if (cold == NULL) {
        return MX_E_NOT_FOUND;
    }
    char folder[65];
    mx_cold_names names = names_of(f);
    mx_hash256_hex(&f->e->root, folder);
    const char *dir = f->e->cfg.cold_dir;
    const mx_hash256 *key = f->e->cfg.cold_auth_key;
    mx_err err = f->is_session
                     ? mx_cold_remove_session(dir, key, folder, f->id, &names, LOCK_MS, out, eb)
                 : f->id != NULL
                     ? mx_cold_remove_entry(dir, key, folder, f->id, &names, LOCK_MS, out, eb)
                     : mx_cold_remove_folder(dir, key, folder, LOCK_MS, out, eb);
    (void)mx_cold_sweep(cold, 1); /* what is gone must not count as stored */
    return err == MX_E_INVALID ? MX_E_NOT_FOUND : err; /* nothing was written there yet */
}

static mx_err forget_in_order(forgetting f, uint64_t timeout_us, mx_forgotten *out, mx_errbuf *eb)
{
    *out = (mx_forgotten){0};
    mx_err err = run(&f, timeout_us, eb);
    if (err == MX_OK) {
        f.is_last = true;
        err = run(&f, timeout_us, eb);
    }
    if (err == MX_OK) {
        err = remove_files(&f, &out->files, eb);
        err = err == MX_E_NOT_FOUND && f.was_in_ram ? MX_OK : err;
    }
    out->from_ram = f.was_in_ram;
    mx_free(f.pages);
    mx_free(f.states);
    mx_free(f.tokens);
    return err;
}

mx_err mx_engine_forget(mx_engine *e, const mx_hash256 *id, uint64_t timeout_us,
                        mx_forgotten *out, mx_errbuf *eb)
{
    return forget_in_order((forgetting){.e = e, .id = id}, timeout_us, out, eb);
}

mx_err mx_engine_forget_session(mx_engine *e, const mx_hash256 *id, uint64_t timeout_us,
                                mx_forgotten *out, mx_errbuf *eb)
{
    return forget_in_order((forgetting){.e = e, .id = id, .is_session = true}, timeout_us, out, eb);
}
