"""The model (Llama in plain PyTorch, parameters named as Hugging Face names them) and its files."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
VOCAB, BOS, EOS, MAX_POSITION = 4096, 4094, 4095, 1024
torch._dynamo.config.recompile_limit = 64  # one per shape: few, but more than the default of 8
BLOCK = 256  # queries that attention handles at a time
ACTIVATIONS = torch.bfloat16  # float32: set it before the first call, and call without autocast
# The models know prose but no roles: the system message comes first, and every other turn is a paragraph that
# names its speaker.
CHAT_TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '' if message['role'] == 'system' else message['role'] | capitalize + ': ' }}"
    "{{- message['content'] | trim + '\\n\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- 'Assistant:' }}{%- endif %}")


@dataclass(frozen=True)
class Shape:
    """What differs between models."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    head_dim: int = 64
    vocab: int = VOCAB
    rope_theta: float = 1e4


TARGET = Shape(hidden=384, layers=6, heads=6, kv_heads=2, ffn=1024)
DRAFT = Shape(hidden=192, layers=2, heads=3, kv_heads=1, ffn=512)


# The pointwise parts are compiled one by one: uncompiled, they take a third of a step, and compiling the whole
# model was slower.
@torch.compile(dynamic=False)
def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * weight).to(ACTIVATIONS)


@torch.compile(dynamic=False)
def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding; [batch, time, heads * dim] -> [batch, heads, time, dim]."""
    batch, time, width = x.shape
    y = x.view(batch, time, width // 64, 64).transpose(1, 2).float()
    a, b = y[..., :32], y[..., 32:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(ACTIVATIONS)


@torch.compile(dynamic=False)
def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(scores.float() * 0.125 + mask, -1).to(ACTIVATIONS)


@torch.compile(dynamic=False)
def gated(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up.float()).to(ACTIVATIONS)


class Dropout:
    """Dropout from a pool of random bits drawn once: drawing new bits each time took 6 % of the time."""
    POOL = 1 << 23

    def __init__(self, share: float) -> None:
        self.share, self.pool = share, None

    def __call__(self, x: Tensor) -> Tensor:
        if self.pool is None:
            self.pool = (torch.rand(self.POOL) >= self.share).to(torch.bfloat16) / (1 - self.share)
        begin = int(torch.randint(self.POOL - x.numel(), ()))
        return x * self.pool[begin:begin + x.numel()].view(x.shape)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: list | None) -> Tensor:
        s = self.shape
        batch, time, _ = x.shape
        q = rotate(self.q_proj(x), cos, sin)
        k = rotate(self.k_proj(x), cos, sin)
        v = self.v_proj(x).view(batch, time, s.kv_heads, s.head_dim).transpose(1, 2)
        if cache is not None:
            return self.o_proj(self.attend_one(q, k, v, cache).reshape(batch, 1, -1))
        # All queries that share a key head are rows of one product; a block of queries reads no keys after the block.
        group = s.heads // s.kv_heads
        outs = []
        for begin in range(0, time, BLOCK):
            end = min(begin + BLOCK, time)
            rows = q[:, :, begin:end].reshape(batch * s.kv_heads, -1, s.head_dim)
            keys = k[:, :, :end].reshape(batch * s.kv_heads, end, s.head_dim)
            values = v[:, :, :end].reshape(batch * s.kv_heads, end, s.head_dim)
            scores = torch.bmm(rows, keys.transpose(1, 2)).view(batch * s.kv_heads, group, end - begin, end)
            weights = masked_softmax(scores, mask[begin:end, :end].contiguous())
            out = torch.bmm(weights.view(batch * s.kv_heads, group * (end - begin), end), values)
            outs.append(out.view(batch, s.heads, end - begin, s.head_dim))
        out = torch.cat(outs, 2).transpose(1, 2).reshape(batch, time, -1)
        return self.o_proj(out)

    def attend_one(self, q: Tensor, k: Tensor, v: Tensor, cache: list) -> Tensor:
        """One new token for each row. It sees everything in the cache, so no mask is needed."""
        keys, values, length = cache
        keys[:, :, length:length + 1], values[:, :, length:length + 1] = k, v
        cache[2] = length + 1
        q = q.view(len(q), self.shape.kv_heads, -1, self.shape.head_dim)
        return F.scaled_dot_product_attention(q, keys[:, :, :length + 1], values[:, :, :length + 1])


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down_proj = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(shape.hidden), Norm(shape.hidden)
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)


class Backbone(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)


class Llama(nn.Module):
    """Call it under autocast to bfloat16. The tied head is applied by logits()."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.dropout = Dropout(dropout)
        self.model = Backbone(shape)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if residual else 0.02)
        angles = torch.outer(torch.arange(MAX_POSITION), shape.rope_theta ** (-torch.arange(0, 64, 2) / 64))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        mask = torch.full((MAX_POSITION, MAX_POSITION), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor, caches: list | None = None) -> Tensor:
        """The final norm's output, [batch, time, hidden]. caches: per layer [keys, values, length]; then time is 1."""
        start, time = (caches[0][2] if caches else 0), tokens.shape[1]
        cos, sin = self.cos[start:start + time], self.sin[start:start + time]
        drop = self.dropout if self.training and self.dropout.share > 0 else lambda y: y
        x = drop(self.model.embed_tokens(tokens))
        for i, layer in enumerate(self.model.layers):
            cache = caches[i] if caches else None
            a = layer.self_attn(layer.input_layernorm(x), cos, sin, self.mask, cache)
            x = x + drop(a)
            m = layer.mlp(layer.post_attention_layernorm(x))
            x = x + drop(m)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)

    def new_caches(self, batch: int) -> list:
        s = self.shape
        return [[torch.empty(batch, s.kv_heads, MAX_POSITION, s.head_dim, dtype=ACTIVATIONS),
                 torch.empty(batch, s.kv_heads, MAX_POSITION, s.head_dim, dtype=ACTIVATIONS), 0]
                for _ in range(s.layers)]


def load(folder: Path, shape: Shape) -> Llama:
    model = Llama(shape)
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return model.eval()


def save_tensors(tensors: dict[str, Tensor], folder: Path) -> None:
    """Writes model.safetensors; floating-point numbers are rounded to bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: (t.bfloat16() if t.is_floating_point() else t).detach().contiguous() for name, t in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # written as 0600


def save(model: Llama, folder: Path, tokenizer: Path) -> None:
    """Writes the Hugging Face folder; weights are rounded to bfloat16."""
    s = model.shape
    save_tensors(model.state_dict(), folder)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": s.hidden,
        "intermediate_size": s.ffn, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": MAX_POSITION, "vocab_size": VOCAB,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "pretraining_tp": 1, "use_cache": True, "bos_token_id": BOS,
        "eos_token_id": EOS, "torch_dtype": "bfloat16"}
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "do_sample": False}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>", "model_max_length": MAX_POSITION, "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE}
    for name, content in (("config", config), ("generation_config", generation),
                          ("tokenizer_config", tokenizer_config)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
