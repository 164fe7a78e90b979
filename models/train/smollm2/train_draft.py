#!/usr/bin/env python3
"""Distils a draft of a few layers from a chat model. It begins with copies of some of the model's layers and keeps its
embedding, whose rows of the most frequent tokens are the head. Minimises the forward KL divergence first, then the total
variation, which decides acceptance (Leviathan et al., 2023, corollary 3.6: alpha is 1 minus its mean).
"""

import argparse
import copy

import torch
from distil import add_arguments, closeness, distil
from lessons import Lesson, States, batches, fast_products, frequent_tokens, load_target, padded, read_lessons, same_best
from torch import Tensor, nn


class Draft(nn.Module):
    """Layers of the target between its embedding and its last norm, which are not trained."""

    def __init__(self, target: nn.Module, layers: list[int]) -> None:
        super().__init__()
        decoder = target.model
        config = copy.deepcopy(target.config)
        config.num_hidden_layers = len(layers)
        self.body = type(decoder)(config)
        for to, which in enumerate(layers):
            self.body.layers[to].load_state_dict(decoder.layers[which].state_dict())
        self.body.norm.load_state_dict(decoder.norm.state_dict())
        self.body.float()
        self.body.embed_tokens = decoder.embed_tokens
        self.body.embed_tokens.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(input_ids=ids, use_cache=False).last_hidden_state


class Judge:
    """Compares a draft's distributions with the target's, on the tokens of answers."""

    def __init__(self, states: States, draft: Draft, embedding: Tensor, frequent: Tensor) -> None:
        self.states, self.draft = states, draft
        self.head = embedding[frequent].contiguous()

    def distributions(self, batch: list[Lesson]) -> tuple[Tensor, Tensor, Tensor]:
        """For the judged tokens: p of the frequent tokens, the largest p of all tokens, and log q."""
        ids, judged = padded(batch)
        h, log_sums, largest = self.states.of_answers(batch)
        with torch.no_grad():
            p = (nn.functional.linear(h, self.head).float() - log_sums[:, None]).exp()
        with fast_products():
            q = nn.functional.linear(self.draft(ids)[judged], self.head)
        return p, (largest - log_sums).exp(), q.float().log_softmax(-1)

    def evaluate(self, lessons: list[Lesson]) -> dict[str, float]:
        """The score, which is alpha at temperature 1, and how often both have the same best token."""
        overlap = same = count = 0.0
        for batch in batches(lessons, 4096, 0):
            p, best, log_q = self.distributions(batch)
            overlap += float(torch.minimum(p, log_q.exp()).sum())
            same += float(same_best(p, log_q, best).sum())
            count += len(best)
        return {"score": overlap / count, "greedy": same / count, "tokens": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add_arguments(parser, rate=4e-3, tokens=6144)
    parser.add_argument("--layers", default="0,1,29", help="layers of the target to begin from, comma-separated")
    args = parser.parse_args()

    torch.manual_seed(1)
    lessons = read_lessons(args.lessons, args.target, args.longest)
    target = load_target(args.target)
    states = States(args.work / "states", lessons, target.config.hidden_size)
    states.fill(target, lessons)
    frequent = frequent_tokens(lessons, target.config.vocab_size, args.frequent, args.work / "frequent_tokens.json")
    draft = Draft(target, [int(layer) for layer in args.layers.split(",")])
    judge = Judge(states, draft, target.model.embed_tokens.weight.detach(), frequent)

    def loss_of(batch: list[Lesson], step: int) -> Tensor:
        p, _, log_q = judge.distributions(batch)
        return -closeness(p, log_q, by_kl=step < args.kl_steps).mean()

    distil("draft", draft, lessons, loss_of, judge.evaluate, args)


if __name__ == "__main__":
    main()
