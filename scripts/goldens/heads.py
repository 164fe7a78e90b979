"""What the proposers of models/tiny-heads give after a few prompts, in tests/data/engine/heads.json: the best tokens and
their logits, computed in float32 from the saved weights, the target by transformers, the heads as their papers have them.

Each case has a prompt's tokens and the target's next token y. For each proposer it has a list of rows, one per proposed
token from the one after y on. Those of EAGLE are a greedy chain. layer_skip has the row after the prompt for every exit.
"""

import json

import torch
import torch.nn.functional as F
from paths import DATA, ROOT
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

HEADS = ROOT / "models" / "tiny-heads"
OUT = DATA / "engine" / "heads.json"
PROMPTS = ("The captain came up on deck and", "Mr. President, the people of this country have", "Once upon a time")
TOP, STEPS = 5, 4


def read(name):
    folder = HEADS / name
    weights = {key: value.float() for key, value in load_file(folder / "model.safetensors").items()}
    return json.loads((folder / "config.json").read_text()), weights


def best(logits):
    top = logits.topk(TOP)
    return {"ids": top.indices.tolist(), "logits": [float(f"{x:.7g}") for x in top.values.tolist()]}


def norm(x, weight, config):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight


def rotated(x, positions, config):
    """x [rows, heads, head_dim]; the halves of a head are the pairs."""
    half = config["head_dim"] // 2
    angles = positions[:, None] * config["rope_theta"] ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Eagle:
    """Rows are run again from the first one at every step: nothing is cached."""

    def __init__(self, name, embedding):
        self.config, self.w = read(name)
        self.embedding = embedding
        self.version = self.config["eagle_version"]
        self.prefix = "layers.0." if self.version == 1 else "midlayer."

    def attention(self, x):
        c, w = self.config, {k: self.w[f"{self.prefix}self_attn.{k}_proj.weight"] for k in "qkvo"}
        heads, kv, dim, rows = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], len(x)
        positions = torch.arange(1, rows + 1)
        q = rotated((x @ w["q"].T).view(rows, heads, dim), positions, c)
        k = rotated((x @ w["k"].T).view(rows, kv, dim), positions, c).repeat_interleave(heads // kv, 1)
        v = (x @ w["v"].T).view(rows, kv, dim).repeat_interleave(heads // kv, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / dim ** 0.5
        scores = scores + torch.full((rows, rows), float("-inf")).triu(1)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(rows, -1) @ w["o"].T

    def outputs(self, tokens, features):
        """tokens of positions 1, 2, ..; features of positions 0, 1, .. -> outputs of positions 1, 2, .."""
        w, p, c = self.w, self.prefix, self.config
        embeds = self.embedding[tokens]
        if self.version == 1:
            read = residual = torch.cat([embeds, features], -1) @ w["fc.weight"].T
        else:
            read = torch.cat([norm(embeds, w[p + "input_layernorm.weight"], c),
                              norm(features, w[p + "hidden_norm.weight"], c)], -1)
            residual = features
        x = residual + self.attention(read)
        y = norm(x, w[p + "post_attention_layernorm.weight"], c)
        gate, up, down = (w[f"{p}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T

    def logits(self, output):
        vector = output if self.version == 1 else norm(output, self.w["norm.weight"], self.config)
        return self.embedding @ vector

    def chain(self, tokens, hidden):
        """tokens: the prompt and y. hidden: of the prompt, h (version 1), or the streams after each layer (version 3)."""
        if self.version == 1:
            features = hidden[-1]
        else:
            features = torch.cat([hidden[layer] for layer in self.config["feature_layers"]], -1) @ self.w["fc.weight"].T
        rows = []
        for _ in range(STEPS):
            output = self.outputs(torch.tensor(tokens[1:]), features)[-1]
            rows.append(best(self.logits(output)))
            tokens = [*tokens, rows[-1]["ids"][0]]
            features = torch.cat([features, output[None]])
        return rows


def parallel_heads(name, hidden, embedding):
    config, w = read(name)
    rows = []
    for i in range(config["medusa_num_heads" if name == "medusa" else "num_heads"]):
        if name == "medusa":
            vector = hidden + F.silu(w[f"{i}.0.linear.weight"] @ hidden + w[f"{i}.0.linear.bias"])
        else:
            inner = F.relu(w[f"{i}.0.weight"] @ hidden + w[f"{i}.0.bias"])
            vector = hidden + w[f"{i}.2.weight"] @ inner + w[f"{i}.2.bias"]
        rows.append(best(embedding @ vector))
    return rows


@torch.no_grad()
def main(folder):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    embedding = model.model.embed_tokens.weight
    lookahead = read("pass")[1]["lookahead.weight"]
    cases = []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt).input_ids
        streams, last = [], model.model.layers[-1].register_forward_hook(lambda _m, _a, out: streams.append(out))
        out = model(torch.tensor([tokens]), output_hidden_states=True)
        last.remove()
        # transformers gives the last stream after its norm only.
        stream = [x[0] for x in out.hidden_states[:-1]] + [streams[0][0] if streams[0].ndim == 3 else streams[0]]
        hidden = out.hidden_states[-1][0]
        y = int(out.logits[0, -1].argmax())
        rows = torch.cat([embedding[torch.tensor([*tokens, y])], lookahead])
        ahead = model(inputs_embeds=rows[None]).logits[0, len(tokens):]
        cases.append({
            "tokens": tokens, "y": y,
            **{name: parallel_heads(name, hidden[-1], embedding) for name in ("medusa", "blockwise")},
            "eagle": Eagle("eagle", embedding).chain([*tokens, y], [*stream, hidden]),
            "pass": [best(row) for row in ahead],
            "layer_skip": {str(layers): best(model.lm_head(model.model.norm(stream[layers][-1])))
                           for layers in range(1, len(stream) - 1)}})
    OUT.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(f"{OUT}: {len(cases)} prompts")
