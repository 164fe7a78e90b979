"""kubeconform -strict accepts every overlay, and finds misspelt fields."""

import subprocess
from pathlib import Path

import pytest
import yaml

from manifests import COMPONENTS, KUBERNETES, OVERLAYS, TOOLS, components_alone, objects_of, text_of

KUBECONFORM = TOOLS / "bin" / "kubeconform"
SCHEMAS = TOOLS / "schemas"
CUSTOM = ("podmonitor-monitoring-v1.json", "leaderworkerset-leaderworkerset-v1.json")
if not (KUBECONFORM.exists() and all((SCHEMAS / "v1.36.0-standalone-strict" / name).exists() for name in CUSTOM)):
    pytest.skip("kubeconform or its schemas are not installed: scripts/install_tools", allow_module_level=True)


def refused(manifests: str) -> str:
    ran = subprocess.run([KUBECONFORM, "-strict", "-kubernetes-version", "1.36.0", "-schema-location", SCHEMAS, "-"],
                         input=manifests, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (ran.returncode != 0) == (ran.stdout != "")
    return ran.stdout


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_valid(overlay: str) -> None:
    assert refused(text_of(overlay)) == ""


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_valid(component: str, tmp_path: Path) -> None:
    assert refused(yaml.safe_dump_all(components_alone([component], tmp_path))) == ""


def test_what_the_scripts_make_is_valid(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: up == 0, for: 1m, labels: {severity: page}}]}]\n")
    for command in ([KUBERNETES / "components" / "tls" / "make_secrets"],
                    [KUBERNETES / "components" / "monitoring" / "make_rules", rules]):
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        assert made.count("kind:") >= 1
        assert refused(made) == ""


@pytest.mark.parametrize(("overlay", "right", "wrong"), [
    ("gpu", "terminationGracePeriodSeconds:", "terminationGraceSeconds:"),
    ("gpu", "podMetricsEndpoints:", "podMetricEndpoints:"),
    ("gpu", "targetLabel: job", "targetLable: job"),
    ("gpu", "averageValue: ", "averageValues: "),
    ("gpu", "replicas: 1", "replicas: one"),
    ("gpu", "publishNotReadyAddresses: true", "publishNotReadyAddresses: null"),
    ("tensor-parallel", "startupPolicy: LeaderCreated", "startupPolicy: Created"),
    ("tensor-parallel", "subdomainPolicy:", "subDomainPolicy:"),
    ("tensor-parallel", "fieldPath: status.podIP", "path: status.podIP"),
    ("tensor-parallel", "failureThreshold: 450", "failureTreshold: 450"),
])
def test_a_misspelling_is_found(overlay: str, right: str, wrong: str) -> None:
    text = text_of(overlay)
    assert right in text
    assert refused(text.replace(right, wrong, 1)) != ""


def test_every_kind_has_a_schema() -> None:
    """An object without a schema would be an error and not be skipped."""
    assert "could not find schema" in refused(
        yaml.safe_dump({"apiVersion": "example.com/v1", "kind": "Unknown", "metadata": {"name": "x"}}))
    assert any(thing["apiVersion"].startswith("monitoring.coreos.com/") for thing in objects_of("gpu"))
