"""Measures what hostile requests cost other clients: the time of a round of four streams, alone and under each attack.

    .venv/bin/python bench/attacks.py [--seconds 10] [--turns 3] [--json build/bench/attacks.json]

Starts the three services with the shipped pair. Quiet slices and attacked ones take turns. The figures are median and
99th percentile of the rounds of four plain greedy streams, as the coordinator reports them, over all turns.
"""

import argparse
import contextlib
import http.client
import json
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from outrider.v1 import inference_pb2, inference_pb2_grpc, sequence_pb2

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build/release/bin"
MODELS = ROOT / "models"
STREAMS = 4
MIB = 1 << 20
PROMPT = "It was a dark evening in November, and the old house by the river"


def start(stack: contextlib.ExitStack, program: str, *flags: str) -> dict[str, str]:
    """Starts a service and returns the addresses that it reports."""
    process = subprocess.Popen([PROGRAMS / program, "--listen", "127.0.0.1:0", "--metrics-listen", "", "--log-format", "json",
                                *flags], stderr=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stderr is not None
    bound: dict[str, str] = {}
    for line in process.stderr:
        bound = json.loads(line)
        if "listen" in bound:
            break
    threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
    return bound


KEY = "bench"


class Services:
    def __init__(self, stack: contextlib.ExitStack) -> None:
        keys = Path(stack.enter_context(tempfile.TemporaryDirectory()), "keys")
        keys.write_text(f"{KEY}\n")
        target = start(stack, "outrider-target", "--model", str(MODELS / "tiny-target"), "--threads", "1")["listen"]
        draft = start(stack, "outrider-draft", "--model", str(MODELS / "tiny-draft"), "--threads", "1")["listen"]
        bound = start(stack, "outrider-coordinator", "--tokenizer", str(MODELS / "tiny-target"), "--target", target,
                        "--draft", draft, "--http-listen", "127.0.0.1:0", "--http-tls-terminated", "--http-token-file", str(keys))
        self.address, self.http = bound["listen"], bound["http_listen"]

    def connect(self) -> grpc.Channel:
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])


def request(text: str, max_tokens: int | None = None, **sampling) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        text=text, trace=True, sampling=sequence_pb2.SamplingParams(temperature=0, **sampling),
        speculation=inference_pb2.SpeculationOptions(draft_tokens=0),
        stop=inference_pb2.StopOptions(max_tokens=max_tokens, ignore_eos=True))


Attack = Callable[[Services, grpc.Channel, threading.Event], object]


def refused(channel: grpc.Channel, wanted: inference_pb2.GenerateRequest) -> None:
    with contextlib.suppress(grpc.RpcError):
        for _ in inference_pb2_grpc.InferenceStub(channel).Generate(wanted):
            pass


def quiet(_services: Services, _channel: grpc.Channel, stop: threading.Event) -> None:
    stop.wait()


def long_text(_services: Services, channel: grpc.Channel, stop: threading.Event) -> None:
    """A text of about the greatest length that is still tokenised."""
    wanted = request("word " * (40_000 // 5))
    while not stop.is_set():
        refused(channel, wanted)


def huge_text(_services: Services, channel: grpc.Channel, stop: threading.Event) -> None:
    wanted = request("x " * (60 * MIB // 2))
    while not stop.is_set():
        refused(channel, wanted)


def many_ids(_services: Services, channel: grpc.Channel, stop: threading.Event) -> None:
    wanted = request("x", bad_ids=[1] * MIB)
    while not stop.is_set():
        refused(channel, wanted)


def largest_message(_services: Services, channel: grpc.Channel, stop: threading.Event) -> None:
    """A message of the largest size; its stop strings are read before their number is refused."""
    wanted = request("x")
    wanted.stop.strings.extend(["x" * 4096] * 1000)
    while not stop.is_set():
        refused(channel, wanted)


def no_message(_services: Services, channel: grpc.Channel, stop: threading.Event) -> None:
    generate = channel.unary_stream("/outrider.v1.Inference/Generate")
    while not stop.is_set():
        for message in (b"\xff\xff\xff", b"\x0a\x7f", b"\x0a\x02\xff\xff"):
            with contextlib.suppress(grpc.RpcError):
                list(generate(message))


def post(services: Services, body: str, key: str, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(services.http)
            connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
            connection.getresponse().read()
            connection.close()


def huge_body(services: Services, _channel: grpc.Channel, stop: threading.Event) -> None:
    post(services, json.dumps({"prompt": "x " * (8 * MIB)}), KEY, stop)


def wrong_key(services: Services, _channel: grpc.Channel, stop: threading.Event) -> None:
    post(services, json.dumps({"prompt": "x"}), "wrong", stop)


def slow_headers(services: Services, _channel: grpc.Channel, stop: threading.Event) -> None:
    """500 connections that each send a header byte by byte, and reopen when they are closed."""
    address = services.http.rsplit(":", 1)
    connections: list[socket.socket] = []
    while not stop.is_set():
        while len(connections) < 500:
            connections.append(socket.create_connection((address[0], int(address[1])), timeout=10))
        for connection in connections[:]:
            try:
                connection.sendall(b"P")
            except OSError:
                connections.remove(connection)
        stop.wait(0.1)
    for connection in connections:
        connection.close()


def full_queue(_services: Services, channel: grpc.Channel, stop: threading.Event) -> None:
    """50 short requests at a time, all of them served."""
    stub = inference_pb2_grpc.InferenceStub(channel)
    while not stop.is_set():
        for call in [stub.Generate(request("x", max_tokens=1)) for _ in range(50)]:
            with contextlib.suppress(grpc.RpcError):
                list(call)


ATTACKS: dict[str, Attack] = {
    "quiet": quiet, "40 kB texts": long_text, "60 MB texts": huge_text, "lists of a million ids": many_ids,
    "messages of 4 MB": largest_message, "bytes that are no message": no_message, "16 MB over HTTP": huge_body,
    "wrong keys over HTTP": wrong_key, "500 slow HTTP headers": slow_headers, "50 short requests at a time": full_queue}


def rounds(services: Services, attack: Attack, seconds: float) -> list[int]:
    """The times of the streams' rounds in us."""
    stop, times = threading.Event(), []

    def stream() -> None:
        with services.connect() as channel:
            while not stop.is_set():
                call = inference_pb2_grpc.InferenceStub(channel).Generate(request(PROMPT, max_tokens=400))
                for chunk in call:
                    if chunk.trace.round > 0:
                        times.append(chunk.trace.round_us)
                    if stop.is_set():
                        call.cancel()
                        break

    with services.connect() as channel:
        threads = [threading.Thread(target=stream) for _ in range(STREAMS)]
        threads.append(threading.Thread(target=attack, args=(services, channel, stop)))
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        stop.set()
        for thread in threads:
            thread.join()
    return times


def measure(turns: int, seconds: float) -> Iterator[tuple[str, list[int]]]:
    with contextlib.ExitStack() as stack:
        services = Services(stack)
        for _ in range(turns):
            for name, attack in ATTACKS.items():
                yield name, rounds(services, attack, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="length of a slice in seconds")
    parser.add_argument("--turns", type=int, default=3, help="slices of each attack")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    times: dict[str, list[int]] = {name: [] for name in ATTACKS}
    for name, slice_of in measure(options.turns, options.seconds):
        times[name] += slice_of
    print(f"{'attack':28} {'rounds':>8} {'p50 us':>8} {'p99 us':>8}")
    results = []
    for name, of in times.items():
        p50, p99 = statistics.median(of), statistics.quantiles(of, n=100)[98]
        print(f"{name:28} {len(of):8} {p50:8.0f} {p99:8.0f}")
        results.append({"attack": name, "rounds": len(of), "p50_us": p50, "p99_us": p99})
    if options.json:
        options.json.write_text(json.dumps({"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
