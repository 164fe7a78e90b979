"""Clients, servers and logs that exhaust resources, and answers that end at once."""

import contextlib
import json
import os
import subprocess
import threading
import urllib.error
import urllib.request

import grpc
import pytest

from harness import (BIN, PATIENCE, TARGET_MODEL, UNPROBED, Cluster, Stream, cluster, eventually, inference_pb2, inference_pb2_grpc,
                     new_sequence, request, reserve_address, running, start_target)
from http_clients import post, status_of
from proxies import Proxy

ROUNDS = 6  # repetitions; a few of them once ended a process


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
            # Each refusal is a line with as much of the text as fits. 4096 lines wait, and the pipe holds a few.
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

SIZE = 4_000_000  # bytes of a request, just below the limit
# A request with two million empty stop strings, two bytes each.
EMPTY_STOP_STRINGS = inference_pb2.GenerateRequest(stop=inference_pb2.StopOptions.FromString(b"\x0a\x00" * (SIZE // 2))).SerializeToString()


def test_requests_that_are_many_times_larger_in_memory_are_refused(pair: Cluster, prompts: list[str]) -> None:
    before = pair.coordinator.resident_mebibytes()
    with grpc.insecure_channel(pair.coordinator.address, UNPROBED) as channel:
        generate = channel.unary_stream("/outrider.v1.Inference/Generate")
        for call in [generate(EMPTY_STOP_STRINGS, timeout=PATIENCE) for _ in range(12)]:
            assert call.code() == grpc.StatusCode.INVALID_ARGUMENT
    for field in ('"stop":["",' + '"",' * (SIZE // 3) + '""]', '"messages":[' + "{}," * (SIZE // 3) + "{}]"):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"http://{pair.coordinator.http_address}/v1/completions", b'{"prompt":"a",' + field.encode() + b"}",
                                   timeout=PATIENCE)
        assert error.value.code == 400
    # gRPC keeps its buffers for the bytes themselves.
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


# --- an answer that is lost -----------------------------------------------------------------------------------

def test_an_item_whose_answer_is_lost_is_sent_again_while_others_are_answered(prompts: list[str]) -> None:
    proxy = Proxy("target")
    swallowed: list[bytes] = []

    def lose_one(result: object) -> list[object]:
        if swallowed or result.cached < 20:
            return [result]
        swallowed.append(result.sequence_id)
        return []

    with cluster(draft=None, target_through=proxy, coordinator=["--item-timeout", "3"]) as c:
        long = prompts[0] * 20
        expected = c.generate(long, temperature=0, max_tokens=5, ignore_eos=True)
        silent = len(c.coordinator.events("silent"))  # on a busy machine the prompt may take longer than the timeout
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
        assert len(c.coordinator.events("silent")) == silent, "the connection stayed"


# --- clients that do not read ---------------------------------------------------------------------------------

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


# --- items ----------------------------------------------------------------------------------------------------

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
