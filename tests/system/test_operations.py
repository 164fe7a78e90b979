"""Health, reflection, metrics, logs, and orderly shutdown, as operators use them."""

import json
import os
import queue
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from harness import DTYPE, PATIENCE, UNPROBED, Answer, Cluster, Server, cluster, eventually, inference_pb2, inference_pb2_grpc, request

SERVICES = {"target": "outrider.v1.Target", "draft": "outrider.v1.Draft", "coordinator": "outrider.v1.Inference"}


@pytest.fixture(params=SERVICES)
def server(request: pytest.FixtureRequest, pair: Cluster) -> Server:
    return getattr(pair, request.param)


def service_of(server: Server) -> str:
    return SERVICES[server.program.removeprefix("outrider-")]


def test_health_says_serving(server: Server) -> None:
    assert server.health() == "SERVING"


def test_reflection_describes_the_service(server: Server) -> None:
    with server.connect() as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {service_of(server), "grpc.health.v1.Health"} <= set(database.get_services())
        assert DescriptorPool(database).FindServiceByName(service_of(server)).methods


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_has_both_names(server: Server, version: str) -> None:
    """A stream of several questions, ended by its client, and one that its client gives up."""
    with server.connect() as channel:
        ask = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                                    request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                                    response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
        name = service_of(server)
        questions = [reflection_pb2.ServerReflectionRequest(list_services=""), reflection_pb2.ServerReflectionRequest(file_containing_symbol=name),
                     reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Service")]
        names, found, unknown = ask(iter(questions), timeout=PATIENCE)
        assert name in {service.name for service in names.list_services_response.service}
        assert found.file_descriptor_response.file_descriptor_proto
        assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        more: queue.Queue[reflection_pb2.ServerReflectionRequest] = queue.Queue()
        given_up = ask(iter(more.get, None), timeout=PATIENCE)
        more.put(questions[0])
        assert next(given_up).list_services_response.service
        given_up.cancel()
        more.put(None)
        with pytest.raises(grpc.RpcError) as unimplemented:
            channel.unary_unary(f"/grpc.reflection.{version}.ServerReflection/Other")(b"", timeout=PATIENCE)
        assert unimplemented.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert server.health() == "SERVING"


def test_metrics_are_valid_and_move(server: Server, pair: Cluster, prompts: list[str]) -> None:
    name = {"target": "outrider_target_step_duration_seconds_count",
            "draft": "outrider_draft_step_duration_seconds_count",
            "coordinator": "outrider_rounds_total"}[server.program.removeprefix("outrider-")]
    before = server.metrics()
    pair.generate(prompts[0], k=2, max_tokens=10)
    after = server.metrics()
    assert after.value(name) > before.value(name)
    assert all(sample.startswith(("outrider_", "process_", "vllm:")) for sample, _ in after)
    for (sample, labels), value in after.items():
        if after.types.get(sample) == "counter":
            assert value >= before.get((sample, labels), 0), sample


def test_gateways_read_what_they_read_of_vllm(prompts: list[str]) -> None:
    with cluster(target=["--kv-blocks", "64", "--block-size", "16"], coordinator=["--max-requests", "1"]) as c:
        def values(*names: str) -> list[float]:
            metrics = c.coordinator.metrics()
            return [metrics.value(name) for name in names]

        calls = [c.stub.Generate(request(prompts[0], max_tokens=400, ignore_eos=True)) for _ in range(3)]
        eventually(lambda: values("vllm:num_requests_running", "vllm:num_requests_waiting") == [1, 2], "one runs and two wait")
        eventually(lambda: 0 < values("vllm:kv_cache_usage_perc")[0] <= 1, "blocks are in use")
        used, same = values("outrider_target_kv_used_ratio", "vllm:kv_cache_usage_perc")
        assert used == same
        for call in calls:
            call.cancel()
        eventually(lambda: values("vllm:num_requests_running", "vllm:num_requests_waiting") == [0, 0], "all are gone")
        c.generate(prompts[1], max_tokens=1)
        c.wait_idle()
        with_blocks = c.target.metrics()
        states = [with_blocks.value(f"outrider_target_kv_blocks_{state}") for state in ("used", "cached", "free")]
        assert sum(states) == 64 and values("vllm:kv_cache_usage_perc")[0] <= 1


def test_a_process_is_measured_under_the_names_that_dashboards_know(server: Server) -> None:
    metrics, folder = server.metrics(), Path(f"/proc/{server.popen.pid}")
    assert metrics.value("process_resident_memory_bytes") == pytest.approx(server.resident_mebibytes() * 2**20, rel=0.2)
    assert metrics.value("process_virtual_memory_bytes") > metrics.value("process_resident_memory_bytes")
    assert metrics.value("process_threads") == len(list((folder / "task").iterdir()))
    assert metrics.value("process_open_fds") == pytest.approx(len(list((folder / "fd").iterdir())), abs=5)
    assert metrics.value("process_max_fds") == int(re.search(r"Max open files +(\d+)", (folder / "limits").read_text())[1])
    assert server.popen.poll() is None and 0 < time.time() - metrics.value("process_start_time_seconds") < 3600
    before = metrics.value("process_cpu_seconds_total")
    eventually(lambda: server.value("process_cpu_seconds_total") > before > 0, "asking takes time")


def test_every_line_of_the_log_is_an_object(server: Server) -> None:
    for line in server.lines:
        event = json.loads(line)
        assert {"level", "service", "event"} <= event.keys()
        assert datetime.fromisoformat(event["time"]).utcoffset() == timedelta(0)


def test_describe_says_what_is_served(pair: Cluster) -> None:
    described = pair.stub.Describe(inference_pb2.DescribeRequest())
    assert described.target.fingerprint == described.draft.fingerprint != 0
    assert described.target.boot_id != described.draft.boot_id
    assert described.target.dtype == DTYPE
    assert described.max_draft_tokens >= 8
    assert not described.degraded


def test_health_can_be_asked_on_an_address_of_its_own(tmp_path: Path) -> None:
    target, draft, coordinator = [f"unix:{tmp_path}/{name}" for name in ("t", "d", "c")]
    with cluster(target=["--health-listen", target], draft=["--health-listen", draft],
                 coordinator=["--health-listen", coordinator]) as c:
        for server, address in ((c.target, target), (c.draft, draft), (c.coordinator, coordinator)):
            assert server.health(address) == "SERVING"


def test_a_coordinator_told_to_end_finishes_what_runs_and_takes_nothing_new(prompts: list[str]) -> None:
    with cluster() as c:
        stream, answer = c.stream(prompts[7], k=1, temperature=0, ignore_eos=True, max_tokens=800), Answer()
        answer.add(next(stream))
        c.coordinator.terminate()
        c.coordinator.wait_for_event("draining")
        refusal = c.refused(request(prompts[0], max_tokens=1))
        assert (refusal.code, refusal.reason) == ("UNAVAILABLE", "DRAINING")
        for chunk in stream:
            answer.add(chunk)
        assert len(answer.check().tokens) == 800
        assert c.coordinator.wait_end() == 0
        c.target.wait_value("outrider_target_kv_blocks_used", 0)
        c.draft.wait_value("outrider_draft_kv_blocks_used", 0)


def test_a_coordinator_out_of_time_ends_its_streams_so_that_they_can_be_resumed(prompts: list[str]) -> None:
    whole = {"k": 2, "temperature": 0, "ignore_eos": True, "max_tokens": 600}
    with cluster(coordinator=["--drain", "0"]) as c:
        undisturbed = c.generate(prompts[7], **whole).tokens
        stream, answer = c.stream(prompts[7], **whole), Answer()
        answer.add(next(stream))
        c.coordinator.terminate()
        with pytest.raises(grpc.RpcError) as error:
            for chunk in stream:
                answer.add(chunk)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert c.coordinator.wait_end() == 0
    assert answer.tokens == undisturbed[:len(answer.tokens)]
    assert 0 < len(answer.tokens) < len(undisturbed)


def test_a_stream_that_is_read_slowly_can_be_resumed_too(prompts: list[str]) -> None:
    """The stream's buffers are full, so the coordinator cannot send its client a last message when its time is up."""
    wanted = request(prompts[7], k=2, temperature=0, ignore_eos=True, max_tokens=900)
    wanted.logprobs.top = 20
    with cluster(coordinator=["--drain", "0"]) as c, grpc.insecure_channel(c.coordinator.address, UNPROBED) as channel:
        stream, answer = inference_pb2_grpc.InferenceStub(channel).Generate(wanted, timeout=PATIENCE), Answer()
        answer.add(next(stream))
        eventually(lambda: c.target.value("outrider_target_batch_rows_sum") > 200, "more is generated than is read")
        c.coordinator.stop()
        with pytest.raises(grpc.RpcError) as error:
            for chunk in stream:
                answer.add(chunk)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert len(answer.tokens) < 900


def test_a_coordinator_told_to_end_does_so_though_clients_go_on_asking() -> None:
    """Clients whose calls come when everything else has ended also get an error that makes them try elsewhere."""
    codes = set()
    with cluster(draft=None) as c:
        def ask() -> None:
            with c.coordinator.connect() as channel:
                stub = inference_pb2_grpc.InferenceStub(channel)
                while c.coordinator.popen.poll() is None:
                    try:
                        list(stub.Generate(request("x", max_tokens=1), timeout=PATIENCE))
                    except grpc.RpcError as error:
                        codes.add(error.code())

        with ThreadPoolExecutor() as pool:
            asking = [pool.submit(ask) for _ in range(6)]
            eventually(lambda: c.coordinator.value("outrider_requests_total", code="OK") > 20, "all of them ask")
            c.coordinator.terminate()
            try:
                c.coordinator.wait_orderly_end()
            finally:
                c.coordinator.kill()
            for one in asking:
                one.result()
    assert codes == {grpc.StatusCode.UNAVAILABLE}


def test_a_server_told_to_end_says_so_before_it_goes(prompts: list[str]) -> None:
    with cluster() as c:
        c.draft.stop()
        c.wait_draft_up(False)
        assert set(c.generate(prompts[0], k=4, max_tokens=20).kinds) == {"plain"}
        c.target.stop()
        eventually(lambda: c.coordinator.value("outrider_target_up") == 0, "the target is seen to be gone")
        assert c.coordinator.health() == "SERVING"


def cpu_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.popen.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_nothing_spins_while_idle(pair: Cluster, prompts: list[str]) -> None:
    pair.generate(prompts[0], k=4, temperature=0, max_tokens=30)
    pair.wait_idle()
    servers = (pair.coordinator, pair.draft, pair.target)
    before, start = [cpu_seconds(server) for server in servers], time.monotonic()
    time.sleep(3)
    passed = time.monotonic() - start
    for server, used in zip(servers, before, strict=True):
        assert cpu_seconds(server) - used < 0.02 * passed, server.program
