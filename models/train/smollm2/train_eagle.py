#!/usr/bin/env python3
"""Trains EAGLE-3 (../eagle.py) on the states of a chat model, in chains of rows like those of a round. Minimises the forward
KL divergence first, then the total variation, on the tokens of answers.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
torch._dynamo.config.disable = True  # each batch has another shape

from distil import add_arguments, closeness, distil
from eagle import Eagle
from lessons import (TAPS, Lesson, States, batches, fast_products, frequent_tokens, load_target, padded, read_lessons,
                     same_best)
from optim import DTYPE
from torch import Tensor, nn

import common
from common import Shape

common.ACTIVATIONS = DTYPE
STEPS = 5  # rows in a chain
STRIDE = 4  # distance between the positions that begin chains
DEPTH_WEIGHT = 0.9  # for each further token of a proposal, which counts only if those before it were accepted


class Judge:
    """Compares the distributions of chains of rows with the target's, on the tokens of answers."""

    def __init__(self, states: States, model: Eagle, embedding: Tensor) -> None:
        self.states, self.model, self.embedding = states, model, embedding
        self.head = embedding[model.tokens].contiguous()

    def chains(self, batch: list[Lesson], offset: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each step of a chain: p of the proposed tokens, the largest p of all, and log q."""
        ids, judged = padded(batch)
        h, log_sums, largest = self.states.of_answers(batch)
        taps = torch.zeros(*ids.shape, self.states.taps.shape[1], dtype=DTYPE)
        for row, lesson in enumerate(batch):
            taps[row, : len(lesson.tokens)] = self.states.taps[lesson.at : lesson.at + len(lesson.tokens)]
        p = (nn.functional.linear(h, self.head).float() - log_sums[:, None]).exp()
        best = (largest - log_sums).exp()
        number = judged.flatten().cumsum(0).view(judged.shape) - 1  # index of a judged token in p
        rows = ids.shape[1] - 1
        starts = torch.arange(offset, rows - STEPS + 1, STRIDE)
        found = []
        with fast_products():
            embeds = nn.functional.embedding(ids[:, 1:], self.embedding)
            outputs = self.model(embeds, self.model.features(taps[:, :-1]), STEPS, starts)
            for step, output in enumerate(outputs):
                at = torch.arange(rows) + 1 if step == 0 else starts + step + 1  # positions whose next token is proposed
                wanted = judged[:, at]
                q = nn.functional.linear(self.model.vectors(output[wanted]), self.head)
                which = number[:, at][wanted]
                found.append((p[which], best[which], q.float().log_softmax(-1)))
        return found

    def evaluate(self, lessons: list[Lesson]) -> dict:
        """For each step, given the true tokens before it: alpha at temperature 1 (the mean is the score), and how often both have
        the same best token."""
        sums = torch.zeros(STEPS, 3)
        for batch in batches(lessons, 4096, 0):
            for step, (p, best, log_q) in enumerate(self.chains(batch, 0)):
                same = same_best(p, log_q, best)
                sums[step] += torch.tensor([float(torch.minimum(p, log_q.exp()).sum()), float(same.sum()), len(best)])
        shares = sums[:, :2] / sums[:, 2:]
        alpha, greedy = shares.T.tolist()
        return {"score": sum(alpha) / STEPS, "alpha": alpha, "greedy": greedy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add_arguments(parser, rate=0.02, tokens=4096)
    parser.add_argument("--ffn", type=int, default=1536, help="width of the feed-forward layer")
    args = parser.parse_args()

    torch.manual_seed(1)
    lessons = read_lessons(args.lessons, args.target, args.longest)
    target = load_target(args.target)
    config, embedding = target.config, target.model.embed_tokens.weight.detach()
    states = States(args.work / "states", lessons, config.hidden_size)
    states.fill(target, lessons)
    shape = Shape(hidden=config.hidden_size, layers=1, heads=config.num_attention_heads,
                  kv_heads=config.num_key_value_heads, ffn=args.ffn)
    model = Eagle(3, args.frequent, shape, TAPS)
    model.tokens = frequent_tokens(lessons, config.vocab_size, args.frequent, args.work / "frequent_tokens.json")
    judge = Judge(states, model, embedding)
    weights = [DEPTH_WEIGHT**depth / sum(DEPTH_WEIGHT**each for each in range(STEPS)) for depth in range(STEPS)]

    def loss_of(batch: list[Lesson], by_kl: bool) -> Tensor:
        chains = judge.chains(batch, int(torch.randint(STRIDE, ())))
        return -sum(weight * closeness(p, log_q, by_kl).sum() / max(len(p), 1)
                    for weight, (p, _, log_q) in zip(weights, chains, strict=True))

    distil("eagle", model, lessons, loss_of, judge.evaluate, args)


if __name__ == "__main__":
    main()
