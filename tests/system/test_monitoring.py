"""Prometheus, the rules and the dashboards show the true state of the running services."""

import dataclasses
import math
import shutil
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import ROOT, Answer, Cluster, cluster, eventually, load_prompts
from monitored import Prometheus, disturb, load, services, watched

sys.path.insert(0, str(ROOT / "tests" / "unit"))

import dashboards  # noqa: E402
import promql_tree  # noqa: E402

TARGETS = [target for name, dashboard in dashboards.load().items() for target in dashboards.targets(name, dashboard)]
RULES = [
    rule
    for path in sorted((ROOT / "deploy" / "prometheus" / "rules").glob("*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
# Longer than the test can take, so that one window covers all of it.
WHOLE = "1h"


@dataclasses.dataclass
class Seen:
    """The requests and answers, and the Prometheus that watched."""

    c: Cluster
    prometheus: Prometheus
    answers: list[tuple[dict[str, Any], Answer]]
    answered: float  # the scrape after all answers and before any other request
    start: float
    end: float

    def sum(self, field: str) -> int:
        return sum(getattr(answer.speculation, field) for _, answer in self.answers)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    prompts = load_prompts()
    with cluster() as c, watched(c, tmp_path_factory.mktemp("prometheus")) as prometheus:
        start = prometheus.value("max(timestamp(up))")
        answers = load(c, prompts)
        c.wait_idle()
        answered = prometheus.wait_for_scrapes(targets=3)
        disturb(c, prompts)
        yield Seen(c, prometheus, answers, answered, start, prometheus.wait_for_scrapes(targets=3, times=2))


def query_of(dashboard: str, panel: str, legend: str = "") -> str:
    """The query of a panel over the whole history."""
    found = [t.expr for t in TARGETS if (t.dashboard, t.panel) == (dashboard, panel) and legend in t.legend]
    return dashboards.fill_in(found[0], WHOLE)


@pytest.mark.parametrize("job", ["outrider-coordinator", "outrider-draft", "outrider-target"])
def test_promtool_finds_nothing_wrong_with_the_metrics(seen: Seen, job: str) -> None:
    with urllib.request.urlopen(f"http://{services(seen.c)[job].metrics_address}/metrics") as response:
        # vLLM's own names have a colon, which is for recording rules.
        lines = [line for line in response.read().splitlines(keepends=True) if b"vllm:" not in line]
    checked = subprocess.run(["promtool", "check", "metrics"], input=b"".join(lines), capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_every_query_of_every_dashboard_returns_data(seen: Seen) -> None:
    without = [str(t) for t in TARGETS if not seen.prometheus.query(dashboards.fill_in(t.expr, WHOLE), seen.end)]
    assert without == []


@pytest.mark.parametrize("window", ["3s", WHOLE])
def test_no_query_is_ever_infinite_or_not_a_number(seen: Seen, window: str) -> None:
    """Evaluates every query from before the first request to idleness after the last."""
    wrong = []
    for target in TARGETS:
        matrix = seen.prometheus.api(
            "query_range", query=dashboards.fill_in(target.expr, window), start=seen.start - 5, end=seen.end, step=1
        )["result"]
        if not all(math.isfinite(float(value)) for series in matrix for _, value in series["values"]):
            wrong.append(str(target))
    assert wrong == []


def test_every_choice_of_a_variable_finds_all_that_run(seen: Seen) -> None:
    jobs = set()
    for dashboard in dashboards.load().values():
        queries = {v["name"]: v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"}
        for name, query in queries.items():
            selector = dashboards.fill_in(query, WHOLE).removeprefix("label_values(").removesuffix(f", {name})")
            found = seen.prometheus.api("series", **{"match[]": selector})
            assert {series[name] for series in found}, query
            jobs |= {series["job"] for series in found}
    assert jobs == services(seen.c).keys()


def test_every_rule_is_evaluated_without_an_error(seen: Seen) -> None:
    def evaluated() -> list[dict] | None:
        rules = [rule for group in seen.prometheus.api("rules")["groups"] for rule in group["rules"]]
        return rules if all(rule["health"] != "unknown" for rule in rules) else None

    rules = eventually(evaluated, "all rules have been evaluated")
    assert len(rules) == len(RULES)
    assert [rule for rule in rules if rule["health"] != "ok"] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record", rule.get("alert")))
def test_every_rule_has_data(seen: Seen, rule: dict) -> None:
    """Every recording rule has samples, and every series that an alert uses exists."""
    if "record" in rule:
        samples = seen.prometheus.query(rule["record"], seen.end)
        assert samples and all(math.isfinite(value) for _, value in samples)
    for selector in promql_tree.selectors(promql_tree.parse(rule["expr"])):
        assert seen.prometheus.query(promql_tree.without_offset(selector), seen.end)


def test_the_canaries_are_silent(seen: Seen) -> None:
    assert not [
        alert for alert in seen.prometheus.api("alerts")["alerts"] if "Canary" in alert["labels"]["alertname"]
    ]
    assert abs(seen.prometheus.value(query_of("acceptance", "Acceptance canary"), seen.end)) < 5


def test_rate_and_mean_length_are_those_of_the_answers(seen: Seen) -> None:
    drafted, accepted, drafts = seen.sum("drafted"), seen.sum("accepted"), seen.sum("drafts")
    assert drafted > accepted > drafts > 100
    for expr, expected in (("Acceptance rate", accepted / drafted), ("Mean accepted length", 1 + accepted / drafts)):
        for dashboard in ("overview", "acceptance"):
            assert seen.prometheus.value(query_of(dashboard, expr), seen.answered) == pytest.approx(
                expected, rel=1e-6
            )


def test_values_by_position_are_those_of_the_answers(seen: Seen) -> None:
    drafted, accepted = Counter(), Counter()
    for _, answer in seen.answers:
        drafted.update(dict(enumerate(answer.speculation.drafted_per_position)))
        accepted.update(dict(enumerate(answer.speculation.accepted_per_position)))
    shown = seen.prometheus.values(query_of("acceptance", "Acceptance by position"), "position", seen.answered)
    assert len(shown) >= 6
    assert shown == pytest.approx({f"{at:02}": accepted[at] / drafted[at] for at in drafted if drafted[at]}, rel=1e-6)


def test_values_by_drafter_and_rule_are_those_of_the_answers(seen: Seen) -> None:
    drafted, accepted = Counter(), Counter()
    for options, answer in seen.answers:
        who = options.get("drafter", "model"), options.get("rule", "token")
        drafted[who] += answer.speculation.drafted
        accepted[who] += answer.speculation.accepted
    shown = {
        (labels["drafter"], labels["rule"]): value
        for labels, value in seen.prometheus.query(
            query_of("acceptance", "Acceptance by drafter and rule"), seen.answered
        )
    }
    assert len(shown) == 5
    assert shown == pytest.approx({who: accepted[who] / drafted[who] for who in drafted if drafted[who]}, rel=1e-6)


def test_emitted_tokens_by_kind_are_those_of_the_answers(seen: Seen) -> None:
    rates = seen.prometheus.values(query_of("acceptance", "Emitted tokens by kind"), "kind", seen.answered)
    kinds = {kind: seen.sum(f"emitted_{kind}") for kind in ("accepted", "corrected", "bonus", "plain")}
    assert min(kinds.values()) > 0
    scale = sum(rates.values()) / sum(kinds.values())
    assert rates == pytest.approx({kind: count * scale for kind, count in kinds.items()}, rel=1e-6)


def test_pods_are_found_by_their_labels(seen: Seen, tmp_path: Path) -> None:
    """The scrape configuration for Kubernetes, with pods from a file instead of the cluster's API."""
    folder = tmp_path / "kubernetes"
    shutil.copytree(ROOT / "deploy" / "prometheus", folder)
    configuration = yaml.safe_load((folder / "kubernetes.yml").read_text())
    [scrape] = configuration["scrape_configs"]
    [discovery] = scrape.pop("kubernetes_sd_configs")
    assert discovery["role"] == "pod" and "app.kubernetes.io/name=outrider" in discovery["selectors"][0]["label"]
    scrape["file_sd_configs"] = [{"files": ["pods.yml"]}]
    (folder / "file.yml").write_text(yaml.safe_dump(configuration))

    def pod(name: str, component: str, address: str, port: str = "metrics", phase: str = "Running") -> dict:
        labels = {
            "namespace": "text",
            "pod_name": name,
            "pod_node_name": "n1",
            "pod_phase": phase,
            "pod_container_port_name": port,
            "pod_label_app_kubernetes_io_component": component,
        }
        return {"targets": [address], "labels": {f"__meta_kubernetes_{key}": value for key, value in labels.items()}}

    pods = [
        pod(f"{job.removeprefix('outrider-')}-0", job.removeprefix("outrider-"), server.metrics_address)
        for job, server in services(seen.c).items()
    ]
    pods += [
        pod("draft-0", "draft", seen.c.draft.address, port="grpc"),
        pod("draft-1", "draft", "127.0.0.1:1", phase="Succeeded"),
    ]
    (folder / "pods.yml").write_text(yaml.safe_dump(pods))
    prometheus = Prometheus(folder, "file.yml")
    try:

        def up() -> list[dict] | None:
            targets = prometheus.api("targets", state="active")["activeTargets"]
            return targets if len(targets) == 3 and all(t["health"] == "up" for t in targets) else None

        labels = {target["labels"]["job"]: target["labels"] for target in eventually(up, "three pods are scraped")}
        assert labels == {
            f"outrider-{name}": {
                "job": f"outrider-{name}",
                "instance": f"{name}-0",
                "namespace": "text",
                "node": "n1",
            }
            for name in ("coordinator", "draft", "target")
        }
    finally:
        prometheus.kill()
