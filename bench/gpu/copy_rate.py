"""Measures how fast a GPU copies within its own memory, the most that reading weights can reach.

    python bench/gpu/copy_rate.py [--device cuda:0] [--json FILE]

The rate counts the bytes that are read and those that are written.
"""

import argparse
import json
from pathlib import Path

import torch

BYTES = 2 << 30  # far more than any cache
COPIES, ROUNDS = 10, 5


def copy_rate(device: str) -> float:
    """Bytes per second in the fastest round."""
    torch.cuda.set_device(device)
    source = torch.empty(BYTES, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    target.copy_(source)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    seconds = []
    for _ in range(ROUNDS):
        begin.record()
        for _ in range(COPIES):
            target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return 2 * BYTES * COPIES / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    rate = copy_rate(options.device)
    print(f"{options.device} copies at {rate / 1e12:.2f} TB/s, read and written")
    if options.json is not None:
        options.json.write_text(json.dumps({"bytes_per_second": rate}) + "\n")


if __name__ == "__main__":
    main()
