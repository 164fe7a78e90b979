"""bench_layers: both engines compute the same, and where they do not, the first stage that differs is named."""

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "data" / "engine"
NATIVE, TORCH = "native:cpu:float32", "torch:cpu:float32"


def layers(model: Path, *backends: str) -> tuple[int, list[str]]:
    """Exit code and lines of bench_layers."""
    done = subprocess.run([Path(os.environ["OUTRIDER_BIN"]) / "bench_layers", model, *backends], capture_output=True,
                          text=True)
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("model", ["gqa4-llama3-rope", "qwen2-bias", "qwen3-head-norms", "mistral-window"])
def test_both_engines_compute_the_same_stages(model: str) -> None:
    code, lines = layers(MODELS / model, NATIVE, TORCH)
    assert (code, lines[-1]) == (0, "no difference is larger than rounding explains")
    for passed in range(2):  # all stages are there, in the order of computation
        names = [line.split("  ")[1] for line in lines if line.startswith("  layer 1, ")][7 * passed:7 * passed + 7]
        assert names == [f"layer 1, {stage}" for stage in ("queries", "keys", "values", "attended", "after attention",
                                                           "activated", "after the MLP")]


def with_other(tensor: str, folder: Path) -> Path:
    """A copy of a model with one number of a tensor, the last one, changed."""
    copy = folder / "copy"
    shutil.copytree(MODELS / "mha-float32", copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    file = copy / "model.safetensors"
    content = bytearray(file.read_bytes())
    size, = struct.unpack("<Q", content[:8])
    entry = json.loads(content[8:8 + size])[tensor]
    assert entry["dtype"] == "F32"
    end = 8 + size + entry["data_offsets"][1]
    content[end - 4:end] = struct.pack("<f", 1 + struct.unpack("<f", content[end - 4:end])[0])
    file.write_bytes(content)
    return copy


CHANGED = {
    "model.layers.1.self_attn.q_proj.weight":
        "layer 1, queries: the residual stream before it agrees; norm, product, bias, norm of heads, rotation",
    "model.layers.1.self_attn.k_proj.weight":
        "layer 1, keys: queries agree; the keys' columns of the product, bias, norm, rotation, place in the cache",
    "model.layers.1.self_attn.v_proj.weight":
        "layer 1, values: queries and keys agree; the values' columns of the product, bias, place in the cache",
    "model.layers.0.self_attn.o_proj.weight":
        "layer 0, after attention: attended agrees; the product after attention, the sum",
    "model.layers.0.mlp.up_proj.weight":
        "layer 0, activated: after attention agrees; norm, products of gate and up, activation",
    "model.layers.1.mlp.down_proj.weight": "layer 1, after the MLP: activated agrees; the product down, the sum",
    "model.norm.weight": "logits: the residual stream after all layers agrees; last norm, last product",
}


@pytest.mark.parametrize("tensor", CHANGED)
@pytest.mark.parametrize("backend", [NATIVE, TORCH])
def test_one_other_weight_is_found_where_it_is(tensor: str, backend: str, tmp_path: Path) -> None:
    code, lines = layers(MODELS / "mha-float32", NATIVE, f"{backend}@{with_other(tensor, tmp_path)}")
    assert (code, lines[-1]) == (1, f"the first that differs: 280 rows, {CHANGED[tensor]}")


def test_another_window_is_found_in_attention(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(MODELS / "mistral-window", copy, copy_function=shutil.copyfile)
    copy.chmod(0o755)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"sliding_window": config["sliding_window"] - 1}))
    code, lines = layers(MODELS / "mistral-window", NATIVE, f"{TORCH}@{copy}")
    assert (code, lines[-1]) == (
        1, "the first that differs: 280 rows, layer 0, attended: queries, keys and values agree; attention")


def test_what_cannot_be_compared_is_named() -> None:
    assert layers(MODELS / "mha-float32", NATIVE, "torch:float32") == (
        1, ["bench_layers: 'torch:float32' is not ENGINE:DEVICE:DTYPE[@DIR]"])
    code, lines = layers(MODELS / "mha-float32", NATIVE, f"{NATIVE}@{MODELS / 'qwen2-bias'}")
    assert (code, lines) == (1, ["bench_layers: embedded: the engines do not show the same rows"])
