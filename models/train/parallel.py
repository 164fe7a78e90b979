"""Training with several one-thread processes that share one set of parameters.

One process per core beats one process with several threads here: the matrices are small. The processes
take the micro-batches of a step from a common counter, so a process that is slowed down by other work on
its core just takes fewer. Each then updates its own share of the matrices from the sum of all gradients.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import Tensor

from common import Llama
from optim import AdamW, Muon


@dataclass
class Plan:
    """A run ends when either the tokens or the minutes are used up; the schedule follows the larger share."""
    tokens: int
    minutes: float
    step_tokens: int
    micro_tokens: int
    muon_lr: float
    adam_lr: float
    weight_decay: float
    lengths: list[tuple[float, int]]  # (up to this progress, sequence length)
    decay_from: float = 0.45
    warmup_steps: int = 30

    def length(self, progress: float) -> int:
        return next(length for end, length in self.lengths if progress < end or end == 1)

    def rate(self, progress: float, step: int) -> float:
        return min(1.0, (step + 1) / self.warmup_steps) * min(1.0, max(0.0, (1 - progress) / (1 - self.decay_from)))


@dataclass
class Team:
    """State that the processes share."""
    size: int
    gradients: list[list[Tensor]]  # [process][parameter]
    barrier: "mp.Barrier" = None
    taken: "mp.Value" = None
    progress: "mp.Value" = None
    losses: Tensor = field(default_factory=lambda: torch.zeros(64).share_memory_())

    def micro_batches(self, count: int):
        while True:
            with self.taken.get_lock():
                index = self.taken.value
                self.taken.value += 1
            if index >= count:
                return
            yield index


# micro_loss(model, length, step, micro index, micro batches, progress) -> mean loss of that micro-batch.
MicroLoss = Callable[[Llama, int, int, int, int, float], Tensor]


def _work(rank: int, team: Team, model: Llama, plan: Plan, make_loss: Callable[..., MicroLoss], loss_args: tuple,
          log: Path, checkpoint: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1000 + rank)
    micro_loss = make_loss(*loss_args)
    model.train()
    names, parameters = zip(*model.named_parameters())
    for parameter, gradient in zip(parameters, team.gradients[rank]):
        parameter.grad = gradient
    matrices = [i for i, name in enumerate(names) if parameters[i].ndim == 2 and "embed" not in name]
    others = [i for i in range(len(names)) if i not in matrices]
    # Deal the matrices out, largest first, so that all processes have about the same work.
    matrices.sort(key=lambda i: -parameters[i].numel())
    muon = Muon([(i, parameters[i]) for i in matrices[rank::team.size]], plan.weight_decay)
    adam = AdamW([(i, parameters[i]) for i in others[rank::team.size]])
    team.barrier.wait()
    start, tokens, step, smooth, last_saved = time.time(), 0, 0, None, time.time()
    while True:
        if rank == 0:
            team.taken.value = 0
            team.losses.zero_()
            team.progress.value = max(tokens / plan.tokens, (time.time() - start) / (60 * plan.minutes))
        team.barrier.wait()
        progress = team.progress.value
        if progress >= 1:
            break
        length = plan.length(progress)
        count = plan.step_tokens // max(plan.micro_tokens, length)
        for index in team.micro_batches(count):
            with torch.autocast("cpu", torch.bfloat16):
                loss = micro_loss(model, length, step, index, count, progress) / count
            loss.backward()
            team.losses[rank] += loss.item()
        team.barrier.wait()
        rate = plan.rate(progress, step)
        for optimizer, lr in (muon, plan.muon_lr), (adam, plan.adam_lr):
            optimizer.step(lambda i: sum((g[i] for g in team.gradients[1:]), team.gradients[0][i]), lr * rate)
        team.barrier.wait()
        for gradient in team.gradients[rank]:
            gradient.zero_()
        tokens += plan.step_tokens
        step += 1
        if rank == 0:
            loss = team.losses.sum().item()
            smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
            if step % 10 == 0 or step <= 10:
                seconds = time.time() - start
                entry = {"step": step, "tokens": tokens, "seconds": round(seconds, 1), "loss": round(loss, 4),
                         "smooth": round(smooth, 4), "rate": round(rate, 4), "length": length,
                         "tokens_per_s": round(tokens / seconds)}
                with log.open("a") as out:
                    print(json.dumps(entry), file=out)
            if time.time() - last_saved > 300:
                last_saved = time.time()
                torch.save(model.state_dict(), checkpoint.with_suffix(".tmp"))
                os.replace(checkpoint.with_suffix(".tmp"), checkpoint)
    if rank == 0:
        torch.save(model.state_dict(), checkpoint)


def train(model: Llama, plan: Plan, processes: int, make_loss: Callable[..., MicroLoss], loss_args: tuple,
          log: Path, checkpoint: Path) -> None:
    """Trains the model in place. make_loss(*loss_args) is called once in each process."""
    context = mp.get_context("spawn")
    model.share_memory()
    gradients = [[torch.zeros_like(p).share_memory_() for p in model.parameters()] for _ in range(processes)]
    team = Team(processes, gradients, context.Barrier(processes), context.Value("i", 0), context.Value("d", 0.0))
    log.unlink(missing_ok=True)
    mp.spawn(_work, (team, model, plan, make_loss, loss_args, log, checkpoint), nprocs=processes)
