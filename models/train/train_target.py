"""Trains the target on the prepared corpus and writes it as a Hugging Face folder."""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common import BOS, HERE, TARGET, Llama, save
from parallel import MicroLoss, Plan, train


@torch.compile(dynamic=False)
def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels)


class Windows:
    """Cuts the stream into windows, in a new order and from a new offset every time it is used up."""

    def __init__(self, stream: np.ndarray, seed: int) -> None:
        self.stream, self.seed = torch.from_numpy(stream.astype(np.int64)), seed

    def rows(self, length: int, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Windows first, first + 1, ... of the endless sequence: inputs beginning with BOS, and labels."""
        per_pass = len(self.stream) // length - 1
        inputs = torch.full((count, length), BOS)
        labels = torch.empty(count, length, dtype=torch.int64)
        for row, n in enumerate(range(first, first + count)):
            rng = np.random.default_rng((self.seed, length, n // per_pass))
            offset = int(rng.integers(length))
            begin = offset + int(rng.permutation(per_pass)[n % per_pass]) * length
            labels[row] = self.stream[begin:begin + length]
            inputs[row, 1:] = labels[row, :-1]
        return inputs, labels


def make_loss(stream: Path, micro_tokens: int) -> MicroLoss:
    windows = Windows(np.load(stream), seed=7)

    def loss(model: Llama, length: int, step: int, index: int, count: int, progress: float) -> Tensor:
        rows = max(micro_tokens // length, 1)
        inputs, labels = windows.rows(length, (step * count + index) * rows, rows)
        return cross_entropy(model.logits(model(inputs)).flatten(0, 1), labels.flatten())

    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--out", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--tokens", type=int, default=13_000_000)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--init", type=Path, help="continue from this checkpoint (target.pt) with a new schedule")
    args = parser.parse_args()
    torch.manual_seed(1)
    model = Llama(TARGET, dropout=0.1)
    if args.init:
        model.load_state_dict(torch.load(args.init))
    plan = Plan(tokens=args.tokens, minutes=args.minutes, step_tokens=8192, micro_tokens=2048,
                muon_lr=0.02, adam_lr=0.003, weight_decay=0.1,
                lengths=[(0.8, 256), (0.92, 512), (1, 1024)])
    train(model, plan, args.processes, make_loss, (args.work / "train.npy", plan.micro_tokens),
          args.work / "target.log", args.work / "target.pt")
    save(model, args.out, args.work / "tokenizer.json")


if __name__ == "__main__":
    main()
