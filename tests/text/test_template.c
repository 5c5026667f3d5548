/* SPDX-License-Identifier: MIT
 *
 * The interpreter as a component: limits that hostile templates run into, every allocation failing
 * once, one template in several threads, error texts, and the values that a caller builds.
 */
#include "template_case.h"

#include "base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

static mx_err run_source(mx_str source, const mx_render_limits *limits, size_t arena_bytes,
                         mx_errbuf *eb)
{
    mx_template *t = NULL;
    mx_err err = mx_template_parse(&t, source, eb);
    if (err == MX_OK) {
        mx_arena *a = mx_arena_create(arena_bytes);
        mx_rendered r;
        err = mx_template_render(t, a, mx_value_dict(a), 0, limits, &r, eb);
        mx_rendered_free(&r);
        mx_arena_destroy(a);
    }
    mx_template_destroy(t);
    return err;
}

/* Each of these would take more time or memory than any machine has. */
static void hostile_templates_end_with_a_limit(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ range(-9223372036854775807, 9223372036854775807)|list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(l) %}{% for x in l recursive %}{{ m(l) }}{% endfor %}{% endmacro %}"
        "{{ m([1]) }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{{ 'a' * 10**12 }}", "{{ [0] * 10**12 }}", "{{ ('a' * 10**6) * 10**6 }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}"
        "{% set ns.x = ns.x|replace('a', 'aaaaaaaaaaaaaaaa') %}{% endfor %}",
        "{{ 'x'.ljust(10**15) }}", "{{ '%0999999999d' % 1 }}", "{{ '{:>999999999}'.format(1) }}",
        "{{ 'a'|indent(10**15, true) }}", "{{ [[]]|tojson(indent=10**15) }}",
        "{{ 'a'|center(10**15) }}", "{{ [1]|batch(10**15, 0)|list }}",
        "{{ [1]|slice(10**15, 0)|list }}", "{{ '1'.zfill(10**15) }}",
        "{% set x = [] %}{% set _ = x.append(x) %}{{ x }}",
        "{% set x = [] %}{% set _ = x.append(x) %}{{ x|tojson }}",
        "{% set x = [] %}{% set _ = x.append(x) %}{% set y = [] %}{% set _ = y.append(y) %}"
        "{{ x == y }}",
        "{% set x = [] %}{% set _ = x.append(x) %}{% for i in range(99999) %}"
        "{% set _ = x.extend(x) %}{% endfor %}",
    };
    for (size_t i = 0; i < MX_COUNT(sources); i++) {
        mx_errbuf eb = {{0}};
        struct timespec a, b;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        mx_render_limits limits = {.max_steps = 2000000, .max_output_bytes = 1 << 20};
        mx_err err = run_source(mx_str_of(sources[i]), &limits, 256 << 20, &eb);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        if (err != MX_E_LIMIT) {
            fail_msg("%s: expected limit, got %s (%s)", sources[i], mx_err_name(err), eb.text);
        }
        long ms = (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
        if (ms > 20000) { /* milliseconds in plain builds; sanitizers are slow */
            fail_msg("%s took %ld ms", sources[i], ms);
        }
    }
}

static void nesting_without_end_is_an_error(void **state)
{
    (void)state;
    enum { N = 100000 };
    static const struct {
        const char *before, *unit, *after;
    } shapes[] = {
        {"{{ ", "(", "1"},       {"{{ ", "[", ""},          {"{{ ", "{1:", ""},
        {"{{ ", "not ", "1 }}"}, {"{{ ", "-", "1 }}"},      {"{{ x", "[", "1"},
        {"{{ f", "(f", ""},      {"", "{% if 1 %}", ""},    {"", "{% for x in y %}", ""},
        {"{{ 1", " if 1 else 1", " }}"}, {"{{ x", "[0]", " }}"}, {"{{ x", ".a", " }}"},
        {"{{ x", "|list", " }}"}, {"{{ x", " is defined", " }}"},
        {"{% filter upper", "|upper", " %}"},
        {"{% set ", "(", "x = 1 %}"}, {"", "{% macro m() %}", ""}, {"{{ x", "()", " }}"},
        {"", "{% if 1 %}{% elif 1 %}", ""}, {"{{ 2", "**-2", " }}"}, {"{{ 1", " if 1", " }}"},
    };
    for (size_t i = 0; i < MX_COUNT(shapes); i++) {
        mx_buf b = {0};
        mx_errbuf eb = {{0}};
        mx_buf_str(&b, shapes[i].before);
        for (int k = 0; k < N; k++) {
            mx_buf_str(&b, shapes[i].unit);
        }
        mx_buf_str(&b, shapes[i].after);
        mx_err err = run_source(mx_buf_view(&b), NULL, 0, &eb);
        mx_buf_free(&b);
        if (err != MX_E_LIMIT && err != MX_E_INVALID && err != MX_E_FORMAT) {
            fail_msg("%s...: expected an error, got %s", shapes[i].unit, mx_err_name(err));
        }
    }
    /* Long, but not deep: fine. */
    mx_buf b = {0};
    mx_errbuf eb = {{0}};
    mx_buf_str(&b, "{{ 1");
    for (int k = 0; k < N; k++) {
        mx_buf_str(&b, k % 2 ? " + 1" : " - 1");
    }
    mx_buf_str(&b, " }}{% if 0 %}");
    for (int k = 0; k < 1000; k++) {
        mx_buf_str(&b, "{% elif 0 %}");
    }
    mx_buf_str(&b, "{% endif %}");
    mx_err err = run_source(mx_buf_view(&b), NULL, 0, &eb);
    mx_buf_free(&b);
    if (err != MX_OK) {
        fail_msg("%s", eb.text);
    }
}

static void stated_limits_hold(void **state)
{
    (void)state;
    mx_errbuf eb;
    mx_str ten = MX_STR("0123456789");
    assert_int_equal(run_source(ten, &(mx_render_limits){.max_output_bytes = 10}, 0, &eb), MX_OK);
    assert_int_equal(run_source(ten, &(mx_render_limits){.max_output_bytes = 9}, 0, &eb),
                     MX_E_LIMIT);
    mx_str loop = MX_STR("{% for i in range(100) %}{{ i }}{% endfor %}");
    assert_int_equal(run_source(loop, &(mx_render_limits){.max_steps = 2000}, 0, &eb), MX_OK);
    assert_int_equal(run_source(loop, &(mx_render_limits){.max_steps = 200}, 0, &eb), MX_E_LIMIT);
    mx_str deep = MX_STR("{{ ((((1 + 1) * 2) * 3) * 4) }}");
    assert_int_equal(run_source(deep, &(mx_render_limits){.max_depth = 20}, 0, &eb), MX_OK);
    assert_int_equal(run_source(deep, &(mx_render_limits){.max_depth = 5}, 0, &eb), MX_E_LIMIT);
    mx_str large = MX_STR("{% set x = [0] * 50000 %}{{ x|length }}");
    assert_int_equal(run_source(large, NULL, 4 << 20, &eb), MX_OK);
    assert_int_equal(run_source(large, NULL, 64 << 10, &eb), MX_E_NOMEM);
}

static const char everything[] =
    "{%- macro m(a, b='x') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}"
    "{% endmacro -%}\n"
    "{% set ns = namespace(n=0, l=[]) %}{% for k, v in d|dictsort if v %}{{ loop.last }}"
    "{{ loop.length }}{% set ns.n = ns.n + 1 %}{% set _ = ns.l.append(k) %}{% else %}-{% endfor %}"
    "{{ m(1, 2, 3, z=4) }}{% call m('c') %}body{% endcall %}"
    "{{ d|tojson(indent=2, sort_keys=true) }}"
    "{{ d }}{{ (u ~ '<x>')[::-1]|upper|replace('X', 'y') }}{% set b %}{{ u }}{% endset %}"
    "{{ '%s-%5d' % (b, 7) }}{{ '{:>5}{}'.format(u, 1.5) }}{{ u.split('b')|join('<x>') }}"
    "{{ [3, 1, 2]|sort|map('string')|select('in', '12')|list }}"
    "{{ '[1, {\"a\": \"b\"}]'|from_json }}"
    "{{ strftime_now('%Y') }}{{ 123456789012345678901234567890 }}{{ -7 // 2 }}{{ u|e|indent }}"
    "{% filter trim %} x {% endfilter %}{{ [{'a': 1}]|groupby('a') }}{{ l2 is undefined }}"
    "{{ dict(a=1, **{'b': 2}) }}{{ u[1:3] }}{{ u.title() }}{{ 1 < 2 <= 2 }}{{ 1 if 0 }}"
    "{% with q = 1 %}{{ q }}{% endwith %}{{ cycler('a').next() }}{{ range(3)|batch(2)|list }}";

static mx_value *small_context(mx_arena *a)
{
    mx_value *d = mx_value_dict(a);
    for (int i = 0; i < 20; i++) { /* enough keys for the table of slots */
        char key[16];
        snprintf(key, sizeof key, "key %d", i);
        d = mx_value_dict_set(a, d, mx_str_of(key), mx_value_int(a, i));
    }
    mx_value *list = mx_value_list(a);
    for (int i = 0; i < 9; i++) {
        list = mx_value_list_add(a, list, mx_value_float(a, i / 2.0));
    }
    d = mx_value_dict_set(a, d, MX_STR("list"), list);
    d = mx_value_dict_set(a, d, MX_STR("none"), mx_value_none(a));
    mx_value *big = mx_value_number_text(a, MX_STR("99999999999999999999"));
    mx_value *u = mx_value_string(a, MX_STR("aéb<|im_end|>\xff"), false);
    d = mx_value_dict_set(a, d, MX_STR("big"), big);
    mx_value *c = mx_value_dict(a);
    c = mx_value_dict_set(a, c, MX_STR("d"), d);
    return mx_value_dict_set(a, c, MX_STR("u"), u);
}

static mx_err render_small(const mx_template *t, mx_rendered *r, mx_errbuf *eb)
{
    mx_arena *a = mx_arena_create(0);
    if (a == NULL) {
        return MX_E_NOMEM;
    }
    mx_value *c = small_context(a);
    mx_err err = c == NULL ? MX_E_NOMEM : mx_template_render(t, a, c, 0, NULL, r, eb);
    mx_arena_destroy(a);
    return err;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    mx_template *t = NULL;
    mx_rendered whole = {0}, r = {0};
    mx_errbuf eb;
    assert_int_equal(mx_template_parse(&t, MX_STR(everything), &eb), MX_OK);
    mx_err err = render_small(t, &whole, &eb);
    if (err != MX_OK) {
        fail_msg("%s", eb.text);
    }
    int64_t live = mx_mem_live();
    size_t n_render = 0, n_parse = 0;
    for (uint64_t k = 1;; k++, n_render++) {
        mx_mem_fail_at(k);
        err = render_small(t, &r, &eb);
        mx_mem_fail_at(0);
        if (err == MX_OK) {
            assert_int_equal(r.text.len, whole.text.len);
            mx_rendered_free(&r);
            break;
        }
        assert_int_equal(err, MX_E_NOMEM);
        assert_int_equal(mx_mem_live(), live);
    }
    for (uint64_t k = 1;; k++, n_parse++) {
        mx_template *again = NULL;
        mx_mem_fail_at(k);
        err = mx_template_parse(&again, MX_STR(everything), &eb);
        mx_mem_fail_at(0);
        if (err == MX_OK) {
            mx_template_destroy(again);
            break;
        }
        assert_int_equal(err, MX_E_NOMEM);
        assert_null(again);
        assert_int_equal(mx_mem_live(), live);
    }
    print_message("%zu failing renderings, %zu failing parses\n", n_render, n_parse);
    assert_true(n_render > 3 && n_parse > 10);
    mx_rendered_free(&whole);
    mx_template_destroy(t);
}

/* The arena runs out after every number of bytes: the fine-grained form of the test above. */
static void arenas_may_run_out_anywhere(void **state)
{
    (void)state;
    mx_template *t = NULL;
    mx_errbuf eb;
    assert_int_equal(mx_template_parse(&t, MX_STR(everything), &eb), MX_OK);
    bool done = false;
    for (size_t bytes = 64; !done; bytes += 48) {
        mx_rendered r = {0};
        mx_arena *a = mx_arena_create(bytes);
        mx_value *c = small_context(a);
        mx_err err = c == NULL ? MX_E_NOMEM : mx_template_render(t, a, c, 0, NULL, &r, &eb);
        done = err == MX_OK;
        assert_true(done || err == MX_E_NOMEM);
        mx_rendered_free(&r);
        mx_arena_destroy(a);
    }
    mx_template_destroy(t);
}

typedef struct worker {
    pthread_t thread;
    const mx_template *t;
    const char *want;
    int n_wrong;
} worker;

static void *render_often(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 50; i++) {
        mx_rendered r = {0};
        mx_errbuf eb;
        if (render_small(w->t, &r, &eb) != MX_OK || strcmp(r.text.ptr, w->want) != 0) {
            w->n_wrong++;
        }
        mx_rendered_free(&r);
    }
    return NULL;
}

static void one_template_in_several_threads(void **state)
{
    (void)state;
    mx_template *t = NULL;
    mx_rendered whole = {0};
    mx_errbuf eb;
    worker w[4];
    assert_int_equal(mx_template_parse(&t, MX_STR(everything), &eb), MX_OK);
    assert_int_equal(render_small(t, &whole, &eb), MX_OK);
    for (size_t i = 0; i < MX_COUNT(w); i++) {
        w[i] = (worker){.t = t, .want = whole.text.ptr};
        assert_int_equal(pthread_create(&w[i].thread, NULL, render_often, &w[i]), 0);
    }
    for (size_t i = 0; i < MX_COUNT(w); i++) {
        pthread_join(w[i].thread, NULL);
        assert_int_equal(w[i].n_wrong, 0);
    }
    mx_rendered_free(&whole);
    mx_template_destroy(t);
}

static void errors_name_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *source, *start;
        mx_err err;
    } cases[] = {
        {"a\n\n{% if %}", "line 3: ", MX_E_FORMAT},
        {"a\n{{ 'x\n' }}\n{{ y", "line 4: ", MX_E_FORMAT},
        {"{# \n\n #}\n{{ 1 + 'a' }}", "line 4: ", MX_E_INVALID},
        {"{% raw %}\n\n{% endraw %}\n{{ x.y }}", "line 4: 'x' is undefined", MX_E_INVALID},
        {"\n{{ x|nosuch }}", "line 2: there is no filter named 'nosuch'", MX_E_INVALID},
        {"\n{% nosuch %}", "line 2: unknown or misplaced statement 'nosuch'", MX_E_FORMAT},
        {"\n{{ raise_exception('own words') }}", "own words", MX_E_INVALID},
    };
    for (size_t i = 0; i < MX_COUNT(cases); i++) {
        mx_errbuf eb = {{0}};
        mx_err err = run_source(mx_str_of(cases[i].source), NULL, 0, &eb);
        if (err != cases[i].err || strncmp(eb.text, cases[i].start, strlen(cases[i].start)) != 0) {
            fail_msg("%s: expected %s, got %s (%s)", cases[i].source, cases[i].start,
                     mx_err_name(err), eb.text);
        }
    }
}

static void values_are_what_was_put_in(void **state)
{
    (void)state;
    static const struct {
        const char *text, *printed;
        mx_value_kind kind;
    } numbers[] = {
        {"0", "0", MX_V_INT},           {"-0", "0", MX_V_INT},
        {"9223372036854775807", "9223372036854775807", MX_V_INT},
        {"-9223372036854775808", "-9223372036854775808", MX_V_INT},
        {"9223372036854775808", "9223372036854775808", MX_V_INT},
        {"-123456789012345678901234567890", "-123456789012345678901234567890", MX_V_INT},
        {"1.10", "1.1", MX_V_FLOAT},    {"1e5", "100000.0", MX_V_FLOAT},
        {"1E400", "inf", MX_V_FLOAT},   {"-0.0", "-0.0", MX_V_FLOAT},
        {"0.00001", "1e-05", MX_V_FLOAT}, {"5e-324", "5e-324", MX_V_FLOAT},
        {"1.7976931348623157e308", "1.7976931348623157e+308", MX_V_FLOAT},
        {"0.1", "0.1", MX_V_FLOAT},
        {"123456789012345680.0", "1.2345678901234568e+17", MX_V_FLOAT},
    };
    mx_template *t;
    mx_errbuf eb;
    assert_int_equal(mx_template_parse(&t, MX_STR("{{ n }}"), &eb), MX_OK);
    for (size_t i = 0; i < MX_COUNT(numbers); i++) {
        mx_arena *a = mx_arena_create(0);
        mx_value *n = mx_value_number_text(a, mx_str_of(numbers[i].text));
        mx_value *c = mx_value_dict_set(a, mx_value_dict(a), MX_STR("n"), n);
        mx_rendered r;
        assert_int_equal(mx_value_get_kind(n), numbers[i].kind);
        assert_int_equal(mx_template_render(t, a, c, 0, NULL, &r, &eb), MX_OK);
        assert_string_equal(r.text.ptr, numbers[i].printed);
        mx_rendered_free(&r);
        mx_arena_destroy(a);
    }
    mx_template_destroy(t);
    mx_arena *a = mx_arena_create(0);
    mx_value *d = mx_value_dict(a);
    for (int64_t i = 0; i < 1000; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", (int)(i % 700));
        d = mx_value_dict_set(a, d, mx_str_of(key), mx_value_int(a, i));
    }
    assert_int_equal(mx_value_count(d), 700);
    assert_int_equal(mx_value_get_kind(mx_value_get(d, MX_STR("k650"))), MX_V_INT);
    assert_null(mx_value_get(d, MX_STR("k700")));
    assert_ptr_equal(mx_value_at(d, 3), mx_value_get(d, MX_STR("k3")));
    assert_null(mx_value_at(d, 700));
    assert_null(mx_value_list_add(a, NULL, d));
    assert_null(mx_value_dict_set(a, d, MX_STR("x"), NULL));
    assert_int_equal(mx_value_get_kind(NULL), MX_V_UNDEFINED);
    mx_arena_destroy(a);
}

/* The context belongs to the caller: a template must not change it, not even through a list. */
static void the_context_stays_as_it_was(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{% set _ = l.append(1) %}",
        "{% set _ = l.pop() %}",
        "{% for x in [l] %}{% set _ = x.insert(0, 1) %}{% endfor %}",
        "{% set _ = d.update({'a': 1}) %}",
    };
    for (size_t i = 0; i < MX_COUNT(sources); i++) {
        mx_template *t;
        mx_errbuf eb;
        mx_rendered r;
        assert_int_equal(mx_template_parse(&t, mx_str_of(sources[i]), &eb), MX_OK);
        mx_arena *a = mx_arena_create(0);
        mx_value *l = mx_value_list_add(a, mx_value_list(a), mx_value_int(a, 1));
        mx_value *c = mx_value_dict_set(a, mx_value_dict(a), MX_STR("l"), l);
        c = mx_value_dict_set(a, c, MX_STR("d"), mx_value_dict(a));
        assert_int_equal(mx_template_render(t, a, c, 0, NULL, &r, &eb), MX_E_INVALID);
        assert_int_equal(mx_value_count(l), 1);
        mx_arena_destroy(a);
        mx_template_destroy(t);
    }
}

/* The letter behind % was a NUL, strchr found it, and printf got a format without a type. */
static void a_nul_is_no_type_of_a_format(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{{ '%.3X' % 1.5 }}", "{{ '%X' % 1 }}",     "{{ '%X' % 'a' }}",
        "{{ '%5X' % (2,) }}", "{{ '%1X' % {} }}",
    };
    for (size_t i = 0; i < MX_COUNT(sources); i++) {
        char text[64];
        mx_errbuf eb = {{0}};
        size_t n = strlen(sources[i]);
        memcpy(text, sources[i], n);
        *(char *)memchr(text, 'X', n) = '\0';
        assert_int_equal(run_source((mx_str){text, n}, NULL, 0, &eb), MX_E_INVALID);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_templates_end_with_a_limit),
        cmocka_unit_test(nesting_without_end_is_an_error),
        cmocka_unit_test(stated_limits_hold),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(arenas_may_run_out_anywhere),
        cmocka_unit_test(one_template_in_several_threads),
        cmocka_unit_test(errors_name_the_line),
        cmocka_unit_test(values_are_what_was_put_in),
        cmocka_unit_test(the_context_stays_as_it_was),
        cmocka_unit_test(a_nul_is_no_type_of_a_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
