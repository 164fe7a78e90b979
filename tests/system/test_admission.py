"""Requests beyond those that may run wait; clients take turns, and a waiting client can leave."""

import http.client
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from harness import Cluster, Refusal, cluster, request
from http_clients import answer_of, ask_from, complete_from

WAITING = "outrider_requests_waiting"


def test_a_client_with_many_requests_delays_another_by_one(prompts: list[str]) -> None:
    flags = ["--max-requests", "2", "--max-waiting-requests", "500"]
    with cluster(draft=None, coordinator=flags) as c:
        expected = c.generate(prompts[1], k=0, temperature=0, max_tokens=3).text
        many = [c.stream(prompts[0], k=0, temperature=0, max_tokens=60, ignore_eos=True) for _ in range(200)]
        next(many[0])
        before = c.coordinator.value("outrider_requests_total")
        assert complete_from("127.0.0.2", c, prompts[1]) == expected
        ended = c.coordinator.value("outrider_requests_total") - before
        # Two that ran, two that were next, the request itself, and those that ended while its answer was read.
        assert ended < 40, "the queue was first in, first out"
        assert c.coordinator.value(WAITING) > 100
        for stream in many:
            stream.cancel()
        c.wait_idle()
        assert c.coordinator.value(WAITING) == 0


def assert_queues_are_apart(c: Cluster, prompt: str, ask: Callable[[str], http.client.HTTPConnection], one: str, other: str) -> None:
    """Checks that two clients have separate queues, at a coordinator that runs one request and lets three wait."""
    first = c.stream(prompt, k=0, temperature=0, ignore_eos=True)
    next(first)
    waiting = [ask(one) for _ in range(3)]
    c.coordinator.wait_value(WAITING, 3)
    status, body = answer_of(ask(one))
    assert (status, body["error"]["code"]) == (429, "queue_full")
    others = ask(other)
    c.coordinator.wait_value(WAITING, 4)
    first.cancel()
    assert {answer_of(each)[0] for each in [*waiting, others]} == {200}
    c.wait_idle()


NARROW = ["--max-requests", "1", "--max-waiting-requests", "3"]


def test_a_full_queue_of_one_client_is_not_anothers(prompts: list[str]) -> None:
    with cluster(draft=None, coordinator=NARROW) as c:
        assert_queues_are_apart(c, prompts[0], lambda host: ask_from(host, c, prompts[1]), "127.0.0.3", "127.0.0.2")


def test_a_full_queue_of_one_token_is_not_anothers(prompts: list[str], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice-secret\nbob-secret\n")
    with cluster(draft=None, coordinator=[*NARROW, "--http-tls-terminated", "--http-token-file", str(keys)]) as c:
        assert_queues_are_apart(c, prompts[0], lambda token: ask_from("127.0.0.1", c, prompts[1], token=token), "alice-secret", "bob-secret")


@pytest.fixture(scope="module")
def narrow() -> Cluster:
    with cluster(draft=None, coordinator=["--max-requests", "1"]) as c:
        yield c


def test_who_waits_is_served_in_order_and_can_leave(narrow: Cluster, prompts: list[str]) -> None:
    first = narrow.stream(prompts[0], k=0, temperature=0, ignore_eos=True)
    next(first)
    leaving, staying = (narrow.stream(prompts[1], k=0, temperature=0, max_tokens=4) for _ in range(2))
    narrow.coordinator.wait_value(WAITING, 2)
    assert narrow.coordinator.value("outrider_requests_running") == 1
    leaving.cancel()
    narrow.coordinator.wait_value(WAITING, 1)
    first.cancel()
    assert sum(len(chunk.tokens) for chunk in staying) == 4
    narrow.wait_idle()


def test_a_deadline_also_ends_waiting(narrow: Cluster, prompts: list[str]) -> None:
    first = narrow.stream(prompts[0], k=0, temperature=0, ignore_eos=True)
    next(first)
    with pytest.raises(grpc.RpcError) as error:
        list(narrow.stub.Generate(request(prompts[1], k=0), timeout=0.2))
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    narrow.coordinator.wait_value(WAITING, 0)
    first.cancel()
    narrow.wait_idle()


def test_a_coordinator_that_drains_begins_nothing_that_waited(prompts: list[str]) -> None:
    with cluster(draft=None, coordinator=["--max-requests", "1"]) as c:
        running = c.stream(prompts[0], k=0, temperature=0, max_tokens=300, ignore_eos=True)
        next(running)
        waiting = c.stream(prompts[1], k=0, temperature=0, max_tokens=4)
        c.coordinator.wait_value(WAITING, 1)
        c.coordinator.terminate()
        with pytest.raises(grpc.RpcError) as error:
            list(waiting)
        refusal = Refusal.of(error.value)
        assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "DRAINING")
        assert sum(len(chunk.tokens) for chunk in running) > 200, "what ran goes on to its end"
