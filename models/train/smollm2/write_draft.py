#!/usr/bin/env python3
"""Writes the layers of the draft that train_draft.py trained as a quantised GGUF file. compose.py makes it a model that any
program for GGUF files loads, with the embedding and the tokenizer of the target's file.
"""

import argparse
from pathlib import Path

import torch
from compose import write
from gguf import GGMLQuantizationType, GGUFWriter, quants
from lessons import MASK

# A layer's tensors by llama.cpp's names and Hugging Face's.
NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
         "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp rotates pairs of neighbouring elements of a head, Hugging Face elements that are half a head apart."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("trained", type=Path, help="draft-best.pt, which train_draft.py wrote")
    parser.add_argument("file", type=Path, help="GGUF file to write")
    parser.add_argument("--parallel", action="store_true", help="it was trained with --parallel")
    parser.add_argument("--type", default="Q8_0", help="type of the matrices: Q8_0, Q4_0 or Q4_1")
    args = parser.parse_args()
    tensors = torch.load(args.trained, weights_only=False)["model"]
    packed = GGMLQuantizationType[args.type]
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("body.layers."))
    writer = GGUFWriter(args.file, "llama")
    writer.add_block_count(layers)
    if args.parallel:
        writer.add_mask_token_id(MASK)
    for layer in range(layers):
        for name, theirs in NAMES.items():
            weight = tensors[f"body.layers.{layer}.{theirs}.weight"].float()
            if name in ("attn_q", "attn_k"):
                weight = interleaved(weight, weight.shape[0] // 64)
            if weight.ndim == 1:
                writer.add_tensor(f"blk.{layer}.{name}.weight", weight.numpy())
            else:
                writer.add_tensor(f"blk.{layer}.{name}.weight", quants.quantize(weight.numpy(), packed), raw_dtype=packed)
    writer.add_tensor("output_norm.weight", tensors["body.norm.weight"].float().numpy())
    write(writer)


if __name__ == "__main__":
    main()
