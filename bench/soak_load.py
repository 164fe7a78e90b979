"""The load of bench/soak.py: requests of every kind, drawn from a seed, each with its answer checked as far as it can be.

Each Worker asks for one thing after another, on a thread of its own. What it draws depends on the seed and its number
only. A request that the coordinator's absence ended is resumed or asked again; any other error ends the soak.
"""

import collections
import contextlib
import itertools
import json
import random
import socket
import threading
import time
import traceback
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import httpx2
import openai
from outrider.v1 import inference_pb2_grpc

from harness import LENGTH, PATIENCE, Answer, Cluster, Refusal, eventually, inference_pb2, request
from http_clients import MODEL, connect
from proxies import OPTIONS
from soak_calls import Call, check, draw_calls, draw_searches
from test_bad_requests import BAD
from test_openai_server import BAD_FOR_ANY_MODEL as BAD_OVER_HTTP

WORKERS = 8
DRAFTERS = ("", "model", "model", "ngram", "copy", "auto", "none")
KS = (None, 0, 1, 2, 4, 8)
TREES = ("", "", "2x2x1", "chains:3", "budget:8", "auto")


class Stream:
    """How far a stream has come that is read without a pause."""

    def __init__(self) -> None:
        self.chunks, self.over = 0, False


class Load:
    """What the workers share. Thread-safe."""

    def __init__(self, c: Cluster, seed: int, heads: Sequence[str]) -> None:
        self.cluster, self.heads = c, heads
        self.drafters = [drafter for drafter in DRAFTERS if c.draft or drafter != "model"]
        self.calls, self.searches = draw_calls(c, seed), draw_searches(c, seed)
        self.outcomes: collections.Counter[tuple[str, str]] = collections.Counter()
        self.resumed = self.repeated = 0
        self.streams: set[Stream] = set()
        self.errors: list[str] = []
        self._absences: list[list[float]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._workers = [Worker(self, number, random.Random(f"{seed} {number}")) for number in range(WORKERS)]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._stop.clear()
        threads = [threading.Thread(target=self._work, args=(worker,)) for worker in self._workers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            for worker in self._workers:
                worker.mute.clear()
        eventually(self._has_room_for_metrics, "the mute connections are gone")
        self.check()

    def _has_room_for_metrics(self) -> bool:
        try:
            self.cluster.coordinator.metrics()
        except urllib.error.HTTPError as error:
            assert error.code == 503, error
            return False
        return True

    def check(self) -> None:
        assert not self.errors, self.errors[0]

    @contextlib.contextmanager
    def coordinator_absent(self) -> Iterator[None]:
        """Calls that run at some time within this may end with UNAVAILABLE."""
        self._absences.append(absence := [time.monotonic(), float("inf")])
        try:
            yield
        finally:
            absence[1] = time.monotonic()

    def lost(self, began: float, error: Exception) -> None:
        """Takes note of a call that was lost with the coordinator, and waits a little; raises if it was not."""
        if not any(end > began for _, end in self._absences):
            raise error
        with self._lock:
            self.repeated += 1
        time.sleep(0.05)

    def count_resumed(self, streams: int) -> None:
        with self._lock:
            self.resumed += streams

    @contextlib.contextmanager
    def watched(self) -> Iterator[Stream]:
        stream = Stream()
        with self._lock:
            self.streams.add(stream)
        try:
            yield stream
        finally:
            stream.over = True
            with self._lock:
                self.streams.remove(stream)

    def in_progress(self) -> list[Stream]:
        with self._lock:
            return [stream for stream in self.streams if stream.chunks]

    def _work(self, worker: "Worker") -> None:
        while not self._stop.is_set() and not self.errors:
            kind = worker.draw()
            try:
                outcome = kind(worker)
                with self._lock:
                    self.outcomes[kind.__name__.replace("_", " "), outcome] += 1
            except Exception:
                self.errors.append(f"worker {worker.number}, {kind.__name__}: {traceback.format_exc()}")


def is_unavailable(error: Exception) -> bool:
    """Whether this is how a client of either API sees that the coordinator is away, or goes."""
    if isinstance(error, grpc.RpcError):
        return error.code() == grpc.StatusCode.UNAVAILABLE
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        return True
    return isinstance(error, openai.APIError) and error.code == "draining"


class Worker:
    """Asks for one thing after another, with connections of its own."""

    def __init__(self, load: Load, number: int, rng: random.Random) -> None:
        self.load, self.number, self.rng = load, number, rng
        self.channel = grpc.insecure_channel(load.cluster.coordinator.address, OPTIONS)
        self.stub = inference_pb2_grpc.InferenceStub(self.channel)
        self.http = connect(load.cluster)
        self.mute: list[socket.socket] = []

    def draw(self) -> Callable[["Worker"], str]:
        return self.rng.choices(list(KINDS), list(KINDS.values()))[0]

    def call(self, *, samples: bool = False) -> Call:
        return self.rng.choice([call for call in self.load.calls if (call.options["n"] > 1) == samples])

    def speculation(self) -> dict[str, Any]:
        heads = self.load.heads
        drafter = self.rng.choice((*self.load.drafters, *heads))
        in_trees = ("", "model", *heads) if self.load.cluster.draft else heads
        return {"k": self.rng.choice(KS), "drafter": drafter, "draft_top_n": self.rng.choice([0, 0, 8]),
                "tree": self.rng.choice(TREES) if drafter in in_trees else ""}

    def repeat(self, ask: Callable[[], Any]) -> Any:
        """Asks until the coordinator was there all the time."""
        while True:
            began = time.monotonic()
            try:
                return ask()
            except (grpc.RpcError, openai.APIError, httpx2.TransportError) as error:
                if not is_unavailable(error):
                    raise
                self.load.lost(began, error)

    def stream(self, wanted: inference_pb2.GenerateRequest, pause: float = 0) -> list[Answer]:
        """The whole answers to a request. One that breaks off is resumed from what has come, or begins again if that cannot
        be. After its first chunk nothing is read for `pause` seconds."""
        answers = [Answer() for _ in range(wanted.n or 1)]

        def ask() -> None:
            if wanted.n > 1 or wanted.HasField("beam"):
                answers[:] = [Answer() for _ in answers]
            else:
                wanted.resume_from[:] = answers[0].tokens
                self.load.count_resumed(bool(wanted.resume_from))
            for chunk in self.stub.Generate(wanted, timeout=PATIENCE, wait_for_ready=True):
                answers[chunk.sample].add(chunk)
                if watched:
                    watched.chunks += 1
                elif chunk.position == 0:
                    time.sleep(pause)

        with self.load.watched() if not pause else contextlib.nullcontext() as watched:
            self.repeat(ask)
        return answers


# --- kinds of requests: what each returns is its outcome ----------------------------------------------------------


def invariant_answer(w: Worker) -> str:
    call = w.call()
    return check(w.stream(request(call.prompt, **call.options, **w.speculation(), trace=w.rng.random() < 0.3)), call)


def several_samples(w: Worker) -> str:
    call = w.call(samples=True)
    return check(w.stream(request(call.prompt, **call.options, **w.speculation())), call)


def slow_reader(w: Worker) -> str:
    call = w.call()
    wanted = request(call.prompt, **call.options, **w.speculation())
    wanted.logprobs.top = 20  # more than the buffers between hold
    return check(w.stream(wanted, pause=2), call)


def search(w: Worker) -> str:
    call = w.rng.choice(w.load.searches)
    return check(w.stream(request(call.prompt, **call.options, **(w.speculation() | {"drafter": w.rng.choice(w.load.drafters), "tree": ""}))), call)


def sampled_answer(w: Worker) -> str:
    """Of these only the form is known: tests/slow/test_distribution.py looks at what they say."""
    how = w.speculation()
    rule = w.rng.choice(["token", "block"]) if how["tree"] in ("", "auto") else "token"
    wanted = request(w.call().prompt, **how, rule=rule, temperature=0.8, top_p=0.95, max_tokens=w.rng.choice([5, 60, 200]),
                     ignore_eos=True)
    wanted.logprobs.top = 2
    [answer] = w.stream(wanted)
    assert (len(answer.tokens), answer.reason) == (wanted.stop.max_tokens, LENGTH), answer
    return "whole"


# How a grammar is asked for over HTTP.
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


def short_deadline(w: Worker) -> str:
    wanted, began = request(w.call().prompt, **w.speculation(), **ENDLESS), time.monotonic()
    try:
        for _ in w.stub.Generate(wanted, timeout=w.rng.choice([0.001, 0.05, 0.3])):
            pass
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return "late"
        assert is_unavailable(error), error
        w.load.lost(began, error)
        return "lost"
    raise AssertionError("800 tokens within so short a deadline")


def bad_request(w: Worker) -> str:
    field, wanted = BAD[w.rng.choice(list(BAD))]

    def ask() -> Refusal:
        try:
            list(w.stub.Generate(wanted, timeout=PATIENCE, wait_for_ready=True))
        except grpc.RpcError as error:
            if is_unavailable(error):
                raise
            return Refusal.of(error)
        raise AssertionError(f"{wanted} was taken")

    refusal = w.repeat(ask)
    assert (refusal.code, refusal.metadata["field"]) == ("INVALID_ARGUMENT", field), refusal
    return "refused"


UNREADABLE = [b"\x0a\x7f", b"\xff\xff\xff", b"", b"\x0a\x02\xff\xff", b"x" * (5 << 20)]


def unreadable_message(w: Worker) -> str:
    message = w.rng.choice(UNREADABLE)

    def ask() -> grpc.StatusCode:
        try:
            list(w.channel.unary_stream("/outrider.v1.Inference/Generate")(message, timeout=PATIENCE, wait_for_ready=True))
        except grpc.RpcError as error:
            if is_unavailable(error):
                raise
            return error.code()
        raise AssertionError(f"{message[:10]!r} was taken")

    code = w.repeat(ask)
    too_large = len(message) > 4 << 20
    assert code == (grpc.StatusCode.RESOURCE_EXHAUSTED if too_large else grpc.StatusCode.INVALID_ARGUMENT), code
    return "refused"


def bad_http_request(w: Worker) -> str:
    field, options = BAD_OVER_HTTP[w.rng.choice(list(BAD_OVER_HTTP))]

    def ask() -> openai.BadRequestError:
        try:
            w.http.completions.create(**({"model": MODEL, "prompt": "Once"} | options))
        except openai.BadRequestError as error:
            return error
        raise AssertionError(f"{str(options)[:200]} was taken")

    assert w.repeat(ask).param == field
    return "refused"


def ends_at_once(w: Worker) -> str:
    """Of several samples the first ends in its first round."""
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


def more_than_it_has_bytes(w: Worker) -> str:
    """Requests whose objects or answers take many times their own bytes."""
    many: dict[str, Any] = {"prompt": "x", "stop": [""] * 100_000}
    large: dict[str, Any] = {"prompt": ["x"] * 1000, "n": 64, "max_tokens": 1000, "logprobs": 20, "echo": True}
    options = {"model": MODEL} | w.rng.choice([many, large])

    def ask() -> int:
        try:
            w.http.completions.create(**options)
        except (openai.BadRequestError, openai.RateLimitError, openai.InternalServerError) as error:
            if is_unavailable(error):
                raise
            return error.status_code
        raise AssertionError("it was taken")

    assert w.repeat(ask) in {400, 429}
    return "refused"


def mute_connections(w: Worker) -> str:
    """More than /metrics takes, which say nothing and stay until this worker asks again."""
    w.mute.clear()
    coordinator = w.load.cluster.coordinator
    for address in (coordinator.address, coordinator.http_address, coordinator.metrics_address):
        host, port = address.split(":")
        with contextlib.suppress(OSError):  # it is away
            w.mute.extend(socket.create_connection((host, int(port)), PATIENCE) for _ in range(30))
    return "held"


# How often each is asked for.
KINDS: dict[Callable[[Worker], str], int] = {
    invariant_answer: 10, several_samples: 2, slow_reader: 2, search: 2, sampled_answer: 4, http_stream: 4, http_answer: 1, http_tool_call: 1, cancelled: 3,
    http_client_leaves: 2, short_deadline: 2, bad_request: 3, unreadable_message: 1, bad_http_request: 2,
    ends_at_once: 2, search_cancelled: 2, scored_prompt: 1, more_than_it_has_bytes: 1, mute_connections: 1}
