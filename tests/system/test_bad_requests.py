"""A bad request is refused with the field and its range; the service stays up and holds nothing."""

import math
import time
from collections.abc import Callable

import grpc
import pytest

from harness import PATIENCE, Cluster, Refusal, cluster, eventually, inference_pb2, request, sequence_pb2, took

Request = inference_pb2.GenerateRequest


def changed(change: Callable[[Request], object]) -> Request:
    wanted = request("Once upon a time", k=2, max_tokens=4)
    change(wanted)
    return wanted


def sampling(**values: object) -> Request:
    return request("Once upon a time", k=2, max_tokens=4, **values)


BAD = {
    "no prompt": ("prompt", changed(lambda r: r.ClearField("text"))),
    "empty text": ("text", request("")),
    "no token ids": ("tokens.ids", changed(lambda r: r.tokens.SetInParent())),
    "token id out of range": ("tokens.ids", request([1, 10**6])),
    "temperature NaN": ("sampling.temperature", sampling(temperature=math.nan)),
    "temperature negative": ("sampling.temperature", sampling(temperature=-0.5)),
    "temperature infinite": ("sampling.temperature", sampling(temperature=math.inf)),
    "top_p zero": ("sampling.top_p", sampling(top_p=0.0)),
    "top_p two": ("sampling.top_p", sampling(top_p=2.0)),
    "top_p NaN": ("sampling.top_p", sampling(top_p=math.nan)),
    "top_k enormous": ("sampling.top_k", sampling(top_k=2**32 - 1)),
    "min_p negative": ("sampling.min_p", sampling(min_p=-0.1)),
    "min_p above one": ("sampling.min_p", sampling(min_p=1.1)),
    "repetition penalty zero": ("sampling.repetition_penalty", sampling(repetition_penalty=0.0)),
    "repetition penalty that would overflow": ("sampling.repetition_penalty", sampling(repetition_penalty=1e-30)),
    "repetition penalty negative": ("sampling.repetition_penalty", sampling(repetition_penalty=-1.0)),
    "presence penalty": ("sampling.presence_penalty", sampling(presence_penalty=-2.5)),
    "presence penalty NaN": ("sampling.presence_penalty", sampling(presence_penalty=math.nan)),
    "frequency penalty negative": ("sampling.frequency_penalty", sampling(frequency_penalty=-2.5)),
    "frequency penalty": ("sampling.frequency_penalty", sampling(frequency_penalty=2.5)),
    "logit bias of no token": ("sampling.logit_bias", sampling(logit_bias=[sequence_pb2.LogitBias(token=10**6)])),
    "logit bias NaN": ("sampling.logit_bias", sampling(logit_bias=[sequence_pb2.LogitBias(bias=math.nan)])),
    "allowed id out of range": ("sampling.allowed_ids", sampling(allowed_ids=[10**6])),
    "bad id out of range": ("sampling.bad_ids", sampling(bad_ids=[10**6])),
    "min_tokens enormous": ("sampling.min_tokens", sampling(min_tokens=2**32 - 1)),
    "max_tokens zero of a search": ("stop.max_tokens", changed(lambda r: (setattr(r.stop, "max_tokens", 0), setattr(r.beam, "width", 2)))),
    "10,000 stop strings": ("stop.strings", changed(lambda r: r.stop.strings.extend(map(str, range(10_000))))),
    "empty stop string": ("stop.strings", changed(lambda r: r.stop.strings.append(""))),
    "long stop string": ("stop.strings", changed(lambda r: r.stop.strings.append("x" * 5000))),
    "1025 logit biases": ("sampling.logit_bias", sampling(
        logit_bias=[sequence_pb2.LogitBias(token=i) for i in range(1025)])),
    "more allowed ids than tokens": ("sampling.allowed_ids", sampling(allowed_ids=[1] * 10**5)),
    "more bad ids than tokens": ("sampling.bad_ids", sampling(bad_ids=[1] * 10**5)),
    "1025 stop ids": ("stop.token_ids", changed(lambda r: r.stop.token_ids.extend([1] * 1025))),
    "more resumed ids than the context has": ("resume_from", changed(lambda r: r.resume_from.extend([300] * 10**5))),
    "draft_top_n beyond the vocabulary": ("speculation.draft_top_n", changed(
        lambda r: setattr(r.speculation, "draft_top_n", 10**6))),
    "stop id out of range": ("stop.token_ids", changed(lambda r: r.stop.token_ids.append(10**6))),
    "unknown rule": ("speculation.rule", changed(lambda r: setattr(r.speculation, "rule", 99))),
    "unknown drafter": ("speculation.drafter", changed(lambda r: setattr(r.speculation, "drafter", 99))),
    "K too large": ("speculation.draft_tokens", changed(lambda r: setattr(r.speculation, "draft_tokens", 1000))),
    "resume_from out of range": ("resume_from", changed(lambda r: r.resume_from.append(10**6))),
    "resume_from too long": ("resume_from", changed(lambda r: r.resume_from.extend([300] * 5))),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_with_its_field_and_range(case: str, pair: Cluster) -> None:
    field, wanted = BAD[case]
    refusal = pair.refused(wanted)
    assert (refusal.code, refusal.metadata["field"]) == ("INVALID_ARGUMENT", field), refusal
    assert refusal.metadata["range"]
    assert field in refusal.message


def test_a_message_that_cannot_be_read_ends_its_call_and_nothing_else(pair: Cluster) -> None:
    with pair.coordinator.connect() as channel:
        raw = channel.unary_stream("/outrider.v1.Inference/Generate")
        for message, reason in ((b"\x0a\x7f", "MESSAGE_INVALID"), (b"\xff\xff\xff", "MESSAGE_INVALID"),
                                (b"", "FIELD_INVALID")):  # truncated, not protobuf at all, empty
            with pytest.raises(grpc.RpcError) as error:
                list(raw(message, timeout=PATIENCE))
            refusal = Refusal.of(error.value)
            assert (refusal.code, refusal.reason) == ("INVALID_ARGUMENT", reason)
    assert pair.generate("Once upon a time", k=2, max_tokens=4).tokens


# Fields with numbers that no message has, one of each wire type: varint, 64 bits, bytes, 32 bits.
UNKNOWN_FIELDS = b"\xc0\xb8\x02\x05" b"\xc9\xb8\x02" + bytes(8) + b"\xd2\xb8\x02\x03abc" b"\xdd\xb8\x02" + bytes(4)


def test_fields_that_nobody_knows_change_nothing(pair: Cluster) -> None:
    wanted = request("Once upon a time", k=2, temperature=0, max_tokens=4)
    message = wanted.SerializeToString() + UNKNOWN_FIELDS
    assert Request.FromString(message).text == wanted.text
    with pair.coordinator.connect() as channel:
        answers = [[chunk for chunk in channel.unary_stream(
            "/outrider.v1.Inference/Generate", response_deserializer=inference_pb2.GenerateResponse.FromString)(
                sent, timeout=PATIENCE)] for sent in (message, wanted.SerializeToString())]
    tokens = [[token.id for chunk in answer for token in chunk.tokens] for answer in answers]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 4


# The method of each process that takes a message.
METHODS = {"coordinator": "/outrider.v1.Inference/Generate", "target": "/outrider.v1.Target/Verify",
           "draft": "/outrider.v1.Draft/Propose"}


@pytest.mark.parametrize("name", METHODS)
def test_messages_of_100_mb_are_refused_and_their_memory_is_used_again(name: str, pair: Cluster) -> None:
    """The allocator may keep the memory of two messages, however many come."""
    server, before = getattr(pair, name), getattr(pair, name).resident_mebibytes()
    for _ in range(8):
        with server.connect() as channel, pytest.raises(grpc.RpcError) as error:
            list(channel.stream_stream(METHODS[name])(iter([bytes(100_000_000)]), timeout=PATIENCE))
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    eventually(lambda: server.resident_mebibytes() < before + 200, "the memory is free again")
    assert pair.generate("Once upon a time", k=2, max_tokens=4).tokens


def test_text_that_is_not_utf8_is_refused_by_its_field(pair: Cluster) -> None:
    wanted = request("spoil", k=2, max_tokens=4, stop=["harm"])
    with pair.coordinator.connect() as channel:
        raw = channel.unary_stream("/outrider.v1.Inference/Generate")
        for field, text in (("text", b"spoil"), ("stop.strings", b"harm")):
            message = wanted.SerializeToString().replace(text, b"\xff" * len(text))
            with pytest.raises(grpc.RpcError) as error:
                list(raw(message, timeout=PATIENCE))
            refusal = Refusal.of(error.value)
            assert (refusal.code, refusal.metadata["field"]) == ("INVALID_ARGUMENT", field)
            assert refusal.metadata["range"] == "valid UTF-8"


def test_a_request_that_is_too_large_ends_its_own_call_and_nothing_else(pair: Cluster, prompts: list[str]) -> None:
    """The limit of public messages is far below that of messages between services, so no request becomes too large an item."""
    stream = pair.stream(prompts[0], k=2, temperature=0, max_tokens=400, ignore_eos=True)
    next(stream)
    with pytest.raises(grpc.RpcError) as error:
        list(pair.stub.Generate(request("x " * (3 << 20)), timeout=PATIENCE))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    # Text that is too long for the context in any tokenisation is refused before it is tokenised.
    refusal = pair.refused(request("x " * (1 << 20)))
    assert (refusal.code, refusal.reason, refusal.metadata["field"]) == (
        "INVALID_ARGUMENT", "CONTEXT_LENGTH_EXCEEDED", "prompt")
    assert "2097152 bytes" in refusal.message
    assert sum(len(chunk.tokens) for chunk in stream) > 300
    assert not pair.coordinator.value("outrider_target_errors_total")


def test_a_refused_request_leaves_nothing_behind(pair: Cluster) -> None:
    for _, wanted in BAD.values():
        pair.refused(wanted)
    pair.wait_idle()


def test_more_requests_than_allowed_are_told_to_come_back(prompts: list[str]) -> None:
    with cluster(draft=None, coordinator=["--max-requests", "1", "--max-waiting-requests", "0"]) as c:
        stream = c.stream(prompts[0], ignore_eos=True)
        next(stream)
        asked = time.monotonic()
        refusal = c.refused(request(prompts[1], max_tokens=1))
        took(15, "queue full, until a request was refused", asked)
        assert (refusal.code, refusal.reason, refusal.retry) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL", True)
        stream.cancel()
        c.wait_idle()
        assert c.generate(prompts[1], max_tokens=1).tokens
        refusal = c.refused(request(prompts[1], drafter="model"))
        assert (refusal.code, refusal.metadata["field"]) == ("INVALID_ARGUMENT", "speculation.drafter")
