"""outrider-pair: draft and target in one process, which begin, serve and end together."""

import contextlib
import dataclasses
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import (BIN, DEVICE, DRAFT_MODEL, DTYPE, PATIENCE, TARGET_MODEL, Cluster, Refusal, Server, draft_stream, eventually,
                     inference_pb2_grpc, load_goldens, refusal, reserve_address, running, start_coordinator, target_stream,
                     with_defaults)
from help_page import help_of
from models import WEIGHTS, copy_of
from test_outages import Call, Streams, calls_of
from test_servers import PROMPT, Busy, results_until_the_end
from test_startup import with_other_tokens, without
from test_torch import GREEDY, clear

MODELS = ("--target-model", str(TARGET_MODEL), "--draft-model", str(DRAFT_MODEL))
FREE = ("--target-listen", "127.0.0.1:0", "--draft-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")


@dataclasses.dataclass
class Service:
    """One of the pair's two services."""
    address: str
    connect = Server.connect


class Pair(Server):
    """Both services. Its addresses as a Server are the target's."""

    def __init__(self, *args: str, target_listen: str = "", draft_listen: str = "") -> None:
        defaults = {"--target-model": str(TARGET_MODEL), "--draft-model": str(DRAFT_MODEL), "--device": DEVICE,
                    "--target-dtype": DTYPE, "--draft-dtype": DTYPE, "--threads": "1"}
        self.flags = args
        super(Server, self).__init__("outrider-pair", "--target-listen", target_listen or reserve_address(), "--draft-listen",
                                     draft_listen or reserve_address(), "--metrics-listen", "127.0.0.1:0", "--log-format", "json",
                                     *with_defaults(defaults, args))
        target, draft = (self.wait_for_event("serving", serves=name) for name in ("target", "draft"))
        self.address, self.metrics_address = target["listen"], target["metrics_listen"]
        self.draft = Service(draft["listen"])

    def again(self) -> "Pair":
        """Starts another pair at the same addresses."""
        return Pair(*self.flags, target_listen=self.address, draft_listen=self.draft.address)


@contextlib.contextmanager
def pair_cluster(*flags: str) -> Iterator[Cluster]:
    served = Pair(*flags)
    coordinator = start_coordinator(served.address, served.draft.address)
    with running(coordinator, served) as servers, coordinator.connect() as channel:
        c = Cluster(served, served, coordinator, inference_pb2_grpc.InferenceStub(channel), servers, ((), ()))
        eventually(lambda: coordinator.health() == "SERVING", "the coordinator is ready")
        c.wait_draft_up(True)
        yield c


@pytest.fixture
def together() -> Iterator[Cluster]:
    with pair_cluster() as c:
        yield c


@pytest.fixture(scope="module")
def calls(prompts: list[str]) -> list[Call]:
    return calls_of(prompts)


@pytest.fixture(scope="module")
def apart(pair: Cluster, calls: list[Call]) -> list[list[int]]:
    """The tokens from draft and target in separate processes."""
    return [answer.tokens for answer in pair.generate_all(calls)]


def test_tokens_are_those_of_separate_processes_and_of_plain_decoding(together: Cluster, calls: list[Call],
                                                                      apart: list[list[int]]) -> None:
    answers = together.generate_all(calls)
    assert [answer.tokens for answer in answers] == apart
    assert sum(answer.speculation.accepted for answer in answers) > 100
    plain = together.generate_all([(prompt, options | {"k": 0}) for prompt, options in calls])
    assert [answer.tokens for answer in plain] == apart
    together.wait_idle()


@pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")
def test_both_models_run_on_libtorch(prompts: list[str]) -> None:
    """Two models in one process share libtorch's threads."""
    with pair_cluster("--engine", "torch", "--target-dtype", "float32", "--draft-dtype", "float32") as c:
        calls = [(prompt, {"k": k, **GREEDY}) for prompt in prompts for k in (0, 4)]
        goldens = [golden for golden in load_goldens("greedy.json")["answers"] for _ in (0, 4)]
        answers = c.generate_all(calls)
        for answer, golden in zip(answers, goldens, strict=True):
            assert answer.tokens[:clear(golden)] == golden["tokens"][:clear(golden)]
        assert sum(answer.speculation.accepted for answer in answers) > 100
        with target_stream(c.target) as verifies, draft_stream(c.target.draft) as proposes:
            assert verifies.info.engine == proposes.info.engine == "torch"
            assert verifies.info.kv_blocks == proposes.info.kv_blocks
        c.wait_idle()


def test_a_killed_pair_that_is_started_again_loses_nothing(together: Cluster, calls: list[Call], apart: list[list[int]]) -> None:
    streams = Streams(together, calls)
    streams.wait_more(10)
    together.kill(together.target)
    eventually(lambda: together.coordinator.value("outrider_target_up") == 0, "the loss is noticed")
    together.target = together.draft = together.target.again()
    together._servers.append(together.target)
    assert streams.tokens() == apart
    together.wait_draft_up(True)
    eventually(lambda: together.generate(calls[0][0], **calls[0][1]).speculation.accepted > 0, "speculation resumes")
    together.wait_idle()


def test_a_pair_told_to_end_answers_what_both_have_and_takes_nothing_new() -> None:
    # Small steps, so that there is work left when the signal comes.
    served = Pair("--max-batch-tokens", "32", "--no-prefix-cache", "--drain", "1000")
    with running(served), target_stream(served) as verifies, draft_stream(served.draft) as proposes:
        work = [Busy("draft", proposes), Busy("target", verifies)]
        served.terminate()
        served.wait_for_event("draining")
        for address in (served.address, served.draft.address):
            assert (served.health(address), served.health(address, "live")) == ("NOT_SERVING", "SERVING")
        for each in work:
            each.stream.send(each.item(1, PROMPT))
        for each in work:
            results, end = results_until_the_end(each.stream)
            refused = [Refusal.parse(result.status) for result in results if result.HasField("status")]
            assert [(r.code, r.reason) for r in refused] == [("UNAVAILABLE", "DRAINING")]
            assert len(each.results) + len(results) - 1 == len(each.prompts), "an item was lost"
            assert (end.code, end.reason) == ("UNAVAILABLE", "DRAINING")
        served.wait_orderly_end()
        assert len(served.events("draining")) == len(served.events("stopped")) == 1


def test_each_service_says_what_it_is_and_health_speaks_for_both() -> None:
    probes = reserve_address()
    served = Pair("--target-dtype", "float32", "--draft-dtype", "bfloat16", "--health-listen", probes)
    with running(served), target_stream(served) as verifies, draft_stream(served.draft) as proposes:
        assert (verifies.info.model, verifies.info.dtype) == (TARGET_MODEL.name, "float32")
        assert (proposes.info.model, proposes.info.dtype) == (DRAFT_MODEL.name, "bfloat16")
        assert verifies.info.boot_id != proposes.info.boot_id
        assert verifies.info.weights_hash != proposes.info.weights_hash
        for address in (served.address, served.draft.address, probes):
            assert served.health(address) == served.health(address, "live") == "SERVING"


def test_metrics_of_both_are_at_one_address(together: Cluster, prompts: list[str]) -> None:
    together.generate(prompts[0], k=4, temperature=0, max_tokens=20)
    metrics = together.target.metrics()
    for name, model in (("target", TARGET_MODEL.name), ("draft", DRAFT_MODEL.name)):
        assert metrics.value(f"outrider_{name}_step_duration_seconds_count", model_name=model) > 0
        assert metrics.value(f"outrider_{name}_model_info", model=model) == 1
        assert metrics.value(f"outrider_{name}_engine_stalled") == 0
    assert metrics.value("outrider_build_info") == 1


def test_describe_shows_both(together: Cluster) -> None:
    shown = subprocess.run([BIN / "outrider", "describe", "--address", together.coordinator.address], check=True,
                           capture_output=True, text=True, timeout=PATIENCE).stdout
    assert TARGET_MODEL.name in shown and DRAFT_MODEL.name in shown


def block_bytes(model: Path, tokens: int) -> int:
    """The bytes of a block's keys and values in bfloat16."""
    config = json.loads((model / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head * 2 * tokens


def available_bytes() -> int:
    """The memory available to the machine, or to the control group if that is less."""
    machine = 1024 * int(re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())[1])
    group = Path("/sys/fs/cgroup")
    limit = (group / "memory.max").read_text().strip() if (group / "memory.max").exists() else "max"
    return machine if limit == "max" else min(machine, int(limit) - int((group / "memory.current").read_text()))


@pytest.mark.skipif(DEVICE != "cpu", reason="asks for the memory of the host")
def test_the_pools_hold_as_many_tokens_and_share_the_fraction() -> None:
    wanted = 0.01 * available_bytes()
    # With so many sequences, their contexts are no limit.
    served = Pair("--target-dtype", "bfloat16", "--draft-dtype", "bfloat16", "--kv-memory-fraction", "0.01", "--max-sequences",
                  "100000")
    with running(served), target_stream(served) as verifies, draft_stream(served.draft) as proposes:
        blocks, tokens = verifies.info.kv_blocks, verifies.info.block_size
        assert (proposes.info.kv_blocks, proposes.info.block_size) == (blocks, tokens)
    # Other processes use memory too, so the bounds are wide. A fraction for each pool would be twice as much.
    taken = blocks * (block_bytes(TARGET_MODEL, tokens) + block_bytes(DRAFT_MODEL, tokens))
    assert 0.6 * wanted < taken < 1.5 * wanted


def test_the_size_of_the_pools_can_be_given() -> None:
    served = Pair("--kv-blocks", "300")
    with running(served), target_stream(served) as verifies, draft_stream(served.draft) as proposes:
        assert verifies.info.kv_blocks == proposes.info.kv_blocks == 300


@pytest.mark.parametrize("name", ["target", "draft"])
def test_a_model_that_cannot_be_loaded_ends_the_pair(name: str, tmp_path: Path) -> None:
    """By then the other model waits for this one, to share the memory."""
    model = {"target": TARGET_MODEL, "draft": DRAFT_MODEL}[name]
    broken = copy_of(model, tmp_path)
    without(WEIGHTS)(broken)
    line = refusal("outrider-pair", *FREE, *with_defaults(dict(zip(MODELS[::2], MODELS[1::2])), [f"--{name}-model", str(broken)]))
    assert f"{name}: " in line and str(broken / WEIGHTS) in line


def test_memory_that_runs_out_for_both_is_said_once() -> None:
    line = refusal("outrider-pair", *MODELS, *FREE, "--target-dtype", "float32", "--draft-dtype", "float32", "--kv-blocks", "100000",
                   limits=["--data=200000000"])
    assert re.search("(target|draft): .*bytes for the KV pool", line), line


@pytest.mark.parametrize("flags, culprit", [
    (["--no-such-flag"], "--no-such-flag"),
    (["--model", str(TARGET_MODEL)], "--model"),
    (["--tensor-parallel", "2"], "--tensor-parallel"),
    (["--target-dtype", "float17"], "target: --dtype float17: must be one of"),
    (["--draft-dtype", "fp8"], "draft: --dtype fp8: must be one of"),
    (["--device", "cuda:63"], "--device cuda:63"),
    (["--kv-memory-fraction", "2"], "--kv-memory-fraction"),
    (["--top-n", "0"], "--top-n"),
    (["--draft-listen", "127.0.0.1:7072", "--target-listen", "127.0.0.1:7072"],
     "--draft-listen 127.0.0.1:7072: --target-listen is the same"),
    (["--draft-listen", "0.0.0.0:0"], "--draft-listen: 0.0.0.0:0"),
    (["--target-listen", "no-such-host.invalid:1"], "no-such-host.invalid"),
])
def test_a_bad_flag_is_named(flags: list[str], culprit: str) -> None:
    assert culprit in refusal("outrider-pair", *MODELS, *with_defaults(dict(zip(FREE[::2], FREE[1::2])), flags))


@pytest.mark.parametrize("given", ["target", "draft"])
def test_a_pair_needs_both_models(given: str) -> None:
    missing = {"target": "draft", "draft": "target"}[given]
    model = str(TARGET_MODEL)
    assert f"--{missing}-model" in refusal("outrider-pair", *FREE, f"--{given}-model", model)
    assert "/nowhere" in refusal("outrider-pair", *FREE, f"--{given}-model", model, f"--{missing}-model", "/nowhere")


def test_a_port_in_use_is_named() -> None:
    served = Pair("--kv-blocks", "64")
    with running(served):
        line = refusal("outrider-pair", *MODELS, *FREE[:2], "--draft-listen", served.draft.address, *FREE[4:], "--kv-blocks", "64")
        assert f"cannot listen on {served.draft.address}" in line


def test_models_that_are_no_pair_are_refused(tmp_path: Path) -> None:
    model = with_other_tokens(DRAFT_MODEL, tmp_path)
    line = refusal("outrider-pair", *FREE, *MODELS[:2], "--draft-model", str(model))
    assert f"--draft-model {model}: has another tokenizer than --target-model {TARGET_MODEL}" in line


def test_help_has_a_flag_of_each_and_one_for_both() -> None:
    flags = re.findall(r"^ +(?:-\w,)?--([\w-]+)", help_of("outrider-pair"), re.M)
    assert {"target-model", "draft-model", "target-listen", "draft-listen", "target-dtype", "draft-dtype"} <= set(flags)
    assert {"device", "engine", "threads", "kv-blocks", "top-n", "metrics-listen"} <= set(flags)
    assert not {"model", "listen", "dtype", "tensor-parallel", "rank"} & set(flags) and len(flags) == len(set(flags))
