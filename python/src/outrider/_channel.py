"""How a channel to a coordinator is made: its arguments, TLS, and the token."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from typing import Any

# A file, or PEM itself.
Pem = str | os.PathLike[str] | bytes
# A token, or what is asked for the current one before each call (from a thread of gRPC's).
Token = str | Callable[[], str]

# As between the services (common/rpc/server.cc), but for the time that a connection may take to come about: a
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
    # http_proxy is meant for other programs; grpc_proxy is for those who want one here.
    **({} if "grpc_proxy" in os.environ else {"grpc.enable_http_proxy": 0}),
    "grpc.primary_user_agent": f"outrider-python/{version('outrider')}",
}


@dataclass(frozen=True)
class Tls:
    """A connection that is encrypted, to a server that has proven who it is.

    Each of the files is given by its path, or as PEM in bytes.

    Attributes:
        ca: Certificates that the server's must lead to. None: those of the system.
        certificate: For a server that asks its clients for one, the chain of ours, ours first.
        key: Its private key.
        server_name: The name that the server's certificate must have, if it is not the address's.
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
    """Everything that a channel is made from; `credentials` None is plaintext."""

    address: str
    credentials: grpc.ChannelCredentials | None
    options: list[tuple[str, Any]]


def endpoint(address: str, tls: Tls | None, token: Token | None) -> Endpoint:
    """Reads files, so that what is missing is said when the client is made. ValueError for what contradicts itself."""
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
