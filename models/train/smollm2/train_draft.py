#!/usr/bin/env python3
"""Distils a draft of a few layers from a chat model: begun from its first layers and its last, with its embedding, whose
rows of the most frequent tokens are the head. Forward KL divergence first, then total variation, which is what decides
acceptance (Leviathan et al. 2023, Theorem 3.5: alpha is 1 less it).

Can be ended at any time and goes on where it was; a checkpoint that is worse on the held-out conversations than the best
does not replace it.
"""

import argparse
import copy
import json
import math
import time
from pathlib import Path

import torch
from lessons import batches, load_target, padded, read_lessons
from torch import nn


class Draft(nn.Module):
    """Layers of the target between its embedding and its last norm, which are not trained."""

    def __init__(self, target: nn.Module, layers: list[int], frequent: torch.Tensor) -> None:
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
        self.register_buffer("head", decoder.embed_tokens.weight.detach()[frequent].float(), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The logits of the frequent tokens."""
        hidden = self.body(input_ids=ids, use_cache=False).last_hidden_state
        return hidden, self.head

    def trained(self) -> list[nn.Parameter]:
        return [p for name, p in self.body.named_parameters() if not name.startswith("embed_tokens")]


class Judge:
    """Compares what a draft expects with what the target says, on the tokens of answers."""

    def __init__(self, target: nn.Module, draft: Draft, frequent: torch.Tensor, longest: int) -> None:
        self.target, self.draft, self.frequent, self.longest = target, draft, frequent, longest

    def distributions(self, batch: list) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of the judged tokens: p of the frequent ones, the most likely token of all, and log q."""
        ids, judged = padded(batch, self.longest)
        with torch.no_grad():
            logits = self.target(ids, use_cache=False).logits[judged].float()
            best = logits.argmax(-1)
            p = logits.softmax(-1)[:, self.frequent]
        with torch.autocast("cpu", torch.bfloat16):
            hidden, head = self.draft(ids)
            q = nn.functional.linear(hidden[judged], head)
        return p, best, q.float().log_softmax(-1)

    @torch.no_grad()
    def evaluate(self, lessons: list) -> dict[str, float]:
        """alpha at temperature 1, and how often both have the same best token."""
        overlap = same = count = 0.0
        for batch in batches(lessons, 4096, self.longest, 0):
            p, best, log_q = self.distributions(batch)
            overlap += float(torch.minimum(p, log_q.exp()).sum())
            same += float((self.frequent[log_q.argmax(-1)] == best).sum())
            count += len(best)
        return {"alpha": overlap / count, "greedy": same / count, "tokens": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("lessons", type=Path)
    parser.add_argument("target", type=Path, help="a GGUF file")
    parser.add_argument("work", type=Path, help="a folder for checkpoints")
    parser.add_argument("--layers", default="0,1,29", help="of the target, that it begins from")
    parser.add_argument("--frequent", type=int, default=8192, help="rows of its head")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--kl-steps", type=int, default=1000, help="of them, by forward KL divergence")
    parser.add_argument("--tokens", type=int, default=6144, help="of a step, with padding")
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--longest", type=int, default=512)
    args = parser.parse_args()

    torch.manual_seed(1)
    args.work.mkdir(parents=True, exist_ok=True)
    taught, held_out = read_lessons(args.lessons, args.target)
    counts = torch.zeros(49152, dtype=torch.long)
    for lesson in taught:
        counts += torch.bincount(torch.tensor(lesson.tokens[lesson.begin :]), minlength=len(counts))
    frequent = counts.argsort(descending=True, stable=True)[: args.frequent].sort().values
    print(f"{len(taught)} lessons, {int(counts.sum())} tokens of answers, {len(held_out)} held out; the head has "
          f"{float(counts[frequent].sum() / counts.sum()):.4f} of them", flush=True)

    target = load_target(args.target)
    draft = Draft(target, [int(layer) for layer in args.layers.split(",")], frequent)
    judge = Judge(target, draft, frequent, args.longest)
    optimizer = torch.optim.AdamW(draft.trained(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.01)
    step, best, history = 0, 0.0, []
    last = args.work / "last.pt"
    if last.exists():
        saved = torch.load(last, weights_only=False)
        draft.load_state_dict(saved["draft"])
        optimizer.load_state_dict(saved["optimizer"])
        step, best, history = saved["step"], saved["best"], saved["history"]

    begun, passes = time.monotonic(), 0
    queue: list = []
    while step < args.steps:
        if not queue:
            queue = batches(taught, args.tokens, args.longest, 1000 + step)
            passes += 1
        rate = args.rate * min(1, (step + 1) / 50) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        p, _, log_q = judge.distributions(queue.pop())
        if step < args.kl_steps:
            loss = -(p * log_q).sum(-1).mean()
        else:
            loss = -torch.minimum(p, log_q.exp()).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(draft.trained(), 1.0)
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"{step} of {args.steps}: loss {float(loss.detach()):.4f}, {(time.monotonic() - begun) / 60:.1f} min", flush=True)
        if step % 100 == 0 or step == args.steps:
            found = judge.evaluate(held_out) | {"step": step, "minutes": (time.monotonic() - begun) / 60}
            history.append(found)
            print(json.dumps(found), flush=True)
            best = max(best, found["alpha"])
            torch.save({"draft": draft.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "best": best,
                        "history": history, "frequent": frequent, "layers": args.layers}, last)
            if found["alpha"] >= best:
                torch.save({"draft": draft.state_dict(), "frequent": frequent, "layers": args.layers, "found": found},
                           args.work / "best.pt")


if __name__ == "__main__":
    main()
