"""Proposals of models/tiny-heads after a few prompts, in tests/data/engine/heads.json: the best tokens and their logits,
computed in float32 from the saved weights: the target by transformers, the heads as in their papers.

Each case has a prompt's tokens and the target's next token y. For each proposer it has a list of rows, one for each proposed
token from the one after y on. EAGLE's rows are a greedy chain. layer_skip has the row after the prompt for every exit.

`small` writes EAGLE and EAGLE-3 with random weights for a small target, which draft from a part of its vocabulary, and
their results, into tests/data/heads.
"""

import json

import torch
import torch.nn.functional as F
from paths import DATA, ROOT
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaForCausalLM

HEADS = ROOT / "models" / "tiny-heads"
OUT = DATA / "engine" / "heads.json"
PROMPTS = ("The captain came up on deck and", "Mr. President, the people of this country have", "Once upon a time")
TOP, STEPS = 5, 4
SMALL, SMALL_TARGET = DATA / "heads", DATA / "engine" / "gqa3-sharded"


def read(folder):
    weights = {key: value.float() if value.is_floating_point() else value
               for key, value in load_file(folder / "model.safetensors").items()}
    return json.loads((folder / "config.json").read_text()), weights


def best(logits):
    top = logits.topk(TOP)
    return {"ids": top.indices.tolist(), "logits": [float(f"{x:.7g}") for x in top.values.tolist()]}


def norm(x, weight, config):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]) * weight


def rotated(x, positions, config):
    """x [rows, heads, head_dim]; element i of a head's first half forms a pair with element i of the second."""
    half = config["head_dim"] // 2
    angles = positions[:, None] * config["rope_theta"] ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Eagle:
    """Computes all rows again at every step: nothing is cached."""

    def __init__(self, folder, embedding, head):
        self.config, self.w = read(folder)
        self.embedding, self.head = embedding, head
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
        if "d2t" not in self.w:
            return self.head @ vector
        tokens = torch.arange(len(self.w["d2t"])) + self.w["d2t"]
        rows = self.w.get("lm_head.weight", self.head[tokens])
        return torch.full((len(self.head),), float("-inf")).index_copy(0, tokens, rows @ vector)

    def chain(self, tokens, hidden):
        """tokens: the prompt and y. hidden: for the prompt, h (version 1), or the streams after each layer (version 3)."""
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
    config, w = read(HEADS / name)
    rows = []
    for i in range(config["medusa_num_heads" if name == "medusa" else "num_heads"]):
        if name == "medusa":
            vector = hidden + F.silu(w[f"{i}.0.linear.weight"] @ hidden + w[f"{i}.0.linear.bias"])
        else:
            inner = F.relu(w[f"{i}.0.weight"] @ hidden + w[f"{i}.0.bias"])
            vector = hidden + w[f"{i}.2.weight"] @ inner + w[f"{i}.2.bias"]
        rows.append(best(embedding @ vector))
    return rows


def run(model, tokens):
    """The streams after each number of layers, the input of the head, and the next token."""
    streams, last = [], model.model.layers[-1].register_forward_hook(lambda _m, _a, out: streams.append(out))
    out = model(torch.tensor([tokens]), output_hidden_states=True)
    last.remove()
    # transformers returns the last stream only after its norm.
    stream = [x[0] for x in out.hidden_states[:-1]] + [streams[0][0] if streams[0].ndim == 3 else streams[0]]
    return stream, out.hidden_states[-1][0], int(out.logits[0, -1].argmax())


@torch.no_grad()
def main(folder):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    embedding = model.model.embed_tokens.weight
    lookahead = read(HEADS / "pass")[1]["lookahead.weight"]
    cases = []
    for prompt in PROMPTS:
        tokens = tokenizer(prompt).input_ids
        stream, hidden, y = run(model, tokens)
        rows = torch.cat([embedding[torch.tensor([*tokens, y])], lookahead])
        ahead = model(inputs_embeds=rows[None]).logits[0, len(tokens):]
        cases.append({
            "tokens": tokens, "y": y,
            **{name: parallel_heads(name, hidden[-1], embedding) for name in ("medusa", "blockwise")},
            "eagle": Eagle(HEADS / "eagle", embedding, embedding).chain([*tokens, y], [*stream, hidden]),
            "pass": [best(row) for row in ahead],
            "layer_skip": {str(layers): best(model.lm_head(model.model.norm(stream[layers][-1])))
                           for layers in range(1, len(stream) - 1)}})
    OUT.write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(f"{OUT}: {len(cases)} prompts")


def make_small(version, target):
    """EAGLE with random weights: it can draft every second or third token, by the target's head or its own."""
    hidden, vocab, heads, kv, dim, inner = target.hidden_size, target.vocab_size, 4, 2, 12, 40
    torch.manual_seed(version)
    tokens = torch.arange(version, vocab, 2 if version == 1 else 3)
    layer, attended = ("layers.0.", hidden) if version == 1 else ("midlayer.", 2 * hidden)
    shapes = {"fc": (hidden, (2 if version == 1 else 3) * hidden), layer + "self_attn.q_proj": (heads * dim, attended),
              layer + "self_attn.k_proj": (kv * dim, attended), layer + "self_attn.v_proj": (kv * dim, attended),
              layer + "self_attn.o_proj": (hidden, heads * dim), layer + "mlp.gate_proj": (inner, hidden),
              layer + "mlp.up_proj": (inner, hidden), layer + "mlp.down_proj": (hidden, inner),
              **({"lm_head": (len(tokens), hidden)} if version == 3 else {})}
    weights = {name + ".weight": 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    norms = [layer + "post_attention_layernorm"]
    if version == 3:
        norms += [layer + "input_layernorm", layer + "hidden_norm", "norm"]
    weights |= {name + ".weight": 1 + 0.3 * torch.randn(hidden) for name in norms}
    weights = {name: value.bfloat16() for name, value in weights.items()}
    folder = SMALL / ("eagle" if version == 1 else "eagle3")
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**weights, "d2t": tokens - torch.arange(len(tokens))}, folder / "model.safetensors")
    config = {"proposer": "eagle", "eagle_version": version, "intermediate_size": inner, "num_attention_heads": heads,
              "num_key_value_heads": kv, "head_dim": dim, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
              "draft_vocab_size": len(tokens), **({"feature_layers": [1, 2, 3]} if version == 3 else {})}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return folder


@torch.no_grad()
def small():
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(SMALL_TARGET, dtype=torch.float32, attn_implementation="eager").eval()
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    drafts = {folder.name: Eagle(folder, embedding, head)
              for folder in (make_small(version, model.config) for version in (1, 3))}
    cases = []
    for length in (2, 9, 40):
        tokens = torch.randint(model.config.vocab_size, (length,)).tolist()
        stream, hidden, y = run(model, tokens)
        cases.append({"tokens": tokens, "y": y,
                      **{name: draft.chain([*tokens, y], [*stream, hidden] if name == "eagle" else stream)
                         for name, draft in drafts.items()}})
    (SMALL / "goldens.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    print(f"{SMALL}: {len(cases)} texts")
