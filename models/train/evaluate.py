"""Measures the saved pair as transformers loads it; by default the shipped files.

  held-out loss     nats per token of each model on the held-out book, in windows of 1024 tokens after a BOS
  acceptance        mean over positions of sum min(p, q) at temperature 1
  greedy agreement  share of positions where both models rank the same token first
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from common import BOS, HERE, MAX_POSITION

PROMPTS = ("The captain came up on deck and", "Mr. President, the people of this country",
           "\"I do not believe it,\" said Emma,", "Once upon a time there was a little")


@torch.no_grad()
def compare(target, draft, rows: Tensor) -> dict[str, float]:
    """rows: [n, length] tokens, judged after a BOS."""
    loss, accepted, agreed, draft_loss = [], [], [], []
    for row in rows.split(4):
        inputs = torch.cat([torch.full((len(row), 1), BOS), row[:, :-1]], 1)
        p, q = (model(inputs).logits.float().log_softmax(-1) for model in (target, draft))
        loss.append(-p.gather(-1, row[..., None]).flatten())
        draft_loss.append(-q.gather(-1, row[..., None]).flatten())
        accepted.append(torch.minimum(p, q).exp().sum(-1).flatten())
        agreed.append((p.argmax(-1) == q.argmax(-1)).float().flatten())
    means = (torch.cat(values).mean().item() for values in (loss, draft_loss, accepted, agreed))
    return dict(zip(("target_loss", "draft_loss", "acceptance", "greedy_agreement"), (round(m, 4) for m in means)))


@torch.no_grad()
def greedy_output(target, rows: Tensor, prompt: int = 64, new: int = 128) -> Tensor:
    inputs = torch.cat([torch.full((len(rows), 1), BOS), rows[:, :prompt]], 1)
    out = target.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new, min_new_tokens=new,
                          do_sample=False, pad_token_id=0)
    return out[:, 1:]


@torch.no_grad()
def greedy_agreement(target, draft, rows: Tensor, prompt: int = 64) -> float:
    """On the target's own text: the share of positions where the draft's top token is the next one."""
    out = greedy_output(target, rows, prompt)
    inputs = torch.cat([torch.full((len(out), 1), BOS), out[:, :-1]], 1)
    return (draft(inputs).logits.argmax(-1) == out)[:, prompt:].float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--target", type=Path, default=HERE.parent / "tiny-target")
    parser.add_argument("--draft", type=Path, default=HERE.parent / "tiny-draft")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target, draft = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
                     for folder in (args.target, args.draft))
    book = torch.from_numpy(np.load(args.work / "heldout.npy").astype(np.int64))
    book = book[:len(book) // MAX_POSITION * MAX_POSITION].view(-1, MAX_POSITION)
    samples = torch.from_numpy(np.load(args.work / "samples-eval.npy").astype(np.int64))
    print(json.dumps({
        "held_out": compare(target, draft, book),
        "own_samples": compare(target, draft, samples),
        "greedy_agreement_on_own_greedy_output": round(greedy_agreement(target, draft, book[:64]), 4),
    }, indent=2))
    tokenizer = AutoTokenizer.from_pretrained(args.target)
    torch.manual_seed(3)
    for text in PROMPTS:
        inputs = tokenizer(text, return_tensors="pt")
        out = target.generate(inputs.input_ids, attention_mask=inputs.attention_mask, do_sample=True,
                              temperature=0.7, top_p=0.9, max_new_tokens=80, pad_token_id=0)
        print("\n---\n" + tokenizer.decode(out[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
