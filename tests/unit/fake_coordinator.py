"""A fake coordinator that fails on demand, for tests of its clients."""

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from outrider.v1 import inference_pb2, inference_pb2_grpc, sequence_pb2

# Only a guard against hanging.
PATIENCE = 60.0

Act = Callable[["Call"], Iterator[inference_pb2.GenerateResponse]]


@dataclasses.dataclass
class Call:
    """A call of Generate as the server received it."""
    request: inference_pb2.GenerateRequest
    metadata: dict[str, str]
    context: grpc.ServicerContext
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)

    @property
    def position(self) -> int:
        return len(self.request.resume_from)


class FakeCoordinator(inference_pb2_grpc.InferenceServicer):
    """Answers each call with the next of the acts, and later calls with the complete answer."""

    def __init__(self, *acts: Act, credentials: grpc.ServerCredentials | None = None) -> None:
        self.calls: list[Call] = []
        self._acts = deque(acts)
        self._server = grpc.server(ThreadPoolExecutor(8))
        inference_pb2_grpc.add_InferenceServicer_to_server(self, self._server)
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> "FakeCoordinator":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait(PATIENCE)

    def Generate(self, request: inference_pb2.GenerateRequest,  # noqa: N802
                 context: grpc.ServicerContext) -> Iterator[inference_pb2.GenerateResponse]:
        call = Call(request, {key: value for key, value in context.invocation_metadata()}, context)
        context.add_callback(call.ended.set)
        self.calls.append(call)
        act = self._acts.popleft() if self._acts else whole
        yield from act(call)

    def Describe(self, request: inference_pb2.DescribeRequest,  # noqa: N802
                 context: grpc.ServicerContext) -> inference_pb2.DescribeResponse:
        return inference_pb2.DescribeResponse(version="fake", defaults={"rule": sequence_pb2.RULE_TOKEN})


# The answer to every request: ten tokens in chunks of two, one of them without text of its own.
TOKENS = list(range(100, 110))
TEXTS = [f" t{token}" if token != 103 else "" for token in TOKENS]
TEXT = "".join(TEXTS)


def chunk(position: int, *, tokens: int = 2, sample: int = 0, end: int = len(TOKENS)) -> inference_pb2.GenerateResponse:
    stop = min(position + tokens, end)
    response = inference_pb2.GenerateResponse(
        text="".join(TEXTS[position:stop]), position=position, sample=sample,
        tokens=[{"id": TOKENS[i], "text": TEXTS[i], "kind": sequence_pb2.TOKEN_KIND_PLAIN}
                for i in range(position, stop)])
    if stop == end:
        response.finish.reason = inference_pb2.FINISH_REASON_LENGTH
        response.finish.usage.completion_tokens = stop
    return response


def whole(call: Call) -> Iterator[inference_pb2.GenerateResponse]:
    for sample in range(max(call.request.n, 1)):
        for position in range(call.position, len(TOKENS), 2):
            yield chunk(position, sample=sample)


def fail(call: Call, code: grpc.StatusCode, reason: str = "", retry_after: float | None = None,
         **metadata: str) -> None:
    """Fails the call as common/rpc/error.cc does; without a reason, as a proxy might."""
    if reason:
        details = [error_details_pb2.ErrorInfo(reason=reason, domain="outrider", metadata=metadata)]
        if retry_after is not None:
            delay = Duration()
            delay.FromMilliseconds(int(retry_after * 1000))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=code.value[0], message=f"it is {reason}")
        for detail in details:
            status.details.append(AnyMessage())
            status.details[-1].Pack(detail)
        call.context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    call.context.abort(code, f"it is {reason}")


def failing(code: grpc.StatusCode, reason: str = "", *, after: int = 0, retry_after: float | None = None,
            **metadata: str) -> Act:
    """Sends `after` chunks, then fails."""
    def act(call: Call) -> Iterator[inference_pb2.GenerateResponse]:
        for index in range(after):
            yield chunk(call.position + 2 * index)
        fail(call, code, reason, retry_after, **metadata)
    return act


def sending(*responses: inference_pb2.GenerateResponse) -> Act:
    """Sends these chunks and ends the call normally."""
    return lambda _: iter(responses)


def endless(call: Call) -> Iterator[inference_pb2.GenerateResponse]:
    """Sends two chunks, then nothing until the client is gone; does not end by itself."""
    yield chunk(0)
    yield chunk(2)
    call.ended.wait(10 * PATIENCE)
