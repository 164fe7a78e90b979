"""Results of transformers for SmolLM2, a published model in a GGUF file, in float32, for tests/system/test_gguf.py.

transformers unpacks the weights, and makes tokenizer and chat template from the file. Writes
tests/data/system/smollm2.json: the file's SHA-256, and for each prompt (a text or a conversation) its tokens and the greedy
answer until the model ends it, at most 32 tokens.
"""

import hashlib
import json

import paths
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

OUT = paths.DATA / "system" / "smollm2.json"
NEW_TOKENS = 32

TEXTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "To be, or not to be, that is the",
    "The three primary colours are",
    "1, 2, 3, 4, 5,",
    "Water boils at a temperature of",
    "Caf\u00e9 na\u00efve \u2014 \u65e5\u672c\u8a9e, \u043f\u0440\u0438\u0432\u0435\u0442! \U0001f600",
]
CHATS = [
    [("user", "What is the capital of France?")],
    [("user", "Write a haiku about the sea.")],
    [("system", "You answer in one word."), ("user", "What colour is the sky?")],
    [("user", "Hello!"), ("assistant", "Hello! How can I help you?"), ("user", "Tell me about whales.")],
    [("user", "Say only: yes")],
    [("user", "  Two  spaces,\n\na line between, and  a mark.  ")],
    [("user", "List three fruits.")],
    [("system", "You are a pirate."), ("user", "Who are you?")],
]


def main(file):
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    source = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, attn_implementation="eager").eval()
    asked = [{"text": text} for text in TEXTS]
    asked += [{"chat": [dict(role=role, content=content) for role, content in chat]} for chat in CHATS]
    smallest = float("inf")
    for answer in asked:
        text, special = answer.get("text"), True
        if text is None:
            text, special = tokenizer.apply_chat_template(answer["chat"], tokenize=False, add_generation_prompt=True), False
        ids = tokenizer(text, add_special_tokens=special, return_tensors="pt").input_ids
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
                             pad_token_id=0, return_dict_in_generate=True, output_logits=True)
        top = torch.stack([logits[0] for logits in out.logits]).topk(2).values
        smallest = min(smallest, float((top[:, 0] - top[:, 1]).min()))
        tokens = out.sequences[0, ids.shape[1]:].tolist()
        answer |= {"prompt_ids": ids[0].tolist(), "tokens": tokens,
                   "answer": tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)}
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    OUT.write_text(json.dumps({"file_sha256": sha256, "answers": asked}) + "\n", encoding="ascii")
    print(f"{OUT.name}: {len(asked)} answers, smallest margin {smallest:.2g}")
