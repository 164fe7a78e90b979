"""Requests of careless and hostile clients, for bench/soak.py. They are refused, nobody reads their answers, or
they cost far more than they seem to.
"""

import contextlib
from functools import partial
from typing import Any

import grpc
import openai

from harness import (PATIENCE, Refusal, Stream, draft_pb2, draft_pb2_grpc, inference_pb2, new_sequence, request, target_pb2,
                     target_pb2_grpc)
from http_clients import MODEL
from soak_load import Kinds, Unread, Worker, is_unavailable
from test_bad_requests import BAD, METHODS
from test_descriptors import connections
from test_exhaustion import EMPTY_STOP_STRINGS
from test_openai_server import BAD_FOR_ANY_MODEL as BAD_OVER_HTTP

# --- requests that may be refused ---------------------------------------------------------------------------------


def refusal(w: Worker, wanted: inference_pb2.GenerateRequest) -> Refusal | None:
    """How a request was refused; None if it was answered."""
    def ask() -> Refusal | None:
        try:
            list(w.stub.Generate(wanted, timeout=PATIENCE, wait_for_ready=True))
        except grpc.RpcError as error:
            if is_unavailable(error):
                raise
            return Refusal.of(error)
        return None

    return w.repeat(ask)


def code_of_bytes(w: Worker, message: bytes) -> grpc.StatusCode:
    """The status code for bytes that are sent as they are."""
    def ask() -> grpc.StatusCode:
        try:
            list(w.channel.unary_stream(METHODS["coordinator"])(message, timeout=PATIENCE, wait_for_ready=True))
        except grpc.RpcError as error:
            if is_unavailable(error):
                raise
            return error.code()
        return grpc.StatusCode.OK

    return w.repeat(ask)


def complete(w: Worker, options: dict[str, Any]) -> bytes | openai.APIStatusError:
    """The body of a completion over HTTP, or how it was refused."""
    def ask() -> bytes | openai.APIStatusError:
        try:
            return w.http.completions.with_raw_response.create(**({"model": MODEL} | options)).content
        except (openai.BadRequestError, openai.RateLimitError) as error:
            return error

    return w.repeat(ask)


# --- requests that cannot be answered -----------------------------------------------------------------------------


def bad_request(w: Worker) -> str:
    field, wanted = BAD[w.rng.choice(list(BAD))]
    refused = refusal(w, wanted)
    assert refused, f"{wanted} was taken"
    assert (refused.code, refused.metadata["field"]) == ("INVALID_ARGUMENT", field), refused
    return "refused"


UNREADABLE = [b"\x0a\x7f", b"\xff\xff\xff", b"", b"\x0a\x02\xff\xff", b"x" * (5 << 20)]


def unreadable_message(w: Worker) -> str:
    message = w.rng.choice(UNREADABLE)
    code = code_of_bytes(w, message)
    too_large = len(message) > 4 << 20
    assert code == (grpc.StatusCode.RESOURCE_EXHAUSTED if too_large else grpc.StatusCode.INVALID_ARGUMENT), code
    return "refused"


def bad_http_request(w: Worker) -> str:
    field, options = BAD_OVER_HTTP[w.rng.choice(list(BAD_OVER_HTTP))]
    refused = complete(w, {"prompt": "Once"} | options)
    assert isinstance(refused, openai.BadRequestError) and refused.param == field, f"{str(options)[:200]}: got {refused!r:.200}"
    return "refused"


def refused_item(method: Any, request_type: Any, item: Any) -> Refusal:
    with contextlib.closing(Stream(partial(method, timeout=10), request_type)) as stream:
        return stream.refused(item)


def item_of_itself(w: Worker) -> str:
    """Asks the servers for a sequence that is a copy of itself. They may be away, frozen, or about to end."""
    c, sequence, base = w.load.cluster, new_sequence(4), w.rng.choice([0, 3])
    verify, propose = sequence.verify(1, [1, 2, 3, 4], base), sequence.propose(1, [1, 2, 3, 4], base)
    verify.verify.sequence.fork_of = propose.propose.sequence.fork_of = sequence.id
    refusals = []
    try:
        with c.target.connect() as channel:
            refusals.append(refused_item(target_pb2_grpc.TargetStub(channel).Verify, target_pb2.VerifyRequest, verify))
        if c.draft:
            with c.draft.connect() as channel:
                refusals.append(refused_item(draft_pb2_grpc.DraftStub(channel).Propose, draft_pb2.ProposeRequest, propose))
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
        return "lost"
    codes = {refused.code for refused in refusals}
    assert codes <= {"INVALID_ARGUMENT", "UNAVAILABLE"}, refusals
    return "refused" if codes == {"INVALID_ARGUMENT"} else "lost"


# --- requests that cost more than they seem to --------------------------------------------------------------------


def more_than_it_has_bytes(w: Worker) -> str:
    """Requests whose objects or answers take many times their own bytes."""
    many: dict[str, Any] = {"prompt": "x", "stop": [""] * 100_000}
    large: dict[str, Any] = {"prompt": ["x"] * 1000, "n": 64, "max_tokens": 1000, "logprobs": 20, "echo": True}
    options = w.rng.choice([many, large, None])
    if options is None:
        assert code_of_bytes(w, EMPTY_STOP_STRINGS) == grpc.StatusCode.INVALID_ARGUMENT
    else:
        refused = complete(w, options)
        assert isinstance(refused, openai.APIStatusError), "it was taken"
    return "refused"


def megabyte(w: Worker) -> str:
    """A megabyte in one field, none of which comes back in the error."""
    wanted = request("a", max_tokens=3)
    if w.rng.random() < 0.5:
        wanted.stop.strings.append("x" * 1_000_000)
    else:
        wanted.chat.messages.add(role="user" * 100_000, content="a")
    refused = refusal(w, wanted)
    assert refused and refused.code == "INVALID_ARGUMENT" and len(refused.message) < 4096, refused
    return "refused"


def long_conversation(w: Worker) -> str:
    """A conversation with more messages than the limit, or with more tokens than most contexts hold."""
    count = w.rng.choice([4000, 5000])
    wanted = request("", max_tokens=1)
    wanted.chat.messages.extend([inference_pb2.ChatMessage(role="user", content="a")] * count)
    refused = refusal(w, wanted)
    if count == 5000:
        assert refused and refused.metadata == {"field": "chat.messages", "range": "1 to 4096"}, refused
    elif refused:
        assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED"), refused
    return "refused" if refused else "whole"


# Numbers of prompts and of choices for each: 4 MB, 17 MB, and more than an answer may hold, 64 MiB.
BIG = [(1, 16), (1, 16), (1, 64), (5, 64)]


def big_answer(w: Worker) -> str:
    """An answer that is held until it is complete, with twenty alternatives to each prompt token, for each choice."""
    prompts, n = w.rng.choice(BIG)
    asked = {"prompt": [(w.call().prompt * 40)[:1500] for _ in range(prompts)], "n": n, "max_tokens": 1, "echo": True, "logprobs": 20}
    answer = complete(w, asked)
    if isinstance(answer, bytes):
        assert answer.count(b'"finish_reason":"') == prompts * n and answer.endswith(b"}"), f"{prompts} x {n}: {answer[-200:]!r}"
        return "whole"
    assert answer.code in ("answer_too_large", "answers_too_large"), answer
    return "refused"


# --- requests that stay open --------------------------------------------------------------------------------------

def never_reads(w: Worker) -> str:
    """A stream that stays unread until this worker begins the next. The outcome is how the one before ended."""
    read = w.rng.random() < 0.5
    wanted = request(w.call().prompt, **w.speculation(), n=4, temperature=1, max_tokens=400, ignore_eos=True)
    wanted.logprobs.top = 20  # more than the buffers on the way hold
    w.unread, before = Unread(w.load, wanted), w.unread
    return before.end(read=read) if before else "begun"


def mute_connections(w: Worker) -> str:
    """Silent connections that stay until this worker asks again: more than the coordinator's /metrics accepts, a few to the servers."""
    w.mute.clear()
    c = w.load.cluster
    ports = [(address, 30) for address in (c.coordinator.address, c.coordinator.http_address, c.coordinator.metrics_address)]
    for server in (c.target, c.draft):
        ports += [(address, 3) for address in (server.address, server.metrics_address)] if server else []
    for address, count in ports:
        with contextlib.suppress(OSError):  # the server is away
            w.mute.extend(connections(address, count))
    return "held"


HOSTILE: Kinds = {
    bad_request: 3, unreadable_message: 1, bad_http_request: 2, item_of_itself: 2, more_than_it_has_bytes: 1, megabyte: 1,
    long_conversation: 1, big_answer: 1, never_reads: 2, mute_connections: 1}
# After these requests, a process keeps tens of MiB for the next of their kind.
LARGE = (long_conversation, big_answer)
