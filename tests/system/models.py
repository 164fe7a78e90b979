"""Copies of the shipped models with something changed."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

WEIGHTS = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
NAN = b"\xc0\x7f"  # as a bfloat16


def copy_of(model: Path, folder: Path) -> Path:
    copy = folder / model.name
    shutil.copytree(model, copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    return copy


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def write_tensors(path: Path, header: dict[str, Any], data: bytes) -> None:
    """Writes a safetensors file."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data stays aligned
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def edit_tensors(path: Path, change: Callable[[dict[str, Any], bytearray], object]) -> None:
    """Changes the header and the data of a safetensors file."""
    content = path.read_bytes()
    size, = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + size]), bytearray(content[8 + size:])
    change(header, data)
    write_tensors(path, header, data)


def with_nan_for(token: int, model: Path, folder: Path) -> Path:
    """A copy whose results are NaN once it has read `token`. Its head becomes a copy of the embedding without the NaN."""
    def change(header: dict[str, Any], data: bytearray) -> None:
        begin, end = header[EMBEDDING]["data_offsets"]
        _, width = header[EMBEDDING]["shape"]
        header["lm_head.weight"] = header[EMBEDDING] | {"data_offsets": [len(data), len(data) + end - begin]}
        data += data[begin:end]
        row = begin + 2 * width * token
        data[row:row + 2 * width] = NAN * width

    copy = copy_of(model, folder)
    edit(copy / "config.json", lambda config: config.update(tie_word_embeddings=False))
    edit_tensors(copy / WEIGHTS, change)
    return copy


def with_more_tokens(model: Path, folder: Path) -> Path:
    """A copy whose vocabulary has 64 more tokens, which occur in no text."""
    def change(header: dict[str, Any], data: bytearray) -> None:
        begin, end = header[EMBEDDING]["data_offsets"]
        rows, width = header[EMBEDDING]["shape"]
        more = data[begin:end] + bytes(2 * width * 64)
        header[EMBEDDING] |= {"shape": [rows + 64, width], "data_offsets": [begin, begin + len(more)]}
        for name, tensor in header.items():
            if name not in (EMBEDDING, "__metadata__") and tensor["data_offsets"][0] >= end:
                tensor["data_offsets"] = [offset + 2 * width * 64 for offset in tensor["data_offsets"]]
        data[begin:end] = more

    copy = copy_of(model, folder)
    edit(copy / "config.json", lambda config: config.update(vocab_size=config["vocab_size"] + 64))
    edit_tensors(copy / WEIGHTS, change)
    return copy


def quantised(model: Path, folder: Path) -> Path:
    """A copy whose layers are int8 with a scale for each row, as compressed-tensors stores them."""
    def change(header: dict[str, Any], data: bytearray) -> None:
        old = bytes(data)
        data.clear()

        def add(name: str, dtype: str, shape: list[int], content: bytes) -> None:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data.extend(content)

        tensors = {name: header.pop(name) for name in list(header) if name != "__metadata__"}
        for name, tensor in tensors.items():
            content = old[slice(*tensor["data_offsets"])]
            if not name.endswith("_proj.weight"):
                add(name, tensor["dtype"], tensor["shape"], content)
                continue
            weights = (np.frombuffer(content, "<u2").astype("<u4") << 16).view("<f4").reshape(tensor["shape"])
            scales = np.abs(weights).max(axis=1, keepdims=True) / 127
            add(f"{name}_scale", "F32", [len(scales), 1], scales.astype("<f4").tobytes())
            add(name, "I8", tensor["shape"], np.rint(weights / scales).astype(np.int8).tobytes())

    copy = copy_of(model, folder)
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    edit(copy / "config.json", lambda config: config.update(quantization_config={
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}))
    edit_tensors(copy / WEIGHTS, change)
    return copy


# --- other families --------------------------------------------------------------------------------------------

# The fields of config.json in which families differ.
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False, "sliding_window": 4096},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 9},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 9,
               "query_pre_attn_scalar": 16, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0}}


def random_model(folder: Path, family: str, tokenizer: Path, layers: int, padding: int = 10) -> Path:
    """A model of a family with random weights and a real tokenizer.json, whose vocabulary is padded as Qwen's is. Values
    depend on the names of tensors only, so what two models share is equal."""
    hidden, inner, heads, kv_heads, dim = 32, 48, 4, 2, 16
    content = json.loads(tokenizer.read_text())
    ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])]
    vocab = max(ids) + padding
    config = {"model_type": family, "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim,
              "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
              "eos_token_id": 2, "dtype": "float32"} | FAMILIES[family]
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        inside = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
                  "self_attn.q_proj.weight": (heads * dim, hidden), "self_attn.k_proj.weight": (kv_heads * dim, hidden),
                  "self_attn.v_proj.weight": (kv_heads * dim, hidden), "self_attn.o_proj.weight": (hidden, heads * dim),
                  "mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden),
                  "mlp.down_proj.weight": (hidden, inner)}
        if family == "qwen2":
            inside |= {f"self_attn.{name}_proj.bias": (inside[f"self_attn.{name}_proj.weight"][0],) for name in "qkv"}
        if family == "qwen3":
            inside |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
        if family == "gemma2":
            inside |= {f"{name}_feedforward_layernorm.weight": (hidden,) for name in ("pre", "post")}
        tensors |= {f"model.layers.{layer}.{name}": shape for name, shape in inside.items()}
    header: dict[str, Any] = {}
    data = bytearray()
    for name, shape in tensors.items():
        random = np.random.default_rng(crc32(name.encode()))
        values = random.normal(0, 0.2 if len(shape) == 2 else 0.1, shape) + ("norm" in name and family != "gemma2")
        begin = len(data)
        data += values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    write_tensors(folder / WEIGHTS, header, data)
    return folder
