"""Quantised checkpoints: small random models in each format, with the logits of their unpacked weights and
one of these weights, in tests/data/engine/.

The package compressed-tensors packs and unpacks its own format, and transformers uses it to compute the logits. No
package that reads GPTQ installs without a compiler, so GPTQ is packed here, in AutoGPTQ's layout, from known weights.
(AutoGPTQ 0.7.1's layers alone unpack the same weights from `gptq` and `gptq-order`.) AWQ is packed here too, and unpacked by
compressed-tensors.
"""

import json
import shutil

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from engine import OUT, random_model, write_goldens
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, LlamaConfig, Qwen2Config

SIZES = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=120)
WEIGHT = "model.layers.0.mlp.down_proj.weight"  # [48, 80]
POSITIONS = 40

LLAMA = dict(family=LlamaConfig, config=SIZES | dict(head_dim=16, tie_word_embeddings=False))
QWEN2 = dict(family=Qwen2Config, config=SIZES | dict(hidden_size=64, tie_word_embeddings=True))


def quantise(weight, group_of, bits, symmetric, dtype):
    """Unsigned levels [n, k], scales and zero points [n, groups] of the weights; `group_of` names each column's group."""
    top = 2**bits - 1
    scales, zeros = [], []
    for group in range(int(group_of.max()) + 1):
        part = weight[:, group_of == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / top).to(dtype).float()
        scales.append(scale)
        zeros.append(torch.full_like(scale, (top + 1) // 2) if symmetric else torch.round(-low / scale))
    scales, zeros = torch.stack(scales, 1), torch.stack(zeros, 1)
    levels = (torch.round(weight / scales[:, group_of]) + zeros[:, group_of]).clamp(0, top)
    return levels, scales, zeros


def words(levels, bits):
    """Packs the levels of each row into words of 32 bits, the first level in the lowest bits."""
    levels = levels.numpy().astype(np.uint32).reshape(levels.shape[0], -1, 32 // bits)
    packed = sum(levels[:, :, i] << np.uint32(bits * i) for i in range(32 // bits))
    return torch.from_numpy(packed.view(np.int32).copy())


class CompressedTensors:
    def __init__(self, layout, recipe, scale_dtype=torch.bfloat16, **weights):
        self.layout, self.recipe, self.scale_dtype = layout, recipe | dict(dtype=torch.bfloat16), scale_dtype
        self.args = QuantizationArgs(**weights)
        self.config = {"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
                       "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None,
                                                     "output_activations": None, "weights": self.args.model_dump(),
                                                     "format": layout}},
                       "ignore": ["lm_head"], "kv_cache_scheme": None}

    def pack(self, weight):
        columns = weight.shape[1]
        group_of = torch.arange(columns) // (self.args.group_size or columns)
        if self.args.type == "float":
            largest = weight.abs().amax() if self.args.strategy == "tensor" else weight.abs().amax(1, keepdim=True)
            scales, zeros = (largest / 448).reshape(-1, *[1] * (largest.dim() > 0)), None
        else:
            _, scales, zeros = quantise(weight, group_of, self.args.num_bits, self.args.symmetric, self.scale_dtype)
            zeros = None if self.args.symmetric else (zeros - 2**(self.args.num_bits - 1)).to(torch.int8)
        state = {"weight": weight, "weight_scale": scales.to(self.scale_dtype).float()}
        if zeros is not None:
            state["weight_zero_point"] = zeros
        scheme = QuantizationScheme(targets=["Linear"], weights=self.args)
        compressor = BaseCompressor.get_value_from_registry(self.layout)
        packed = compressor.compress(state, scheme)
        unpacked = compressor.decompress(packed, scheme)["weight"]
        packed["weight_scale"] = packed["weight_scale"].to(self.scale_dtype)
        return packed, unpacked

    def reference(self, folder, unpacked):
        # Weights unpacked at the first step are exact; weights unpacked during loading get the type of the scales.
        load = dict(quantization_config=CompressedTensorsConfig(dequantize=True)) if self.scale_dtype == torch.float32 else {}
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **load).eval()
        model(torch.zeros(1, 1, dtype=torch.long))
        for name, weight in unpacked.items():
            assert torch.equal(model.get_parameter(name), weight), name
        return model


class Known:
    """A format that transformers does not unpack; its weights are known."""

    def __init__(self, recipe):
        self.recipe = recipe | dict(dtype=torch.float16)

    def reference(self, folder, unpacked):
        plain = random_model(self.recipe | dict(dtype=torch.float32), seed=0)
        stored = {name: tensor.float() for name, tensor in self.state.items()}
        plain.load_state_dict(stored | unpacked)
        return plain.eval()


class Gptq(Known):
    def __init__(self, recipe, bits, group_size, desc_act, sym, checkpoint_format):
        super().__init__(recipe)
        self.config = {"quant_method": "gptq", "bits": bits, "group_size": group_size, "desc_act": desc_act, "sym": sym,
                       "lm_head": False, "true_sequential": True, "checkpoint_format": checkpoint_format}

    def pack(self, weight):
        columns, bits, size = weight.shape[1], self.config["bits"], self.config["group_size"]
        group_of = torch.arange(columns) // (columns if size == -1 else size)
        if self.config["desc_act"]:
            group_of = group_of[torch.randperm(columns)]
        levels, scales, zeros = quantise(weight, group_of, bits, self.config["sym"], torch.float16)
        unpacked = (levels - zeros[:, group_of]) * scales[:, group_of]
        less = 1 if self.config["checkpoint_format"] == "gptq" else 0
        assert (zeros >= less).all()
        return {"qweight": words(levels, bits).T.contiguous(), "qzeros": words(zeros.T.contiguous() - less, bits),
                "scales": scales.T.contiguous().half(), "g_idx": group_of.int()}, unpacked


class Awq(Known):
    def __init__(self, recipe, group_size):
        super().__init__(recipe)
        self.config = {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True,
                       "modules_to_not_convert": None}

    def pack(self, weight):
        group_of = torch.arange(weight.shape[1]) // self.config["group_size"]
        levels, scales, zeros = quantise(weight, group_of, 4, False, torch.float16)
        order = torch.arange(weight.shape[0]).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].flatten()
        packed = {"qweight": words(levels.T[:, order], 4), "qzeros": words(zeros.T[:, order], 4),
                  "scales": scales.T.contiguous().half()}
        found = AutoAWQConverter()._convert_gemm_module(packed["qweight"], packed["scales"], packed["qzeros"])
        unpacked = (found[0] - found[2][:, group_of]).float() * found[1].float()[:, group_of]
        assert torch.equal(unpacked, (levels - zeros[:, group_of]) * scales[:, group_of])
        return packed, unpacked


MODELS = {
    "fp8-rows": CompressedTensors("float-quantized", LLAMA, num_bits=8, type="float", strategy="channel"),
    "fp8-tensor": CompressedTensors("naive-quantized", LLAMA, torch.float32, num_bits=8, type="float", strategy="tensor"),
    "int8-rows": CompressedTensors("int-quantized", QWEN2, num_bits=8, type="int", strategy="channel"),
    "int8-zero-points": CompressedTensors("int-quantized", LLAMA, torch.float32, num_bits=8, type="int", strategy="channel",
                                          symmetric=False),
    "int4-packed": CompressedTensors("pack-quantized", LLAMA, num_bits=4, type="int", strategy="group", group_size=16),
    "int4-packed-zero-points": CompressedTensors("pack-quantized", LLAMA, torch.float32, num_bits=4, type="int", strategy="group",
                                                 group_size=16, symmetric=False),
    "gptq": Gptq(QWEN2, bits=4, group_size=16, desc_act=False, sym=True, checkpoint_format="gptq"),
    # In some matrices, the last group is smaller.
    "gptq-order": Gptq(LLAMA, bits=4, group_size=32, desc_act=True, sym=False, checkpoint_format="gptq"),
    "gptq8-v2": Gptq(LLAMA, bits=8, group_size=-1, desc_act=False, sym=False, checkpoint_format="gptq_v2"),
    "awq": Awq(LLAMA, group_size=16),
}


def make(name, way, seed):
    model = random_model(way.recipe, seed)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.config.save_pretrained(folder)
    tensors, unpacked = {}, {}
    way.state = model.state_dict()
    for key, tensor in way.state.items():
        module = key.removesuffix(".weight")
        if not module.endswith("_proj"):
            if not (key == "lm_head.weight" and model.config.tie_word_embeddings):
                tensors[key] = tensor.contiguous()
            continue
        packed, unpacked[key] = way.pack(tensor.float())
        tensors |= {f"{module}.{suffix}": part.contiguous() for suffix, part in packed.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": way.config}, indent=2) + "\n")
    unpacked[WEIGHT].numpy().astype("<f4").tofile(folder / "golden_weight.f32")
    write_goldens(folder, way.reference(folder, unpacked), POSITIONS)


def main():
    torch.set_num_threads(1)
    for seed, (name, way) in enumerate(MODELS.items()):
        make(name, way, seed)
