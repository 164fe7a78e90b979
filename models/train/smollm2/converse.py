#!/usr/bin/env python3
"""Has a chat model write questions, given only the header of a user's turn or also its first words, and answer them (Xu et
al. 2024, "Magpie", arXiv 2406.08464). Half of the answers are sampled at temperature 1, half are greedy.

Asks a running coordinator, for instance `outrider up --model FILE.gguf`, and appends a line of JSON for each conversation
to a file: id, temperature, question, and the tokens of the answer. Conversations in the file are not repeated, so a run
can be stopped at any time. The same id has the same seed.
"""

import argparse
import asyncio
import json
from pathlib import Path

from outrider import AsyncClient

HEADER = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
          "<|im_start|>user\n")
# Questions begin with these in turn: left to itself, the model seldom asks for some kinds of answers. Their number is odd, so
# each comes with both temperatures.
BEGINNINGS = ["", "", "", "Write a Python function that", "Translate this sentence into French:", "Summarize the following text:\n\n",
              "", "", "Solve this problem step by step:", "Extract", "Translate this sentence into English:", "Write",
              "", "Explain", "Here is some code:\n\n", "Translate this sentence into Spanish:", "How many", "List", ""]
MIN_QUESTION, MAX_QUESTION = 12, 160  # tokens


async def converse(client: AsyncClient, number: int, max_tokens: int) -> dict[str, object]:
    """The record of a conversation. It has no answer if the question is too short or exceeds its length."""
    beginning = BEGINNINGS[number % len(BEGINNINGS)]
    asked = await client.generate(HEADER + beginning, max_tokens=MAX_QUESTION, temperature=1, seed=2 * number, drafter="none")
    question = beginning + asked.text
    record: dict[str, object] = {"id": number, "question": question}
    if asked.finish_reason == "stop" and len(asked.tokens) >= MIN_QUESTION:
        record["temperature"] = number % 2
        answer = await client.generate([{"role": "user", "content": question}], max_tokens=max_tokens,
                                       temperature=number % 2, seed=2 * number + 1, drafter="none")
        record["answer"] = answer.tokens
    return record


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("file", type=Path, help="file of conversations to extend")
    parser.add_argument("--address", default="127.0.0.1:7070", help="gRPC address of the coordinator")
    parser.add_argument("--tokens", type=int, default=3_000_000, help="stop once the answers in the file have this many tokens")
    parser.add_argument("--max-tokens", type=int, default=400, help="most tokens of an answer")
    parser.add_argument("--streams", type=int, default=64, help="conversations at a time")
    args = parser.parse_args()

    records = [json.loads(line) for line in args.file.open()] if args.file.exists() else []
    known = {record["id"] for record in records}
    tokens = sum(len(record.get("answer", ())) for record in records)
    numbers = (number for number in range(1 << 30) if number not in known)

    with args.file.open("a") as file:
        async with AsyncClient(args.address, timeout=7200) as client:

            async def stream() -> None:
                nonlocal tokens
                while tokens < args.tokens:
                    record = await converse(client, next(numbers), args.max_tokens)
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
                    file.flush()
                    before, tokens = tokens, tokens + len(record.get("answer", ()))
                    if tokens // 50_000 > before // 50_000:
                        print(f"{tokens} tokens, {record['id']}", flush=True)

            async with asyncio.TaskGroup() as group:
                for _ in range(args.streams):
                    group.create_task(stream())


if __name__ == "__main__":
    asyncio.run(main())
