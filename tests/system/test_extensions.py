"""vLLM's extensions of OpenAI's API, statistics in answers, and the table of all fields in docs/openai.md."""

import inspect
import json
import re
from typing import Any

import openai
import pytest

from harness import ROOT, Cluster
from http_clients import MODEL, TALK, connect, post

TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a place."}}


@pytest.fixture(scope="module")
def client(pair: Cluster) -> openai.OpenAI:
    return connect(pair)


# --- vLLM's /tokenize and /detokenize -----------------------------------------------------------------------------


def ask(c: Cluster, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with post(c, path, body) as answer:
        return json.load(answer)


def test_text_and_conversations_are_split_as_a_prompt_is(pair: Cluster, client: openai.OpenAI) -> None:
    split = ask(pair, "/tokenize", {"model": MODEL, "prompt": "Once upon a time"})
    assert split["count"] == len(split["tokens"]) and split["token_strs"] is None
    assert split["max_model_len"] == client.models.list().data[0].model_extra["max_model_len"]
    assert split["count"] == client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=1).usage.prompt_tokens
    bare = ask(pair, "/tokenize", {"prompt": "Once upon a time", "add_special_tokens": False, "return_token_strs": True})
    assert "".join(bare["token_strs"]) == "Once upon a time" and split["tokens"][-bare["count"]:] == bare["tokens"]
    assert ask(pair, "/detokenize", {"tokens": bare["tokens"]}) == {"prompt": "Once upon a time"}
    for body in ({"messages": TALK}, {"messages": TALK, "tools": [TOOL]}):
        used = client.chat.completions.create(model=MODEL, max_tokens=1, **body).usage.prompt_tokens
        assert ask(pair, "/tokenize", body)["count"] == used


def test_a_text_longer_than_the_context_is_split_too(pair: Cluster) -> None:
    text = "word and another \U0001f600 " * 20_000
    split = ask(pair, "/tokenize", {"prompt": text, "add_special_tokens": False})
    assert split["count"] > split["max_model_len"]
    assert ask(pair, "/detokenize", {"tokens": split["tokens"]})["prompt"] == text


@pytest.mark.parametrize("path, body, param", [
    ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": ["a"]}, "prompt"), ("/tokenize", {"prompt": "a", "model": "b"}, "model"),
    ("/tokenize", {"messages": 1}, "messages"), ("/tokenize", {"messages": TALK, "add_special_tokens": True}, "add_special_tokens"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [10**9]}, "tokens")])
def test_a_wrong_field_is_named(path: str, body: dict[str, Any], param: str, client: openai.OpenAI, pair: Cluster) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        client.post(f"http://{pair.coordinator.http_address}{path}", body=body, cast_to=object)
    assert error.value.status_code in (400, 404) and error.value.body["param"] == param


# --- what a request cost -------------------------------------------------------------------------------------------


def test_statistics_come_in_vllms_form_on_request(client: openai.OpenAI) -> None:
    how: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    drafted = {"spec_decode_metrics": True, "drafter": "model", "draft_tokens": 3}
    answer = client.completions.create(extra_body=drafted, **how)
    metrics, ours = answer.model_extra["metrics"]["speculative_decoding"], answer.usage.model_extra["speculation"]
    histogram = metrics["acceptance_histogram"]
    assert sum(histogram) == metrics["num_spec_steps"] > 0
    assert sum(j * count for j, count in enumerate(histogram)) == metrics["num_accepted_draft_tokens"] == ours["accepted"]
    assert metrics["num_draft_tokens"] == ours["drafted"] and metrics["num_spec_tokens"] == 3
    assert metrics["draft_acceptance_rate"] == ours["acceptance_rate"]
    assert metrics["mean_acceptance_length"] == ours["mean_accepted_length"] == 1 + ours["accepted"] / sum(histogram)
    assert 0 < ours["mean_round_acceptance"] < 1
    assert "metrics" not in client.completions.create(**how).model_extra
    several = client.completions.create(extra_body={"spec_decode_metrics": True}, n=2, **how)
    assert several.model_extra["metrics"] is None
    *_, last = client.completions.create(stream=True, extra_body=drafted, **how)
    assert last.model_extra["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


def test_usage_comes_with_each_event_on_request(client: openai.OpenAI) -> None:
    how: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
    *events, last = client.completions.create(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, **how)  # type: ignore[typeddict-unknown-key]
    counts = [event.usage.completion_tokens for event in events]
    assert counts == sorted(counts) and counts[0] > 0 and counts[-1] == last.usage.completion_tokens
    assert {event.usage.prompt_tokens for event in events} == {last.usage.prompt_tokens}


def test_an_answer_says_how_long_it_could_be(client: openai.OpenAI) -> None:
    context = client.models.list().data[0].model_extra["max_model_len"]
    asked = client.chat.completions.create(model=MODEL, messages=TALK, max_tokens=3).usage
    assert asked.model_extra["max_tokens"] == 3
    unasked = client.chat.completions.create(model=MODEL, messages=TALK, stop=["e"]).usage
    assert unasked.model_extra["max_tokens"] == context - unasked.prompt_tokens


def test_drafts_can_be_left_out_of_long_contexts(client: openai.OpenAI) -> None:
    def rounds(most: int | None) -> tuple[str, int, int]:
        how = {"drafter": "model", "draft_tokens": 4} | ({} if most is None else {"max_draft_context": most})
        answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=40, temperature=0, extra_body=how)
        speculation = answer.usage.model_extra["speculation"]
        return answer.choices[0].text, speculation["drafted"], speculation["rounds"]

    text, drafted, _ = rounds(None)
    assert drafted > 20
    assert rounds(1) == (text, 0, 40)
    middle = rounds(20)
    assert middle[0] == text and 0 < middle[1] < drafted


# --- every field of OpenAI's two endpoints -------------------------------------------------------------------------

OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


def fields_in_docs() -> dict[str, str]:
    """The treatment of each field, from the table in docs/openai.md."""
    section = (ROOT / "docs" / "openai.md").read_text().split("### All fields", 1)[1].split("\n## ", 1)[0]
    return {field: how for fields, how in re.findall(r"^\| (`.*?) \| (\w+)", section, re.MULTILINE)
            for field in re.findall(r"`(\w+)`", fields)}


def test_the_table_has_every_field_that_the_client_knows() -> None:
    known = set()
    for endpoint in (openai.resources.Completions, openai.resources.chat.Completions):
        known |= inspect.signature(endpoint.create).parameters.keys()
    assert fields_in_docs().keys() == known - OF_THE_CLIENT


REFUSED = {
    "audio": {"voice": "alloy", "format": "wav"}, "function_call": "auto", "functions": [{"name": "a"}], "modalities": ["audio"],
    "moderation": {"model": "a"}, "reasoning_effort": "low", "suffix": "end", "verbosity": "low", "web_search_options": {"a": 1}}


def test_each_field_that_is_refused_is_refused_by_name(client: openai.OpenAI) -> None:
    refused = {field for field, how in fields_in_docs().items() if how == "refused"}
    assert refused == REFUSED.keys()
    for field in refused:
        with pytest.raises(openai.BadRequestError) as error:
            if field == "suffix":
                client.completions.create(model=MODEL, prompt="a", max_tokens=1, extra_body={field: REFUSED[field]})
            else:
                client.chat.completions.create(model=MODEL, messages=TALK, max_tokens=1, extra_body={field: REFUSED[field]})
        assert (error.value.param, error.value.code) == (field, "unsupported_parameter")


IGNORED = {
    "metadata": {"a": "b"}, "prompt_cache_key": "a", "prompt_cache_retention": "24h", "prompt_cache_options": {"a": 1},
    "safety_identifier": "a", "service_tier": "flex", "store": True, "user": "a"}


def test_no_field_that_is_ignored_changes_an_answer(client: openai.OpenAI) -> None:
    ignored = {field for field, how in fields_in_docs().items() if how == "ignored"}
    assert ignored == IGNORED.keys()
    how: dict[str, Any] = {"model": MODEL, "messages": TALK, "max_tokens": 8, "temperature": 0}
    bare = client.chat.completions.create(**how).choices[0].message.content
    assert client.chat.completions.create(extra_body=IGNORED, **how).choices[0].message.content == bare
