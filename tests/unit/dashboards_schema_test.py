"""The dashboards have the structure that Grafana publishes as types (npm @grafana/schema), with nothing added.

scripts/install makes the schema (deploy/grafana/schema). Where that could not be done, these tests are skipped, and ctest
says so.
"""

import copy
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from dashboards import load, panels

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Path(os.environ.get("OUTRIDER_GRAFANA_SCHEMA", ROOT / ".tools" / "grafana" / "schema.json"))

if not SCHEMA.exists():
    pytest.skip(f"no {SCHEMA}: scripts/install makes it from npm packages", allow_module_level=True)


@pytest.fixture(scope="module")
def schema() -> dict:
    return json.loads(SCHEMA.read_text())["properties"]


def violations(part: dict, value: object, where: str) -> Iterator[str]:
    for error in jsonschema.Draft7Validator(part).iter_errors(value):
        best = jsonschema.exceptions.best_match([error])
        yield f"{where}, {list(best.absolute_path)}: {best.message[:300]}"


def wrong(schema: dict, dashboard: dict) -> list[str]:
    found = list(violations(schema["dashboard"], dashboard, dashboard["title"]))
    for panel in panels(dashboard):
        for part, value in (
            ("options", panel.get("options")),
            ("custom", panel["fieldConfig"]["defaults"].get("custom")),
        ):
            types = schema[part]["properties"]
            if value and panel["type"] not in types:
                found.append(f"{panel['title']}: no schema of the {part} of a {panel['type']}")
            elif value:
                found += violations(types[panel["type"]], value, f"{panel['title']}, {part}")
    return found


@pytest.mark.parametrize("dashboard", load().values(), ids=load())
def test_the_dashboards_are_what_grafana_reads(schema: dict, dashboard: dict) -> None:
    assert wrong(schema, dashboard) == []


def first(dashboard: dict, kind: str) -> dict:
    return next(panel for panel in panels(dashboard) if panel["type"] == kind)


@pytest.mark.parametrize(
    "offence",
    [
        lambda d: d.update(titel="Overview"),
        lambda d: d.update(schemaVersion="41"),
        lambda d: d["templating"]["list"][0].update(auto=True),
        lambda d: first(d, "stat").update(gridPos={"x": 0}),
        lambda d: first(d, "stat")["options"].update(colorMode="values"),
        lambda d: first(d, "stat")["options"].pop("reduceOptions"),
        lambda d: first(d, "stat")["fieldConfig"]["defaults"].update(units="s"),
        lambda d: first(d, "table")["options"].update(footer={"show": False}),
        lambda d: first(d, "timeseries")["fieldConfig"]["defaults"]["custom"].update(lineWidth="1"),
        lambda d: first(d, "timeseries").update(type="graph"),
    ],
)
def test_an_offence_is_found(schema: dict, offence: Callable[[dict], object]) -> None:
    dashboard = copy.deepcopy(load()["overview"])
    offence(dashboard)
    assert wrong(schema, dashboard) != []
