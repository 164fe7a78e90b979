"""Runs the three services as real processes, with helpers to talk to them.

  with cluster() as c:
      assert c.generate("Once upon", k=4, temperature=0).tokens == c.generate("Once upon", k=0, temperature=0).tokens

Cases marked `full` run only with OUTRIDER_TEST_FULL (make test LAYER=full): each proves again what another case proves.
Binaries come from OUTRIDER_BIN, the pair from OUTRIDER_TARGET_MODEL and OUTRIDER_DRAFT_MODEL (default: models/), and
both models compute on OUTRIDER_DEVICE (default: cpu).
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import queue
import re
import signal
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from outrider.v1 import (draft_pb2, draft_pb2_grpc, inference_pb2, inference_pb2_grpc, sequence_pb2, target_pb2,
                         target_pb2_grpc)

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "system"
BIN = Path(os.environ.get("OUTRIDER_BIN", ROOT / "build" / "release" / "bin"))
TARGET_MODEL = Path(os.environ.get("OUTRIDER_TARGET_MODEL", ROOT / "models" / "tiny-target"))
DRAFT_MODEL = Path(os.environ.get("OUTRIDER_DRAFT_MODEL", ROOT / "models" / "tiny-draft"))
DEVICE = os.environ.get("OUTRIDER_DEVICE", "cpu")
DTYPES = ["float32", "bfloat16"] if DEVICE == "cpu" else ["bfloat16", "fp8"]
# The default dtype of models. It costs the least on every CPU, but its answers differ from those of transformers.
DTYPE = "int8" if DEVICE == "cpu" else DTYPES[0]
PRECISE = ("--dtype", DTYPES[0])
FULL = "OUTRIDER_TEST_FULL" in os.environ
PART, PARTS = (int(number) for number in os.environ.get("OUTRIDER_TEST_PART", "1/1").split("/"))  # which part of a file's tests runs

# Only a guard against hanging: nothing here measures time.
PATIENCE = 120.0
DRAIN = 60.0

RULES = {"": 0, "token": sequence_pb2.RULE_TOKEN, "block": sequence_pb2.RULE_BLOCK,
         "coupled": sequence_pb2.RULE_COUPLED}
SCHEDULES = {"": 0} | {name: inference_pb2.Schedule.Value(f"SCHEDULE_{name.upper()}")
                       for name in ("lockstep", "run_ahead", "auto")}
SIBLING_ORDERS = {"": 0} | {name: sequence_pb2.SiblingOrder.Value(f"SIBLING_ORDER_{name.upper()}") for name in ("given", "random")}
DRAFTERS = {"": 0} | {name.removeprefix("DRAFTER_KIND_").lower(): number
                      for name, number in inference_pb2.DrafterKind.items() if number}
LENGTH, STOP = inference_pb2.FINISH_REASON_LENGTH, inference_pb2.FINISH_REASON_STOP

# Options of a channel whose buffers stay small, so that an answer that nobody reads soon stops.
UNPROBED = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]


def eventually(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Polls condition() and returns its first true value."""
    end = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {patience} s in vain: {what}"
        time.sleep(0.005)
    return value


def took(row: int, what: str, since: float, until: float | None = None) -> None:
    """Prints how long something took, by default until now, for the table of faults in docs/operations.md (pytest -s). No test
    depends on it."""
    print(f"\nfault {row}: {what}: {1000 * ((until or time.monotonic()) - since):.0f} ms")


# --- processes ------------------------------------------------------------------------------------------------

_processes: list["Process"] = []


class Process:
    """A running program. Its stderr, and its stdout if requested, is read line by line. `limits` are options of prlimit."""

    def __init__(self, program: str, *args: str, stdout_too: bool = False,
                 variables: Mapping[str, str] | None = None, limits: Sequence[str] = ()) -> None:
        self.program, self.args = program, args
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        # No process outlives the tests, however they end.
        joined = ["sh", "-c", 'exec "$@" >&2', "sh"] if stdout_too else []
        limited = ["prlimit", *limits, "--"] if limits else []
        command = ["setpriv", "--pdeathsig", "KILL", "--", *limited, *joined, str(BIN / program), *args]
        self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True, errors="replace",
                                      env=os.environ | dict(variables or {}))
        threading.Thread(target=self._read, daemon=True).start()
        _processes.append(self)

    def _read(self) -> None:
        for line in self.popen.stderr:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def events(self, event: str) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [record for record in records if record["event"] == event]

    def wait_for_event(self, event: str, **fields: Any) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((e for e in self.events(event) if fields.items() <= e.items()), None)

        with self._more:
            assert self._more.wait_for(lambda: found() or self._ended, PATIENCE), f"{self.program}: no {event!r}"
        record = found()
        assert record, f"{self.program} ended without {event!r}:\n" + "\n".join(self.lines)
        return record

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def terminate(self) -> None:
        self.popen.send_signal(signal.SIGTERM)

    def wait_end(self) -> int:
        """The exit code, after the last line has been read."""
        code = self.popen.wait(DRAIN)
        with self._more:
            assert self._more.wait_for(lambda: self._ended, PATIENCE)
        return code

    def wait_orderly_end(self) -> None:
        assert self.wait_end() == 0, f"{self.program}: exit code {self.popen.returncode}"

    def stop(self) -> None:
        self.terminate()
        self.wait_orderly_end()

    def resident_mebibytes(self) -> float:
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024

    def tail(self) -> str:
        return "\n".join([f"--- {self.program} ({self.popen.poll()})", *self.lines[-15:]])


def refusal(program: str, *args: str, limits: Sequence[str] = ()) -> str:
    """The error of a program that must refuse to start: one line, a non-zero exit code, and no crash."""
    process = Process(program, *args, limits=limits)
    code = process.wait_end()
    assert code > 0, f"exit code {code}:\n" + "\n".join(process.lines)
    assert len(process.lines) == 1, "\n".join(process.lines)
    return process.lines[0]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: runs with OUTRIDER_TEST_FULL alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = [item for item in items if FULL or not item.get_closest_marker("full")][PART - 1::PARTS]
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = wanted


def full(*values: Any) -> Any:
    """A case for parametrize() that is marked `full`."""
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Shows the last output of the processes when a test fails. Imported by the conftest.py of each folder."""
    report = (yield).get_result()
    if report.failed and _processes:
        # The processes that ended unexpectedly, and the four most recent ones.
        shown = [p for p in _processes if p.popen.poll() not in (None, 0, -signal.SIGKILL)] + _processes[-4:]
        report.sections.append(("logs of the services", "\n".join(p.tail() for p in dict.fromkeys(shown))))


class Metrics(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """/metrics, parsed strictly."""

    SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)( -?\d+)?$')
    LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"')

    def __init__(self, text: str) -> None:
        super().__init__()
        self.types: dict[str, str] = {}
        assert text.endswith("\n")
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                name, kind = line.split()[2:]
                assert name not in self.types, f"{name} twice"
                assert kind in {"counter", "gauge", "histogram", "summary"}, line
                self.types[name] = kind
            elif line and not line.startswith("#"):
                match = self.SAMPLE.match(line)
                assert match, f"not a sample: {line!r}"
                key = (match[1], frozenset(self.LABEL.findall(match[2] or "")))
                assert key not in self, f"{line!r} twice"
                assert self.family(match[1]) in self.types, f"{line!r} has no type"
                self[key] = float(match[3])

    def family(self, sample: str) -> str:
        return sample if sample in self.types else re.sub(r"_(bucket|sum|count)$", "", sample)

    def value(self, name: str, **labels: str) -> float:
        """The sum over all samples of that name with these labels. The name and the labels' names must exist;
        samples with these values need not exist yet."""
        known = {label for sample, its in self for label, _ in its if sample == name}
        assert self.family(name) in self.types, f"there is no metric {name}"
        assert labels.keys() <= known, f"{name} has the labels {known}"
        return sum(value for (sample, its), value in self.items() if sample == name and labels.items() <= set(its))

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """The sum for each value of a label, without zeros. The metric must exist."""
        assert self.family(name) in self.types, f"there is no metric {name}"
        values = {dict(its)[label] for sample, its in self if sample == name}
        return {value: total for value in values if (total := self.value(name, **{label: value}))}


_reserved: list[socket.socket] = []


def reserve_address() -> str:
    """An address for servers of these tests only. Its port stays bound here even while no server has it, so the kernel
    gives it to no outgoing connection. A server can bind it nevertheless, since both reuse addresses."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    _reserved.append(reserved)
    return f"127.0.0.1:{reserved.getsockname()[1]}"


class Server(Process):
    """One of the three services, running. Another process can take its place at the same address."""

    def __init__(self, program: str, *args: str, listen: str = "", limits: Sequence[str] = ()) -> None:
        super().__init__(program, "--listen", listen or reserve_address(), "--metrics-listen", "127.0.0.1:0",
                         "--log-format", "json", *args, limits=limits)
        self.flags = args
        bound = self.wait_for_event("listening" if program == "outrider-coordinator" else "serving")
        self.address: str = bound["listen"]
        self.metrics_address: str = bound["metrics_listen"]
        self.http_address: str = bound.get("http_listen", "")

    @contextlib.contextmanager
    def connect(self) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            yield channel

    def metrics(self) -> Metrics:
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=PATIENCE) as response:
            return Metrics(response.read().decode())

    def value(self, name: str, **labels: str) -> float:
        return self.metrics().value(name, **labels)

    def wait_value(self, name: str, wanted: float, **labels: str) -> None:
        eventually(lambda: self.value(name, **labels) == wanted, f"{self.program}: {name} = {wanted}")

    def health(self, address: str = "", service: str = "") -> str:
        with grpc.insecure_channel(address or self.address) as channel:
            response = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=PATIENCE,
                                                                 wait_for_ready=True)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)


def with_defaults(defaults: dict[str, str], args: Sequence[str]) -> list[str]:
    """The arguments, preceded by the defaults of the flags that they lack."""
    given = {arg.partition("=")[0] for arg in args}
    return [part for flag, value in defaults.items() if flag not in given for part in (flag, value)] + list(args)


def _start_model(program: str, model: Path, args: Sequence[str], listen: str) -> Server:
    dtype = DTYPES[0] if {"torch", "--engine=torch"} & {*args} else DTYPE  # libtorch has no int8
    # No lease ends during a test unless the test asks for it, so blocks that are free at the end were released.
    defaults = {"--model": str(model), "--device": DEVICE, "--dtype": dtype, "--threads": "1", "--lease": "1000"}
    return Server(program, *with_defaults(defaults, args), listen=listen)


def start_target(*args: str, model: Path = TARGET_MODEL, listen: str = "") -> Server:
    return _start_model("outrider-target", model, args, listen)


def start_draft(*args: str, model: Path = DRAFT_MODEL, listen: str = "") -> Server:
    return _start_model("outrider-draft", model, args, listen)


def start_coordinator(target: str, draft: str, *args: str) -> Server:
    defaults = {"--tokenizer": str(TARGET_MODEL), "--http-listen": "127.0.0.1:0"}
    return Server("outrider-coordinator", "--target", target, "--draft", draft, *with_defaults(defaults, args))


@contextlib.contextmanager
def running(*servers: Server) -> Iterator[list[Server]]:
    """Ends the servers in the list on exit: in an orderly way after success, at once after a failure."""
    alive = list(servers)
    try:
        yield alive
        for server in alive:
            if server.popen.poll() is None:
                server.terminate()
        for server in alive:
            server.wait_orderly_end()
    finally:
        for server in alive:
            server.kill()


# --- requests -------------------------------------------------------------------------------------------------

Prompt = str | Sequence[int]


def request(prompt: Prompt, *, k: int | None = None, max_tokens: int | None = None, temperature: float | None = None,
            top_k: int = 0, seed: int | None = None, rule: str = "", drafter: str = "", stop: Sequence[str] = (),
            stop_ids: Sequence[int] = (), ignore_eos: bool = False, trace: bool = False,
            draft_top_n: int = 0, draft_temperature: float | None = None, n: int | None = None, schedule: str = "",
            tree: str = "", sibling_order: str = "", prediction: str = "",
            beam: inference_pb2.BeamOptions | None = None, **sampling: Any) -> inference_pb2.GenerateRequest:
    r = inference_pb2.GenerateRequest(
        sampling=sequence_pb2.SamplingParams(temperature=temperature, top_k=top_k, **sampling), seed=seed, trace=trace, n=n, beam=beam,
        prediction=prediction,
        speculation=inference_pb2.SpeculationOptions(drafter=DRAFTERS[drafter], draft_tokens=k, rule=RULES[rule],
                                                     draft_top_n=draft_top_n, draft_temperature=draft_temperature,
                                                     schedule=SCHEDULES[schedule], tree=tree, sibling_order=SIBLING_ORDERS[sibling_order]),
        stop=inference_pb2.StopOptions(strings=stop, token_ids=stop_ids, ignore_eos=ignore_eos,
                                       max_tokens=max_tokens))
    if isinstance(prompt, str):
        r.text = prompt
    else:
        r.tokens.ids.extend(prompt)
    return r


@dataclasses.dataclass
class Answer:
    """An answer; the positions of its chunks are checked as they arrive."""
    tokens: list[int] = dataclasses.field(default_factory=list)
    kinds: list[str] = dataclasses.field(default_factory=list)
    text: str = ""
    rounds: list[inference_pb2.RoundTrace] = dataclasses.field(default_factory=list)
    finish: inference_pb2.Finish | None = None

    def add(self, chunk: inference_pb2.GenerateResponse) -> None:
        assert self.finish is None, "a chunk after the last one"
        assert chunk.position == len(self.tokens), "positions are not contiguous"
        self.tokens += [token.id for token in chunk.tokens]
        self.kinds += [sequence_pb2.TokenKind.Name(token.kind).removeprefix("TOKEN_KIND_").lower()
                       for token in chunk.tokens]
        self.text += chunk.text
        if chunk.HasField("trace"):
            self.rounds.append(chunk.trace)
        if chunk.HasField("finish"):
            self.finish = chunk.finish

    @property
    def speculation(self) -> inference_pb2.SpeculationStats:
        return self.finish.speculation

    @property
    def reason(self) -> int:
        return self.finish.reason

    def check(self) -> "Answer":
        """Checks what must hold for every complete answer."""
        assert self.finish is not None, "no last chunk"
        assert self.finish.usage.completion_tokens == len(self.tokens)
        for kind in ("accepted", "corrected", "bonus", "plain"):
            assert getattr(self.speculation, f"emitted_{kind}") == self.kinds.count(kind)
        return self


@dataclasses.dataclass
class Cluster:
    """A coordinator with its target and, if it has one, its draft."""
    target: Server
    draft: Server | None
    coordinator: Server
    stub: inference_pb2_grpc.InferenceStub
    _servers: list[Server]
    _flags: tuple[tuple[str, ...], tuple[str, ...]]
    _draft_address: str = ""  # where the coordinator reaches the first draft, if there are two

    def kill(self, server: Server) -> None:
        """Ends a server by SIGKILL."""
        server.kill()
        self.forget(server)

    def forget(self, server: Server) -> None:
        """Forgets a server that has ended, so that nothing terminates it later."""
        self._servers.remove(server)

    def restart_target(self) -> None:
        self.target = start_target(*self._flags[0], listen=self.target.address)
        self._servers.append(self.target)

    def restart_coordinator(self) -> None:
        """Starts a coordinator at the address of the previous one. Clients' channels reconnect by themselves."""
        self.coordinator = Server(self.coordinator.program, *self.coordinator.flags, listen=self.coordinator.address)
        self._servers.append(self.coordinator)

    def restart_draft(self) -> None:
        self.draft = start_draft(*self._flags[1], listen=self.draft.address)
        self._servers.append(self.draft)

    def lost_target_during(self, number: int) -> bool:
        """Whether the target was lost before request `number`, counted from 1, had ended."""
        def ends() -> list[str]:
            events = [json.loads(line) for line in list(self.coordinator.lines) if line.startswith("{")]
            return [e["event"] for e in events
                    if e["event"] == "request" or (e["event"], e.get("server")) == ("disconnected", "target")]

        eventually(lambda: ends().count("request") >= number, "the request is logged")
        return "disconnected" in ends() and ends()[:ends().index("disconnected")].count("request") < number

    def stream(self, prompt: Prompt, **options: Any) -> grpc.Call:
        return self.stub.Generate(request(prompt, **options), timeout=PATIENCE)

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        answer = Answer()
        for chunk in self.stream(prompt, **options):
            answer.add(chunk)
        return answer.check()

    def score(self, wanted: inference_pb2.GenerateRequest) -> list[sequence_pb2.PositionLogprobs]:
        """The log-probabilities of the prompt, from all chunks of an answer."""
        return [position for chunk in self.stub.Generate(wanted, timeout=PATIENCE) for position in chunk.prompt_logprobs]

    def generate_samples(self, prompt: Prompt, n: int, **options: Any) -> list[Answer]:
        """Generates several samples with one call."""
        answers = [Answer() for _ in range(n)]
        for chunk in self.stream(prompt, n=n, **options):
            answers[chunk.sample].add(chunk)
        return [answer.check() for answer in answers]

    def generate_all(self, calls: Sequence[tuple[Prompt, dict[str, Any]]], at_once: int = 16) -> list[Answer]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda call: self.generate(call[0], **call[1]), calls))

    def refused(self, wanted: inference_pb2.GenerateRequest) -> "Refusal":
        with pytest.raises(grpc.RpcError) as error:
            list(self.stub.Generate(wanted, timeout=PATIENCE))
        return Refusal.of(error.value)

    def wait_idle(self) -> None:
        """Waits until no request runs and no server holds a sequence."""
        self.coordinator.wait_value("outrider_requests_running", 0)
        for name, server in (("target", self.target), ("draft", self.draft)):
            if server is not None and server.popen.poll() is None:
                server.wait_value(f"outrider_{name}_kv_blocks_used", 0)
                server.wait_value(f"outrider_{name}_sequences", 0)

    def wait_draft_up(self, up: bool) -> None:
        labels = {"address": self._draft_address} if self._draft_address else {}
        self.coordinator.wait_value("outrider_draft_up", 1 if up else 0, **labels)


@contextlib.contextmanager
def cluster(*, target: Sequence[str] = (), draft: Sequence[str] | None = (), second_draft: Sequence[str] | None = None,
            coordinator: Sequence[str] = (), through: Callable[[str], contextlib.AbstractContextManager[str]] | None = None,
            target_through: Callable[[str], contextlib.AbstractContextManager[str]] | None = None) -> Iterator[Cluster]:
    """Runs the processes. `target`, `draft`, `second_draft` and `coordinator` are extra flags; with None there is no such draft.

    `through` is a proxy between coordinator and draft: it gets the draft's address and yields its own. `target_through`
    is one between coordinator and target.
    """
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(running())
        servers.append(t := start_target(*target))
        d = None
        if draft is not None:
            servers.append(d := start_draft(*draft))
        if second_draft is not None:
            servers.append(second := start_draft(*second_draft))
            coordinator = ["--second-draft", second.address, *coordinator]
        address = "" if d is None else d.address
        if through is not None:
            address = stack.enter_context(through(address))
        target_address = t.address
        if target_through is not None:
            target_address = stack.enter_context(target_through(target_address))
        servers.append(c := start_coordinator(target_address, address, *coordinator))
        channel = stack.enter_context(c.connect())
        eventually(lambda: c.health() == "SERVING", "the coordinator is ready")
        result = Cluster(t, d, c, inference_pb2_grpc.InferenceStub(channel), servers,
                         (tuple(target), tuple(draft or ())), address)
        if d is not None:
            result.wait_draft_up(True)
        if second_draft is not None:
            c.wait_value("outrider_draft_up", 1, address=second.address)
        yield result


@dataclasses.dataclass
class Refusal:
    """The error of a call or an item."""
    code: str
    reason: str
    metadata: dict[str, str]
    message: str
    retry: bool

    @staticmethod
    def parse(status: status_pb2.Status) -> "Refusal":
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        infos = [detail for detail in status.details if detail.Is(info.DESCRIPTOR)]
        assert len(infos) == 1, f"one ErrorInfo for each error: {status}"
        infos[0].Unpack(info)
        code = next(c.name for c in grpc.StatusCode if c.value[0] == status.code)
        return Refusal(code, info.reason, dict(info.metadata), status.message,
                       any(detail.Is(retry.DESCRIPTOR) for detail in status.details))

    @staticmethod
    def of(error: grpc.RpcError) -> "Refusal":
        details = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
        assert len(details) == 1, f"no details: {error}"
        refusal = Refusal.parse(status_pb2.Status.FromString(details[0]))
        assert refusal.code == error.code().name
        return refusal


# --- the protocols of draft and target, by hand ----------------------------------------------------------------

_MASK = (1 << 64) - 1


def prefix_hash(tokens: Sequence[int]) -> int:
    """The rolling hash of the wire contract (common/kv/prefix_hash.h)."""
    h = 0x6F75747269646572
    for token in tokens:
        z = (h + 0x9E3779B97F4A7C15 * (token + 1)) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        h = z ^ (z >> 31)
    return h


class Stream:
    """One bidirectional stream: sends batches and receives results, which may come in any order."""

    def __init__(self, method: Any, request_type: Any) -> None:
        self._request_type = request_type
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = method(iter(self._outgoing.get, None))
        self._results: list[Any] = []
        first = next(self._call)
        assert first.HasField("info") and not first.results, "the first message is the ServerInfo"
        self.info: sequence_pb2.ServerInfo = first.info

    def send(self, *items: Any) -> None:
        self._outgoing.put(self._request_type(items=items))

    def receive(self) -> Any:
        while not self._results:
            response = next(self._call)
            assert not response.HasField("info"), "only the first message has info"
            self._results += response.results
        return self._results.pop(0)

    def ask(self, *items: Any) -> list[Any]:
        """Sends items and returns their results in the order of the items."""
        self.send(*items)
        wanted = [(i.sequence.sequence_id, i.sequence.round) for i in (getattr(x, x.WhichOneof("kind")) for x in items)]
        results = [self.receive() for _ in items]
        return sorted(results, key=lambda r: wanted.index((r.sequence_id, r.round)))

    def refused(self, item: Any) -> Refusal:
        return Refusal.parse(self.ask(item)[0].status)

    def close(self) -> None:
        self._outgoing.put(None)
        self._call.cancel()


@contextlib.contextmanager
def target_stream(server: Server) -> Iterator[Stream]:
    with server.connect() as channel:
        stream = Stream(target_pb2_grpc.TargetStub(channel).Verify, target_pb2.VerifyRequest)
        yield stream
        stream.close()


@contextlib.contextmanager
def draft_stream(server: Server) -> Iterator[Stream]:
    with server.connect() as channel:
        stream = Stream(draft_pb2_grpc.DraftStub(channel).Propose, draft_pb2.ProposeRequest)
        yield stream
        stream.close()


_sequence_numbers = itertools.count(1)


@dataclasses.dataclass
class RemoteSequence:
    """A sequence as the coordinator sees it, which makes items for either server."""
    params: sequence_pb2.SequenceParams
    id: bytes = dataclasses.field(default_factory=lambda: next(_sequence_numbers).to_bytes(16, "big"))

    def update(self, round: int, tokens: Sequence[int], base: int = 0, *, hash: int | None = None,
               params: bool = True) -> sequence_pb2.SequenceUpdate:
        """Makes an update; `tokens` are all committed tokens."""
        return sequence_pb2.SequenceUpdate(
            sequence_id=self.id, round=round, base=base, tokens=tokens[base:], params_hash=7,
            prefix_hash=prefix_hash(tokens[:base]) if hash is None else hash, params=self.params if params else None)

    def verify(self, round: int, tokens: Sequence[int], base: int = 0, draft: Sequence[Any] = (),
               **options: Any) -> target_pb2.TargetItem:
        return target_pb2.TargetItem(
            verify=target_pb2.VerifyItem(sequence=self.update(round, tokens, base, **options), draft=draft))

    def propose(self, round: int, tokens: Sequence[int], base: int = 0, *, k: int = 4,
                **options: Any) -> draft_pb2.DraftItem:
        return draft_pb2.DraftItem(
            propose=draft_pb2.ProposeItem(sequence=self.update(round, tokens, base, **options), draft_tokens=k))


def new_sequence(prompt_length: int, *, rule: str = "token", temperature: float = 0.0, seed: int = 1) -> RemoteSequence:
    return RemoteSequence(sequence_pb2.SequenceParams(
        sampling=sequence_pb2.SamplingParams(temperature=temperature), seed=seed, rule=RULES[rule],
        prompt_length=prompt_length, end_ids=[]))


def node(token: int, index: int, q: sequence_pb2.Distribution | None = None) -> sequence_pb2.DraftNode:
    """A drafted token, by default with a point mass as q."""
    if q is None:
        q = sequence_pb2.Distribution(point_mass=sequence_pb2.Distribution.PointMass())
    return sequence_pb2.DraftNode(token=token, parent=index - 1, q=q)


def chain(tokens: Sequence[int]) -> list[sequence_pb2.DraftNode]:
    return [node(token, index) for index, token in enumerate(tokens)]


def sparse(weights: dict[int, float]) -> sequence_pb2.Distribution:
    return sequence_pb2.Distribution(
        sparse=sequence_pb2.Distribution.Sparse(ids=list(weights), weights=list(weights.values())))


# --- data -----------------------------------------------------------------------------------------------------


def load_prompts() -> list[str]:
    return json.loads((DATA / "prompts.json").read_text())


def corpus_prompts(count: int) -> list[str]:
    """The beginnings of paragraphs from all parts of the corpus."""
    prompts = []
    with tarfile.open(ROOT / "models" / "train" / "corpus.tar.xz") as archive:
        for member in sorted(archive.getmembers(), key=lambda m: m.name):
            if member.isfile():
                text = archive.extractfile(member).read().decode("utf-8", "replace")
                paragraphs = [p for p in re.split(r"\n{1,2}", text) if len(p) > 60]
                prompts.append(paragraphs[len(paragraphs) // 2][:40 + 7 * (len(prompts) % 20)])
    assert len(prompts) >= count
    return prompts[::len(prompts) // count][:count]


def load_goldens(name: str) -> dict[str, Any]:
    """Loads goldens and checks that they belong to the target in use."""
    goldens = json.loads((DATA / name).read_text())
    digest = hashlib.sha256((TARGET_MODEL / "model.safetensors").read_bytes()).hexdigest()
    assert goldens["model_sha256"] == digest, (
        f"{name} was made for another model; scripts/goldens generation {TARGET_MODEL} makes it anew")
    return goldens
