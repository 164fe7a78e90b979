"""Samples text from the target at temperature 1, which the draft learns from and is judged on.

Writes under the work folder, as uint16 [rows, 1024] without the leading BOS:
  samples.npy        to train on
  samples-eval.npy   64 other rows, for evaluate.py only
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp

from common import BOS, EOS, HERE, MAX_POSITION, TARGET, Llama, load


@torch.no_grad()
def sample(model: Llama, rows: int, seed: int) -> torch.Tensor:
    """Rows begin with BOS alone. After an EOS they go on, as the training stream does."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = parameter.to(torch.bfloat16)
    caches = model.new_caches(rows)
    token = torch.full((rows, 1), BOS)
    out = torch.empty(rows, MAX_POSITION, dtype=torch.int64)
    for position in range(MAX_POSITION):
        logits = model.logits(model(token, caches))[:, -1].float()
        logits[:, BOS] = float("-inf")
        sums = torch.softmax(logits, -1).cumsum(-1)
        at = torch.rand(rows, 1, generator=generator) * sums[:, -1:]
        token = torch.searchsorted(sums, at, right=True).clamp_(max=EOS)
        out[:, position] = token[:, 0]
    return out


def _work(rank: int, target: Path, rows: int, seeds: list[int], out: torch.Tensor) -> None:
    torch.set_num_threads(1)
    out[rank] = sample(load(target, TARGET), rows, seeds[rank])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--target", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--rows", type=int, default=576, help="of 1024 tokens each; 64 of them are for evaluation")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    start = time.time()
    rows = args.rows // args.processes
    out = torch.empty(args.processes, rows, MAX_POSITION, dtype=torch.int64).share_memory_()
    mp.spawn(_work, (args.target, rows, [100 + i for i in range(args.processes)], out), nprocs=args.processes)
    tokens = out.flatten(0, 1).numpy().astype(np.uint16)
    np.save(args.work / "samples.npy", tokens[64:])
    np.save(args.work / "samples-eval.npy", tokens[:64])
    print(f"{tokens.size} tokens in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
