"""TLS, client certificates and API keys of the HTTP listener."""

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from certificates import TOKEN, Authority, install, tls_flags
from harness import PATIENCE, TARGET_MODEL, Server, eventually, refusal, running, start_coordinator, start_target
from http_clients import NO_ANSWER, status_of

OTHER = "an0ther-token"

UNUSABLE = "certificates of the http listener cannot be used, those before stay in use"


@pytest.fixture(scope="module")
def secured(authority: Authority, token_file: Path) -> Iterator[Server]:
    coordinator = start_coordinator("127.0.0.1:1", "", *tls_flags(*authority.sign("http"), "--token-file", token_file))
    with running(coordinator):
        yield coordinator


def trust(authority: Authority, identity: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    if identity is not None:
        context.load_cert_chain(*identity)
    return context


def ask(server: Server, path: str, tls: ssl.SSLContext | None = None, *, token: str = "", body: Any = None) -> int:
    """The status of a request over a new connection; tls None: plaintext."""
    url = f"{'http' if tls is None else 'https'}://{server.http_address}{path}"
    return status_of(url, body=body, headers={"Authorization": f"Bearer {token}"} if token else {}, tls=tls)


def test_the_listener_speaks_https_and_nothing_else(secured: Server, authority: Authority, stranger: Authority) -> None:
    assert ask(secured, "/v1/models", trust(authority), token=TOKEN) == 200
    assert ask(secured, "/health", trust(authority)) == 503, "there is no target"
    assert ask(secured, "/health", trust(stranger)) == NO_ANSWER
    assert ask(secured, "/health") == NO_ANSWER, "plaintext"


def test_a_wrong_key_is_refused_and_counted(secured: Server, authority: Authority) -> None:
    before = secured.value("outrider_http_refused_total", code="401")
    assert ask(secured, "/v1/models", trust(authority)) == 401
    assert ask(secured, "/v1/models", trust(authority), token="wrong") == 401
    assert secured.value("outrider_http_refused_total", code="401") - before == 2
    assert secured.wait_for_event("http requests refused", status=401)


def test_a_refused_generation_is_a_request_that_ended(secured: Server, authority: Authority) -> None:
    assert ask(secured, "/v1/completions", trust(authority), token=TOKEN, body={"prompt": 1.5}) == 400
    assert secured.value("outrider_requests_total", code="INVALID_ARGUMENT") == 1
    assert secured.value("outrider_http_refused_total", code="400") == 1


def test_what_the_head_of_a_generation_is_refused_for_counts_too(secured: Server, authority: Authority) -> None:
    for code, how in (("UNAUTHENTICATED", {}), ("INVALID_ARGUMENT", {"token": TOKEN, "body": {"prompt": "x" * (5 << 20)}})):
        before = secured.value("outrider_requests_total", code=code)
        assert ask(secured, "/v1/models", trust(authority)) == 401
        assert ask(secured, "/v1/completions", trust(authority), **{"body": {}} | how) in {401, 413, NO_ANSWER}
        assert secured.value("outrider_requests_total", code=code) - before == 1, "the list of models is no request"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_tls_is_refused(secured: Server, authority: Authority) -> None:
    for version, answered in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_1, False)):
        context = trust(authority)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, version
        assert (ask(secured, "/health", context) != NO_ANSWER) == answered, version


def test_a_handshake_that_does_not_begin_ends(secured: Server) -> None:
    host, port = secured.http_address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as silent:
        assert silent.recv(1) == b""


def test_a_listener_that_wants_client_certificates_takes_only_those_of_its_authority(authority: Authority,
                                                                                     stranger: Authority) -> None:
    coordinator = start_coordinator("127.0.0.1:1", "", *tls_flags(*authority.sign("mutual"), "--tls-client-ca",
                                                                  authority.ca))
    with running(coordinator):
        assert ask(coordinator, "/v1/models", trust(authority, authority.sign("client"))) == 200
        assert ask(coordinator, "/health", trust(authority)) == NO_ANSWER
        assert ask(coordinator, "/health", trust(authority, stranger.sign("client"))) == NO_ANSWER


def test_clients_are_told_apart_by_their_certificates(authority: Authority) -> None:
    def generate(client: ssl.SSLContext) -> http.client.HTTPSConnection:
        host, port = coordinator.http_address.rsplit(":", 1)
        connection = http.client.HTTPSConnection(host, int(port), timeout=PATIENCE, context=client)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once"}))
        return connection

    # No target is there: one request counts as running, and one of each client waits for its turn.
    coordinator = start_coordinator("127.0.0.1:1", "", "--target-wait", "3600", "--drain", "0", "--max-requests", "1",
                                    "--max-waiting-requests", "1", *tls_flags(*authority.sign("apart")),
                                    "--tls-client-ca", str(authority.ca))
    ada, bob = (trust(authority, authority.sign(name, at=f"DNS:{name}")) for name in ("ada", "bob"))
    with running(coordinator), contextlib.ExitStack() as connections:
        for client, running_now, waiting in ((ada, 1, 0), (ada, 1, 1), (bob, 1, 2)):
            connections.enter_context(contextlib.closing(generate(client)))
            coordinator.wait_value("outrider_requests_running", running_now)
            coordinator.wait_value("outrider_requests_waiting", waiting)
        for client in (ada, bob):
            with contextlib.closing(generate(client)) as refused:
                assert refused.getresponse().status == 429


def test_a_stream_over_tls_is_whole_and_ends_with_its_client(authority: Authority, prompts: list[str]) -> None:
    with running() as servers:
        servers.append(target := start_target())
        servers.append(coordinator := start_coordinator(target.address, "", *tls_flags(*authority.sign("stream"))))
        with openai.OpenAI(base_url=f"https://{coordinator.http_address}/v1", api_key="none", max_retries=0,
                           timeout=PATIENCE, http_client=openai.DefaultHttpxClient(verify=trust(authority))) as client:
            options = {"model": TARGET_MODEL.name, "prompt": prompts[0], "temperature": 0,
                       "extra_body": {"ignore_eos": True}}
            whole = client.completions.create(max_tokens=200, **options).choices[0].text
            streamed = client.completions.create(max_tokens=200, stream=True, **options)
            assert "".join(event.choices[0].text for event in streamed) == whole
            left = client.completions.create(max_tokens=1500, stream=True, **options)
            next(iter(left))
            left.close()
            coordinator.wait_value("outrider_requests_total", 1, code="CANCELLED")


def test_a_new_certificate_is_used_without_a_restart_and_a_bad_one_is_not(authority: Authority, stranger: Authority,
                                                                          tmp_path: Path) -> None:
    places = tmp_path / "cert.pem", tmp_path / "key.pem"
    install(stranger.sign("first"), places)
    coordinator = start_coordinator("127.0.0.1:1", "", *tls_flags(*places))
    with running(coordinator):
        assert ask(coordinator, "/health", trust(authority)) == NO_ANSWER
        install(authority.sign("second"), places)
        eventually(lambda: ask(coordinator, "/health", trust(authority)) == 503, "the new certificate is in use")
        places[0].write_text("no certificate")

        def refused() -> list[dict[str, Any]]:
            assert ask(coordinator, "/health", trust(authority)) == 503, "the old one stays in use"
            return [e for e in coordinator.events(UNUSABLE) if str(places[0]) in e["error"]]

        eventually(refused, "the bad file is in the log")
        for _ in range(3):
            assert len(refused()) == 1


def test_keys_behind_a_proxy_that_terminates_tls(authority: Authority, token_file: Path, tmp_path: Path) -> None:
    http_tokens = tmp_path / "http-tokens"
    http_tokens.write_text(f"{OTHER}\n")
    behind = ["--http-tls-terminated", "--http-token-file", str(http_tokens)]
    for more in ([], tls_flags(*authority.sign("behind"), "--token-file", token_file)):
        with running(start_coordinator("127.0.0.1:1", "", *behind, *more)) as [coordinator]:
            assert ask(coordinator, "/v1/models", token=OTHER) == 200
            assert ask(coordinator, "/v1/models", token=TOKEN) == ask(coordinator, "/v1/models") == 401


def test_keys_need_tls_or_a_proxy(token_file: Path) -> None:
    start = ["outrider-coordinator", "--tokenizer", str(TARGET_MODEL), "--listen", "127.0.0.1:0", "--http-listen",
             "127.0.0.1:0", "--metrics-listen", "", "--log-format", "text"]
    why = refusal(*start, "--http-token-file", str(token_file))
    assert all(flag in why for flag in ("--http-token-file", "--tls-cert", "--tls-key", "--http-tls-terminated"))
