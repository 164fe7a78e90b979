"""vLLM's gRPC protocol, with clients generated from its published protos, which scripts/install_tools fetches."""

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import grpc_tools
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from certificates import Authority, tls_flags
from harness import (PATIENCE, ROOT, TARGET_MODEL, Cluster, Refusal, cluster, eventually, inference_pb2, request, running, sequence_pb2,
                     start_coordinator, start_target)

PUBLISHED = Path(os.environ.get("OUTRIDER_VLLM_PROTO", ROOT / ".tools" / "vllm-proto"))
FILES = ("inference.proto", "control.proto")
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"

assert all((PUBLISHED / name).exists() for name in FILES), f"no {PUBLISHED}: scripts/install_tools fetches it from crates.io"


def run_protoc(folder: Path, files: Sequence[str], *arguments: str) -> None:
    assert protoc.main(["protoc", f"-I{folder}", f"-I{WELL_KNOWN}", *arguments, *files]) == 0


def generated() -> list[ModuleType]:
    with tempfile.TemporaryDirectory() as out:
        run_protoc(PUBLISHED, FILES, f"--python_out={out}", f"--grpc_python_out={out}")
        sys.path.insert(0, out)
        try:
            return [importlib.import_module(name) for name in ("inference_pb2", "inference_pb2_grpc", "control_pb2", "control_pb2_grpc")]
        finally:
            sys.path.remove(out)


vllm, vllm_grpc, control, control_grpc = generated()
LENGTH, STOP, ABORTED = (vllm.FinishInfo.FinishReason.Value(name) for name in ("LENGTH", "STOP", "ABORTED"))
ALIASES = ("small-one", "little-one")


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    with cluster(coordinator=["--served-model-name", ALIASES[0], "--served-model-name", ALIASES[1]]) as c:
        yield c


class Client:
    """Calls over one connection, as one client."""

    def __init__(self, channel: grpc.Channel, token: str = "") -> None:
        self.inference, self.control = vllm_grpc.InferenceStub(channel), control_grpc.ControlStub(channel)
        self.options: dict[str, Any] = {"timeout": PATIENCE}
        if token:
            self.options["metadata"] = [("authorization", f"Bearer {token}")]

    def generate(self, wanted: Any) -> Any:
        return self.inference.Generate(wanted, **self.options)

    def stream(self, wanted: Any) -> grpc.Call:
        return self.inference.GenerateStream(wanted, **self.options)

    def abort(self, *ids: str) -> None:
        self.control.Abort(control.AbortRequest(request_ids=ids), **self.options)

    def refused(self, wanted: Any, **options: Any) -> Refusal:
        refusals = []
        for call in (lambda: self.inference.Generate(wanted, **self.options | options),
                     lambda: list(self.inference.GenerateStream(wanted, **self.options | options))):
            with pytest.raises(grpc.RpcError) as error:
                call()
            refusals.append(Refusal.of(error.value))
        assert refusals[0] == refusals[1]
        return refusals[0]


@pytest.fixture(scope="module")
def client(pair: Cluster) -> Iterator[Client]:
    with pair.coordinator.connect() as channel:
        yield Client(channel)


def asked(prompt: str | Sequence[int], *, max_tokens: int = 24, temperature: float | None = 0, **fields: Any) -> Any:
    """A request that ignores the model's end of text, unless `fields` say otherwise. Messages in `fields` are dictionaries."""
    prompts = {"text": prompt} if isinstance(prompt, str) else {"token_ids": {"ids": prompt}}
    stopping = {"max_new_tokens": max_tokens, "ignore_eos": True} | fields.pop("stopping", {})
    return vllm.GenerateRequest(temperature=temperature, stopping=stopping, **prompts, **fields)


def text_of(responses: Sequence[Any], index: int = 0) -> str:
    return "".join(r.outputs.text for r in responses if r.outputs.index == index)


IDS = {"output_token_ids": True}


# --- answers ---------------------------------------------------------------------------------------------------


def test_a_greedy_answer_is_that_of_our_own_service(pair: Cluster, client: Client, prompts: list[str]) -> None:
    for prompt in prompts[:4]:
        own = pair.generate(prompt, temperature=0, max_tokens=24, ignore_eos=True)
        answer = client.generate(asked(prompt, response=IDS))
        output = answer.outputs
        assert (output.text, list(output.token_ids), output.num_tokens) == (own.text, own.tokens, 24)
        assert (output.finish_info.finish_reason, output.finish_info.num_output_tokens) == (LENGTH, 24)
        assert output.finish_info.num_cached_tokens > 0, "the prompt was there already"
        assert answer.prompt_info.num_prompt_tokens == own.finish.usage.prompt_tokens


def test_unset_fields_have_vllms_defaults(pair: Cluster, client: Client, prompts: list[str]) -> None:
    answer = client.generate(vllm.GenerateRequest(text=prompts[0], stopping={"ignore_eos": True}))
    assert answer.outputs.text == pair.generate(prompts[0], temperature=0, max_tokens=20, ignore_eos=True).text
    assert not (answer.outputs.token_ids or answer.outputs.logprobs or answer.prompt_info.token_ids)
    silent = client.generate(asked(prompts[0], response={"output_text": False}))
    assert (silent.outputs.text, silent.outputs.num_tokens) == ("", 24)


def test_a_streams_parts_are_the_whole(client: Client, prompts: list[str]) -> None:
    for prompt in prompts[:3]:
        wanted = asked(prompt, max_tokens=60, response=IDS | {"output_logprobs": True})
        whole = client.generate(wanted)
        parts = list(client.stream(wanted))
        assert len(parts) > 1
        assert text_of(parts) == whole.outputs.text
        assert [id for part in parts for id in part.outputs.token_ids] == list(whole.outputs.token_ids)
        assert [value for part in parts for value in part.outputs.logprobs] == pytest.approx(list(whole.outputs.logprobs))
        assert [part.HasField("prompt_info") for part in parts] == [True] + [False] * (len(parts) - 1)
        assert [part.outputs.HasField("finish_info") for part in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[0].prompt_info == whole.prompt_info


def test_several_texts_each_have_their_end(pair: Cluster, client: Client, prompts: list[str]) -> None:
    wanted = asked(prompts[0], temperature=1, sampling={"num_sequences": 3, "seed": 5})
    parts = list(client.stream(wanted))
    own = pair.generate_samples(prompts[0], 3, temperature=1, seed=5, max_tokens=24, ignore_eos=True)
    assert [text_of(parts, index) for index in range(3)] == [answer.text for answer in own]
    assert len({answer.text for answer in own}) == 3
    assert [part.HasField("prompt_info") for part in parts].count(True) == 1 and parts[0].HasField("prompt_info")
    for index in range(3):
        of_one = [part.outputs for part in parts if part.outputs.index == index]
        assert [output.HasField("finish_info") for output in of_one] == [False] * (len(of_one) - 1) + [True]
        assert sum(output.num_tokens for output in of_one) == of_one[-1].finish_info.num_output_tokens == 24


def test_a_seed_repeats_an_answer(pair: Cluster, client: Client, prompts: list[str]) -> None:
    def sampled(seed: int) -> str:
        return client.generate(asked(prompts[1], temperature=1, sampling={"seed": seed, "top_k": 40})).outputs.text

    assert sampled(7) == sampled(7) != sampled(8)
    assert sampled(7) == pair.generate(prompts[1], temperature=1, seed=7, top_k=40, max_tokens=24, ignore_eos=True).text


def test_log_probabilities_are_those_of_our_own_service(pair: Cluster, client: Client, prompts: list[str]) -> None:
    wanted = request(prompts[2], temperature=0, max_tokens=12, ignore_eos=True)
    wanted.logprobs.CopyFrom(inference_pb2.LogprobOptions(top=3, before_controls=True, prompt=2))
    chunks = list(pair.stub.Generate(wanted, timeout=PATIENCE))
    own, own_prompt = ([p for chunk in chunks for p in positions(chunk)] for positions in
                       (lambda chunk: [token.logprobs for token in chunk.tokens], lambda chunk: chunk.prompt_logprobs))
    answer = client.generate(asked(prompts[2], max_tokens=12, response={
        "output_logprobs": True, "output_candidates": {"top_n": 3}, "prompt_logprobs": True, "prompt_candidates": {"top_n": 2},
        "prompt_token_ids": True}))
    assert list(answer.outputs.logprobs) == pytest.approx([p.token.logprob for p in own], rel=1e-5)
    for info, position in zip(answer.outputs.candidate_tokens, own, strict=True):
        assert {t.id: t.rank for t in info.tokens} == {t.id: rank for rank, t in enumerate(position.top, 1) if t.id != position.token.id}
        assert len(info.tokens) == 2, "the greedy token is one of the three"
    info = answer.prompt_info
    assert info.num_prompt_tokens == len(info.token_ids) == len(info.logprobs) == len(info.candidate_tokens) == len(own_prompt) + 1
    assert list(info.token_ids[1:]) == [p.token.id for p in own_prompt]
    assert list(info.logprobs) == pytest.approx([0, *(p.token.logprob for p in own_prompt)], rel=1e-5)


def test_a_prompt_is_cut_to_its_end(pair: Cluster, client: Client, prompts: list[str]) -> None:
    ids = list(pair.stub.Tokenize(inference_pb2.TokenizeRequest(text=prompts[3])).ids)
    own = pair.generate(ids[-5:], temperature=0, max_tokens=24, ignore_eos=True)
    for prompt in (prompts[3], ids):
        answer = client.generate(asked(prompt, truncate_prompt_tokens=5, response={"prompt_token_ids": True}))
        assert (list(answer.prompt_info.token_ids), answer.prompt_info.num_prompt_tokens) == (ids[-5:], 5)
        assert answer.outputs.text == own.text
    assert own.text != pair.generate(ids, temperature=0, max_tokens=24, ignore_eos=True).text


def test_what_stopped_a_text_is_named(pair: Cluster, client: Client, prompts: list[str]) -> None:
    own = pair.generate(prompts[0], temperature=0, max_tokens=24, ignore_eos=True)
    by_id = client.generate(asked(prompts[0], stopping={"stop_token_ids": [own.tokens[9]]})).outputs.finish_info
    assert (by_id.finish_reason, by_id.WhichOneof("stop_reason"), by_id.stop_token_id) == (STOP, "stop_token_id", own.tokens[9])
    assert by_id.num_output_tokens == own.tokens.index(own.tokens[9]) + 1
    word = own.text.split()[3]
    by_text = client.generate(asked(prompts[0], stopping={"stop_strings": [word]})).outputs
    assert (by_text.text, by_text.finish_info.stop_string) == (own.text[:own.text.index(word)], word)
    [eos, *_] = pair.stub.Describe(inference_pb2.DescribeRequest()).target.eos_ids
    ends = client.generate(asked(prompts[0], stopping={"ignore_eos": False}, decoding={"allowed_token_ids": [eos]})).outputs
    assert (ends.text, ends.finish_info.WhichOneof("stop_reason"), ends.finish_info.eos_token_id) == ("", "eos_token_id", eos)


def test_an_answer_is_held_to_its_grammar(pair: Cluster, client: Client, prompts: list[str]) -> None:
    any_object = sequence_pb2.Grammar(json_schema='{"type":"object","additionalProperties":true}')
    own = pair.generate(prompts[0], temperature=0, max_tokens=24, grammar=any_object)
    held, free = (client.generate(asked(prompts[0], stopping={"ignore_eos": False}, decoding=decoding)).outputs.text
                  for decoding in ({"json_object": True}, {"json_object": False}))
    assert held == own.text and held.startswith("{") and not free.startswith("{")
    chosen = client.generate(asked(prompts[0], stopping={"ignore_eos": False}, decoding={"choice": {"choices": ["yes", "no"]}}))
    assert chosen.outputs.text in ("yes", "no") and chosen.outputs.finish_info.finish_reason == STOP


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field, fields", [
    ("media", {"media": [{"url": "https://example.com/a.png"}]}),
    ("lora_name", {"lora_name": "x"}),
    ("stopping.include_stop_strings", {"stopping": {"include_stop_strings": True}}),
    ("stopping.thinking_token_budget", {"stopping": {"thinking_token_budget": 0}}),
    ("response.skip_special_tokens", {"response": {"skip_special_tokens": False}}),
    ("response.output_candidates.all", {"response": {"output_logprobs": True, "output_candidates": {"all": True}}}),
    ("response.prompt_candidates.token_ids", {"response": {"prompt_logprobs": True, "prompt_candidates": {"token_ids": {"ids": [1]}}}}),
    ("kv.bypass_prefix_cache", {"kv": {"bypass_prefix_cache": True}}),
    ("kv.cache_salt", {"kv": {"cache_salt": "x"}}),
    ("kv.kv_transfer_params", {"kv": {"kv_transfer_params": {"do_remote_prefill": True}}}),
    ("kv.ec_transfer_params", {"kv": {"ec_transfer_params": {"a": 1}}}),
])
def test_what_cannot_be_had_is_refused_by_name(pair: Cluster, client: Client, field: str, fields: dict[str, Any]) -> None:
    before = pair.coordinator.value("outrider_requests_total", code="INVALID_ARGUMENT")
    refusal = client.refused(asked("Once", **fields))
    assert (refusal.code, refusal.reason, refusal.metadata) == ("INVALID_ARGUMENT", "UNSUPPORTED_PARAMETER", {"field": field})
    assert refusal.message == f"{field}: not supported"
    assert pair.coordinator.value("outrider_requests_total", code="INVALID_ARGUMENT") == before + 2


@pytest.mark.parametrize("field, fields", [
    ("temperature", {"temperature": -1}),
    ("sampling.top_p", {"sampling": {"top_p": 0}}),
    ("decoding.repetition_penalty", {"decoding": {"repetition_penalty": -1}}),
    ("decoding.allowed_token_ids", {"decoding": {"allowed_token_ids": [10**9]}}),
    ("decoding.bad_words_token_ids", {"decoding": {"bad_words_token_ids": [{"ids": [1, 2]}]}}),
    ("decoding.regex", {"decoding": {"regex": "("}, "stopping": {"ignore_eos": False}}),
    ("stopping.stop_strings", {"stopping": {"stop_strings": [""]}}),
    ("response.output_candidates.top_n", {"response": {"output_logprobs": True, "output_candidates": {"top_n": 21}}}),
])
def test_a_wrong_value_is_refused_by_vllms_name(client: Client, field: str, fields: dict[str, Any]) -> None:
    refusal = client.refused(asked("Once", **fields))
    assert (refusal.code, refusal.reason, refusal.metadata["field"]) == ("INVALID_ARGUMENT", "FIELD_INVALID", field)
    assert refusal.message.startswith(f"{field}: ")


@pytest.mark.parametrize("method, wanted, said", [("Generate", 2, "GenerateStream"), ("GenerateStream", 1000, "[0, 64]")])
def test_one_answer_is_one_text_and_a_stream_has_not_any_number(client: Client, method: str, wanted: int, said: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        answer = getattr(client.inference, method)(asked("Once", sampling={"num_sequences": wanted}), timeout=PATIENCE)
        list(answer)
    refusal = Refusal.of(error.value)
    assert (refusal.code, refusal.metadata["field"]) == ("INVALID_ARGUMENT", "sampling.num_sequences")
    assert said in refusal.message


def test_a_request_without_a_prompt_and_one_that_is_no_message_are_refused(pair: Cluster, client: Client) -> None:
    assert client.refused(vllm.GenerateRequest()).metadata["field"] == "prompt"
    with pair.coordinator.connect() as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary("/vllm.Inference/Generate", request_serializer=bytes, response_deserializer=bytes)(b"\x1a\x05a")
    assert Refusal.of(error.value).reason == "MESSAGE_INVALID"


def test_what_only_advises_changes_nothing(client: Client, prompts: list[str]) -> None:
    advised = asked(prompts[0], priority=3, session_id="s", watermarking=False, kv_hints={"message_id": "m"},
                    engine_reasoning_gate={"reasoning_ended": True})
    assert client.generate(advised).outputs == client.generate(asked(prompts[0])).outputs


def test_only_the_served_model_answers(client: Client) -> None:
    for name in ALIASES:
        assert client.generate(asked("Once", model=name, max_tokens=1)).outputs.num_tokens == 1
    refusal = client.refused(asked("Once", model="another"))
    assert (refusal.code, refusal.reason, refusal.metadata) == ("NOT_FOUND", "MODEL_NOT_FOUND", {"field": "model"})
    assert refusal.message == f"the model 'another' is not served; '{ALIASES[0]}' is"


# --- control ---------------------------------------------------------------------------------------------------


def test_the_model_is_described(client: Client) -> None:
    info = client.control.GetModelInfo(control.GetModelInfoRequest())
    assert (info.model_id, info.served_model_name, list(info.served_model_aliases)) == (TARGET_MODEL.name, ALIASES[0], [ALIASES[1]])
    assert info.supports_text_input and info.supports_token_ids_input and not info.supports_lora and not info.supports_multimodal


def test_without_a_target_nobody_knows_the_model() -> None:
    with running(start_coordinator("127.0.0.1:1", "")) as [c], c.connect() as channel, pytest.raises(grpc.RpcError) as error:
        Client(channel).control.GetModelInfo(control.GetModelInfoRequest())
    assert (Refusal.of(error.value).code, Refusal.of(error.value).reason) == ("UNAVAILABLE", "TARGET_UNAVAILABLE")


def test_what_is_not_served_says_so(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as error:
        client.control.GetServerInfo(control.GetServerInfoRequest())
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


LONG = {"max_tokens": 1500}


def test_an_aborted_answer_ends_as_it_is(pair: Cluster, client: Client, prompts: list[str]) -> None:
    parts = client.stream(asked(prompts[0], **LONG, request_id="streamed", sampling={"num_sequences": 2}, temperature=1))
    seen = [next(parts)]
    client.abort("unknown", "streamed")
    seen += parts
    for index in range(2):
        outputs = [part.outputs for part in seen if part.outputs.index == index]
        assert outputs[-1].finish_info.finish_reason == ABORTED
        assert outputs[-1].finish_info.num_output_tokens == sum(output.num_tokens for output in outputs) < 1500
    call = client.inference.Generate.future(asked(prompts[0], **LONG, request_id="whole"), timeout=PATIENCE)
    pair.coordinator.wait_value("outrider_requests_running", 1)
    client.abort("whole")
    output = call.result().outputs
    assert output.finish_info.finish_reason == ABORTED
    assert output.finish_info.num_output_tokens == output.num_tokens < 1500
    pair.wait_idle()


def test_a_request_is_known_by_its_id(pair: Cluster, client: Client, prompts: list[str]) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    for wanted, header in ((asked(prompts[0], request_id="by-field"), "ignored"), (asked(prompts[0]), "by-header")):
        _, call = client.inference.Generate.with_call(wanted, timeout=PATIENCE, metadata=[("x-request-id", header), ("traceparent", trace)])
        name = wanted.request_id or header
        assert dict(call.initial_metadata())["x-request-id"] == name
        assert pair.coordinator.wait_for_event("request", request_id=name)["traceparent"] == trace


def test_a_client_that_goes_away_frees_its_blocks(pair: Cluster, client: Client, prompts: list[str]) -> None:
    before = pair.coordinator.value("outrider_requests_total", code="CANCELLED")
    streams = [client.stream(asked(prompt, **LONG)) for prompt in prompts[:2]]
    call = client.inference.Generate.future(asked(prompts[2], **LONG), timeout=PATIENCE)
    for stream in streams:
        next(stream)
    pair.coordinator.wait_value("outrider_requests_running", 3)
    for gone in (*streams, call):
        gone.cancel()
    pair.wait_idle()
    assert pair.coordinator.value("outrider_requests_total", code="CANCELLED") == before + 3


def test_a_deadline_holds_for_our_own_service_too() -> None:
    with running(start_coordinator("127.0.0.1:1", "", "--target-wait", "3600", "--drain", "0")) as [c], c.connect() as channel:
        with pytest.raises(grpc.RpcError) as error:
            Client(channel).inference.Generate(asked("Once"), timeout=0.3)
        assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        c.wait_value("outrider_requests_running", 0)
        eventually(lambda: c.value("outrider_requests_total") == 1, "it reached our own service, and ended there")


def test_a_stream_outlives_the_signal_to_end(prompts: list[str]) -> None:
    with cluster() as c, c.coordinator.connect() as channel:
        parts = Client(channel).stream(asked(prompts[0], max_tokens=400))
        seen = [next(parts)]
        c.coordinator.terminate()
        seen += parts
        assert seen[-1].outputs.finish_info.num_output_tokens == sum(part.outputs.num_tokens for part in seen) == 400
        assert c.coordinator.wait_end() == 0


@contextlib.contextmanager
def two_clients(authority: Authority, folder: Path) -> Iterator[tuple[Client, Client, Client]]:
    """Two clients that the coordinator tells apart by their tokens, and one without a token."""
    tokens = folder / "tokens"
    tokens.write_text("ada-secret\nbob-secret\n")
    with running() as servers, contextlib.ExitStack() as stack:
        servers.append(target := start_target())
        servers.append(c := start_coordinator(target.address, "", *tls_flags(*authority.sign("coordinator")), "--token-file", str(tokens)))
        c.wait_for_event("connected", server="target")
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        channel = stack.enter_context(grpc.secure_channel(c.address, credentials))
        yield Client(channel, "ada-secret"), Client(channel, "bob-secret"), Client(channel)


def test_clients_end_only_their_own_requests(authority: Authority, tmp_path: Path, prompts: list[str]) -> None:
    with two_clients(authority, tmp_path) as (ada, bob, stranger):
        of_ada, of_bob = (one.stream(asked(prompts[0], max_tokens=700, request_id="same")) for one in (ada, bob))
        seen = [next(of_ada)]
        next(of_bob)
        bob.abort("same")
        [*_, last] = of_bob
        assert last.outputs.finish_info.finish_reason == ABORTED
        seen += of_ada
        assert seen[-1].outputs.finish_info.finish_reason == LENGTH
        assert sum(part.outputs.num_tokens for part in seen) == 700
        once = asked("Once")
        for call in (lambda: stranger.generate(once), lambda: list(stranger.stream(once)), lambda: stranger.abort("same")):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


# --- the protos ------------------------------------------------------------------------------------------------


def described(folder: Path, files: Sequence[str]) -> list[FileDescriptorProto]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "files.binpb"
        run_protoc(folder, files, f"--descriptor_set_out={out}")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def facts(files: Sequence[FileDescriptorProto]) -> set[tuple[Any, ...]]:
    """The facts on which the wire and generated code depend: a row for each field, value and method."""
    rows: set[tuple[Any, ...]] = set()

    def add_enum(name: str, enum: EnumDescriptorProto) -> None:
        rows.update((f"{name}.{enum.name}", value.name, value.number) for value in enum.value)

    def add_message(name: str, message: DescriptorProto) -> None:
        full = f"{name}.{message.name}"
        for field in message.field:
            choice = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            rows.add((full, field.name, field.number, field.type, field.label, field.type_name, field.proto3_optional, choice))
        for nested in message.nested_type:
            add_message(full, nested)
        for enum in message.enum_type:
            add_enum(full, enum)

    for file in files:
        for message in file.message_type:
            add_message(file.package, message)
        for enum in file.enum_type:
            add_enum(file.package, enum)
        for service in file.service:
            rows.update((f"{file.package}.{service.name}", m.name, m.input_type, m.output_type, m.client_streaming, m.server_streaming)
                        for m in service.method)
    return rows


def test_our_protos_are_a_part_of_the_published_ones() -> None:
    ours = described(ROOT / "proto", [f"vllm/{name}" for name in FILES])
    published = facts(described(PUBLISHED, FILES))
    assert len(facts(ours)) > 80 and facts(ours) - published == set()
    # Each of these changes is found.
    ours[0].message_type[0].field[0].number += 40
    assert len(facts(ours) - published) == 1
    ours[1].service[0].method[0].server_streaming = True
    assert len(facts(ours) - published) == 2
