"""Training data of the heads: windows of text, the target's states for them, and distances to its distribution."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from common import BOS, TARGET, Llama
from eagle import FEATURE_LAYERS
from heads import residual_stream


@torch.compile(dynamic=False)
def probabilities(logits: Tensor) -> Tensor:
    return torch.softmax(logits.float(), -1).to(torch.bfloat16)


@torch.compile(dynamic=False)
def forward_kl(head: Tensor, target: Tensor) -> Tensor:
    """The forward KL divergence plus the target's entropy. head: logits; target: probabilities."""
    return -(target.float() * torch.log_softmax(head.float(), -1)).sum(-1).mean()


@torch.compile(dynamic=False)
def total_variation(head: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (target.float() - torch.softmax(head.float(), -1)).abs().sum(-1).mean()


def stream_of(work: Path, greedy_times: int) -> Tensor:
    """The corpus and the target's own text. Greedy pieces are repeated, since heads help most at temperature 0."""
    parts = [np.load(work / f"{name}.npy").reshape(-1) for name in ("train", "samples")]
    parts += [np.load(work / "greedy.npy").reshape(-1)] * greedy_times
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


class States:
    """Windows of one length and the target's states for them, computed when first needed and kept in a file.

    The file is shared by the processes of a run and by the runs of all proposers; delete it when the target or the
    samples change. A state is h, [hidden], and for EAGLE-3 the streams of FEATURE_LAYERS before it.
    """

    def __init__(self, work: Path, stream: Tensor, length: int, streams: bool) -> None:
        self.length, self.streams = length, streams
        self.windows = stream[:len(stream) // length * length].view(-1, length)
        self.width = TARGET.hidden * (1 + (len(FEATURE_LAYERS) if streams else 0))
        path = work / f"states-{'streams-' if streams else ''}{length}.bin"
        size = self.windows.numel() * self.width
        self.states = torch.from_file(str(path), True, size, dtype=torch.bfloat16).view(*self.windows.shape, self.width)
        self.known = torch.from_file(str(path.with_suffix(".known")), True, len(self.windows), dtype=torch.uint8)

    @torch.no_grad()
    def rows(self, target: Llama, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Tokens after BOS and states of the rows first, first + 1, ... of endless passes, each in its own order."""
        picks = []
        for n in range(first, first + count):
            order = np.random.default_rng((13, self.length, n // len(self.windows))).permutation(len(self.windows))
            picks.append(int(order[n % len(self.windows)]))
        inputs = torch.full((count, self.length), BOS)
        inputs[:, 1:] = self.windows[picks, :-1]
        if not self.known[picks].all():
            self.states[picks] = states_of(target, inputs, self.streams).to(torch.bfloat16)
            self.known[picks] = 1
        return inputs, self.states[picks]


def states_of(target: Llama, inputs: Tensor, streams: bool) -> Tensor:
    """[batch, time, width]: the streams after FEATURE_LAYERS, if wanted, and then h."""
    if not streams:
        return target(inputs)
    every, _ = residual_stream(target, inputs)
    return torch.cat([*(every[layer] for layer in FEATURE_LAYERS), target.model.norm(every[-1])], -1)
