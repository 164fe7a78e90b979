"""The manifests of deploy/ as kustomize renders them, and how Kubernetes interprets them."""

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
TOOLS = ROOT / ".tools"
PROGRAMS = Path(sys.executable).parent  # kubectl and hadolint come with the Python environment
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in KUBERNETES.glob("components/*/kustomization.yaml"))
# The components that define objects to which another component refers.
NEEDED = {"weights-fetch": ["gpu"]}

POD_IP = "192.0.2.1"  # of any pod
LWS = "leaderworkerset.sigs.k8s.io"

Object = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod", "ReplicaSet")


def kustomize(folder: Path) -> str:
    return subprocess.run([PROGRAMS / "kubectl", "kustomize", folder], check=True, stdout=subprocess.PIPE,
                          text=True).stdout


@functools.cache
def text_of(overlay: str) -> str:
    return kustomize(KUBERNETES / "overlays" / overlay)


def objects_of(overlay: str) -> list[Object]:
    """The objects of an overlay; each caller gets a copy."""
    return list(yaml.safe_load_all(text_of(overlay)))


def components_alone(components: list[str], scratch: Path) -> list[Object]:
    """The base with these components, after those that the first depends on."""
    def relative(path: Path) -> str:
        return str(Path(*[".."] * (len(scratch.resolve().parts) - 1)) / path.relative_to("/"))

    paths = [relative(KUBERNETES / "components" / name) for name in [*NEEDED.get(components[0], []), *components]]
    (scratch / "kustomization.yaml").write_text(yaml.safe_dump(
        {"namespace": "outrider", "resources": [relative(KUBERNETES / "base")], "components": paths}))
    return list(yaml.safe_load_all(kustomize(scratch)))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [thing for thing in objects if thing["kind"] in kinds]


def workloads(objects: list[Object]) -> list[Object]:
    """All workloads, including those that the controller of LeaderWorkerSets makes, which share its pods' specs."""
    made = [stateful for group in of_kind(objects, "LeaderWorkerSet") for stateful in _stateful_sets_of(group)]
    return of_kind(objects, *WORKLOADS) + made


def _stateful_sets_of(group: Object) -> list[Object]:
    """The StatefulSets of the leaders and of the first leader's workers, as sigs.k8s.io/lws/pkg/controllers makes them."""
    spec, name = group["spec"], name_of(group)
    both, size = spec["leaderWorkerTemplate"], spec["leaderWorkerTemplate"]["size"]
    alone = spec["networkConfig"]["subdomainPolicy"] == "UniquePerReplica"

    def made(of: str, template: Object, replicas: int, labels: dict[str, str]) -> Object:
        labels = {f"{LWS}/name": name} | labels
        return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": group["metadata"] | {"name": of},
                "spec": {"replicas": replicas, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels},
                         "serviceName": f"{name}-0" if alone else name,
                         "template": {"metadata": {"labels": template["metadata"]["labels"] | labels,
                                                   "annotations": {f"{LWS}/size": str(size)}},
                                      "spec": template["spec"]}}}

    return [made(name, both["leaderTemplate"], spec["replicas"], {f"{LWS}/worker-index": "0"}),
            made(f"{name}-0", both["workerTemplate"], size - 1, {f"{LWS}/group-index": "0"})]


def leader_of(workload: Object, objects: list[Object]) -> Object:
    """The workload itself unless its pods are workers of a LeaderWorkerSet."""
    if f"{LWS}/group-index" not in labels_of(workload):
        return workload
    return next(w for w in workloads(objects) if name_of(w) == labels_of(workload)[f"{LWS}/name"])


def autoscaler_of(workload: Object, objects: list[Object]) -> Object | None:
    return next((scaler for scaler in of_kind(objects, "HorizontalPodAutoscaler")
                 if scaler["spec"]["scaleTargetRef"]["name"] == name_of(workload)), None)


def replicas_of(workload: Object, objects: list[Object]) -> tuple[int, int]:
    """The least and the greatest number of replicas."""
    if (scaler := autoscaler_of(workload, objects)) is not None:
        return scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]
    count = workload["spec"].get("replicas", 1)
    return count, count


def stateful_set(objects: list[Object], name: str) -> Object | None:
    return next((w for w in of_kind(workloads(objects), "StatefulSet") if name_of(w) == name), None)


def name_of(thing: Object) -> str:
    return thing["metadata"]["name"]


def find(objects: list[Object], kind: str, name: str) -> Object | None:
    return next((thing for thing in of_kind(objects, kind) if name_of(thing) == name), None)


def pod_of(workload: Object) -> Object:
    return workload["spec"]["template"]["spec"]


def labels_of(workload: Object) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"]["labels"]


def component_of(workload: Object) -> str:
    return labels_of(workload)["app.kubernetes.io/component"]


def container_of(workload: Object) -> Object:
    """The service's container."""
    (container,) = pod_of(workload)["containers"]
    return container


def all_containers(workload: Object) -> list[Object]:
    return [*pod_of(workload)["containers"], *pod_of(workload).get("initContainers", [])]


def selects(selector: Object, labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, selector
    return selector.get("matchLabels", {}).items() <= labels.items()


def port_number(container: Object, port: int | str) -> int | None:
    """The number of a port, given its name or number, if the container has it."""
    return next((one["containerPort"] for one in container.get("ports", [])
                 if port in (one["name"], one["containerPort"])), None)


def _resolve(text: str, variables: dict[str, str]) -> str:
    """Resolves $(NAME) as the kubelet does: unknown names stay as they are, and nothing is resolved twice."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), text)


def _variables_of_ranks(workload: Object, index: int) -> dict[str, str]:
    """The variables that a webhook adds to the pods of a LeaderWorkerSet, before the others. Workers are numbered from 1."""
    if (name := labels_of(workload).get(f"{LWS}/name")) is None:
        return {}
    group, rank = labels_of(workload).get(f"{LWS}/group-index", index), labels_of(workload).get(f"{LWS}/worker-index")
    host = ".".join([f"{name}-{group}", workload["spec"]["serviceName"], workload["metadata"]["namespace"]])
    return {"LWS_LEADER_ADDRESS": host, "LWS_WORKER_INDEX": rank or str(index + 1),
            "LWS_GROUP_SIZE": workload["spec"]["template"]["metadata"]["annotations"][f"{LWS}/size"]}


def arguments(workload: Object, objects: list[Object], index: int = 0) -> dict[str, str]:
    """The flags that the service of pod number `index` is started with."""
    container = container_of(workload)
    variables = _variables_of_ranks(workload, index)
    for source in container.get("envFrom", []):
        variables |= find(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", []):
        if "value" in variable:
            variables[variable["name"]] = _resolve(variable["value"], variables)
        else:
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
            variables[variable["name"]] = POD_IP
    return flags([_resolve(argument, variables) for argument in container["args"]])


def flags(args: list[str]) -> dict[str, str]:
    pairs = [argument.split("=", 1) for argument in args]
    assert all(len(pair) == 2 and pair[0].startswith("--") for pair in pairs), f"not of the form --flag=value: {args}"
    assert len({name for name, _ in pairs}) == len(pairs), f"a flag twice: {args}"
    return {name: value for name, value in pairs}


def port_of(address: str) -> int:
    return int(address.rsplit(":", 1)[1])


def probes(container: Object) -> Iterator[tuple[str, Object]]:
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if kind in container:
            yield kind, container[kind]["grpc"]


def compose() -> Object:
    return yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())
