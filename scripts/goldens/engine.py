"""Logits that transformers computes in float32, for the engine's tests: small random models with their logits, and the best
tokens of the shipped pair, in tests/data/engine/.
"""

import json
import shutil

import torch
from paths import DATA, ROOT
from transformers import (AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, Qwen2Config, Qwen3Config)

OUT = DATA / "engine"
POSITIONS = 200
TOP = 8

TEXT = """The harbour was quiet when the pilot boat came back. Nobody on the quay had expected it before dusk,
and the keeper of the light, who counted every mast that passed the point, wrote its name into the book twice
because he did not trust his eyes the first time. "You are early," he called down from the gallery. "The wind
turned," the pilot said, "and the schooner we were to meet had already gone north without us." He tied the boat
to the ring, climbed the wet steps and sat down on the lowest one to empty his boots. In the kitchen above, the
lamp had just been lit. There was soup, there was bread, and there was a letter that had been waiting for three
days under the blue jug; it was from his brother, who never wrote unless something had gone wrong. He read it
slowly, folded it again along the same creases, and asked how soon the mail coach would leave in the morning."""

# The purpose of each model: heads to KV heads, head_dim, tying, dtype, files, rope; features of other families.
MODELS = {
    "mha-float32": dict(
        config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=4, vocab_size=256, tie_word_embeddings=True),
        dtype=torch.float32),
    "gqa3-sharded": dict(
        config=dict(hidden_size=48, intermediate_size=128, num_hidden_layers=3, num_attention_heads=6,
                    num_key_value_heads=2, head_dim=16, vocab_size=256, tie_word_embeddings=False,
                    eos_token_id=[7, 11]),
        dtype=torch.bfloat16, shard="60KB"),
    "gqa4-llama3-rope": dict(
        config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=1, head_dim=64, vocab_size=256, tie_word_embeddings=True,
                    rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                         high_freq_factor=4.0, original_max_position_embeddings=64)),
        dtype=torch.bfloat16),
    "dim128-odd-sizes": dict(
        config=dict(hidden_size=36, intermediate_size=42, num_hidden_layers=2, num_attention_heads=2,
                    num_key_value_heads=1, head_dim=128, vocab_size=203, tie_word_embeddings=False),
        dtype=torch.float16),
    "qwen2-bias": dict(
        family=Qwen2Config,
        config=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
                    vocab_size=203, tie_word_embeddings=True, rope_parameters=dict(rope_theta=1e6, rope_type="default")),
        dtype=torch.bfloat16),
    "qwen3-head-norms": dict(
        family=Qwen3Config,
        config=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, vocab_size=203, tie_word_embeddings=False, use_sliding_window=True, sliding_window=24,
                    max_window_layers=1),
        dtype=torch.bfloat16),
    "mistral-window": dict(
        family=MistralConfig,
        config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=24, vocab_size=203, sliding_window=17),
        dtype=torch.bfloat16),
    # With soft caps; only the engine on libtorch supports Gemma.
    "gemma2": dict(
        family=Gemma2Config,
        config=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, query_pre_attn_scalar=20, vocab_size=203, sliding_window=16, attn_logit_softcapping=5.0,
                    final_logit_softcapping=9.0),
        dtype=torch.bfloat16),
    # With two kinds of rotation, and norms of heads.
    "gemma3": dict(
        family=Gemma3TextConfig,
        config=dict(hidden_size=48, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, query_pre_attn_scalar=32, vocab_size=203, sliding_window=16,
                    layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
                    rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=1000.0),
                                         full_attention=dict(rope_type="linear", factor=8.0, rope_theta=50000.0))),
        dtype=torch.bfloat16),
}


def random_model(recipe, seed):
    torch.manual_seed(seed)
    # The usual 0.02 would make every attention uniform and every logit small.
    common = dict(initializer_range=0.3, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
                  attention_dropout=0.0)
    config = recipe.get("family", LlamaConfig)(**{**common, **recipe["config"]})
    model = AutoModelForCausalLM.from_config(config)
    plus_one = config.model_type.startswith("gemma")  # its norms are stored minus 1
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.uniform_(0.5 - plus_one, 1.5 - plus_one)
            elif key.endswith("bias"):
                parameter.normal_()
    return model.to(recipe["dtype"])


def write_goldens(folder, model, positions):
    tokens = torch.randint(0, model.config.vocab_size, (positions,))
    with torch.no_grad():
        logits = model(tokens[None]).logits[0]
    logits.numpy().astype("<f4").tofile(folder / "golden_logits.f32")
    (folder / "golden_tokens.json").write_text(json.dumps(tokens.tolist()) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder.relative_to(ROOT)}: {size / 1024:.0f} KB, logits' spread {logits.std():.2f}")


def make_random(name, recipe, seed):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    random_model(recipe, seed).save_pretrained(folder, max_shard_size=recipe.get("shard", "5GB"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    write_goldens(folder, model, positions=96)


def make_pretrained(model_dir, out):
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokens = torch.tensor(tokenizer(TEXT, add_special_tokens=False).input_ids[:POSITIONS])
    golden = {"tokens": tokens.tolist()}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        model = LlamaForCausalLM.from_pretrained(model_dir, dtype=dtype, attn_implementation="eager").eval()
        with torch.no_grad():
            logits = model(tokens[None]).logits[0].float()
        golden[f"{name}_best"] = logits.argmax(-1).tolist()
        if name == "float32":
            top = logits.topk(TOP)
            golden["spread"] = logits.std().item()
            golden["top_tokens"] = top.indices.tolist()
            golden["top_logits"] = [[float(f"{x:.9g}") for x in row] for row in top.values.tolist()]
    out.write_text(json.dumps(golden) + "\n")
    same = sum(a == b for a, b in zip(golden["float32_best"], golden["bfloat16_best"]))
    print(f"{out}: {len(tokens)} positions; transformers' bfloat16 agrees with its float32 on {same}")


def random_models():
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    for seed, (name, recipe) in enumerate(MODELS.items()):
        make_random(name, recipe, seed)


def pair():
    for name in ("tiny-target", "tiny-draft"):
        model(ROOT / "models" / name, OUT / f"{name}.json")


def model(folder, out):
    torch.set_num_threads(1)
    out.parent.mkdir(parents=True, exist_ok=True)
    make_pretrained(folder, out)
