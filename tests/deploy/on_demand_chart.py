"""The Helm chart gives the objects that kustomize gives, and follows its values. Run by `make test-helm`."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from arrows import EGRESS, INGRESS, arrows
from chart import CASES, CHART, VERSION, chart_objects, helm, is_hook, template, text_of, values_of
from checks import CHECKS, Check
from manifests import (COMPONENTS, KUBERNETES, OVERLAYS, ROOT, TOOLS, Object, arguments, component_of, components_alone, container_of,
                       find, name_of, objects_of, of_kind, selects, workloads)

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
POOLS = {"pools": {"enabled": True}}
GPU = {"gpu": {"enabled": True}}
TLS = {"tls": {"enabled": True}}
KEDA = {"keda": {"enabled": True, "serverAddress": "http://prometheus:9090"}}
ROUTE = {"enabled": True, "parentRefs": [{"name": "public"}]}


def merged(one: Any, other: Any) -> Any:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return other
    return one | {key: merged(one.get(key), value) for key, value in other.items()}


def nested(path: str, value: Any) -> Object:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def leaves(values: Object, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def groups(values: Object, path: str = "") -> Iterator[str]:
    """The paths of all maps whose keys the chart defines."""
    for key, value in values.items():
        if isinstance(value, dict) and (value or key in ("settings", "resources")):
            yield f"{path}{key}."
            yield from groups(value, f"{path}{key}.")


def alike(objects: list[Object]) -> dict[str, Object]:
    """Objects by kind and name, without what only Helm or kustomize adds: namespace, hashes in ConfigMaps' names, Helm's annotations."""
    def without_annotations(thing: Any) -> Any:
        if isinstance(thing, list):
            return [without_annotations(part) for part in thing]
        if not isinstance(thing, dict):
            return thing
        thing = {key: without_annotations(value) for key, value in thing.items()}
        ours = {key: value for key, value in thing.get("annotations", {}).items()
                if key not in ("checksum/settings", "helm.sh/resource-policy")}
        return thing | {"annotations": ours} if ours else {key: thing[key] for key in thing if key != "annotations"}

    text = yaml.safe_dump_all(objects)
    for name in map(name_of, of_kind(objects, "ConfigMap")):
        text = text.replace(name, re.sub(r"-[a-z0-9]{10}$", "", name))
    return {f"{thing['kind']} {name_of(thing)}": without_annotations(thing)
            for thing in yaml.safe_load_all(text) if thing["kind"] != "Namespace"}


def test_each_overlay_has_values_and_everything_else_too() -> None:
    assert set(CASES) == {*OVERLAYS, "everything"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_gives_the_objects_of_an_overlay(overlay: str) -> None:
    assert alike(chart_objects(values_of(overlay))) == alike(objects_of(overlay))


# The values that add each component; weights-fetch needs gpu.
SWITCHES: dict[str, Object] = {
    "autoscaling": {"autoscaling": {"enabled": True}}, "gpu": GPU, "inference-pool": {"inferencePool": {"enabled": True}},
    "monitoring": {"monitoring": {"podMonitor": True}}, "pools": POOLS, "tensor-parallel": {"tensorParallel": {"enabled": True}},
    "tls": TLS, "weights-fetch": merged(GPU, {"weights": {"fetch": {"enabled": True}}}),
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_chart_gives_the_objects_of_a_component_alone(component: str, tmp_path: Path) -> None:
    assert alike(chart_objects(SWITCHES[component])) == alike(components_alone([component], tmp_path))


def test_a_difference_from_an_overlay_is_seen() -> None:
    for values in ({"target": {"settings": {"THREADS": 3}}}, {"draft": {"podAnnotations": {"a": "b"}}}, GPU):
        assert alike(chart_objects(values)) != alike(objects_of("cpu"))
    changed = objects_of("cpu")
    find(changed, "Service", "outrider-draft")["spec"]["ports"][0]["appProtocol"] = "http"
    assert alike(chart_objects({})) != alike(changed)


@pytest.mark.parametrize("case", CASES)
def test_it_lints(case: str) -> None:
    code, said, _ = helm("lint", "--strict", CHART, *VERSION, values=values_of(case))
    assert code == 0, said


def test_lint_finds_what_is_wrong(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "outrider")
    (tmp_path / "outrider" / "Chart.yaml").write_text("apiVersion: v2\nname: outrider\nversion: one\n")
    assert helm("lint", "--strict", tmp_path / "outrider", *VERSION)[0] != 0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES)
def test_what_overlays_pass_passes(check: Check, case: str) -> None:
    assert check(chart_objects(values_of(case))) == []


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """kubeconform's messages about each rendering, by its name."""
    folder = tmp_path_factory.mktemp("texts")
    texts = {case: text_of(values_of(case)) for case in CASES}
    texts["fewer"] = text_of({"pools": {"enabled": True}, "draft": {"replicas": 2}, "target": {"replicas": 2}})
    texts["terminated"] = text_of(merged(TLS, {"tls": {"httpTerminated": True}, "ingress": {"enabled": True}, "httpRoute": ROUTE}))
    for number, (right, wrong) in enumerate([("parentRefs:", "parents:"), ("triggers:", "trigger:"), ("ingressClassName:", "class:"),
                                             ("groups:", "group:"), ("restartPolicy: Never", "restartPolicy: 1")]):
        assert right in texts["everything"]
        texts[f"wrong-{number}"] = texts["everything"].replace(right, wrong, 1)
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)
    ran = subprocess.run([TOOLS / "bin" / "kubeconform", "-strict", "-kubernetes-version", "1.36.0", "-schema-location",
                          TOOLS / "schemas", "-output", "json", folder], stdout=subprocess.PIPE, text=True)
    said = dict.fromkeys(texts, "")
    for resource in json.loads(ran.stdout)["resources"]:
        said[Path(resource["filename"]).stem] += resource["msg"]
    return said


@pytest.mark.parametrize("name", [*CASES, "fewer", "terminated"])
def test_it_is_valid(name: str, refused: dict[str, str]) -> None:
    assert refused[name] == ""


def test_what_is_invalid_is_found(refused: dict[str, str]) -> None:
    wrong = {name: said for name, said in refused.items() if name.startswith("wrong-")}
    assert len(wrong) == 5 and all(wrong.values()), wrong


# For each value: another one, values that it needs, and a line that only the changed rendering has.
CHANGES: dict[str, tuple[Any, Object, str]] = {
    "image.registry": ("example.com/team/", {}, "image: example.com/team/outrider-draft:0.1.0"),
    "image.tag": ("9.9", {}, "image: outrider-target:9.9"),
    "image.pullPolicy": ("Always", {}, "imagePullPolicy: Always"),
    "image.pullSecrets": (["registry"], {}, "- name: registry"),
    "coordinator.replicas": (3, {}, "replicas: 3"),
    "draft.replicas": (4, POOLS, "replicas: 4"),
    "target.replicas": (3, POOLS, "replicas: 3"),
    "gpu.enabled": (True, {}, "MODEL: /models/Llama-3.2-1B-Instruct"),
    "weights.claim": ("models", GPU, "claimName: models"),
    "weights.fetch.enabled": (True, GPU, "secretName: outrider-hub"),
    "weights.fetch.tokenSecret": ("hub", merged(GPU, {"weights": {"fetch": {"enabled": True}}}), "secretName: hub"),
    "tls.enabled": (True, {}, "- --tls-key=/etc/outrider/tls/tls.key"),
    "tls.httpTerminated": (True, TLS, "- --http-tls-terminated=true"),
    **{f"tls.secrets.{name}": ("mine", TLS, "secretName: mine") for name in DEFAULTS["tls"]["secrets"]},
    "pools.enabled": (True, {}, "TARGET: dns:///outrider-target:7072"),
    "pools.draft.minReplicas": (5, POOLS, "minReplicas: 5"),
    "pools.draft.maxReplicas": (9, POOLS, "maxReplicas: 9"),
    "pools.target.minReplicas": (4, POOLS, "minReplicas: 4"),
    "pools.target.maxReplicas": (9, POOLS, "maxReplicas: 9"),
    "tensorParallel.enabled": (True, {}, "kind: LeaderWorkerSet"),
    "tensorParallel.size": (4, {"tensorParallel": {"enabled": True}}, "size: 4"),
    "autoscaling.enabled": (True, {}, "kind: HorizontalPodAutoscaler"),
    "autoscaling.minReplicas": (3, {"autoscaling": {"enabled": True}}, "minReplicas: 3"),
    "autoscaling.maxReplicas": (7, {"autoscaling": {"enabled": True}}, "maxReplicas: 7"),
    "keda.enabled": (True, {"keda": {"serverAddress": "http://prometheus:9090"}}, "kind: ScaledObject"),
    "keda.serverAddress": ("https://other:9090", KEDA, 'serverAddress: "https://other:9090"'),
    "keda.minReplicas": (3, KEDA, "minReplicaCount: 3"),
    "keda.maxReplicas": (7, KEDA, "maxReplicaCount: 7"),
    "keda.waiting": (9, KEDA, 'threshold: "9"'),
    "keda.running": (99, KEDA, 'threshold: "99"'),
    "monitoring.podMonitor": (True, {}, "kind: PodMonitor"),
    "monitoring.rules": (True, {}, "kind: PrometheusRule"),
    "monitoring.dashboards": (True, {}, 'labels: {grafana_dashboard: "1"}'),
    "monitoring.labels": ({"release": "stack"}, {"monitoring": {"podMonitor": True, "rules": True}}, "release: stack"),
    "inferencePool.enabled": (True, {}, "kind: InferencePool"),
    "ingress.enabled": (True, {}, "kind: Ingress"),
    "ingress.className": ("nginx", {"ingress": {"enabled": True}}, "ingressClassName: nginx"),
    "ingress.annotations": ({"a": "b"}, {"ingress": {"enabled": True}}, "a: b"),
    "ingress.hosts": (["api.example.com"], {"ingress": {"enabled": True}}, '- host: "api.example.com"'),
    "ingress.tlsSecret": ("api", {"ingress": {"enabled": True}}, "- secretName: api"),
    **{f"{kind}Route.{field}": (value, {f"{kind}Route": ROUTE}, line) for kind in ("http", "grpc") for field, value, line in (
        ("parentRefs", [{"name": "other"}], "- name: other"), ("hostnames", ["a.example.com"], 'hostnames: ["a.example.com"]'))},
    **{f"{kind}Route.enabled": (True, {f"{kind}Route": {"parentRefs": ROUTE["parentRefs"]}}, f"kind: {kind.upper()}Route")
       for kind in ("http", "grpc")},
    **{f"{role}.{field}": (value, {}, line) for role in ("coordinator", "draft", "target") for field, value, line in (
        ("settings", {"OUTRIDER_LOG_LEVEL": "debug"}, "OUTRIDER_LOG_LEVEL: debug"),
        ("extraArgs", ["--log-level=debug"], "- --log-level=debug"), ("resources", {"limits": {"memory": "9Gi"}}, "memory: 9Gi"),
        ("nodeSelector", {"disk": "ssd"}, "disk: ssd"), ("tolerations", [{"key": "spot"}], "- key: spot"),
        ("affinity", {"podAffinity": {}}, "podAffinity: {}"), ("podAnnotations", {"a": "b"}, "a: b"))},
}


def test_the_table_of_changes_has_every_value() -> None:
    assert CHANGES.keys() == {path for path, _ in leaves(DEFAULTS)}


@pytest.mark.parametrize("path", CHANGES)
def test_a_value_changes_the_rendering(path: str) -> None:
    value, needed, line = CHANGES[path]
    before, after = (text_of(values).splitlines() for values in (needed, merged(needed, nested(path, value))))
    count = [sum(each.strip() == line for each in lines) for lines in (before, after)]
    assert count[0] < count[1]


@pytest.mark.parametrize("path", ["", *groups(DEFAULTS)])
def test_a_misspelt_value_is_refused(path: str) -> None:
    code, _, said = template(nested(f"{path}misspelt", "x"))
    assert code != 0 and "additional properties 'misspelt' not allowed" in said


@pytest.mark.parametrize(("path", "value"), [
    *((path, "x" if isinstance(value, (bool, int)) or path.endswith("replicas") else 5) for path, value in leaves(DEFAULTS)),
    ("draft.replicas", -1), ("target.replicas", 0), ("coordinator.replicas", 0), ("pools.draft.minReplicas", 1), ("tensorParallel.size", 1),
    ("keda.waiting", 0), ("keda.serverAddress", "prometheus:9090"), ("image.pullPolicy", "Sometimes"), ("image.pullSecrets", ["A B"]),
    ("coordinator.settings", {"THREADS": 2}), ("target.settings", {"TARGET": "x"}), ("target.extraArgs", ["log-level"]),
    ("httpRoute.parentRefs", [{"namespace": "x"}])])
def test_a_wrong_value_is_refused_by_its_name(path: str, value: Any) -> None:
    code, _, said = template(nested(path, value))
    assert code != 0 and f"at '/{path.replace('.', '/')}" in said


# Values that exclude each other, and the error.
EXCLUDED: list[tuple[Object, str]] = [
    (merged(KEDA, {"autoscaling": {"enabled": True}}), "keda.enabled and autoscaling.enabled exclude each other"),
    (merged(KEDA, {"coordinator": {"replicas": 3}}), "coordinator.replicas: keda or autoscaling sets them"),
    ({"autoscaling": {"enabled": True}, "coordinator": {"replicas": 3}}, "coordinator.replicas: keda or autoscaling sets them"),
    ({"keda": {"enabled": True}}, "keda.serverAddress"),
    ({"draft": {"replicas": 2}}, "draft.replicas: more than 1 need pools.enabled"),
    ({"target": {"replicas": 2}}, "target.replicas: more than 1 need pools.enabled"),
    (merged(POOLS, {"draft": {"replicas": 1}}), "draft.replicas: a pool has 2 or more"),
    (merged(POOLS, {"draft": {"replicas": 0}}), "draft.replicas: a pool has 2 or more"),
    (merged(POOLS, {"target": {"replicas": 1}}), "target.replicas: a pool has 2 or more"),
    (merged(POOLS, {"tensorParallel": {"enabled": True}}), "pools.enabled and tensorParallel.enabled exclude each other"),
    ({"tensorParallel": {"enabled": True}, "target": {"extraArgs": ["--block-size=32"]}}, "target.extraArgs reach only one rank"),
    ({"weights": {"fetch": {"enabled": True}}}, "weights.fetch.enabled needs gpu.enabled"),
    ({"weights": {"claim": "models"}}, "weights.claim needs gpu.enabled"),
    (merged(GPU, {"weights": {"claim": "models", "fetch": {"enabled": True}}}), "weights.claim and weights.fetch.enabled exclude"),
    ({"tls": {"httpTerminated": True}}, "tls.httpTerminated needs tls.enabled"),
    (merged(TLS, {"ingress": {"enabled": True}}), "with tls.enabled they need tls.httpTerminated"),
    (merged(TLS, {"httpRoute": ROUTE}), "with tls.enabled they need tls.httpTerminated"),
    (merged(TLS, {"grpcRoute": ROUTE}), "grpcRoute.enabled and tls.enabled exclude each other"),
    (merged(TLS, {"inferencePool": {"enabled": True}}), "inferencePool.enabled and tls.enabled exclude each other"),
    ({"httpRoute": ROUTE, "grpcRoute": ROUTE}, "httpRoute.hostnames and grpcRoute.hostnames exclude each other"),
    ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: it needs a Gateway"),
    ({"grpcRoute": {"enabled": True}}, "grpcRoute.parentRefs: it needs a Gateway"),
    ({"pools": {"draft": {"minReplicas": 9}}}, "pools.draft.minReplicas: 9 is above its maxReplicas, 8"),
    ({"keda": {"maxReplicas": 1}}, "keda.minReplicas: 2 is above its maxReplicas, 1"),
    ({"coordinator": {"replicas": 9}}, "draft.settings.MAX_SEQUENCES: 2048 is less than 9 coordinators"),
    ({"autoscaling": {"enabled": True, "maxReplicas": 9}}, "draft.settings.MAX_SEQUENCES: 2048 is less than 9 coordinators"),
    (merged(KEDA, {"keda": {"maxReplicas": 9}}), "draft.settings.MAX_SEQUENCES: 2048 is less than 9 coordinators"),
    ({"target": {"settings": {"MAX_SEQUENCES": 511}}}, "target.settings.MAX_SEQUENCES: 511 is less than 2 coordinators"),
]


@pytest.mark.parametrize(("values", "message"), EXCLUDED, ids=[str(number) for number in range(len(EXCLUDED))])
def test_what_excludes_each_other_is_refused(values: Object, message: str) -> None:
    code, _, said = template(values)
    assert code != 0 and message in said


def test_every_refusal_is_tried() -> None:
    refusals = re.findall(r'"([^"]*\b(?:exclude|needs?|sets|reach|more)\b[^"]*)"', (CHART / "templates" / "_refuse.tpl").read_text())
    assert len(refusals) == 19
    for refusal in refusals:
        assert any(message in refusal for _, message in EXCLUDED), refusal


def test_a_package_alone_renders_the_same(tmp_path: Path) -> None:
    assert helm("package", CHART, "--destination", tmp_path)[0] == 0
    (package,) = tmp_path.glob("*.tgz")
    for case in CASES:
        assert template(values_of(case), chart=package.name, folder=tmp_path) == (0, text_of(values_of(case)), "")
    unpacked = subprocess.run(["tar", "-tvf", package], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "make_secrets" in unpacked and "-values.yaml" not in unpacked
    assert all(line.startswith("-") for line in unpacked.splitlines()), "no links"


def test_a_chart_without_its_links_says_so(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "outrider", ignore=shutil.ignore_patterns("base"))
    code, _, said = template({}, chart=tmp_path / "outrider")
    assert code != 0 and "files/base is not in the chart" in said


def test_the_version_is_that_of_the_images() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == re.search(
        r"project\(outrider VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]


def test_rules_and_dashboards_are_those_of_the_tree() -> None:
    objects = chart_objects({"monitoring": {"rules": True, "dashboards": True}})
    made = subprocess.run([KUBERNETES / "components" / "monitoring" / "make_rules"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert {name_of(rules): rules["spec"] for rules in of_kind(objects, "PrometheusRule")} == {
        name_of(rules): rules["spec"] for rules in yaml.safe_load_all(made)} != {}
    boards = [board for board in of_kind(objects, "ConfigMap") if "labels" in board["metadata"]]
    files = {path.name: json.loads(path.read_text()) for path in (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")}
    assert {name.removeprefix("outrider-"): json.loads(text) for board in boards for name, text in board["data"].items()} == files


def test_a_change_of_settings_replaces_only_the_pods_that_read_them() -> None:
    def sums(values: Object) -> dict[str, str]:
        return {component_of(w): w["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
                for w in workloads(chart_objects(values))}

    before, after = sums({}), sums({"draft": {"settings": {"THREADS": 4}}})
    assert {name for name in before if before[name] != after[name]} == {"draft"}


def test_settings_reach_the_flags_and_all_ranks() -> None:
    objects = chart_objects({"tensorParallel": {"enabled": True, "size": 4}, "target": {"settings": {"MAX_SEQUENCES": 1048576}}})
    assert [check(objects) for check in CHECKS if check(objects)] == []
    assert {component_of(w): arguments(w, objects)["--max-sequences"] for w in workloads(objects)
            if component_of(w).startswith("target")} == {"target": "1048576", "target-worker": "1048576"}


def test_where_tls_ends_before_the_coordinator_its_http_port_is_plain() -> None:
    objects = chart_objects(merged(merged(POOLS, TLS), {"tls": {"httpTerminated": True}, "ingress": {"enabled": True}}))
    for name in ("outrider-coordinator", "outrider-coordinators"):
        assert [port["appProtocol"] for port in find(objects, "Service", name)["spec"]["ports"]] == ["kubernetes.io/h2c", "http"]
    assert arguments(find(objects, "Deployment", "outrider-coordinator"), objects)["--http-tls-terminated"] == "true"


def test_routes_and_pools_lead_to_ports_of_the_service() -> None:
    objects = chart_objects({"ingress": {"enabled": True}, "httpRoute": ROUTE, "grpcRoute": {**ROUTE, "hostnames": ["grpc.example.com"]}})
    ports = {port["name"]: port["port"] for port in find(objects, "Service", "outrider-coordinator")["spec"]["ports"]}
    for kind, name in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        ((rule,),) = [route["spec"]["rules"] for route in of_kind(objects, kind)]
        assert rule == {"backendRefs": [{"name": "outrider-coordinator", "port": ports[name]}]}
    (ingress,) = of_kind(objects, "Ingress")
    assert ingress["spec"]["defaultBackend"]["service"] == {"name": "outrider-coordinator", "port": {"name": "http"}}
    pooled = chart_objects({"inferencePool": {"enabled": True}, "httpRoute": ROUTE})
    ((backend,),) = [route["spec"]["rules"][0]["backendRefs"] for route in of_kind(pooled, "HTTPRoute")]
    assert find(pooled, backend["kind"], backend["name"])["apiVersion"].startswith(backend["group"])


def test_keda_asks_for_metrics_of_coordinators_and_owns_the_replicas() -> None:
    objects = chart_objects(KEDA)
    (scaled,) = of_kind(objects, "ScaledObject")
    assert "replicas" not in find(objects, "Deployment", scaled["spec"]["scaleTargetRef"]["name"])["spec"]
    metrics = (ROOT / "coordinator" / "decode" / "metrics.h").read_text()
    for trigger in scaled["spec"]["triggers"]:
        (metric,) = re.findall(r'outrider_(\w+){namespace="outrider"}', trigger["metadata"]["query"])
        assert f'"{metric}"' in metrics
    scaler = find(chart_objects({"autoscaling": {"enabled": True}}), "HorizontalPodAutoscaler", "outrider-coordinator")
    assert scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"] == scaler["spec"]["behavior"]["scaleDown"]


@pytest.mark.parametrize("values", [{}, TLS], ids=["plain", "tls"])
def test_the_test_of_a_release_may_ask_the_coordinator(values: Object) -> None:
    """Its pod is a client, and its own policy lets it out. Its flags name files that it mounts."""
    hooks = [thing for thing in yaml.safe_load_all(text_of(values)) if is_hook(thing)]
    policy, pod = (find(hooks, kind, "outrider-test") for kind in ("NetworkPolicy", "Pod"))
    assert selects(policy["spec"]["podSelector"], pod["metadata"]["labels"])
    assert pod["metadata"]["labels"]["outrider-client"] == "true"
    (container,) = pod["spec"]["containers"]
    objects = chart_objects(values)
    pod_as_workload = {"kind": "Pod", "metadata": pod["metadata"],
                       "spec": {"template": {"metadata": pod["metadata"], "spec": pod["spec"]}}}
    ingress, egress = arrows([*objects, pod_as_workload, policy])
    assert egress - EGRESS == {("outrider-test", "coordinator", 7070), ("outrider-test", "dns", 53)} and ingress == INGRESS
    mounted = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    files = [argument.split("=")[1] for argument in container["args"] if "=/" in argument]
    assert len(files) == (2 if values else 0) and all(any(file.startswith(path) for path in mounted) for file in files)
    coordinator = container_of(find(objects, "Deployment", "outrider-coordinator"))
    assert container["securityContext"] == coordinator["securityContext"]


def test_the_default_namespace_is_that_of_the_release() -> None:
    _, text, _ = helm("template", "outrider", CHART, "--namespace", "other", *VERSION, values=values_of("everything"))
    assert {thing["metadata"]["namespace"] for thing in yaml.safe_load_all(text)} == {"other"}
    assert 'namespace="other"' in text
