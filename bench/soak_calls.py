"""Calls for the load of bench/soak.py whose answers are known: drawn from a seed, and answered once before anything is disturbed."""

import dataclasses
import random
from typing import Any

from harness import Answer, Cluster, inference_pb2, load_prompts


GRAMMARS = [
    {"regex": "[a-z ,.]{20,}"},
    {"json_schema": '{"type": "array", "items": {"enum": ["fox", "hare", 1, null]}, "minItems": 3, "maxItems": 30}'},
    {"ebnf": 'root ::= "<" ([a-z]+ " "){4,30} ">"'},
]


@dataclasses.dataclass(frozen=True)
class Call:
    """A request whose answer depends on nothing but itself: greedy, under the coupled rule, or a search."""
    prompt: str
    options: dict[str, Any]
    answers: tuple[Answer, ...]  # its answers without disturbances, one for each sample


def draw_calls(c: Cluster, seed: int) -> list[Call]:
    """Draws calls and gets their answers without drafts."""
    rng, prompts, calls = random.Random(f"{seed} calls"), load_prompts(), []
    for number in range(24):
        long = number % 4 == 0
        prompt = " ".join(rng.choices(prompts, k=40))[:1500] if long else rng.choice(prompts)
        options = {"max_tokens": rng.choice([12, 40, 120, 300]), "ignore_eos": rng.random() < 0.7,
                   "n": 1 if rng.random() < 0.8 else rng.choice([2, 4])}
        options |= {"temperature": 0} if number % 2 else {"rule": "coupled", "temperature": 0.9, "seed": number}
        if number % 5 == 2:
            options |= {"grammar": rng.choice(GRAMMARS), "ignore_eos": False}
        answers = c.generate_samples(prompt, k=0, **options)
        if number % 6 == 0:
            text = answers[0].text
            options["stop"] = [text[len(text) // 2:][:5] or "x", "\N{SNOWMAN}"]
            answers = c.generate_samples(prompt, k=0, **options)
        calls.append(Call(prompt, options, tuple(answers)))
    return calls


def draw_searches(c: Cluster, seed: int) -> list[Call]:
    """Draws beam searches in the same way."""
    rng, prompts, calls = random.Random(f"{seed} searches"), load_prompts(), []
    for width in (1, 2, 4, 6):
        beam = inference_pb2.BeamOptions(width=width, length_penalty=rng.choice([0, 1]))
        options = {"max_tokens": rng.choice([20, 60]), "n": rng.randint(1, width), "beam": beam}
        calls.append(Call(prompts[width], options, tuple(c.generate_samples(prompts[width], k=0, **options))))
    return calls


def check(answers: list[Answer], call: Call) -> str:
    for answer, quiet in zip(answers, call.answers, strict=True):
        assert answer.tokens == quiet.tokens, f"{call}: got {answer.tokens}"
        assert (answer.text, answer.reason) == (quiet.text, quiet.reason), f"{call}: got {answer}"
        assert answer.finish.usage.completion_tokens == len(quiet.tokens)
    return "whole"
