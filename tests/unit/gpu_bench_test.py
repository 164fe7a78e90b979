"""The parts of the GPU's build and benchmark that can be tested without a GPU: the plug-in, arguments, and the pack."""

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("OUTRIDER_BIN", ROOT / "build" / "release" / "bin"))
PLUGIN = BIN / "liboutrider_cuda.so"
RUN = ROOT / "bench" / "gpu" / "run"
needs_plugin = pytest.mark.skipif(not PLUGIN.is_file(), reason="the plug-in is not built: no CUDA compiler in .venv")


def output(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def run(*arguments: str, path: str = "") -> tuple[int, str]:
    """Exit code and stderr of bench/gpu/run; the only nvidia-smi is one in `path`."""
    done = subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True,
                          env=os.environ | {"PATH": path})
    return done.returncode, done.stderr


def fake_gpu(folder: Path) -> str:
    """A folder with an nvidia-smi that reports one GPU."""
    script = folder / "nvidia-smi"
    script.write_text("#!/bin/sh\necho NVIDIA H200\n")
    script.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@needs_plugin
def test_the_plugin_exports_one_function():
    symbols = re.findall(r"^\S* [A-Za-z] (\S+)$", output("nm", "-D", "--defined-only", PLUGIN), re.M)
    assert symbols == ["outrider_create_cuda_model"]


@needs_plugin
def test_the_plugin_links_no_driver_and_looks_beside_itself_first():
    dynamic = output("readelf", "-d", PLUGIN)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert {"libcudart.so.13", "libcublasLt.so.13"} <= set(needed)
    assert not [name for name in needed if name.startswith("libcuda.")]
    assert re.search(r"\(RUNPATH\).*\[\$ORIGIN:", dynamic)


@needs_plugin
def test_the_plugin_loads_where_there_is_no_gpu():
    assert ctypes.CDLL(str(PLUGIN)).outrider_create_cuda_model is not None


def test_without_a_gpu_it_says_so_in_one_line():
    code, error = run()
    assert code == 2
    assert error == "bench/gpu/run: there is no GPU here: nvidia-smi does not list cuda:0\n"


@pytest.mark.parametrize("arguments, message", [
    (["--pieces", "logits,magic"],
     "unknown piece 'magic'; there are: logits, laws, steps, pair, pair-fp8, others, real"),
    (["--pieces", "real"], "the piece 'real' needs --target and --draft"),
    (["--target", "models/tiny-target"], "--target and --draft come together"),
    (["--target", "nowhere", "--draft", "nowhere"], "no model at nowhere: it has no config.json"),
])
def test_bad_arguments_are_refused(arguments, message):
    code, error = run(*arguments)
    assert code == 2 and error.splitlines()[-1] == f"run: error: {message}".replace("run:", "bench/gpu/run:", 1)


def test_programs_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_BIN", str(tmp_path))
    code, error = run(path=fake_gpu(tmp_path))
    assert code == 2 and error == f"bench/gpu/run: no outrider in {tmp_path}: 'make build CUDA=1' builds it\n"


def programs(folder: Path, **scripts: str) -> Path:
    """A folder with programs that do nothing, except for the given ones."""
    for name in ("outrider", "outrider-coordinator", "outrider-draft", "outrider-target", "bench_logits", "bench_pair",
                 "bench_serve", "bench_shape", "bench_step", "liboutrider_cuda.so"):
        (folder / name).write_text("#!/bin/sh\n" + scripts.get(name, ""))
        (folder / name).chmod(0o755)
    return folder


def writes(report: object) -> str:
    """A program that writes this to the file given with --json."""
    return ("file=/dev/null; while [ $# -gt 0 ]; do [ $1 = --json ] && file=$2; shift; done\n"
            f"cat >$file <<'END'\n{json.dumps(report)}\nEND\n")


STEPS = """for word; do case $word in --benchmark_out=*) file=${word#*=} ;; esac; done
case $1 in *3B) kv=114688 ;; *) kv=%s ;; esac
echo '{"context": {"weight_bytes": "1000", "kv_bytes_per_token": "'$kv'"},
       "benchmarks": [{"name": "rows:1/real_time", "real_time": 1500.0},
                      {"name": "sequences:8/rows:1/real_time", "real_time": 1600.0},
                      {"name": "draft:4/real_time", "real_time": 2000.0}]}' >"$file"
"""


def test_a_piece_writes_its_results_and_a_line_of_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_BIN", str(programs(tmp_path, bench_step=STEPS % 32768)))
    code, error = run("--pieces", "steps", "--out", str(tmp_path / "out"), path=fake_gpu(tmp_path))
    assert (code, error) == (0, "")
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert "1B bfloat16, 8 sequences, 1 rows" in summary and "1B fp8, 1 sequences, drafting 4" in summary
    assert '"gpu": "NVIDIA H200"' in (tmp_path / "out" / "steps.json").read_text()


def test_a_wrong_number_of_bytes_for_a_token_fails_the_piece(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_BIN", str(programs(tmp_path, bench_step=STEPS % 32769)))
    code, _ = run("--pieces", "steps", "--out", str(tmp_path / "out"), path=fake_gpu(tmp_path))
    assert code == 1
    assert "1B takes 32769 bytes of KV a token, not 32768" in (tmp_path / "out" / "summary.txt").read_text()


SHAPE = {"plain_tokens_per_second": 600.0, "c": 0.4, "loads": [{"alpha": 0.8, "streams": 8, "rows": [
    {"mode": "plain", "tokens_per_second": 4000.0, "ratio_to_plain": 1.0},
    {"mode": "policy", "tokens_per_second": 4400.0, "ratio_to_plain": 1.1}]}],
    "alphas": [{"alpha": 0.8, "policy": {"ratio_to_plain": 1.25}, "rows": [
        {"k": 1, "ratio_to_plain": 1.2, "expected_ratio": 1.3, "overhead_microseconds": 200.0},
        {"k": 2, "ratio_to_plain": 1.3, "expected_ratio": 1.4, "overhead_microseconds": 210.0}]}]}


@pytest.mark.parametrize("piece", ["pair", "pair-fp8"])
def test_a_pair_is_summed_up_by_its_best_k(piece, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_BIN", str(programs(tmp_path, bench_shape=writes(SHAPE))))
    code, error = run("--pieces", piece, "--out", str(tmp_path / "out"), path=fake_gpu(tmp_path))
    assert (code, error) == (0, "")
    summary = re.sub(" +", " ", (tmp_path / "out" / "summary.txt").read_text())
    assert "alpha 0.8, best K = 2 1.30 x plain (Theorem 3.8: 1.40); policy 1.25; overhead 210 us" in summary
    assert "alpha 0.8, 8 streams 4000 tokens/s plain; policy 1.10 x" in summary


@pytest.mark.parametrize("others, code", [(0, 0), (2, 1)])
def test_real_weights_fail_if_a_greedy_answer_depends_on_k(others, code, tmp_path, monkeypatch):
    mode = {"mode": "K = 2", "tokens_per_second": 900.0, "ratio_to_plain": 1.4, "alpha": 0.8}
    report = {"results": [{"temperature": 0.0, "modes": [mode], "other_tokens_than_plain": others},
                          {"temperature": 1.0, "modes": [mode]}]}
    folder = programs(tmp_path, bench_pair=writes(report), bench_serve=writes({}))
    monkeypatch.setenv("OUTRIDER_BIN", str(folder))
    model = str(ROOT / "models" / "tiny-target")
    found, _ = run("--pieces", "real", "--target", model, "--draft", model, "--out", str(tmp_path / "out"),
                   path=fake_gpu(tmp_path))
    assert found == code
    assert "900 tokens/s, 1.40 x plain; alpha 0.800" in (tmp_path / "out" / "summary.txt").read_text()


def test_a_program_that_fails_fails_the_piece(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_BIN", str(programs(tmp_path, bench_step="echo no memory; exit 3\n")))
    code, _ = run("--pieces", "steps", "--out", str(tmp_path / "out"), path=fake_gpu(tmp_path))
    assert code == 1
    assert "bench_step ended with 3: no memory" in (tmp_path / "out" / "summary.txt").read_text()


@needs_plugin
def test_a_pack_has_what_its_programs_link_to(tmp_path):
    said = subprocess.run([ROOT / "bench" / "gpu" / "pack", tmp_path], check=True, capture_output=True, text=True,
                          env=os.environ | {"OUTRIDER_BIN": str(BIN)}).stdout
    assert re.match(r"pack: \S+ in \S+, \S+ compressed$", said)
    system = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux-x86-64|ld-linux-aarch64)\.so")
    wheels = re.compile(r"lib(cudart|cublasLt)")
    for file in [*(tmp_path / "programs").iterdir(), *(tmp_path / "lib").iterdir()]:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file)):
            assert (tmp_path / "lib" / name).is_file() or system.match(name) or wheels.match(name), (file.name, name)
    assert (tmp_path / "site" / "google" / "rpc" / "error_details_pb2.py").is_file()
