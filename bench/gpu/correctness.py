"""The pieces of bench/gpu/run that check the plug-in's correctness."""

import importlib.metadata
import json
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from piece import Context, Failed, LeftOut, Result, needs, plugin_folders, python_piece

# Python packages and modules that later pieces need.
PACKAGES = ["torch", "transformers", "safetensors", "numpy", "scipy", "pytest", "grpcio", "protobuf", "outrider"]
IMPORTS = "import sys; sys.path[:0] = ['tests/system', 'tests/slow']; import harness, heads, law"
SUITE_SECONDS, SELF_TEST_SECONDS = 60, 30
DRY_SUITES = ["EmulatedProducts", "LayerKernels"]
SANITIZER = "/usr/local/cuda/bin/compute-sanitizer"
# Shapes that the kernels support, one for each kind of model: configurations of the tests, with heads of this size.
SELF_TESTED = {"models/tiny-target": 64, "tests/data/engine/gqa4-llama3-rope": 64, "tests/data/engine/qwen2-bias": 128,
               "tests/data/engine/qwen3-head-norms": 128, "tests/data/engine/mistral-window": 128}
ROPE = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}  # of Llama 3.2
# Prompt lengths on both sides of a split of attention (256), and of a tile of rows.
LENGTHS = [17, 120, 233, 300, 341, 478, 571]


def machine(context: Context) -> Result:
    """Driver and packages, and whether the tests of the whole system can be imported."""
    result = Result(data={"Python": platform.python_version()})
    if not context.dry:
        context.run("nvidia-smi")
        listed = context.run("nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader",
                             f"--id={context.device.removeprefix('cuda:')}")
        result.data["driver, memory"] = listed.strip()
    for package in PACKAGES:
        try:
            result.data[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result.data[package] = "not installed"
    result.rows = list(result.data.items())
    try:
        context.run(sys.executable, "-c", IMPORTS, OUTRIDER_BIN=str(context.programs), PYTHONDONTWRITEBYTECODE="1")
        result.rows.append(("the tests' harness", "can be imported"))
    except Failed as failure:
        result.outcome = "FAILED"
        result.rows.append(("the tests' harness", str(failure)))
    return result


def gtest(context: Context) -> Result:
    """The plug-in's own tests. Each suite has its own process: once a GPU reports an illegal address to a process,
    everything it does there fails."""
    listed = context.run(context.gtest, "--gtest_list_tests")
    suites = [suite for suite in re.findall(r"^(\S+)\.(?: .*)?$", listed, re.M) if not context.dry or suite in DRY_SUITES]
    if not suites:
        raise Failed(listed.strip().splitlines()[-1])
    result = Result()
    commands = {suite: [context.gtest, f"--gtest_filter={suite}.*"] for suite in suites}
    for suite, done in context.beside(commands, SUITE_SECONDS).items():
        passed = re.search(r"^\[  PASSED  \] [1-9].*", done.output, re.M)
        failed = dict.fromkeys(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", done.output, re.M))
        if done.fault or passed is None:
            result.outcome = "FAILED"
            result.rows.append((suite, "; ".join([*failed, done.fault or "no test was run"])))
        else:
            result.rows.append((suite, passed[0]))
    return result


def sanitizer(context: Context) -> Result:
    """Runs the tests of the project's own kernels again; compute-sanitizer is too slow for the others."""
    if context.dry:
        raise LeftOut("a dry run has no kernels to watch")
    program = shutil.which("compute-sanitizer") or SANITIZER
    if not Path(program).is_file():
        raise LeftOut("compute-sanitizer is not installed")
    try:
        output = context.run(program, "--tool", "memcheck", "--target-processes", "all", "--error-exitcode", "1",
                             context.gtest, "--gtest_filter=LayerKernels.*:DecideKernels.*")
    except Failed as failure:
        if "Device not supported" not in context.log.read_text(errors="replace"):
            raise
        raise LeftOut(f"device not supported ({failure})") from failure
    return Result(rows=[("memcheck, LayerKernels and DecideKernels", output.strip().splitlines()[-1].strip("= "))])


def self_tested(context: Context) -> dict[str, dict[str, Any]]:
    """Configurations with Llama 3.2's shapes, and of one model of each kind, by name."""
    def read(model: str) -> dict[str, Any]:
        return json.loads((context.root / model / "config.json").read_text())

    llama = read("tests/data/engine/gqa4-llama3-rope") | {"max_position_embeddings": 131072, "rope_parameters": ROPE}
    found = {f"llama-3.2-{size}": llama | shape for size, shape in context.shapes.items()}
    if context.dry:
        return dict(list(found.items())[:1])
    return found | {Path(model).name: read(model) | {"head_dim": head_dim} for model, head_dim in SELF_TESTED.items()}


def self_test(context: Context) -> Result:
    """Runs --self-test for each kind of model that the kernels support."""
    commands: dict[str, list[str | Path]] = {}
    for name, config in self_tested(context).items():
        folder = context.scratch / "self-test" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        for dtype in context.dtypes:
            commands[f"{name}-{dtype}"] = [context.programs / "outrider-target", "--model", folder, "--device",
                                           context.device, "--dtype", dtype, "--self-test"]
    result = Result(data={})
    for name, done in context.beside(commands, SELF_TEST_SECONDS).items():
        result.data[name] = done.output.splitlines()
        result.rows.append((name, done.fault or f"{done.output.count('ok  ')} checks passed"))
        if done.fault:
            result.outcome = "FAILED"
    return result


def layers(context: Context) -> Result:
    """bench_layers: the first stage that differs from the CPU's kernels, and from libtorch's on the GPU."""
    result = Result()
    model = context.random_pair() / "shape-3B" if context.dry else "models/tiny-target"
    others = ["native:cpu:float32"]
    if any((place / "liboutrider_torch_cuda.so").is_file() for place in plugin_folders(context.programs)):
        others.append(f"torch:{context.device}:bfloat16")
    for other in others:
        for dtype in context.dtypes:
            output = context.program("bench_layers", model, other, f"native:{context.device}:{dtype}")
            result.rows.append((f"{dtype} against {other}", output.strip().splitlines()[-1]))
    return result


def logits(context: Context) -> Result:
    needs(context, "torch", "transformers")
    data = python_piece(context, "compare_logits", "--program", context.programs / "bench_logits", "--device",
                        context.device, "--scratch", context.scratch, *(["--quick"] if context.quick else []))
    rows = [(f"{row['model']}, {row['dtype']}: error over that of {row['against']}", f"{row['ratio']:.2f}")
            for row in data["errors"]]
    rows += [(f"{row['model']}, {row['dtype']}: {row['rows']} rows alone, in a batch, in chunks",
              "the same bits" if row["same"] else "OTHER BITS") for row in data["invariance"]]
    passed = all(row["ratio"] <= row["limit"] for row in data["errors"]) and all(
        row["same"] for row in data["invariance"])
    return Result("passed" if passed else "FAILED", rows, data)


def shapes(context: Context) -> Result:
    """Models of real shapes: rows have the same bits alone, in a batch and in chunks, and other bits for another prompt."""
    pair = context.random_pair()
    lengths = LENGTHS[:2] if context.dry else LENGTHS if context.quick else [*LENGTHS, 1500]
    models = [pair / f"shape-{size}" for size in (["1B"] if context.dry else ["1B", "3B"])]
    data = python_piece(context, "real_shapes", "--program", context.programs / "bench_logits", "--device",
                        context.device, "--models", *models, "--dtypes", *context.dtypes, "--lengths",
                        *map(str, lengths))
    rows = [(f"{row['model']}, {row['dtype']}: {row['rows']} rows alone, in a batch, in chunks",
             row["fault"] or "the same bits") for row in data["invariance"]]
    return Result("FAILED" if any(row["fault"] for row in data["invariance"]) else "passed", rows, data)


# The tests that are run: in full; with --quick, in one dtype and without the loss of caches; and in a dry run.
LAWS = [["tests/slow/test_laws.py"],
        ["tests/slow/test_distribution.py", "-k", "test_sampled_tokens_have_the_targets_distribution and chain"]]
QUICK_LAWS = [[*LAWS[0], "-k", "not cache_was_lost"], LAWS[1]]
DRY_LAWS = [["tests/slow/test_laws.py::test_greedy_one_at_a_time[1-bfloat16]"]]


def laws(context: Context) -> Result:
    """Checks law 1 and law 2 with the system's own tests, both models on the GPU."""
    chosen = DRY_LAWS if context.dry else QUICK_LAWS if context.quick else LAWS
    environment = {"OUTRIDER_DEVICE": context.device, "OUTRIDER_BIN": str(context.programs),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    if context.dry:
        pair = context.random_pair()
        environment |= {"OUTRIDER_TARGET_MODEL": str(pair / "shape-3B"), "OUTRIDER_DRAFT_MODEL": str(pair / "shape-1B"),
                        "OUTRIDER_TEST_PROMPTS": "4"}
    elif not context.quick:
        environment["OUTRIDER_TEST_FULL"] = "1"
    result = Result()
    for file, *selection in chosen:
        try:
            output = context.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", file,
                                 *selection, **environment)
            result.rows.append((file, output.strip().splitlines()[-1].strip("= ")))
        except Failed as failure:
            result.outcome = "FAILED"
            result.rows.append((file, str(failure)))
    return result
