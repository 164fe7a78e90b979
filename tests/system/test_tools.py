"""Tools over OpenAI's API: calls that a model is held to, whole and streamed, with every drafter, and their part in prompts."""

import json
import re
from typing import Any, Literal

import openai
import outrider
import pydantic
import pytest

from harness import PATIENCE, Cluster
from http_clients import MODEL, TALK, connect

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "Of a place.", "parameters": {
        "type": "object", "properties": {"place": {"type": "string", "maxLength": 10}, "unit": {"enum": ["celsius", "kelvin"]}},
        "required": ["place", "unit"], "additionalProperties": False}}}
NOW = {"type": "function", "function": {"name": "now"}}
SAMPLED: dict[str, Any] = {"model": MODEL, "messages": TALK, "tools": [WEATHER, NOW], "temperature": 1, "max_tokens": 300}
GREEDY: dict[str, Any] = SAMPLED | {"temperature": 0}
ONE = {"tool_choice": "required", "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def client(pair: Cluster) -> openai.OpenAI:
    return connect(pair)


def check_call(call: Any) -> str:
    assert call.type == "function" and re.fullmatch(r"call_[0-9a-f]{16}", call.id)
    arguments = json.loads(call.function.arguments)
    if call.function.name == "now":
        assert arguments == {}
    else:
        assert call.function.name == "weather" and list(arguments) == ["place", "unit"]
        assert len(arguments["place"]) <= 10 and arguments["unit"] in ("celsius", "kelvin")
    return call.function.name


def test_a_call_that_is_required_comes_in_its_form(client: openai.OpenAI) -> None:
    names = set()
    for seed in range(6):
        choice = client.chat.completions.create(seed=seed, **ONE, **SAMPLED).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        call, = choice.message.tool_calls
        names.add(check_call(call))
    assert names == {"weather", "now"}, "the seeds show both"


def test_a_named_function_is_the_one(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    choice = client.chat.completions.create(seed=1, parallel_tool_calls=False, tool_choice=named, **SAMPLED).choices[0]
    assert choice.finish_reason == "stop", "as OpenAI's does"
    assert [check_call(call) for call in choice.message.tool_calls] == ["weather"]


def test_several_calls_can_come_at_once(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(seed=2, n=8, tool_choice="required", **(SAMPLED | {"max_tokens": 500}))
    whole = [choice for choice in answer.choices if choice.finish_reason == "tool_calls"]
    for choice in whole:
        assert [check_call(call) for call in choice.message.tool_calls]
        assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)
    assert any(len(choice.message.tool_calls) > 1 for choice in whole)


def test_a_stream_has_the_calls_of_the_whole_answer(client: openai.OpenAI) -> None:
    whole, = client.chat.completions.create(**ONE, **GREEDY).choices[0].message.tool_calls
    events = list(client.chat.completions.create(stream=True, **ONE, **GREEDY))
    parts = [call for event in events for call in event.choices[0].delta.tool_calls or []]
    assert {part.index for part in parts} == {0}
    assert (parts[0].type, parts[0].function.name) == ("function", whole.function.name)
    assert all(part.id is None and part.function.name is None for part in parts[1:])
    assert "".join(part.function.arguments for part in parts) == whole.function.arguments
    assert [event.choices[0].finish_reason for event in events if event.choices[0].finish_reason] == ["tool_calls"]


@pytest.mark.parametrize("how", [GREEDY, SAMPLED | {"seed": 5}], ids=["greedy", "coupled"])
def test_no_drafter_changes_the_calls(how: dict[str, Any], client: openai.OpenAI) -> None:
    rule = {} if how is GREEDY else {"rule": "coupled"}

    def call(**speculation: Any) -> tuple[Any, int]:
        answer = client.chat.completions.create(extra_body=rule | speculation, **ONE, **how)
        found, = answer.choices[0].message.tool_calls
        return found.function, answer.usage.model_extra["speculation"]["accepted"]

    plain, none = call(drafter="none")
    assert none == 0
    for drafter in ("ngram", "model", "auto", "grammar"):
        for k in (1, 4):
            other, accepted = call(drafter=drafter, draft_tokens=k)
            assert other == plain, (drafter, k)
    assert accepted > 5, "the form of a call is drafted by its grammar"


def test_a_model_that_is_free_writes_text(client: openai.OpenAI) -> None:
    """The shipped pair knows no tools, so its text stays as it is without a parser."""
    for tools in ([NOW], [WEATHER, NOW]):
        choice = client.chat.completions.create(**(GREEDY | {"tools": tools, "max_tokens": 40})).choices[0]
        assert choice.message.content and choice.message.tool_calls is None
        assert choice.finish_reason in ("stop", "length")


def test_tools_are_in_the_prompt_unless_none_may_be_called(client: openai.OpenAI) -> None:
    def tokens(**more: Any) -> int:
        return client.chat.completions.create(**(GREEDY | {"max_tokens": 1} | more)).usage.prompt_tokens

    bare = tokens(tools=openai.NOT_GIVEN)
    assert tokens() > bare + 50
    assert tokens(tool_choice="none") == bare


def test_calls_and_what_they_gave_go_into_the_next_prompt(client: openai.OpenAI) -> None:
    message = client.chat.completions.create(seed=1, **ONE, **SAMPLED).choices[0].message
    call, = message.tool_calls
    said = {"role": "tool", "tool_call_id": call.id, "content": "a word that is nowhere else"}
    talk = [*TALK, message, said]
    longer = client.chat.completions.create(**(GREEDY | {"messages": talk, "max_tokens": 8})).usage.prompt_tokens
    shorter = client.chat.completions.create(**(GREEDY | {"max_tokens": 8})).usage.prompt_tokens
    assert longer > shorter + 15


def test_pydantics_functions_come_back(client: openai.OpenAI) -> None:
    class Weather(pydantic.BaseModel):
        """Of a place."""

        place: Literal["Bern", "Biel"]
        days: int = pydantic.Field(ge=1, le=9)

    choice = client.chat.completions.parse(
        seed=3, **ONE, **(SAMPLED | {"tools": [openai.pydantic_function_tool(Weather)]})).choices[0]
    call, = choice.message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)


def test_beside_a_schema_an_answer_fits_it_or_is_a_call(client: openai.OpenAI) -> None:
    class Sum(pydantic.BaseModel):
        total: int = pydantic.Field(ge=0, le=99)

    strict: Any = [{**tool, "function": tool["function"] | {"strict": True}} for tool in (WEATHER, NOW)]
    for seed in range(6):
        choice = client.chat.completions.parse(
            seed=seed, response_format=Sum, parallel_tool_calls=False, **(SAMPLED | {"tools": strict})).choices[0]
        if choice.message.tool_calls:
            assert [check_call(call) for call in choice.message.tool_calls]
        else:
            assert 0 <= choice.message.parsed.total <= 99


BAD = {
    "a tool that is no function": ("tools", {"tools": [{"type": "custom", "custom": {"name": "a"}}]}),
    "two of a name": ("tools", {"tools": [NOW, NOW]}),
    "too many": ("tools", {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(129)]}),
    "a schema that cannot be enforced": ("tools", {"tool_choice": "required", "tools": [{"type": "function", "function": {
        "name": "a", "parameters": {"type": "object", "properties": {"b": {"not": {}}}}}}]}),
    "another function": ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "other"}}}),
    "no tools": ("tool_choice", {"tools": [], "tool_choice": "required"}),
    "calls and another grammar": ("tool_choice", {"tool_choice": "required", "extra_body": {"guided_regex": "a+"}}),
    "calls that are none": ("messages", {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}),
    "functions of an older API": ("functions", {"extra_body": {"functions": [{"name": "a"}]}}),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_by_name(case: str, client: openai.OpenAI) -> None:
    param, more = BAD[case]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**(GREEDY | more))
    assert error.value.param == param and param in error.value.message


def test_the_sdk_tells_how_calls_are_written_and_renders_tools(pair: Cluster) -> None:
    with outrider.Client(pair.coordinator.address, timeout=PATIENCE) as sdk:
        assert sdk.describe().tool_format == "json"
        with_tools = sdk.generate(TALK, tools=[NOW], max_tokens=1, temperature=0)
        assert with_tools.usage.prompt_tokens > sdk.generate(TALK, max_tokens=1, temperature=0).usage.prompt_tokens
