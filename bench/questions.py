#!/usr/bin/env python3
"""Measures drafting modes on questions to a chat model. Each question runs in plain decoding and in every mode, in turn
(streams.py measures many at a time).

Asks a running coordinator, such as that of `outrider up --model FILE.gguf --heads DIR`. A mode is DRAFTER, DRAFTER:K or
DRAFTER:K@TREE, such as `ngram:3` or `eagle:4@2x2x1x1`; without K the coordinator chooses it. At temperature 0 every mode
must give plain decoding's answer; otherwise the exit status is 1. `messages` is the share of a round in which neither draft nor
target computes.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from compare_systems import chat_questions, machine
from outrider import Client, Completion

PLAIN = "none"
W1_TOKENS = 256  # of prompt and answer
LEAST_TOKENS = 16  # the least tokens of an answer whose speed counts


def options_of(mode: str, seed: int) -> dict:
    """Of a call. Where the coordinator is to choose K there is no seed, which would fix it."""
    chain, _, tree = mode.partition("@")
    drafter, _, k = chain.partition(":")
    fixed = {"seed": seed} if k or mode == PLAIN else {}
    return {"drafter": drafter} | fixed | ({"draft_tokens": int(k)} if k else {}) | ({"tree": tree} if tree else {})


class Mode:
    """The results of one mode at one temperature."""

    def __init__(self) -> None:
        self.ratios: dict[str, list[float]] = defaultdict(list)  # to plain decoding, by set of questions
        self.rates: list[float] = []  # tokens per second
        self.rounds = self.tokens = self.drafted = self.accepted = 0
        # Of rounds after the prompt's: their number, microseconds, those of the draft's and the target's computing, and drafted tokens.
        self.traced = self.round_us = self.draft_us = self.verify_us = self.proposed = 0

    def add(self, answer: Completion) -> None:
        self.rounds += answer.speculation.rounds
        self.tokens += len(answer.tokens)
        self.drafted += answer.speculation.drafted
        self.accepted += answer.speculation.accepted
        for each in answer.trace[1:]:
            self.traced += 1
            self.round_us += each.round_us
            self.draft_us += each.draft_compute_us
            self.verify_us += each.verify_compute_us
            self.proposed += len(each.drafted)

    def summary(self) -> dict:
        all_ratios = sorted(ratio for ratios in self.ratios.values() for ratio in ratios)
        return {"ratio": statistics.median(all_ratios), "least": all_ratios[0], "largest": all_ratios[-1],
                 "tokens_per_call": self.tokens / self.rounds, "acceptance": self.accepted / max(self.drafted, 1),
                 "by_set": {name: statistics.median(ratios) for name, ratios in self.ratios.items()},
                 "tokens_per_second": statistics.median(self.rates),
                 "messages": 1 - (self.draft_us + self.verify_us) / self.round_us,
                 "draft_token_us": self.draft_us / max(self.proposed, 1), "verify_us": self.verify_us / self.traced}


def rate(answer: Completion) -> float:
    return (len(answer.tokens) - 1) / answer.usage.decode_seconds


def w1_prompts(client: Client) -> list[list[int]]:
    """The first W1_TOKENS tokens of twelve texts, which have a prompt of each set."""
    texts = json.loads((Path(__file__).parent / "prompts.json").read_text())
    rows = zip(*(texts[name]["prompts"] for name in ("novel", "structured", "repetitive", "prose", "rewriting")))
    read = [client.generate(" ".join(row), max_tokens=0, echo=True, prompt_logprobs=0) for row in rows]
    return [[each.prompt.first.id, *(next_one.token.id for next_one in each.prompt_logprobs)][:W1_TOKENS] for each in read]


def ask(client: Client, args: argparse.Namespace, temperature: float, mode: str, question: str | dict | list[int],
        turn: int) -> Completion:
    options = options_of(mode, turn)
    if isinstance(question, list):
        return client.generate(question, temperature=temperature, max_tokens=W1_TOKENS, ignore_eos=True, trace=True, **options)
    if not isinstance(question, str):
        options["prediction"] = question["text"]
        question = f"{question['question']}\n\n{question['text']}"
    return client.generate([{"role": "user", "content": question}], temperature=temperature, max_tokens=args.max_tokens,
                           trace=True, **options)


def measure(client: Client, args: argparse.Namespace, temperature: float, sets: dict[str, list]) -> tuple[dict[str, Mode], int]:
    """The modes' results, and how many answers differ from plain decoding where they must not."""
    modes = [PLAIN, *args.modes]
    found = {mode: Mode() for mode in modes}
    others = 0
    for mode in modes:  # the coordinator learns its choices
        for questions in sets.values():
            ask(client, args, temperature, mode, questions[0], 0)
    for turn in range(args.turns):
        for name, questions in sets.items():
            for i, question in enumerate(questions):
                order = modes if (i + turn) % 2 == 0 else modes[::-1]  # a drift cancels out
                answers = {mode: ask(client, args, temperature, mode, question, turn) for mode in order}
                for mode, answer in answers.items():
                    found[mode].add(answer)
                    if min(len(answer.tokens), len(answers[PLAIN].tokens)) >= LEAST_TOKENS:
                        found[mode].ratios[name].append(rate(answer) / rate(answers[PLAIN]))
                        found[mode].rates.append(rate(answer))
                    others += temperature == 0 and answer.tokens != answers[PLAIN].tokens
    return found, others


def add_arguments(parser: argparse.ArgumentParser, turns: int) -> None:
    """Those of streams.py too."""
    parser.add_argument("modes", nargs="+", metavar="MODE", help="DRAFTER[:K[@TREE]]")
    parser.add_argument("--address", default="127.0.0.1:7070", help="gRPC address of the coordinator")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="temperatures to measure")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens per answer")
    parser.add_argument("--turns", type=int, default=turns, help="turns over all modes")
    parser.add_argument("--json", type=Path, help="file for the results")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, turns=1)
    parser.add_argument("--questions", type=Path, default=Path(__file__).parent / "questions.json",
                        help="JSON file {SET: [QUESTION, ...]}; a question is a text, or {question, text}, whose text is to be edited "
                             "and is sent as the prediction")
    parser.add_argument("--sets", nargs="+", metavar="SET", help="sets to ask; default: all but edits, whose answers are long")
    parser.add_argument("--each", type=int, help="questions per set; default: all")
    parser.add_argument("--w1", action="store_true", help="continue twelve texts of 256 tokens by 256 instead")
    args = parser.parse_args()

    report = {"machine": machine(), "results": []}
    others = 0
    with Client(args.address, timeout=600) as client:
        sets = {"W1": w1_prompts(client)} if args.w1 else chat_questions(args.each, args.questions, args.sets)
        for temperature in args.temperatures:
            found, differing = measure(client, args, temperature, sets)
            others += differing
            print(f"\ntemperature {temperature:g}, times plain decoding: median (least-largest), and by set\n{'':24} {'':19} "
                  f"{'tokens/s':>8} {'tokens/call':>11} {'accepted':>8} {'messages':>8}  " + " ".join(f"{name[:11]:>11}" for name in sets))
            rows = {mode: result.summary() for mode, result in found.items()}
            report["results"].append({"temperature": temperature, "modes": [{"mode": mode} | row for mode, row in rows.items()]})
            for mode, row in rows.items():
                print(f"{mode:24} {row['ratio']:5.2f} ({row['least']:.2f}-{row['largest']:.2f}) {row['tokens_per_second']:8.0f} {row['tokens_per_call']:11.2f} "
                      f"{row['acceptance']:8.1%} {row['messages']:8.1%}  "
                      + " ".join(f"{row['by_set'].get(name, 0):11.2f}" for name in sets), flush=True)
    print(f"\nanswers at temperature 0 with other tokens than plain decoding: {others}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if others else 0)


if __name__ == "__main__":
    main()
