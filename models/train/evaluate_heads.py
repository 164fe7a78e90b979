"""Measures the proposers of ../tiny-heads and the draft: how much of a chain of 4 tokens the target accepts.

  greedy    share of positions where the chain's first 1, 2, .. tokens are all what the target ranks first, on the
            target's own greedy continuations (128 tokens after 64 of the held-out book; drawn from no training text)
  accepted  at temperature 1, on the target's own samples: sum min(p, q) of token i given that those before were
            accepted. A chain takes the tokens of the text, x ~ p, and weighs it by the product of min(1, q(x)/p(x)) of
            the tokens before, which makes them distributed as accepted ones are; nothing is drawn.
  held out  sum min(p, q) of the first token on the held-out book itself

All in float32 on the files as saved. layer_skip's exits are a table of their own (--exits).
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

import common
from common import BOS, DRAFT, HERE, TARGET, VOCAB, Llama, load
from eagle import Eagle
from head_lessons import states_of
from heads import HEADS, Lookahead, residual_stream
from sample import write
from train_heads import new_model

PROMPT, NEW = 64, 128
# Rows of tokens after BOS [batch, time] -> logits [batch, time - HEADS, HEADS, vocabulary]: the proposal for t + 2,
# t + 3, ... of a round that has committed the tokens up to t + 1. The text's tokens replace the proposed ones.
Chains = Callable[[Tensor], Tensor]


def load_proposer(folder: Path) -> tuple[dict, torch.nn.Module]:
    config = json.loads((folder / "config.json").read_text())
    model = new_model(config["proposer"], config.get("eagle_version", 1), config.get("draft_vocab_size", 0))
    tensors = {name: t if name == "d2t" else t.float()
               for name, t in load_file(folder / "model.safetensors").items()}
    model.load_state_dict(model.in_training(tensors) if isinstance(model, Eagle) else tensors)
    return config, model.eval()


def windows(x: Tensor) -> Tensor:
    """[batch, time, ...] -> [batch, time - HEADS, HEADS, ...]: element i of t is that of t + 1 + i."""
    return torch.stack([x[:, 1 + i:x.shape[1] - HEADS + 1 + i] for i in range(HEADS)], 2)


def chains_of_llama(model: Llama) -> Chains:
    return lambda rows: windows(model.logits(model(rows)))


def chains_of_exit(target: Llama, layers: int) -> Chains:
    return lambda rows: windows(target.logits(target.model.norm(residual_stream(target, rows)[0][layers])))


def chains_of_eagle(target: Llama, model: Eagle) -> Chains:
    def chains(rows: Tensor) -> Tensor:
        states = states_of(target, rows, model.version == 3)
        read = states if model.version == 1 else states[..., :-TARGET.hidden]
        starts = torch.arange(rows.shape[1] - HEADS)
        outputs = model(target.model.embed_tokens(rows[:, 1:]), model.features(read[:, :-1]), HEADS, starts)
        vectors = torch.stack([outputs[0][:, starts], *outputs[1:]], 2)
        return target.logits(model.vectors(vectors))

    return chains if model.tokens is None else among(chains, model.tokens)


def chains_of_heads(target: Llama, model: torch.nn.Module) -> Chains:
    return lambda rows: target.logits(model(target(rows)[:, :-HEADS])).permute(1, 2, 0, 3)


def chains_of_lookahead(target: Llama, model: Lookahead) -> Chains:
    return lambda rows: target.logits(model(target, rows, torch.arange(rows.shape[1] - HEADS))[1])


def chains_of(folder: Path, target: Llama) -> Chains:
    config, model = load_proposer(folder)
    make = {"eagle": chains_of_eagle, "medusa": chains_of_heads, "blockwise": chains_of_heads,
            "pass": chains_of_lookahead}
    return make[config["proposer"]](target, model)


@torch.no_grad()
def measure(chains: Chains, target: Llama, greedy: Tensor, samples: Tensor, book: Tensor) -> dict:
    agreed, weights, shares, first = [], [], [], []
    for rows in greedy.split(4):
        inputs = torch.cat([torch.full((len(rows), 1), BOS), rows], 1)
        right = chains(inputs[:, :-1]).argmax(-1) == windows(rows)
        agreed.append(right[:, PROMPT - 1:].cumprod(-1).flatten(0, 1))
    for texts, own in ((samples, True), (book, False)):
        for rows in texts.split(2):
            inputs = torch.cat([torch.full((len(rows), 1), BOS), rows[:, :-1]], 1)
            p, q = windows(target.logits(target(inputs))).softmax(-1), chains(inputs).softmax(-1)
            share = torch.minimum(p, q).sum(-1)
            if not own:
                first.append(share[..., 0].flatten())
                continue
            token = windows(rows)[..., None]
            ratio = (q.gather(-1, token) / p.gather(-1, token)).clamp(max=1)[..., 0].cumprod(-1)
            weights.append(torch.cat([torch.ones_like(ratio[..., :1]), ratio[..., :-1]], -1).flatten(0, 1))
            shares.append(share.flatten(0, 1))
    weight, share = torch.cat(weights), torch.cat(shares)
    reached = torch.cat(agreed).float().mean(0)
    return {"greedy": [round(x, 3) for x in reached.tolist()],
            "accepted": [round(x, 3) for x in ((weight * share).sum(0) / weight.sum(0)).tolist()],
            "held_out": round(torch.cat(first).mean().item(), 3)}


def greedy_text(target: Llama, book: Tensor, rows: int) -> Tensor:
    prompts = book[:rows * 1024].view(rows, 1024)

    def choose(position: int, logits: Tensor) -> Tensor:
        return prompts[:, position, None] if position < PROMPT else logits.argmax(-1, keepdim=True)

    return write(target, rows, choose, PROMPT + NEW)


def among(chains: Chains, tokens: Tensor | list[int]) -> Chains:
    """The chains of a head with output rows for these tokens only."""
    mask = torch.full((VOCAB,), float("-inf"))
    mask[tokens] = 0.0
    return lambda rows: chains(rows) + mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*", help="default: all of ../tiny-heads that have weights")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--target", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--draft", type=Path, default=HERE.parent / "tiny-draft")
    parser.add_argument("--rows", type=int, default=64, help="rows of the target's greedy text")
    parser.add_argument("--samples", type=int, default=32, help="rows of 512 tokens of the target's samples")
    parser.add_argument("--book", type=int, default=64, help="windows of 256 tokens of the held-out book")
    parser.add_argument("--exits", action="store_true", help="measure the target's exits after 1, 2, .. layers instead of folders")
    parser.add_argument("--frequent", type=int,
                        help="propose only this many tokens, the first of the draft's frequent_tokens.json")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    common.ACTIVATIONS = torch.float32
    target = load(args.target, TARGET)
    book = torch.from_numpy(np.load(args.work / "heldout.npy").astype(np.int64))
    samples = torch.from_numpy(np.load(args.work / "samples-eval.npy").astype(np.int64))[:, :512]
    with torch.no_grad():
        greedy = greedy_text(target, book, args.rows)
    if args.exits:
        every = {f"exit {layers}": chains_of_exit(target, layers) for layers in range(1, TARGET.layers)}
    else:
        folders = args.folders or sorted(p.parent for p in (HERE.parent / "tiny-heads").glob("*/model.safetensors"))
        every = {"draft": chains_of_llama(load(args.draft, DRAFT)),
                 **{folder.name: chains_of(folder, target) for folder in folders}}
    ranked = json.loads((args.draft / "frequent_tokens.json").read_text())["tokens"]
    for name, chains in every.items():
        if args.frequent:
            chains = among(chains, ranked[:args.frequent])
        figures = measure(chains, target, greedy, samples[:args.samples], book[:args.book * 256].view(-1, 256))
        print(name, json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
