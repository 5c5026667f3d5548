/* SPDX-License-Identifier: MIT
 *
 * api_answer.h: a running answer, as api_answer.c shares it with the files that write it in the
 * words of a surface: api_answer_openai.c, api_answer_messages.c. Not for others.
 *
 * Owned by the HTTP loop thread, where everything here is called.
 */
#ifndef MX_API_ANSWER_H
#define MX_API_ANSWER_H

#include "api/api_state.h"
#include "api/api_tools.h"
#include "api/api_write.h"

/* What one engine request gives. */
typedef struct mx_choice {
    mx_output out;
    mx_prompt prompt;            /* taken over; the ids of the answer behind its own */
    size_t n_prompt;
    bool keeps_ids;
    mx_finish finish;
    mx_buf text;      /* collected text of an answer that is not streamed, or may hold calls */
    size_t n_sent;    /* of it, when streamed */
    mx_tool_calls calls; /* found at its end, when the request has tools */
    uint8_t nonce[MX_TURN_NONCE];
    mx_logprobs logprobs;
} mx_choice;

typedef struct mx_answer {
    mx_api *api;
    mx_waker *waker;
    const mx_tokenizer *tokenizer;
    mx_surface surface;
    bool is_chat, stream, include_usage, want_logprobs;
    bool has_tools, single_call; /* the answer may call some, or one */
    struct json_object *tools;   /* owned: those of the request; a copy, as others go on with it */
    bool has_begun;              /* what opens the stream was sent */
    bool has_open_block;         /* Messages: the text block was opened */
    unsigned status;             /* what the log says */
    mx_prompt_rules rules;
    const mx_hash256 *salt;
    mx_reply reply;              /* of a chat whose replay may be computed while idle */
    uint64_t received_us;
    char request_id[48];
    mx_buf head;                 /* the first fields of each object: {"id":...,"model":"..." */
    size_t n;
    mx_request **requests;       /* [n] */
    mx_choice *choices;          /* [n] */
} mx_answer;

/* Reads what there is. True when every choice has ended or one has failed. */
bool mx_answer_read(mx_answer *s);
/* What can be sent now of a choice's text. Where there are tools, what may become a call is held
 * back to the end. */
mx_str mx_answer_next_text(mx_answer *s, mx_choice *c);
/* The first request that failed, as a problem; false = none has. */
bool mx_answer_find_problem(mx_answer *s, mx_problem *p);
void mx_answer_cancel(mx_answer *s);
void mx_answer_sum_usage(const mx_answer *s, mx_usage *u);
/* A pull of an answer that is one object: waits for all of it, or replies what went wrong; then write
 * appends the object's fields behind its head, and its end. */
mx_http_pull mx_answer_pull_object(mx_answer *s, mx_http_exchange *x,
                                   void (*write)(mx_answer *s, mx_buf *b));

/* mx_http_source.pull of each surface, arg is the answer: one object, or a stream. */
mx_http_pull mx_openai_pull_object(void *arg, mx_http_exchange *x, mx_buf *out);
mx_http_pull mx_openai_pull_stream(void *arg, mx_http_exchange *x, mx_buf *out);
mx_http_pull mx_messages_pull_object(void *arg, mx_http_exchange *x, mx_buf *out);
mx_http_pull mx_messages_pull_stream(void *arg, mx_http_exchange *x, mx_buf *out);

#endif
