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
from distil import STRIDE, HeadJudge, add_arguments, distil, prepare
from lessons import MASK, Lesson
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add_arguments(parser, rate=4e-3, tokens=6144)
    parser.add_argument("--layers", default="0,1,29", help="layers of the target to begin from, comma-separated")
    parser.add_argument("--parallel", type=int, default=1, help="tokens to draft in one pass")
    args = parser.parse_args()

    lessons, target, states, frequent = prepare(args)
    draft = Draft(target, [int(layer) for layer in args.layers.split(",")])

    def vectors_of(_: list[Lesson], ids: Tensor, offset: int) -> list[tuple[Tensor, Tensor]]:
        starts = torch.arange(offset, ids.shape[1] - args.parallel + 1, STRIDE)
        first, masked = draft(ids, starts, args.parallel - 1)
        return [(torch.arange(ids.shape[1]), first),
                *((starts + ahead, masked[:, :, ahead - 1]) for ahead in range(1, args.parallel))]

    judge = HeadJudge(states, target.model.embed_tokens.weight.detach()[frequent].contiguous(), vectors_of)
    distil("draft", draft, lessons, judge, args)


if __name__ == "__main__":
    main()
