"""The texts that the grammar of a JSON schema allows are valid under the schema. The program in the environment variable
GRAMMAR_RANDOM_SCHEMAS draws both, the same every time."""

import json
import os
import re
import subprocess

import jsonschema
import pytest

SEED, COUNT = 1, 1000


def run(*arguments: object, lines: str = "") -> list[dict]:
    program = os.environ["GRAMMAR_RANDOM_SCHEMAS"]
    done = subprocess.run([program, *map(str, arguments)], input=lines, capture_output=True, text=True, check=True)
    assert not done.stderr, "XGrammar's warnings are for no people"
    return [json.loads(line) for line in done.stdout.splitlines()]


def pattern(_validator, regex, instance, _schema):
    # Character classes of ECMA-262 match ASCII only.
    if isinstance(instance, str) and not re.search(regex, instance, re.ASCII):
        yield jsonschema.ValidationError(f"{instance!r} is not of {regex!r}")


Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": pattern})


def invalid(schema, text: str) -> str | None:
    """The reason that a text is not valid, or None."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    return next((error.message for error in Validator(schema).iter_errors(value)), None)


def test_random_texts_validate():
    lines = run(SEED, COUNT)
    assert len(lines) == COUNT
    bad = [(why, text, line["schema"]) for line in lines for text in line.get("texts", ())
           if (why := invalid(line["schema"], text))]
    assert not bad, bad[0]
    texts = [text for line in lines for text in line.get("texts", ())]
    assert len(texts) > 2 * COUNT and len(set(texts)) > COUNT
    assert sum("error" in line for line in lines) > COUNT / 10, "what is not enforced is drawn too"


@pytest.mark.parametrize("ignored", [{"not": {"minimum": 0}}, {"multipleOf": 1000}, {"enum": [7]}])
def test_a_keyword_that_is_ignored_is_found(ignored):
    [line] = run(lines='{"type": "integer"}\n')
    assert any(invalid(line["schema"] | ignored, text) for text in line["texts"])
