"""Ports with silent connections, and with more connections than the process has descriptors."""

import contextlib
import functools
import http.client
import socket
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness import (PATIENCE, TARGET_MODEL, Cluster, Process, Server, cluster, eventually, reserve_address, running, start_coordinator,
                     start_draft, start_target)
from http_clients import status_of


def connections(address: str, count: int) -> list[socket.socket]:
    host, port = address.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(count)]


def test_metrics_are_answered_beside_connections_that_say_nothing(pair: Cluster) -> None:
    for server in (pair.coordinator, pair.target, pair.draft):
        mute = connections(server.metrics_address, 200)
        assert server.value("outrider_build_info") == 1
        for connection in mute:
            connection.close()


def test_a_metrics_port_answers_as_the_other_listeners_do(pair: Cluster) -> None:
    for server in (pair.coordinator, pair.target, pair.draft):
        connection = http.client.HTTPConnection(server.metrics_address, timeout=PATIENCE)

        def answer(method: str, path: str) -> tuple[int, int, str | None]:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, len(response.read()), response.headers["Allow"]

        assert answer("GET", "/metrics")[1] > answer("GET", "/elsewhere")[1] > 0
        assert answer("HEAD", "/metrics")[:2] == (200, 0)
        assert answer("GET", "/elsewhere")[0] == 404
        assert answer("POST", "/metrics")[0] == 405 and "GET" in answer("POST", "/metrics")[2]
        connection.close()


def test_metrics_are_served_over_ipv6() -> None:
    with socket.socket(socket.AF_INET6) as free:
        free.bind(("::1", 0))
        port = free.getsockname()[1]
    process = Process("outrider-coordinator", "--tokenizer", str(TARGET_MODEL), "--listen", reserve_address(), "--http-listen=",
                      "--metrics-listen", f"[::1]:{port}")
    try:
        assert eventually(lambda: status_of(f"http://[::1]:{port}/metrics"), "it answers") == 200
    finally:
        process.kill()


def speaks_grpc(address: str) -> bool:
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel, contextlib.suppress(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=1)
        return True
    return False


def speaks_http(address: str) -> bool:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=1)) as connection, contextlib.suppress(OSError):
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    return False


START = {"target": start_target, "draft": start_draft, "coordinator": functools.partial(start_coordinator, "127.0.0.1:1", "")}


@pytest.mark.parametrize("program, port", [("target", "gRPC"), ("draft", "gRPC"),
                                           *(("coordinator", port) for port in ("gRPC", "health", "HTTP", "metrics"))])
def test_a_port_that_ran_out_of_descriptors_takes_connections_again(program: str, port: str) -> None:
    health = reserve_address()
    with running(START[program]("--health-listen", health)) as (server,):
        address = {"gRPC": server.address, "health": health, "HTTP": server.http_address, "metrics": server.metrics_address}[port]
        serves = speaks_http if port in ("HTTP", "metrics") else speaks_grpc
        eventually(lambda: serves(address), "it takes connections")
        subprocess.run(["prlimit", "--nofile=64:64", "--pid", str(server.popen.pid)], check=True)
        mute = connections(address, 150)
        assert not serves(address)
        for connection in mute:
            connection.close()
        eventually(lambda: serves(address), "it takes connections again")
        eventually(lambda: server.health(health, service="live") == "SERVING", "it is live")


def test_a_process_whose_ports_take_no_connections_is_not_live() -> None:
    def is_live(health: health_pb2_grpc.HealthStub) -> bool:
        asked = health_pb2.HealthCheckRequest(service="live")
        return health.Check(asked, timeout=PATIENCE).status == health_pb2.HealthCheckResponse.SERVING

    with cluster() as c, contextlib.ExitStack() as channels:
        servers = (c.coordinator, c.target, c.draft)
        probes = [health_pb2_grpc.HealthStub(channels.enter_context(server.connect())) for server in servers]
        assert all(is_live(probe) for probe in probes)
        for server in servers:  # it gets no further descriptor
            subprocess.run(["prlimit", "--nofile=10:", "--pid", str(server.popen.pid)], check=True)
        for probe in probes:
            eventually(lambda probe=probe: not is_live(probe), "it is not live")
        for server in servers:
            subprocess.run(["prlimit", "--nofile=1000:", "--pid", str(server.popen.pid)], check=True)
        for probe in probes:
            eventually(lambda probe=probe: is_live(probe), "it is live again")


def test_a_port_has_a_quarter_of_the_descriptors_and_turns_others_away() -> None:
    target = Server("outrider-target", "--model", str(TARGET_MODEL), limits=["--nofile=400:400"])
    with running(target):
        mute = connections(target.address, 120)
        assert target.wait_for_event("too many connections", port=target.address)["turned_away"] == 1
        # Each connection has ten seconds for its first byte.
        eventually(lambda: speaks_grpc(target.address), "those that said nothing are ended")
        for connection in mute:
            connection.close()
