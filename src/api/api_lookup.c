/* SPDX-License-Identifier: MIT
 *
 * POST /admin/cache/lookup: what the cache would do for a request body, without running it.
 *
 * The body goes the way of a real request (same checks, template, tokens, sampled ids), and the
 * engine is asked what it would find. Isolation holds here, too: with API keys in use the
 * administrator names the key he means by sending it, and what other keys have stored never shows,
 * but for one word: "other_isolation" says that such a beginning is stored under another key. Only
 * this endpoint says it, and only to whoever has the admin key.
 */
#include "api/api_messages.h"
#include "api/api_state.h"
#include "api/api_write.h"

#include "base/clock.h"
#include "base/mem.h"

/* For all prompts of a request together: a worker is held for that long. */
static const uint64_t LOOKUP_TIMEOUT_US = 10 * 1000000;

/* What is left of it; never 0, which would be no limit. */
static uint64_t time_left(uint64_t until_us)
{
    uint64_t now = mx_now_us();
    return now < until_us ? until_us - now : 1;
}

static void write_ms(mx_buf *b, const char *name, bool is_known, double us)
{
    if (is_known) {
        mx_buf_printf(b, ",\"%s\":%.3f", name, us / 1e3);
    } else {
        mx_buf_printf(b, ",\"%s\":null", name);
    }
}

static void write_prompt(mx_api *a, mx_buf *b, const mx_prompt *prompt, mx_lookup *l)
{
    mx_request_stats *s = &l->stats;
    mx_usage u = {
        .total = *s,
        .prompt_source = prompt->is_replayed ? "tool_map"
                         : prompt->is_sampled ? "sampled_ids" : "client",
        .tokenizer = mx_model_tokenizer(a->model),
        .hides_stored = mx_api_hides_stored(a),
    };
    double compute_us = l->us_per_token * (double)s->n_computed;
    u.total.prefill_us = (uint64_t)compute_us;
    mx_buf_printf(b, "{\"prompt_tokens\":%zu,\"cache_mode\":\"%s\",\"restore\":\"%s\","
                  "\"ram_tokens\":%zu,\"ssd_tokens\":%zu,\"computed_tokens\":%zu,"
                  "\"prompt_source\":\"%s\",\"ssd_asked\":%s,\"ssd_answered\":%s,\"ssd_bytes\":%llu",
                  s->n_prompt, mx_usage_mode(&u), mx_restore_kind_name(s->restore), s->n_ram,
                  s->n_ssd, s->n_computed, u.prompt_source, l->ssd_asked ? "true" : "false",
                  l->ssd_answered ? "true" : "false", (unsigned long long)l->ssd_bytes);
    write_ms(b, "restore_ms", l->ssd_bytes == 0 || l->restore_us > 0, l->restore_us);
    write_ms(b, "compute_ms", l->us_per_token > 0, compute_us);
    mx_buf_str(b, ",\"miss\":");
    mx_write_miss(b, &u);
    mx_buf_char(b, '}');
}

/* Is more of this prompt stored under another key? Bounded; a hint in RAM. */
static mx_err find_elsewhere(mx_api *a, int key, const mx_prompt *prompt, uint64_t until_us,
                             mx_lookup *l)
{
    enum { MAX_KEYS = 64 };
    mx_hash256 salts[MAX_KEYS];
    size_t n_salts = 0, n_common;
    mx_request_stats *s = &l->stats;
    bool is_open = s->miss_reason != NULL && (strcmp(s->miss_reason, "no_entry") == 0
                                              || strcmp(s->miss_reason, "diverged_at") == 0);
    for (size_t i = 0; a->salts != NULL && is_open && i < a->cfg.n_api_keys && i < MAX_KEYS; i++) {
        if ((int)i != key) {
            salts[n_salts++] = a->salts[i];
        }
    }
    if (n_salts == 0) {
        return MX_OK;
    }
    MX_TRY(mx_engine_common(a->engine, salts, n_salts, prompt->tokens.ids, prompt->tokens.n,
                            time_left(until_us), &n_common));
    if (n_common >= s->n_ram + s->n_ssd + MX_PAGE_TOKENS) {
        s->miss_reason = "other_isolation";
        s->miss.n_stored = 0;
        s->miss.token_index = s->n_ram + s->n_ssd;
        s->miss.n_common = s->miss.n_asked = 0;
    }
    return MX_OK;
}

static bool look_up(mx_api *a, int key, const mx_api_params *params, const mx_prompt *prompt,
                    uint64_t until_us, mx_buf *b, mx_problem *p)
{
    mx_lookup l = {0};
    mx_err e = MX_OK;
    if (params->cache == MX_CACHE_OFF) {
        l.stats = (mx_request_stats){.n_prompt = prompt->tokens.n, .n_computed = prompt->tokens.n,
                                     .miss_reason = "cache_off"};
    } else {
        e = mx_engine_lookup(a->engine, mx_api_salt(a, key), prompt->tokens.ids, prompt->tokens.n,
                             time_left(until_us), &l);
        if (e == MX_OK) {
            e = find_elsewhere(a, key, prompt, until_us, &l);
        }
    }
    if (e == MX_E_BUSY) {
        p->retry_after_s = 5;
        return mx_problem_set(p, 503, "busy", NULL, "the engine or the cache folder did not answer in "
                              "time; try again");
    }
    if (e != MX_OK) {
        return mx_problem_set(p, e == MX_E_CANCELLED ? 503 : 500, mx_err_name(e), NULL,
                              "the lookup failed: %s", mx_err_name(e));
    }
    write_prompt(a, b, prompt, &l);
    return true;
}

void mx_api_post_lookup(mx_api *a, mx_http_exchange *x)
{
    mx_problem p = {0};
    struct json_object *body = NULL;
    mx_api_params params = {0};
    mx_prompt_rules rules = {0};
    mx_prompt *prompts = NULL;
    size_t n = 0;
    int key = mx_http_key_index(x);
    uint64_t until_us = mx_now_us() + LOOKUP_TIMEOUT_US;
    bool ok = mx_api_check_phase(a, &p) && mx_api_parse_body(x, &body, &p);
    ok = ok && (!mx_messages_is_request(body) || mx_api_translate(&body, &p));
    bool is_chat = ok && mx_json_field(body, "messages") != NULL;
    ok = ok && mx_api_params_read(&params, body, is_chat,
                                  mx_tokenizer_size(mx_model_tokenizer(a->model)), &p);
    if (ok && a->salts != NULL && key < 0) {
        ok = mx_problem_set(&p, 400, "api_key_needed", NULL, "each API key has prefixes of its own: "
                            "say which one you mean by sending it as 'x-api-key: KEY', beside "
                            "'Authorization: Bearer ADMIN-KEY'");
    }
    mx_buf b = {0};
    if (ok) {
        mx_api_prompt_rules(a, key, params.cache, &rules);
        rules.stores = false;
        ok = is_chat ? mx_api_chat_prompt(a, body, &rules, &prompts, &n, &p)
                     : mx_api_text_prompts(a, body, &rules, &prompts, &n, &p);
        mx_buf_str(&b, "{\"object\":\"cache.lookup\",\"prompts\":[");
    }
    for (size_t i = 0; ok && i < n; i++) {
        mx_buf_str(&b, i > 0 ? "," : "");
        ok = prompts[i].tokens.n <= mx_engine_max_tokens(a->engine) ||
             mx_api_too_long(a, is_chat ? "messages" : "prompt", prompts[i].tokens.n, &p);
        ok = ok && look_up(a, key, &params, &prompts[i], until_us, &b, &p);
    }
    if (ok) {
        mx_buf_str(&b, "]}\n");
        mx_api_reply_json(x, 200, &b);
    } else {
        mx_buf_free(&b);
        mx_api_reply_problem(x, &p);
    }
    mx_prompts_free(prompts, n);
    mx_api_params_free(&params);
    json_object_put(body);
}
