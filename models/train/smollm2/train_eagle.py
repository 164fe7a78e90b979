#!/usr/bin/env python3
"""Trains EAGLE or EAGLE-3 (../eagle.py) on the states of a chat model, in chains of rows like those of a round. Minimises the
forward KL divergence first, then the total variation, on the tokens of answers.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
torch._dynamo.config.disable = True  # each batch has another shape

from distil import STRIDE, Judge, add_arguments, distil, prepare
from eagle import EMBEDDING_SCALE, Eagle
from lessons import ROPE_THETA, TAPS, Lesson, States, fast_products, padded
from optim import DTYPE
from torch import Tensor, nn

import common
from common import Shape

common.ACTIVATIONS = DTYPE
STEPS = 5  # rows in a chain


class ChainJudge(Judge):
    """Judges chains of rows, which also propose tokens of the text."""

    DEPTH_WEIGHT = 0.9

    def __init__(self, states: States, model: Eagle, embedding: Tensor) -> None:
        self.states, self.model, self.embedding = states, model, embedding
        self.head = embedding[model.tokens].contiguous()
        self.in_head = torch.zeros(len(embedding), dtype=torch.bool)
        self.in_head[model.tokens] = True

    def others(self, batch: list[Lesson]) -> tuple[list[Tensor], Tensor]:
        """The rows of the head for the tokens of each lesson that the drafter's head lacks, of the same number for all, and where each
        token stands first [lessons, tokens]. It can be proposed from there on.
        """
        found = []
        for lesson in batch:
            ids, first = np.unique(lesson.tokens, return_index=True)
            lacks = ~self.in_head[torch.tensor(ids)].numpy()
            found.append((torch.tensor(ids[lacks]), torch.tensor(first[lacks])))
        most = max(len(ids) for ids, _ in found)
        rows = [self.embedding[nn.functional.pad(ids, (0, most - len(ids)))] for ids, _ in found]
        never = 1 << 30
        return rows, torch.stack([nn.functional.pad(first, (0, most - len(first)), value=never) for _, first in found])

    def logits(self, vectors: Tensor, lessons: Tensor, others: list[Tensor]) -> Tensor:
        """Of the head's tokens, then of the others, for vectors of these lessons, which are in order."""
        parts = vectors.split(torch.bincount(lessons, minlength=len(others)).tolist())
        more = torch.cat([nn.functional.linear(part, rows) for part, rows in zip(parts, others, strict=True)])
        return torch.cat([nn.functional.linear(vectors, self.head), more], -1).float()

    def distributions(self, batch: list[Lesson], offset: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """As in Judge. The first step of a chain is computed for all positions."""
        ids, judged = padded(batch)
        others, first = self.others(batch)
        h, log_sums, largest = self.states.of_answers(batch)
        read = self.states.h if self.model.version == 1 else self.states.taps
        features = torch.zeros(*ids.shape, read.shape[1], dtype=DTYPE)
        for row, lesson in enumerate(batch):
            features[row, : len(lesson.tokens)] = read[lesson.at : lesson.at + len(lesson.tokens)]
        p = (self.logits(h, judged.nonzero()[:, 0], others) - log_sums[:, None]).exp()
        best = (largest - log_sums).exp()
        number = judged.flatten().cumsum(0).view(judged.shape) - 1  # index of a judged token in p
        rows = ids.shape[1] - 1
        starts = torch.arange(offset, rows - STEPS + 1, STRIDE)
        found = []
        with fast_products():
            embeds = nn.functional.embedding(ids[:, 1:], self.embedding)
            outputs = self.model(embeds, self.model.features(features[:, :-1]), STEPS, starts)
            for step, output in enumerate(outputs):
                at = torch.arange(rows) + 1 if step == 0 else starts + step + 1  # positions whose next token is proposed
                wanted = judged[:, at]
                lesson, place = wanted.nonzero().T
                q = self.logits(self.model.vectors(output[wanted]), lesson, others)
                # The text that is known ends where the chain begins.
                unknown = nn.functional.pad(first[lesson] > (at[place] - step)[:, None], (len(self.head), 0))
                which = number[:, at][wanted]
                found.append((p[which].masked_fill(unknown, 0), best[which], q.masked_fill(unknown, -1e9).log_softmax(-1)))
        return found


@torch.no_grad()
def begin_with_least_squares(model: Eagle, states: States, lessons: list[Lesson], embedding: Tensor) -> None:
    """Starts EAGLE's fusion with the best linear prediction of a state from its token's embedding and the state before. The
    layer adds little to it at first.
    """
    width = 2 * embedding.shape[1]
    squares, products = torch.zeros(width, width), torch.zeros(width, embedding.shape[1])
    for lesson in lessons:
        if not lesson.held_out:
            ids = torch.tensor(lesson.tokens[1:])
            begin, end = lesson.at, lesson.at + len(lesson.tokens)
            x = torch.cat([EMBEDDING_SCALE * embedding[ids].float(), states.h[begin : end - 1].float()], -1)
            squares += x.T @ x
            products += x.T @ states.h[begin + 1 : end].float()
    squares += 1e-3 * squares.diag().mean() * torch.eye(width)
    model.fc.weight.copy_(torch.linalg.solve(squares, products).T)


@torch.no_grad()
def begin_with_last_layer(model: Eagle, target: nn.Module) -> None:
    """Starts EAGLE-3 with the target's last layer, which reads the last of the streams instead of the one before it. Of the
    feed-forward neurons, it keeps those with the largest weights.
    """
    last, layer, hidden = target.model.layers[-1], model.midlayer, target.config.hidden_size
    model.fc.weight.zero_()
    model.fc.weight[:, -hidden:].copy_(torch.eye(hidden))
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight[:, hidden:].copy_(getattr(last.self_attn, name).weight)
    layer.self_attn.o_proj.load_state_dict(last.self_attn.o_proj.state_dict())
    matrices = last.mlp.state_dict()
    sizes = [matrices[f"{name}_proj.weight"].float().norm(dim=dim) for name, dim in (("gate", 1), ("up", 1), ("down", 0))]
    kept = torch.stack(sizes).log().sum(0).topk(model.shape.ffn).indices
    layer.mlp.load_state_dict({name: weight[:, kept] if name.startswith("down") else weight[kept]
                               for name, weight in matrices.items()})
    layer.hidden_norm.load_state_dict(last.input_layernorm.state_dict())
    layer.post_attention_layernorm.load_state_dict(last.post_attention_layernorm.state_dict())
    model.norm.load_state_dict(target.model.norm.state_dict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add_arguments(parser, rate=0.01, tokens=1536)
    parser.add_argument("--ffn", type=int, default=896, help="width of the feed-forward layer")
    parser.add_argument("--version", type=int, choices=(1, 3), default=1, help="1: EAGLE, 3: EAGLE-3")
    args = parser.parse_args()

    lessons, target, states, frequent = prepare(args)
    config, embedding = target.config, target.model.embed_tokens.weight.detach()
    shape = Shape(hidden=config.hidden_size, layers=1, heads=config.num_attention_heads,
                  kv_heads=config.num_key_value_heads, ffn=args.ffn)
    model = Eagle(args.version, args.frequent, shape, TAPS, ROPE_THETA)
    if args.version == 1:
        begin_with_least_squares(model, states, lessons, embedding)
    else:
        begin_with_last_layer(model, target)
    model.tokens = frequent
    judge = ChainJudge(states, model, embedding)
    distil("eagle", model, lessons, judge, args)


if __name__ == "__main__":
    main()
