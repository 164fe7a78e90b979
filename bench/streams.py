#!/usr/bin/env python3
"""Measures drafting modes with many streams. So many clients ask a chat model one question after another for some seconds, in
plain decoding and in every mode in turn. A speed is that of all together: the tokens that the coordinator's metrics count.

Asks a running coordinator as questions.py does. At temperature 0 every mode must give plain decoding's answers; otherwise the exit
status is 1.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from compare_systems import chat_questions, machine
from outrider import Client
from questions import PLAIN, add_arguments, options_of

EMITTED = "outrider_spec_decode_num_emitted_tokens_total"
WARM_UP = 2  # seconds


class Load:
    """What all clients ask, and the answers by mode and question."""

    def __init__(self, client: Client, args: argparse.Namespace, temperature: float, questions: list[str]) -> None:
        self.client, self.args, self.temperature, self.questions = client, args, temperature, questions
        self.answers: dict[tuple[str, str], list[int]] = {}
        self.seeds = itertools.count()  # no answer repeats one that is cached

    def emitted(self) -> float:
        with urllib.request.urlopen(f"http://{self.args.metrics}/metrics") as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(EMITTED))

    def rate(self, mode: str) -> float:
        """Tokens per second."""
        numbers, clients = itertools.count(), self.args.before or self.args.streams

        def ask(client: int) -> None:
            while client < clients:
                number = next(numbers)
                question = self.questions[number % len(self.questions)]
                answer = self.client.generate([{"role": "user", "content": question}], temperature=self.temperature,
                                              max_tokens=self.args.max_tokens, **options_of(mode, next(self.seeds)))
                self.answers[mode, question] = answer.tokens

        with ThreadPoolExecutor(max(clients, self.args.streams)) as pool:
            asking = [pool.submit(ask, client) for client in range(clients)]
            time.sleep(WARM_UP)
            begin, clients = clients, self.args.streams
            asking += [pool.submit(ask, client) for client in range(begin, clients)]
            begun, before = time.perf_counter(), self.emitted()
            time.sleep(self.args.seconds)
            rate = (self.emitted() - before) / (time.perf_counter() - begun)
            clients = 0
            for each in asking:
                each.result()
        return rate

    def other_answers(self) -> int:
        """How many answers differ from plain decoding's."""
        return sum(tokens != self.answers.get((PLAIN, question), tokens) for (_, question), tokens in self.answers.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, turns=5)
    parser.add_argument("--metrics", default="127.0.0.1:9090", help="address of its metrics")
    parser.add_argument("--streams", type=int, default=16, help="clients")
    parser.add_argument("--before", type=int, help="clients until a measurement begins, to see how a change of load is followed")
    parser.add_argument("--seconds", type=float, default=8, help="length of a measurement")
    args = parser.parse_args()

    questions = [question for questions in chat_questions().values() for question in questions]
    report, others = {"machine": machine(), "streams": args.streams, "results": []}, 0
    modes = [PLAIN, *args.modes]
    with Client(args.address, timeout=600) as client:
        for temperature in args.temperatures:
            load = Load(client, args, temperature, questions)
            for mode in modes:  # the coordinator learns its choices
                load.rate(mode)
            turns = [{mode: load.rate(mode) for mode in (modes if turn % 2 == 0 else modes[::-1])} for turn in range(args.turns)]
            others += temperature == 0 and load.other_answers()
            for mode in modes:
                rates, ratios = [turn[mode] for turn in turns], sorted(turn[mode] / turn[PLAIN] for turn in turns)
                row = {"temperature": temperature, "mode": mode, "tokens_per_second": statistics.median(rates),
                       "ratio": statistics.median(ratios), "least": ratios[0], "largest": ratios[-1]}
                report["results"].append(row)
                print(f"{args.streams} streams, temperature {temperature:g}: {mode:12} {row['tokens_per_second']:7.0f} tokens/s, "
                      f"{row['ratio']:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) times plain decoding", flush=True)
    print(f"answers at temperature 0 with other tokens than plain decoding: {others}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if others else 0)


if __name__ == "__main__":
    main()
