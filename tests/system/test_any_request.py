"""Random requests, made from the protocols' own descriptors. Each is carried out, or refused with an error that blames the
client, and all three processes go on as before.

OUTRIDER_ANY_REQUESTS is the number of requests of each kind, and OUTRIDER_ANY_SEED their seed.
"""

import json
import math
import os
import queue
import random
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from harness import PATIENCE, Cluster, Server, cluster, draft_pb2, inference_pb2, prefix_hash, sequence_pb2, target_pb2
from heads import FLAGS

COUNT = int(os.environ.get("OUTRIDER_ANY_REQUESTS", "80"))
SEED = int(os.environ.get("OUTRIDER_ANY_SEED", "1"))
NORMAL = {"k": 4, "temperature": 0.0, "max_tokens": 8}
OURS = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNIMPLEMENTED}

F = FieldDescriptor
INTEGERS = {F.TYPE_UINT32: (0, 2**32 - 1), F.TYPE_FIXED32: (0, 2**32 - 1), F.TYPE_UINT64: (0, 2**64 - 1),
            F.TYPE_FIXED64: (0, 2**64 - 1), F.TYPE_INT32: (-2**31, 2**31 - 1), F.TYPE_SINT32: (-2**31, 2**31 - 1),
            F.TYPE_INT64: (-2**63, 2**63 - 1), F.TYPE_SINT64: (-2**63, 2**63 - 1)}
REALS = [0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 100.0, 1e-38, 1e-45, -1e30, 3.4e38, math.inf, -math.inf, math.nan]
TEXTS = ["", "a", "The little boy", "\u4e2d\U0001F600", "\0", "\n" * 50, "x" * 5000, "<|endoftext|>", "user"]


class Requests:
    """Fills messages of any type, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def scalar(self, field: FieldDescriptor) -> Any:
        r = self.random
        if field.type in INTEGERS:
            low, high = INTEGERS[field.type]
            small = [n for n in (0, 1, 2, 5, 300, 4095, 4096, -1) if low <= n <= high]
            return r.choice([*small, *small, high, low, high // 2 + 1, r.randint(low, high)])
        if field.type in (F.TYPE_FLOAT, F.TYPE_DOUBLE):
            return r.choice([*REALS, r.random()])
        if field.type == F.TYPE_BOOL:
            return r.random() < 0.5
        if field.type == F.TYPE_ENUM:
            return r.choice([*(value.number for value in field.enum_type.values), 99, -1, 2**31 - 1])
        if field.type == F.TYPE_BYTES:
            return r.choice([b"", b"short", bytes(16), r.randbytes(16), r.randbytes(16), b"\xff" * 5000])
        return r.choice(TEXTS)

    def fill(self, message: Message, depth: int = 0) -> None:
        """Sets some fields at random. Of a oneof, the last field that is set stays."""
        fields = list(message.DESCRIPTOR.fields)
        self.random.shuffle(fields)
        for field in fields:
            # Deep fields are rarely reached, so each is set more often.
            if self.random.random() > 0.35 + 0.1 * depth:
                continue
            if field.is_repeated:
                count = self.random.choice([0, 1, 2, 5, 70] if field.message_type else [0, 1, 2, 5, 300, 5000])
                values = getattr(message, field.name)
                if field.message_type:
                    for _ in range(count if depth < 2 else min(count, 5)):
                        self.fill(values.add(), depth + 1)
                else:
                    values.extend(self.scalar(field) for _ in range(count))
            elif field.message_type:
                value = getattr(message, field.name)
                value.SetInParent()
                self.fill(value, depth + 1)
            else:
                setattr(message, field.name, self.scalar(field))

    def wire(self, message: Message) -> bytes:
        """The message, sometimes with a field of a later version, and sometimes damaged."""
        data = message.SerializeToString()
        chance = self.random.random()
        if chance < 0.1:
            data += b"\xfa\x3e" + bytes([5]) + b"later"  # field 1007
        elif chance < 0.2 and data:
            at = self.random.randrange(len(data))
            data = data[:at] + self.random.randbytes(self.random.randrange(4)) + data[at + 1:]
        return data

    def plausible_update(self, update: sequence_pb2.SequenceUpdate) -> None:
        """Often corrects the fields that a server checks first, so that it checks the others."""
        r = self.random
        if r.random() < 0.8:
            update.sequence_id = struct.pack("<QQ", 7, r.randrange(4))
        if r.random() < 0.7:
            update.base = 0
            update.prefix_hash = prefix_hash([])
        if r.random() < 0.7:
            update.ClearField("fork_of")
            del update.tokens[:]
            update.tokens.extend(r.randrange(4096) for _ in range(r.choice([1, 3, 40])))
        if r.random() < 0.5:
            update.params.sampling.CopyFrom(sequence_pb2.SamplingParams(temperature=1))
            update.params.rule = r.choice([1, 2, 3])
            update.params.draft_top_n = r.choice([0, 1, 8])
            update.params.prompt_length = 1
            for name in ("lenience", "logprobs", "draft_temperature"):
                update.params.ClearField(name)


def raw(channel: grpc.Channel, method: str, kind: str) -> Any:
    """A method that takes and returns bytes."""
    return getattr(channel, kind)(method, request_serializer=bytes, response_deserializer=bytes)


def check_code(error: grpc.RpcError, what: Any) -> None:
    assert error.code() not in OURS, f"{error.code()}: {error.details()} for\n{what}"


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """A cluster whose servers soon free the sequences of coordinators that are gone."""
    with cluster(target=["--lease", "1", *FLAGS], draft=["--lease", "1"]) as c:
        yield c


@pytest.fixture(autouse=True)
def undisturbed(pair: Cluster) -> Iterator[None]:
    """Checks that the same processes give the same answer after a test as before it, and hold nothing."""
    before = pair.generate("The little boy", **NORMAL).tokens
    yield
    for server in (pair.target, pair.draft, pair.coordinator):
        assert server.popen.poll() is None, server.tail()
    assert pair.generate("The little boy", **NORMAL).tokens == before
    pair.wait_idle()


def test_any_generate_request(pair: Cluster) -> None:
    answered = 0
    for number in range(COUNT):
        requests = Requests(SEED * 1_000_003 + number)
        message = inference_pb2.GenerateRequest()
        requests.fill(message)
        if requests.random.random() < 0.7:  # else nearly all fail because of their prompt
            message.text = "The little boy"
        if requests.random.random() < 0.6:  # only some fields
            kept = requests.random.sample(sorted(f.name for f, _ in message.ListFields()), k=min(3, len(message.ListFields())))
            for field, _ in message.ListFields():
                if field.name not in (*kept, "text"):
                    message.ClearField(field.name)
        message.stop.max_tokens = min(message.stop.max_tokens, 4) or 4
        with pair.coordinator.connect() as channel:
            try:
                call = raw(channel, "/outrider.v1.Inference/Generate", "unary_stream")(requests.wire(message), timeout=20)
                answered += bool(list(call))
            except grpc.RpcError as error:
                check_code(error, message)
                assert error.code() != grpc.StatusCode.DEADLINE_EXCEEDED, message
    assert answered > COUNT // 20, "hardly anything was valid"


def test_any_describe_request(pair: Cluster) -> None:
    for number in range(10):
        data = Requests(SEED + number).random.randbytes(number * 3)
        with pair.coordinator.connect() as channel:
            try:
                raw(channel, "/outrider.v1.Inference/Describe", "unary_unary")(data, timeout=PATIENCE)
            except grpc.RpcError as error:
                check_code(error, data)


def items_of(server: str, requests: Requests) -> Message:
    """A batch of a few items for a model server."""
    batch = draft_pb2.ProposeRequest() if server == "draft" else target_pb2.VerifyRequest()
    for _ in range(requests.random.randrange(4)):
        item = batch.items.add()
        requests.fill(item)
        work = item.WhichOneof("kind")
        if work is None and requests.random.random() < 0.8:
            work = "propose" if server == "draft" else "verify"
            requests.fill(getattr(item, work))
        if work in ("propose", "verify"):
            requests.plausible_update(getattr(item, work).sequence)
            for index, node in enumerate(item.verify.draft if work == "verify" else []):
                if requests.random.random() < 0.9:
                    node.token, node.parent = requests.random.randrange(4096), index - 1
    return batch


LAST = b"the last request"


def last_batch(server: str) -> bytes:
    """A batch of one item that is always answered. Its answer shows that the server has read all earlier batches."""
    update = sequence_pb2.SequenceUpdate(sequence_id=LAST, round=1, tokens=[1, 2], prefix_hash=prefix_hash([]), params_hash=7,
                                         params=sequence_pb2.SequenceParams(rule=1, prompt_length=2))
    if server == "draft":
        item = draft_pb2.DraftItem(propose=draft_pb2.ProposeItem(sequence=update, draft_tokens=1))
        return draft_pb2.ProposeRequest(items=[item]).SerializeToString()
    return target_pb2.VerifyRequest(items=[target_pb2.TargetItem(
        verify=target_pb2.VerifyItem(sequence=update))]).SerializeToString()


def check_results(server: str, answer: bytes) -> int:
    """Counts the results that succeeded. Checks that no other one is an error of the server's own."""
    response = (draft_pb2.ProposeResponse if server == "draft" else target_pb2.VerifyResponse).FromString(answer)
    ours = {code.value[0] for code in OURS}
    for result in response.results:
        assert result.status.code not in ours, result
    return sum(1 for result in response.results if result.status.code == 0)


@pytest.mark.parametrize("name", ["draft", "target"])
def test_any_item_of_a_stream(pair: Cluster, name: str) -> None:
    server: Server = getattr(pair, name)
    method = "/outrider.v1.Draft/Propose" if name == "draft" else "/outrider.v1.Target/Verify"
    answered = 0
    for number in range(COUNT):
        requests = Requests(SEED * 1_000_003 + number)
        batches = [items_of(name, requests) for _ in range(3)]
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for batch in [*map(requests.wire, batches), last_batch(name)]:
            outgoing.put(batch)
        with server.connect() as channel:
            try:
                for answer in raw(channel, method, "stream_stream")(iter(outgoing.get, None), timeout=20):
                    answered += check_results(name, answer)
                    if LAST in answer:
                        outgoing.put(None)
            except grpc.RpcError as error:
                check_code(error, batches)
                assert error.code() != grpc.StatusCode.DEADLINE_EXCEEDED, batches
    assert answered > COUNT // 2, "hardly anything was valid"


FIELDS = ["model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
          "best_of", "stream", "stream_options", "stop", "stop_token_ids", "seed", "logprobs", "top_logprobs", "echo",
          "logit_bias", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "user",
          "suffix", "tools", "tool_choice", "functions", "response_format", "speculation", "allowed_token_ids", "bad_words",
          "structured_outputs", "guided_json", "guided_regex", "guided_choice", "grammar"]


def any_json(r: random.Random, depth: int = 0) -> Any:
    kinds = [None, True, False, 0, 1, -1, 4096, 2**31, 2**32, 2**63, 2**64, 0.5, 1e308, -1e-300, *TEXTS, [], {}]
    if depth < 3 and r.random() < 0.3:
        values = [any_json(r, depth + 1) for _ in range(r.choice([1, 2, 3, 40]))]
        return values if r.random() < 0.5 else {r.choice([*FIELDS, "type", "json", "regex", "role", "content", "5", ""]): value for value in values}
    return r.choice(kinds)


def any_body(r: random.Random, path: str) -> bytes:
    body = {name: any_json(r) for name in r.sample(FIELDS, r.randrange(4))}
    if r.random() < 0.8:
        if path.endswith("chat/completions"):
            body["messages"] = [{"role": "user", "content": "The little boy"}]
        else:
            body["prompt"] = r.choice(["The little boy", ["a", "b"], [1, 2, 3], [[1], [2]]])
    if r.random() < 0.1:
        parameters = r.choice([any_json(r), {"type": "object", "properties": {"a": {"enum": [1, "x"]}}, "required": ["a"]}])
        function = {"name": r.choice(["f", *TEXTS]), "parameters": parameters, "strict": r.random() < 0.5}
        body |= {"tools": [{"type": "function", "function": function}], "tool_choice": r.choice(["auto", "none", "required"])}
    elif r.random() < 0.1:
        body |= r.choice([{"guided_regex": "[a-z]{2,9}"}, {"guided_json": {"enum": ["a", 1]}}, {"guided_choice": ["a", "b"]}])
    if r.random() < 0.98:
        body["max_tokens"] = r.choice([1, 4])
        body.pop("max_completion_tokens", None)
    data = json.dumps(body, allow_nan=True).encode()
    if r.random() < 0.1:
        at = r.randrange(len(data))
        data = data[:at] + r.randbytes(r.randrange(4)) + data[at + 1:]
    return b"[" * 5000 if r.random() < 0.02 else data


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_any_body_of_openais_api(pair: Cluster, path: str) -> None:
    answered = 0
    for number in range(COUNT):
        r = random.Random(SEED * 1_000_003 + number)
        body = any_body(r, path)
        post = urllib.request.Request(f"http://{pair.coordinator.http_address}{path}", body,
                                      {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(post, timeout=20) as response:
                response.read()
                answered += 1
        except urllib.error.HTTPError as error:
            text = error.read()
            assert error.code < 500 or error.code == 503, f"{error.code} {text!r} for {body!r}"
            assert json.loads(text)["error"]["message"]
    assert answered > COUNT // 20, "hardly anything was valid"
