"""The measurements of compare.py --gguf: one GGUF file here and in llama.cpp, with the same threads, in turns."""

import argparse
import json
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy
from compare_systems import PROGRAMS, LlamaTools, Unavailable, leave_out, run

PROMPT = "In the beginning"
READ_BYTES = 256 << 20  # for each thread
DECODE, PREFILL, START = "decoding, tokens/s", "prompts, tokens/s", "start to first token, s"


def read_rate(threads: int) -> float:
    """Bytes per second that all threads read together, the best of five."""
    arrays = [numpy.ones(READ_BYTES // 8, numpy.uint64) for _ in range(threads)]
    seconds = []
    for _ in range(5):
        readers = [threading.Thread(target=array.sum) for array in arrays]
        start = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        seconds.append(time.perf_counter() - start)
    return threads * READ_BYTES / min(seconds)


def ours(file: Path, options: argparse.Namespace) -> dict[str, float]:
    def generate(tokens: int) -> dict:
        said = subprocess.run(
            [PROGRAMS / "outrider", "generate", "--model", file, "--draft-model", "none", "--drafter", "none", "--threads",
             str(options.threads), "--temperature", "0", "--ignore-eos", "--max-tokens", str(tokens), "--json", PROMPT],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return json.loads(said.stdout)["usage"]

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "step.json"
        run([PROGRAMS / "bench_step", file, "auto", str(options.threads), "--benchmark_filter=^rows:(1|5|9|256)/",
             f"--benchmark_out={out}", "--benchmark_out_format=json"])
        report = json.loads(out.read_text())
    step = {int(re.match(r"rows:(\d+)/", row["name"])[1]): row["real_time"] / 1e6 for row in report["benchmarks"]}
    start = time.perf_counter()
    generate(1)
    first = time.perf_counter() - start
    usage = generate(options.max_tokens)
    return {DECODE: (options.max_tokens - 1) / usage["decode_seconds"], PREFILL: 256 / step[256], START: first,
            "a step, ms": 1e3 * step[1], "5 rows / 1 row": step[5] / step[1], "9 rows / 1 row": step[9] / step[1],
            "bytes/s of a step": float(report["context"]["weight_bytes"]) / step[1]}


def theirs(file: Path, tools: LlamaTools, options: argparse.Namespace) -> dict[str, float]:
    def bench(*shape: str) -> float:
        said = run([tools.tools / "llama-bench", "-m", file, *shape, "-t", str(options.threads), "-r", "3", "-o", "json"])
        return json.loads(re.search(r"^\[.*^\]", said, re.M | re.S)[0])[0]["avg_ts"]

    measured = {}
    # Prompts are the second half of 512 tokens, as in bench_step.
    for what, shape in ((DECODE, ("-p", "0", "-n", str(options.max_tokens))), (PREFILL, ("-p", "256", "-n", "0", "-d", "256"))):
        try:
            measured[what] = bench(*shape)
        except Unavailable as reason:  # built for this processor, some programs crash on some virtual machines
            leave_out(f"llama.cpp, {what}", reason)
    return measured


def main(options: argparse.Namespace) -> dict:
    tools = LlamaTools()
    report = {}
    for file in options.gguf:
        turns: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(options.turns):
            turns["read rate, bytes/s", "machine"].append(read_rate(options.threads))
            for system, measured in (("outrider", ours(file, options)), ("llama.cpp", theirs(file, tools, options))):
                for what, value in measured.items():
                    turns[what, system].append(value)
        median = {key: statistics.median(values) for key, values in turns.items() if len(values) == options.turns}
        for what in (DECODE, PREFILL):
            if len(turns[what, "llama.cpp"]) == options.turns:
                ratios = [a / b for a, b in zip(turns[what, "outrider"], turns[what, "llama.cpp"], strict=True)]
                median[what, "ratio"] = statistics.median(ratios)
        median["bytes/s of a step", "read rate"] = (median["bytes/s of a step", "outrider"]
                                                    / median["read rate, bytes/s", "machine"])
        print(f"\n{file.name}")
        for (what, system), value in median.items():
            print(f"  {what:24}{system:12}{value:14.6g}", flush=True)
        report[file.name] = [{"what": what, "system": system, "value": value} for (what, system), value in median.items()]
    return report
