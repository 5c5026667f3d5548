/* SPDX-License-Identifier: MIT
 *
 * One walk over the rows for each thing that is made from them. Nothing here knows a command.
 */
#include "cli/cli_table.h"

#include "base/mem.h"
#include "http/http.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_env_only(const mx_option *o)
{
    return o->kind == OPT_ENV_BOOL || o->kind == OPT_ENV_NUMBER;
}

static void env_name(const mx_option *o, char out[64])
{
    if (is_env_only(o)) {
        snprintf(out, 64, "%s", o->name);
        return;
    }
    snprintf(out, 64, "MTPLX_%s", o->name);
    for (char *c = out; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

bool mx_parse_size(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    double v = strtod(text, &end);
    static const char units[] = "KMGT";
    double factor = 1;
    if (*end != '\0') {
        const char *u = strchr(units, toupper((unsigned char)*end));
        if (u != NULL) {
            for (long i = u - units; i >= 0; i--) {
                factor *= 1024;
            }
            end++;
            if (*end == 'i') {
                end++;
            }
        }
        if (*end == 'B' || *end == 'b') {
            end++;
        }
    }
    double bytes = v * factor;
    if (*end != '\0' || errno != 0 || !(bytes < 9e18)) {
        return false;
    }
    *out = (uint64_t)bytes;
    return true;
}

mx_err mx_read_size(const char *shown, const char *text, uint64_t min, uint64_t *out,
                    mx_errbuf *eb)
{
    if (!mx_parse_size(text, out)) {
        return mx_fail(eb, MX_E_INVALID, "%s is \"%.64s\"; it must be a size such as 512M or 4G", shown,
                       text);
    }
    if (*out != 0 && *out < min) {
        return mx_fail(eb, MX_E_INVALID, "%s is \"%.64s\"; it must be 0 or at least %llu bytes: give "
                       "the unit, as in 512M or 4G", shown, text, (unsigned long long)min);
    }
    return MX_OK;
}

void mx_print_size(char *out, size_t cap, uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024 && u + 1 < MX_COUNT(units)) {
        v /= 1024;
        u++;
    }
    snprintf(out, cap, u == 0 ? "%.0f %s" : "%.1f %s", v, units[u]);
}

/* A number of seconds, minutes, hours or days. A number alone is not guessed at: who means 30 days and
 * gets 30 seconds loses the cache. */
bool mx_parse_time(const char *text, uint64_t *out)
{
    static const struct {
        char unit;
        uint64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char *end;
    errno = 0;
    unsigned long long v = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
    if (!isdigit((unsigned char)*text) || errno != 0 || (*end != '\0' && end[1] != '\0')) {
        return false;
    }
    if (*end == '\0') {
        *out = 0;
        return v == 0;
    }
    for (size_t i = 0; i < MX_COUNT(units); i++) {
        if (*end == units[i].unit && v <= INT32_MAX) {
            *out = v * units[i].seconds;
            return true;
        }
    }
    return false;
}

static bool parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*text)) {
        return false;
    }
    unsigned long long v = strtoull(text, &end, 10);
    if (*end != '\0' || errno != 0 || v < min || v > max) {
        return false;
    }
    *out = v;
    return true;
}

static bool parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"1", "on", "true", "yes"};
    static const char *const no[] = {"0", "off", "false", "no"};
    for (size_t i = 0; i < MX_COUNT(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static void choices_text(const mx_option_word *w, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = '\0';
    for (; w->word != NULL && n < cap; w++) {
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n == 0 ? "" : "|", w->word);
    }
}

static mx_err list_add(mx_string_list *l, const char *text, size_t len, mx_errbuf *eb)
{
    char *copy = mx_strndup(text, len);
    if (copy == NULL || !mx_grow((void **)&l->items, &l->cap, l->n + 1, sizeof *l->items)) {
        mx_free(copy);
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    l->items[l->n++] = copy;
    return MX_OK;
}

/* From the environment a list is separated by commas; on the command line each use adds one. */
static mx_err set_list(const mx_option *o, mx_string_list *l, const char *text, bool is_env,
                       const char *shown, mx_errbuf *eb)
{
    for (;;) {
        const char *comma = is_env ? strchr(text, ',') : NULL;
        size_t len = comma != NULL ? (size_t)(comma - text) : strlen(text);
        if (len == 0) {
            return mx_fail(eb, MX_E_INVALID, "%s has an empty %s", shown,
                           o->kind == OPT_SECRETS ? "key" : "value");
        }
        MX_TRY(list_add(l, text, len, eb));
        if (comma == NULL) {
            return MX_OK;
        }
        text = comma + 1;
    }
}

/* shown: the name the user knows this value by. */
static mx_err set_value(void *base, const mx_option *o, const char *text, bool is_env,
                        const char *shown, mx_errbuf *eb)
{
    void *to = (char *)base + o->offset;
    switch (o->kind) {
    case OPT_TEXT:
    case OPT_SECRET: {
        if (*text == '\0') {
            return mx_fail(eb, MX_E_INVALID, "%s is empty", shown);
        }
        char *copy = mx_strdup(text);
        if (copy == NULL) {
            return mx_fail(eb, MX_E_NOMEM, "out of memory");
        }
        mx_free(*(char **)to);
        *(char **)to = copy;
        return MX_OK;
    }
    case OPT_LIST:
    case OPT_SECRETS:
        return set_list(o, to, text, is_env, shown, eb);
    case OPT_FLAG:
    case OPT_ENV_BOOL:
        if (!parse_bool(text, to)) {
            return mx_fail(eb, MX_E_INVALID, "%s is \"%.64s\"; it can be %s", shown, text,
                           o->kind == OPT_FLAG ? "on or off" : "1 or 0");
        }
        return MX_OK;
    case OPT_NUMBER:
    case OPT_ENV_NUMBER:
        if (!parse_number(text, o->min, o->max, to)) {
            return mx_fail(eb, MX_E_INVALID, "%s is \"%.64s\"; it must be a whole number from "
                           "%llu to %llu", shown, text, (unsigned long long)o->min,
                           (unsigned long long)o->max);
        }
        return MX_OK;
    case OPT_SIZE:
        return mx_read_size(shown, text, o->min, to, eb);
    case OPT_TIME:
        if (!mx_parse_time(text, to)) {
            return mx_fail(eb, MX_E_INVALID, "%s is \"%.64s\"; it must be a time with its unit, such "
                           "as 12h or 30d", shown, text);
        }
        return MX_OK;
    case OPT_CHOICE:
        for (const mx_option_word *w = o->words; w->word != NULL; w++) {
            if (strcmp(text, w->word) == 0) {
                *(uint64_t *)to = w->value;
                return MX_OK;
            }
        }
        char possible[96];
        choices_text(o->words, possible, sizeof possible);
        return mx_fail(eb, MX_E_INVALID, "%s is \"%.64s\"; it can be %s", shown, text, possible);
    }
    return MX_OK;
}

/* ---- parsing --------------------------------------------------------------------------------- */

static const mx_option *find_option(const mx_option_table *t, const char *name, size_t len)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const mx_option *o = &t->rows[i];
        if (!is_env_only(o) && strlen(o->name) == len && memcmp(o->name, name, len) == 0) {
            return o;
        }
    }
    return NULL;
}

static bool is_list(const mx_option *o)
{
    return o->kind == OPT_LIST || o->kind == OPT_SECRETS;
}

static mx_err read_environment(const mx_option_table *t, void *to, mx_errbuf *eb)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const mx_option *o = &t->rows[i];
        char name[64];
        env_name(o, name);
        const char *text = getenv(name);
        /* An empty variable is an unset one, except where only the variable exists: there it is a
         * mistake that must not pass for the default. */
        if (text != NULL && (*text != '\0' || is_env_only(o))) {
            MX_TRY(set_value(to, o, text, true, name, eb));
        }
    }
    return MX_OK;
}

static void list_clear(mx_string_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        mx_free(l->items[i]);
    }
    l->n = 0;
}

static mx_err read_arguments(const mx_option_table *t, void *to, int argc, char **argv,
                             mx_errbuf *eb)
{
    bool was_given[MX_TABLE_MAX_ROWS] = {false};
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (strncmp(arg, "--", 2) != 0) {
            return mx_fail(eb, MX_E_INVALID, "\"%.64s\" is not an option; `mtplx help %s` lists them",
                           arg, t->command);
        }
        const char *name = arg + 2, *equals = strchr(name, '=');
        size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
        const mx_option *o = find_option(t, name, len);
        if (o == NULL) {
            return mx_fail(eb, MX_E_INVALID, "there is no option --%.*s; `mtplx help %s` lists them",
                           (int)mx_min_size(len, 64), name, t->command);
        }
        const char *text = equals != NULL ? equals + 1 : NULL;
        if (text == NULL && o->kind == OPT_FLAG) {
            text = "on";
        }
        if (text == NULL) {
            if (i + 1 >= argc) {
                return mx_fail(eb, MX_E_INVALID, "--%s needs a value", o->name);
            }
            text = argv[++i];
        }
        if (is_list(o) && !was_given[o - t->rows]) {
            /* replaces the environment's */
            list_clear((mx_string_list *)(void *)((char *)to + o->offset));
        }
        was_given[o - t->rows] = true;
        char shown[64];
        snprintf(shown, sizeof shown, "--%s", o->name);
        MX_TRY(set_value(to, o, text, false, shown, eb));
    }
    return MX_OK;
}

mx_err mx_table_parse(const mx_option_table *t, void *to, int argc, char **argv, mx_errbuf *eb)
{
    assert(t->n_rows <= MX_TABLE_MAX_ROWS);
    for (size_t i = 0; i < t->n_rows; i++) {
        const mx_option *o = &t->rows[i];
        if (o->initial != NULL) {
            MX_TRY(set_value(to, o, o->initial, false, o->name, eb));
        }
    }
    if (t->has_env) {
        MX_TRY(read_environment(t, to, eb));
    }
    return read_arguments(t, to, argc, argv, eb);
}

void mx_table_free(const mx_option_table *t, void *to)
{
    for (size_t i = 0; i < t->n_rows; i++) {
        const mx_option *o = &t->rows[i];
        void *at = (char *)to + o->offset;
        if (o->kind == OPT_TEXT || o->kind == OPT_SECRET) {
            mx_free(*(char **)at);
        } else if (is_list(o)) {
            mx_string_list *l = at;
            list_clear(l);
            mx_free(l->items);
        }
    }
}

/* ---- showing --------------------------------------------------------------------------------- */

/* Words of `text` in lines of at most 90 columns, indented by 6. */
static void wrap(mx_buf *out, const char *text)
{
    size_t column = 0;
    while (*text != '\0') {
        size_t n = strcspn(text, " ");
        if (column == 0 || column + n + 1 > 90) {
            mx_buf_str(out, column == 0 ? "      " : "\n      ");
            column = 6;
        } else {
            mx_buf_char(out, ' ');
            column++;
        }
        mx_buf_append(out, text, n);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    mx_buf_char(out, '\n');
}

void mx_table_help(const mx_option_table *t, mx_buf *out)
{
    bool in_env = false;
    for (size_t i = 0; i < t->n_rows; i++) {
        const mx_option *o = &t->rows[i];
        char env[64], possible[96];
        env_name(o, env);
        if (is_env_only(o)) {
            if (!in_env) {
                mx_buf_str(out, "\nEnvironment only:\n");
                in_env = true;
            }
            mx_buf_printf(out, "  %s (default %s)\n", o->name, o->initial);
            wrap(out, o->help);
            continue;
        }
        mx_buf_printf(out, "  --%s", o->name);
        if (o->kind == OPT_CHOICE) {
            choices_text(o->words, possible, sizeof possible);
            mx_buf_printf(out, " %s", possible);
        } else if (o->metavar != NULL) {
            mx_buf_printf(out, " %s", o->metavar);
        }
        bool has_default = o->initial != NULL && o->kind != OPT_FLAG && strcmp(o->initial, "0") != 0;
        if (has_default || t->has_env) {
            mx_buf_printf(out, "  (%s%s%s%s%s)", has_default ? "default " : "",
                          has_default ? o->initial : "", has_default && t->has_env ? "; " : "",
                          t->has_env ? "or " : "", t->has_env ? env : "");
        }
        mx_buf_char(out, '\n');
        wrap(out, o->help);
    }
}

static void json_value(const void *from, const mx_option *o, mx_buf *out)
{
    const void *at = (const char *)from + o->offset;
    switch (o->kind) {
    case OPT_TEXT: {
        const char *text = *(char *const *)at;
        if (text == NULL) {
            mx_buf_str(out, "null");
        } else {
            mx_http_json_string(out, text, strlen(text));
        }
        return;
    }
    case OPT_LIST: {
        const mx_string_list *l = at;
        mx_buf_char(out, '[');
        for (size_t i = 0; i < l->n; i++) {
            mx_buf_str(out, i == 0 ? "" : ",");
            mx_http_json_string(out, l->items[i], strlen(l->items[i]));
        }
        mx_buf_char(out, ']');
        return;
    }
    case OPT_SECRET:
        mx_buf_str(out, *(char *const *)at == NULL ? "null" : "\"set\"");
        return;
    case OPT_SECRETS:
        mx_buf_printf(out, "\"%zu set\"", ((const mx_string_list *)at)->n);
        return;
    case OPT_FLAG:
        mx_buf_str(out, *(const bool *)at ? "true" : "false");
        return;
    case OPT_ENV_BOOL:
        mx_buf_str(out, *(const bool *)at ? "1" : "0");
        return;
    case OPT_NUMBER:
    case OPT_ENV_NUMBER:
    case OPT_SIZE:
    case OPT_TIME:
        mx_buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at);
        return;
    case OPT_CHOICE:
        for (const mx_option_word *w = o->words; w->word != NULL; w++) {
            if (w->value == *(const uint64_t *)at) {
                mx_buf_printf(out, "\"%s\"", w->word);
                return;
            }
        }
        mx_buf_str(out, "null");
        return;
    }
}

void mx_table_json(const mx_option_table *t, const void *from, bool env_only, mx_buf *out)
{
    bool is_first = true;
    mx_buf_char(out, '{');
    for (size_t i = 0; i < t->n_rows; i++) {
        const mx_option *o = &t->rows[i];
        if (is_env_only(o) == env_only) {
            mx_buf_printf(out, is_first ? "\"%s\":" : ",\"%s\":", o->name);
            json_value(from, o, out);
            is_first = false;
        }
    }
    mx_buf_char(out, '}');
}
