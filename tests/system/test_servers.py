"""Draft and target end without losing an answer, say when to try again, and are reached over slow connections."""

import contextlib
import itertools
import socket
import threading
from collections.abc import Iterator

import grpc
import pytest

from harness import (Answer, Refusal, Server, Stream, cluster, draft_stream, eventually, new_sequence, running,
                     start_coordinator, start_draft, start_target, target_stream)

PROMPT = list(range(300, 340))
LONG = {"k": 2, "temperature": 0, "max_tokens": 600, "ignore_eos": True}


def verify(round: int, tokens: list[int]) -> object:
    return new_sequence(len(tokens)).verify(round, tokens)


def propose(round: int, tokens: list[int]) -> object:
    return new_sequence(len(tokens)).propose(round, tokens)


# A server of each kind, a stream to it, and an item for it.
KINDS = {"target": (start_target, target_stream, verify), "draft": (start_draft, draft_stream, propose)}


def results_until_the_end(stream: Stream) -> tuple[list[object], Refusal]:
    results = []
    while True:
        try:
            results.append(stream.receive())
        except grpc.RpcError as error:
            return results, Refusal.of(error)


class Busy:
    """A stream to a server, with work that takes a while."""

    def __init__(self, kind: str, stream: Stream) -> None:
        self.item = KINDS[kind][2]
        self.stream = stream
        length = stream.info.max_context - 20
        self.prompts = [[300 + (i * j) % 700 for i in range(length)] for j in range(1, 9)]
        items = [self.item(1, prompt) for prompt in self.prompts]
        # The last item is answered at once, as soon as the server has all others.
        stream.send(*items, type(items[0])())
        self.results = []
        while not (last := stream.receive()).HasField("status"):
            self.results.append(last)


@contextlib.contextmanager
def busy(kind: str, *flags: str) -> Iterator[tuple[Server, Busy]]:
    start, connect, _ = KINDS[kind]
    # Small steps, so that there is work left when the signal comes.
    server = start("--max-batch-tokens", "32", "--no-prefix-cache", *flags)
    with running(server), connect(server) as stream:
        yield server, Busy(kind, stream)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_told_to_end_answers_what_it_has_and_takes_nothing_new(kind: str) -> None:
    with busy(kind, "--drain", "1000") as (server, work):
        server.terminate()
        server.wait_for_event("draining")
        assert (server.health(), server.health(service="live")) == ("NOT_SERVING", "SERVING")
        work.stream.send(work.item(1, PROMPT))
        results, end = results_until_the_end(work.stream)
        refused = [Refusal.parse(result.status) for result in results if result.HasField("status")]
        assert [(r.code, r.reason, r.retry) for r in refused] == [("UNAVAILABLE", "DRAINING", True)]
        assert len(work.results) + len(results) - 1 == len(work.prompts), "an item was lost"
        assert (end.code, end.reason) == ("UNAVAILABLE", "DRAINING")
        server.wait_orderly_end()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_out_of_time_ends_its_streams_all_the_same(kind: str) -> None:
    with busy(kind, "--drain", "0") as (server, work):
        server.terminate()
        results, end = results_until_the_end(work.stream)
        assert end.code == "UNAVAILABLE"
        assert len(work.results) + len(results) < len(work.prompts), "there was time for all"
        server.wait_orderly_end()


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_server_says_when_to_try_again(kind: str) -> None:
    start, connect, item = KINDS[kind]
    server = start("--max-sequences", "1")
    with running(server), connect(server) as stream:
        # Both arrive before the first is computed, so the first cannot count as abandoned.
        refusals = [Refusal.parse(result.status) for result in stream.ask(item(1, PROMPT), item(1, PROMPT[::-1]))
                    if result.HasField("status")]
        assert [(r.code, r.reason, r.retry) for r in refusals] == [("RESOURCE_EXHAUSTED", "SEQUENCES_EXHAUSTED", True)]

        rounds = itertools.count(2)
        second = new_sequence(len(PROMPT))
        again = second.verify if kind == "target" else second.propose
        eventually(lambda: not stream.ask(again(next(rounds), PROMPT))[0].HasField("status"), "the first is abandoned")


def test_more_items_than_may_wait_are_refused_one_by_one() -> None:
    target = start_target("--max-sequences", "2")
    with running(target), target_stream(target) as stream:
        items = [verify(1, [300 + i, *PROMPT]) for i in range(100)]
        results = stream.ask(*items)
        assert any(result.HasField("verdict") for result in results)
        refusals = [Refusal.parse(result.status) for result in results if result.HasField("status")]
        assert {(r.code, r.retry) for r in refusals} == {("RESOURCE_EXHAUSTED", True)}
        assert {r.reason for r in refusals} == {"SERVER_BUSY", "SEQUENCES_EXHAUSTED"}


def test_streams_survive_the_orderly_end_of_both_servers(prompts: list[str]) -> None:
    calls = [(prompt, LONG) for prompt in prompts[:8]]
    with cluster() as c:
        quiet = [answer.tokens for answer in c.generate_all(calls)]
        streams = [c.stream(prompt, **options) for prompt, options in calls]
        answers = [Answer() for _ in streams]
        for answer, stream in zip(answers, streams, strict=True):
            answer.add(next(stream))
        for server in (c.target, c.draft):
            server.stop()
        told = c.coordinator.value("outrider_target_errors_total", reason="DRAINING")
        assert told <= len(calls), "a refused round was sent again and again"
        c.restart_target()
        c.restart_draft()
        for answer, stream in zip(answers, streams, strict=True):
            for chunk in stream:
                answer.add(chunk)
        assert [answer.check().tokens for answer in answers] == quiet
        assert c.target.value("outrider_target_step_duration_seconds_count") > 0, "all ended before the target did"
        c.wait_idle()


@contextlib.contextmanager
def slow_to_connect(address: str, pause: float) -> Iterator[str]:
    """A proxy that passes on a connection's first bytes only after a pause, as a distant server with TLS would."""
    host, port = address.rsplit(":", 1)
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(client: socket.socket) -> None:
        threading.Event().wait(pause)
        with contextlib.suppress(OSError):
            server = socket.create_connection((host, int(port)))
            threading.Thread(target=pump, args=(server, client), daemon=True).start()
            pump(client, server)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def test_a_server_that_takes_a_second_to_connect_to_is_reached() -> None:
    target = start_target()
    with slow_to_connect(target.address, pause=1.0) as address:
        coordinator: Server = start_coordinator(address, "")
        with running(target, coordinator):
            eventually(lambda: coordinator.value("outrider_target_up") == 1, "the target is reached", patience=30)
