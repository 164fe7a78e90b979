"""What a call can raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

_DETAILS = "grpc-status-details-bin"
# The reason of what ends with its client.
CLIENT_CLOSED = "CLIENT_CLOSED"


class OutriderError(Exception):
    """A call that failed. The subclass says how; codes without one of their own raise this class itself.

    Attributes:
        code: gRPC's status code.
        reason: What went wrong, in a word that stays the same, such as FIELD_INVALID or QUEUE_FULL
            (docs/protocol.md lists them). The code's name if there was no answer that could give one.
        metadata: What belongs to the reason.
        retry_after: Seconds after which the server wants to be asked again, if it said so.
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
    """The request is wrong; `field` names the part that is, and `metadata["range"]` what it may be."""

    _default_code = grpc.StatusCode.INVALID_ARGUMENT


class FailedPrecondition(OutriderError):
    """The service is not in a state for this request."""

    _default_code = grpc.StatusCode.FAILED_PRECONDITION


class Unauthenticated(OutriderError):
    """There is no token, or the service doesn't know it."""

    _default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(OutriderError):
    """The token is known, and not good for this call."""

    _default_code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhausted(OutriderError):
    """The service has too much to do; `retry_after` says when to come back."""

    _default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(OutriderError):
    """The timeout of the call passed."""

    _default_code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(OutriderError):
    """The call was ended from this side, by closing its client for instance."""

    _default_code = grpc.StatusCode.CANCELLED


class Unavailable(OutriderError):
    """The service is not reachable, or went away, and did not come back while the call was retried."""

    _default_code = grpc.StatusCode.UNAVAILABLE


class Internal(OutriderError):
    """A defect on the other side, or between the two."""

    _default_code = grpc.StatusCode.INTERNAL


class Unimplemented(OutriderError):
    """What answers at the address is not a coordinator, or an older one."""

    _default_code = grpc.StatusCode.UNIMPLEMENTED


class DataLoss(OutriderError):
    """The answer ended without its end, or with a gap."""

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
    """The service's own error for a wrong field, for what cannot even be sent."""
    return InvalidArgument(
        f"{field}: {problem}; allowed: {allowed}",
        reason="FIELD_INVALID",
        metadata={"field": field, "range": allowed},
    )


def from_rpc_error(error: grpc.RpcError) -> OutriderError:
    """The error that a failed call of gRPC's, blocking or asyncio, stands for."""
    # Pairs, whatever the declaration says.
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
    """Reason, metadata and seconds to wait of a serialised google.rpc.Status; proxies send none, or anything."""
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
