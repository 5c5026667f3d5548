/* SPDX-License-Identifier: MIT
 *
 * Routes and the life of the api. A request is answered in one of three ways: at once (GET
 * endpoints, refusals), or by an answer object that api_answer.c leaves behind. The state lock is
 * held for reading while a handler looks at the model or the engine, so that stopping can wait for
 * the last handler and then take both away.
 */
#include "api/api_messages.h"
#include "api/api_state.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>

const char *const mx_api_open_paths[] = {"/health", "/v1/health", "/healthz", "/ping", "/"};
const size_t mx_api_n_open_paths = MX_COUNT(mx_api_open_paths);

/* ---- wakers ---------------------------------------------------------------------------------- */

mx_waker *mx_waker_get(mx_api *a, mx_http_exchange *x)
{
    pthread_mutex_lock(&a->wakers_lock);
    mx_waker *w = a->free_wakers;
    if (w != NULL) {
        a->free_wakers = w->next_free;
    } else if ((w = mx_calloc(1, sizeof *w)) != NULL) {
        pthread_mutex_init(&w->lock, NULL);
        w->next_all = a->all_wakers;
        a->all_wakers = w;
    }
    pthread_mutex_unlock(&a->wakers_lock);
    if (w != NULL) {
        pthread_mutex_lock(&w->lock);
        w->x = mx_http_ref(x);
        pthread_mutex_unlock(&w->lock);
    }
    return w;
}

void mx_waker_watch(mx_waker *w, mx_request **requests, size_t n)
{
    pthread_mutex_lock(&w->lock);
    w->requests = requests;
    w->n_requests = n;
    pthread_mutex_unlock(&w->lock);
}

void mx_waker_put(mx_api *a, mx_waker *w)
{
    pthread_mutex_lock(&w->lock);
    mx_http_exchange *x = w->x;
    w->x = NULL;
    w->requests = NULL;
    w->n_requests = 0;
    pthread_mutex_unlock(&w->lock);
    mx_http_unref(x);
    pthread_mutex_lock(&a->wakers_lock);
    w->next_free = a->free_wakers;
    a->free_wakers = w;
    pthread_mutex_unlock(&a->wakers_lock);
}

void mx_waker_wake(void *waker)
{
    mx_waker *w = waker;
    pthread_mutex_lock(&w->lock);
    if (w->x != NULL) {
        mx_http_wake(w->x);
    }
    pthread_mutex_unlock(&w->lock);
}

/* The requests are cancelled outside the locks: the engine may be calling a waker while it holds a
 * lock that cancelling needs. */
void mx_api_cancel_all(mx_api *a)
{
    mx_request **all = NULL;
    size_t n = 0, cap = 0;
    pthread_mutex_lock(&a->wakers_lock);
    for (mx_waker *w = a->all_wakers; w != NULL; w = w->next_all) {
        pthread_mutex_lock(&w->lock);
        if (mx_grow((void **)&all, &cap, n + w->n_requests, sizeof *all)) {
            for (size_t i = 0; i < w->n_requests; i++) {
                all[n++] = mx_request_ref(w->requests[i]);
            }
        }
        pthread_mutex_unlock(&w->lock);
    }
    pthread_mutex_unlock(&a->wakers_lock);
    for (size_t i = 0; i < n; i++) {
        mx_request_cancel(all[i]);
        mx_request_unref(all[i]);
    }
    mx_free(all);
}

void mx_api_free_wakers(mx_api *a)
{
    while (a->all_wakers != NULL) {
        mx_waker *w = a->all_wakers;
        a->all_wakers = w->next_all;
        pthread_mutex_destroy(&w->lock);
        mx_free(w);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

bool mx_api_key_salt(const mx_hash256 *cache_key, const char *api_key, mx_hash256 *out)
{
    static const char domain[] = "mtplx isolation salt v1";
    return mx_hmac_sha256(cache_key->b, sizeof cache_key->b, domain, sizeof domain, api_key,
                          strlen(api_key), out);
}

static mx_err make_salts(mx_api *a, mx_errbuf *eb)
{
    if (a->cfg.n_api_keys == 0 || a->cfg.shared_prefixes) {
        return MX_OK;
    }
    a->salts = mx_calloc(a->cfg.n_api_keys, sizeof *a->salts);
    bool ok = a->salts != NULL;
    for (size_t i = 0; ok && i < a->cfg.n_api_keys; i++) {
        ok = mx_api_key_salt(a->cfg.cache_key, a->cfg.api_keys[i], &a->salts[i]);
    }
    return ok ? MX_OK : mx_fail(eb, MX_E_NOMEM, "out of memory");
}

mx_err mx_api_create(mx_api **out, const mx_api_config *cfg, mx_errbuf *eb)
{
    mx_api *a = mx_calloc(1, sizeof *a);
    if (a == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    a->cfg = *cfg;
    a->started_s = mx_wall_s();
    pthread_rwlock_init(&a->state_lock, NULL);
    pthread_mutex_init(&a->wakers_lock, NULL);
    mx_err e = make_salts(a, eb);
    if (e == MX_OK && !cfg->canonical_prompts) {
        e = mx_recall_create(&a->recall, &(mx_recall_config){0}, eb);
    }
    if (e != MX_OK) {
        mx_api_destroy(a);
        return e;
    }
    *out = a;
    return MX_OK;
}

void mx_api_destroy(mx_api *a)
{
    if (a == NULL) {
        return;
    }
    mx_api_free_wakers(a);
    mx_post_stop(a->post);
    mx_post_free(a->post);
    mx_template_destroy(a->template);
    mx_recall_destroy(a->recall);
    mx_free(a->salts);
    pthread_rwlock_destroy(&a->state_lock);
    pthread_mutex_destroy(&a->wakers_lock);
    mx_free(a);
}

static void load_template(mx_api *a, mx_model *model)
{
    mx_str source = mx_model_chat_template(model);
    mx_errbuf eb = {0};
    if (source.len == 0) {
        snprintf(a->template_error, sizeof a->template_error,
                 "the model file has no chat template");
    } else if (mx_template_parse(&a->template, source, &eb) == MX_OK) {
        a->tool_form = mx_tool_form_of(source);
    } else {
        a->template = NULL;
        snprintf(a->template_error, sizeof a->template_error, "%.250s", eb.text);
    }
    if (a->template_error[0] != '\0') {
        char safe[256];
        mx_log_safe(safe, sizeof safe, a->template_error, strlen(a->template_error));
        mx_log(MX_LOG_WARN, "chat template: %s; /v1/chat/completions answers 400, "
               "/v1/completions works", safe);
    }
}

static size_t longest_piece(const mx_tokenizer *t)
{
    size_t longest = 1;
    for (size_t i = 0; i < mx_tokenizer_size(t); i++) {
        longest = mx_max_size(longest, mx_tokenizer_piece(t, (int32_t)i, true).len);
    }
    return longest;
}

void mx_api_set_ready(mx_api *a, mx_model *model, mx_engine *engine)
{
    char hex[65];
    mx_hash256 root = mx_model_root(model, NULL);
    mx_hash256_hex(&root, hex);
    pthread_rwlock_wrlock(&a->state_lock);
    snprintf(a->fingerprint, sizeof a->fingerprint, "fp_%.16s", hex);
    mx_hash256_hex(mx_model_numerics_id(model), a->numerics_id);
    load_template(a, model);
    a->max_piece = longest_piece(mx_model_tokenizer(model));
    a->model = model;
    a->engine = engine;
    mx_chat_env env = mx_api_chat_env(a);
    if (a->cfg.post_commit && a->template != NULL && mx_chat_rewrites_answers(&env)) {
        a->post = mx_post_start(a);
    }
    a->phase = MX_API_READY;
    pthread_rwlock_unlock(&a->state_lock);
}

void mx_api_stop(mx_api *a)
{
    pthread_rwlock_wrlock(&a->state_lock);
    a->phase = MX_API_STOPPING;
    pthread_rwlock_unlock(&a->state_lock);
    mx_post_stop(a->post);
}

/* ---- routes ---------------------------------------------------------------------------------- */

typedef enum route_kind {
    ROUTE_NONE, ROUTE_CHAT, ROUTE_TEXT, ROUTE_MODELS, ROUTE_MODEL, ROUTE_HEALTH, ROUTE_INFO,
    ROUTE_ROOT, ROUTE_METRICS, ROUTE_ADMIN, ROUTE_MESSAGES, ROUTE_COUNT
} route_kind;

static route_kind find_route(const char *path, const char **rest)
{
    static const struct { const char *path; route_kind kind; } table[] = {
        {"/chat/completions", ROUTE_CHAT}, {"/completions", ROUTE_TEXT},
        {"/messages", ROUTE_MESSAGES}, {"/messages/count_tokens", ROUTE_COUNT},
        {"/models", ROUTE_MODELS},
        {"/health", ROUTE_HEALTH}, {"/healthz", ROUTE_HEALTH}, {"/ping", ROUTE_HEALTH},
        {"/info", ROUTE_INFO}, {"/metrics", ROUTE_METRICS}, {"/admin", ROUTE_ADMIN},
    };
    if (strcmp(path, "/") == 0 || path[0] == '\0' || strcmp(path, "/v1") == 0) {
        return ROUTE_ROOT;
    }
    if (strncmp(path, "/v1/", 4) == 0) {
        path += 3;
    }
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        if (strcmp(path, table[i].path) == 0) {
            return table[i].kind;
        }
    }
    if (strncmp(path, "/models/", 8) == 0) {
        *rest = path + 8;
        return ROUTE_MODEL;
    }
    if (strncmp(path, "/admin/", 7) == 0) {
        *rest = path + 7;
        return ROUTE_ADMIN;
    }
    return ROUTE_NONE;
}

/* ---- replies --------------------------------------------------------------------------------- */

static const char *error_type(unsigned status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

/* Clients of the Messages API say so in a header; its paths are their own, too. */
static bool speaks_messages(const mx_http_exchange *x)
{
    const char *rest;
    route_kind kind = find_route(mx_http_path(x), &rest);
    return kind == ROUTE_MESSAGES || kind == ROUTE_COUNT ||
           mx_http_header(x, "anthropic-version") != NULL;
}

static void string_or_null(mx_buf *b, const char *s)
{
    if (s == NULL || *s == '\0') {
        mx_buf_str(b, "null");
    } else {
        mx_http_json_string(b, s, strlen(s));
    }
}

void mx_api_error_json(mx_buf *b, const mx_problem *p)
{
    mx_buf_str(b, "{\"error\":{\"message\":");
    mx_http_json_string(b, p->message, strlen(p->message));
    mx_buf_printf(b, ",\"type\":\"%s\",\"param\":", error_type(p->status));
    string_or_null(b, p->param);
    mx_buf_str(b, ",\"code\":");
    string_or_null(b, p->code);
    if (p->n_ctx > 0) {
        mx_buf_printf(b, ",\"n_prompt_tokens\":%llu,\"n_ctx\":%llu",
                      (unsigned long long)p->n_prompt_tokens, (unsigned long long)p->n_ctx);
    }
    mx_buf_str(b, "}}");
}

void mx_api_reply_json(mx_http_exchange *x, unsigned status, mx_buf *body)
{
    static const char type[] = "application/json";
    if (body->failed) {
        mx_http_reply(x, 500, type,
                      MX_STR("{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
                             "\"param\":null,\"code\":null}}"), NULL, 0);
    } else {
        mx_http_reply(x, status, type, mx_buf_view(body), NULL, 0);
    }
    mx_buf_free(body);
}

static void write_error(mx_http_exchange *x, mx_buf *b, const mx_problem *p)
{
    if (speaks_messages(x)) {
        mx_messages_error(b, p, mx_http_request_id(x));
    } else {
        mx_api_error_json(b, p);
    }
}

void mx_api_reply_problem(mx_http_exchange *x, const mx_problem *p)
{
    mx_api_reply_problem_and(x, p, MX_STR(""));
}

void mx_api_reply_problem_and(mx_http_exchange *x, const mx_problem *p, mx_str fields)
{
    mx_buf b = {0};
    write_error(x, &b, p);
    if (!b.failed) {
        b.len--; /* the brace that ends the object */
    }
    mx_buf_append(&b, fields.ptr, fields.len);
    mx_buf_str(&b, "}\n");
    char retry[40], safe[128];
    snprintf(retry, sizeof retry, "Retry-After: %u", p->retry_after_s);
    const char *headers[] = {retry};
    if (p->code == NULL || (strcmp(p->code, "loading") != 0 && strcmp(p->code, "stopping") != 0)) {
        mx_log(MX_LOG_INFO, "request: id=%s status=%u path=%s param=%s", mx_http_request_id(x),
               p->status, mx_log_safe(safe, sizeof safe, mx_http_path(x), strlen(mx_http_path(x))),
               p->param[0] == '\0' ? "-" : p->param);
    }
    if (p->retry_after_s > 0 && !b.failed) {
        mx_http_reply(x, p->status, "application/json", mx_buf_view(&b), headers, 1);
        mx_buf_free(&b);
        return;
    }
    mx_api_reply_json(x, p->status, &b);
}

/* ---- requests -------------------------------------------------------------------------------- */

bool mx_api_hides_stored(const mx_api *a)
{
    return a->cfg.shared_prefixes && a->cfg.n_api_keys > 1;
}

bool mx_api_is_admin_path(const char *path)
{
    const char *rest;
    route_kind kind = find_route(path, &rest);
    return kind == ROUTE_INFO || kind == ROUTE_METRICS || kind == ROUTE_ADMIN;
}

bool mx_api_error_words(const mx_http_exchange *x, mx_buf *out, unsigned status, const char *message)
{
    mx_problem p = {0};
    if (!speaks_messages(x)) {
        return false;
    }
    mx_problem_set(&p, status, NULL, NULL, "%s", message);
    mx_messages_error(out, &p, mx_http_request_id(x));
    return true;
}

void mx_api_reply_wrong_method(mx_http_exchange *x, const char *allowed)
{
    mx_problem p = {0};
    mx_problem_set(&p, 405, "method_not_allowed", NULL, "%.16s is not possible here; use %s",
                   mx_http_method(x), allowed);
    mx_buf b = {0};
    write_error(x, &b, &p);
    char allow[64];
    snprintf(allow, sizeof allow, "Allow: %s", allowed);
    const char *headers[] = {allow};
    mx_http_reply(x, 405, "application/json", mx_buf_view(&b), headers, 1);
    mx_buf_free(&b);
}

bool mx_api_parse_body(mx_http_exchange *x, struct json_object **out, mx_problem *p)
{
    mx_errbuf eb = {0};
    mx_str body = mx_http_body(x);
    const char *encoding = mx_http_header(x, "Content-Encoding");
    if (encoding != NULL && strcasecmp(encoding, "identity") != 0) {
        return mx_problem_set(p, 415, "unsupported_encoding", NULL, "compressed bodies are not "
                              "supported: send the JSON without Content-Encoding");
    }
    if (body.len == 0) {
        return mx_problem_field(p, NULL, "the request has no body: send a JSON object");
    }
    switch (mx_json_parse(out, body, &eb)) {
    case MX_OK:
        break;
    case MX_E_NOMEM:
        return mx_problem_set(p, 500, NULL, NULL, "out of memory");
    case MX_E_LIMIT:
        return mx_problem_field(p, NULL, "the body exceeds a limit: %s (at most %d levels and %d "
                                "values)", eb.text, MX_JSON_MAX_DEPTH, MX_JSON_MAX_VALUES);
    default:
        return mx_problem_field(p, NULL, "the body is not valid JSON: %s", eb.text);
    }
    if (!json_object_is_type(*out, json_type_object)) {
        return mx_problem_field(p, NULL, "the body must be a JSON object, not %s",
                                mx_json_kind(*out));
    }
    return true;
}

static bool check_model_name(const mx_api *a, mx_str name, mx_problem *p)
{
    if (!a->cfg.strict_model || name.len == 0 || mx_api_is_listed(a, name)) {
        return true;
    }
    return mx_problem_set(p, 404, "model_not_found", "model",
                          "the model \"%.*s\" is not served here; "
                          "GET /v1/models lists what is",
                          (int)mx_min_size(name.len, 128), name.ptr);
}

bool mx_api_check_phase(const mx_api *a, mx_problem *p)
{
    if (a->phase == MX_API_READY) {
        return true;
    }
    p->retry_after_s = a->phase == MX_API_LOADING ? 1 : 5;
    return a->phase == MX_API_LOADING
               ? mx_problem_set(p, 503, "loading", NULL, "the model is loading; try again in a "
                                "moment")
               : mx_problem_set(p, 503, "stopping", NULL, "the server is shutting down");
}

static void reply_count(mx_http_exchange *x, size_t n_tokens)
{
    mx_buf b = {0};
    mx_buf_printf(&b, "{\"input_tokens\":%zu}\n", n_tokens);
    mx_api_reply_json(x, 200, &b);
}

bool mx_api_translate(struct json_object **body, mx_problem *p)
{
    struct json_object *chat;
    bool ok = mx_messages_to_chat(*body, &chat, p);
    json_object_put(*body);
    *body = chat;
    return ok;
}

/* The header goes before the body's field: proxies and clients set it that know nothing of the body. */
static bool read_session_header(mx_http_exchange *x, mx_api_params *params, mx_problem *p)
{
    const char *name = mx_http_header(x, "X-Session-Id");
    if (name == NULL || *name == '\0') {
        return true;
    }
    params->session = (mx_str){name, strlen(name)};
    return mx_session_name_ok(params->session)
           || mx_problem_field(p, "X-Session-Id", "the header X-Session-Id must be at most %d bytes of UTF-8 "
                               "without control characters", MX_SESSION_NAME_MAX);
}

static void handle_generation(mx_api *a, mx_http_exchange *x, route_kind kind)
{
    bool is_count = kind == ROUTE_COUNT, is_chat = kind != ROUTE_TEXT;
    mx_surface surface = kind == ROUTE_TEXT   ? MX_SURFACE_TEXT
                         : kind == ROUTE_CHAT ? MX_SURFACE_CHAT : MX_SURFACE_MESSAGES;
    uint64_t received_us = mx_now_us();
    mx_problem p = {0};
    struct json_object *body = NULL;
    mx_api_params params = {0};
    mx_prompt_rules rules = {0};
    mx_prompt *prompts = NULL;
    size_t n_prompts = 0;
    bool ok = mx_api_check_phase(a, &p) && mx_api_parse_body(x, &body, &p)
              && (surface != MX_SURFACE_MESSAGES || mx_api_translate(&body, &p))
              && mx_api_params_read(&params, body, is_chat,
                                    mx_tokenizer_size(mx_model_tokenizer(a->model)), &p)
              && read_session_header(x, &params, &p)
              && check_model_name(a, params.model, &p);
    if (ok) {
        mx_api_prompt_rules(a, mx_http_key_index(x), params.cache, &rules);
        rules.stores = rules.stores && !is_count;
        ok = is_chat ? mx_api_chat_prompt(a, body, &rules, &prompts, &n_prompts, &p)
                     : mx_api_text_prompts(a, body, &rules, &prompts, &n_prompts, &p);
    }
    if (ok && is_count) {
        reply_count(x, prompts[0].tokens.n);
    } else if (ok) {
        mx_reply reply = {0};
        if (is_chat && a->post != NULL && params.cache == MX_CACHE_USE) {
            reply.body = body;
            body = NULL;
        }
        mx_api_answer(a, x, surface, &params, &rules, prompts, n_prompts, &reply, received_us);
    } else {
        mx_api_reply_problem(x, &p);
    }
    mx_prompts_free(prompts, n_prompts);
    mx_api_params_free(&params);
    json_object_put(body);
}

static void handle_get(mx_api *a, mx_http_exchange *x, route_kind kind, const char *rest)
{
    switch (kind) {
    case ROUTE_HEALTH: mx_api_get_health(a, x); return;
    case ROUTE_MODELS: mx_api_get_models(a, x); return;
    case ROUTE_MODEL: mx_api_get_model(a, x, rest); return;
    case ROUTE_INFO: mx_api_get_info(a, x); return;
    case ROUTE_METRICS: mx_api_get_metrics(a, x); return;
    default: mx_api_get_root(a, x); return;
    }
}

void mx_api_handle(void *arg, mx_http_exchange *x)
{
    mx_api *a = arg;
    const char *rest = "";
    route_kind kind = find_route(mx_http_path(x), &rest);
    const char *method = mx_http_method(x);
    if (kind == ROUTE_ADMIN) {
        pthread_rwlock_rdlock(&a->state_lock);
        mx_api_handle_admin(a, x, rest);
        pthread_rwlock_unlock(&a->state_lock);
        return;
    }
    if (kind == ROUTE_NONE) {
        mx_problem p = {0};
        mx_problem_set(&p, 404, "not_found", NULL, "there is nothing at this path; try POST "
                       "/v1/chat/completions, POST /v1/completions, POST /v1/messages, GET "
                       "/v1/models, GET /health, GET /info");
        mx_api_reply_problem(x, &p);
        return;
    }
    bool is_post = kind == ROUTE_CHAT || kind == ROUTE_TEXT || kind == ROUTE_MESSAGES ||
                   kind == ROUTE_COUNT;
    if (strcmp(method, is_post ? "POST" : "GET") != 0) {
        mx_api_reply_wrong_method(x, is_post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
        return;
    }
    pthread_rwlock_rdlock(&a->state_lock);
    if (is_post) {
        handle_generation(a, x, kind);
    } else {
        handle_get(a, x, kind, rest);
    }
    pthread_rwlock_unlock(&a->state_lock);
}
