"""The dashboards keep the rules of Grafana's dashboard linter (github.com/grafana/dashboard-linter), and a few more.

Every check takes a dashboard and returns a list of problems. Each check runs on the dashboards of this repository, and on
a copy with an offence that it must find.
"""

import copy
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_tree
import pytest
from dashboards import FOLDER, fill_in, load, panels
from promql_tree import kind, walk

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "grafana"))

from build import build  # noqa: E402

# The units of Grafana that the dashboards use.
UNITS = {"none", "short", "s", "percentunit", "cps", "ops", "reqps"}
# Replaces $__rate_interval, which is no duration until Grafana fills it in.
MAGIC = 7919
# Labels that a Prometheus with other scrape configurations may not have.
MAYBE_ABSENT = ("namespace", "model_name")
COUNTER = re.compile(r"_(total|bucket|sum|count)$")


def parsed(panel: dict) -> Iterator[Any]:
    """The syntax trees of a panel's valid queries. invalid_promql finds the others."""
    for target in panel["targets"]:
        try:
            yield promql_tree.parse(target["expr"].replace("$__rate_interval", f"{MAGIC}s"))
        except ValueError:
            continue


def variables(dashboard: dict) -> dict[str, dict]:
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def wrong_datasource_variable(dashboard: dict) -> list[str]:
    found = [v for v in variables(dashboard).values() if v["type"] == "datasource"]
    wanted = {"name": "datasource", "label": "Data source", "query": "prometheus"}
    return [] if len(found) == 1 and wanted.items() <= found[0].items() else [f"data source variables: {found}"]


def wrong_choices(dashboard: dict) -> list[str]:
    """Variables come from the templated source, allow several values or all, and follow the time range."""
    wrong = []
    for name, given in (("namespace", ""), ("model_name", "namespace"), ("job", "namespace"), ("instance", "job")):
        variable = variables(dashboard).get(name, {})
        wanted = {
            "type": "query",
            "label": name.replace("_", " ").capitalize(),
            "multi": True,
            "includeAll": True,
            "allValue": ".*" if name in MAYBE_ABSENT else ".+",
            "refresh": 2,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
        }
        if not wanted.items() <= variable.items():
            wrong.append(f"variable {name}: {variable}")
        selector = re.fullmatch(rf"label_values\((.+), {name}\)", variable.get("query", ""))
        try:
            matchers = promql_tree.matchers(promql_tree.parse(selector[1])) if selector else None
        except ValueError:
            matchers = None
        if matchers is None or (given and (given, "=~", f"${given}") not in matchers):
            wrong.append(f"variable {name}: {variable.get('query')}")
    return wrong


def undescribed(dashboard: dict) -> list[str]:
    return [
        f"panel {p.get('title')!r}"
        for p in panels(dashboard)
        if not (p.get("title") and p.get("description", "").endswith("."))
    ] + [f"dashboard {dashboard.get('title')!r}"] * (not (dashboard.get("title") and dashboard.get("description")))


def without_unit(dashboard: dict) -> list[str]:
    return [p["title"] for p in panels(dashboard) if p["fieldConfig"]["defaults"].get("unit") not in UNITS]


def fixed_datasource(dashboard: dict) -> list[str]:
    wanted = {"type": "prometheus", "uid": "${datasource}"}
    return [
        p["title"] for p in panels(dashboard) if any(part.get("datasource") != wanted for part in [p, *p["targets"]])
    ]


def without_queries(dashboard: dict) -> list[str]:
    return [p["title"] for p in panels(dashboard) if not p.get("targets")]


def unreadable_legends(dashboard: dict) -> list[str]:
    """Several queries in one panel are told apart by their legends."""
    wrong = []
    for panel in panels(dashboard):
        legends = [target["legendFormat"] for target in panel["targets"]]
        if panel["type"] != "table" and len(legends) > 1 and (len(set(legends)) < len(legends) or "" in legends):
            wrong.append(panel["title"])
    return wrong


def invalid_promql(dashboard: dict) -> list[str]:
    return [p["title"] for p in panels(dashboard) if len(list(parsed(p))) < len(p["targets"])]


def other_windows(dashboard: dict) -> list[str]:
    return [
        p["title"]
        for p in panels(dashboard)
        for tree in parsed(p)
        for node, _ in walk(tree)
        if kind(node) in ("MatrixSelector", "SubqueryExpr") and node.range.total_seconds() != MAGIC
    ]


def unfiltered(dashboard: dict) -> list[str]:
    wanted = {(name, "=~", f"${name}") for name in ("namespace", "job", "instance")}
    return [
        f"{p['title']}: {selector.name}"
        for p in panels(dashboard)
        for tree in parsed(p)
        for selector in promql_tree.selectors(tree)
        if not wanted | model_of(selector.name) <= promql_tree.matchers(selector)
    ]


def model_of(series: str) -> set[tuple[str, str, str]]:
    """How the series has to name its model. A draft's own series name another model than the one that is served."""
    of_draft = series.startswith("outrider_draft_") and series not in ("outrider_draft_up", "outrider_draft_errors_total")
    return set() if of_draft else {("model_name", "=~", "$model_name")}


def bare_counters(dashboard: dict) -> list[str]:
    """Only the growth of a counter says something, not its value."""
    wrong = []
    for panel in panels(dashboard):
        for tree in parsed(panel):
            for node, above in walk(tree):
                if kind(node) == "VectorSelector" and COUNTER.search(node.name or ""):
                    call = above[-2] if len(above) > 1 and kind(above[-1]) == "MatrixSelector" else None
                    if kind(call) != "Call" or call.func.name not in ("rate", "increase"):
                        wrong.append(f"{panel['title']}: {node.name}")
    return wrong


def nothing_divided_by(dashboard: dict) -> list[str]:
    return [p["title"] for p in panels(dashboard) for tree in parsed(p) if promql_tree.unguarded_divisions(tree)]


def nothing_observed(dashboard: dict) -> list[str]:
    return [p["title"] for p in panels(dashboard) for tree in parsed(p) if promql_tree.unguarded_quantiles(tree)]


def overlapping(dashboard: dict) -> list[str]:
    taken: dict[tuple[int, int], str] = {}
    wrong = []
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        wrong += [panel["title"]] * (bool(cells & taken.keys()) or at["x"] + at["w"] > 24)
        taken |= dict.fromkeys(cells, panel["title"])
    ids = [panel["id"] for panel in dashboard["panels"]]
    return wrong + ["ids"] * (len(set(ids)) < len(ids))


CHECKS = [
    wrong_datasource_variable,
    wrong_choices,
    undescribed,
    without_unit,
    fixed_datasource,
    without_queries,
    unreadable_legends,
    invalid_promql,
    other_windows,
    unfiltered,
    bare_counters,
    nothing_divided_by,
    nothing_observed,
    overlapping,
]


@pytest.mark.parametrize("name, dashboard", load().items())
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_dashboards_pass(check: Callable, name: str, dashboard: dict) -> None:
    assert check(dashboard) == []


def test_the_dashboards_are_what_the_script_makes() -> None:
    made = build()
    assert made.keys() == {path.name for path in FOLDER.iterdir()}
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, f"{name}: run deploy/grafana/build.py"


def test_every_dashboard_has_a_name_of_its_own() -> None:
    for field in ("uid", "title"):
        assert len({dashboard[field] for dashboard in load().values()}) == len(load()) >= 4


def test_variables_are_filled_in() -> None:
    assert (
        fill_in('rate(a_total{namespace=~"$namespace", job=~"$job", instance=~"$instance"}[$__rate_interval])', "1m")
        == 'rate(a_total{namespace=~".*", job=~".+", instance=~".+"}[1m])'
    )


# A dashboard that follows every rule: one of the repository's, cut down to one panel.
GOOD = copy.deepcopy(load()["latency"])
GOOD["panels"] = [panel for panel in panels(GOOD) if panel["title"] == "Wire"]
SELECTOR = 'namespace=~"$namespace", model_name=~"$model_name", job=~"$job", instance=~"$instance"'
RATE = f"rate(outrider_a_total{{{SELECTOR}}}[$__rate_interval])"


def with_query(expr: str) -> Callable[[dict], None]:
    return lambda d: d["panels"][0]["targets"][0].update(expr=expr)


def with_variable(name: str, **fields: Any) -> Callable[[dict], None]:
    return lambda d: variables(d)[name].update(fields)


BAD: list[tuple[Callable, Callable[[dict], Any]]] = [
    (wrong_datasource_variable, lambda d: d["templating"]["list"].pop(0)),
    (wrong_datasource_variable, with_variable("datasource", query="loki")),
    (wrong_choices, with_variable("job", multi=False)),
    (wrong_choices, with_variable("job", refresh=1)),
    (wrong_choices, with_variable("job", query="label_values(outrider_rounds_total{, job)")),
    (wrong_choices, with_variable("instance", query="label_values(outrider_rounds_total, instance)")),
    (undescribed, lambda d: d["panels"][0].pop("description")),
    (undescribed, lambda d: d.update(description="")),
    (without_unit, lambda d: d["panels"][0]["fieldConfig"]["defaults"].update(unit="seconds")),
    (fixed_datasource, lambda d: d["panels"][0]["targets"][0]["datasource"].update(uid="prometheus")),
    (without_queries, lambda d: d["panels"][0].update(targets=[])),
    (unreadable_legends, lambda d: d["panels"][0]["targets"][0].update(legendFormat="")),
    (invalid_promql, with_query(f"sum ({RATE}")),
    (other_windows, with_query(RATE.replace("$__rate_interval", "5m"))),
    (unfiltered, with_query(RATE.replace('job=~"$job", ', ""))),
    (unfiltered, with_query(RATE.replace('namespace=~"$namespace", ', ""))),
    (unfiltered, with_query(RATE.replace('model_name=~"$model_name", ', ""))),
    (unfiltered, with_query(RATE.replace('instance=~"$instance"', 'instance="$instance"'))),
    (bare_counters, with_query(f"sum (outrider_a_total{{{SELECTOR}}})")),
    (bare_counters, with_query(f"max_over_time(outrider_a_total{{{SELECTOR}}}[$__rate_interval])")),
    (nothing_divided_by, with_query(f"sum ({RATE}) / sum ({RATE})")),
    (nothing_divided_by, with_query(f"sum ({RATE}) / (sum ({RATE}) >= 0)")),
    (nothing_observed, with_query(f"histogram_quantile(0.5, sum by (le) ({RATE}))")),
    (overlapping, lambda d: d["panels"].append(copy.deepcopy(d["panels"][0]) | {"id": 99})),
    (overlapping, lambda d: d["panels"][0]["gridPos"].update(x=20)),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_good_dashboard_passes(check: Callable) -> None:
    assert check(GOOD) == []


@pytest.mark.parametrize("check, offence", BAD, ids=[f"{check.__name__}-{n}" for n, (check, _) in enumerate(BAD)])
def test_an_offence_is_found(check: Callable, offence: Callable[[dict], Any]) -> None:
    dashboard = copy.deepcopy(GOOD)
    offence(dashboard)
    assert check(dashboard) != []


def test_every_check_has_an_offence() -> None:
    assert {check for check, _ in BAD} == set(CHECKS)
