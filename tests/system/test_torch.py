"""The engine on libtorch: the first law up to rounding, alone and beside the native engine, and what it reports about itself.

With libtorch, rounding makes a row's results depend on the rows beside it, so tokens are compared up to the first position
where the two best logits are closer than TIE.
"""

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import (BIN, DRAFT_MODEL, PRECISE, TARGET_MODEL, Cluster, Process, cluster, full, inference_pb2, load_goldens, refusal,
                     request, running, start_coordinator, start_target)
from models import with_nan_for

TORCH = ["--engine", "torch"]
TIE = 1e-3
GREEDY = {"temperature": 0, "max_tokens": 48, "ignore_eos": True}
MARK = 4001  # a token that occurs in no text of the tests

pytestmark = pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")


@pytest.fixture(scope="module")
def on_torch() -> Iterator[Cluster]:
    with cluster(target=TORCH, draft=TORCH) as c:
        yield c


def clear(golden: dict[str, list[float]]) -> int:
    """How many of a golden's tokens come before the first tie."""
    return next((i for i, margin in enumerate(golden["margins"]) if margin < TIE), len(golden["tokens"]))


@pytest.mark.parametrize("k", [full(0), full(1), 5])
def test_greedy_output_is_that_of_transformers_with_every_draft_length(k: int, on_torch: Cluster,
                                                                       prompts: list[str]) -> None:
    compared = accepted = 0
    for prompt, golden in zip(prompts, load_goldens("greedy.json")["answers"], strict=True):
        answer = on_torch.generate(prompt, k=k, **GREEDY)
        assert answer.tokens[:clear(golden)] == golden["tokens"][:clear(golden)], prompt
        compared += clear(golden)
        accepted += answer.speculation.accepted
    assert compared > 0.8 * 48 * len(prompts)
    assert bool(accepted) == bool(k)


def test_the_coupled_rule_emits_the_same_with_every_draft_length(on_torch: Cluster, prompts: list[str]) -> None:
    # There is no tie here: the native engine, which rounds differently, emits the same tokens.
    with cluster(target=PRECISE, draft=None) as native:
        calls = [(prompt, {"rule": "coupled", "temperature": 0.8, "seed": seed, "max_tokens": 48}) for seed, prompt in enumerate(prompts[:4])]
        texts = [native.generate(prompt, k=0, **options).tokens for prompt, options in calls]
    for (prompt, options), plain in zip(calls, texts, strict=True):
        assert all(on_torch.generate(prompt, k=k, **options).tokens == plain for k in (0, 1, 3, 8)), prompt


def test_a_draft_on_libtorch_changes_no_token_of_a_native_target(pair: Cluster, prompts: list[str]) -> None:
    with cluster(draft=TORCH) as c:
        for prompt in prompts[:6]:
            answer = c.generate(prompt, k=4, **GREEDY)
            assert answer.tokens == pair.generate(prompt, k=0, **GREEDY).tokens
            assert answer.speculation.accepted > 0


def test_many_streams_at_once_emit_what_each_does_alone(on_torch: Cluster, prompts: list[str]) -> None:
    goldens = load_goldens("greedy.json")["answers"]
    calls = [(prompt, GREEDY | {"k": k}) for k, prompt in zip(itertools.cycle((0, 2, 5)), prompts, strict=False)]
    for answer, golden in zip(on_torch.generate_all(calls), goldens, strict=True):
        assert answer.tokens[:clear(golden)] == golden["tokens"][:clear(golden)]
    on_torch.wait_idle()


def test_a_killed_target_is_replaced_and_no_token_lost(prompts: list[str]) -> None:
    golden = load_goldens("greedy.json")["answers"][0]
    with cluster(target=TORCH) as c:
        stream = c.stream(prompts[0], k=3, **GREEDY)
        tokens = [token.id for token in next(stream).tokens]
        c.kill(c.target)
        c.restart_target()
        tokens += [token.id for chunk in stream for token in chunk.tokens]
        assert len(tokens) == 48
        assert tokens[:clear(golden)] == golden["tokens"][:clear(golden)]


def test_a_target_that_comes_back_on_another_engine_is_not_used(tmp_path: Path) -> None:
    # Otherwise an engine that keeps the first law bit for bit would begin an answer, and one that does not would end it.
    address = f"unix:{tmp_path}/target.sock"
    target = start_target(*PRECISE, listen=address)
    with running(start_coordinator(address, "")) as (coordinator,):
        coordinator.wait_for_event("connected", server="target")
        target.stop()
        with running(start_target(*TORCH, listen=address)):
            refused = coordinator.wait_for_event("refused", server="target")
            assert "torch float32 torch, libtorch" in refused["error"] and "native float32" in refused["error"]


def test_logits_that_are_no_numbers_end_their_sequence_and_no_other(prompts: list[str], tmp_path: Path) -> None:
    """Other sequences get its blocks, and never see its values there."""
    with cluster(target=[*TORCH, "--model", str(with_nan_for(MARK, TARGET_MODEL, tmp_path)), "--kv-blocks", "24",
                         "--no-prefix-cache"], draft=None) as c:
        alone = [c.generate(prompt, **GREEDY).tokens for prompt in prompts[:4]]
        for prompt, tokens in zip(prompts, alone, strict=False):
            refused = c.refused(request([300, MARK] * 100, k=0, max_tokens=20))
            assert (refused.code, refused.reason) == ("INTERNAL", "LOGITS_NOT_FINITE")
            assert c.generate(prompt, **GREEDY).tokens == tokens


def test_it_says_what_it_is(on_torch: Cluster, pair: Cluster) -> None:
    described = on_torch.stub.Describe(inference_pb2.DescribeRequest())
    for server in (described.target, described.draft):
        assert (server.engine, server.row_invariant, server.device, server.dtype) == ("torch", False, "cpu", "float32")
    native = pair.stub.Describe(inference_pb2.DescribeRequest()).target
    assert (native.engine, native.row_invariant) == ("native", True)
    shown = [subprocess.run([BIN / "outrider", "describe", "--address", c.coordinator.address], check=True,
                            capture_output=True, text=True).stdout for c in (on_torch, pair)]
    assert shown[0].count("float32 on cpu by libtorch, exact up to rounding") == 2
    assert "libtorch" not in shown[1]


def test_only_a_process_that_asks_for_it_loads_it(on_torch: Cluster, pair: Cluster) -> None:
    def loads_torch(process: Process) -> bool:
        return "libtorch_cpu" in Path(f"/proc/{process.popen.pid}/maps").read_text()

    assert loads_torch(on_torch.target) and loads_torch(on_torch.draft) and not loads_torch(on_torch.coordinator)
    assert not loads_torch(pair.target) and not loads_torch(pair.draft)


def test_the_command_line_starts_it() -> None:
    command = [BIN / "outrider", "generate", "Once upon a time", *TORCH, "--dtype", "float32", "--temperature", "0",
               "--max-tokens", "12", "--json"]
    answers = [json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
               for arguments in (command, [part for part in command if part not in TORCH])]
    assert answers[0]["tokens"] == answers[1]["tokens"]


def test_what_it_cannot_do_is_refused_in_one_line(tmp_path: Path) -> None:
    model = ["--model", str(DRAFT_MODEL)]
    assert "--engine jax: must be native or torch" in refusal("outrider-draft", *model, "--engine", "jax")
    assert ("--dtype int8: must be one of auto, float32, bfloat16 with --engine torch --device cpu"
            in refusal("outrider-draft", *model, *TORCH, "--dtype", "int8"))
    assert "--engine torch --device cuda:0: " in refusal("outrider-draft", *model, *TORCH, "--device", "cuda:0")
    shutil.copy(BIN / "outrider-draft", tmp_path)
    alone = subprocess.run([tmp_path / "outrider-draft", *model, *TORCH], capture_output=True, text=True)
    assert alone.returncode > 0
    assert "this build has no libtorch (liboutrider_torch.so beside the program)" in alone.stderr
    assert alone.stderr.count("\n") == 1
