"""The pieces of bench/gpu/run: what each one runs and checks, and its lines of the table."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ALPHAS = [0.6, 0.7, 0.8, 0.9]
# Bytes of keys and values per token in bfloat16: 2 tensors x layers x KV heads x head_dim x 2 bytes.
KV_BYTES = {"3B": 2 * 28 * 8 * 128 * 2, "1B": 2 * 16 * 8 * 64 * 2}
CONTEXT = 256  # of bench_step
# NVIDIA's specifications in bytes per second; the first name that is part of the driver's name counts.
BANDWIDTHS = {"H200": 4.8e12, "H100 NVL": 3.9e12, "H100 PCIe": 2.0e12, "H100": 3.35e12, "A100-SXM4-80GB": 2.039e12,
              "A100": 1.555e12, "L40S": 0.864e12, "L4": 0.3e12, "B200": 8.0e12}
TARGETS = {("3B", "bfloat16"): 0.85, ("1B", "bfloat16"): 0.75}  # shares of the bandwidth, one sequence


class Failed(Exception):
    """A piece that could not be run, or showed something wrong."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


@dataclasses.dataclass
class Result:
    outcome: str = "passed"
    rows: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (label, figure)
    data: Any = None
    seconds: float = 0


@dataclasses.dataclass
class Context:
    root: Path
    programs: Path
    out: Path
    scratch: Path
    gpu: str
    device: str
    target: Path | None
    draft: Path | None
    quick: bool
    deadline: float = 0  # of the current piece
    log: Path = Path()  # of the current piece

    def seconds_left(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    def run(self, *command: str | Path, **environment: str) -> str:
        """Returns the output of a command, which also goes to the log as it is written, and then to stdout. Raises Failed
        with its last line if it fails."""
        words = [str(word) for word in command]
        with self.log.open("a+", errors="replace") as log:
            begin = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(words, cwd=self.root, env=os.environ | environment, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                process.wait(timeout=self.seconds_left())
            except subprocess.TimeoutExpired:
                # The services that it started, too.
                os.killpg(process.pid, 9)
                process.wait()
                raise
            finally:
                log.seek(begin)
                output = log.read()
                print(output, end="", flush=True)
        if process.returncode != 0:
            lines = output.strip().splitlines() or ["no output"]
            raise Failed(f"{Path(words[0]).name} ended with {process.returncode}: {lines[-1]}")
        return output

    def program(self, name: str, *arguments: str | Path) -> str:
        return self.run(self.programs / name, *arguments)

    def pair(self) -> Path:
        """Generated weights of Llama 3.2's shapes, written once."""
        folder, written = self.scratch / "pair", self.scratch / "pair-is-written"
        if not written.exists():
            self.program("bench_shape", "--pair", folder, "--write-only", "--alpha", *map(str, ALPHAS))
            written.touch()
        return folder


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[list[int]]:
    """Samples the GPU's memory use meanwhile. At the end, the only element of the list is the peak in MiB."""
    peak, ended = [0], threading.Event()
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
               f"--id={device.removeprefix('cuda:')}"]

    def watch() -> None:
        while not ended.wait(0.25):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip().isdigit():
                peak[0] = max(peak[0], int(done.stdout))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def python_piece(context: Context, script: str, *arguments: str | Path) -> Any:
    """Runs a script beside this file in a process of its own and returns its JSON."""
    file = context.out / f"{script}.data.json"
    file.unlink(missing_ok=True)
    context.run(sys.executable, Path(__file__).with_name(f"{script}.py"), *arguments, "--json", file,
                PYTHONDONTWRITEBYTECODE="1")
    return json.loads(file.read_text())


# Shapes that the kernels have, one of each kind of model: configurations of the tests, with heads of this size.
SELF_TESTED = {"models/tiny-target": 64, "tests/data/engine/gqa4-llama3-rope": 64, "tests/data/engine/qwen2-bias": 128,
               "tests/data/engine/qwen3-head-norms": 128, "tests/data/engine/mistral-window": 128}
SANITIZER = "/usr/local/cuda/bin/compute-sanitizer"


def gtest(context: Context) -> Result:
    """The plug-in's own tests, and once more under compute-sanitizer where there is one that works."""
    program = context.programs / "outrider_gpu_test"
    output = context.run(program)
    passed = re.search(r"\[  PASSED  \].*", output)
    if passed is None:
        raise Failed(output.strip().splitlines()[-1])
    result = Result(rows=[("outrider_gpu_test", passed[0])])
    sanitizer = shutil.which("compute-sanitizer") or SANITIZER
    if not Path(sanitizer).is_file():
        result.rows.append(("compute-sanitizer", "left out: not installed"))
        return result
    try:
        # Without the products, which need most of the memory and are cuBLASLt's.
        output = context.run(sanitizer, "--target-processes", "all", "--error-exitcode", "1", program,
                             "--gtest_filter=-*MatmulTest*")
        result.rows.append(("compute-sanitizer", output.strip().splitlines()[-1].strip("= ")))
    except Failed as failure:
        if "Device not supported" not in context.log.read_text(errors="replace"):
            raise
        result.rows.append(("compute-sanitizer", f"left out: device not supported ({failure.what})"))
    return result


def self_test(context: Context) -> Result:
    """--self-test for each kind of model that the kernels have."""
    result = Result(data=[])
    for model, head_dim in SELF_TESTED.items():
        folder = context.scratch / "self-test" / Path(model).name
        folder.mkdir(parents=True, exist_ok=True)
        config = json.loads((context.root / model / "config.json").read_text()) | {"head_dim": head_dim}
        (folder / "config.json").write_text(json.dumps(config))
        for dtype in ("bfloat16", "fp8"):
            output = context.program("outrider-target", "--model", folder, "--device", context.device, "--dtype", dtype,
                                     "--self-test")
            result.data.append({"model": model, "dtype": dtype, "lines": output.splitlines()})
            result.rows.append((f"{folder.name}, heads of {head_dim}, {dtype}", f"{output.count('ok  ')} checks passed"))
    return result


def layers(context: Context) -> Result:
    """bench_layers: the first stage that differs from the CPU's kernels, and from libtorch's on the GPU."""
    result = Result()
    others = ["native:cpu:float32"]
    if any((place / "liboutrider_torch_cuda.so").is_file() for place in plugin_folders(context.programs)):
        others.append(f"torch:{context.device}:bfloat16")
    for other in others:
        for dtype in ("bfloat16", "fp8"):
            output = context.program("bench_layers", "models/tiny-target", other, f"native:{context.device}:{dtype}")
            result.rows.append((f"{dtype} against {other}", output.strip().splitlines()[-1]))
    return result


def plugin_folders(programs: Path) -> list[Path]:
    """In a pack, the scripts that start the programs are in another folder."""
    return [programs, programs.parent / "programs"]


def shapes(context: Context) -> Result:
    """Rows of models of real shapes have the same bits alone, in a batch and in chunks."""
    pair = context.pair()
    data = python_piece(context, "real_shapes", "--program", context.programs / "bench_logits", "--device",
                        context.device, "--models", pair / "shape-1B", pair / "shape-3B",
                        *(["--quick"] if context.quick else []))
    rows = [(f"{row['model']}, {row['dtype']}: {row['rows']} rows alone, in a batch, in chunks",
             "the same bits" if row["same"] else "OTHER BITS") for row in data["invariance"]]
    return Result("passed" if all(row["same"] for row in data["invariance"]) else "FAILED", rows, data)


def logits(context: Context) -> Result:
    data = python_piece(context, "compare_logits", "--program", context.programs / "bench_logits", "--device",
                        context.device, "--scratch", context.scratch, *(["--quick"] if context.quick else []))
    rows = [(f"{row['model']}, {row['dtype']}: error over that of {row['against']}", f"{row['ratio']:.2f}")
            for row in data["errors"]]
    rows += [(f"{row['model']}, {row['dtype']}: {row['rows']} rows alone, in a batch, in chunks",
              "the same bits" if row["same"] else "OTHER BITS") for row in data["invariance"]]
    passed = all(row["ratio"] <= row["limit"] for row in data["errors"]) and all(
        row["same"] for row in data["invariance"])
    return Result("passed" if passed else "FAILED", rows, data)


def laws(context: Context) -> Result:
    """Checks law 1 and law 2 with the system's own tests, both models on the GPU."""
    chosen = {"tests/slow/test_laws.py": "not cache_was_lost" if context.quick else "",
              "tests/slow/test_distribution.py": "test_sampled_tokens_have_the_targets_distribution and chain"}
    result = Result(data=[])
    for file, expression in chosen.items():
        selection = ["-k", expression] if expression else []
        output = context.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", file,
                             *selection, OUTRIDER_DEVICE=context.device, OUTRIDER_BIN=str(context.programs),
                             OUTRIDER_TEST_FULL="1", PYTHONDONTWRITEBYTECODE="1")
        closing = output.strip().splitlines()[-1].strip("= ")
        result.rows.append((file, closing))
        result.data.append({"file": file, "outcome": closing})
    return result


def bandwidth(gpu: str) -> float | None:
    return next((value for name, value in BANDWIDTHS.items() if all(word in gpu for word in name.split())), None)


def steps(context: Context) -> Result:
    """Measures forward passes, and the share of the memory bandwidth that reading weights, keys and values reaches."""
    pair, limit, result = context.pair(), bandwidth(context.gpu), Result(data=[])
    for model in ("3B", "1B"):
        for dtype in ("bfloat16", "fp8"):
            file = context.scratch / "step.json"
            with peak_memory(context.device) as peak:
                context.program("bench_step", pair / f"shape-{model}", dtype, "0", f"--device={context.device}",
                                f"--benchmark_min_time={0.05 if context.quick else 0.2}", f"--benchmark_out={file}",
                                "--benchmark_out_format=json")
            report = json.loads(file.read_text())
            weights = int(report["context"]["weight_bytes"])
            kv = int(report["context"]["kv_bytes_per_token"])
            if kv != KV_BYTES[model]:
                raise Failed(f"{model} takes {kv} bytes of KV a token, not {KV_BYTES[model]}")
            figures, drafts = [], []
            for row in report["benchmarks"]:
                found = re.match(r"(?:sequences:(\d+)/)?(rows|draft):(\d+)", row["name"])
                sequences, rows = int(found[1] or 1), int(found[3])
                if found[2] == "draft":
                    drafts.append({"sequences": sequences, "k": rows, "microseconds": row["real_time"]})
                    continue
                bytes_read = weights + kv * (CONTEXT + rows) * sequences
                figures.append({"sequences": sequences, "rows": rows, "microseconds": row["real_time"],
                                "share": bytes_read / limit / row["real_time"] * 1e6 if limit else None})
            result.data.append({"model": model, "dtype": dtype, "weight_bytes": weights, "kv_bytes_per_token": kv,
                                "peak_mib": peak[0], "steps": figures, "drafts": drafts})
            for figure in figures:
                if (figure["sequences"], figure["rows"]) in ((1, 1), (1, 5), (8, 1), (64, 1)):
                    shown = f"{figure['microseconds'] / 1e3:.3f} ms"
                    if limit:
                        shown += f", {figure['share']:.0%} of the bandwidth"
                    aim = TARGETS.get((model, dtype))
                    if aim and (figure["sequences"], figure["rows"]) == (1, 1):
                        shown += f" (aim: {aim:.0%})"
                    what = f"{model} {dtype}, {figure['sequences']} sequences, {figure['rows']} rows"
                    result.rows.append((what, shown))
            result.rows += [(f"{model} {dtype}, {draft['sequences']} sequences, drafting {draft['k']}",
                             f"{draft['microseconds'] / 1e3:.3f} ms")
                            for draft in drafts if model == "1B" and draft["k"] == 4]
    return result


def pair(context: Context, draft_dtype: str) -> Result:
    file = context.scratch / "shape.json"
    streams = ["--streams", "8", "32", "--slice", "0.5" if context.quick else "1"]
    with peak_memory(context.device) as peak:
        context.program("bench_shape", "--pair", context.pair(), "--alpha", *map(str, ALPHAS), "--device",
                        context.device, "--dtype", "bfloat16", "--draft-dtype", draft_dtype, "--max-k", "6",
                        "--max-tokens", "96" if context.quick else "192", *streams, "--json", file)
    report = json.loads(file.read_text())
    result = Result(data=report | {"peak_mib": peak[0]})
    plain_rate = report["plain_tokens_per_second"]
    result.rows.append(("plain, one stream", f"{plain_rate:.0f} tokens/s; c = {report['c']:.3f}"))
    for world in report["alphas"]:
        best = max(world["rows"], key=lambda row: row["ratio_to_plain"])
        result.rows.append((f"alpha {world['alpha']:.1f}, best K = {best['k']}",
                            f"{best['ratio_to_plain']:.2f} x plain (Theorem 3.8: {best['expected_ratio']:.2f}); "
                            f"policy {world['policy']['ratio_to_plain']:.2f}; "
                            f"overhead {best['overhead_microseconds']:.0f} us"))
    for load in report["loads"]:
        plain, policy = load["rows"][0], load["rows"][-1]
        result.rows.append((f"alpha {load['alpha']:.1f}, {load['streams']} streams",
                            f"{plain['tokens_per_second']:.0f} tokens/s plain; "
                            f"policy {policy['ratio_to_plain']:.2f} x"))
    result.rows.append(("most memory in use", f"{peak[0]} MiB"))
    return result


def pair_bfloat16(context: Context) -> Result:
    return pair(context, "bfloat16")


def pair_fp8(context: Context) -> Result:
    return pair(context, "fp8")


def others(context: Context) -> Result:
    """The same pair in transformers, and in a minimal loop of torch."""
    folder = context.pair()
    data = python_piece(context, "other_systems", "--pair", folder, "--device", context.device,
                        "--alphas", *map(str, ALPHAS), "--tokens", "48" if context.quick else "128",
                        "--seconds", f"{context.seconds_left() - 5:.0f}")
    own = context.out / "pair.json"
    ours = {}
    if own.is_file() and (report := json.loads(own.read_text())["data"]):
        ours = {world["alpha"]: max(row["tokens_per_second"] for row in world["rows"]) for world in report["alphas"]}
    result = Result(data=data)
    for row in data["rows"]:
        figure = f"{row['tokens_per_second']:.0f} tokens/s"
        if row.get("alpha") in ours:
            figure += f"; Outrider's best K: {ours[row['alpha']] / row['tokens_per_second']:.2f} x"
        result.rows.append((f"{row['system']}, {row['mode']}", figure))
    for row in data["left_out"]:
        result.rows.append((f"{row['system']}, {row['mode']}", f"left out: {row['reason']}"))
    return result


def real(context: Context) -> Result:
    """Real weights: greedy parity, sampling, acceptance; one stream and several."""
    single, many = context.scratch / "real.json", context.scratch / "real-streams.json"
    models = ["--target-model", context.target, "--draft-model", context.draft, "--device", context.device,
              "--dtype", "bfloat16"]
    with peak_memory(context.device) as peak:
        context.program("bench_pair", *models, "--max-tokens", "64", "--max-k", "2" if context.quick else "5",
                        "--repeats", "1", "--json", single)
        context.program("bench_serve", *models, "--streams", "8", "--streams", "32", "--temperature", "1", "--turns",
                        "1", "--slice", "1.5", "--json", many)
    report, served = json.loads(single.read_text()), json.loads(many.read_text())
    result = Result(data={"one_stream": report, "streams": served, "peak_mib": peak[0]})
    for run in report["results"]:
        best = max(run["modes"], key=lambda mode: mode["ratio_to_plain"])
        result.rows.append((f"temperature {run['temperature']:g}, {best['mode']}",
                            f"{best['tokens_per_second']:.0f} tokens/s, {best['ratio_to_plain']:.2f} x plain; alpha "
                            f"{best['alpha']:.3f}"))
        others_tokens = run.get("other_tokens_than_plain", 0)
        if others_tokens:
            result.outcome = "FAILED"
            result.rows.append(("greedy answers with other tokens than plain decoding", str(others_tokens)))
    result.rows.append(("most memory in use", f"{peak[0]} MiB"))
    return result
