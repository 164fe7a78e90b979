"""--self-test of the model servers prints a line for each check, exits with 0, opens no port, and reads only config.json."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness import BIN, DRAFT_MODEL, PATIENCE, ROOT, TARGET_MODEL, refusal

PROGRAMS = {"outrider-target": TARGET_MODEL, "outrider-draft": DRAFT_MODEL}
CHECKS = ["ok      stages", "ok      logits", "ok      rows", "ok      decisions"]
needs_torch = pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")


def self_test(program: str, model: Path, *flags: str) -> list[str]:
    """The lines of a self-test that passes."""
    # An address that nobody can listen at.
    done = subprocess.run([BIN / program, "--model", model, "--self-test", "--listen", "no-such-host.invalid:1", *flags],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_kernels_of_the_cpu_pass(program: str, dtype: str) -> None:
    title, *checks = self_test(program, PROGRAMS[program], "--dtype", dtype)
    assert f"engine native, device cpu, dtype {dtype}" in title
    assert [line[:14].strip() for line in checks] == [name[:14].strip() for name in CHECKS]
    assert checks[2].endswith("the same bits") and "the host makes them" in checks[3]


@needs_torch
@pytest.mark.parametrize("model", ["qwen3-head-norms", "mistral-window", "gemma3"])
def test_libtorch_passes_from_a_config_alone(model: str, tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "tests" / "data" / "engine" / model / "config.json", tmp_path / "config.json")
    title, *checks = self_test("outrider-target", tmp_path, "--engine", "torch")
    assert "engine torch, device cpu, dtype float32" in title
    assert len(checks) == len(CHECKS) and "the same up to rounding" in checks[2]


@pytest.mark.parametrize("flags, culprit", [
    (["--dtype", "float17"], "float17"),
    (["--engine", "abacus"], "abacus"),
    (["--device", "cuda:63"], "--device cuda:63"),
    (["--model", "/nowhere"], "/nowhere"),
])
def test_what_cannot_be_tested_is_named_in_one_line(flags: list[str], culprit: str) -> None:
    model = [] if "--model" in flags else ["--model", str(TARGET_MODEL)]
    assert culprit in refusal("outrider-target", "--self-test", *model, *flags)
