#!/usr/bin/env python3
"""Lists the questions of conversations that are near duplicates of questions of public benchmarks: they have half of their runs of
three words in common, or a run of 13 words that are not all numbers. Exits with 1 if there are any.

BENCHMARK files have a JSON object on each line, of whose texts each counts as a question: question.jsonl of Spec-Bench
(github.com/hemingkx/Spec-Bench), which includes MT-Bench, and HumanEval.jsonl (github.com/openai/human-eval).
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from lessons import normalised

SHORT, LONG = 3, 13  # words
SHARE = 0.5


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    words = normalised(text).split()
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def long_runs(text: str) -> set[tuple[str, ...]]:
    return {run for run in runs(text, LONG) if not all(word.isdecimal() for word in run)}


class Benchmarks:
    """The runs of words of all questions."""

    def __init__(self, files: list[Path]) -> None:
        questions = [text for file in files for line in file.open() for text in texts(json.loads(line))]
        self.short = [runs(question, SHORT) for question in questions]
        self.long = set().union(*map(long_runs, questions))
        self.having: dict[tuple[str, ...], list[int]] = defaultdict(list)  # numbers of the questions with a run
        for number, some in enumerate(self.short):
            for run in some:
                self.having[run].append(number)

    def has_like(self, question: str) -> bool:
        own = runs(question, SHORT)
        common = Counter(number for run in own for number in self.having.get(run, ()))
        alike = any(count >= SHARE * len(own | self.short[number]) for number, count in common.items())
        return alike or not self.long.isdisjoint(long_runs(question))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("conversations", type=Path, help="file of conversations that converse.py wrote")
    parser.add_argument("benchmarks", type=Path, nargs="+", metavar="BENCHMARK", help="JSON file with a question on each line")
    args = parser.parse_args()
    benchmarks = Benchmarks(args.benchmarks)
    questions = {json.loads(line)["question"] for line in args.conversations.open()}
    found = sorted(filter(benchmarks.has_like, questions))
    for question in found:
        print(json.dumps(question, ensure_ascii=False))
    print(f"{len(found)} of {len(questions)} questions are near duplicates")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
