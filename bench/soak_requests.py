"""Requests of clients that want an answer, or leave before it, for bench/soak.py."""

import itertools
import json
import time
from typing import Any

import grpc
import httpx2
import openai

from harness import LENGTH, PATIENCE, Answer, request
from http_clients import MODEL
from soak_calls import Call, check
from soak_load import KS, Kinds, Worker, is_unavailable


def invariant_answer(w: Worker) -> str:
    call = w.call()
    return check(w.stream(request(call.prompt, **call.options, **w.speculation(), trace=w.rng.random() < 0.3)), call)


def several_samples(w: Worker) -> str:
    call = w.call(samples=True)
    return check(w.stream(request(call.prompt, **call.options, **w.speculation())), call)


def slow_reader(w: Worker) -> str:
    call = w.call()
    wanted = request(call.prompt, **call.options, **w.speculation())
    wanted.logprobs.top = 20  # more than the buffers on the way hold
    return check(w.stream(wanted, pause=2), call)


def search(w: Worker) -> str:
    call = w.rng.choice(w.load.searches)
    how = w.speculation() | {"drafter": w.rng.choice(w.load.drafters), "tree": ""}
    return check(w.stream(request(call.prompt, **call.options, **how)), call)


def sampled_answer(w: Worker) -> str:
    """Answers of which only the form is checked; tests/slow/test_distribution.py checks their distribution."""
    how = w.speculation()
    rule = w.rng.choice(["token", "block"]) if how["tree"] in ("", "auto") else "token"
    wanted = request(w.call().prompt, **how, rule=rule, temperature=0.8, top_p=0.95, max_tokens=w.rng.choice([5, 60, 200]),
                     ignore_eos=True)
    wanted.logprobs.top = 2
    [answer] = w.stream(wanted)
    assert (len(answer.tokens), answer.reason) == (wanted.stop.max_tokens, LENGTH), answer
    return "whole"


# The HTTP field for each kind of grammar.
GRAMMAR_FIELDS = {"regex": "guided_regex", "json_schema": "guided_json", "ebnf": "guided_grammar"}


def body(w: Worker, call: Call) -> dict[str, Any]:
    options = dict(call.options)
    extra = {key: options.pop(key) for key in ("rule", "ignore_eos") if key in options}
    extra |= {GRAMMAR_FIELDS[form]: text for form, text in options.pop("grammar", {}).items()}
    if (k := w.rng.choice(KS)) is not None:
        extra["draft_tokens"] = k
    return {"model": MODEL, "prompt": call.prompt, "extra_body": extra} | options


def http_stream(w: Worker) -> str:
    call = w.call()
    options = body(w, call)

    def ask() -> str:
        with w.load.watched() as watched:
            text = ""
            for event in w.http.completions.create(stream=True, **options):
                text += event.choices[0].text
                watched.chunks += 1
            return text

    text = w.repeat(ask)
    assert text == call.answers[0].text, f"{call}: got {text!r}"
    return "whole"


def http_answer(w: Worker) -> str:
    call = w.call(samples=True)
    options = body(w, call)
    texts = [choice.text for choice in w.repeat(lambda: w.http.completions.create(**options)).choices]
    assert texts == [answer.text for answer in call.answers], f"{call}: got {texts}"
    return "whole"


MOOD = {"type": "function", "function": {"name": "mood", "parameters": {
    "type": "object", "properties": {"mood": {"enum": ["glad", "sad"]}}, "required": ["mood"], "additionalProperties": False}}}


def http_tool_call(w: Worker) -> str:
    options = {"model": MODEL, "messages": [{"role": "user", "content": w.call().prompt[:200]}], "tools": [MOOD],
               "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200, "seed": w.rng.randrange(1000)}
    choice = w.repeat(lambda: w.http.chat.completions.create(**options)).choices[0]
    [call] = choice.message.tool_calls
    assert json.loads(call.function.arguments)["mood"] in ("glad", "sad"), choice
    return "whole"


ENDLESS = {"max_tokens": 800, "ignore_eos": True, "temperature": 1}


def cancelled(w: Worker) -> str:
    wanted, began = request(w.call().prompt, **w.speculation(), **ENDLESS), time.monotonic()
    stream = w.stub.Generate(wanted, timeout=PATIENCE, wait_for_ready=True)
    try:
        for _ in range(w.rng.choice([0, 1, 20])):
            next(stream)
    except grpc.RpcError as error:
        assert is_unavailable(error), error
        w.load.lost(began, error)
        return "lost"
    stream.cancel()
    return "left"


def http_client_leaves(w: Worker) -> str:
    options, began = {"model": MODEL, "prompt": w.call().prompt, "max_tokens": 800, "extra_body": {"ignore_eos": True}}, time.monotonic()
    try:
        stream = w.http.completions.create(stream=True, **options)
        for _ in itertools.islice(stream, w.rng.choice([0, 1, 20])):
            pass
    except (openai.APIError, httpx2.TransportError) as error:
        if not is_unavailable(error):
            raise
        w.load.lost(began, error)
        return "lost"
    stream.close()
    return "left"


def ended_by_a_deadline(w: Worker, error: grpc.RpcError, began: float) -> str:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return "late"
    assert is_unavailable(error), error
    w.load.lost(began, error)
    return "lost"


def short_deadline(w: Worker) -> str:
    wanted, began = request(w.call().prompt, **w.speculation(), **ENDLESS), time.monotonic()
    try:
        for _ in w.stub.Generate(wanted, timeout=w.rng.choice([0.001, 0.05, 0.3])):
            pass
    except grpc.RpcError as error:
        return ended_by_a_deadline(w, error, began)
    raise AssertionError("800 tokens within so short a deadline")


def deadline_of_several(w: Worker) -> str:
    """A deadline that passes before the first sample, between the first and its copies, or after them."""
    wanted, began = request(w.call().prompt, **w.speculation(), n=8, max_tokens=2, temperature=1), time.monotonic()
    answers = [Answer() for _ in range(wanted.n)]
    try:
        for chunk in w.stub.Generate(wanted, timeout=w.rng.randint(1, 40) / 1000, wait_for_ready=True):
            answers[chunk.sample].add(chunk)
    except grpc.RpcError as error:
        return ended_by_a_deadline(w, error, began)
    for answer in answers:
        answer.check()
    return "whole"


def ends_at_once(w: Worker) -> str:
    """Several samples, of which the first ends in its first round."""
    answers = w.stream(request(w.call().prompt, **w.speculation(), n=4, max_tokens=1, ignore_eos=True))
    assert [len(answer.tokens) for answer in answers] == [1] * 4, answers
    return "whole"


def search_cancelled(w: Worker) -> str:
    call, began = w.rng.choice(w.load.searches), time.monotonic()
    stream = w.stub.Generate(request(call.prompt, **call.options), timeout=PATIENCE, wait_for_ready=True)
    time.sleep(w.rng.uniform(0, 0.05))
    stream.cancel()
    try:
        list(stream)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.CANCELLED:
            assert is_unavailable(error), error
            w.load.lost(began, error)
        return "left"
    return "whole"


def scored_prompt(w: Worker) -> str:
    prompt = w.call().prompt
    options = {"model": MODEL, "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 1}
    [choice] = w.repeat(lambda: w.http.completions.create(**options)).choices
    assert (choice.text, choice.logprobs.token_logprobs[0]) == (prompt, None), choice
    return "whole"


REQUESTS: Kinds = {
    invariant_answer: 10, several_samples: 2, slow_reader: 2, search: 2, sampled_answer: 4, http_stream: 4, http_answer: 1,
    http_tool_call: 1, cancelled: 3, http_client_leaves: 2, short_deadline: 2, deadline_of_several: 2, ends_at_once: 2,
    search_cancelled: 2, scored_prompt: 1}
