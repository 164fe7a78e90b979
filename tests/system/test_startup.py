"""Bad configurations fail at start, with one line that names the problem and a non-zero exit code."""

import contextlib
import os
import re
import subprocess
import urllib.request
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from harness import (BIN, DRAFT_MODEL, DRAIN, PATIENCE, TARGET_MODEL, Cluster, Metrics, Process, Server, cluster, eventually, refusal,
                     reserve_address, running, start_coordinator, start_draft, start_target)
from models import WEIGHTS, copy_of, edit, edit_tensors

MODELS = {"outrider-target": TARGET_MODEL, "outrider-draft": DRAFT_MODEL}
PROGRAMS = [*MODELS, "outrider-coordinator"]
FREE = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")


def addresses(flags: list[str]) -> tuple[str, ...]:
    """Addresses with free ports, unless the flags under test set them."""
    return FREE[2:] if "--listen" in flags else FREE


BAD_FLAGS = {
    "unknown": (["--no-such-flag"], "--no-such-flag"),
    "no number": (["--threads", "many"], "--threads"),
    "out of range": (["--block-size", "0"], "--block-size"),
    "lease": (["--lease", "-1"], "--lease"),
    "K limit": (["--max-draft-tokens", "1000"], "--max-draft-tokens"),
    "dtype": (["--dtype", "float17"], "float17"),
    "device": (["--device", "abacus"], "abacus"),
    "no such GPU": (["--device", "cuda:63"], "--device cuda:63"),
    "dtype of GPUs": (["--dtype", "fp8"], "fp8"),
    "log level": (["--log-level", "shout"], "shout"),
    "log format": (["--log-format", "runes"], "runes"),
    "listen": (["--listen", "no-such-host.invalid:1"], "no-such-host.invalid"),
    "too large a cache": (["--kv-blocks", "16000000", "--block-size", "1024"], "--kv-blocks"),
}


@pytest.mark.parametrize("program", MODELS)
@pytest.mark.parametrize("case", BAD_FLAGS)
def test_a_server_with_a_bad_flag_says_which(program: str, case: str) -> None:
    flags, culprit = BAD_FLAGS[case]
    assert culprit in refusal(program, "--model", str(MODELS[program]), *addresses(flags), *flags)


@pytest.mark.parametrize("program", MODELS)
def test_a_server_needs_a_model(program: str) -> None:
    assert "--model" in refusal(program, *FREE)
    assert "/nowhere" in refusal(program, *FREE, "--model", "/nowhere")


@pytest.mark.parametrize("flags, culprit", [
    (["--no-such-flag"], "--no-such-flag"),
    (["--draft-tokens", "99"], "--draft-tokens"),
    (["--rule", "guess"], "--rule"),
    (["--max-requests", "0"], "--max-requests"),
    (["--target-wait", "0"], "--target-wait"),
    (["--item-timeout", "-1"], "--item-timeout"),
    (["--tokenizer", "/nowhere"], "/nowhere"),
    (["--log-level", "shout"], "shout"),
    (["--listen", "no-such-host.invalid:1"], "no-such-host.invalid"),
])
def test_a_coordinator_with_a_bad_flag_says_which(flags: list[str], culprit: str) -> None:
    tokenizer = [] if "--tokenizer" in flags else ["--tokenizer", str(TARGET_MODEL)]
    assert culprit in refusal("outrider-coordinator", *addresses(flags), *tokenizer, *flags)


COMPLETE = {program: ["--model", str(model)] for program, model in MODELS.items()} | {
    "outrider-coordinator": ["--tokenizer", str(TARGET_MODEL)],
    "outrider-pair": ["--target-model", str(TARGET_MODEL), "--draft-model", str(DRAFT_MODEL)]}


@pytest.mark.parametrize("program, flags, culprit", [
    *((program, [*needed, *flags], flags[-1]) for program, needed in COMPLETE.items() for flags in (
        ["--no-such-flag"], ["--drain", "soon"], ["--log-level", "shout"], ["--log-format", "shout"])),
    *((program, [], needed[0]) for program, needed in COMPLETE.items()),
    ("outrider", ["up", "--no-such-flag"], "--no-such-flag"),
    ("outrider", ["generate", "--max-tokens", "many", "Once"], "--max-tokens"),
    ("outrider", ["sing"], "sing"),
])
def test_a_command_line_that_is_wrong_has_an_exit_code_of_its_own(program: str, flags: list[str], culprit: str) -> None:
    process = Process(program, *flags)
    assert process.wait_end() == 2, process.lines
    line, = process.lines
    assert culprit in line


@pytest.mark.parametrize("program", ["outrider", "outrider-pair", *PROGRAMS])
def test_every_program_says_its_version_and_by_what_it_runs_models(program: str) -> None:
    done = subprocess.run([BIN / program, "--version"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0 and not done.stderr
    engines = r"native on the CPU \(\w+ kernels\)"
    for plugin, name in (("cuda", "native on GPUs"), ("torch", "torch")):
        engines += f", {name}" if (BIN / f"liboutrider_{plugin}.so").exists() else ""
    runs = "" if program in ("outrider", "outrider-coordinator") else f", models run by: {engines}"
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+ \([0-9a-f]{{12}}\+?\){runs}\n", done.stdout), done.stdout


def test_a_normal_start_warns_of_nothing_and_serves_once_it_has_met_its_target(prompts: list[str]) -> None:
    target = reserve_address()
    coordinator = start_coordinator(target, "")
    with running(coordinator):
        # Without a draft service n-grams draft, and a log line says so.
        listening = coordinator.wait_for_event("listening")
        assert listening["drafter"] == "ngram"
        assert coordinator.health() == "NOT_SERVING" and not coordinator.events("serving")
        with running(start_target(listen=target)):
            serving = coordinator.wait_for_event("serving")
            # The coordinator complains only if it waits for longer than servers take to start.
            complaints = [line for line in coordinator.lines if '"level":"warning"' in line or '"level":"error"' in line]
            assert datetime.fromisoformat(serving["time"]) - datetime.fromisoformat(listening["time"]) > timedelta(seconds=1.5) or not complaints
            assert "outrider_draft_up" not in {name for name, _ in coordinator.metrics()}, "nor one without an address"


def test_the_limit_of_descriptors_is_raised_to_what_is_allowed() -> None:
    target = Server("outrider-target", "--model", str(TARGET_MODEL), limits=["--nofile=64:4000"])
    with running(target):
        limits = Path(f"/proc/{target.popen.pid}/limits").read_text()
        assert re.search(r"Max open files +4000 +4000", limits)


def test_a_port_in_use_is_named(pair: Cluster) -> None:
    model = ("--model", str(TARGET_MODEL))
    taken, metrics = pair.target.address, pair.target.metrics_address
    assert taken in refusal("outrider-target", *model, "--listen", taken, "--metrics-listen", "127.0.0.1:0")
    assert metrics in refusal("outrider-target", *model, "--listen", "127.0.0.1:0", "--metrics-listen", metrics)
    tokenizer = ("--tokenizer", str(TARGET_MODEL))
    assert taken in refusal("outrider-coordinator", *tokenizer, "--listen", taken, "--metrics-listen", "127.0.0.1:0")
    assert metrics in refusal("outrider-coordinator", *tokenizer, "--listen", "127.0.0.1:0",
                              "--metrics-listen", metrics)


TENSOR = "model.layers.1.mlp.up_proj.weight"
TOKENIZER, CONFIG = "tokenizer.json", "config.json"
Damage = Callable[[Path], object]


def without(name: str) -> Damage:
    return lambda model: (model / name).unlink()


def holding(name: str, content: bytes) -> Damage:
    return lambda model: (model / name).write_bytes(content)


def cut_off(name: str, size: int) -> Damage:
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:size])


def config_with(**values: object) -> Damage:
    return lambda model: edit(model / CONFIG, lambda config: config.update(values))


def tensors_with(change: Callable[[dict], object]) -> Damage:
    return lambda model: edit_tensors(model / WEIGHTS, lambda header, _: change(header))


# A change to a model, and what the error must name.
DAMAGE: dict[str, tuple[Damage, list[str]]] = {
    "no tokenizer": (without(TOKENIZER), [TOKENIZER]),
    "tokenizer cut off": (cut_off(TOKENIZER, 5000), [TOKENIZER]),
    "tokenizer of another kind": (lambda m: edit(m / TOKENIZER, lambda t: t["model"].update(type="Unigram")),
                                  [TOKENIZER, "Unigram"]),
    "no config": (without(CONFIG), [CONFIG]),
    "config cut off": (cut_off(CONFIG, 50), [CONFIG]),
    "config is a list": (holding(CONFIG, b"[]"), [CONFIG]),
    "config without a field": (lambda m: edit(m / CONFIG, lambda c: c.pop("num_hidden_layers")),
                               [CONFIG, "num_hidden_layers"]),
    "config with a wrong type": (config_with(hidden_size="wide"), [CONFIG, "hidden_size"]),
    "config with a negative size": (config_with(hidden_size=-384), [CONFIG, "hidden_size"]),
    "config of another size": (config_with(intermediate_size=640), [WEIGHTS, "mlp"]),
    "config of another family": (config_with(model_type="mamba"), [CONFIG, "model_type"]),
    "no weights": (without(WEIGHTS), [WEIGHTS]),
    "weights empty": (holding(WEIGHTS, b""), [WEIGHTS]),
    "weights cut off": (cut_off(WEIGHTS, 100_000), [WEIGHTS]),
    "weights without a header": (holding(WEIGHTS, b"\xff" * 1000), [WEIGHTS]),
    "a tensor is missing": (tensors_with(lambda h: h.update(other=h.pop(TENSOR))), [WEIGHTS, TENSOR]),
    "a tensor of another shape": (tensors_with(lambda h: h[TENSOR]["shape"].reverse()), [WEIGHTS, TENSOR]),
    "a tensor of another dtype": (tensors_with(lambda h: h[TENSOR].update(dtype="I16")), [WEIGHTS, TENSOR]),
    "a tensor beyond the end": (tensors_with(lambda h: h[TENSOR].update(data_offsets=[1 << 40, (1 << 40) + 8])),
                                [WEIGHTS, TENSOR]),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_is_named(case: str, tmp_path: Path) -> None:
    damage, culprits = DAMAGE[case]
    model = copy_of(DRAFT_MODEL, tmp_path)
    damage(model)
    line = refusal("outrider-draft", "--model", str(model), *FREE)
    assert all(culprit in line for culprit in culprits), line


@pytest.mark.parametrize("megabytes, what", [(40, f"bytes for the weights of {TARGET_MODEL}"), (200, "bytes for the KV pool")])
def test_memory_that_runs_out_at_the_start_is_named(megabytes: int, what: str) -> None:
    """The weights need 44 MB as float32, and the cache more than 200."""
    line = refusal("outrider-target", "--model", str(TARGET_MODEL), "--dtype", "float32", "--kv-blocks", "100000", *FREE,
                   limits=[f"--data={megabytes}000000"])
    assert what in line, line


def test_another_family_is_refused_with_those_that_work_before_its_tokenizer_is_read(tmp_path: Path) -> None:
    model = copy_of(DRAFT_MODEL, tmp_path)
    config_with(model_type="mamba")(model)
    without(TOKENIZER)(model)
    line = refusal("outrider-draft", "--model", str(model), *FREE)
    assert "mamba" in line and "supported: llama" in line and TOKENIZER not in line


def test_a_coordinator_with_a_damaged_tokenizer_names_it(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json" in refusal("outrider-coordinator", *FREE, "--tokenizer", str(tmp_path))


def with_other_tokens(model: Path, folder: Path) -> Path:
    """A copy of the model whose tokenizer has two tokens swapped."""
    def swap(tokenizer: dict) -> None:
        vocab = tokenizer["model"]["vocab"]
        one, two = [token for token, index in vocab.items() if index in (1000, 1001)]
        vocab[one], vocab[two] = vocab[two], vocab[one]

    copy = copy_of(model, folder)
    edit(copy / "tokenizer.json", swap)
    return copy


def test_a_draft_with_another_tokenizer_is_refused_and_requests_are_served_plain(tmp_path: Path) -> None:
    target = start_target()
    draft = start_draft(model=with_other_tokens(DRAFT_MODEL, tmp_path))
    coordinator = start_coordinator(target.address, draft.address)
    with running(coordinator, draft, target):
        error = coordinator.wait_for_event("refused", server="draft")["error"]
        assert draft.events("serving")[0]["fingerprint"] in error
        assert target.events("serving")[0]["fingerprint"] in error
        assert "another tokenizer" in error
        coordinator.wait_for_event("connected", server="target")
        assert coordinator.value("outrider_degraded") == 1
        assert coordinator.value("outrider_draft_up") == 0
        assert coordinator.health() == "SERVING"


def test_a_draft_whose_texts_end_otherwise_drafts_and_the_targets_ends_decide(prompts: list[str], tmp_path: Path) -> None:
    model = copy_of(DRAFT_MODEL, tmp_path)
    edit(model / "generation_config.json", lambda config: config.update(eos_token_id=[7, 8]))
    with cluster(draft=None) as plain, cluster(draft=["--model", str(model)]) as c:
        for prompt in prompts[:3]:
            expected, answer = (each.generate(prompt, max_tokens=40, temperature=0) for each in (plain, c))
            assert (answer.tokens, answer.reason) == (expected.tokens, expected.reason)
            assert answer.speculation.accepted > 0


def with_other_weights(model: Path, folder: Path) -> Path:
    """A copy of the model that differs in one byte of its weights."""
    copy = copy_of(model, folder)
    weights = bytearray((copy / WEIGHTS).read_bytes())
    weights[-2] ^= 1
    (copy / WEIGHTS).write_bytes(weights)
    return copy


def test_a_target_that_comes_back_with_other_weights_is_refused_until_the_old_ones_are_back(
        prompts: list[str], tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/target.sock"
    target = start_target(listen=address)
    coordinator = start_coordinator(address, "")
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(coordinator))
        coordinator.wait_for_event("connected", server="target")
        for flags, model, problem in (([], with_other_weights(TARGET_MODEL, tmp_path), "other weights"),
                                      (["--dtype", "bfloat16"], TARGET_MODEL, "native bfloat16")):
            target.stop()
            coordinator.wait_value("outrider_target_up", 0)
            target = start_target(*flags, model=model, listen=address)
            eventually(lambda problem=problem: any(problem in event["error"] for event in coordinator.events("refused")),
                       f"a refusal that says '{problem}'")
            assert coordinator.value("outrider_target_up") == 0
        target.stop()
        target = start_target(listen=address)
        stack.enter_context(running(target))
        coordinator.wait_value("outrider_target_up", 1)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("log", ["full disk", "pipe that nobody reads any more"])
def test_a_log_that_cannot_be_written_ends_nobody_and_its_lines_are_counted(log: str, program: str) -> None:
    address, metrics = reserve_address(), reserve_address()
    model = ["--model", str(DRAFT_MODEL)] if program != "outrider-coordinator" else ["--tokenizer", str(TARGET_MODEL)]
    read_end, write_end = os.pipe() if log != "full disk" else (None, os.open("/dev/full", os.O_WRONLY))
    process = subprocess.Popen([BIN / program, *model, "--listen", address, "--metrics-listen", metrics, "--log-level", "debug"],
                               stderr=write_end)
    os.close(write_end)
    if read_end is not None:
        os.close(read_end)
    try:
        with grpc.insecure_channel(address) as channel:
            live = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="live"), timeout=PATIENCE,
                                                             wait_for_ready=True)
        assert live.status == health_pb2.HealthCheckResponse.SERVING
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=PATIENCE) as answer:
            assert Metrics(answer.read().decode()).value("outrider_log_lines_dropped_total") > 0
        process.terminate()  # it logs this
        assert process.wait(DRAIN) == 0
    finally:
        process.kill()


@pytest.mark.parametrize("program", PROGRAMS)
def test_beyond_this_host_a_listener_needs_tls_or_a_word(program: str) -> None:
    flags = ("--model", str(DRAFT_MODEL)) if program != "outrider-coordinator" else ("--tokenizer", str(TARGET_MODEL))
    for address in ("0.0.0.0:0", "[::]:0"):
        line = refusal(program, *flags, "--metrics-listen", "127.0.0.1:0", "--listen", address)
        assert address in line and "--insecure" in line and "--tls-cert" in line


def test_http_beyond_this_host_needs_tls_or_a_word_too() -> None:
    flags = (*FREE, "--tokenizer", str(TARGET_MODEL), "--http-listen", "0.0.0.0:0")
    assert "--http-listen: 0.0.0.0:0" in refusal("outrider-coordinator", *flags)
    for word in ("--insecure", "--http-tls-terminated"):
        with running(Server("outrider-coordinator", *flags[4:], word)) as [coordinator]:
            assert coordinator.http_address.startswith("0.0.0.0:")


def test_who_can_be_reached_from_elsewhere_describes_nothing(prompts: list[str]) -> None:
    target = start_target("--insecure", listen="0.0.0.0:0")
    with running(target), grpc.insecure_channel(target.address.replace("0.0.0.0", "127.0.0.1")) as channel:
        with pytest.raises(grpc.RpcError) as error:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_target_with_another_tokenizer_is_refused_and_the_coordinator_is_not_ready(tmp_path: Path) -> None:
    target = start_target(model=with_other_tokens(TARGET_MODEL, tmp_path))
    coordinator = start_coordinator(target.address, "")
    with running(coordinator, target):
        error = coordinator.wait_for_event("refused", server="target")["error"]
        assert target.events("serving")[0]["fingerprint"] in error
        assert coordinator.health() == "NOT_SERVING"


def test_dtypes_and_block_sizes_work_together(prompts: list[str]) -> None:
    with cluster(target=["--dtype", "bfloat16", "--block-size", "1", "--kv-blocks", "400"],
                 draft=["--dtype", "auto", "--block-size", "64"]) as c:
        plain = c.generate(prompts[0], k=0, temperature=0, max_tokens=40)
        assert c.generate(prompts[0], k=4, temperature=0, max_tokens=40).tokens == plain.tokens
