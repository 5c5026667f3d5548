/* SPDX-License-Identifier: MIT
 *
 * The server as one struct, and the order in which its parts come and go.
 *
 *   settings -> signals -> api -> http (answers 503 "loading") -> pool -> model -> engine -> ready
 *
 * Going down, everything that feeds a part ends before the part does: no new connections, no new
 * requests, answers drain or are cancelled, then the HTTP server, the engine (which flushes the
 * cold tier), the model. The HTTP server starts before the model loads, so that a health check sees
 * "loading" instead of a refused connection, and a taken port is reported before seconds are spent.
 */
#include "cli/cli_start.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli_keys.h"
#include "cli/cli_machine.h"
#include "cli/cli_options.h"
#include "cli/cli_signals.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_MODEL_FILE "SmolLM2-135M-Instruct.Q4_1.gguf"

enum { CANCEL_WAIT_MS = 2000, PATH_CAP = 1024 };

typedef struct server {
    mx_settings settings;
    char model_path[PATH_CAP];
    char cache_dir[PATH_CAP];
    char fingerprint_dir[PATH_CAP];
    mx_hash256 cache_key;
    mx_cli_auth auth;
    mx_buf options_json, session_json;
    mx_signals *signals;
    mx_api *api;
    mx_http *http;
    mx_pool *pool;
    mx_model *model;
    mx_engine *engine;
} server;

void mx_default_cache_dir(char *out, unsigned long cap, const char *home)
{
    snprintf(out, cap, "%s/.mtplx/session_cache", home);
}

/* ---- checks before anything starts ----------------------------------------------------------- */

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 || strcmp(host, "[::1]") == 0
           || strncmp(host, "127.", 4) == 0;
}

static mx_err check_host(const mx_settings *s, mx_errbuf *eb)
{
    if (is_loopback(s->host) || s->api_keys.n > 0 || s->api_key_file != NULL) {
        return MX_OK;
    }
    return mx_fail(eb, MX_E_INVALID, "--host %.64s would let everybody on the network use this "
                   "server. Set a key: MTPLX_API_KEY=... mtplx start --host %.64s (or --api-key "
                   "KEY), or leave --host out to serve this machine only", s->host, s->host);
}

mx_err mx_cli_find_model(const char *given, char *out, unsigned long cap, mx_errbuf *eb)
{
    struct stat st;
    if (given != NULL) {
        snprintf(out, cap, "%s", given);
        if (stat(out, &st) != 0) {
            return mx_fail_errno(eb, MX_E_NOT_FOUND, errno, "--model %.200s", out);
        }
        return MX_OK;
    }
    const char *home = mx_machine_home();
    if (home == NULL) {
        return mx_fail(eb, MX_E_NOT_FOUND, "there is no home folder to look for the default model "
                       "in; name a model: --model FILE.gguf");
    }
    snprintf(out, cap, "%s/.mtplx/models/" DEFAULT_MODEL_FILE, home);
    if (stat(out, &st) != 0) {
        return mx_fail(eb, MX_E_NOT_FOUND, "the default model is not there (%.200s). `make start` "
                       "in the source folder downloads it, or name one: --model FILE.gguf", out);
    }
    return MX_OK;
}

void mx_cli_fingerprint_dir(char *out, unsigned long cap, const char *home)
{
    snprintf(out, cap, "%s/.mtplx", home);
    if (mkdir(out, 0700) != 0 && errno != EEXIST) {
        mx_log(MX_LOG_WARN, "cannot make %s: %s", out, strerror(errno));
    }
    snprintf(out, cap, "%s/.mtplx/fingerprints", home);
}

static mx_err find_folders(server *s, mx_errbuf *eb)
{
    const char *home = mx_machine_home();
    if (s->settings.ssd_dir != NULL) {
        snprintf(s->cache_dir, sizeof s->cache_dir, "%s", s->settings.ssd_dir);
    } else if (s->settings.ssd_mode != MX_COLD_OFF) {
        if (home == NULL) {
            return mx_fail(eb, MX_E_NOT_FOUND, "there is no home folder for the session cache; use "
                           "--ssd-session-cache-dir DIR or --ssd-session-cache off");
        }
        mx_default_cache_dir(s->cache_dir, sizeof s->cache_dir, home);
    }
    /* The cached fingerprint saves hashing the model file at each start. With the cache off no file
     * is touched at all. */
    if (home != NULL && s->settings.ssd_mode != MX_COLD_OFF) {
        mx_cli_fingerprint_dir(s->fingerprint_dir, sizeof s->fingerprint_dir, home);
    }
    return MX_OK;
}

/* Replaces "as the machine has it" by the values found, so that GET /info shows those in force. */
static mx_err size_up(mx_settings *o, const char *model_path, mx_errbuf *eb)
{
    if (o->threads == 0) {
        o->threads = mx_machine_cores();
    }
    uint64_t available = mx_machine_free_bytes("");
    if (available != 0 && o->kv_budget > available) {
        char asked[32], there[32];
        mx_print_size(asked, sizeof asked, o->kv_budget);
        mx_print_size(there, sizeof there, available);
        mx_log(MX_LOG_WARN, "--kv-budget: %s are more than the %s of memory that are free: when "
               "the bank fills them the system may end this process", asked, there);
    }
    if (o->kv_budget == 0) {
        /* The model is loaded later and takes about its file's size. */
        uint64_t file = mx_gguf_files_bytes(model_path);
        if (available == 0) {
            return mx_fail(eb, MX_E_NOT_FOUND, "cannot find out how much memory is free; say how "
                           "much the session bank may use: --kv-budget 2G");
        }
        o->kv_budget = available > file ? (available - file) / 2 : 0;
    }
    return MX_OK;
}

/* What the command line and the environment alone can be blamed for. */
static mx_err read_settings(mx_settings *s, int argc, char **argv, mx_errbuf *eb)
{
    MX_TRY(mx_settings_parse(s, argc, argv, eb));
    MX_TRY(mx_cli_check_keys(s, eb));
    return check_host(s, eb);
}

static mx_err prepare(server *s, mx_errbuf *eb)
{
    mx_log_set_level((mx_log_level)s->settings.log_level);
    MX_TRY(mx_cli_read_api_keys(&s->settings, eb));
    MX_TRY(mx_cli_find_model(s->settings.model, s->model_path, sizeof s->model_path, eb));
    MX_TRY(find_folders(s, eb));
    MX_TRY(size_up(&s->settings, s->model_path, eb));
    MX_TRY(mx_cli_cache_key(&s->settings, s->cache_dir, &s->cache_key, eb));
    MX_TRY(mx_cli_read_auth(s->settings.cache_key_file, &s->auth, eb));
    mx_settings_json(&s->settings, &s->options_json);
    mx_settings_session_json(&s->settings, &s->session_json);
    if (s->options_json.failed || s->session_json.failed) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    return MX_OK;
}

/* ---- up -------------------------------------------------------------------------------------- */

static const char *const *strings(const mx_string_list *l)
{
    return (const char *const *)l->items;
}

static const mx_hash256 *auth_key(const server *s)
{
    return s->auth.is_on ? &s->auth.object_key : NULL;
}

static mx_err start_http(server *s, mx_errbuf *eb)
{
    const mx_settings *o = &s->settings;
    static const char *const modes[] = {
        [MX_COLD_OFF] = "off", [MX_COLD_ON] = "on", [MX_COLD_WRITE_ONLY] = "write-only",
    };
    mx_api_config api = {
        .strict_model = o->strict_model,
        .canonical_prompts = o->canonical_prompts,
        .post_commit = o->post_commit != 0,
        .api_keys = strings(&o->api_keys),
        .n_api_keys = o->api_keys.n,
        .shared_prefixes = o->shared_prefixes,
        .cache_key = &s->cache_key,
        .model_path = s->model_path,
        .options_json = s->options_json.ptr,
        .session_json = s->session_json.ptr,
        .cache_dir = o->ssd_mode == MX_COLD_OFF ? NULL : s->cache_dir,
        .cache_auth_key = auth_key(s),
        .cache_mode = modes[o->ssd_mode],
    };
    MX_TRY(mx_api_create(&s->api, &api, eb));
    mx_http_config http = {
        .host = o->host,
        .port = (uint16_t)o->port,
        .origins = strings(&o->allowed_origins),
        .n_origins = o->allowed_origins.n,
        .hosts = strings(&o->allowed_hosts),
        .n_hosts = o->allowed_hosts.n,
        .api_keys = strings(&o->api_keys),
        .n_api_keys = o->api_keys.n,
        .open_paths = mx_api_open_paths,
        .n_open_paths = mx_api_n_open_paths,
        .is_admin_path = mx_api_is_admin_path,
        .error_words = mx_api_error_words,
        .admin_key = o->admin_key,
        .handler = mx_api_handle,
        .handler_arg = s->api,
    };
    return mx_http_start(&s->http, &http, eb);
}

static mx_err load_model(server *s, mx_errbuf *eb)
{
    const mx_settings *o = &s->settings;
    mx_cpu_level level;
    MX_TRY(mx_cli_cpu_level(o->cpu_level, &level, eb));
    MX_TRY(mx_pool_create(&s->pool, (unsigned)o->threads, eb));
    mx_model_options model = {
        .path = s->model_path,
        .kv_type = (mx_kv_type)o->kv_type,
        .act_type = (mx_act_type)o->act_type,
        .max_batch_rows = (uint32_t)(o->prefill_chunk + o->max_batch),
        .max_logit_rows = (uint32_t)o->max_batch,
        .n_ctx = (uint32_t)o->max_context,
        .cpu_level = level,
        .root_key = s->auth.is_on ? &s->auth.root_key : NULL,
        .fingerprint_cache_dir = s->fingerprint_dir[0] == '\0' ? NULL : s->fingerprint_dir,
    };
    uint64_t begin = mx_now_us();
    MX_TRY(mx_model_load(&s->model, &model, s->pool, eb));
    const mx_model_config *c = mx_model_get_config(s->model);
    char name[128];
    if (c->n_mtp_layers > 0) {
        mx_log(MX_LOG_INFO, "model: mtp_layers=%u mtp_params=%llu, for multi-token prediction: not "
               "loaded, not used", c->n_mtp_layers, (unsigned long long)c->n_mtp_params);
    }
    mx_log(MX_LOG_INFO, "model: name=%s architecture=%s params=%llu ctx=%u cpu=%s threads=%u "
           "load_ms=%.0f",
           mx_log_safe(name, sizeof name, c->name, strlen(c->name)), c->architecture,
           (unsigned long long)c->n_params, c->n_ctx, mx_model_kern(s->model)->name,
           (unsigned)o->threads,
           (double)(mx_now_us() - begin) / 1e3);
    return MX_OK;
}

static mx_err start_engine(server *s, mx_errbuf *eb)
{
    const mx_settings *o = &s->settings;
    mx_engine_config engine = {
        .model = s->model,
        .kv_budget_bytes = o->kv_budget,
        .max_running = o->max_batch,
        .max_queued = o->max_queued,
        .prefill_chunk = (uint32_t)o->prefill_chunk,
        .bank = {
            .near_prefix_gap = (uint32_t)o->near_prefix_gap,
            .lazy_snapshot = o->lazy_snapshot,
            .settle_snapshot = o->snapshot_settle,
            .approximate_restore = !o->boundary_true_restore,
        },
        .cold_dir = s->cache_dir,
        .cold_mode = (mx_cold_mode)o->ssd_mode,
        .cold_auth_key = auth_key(s),
        .cold_compress = (mx_cold_compress)o->ssd_compress,
        .cold_max_bytes = o->ssd_max_size,
        .cold_min_tokens = (uint32_t)o->ssd_min_tokens,
        .cold_min_us = o->ssd_min_ms * 1000,
        .cold_ttl_s = o->ssd_ttl_s,
        .cold_write_budget = o->ssd_write_budget,
        .verify_restore = o->verify_restore,
        .ssd_restore = (mx_ssd_restore)o->ssd_restore,
    };
    MX_TRY(mx_engine_start(&s->engine, &engine, eb));
    char budget[32];
    mx_print_size(budget, sizeof budget, o->kv_budget);
    mx_log(MX_LOG_INFO, "engine: kv_budget=\"%s\" max_tokens=%zu ssd_session_cache=%s dir=%s",
           budget,
           mx_engine_max_tokens(s->engine),
           o->ssd_mode == MX_COLD_OFF ? "off" : o->ssd_mode == MX_COLD_ON ? "on" : "write-only",
           o->ssd_mode == MX_COLD_OFF ? "-" : s->cache_dir);
    mx_api_set_ready(s->api, s->model, s->engine);
    return MX_OK;
}

/* Where conversations are kept, as far as it is known: the folder may hang. */
static void print_kept(const server *s)
{
    enum { LOOK_MS = 1000 };
    mx_cold_stats cold = {0};
    mx_cold *c = mx_engine_cold(s->engine);
    if (c == NULL) {
        printf("Conversations are kept in RAM only, until the server ends.\n");
        return;
    }
    for (int ms = 0; !cold.is_looked_at && ms < LOOK_MS; ms += 5) {
        usleep(ms > 0 ? 5000 : 0);
        mx_cold_get_stats(c, &cold);
    }
    if (cold.is_degraded) {
        printf("Conversations are kept in RAM only: %s (--ssd-session-cache-dir DIR: another folder; "
               "this one is tried again every 30 s).\n", cold.degraded_reason);
    } else {
        printf("Conversations are kept in %s%s (--ssd-session-cache off: not at all; "
               "`mtplx cache rm --all` removes them).\n", s->cache_dir,
               cold.is_looked_at ? "" : ", which has not answered yet");
    }
}

/* What to try next, on stdout; a line that works when pasted. */
static void print_ready(const server *s)
{
    const char *host = s->settings.host;
    bool is_any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    bool is_v6 = strchr(host, ':') != NULL && host[0] != '[';
    char url[160];
    snprintf(url, sizeof url, is_v6 && !is_any ? "http://[%.100s]:%u" : "http://%.100s:%u",
             is_any ? "127.0.0.1" : host, mx_http_port(s->http));
    printf("mtplx " MX_VERSION " serves %s at %s\n\nTry:\n  curl %s/v1/chat/completions "
           "-H 'Content-Type: application/json' %s-d '{\"model\":\"mtplx\",\"messages\":"
           "[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":100}'\n\n",
           mx_model_get_config(s->model)->name, url, url,
           s->settings.api_keys.n > 0 ? "-H \"Authorization: Bearer $MTPLX_API_KEY\" " : "");
    print_kept(s);
    printf("Stop with Ctrl-C.\n");
    fflush(stdout);
}

/* ---- down ------------------------------------------------------------------------------------ */

static void wait_idle(server *s, uint64_t ms)
{
    uint64_t until = mx_now_us() + ms * 1000;
    while (mx_http_n_active(s->http) > 0 && mx_now_us() < until) {
        usleep(5000);
    }
}

/* Every part may be absent: this is also the way out of a start that failed. */
static void take_down(server *s)
{
    if (s->http != NULL) {
        mx_http_quiesce(s->http);
        mx_api_stop(s->api);
        wait_idle(s, s->settings.drain_s * 1000);
        mx_api_cancel_all(s->api);
        wait_idle(s, CANCEL_WAIT_MS);
        mx_http_stop(s->http);
    }
    if (s->engine != NULL) {
        mx_engine_stop(s->engine, 0, s->settings.flush_s * 1000000);
        mx_engine_destroy(s->engine);
    }
    mx_api_destroy(s->api);
    mx_model_destroy(s->model);
    mx_pool_destroy(s->pool);
    mx_signals_destroy(s->signals);
    mx_buf_free(&s->options_json);
    mx_buf_free(&s->session_json);
    mx_settings_free(&s->settings);
}

int mx_cli_start(int argc, char **argv)
{
    server s = {0};
    mx_errbuf eb = {0};
    mx_err e = read_settings(&s.settings, argc, argv, &eb);
    int code = e == MX_OK ? 1 : 2;
    if (e == MX_OK) {
        e = prepare(&s, &eb);
    }
    if (e == MX_OK) {
        e = mx_signals_create(&s.signals, &eb);
    }
    if (e == MX_OK) {
        e = start_http(&s, &eb);
    }
    if (e == MX_OK) {
        e = load_model(&s, &eb);
    }
    if (e == MX_OK) {
        e = start_engine(&s, &eb);
    }
    if (e == MX_OK) {
        mx_signals_set_clean_end(s.signals, true);
        print_ready(&s);
        int sig = mx_signals_wait(s.signals);
        mx_log(MX_LOG_INFO, "shutdown: signal=%d active=%zu", sig, mx_http_n_active(s.http));
        code = 0;
    } else {
        char text[sizeof eb.text];
        mx_log(MX_LOG_ERROR, "%s", mx_log_safe(text, sizeof text, eb.text, strlen(eb.text)));
        s.settings.drain_s = 0;
    }
    take_down(&s);
    return code;
}
