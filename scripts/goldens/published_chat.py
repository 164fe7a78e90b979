"""Conversations rendered by apply_chat_template with the templates of published models.

The templates are the work of others and not in the repository: scripts/install unpacks them from the same archive
as the Jinja engine. Writes tests/data/chat/published.json: for each template its SHA-256, and for each conversation of
goldens.json the length and the SHA-256 of the text, or the SHA-256 of the message with which the template refuses it.
"""

import hashlib
import json

import chat
from paths import DATA, ROOT

FOLDER = ROOT / ".venv" / "src" / "llama.cpp" / "models" / "templates"
OUT = DATA / "chat" / "published.json"

# The archive's templates of models whose family is in README.md's table.
TEMPLATES = {
    "Llama 3": ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "meta-llama-Llama-3.3-70B-Instruct",
                "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"],
    "Qwen 2.5": ["Qwen-Qwen2.5-7B-Instruct", "Qwen-QwQ-32B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"],
    "Qwen 3": ["Qwen-Qwen3-0.6B"],
    "Mistral": ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506",
                "unsloth-mistral-Devstral-Small-2507"],
    "Gemma 2": ["google-gemma-2-2b-it"],
}


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def golden(template, conversation):
    rendered = chat.render(template, conversation)
    if "error" in rendered:
        return {"refused": sha256(rendered["error"])}
    return {"bytes": len(rendered["text"].encode()), "sha256": sha256(rendered["text"])}


def main():
    chat.pin_time()
    published = {}
    for family, names in TEMPLATES.items():
        for name in names:
            source = (FOLDER / f"{name}.jinja").read_bytes().decode()
            goldens = [golden(source, c) for c in chat.CONVERSATIONS]
            published[name] = {"family": family, "sha256": sha256(source), "goldens": goldens}
            refused = sum("refused" in g for g in goldens)
            print(f"{name}: {len(goldens)} conversations, {refused} refused")
    OUT.write_text(json.dumps(published, indent=1) + "\n", encoding="ascii")
