"""Checks, to the bit, that rows of models of real shapes do not depend on how they are computed: alone, in a batch, in chunks.

    python bench/gpu/real_shapes.py --program build/release/bin/bench_logits --models DIR... [--device cuda:0] [--json FILE]

The weights must be such that there is something to compare: a row whose logits are all the same, or not finite, is a fault, and
so is one that stays the same when the first token of its prompt is another.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from engine_logits import ROWS, Engine, alone, same_bits, same_in_a_batch_and_in_chunks

LENGTHS = [17, 120, 300]


def fault_of(engine: Engine, lengths: list[int]) -> str:
    """The fault of the model's rows for prompts of these lengths; empty if there is none."""
    random = np.random.default_rng(1)
    prompts = [random.integers(0, engine.vocab, length).tolist() for length in lengths]
    others = [[(first + 1) % engine.vocab, *rest] for first, *rest in prompts]
    both = engine.logits(alone([*prompts, *others]))
    one_by_one, of_others = np.split(both, 2)
    for row, logits in enumerate(both):
        if not np.isfinite(logits).all():
            return f"LOGITS THAT ARE NOT FINITE, row {row}"
        if logits.min() == logits.max():
            return f"CONSTANT LOGITS, row {row}"
    deaf = [row for row in range(len(one_by_one)) if same_bits(one_by_one[row], of_others[row])]
    if deaf:
        return f"THE SAME BITS after another token, row {deaf[0]}"
    return "" if same_in_a_batch_and_in_chunks(engine, prompts, one_by_one) else "OTHER BITS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="path of bench_logits")
    parser.add_argument("--models", type=Path, nargs="+", required=True, metavar="DIR")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "fp8"])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help=f"prompt lengths in tokens, each above {ROWS}")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    found = []
    for model in options.models:
        for dtype in options.dtypes:
            fault = fault_of(Engine(options.program, model, options.device, dtype), options.lengths)
            found.append({"model": model.name, "dtype": dtype, "rows": ROWS * len(options.lengths), "fault": fault})
            print(f"{model.name}, {dtype}, alone, together, in chunks: {fault or 'the same bits'}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"invariance": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
