"""A real Prometheus with the configuration of deploy/prometheus, and a load that changes the metrics."""

import contextlib
import json
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from harness import PATIENCE, ROOT, Answer, Cluster, Process, Server, eventually, request

from outrider.v1.inference_pb2 import BeamOptions

CONFIGURATION = ROOT / "deploy" / "prometheus"

Sample = tuple[dict[str, str], float]


class Prometheus(Process):
    """A running Prometheus with the configuration file of a folder; its data are beside it."""

    def __init__(self, folder: Path, configuration: str = "prometheus.yml") -> None:
        program = shutil.which("prometheus")
        assert program, "no prometheus: scripts/packages-test.txt names it"
        super().__init__(
            program,
            f"--config.file={folder / configuration}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:0",
            "--log.format=logfmt",
        )
        self.address: str = eventually(self._listening, "Prometheus listens")
        eventually(self._ready, "Prometheus is ready")

    def _listening(self) -> str | None:
        assert self.popen.poll() is None, self.tail()
        found = [re.search(r'msg="Listening on" address=(\S+)', line) for line in list(self.lines)]
        return next((match[1] for match in found if match), None)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE):
                return True
        except OSError:
            return False

    def api(self, path: str, **parameters: Any) -> Any:
        """The data of an answer of Prometheus' HTTP API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success" and not answer.get("warnings"), answer
        return answer["data"]

    def query(self, expr: str, at: float | None = None) -> list[Sample]:
        data = self.api("query", query=expr, **({} if at is None else {"time": at}))
        assert data["resultType"] == "vector", f"{expr} is no vector"
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    def value(self, expr: str, at: float | None = None) -> float:
        """The value of an expression with exactly one sample."""
        [(_, value)] = self.query(expr, at)
        return value

    def values(self, expr: str, label: str, at: float | None = None) -> dict[str, float]:
        return {labels[label]: value for labels, value in self.query(expr, at)}

    def wait_for_scrapes(self, targets: int, times: int = 1) -> float:
        """Waits until each target has been scraped `times` more times; returns the time of the last scrape."""
        for _ in range(times):
            now = time.time()
            eventually(
                lambda: len(self.query("up == 1")) == targets and self.value("min(timestamp(up))") > now,
                f"{targets} targets are scraped",
            )
        return self.value("max(timestamp(up))")


def services(c: Cluster) -> dict[str, Server]:
    """The servers of a cluster, by Prometheus job."""
    return {server.program: server for server in (c.coordinator, c.draft, c.target)}


def configure(folder: Path, c: Cluster, interval: str) -> None:
    """Writes a copy of deploy/prometheus for these processes and this interval."""
    shutil.copytree(CONFIGURATION, folder, dirs_exist_ok=True)
    configuration = yaml.safe_load((folder / "prometheus.yml").read_text())
    configuration["global"] = {"scrape_interval": interval, "evaluation_interval": interval}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    groups = yaml.safe_load((folder / "targets.yml").read_text())
    for group in groups:
        group["targets"] = [services(c)[group["labels"]["job"]].metrics_address]
    (folder / "targets.yml").write_text(yaml.safe_dump(groups))


@contextlib.contextmanager
def watched(c: Cluster, folder: Path, interval: str = "1s") -> Iterator[Prometheus]:
    """A Prometheus that has scraped the counters before any request."""
    configure(folder, c, interval)
    prometheus = Prometheus(folder)
    try:
        prometheus.wait_for_scrapes(targets=3, times=2)
        yield prometheus
    finally:
        prometheus.kill()


REPEATING = '"Who is there?" said the fox. "It is I," said the hare.\n' * 8


def calls(prompts: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Calls with plain and speculative rounds of every rule, all kinds of drafters, and repeated prompts."""
    sampled = {"temperature": 1.0, "max_tokens": 60, "ignore_eos": True}
    found: list[tuple[str, dict[str, Any]]] = []
    for seed, prompt in enumerate(prompts[:4]):
        found += [
            (prompt, sampled | {"seed": seed, **how})
            for how in (
                {"k": 0},
                {"k": 4},
                {"k": 3, "rule": "block"},
                {"k": 2, "rule": "coupled"},
                {"k": 6, "temperature": 0},
                {"k": 3, "temperature": 0, "schedule": "run_ahead"},
                {"tree": "2x2x1"},
            )
        ]
    for drafter in ("ngram", "copy"):
        found += [
            (REPEATING, sampled | {"seed": seed, "k": 4, "drafter": drafter, "temperature": 0.5}) for seed in range(2)
        ]
    return found + [(prompts[0], {"temperature": 0, "max_tokens": 60}) for _ in range(2)]  # the policy chooses K


def load(c: Cluster, prompts: list[str]) -> list[tuple[dict[str, Any], Answer]]:
    """Runs all calls, several at once, and returns the answers with their options."""
    asked = calls(prompts)
    return [(options, answer) for (_, options), answer in zip(asked, c.generate_all(asked, at_once=4), strict=True)]


def disturb(c: Cluster, prompts: list[str]) -> None:
    """Sends a beam search, which is counted apart, a request whose client leaves, and an invalid request."""
    c.generate(prompts[0], k=2, max_tokens=60, beam=BeamOptions(width=3))
    abandoned = c.stream(prompts[0], k=3, temperature=1)
    next(abandoned)
    abandoned.cancel()
    with pytest.raises(grpc.RpcError):
        list(c.stub.Generate(request(prompts[0], temperature=-1.0), timeout=PATIENCE))
    for code in ("CANCELLED", "INVALID_ARGUMENT"):
        c.coordinator.wait_value("outrider_requests_total", 1, code=code)
    c.wait_idle()
