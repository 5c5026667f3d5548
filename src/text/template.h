/* SPDX-License-Identifier: MIT
 *
 * template.h: chat templates: an interpreter for the part of Jinja that published templates use,
 * with the semantics of Hugging Face's apply_chat_template (trim_blocks, lstrip_blocks, loop
 * controls, tojson with unescaped text).
 *
 * A parsed template is immutable and may be rendered by several threads at once, each with its own
 * arena. Depth, steps and output are limited: a template is input from outside.
 */
#ifndef MX_TEMPLATE_H
#define MX_TEMPLATE_H

#include "base/buf.h"
#include "text/value.h"

typedef struct mx_template mx_template;

/* MX_E_FORMAT with "line N: ..." for a syntax error. The text is copied. */
mx_err mx_template_parse(mx_template **out, mx_str source, mx_errbuf *eb);
void mx_template_destroy(mx_template *t);

typedef struct mx_render_limits {
    size_t max_output_bytes; /* 0 = 64 MiB */
    uint64_t max_steps;      /* 0 = 50 million */
    uint32_t max_depth;      /* 0 = 1000 nested calls, expressions, blocks (256 KiB of stack) */
} mx_render_limits;

/* The outcome: UTF-8 text and which byte ranges of it are template markup (sorted, merged). */
typedef struct mx_rendered {
    mx_buf text;
    mx_span *markup;
    size_t n_markup;
    bool is_template_error; /* the template itself called raise_exception: eb holds its words */
} mx_rendered;
void mx_rendered_free(mx_rendered *r);

/* Renders with the variables of `context` (a dict). now_s: what strftime_now sees (seconds since
 * 1970, local time zone). MX_E_INVALID: the template refused or failed on this input; MX_E_LIMIT.
 * */
mx_err mx_template_render(const mx_template *t, mx_arena *arena, const mx_value *context,
                          int64_t now_s, const mx_render_limits *limits, mx_rendered *out,
                          mx_errbuf *eb);

#endif
