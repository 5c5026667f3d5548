/* SPDX-License-Identifier: MIT
 *
 * /admin/cache: what is stored, pin it, remove it.
 *
 * An entry has one name in both tiers, the identity of its last page. The list joins what the engine
 * shows of its bank with the manifests of this model's folder. Texts are never listed. The worker that
 * handles such a request waits for the engine (one pass) and for the folder, as no other does; the http
 * layer therefore never gives the last free worker to one.
 */
#include "api/api_state.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cold/cold_tools.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_LISTED = 100000 };

typedef struct item {
    mx_hash256 id;
    bool in_ram, on_ssd, is_pinned, is_isolated;
    const char *kind;
    uint64_t n_tokens, n_hits, ram_bytes, ssd_bytes;
    uint64_t age_s; /* since the last use */
} item;

typedef struct item_list {
    item *items; /* [n] */
    size_t n, cap;
    bool is_cut, has_failed;
    const mx_kv_shape *shape;
    uint64_t now_us;
    int64_t now_s;
    mx_hash256 plain_root;
} item_list;

static item *add_item(item_list *l)
{
    void *items = l->items;
    if (l->n >= MAX_LISTED) {
        l->is_cut = true;
        return NULL;
    }
    if (!mx_grow(&items, &l->cap, l->n + 1, sizeof *l->items)) {
        l->has_failed = true;
        return NULL;
    }
    l->items = items;
    l->items[l->n] = (item){0};
    return &l->items[l->n++];
}

static void add_point(void *arg, const mx_bank_point *p)
{
    static const char *const kinds[] = {"prompt", "turn", "boundary"};
    item_list *l = arg;
    item *it = p->is_entry ? add_item(l) : NULL;
    if (it == NULL) {
        return;
    }
    it->id = mx_bank_point_id(p);
    it->in_ram = true;
    it->kind = (size_t)p->kind < MX_COUNT(kinds) ? kinds[p->kind] : "other";
    it->n_tokens = p->n_tokens;
    it->n_hits = p->n_hits;
    it->is_pinned = p->is_pinned;
    it->is_isolated = !mx_hash256_eq(p->root, &l->plain_root);
    it->ram_bytes = mx_kv_chain_bytes(l->shape, p->n_tokens);
    it->age_s = l->now_us > p->used_us ? (l->now_us - p->used_us) / 1000000 : 0;
}

static void list_bank(void *arg, const mx_engine_view *view)
{
    item_list *l = arg;
    l->shape = mx_kv_pool_shape(view->pool);
    l->now_us = mx_now_us();
    l->plain_root = *view->root;
    mx_bank_walk(view->bank, add_point, l);
}

static int compare_items(const void *a, const void *b)
{
    return memcmp(&((const item *)a)->id, &((const item *)b)->id, sizeof(mx_hash256));
}

typedef struct join {
    item_list *l;
    size_t n_ram; /* sorted */
} join;

static bool add_manifest(void *arg, const mx_cold_entry *e)
{
    join *j = arg;
    item key = {.id = e->id}, *it = NULL;
    if (j->n_ram > 0) {
        it = bsearch(&key, j->l->items, j->n_ram, sizeof key, compare_items);
    }
    if (it == NULL) {
        it = add_item(j->l);
        if (it == NULL) {
            return false;
        }
        it->id = e->id;
        it->kind = e->is_turn ? "turn" : "prompt";
        it->n_tokens = e->n_tokens;
        it->is_isolated = !mx_hash256_eq(&e->root, &j->l->plain_root);
        it->age_s = j->l->now_s > e->used_s ? (uint64_t)(j->l->now_s - e->used_s) : 0;
    }
    it->on_ssd = true;
    it->ssd_bytes = e->bytes;
    return true;
}

/* Pinned on disk. The list is as it was joined: at most the entries of one folder, and few are pinned. */
static bool note_bookmark(void *arg, const char *folder, const mx_bookmark *b)
{
    item_list *l = arg;
    (void)folder;
    for (size_t i = 0; b->is_pinned && i < l->n; i++) {
        l->items[i].is_pinned |= mx_hash256_eq(&l->items[i].id, &b->entry);
    }
    return true;
}

void mx_api_folder_name(const mx_api *a, char hex[65])
{
    mx_hash256 root = mx_model_root(a->model, NULL);
    mx_hash256_hex(&root, hex);
}

/* Everything in both tiers; only: the entry of that name. */
static mx_err collect(mx_api *a, item_list *l, mx_errbuf *eb)
{
    char folder[65];
    *l = (item_list){.now_s = mx_wall_s()};
    mx_err err = mx_engine_call(a->engine, list_bank, l);
    if (err != MX_OK) {
        return mx_fail(eb, err, "the engine has ended");
    }
    if (l->n > 0) {
        qsort(l->items, l->n, sizeof *l->items, compare_items);
    }
    if (a->cfg.cache_dir != NULL) {
        join j = {l, l->n};
        mx_api_folder_name(a, folder);
        err = mx_cold_list(a->cfg.cache_dir, a->cfg.cache_auth_key, folder, add_manifest, &j, eb);
        if (err == MX_OK) {
            err = mx_cold_list_bookmarks(a->cfg.cache_dir, a->cfg.cache_auth_key, folder, note_bookmark, l, eb);
        }
        if (err != MX_OK && err != MX_E_INVALID) { /* invalid: nothing was written there yet */
            return err;
        }
    }
    return l->has_failed ? mx_fail(eb, MX_E_NOMEM, "out of memory") : MX_OK;
}

static void write_item(mx_buf *b, const item *it)
{
    char hex[65];
    mx_hash256_hex(&it->id, hex);
    mx_buf_printf(b,
                  "{\"id\":\"%s\",\"object\":\"cache.entry\",\"kind\":\"%s\",\"tokens\":%llu,"
                  "\"tiers\":[%s%s%s],\"age_s\":%llu,\"hits\":%llu,\"bytes\":{\"ram\":%llu,\"ssd\":%llu},"
                  "\"pinned\":%s,\"isolated\":%s}",
                  hex, it->kind, (unsigned long long)it->n_tokens, it->in_ram ? "\"ram\"" : "",
                  it->in_ram && it->on_ssd ? "," : "", it->on_ssd ? "\"ssd\"" : "",
                  (unsigned long long)it->age_s, (unsigned long long)it->n_hits,
                  (unsigned long long)it->ram_bytes, (unsigned long long)it->ssd_bytes,
                  it->is_pinned ? "true" : "false", it->is_isolated ? "true" : "false");
}

/* That the folder is read-only is nothing that the server could change, or that trying again would: a
 * conflict with its state, which is the administrator's. */
unsigned mx_api_cache_status(mx_err err)
{
    return err == MX_E_DENIED ? 409 : err == MX_E_BUSY || err == MX_E_CANCELLED ? 503 : 500;
}

static void reply_failed(mx_http_exchange *x, mx_err err, const char *text)
{
    mx_problem p = {.retry_after_s = err == MX_E_BUSY ? 2 : 0};
    mx_problem_set(&p, mx_api_cache_status(err), mx_err_name(err), NULL, "%s", text);
    mx_api_reply_problem(x, &p);
}

static void reply_unknown(mx_http_exchange *x)
{
    mx_problem p = {0};
    mx_problem_set(&p, 404, "not_found", NULL, "there is no entry of this name; GET /admin/cache lists "
                   "what there is");
    mx_api_reply_problem(x, &p);
}

static int compare_age(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return x->age_s < y->age_s ? -1 : x->age_s > y->age_s;
}

/* One entry, or (id NULL) the list, used last first. */
static void reply_items(mx_api *a, mx_http_exchange *x, const mx_hash256 *id)
{
    item_list l;
    mx_errbuf eb = {{0}};
    mx_err err = collect(a, &l, &eb);
    mx_buf b = {0};
    if (err == MX_OK && id == NULL) {
        if (l.n > 0) {
            qsort(l.items, l.n, sizeof *l.items, compare_age);
        }
        mx_buf_str(&b, "{\"object\":\"list\",\"data\":[");
        for (size_t i = 0; i < l.n; i++) {
            mx_buf_str(&b, i > 0 ? "," : "");
            write_item(&b, &l.items[i]);
        }
        mx_buf_printf(&b, "],\"is_cut\":%s}\n", l.is_cut ? "true" : "false");
        mx_api_reply_json(x, 200, &b);
    } else if (err == MX_OK) {
        size_t i = 0;
        while (i < l.n && !mx_hash256_eq(&l.items[i].id, id)) {
            i++;
        }
        if (i < l.n) {
            write_item(&b, &l.items[i]);
            mx_buf_char(&b, '\n');
            mx_api_reply_json(x, 200, &b);
        } else {
            reply_unknown(x);
        }
    } else {
        reply_failed(x, err, eb.text);
    }
    mx_free(l.items);
}

/* ---- pin and remove -------------------------------------------------------------------------- */

static void reply_pin(mx_api *a, mx_http_exchange *x, const mx_hash256 *id, bool on)
{
    mx_errbuf eb = {{0}};
    bool is_kept = false;
    mx_err ram = mx_api_pin_in_ram(a, id, on), disk = MX_E_NOT_FOUND;
    if (ram == MX_OK || ram == MX_E_NOT_FOUND) {
        disk = mx_api_keep_pin(a, id, on, &is_kept, &eb);
    }
    bool has_failed = disk != MX_OK && disk != MX_E_NOT_FOUND;
    if (ram == MX_E_FULL) {
        mx_problem p = {0};
        mx_problem_set(&p, 409, "too_much_pinned", NULL, "with this entry more than half of the KV pages "
                       "would be pinned: unpin others, or start with a larger --kv-budget");
        mx_api_reply_problem(x, &p);
    } else if (ram == MX_E_CANCELLED) {
        reply_failed(x, ram, "the engine has ended");
    } else if (ram == MX_E_NOT_FOUND && disk == MX_E_NOT_FOUND) {
        reply_unknown(x);
    } else if (has_failed && ram != MX_OK) {
        reply_failed(x, disk, eb.text);
    } else {
        if (has_failed) {
            char safe[256];
            mx_log(MX_LOG_WARN, "cache: the folder does not know of a pin that was %s: %s", on ? "set" : "taken away",
                   mx_log_safe(safe, sizeof safe, eb.text, strlen(eb.text)));
        }
        mx_buf b = {0};
        char hex[65];
        mx_hash256_hex(id, hex);
        mx_buf_printf(&b, "{\"id\":\"%s\",\"pinned\":%s,\"in_ram\":%s,\"on_disk\":%s}\n", hex,
                      on ? "true" : "false", on && ram == MX_OK ? "true" : "false",
                      is_kept || (!on && has_failed) ? "true" : "false");
        mx_api_reply_json(x, 200, &b);
    }
}

static void write_removed(mx_buf *b, const mx_forgotten *n)
{
    mx_buf_printf(b, "\"ram\":%s,\"files\":%llu,\"bytes\":%llu,\"files_left\":%llu",
                  n->from_ram ? "true" : "false", (unsigned long long)n->files.n_files,
                  (unsigned long long)n->files.n_bytes, (unsigned long long)n->files.n_left);
}

/* Not all of it went: an error that says what did. */
static void reply_not_deleted(mx_http_exchange *x, mx_err err, const mx_forgotten *n, const char *text)
{
    mx_problem p = {.retry_after_s = err == MX_E_BUSY ? 2 : 0};
    mx_buf b = {0};
    mx_problem_set(&p, mx_api_cache_status(err), mx_err_name(err), NULL, "%s, %s: %s",
                   n->from_ram ? "removed from RAM" : "nothing was removed from RAM",
                   n->files.n_files > 0 ? "but only some of it from the folder"
                                        : "and nothing from the folder", text);
    mx_buf_str(&b, ",\"removed\":{");
    write_removed(&b, n);
    mx_buf_char(&b, '}');
    mx_api_reply_problem_and(x, &p, mx_buf_view(&b));
    mx_buf_free(&b);
}

/* id NULL: everything. */
static void reply_delete(mx_api *a, mx_http_exchange *x, const mx_hash256 *id, bool is_session)
{
    enum { SETTLE_US = 5 * 1000000 };
    mx_forgotten n;
    mx_errbuf eb = {{0}};
    mx_err err = is_session ? mx_engine_forget_session(a->engine, id, SETTLE_US, &n, &eb)
                            : mx_engine_forget(a->engine, id, SETTLE_US, &n, &eb);
    if (err != MX_E_NOT_FOUND) { /* also after an error: some of it may be gone */
        mx_recall_clear(a->recall);
    }
    if (err == MX_E_NOT_FOUND) {
        reply_unknown(x);
    } else if (err != MX_OK) {
        reply_not_deleted(x, err, &n, eb.text);
    } else {
        mx_buf b = {0};
        mx_buf_str(&b, "{\"deleted\":true,");
        write_removed(&b, &n);
        mx_buf_str(&b, "}\n");
        mx_api_reply_json(x, 200, &b);
    }
}

void mx_api_delete_session(mx_api *a, mx_http_exchange *x, const mx_hash256 *id)
{
    reply_delete(a, x, id, true);
}

/* ---- routes ---------------------------------------------------------------------------------- */

static bool is_method(const mx_http_exchange *x, const char *method)
{
    return strcmp(mx_http_method(x), method) == 0;
}

void mx_api_handle_admin(mx_api *a, mx_http_exchange *x, const char *rest)
{
    mx_problem p = {0};
    mx_hash256 id;
    bool is_list = strcmp(rest, "cache") == 0, is_lookup = strcmp(rest, "cache/lookup") == 0;
    bool has_id = strncmp(rest, "cache/", 6) == 0 && strlen(rest) >= 70
                  && mx_hash256_from_hex(&id, rest + 6, 64);
    const char *action = has_id ? rest + 70 : "";
    bool is_pin = has_id && strcmp(action, "/pin") == 0;
    bool is_unpin = has_id && strcmp(action, "/unpin") == 0;
    bool is_entry = has_id && *action == '\0';
    if (strncmp(rest, "cache/sessions", 14) == 0 && (rest[14] == '\0' || rest[14] == '/')) {
        if (mx_api_check_phase(a, &p)) {
            mx_api_handle_sessions(a, x, rest + 14);
        } else {
            mx_api_reply_problem(x, &p);
        }
        return;
    }
    bool is_known = is_list || is_lookup || is_pin || is_unpin || is_entry;
    if (!is_known) {
        mx_problem_set(&p, 404, "not_found", NULL, "there is nothing at this path; try GET "
                       "/admin/cache, GET or DELETE /admin/cache/ID, POST /admin/cache/ID/pin, GET "
                       "/admin/cache/sessions, POST /admin/cache/lookup");
    } else if (is_list && is_method(x, "DELETE") && mx_http_path_is_open(x)) {
        mx_problem_set(&p, 404, "not_found", NULL, "no entry is named behind /admin/cache/; to remove "
                       "everything of this model: DELETE /admin/cache, without a slash at the end");
    } else {
        (void)mx_api_check_phase(a, &p);
    }
    if (p.status != 0) {
        mx_api_reply_problem(x, &p);
    } else if (is_lookup && is_method(x, "POST")) {
        mx_api_post_lookup(a, x);
    } else if ((is_list || is_entry) && is_method(x, "GET")) {
        reply_items(a, x, is_entry ? &id : NULL);
    } else if ((is_list || is_entry) && is_method(x, "DELETE")) {
        reply_delete(a, x, is_entry ? &id : NULL, false);
    } else if ((is_pin || is_unpin) && is_method(x, "POST")) {
        reply_pin(a, x, &id, is_pin);
    } else if (is_pin && is_method(x, "DELETE")) {
        reply_pin(a, x, &id, false);
    } else {
        mx_api_reply_wrong_method(x, is_lookup || is_unpin ? "POST, OPTIONS"
                                     : is_pin              ? "POST, DELETE, OPTIONS"
                                                           : "GET, HEAD, DELETE, OPTIONS");
    }
}
