"""Proxies between a client and an address, and ports of other services in place of a coordinator."""

import os
import re
import socket
import subprocess

import pytest
from outrider import Client, OutriderError

from harness import BIN, PATIENCE, Cluster, eventually, running, start_coordinator, start_target
from http_clients import status_of

# --- a proxy in the environment -------------------------------------------------------------------------------

def test_a_proxy_for_other_programs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with running(start_target()) as servers:
        servers.append(coordinator := start_coordinator(servers[0].address, ""))
        monkeypatch.undo()
        eventually(lambda: status_of(f"http://{coordinator.http_address}/health") == 200, "it has reached the target")


def test_a_proxy_for_other_programs_is_not_used_by_clients(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    asked = subprocess.run([BIN / "outrider", "generate", "--address", pair.coordinator.address, "--max-tokens", "3", "Once"],
                           capture_output=True, text=True, timeout=PATIENCE)
    assert asked.returncode == 0, asked.stderr
    with Client(pair.coordinator.address, timeout=PATIENCE) as client:
        assert len(client.generate("Once", max_tokens=3, ignore_eos=True).tokens) == 3


def test_a_proxy_for_grpc_is_used(pair: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(PATIENCE)
        with subprocess.Popen([BIN / "outrider", "describe", "--address", pair.coordinator.address], stderr=subprocess.DEVNULL,
                              env=os.environ | {"grpc_proxy": f"http://127.0.0.1:{proxy.getsockname()[1]}"}) as asking:
            connection, _ = proxy.accept()
            with connection:
                assert connection.recv(1000).startswith(f"CONNECT {pair.coordinator.address} ".encode())
            asking.kill()


def test_a_host_that_the_proxy_for_grpc_is_not_for_is_called_directly(pair: Cluster) -> None:
    asked = subprocess.run([BIN / "outrider", "describe", "--address", pair.coordinator.address], capture_output=True, text=True, timeout=PATIENCE,
                           env=os.environ | {"grpc_proxy": "http://127.0.0.1:9", "no_grpc_proxy": "127.0.0.1"})
    assert asked.returncode == 0, asked.stderr


# --- a port of another service -------------------------------------------------------------------------------

@pytest.mark.parametrize("port", ["target", "HTTP", "metrics"])
def test_clients_say_what_is_wrong_with_a_port_that_is_not_a_coordinators(pair: Cluster, port: str) -> None:
    c = pair.coordinator
    address = {"target": pair.target.address, "HTTP": c.http_address, "metrics": c.metrics_address}[port]
    asked = subprocess.run([BIN / "outrider", "generate", "--address", address, "Once"], capture_output=True, text=True, timeout=PATIENCE)
    assert asked.returncode == 1 and asked.stdout == ""
    assert re.fullmatch(rf"error: .*(another service|{address}).*\n", asked.stderr), asked.stderr
    with Client(address, timeout=5) as client, pytest.raises(OutriderError) as error:
        client.generate("Once")
    assert len(str(error.value)) > 20
