"""Draws each dashboard of deploy/grafana as one picture, from the data of a Prometheus.

    .venv/bin/python scripts/render_dashboards.py [--prometheus http://localhost:9090] [--minutes 15] [--out docs/images]

Without --prometheus it starts the three services with the shipped pair and a Prometheus, and lets changing numbers of
requests run for that long. Needs scripts/install bench; without --prometheus also make build.
"""

import argparse
import contextlib
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "deploy" / "grafana"), str(ROOT / "tests" / "system")]

import draw  # noqa: E402
import read  # noqa: E402
from monitored import ask, calls, watched  # noqa: E402

POINTS = 240


def seconds(duration: str) -> float:
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


class Source:
    """A Prometheus, asked as Grafana would: a point every `step` seconds, $__rate_interval to match."""

    def __init__(self, address: str, start: float, end: float) -> None:
        self.address, self.end = address, end
        self.step = max(1, math.ceil((end - start) / POINTS))
        self.start = end - self.step * math.floor((end - start) / self.step)
        targets = ask(address, "targets", state="active")["activeTargets"]
        self.scrape_interval = max((seconds(t["scrapeInterval"]) for t in targets), default=15)

    def lines(self, panel: dict) -> list[draw.Line]:
        least = max(self.step, seconds(panel.get("interval") or "1s"))
        interval = f"{max(math.ceil(least + self.scrape_interval), math.ceil(4 * self.scrape_interval))}s"
        found = []
        for target in panel["targets"]:
            expr = read.fill_in(target["expr"], interval)
            if target.get("instant"):
                series = [
                    (s["metric"], [s["value"]])
                    for s in ask(self.address, "query", query=expr, time=self.end)["result"]
                ]
            else:
                answer = ask(self.address, "query_range", query=expr, start=self.start, end=self.end, step=self.step)
                series = [(s["metric"], s["values"]) for s in answer["result"]]
            for labels, points in series:
                at = {float(t): float(v) for t, v in points}
                times = sorted(at) if target.get("instant") else self.times()
                found.append(
                    draw.Line(
                        draw.legend(target["legendFormat"], labels),
                        labels,
                        times,
                        [at.get(t, math.nan) for t in times],
                    )
                )
        return found

    def times(self) -> list[float]:
        return [round(self.start + i * self.step, 3) for i in range(round((self.end - self.start) / self.step) + 1)]


@contextlib.contextmanager
def served(minutes: float) -> Iterator[Source]:
    """The shipped pair under a load that comes and goes."""
    from harness import cluster, load_prompts

    prompts = load_prompts()
    rng = random.Random(1)
    with cluster() as c, tempfile.TemporaryDirectory() as folder, watched(c, Path(folder)) as prometheus:
        start = time.time()
        while time.time() < start + 60 * minutes:
            at_once = 1 + round(5 * (1 + math.sin((time.time() - start) / 45)))
            # A seed that comes again repeats its noise, and the canaries are to see more than one sample of it.
            asked = [
                (prompt, {key: value for key, value in how.items() if key != "seed"})
                for prompt, how in rng.sample(calls(prompts, length=120), 2 * at_once)
            ]
            automatic = [(rng.choice(prompts), {"temperature": 0.7, "max_tokens": 150}) for _ in range(at_once)]
            c.generate_all(asked + automatic, at_once=at_once)
            if rng.random() < 0.1:
                c.stream(prompts[0], k=3, temperature=1).cancel()
        yield Source(f"http://{prometheus.address}", math.floor(start), math.floor(time.time()))


@contextlib.contextmanager
def existing(address: str, minutes: float) -> Iterator[Source]:
    end = math.floor(time.time())
    yield Source(address.rstrip("/"), end - 60 * minutes, end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", help="address of one that scrapes Outrider; none: start everything here")
    parser.add_argument("--minutes", type=float, default=15, help="how much of the past to draw, or how long to run")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="folder for the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with existing(options.prometheus, options.minutes) if options.prometheus else served(options.minutes) as source:
        for name, dashboard in read.load().items():
            picture = options.out / f"dashboard-{name}.png"
            draw.draw(dashboard, source.lines).savefig(picture)
            print(f"render_dashboards: {picture}")


if __name__ == "__main__":
    main()
