"""Errors that a call can raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

_DETAILS = "grpc-status-details-bin"
# The reason of errors that closing the client causes.
CLIENT_CLOSED = "CLIENT_CLOSED"


class OutriderError(Exception):
    """A call that failed. Most status codes have a subclass; the others raise this class itself.

    Attributes:
        code: gRPC's status code.
        reason: The cause, as a stable word such as FIELD_INVALID or QUEUE_FULL
            (docs/protocol.md lists them). The code's name if there was no answer that could give one.
        metadata: The details of the reason.
        retry_after: Seconds after which the server wants the call again, if it said so.
    """

    _default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self._default_code
        self.reason = reason or self.code.name
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after

    @property
    def field(self) -> str | None:
        """The field of the request that is wrong, such as "sampling.top_p"."""
        return self.metadata.get("field")

    def __str__(self) -> str:
        name = self.code.name if self.reason == self.code.name else f"{self.code.name}, {self.reason}"
        return f"{self.message} ({name})"


class InvalidArgument(OutriderError):
    """The request is wrong; `field` names the wrong part, and `metadata["range"]` its allowed values."""

    _default_code = grpc.StatusCode.INVALID_ARGUMENT


class FailedPrecondition(OutriderError):
    """The service is not in a state that allows this request."""

    _default_code = grpc.StatusCode.FAILED_PRECONDITION


class Unauthenticated(OutriderError):
    """The token is missing, or the service doesn't know it."""

    _default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(OutriderError):
    """The token is known but does not permit this call."""

    _default_code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhausted(OutriderError):
    """The service is overloaded; `retry_after` says when to try again."""

    _default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(OutriderError):
    """The timeout of the call passed."""

    _default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(OutriderError):
    """This side ended the call, for instance by closing its client."""

    _default_code = grpc.StatusCode.CANCELLED


class Unavailable(OutriderError):
    """The service could not be reached, or went away and did not come back while the call was retried."""

    _default_code = grpc.StatusCode.UNAVAILABLE


class Internal(OutriderError):
    """A defect of the service, or of something between it and the client."""

    _default_code = grpc.StatusCode.INTERNAL


class Unimplemented(OutriderError):
    """The server at the address is not a coordinator, or an older one."""

    _default_code = grpc.StatusCode.UNIMPLEMENTED


class DataLoss(OutriderError):
    """The answer lacks its end, or has a gap."""

    _default_code = grpc.StatusCode.DATA_LOSS


_CLASSES: dict[grpc.StatusCode, type[OutriderError]] = {
    cls._default_code: cls
    for cls in (
        InvalidArgument,
        FailedPrecondition,
        Unauthenticated,
        PermissionDenied,
        ResourceExhausted,
        DeadlineExceeded,
        Cancelled,
        Unavailable,
        Internal,
        Unimplemented,
        DataLoss,
    )
}


def field_error(field: str, allowed: str, problem: str) -> InvalidArgument:
    """The service's own error for a wrong field, for values that cannot be sent at all."""
    return InvalidArgument(
        f"{field}: {problem}; allowed: {allowed}",
        reason="FIELD_INVALID",
        metadata={"field": field, "range": allowed},
    )


def from_rpc_error(error: grpc.RpcError) -> OutriderError:
    """The error for a failed gRPC call, blocking or asyncio."""
    # A sequence of pairs, whatever the declaration says.
    trailing: Any = error.trailing_metadata() or ()
    details = next((value for key, value in trailing if key == _DETAILS), b"")
    reason, metadata, retry_after = _parse(details)
    cls = _CLASSES.get(error.code(), OutriderError)
    said = error.details() or (
        "what answers at this address does not know the call: is it another service?"
        if error.code() == grpc.StatusCode.UNIMPLEMENTED
        else "the call ended without a reason"
    )
    return cls(said, code=error.code(), reason=reason, metadata=metadata, retry_after=retry_after)


def _parse(details: bytes) -> tuple[str, dict[str, str], float | None]:
    """Reason, metadata and retry delay of a serialised google.rpc.Status. Proxies may send none, or anything."""
    status, info, retry = status_pb2.Status(), error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    retry_after = None
    try:
        status.ParseFromString(details)
        for detail in status.details:
            detail.Unpack(info)
            if detail.Unpack(retry):
                retry_after = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    except DecodeError:
        return "", {}, None
    return info.reason, dict(info.metadata), retry_after
