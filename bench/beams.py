"""What drafting gains for beam searches: calls of the target and time, by width and by what is drafted.

    outrider up                        # in another terminal
    .venv/bin/python bench/beams.py [--address 127.0.0.1:7070] [--tokens 48] [--turns 3] [--json build/bench/beams.json]

All ways take turns over the same prompts. A way is K and the draft's width in multiples of the search's; K = 0 drafts nothing, and in
`auto` the coordinator decides whether it does. Each must find the same texts.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from outrider import Client

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"k": 0, "times": 1}, "K = 1, 3 w": {"k": 1, "times": 3}, "K = 2, 2 w": {"k": 2, "times": 2},
    "K = 2, 3 w": {"k": 2, "times": 3}, "K = 3, 3 w": {"k": 3, "times": 3}, "K = 4, 4 w": {"k": 4, "times": 4},
    "auto": {"k": None, "times": None}}
WIDTHS = [2, 4, 8]


def run(client: Client, prompts: list[str], width: int, way: dict[str, Any], tokens: int) -> tuple[float, int, list[str]]:
    """Seconds and calls of the target of all searches, and what they found."""
    calls, texts, began = 0, [], time.monotonic()
    draft_width = way["times"] and way["times"] * width
    for prompt in prompts:
        found = client.generate(prompt, beam_width=width, beam_draft_width=draft_width, draft_tokens=way["k"], max_tokens=tokens,
                                ignore_eos=True)
        calls += found.speculation.rounds
        texts.append(found.text)
    return time.monotonic() - began, calls, texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:7070")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    prompts = json.loads((Path(__file__).parent / "prompts.json").read_text())["prose"]["prompts"]
    results = []
    with Client(options.address) as client:
        for width in WIDTHS:
            speeds: dict[str, list[float]] = {name: [] for name in WAYS}
            steps_a_call: dict[str, float] = {}
            for _ in range(options.turns):
                plain, expected = 0.0, None
                for name, way in WAYS.items():
                    seconds, calls, texts = run(client, prompts, width, way, options.tokens)
                    plain, expected = plain or seconds, expected or texts
                    assert texts == expected, f"width {width}, {name}: other texts than without a draft"
                    speeds[name].append(plain / seconds)
                    steps_a_call[name] = len(prompts) * options.tokens / calls
            for name, speed in speeds.items():
                print(f"width {width}  {name:10}  {steps_a_call[name]:5.2f} tokens a call  "
                      f"{statistics.median(speed):5.2f} of plain ({min(speed):.2f}-{max(speed):.2f})", flush=True)
                results.append({"width": width, "way": name, "tokens_per_call": steps_a_call[name], "speed": speed})
    if options.json:
        options.json.write_text(json.dumps({"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
