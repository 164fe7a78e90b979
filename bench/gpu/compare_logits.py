"""Compares the engine's logits on a GPU with those of transformers and of the engine on the CPU, for random models.

    python bench/gpu/compare_logits.py --program build/release/bin/bench_logits [--device cuda:0] [--json FILE]

Errors are root mean squares against transformers in float32 on the same (bfloat16) weights, and are stated as multiples
of the error that transformers makes in bfloat16. Then, to the bit: rows computed alone, in a batch, and in chunks.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_logits import ROWS, Engine, Prompts, alone, same_in_a_batch_and_in_chunks
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig

ROPE = dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=1024)
MODELS = {
    "head_dim 64, 4:1": dict(num_attention_heads=8, num_key_value_heads=2, head_dim=64, hidden_size=512,
                             tie_word_embeddings=True),
    "head_dim 128, 3:1": dict(num_attention_heads=6, num_key_value_heads=2, head_dim=128, hidden_size=768,
                              tie_word_embeddings=False),
    # Longer than a split of attention (256) and shorter than most prompts: splits lie within the window, across its
    # beginning, and before it.
    "window of 300": dict(num_attention_heads=8, num_key_value_heads=2, head_dim=64, hidden_size=512,
                          tie_word_embeddings=True, sliding_window=300,
                          rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
}
COMMON = dict(intermediate_size=1024, num_hidden_layers=4, vocab_size=4096, max_position_embeddings=8192,
              rope_parameters=ROPE, initializer_range=0.06, bos_token_id=1, eos_token_id=2, attention_dropout=0.0)
# Multiples of transformers' own error in bfloat16. e4m3 has four bits fewer.
LIMITS = {"bfloat16": 2.0, "fp8": 60.0}


def make_model(recipe: dict[str, Any], folder: Path) -> None:
    torch.manual_seed(1)
    config = MistralConfig if "sliding_window" in recipe else LlamaConfig
    model = AutoModelForCausalLM.from_config(config(**COMMON | recipe))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(folder)


def of_transformers(folder: Path, dtype: torch.dtype, prompts: Prompts, device: str) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    rows = []
    with torch.no_grad():
        for prompt in prompts:
            logits = model(torch.tensor([prompt], device=device), logits_to_keep=ROWS).logits
            rows.append(logits[0].float().cpu().numpy())
    return np.concatenate(rows)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def compare(name: str, folder: Path, options: argparse.Namespace) -> tuple[list[dict], list[dict]]:
    random = np.random.default_rng(1)
    longest = [17, 300, 1500] if options.quick else [17, 300, 4096]
    prompts = [random.integers(0, COMMON["vocab_size"], length).tolist()
               for length in [*longest, *random.integers(ROWS, 700, 14)]]
    exact = of_transformers(folder, torch.float32, prompts, options.device)
    peer = rms(of_transformers(folder, torch.bfloat16, prompts, options.device) - exact)
    short = [prompt for prompt in prompts if len(prompt) < 400][:4]
    rows_of_short = np.concatenate([np.arange(ROWS) + i * ROWS for i, prompt in enumerate(prompts) if prompt in short])
    cpu = Engine(options.program, folder, "cpu", "float32").logits(alone(short))
    errors = [{"model": name, "dtype": "float32 on the CPU", "against": "transformers in bfloat16",
               "ratio": rms(cpu - exact[rows_of_short]) / peer, "limit": 0.1}]
    invariance = []
    for dtype in ("bfloat16", "fp8"):
        engine = Engine(options.program, folder, options.device, dtype)
        one_by_one = engine.logits(alone(prompts))
        for against, error in (("transformers in bfloat16", one_by_one - exact),
                               ("transformers in bfloat16, from the CPU's", one_by_one[rows_of_short] - cpu)):
            errors.append({"model": name, "dtype": dtype, "against": against, "ratio": rms(error) / peer,
                           "limit": LIMITS[dtype]})
        same = same_in_a_batch_and_in_chunks(engine, prompts, one_by_one)
        invariance.append({"model": name, "dtype": dtype, "rows": len(one_by_one), "same": same})
    return errors, invariance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="path of bench_logits")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--scratch", type=Path, help="folder for the models; default: a temporary one")
    parser.add_argument("--quick", action="store_true", help="a longest prompt of 1500 tokens instead of 4096")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    result: dict[str, Any] = {"errors": [], "invariance": []}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        for number, (name, recipe) in enumerate(MODELS.items()):
            folder = Path(scratch) / str(number)
            make_model(recipe, folder)
            errors, invariance = compare(name, folder, options)
            result["errors"] += errors
            result["invariance"] += invariance
    for row in result["errors"]:
        print(f"{row['model']}, {row['dtype']}: {row['ratio']:.3f} of the error of {row['against']}")
    for row in result["invariance"]:
        bits = "the same" if row["same"] else "OTHER"
        print(f"{row['model']}, {row['dtype']}: {bits} bits alone, together, in chunks")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
