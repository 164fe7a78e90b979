#!/usr/bin/env python3
"""Measures how many clients a target on one core carries: in plain decoding, with the draft on the same core, and with the draft on a core
of its own. As Markdown.

    .venv/bin/python bench/capacity.py [--target MODEL --draft MODEL] [--questions] [--k 2] [--clients 1 2 4 8 16] [--json FILE]

So many clients at a time ask for one text after another. A text's time per token is its decoding time over its tokens but the first; the
95th percentile is over texts. The coordinator runs on the other core. A proof (arXiv 2606.25091) says that a draft of its own lets the
target carry 1 + K t_d / t_v times as many clients, if it serves them one by one. Needs two idle cores.
"""

import argparse
import contextlib
import itertools
import json
import statistics
import threading
import time

from compare_systems import chat_questions, machine
from outrider import Client, Completion
from overlap import MODELS, ROOT, start_pair

TARGET_CORE, OTHER_CORE = "0", "1"
PLAIN, SAME, OWN = "plain", "draft on the same core", "draft on a core of its own"


def serve(stack: contextlib.ExitStack, args: argparse.Namespace, arrangement: str) -> Client:
    draft_core = TARGET_CORE if arrangement == SAME else OTHER_CORE
    address = start_pair(stack, args.target, args.draft, *args.draft_flags, cores=(draft_core, TARGET_CORE, OTHER_CORE))
    return stack.enter_context(Client(address, timeout=600))


def ask(client: Client, args: argparse.Namespace, k: int, seed: int, trace: bool = False) -> Completion:
    prompt = args.prompts[seed % len(args.prompts)]
    return client.generate([{"role": "user", "content": prompt}] if args.questions else prompt, temperature=args.temperature, seed=seed,
                           max_tokens=args.max_tokens, ignore_eos=True, drafter="model" if k else "none", draft_tokens=k, trace=trace)


def load(client: Client, args: argparse.Namespace, k: int, clients: int) -> dict:
    """Tokens per second, and the 95th percentile of the milliseconds per token, of so many clients at a time."""
    seeds, found, until = itertools.count(), [], time.monotonic() + args.seconds

    def run() -> None:
        while time.monotonic() < until:
            begun = time.monotonic()
            answer = ask(client, args, k, next(seeds))
            found.append((begun, time.monotonic(), answer))

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    # Those during which all clients were there; else all.
    counted = [answer for _, ended, answer in found if ended <= until] or [answer for _, _, answer in found]
    times = [1e3 * answer.usage.decode_seconds / (len(answer.tokens) - 1) for answer in counted]
    tokens = sum(len(answer.tokens) for _, _, answer in found)
    seconds = max(ended for _, ended, _ in found) - min(begun for begun, _, _ in found)
    return {"clients": clients, "tokens_per_second": tokens / seconds,
            "p95_ms": statistics.quantiles(times, n=20)[-1] if len(times) > 1 else times[0]}


def relative_times(client: Client, args: argparse.Namespace) -> float:
    """t_d / t_v of one client alone: a draft token's time in verifications of K tokens."""
    trace = [each for seed in range(len(args.prompts)) for each in ask(client, args, args.k, seed, trace=True).trace[1:]]
    drafted = [each for each in trace if len(each.drafted) == args.k]
    return sum(each.draft_compute_us for each in drafted) / args.k / sum(each.verify_compute_us for each in drafted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=str(MODELS / "tiny-target"))
    parser.add_argument("--draft", default=str(MODELS / "tiny-draft"))
    parser.add_argument("--draft-flag", dest="draft_flags", action="append", default=[], help="a flag of outrider-draft, as --draft-flag=--X")
    parser.add_argument("--questions", action="store_true", help="ask a chat model bench/questions.json")
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=6, help="for each number of clients")
    parser.add_argument("--json", help="file for the results")
    args = parser.parse_args()
    if args.questions:
        args.prompts = [question for asked in chat_questions(2).values() for question in asked]
    else:
        args.prompts = [prompt for some in json.loads((ROOT / "bench/prompts.json").read_text()).values() for prompt in some["prompts"][:3]]
    results = {}
    for arrangement in (PLAIN, SAME, OWN):
        with contextlib.ExitStack() as stack:
            client, k = serve(stack, args, arrangement), 0 if arrangement == PLAIN else args.k
            ask(client, args, k, 0)
            if arrangement == OWN:
                ratio = relative_times(client, args)
            results[arrangement] = [load(client, args, k, clients) for clients in args.clients]
    print(f"t_d / t_v = {ratio:.3f}; 1 + K t_d / t_v = {1 + args.k * ratio:.2f}\n\n| clients | " + " | ".join(results) + f" |\n|{'---|' * 4}")
    for rows in zip(*results.values(), strict=True):
        print(f"| {rows[0]['clients']} | " + " | ".join(f"{row['p95_ms']:.1f} ms, {row['tokens_per_second']:.0f}/s" for row in rows) + " |")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"machine": machine(), "k": args.k, "ratio": ratio, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
