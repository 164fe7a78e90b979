"""The load of bench/soak.py: requests of every kind, drawn from a seed, each with its answer checked as far as it can be.

Each Worker sends one request after another, on its own thread. Its random choices depend only on the seed and its number.
A request that the coordinator's absence ended is resumed or repeated; any other error ends the soak. The kinds of
requests are functions in soak_requests.py and soak_hostile.py, each of which returns its outcome.
"""

import collections
import contextlib
import random
import socket
import threading
import time
import traceback
import urllib.error
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import grpc
import httpx2
import openai
from outrider.v1 import inference_pb2_grpc

from harness import PATIENCE, UNPROBED, Answer, Cluster, Refusal, eventually, inference_pb2
from http_clients import connect
from proxies import OPTIONS
from soak_calls import Call, draw_calls, draw_searches

WORKERS = 8
DRAFTERS = ("", "model", "model", "ngram", "copy", "auto", "none")
KS = (None, 0, 1, 2, 4, 8)
TREES = ("", "", "2x2x1", "chains:3", "budget:8", "auto")

Kind = Callable[["Worker"], str]
Kinds = dict[Kind, int]  # relative frequencies


class Stream:
    """The progress of a stream that is read without a pause."""

    def __init__(self) -> None:
        self.chunks, self.over = 0, False


class Unread:
    """An answer of several samples, which nobody reads before its end."""

    # More than the coordinator waits for a reader, twice: once for room, and once to send the last chunks.
    TIMEOUT = 3 * PATIENCE

    def __init__(self, load: "Load", wanted: inference_pb2.GenerateRequest) -> None:
        self._load, self._wanted, self._began = load, wanted, time.monotonic()
        self._channel = grpc.insecure_channel(load.cluster.coordinator.address, UNPROBED)
        self._call = inference_pb2_grpc.InferenceStub(self._channel).Generate(wanted, timeout=self.TIMEOUT, wait_for_ready=True)

    def end(self, *, read: bool) -> str:
        """Reads or cancels it. Returns how it ended."""
        answers = [Answer() for _ in range(self._wanted.n)]
        if not read:
            self._call.cancel()
        try:
            for chunk in self._call:
                answers[chunk.sample].add(chunk)
        except grpc.RpcError as error:
            return self._ended_with(error, read)
        finally:
            self._channel.close()
        assert all(len(answer.check().tokens) == self._wanted.stop.max_tokens for answer in answers), answers
        return "whole"

    def _ended_with(self, error: grpc.RpcError, read: bool) -> str:
        if is_unavailable(error):
            self._load.lost(self._began, error)
            return "lost"
        if error.code() == grpc.StatusCode.CANCELLED:
            return "given up" if read else "left"
        refusal = Refusal.of(error)
        assert (refusal.code, refusal.reason) == ("RESOURCE_EXHAUSTED", "READER_TOO_SLOW"), refusal
        return "given up"


class Load:
    """The state that the workers share. Thread-safe."""

    def __init__(self, c: Cluster, seed: int, heads: Sequence[str], kinds: Kinds) -> None:
        self.cluster, self.heads = c, heads
        self._kinds, self.drawn = kinds, kinds
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
    def running(self, *, without: Collection[Kind] = ()) -> Iterator[None]:
        """Runs the load, without some of its kinds."""
        self.drawn = {kind: weight for kind, weight in self._kinds.items() if kind not in without}
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
                worker.leave()
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
        """Records a call that was lost with the coordinator, and waits a little; raises the error if the coordinator was there."""
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
    """Whether a client of either API gets this error when the coordinator is away or ending."""
    if isinstance(error, grpc.RpcError):
        return error.code() == grpc.StatusCode.UNAVAILABLE
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError):
        return True
    return isinstance(error, openai.APIError) and error.code == "draining"


class Worker:
    """Sends one request after another, with its own connections."""

    def __init__(self, load: Load, number: int, rng: random.Random) -> None:
        self.load, self.number, self.rng = load, number, rng
        self.channel = grpc.insecure_channel(load.cluster.coordinator.address, OPTIONS)
        self.stub = inference_pb2_grpc.InferenceStub(self.channel)
        self.http = connect(load.cluster)
        self.mute: list[socket.socket] = []
        self.unread: Unread | None = None

    def leave(self) -> None:
        """Ends its open connections and streams."""
        self.mute.clear()
        if self.unread:
            self.unread.end(read=False)
            self.unread = None

    def draw(self) -> Kind:
        return self.rng.choices(list(self.load.drawn), list(self.load.drawn.values()))[0]

    def call(self, *, samples: bool = False) -> Call:
        return self.rng.choice([call for call in self.load.calls if (call.options["n"] > 1) == samples])

    def speculation(self) -> dict[str, Any]:
        heads = self.load.heads
        drafter = self.rng.choice((*self.load.drafters, *heads))
        in_trees = ("", "model", *heads) if self.load.cluster.draft else heads
        return {"k": self.rng.choice(KS), "drafter": drafter, "draft_top_n": self.rng.choice([0, 0, 8]),
                "tree": self.rng.choice(TREES) if drafter in in_trees else ""}

    def repeat(self, ask: Callable[[], Any]) -> Any:
        """Repeats `ask` until the coordinator was there all the time."""
        while True:
            began = time.monotonic()
            try:
                return ask()
            except (grpc.RpcError, openai.APIError, httpx2.TransportError) as error:
                if not is_unavailable(error):
                    raise
                self.load.lost(began, error)

    def stream(self, wanted: inference_pb2.GenerateRequest, pause: float = 0) -> list[Answer]:
        """The whole answers to a request. A stream that is interrupted is resumed from its tokens, or begins again if that is not
        possible. After its first chunk nothing is read for `pause` seconds."""
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
