/* SPDX-License-Identifier: MIT
 *
 * The rows of `mtplx start`. Nothing about one of its options is written anywhere else.
 */
#include "cli/cli_options.h"

const mx_option_word mx_cpu_words[] = {
    {"auto", MX_CPU_AUTO}, {"portable", MX_CPU_PORTABLE}, {"avx2", MX_CPU_AVX2},
    {"avxvnni", MX_CPU_AVXVNNI}, {"avx512", MX_CPU_AVX512}, {"neon", MX_CPU_NEON}, {NULL, 0},
};
const mx_option_word mx_kv_words[] = {
    {"f16", MX_KV_F16}, {"f32", MX_KV_F32}, {"q8", MX_KV_Q8}, {NULL, 0},
};
const mx_option_word mx_act_words[] = {{"16", MX_ACT_16}, {"8", MX_ACT_8}, {NULL, 0}};
static const mx_option_word ssd_words[] = {
    {"on", MX_COLD_ON}, {"off", MX_COLD_OFF}, {"write-only", MX_COLD_WRITE_ONLY}, {NULL, 0},
};
static const mx_option_word compress_words[] = {
    {"off", MX_COLD_COMPRESS_OFF}, {"lz4", MX_COLD_COMPRESS_LZ4}, {"zstd", MX_COLD_COMPRESS_ZSTD},
    {NULL, 0},
};
static const mx_option_word restore_words[] = {
    {"auto", MX_SSD_RESTORE_AUTO}, {"always", MX_SSD_RESTORE_ALWAYS}, {NULL, 0},
};
static const mx_option_word on_words[] = {{"on", 1}, {"off", 0}, {NULL, 0}};
static const mx_option_word log_words[] = {
    {"error", MX_LOG_ERROR}, {"warn", MX_LOG_WARN}, {"info", MX_LOG_INFO}, {"debug", MX_LOG_DEBUG},
    {NULL, 0},
};

#define AT(field) offsetof(mx_settings, field)

static const mx_option rows[] = {
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
     "a file with more keys, one on a line, that only its owner can read; empty lines and lines that "
     "begin with # do not count"},
    {"admin-key", OPT_SECRET, AT(admin_key), "KEY", NULL, 0, 0, NULL,
     "the key for /admin/..., /metrics and /info; when there are API keys and no admin key, these "
     "paths are not there"},
    {"shared-prefixes", OPT_FLAG, AT(shared_prefixes), NULL, "off", 0, 0, NULL,
     "let requests with different API keys use each other's stored prefixes"},
    {"cache-key-file", OPT_TEXT, AT(cache_key_file), "FILE", NULL, 0, 0, NULL,
     "a secret that keeps the prefixes of API keys apart and with which each file of the session cache "
     "is authenticated: the folder may then be another user's, or writable by others. Without it: "
     "cache.key in the folder, made at first use, for the API keys alone"},
    {"allowed-origin", OPT_LIST, AT(allowed_origins), "ORIGIN", NULL, 0, 0, NULL,
     "a web origin beside loopback whose pages may use this server; * = any; may be repeated"},
    {"allowed-host", OPT_LIST, AT(allowed_hosts), "NAME", NULL, 0, 0, NULL,
     "a Host name beside loopback names and --host that is accepted; may be repeated"},
    {"strict-model", OPT_FLAG, AT(strict_model), NULL, "off", 0, 0, NULL,
     "refuse model names that GET /v1/models does not list"},
    {"canonical-prompts", OPT_FLAG, AT(canonical_prompts), NULL, "off", 0, 0, NULL,
     "always tokenise what the client sent, never keep the ids that were sampled"},
    {"post-commit", OPT_CHOICE, AT(post_commit), NULL, "on", 0, 0, on_words,
     "where the chat template will replay an answer in other words (without its reasoning), compute that "
     "form while nobody waits, so that the next turn finds it"},
    {"max-context", OPT_NUMBER, AT(max_context), "TOKENS", "0", 0, 1u << 24, NULL,
     "context length, at least 64; 0 = the model's own"},
    {"threads", OPT_NUMBER, AT(threads), "N", "0", 0, 1024, NULL,
     "compute threads; 0 = as many as the process may use"},
    {"cpu-level", OPT_CHOICE, AT(cpu_level), NULL, "auto", 0, 0, mx_cpu_words,
     "highest instruction set to use; the answers are the same on all"},
    {"kv-type", OPT_CHOICE, AT(kv_type), NULL, "f16", 0, 0, mx_kv_words,
     "how keys and values are stored: q8 takes about half the memory of f16, f32 twice as much"},
    {"activations", OPT_CHOICE, AT(act_type), NULL, "16", 0, 0, mx_act_words,
     "bits of the activations; 8 reads prompts faster and is less exact, and stores of the one are "
     "not used by the other"},
    {"kv-budget", OPT_SIZE, AT(kv_budget), "SIZE", "0", MX_SIZE_MIN, 0, NULL,
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
    {"ssd-session-cache-compress", OPT_CHOICE, AT(ssd_compress), NULL, "off", 0, 0, compress_words,
     "compress what is written there, without loss: zstd saves a tenth or a sixth of the space and reads "
     "slower; whatever was chosen, all is read"},
    {"ssd-session-cache-max-size", OPT_SIZE, AT(ssd_max_size), "SIZE", "0", MX_SIZE_MIN, 0, NULL,
     "limit of that folder; 0 = a tenth of what is free without it, at most 32 GiB"},
    {"ssd-session-cache-min-tokens", OPT_NUMBER, AT(ssd_min_tokens), "N", "32", 0, 1u << 24, NULL,
     "shorter prompts are not written"},
    {"ssd-session-cache-min-ms", OPT_NUMBER, AT(ssd_min_ms), "MS", "0", 0, 1u << 30, NULL,
     "prompts that are computed again in less time are not written"},
    {"ssd-session-cache-ttl", OPT_TIME, AT(ssd_ttl_s), "TIME", "0", 0, 0, NULL,
     "what was not used for so long (30d, 12h) is deleted; 0 = never"},
    {"ssd-write-budget", OPT_SIZE, AT(ssd_write_budget), "SIZE", "0", MX_SIZE_MIN, 0, NULL,
     "bytes that are written to that folder in a day (UTC); 0 = no limit"},
    {"ssd-restore", OPT_CHOICE, AT(ssd_restore), NULL, "auto", 0, 0, restore_words,
     "auto: read from disk only when that is faster than computing"},
    {"verify-restore", OPT_FLAG, AT(verify_restore), NULL, NULL, 0, 0, NULL,
     "compute every restored prefix again and compare all bits; slow, for finding faults"},
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

static const mx_option_table table = {"start", true, rows, MX_COUNT(rows)};
_Static_assert(MX_COUNT(rows) <= MX_TABLE_MAX_ROWS, "more rows than a table can have");

/* Compared as a whole with what a browser sends: what it never sends would be without effect, and nobody
 * would know why. */
static bool can_be_origin(const char *text)
{
    const char *colon = strstr(text, "://");
    return strcmp(text, "*") == 0 || strcmp(text, "null") == 0 ||
           (colon != NULL && colon > text && colon[3] != '\0' && strpbrk(colon + 3, "/?#@* \t") == NULL);
}

static mx_err check_names(const mx_settings *s, mx_errbuf *eb)
{
    for (size_t i = 0; i < s->allowed_origins.n; i++) {
        if (!can_be_origin(s->allowed_origins.items[i])) {
            return mx_fail(eb, MX_E_INVALID, "--allowed-origin is \"%.64s\"; it must be an origin as browsers "
                           "send it (such as https://example.org or http://box:3000, without a path), null, "
                           "or *", s->allowed_origins.items[i]);
        }
    }
    for (size_t i = 0; i < s->allowed_hosts.n; i++) {
        if (strpbrk(s->allowed_hosts.items[i], "/?#@ \t") != NULL) {
            return mx_fail(eb, MX_E_INVALID, "--allowed-host is \"%.64s\"; it must be a name as in "
                           "http://NAME:PORT/, with or without the port", s->allowed_hosts.items[i]);
        }
    }
    return MX_OK;
}

mx_err mx_settings_parse(mx_settings *s, int argc, char **argv, mx_errbuf *eb)
{
    mx_cpu_level level;
    *s = (mx_settings){0};
    MX_TRY(mx_table_parse(&table, s, argc, argv, eb));
    MX_TRY(mx_cli_cpu_level(s->cpu_level, &level, eb));
    MX_TRY(check_names(s, eb));
    if (s->max_context != 0 && s->max_context < MX_PAGE_TOKENS) {
        return mx_fail(eb, MX_E_INVALID, "--max-context is %llu; it must be 0 (the model's own) or at "
                       "least %d tokens: with less not even a chat template fits",
                       (unsigned long long)s->max_context, MX_PAGE_TOKENS);
    }
    return MX_OK;
}

mx_err mx_cli_cpu_level(uint64_t value, mx_cpu_level *out, mx_errbuf *eb)
{
    *out = value == MX_CPU_AUTO ? mx_cpu_best() : (mx_cpu_level)value;
    if (!mx_cpu_level_is_built(*out)) {
        return mx_fail(eb, MX_E_INVALID, "--cpu-level %s: this build has no such level; `mtplx inspect "
                       "--cpu` lists those that run here", mx_cpu_level_name(*out));
    }
    return MX_OK;
}

void mx_settings_free(mx_settings *s)
{
    mx_table_free(&table, s);
    *s = (mx_settings){0};
}

void mx_settings_help(mx_buf *out)
{
    mx_table_help(&table, out);
}

void mx_settings_json(const mx_settings *s, mx_buf *out)
{
    mx_table_json(&table, s, false, out);
}

void mx_settings_session_json(const mx_settings *s, mx_buf *out)
{
    mx_table_json(&table, s, true, out);
}
