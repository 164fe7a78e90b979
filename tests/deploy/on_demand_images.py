"""The images of deploy/docker generate text, read-only and without capabilities. Run by `make test-docker`."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from manifests import TOOLS, arguments, component_of, objects_of, workloads

PATIENCE = 120.0
SERVED = ["outrider", "outrider-coordinator", "outrider-draft", "outrider-target", "outrider-pair", "outrider-up"]
CONTAINERS = TOOLS / "containers"
ENVIRONMENT = os.environ | {"CONTAINERS_STORAGE_CONF": str(CONTAINERS / "storage.conf"),
                            "CONTAINERS_CONF": str(CONTAINERS / "containers.conf")}
# Without timers of systemd, which not every machine has.
RESTRICTED = ["--health-interval", "disable", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all",
              "--security-opt", "no-new-privileges"]


def podman(*arguments: str) -> str:
    ran = subprocess.run(["podman", "--runtime", "runc", *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def container(image: str, *arguments: str, options: Sequence[str] = (), network: str = "host") -> Iterator[str]:
    name = podman("run", "--detach", "--network", network, *RESTRICTED, *options, f"{image}:test", *arguments).strip()
    try:
        yield name
    finally:
        podman("rm", "--force", "--time", "0", name)


def wait_for(name: str, said: str) -> None:
    end = time.monotonic() + PATIENCE
    while said not in (log := podman("logs", name) + _errors(name)):
        assert time.monotonic() < end, log
        time.sleep(0.1)


def _errors(name: str) -> str:
    return subprocess.run(["podman", "logs", name], env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True).stderr


def test_the_containers_generate_text() -> None:
    objects = objects_of("cpu")
    given = {component_of(w): arguments(w, objects) for w in workloads(objects)}
    ports = {name: free_port() for name in given}

    def start(name: str, **changed: str) -> contextlib.AbstractContextManager[str]:
        """Starts a container as the manifests do, but on loopback and on free ports."""
        ours = given[name] | {"--listen": f"127.0.0.1:{ports[name]}", "--metrics-listen": "127.0.0.1:0"}
        ours = {flag: value for flag, value in ours.items() if flag not in ("--health-listen", "--http-listen")}
        ours |= {f"--{flag}": value for flag, value in changed.items()}
        return container(f"outrider-{name}", *[f"{flag}={value}" for flag, value in ours.items()])

    addresses = {name: f"127.0.0.1:{ports[name]}" for name in ("target", "draft")}
    with start("target") as target, start("draft") as draft, start("coordinator", **addresses) as coordinator:
        for name in (target, draft):
            wait_for(name, '"event":"serving"')
        wait_for(coordinator, '"event":"connected"')
        answer = json.loads(podman("run", "--rm", "--network", "host", *RESTRICTED, "outrider:test", "generate", "It was a dark evening",
                                   "--address", f"127.0.0.1:{ports['coordinator']}", "--json", "--ignore-eos",
                                   "--max-tokens", "20"))
        assert answer["usage"]["completion_tokens"] == 20 and answer["text"]
        for name in (coordinator, draft, target):
            podman("stop", "--time", "30", name)
            assert podman("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"


def test_one_container_is_enough() -> None:
    ports = [free_port() for _ in range(3)]
    variables = [f"--env=OUTRIDER_{name}=127.0.0.1:{port}" for name, port in zip(("LISTEN", "HTTP_LISTEN", "METRICS_LISTEN"), ports)]
    others = [f"--env=OUTRIDER_{name}=127.0.0.1:0" for name in (
        "DRAFT_LISTEN", "TARGET_LISTEN", "DRAFT_METRICS_LISTEN", "TARGET_METRICS_LISTEN")]
    with container("outrider-up", options=[f"--tmpfs={tempfile.gettempdir()}", *variables, *others]) as name:
        wait_for(name, "Ctrl-C stops")
        asked = urllib.request.Request(f"http://127.0.0.1:{ports[1]}/v1/completions", headers={"Content-Type": "application/json"},
                                       data=json.dumps({"prompt": "It was a dark evening", "max_tokens": 8}).encode())
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 8
        podman("exec", name, "/opt/outrider/bin/outrider", "describe", "--address", f"127.0.0.1:{ports[0]}")
        podman("stop", "--time", "30", name)
        assert podman("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"


def test_a_container_knows_whether_it_is_healthy() -> None:
    models = "/usr/share/outrider/models"
    arguments = {"outrider-target": [f"--model={models}/tiny-target"], "outrider-draft": [f"--model={models}/tiny-draft"],
                 "outrider-pair": [f"--target-model={models}/tiny-target", f"--draft-model={models}/tiny-draft"],
                 "outrider-up": [], "outrider-coordinator": [f"--tokenizer={models}/tiny-target", "--target=127.0.0.1:7072"]}
    for image, flags in arguments.items():
        # The container has a loopback of its own, where all default ports are free.
        with container(image, *flags, network="none", options=[f"--tmpfs={tempfile.gettempdir()}"]) as name:
            wait_for(name, {"outrider-up": "Ctrl-C stops", "outrider-coordinator": '"event":"listening"'}.get(image, '"event":"serving"'))
            if image == "outrider-coordinator":  # there is no target
                with pytest.raises(AssertionError):
                    podman("healthcheck", "run", name)
            else:
                podman("healthcheck", "run", name)


@pytest.mark.parametrize("image", SERVED)
def test_an_image_has_the_licences_of_what_is_in_it(image: str) -> None:
    text = podman("run", "--rm", *RESTRICTED, "--entrypoint", "/bin/cat", f"{image}:test", "/usr/share/doc/outrider/THIRD_PARTY_LICENSES",
                  "/usr/share/doc/outrider/LICENSE")
    libraries = podman("run", "--rm", *RESTRICTED, "--entrypoint", "/bin/ls", f"{image}:test", "/opt/outrider/lib").split()
    assert len(libraries) > 20 and "  libgrpc" in text and "  xgrammar" in text and "Apache License" in text
    labels = json.loads(podman("image", "inspect", "--format", "{{json .Labels}}", f"{image}:test"))
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize("image", [*SERVED, "outrider-fetch"])
def test_an_image_runs_as_nobody(image: str) -> None:
    assert podman("image", "inspect", "--format", "{{.User}}", f"{image}:test").strip() == "65532:65532"


def test_a_read_only_container_is_one() -> None:
    with pytest.raises(AssertionError, match="Read-only"):
        podman("run", "--rm", *RESTRICTED, "--entrypoint", "/bin/touch", "outrider:test", "/opt/outrider/x")


def test_weights_can_be_fetched_into_a_volume_only(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="cannot fetch tokenizer.json"):
        tmp_path.chmod(0o777)
        podman("run", "--rm", "--network", "host", *RESTRICTED, "--volume", f"{tmp_path}:/models", "outrider-fetch:test", "--endpoint",
               "http://127.0.0.1:1", "o/model", "/models/model")
