#!/usr/bin/env python3
"""Writes what train_eagle.py has trained as a folder for `outrider-target --heads`, in bfloat16."""

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from eagle import Eagle
from lessons import ROPE_THETA, TAPS

from common import Shape, save_tensors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trained", type=Path, help="eagle-best.pt, which train_eagle.py wrote")
    parser.add_argument("tokens", type=Path, help="frequent_tokens.json in the same folder")
    parser.add_argument("folder", type=Path, help="folder to write")
    args = parser.parse_args()
    trained = torch.load(args.trained, weights_only=False)["model"]
    tokens = torch.tensor(sorted(json.loads(args.tokens.read_text())["tokens"]))
    version, layer = (3, "midlayer") if "norm.weight" in trained else (1, "layers.0")
    hidden, inner = trained[f"{layer}.mlp.down_proj.weight"].shape
    heads, kv_heads = (len(trained[f"{layer}.self_attn.{name}_proj.weight"]) // 64 for name in "qk")
    shape = Shape(hidden=hidden, layers=1, heads=heads, kv_heads=kv_heads, ffn=inner)
    model = Eagle(version, len(tokens), shape, TAPS, ROPE_THETA)
    model.load_state_dict(trained, strict=False)
    model.tokens = tokens
    save_tensors(model.tensors(), args.folder)
    config = {"proposer": "eagle", "hidden_size": hidden, **model.config}
    (args.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
