"""The parts of the GPU's build and benchmark that can be tested without a GPU: the plug-in, arguments, and the pack."""

import ctypes
import json
import os
import re
import subprocess
import sys
import tarfile
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
     "unknown piece 'magic'; there are: gtest, self-test, layers, logits, shapes, laws, steps, pair, pair-fp8, others, real"),
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
    for name in ("outrider", "outrider-coordinator", "outrider-draft", "outrider-target", "outrider_gpu_test",
                 "bench_layers", "bench_logits", "bench_pair", "bench_serve", "bench_shape", "bench_step",
                 "liboutrider_cuda.so"):
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


NOISE = "#!/bin/sh\ncat >/dev/null; head -c $((56 * 4096 * 4)) /dev/urandom\n"  # 56 rows of logits


@pytest.mark.parametrize("noise, bits", [(False, "the same"), (True, "OTHER")])
def test_rows_of_real_models_are_compared_by_their_bits(noise, bits, tmp_path):
    program, file = BIN / "bench_logits", tmp_path / "shapes.json"
    if noise:
        program = tmp_path / "bench_logits"
        program.write_text(NOISE)
        program.chmod(0o755)
    said = output(sys.executable, ROOT / "bench" / "gpu" / "real_shapes.py", "--program", program, "--models",
                  ROOT / "models" / "tiny-draft", "--dtypes", "bfloat16", "--device", "cpu", "--quick", "--json", file)
    assert said == f"tiny-draft, bfloat16: {bits} bits alone, together, in chunks\n"
    row, = json.loads(file.read_text())["invariance"]
    assert row == {"model": "tiny-draft", "dtype": "bfloat16", "rows": 56, "same": not noise}


GTEST = "echo '[  PASSED  ] 90 tests.'\n"
SELF_TEST = ("echo title\nfor check in stages logits rows; do echo \"ok      $check\"; done\n"
             "grep -q '\"head_dim\": 64' \"$2/config.json\" || { echo 'FAILED  decisions  a verdict'; exit 1; }\n"
             "echo 'ok      decisions'\n")


def test_pieces_that_passed_are_not_run_again_and_those_that_failed_are(tmp_path, monkeypatch):
    folder = programs(tmp_path, **{"outrider_gpu_test": f"date +%N >>{tmp_path}/ran\n{GTEST}", "outrider-target": SELF_TEST})
    monkeypatch.setenv("OUTRIDER_BIN", str(folder))
    out = tmp_path / "out"

    def times_run(*flags: str) -> int:
        code, error = run("--pieces", "gtest,self-test", "--out", str(out), *flags, path=fake_gpu(tmp_path))
        assert (code, error) == (1, "")
        return len((tmp_path / "ran").read_text().splitlines())

    assert times_run() == 1
    summary = (out / "summary.txt").read_text()
    assert "[  PASSED  ] 90 tests." in summary
    assert "outrider-target ended with 1: FAILED  decisions  a verdict" in summary
    assert "ok      rows" in (out / "self-test.log").read_text()
    assert times_run() == 1
    assert times_run("--again") == 2
    assert times_run("--quick") == 3  # other figures
    (folder / "liboutrider_cuda.so").write_text("another build")
    assert times_run() == 4
    with tarfile.open(tmp_path / "out.tar.xz") as archive:
        assert {"out/gtest.json", "out/gtest.log", "out/self-test.json", "out/summary.txt"} <= set(archive.getnames())


def test_what_might_not_end_in_time_is_left_for_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_BIN", str(programs(tmp_path, outrider_gpu_test=GTEST, bench_layers="echo alike\n")))
    flags = ("--pieces", "gtest,layers", "--out", str(tmp_path / "out"), "--within", "59")
    assert run(*flags, path=fake_gpu(tmp_path)) == (1, "")
    assert [file.name for file in (tmp_path / "out").glob("*.json")] == ["gtest.json"]
    assert run(*flags, path=fake_gpu(tmp_path)) == (0, "")
    assert "bfloat16 against native:cpu:float32" in (tmp_path / "out" / "summary.txt").read_text()


def test_a_machine_that_the_tests_find_no_gpu_on_fails_them(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_BIN", str(programs(tmp_path, outrider_gpu_test="echo no GPU can be used here\n")))
    code, _ = run("--pieces", "gtest", "--out", str(tmp_path / "out"), path=fake_gpu(tmp_path))
    assert code == 1 and "no GPU can be used here" in (tmp_path / "out" / "summary.txt").read_text()


def test_no_piece_takes_longer_than_a_call_may():
    limits = re.findall(r"^ {4}\"[a-z0-9-]+\": \((\d+), pieces", RUN.read_text(), re.M)
    assert len(limits) == 11 and max(map(int, limits)) <= 480


PACKED = [BIN / name for name in ("outrider-target", "outrider_gpu_test", "bench_shape", "liboutrider_cuda.so")]


@pytest.mark.skipif(not all(file.is_file() for file in PACKED), reason="the plug-in or its tests are not built")
def test_a_pack_has_what_its_programs_link_to(tmp_path):
    pack = tmp_path / "pack"
    said = subprocess.run([ROOT / "bench" / "gpu" / "pack", pack], check=True, capture_output=True, text=True,
                          env=os.environ | {"OUTRIDER_BIN": str(BIN)}).stdout
    assert re.match(rf"pack: \S+ in {pack}, \S+ in {pack}\.tar\.xz$", said)
    assert (tmp_path / "pack.tar.xz").stat().st_size < 32 << 20
    system = re.compile(r"(libc|libm|libdl|librt|libpthread|libutil|libstdc\+\+|libgcc_s|ld-linux-x86-64|ld-linux-aarch64)\.so")
    wheels = re.compile(r"lib(cudart|cublasLt|nccl|torch|c10)")
    for file in [*(pack / "programs").iterdir(), *(pack / "lib").iterdir()]:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", file)):
            assert (pack / "lib" / name).is_file() or system.match(name) or wheels.match(name), (file.name, name)
    assert (pack / "site" / "google" / "rpc" / "error_details_pb2.py").is_file()
