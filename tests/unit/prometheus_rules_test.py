"""deploy/prometheus: promtool accepts and tests it, every alert can fire and stay silent, and every runbook is there."""

import re
import shutil
import subprocess
from pathlib import Path

import promql_tree
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
TESTS = sorted((FOLDER / "tests").glob("*.yml"))
RUNBOOKS = "docs/runbooks.md"


def rules(name: str) -> list[dict]:
    return [
        rule for group in yaml.safe_load((FOLDER / "rules" / name).read_text())["groups"] for rule in group["rules"]
    ]


RECORDS, ALERTS = rules("recording.yml"), rules("alerts.yml")


def promtool(*args: object) -> str:
    done = subprocess.run(["promtool", *map(str, args)], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_is_valid() -> None:
    assert "2 rule files found" in promtool("check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")


def test_the_configuration_is_valid_with_the_targets_of_compose(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    shutil.copy(FOLDER / "compose-targets.yml", tmp_path / "targets.yml")
    promtool("check", "config", tmp_path / "prometheus.yml")


def test_an_invalid_configuration_is_found(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "targets.yml").write_text("- targets: localhost:9070\n")
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("check", "config", tmp_path / "prometheus.yml")


def test_the_three_jobs_are_the_same_everywhere() -> None:
    for name in ("targets.yml", "compose-targets.yml"):
        groups = yaml.safe_load((FOLDER / name).read_text())
        assert {
            group["labels"]["job"]: [target.rsplit(":")[1] for target in group["targets"]] for group in groups
        } == {"outrider-coordinator": ["9070"], "outrider-draft": ["9071"], "outrider-target": ["9072"]}


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules(path: Path) -> None:
    assert "SUCCESS" in promtool("test", "rules", path)


def cases() -> list[dict]:
    return [
        case
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test.get("alert_rule_test", [])
    ]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_has_cases_that_fire_and_cases_that_do_not(alert: dict) -> None:
    fires = [bool(case.get("exp_alerts")) for case in cases() if case["alertname"] == alert["alert"]]
    assert set(fires) == {True, False}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["record"])
def test_every_recording_rule_is_tested_or_alerted_on(record: dict) -> None:
    texts = [
        (FOLDER / "tests" / "recording.yml").read_text(),
        *(rule["expr"] for rule in [*ALERTS, *RECORDS] if rule is not record),
    ]
    assert any(record["record"] in text for text in texts)


def test_recording_rules_are_named_by_level_metric_and_operation() -> None:
    names = [record["record"] for record in RECORDS]
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(
            r"(instance|job)(_[a-z]+)?:outrider_[a-z0-9_]+:(ratio|rate|increase|deviations|p95)\w*", name
        ), name


@pytest.mark.parametrize("rule", RECORDS + ALERTS, ids=lambda rule: rule.get("record", rule.get("alert")))
def test_no_rule_divides_by_nothing(rule: dict) -> None:
    tree = promql_tree.parse(rule["expr"])
    assert promql_tree.unguarded_divisions(tree) + promql_tree.unguarded_quantiles(tree) == []


@pytest.mark.parametrize(
    "expr",
    ["a / b", "a / (b >= 0)", "a / on (job) group_left () b", "sum(a) / sum(b)", "1 - histogram_quantile(0.9, a)"],
)
def test_a_division_by_nothing_is_found(expr: str) -> None:
    tree = promql_tree.parse(expr)
    assert promql_tree.unguarded_divisions(tree) + promql_tree.unguarded_quantiles(tree) != []


def anchors(markdown: str) -> dict[str, str]:
    """Text of each section, by the anchor that its heading gets."""
    found = {}
    for heading, text in re.findall(r"^#+ (.+?)\n(.*?)(?=^#|\Z)", markdown, re.M | re.S):
        found[re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")] = text
    return found


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_says_what_it_means_and_where_to_read_on(alert: dict) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"]["summary"] and alert["annotations"]["description"].endswith(".")
    path, anchor = alert["annotations"]["runbook_url"].split("#")
    assert RUNBOOKS in path and "$externalLabels.runbooks" in path and anchor == alert["alert"].lower()
    runbook = anchors((ROOT / RUNBOOKS).read_text()).get(anchor, "")
    for part in ("**Means:**", "**Look at:**", "**Do:**"):
        assert part in runbook, f"{RUNBOOKS}#{anchor} lacks {part!r}"


def test_every_runbook_belongs_to_an_alert() -> None:
    runbooks = {anchor for anchor in anchors((ROOT / RUNBOOKS).read_text()) if re.fullmatch(r"outrider\w+", anchor)}
    assert runbooks == {alert["alert"].lower() for alert in ALERTS}
