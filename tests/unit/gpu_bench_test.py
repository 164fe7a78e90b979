"""bench/gpu/run as far as it can be tested without a GPU: its arguments, its pieces with fake programs, and its results.

tests/system/test_gpu_dry_run.py runs it on an emulated GPU, and gpu_pack_test.py is about bench/gpu/pack.
"""

import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("OUTRIDER_BIN", ROOT / "build" / "release" / "bin"))
RUN = ROOT / "bench" / "gpu" / "run"
MODULE = runpy.run_path(str(RUN))


def run(*arguments: str, path: str = "") -> tuple[int, str]:
    """Exit code and stderr of bench/gpu/run; the only nvidia-smi is one in `path`."""
    done = subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True,
                          env=os.environ | {"PATH": path})
    return done.returncode, done.stderr


def script(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/sh\n{text}")
    file.chmod(0o755)


def programs(folder: Path, **scripts: str) -> Path:
    """A folder with programs that do nothing, except for the given ones."""
    for name in [*MODULE["PROGRAMS"], "outrider_gpu_test", "liboutrider_cuda.so"]:
        script(folder / name, scripts.get(name, ""))
    return folder


class Machine:
    """A machine with a GPU and these programs."""

    def __init__(self, folder: Path, **scripts: str) -> None:
        self.folder, self.out = programs(folder, **scripts), folder / "out"
        script(folder / "nvidia-smi", "echo NVIDIA H200\n")
        self.path = f"{folder}:/usr/bin:/bin"

    def run(self, pieces: str, *flags: str) -> int:
        code, error = run("--pieces", pieces, "--out", str(self.out), *flags, path=self.path)
        assert error == ""
        return code

    @property
    def summary(self) -> str:
        return re.sub(" +", " ", (self.out / "summary.txt").read_text())

    def result(self, piece: str) -> dict:
        return json.loads((self.out / f"{piece}.json").read_text())


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Returns a function that makes a machine."""
    def make(**scripts: str) -> Machine:
        monkeypatch.setenv("OUTRIDER_BIN", str(tmp_path))
        return Machine(tmp_path, **scripts)

    return make


# --- arguments -------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_says_so_in_one_line():
    code, error = run()
    assert code == 2
    assert error == "bench/gpu/run: there is no GPU here: nvidia-smi does not list cuda:0\n"


@pytest.mark.parametrize("arguments, message", [
    (["--pieces", "logits,magic"], f"unknown piece 'magic'; there are: {', '.join(MODULE['PIECES'])}"),
    (["--pieces", "real"], "the piece 'real' needs --target and --draft"),
    (["--target", "models/tiny-target"], "--target and --draft come together"),
    (["--target", "nowhere", "--draft", "nowhere"], "no model at nowhere: it has no config.json"),
])
def test_bad_arguments_are_refused(arguments, message):
    code, error = run(*arguments)
    assert code == 2 and error.splitlines()[-1] == f"bench/gpu/run: error: {message}"


@pytest.mark.parametrize("missing", ["outrider-pair", "outrider_gpu_test", "liboutrider_cuda.so"])
def test_what_is_not_built_is_named(missing, machine):
    here = machine()
    (here.folder / missing).unlink()
    code, error = run(path=here.path)
    assert code == 2
    assert error == (f"bench/gpu/run: no {missing} in {here.folder}: "
                     "'make install CUDA=1 && scripts/build release' builds it\n")


def test_the_pieces_have_the_time_that_the_documentation_says():
    seconds = {name: seconds for name, (seconds, _) in MODULE["PIECES"].items()}
    assert max(seconds.values()) <= 240
    assert list(seconds)[:3] == ["machine", "gtest", "self-test"]
    assert sum(list(seconds.values())[:3]) <= 180
    assert sum(seconds.values()) - seconds["real"] <= 28 * 60


# --- what is run, and what is left of it ------------------------------------------------------------------------

GTEST = """case $1 in
  --gtest_list_tests) printf 'Running main() from main.cc\\nKernels.\\n  Add\\nAll/Trees.  # TypeParam = int\\n  Grow/0\\n' ;;
  --gtest_filter=Kernels.*) echo '[  PASSED  ] 2 tests.' ;;
  --gtest_filter=All/Trees.*) %s ;;
esac
"""
WELL = "echo '[  PASSED  ] 7 tests.'"


def test_pieces_that_passed_are_not_run_again_and_those_that_failed_are(machine, tmp_path):
    here = machine(bench_layers=f"date +%N >>{tmp_path}/ran\necho alike\n", **{"outrider-target": "echo broken\nexit 3\n"})

    def times_run(*flags: str) -> int:
        assert here.run("layers,self-test", *flags) == 1
        return len((tmp_path / "ran").read_text().splitlines())

    assert times_run() == 2  # once for each dtype
    assert "bfloat16 against native:cpu:float32 alike" in here.summary
    assert "llama-3.2-3B-fp8 outrider-target ended with 3: broken" in here.summary
    assert times_run() == 2
    assert times_run("--again") == 4
    assert times_run("--quick") == 6  # other figures
    (here.folder / "liboutrider_cuda.so").write_text("another build")
    assert times_run() == 8


def test_a_piece_that_ran_out_of_time_is_not_run_again_unless_asked_to(machine):
    here = machine(bench_layers="echo alike\n")
    assert here.run("layers") == 0
    late = here.result("layers") | {"outcome": "out of time"}
    (here.out / "layers.json").write_text(json.dumps(late))
    assert here.run("layers") == 1
    assert here.result("layers")["outcome"] == "out of time"
    assert here.run("layers", "--again") == 0


def test_what_might_not_end_in_time_is_left_for_the_next_call(machine):
    here = machine(outrider_gpu_test=GTEST % WELL, bench_layers="echo alike\n")
    assert here.run("gtest,layers", "--within", "59") == 1
    assert [file.name for file in here.out.glob("*.json")] == ["gtest.json"]
    assert here.run("gtest,layers", "--within", "59") == 0
    assert "bfloat16 against native:cpu:float32" in here.summary


def test_an_exception_fails_its_piece_alone(machine):
    garbage = "for word; do case $word in --benchmark_out=*) echo nonsense >${word#*=} ;; esac; done\n"
    here = machine(bench_step=garbage, bench_layers="echo alike\n")
    assert here.run("steps,layers") == 1
    assert "json.decoder.JSONDecodeError: Expecting value" in here.result("steps")["rows"][0][0]
    assert "Traceback (most recent call last):" in (here.out / "steps.log").read_text()
    assert here.result("layers")["outcome"] == "passed"


def test_a_program_that_fails_fails_the_piece(machine):
    here = machine(bench_step="echo no memory; exit 3\n")
    assert here.run("steps") == 1
    assert "bench_step ended with 3: no memory" in here.summary


def test_there_is_an_archive_of_results_and_one_of_the_ends_of_logs(machine):
    here = machine(bench_layers="head -c 3000000 /dev/zero | tr '\\0' x; echo alike\n")
    assert here.run("layers") == 0
    with tarfile.open(here.out.with_name("out.tar.xz")) as archive:
        assert archive.getnames() == ["out/layers.json", "out/summary.txt"]
    with tarfile.open(here.out.with_name("out-logs.tar.xz")) as archive:
        log, = archive.getmembers()
        assert (log.name, log.size) == ("out/layers.log", 1 << 20)
        assert archive.extractfile(log).read().endswith(b"xalike\n")


def test_programs_run_beside_each_other_each_in_its_own_time(tmp_path):
    context = MODULE["Context"](root=ROOT, programs=BIN, gtest=BIN, out=tmp_path, scratch=tmp_path, device="cuda:0",
                                target=None, draft=None, quick=False, dry=False, deadline=time.monotonic() + 60,
                                log=tmp_path / "piece.log")
    done = context.beside({"well": ["echo", "well"], "bad": ["sh", "-c", "echo bad; exit 2"],
                           "a/slow": ["sh", "-c", "echo slow; sleep 60"]}, seconds=3)
    assert {name: (one.output, one.fault) for name, one in done.items()} == {
        "well": ("well\n", ""), "bad": ("bad\n", "sh ended with 2: bad"), "a/slow": ("slow\n", "out of time")}
    assert (tmp_path / "piece-a-slow.log").read_text() == "slow\n"


# --- correctness ------------------------------------------------------------------------------------------------


def test_the_machine_is_described_before_anything_else(machine):
    here = machine()
    assert here.run("machine") == 0
    assert "driver, memory NVIDIA H200" in here.summary and "protobuf 7." in here.summary
    assert "the tests' harness can be imported" in here.summary


def test_where_the_harness_cannot_be_imported_the_last_line_says_why(machine, tmp_path, monkeypatch):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "grpc.py").write_text("raise ImportError('no grpc here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    here = machine()
    assert here.run("machine") == 1
    assert "ended with 1: ImportError: no grpc here" in here.summary


@pytest.mark.parametrize("trees, said", [
    (WELL, "[ PASSED ] 7 tests."),
    ("echo '[  FAILED  ] All/Trees.Grow/0, where GetParam() = 1'; echo ' 1 FAILED TEST'; exit 1",
     "All/Trees.Grow/0; outrider_gpu_test ended with 1: 1 FAILED TEST"),
    ("echo an illegal address; kill -SEGV $$", "outrider_gpu_test ended with -11: an illegal address"),
    ("echo '[  PASSED  ] 0 tests.'", "no test was run"),
])
def test_each_suite_has_a_process(trees, said, machine):
    here = machine(outrider_gpu_test=GTEST % trees)
    assert here.run("gtest") == (trees != WELL)
    assert "\n Kernels [ PASSED ] 2 tests.\n" in here.summary
    assert f"\n All/Trees {said}\n" in here.summary


def test_a_machine_that_the_tests_find_no_gpu_on_fails_them(machine):
    here = machine(outrider_gpu_test="echo no GPU can be used here\n")
    assert here.run("gtest") == 1 and "no GPU can be used here" in here.summary


SELF_TEST = ("echo title\nfor check in stages logits rows; do echo \"ok      $check\"; done\n"
             "grep -q '\"head_dim\": 64' \"$2/config.json\" || { echo 'FAILED  decisions  a verdict'; exit 1; }\n"
             "echo 'ok      decisions'\n")


def test_the_self_test_is_run_for_llama_and_for_each_kind_of_model(machine):
    here = machine(**{"outrider-target": SELF_TEST})
    assert here.run("self-test") == 1
    assert "llama-3.2-1B-bfloat16 4 checks passed" in here.summary
    assert "llama-3.2-3B-bfloat16 outrider-target ended with 1: FAILED decisions a verdict" in here.summary
    assert "tiny-target-fp8 4 checks passed" in here.summary
    assert "ok      rows" in (here.out / "self-test-llama-3.2-3B-fp8.log").read_text()


SANITIZER = "echo \"$@\"; echo '========= %s'; exit %d\n"


@pytest.mark.parametrize("last, code, outcome, said", [
    ("ERROR SUMMARY: 0 errors", 0, "passed", "ERROR SUMMARY: 0 errors"),
    ("ERROR SUMMARY: 1 error", 1, "FAILED", "compute-sanitizer ended with 1: ========= ERROR SUMMARY: 1 error"),
    ("Device not supported", 1, "left out", "device not supported")])
def test_the_kernels_are_watched_by_the_sanitizer(last, code, outcome, said, machine):
    here = machine()
    script(here.folder / "compute-sanitizer", SANITIZER % (last, code))
    assert here.run("sanitizer") == (outcome == "FAILED")
    assert here.result("sanitizer")["outcome"] == outcome and said in here.summary
    assert "--gtest_filter=LayerKernels.*:DecideKernels.*" in (here.out / "sanitizer.log").read_text()


PRETENDS = """#!/usr/bin/env python3
import json, sys
import numpy as np
random = np.random.default_rng()
for part in (part for step in json.load(sys.stdin) for part in step):
    for _ in range(part["logit_rows"]):
        row = np.arange(4096, dtype="<f4")
        %s
        sys.stdout.buffer.write(row.tobytes())
"""


@pytest.mark.parametrize("row, said", [
    (None, "the same bits"), ("row = random.random(4096, dtype='<f4')", "OTHER BITS"), ("row[:] = 0", "CONSTANT LOGITS, row 0"),
    ("row[7] = np.nan", "LOGITS THAT ARE NOT FINITE, row 0"), ("pass", "THE SAME BITS after another token, row 0")])
def test_rows_of_real_models_are_compared_by_their_bits_if_there_is_something_to_compare(row, said, tmp_path):
    program, file = BIN / "bench_logits", tmp_path / "shapes.json"
    if row is not None:
        program = tmp_path / "bench_logits"
        script(program, "")
        program.write_text((PRETENDS % row).replace("/usr/bin/env python3", sys.executable))
    done = subprocess.run([sys.executable, ROOT / "bench/gpu/real_shapes.py", "--program", program, "--models",
                           ROOT / "models/tiny-draft", "--dtypes", "bfloat16", "--device", "cpu", "--json", file],
                          check=True, capture_output=True, text=True)
    assert done.stdout == f"tiny-draft, bfloat16, alone, together, in chunks: {said}\n"
    found, = json.loads(file.read_text())["invariance"]
    assert found == {"model": "tiny-draft", "dtype": "bfloat16", "rows": 24, "fault": "" if row is None else said}


# --- measurements -----------------------------------------------------------------------------------------------


def writes(report: object) -> str:
    """The script of a program that writes this report to the file given with --json."""
    return ("file=/dev/null; while [ $# -gt 0 ]; do [ $1 = --json ] && file=$2; shift; done\n"
            f"cat >$file <<'END'\n{json.dumps(report)}\nEND\n")


STEPS = """for word; do case $word in --benchmark_out=*) file=${word#*=} ;; esac; done
case $1 in *3B) kv=114688 ;; *) kv=%s ;; esac
echo '{"context": {"weight_bytes": "6400000000", "kv_bytes_per_token": "'$kv'"},
       "benchmarks": [{"name": "rows:1/real_time", "real_time": 2000.0},
                      {"name": "sequences:8/rows:1/real_time", "real_time": 2600.0},
                      {"name": "draft:4/real_time", "real_time": 2000.0}]}' >"$file"
"""
TORCH = """class Tensor:
    def random_(self): return self
    def copy_(self, other): pass
def empty(*shape, **options): return Tensor()
empty_like, uint8 = empty, None
class cuda:
    class Event:
        def __init__(self, enable_timing): pass
        def record(self): pass
        def elapsed_time(self, end): return 10.0
    def set_device(device): pass
    def synchronize(): pass
"""


def test_steps_are_shares_of_the_rate_of_a_copy(machine, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    here = machine(bench_step=STEPS % 32768)
    assert here.run("steps") == 0
    assert "copying within the GPU's memory, read and written 4.29 TB/s" in here.summary
    assert "3B bfloat16, 1 sequences, 1 rows 2.000 ms, 75% of the copy rate (aim: 85%)" in here.summary
    assert "1B bfloat16, 8 sequences, 1 rows 2.600 ms, 58% of the copy rate" in here.summary
    assert "1B fp8, 1 sequences, drafting 4 2.000 ms" in here.summary


def test_without_torch_steps_are_shares_of_nothing(machine, tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "torch.py").write_text("raise ImportError('no torch here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    here = machine(bench_step=STEPS % 32768)
    assert here.run("steps") == 0
    assert "left out, and so are shares of it: " in here.summary and "ImportError: no torch here" in here.summary
    assert "3B bfloat16, 1 sequences, 1 rows 2.000 ms\n" in here.summary


def test_a_wrong_number_of_bytes_for_a_token_fails_the_piece(machine):
    here = machine(bench_step=STEPS % 32769)
    assert here.run("steps") == 1
    assert "1B takes 32769 bytes of KV a token, not 32768" in here.summary


def shape(rate: float) -> dict:
    """A report of bench_shape."""
    return {"plain_tokens_per_second": rate, "c": 0.4, "loads": [{"alpha": 0.8, "streams": 8, "rows": [
        {"mode": "plain", "tokens_per_second": 4000.0, "ratio_to_plain": 1.0},
        {"mode": "policy", "tokens_per_second": 4400.0, "ratio_to_plain": 1.1}]}],
        "alphas": [{"alpha": 0.8, "policy": {"ratio_to_plain": 1.25}, "rows": [
            {"k": k, "ratio_to_plain": ratio, "tokens_per_second": ratio * rate, "expected_ratio": 1.4,
             "overhead_microseconds": 210.0} for k, ratio in ((1, 1.2), (2, 1.3))]}]}


@pytest.mark.parametrize("piece", ["pair", "pair-fp8"])
def test_a_pair_is_summed_up_by_its_best_k(piece, machine):
    here = machine(bench_shape=writes(shape(600)))
    assert here.run(piece) == 0
    assert "alpha 0.8, best K = 2 1.30 x plain (Theorem 3.8: 1.40); policy 1.25; overhead 210 us" in here.summary
    assert "alpha 0.8, 8 streams 4000 tokens/s plain; policy 1.10 x" in here.summary


def test_one_process_is_compared_with_two(machine):
    here = machine(bench_shape=f"case $* in *--one-process*) {writes(shape(900))}\n;; *) {writes(shape(600))}\n;; esac\n")
    assert here.run("one-process") == 0
    assert "plain, one stream 900 tokens/s, 1.50 x that of two processes" in here.summary
    assert "alpha 0.8, one stream, best K 1170 tokens/s, 1.50 x that of two processes" in here.summary
    assert "alpha 0.8, 8 streams, policy 4400 tokens/s, 1.00 x that of two processes" in here.summary


@pytest.mark.parametrize("others, code", [(0, 0), (2, 1)])
def test_real_weights_fail_if_a_greedy_answer_depends_on_k(others, code, machine):
    mode = {"mode": "K = 2", "tokens_per_second": 900.0, "ratio_to_plain": 1.4, "alpha": 0.8}
    report = {"results": [{"temperature": 0.0, "modes": [mode], "other_tokens_than_plain": others},
                          {"temperature": 1.0, "modes": [mode]}]}
    here = machine(bench_pair=writes(report), bench_serve=writes({}))
    model = str(ROOT / "models" / "tiny-target")
    assert here.run("real", "--target", model, "--draft", model) == code
    assert "900 tokens/s, 1.40 x plain; alpha 0.800" in here.summary
