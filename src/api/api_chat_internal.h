/* SPDX-License-Identifier: MIT
 *
 * api_chat_internal.h: what the files of api_chat.h share. Not for others.
 */
#ifndef MX_API_CHAT_INTERNAL_H
#define MX_API_CHAT_INTERNAL_H

#include "api/api_chat.h"

enum { MX_CHAT_MARK_CAP = 48 };

typedef struct mx_chat {
    const mx_chat_env *env;
    mx_arena *arena;
    mx_problem *p;
    struct json_object *body;
    struct json_object *messages;
    size_t n_messages;
    size_t n_replayed;
    bool continues;        /* the last message is to be continued */
    char mark[MX_CHAT_MARK_CAP]; /* then: what stands behind its content */
    /* Answers that will take the place of calls with a random name (mx_chat_put_said): */
    mx_buf *said;          /* [n_said] */
    size_t n_said, said_cap;
    char said_mark[MX_CHAT_MARK_CAP]; /* what those names begin with */
    mx_tool_calls last_calls; /* those of the message that was replayed last, */
    uint8_t last_nonce[MX_TURN_NONCE]; /* and its answer */
} mx_chat;

MX_INLINE void mx_chat_set(mx_chat *c, mx_value *dict, const char *key, mx_value *v)
{
    mx_value_dict_set(c->arena, dict, mx_str_of(key), v);
}

MX_INLINE mx_value *mx_chat_data(mx_chat *c, mx_str s)
{
    return mx_value_string(c->arena, s, false);
}

/* api_chat_messages.c */
/* JSON to template values; the depth is bounded by the JSON parser. */
mx_value *mx_chat_value(mx_chat *c, struct json_object *v);
/* "system", "user", "assistant" or "tool"; false: a problem was set. */
bool mx_chat_read_role(mx_chat *c, size_t at, struct json_object *m, mx_str *role);
/* The first n_messages of c->messages. NULL: a problem was set, or there is no memory. */
mx_value *mx_chat_build_messages(mx_chat *c);

/* api_chat_calls.c */
/* The "tool_calls" of the message `at`, whose content is given, into its dict. False: a problem was
 * set. */
bool mx_chat_add_calls(mx_chat *c, size_t at, mx_str content, bool has_reasoning,
                       struct json_object *calls, mx_value *dict);
/* The fields of a tool's result, but for its content. */
bool mx_chat_add_result(mx_chat *c, size_t at, struct json_object *m, mx_value *dict);
/* Into the rendered text. False: the template wrote something else, or there is no memory. */
bool mx_chat_put_said(mx_chat *c, mx_rendered *r);
void mx_chat_free_said(mx_chat *c);

/* api_chat.c: random, so that nobody can write it. False: a problem was set. */
bool mx_chat_choose_mark(mx_chat *c, char out[MX_CHAT_MARK_CAP]);

#endif
