"""Answers that are held to a grammar: JSON Schema, regular expressions, choices and grammars, over HTTP, SDK and command line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import openai
import outrider
import pydantic
import pytest

from harness import BIN, FULL, PATIENCE, ROOT, Cluster, full
from http_clients import MODEL, TALK, connect

sys.path.insert(0, str(ROOT / "tests" / "unit"))
from grammar_schemas_test import invalid

# The names are not in alphabetical order, and everything that can be long has a limit, since the model writes nonsense.
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "mood": {"enum": ["glad", "sad"]},
        "kind": {"const": "story"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "friends": {"type": "array", "items": {"enum": ["fox", "hare"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "mood", "kind", "age", "friends"],
    "additionalProperties": False,
}
WORDS = r"[a-z]{3,8}(, [a-z]{3,8}){4,8}\."
LETTERS = 'root ::= "<" [a-z]{2,6} ">"'
TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "(fox|hare){1,4}!"}}
CHOICES = ["yes", "yes, sir", "not at all"]
SAMPLED: dict[str, Any] = {"model": MODEL, "temperature": 1, "max_tokens": 400}
GREEDY: dict[str, Any] = SAMPLED | {"temperature": 0}


@pytest.fixture(scope="module")
def client(pair: Cluster) -> openai.OpenAI:
    return connect(pair)


def as_format(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **more}}


def check_person(text: str) -> None:
    person = json.loads(text)
    assert list(person) == list(PERSON["properties"]), "in the order of the schema"
    assert isinstance(person["name"], str) and len(person["name"]) <= 12
    assert person["mood"] in ("glad", "sad") and person["kind"] == "story"
    assert type(person["age"]) is int and 0 <= person["age"] <= 120
    assert 1 <= len(person["friends"]) <= 3 and set(person["friends"]) <= {"fox", "hare"}


# --- each form ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"strict": True}, {"strict": False, "description": "a person"}])
def test_an_answer_validates_against_its_schema(more: dict[str, Any], client: openai.OpenAI) -> None:
    for seed in range(4):
        answer = client.chat.completions.create(messages=TALK, response_format=as_format(PERSON, **more), seed=seed, **SAMPLED)
        assert answer.choices[0].finish_reason == "stop"
        check_person(answer.choices[0].message.content)


def test_an_answer_can_be_any_object(client: openai.OpenAI) -> None:
    for seed in range(4):
        answer = client.chat.completions.create(messages=TALK, response_format={"type": "json_object"}, seed=seed, **SAMPLED)
        [choice] = answer.choices
        assert choice.message.content.lstrip().startswith("{")
        assert choice.finish_reason in ("stop", "length")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


FIELDS = {
    "guided_json": (PERSON, check_person),
    "guided_json as text": (json.dumps(PERSON), check_person),
    "guided_regex": (WORDS, lambda text: matches(WORDS, text)),
    "guided_choice": (CHOICES, lambda text: text in CHOICES),
    "guided_grammar": (LETTERS, lambda text: matches("<[a-z]{2,6}>", text)),
    "structural_tag": (TAG, lambda text: matches("(fox|hare){1,4}!", text)),
    "json_schema": (PERSON, check_person),
    "grammar": (LETTERS, lambda text: matches("<[a-z]{2,6}>", text)),
}
MEMBERS = {
    "json": (PERSON, check_person),
    "regex": (WORDS, lambda text: matches(WORDS, text)),
    "choice": (CHOICES, lambda text: text in CHOICES),
    "grammar": (LETTERS, lambda text: matches("<[a-z]{2,6}>", text)),
    "structural_tag": (json.dumps(TAG), lambda text: matches("(fox|hare){1,4}!", text)),
}
CASES = ([({name.split()[0]: value}, check) for name, (value, check) in FIELDS.items()]
         + [({"structured_outputs": {name: value}}, check) for name, (value, check) in MEMBERS.items()]
         + [({"response_format": TAG}, FIELDS["structural_tag"][1])])


@pytest.mark.parametrize("number", range(len(CASES)))
def test_each_field_holds_the_answer(number: int, client: openai.OpenAI, prompts: list[str]) -> None:
    body, check = CASES[number]
    for seed in range(3):
        answer = client.completions.create(prompt=prompts[seed], seed=seed, extra_body=body, **SAMPLED)
        [choice] = answer.choices
        assert choice.finish_reason == "stop", choice.text
        assert check(choice.text) is not False, choice.text


def test_every_sample_is_held(client: openai.OpenAI, prompts: list[str]) -> None:
    body = {"guided_json": PERSON, "rule": "block"}
    answer = client.completions.create(prompt=[prompts[0], prompts[1]], n=2, seed=3, extra_body=body, **SAMPLED)
    assert len(answer.choices) == 4
    for choice in answer.choices:
        check_person(choice.text)


def test_what_is_cut_is_the_beginning_of_what_may_be(client: openai.OpenAI, prompts: list[str]) -> None:
    how = {"prompt": prompts[0], "extra_body": {"guided_regex": WORDS}}
    whole = client.completions.create(**how, **GREEDY).choices[0]
    cut = client.completions.create(**how, **(GREEDY | {"max_tokens": 3})).choices[0]
    assert (whole.finish_reason, cut.finish_reason) == ("stop", "length")
    assert cut.text and whole.text.startswith(cut.text)


def test_pydantics_models_come_back(client: openai.OpenAI) -> None:
    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        mood: Literal["glad", "sad"]
        age: int = pydantic.Field(ge=0, le=120)

    for parse in (client.chat.completions.parse, client.beta.chat.completions.parse):
        answer = parse(messages=TALK, response_format=Person, seed=1, **SAMPLED)
        person = answer.choices[0].message.parsed
        assert isinstance(person, Person) and 0 <= person.age <= 120


# --- with speculation and streams -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, full(1000)])
def test_answers_to_random_schemas_validate_whatever_drafts(count: int, client: openai.OpenAI, prompts: list[str]) -> None:
    """The schemas of tests/unit/grammar_random_schemas.cc, each with one of the ways, or with all in the full test."""
    drawn = subprocess.run([BIN.parent / "tests" / "grammar_random_schemas", "7", str(count)], check=True, capture_output=True, text=True)
    ways = [{"drafter": drafter, "draft_tokens": k} for drafter in ("ngram", "model", "auto", "grammar") for k in (1, 4, 8)]
    whole = refused = 0
    for number, line in enumerate(drawn.stdout.splitlines()):
        drawing = json.loads(line)
        body = {"guided_json": json.dumps(drawing["schema"])}
        how = {"model": MODEL, "prompt": prompts[number % len(prompts)], "max_tokens": 100}
        if "error" in drawing:
            with pytest.raises(openai.BadRequestError) as error:
                client.completions.create(extra_body=body, **how)
            assert error.value.param == "guided_json"
            refused += 1
            continue
        plain, sampled = (client.completions.create(extra_body=body | more, **how).choices[0] for more in (
            {"drafter": "none", "temperature": 0}, {"seed": number}))
        for way in ways if FULL else [ways[number % len(ways)]]:
            other = client.completions.create(extra_body=body | way | {"temperature": 0}, **how).choices[0]
            assert (other.text, other.finish_reason) == (plain.text, plain.finish_reason), (drawing["schema"], way)
        for answer in (plain, sampled):
            if answer.finish_reason == "stop":
                whole += 1
                assert invalid(drawing["schema"], answer.text) is None, (drawing["schema"], answer.text)
    assert whole > count / 2 and refused > count / 10


@pytest.mark.parametrize("grammar", [{"guided_regex": WORDS}, {"guided_json": PERSON}], ids=["regex", "schema"])
@pytest.mark.parametrize("how", [GREEDY, SAMPLED | {"seed": 5}], ids=["greedy", "coupled"])
def test_no_drafter_changes_the_text(how: dict[str, Any], grammar: dict[str, Any], client: openai.OpenAI, prompts: list[str]) -> None:
    rule = {} if how is GREEDY else {"rule": "coupled"}

    def text(**speculation: Any) -> tuple[str, int]:
        answer = client.completions.create(prompt=prompts[0], extra_body=grammar | rule | speculation, **how)
        return answer.choices[0].text, answer.usage.model_extra["speculation"]["accepted"]

    plain, none = text(drafter="none")
    assert plain and none == 0
    accepted = 0
    for drafter in ("ngram", "model", "auto"):
        for k in (1, 3, 8):
            other, count = text(drafter=drafter, draft_tokens=k)
            assert other == plain, (drafter, k)
            accepted += count
    assert accepted > 0


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    how = {"messages": TALK, "response_format": as_format(PERSON), **GREEDY}
    whole = client.chat.completions.create(**how).choices[0]
    events = list(client.chat.completions.create(stream=True, **how))
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole.message.content
    assert events[-1].choices[0].finish_reason == whole.finish_reason


# --- refusals -------------------------------------------------------------------------------------------------

BAD = {
    "a schema that is none": ("response_format", {"response_format": as_format({"type": 5})}),
    "no schema": ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}),
    "a keyword that cannot be enforced": ("response_format", {"response_format": as_format({"not": {"type": "string"}})}),
    "the same within": ("guided_json", {"guided_json": {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}}),
    "a schema that is no JSON": ("guided_json", {"guided_json": "{"}),
    "a regular expression that is none": ("guided_regex", {"guided_regex": "(a"}),
    "a grammar that is none": ("guided_grammar", {"guided_grammar": "root ::= other"}),
    "no choices": ("structured_outputs.choice", {"structured_outputs": {"choice": []}}),
    "an empty choice": ("structured_outputs.choice", {"structured_outputs": {"choice": ["yes", ""]}}),
    "more than 64 KiB": ("guided_regex", {"guided_regex": "a" * 70_000}),
    "one of too many states": ("guided_regex", {"guided_regex": "[a-z0-9]" * 7000}),
    "two": ("guided_regex", {"response_format": {"type": "json_object"}, "guided_regex": "a"}),
    "two in one": ("structured_outputs.choice", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
    "a search": ("guided_regex", {"guided_regex": "a+b", "use_beam_search": True, "n": 2}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_grammar_that_cannot_be_is_refused_by_the_clients_name(case: str, pair: Cluster, client: openai.OpenAI) -> None:
    param, body = BAD[case]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model=MODEL, prompt="Once", max_tokens=8, stream=stream, extra_body=body)
        assert (error.value.param, error.value.code) == (param, "invalid_value")
        assert param in error.value.message
    pair.wait_idle()


def test_a_text_that_cannot_end_has_no_grammar(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="ignore_eos") as error:
        client.completions.create(model=MODEL, prompt="Once", extra_body={"guided_regex": "a+b", "ignore_eos": True})
    assert error.value.param in ("guided_regex", "ignore_eos")


# --- other clients --------------------------------------------------------------------------------------------


def test_the_sdk_has_each_form(pair: Cluster, prompts: list[str]) -> None:
    with outrider.Client(pair.coordinator.address, timeout=PATIENCE) as client:
        def text(**option: Any) -> str:
            return client.generate(prompts[0], seed=1, max_tokens=400, **option).text

        check_person(text(json_schema=PERSON))
        assert matches(WORDS, text(regex=WORDS))
        assert text(choices=CHOICES) in CHOICES
        assert matches("<[a-z]{2,6}>", text(grammar=LETTERS))
        assert matches("(fox|hare){1,4}!", text(structural_tag=TAG))
        with pytest.raises(outrider.InvalidArgument) as error:
            text(regex="(a")
    assert error.value.field == "sampling.grammar"


def test_the_command_line_has_flags(pair: Cluster, tmp_path: Path) -> None:
    (tmp_path / "schema").write_text(json.dumps(PERSON))
    (tmp_path / "grammar").write_text(LETTERS)

    def text(*flags: str) -> str:
        command = [BIN / "outrider", "generate", "Once", "--address", pair.coordinator.address, "--seed", "1", "--max-tokens",
                   "400", *flags]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout.removesuffix("\n")

    check_person(text("--json-schema", str(tmp_path / "schema")))
    assert matches(WORDS, text("--regex", WORDS))
    assert text("--choice", "yes", "--choice", "not at all") in ("yes", "not at all")
    assert matches("<[a-z]{2,6}>", text("--grammar", str(tmp_path / "grammar")))
