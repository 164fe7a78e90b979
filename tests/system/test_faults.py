"""Servers die: the answer is the same, nothing is emitted twice, and the coordinator needs no restart."""

import time
from functools import partial
from typing import Any

import grpc
import pytest

from harness import (PATIENCE, Answer, Cluster, cluster, eventually, inference_pb2_grpc, request, running, start_coordinator,
                     start_draft, took)
from relay import Relay, through_relay

LONG = {"k": 2, "temperature": 0, "max_tokens": 600, "ignore_eos": True}


@pytest.fixture(scope="module")
def undisturbed(pair: Cluster, prompts: list[str]) -> list[int]:
    return pair.generate(prompts[7], **LONG).tokens


def read(answer: Answer, stream: grpc.Call, tokens: int) -> None:
    """Reads until the answer has that many tokens."""
    while len(answer.tokens) < tokens:
        answer.add(next(stream))


def read_all(answer: Answer, stream: grpc.Call) -> Answer:
    for chunk in stream:
        answer.add(chunk)
    return answer.check()


def test_a_killed_draft_leaves_plain_decoding_and_comes_back(prompts: list[str], undisturbed: list[int]) -> None:
    with cluster() as c:
        stream, answer = c.stream(prompts[7], **LONG), Answer()
        read(answer, stream, 10)
        c.kill(c.draft)
        read_all(answer, stream)
        assert answer.tokens == undisturbed
        assert answer.speculation.drafts > 0, "killed before it drafted"
        assert answer.kinds[-20:] == ["plain"] * 20, "not killed in the middle"

        c.wait_draft_up(False)
        c.coordinator.wait_value("outrider_degraded", 1)
        c.coordinator.wait_for_event("disconnected", server="draft")
        assert [event["server"] for event in c.coordinator.events("disconnected")] == ["draft"], "one line says so"
        assert c.coordinator.health() == "SERVING"
        away = c.generate(prompts[0], k=4, temperature=0, max_tokens=30)
        assert away.speculation.drafted == 0

        c.restart_draft()
        c.wait_draft_up(True)
        c.coordinator.wait_value("outrider_degraded", 0)
        back = c.generate(prompts[0], k=4, temperature=0, max_tokens=30)
        assert back.speculation.accepted > 0
        assert back.tokens == away.tokens
        c.wait_idle()


def test_a_draft_that_comes_back_drafts_for_requests_in_progress(prompts: list[str], undisturbed: list[int]) -> None:
    relays: list[Relay] = []
    with cluster(target_through=partial(through_relay, relays)) as c:
        stream, answer = c.stream(prompts[7], **LONG), Answer()
        read(answer, stream, 10)
        # The request waits for the target until the draft is back.
        relays[0].freeze()
        c.kill(c.draft)
        c.wait_draft_up(False)
        c.restart_draft()
        back = time.monotonic()
        c.wait_draft_up(True)
        took(1, "draft started again, from its start until the coordinator used it", back)
        relays[0].thaw()
        read_all(answer, stream)
        assert answer.tokens == undisturbed
        assert set(answer.kinds[-20:]) != {"plain"}, "nothing was drafted after the draft's return"


def test_a_draft_that_was_never_there_costs_only_the_speculation(pair: Cluster, prompts: list[str]) -> None:
    draft = start_draft()
    draft.stop()  # nothing listens on its address now
    coordinator = start_coordinator(pair.target.address, draft.address)
    with running(coordinator), coordinator.connect() as channel:
        eventually(lambda: coordinator.health() == "SERVING", "ready without a draft")
        c = Cluster(pair.target, None, coordinator, inference_pb2_grpc.InferenceStub(channel), [], ((), ()))
        answer = c.generate(prompts[0], k=4, temperature=0, max_tokens=30)
        assert set(answer.kinds) == {"plain"}
        assert answer.tokens == pair.generate(prompts[0], k=4, temperature=0, max_tokens=30).tokens
        assert coordinator.value("outrider_degraded") == 1
        assert coordinator.value("outrider_draft_up") == 0


# The coordinator has noticed the loss, or has already failed to reconnect.
@pytest.mark.parametrize("event", ["disconnected", "cannot connect"])
def test_a_killed_target_is_waited_for(event: str, prompts: list[str], undisturbed: list[int]) -> None:
    with cluster() as c:
        stream, answer = c.stream(prompts[7], **LONG), Answer()
        read(answer, stream, 10)
        c.kill(c.target)
        c.coordinator.wait_for_event(event, server="target")
        c.restart_target()
        read_all(answer, stream)
        assert answer.tokens == undisturbed
        assert c.lost_target_during(1), "not killed in the middle"
        c.wait_idle()


def test_both_servers_may_die_at_once(prompts: list[str], undisturbed: list[int]) -> None:
    with cluster() as c:
        stream, answer = c.stream(prompts[7], **LONG), Answer()
        read(answer, stream, 10)
        c.kill(c.draft)
        c.kill(c.target)
        c.restart_target()
        c.restart_draft()
        read_all(answer, stream)
        assert answer.tokens == undisturbed
        assert c.lost_target_during(1), "not killed in the middle"
        c.wait_draft_up(True)
        assert c.generate(prompts[7], **LONG).speculation.accepted > 0
        c.wait_idle()


@pytest.mark.parametrize("how", [{"temperature": 0}, {"rule": "coupled", "temperature": 0.9, "seed": 5}], ids=["greedy", "coupled"])
def test_what_a_killed_coordinator_held_is_freed_by_lease_and_its_stream_resumed(how: dict[str, Any], pair: Cluster,
                                                                                prompts: list[str]) -> None:
    options = LONG | how
    quiet = pair.generate(prompts[7], **options)
    lease = ["--lease", "1"]
    with cluster(target=lease, draft=lease) as c:
        stream, answer = c.stream(prompts[7], **options), Answer()
        read(answer, stream, 10)
        assert c.target.value("outrider_target_kv_blocks_used") > 0
        c.kill(c.coordinator)
        killed = time.monotonic()
        with pytest.raises(grpc.RpcError) as error:
            read_all(answer, stream)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        for name, server in (("target", c.target), ("draft", c.draft)):
            server.wait_value(f"outrider_{name}_kv_blocks_used", 0)
            server.wait_value(f"outrider_{name}_sequences", 0)
        took(11, "coordinator killed, until both servers had freed its sequences (lease of 1 s)", killed)

        c.restart_coordinator()
        back = time.monotonic()
        resumed = request(prompts[7], **options)
        resumed.resume_from.extend(answer.tokens)
        stream = c.stub.Generate(resumed, timeout=PATIENCE, wait_for_ready=True)
        read(answer, stream, len(answer.tokens) + 1)
        took(11, "coordinator started again, from its start until a stream was resumed", back)
        for chunk in stream:
            answer.add(chunk)
        assert (answer.tokens, answer.text, answer.reason) == (quiet.tokens, quiet.text, quiet.reason)
        c.wait_idle()
