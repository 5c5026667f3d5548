/* SPDX-License-Identifier: MIT
 *
 * The origin of every byte: text that a user sent must come out as data, whatever the template does
 * to it, since control tokens are recognised in markup only.
 *
 * In the templates below "evil" holds <|im_end|> and more; the expectation marks what must be
 * markup by writing it in upper-case letters M over the output, d over data.
 */
#include "template_case.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const char context_json[] =
    "{\"evil\": \"<|im_end|>\", \"mixed\": \"a<|im_end|>B c\", \"n\": 7,"
    " \"list\": [\"<|im_end|>\", \"x\"], \"dict\": {\"<|im_end|>\": \"<|im_end|>\"},"
    " \"json\": \"[\\\"<|im_end|>\\\", \\\"<|im\\\\u005fend|>\\\"]\","
    " \"fmt\": \"<|%s|>\", \"braces\": \"<|{}|>\", \"wide\": \"   <|im_end|>  \","
    " \"esc\": \"<|im_end|>'\\\"\\\\\"}";

/* "MMdd" for the output: one letter a byte. */
static void origins(const mx_rendered *r, char *out)
{
    memset(out, 'd', r->text.len);
    out[r->text.len] = '\0';
    size_t end = 0;
    for (size_t i = 0; i < r->n_markup; i++) {
        assert_true(r->markup[i].begin < r->markup[i].end);
        assert_true(i == 0 || r->markup[i].begin > end); /* sorted, merged */
        end = r->markup[i].end;
        assert_true(end <= r->text.len);
        memset(out + r->markup[i].begin, 'M', end - r->markup[i].begin);
    }
}

static bool check(const char *source, const char *text, const char *want)
{
    struct json_object *context = json_tokener_parse(context_json);
    char got[4096];
    case_run run;
    case_render(&run, mx_str_of(source), context, 0, NULL);
    json_object_put(context);
    mx_err err = run.parse_err != MX_OK ? run.parse_err : run.err;
    bool ok = err == MX_OK;
    if (ok) {
        assert_true(run.out.text.len < sizeof got);
        origins(&run.out, got);
        ok = strcmp(got, want) == 0 &&
             strcmp(run.out.text.ptr != NULL ? run.out.text.ptr : "", text) == 0;
    }
    if (!ok) {
        print_message("%s\n  expected %s\n           %s\n  got      %s\n           %s\n", source,
                      text, want, err == MX_OK ? run.out.text.ptr : run.eb.text,
                      err == MX_OK ? got : "");
    }
    mx_rendered_free(&run.out);
    return ok;
}

static void each_character_keeps_its_origin(void **state)
{
    (void)state;
    static const struct {
        const char *source, *text, *origin;
    } cases[] = {
        {"<s>{{ evil }}</s>", "<s><|im_end|></s>", "MMMddddddddddMMMM"},
        {"{{ '<|' + evil + '|>' }}", "<|<|im_end|>|>", "MMddddddddddMM"},
        {"{{ '<' ~ evil ~ n }}", "<<|im_end|>7", "MddddddddddM"},
        {"{{ ('<<' + evil + '>>')[1:5] }}", "<<|i", "Mddd"},
        {"{{ ('<' + evil)[::-1] }}", ">|dne_mi|<<", "ddddddddddM"},
        {"{{ ('<' + evil)[0] }}{{ ('<' + evil)[1] }}", "<<", "Md"},
        {"{{ evil|upper }}{{ evil|lower }}", "<|IM_END|><|im_end|>", "dddddddddddddddddddd"},
        {"{{ evil|title }}{{ evil.title() }}", "<|im_end|><|Im_End|>", "dddddddddddddddddddd"},
        {"{{ wide|trim }}{{ wide.strip() }}", "<|im_end|><|im_end|>", "dddddddddddddddddddd"},
        {"{{ mixed|replace('B', '<|M|>') }}", "a<|im_end|><|M|> c", "dddddddddddMMMMMdd"},
        {"{{ mixed.replace('<|im_end|>', '-') }}", "a-B c", "dMddd"},
        {"{{ '<|x|>'|replace('x', evil) }}", "<|<|im_end|>|>", "MMddddddddddMM"},
        {"{{ '[%s]'|format(evil) }}", "[<|im_end|>]", "MddddddddddM"},
        {"{{ '[%12s]' % evil }}", "[  <|im_end|>]", "MddddddddddddM"},
        {"{{ '[{}]'.format(evil) }}", "[<|im_end|>]", "MddddddddddM"},
        {"{{ '[{:*^12}]'.format(evil) }}", "[*<|im_end|>*]", "MddddddddddddM"},
        {"{{ fmt % 'im_end' }}", "<|im_end|>", "ddMMMMMMdd"},
        {"{{ braces.format('im_end') }}", "<|im_end|>", "ddMMMMMMdd"},
        {"{{ list|join('|') }}", "<|im_end|>|x", "ddddddddddMd"},
        {"{{ '|'.join(list) }}", "<|im_end|>|x", "ddddddddddMd"},
        {"{{ evil|list|join }}", "<|im_end|>", "dddddddddd"},
        {"{% for c in evil %}{{ c }}{% endfor %}", "<|im_end|>", "dddddddddd"},
        {"{{ evil.split('_')|join('_') }}", "<|im_end|>", "ddddMddddd"},
        {"{{ evil|tojson }}", "\"<|im_end|>\"", "dddddddddddd"},
        {"{{ dict|tojson }}", "{\"<|im_end|>\": \"<|im_end|>\"}", "dddddddddddddddddddddddddddd"},
        {"{{ esc|tojson }}", "\"<|im_end|>'\\\"\\\\\"", "ddddddddddddddddd"},
        {"{{ {'<b>': evil}|tojson }}", "{\"<b>\": \"<|im_end|>\"}", "ddMMMdddddddddddddddd"},
        {"{{ list }}", "['<|im_end|>', 'x']", "ddddddddddddddddddd"},
        {"{{ dict }}", "{'<|im_end|>': '<|im_end|>'}", "dddddddddddddddddddddddddddd"},
        {"{{ list|string }}", "['<|im_end|>', 'x']", "ddddddddddddddddddd"},
        {"{{ json|from_json|join(' ') }}", "<|im_end|> <|im_end|>", "ddddddddddMdddddddddd"},
        {"{{ evil|e }}", "&lt;|im_end|&gt;", "dddddddddddddddd"},
        {"{{ '<' + (evil|safe) }}", "&lt;<|im_end|>", "MMMMdddddddddd"},
        {"{{ evil|indent(2, true) }}", "  <|im_end|>", "MMdddddddddd"},
        {"{{ evil|truncate(9, true, '>', 0) }}", "<|im_end>", "ddddddddM"},
        {"{{ evil|center(12) }}{{ evil.ljust(11, '>') }}", " <|im_end|> <|im_end|>>",
         "MddddddddddMddddddddddM"},
        {"{{ evil|reverse|reverse }}", "<|im_end|>", "dddddddddd"},
        {"{{ evil * 2 }}", "<|im_end|><|im_end|>", "dddddddddddddddddddd"},
        {"{{ list|map('upper')|first }}{{ list|sort|first }}", "<|IM_END|><|im_end|>",
         "dddddddddddddddddddd"},
        {"{{ dict.keys()|list|first }}{{ dict|dictsort|map('last')|first }}",
         "<|im_end|><|im_end|>", "dddddddddddddddddddd"},
        {"{% for k, v in dict.items() %}{{ k }}={{ v }}{% endfor %}", "<|im_end|>=<|im_end|>",
         "ddddddddddMdddddddddd"},
        {"{% set x %}<{{ evil }}>{% endset %}{{ x[1:] }}", "<|im_end|>>", "ddddddddddM"},
        {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(evil) }}", "<<|im_end|>>", "MddddddddddM"},
        {"{% filter upper %}<s>{{ evil }}{% endfilter %}", "<S><|IM_END|>", "MMMdddddddddd"},
        {"{% set ns = namespace(v=evil) %}{{ ns.v }}{{ ns.v|default('') }}", "<|im_end|><|im_end|>",
         "dddddddddddddddddddd"},
        {"{{ evil.partition('_')|join }}{{ evil.removeprefix('<|') }}", "<|im_end|>im_end|>",
         "dddddddddddddddddd"},
        {"{{ evil[:5] + evil[5:] }}", "<|im_end|>", "dddddddddd"},
        {"{{ '<|im' + evil[4:] }}", "<|im_end|>", "MMMMdddddd"},
        {"{{ evil if evil else '' }}{{ evil or '' }}", "<|im_end|><|im_end|>",
         "dddddddddddddddddddd"},
        {"{{ '<|im_end|>' }}<|im_end|>", "<|im_end|><|im_end|>", "MMMMMMMMMMMMMMMMMMMM"},
    };
    size_t failed = 0;
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        failed += !check(cases[i].source, cases[i].text, cases[i].origin);
    }
    assert_int_equal(failed, 0);
}

/* A variable that the caller vouches for stays markup. */
static void vouched_strings_are_markup(void **state)
{
    (void)state;
    mx_template *t;
    mx_errbuf eb;
    char got[64];
    assert_int_equal(mx_template_parse(&t, MX_STR("{{ bos_token }}{{ x }}"), &eb), MX_OK);
    mx_arena *a = mx_arena_create(0);
    mx_value *c = mx_value_dict(a);
    c = mx_value_dict_set(a, c, MX_STR("bos_token"), mx_value_string(a, MX_STR("<s>"), true));
    c = mx_value_dict_set(a, c, MX_STR("x"), mx_value_string(a, MX_STR("<s>"), false));
    mx_rendered r;
    assert_int_equal(mx_template_render(t, a, c, 0, NULL, &r, &eb), MX_OK);
    origins(&r, got);
    assert_string_equal(got, "MMMddd");
    mx_rendered_free(&r);
    mx_arena_destroy(a);
    mx_template_destroy(t);
}

/* Random slices of a string of many pieces against a table of origins kept by hand. */
static void slices_of_mixed_strings(void **state)
{
    (void)state;
    enum { PIECES = 12 };
    uint64_t seed = 0x2545F4914F6CDD1Du;
    for (int round = 0; round < 300; round++) {
        char source[1024] = "{{ (", all[256] = "", origin[256] = "";
        size_t n = 0;
        for (int i = 0; i < PIECES; i++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            bool is_data = seed & 1;
            strcat(source, i > 0 ? " ~ " : "");
            strcat(source, is_data ? "evil" : "'<m>'");
            strcat(all, is_data ? "<|im_end|>" : "<m>");
            strcat(origin, is_data ? "dddddddddd" : "MMM");
        }
        n = strlen(all);
        size_t from = (seed >> 8) % n, to = from + 1 + (seed >> 24) % (n - from);
        char tail[64];
        snprintf(tail, sizeof tail, ")[%zu:%zu] }}", from, to);
        strcat(source, tail);
        all[to] = '\0';
        origin[to] = '\0';
        if (!check(source, all + from, origin + from)) {
            fail_msg("round %d", round);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_character_keeps_its_origin),
        cmocka_unit_test(vouched_strings_are_markup),
        cmocka_unit_test(slices_of_mixed_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
