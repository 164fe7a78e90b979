"""Compares Outrider, transformers, llama.cpp and vLLM on the shipped pair, with the same weights, prompts and threads.

    python bench/compare.py [--json build/bench/compare.json]
    python bench/compare.py --gguf FILE... [--json build/bench/compare-gguf.json]
    python bench/compare.py --chat FILE [--json build/bench/compare-chat.json]

The second command compares Outrider and llama.cpp on the same GGUF files instead: decoding, prompts, what several rows
cost, and how near a step comes to the rate at which memory is read. The third has the systems answer questions with
SmolLM2's GGUF file and the drafters in models/smollm2.

The systems take turns, and a figure is the median over the turns. With the pair, all compute in bfloat16. The threads of
the other systems spin while they wait for each other, so these need an otherwise idle machine. The script reports at the
start how busy the machine is. Needs the programs in build/release/bin.
transformers takes part if this Python can import it (models/train/requirements.txt). llama.cpp is built into
build/bench/llama.cpp on first use, in some minutes, from the source package of llama-cpp-python; its converter
needs transformers too. vLLM is installed into build/bench/vllm on first use (compare_vllm.txt, 5.4 GB) and needs a
Python of 3.11 or later.

A system that fails is left out and named in one line. For an unexpected error the line names a log. The system's earlier
turns are dropped, because a median over fewer turns cannot be compared. The same goes for a mode of vLLM.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import compare_chat
import compare_gguf
from compare_systems import (FORWARD, PLAIN, ROOT, TEMPERATURES, LlamaCpp, Outrider, System, Transformers, Vllm,
                             leave_out, machine, processors)

SECONDS_WATCHED = 2  # how long other programs' load is measured, before the first turn


def busy_share() -> float:
    """The busy share of all processors' time, measured over the next seconds."""
    def ticks() -> list[int]:
        return [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]

    before = ticks()
    time.sleep(SECONDS_WATCHED)
    passed = [after - earlier for after, earlier in zip(ticks(), before)]
    return 1 - (passed[3] + passed[4]) / sum(passed)  # idle, and waiting for a disk


Rates = dict[tuple[str, str, float], float]  # by system, mode and temperature


def take_turns(kinds: list[type[System]], options: argparse.Namespace, prompts: list[str]) -> Rates:
    """The medians over the turns, for the systems that did not fail."""
    systems: dict[type[System], System] = {}
    samples: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for turn in range(options.turns):
        for kind in kinds if turn == 0 else list(systems):
            try:
                if turn == 0:
                    systems[kind] = kind(options, prompts)
                for mode, temperature, rate in systems[kind].measure():
                    samples[kind.name, mode, temperature].append(rate)
            except Exception as error:  # other projects' code: anything can go wrong in it
                leave_out(kind.name, error)
                systems.pop(kind, None)
    names = {kind.name for kind in systems}
    return {key: statistics.median(values) for key, values in samples.items()
            if key[0] in names and len(values) == options.turns}


def best(rates: Rates, system: str, temperature: float, wanted: Callable[[str], bool]) -> tuple[float, str] | None:
    found = [(rate, mode) for (name, mode, at), rate in rates.items()
             if name == system and at == temperature and wanted(mode)]
    return max(found, default=None)


def ratios(rates: Rates) -> Iterator[dict]:
    """Outrider's rates divided by the others', where both were measured."""
    def speculative(mode: str) -> bool:
        return mode not in (PLAIN, FORWARD)

    questions: list[tuple[str, Callable[[str], bool], str, Callable[[str], bool]]] = [
        ("forward pass", lambda mode: mode == FORWARD, LlamaCpp.name, lambda mode: mode == FORWARD),
        ("plain, through the services", lambda mode: mode == PLAIN, LlamaCpp.name, lambda mode: mode == PLAIN),
        ("plain, through the services", lambda mode: mode == PLAIN, Transformers.name, lambda mode: mode == PLAIN),
        ("plain, through the services", lambda mode: mode == PLAIN, Vllm.name, lambda mode: mode == PLAIN),
        ("speculative", speculative, LlamaCpp.name, lambda mode: mode != FORWARD),
        ("speculative", speculative, Transformers.name, speculative),
        ("speculative", speculative, Vllm.name, lambda mode: True),
    ]
    for temperature in TEMPERATURES:
        for what, ours_wanted, system, theirs_wanted in questions:
            ours = best(rates, Outrider.name, temperature, ours_wanted)
            theirs = best(rates, system, temperature, theirs_wanted)
            if ours and theirs:
                yield {"temperature": temperature, "what": what, "ours": ours[1], "than": f"{system}, {theirs[1]}",
                       "ratio": ours[0] / theirs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=ROOT / "models/tiny-target", help="model folder")
    parser.add_argument("--draft", type=Path, default=ROOT / "models/tiny-draft", help="model folder")
    parser.add_argument("--gguf", type=Path, nargs="+", metavar="FILE", help="compare on these GGUF files instead of the pair")
    parser.add_argument("--chat", type=Path, metavar="FILE", help="compare on questions to this GGUF file of SmolLM2 instead")
    parser.add_argument("--chat-draft", type=Path, default=ROOT / "models/smollm2/draft.gguf", help="layers of its draft")
    parser.add_argument("--chat-heads", type=Path, default=ROOT / "models/smollm2/eagle3", help="EAGLE's folder")
    parser.add_argument("--each", type=int, default=2, help="questions of each kind")
    parser.add_argument("--prompts", type=Path, default=ROOT / "bench/prompts.json", help="JSON file of named sets")
    parser.add_argument("--set", default="prose", help="prompt set; only its first four texts are used")
    parser.add_argument("--threads", type=int, default=processors(), help="threads of each system")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens per generation")
    parser.add_argument("--turns", type=int, default=3, help="turns; each figure is their median")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    prompts = json.loads(options.prompts.read_text())[options.set]["prompts"][:4]
    # Let each system choose OpenMP's number of threads, their placement and how they wait.
    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_"))]:
        del os.environ[name]
    busy = busy_share()
    print(f"{machine()}, {options.threads} threads; other programs take {busy:.0%} of its processors", flush=True)

    if options.gguf:
        report = {"machine": machine(), "busy": busy, "threads": options.threads, "files": compare_gguf.main(options)}
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1) + "\n")
        return

    if options.chat:
        rates = take_turns(compare_chat.SYSTEMS, options, compare_chat.questions(options.each))
    else:
        rates = take_turns([Outrider, Transformers, LlamaCpp, Vllm], options, prompts)
    if not rates:
        sys.exit("compare: no system could be measured")

    def shown(rate: float | None) -> str:
        return f"{'-':>16}" if rate is None else f"{rate:16.0f}"

    print(f"\n{'tokens/s':14}{'':28}" + "".join(f"{f'temperature {t:g}':>16}" for t in TEMPERATURES))
    for name, mode in dict.fromkeys((name, mode) for name, mode, _ in rates):
        print(f"{name:14}{mode:28}" + "".join(shown(rates.get((name, mode, t))) for t in TEMPERATURES))
    compared = list(ratios(rates))
    print()
    for row in compared:
        print(f"temperature {row['temperature']:g}: {row['what']} ({row['ours']}): "
              f"{row['ratio']:.2f} x {row['than']}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"system": name, "mode": mode, "temperature": temperature, "tokens_per_second": rate}
                for (name, mode, temperature), rate in rates.items()]
        options.json.write_text(json.dumps({"machine": machine(), "busy": busy, "threads": options.threads,
                                            "max_tokens": options.max_tokens, "rows": rows, "ratios": compared},
                                           indent=1) + "\n")


if __name__ == "__main__":
    main()
