/* SPDX-License-Identifier: MIT
 *
 * The option table. A row says everything about a setting: its name on the command line, its
 * environment variable (derived from the name), its kind, default, range and help text; nothing
 * about an option is written anywhere else. Values go to their place in mx_settings by offset.
 */
#include "cli/cli_options.h"

#include "base/mem.h"
#include "http/http.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum option_kind {
    OPT_TEXT, OPT_SECRET, OPT_LIST, OPT_SECRETS, OPT_FLAG, OPT_NUMBER, OPT_SIZE, OPT_CHOICE,
    OPT_ENV_BOOL, OPT_ENV_NUMBER /* environment only, the name is the variable */
} option_kind;

typedef struct choice_word {
    const char *word;
    uint64_t value;
} choice_word;

typedef struct option {
    const char *name;      /* without dashes */
    option_kind kind;
    size_t offset;
    const char *metavar;
    const char *initial;   /* default as text; NULL = unset */
    uint64_t min, max;     /* numbers */
    const choice_word *words;
    const char *help;
} option;

static const choice_word cpu_words[] = {
    {"auto", MX_CPU_AUTO}, {"portable", MX_CPU_PORTABLE}, {"avx2", MX_CPU_AVX2},
    {"avx512", MX_CPU_AVX512}, {"neon", MX_CPU_NEON}, {NULL, 0},
};
static const choice_word kv_words[] = {{"f16", MX_KV_F16}, {"f32", MX_KV_F32}, {NULL, 0}};
static const choice_word ssd_words[] = {
    {"on", MX_COLD_ON}, {"off", MX_COLD_OFF}, {"write-only", MX_COLD_WRITE_ONLY}, {NULL, 0},
};
static const choice_word restore_words[] = {
    {"auto", MX_SSD_RESTORE_AUTO}, {"always", MX_SSD_RESTORE_ALWAYS}, {NULL, 0},
};
static const choice_word log_words[] = {
    {"error", MX_LOG_ERROR}, {"warn", MX_LOG_WARN}, {"info", MX_LOG_INFO}, {"debug", MX_LOG_DEBUG},
    {NULL, 0},
};

#define AT(field) offsetof(mx_settings, field)

static const option table[] = {
    {"model", OPT_TEXT, AT(model), "FILE", NULL, 0, 0, NULL,
     "GGUF file to serve; without it the default model in ~/.mtplx/models"},
    {"host", OPT_TEXT, AT(host), "ADDRESS", "127.0.0.1", 0, 0, NULL,
     "address to listen on; anything but loopback needs --api-key"},
    {"port", OPT_NUMBER, AT(port), "N", "8000", 0, 65535, NULL,
     "port to listen on; 0 takes any free one"},
    {"api-key", OPT_SECRETS, AT(api_keys), "KEY", NULL, 0, 0, NULL,
     "a key that clients must send; may be given several times, or separated by commas in the "
     "environment variable (which other users of the machine cannot see)"},
    {"api-key-file", OPT_TEXT, AT(api_key_file), "FILE", NULL, 0, 0, NULL,
     "a file with more keys, one on a line; empty lines and lines that begin with # do not count"},
    {"admin-key", OPT_SECRET, AT(admin_key), "KEY", NULL, 0, 0, NULL,
     "the key for /admin/..., /metrics and /info; when there are API keys and no admin key, these "
     "paths are not there"},
    {"shared-prefixes", OPT_FLAG, AT(shared_prefixes), NULL, "off", 0, 0, NULL,
     "let requests with different API keys use each other's stored prefixes"},
    {"cache-key-file", OPT_TEXT, AT(cache_key_file), "FILE", NULL, 0, 0, NULL,
     "the secret that keeps the prefixes of API keys apart; default: cache.key in the folder of the "
     "session cache, made at first use"},
    {"allowed-origin", OPT_LIST, AT(allowed_origins), "ORIGIN", NULL, 0, 0, NULL,
     "a web origin beside loopback whose pages may use this server; * = any; may be repeated"},
    {"allowed-host", OPT_LIST, AT(allowed_hosts), "NAME", NULL, 0, 0, NULL,
     "a Host name beside loopback names and --host that is accepted; may be repeated"},
    {"strict-model", OPT_FLAG, AT(strict_model), NULL, "off", 0, 0, NULL,
     "refuse model names that GET /v1/models does not list"},
    {"canonical-prompts", OPT_FLAG, AT(canonical_prompts), NULL, "off", 0, 0, NULL,
     "always tokenise what the client sent, never keep the ids that were sampled"},
    {"max-context", OPT_NUMBER, AT(max_context), "TOKENS", "0", 0, 1u << 24, NULL,
     "context length; 0 = the model's own"},
    {"threads", OPT_NUMBER, AT(threads), "N", "0", 0, 1024, NULL,
     "compute threads; 0 = as many as the process may use"},
    {"cpu-level", OPT_CHOICE, AT(cpu_level), NULL, "auto", 0, 0, cpu_words,
     "highest instruction set to use; the answers are the same on all"},
    {"kv-type", OPT_CHOICE, AT(kv_type), NULL, "f16", 0, 0, kv_words,
     "how keys and values are stored"},
    {"kv-budget", OPT_SIZE, AT(kv_budget), "SIZE", "0", 0, 0, NULL,
     "memory for the pages of running requests and of the session bank; 0 = half of what is free"},
    {"max-batch", OPT_NUMBER, AT(max_batch), "N", "16", 1, 256, NULL,
     "requests that are computed together"},
    {"max-queued", OPT_NUMBER, AT(max_queued), "N", "256", 1, 100000, NULL,
     "requests that may wait; beyond that 503"},
    {"prefill-chunk", OPT_NUMBER, AT(prefill_chunk), "TOKENS", "512", 1, 8192, NULL,
     "prompt tokens per pass"},
    {"ssd-session-cache", OPT_CHOICE, AT(ssd_mode), NULL, "on", 0, 0, ssd_words,
     "keep computed prompts on disk, so that they are found again after a restart"},
    {"ssd-session-cache-dir", OPT_TEXT, AT(ssd_dir), "DIR", NULL, 0, 0, NULL,
     "where; default ~/.mtplx/session_cache"},
    {"ssd-session-cache-max-size", OPT_SIZE, AT(ssd_max_size), "SIZE", "0", 0, 0, NULL,
     "limit of that folder; 0 = a tenth of the free space, at most 32 GiB"},
    {"ssd-session-cache-min-tokens", OPT_NUMBER, AT(ssd_min_tokens), "N", "32", 0, 1u << 24, NULL,
     "shorter prompts are not written"},
    {"ssd-restore", OPT_CHOICE, AT(ssd_restore), NULL, "auto", 0, 0, restore_words,
     "auto: read from disk only when that is faster than computing"},
    {"shutdown-drain", OPT_NUMBER, AT(drain_s), "SECONDS", "10", 0, 3600, NULL,
     "how long running answers may take to end at shutdown"},
    {"shutdown-flush", OPT_NUMBER, AT(flush_s), "SECONDS", "30", 0, 3600, NULL,
     "how long writing the session cache may take at shutdown"},
    {"log-level", OPT_CHOICE, AT(log_level), NULL, "info", 0, 0, log_words, "what to log"},
    {"MTPLX_SESSION_LAZY_SNAPSHOT", OPT_ENV_BOOL, AT(lazy_snapshot), NULL, "1", 0, 0, NULL,
     "1: a snapshot takes references; 0: it copies its last page at once"},
    {"MTPLX_SESSION_SNAPSHOT_SETTLE", OPT_ENV_BOOL, AT(snapshot_settle), NULL, "0", 0, 0, NULL,
     "1: the last page is copied right after a snapshot, so that no append waits for it"},
    {"MTPLX_SESSION_NEAR_PREFIX_MAX_TOKEN_GAP", OPT_ENV_NUMBER, AT(near_prefix_gap), NULL, "8", 0,
     4096, NULL, "an entry at most so much longer than the match is called near_prefix; 0 = never"},
    {"MTPLX_SESSION_BOUNDARY_TRUE_RESTORE", OPT_ENV_BOOL, AT(boundary_true_restore), NULL, "1", 0,
     0, NULL, "for models with recurrent layers: 1 restores at stored boundaries only"},
};

static bool is_env_only(const option *o)
{
    return o->kind == OPT_ENV_BOOL || o->kind == OPT_ENV_NUMBER;
}

static void env_name(const option *o, char out[64])
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

static void choices_text(const choice_word *w, char *out, size_t cap)
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
static mx_err set_list(const option *o, mx_string_list *l, const char *text, bool is_env,
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
static mx_err set_value(mx_settings *s, const option *o, const char *text, bool is_env,
                        const char *shown, mx_errbuf *eb)
{
    void *to = (char *)s + o->offset;
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
        if (!mx_parse_size(text, to)) {
            return mx_fail(eb, MX_E_INVALID, "%s is \"%.64s\"; it must be a size such as 512M or "
                           "4G",
                           shown, text);
        }
        return MX_OK;
    case OPT_CHOICE:
        for (const choice_word *w = o->words; w->word != NULL; w++) {
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

static const option *find_option(const char *name, size_t len)
{
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        if (!is_env_only(&table[i]) && strlen(table[i].name) == len
            && memcmp(table[i].name, name, len) == 0)
        {
            return &table[i];
        }
    }
    return NULL;
}

static bool is_list(const option *o)
{
    return o->kind == OPT_LIST || o->kind == OPT_SECRETS;
}

static mx_err read_environment(mx_settings *s, mx_errbuf *eb)
{
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        char name[64];
        env_name(&table[i], name);
        const char *text = getenv(name);
        /* An empty variable is an unset one, except where only the variable exists: there it is a
         * mistake that must not pass for the default. */
        if (text != NULL && (*text != '\0' || is_env_only(&table[i]))) {
            MX_TRY(set_value(s, &table[i], text, true, name, eb));
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

static mx_err read_arguments(mx_settings *s, int argc, char **argv, mx_errbuf *eb)
{
    bool was_given[MX_COUNT(table)] = {false};
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (strncmp(arg, "--", 2) != 0) {
            return mx_fail(eb, MX_E_INVALID, "\"%.64s\" is not an option; `mtplx help start` "
                           "lists them",
                           arg);
        }
        const char *name = arg + 2, *equals = strchr(name, '=');
        size_t len = equals != NULL ? (size_t)(equals - name) : strlen(name);
        const option *o = find_option(name, len);
        if (o == NULL) {
            return mx_fail(eb, MX_E_INVALID, "there is no option --%.*s; `mtplx help start` lists "
                           "them",
                           (int)mx_min_size(len, 64), name);
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
        if (is_list(o) && !was_given[o - table]) {
            /* replaces the environment's */
            list_clear((mx_string_list *)(void *)((char *)s + o->offset));
        }
        was_given[o - table] = true;
        char shown[64];
        snprintf(shown, sizeof shown, "--%s", o->name);
        MX_TRY(set_value(s, o, text, false, shown, eb));
    }
    return MX_OK;
}

mx_err mx_settings_parse(mx_settings *s, int argc, char **argv, mx_errbuf *eb)
{
    *s = (mx_settings){0};
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        if (table[i].initial != NULL) {
            MX_TRY(set_value(s, &table[i], table[i].initial, false, table[i].name, eb));
        }
    }
    MX_TRY(read_environment(s, eb));
    return read_arguments(s, argc, argv, eb);
}

void mx_settings_free(mx_settings *s)
{
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        void *at = (char *)s + table[i].offset;
        if (table[i].kind == OPT_TEXT || table[i].kind == OPT_SECRET) {
            mx_free(*(char **)at);
        } else if (is_list(&table[i])) {
            mx_string_list *l = at;
            list_clear(l);
            mx_free(l->items);
        }
    }
    *s = (mx_settings){0};
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

void mx_settings_help(mx_buf *out)
{
    bool in_env = false;
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        const option *o = &table[i];
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
        if (o->initial != NULL && o->kind != OPT_FLAG && strcmp(o->initial, "0") != 0) {
            mx_buf_printf(out, "  (default %s; or %s)\n", o->initial, env);
        } else {
            mx_buf_printf(out, "  (or %s)\n", env);
        }
        wrap(out, o->help);
    }
}

static void json_value(const mx_settings *s, const option *o, mx_buf *out)
{
    const void *at = (const char *)s + o->offset;
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
        mx_buf_printf(out, "%llu", (unsigned long long)*(const uint64_t *)at);
        return;
    case OPT_CHOICE:
        for (const choice_word *w = o->words; w->word != NULL; w++) {
            if (w->value == *(const uint64_t *)at) {
                mx_buf_printf(out, "\"%s\"", w->word);
                return;
            }
        }
        mx_buf_str(out, "null");
        return;
    }
}

static void json_object_of(const mx_settings *s, bool env_only, mx_buf *out)
{
    bool is_first = true;
    mx_buf_char(out, '{');
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        if (is_env_only(&table[i]) == env_only) {
            mx_buf_printf(out, is_first ? "\"%s\":" : ",\"%s\":", table[i].name);
            json_value(s, &table[i], out);
            is_first = false;
        }
    }
    mx_buf_char(out, '}');
}

void mx_settings_json(const mx_settings *s, mx_buf *out)
{
    json_object_of(s, false, out);
}

void mx_settings_session_json(const mx_settings *s, mx_buf *out)
{
    json_object_of(s, true, out);
}
