"""EAGLE (Li et al., 2024, arXiv 2401.15077) and EAGLE-3 (Li et al., 2025, arXiv 2503.01840).

The row of the token x_s, s >= 1, reads that token's embedding and the feature of the previous position. It is at
position s, sees the rows 1 .. s, and gives the feature of position s, whose logits are those of x_{s+1}. The first
row of a round reads a feature that the target computed. Each later row reads the output of the row before.

  version 1   feature: h_s, the output of the target's final norm; one Llama layer without its first norm
  version 3   feature of the target: fc of the residual stream after the layers FEATURE_LAYERS; of a row: its output
"""

import torch
from torch import Tensor, nn

import common
from common import MAX_POSITION, TARGET, Attention, Mlp, Norm, Shape, masked_softmax, rotate

SHAPE = Shape(hidden=TARGET.hidden, layers=1, heads=6, kv_heads=2, ffn=512)
FEATURE_LAYERS = (1, 3, 5)  # numbers of target layers after which the stream is read
# Embeddings are a tenth of h in size, but Muon's updates have the same size for all columns of fc. So fc is trained on
# embeddings scaled by this factor; the columns of the saved matrix contain the factor.
EMBEDDING_SCALE = 10.0


@torch.compile(dynamic=False)
def chain_softmax(scores: Tensor, own: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """scores [..., rows, columns] and own [..., rows, steps] -> weights that sum to one over both."""
    a, b = scores.float() * 0.125 + mask, own.float() * 0.125
    top = torch.maximum(a.amax(-1, keepdim=True), b.amax(-1, keepdim=True))
    a, b = (a - top).exp(), (b - top).exp()
    total = a.sum(-1, keepdim=True) + b.sum(-1, keepdim=True)
    return (a / total).to(common.ACTIVATIONS), (b / total).to(common.ACTIVATIONS)


class EagleLayer(nn.Module):
    def __init__(self, version: int, shape: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)
        self.post_attention_layernorm = Norm(shape.hidden)
        if version == 3:
            self.input_layernorm, self.hidden_norm = Norm(shape.hidden), Norm(shape.hidden)
            for name in ("q_proj", "k_proj", "v_proj"):
                old = getattr(self.self_attn, name)
                setattr(self.self_attn, name, nn.Linear(2 * shape.hidden, old.out_features, bias=False))


class Eagle(nn.Module):
    """Tensors "fc", "layers.0.*" (version 1); "fc", "midlayer.*", "norm" (version 3).

    With its own vocabulary of `draft_tokens` tokens, also "d2t", as in EAGLE-3's releases: its token i is the
    target's token i + d2t[i]. Its head has these rows of the target's head.
    """

    def __init__(self, version: int, draft_tokens: int = 0, shape: Shape = SHAPE,
                 feature_layers: tuple[int, ...] = FEATURE_LAYERS, rope_theta: float = 1e4) -> None:
        super().__init__()
        self.version, self.shape, self.feature_layers, self.rope_theta = version, shape, feature_layers, rope_theta
        self.register_buffer("d2t", torch.zeros(draft_tokens, dtype=torch.int64) if draft_tokens else None)
        width = shape.hidden
        self.fc = nn.Linear((2 if version == 1 else len(feature_layers)) * width, width, bias=False)
        if version == 1:
            self.layers = nn.ModuleList([EagleLayer(version, shape)])
        else:
            self.midlayer, self.norm = EagleLayer(version, shape), Norm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.01 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.03)
        angles = torch.outer(torch.arange(MAX_POSITION), rope_theta ** (-torch.arange(0, 64, 2) / 64))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    @property
    def tokens(self) -> Tensor | None:
        """The target's tokens that it proposes, in ascending order; None: all."""
        return None if self.d2t is None else self.d2t + torch.arange(len(self.d2t))

    @tokens.setter
    def tokens(self, tokens: Tensor) -> None:
        self.d2t.copy_(tokens - torch.arange(len(tokens)))

    @property
    def config(self) -> dict:
        shape = self.shape
        return {"eagle_version": self.version, "intermediate_size": shape.ffn, "num_attention_heads": shape.heads,
                "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "rms_norm_eps": 1e-5,
                "rope_theta": self.rope_theta, "max_position_embeddings": MAX_POSITION,
                **({"draft_vocab_size": len(self.d2t)} if self.d2t is not None else {}),
                **({"feature_layers": list(self.feature_layers)} if self.version == 3 else {})}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors as they are saved."""
        return self._scaled(self.state_dict(), EMBEDDING_SCALE)

    def in_training(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Converts the result of `tensors` back, for load_state_dict."""
        return self._scaled(tensors, 1 / EMBEDDING_SCALE)

    def _scaled(self, tensors: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
        tensors = {name: t.clone() for name, t in tensors.items()}
        if self.version == 1:
            tensors["fc.weight"][:, :self.shape.hidden] *= scale
        return tensors

    def features(self, states: Tensor) -> Tensor:
        """The features that rows read, from the target's: h (version 1), or the streams side by side (version 3)."""
        return states if self.version == 1 else self.fc(states)

    def vectors(self, outputs: Tensor) -> Tensor:
        """The vectors that the target's head turns into logits."""
        return outputs if self.version == 1 else self.norm(outputs)

    def forward(self, embeds: Tensor, features: Tensor, steps: int, starts: Tensor) -> list[Tensor]:
        """Chains of `steps` rows, as a round makes them: the training-time test of EAGLE-3.

        embeds, features [batch, rows, hidden]: for x_{r+1} and for position r, r = 0, 1, ... Returns the outputs
        of all rows that read the target's features, [batch, rows, hidden], then, for each further step j, the outputs of
        the chains that begin at the rows `starts` [n]: row j reads x_{start+1+j} and sees its own chain, and the rows of
        the first kind up to start. All `starts` are below rows - (steps - 1).
        """
        layer = self.layers[0] if self.version == 1 else self.midlayer
        every = torch.arange(embeds.shape[1])
        outputs, keys, values = [], [], []
        for step in range(steps):
            rows = every if step == 0 else starts
            if step == 1:
                features = outputs[0][:, starts]
            elif step > 1:
                features = outputs[-1]
            e = embeds if step == 0 else embeds[:, rows + step]
            x, residual = self._inputs(layer, e, features)
            q, k, v = self._project(layer.self_attn, x, rows + step + 1)
            if step == 1:  # from here on, the base has all rows and the queries are the chains
                mask = torch.where(every <= starts[:, None], 0.0, float("-inf"))
            if step == 0:
                mask = torch.full((len(every), len(every)), float("-inf")).triu(1)
            else:
                keys.append(k)
                values.append(v)
            base = (k, v) if step == 0 else base
            x = residual + layer.self_attn.o_proj(self._attend(q, base, keys, values, mask))
            outputs.append(x + layer.mlp(layer.post_attention_layernorm(x)))
        return outputs

    def _inputs(self, layer: EagleLayer, embeds: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        if self.version == 1:
            x = self.fc(torch.cat([(EMBEDDING_SCALE * embeds).to(features.dtype), features], -1)).float()
            return x, x
        return torch.cat([layer.input_layernorm(embeds), layer.hidden_norm(features)], -1), features

    def _project(self, attention: Attention, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cos, sin = self.cos[positions], self.sin[positions]
        v = attention.v_proj(x).view(*x.shape[:2], self.shape.kv_heads, self.shape.head_dim).transpose(1, 2)
        return rotate(attention.q_proj(x), cos, sin), rotate(attention.k_proj(x), cos, sin), v

    def _attend(self, q: Tensor, base: tuple[Tensor, Tensor], keys: list[Tensor], values: list[Tensor],
                mask: Tensor) -> Tensor:
        """base: keys and values of all rows; keys, values: those of the chains so far, one per query and step."""
        batch, heads, rows, dim = q.shape
        kv, columns = self.shape.kv_heads, base[0].shape[2]
        scores = torch.bmm(q.reshape(batch * kv, -1, dim), base[0].flatten(0, 1).transpose(1, 2))
        scores = scores.view(batch, kv, heads // kv, rows, columns)
        grouped = q.view(batch, kv, heads // kv, rows, dim)
        own = [(grouped * k[:, :, None]).sum(-1) for k in keys]
        if own:
            weights, own = chain_softmax(scores, torch.stack(own, -1), mask)
        else:
            weights = masked_softmax(scores, mask)
        out = torch.bmm(weights.view(batch * kv, -1, columns), base[1].flatten(0, 1))
        out = out.view(batch, kv, heads // kv, rows, dim)
        for step, v in enumerate(values):
            out = out + own[..., step, None] * v[:, :, None]
        return out.view(batch, heads, rows, dim).transpose(1, 2).reshape(batch, rows, -1)
