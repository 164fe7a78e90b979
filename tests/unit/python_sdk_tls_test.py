"""The Python SDK over TLS, with tokens and client certificates, against gRPC's own server."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import outrider
import pytest
from fake_coordinator import TEXT, FakeCoordinator
from outrider import AsyncClient, Client, Retries, Tls

ONCE = Retries(budget=0)
Name = str
Generate = Callable[..., str]


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two CAs, `ca` and `other`; each has signed a server's and a client's certificate."""
    folder = tmp_path_factory.mktemp("pem")
    for authority in ("ca", "other"):
        make(folder, authority, "/CN=authority")
        make(folder, f"{authority}-server", "/CN=server", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
             "-addext", "subjectAltName=DNS:coordinator.internal,IP:127.0.0.1")
        make(folder, f"{authority}-client", "/CN=client", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key")
    return folder


def make(folder: Path, name: Name, subject: str, *options: str) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.pem", *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def serving(pem: Path, *, client_ca: Name | None = None) -> FakeCoordinator:
    pair = [((pem / "ca-server.key").read_bytes(), (pem / "ca-server.pem").read_bytes())]
    roots = (pem / f"{client_ca}.pem").read_bytes() if client_ca else None
    return FakeCoordinator(credentials=grpc.ssl_server_credentials(pair, roots, client_ca is not None))


def blocking(address: str, **arguments: object) -> str:
    with Client(address, retries=ONCE, **arguments) as client:
        return client.generate("x").text


def with_asyncio(address: str, **arguments: object) -> str:
    async def run() -> str:
        async with AsyncClient(address, retries=ONCE, **arguments) as client:
            return (await client.generate("x")).text
    return asyncio.run(run())


@pytest.fixture(params=[blocking, with_asyncio])
def generate(request: pytest.FixtureRequest) -> Generate:
    return request.param


def test_a_server_with_a_certificate_of_ours_is_trusted(pem: Path, generate: Generate) -> None:
    with serving(pem) as server:
        assert generate(server.address, tls=Tls(ca=pem / "ca.pem")) == TEXT
        assert generate(server.address, tls=Tls(ca=(pem / "ca.pem").read_bytes())) == TEXT


def test_a_server_of_somebody_else_is_not(pem: Path, generate: Generate) -> None:
    with serving(pem) as server:
        for tls in (Tls(ca=pem / "other.pem"), Tls()):
            with pytest.raises(outrider.Unavailable):
                generate(server.address, tls=tls)
        with pytest.raises(outrider.Unavailable):
            generate(server.address)  # in plaintext
        assert server.calls == []


def test_the_name_of_the_server_is_checked(pem: Path, generate: Generate) -> None:
    with serving(pem) as server:
        assert generate(server.address, tls=Tls(ca=pem / "ca.pem", server_name="coordinator.internal")) == TEXT
        with pytest.raises(outrider.Unavailable):
            generate(server.address, tls=Tls(ca=pem / "ca.pem", server_name="somebody.else"))


def test_a_server_may_ask_for_our_certificate(pem: Path, generate: Generate) -> None:
    with serving(pem, client_ca="ca") as server:
        assert generate(server.address, tls=Tls(pem / "ca.pem", pem / "ca-client.pem", pem / "ca-client.key")) == TEXT
        for tls in (Tls(pem / "ca.pem"), Tls(pem / "ca.pem", pem / "other-client.pem", pem / "other-client.key")):
            with pytest.raises(outrider.Unavailable):
                generate(server.address, tls=tls)


def test_a_token_goes_with_each_call(pem: Path, generate: Generate) -> None:
    tokens = iter(["second", "third"])
    with serving(pem) as server:
        tls = Tls(ca=pem / "ca.pem")
        for token in ("first", lambda: next(tokens), lambda: next(tokens)):
            generate(server.address, tls=tls, token=token)
        assert [call.metadata["authorization"] for call in server.calls] == [
            "Bearer first", "Bearer second", "Bearer third"]


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_a_token_is_not_sent_in_plaintext(client: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(ValueError, match=r"connection that anybody can read: give tls=Tls"):
        client("127.0.0.1:1", token="secret")


def test_files_are_read_when_the_client_is_made(pem: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Client("127.0.0.1:1", tls=Tls(ca=pem / "nowhere.pem"))
    with pytest.raises(ValueError, match="belong together"):
        Tls(certificate=pem / "ca-client.pem")
