/* SPDX-License-Identifier: MIT
 *
 * api_write.h: pieces of answers: usage, timings, logprobs. Writes into buffers only.
 */
#ifndef MX_API_WRITE_H
#define MX_API_WRITE_H

#include "api/api_state.h"

/* Sums over the prompts of one answer. */
typedef struct mx_usage {
    mx_request_stats total; /* cache_mode, restore, miss of the first prompt; counts are sums */
    const char *prompt_source;
    const mx_tokenizer *tokenizer; /* for the snippets of an explanation */
    bool hides_stored;             /* the stored text is not shown */
} mx_usage;

void mx_usage_add(mx_usage *u, const mx_request_stats *s, bool is_first);
/* "cold", "warm_prefix" or "ssd". */
const char *mx_usage_mode(const mx_usage *u);
void mx_write_usage(mx_buf *b, const mx_usage *u);   /* the usage object */
/* Of it, what is ours: "cache_mode":...,"cache":{...} */
void mx_write_cache_fields(mx_buf *b, const mx_usage *u);
void mx_write_miss(mx_buf *b, const mx_usage *u);    /* usage.cache.miss, an object or null */
void mx_write_timings(mx_buf *b, const mx_usage *u); /* the timings object */
const char *mx_finish_name(mx_finish f);             /* finish_reason, or the log's word */

/* Log probabilities of the tokens of one choice, collected until they are sent. */
typedef struct mx_logprobs {
    size_t n;
    size_t text_offset;        /* completions: characters of text before the next token */
    mx_buf items;              /* chat: the elements of "content" */
    mx_buf tokens, values, top, offsets; /* completions: the four arrays' elements */
} mx_logprobs;

void mx_logprobs_add(mx_logprobs *l, bool is_chat, const mx_tokenizer *t, const mx_output *out);
/* The value of "logprobs"; empties the collection. */
void mx_write_logprobs(mx_buf *b, mx_logprobs *l, bool is_chat);
void mx_logprobs_free(mx_logprobs *l);

#endif
