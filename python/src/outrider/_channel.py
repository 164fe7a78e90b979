"""Makes channels to a coordinator: their arguments, TLS, and the token."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from outrider._errors import field_error

if TYPE_CHECKING:
    from typing import Any

# A file's path, or PEM itself.
Pem = str | os.PathLike[str] | bytes
# A token, or a function that returns the current one before each call (in one of gRPC's threads).
Token = str | Callable[[], str]

# The services use the same options among themselves (common/rpc/server.cc), except for the connection timeout: a
# client can be far away.
_MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS: dict[str, Any] = {
    "grpc.max_receive_message_length": _MAX_MESSAGE_BYTES,
    "grpc.max_send_message_length": _MAX_MESSAGE_BYTES,
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 5_000,
    "grpc.max_reconnect_backoff_ms": 500,
    # http_proxy is meant for other programs; users who want a proxy here can set grpc_proxy.
    **({} if "grpc_proxy" in os.environ else {"grpc.enable_http_proxy": 0}),
    "grpc.primary_user_agent": f"outrider-python/{version('outrider')}",
}


@dataclass(frozen=True)
class Tls:
    """An encrypted connection to a server that has proven its identity.

    Each file is given by its path, or as PEM in bytes.

    Attributes:
        ca: Root certificates that verify the server's certificate. None: those of the system.
        certificate: For a server that asks for client certificates: the client's chain, its own certificate first.
        key: Its private key.
        server_name: The name that the server's certificate must have, if it differs from the address.
    """

    ca: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("Tls: certificate and key belong together")


@dataclass(frozen=True)
class Endpoint:
    """Everything that a channel is made from; if `credentials` is None, it is plaintext."""

    address: str
    credentials: grpc.ChannelCredentials | None
    options: list[tuple[str, Any]]


class OneProcess:
    """The process that owns gRPC objects. A forked process has none of gRPC's threads and would wait for them."""

    def __init__(self) -> None:
        """This process."""
        self._id = os.getpid()

    def __bool__(self) -> bool:
        return os.getpid() == self._id

    def check(self) -> None:
        """Raises RuntimeError in any other process."""
        if not self:
            raise RuntimeError("a client does not survive a fork: make one in the new process, or start that by spawn")


def endpoint(address: str, tls: Tls | None, token: Token | None) -> Endpoint:
    """Reads the files now, so that a missing one fails early. Raises ValueError for contradictory arguments."""
    _check_address(address)
    options = dict(_OPTIONS)
    if tls is None:
        if token is not None:
            raise ValueError("a token is not sent over a connection that anybody can read: give tls=Tls(...) too")
        return Endpoint(address, None, list(options.items()))
    if tls.server_name is not None:
        options["grpc.ssl_target_name_override"] = tls.server_name
        options["grpc.default_authority"] = tls.server_name
    credentials = grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))
    if token is not None:
        bearer = grpc.metadata_call_credentials(_BearerToken(token), name="bearer token")
        credentials = grpc.composite_channel_credentials(credentials, bearer)
    return Endpoint(address, credentials, list(options.items()))


def _check_address(address: str) -> None:
    """Checks what gRPC does not: it takes port 99999 modulo 65536, and uses port 443 if there is none."""
    host, _, port = address.rpartition(":")
    is_port = re.fullmatch("[0-9]{1,5}", port) is not None and 0 < int(port) < 1 << 16
    is_host = re.fullmatch(r"\[[^]]+\]|[^:/]+", host) is not None
    if not re.match("(unix|unix-abstract|dns|ipv4|ipv6):", address) and not (is_host and is_port):
        raise ValueError(f"{address!r} is neither HOST:PORT, with a port from 1 to 65535, nor unix:PATH")


def to_metadata(metadata: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Converts metadata for gRPC, which reports keys and values that it refuses as internal errors."""
    for key, value in (metadata or {}).items():
        if not re.fullmatch("[a-z0-9_.-]+", key) or key.startswith("grpc-") or key.endswith("-bin"):
            allowed = "a-z, 0-9, '_', '.' and '-', without grpc- before or -bin after them"
            raise field_error("metadata", allowed, f"the key {key!r}")
        if not re.fullmatch("[ -~]*", value):
            raise field_error(f"metadata.{key}", "printable ASCII", f"{value!r}")
    return tuple((metadata or {}).items())


def _read(pem: Pem | None) -> bytes | None:
    if pem is None or isinstance(pem, bytes):
        return pem
    return Path(pem).read_bytes()


class _BearerToken(grpc.AuthMetadataPlugin):
    def __init__(self, token: Token) -> None:
        self._token = token

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        token = self._token if isinstance(self._token, str) else self._token()
        callback((("authorization", f"Bearer {token}"),), None)
