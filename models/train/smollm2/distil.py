"""The training loop of all drafters. It can be stopped at any time and continues from its last checkpoint."""

import abc
import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lessons import Lesson, States, batches, fast_products, frequent_tokens, load_target, padded, read_lessons, same_best
from optim import AdamW, Muon
from torch import Tensor, nn

STRIDE = 4  # distance between the positions at which proposals begin
ADAM_RATE = 0.2  # AdamW's rate, as a share of Muon's rate for matrices


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


def prepare(args: argparse.Namespace) -> tuple[list[Lesson], nn.Module, States, Tensor]:
    """The lessons, the target, its states, computed where they are missing, and the most frequent tokens."""
    torch.manual_seed(1)
    lessons = read_lessons(args.lessons, args.target, args.longest)
    target = load_target(args.target)
    states = States(args.work / "states", lessons, target.config.hidden_size)
    states.fill(target, lessons)
    frequent = frequent_tokens(lessons, target.config.vocab_size, args.frequent, args.work / "frequent_tokens.json")
    return lessons, target, states, frequent


def closeness(p: Tensor, log_q: Tensor, by_kl: bool) -> Tensor:
    """For each row, up to a term without q: minus the forward KL divergence, or 1 minus the total variation."""
    return (p * log_q if by_kl else torch.minimum(p, log_q.exp())).sum(-1)


class Judge(abc.ABC):
    """Compares a drafter's distributions with the target's, on the tokens of answers."""

    DEPTH_WEIGHT = 1.0  # for each further token of a proposal, which counts only if those before it were accepted

    @abc.abstractmethod
    def distributions(self, batch: list[Lesson], offset: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each token of a proposal: p of the tokens that can be proposed, the largest p of all tokens, and log q. Proposals
        begin at every STRIDE-th position from `offset`.
        """

    def loss_of(self, batch: list[Lesson], by_kl: bool) -> Tensor:
        found = self.distributions(batch, int(torch.randint(STRIDE, ())))
        weights = [self.DEPTH_WEIGHT**depth for depth in range(len(found))]
        return -sum(weight * closeness(p, log_q, by_kl).sum() / max(len(p), 1)
                    for weight, (p, _, log_q) in zip(weights, found, strict=True)) / sum(weights)

    def evaluate(self, lessons: list[Lesson]) -> dict:
        """For each token of a proposal, given the true tokens before it: alpha at temperature 1 (the mean is the score), and how
        often both have the same best token."""
        parts = []
        for batch in batches(lessons, 4096, 0):
            parts.append([[float(torch.minimum(p, log_q.exp()).sum()), float(same_best(p, log_q, best).sum()), len(best)]
                          for p, best, log_q in self.distributions(batch, 0)])
        sums = torch.tensor(parts).sum(0)
        alpha, greedy = (sums[:, :2] / sums[:, 2:]).T.tolist()
        return {"score": sum(alpha) / len(alpha), "alpha": alpha, "greedy": greedy}


class HeadJudge(Judge):
    """Judges a drafter whose logits are the products of one head and of vectors.

    vectors_of(batch, ids, offset) returns for each token of a proposal the positions before it [n] and the vectors
    [lessons, n, hidden].
    """

    def __init__(self, states: States, head: Tensor,
                 vectors_of: Callable[[list[Lesson], Tensor, int], list[tuple[Tensor, Tensor]]]) -> None:
        self.states, self.head, self.vectors_of = states, head, vectors_of

    def distributions(self, batch: list[Lesson], offset: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        ids, judged = padded(batch)
        h, log_sums, largest = self.states.of_answers(batch)
        best = (largest - log_sums).exp()
        number = judged.flatten().cumsum(0).view(judged.shape) - 1  # index of a judged token in p
        with torch.no_grad():
            p = (nn.functional.linear(h, self.head).float() - log_sums[:, None]).exp()
        found = []
        with fast_products():
            for at, vectors in self.vectors_of(batch, ids, offset):
                wanted = judged[:, at]
                log_q = nn.functional.linear(vectors[wanted], self.head).float().log_softmax(-1)
                which = number[:, at][wanted]
                found.append((p[which], best[which], log_q))
        return found


def distil(name: str, model: nn.Module, lessons: list[Lesson], judge: Judge, args: argparse.Namespace) -> None:
    """Writes the trained parameters: NAME-last.pt, to continue from, and NAME-best.pt, those with the best score on held-out lessons."""
    taught, held_out = ([each for each in lessons if each.held_out == wanted] for wanted in (False, True))
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    by_index = list(enumerate(trained.values()))
    maps = [p.ndim == 2 and not key.startswith("embed") for key, p in trained.items()]  # matrices that map vectors
    muon = Muon([(i, p) for i, p in by_index if maps[i]], weight_decay=0.1)
    adam = AdamW([(i, p) for i, p in by_index if not maps[i]])
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
        loss = judge.loss_of(queue.pop(), step < args.kl_steps)
        model.zero_grad()
        loss.backward()
        muon.step(lambda i: by_index[i][1].grad, rate)
        adam.step(lambda i: by_index[i][1].grad, ADAM_RATE * rate)
        step += 1
        minutes = (time.monotonic() - begun) / 60
        if step % 20 == 0:
            print(f"{step} of {args.steps}: loss {float(loss.detach()):.4f}, {minutes:.1f} min", flush=True)
        if step % 100 == 0 or step == args.steps:
            with torch.no_grad():
                found = judge.evaluate(held_out) | {"step": step, "minutes": minutes}
            history.append(found)
            print(json.dumps(found), flush=True)
            best = max(best, found["score"])
            kept = {"model": {key: p.detach() for key, p in trained.items()}, "history": history}
            torch.save(kept | {"muon": muon.buffers, "adam": (adam.means, adam.squares), "step": step, "best": best}, last)
            if found["score"] >= best:
                torch.save(kept, args.work / f"{name}-best.pt")
