/* SPDX-License-Identifier: MIT
 *
 * What a second turn reuses of the first, for each published chat template: the table of
 * docs/templates.md, which has to say what comes out here. And what is computed while idle has to
 * be what the next prompt begins with, for each of them.
 *
 * Tokens are those of one vocabulary (Qwen2's) for all, so that the numbers compare; a template's
 * own marks count with more tokens than its model has for them.
 */
#include "api/api_chat.h"

#include "base/mem.h"
#include "test_env.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "open_tokenizer.h"

static const char answer_text[] = "Rivers carry salt from the rocks into the sea, the water "
                                  "evaporates, and the salt stays.";
static const char reasoning[] = "The user asks about salt. Rivers dissolve rocks, so the answer is "
                                "short and simple.";

typedef struct template_case {
    char name[80];
    mx_template *template;
    char *source;
    mx_chat_env env;
    char bos[32], eos[32];
} template_case;

static const mx_tokenizer *tok;

/* ---- the pieces ------------------------------------------------------------------------------ */

/* How many tokens lie wholly in the first n bytes of the text, and in all of it. */
static size_t count_tokens(mx_str text, size_t n, size_t *all)
{
    mx_tokens ids = {0};
    mx_span whole = {0, text.len};
    assert_int_equal(mx_tokenizer_encode(tok, text.ptr, text.len, &whole, 1, false, &ids), MX_OK);
    size_t at = 0, inside = 0;
    for (size_t i = 0; i < ids.n; i++) {
        at += mx_tokenizer_piece(tok, ids.ids[i], true).len;
        inside += at <= n;
    }
    assert_int_equal(at, text.len); /* or the pieces are not the text, and the sums mean nothing */
    *all = ids.n;
    mx_tokens_free(&ids);
    return inside;
}

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fail_msg("%s cannot be read", path);
    }
    char *bytes = calloc(1, 1 << 20);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (1 << 20) - 1, f);
    fclose(f);
    return bytes;
}

static void open_case(template_case *c, const char *folder, const char *file)
{
    char path[8192];
    size_t n;
    struct json_object *j, *cases, *input, *v;
    mx_errbuf eb = {0};
    *c = (template_case){0};
    snprintf(c->name, sizeof c->name, "%.*s", (int)(strlen(file) - strlen(".json")), file);
    snprintf(path, sizeof path, "%s/expected/%s", folder, file);
    char *text = slurp(path, &n);
    assert_int_equal(mx_json_parse(&j, (mx_str){text, n}, &eb), MX_OK);
    free(text);
    cases = mx_json_field(j, "cases");
    input = mx_json_field(json_object_array_get_idx(cases, 0), "input");
    v = mx_json_field(input, "bos_token");
    snprintf(c->bos, sizeof c->bos, "%s", v != NULL ? json_object_get_string(v) : "");
    v = mx_json_field(input, "eos_token");
    snprintf(c->eos, sizeof c->eos, "%s", v != NULL ? json_object_get_string(v) : "");
    json_object_put(j);
    snprintf(path, sizeof path, "%s/templates/%s.jinja", folder, c->name);
    c->source = slurp(path, &n);
    if (mx_template_parse(&c->template, (mx_str){c->source, n}, &eb) != MX_OK) {
        fail_msg("%s: %s", c->name, eb.text);
    }
    c->env = (mx_chat_env){.template = c->template, .bos_text = mx_str_of(c->bos),
                           .eos_text = mx_str_of(c->eos), .now_s = 1785000000};
}

static void close_case(template_case *c)
{
    mx_template_destroy(c->template);
    free(c->source);
}

static struct json_object *parse(const mx_buf *body)
{
    struct json_object *o;
    mx_errbuf eb = {0};
    if (mx_json_parse(&o, mx_buf_view(body), &eb) != MX_OK) {
        fail_msg("%s: %s", body->ptr, eb.text);
    }
    return o;
}

/* ---- one conversation ------------------------------------------------------------------------ */

/* The beginning of both turns; some templates refuse a system message. */
static void begin_body(mx_buf *b, bool with_system, bool with_tools)
{
    mx_buf_str(b, "{");
    if (with_tools) {
        mx_buf_str(b, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                   "\"description\":\"The weather of a town.\",\"parameters\":{\"type\":\"object\","
                   "\"properties\":{\"town\":{\"type\":\"string\",\"description\":\"Which town.\"}},"
                   "\"required\":[\"town\"]}}}],");
    }
    mx_buf_str(b, "\"messages\":[");
    if (with_system) {
        mx_buf_str(b, "{\"role\":\"system\",\"content\":\"You are a helpful assistant. Answer in "
                   "one sentence.\"},");
    }
    mx_buf_str(b, "{\"role\":\"user\",\"content\":\"Why is the sea salty?\"}");
}

/* How many of the tokens of turn 1 (prompt and answer) turn 2 reuses. */
typedef struct reuse {
    size_t reused, all;
    size_t left; /* what is to be read behind what was computed while idle, up to the user's words */
    bool is_possible;
} reuse;

static size_t common(mx_str a, mx_str b)
{
    size_t n = mx_min_size(a.len, b.len), i = 0;
    while (i < n && a.ptr[i] == b.ptr[i]) {
        i++;
    }
    return i;
}

/* What is computed while idle is what the next prompt begins with, whatever the user says then. */
static size_t check_idle(const template_case *c, struct json_object *body, const char *answer,
                         mx_str second)
{
    static const char words[] = "And why not lakes?";
    mx_rendered next;
    mx_problem p = {0};
    if (!mx_chat_render_next(&c->env, body, mx_str_of(answer), &next, &p)) {
        fail_msg("%s: %s", c->name, p.message);
    }
    mx_str text = mx_buf_view(&next.text);
    if (common(text, second) < text.len || second.len < text.len + strlen(words) ||
        memcmp(second.ptr + text.len, words, strlen(words)) != 0)
    {
        fail_msg("%s: computed while idle:\n%.*s\nnext prompt:\n%.*s", c->name, (int)text.len,
                 text.ptr, (int)second.len, second.ptr);
    }
    size_t all, before = count_tokens(second, text.len, &all);
    count_tokens((mx_str){second.ptr, text.len}, 0, &all);
    mx_rendered_free(&next);
    return all - before;
}

static void render_turns(const template_case *c, bool with_system, const char *answer, reuse *out)
{
    mx_buf first = {0}, second = {0};
    begin_body(&first, with_system, false);
    begin_body(&second, with_system, false);
    mx_buf_str(&first, "]}");
    mx_buf_printf(&second, ",{\"role\":\"assistant\",\"content\":\"");
    for (const char *s = answer; *s != '\0'; s++) {
        mx_buf_str(&second, *s == '\n' ? "\\n" : (char[2]){*s, '\0'});
    }
    mx_buf_str(&second, "\"},{\"role\":\"user\",\"content\":\"And why not lakes?\"}]}");
    struct json_object *one = parse(&first), *two = parse(&second);
    mx_rendered r1, r2 = {0};
    mx_problem p = {0};
    out->is_possible = mx_chat_render(&c->env, one, &r1, &p);
    if (out->is_possible) {
        mx_buf_str(&r1.text, answer);
        if (!mx_chat_render(&c->env, two, &r2, &p)) {
            fail_msg("%s: %s", c->name, p.message);
        }
        size_t n = common(mx_buf_view(&r1.text), mx_buf_view(&r2.text));
        out->reused = count_tokens(mx_buf_view(&r1.text), n, &out->all);
        out->left = check_idle(c, one, answer, mx_buf_view(&r2.text));
    }
    mx_rendered_free(&r1);
    mx_rendered_free(&r2);
    json_object_put(one);
    json_object_put(two);
    mx_buf_free(&first);
    mx_buf_free(&second);
}

static void measure(const template_case *c, const char *answer, reuse *out)
{
    render_turns(c, true, answer, out);
    if (!out->is_possible) {
        render_turns(c, false, answer, out);
    }
    assert_true(out->is_possible);
}

/* A template in which reasoning stands between these words, and whether its prompt ends in the
 * first of them already. */
static bool reasons(const template_case *c, char *answer, size_t cap)
{
    if (strstr(c->source, "</think>") == NULL) {
        return false;
    }
    mx_buf first = {0};
    begin_body(&first, true, false);
    mx_buf_str(&first, "]}");
    struct json_object *one = parse(&first);
    mx_rendered r;
    mx_problem p = {0};
    assert_true(mx_chat_render(&c->env, one, &r, &p));
    const char *last = NULL;
    for (const char *at = r.text.ptr; (at = strstr(at, "<think>")) != NULL; at++) {
        last = at;
    }
    bool is_open = last != NULL && strlen(last) < 12;
    snprintf(answer, cap, "%s%s\n</think>\n\n%s", is_open ? "" : "<think>\n", reasoning, answer_text);
    mx_rendered_free(&r);
    json_object_put(one);
    mx_buf_free(&first);
    return true;
}

/* A call that the template renders, and its result: of the prompt that was answered with the
 * call, how much the next one begins with. */
static void measure_call(const template_case *c, reuse *out)
{
    static const char call[] =
        ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call0abcd\",\"type\":"
        "\"function\",\"function\":{\"name\":\"get_weather\",\"arguments\":\"{\\\"town\\\": "
        "\\\"Oslo\\\"}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call0abcd\",\"name\":"
        "\"get_weather\",\"content\":\"Rain.\"}]}";
    *out = (reuse){0};
    for (int with_system = 1; with_system >= 0 && !out->is_possible; with_system--) {
        mx_buf first = {0}, second = {0};
        begin_body(&first, with_system, true);
        begin_body(&second, with_system, true);
        mx_buf_str(&first, "]}");
        mx_buf_str(&second, call);
        struct json_object *one = parse(&first), *two = parse(&second);
        mx_rendered r1, r2 = {0};
        mx_problem p = {0};
        out->is_possible = mx_chat_render(&c->env, one, &r1, &p) &&
                           mx_chat_render(&c->env, two, &r2, &p) &&
                           strstr(r1.text.ptr, "get_weather") != NULL;
        if (out->is_possible) {
            size_t n = common(mx_buf_view(&r1.text), mx_buf_view(&r2.text));
            out->reused = count_tokens(mx_buf_view(&r1.text), n, &out->all);
        }
        mx_rendered_free(&r1);
        mx_rendered_free(&r2);
        json_object_put(one);
        json_object_put(two);
        mx_buf_free(&first);
        mx_buf_free(&second);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

static void cell(mx_buf *b, const reuse *r)
{
    if (r->is_possible) {
        mx_buf_printf(b, " %zu of %zu |", r->reused, r->all);
    } else {
        mx_buf_str(b, " - |");
    }
}

/* "| name | plain | with reasoning | tool call | idle |", without the reasons behind. */
static void make_row(const template_case *c, mx_buf *row)
{
    char answer[512];
    reuse plain, thought = {0}, called;
    measure(c, answer_text, &plain);
    if (reasons(c, answer, sizeof answer)) {
        measure(c, answer, &thought);
    }
    measure_call(c, &called);
    mx_buf_printf(row, "| %s |", c->name);
    cell(row, &plain);
    cell(row, &thought);
    cell(row, &called);
    mx_buf_str(row, mx_chat_rewrites_answers(&c->env) ? " yes |" : " no |");
    assert_false(row->failed);
    if (plain.left > 1 || thought.left > 1) { /* one token may lie across the place */
        fail_msg("%s: the next turn reads %zu or %zu tokens before the user's words", c->name,
                 plain.left, thought.left);
    }
}

static const char table_head[] = "\n| template |";

/* Whether the document has a line that begins so; it is marked, so that those left at the end are
 * lines that no template has. */
static bool takes_row(char *doc, const char *row)
{
    for (char *at = doc; (at = strchr(at, '\n')) != NULL; at++) {
        if (strncmp(at + 1, row, strlen(row)) == 0) {
            at[1] = '#';
            return true;
        }
    }
    return false;
}

static void table_is_true(void **state)
{
    (void)state;
    const char *shared = mx_test_shared();
    if (shared == NULL) {
        mx_skip_or_fail("the templates are missing");
    }
    char folder[4096];
    size_t n_doc, n_rows = 0, n_wrong = 0;
    snprintf(folder, sizeof folder, "%s/vectors/tokens/vocab/ggml-vocab-qwen2.gguf", shared);
    tok = open_tokenizer(folder);
    char *doc = slurp("docs/templates.md", &n_doc);
    snprintf(folder, sizeof folder, "%s/vectors/templates", shared);
    snprintf(folder + strlen(folder), sizeof folder - strlen(folder), "/expected");
    struct dirent **names;
    int n = scandir(folder, &names, NULL, alphasort);
    folder[strlen(folder) - strlen("/expected")] = '\0';
    for (int i = 0; i < n; i++) {
        if (strstr(names[i]->d_name, ".json") != NULL) {
            template_case c;
            mx_buf row = {0};
            open_case(&c, folder, names[i]->d_name);
            make_row(&c, &row);
            n_rows++;
            if (!takes_row(doc, row.ptr)) {
                n_wrong++;
                print_message("docs/templates.md has no row that begins\n%s\n", row.ptr);
            }
            mx_buf_free(&row);
            close_case(&c);
        }
        free(names[i]);
    }
    free(names);
    for (char *at = doc; (at = strstr(at, "\n| ")) != NULL; at++) {
        if (strncmp(at, table_head, strlen(table_head)) != 0) {
            n_wrong++;
            print_message("docs/templates.md has a row of no template, or a second one:\n%.*s\n",
                          (int)strcspn(at + 1, "\n"), at + 1);
        }
    }
    free(doc);
    mx_tokenizer_destroy((mx_tokenizer *)(uintptr_t)tok);
    assert_true(n_rows >= 29);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(table_is_true)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
