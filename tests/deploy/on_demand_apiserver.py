"""A real API server accepts every overlay and the Helm chart without a warning. Run by `make test-kubernetes`.

It runs alone with its database, on loopback: objects are checked, defaulted and admitted as in a cluster, Pod Security
included, but nothing is scheduled. Everything is a dry run, except a release of the chart, and the definitions of
custom resources and the namespace, which the dry runs need.
"""

import contextlib
import secrets
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from chart import CASES, CHART, helm, text_of, values_of
from manifests import (COMPONENTS, KUBERNETES, OVERLAYS, PROGRAMS, TOOLS, Object, components_alone, find, labels_of,
                       name_of, objects_of, of_kind, pod_of, workloads)

PATIENCE = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def process(log: Path, *command: str | Path) -> Iterator[None]:
    """A process that ends with this test, however the test ends."""
    with log.open("w") as out, subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command], stdout=out,
                                                stderr=out) as popen:
        try:
            yield
        finally:
            popen.kill()


class Server:
    def __init__(self, folder: Path, port: int, token: str) -> None:
        self.url, self.token = f"https://127.0.0.1:{port}", token
        self.kubectl = [PROGRAMS / "kubectl", "--server", self.url, "--insecure-skip-tls-verify", "--token", token,
                        "--kubeconfig", "/dev/null", "--cache-dir", folder / "cache"]

    def ready(self) -> bool:
        context = ssl._create_unverified_context()
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, context=context, timeout=5) as response:
            return response.status == 200
        return False

    def apply(self, objects: list[Object], *options: str) -> tuple[int, str]:
        """Applies objects; returns the exit code, and the errors and warnings on stderr."""
        ran = subprocess.run([*self.kubectl, "apply", "--server-side", *options, "-f", "-"], text=True,
                             input=yaml.safe_dump_all(objects), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return ran.returncode, ran.stderr

    def try_out(self, objects: list[Object]) -> tuple[int, str]:
        return self.apply(objects, "--dry-run=server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("apiserver")
    etcd, peer, port, token = free_port(), free_port(), free_port(), secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    subprocess.run(["openssl", "genrsa", "-out", folder / "accounts.key", "2048"], check=True,
                   stderr=subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(
            folder / "etcd.log", TOOLS / "bin" / "etcd", "--data-dir", folder / "etcd",
            f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}"))
        stack.enter_context(process(
            folder / "apiserver.log", TOOLS / "bin" / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--external-hostname=localhost",
            f"--secure-port={port}", f"--cert-dir={folder / 'certs'}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=AlwaysAllow", "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-key-file={folder / 'accounts.key'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            "--service-account-issuer=https://localhost"))
        server = Server(folder, port, token)
        end = time.monotonic() + PATIENCE
        while not server.ready():
            assert time.monotonic() < end, (folder / "apiserver.log").read_text()[-3000:]
            time.sleep(0.1)
        custom = [yaml.safe_load(path.read_text()) for path in sorted((TOOLS / "crds").glob("*.yaml"))
                  if path.stem.split("_")[1] in ("grpcroutes", "httproutes", "inferencepools", "leaderworkersets", "podmonitors",
                                                 "prometheusrules", "scaledobjects", "servicemonitors")]
        assert server.apply(custom)[0] == 0
        subprocess.run([*server.kubectl, "wait", "--for=condition=Established", "--timeout=60s", "crd",
                        *map(name_of, custom)], check=True, stdout=subprocess.DEVNULL)
        assert server.apply(of_kind(objects_of("cpu"), "Namespace")) == (0, "")
        yield server


def pods(objects: list[Object]) -> list[Object]:
    """The pods that the controllers would create, so that Pod Security is enforced and not only warned about."""
    return [{"apiVersion": "v1", "kind": "Pod", "spec": pod_of(workload),
             "metadata": {"name": name_of(workload), "namespace": "outrider", "labels": labels_of(workload)}}
            for workload in workloads(objects)]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_taken_without_a_warning(server: Server, overlay: str) -> None:
    assert server.try_out(objects_of(overlay)) == (0, "")
    assert server.try_out(pods(objects_of(overlay))) == (0, "")


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_taken_without_a_warning(server: Server, component: str, tmp_path: Path) -> None:
    assert server.try_out(components_alone([component], tmp_path)) == (0, "")


@pytest.mark.parametrize("case", CASES)
def test_the_chart_is_taken_without_a_warning(server: Server, case: str) -> None:
    assert server.try_out(list(yaml.safe_load_all(text_of(values_of(case))))) == (0, "")


def test_a_release_is_installed_changed_and_removed_without_its_weights(server: Server) -> None:
    def run(verb: str, *options: str | Path, values: Object | None = None) -> str:
        code, said, error = helm(verb, "outrider", *options, "--namespace", "release", "--kube-apiserver", server.url, "--kube-token",
                                 server.token, "--kube-insecure-skip-tls-verify", values=values)
        assert code == 0, error
        return said

    def there(kinds: str) -> str:
        return subprocess.run([*server.kubectl, "-n", "release", "get", kinds, "-o", "name"], check=True, stdout=subprocess.PIPE,
                              text=True).stdout

    assert "label namespace release" in run("install", CHART, "--create-namespace", values=values_of("everything"))
    assert "scaledobject.keda.sh/outrider-coordinator" in there("scaledobjects,deployments")
    run("upgrade", CHART, values=values_of("gpu"))
    assert "scaledobject" not in there("scaledobjects,deployments")
    assert "kept due to the resource policy:\n[PersistentVolumeClaim] outrider-weights" in run("uninstall")
    assert there("deployments,statefulsets,services") == ""


def test_what_the_scripts_make_is_taken(server: Server, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: [{name: g, rules: [{alert: A, expr: up == 0, for: 1m, labels: {severity: page}}]}]\n")
    for command in ([KUBERNETES / "components" / "tls" / "make_secrets", "outrider"],
                    [KUBERNETES / "components" / "monitoring" / "make_rules", rules]):
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        objects = list(yaml.safe_load_all(made))
        for thing in objects:
            thing["metadata"]["namespace"] = "outrider"
        assert server.try_out(objects) == (0, "")


def test_what_is_wrong_is_not_taken(server: Server) -> None:
    def after(change, overlay: str = "cpu") -> tuple[int, str]:
        objects = objects_of(overlay)
        change(objects)
        return server.try_out(objects)

    def target(objects: list[Object]) -> Object:
        return find(objects, "StatefulSet", "outrider-target")

    def group(objects: list[Object]) -> Object:
        return find(objects, "LeaderWorkerSet", "outrider-target")

    code, said = after(lambda o: group(o)["spec"].update(startPolicy="LeaderCreated"), "tensor-parallel")
    assert code != 0 and "startPolicy" in said
    code, said = after(lambda o: target(o)["spec"].update(podManagmentPolicy="Parallel"))
    assert code != 0 and "podManagmentPolicy" in said
    code, said = after(lambda o: labels_of(target(o)).update({"app.kubernetes.io/component": "other"}))
    assert code != 0 and "selector" in said
    code, said = after(lambda o: pod_of(target(o))["containers"][0]["securityContext"].pop("capabilities"))
    assert "Warning" in said and "restricted" in said


def test_a_pod_with_privileges_is_refused(server: Server) -> None:
    (pod,) = [p for p in pods(objects_of("cpu")) if p["metadata"]["labels"]["app.kubernetes.io/component"] == "draft"]
    del pod["spec"]["securityContext"]["runAsNonRoot"]
    code, said = server.try_out([pod])
    assert code != 0 and "violates PodSecurity" in said
