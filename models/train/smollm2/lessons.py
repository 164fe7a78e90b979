"""The conversations that converse.py wrote, as tokens, and the target that wrote them."""

import json
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

HELD_OUT = 40  # one conversation of so many is never trained on


def load_target(file: Path) -> torch.nn.Module:
    """The weights of a GGUF file, unpacked."""
    unpacked = GgufConfig(gguf_file=file.name, dequantize=True)
    return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, quantization_config=unpacked,
                                                dtype=torch.bfloat16).eval()


def normalised(question: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in question.lower()).split())


class Lesson:
    """The tokens of a conversation; its answer begins at `begin`."""

    def __init__(self, tokens: list[int], begin: int, temperature: int) -> None:
        self.tokens, self.begin, self.temperature = tokens, begin, temperature


def read_lessons(file: Path, target: Path) -> tuple[list[Lesson], list[Lesson]]:
    """Those to train on, and those that are held out. Each question once, whatever its case and punctuation."""
    tokenizer = AutoTokenizer.from_pretrained(target.parent, gguf_file=target.name)
    taught, held_out = [], []
    seen: set[str] = set()
    for line in file.open():
        record = json.loads(line)
        key = normalised(record["question"])
        if not record.get("answer") or key in seen:
            continue
        seen.add(key)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": record["question"]}],
                                               add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        lesson = Lesson(ids + record["answer"], len(ids), record["temperature"])
        (held_out if record["id"] % HELD_OUT == 0 else taught).append(lesson)
    return taught, held_out


def batches(lessons: list[Lesson], tokens: int, longest: int, seed: int) -> list[list[Lesson]]:
    """Lessons of alike lengths together, about so many tokens with their padding, in any order."""
    shuffled = random.Random(seed)
    order = sorted(lessons, key=lambda lesson: (len(lesson.tokens) + shuffled.random() * 32))
    made: list[list[Lesson]] = [[]]
    for lesson in order:
        width = min(len(lesson.tokens), longest)
        if made[-1] and (len(made[-1]) + 1) * width > tokens:
            made.append([])
        made[-1].append(lesson)
    shuffled.shuffle(made)
    return made


def padded(batch: list[Lesson], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [lessons, width], and which of them an answer's next token follows."""
    width = min(max(len(lesson.tokens) for lesson in batch), longest)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    judged = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, lesson in enumerate(batch):
        tokens = lesson.tokens[:width]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        judged[row, lesson.begin - 1 : len(tokens) - 1] = True
    return ids, judged
