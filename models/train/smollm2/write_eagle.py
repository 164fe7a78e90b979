#!/usr/bin/env python3
"""Writes what train_eagle.py has trained as a folder for `outrider-target --heads`, in bfloat16."""

import argparse
import json
from pathlib import Path

import torch
from lessons import TAPS
from safetensors.torch import save_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trained", type=Path, help="eagle-best.pt")
    parser.add_argument("tokens", type=Path, help="frequent_tokens.json of the same folder")
    parser.add_argument("folder", type=Path, help="to write")
    args = parser.parse_args()
    tensors = torch.load(args.trained, weights_only=False)["model"]
    tokens = torch.tensor(sorted(json.loads(args.tokens.read_text())["tokens"]))
    hidden, inner = tensors["midlayer.mlp.down_proj.weight"].shape
    heads, kv_heads = (len(tensors[f"midlayer.self_attn.{name}_proj.weight"]) // 64 for name in "qk")
    saved = {name: tensor.bfloat16().contiguous() for name, tensor in tensors.items()}
    saved["d2t"] = tokens - torch.arange(len(tokens))
    args.folder.mkdir(parents=True, exist_ok=True)
    save_file(saved, args.folder / "model.safetensors", metadata={"format": "pt"})
    (args.folder / "model.safetensors").chmod(0o644)  # written as 0600
    config = {"proposer": "eagle", "eagle_version": 3, "hidden_size": hidden, "intermediate_size": inner,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 64, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "draft_vocab_size": len(tokens), "feature_layers": list(TAPS)}
    (args.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
