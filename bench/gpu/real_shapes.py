"""Checks, to the bit, that rows of models of real shapes do not depend on how they are computed: alone, in a batch, in chunks.

    python bench/gpu/real_shapes.py --program build/release/bin/bench_logits --models DIR... [--device cuda:0] [--json FILE]
"""

import argparse
import json
from pathlib import Path

import numpy as np

from engine_logits import ROWS, Engine, alone, same_in_a_batch_and_in_chunks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="bench_logits")
    parser.add_argument("--models", type=Path, nargs="+", required=True, metavar="DIR")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "fp8"])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="no prompt of 1500")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    lengths = [17, 300, *([] if options.quick else [1500]), *random.integers(ROWS, 600, 5)]
    rows = []
    for model in options.models:
        for dtype in options.dtypes:
            engine = Engine(options.program, model, options.device, dtype)
            prompts = [random.integers(0, engine.vocab, length).tolist() for length in lengths]
            one_by_one = engine.logits(alone(prompts))
            same = same_in_a_batch_and_in_chunks(engine, prompts, one_by_one)
            rows.append({"model": model.name, "dtype": dtype, "rows": len(one_by_one), "same": same})
            print(f"{model.name}, {dtype}: {'the same' if same else 'OTHER'} bits alone, together, in chunks", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"invariance": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
