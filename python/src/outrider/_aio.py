"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from outrider._answer import Chunk, join
from outrider._channel import OneProcess, endpoint, to_metadata
from outrider._description import to_description
from outrider._errors import CLIENT_CLOSED, Cancelled, from_rpc_error
from outrider._methods import DESCRIBE, GENERATE
from outrider._progress import Progress
from outrider._request import build_request
from outrider._retries import Attempts, Retries
from outrider.v1 import inference_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from outrider._answer import Completion
    from outrider._channel import Tls, Token
    from outrider._description import Description
    from outrider._request import Options, Prompt

    Call = grpc.aio.UnaryStreamCall[Any, inference_pb2.GenerateResponse]


class AsyncClient:
    """A connection to a coordinator, for the tasks of one event loop: the loop of its first call.

        async with AsyncClient("127.0.0.1:7070") as client:
            print((await client.generate("The sea was calm", max_tokens=40)).text)

    It has the arguments, answers and errors of `Client`. Cancelling a task ends its call. A process that forks
    needs GRPC_ENABLE_FORK_SUPPORT=0 in its environment: otherwise gRPC's fork handlers may end the new process.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = None,
        tls: Tls | None = None,
        token: Token | None = None,
        retries: Retries | None = None,
    ) -> None:
        """Does not connect yet; see `Client`."""
        self._endpoint = endpoint(address, tls, token)
        self._process = OneProcess()
        self._timeout = timeout
        self._retries = retries or Retries()
        self._connected: grpc.aio.Channel | None = None
        self._closing = asyncio.Event()
        # Closing a channel does not end its calls in every version of gRPC.
        self._calls: weakref.WeakSet[grpc.aio.Call] = weakref.WeakSet()

    async def generate(
        self,
        prompt: Prompt,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The continuation of a prompt; see `Client.generate`."""
        async with self._stream(prompt, 1, timeout, metadata, options) as chunks:
            return join([chunk async for chunk in chunks])[0]

    async def generate_samples(
        self,
        prompt: Prompt,
        n: int,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """`n` continuations of a prompt; see `Client.generate_samples`."""
        async with self._stream(prompt, n, timeout, metadata, options) as chunks:
            return join([chunk async for chunk in chunks])

    def stream(
        self,
        prompt: Prompt,
        *,
        n: int = 1,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> AsyncStream:
        """The chunks of a continuation, or of `n`, as they arrive; see `Client.stream`.

        Example:
            async for chunk in client.stream("The sea was calm", max_tokens=40):
                print(chunk.text, end="", flush=True)
        """
        return self._stream(prompt, n, timeout, metadata, options)

    async def describe(self, *, timeout: float | None = 5.0) -> Description:
        """Describes what is served, by which servers, and their state."""
        attempts = Attempts(self._retries, timeout)
        while True:
            method = self._channel().unary_unary(
                DESCRIBE,
                request_serializer=inference_pb2.DescribeRequest.SerializeToString,
                response_deserializer=inference_pb2.DescribeResponse.FromString,
            )
            call = method(inference_pb2.DescribeRequest(), timeout=attempts.remaining())
            self._calls.add(call)
            try:
                return to_description(await call)
            except grpc.RpcError as error:
                wait = attempts.wait_after(from_rpc_error(error))
            except asyncio.CancelledError:
                self._check_why()
                raise
            await self._wait(wait)

    async def close(self) -> None:
        """Ends running calls, which raise `Cancelled`, and closes the connection."""
        self._closing.set()
        if not self._process:
            return
        for call in list(self._calls):
            call.cancel()
        if self._connected is not None:
            await self._connected.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _stream(
        self, prompt: Prompt, n: int, timeout: float | None, metadata: Mapping[str, str] | None, options: Options
    ) -> AsyncStream:
        limit = self._timeout if timeout is None else timeout
        return AsyncStream(self, Progress(build_request(prompt, n, options), self._retries, limit), metadata)

    def _channel(self) -> grpc.aio.Channel:
        """Makes the channel at the first call, since a channel belongs to the event loop in which it is made."""
        self._check_open()
        if self._connected is None:
            at = self._endpoint
            if at.credentials is None:
                self._connected = grpc.aio.insecure_channel(at.address, options=at.options)
            else:
                self._connected = grpc.aio.secure_channel(at.address, at.credentials, options=at.options)
        return self._connected

    def _check_open(self) -> None:
        self._process.check()
        if self._closing.is_set():
            raise Cancelled("the client is closed", reason=CLIENT_CLOSED)

    async def _wait(self, seconds: float) -> None:
        """Waits this long, or until the client is closed."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    def _check_why(self) -> None:
        """Raises Cancelled if a call's CancelledError came from closing this client, not from cancelling the task."""
        task = asyncio.current_task()
        # Python 3.10 has no Task.cancelling.
        cancelling = getattr(task, "cancelling", int)()
        if not cancelling:
            self._check_open()


class AsyncStream(AsyncIterator[Chunk]):
    """The chunks of an answer, as they arrive. For one task at a time.

    To stop early, close it, leave its async-with block, or break out of the loop over it while nothing else
    refers to it. The service then ends the generation and frees what it held.
    """

    def __init__(self, client: AsyncClient, progress: Progress, metadata: Mapping[str, str] | None) -> None:
        """Made by `AsyncClient.stream`."""
        self._client = client
        self._progress = progress
        self._call: Call | None = None
        self._over = False
        self._metadata = to_metadata(metadata)

    async def __anext__(self) -> Chunk:
        while not self._over:
            try:
                self._client._process.check()
                if self._call is None:
                    self._call = self._start()
                response = await self._call.read()
                if isinstance(response, inference_pb2.GenerateResponse):
                    return self._progress.receive(response)
                self._over = True
                self._progress.end()
            except grpc.RpcError as error:
                self._call = None
                self._over = self._over or self._progress.complete
                if not self._over:
                    await self._pause(error)
            except BaseException as error:
                await self.aclose()
                if isinstance(error, asyncio.CancelledError):
                    self._client._check_why()
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the call if it is not over. Further chunks are not read."""
        self._over = True
        if self._call is not None and self._client._process:
            self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # gRPC's own tasks refer to the call, so it would go on. This may run in another thread than the loop's.
        if self._call is not None and not self._over and self._client._process:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and the call with it
                self._loop.call_soon_threadsafe(self._call.cancel)

    def _start(self) -> Call:
        method = self._client._channel().unary_stream(
            GENERATE,
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )
        self._loop = asyncio.get_running_loop()
        call = method(self._progress.request, timeout=self._progress.remaining(), metadata=self._metadata)
        self._client._calls.add(call)
        return call

    async def _pause(self, error: grpc.RpcError) -> None:
        """Waits until it is time for the next call."""
        try:
            self._client._check_open()
            await self._client._wait(self._progress.wait_after(from_rpc_error(error)))
        except BaseException:
            self._over = True
            raise
