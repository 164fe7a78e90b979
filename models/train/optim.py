"""Muon for the matrices, AdamW for embeddings and norms. Parameters come as (index, tensor) pairs."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

Gradient = Callable[[int], Tensor]
# The type in which matrices are multiplied. A CPU without instructions for bfloat16 emulates it, which takes many times as long.
DTYPE = torch.bfloat16 if "avx512_bf16" in Path("/proc/cpuinfo").read_text() else torch.float32


def orthogonalize(g: Tensor) -> Tensor:
    """Newton-Schulz iteration towards U V^T of g = U S V^T (Jordan et al., Muon, 2024)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(DTYPE)
    tall = x.shape[0] > x.shape[1]
    x = x.T.contiguous() if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if tall else x


class Muon:
    def __init__(self, parameters: list[tuple[int, Tensor]], weight_decay: float, momentum: float = 0.95) -> None:
        self.parameters, self.weight_decay, self.momentum = parameters, weight_decay, momentum
        self.buffers = [torch.zeros_like(p) for _, p in parameters]

    @torch.no_grad()
    def step(self, gradient: Gradient, lr: float) -> None:
        for (i, p), buffer in zip(self.parameters, self.buffers):
            g = gradient(i)
            buffer.lerp_(g, 1 - self.momentum)
            update = orthogonalize(g.lerp(buffer, self.momentum))
            p.mul_(1 - lr * self.weight_decay)
            p.add_(update.float(), alpha=-lr * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


class AdamW:
    """AdamW without weight decay, which the embeddings and norms here do not need."""

    def __init__(self, parameters: list[tuple[int, Tensor]], betas: tuple[float, float] = (0.9, 0.98)) -> None:
        self.parameters, self.betas, self.steps = parameters, betas, 0
        self.means = [torch.zeros_like(p) for _, p in parameters]
        self.squares = [torch.zeros_like(p) for _, p in parameters]

    @torch.no_grad()
    def step(self, gradient: Gradient, lr: float) -> None:
        self.steps += 1
        b1, b2 = self.betas
        for (i, p), mean, square in zip(self.parameters, self.means, self.squares):
            g = gradient(i)
            mean.lerp_(g, 1 - b1)
            square.lerp_(g * g, 1 - b2)
            scale = (square / (1 - b2 ** self.steps)).sqrt_().add_(1e-8)
            p.addcdiv_(mean / (1 - b1 ** self.steps), scale, value=-lr)
