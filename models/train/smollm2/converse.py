#!/usr/bin/env python3
"""Has a chat model write questions, given only the header of a user's turn or also its first words, and answer them (Xu et
al. 2024, "Magpie", arXiv 2406.08464), or with --questions answer questions like those of people. Each question gets a greedy
answer and one sampled at temperature 1.

Asks a running coordinator, for instance `outrider up --model FILE.gguf`, and appends lines of JSON to a file. A line has the
id of a conversation, the question, and unless the question is of no use also a temperature and the tokens of the answer.
Conversations in the file are not repeated, so a run can be stopped at any time. The same id has the same seed.
"""

import argparse
import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from outrider import AsyncClient

HEADER = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
          "<|im_start|>user\n")
# Questions begin with these in turn: left to itself, the model seldom asks for some kinds of answers.
BEGINNINGS = ["", "", "", "Write a Python function that", "Translate this sentence into French:", "Summarize the following text:\n\n",
              "", "", "Solve this problem step by step:", "Extract", "Translate this sentence into English:", "Write",
              "", "Explain", "Here is some code:\n\n", "Translate this sentence into Spanish:", "How many", "List", ""]
MIN_QUESTION, MAX_QUESTION = 12, 160  # tokens
Ask = Callable[[AsyncClient, int], Awaitable[tuple[str, bool]]]


class Grammar:
    """A file {RULE: [ALTERNATIVE, ...]}. A question is an alternative of `question` in which {RULE} stands for one of that rule's,
    and {text} for what the model answers to a `passage`."""

    def __init__(self, file: Path) -> None:
        self._rules: dict[str, list[str]] = json.loads(file.read_text())

    def _expand(self, rule: str, draw: random.Random) -> str:
        def part(found: re.Match) -> str:
            name = found[1]
            return self._expand(name, draw) if name in self._rules else found[0]

        return re.sub(r"(?<!\{)\{(\w+)\}(?!\})", part, draw.choice(self._rules[rule]))

    async def ask(self, client: AsyncClient, number: int) -> tuple[str, bool]:
        """As the function `ask`."""
        draw = random.Random(number)
        question = self._expand("question", draw).replace("{{", "{").replace("}}", "}")
        if "{text}" not in question:
            return question, True
        written = await client.generate([{"role": "user", "content": self._expand("passage", draw)}], max_tokens=MAX_QUESTION,
                                        temperature=0.7, seed=2 * number, drafter="none")
        sentences = written.text.strip().rpartition(".")[0]
        return question.replace("{text}", sentences + "."), bool(sentences)


async def ask(client: AsyncClient, number: int) -> tuple[str, bool]:
    """A question, and whether it is neither too short nor cut off."""
    beginning = BEGINNINGS[number % len(BEGINNINGS)]
    asked = await client.generate(HEADER + beginning, max_tokens=MAX_QUESTION, temperature=1, seed=2 * number, drafter="none")
    return beginning + asked.text, asked.finish_reason == "stop" and len(asked.tokens) >= MIN_QUESTION


class Conversations:
    """The conversations of a file, which `append` extends."""

    def __init__(self, file: Path) -> None:
        self.tokens = 0  # of all answers
        self.questions: dict[int, str] = {}
        self.useless: set[int] = set()  # questions that get no answers
        self.answered: set[tuple[int, int]] = set()  # id, temperature
        for line in file.open() if file.exists() else ():
            self._note(json.loads(line))
        self._file = file.open("a")

    def _note(self, record: dict) -> None:
        self.questions[record["id"]] = record["question"]
        if "answer" in record:
            self.answered.add((record["id"], record["temperature"]))
            self.tokens += len(record["answer"])
        else:
            self.useless.add(record["id"])

    def append(self, record: dict) -> None:
        before = self.tokens
        self._note(record)
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()
        if self.tokens // 50_000 > before // 50_000:
            print(f"{self.tokens} tokens, {record['id']}", flush=True)

    def temperatures_left(self, number: int) -> list[int]:
        return [] if number in self.useless else [each for each in (0, 1) if (number, each) not in self.answered]


async def converse(client: AsyncClient, conversations: Conversations, number: int, ask: Ask, max_tokens: int) -> None:
    """Adds what is missing of a conversation."""
    question, useful = conversations.questions.get(number, ""), True
    if not question:
        question, useful = await ask(client, number)
    record = {"id": number, "question": question}
    if not useful:
        return conversations.append(record)

    async def answer(temperature: int) -> None:
        answered = await client.generate([{"role": "user", "content": question}], max_tokens=max_tokens,
                                         temperature=temperature, seed=2 * number + 1, drafter="none")
        conversations.append(record | {"temperature": temperature, "answer": answered.tokens})

    await asyncio.gather(*(answer(each) for each in conversations.temperatures_left(number)))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("file", type=Path, help="file of conversations to extend")
    parser.add_argument("--address", default="127.0.0.1:7070", help="gRPC address of the coordinator")
    parser.add_argument("--questions", type=Path, help="grammar of the questions, such as questions.json")
    parser.add_argument("--tokens", type=int, default=3_000_000, help="stop once the answers in the file have this many tokens")
    parser.add_argument("--max-tokens", type=int, default=400, help="most tokens of an answer")
    parser.add_argument("--streams", type=int, default=48, help="conversations at a time")
    args = parser.parse_args()

    conversations = Conversations(args.file)
    asking = Grammar(args.questions).ask if args.questions else ask
    numbers = (number for number in range(1 << 30) if conversations.temperatures_left(number))
    async with AsyncClient(args.address, timeout=7200) as client:

        async def stream() -> None:
            while conversations.tokens < args.tokens:
                await converse(client, conversations, next(numbers), asking, args.max_tokens)

        async with asyncio.TaskGroup() as group:
            for _ in range(args.streams):
                group.create_task(stream())


if __name__ == "__main__":
    asyncio.run(main())
