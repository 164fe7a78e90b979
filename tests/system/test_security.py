"""TLS and bearer tokens of the gRPC services."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from outrider import Client, Retries, Tls, Unauthenticated, Unavailable

from certificates import TOKEN, Authority, install, tls_flags
from harness import (BIN, PATIENCE, TARGET_MODEL, Server, eventually, inference_pb2, inference_pb2_grpc, refusal, running,
                     start_coordinator, start_draft, start_target)


def describe(server: Server, ca: Path | None, *, token: str = "", identity: tuple[Path, Path] | None = None) -> grpc.StatusCode:
    """The status code of a call over a new connection; ca None: plaintext."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    if ca is None:
        channel = grpc.insecure_channel(server.address, options)
    else:
        cert, key = (path.read_bytes() for path in identity) if identity else (None, None)
        credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, cert)
        channel = grpc.secure_channel(server.address, credentials, options)
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with channel:
        try:
            inference_pb2_grpc.InferenceStub(channel).Describe(inference_pb2.DescribeRequest(), timeout=20,
                                                               metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


OK, UNAVAILABLE, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED


def cli(server: Server, *flags: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "outrider", "generate", "Once", "--address", server.address, "--max-tokens", "3",
                           "--temperature", "0", *map(str, flags)], capture_output=True, text=True, timeout=PATIENCE)


@contextlib.contextmanager
def secured(authority: Authority, token_file: Path) -> Iterator[Server]:
    """The three services with TLS, client certificates between them, and a token for clients."""
    target_identity, draft_identity, coordinator_identity = (authority.sign(n) for n in ("target", "draft", "coordinator"))
    demand = ["--tls-client-ca", str(authority.ca)]
    with running() as servers:
        servers.append(target := start_target(*tls_flags(*target_identity), *demand))
        servers.append(draft := start_draft(*tls_flags(*draft_identity), *demand, "--token-file", str(token_file)))
        servers.append(coordinator := start_coordinator(
            target.address, draft.address, *tls_flags(*coordinator_identity), "--token-file", str(token_file),
            "--backend-ca", str(authority.ca), "--backend-cert", str(coordinator_identity[0]),
            "--backend-key", str(coordinator_identity[1]), "--backend-token-file", str(token_file)))
        coordinator.wait_for_event("connected", server="target")
        coordinator.wait_for_event("connected", server="draft")
        yield coordinator


def test_all_three_over_tls(authority: Authority, stranger: Authority, token_file: Path) -> None:
    with secured(authority, token_file) as coordinator:
        good = cli(coordinator, "--tls-ca", authority.ca, "--tls-token-file", token_file)
        assert good.returncode == 0 and good.stdout, good.stderr
        assert describe(coordinator, authority.ca, token=TOKEN) == OK
        assert describe(coordinator, authority.ca) == UNAUTHENTICATED
        assert describe(coordinator, authority.ca, token="wrong") == UNAUTHENTICATED
        assert describe(coordinator, stranger.ca, token=TOKEN) == UNAVAILABLE
        assert describe(coordinator, None) == UNAVAILABLE
        # The log reports it at most once a minute.
        assert len(coordinator.events("calls refused for want of a known bearer token")) == 1

        wrong_ca = cli(coordinator, "--tls-ca", stranger.ca, "--tls-token-file", token_file)
        assert wrong_ca.returncode == 1 and "error: no coordinator answers" in wrong_ca.stderr
        assert "handshake" in wrong_ca.stderr.lower() or "certificate" in wrong_ca.stderr.lower(), wrong_ca.stderr
        without_token = cli(coordinator, "--tls-ca", authority.ca)
        assert without_token.returncode == 1 and "bearer token is required" in without_token.stderr
        assert cli(coordinator).returncode == 1


def test_the_python_client_over_tls(authority: Authority, stranger: Authority, token_file: Path) -> None:
    def generate(**security: object) -> int:
        with Client(coordinator.address, retries=Retries(budget=0), **security) as client:
            return len(client.generate("Once", max_tokens=3, ignore_eos=True).tokens)

    ours = Tls(ca=authority.ca)
    with secured(authority, token_file) as coordinator:
        assert generate(tls=ours, token=TOKEN) == 3
        assert generate(tls=ours, token=lambda: token_file.read_text().strip()) == 3
        for wrong in ({"tls": ours}, {"tls": ours, "token": "wrong"}):
            with pytest.raises(Unauthenticated, match="bearer token"):
                generate(**wrong)
        for wrong in ({}, {"tls": Tls(ca=stranger.ca), "token": TOKEN}):
            with pytest.raises(Unavailable):
                generate(**wrong)


def test_a_server_that_wants_client_certificates_takes_only_those_of_its_authority(authority: Authority,
                                                                                   stranger: Authority) -> None:
    with running() as servers:
        servers.append(coordinator := start_coordinator("127.0.0.1:1", "", *tls_flags(*authority.sign("mutual")),
                                                        "--tls-client-ca", str(authority.ca)))
        assert describe(coordinator, authority.ca, identity=authority.sign("client")) == OK
        with Client(coordinator.address, tls=Tls(authority.ca, *authority.sign("python"))) as client:
            assert client.describe().target is None
        assert describe(coordinator, authority.ca, identity=stranger.sign("client")) == UNAVAILABLE
        assert describe(coordinator, authority.ca) == UNAVAILABLE


def test_a_coordinator_does_not_use_servers_that_it_cannot_trust(authority: Authority, stranger: Authority) -> None:
    with running() as servers:
        servers.append(target := start_target(*tls_flags(*stranger.sign("target"))))
        servers.append(coordinator := start_coordinator(target.address, "", "--backend-ca", str(authority.ca)))
        record = coordinator.wait_for_event("cannot connect", server="target")
        assert record["error"] and record["code"] == "UNAVAILABLE"
        assert coordinator.health() == "NOT_SERVING"
        assert len(coordinator.events("cannot connect")) == 1


def test_an_expired_certificate_is_refused_and_its_successor_used_without_a_restart(authority: Authority,
                                                                                    tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    install(authority.sign("expired", expired=True), (cert, key))
    with running() as servers:
        servers.append(coordinator := start_coordinator("127.0.0.1:1", "", *tls_flags(cert, key)))
        assert describe(coordinator, authority.ca) == UNAVAILABLE
        install(authority.sign("fresh"), (cert, key))
        eventually(lambda: describe(coordinator, authority.ca) == OK, "the new certificate is in use")


def test_a_changed_token_is_used_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("old\n")
    with running() as servers:
        servers.append(coordinator := start_coordinator("127.0.0.1:1", "", *tls_flags(*authority.sign("tokens")),
                                                        "--token-file", str(tokens)))
        assert describe(coordinator, authority.ca, token="old") == OK
        tokens.write_text("new\nsecond\n")
        assert describe(coordinator, authority.ca, token="new") == OK
        assert describe(coordinator, authority.ca, token="second") == OK
        assert describe(coordinator, authority.ca, token="old") == UNAUTHENTICATED


def test_files_that_are_no_use_stop_the_start_with_their_name(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.sign("bad-files")
    empty = tmp_path / "empty"
    empty.touch()
    start = ["outrider-coordinator", "--tokenizer", str(TARGET_MODEL), "--listen", "127.0.0.1:0",
             "--metrics-listen", "", "--log-format", "text"]
    assert f"{tmp_path}/none: cannot be read" in refusal(*start, *tls_flags(tmp_path / "none", key))
    assert f"{empty}: is not a PEM file with a CERTIFICATE" in refusal(*start, *tls_flags(empty, key))
    assert "together" in refusal(*start, "--tls-cert", str(cert))
    assert "need TLS" in refusal(*start, "--token-file", str(empty))
    assert f"{empty}: holds no token" in refusal(*start, *tls_flags(cert, key, "--token-file", empty))
    assert f"{empty}: is not a PEM file" in refusal(*start, "--backend-ca", str(empty))


def test_health_without_tls_on_its_own_address(authority: Authority, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/health"
    with running() as servers:
        servers.append(coordinator := start_coordinator("127.0.0.1:1", "", *tls_flags(*authority.sign("health")),
                                                        "--health-listen", address))
        assert coordinator.health(address) == "NOT_SERVING"
        assert coordinator.health(address, service="live") == "SERVING"

