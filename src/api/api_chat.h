/* SPDX-License-Identifier: MIT
 *
 * api_chat.h: from a chat request to the text of a prompt: messages and tools are checked and
 * normalised, become the variables of the model's own chat template, and the template renders them.
 *
 * Pure functions of their arguments: any thread.
 */
#ifndef MX_API_CHAT_H
#define MX_API_CHAT_H

#include "api/api_json.h"
#include "api/api_tools.h"
#include "text/template.h"

typedef struct mx_chat_env {
    const mx_template *template; /* NULL = the model file has none (or none that parses) */
    mx_tool_form tool_form;      /* in which it has calls of tools */
    mx_str bos_text, eos_text;   /* raw text of the special tokens, empty = none */
    int64_t now_s;               /* what strftime_now sees */
    size_t max_text_bytes;       /* 0 = the template interpreter's own limit */
    /* Appends what the answer said in which a call of a tool was made; false: not known. NULL =
     * calls are rendered as the client sends them. */
    bool (*said)(void *arg, const uint8_t nonce[MX_TURN_NONCE], mx_buf *out);
    void *said_arg;
} mx_chat_env;

/* Renders `body` (an object). *out: text, and the spans of it that are markup; free with
 * mx_rendered_free in every case. False: *p says which field and why.
 *
 * When the last message is from the assistant (and has no tool calls), the prompt ends inside that
 * message, so the model goes on where it ends; `continue_final_message`: false or
 * `add_generation_prompt`: true ask for a new message instead. */
bool mx_chat_render(const mx_chat_env *env, struct json_object *body, mx_rendered *out,
                    mx_problem *p);
/* The same; *n_replayed: so many messages stand there as they were sampled, by the ids of their
 * calls. When it is not 0 and this fails, the same may succeed without env->said. */
bool mx_chat_render_replayed(const mx_chat_env *env, struct json_object *body, mx_rendered *out,
                             size_t *n_replayed, mx_problem *p);

/* tool_choice, or function_call as it was called before, or NULL; *name: which of the two. */
struct json_object *mx_chat_tool_choice(struct json_object *body, const char **name);
/* Is that the type of a part that is no text: an image, a sound, a file? */
bool mx_chat_is_media(mx_str type);

/* What every prompt begins with that goes on behind `answer`, the whole reply to `body`, with a
 * message of the user; up to that message's content. False: not possible, *p may say why. *out
 * as above. */
bool mx_chat_render_next(const mx_chat_env *env, struct json_object *body, mx_str answer,
                         mx_rendered *out, mx_problem *p);

/* May the template render an answer, once it is history, in other words than it was sampled in?
 * Found out by trying: reasoning left out, what opens an answer and is not repeated, system
 * messages and tools that move to the last message. */
bool mx_chat_rewrites_answers(const mx_chat_env *env);

/* How many bytes of the text that `body` was rendered to come before the conversation itself:
 * system messages, tool definitions and what the template puts around them, which another
 * conversation with the same ones begins with, too. Ends where markup does. 0 = not known: the
 * template does not put them first, or refuses them alone. */
size_t mx_chat_stem(const mx_chat_env *env, struct json_object *body, const mx_rendered *rendered);

#endif
