/* SPDX-License-Identifier: MIT
 *
 * Prompts as token ids. A chat prompt is rendered by the model's template and tokenised with the
 * template's own words marked, so that control tokens count only there; the template also decides
 * about BOS. A plain prompt is user text throughout and gets BOS as the tokeniser wants it; a list
 * of ids is taken as it is.
 *
 * A text that cannot fit whatever its tokens are is refused before it is tokenised: 60 MB cost half
 * a minute of a worker, and a few of them would keep everybody else, /health too, waiting.
 */
#include "api/api_state.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>

static bool out_of_memory(mx_problem *p)
{
    return mx_problem_set(p, 500, NULL, NULL, "out of memory");
}

void mx_prompts_free(mx_prompt *prompts, size_t n)
{
    for (size_t i = 0; prompts != NULL && i < n; i++) {
        mx_tokens_free(&prompts[i].tokens);
    }
    mx_free(prompts);
}

static mx_prompt *new_prompts(size_t n)
{
    mx_prompt *prompts = mx_calloc(n, sizeof *prompts);
    for (size_t i = 0; prompts != NULL && i < n; i++) {
        prompts[i].source = "client";
    }
    return prompts;
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

bool mx_api_chat_prompt(mx_api *a, struct json_object *body, mx_prompt **out, size_t *n,
                        mx_problem *p)
{
    const mx_tokenizer *t = mx_model_tokenizer(a->model);
    mx_chat_env env = {
        .template = a->template,
        .bos_text = special_text(t, mx_tokenizer_bos(t)),
        .eos_text = special_text(t, mx_tokenizer_eos(t)),
        .now_s = mx_wall_s(),
    };
    mx_rendered r;
    bool ok = mx_chat_render(&env, body, &r, p) && may_fit(a, r.text.len, "messages", p);
    if (ok) {
        *n = 1;
        *out = new_prompts(1);
        ok = *out != NULL
             && mx_tokenizer_encode(t, r.text.ptr == NULL ? "" : r.text.ptr, r.text.len, r.markup,
                                    r.n_markup, false, &(*out)->tokens) == MX_OK;
        if (!ok) {
            out_of_memory(p);
        } else if ((*out)->tokens.n == 0) {
            ok = mx_problem_field(p, "messages", "the messages render to an empty prompt");
        }
    }
    mx_rendered_free(&r);
    return ok;
}

/* ---- plain prompts --------------------------------------------------------------------------- */

static bool encode_text(mx_api *a, mx_str text, const char *where, mx_prompt *out, mx_problem *p)
{
    const mx_tokenizer *t = mx_model_tokenizer(a->model);
    if (!may_fit(a, text.len, "prompt", p)) {
        return false;
    }
    if (mx_tokenizer_encode(t, text.ptr, text.len, NULL, 0, true, &out->tokens) != MX_OK) {
        return out_of_memory(p);
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

static bool one_prompt(mx_api *a, struct json_object *v, const char *where, mx_prompt *out,
                       mx_problem *p)
{
    if (json_object_is_type(v, json_type_string)) {
        return encode_text(a, mx_json_text(v), where, out, p);
    }
    if (json_object_is_type(v, json_type_array)) {
        return copy_ids(a, v, where, out, p);
    }
    return mx_problem_field(p, "prompt", "'%s' must be a string or an array of token ids, not %s",
                            where, mx_json_kind(v));
}

bool mx_api_text_prompts(mx_api *a, struct json_object *body, mx_prompt **out, size_t *n,
                         mx_problem *p)
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
    *out = new_prompts(*n);
    if (*out == NULL) {
        return out_of_memory(p);
    }
    if (!is_several) {
        return one_prompt(a, v, "prompt", *out, p);
    }
    for (size_t i = 0; i < *n; i++) {
        char where[32];
        snprintf(where, sizeof where, "prompt[%zu]", i);
        if (!one_prompt(a, json_object_array_get_idx(v, i), where, &(*out)[i], p)) {
            return false;
        }
    }
    return true;
}
