"""Jinja2's results for some thousands of expressions, set up as transformers sets it up. The engine of
coordinator/api/chat_template.cc must match them.

Writes tests/data/chat/expressions.json: the variables, and pairs of a template and its result, null if it raises.
"""

import copy
import itertools
import json
import random

import jinja2.ext
import jinja2.sandbox
from paths import DATA

OUT = DATA / "chat" / "expressions.json"
VARIABLES = {
    "i": 7, "n": -3, "z": 0, "f": 2.5, "g": -0.5, "s": " Hello, World! ", "w": "one two  three", "u": "é日本x", "e": "",
    "l": [3, 1, 2], "m": ["b", "a", "C"], "x": [], "d": {"a": 1, "b": "x"}, "o": {"k": [1, {"y": None}], "t": True},
    "nothing": None, "yes": True, "no": False}
OPERANDS = [*VARIABLES, "missing", "1", "2", "0", "(-1)", "'a'", "'b,c'", "[1, 2]", "1.5", "3.0", "1e3", "'10'", "(1, 2)", "{'q': 1}"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "and", "or", "in", "not in"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "sequence", "iterable",
         "callable", "true", "false", "odd", "even", "lower", "upper", "eq(7)", "ne(7)", "gt(2)", "lt(2)", "in([1, 7])"]
FILTERS = [
    "abs", "batch(2)|list", "capitalize", "count", "d('q')", "default('q', true)", "dictsort", "escape", "first", "float",
    "format(1)", "indent", "indent(2, true)", "int", "int(5)", "items|list", "join", "join(', ')", "last", "length", "list",
    "lower", "map('upper')|list", "map(attribute='a')|list", "max", "min", "reject('odd')|list", "rejectattr('a')|list",
    "replace('o', '0')", "replace('l', 'L', 1)", "reverse|list", "round", "round(1)", "safe", "select('odd')|list", "select|list",
    "select('lower')|list", "selectattr('a')|list", "slice(2)|list", "sort", "sort(reverse=true)", "string", "sum", "sum(start=10)",
    "title", "tojson", "tojson(indent=2)", "trim", "trim('!')", "unique|list", "upper", "urlencode", "wordcount"]
METHODS = [
    "strip()", "lstrip()", "rstrip()", "strip(' H')", "split()", "split(',')", "split(' ', 1)", "rsplit(' ', 1)", "upper()",
    "lower()", "title()", "capitalize()", "startswith(' H')", "endswith('! ')", "replace('l', '1')", "replace('l', '1', 1)",
    "find('o')", "format(1)", "count('l')", "join(['p', 'q'])", "isdigit()", "splitlines()", "removeprefix(' H')", "items()", "items()|list",
    "keys()|list", "values()|list", "get('a')", "get('zz')", "get('zz', 5)", "append(1)", "pop()", "index(1)", "keys()"]
MEMBERS = ["[0]", "[-1]", "[5]", "[1:]", "[:2]", "[:-1]", "[-2:]", "[::2]", "[::-1]", "[1:3]", "[100:]", "[-100:2]", "['a']",
           "['zz']", ".a", ".zz", ".k[0]", ".k[1].y", "[yes]", "[nothing]"]
STATEMENTS = ["{{{{ [{0}] }}}}", "{{{{ {{'k': {0}}} }}}}", "{{% if {0} %}}y{{% else %}}n{{% endif %}}",
              "{{% for q in {0} %}}<{{{{ q }}}}>{{% else %}}-{{% endfor %}}", "{{{{ {0} if no }}}}", "{{{{ -{0} }}}}", "{{{{ not {0} }}}}"]
OTHERS = [
    "{{ 1 < 2 < 3 }}", "{{ 2 ** 3 ** 2 }}", "{{ -2 ** 2 }}", "{{ '%s-%d' % ('a', 3) }}", "{% raw %}{{ x }}{% endraw %}",
    "{{ '{}-{}'.format(1, 'a') }}", "{{ '{1}{0}{x}'.format(1, 'a', x=2) }}", "{{ '{:>5}'.format('a') }}", "{{ '{{}}{}'.format(1.0) }}",
    "{{ '%s'|format('a') }}", "{{ '\\u00e9' }}", "{{ '\\x41' }}", "{{ '\\n' }}|", "{{ 1_000 }}", "{{ 0x1f }}", "{{ 1e-3 }}", "{{ 'a' 'b' }}", "{{ i is not none }}",
    "{{ not i == 7 }}", "{% for a, b in d.items() %}{{ a }}={{ b }};{% endfor %}", "{% for a, b in d|dictsort %}{{ a }}={{ b }};{% endfor %}",
    "{% for q in l if q > 1 %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}{% endfor %}",
    "{% for q in l %}{{ loop.cycle('a', 'b') }}{{ loop.revindex }}{{ loop.index0 }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
    "{% for q in l %}{% if q == 1 %}{% continue %}{% endif %}{{ q }}{% endfor %}", "{% for q in l %}{{ q }}{% break %}{% endfor %}",
    "{% set q, r = 1, 2 %}{{ q }}{{ r }}", "{% set q %}a{{ i }}{% endset %}{{ q }}",
    "{% set ns = namespace(c=0) %}{% for q in l %}{% set ns.c = ns.c + q %}{% endfor %}{{ ns.c }}",
    "{% macro mm(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ mm(1) }}{{ mm(1, b=3) }}{{ mm(b=1, a=2) }}",
    "{% macro mm() %}{{ caller() }}{% endmacro %}{% call mm() %}x{% endcall %}", "{{ range(5) }}", "{{ range(2, 8, 3)|list }}",
    "{{ dict(a=1).a }}", "{{ lipsum is defined }}", "{{ cycler is defined }}", "{{ joiner is defined }}", "{{ self }}",
    "{% filter upper %}abc{% endfilter %}", "{{ s|trim|lower|replace('h','j') }}", "{{ (l + [4])|sort|join('-') }}", "{{ u|list }}",
    "{% for q in u %}[{{ q }}]{% endfor %}", "{{ 'ß'.upper() }}", "{{ u|first }}", "{{ missing.a }}", "{{ missing.a is defined }}",
    "{{ d.missing is defined }}", "{{ 'a' in d }}", "{{ 'o' in w }}", "{{ 1 in l }}", "{{ 10 / 5 }}", "{{ 7 % -3 }}", "{{ -7 // 2 }}",
    "{{ 1e20 }}", "{{ 1.0e20 }}", "{{ 0.1 + 0.2 }}", "{{ 1 / 3 }}", "{{ 100000000000000000000 }}", "{{ 9223372036854775807 + 1 }}", "{{ true + 1 }}",
    "{{ {'a': [1, 'x', none, true, 1.0]} }}", "{{ ['it\\'s', 'say \"x\"', 'both \\' \"'] }}", "{{ ['\\n', '\\t', '\\\\'] }}",
    "{{ [1.0, 2.5, none, true, 'é']|tojson }}", "{{ {'b': 1, 'a': {'c': []}}|tojson(indent=2) }}", "{{ '<a>'|tojson }}",
    "a {%- if 1 %} b {%- endif %} c", "  {% if 1 %}\nx\n  {% endif %}\ny", "x\n\n{% set q = 1 %}\ny",
    "{{ i if i > 3 else n if n > 0 else z }}", "{{ '3.7'|int }}", "{{ 2.5|round }}", "{{ [[1,2],[3]]|sum(start=[]) }}",
    "{{ ['a','B','c']|sort }}", "{{ [{'a':2},{'a':1}]|sort(attribute='a') }}", "{{ [{'a':2},{'b':1}]|map(attribute='a', default=9)|list }}",
    "{{ [{'a':2},{'a':1}]|selectattr('a','equalto',1)|list }}", "{{ [{'a':2},{'a':1}]|rejectattr('a','gt',1)|list }}",
    "{{ [{'a':'É'}]|selectattr('a','upper')|list }}", "{{ [1, true]|select('number')|list }}", "{{ ['É', 'a']|select('upper')|list }}",
    "{{ ['x','yy']|map('length')|list }}", "{{ [1,1,2]|unique|list }}", "{{ [1] == [1] }}", "{{ {} == {} }}", "{{ [] == () }}",
    "{{ {'a': 1, 'b': [true]} == {'b': [1.0], 'a': 1} }}", "{{ [1, 'a'] != [1, 'b'] }}", "{{ [none] == [none] }}", "{{ [1] == ['1'] }}",
    "{{ (1,) == [1] }}", "{{ o == o }}", "{{ {'a': 1} == {'a': 1, 'b': 2} }}", "{{ {'a': 1} == {'b': 1} }}",
    "{{ [[1, [2]]] == [[1, [2]]] }}", "{{ [[1, [2]]] == [[1, [3]]] }}", "{{ [missing] == [1] }}", "{{ [{'a': 'x'}] == [{'a': 'x'}] }}"]


def templates():
    rng = random.Random(1)
    for a, b in itertools.product(OPERANDS, OPERANDS):
        yield from (f"{{{{ {a} {operator} {b} }}}}" for operator in rng.sample(OPERATORS, 2))
    for a in OPERANDS:
        yield from (statement.format(a) for statement in STATEMENTS)
        yield f"{{{{ {a} }}}}"
        yield from (f"{{{{ {a} is {test} }}}}" for test in TESTS)
        yield from (f"{{{{ {a} | {name} }}}}" for name in FILTERS)
        yield from (f"{{{{ ({a}).{method} }}}}" for method in METHODS)
        yield from (f"{{{{ ({a}){member} }}}}" for member in MEMBERS)
    yield from OTHERS


def raise_exception(message):
    raise jinja2.TemplateError(message)


def main():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = raise_exception
    pairs = {}
    for template in templates():
        try:
            pairs[template] = env.from_string(template).render(**copy.deepcopy(VARIABLES))
        except Exception:  # from Jinja2, Python, or the sandbox
            pairs[template] = None
    # A text with a memory address differs from run to run.
    kept = [[template, text] for template, text in pairs.items() if text is None or " at 0x" not in text]
    OUT.write_text(json.dumps({"variables": VARIABLES, "templates": kept}, separators=(",", ":"), ensure_ascii=True) + "\n")
    print(f"{len(kept)} templates, {sum(text is None for _, text in kept)} of which raise")
