"""kubeconform -strict accepts every overlay, and finds misspelt fields."""

import json
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


# Mistakes: the overlay, the right text, and the wrong text.
WRONG = [
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
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The errors of each text, by its name; none if it is accepted. One process reads all texts, and each schema once."""
    scratch, folder = tmp_path_factory.mktemp("scratch"), tmp_path_factory.mktemp("texts")
    rules = scratch / "rules.yml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: up == 0, for: 1m, labels: {severity: page}}]}]\n")
    texts = {overlay: text_of(overlay) for overlay in OVERLAYS}
    texts |= {f"component-{name}": yaml.safe_dump_all(components_alone([name], scratch)) for name in COMPONENTS}
    for command in ([KUBERNETES / "components" / "tls" / "make_secrets"],
                    [KUBERNETES / "components" / "monitoring" / "make_rules", rules]):
        texts[command[0].name] = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        assert texts[command[0].name].count("kind:") >= 1
    for number, (overlay, right, wrong) in enumerate(WRONG):
        assert right in texts[overlay]
        texts[f"wrong-{number}"] = texts[overlay].replace(right, wrong, 1)
    texts["unknown"] = yaml.safe_dump({"apiVersion": "example.com/v1", "kind": "Unknown", "metadata": {"name": "x"}})
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    ran = subprocess.run([KUBECONFORM, "-strict", "-kubernetes-version", "1.36.0", "-schema-location", SCHEMAS, "-output", "json", folder],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ran.returncode == 1
    said = dict.fromkeys(texts, "")
    for resource in json.loads(ran.stdout)["resources"]:
        said[Path(resource["filename"]).stem] += resource["msg"]
    return said


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_valid(overlay: str, refused: dict[str, str]) -> None:
    assert refused[overlay] == ""


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_valid(component: str, refused: dict[str, str]) -> None:
    assert refused[f"component-{component}"] == ""


@pytest.mark.parametrize("script", ["make_secrets", "make_rules"])
def test_what_the_scripts_make_is_valid(script: str, refused: dict[str, str]) -> None:
    assert refused[script] == ""


@pytest.mark.parametrize("number", range(len(WRONG)), ids=[wrong for _, _, wrong in WRONG])
def test_a_misspelling_is_found(number: int, refused: dict[str, str]) -> None:
    assert refused[f"wrong-{number}"] != ""


def test_every_kind_has_a_schema(refused: dict[str, str]) -> None:
    """kubeconform refuses an object without a schema instead of skipping it."""
    assert "could not find schema" in refused["unknown"]
    assert any(thing["apiVersion"].startswith("monitoring.coreos.com/") for thing in objects_of("gpu"))
