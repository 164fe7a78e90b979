"""Several targets and drafts behind one coordinator. If one dies, drains or hangs, no answer changes."""

import contextlib
import json
import signal
import socket
import socketserver
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness import (BIN, PATIENCE, Answer, Server, eventually, inference_pb2, inference_pb2_grpc, request, reserve_address, running,
                     start_coordinator, start_draft, start_target, took)

GREEDY = {"k": 3, "temperature": 0, "ignore_eos": True}
COUPLED = {"k": 3, "rule": "coupled", "temperature": 0.9, "seed": 5, "ignore_eos": True}


class Pool:
    """A coordinator with several targets and drafts."""

    def __init__(self, coordinator: Server, targets: list[Server], drafts: list[Server], servers: list[Server],
                 channel: grpc.Channel) -> None:
        self.coordinator, self.targets, self.drafts, self._servers = coordinator, targets, drafts, servers
        self.stub = inference_pb2_grpc.InferenceStub(channel)

    def generate(self, prompt: str, **options: Any) -> Answer:
        answer = Answer()
        for chunk in self.stub.Generate(request(prompt, **options), timeout=PATIENCE):
            answer.add(chunk)
        return answer.check()

    def describe(self) -> inference_pb2.DescribeResponse:
        return self.stub.Describe(inference_pb2.DescribeRequest(), timeout=PATIENCE)

    def states(self, role: str = "target") -> dict[str, Any]:
        return {state.address: state for state in self.describe().servers if state.role == role}

    def wait_up(self, count: int, role: str = "target") -> None:
        eventually(lambda: sum(state.up for state in self.states(role).values()) == count, f"{count} {role}s are up")

    def kill(self, server: Server) -> None:
        server.kill()
        self._servers.remove(server)

    def add(self, server: Server) -> Server:
        self._servers.append(server)
        return server

    def ended(self, server: Server) -> None:
        server.wait_orderly_end()
        self._servers.remove(server)


@contextlib.contextmanager
def pool(targets: Sequence[Sequence[str]] = ((), ()), drafts: Sequence[Sequence[str]] = ((),),
         coordinator: Sequence[str] = ()) -> Iterator[Pool]:
    """A pool. `targets` and `drafts` have the flags of each server."""
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(running())
        its_targets, its_drafts = [], []
        for flags in targets:
            its_targets.append(start_target(*flags))
            servers.append(its_targets[-1])
        for flags in drafts:
            its_drafts.append(start_draft(*flags))
            servers.append(its_drafts[-1])
        more = [part for target in its_targets[1:] for part in ("--target", target.address)]
        more += [part for draft in its_drafts[1:] for part in ("--draft", draft.address)]
        first = its_drafts[0].address if its_drafts else ""
        servers.append(c := start_coordinator(its_targets[0].address, first, *more, *coordinator))
        channel = stack.enter_context(c.connect())
        yield Pool(c, its_targets, its_drafts, servers, channel)


@contextlib.contextmanager
def streams(p: Pool, prompts: Sequence[str], begun: int = 8, **options: Any) -> Iterator[list[Answer]]:
    """Requests in progress: each has some tokens when the body begins, and all have ended well when it is left."""
    answers = [Answer() for _ in prompts]

    def run(answer: Answer, prompt: str) -> None:
        for chunk in p.stub.Generate(request(prompt, **options), timeout=PATIENCE):
            answer.add(chunk)
        answer.check()

    with ThreadPoolExecutor(len(prompts)) as threads:
        runs = [threads.submit(run, answer, prompt) for answer, prompt in zip(answers, prompts)]
        eventually(lambda: all(len(a.tokens) >= begun or r.done() for a, r in zip(answers, runs)), "all have begun")
        yield answers
        for each in runs:
            each.result()


def in_the_middle(answers: Sequence[Answer]) -> bool:
    return any(answer.finish is None for answer in answers)


@pytest.fixture(scope="module")
def sixteen(prompts: list[str]) -> list[str]:
    return [prompts[i % len(prompts)] + " and" * (i // len(prompts)) for i in range(16)]


@pytest.fixture(scope="module")
def undisturbed(sixteen: list[str]) -> dict[str, list[list[int]]]:
    with pool(targets=[()]) as p:
        p.wait_up(1)
        with ThreadPoolExecutor(16) as threads:
            return {name: [a.tokens for a in threads.map(lambda prompt: p.generate(prompt, max_tokens=150, **how), sixteen)]
                    for name, how in (("greedy", GREEDY), ("coupled", COUPLED))}


@pytest.mark.parametrize("how", ["greedy", "coupled"])
def test_a_target_killed_under_sixteen_streams_changes_no_answer(how: str, sixteen: list[str],
                                                                undisturbed: dict[str, list[list[int]]]) -> None:
    with pool() as p:
        p.wait_up(2)
        options = (GREEDY if how == "greedy" else COUPLED) | {"max_tokens": 150}
        with streams(p, sixteen, **options) as answers:
            assert all(state.sequences == 8 for state in p.states().values()), "not spread"
            killed = time.monotonic()
            p.kill(p.targets[0])
            assert in_the_middle(answers)
            before = [len(answer.tokens) for answer in answers]
            eventually(lambda: all(len(a.tokens) > n or a.finish for a, n in zip(answers, before)), "all go on")
            took(38, "one of two targets killed, until all streams went on", killed)
        assert [answer.tokens for answer in answers] == undisturbed[how]
        assert p.coordinator.value("outrider_target_up") == 1
        assert p.coordinator.health() == "SERVING"


def test_a_target_killed_under_searches_changes_no_text(sixteen: list[str]) -> None:
    options = {"beam": inference_pb2.BeamOptions(width=4), "max_tokens": 250, "ignore_eos": True}
    with pool(drafts=[(), ()]) as p:
        p.wait_up(2)
        p.wait_up(2, "draft")
        quiet = [p.generate(prompt, k=0, **options) for prompt in sixteen[:4]]
        with streams(p, sixteen[:4], begun=0, k=2, **options) as answers:
            eventually(lambda: all(state.sequences >= 4 for state in p.states().values()), "both have searches")
            p.kill(p.targets[0])
            assert in_the_middle(answers)
        assert [(answer.tokens, answer.finish.score) for answer in answers] == [(a.tokens, a.finish.score) for a in quiet]


def test_a_target_that_drains_hands_its_requests_over(sixteen: list[str], undisturbed: dict[str, list[list[int]]]) -> None:
    with pool() as p:
        p.wait_up(2)
        with streams(p, sixteen, max_tokens=150, **GREEDY) as answers:
            p.targets[0].terminate()
            p.coordinator.wait_for_event("going away", address=p.targets[0].address)
            p.ended(p.targets[0])
            assert in_the_middle(answers)
        assert [answer.tokens for answer in answers] == undisturbed["greedy"]
        p.targets[1].wait_value("outrider_target_sequences", 0)


def test_a_target_that_hangs_is_left(sixteen: list[str], undisturbed: dict[str, list[list[int]]]) -> None:
    with pool() as p:
        p.wait_up(2)
        with streams(p, sixteen, max_tokens=150, **GREEDY) as answers:
            hung = time.monotonic()
            p.targets[0].popen.send_signal(signal.SIGSTOP)
            assert in_the_middle(answers)
            p.coordinator.wait_for_event("silent", address=p.targets[0].address)
            took(40, "one of two targets stopped, until its streams were sent to the other", hung)
        assert [answer.tokens for answer in answers] == undisturbed["greedy"]
        # It works again, and is used again.
        p.targets[0].popen.send_signal(signal.SIGCONT)
        p.wait_up(2)


def test_with_all_targets_gone_requests_wait_for_the_first_that_is_back(sixteen: list[str],
                                                                       undisturbed: dict[str, list[list[int]]]) -> None:
    with pool() as p:
        p.wait_up(2)
        with streams(p, sixteen, max_tokens=150, **GREEDY) as answers:
            for target in p.targets:
                p.kill(target)
            assert in_the_middle(answers)
            p.wait_up(0)
            p.add(start_target(listen=p.targets[1].address))
        assert [answer.tokens for answer in answers] == undisturbed["greedy"]


def test_requests_are_spread_over_the_targets(prompts: list[str]) -> None:
    with pool(coordinator=["--max-requests", "64"]) as p:
        p.wait_up(2)
        with streams(p, [prompts[0]] * 64, begun=1, max_tokens=40, k=0, temperature=0, ignore_eos=True):
            for address, state in p.states().items():
                assert abs(state.sequences - 32) <= 3, f"{address} has {state.sequences} of 64"
        assert p.coordinator.value("outrider_target_errors_total") == 0


def test_a_request_is_on_one_target_from_its_first_round_to_its_last(prompts: list[str]) -> None:
    with pool(targets=[("--log-level", "debug")] * 2) as p:
        p.wait_up(2)
        with streams(p, prompts[:8], begun=1, max_tokens=30, **GREEDY):
            pass
        where = [{e["sequence"] for e in target.events("sequence")} for target in p.targets]
        assert all(where), "one target had nothing to do"
        assert not where[0] & where[1], "a sequence was on both"


def test_describe_lists_every_server() -> None:
    with pool(drafts=[(), ()]) as p:
        p.wait_up(2)
        p.wait_up(2, "draft")
        p.kill(p.drafts[1])
        p.wait_up(1, "draft")
        command = [BIN / "outrider", "describe", "--address", p.coordinator.address]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for target in p.targets:
            assert f"target     {target.address}: up, 0 sequences, load " in shown
        assert f"draft      {p.drafts[1].address}: not reachable" in shown
        listed = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)["servers"]
        assert [server["address"] for server in listed] == [server.address for server in [*p.targets, *p.drafts]]


def test_a_target_with_other_weights_is_refused(tmp_path: Path, prompts: list[str]) -> None:
    with pool() as p:
        p.wait_up(2)
        other = tmp_path / "tiny-target"
        copy_with_other_weights(Path(p.targets[0].flags[p.targets[0].flags.index("--model") + 1]), other)
        p.kill(p.targets[1])
        p.add(start_target(model=other, listen=p.targets[1].address))
        refused = p.coordinator.wait_for_event("refused", address=p.targets[1].address)
        assert "other weights" in refused["error"]
        state = p.states()[p.targets[1].address]
        assert not state.up and "other weights" in state.problem
        assert p.generate(prompts[0], max_tokens=10, **GREEDY).tokens


def copy_with_other_weights(model: Path, other: Path) -> None:
    """Copies a model, and changes the last byte of its weights."""
    other.mkdir()
    for file in model.iterdir():
        data = bytearray(file.read_bytes())
        if file.suffix == ".safetensors":
            data[-1] ^= 1
        (other / file.name).write_bytes(data)


@pytest.mark.parametrize("mixed", [False, True])
def test_targets_that_compute_other_bits_are_refused_unless_that_is_wanted(mixed: bool, prompts: list[str]) -> None:
    flags = ["--mixed-numerics"] if mixed else []
    with pool(targets=[("--dtype", "float32"), ("--dtype", "bfloat16")], coordinator=flags) as p:
        if mixed:
            p.wait_up(2)
            assert p.describe().mixed_numerics
        else:
            refused = p.coordinator.wait_for_event("refused")
            assert "float32" in refused["error"] and "bfloat16" in refused["error"]
            p.wait_up(1)
            assert not p.describe().mixed_numerics
        assert p.generate(prompts[0], max_tokens=10, **GREEDY).tokens


def test_a_draft_that_dies_leaves_its_requests_to_the_other(sixteen: list[str], undisturbed: dict[str, list[list[int]]]) -> None:
    with pool(targets=[()], drafts=[(), ()], coordinator=["--draft-budget", "2"]) as p:
        p.wait_up(2, "draft")
        with streams(p, sixteen, max_tokens=150, **GREEDY) as answers:
            assert all(state.sequences == 8 for state in p.states("draft").values()), "not spread"
            p.kill(p.drafts[0])
            assert in_the_middle(answers)
        assert [answer.tokens for answer in answers] == undisturbed["greedy"]
        assert p.coordinator.value("outrider_degraded") == 0
        for answer in answers:
            assert set(answer.kinds[-20:]) != {"plain"}, "no draft after the death of the first"
        p.kill(p.drafts[1])
        p.coordinator.wait_value("outrider_degraded", 1)
        assert set(p.generate(sixteen[0], max_tokens=20, **GREEDY).kinds) == {"plain"}


def test_a_rolling_restart_fails_no_request(prompts: list[str]) -> None:
    with pool() as p:
        p.wait_up(2)
        quiet = [p.generate(prompt, max_tokens=40, **GREEDY).tokens for prompt in prompts[:4]]
        over = threading.Event()

        def client(i: int) -> int:
            count = 0
            while not over.is_set():
                assert p.generate(prompts[i], max_tokens=40, **GREEDY).tokens == quiet[i]
                count += 1
            return count

        with ThreadPoolExecutor(4) as threads:
            clients = [threads.submit(client, i) for i in range(4)]
            try:
                for target in p.targets:
                    target.terminate()
                    p.ended(target)
                    p.add(start_target(listen=target.address))
                    p.wait_up(2)
            finally:
                over.set()
            assert all(each.result() > 0 for each in clients)
        codes = {e["code"] for e in p.coordinator.events("request")}
        assert codes == {"OK"}


# --- names ----------------------------------------------------------------------------------------------------


class NameServer(socketserver.UDPServer):
    """Answers every question for an A record with the addresses it has, and any other with none."""

    def __init__(self, addresses: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), Question)
        self.addresses = list(addresses)


class Question(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        data, reply = self.request
        end = data.index(b"\0", 12) + 5
        kind = struct.unpack(">H", data[end - 4:end - 2])[0]
        addresses = self.server.addresses if kind == 1 else []
        head = data[:2] + struct.pack(">HHHHH", 0x8580, 1, len(addresses), 0, 0)
        records = b"".join(struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address) for address in addresses)
        reply.sendto(head + data[12:end] + records, self.client_address)


@contextlib.contextmanager
def name_server(addresses: Sequence[str]) -> Iterator[NameServer]:
    with NameServer(addresses) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.shutdown()


def test_a_name_stands_for_all_targets_that_it_resolves_to(prompts: list[str]) -> None:
    port = reserve_address().rpartition(":")[2]
    hosts = ["127.0.0.1", "127.0.0.2"]
    with name_server(hosts[:1]) as names, running() as servers:
        targets = [start_target(listen=f"{host}:{port}") for host in hosts]
        servers.extend(targets)
        address = f"dns://127.0.0.1:{names.server_address[1]}/targets.test:{port}"
        servers.append(coordinator := start_coordinator(address, "", "--resolve-interval", "0.1"))
        with coordinator.connect() as channel:
            p = Pool(coordinator, targets, [], servers, channel)
            p.wait_up(1)
            assert list(p.states()) == [f"127.0.0.1:{port}"]
            before = p.generate(prompts[0], max_tokens=10, k=0, temperature=0).tokens
            names.addresses = hosts
            p.wait_up(2)
            names.addresses = hosts[1:]
            p.kill(targets[0])
            eventually(lambda: list(p.states()) == [f"127.0.0.2:{port}"], "the address that is gone is left")
            assert coordinator.metrics().labelled("outrider_target_up", "address") == {f"127.0.0.2:{port}": 1}
            assert p.generate(prompts[0], max_tokens=10, k=0, temperature=0).tokens == before
