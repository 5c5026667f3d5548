/* SPDX-License-Identifier: MIT
 *
 * api_tools.h: calls of tools in an answer: any number of them at its end, in the form that the
 * model's template has (api_tool_form.h). All else stays text.
 *
 * A call's id names the answer it was made in (mx_turn.nonce), so when it comes back, what the
 * model wrote is found again and takes the place of what a client or a template makes of it.
 *
 * Pure functions, any thread.
 */
#ifndef MX_API_TOOLS_H
#define MX_API_TOOLS_H

#include "api/api_json.h"
#include "api/api_tool_form.h"
#include "cold/cold_turn.h"

typedef struct mx_tool_call {
    struct json_object *object; /* owned: the call as it was written, or written as JSON */
    mx_str name;                /* in it, as what follows */
    struct json_object *arguments; /* an object */
    mx_str id;                  /* the model's own, where the form has one; else empty */
} mx_tool_call;

enum { MX_TOOL_CALLS_MAX = 64, MX_TOOL_ID_CAP = 48 };

typedef struct mx_tool_calls {
    mx_str content;             /* of the text before the first call, without blanks at its end */
    size_t n;
    mx_tool_call calls[MX_TOOL_CALLS_MAX];
} mx_tool_calls;

/* tools: those of the request (an array in OpenAI's shape, or NULL), for the types of arguments, and
 * for the names where the form alone does not tell. False: there is no call in the text, or
 * something else than calls behind it. */
bool mx_tool_calls_read(mx_tool_calls *out, mx_tool_form form, struct json_object *tools,
                        mx_str text);
void mx_tool_calls_free(mx_tool_calls *c);
void mx_tool_calls_cut(mx_tool_calls *c, size_t n); /* keeps the first n, if there are more */

/* Can the text, which begins without blanks, be or become a call of Llama's without any mark? By
 * what it begins with: other JSON need not be held back. */
bool mx_tool_may_be_bare(mx_str text);
/* How much of an unfinished answer can be shown as content: not what is, or may become, a call. */
size_t mx_tool_calls_safe(mx_tool_form form, mx_str text);

/* prefix: "call_" or "toolu_", whatever clients of a surface expect. */
void mx_tool_id(const char *prefix, const uint8_t nonce[MX_TURN_NONCE], size_t index,
                char out[MX_TOOL_ID_CAP]);
/* Of either surface: a conversation may go on over the other. False: it is not one of ours. */
bool mx_tool_id_read(mx_str id, uint8_t nonce[MX_TURN_NONCE], size_t *index);

/* Does a client's list of calls (OpenAI's tool_calls) say the same, whatever the order of keys
 * and the blanks in it? The ids must be those of `nonce`, in order. */
bool mx_tool_calls_equal(const mx_tool_calls *c, const uint8_t nonce[MX_TURN_NONCE],
                         struct json_object *client_calls);

/* The arguments as JSON text, in the model's order of keys; valid as long as the call. */
mx_str mx_tool_call_arguments(const mx_tool_call *call);
/* The elements of OpenAI's "tool_calls"; with_index: as a delta of a stream. */
void mx_tool_calls_write(mx_buf *b, const mx_tool_calls *c, const uint8_t nonce[MX_TURN_NONCE],
                         bool with_index);

#endif
