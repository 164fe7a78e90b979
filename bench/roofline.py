#!/usr/bin/env python3
"""Prints how near forward passes of 1 to 256 rows come to the bandwidth of the memory, as Markdown.

    .venv/bin/python bench/roofline.py MODEL [--dtype DTYPE] [--json FILE]

bench_step times the passes. Each reads all weights once and does two operations a weight and row; keys, values and attention are left
out. The bandwidth is that of copying arrays that no cache holds, one for each processor, reading and writing counted.
"""

import argparse
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ROWS = (1, 5, 9, 64, 256)
ARRAY, COPIES = 1 << 28, 5  # bytes of an array, and how often it is copied


def copy_bandwidth() -> float:
    """Bytes per second, the best of several copies by all processors at once."""
    count = len(os.sched_getaffinity(0))
    pairs = [(np.ones(ARRAY, np.uint8), np.zeros(ARRAY, np.uint8)) for _ in range(count)]

    def seconds() -> float:
        start = time.perf_counter()
        list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
        return time.perf_counter() - start

    with ThreadPoolExecutor(count) as pool:
        return 2 * ARRAY * count / min(seconds() for _ in range(COPIES))


def step_times(model: str, dtype: str) -> tuple[dict, dict[int, float]]:
    """What is known of the model, and the seconds of a pass by its rows."""
    names = "|".join(f"rows:{rows}/" for rows in ROWS)
    command = [ROOT / "build/release/bin/bench_step", model, dtype, f"--benchmark_filter=^({names})", "--benchmark_format=json"]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    found = json.loads(output[output.index("{"):])
    times = {int(run["name"].split("/")[0].removeprefix("rows:")): run["fastest_us"] / 1e6 for run in found["benchmarks"]}
    return found["context"], times


def table(context: dict, times: dict[int, float], bandwidth: float) -> list[dict]:
    """A row for each number of rows."""
    weight_bytes, parameters = int(context["weight_bytes"]), int(context["parameters"])
    return [{"rows": rows, "ms": 1e3 * seconds, "flop_per_byte": 2 * parameters * rows / weight_bytes,
             "gflops": 2e-9 * parameters * rows / seconds, "gb_per_second": 1e-9 * weight_bytes / seconds,
             "share_of_copy": weight_bytes / seconds / bandwidth} for rows, seconds in times.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or GGUF file")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    bandwidth = copy_bandwidth()
    rows = table(*step_times(args.model, args.dtype), bandwidth)
    print(f"copying: {bandwidth / 1e9:.1f} GB/s\n\n| rows | ms | FLOP/byte | GFLOP/s | weights, GB/s | share of copying |\n|{'---|' * 6}")
    for row in rows:
        print(f"| {row['rows']} | {row['ms']:.2f} | {row['flop_per_byte']:.1f} | {row['gflops']:.0f} | {row['gb_per_second']:.1f} | "
              f"{row['share_of_copy']:.2f} |")
    if args.json:
        args.json.write_text(json.dumps({"copy": bandwidth, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
