/* SPDX-License-Identifier: MIT
 *
 * api_state.h: what the files of src/api share: the api object, error replies, wakers. Not for
 * others.
 *
 * Locks: `state_lock` is held for reading by every handler while it uses the engine or the model
 * description, for writing by set_ready and stop. `wakers_lock` guards the lists of wakers; a
 * waker's own lock is taken inside it (cancel_all) or alone, and nothing is locked inside that but
 * what mx_http_wake and mx_request_cancel lock.
 */
#ifndef MX_API_STATE_H
#define MX_API_STATE_H

#include "api/api.h"
#include "api/api_chat.h"
#include "api/api_params.h"
#include "api/api_recall.h"

#include <pthread.h>

typedef enum mx_api_phase { MX_API_LOADING, MX_API_READY, MX_API_STOPPING } mx_api_phase;

/* The way from the engine back to an exchange. The engine may still call a request's wake function
 * a moment after the answer is over, so a waker is never freed before the api is: it is recycled,
 * and a late call wakes nobody or, harmlessly, somebody else. */
typedef struct mx_waker {
    pthread_mutex_t lock;
    mx_http_exchange *x;      /* a reference is held; NULL = unused */
    mx_request **requests;    /* those to cancel, borrowed from the answer; NULL = none */
    size_t n_requests;
    struct mx_waker *next_free, *next_all;
} mx_waker;

typedef struct mx_post mx_post;

struct mx_api {
    mx_api_config cfg;
    int64_t started_s;
    pthread_rwlock_t state_lock;
    mx_api_phase phase;
    mx_model *model;
    mx_engine *engine;
    mx_template *template;    /* NULL = none that can be used */
    char template_error[256]; /* why */
    mx_tool_form tool_form;   /* in which the template has calls of tools */
    char fingerprint[24];     /* system_fingerprint: model, settings and numerics */
    char numerics_id[65];
    size_t max_piece;         /* bytes of the vocabulary's longest token */
    mx_hash256 *salts;        /* [n_api_keys]; NULL: prefixes are shared, or there are no keys */
    mx_recall *recall;        /* NULL: sampled ids are never kept (--canonical-prompts) */
    mx_post *post;     /* NULL: answers come back as they were sampled, or it is off */
    pthread_mutex_t wakers_lock;
    mx_waker *free_wakers, *all_wakers;
    uint64_t next_id;         /* atomic */
};

/* A waker bound to x (takes a reference on it). NULL = no memory. */
mx_waker *mx_waker_get(mx_api *a, mx_http_exchange *x);
void mx_waker_watch(mx_waker *w, mx_request **requests, size_t n);
/* Unbinds and recycles; requests may be freed afterwards. */
void mx_waker_put(mx_api *a, mx_waker *w);
void mx_waker_wake(void *waker); /* for mx_request_params.wake */
void mx_api_free_wakers(mx_api *a);

/* Error object with the fields of *p. */
void mx_api_error_json(mx_buf *out, const mx_problem *p);
void mx_api_reply_problem(mx_http_exchange *x, const mx_problem *p);
/* With more fields beside "error": text that begins with a comma. */
void mx_api_reply_problem_and(mx_http_exchange *x, const mx_problem *p, mx_str fields);
void mx_api_reply_json(mx_http_exchange *x, unsigned status, mx_buf *body);

/* The GET endpoints; the state lock is held for reading. */
void mx_api_get_health(mx_api *a, mx_http_exchange *x);
void mx_api_get_root(mx_api *a, mx_http_exchange *x);
void mx_api_get_models(mx_api *a, mx_http_exchange *x);
void mx_api_get_model(mx_api *a, mx_http_exchange *x, const char *id);
void mx_api_get_info(mx_api *a, mx_http_exchange *x);
void mx_api_get_metrics(mx_api *a, mx_http_exchange *x);
/* What both tell: the engine's figures, and those of the cold tier as they are now. */
void mx_api_get_stats(mx_api *a, mx_engine_stats *out);
/* Everything below /admin/; the state lock is held for reading, for as long as the folder takes. */
void mx_api_handle_admin(mx_api *a, mx_http_exchange *x, const char *rest);
/* The name of this model's folder in the cache folder. */
void mx_api_folder_name(const mx_api *a, char hex[65]);
/* The status of an answer that says what the engine or the folder could not do. */
unsigned mx_api_cache_status(mx_err err);
/* api_sessions.c: rest is what follows "cache/sessions" in the path. */
void mx_api_handle_sessions(mx_api *a, mx_http_exchange *x, const char *rest);
/* Pins an entry in RAM, or lets go of it: as mx_bank_pin, and MX_E_CANCELLED when the engine has ended. */
mx_err mx_api_pin_in_ram(mx_api *a, const mx_hash256 *entry, bool on);
/* Writes the pin of an entry into the folder, or takes it away there. MX_E_NOT_FOUND: neither the entry
 * nor a pin is there. *is_kept: the folder says so now. */
mx_err mx_api_keep_pin(mx_api *a, const mx_hash256 *entry, bool on, bool *is_kept, mx_errbuf *eb);
/* Removes a session that ends in this entry from both tiers, and answers. */
void mx_api_delete_session(mx_api *a, mx_http_exchange *x, const mx_hash256 *id);
void mx_api_reply_wrong_method(mx_http_exchange *x, const char *allowed);
/* POST /admin/cache/lookup; the state lock is held. */
void mx_api_post_lookup(mx_api *a, mx_http_exchange *x);

/* Checks that several endpoints begin with; false = *p says why not. */
bool mx_api_check_phase(const mx_api *a, mx_problem *p);
/* The body as a JSON object, to be freed with json_object_put. */
bool mx_api_parse_body(mx_http_exchange *x, struct json_object **out, mx_problem *p);
/* Replaces a Messages request by the chat request that says the same; false: by NULL, and *p says why. */
bool mx_api_translate(struct json_object **body, mx_problem *p);
/* Refuses a prompt that does not fit into the context, with the numbers: waiting would not make it fit. */
bool mx_api_too_long(const mx_api *a, const char *field, size_t n_prompt, mx_problem *p);
/* With --shared-prefixes a stored text may be that of another key: it is not shown. */
bool mx_api_hides_stored(const mx_api *a);
/* Is `name` one of the names the model is listed under? */
bool mx_api_is_listed(const mx_api *a, mx_str name);

enum { MX_API_MAX_PROMPTS = 64 }; /* in one request to /v1/completions */

/* One prompt as token ids. */
typedef struct mx_prompt {
    mx_tokens tokens;
    bool is_sampled;  /* usage.cache.prompt_source: "sampled_ids", else "client"; or, before both, */
    bool is_replayed; /* "tool_map": a call stands there as it was sampled */
    uint32_t marks[2]; /* [n_marks] mx_request_params.marks */
    size_t n_marks;
    /* The ids are to be remembered together with the answer, */
    bool is_kept;
    mx_turns turns;   /* which is the last of these */
} mx_prompt;

/* What is needed of a chat to know how its answer will be replayed. {0} = nothing is kept. */
typedef struct mx_reply {
    struct json_object *body; /* owned */
    mx_buf text;              /* the answer, as the client has seen it */
} mx_reply;
void mx_reply_free(mx_reply *r);

/* Whose prompt it is, and what may be done with what is remembered. */
typedef struct mx_prompt_rules {
    mx_hash256 scope;           /* mx_recall_text.scope */
    bool reads_recall, stores;
} mx_prompt_rules;

/* key: mx_http_key_index. */
void mx_api_prompt_rules(const mx_api *a, int key, mx_cache_policy cache, mx_prompt_rules *out);
/* The isolation salt of a key; NULL = none. */
const mx_hash256 *mx_api_salt(const mx_api *a, int key);

mx_chat_env mx_api_chat_env(const mx_api *a); /* the state lock is held, or the model is there */
/* Chat: exactly one prompt. Completions: one per element of a prompt array. The array is the
 * caller's to free with mx_prompts_free. */
bool mx_api_chat_prompt(mx_api *a, struct json_object *body, const mx_prompt_rules *rules,
                        mx_prompt **out, size_t *n, mx_problem *p);
bool mx_api_text_prompts(mx_api *a, struct json_object *body, const mx_prompt_rules *rules,
                         mx_prompt **out, size_t *n, mx_problem *p);
/* Puts into a->recall what the folder knows of an answer in t behind its first n_known bytes;
 * waits for the folder, but not long. True: there was something. */
bool mx_api_fetch_turns(mx_api *a, const mx_recall_text *t, size_t n_known);
/* The same for the answer that has this nonce, and those of its conversation. began_us: when the
 * prompt's first such question was asked (mx_now_us), since the folder's time is for all of them. */
bool mx_api_fetch_said(mx_api *a, const mx_hash256 *scope, const uint8_t nonce[MX_TURN_NONCE],
                       uint64_t began_us);
void mx_prompt_free(mx_prompt *prompt); /* what is in it */
void mx_prompts_free(mx_prompt *prompts, size_t n);

/* api_post.c: computes the form in which the template will replay an answer, while nobody needs the
 * engine. NULL without memory or a thread for it. */
mx_post *mx_post_start(mx_api *a);
void mx_post_stop(mx_post *post); /* waits for what is being prepared; takes no more; NULL: ok */
void mx_post_free(mx_post *post); /* after stop */
/* Takes over what is in *reply, and in *ids: the prompt's and the answer's. */
void mx_post_answer(mx_post *post, mx_reply *reply, const mx_prompt_rules *rules,
                    const mx_hash256 *salt, mx_tokens *ids);
/* The tokens of what the next prompt begins with, up to what the user will say. False: not
 * known. */
bool mx_api_next_prompt(mx_api *a, const mx_reply *reply, const mx_prompt_rules *rules,
                        mx_prompt *out);

/* In whose words an answer is given. */
typedef enum mx_surface {
    MX_SURFACE_TEXT,     /* OpenAI: completions */
    MX_SURFACE_CHAT,     /* OpenAI: chat completions */
    MX_SURFACE_MESSAGES, /* Anthropic: messages */
} mx_surface;

/* Starts the work and answers x now (refused) or later. Takes what is in the prompts (they are
 * empty then), not the array, and the reply. */
void mx_api_answer(mx_api *a, mx_http_exchange *x, mx_surface surface,
                   const mx_api_params *params, const mx_prompt_rules *rules, mx_prompt *prompts,
                   size_t n_prompts, mx_reply *reply, uint64_t received_us);

#endif
