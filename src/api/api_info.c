/* SPDX-License-Identifier: MIT
 *
 * The GET endpoints: health, models, info, and the short page at /. They answer from snapshots and
 * never wait for the engine. While the model loads, the model list answers (pickers fill early) and
 * health says 503.
 */
#include "api/api_state.h"

#include "base/clock.h"

#include <stdio.h>

static void field_str(mx_buf *b, const char *name, const char *value)
{
    mx_buf_printf(b, "\"%s\":", name);
    mx_http_json_string(b, value, strlen(value));
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static void stem_of(char *out, size_t cap, const char *path)
{
    snprintf(out, cap, "%s", file_name(path));
    size_t n = strlen(out);
    if (n > 5 && strcmp(out + n - 5, ".gguf") == 0) {
        out[n - 5] = '\0';
    }
}

bool mx_api_is_listed(const mx_api *a, mx_str name)
{
    char stem[256];
    stem_of(stem, sizeof stem, a->cfg.model_path);
    return mx_str_eq(name, MX_STR("mtplx")) || mx_str_eq(name, mx_str_of(stem))
           || mx_str_eq(name, mx_str_of(file_name(a->cfg.model_path)));
}

void mx_api_get_health(mx_api *a, mx_http_exchange *x)
{
    mx_problem p = {0};
    if (a->phase == MX_API_LOADING) {
        mx_problem_set(&p, 503, "loading", NULL, "the model is loading; try again in a moment");
    } else if (a->phase == MX_API_STOPPING) {
        mx_problem_set(&p, 503, "stopping", NULL, "the server is shutting down");
    }
    if (p.status != 0) {
        p.retry_after_s = 1;
        mx_api_reply_problem(x, &p);
        return;
    }
    mx_buf b = {0};
    mx_buf_str(&b, "{\"status\":\"ok\"}\n");
    mx_api_reply_json(x, 200, &b);
}

void mx_api_get_root(mx_api *a, mx_http_exchange *x)
{
    mx_buf b = {0};
    static const char *const phases[] = {"loading", "ok", "stopping"};
    mx_buf_char(&b, '{');
    field_str(&b, "name", "mtplx");
    mx_buf_char(&b, ',');
    field_str(&b, "version", MX_VERSION);
    mx_buf_char(&b, ',');
    field_str(&b, "status", phases[a->phase]);
    mx_buf_str(&b, ",\"endpoints\":[\"POST /v1/chat/completions\",\"POST /v1/completions\","
                   "\"POST /v1/messages\",\"POST /v1/messages/count_tokens\","
                   "\"GET /v1/models\",\"GET /health\",\"GET /info\"]}\n");
    mx_api_reply_json(x, 200, &b);
}

static void model_object(mx_api *a, mx_buf *b, const char *id)
{
    mx_buf_char(b, '{');
    field_str(b, "id", id);
    const mx_model_config *c = a->model == NULL ? NULL : mx_model_get_config(a->model);
    mx_buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"mtplx\"",
                  (long long)(c == NULL ? a->started_s : c->file_time_s));
    if (c != NULL) {
        size_t n_ctx = mx_engine_max_tokens(a->engine);
        mx_buf_char(b, ',');
        field_str(b, "name", c->name);
        mx_buf_printf(b,
                      ",\"max_model_len\":%zu,\"context_length\":%zu,\"max_context_length\":%zu,"
                      "\"meta\":{\"n_ctx\":%zu,\"n_ctx_train\":%u,\"n_params\":%llu,\"size\":%llu,"
                      "\"n_vocab\":%u,\"n_embd\":%u}",
                      n_ctx, n_ctx, n_ctx, n_ctx, c->n_ctx_train, (unsigned long long)c->n_params,
                      (unsigned long long)c->file_bytes, c->n_vocab, c->n_embd);
    }
    mx_buf_char(b, '}');
}

void mx_api_get_models(mx_api *a, mx_http_exchange *x)
{
    char stem[256];
    stem_of(stem, sizeof stem, a->cfg.model_path);
    mx_buf b = {0};
    mx_buf_str(&b, "{\"object\":\"list\",\"data\":[");
    model_object(a, &b, "mtplx");
    if (strcmp(stem, "mtplx") != 0) {
        mx_buf_char(&b, ',');
        model_object(a, &b, stem);
    }
    mx_buf_str(&b, "]}\n");
    mx_api_reply_json(x, 200, &b);
}

void mx_api_get_model(mx_api *a, mx_http_exchange *x, const char *id)
{
    if (!mx_api_is_listed(a, mx_str_of(id))) {
        mx_problem p = {0};
        mx_problem_set(&p, 404, "model_not_found", "model",
                       "there is no model of this name here; GET /v1/models lists what there is");
        mx_api_reply_problem(x, &p);
        return;
    }
    mx_buf b = {0};
    model_object(a, &b, id);
    mx_buf_char(&b, '\n');
    mx_api_reply_json(x, 200, &b);
}

static void info_model(mx_api *a, mx_buf *b)
{
    const mx_model_config *c = mx_model_get_config(a->model);
    const mx_kv_shape *kv = mx_model_kv_shape(a->model);
    char hex[65];
    mx_hash256_hex(mx_model_fingerprint(a->model), hex);
    mx_buf_str(b, ",\"model\":{");
    field_str(b, "name", c->name);
    mx_buf_char(b, ',');
    field_str(b, "file", file_name(a->cfg.model_path));
    mx_buf_char(b, ',');
    field_str(b, "architecture", c->architecture);
    mx_buf_char(b, ',');
    field_str(b, "fingerprint", hex);
    mx_buf_printf(b, ",\"n_params\":%llu,\"file_bytes\":%llu,\"n_layers\":%u,\"n_embd\":%u,"
                  "\"n_vocab\":%u,\"n_ctx_train\":%u,\"n_ctx\":%zu,\"kv_type\":\"%s\"",
                  (unsigned long long)c->n_params, (unsigned long long)c->file_bytes, c->n_layers,
                  c->n_embd, c->n_vocab, c->n_ctx_train, mx_engine_max_tokens(a->engine),
                  mx_kv_type_name(kv->type));
    mx_buf_printf(b, ",\"chat_template\":%s", a->template != NULL ? "\"model\"" : "null");
    mx_buf_char(b, ',');
    field_str(b, "tool_calls", mx_tool_form_name(a->tool_form));
    if (a->template_error[0] != '\0') {
        mx_buf_char(b, ',');
        field_str(b, "chat_template_error", a->template_error);
    }
    mx_buf_str(b, "},\"numerics\":{");
    field_str(b, "name", mx_numerics_name(mx_model_act_type(a->model)));
    mx_buf_char(b, ',');
    field_str(b, "id", a->numerics_id);
    mx_buf_str(b, "},");
    field_str(b, "cpu_level", mx_model_kern(a->model)->name);
}

static void info_tiers(const mx_engine_stats *s, mx_buf *b)
{
    mx_buf_printf(b,
                  ",\"engine\":{\"n_running\":%zu,\"n_queued\":%zu,\"n_requests\":%llu,"
                  "\"prompt_tokens\":%llu,\"ram_tokens\":%llu,\"ssd_tokens\":%llu,"
                  "\"generated_tokens\":%llu},"
                  "\"kv\":{\"page_bytes\":%zu,\"pages_used\":%zu,\"pages_max\":%zu},"
                  "\"bank\":{\"bytes\":%zu,\"pages\":%zu,\"entries\":%zu,\"evicted_pages\":%llu,"
                  "\"evicted_entries\":%llu,\"refused_entries\":%llu}",
                  s->n_running, s->n_queued, (unsigned long long)s->n_requests,
                  (unsigned long long)s->n_prompt_tokens, (unsigned long long)s->n_ram_tokens,
                  (unsigned long long)s->n_ssd_tokens, (unsigned long long)s->n_generated_tokens,
                  s->kv_page_bytes, s->kv_pages_used, s->kv_pages_max, s->bank.bytes,
                  s->bank.n_pages, s->bank.n_entries, (unsigned long long)s->bank.evicted_pages,
                  (unsigned long long)s->bank.evicted_entries,
                  (unsigned long long)s->bank.refused_entries);
}

static void info_cold(mx_api *a, const mx_engine_stats *s, mx_buf *b)
{
    mx_buf_str(b, ",\"ssd\":{");
    field_str(b, "mode", a->cfg.cache_mode);
    if (s->has_cold) {
        const mx_cold_stats *c = &s->cold;
        mx_buf_char(b, ',');
        field_str(b, "dir", a->cfg.cache_dir == NULL ? "" : a->cfg.cache_dir);
        mx_buf_printf(b, ",\"is_degraded\":%s", c->is_degraded ? "true" : "false");
        if (c->is_degraded) {
            mx_buf_char(b, ',');
            field_str(b, "degraded_reason", c->degraded_reason);
        }
        mx_buf_printf(b,
                      ",\"files\":%llu,\"bytes\":%llu,\"pages_written\":%llu,"
                      "\"bytes_written\":%llu,"
                      "\"sessions_written\":%llu,\"write_failures\":%llu,\"dropped_full\":%llu,"
                      "\"pages_skipped\":%llu,\"sessions_skipped\":%llu,"
                      "\"pages_read\":%llu,\"bytes_read\":%llu,\"quarantined\":%llu,"
                      "\"files_swept\":%llu,\"bytes_swept\":%llu,\"files_expired\":%llu,"
                      "\"bytes_today\":%llu,\"dropped_budget\":%llu,"
                      "\"turns\":%llu,\"queued_jobs\":%llu,\"queued_bytes\":%llu,"
                      "\"read_bytes_per_us\":%.3f",
                      (unsigned long long)c->files, (unsigned long long)c->bytes,
                      (unsigned long long)c->pages_written, (unsigned long long)c->bytes_written,
                      (unsigned long long)c->sessions_written,
                      (unsigned long long)c->write_failures, (unsigned long long)c->dropped_full,
                      (unsigned long long)c->pages_skipped, (unsigned long long)c->sessions_skipped,
                      (unsigned long long)c->pages_read, (unsigned long long)c->bytes_read,
                      (unsigned long long)c->quarantined, (unsigned long long)c->files_swept,
                      (unsigned long long)c->bytes_swept, (unsigned long long)c->files_expired,
                      (unsigned long long)c->bytes_today, (unsigned long long)c->dropped_budget,
                      (unsigned long long)c->turns, (unsigned long long)c->queued_jobs,
                      (unsigned long long)c->queued_bytes, c->read_bytes_per_us);
    }
    mx_buf_char(b, '}');
}

static void info_recall(mx_api *a, mx_buf *b)
{
    mx_recall_stats s = {0};
    if (a->recall == NULL) {
        mx_buf_str(b, ",\"sampled_ids\":null"); /* --canonical-prompts */
        return;
    }
    mx_recall_get_stats(a->recall, &s);
    mx_buf_printf(b,
                  ",\"sampled_ids\":{\"texts\":%zu,\"bytes\":%zu,\"bytes_max\":%zu,\"stored\":%llu,"
                  "\"found\":%llu,\"evicted\":%llu}",
                  s.n_entries, s.bytes, s.max_bytes, (unsigned long long)s.n_stored,
                  (unsigned long long)s.n_found, (unsigned long long)s.n_evicted);
}

void mx_api_get_stats(mx_api *a, mx_engine_stats *out)
{
    mx_cold *cold = mx_engine_cold(a->engine);
    mx_engine_get_stats(a->engine, out);
    if (cold != NULL) { /* an engine that has nothing to do tells nothing new, and the folder's threads go on */
        mx_cold_get_stats(cold, &out->cold);
    }
}

void mx_api_get_info(mx_api *a, mx_http_exchange *x)
{
    static const char *const phases[] = {"loading", "ready", "stopping"};
    mx_buf b = {0};
    mx_buf_char(&b, '{');
    field_str(&b, "name", "mtplx");
    mx_buf_char(&b, ',');
    field_str(&b, "version", MX_VERSION);
    mx_buf_char(&b, ',');
    field_str(&b, "status", phases[a->phase]);
    mx_buf_printf(&b, ",\"uptime_s\":%lld", (long long)(mx_wall_s() - a->started_s));
    mx_buf_printf(&b, ",\"options\":%s,\"session\":%s", a->cfg.options_json, a->cfg.session_json);
    if (a->phase == MX_API_READY) {
        mx_engine_stats s;
        mx_api_get_stats(a, &s);
        info_model(a, &b);
        info_tiers(&s, &b);
        info_cold(a, &s, &b);
        info_recall(a, &b);
    }
    mx_buf_str(&b, "}\n");
    mx_api_reply_json(x, 200, &b);
}
