"""Runs a mixed load for some minutes while the three processes are killed, ended, frozen and cut off, then checks what must hold.

    .venv/bin/python bench/soak.py [--minutes 2] [--seed 1] [--model FILE.gguf [--up]]

Runs the programs of OUTRIDER_BIN (build/release/bin) with the shipped pair and its heads, or with one model as target and draft.
With --up, `outrider up` starts the processes. They are only frozen, because it ends when one of them ends. The seed determines
requests and disturbances, but not when they meet. Prints the outcomes of the requests, and how long streams took to go on after each
disturbance. Exits with status 1 and the reason if one of these does not hold:

- every answer that depends on nothing but its request is that of a quiet run, and has each position once;
- a request fails only as its kind says, or because the coordinator was away;
- each disturbance met streams that outlasted it, and each of these went on;
- afterwards nothing runs or waits, no server holds a sequence or a used block, and every block is accounted for;
- the processes do not grow while the load goes on undisturbed;
- no process ends by itself or logs an error, and each that is told to end does, with 0.
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "system"))

from harness import Cluster, Server, cluster, eventually, inference_pb2_grpc, reserve_address
from heads import SHIPPED
from http_clients import MODEL
from relay import Relay, relay
from soak_hostile import HOSTILE, LARGE
from soak_load import Load
from soak_requests import REQUESTS
from test_command_line import Up, up

# A cache small enough to be filled, and a short lease, so that a killed coordinator's sequences are freed before the end.
SERVER_FLAGS = ["--kv-blocks", "256", "--block-size", "16", "--lease", "3"]
# A coordinator that is told to end does not wait long for clients that do not read.
DRAIN = ["--drain", "3"]
# The share of the time without disturbances, its slices, and the MiB by which a process may grow in it. A coordinator that
# was started just before it grows for a minute, from 33 to 47 MiB in one run.
QUIET, SLICES, GROWTH = 0.3, 4, 16.0
SERVERS = ("target", "draft", "coordinator")

# How a disturbance begins, how it ends, and how many seconds it lasts at most.
Disturbance = tuple[Callable[[], object], Callable[[], object], float]


class Soak:
    """The processes, the load, and the disturbances. Its methods run on one thread: a process dies with its starter."""

    def __init__(self, c: Cluster, relays: dict[str, Relay], seed: int, heads: Sequence[str]) -> None:
        self.cluster, self.relays = c, relays
        self.rng = random.Random(f"{seed} disturbances")
        self.load = Load(c, seed, heads, REQUESTS | HOSTILE)
        self.names = [name for name in SERVERS if self._server(name)]
        self.servers = [self._server(name) for name in self.names]  # all that were ever started
        self.models = [name for name in self.names if name != "coordinator"]
        self.disturbances = self._disturbances()
        self.recoveries: dict[str, list[float]] = {name: [] for name in self.disturbances}
        self.hits: collections.Counter[str] = collections.Counter()
        self.lost_items: collections.Counter[str] = collections.Counter()
        self.started = time.monotonic()

    def _disturbances(self) -> dict[str, Disturbance]:
        found: dict[str, Disturbance] = {}
        for name in self.names:
            found[f"{name} frozen"] = partial(self._signal, name, signal.SIGSTOP), partial(self._signal, name, signal.SIGCONT), 3
            if not isinstance(self._server(name), Child):
                found |= {f"{name} killed": (partial(self._kill, name), partial(self._restart, name), 0.5),
                          f"{name} told to end": (partial(self._signal, name, signal.SIGTERM), partial(self._replace, name), 0.5)}
        for name, way in self.relays.items():
            found |= {f"{name}: no packets": (way.freeze, way.thaw, 3),
                      f"{name}: no connections": (partial(self._cut, way), way.thaw, 3),
                      f"{name}: delay and jitter": (partial(way.slow, 0.005, 0.03), partial(way.slow, 0, 0), 3)}
        return found

    def _server(self, name: str) -> Server:
        server: Server = getattr(self.cluster, name)
        return server

    def _signal(self, name: str, what: signal.Signals) -> None:
        self._server(name).popen.send_signal(what)

    def _kill(self, name: str) -> None:
        self.cluster.kill(self._server(name))

    def _replace(self, name: str) -> None:
        """Waits for a server that was told to end, then starts another one in its place."""
        self._server(name).wait_orderly_end()
        self.cluster._servers.remove(self._server(name))
        self._restart(name)

    def _restart(self, name: str) -> None:
        getattr(self.cluster, f"restart_{name}")()
        self.servers.append(self._server(name))

    def _cut(self, way: Relay) -> None:
        way.freeze()
        way.cut()

    def disturb(self, name: str) -> None:
        """Waits for streams, disturbs them, and waits until each has gone on or ended."""
        begin, end, longest = self.disturbances[name]
        self.await_healthy()
        streams = eventually(lambda: self.load.errors or self.load.in_progress(), "there are streams to disturb")
        self.load.check()
        of_coordinator = name.startswith("coordinator")
        if of_coordinator:
            self.count_lost_items()  # the counts end with the coordinator
        print(f"{time.monotonic() - self.started:6.1f} s: {name}", flush=True)
        before = {stream: stream.chunks for stream in streams}
        with self.load.coordinator_absent() if of_coordinator else contextlib.nullcontext():
            began = time.monotonic()
            begin()
            try:
                self.hits[name] += sum(not stream.over for stream in streams)
                if name.startswith("draft"):  # no stream waits for the draft
                    self._await_progress(before)
                    self.recoveries[name].append(time.monotonic() - began)
                time.sleep(self.rng.uniform(0, longest))
            finally:
                end()  # a process that stayed frozen could not be told to end
        if not name.startswith("draft"):
            ended, before = time.monotonic(), {stream: stream.chunks for stream in streams}
            self._await_progress(before)
            self.recoveries[name].append(time.monotonic() - ended)

    def _await_progress(self, before: dict[object, int]) -> None:
        eventually(lambda: self.load.errors or all(stream.over or stream.chunks > chunks for stream, chunks in before.items()),
                   "every stream goes on")
        self.load.check()

    def await_healthy(self) -> None:
        eventually(lambda: all(self.cluster.coordinator.value(f"outrider_{name}_up") for name in self.models), "each is connected")

    def count_lost_items(self) -> None:
        metrics = self.cluster.coordinator.metrics()
        for name in self.models:
            self.lost_items[name] += int(sum(metrics.labelled(f"outrider_{name}_errors_total", "reason").values()))

    # --- the phases -----------------------------------------------------------------------------------------------

    def run_disturbed(self, seconds: float) -> None:
        """Disturbs until the time is over and every disturbance has met streams at least once."""
        end = time.monotonic() + seconds
        order: list[str] = []
        with self.load.running():
            while order or time.monotonic() < end:
                order = order or self.rng.sample(sorted(self.disturbances), len(self.disturbances))
                self.disturb(order.pop())
                time.sleep(self.rng.uniform(0, 0.5))
                if time.monotonic() > end and all(self.recoveries.values()):
                    return

    def run_quiet(self, seconds: float) -> None:
        """The same load in slices: after the second slice, when most caches are full, the processes may not grow much."""
        sizes = []
        for _ in range(SLICES):
            with self.load.running(without=LARGE):
                time.sleep(seconds / SLICES)
            self.cluster.wait_idle()
            sizes.append([self._server(name).resident_mebibytes() for name in self.names])
        print("resident MiB after each slice without disturbances:",
              ", ".join(f"{name} {' '.join(f'{size:.0f}' for size in column)}" for name, column in zip(self.names, zip(*sizes))))
        for name, second, last in zip(self.names, sizes[1], sizes[-1]):
            if isinstance(self._server(name), Child) and name in self.models:
                continue  # it has more blocks than this load fills
            assert last < second + GROWTH, f"the {name} grows: {sizes}"

    def check(self) -> None:
        """Checks the conditions that must hold once the load is over."""
        for name, hits in self.hits.items():
            assert hits, f"{name}: met no stream"
        assert self.load.resumed or "coordinator killed" not in self.disturbances, "no stream was resumed"
        self.count_lost_items()
        for name in self.models:
            assert self.lost_items[name] or f"{name} killed" not in self.disturbances, f"no request lost an item at the {name}"
        self.cluster.wait_idle()
        self.cluster.coordinator.wait_value("outrider_requests_waiting", 0)
        for name in self.models:
            metrics, [serving] = self._server(name).metrics(), self._server(name).events("serving")
            assert metrics.value(f"outrider_{name}_items_in_progress") == 0
            blocks = sum(metrics.value(f"outrider_{name}_kv_blocks_{state}") for state in ("used", "cached", "free"))
            assert blocks == serving["kv_blocks"], f"{name}: {blocks} of {serving['kv_blocks']} blocks"
        for server in self.servers:
            wrong = [line for line in server.lines if '"level":"error"' in line]
            assert not wrong, f"{server.program}: {wrong[0]}"
        for name in self.names:
            assert self._server(name).popen.poll() is None, f"the {name} ended by itself"

    def report(self) -> None:
        kinds = sorted({kind for kind, _ in self.load.outcomes})
        print(f"\n{'asked for':24} outcomes")
        for kind in kinds:
            outcomes = {outcome: n for (of, outcome), n in sorted(self.load.outcomes.items()) if of == kind}
            print(f"{kind:24} {', '.join(f'{n} {outcome}' for outcome, n in outcomes.items())}")
        print(f"\n{self.load.resumed} streams resumed, {self.load.repeated} calls asked again, items lost: "
              f"{self.lost_items['target']} at the target, {self.lost_items['draft']} at the draft")
        print(f"\n{'disturbance':28} {'times':>5} {'streams met':>11} {'all went on after, s: median':>28} {'longest':>8}")
        for name, times in self.recoveries.items():
            print(f"{name:28} {len(times):5} {self.hits[name]:11} {statistics.median(times):28.2f} {max(times):8.2f}")


class Child(Server):
    """A server that `outrider up` started, and that nobody else can end in order."""

    def __init__(self, of: Up, service: str) -> None:
        self.program, pid = f"outrider-{service}", of.pids()[service]
        self.popen = SimpleNamespace(pid=pid, poll=of.popen.poll, send_signal=partial(os.kill, pid))
        self.address, self.metrics_address = of.address(service), of.metrics_address(service)
        self.http_address = of.wait_for_line(r"OpenAI's API: http://(.*)/v1")[1]
        self.log = Path(of.wait_for_line(r"logs +(\S+)")[1]).with_name(f"{service}.log")

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@contextlib.contextmanager
def started_by_up(seed: int, model: str) -> Iterator[Soak]:
    """Starts what a user with only a model would start: n-grams draft."""
    with up(models={"--target-model": model, "--served-model-name": MODEL}) as process:
        process.wait_serving()
        target, coordinator = Child(process, "target"), Child(process, "coordinator")
        with coordinator.connect() as channel:
            yield Soak(Cluster(target, None, coordinator, inference_pb2_grpc.InferenceStub(channel), [], ((), ())), {}, seed, [])


@contextlib.contextmanager
def started(seed: int, model: str = "") -> Iterator[Soak]:
    """Starts the shipped pair, or another model for both."""
    heads = {} if model else SHIPPED
    both = ["--model", model] if model else []
    of_target = [*both, *(part for folder in heads.values() for part in ("--heads", str(folder)))]
    of_coordinator = ["--tokenizer", model, "--served-model-name", MODEL] if model else []
    with contextlib.ExitStack() as stack:
        relays: dict[str, Relay] = {}

        @contextlib.contextmanager
        def through(name: str, address: str) -> Iterator[str]:
            relays[name] = stack.enter_context(relay(address))
            yield relays[name].address

        c = stack.enter_context(cluster(target=[*SERVER_FLAGS, *of_target], draft=[*SERVER_FLAGS, *both],
                                        coordinator=["--http-listen", reserve_address(), *DRAIN, *of_coordinator],
                                        through=partial(through, "draft"), target_through=partial(through, "target")))
        yield Soak(c, relays, seed, list(heads))


def soak(minutes: float, seed: int, model: str = "", under_up: bool = False) -> None:
    """Raises AssertionError where something does not hold."""
    with started_by_up(seed, model) if under_up else started(seed, model) as s:
        s.run_disturbed(60 * minutes * (1 - QUIET))
        s.report()
        s.run_quiet(60 * minutes * QUIET)
        s.check()
    # All processes have ended with 0: leaving the context that started them waits for that.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2, help="minutes of load, at least")
    parser.add_argument("--seed", type=int, default=1, help="seed of requests and disturbances")
    parser.add_argument("--model", default="", help="GGUF file or model folder instead of the shipped pair")
    parser.add_argument("--up", action="store_true", help="start the services with `outrider up`; needs --model")
    options = parser.parse_args()
    if options.up and not options.model:
        parser.error("--up needs --model")
    try:
        soak(options.minutes, options.seed, options.model, options.up)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        sys.exit(f"soak: seed {options.seed}: {error}")
    print("soak: everything held")


if __name__ == "__main__":
    main()
