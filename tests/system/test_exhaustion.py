"""Clients, peers and surroundings that take what there is, or ask for what ends before it has begun."""

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certificates import Authority, tls_flags
from harness import (BIN, PATIENCE, TARGET_MODEL, UNPROBED, Cluster, Process, Server, Stream, cluster, eventually, inference_pb2,
                     inference_pb2_grpc, new_sequence, refusal, request, reserve_address, running, start_coordinator, start_target)
from http_clients import post, status_of
from proxies import Proxy

ROUNDS = 6  # of what once ended a process within a few


# --- answers that end at once ----------------------------------------------------------------------

@pytest.mark.parametrize("options", [{"max_tokens": 1}, {"stop": [" "], "max_tokens": 20}, {"max_tokens": 1, "tree": "2x2"},
                                     {"max_tokens": 1, "drafter": "none"}], ids=str)
def test_all_samples_are_answered_though_the_first_ends_at_once(pair: Cluster, prompts: list[str], options: dict[str, object]) -> None:
    for i in range(ROUNDS):
        answers = pair.generate_samples(prompts[i], 5, temperature=1, seed=i, **options)
        assert all(answer.finish for answer in answers)
    pair.wait_idle()


def test_all_choices_are_answered_though_the_first_ends_at_once(pair: Cluster, prompts: list[str]) -> None:
    for i in range(ROUNDS):
        with post(pair, "/v1/completions", {"prompt": prompts[i], "n": 4, "max_tokens": 1}) as response:
            assert [choice["index"] for choice in json.load(response)["choices"]] == [0, 1, 2, 3]
    pair.wait_idle()


def test_a_deadline_at_any_moment_of_several_samples_ends_only_them(pair: Cluster, prompts: list[str]) -> None:
    for milliseconds in range(1, 40, 3):
        call = pair.stub.Generate(request(prompts[0], n=8, max_tokens=2, temperature=1), timeout=milliseconds / 1000)
        with contextlib.suppress(grpc.RpcError):
            list(call)
    assert len(pair.generate(prompts[0], max_tokens=3, ignore_eos=True).tokens) == 3
    pair.wait_idle()


def test_searches_that_are_cancelled_leave_nothing_on_the_draft(pair: Cluster, prompts: list[str]) -> None:
    search = request(prompts[0], k=3, max_tokens=60, beam=inference_pb2.BeamOptions(width=12))
    for milliseconds in range(2, 90, 4):
        with contextlib.suppress(grpc.RpcError):
            list(pair.stub.Generate(search, timeout=milliseconds / 1000))
    pair.wait_idle()


def test_searches_that_end_in_their_first_round_are_answered(pair: Cluster, prompts: list[str]) -> None:
    for i in range(ROUNDS):
        texts = pair.generate_samples(prompts[i], 4, max_tokens=1, beam=inference_pb2.BeamOptions(width=4))
        assert all(len(text.tokens) == 1 for text in texts)
    pair.wait_idle()


# --- a log that nobody reads ----------------------------------------------------------------------------------

def test_a_log_that_nobody_reads_holds_nothing_up_and_says_what_it_dropped(prompts: list[str]) -> None:
    with running(start_target()) as servers:
        address, http, metrics = reserve_address(), reserve_address(), reserve_address()
        read, write = os.pipe()
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", BIN / "outrider-coordinator", "--tokenizer", TARGET_MODEL, "--target", servers[0].address,
             "--draft=", "--listen", address, "--http-listen", http, "--metrics-listen", metrics, "--log-format", "json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=write)
        os.close(write)

        def dropped() -> float:
            with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=PATIENCE) as answer:
                return next(float(line.split()[1]) for line in answer.read().decode().splitlines()
                            if line.startswith("outrider_log_lines_dropped_total"))

        try:
            eventually(lambda: status_of(f"http://{http}/health") == 200, "ready")
            assert dropped() == 0
            # Each is a line with all of that text that fits; 4096 wait, and the pipe holds a few.
            with grpc.insecure_channel(address) as channel:
                stub = inference_pb2_grpc.InferenceStub(channel)
                refused = request("x" * 3000, temperature=-1)
                while dropped() == 0:
                    for call in [stub.Generate(refused, timeout=PATIENCE) for _ in range(500)]:
                        assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert status_of(f"http://{http}/health") == 200
            assert status_of(f"http://{http}/v1/completions", body={"prompt": prompts[0], "max_tokens": 3}) == 200
            lost = dropped()
            lines: list[str] = []
            reader = threading.Thread(target=lambda: lines.extend(os.fdopen(read, errors="replace")), daemon=True)
            reader.start()
            process.terminate()
            assert process.wait(PATIENCE) == 0
            reader.join(PATIENCE)
            events = [json.loads(line) for line in lines]
            assert sum(event["lines"] for event in events if event["event"] == "log lines dropped") >= lost > 0
            assert events[-1]["event"] == "stopped"
        finally:
            process.kill()
            process.wait()


# --- memory ---------------------------------------------------------------------------------------------------

SIZE = 4_000_000  # bytes of a request: less than one may have


def test_requests_that_are_many_times_larger_in_memory_are_refused(pair: Cluster, prompts: list[str]) -> None:
    # Field 7, the stop options, with two million empty strings.
    strings = b"\x0a\x00" * (SIZE // 2)
    length, size = b"", len(strings)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    packed = b"\x3a" + length + bytes([size]) + strings
    before = pair.coordinator.resident_mebibytes()
    with grpc.insecure_channel(pair.coordinator.address, UNPROBED) as channel:
        generate = channel.unary_stream("/outrider.v1.Inference/Generate")
        for call in [generate(packed, timeout=PATIENCE) for _ in range(12)]:
            assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
    for field in ('"stop":["",' + '"",' * (SIZE // 3) + '""]', '"messages":[' + "{}," * (SIZE // 3) + "{}]"):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://{pair.coordinator.http_address}/v1/completions", b'{"prompt":"a",' + field.encode() + b"}",
                                   timeout=PATIENCE)
        assert error.value.code == 400
    # gRPC's buffers for the bytes themselves stay.
    assert pair.coordinator.resident_mebibytes() < before + 500
    assert len(pair.generate(prompts[0], max_tokens=3, ignore_eos=True).tokens) == 3


def test_a_conversation_of_too_many_messages_is_refused_before_it_is_rendered(pair: Cluster) -> None:
    talk = request("")
    talk.chat.messages.extend([inference_pb2.ChatMessage(role="user")] * 5000)
    assert pair.refused(talk).metadata == {"field": "chat.messages", "range": "1 to 4096"}


def test_the_largest_answers_are_refused_and_others_are_served_meanwhile(pair: Cluster, prompts: list[str]) -> None:
    big = {"prompt": [(prompt * 40)[:1500] for prompt in prompts[:30]], "n": 64, "max_tokens": 2, "echo": True, "logprobs": 20}
    before = pair.coordinator.resident_mebibytes()
    codes: list[int] = []
    asking = [threading.Thread(target=lambda: codes.append(status_of(f"http://{pair.coordinator.http_address}/v1/completions", body=big))) for _ in range(3)]
    for thread in asking:
        thread.start()
    while any(thread.is_alive() for thread in asking):
        assert status_of(f"http://{pair.coordinator.http_address}/health") == 200
        assert pair.coordinator.resident_mebibytes() < before + 800
    assert set(codes) <= {400, 429}
    pair.wait_idle()


def test_a_megabyte_that_a_client_sent_is_neither_logged_nor_sent_back(pair: Cluster) -> None:
    begun = len(pair.coordinator.lines)
    refused = pair.refused(request("a", max_tokens=3, stop=["x" * 1_000_000]))
    assert (refused.code, len(refused.message) < 4096) == ("INVALID_ARGUMENT", True)
    talk = request("")
    talk.chat.messages.add(role="user" * 100_000, content="a")
    refused = pair.refused(talk)
    assert (refused.code, len(refused.message) < 4096) == ("INVALID_ARGUMENT", True)
    assert len(pair.generate("a", max_tokens=3, ignore_eos=True).tokens) == 3
    assert max(len(line) for line in pair.coordinator.lines[begun:]) < 4096


# --- connections ----------------------------------------------------------------------------------------------

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


def serves(server: Server) -> bool:
    with server.connect() as channel, contextlib.suppress(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=1)
        return True
    return False


def test_a_port_that_ran_out_of_descriptors_takes_connections_again() -> None:
    health = reserve_address()
    with running(start_target("--health-listen", health)) as (target,):
        assert target.health() == target.health(health) == "SERVING"
        subprocess.run(["prlimit", "--nofile=64:64", "--pid", str(target.popen.pid)], check=True)
        mute = connections(target.address, 150)
        assert not serves(target)
        for connection in mute:
            connection.close()
        eventually(lambda: serves(target), "it takes connections again")
        assert target.health(health, service="live") == "SERVING"


def test_a_process_whose_ports_take_no_connections_is_not_live() -> None:
    def is_live(health: health_pb2_grpc.HealthStub) -> bool:
        asked = health_pb2.HealthCheckRequest(service="live")
        return health.Check(asked, timeout=PATIENCE).status == health_pb2.HealthCheckResponse.SERVING

    with cluster() as c, contextlib.ExitStack() as channels:
        servers = (c.coordinator, c.target, c.draft)
        probes = [health_pb2_grpc.HealthStub(channels.enter_context(server.connect())) for server in servers]
        assert all(is_live(probe) for probe in probes)
        for server in servers:  # no descriptor more than it has
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
        # Each has ten seconds for its first byte.
        eventually(lambda: serves(target), "those that said nothing are ended")
        for connection in mute:
            connection.close()


# --- an answer that is lost -----------------------------------------------------------------------------------

def test_an_item_whose_answer_is_lost_is_sent_again_while_others_are_answered(prompts: list[str]) -> None:
    proxy = Proxy("target")
    swallowed: list[bytes] = []

    def lose_one(result: object) -> list[object]:
        if swallowed or result.cached < 20:
            return [result]
        swallowed.append(result.sequence_id)
        return []

    with cluster(draft=None, target_through=proxy, coordinator=["--item-timeout", "1"]) as c:
        long = prompts[0] * 20
        expected = c.generate(long, temperature=0, max_tokens=5, ignore_eos=True)
        others = threading.Event()

        def ask() -> None:
            while not others.is_set():
                c.generate([7, 8, 9], temperature=0, max_tokens=3, ignore_eos=True)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            proxy.on_result = lose_one
            assert c.generate(long, temperature=0, max_tokens=5, ignore_eos=True).tokens == expected.tokens
        finally:
            others.set()
            asking.join()
        assert swallowed and c.coordinator.wait_for_event("item lost", server="target")
        assert not c.coordinator.events("silent"), "the connection stayed"


# --- clients of one coordinator -------------------------------------------------------------------------------

def test_a_token_is_one_client_over_grpc_and_http_and_no_other(authority: Authority, tmp_path: Path, prompts: list[str]) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("alice-secret\nbob-secret\n")
    root = authority.ca.read_bytes()
    with running(start_target()) as servers:
        c = start_coordinator(servers[0].address, "", *tls_flags(*authority.sign("apart"), "--token-file", tokens))
        servers.append(c)

        def over_grpc(token: str, prompt: str) -> int:
            with grpc.secure_channel(c.address, grpc.ssl_channel_credentials(root), UNPROBED) as channel:
                call = inference_pb2_grpc.InferenceStub(channel).Generate(
                    request(prompt, max_tokens=1), timeout=PATIENCE, metadata=[("authorization", f"Bearer {token}")])
                return [chunk for chunk in call][-1].finish.usage.cached_prompt_tokens

        def over_http(token: str, prompt: str) -> int:
            asked = urllib.request.Request(f"https://{c.http_address}/v1/completions",
                                           json.dumps({"prompt": prompt, "max_tokens": 1}).encode(),
                                           {"Authorization": f"bearer {token}"})
            with urllib.request.urlopen(asked, timeout=PATIENCE, context=ssl.create_default_context(cadata=root.decode())) as answer:
                return json.load(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]

        for first, second in ((over_grpc, over_http), (over_http, over_grpc)):
            prompt = prompts[0 if first is over_grpc else 1] * 8
            assert first("alice-secret", prompt) == 0
            assert second("alice-secret", prompt) > 0, "the same client"
            assert first("bob-secret", prompt) == 0 and second("bob-secret", prompt) > 0


def test_places_of_clients_that_do_not_read_are_free_within_a_minute(prompts: list[str]) -> None:
    big = request(prompts[0], n=4, k=1, temperature=1, max_tokens=400, ignore_eos=True)
    big.logprobs.top = 20
    with cluster(coordinator=["--max-requests", "8"]) as c, grpc.insecure_channel(c.coordinator.address, UNPROBED) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        unread = [stub.Generate(big) for _ in range(2)]
        c.coordinator.wait_value("outrider_requests_running", 2)
        assert len(c.generate(prompts[1], max_tokens=3, ignore_eos=True).tokens) == 3
        c.coordinator.wait_value("outrider_requests_running", 0)
        for call in unread:
            with pytest.raises(grpc.RpcError):
                list(call)
        c.wait_idle()


# --- flags and items ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("program", ["outrider-target", "outrider-draft"])
def test_an_empty_flag_of_a_model_takes_nothing_from_the_next(program: str) -> None:
    line = refusal(program, "--model", str(TARGET_MODEL), "--tls-cert=", "--tls-key=", "--health-listen=", "--listen=0.0.0.0:0")
    assert "--listen: 0.0.0.0:0" in line


@pytest.mark.parametrize("empty", ["--draft=", "--health-listen="])
def test_an_empty_flag_takes_nothing_from_the_next(empty: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    address, http = reserve_address(), reserve_address()
    process = Process("outrider-coordinator", "--tokenizer", str(TARGET_MODEL), "--target", "127.0.0.1:1", "--http-listen", http, "--listen",
                      address, "--http-tls-terminated", "--metrics-listen", "127.0.0.1:0", empty, f"--http-token-file={keys}")
    try:
        assert eventually(lambda: status_of(f"http://{http}/v1/models"), "it answers") == 401
    finally:
        process.kill()


@pytest.mark.parametrize("base", [0, 3])
def test_an_item_that_comes_from_itself_or_from_nowhere_is_refused(target: Stream, draft: Stream, base: int) -> None:
    tokens = [1, 2, 3, 4]
    for stream, kind in ((target, "verify"), (draft, "propose")):
        sequence = new_sequence(len(tokens))
        for round, origin, code in ((1, sequence.id, "INVALID_ARGUMENT"), (2, b"0123456789abcdef", "NOT_FOUND")):
            item = getattr(sequence, kind)(round, tokens, base)
            getattr(item, kind).sequence.fork_of = origin
            assert stream.refused(item).code == code
        answer, = stream.ask(getattr(sequence, kind)(3, tokens))
        assert not answer.HasField("status")
