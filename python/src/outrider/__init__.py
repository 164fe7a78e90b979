"""Client of Outrider, which serves speculative decoding as a pair of gRPC services.

    from outrider import Client

    with Client("127.0.0.1:7070") as client:
        completion = client.generate("The sea was calm that morning, and", max_tokens=40, temperature=0)
        print(completion.text, completion.speculation.acceptance_rate)

`AsyncClient` is the same for asyncio. All errors of calls are `OutriderError`.
"""

from importlib.metadata import version

from outrider._aio import AsyncClient, AsyncStream
from outrider._answer import (
    Chunk,
    Completion,
    EchoedPrompt,
    Finish,
    FinishReason,
    PositionLogprobs,
    Round,
    Speculation,
    TokenKind,
    TokenLogprob,
    Usage,
)
from outrider._channel import Tls
from outrider._client import Client, Stream
from outrider._description import Defaults, Description, ProposerInfo, ServerInfo, ServerState, Totals
from outrider._errors import (
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    OutriderError,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from outrider._request import BeamStopName, ChatMessage, DrafterName, Options, RuleName, ScheduleName, SiblingOrderName
from outrider._retries import Retries

__version__ = version("outrider")

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "BeamStopName",
    "Cancelled",
    "ChatMessage",
    "Chunk",
    "Client",
    "Completion",
    "DataLoss",
    "DeadlineExceeded",
    "Defaults",
    "Description",
    "DrafterName",
    "EchoedPrompt",
    "FailedPrecondition",
    "Finish",
    "FinishReason",
    "Internal",
    "InvalidArgument",
    "Options",
    "OutriderError",
    "PermissionDenied",
    "PositionLogprobs",
    "ProposerInfo",
    "ResourceExhausted",
    "Retries",
    "Round",
    "RuleName",
    "ScheduleName",
    "ServerInfo",
    "ServerState",
    "SiblingOrderName",
    "Speculation",
    "Stream",
    "Tls",
    "TokenKind",
    "TokenLogprob",
    "Totals",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Usage",
    "__version__",
]
