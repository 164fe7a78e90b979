"""Sixteen streams while servers end, freeze, crawl or cannot be reached: each has the tokens of a quiet run.

Each test prints how long the streams took to go on (pytest -s); the table of faults in docs/operations.md has the figures.
"""

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from harness import Answer, Cluster, Server, cluster, eventually, inference_pb2_grpc, running, start_coordinator, took
from relay import Relay, relay

Call = tuple[str, dict[str, Any]]
STREAMS = 16
TOKENS = 200


def calls_of(prompts: Sequence[str]) -> list[Call]:
    """Answers that depend on nothing but the request: greedy, and the coupled rule."""
    ks = itertools.cycle([4, 2, 0, 8])
    how = itertools.cycle([{"temperature": 0}, {"rule": "coupled", "temperature": 0.9}])
    trees = itertools.cycle(["none", "2x2x1", "none", "budget:8", "none"])
    return [(prompts[i % len(prompts)], next(how) | {"k": next(ks), "tree": next(trees), "seed": i, "max_tokens": TOKENS, "ignore_eos": True})
            for i in range(STREAMS)]


@pytest.fixture(scope="module")
def calls(prompts: list[str]) -> list[Call]:
    return calls_of(prompts)


@pytest.fixture(scope="module")
def quiet(pair: Cluster, calls: list[Call]) -> list[list[int]]:
    return [answer.tokens for answer in pair.generate_all(calls)]


class Streams:
    """The calls, each read by its own thread."""

    def __init__(self, c: Cluster, calls: Sequence[Call]) -> None:
        self.answers = [Answer() for _ in calls]
        self.arrivals: list[list[float]] = [[] for _ in calls]
        self.errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._read, args=(c, *each)) for each in zip(calls, self.answers, self.arrivals)]
        for thread in self._threads:
            thread.start()

    def _read(self, c: Cluster, call: Call, answer: Answer, arrivals: list[float]) -> None:
        try:
            for chunk in c.stream(call[0], **call[1]):
                answer.add(chunk)
                arrivals.append(time.monotonic())
        except Exception as error:
            self.errors.append(error)

    def lengths(self) -> list[int]:
        return [len(answer.tokens) for answer in self.answers]

    def wait_more(self, count: int) -> None:
        """Waits until each stream has `count` more tokens than now, or all."""
        wanted = [min(length + count, TOKENS) for length in self.lengths()]
        eventually(lambda: self.errors or all(map(int.__ge__, self.lengths(), wanted)), "all streams go on")

    def longest_pause(self, since: float) -> tuple[float, float]:
        """When the longest of the pauses that ended after `since` began and ended."""
        pauses = [pause for arrivals in self.arrivals for pause in itertools.pairwise(arrivals) if pause[1] > since]
        return max(pauses, key=lambda pause: pause[1] - pause[0])

    def tokens(self) -> list[list[int]]:
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors[0]
        return [answer.check().tokens for answer in self.answers]


def disturb(c: Cluster, calls: list[Call], row: int, what: str, begin: Callable[[], None], seconds: float,
            end: Callable[[], None]) -> list[list[int]]:
    """The tokens of streams that run while something is wrong for some seconds; `row` is the fault's in docs/operations.md."""
    streams = Streams(c, calls)
    streams.wait_more(10)
    began = time.monotonic()
    begin()
    if what.startswith("draft"):  # streams do not wait for it
        streams.wait_more(20)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    end()
    ended = time.monotonic()
    if what.startswith("draft"):
        took(row, f"{what}, the longest pause of {STREAMS} streams", *streams.longest_pause(began))
    else:
        assert any(length < TOKENS for length in streams.lengths()), "over before the disturbance was"
        streams.wait_more(1)
        took(row, f"{what}, from its end until {STREAMS} streams had gone on", ended)
    return streams.tokens()


def stopped(server: Server) -> tuple[Callable[[], None], Callable[[], None]]:
    return (lambda: server.popen.send_signal(signal.SIGSTOP)), (lambda: server.popen.send_signal(signal.SIGCONT))


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_frozen_server_delays_but_changes_nothing(name: str, calls: list[Call], quiet: list[list[int]]) -> None:
    with cluster() as c:
        freeze, thaw = stopped(getattr(c, name))
        assert disturb(c, calls, 21, f"{name} frozen for 3 s", freeze, 3, thaw) == quiet
        eventually(lambda: c.generate(*[calls[0][0]], **calls[0][1]).speculation.drafted > 0, "speculation resumes")
        c.wait_idle()


@pytest.mark.parametrize(("name", "row"), [("target", 9), ("draft", 1)])
def test_a_server_that_is_killed_and_started_again_changes_nothing(name: str, row: int, calls: list[Call],
                                                                  quiet: list[list[int]]) -> None:
    with cluster() as c:
        assert disturb(c, calls, row, f"{name} killed, and started again", lambda: c.kill(getattr(c, name)), 0.2,
                       getattr(c, f"restart_{name}")) == quiet
        c.wait_draft_up(True)
        c.wait_idle()


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_server_that_is_replaced_in_an_orderly_way_loses_nothing(name: str, calls: list[Call],
                                                                  quiet: list[list[int]]) -> None:
    with cluster() as c:
        def replace() -> None:
            server = getattr(c, name)
            server.stop()
            c._servers.remove(server)
            getattr(c, f"restart_{name}")()

        assert disturb(c, calls, 10, f"{name} told to end, and started again", replace, 0, lambda: None) == quiet
        c.wait_draft_up(True)
        c.wait_idle()


@contextlib.contextmanager
def behind_relays(pair: Cluster) -> Iterator[tuple[Cluster, dict[str, Relay]]]:
    """A coordinator of its own that reaches the pair through relays."""
    with relay(pair.target.address) as target, relay(pair.draft.address) as draft:
        with running(start_coordinator(target.address, draft.address)) as servers, servers[0].connect() as channel:
            c = Cluster(pair.target, pair.draft, servers[0], inference_pb2_grpc.InferenceStub(channel), servers, ((), ()))
            eventually(lambda: c.coordinator.health() == "SERVING", "the coordinator is ready")
            c.wait_draft_up(True)
            yield c, {"target": target, "draft": draft}
            c.wait_idle()


@pytest.mark.parametrize(("name", "lasting"), [("target", "packets"), ("target", "connections"), ("draft", "packets")])
def test_a_partition_is_survived(name: str, lasting: str, pair: Cluster, calls: list[Call],
                                 quiet: list[list[int]]) -> None:
    with behind_relays(pair) as (c, relays):
        way = relays[name]

        def begin() -> None:
            way.freeze()
            if lasting == "connections":
                way.cut()

        assert disturb(c, calls, 21, f"{name}: no {lasting} for 5 s", begin, 5, way.thaw) == quiet


def test_delay_and_jitter_change_no_token(pair: Cluster, calls: list[Call], quiet: list[list[int]]) -> None:
    short = [(prompt, options | {"max_tokens": 60}) for prompt, options in calls]
    with behind_relays(pair) as (c, relays):
        for way in relays.values():
            way.slow(0.01, 0.04)
        assert [answer.tokens for answer in c.generate_all(short)] == [tokens[:60] for tokens in quiet]


def test_peers_that_vanish_without_a_word_are_noticed_by_keepalive(pair: Cluster, calls: list[Call],
                                                                  quiet: list[list[int]]) -> None:
    with behind_relays(pair) as (c, relays):
        streams = Streams(c, calls)
        streams.wait_more(10)
        for way in relays.values():
            way.freeze()
        vanished = time.monotonic()
        for name in relays:
            c.coordinator.wait_for_event("disconnected", server=name)
            took(21, f"{name} vanished, at most until the coordinator noticed", vanished)
        for way in relays.values():
            way.thaw()
        assert streams.tokens() == quiet
        c.wait_draft_up(True)
