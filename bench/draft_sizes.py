#!/usr/bin/env python3
"""Measures a chat model with drafts of several sizes, as Table 2 of Leviathan et al. (arXiv 2211.17192) does, as Markdown.

    .venv/bin/python bench/draft_sizes.py TARGET.gguf DRAFT.gguf... [--frequent 4096] [--each 4] [--json FILE]

A DRAFT has the layers that models/train/smollm2/write_draft.py wrote, and uses the target's embedding. Questions run in turns with plain
decoding, as in questions.py. Alpha is the accepted share with K = 1; c is a draft token's time in plain steps. Speed and operations by
Theorems 3.8 and 3.11 stand in brackets. Operations and weights read are counted from the rows that each model got, in those of plain
decoding; attention is left out.
"""

import argparse
import contextlib
import json
import subprocess
from pathlib import Path

import theorems
from compare_systems import chat_questions, machine
from outrider import Client
from overlap import PROGRAMS, start_pair
from questions import PLAIN, Mode, measure

LENGTHS = (1, 2, 3)


class Size:
    """The weights of a model: how many, and their bytes."""

    def __init__(self, model: str) -> None:
        command = [PROGRAMS / "bench_step", model, "auto", "--benchmark_filter=^rows:1/", "--benchmark_format=json"]
        output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        context = json.loads(output[output.index("{"):])["context"]
        self.weights, self.bytes, self.vocab = (int(context[name]) for name in ("parameters", "weight_bytes", "vocab_size"))
        self.head = self.vocab * int(context["hidden_size"])

    def use_frequent_tokens(self, count: int, layers: Path) -> None:
        """Leaves out the rows of the head that a draft of the `count` most frequent tokens skips."""
        layer_bytes, part = layers.stat().st_size, count / self.vocab
        self.weights -= round(self.head * (1 - part))
        self.bytes = layer_bytes + round((self.bytes - layer_bytes) * part)


def row(k: int, one: Mode, mode: Mode, plain: Mode, target: Size, draft: Size) -> dict:
    """What was measured with K = k, beside the theorems. `one` is the mode with K = 1."""
    alpha, c = one.accepted / one.drafted, mode.draft_us / mode.proposed / (plain.verify_us / plain.traced)
    c_hat = draft.weights / target.weights
    return {"k": k, "alpha": alpha, "c": c, "c_hat": c_hat, "tokens_per_call": mode.tokens / mode.rounds,
            "speed": mode.summary()["ratio"], "expected_speed": theorems.speed(alpha, c, k),
            "operations": (mode.rounds + mode.drafted * (1 + c_hat)) / mode.tokens,
            "expected_operations": theorems.operations(alpha, c_hat, k),
            "weights_read": (mode.rounds + mode.drafted * draft.bytes / target.bytes) / mode.tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="GGUF file")
    parser.add_argument("drafts", nargs="+", type=Path, help="GGUF files of layers")
    parser.add_argument("--frequent", type=int, default=4096, help="how many of the most frequent tokens the drafts know")
    parser.add_argument("--each", type=int, default=4, help="questions per set")
    parser.add_argument("--json", type=Path, help="file for the results")
    args = parser.parse_args()
    sets = chat_questions(args.each)
    asked = argparse.Namespace(modes=[f"model:{k}" for k in LENGTHS], turns=1, max_tokens=128)
    target_size = Size(args.target)
    results = []
    print(f"| draft | T | K | alpha | c | speed | operations | weights read |\n|{'---|' * 8}")
    for draft in args.drafts:
        model = f"{draft}+{args.target}"
        size = Size(model)
        size.use_frequent_tokens(args.frequent, draft)
        with contextlib.ExitStack() as stack:
            address = start_pair(stack, args.target, model, "--frequent-tokens", str(args.frequent))
            client = stack.enter_context(Client(address, timeout=600))
            for temperature in (0, 1):
                found, _ = measure(client, asked, temperature, sets)
                rows = [row(k, found["model:1"], found[f"model:{k}"], found[PLAIN], target_size, size) for k in LENGTHS]
                best = max(rows, key=lambda each: each["speed"])
                results.append({"draft": draft.stem, "weights": size.weights, "temperature": temperature, "rows": rows})
                print(f"| {draft.stem}, {size.weights / 1e6:.1f}M | {temperature} | {best['k']} | {best['alpha']:.2f} | {best['c']:.3f} | "
                      f"{best['speed']:.2f} ({best['expected_speed']:.2f}) | {best['operations']:.2f} ({best['expected_operations']:.2f}) | "
                      f"{best['weights_read']:.2f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
