"""The manifests agree with the programs: flags, ports, probes and metrics, as the programs themselves report them."""

import base64
import re
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import yaml

from harness import (BIN, DRAFT_MODEL, PATIENCE, ROOT, TARGET_MODEL, Cluster, Process, Server, cluster, eventually,
                     inference_pb2_grpc, request, reserve_address, running as running_servers, start_coordinator,
                     start_draft, start_target)
from help_page import default_of, flags_of
from manifests import (KUBERNETES, OVERLAYS, arguments, component_of, compose, container_of, flags, name_of, objects_of,
                       of_kind, pod_of, port_of, probes, workloads)

PROGRAMS = ("outrider-coordinator", "outrider-draft", "outrider-target")
# The path of the models in a container, and in this tree.
MODELS = {"/usr/share/outrider/models/tiny-target": TARGET_MODEL, "/usr/share/outrider/models/tiny-draft": DRAFT_MODEL}


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, str]]:
    """Flags of each program with their defaults."""
    return {program: {flag: default_of(described) for flag, described in flags_of(program).items()} for program in PROGRAMS}


def deployed() -> Iterator[tuple[str, str, dict[str, str]]]:
    """Every deployed container: its overlay or compose, its program, and its flags."""
    for overlay in OVERLAYS:
        for workload in workloads(objects_of(overlay)):
            program = container_of(workload)["image"].split(":")[0]
            yield overlay, program, arguments(workload, objects_of(overlay))
    for name, service in compose()["services"].items():
        if "command" in service and "build" in service:
            yield "compose", f"outrider-{name}", flags(service["command"])


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_flag_is_one_of_the_program(program: str, known: dict[str, dict[str, str]]) -> None:
    given = {flag for _, name, ours in deployed() if name == program for flag in ours}
    assert len(given) > 5
    assert given - known[program].keys() == set()


def test_an_unknown_flag_would_be_seen(known: dict[str, dict[str, str]]) -> None:
    for flags_of_program in known.values():
        assert {"--listen", "--drain"} <= flags_of_program.keys() and "--no-such-flag" not in flags_of_program


@pytest.mark.parametrize("program", PROGRAMS)
def test_ports_are_the_defaults_of_the_program(program: str, known: dict[str, dict[str, str]]) -> None:
    for where, name, ours in deployed():
        if name == program:
            for flag in {"--listen", "--metrics-listen"} & ours.keys():
                assert port_of(ours[flag]) == port_of(known[program][flag]), where


class Deployed:
    """The services of an overlay, with its flags, on free ports of this machine and with the models of this tree."""

    def __init__(self, overlay: str) -> None:
        self.workloads = {component_of(w): w for w in workloads(objects_of(overlay))}
        # The health ports are on all interfaces, as deployed.
        self.health = {name: f"0.0.0.0:{port_of(reserve_address())}" for name in self.workloads}
        self.objects = objects_of(overlay)
        self.rendezvous = reserve_address()

    def args(self, name: str) -> list[str]:
        """The flags without addresses and models, which the harness sets."""
        elsewhere = {"--listen", "--metrics-listen", "--http-listen", "--target", "--draft", "--model", "--tokenizer",
                     "--threads"}
        ours = arguments(self.workloads[name], self.objects)
        model = ours["--tokenizer" if name == "coordinator" else "--model"]
        assert (MODELS[model] / "tokenizer.json").exists()
        here = {"--health-listen": self.health[name], "--rendezvous": self.rendezvous}
        return [f"{flag}={here.get(flag, value)}" for flag, value in ours.items() if flag not in elsewhere]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Deployed, Cluster]]:
    deployed = Deployed("cpu")
    with cluster(**{name: deployed.args(name) for name in ("target", "draft", "coordinator")}) as c:
        yield deployed, c


def servers(c: Cluster) -> dict[str, Server]:
    return {"target": c.target, "draft": c.draft, "coordinator": c.coordinator}


def test_the_services_start_with_these_flags_and_answer(running: tuple[Deployed, Cluster]) -> None:
    assert len(running[1].generate("It was a dark evening", max_tokens=8, ignore_eos=True).tokens) == 8


def test_every_probe_passes(running: tuple[Deployed, Cluster]) -> None:
    deployed, c = running
    for name, server in servers(c).items():
        for kind, probe in probes(container_of(deployed.workloads[name])):
            assert server.health(deployed.health[name], probe.get("service", "")) == "SERVING", (name, kind)


@pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")
def test_the_ranks_of_a_target_start_with_these_flags_and_answer() -> None:
    deployed = Deployed("tensor-parallel")
    worker = Process("outrider-target", f"--model={TARGET_MODEL}", "--threads=1", *deployed.args("target-worker"))
    with cluster(**{name: deployed.args(name) for name in ("target", "draft", "coordinator")}) as c:
        assert len(c.generate("It was a dark evening", max_tokens=8, ignore_eos=True).tokens) == 8
        for kind, probe in probes(container_of(deployed.workloads["target"])):
            assert c.target.health(deployed.health["target"], probe.get("service", "")) == "SERVING", kind
        worker.terminate()
    worker.wait_orderly_end()


def test_metrics_in_manifests_exist(running: tuple[Deployed, Cluster]) -> None:
    exposed = {sample for server in servers(running[1]).values() for sample, _ in server.metrics()}
    named = {metric["pods"]["metric"]["name"] for overlay in OVERLAYS
             for scaler in of_kind(objects_of(overlay), "HorizontalPodAutoscaler")
             for metric in scaler["spec"]["metrics"]}
    adapter = yaml.safe_load((KUBERNETES / "components" / "autoscaling" / "prometheus_adapter.yaml").read_text())
    queried = {series: rule.get("name", {}).get("as", series) for rule in adapter["rules"]["custom"]
               for series in [rule["seriesQuery"].split("{")[0]]}
    assert named == set(queried.values()) != set()
    assert queried.keys() <= exposed


def test_while_it_drains_a_service_lives_but_is_not_ready() -> None:
    deployed = Deployed("cpu")
    with cluster(**{name: deployed.args(name) for name in ("target", "draft", "coordinator")}) as c:
        readiness, life = (dict(probes(container_of(deployed.workloads["coordinator"])))[kind].get("service", "")
                           for kind in ("readinessProbe", "livenessProbe"))
        health = deployed.health["coordinator"]
        stream = c.stream("It was a dark evening", k=1, temperature=0, ignore_eos=True, max_tokens=800)
        next(stream)
        c.coordinator.terminate()
        eventually(lambda: c.coordinator.health(health, readiness) == "NOT_SERVING", "readiness ends with SIGTERM")
        assert c.coordinator.health(health, life) == "SERVING"
        for _ in stream:
            pass
        assert c.coordinator.wait_end() == 0


def security_flags(folder: Path) -> dict[str, list[str]]:
    """The security flags of the overlay `pools`, with the files of its Secrets in a folder per pod."""
    made = subprocess.run([KUBERNETES / "components" / "tls" / "make_secrets"], check=True, stdout=subprocess.PIPE,
                          text=True).stdout
    secrets = {name_of(secret): secret["data"] for secret in yaml.safe_load_all(made)}
    result = {}
    for workload in workloads(objects_of("pools")):
        name, volumes = component_of(workload), {volume["name"]: volume for volume in pod_of(workload)["volumes"]}
        for mount in container_of(workload)["volumeMounts"]:
            path = folder / name / mount["mountPath"].lstrip("/")
            path.mkdir(parents=True)
            for file, value in secrets.get(volumes[mount["name"]].get("secret", {}).get("secretName"), {}).items():
                (path / file).write_bytes(base64.b64decode(value))
        given = arguments(workload, objects_of("pools"))
        result[name] = [f"{flag}={folder / name}{value}" for flag, value in given.items()
                        if value.startswith("/etc/outrider/")]
    return result


def test_with_tls_as_deployed_only_those_with_a_token_are_served(tmp_path: Path) -> None:
    security = security_flags(tmp_path)
    with running_servers() as servers:
        servers.append(target := start_target(*security["target"]))
        servers.append(draft := start_draft(*security["draft"]))
        addresses = [f"localhost:{port_of(server.address)}" for server in (target, draft)]
        servers.append(coordinator := start_coordinator(*addresses, *security["coordinator"]))
        for name in ("target", "draft"):
            coordinator.wait_value(f"outrider_{name}_up", 1)
        files = tmp_path / "coordinator" / "etc" / "outrider"
        token = (files / "tokens" / "tokens").read_text().strip()
        tls = grpc.ssl_channel_credentials((files / "tls" / "ca.crt").read_bytes())
        codes = {}
        for given in (token, "another"):
            both = grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(given))
            with grpc.secure_channel(f"localhost:{port_of(coordinator.address)}", both) as channel:
                stub = inference_pb2_grpc.InferenceStub(channel)
                try:
                    codes[given] = sum(len(chunk.tokens) for chunk in
                                       stub.Generate(request("Once", max_tokens=4), timeout=PATIENCE))
                except grpc.RpcError as error:
                    codes[given] = error.code()
        assert codes == {token: 4, "another": grpc.StatusCode.UNAUTHENTICATED}
        models = urllib.request.Request(f"https://localhost:{port_of(coordinator.http_address)}/v1/models",
                                        headers={"Authorization": f"Bearer {token}"})
        trust = ssl.create_default_context(cafile=str(files / "tls" / "ca.crt"))
        with urllib.request.urlopen(models, timeout=PATIENCE, context=trust) as answer:
            assert answer.status == 200


def test_variables_of_the_container_that_has_all_are_flags_of_up() -> None:
    known = flags_of("outrider", "up")
    image = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    variables = {*compose()["services"]["all"]["environment"], *re.findall(r"\b(OUTRIDER_\w+)", image)}
    assert len(variables) > 5
    for variable in variables:
        assert "--" + variable.removeprefix("OUTRIDER_").lower().replace("_", "-") in known
