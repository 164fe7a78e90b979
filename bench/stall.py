#!/usr/bin/env python3
"""Measures how long the pieces of one streamed text take while a long prompt comes in, beside those of the same stream alone. Asks a
running coordinator, such as that of `outrider up --model FILE.gguf`.
"""

import argparse
import asyncio
import time

from outrider import AsyncClient

QUESTION = [{"role": "user", "content": "Write a long story about a lighthouse keeper."}]
TOKENS = 700  # of the stream
HEAD_START = 0.3  # seconds from the stream's request to the prompt's


async def gaps(client: AsyncClient, tokens: int) -> list[tuple[float, float]]:
    """For each piece of the text but the first: when it came, and the seconds since the one before."""
    times = [time.perf_counter() async for _ in client.stream(QUESTION, max_tokens=tokens, temperature=1, seed=3, drafter="none",
                                                              ignore_eos=True)]
    return [(now, now - before) for before, now in zip(times, times[1:])]


def show(name: str, seconds: list[float]) -> None:
    ordered = sorted(1e3 * each for each in seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99))
    print(f"{name:24} {len(ordered):5} pieces, ms: p50 {p50:.1f}, p99 {p99:.1f}, largest {ordered[-1]:.1f}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="127.0.0.1:7070", help="gRPC address of the coordinator")
    parser.add_argument("--words", type=int, default=2800, help="words of the prompt")
    args = parser.parse_args()
    async with AsyncClient(args.address, timeout=600) as client:
        await gaps(client, 100)  # warm-up
        show("alone", [gap for _, gap in await gaps(client, TOKENS)])
        stream = asyncio.create_task(gaps(client, TOKENS))
        await asyncio.sleep(HEAD_START)
        prompt = f"{time.time()} " + " ".join(f"word{i}" for i in range(args.words // 2)) * 2  # nothing of it is cached
        begin = time.perf_counter()
        answer = await client.generate(prompt, max_tokens=1, temperature=0, drafter="none")
        end = time.perf_counter()
        print(f"a prompt of {answer.usage.prompt_tokens} tokens took {end - begin:.2f} s")
        show("beside the prompt", [gap for now, gap in await stream if begin < now <= end])


if __name__ == "__main__":
    asyncio.run(main())
