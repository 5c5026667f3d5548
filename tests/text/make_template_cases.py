#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes template_cases.json: small templates, one feature each, with what Jinja2 makes of them.

Run it in this folder after adding a case; the file is committed, so that the tests need no Python.
"""
import datetime
import json

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

NOW = datetime.datetime(2026, 7, 26, 12, 0, 0)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("run"), [], [], body).set_lineno(line)

    def run(self, caller):
        return caller()


def environment(cls):
    env = cls(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


USER = {
    "s": "Hello, World", "u": "Straße Ünï 日本 \u3000", "e": "", "n": 7, "neg": -7, "f": 2.5,
    "t": True, "no": None,
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "nested": [[1, 2], [3, 4]],
    "d": {"z": 1, "a": [1, None, True, "x'y"], "items": "key", "é": 1e-05},
    "msgs": [{"role": "system", "content": "S"}, {"role": "user", "content": " U\n"},
             {"role": "assistant", "content": "A", "tool": {"name": "t1"}}],
    "html": "<a href='x'>&\"</a>", "lines": "one\ntwo\n\nthree\r\nfour",
}

# (template, context); a context of None means USER.
CASES = []


def add(*templates, context=None, mutable=False):
    for t in templates:
        CASES.append((t, context, mutable))


# white space
add("a\n", "a\n\n", "a\r\nb\rc\n", "  {% if true %}\n  x\n  {% endif %}\n y", "{% if true %}x{% endif %}\n\ny",
    "a  {%- if true -%}  b  {%- endif -%}  c", "a\n  {%+ if true %}b{% endif %}", "{% if true +%}\nb{% endif %}",
    "a {{- 1 -}} b", "  {{ 1 }}\n  {{ 2 }}", "x\n  {# c #}\n  y", "x {#- c -#} y", "x\n  {#+ c #}y", "{# c +#}\nx",
    "{# {{ x }} {% y %} #}z", "{% raw %}{{ x }}{% endraw %}", "{% raw %}\n {{ x }} \n{% endraw %}\nz",
    "a {%- raw -%}  b  {%- endraw -%} c", " {% raw %} x {%- endraw %}\ny", "a\n\t {% set x = 1 %}\n{{ x }}",
    "a\u3000{%- if 1 %}\u3000{%- endif %}b", "{{ 'a' }}\n{{ 'b' }}\n", "\n{% if 1 %}\n\n{% endif %}\n",
    "{%if 1%}x{%endif%}", "{% if 1 %}a{% else %}b{% endif %}{{1}}{#x#}", "  {%- set a = 1 %}  {{ a }}",
    "{%- for i in l %}\n  {{ i }}\n{%- endfor %}", "a { b } {c", "{", "{{ '{{' }}", "}} %} #}",
    "x  {% for i in [1] -%}\n\n y \n {%- endfor %}  z")
# literals
add("{{ 'a\\n\\t\\'\\\"\\\\ \\x41 \\u00e9 \\U0001F600 \\101 \\q' }}", '{{ "a" \'b\' "c" }}', "{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }}",
    "{{ 1.5 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 1_0.0_1 }} {{ 1e16 }} {{ 123456789.123 }}", "{{ [1, 'a', none, True,] }}",
    "{{ (1,) }} {{ () }} {{ (1, 2) }} {{ 1, 2 }}", "{{ {'a': 1, 2: 'b', 'c': {}} }}", "{{ none }} {{ None }} {{ true }} {{ False }}",
    "{{ 'line\nbreak' }}", "{{ 99999999999999999999 }}", "{{ 'é' }}{{ \"\\u65e5\" }}")
# operators
add("{{ 7 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 - 2 - 3 }} {{ 2 * 3 + 4 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }}",
    "{{ 1 in l }} {{ 9 not in l }} {{ 'ell' in s }} {{ 'z' in d }} {{ x in undefinedvar }} {{ not 1 in l }}",
    "{{ 'a' ~ 1 ~ none ~ undefinedvar }} {{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }}",
    "{{ 1 and 2 }} {{ 0 or 'x' }} {{ '' and 1 }} {{ not '' }} {{ not not 1 }} {{ 0 or none or [] }}",
    "{{ 'a' if t else 'b' }} {{ 'a' if not t }}| {{ 1 if 0 else 2 if 0 else 3 }}", "{{ +3 }} {{ -n }} {{ - -3 }} {{ +true }}",
    "{{ -1|abs }} {{ n - 1|int }} {{ 1 ~ 2 * 3 }}", "{{ true + true }} {{ 5 - true }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ 1 + none }}",
    "{{ l + s }}", "{{ 1 < 'a' }}", "{{ none in none }}", "{{ 1 in 's' }}", "{{ undefinedvar + 1 }}", "{{ none < 1 }}", "{{ -s }}",
    "{{ s == 'Hello, World' }} {{ d == d }} {{ l == [3, 1, 2] }} {{ l != (3, 1, 2) }} {{ none == undefinedvar }}",
    "{{ {'a': 1} == {'a': 1.0} }} {{ [] == () }}", "{% set big = 123456789012345678901234567890 %}{{ big }} {{ big > 5 }} {{ big == big }} {{ -big }} {{ big < 1e40 }} {{ big == 123456789012345678901234567890 }} {{ big > -big }}", "{{ 0.1 + 0.2 }} {{ 1e300 * 1e10 }} {{ 3.0 }}",
    "{{ 10 % 3.5 }} {{ 2.5 * 2 }} {{ 1e22 }} {{ 1e-5 }} {{ 0.0001 }} {{ 100000000000000000000.0 }}", "{{ (1 if 0) is defined }}",
    "{{ 1 == 2 or 3 == 3 and not false }}", "{{ 'x' is string and n is number }}", "{{ not none is none }}", "{{ 1 ~ (2 + 3) }}")
# subscripts
add("{{ l[0] }} {{ l[-1] }} {{ l[9] is undefined }} {{ s[0] }} {{ s[-1] }} {{ u[4] }} {{ l.0 }} {{ nested.1.0 }}",
    "{{ s[1:4] }} {{ s[:-7] }} {{ s[::-1] }} {{ s[::2] }} {{ s[-5:] }} {{ u[3:8] }} {{ u[::-1] }} {{ s[5:2] }}|{{ s[100:] }}|",
    "{{ l[1:] }} {{ l[::-1] }} {{ l[:-1] }} {{ l[-2:] }} {{ l[2:0:-1] }} {{ l[::2] }} {{ (1, 2, 3)[1:] }} {{ l[none:2] }}",
    "{{ d.z }} {{ d['z'] }} {{ d['items'] }} {{ d.a[3] }} {{ d['nope'] is defined }} {{ d.nope is defined }} {{ d.get('items') }}",
    "{{ d.nope.deeper }}", "{{ undefinedvar.x }}", "{{ undefinedvar[0] }}", "{{ none.x is undefined }}", "{{ s.nope is defined }} {{ n.x is defined }}",
    "{{ d.items is callable }} {{ d.items == 'key' }}", "{{ {1: 'a', true: 'b'} }} {{ {1.0: 'x'}[1] }}", "{{ l['0'] is defined }}", "{{ s['upper']() }}",
    "{{ d[[1]] is defined }}", "{{ l[1.0] is defined }}", "{{ l[::0] }}", "{{ n[0] is defined }} {{ n[1:] is defined }}", "{{ range(5)[1:3]|list }}",
    "{{ {'a': {'b': [10, 20]}}.a.b[1] }}", "{{ d.__class__ is defined }}")
# if, for, scopes
add("{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif none %}b{% elif [1] %}c{% else %}d{% endif %}",
    "{% for x in l %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
    "{% for x in l %}[{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }}]{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}", "{% for k, v in d|items %}{{ k }}{% endfor %}", "{% for c in u %}<{{ c }}>{% endfor %}",
    "{% for x in l if x != 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.last }} {% endfor %}",
    "{% for x in l if x > 5 %}x{% else %}empty{% endfor %}", "{% for x in l if x != 3 %}{{ x }}{{ loop.nextitem }}{{ loop.last }}{% endfor %}",
    "{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for a in nested %}{% for b in a %}{{ loop.index }}{{ b }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for (a, b) in nested %}{{ a }}-{{ b }} {% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1,1,2] %}{{ loop.changed(x) }} {% endfor %}", "{% for a, b in l %}{% endfor %}",
    "{% for x in n %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for x in undefinedvar %}a{% else %}b{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}d{{ loop.depth }}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i + 10 %}{{ x }} {% endfor %}{{ x }}", "{% if 1 %}{% set x = 5 %}{% endif %}{{ x }}",
    "{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{% set ns = namespace() %}{% set ns.x = 3 %}{{ ns.x }}{{ ns['x'] }}", "{% set ns = namespace({'q': 4}, r=5) %}{{ ns.q }}{{ ns.r }}", "{% set d.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, e) = (3, 4) %}{{ c }}{{ e }}", "{% set x %}abc{{ n }}{% endset %}[{{ x }}]", "{% set x | upper | trim %} abc {% endset %}[{{ x }}]",
    "{% set x %}{% set y = 2 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter trim | replace('b', 'X') %}  abc  {% endfilter %}", "{% generation %}a{{ n }}{% set q = 1 %}{% endgeneration %}{{ q is defined }}",
    "{% set loop = 3 %}{{ loop }}{% for i in [1] %}{{ loop.index }}{% endfor %}", "{% for i in range(3) %}{{ i }}{% endfor %}{{ i is defined }}", "{{ range(2, 8, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(0)|list }}",
    "{{ range(3) }} {{ range(3)|length }} {{ 2 in range(3) }}", "{% for m in msgs %}{{ m.role }}:{{ m['content'] }}{{ m.tool.name if m.tool }}|{% endfor %}",
    "{% for x in l %}{% set ns = loop.index %}{% endfor %}{{ ns is defined }}", "{% for i in [3, 4] %}{% set c = caller %}{{ i }}{% endfor %}", "{% set f = namespace(go=true) %}{% for i in [1,2,3] if f.go %}{{ i }}{% if i == 2 %}{% set f.go = false %}{% endif %}{% endfor %}",
    "{% set f = namespace(go=true) %}{% for i in [1,2,3] if f.go %}{{ i }}{{ loop.last }}{% if i == 1 %}{% set f.go = false %}{% endif %}{% endfor %}", "{% for x in s[:3] %}{{ x }}{{ loop.length }}{% endfor %}")
add("{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}e{% endfor %}", "{% for x in l %}{{ x }}{% break %}{% else %}e{% endfor %}",
    "{% for x in [1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% else %}e{% endfor %}", "{{ nested|sort(attribute='role') }}", "{{ l|truncate(5) }}", "{{ undefinedvar is callable }}",
    "{{ (1, 2).copy() }}", "{{ ('a' % undefinedvar) }}", "{{ ''|list }}{{ [''] }}{{ [e ~ e] }}{{ joiner()() ~ '' }}")
# macros
add("{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 5) }} {{ m(1, c=9) }} {{ m(b=3, a=4) }} {{ m() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %},{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body {{ n }}{% endcall %}", "{% macro m(l) %}{% for x in l %}{{ caller(x, y=1) }}{% endfor %}{% endmacro %}{% call(x, y=0) m([1, 2]) %}<{{ x }}{{ y }}>{% endcall %}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m() %}{{ late }}{% endmacro %}{% set late = 'L' %}{{ m() }}",
    "{% for i in [1, 2] %}{% macro m() %}{{ i }}{{ inner }}{% endmacro %}{% set inner = 'x' %}{{ m() }}{% endfor %}", "{% macro m() %}{% set q = 1 %}{{ q }}{% endmacro %}{{ m() }}{{ q is defined }}",
    "{% macro m() %}  x  {% endmacro %}[{{ m()|trim }}]{{ m() is string }}{{ m is callable }}{{ m.name }}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}", "{% macro m(x) %}{{ x is defined }}{% endmacro %}{{ m() }}{{ m(none) }}",
    "{% macro m() %}{{ m2() }}{% endmacro %}{{ m() }}", "{% macro inf() %}{{ inf() }}{% endmacro %}{{ inf() }}", "{{ undefinedfn() }}", "{{ n() }}", "{{ d.nope() }}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro o() %}{% macro i() %}I{{ n }}{% endmacro %}{{ i() }}{% endmacro %}{{ o() }}")
# tests
add("{% for x in [1, 1.5, 'a', true, none, [], {}, (1,), range(2)] %}{{ x is integer }}{{ x is float }}{{ x is number }}{{ x is string }}{{ x is boolean }}{{ x is none }}{{ x is mapping }}{{ x is iterable }}{{ x is sequence }}{{ x is callable }}\n{% endfor %}",
    "{{ undefinedvar is defined }} {{ undefinedvar is undefined }} {{ n is defined }} {{ undefinedvar is none }} {{ undefinedvar is iterable }} {{ undefinedvar is sequence }} {{ undefinedvar is mapping }}",
    "{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ -3 is odd }}", "{{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 1 is gt 2 }} {{ 1 is le 1 }} {{ 1 is ge 2 }} {{ 1 is equalto 1 }}",
    "{{ 1 is in l }} {{ 'H' is in s }} {{ 5 is not in l }}", "{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ '' is false }}", "{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'aB' is lower }} {{ '1' is lower }} {{ 'a1' is lower }}",
    "{{ none is sameas none }} {{ true is sameas true }} {{ 1 is sameas true }}", "{{ n is not none }} {{ n is not string and n is not mapping }}", "{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}",
    "{{ d.items() is sequence }} {{ d.items() is iterable }} {{ d.keys() is mapping }} {{ (l|map('string')) is sequence }} {{ (l|map('string')) is iterable }}", "{% if 0 %}{{ x is nosuchtest }}{% endif %}ok", "{% if 1 %}{{ x is nosuchtest }}{% endif %}",
    "{% if 0 %}{{ x|nosuchfilter }}{% endif %}ok", "{% if 1 %}{{ x|nosuchfilter }}{% endif %}", "{{ s is string == true }}", "{{ 'a' is string and 'b' is string }}", "{{ 'x'|safe is escaped }} {{ 'x' is escaped }}", "{{ 'a' is odd }}", "{{ [1] is in [[1]] }}")
# filters
add("{{ d|tojson }}", "{{ d|tojson(indent=2) }}", "{{ msgs|tojson(indent=4) }}", "{{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ '😀'|tojson(ensure_ascii=True) }}", "{{ '<>&\\'\"\\\\/\\b\\f\\n\\r\\t\\x01\\x7f\\u2028'|tojson }}",
    "{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ l|tojson(separators=(',', ':')) }} {{ {'a': [1, {}], 'b': []}|tojson(indent=1, separators=(',', '=')) }}", "{{ [1.0, 1e-7, 1e22, 2.5, 100, 123456789012345678901234567890, true, none, '']|tojson }}", "{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}",
    "{{ undefinedvar|tojson }}", "{{ (1, 2)|tojson }} {{ range(2)|list|tojson }}", "{{ range|tojson }}", "{{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }}", "{{ l|tojson(indent='--') }}", "{{ '{\"a\": [1, 2.5, null, true, \"x\\\\n\\\\u00e9\\\\ud83d\\\\ude00\"]}'|from_json }}",
    "{{ '{bad'|from_json }}", "{{ '  a b '|trim }}| {{ 'xxaxx'|trim('x') }} {{ '\u3000\u00a0a\u0085\u2003\u001f'|trim }}| {{ '\u200ba'|trim|length }} {{ n|trim }}", "{{ s|length }} {{ u|length }} {{ l|count }} {{ d|length }} {{ undefinedvar|length }} {{ ()|length }}", "{{ n|length }}", "{{ (l|map('string'))|length }}",
    "{{ undefinedvar|default('x') }} {{ none|default('x') }} {{ ''|default('x', true) }} {{ 0|d(5, boolean=true) }} {{ undefinedvar|default }}|", "{{ l|join(', ') }} {{ l|join }} {{ msgs|join('-', attribute='role') }} {{ 'abc'|join('.') }} {{ [1, none, undefinedvar, true]|join('|') }}",
    "{{ s|upper }} {{ s|lower }} {{ u|upper }} {{ u|lower }} {{ 'ǆ ŉ İ ß ﬁ'|upper }} {{ 'İ'|lower|length }}", "{{ 'hello wORLD'|capitalize }} {{ 'ñandú ÀB'|capitalize }} {{ ''|capitalize }}", "{{ \"it's a-b (c) [d] {e} <f> x\"|title }} {{ 'ß ǆ'|title }}", "{{ s|replace('l', 'L') }} {{ s|replace('l', 'L', 2) }} {{ s|replace('', '-') }} {{ 123|replace(2, 'x') }} {{ u|replace('ß', 'ss') }}",
    "{{ u|list }} {{ d|list }} {{ (1, 2)|list }} {{ 'ab'|list }}", "{{ d|items|list }}", "{{ l|items|list }}", "{{ undefinedvar|items|list }}", "{{ d|dictsort }} {{ {'b': 2, 'A': 3, 'c': 1}|dictsort }} {{ {'b': 2, 'A': 3, 'c': 1}|dictsort(true) }} {{ {'b': 2, 'a': 3}|dictsort(by='value') }} {{ {'b': 2, 'a': 3}|dictsort(reverse=true) }}",
    "{{ l|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ l|sort(reverse=true) }} {{ msgs|sort(attribute='role')|map(attribute='role')|list }}", "{{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 1}]|sort(attribute='a,b') }}", "{{ [1, 'a']|sort }}",
    "{{ [1, 2, 1, 3, 2]|unique|list }} {{ words|unique|list }} {{ words|unique(case_sensitive=true)|list }}", "{{ words|map('upper')|list }} {{ msgs|map(attribute='role')|join(',') }} {{ msgs|map(attribute='tool.name', default='-')|list }} {{ l|map('string')|list }} {{ nested|map('first')|list }} {{ ['a b']|map('replace', ' ', '_')|list }}",
    "{{ [0, 1, '', 'a']|select|list }} {{ [0, 1, '', 'a']|reject|list }} {{ l|select('odd')|list }} {{ l|reject('gt', 1)|list }} {{ words|reject('in', ['a', 'b'])|list }}", "{{ msgs|selectattr('role', 'equalto', 'user')|list }} {{ msgs|rejectattr('role', '==', 'user')|map(attribute='role')|list }} {{ msgs|selectattr('tool')|list|length }} {{ msgs|selectattr('tool', 'defined')|list|length }} {{ msgs|rejectattr('tool', 'undefined')|list|length }}",
    "{{ l|first }} {{ l|last }} {{ []|first is undefined }} {{ 'abc'|first }} {{ 'abc'|last }} {{ d|first }} {{ msgs|selectattr('tool', 'undefined')|first }}", "{{ l|min }} {{ l|max }} {{ words|min }} {{ words|max }} {{ []|min is undefined }} {{ msgs|max(attribute='role') }}", "{{ l|sum }} {{ [1.5, 2]|sum }} {{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }} {{ []|sum }} {{ [1]|sum(start=5) }}",
    "{{ '42'|int }} {{ ' 42 '|int }} {{ '4.7'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ 4.9|int }} {{ -4.9|int }} {{ true|int }} {{ '0x1F'|int(base=16) }} {{ '11'|int(0, 2) }} {{ none|int }} {{ [1]|int }} {{ '123456789012345678901'|int }}", "{{ '1.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ '1e3'|float }} {{ none|float }} {{ 'x'|float(2.5) }} {{ 'inf'|float }}",
    "{{ n|string ~ 1 }} {{ true|string }} {{ none|string }} {{ l|string }} {{ d|string }} {{ 1.0|string }}", "{{ html|e }} {{ html|escape }} {{ html|safe }} {{ html|forceescape }} {{ html|safe|e }} {{ html|e|e }}", "{{ '<' + ('<'|safe) }} {{ ('<'|safe) + '<' }} {{ ('<'|safe) ~ '<' }} {{ ('<%s>'|safe) % '<' }} {{ ('<{}>'|safe).format('<') }} {{ ('a'|safe).join(['<', '>']) }} {{ ('<a'|safe).replace('a', '<') }}",
    "{{ ('<'|safe|upper) + '&' }} {{ ('<'|safe)[0:] + '&' }} {{ ('<'|safe|trim) + '&' }} {{ ('<'|safe|replace('x', 'y')) + '&' }} {{ ('<b'|safe).split('b')[0] + '&' }} {{ (('<'|safe) * 2) + '&' }} {{ ('<'|safe|string) + '&' }} {{ [('<'|safe)] }}", "{{ lines|indent }}|{{ lines|indent(2, true) }}|{{ lines|indent(2, blank=true) }}|{{ 'a\n'|indent }}|{{ 'a\nb'|indent('> ') }}|{{ ''|indent(first=true) }}",
    "{{ 42.55|round }} {{ 42.55|round(1) }} {{ 42.45|round(1, 'floor') }} {{ 42.41|round(1, 'ceil') }} {{ 2.5|round }} {{ 3.5|round }} {{ 7|round }} {{ 1234|round(-2) }} {{ 0.5|round|int }} {{ 2.675|round(2) }}", "{{ -5|abs }} {{ -2.5|abs }} {{ true|abs }}", "{{ 'a'|abs }}",
    "{{ l|reverse|list }} {{ 'abc'|reverse }} {{ u|reverse }}", "{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3]|batch(2, 'x')|list }}", "{{ [1,2,3,4,5]|slice(2)|list }} {{ [1,2,3,4,5]|slice(3, 'x')|list }}", "{% for k, g in [{'a': 1}, {'a': 2}, {'a': 1}]|groupby('a') %}{{ k }}:{{ g|length }} {% endfor %}", "{{ 'a b_c  d-e ñ'|wordcount }}",
    "{{ '%s and %d: %05.2f %x %%'|format('a', 3, 2.5, 255) }} {{ '%(a)s'|format(a=1) }} {{ '%-5s|%5s|%r' % ('a', 'b', 'c') }} {{ '%s' % l }} {{ '%s' % (l,) }} {{ '%+d % d %03d' % (1, 2, 3) }} {{ '%.2s' % 'abc' }} {{ '%*d' % (4, 7) }} {{ '%c' % 'x' }} {{ '%e' % 12345.678 }} {{ '%g' % 0.0001 }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % 'a' }}", "{{ '%s' % (1, 2) }}", "{{ 'a' % 1 }}", "{{ '%s' % d }}",
    "{{ s|truncate(8) }} {{ s|truncate(8, true) }} {{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(11, false, '..', 0) }} {{ 'short'|truncate }}", "{{ 'ab'|center(6) }}| {{ 'abc'|center(6) }}|{{ 'ab'|center(5) }}|", "{{ d|attr('items') is callable }} {{ d|attr('z') is defined }}", "{{ [1, 2]|map('nosuch')|list }}", "{{ (l|select('odd')) and 'always' }} {{ ([]|select) and 'true' }}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|map('string') %}{{ g|first }}{{ g|list }}")
# methods
add("{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ \"it's ok 2b\".title() }}", "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\u3000b'.split() }} {{ 'aXXbXXc'.split('XX')[-1] }} {{ 'a,b'.split(sep=',') }}",
    "{{ 'a'.split('') }}", "{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xyaxy'.strip('yx') }}|{{ '\\nab\\n'.rstrip('\\n') }}|{{ 'éaé'.strip('é') }}|{{ ' a '.strip(none) }}|", "{{ s.startswith('Hell') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith(()) }} {{ s.startswith('W', 7) }} {{ s.startswith('') }}", "{{ s.startswith(1) }}",
    "{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'aaa'.replace('aa', 'b') }} {{ 'ab'.replace('', '-') }}", "{{ s.find('o') }} {{ s.find('zz') }} {{ s.rfind('o') }} {{ u.find('日') }} {{ s.find('o', 5) }} {{ s.index('W') }} {{ s.count('l') }} {{ s.count('') }} {{ 'aaaa'.count('aa') }}", "{{ s.index('zz') }}", "{{ '-'.join(['a', 'b']) }} {{ ''.join('abc') }} {{ ', '.join(d) }}", "{{ '-'.join([1]) }}",
    "{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a\\n'.splitlines() }} {{ ''.splitlines() }}", "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ 'x'.removeprefix('y') }}", "{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ''.isdigit() }} {{ 'é'.isalpha() }} {{ 'a b'.isalnum() }} {{ '5'.isnumeric() }}",
    "{{ '{} {}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=3) }} {{ '{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}'.format('a', 'b', 'c', 42, 3.14159, 1234567) }} {{ '{{}}'.format() }} {{ '{0[a]} {1.z}'.format({'a': 1}, d) }} {{ '{!r}'.format('a') }} {{ '{:*^7}'.format('ab') }} {{ '{:x} {:b}'.format(255, 5) }} {{ '{:+}'.format(3) }} {{ '{:.1%}'.format(0.256) }} {{ '{}'.format(l) }}", "{{ '{}'.format() }}", "{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }}", "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '*') }} {{ 'ab'.center(5, '-') }}",
    "{{ d.get('z') }} {{ d.get('nope') }} {{ d.get('nope', 'x') }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {{ d.copy() == d }} {{ 'z' in d.keys() }}", "{{ d.pop('z') }}", "{{ d.update({'a': 1}) }}", "{{ d.setdefault('q', 1) }}", "{{ l.index(1) }} {{ l.count(3) }} {{ l.copy() }} {{ (1, 2).index(2) }}", "{{ l.index(99) }}", "{{ l.sort() }}", "{{ l.append(1) }}", "{{ s.nosuch() }}", "{{ l.upper() }}", "{{ s.upper(1) }}", "{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('k', 'v')]) }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b", "{{ raise_exception('My words: ' ~ s) }}", "{{ raise_exception('é' * 3) }}", "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M') }} {{ strftime_now('') }}|{{ strftime_now('%B %A %%') }}")
# a list that the template made itself can grow: not so in the strict sandbox
add("{% set x = [] %}{% set _ = x.append(1) %}{% set _ = x.append('a') %}{{ x }}{{ x.pop(0) }}{{ x }}", "{% set ns = namespace(ids=[]) %}{% for m in msgs %}{% set _ = ns.ids.append(m.role) %}{% endfor %}{{ ns.ids|join(',') }} {{ ns.ids.pop() }}", "{% set x = [1] %}{{ x.extend([2, 3]) }}{{ x.insert(0, 9) }}{{ x.insert(-1, 8) }}{{ x }}{{ x.remove(2) }}{{ x }}", mutable=True)
# printing
add("{{ d }}", "{{ ['it\\'s', '\"', 'both \\' \"', '\\\\', '\\n\\t\\x00\\x7f', 'é', '\u00a0', '\u200b', '😀', '\ufeff'] }}", "{{ [1.0, -0.0, 1e16, 1e15, 123456.789, 1e-4, 1e-5] }} {{ [none, true] }}", "{{ undefinedvar }}|{{ [undefinedvar] }}", "{{ {'a': (1, [2, {'b': none}])} }}", "{{ nested }} {{ [] }} {{ {} }} {{ [[]] }}", "{{ d.keys() is defined }}", "{{ {'k': 'v'}.items()|list }}")
# syntax errors
add("{% if %}x{% endif %}", "{{ }}", "{{ 1 + }}", "{% for x %}{% endfor %}", "{% nosuch %}", "{% if 1 %}", "{% endif %}", "{{ 'a }}", "{{ a b }}", "{# x", "{% raw %}x", "{{ (1 }}", "{{ [1, }}", "{{ {'a' 1} }}", "{% set 1 = 2 %}", "{% macro m(a=1, b) %}{% endmacro %}", "{{ f(a=1, 2) }}", "{{ x|}}", "{{ x is }}", "{% else %}", "{{ '\\x' }}", "{% for x in y %}{% endif %}", "{{ a.'b' }}", "{{ not }}", "{% break %}", "{{ $ }}", "{% if 1 %}{% else %}{% elif 2 %}{% endif %}", "{% call 1 %}{% endcall %}")


def run(template, context, mutable):
    env = environment(SandboxedEnvironment if mutable else ImmutableSandboxedEnvironment)
    case = {"template": template}
    if context is not None:
        case["context"] = context
    try:
        case["expected"] = env.from_string(template).render(**(USER if context is None else context))
    except jinja2.exceptions.TemplateError as e:
        case["error"] = str(e) if type(e) is jinja2.exceptions.TemplateError else ""
    except Exception:
        case["error"] = ""
    return case


def main():
    cases = [run(*c) for c in CASES]
    with open("template_cases.json", "w", encoding="utf-8") as f:
        f.write('{"jinja2": "%s", "context": %s,\n "cases": [\n' %
                (jinja2.__version__, json.dumps(USER, ensure_ascii=False)))
        f.write(",\n".join("  " + json.dumps(c, ensure_ascii=False) for c in cases))
        f.write("\n]}\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
