"""Has the target write text on which the draft and the heads are trained and judged.

Most of it is sampled at temperature 1. The rest is for temperature 0: pieces of the corpus, each with the target's
greedy continuation. They are short, since greedy text soon repeats itself.

Writes under the work folder, as uint16 [rows, 1024] without the leading BOS:
  samples.npy        to train on, at temperature 1
  greedy.npy         to train on, greedy pieces
  samples-eval.npy   64 other rows, at temperature 1, for evaluation only
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor

from common import BOS, EOS, HERE, MAX_POSITION, TARGET, Llama, load

PROMPT, PIECE = 64, 192  # tokens of the corpus that begin a greedy piece, and of the whole piece


@torch.no_grad()
def write(model: Llama, rows: int, choose: Callable[[int, Tensor], Tensor], length: int = MAX_POSITION) -> Tensor:
    """Writes rows that begin with BOS alone. They continue after an EOS, as the training stream does.

    choose(position, logits [rows, vocabulary]) -> tokens [rows, 1].
    """
    caches = model.new_caches(rows)
    token = torch.full((rows, 1), BOS)
    out = torch.empty(rows, length, dtype=torch.int64)
    for position in range(length):
        logits = model.logits(model(token, caches))[:, -1].float()
        logits[:, BOS] = float("-inf")
        token = choose(position, logits)
        out[:, position] = token[:, 0]
    return out


def sample(model: Llama, rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)

    def choose(_: int, logits: Tensor) -> Tensor:
        sums = torch.softmax(logits, -1).cumsum(-1)
        at = torch.rand(rows, 1, generator=generator) * sums[:, -1:]
        return torch.searchsorted(sums, at, right=True).clamp_(max=EOS)

    return write(model, rows, choose)


def continue_greedily(model: Llama, texts: Tensor) -> Tensor:
    """After each piece's prompt, the target's tokens replace those of the text. texts: [rows, MAX_POSITION]."""

    def choose(position: int, logits: Tensor) -> Tensor:
        return texts[:, position, None] if position % PIECE < PROMPT else logits.argmax(-1, keepdim=True)

    return write(model, len(texts), choose)


def _work(rank: int, target: Path, corpus: Path, out: Tensor, greedy: Tensor) -> None:
    torch.set_num_threads(1)
    model = load(target, TARGET)
    for parameter in model.parameters():
        parameter.data = parameter.to(torch.bfloat16)
    out[rank] = sample(model, out.shape[1], 100 + rank)
    stream = torch.from_numpy(np.load(corpus).astype(np.int64))
    begins = torch.randint(len(stream) - MAX_POSITION, (greedy.shape[1],),
                           generator=torch.Generator().manual_seed(200 + rank))
    greedy[rank] = continue_greedily(model, torch.stack([stream[b:b + MAX_POSITION] for b in begins.tolist()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--target", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--rows", type=int, default=1600, help="rows of 1024 tokens at temperature 1; 64 of them are for evaluation")
    parser.add_argument("--greedy-rows", type=int, default=768, help="rows of 1024 tokens of greedy pieces")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    start = time.time()
    out, greedy = (torch.empty(args.processes, rows // args.processes, MAX_POSITION, dtype=torch.int64).share_memory_()
                   for rows in (args.rows, args.greedy_rows))
    mp.spawn(_work, (args.target, args.work / "train.npy", out, greedy), nprocs=args.processes)
    tokens, pieces = (rows.flatten(0, 1).numpy().astype(np.uint16) for rows in (out, greedy))
    np.save(args.work / "samples.npy", tokens[64:])
    np.save(args.work / "greedy.npy", pieces)
    np.save(args.work / "samples-eval.npy", tokens[:64])
    print(f"{tokens.size + pieces.size} tokens in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
