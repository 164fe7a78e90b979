"""Copies of the shipped models with something changed."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"
EMBEDDING = "model.embed_tokens.weight"
NAN = b"\xc0\x7f"  # of a bfloat16


def copy_of(model: Path, folder: Path) -> Path:
    copy = folder / model.name
    shutil.copytree(model, copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    return copy


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_tensors(path: Path, change: Callable[[dict[str, Any], bytearray], object]) -> None:
    """Changes the header and the data of a safetensors file."""
    content = path.read_bytes()
    size, = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8:8 + size]), bytearray(content[8 + size:])
    change(header, data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data stays aligned
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def with_nan_for(token: int, model: Path, folder: Path) -> Path:
    """A copy that computes no numbers once it has read a token. Its last matrix becomes one of its own, without the NaN."""
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
    """A copy whose vocabulary has 64 tokens more, which no text has."""
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
