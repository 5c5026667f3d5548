/* SPDX-License-Identifier: MIT
 *
 * A name may stand for several sessions (of two models, or of two API keys): then their ids tell them
 * apart, and nothing is changed until one of these is given.
 */
#include "cli/cli_sessions.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct session {
    char folder[65];
    mx_bookmark b;
} session;

typedef struct session_list {
    session *items; /* [n] */
    size_t n, cap;
    bool has_failed;
} session_list;

static int failed(const char *text)
{
    char safe[600];
    fprintf(stderr, "mtplx: %s\n", mx_log_safe(safe, sizeof safe, text, strlen(text)));
    return 1;
}

static bool add(void *arg, const char *folder, const mx_bookmark *b)
{
    session_list *l = arg;
    void *items = l->items;
    l->has_failed = !mx_grow(&items, &l->cap, l->n + 1, sizeof *l->items);
    l->items = items;
    if (!l->has_failed) {
        session *s = &l->items[l->n++];
        snprintf(s->folder, sizeof s->folder, "%s", folder);
        s->b = *b;
    }
    return !l->has_failed;
}

static mx_err list_all(const char *dir, const mx_hash256 *key, session_list *l, mx_errbuf *eb)
{
    *l = (session_list){0};
    MX_TRY(mx_cold_list_bookmarks(dir, key, NULL, add, l, eb));
    return l->has_failed ? mx_fail(eb, MX_E_NOMEM, "out of memory") : MX_OK;
}

/* ---- looking --------------------------------------------------------------------------------- */

static void print_for(char out[24], uint64_t seconds)
{
    if (seconds == 0) {
        snprintf(out, 24, "-");
    } else if (seconds % 86400 == 0) {
        snprintf(out, 24, "%llud", (unsigned long long)seconds / 86400);
    } else if (seconds % 3600 == 0) {
        snprintf(out, 24, "%lluh", (unsigned long long)seconds / 3600);
    } else {
        snprintf(out, 24, "%llus", (unsigned long long)seconds);
    }
}

static int compare_used(const void *a, const void *b)
{
    const session *x = a, *y = b;
    return x->b.used_s > y->b.used_s ? -1 : x->b.used_s < y->b.used_s;
}

/* What a terminal would obey, or not show: control characters, and marks without a width, which turn the
 * direction of the line or make two names look alike. */
static bool is_hidden(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7F && cp < 0xA0) || cp == 0xAD || cp == 0x61C || (cp >= 0x200B && cp <= 0x200F)
           || (cp >= 0x2028 && cp <= 0x202E) || (cp >= 0x2060 && cp <= 0x206F) || cp == 0xFEFF;
}

/* Whole names, in any script: they are what tells sessions apart. Returns out. */
static const char *shown_name(char out[MX_SESSION_NAME_MAX + 1], const char *name)
{
    size_t n = strlen(name), at = 0, n_out = 0;
    while (at < n) {
        uint32_t cp;
        size_t taken = mx_utf8_decode(name + at, n - at, &cp);
        if (is_hidden(cp) || cp == MX_UTF8_REPLACEMENT) {
            out[n_out++] = '?';
        } else {
            memcpy(out + n_out, name + at, taken);
            n_out += taken;
        }
        at += taken;
    }
    out[n_out] = '\0';
    return out;
}

int mx_cli_sessions(const char *dir, const mx_hash256 *key)
{
    session_list l;
    mx_errbuf eb = {{0}};
    if (list_all(dir, key, &l, &eb) != MX_OK) {
        mx_free(l.items);
        return failed(eb.text);
    }
    if (l.n > 0) {
        qsort(l.items, l.n, sizeof *l.items, compare_used);
    }
    printf("%-16s  %-16s  %8s  %-6s  %-6s  %-10s  %s\n", "id", "entry", "tokens", "pinned", "ttl", "unused for",
           "name");
    int64_t now_s = mx_wall_s();
    for (size_t i = 0; i < l.n; i++) {
        const mx_bookmark *b = &l.items[i].b;
        char own[65], entry[65], ttl[24], age[24], name[MX_SESSION_NAME_MAX + 1];
        mx_hash256_hex(&b->own, own);
        mx_hash256_hex(&b->entry, entry);
        print_for(ttl, b->ttl_s);
        snprintf(age, sizeof age, "%llds", (long long)(now_s > b->used_s ? now_s - b->used_s : 0));
        printf("%.16s  %.16s  %8llu  %-6s  %-6s  %-10s  %s\n", own, entry, (unsigned long long)b->n_tokens,
               b->is_pinned ? "yes" : "no", ttl, age,
               b->is_session ? shown_name(name, b->name) : "(a pinned entry)");
    }
    printf("%zu sessions and pins in %s\n", l.n, dir);
    mx_free(l.items);
    return 0;
}

/* ---- changing -------------------------------------------------------------------------------- */

static bool is_meant(const mx_bookmark *b, const char *given)
{
    enum { MIN_DIGITS = 6 };
    char hex[65];
    mx_hash256_hex(&b->own, hex);
    size_t n = strlen(given);
    return b->is_session && (strcmp(b->name, given) == 0
                             || (n >= MIN_DIGITS && n <= 64 && strncmp(hex, given, n) == 0));
}

/* MX_E_NOT_FOUND, and without a text when may_be_other. */
static mx_err find(const char *dir, const mx_hash256 *key, const char *given, bool may_be_other,
                   session *out, mx_errbuf *eb)
{
    session_list l;
    size_t n = 0;
    mx_err err = list_all(dir, key, &l, eb);
    for (size_t i = 0; err == MX_OK && i < l.n; i++) {
        if (is_meant(&l.items[i].b, given)) {
            *out = l.items[i];
            n++;
        }
    }
    mx_free(l.items);
    if (err == MX_OK && n == 0) {
        return may_be_other ? MX_E_NOT_FOUND
                            : mx_fail(eb, MX_E_NOT_FOUND, "there is no session %.256s in %s: `mtplx cache "
                                      "sessions` lists them", given, dir);
    }
    return err != MX_OK || n == 1 ? err
                                  : mx_fail(eb, MX_E_INVALID, "%zu sessions are meant by %.256s: give the id "
                                            "of one (`mtplx cache sessions`)", n, given);
}

static int change_one(const char *dir, const mx_hash256 *key, const session *s, mx_bookmark_edit *e)
{
    mx_errbuf eb = {{0}};
    const mx_hash256 *own = e->forked != NULL ? &e->forked->own : &s->b.own;
    if (mx_cold_change_bookmark(dir, key, s->folder, own, mx_bookmark_apply_edit, e, &eb) != MX_OK) {
        return failed(eb.text);
    }
    if (!e->is_done) {
        return failed(e->forked != NULL ? "there is a session of that name already"
                                        : "the session was removed meanwhile");
    }
    return 0;
}

int mx_cli_session_fork(const char *dir, const mx_hash256 *key, const char *given,
                        const char *new_name)
{
    session s;
    mx_errbuf eb = {{0}};
    if (find(dir, key, given, false, &s, &eb) != MX_OK) {
        return failed(eb.text);
    }
    mx_bookmark forked = mx_bookmark_fork(&s.b, (mx_str){new_name, strlen(new_name)});
    mx_bookmark_edit e = {.forked = &forked};
    int code = change_one(dir, key, &s, &e);
    if (code == 0) {
        char hex[65];
        mx_hash256_hex(&forked.own, hex);
        printf("forked %llu tokens, which both share, as %.16s\n", (unsigned long long)s.b.n_tokens, hex);
    }
    return code;
}

int mx_cli_session_ttl(const char *dir, const mx_hash256 *key, const char *given, uint64_t ttl_s)
{
    session s;
    mx_errbuf eb = {{0}};
    if (find(dir, key, given, false, &s, &eb) != MX_OK) {
        return failed(eb.text);
    }
    mx_bookmark_edit e = {.sets_ttl = true, .ttl_s = ttl_s};
    int code = change_one(dir, key, &s, &e);
    if (code == 0) {
        char text[24];
        print_for(text, ttl_s);
        printf(ttl_s > 0 ? "deleted when not used for %s\n" : "not deleted for its age\n", text);
    }
    return code;
}

bool mx_cli_session_pin(const char *dir, const mx_hash256 *key, const char *given, bool on,
                        int *code)
{
    session s;
    mx_errbuf eb = {{0}};
    mx_err err = find(dir, key, given, true, &s, &eb);
    if (err == MX_E_NOT_FOUND) {
        return false;
    }
    mx_bookmark_edit e = {.sets_pin = true, .is_pinned = on};
    *code = err != MX_OK ? failed(eb.text) : change_one(dir, key, &s, &e);
    if (*code == 0) {
        printf(on ? "pinned: neither the folder's limit nor its age deletes it\n" : "not pinned any more\n");
    }
    return true;
}

int mx_cli_entry_pin(const char *dir, const mx_hash256 *key, const mx_cold_entry *e, bool on)
{
    mx_errbuf eb = {{0}};
    mx_err err = on ? mx_cold_pin_entry(dir, key, e, &eb)
                    : mx_cold_remove_bookmark(dir, key, e->folder, &e->id, &eb);
    if (err == MX_E_NOT_FOUND && !on) {
        return failed("this entry is not pinned (a session's pin is taken away by the session's name)");
    }
    if (err != MX_OK) {
        return failed(eb.text);
    }
    printf(on ? "pinned: neither the folder's limit nor its age deletes it\n" : "not pinned any more\n");
    return 0;
}
