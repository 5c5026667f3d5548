/* SPDX-License-Identifier: MIT
 *
 * One row per action. Where an entry is wanted, the first digits of its name will do, as long as they
 * are one entry's.
 */
#include "cli/cli_cache.h"

#include "base/log.h"
#include "base/mem.h"
#include "cli/cli_explain.h"
#include "cli/cli_export.h"
#include "cli/cli_keys.h"
#include "cli/cli_machine.h"
#include "cli/cli_options.h"
#include "cli/cli_post.h"
#include "cli/cli_sessions.h"
#include "cli/cli_start.h"
#include "cli/cli_table.h"
#include "cold/cold.h"
#include "cold/cold_tools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

typedef struct options {
    char *dir, *key_file, *url, *admin_key, *api_key, *model;
    mx_cli_auth auth;
    const char *file; /* the second operand */
    bool all, quarantine, recompute;
    bool is_named; /* dir is not the default */
    uint64_t max_size, ttl_s, write_budget;
    uint64_t kv_type, act_type, threads;
} options;

#define AT(field) offsetof(options, field)

static const mx_option rows[] = {
    {"ssd-session-cache-dir", OPT_TEXT, AT(dir), "DIR", NULL, 0, 0, NULL,
     "the folder; without it MTPLX_SSD_SESSION_CACHE_DIR, or else ~/.mtplx/session_cache"},
    {"cache-key-file", OPT_TEXT, AT(key_file), "FILE", NULL, 0, 0, NULL,
     "the server's: verify and show check that files were made with it, and the folder need not be ours "
     "alone; without it MTPLX_CACHE_KEY_FILE"},
    {"all", OPT_FLAG, AT(all), NULL, "off", 0, 0, NULL, "rm: everything, of all models"},
    {"quarantine", OPT_FLAG, AT(quarantine), NULL, "off", 0, 0, NULL,
     "verify: move damaged files to quarantine/, so that no reader meets them"},
    {"ssd-session-cache-max-size", OPT_SIZE, AT(max_size), "SIZE", "0", MX_SIZE_MIN, 0, NULL,
     "gc and import: the limit; without it MTPLX_SSD_SESSION_CACHE_MAX_SIZE, or else there is none"},
    {"ssd-session-cache-ttl", OPT_TIME, AT(ttl_s), "TIME", "0", 0, 0, NULL,
     "gc: what was not used for so long (30d, 12h) goes; without it MTPLX_SSD_SESSION_CACHE_TTL"},
    {"ssd-write-budget", OPT_SIZE, AT(write_budget), "SIZE", "0", MX_SIZE_MIN, 0, NULL,
     "import: bytes that are written to the folder in a day (UTC), by servers and imports together; without it "
     "MTPLX_SSD_WRITE_BUDGET, or else there is no limit"},
    {"url", OPT_TEXT, AT(url), "URL", "http://127.0.0.1:8000", 0, 0, NULL,
     "explain: the running server"},
    {"admin-key", OPT_SECRET, AT(admin_key), "KEY", NULL, 0, 0, NULL,
     "explain: the server's admin key; better in MTPLX_ADMIN_KEY"},
    {"api-key", OPT_SECRET, AT(api_key), "KEY", NULL, 0, 0, NULL,
     "explain: whose prefixes are meant; import: whose the conversation becomes, for a server with keys "
     "and without --shared-prefixes; better in MTPLX_API_KEY"},
    {"model", OPT_TEXT, AT(model), "FILE", NULL, 0, 0, NULL,
     "export and import: the server's model; without it the default model in ~/.mtplx/models"},
    {"kv-type", OPT_CHOICE, AT(kv_type), NULL, "f16", 0, 0, mx_kv_words,
     "export and import: the server's"},
    {"activations", OPT_CHOICE, AT(act_type), NULL, "16", 0, 0, mx_act_words,
     "export and import: the server's"},
    {"recompute", OPT_FLAG, AT(recompute), NULL, "off", 0, 0, NULL,
     "import: compute the conversation first, and take nothing that differs in a bit"},
    {"threads", OPT_NUMBER, AT(threads), "N", "0", 0, 1024, NULL,
     "export and import: compute threads; 0 = as many as the process may use"},
};

static const mx_option_table table = {"cache", false, rows, MX_COUNT(rows)};

typedef struct action {
    const char *name, *operand, *summary;
    int n_needed; /* operands */
    /* What the command line and the environment alone can be blamed for; or NULL. Looks at nothing else. */
    mx_err (*check)(options *o, const char *operand, mx_errbuf *eb);
    int (*run)(const options *o, const char *operand);
} action;

static int failed(const mx_errbuf *eb)
{
    fprintf(stderr, "mtplx: %s\n", eb->text);
    return 1;
}

static const char *given_or_env(const char *given, const char *variable)
{
    const char *v = given != NULL ? given : getenv(variable);
    return v != NULL && *v != '\0' ? v : NULL;
}

static const mx_hash256 *auth_key(const options *o)
{
    return o->auth.is_on ? &o->auth.object_key : NULL;
}

/* ---- entries --------------------------------------------------------------------------------- */

static void print_time(char out[24], int64_t s)
{
    time_t t = (time_t)s;
    struct tm tm;
    if (localtime_r(&t, &tm) == NULL || strftime(out, 24, "%Y-%m-%d %H:%M", &tm) == 0) {
        snprintf(out, 24, "%lld", (long long)s);
    }
}

typedef struct listed {
    mx_cold_entry *items; /* [n] */
    size_t n, cap;
    bool has_failed;
} listed;

static bool add_entry(void *arg, const mx_cold_entry *e)
{
    listed *l = arg;
    void *items = l->items;
    l->has_failed = !mx_grow(&items, &l->cap, l->n + 1, sizeof *l->items);
    if (l->has_failed) {
        return false;
    }
    l->items = items;
    l->items[l->n++] = *e;
    return true;
}

static int compare_used(const void *a, const void *b)
{
    const mx_cold_entry *x = a, *y = b;
    return x->used_s > y->used_s ? -1 : x->used_s < y->used_s;
}

static mx_err list_all(const options *o, listed *l, mx_errbuf *eb)
{
    *l = (listed){0};
    MX_TRY(mx_cold_list(o->dir, auth_key(o), NULL, add_entry, l, eb));
    if (l->has_failed) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    if (l->n > 0) {
        qsort(l->items, l->n, sizeof *l->items, compare_used);
    }
    return MX_OK;
}

static bool is_there(const options *o)
{
    struct stat st;
    return stat(o->dir, &st) == 0 || errno != ENOENT;
}

static int run_ls(const options *o, const char *operand)
{
    (void)operand;
    listed l;
    mx_errbuf eb = {{0}};
    if (list_all(o, &l, &eb) != MX_OK) {
        mx_free(l.items);
        return failed(&eb);
    }
    printf("%-16s  %-6s  %8s  %6s  %10s  %-16s  %s\n", "id", "kind", "tokens", "pages", "size", "used",
           "model folder");
    for (size_t i = 0; i < l.n; i++) {
        const mx_cold_entry *e = &l.items[i];
        char hex[65], size[32], used[24];
        mx_hash256_hex(&e->id, hex);
        mx_print_size(size, sizeof size, e->bytes);
        print_time(used, e->used_s);
        printf("%.16s  %-6s  %8llu  %6u  %10s  %-16s  %.12s", hex, e->is_turn ? "turn" : "prompt",
               (unsigned long long)e->n_tokens, e->n_pages, size, used, e->folder);
        printf(e->n_missing > 0 ? "  (%u pages are missing)\n" : "\n", e->n_missing);
    }
    printf("%zu entries in %s%s\n", l.n, o->dir, is_there(o) ? "" : ", which is not there yet");
    mx_free(l.items);
    return 0;
}

enum { MIN_DIGITS = 6 };

static bool is_entry_name(const char *prefix)
{
    size_t n = strlen(prefix);
    return n >= MIN_DIGITS && n <= 64 && strspn(prefix, "0123456789abcdef") == n;
}

static mx_err check_name(options *o, const char *prefix, mx_errbuf *eb)
{
    (void)o;
    if (prefix != NULL && !is_entry_name(prefix)) {
        return mx_fail(eb, MX_E_INVALID, "\"%.70s\" is not the name of an entry: %d to 64 digits of the "
                       "first column of `mtplx cache ls`", prefix, MIN_DIGITS);
    }
    return MX_OK;
}

/* The entry whose name begins like that. */
static mx_err find(const options *o, const char *prefix, mx_cold_entry *out, mx_errbuf *eb)
{
    listed l;
    size_t n = strlen(prefix), n_found = 0;
    mx_err err = list_all(o, &l, eb);
    for (size_t i = 0; err == MX_OK && i < l.n; i++) {
        char hex[65];
        mx_hash256_hex(&l.items[i].id, hex);
        if (strncmp(hex, prefix, n) == 0) {
            *out = l.items[i];
            n_found++;
        }
    }
    mx_free(l.items);
    if (err == MX_OK && n_found != 1) {
        err = n_found == 0
                  ? mx_fail(eb, MX_E_NOT_FOUND, "there is no entry %s in %s: `mtplx cache ls` "
                            "lists them", prefix, o->dir)
                  : mx_fail(eb, MX_E_INVALID, "%zu entries begin with %s: give more digits", n_found,
                            prefix);
    }
    return err;
}

static int run_show(const options *o, const char *operand)
{
    mx_cold_entry e;
    mx_errbuf eb = {{0}};
    if (find(o, operand, &e, &eb) != MX_OK) {
        return failed(&eb);
    }
    char hex[65], root[65], size[32], used[24], created[24];
    mx_hash256_hex(&e.id, hex);
    mx_hash256_hex(&e.root, root);
    mx_print_size(size, sizeof size, e.bytes);
    print_time(used, e.used_s);
    print_time(created, e.created_s);
    printf("id       %s\nkind     end of a %s\ntokens   %llu\npages    %u", hex,
           e.is_turn ? "turn" : "prompt", (unsigned long long)e.n_tokens, e.n_pages);
    printf(e.n_missing > 0 ? ", of which %u are missing\n" : "\n", e.n_missing);
    printf("size     %s, with pages that other entries share\ncreated  %s\nused     %s\n", size, created,
           used);
    printf("model    %s/v1/%s/model.json\nstored   %s\n", o->dir, e.folder,
           strcmp(root, e.folder) == 0 ? "without an API key" : "under an API key");
    return 0;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static void print_bad(void *arg, const char *path, const char *reason)
{
    (void)arg;
    printf("%s: %s\n", path, reason);
}

/* A server that removes much, or hangs in its folder, is waited for: without a word that would look as if
 * this command hung. */
static void tell_of_waiting(const options *o)
{
    enum { PATIENCE_MS = 2000 };
    mx_errbuf eb = {{0}};
    if (mx_cold_see_lock(o->dir, auth_key(o), PATIENCE_MS, &eb) == MX_E_BUSY) {
        fprintf(stderr, "mtplx: waiting: %s (Ctrl-C ends this command, nothing is changed then)\n",
                eb.text);
    }
}

static int run_verify(const options *o, const char *operand)
{
    mx_cold_entry e;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    char size[32];
    if (operand != NULL && find(o, operand, &e, &eb) != MX_OK) {
        return failed(&eb);
    }
    if (o->quarantine) {
        tell_of_waiting(o);
    }
    if (mx_cold_verify(o->dir, auth_key(o), operand != NULL ? &e.id : NULL, o->quarantine, print_bad, NULL, &n,
                       &eb) != MX_OK)
    {
        return failed(&eb);
    }
    mx_print_size(size, sizeof size, n.n_bytes);
    printf("%llu files (%s) checked, %llu damaged", (unsigned long long)n.n_files, size,
           (unsigned long long)n.n_bad);
    if (o->quarantine) {
        printf(", %llu moved to quarantine", (unsigned long long)n.n_moved);
    }
    printf(n.n_foreign > 0 ? ", %llu of another version left alone\n" : "\n",
           (unsigned long long)n.n_foreign);
    return n.n_bad > n.n_moved ? 1 : 0;
}

static mx_err check_limit(options *o, const char *operand, mx_errbuf *eb)
{
    static const char name[] = "MTPLX_SSD_SESSION_CACHE_MAX_SIZE";
    const char *text = given_or_env(NULL, name);
    (void)operand;
    return o->max_size == 0 && text != NULL ? mx_read_size(name, text, MX_SIZE_MIN, &o->max_size, eb)
                                            : MX_OK;
}

static mx_err check_import(options *o, const char *operand, mx_errbuf *eb)
{
    static const char name[] = "MTPLX_SSD_WRITE_BUDGET";
    const char *text = given_or_env(NULL, name);
    MX_TRY(check_limit(o, operand, eb));
    return o->write_budget == 0 && text != NULL
               ? mx_read_size(name, text, MX_SIZE_MIN, &o->write_budget, eb)
               : MX_OK;
}

static mx_err check_gc(options *o, const char *operand, mx_errbuf *eb)
{
    const char *ttl = given_or_env(NULL, "MTPLX_SSD_SESSION_CACHE_TTL");
    if (o->ttl_s == 0 && ttl != NULL && !mx_parse_time(ttl, &o->ttl_s)) {
        return mx_fail(eb, MX_E_INVALID, "MTPLX_SSD_SESSION_CACHE_TTL must be a time with its unit, such as "
                       "12h or 30d");
    }
    return check_limit(o, operand, eb);
}

static int run_gc(const options *o, const char *operand)
{
    (void)operand;
    mx_cold_counts n;
    mx_errbuf eb = {{0}};
    char size[32];
    uint64_t limit = o->max_size == 0 ? UINT64_MAX : o->max_size; /* 0 = none */
    tell_of_waiting(o);
    if (mx_cold_gc(o->dir, auth_key(o), limit, o->ttl_s, &n, &eb) != MX_OK) {
        return failed(&eb);
    }
    mx_print_size(size, sizeof size, n.n_bytes);
    printf("removed %llu files (%s) from %s\n", (unsigned long long)n.n_files, size, o->dir);
    return 0;
}

static mx_err check_rm(options *o, const char *operand, mx_errbuf *eb)
{
    if (o->all == (operand != NULL)) {
        return mx_fail(eb, MX_E_INVALID, "cache rm needs an entry's name, or --all, which removes everything "
                       "in the folder");
    }
    return check_name(o, operand, eb);
}

static int run_rm(const options *o, const char *operand)
{
    uint64_t n_files = 0, n_bytes = 0;
    mx_errbuf eb = {{0}};
    char size[32];
    tell_of_waiting(o);
    if (o->all) {
        if (mx_cold_remove_all(o->dir, auth_key(o), &n_files, &n_bytes, &eb) != MX_OK) {
            return failed(&eb);
        }
    } else {
        mx_cold_entry e;
        mx_cold_counts n;
        if (find(o, operand, &e, &eb) != MX_OK
            || mx_cold_remove_entry(o->dir, auth_key(o), e.folder, &e.id, NULL,
                                    MX_COLD_WAIT_FOREVER, &n, &eb) != MX_OK)
        {
            return failed(&eb);
        }
        n_files = n.n_files;
        n_bytes = n.n_bytes;
    }
    mx_print_size(size, sizeof size, n_bytes);
    printf("removed %llu files (%s) from %s\n", (unsigned long long)n_files, size, o->dir);
    return 0;
}

/* ---- sessions -------------------------------------------------------------------------------- */

static int run_sessions(const options *o, const char *operand)
{
    (void)operand;
    return mx_cli_sessions(o->dir, auth_key(o));
}

/* A session, else an entry. */
static int set_pin(const options *o, const char *operand, bool on)
{
    int code;
    mx_cold_entry e;
    mx_errbuf eb = {{0}};
    if (mx_cli_session_pin(o->dir, auth_key(o), operand, on, &code)) {
        return code;
    }
    if (!is_entry_name(operand)) {
        mx_fail(&eb, MX_E_NOT_FOUND, "there is no session %.256s in %s: `mtplx cache sessions` lists them",
                operand, o->dir);
        return failed(&eb);
    }
    return find(o, operand, &e, &eb) != MX_OK ? failed(&eb)
                                              : mx_cli_entry_pin(o->dir, auth_key(o), &e, on);
}

static int run_pin(const options *o, const char *operand)
{
    return set_pin(o, operand, true);
}

static int run_unpin(const options *o, const char *operand)
{
    return set_pin(o, operand, false);
}

static mx_err check_fork(options *o, const char *operand, mx_errbuf *eb)
{
    (void)operand;
    return mx_session_name_ok((mx_str){o->file, strlen(o->file)})
               ? MX_OK
               : mx_fail(eb, MX_E_INVALID, "the new name must be 1 to %d bytes of UTF-8 without control "
                         "characters", MX_SESSION_NAME_MAX);
}

static int run_fork(const options *o, const char *operand)
{
    return mx_cli_session_fork(o->dir, auth_key(o), operand, o->file);
}

static mx_err check_ttl(options *o, const char *operand, mx_errbuf *eb)
{
    (void)operand;
    return mx_parse_time(o->file, &o->ttl_s)
               ? MX_OK
               : mx_fail(eb, MX_E_INVALID, "\"%.64s\" is not a time with its unit, such as 12h or 30d, or 0 "
                         "(never)", o->file);
}

static int run_ttl(const options *o, const char *operand)
{
    return mx_cli_session_ttl(o->dir, auth_key(o), operand, o->ttl_s);
}

/* ---- to another machine ---------------------------------------------------------------------- */

static mx_cli_transfer transfer_of(const options *o)
{
    return (mx_cli_transfer){.dir = o->dir,
                             .auth = &o->auth,
                             .key_file = given_or_env(o->key_file, "MTPLX_CACHE_KEY_FILE"),
                             .api_key = given_or_env(o->api_key, "MTPLX_API_KEY"),
                             .model = o->model,
                             .kv_type = o->kv_type,
                             .act_type = o->act_type,
                             .threads = o->threads,
                             .max_size = o->max_size,
                             .write_budget = o->write_budget,
                             .recompute = o->recompute};
}

static int run_export(const options *o, const char *operand)
{
    mx_cold_entry e;
    mx_errbuf eb = {{0}};
    mx_cli_transfer t = transfer_of(o);
    return find(o, operand, &e, &eb) != MX_OK ? failed(&eb) : mx_cli_export(&t, &e, o->file);
}

static int run_import(const options *o, const char *operand)
{
    mx_cli_transfer t = transfer_of(o);
    return mx_cli_import(&t, operand);
}

static mx_err check_explain(options *o, const char *operand, mx_errbuf *eb)
{
    (void)operand;
    return mx_cli_check_url(o->url, eb);
}

static int run_explain(const options *o, const char *operand)
{
    return mx_cli_explain(operand, o->url, given_or_env(o->admin_key, "MTPLX_ADMIN_KEY"),
                          given_or_env(o->api_key, "MTPLX_API_KEY"));
}

/* ---- the command ----------------------------------------------------------------------------- */

static const action actions[] = {
    {"ls", NULL, "what is on disk, used last first", 0, NULL, run_ls},
    {"show", "ID", "one entry of it", 1, check_name, run_show},
    {"verify", "[ID]", "check every file (or those of one entry) against its hash; 1 = some are damaged",
     0, check_name, run_verify},
    {"gc", NULL, "bring the folder under its limit", 0, check_gc, run_gc},
    {"rm", "ID|--all", "remove an entry, or everything", 0, check_rm, run_rm},
    {"sessions", NULL, "the sessions that clients have named, and what is pinned", 0, NULL, run_sessions},
    {"pin", "SESSION|ID", "neither limit nor age deletes a session, or an entry", 1, NULL, run_pin},
    {"unpin", "SESSION|ID", "they may again", 1, NULL, run_unpin},
    {"fork", "SESSION NAME", "a second session that goes on from where this one stands", 2, check_fork, run_fork},
    {"ttl", "SESSION TIME", "delete it when it was not used for so long; 0 = never", 2, check_ttl, run_ttl},
    {"export", "ID FILE", "write an entry into a new file, for another machine with the same model", 2,
     check_name, run_export},
    {"import", "FILE", "check such a file and take it in", 1, check_import, run_import},
    {"explain", "FILE.json", "what a running server would reuse of this request body, and why not more",
     1, check_explain, run_explain},
};

void mx_cli_cache_help(mx_buf *out)
{
    for (size_t i = 0; i < MX_COUNT(actions); i++) {
        char what[48];
        snprintf(what, sizeof what, "%s %s", actions[i].name,
                 actions[i].operand == NULL ? "" : actions[i].operand);
        mx_buf_printf(out, "  %-20s %s\n", what, actions[i].summary);
    }
    mx_buf_str(out, "\nAll but explain work on the folder, with or without a server; export and import also load the model. Options:\n");
    mx_table_help(&table, out);
}

static int wrong_usage(const char *what)
{
    fprintf(stderr, "mtplx: %s; `mtplx help cache` shows what is possible\n", what);
    return 2;
}

/* The folder from the option, the environment, or the home. */
static bool find_folder(options *o)
{
    char standard[1024];
    const char *dir = o->dir == NULL ? getenv("MTPLX_SSD_SESSION_CACHE_DIR") : o->dir;
    o->is_named = dir != NULL && *dir != '\0';
    if (!o->is_named) {
        const char *home = mx_machine_home();
        if (home == NULL) {
            return false;
        }
        mx_default_cache_dir(standard, sizeof standard, home);
        dir = standard;
    }
    if (o->dir == NULL) {
        o->dir = mx_strdup(dir);
    }
    return o->dir != NULL;
}

int mx_cli_cache(int argc, char **argv)
{
    const action *a = NULL;
    for (size_t i = 0; argc > 0 && i < MX_COUNT(actions); i++) {
        a = strcmp(actions[i].name, argv[0]) == 0 ? &actions[i] : a;
    }
    if (a == NULL) {
        return wrong_usage("cache knows the actions ls, show, verify, gc, rm, sessions, pin, unpin, fork, ttl, "
                           "export, import and explain");
    }
    int n = 0; /* operands */
    while (n < (a->n_needed > 1 ? a->n_needed : 1) && argc > 1 + n && strncmp(argv[1 + n], "--", 2) != 0) {
        n++;
    }
    if (n > 0 && a->operand == NULL) {
        return wrong_usage("this action takes options only");
    }
    if (n < a->n_needed) {
        return wrong_usage(a->run == run_explain  ? "explain needs a file with the request's body"
                           : a->run == run_export ? "export needs an entry's name and a new file's"
                           : a->run == run_import ? "import needs the file"
                           : a->run == run_fork   ? "fork needs a session and a new name"
                           : a->run == run_ttl    ? "ttl needs a session and a time"
                           : a->run == run_pin || a->run == run_unpin
                               ? "this action needs a session, or an entry's name"
                                                  : "this action needs an entry's name");
    }
    int skip = 1 + n;
    options o = {.file = n > 1 ? argv[2] : NULL};
    mx_errbuf eb = {{0}};
    int code = 2;
    const char *operand = n > 0 ? argv[1] : NULL;
    if (mx_table_parse(&table, &o, argc - skip, argv + skip, &eb) != MX_OK
        || (a->check != NULL && a->check(&o, operand, &eb) != MX_OK))
    {
        (void)failed(&eb);
    } else if (a->run != run_explain && !find_folder(&o)) {
        fprintf(stderr, "mtplx: there is no home folder; name the folder with --ssd-session-cache-dir\n");
        code = 1;
    } else if (o.is_named && a->run != run_explain && a->run != run_import && !is_there(&o)) {
        /* A slip in the name must not read as "nothing is stored" or "everything is removed". */
        fprintf(stderr, "mtplx: there is no folder %s\n", o.dir);
        code = 1;
    } else {
        mx_log_set_level(MX_LOG_ERROR);
        const char *key_file = given_or_env(o.key_file, "MTPLX_CACHE_KEY_FILE");
        code = a->run != run_explain && mx_cli_read_auth(key_file, &o.auth, &eb) != MX_OK
                   ? failed(&eb)
                   : a->run(&o, operand);
    }
    mx_table_free(&table, &o);
    return code;
}
