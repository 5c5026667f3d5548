/* SPDX-License-Identifier: MIT
 *
 * Prompts as token ids. A chat prompt is rendered by the model's template and tokenised with the
 * template's own words marked, so that control tokens count only there; the template also decides
 * about BOS. A plain prompt is user text throughout and gets BOS as the tokeniser wants it; a list
 * of ids is taken as it is.
 *
 * A text that cannot fit whatever its tokens are is refused before it is tokenised: 60 MB cost half
 * a minute of a worker, and a few of them would keep everybody else, /health too, waiting.
 *
 * What was sampled stays as it was sampled: where a text begins with one that is remembered
 * (api_recall.h), the remembered ids are kept, and only the rest is tokenised. The canonical list
 * is made in any case, so that a response can say whether the two differ; it is not sliced, because
 * the text before and behind the end of an answer may share a token in it.
 */
#include "api/api_state.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <sys/random.h>

static bool out_of_memory(mx_problem *p)
{
    return mx_problem_set(p, 500, NULL, NULL, "out of memory");
}

void mx_prompt_free(mx_prompt *prompt)
{
    mx_tokens_free(&prompt->tokens);
    mx_turns_free(&prompt->turns);
    prompt->is_kept = false;
}

void mx_prompts_free(mx_prompt *prompts, size_t n)
{
    for (size_t i = 0; prompts != NULL && i < n; i++) {
        mx_prompt_free(&prompts[i]);
    }
    mx_free(prompts);
}

const mx_hash256 *mx_api_salt(const mx_api *a, int key)
{
    return a->salts != NULL && key >= 0 && (size_t)key < a->cfg.n_api_keys ? &a->salts[key] : NULL;
}

void mx_api_prompt_rules(const mx_api *a, int key, mx_cache_policy cache, mx_prompt_rules *out)
{
    *out = (mx_prompt_rules){
        .scope = mx_model_root(a->model, mx_api_salt(a, key)),
        .reads_recall = a->recall != NULL && cache != MX_CACHE_OFF,
        .stores = a->recall != NULL && cache == MX_CACHE_USE,
    };
}

/* ---- text to ids ----------------------------------------------------------------------------- */

/* A text as it is to be tokenised; borrowed. */
typedef struct source {
    mx_str text;
    const mx_span *markup;
    size_t n_markup;
    bool is_chat;
} source;

/* Replaces the canonical ids of the text by those that begin as they were sampled, where such are
 * remembered and differ. Without memory for it the canonical ones do as well. */
static void keep_sampled(mx_api *a, const source *s, const mx_recall_text *t, mx_prompt *out)
{
    const mx_tokenizer *tok = mx_model_tokenizer(a->model);
    mx_tokens ids = {0};
    mx_turns turns = {0};
    size_t at = mx_recall_find(a->recall, tok, t, &ids, &turns);
    if (mx_api_fetch_turns(a, t, at)) {
        ids.n = turns.n = 0;
        at = mx_recall_find(a->recall, tok, t, &ids, &turns);
    }
    bool is_whole = at > 0 && mx_tokenizer_encode_rest(tok, s->text.ptr, s->text.len, s->markup,
                                                       s->n_markup, at, &ids) == MX_OK;
    if (is_whole) {
        mx_turns_free(&out->turns);
        out->turns = turns;
        turns = (mx_turns){0};
    }
    if (is_whole && (ids.n != out->tokens.n ||
                     memcmp(ids.ids, out->tokens.ids, ids.n * sizeof *ids.ids) != 0))
    {
        mx_tokens canonical = out->tokens;
        out->tokens = ids;
        ids = canonical;
        out->is_sampled = true;
    }
    mx_tokens_free(&ids);
    mx_turns_free(&turns);
}

/* The answer to come, as a turn of its own. */
static bool add_own_turn(const mx_recall_text *t, mx_prompt *out)
{
    mx_turn own;
    return mx_recall_name(t, out->tokens.n, &own) &&
           getrandom(own.nonce, sizeof own.nonce, 0) == (ssize_t)sizeof own.nonce &&
           mx_turns_add(&out->turns, &own);
}

/* What was sampled is looked up for this text, and the text gets a name to be remembered by. */
static void recall(mx_api *a, const source *s, const mx_prompt_rules *rules, mx_prompt *out)
{
    const mx_tokenizer *tok = mx_model_tokenizer(a->model);
    if (!(rules->reads_recall || rules->stores) || out->tokens.n == 0) {
        return;
    }
    /* An EOS behind a plain prompt would end up in the middle; ill-formed text is not the text that
     * is tokenised. */
    mx_span *controls = NULL;
    size_t n_controls = 0;
    if ((!s->is_chat && mx_tokenizer_adds_eos(tok)) || !mx_utf8_valid(s->text.ptr, s->text.len) ||
        mx_tokenizer_find_controls(tok, s->text, s->markup, s->n_markup, &controls,
                                   &n_controls) != MX_OK)
    {
        mx_free(controls);
        return;
    }
    mx_recall_text t = {
        .scope = &rules->scope,
        .is_chat = s->is_chat,
        .text = s->text,
        .controls = controls,
        .n_controls = n_controls,
    };
    if (rules->reads_recall) {
        keep_sampled(a, s, &t, out);
    }
    out->is_kept = rules->stores && add_own_turn(&t, out);
    mx_free(controls);
}

static bool tokenise(mx_api *a, const source *s, const mx_prompt_rules *rules, mx_prompt *out,
                     mx_problem *p)
{
    if (mx_tokenizer_encode(mx_model_tokenizer(a->model), s->text.ptr, s->text.len, s->markup,
                            s->n_markup, !s->is_chat, &out->tokens) != MX_OK)
    {
        return out_of_memory(p);
    }
    recall(a, s, rules, out);
    return true;
}

static mx_str special_text(const mx_tokenizer *t, int32_t id)
{
    return id < 0 ? (mx_str){"", 0} : mx_tokenizer_text(t, id);
}

/* No token is longer than the longest, so the bytes tell how many there must be at least. */
static bool may_fit(const mx_api *a, size_t n_bytes, const char *field, mx_problem *p)
{
    size_t n_ctx = mx_engine_max_tokens(a->engine);
    size_t at_least = n_bytes / a->max_piece;
    if (at_least <= n_ctx) {
        return true;
    }
    p->n_prompt_tokens = at_least;
    p->n_ctx = n_ctx;
    return mx_problem_set(p, 400, "context_length_exceeded", field,
                          "request (%zu bytes, at least %zu tokens) exceeds the available context "
                          "size (%zu tokens); this model's maximum context length is %zu tokens: "
                          "shorten '%s'", n_bytes, at_least, n_ctx, n_ctx, field);
}

/* ---- marks ----------------------------------------------------------------------------------- */

static void add_mark(mx_prompt *out, size_t at)
{
    if (at > 0 && at < out->tokens.n && (out->n_marks == 0 || at > out->marks[out->n_marks - 1])) {
        out->marks[out->n_marks++] = (uint32_t)at;
    }
}

/* How many of the prompt's tokens the first n bytes of the text become, too. */
static size_t tokens_of_stem(const mx_tokenizer *t, mx_rendered *r, size_t n, const mx_prompt *out)
{
    mx_tokens ids = {0};
    size_t n_markup = 0, common = 0;
    while (n_markup < r->n_markup && r->markup[n_markup].begin < n) {
        n_markup++;
    }
    if (n_markup == 0) {
        return 0;
    }
    mx_span last = r->markup[n_markup - 1];
    r->markup[n_markup - 1].end = mx_min_size(last.end, n);
    if (mx_tokenizer_encode(t, r->text.ptr, n, r->markup, n_markup, false, &ids) == MX_OK) {
        while (common < ids.n && common < out->tokens.n
               && ids.ids[common] == out->tokens.ids[common]) {
            common++;
        }
    }
    r->markup[n_markup - 1] = last;
    mx_tokens_free(&ids);
    return common;
}

/* Where the markup behind the last message begins. The next prompt of the conversation may have
 * other markup there: the answer instead of what opens one, no reasoning. Counted from the end,
 * so that nothing is tokenised again. */
static size_t tokens_before_ending(const mx_tokenizer *t, const mx_rendered *r,
                                   const mx_prompt *out)
{
    if (r->n_markup == 0 || r->markup[r->n_markup - 1].end != r->text.len) {
        return 0;
    }
    size_t n_bytes = r->text.len - r->markup[r->n_markup - 1].begin, n = out->tokens.n, seen = 0;
    while (n > 0 && seen < n_bytes) {
        seen += mx_tokenizer_piece(t, out->tokens.ids[--n], true).len;
    }
    return n;
}

/* Models with a recurrent state can only resume where a boundary was left, those with windowed layers
 * where a window was kept. */
static void find_marks(mx_api *a, const mx_chat_env *env, struct json_object *body,
                       mx_rendered *r, mx_prompt *out)
{
    const mx_tokenizer *t = mx_model_tokenizer(a->model);
    const mx_kv_shape *shape = mx_model_kv_shape(a->model);
    if (shape->state_bytes > 0 || shape->n_local > 0) {
        add_mark(out, tokens_of_stem(t, r, mx_chat_stem(env, body, r), out));
        add_mark(out, tokens_before_ending(t, r, out));
    }
}

mx_chat_env mx_api_chat_env(const mx_api *a)
{
    const mx_tokenizer *t = mx_model_tokenizer(a->model);
    return (mx_chat_env){
        .template = a->template,
        .tool_form = a->tool_form,
        .bos_text = special_text(t, mx_tokenizer_bos(t)),
        .eos_text = special_text(t, mx_tokenizer_eos(t)),
        .now_s = mx_wall_s(),
    };
}

/* ---- calls of tools -------------------------------------------------------------------------- */

/* For all calls of a prompt, the folder's time included. A conversation that fits into a context takes
 * a few milliseconds; but a body may hold a hundred thousand calls that nobody has made. */
static const uint64_t SAID_US = 4 * 1000000;

typedef struct said_where {
    mx_api *api;
    const mx_hash256 *scope;
    uint64_t began_us;
} said_where;

static bool said(void *arg, const uint8_t nonce[MX_TURN_NONCE], mx_buf *out)
{
    const said_where *w = arg;
    const mx_tokenizer *tok = mx_model_tokenizer(w->api->model);
    return mx_now_us() - w->began_us < SAID_US &&
           (mx_recall_said(w->api->recall, tok, w->scope, nonce, out) ||
            (mx_api_fetch_said(w->api, w->scope, nonce, w->began_us) &&
             mx_recall_said(w->api->recall, tok, w->scope, nonce, out)));
}

static void use_said(mx_chat_env *env, said_where *where, const mx_prompt_rules *rules)
{
    if (rules->reads_recall) {
        env->said = said;
        env->said_arg = where;
    }
}

/* Renders with the calls as they were sampled; *differs: as the client sent them it would be
 * another text. */
static bool render(mx_api *a, mx_chat_env *env, struct json_object *body,
                   const mx_prompt_rules *rules, mx_rendered *out, bool *differs, mx_problem *p)
{
    said_where where = {a, &rules->scope, mx_now_us()};
    size_t n_replayed;
    mx_chat_env plain = *env;
    *differs = false;
    use_said(env, &where, rules);
    bool ok = mx_chat_render_replayed(env, body, out, &n_replayed, p);
    env->said = NULL;
    if (!ok && n_replayed > 0) { /* the template takes them in the client's words only */
        mx_rendered_free(out);
        *p = (mx_problem){0};
        return mx_chat_render(&plain, body, out, p);
    }
    if (!ok || n_replayed == 0) {
        return ok;
    }
    mx_rendered sent;
    mx_problem ignored = {0};
    *differs = !mx_chat_render(&plain, body, &sent, &ignored) ||
               !mx_str_eq(mx_buf_view(&sent.text), mx_buf_view(&out->text));
    mx_rendered_free(&sent);
    return true;
}

/* The prompt behind an answer, with the calls as the next request will have them. */
static bool render_next(mx_api *a, mx_chat_env *env, const mx_reply *reply,
                        const mx_prompt_rules *rules, mx_rendered *out)
{
    said_where where = {a, &rules->scope, mx_now_us()};
    mx_problem p = {0};
    mx_str text = mx_buf_view(&reply->text);
    use_said(env, &where, rules);
    bool ok = mx_chat_render_next(env, reply->body, text, out, &p);
    bool may_differ = env->said != NULL;
    env->said = NULL;
    if (!ok && may_differ) { /* as render does */
        mx_rendered_free(out);
        p = (mx_problem){0};
        ok = mx_chat_render_next(env, reply->body, text, out, &p);
    }
    return ok;
}

bool mx_api_next_prompt(mx_api *a, const mx_reply *reply, const mx_prompt_rules *rules,
                        mx_prompt *out)
{
    mx_chat_env env = mx_api_chat_env(a);
    mx_problem p = {0};
    mx_rendered r;
    bool ok = render_next(a, &env, reply, rules, &r);
    if (ok) {
        source s = {.text = mx_buf_view(&r.text), .markup = r.markup, .n_markup = r.n_markup,
                    .is_chat = true};
        ok = tokenise(a, &s, rules, out, &p) && out->tokens.n > 0;
    }
    if (ok) {
        find_marks(a, &env, reply->body, &r, out);
    }
    mx_rendered_free(&r);
    return ok;
}

bool mx_api_chat_prompt(mx_api *a, struct json_object *body, const mx_prompt_rules *rules,
                        mx_prompt **out, size_t *n, mx_problem *p)
{
    mx_chat_env env = mx_api_chat_env(a);
    mx_rendered r;
    bool is_replayed;
    bool ok = render(a, &env, body, rules, &r, &is_replayed, p) &&
              may_fit(a, r.text.len, "messages", p);
    if (ok) {
        *n = 1;
        *out = mx_calloc(1, sizeof **out);
        if (*out == NULL) {
            ok = out_of_memory(p);
        } else {
            source s = {.is_chat = true, .markup = r.markup, .n_markup = r.n_markup};
            s.text = (mx_str){r.text.ptr == NULL ? "" : r.text.ptr, r.text.len};
            ok = tokenise(a, &s, rules, *out, p);
            if (ok) {
                (*out)->is_replayed = is_replayed;
                find_marks(a, &env, body, &r, *out);
            }
        }
        if (ok && (*out)->tokens.n == 0) {
            ok = mx_problem_field(p, "messages", "the messages render to an empty prompt");
        }
    }
    mx_rendered_free(&r);
    return ok;
}

/* ---- plain prompts --------------------------------------------------------------------------- */

static bool encode_text(mx_api *a, mx_str text, const mx_prompt_rules *rules, const char *where,
                        mx_prompt *out, mx_problem *p)
{
    if (!may_fit(a, text.len, "prompt", p)) {
        return false;
    }
    if (!tokenise(a, &(source){.text = text}, rules, out, p)) {
        return false;
    }
    if (out->tokens.n == 0) {
        return mx_problem_field(p, "prompt", "'%s' is empty: it needs at least one token", where);
    }
    return true;
}

static bool is_number(struct json_object *v)
{
    return json_object_is_type(v, json_type_int) || json_object_is_type(v, json_type_double);
}

static bool copy_ids(mx_api *a, struct json_object *list, const char *where, mx_prompt *out,
                     mx_problem *p)
{
    size_t n = json_object_array_length(list);
    size_t n_vocab = mx_tokenizer_size(mx_model_tokenizer(a->model));
    if (n == 0) {
        return mx_problem_field(p, "prompt", "'%s' is empty: it needs at least one token", where);
    }
    for (size_t i = 0; i < n; i++) {
        struct json_object *v = json_object_array_get_idx(list, i);
        int64_t id = json_object_is_type(v, json_type_int) ? json_object_get_int64(v) : -1;
        if (id < 0 || (uint64_t)id >= n_vocab) {
            return mx_problem_field(p, "prompt", "'%s[%zu]' is not a token id of this model (an "
                                    "integer from 0 to %zu)", where, i, n_vocab - 1);
        }
        if (mx_tokens_push(&out->tokens, (int32_t)id) != MX_OK) {
            return out_of_memory(p);
        }
    }
    return true;
}

static bool one_prompt(mx_api *a, struct json_object *v, const mx_prompt_rules *rules,
                       const char *where, mx_prompt *out, mx_problem *p)
{
    if (json_object_is_type(v, json_type_string)) {
        return encode_text(a, mx_json_text(v), rules, where, out, p);
    }
    if (json_object_is_type(v, json_type_array)) {
        return copy_ids(a, v, where, out, p);
    }
    return mx_problem_field(p, "prompt", "'%s' must be a string or an array of token ids, not %s",
                            where, mx_json_kind(v));
}

bool mx_api_text_prompts(mx_api *a, struct json_object *body, const mx_prompt_rules *rules,
                         mx_prompt **out, size_t *n, mx_problem *p)
{
    struct json_object *v = mx_json_field(body, "prompt");
    if (v == NULL) {
        return mx_problem_field(p, "prompt", "'prompt' is missing: send a string, an array of "
                                "strings or an array of token ids");
    }
    bool is_array = json_object_is_type(v, json_type_array);
    if (is_array && json_object_array_length(v) == 0) {
        return mx_problem_field(p, "prompt", "'prompt' is empty: it needs at least one token");
    }
    bool is_several = is_array && !is_number(json_object_array_get_idx(v, 0));
    *n = is_several ? json_object_array_length(v) : 1;
    if (*n > MX_API_MAX_PROMPTS) {
        return mx_problem_field(p, "prompt", "'prompt' has %zu prompts; at most %d are possible "
                                "in one request", *n, MX_API_MAX_PROMPTS);
    }
    *out = mx_calloc(*n, sizeof **out);
    if (*out == NULL) {
        return out_of_memory(p);
    }
    if (!is_several) {
        return one_prompt(a, v, rules, "prompt", *out, p);
    }
    for (size_t i = 0; i < *n; i++) {
        char where[32];
        snprintf(where, sizeof where, "prompt[%zu]", i);
        struct json_object *item = json_object_array_get_idx(v, i);
        if (!one_prompt(a, item, rules, where, &(*out)[i], p)) {
            return false;
        }
    }
    return true;
}
