/* SPDX-License-Identifier: MIT
 *
 * api.h: the OpenAI- and Anthropic-compatible surfaces: routes, request checks, answers, streams.
 *
 * mx_api_handle is the handler of the HTTP server. It runs on the server's workers: it parses,
 * renders and tokenises there, hands the token list to the engine, and leaves an answer object
 * behind that turns the engine's output into JSON or server-sent events on the loop thread.
 *
 * Life: create -> start the HTTP server (requests get 503 "loading") -> mx_api_set_ready -> serve
 * -> mx_api_stop (new requests get 503) -> drain -> mx_api_cancel_all -> stop the HTTP server ->
 * stop the engine -> destroy.
 */
#ifndef MX_API_H
#define MX_API_H

#include "http/http.h"
#include "sched/engine.h"

#define MX_VERSION "0.1.0"

typedef struct mx_api mx_api;

/* Strings are borrowed for the life of the api. */
typedef struct mx_api_config {
    bool strict_model;            /* refuse other model names with 404 */
    bool canonical_prompts;       /* never keep sampled ids in place of re-tokenised text */
    bool post_commit;             /* compute the replayed form of answers while idle */
    const char *const *api_keys;  /* the same list the HTTP server has: isolation salts */
    size_t n_api_keys;
    bool shared_prefixes;         /* --shared-prefixes: no salts, all keys see all prefixes */
    const mx_hash256 *cache_key;  /* copied; secret, the salts are made with it. Needed when there
                                     are keys that do not share */
    const char *model_path;       /* its file name is an alias of the model */
    const char *options_json;     /* object: options in force, for /info; never keys */
    const char *session_json;     /* object: the MTPLX_SESSION_* settings, for /info */
    const char *cache_dir;        /* shown by /info; NULL = the cold tier is off */
    const mx_hash256 *cache_auth_key; /* with which the files there are authenticated, or NULL;
                                     borrowed */
    const char *cache_mode;       /* "on", "off", "write-only" */
} mx_api_config;

/* Pages computed under one API key are invisible under another: this salt is part of the root of their
 * identities. With a secret in it, names of files tell nothing about keys or texts. False: no memory. */
bool mx_api_key_salt(const mx_hash256 *cache_key, const char *api_key,
                     mx_hash256 *out) MX_MUST_CHECK;

mx_err mx_api_create(mx_api **out, const mx_api_config *cfg, mx_errbuf *eb);
/* The HTTP server and the engine must have been stopped. NULL is allowed. */
void mx_api_destroy(mx_api *a);

/* The model is loaded and the engine runs: from now on requests are served. Both are borrowed until
 * destroy. A chat template that cannot be used is a logged warning: chat requests then get a 400
 * that says so. */
void mx_api_set_ready(mx_api *a, mx_model *model, mx_engine *engine);
/* New requests get 503 from now on. Returns when no handler is using the engine any more. */
void mx_api_stop(mx_api *a);
/* Cancels every answer that is being computed. */
void mx_api_cancel_all(mx_api *a);

/* For mx_http_config: handler (arg is the mx_api) and the paths that never need a key. */
void mx_api_handle(void *arg, mx_http_exchange *x);
extern const char *const mx_api_open_paths[];
extern const size_t mx_api_n_open_paths;
bool mx_api_is_admin_path(const char *path); /* /admin/..., /metrics, /info */
/* In Anthropic's words for clients that speak them. */
bool mx_api_error_words(const mx_http_exchange *x, mx_buf *out, unsigned status, const char *message);

#endif
