/* SPDX-License-Identifier: MIT
 *
 * api_tool_form.h: in which form a model writes calls of tools. Each family has its own; which one
 * it is stands in the model's chat template, where it shows the model how, or writes history.
 *
 * Pure functions, any thread.
 */
#ifndef MX_API_TOOL_FORM_H
#define MX_API_TOOL_FORM_H

#include "base/base.h"

typedef enum mx_tool_form {
    MX_TOOL_TEXT = 0, /* not known: calls stay text */
    /* <tool_call>{"name": "f", "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3, QwQ. Also
     * for templates that know no calls: where a client explains them, models take this one. */
    MX_TOOL_HERMES,
    /* <tool_call><function=f><parameter=k>v</parameter></function></tool_call>: Qwen3-Coder,
     * Qwen3.5; with <seed:tool_call>: Seed-OSS; <function=f>{...}</function>: Functionary */
    MX_TOOL_XML,
    /* {"name": "f", "parameters": {...}}, maybe behind <|python_tag|>: Llama 3 */
    MX_TOOL_LLAMA,
    /* [TOOL_CALLS][{"name": "f", "arguments": {...}}], [TOOL_CALLS]f[ARGS]{...}: Mistral */
    MX_TOOL_MISTRAL,
    /* <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>...:
     * DeepSeek V3, V3.1, R1 */
    MX_TOOL_DEEPSEEK,
    MX_N_TOOL_FORMS
} mx_tool_form;

/* Of a template's text. */
mx_tool_form mx_tool_form_of(mx_str template_source);
const char *mx_tool_form_name(mx_tool_form form); /* "text", "hermes", ... */

/* What a call can begin with, in text: n of them, none empty. */
const char *const *mx_tool_form_openers(mx_tool_form form, size_t *n);

#endif
