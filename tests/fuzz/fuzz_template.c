// link: mx_text mx_base
/* SPDX-License-Identifier: MIT
 *
 * The input is a template; it is rendered with a fixed context. Whatever it says, the result is a
 * text with sorted markup ranges, or an error, within the limits.
 */
#include "text/template.h"

#include "base/utf8.h"
#include "text/value_internal.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok) {
        abort();
    }
}

/* The variables that the corpus uses, as the interpreter's own JSON reader makes them. */
static const char variables[] =
    "{\"s\": \"Hello, World\", \"u\": \"Stra\\u00dfe \\u65e5 \\u3000\", \"e\": \"\","
    " \"n\": 7, \"neg\": -7,"
    " \"f\": 2.5, \"t\": true, \"no\": null, \"l\": [3, 1, 2],"
    " \"words\": [\"b\", \"A\", \"c\", \"a\"],"
    " \"nested\": [[1, 2], [3, 4]], \"big\": 99999999999999999999,"
    " \"d\": {\"z\": 1, \"a\": [1, null, true, \"x'y\"], \"items\": \"key\", \"\\u00e9\": 1e-05},"
    " \"msgs\": [{\"role\": \"system\", \"content\": \"S\"},"
    " {\"role\": \"user\", \"content\": \" U\\n\"},"
    " {\"role\": \"assistant\", \"content\": \"A\", \"tool\": {\"name\": \"t1\"}}],"
    " \"html\": \"<a href='x'>&\\\"</a>\", \"lines\": \"one\\ntwo\\n\\nthree\\r\\nfour\","
    " \"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|> 'a\\\" \\ud83d\\ude00\"},"
    " {\"role\": \"assistant\", \"content\": \"<think>x</think>y\", \"tool_calls\":"
    " [{\"items\": 1.5, \"b\": {}}]}], \"add_generation_prompt\": true}";

static mx_value *context(mx_arena *a)
{
    mx_run r = {.arena = a, .steps_left = 100000, .max_depth = 100, .max_string_bytes = 100000};
    mx_value *text = mx_value_string(a, mx_str_of(variables), false);
    mx_value *c = text == NULL ? NULL : mx_v_from_json(&r, text);
    check(c != NULL);
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mx_template *t = NULL;
    mx_errbuf eb;
    if (mx_template_parse(&t, (mx_str){(const char *)data, size}, &eb) != MX_OK) {
        check(t == NULL);
        return 0;
    }
    mx_arena *a = mx_arena_create(32 << 20);
    const mx_render_limits limits = {.max_output_bytes = 1 << 20, .max_steps = 200000};
    mx_rendered r;
    check(a != NULL);
    mx_err err = mx_template_render(t, a, context(a), 1785067200, &limits, &r, &eb);
    check(err == MX_OK || r.text.len == 0);
    check(r.text.len <= limits.max_output_bytes && mx_utf8_valid(r.text.ptr, r.text.len));
    size_t end = 0;
    for (size_t i = 0; i < r.n_markup; i++) {
        check(r.markup[i].begin < r.markup[i].end && (i == 0 || r.markup[i].begin > end));
        end = r.markup[i].end;
        check(end <= r.text.len);
    }
    mx_rendered_free(&r);
    mx_arena_destroy(a);
    mx_template_destroy(t);
    return 0;
}
