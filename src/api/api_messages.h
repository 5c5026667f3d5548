/* SPDX-License-Identifier: MIT
 *
 * api_messages.h: Anthropic's Messages API, as far as requests and errors go: a request in its
 * words becomes a chat request, which then goes the way of any other (api_chat.h). Answers are
 * written by api_answer_messages.c.
 *
 * Pure functions, any thread.
 */
#ifndef MX_API_MESSAGES_H
#define MX_API_MESSAGES_H

#include "api/api_json.h"

/* The chat request that says the same as `body` (an object), to be freed with json_object_put.
 * False: *p says which field of `body` and why; *out is NULL then. Unknown fields and kinds of
 * blocks are left out; what would change the answer and is not supported is refused by name. */
bool mx_messages_to_chat(struct json_object *body, struct json_object **out, mx_problem *p);

/* Is it in Anthropic's words rather than OpenAI's? Where no path tells. False when the two are the
 * same. */
bool mx_messages_is_request(struct json_object *body);

/* {"type":"error","error":{...},"request_id":...} */
void mx_messages_error(mx_buf *b, const mx_problem *p, const char *request_id);

#endif
