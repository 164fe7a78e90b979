"""Clients of one coordinator: each is the same over both APIs, has its own cache and queue, and delays no other."""

import contextlib
import dataclasses
import http.client
import json
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from certificates import Authority, tls_flags
from harness import (PATIENCE, UNPROBED, Refusal, Server, eventually, inference_pb2, inference_pb2_grpc, request, running,
                     start_coordinator)
from http_clients import answer_of
from relay import relay


@dataclasses.dataclass(frozen=True)
class Caller:
    """A client: its host and its credentials."""
    host: str = "127.0.0.1"
    token: str = ""
    identity: tuple[Path, Path] | None = None
    authority: Authority | None = None  # of the coordinator's certificate; None: no TLS

    @contextlib.contextmanager
    def connect(self, c: Server) -> Iterator[inference_pb2_grpc.InferenceStub]:
        """Connects to a coordinator over gRPC."""
        with relay(c.address, self.host) as between:
            if self.authority is None:
                channel = grpc.insecure_channel(between.address, UNPROBED)
            else:
                cert, key = (path.read_bytes() for path in self.identity) if self.identity else (None, None)
                credentials = grpc.ssl_channel_credentials(self.authority.ca.read_bytes(), key, cert)
                channel = grpc.secure_channel(between.address, credentials, UNPROBED)
            with channel:
                yield inference_pb2_grpc.InferenceStub(channel)

    def generate(self, stub: inference_pb2_grpc.InferenceStub, prompt: str) -> grpc.Call:
        metadata = [("authorization", f"Bearer {self.token}")] if self.token else []
        return stub.Generate(request(prompt, max_tokens=1), timeout=PATIENCE, metadata=metadata)

    def post(self, c: Server, prompt: str) -> http.client.HTTPConnection:
        address, port = c.http_address.rsplit(":", 1)
        source = (self.host, 0)
        if self.authority is None:
            connection = http.client.HTTPConnection(address, int(port), timeout=PATIENCE, source_address=source)
        else:
            tls = ssl.create_default_context(cafile=str(self.authority.ca))
            if self.identity:
                tls.load_cert_chain(*self.identity)
            connection = http.client.HTTPSConnection(address, int(port), timeout=PATIENCE, source_address=source, context=tls)
        headers = {"Authorization": f"bearer {self.token}"} if self.token else {}
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 1}), headers)
        return connection


# The flags of a coordinator that tells its clients apart, and two such clients.
Two = tuple[list[str], Caller, Caller]
Known = Callable[[Authority, Path], Two]


def by_token(authority: Authority, folder: Path) -> Two:
    tokens = folder / "tokens"
    tokens.write_text("ada-secret\nbob-secret\n")
    ada, bob = (Caller(token=f"{name}-secret", authority=authority) for name in ("ada", "bob"))
    return tls_flags(*authority.sign("coordinator"), "--token-file", tokens), ada, bob


def by_certificate(authority: Authority, _: Path) -> Two:
    ada, bob = (Caller(identity=authority.sign(name, at=f"DNS:{name}"), authority=authority) for name in ("ada", "bob"))
    return tls_flags(*authority.sign("coordinator"), "--tls-client-ca", authority.ca), ada, bob


def by_host(_: Authority, __: Path) -> Two:
    return [], Caller("127.0.0.2"), Caller("127.0.0.3")


each_way = pytest.mark.parametrize("known", [by_token, by_certificate, by_host])


@each_way
def test_a_client_is_the_same_over_grpc_and_http_and_no_other(known: Known, authority: Authority, target_server: Server, tmp_path: Path,
                                                              prompts: list[str]) -> None:
    def over_grpc(who: Caller, prompt: str) -> int:
        with who.connect(c) as stub:
            return list(who.generate(stub, prompt))[-1].finish.usage.cached_prompt_tokens

    def over_http(who: Caller, prompt: str) -> int:
        status, body = answer_of(who.post(c, prompt))
        assert status == 200, body
        return body["usage"]["prompt_tokens_details"]["cached_tokens"]

    flags, ada, bob = known(authority, tmp_path)
    with running(start_coordinator(target_server.address, "", *flags)) as [c]:
        for (first, second), prompt in zip(((over_grpc, over_http), (over_http, over_grpc)), prompts):
            long = prompt * 8
            assert first(ada, long) == 0
            assert second(ada, long) > 0, "the same client"
            assert first(bob, long) == 0 and second(bob, long) > 0


@each_way
@pytest.mark.parametrize("api", ["gRPC", "HTTP"])
def test_a_queue_that_a_client_filled_over_one_api_is_full_over_both_and_not_anothers(
        api: str, known: Known, authority: Authority, tmp_path: Path) -> None:
    def over_grpc(who: Caller) -> grpc.Call:
        call = who.generate(asked.enter_context(who.connect(c)), "Once")
        asked.callback(call.cancel)
        return call

    def over_http(who: Caller) -> http.client.HTTPConnection:
        return asked.enter_context(contextlib.closing(who.post(c, "Once")))

    flags, ada, bob = known(authority, tmp_path)
    # No target is there: one request counts as running, and the others wait for their turn.
    flags += ["--target-wait", "3600", "--drain", "0", "--max-requests", "1", "--max-waiting-requests", "3"]
    with running(start_coordinator("127.0.0.1:1", "", *flags)) as [c], contextlib.ExitStack() as asked:
        over_http(bob)
        c.wait_value("outrider_requests_running", 1)
        for _ in range(3):
            (over_grpc if api == "gRPC" else over_http)(ada)
        c.wait_value("outrider_requests_waiting", 3)
        status, body = answer_of(over_http(ada))
        assert (status, body["error"]["code"]) == (429, "queue_full")
        with pytest.raises(grpc.RpcError) as error:
            list(over_grpc(ada))
        assert Refusal.of(error.value).reason == "QUEUE_FULL"
        over_http(bob), over_grpc(bob)
        c.wait_value("outrider_requests_waiting", 5)


# --- requests that take long to parse -------------------------------------------------------------------------

BUSY, OTHER = Caller("127.0.0.2"), Caller("127.0.0.3")
MANY = 20  # requests of BUSY


def begun(c: Server, who: Caller, size: int) -> socket.socket:
    """Sends a request of about `size` bytes without its last byte. It takes long to parse, and is then refused."""
    address, port = c.http_address.rsplit(":", 1)
    connection = socket.create_connection((address, int(port)), PATIENCE, (who.host, 0))
    body = b'{"temperature":"hot","prompt":[1' + b",1" * (size // 2) + b"]}"
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:-1])
    return connection


def on_its_way(port: int) -> int:
    """The number of bytes that a server at this port has not read, and of connections that it has not accepted."""
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues = line.split()[:5]
        to_send, to_take = (int(queue, 16) for queue in queues.split(":"))
        count += to_take * (int(here[-4:], 16) == port) + to_send * (int(there[-4:], 16) == port)
    return count


def test_a_client_with_many_long_bodies_delays_another_by_a_few() -> None:
    with running(start_coordinator("127.0.0.1:1", "")) as [c], contextlib.ExitStack() as opened:
        many = [opened.enter_context(begun(c, BUSY, 3_900_000)) for _ in range(MANY)]
        other = opened.enter_context(begun(c, OTHER, 100_000))
        eventually(lambda: on_its_way(int(c.http_address.rsplit(":", 1)[1])) == 0, "all but the last bytes have come")
        for connection in (*many, other):
            connection.sendall(b"}")
        assert other.recv(100).startswith(b"HTTP/1.1 400")
        answered, _, _ = select.select(many, [], [], 0)
        assert len(answered) < MANY / 2
        assert all(connection.recv(100).startswith(b"HTTP/1.1 400") for connection in many)


@pytest.mark.parametrize("method, code", [("Generate", grpc.StatusCode.INVALID_ARGUMENT), ("Tokenize", grpc.StatusCode.OK)])
def test_a_client_with_many_long_conversations_delays_another_by_a_few(method: str, code: grpc.StatusCode, target_server: Server) -> None:
    talk = inference_pb2.ChatPrompt(messages=[inference_pb2.ChatMessage(role="user", content="a")] * 4000)

    def ask(stub: inference_pb2_grpc.InferenceStub) -> grpc.Future:
        if method == "Generate":
            return stub.Generate(inference_pb2.GenerateRequest(chat=talk), timeout=PATIENCE)
        return stub.Tokenize.future(inference_pb2.TokenizeRequest(chat=talk), timeout=PATIENCE)

    with running(start_coordinator(target_server.address, "")) as [c], BUSY.connect(c) as busy, OTHER.connect(c) as stub:
        c.wait_for_event("serving")
        stub.Describe(inference_pb2.DescribeRequest(), timeout=PATIENCE)  # connects
        many = [ask(busy) for _ in range(MANY)]
        eventually(lambda: any(call.done() for call in many), "the others have come by then")
        other = ask(stub)
        assert other.code() == code
        assert sum(call.done() for call in many) < MANY / 2
        assert {call.code() for call in many} == {code}
