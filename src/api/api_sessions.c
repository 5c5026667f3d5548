/* SPDX-License-Identifier: MIT
 *
 * /admin/cache/sessions: conversations under the names that clients give them (prompt_cache_key, or the
 * header X-Session-Id): what there is, fork one, pin it, give it a time to live, remove it. And what
 * the pin of a single entry leaves in the folder.
 *
 * A session is a bookmark in the cache folder that points to its newest entry, so a fork copies
 * nothing: it is another bookmark to the same entry, and each goes its own way from there. The name never
 * decides what is reused; tokens do.
 */
#include "api/api_state.h"

#include "base/clock.h"
#include "cold/cold_tools.h"

enum { FLUSH_US = 2 * 1000000 };

/* ---- the folder ------------------------------------------------------------------------------ */

/* A turn that has just ended may still wait for the writer. */
static void let_writer_end(mx_api *a)
{
    mx_cold *cold = mx_engine_cold(a->engine);
    if (cold != NULL) {
        (void)mx_cold_flush(cold, FLUSH_US);
    }
}

typedef struct finding {
    const mx_hash256 *own, *entry; /* wanted: by its name, or */
    mx_bookmark found;
    size_t n_found, n_at_entry;    /* how many point to that entry */
} finding;

static bool look_at(void *arg, const char *folder, const mx_bookmark *b)
{
    finding *f = arg;
    (void)folder;
    if (f->own != NULL && mx_hash256_eq(&b->own, f->own)) {
        f->found = *b;
        f->n_found++;
    }
    f->n_at_entry += f->entry != NULL && mx_hash256_eq(&b->entry, f->entry);
    return true;
}

static mx_err look(mx_api *a, finding *f, mx_errbuf *eb)
{
    char folder[65];
    mx_api_folder_name(a, folder);
    mx_err err = mx_cold_list_bookmarks(a->cfg.cache_dir, a->cfg.cache_auth_key, folder, look_at, f, eb);
    return err == MX_E_INVALID ? MX_OK : err; /* invalid: nothing was written there yet */
}

static mx_err change(mx_api *a, const mx_hash256 *own, mx_bookmark_fn *fn, void *arg, mx_errbuf *eb)
{
    char folder[65];
    mx_api_folder_name(a, folder);
    return mx_cold_change_bookmark(a->cfg.cache_dir, a->cfg.cache_auth_key, folder, own, fn, arg, eb);
}

/* ---- pins in RAM ----------------------------------------------------------------------------- */

typedef struct ram_pin {
    const mx_hash256 *entry;
    bool on;
    mx_err err;
} ram_pin;

static void pin_in_ram(void *arg, const mx_engine_view *view)
{
    ram_pin *p = arg;
    p->err = mx_bank_pin(view->bank, p->entry, p->on, mx_kv_pool_max(view->pool) / 2);
}

mx_err mx_api_pin_in_ram(mx_api *a, const mx_hash256 *entry, bool on)
{
    ram_pin p = {.entry = entry, .on = on};
    mx_err err = mx_engine_call(a->engine, pin_in_ram, &p);
    return err != MX_OK ? err : p.err;
}

/* After the folder says so. */
static void note_pin(mx_api *a, const mx_bookmark *b, bool on)
{
    mx_cold *cold = mx_engine_cold(a->engine);
    if (cold != NULL) {
        mx_cold_set_pin(cold, &b->own, &b->entry, on);
        (void)mx_cold_sweep(cold, 1); /* and sees what else has changed */
    }
}

/* ---- replies --------------------------------------------------------------------------------- */

static void write_session(mx_buf *b, const mx_bookmark *s, const mx_hash256 *plain_root, int64_t now_s)
{
    static const mx_hash256 none;
    char own[65], entry[65], from[65];
    mx_hash256_hex(&s->own, own);
    mx_hash256_hex(&s->entry, entry);
    mx_hash256_hex(&s->forked_from, from);
    bool is_fork = !mx_hash256_eq(&s->forked_from, &none);
    mx_buf_printf(b, "{\"id\":\"%s\",\"object\":\"cache.session\",\"name\":", own);
    mx_http_json_string(b, s->name, strlen(s->name));
    mx_buf_printf(b, ",\"entry\":\"%s\",\"tokens\":%llu,\"pinned\":%s,\"ttl_s\":%llu,\"age_s\":%lld,"
                  "\"forked_from\":%s%s%s,\"isolated\":%s}", entry, (unsigned long long)s->n_tokens,
                  s->is_pinned ? "true" : "false", (unsigned long long)s->ttl_s,
                  (long long)(now_s > s->used_s ? now_s - s->used_s : 0), is_fork ? "\"" : "",
                  is_fork ? from : "null", is_fork ? "\"" : "",
                  mx_hash256_eq(&s->root, plain_root) ? "false" : "true");
}

static void reply_session(mx_api *a, mx_http_exchange *x, unsigned status, const mx_bookmark *s)
{
    mx_buf b = {0};
    mx_hash256 root = mx_model_root(a->model, NULL);
    write_session(&b, s, &root, mx_wall_s());
    mx_buf_char(&b, '\n');
    mx_api_reply_json(x, status, &b);
}

static void reply_error(mx_http_exchange *x, mx_err err, const char *text)
{
    mx_problem p = {.retry_after_s = err == MX_E_BUSY ? 2 : 0};
    mx_problem_set(&p, mx_api_cache_status(err), mx_err_name(err), NULL, "nothing was changed: %s", text);
    mx_api_reply_problem(x, &p);
}

/* ---- the list -------------------------------------------------------------------------------- */

typedef struct listing {
    mx_buf b;
    mx_hash256 plain_root;
    int64_t now_s;
    size_t n;
} listing;

static bool add_session(void *arg, const char *folder, const mx_bookmark *s)
{
    listing *l = arg;
    (void)folder;
    if (s->is_session) {
        mx_buf_str(&l->b, l->n++ > 0 ? "," : "");
        write_session(&l->b, s, &l->plain_root, l->now_s);
    }
    return !l->b.failed;
}

static void reply_list(mx_api *a, mx_http_exchange *x)
{
    char folder[65];
    mx_errbuf eb = {{0}};
    listing l = {.plain_root = mx_model_root(a->model, NULL), .now_s = mx_wall_s()};
    mx_api_folder_name(a, folder);
    mx_buf_str(&l.b, "{\"object\":\"list\",\"data\":[");
    mx_err err = a->cfg.cache_dir == NULL
                     ? MX_OK
                     : mx_cold_list_bookmarks(a->cfg.cache_dir, a->cfg.cache_auth_key, folder,
                                              add_session, &l, &eb);
    if (err != MX_OK && err != MX_E_INVALID) {
        mx_buf_free(&l.b);
        reply_error(x, err, eb.text);
        return;
    }
    mx_buf_str(&l.b, "]}\n");
    mx_api_reply_json(x, 200, &l.b);
}

/* ---- one of them ----------------------------------------------------------------------------- */

/* By its id, or by its name under the key that the request carries (or none). */
static bool find_session(mx_api *a, mx_http_exchange *x, const char *name, mx_bookmark *out)
{
    mx_problem p = {0};
    mx_errbuf eb = {{0}};
    mx_hash256 own;
    finding f = {.own = &own};
    const mx_hash256 *salt = mx_api_salt(a, mx_http_key_index(x));
    mx_hash256 root = mx_model_root(a->model, salt);
    mx_err err = MX_OK;
    let_writer_end(a);
    if (mx_hash256_from_hex(&own, name, strlen(name))) {
        err = look(a, &f, &eb);
    }
    if (err == MX_OK && f.n_found == 0) {
        own = mx_session_id(&root, (mx_str){name, strlen(name)});
        err = look(a, &f, &eb);
    }
    if (err != MX_OK) {
        reply_error(x, err, eb.text);
        return false;
    }
    if (f.n_found == 0 || !f.found.is_session) {
        mx_problem_set(&p, 404, "not_found", NULL, "there is no session of this name on disk; GET "
                       "/admin/cache/sessions lists what there is%s",
                       a->salts != NULL ? " (of which API key is meant: x-api-key beside the admin key, or "
                                          "use the id)" : "");
        mx_api_reply_problem(x, &p);
        return false;
    }
    *out = f.found;
    return true;
}

/* pin, unpin and ttl are what a body may say of a session, too, when it is forked. */
static bool read_change(mx_http_exchange *x, bool needs_ttl, mx_bookmark_edit *e, mx_str *name,
                        struct json_object **body)
{
    mx_problem p = {0};
    int64_t ttl_s = -1;
    enum { MAX_TTL_S = INT32_MAX };
    bool ok = mx_api_parse_body(x, body, &p) && mx_json_get_int(*body, "ttl_s", 0, MAX_TTL_S, &ttl_s, &p)
              && mx_json_get_bool(*body, "pinned", &e->is_pinned, &p)
              && (name == NULL || mx_json_get_string(*body, "name", name, &p));
    if (ok) {
        e->sets_pin = mx_json_field(*body, "pinned") != NULL;
        e->sets_ttl = ttl_s >= 0;
        e->ttl_s = ttl_s >= 0 ? (uint64_t)ttl_s : 0;
    }
    if (ok && needs_ttl && ttl_s < 0) {
        ok = mx_problem_field(&p, "ttl_s", "'ttl_s' is missing: seconds without use after which the session "
                              "is deleted, 0 = never");
    }
    if (ok && name != NULL && !mx_session_name_ok(*name)) {
        ok = mx_problem_field(&p, "name", "'name' is missing or not possible: the new session's name, at most "
                              "%d bytes without control characters", MX_SESSION_NAME_MAX);
    }
    if (!ok) {
        mx_api_reply_problem(x, &p);
    }
    return ok;
}

static void change_session(mx_api *a, mx_http_exchange *x, const mx_hash256 *own, mx_bookmark_edit *e)
{
    mx_errbuf eb = {{0}};
    mx_problem p = {0};
    mx_err err = change(a, own, mx_bookmark_apply_edit, e, &eb);
    if (err == MX_OK && e->is_done) {
        if (e->sets_pin) {
            note_pin(a, &e->result, e->result.is_pinned);
            (void)mx_api_pin_in_ram(a, &e->result.entry, e->result.is_pinned); /* it need not be in RAM */
        }
        reply_session(a, x, e->forked != NULL ? 201 : 200, &e->result);
    } else if (err != MX_OK) {
        reply_error(x, err, eb.text);
    } else {
        mx_problem_set(&p, 409, e->forked != NULL ? "session_exists" : "not_found", NULL,
                       e->forked != NULL ? "there is a session of that name already"
                                         : "the session was removed meanwhile");
        mx_api_reply_problem(x, &p);
    }
}

static void fork_session(mx_api *a, mx_http_exchange *x, const mx_bookmark *from)
{
    mx_bookmark_edit e = {.is_done = false};
    struct json_object *body = NULL;
    mx_str name = {0};
    if (read_change(x, false, &e, &name, &body)) {
        mx_bookmark forked = mx_bookmark_fork(from, name);
        e.forked = &forked;
        change_session(a, x, &forked.own, &e);
    }
    json_object_put(body);
}

static void set_ttl(mx_api *a, mx_http_exchange *x, const mx_bookmark *s)
{
    mx_bookmark_edit e = {.is_done = false};
    struct json_object *body = NULL;
    if (read_change(x, true, &e, NULL, &body)) {
        change_session(a, x, &s->own, &e);
    }
    json_object_put(body);
}

/* Its entry goes with it, unless another bookmark points there: a fork that has not gone on yet. */
static void remove_session(mx_api *a, mx_http_exchange *x, const mx_bookmark *s)
{
    char folder[65];
    mx_errbuf eb = {{0}};
    finding f = {.entry = &s->entry};
    mx_err err = look(a, &f, &eb);
    if (err == MX_OK && f.n_at_entry <= 1) {
        note_pin(a, s, false);
        mx_api_delete_session(a, x, &s->entry); /* and what points to it */
        return;
    }
    mx_api_folder_name(a, folder);
    if (err == MX_OK) {
        err = mx_cold_remove_bookmark(a->cfg.cache_dir, a->cfg.cache_auth_key, folder, &s->own, &eb);
    }
    if (err != MX_OK && err != MX_E_NOT_FOUND) {
        reply_error(x, err, eb.text);
        return;
    }
    note_pin(a, s, false);
    mx_buf b = {0};
    mx_buf_str(&b, "{\"deleted\":true,\"ram\":false,\"files\":1,\"bytes\":512,\"files_left\":0,"
               "\"entry_kept\":true}\n");
    mx_api_reply_json(x, 200, &b);
}

/* ---- entries --------------------------------------------------------------------------------- */

typedef struct sizing {
    const mx_hash256 *entry;
    mx_cold_entry found;
    bool is_there;
} sizing;

static bool size_entry(void *arg, const mx_cold_entry *e)
{
    sizing *s = arg;
    if (mx_hash256_eq(&e->id, s->entry)) {
        s->found = *e;
        s->is_there = true;
    }
    return !s->is_there;
}

mx_err mx_api_keep_pin(mx_api *a, const mx_hash256 *entry, bool on, bool *is_kept, mx_errbuf *eb)
{
    char folder[65];
    *is_kept = false;
    if (a->cfg.cache_dir == NULL) {
        return MX_E_NOT_FOUND;
    }
    mx_api_folder_name(a, folder);
    mx_bookmark b = {.own = *entry, .entry = *entry};
    if (!on) {
        mx_err err = mx_cold_remove_bookmark(a->cfg.cache_dir, a->cfg.cache_auth_key, folder, entry, eb);
        if (err == MX_OK) {
            note_pin(a, &b, false);
        }
        return err;
    }
    let_writer_end(a);
    sizing s = {.entry = entry};
    mx_err err = mx_cold_list(a->cfg.cache_dir, a->cfg.cache_auth_key, folder, size_entry, &s, eb);
    if (err != MX_OK || !s.is_there) {
        return err == MX_OK || err == MX_E_INVALID ? MX_E_NOT_FOUND : err;
    }
    err = mx_cold_pin_entry(a->cfg.cache_dir, a->cfg.cache_auth_key, &s.found, eb);
    *is_kept = err == MX_OK;
    if (err == MX_OK) {
        note_pin(a, &b, true);
    }
    return err;
}

/* ---- routes ---------------------------------------------------------------------------------- */

/* Cuts "/fork" off the end. */
static bool has_action(char *name, const char *action)
{
    size_t n = strlen(name), k = strlen(action);
    if (n <= k || strcmp(name + n - k, action) != 0) {
        return false;
    }
    name[n - k] = '\0';
    return true;
}

void mx_api_handle_sessions(mx_api *a, mx_http_exchange *x, const char *rest)
{
    mx_problem p = {0};
    const char *method = mx_http_method(x);
    bool is_get = strcmp(method, "GET") == 0, is_post = strcmp(method, "POST") == 0;
    bool is_delete = strcmp(method, "DELETE") == 0;
    char name[MX_SESSION_NAME_MAX + 16];
    mx_bookmark s;
    if (*rest == '\0') {
        if (is_get) {
            reply_list(a, x);
        } else {
            mx_api_reply_wrong_method(x, "GET, HEAD, OPTIONS");
        }
        return;
    }
    if (strlen(rest + 1) >= sizeof name) {
        mx_problem_set(&p, 404, "not_found", NULL, "no session has a name as long as this");
        mx_api_reply_problem(x, &p);
        return;
    }
    if (a->cfg.cache_dir == NULL) {
        mx_problem_set(&p, 409, "no_session_cache", NULL, "sessions are kept in the cache folder, and this "
                       "server runs without one (--ssd-session-cache off)");
        mx_api_reply_problem(x, &p);
        return;
    }
    memset(name, 0, sizeof name);
    memcpy(name, rest + 1, strlen(rest + 1));
    bool is_fork = is_post && has_action(name, "/fork"), is_ttl = is_post && has_action(name, "/ttl");
    bool is_unpin = is_post && has_action(name, "/unpin"), is_pin = is_post && has_action(name, "/pin");
    if (!(is_get || is_delete || is_fork || is_ttl || is_unpin || is_pin)) {
        mx_api_reply_wrong_method(x, "GET, HEAD, DELETE, OPTIONS; POST to /fork, /ttl, /pin, /unpin");
        return;
    }
    if (!find_session(a, x, name, &s)) {
        return;
    }
    if (is_get) {
        reply_session(a, x, 200, &s);
    } else if (is_delete) {
        remove_session(a, x, &s);
    } else if (is_fork) {
        fork_session(a, x, &s);
    } else if (is_ttl) {
        set_ttl(a, x, &s);
    } else {
        mx_bookmark_edit e = {.sets_pin = true, .is_pinned = is_pin};
        change_session(a, x, &s.own, &e);
    }
}
