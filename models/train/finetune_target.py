"""Fine-tunes a copy of the target so that it proposes better itself. The result is another target, with its own name.

  medusa       Medusa-2 (Cai et al., 2024, section 2.2.2): the trunk and trained Medusa heads together, at a small learning
               rate. The trunk is held to the distributions of the target that it comes from.
  layer_skip   LayerSkip (Elhoushi et al., 2024, arXiv 2404.16710): the loss of every exit, weighted by its depth,
               and layers left out at random, later ones more often.

Writes ../tiny-target-medusa or ../tiny-target-layer-skip, and the proposer's folder for it: medusa or layer_skip in
../tiny-target-medusa-heads or ../tiny-target-layer-skip-heads.
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from common import HERE, TARGET, Llama, load, save
from head_lessons import States, forward_kl, probabilities, stream_of
from heads import HEADS, Medusa, residual_stream
from parallel import MicroLoss, Plan, train
from train_heads import LENGTHS
from train_heads import save as save_proposer

HEAD_WEIGHT, HEAD_DECAY = 0.2, 0.8  # lambda_0 of Medusa-2, and its decay by head
EXIT_SCALE, LAYER_DROPOUT, ROTATION = 0.2, 0.1, 2  # e_scale, p_max and R of LayerSkip


class WithHeads(nn.Module):
    def __init__(self, target: Llama, heads: Medusa) -> None:
        super().__init__()
        self.target, self.heads = target, heads


def exit_weights(step: int) -> list[float]:
    """Weights of the losses after layer 1, 2, ..: deeper ones count more; all but the last take turns (equations 3 to 5)."""
    last = TARGET.layers - 1
    weights = [EXIT_SCALE * sum(range(layer + 1)) for layer in range(last)]
    weights = [w if (layer + step) % ROTATION == 0 else 0.0 for layer, w in enumerate(weights)]
    weights.append(last + EXIT_SCALE * sum(range(last)))
    return [w / sum(weights) for w in weights]


def kept_layers(rows: int) -> Tensor:
    """[layers, rows] of 0 and 1: layer l is left out with probability p_max (2^(l / (L - 1)) - 1) (equation 1)."""
    shares = torch.tensor([LAYER_DROPOUT * (math.exp(math.log(2) * layer / (TARGET.layers - 1)) - 1)
                           for layer in range(TARGET.layers)])
    return (torch.rand(TARGET.layers, rows) >= shares[:, None]).float()


def make_loss(method: str, target_folder: Path, work: Path, greedy_times: int, micro_tokens: int) -> MicroLoss:
    before = load(target_folder, TARGET)
    stream = stream_of(work, greedy_times)
    states = {length: States(work, stream, length, False) for length in LENGTHS}
    head = before.model.embed_tokens.weight.detach().to(torch.bfloat16)

    def medusa(model: WithHeads, inputs: Tensor, wanted: Tensor, step: int) -> Tensor:
        hidden = model.target(inputs)
        loss = forward_kl(model.target.logits(hidden).flatten(0, 1), wanted.flatten(0, 1))
        rows = inputs.shape[1] - HEADS
        for i, vectors in enumerate(model.heads(hidden[:, :rows])):
            after = wanted[:, 1 + i:1 + i + rows]
            loss = loss + HEAD_WEIGHT * HEAD_DECAY ** i * forward_kl(model.target.logits(vectors).flatten(0, 1),
                                                                    after.flatten(0, 1))
        return loss

    def layer_skip(model: Llama, inputs: Tensor, wanted: Tensor, step: int) -> Tensor:
        streams, _ = residual_stream(model, inputs, kept_layers(len(inputs)))
        return sum(weight * forward_kl(model.logits(model.model.norm(x)).flatten(0, 1), wanted.flatten(0, 1))
                   for weight, x in zip(exit_weights(step), streams[1:]) if weight)

    def loss(model: nn.Module, length: int, step: int, index: int, count: int, progress: float) -> Tensor:
        rows = max(micro_tokens // length, 1)
        inputs, hidden = states[length].rows(before, (step * count + index) * rows, rows)
        wanted = probabilities(F.linear(hidden, head))
        return (medusa if method == "medusa" else layer_skip)(model, inputs, wanted, step)

    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("medusa", "layer_skip"), required=True)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--target", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--heads", type=Path, default=HERE.parent / "tiny-heads" / "medusa",
                        help="trained Medusa heads to continue from")
    parser.add_argument("--out", type=Path,
                        help="folder for the target; default: ../tiny-target-medusa or -layer-skip; its heads go to <out>-heads")
    parser.add_argument("--exit-layer", type=int, default=2, help="layer after which layer_skip exits, for its config")
    parser.add_argument("--tokens", type=int, default=1 << 40)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--greedy-times", type=int, default=2, help="how often a pass over the data includes the greedy pieces")
    args = parser.parse_args()
    torch.manual_seed(6)
    target = load(args.target, TARGET)
    model = target
    if args.method == "medusa":
        heads = Medusa()
        heads.load_state_dict({name: t.float() for name, t in load_file(args.heads / "model.safetensors").items()})
        model = WithHeads(target, heads)
    # A tenth of the rates that the target and the heads were trained with.
    plan = Plan(tokens=args.tokens, minutes=args.minutes, step_tokens=4096, micro_tokens=1024, muon_lr=0.002,
                adam_lr=0.0003, weight_decay=0.1, lengths=[(0.9, LENGTHS[0]), (1, LENGTHS[1])])
    train(model, plan, args.processes, make_loss,
          (args.method, args.target, args.work, args.greedy_times, plan.micro_tokens),
          args.work / f"finetune-{args.method}.log", args.work / f"finetune-{args.method}.pt")
    out = args.out or HERE.parent / f"tiny-target-{args.method.replace('_', '-')}"
    save(target, out, args.target / "tokenizer.json")
    folder = out.with_name(out.name + "-heads") / args.method
    if args.method == "medusa":
        save_proposer("medusa", model.heads, Medusa.CONFIG, out, folder)
    else:
        save_proposer("layer_skip", None, {"exit_layer": args.exit_layer}, out, folder)


if __name__ == "__main__":
    main()
