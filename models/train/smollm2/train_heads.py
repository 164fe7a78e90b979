#!/usr/bin/env python3
"""Trains the heads of Medusa or the look-ahead rows of PaSS (../heads.py) for a chat model, and writes their folder. Minimises the
forward KL divergence first, then the total variation, on the tokens of answers.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
torch._dynamo.config.disable = True  # each batch has another shape

from distil import STRIDE, HeadJudge, add_arguments, distil, prepare
from heads import Lookahead, Medusa
from lessons import ROPE_THETA, Lesson
from optim import DTYPE
from torch import Tensor, nn

import common
from common import Llama, Shape, save_tensors

common.ACTIVATIONS = DTYPE


def plain_llama(target: nn.Module) -> Llama:
    """The model as ../common.py has it."""
    config = target.config
    shape = Shape(hidden=config.hidden_size, layers=config.num_hidden_layers, heads=config.num_attention_heads,
                  kv_heads=config.num_key_value_heads, ffn=config.intermediate_size, vocab=config.vocab_size, rope_theta=ROPE_THETA)
    with torch.device("meta"):
        model = Llama(shape)
    angles = Llama(Shape(hidden=1, layers=0, heads=1, kv_heads=1, ffn=1, vocab=1, rope_theta=ROPE_THETA))
    model.cos, model.sin, model.mask = angles.cos, angles.sin, angles.mask
    weights = {name: weight for name, weight in target.state_dict().items() if name != "lm_head.weight"}
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add_arguments(parser, rate=0.01, tokens=3072)
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--proposer", choices=("medusa", "pass"), required=True)
    parser.add_argument("--heads", type=int, default=2, help="tokens of a proposal")
    args = parser.parse_args()

    lessons, target, states, frequent = prepare(args)
    config, embedding = target.config, target.model.embed_tokens.weight.detach()
    model = (Medusa if args.proposer == "medusa" else Lookahead)(config.hidden_size, args.heads)
    reader = plain_llama(target) if args.proposer == "pass" else None

    def vectors_of(batch: list[Lesson], ids: Tensor, offset: int) -> list[tuple[Tensor, Tensor]]:
        after = torch.arange(offset, ids.shape[1] - args.heads, STRIDE)
        if reader:
            vectors = model(reader, ids, after)[1].permute(2, 0, 1, 3)
        else:
            h = nn.utils.rnn.pad_sequence([states.h[lesson.at : lesson.at + len(lesson.tokens)] for lesson in batch], batch_first=True)
            vectors = model(h[:, after].float())
        return [(after + 1 + ahead, each) for ahead, each in enumerate(vectors)]

    judge = HeadJudge(states, embedding[frequent].contiguous(), vectors_of)
    distil(args.proposer, model, lessons, judge, args)
    best = torch.load(args.work / f"{args.proposer}-best.pt", weights_only=False)["model"]
    model.load_state_dict(best)
    save_tensors(model.tensors() if isinstance(model, Lookahead) else model.state_dict(), args.folder)
    written = {"proposer": args.proposer, "hidden_size": config.hidden_size, "vocab_size": config.vocab_size, **model.config}
    (args.folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
