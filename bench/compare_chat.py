"""The systems of compare.py --chat: they answer questions with the same GGUF file of a chat model, each with its drafters.

Answers end where the model ends them. The draft model is the same for all; only Outrider reads EAGLE's heads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from compare_systems import (OUT, PLAIN, PROGRAMS, ROOT, TEMPERATURES, LlamaCpp, LlamaTools, Outrider, Sample, Transformers,
                             Unavailable, chat_questions, run)

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def questions(each: int) -> list[str]:
    return [question for asked in chat_questions(each).values() for question in asked]


def in_template(question: str) -> str:
    return f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


class OutriderChat(Outrider):
    MODES = {
        PLAIN: ["none"],
        "speculative, auto": ["auto"],
        "speculative, n-gram": ["ngram"],
        **{f"speculative, EAGLE, K = {k}": ["eagle", f"--draft-tokens={k}"] for k in (1, 2, 3)},
        **{f"speculative, draft, K = {k}": ["model", f"--draft-tokens={k}"] for k in (1, 2)},
    }

    def measure(self) -> Iterator[Sample]:
        ports = iter(range(7480, 7490))
        addresses = [f"--{kind}=127.0.0.1:{next(ports)}" for kind in (
            "listen", "draft-listen", "target-listen", "metrics-listen", "draft-metrics-listen", "target-metrics-listen")]
        command = [PROGRAMS / "outrider", "up", "--model", self.options.chat, "--threads", str(self.options.threads),
                   "--draft-model", f"{self.options.chat_draft}+{self.options.chat}", "--frequent-tokens", "4096",
                   "--heads", self.options.chat_heads, "--http-listen", "", *addresses]
        with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as services:
            try:
                self.wait()
                for temperature in TEMPERATURES:
                    for mode, drafter in self.MODES.items():
                        yield mode, temperature, self.rate(temperature, drafter)
            finally:
                services.terminate()

    @staticmethod
    def ask(*arguments: str) -> dict:
        return json.loads(run([PROGRAMS / "outrider", "generate", "--address", "127.0.0.1:7480", "--chat", "--json", *arguments]))

    def wait(self) -> None:
        for seconds_left in range(30, -1, -1):
            try:
                self.ask("--max-tokens", "1", "Hello")
                return
            except Unavailable:  # until the services are up
                if seconds_left == 0:
                    raise
                time.sleep(1)

    def rate(self, temperature: float, drafter: list[str]) -> float:
        tokens, seconds = 0, 0.0
        for prompt in self.prompts:
            answer = self.ask("--temperature", str(temperature), "--max-tokens", str(self.options.max_tokens),
                              "--drafter", *drafter, prompt)
            tokens += answer["usage"]["completion_tokens"] - 1
            seconds += answer["usage"]["decode_seconds"]
        return tokens / seconds


class TransformersChat(Transformers):
    """The packed weights become bfloat16, which it multiplies faster."""

    CONTINUES = False

    def load(self, model: Path):
        from transformers import AutoModelForCausalLM, GgufConfig
        unpacked = GgufConfig(gguf_file=model.name, dequantize=True)
        return AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, quantization_config=unpacked,
                                                    dtype=self.torch.bfloat16)

    def load_tokenizer(self):
        from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(self.options.chat.parent, gguf_file=self.options.chat.name)

    def models(self) -> tuple[Path, Path]:
        return self.options.chat, composed_draft(self.options)

    def encode(self, tokenizer, prompt: str):
        return tokenizer(in_template(prompt), return_tensors="pt", add_special_tokens=False)

    def measure(self) -> Iterator[Sample]:
        yield from super().measure()
        for temperature in TEMPERATURES:
            yield "prompt lookup, K = 4", temperature, self.rate(temperature, prompt_lookup_num_tokens=4)


class LlamaChat(LlamaCpp):
    FLAGS = []

    def __init__(self, options: argparse.Namespace, prompts: list[str]) -> None:
        LlamaTools.__init__(self)
        self.options, self.prompts = options, [in_template(prompt) for prompt in prompts]
        self.target, self.draft = options.chat, composed_draft(options)


def composed_draft(options: argparse.Namespace) -> Path:
    """The draft as one file that other programs read."""
    file = OUT / "chat-draft.gguf"
    OUT.mkdir(parents=True, exist_ok=True)
    run([sys.executable, ROOT / "models/train/smollm2/compose.py", options.chat_draft, options.chat, file])
    return file


SYSTEMS = [OutriderChat, TransformersChat, LlamaChat]
