#!/usr/bin/env python3
"""Distils a draft of a few layers from a chat model. It begins with copies of some of the model's layers and keeps its
embedding, whose rows of the most frequent tokens are the head. Minimises the forward KL divergence first, then the total
variation, which decides acceptance (Leviathan et al., 2023, corollary 3.6: alpha is 1 minus its mean).

With --parallel N it learns to draft N tokens in one pass, masks standing for those that are not drawn yet (An et al., 2025,
"PARD", arXiv 2504.18583).
"""

import argparse
import copy
from pathlib import Path

import torch
from distil import add_arguments, closeness, distil
from lessons import Lesson, States, batches, fast_products, frequent_tokens, load_target, padded, read_lessons, same_best
from torch import Tensor, nn

MASK = 3  # a token that no conversation has, <repo_name>
STRIDE = 4  # distance between the positions after which masks stand


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

    def forward(self, ids: Tensor, starts: Tensor, masks: int) -> tuple[Tensor, Tensor]:
        """The outputs of all tokens, [batch, tokens, hidden], and of the `masks` masks after each token in `starts`,
        [batch, starts, masks, hidden]. A mask sees the tokens up to its start, and the masks before it.
        """
        batch, tokens = ids.shape
        if masks == 0:
            return self.body(input_ids=ids, use_cache=False).last_hidden_state, torch.empty(0)
        group = torch.arange(len(starts)).repeat_interleave(masks)
        ahead = torch.arange(1, masks + 1).repeat(len(starts))
        positions = torch.cat([torch.arange(tokens), starts[group] + ahead])
        sees = torch.zeros(len(positions), len(positions), dtype=torch.bool)
        sees[:tokens, :tokens] = torch.ones(tokens, tokens, dtype=torch.bool).tril()
        sees[tokens:, :tokens] = torch.arange(tokens) <= starts[group][:, None]
        sees[tokens:, tokens:] = (group[:, None] == group) & (ahead[:, None] >= ahead)
        ids = torch.cat([ids, torch.full((batch, len(group)), MASK)], 1)
        out = self.body(input_ids=ids, position_ids=positions.expand(batch, -1), attention_mask=sees.expand(batch, 1, -1, -1),
                        use_cache=False).last_hidden_state
        return out[:, :tokens], out[:, tokens:].view(batch, len(starts), masks, -1)


class Judge:
    """Compares a draft's distributions with the target's, on the tokens of answers."""

    def __init__(self, states: States, draft: Draft, embedding: Tensor, frequent: Tensor, parallel: int) -> None:
        self.states, self.draft, self.parallel = states, draft, parallel
        self.head = embedding[frequent].contiguous()

    def distributions(self, batch: list[Lesson], offset: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each token of a pass, where it is judged: p of the frequent tokens, the largest p of all tokens, and log q. The
        first is computed for all positions, the others from every STRIDE-th position on, beginning with `offset`.
        """
        ids, judged = padded(batch)
        h, log_sums, largest = self.states.of_answers(batch)
        best = (largest - log_sums).exp()
        number = judged.flatten().cumsum(0).view(judged.shape) - 1  # index of a judged token in p
        starts = torch.arange(offset, ids.shape[1] - self.parallel + 1, STRIDE)
        with torch.no_grad():
            p = (nn.functional.linear(h, self.head).float() - log_sums[:, None]).exp()
        found = []
        with fast_products():
            first, masked = self.draft(ids, starts, self.parallel - 1)
            for ahead in range(self.parallel):
                at = torch.arange(ids.shape[1]) if ahead == 0 else starts + ahead
                wanted = judged[:, at]
                q = nn.functional.linear((first if ahead == 0 else masked[:, :, ahead - 1])[wanted], self.head)
                which = number[:, at][wanted]
                found.append((p[which], best[which], q.float().log_softmax(-1)))
        return found

    def evaluate(self, lessons: list[Lesson]) -> dict:
        """For each token of a pass, given the true tokens before it: alpha at temperature 1 (the mean is the score), and how
        often both have the same best token."""
        sums = torch.zeros(self.parallel, 3)
        for batch in batches(lessons, 4096, 0):
            for ahead, (p, best, log_q) in enumerate(self.distributions(batch, 0)):
                same = same_best(p, log_q, best)
                sums[ahead] += torch.tensor([float(torch.minimum(p, log_q.exp()).sum()), float(same.sum()), len(best)])
        alpha, greedy = (sums[:, :2] / sums[:, 2:]).T.tolist()
        return {"score": sum(alpha) / len(alpha), "alpha": alpha, "greedy": greedy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add_arguments(parser, rate=4e-3, tokens=6144)
    parser.add_argument("--layers", default="0,1,29", help="layers of the target to begin from, comma-separated")
    parser.add_argument("--parallel", type=int, default=1, help="tokens to draft in one pass")
    args = parser.parse_args()

    torch.manual_seed(1)
    lessons = read_lessons(args.lessons, args.target, args.longest)
    target = load_target(args.target)
    states = States(args.work / "states", lessons, target.config.hidden_size)
    states.fill(target, lessons)
    frequent = frequent_tokens(lessons, target.config.vocab_size, args.frequent, args.work / "frequent_tokens.json")
    draft = Draft(target, [int(layer) for layer in args.layers.split(",")])
    judge = Judge(states, draft, target.model.embed_tokens.weight.detach(), frequent, args.parallel)

    def loss_of(batch: list[Lesson], step: int) -> Tensor:
        found = judge.distributions(batch, int(torch.randint(STRIDE, ())))
        return -sum(closeness(p, log_q, by_kl=step < args.kl_steps).mean() for p, _, log_q in found) / len(found)

    distil("draft", draft, lessons, loss_of, judge.evaluate, args)


if __name__ == "__main__":
    main()
