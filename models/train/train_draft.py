"""Distils the draft from the target, on the corpus and on the target's own samples.

The first part of the run minimises the forward KL divergence, which works from any starting point.
The rest minimises the total variation distance, as 1 - TV is exactly the rate at which speculative sampling
accepts the draft's tokens (Leviathan et al., 2023, corollary 3.6).
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from common import BOS, DRAFT, HERE, TARGET, Llama, load, save
from parallel import MicroLoss, Plan, train


@torch.compile(dynamic=False)
def forward_kl(draft: Tensor, target: Tensor) -> Tensor:
    """The forward KL divergence plus the target's entropy, which is constant."""
    return -(torch.softmax(target.float(), -1) * torch.log_softmax(draft.float(), -1)).sum(-1).mean()


@torch.compile(dynamic=False)
def total_variation(draft: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (torch.softmax(target.float(), -1) - torch.softmax(draft.float(), -1)).abs().sum(-1).mean()


class Lessons:
    """Windows of one length, with the outputs of the target's final norm.

    The target is most of the work, so each window's hidden states are computed once, when first
    needed, and kept in memory shared by all processes: 768 bytes a token, against 8 KB for the logits.
    """

    def __init__(self, stream: Tensor, length: int) -> None:
        self.length, self.windows = length, stream[:len(stream) // length * length].view(-1, length)
        self.hidden = torch.empty(*self.windows.shape, TARGET.hidden, dtype=torch.bfloat16).share_memory_()
        self.known = torch.zeros(len(self.windows), dtype=torch.bool).share_memory_()

    @torch.no_grad()
    def rows(self, target: Llama, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Rows first, first + 1, ... of an endless sequence of passes, each in its own order."""
        picks = []
        for n in range(first, first + count):
            order = np.random.default_rng((11, self.length, n // len(self.windows))).permutation(len(self.windows))
            picks.append(int(order[n % len(self.windows)]))
        inputs = torch.full((count, self.length), BOS)
        inputs[:, 1:] = self.windows[picks, :-1]
        if not self.known[picks].all():
            self.hidden[picks] = target(inputs)
            self.known[picks] = True
        return inputs, self.hidden[picks]


def make_loss(target_folder: Path, lessons: dict[int, Lessons], micro_tokens: int, kl_until: float) -> MicroLoss:
    target = load(target_folder, TARGET)
    head = target.model.embed_tokens.weight.detach().to(torch.bfloat16)

    def loss(model: Llama, length: int, step: int, index: int, count: int, progress: float) -> Tensor:
        rows = max(micro_tokens // length, 1)
        inputs, hidden = lessons[length].rows(target, (step * count + index) * rows, rows)
        distance = forward_kl if progress < kl_until else total_variation
        return distance(model.logits(model(inputs)).flatten(0, 1), F.linear(hidden, head).flatten(0, 1))

    return loss


def embedding_from(target: Llama) -> Tensor:
    """The target's embedding in the coordinates of its principal components."""
    embedding = target.model.embed_tokens.weight.detach()
    return embedding @ torch.linalg.eigh(embedding.T @ embedding).eigenvectors[:, -DRAFT.hidden:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--target", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--out", type=Path, default=HERE.parent / "tiny-draft")
    parser.add_argument("--tokens", type=int, default=33_000_000)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kl-until", type=float, default=0.45,
                        help="share of the run that minimises the KL divergence")
    parser.add_argument("--init", type=Path, help="continue from this checkpoint (draft.pt) with a new schedule")
    args = parser.parse_args()
    torch.manual_seed(2)
    streams = [np.load(args.work / f"{name}.npy").reshape(-1) for name in ("train", "samples", "greedy")]
    stream = torch.from_numpy(np.concatenate(streams).astype(np.int64)).share_memory_()
    model = Llama(DRAFT)
    if args.init:
        model.load_state_dict(torch.load(args.init))
    else:
        model.model.embed_tokens.weight.data.copy_(embedding_from(load(args.target, TARGET)))
    plan = Plan(tokens=args.tokens, minutes=args.minutes, step_tokens=4096, micro_tokens=1024,
                muon_lr=0.02, adam_lr=0.004, weight_decay=0.1, lengths=[(0.88, 256), (1, 1024)])
    lessons = {length: Lessons(stream, length) for _, length in plan.lengths}
    train(model, plan, args.processes, make_loss, (args.target, lessons, plan.micro_tokens, args.kl_until),
          args.work / "draft.log", args.work / "draft.pt")
    save(model, args.out, args.work / "tokenizer.json")


if __name__ == "__main__":
    main()
