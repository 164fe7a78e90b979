"""The official client's documented examples of structured outputs, tools and prediction, against `outrider up` with SmolLM2."""

import json
from collections.abc import Iterator
from enum import Enum
from typing import Any

import openai
import pydantic
import pytest

from harness import PATIENCE
from published import smollm2
from test_command_line import up

CODE = '''class User:
    first_name: string = ""
    last_name: string = ""
    username: string = ""

export default User
'''


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with up(models={"--model": str(smollm2())}) as u:
        yield openai.OpenAI(base_url=u.wait_for_line(r"OpenAI's API: (\S+)$")[1], api_key="none", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="module")
def how(client: openai.OpenAI) -> dict[str, Any]:
    model, = client.models.list()
    return {"model": model.id, "temperature": 0, "max_tokens": 400}


def test_structured_outputs_come_as_objects(client: openai.OpenAI, how: dict[str, Any]) -> None:
    class Event(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=40)
        date: str = pydantic.Field(max_length=20)
        participants: list[str] = pydantic.Field(max_length=3)

    answer = client.chat.completions.parse(response_format=Event, messages=[
        {"role": "system", "content": "Extract the event information."},
        {"role": "user", "content": "Alice and Bob are going to a science fair on Friday."}], **how)
    event = answer.choices[0].message.parsed
    assert isinstance(event, Event) and event.name and answer.choices[0].message.refusal is None


def test_steps_of_a_solution_come_nested(client: openai.OpenAI, how: dict[str, Any]) -> None:
    class Kind(str, Enum):
        move = "move"
        divide = "divide"

    class Step(pydantic.BaseModel):
        kind: Kind
        explanation: str = pydantic.Field(max_length=40)

    class Solution(pydantic.BaseModel):
        steps: list[Step] = pydantic.Field(min_length=1, max_length=2)
        final_answer: str = pydantic.Field(max_length=12)

    messages: Any = [{"role": "system", "content": "You are a helpful math tutor."}, {"role": "user", "content": "solve 8x + 31 = 2"}]
    with client.chat.completions.stream(response_format=Solution, messages=messages, **how) as stream:
        kinds = {event.type for event in stream}
        solution = stream.get_final_completion().choices[0].message.parsed
    assert kinds >= {"chunk", "content.delta", "content.done"}
    assert isinstance(solution, Solution) and 1 <= len(solution.steps) <= 2


def get_weather(location: str, unit: str) -> str:
    return json.dumps({"location": location, "temperature": 21.5, "unit": unit})


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get current temperature for a given location.", "parameters": {
        "type": "object", "properties": {"location": {"type": "string", "description": "City and country", "maxLength": 30},
                                         "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "required": ["location", "unit"], "additionalProperties": False}}}


def test_a_function_is_called_and_its_result_answered(client: openai.OpenAI, how: dict[str, Any]) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather like in Paris today?"}]
    first = client.chat.completions.create(messages=messages, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, **how)
    message = first.choices[0].message
    call, = message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
    result = get_weather(**json.loads(call.function.arguments))
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    second = client.chat.completions.create(messages=messages, tools=[WEATHER], **(how | {"max_tokens": 60}))
    assert second.choices[0].message.content or second.choices[0].message.tool_calls
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + 20, "the call and its result are in the prompt"


def test_a_function_of_pydantics_is_streamed(client: openai.OpenAI, how: dict[str, Any]) -> None:
    class GetWeather(pydantic.BaseModel):
        city: str = pydantic.Field(max_length=20)
        days: int = pydantic.Field(ge=1, le=9)

    messages: Any = [{"role": "user", "content": "Will it rain in Oslo in the next three days?"}]
    with client.chat.completions.stream(messages=messages, tools=[openai.pydantic_function_tool(GetWeather)], tool_choice="required",
                                        parallel_tool_calls=False, **how) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        call, = stream.get_final_completion().choices[0].message.tool_calls
    assert len(deltas) > 1 and deltas[-1].arguments == call.function.arguments
    assert isinstance(call.function.parsed_arguments, GetWeather)


def test_a_predicted_output_saves_calls_of_the_model(client: openai.OpenAI, how: dict[str, Any]) -> None:
    messages: Any = [{"role": "user", "content": f"Repeat this code as it is, and say nothing else.\n\n{CODE}"}]
    plain = client.chat.completions.create(messages=messages, extra_body={"drafter": "none"}, **how)
    text = plain.choices[0].message.content or ""
    # A model of this size writes other code on other CPUs, and whether drafting pays differs too. So the prediction that is right
    # in part is the model's own text, and K is given.
    changed = text[:len(text) // 2] + "@" + text[len(text) // 2:]
    for predicted, options in (CODE, {}), (changed, {"draft_tokens": 4}):
        answer = client.chat.completions.create(messages=messages, prediction={"type": "content", "content": predicted},
                                                extra_body=options, **how)
        assert answer.choices[0].message.content == text
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0
    assert answer.usage.model_extra["speculation"]["rounds"] < plain.usage.completion_tokens
