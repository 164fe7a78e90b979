"""The manifests are consistent, and each check refuses inconsistent ones."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from arrows import EGRESS, INGRESS, MORE, RANKS, Arrow, arrows, denied_by_default
from checks import (CHECKS, Check, a_drain_fits_into_the_grace, a_pool_has_servers_left_while_one_is_replaced,
                    autoscalers_own_the_replicas, coordinators_find_their_servers,
                    disruptions_are_limited_and_pods_spread,
                    everything_is_in_the_namespace, files_are_mounted, images_are_versions,
                    no_secret_is_in_the_environment, plaintext_is_said_and_only_where_there_is_no_tls,
                    pods_run_without_privileges, ports_are_those_of_the_flags,
                    probes_ask_the_health_port, ranks_are_one_model, ranks_meet_and_end_together,
                    servers_hold_the_requests_of_all_coordinators, services_lead_to_pods)
from manifests import (COMPONENTS, KUBERNETES, OVERLAYS, PROGRAMS, ROOT, Object, all_containers, arguments, component_of,
                       components_alone, compose, container_of, find, flags, labels_of, name_of, objects_of, pod_of,
                       selects, workloads)


def test_there_are_overlays_and_each_has_the_three_services() -> None:
    assert len(OVERLAYS) >= 3 and len(COMPONENTS) >= 4
    for overlay in OVERLAYS:
        workers = ["target-worker"] * (overlay == "tensor-parallel")
        assert sorted(map(component_of, workloads(objects_of(overlay)))) == ["coordinator", "draft", "target", *workers]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_passes(check: Check, overlay: str) -> None:
    assert check(objects_of(overlay)) == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_fits_the_base_alone(component: str, tmp_path: Path) -> None:
    objects = components_alone([component], tmp_path)
    assert [wrong for check in CHECKS for wrong in check(objects)] == []


def test_the_models_of_the_gpu_overlays_are_named_in_one_file() -> None:
    naming = {file.relative_to(KUBERNETES).as_posix() for file in KUBERNETES.rglob("*") if file.is_file() and "Instruct" in file.read_text()}
    assert naming == {"components/gpu/kustomization.yaml"}


def test_a_shared_target_may_have_the_other_components(tmp_path: Path) -> None:
    objects = components_alone(["gpu", "tls", "weights-fetch", "tensor-parallel"], tmp_path)
    assert [wrong for check in CHECKS for wrong in check(objects)] == []
    leader, worker = [w for w in workloads(objects) if component_of(w).startswith("target")]
    assert "--tls-cert" in arguments(leader, objects)
    for rank in (leader, worker):
        assert arguments(rank, objects)["--device"] == "cuda:0"
        assert container_of(rank)["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert [one["name"] for one in pod_of(rank)["initContainers"]] == ["fetch"]


def container(objects: list[Object], name: str) -> Object:
    return next(container_of(w) for w in workloads(objects) if component_of(w) == name)


def pod(objects: list[Object], name: str) -> Object:
    return next(pod_of(w) for w in workloads(objects) if component_of(w) == name)


def replace_argument(objects: list[Object], name: str, old: str, new: str) -> None:
    args = container(objects, name)["args"]
    args[args.index(old)] = new


# For each check, a change to the overlay `pools` that it must find.
MISTAKES: list[tuple[Check, Callable[[list[Object]], object]]] = [
    (pods_run_without_privileges, lambda o: pod(o, "draft")["securityContext"].pop("runAsNonRoot")),
    (pods_run_without_privileges, lambda o: container(o, "target")["securityContext"]["capabilities"].pop("drop")),
    (pods_run_without_privileges, lambda o: pod(o, "coordinator").pop("automountServiceAccountToken")),
    (images_are_versions, lambda o: container(o, "target").update(image="outrider-target:latest")),
    (images_are_versions, lambda o: container(o, "target").update(image="registry:5000/outrider-target")),
    (no_secret_is_in_the_environment, lambda o: container(o, "draft").update(
        env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}])),
    (everything_is_in_the_namespace, lambda o: find(o, "PodMonitor", "outrider")["metadata"].pop("namespace")),
    (a_drain_fits_into_the_grace, lambda o: replace_argument(o, "coordinator", "--drain=60", "--drain=70")),
    (a_drain_fits_into_the_grace, lambda o: pod(o, "target").update(terminationGracePeriodSeconds=9)),
    (probes_ask_the_health_port, lambda o: container(o, "draft")["livenessProbe"]["grpc"].pop("service")),
    (probes_ask_the_health_port, lambda o: container(o, "draft")["readinessProbe"]["grpc"].update(port=7071)),
    (ports_are_those_of_the_flags, lambda o: container(o, "target")["ports"].pop()),
    (ports_are_those_of_the_flags, lambda o: replace_argument(
        o, "draft", "--metrics-listen=0.0.0.0:9071", "--metrics-listen=127.0.0.1:9071")),
    (plaintext_is_said_and_only_where_there_is_no_tls, lambda o: container(o, "draft")["args"].append("--insecure=true")),
    (plaintext_is_said_and_only_where_there_is_no_tls, lambda o: container(o, "target")["args"].remove(
        "--tls-cert=/etc/outrider/tls/tls.crt")),
    (services_lead_to_pods, lambda o: find(o, "Service", "outrider-draft")["spec"]["selector"].update(x="y")),
    (services_lead_to_pods, lambda o: find(o, "Service", "outrider-draft")["spec"]["ports"][0].update(port=7072)),
    (coordinators_find_their_servers, lambda o: find(o, "Service", "outrider-draft")["spec"].pop("clusterIP")),
    (coordinators_find_their_servers, lambda o: replace_argument(o, "coordinator", "--target=$(TARGET)",
                                                                 "--target=outrider-target-0.outrider-target:7072")),
    (coordinators_find_their_servers, lambda o: replace_argument(o, "coordinator", "--draft=$(DRAFT)",
                                                                 "--draft=dns:///outrider-draft:7072")),
    (a_pool_has_servers_left_while_one_is_replaced, lambda o: find(
        o, "HorizontalPodAutoscaler", "outrider-target")["spec"].update(minReplicas=1)),
    (a_pool_has_servers_left_while_one_is_replaced, lambda o: find(
        o, "Deployment", "outrider-draft")["spec"]["strategy"]["rollingUpdate"].update(maxUnavailable=3)),
    (a_pool_has_servers_left_while_one_is_replaced, lambda o: find(
        o, "StatefulSet", "outrider-target")["spec"].pop("minReadySeconds")),
    (servers_hold_the_requests_of_all_coordinators, lambda o: replace_argument(
        o, "draft", "--max-sequences=$(MAX_SEQUENCES)", "--max-sequences=256")),
    (servers_hold_the_requests_of_all_coordinators, lambda o: replace_argument(
        o, "target", "--max-sequences=$(MAX_SEQUENCES)", "--max-sequences=2047")),
    (files_are_mounted, lambda o: container(o, "coordinator")["volumeMounts"].pop()),
    (files_are_mounted, lambda o: container(o, "draft").pop("envFrom")),
    (files_are_mounted, lambda o: container(o, "draft")["args"].append("--top-n=$(TOP_N)")),
    (disruptions_are_limited_and_pods_spread, lambda o: o.remove(find(o, "PodDisruptionBudget", "outrider-draft"))),
    (disruptions_are_limited_and_pods_spread, lambda o: pod(o, "target").pop("topologySpreadConstraints")),
    (autoscalers_own_the_replicas, lambda o: o.append(
        {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"},
         "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "outrider-other"}}})),
    (autoscalers_own_the_replicas, lambda o: find(o, "StatefulSet", "outrider-target")["spec"].update(replicas=2)),
]


def group(objects: list[Object]) -> Object:
    return find(objects, "LeaderWorkerSet", "outrider-target")["spec"]


# The same for the overlay `tensor-parallel`.
MISTAKES_OF_RANKS: list[tuple[Check, Callable[[list[Object]], object]]] = [
    (ranks_are_one_model, lambda o: container(o, "target-worker")["args"].pop(0)),
    (ranks_are_one_model, lambda o: replace_argument(
        o, "target-worker", "--max-sequences=$(MAX_SEQUENCES)", "--max-sequences=2049")),
    (ranks_are_one_model, lambda o: container(o, "target")["args"].append("--block-size=32")),
    (ranks_are_one_model, lambda o: replace_argument(o, "target", "--engine=torch", "--engine=native")),
    (ranks_are_one_model, lambda o: replace_argument(
        o, "target-worker", "--rank=$(LWS_WORKER_INDEX)", "--rank=0")),
    (ranks_are_one_model, lambda o: replace_argument(
        o, "target-worker", "--tensor-parallel=$(LWS_GROUP_SIZE)", "--tensor-parallel=4")),
    (ranks_meet_and_end_together, lambda o: replace_argument(
        o, "target-worker", "--rendezvous=$(LWS_LEADER_ADDRESS):29500", "--rendezvous=outrider-target-0.outrider:29500")),
    (ranks_meet_and_end_together, lambda o: replace_argument(
        o, "target-worker", "--rendezvous=$(LWS_LEADER_ADDRESS):29500", "--rendezvous=$(LWS_LEADER_ADDRESS):29501")),
    (ranks_meet_and_end_together, lambda o: replace_argument(
        o, "target", "--rendezvous=$(POD_IP):29500", "--rendezvous=127.0.0.1:29500")),
    (ranks_meet_and_end_together, lambda o: group(o)["networkConfig"].update(subdomainPolicy="UniquePerReplica")),
    (ranks_meet_and_end_together, lambda o: group(o).update(startupPolicy="LeaderReady")),
    (ranks_meet_and_end_together, lambda o: group(o)["leaderWorkerTemplate"].update(restartPolicy="None")),
    (ranks_are_one_model, lambda o: group(o)["leaderWorkerTemplate"].update(size=1)),
    (ranks_are_one_model, lambda o: container(o, "target-worker").update(image="outrider-target:0.0.9")),
    (ranks_meet_and_end_together, lambda o: find(o, "Service", "outrider-target")["spec"].pop(
        "publishNotReadyAddresses")),
    (ranks_meet_and_end_together, lambda o: find(o, "Service", "outrider-target")["spec"]["selector"].pop(
        "app.kubernetes.io/component")),
    (coordinators_find_their_servers, lambda o: group(o)["networkConfig"].update(subdomainPolicy="UniquePerReplica")),
    (coordinators_find_their_servers, lambda o: group(o).update(replicas=2)),
    (files_are_mounted, lambda o: container(o, "target-worker").pop("envFrom")),
    (files_are_mounted, lambda o: container(o, "target").pop("env")),
    (pods_run_without_privileges, lambda o: pod(o, "target-worker")["securityContext"].pop("runAsNonRoot")),
    (probes_ask_the_health_port, lambda o: container(o, "target-worker").update(
        livenessProbe={"grpc": {"port": 7172, "service": "live"}})),
    (probes_ask_the_health_port, lambda o: container(o, "target").pop("livenessProbe")),
    (ports_are_those_of_the_flags, lambda o: container(o, "target-worker").update(
        ports=[{"name": "metrics", "containerPort": 9072}])),
    (a_drain_fits_into_the_grace, lambda o: pod(o, "target-worker").update(terminationGracePeriodSeconds=9)),
    (disruptions_are_limited_and_pods_spread, lambda o: find(o, "PodDisruptionBudget", "outrider-target")["spec"].update(
        selector={"matchLabels": {"app.kubernetes.io/component": "target"}})),
    (disruptions_are_limited_and_pods_spread, lambda o: pod(o, "target-worker")["topologySpreadConstraints"][0].update(
        labelSelector={"matchLabels": {"app.kubernetes.io/component": "target"}})),
]
ALL_MISTAKES = [(f"{overlay}-{i}-{check.__name__}", overlay, check, mistake)
                for overlay, some in (("pools", MISTAKES), ("tensor-parallel", MISTAKES_OF_RANKS))
                for i, (check, mistake) in enumerate(some)]


@pytest.mark.parametrize(("overlay", "check", "mistake"), [mistake[1:] for mistake in ALL_MISTAKES],
                         ids=[mistake[0] for mistake in ALL_MISTAKES])
def test_a_mistake_is_found(overlay: str, check: Check, mistake: Callable[[list[Object]], object]) -> None:
    objects = objects_of(overlay)
    mistake(objects)
    assert check(objects)


def test_no_check_is_without_a_mistake() -> None:
    assert {check for _, _, check, _ in ALL_MISTAKES} == set(CHECKS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_the_arrows_of_the_design_pass(overlay: str) -> None:
    objects = objects_of(overlay)
    assert denied_by_default(objects)
    more_ingress, more_egress = MORE.get(overlay, (set(), set()))
    assert arrows(objects) == (INGRESS | more_ingress, EGRESS | more_egress)


def test_another_arrow_between_ranks_is_seen() -> None:
    """The arrows show any change that lets other pods reach a rank, or other ports of it."""
    def after(change: Callable[[Object], object]) -> set[Arrow]:
        objects = objects_of("tensor-parallel")
        change(find(objects, "NetworkPolicy", "outrider-ranks")["spec"])
        return arrows(objects)[0] - INGRESS

    assert after(lambda spec: None) == RANKS
    ours = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "outrider"}}}
    assert ("coordinator", "target-worker", "any TCP") in after(lambda spec: spec["ingress"][0].update({"from": [ours]}))
    assert ("draft", "target", "any TCP") in after(lambda spec: spec["ingress"][0].pop("from"))
    assert ("target", "target-worker", "any protocol") in after(lambda spec: spec["ingress"][0].pop("ports"))
    assert ("target-worker", "draft", "any TCP") in after(lambda spec: spec.update(podSelector={}))
    assert after(lambda spec: spec["ingress"][0]["ports"][0].update(port=29500)) & RANKS == set()


def test_another_arrow_is_seen() -> None:
    objects = objects_of("cpu")
    find(objects, "NetworkPolicy", "outrider-target")["spec"]["ingress"][0].pop("from")
    assert ("draft", "target", 7072) in arrows(objects)[0]
    find(objects, "NetworkPolicy", "outrider-nothing-else")["spec"]["policyTypes"].remove("Egress")
    assert not denied_by_default(objects)


def test_prometheus_finds_every_pod_and_names_its_job() -> None:
    objects = objects_of("gpu")
    monitor = find(objects, "PodMonitor", "outrider")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    relabeled = {rule["targetLabel"]: rule for rule in endpoint["relabelings"]}
    assert relabeled["job"]["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
    for workload in workloads(objects):
        assert selects(monitor["selector"], labels_of(workload))
        assert endpoint["port"] in [port["name"] for port in container_of(workload)["ports"]]
        assert relabeled["job"]["replacement"].replace("$1", component_of(workload)) == name_of(workload)


def test_rules_become_objects_of_the_operator(tmp_path: Path) -> None:
    groups = {"groups": [{"name": "g", "rules": [{"record": "a:b", "expr": "sum(a)"}]}]}
    (tmp_path / "some_rules.yml").write_text("# A comment.\n" + yaml.safe_dump(groups))
    made = subprocess.run([KUBERNETES / "components" / "monitoring" / "make_rules", tmp_path / "some_rules.yml"],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    assert list(yaml.safe_load_all(made)) == [{"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
                                               "metadata": {"name": "outrider-some-rules"}, "spec": groups}]


def test_an_inference_pool_has_the_coordinators_at_their_http_port(tmp_path: Path) -> None:
    objects = components_alone(["inference-pool"], tmp_path)
    pool, coordinator = (find(objects, *of) for of in (("InferencePool", "outrider"), ("Deployment", "outrider-coordinator")))
    assert pool["spec"]["selector"]["matchLabels"].items() <= labels_of(coordinator).items()
    assert [each["number"] for each in pool["spec"]["targetPorts"]] == [
        each["containerPort"] for each in container_of(coordinator)["ports"] if each["name"] == "http"]


def test_compose_starts_the_same_services_on_the_same_ports() -> None:
    objects = objects_of("cpu")
    services = compose()["services"]
    for workload in workloads(objects):
        name = component_of(workload)
        service, ours = services[name], arguments(workload, objects)
        given = flags(service["command"])
        assert service["image"] == container_of(workload)["image"]
        assert {f: v for f, v in given.items() if f.endswith("listen")} == {
            f: v for f, v in ours.items() if f.endswith("listen") and f != "--health-listen"}
        assert float(service["stop_grace_period"].removesuffix("s")) >= float(given["--drain"]) + 5
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
    flags_of_coordinator = flags(services["coordinator"]["command"])
    for name in ("target", "draft"):
        port = flags(services[name]["command"])["--listen"].rsplit(":")[1]
        assert flags_of_coordinator[f"--{name}"] == f"{name}:{port}"
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))
    for service in services.values():
        for volume in service.get("volumes", []):
            path = ROOT / "deploy" / "compose" / volume.split(":")[0]
            assert not volume.startswith(".") or path.exists(), volume


def test_the_dockerfile_has_an_image_for_each_name_and_lints() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    targets = {line.split(" AS ")[1] for line in text.splitlines() if line.startswith("FROM ")}
    images = {c["image"].split(":")[0] for overlay in OVERLAYS for w in workloads(objects_of(overlay))
              for c in all_containers(w)}
    assert images <= targets

    def hadolint(dockerfile: str) -> str:
        return subprocess.run([PROGRAMS / "hadolint", "-"], input=dockerfile, stdout=subprocess.PIPE, text=True).stdout

    assert hadolint(text) == ""
    assert "DL3008" in hadolint(text.replace("hadolint ignore", ""))
