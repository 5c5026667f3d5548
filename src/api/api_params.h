/* SPDX-License-Identifier: MIT
 *
 * api_params.h: everything of a request that is not the prompt: sampling, limits, stops, streaming,
 * caching. Shared by chat and plain completions.
 */
#ifndef MX_API_PARAMS_H
#define MX_API_PARAMS_H

#include "api/api_json.h"
#include "sched/engine.h"

enum { MX_API_MAX_STOPS = 64, MX_API_MAX_STOP_BYTES = 1024 };

typedef struct mx_api_params {
    bool stream;
    bool has_tools;   /* and may call them, */
    bool single_call; /* but one at a time */
    struct json_object *tools; /* borrowed, an array when has_tools */
    bool include_usage;      /* stream_options.include_usage */
    uint32_t max_tokens;     /* UINT32_MAX = rest of the context */
    mx_sampling sampling;    /* bias points to `bias` */
    mx_logit_bias *bias;
    mx_str *stops;           /* borrowed from the tree; the array is owned */
    size_t n_stops;
    bool ignore_eos;
    mx_cache_policy cache;
    mx_str model;            /* as requested, borrowed; empty = absent */
    mx_str session;          /* prompt_cache_key, likewise; or the X-Session-Id header */
} mx_api_params;

/* Reads and checks. False: *p says which field and why. Unknown fields are ignored; fields that
 * would change the answer but are not supported are refused by name. Free in both cases. */
bool mx_api_params_read(mx_api_params *out, struct json_object *body, bool is_chat, size_t n_vocab,
                        mx_problem *p);
void mx_api_params_free(mx_api_params *a);

#endif
