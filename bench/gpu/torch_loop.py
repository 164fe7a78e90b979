"""Speculative decoding as a minimal loop of torch, in the style of pytorch-labs/gpt-fast, for comparison with the
services: one sequence, a static cache, a CUDA graph for each shape of step, sampling on the device.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

CACHE = 1024


class Llama:
    """The forward pass of a model for `rows` tokens from a position on, with a CUDA graph per number of rows."""

    def __init__(self, folder: Path, device: str) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        c = self.config
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        weights = load_file(folder / "model.safetensors", device=device)
        self.embed, self.norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
        self.head = weights.get("lm_head.weight", self.embed)
        self.layers = []
        for layer in range(c["num_hidden_layers"]):
            w = {name.removeprefix(f"model.layers.{layer}."): tensor for name, tensor in weights.items()
                 if name.startswith(f"model.layers.{layer}.")}
            qkv = torch.cat([w[f"self_attn.{x}_proj.weight"] for x in "qkv"])
            up = torch.cat([w["mlp.gate_proj.weight"], w["mlp.up_proj.weight"]])
            cache = torch.zeros(2, 1, self.kv_heads, CACHE, self.dim, dtype=torch.bfloat16, device=device)
            self.layers.append((w["input_layernorm.weight"], qkv, w["self_attn.o_proj.weight"],
                                w["post_attention_layernorm.weight"], up, w["mlp.down_proj.weight"], cache))
        del weights
        frequency = c["rope_theta"] ** (-torch.arange(0, self.dim, 2, device=device).float() / self.dim)
        angles = torch.outer(torch.arange(CACHE, device=device).float(), torch.cat([frequency, frequency]))
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        self.columns = torch.arange(CACHE, device=device)
        self.device, self.graphs = device, {}

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = self.dim // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def compute(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = F.embedding(tokens, self.embed)
        rows, hidden, epsilon = x.shape[0], x.shape[1], self.config["rms_norm_eps"]
        cos, sin = self.cos[positions], self.sin[positions]
        mask = (self.columns[None, :] <= positions[:, None])[None, None]
        for attention_norm, qkv, out, mlp_norm, up, down, cache in self.layers:
            q, k, v = F.linear(F.rms_norm(x, (hidden,), attention_norm, epsilon), qkv).view(rows, -1, self.dim).split(
                [self.heads, self.kv_heads, self.kv_heads], 1)
            q, k = self.rotate(q.transpose(0, 1), cos, sin), self.rotate(k.transpose(0, 1), cos, sin)
            cache[0, 0].index_copy_(1, positions, k)
            cache[1, 0].index_copy_(1, positions, v.transpose(0, 1).contiguous())
            y = F.scaled_dot_product_attention(q[None], cache[0], cache[1], attn_mask=mask, enable_gqa=True)
            x = x + F.linear(y[0].transpose(0, 1).reshape(rows, -1), out)
            gate, value = F.linear(F.rms_norm(x, (hidden,), mlp_norm, epsilon), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * value, down)
        return torch.softmax(F.linear(F.rms_norm(x, (hidden,), self.norm, epsilon), self.head).float(), -1)

    def probabilities(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """[rows, vocab], valid until the next call with the same number of rows."""
        rows = tokens.shape[0]
        if rows not in self.graphs:
            inputs = tokens.clone(), torch.arange(position, position + rows, device=self.device)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())  # it draws the tokens
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.compute(*inputs)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = self.compute(*inputs)
            self.graphs[rows] = graph, *inputs, output
        graph, static_tokens, static_positions, output = self.graphs[rows]
        static_tokens.copy_(tokens)
        static_positions.copy_(torch.arange(position, position + rows, device=self.device))
        graph.replay()
        return output


def draw(p: torch.Tensor) -> torch.Tensor:
    """Draws a token from each row, without synchronising."""
    return (p / torch.empty_like(p).exponential_()).argmax(-1)


class Loop:
    def __init__(self, target: Path, draft: Path, device: str) -> None:
        self.target, self.draft = Llama(target, device), Llama(draft, device)
        self.device = device

    def generate(self, prompt: list[int], count: int, k: int) -> int:
        """Generates at temperature 1; returns the number of tokens, at least `count`."""
        tokens = torch.tensor(prompt, device=self.device)
        committed = len(prompt)
        last = draw(self.target.probabilities(tokens, 0)[-1:])
        if k > 0:
            self.draft.probabilities(tokens, 0)
        done, behind = 1, last[:0]  # committed tokens that are not in the draft's cache
        while done < count:
            if k == 0:
                last = draw(self.target.probabilities(last, committed))
                committed, done = committed + 1, done + 1
                continue
            drafted, q = [], []
            feed, position = torch.cat([behind, last]), committed - behind.shape[0]
            for _ in range(k):
                p = self.draft.probabilities(feed, position)[-1:]
                q.append(p.clone())
                position += feed.shape[0]
                feed = draw(p)
                drafted.append(feed)
            guess, q_all = torch.cat(drafted), torch.cat(q)
            p_all = self.target.probabilities(torch.cat([last, guess]), committed)
            index = guess[:, None]
            taken = torch.rand(k, device=self.device) * q_all.gather(1, index)[:, 0] < p_all[:k].gather(1, index)[:, 0]
            accepted = int(taken.int().cumprod(0).sum())  # the only synchronisation of a round
            if accepted == k:
                last, behind = draw(p_all[k:]), guess[k - 1:]
            else:
                residual = (p_all[accepted] - q_all[accepted]).clamp_min(0)
                last, behind = draw(residual[None]), guess[:0]
            committed, done = committed + accepted + 1, done + accepted + 1
        return done


def rate(loop: Loop, prompt: list[int], count: int, k: int) -> float:
    """Tokens per second, without the prompt."""
    clock = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    assert len(prompt) + count + k + 1 < CACHE
    loop.generate(prompt, 4 * (k + 1), k)  # captures the graphs
    clock[0].record()
    tokens = loop.generate(prompt, count, k)
    clock[1].record()
    torch.cuda.synchronize()
    seconds = clock[0].elapsed_time(clock[1]) / 1e3
    return tokens / seconds if seconds > 0 else math.nan
