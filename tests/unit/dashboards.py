"""Reads the dashboards as a viewer's browser would: their panels, and queries with the variables filled in."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    dashboard: str
    panel: str
    expr: str
    legend: str

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel}: {self.expr}"


def load() -> dict[str, dict]:
    """All dashboards, by the name of their file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard: dict) -> Iterator[dict]:
    """The panels that show something, in reading order."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def targets(name: str, dashboard: dict) -> Iterator[Target]:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield Target(name, panel["title"], target["expr"], target["legendFormat"])


def fill_in(text: str, rate_interval: str) -> str:
    """The text with "All" chosen for every variable."""
    text = text.replace("$namespace", ".*").replace("$model_name", ".*")
    return text.replace("$__rate_interval", rate_interval).replace("$job", ".+").replace("$instance", ".+")
