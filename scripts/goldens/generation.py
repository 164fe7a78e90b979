"""Output of the target alone, by transformers in float32, for the system tests.

Writes into tests/data/system/, from the prompts in prompts.json there:
  greedy.json         greedy continuations, with the distance of each token's logit to the runner-up's
  distributions.json  exact distributions of the first tokens after a prompt, for tests of the sampled text
"""

import hashlib
import json

import paths
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

DATA = paths.DATA / "system"

NEW_TOKENS = 48
# The prompt whose continuations are enumerated.
DISTRIBUTION_PROMPT = 7
TOP_K, DEPTH = 4, 3
FIRST, SECOND = 8, 8


def greedy(model, tokenizer, prompt):
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
                         eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_logits=True)
    top = torch.stack([logits[0] for logits in out.logits]).topk(2).values
    return {"prompt_ids": ids[0].tolist(), "tokens": out.sequences[0, ids.shape[1]:].tolist(),
            "margins": [float(f"{m:.4g}") for m in (top[:, 0] - top[:, 1]).tolist()]}


def next_logits(model, ids):
    return model(torch.tensor([ids])).logits[0, -1].double()


def top_k_tree(model, ids, depth):
    """Every continuation of `depth` tokens under top_k, with its probability."""
    if depth == 0:
        return [([], 1.0)]
    best = next_logits(model, ids).topk(TOP_K + 1)
    assert best.values[-2] - best.values[-1] > 1e-3, "a tie at the edge of top_k: choose another prompt"
    paths = []
    for token, p in zip(best.indices[:TOP_K].tolist(), best.values[:TOP_K].softmax(-1).tolist()):
        paths += [([token, *rest], p * q) for rest, q in top_k_tree(model, [*ids, token], depth - 1)]
    return paths


def pairs(model, ids):
    """The likeliest first tokens, and after each the likeliest second ones, without top_k."""
    first = next_logits(model, ids).softmax(-1).topk(FIRST)
    rows = []
    for token, p in zip(first.indices.tolist(), first.values.tolist()):
        second = next_logits(model, [*ids, token]).softmax(-1).topk(SECOND)
        rows.append({"token": token, "p": p, "next": second.indices.tolist(), "p_next": second.values.tolist()})
    return rows


def main(folder):
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    about = {"model_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()}
    prompts = json.loads((DATA / "prompts.json").read_text())

    answers = [greedy(model, tokenizer, prompt) for prompt in prompts]
    (DATA / "greedy.json").write_text(json.dumps({**about, "answers": answers}) + "\n")
    smallest = min(min(answer["margins"]) for answer in answers)
    print(f"greedy.json: {len(answers)} answers of {NEW_TOKENS} tokens, smallest margin {smallest:.2g}")

    prompt = prompts[DISTRIBUTION_PROMPT]
    ids = tokenizer(prompt).input_ids
    tree = [{"tokens": tokens, "p": p} for tokens, p in top_k_tree(model, ids, DEPTH)]
    full = pairs(model, ids)
    (DATA / "distributions.json").write_text(
        json.dumps({**about, "prompt": prompt, "top_k": TOP_K, "top_k_paths": tree, "pairs": full}) + "\n")
    print(f"distributions.json: {len(tree)} paths; the likeliest {FIRST} tokens have {sum(r['p'] for r in full):.2f}")
