"""Logits of bench_logits, and the ways in which the same rows are computed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 8  # the last rows of each prompt, whose logits are compared

Prompts = list[list[int]]


class Engine:
    def __init__(self, program: Path, model: Path, device: str, dtype: str) -> None:
        self._command = [str(program), str(model), device, dtype]
        self.vocab: int = json.loads((model / "config.json").read_text())["vocab_size"]

    def logits(self, passes: list[list[dict[str, Any]]]) -> np.ndarray:
        done = subprocess.run(self._command, input=json.dumps(passes).encode(), stdout=subprocess.PIPE, check=True)
        return np.frombuffer(done.stdout, "<f4").reshape(-1, self.vocab)


def part(sequence: int, tokens: list[int], logit_rows: int) -> dict[str, Any]:
    return {"sequence": sequence, "tokens": tokens, "logit_rows": logit_rows}


def alone(prompts: Prompts) -> list[list[dict[str, Any]]]:
    return [[part(i, prompt, ROWS)] for i, prompt in enumerate(prompts)]


def together(prompts: Prompts) -> list[list[dict[str, Any]]]:
    return [[part(i, prompt, ROWS) for i, prompt in enumerate(prompts)]]


def in_chunks(prompts: Prompts) -> list[list[dict[str, Any]]]:
    """Passes with each prompt's beginning in two chunks, then its last rows in chunks of 1, 5 and the rest."""
    passes = []
    for i, prompt in enumerate(prompts):
        begin, rest = prompt[:-ROWS], prompt[-ROWS:]
        half = len(begin) // 2
        passes += [[part(i, piece, 0)] for piece in (begin[:half], begin[half:]) if piece]
        passes += [[part(i, piece, len(piece))] for piece in (rest[:1], rest[1:6], rest[6:])]
    return passes


def same_bits(logits: np.ndarray, others: np.ndarray) -> bool:
    return np.array_equal(logits.view(np.uint32), others.view(np.uint32))


def same_in_a_batch_and_in_chunks(engine: Engine, prompts: Prompts, one_by_one: np.ndarray) -> bool:
    """Whether batches and chunks give the same bits as the prompts alone."""
    return all(same_bits(engine.logits(passes), one_by_one) for passes in (together(prompts), in_chunks(prompts)))
