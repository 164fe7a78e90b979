"""Runs the pair of bench_shape in another system on the same GPU: assisted generation in transformers, or a torch loop.

    python bench/gpu/other_systems.py transformers --pair DIR --alphas .6 .7 .8 .9 [--device cuda:0] [--seconds 80] [--json FILE]

One sequence, temperature 1, bfloat16. DIR is a folder that bench_shape --pair has written with these alphas.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

KS = (2, 4)
PROMPT_TOKENS = 8
TOKENS_OF_WORLD = 200  # ids per alpha (bench/controlled_pair.h)

Row = dict[str, Any]


def prompt_of(world: int) -> list[int]:
    return [world * TOKENS_OF_WORLD] * PROMPT_TOKENS


def of_transformers(options: argparse.Namespace) -> Iterator[tuple[str, float | None, Callable[[], float]]]:
    """Yields the measurements: (name, alpha, function that measures)."""
    from transformers import AutoModelForCausalLM

    def load(name: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(options.pair / name, dtype=torch.bfloat16)
        model = model.to(options.device).eval()
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        return model

    target, draft = load("shape-3B"), load("shape-1B")

    def rate(world: int, **how: Any) -> float:
        prompt = torch.tensor([prompt_of(world)], device=options.device)
        for _ in range(2):  # the first pass warms up: a static cache is compiled for its length
            torch.cuda.synchronize()
            start = time.monotonic()
            answer = target.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
                                     max_new_tokens=options.tokens, **how)
            torch.cuda.synchronize()
        return (answer.shape[1] - PROMPT_TOKENS) / (time.monotonic() - start)

    yield "plain", None, lambda: rate(0)
    yield "plain, static cache", None, lambda: rate(0, cache_implementation="static")
    for k in KS:
        for world, alpha in enumerate(options.alphas):
            def assisted(world: int = world, k: int = k) -> float:
                draft.generation_config.num_assistant_tokens = k
                draft.generation_config.num_assistant_tokens_schedule = "constant"
                draft.generation_config.assistant_confidence_threshold = 0.0
                return rate(world, assistant_model=draft)

            yield f"assisted, K = {k}, alpha {alpha}", alpha, assisted


def of_torch(options: argparse.Namespace) -> Iterator[tuple[str, float | None, Callable[[], float]]]:
    from torch_loop import Loop, rate

    loop = Loop(options.pair / "shape-3B", options.pair / "shape-1B", options.device)
    yield "plain", None, lambda: rate(loop, prompt_of(0), options.tokens, 0)
    for k in KS:
        for world, alpha in enumerate(options.alphas):
            yield (f"K = {k}, alpha {alpha}", alpha,
                   lambda world=world, k=k: rate(loop, prompt_of(world), options.tokens, k))


SYSTEMS = {"torch-loop": of_torch, "transformers": of_transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--pair", type=Path, required=True, help="folder that bench_shape --pair wrote")
    parser.add_argument("--alphas", type=float, nargs="+", required=True, help="the alphas given to bench_shape")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per generation")
    parser.add_argument("--seconds", type=float, default=80,
                        help="time limit; a measurement that would exceed it, judged by the longest so far, is left out")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    end, longest = time.monotonic() + options.seconds, 0.0
    torch.cuda.set_device(options.device)
    rows: list[Row] = []
    left_out: list[Row] = []
    with torch.inference_mode():
        try:
            for mode, alpha, measure in SYSTEMS[options.system](options):
                start = time.monotonic()
                if start + longest > end:
                    left_out.append({"system": options.system, "mode": mode, "reason": "out of time"})
                    continue
                row = {"system": options.system, "mode": mode, "alpha": alpha, "tokens_per_second": measure()}
                print(f"{options.system}, {mode}: {row['tokens_per_second']:.1f} tokens/s", flush=True)
                rows.append(row)
                longest = max(longest, time.monotonic() - start)
        except Exception as error:  # a failure of another system is reported and does not end the comparison
            left_out.append({"system": options.system, "mode": "all that follows",
                             "reason": f"{type(error).__name__}: {error}"})
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": rows, "left_out": left_out}, indent=1) + "\n")


if __name__ == "__main__":
    main()
