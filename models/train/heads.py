"""Proposers that work on the target's hidden states, in plain PyTorch, with the tensor names of the published ones.

h_s is the output of the target's final norm for the token x_s, [hidden]. The target's tied head turns such a vector
into the logits of the token after it, so no head here has its own output weights.

  medusa      Cai et al., 2024 (arXiv 2401.10774): head i maps h_t to the vector of x_{t+2+i} by one residual block
  blockwise   Stern et al., 2018 (arXiv 1811.03115): the same with a feed-forward layer and ReLU
  pass        Monea et al., 2023 (arXiv 2311.13581): inputs for rows after the last token; the target does the rest
  eagle       in eagle.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import TARGET, Llama, masked_softmax, rotate

HEADS = 4  # tokens that medusa, blockwise and pass propose


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)  # the head begins as the target's own head
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(nn.ModuleList):
    """Tensors "{head}.0.linear.{weight,bias}". Returns vectors of the tokens after the next, [heads, ..., hidden]."""

    def __init__(self, hidden: int = TARGET.hidden, heads: int = HEADS) -> None:
        super().__init__(nn.ModuleList([Residual(hidden)]) for _ in range(heads))
        self.config = {"medusa_num_heads": heads, "medusa_num_layers": 1}

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.stack([head[0](hidden) for head in self])


class Blockwise(nn.ModuleList):
    """Tensors "{head}.{0,2}.{weight,bias}"."""
    INNER = 384

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(TARGET.hidden, self.INNER), nn.ReLU(),
                                       nn.Linear(self.INNER, TARGET.hidden)) for _ in range(HEADS))
        self.config = {"num_heads": HEADS, "intermediate_size": self.INNER}
        for head in self:
            nn.init.zeros_(head[2].weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.stack([hidden + head(hidden) for head in self])


class Lookahead(nn.Module):
    """Tensor "lookahead.weight", [rows, hidden]: the target's inputs in place of the embeddings of later tokens."""

    def __init__(self, hidden: int = TARGET.hidden, rows: int = HEADS) -> None:
        super().__init__()
        self.config = {"lookahead_tokens": rows}
        # Not a matrix that maps vectors; the optimiser recognises this by the name.
        self.embed_lookahead = nn.Parameter(0.02 * torch.randn(rows, hidden))

    def tensors(self) -> dict[str, Tensor]:
        return {"lookahead.weight": self.embed_lookahead}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.embed_lookahead.data.copy_(tensors["lookahead.weight"])

    def forward(self, target: Llama, tokens: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [batch, time]; a group of rows follows each of the positions `after` [groups].

        Returns the final norm's output for the tokens, [batch, time, hidden], and for the rows, [batch, groups, rows,
        hidden]. A group sees the tokens up to its position and itself, causally. No gradient goes through the tokens.
        """
        batch, time = tokens.shape
        groups, rows = len(after), len(self.embed_lookahead)
        places = (after[:, None] + 1 + torch.arange(rows)).flatten()
        sees_token = torch.arange(time) <= after.repeat_interleave(rows)[:, None]
        group, row = torch.arange(groups).repeat_interleave(rows), torch.arange(rows).repeat(groups)
        sees_row = (group[:, None] == group) & (row[:, None] >= row)
        mask = torch.where(torch.cat([sees_token, sees_row], 1), 0.0, float("-inf"))
        cos, sin = target.cos[places], target.sin[places]
        x = self.embed_lookahead.repeat(batch, groups, 1)
        with torch.no_grad():
            hidden, caches = trace(target, tokens)
        for layer, (keys, values) in zip(target.model.layers, caches):
            attention, y = layer.self_attn, layer.input_layernorm(x)
            own = attention.v_proj(y).view(batch, -1, target.shape.kv_heads, target.shape.head_dim).transpose(1, 2)
            out = attend(rotate(attention.q_proj(y), cos, sin),
                         torch.cat([keys, rotate(attention.k_proj(y), cos, sin)], 2),
                         torch.cat([values, own], 2), mask)
            x = x + attention.o_proj(out)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return hidden, target.model.norm(x).view(batch, groups, rows, -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [batch, heads, rows, dim], k and v [batch, key heads, columns, dim] -> [batch, rows, heads * dim]."""
    batch, heads, rows, dim = q.shape
    kv_heads, columns = k.shape[1:3]
    scores = torch.bmm(q.reshape(batch * kv_heads, -1, dim), k.flatten(0, 1).transpose(1, 2))
    weights = masked_softmax(scores.view(batch * kv_heads, heads // kv_heads, rows, columns), mask)
    out = torch.bmm(weights.view(batch * kv_heads, -1, columns), v.flatten(0, 1))
    return out.view(batch, heads, rows, dim).transpose(1, 2).reshape(batch, rows, -1)


def residual_stream(target: Llama, tokens: Tensor,
                    keep: Tensor | None = None) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """The streams after 0, 1, ... layers, [batch, time, hidden] each, and every layer's keys and values.

    keep: [layers, batch], 0 where a row skips the layer.
    """
    time = tokens.shape[1]
    cos, sin, mask = target.cos[:time], target.sin[:time], target.mask[:time, :time].contiguous()
    streams, caches = [target.model.embed_tokens(tokens)], []
    for index, layer in enumerate(target.model.layers):
        attention, y = layer.self_attn, layer.input_layernorm(streams[-1])
        k = rotate(attention.k_proj(y), cos, sin)
        v = attention.v_proj(y).view(len(tokens), time, target.shape.kv_heads, target.shape.head_dim).transpose(1, 2)
        x = streams[-1] + attention.o_proj(attend(rotate(attention.q_proj(y), cos, sin), k, v, mask))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        streams.append(x if keep is None else torch.lerp(streams[-1], x, keep[index, :, None, None]))
        caches.append((k, v))
    return streams, caches


def trace(target: Llama, tokens: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    streams, caches = residual_stream(target, tokens)
    return target.model.norm(streams[-1]), caches
