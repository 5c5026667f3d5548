/* SPDX-License-Identifier: MIT
 *
 * A template is asked for the marks that only one family has, the rarest first: several use
 * <tool_call>, with different things in it.
 */
#include "api/api_tool_form.h"

static bool has(mx_str text, const char *what)
{
    return text.len > 0 && memmem(text.ptr, text.len, what, strlen(what)) != NULL;
}

mx_tool_form mx_tool_form_of(mx_str t)
{
    if (has(t, "[TOOL_CALLS]")) {
        return MX_TOOL_MISTRAL;
    }
    if (has(t, "<｜tool▁calls▁begin｜>")) {
        return MX_TOOL_DEEPSEEK;
    }
    if (has(t, "<function=")) {
        return MX_TOOL_XML;
    }
    if (has(t, "<tool_call>")) { /* keys and values in tags: GLM */
        return has(t, "<arg_key>") ? MX_TOOL_TEXT : MX_TOOL_HERMES;
    }
    if (has(t, "<|start_header_id|>") && has(t, "{\"name\": ") && has(t, "\"parameters\": ")) {
        return MX_TOOL_LLAMA;
    }
    bool knows_calls = has(t, "tool_call") || has(t, "TOOLCALL");
    return knows_calls ? MX_TOOL_TEXT : MX_TOOL_HERMES;
}

const char *mx_tool_form_name(mx_tool_form form)
{
    static const char *const names[MX_N_TOOL_FORMS] = {"text", "hermes", "xml", "llama", "mistral",
                                                       "deepseek"};
    return names[form];
}

const char *const *mx_tool_form_openers(mx_tool_form form, size_t *n)
{
    static const char *const hermes[] = {"<tool_call>"};
    static const char *const xml[] = {"<tool_call>", "<seed:tool_call>", "<function="};
    static const char *const llama[] = {"<|python_tag|>"};
    static const char *const mistral[] = {"[TOOL_CALLS]"};
    static const char *const deepseek[] = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"};
    switch (form) {
    case MX_TOOL_HERMES: *n = MX_COUNT(hermes); return hermes;
    case MX_TOOL_XML: *n = MX_COUNT(xml); return xml;
    case MX_TOOL_LLAMA: *n = MX_COUNT(llama); return llama;
    case MX_TOOL_MISTRAL: *n = MX_COUNT(mistral); return mistral;
    case MX_TOOL_DEEPSEEK: *n = MX_COUNT(deepseek); return deepseek;
    case MX_TOOL_TEXT:
    case MX_N_TOOL_FORMS: break;
    }
    *n = 0;
    return NULL;
}
