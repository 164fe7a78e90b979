"""The training loop of both drafters. It can be stopped at any time and continues from its last checkpoint."""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lessons import Lesson, batches
from optim import AdamW, Muon
from torch import Tensor, nn

NORM_RATE = 0.2  # AdamW's rate for norms, as a share of Muon's rate for matrices


def add_arguments(parser: argparse.ArgumentParser, rate: float, tokens: int) -> None:
    parser.add_argument("lessons", type=Path, help="file of conversations that converse.py wrote")
    parser.add_argument("target", type=Path, help="GGUF file of the target")
    parser.add_argument("work", type=Path, help="folder for checkpoints and, in states/, the target's states")
    parser.add_argument("--frequent", type=int, default=8192, help="how many of the most frequent tokens the drafter proposes")
    parser.add_argument("--init", type=Path, help="the -best.pt of another run, to begin from instead")
    parser.add_argument("--steps", type=int, default=4000, help="steps of training")
    parser.add_argument("--kl-steps", type=int, default=2500,
                        help="steps that minimise the forward KL divergence; later ones minimise the total variation")
    parser.add_argument("--tokens", type=int, default=tokens, help="most tokens per step, with padding")
    parser.add_argument("--rate", type=float, default=rate, help="learning rate of Muon")
    parser.add_argument("--longest", type=int, default=512, help="most tokens of a conversation; longer ones are cut")


def closeness(p: Tensor, log_q: Tensor, by_kl: bool) -> Tensor:
    """For each row, up to a term without q: minus the forward KL divergence, or 1 minus the total variation."""
    return (p * log_q if by_kl else torch.minimum(p, log_q.exp())).sum(-1)


def distil(name: str, model: nn.Module, lessons: list[Lesson], loss_of: Callable[[list[Lesson], int], Tensor],
           evaluate: Callable[[list[Lesson]], dict], args: argparse.Namespace) -> None:
    """Minimises loss_of(batch, step). `evaluate` returns a "score" of the held-out lessons, where larger is better, and more values.

    Writes the trained parameters: NAME-last.pt, to continue from, and NAME-best.pt, those with the best score.
    """
    taught, held_out = ([each for each in lessons if each.held_out == wanted] for wanted in (False, True))
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    by_index = list(enumerate(trained.values()))
    muon = Muon([(i, p) for i, p in by_index if p.ndim == 2], weight_decay=0.1)
    adam = AdamW([(i, p) for i, p in by_index if p.ndim < 2])  # norms
    step, best, history = 0, 0.0, []
    last = args.work / f"{name}-last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=False)
        model.load_state_dict(saved["model"], strict=False)
        step, best, history = saved["step"], saved["best"], saved["history"]
        muon.buffers = saved["muon"]
        adam.means, adam.squares, adam.steps = *saved["adam"], step
    elif args.init:
        model.load_state_dict(torch.load(args.init, weights_only=False)["model"], strict=False)
    begun = time.monotonic()
    queue: list[list[Lesson]] = []
    while step < args.steps:
        queue = queue or batches(taught, args.tokens, 1000 + step)
        warm, done = min(1, (step + 1) / 50), step / args.steps
        rate = args.rate * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        loss = loss_of(queue.pop(), step)
        model.zero_grad()
        loss.backward()
        muon.step(lambda i: by_index[i][1].grad, rate)
        adam.step(lambda i: by_index[i][1].grad, NORM_RATE * rate)
        step += 1
        minutes = (time.monotonic() - begun) / 60
        if step % 20 == 0:
            print(f"{step} of {args.steps}: loss {float(loss.detach()):.4f}, {minutes:.1f} min", flush=True)
        if step % 100 == 0 or step == args.steps:
            with torch.no_grad():
                found = evaluate(held_out) | {"step": step, "minutes": minutes}
            history.append(found)
            print(json.dumps(found), flush=True)
            best = max(best, found["score"])
            kept = {"model": {key: p.detach() for key, p in trained.items()}, "history": history}
            torch.save(kept | {"muon": muon.buffers, "adam": (adam.means, adam.squares), "step": step, "best": best}, last)
            if found["score"] >= best:
                torch.save(kept, args.work / f"{name}-best.pt")
