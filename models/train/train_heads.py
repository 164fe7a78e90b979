"""Trains a proposer of ../tiny-heads on the frozen target, and writes its folder.

It learns the target's own distributions: forward KL divergence first, then total variation, which decides acceptance.
layer_skip learns nothing: its folder only says after which layer the target exits (evaluate_heads.py --exits).
"""

import argparse
import json
from pathlib import Path

import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from common import HERE, TARGET, VOCAB, save_tensors
from eagle import Eagle
from head_lessons import stream_of
from head_losses import make_loss
from heads import Blockwise, Lookahead, Medusa
from parallel import Plan, train

LENGTHS = (256, 1024)  # of windows; the second for the last part of the run


def weights_hash(folder: Path) -> str:
    """The hash of the weights as the target computes it: XXH3 over all tensors by name (SafeTensors::Hash)."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    digest = xxhash.xxh3_64()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        assert tensor.dtype == torch.bfloat16
        digest.update(f"{name}\nBF16\n[{', '.join(map(str, tensor.shape))}]\n".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def new_model(proposer: str, version: int, draft_tokens: int = 0) -> nn.Module:
    if proposer == "eagle":
        return Eagle(version, draft_tokens)
    return {"medusa": Medusa, "blockwise": Blockwise, "pass": Lookahead}[proposer]()


def go_on_from(model: nn.Module, saved: Path) -> None:
    """Loads everything that was saved except the set of tokens that it proposes."""
    if saved.is_dir():
        tensors = {name: t.float() for name, t in load_file(saved / "model.safetensors").items() if name != "d2t"}
        tensors = model.in_training(tensors) if isinstance(model, Eagle) else tensors
    else:
        tensors = {name: t for name, t in torch.load(saved).items() if name != "d2t"}
    model.load_state_dict(tensors, strict=False)


def most_frequent(stream: Tensor, count: int) -> Tensor:
    return torch.bincount(stream, minlength=VOCAB).topk(count).indices.sort().values


def save(proposer: str, model: nn.Module | None, config: dict, target: Path, folder: Path) -> None:
    """Writes the folder; weights are rounded to bfloat16. A proposer without weights has no file for them."""
    folder.mkdir(parents=True, exist_ok=True)
    if model is not None:
        save_tensors(model.tensors() if hasattr(model, "tensors") else model.state_dict(), folder)
    config = {"proposer": proposer, "target_weights_hash": weights_hash(target), "hidden_size": TARGET.hidden,
              "vocab_size": VOCAB, **config}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proposer", choices=("eagle", "medusa", "blockwise", "pass", "layer_skip"), required=True)
    parser.add_argument("--version", type=int, choices=(1, 3), default=1, help="version of EAGLE")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--target", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--out", type=Path, help="folder to write; default: ../tiny-heads/<proposer>, or <proposer>3 for version 3")
    parser.add_argument("--tokens", type=int, default=1 << 40)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kl-until", type=float, default=0.5, help="share of the run that minimises the KL divergence")
    parser.add_argument("--regression", type=float, default=0.5, help="weight of the feature regression, in version 1 of EAGLE only")
    parser.add_argument("--greedy-times", type=int, default=2, help="how often a pass over the data includes the greedy pieces")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--draft-vocab", type=int, default=0, help="how many of the most frequent tokens EAGLE proposes; 0: all tokens")
    parser.add_argument("--exit-layer", type=int, default=1, help="layer after which layer_skip exits")
    parser.add_argument("--init", type=Path, help="continue from this checkpoint (such as work/eagle.pt) or folder")
    args = parser.parse_args()
    name = args.proposer if args.version == 1 else f"{args.proposer}{args.version}"
    out = args.out or HERE.parent / "tiny-heads" / name
    if args.proposer == "layer_skip":
        save(args.proposer, None, {"exit_layer": args.exit_layer}, args.target, out)
        return
    torch.manual_seed(5)
    model = new_model(args.proposer, args.version, args.draft_vocab)
    if args.init:
        go_on_from(model, args.init)
    if isinstance(model, Eagle) and args.draft_vocab:
        model.tokens = most_frequent(stream_of(args.work, args.greedy_times), args.draft_vocab)
    plan = Plan(tokens=args.tokens, minutes=args.minutes, step_tokens=4096, micro_tokens=1024,
                muon_lr=0.02 * args.rate, adam_lr=0.004 * args.rate, weight_decay=0.1,
                lengths=[(0.9, LENGTHS[0]), (1, LENGTHS[1])])
    regression = args.regression if args.proposer == "eagle" and args.version == 1 else 0.0
    train(model, plan, args.processes, make_loss,
          (args.proposer, args.version, args.target, args.work, LENGTHS, args.greedy_times, plan.micro_tokens,
           args.kl_until, regression),
          args.work / f"{name}.log", args.work / f"{name}.pt")
    save(args.proposer, model, model.config, args.target, out)


if __name__ == "__main__":
    main()
