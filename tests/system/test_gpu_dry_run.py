"""bench/gpu/run --dry runs every piece on an emulated GPU. This shows no figures of a real GPU, but it shows whether a change of a
program or of its flags breaks a piece, before somebody has a GPU for an hour."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import BIN, ROOT

RUN = ROOT / "bench" / "gpu" / "run"
# The pieces that need a GPU that torch sees, or real kernels.
LEFT_OUT = {"logits", "others", "sanitizer"}


@pytest.mark.skipif(not (BIN.parent / "emulated" / "liboutrider_cuda.so").is_file(),
                    reason="the emulated plug-in is not built: no CUDA headers in .venv")
def test_every_piece_passes_or_says_why_it_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, RUN, "--dry", "--out", out], capture_output=True, text=True,
                          env=os.environ | {"OUTRIDER_BIN": str(BIN)})
    assert done.returncode == 0, done.stdout + done.stderr
    summary = (out / "summary.txt").read_text()
    assert summary.startswith("dry run, on the emulation, ")
    results = {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}
    assert set(results) == set(re.findall(r'^ {4}"([a-z0-9-]+)": \(\d+, ', RUN.read_text(), re.M))
    for name, result in results.items():
        assert result["outcome"] == ("left out" if name in LEFT_OUT else "passed"), summary
        assert result["rows"], f"{name} says nothing"
